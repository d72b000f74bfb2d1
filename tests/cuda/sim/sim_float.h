/* SPDX-License-Identifier: MIT
 * sim_float.h - 16-bit floats by integer arithmetic: round to nearest even, NaN becomes 0x7fff as
 * the device's conversions make it. Included by cuda_bf16.h and cuda_fp16.h.
 */
#ifndef SL_SIM_FLOAT_H
#define SL_SIM_FLOAT_H

#include <cuda_runtime.h>

static inline float sl_sim_bf16_to_float(uint16_t h)
{
    return __uint_as_float(static_cast<uint32_t>(h) << 16);
}

static inline uint16_t sl_sim_bf16_from_float(float f)
{
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    return static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline float sl_sim_half_to_float(uint16_t h)
{
    uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    uint32_t exp = h >> 10 & 31u, frac = h & 0x3ffu;
    if (exp == 31)
        return __uint_as_float(sign | (frac ? 0x7fffffffu : 0x7f800000u));
    if (exp)
        return __uint_as_float(sign | (exp + 112) << 23 | frac << 13);
    float small = static_cast<float>(frac) * 0x1p-24f;
    return __uint_as_float(sign | __float_as_uint(small));
}

static inline uint16_t sl_sim_half_from_float(float f)
{
    uint32_t u = __float_as_uint(f);
    uint32_t sign = u >> 16 & 0x8000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u)
        return 0x7fff;
    if (mag >= 0x47800000u) /* 65536 and more */
        return static_cast<uint16_t>(sign | 0x7c00u);
    if (mag >= 0x38800000u) { /* normal: rounding may carry into the exponent, up to infinity */
        uint32_t r = mag - (112u << 23);
        return static_cast<uint16_t>(sign | (r + 0xfffu + (r >> 13 & 1u)) >> 13);
    }
    if (mag < 0x33000000u) /* below half of the smallest */
        return static_cast<uint16_t>(sign);
    uint32_t frac = (mag & 0x7fffffu) | 0x800000u;
    uint32_t shift = 126u - (mag >> 23); /* 14..24 */
    uint32_t r = frac >> shift, rest = frac & ((1u << shift) - 1), half = 1u << (shift - 1);
    r += rest > half || (rest == half && (r & 1u));
    return static_cast<uint16_t>(sign | r);
}

/* A double as a float with the last bit set when inexact, so that a second rounding to 16 bits
 * gives what one rounding of the double would. */
static inline float sl_sim_round_odd(double d)
{
    float f = static_cast<float>(d);
    if (f != f || static_cast<double>(f) == d || f - f != 0.0f)
        return f;
    uint32_t u = __float_as_uint(f);
    if (u & 1u)
        return f;
    bool away = fabs(static_cast<double>(f)) > fabs(d);
    return __uint_as_float(away ? u - 1 : u + 1);
}

/* The operations of a 16-bit type and of its pairs, in CUDA's names. */
#define SL_SIM_HALF_OPS(T, T2, from, to, make2)                                                 \
    static inline bool __heq(T a, T b)                                                          \
    {                                                                                           \
        return to(a) == to(b);                                                                  \
    }                                                                                           \
    static inline bool __hlt(T a, T b)                                                          \
    {                                                                                           \
        return to(a) < to(b);                                                                   \
    }                                                                                           \
    static inline bool __hgt(T a, T b)                                                          \
    {                                                                                           \
        return to(a) > to(b);                                                                   \
    }                                                                                           \
    static inline bool __hisnan(T a)                                                            \
    {                                                                                           \
        return to(a) != to(a);                                                                  \
    }                                                                                           \
    static inline T __hadd(T a, T b)                                                            \
    {                                                                                           \
        return from(sl_sim_round_odd(static_cast<double>(to(a)) + static_cast<double>(to(b)))); \
    }                                                                                           \
    static inline T __hsub(T a, T b)                                                            \
    {                                                                                           \
        return from(sl_sim_round_odd(static_cast<double>(to(a)) - static_cast<double>(to(b)))); \
    }                                                                                           \
    static inline T __hmul(T a, T b)                                                            \
    {                                                                                           \
        return from(to(a) * to(b));                                                             \
    }                                                                                           \
    static inline T __hfma(T a, T b, T c)                                                       \
    {                                                                                           \
        double p = static_cast<double>(to(a)) * static_cast<double>(to(b));                     \
        return from(sl_sim_round_odd(p + static_cast<double>(to(c))));                          \
    }                                                                                           \
    static inline T operator+(T a, T b)                                                         \
    {                                                                                           \
        return __hadd(a, b);                                                                    \
    }                                                                                           \
    static inline T operator-(T a, T b)                                                         \
    {                                                                                           \
        return __hsub(a, b);                                                                    \
    }                                                                                           \
    static inline T operator*(T a, T b)                                                         \
    {                                                                                           \
        return __hmul(a, b);                                                                    \
    }                                                                                           \
    static inline T __hneg(T a)                                                                 \
    {                                                                                           \
        return from(-to(a));                                                                    \
    }                                                                                           \
    static inline T __hmax(T a, T b)                                                            \
    {                                                                                           \
        return from(fmaxf(to(a), to(b)));                                                       \
    }                                                                                           \
    static inline T __hmin(T a, T b)                                                            \
    {                                                                                           \
        return from(fminf(to(a), to(b)));                                                       \
    }                                                                                           \
    static inline T2 __hadd2(T2 a, T2 b)                                                        \
    {                                                                                           \
        return make2(__hadd(a.x, b.x), __hadd(a.y, b.y));                                       \
    }                                                                                           \
    static inline T2 __hsub2(T2 a, T2 b)                                                        \
    {                                                                                           \
        return make2(__hsub(a.x, b.x), __hsub(a.y, b.y));                                       \
    }                                                                                           \
    static inline T2 __hmul2(T2 a, T2 b)                                                        \
    {                                                                                           \
        return make2(__hmul(a.x, b.x), __hmul(a.y, b.y));                                       \
    }                                                                                           \
    static inline T2 __hfma2(T2 a, T2 b, T2 c)                                                  \
    {                                                                                           \
        return make2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));                             \
    }                                                                                           \
    static inline T2 __hmax2(T2 a, T2 b)                                                        \
    {                                                                                           \
        return make2(__hmax(a.x, b.x), __hmax(a.y, b.y));                                       \
    }                                                                                           \
    static inline T2 __hmin2(T2 a, T2 b)                                                        \
    {                                                                                           \
        return make2(__hmin(a.x, b.x), __hmin(a.y, b.y));                                       \
    }

#endif
