/* SPDX-License-Identifier: MIT
 * fp8_avx512.c - what FP8 products need beside those of BF16, for AVX-512 F and BW.
 */
#include "cpu/fp8.h"
#include "cpu/vec_fp8_avx512.h"

static void fp8_avx512_widen(const uint8_t *group, const uint8_t *next, uint16_t *panel)
{
    for (int i = 0; i < SL_FP8_CODES; i += 64) {
        const struct fp8_pairs w = fp8_widen(group + i);
        _mm_prefetch((const char *)next + i, _MM_HINT_T0);
        _mm512_storeu_si512(panel + i, w.first);
        _mm512_storeu_si512(panel + i + 32, w.second);
    }
    _mm_prefetch((const char *)next + SL_FP8_CODES, _MM_HINT_T0);
}

static void add_scaled(const float *sum, const float *scales, int n_tok, float *acc)
{
    const __m512 s = _mm512_loadu_ps(scales);
    for (int t = 0; t < n_tok; t++, sum += SL_BF16_PANELS * 16, acc += SL_BF16_PANELS * 16)
        _mm512_storeu_ps(acc, _mm512_fmadd_ps(_mm512_loadu_ps(sum), s, _mm512_loadu_ps(acc)));
}

void sl_fp8_kernels_avx512(struct sl_fp8_kernels *k)
{
    *k = (struct sl_fp8_kernels){.widen = fp8_avx512_widen, .add_scaled = add_scaled};
}
