/* SPDX-License-Identifier: MIT
 * float.h - the plain formats f32, f16 (IEEE binary16) and bf16, element by element.
 *
 * Conversions are exact where a value fits and round to nearest, ties to even, where it does not;
 * overflow gives infinity, subnormals are kept. The f16 pair treats NaN as F16C does (payload kept,
 * made quiet), so that kernels may use the instruction. The inline functions are pure and are what
 * CPU kernels include for scales; the sl_*_to_f32 and sl_*_from_f32 functions are the rows of
 * dtypes.def. Data need not be aligned.
 */
#ifndef SL_QUANT_FLOAT_H
#define SL_QUANT_FLOAT_H

#include <stdint.h>
#include <string.h>

static inline uint32_t sl_f32_bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static inline float sl_f32_of_bits(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

static inline float sl_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, frac = h & 0x3FFu;
    if (exp == 31)
        return sl_f32_of_bits(sign | 0x7F800000u | (frac << 13) | (frac != 0 ? 0x400000u : 0u));
    if (exp != 0)
        return sl_f32_of_bits(sign | ((exp + 112) << 23) | (frac << 13));
    /* Zero or subnormal: frac * 2^-24 is exact in f32. */
    return sl_f32_of_bits(sign | sl_f32_bits((float)frac * 0x1p-24f));
}

static inline uint16_t sl_f32_to_f16(float x)
{
    uint32_t b = sl_f32_bits(x), sign = (b >> 16) & 0x8000u, mag = b & 0x7FFFFFFFu;
    if (mag > 0x7F800000u) /* NaN */
        return (uint16_t)(sign | 0x7E00u | ((mag >> 13) & 0x3FFu));
    if (mag >= 0x477FF000u) /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7C00u);
    if (mag < 0x38800000u) {
        /* Below 2^-14 the result is a multiple of 2^-24. Adding 0.5, whose unit in the last place
         * is 2^-24, makes the FPU do that rounding; the sum's low bits are the answer. */
        return (uint16_t)(sign | (sl_f32_bits(sl_f32_of_bits(mag) + 0.5f) - 0x3F000000u));
    }
    /* Rebias the exponent, then round away 13 bits; a carry moves into the exponent as it should.
     */
    uint32_t r = mag - (112u << 23);
    return (uint16_t)(sign | ((r + 0xFFFu + ((r >> 13) & 1u)) >> 13));
}

static inline float sl_bf16_to_f32(uint16_t h)
{
    return sl_f32_of_bits((uint32_t)h << 16);
}

static inline uint16_t sl_f32_to_bf16(float x)
{
    uint32_t b = sl_f32_bits(x);
    if ((b & 0x7FFFFFFFu) > 0x7F800000u) /* rounding could turn a NaN into infinity */
        return (uint16_t)((b >> 16) | 0x40u);
    return (uint16_t)((b + 0x7FFFu + ((b >> 16) & 1u)) >> 16);
}

/* Little-endian loads and stores of scales at any alignment. */
static inline uint16_t sl_load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void sl_store_u16(uint8_t *p, uint16_t v)
{
    memcpy(p, &v, sizeof v);
}

void sl_f32_row_to_f32(const void *x, float *out, int64_t n);
void sl_f32_row_from_f32(const float *x, void *out, int64_t n);
void sl_f16_row_to_f32(const void *x, float *out, int64_t n);
void sl_f16_row_from_f32(const float *x, void *out, int64_t n);
void sl_bf16_row_to_f32(const void *x, float *out, int64_t n);
void sl_bf16_row_from_f32(const float *x, void *out, int64_t n);

#endif
