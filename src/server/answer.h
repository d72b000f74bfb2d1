/* SPDX-License-Identifier: MIT
 * answer.h - the answer of one choice of a conversation, split by its parser into reasoning,
 * content and calls: as deltas of a stream, or gathered for a message.
 *
 * Belongs to its call and the call's thread. Cutting the text into other pieces changes nothing but
 * where deltas are cut.
 */
#ifndef SL_SERVER_ANSWER_H
#define SL_SERVER_ANSWER_H

#include "server/call.h"

struct sl_answer;

/* *out is NULL where the text of the answer is its content as it is. */
SL_MUST_CHECK int sl_answer_create(struct sl_call *call, const struct sl_choice *choice,
                                   const struct sl_params *p, struct sl_answer **out,
                                   struct sl_error *err);
void sl_answer_destroy(struct sl_answer *a);
/* The next text. b: gets an event per delta, but for the end of the last one: true if it is to be
 * ended (sl_answer_begin_delta begins an empty one). NULL: gathers. After a failure of memory b, or
 * what is gathered, is failed. */
bool sl_answer_push(struct sl_answer *a, struct sl_buf *b, const struct sl_chunk *chunk);
void sl_answer_begin_delta(struct sl_answer *a, struct sl_buf *b);
/* "content":...,"tool_calls":[...] and so on: members of a message. */
void sl_answer_put_message(struct sl_answer *a, struct sl_buf *b);
bool sl_answer_has_calls(const struct sl_answer *a); /* NULL: no */
size_t sl_answer_bytes(const struct sl_answer *a);   /* gathered; NULL: 0 */

#endif
