/* SPDX-License-Identifier: MIT
 * The choice of experts, a warp a row. A lane has the experts lane, lane + 32, ..., and a bit of a
 * word for each of them; scores lie in shared memory. A choice is two reductions of the warp, of
 * the values as ordered numbers and of the index. The steps and their order are those of
 * src/cpu/route.c.
 */
#include "cuda/launch.cuh"
#include "cuda/math.cuh"

#include "base/limits.h"

#include <math.h>

#define WARPS 4 /* of a block */

static_assert(SL_MAX_EXPERTS <= 32 * 32, "a bit for each expert of a lane");
static_assert(SL_MAX_TOP_EXPERTS <= 32, "a lane for each expert of a row");

/* Numbers that are ordered as values are, all above 1; -0 is 0. What is not a number comes behind
 * all numbers, and 0 is nothing at all. */
static __device__ __forceinline__ uint32_t order_of(float v)
{
    const uint32_t bits = __float_as_uint(__fadd_rn(v, 0.0f));
    if (isnan(v))
        return 1;
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

/* The warp's best of x[n] without what is taken, which it then is; of equal ones the first. */
static __device__ __forceinline__ int32_t take_best(const float *x, int32_t n, uint32_t *taken)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    uint32_t best = 0;
    int32_t at = INT32_MAX;
    for (int32_t e = lane, i = 0; e < n; e += 32, i++) {
        const uint32_t o = (*taken >> i & 1) != 0 ? 0 : order_of(x[e]);
        at = o > best ? e : at;
        best = o > best ? o : best;
    }
    const uint32_t most = __reduce_max_sync(0xffffffffu, best);
    const int32_t first = __reduce_min_sync(0xffffffffu, best == most ? at : INT32_MAX);
    if (first % 32 == lane)
        *taken |= 1u << first / 32;
    return first;
}

/* Fills score with exp(logit - the largest). */
static __device__ void exponentials(const float *logits, int32_t n, float *score)
{
    float max = -INFINITY;
    for (int32_t e = static_cast<int32_t>(threadIdx.x % 32); e < n; e += 32)
        max = logits[e] > max ? logits[e] : max;
#pragma unroll
    for (int m = 16; m > 0; m /= 2) {
        const float o = __shfl_xor_sync(0xffffffffu, max, m);
        max = o > max ? o : max;
    }
    for (int32_t e = static_cast<int32_t>(threadIdx.x % 32); e < n; e += 32)
        score[e] = sl_exp(__fsub_rn(logits[e], max));
    __syncwarp();
}

/* In the order the CPU has. */
static __device__ float sum_of(const float *x, int32_t n)
{
    float sum = 0.0f;
#pragma unroll 8
    for (int32_t e = 0; e < n; e++)
        sum = __fadd_rn(sum, x[e]);
    return sum;
}

/* SparseMixer's weight of expert e; score has room for exponentials. What is far below, or taken
 * before, adds 0 to the sum, which has the CPU's order. */
static __device__ float mixer_weight(const sl_op_route &a, const float *logits, int32_t e,
                                     uint32_t taken, float *score)
{
    const float max = logits[e];
    __syncwarp(); /* others may still read the last sum's */
    for (int32_t i = static_cast<int32_t>(threadIdx.x % 32), k = 0; i < a.n_experts; i += 32, k++) {
        const float size = fabsf(logits[i]) > max ? fabsf(logits[i]) : max;
        const bool far = __fdiv_rn(__fsub_rn(max, logits[i]), size) > a.rule.near;
        const bool in = i == e || !((taken >> k & 1) != 0 || far);
        score[i] = in ? sl_exp(__fsub_rn(logits[i], max)) : 0.0f;
    }
    __syncwarp();
    return __fdiv_rn(1.0f, sum_of(score, a.n_experts));
}

/* sqrt(ln(1 + exp(x))), as the CPU has it but for the library's log1p. */
static __device__ __forceinline__ float root_softplus(float x)
{
    const float more = static_cast<float>(log1p(static_cast<double>(sl_exp(-fabsf(x)))));
    return __fsqrt_rn(__fadd_rn(x > 0.0f ? x : 0.0f, more));
}

/* The s-th expert of a token that says which, of ids as embed has them: below 0 the step before
 * chose it, and what is no token is token 0, whose result nobody wants. */
