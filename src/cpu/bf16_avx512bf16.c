/* SPDX-License-Identifier: MIT
 * bf16_avx512bf16.c - BF16 products by VDPBF16PS.
 *
 * One chain per output over the pairs of columns in ascending order, from zero. The instruction
 * adds the product of the odd column to the sum, rounds, adds that of the even column, rounds; both
 * to nearest even, subnormal operands and results taken as zero. tests/ops/test_bf16.c holds the
 * same in C. The sixteen rows of a panel are the lanes of a register.
 */
#include "cpu/bf16.h"

#include "base/check.h"
#include "cpu/vec_avx512.h"

#include <string.h>

#define TILE_TOKENS 6  /* times four panels: 24 sums of 32 registers */
#define BLOCK_PAIRS 64 /* of four panels: 16 KiB, which stay in the L1 cache for all tokens */
#define AHEAD       4  /* pairs of each panel fetched ahead; more was slower on Zen 4 */
#define LD_ACC      (SL_BF16_PANELS * SL_BF16_PANEL)

static void round_bf16(const float *x, int64_t n, int64_t n_padded, uint16_t *out)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(void *)(out + i),
                            (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
    if (i < n) {
        __m256i last = (__m256i)_mm512_cvtneps_pbh(v_load_n(x + i, (int)(n - i)));
        _mm256_mask_storeu_epi16(out + i, mask_n((int)(n - i)), last);
    }
    memset(out + n, 0, (size_t)(n_padded - n) * sizeof *out);
}

/* Tokens one after the other. */
static void bf16_avx512bf16_place(const float *x, int64_t k, int t, int n_tok, uint16_t *block)
{
    const int64_t ld = SL_ROUND_UP(k, SL_BF16_K);
    (void)n_tok;
    round_bf16(x, k, ld, block + t * ld);
}

static inline __m512bh load_pairs(const uint8_t *p)
{
    return (__m512bh)_mm512_loadu_si512(p);
}

