/* SPDX-License-Identifier: MIT */
#include "quant/tq.h"

#include "quant/fit.h"

#include <math.h>

SL_EIGHT_TO_F32(tq1_0, 256, SL_TQ1_0_BYTES)
SL_EIGHT_TO_F32(tq2_0, 256, SL_TQ2_0_BYTES)

/* The scale, and digits 0..2. */
static uint16_t tq_fit(const float *x, uint8_t digit[256])
{
    float peak = 0;
    for (int j = 0; j < 256; j++)
        peak = fmaxf(peak, fabsf(x[j]));
    const uint16_t d = sl_fit_scale_f16(peak);
    const float inv = sl_fit_inverse(sl_f16_to_f32(d));
    for (int j = 0; j < 256; j++)
        digit[j] = (uint8_t)(sl_fit_round(x[j] * inv, -1, 1) + 1);
    return d;
}

void sl_tq1_0_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *b = out, digit[256];
    for (int64_t i = 0; i < n; i += 256, b += SL_TQ1_0_BYTES) {
        int value[52] = {0};
        sl_store_u16(b + 52, tq_fit(x + i, digit));
        for (int j = 0; j < 256; j++) {
            int place = 0;
            const int at = sl_tq1_0_at(j, &place);
            value[at] += digit[j] * 81 / sl_tq1_0_power(place);
        }
        for (int j = 0; j < 52; j++) /* of 243ths 256ths, rounded up */
            b[j] = (uint8_t)((value[j] * 256 + 242) / 243);
    }
}

void sl_tq2_0_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *b = out, digit[256];
    for (int64_t i = 0; i < n; i += 256, b += SL_TQ2_0_BYTES) {
        memset(b, 0, SL_TQ2_0_BYTES);
        sl_store_u16(b + 64, tq_fit(x + i, digit));
        for (int j = 0; j < 256; j++) {
            uint8_t *p = &b[32 * (j / 128) + j % 32];
            *p = (uint8_t)(*p | digit[j] << 2 * (j / 32 % 4));
        }
    }
}