static __device__ __forceinline__ int32_t expert_of_token(const sl_op_route &a,
                                                          const int32_t *ids_prev, int32_t t,
                                                          int32_t s)
{
    int32_t id = a.tokens[t];
    if (id < 0)
        id = ids_prev != nullptr ? ids_prev[-1 - id] : 0;
    id = id < 0 || id >= a.n_vocab ? 0 : id;
    return a.of_token[static_cast<int64_t>(id) * a.top_k + s];
}

/* Fills score and choice; returns what weights are divided by if not by their own sum. */
static __device__ float score_experts(const sl_op_route &a, const float *logits, float *score,
                                      float *choices)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    const bool sigmoid = a.rule.score == SL_ROUTE_SIGMOID;
    const bool root = a.rule.score == SL_ROUTE_ROOT_SOFTPLUS, alone = sigmoid || root;
    const bool mixer = a.rule.score == SL_ROUTE_MIXER;
    const bool by_logit = a.bias == nullptr && a.rule.group_top <= 1;
    float sum = 1.0f;
    if (!alone && !mixer)
        exponentials(logits, a.n_experts, score);
    if (!alone && !mixer && !(by_logit && a.rule.renormalize)) /* else nothing is divided by it */
        sum = sum_of(score, a.n_experts);
    __syncwarp();
    for (int32_t e = lane; e < a.n_experts; e += 32) {
        if (sigmoid)
            score[e] = __fdiv_rn(1.0f, __fadd_rn(1.0f, sl_exp(-logits[e])));
        else if (root)
            score[e] = root_softplus(logits[e]);
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
        int32_t last = -1;
        float sum = 0.0f;
        for (int32_t i = 0; i < a.rule.group_top; i++) { /* the best of those behind the last */
            uint32_t best = 0;
            int32_t at = -1;
            for (int32_t e = g * size; e < (g + 1) * size; e++) {
                const uint32_t o = order_of(choices[e]), l = last < 0 ? 0 : order_of(choices[last]);
                const bool behind = last < 0 || o < l || (o == l && e > last);
                at = behind && o > best ? e : at;
                best = behind && o > best ? o : best;
            }
            sum = __fadd_rn(sum, at < 0 ? 0.0f : choices[at]);
            last = at;
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

static __global__ void route_kernel(const sl_op_route a, const int32_t *ids_prev)
{
    SL_SMEM(float, smem);
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int32_t t = static_cast<int32_t>(blockIdx.x) * WARPS + warp;
    float *score = smem + warp * room(a), *choices = score + a.n_experts;
    sl_grid_wait();
    if (t >= a.n)
        return;
    const float *logits = a.logits + static_cast<int64_t>(t) * a.n_experts;
    const float whole = score_experts(a, logits, score, choices);
    uint32_t taken = a.rule.n_groups > 1 ? leave_groups_out(a, choices, choices + a.n_experts) : 0;
    float sum = 0.0f, mine = 0.0f, factor = 1.0f;
    for (int32_t s = 0; s < a.top_k; s++) {
        const int32_t e = a.of_token != nullptr ? expert_of_token(a, ids_prev, t, s)
                                                : take_best(choices, a.n_experts, &taken);
        const float w =
            a.rule.score == SL_ROUTE_MIXER ? mixer_weight(a, logits, e, taken, score) : score[e];
        sum = __fadd_rn(sum, w);
        mine = s == lane ? w : mine;
        if (s == lane && a.expert_scale != nullptr)
            factor = a.expert_scale[e];
        if (lane == 0)
            a.experts[static_cast<int64_t>(t) * a.top_k + s] = e;
    }
    sum = !a.rule.renormalize ? whole : sum < a.rule.sum_min ? a.rule.sum_min : sum;
    if (lane < a.top_k)
        a.weights[static_cast<int64_t>(t) * a.top_k + lane] =
            __fmul_rn(__fmul_rn(__fdiv_rn(mine, sum), a.rule.scale), factor);
}

extern "C" void sl_cuda_route(struct sl_backend *be, const struct sl_op_route *a)
{
    SL_ASSERT(sl_route_fits(a->n_experts, a->top_k, &a->rule));
    SL_ASSERT(a->rule.score != SL_ROUTE_MIXER || a->bias == NULL);
    SL_ASSERT(a->of_token == NULL || (a->tokens != NULL && a->bias == NULL &&
                                      a->rule.n_groups == 1 && a->rule.score != SL_ROUTE_MIXER));
    struct sl_cuda *cu = sl_cuda(be);
    sl_launch(cu, route_kernel, dim3((unsigned)SL_CEIL_DIV(a->n, WARPS)), dim3(32 * WARPS),
              WARPS * (size_t)room(*a) * sizeof(float), *a, cu->ids_prev);
}
