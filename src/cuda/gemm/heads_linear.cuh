/* SPDX-License-Identifier: MIT
 * heads_linear.cuh - products of heads: each has a matrix of its own, a few hundred rows and
 * columns, and values of its own.
 *
 * A block has up to 8 or 64 tokens of a head, whose values lie in shared memory, and four row
 * blocks of its matrix at a time, a warp each; weights go from memory into the registers of
 * mma.sync, some steps ahead and before the kernel ahead has ended. With few tokens what counts is
 * to read the weights: 128 heads of 512 x 128 in BF16 are 16.8 MB, 5.0 us at 3.35 TB/s. With many
 * it is to write the sums: as floats 256 KB a token for 131 KB of weights and 17 MFLOP. Then a
 * block goes through all rows of a head.
 *
 * An output has one accumulator, from +0, to which mma.m16n8k16 adds 16 columns after 16 columns in
 * ascending order: nothing depends on how many tokens there are.
 */
#ifndef SL_CUDA_HEADS_LINEAR_CUH
#define SL_CUDA_HEADS_LINEAR_CUH

#include "cuda/gemm/heads_linear.h"
#include "cuda/gemm/weight_format.cuh"
#include "cuda/launch.cuh"

#include <string.h>

#define SL_HEADS_WARPS 4

/* The tokens' values of a head, zeros behind their ends, rows `pitch` bytes apart. */
static __device__ __forceinline__ void sl_heads_bring(const struct sl_heads_product &a,
                                                      const __nv_bfloat16 *x, int32_t n,
                                                      int32_t pitch, uint8_t *smem)
{
    const int32_t pieces = a.n_k64 * 8;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < n * pieces; i += SL_HEADS_WARPS * 32) {
        const int32_t token = i / pieces, piece = i % pieces;
        const __nv_bfloat16 *from = x + token * a.ld_x + piece * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (a.aligned) {
            if (piece * 8 < a.k)
                v = __ldcg(reinterpret_cast<const uint4 *>(from));
        } else {
            uint16_t one[8] = {};
            for (int j = 0; j < 8; j++)
                if (piece * 8 + j < a.k)
                    one[j] = __bfloat16_as_ushort(from[j]);
            memcpy(&v, one, sizeof v);
        }
        *reinterpret_cast<uint4 *>(smem + token * pitch + piece * 16) = v;
    }
}

/* acc += the fragment a times step j's columns of the tokens. lane_x: where the lane reads. */
template <int NT>
static __device__ __forceinline__ void sl_heads_multiply(float (&acc)[NT / 8][4],
                                                         const uint32_t (&a)[2][4],
                                                         const uint8_t *lane_x, int32_t pitch)
{
#pragma unroll
    for (int t = 0; t < NT / 8; t++) { /* 32 columns of eight tokens */
        uint32_t b[4];
        sl_ldmatrix_x4(b, lane_x + t * 8 * pitch);
        sl_mma_bf16(acc[t], a[0], b);
        sl_mma_bf16(acc[t], a[1], b + 2);
    }
}

template <int NT>
static __device__ __forceinline__ void sl_heads_store(const struct sl_heads_product &a,
                                                      const float (&acc)[NT / 8][4], int32_t head,
                                                      int32_t block, int32_t first, int32_t n)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
    float *out = a.out + first * a.ld_out + head * a.step_out;
#pragma unroll
    for (int i = 0; i < NT / 2; i++) {
        const int32_t token = i / 4 * 8 + lane % 4 * 2 + i % 2;
        const int32_t row = block * SL_CUDA_ROW_BLOCK + lane / 4 + i / 2 % 2 * 8;
        if (token < n && row < a.n_rows)
            out[token * a.ld_out + row] = acc[i / 4][i % 4];
    }
}

/* A warp's way through its row blocks of a head: steps of 64 columns, block after block. */
template <class F> struct sl_heads_walk {
    static constexpr int subs = F::unit_k / 64;
    const struct sl_heads_product &a;
    const uint8_t *stream;   /* of the head */
    int32_t block, k, apart; /* of the step that is loaded next; row blocks from one to the next */

    __device__ __forceinline__ void load(typename F::raw &raw)
    {
        if (block >= a.n_blocks)
            return;
        F::template load<true>(raw, stream + block * a.block_bytes + k / subs * F::unit_bytes,
                               k % subs, static_cast<int>(threadIdx.x % 32));
        k++;
        if (k == a.n_k64) {
            k = 0;
            block += apart;
        }
    }
};

