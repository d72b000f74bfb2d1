/* SPDX-License-Identifier: MIT
 * The BF16 route of attention by tiles. Included by attn_amx.c and, over simulated tiles, by
 * tests/ops.
 *
 * A row of the first operand is a query, so what other queries do does not touch it, and one query
 * goes the same way as sixty-four. Scores: a tile of K is 16 pairs of dimensions of 16 positions at
 * a time, which is a second operand as it lies. Values: a tile of V has 8 pairs of positions, half
 * a second operand. Steps of half the depth waste half of the multiplier there, but no two pages
 * have to be brought together, and which tiles are summed in one call never shows in the bits.
 *
 * Tiles: sums 0..3, queries or probabilities 4 and 5, keys or values 6 and 7. Two by two sums load
 * a tile per product. With few queries the pages stream from memory: four tiles of K (or four
 * times 16 dimensions of V) share what is loaded of the queries.
 *
 * Codes of Q8_0 times their scale are rounded to BF16 in the cache first, and so are heads that are
 * no whole steps of 32 dimensions given zeros behind their end.
 */
#include "cpu/attn.h"

#include "base/check.h"

#include <immintrin.h>
#include <string.h>

#define TILE_ROWS  16
#define K_PAIRS    16 /* of dimensions, in a step of scores */
#define V_PAIRS    8  /* of positions, in a step of values */
#define STEP_BYTES 1024

/* n_v vectors of 16 sums for each query. Step i of vector v in segment s: tiles[s * seg_tiles + v *
 * v_tiles] + off + v * v_bytes + i * STEP_BYTES, rows b_row apart. */
struct tile_product {
    const uint8_t *const *tiles;
    int n_seg, seg_tiles, v_tiles, n_steps, n_pairs;
    size_t off, v_bytes;
    long b_row;
    bool ahead, first; /* ask for later tiles; sums start at zero */
    const uint16_t *a; /* [n_q, ld_a], 2 n_pairs numbers a step */
    int64_t ld_a;
    float *c; /* [n_q, ld_c] */
    int64_t ld_c;
    uint32_t *shape; /* of the registers */
};

/* Queries fill one row tile of rows0, or two with rows1 in the second. The registers stay as they
 * are until an item of attention ends or the next call wants them otherwise: to configure and to
 * release them takes as long as eleven products (162 ns where all threads do it), and with few
 * queries a call is short: sixteen. */
static void attn_configure(uint32_t *now, int rows0, int rows1, int n_pairs)
{
    const uint32_t shape = (uint32_t)(rows0 | rows1 << 8 | n_pairs << 16);
    struct tile_config c = {.palette = 1};
    if (*now == shape)
        return;
    *now = shape;
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = (uint8_t)rows0;
    }
    c.row_bytes[4] = c.row_bytes[5] = (uint16_t)(4 * n_pairs);
    c.rows[6] = c.rows[7] = (uint8_t)n_pairs;
    if (rows1 > 0)
        c.rows[2] = c.rows[3] = c.rows[5] = (uint8_t)rows1;
    tile_configure(&c);
}

/* Vector v of the first segment, and where the same of later tiles is. */
static inline const uint8_t *operand(const struct tile_product *m, int seg, int v)
{
    return m->tiles[seg * m->seg_tiles + v * m->v_tiles] + m->off + (size_t)v * m->v_bytes;
}

static inline void fetch_later(const struct tile_product *m, int seg, int v, int step)
{
    const uint8_t *p = m->tiles[seg * m->seg_tiles + v * m->v_tiles + SL_ATTN_AHEAD] + m->off +
                       (size_t)v * m->v_bytes + (size_t)step * STEP_BYTES;
    for (int r = 0; r < m->n_pairs; r++)
        __builtin_prefetch(p + r * m->b_row, 0, 2);
}

