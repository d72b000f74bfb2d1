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

/* ---------------------------------------------------------------- codes with levels */

/* Magnitudes as BF16, for the lower halves of words and for the upper ones. */
struct kv4_tables {
    __m256i low, high;
};

/* Of eight words the codes from bit 4 j on and from 4 j + 16 on: a look-up takes the low three bits
 * of an index, and the sign is moved to where a BF16 number has it. */
INLINE __m256i kv4_pairs(struct kv4_tables t, __m256i w, int j)
{
    const __m256i sign = _mm256_set1_epi32((int32_t)0x80008000u);
    __m256i low = _mm256_permutevar8x32_epi32(t.low, _mm256_srli_epi32(w, 4 * j));
    __m256i high = _mm256_permutevar8x32_epi32(t.high, _mm256_srli_epi32(w, 4 * j + 16));
    __m256i signs = _mm256_and_si256(_mm256_slli_epi32(w, 12 - 4 * j), sign);
    return _mm256_or_si256(_mm256_or_si256(low, high), signs);
}

/* Magnitudes times a scale, as BF16 in the lower halves of words. */
INLINE __m256i kv4_magnitudes(__m256 levels, const uint8_t *scale)
{
    __m256i x = _mm256_castps_si256(
        _mm256_mul_ps(levels, _mm256_set1_ps(sl_f16_to_f32(sl_load_u16(scale)))));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
    x = _mm256_add_epi32(_mm256_add_epi32(x, _mm256_set1_epi32(0x7FFF)), odd);
    return _mm256_srli_epi32(x, 16);
}

static void widen_level_keys(__m256i levels, const uint8_t *tile, int dim, uint16_t *out)
{
    const struct kv4_tables t = {levels, _mm256_slli_epi32(levels, 16)};
    for (int i = 0; i < dim / 8 * SL_KV_TILE; i += 8) {
        const __m256i w = load_bytes32(tile + 4 * i);
        __m256i *to = (__m256i *)(void *)(out + i / SL_KV_TILE * 8 * SL_KV_TILE + 2 * (i % 16));
        for (int j = 0; j < 4; j++)
            _mm256_storeu_si256(to + 2 * j, kv4_pairs(t, w, j));
    }
}

static void widen_level_values(__m256i levels, const struct sl_attn_codes *t4, uint16_t *out)
{
    const uint8_t *tile = t4->codes, *scales = t4->scales;
    const int dim = t4->dim;
    const __m256 x = _mm256_castsi256_ps(_mm256_slli_epi32(levels, 16));
    for (int i = 0; i < SL_KV_TILE; i += 2) {
        const struct kv4_tables t = {kv4_magnitudes(x, scales + 2 * i),
                                     _mm256_slli_epi32(kv4_magnitudes(x, scales + 2 * i + 2), 16)};
        for (int d = 0, n; d < dim; d += 4 * n, tile += 4 * n) {
            n = SL_MIN(16, (dim - d) / 4);
            for (int l = 0; l < n; l += 8) {
                const __m256i some = mask_n(n - l);
                const __m256i w = _mm256_maskload_epi32((const int *)(const void *)tile + l, some);
                int *to = (int *)(void *)out + i / 2 * dim + d + l;
                if (n - l < 8)
                    for (int j = 0; j < 4; j++)
                        _mm256_maskstore_epi32(to + n * j, some, kv4_pairs(t, w, j));
                else /* a store with a mask takes long on some processors */
                    for (int j = 0; j < 4; j++)
                        _mm256_storeu_si256((__m256i *)(void *)(to + n * j), kv4_pairs(t, w, j));
            }
        }
    }
}

static void widen_levels(const struct sl_kv_codec *c, bool keys, const struct sl_attn_codes *t,
                         uint16_t *out)
{
    const __m256i levels = _mm256_cvtepu16_epi32(load_bytes16((const uint8_t *)c->levels->levels));
    if (keys)
        widen_level_keys(levels, t->codes, t->dim, out);
    else
        widen_level_values(levels, t, out);
}

/* ---------------------------------------------------------------- other codes */

#define code_shift vi_srl

/* Numbers of a table of sixteen, by the lowest four bits of codes. */
INLINE __m256 look_half(v16 table, __m256i codes)
{
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.a, codes),
                            _mm256_permutevar8x32_ps(table.b, codes),
                            _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
}

INLINE v16 code_look(v16 table, v16i codes)
{
    return (v16){look_half(table, codes.a), look_half(table, codes.b)};
}

#include "cpu/attn_codes_tmpl.c"

void sl_attn_kernels_avx2(struct sl_attn_kernels *k)
{
    fill_attn(k);
    fill_codes(k);
}
