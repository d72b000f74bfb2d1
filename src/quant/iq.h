/* SPDX-License-Identifier: MIT
 * iq.h - the formats of one to three bits whose codes are numbers of points in a grid, 256 weights
 * each:
 *
 *   iq2_xxs  66 bytes: f16 d, of each run of 32 four point numbers and a word: four signs of seven
 *            bits, a scale of four                                                  2.0625 bits
 *   iq2_xs   74: f16 d, 32 words of a point number (9 bits) and a sign, 8 bytes of scales of 16
 *            elements                                                               2.3125
 *   iq2_s    82: f16 d, 32 bytes of point numbers, 32 of signs, 8 of the numbers' upper pairs of
 *            bits, 8 of scales of 16 elements                                       2.5625
 *   iq3_xxs  98: f16 d, 64 point numbers, of each run of 32 the word of iq2_xxs     3.0625
 *   iq3_s    110: f16 d, 64 point numbers, 8 bytes of their ninth bits, 32 of signs, 4 of scales of
 *            32 elements                                                            3.4375
 *   iq1_s    50: f16 d, 32 point numbers, of each run of 32 a word: four times the numbers' upper
 *            three bits, a scale of three, the sign of the run's delta              1.5625
 *   iq1_m    56: 32 point numbers, 16 bytes of halves: their upper three bits and the sign of a
 *            delta, 4 words: four scales of 16 elements and a quarter of the f16 d  1.75
 *
 * A point has eight values (four: iq3), which are 8, 25 or 43 in iq2, -1, 0 or 1 in iq1, and one of
 * eight in iq3. Seven bits of signs are those of the first seven values; the eighth makes the
 * number of ones even.
 *
 *   iq2      x = d * (scale + 1/2) / 4 * value    = (d / 8) * (2 scale + 1) * value
 *   iq3_xxs  x = d * (scale + 1/2) / 2 * value    = (d / 4) * (2 scale + 1) * value
 *   iq3_s    x = d * (2 scale + 1) * value
 *   iq1      x = d * (2 scale + 1) * (value + delta), delta = 1/8 or -1/8
 *                                                 = (d / 8) * (2 scale + 1) * (8 value + 1 or - 1)
 */
#ifndef SL_QUANT_IQ_H
#define SL_QUANT_IQ_H

#include "quant/eight.h"

#include "quant/iq_grids.inc"

#define SL_IQ2_XXS_BYTES 66
#define SL_IQ2_XS_BYTES  74
#define SL_IQ2_S_BYTES   82
#define SL_IQ3_XXS_BYTES 98
#define SL_IQ3_S_BYTES   110
#define SL_IQ1_S_BYTES   50
#define SL_IQ1_M_BYTES   56

/* Levels of the grids: value n is level n of a point. */
#define SL_IQ3_XXS_LEVELS 4, 12, 20, 28, 36, 44, 52, 62

SL_EIGHT_TABLE uint8_t sl_iq3_xxs_levels[8] = {SL_IQ3_XXS_LEVELS};

/* Seven bits of signs, and the eighth. */
SL_EIGHT_FN uint32_t sl_iq_signs(uint32_t seven)
{
    uint32_t odd = seven ^ seven >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return seven | (odd & 1) << 7;
}

SL_EIGHT_FN int sl_iq_signed(int value, uint32_t signs, int j)
{
    return signs >> j & 1 ? -value : value;
}

SL_EIGHT_FN void sl_iq_start(float d, int scale, struct sl_eight *e)
{
    e->d = d;
    e->dmin = 0;
    e->scale = 2 * scale + 1;
    e->min = 0;
}

SL_EIGHT_FN void sl_iq2_point(uint32_t point, uint32_t signs, int *q)
{
    for (int j = 0; j < 8; j++) {
        const uint32_t level = point >> 2 * j & 3;
        q[j] = sl_iq_signed(level == 0 ? 8 : level == 1 ? 25 : 43, signs, j);
    }
}

SL_EIGHT_FN void sl_iq2_xxs_eight(const uint8_t *b, int i, struct sl_eight *e)
{
    const uint8_t *run = b + 2 + 8 * (i >> 2);
    const uint32_t word = sl_eight_u32(run + 4);
    sl_iq_start(sl_eight_f16(b) * 0.125f, (int)(word >> 28), e);
    sl_iq2_point(sl_iq2_xxs_grid[run[i & 3]], sl_iq_signs(word >> 7 * (i & 3) & 127), e->q);
}

