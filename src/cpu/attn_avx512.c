/* SPDX-License-Identifier: MIT
 * The float route of attention for AVX-512 F, BW, VL, DQ.
 */
#include "base/check.h"
#include "cpu/attn.h"
#include "cpu/vec_avx512.h"
#include "quant/float.h"

#define MAX_Q    8
#define MAX_V    4
#define WIDE_Q   6 /* 6 x 4 sums, four vectors, a query: 29 of 32 registers */
#define WIDE_V   4
#define NARROW_V 2 /* 8 x 2 sums, two pairs of vectors */
#define load_f16 v_load_f16

/* Sixteen pairs of numbers: the first of each to x, the second to y. */
static inline void load_f16_pair(const uint8_t *p, v16 *x, v16 *y)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd =
        _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    v16 a = v_load_f16(p), b = v_load_f16(p + 32);
    *x = _mm512_permutex2var_ps(a, even, b);
    *y = _mm512_permutex2var_ps(a, odd, b);
}

static inline void load_bf16_pair(const uint8_t *p, v16 *x, v16 *y)
{
    __m512i w = _mm512_loadu_si512(p);
    *x = v_from_bits(vi_sll(w, 16));
    *y = v_from_bits(vi_and(w, vi_set1((int32_t)0xFFFF0000u)));
}

static inline void load_code_pair(const uint8_t *p, v16 *x, v16 *y)
{
    __m512i w = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    *x = v_from_int(_mm512_srai_epi32(_mm512_slli_epi32(w, 24), 24));
    *y = v_from_int(_mm512_srai_epi32(w, 8));
}

#include "cpu/attn_tmpl.c"

#include "cpu/attn_fp8_tmpl.c"

void sl_attn_kernels_avx512(struct sl_attn_kernels *k)
{
    fill_attn(k);
    k->widen_fp8 = widen_fp8;
}
