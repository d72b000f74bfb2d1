/* SPDX-License-Identifier: MIT
 * experts_wg.cuh - products of experts with more rows each, by wgmma.
 *
 * The tiles and warps are those of linear_wg.cuh: two warpgroups with two runs of 64 rows each, of
 * gate and of up in a gated product, and all places of a tile. What differs is where a block finds
 * its work: tiles of places are counted on the device, so a block asks memory which expert comes
 * next. All row tiles of a tile of places follow each other, so that blocks that run side by side
 * share its rows, and those of the same expert its weights.
 */
#ifndef SL_CUDA_EXPERTS_WG_CUH
#define SL_CUDA_EXPERTS_WG_CUH

#include "cuda/gemm/experts_gate.cuh"
#include "cuda/gemm/linear_wg.cuh"

#define SL_EXPERTS_GROUPS 2
#define SL_EXPERTS_RUNS   2

template <class F, int NT>
using sl_experts_shape = sl_wg_shape<F, SL_EXPERTS_RUNS, NT, SL_EXPERTS_GROUPS, false>;

struct sl_experts_unit {
    sl_expert_tile tile;
    int32_t block0; /* of the matrix, or of gate and of up */
};

/* Row tiles: of gate and up side by side half as high. */
template <class S>
static __host__ __device__ inline int32_t sl_experts_row_tiles(const sl_expert_product &a)
{
    const int32_t blocks = a.gated ? S::blocks / 2 : S::blocks;
    return (a.n_blocks + blocks - 1) / blocks;
}

template <class S>
static __device__ __forceinline__ sl_experts_unit sl_experts_find(const sl_expert_product &a,
                                                                  int32_t id)
{
    const int32_t n = sl_experts_row_tiles<S>(a), *at = &a.pairs.tiles[id / n].expert;
    return {{sl_load_settled(at), sl_load_settled(at + 1), sl_load_settled(at + 2)},
            id % n * (a.gated ? S::blocks / 2 : S::blocks)};
}

/* Four row blocks that come in one box: group `i / 2`, run `i % 2`. */
static __device__ __forceinline__ int32_t sl_experts_box(const sl_expert_product &a,
                                                         const sl_experts_unit &u, int i)
{
    return u.block0 + 4 * (a.gated ? i / SL_EXPERTS_RUNS : i);
}

/* One lane. */
template <class S, class F>
static __device__ __forceinline__ void sl_experts_bring_w(const sl_expert_product &a,
                                                          int32_t n_units, uint8_t *smem)
{
    sl_wg_bars bars = sl_wg_bars_of(smem);
    sl_wg_place<S::w_slots> at = {0, 1};
    for (int id = static_cast<int>(blockIdx.x); id < n_units; id += static_cast<int>(gridDim.x)) {
        const sl_experts_unit u = sl_experts_find<S>(a, id);
        for (int k = 0; k < a.n_k64; k += S::subs) {
            sl_mbar_wait(&bars.empty_w[at.slot], at.parity);
            sl_mbar_expect_tx(&bars.full_w[at.slot], S::w_slot);
            uint8_t *to = smem + S::w_offset + at.slot * S::w_slot;
#pragma unroll
            for (int i = 0; i < S::blocks / 4; i++)
                sl_blocks_load(to + i * 4 * F::unit_bytes,
                               a.w[a.gated ? i % SL_EXPERTS_RUNS : 0].maps + u.tile.expert,
                               k / S::subs, sl_experts_box(a, u, i), &bars.full_w[at.slot]);
            at.next();
        }
    }
}

