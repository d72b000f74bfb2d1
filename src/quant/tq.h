/* SPDX-License-Identifier: MIT
 * tq.h - ternary weights, 256 with one f16 scale: x = d * (q - 1).
 *
 *   tq1_0  54 bytes: 52 of digits, f16 d                          1.6875 bits
 *   tq2_0  66 bytes: 64 of pairs of bits as in q2_k, f16 d        2.0625 bits
 *
 * A byte of tq1_0 is a fraction of 256 that has up to five digits of base 3, the first one the
 * most significant: digit n of byte v is (v * 3^n mod 256) * 3 / 256. Digit n of byte l is of the
 * first 32 bytes element 32 n + l, of the next 16 element 160 + 16 n + l, of the last four, which
 * have four digits, element 240 + 4 n + l.
 */
#ifndef SL_QUANT_TQ_H
#define SL_QUANT_TQ_H

#include "quant/q2_k.h"

#define SL_TQ1_0_BYTES 54
#define SL_TQ2_0_BYTES 66

/* Byte and digit of element i. */
SL_EIGHT_FN int sl_tq1_0_at(int i, int *digit)
{
    if (i < 160) {
        *digit = i / 32;
        return i % 32;
    }
    if (i < 240) {
        *digit = (i - 160) / 16;
        return 32 + i % 16;
    }
    *digit = (i - 240) / 4;
    return 48 + i % 4;
}

SL_EIGHT_FN int sl_tq1_0_power(int digit)
{
    return digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81;
}

SL_EIGHT_FN void sl_tq1_0_eight(const uint8_t *b, int i, struct sl_eight *e)
{
    e->d = sl_eight_f16(b + 52);
    e->dmin = 0;
    e->scale = 1;
    e->min = 0;
    for (int j = 0; j < 8; j++) {
        int digit = 0;
        const int at = sl_tq1_0_at(8 * i + j, &digit);
        e->q[j] = ((b[at] * sl_tq1_0_power(digit) & 255) * 3 >> 8) - 1;
    }
}

SL_EIGHT_FN void sl_tq2_0_eight(const uint8_t *b, int i, struct sl_eight *e)
{
    const uint8_t *q = sl_q2_k_pairs(b, i);
    e->d = sl_eight_f16(b + 64);
    e->dmin = 0;
    e->scale = 1;
    e->min = 0;
    for (int j = 0; j < 8; j++)
        e->q[j] = (q[j] >> 2 * (i >> 2 & 3) & 3) - 1;
}

SL_EIGHT_ROW(tq1_0)
SL_EIGHT_ROW(tq2_0)

#endif
