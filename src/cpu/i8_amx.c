/* SPDX-License-Identifier: MIT
 * i8_amx.c - whole-number products on AMX tiles; few tokens stay with the vector instructions,
 * which give the same bits.
 */
#include "cpu/tile_amx.h"

#include "cpu/i8_amx_tmpl.c"

/* Tokens from which on tiles are the faster way. Up to sixteen cost a tile the same; codes that
 * must be unpacked first want more of them. */
#define TILE_TOKENS       2
#define TILE_TOKENS_SPLIT 24

static struct sl_i8_kernels i8_amx_vnni(void)
{
    struct sl_i8_kernels k = {0};
    sl_i8_kernels_avx512vnni(&k);
    return k;
}

static bool tiles(enum sl_dtype t, int n_tok)
{
    return n_tok >= (t == SL_DTYPE_Q8_0 ? TILE_TOKENS : TILE_TOKENS_SPLIT);
}

static void i8_amx_place(const float *x, int64_t k, int t, int n_tok, bool as_tiles,
                         struct sl_i8_x *block)
{
    if (as_tiles)
        i8_place_tiles(x, k, t, block);
    else
        i8_amx_vnni().place(x, k, t, n_tok, false, block);
}

static void i8_amx_dot(const struct sl_i8_part *a, int64_t p, int n_panels, float *acc,
                       struct sl_i8_scratch *s)
{
    if (a->tiles)
        i8_dot_tiles(a, p, n_panels, acc, s);
    else
        i8_amx_vnni().dot(a, p, n_panels, acc, s);
}

void sl_i8_kernels_amx(struct sl_i8_kernels *k)
{
    k->name = "i8-amx"; /* quantize stays as it is */
    k->shape = &i8_shape;
    k->ahead = 4096; /* Xeon with AMX, 16 threads: Q4_K 48 % of the read rate without, 54 % with
                        1024 and 68 % with this; one thread 67, 77 and 91 % */
    k->tiles = tiles;
    k->place = i8_amx_place;
    k->dot = i8_amx_dot;
}
