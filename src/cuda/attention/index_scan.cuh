/* SPDX-License-Identifier: MIT
 * index_scan.cuh - how the kernels of an index count: sums over the threads of a block, the items
 * of the spans of a step, and the order of scores by which the largest are found.
 */
#ifndef SL_CUDA_INDEX_SCAN_CUH
#define SL_CUDA_INDEX_SCAN_CUH

#include "cuda/ptx.cuh"
#include "ops/device.h"

/* The order of numbers: zeros of both signs are one, NaN is less than all. */
static __device__ __forceinline__ uint32_t sl_score_order(float x)
{
    const uint32_t u = __float_as_uint(__fadd_rn(x, 0.0f));
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return 0;
    return (u >> 31) != 0 ? ~u : u | 0x80000000u;
}

/* The sum of x of a warp's lanes up to this one. */
static __device__ __forceinline__ uint32_t sl_warp_scan(uint32_t x)
{
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned d = 1; d < 32; d *= 2) {
        const uint32_t y = __shfl_up_sync(0xFFFFFFFFu, x, d);
        x += lane >= d ? y : 0;
    }
    return x;
}

/* The sum of x of the threads before this one, of a block of WARPS <= 32; *all: of the block.
 * sums[WARPS] is in shared memory and free again when this returns. */
template <int WARPS>
static __device__ __forceinline__ uint32_t sl_block_scan(uint32_t *sums, uint32_t x, uint32_t *all)
{
    static_assert(WARPS <= 32, "a lane for each warp");
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t up = sl_warp_scan(x);
    if (lane == 31)
        sums[warp] = up;
    __syncthreads();
    const uint32_t of = lane < WARPS ? sums[lane] : 0;
    const uint32_t before = __reduce_add_sync(0xFFFFFFFFu, lane < warp ? of : 0);
    *all = __reduce_add_sync(0xFFFFFFFFu, of);
    __syncthreads();
    return before + up - x;
}

/* until[i]: items of the spans up to i, each of which has items_of(span); gives how many there
 * are. Each thread has neighbouring spans. until[n_spans] and sums[WARPS] are in shared memory. */
template <int WARPS, typename F>
static __device__ __forceinline__ int32_t sl_count_items(const struct sl_span *spans,
                                                         int32_t n_spans, int32_t *until,
                                                         uint32_t *sums, const F &items_of)
{
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    const int32_t each = (n_spans + WARPS * 32 - 1) / (WARPS * 32);
    const int32_t from = min(thread * each, n_spans), to = min(from + each, n_spans);
    int32_t mine = 0;
    uint32_t all;
    for (int32_t i = from; i < to; i++)
        until[i] = mine += items_of(spans[i]);
    const uint32_t before = sl_block_scan<WARPS>(sums, static_cast<uint32_t>(mine), &all);
    for (int32_t i = from; i < to; i++)
        until[i] += static_cast<int32_t>(before);
    __syncthreads();
    return static_cast<int32_t>(all);
}

/* The span that item i, which exists, is of; *first: its first item. */
static __device__ __forceinline__ int32_t sl_span_of_item(const int32_t *until, int32_t n_spans,
                                                          int32_t i, int32_t *first)
{
    int32_t lo = 0, hi = n_spans - 1;
    while (lo < hi) {
        const int32_t mid = (lo + hi) / 2;
        if (until[mid] > i)
            hi = mid;
        else
            lo = mid + 1;
    }
    *first = lo > 0 ? until[lo - 1] : 0;
    return lo;
}

#endif
