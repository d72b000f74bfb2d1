/* SPDX-License-Identifier: MIT
 * vec_c.h - sixteen float lanes in plain C: what a vector operation means. vec_avx2.h and
 * vec_avx512.h give the same names to instructions with the same results.
 *
 * fmaf rounds once by the C standard, so that it equals the fused instruction bit for bit.
 */
#ifndef SL_CPU_VEC_C_H
#define SL_CPU_VEC_C_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* The kernels themselves are worth no inlining here. The lanes' functions are, except in debug and
 * sanitizer builds, where their many inlined copies take compilers a minute. */
#define INLINE static __attribute__((noinline))
#ifdef SL_DEBUG
#define LANES static __attribute__((noinline, unused))
#else
#define LANES static inline
#endif

struct v16_c {
    float f[16];
};
struct v16i_c {
    int32_t i[16];
};
#define v16  struct v16_c
#define v16i struct v16i_c

#define TILE_R 1 /* weight rows and tokens of a register tile: no registers to fill here */
#define TILE_C 1

#define V_LANES for (int j = 0; j < 16; j++)
#define V_BINARY(name, expr)     \
    LANES v16 name(v16 a, v16 b) \
    {                            \
        v16 r;                   \
        V_LANES r.f[j] = expr;   \
        return r;                \
    }
V_BINARY(v_add, a.f[j] + b.f[j])
V_BINARY(v_sub, a.f[j] - b.f[j])
V_BINARY(v_mul, a.f[j] * b.f[j])
V_BINARY(v_div, a.f[j] / b.f[j])
V_BINARY(v_max, a.f[j] > b.f[j] ? a.f[j] : b.f[j]) /* b if either is NaN, as maxps */
V_BINARY(v_min, a.f[j] < b.f[j] ? a.f[j] : b.f[j])
#undef V_BINARY

LANES v16 v_set1(float x)
{
    v16 r;
    V_LANES r.f[j] = x;
    return r;
}

LANES v16 v_load(const float *p)
{
    v16 r;
    memcpy(r.f, p, sizeof r.f);
    return r;
}

LANES void v_store(float *p, v16 a)
{
    memcpy(p, a.f, sizeof a.f);
}

LANES v16 v_load_n(const float *p, int n) /* zero from lane n on, which is not read */
{
    v16 r;
    V_LANES r.f[j] = j < n ? p[j] : 0.0f;
    return r;
}

LANES void v_store_n(float *p, v16 a, int n)
{
    memcpy(p, a.f, (size_t)n * sizeof(float));
}

LANES v16 v_fma(v16 a, v16 b, v16 c)
{
    v16 r;
    V_LANES r.f[j] = fmaf(a.f[j], b.f[j], c.f[j]);
    return r;
}

LANES v16 v_fma_n(v16 a, v16 b, v16 c, int n) /* c from lane n on */
{
    v16 r;
    V_LANES r.f[j] = j < n ? fmaf(a.f[j], b.f[j], c.f[j]) : c.f[j];
    return r;
}

LANES v16 v_abs(v16 a)
{
    v16 r;
    V_LANES r.f[j] = fabsf(a.f[j]);
    return r;
}

LANES v16 v_sqrt(v16 a)
{
    v16 r;
    V_LANES r.f[j] = sqrtf(a.f[j]);
    return r;
}

LANES v16 v_copysign(v16 a, v16 sign)
{
    v16 r;
    V_LANES r.f[j] = copysignf(a.f[j], sign.f[j]);
    return r;
}

LANES v16 v_select_lt(v16 x, v16 y, v16 a, v16 b) /* x < y ? a : b */
{
    v16 r;
    V_LANES r.f[j] = x.f[j] < y.f[j] ? a.f[j] : b.f[j];
    return r;
}

LANES v16i v_bits(v16 a)
{
    v16i r;
    memcpy(r.i, a.f, sizeof r.i);
    return r;
}

LANES v16 v_from_bits(v16i a)
{
    v16 r;
    memcpy(r.f, a.i, sizeof r.f);
    return r;
}

LANES v16i vi_set1(int32_t x)
{
    v16i r;
    V_LANES r.i[j] = x;
    return r;
}

LANES v16i vi_add(v16i a, v16i b) /* wraps */
{
    v16i r;
    V_LANES r.i[j] = (int32_t)((uint32_t)a.i[j] + (uint32_t)b.i[j]);
    return r;
}

LANES v16i vi_sub(v16i a, v16i b)
{
    v16i r;
    V_LANES r.i[j] = (int32_t)((uint32_t)a.i[j] - (uint32_t)b.i[j]);
    return r;
}

LANES v16i vi_half(v16i a) /* arithmetic shift right by one */
{
    v16i r;
    V_LANES r.i[j] = a.i[j] >> 1;
    return r;
}

LANES v16i vi_to_exponent(v16i a) /* to the exponent field of a float */
{
    v16i r;
    V_LANES r.i[j] = (int32_t)((uint32_t)a.i[j] << 23);
    return r;
}

/* The tree of DETERMINISM.md: lane j + lane j + 8, then + 4, + 2, + 1. */
LANES float v_sum(v16 a)
{
    for (int n = 8; n > 0; n /= 2)
        for (int j = 0; j < n; j++)
            a.f[j] = a.f[j] + a.f[j + n];
    return a.f[0];
}

LANES float v_hmax(v16 a)
{
    for (int n = 8; n > 0; n /= 2)
        for (int j = 0; j < n; j++)
            a.f[j] = a.f[j] > a.f[j + n] ? a.f[j] : a.f[j + n];
    return a.f[0];
}

LANES void v_sum8(const float *lanes, float *out) /* v_sum of eight vectors */
{
    for (int i = 0; i < 8; i++)
        out[i] = v_sum(v_load(lanes + 16 * i));
}

#endif
