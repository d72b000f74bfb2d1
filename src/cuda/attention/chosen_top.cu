/* SPDX-License-Identifier: MIT
 * chosen_top.cu - the blocks with the largest scores of each token and key head, in ascending
 * order: exactly those of the CPU for the same scores.
 *
 * Scores of a head are a few hundred to some thousands, which a thread block counts in four passes
 * by eight bits of their order: that finds the least one that is taken, to the bit, and how many of
 * those equal to it are; a last pass writes the blocks down, the lowest of equal ones first. Scores
 * were just written and come from L2: 5 x 4 bytes of each.
 */
#include "cuda/attention/chosen.cuh"
#include "cuda/attention/index_scan.cuh"

#include "cuda/launch.cuh"

#define TOP_THREADS 256 /* as many as digits */
#define TOP_WARPS   (TOP_THREADS / 32)
#define TOP_BITS    8

struct top_args {
    struct sl_chosen_rule rule;
    struct sl_chosen_scores scores;
    int32_t *top;
};

struct top_smem {
    uint32_t count[TOP_THREADS]; /* scores by digit */
    uint32_t sums[TOP_WARPS];
    uint32_t digit, wanted;
};

/* The least that is taken of n scores; *wanted: how many are, then how many equal to it. */
static __device__ __forceinline__ uint32_t top_threshold(struct top_smem *s, const float *x,
                                                         int32_t n, uint32_t *wanted)
{
    uint32_t known = 0, mask = 0, all;
#pragma unroll 1
    for (int shift = 32 - TOP_BITS; shift >= 0; shift -= TOP_BITS) {
        s->count[threadIdx.x] = 0;
        __syncthreads();
#pragma unroll 4
        for (int32_t i = static_cast<int32_t>(threadIdx.x); i < n; i += TOP_THREADS) {
            const uint32_t u = sl_score_order(__ldcg(x + i));
            if ((u & mask) == known)
                atomicAdd(&s->count[u >> shift & (TOP_THREADS - 1)], 1u);
        }
        __syncthreads();
        const uint32_t digit = TOP_THREADS - 1 - threadIdx.x, mine = s->count[digit];
        const uint32_t before = sl_block_scan<TOP_WARPS>(s->sums, mine, &all);
        if (before < *wanted && *wanted <= before + mine) {
            s->digit = digit;
            s->wanted = *wanted - before;
        }
        __syncthreads();
        known |= s->digit << shift;
        mask |= (TOP_THREADS - 1u) << shift;
        *wanted = s->wanted;
    }
    return known;
}

/* The `wanted` largest of n, plus `lead`, in ascending order. */
static __device__ __forceinline__ void top_write(struct top_smem *s, const float *x, int32_t n,
                                                 uint32_t wanted, int32_t lead, int32_t *top)
{
    uint32_t n_equal = wanted, more = 0, same = 0, all;
    const uint32_t least = top_threshold(s, x, n, &n_equal);
#pragma unroll 1
    for (int32_t at = 0; at < n; at += TOP_THREADS) {
        const int32_t i = at + static_cast<int32_t>(threadIdx.x);
        const uint32_t u = i < n ? sl_score_order(__ldcg(x + i)) : 0;
        const bool above = i < n && u > least, equal = i < n && u == least;
        const uint32_t before = sl_block_scan<TOP_WARPS>(s->sums,
                                                         above   ? 1u << 16
                                                         : equal ? 1u
                                                                 : 0,
                                                         &all);
        const uint32_t n_same = same + (before & 0xFFFFu);
        if (above || (equal && n_same < n_equal))
            top[more + (before >> 16) + min(n_same, n_equal)] = lead + i;
        more += all >> 16;
        same += all & 0xFFFFu;
    }
}

static __global__ void __launch_bounds__(TOP_THREADS)
    chosen_top_kernel(const __grid_constant__ struct top_args a)
{
    SL_SMEM(struct top_smem, s);
    const struct sl_chosen_rule &r = a.rule;
    const int32_t row = static_cast<int32_t>(blockIdx.x) / a.scores.n_kv_heads;
    const int32_t head = static_cast<int32_t>(blockIdx.x) % a.scores.n_kv_heads;
    const int64_t token = a.scores.first + static_cast<int64_t>(row);
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int32_t n = a.scores.positions[token] / r.block + 1, ends = r.lead + r.tail;
    int32_t *top = a.top + static_cast<int64_t>(blockIdx.x) * r.n_top;
    if (n <= r.n_top)
        return;
    if (r.n_top > ends)
        top_write(s, a.scores.scores + row * a.scores.ld + head * a.scores.ld_head + r.lead,
                  n - ends, static_cast<uint32_t>(r.n_top - ends), r.lead, top + r.lead);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < ends; i += TOP_THREADS)
        top[i < r.lead ? i : r.n_top - ends + i] = i < r.lead ? i : n - ends + i;
}

void sl_chosen_largest(struct sl_cuda *cu, const struct sl_chosen_rule *rule,
                       const struct sl_chosen_scores *scores, int32_t *top)
{
    const struct top_args a = {*rule, *scores, top};
    sl_launch(cu, chosen_top_kernel,
              dim3(static_cast<unsigned>(scores->n) * static_cast<unsigned>(scores->n_kv_heads)),
              dim3(TOP_THREADS), sizeof(struct top_smem), a);
}
