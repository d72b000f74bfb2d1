/* SPDX-License-Identifier: MIT
 * math.cuh - the elementary functions of docs/DETERMINISM.md for the device, bit for bit as the CPU
 * computes them.
 *
 * Every step is written as one rounding (__fmaf_rn, __fmul_rn, __fadd_rn, __fdiv_rn), so that no
 * compiler flag and no fast approximation can change a bit. The approximations of the hardware
 * (ex2.approx, tanh.approx) are not here: they differ from the CPU. A reciprocal is only where
 * division begins.
 */
#ifndef SL_CUDA_MATH_CUH
#define SL_CUDA_MATH_CUH

#include "cuda/device.h"
#include "cuda/ptx.cuh"

#include <cuda_runtime.h>
#include <stdint.h>

/* exp(x), at most 2 ulp off; the steps of v_exp in src/cpu/kernels_tmpl.c. NaN stays NaN, exp(0) is
 * 1, exp(-inf) is 0, overflow is infinity, subnormal results are rounded once. */
static __device__ __forceinline__ float sl_exp(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it leaves the integer in the low bits */
    x = 89.0f < x ? 89.0f : x;
    x = -104.0f > x ? -104.0f : x; /* the comparisons are false for NaN, which passes */
    float t = __fmaf_rn(x, 0x1.715476p0f, magic);
    float n = __fadd_rn(t, -magic);
    float r = __fmaf_rn(n, -0x1.62e4p-1f, x);
    r = __fmaf_rn(n, -0x1.7f7d1cp-20f, r);
    float p = 0x1.a01a02p-13f;
    p = __fmaf_rn(p, r, 0x1.6c16c2p-10f);
    p = __fmaf_rn(p, r, 0x1.111112p-7f);
    p = __fmaf_rn(p, r, 0x1.555556p-5f);
    p = __fmaf_rn(p, r, 0x1.555556p-3f);
    p = __fmaf_rn(p, r, 0.5f);
    p = __fmaf_rn(p, r, 1.0f);
    p = __fmaf_rn(p, r, 1.0f);
    uint32_t e = __float_as_uint(t) - __float_as_uint(magic);
    uint32_t half = (uint32_t)((int32_t)e >> 1);
    float scale_a = __uint_as_float((half + 127u) << 23);
    float scale_b = __uint_as_float((e - half + 127u) << 23);
    return __fmul_rn(__fmul_rn(p, scale_a), scale_b);
}

/* As v_softplus of src/cpu/recurrent_tmpl.c. */
static __device__ __forceinline__ float sl_softplus(float x)
{
    const float y = sl_exp(-fabsf(x)), s = __fdiv_rn(y, __fadd_rn(y, 2.0f));
    const float z = __fmul_rn(s, s), twice = __fadd_rn(s, s);
    float p = 1.0f / 15;
    p = __fmaf_rn(p, z, 1.0f / 13);
    p = __fmaf_rn(p, z, 1.0f / 11);
    p = __fmaf_rn(p, z, 1.0f / 9);
    p = __fmaf_rn(p, z, 1.0f / 7);
    p = __fmaf_rn(p, z, 1.0f / 5);
    p = __fmaf_rn(p, z, 1.0f / 3);
    return __fadd_rn(0.0f > x ? 0.0f : x, __fmaf_rn(__fmul_rn(p, z), twice, twice));
}

/* exp(x) for x <= 0, 0 from -87 on: what sampling uses, sl_exp_neg of src/engine/sample_exp.h, with
 * its separate multiplications and additions. */
static __device__ __forceinline__ float sl_sample_exp(float x)
{
    const float magic = 12582912.0f;
    int32_t limit = __float_as_int(87.0f), y = __float_as_int(__fadd_rn(0.0f, -x));
    int32_t alive = y < limit ? -1 : 0;
    float f = __int_as_float(y < limit ? y : limit);
    float n = __fadd_rn(__fadd_rn(__fmul_rn(f, -1.44269504089f), magic), -magic);
    float r = __fadd_rn(__fadd_rn(-f, -__fmul_rn(n, 0.693359375f)), __fmul_rn(n, 2.12194440e-4f));
    float p = 1.9875691500e-4f;
    p = __fadd_rn(__fmul_rn(p, r), 1.3981999507e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 8.3334519073e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 4.1665795894e-2f);
    p = __fadd_rn(__fmul_rn(p, r), 1.6666665459e-1f);
    p = __fadd_rn(__fmul_rn(p, r), 5.0000001201e-1f);
    p = __fadd_rn(__fadd_rn(__fmul_rn(p, __fmul_rn(r, r)), r), 1.0f);
    uint32_t scale =
        (static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23) & static_cast<uint32_t>(alive);
    return __fmul_rn(p, __uint_as_float(scale));
}

/* As v_tanh and v_gelu_erf of src/cpu/kernels_tmpl.c. */
static __device__ __forceinline__ float sl_tanh(float x)
{
    const float a = fabsf(x), e = sl_exp(__fmul_rn(a, -2.0f)), s = __fmul_rn(x, x);
    const float big = copysignf(__fdiv_rn(__fadd_rn(1.0f, -e), __fadd_rn(1.0f, e)), x);
    float p = -5.70498872745e-3f;
    p = __fmaf_rn(p, s, 2.06390887954e-2f);
    p = __fmaf_rn(p, s, -5.37397155531e-2f);
    p = __fmaf_rn(p, s, 1.33314422036e-1f);
    p = __fmaf_rn(p, s, -3.33332819422e-1f);
    return a < 0.625f ? __fmaf_rn(__fmul_rn(p, s), x, x) : big;
}

