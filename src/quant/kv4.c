/* SPDX-License-Identifier: MIT */
#include "quant/kv4.h"

#include "base/check.h"
#include "base/limits.h"

#include <emmintrin.h>
#include <math.h>

#define CHUNK 16 /* numbers that a loop of constant length takes */

const struct sl_kv4 sl_kv4_turbo4 = {SL_KV4_TURBO4, 8}, sl_kv4_turbo3 = {SL_KV4_TURBO3, 4};

const struct sl_kv4 *sl_kv4_of(enum sl_dtype dtype)
{
    return dtype == SL_KV_TURBO4 ? &sl_kv4_turbo4 : dtype == SL_KV_TURBO3 ? &sl_kv4_turbo3 : NULL;
}

/* ---------------------------------------------------------------- codes */

/* The sum of squares of n numbers, with sixteen sums that are added in ascending order. */
static double sum_of_squares(const float *x, int n)
{
    double part[CHUNK] = {0}, sum = 0;
    for (int i = 0; i < n; i += CHUNK)
        for (int j = 0; j < CHUNK; j++)
            part[j] += (double)x[i + j] * (double)x[i + j];
    for (int j = 0; j < CHUNK; j++)
        sum += part[j];
    return sum;
}

/* Codes of sixteen numbers: how many of the borders between magnitudes they reach, and the sign. */
static void encode_chunk(const float *restrict x, const float *borders, int n_borders,
                         int32_t *restrict codes)
{
    for (int j = 0; j < CHUNK; j++)
        codes[j] = (int32_t)(sl_f32_bits(x[j]) >> 31) * SL_KV4_SIGN;
    for (int b = 0; b < n_borders; b++)
        for (int j = 0; j < CHUNK; j++)
            codes[j] += fabsf(x[j]) >= borders[b];
}

uint16_t sl_kv4_encode(const struct sl_kv4 *kv4, const float *x, int n, uint8_t *codes)
{
    float borders[SL_KV4_LEVELS - 1], levels[SL_KV4_LEVELS];
    SL_ASSERT(n > 0 && n % CHUNK == 0);
    const double power = sum_of_squares(x, n);
    memset(codes, 0, (size_t)n);
    if (!(power <= 1e300)) /* of finite floats it is less */
        return sl_f32_to_f16(NAN);
    const float unit = (float)sqrt(power / n);
    for (int i = 0; i < kv4->n; i++)
        levels[i] = sl_kv4_level(kv4, (uint8_t)i);
    for (int i = 0; i < kv4->n - 1; i++)
        borders[i] = (levels[i] + levels[i + 1]) * 0.5f * unit;
    if (unit == 0.0f)
        return 0;
    double of_codes = 0; /* exact: every square is a multiple of 2^-20 and less than 8 */
    for (int i = 0; i < n; i += CHUNK) {
        int32_t c[CHUNK];
        encode_chunk(x + i, borders, kv4->n - 1, c);
        for (int j = 0; j < CHUNK; j++) {
            const float level = levels[c[j] % SL_KV4_LEVELS];
            codes[i + j] = (uint8_t)c[j];
            of_codes += (double)(level * level);
        }
    }
    const float scale = (float)sqrt(power / of_codes);
    return sl_f32_to_f16(scale < 65504.0f ? scale : 65504.0f);
}

/* ---------------------------------------------------------------- rotation */

/* Signs of the numbers, a bit each: any fixed ones do, so long as no vector that models make is
 * alike (without them a vector of equal numbers would become one large number). */
static const uint32_t signs[SL_MAX_HEAD_DIM / 32] = {
    0x7B1DCDAF, 0xE220A839, 0xA1B965F4, 0x6E789E6A, 0x8009454F, 0x06C45D18, 0x724C81EC, 0xF88BB8A8,
    0x51A8749B, 0x1B39896A, 0x747EA2EA, 0x53CB9F0C, 0x1F4532E1, 0x2C829ABE, 0xC916AB3C, 0xC584133A,
    0x41C98AC3, 0x3EE57890, 0x368CB0A6, 0xF3B8488C, 0x3CB13D09, 0x657EECDD, 0x055BDEF6, 0xC2D326E0,
    0xE0BBDB7B, 0x8621A03F, 0x983AA92F, 0x8E1F7555, 0x00CC4D19, 0xB54E0F16, 0x971D80AB, 0x84BB3F97};

const uint32_t *sl_kv4_signs(void)
{
    return signs;
}

static void change_signs(float *x, int n)
{
    const __m128i bits = _mm_setr_epi32(1, 2, 4, 8), top = _mm_set1_epi32(INT32_MIN);
    for (int i = 0; i < n; i += 4) {
        const __m128i word = _mm_set1_epi32((int32_t)(signs[i / 32] >> i % 32));
        const __m128i mask = _mm_cmpeq_epi32(_mm_and_si128(word, bits), bits);
        _mm_storeu_ps(x + i,
                      _mm_xor_ps(_mm_loadu_ps(x + i), _mm_castsi128_ps(_mm_and_si128(mask, top))));
    }
}

/* The first two stages: sums and differences inside four numbers, times scale. */
static __m128 inside(__m128 x, __m128 scale)
{
    const __m128 odd = _mm_setr_ps(0.0f, -0.0f, 0.0f, -0.0f);
    const __m128 upper = _mm_setr_ps(0.0f, 0.0f, -0.0f, -0.0f);
    x = _mm_mul_ps(x, scale);
    x = _mm_add_ps(_mm_shuffle_ps(x, x, _MM_SHUFFLE(2, 3, 0, 1)), _mm_xor_ps(x, odd));
    return _mm_add_ps(_mm_shuffle_ps(x, x, _MM_SHUFFLE(1, 0, 3, 2)), _mm_xor_ps(x, upper));
}

/* n numbers, a power of two from 16 on, times the Hadamard matrix of Sylvester by 1 / sqrt(n): a
 * symmetric matrix that is its own inverse. */
static void hadamard(float *x, int n)
{
    const __m128 scale = _mm_set1_ps((float)(1.0 / sqrt((double)n)));
    for (int i = 0; i < n; i += 4)
        _mm_storeu_ps(x + i, inside(_mm_loadu_ps(x + i), scale));
    for (int h = 4; h < n; h *= 2)
        for (int i = 0; i < n; i += 2 * h)
            for (int j = i; j < i + h; j += 4) {
                const __m128 a = _mm_loadu_ps(x + j), b = _mm_loadu_ps(x + j + h);
                _mm_storeu_ps(x + j, _mm_add_ps(a, b));
                _mm_storeu_ps(x + j + h, _mm_sub_ps(a, b));
            }
}

static int power_of_two(int n)
{
    int p = CHUNK;
    while (p * 2 <= n)
        p *= 2;
    return p;
}

void sl_kv4_rotate(float *x, int n)
{
    SL_ASSERT(n >= CHUNK && n <= SL_MAX_HEAD_DIM && n % CHUNK == 0);
    const int p = power_of_two(n);
    change_signs(x, n);
    hadamard(x, p);
    if (p < n) /* the last p, of which more than half have been mixed with the first ones */
        hadamard(x + n - p, p);
}

void sl_kv4_rotate_back(float *x, int n)
{
    SL_ASSERT(n >= CHUNK && n <= SL_MAX_HEAD_DIM && n % CHUNK == 0);
    const int p = power_of_two(n);
    if (p < n)
        hadamard(x + n - p, p);
    hadamard(x, p);
    change_signs(x, n);
}
