/* SPDX-License-Identifier: MIT
 * q6_k.h - 256 six-bit codes in 16 runs of 16, each run with a signed byte scale:
 * x = d * scale * (q - 32). 6.5625 bits per weight.
 *
 * A half of 128 elements has 64 bytes of ql and 32 of qh. Its element 32 * k + l (k 0..3) has its
 * low four bits in ql[l + 32 * (k & 1)], low half for k < 2 and high half else, and its upper two
 * in bits 2k and 2k + 1 of qh[l].
 */
#ifndef SL_QUANT_Q6_K_H
#define SL_QUANT_Q6_K_H

#include "quant/q4_k.h"

struct sl_q6_k_block { /* bytes only, so that any address will do */
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint8_t d[2]; /* f16; last, unlike in the other formats */
};
_Static_assert(sizeof(struct sl_q6_k_block) == 210, "layout of the file format");

/* Signed code -32..31 of element i, 0..255. */
static inline int sl_q6_k_code(const struct sl_q6_k_block *b, int i)
{
    int half = i >> 7, k = (i >> 5) & 3, l = i & 31;
    int lo = (b->ql[64 * half + 32 * (k & 1) + l] >> 4 * (k >> 1)) & 15;
    int hi = (b->qh[32 * half + l] >> 2 * k) & 3;
    return (lo | hi << 4) - 32;
}

void sl_q6_k_to_f32(const void *x, float *out, int64_t n);
void sl_q6_k_from_f32(const float *x, void *out, int64_t n);

#endif
