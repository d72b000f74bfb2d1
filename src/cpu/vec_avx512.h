/* SPDX-License-Identifier: MIT
 * vec_avx512.h - the sixteen lanes of vec_c.h as one AVX-512 register.
 */
#ifndef SL_CPU_VEC_AVX512_H
#define SL_CPU_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

/* Kernels are written once per tile shape and become one function per shape by inlining. Debug and
 * sanitizer builds call instead: instrumented copies of everything would take minutes to compile.
 */
#ifdef SL_DEBUG
#define INLINE static __attribute__((noinline, unused))
#else
#define INLINE static inline __attribute__((always_inline))
#endif

#define v16  __m512
#define v16i __m512i

#define TILE_R 8 /* 24 accumulators of 32 registers; latency 4 at 2 a cycle needs 8 */
#define TILE_C 3

#define v_add             _mm512_add_ps
#define v_sub             _mm512_sub_ps
#define v_mul             _mm512_mul_ps
#define v_div             _mm512_div_ps
#define v_max             _mm512_max_ps
#define v_min             _mm512_min_ps
#define v_set1            _mm512_set1_ps
#define v_load            _mm512_loadu_ps
#define v_store           _mm512_storeu_ps
#define v_fma             _mm512_fmadd_ps
#define v_abs             _mm512_abs_ps
#define v_sqrt            _mm512_sqrt_ps
#define v_bits            _mm512_castps_si512
#define v_from_bits       _mm512_castsi512_ps
#define vi_set1           _mm512_set1_epi32
#define vi_add            _mm512_add_epi32
#define vi_sub            _mm512_sub_epi32
#define vi_half(a)        _mm512_srai_epi32((a), 1)
#define vi_to_exponent(a) _mm512_slli_epi32((a), 23)

static inline __mmask16 mask_n(int n)
{
    return (__mmask16)((1u << n) - 1u);
}

static inline v16 v_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(mask_n(n), p);
}

static inline void v_store_n(float *p, v16 a, int n)
{
    _mm512_mask_storeu_ps(p, mask_n(n), a);
}

static inline v16 v_fma_n(v16 a, v16 b, v16 c, int n)
{
    return _mm512_mask3_fmadd_ps(a, b, c, mask_n(n));
}

static inline v16 v_copysign(v16 a, v16 sign)
{
    /* 0xCA: the bit of the second where the first has a one, else of the third */
    __m512i top = _mm512_set1_epi32(INT32_MIN);
    return v_from_bits(_mm512_ternarylogic_epi32(top, v_bits(sign), v_bits(a), 0xCA));
}

static inline v16 v_select_lt(v16 x, v16 y, v16 a, v16 b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), b, a);
}

static inline float v_sum(v16 a)
{
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

static inline float v_hmax(v16 a)
{
    __m256 s8 = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

static inline v16 fold_pair8(v16 a, v16 b) /* lanes j and j + 8 of a, then of b */
{
    return v_add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
}

static inline v16 fold_pair4(v16 a, v16 b)
{
    return v_add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
}

/* Transposes while it adds: each level of the tree halves the number of registers. */
static inline void v_sum8(const float *p, float *out)
{
    v16 t0 = fold_pair8(v_load(p), v_load(p + 16)), t1 = fold_pair8(v_load(p + 32), v_load(p + 48));
    v16 t2 = fold_pair8(v_load(p + 64), v_load(p + 80));
    v16 t3 = fold_pair8(v_load(p + 96), v_load(p + 112));
    v16 u0 = fold_pair4(t0, t1), u1 = fold_pair4(t2, t3); /* vectors 0..3 and 4..7, 4 lanes each */
    v16 w = v_add(_mm512_shuffle_ps(u0, u1, 0x44), _mm512_shuffle_ps(u0, u1, 0xEE));
    v16 z = v_add(w, _mm512_shuffle_ps(w, w, 0xB1));
    __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm256_storeu_ps(out, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, z)));
}

/* ---------------------------------------------------------------- codes of weight formats */

