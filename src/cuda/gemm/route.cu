/* SPDX-License-Identifier: MIT
 * The choice of experts, a warp a row. A lane has the experts lane, lane + 32, ..., and a bit of a
 * word for each of them; scores lie in shared memory. The steps and their order are those of
 * src/cpu/route.c.
 */
#include "cuda/launch.cuh"
#include "cuda/math.cuh"

#include "base/limits.h"

#include <math.h>

#define WARPS 4 /* of a block */

static_assert(SL_MAX_EXPERTS <= 32 * 32, "a bit for each expert of a lane");
static_assert(SL_MAX_TOP_EXPERTS <= 32, "a lane for each expert of a row");

struct choice {
    float value;
    int32_t idx; /* -1: none */
};

/* Of equal values the lower index; what is not a number comes behind all numbers. */
static __device__ __forceinline__ bool is_better(const choice &a, const choice &b)
{
    if (a.idx < 0 || b.idx < 0)
        return a.idx >= 0;
    const bool a_nan = isnan(a.value), b_nan = isnan(b.value);
    if (a_nan || b_nan)
        return a_nan == b_nan ? a.idx < b.idx : b_nan;
    return a.value > b.value || (a.value == b.value && a.idx < b.idx);
}

/* The warp's best of x[n] without what is taken, which it then is. */
static __device__ choice take_best(const float *x, int32_t n, uint32_t *taken)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    choice c = {0.0f, -1};
    for (int32_t e = lane, i = 0; e < n; e += 32, i++) {
        const choice o = {x[e], e};
        if ((*taken >> i & 1) == 0 && is_better(o, c))
            c = o;
    }
#pragma unroll
    for (int m = 16; m > 0; m /= 2) {
        const choice o = {__shfl_xor_sync(0xffffffffu, c.value, m),
                          __shfl_xor_sync(0xffffffffu, c.idx, m)};
        if (is_better(o, c))
            c = o;
    }
    if (c.idx % 32 == lane)
        *taken |= 1u << c.idx / 32;
    return c;
}

/* Fills score; returns the sum that softmax divides by, which is not done yet. */
static __device__ float softmax(const float *logits, int32_t n, float *score)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    float max = -INFINITY, sum = 0.0f;
    for (int32_t e = lane; e < n; e += 32)
        max = logits[e] > max ? logits[e] : max;
#pragma unroll
    for (int m = 16; m > 0; m /= 2) {
        const float o = __shfl_xor_sync(0xffffffffu, max, m);
        max = o > max ? o : max;
    }
    for (int32_t e = lane; e < n; e += 32)
        score[e] = sl_exp(__fsub_rn(logits[e], max));
    __syncwarp();
    for (int32_t e = 0; e < n; e++) /* in the order the CPU has */
        sum = __fadd_rn(sum, score[e]);
    __syncwarp();
    return sum;
}

/* Fills score and choice; returns what weights are divided by if not by their own sum. */
static __device__ float score_experts(const sl_op_route &a, const float *logits, float *score,
                                      float *choices)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    const bool sigmoid = a.rule.score == SL_ROUTE_SIGMOID;
    const bool by_logit = !sigmoid && a.bias == nullptr && a.rule.group_top <= 1;
    const float sum = sigmoid ? 1.0f : softmax(logits, a.n_experts, score);
    for (int32_t e = lane; e < a.n_experts; e += 32) {
        if (sigmoid)
            score[e] = __fdiv_rn(1.0f, __fadd_rn(1.0f, sl_exp(-logits[e])));
        else if (!by_logit)
            score[e] = __fdiv_rn(score[e], sum);
        choices[e] = by_logit            ? logits[e]
                     : a.bias != nullptr ? __fadd_rn(score[e], a.bias[e])
                                         : score[e];
    }
    __syncwarp();
    return by_logit ? sum : 1.0f;
}

/* The bits of this lane's experts that are in groups left out. groups: room for a value each. */
static __device__ uint32_t leave_groups_out(const sl_op_route &a, const float *choices,
                                            float *groups)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int32_t n_groups = a.rule.n_groups, size = a.n_experts / n_groups;
    for (int32_t g = lane; g < n_groups; g += 32) {
        choice last = {0.0f, -1};
        float sum = 0.0f;
        for (int32_t i = 0; i < a.rule.group_top; i++) { /* the best of those behind the last */
            choice c = {0.0f, -1};
            for (int32_t e = g * size; e < (g + 1) * size; e++) {
                const choice o = {choices[e], e};
                if ((last.idx < 0 || is_better(last, o)) && e != last.idx && is_better(o, c))
                    c = o;
            }
            sum = __fadd_rn(sum, c.value);
            last = c;
        }
        groups[g] = sum;
    }
    __syncwarp();
    uint32_t in = 0, out = 0;
    for (int32_t i = 0; i < a.rule.top_groups; i++)
        take_best(groups, n_groups, &in);
    __syncwarp();
    for (int32_t g = lane, i = 0; g < n_groups; g += 32, i++)
        groups[g] = (in >> i & 1) != 0 ? 1.0f : 0.0f;
    __syncwarp();
    for (int32_t e = lane, i = 0; e < a.n_experts; e += 32, i++)
        out |= groups[e / size] == 0.0f ? 1u << i : 0u;
    return out;
}

/* Floats of shared memory that a row has. */
static __host__ __device__ int32_t room(const sl_op_route &a)
{
    return 2 * a.n_experts + a.rule.n_groups;
}

static __global__ void route_kernel(const sl_op_route a)
{
    SL_SMEM(float, smem);
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int32_t t = static_cast<int32_t>(blockIdx.x) * WARPS + warp;
    float *score = smem + warp * room(a), *choices = score + a.n_experts;
    sl_grid_wait();
    if (t >= a.n)
        return;
    const float whole =
        score_experts(a, a.logits + static_cast<int64_t>(t) * a.n_experts, score, choices);
    uint32_t taken = a.rule.n_groups > 1 ? leave_groups_out(a, choices, choices + a.n_experts) : 0;
    float sum = 0.0f, mine = 0.0f;
    for (int32_t s = 0; s < a.top_k; s++) {
        const choice c = take_best(choices, a.n_experts, &taken);
        const float w = score[c.idx];
        sum = __fadd_rn(sum, w);
        mine = s == lane ? w : mine;
        if (lane == 0)
            a.experts[static_cast<int64_t>(t) * a.top_k + s] = c.idx;
    }
    sum = !a.rule.renormalize ? whole : sum < a.rule.sum_min ? a.rule.sum_min : sum;
    if (lane < a.top_k)
        a.weights[static_cast<int64_t>(t) * a.top_k + lane] =
            __fmul_rn(__fdiv_rn(mine, sum), a.rule.scale);
}

extern "C" void sl_cuda_route(struct sl_backend *be, const struct sl_op_route *a)
{
    SL_ASSERT(sl_route_fits(a->n_experts, a->top_k, &a->rule));
    sl_launch(sl_cuda(be), route_kernel, dim3((unsigned)SL_CEIL_DIV(a->n, WARPS)), dim3(32 * WARPS),
              WARPS * (size_t)room(*a) * sizeof(float), *a);
}
