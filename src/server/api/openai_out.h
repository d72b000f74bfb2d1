/* SPDX-License-Identifier: MIT
 * openai_out.h - what replies of /v1/chat/completions and /v1/completions have in common: the
 * envelope of a reply and of a stream's events, ends, usage.
 */
#ifndef SL_SERVER_OPENAI_OUT_H
#define SL_SERVER_OPENAI_OUT_H

#include "server/api/call.h"

/* For the tables of both APIs. */
#define SL_OPENAI_OUT                                                         \
    .put_event_head = sl_openai_event_head, .put_whole = sl_openai_put_whole, \
    .end_stream = sl_openai_end_stream, .fail_stream = sl_openai_fail_stream

void sl_openai_event_head(struct sl_call *call);
void sl_openai_put_whole(struct sl_buf *b, struct sl_call *call);
void sl_openai_end_stream(struct sl_buf *b, struct sl_call *call);
void sl_openai_fail_stream(struct sl_buf *b, struct sl_call *call, const struct sl_refusal *r);

/* An event of a stream, around its choice. prompt: whose usage it may have to show, or NULL;
 * finish: of the choice. */
void sl_openai_event_begin(struct sl_buf *b, const struct sl_call *call);
void sl_openai_event_end(struct sl_buf *b, struct sl_call *call, const struct sl_prompt *prompt,
                         enum sl_finish finish);
/* "finish_reason":...,"stop_reason":...; calls: the model stopped to call tools. */
void sl_openai_put_finish(struct sl_buf *b, enum sl_finish finish, bool calls,
                          int32_t stop_token_id, const char *stop_str, size_t n_stop_str);
/* n_thought: of the output, -1: not counted. */
void sl_openai_put_usage(struct sl_buf *b, const struct sl_usage *u, int64_t n_thought);

#endif
