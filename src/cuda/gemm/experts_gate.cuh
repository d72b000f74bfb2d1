/* SPDX-License-Identifier: MIT
 * experts_gate.cuh - what follows the sums of gate and up, and by how much a row's shared expert
 * counts, in the steps the CPU has.
 */
#ifndef SL_CUDA_EXPERTS_GATE_CUH
#define SL_CUDA_EXPERTS_GATE_CUH

#include "cuda/gemm/experts.h"
#include "cuda/math.cuh"

/* Biases of an expert's rows; NULL: there are none. */
static __device__ __forceinline__ const float *sl_expert_bias(const sl_expert_product &a, int i,
                                                              int32_t expert)
{
    return a.bias[i] == nullptr ? nullptr : a.bias[i] + static_cast<int64_t>(expert) * a.n_rows;
}

static __device__ __forceinline__ float sl_expert_biased(float v, const float *bias, int32_t row)
{
    return bias != nullptr ? __fadd_rn(v, bias[row]) : v;
}

/* What the sums of a place are multiplied by: weights of pairs, or 1. */
static __device__ __forceinline__ float sl_expert_weight(const float *weights,
                                                         const sl_expert_pairs &p, int32_t place)
{
    return weights == nullptr ? 1.0f : weights[p.pair != nullptr ? p.pair[place] : place];
}

static __device__ __forceinline__ float sl_expert_gated(const sl_expert_product &a, float gate,
                                                        float up)
{
    if (a.swiglu.limit <= 0.0f)
        return __fmul_rn(sl_act(a.act, gate), up);
    return sl_swiglu_of(a.swiglu, gate, up);
}

/* The square of relu, of experts without a gate. */
static __device__ __forceinline__ float sl_expert_plain(float up)
{
    const float positive = 0.0f > up ? 0.0f : up; /* NaN stays */
    return __fmul_rn(positive, positive);
}

/* sl_swiglu_of with a limit on the gate itself, for numbers that are neither tiny nor huge as those
 * of models are: the quotient of g and 1 + sl_exp(-alpha g) without the branches that a division
 * has, by the steps of sl_act, so that several outputs are worked on side by side. Few rows divide
 * (sl_expert_gated), with which tests compare it. */
static __device__ __forceinline__ float sl_expert_swiglu(const sl_swiglu &s, float gate, float up)
{
    const float u = up > s.limit ? s.limit : up < -s.limit ? -s.limit : up; /* NaN stays */
    const float g = gate > s.limit ? s.limit : gate;
    const float d = __fmul_rn(__fadd_rn(1.0f, sl_exp(-__fmul_rn(g, s.alpha))), 0x1p-32f);
    float y = sl_rcp_approx(d);
    y = __fmaf_rn(y, __fmaf_rn(-d, y, 1.0f), y);
    float q = __fmul_rn(g, y);
    q = __fmaf_rn(__fmaf_rn(-d, q, g), y, q);
    q = __fmaf_rn(__fmaf_rn(-d, q, g), y, q);
    q = d > 0x1p126f ? __fmul_rn(g, 0.0f) : copysignf(__fmul_rn(q, 0x1p-32f), g);
    return __fmul_rn(q, __fadd_rn(u, s.up_plus));
}

/* logit NULL: shared experts have no gate. */
static __device__ __forceinline__ float sl_expert_open(const float *logit, int32_t row)
{
    return logit == nullptr ? 1.0f : __fdiv_rn(1.0f, __fadd_rn(1.0f, sl_exp(-logit[row])));
}

#endif
