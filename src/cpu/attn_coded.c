/* SPDX-License-Identifier: MIT
 * Attention over pages of codes, those of FP8 and the rows of quant/kv_codec.h: a group of tiles is
 * made BF16 in the L1 cache and multiplied as pages of BF16 are. From memory come the codes alone.
 *
 * Codes of three bits become those of four first, a tile at a time. Keys become the numbers of
 * their codes, and the scale of a position, which all of its dimensions have in common, is a factor
 * of its scores. Values become numbers times scale, rounded to BF16: a table of sixteen numbers for
 * a position is cheaper than a product for each of its dimensions. Scales of FP8 and of blocks are
 * in the numbers of both, which are exact.
 */
#include "cpu/attn.h"

#include "base/check.h"

#include <string.h>

/* ---------------------------------------------------------------- where codes are */

/* A tile of four-bit codes is rows of 2 n words, of keys one for 16 dimensions, of values one for
 * two positions. With three bits, of the halves a of word i and b of word n + i there are the
 * magnitudes, and a byte of signs: from the lowest bit on those of b2 a2 b0 a0 b3 a3 b1 a1, so that
 * two shifts bring them to where four-bit codes have them. Codes of a position share no byte with
 * those of others, as tokens are stored by several threads. */
struct code_rows {
    int n_rows, n;
};

static struct code_rows rows_of(bool keys, int dim)
{
    return keys ? (struct code_rows){dim / 16, SL_KV_TILE}
                : (struct code_rows){SL_KV_TILE / 2, dim / 8};
}

/* The signs of four codes: where bits 0 .. 7 of the byte above have those of a. */
static int signs_of(unsigned half)
{
    return (int)((half & 0x88) | (half & 0x8800) >> 10);
}

/* Half h of the words i and n + i of a row. */
static void put_halves(uint8_t *row, int bits, int n, int i, int h, unsigned a, unsigned b)
{
    if (bits == 4) {
        sl_store_u16(row + 4 * i + 2 * h, (uint16_t)a);
        sl_store_u16(row + 4 * (n + i) + 2 * h, (uint16_t)b);
    } else {
        sl_store_u16(row + 4 * i + 2 * h, (uint16_t)((a & 0x3333) | (b & 0x3333) << 2));
        row[4 * n + 2 * i + h] = (uint8_t)(signs_of(a) | signs_of(b) >> 1);
    }
}

/* Four codes, `step` dimensions apart. */
static unsigned half_of(const uint8_t *codes, int step)
{
    return (unsigned)(codes[0] | codes[step] << 4 | codes[2 * step] << 8 | codes[3 * step] << 12);
}

/* The four codes of a vector of values that word i of its row has. */
static unsigned value_half(const uint8_t *codes, int dim, int i)
{
    const int base = i / 16 * 64, n = SL_MIN(16, (dim - base) / 4);
    return half_of(codes + base + i % 16, n);
}

/* ---------------------------------------------------------------- store */

static void put_codes(const struct sl_kv_codec *c, bool keys, const uint8_t *codes, int dim,
                      uint8_t *tile, int slot)
{
    const struct code_rows r = rows_of(keys, dim);
    const size_t row_bytes = (size_t)(2 * r.n * c->bits);
    if (keys)
        for (int i = 0; i < r.n_rows; i++, codes += 16, tile += row_bytes)
            for (int h = 0; h < 2; h++)
                put_halves(tile, c->bits, r.n, slot, h, half_of(codes + h, 2),
                           half_of(codes + 8 + h, 2));
    else
        for (int i = 0; i < r.n; i++)
            put_halves(tile + (size_t)(slot / 2) * row_bytes, c->bits, r.n, i, slot % 2,
                       value_half(codes, dim, i), value_half(codes, dim, r.n + i));
}

void sl_attn_coded_store(const struct sl_kv_codec *c, bool keys, const float *row, int dim,
                         uint8_t *tile, int slot)
{
    float x[SL_MAX_HEAD_DIM];
    uint8_t codes[SL_MAX_HEAD_DIM], scales[SL_MAX_HEAD_DIM / SL_KV_CODE_BLOCK];
    memcpy(x, row, (size_t)dim * sizeof *x);
    if (c->rotated)
        sl_kv4_rotate(x, dim);
    c->encode(c->levels, x, dim, codes, scales);
    put_codes(c, keys, codes, dim, tile, slot);
    for (int i = 0; i < sl_kv_codec_scales(c, dim); i++)
        memcpy(sl_attn_coded_scale(c, tile, dim, i, slot), scales + i * c->scale_bytes,
               c->scale_bytes);
}

/* ---------------------------------------------------------------- in plain C */

void sl_attn_codes_of_three_c(const uint8_t *codes, int n_rows, int n, uint8_t *out)
{
    for (; n_rows > 0; n_rows--, codes += 6 * n, out += 8 * n)
        for (int i = 0; i < 2 * n; i++) { /* halves of words */
            const unsigned m = sl_load_u16(codes + 2 * i);
            const unsigned s = codes[4 * n + i] | (unsigned)codes[4 * n + i] << 10;
            sl_store_u16(out + 2 * i, (uint16_t)((m & 0x3333) | (s & 0x8888)));
            sl_store_u16(out + 4 * n + 2 * i, (uint16_t)((m >> 2 & 0x3333) | (s << 1 & 0x8888)));
        }
}

