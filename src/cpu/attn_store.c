/* SPDX-License-Identifier: MIT
 * Into the tiles of the KV pages, and the rare tile that must be cleaned before it is used. One
 * code path for every instruction set: what is written to a page is the same everywhere.
 */
#include "cpu/attn.h"

#include "base/check.h"
#include "quant/fp8_e4m3.h"

#include <emmintrin.h>
#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- codes of Q8_0 */

/* Codes and scale of n values. A block with a number that is not finite reads as NaN: code times
 * NaN. */
static uint16_t attn_store_quantize(const float *x, int n, int8_t *codes)
{
    float top = 0.0f;
    bool finite = true;
    for (int i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        top = a > top ? a : top;
        finite &= a <= 3.4028235e38f;
    }
    uint16_t scale = sl_f32_to_f16(finite ? top / 127.0f : NAN);
    float d = sl_f16_to_f32(scale);
    /* the scale as it is stored may be smaller than the exact one: at most 127 all the same */
    for (int i = 0; i < n; i++) {
        float c = d > 0.0f && d <= 65504.0f ? x[i] / d : 0.0f;
        c = SL_MIN(SL_MAX(c, -127.0f), 127.0f);
        codes[i] = (int8_t)((c + 0x1.8p23f) - 0x1.8p23f); /* to nearest even */
    }
    return scale;
}

static uint8_t *attn_store_scale_at(uint8_t *tile, int dim, int block, int slot)
{
    return tile + SL_KV_TILE * dim + (block * SL_KV_TILE + slot) * 2;
}

static void quantize_head(const float *x, int dim, uint8_t *tile, int slot, int8_t *codes)
{
    for (int b = 0; b * SL_KV_SCALE < dim; b++) {
        int n = SL_MIN(SL_KV_SCALE, dim - b * SL_KV_SCALE);
        uint16_t d = attn_store_quantize(x + b * SL_KV_SCALE, n, codes + b * SL_KV_SCALE);
        sl_store_u16(attn_store_scale_at(tile, dim, b, slot), d);
    }
}

/* ---------------------------------------------------------------- codes of FP8 */

static uint8_t *fp8_scale_at(uint8_t *tile, int dim, int slot)
{
    return tile + SL_KV_TILE * dim + 2 * slot;
}

/* Codes of a head vector, and its scale to the tile. One with a number that is not finite reads as
 * NaN. */
static void quantize_fp8(const float *x, int dim, uint8_t *tile, int slot, uint8_t *codes)
{
    float top = 0.0f;
    bool finite = true;
    for (int i = 0; i < dim; i++) {
        float a = fabsf(x[i]);
        top = a > top ? a : top;
        finite &= a <= 3.4028235e38f;
    }
    int e = sl_fp8_e4m3_exponent(top);
    float inverse = sl_f32_of_bits((uint32_t)(127 - e) << 23); /* exact, and so are the products */
    for (int i = 0; i < dim; i++)
        codes[i] = finite ? sl_f32_to_fp8_e4m3(x[i] * inverse) : 0;
    sl_store_u16(fp8_scale_at(tile, dim, slot), (uint16_t)(finite ? (127 + e) << 7 : 0x7FC0));
}

/* ---------------------------------------------------------------- store */

