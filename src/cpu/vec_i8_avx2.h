/* SPDX-License-Identifier: MIT
 * vec_i8_avx2.h - what i8_tmpl.c needs beyond vec_avx2.h: 64 bytes as two registers, rows 0..7 and
 * 8..15 of a panel.
 */
#ifndef SL_CPU_VEC_I8_AVX2_H
#define SL_CPU_VEC_I8_AVX2_H

#include "cpu/vec_avx2.h"

#define I8_VNNI 0

#define VI_UNARY(name, op)                      \
    static inline v16i name(v16i x, int n)      \
    {                                           \
        return VI_PAIR(op(x.a, n), op(x.b, n)); \
    }
VI_UNARY(vi_srl16, _mm256_srli_epi16)
VI_UNARY(vi_sll16, _mm256_slli_epi16)
VI_UNARY(vi_sra16, _mm256_srai_epi16)
VI_UNARY(vi_sra, _mm256_srai_epi32)
#undef VI_UNARY

#define VI_BINARY(name, op)                         \
    static inline v16i name(v16i x, v16i y)         \
    {                                               \
        return VI_PAIR(op(x.a, y.a), op(x.b, y.b)); \
    }
VI_BINARY(vi_max, _mm256_max_epi32)
VI_BINARY(vi_madd, _mm256_madd_epi16)
VI_BINARY(vi_mullo, _mm256_mullo_epi32)
VI_BINARY(vi_lookup, _mm256_shuffle_epi8) /* bytes below 16 in a table, four times the same */
#undef VI_BINARY

static inline v16i vi_loadu(const void *p)
{
    const __m256i *q = p;
    return VI_PAIR(_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1));
}
#define vi_load vi_loadu

/* Sixteen bytes four times. */
static inline v16i vi_four(const uint8_t *p)
{
    const __m256i v =
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
    return VI_PAIR(v, v);
}

static inline void vi_store(void *p, v16i x)
{
    _mm256_store_si256((__m256i *)p, x.a);
    _mm256_store_si256((__m256i *)p + 1, x.b);
}

static inline v16 v_fnma(v16 x, v16 y, v16 z)
{
    return V_PAIR(_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b));
}

static inline v16i vi_round(v16 x)
{
    return VI_PAIR(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
}

static inline v16i vi_merge(v16i x, v16i mask, v16i y) /* x & mask | y */
{
    return vi_or(vi_and(x, mask), y);
}

static inline v16i vi_select(v16i m, v16i x, v16i y) /* m's ones of x, m's zeros of y */
{
    return VI_PAIR(_mm256_blendv_epi8(y.a, x.a, m.a), _mm256_blendv_epi8(y.b, x.b, m.b));
}
#define vi_load_once vi_loadu

static inline v16i vi_dword(const void *p)
{
    __m256i r = _mm256_set1_epi32(_mm_cvtsi128_si32(_mm_loadu_si32(p)));
    return VI_PAIR(r, r);
}

static inline int32_t vi_hmax(v16i x)
{
    int32_t v[8], top = INT32_MIN;
    _mm256_storeu_si256((__m256i *)(void *)v, _mm256_max_epi32(x.a, x.b));
    for (int i = 0; i < 8; i++)
        top = v[i] > top ? v[i] : top;
    return top;
}

/* A bit a lane: whether it is negative. */
static inline uint16_t vi_signs(v16i x)
{
    const int a = _mm256_movemask_ps(_mm256_castsi256_ps(x.a));
    return (uint16_t)(a | _mm256_movemask_ps(_mm256_castsi256_ps(x.b)) << 8);
}

/* n need not be a constant. */
static inline v16i vi_srl_by(v16i x, int n)
{
    const __m128i by = _mm_cvtsi32_si128(n);
    return VI_PAIR(_mm256_srl_epi32(x.a, by), _mm256_srl_epi32(x.b, by));
}

/* Byte i of each lane, as an unsigned number. */
static inline v16i vi_byte(v16i x, int i)
{
    return vi_and(vi_srl_by(x, 8 * i), vi_set1(255));
}

static inline int32_t vi_sum(v16i x)
{
    int32_t v[8], sum = 0;
    _mm256_storeu_si256((__m256i *)(void *)v, _mm256_add_epi32(x.a, x.b));
    for (int i = 0; i < 8; i++)
        sum += v[i];
    return sum;
}

static inline void vi_store_s8(int8_t *p, v16i x)
{
    __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xD8);
    __m128i b = _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
    _mm_storeu_si128((__m128i *)(void *)p, b);
}

static inline v16i vi_pairs(v16i acc, v16i a, v16i b)
{
    return vi_add(acc, vi_madd(a, b));
}

static inline v16i vi_quad(v16i sub, v16i codes, v16i x)
{
    return VI_PAIR(_mm256_add_epi16(sub.a, _mm256_maddubs_epi16(codes.a, x.a)),
                   _mm256_add_epi16(sub.b, _mm256_maddubs_epi16(codes.b, x.b)));
}

static inline v16i vi_quad_at(v16i sub, v16i codes, const int8_t *x)
{
    return vi_quad(sub, codes, vi_dword(x));
}

static inline v16i vi_scaled(v16i sum, v16i sub, v16i scale)
{
    return vi_add(sum, vi_madd(sub, scale));
}

static inline v16i vi_scale_even(v16i pair)
{
    return vi_or(vi_and(pair, vi_set1(0xFFFF)), vi_sll(pair, 16));
}

static inline v16i vi_scale_odd(v16i pair)
{
    return vi_or(vi_srl(pair, 16), vi_and(pair, vi_set1((int32_t)0xFFFF0000u)));
}

/* The sign of a code goes to x: |code - 128| <= 127, so that two products fit 16 bits. */
static inline __m256i quad8(__m256i sum, __m256i codes, __m256i x)
{
    __m256i c = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(c), _mm256_sign_epi8(x, c));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

static inline v16i vi_quad8(v16i sum, v16i codes, v16i x)
{
    return VI_PAIR(quad8(sum.a, codes.a, x.a), quad8(sum.b, codes.b, x.b));
}

#define BYTES_P   1 /* panels and tokens of a register tile: formats with a code a byte */
#define BYTES_T   4
#define NIBBLES_P 1 /* the other formats */
#define NIBBLES_T 2
#define CHAINS    1

#endif
