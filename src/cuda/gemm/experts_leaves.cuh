/* SPDX-License-Identifier: MIT
 * experts_leaves.cuh - the order in which a row's experts are added (ops.h): by leaves, and leaves
 * as a balanced binary tree. Zeros stand for what has no experts: a sum that began at +0 is never
 * -0, so that adding one changes nothing.
 */
#ifndef SL_CUDA_EXPERTS_LEAVES_CUH
#define SL_CUDA_EXPERTS_LEAVES_CUH

#include "cuda/gemm/experts.h"
#include "ops/ops.h"

static __device__ __forceinline__ bool sl_expert_is_here(const sl_expert_pairs &p, int32_t expert)
{
    return expert >= p.from && expert < p.until;
}

static __device__ __forceinline__ int32_t sl_expert_ends(int32_t before, int32_t expert,
                                                         int32_t n_experts)
{
    const int32_t leaf = SL_EXPERT_LEAF(before, n_experts),
                  next = SL_EXPERT_LEAF(expert, n_experts);
    return SL_EXPERT_ENDS(leaf, next);
}

static __device__ __forceinline__ float sl_expert_add(float a, float b)
{
    return __fadd_rn(a, b);
}

static __device__ __forceinline__ float4 sl_expert_add(const float4 &a, const float4 &b)
{
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                       __fadd_rn(a.w, b.w));
}

/* The sums of one column, or of four. */
template <class V> struct sl_expert_sums {
    V leaf, two, four, all;

    __device__ __forceinline__ void begin(const V &zero)
    {
        leaf = two = four = all = zero;
    }
    /* ends: of the expert that v is of. */
    __device__ __forceinline__ void add(const V &v, int32_t ends, const V &zero)
    {
        if (ends > 0) {
            two = sl_expert_add(two, leaf);
            leaf = zero;
        }
        if (ends > 1) {
            four = sl_expert_add(four, two);
            two = zero;
        }
        if (ends > 2) {
            all = sl_expert_add(all, four);
            four = zero;
        }
        leaf = sl_expert_add(leaf, v);
    }
    __device__ __forceinline__ V whole() const
    {
        return sl_expert_add(all, sl_expert_add(four, sl_expert_add(two, leaf)));
    }
};

#endif
