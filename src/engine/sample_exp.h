/* SPDX-License-Identifier: MIT
 * sample_exp.h - exp(x) for x <= 0, the same bits with every libm and every vector width.
 */
#ifndef SL_ENGINE_SAMPLE_EXP_H
#define SL_ENGINE_SAMPLE_EXP_H

#include <stdint.h>

#define SL_EXP_MIN (-87.0f) /* below, exp is taken as 0: 1e-38 of the maximum */

union sl_float_bits {
    float f;
    int32_t i;
};

/* exp(x) for x <= 0, error below 2 ulp: x = n ln 2 + r, a polynomial in r (Cephes' coefficients),
 * and n into the exponent. Rounding is by the magic number, limit and zero are chosen on the bits
 * of -x, which order as integers: no branch, so that loops over it become vectors. */
static inline float sl_exp_neg(float x)
{
    const union sl_float_bits limit = {.f = -SL_EXP_MIN};
    union sl_float_bits y = {.f = 0.0f - x}; /* 0 - 0 is +0 */
    int32_t alive = -(int32_t)(y.i < limit.i);
    y.i = y.i < limit.i ? y.i : limit.i;
    float n = (y.f * -1.44269504089f + 12582912.0f) - 12582912.0f;
    float r = (-y.f - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    union sl_float_bits scale = {.i = (((int32_t)n + 127) * (1 << 23)) & alive};
    return p * scale.f;
}

#endif
