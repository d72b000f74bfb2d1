/* SPDX-License-Identifier: MIT
 * The BF16 route of attention over pages of Q8_0 for AVX512_BF16. A code is a BF16 number as it is;
 * its scale is applied to the sum over its 32 dimensions (keys), or to the probability it is
 * multiplied with (values), so that nothing of a page is rounded.
 *
 * Few queries take the codes straight from the page, through registers. For many they are made
 * BF16 in L1 once.
 */
#include "base/check.h"
#include "cpu/attn.h"
#include "quant/float.h"

#include <immintrin.h>
#include <string.h>

#ifdef SL_DEBUG /* as in vec_avx512.h */
#define INLINE static __attribute__((noinline, unused))
#else
#define INLINE static inline __attribute__((always_inline))
#endif

#define MAX_Q 8 /* queries of a pass: 8 x 2 sums, two vectors, a pair */
#define MAX_V 2

/* The floats of codes have nothing in their lower halves: BF16 is what stands above. */
INLINE __m512i upper_halves(void)
{
    __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i four = _mm512_or_si512(_mm512_slli_epi32(lane, 2), _mm512_slli_epi32(lane, 18));
    return _mm512_add_epi32(four, _mm512_set1_epi32(1 | 3 << 16)); /* 1, 3, 5, ... */
}

/* Sixteen pairs as codes of 32 bytes, or as BF16 of 64. */
INLINE __m512bh load_pairs(const bool codes, const uint8_t *p)
{
    if (!codes)
        return (__m512bh)_mm512_loadu_si512(p);
    __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m512i high = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 16)));
    return (__m512bh)_mm512_permutex2var_epi16((__m512i)_mm512_cvtepi32_ps(low), upper_halves(),
                                               (__m512i)_mm512_cvtepi32_ps(high));
}

