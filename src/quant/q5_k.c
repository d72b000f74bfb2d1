/* SPDX-License-Identifier: MIT */
#include "quant/q5_k.h"

void sl_q5_k_to_f32(const void *x, float *out, int64_t n)
{
    const struct sl_q5_k_block *b = x;
    for (int64_t i = 0; i < n; i += SL_QK_ELEMS, b++) {
        float d = sl_f16_to_f32(sl_load_u16(b->d)), dmin = sl_f16_to_f32(sl_load_u16(b->dmin));
        for (int j = 0; j < 8; j++) {
            uint8_t scale, min;
            sl_qk_scale_min(b->scales, j, &scale, &min);
            float run_d = d * (float)scale, run_min = dmin * (float)min;
            for (int l = 0; l < 32; l++)
                out[i + 32 * j + l] = run_d * (float)sl_q5_k_code(b, j, l) - run_min;
        }
    }
}

void sl_q5_k_from_f32(const float *x, void *out, int64_t n)
{
    struct sl_q5_k_block *b = out;
    for (int64_t i = 0; i < n; i += SL_QK_ELEMS, b++) {
        struct sl_qk_fit fit;
        sl_qk_fit(x + i, 31, &fit);
        *b = (struct sl_q5_k_block){.qh = {0}};
        sl_store_u16(b->d, fit.d);
        sl_store_u16(b->dmin, fit.dmin);
        sl_qk_pack_scales(fit.scale, fit.min, b->scales);
        for (int j = 0; j < 8; j++) {
            for (int l = 0; l < 32; l++) {
                uint8_t code = fit.code[32 * j + l], *q = &b->q[32 * (j / 2) + l];
                *q = (uint8_t)(*q | (code & 15) << 4 * (j & 1));
                b->qh[l] = (uint8_t)(b->qh[l] | (code >> 4) << j);
            }
        }
    }
}
