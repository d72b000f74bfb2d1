/* SPDX-License-Identifier: MIT
 * fp8_avx512bf16.c - FP8 products of few tokens by VDPBF16PS: codes are widened in registers, on
 * their way from memory. The chains are those of bf16_avx512bf16.c, so the bits are the same as by
 * way of its panels.
 *
 * 64 codes cost a dozen instructions and two products a token.
 */
#include "cpu/fp8.h"

#include "base/check.h"
#include "cpu/vec_avx512.h"
#include "cpu/vec_fp8_avx512.h"

#include <string.h>

#define TOKENS 4 /* times four panels: 16 sums of 32 registers, and seven constants */
#define LD_ACC (SL_BF16_PANELS * SL_BF16_PANEL)

static inline __m512bh fp8_avx512bf16_spread_pair(const uint16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* np panels times nt tokens; both are constants after inlining. */
INLINE void tile(int np, int nt, const struct sl_fp8_part *a, float *acc)
{
    v16 c[TOKENS][SL_BF16_PANELS];
    const uint16_t *x = a->x;
    for (int t = 0; t < nt; t++)
        for (int p = 0; p < np; p++)
            c[t][p] = _mm512_setzero_ps();
    for (int i = 0; i < a->n_cols / 4 * 64; i += 64, x += 4) {
        for (int p = 0; p < np; p++) {
            const struct fp8_pairs w = fp8_widen(a->group + (size_t)p * a->panel_bytes + i);
            _mm_prefetch((const char *)a->next + (size_t)p * a->panel_bytes + i, _MM_HINT_T0);
            for (int t = 0; t < nt; t++) {
                const uint16_t *y = x + t * a->n_cols;
                c[t][p] =
                    _mm512_dpbf16_ps(c[t][p], fp8_avx512bf16_spread_pair(y), (__m512bh)w.first);
                c[t][p] = _mm512_dpbf16_ps(c[t][p], fp8_avx512bf16_spread_pair(y + 2),
                                           (__m512bh)w.second);
            }
        }
    }
    for (int p = 0; p < np; p++) {
        const uint8_t *group = a->group + (size_t)p * a->panel_bytes;
        const v16 s = v_load(sl_fp8_scales(group));
        _mm_prefetch((const char *)a->next + (size_t)p * a->panel_bytes + SL_FP8_CODES,
                     _MM_HINT_T0);
        for (int t = 0; t < nt; t++) {
            float *at = acc + t * LD_ACC + p * SL_BF16_PANEL;
            v_store(at, v_fma(c[t][p], s, v_load(at)));
        }
    }
}

#define TILES(np)            \
    switch (a->n_tok) {      \
    case 1:                  \
        tile(np, 1, a, acc); \
        break;               \
    case 2:                  \
        tile(np, 2, a, acc); \
        break;               \
    case 3:                  \
        tile(np, 3, a, acc); \
        break;               \
    default:                 \
        tile(np, 4, a, acc); \
        break;               \
    }

static void fp8_avx512bf16_run_tile(const struct sl_fp8_part *a, float *acc)
{
    switch (a->n_panels) {
    case 1:
        TILES(1)
        break;
    case 2:
        TILES(2)
        break;
    case 3:
        TILES(3)
        break;
    default:
        TILES(4)
        break;
    }
}

/* More than TOKENS tokens widen again, from the L1 cache. */
static void fp8_avx512bf16_few(const struct sl_fp8_part *whole, float *acc)
{
    struct sl_fp8_part a = *whole;
    for (int t = 0; t < whole->n_tok; t += TOKENS) {
        a.n_tok = SL_MIN(whole->n_tok - t, TOKENS);
        a.x = whole->x + t * a.n_cols;
        fp8_avx512bf16_run_tile(&a, acc + t * LD_ACC);
    }
}

void sl_fp8_kernels_avx512bf16(struct sl_fp8_kernels *k)
{
    sl_fp8_kernels_avx512(k);
    k->name = "fp8-dot";
    k->few = fp8_avx512bf16_few;
}
