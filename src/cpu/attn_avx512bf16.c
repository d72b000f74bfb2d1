/* SPDX-License-Identifier: MIT
 * The BF16 route of attention for AVX512_BF16: a dot instruction adds two products to each of
 * sixteen sums. Pages of BF16 are its operands as they lie.
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

#define MAX_Q    8
#define MAX_V    4
#define WIDE_Q   6 /* 6 x 4 sums, four vectors, a query: 29 of 32 registers */
#define WIDE_V   4
#define NARROW_V 2

/* As in attn_tmpl.c, with pairs of 64 bytes. */
struct product {
    const uint8_t *const *tiles;
    int n_seg, seg_tiles, v_tiles, n_pairs;
    size_t off, v_bytes, step;
    bool ahead, first;
    const uint16_t *a; /* [n_q, ld_a] */
    int64_t ld_a;
    float *c; /* [n_q, ld_c] */
    int64_t ld_c;
};

INLINE __m512bh load_pairs(const uint8_t *p)
{
    return (__m512bh)_mm512_loadu_si512(p);
}

INLINE __m512bh repeat_pair(const uint16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* n_q and n_v are constants after inlining: that many sums stay in registers. */
INLINE void multiply(const int n_q, const int n_v, const struct product *m)
{
    __m512 sum[MAX_Q][MAX_V];
    for (int q = 0; q < n_q; q++)
        for (int v = 0; v < n_v; v++)
            sum[q][v] =
                m->first ? _mm512_setzero_ps() : _mm512_loadu_ps(m->c + q * m->ld_c + 16 * v);
    const uint16_t *a = m->a;
    for (int s = 0; s < m->n_seg; s++) {
        const uint8_t *b[MAX_V], *next[MAX_V];
        for (int v = 0; v < n_v; v++) {
            int at = s * m->seg_tiles + v * m->v_tiles;
            b[v] = m->tiles[at] + m->off + (size_t)v * m->v_bytes;
            next[v] = b[v];
            if (m->ahead)
                next[v] = m->tiles[at + SL_ATTN_AHEAD] + m->off + (size_t)v * m->v_bytes;
        }
        for (int i = 0; i < m->n_pairs; i++, a += 2) {
            size_t at = (size_t)i * m->step;
            __m512bh x[MAX_V];
            for (int v = 0; v < n_v; v++) {
                x[v] = load_pairs(b[v] + at);
                if (m->ahead)
                    __builtin_prefetch(next[v] + at, 0, 2);
            }
            for (int q = 0; q < n_q; q++) {
                __m512bh pair = repeat_pair(a + q * m->ld_a);
                for (int v = 0; v < n_v; v++)
                    sum[q][v] = _mm512_dpbf16_ps(sum[q][v], pair, x[v]);
            }
        }
    }
    for (int q = 0; q < n_q; q++)
        for (int v = 0; v < n_v; v++)
            _mm512_storeu_ps(m->c + q * m->ld_c + 16 * v, sum[q][v]);
}

INLINE void multiply_q(int n_q, const int n_v, const struct product *m)
{
    switch (n_q) {
    case 1:
        multiply(1, n_v, m);
        break;
    case 2:
        multiply(2, n_v, m);
        break;
    case 3:
        multiply(3, n_v, m);
        break;
    case 4:
        multiply(4, n_v, m);
        break;
    case 5:
        multiply(5, n_v, m);
        break;
    case 6:
        multiply(6, n_v, m);
        break;
    case 7:
        multiply(7, SL_MIN(n_v, NARROW_V), m);
        break;
    default:
        multiply(8, SL_MIN(n_v, NARROW_V), m);
        break;
    }
}

/* All queries against n_v (1, NARROW_V or WIDE_V) vectors; only the first pass is from memory. */
static void attn_avx512bf16_multiply_all(int n_q, int n_v, const struct product *m)
{
    struct product part = *m;
    int most = n_v == NARROW_V && n_q <= MAX_Q ? MAX_Q : WIDE_Q;
    for (int q = 0, n; q < n_q; q += n) {
        n = SL_MIN(n_q - q, most);
        part.a = m->a + q * m->ld_a;
        part.c = m->c + q * m->ld_c;
        if (n_v == WIDE_V)
            multiply_q(n, WIDE_V, &part);
        else if (n_v == NARROW_V)
            multiply_q(n, NARROW_V, &part);
        else
            multiply_q(n, 1, &part);
        part.ahead = false;
    }
}

static int attn_avx512bf16_pass_width(int n_q)
{
    return n_q > WIDE_Q && n_q <= MAX_Q ? NARROW_V : WIDE_V;
}

static void attn_avx512bf16_scores_of(const uint8_t *const *tiles, int n, int dim,
                                      const uint16_t *query, int n_q, float *score, bool ahead)
{
    struct product m = {.n_seg = 1,
                        .v_tiles = 1,
                        .n_pairs = dim / 2,
                        .step = 64,
                        .ahead = ahead,
                        .first = true,
                        .a = query,
                        .ld_a = SL_ATTN_LD16(dim),
                        .ld_c = SL_CPU_SPLIT};
    int width = attn_avx512bf16_pass_width(n_q);
    for (int i = 0, n_v; i < n; i += n_v) {
        n_v = n - i >= width ? width : 1;
        m.tiles = tiles + i;
        m.c = score + SL_KV_TILE * i;
        attn_avx512bf16_multiply_all(n_q, n_v, &m);
    }
}

static void attn_avx512bf16_values_of(const uint8_t *const *tiles, int n, int dim,
                                      const uint16_t *p, int n_q, float *o, bool ahead)
{
    struct product m = {.tiles = tiles,
                        .n_seg = n,
                        .seg_tiles = 1,
                        .n_pairs = SL_KV_TILE / 2,
                        .v_bytes = 64,
                        .step = (size_t)dim * 4,
                        .ahead = ahead,
                        .a = p,
                        .ld_a = SL_CPU_SPLIT,
                        .ld_c = dim};
    int width = attn_avx512bf16_pass_width(n_q);
    for (int d = 0, n_v; d < dim; d += 16 * n_v) {
        n_v = dim - d >= 16 * width ? width : 1;
        m.off = (size_t)d * 4;
        m.c = o + d;
        attn_avx512bf16_multiply_all(n_q, n_v, &m);
    }
}

/* ---------------------------------------------------------------- pages of BF16 */

static void scores_bf16(const struct sl_attn_tiles *t, const void *query, int n_q, float *score)
{
    attn_avx512bf16_scores_of(t->tiles, t->n, t->dim, query, n_q, score, true);
}

/* Few queries take the values by groups of tiles, so that the later dimensions are asked for in
 * time; many read them from L2 anyway and keep their sums longer. */
static void values_bf16(const struct sl_attn_tiles *t, const void *p, int n_q, float *o)
{
    int group = n_q <= MAX_Q ? SL_ATTN_GROUP : t->n;
    for (int i = 0; i < t->n; i += group)
        attn_avx512bf16_values_of(t->tiles + i, SL_MIN(group, t->n - i), t->dim,
                                  (const uint16_t *)p + i * SL_KV_TILE, n_q, o, true);
}

/* ---------------------------------------------------------------- the table */

static void attn_avx512bf16_narrow(const float *x, int n, uint16_t *out)
{
    for (int i = 0; i < n; i += 16) {
        __m256bh r = _mm512_cvtneps_pbh(_mm512_loadu_ps(x + i));
        _mm256_storeu_si256((__m256i *)(void *)(out + i), (__m256i)r);
    }
}

void sl_attn_kernels_avx512bf16(struct sl_attn_kernels *k)
{
    k->narrow = attn_avx512bf16_narrow;
    k->scores[SL_DTYPE_BF16] = scores_bf16;
    k->values[SL_DTYPE_BF16] = values_bf16;
    k->query16[SL_DTYPE_BF16] = k->p16[SL_DTYPE_BF16] = true;
    k->name[SL_DTYPE_BF16] = "bf16-dot";
    sl_attn_q8_avx512bf16(k);
}
