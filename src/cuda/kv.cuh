/* SPDX-License-Identifier: MIT
 * kv.cuh - how keys and values lie in a page, and how attention's matrix instruction gets them.
 *
 * A format of the pages is a trait: attention is a template over it and touches pages through
 * nothing else. Shared memory holds rows of a format as the page does, each followed by 16 bytes,
 * so that the eight rows an ldmatrix reads lie in different banks (a row is an odd number of 16
 * bytes); what is not BF16 yet becomes BF16 in the registers, in key_frags and value_frags.
 *
 * BF16: a tile of 16 positions is [16][D] row-major, for keys and for values.
 */
#ifndef SL_CUDA_KV_CUH
#define SL_CUDA_KV_CUH

#include "cuda/ptx.cuh"
#include "ops/ops.h"

#include <string.h>

struct sl_kv_bf16 {
    /* Bytes of a position's row of one head, in a page and in shared memory. */
    static constexpr __host__ __device__ int row_bytes(int dim)
    {
        return dim * 2;
    }
    static constexpr __host__ __device__ int smem_row(int dim)
    {
        return (dim / 8 | 1) * 16;
    }

    /* The B operands of a score: keys key .. key + 15 as columns, dimensions dim .. dim + 15 as the
     * sum; b[0..1] for the first eight keys, b[2..3] for the others. */
    template <int D>
    static __device__ __forceinline__ void key_frags(uint32_t b[4], const uint8_t *tile, int key,
                                                     int dim)
    {
        int lane = static_cast<int>(threadIdx.x) & 31;
        int row = key + (lane & 7) + (lane >> 4) * 8, col = dim + (lane >> 3 & 1) * 8;
        sl_ldmatrix_x4(b, tile + row * smem_row(D) + col * 2);
    }

    /* The B operands of a sum of values: dimensions dim .. dim + 15 as columns, keys key ..
     * key + 15 as the sum; b[0..1] for the first eight dimensions, b[2..3] for the others. */
    template <int D>
    static __device__ __forceinline__ void value_frags(uint32_t b[4], const uint8_t *tile, int key,
                                                       int dim)
    {
        int lane = static_cast<int>(threadIdx.x) & 31;
        int row = key + (lane & 7) + (lane >> 3 & 1) * 8, col = dim + (lane >> 4) * 8;
        sl_ldmatrix_x4_trans(b, tile + row * smem_row(D) + col * 2);
    }
};

/* Where the 16 positions that hold pos lie in a plane of a page. */
static __device__ __forceinline__ uint32_t sl_kv_tile_at(int kv_head, int block_size, int pos)
{
    return static_cast<uint32_t>(kv_head * (block_size / SL_KV_TILE) +
                                 pos % block_size / SL_KV_TILE);
}

static __device__ __forceinline__ uint32_t sl_pack_bf16(float lo, float hi)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(lo, hi); /* one instruction */
    uint32_t u;
    memcpy(&u, &pair, sizeof u);
    return u;
}

/* Is one of the two BF16 numbers infinite or NaN? An exponent of all ones carries into the sign,
 * which was masked out. */
static __device__ __forceinline__ bool sl_not_finite2(uint32_t pair)
{
    return (((pair & 0x7F807F80u) + 0x00800080u) & 0x80008000u) != 0;
}

#endif