void sl_attn_store_k(enum sl_dtype dtype, const void *row, int dim, uint8_t *tile, int slot)
{
    const struct sl_kv_codec *codec = sl_kv_codec_of(dtype);
    if (codec != NULL) {
        sl_attn_coded_store(codec, true, row, dim, tile, slot);
    } else if (dtype == SL_DTYPE_F32) {
        for (int d = 0; d < dim; d++)
            memcpy(tile + (d * SL_KV_TILE + slot) * 4, (const float *)row + d, 4);
    } else if (dtype == SL_DTYPE_Q8_0) {
        int8_t codes[SL_MAX_HEAD_DIM];
        quantize_head(row, dim, tile, slot, codes);
        for (int d = 0; d < dim; d += 2)
            memcpy(tile + (d / 2 * SL_KV_TILE + slot) * 2, codes + d, 2);
    } else if (dtype == SL_DTYPE_FP8_E4M3) {
        uint8_t codes[SL_MAX_HEAD_DIM];
        quantize_fp8(row, dim, tile, slot, codes);
        for (int d = 0; d < dim; d++)
            tile[d * SL_KV_TILE + slot] = codes[d];
    } else {
        for (int d = 0; d < dim; d += 2)
            memcpy(tile + (d / 2 * SL_KV_TILE + slot) * 4, (const uint16_t *)row + d, 4);
    }
}

void sl_attn_store_v(enum sl_dtype dtype, const void *row, int dim, uint8_t *tile, int slot)
{
    uint8_t *pair = tile + slot % 2 * (dtype == SL_DTYPE_Q8_0 ? 1 : 2);
    const struct sl_kv_codec *codec = sl_kv_codec_of(dtype);
    if (codec != NULL) {
        sl_attn_coded_store(codec, false, row, dim, tile, slot);
    } else if (dtype == SL_DTYPE_F32) {
        memcpy(tile + slot * dim * 4, row, (size_t)dim * 4);
    } else if (dtype == SL_DTYPE_Q8_0) {
        int8_t codes[SL_MAX_HEAD_DIM];
        quantize_head(row, dim, tile, slot, codes);
        for (int d = 0; d < dim; d++)
            pair[(slot / 2 * dim + d) * 2] = (uint8_t)codes[d];
    } else if (dtype == SL_DTYPE_FP8_E4M3) {
        quantize_fp8(row, dim, tile, slot, tile + slot * dim);
    } else {
        for (int d = 0; d < dim; d++)
            memcpy(pair + (slot / 2 * dim + d) * 4, (const uint16_t *)row + d, 2);
    }
}

void sl_attn_store_row(enum sl_dtype dtype, const void *row, int dim, uint8_t *tile, int slot)
{
    if (dtype == SL_DTYPE_Q8_0)
        quantize_head(row, dim, tile, slot, (int8_t *)tile + slot * dim);
    else if (dtype == SL_DTYPE_FP8_E4M3)
        quantize_fp8(row, dim, tile, slot, tile + slot * dim);
    else {
        const size_t n_bytes = (size_t)dim * (dtype == SL_DTYPE_F32 ? 4 : 2);
        memcpy(tile + (size_t)slot * n_bytes, row, n_bytes);
    }
}

/* Units of `size` bytes: n rows of n_units each become columns of SL_KV_TILE. size is a constant
 * after inlining, which makes of memcpy a load and a store. */
static inline void turn_rows(const size_t size, const uint8_t *const rows[SL_KV_TILE], int n,
                             int n_units, uint8_t *out)
{
    for (int i = 0; i < n; i++) {
        const uint8_t *from = rows[i];
        uint8_t *to = out + (size_t)i * size;
        for (int u = 0; u < n_units; u++)
            memcpy(to + (size_t)u * SL_KV_TILE * size, from + (size_t)u * size, size);
    }
}

void sl_attn_keys_of_rows(enum sl_dtype dtype, const uint8_t *const tiles[SL_KV_TILE],
                          const uint8_t slots[SL_KV_TILE], int n, int dim, uint8_t *out)
{
    const size_t number = dtype == SL_DTYPE_F32                             ? 4
                          : dtype == SL_DTYPE_F16 || dtype == SL_DTYPE_BF16 ? 2
                                                                            : 1;
    const uint8_t *rows[SL_KV_TILE] = {NULL};
    for (int i = 0; i < n; i++)
        rows[i] = tiles[i] + (size_t)slots[i] * (size_t)dim * number;
    if (number > 1)
        turn_rows(4, rows, n, dtype == SL_DTYPE_F32 ? dim : dim / 2, out);
    else if (dtype == SL_DTYPE_Q8_0)
        turn_rows(2, rows, n, dim / 2, out);
    else
        turn_rows(1, rows, n, dim, out);
    const int n_scales =
        dtype == SL_DTYPE_Q8_0 ? (int)SL_CEIL_DIV(dim, SL_KV_SCALE) : dtype == SL_DTYPE_FP8_E4M3;
    for (int b = 0; b < n_scales; b++)
        for (int i = 0; i < n; i++)
            memcpy(attn_store_scale_at(out, dim, b, i),
                   tiles[i] + SL_KV_TILE * dim + (b * SL_KV_TILE + slots[i]) * 2, 2);
}

