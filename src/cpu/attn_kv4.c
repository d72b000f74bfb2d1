/* SPDX-License-Identifier: MIT
 * Attention over pages of four-bit codes (quant/kv4.h): a group of tiles is made BF16 in the L1
 * cache and multiplied as pages of BF16 are. From memory comes half a byte for a number.
 *
 * Keys become the levels of their codes, and the scale of a position, which all of its dimensions
 * have in common, is a factor of its scores. Values become levels times scale, rounded to BF16: a
 * table of sixteen numbers for a position is cheaper than a product for each of its dimensions.
 */
#include "cpu/attn.h"

#include "base/check.h"

#include <string.h>

/* ---------------------------------------------------------------- store */

void sl_attn_kv4_store(enum sl_dtype dtype, bool keys, const float *row, int dim, uint8_t *tile,
                       int slot)
{
    float x[SL_MAX_HEAD_DIM];
    uint8_t codes[SL_MAX_HEAD_DIM];
    memcpy(x, row, (size_t)dim * sizeof *x);
    sl_kv4_rotate(x, dim);
    sl_store_u16(tile + sl_attn_kv4_codes(dim) + 2 * slot,
                 sl_kv4_encode(sl_kv4_of(dtype), x, dim, codes));
    for (int d = 0; keys && d < dim; d += 8) {
        uint8_t *to = tile + (d / 8 * SL_KV_TILE + slot) * 4;
        for (int j = 0; j < 4; j++) /* byte j: bits from 8 j on */
            to[j] =
                (uint8_t)(codes[d + 4 * (j % 2) + j / 2] | codes[d + 4 * (j % 2) + 2 + j / 2] << 4);
    }
    tile += slot / 2 * dim + slot % 2 * 2;
    for (int d = 0, n; !keys && d < dim; d += 4 * n, tile += 4 * n) {
        n = SL_MIN(16, (dim - d) / 4);
        for (int l = 0; l < n; l++) {
            const uint8_t *c = codes + d + l;
            tile[4 * l] = (uint8_t)(c[0] | c[n] << 4);
            tile[4 * l + 1] = (uint8_t)(c[2 * n] | c[3 * n] << 4);
        }
    }
}

/* ---------------------------------------------------------------- in plain C */

/* Code j of the lower (half 0) or upper half of a word. */
static uint8_t code_of(const uint8_t *word, int half, int j)
{
    return word[2 * half + j / 2] >> j % 2 * 4 & 15;
}

static void attn_kv4_keys(const struct sl_kv4 *kv4, const uint8_t *tile, int dim, uint16_t *out)
{
    for (int i = 0; i < dim / 8 * SL_KV_TILE; i++)
        for (int j = 0; j < 8; j++) {
            const uint8_t c = code_of(tile + 4 * i, j % 2, j / 2);
            const int d = i / SL_KV_TILE * 8 + j, slot = i % SL_KV_TILE;
            out[(d / 2 * SL_KV_TILE + slot) * 2 + d % 2] = sl_f32_to_bf16(sl_kv4_level(kv4, c));
        }
}

static void attn_kv4_value_rows(const struct sl_kv4 *kv4, const uint8_t *tile, int dim,
                                uint16_t *out)
{
    const uint8_t *scales = tile + sl_attn_kv4_codes(dim);
    for (int slot = 0; slot < SL_KV_TILE; slot++) {
        const uint8_t *row = tile + slot / 2 * dim;
        const float scale = sl_f16_to_f32(sl_load_u16(scales + 2 * slot));
        for (int d = 0, n; d < dim; d += 4 * n, row += 4 * n) {
            n = SL_MIN(16, (dim - d) / 4);
            for (int i = 0; i < 4 * n; i++)
                out[(slot / 2 * dim + d + i) * 2 + slot % 2] =
                    sl_kv4_value(kv4, code_of(row + i % n * 4, slot % 2, i / n), scale);
        }
    }
}

void sl_attn_kv4_widen_c(const struct sl_kv4 *kv4, bool keys, const uint8_t *tile,
                         const uint8_t *ahead, int dim, uint16_t *out)
{
    (void)ahead;
    if (keys)
        attn_kv4_keys(kv4, tile, dim, out);
    else
        attn_kv4_value_rows(kv4, tile, dim, out);
}

void sl_attn_kv4_scale_c(const uint8_t *scales, int n_q, float *score)
{
    for (int i = 0; i < SL_KV_TILE; i++) {
        const float s = sl_f16_to_f32(sl_load_u16(scales + 2 * i));
        for (int q = 0; q < n_q; q++)
            score[q * SL_CPU_SPLIT + i] *= s;
    }
}

/* ---------------------------------------------------------------- products */

/* Tiles from .. from + n - 1 to wide; the table of them, and of what follows for who looks ahead.
 */
static void attn_kv4_widen(const struct sl_attn_kernels *k, const struct sl_kv4 *kv4,
                           const struct sl_attn_tiles *t, bool keys, int from, int n,
                           uint16_t *wide, const uint8_t **tiles)
{
    const size_t numbers = (size_t)(SL_KV_TILE * t->dim);
    for (int i = 0; i < n; i++) {
        k->widen_kv4(kv4, keys, t->tiles[from + i], t->tiles[from + i + SL_ATTN_AHEAD], t->dim,
                     wide + (size_t)i * numbers);
        tiles[i] = (const uint8_t *)(wide + (size_t)i * numbers);
    }
    for (int i = 0; i < SL_ATTN_AHEAD; i++) /* in the cache already */
        tiles[n + i] = (const uint8_t *)wide;
}

void sl_attn_kv4_scores(const struct sl_attn_kernels *k, enum sl_dtype dtype,
                        const struct sl_attn_tiles *t, uint16_t *wide, const void *query, int n_q,
                        float *score)
{
    const uint8_t *tiles[SL_ATTN_GROUP + SL_ATTN_AHEAD];
    for (int i = 0; i < t->n; i += SL_ATTN_GROUP) {
        struct sl_attn_tiles g = {tiles, SL_MIN(t->n - i, SL_ATTN_GROUP), t->dim, t->scratch,
                                  t->shape};
        attn_kv4_widen(k, sl_kv4_of(dtype), t, true, i, g.n, wide, tiles);
        k->scores[SL_DTYPE_BF16](&g, query, n_q, score + i * SL_KV_TILE);
        for (int j = i; j < i + g.n; j++)
            k->scale_kv4(t->tiles[j] + sl_attn_kv4_codes(t->dim), n_q, score + j * SL_KV_TILE);
    }
}

void sl_attn_kv4_values(const struct sl_attn_kernels *k, enum sl_dtype dtype,
                        const struct sl_attn_tiles *t, uint16_t *wide, const void *p, int n_q,
                        float *o)
{
    const uint8_t *tiles[SL_ATTN_GROUP + SL_ATTN_AHEAD];
    const size_t number = k->p16[SL_DTYPE_BF16] ? sizeof(uint16_t) : sizeof(float);
    for (int i = 0; i < t->n; i += SL_ATTN_GROUP) {
        struct sl_attn_tiles g = {tiles, SL_MIN(t->n - i, SL_ATTN_GROUP), t->dim, t->scratch,
                                  t->shape};
        attn_kv4_widen(k, sl_kv4_of(dtype), t, false, i, g.n, wide, tiles);
        k->values[SL_DTYPE_BF16](&g, (const uint8_t *)p + (size_t)(i * SL_KV_TILE) * number, n_q,
                                 o);
    }
}
