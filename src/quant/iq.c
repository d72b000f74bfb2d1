/* SPDX-License-Identifier: MIT
 * The encoders are plain searches through all points of a grid, for tests and made-up models: real
 * files of these formats are made with an importance matrix.
 */
#include "quant/iq.h"

#include "base/check.h"
#include "quant/fit.h"

#include <math.h>

SL_EIGHT_TO_F32(iq2_xxs, 256, SL_IQ2_XXS_BYTES)
SL_EIGHT_TO_F32(iq2_xs, 256, SL_IQ2_XS_BYTES)
SL_EIGHT_TO_F32(iq2_s, 256, SL_IQ2_S_BYTES)
SL_EIGHT_TO_F32(iq3_xxs, 256, SL_IQ3_XXS_BYTES)
SL_EIGHT_TO_F32(iq3_s, 256, SL_IQ3_S_BYTES)
SL_EIGHT_TO_F32(iq1_s, 256, SL_IQ1_S_BYTES)
SL_EIGHT_TO_F32(iq1_m, 256, SL_IQ1_M_BYTES)

struct grid {
    const uint16_t *points;
    int n, n_values, bits; /* points; values of a point, bits of a value's level */
    float level[8];
};

static const struct grid iq2_xxs = {sl_iq2_xxs_grid, 256, 8, 2, {8, 25, 43}};
static const struct grid iq2_xs = {sl_iq2_xs_grid, 512, 8, 2, {8, 25, 43}};
static const struct grid iq2_s = {sl_iq2_s_grid, 1024, 8, 2, {8, 25, 43}};
static const struct grid iq3_xxs = {sl_iq3_xxs_grid, 256, 4, 3, {SL_IQ3_XXS_LEVELS}};
static const struct grid iq3_s = {sl_iq3_s_grid, 512, 4, 3, {1, 3, 5, 7, 9, 11, 13, 15}};
static const struct grid iq1 = {sl_iq1_grid, 2048, 8, 2, {-1, 0, 1}};

/* The point nearest to x, and by how much it misses. */
static int iq_nearest(const struct grid *g, const float *x, float *miss)
{
    int best = 0;
    *miss = INFINITY;
    for (int p = 0; p < g->n; p++) {
        float error = 0;
        for (int j = 0; j < g->n_values && error < *miss; j++) {
            const float e = x[j] - g->level[g->points[p] >> g->bits * j & ((1 << g->bits) - 1)];
            error += e * e;
        }
        if (error < *miss) {
            *miss = error;
            best = p;
        }
    }
    return best;
}

/* A number that may be squared. */
static float iq_tame(float x)
{
    return isfinite(x) ? fmaxf(fminf(x, 1e6f), -1e6f) : 0.0f;
}

/* Magnitudes in units of 1 / inv, and signs, of which an even number with `even`: where that is not
 * so, the smallest one has the other. */
static uint32_t split_signs(const float *x, float inv, bool even, float out[8])
{
    uint32_t signs = 0;
    int least = 0;
    for (int j = 0; j < 8; j++) {
        const float v = iq_tame(x[j] * inv);
        signs |= (uint32_t)(v < 0) << j;
        out[j] = fabsf(v);
        least = out[j] < out[least] ? j : least;
    }
    if (even && sl_iq_signs(signs & 127) != signs) {
        signs ^= 1u << least;
        out[least] = -out[least];
    }
    return signs;
}

/* A scale of each n elements, 2 s + 1 <= most times *d (in whole: as eights have it); `top`: the
 * value that stands for a run's largest magnitude. */
static void fit_scales(const float *x, int n, int most, float top, float unit, uint16_t *d,
                       int scale[16])
{
    float want[16], peak = 0;
    for (int r = 0; r < 256 / n; r++) {
        want[r] = 0;
        for (int j = 0; j < n; j++)
            want[r] = fmaxf(want[r], fabsf(x[n * r + j]) / top);
        want[r] = isfinite(want[r]) ? want[r] : 0;
        peak = fmaxf(peak, want[r]);
    }
    *d = sl_fit_scale_f16(peak / ((float)most * unit));
    const float inv = sl_fit_inverse(sl_f16_to_f32(*d) * unit);
    for (int r = 0; r < 256 / n; r++)
        scale[r] = sl_fit_round((want[r] * inv - 1) / 2, 0, (most - 1) / 2);
}