/* ---------------------------------------------------------------- latent */

/* Numbers of two bytes: [dim / 2, 16, 2] to [8, v_dim, 2]. Of each pair of positions two numbers
 * change places. */
static void turn_words(const uint8_t *keys, int v_dim, uint8_t *out)
{
    enum { ORDER = _MM_SHUFFLE(3, 1, 2, 0) };
    for (int d = 0; d < v_dim; d += 2, keys += SL_KV_TILE * 4)
        for (int slot = 0; slot < SL_KV_TILE; slot += 4) {
            __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(keys + slot * 4));
            uint8_t *to = out + (slot / 2 * v_dim + d) * 4;
            x = _mm_shufflehi_epi16(_mm_shufflelo_epi16(x, ORDER), ORDER);
            _mm_storel_epi64((__m128i *)(void *)to, x);
            _mm_storel_epi64((__m128i *)(void *)(to + v_dim * 4), _mm_unpackhi_epi64(x, x));
        }
}

/* The same of single bytes. */
static void turn_bytes(const uint8_t *keys, int v_dim, uint8_t *out)
{
    for (int d = 0; d < v_dim; d += 2, keys += SL_KV_TILE * 2)
        for (int slot = 0; slot < SL_KV_TILE; slot += 2) {
            const uint8_t *from = keys + slot * 2;
            const uint8_t pairs[] = {from[0], from[2], from[1], from[3]};
            memcpy(out + (slot / 2 * v_dim + d) * 2, pairs, sizeof pairs);
        }
}

void sl_attn_values_of_keys(enum sl_dtype dtype, const uint8_t *keys, int dim, int v_dim,
                            uint8_t *out)
{
    const uint8_t *scales = keys + SL_KV_TILE * dim;
    if (dtype == SL_DTYPE_F32) {
        for (int d = 0; d < v_dim; d++)
            for (int slot = 0; slot < SL_KV_TILE; slot++)
                memcpy(out + (slot * v_dim + d) * 4, keys + (d * SL_KV_TILE + slot) * 4, 4);
    } else if (dtype == SL_DTYPE_Q8_0) {
        turn_bytes(keys, v_dim, out);
        memcpy(attn_store_scale_at(out, v_dim, 0, 0), scales,
               SL_CEIL_DIV((size_t)v_dim, SL_KV_SCALE) * SL_KV_TILE * 2);
    } else if (dtype == SL_DTYPE_FP8_E4M3) {
        for (int d = 0; d < v_dim; d++)
            for (int slot = 0; slot < SL_KV_TILE; slot++)
                out[slot * v_dim + d] = keys[d * SL_KV_TILE + slot];
        memcpy(fp8_scale_at(out, v_dim, 0), scales, SL_KV_TILE * 2);
    } else {
        turn_words(keys, v_dim, out);
    }
}

/* ---------------------------------------------------------------- clean */

/* A code that is NaN is 0x7F without its sign, and adding one carries into that. */
static bool fp8_codes_finite(const uint8_t *codes, size_t n)
{
    uint64_t seen = 0;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t w;
        memcpy(&w, codes + i, sizeof w);
        seen |= (w & 0x7F7F7F7F7F7F7F7Fu) + 0x0101010101010101u;
    }
    return (seen & 0x8080808080808080u) == 0;
}

