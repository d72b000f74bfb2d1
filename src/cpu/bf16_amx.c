/* SPDX-License-Identifier: MIT
 * bf16_amx.c - BF16 products on AMX tiles.
 */
#include "cpu/tile_amx.h"
#include "cpu/vec_avx512.h"

#include "cpu/bf16_amx_tmpl.c"

/* n of 32 columns, rounded as sl_bf16_kernels says. */
static void round_strip(const float *x, int n, uint16_t *out)
{
    v16 lo = v_load_n(x, SL_MIN(n, 16)), hi = v_load_n(x + 16, SL_MAX(n - 16, 0));
    _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
}

static void bf16_amx_place(const float *x, int64_t k, int t, int n_tok, uint16_t *block)
{
    const int64_t whole = k / SL_BF16_K;
    for (int64_t i = 0; i < whole; i++)
        round_strip(x + i * SL_BF16_K, SL_BF16_K, bf16_row(block, k, t, n_tok, i));
    if (k % SL_BF16_K != 0)
        round_strip(x + whole * SL_BF16_K, (int)(k % SL_BF16_K),
                    bf16_row(block, k, t, n_tok, whole));
}

void sl_bf16_kernels_amx(struct sl_bf16_kernels *k)
{
    k->name = "bf16-amx"; /* rounding stays as it is */
    k->shape = &bf16_shape;
    k->place = bf16_amx_place;
    k->dot = bf16_dot;
}
