/* SPDX-License-Identifier: MIT
 * cuda_fp16.h - the simulator's stand-in for the CUDA header of this name.
 */
#ifndef SL_SIM_CUDA_FP16_H
#define SL_SIM_CUDA_FP16_H

#include "sim_float.h"

struct __half_raw {
    unsigned short x;
};
struct __half {
    unsigned short sl_bits;
    __half() = default;
    __half(float f) : sl_bits(sl_sim_half_from_float(f))
    {
    }
    __half(const __half_raw &r) : sl_bits(r.x)
    {
    }
    operator float() const
    {
        return sl_sim_half_to_float(sl_bits);
    }
    operator __half_raw() const
    {
        return {sl_bits};
    }
};
struct __attribute__((aligned(4))) __half2 {
    __half x, y;
    __half2() = default;
    __half2(__half a, __half b) : x(a), y(b)
    {
    }
};
typedef __half half;
typedef __half2 half2;

static inline __half __float2half_rn(float f)
{
    return __half(f);
}
static inline __half __float2half(float f)
{
    return __half(f);
}
static inline float __half2float(__half h)
{
    return static_cast<float>(h);
}
static inline __half __double2half(double d)
{
    return __half(sl_sim_round_odd(d));
}
static inline __half __ushort_as_half(unsigned short u)
{
    __half h;
    h.sl_bits = u;
    return h;
}
static inline unsigned short __half_as_ushort(__half h)
{
    return h.sl_bits;
}
static inline __half2 __halves2half2(__half a, __half b)
{
    return __half2(a, b);
}
static inline __half __low2half(__half2 v)
{
    return v.x;
}
static inline __half __high2half(__half2 v)
{
    return v.y;
}
static inline float __low2float(__half2 v)
{
    return static_cast<float>(v.x);
}
static inline float __high2float(__half2 v)
{
    return static_cast<float>(v.y);
}
static inline __half2 __floats2half2_rn(float a, float b)
{
    return __half2(__half(a), __half(b));
}
static inline __half2 __float2half2_rn(float a)
{
    return __half2(__half(a), __half(a));
}
static inline __half2 __float22half2_rn(float2 v)
{
    return __half2(__half(v.x), __half(v.y));
}
static inline float2 __half22float2(__half2 v)
{
    return make_float2(static_cast<float>(v.x), static_cast<float>(v.y));
}
static inline __half2 __half2half2(__half a)
{
    return __half2(a, a);
}
static inline __half2 make_half2(__half a, __half b)
{
    return __half2(a, b);
}
SL_SIM_HALF_OPS(__half, __half2, __half, static_cast<float>, __half2)

#endif