INLINE __m512bh repeat_pair(const uint16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

INLINE __m512 load_scales(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

/* ---------------------------------------------------------------- keys */

/* The tiles as they lie, and the same with their codes made BF16; what will be wanted next. */
struct keys {
    const uint8_t *tile[MAX_V], *wide[MAX_V], *next[MAX_V];
    int dim;
    const uint16_t *query;
    float *score;
};

/* n_q and n_v are constants after inlining: that many sums stay in registers. */
INLINE void score(const bool codes, const int n_q, const int n_v, const struct keys *m)
{
    const int ld = SL_ATTN_LD16(m->dim), scales_at = SL_KV_TILE * m->dim;
    for (int b = 0; b * SL_KV_SCALE < m->dim; b++) {
        const int from = b * SL_KV_SCALE / 2, to = SL_MIN(from + SL_KV_SCALE / 2, m->dim / 2);
        __m512 sum[MAX_Q][MAX_V];
        for (int q = 0; q < n_q; q++)
            for (int v = 0; v < n_v; v++)
                sum[q][v] = _mm512_setzero_ps();
        for (int i = from; i < to; i++) {
            __m512bh x[MAX_V];
            for (int v = 0; v < n_v; v++) {
                x[v] = load_pairs(codes, codes ? m->tile[v] + 32 * i : m->wide[v] + 64 * i);
                if (codes && i % 2 == 0)
                    __builtin_prefetch(m->next[v] + 32 * i, 0, 2);
            }
            for (int q = 0; q < n_q; q++) {
                __m512bh pair = repeat_pair(m->query + q * ld + 2 * i);
                for (int v = 0; v < n_v; v++)
                    sum[q][v] = _mm512_dpbf16_ps(sum[q][v], pair, x[v]);
            }
        }
        for (int v = 0; v < n_v; v++) {
            const int at = scales_at + b * SL_KV_TILE * 2;
            __m512 d = load_scales(m->tile[v] + at);
            if (codes)
                __builtin_prefetch(m->next[v] + at, 0, 2);
            for (int q = 0; q < n_q; q++) {
                float *s = m->score + q * SL_CPU_SPLIT + v * SL_KV_TILE;
                __m512 before = b == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(s);
                _mm512_storeu_ps(s, _mm512_fmadd_ps(sum[q][v], d, before));
            }
        }
    }
}

/* ---------------------------------------------------------------- values */

/* Up to 32 dimensions of some tiles. */
struct values {
    const uint8_t *const *tiles, *const *next; /* next is read of codes only */
    int n_tiles, dim;
    size_t off;        /* of the dimensions in a row of pairs: bytes of codes, or of BF16 */
    const uint16_t *p; /* probability times scale: [n_q, SL_CPU_SPLIT] */
    float *o;          /* [n_q, dim] */
};

INLINE void add_values(const bool codes, const int n_q, const int n_v, const struct values *m)
{
    const size_t row = (size_t)m->dim * (codes ? 2 : 4), v_bytes = codes ? 32 : 64;
    __m512 sum[MAX_Q][MAX_V];
    for (int q = 0; q < n_q; q++)
        for (int v = 0; v < n_v; v++)
            sum[q][v] = _mm512_loadu_ps(m->o + q * m->dim + 16 * v);
    const uint16_t *p = m->p;
    for (int t = 0; t < m->n_tiles; t++) {
        const uint8_t *tile = m->tiles[t] + m->off;
        const uint8_t *next = codes ? m->next[t] + m->off : tile;
        for (int i = 0; i < SL_KV_TILE / 2; i++, p += 2) {
            __m512bh x[MAX_V];
            for (int v = 0; v < n_v; v++)
                x[v] = load_pairs(codes, tile + (size_t)i * row + (size_t)v * v_bytes);
            if (codes)
                __builtin_prefetch(next + (size_t)i * row, 0, 2);
            for (int q = 0; q < n_q; q++) {
                __m512bh pair = repeat_pair(p + q * SL_CPU_SPLIT);
                for (int v = 0; v < n_v; v++)
                    sum[q][v] = _mm512_dpbf16_ps(sum[q][v], pair, x[v]);
            }
        }
    }
    for (int q = 0; q < n_q; q++)
        for (int v = 0; v < n_v; v++)
            _mm512_storeu_ps(m->o + q * m->dim + 16 * v, sum[q][v]);
}

/* ---------------------------------------------------------------- a function per shape */

typedef void score_fn(const struct keys *m);
typedef void values_fn(const struct values *m);

#define SHAPE(codes, n_q, n_v)                                         \
    static void score_##codes##_##n_q##_##n_v(const struct keys *m)    \
    {                                                                  \
        score(codes, n_q, n_v, m);                                     \
    }                                                                  \
    static void values_##codes##_##n_q##_##n_v(const struct values *m) \
    {                                                                  \
        add_values(codes, n_q, n_v, m);                                \
    }
#define SHAPES(codes, n_v) \
    SHAPE(codes, 1, n_v)   \
    SHAPE(codes, 2, n_v)   \
    SHAPE(codes, 3, n_v)   \
    SHAPE(codes, 4, n_v)   \
    SHAPE(codes, 5, n_v)   \
    SHAPE(codes, 6, n_v)   \
    SHAPE(codes, 7, n_v)   \
    SHAPE(codes, 8, n_v)
SHAPES(0, 1)
SHAPES(0, 2)
SHAPES(1, 1)
SHAPES(1, 2)

#define ROW(fn, codes, n_v)                                                         \
    {                                                                               \
        fn##_##codes##_1_##n_v, fn##_##codes##_2_##n_v, fn##_##codes##_3_##n_v,     \
            fn##_##codes##_4_##n_v, fn##_##codes##_5_##n_v, fn##_##codes##_6_##n_v, \
            fn##_##codes##_7_##n_v, fn##_##codes##_8_##n_v                          \
    }
static score_fn *const scores[2][2][MAX_Q] = {{ROW(score, 0, 1), ROW(score, 0, 2)},
                                              {ROW(score, 1, 1), ROW(score, 1, 2)}};
static values_fn *const values[2][2][MAX_Q] = {{ROW(values, 0, 1), ROW(values, 0, 2)},
                                               {ROW(values, 1, 1), ROW(values, 1, 2)}};

/* ---------------------------------------------------------------- a block of queries */

/* The codes of a tile to BF16, in the same order. */
static void attn_q8_avx512bf16_widen(const uint8_t *tile, const uint8_t *ahead, int dim,
                                     uint8_t *out)
{
    const int scales = SL_CEIL_DIV(dim, SL_KV_SCALE) * SL_KV_TILE * 2;
    for (int i = 0; i < dim / 2; i++) {
        _mm512_storeu_si512(out + 64 * i, (__m512i)load_pairs(true, tile + 32 * i));
        if (i % 2 == 0)
            __builtin_prefetch(ahead + 32 * i, 0, 2);
    }
    for (int i = 0; i < scales; i += 64)
        __builtin_prefetch(ahead + SL_KV_TILE * dim + i, 0, 2);
}

static const uint8_t *wide_tile(const struct sl_attn_tiles *t, int i)
{
    return (const uint8_t *)t->scratch + (size_t)i * (size_t)(SL_KV_TILE * t->dim) * 2;
}

static void widen_group(const struct sl_attn_tiles *t, int from, int n, const uint8_t **out)
{
    for (int i = 0; i < n; i++) {
        out[i] = wide_tile(t, i);
        attn_q8_avx512bf16_widen(t->tiles[from + i], t->tiles[from + i + SL_ATTN_AHEAD], t->dim,
                                 (uint8_t *)(uintptr_t)out[i]);
    }
}

static void attn_q8_avx512bf16_scores_q8(const struct sl_attn_tiles *t, const void *query, int n_q,
                                         float *score_out)
{
    const bool codes = n_q <= MAX_Q;
    const uint8_t *wide[SL_ATTN_GROUP];
    for (int i = 0, n_v; i < t->n; i += n_v) {
        const int in_group = i % SL_ATTN_GROUP;
        n_v = SL_MIN(t->n - i, MAX_V);
        if (!codes && in_group == 0)
            widen_group(t, i, SL_MIN(t->n - i, SL_ATTN_GROUP), wide);
        struct keys m = {.dim = t->dim};
        for (int v = 0; v < n_v; v++) {
            m.tile[v] = t->tiles[i + v];
            m.next[v] = t->tiles[i + v + SL_ATTN_AHEAD];
            m.wide[v] = codes ? m.tile[v] : wide[in_group + v];
        }
        for (int q = 0, n; q < n_q; q += n) {
            n = SL_MIN(n_q - q, MAX_Q);
            m.query = (const uint16_t *)query + q * SL_ATTN_LD16(t->dim);
            m.score = score_out + q * SL_CPU_SPLIT + i * SL_KV_TILE;
            scores[codes][n_v - 1][n - 1](&m);
        }
    }
}

/* Probabilities of n tiles times the scales of a block of dimensions, to BF16. */
static void scale_p(const uint8_t *const *tiles, int n, int scales_at, const float *p, int n_q,
                    uint16_t *out)
{
    for (int t = 0; t < n; t++) {
        const __m512 d = load_scales(tiles[t] + scales_at);
        for (int q = 0; q < n_q; q++) {
            const int at = q * SL_CPU_SPLIT + t * SL_KV_TILE;
            __m256bh r = _mm512_cvtneps_pbh(_mm512_mul_ps(_mm512_loadu_ps(p + at), d));
            _mm256_storeu_si256((__m256i *)(void *)(out + at), (__m256i)r);
        }
    }
}

static void values_group(const struct sl_attn_tiles *t, int from, int n, const float *p, int n_q,
                         float *o)
{
    const bool codes = n_q <= MAX_Q;
    const uint8_t *const *tiles = t->tiles + from, *wide[SL_ATTN_GROUP];
    uint16_t *scaled = (uint16_t *)(void *)((uint8_t *)(uintptr_t)wide_tile(t, SL_ATTN_GROUP));
    if (!codes)
        widen_group(t, from, n, wide);
    for (int b = 0; b * SL_KV_SCALE < t->dim; b++) {
        const int scales_at = SL_KV_TILE * t->dim + b * SL_KV_TILE * 2;
        const int n_v = SL_MIN((t->dim - b * SL_KV_SCALE) / 16, MAX_V);
        for (int i = 0; codes && i < n; i++)
            __builtin_prefetch(tiles[i + SL_ATTN_AHEAD] + scales_at, 0, 2);
        scale_p(tiles, n, scales_at, p, n_q, scaled);
        struct values m = {.tiles = codes ? tiles : wide,
                           .next = tiles + SL_ATTN_AHEAD,
                           .n_tiles = n,
                           .dim = t->dim,
                           .off = (size_t)(b * SL_KV_SCALE) * (codes ? 2 : 4)};
        for (int q = 0, n_rows; q < n_q; q += n_rows) {
            n_rows = SL_MIN(n_q - q, MAX_Q);
            m.p = scaled + q * SL_CPU_SPLIT;
            m.o = o + q * t->dim + b * SL_KV_SCALE;
            values[codes][n_v - 1][n_rows - 1](&m);
        }
    }
}

static void attn_q8_avx512bf16_values_q8(const struct sl_attn_tiles *t, const void *p, int n_q,
                                         float *o)
{
    for (int i = 0, n; i < t->n; i += n) {
        n = SL_MIN(SL_ATTN_GROUP, t->n - i);
        values_group(t, i, n, (const float *)p + i * SL_KV_TILE, n_q, o);
    }
}

void sl_attn_q8_avx512bf16(struct sl_attn_kernels *k)
{
    k->scores[SL_DTYPE_Q8_0] = attn_q8_avx512bf16_scores_q8;
    k->values[SL_DTYPE_Q8_0] = attn_q8_avx512bf16_values_q8;
    k->query16[SL_DTYPE_Q8_0] = true;
    k->name[SL_DTYPE_Q8_0] = "bf16-dot";
}