/* One lane. Behind a tile's last place come rows of the next expert, whose sums nobody writes. */
template <class S>
static __device__ __forceinline__ void sl_experts_bring_x(const sl_expert_product &a,
                                                          const CUtensorMap *map, int32_t n_units,
                                                          uint8_t *smem)
{
    sl_wg_bars bars = sl_wg_bars_of(smem);
    sl_wg_place<S::x_slots> at = {0, 1};
    for (int id = static_cast<int>(blockIdx.x); id < n_units; id += static_cast<int>(gridDim.x)) {
        const sl_experts_unit u = sl_experts_find<S>(a, id);
        for (int k = 0; k < a.n_k64; k++) {
            sl_mbar_wait(&bars.empty_x[at.slot], at.parity);
            sl_mbar_expect_tx(&bars.full_x[at.slot], S::x_slot);
            sl_tensor_load(smem + S::x_offset + at.slot * S::x_slot, map, k * 64, u.tile.first,
                           &bars.full_x[at.slot]);
            at.next();
        }
    }
}

/* A thread has gate's and up's sums of the same outputs. */
template <int NT>
static __device__ __forceinline__ void sl_experts_store_mid(float (&sum)[2][NT / 8][4],
                                                            const sl_expert_product &a,
                                                            const sl_experts_unit &u, int block)
{
    const float *bias[2] = {sl_expert_bias(a, 0, u.tile.expert),
                            sl_expert_bias(a, 1, u.tile.expert)};
    const int32_t row = block * SL_CUDA_ROW_BLOCK + static_cast<int32_t>(threadIdx.x % 32 / 4);
    float of_row[2][2]; /* gate and up; this row and the one eight below */
#pragma unroll
    for (int i = 0; i < 4; i++)
        of_row[i / 2][i % 2] = bias[i / 2] != nullptr && row + 8 * (i % 2) < a.n_rows
                                   ? bias[i / 2][row + 8 * (i % 2)]
                                   : 0.0f;
#pragma unroll
    for (int i = 0; i < NT / 2; i++) {
        float *g = &sum[0][i / 4][i % 4], *up = &sum[1][i / 4][i % 4];
        if (bias[0] != nullptr) {
            *g = __fadd_rn(*g, of_row[0][i / 2 % 2]);
            *up = __fadd_rn(*up, of_row[1][i / 2 % 2]);
        }
        if (a.in_weights != nullptr) { /* columns are places, as sl_lin_store has them */
            const int at = 8 * (i / 4) + 2 * static_cast<int>(threadIdx.x % 4) + i % 2;
            const float w =
                at < u.tile.n ? sl_expert_weight(a.in_weights, a.pairs, u.tile.first + at) : 0.0f;
            *g = __fmul_rn(w, *g);
            *up = __fmul_rn(w, *up);
        }
    }
    if (a.swiglu.limit > 0.0f && !a.swiglu.late) {
#pragma unroll
        for (int i = 0; i < NT / 2; i++)
            sum[0][i / 4][i % 4] =
                sl_expert_swiglu(a.swiglu, sum[0][i / 4][i % 4], sum[1][i / 4][i % 4]);
    } else {
#pragma unroll
        for (int i = 0; i < NT / 2; i++)
            sum[0][i / 4][i % 4] = sl_expert_gated(a, sum[0][i / 4][i % 4], sum[1][i / 4][i % 4]);
    }
    sl_lin_store<__nv_bfloat16, NT / 8>(sum[0], a.mid, a.n_rows, nullptr, a.n_rows, block,
                                        u.tile.first, u.tile.first + u.tile.n);
}

/* The sums of up, of experts without a gate, or of down: of places first to before end. */
template <int N>
static __device__ __forceinline__ void sl_experts_store_alone(float (&sum)[N / 8][4],
                                                              const sl_expert_product &a,
                                                              const sl_experts_unit &u, int block,
                                                              int32_t first, int32_t end)
{
    if (!a.first) {
        sl_lin_store<float, N / 8>(sum, a.out, a.n_rows, sl_expert_bias(a, 0, u.tile.expert),
                                   a.n_rows, block, first, end);
        return;
    }
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        sum[i / 4][i % 4] = sl_expert_plain(sum[i / 4][i % 4]);
    sl_lin_store<__nv_bfloat16, N / 8>(sum, a.mid, a.n_rows, nullptr, a.n_rows, block, first, end);
}

