/* SPDX-License-Identifier: MIT
 * q5_k.h - 256 five-bit codes in 8 runs of 32: x = d * scale * q - dmin * min. 5.5 bits per weight.
 *
 * As q4_k (scales, minima, low four bits of the codes), plus qh: bit j of qh[l] is the fifth bit of
 * element l of run j.
 */
#ifndef SL_QUANT_Q5_K_H
#define SL_QUANT_Q5_K_H

#include "quant/q4_k.h"

struct sl_q5_k_block { /* bytes only, so that any address will do */
    uint8_t d[2];      /* f16 */
    uint8_t dmin[2];   /* f16 */
    uint8_t scales[SL_QK_SCALE_BYTES];
    uint8_t qh[32];
    uint8_t q[128];
};
_Static_assert(sizeof(struct sl_q5_k_block) == 176, "layout of the file format");

/* Code 0..31 of element l of run j. */
static inline int sl_q5_k_code(const struct sl_q5_k_block *b, int j, int l)
{
    return ((b->q[32 * (j / 2) + l] >> 4 * (j & 1)) & 15) | ((b->qh[l] >> j) & 1) << 4;
}

void sl_q5_k_to_f32(const void *x, float *out, int64_t n);
void sl_q5_k_from_f32(const float *x, void *out, int64_t n);

#endif
