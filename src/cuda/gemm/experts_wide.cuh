/* SPDX-License-Identifier: MIT
 * experts_wide.cuh - products of experts with many rows each, by wgmma.
 *
 * A tile is 128 rows of weights and all places of an expert, up to 288 (else its even parts), as
 * two products of up to 144 places each, so that fragments of weights are made once for both. As
 * many columns are multiplied as the next larger of three sizes has: experts with 256 +- 16 places
 * would fill tiles of 128 by four fifths. Weights come as in the wide tiles of linear_wg.cuh, whose
 * rings these are: through registers, two consumer warpgroups with 64 rows each. In a gated product
 * a warp's 16 rows are eight of gate and the same eight of up, so that a thread has both sums, and
 * the groups never meet: one stores while the other multiplies, as far ahead as the rings reach.
 *
 * Why 128 rows x 288 places: for 16 columns of 128 x 256 shared memory moves 32 KB in 256 clocks,
 * of 256 rows x 128 places 36 KB, more than its 128 bytes a clock; and from L2 come 48 bytes a
 * clock for 64 columns of either, of 128 x 288 45.
 */
#ifndef SL_CUDA_EXPERTS_WIDE_CUH
#define SL_CUDA_EXPERTS_WIDE_CUH

#include "cuda/gemm/experts_wg.cuh"
#include "cuda/ptx_wide.cuh"

#define SL_WIDE_HALF (SL_EXPERTS_WIDE / 2) /* most places of a product */
#define SL_WIDE_BOX  64                    /* places that come by one copy, or half of them */
/* Mean places of an expert, up to which products are chosen among narrower ones. A kernel has
 * three: with a fourth ptxas finds no registers for them and lets products wait for each other. */
#define SL_WIDE_SPARSE 160

template <class F> using sl_wide_shape = sl_wg_shape<F, 1, SL_EXPERTS_WIDE, 2, true>;

struct sl_wide_maps {
    CUtensorMap x, x_half; /* boxes of SL_WIDE_BOX places, and of half of them */
};

/* Columns of each product of a tile with n places: LOW, MID or all. */
template <int LOW, int MID> static __device__ __forceinline__ int32_t sl_wide_half(int32_t n)
{
    return n <= 2 * LOW ? LOW : n <= 2 * MID ? MID : SL_WIDE_HALF;
}

/* Places that are loaded for it. */
static __device__ __forceinline__ int32_t sl_wide_rows(int32_t half)
{
    return (2 * half + SL_WIDE_BOX / 2 - 1) / (SL_WIDE_BOX / 2) * (SL_WIDE_BOX / 2);
}

/* One lane: boxes of four row blocks, of gate and of up or one behind the other. */
template <class S, class F, bool GATED>
static __device__ __forceinline__ void sl_wide_bring_w(const sl_expert_product &a, int32_t n_units,
                                                       uint8_t *smem)
{
    sl_wg_bars bars = sl_wg_bars_of(smem);
    sl_wg_place<S::w_slots> at = {0, 1};
    for (int id = static_cast<int>(blockIdx.x); id < n_units; id += static_cast<int>(gridDim.x)) {
        const sl_experts_unit u = sl_experts_find<S>(a, id);
        const CUtensorMap *map[2] = {a.w[0].maps + u.tile.expert,
                                     a.w[GATED ? 1 : 0].maps + u.tile.expert};
        for (int k = 0; k < a.n_k64; k += S::subs) {
            sl_mbar_wait(&bars.empty_w[at.slot], at.parity);
            sl_mbar_expect_tx(&bars.full_w[at.slot], S::w_slot);
            uint8_t *to = smem + S::w_offset + at.slot * S::w_slot;
#pragma unroll
            for (int i = 0; i < 2; i++)
                sl_blocks_load(to + i * 4 * F::unit_bytes, map[i], k / S::subs,
                               u.block0 + (GATED ? 0 : 4 * i), &bars.full_w[at.slot]);
            at.next();
        }
    }
}