/* Adding one to an exponent of all ones carries into the bit of the sign, which was masked out. */
bool sl_attn_finite(enum sl_dtype dtype, const uint8_t *tile, int dim)
{
    uint64_t mask = 0x7C007C007C007C00u, one = 0x0400040004000400u, carry = 0x8000800080008000u;
    size_t n = (size_t)(SL_KV_TILE * dim) * 2;
    const struct sl_kv_codec *codec = sl_kv_codec_of(dtype);
    if (dtype == SL_DTYPE_F32) {
        mask = 0x7F8000007F800000u, one = 0x0080000000800000u, carry = 0x8000000080000000u;
        n *= 2;
    } else if (dtype == SL_DTYPE_BF16) {
        mask = 0x7F807F807F807F80u, one = 0x0080008000800080u;
    } else if (dtype == SL_DTYPE_FP8_E4M3) { /* codes, and the scales, which are BF16 */
        if (!fp8_codes_finite(tile, (size_t)(SL_KV_TILE * dim)))
            return false;
        mask = 0x7F807F807F807F80u, one = 0x0080008000800080u;
        tile += SL_KV_TILE * dim;
        n = SL_KV_TILE * 2;
    } else if (dtype == SL_DTYPE_Q8_0) { /* its scales alone */
        tile += SL_KV_TILE * dim;
        n = SL_CEIL_DIV((size_t)dim, SL_KV_SCALE) * SL_KV_TILE * 2;
    } else if (codec != NULL) { /* the same */
        n = SL_KV_TILE * (size_t)sl_kv_codec_scales(codec, dim) * codec->scale_bytes;
        tile += SL_KV_TILE * sl_kv_codec_code_bytes(codec, dim);
        if (codec->kind == SL_KV_BLOCK_E4M3)
            return fp8_codes_finite(tile, n);
        if (codec->kind == SL_KV_VECTOR_ZERO)
            mask = 0x7F8000007F800000u, one = 0x0080000000800000u, carry = 0x8000000080000000u;
    }
    uint64_t seen = 0;
    for (size_t i = 0; i < n; i += 32) {
        uint64_t w[4];
        memcpy(w, tile + i, sizeof w);
        seen |= ((w[0] & mask) + one) | ((w[1] & mask) + one) | ((w[2] & mask) + one) |
                ((w[3] & mask) + one);
    }
    return (seen & carry) == 0;
}

void sl_attn_clean(enum sl_dtype dtype, const uint8_t *tile, int dim, int lo, int hi, uint8_t *out)
{
    const struct sl_kv_codec *codec = sl_kv_codec_of(dtype);
    memcpy(out, tile, sl_kv_tile_bytes(dtype, dim));
    for (int slot = 0; slot < SL_KV_TILE; slot++) {
        if (lo <= slot && slot < hi)
            continue;
        if (dtype == SL_DTYPE_F32)
            memset(out + slot * dim * 4, 0, (size_t)dim * 4);
        else if (dtype == SL_DTYPE_Q8_0) /* any code times zero */
            for (int b = 0; b * SL_KV_SCALE < dim; b++)
                sl_store_u16(attn_store_scale_at(out, dim, b, slot), 0);
        else if (codec != NULL) /* the same */
            for (int b = 0; b < sl_kv_codec_scales(codec, dim); b++)
                memset(sl_attn_coded_scale(codec, out, dim, b, slot), 0, codec->scale_bytes);
        else if (dtype == SL_DTYPE_FP8_E4M3) {
            memset(out + slot * dim, 0, (size_t)dim);
            sl_store_u16(fp8_scale_at(out, dim, slot), 0);
        } else
            for (int d = 0; d < dim; d++)
                sl_store_u16(out + ((slot / 2 * dim + d) * 2 + slot % 2) * 2, 0);
    }
}
