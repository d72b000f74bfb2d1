/* SPDX-License-Identifier: MIT */
#include "quant/q4_1.h"

#include "quant/fit.h"

#include <math.h>

SL_EIGHT_TO_F32(q4_1, 32, SL_Q4_1_BYTES)
SL_EIGHT_TO_F32(q5_0, 32, SL_Q5_0_BYTES)
SL_EIGHT_TO_F32(q5_1, 32, SL_Q5_1_BYTES)

static void q4_1_put_codes(const int *code, uint8_t *nibbles, uint8_t *fifth)
{
    for (int j = 0; j < 16; j++)
        nibbles[j] = (uint8_t)((code[j] & 15) | (code[j + 16] & 15) << 4);
    for (int j = 0; j < 32 && fifth != NULL; j++) {
        fifth[j / 8] = (uint8_t)(j % 8 == 0 ? 0 : fifth[j / 8]);
        fifth[j / 8] = (uint8_t)(fifth[j / 8] | code[j] >> 4 << j % 8);
    }
}

/* The range of the values in q_max steps, scale and minimum as they are stored. */
static void fit_range(const float *x, int q_max, uint8_t *head, int *code)
{
    float lo = INFINITY, hi = -INFINITY;
    for (int j = 0; j < 32; j++) {
        lo = fminf(lo, x[j]);
        hi = fmaxf(hi, x[j]);
    }
    const uint16_t m = sl_fit_scale_f16(isfinite(lo) ? lo : 0);
    const float min = sl_f16_to_f32(m);
    const uint16_t d = sl_fit_scale_f16(hi / (float)q_max - min / (float)q_max);
    const float inv = sl_fit_inverse(sl_f16_to_f32(d));
    sl_store_u16(head, d);
    sl_store_u16(head + 2, m);
    for (int j = 0; j < 32; j++)
        code[j] = sl_fit_round((x[j] - min) * inv, 0, q_max);
}

void sl_q4_1_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *b = out;
    int code[32];
    for (int64_t i = 0; i < n; i += 32, b += SL_Q4_1_BYTES) {
        fit_range(x + i, 15, b, code);
        q4_1_put_codes(code, b + 4, NULL);
    }
}

void sl_q5_0_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *b = out;
    int code[32];
    for (int64_t i = 0; i < n; i += 32, b += SL_Q5_0_BYTES) {
        const uint16_t d = sl_fit_scale_f16(sl_fit_symmetric(x + i, 32, 16));
        const float inv = sl_fit_inverse(sl_f16_to_f32(d));
        sl_store_u16(b, d);
        for (int j = 0; j < 32; j++)
            code[j] = 16 + sl_fit_round(x[i + j] * inv, -16, 15);
        q4_1_put_codes(code, b + 6, b + 2);
    }
}

void sl_q5_1_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *b = out;
    int code[32];
    for (int64_t i = 0; i < n; i += 32, b += SL_Q5_1_BYTES) {
        fit_range(x + i, 31, b, code);
        q4_1_put_codes(code, b + 8, b + 4);
    }
}