/* acc += one step; x: where the lane reads its columns. */
template <class F, int NT>
static __device__ __forceinline__ void sl_heads_step(float (&acc)[NT / 8][4],
                                                     const typename F::raw &raw, const uint8_t *x,
                                                     int32_t pitch)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t frag[2][4];
        F::frag(raw, 2 * half, frag[0]);
        F::frag(raw, 2 * half + 1, frag[1]);
        sl_heads_multiply<NT>(acc, frag, x + half * 64, pitch);
    }
}

template <class F, int NT>
static __global__ void __launch_bounds__(SL_HEADS_WARPS * 32)
    sl_heads_kernel(const __grid_constant__ struct sl_heads_product a)
{
    constexpr int AHEAD = NT == 8 ? 4 : 2;
    SL_SMEM(uint8_t, smem);
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t head = static_cast<int32_t>(blockIdx.y);
    const int32_t first = static_cast<int32_t>(blockIdx.z) * NT, n = min(a.n - first, NT);
    const int32_t pitch = a.n_k64 * 128 + 16;
    int32_t block = static_cast<int32_t>(blockIdx.x * SL_HEADS_WARPS + threadIdx.x / 32), k = 0;
    sl_heads_walk<F> walk = {a, a.streams[head], block, 0,
                             static_cast<int32_t>(gridDim.x) * SL_HEADS_WARPS};
    typename F::raw raw[AHEAD];
    sl_grid_launch_dependents();
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        walk.load(raw[i]);
    sl_grid_wait();
    sl_heads_bring(a, a.x + first * a.ld_x + head * a.step_x, n, pitch, smem);
    __syncthreads();
    const uint8_t *x = smem + lane % 8 * pitch + lane / 8 * 16;
    float acc[NT / 8][4] = {};
#pragma unroll 1
    while (block < a.n_blocks) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (block >= a.n_blocks)
                break;
            sl_heads_step<F, NT>(acc, raw[i], x + k * 128, pitch);
            walk.load(raw[i]);
            if (++k < a.n_k64)
                continue;
            sl_wf_restore<F>(acc);
            sl_heads_store<NT>(a, acc, head, block, first, n);
#pragma unroll
            for (int j = 0; j < NT / 2; j++)
                acc[j / 4][j % 4] = 0.0f;
            k = 0;
            block += walk.apart;
        }
    }
}

/* As many blocks as keep all SMs busy; each has whole rounds of row blocks. */
static inline int32_t sl_heads_blocks(const struct sl_cuda *cu, const struct sl_heads_product *a,
                                      int32_t tiles)
{
    const int32_t most = SL_CEIL_DIV(a->n_blocks, SL_HEADS_WARPS);
    int32_t rounds = 1;
    while (rounds < most && SL_CEIL_DIV(most, 2 * rounds) * tiles * a->n_heads >= 8 * cu->n_sms)
        rounds *= 2;
    return SL_CEIL_DIV(most, rounds);
}

template <class F, int NT>
static void sl_heads_launch(struct sl_cuda *cu, const struct sl_heads_product *a)
{
    const int32_t tiles = SL_CEIL_DIV(a->n, NT);
    const dim3 grid((unsigned)sl_heads_blocks(cu, a, tiles), (unsigned)a->n_heads, (unsigned)tiles);
    sl_launch(cu, sl_heads_kernel<F, NT>, grid, dim3(SL_HEADS_WARPS * 32),
              (size_t)NT * (size_t)(a->n_k64 * 128 + 16), *a);
}

#define SL_HEADS_KERNELS(name)                                                 \
    void sl_heads_##name(struct sl_cuda *cu, const struct sl_heads_product *a) \
    {                                                                          \
        if (a->n <= 8)                                                         \
            sl_heads_launch<sl_wf_##name, 8>(cu, a);                           \
        else                                                                   \
            sl_heads_launch<sl_wf_##name, 64>(cu, a);                          \
    }

#endif
