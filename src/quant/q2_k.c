/* SPDX-License-Identifier: MIT */
#include "quant/q2_k.h"

#include "quant/fit.h"

#include <math.h>

SL_EIGHT_TO_F32(q2_k, 256, SL_Q2_K_BYTES)
SL_EIGHT_TO_F32(q3_k, 256, SL_Q3_K_BYTES)

static void put_pair(uint8_t *pairs, int i, int code)
{
    uint8_t *p = pairs + 32 * (i / 128) + i % 32;
    *p = (uint8_t)(*p | code << 2 * (i / 32 % 4));
}

void sl_q2_k_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *b = out;
    for (int64_t i = 0; i < n; i += 256, b += SL_Q2_K_BYTES) {
        float scale[16], min[16], scale_peak = 0, min_peak = 0;
        for (int r = 0; r < 16; r++) {
            sl_fit_affine(x + i + 16 * r, 16, 3, &scale[r], &min[r]);
            scale_peak = fmaxf(scale_peak, scale[r]);
            min_peak = fmaxf(min_peak, min[r]);
        }
        memset(b, 0, SL_Q2_K_BYTES);
        sl_store_u16(b + 80, sl_fit_scale_f16(scale_peak / 15.0f));
        sl_store_u16(b + 82, sl_fit_scale_f16(min_peak / 15.0f));
        const float d = sl_f16_to_f32(sl_load_u16(b + 80));
        const float dmin = sl_f16_to_f32(sl_load_u16(b + 82));
        for (int r = 0; r < 16; r++) {
            const int s = sl_fit_round(scale[r] * sl_fit_inverse(d), 0, 15);
            const int m = sl_fit_round(min[r] * sl_fit_inverse(dmin), 0, 15);
            const float inv = sl_fit_inverse(d * (float)s), run_min = dmin * (float)m;
            b[r] = (uint8_t)(s | m << 4);
            for (int l = 16 * r; l < 16 * r + 16; l++)
                put_pair(b + 16, l, sl_fit_round((x[i + l] + run_min) * inv, 0, 3));
        }
    }
}

void sl_q3_k_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *b = out;
    for (int64_t i = 0; i < n; i += 256, b += SL_Q3_K_BYTES) {
        float scale[16], peak = 0;
        for (int r = 0; r < 16; r++) {
            scale[r] = sl_fit_symmetric(x + i + 16 * r, 16, 4);
            peak = fabsf(scale[r]) > fabsf(peak) ? scale[r] : peak;
        }
        memset(b, 0, SL_Q3_K_BYTES);
        sl_store_u16(b + 108, sl_fit_scale_f16(peak != 0 ? peak / -32.0f : 0));
        const float d = sl_f16_to_f32(sl_load_u16(b + 108));
        for (int r = 0; r < 16; r++) {
            const int s = sl_fit_round(scale[r] * sl_fit_inverse(d), -32, 31);
            const float inv = sl_fit_inverse(d * (float)s);
            uint8_t *low = &b[96 + r % 8], *high = &b[104 + r % 4];
            *low = (uint8_t)(*low | ((s + 32) & 15) << (r < 8 ? 0 : 4));
            *high = (uint8_t)(*high | (s + 32) >> 4 << 2 * (r / 4));
            for (int l = 16 * r; l < 16 * r + 16; l++) {
                const int q = sl_fit_round(x[i + l] * inv, -4, 3) + 4;
                put_pair(b + 32, l, q & 3);
                b[l % 32] = (uint8_t)(b[l % 32] | q >> 2 << l / 32);
            }
        }
    }
}