void sl_attn_codes_widen_c(const struct sl_kv_codec *c, bool keys, const struct sl_attn_codes *t,
                           uint16_t *out)
{
    for (int i = 0; i < SL_KV_TILE * t->dim; i++) {
        const int slot = i / t->dim, d = i % t->dim;
        const int base = d / 64 * 64, n = SL_MIN(16, (t->dim - base) / 4);
        const uint8_t *half = keys ? t->codes + (d / 8 * SL_KV_TILE + slot) * 4 + d % 2 * 2
                                   : t->codes +
                                         (slot / 2 * (t->dim / 4) + base / 4 + (d - base) % n) * 4 +
                                         slot % 2 * 2;
        const uint8_t code = sl_load_u16(half) >> (keys ? d % 8 / 2 : (d - base) / n) * 4 & 15;
        const uint8_t *scale =
            t->scales +
            ((c->kind == SL_KV_BLOCK_E4M3 ? d / SL_KV_CODE_BLOCK * SL_KV_TILE : 0) + slot) *
                c->scale_bytes;
        if (keys)
            out[(d / 2 * SL_KV_TILE + slot) * 2 + d % 2] = sl_kv_codec_key(c, code, scale);
        else
            out[(slot / 2 * t->dim + d) * 2 + slot % 2] = sl_kv_codec_value(c, code, scale);
    }
}

void sl_attn_codes_scale_c(const struct sl_kv_codec *c, const uint8_t *scales, int n_q,
                           float *score)
{
    for (int i = 0; i < SL_KV_TILE; i++) {
        const float s = sl_kv_codec_scale(c, scales + i * c->scale_bytes);
        for (int q = 0; q < n_q; q++)
            score[q * SL_CPU_SPLIT + i] *= s;
    }
}

/* ---------------------------------------------------------------- products */

static void widen_codes(const struct sl_attn_kernels *k, const struct sl_kv_codec *c, bool keys,
                        const uint8_t *tile, const uint8_t *ahead, int dim, uint16_t *out)
{
    _Alignas(64) uint8_t four[SL_KV_TILE * SL_MAX_HEAD_DIM / 2];
    const size_t n_bytes = SL_KV_TILE * sl_kv_codec_code_bytes(c, dim);
    const struct sl_attn_codes t = {c->bits == 3 ? four : tile, tile + n_bytes, dim};
    for (size_t i = 0; i < n_bytes; i += 64)
        __builtin_prefetch(ahead + i, 0, 2);
    if (c->bits == 3) {
        const struct code_rows r = rows_of(keys, dim);
        k->codes_of_three(tile, r.n_rows, r.n, four);
    }
    k->widen_codes[c->kind](c, keys, &t, out);
}

/* Tiles from .. from + n - 1 to wide; the table of them, and of what follows for who looks ahead.
 */
static void widen_tiles(const struct sl_attn_kernels *k, enum sl_dtype dtype,
                        const struct sl_attn_tiles *t, bool keys, int from, int n, uint16_t *wide,
                        const uint8_t **tiles)
{
    const struct sl_kv_codec *c = sl_kv_codec_of(dtype);
    for (int i = 0; i < n; i++, wide += SL_KV_TILE * t->dim) {
        const uint8_t *tile = t->tiles[from + i], *ahead = t->tiles[from + i + SL_ATTN_AHEAD];
        if (c == NULL)
            k->widen_fp8(keys, tile, ahead, t->dim, wide);
        else
            widen_codes(k, c, keys, tile, ahead, t->dim, wide);
        tiles[i] = (const uint8_t *)wide;
    }
    for (int i = 0; i < SL_ATTN_AHEAD; i++) /* in the cache already */
        tiles[n + i] = tiles[0];
}

void sl_attn_coded_scores(const struct sl_attn_kernels *k, enum sl_dtype dtype,
                          const struct sl_attn_tiles *t, uint16_t *wide, const void *query, int n_q,
                          float *score)
{
    const uint8_t *tiles[SL_ATTN_GROUP + SL_ATTN_AHEAD];
    const struct sl_kv_codec *c = sl_kv_codec_of(dtype);
    for (int i = 0; i < t->n; i += SL_ATTN_GROUP) {
        struct sl_attn_tiles g = {tiles, SL_MIN(t->n - i, SL_ATTN_GROUP), t->dim, t->scratch,
                                  t->shape};
        widen_tiles(k, dtype, t, true, i, g.n, wide, tiles);
        k->scores[SL_DTYPE_BF16](&g, query, n_q, score + i * SL_KV_TILE);
        for (int j = i; c != NULL && c->kind != SL_KV_BLOCK_E4M3 && j < i + g.n; j++)
            k->scale_codes(c, t->tiles[j] + SL_KV_TILE * sl_kv_codec_code_bytes(c, t->dim), n_q,
                           score + j * SL_KV_TILE);
    }
}

void sl_attn_coded_values(const struct sl_attn_kernels *k, enum sl_dtype dtype,
                          const struct sl_attn_tiles *t, uint16_t *wide, const void *p, int n_q,
                          float *o)
{
    const uint8_t *tiles[SL_ATTN_GROUP + SL_ATTN_AHEAD];
    const size_t number = k->p16[SL_DTYPE_BF16] ? sizeof(uint16_t) : sizeof(float);
    for (int i = 0; i < t->n; i += SL_ATTN_GROUP) {
        struct sl_attn_tiles g = {tiles, SL_MIN(t->n - i, SL_ATTN_GROUP), t->dim, t->scratch,
                                  t->shape};
        widen_tiles(k, dtype, t, false, i, g.n, wide, tiles);
        k->values[SL_DTYPE_BF16](&g, (const uint8_t *)p + (size_t)(i * SL_KV_TILE) * number, n_q,
                                 o);
    }
}
