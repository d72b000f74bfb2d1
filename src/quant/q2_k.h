/* SPDX-License-Identifier: MIT
 * q2_k.h - the K formats of two and three bits, 256 codes in 16 runs of 16 with scales of their
 * own:
 *
 *   q2_k  84 bytes: 16 bytes of scale (low half) and minimum (high half), 64 of codes, f16 d, f16
 *         dmin           x = d * scale * q - dmin * min                             2.625 bits
 *   q3_k  110 bytes: 32 bytes of upper bits, 64 of lower pairs, 12 of scales, f16 d
 *                        x = d * (scale - 32) * (q - 4)                            3.4375 bits
 *
 * Pairs of bits: a half of 128 elements has 32 bytes, of which byte l holds elements l, l + 32, l +
 * 64 and l + 96 from its lowest bits on. Bit i / 32 of upper byte i % 32 is element i's. Scale s of
 * q3_k has its low four bits in byte s % 8, low half for s < 8, and its upper two in bits 2 (s / 4)
 * and above of byte 8 + s % 4.
 */
#ifndef SL_QUANT_Q2_K_H
#define SL_QUANT_Q2_K_H

#include "quant/eight.h"

#define SL_Q2_K_BYTES 84
#define SL_Q3_K_BYTES 110

/* Byte and shift of element 8 i: of the pairs. */
SL_EIGHT_FN const uint8_t *sl_q2_k_pairs(const uint8_t *pairs, int i)
{
    return pairs + 32 * (i >> 4) + 8 * (i & 3);
}

SL_EIGHT_FN void sl_q2_k_eight(const uint8_t *b, int i, struct sl_eight *e)
{
    const uint8_t *q = sl_q2_k_pairs(b + 16, i);
    e->d = sl_eight_f16(b + 80);
    e->dmin = sl_eight_f16(b + 82);
    e->scale = b[i >> 1] & 15;
    e->min = b[i >> 1] >> 4;
    for (int j = 0; j < 8; j++)
        e->q[j] = q[j] >> 2 * (i >> 2 & 3) & 3;
}

SL_EIGHT_FN void sl_q3_k_eight(const uint8_t *b, int i, struct sl_eight *e)
{
    const uint8_t *q = sl_q2_k_pairs(b + 32, i), *upper = b + 8 * (i & 3);
    const int s = i >> 1, low = b[96 + (s & 7)] >> (s < 8 ? 0 : 4) & 15;
    e->d = sl_eight_f16(b + 108);
    e->dmin = 0;
    e->scale = (low | (b[104 + (s & 3)] >> 2 * (s >> 2) & 3) << 4) - 32;
    e->min = 0;
    for (int j = 0; j < 8; j++)
        e->q[j] = (q[j] >> 2 * (i >> 2 & 3) & 3) + ((upper[j] >> (i >> 2) & 1) << 2) - 4;
}

SL_EIGHT_ROW(q2_k)
SL_EIGHT_ROW(q3_k)

#endif
