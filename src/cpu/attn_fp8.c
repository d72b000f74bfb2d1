/* SPDX-License-Identifier: MIT
 * Attention over pages of FP8: a group of tiles is made BF16 in the L1 cache, without rounding, and
 * multiplied as pages of BF16 are; so the bits are those of such pages with the same values. From
 * memory comes a byte for a number.
 */
#include "cpu/attn.h"

#include "base/check.h"
#include "quant/fp8_e4m3.h"

#include <string.h>

/* Tiles from .. from + n - 1 to wide; the table of them, and of what follows for who looks ahead.
 */
static void attn_fp8_widen(const struct sl_attn_kernels *k, const struct sl_attn_tiles *t,
                           bool keys, int from, int n, uint16_t *wide, const uint8_t **tiles)
{
    const size_t numbers = (size_t)(SL_KV_TILE * t->dim);
    for (int i = 0; i < n; i++) {
        k->widen_fp8(keys, t->tiles[from + i], t->tiles[from + i + SL_ATTN_AHEAD], t->dim,
                     wide + (size_t)i * numbers);
        tiles[i] = (const uint8_t *)(wide + (size_t)i * numbers);
    }
    for (int i = 0; i < SL_ATTN_AHEAD; i++) /* in the cache already */
        tiles[n + i] = (const uint8_t *)wide;
}

void sl_attn_fp8_scores(const struct sl_attn_kernels *k, const struct sl_attn_tiles *t,
                        uint16_t *wide, const void *query, int n_q, float *score)
{
    const uint8_t *tiles[SL_ATTN_GROUP + SL_ATTN_AHEAD];
    for (int i = 0; i < t->n; i += SL_ATTN_GROUP) {
        struct sl_attn_tiles g = {tiles, SL_MIN(t->n - i, SL_ATTN_GROUP), t->dim, t->scratch,
                                  t->shape};
        attn_fp8_widen(k, t, true, i, g.n, wide, tiles);
        k->scores[SL_DTYPE_BF16](&g, query, n_q, score + i * SL_KV_TILE);
    }
}

void sl_attn_fp8_values(const struct sl_attn_kernels *k, const struct sl_attn_tiles *t,
                        uint16_t *wide, const void *p, int n_q, float *o)
{
    const uint8_t *tiles[SL_ATTN_GROUP + SL_ATTN_AHEAD];
    const size_t number = k->p16[SL_DTYPE_BF16] ? sizeof(uint16_t) : sizeof(float);
    for (int i = 0; i < t->n; i += SL_ATTN_GROUP) {
        struct sl_attn_tiles g = {tiles, SL_MIN(t->n - i, SL_ATTN_GROUP), t->dim, t->scratch,
                                  t->shape};
        attn_fp8_widen(k, t, false, i, g.n, wide, tiles);
        k->values[SL_DTYPE_BF16](&g, (const uint8_t *)p + (size_t)(i * SL_KV_TILE) * number, n_q,
                                 o);
    }
}
