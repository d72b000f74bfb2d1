/* SPDX-License-Identifier: MIT */
#include "quant/q4_0.h"

#include "quant/fit.h"

#include <math.h>

void sl_q4_0_to_f32(const void *x, float *out, int64_t n)
{
    const struct sl_q4_0_block *b = x;
    for (int64_t i = 0; i < n; i += SL_Q4_0_ELEMS, b++) {
        float d = sl_q4_0_scale(b);
        for (int j = 0; j < SL_Q4_0_ELEMS; j++)
            out[i + j] = d * (float)sl_q4_0_code(b, j);
    }
}

void sl_q4_0_from_f32(const float *x, void *out, int64_t n)
{
    struct sl_q4_0_block *b = out;
    for (int64_t i = 0; i < n; i += SL_Q4_0_ELEMS, b++) {
        uint16_t h = sl_fit_scale_f16(sl_fit_symmetric(x + i, SL_Q4_0_ELEMS, 8));
        float inv = sl_fit_inverse(sl_f16_to_f32(h)); /* codes fit the scale as stored */
        sl_store_u16(b->d, h);
        for (int j = 0; j < 16; j++) {
            int lo = sl_fit_round(x[i + j] * inv, -8, 7) + 8;
            int hi = sl_fit_round(x[i + j + 16] * inv, -8, 7) + 8;
            b->q[j] = (uint8_t)(lo | hi << 4);
        }
    }
}
