/* SPDX-License-Identifier: MIT
 * iq4.h - four-bit codes that stand for sixteen numbers of a table:
 *
 *   iq4_nl  32 elements, 18 bytes: f16 d, 16 bytes of codes                            4.5 bits
 *           x = d * table[q]
 *   iq4_xs  256 in 8 runs of 32, 136 bytes: f16 d, u16 upper bits of the runs' scales, 4.25 bits
 *           4 bytes of their lower bits, 128 of codes
 *           x = d * (scale - 32) * table[q]
 *   mxfp4   32, 17 bytes: exponent e of a power of two (E8M0), 16 bytes of codes       4.25 bits
 *           x = 2^(e - 127) * E2M1 value; the table has twice the value
 *
 * Codes of a run of 32 as in q4_0: byte j holds element j and, above it, element j + 16.
 */
#ifndef SL_QUANT_IQ4_H
#define SL_QUANT_IQ4_H

#include "quant/eight.h"

#define SL_IQ4_NL_BYTES 18
#define SL_IQ4_XS_BYTES 136
#define SL_MXFP4_BYTES  17

#define SL_IQ4_VALUES   -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
#define SL_MXFP4_VALUES 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

SL_EIGHT_TABLE int8_t sl_iq4_values[16] = {SL_IQ4_VALUES};
SL_EIGHT_TABLE int8_t sl_mxfp4_values[16] = {SL_MXFP4_VALUES};

SL_EIGHT_FN void sl_iq4_codes(const uint8_t *nibbles, const int8_t *table, int i, int *q)
{
    for (int j = 0; j < 8; j++)
        q[j] = table[nibbles[8 * (i & 1) + j] >> 4 * (i >> 1 & 1) & 15];
}

SL_EIGHT_FN void sl_iq4_nl_eight(const uint8_t *b, int i, struct sl_eight *e)
{
    e->d = sl_eight_f16(b);
    e->dmin = 0;
    e->scale = 1;
    e->min = 0;
    sl_iq4_codes(b + 2, sl_iq4_values, i, e->q);
}

SL_EIGHT_FN void sl_iq4_xs_eight(const uint8_t *b, int i, struct sl_eight *e)
{
    const int run = i >> 2, high = (b[2 + (run >> 2)] >> 2 * (run & 3)) & 3;
    e->d = sl_eight_f16(b);
    e->dmin = 0;
    e->scale = ((b[4 + (run >> 1)] >> 4 * (run & 1) & 15) | high << 4) - 32;
    e->min = 0;
    sl_iq4_codes(b + 8 + 16 * run, sl_iq4_values, i & 3, e->q);
}

/* Half of 2^(e - 127), subnormal for e < 2. */
SL_EIGHT_FN float sl_mxfp4_scale(int e)
{
    const uint32_t bits = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
#ifdef __device__
    return __uint_as_float(bits);
#else
    return sl_f32_of_bits(bits);
#endif
}

SL_EIGHT_FN void sl_mxfp4_eight(const uint8_t *b, int i, struct sl_eight *e)
{
    e->d = sl_mxfp4_scale(b[0]);
    e->dmin = 0;
    e->scale = 1;
    e->min = 0;
    sl_iq4_codes(b + 1, sl_mxfp4_values, i, e->q);
}

SL_EIGHT_ROW(iq4_nl)
SL_EIGHT_ROW(iq4_xs)
SL_EIGHT_ROW(mxfp4)

#endif
