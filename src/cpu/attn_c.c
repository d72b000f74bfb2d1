/* SPDX-License-Identifier: MIT
 * The float route of attention in plain C: what the others mean.
 */
#include "base/check.h"
#include "cpu/attn.h"
#include "cpu/vec_c.h"
#include "quant/fp8_e4m3.h"

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

/* Number i of row r of n of a tile, as BF16. */
static uint16_t fp8_number(const uint8_t *tile, int n, int r, int i, const uint8_t *scale)
{
    float x = sl_fp8_e4m3_to_f32(tile[r * n + i]) * sl_bf16_to_f32(sl_load_u16(scale));
    return sl_f32_to_bf16(x);
}

static void attn_c_widen_fp8(bool keys, const uint8_t *tile, const uint8_t *ahead, int dim,
                             uint16_t *out)
{
    const uint8_t *scales = tile + SL_KV_TILE * dim;
    const int n_rows = keys ? dim : SL_KV_TILE, n = keys ? SL_KV_TILE : dim;
    (void)ahead;
    for (int r = 0; r < n_rows; r++) /* pairs of rows */
        for (int i = 0; i < n; i++)
            out[r / 2 * 2 * n + 2 * i + r % 2] =
                fp8_number(tile, n, r, i, scales + 2 * (keys ? i : r));
}

void sl_attn_kernels_c(struct sl_attn_kernels *k)
{
    fill_attn(k);
    k->widen_fp8 = attn_c_widen_fp8;
    for (int i = 0; i < SL_KV_SCALE_KINDS; i++)
        k->widen_codes[i] = sl_attn_codes_widen_c;
    k->scale_codes = sl_attn_codes_scale_c;
    k->codes_of_three = sl_attn_codes_of_three_c;
}
