/* SPDX-License-Identifier: MIT
 * q8_0.h - 32 signed bytes and one f16 scale: x = d * q. 8.5 bits per weight.
 */
#ifndef SL_QUANT_Q8_0_H
#define SL_QUANT_Q8_0_H

#include "quant/float.h"

#define SL_Q8_0_ELEMS 32

struct sl_q8_0_block { /* bytes only, so that any address will do */
    uint8_t d[2];      /* f16 */
    int8_t q[32];
};
_Static_assert(sizeof(struct sl_q8_0_block) == 34, "layout of the file format");

static inline float sl_q8_0_scale(const struct sl_q8_0_block *b)
{
    return sl_f16_to_f32(sl_load_u16(b->d));
}

void sl_q8_0_to_f32(const void *x, float *out, int64_t n);
void sl_q8_0_from_f32(const float *x, void *out, int64_t n);

#endif