static inline __m512bh bf16_avx512bf16_spread_pair(const uint16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* Some pairs, at least one, of all panels, and the tokens from their first of these columns on. */
struct part {
    const uint8_t *w; /* pair 0 of panel 0 */
    size_t panel_bytes;
    int64_t n_pairs;
    const uint16_t *x;
    int64_t ld_x;
    const uint8_t *next; /* fetched meanwhile, a pair for a pair; NULL: nothing */
    bool first;          /* the sums start at zero */
};

/* np panels times nt tokens; between parts the sums wait in acc, which changes no bit. */
INLINE void tile(int np, int nt, bool fetch, const struct part *a, float *acc)
{
    const uint8_t *w = a->w;
    const uint16_t *x = a->x;
    size_t panel_bytes = a->panel_bytes;
    ptrdiff_t to_next = fetch ? a->next - w : 0;
    int64_t ld_x = a->ld_x;
    __mmask16 waiting = a->first ? 0 : 0xFFFF;
    v16 c[TILE_TOKENS][SL_BF16_PANELS];

    for (int t = 0; t < nt; t++)
        for (int p = 0; p < np; p++)
            c[t][p] = _mm512_maskz_loadu_ps(waiting, acc + t * LD_ACC + p * 16);
    const uint8_t *end = w + a->n_pairs * SL_BF16_PAIR;
    do {
        __m512bh b[SL_BF16_PANELS];
        for (int p = 0; p < np; p++) {
            b[p] = load_pairs(w + (size_t)p * panel_bytes);
            if (fetch)
                _mm_prefetch((const char *)w + to_next + (size_t)p * panel_bytes, _MM_HINT_T0);
        }
        for (int t = 0; t < nt; t++) {
            __m512bh y = bf16_avx512bf16_spread_pair(x + t * ld_x);
            for (int p = 0; p < np; p++)
                c[t][p] = _mm512_dpbf16_ps(c[t][p], y, b[p]);
        }
        w += SL_BF16_PAIR;
        x += 2;
    } while (w != end);
    for (int t = 0; t < nt; t++)
        for (int p = 0; p < np; p++)
            v_store(acc + t * LD_ACC + p * 16, c[t][p]);
}

#define TILES(np, fetch)            \
    switch (nt) {                   \
    case 1:                         \
        tile(np, 1, fetch, a, acc); \
        break;                      \
    case 2:                         \
        tile(np, 2, fetch, a, acc); \
        break;                      \
    case 3:                         \
        tile(np, 3, fetch, a, acc); \
        break;                      \
    case 4:                         \
        tile(np, 4, fetch, a, acc); \
        break;                      \
    case 5:                         \
        tile(np, 5, fetch, a, acc); \
        break;                      \
    default:                        \
        tile(np, 6, fetch, a, acc); \
        break;                      \
    }

static void few_panels(int np, int nt, const struct part *a, float *acc)
{
    if (np == 1) {
        TILES(1, false)
    } else if (np == 2) {
        TILES(2, false)
    } else {
        TILES(3, false)
    }
}

static void four_panels(int nt, const struct part *a, float *acc)
{
    if (a->next != NULL) {
        TILES(4, true)
    } else {
        TILES(4, false)
    }
}

static void bf16_avx512bf16_run_tile(int np, int nt, const struct part *a, float *acc)
{
    if (np == SL_BF16_PANELS)
        four_panels(nt, a, acc);
    else
        few_panels(np, nt, a, acc);
}

/* Weights are read once, so what counts is that they are always on their way: the last pairs fetch
 * the first ones of the panels behind these, which a caller is likely to want next. */
static void bf16_avx512bf16_stream(const struct part *whole, int np, int nt, float *acc)
{
    struct part a = *whole;
    int64_t n_last = SL_MIN(a.n_pairs, AHEAD);
    a.n_pairs -= n_last;
    a.next = a.w + AHEAD * SL_BF16_PAIR;
    if (a.n_pairs > 0)
        bf16_avx512bf16_run_tile(np, nt, &a, acc);
    a.w += a.n_pairs * SL_BF16_PAIR;
    a.x += a.n_pairs * 2;
    a.next = whole->w + (size_t)np * a.panel_bytes;
    a.first = whole->first && a.n_pairs == 0;
    a.n_pairs = n_last;
    bf16_avx512bf16_run_tile(np, nt, &a, acc);
}

/* Tile number i of n fetches its share of the n_pairs pairs from next on. */
static void fetch_share(const uint8_t *next, size_t panel_bytes, int np, int64_t n_pairs, int i,
                        int n)
{
    for (int64_t j = n_pairs * i / n; j < n_pairs * (i + 1) / n; j++)
        for (int p = 0; p < np; p++)
            _mm_prefetch((const char *)next + (size_t)p * panel_bytes + j * SL_BF16_PAIR,
                         _MM_HINT_T1);
}

static void bf16_avx512bf16_dot(const struct sl_bf16_part *b, float *acc)
{
    const int64_t ld_x = SL_ROUND_UP(b->k, SL_BF16_K), n_pairs = ld_x / 2;
    const int n_tok = b->n_tok;
    struct part a = {.panel_bytes = b->panel_bytes, .ld_x = ld_x};
    if (n_tok <= TILE_TOKENS) {
        a.w = b->panels;
        a.n_pairs = n_pairs;
        a.x = b->x;
        a.first = b->first;
        bf16_avx512bf16_stream(&a, b->n_panels, n_tok, acc);
        return;
    }
    int n_tiles = SL_CEIL_DIV(n_tok, TILE_TOKENS);
    for (int64_t i = 0; i < n_pairs; i += BLOCK_PAIRS) {
        int64_t n_next = SL_MIN(n_pairs - i - BLOCK_PAIRS, BLOCK_PAIRS);
        a.w = b->panels + i * SL_BF16_PAIR;
        a.n_pairs = SL_MIN(n_pairs - i, BLOCK_PAIRS);
        a.first = b->first && i == 0;
        for (int j = 0; j < n_tiles; j++) { /* tiles of about the same size */
            int t = n_tok * j / n_tiles, end = n_tok * (j + 1) / n_tiles;
            fetch_share(a.w + a.n_pairs * SL_BF16_PAIR, a.panel_bytes, b->n_panels, n_next, j,
                        n_tiles);
            a.x = b->x + t * ld_x + 2 * i;
            bf16_avx512bf16_run_tile(b->n_panels, end - t, &a, acc + t * LD_ACC);
        }
    }
}

void sl_bf16_kernels_avx512bf16(struct sl_bf16_kernels *k)
{
    *k = (struct sl_bf16_kernels){.name = "bf16-dot",
                                  .round = round_bf16,
                                  .place = bf16_avx512bf16_place,
                                  .dot = bf16_avx512bf16_dot};
}
