/* SPDX-License-Identifier: MIT */
#include "quant/iq4.h"

#include "base/check.h"
#include "quant/fit.h"

#include <math.h>

SL_EIGHT_TO_F32(iq4_nl, 32, SL_IQ4_NL_BYTES)
SL_EIGHT_TO_F32(iq4_xs, 256, SL_IQ4_XS_BYTES)
SL_EIGHT_TO_F32(mxfp4, 32, SL_MXFP4_BYTES)

static int iq4_nearest(const int8_t *table, float x)
{
    int best = 0;
    float least = INFINITY;
    for (int c = 0; c < 16; c++) {
        const float miss = fabsf((float)table[c] - x);
        if (miss < least) {
            least = miss;
            best = c;
        }
    }
    return best;
}

static void iq4_put_codes(const int8_t *table, const float *x, float inv, uint8_t *nibbles)
{
    for (int j = 0; j < 16; j++)
        nibbles[j] =
            (uint8_t)(iq4_nearest(table, x[j] * inv) | iq4_nearest(table, x[j + 16] * inv) << 4);
}

/* The element of largest magnitude, finite. */
static float peak_of(const float *x, int n)
{
    float peak = 0;
    for (int j = 0; j < n; j++) {
        if (isfinite(x[j]) && fabsf(x[j]) > fabsf(peak))
            peak = x[j];
    }
    return peak;
}

/* The scale of 32 values, best of some: the element of largest magnitude becomes the table's end,
 * -127, or a number near it. */
static float fit_scale(const float *x)
{
    const float peak = peak_of(x, 32);
    float best = peak / -127.0f, least = INFINITY;
    for (int to = -130; to <= -110 && peak != 0; to += 2) {
        const float scale = peak / (float)to, inv = sl_fit_inverse(scale);
        float error = 0;
        for (int j = 0; j < 32; j++) {
            const float miss =
                x[j] - scale * (float)sl_iq4_values[iq4_nearest(sl_iq4_values, x[j] * inv)];
            error += miss * miss;
        }
        if (error < least) {
            least = error;
            best = scale;
        }
    }
    return best;
}

void sl_iq4_nl_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *b = out;
    for (int64_t i = 0; i < n; i += 32, b += SL_IQ4_NL_BYTES) {
        const uint16_t d = sl_fit_scale_f16(fit_scale(x + i));
        sl_store_u16(b, d);
        iq4_put_codes(sl_iq4_values, x + i, sl_fit_inverse(sl_f16_to_f32(d)), b + 2);
    }
}

void sl_iq4_xs_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *b = out;
    for (int64_t i = 0; i < n; i += 256, b += SL_IQ4_XS_BYTES) {
        float scale[8];
        for (int r = 0; r < 8; r++)
            scale[r] = fit_scale(x + i + 32 * r);
        /* the largest gets the scale of largest magnitude, -32 */
        const uint16_t h = sl_fit_scale_f16(peak_of(scale, 8) / -32.0f);
        const float d = sl_f16_to_f32(h), inv_d = sl_fit_inverse(d);
        sl_store_u16(b, h);
        memset(b + 2, 0, 6);
        for (int r = 0; r < 8; r++) {
            const int s = sl_fit_round(scale[r] * inv_d, -32, 31);
            b[2 + r / 4] = (uint8_t)(b[2 + r / 4] | (s + 32) >> 4 << 2 * (r % 4));
            b[4 + r / 2] = (uint8_t)(b[4 + r / 2] | ((s + 32) & 15) << 4 * (r % 2));
            iq4_put_codes(sl_iq4_values, x + i + 32 * r, sl_fit_inverse(d * (float)s),
                          b + 8 + 16 * r);
        }
    }
}

void sl_mxfp4_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *b = out;
    for (int64_t i = 0; i < n; i += 32, b += SL_MXFP4_BYTES) {
        int exponent = -127;
        const float peak = fabsf(peak_of(x + i, 32));
        if (peak > 0) /* the largest E2M1 value is 6 = 1.5 * 2^2 */
            exponent = ilogbf(peak) - 2;
        b[0] = (uint8_t)(SL_MAX(SL_MIN(exponent, 125), -127) + 127);
        iq4_put_codes(sl_mxfp4_values, x + i, sl_fit_inverse(sl_mxfp4_scale(b[0])), b + 1);
    }
}
