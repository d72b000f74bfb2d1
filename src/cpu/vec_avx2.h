/* SPDX-License-Identifier: MIT
 * vec_avx2.h - the sixteen lanes of vec_c.h as two AVX registers: lanes 0..7 in a, 8..15 in b.
 */
#ifndef SL_CPU_VEC_AVX2_H
#define SL_CPU_VEC_AVX2_H

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

struct v16_avx2 {
    __m256 a, b;
};
struct v16i_avx2 {
    __m256i a, b;
};
#define v16  struct v16_avx2
#define v16i struct v16i_avx2

#define TILE_R 2 /* 12 of 16 registers hold sums */
#define TILE_C 3

#define V_PAIR(expr_a, expr_b) ((v16){(expr_a), (expr_b)})
#define V_BINARY(name, op)                         \
    static inline v16 name(v16 x, v16 y)           \
    {                                              \
        return V_PAIR(op(x.a, y.a), op(x.b, y.b)); \
    }
V_BINARY(v_add, _mm256_add_ps)
V_BINARY(v_sub, _mm256_sub_ps)
V_BINARY(v_mul, _mm256_mul_ps)
V_BINARY(v_div, _mm256_div_ps)
V_BINARY(v_max, _mm256_max_ps)
V_BINARY(v_min, _mm256_min_ps)
#undef V_BINARY

static inline __m256i mask_n(int n) /* all ones in lanes below n, n may be outside 0..8 */
{
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
}

static inline v16 v_set1(float x)
{
    __m256 r = _mm256_set1_ps(x);
    return V_PAIR(r, r);
}

static inline v16 v_load(const float *p)
{
    return V_PAIR(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}

static inline void v_store(float *p, v16 x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}

static inline v16 v_load_n(const float *p, int n)
{
    return V_PAIR(_mm256_maskload_ps(p, mask_n(n)), _mm256_maskload_ps(p + 8, mask_n(n - 8)));
}

static inline void v_store_n(float *p, v16 x, int n)
{
    _mm256_maskstore_ps(p, mask_n(n), x.a);
    _mm256_maskstore_ps(p + 8, mask_n(n - 8), x.b);
}

static inline v16 v_fma(v16 x, v16 y, v16 z)
{
    return V_PAIR(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}

static inline v16 v_fma_n(v16 x, v16 y, v16 z, int n)
{
    v16 r = v_fma(x, y, z);
    return V_PAIR(_mm256_blendv_ps(z.a, r.a, _mm256_castsi256_ps(mask_n(n))),
                  _mm256_blendv_ps(z.b, r.b, _mm256_castsi256_ps(mask_n(n - 8))));
}

static inline v16 v_abs(v16 x)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return V_PAIR(_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b));
}

static inline v16 v_sqrt(v16 x)
{
    return V_PAIR(_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b));
}

static inline v16 v_copysign(v16 x, v16 s)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return V_PAIR(_mm256_or_ps(_mm256_andnot_ps(sign, x.a), _mm256_and_ps(sign, s.a)),
                  _mm256_or_ps(_mm256_andnot_ps(sign, x.b), _mm256_and_ps(sign, s.b)));
}

static inline v16 v_select_lt(v16 x, v16 y, v16 p, v16 q)
{
    return V_PAIR(_mm256_blendv_ps(q.a, p.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
                  _mm256_blendv_ps(q.b, p.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)));
}

static inline v16i v_bits(v16 x)
{
    return (v16i){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)};
}

static inline v16 v_from_bits(v16i x)
{
    return V_PAIR(_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b));
}

static inline v16i vi_set1(int32_t x)
{
    __m256i r = _mm256_set1_epi32(x);
    return (v16i){r, r};
}