/* One lane. Behind a tile's last place come rows of the next expert, whose sums nobody writes. */
template <class S, int LOW, int MID>
static __device__ __forceinline__ void sl_wide_bring_x(const sl_expert_product &a,
                                                       const sl_wide_maps &maps, int32_t n_units,
                                                       uint8_t *smem)
{
    sl_wg_bars bars = sl_wg_bars_of(smem);
    sl_wg_place<S::x_slots> at = {0, 1};
    for (int id = static_cast<int>(blockIdx.x); id < n_units; id += static_cast<int>(gridDim.x)) {
        const sl_experts_unit u = sl_experts_find<S>(a, id);
        const int32_t n_rows = sl_wide_rows(sl_wide_half<LOW, MID>(u.tile.n));
        for (int k = 0; k < a.n_k64; k++) {
            sl_mbar_wait(&bars.empty_x[at.slot], at.parity);
            uint64_t *full = &bars.full_x[at.slot];
            uint8_t *to = smem + S::x_offset + at.slot * S::x_slot;
            sl_mbar_expect_tx(full, static_cast<uint32_t>(n_rows) * 128);
            int32_t row = 0;
#pragma unroll 1
            for (; row + SL_WIDE_BOX <= n_rows; row += SL_WIDE_BOX)
                sl_tensor_load(to + row * 128, &maps.x, k * 64, u.tile.first + row, full);
            if (row < n_rows)
                sl_tensor_load(to + row * 128, &maps.x_half, k * 64, u.tile.first + row, full);
            at.next();
        }
    }
}

/* ------------------------------------------------------------------ consumers */

template <class S> struct sl_wide_view : sl_wg_view<S> {
    bool lower; /* of sixteen rows, of gate and of up, these are the group's */
};

/* Fragments of eight rows of gate and the same eight of up: of sixteen the upper ones (LOWER 0) or
 * the lower. What the others want is not computed. */
template <class F, int LOWER>
static __device__ __forceinline__ void sl_wide_halves(uint32_t (&a)[4][4],
                                                      const typename F::raw &gate,
                                                      const typename F::raw &up)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t of_gate[4], of_up[4];
        F::frag(gate, j, of_gate);
        F::frag(up, j, of_up);
        a[j][0] = of_gate[LOWER], a[j][1] = of_up[LOWER];
        a[j][2] = of_gate[LOWER + 2], a[j][3] = of_up[LOWER + 2];
    }
}

/* Step k's fragments. */
template <class S, class F, bool GATED>
static __device__ __forceinline__ void sl_wide_load_a(uint32_t (&a)[4][4], sl_wide_view<S> &v,
                                                      int k)
{
    const sl_wg_bars bars = sl_wg_bars_of(v.smem);
    const int sub = k % S::subs, lane = static_cast<int>(threadIdx.x % 32);
    if (sub == 0)
        sl_mbar_wait(&bars.full_w[v.w.slot], v.w.parity);
    const uint8_t *unit = v.smem + S::w_offset + v.w.slot * S::w_slot + v.w_at;
    typename F::raw raw;
    if constexpr (GATED && F::coded) {
        typename F::raw up;
        F::load(raw, unit, sub, lane);
        F::load(up, unit + 4 * F::unit_bytes, sub, lane);
        if (v.lower)
            sl_wide_halves<F, 1>(a, raw, up);
        else
            sl_wide_halves<F, 0>(a, raw, up);
    } else {
        if constexpr (GATED) {
            F::load_half(raw, 0, unit, lane);
            F::load_half(raw, 1, unit + 4 * F::unit_bytes, lane);
        } else {
            sl_wf_load<F>(raw, unit, sub, lane);
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            F::frag(raw, j, a[j]);
    }
    if (sub == S::subs - 1)
        v.w.next();
}

/* Starts the products of step k, of N places each. */
template <class S, int N>
static __device__ __forceinline__ void sl_wide_issue(float (&sum)[2][N / 8][4],
                                                     const uint32_t (&a)[4][4], sl_wg_view<S> &v,
                                                     int k)
{
    sl_mbar_wait(&sl_wg_bars_of(v.smem).full_x[v.x.slot], v.x.parity);
    const uint8_t *slot = v.smem + S::x_offset + v.x.slot * S::x_slot;
    const auto first = sl_wgmma_b(slot), second = sl_wgmma_b(slot + N * 128);
    sl_wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; j++) {
        sl_wgmma_rs(sum[0], a[j], first + j * SL_WGMMA_B_K16);
        sl_wgmma_rs(sum[1], a[j], second + j * SL_WGMMA_B_K16);
    }
    sl_wgmma_commit();
    v.x.next();
    v.n_behind++;
    if (k % S::subs == S::subs - 1)
        sl_wg_free_w(v);
}

