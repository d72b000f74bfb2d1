/* SPDX-License-Identifier: MIT
 * q4_0.h - 32 four-bit codes and one f16 scale: x = d * (q - 8). 4.5 bits per weight.
 * Byte j holds element j in its low half and element j + 16 in its high half.
 */
#ifndef SL_QUANT_Q4_0_H
#define SL_QUANT_Q4_0_H

#include "quant/float.h"

#define SL_Q4_0_ELEMS 32

struct sl_q4_0_block { /* bytes only, so that any address will do */
    uint8_t d[2];      /* f16 */
    uint8_t q[16];
};
_Static_assert(sizeof(struct sl_q4_0_block) == 18, "layout of the file format");

static inline float sl_q4_0_scale(const struct sl_q4_0_block *b)
{
    return sl_f16_to_f32(sl_load_u16(b->d));
}

/* Signed code of element j, -8..7. */
static inline int sl_q4_0_code(const struct sl_q4_0_block *b, int j)
{
    return (j < 16 ? b->q[j] & 15 : b->q[j - 16] >> 4) - 8;
}

void sl_q4_0_to_f32(const void *x, float *out, int64_t n);
void sl_q4_0_from_f32(const float *x, void *out, int64_t n);

#endif