/* Two query tiles times one or two vectors. */
static void attn_2x2(const struct tile_product *m, int n_v)
{
    const long ld_a = (long)m->ld_a * 2, ld_c = (long)m->ld_c * 4, b_row = m->b_row;
    const uint16_t *a0 = m->a, *a1 = a0 + TILE_ROWS * m->ld_a;
    float *c0 = m->c, *c1 = c0 + TILE_ROWS * m->ld_c;
    const bool two = n_v > 1;
    if (m->first) {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    } else {
        tile_load(0, c0, ld_c);
        tile_load(2, c1, ld_c);
        if (two) {
            tile_load(1, c0 + 16, ld_c);
            tile_load(3, c1 + 16, ld_c);
        }
    }
    for (int s = 0; s < m->n_seg; s++) {
        const uint8_t *b0 = operand(m, s, 0), *b1 = two ? operand(m, s, 1) : b0;
        for (int i = 0; i < m->n_steps; i++) {
            const size_t at = (size_t)i * STEP_BYTES;
            for (int v = 0; m->ahead && v < n_v; v++)
                fetch_later(m, s, v, i);
            tile_load(6, b0 + at, b_row);
            tile_load(4, a0, ld_a);
            tile_dot_bf16(0, 4, 6);
            if (two) {
                tile_load(7, b1 + at, b_row);
                tile_dot_bf16(1, 4, 7);
            }
            tile_load(5, a1, ld_a);
            tile_dot_bf16(2, 5, 6);
            if (two)
                tile_dot_bf16(3, 5, 7);
            a0 += 2 * m->n_pairs;
            a1 += 2 * m->n_pairs;
        }
    }
    tile_store(0, c0, ld_c);
    tile_store(2, c1, ld_c);
    if (two) {
        tile_store(1, c0 + 16, ld_c);
        tile_store(3, c1 + 16, ld_c);
    }
}

/* One query tile times one to four vectors. */
static void attn_1x4(const struct tile_product *m, int n_v)
{
    const long ld_a = (long)m->ld_a * 2, ld_c = (long)m->ld_c * 4, b_row = m->b_row;
    const uint16_t *a = m->a;
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    if (!m->first) {
        tile_load(0, m->c, ld_c);
        if (n_v > 1)
            tile_load(1, m->c + 16, ld_c);
        if (n_v > 2)
            tile_load(2, m->c + 32, ld_c);
        if (n_v > 3)
            tile_load(3, m->c + 48, ld_c);
    }
    for (int s = 0; s < m->n_seg; s++) {
        const uint8_t *b[4];
        for (int v = 0; v < 4; v++)
            b[v] = operand(m, s, v < n_v ? v : 0);
        for (int i = 0; i < m->n_steps; i++, a += 2 * m->n_pairs) {
            const size_t at = (size_t)i * STEP_BYTES;
            for (int v = 0; m->ahead && v < n_v; v++)
                fetch_later(m, s, v, i);
            tile_load(4, a, ld_a);
            tile_load(6, b[0] + at, b_row);
            tile_dot_bf16(0, 4, 6);
            if (n_v > 1) {
                tile_load(7, b[1] + at, b_row);
                tile_dot_bf16(1, 4, 7);
            }
            if (n_v > 2) {
                tile_load(6, b[2] + at, b_row);
                tile_dot_bf16(2, 4, 6);
            }
            if (n_v > 3) {
                tile_load(7, b[3] + at, b_row);
                tile_dot_bf16(3, 4, 7);
            }
        }
    }
    tile_store(0, m->c, ld_c);
    if (n_v > 1)
        tile_store(1, m->c + 16, ld_c);
    if (n_v > 2)
        tile_store(2, m->c + 32, ld_c);
    if (n_v > 3)
        tile_store(3, m->c + 48, ld_c);
}

/* Queries [q, q + n) against vectors [v, v + n_v): one or two row tiles. */
static void attn_part(const struct tile_product *m, int q, int n, int v, int n_v)
{
    struct tile_product part = *m;
    part.tiles += v * m->v_tiles;
    part.off += (size_t)v * m->v_bytes;
    part.a += q * m->ld_a;
    part.c += q * m->ld_c + 16 * v;
    part.ahead = m->ahead && q == 0;
    if (n > TILE_ROWS)
        attn_2x2(&part, n_v);
    else
        attn_1x4(&part, n_v);
}

/* Whole pairs of row tiles, then what is left: two configurations at most. Vectors go outside, so
 * that the queries and a few of them stay in L1. */
static void attn_all(const struct tile_product *m, int n_q, int n_v)
{
    const int full = n_q / (2 * TILE_ROWS) * (2 * TILE_ROWS), rest = n_q - full;
    tile_fence();
    if (full > 0) {
        attn_configure(m->shape, TILE_ROWS, TILE_ROWS, m->n_pairs);
        for (int v = 0; v < n_v; v += 2)
            for (int q = 0; q < full; q += 2 * TILE_ROWS)
                attn_part(m, q, 2 * TILE_ROWS, v, SL_MIN(n_v - v, 2));
    }
    if (rest > 0) {
        const int width = rest > TILE_ROWS ? 2 : 4;
        attn_configure(m->shape, SL_MIN(rest, TILE_ROWS), SL_MAX(rest - TILE_ROWS, 0), m->n_pairs);
        for (int v = 0; v < n_v; v += width)
            attn_part(m, full, rest, v, SL_MIN(n_v - v, width));
    }
    tile_fence();
}

