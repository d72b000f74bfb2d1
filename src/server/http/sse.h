/* SPDX-License-Identifier: MIT
 * sse.h - the hot path of output: small pieces of JSON appended without formatting functions.
 */
#ifndef SL_SERVER_SSE_H
#define SL_SERVER_SSE_H

#include "base/buf.h"

#include <stdint.h>
#include <string.h>

/* Appends a string literal. */
#define SL_PUT(b, literal) sl_buf_put((b), "" literal, sizeof(literal) - 1)

void sl_put_u64(struct sl_buf *b, uint64_t x);
void sl_put_i64(struct sl_buf *b, int64_t x);
/* A logprob: nine digits say every float exactly; infinities become -9999, as in vLLM. */
void sl_put_logprob(struct sl_buf *b, float x);

#endif
