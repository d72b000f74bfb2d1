/* SPDX-License-Identifier: MIT */
#include "quant/q4_k.h"

#include "quant/fit.h"

#include <math.h>

void sl_qk_pack_scales(const uint8_t scale[8], const uint8_t min[8], uint8_t *b)
{
    for (int j = 0; j < 4; j++) {
        b[j] = (uint8_t)(scale[j] | (scale[j + 4] >> 4) << 6);
        b[j + 4] = (uint8_t)(min[j] | (min[j + 4] >> 4) << 6);
        b[j + 8] = (uint8_t)((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
}

void sl_qk_fit(const float *x, int q_max, struct sl_qk_fit *out)
{
    float scale[8], min[8], scale_peak = 0, min_peak = 0;
    for (int j = 0; j < 8; j++) {
        sl_fit_affine(x + 32 * j, 32, q_max, &scale[j], &min[j]);
        scale_peak = fmaxf(scale_peak, scale[j]);
        min_peak = fmaxf(min_peak, min[j]);
    }
    out->d = sl_fit_scale_f16(scale_peak / 63.0f);
    out->dmin = sl_fit_scale_f16(min_peak / 63.0f);
    float d = sl_f16_to_f32(out->d), dmin = sl_f16_to_f32(out->dmin);
    float inv_d = sl_fit_inverse(d), inv_dmin = sl_fit_inverse(dmin);
    for (int j = 0; j < 8; j++) {
        out->scale[j] = (uint8_t)sl_fit_round(scale[j] * inv_d, 0, 63);
        out->min[j] = (uint8_t)sl_fit_round(min[j] * inv_dmin, 0, 63);
        /* The codes are chosen again, for the scale and minimum a reader will see. */
        float run_min = dmin * (float)out->min[j];
        float inv = sl_fit_inverse(d * (float)out->scale[j]);
        for (int i = 32 * j; i < 32 * j + 32; i++)
            out->code[i] = (uint8_t)sl_fit_round((x[i] + run_min) * inv, 0, q_max);
    }
}

void sl_q4_k_to_f32(const void *x, float *out, int64_t n)
{
    const struct sl_q4_k_block *b = x;
    for (int64_t i = 0; i < n; i += SL_QK_ELEMS, b++) {
        float d = sl_f16_to_f32(sl_load_u16(b->d)), dmin = sl_f16_to_f32(sl_load_u16(b->dmin));
        for (int j = 0; j < 8; j++) {
            uint8_t scale, min;
            sl_qk_scale_min(b->scales, j, &scale, &min);
            float run_d = d * (float)scale, run_min = dmin * (float)min;
            const uint8_t *q = b->q + 32 * (j / 2);
            for (int l = 0; l < 32; l++)
                out[i + 32 * j + l] = run_d * (float)((q[l] >> 4 * (j & 1)) & 15) - run_min;
        }
    }
}

void sl_q4_k_from_f32(const float *x, void *out, int64_t n)
{
    struct sl_q4_k_block *b = out;
    for (int64_t i = 0; i < n; i += SL_QK_ELEMS, b++) {
        struct sl_qk_fit fit;
        sl_qk_fit(x + i, 15, &fit);
        sl_store_u16(b->d, fit.d);
        sl_store_u16(b->dmin, fit.dmin);
        sl_qk_pack_scales(fit.scale, fit.min, b->scales);
        for (int c = 0; c < 4; c++) {
            for (int l = 0; l < 32; l++)
                b->q[32 * c + l] = (uint8_t)(fit.code[64 * c + l] | fit.code[64 * c + 32 + l] << 4);
        }
    }
}