static float iq_inverse(uint16_t d, float unit, int scale)
{
    return sl_fit_inverse(sl_f16_to_f32(d) * unit * (float)(2 * scale + 1));
}

static void put_u32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, sizeof v);
}

void sl_iq2_xxs_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *b = out;
    for (; n > 0; n -= 256, x += 256, b += SL_IQ2_XXS_BYTES) {
        uint16_t d;
        int scale[16];
        fit_scales(x, 32, 31, 43, 0.125f, &d, scale);
        sl_store_u16(b, d);
        for (int r = 0; r < 8; r++) {
            uint32_t word = (uint32_t)scale[r] << 28;
            for (int k = 0; k < 4; k++) {
                float v[8], miss;
                const uint32_t signs =
                    split_signs(x + 32 * r + 8 * k, iq_inverse(d, 0.125f, scale[r]), true, v);
                b[2 + 8 * r + k] = (uint8_t)iq_nearest(&iq2_xxs, v, &miss);
                word |= (signs & 127) << 7 * k;
            }
            put_u32(b + 6 + 8 * r, word);
        }
    }
}

/* Nibbles of scales. */
static void iq_put_scales(const int *scale, int n, uint8_t *at)
{
    for (int i = 0; i < n; i += 2)
        at[i / 2] = (uint8_t)(scale[i] | scale[i + 1] << 4);
}

void sl_iq2_xs_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *b = out;
    for (; n > 0; n -= 256, x += 256, b += SL_IQ2_XS_BYTES) {
        uint16_t d;
        int scale[16];
        fit_scales(x, 16, 31, 43, 0.125f, &d, scale);
        sl_store_u16(b, d);
        iq_put_scales(scale, 16, b + 66);
        for (int i = 0; i < 32; i++) {
            float v[8], miss;
            const uint32_t signs =
                split_signs(x + 8 * i, iq_inverse(d, 0.125f, scale[i / 2]), true, v);
            const int point = iq_nearest(&iq2_xs, v, &miss);
            sl_store_u16(b + 2 + 2 * i, (uint16_t)((uint32_t)point | (signs & 127) << 9));
        }
    }
}

void sl_iq2_s_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *b = out;
    for (; n > 0; n -= 256, x += 256, b += SL_IQ2_S_BYTES) {
        uint16_t d;
        int scale[16];
        fit_scales(x, 16, 31, 43, 0.125f, &d, scale);
        memset(b, 0, SL_IQ2_S_BYTES);
        sl_store_u16(b, d);
        iq_put_scales(scale, 16, b + 74);
        for (int i = 0; i < 32; i++) {
            float v[8], miss;
            b[34 + i] =
                (uint8_t)split_signs(x + 8 * i, iq_inverse(d, 0.125f, scale[i / 2]), false, v);
            const int point = iq_nearest(&iq2_s, v, &miss);
            b[2 + i] = (uint8_t)point;
            b[66 + i / 4] = (uint8_t)(b[66 + i / 4] | point >> 8 << 2 * (i % 4));
        }
    }
}

void sl_iq3_xxs_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *b = out;
    for (; n > 0; n -= 256, x += 256, b += SL_IQ3_XXS_BYTES) {
        uint16_t d;
        int scale[16];
        fit_scales(x, 32, 31, 62, 0.25f, &d, scale);
        sl_store_u16(b, d);
        for (int r = 0; r < 8; r++) {
            uint32_t word = (uint32_t)scale[r] << 28;
            for (int k = 0; k < 4; k++) {
                float v[8], miss;
                const uint32_t signs =
                    split_signs(x + 32 * r + 8 * k, iq_inverse(d, 0.25f, scale[r]), true, v);
                for (int h = 0; h < 2; h++)
                    b[2 + 8 * r + 2 * k + h] = (uint8_t)iq_nearest(&iq3_xxs, v + 4 * h, &miss);
                word |= (signs & 127) << 7 * k;
            }
            put_u32(b + 66 + 4 * r, word);
        }
    }
}

