/* SPDX-License-Identifier: MIT */
#include "quant/int4.h"

#include "quant/fit.h"

#include <math.h>

static void to_f32(const uint8_t *p, int group, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i += group) {
        const uint32_t head = sl_int4_load_head(p);
        const float scale = sl_int4_scale(head);
        const int zero = sl_int4_zero(head);
        p += SL_INT4_HEAD;
        for (int k = 0; k < group; k += SL_INT4_RUN, p += SL_INT4_RUN / 2) {
            for (int j = 0; j < SL_INT4_RUN; j++) {
                const int q = j < 16 ? p[j] & 15 : p[j - 16] >> 4;
                out[i + k + j] = scale * (float)(q - zero);
            }
        }
    }
}

/* The range of the values and zero, in fifteen steps. */
static void from_f32(const float *x, int group, uint8_t *p, int64_t n)
{
    for (int64_t i = 0; i < n; i += group) {
        float lo = 0, hi = 0;
        for (int j = 0; j < group; j++) {
            lo = fminf(lo, x[i + j]);
            hi = fmaxf(hi, x[i + j]);
        }
        const float scale = sl_f16_to_f32(sl_fit_scale_f16((hi / 15.0f) - (lo / 15.0f)));
        const float inv = sl_fit_inverse(scale);
        const int zero = sl_fit_round(-lo * inv, 0, 15);
        sl_int4_store_head(p, sl_int4_head(scale, (uint32_t)zero));
        p += SL_INT4_HEAD;
        for (int k = 0; k < group; k += SL_INT4_RUN, p += SL_INT4_RUN / 2) {
            const float *run = x + i + k;
            for (int j = 0; j < 16; j++) {
                const int q0 = zero + sl_fit_round(run[j] * inv, -zero, 15 - zero);
                const int q1 = zero + sl_fit_round(run[j + 16] * inv, -zero, 15 - zero);
                p[j] = (uint8_t)(q0 | q1 << 4);
            }
        }
    }
}

void sl_int4_g128_to_f32(const void *x, float *out, int64_t n)
{
    to_f32(x, 128, out, n);
}

void sl_int4_g128_from_f32(const float *x, void *out, int64_t n)
{
    from_f32(x, 128, out, n);
}

void sl_int4_g32_to_f32(const void *x, float *out, int64_t n)
{
    to_f32(x, 32, out, n);
}

void sl_int4_g32_from_f32(const float *x, void *out, int64_t n)
{
    from_f32(x, 32, out, n);
}