/* As sl_wg_walk. */
template <class S, class F, bool GATED, int N>
static __device__ __forceinline__ void sl_wide_walk(float (&sum)[2][N / 8][4], sl_wide_view<S> &v,
                                                    int n)
{
    uint32_t even[4][4], odd[4][4];
    int k = 0;
    sl_wide_load_a<S, F, GATED>(even, v, 0);
#pragma unroll 1
    for (; n >= 2; n -= 2, k += 2) {
        sl_wide_issue<S, N>(sum, even, v, k);
        sl_wgmma_wait<1>();
        if (v.n_behind == 2)
            sl_wg_free_x(v);
        sl_wide_load_a<S, F, GATED>(odd, v, k + 1);
        sl_wide_issue<S, N>(sum, odd, v, k + 1);
        sl_wgmma_wait<1>();
        sl_wg_free_x(v);
        if (n > 2)
            sl_wide_load_a<S, F, GATED>(even, v, k + 2);
    }
    if (n > 0)
        sl_wide_issue<S, N>(sum, even, v, k);
    sl_wgmma_wait<0>();
    while (v.n_behind > 0)
        sl_wg_free_x(v);
}

/* ------------------------------------------------------------------ what leaves */

/* What only some models have between the products and the gate: biases, weights of rows. */
template <int N>
static __device__ __forceinline__ void sl_wide_adjust(float (&sum)[2][N / 8][4],
                                                      const sl_expert_product &a,
                                                      const sl_experts_unit &u, int32_t row)
{
    const float *bias[2] = {sl_expert_bias(a, 0, u.tile.expert),
                            sl_expert_bias(a, 1, u.tile.expert)};
    const bool biased = bias[0] != nullptr;
    const int32_t at = 2 * static_cast<int32_t>(threadIdx.x % 4);
    float of_row[2] = {};
    if (biased && row < a.n_rows)
        of_row[0] = bias[0][row], of_row[1] = bias[1][row];
#pragma unroll
    for (int i = 0; i < N; i++) {
        float(&s)[4] = sum[i / (N / 2)][i / 4 % (N / 8)];
        const int32_t from = i / (N / 2) * N + at + 8 * (i / 4 % (N / 8)) + i % 2;
        if (i % 4 >= 2) /* gate and up have two places each */
            continue;
        if (biased)
            s[i % 2] = __fadd_rn(s[i % 2], of_row[0]),
                  s[2 + i % 2] = __fadd_rn(s[2 + i % 2], of_row[1]);
        if (a.in_weights != nullptr) {
            const float w = from < u.tile.n
                                ? sl_expert_weight(a.in_weights, a.pairs, u.tile.first + from)
                                : 0.0f;
            s[i % 2] = __fmul_rn(w, s[i % 2]), s[2 + i % 2] = __fmul_rn(w, s[2 + i % 2]);
        }
    }
}

/* A thread has a row's sums of gate, and of up. Which gate it is stands outside of the loops, so
 * that four outputs are worked on side by side. */