template <class S, class F, int NT>
static __device__ __forceinline__ void sl_experts_consume(const sl_expert_product &a,
                                                          int32_t n_units, uint8_t *smem)
{
    const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) - 1;
    const int warp = static_cast<int>(threadIdx.x / 32 % 4);
    sl_wg_view<S> v = {};
    v.smem = smem;
    v.block = group * 4 * SL_EXPERTS_RUNS + warp;
    v.w_at = static_cast<uint32_t>(v.block * F::unit_bytes);
    for (int id = static_cast<int>(blockIdx.x); id < n_units; id += static_cast<int>(gridDim.x)) {
        const sl_experts_unit u = sl_experts_find<S>(a, id);
        float sum[SL_EXPERTS_RUNS][NT / 8][4];
        sl_wg_clear<SL_EXPERTS_RUNS, NT>(sum);
        sl_wg_walk<S, F, SL_EXPERTS_RUNS, NT>(sum, v, 0, a.n_k64);
#pragma unroll
        for (int m = 0; m < SL_EXPERTS_RUNS; m++)
            sl_wf_restore<F>(sum[m]);
        if (a.gated) {
            const int block = sl_experts_box(a, u, group * SL_EXPERTS_RUNS) + warp;
            sl_experts_store_mid<NT>(sum, a, u, block);
            continue;
        }
#pragma unroll
        for (int m = 0; m < SL_EXPERTS_RUNS; m++) {
            const int block = sl_experts_box(a, u, group * SL_EXPERTS_RUNS + m) + warp;
            sl_experts_store_alone<NT>(sum[m], a, u, block, u.tile.first, u.tile.first + u.tile.n);
        }
    }
}

template <class F, int NT>
__global__ void __launch_bounds__(128 * (SL_EXPERTS_GROUPS + 1), 1)
    sl_experts_kernel(const __grid_constant__ sl_expert_product a,
                      const __grid_constant__ CUtensorMap x)
{
    typedef sl_experts_shape<F, NT> S;
    SL_SMEM(uint8_t, smem);
    sl_wg_init<S>(smem, 4 * SL_EXPERTS_GROUPS, 1);
    if (a.first) /* only then the kernel of down may look for its tiles */
        sl_grid_wait();
    sl_grid_launch_dependents();
    const int32_t n_units = sl_load_settled(a.pairs.n_tiles) * sl_experts_row_tiles<S>(a);
    if (__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) == 0) {
        sl_regs_give<56>();
        if (threadIdx.x < 32) {
            if (threadIdx.x == 0)
                sl_experts_bring_w<S, F>(a, n_units, smem);
            sl_grid_wait();
        } else {
            sl_grid_wait();
            if (threadIdx.x == 32)
                sl_experts_bring_x<S>(a, &x, n_units, smem);
        }
    } else {
        sl_regs_take<224>();
        sl_grid_wait();
        sl_experts_consume<S, F, NT>(a, n_units, smem);
    }
}

template <class F, int NT>
static void sl_experts_launch(struct sl_cuda *cu, const sl_expert_product *a)
{
    typedef sl_experts_shape<F, NT> S;
    CUtensorMap x;
    SL_ASSERT(!a->by_row);
    cudaError_t e = sl_tensor_map(&x, a->x, a->pairs.n_pairs, a->k, a->k, NT);
    sl_cuda_check(cu, e, "cuTensorMapEncodeTiled");
    const int64_t most = (int64_t)a->pairs.most_tiles * sl_experts_row_tiles<S>(*a);
    sl_launch(cu, sl_experts_kernel<F, NT>, dim3((unsigned)SL_MIN(most, (int64_t)cu->n_sms)),
              dim3(S::threads), S::smem, *a, x);
}

#endif
