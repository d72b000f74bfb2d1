/* SPDX-License-Identifier: MIT
 * ptx_turn.cuh - 8x8 matrices turned within a warp, with inline PTX too.
 *
 * A product's result lies as c of sl_mma_bf16: with g = lane / 4 and t = lane % 4, row g and the
 * columns 2t, 2t + 1. Turned, lane l has of row g of the transposed matrix the columns 2t, 2t + 1:
 * what a second operand wants.
 */
#ifndef SL_CUDA_PTX_TURN_CUH
#define SL_CUDA_PTX_TURN_CUH

#include "cuda/ptx.cuh"

/* Of 16-bit numbers, two in a register. */
static __device__ __forceinline__ uint32_t sl_turn(uint32_t pair)
{
#ifdef SL_CUDA_SIM
    const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
    const uint32_t lo = __shfl_sync(0xFFFFFFFFu, pair, 8 * t + g / 2);
    const uint32_t hi = __shfl_sync(0xFFFFFFFFu, pair, 8 * t + 4 + g / 2);
    return (lo >> g % 2 * 16 & 0xFFFFu) | hi >> g % 2 * 16 << 16;
#else
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(pair));
    return pair;
#endif
}

/* Of floats: their upper and their lower halves. */
static __device__ __forceinline__ void sl_turn2(float &x, float &y)
{
    const uint32_t a = __float_as_uint(x), b = __float_as_uint(y);
    const uint32_t lo = sl_turn(__byte_perm(a, b, 0x5410));
    const uint32_t hi = sl_turn(__byte_perm(a, b, 0x7632));
    x = __uint_as_float(__byte_perm(lo, hi, 0x5410));
    y = __uint_as_float(__byte_perm(lo, hi, 0x7632));
}

#endif
