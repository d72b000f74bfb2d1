/* SPDX-License-Identifier: MIT
 * vec_fp8_avx512.h - 64 codes of FP8 E4M3 to BF16, in the order of fp8.h: two pairs of columns of a
 * panel. For AVX-512 F and BW.
 *
 * A code m = eeee fff (without its sign) is the BF16 number whose bits are 0x3C00 + 16 m: the bias
 * of the exponent is 120 more, the fraction four bits longer. Below 8 (a subnormal number of E4M3)
 * the eight values come from a table. Both halves of the numbers are made apart, a dozen
 * instructions with their interleaving.
 */
#ifndef SL_CPU_VEC_FP8_AVX512_H
#define SL_CPU_VEC_FP8_AVX512_H

#include <immintrin.h>
#include <stdint.h>

struct fp8_pairs {
    __m512i first, second;
};

static inline __m512i fp8_repeat8(uint64_t low)
{
    return _mm512_broadcast_i32x4(_mm_set_epi64x(0, (long long)low));
}

static inline struct fp8_pairs fp8_widen(const uint8_t *p)
{
    /* halves of m 2^-9, m < 8: 0, 3B00, 3B80, 3BC0, 3C00, 3C20, 3C40, 3C60 */
    const __m512i tiny_low = fp8_repeat8(0x60402000C0800000u);
    const __m512i tiny_high = fp8_repeat8(0x3C3C3C3C3B3B3B00u);
    const __m512i exponent = _mm512_set1_epi8(0x78), bias = _mm512_set1_epi8(0x3C);
    const __m512i upper = _mm512_set1_epi8((char)0xF0), seven = _mm512_set1_epi8(7);
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    __m512i c = _mm512_loadu_si512(p);
    __asm__("" : "+v"(c)); /* loaded once, not by every instruction that wants it */
    const __mmask64 tiny = _mm512_testn_epi8_mask(c, exponent);
    /* bits that come from the neighbouring byte are masked out */
    __m512i low = _mm512_and_si512(_mm512_slli_epi16(c, 4), upper);
    __m512i high = _mm512_and_si512(_mm512_srli_epi16(c, 4), seven);
    high = _mm512_add_epi8(high, bias);
    /* the shuffle takes the low four bits of an index, and zero where its sign is set */
    const __m512i m = _mm512_and_si512(c, seven);
    low = _mm512_mask_shuffle_epi8(low, tiny, tiny_low, m);
    high = _mm512_mask_shuffle_epi8(high, tiny, tiny_high, m);
    high = _mm512_ternarylogic_epi64(c, sign, high, 0xEA); /* (c & sign) | high */
    return (struct fp8_pairs){_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}

#endif
