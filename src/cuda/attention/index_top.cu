/* SPDX-License-Identifier: MIT
 * index_top.cu - the top_k positions with the largest scores of a row, in ascending order: exactly
 * those of the CPU for the same scores.
 *
 * A block has a row. Three passes over its scores count them by 11, 11 and 10 bits of their order,
 * which finds the top_k-th largest to the bit and how many of those equal to it are taken; a last
 * pass writes positions down, the lowest of equal scores first. Scores were just written and come
 * from L2: 4 x 4 bytes of each.
 */
#include "cuda/attention/index.cuh"

#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

#define TOP_THREADS 1024
#define TOP_WARPS   (TOP_THREADS / 32)
#define TOP_BITS    11
#define TOP_DIGITS  (1 << TOP_BITS)
#define TOP_EACH    4 /* neighbouring scores of a thread */
static_assert(TOP_DIGITS == 2 * TOP_THREADS, "a thread has two digits");

struct top_smem {
    uint32_t count[TOP_DIGITS];
    uint32_t sums[TOP_WARPS];
    uint32_t digit, wanted;
};

/* In the order of the numbers: zeros of both signs are one, NaN is less than all. */
static __device__ __forceinline__ uint32_t top_order(float x)
{
    const uint32_t u = __float_as_uint(__fadd_rn(x, 0.0f));
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return 0;
    return (u >> 31) != 0 ? ~u : u | 0x80000000u;
}

/* The sum of x of the threads before this one; *all: of the block. */
static __device__ __forceinline__ uint32_t top_scan(struct top_smem *s, uint32_t x, uint32_t *all)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t up = x;
#pragma unroll
    for (unsigned d = 1; d < 32; d *= 2) {
        const uint32_t y = __shfl_up_sync(0xFFFFFFFFu, up, d);
        up += lane >= d ? y : 0;
    }
    if (lane == 31)
        s->sums[warp] = up;
    __syncthreads();
    const uint32_t of = s->sums[lane];
    const uint32_t before = __reduce_add_sync(0xFFFFFFFFu, lane < warp ? of : 0);
    *all = __reduce_add_sync(0xFFFFFFFFu, of);
    __syncthreads();
    return before + up - x;
}

/* The thread's four scores from i on, of n, in order. */
static __device__ __forceinline__ int top_load(const float *x, int32_t i, int32_t n,
                                               uint32_t (&to)[TOP_EACH])
{
    if (i >= n)
        return 0;
    const float4 v = __ldcg(reinterpret_cast<const float4 *>(x + i));
    const float of[TOP_EACH] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int k = 0; k < TOP_EACH; k++)
        to[k] = top_order(of[k]);
    return min(n - i, TOP_EACH);
}

/* Which digit the wanted-th largest has, and the how-manieth of it it is. */
static __device__ __forceinline__ void top_find(struct top_smem *s, uint32_t wanted)
{
    const int high = TOP_DIGITS - 1 - 2 * static_cast<int>(threadIdx.x);
    const uint32_t first = s->count[high], second = s->count[high - 1];
    uint32_t all;
    const uint32_t before = top_scan(s, first + second, &all);
    if (before < wanted && wanted <= before + first + second) {
        const bool is_first = wanted <= before + first;
        s->digit = static_cast<uint32_t>(is_first ? high : high - 1);
        s->wanted = wanted - before - (is_first ? 0 : first);
    }
    __syncthreads();
}

/* The top_k-th largest, and how many equal to it are taken. */
static __device__ __forceinline__ uint32_t top_threshold(struct top_smem *s, const float *x,
                                                         int32_t n, uint32_t *wanted)
{
    uint32_t known = 0, mask = 0;
#pragma unroll 1
    for (int shift = 32 - TOP_BITS; mask != 0xFFFFFFFFu; shift = max(shift - TOP_BITS, 0)) {
        const uint32_t low = shift == 0 ? ~mask : TOP_DIGITS - 1; /* the last has fewer bits */
        for (unsigned i = threadIdx.x; i < TOP_DIGITS; i += TOP_THREADS)
            s->count[i] = 0;
        __syncthreads();
#pragma unroll 2
        for (int32_t i = TOP_EACH * static_cast<int32_t>(threadIdx.x); i < n;
             i += TOP_EACH * TOP_THREADS) {
            uint32_t u[TOP_EACH];
            const int here = top_load(x, i, n, u);
#pragma unroll
            for (int k = 0; k < TOP_EACH; k++)
                if (k < here && (u[k] & mask) == known)
                    atomicAdd(&s->count[u[k] >> shift & low], 1u);
        }
        __syncthreads();
        top_find(s, *wanted);
        known |= s->digit << shift;
        mask |= low << shift;
        *wanted = s->wanted;
        __syncthreads();
    }
    return known;
}

static __global__ void __launch_bounds__(TOP_THREADS)
    index_top_kernel(const __grid_constant__ struct sl_index_rows a)
{
    SL_SMEM(struct top_smem, s);
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int64_t token = a.first + static_cast<int64_t>(blockIdx.x);
    const int32_t n = a.positions[token] + 1;
    if (n <= a.top_k)
        return;
    const float *x = a.scores + static_cast<int64_t>(blockIdx.x) * a.ld;
    int32_t *top = a.top + token * a.top_k;
    uint32_t n_equal = static_cast<uint32_t>(a.top_k);
    const uint32_t least = top_threshold(s, x, n, &n_equal);
    uint32_t more = 0, equal = 0; /* before the scores at hand */
#pragma unroll 1
    for (int32_t at = 0; at < n; at += TOP_EACH * TOP_THREADS) {
        const int32_t i = at + TOP_EACH * static_cast<int32_t>(threadIdx.x);
        uint32_t u[TOP_EACH], mine = 0, all;
        const int here = top_load(x, i, n, u);
#pragma unroll
        for (int k = 0; k < TOP_EACH; k++) /* two counts, of up to 4096 each */
            mine += k >= here ? 0 : u[k] > least ? 1u << 16 : u[k] == least ? 1u : 0;
        const uint32_t before = top_scan(s, mine, &all);
        uint32_t n_more = more + (before >> 16), n_same = equal + (before & 0xFFFFu);
#pragma unroll
        for (int k = 0; k < TOP_EACH; k++) {
            if (k >= here || u[k] < least)
                continue;
            if (u[k] > least || n_same < n_equal)
                top[n_more + min(n_same, n_equal)] = i + k;
            n_more += u[k] > least;
            n_same += u[k] == least;
        }
        more += all >> 16;
        equal += all & 0xFFFFu;
    }
}

void sl_index_largest(struct sl_cuda *cu, const struct sl_index_rows *rows)
{
    sl_launch(cu, index_top_kernel, dim3(static_cast<unsigned>(rows->n)), dim3(TOP_THREADS),
              sizeof(struct top_smem), *rows);
}
