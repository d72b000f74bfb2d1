/* SPDX-License-Identifier: MIT
 * cuda_bf16.h - the simulator's stand-in for the CUDA header of this name.
 */
#ifndef SL_SIM_CUDA_BF16_H
#define SL_SIM_CUDA_BF16_H

#include "sim_float.h"

struct __nv_bfloat16_raw {
    unsigned short x;
};
struct __nv_bfloat16 {
    unsigned short sl_bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float f) : sl_bits(sl_sim_bf16_from_float(f))
    {
    }
    __nv_bfloat16(const __nv_bfloat16_raw &r) : sl_bits(r.x)
    {
    }
    operator float() const
    {
        return sl_sim_bf16_to_float(sl_bits);
    }
    operator __nv_bfloat16_raw() const
    {
        return {sl_bits};
    }
};
struct __attribute__((aligned(4))) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b)
    {
    }
};
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    return __nv_bfloat16(f);
}
static inline __nv_bfloat16 __float2bfloat16(float f)
{
    return __nv_bfloat16(f);
}
static inline float __bfloat162float(__nv_bfloat16 h)
{
    return static_cast<float>(h);
}
static inline __nv_bfloat16 __double2bfloat16(double d)
{
    return __nv_bfloat16(sl_sim_round_odd(d));
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u)
{
    __nv_bfloat16 h;
    h.sl_bits = u;
    return h;
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h)
{
    return h.sl_bits;
}
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return __nv_bfloat162(a, b);
}
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v)
{
    return v.x;
}
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v)
{
    return v.y;
}
static inline float __low2float(__nv_bfloat162 v)
{
    return static_cast<float>(v.x);
}
static inline float __high2float(__nv_bfloat162 v)
{
    return static_cast<float>(v.y);
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return __nv_bfloat162(__nv_bfloat16(a), __nv_bfloat16(b));
}
static inline __nv_bfloat162 __float2bfloat162_rn(float a)
{
    return __nv_bfloat162(__nv_bfloat16(a), __nv_bfloat16(a));
}
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v)
{
    return __nv_bfloat162(__nv_bfloat16(v.x), __nv_bfloat16(v.y));
}
static inline float2 __bfloat1622float2(__nv_bfloat162 v)
{
    return make_float2(static_cast<float>(v.x), static_cast<float>(v.y));
}
static inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a)
{
    return __nv_bfloat162(a, a);
}
static inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return __nv_bfloat162(a, b);
}
SL_SIM_HALF_OPS(__nv_bfloat16, __nv_bfloat162, __nv_bfloat16, static_cast<float>, __nv_bfloat162)

#endif