static inline v16i vi_add(v16i x, v16i y)
{
    return (v16i){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}

static inline v16i vi_sub(v16i x, v16i y)
{
    return (v16i){_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}

static inline v16i vi_half(v16i x)
{
    return (v16i){_mm256_srai_epi32(x.a, 1), _mm256_srai_epi32(x.b, 1)};
}

static inline v16i vi_to_exponent(v16i x)
{
    return (v16i){_mm256_slli_epi32(x.a, 23), _mm256_slli_epi32(x.b, 23)};
}

static inline float v_sum(v16 x)
{
    __m256 s8 = _mm256_add_ps(x.a, x.b);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

static inline float v_hmax(v16 x)
{
    __m256 s8 = _mm256_max_ps(x.a, x.b);
    __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

static inline __m256 fold8(const float *p)
{
    return _mm256_add_ps(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}

static inline __m256 fold_pair4(__m256 a, __m256 b) /* lanes j and j + 4 of a, then of b */
{
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

static inline __m256 fold_pair2(__m256 a, __m256 b)
{
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xEE));
}

/* Transposes while it adds: each level of the tree halves the number of registers. */
static inline void v_sum8(const float *p, float *out)
{
    __m256 t0 = fold_pair4(fold8(p), fold8(p + 16)), t1 = fold_pair4(fold8(p + 32), fold8(p + 48));
    __m256 t2 = fold_pair4(fold8(p + 64), fold8(p + 80));
    __m256 t3 = fold_pair4(fold8(p + 96), fold8(p + 112));
    __m256 u0 = fold_pair2(t0, t1), u1 = fold_pair2(t2, t3); /* 0, 2 | 1, 3 and 4, 6 | 5, 7 */
    __m256 z = _mm256_add_ps(_mm256_shuffle_ps(u0, u1, 0x88), _mm256_shuffle_ps(u0, u1, 0xDD));
    __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_ps(out, _mm256_permutevar8x32_ps(z, order));
}

/* ---------------------------------------------------------------- codes of weight formats */

#define VI_PAIR(expr_a, expr_b) ((v16i){(expr_a), (expr_b)})

static inline v16i vi_srl(v16i x, int n)
{
    return VI_PAIR(_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n));
}

static inline v16i vi_sll(v16i x, int n)
{
    return VI_PAIR(_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n));
}

static inline __m128i load_bytes8(const uint8_t *p)
{
    return _mm_loadl_epi64((const __m128i *)(const void *)p);
}

static inline __m128i load_bytes16(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

static inline v16 v_load_f16(const uint8_t *p)
{
    return V_PAIR(_mm256_cvtph_ps(load_bytes16(p)), _mm256_cvtph_ps(load_bytes16(p + 16)));
}

static inline v16 v_load_bf16(const uint8_t *p)
{
    __m256i a = _mm256_cvtepu16_epi32(load_bytes16(p));
    __m256i b = _mm256_cvtepu16_epi32(load_bytes16(p + 16));
    return v_from_bits(VI_PAIR(_mm256_slli_epi32(a, 16), _mm256_slli_epi32(b, 16)));
}

/* As f16 with four more bits of fraction each is 2^-8 of its value; a NaN is made one. */
static inline v16 v_load_fp8_e4m3(const uint8_t *p)
{
    __m256i w = _mm256_cvtepu8_epi16(load_bytes16(p));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0x80)), 8);
    __m256i mag = _mm256_and_si256(w, _mm256_set1_epi16(0x7F));
    __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(mag, _mm256_set1_epi16(0x7F)),
                                   _mm256_set1_epi16(0x7E00));
    __m256i h = _mm256_or_si256(_mm256_or_si256(sign, nan), _mm256_slli_epi16(mag, 7));
    v16 x = V_PAIR(_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                   _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)));
    return v_mul(x, v_set1(0x1p8f));
}

static inline void v_store_f16(uint8_t *p, v16 x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(void *)(p + 16), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

static inline v16 v_from_int(v16i x)
{
    return V_PAIR(_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b));
}

static inline v16i vi_load_u8(const uint8_t *p)
{
    return VI_PAIR(_mm256_cvtepu8_epi32(load_bytes8(p)), _mm256_cvtepu8_epi32(load_bytes8(p + 8)));
}

static inline v16i vi_load_s8(const uint8_t *p)
{
    return VI_PAIR(_mm256_cvtepi8_epi32(load_bytes8(p)), _mm256_cvtepi8_epi32(load_bytes8(p + 8)));
}

static inline v16i vi_and(v16i x, v16i y)
{
    return VI_PAIR(_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b));
}

static inline v16i vi_or(v16i x, v16i y)
{
    return VI_PAIR(_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b));
}

/* Two f16 numbers d, m: lanes 0..7 = d, 8..15 = -m. */
static inline v16 v_load_d_dmin(const uint8_t *p)
{
    __m128 dm = _mm_cvtph_ps(_mm_loadu_si32(p));
    __m256 m = _mm256_broadcastss_ps(_mm_movehdup_ps(dm));
    return V_PAIR(_mm256_broadcastss_ps(dm), _mm256_xor_ps(m, _mm256_set1_ps(-0.0f)));
}

/* A four-bit code c stands for (c - bias) * scale + offset, rounded once. */
struct codes {
    int bias;
    float scale, offset;
};

static inline struct codes codes_make(int bias, float scale, float offset)
{
    return (struct codes){bias, scale, offset};
}

static inline v16 codes_get(struct codes t, v16i c)
{
    v16i q = vi_sub(vi_and(c, vi_set1(15)), vi_set1(t.bias));
    return v_fma(v_from_int(q), v_set1(t.scale), v_set1(t.offset));
}

/* Five-bit codes: bit n of high is the fifth. */
#define codes5                     codes
#define codes5_make(scale, offset) codes_make(0, (scale), (offset))
#define codes5_get(t, c, h, n)                                                                   \
    v_fma(v_from_int(                                                                            \
              vi_or(vi_and((c), vi_set1(15)), vi_sll(vi_and(vi_srl((h), (n)), vi_set1(1)), 4))), \
          v_set1((t).scale), v_set1((t).offset))

/* Six-bit codes, bits 0..3 of low and 4..5 of high (the other bits are anything), minus 32, times
 * scale. */
static inline v16 codes6_get(v16i low, v16i high, float scale)
{
    v16i c = vi_or(vi_and(low, vi_set1(15)), vi_and(high, vi_set1(48)));
    return v_mul(v_from_int(vi_sub(c, vi_set1(32))), v_set1(scale));
}

#endif
