/* SPDX-License-Identifier: MIT */
#include "quant/q6_k.h"

#include "quant/fit.h"

#include <math.h>

void sl_q6_k_to_f32(const void *x, float *out, int64_t n)
{
    const struct sl_q6_k_block *b = x;
    for (int64_t i = 0; i < n; i += SL_QK_ELEMS, b++) {
        float d = sl_f16_to_f32(sl_load_u16(b->d));
        for (int j = 0; j < SL_QK_ELEMS; j++)
            out[i + j] = d * (float)b->scales[j / 16] * (float)sl_q6_k_code(b, j);
    }
}

static void store_code(struct sl_q6_k_block *b, int i, int code)
{
    int half = i >> 7, k = (i >> 5) & 3, l = i & 31;
    uint8_t *lo = &b->ql[64 * half + 32 * (k & 1) + l], *hi = &b->qh[32 * half + l];
    *lo = (uint8_t)(*lo | (code & 15) << 4 * (k >> 1));
    *hi = (uint8_t)(*hi | (code >> 4) << 2 * k);
}

void sl_q6_k_from_f32(const float *x, void *out, int64_t n)
{
    struct sl_q6_k_block *b = out;
    for (int64_t i = 0; i < n; i += SL_QK_ELEMS, b++) {
        float scale[16], peak = 0;
        for (int j = 0; j < 16; j++) {
            scale[j] = sl_fit_symmetric(x + i + 16 * j, 16, 32);
            peak = fabsf(scale[j]) > fabsf(peak) ? scale[j] : peak;
        }
        *b = (struct sl_q6_k_block){.qh = {0}};
        /* The largest run scale gets the code of largest magnitude, -128. */
        uint16_t h = sl_fit_scale_f16(peak != 0 ? peak / -128.0f : 0);
        sl_store_u16(b->d, h);
        float d = sl_f16_to_f32(h), inv_d = sl_fit_inverse(d);
        for (int j = 0; j < 16; j++) {
            int s = inv_d != 0 ? sl_fit_round(scale[j] * inv_d, -128, 127) : 0;
            b->scales[j] = (int8_t)s;
            float inv = sl_fit_inverse(d * (float)s);
            for (int l = 16 * j; l < 16 * j + 16; l++)
                store_code(b, l, sl_fit_round(x[i + l] * inv, -32, 31) + 32);
        }
    }
}