template <int N, class G>
static __device__ __forceinline__ void sl_wide_store_mid(const float (&sum)[2][N / 8][4],
                                                         const sl_expert_product &a,
                                                         const sl_experts_unit &u, int32_t row,
                                                         G gated)
{
    const int32_t at = 2 * static_cast<int32_t>(threadIdx.x % 4);
    const int32_t n = row < a.n_rows ? u.tile.n : 0;
    const int64_t ld = a.n_rows;
    __nv_bfloat16 *to = a.mid + (u.tile.first + at) * ld + row;
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        float out[4];
#pragma unroll
        for (int e = 0; e < 4; e++) /* of product e / 2 */
            out[e] = gated(sum[e / 2][i][e % 2], sum[e / 2][i][2 + e % 2]);
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (at + e / 2 * N + 8 * i + e % 2 < n)
                sl_lin_put(to + (e / 2 * N + e % 2) * ld, out[e]);
        to += 8 * ld;
    }
}

template <class F, int N>
static __device__ __forceinline__ void sl_wide_gate(float (&sum)[2][N / 8][4],
                                                    const sl_expert_product &a,
                                                    const sl_experts_unit &u, int32_t row)
{
#pragma unroll
    for (int h = 0; h < 2; h++)
        sl_wf_restore<F>(sum[h]);
    if (a.bias[0] != nullptr || a.in_weights != nullptr)
        sl_wide_adjust<N>(sum, a, u, row);
    if (a.swiglu.limit <= 0.0f)
        sl_wide_store_mid<N>(sum, a, u, row, [&](float gate, float up) {
            return __fmul_rn(sl_act(a.act, gate), up);
        });
    else if (!a.swiglu.late)
        sl_wide_store_mid<N>(sum, a, u, row, [&](float gate, float up) {
            return sl_expert_swiglu(a.swiglu, gate, up);
        });
    else
        sl_wide_store_mid<N>(
            sum, a, u, row, [&](float gate, float up) { return sl_swiglu_of(a.swiglu, gate, up); });
}

template <class F, int N>
static __device__ __forceinline__ void sl_wide_store_out(float (&sum)[2][N / 8][4],
                                                         const sl_expert_product &a,
                                                         const sl_experts_unit &u, int32_t block)
{
    const int32_t end = u.tile.first + u.tile.n;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int32_t from = u.tile.first + h * N;
        sl_wf_restore<F>(sum[h]);
        sl_experts_store_alone<N>(sum[h], a, u, block, from, min(from + N, end));
    }
}

/* A unit of work whose products have N places each. */
template <class S, class F, bool GATED, int N>
static __device__ __forceinline__ void sl_wide_unit(const sl_expert_product &a,
                                                    const sl_experts_unit &u, sl_wide_view<S> &v,
                                                    int group)
{
    float sum[2][N / 8][4];
    sl_wg_clear<2, N>(sum);
    sl_wide_walk<S, F, GATED, N>(sum, v, a.n_k64);
    const int32_t block = u.block0 + v.block;
    if constexpr (GATED)
        sl_wide_gate<F, N>(sum, a, u,
                           block * SL_CUDA_ROW_BLOCK + 8 * group +
                               static_cast<int32_t>(threadIdx.x % 32 / 4));
    else
        sl_wide_store_out<F, N>(sum, a, u, block);
}