static __device__ __forceinline__ float sl_gelu_erf(float x)
{
    const float a = fabsf(x), t = __fdiv_rn(1.0f, __fmaf_rn(a, 0.3f, 1.0f));
    float p = 0.0353813326f;
    p = __fmaf_rn(p, t, -0.155027298f);
    p = __fmaf_rn(p, t, 0.200596332f);
    p = __fmaf_rn(p, t, -0.0461001683f);
    p = __fmaf_rn(p, t, 0.123041309f);
    p = __fmaf_rn(p, t, 0.102161103f);
    p = __fmaf_rn(p, t, 0.12027737f);
    p = __fmaf_rn(p, t, 0.119670032f);
    p = __fmul_rn(__fmul_rn(p, t), sl_exp(__fmul_rn(__fmul_rn(a, a), -0.5f)));
    return __fmul_rn(x, x < 0.0f ? p : __fadd_rn(1.0f, -p));
}

/* As v_xielu of src/cpu/kernels_tmpl.c. */
static __device__ __forceinline__ float sl_xielu_of(const sl_xielu &s, float x)
{
    const float low = s.eps < x ? s.eps : x; /* NaN stays */
    const float far = __fadd_rn(__fadd_rn(sl_exp(low), -1.0f), -low);
    float p = 0x1.71de3ap-19f;
    p = __fmaf_rn(p, low, 0x1.a01a02p-16f);
    p = __fmaf_rn(p, low, 0x1.a01a02p-13f);
    p = __fmaf_rn(p, low, 0x1.6c16c2p-10f);
    p = __fmaf_rn(p, low, 0x1.111112p-7f);
    p = __fmaf_rn(p, low, 0x1.555556p-5f);
    p = __fmaf_rn(p, low, 0x1.555556p-3f);
    p = __fmaf_rn(p, low, 0.5f);
    const float curve = low < -0.5f ? far : __fmul_rn(__fmul_rn(low, low), p);
    const float rest = __fadd_rn(curve, __fadd_rn(low, -x));
    return 0.0f < x ? __fmul_rn(__fmaf_rn(s.alpha_p, x, s.beta), x)
                    : __fmaf_rn(rest, s.alpha_n, __fmul_rn(s.beta, x));
}

/* silu(g) or gelu_tanh(g): g / (1 + sl_exp(-z)) with z = g, or z = 2 sqrt(2 / pi) (g + 0.044715
 * g^3), which has not the cancellation of 1 + tanh.
 *
 * The end of a tile does nothing else, so it has few instructions and no branch: the steps of
 * sl_exp and of the compiler's division, with the divisor times 2^-32, so that one addition to the
 * exponent scales; exact, as nothing leaves the range of normal numbers. Where z > 30 the divisor
 * is 1; from where sl_exp overflows on it is infinite. */
static __device__ __forceinline__ float sl_act(enum sl_act act, float g)
{
    const float magic = 12582912.0f - 32.0f; /* 32 less than sl_exp's */
    float z = g;
    if (act == SL_ACT_GELU_TANH) {
        float g3 = __fmul_rn(__fmul_rn(g, g), g);
        z = __fmul_rn(__fmaf_rn(g3, 0.044715f, g), 1.5957691216057308f);
    }
    float x = fminf(fmaxf(-z, -30.0f), 88.8f);
    float t = __fmaf_rn(x, 0x1.715476p0f, magic), n = __fadd_rn(t, -magic);
    float r = __fmaf_rn(n, -0x1.62e4p-1f, x);
    r = __fmaf_rn(n, -0x1.7f7d1cp-20f, r);
    float p = __fmaf_rn(0x1.a01a02p-13f, r, 0x1.6c16c2p-10f);
    p = __fmaf_rn(p, r, 0x1.111112p-7f);
    p = __fmaf_rn(p, r, 0x1.555556p-5f);
    p = __fmaf_rn(p, r, 0x1.555556p-3f);
    p = __fmaf_rn(p, r, 0.5f);
    p = __fmaf_rn(p, r, 1.0f);
    p = __fmaf_rn(p, r, 1.0f);
    float d = __fadd_rn(__uint_as_float((__float_as_uint(t) << 23) + __float_as_uint(p)), 0x1p-32f);
    float y = sl_rcp_approx(d);
    y = __fmaf_rn(y, __fmaf_rn(-d, y, 1.0f), y);
    float q = __fmul_rn(g, y);
    q = __fmaf_rn(__fmaf_rn(-d, q, g), y, q);
    q = __fmaf_rn(__fmaf_rn(-d, q, g), y, q);
    q = copysignf(__fmul_rn(q, 0x1p-32f), g); /* of a zero the steps above lose the sign */
    q = z > 30.0f ? g : q;
    return z <= -0x1.62e43p+6f ? __fmul_rn(g, 0.0f) : q;
}

/* The steps of the CPU's. */
static __device__ __forceinline__ float sl_swiglu_of(const sl_swiglu &s, float gate, float up)
{
    const float u = up > s.limit ? s.limit : up < -s.limit ? -s.limit : up; /* NaN stays */
    if (s.late) {
        const float open = sl_act(SL_ACT_SILU, gate);
        return __fmul_rn(open > s.limit ? s.limit : open, u);
    }
    const float g = gate > s.limit ? s.limit : gate;
    const float d = __fadd_rn(1.0f, sl_exp(-__fmul_rn(g, s.alpha)));
    return __fmul_rn(__fdiv_rn(g, d), __fadd_rn(u, s.up_plus));
}

#endif
