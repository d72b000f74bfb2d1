/* SPDX-License-Identifier: MIT
 * The kernels of coding.h; KERNELS and NAME name the table. The vectors do what the plain loops do,
 * bit for bit: a word goes to the first lane that wants one.
 */
#include "base/check.h"
#include "tier/coding.h"

#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#define MASK ((1u << SL_CODE_BITS) - 1)

#if defined(__AVX512F__)

static size_t code_rounds(struct sl_code_stream *s, uint8_t *out, size_t n)
{
    __m512i x[2] = {_mm512_loadu_si512(s->x), _mm512_loadu_si512(s->x + 16)};
    const __m512i mask = _mm512_set1_epi32(MASK), least = _mm512_set1_epi32(1 << 16);
    const uint8_t *at = s->at;
    size_t done = 0;
    SL_ASSERT(s->at <= s->end && s->table != NULL);
    for (; done < n && (size_t)(s->end - at) >= 2 * SL_CODE_LANES; done++) {
        for (int v = 0; v < 2; v++) {
            const __m512i e = _mm512_i32gather_epi32(_mm512_and_si512(x[v], mask), s->table, 4);
            const __m512i share = _mm512_and_si512(_mm512_srli_epi32(e, SL_CODE_BITS), mask);
            __m512i y = _mm512_mullo_epi32(share, _mm512_srli_epi32(x[v], SL_CODE_BITS));
            y = _mm512_add_epi32(y, _mm512_and_si512(e, mask));
            const __mmask16 want = _mm512_cmplt_epu32_mask(y, least);
            const __m512i words =
                _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)at));
            y = _mm512_mask_slli_epi32(y, want, y, 16);
            x[v] = _mm512_or_si512(y, _mm512_maskz_expand_epi32(want, words));
            at += 2 * __builtin_popcount(want);
            _mm_storeu_si128((__m128i *)(void *)(out + SL_CODE_LANES * done + 16 * (size_t)v),
                             _mm512_cvtepi32_epi8(_mm512_srli_epi32(e, 24)));
        }
    }
    _mm512_storeu_si512(s->x, x[0]);
    _mm512_storeu_si512(s->x + 16, x[1]);
    s->at = at;
    return done;
}

#elif defined(__AVX2__)

/* For each set of lanes that want a word, which of the next ones each gets. */
static void order_words(uint8_t order[256][8])
{
    for (int want = 0; want < 256; want++)
        for (int lane = 0, next = 0; lane < 8; lane++)
            order[want][lane] = (uint8_t)((want >> lane & 1) != 0 ? next++ : 0);
}

static inline __m256i decode_8(struct sl_code_stream *s, __m256i *x, const uint8_t order[256][8])
{
    const __m256i mask = _mm256_set1_epi32(MASK);
    const __m256i e =
        _mm256_i32gather_epi32((const int *)(const void *)s->table, _mm256_and_si256(*x, mask), 4);
    const __m256i share = _mm256_and_si256(_mm256_srli_epi32(e, SL_CODE_BITS), mask);
    __m256i y = _mm256_mullo_epi32(share, _mm256_srli_epi32(*x, SL_CODE_BITS));
    y = _mm256_add_epi32(y, _mm256_and_si256(e, mask));
    const __m256i wants = _mm256_cmpeq_epi32(_mm256_srli_epi32(y, 16), _mm256_setzero_si256());
    const int want = _mm256_movemask_ps(_mm256_castsi256_ps(wants));
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)s->at));
    const __m256i which =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)order[want]));
    words = _mm256_or_si256(_mm256_slli_epi32(y, 16), _mm256_permutevar8x32_epi32(words, which));
    *x = _mm256_blendv_epi8(y, words, wants);
    s->at += 2 * __builtin_popcount((unsigned)want);
    return _mm256_srli_epi32(e, 24);
}