template <class S, class F, bool GATED, int LOW, int MID>
static __device__ __forceinline__ void sl_wide_consume(const sl_expert_product &a, int32_t n_units,
                                                       uint8_t *smem)
{
    const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) - 1;
    const int warp = static_cast<int>(threadIdx.x / 32 % 4);
    sl_wide_view<S> v = {};
    v.smem = smem;
    v.block = GATED ? warp : 4 * group + warp;
    v.w_at = static_cast<uint32_t>(v.block * F::unit_bytes);
    if constexpr (GATED && !F::coded)
        v.w_at += static_cast<uint32_t>(group * F::half_bytes);
    const int step = static_cast<int>(gridDim.x);
    int id = static_cast<int>(blockIdx.x);
    if (id >= n_units)
        return;
    sl_experts_unit next = sl_experts_find<S>(a, id);
    v.lower = group == 1;
    for (; id < n_units; id += step) {
        const sl_experts_unit u = next;
        if (!F::coded && id + step < n_units) /* ahead; what decodes has no registers for it */
            next = sl_experts_find<S>(a, id + step);
        switch (sl_wide_half<LOW, MID>(u.tile.n)) {
        case LOW:
            sl_wide_unit<S, F, GATED, LOW>(a, u, v, group);
            break;
        case MID:
            sl_wide_unit<S, F, GATED, MID>(a, u, v, group);
            break;
        default:
            sl_wide_unit<S, F, GATED, SL_WIDE_HALF>(a, u, v, group);
            break;
        }
        if (F::coded && id + step < n_units)
            next = sl_experts_find<S>(a, id + step);
    }
}

template <class F, bool GATED, int LOW, int MID>
__global__ void __launch_bounds__(384, 1)
    sl_wide_kernel(const __grid_constant__ sl_expert_product a,
                   const __grid_constant__ sl_wide_maps maps)
{
    typedef sl_wide_shape<F> S;
    SL_SMEM(uint8_t, smem);
    sl_wg_init<S>(smem, 8, 1);
    if (a.first) /* only then the kernel of down may look for its tiles */
        sl_grid_wait();
    sl_grid_launch_dependents();
    const int32_t n_units = sl_load_settled(a.pairs.n_tiles) * sl_experts_row_tiles<S>(a);
    if (__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) == 0) {
        sl_regs_give<24>();
        if (threadIdx.x < 32) {
            if (threadIdx.x == 0)
                sl_wide_bring_w<S, F, GATED>(a, n_units, smem);
            sl_grid_wait();
        } else {
            sl_grid_wait();
            if (threadIdx.x == 32)
                sl_wide_bring_x<S, LOW, MID>(a, maps, n_units, smem);
        }
    } else {
        sl_regs_take<240>();
        sl_grid_wait();
        sl_wide_consume<S, F, GATED, LOW, MID>(a, n_units, smem);
    }
}

/* ------------------------------------------------------------------ host */

template <class F, bool GATED>
static void sl_wide_start(struct sl_cuda *cu, const sl_expert_product *a, const sl_wide_maps *maps)
{
    typedef sl_wide_shape<F> S;
    const int64_t most = (int64_t)a->pairs.most_tiles * sl_experts_row_tiles<S>(*a);
    const dim3 grid((unsigned)SL_MIN(most, (int64_t)cu->n_sms)), threads(S::threads);
    if (a->pairs.n_pairs <= SL_WIDE_SPARSE * a->n_experts)
        sl_launch(cu, sl_wide_kernel<F, GATED, 48, 80>, grid, threads, S::smem, *a, *maps);
    else
        sl_launch(cu, sl_wide_kernel<F, GATED, 96, 128>, grid, threads, S::smem, *a, *maps);
}

template <class F> static void sl_wide_launch(struct sl_cuda *cu, const sl_expert_product *a)
{
    sl_wide_maps maps;
    SL_ASSERT(!a->by_row);
    cudaError_t e = sl_tensor_map(&maps.x, a->x, a->pairs.n_pairs, a->k, a->k, SL_WIDE_BOX);
    if (e == cudaSuccess)
        e = sl_tensor_map(&maps.x_half, a->x, a->pairs.n_pairs, a->k, a->k, SL_WIDE_BOX / 2);
    sl_cuda_check(cu, e, "cuTensorMapEncodeTiled");
    if (a->gated)
        sl_wide_start<F, true>(cu, a, &maps);
    else
        sl_wide_start<F, false>(cu, a, &maps);
}

#endif
