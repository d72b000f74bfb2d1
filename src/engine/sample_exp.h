/* SPDX-License-Identifier: MIT
 * sample_exp.h - exp(x) for x <= 0, the same bits with every libm and every vector width, and the
 * integers that probabilities are added as.
 */
#ifndef SL_ENGINE_SAMPLE_EXP_H
#define SL_ENGINE_SAMPLE_EXP_H

#include <stdint.h>

#define SL_EXP_MIN (-87.0f) /* below, exp is taken as 0: 1e-38 of the maximum */

union sl_float_bits {
    float f;
    int32_t i;
};

union sl_double_bits {
    double d;
    uint64_t u;
};

/* A probability p, 1 for the most likely token, weighs p * 2^41 rounded to the nearest integer,
 * ties to even. Sums of weights are exact, so every order of adding gives the same; of 2^22 tokens
 * they stay below 2^64. */
#define SL_WEIGHT_ONE   0x1p41f
#define SL_WEIGHT_ALIVE 0x1p-42f /* what is larger weighs something */
#define SL_WEIGHT_MAGIC 0x1p52   /* adding it leaves the rounded number in the low bits */

/* The weight plus the bits of 2^52: what loops add up, to take the latter away once. */
static inline uint64_t sl_weight_raw(float p)
{
    const union sl_double_bits w = {.d = (double)(p * SL_WEIGHT_ONE) + SL_WEIGHT_MAGIC};
    return w.u;
}

static inline uint64_t sl_weight(float p)
{
    const union sl_double_bits zero = {.d = SL_WEIGHT_MAGIC};
    return sl_weight_raw(p) - zero.u;
}

/* exp(x) for x <= 0, and 0 below the floor, which is not positive. Error below 2 ulp; it never
 * rises as x falls. x = n ln 2 + r, a polynomial in r (Cephes' coefficients), and n into the
 * exponent. Rounding is by the magic number, limits and zero are chosen on the bits of -x, which
 * order as integers: no branch, so that loops over it become vectors. */
static inline float sl_exp_from(float floor, float x)
{
    const union sl_float_bits limit = {.f = -SL_EXP_MIN}, last = {.f = 0.0f - floor};
    union sl_float_bits y = {.f = 0.0f - x}; /* 0 - 0 is +0 */
    int32_t alive = -(int32_t)(y.i < limit.i) & -(int32_t)(y.i <= last.i);
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

static inline float sl_exp_neg(float x)
{
    return sl_exp_from(SL_EXP_MIN, x);
}

#endif