static void attn_end(uint32_t *shape)
{
    if (*shape != 0)
        tile_release();
    *shape = 0;
}

/* dim is a multiple of 32 here, and so is where a tile of K ends. */
static void tile_scores_of(const uint8_t *const *tiles, int n, int dim, const uint16_t *query,
                           int n_q, float *score, bool ahead, uint32_t *shape)
{
    struct tile_product m = {.tiles = tiles,
                             .n_seg = 1,
                             .v_tiles = 1,
                             .n_steps = dim / (2 * K_PAIRS),
                             .n_pairs = K_PAIRS,
                             .b_row = 64,
                             .ahead = ahead,
                             .first = true,
                             .a = query,
                             .ld_a = dim,
                             .c = score,
                             .ld_c = SL_CPU_SPLIT,
                             .shape = shape};
    attn_all(&m, n_q, n);
}

static void tile_values_of(const uint8_t *const *tiles, int n, int dim, const uint16_t *p, int n_q,
                           float *o, bool ahead, uint32_t *shape)
{
    struct tile_product m = {.tiles = tiles,
                             .n_seg = n,
                             .seg_tiles = 1,
                             .n_steps = 1,
                             .n_pairs = V_PAIRS,
                             .v_bytes = 64,
                             .b_row = (long)dim * 4,
                             .ahead = ahead,
                             .a = p,
                             .ld_a = SL_CPU_SPLIT,
                             .c = o,
                             .ld_c = dim,
                             .shape = shape};
    attn_all(&m, n_q, dim / 16);
}

/* ---------------------------------------------------------------- pages to BF16 operands */

/* [dim / 2, 16, 2] of K or [8, dim, 2] of V; K's dimensions are followed by zeros up to a whole
 * step. ahead is a tile that will be wanted soon. */
typedef void expand_fn(const uint8_t *tile, const uint8_t *ahead, int dim, uint8_t *out);

static void pad_k(uint8_t *out, int dim)
{
    memset(out + dim * 32, 0, (size_t)(SL_ATTN_LD16(dim) - dim) * 32);
}

static void copy_k(const uint8_t *tile, const uint8_t *ahead, int dim, uint8_t *out)
{
    for (int i = 0; i < dim * 32; i += 64)
        __builtin_prefetch(ahead + i, 0, 2);
    memcpy(out, tile, (size_t)dim * 32);
    pad_k(out, dim);
}

/* Sixteen pairs of codes times the scale of each: pairs of BF16 in the same order. */
static inline void round_codes(const uint8_t *codes, __m512 scale_low, __m512 scale_high, void *out)
{
    __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)codes));
    __m512i high =
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(codes + 16)));
    __m512bh r = _mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_cvtepi32_ps(high), scale_high),
                                     _mm512_mul_ps(_mm512_cvtepi32_ps(low), scale_low));
    _mm512_storeu_si512(out, (__m512i)r);
}

static void round_k(const uint8_t *tile, const uint8_t *ahead, int dim, uint8_t *out)
{
    const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i high =
        _mm512_setr_epi32(8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15);
    const uint8_t *scales = tile + SL_KV_TILE * dim;
    for (int b = 0; b * SL_KV_SCALE < dim; b++, scales += 2 * SL_KV_TILE) {
        int from = b * SL_KV_SCALE / 2, to = SL_MIN(from + SL_KV_SCALE / 2, dim / 2);
        __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)scales));
        __m512 scale_low = _mm512_permutexvar_ps(low, d);
        __m512 scale_high = _mm512_permutexvar_ps(high, d);
        __builtin_prefetch(ahead + (scales - tile), 0, 2);
        for (int i = from; i < to; i++) {
            if (i % 2 == 0)
                __builtin_prefetch(ahead + 32 * i, 0, 2);
            round_codes(tile + 32 * i, scale_low, scale_high, out + 64 * i);
        }
    }
    pad_k(out, dim);
}

static void round_v(const uint8_t *tile, const uint8_t *ahead, int dim, uint8_t *out)
{
    const uint8_t *scales = tile + SL_KV_TILE * dim;
    for (int b = 0; b * SL_KV_SCALE < dim; b++, scales += 2 * SL_KV_TILE) {
        int n = SL_MIN(SL_KV_SCALE, dim - b * SL_KV_SCALE);
        __builtin_prefetch(ahead + (scales - tile), 0, 2);
        for (int i = 0; i < SL_KV_TILE / 2; i++) {
            int32_t pair; /* the scales of the two positions */
            memcpy(&pair, scales + 4 * i, sizeof pair);
            __m512 d = _mm512_cvtph_ps(_mm256_set1_epi32(pair));
            int at = i * dim + b * SL_KV_SCALE;
            __builtin_prefetch(ahead + 2 * at, 0, 2);
            round_codes(tile + 2 * at, d, d, out + 4 * at);
            if (n == SL_KV_SCALE)
                round_codes(tile + 2 * at + 32, d, d, out + 4 * at + 64);
        }
    }
}

