/* SPDX-License-Identifier: MIT
 * block_fields.h - where blocks of a file have their scales, so that tests can make blocks of
 * random bytes whose weights are numbers of a sensible size.
 */
#ifndef SL_TESTS_QUANT_BLOCK_FIELDS_H
#define SL_TESTS_QUANT_BLOCK_FIELDS_H

#include "quant/dtype.h"
#include "quant/float.h"

/* Offsets of a block's f16 scale and minimum, -1: none. */
static inline void block_fields(enum sl_dtype t, int at[2])
{
    int first = 0;
    const bool two = t == SL_DTYPE_Q4_K || t == SL_DTYPE_Q5_K || t == SL_DTYPE_Q4_1 ||
                     t == SL_DTYPE_Q5_1 || t == SL_DTYPE_Q2_K;
    if (sl_dtype_info(t)->block_elems == 1 || t == SL_DTYPE_INT4_G128 || t == SL_DTYPE_INT4_G32 ||
        t == SL_DTYPE_MXFP4 || t == SL_DTYPE_IQ1_M)
        first = -1;
    else if (t == SL_DTYPE_Q6_K)
        first = 208;
    else if (t == SL_DTYPE_Q2_K)
        first = 80;
    else if (t == SL_DTYPE_Q3_K)
        first = 108;
    else if (t == SL_DTYPE_TQ1_0)
        first = 52;
    else if (t == SL_DTYPE_TQ2_0)
        first = 64;
    at[0] = first;
    at[1] = two ? first + 2 : -1;
}

/* Scale d and minimum as f16; MXFP4 has an exponent instead, which becomes that of 2^-7. */
static inline void block_put_scales(enum sl_dtype t, uint8_t *block, uint16_t d, uint16_t min)
{
    int at[2];
    block_fields(t, at);
    if (t == SL_DTYPE_MXFP4)
        block[0] = 120;
    for (int w = 0; w < 4 && t == SL_DTYPE_IQ1_M; w++) /* in four quarters */
        block[49 + 2 * w] = (uint8_t)((block[49 + 2 * w] & 15) | (d >> 4 * w & 15) << 4);
    if (at[0] >= 0)
        sl_store_u16(block + at[0], d);
    if (at[1] >= 0)
        sl_store_u16(block + at[1], min);
}

#endif