SL_EIGHT_FN void sl_iq2_xs_eight(const uint8_t *b, int i, struct sl_eight *e)
{
    const uint32_t word = b[2 + 2 * i] | (uint32_t)b[3 + 2 * i] << 8;
    sl_iq_start(sl_eight_f16(b) * 0.125f, b[66 + (i >> 2)] >> 4 * (i >> 1 & 1) & 15, e);
    sl_iq2_point(sl_iq2_xs_grid[word & 511], sl_iq_signs(word >> 9), e->q);
}

SL_EIGHT_FN void sl_iq2_s_eight(const uint8_t *b, int i, struct sl_eight *e)
{
    const int upper = b[66 + (i >> 2)] >> 2 * (i & 3) & 3;
    sl_iq_start(sl_eight_f16(b) * 0.125f, b[74 + (i >> 2)] >> 4 * (i >> 1 & 1) & 15, e);
    sl_iq2_point(sl_iq2_s_grid[b[2 + i] | upper << 8], b[34 + i], e->q);
}

SL_EIGHT_FN void sl_iq3_xxs_eight(const uint8_t *b, int i, struct sl_eight *e)
{
    const uint32_t word = sl_eight_u32(b + 66 + 4 * (i >> 2));
    const uint32_t signs = sl_iq_signs(word >> 7 * (i & 3) & 127);
    sl_iq_start(sl_eight_f16(b) * 0.25f, (int)(word >> 28), e);
    for (int j = 0; j < 8; j++) {
        const int level = sl_iq3_xxs_grid[b[2 + 2 * i + (j >> 2)]] >> 3 * (j & 3) & 7;
        e->q[j] = sl_iq_signed(sl_iq3_xxs_levels[level], signs, j);
    }
}

SL_EIGHT_FN void sl_iq3_s_eight(const uint8_t *b, int i, struct sl_eight *e)
{
    const int ninth = b[66 + (i >> 2)] >> 2 * (i & 3);
    sl_iq_start(sl_eight_f16(b), b[106 + (i >> 3)] >> 4 * (i >> 2 & 1) & 15, e);
    for (int j = 0; j < 8; j++) {
        const int half = j >> 2, number = b[2 + 2 * i + half] | (ninth >> half & 1) << 8;
        const int level = sl_iq3_s_grid[number] >> 3 * (j & 3) & 7;
        e->q[j] = sl_iq_signed(2 * level + 1, b[74 + i], j);
    }
}

SL_EIGHT_FN void sl_iq1_point(uint32_t point, int below, int *q)
{
    for (int j = 0; j < 8; j++)
        q[j] = 8 * ((int)(point >> 2 * j & 3) - 1) + (below ? -1 : 1);
}

SL_EIGHT_FN void sl_iq1_s_eight(const uint8_t *b, int i, struct sl_eight *e)
{
    const uint8_t *at = b + 34 + 2 * (i >> 2);
    const int word = at[0] | at[1] << 8;
    sl_iq_start(sl_eight_f16(b) * 0.125f, word >> 12 & 7, e);
    sl_iq1_point(sl_iq1_grid[b[2 + i] | (word >> 3 * (i & 3) & 7) << 8], word >> 15, e->q);
}

SL_EIGHT_FN void sl_iq1_m_eight(const uint8_t *b, int i, struct sl_eight *e)
{
    const uint8_t *s = b + 48;
    const uint8_t d[2] = {(uint8_t)(s[1] >> 4 | (s[3] & 0xF0)),
                          (uint8_t)(s[5] >> 4 | (s[7] & 0xF0))};
    const int half = b[32 + (i >> 1)] >> 4 * (i & 1) & 15,
              word = s[2 * (i >> 3)] | s[2 * (i >> 3) + 1] << 8;
    sl_iq_start(sl_eight_f16(d) * 0.125f, word >> 3 * (i >> 1 & 3) & 7, e);
    sl_iq1_point(sl_iq1_grid[b[i] | (half & 7) << 8], half >> 3, e->q);
}

SL_EIGHT_ROW(iq2_xxs)
SL_EIGHT_ROW(iq2_xs)
SL_EIGHT_ROW(iq2_s)
SL_EIGHT_ROW(iq3_xxs)
SL_EIGHT_ROW(iq3_s)
SL_EIGHT_ROW(iq1_s)
SL_EIGHT_ROW(iq1_m)

#endif