/* Tiles expanded at a time: few queries find them in L1 and many keep their sums longer. */
static int expanded(const struct sl_attn_tiles *t, int n_q, size_t bytes)
{
    const size_t room = sizeof(float) * SL_ATTN_GROUP * SL_KV_TILE * SL_MAX_HEAD_DIM / bytes;
    return n_q <= TILE_ROWS || room < (size_t)t->n ? SL_ATTN_GROUP : t->n;
}

static int expand(expand_fn *fn, const struct sl_attn_tiles *t, int from, int n, size_t bytes,
                  const uint8_t **out)
{
    n = SL_MIN(n, t->n - from);
    for (int i = 0; i < n; i++) {
        uint8_t *at = (uint8_t *)t->scratch + (size_t)i * bytes;
        fn(t->tiles[from + i], t->tiles[from + i + SL_ATTN_AHEAD], t->dim, at);
        out[i] = at;
    }
    return n;
}

static void scores_expanded(expand_fn *fn, const struct sl_attn_tiles *t, const uint16_t *query,
                            int n_q, float *score)
{
    const uint8_t *tiles[SL_ATTN_TILES];
    const int dim = SL_ATTN_LD16(t->dim);
    const size_t bytes = (size_t)(SL_KV_TILE * dim) * 2;
    const int most = expanded(t, n_q, bytes);
    for (int i = 0, n; i < t->n; i += n) {
        n = expand(fn, t, i, most, bytes, tiles);
        tile_scores_of(tiles, n, dim, query, n_q, score + i * SL_KV_TILE, false, t->shape);
    }
}

/* ---------------------------------------------------------------- the table */

static void tile_scores_bf16(const struct sl_attn_tiles *t, const void *query, int n_q,
                             float *score)
{
    if (t->dim % (2 * K_PAIRS) == 0)
        tile_scores_of(t->tiles, t->n, t->dim, query, n_q, score, true, t->shape);
    else
        scores_expanded(copy_k, t, query, n_q, score);
}

/* Few queries take the values by groups of tiles, so that the later dimensions are asked for in
 * time. */
static void tile_values_bf16(const struct sl_attn_tiles *t, const void *p, int n_q, float *o)
{
    int group = n_q <= TILE_ROWS ? SL_ATTN_GROUP : t->n;
    for (int i = 0; i < t->n; i += group)
        tile_values_of(t->tiles + i, SL_MIN(group, t->n - i), t->dim,
                       (const uint16_t *)p + i * SL_KV_TILE, n_q, o, true, t->shape);
}

static void tile_scores_q8(const struct sl_attn_tiles *t, const void *query, int n_q, float *score)
{
    scores_expanded(round_k, t, query, n_q, score);
}

static void tile_values_q8(const struct sl_attn_tiles *t, const void *p, int n_q, float *o)
{
    const uint8_t *tiles[SL_ATTN_TILES];
    const size_t bytes = (size_t)(SL_KV_TILE * t->dim) * 2;
    const int most = expanded(t, n_q, bytes);
    for (int i = 0, n; i < t->n; i += n) {
        n = expand(round_v, t, i, most, bytes, tiles);
        tile_values_of(tiles, n, t->dim, (const uint16_t *)p + i * SL_KV_TILE, n_q, o, false,
                       t->shape);
    }
}

static void fill_attn_tiles(struct sl_attn_kernels *k)
{
    k->end = attn_end;
    k->scores[SL_DTYPE_BF16] = tile_scores_bf16;
    k->values[SL_DTYPE_BF16] = tile_values_bf16;
    k->scores[SL_DTYPE_Q8_0] = tile_scores_q8;
    k->values[SL_DTYPE_Q8_0] = tile_values_q8;
    k->query16[SL_DTYPE_BF16] = k->query16[SL_DTYPE_Q8_0] = true;
    k->p16[SL_DTYPE_BF16] = k->p16[SL_DTYPE_Q8_0] = true;
    k->name[SL_DTYPE_BF16] = k->name[SL_DTYPE_Q8_0] = "bf16-amx";
}
