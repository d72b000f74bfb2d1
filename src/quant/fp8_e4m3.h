/* SPDX-License-Identifier: MIT
 * FP8 E4M3 (the "fn" variant): a byte is a sign, four bits of exponent with a bias of 7 and three
 * of fraction. 448 is the largest number (0x7E), 2^-9 the smallest; there is no infinity, 0x7F and
 * 0xFF are NaN.
 *
 * A checkpoint keeps scales beside a matrix of this format (ops.h, struct sl_scales): a weight is
 * code times scale, rounded once to float. Every number of the format is a BF16 number.
 */
#ifndef SL_QUANT_FP8_E4M3_H
#define SL_QUANT_FP8_E4M3_H

#include "quant/float.h"

#define SL_FP8_E4M3_MAX 448.0f

static inline float sl_fp8_e4m3_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, mag = code & 0x7Fu;
    if (mag == 0x7Fu)
        return sl_f32_of_bits(sign | 0x7FC00000u);
    if (mag >= 8)
        return sl_f32_of_bits(sign | ((mag << 20) + (120u << 23)));
    return sl_f32_of_bits(sign | sl_f32_bits((float)mag * 0x1p-9f));
}

/* To nearest even; what is larger than 448, an infinity too, becomes 448. */
static inline uint8_t sl_f32_to_fp8_e4m3(float x)
{
    uint32_t b = sl_f32_bits(x), sign = (b >> 24) & 0x80u, mag = b & 0x7FFFFFFFu;
    if (mag > 0x7F800000u) /* NaN */
        return (uint8_t)(sign | 0x7Fu);
    if (mag >= 0x43E00000u) /* 448 */
        return (uint8_t)(sign | 0x7Eu);
    if (mag < 0x3C800000u) {
        /* Below 2^-6 the result is a multiple of 2^-9, the unit in the last place of 2^14: adding
         * that rounds, and the sum's low bits are the answer. */
        return (uint8_t)(sign | (sl_f32_bits(sl_f32_of_bits(mag) + 0x1p14f) - 0x46800000u));
    }
    uint32_t r = mag - (120u << 23);
    return (uint8_t)(sign | ((r + 0x7FFFFu + ((r >> 20) & 1u)) >> 20));
}

/* Of the KV cache: the scale of a vector is 2^e, e the smallest with top <= 448 * 2^e but within
 * -100 .. 7. A power of two costs no precision, and code times scale stays a BF16 number. */
static inline int sl_fp8_e4m3_exponent(float top)
{
    uint32_t b = sl_f32_bits(top);
    int e = (int)(b >> 23) - 127 - 8 + ((b & 0x7FFFFFu) > 0x600000u); /* 448 is 1.75 * 2^8 */
    return e < -100 ? -100 : e > 7 ? 7 : e;
}

void sl_fp8_e4m3_row_to_f32(const void *x, float *out, int64_t n);
void sl_fp8_e4m3_row_from_f32(const float *x, void *out, int64_t n);

#endif
