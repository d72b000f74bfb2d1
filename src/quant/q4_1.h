/* SPDX-License-Identifier: MIT
 * q4_1.h - the formats of 32 codes with a scale, and a minimum or a fifth bit, of their own:
 *
 *   q4_1  20 bytes: f16 d, f16 m, 16 bytes of codes                x = d * q + m          5 bits
 *   q5_0  22 bytes: f16 d, 4 bytes of fifth bits, 16 of codes      x = d * (q - 16)     5.5 bits
 *   q5_1  24 bytes: f16 d, f16 m, fifth bits, codes                x = d * q + m          6 bits
 *
 * Byte j holds element j in its low half and element j + 16 in its high half; bit i of the fifth
 * bits, a little-endian word, belongs to element i.
 */
#ifndef SL_QUANT_Q4_1_H
#define SL_QUANT_Q4_1_H

#include "quant/eight.h"

#define SL_Q4_1_BYTES 20
#define SL_Q5_0_BYTES 22
#define SL_Q5_1_BYTES 24

/* The codes of elements 8 i .. 8 i + 7, with their fifth bits. */
SL_EIGHT_FN void sl_q4_1_codes(const uint8_t *nibbles, uint32_t fifth, int i, int *q)
{
    for (int j = 0; j < 8; j++) {
        const int four = nibbles[8 * (i & 1) + j] >> 4 * (i >> 1) & 15;
        q[j] = four | (int)(fifth >> (8 * i + j) & 1u) << 4;
    }
}

SL_EIGHT_FN void sl_q4_1_eight(const uint8_t *b, int i, struct sl_eight *e)
{
    e->d = sl_eight_f16(b);
    e->dmin = -sl_eight_f16(b + 2);
    e->scale = e->min = 1;
    sl_q4_1_codes(b + 4, 0, i, e->q);
}

SL_EIGHT_FN void sl_q5_0_eight(const uint8_t *b, int i, struct sl_eight *e)
{
    e->d = sl_eight_f16(b);
    e->dmin = 0;
    e->scale = 1;
    e->min = 0;
    sl_q4_1_codes(b + 6, sl_eight_u32(b + 2), i, e->q);
    for (int j = 0; j < 8; j++)
        e->q[j] -= 16;
}

SL_EIGHT_FN void sl_q5_1_eight(const uint8_t *b, int i, struct sl_eight *e)
{
    e->d = sl_eight_f16(b);
    e->dmin = -sl_eight_f16(b + 2);
    e->scale = e->min = 1;
    sl_q4_1_codes(b + 8, sl_eight_u32(b + 4), i, e->q);
}

SL_EIGHT_ROW(q4_1)
SL_EIGHT_ROW(q5_0)
SL_EIGHT_ROW(q5_1)

#endif