static size_t code_rounds(struct sl_code_stream *s, uint8_t *out, size_t n)
{
    uint8_t order[256][8];
    __m256i x[4], b[4];
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    size_t done = 0;
    SL_ASSERT(s->at <= s->end && s->table != NULL);
    order_words(order);
    for (int v = 0; v < 4; v++)
        x[v] = _mm256_loadu_si256((const __m256i *)(const void *)(s->x + 8 * v));
    for (; done < n && (size_t)(s->end - s->at) >= 2 * SL_CODE_LANES; done++) {
        for (int v = 0; v < 4; v++)
            b[v] = decode_8(s, &x[v], order);
        const __m256i all =
            _mm256_packus_epi16(_mm256_packus_epi32(b[0], b[1]), _mm256_packus_epi32(b[2], b[3]));
        _mm256_storeu_si256((__m256i *)(void *)(out + SL_CODE_LANES * done),
                            _mm256_permutevar8x32_epi32(all, in_order));
    }
    for (int v = 0; v < 4; v++)
        _mm256_storeu_si256((__m256i *)(void *)(s->x + 8 * v), x[v]);
    return done;
}

#else

static size_t code_rounds(struct sl_code_stream *s, uint8_t *out, size_t n)
{
    size_t done = 0;
    SL_ASSERT(s->at <= s->end && s->table != NULL);
    for (; done < n && (size_t)(s->end - s->at) >= 2 * SL_CODE_LANES; done++) {
        for (int i = 0; i < SL_CODE_LANES; i++) {
            const uint32_t e = s->table[s->x[i] & MASK];
            uint32_t x = (e >> SL_CODE_BITS & MASK) * (s->x[i] >> SL_CODE_BITS) + (e & MASK);
            if (x < 1u << 16) {
                x = x << 16 | s->at[0] | (uint32_t)s->at[1] << 8;
                s->at += 2;
            }
            s->x[i] = x;
            out[SL_CODE_LANES * done + (size_t)i] = (uint8_t)(e >> 24);
        }
    }
    return done;
}

#endif

static void code_split(const uint8_t *restrict page, size_t n_words, int word,
                       uint8_t *restrict planes)
{
    uint8_t *restrict p1 = planes + n_words;
    SL_ASSERT(word == 1 || word == 2 || word == 4);
    if (word == 1)
        memcpy(planes, page, n_words);
    for (size_t i = 0; word == 2 && i < n_words; i++) {
        uint16_t x;
        memcpy(&x, page + 2 * i, sizeof x);
        x = (uint16_t)(x << 1 | x >> 15);
        planes[i] = (uint8_t)x;
        p1[i] = (uint8_t)(x >> 8);
    }
    for (size_t i = 0; word == 4 && i < n_words; i++) {
        uint32_t x;
        memcpy(&x, page + 4 * i, sizeof x);
        x = x << 1 | x >> 31;
        planes[i] = (uint8_t)x;
        p1[i] = (uint8_t)(x >> 8);
        planes[2 * n_words + i] = (uint8_t)(x >> 16);
        planes[3 * n_words + i] = (uint8_t)(x >> 24);
    }
}

static void code_merge(uint8_t *restrict page, size_t n_words, int word,
                       const uint8_t *const planes[4])
{
    const uint8_t *restrict p0 = planes[0], *restrict p1 = planes[1];
    SL_ASSERT(word == 1 || word == 2 || word == 4);
    if (word == 1)
        memcpy(page, p0, n_words);
    for (size_t i = 0; word == 2 && i < n_words; i++) {
        uint16_t x = (uint16_t)(p0[i] | p1[i] << 8);
        x = (uint16_t)(x >> 1 | x << 15);
        memcpy(page + 2 * i, &x, sizeof x);
    }
    const uint8_t *restrict p2 = planes[2], *restrict p3 = planes[3];
    for (size_t i = 0; word == 4 && i < n_words; i++) {
        uint32_t x = p0[i] | (uint32_t)p1[i] << 8 | (uint32_t)p2[i] << 16 | (uint32_t)p3[i] << 24;
        x = x >> 1 | x << 31;
        memcpy(page + 4 * i, &x, sizeof x);
    }
}

const struct sl_code_kernels KERNELS = {NAME, code_rounds, code_split, code_merge};
