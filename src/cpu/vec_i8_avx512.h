/* SPDX-License-Identifier: MIT
 * vec_i8_avx512.h - what i8_tmpl.c needs beyond vec_avx512.h: 64 bytes as one register, and dot
 * products of bytes with VNNI (I8_VNNI) or without.
 */
#ifndef SL_CPU_VEC_I8_AVX512_H
#define SL_CPU_VEC_I8_AVX512_H

#include "cpu/vec_avx512.h"

#define vi_load(p)        _mm512_load_si512((const void *)(p))
#define vi_loadu(p)       _mm512_loadu_si512((const void *)(p))
#define vi_store(p, a)    _mm512_store_si512((void *)(p), (a))
#define v_fnma            _mm512_fnmadd_ps
#define vi_round          _mm512_cvtps_epi32
#define vi_madd           _mm512_madd_epi16
#define vi_mullo          _mm512_mullo_epi32
#define vi_lookup         _mm512_shuffle_epi8 /* bytes below 16 in a table, four times the same */
#define vi_merge(a, m, b) _mm512_ternarylogic_epi32((a), (m), (b), 0xEA) /* a & m | b */
/* m's ones of a, m's zeros of b */
#define vi_select(m, a, b) _mm512_ternarylogic_epi32((m), (a), (b), 0xCA)

/* Sixteen bytes four times. */
static inline v16i vi_four(const uint8_t *p)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* As vectors of the compiler's: it and others disagree about the sign of the intrinsics' n. */
typedef uint16_t i8_words __attribute__((vector_size(64)));
typedef int16_t i8_signed_words __attribute__((vector_size(64)));
typedef int32_t i8_signed_dwords __attribute__((vector_size(64)));

static inline v16i vi_srl16(v16i a, int n)
{
    return (v16i)((i8_words)a >> (uint16_t)n);
}

static inline v16i vi_sll16(v16i a, int n)
{
    return (v16i)((i8_words)a << (uint16_t)n);
}

static inline v16i vi_sra(v16i a, int n)
{
    return (v16i)((i8_signed_dwords)a >> n);
}

static inline v16i vi_sra16(v16i a, int n)
{
    return (v16i)((i8_signed_words)a >> (int16_t)n);
}

/* A load that stays one: compilers prefer to give each use of it an operand in memory, which is as
 * many loads. */
static inline v16i vi_load_once(const void *p)
{
    v16i v = vi_loadu(p);
    __asm__("" : "+v"(v));
    return v;
}

static inline v16i vi_dword(const void *p) /* four bytes in every lane */
{
    return _mm512_set1_epi32(_mm_cvtsi128_si32(_mm_loadu_si32(p)));
}

static inline int32_t vi_sum(v16i a)
{
    return _mm512_reduce_add_epi32(a);
}

static inline void vi_store_s8(int8_t *p, v16i a)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(a));
}

#if I8_VNNI
/* Not the intrinsics: with them GCC 12 copies every sum of a tile around in each step of the loop,
 * at half the speed. */
static inline v16i dot_bytes(v16i acc, v16i codes, v16i x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(codes), "v"(x));
    return acc;
}
#endif

/* acc += of each lane's two s16 pairs, multiplied. */
static inline v16i vi_pairs(v16i acc, v16i a, v16i b)
{
#if I8_VNNI
    return _mm512_dpwssd_epi32(acc, a, b);
#else
    return vi_add(acc, _mm512_madd_epi16(a, b));
#endif
}

/* sub += products of four codes and four numbers, in each lane; at most `n_exact` of a format's
 * quads between two vi_scaled. */
static inline v16i vi_quad(v16i sub, v16i codes, v16i x)
{
#if I8_VNNI
    return dot_bytes(sub, codes, x);
#else
    return _mm512_add_epi16(sub, _mm512_maddubs_epi16(codes, x));
#endif
}

/* The same with four numbers of memory in every lane. */
static inline v16i vi_quad_at(v16i sub, v16i codes, const int8_t *x)
{
#if I8_VNNI
    __asm__("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(sub)
            : "v"(codes), "m"(*(const int8_t(*)[4])(const void *)x));
    return sub;
#else
    return vi_quad(sub, codes, vi_dword(x));
#endif
}

/* sum += sub * scale; the scale as vi_scale_even and _odd make it of a pair in each lane. */
static inline v16i vi_scaled(v16i sum, v16i sub, v16i scale)
{
#if I8_VNNI
    return vi_add(sum, _mm512_mullo_epi32(sub, scale));
#else
    return vi_add(sum, _mm512_madd_epi16(sub, scale));
#endif
}

static inline v16i vi_scale_even(v16i pair)
{
#if I8_VNNI
    return vi_sra(vi_sll(pair, 16), 16);
#else
    return vi_or(vi_and(pair, vi_set1(0xFFFF)), vi_sll(pair, 16));
#endif
}

static inline v16i vi_scale_odd(v16i pair)
{
#if I8_VNNI
    return vi_sra(pair, 16);
#else
    return vi_or(vi_srl(pair, 16), vi_and(pair, vi_set1((int32_t)0xFFFF0000u)));
#endif
}

/* Q8_0: sum += products of four codes + 128 and four numbers; for VNNI the 128 is taken off at the
 * end, the others take the sign to x: |code - 128| <= 127, so that two products fit 16 bits. */
static inline v16i vi_quad8(v16i sum, v16i codes, v16i x)
{
#if I8_VNNI
    return dot_bytes(sum, codes, x);
#else
    __mmask64 below = ~_mm512_movepi8_mask(codes);
    v16i c = _mm512_sub_epi8(codes, _mm512_set1_epi8(-128));
    x = _mm512_mask_sub_epi8(x, below, _mm512_setzero_si512(), x);
    v16i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(c), x);
    return vi_add(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
}

#define BYTES_P   4 /* panels and tokens of a register tile: formats with a code a byte */
#define BYTES_T   6
#define NIBBLES_P 2 /* the other formats */
#define NIBBLES_T 6
#define CHAINS    (I8_VNNI ? 4 : 1) /* latency 4 where one panel meets one token */

#endif