void sl_iq3_s_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *b = out;
    for (; n > 0; n -= 256, x += 256, b += SL_IQ3_S_BYTES) {
        uint16_t d;
        int scale[16];
        fit_scales(x, 32, 31, 15, 1.0f, &d, scale);
        memset(b, 0, SL_IQ3_S_BYTES);
        sl_store_u16(b, d);
        iq_put_scales(scale, 8, b + 106);
        for (int i = 0; i < 64; i++) {
            float v[8], miss;
            if (i % 2 == 0)
                b[74 + i / 2] =
                    (uint8_t)split_signs(x + 4 * i, iq_inverse(d, 1.0f, scale[i / 8]), false, v);
            else
                split_signs(x + 4 * (i - 1), iq_inverse(d, 1.0f, scale[i / 8]), false, v);
            const int point = iq_nearest(&iq3_s, v + 4 * (i % 2), &miss);
            b[2 + i] = (uint8_t)point;
            b[66 + i / 8] = (uint8_t)(b[66 + i / 8] | point >> 8 << i % 8);
        }
    }
}

/* n eights with one delta: their points, and whether the delta is below zero. */
static bool fit_iq1(const float *x, int n, float inv, int *point)
{
    float least = INFINITY;
    bool below = false;
    for (int sign = 0; sign < 2; sign++) {
        int found[4];
        float error = 0;
        for (int k = 0; k < n; k++) {
            float v[8], miss;
            for (int j = 0; j < 8; j++)
                v[j] = iq_tame(x[8 * k + j] * inv) / 8 - (sign != 0 ? -0.125f : 0.125f);
            found[k] = iq_nearest(&iq1, v, &miss);
            error += miss;
        }
        if (error < least) {
            least = error;
            below = sign != 0;
            memcpy(point, found, (size_t)n * sizeof *point);
        }
    }
    return below;
}

void sl_iq1_s_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *b = out;
    for (; n > 0; n -= 256, x += 256, b += SL_IQ1_S_BYTES) {
        uint16_t d;
        int scale[16], point[4] = {0};
        fit_scales(x, 32, 15, 9, 0.125f, &d, scale);
        sl_store_u16(b, d);
        for (int r = 0; r < 8; r++) {
            const bool below = fit_iq1(x + 32 * r, 4, iq_inverse(d, 0.125f, scale[r]), point);
            int word = scale[r] << 12 | below << 15;
            for (int k = 0; k < 4; k++) {
                b[2 + 4 * r + k] = (uint8_t)point[k];
                word |= point[k] >> 8 << 3 * k;
            }
            sl_store_u16(b + 34 + 2 * r, (uint16_t)word);
        }
    }
}

void sl_iq1_m_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *b = out;
    for (; n > 0; n -= 256, x += 256, b += SL_IQ1_M_BYTES) {
        uint16_t d;
        int scale[16];
        fit_scales(x, 16, 15, 9, 0.125f, &d, scale);
        memset(b, 0, SL_IQ1_M_BYTES);
        for (int w = 0; w < 4; w++) {
            int word = (d >> 4 * w & 15) << 12;
            for (int k = 0; k < 4; k++)
                word |= scale[4 * w + k] << 3 * k;
            sl_store_u16(b + 48 + 2 * w, (uint16_t)word);
        }
        for (int i = 0; i < 32; i++) {
            int point = 0;
            const bool below = fit_iq1(x + 8 * i, 1, iq_inverse(d, 0.125f, scale[i / 2]), &point);
            b[i] = (uint8_t)point;
            b[32 + i / 2] = (uint8_t)(b[32 + i / 2] | (point >> 8 | below << 3) << 4 * (i % 2));
        }
    }
}
