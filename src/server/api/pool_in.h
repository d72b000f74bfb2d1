/* SPDX-License-Identifier: MIT
 * pool_in.h - what the APIs of embeddings and of scores share: fields of their requests, texts to
 * prompts, members of their replies.
 */
#ifndef SL_SERVER_POOL_IN_H
#define SL_SERVER_POOL_IN_H

#include "server/api/task.h"

/* The body as an object, its model, priority and truncate_prompt_tokens; counts fields that are not
 * among known (ended by NULL) as unknown. */
SL_MUST_CHECK int sl_pool_read(struct sl_task *t, const char *const *known);
/* Room for n prompts in t; refuses none and too many, which names the field. */
SL_MUST_CHECK int sl_pool_reserve(struct sl_task *t, size_t n, const char *field);
/* A text, or two: b NULL or a string. field: what a refusal names. */
SL_MUST_CHECK int sl_pool_encode(struct sl_task *t, const json_t *a, const json_t *b,
                                 const char *field, struct sl_prompt *out);
/* Does the model give embeddings (vectors_only), or anything at all for a text? */
SL_MUST_CHECK int sl_pool_check(struct sl_task *t, bool vectors_only);
/* api_embeddings.c: [0.1,...], or base64, of as many dimensions as were asked for */
void sl_pool_put_vector(struct sl_buf *b, const struct sl_call *call, const float *v, int32_t n);
/* {"id":...,"object":"list","created":...,"model":..., */
void sl_pool_put_head(struct sl_buf *b, const struct sl_call *call);
/* "usage":{...} */
void sl_pool_put_usage(struct sl_buf *b, const struct sl_call *call);

#endif
