/* SPDX-License-Identifier: MIT
 * What experts give of a row, added up; of ranks, what each one's experts do (gemm/meet.cu adds
 * that). Reads [T, top_k, H] floats and writes [T, H], which is bound by memory: loads of eight
 * experts are on their way at a time.
 */
#include "cuda/gemm/combine.h"
#include "cuda/gemm/experts_gate.cuh"
#include "cuda/gemm/experts_leaves.cuh"
#include "cuda/launch.cuh"

#define COMBINE_BLOCK 128
#define COMBINE_AHEAD 8

struct combine_item { /* an expert of the row that is here, in ascending order */
    int32_t place, ends;
    float weight;
};

static __device__ __forceinline__ float4 scaled(float w, const float4 &v)
{
    return make_float4(__fmul_rn(w, v.x), __fmul_rn(w, v.y), __fmul_rn(w, v.z), __fmul_rn(w, v.w));
}

/* shared nullptr: there is none. */
static __device__ __forceinline__ float4 with_shared(const float4 &sum, const float4 *shared,
                                                     const float *logit, int32_t row, int64_t at)
{
    if (shared == nullptr)
        return sum;
    return sl_expert_add(scaled(sl_expert_open(logit, row), shared[at]), sum);
}

/* Four columns a thread; y: rows by place. */
static __global__ void __launch_bounds__(COMBINE_BLOCK)
    combine_kernel(const __grid_constant__ sl_expert_pairs p,
                   const __grid_constant__ sl_expert_peers peers, int32_t n_experts,
                   const float *weights, const float4 *y, const float4 *shared,
                   const float *shared_logit, int32_t h4, float4 *out)
{
    SL_SMEM(combine_item, items);                                             /* [top_k] */
    int32_t *experts = reinterpret_cast<int32_t *>(items + SL_EXPERTS_TOP_K); /* [top_k] */
    const int32_t s = static_cast<int32_t>(threadIdx.x), row = static_cast<int32_t>(blockIdx.y);
    const int32_t pair = row * p.top_k + s;
    int32_t own = -1, place = 0;
    float weight = 1.0f;
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (s < p.top_k) { /* all are on their way at once */
        own = p.experts[pair];
        place = p.place[pair];
        weight = weights != nullptr ? weights[pair] : 1.0f;
        experts[s] = own;
    }
    __syncthreads();
    int32_t n_before = 0, n = 0, before = -1;
    for (int32_t o = 0; o < p.top_k; o++) {
        const int32_t e = experts[o];
        if (!sl_expert_is_here(p, e))
            continue;
        n++;
        n_before += e < own;
        before = e < own ? max(before, e) : before;
    }
    if (sl_expert_is_here(p, own))
        items[n_before] = {place, before < 0 ? 0 : sl_expert_ends(before, own, n_experts), weight};
    __syncthreads();
    const int32_t i = static_cast<int32_t>(blockIdx.x) * COMBINE_BLOCK + s;
    if (i >= h4)
        return;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    sl_expert_sums<float4> sums;
    sums.begin(zero);
    for (int32_t o = 0; o < n; o += COMBINE_AHEAD) {
        float4 v[COMBINE_AHEAD];
#pragma unroll
        for (int32_t k = 0; k < COMBINE_AHEAD; k++)
            if (o + k < n)
                v[k] = y[static_cast<int64_t>(items[o + k].place) * h4 + i];
#pragma unroll
        for (int32_t k = 0; k < COMBINE_AHEAD; k++)
            if (o + k < n)
                sums.add(scaled(items[o + k].weight, v[k]), items[o + k].ends, zero);
    }
    const int64_t at = static_cast<int64_t>(row) * h4 + i;
    const float4 whole = with_shared(sums.whole(), shared, shared_logit, row, at);
    out[at] = whole;
    for (int32_t k = 0; k < peers.n; k++)
        *reinterpret_cast<float4 *>(reinterpret_cast<uint8_t *>(out + at) + peers.to[k]) = whole;
}

void sl_expert_combine(struct sl_cuda *cu, const struct sl_expert_pairs *p, int32_t n_experts,
                       const float *y, int64_t n_cols, const struct sl_expert_sum *s,
                       const struct sl_expert_peers *peers, int32_t n)
{
    const int32_t h4 = (int32_t)(n_cols / 4);
    const dim3 grid((unsigned)SL_CEIL_DIV(h4, COMBINE_BLOCK), (unsigned)n);
    SL_ASSERT(n_cols % 4 == 0 && p->top_k <= SL_EXPERTS_TOP_K);
    sl_launch(cu, combine_kernel, grid, dim3(COMBINE_BLOCK),
              SL_EXPERTS_TOP_K * (sizeof(struct combine_item) + sizeof(int32_t)), *p, *peers,
              n_experts, s->weights, reinterpret_cast<const float4 *>(y),
              reinterpret_cast<const float4 *>(s->shared), s->shared_logit, h4,
              reinterpret_cast<float4 *>(s->out));
}
