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

/* ---------------------------------------------------------------- codes with levels */

/* What sixteen codes stand for, in the lower halves of words: sign and magnitude. */
INLINE __m512i kv4_codes(__m512i magnitudes)
{
    return _mm512_mask_or_epi32(magnitudes, 0xFF00, magnitudes, _mm512_set1_epi32(0x8000));
}

/* Times a scale, as BF16 in 32 bytes. */
INLINE __m256i kv4_scaled(__m512 levels, const uint8_t *scale)
{
    __m512i x = v_bits(v_mul(levels, v_set1(sl_f16_to_f32(sl_load_u16(scale)))));
    __m512i odd = vi_and(vi_srl(x, 16), vi_set1(1));
    x = vi_add(vi_add(x, vi_set1(0x7FFF)), odd);
    return _mm512_cvtepi32_epi16(vi_srl(x, 16));
}

/* The look-up takes the low five bits of an index, so both halves of a table of 32 are the same
 * sixteen numbers. */
static void widen_level_keys(__m512i codes, const uint8_t *tile, int dim, uint16_t *out)
{
    const __m512i table = _mm512_broadcast_i64x4(_mm512_cvtepi32_epi16(codes));
    for (int d = 0; d < dim; d += 8, tile += 64, out += 8 * SL_KV_TILE) {
        const __m512i w = _mm512_loadu_si512(tile);
        _mm512_storeu_si512(out, _mm512_permutexvar_epi16(w, table));
        _mm512_storeu_si512(out + 32, _mm512_permutexvar_epi16(_mm512_srli_epi32(w, 4), table));
        _mm512_storeu_si512(out + 64, _mm512_permutexvar_epi16(_mm512_srli_epi32(w, 8), table));
        _mm512_storeu_si512(out + 96, _mm512_permutexvar_epi16(_mm512_srli_epi32(w, 12), table));
    }
}

/* Of a pair of positions one's sixteen numbers are the lower half of the table, the other's the
 * upper one. */
static void widen_level_values(__m512i codes, const struct sl_attn_codes *t, uint16_t *out)
{
    const uint8_t *tile = t->codes, *scales = t->scales;
    const int dim = t->dim;
    const __m512 x = v_from_bits(vi_sll(codes, 16));
    const __m512i index = vi_set1(0x000F000F), second = vi_set1(0x00100000);
    for (int i = 0; i < SL_KV_TILE; i += 2) {
        const __m512i table =
            _mm512_inserti64x4(_mm512_castsi256_si512(kv4_scaled(x, scales + 2 * i)),
                               kv4_scaled(x, scales + 2 * i + 2), 1);
        for (int d = 0, n; d < dim; d += 4 * n, tile += 4 * n, out += 8 * n) {
            n = SL_MIN(16, (dim - d) / 4);
            const __mmask16 some = mask_n(n);
            const __m512i w = _mm512_maskz_loadu_epi32(some, tile);
            for (int j = 0; j < 4; j++) {
                /* 0xEA: (w and index) or second */
                const __m512i at = _mm512_ternarylogic_epi32(_mm512_srli_epi32(w, 4 * (unsigned)j),
                                                             index, second, 0xEA);
                _mm512_mask_storeu_epi32(out + 2 * n * j, some,
                                         _mm512_permutexvar_epi16(at, table));
            }
        }
    }
}

static void widen_levels(const struct sl_kv_codec *c, bool keys, const struct sl_attn_codes *t,
                         uint16_t *out)
{
    const __m128i levels = _mm_loadu_si128((const __m128i *)(const void *)c->levels->levels);
    const __m512i codes = kv4_codes(_mm512_cvtepu16_epi32(_mm256_broadcastsi128_si256(levels)));
    if (keys)
        widen_level_keys(codes, t->codes, t->dim, out);
    else
        widen_level_values(codes, t, out);
}

/* ---------------------------------------------------------------- other codes */

#define code_shift(words, n) _mm512_srli_epi32((words), (unsigned)(n))
/* Numbers of a table of sixteen, by the lowest four bits of codes. */
#define code_look(table, codes) _mm512_permutexvar_ps((codes), (table))

#include "cpu/attn_codes_tmpl.c"

void sl_attn_kernels_avx512(struct sl_attn_kernels *k)
{
    fill_attn(k);
    fill_codes(k);
}
