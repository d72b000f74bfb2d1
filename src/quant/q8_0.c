/* SPDX-License-Identifier: MIT */
#include "quant/q8_0.h"

#include "quant/fit.h"

#include <math.h>

void sl_q8_0_to_f32(const void *x, float *out, int64_t n)
{
    const struct sl_q8_0_block *b = x;
    for (int64_t i = 0; i < n; i += SL_Q8_0_ELEMS, b++) {
        float d = sl_q8_0_scale(b);
        for (int j = 0; j < SL_Q8_0_ELEMS; j++)
            out[i + j] = d * (float)b->q[j];
    }
}

void sl_q8_0_from_f32(const float *x, void *out, int64_t n)
{
    struct sl_q8_0_block *b = out;
    for (int64_t i = 0; i < n; i += SL_Q8_0_ELEMS, b++) {
        float peak = 0;
        for (int j = 0; j < SL_Q8_0_ELEMS; j++)
            peak = fmaxf(peak, fabsf(x[i + j]));
        float d = peak / 127.0f, inv = sl_fit_inverse(d);
        sl_store_u16(b->d, sl_fit_scale_f16(d));
        for (int j = 0; j < SL_Q8_0_ELEMS; j++)
            b->q[j] = (int8_t)sl_fit_round(x[i + j] * inv, -127, 127);
    }
}