#define v_load_f16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p)))
#define v_from_int    _mm512_cvtepi32_ps
#define vi_load_u8(p) _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define vi_load_s8(p) _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define vi_srl(a, n)  _mm512_srli_epi32((a), (n))
#define vi_sll(a, n)  _mm512_slli_epi32((a), (n))
#define vi_and        _mm512_and_si512
#define vi_or         _mm512_or_si512
#define vi_max        _mm512_max_epi32

static inline int32_t vi_hmax(v16i a)
{
    return _mm512_reduce_max_epi32(a);
}

/* A bit a lane: whether it is negative. */
static inline uint16_t vi_signs(v16i a)
{
    return _mm512_movepi32_mask(a);
}

/* n need not be a constant. */
static inline v16i vi_srl_by(v16i a, int n)
{
    return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n));
}

/* Byte i of each lane, as an unsigned number. */
static inline v16i vi_byte(v16i a, int i)
{
    return vi_and(vi_srl_by(a, 8 * i), _mm512_set1_epi32(255));
}

static inline v16 v_load_bf16(const uint8_t *p)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return v_from_bits(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* As f16 with four more bits of fraction each is 2^-8 of its value; a NaN is made one. */
static inline v16 v_load_fp8_e4m3(const uint8_t *p)
{
    __m256i w = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0x80)), 8);
    __m256i mag = _mm256_and_si256(w, _mm256_set1_epi16(0x7F));
    __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(mag, _mm256_set1_epi16(0x7F)),
                                   _mm256_set1_epi16(0x7E00));
    __m256i h = _mm256_or_si256(_mm256_or_si256(sign, nan), _mm256_slli_epi16(mag, 7));
    return v_mul(_mm512_cvtph_ps(h), v_set1(0x1p8f));
}

static inline void v_store_f16(uint8_t *p, v16 a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

/* Two f16 numbers d, m: lanes 0..7 = d, 8..15 = -m. */
static inline v16 v_load_d_dmin(const uint8_t *p)
{
    __m128 dm = _mm_cvtph_ps(_mm_loadu_si32(p));
    __m512i half = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    v16 v = _mm512_permutexvar_ps(half, _mm512_castps128_ps512(dm));
    return _mm512_mask_xor_ps(v, 0xFF00, v, _mm512_set1_ps(-0.0f));
}

/* A four-bit code c stands for (c - bias) * scale + offset, rounded once. There are only sixteen of
 * them: computed once per run of weights, then looked up by the instruction that reads the low four
 * bits of each index. */
struct codes {
    v16 table;
};

static inline struct codes codes_make(int bias, float scale, float offset)
{
    v16 c = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    c = v_sub(c, v_set1((float)bias));
    return (struct codes){v_fma(c, v_set1(scale), v_set1(offset))};
}

static inline v16 codes_get(struct codes t, v16i c)
{
    return _mm512_permutexvar_ps(c, t.table);
}

/* Five-bit codes: bit n of high is the fifth. */
struct codes5 {
    v16 low, high;
};

static inline struct codes5 codes5_make(float scale, float offset)
{
    return (struct codes5){codes_make(0, scale, offset).table,
                           codes_make(-16, scale, offset).table};
}

#define codes5_get(t, c, h, n)                                                                \
    _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps((c), (t).low),                           \
                               _mm512_test_epi32_mask((h), _mm512_set1_epi32(1 << (n))), (c), \
                               (t).high)

/* Six-bit codes, bits 0..3 of low and 4..5 of high (the other bits are anything), minus 32, times
 * scale. The code goes into the low bits of 2^23, from which subtraction gives it as a float. */
static inline v16 codes6_get(v16i low, v16i high, float scale)
{
    v16i magic = _mm512_set1_epi32(0x4B000000);
    v16i c =
        _mm512_ternarylogic_epi32(_mm512_set1_epi32(15), low, high, 0xCA); /* 15 ? low : high */
    c = _mm512_ternarylogic_epi32(c, _mm512_set1_epi32(63), magic, 0xEA);  /* (c & 63) | magic */
    return v_mul(v_sub(v_from_bits(c), v_set1(0x1p23f + 32)), v_set1(scale));
}

#endif
