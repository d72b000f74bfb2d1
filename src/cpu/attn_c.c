/* SPDX-License-Identifier: MIT
 * The float route of attention in plain C: what the others mean.
 */
#include "base/check.h"
#include "cpu/attn.h"
#include "cpu/vec_c.h"
#include "quant/float.h"

#define MAX_Q    1
#define MAX_V    1
#define WIDE_Q   1
#define WIDE_V   1
#define NARROW_V 1

/* Sixteen pairs of numbers: the first of each to x, the second to y. */
LANES void load_f16_pair(const uint8_t *p, v16 *x, v16 *y)
{
    V_LANES
    {
        x->f[j] = sl_f16_to_f32(sl_load_u16(p + 4 * j));
        y->f[j] = sl_f16_to_f32(sl_load_u16(p + 4 * j + 2));
    }
}

LANES void load_bf16_pair(const uint8_t *p, v16 *x, v16 *y)
{
    V_LANES
    {
        x->f[j] = sl_bf16_to_f32(sl_load_u16(p + 4 * j));
        y->f[j] = sl_bf16_to_f32(sl_load_u16(p + 4 * j + 2));
    }
}

LANES void load_code_pair(const uint8_t *p, v16 *x, v16 *y)
{
    V_LANES
    {
        x->f[j] = (float)(int8_t)p[2 * j];
        y->f[j] = (float)(int8_t)p[2 * j + 1];
    }
}

LANES v16 load_f16(const uint8_t *p)
{
    v16 r;
    V_LANES r.f[j] = sl_f16_to_f32(sl_load_u16(p + 2 * j));
    return r;
}

#include "cpu/attn_tmpl.c"

void sl_attn_kernels_c(struct sl_attn_kernels *k)
{
    fill_attn(k);
}
