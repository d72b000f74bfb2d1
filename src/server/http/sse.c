/* SPDX-License-Identifier: MIT */
#include "server/http/sse.h"

#include <math.h>
#include <stdio.h>

void sl_put_u64(struct sl_buf *b, uint64_t x)
{
    char text[20];
    size_t at = sizeof text;
    do {
        text[--at] = (char)('0' + x % 10);
        x /= 10;
    } while (x != 0);
    sl_buf_put(b, text + at, sizeof text - at);
}

void sl_put_i64(struct sl_buf *b, int64_t x)
{
    if (x < 0)
        sl_buf_putc(b, '-');
    sl_put_u64(b, x < 0 ? 0 - (uint64_t)x : (uint64_t)x);
}

void sl_put_logprob(struct sl_buf *b, float x)
{
    char text[32];
    if (!isfinite(x))
        x = -9999.0f;
    int n = snprintf(text, sizeof text, "%.9g", (double)x);
    sl_buf_put(b, text, n > 0 ? (size_t)n : 0);
}
