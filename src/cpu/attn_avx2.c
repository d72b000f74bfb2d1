/* SPDX-License-Identifier: MIT
 * The float route of attention for AVX2 with FMA and F16C.
 */
#include "base/check.h"
#include "cpu/attn.h"
#include "cpu/vec_avx2.h"
#include "quant/float.h"

#define MAX_Q    5 /* ten sums, four registers of two vectors, one of a query: 15 of 16 */
#define MAX_V    1
#define WIDE_Q   5
#define WIDE_V   1
#define NARROW_V 1
#define load_f16 v_load_f16

/* Eight pairs in two registers: firsts to x, seconds to y. */
static inline void split_pairs(__m256 a, __m256 b, __m256 *x, __m256 *y)
{
    __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)); /* 0 1 4 5 | 2 3 6 7 */
    __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xDD));
    *x = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xD8));
    *y = _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xD8));
}

/* Sixteen pairs of numbers: the first of each to x, the second to y. */
static inline void load_f16_pair(const uint8_t *p, v16 *x, v16 *y)
{
    split_pairs(_mm256_cvtph_ps(load_bytes16(p)), _mm256_cvtph_ps(load_bytes16(p + 16)), &x->a,
                &y->a);
    split_pairs(_mm256_cvtph_ps(load_bytes16(p + 32)), _mm256_cvtph_ps(load_bytes16(p + 48)), &x->b,
                &y->b);
}

static inline __m256i load_bytes32(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static inline void load_bf16_pair(const uint8_t *p, v16 *x, v16 *y)
{
    v16i w = {load_bytes32(p), load_bytes32(p + 32)};
    *x = v_from_bits(vi_sll(w, 16));
    *y = v_from_bits(vi_and(w, vi_set1((int32_t)0xFFFF0000u)));
}

static inline void load_code_pair(const uint8_t *p, v16 *x, v16 *y)
{
    __m256i a = _mm256_cvtepi16_epi32(load_bytes16(p));
    __m256i b = _mm256_cvtepi16_epi32(load_bytes16(p + 16));
    v16i first = {_mm256_srai_epi32(_mm256_slli_epi32(a, 24), 24),
                  _mm256_srai_epi32(_mm256_slli_epi32(b, 24), 24)};
    v16i second = {_mm256_srai_epi32(a, 8), _mm256_srai_epi32(b, 8)};
    *x = v_from_int(first);
    *y = v_from_int(second);
}

#include "cpu/attn_tmpl.c"

#include "cpu/attn_fp8_tmpl.c"

void sl_attn_kernels_avx2(struct sl_attn_kernels *k)
{
    fill_attn(k);
    k->widen_fp8 = widen_fp8;
}
