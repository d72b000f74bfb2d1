/* SPDX-License-Identifier: MIT
 * linear_w8a8_few.cuh - products of FP8 weights and FP8 activations for up to 64 tokens.
 *
 * Weights are the 64-row operand, all tokens the other, both from shared memory. A block takes one
 * tile after another: 64 rows, of a gated product the same 64 of gate and of up, so that a thread
 * has both sums of an output. A warpgroup multiplies; of another warp 0 brings weights, in bulk
 * copies of 8 KB that lie as they will, and warp 1 tokens. The scales of the tokens stay in shared
 * memory.
 *
 * Two sums are under way: one is added up while the products of the next run. Four steps at a time
 * lose, as so many stages cannot be on their way (H200, 4096 x 14336: 25.9 us).
 *
 * OWN: few tokens are made FP8 by the warpgroup itself, while the first weights are on their way:
 * that takes less than a kernel ahead of this one would. Their codes then stay in shared memory.
 */
#ifndef SL_CUDA_LINEAR_W8A8_FEW_CUH
#define SL_CUDA_LINEAR_W8A8_FEW_CUH

#include "cuda/linear_w8a8.cuh"

#define SL_W8_KEPT     128 /* most steps: scales of all of them stay in shared memory */
#define SL_W8_OWN      128 /* most groups of 128 columns that a block makes FP8 itself */
#define SL_W8_OWN_HALF 40  /* most steps whose codes leave room for the next kernel's block */

template <int NT_, bool GATED_, bool OWN_ = false, int KEPT_ = SL_W8_KEPT,
          int ROOM_ = NT_ <= 16 && (!OWN_ || KEPT_ <= SL_W8_OWN_HALF) ? SL_W8_HALF : SL_W8_WHOLE>
struct sl_w8_few {
    static constexpr int NT = NT_, MI = GATED_ ? 2 : 1;
    static constexpr int KEPT = KEPT_; /* most steps */
    static constexpr bool GATED = GATED_, OWN = OWN_;
    static constexpr int w_bytes = MI * SL_W8_UNIT, x_bytes = NT * 128;
    static constexpr int kept_bytes = KEPT * NT * 4;
    static constexpr int own_bytes = OWN ? KEPT * x_bytes : 0;
    static constexpr int stage = w_bytes + (OWN ? 0 : x_bytes);
    static constexpr int fit = (ROOM_ - SL_W8_HEADER - kept_bytes - own_bytes) / stage;
    static constexpr int stages = fit > SL_W8_RING ? SL_W8_RING : fit;
    static constexpr int own_offset = SL_W8_HEADER + stages * stage;
    static constexpr int s_offset = own_offset + own_bytes;
    static constexpr int smem = s_offset + kept_bytes;
    static_assert(stages >= 3, "shared memory");
};

/* Warp 0: weights, which need not wait for the kernels ahead. */
template <class S>
static __device__ __forceinline__ void sl_w8_few_bring_w(const sl_lin &l, const sl_w8_plan &p,
                                                         uint8_t *smem)
{
    int lane = static_cast<int>(threadIdx.x % 32), mi = min(lane, S::MI - 1);
    sl_w8_place at = {0, 1};
    for (int id = static_cast<int>(blockIdx.x); id < p.n_units; id += static_cast<int>(gridDim.x)) {
        sl_w8_unit u = sl_w8_find(l, p, id, S::NT);
        const uint8_t *from = sl_w8_rows_of(l.part[S::GATED ? mi : u.part], p.n_k, u.tile).codes;
        for (int k = 0; k < p.n_k; k++) {
            uint64_t *full = sl_w8_full(smem, at.slot);
            sl_mbar_wait(sl_w8_empty(smem, at.slot), at.parity);
            if (lane == 0)
                sl_mbar_expect_tx(full, S::w_bytes);
            __syncwarp();
            if (lane < S::MI)
                sl_bulk_load(smem + SL_W8_HEADER + at.slot * S::stage + lane * SL_W8_UNIT,
                             from + static_cast<int64_t>(k) * SL_W8_UNIT, SL_W8_UNIT, full);
            sl_w8_next<S>(at);
        }
    }
}

/* Warp 1, one lane: tokens. */
template <class S>
static __device__ __forceinline__ void sl_w8_few_bring_x(const sl_w8_plan &p,
                                                         const CUtensorMap *map, uint8_t *smem)
{
    sl_w8_place at = {0, 1};
    for (int id = static_cast<int>(blockIdx.x); id < p.n_units; id += static_cast<int>(gridDim.x)) {
        for (int k = 0; k < p.n_k; k++) {
            uint64_t *full = sl_w8_full(smem, at.slot);
            sl_mbar_wait(sl_w8_empty(smem, at.slot), at.parity);
            sl_mbar_expect_tx(full, S::x_bytes);
            sl_tensor_load(smem + SL_W8_HEADER + at.slot * S::stage + S::w_bytes, map, k * 128, 0,
                           full);
            sl_w8_next<S>(at);
        }
    }
}

/* ------------------------------------------------------------------ consumers */

template <class S> struct sl_w8_few_view {
    uint8_t *smem;
    sl_w8_place at;            /* the stage to multiply next */
    int32_t oldest;            /* the one to give back next */
    int32_t k, n_k;            /* the next step, and all */
    const float *scale[S::MI]; /* of the tile's units */
};

/* Sums under way. */
template <class S> struct sl_w8_few_sums {
    float v[S::MI][S::NT / 8][4];
    float w[S::MI]; /* scales of the units */
};

/* Starts the products of a stage. */
template <class S>
static __device__ __forceinline__ void sl_w8_few_issue(sl_w8_few_sums<S> &s, sl_w8_few_view<S> &v)
{
    sl_mbar_wait(sl_w8_full(v.smem, v.at.slot), v.at.parity);
    const uint8_t *w = v.smem + SL_W8_HEADER + v.at.slot * S::stage;
    auto x = sl_wgmma_b(S::OWN ? v.smem + S::own_offset + v.k * S::x_bytes : w + S::w_bytes);
    sl_wgmma_fence();
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            sl_wgmma_e4m3(s.v[mi], sl_wgmma_b(w + mi * SL_W8_UNIT) + j * SL_WGMMA_B_K16,
                          x + j * SL_WGMMA_B_K16, j);
    sl_wgmma_commit();
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        s.w[mi] = v.scale[mi][v.k];
    v.k++;
    sl_w8_next<S>(v.at);
}

/* Adds up the sums of step k, which have ended, and gives its stage back. */
template <class S>
static __device__ __forceinline__ void sl_w8_few_add(float (&acc)[S::MI][S::NT / 8][4],
                                                     sl_w8_few_sums<S> &s, sl_w8_few_view<S> &v,
                                                     int k)
{
    const float *xs =
        reinterpret_cast<const float *>(v.smem + S::s_offset) + k * S::NT + 2 * (threadIdx.x & 3);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        sl_wgmma_done(s.v[mi]);
    sl_mbar_arrive_warp(sl_w8_empty(v.smem, v.oldest));
    v.oldest = v.oldest + 1 == S::stages ? 0 : v.oldest + 1;
#pragma unroll
    for (int i = 0; i < S::NT / 8; i++) {
        float2 x = *reinterpret_cast<const float2 *>(xs + 8 * i);
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++) {
            float f0 = __fmul_rn(x.x, s.w[mi]), f1 = __fmul_rn(x.y, s.w[mi]);
            float(&a)[4] = acc[mi][i];
            const float(&d)[4] = s.v[mi][i];
            a[0] = __fmaf_rn(d[0], f0, a[0]);
            a[1] = __fmaf_rn(d[1], f1, a[1]);
            a[2] = __fmaf_rn(d[2], f0, a[2]);
            a[3] = __fmaf_rn(d[3], f1, a[3]);
        }
    }
}

/* All steps of a tile. With a loop for what is left the compiler would wait for every product. */
template <class S>
static __device__ __forceinline__ void sl_w8_few_walk(float (&acc)[S::MI][S::NT / 8][4],
                                                      sl_w8_few_view<S> &v)
{
    const int n = v.n_k;
    sl_w8_few_sums<S> even, odd;
#pragma unroll
    for (int i = 0; i < S::MI * S::NT / 2; i++)
        acc[i / (S::NT / 2)][i / 4 % (S::NT / 8)][i % 4] = 0.0f;
    v.k = 0;
    int k = 0;
    sl_w8_few_issue<S>(even, v);
#pragma unroll 1
    for (; k + 2 < n; k += 2) {
        sl_w8_few_issue<S>(odd, v);
        sl_wgmma_wait<1>();
        sl_w8_few_add<S>(acc, even, v, k);
        sl_w8_few_issue<S>(even, v);
        sl_wgmma_wait<1>();
        sl_w8_few_add<S>(acc, odd, v, k + 1);
    }
    if (k + 2 == n) {
        sl_w8_few_issue<S>(odd, v);
        sl_wgmma_wait<1>();
        sl_w8_few_add<S>(acc, even, v, k);
        sl_wgmma_wait<0>();
        sl_w8_few_add<S>(acc, odd, v, k + 1);
    } else {
        sl_wgmma_wait<0>();
        sl_w8_few_add<S>(acc, even, v, k);
    }
}

/* A thread has gate's sums of two rows, two for each eight tokens, and up's. */
template <int N>
static __device__ __forceinline__ void sl_w8_few_store_gated(const float (&acc)[2][N][4],
                                                             const sl_lin &l, int n_k, int row)
{
    int t0 = 2 * static_cast<int>(threadIdx.x & 3);
    int64_t ld = l.part[0].n_rows;
#pragma unroll
    for (int r = 0; r < 2; r++, row += 8) {
        if (row >= l.part[0].n_rows)
            return;
        float g = sl_w8_scales(l.part[0], n_k)[row], u = sl_w8_scales(l.part[1], n_k)[row];
        __nv_bfloat16 *at = l.gated_out + t0 * ld + row;
#pragma unroll
        for (int i = 0; i < 2 * N; i++) {
            float gate = acc[0][i / 2][2 * r + i % 2], up = acc[1][i / 2][2 * r + i % 2];
            float out = __fmul_rn(sl_act(l.act, __fmul_rn(gate, g)), __fmul_rn(up, u));
            if (t0 + 8 * (i / 2) + i % 2 < l.n)
                sl_lin_put(at + (8 * (i / 2) + i % 2) * ld, out);
        }
    }
}

template <class S>
static __device__ __forceinline__ void sl_w8_few_store(float (&acc)[S::MI][S::NT / 8][4],
                                                       const sl_lin &l, const sl_w8_plan &p,
                                                       const sl_w8_unit &u)
{
    int warp = static_cast<int>(threadIdx.x / 32 % 4), g = static_cast<int>(threadIdx.x % 32) / 4;
    if constexpr (S::GATED) {
        sl_w8_few_store_gated<S::NT / 8>(acc, l, p.n_k, u.tile * 64 + warp * 16 + g);
    } else {
        const sl_lin_part &part = l.part[u.part];
        int block = u.tile * 4 + warp, row = block * SL_CUDA_ROW_BLOCK + g;
        if (row - g >= part.n_rows)
            return;
        const float *scale = sl_w8_scales(part, p.n_k); /* of 64 rows, and again of 64 */
        float s0 = scale[row], s1 = scale[row + 8];
#pragma unroll
        for (int i = 0; i < S::NT / 2; i++)
            acc[0][i / 4][i % 4] = __fmul_rn(acc[0][i / 4][i % 4], i % 4 < 2 ? s0 : s1);
        sl_lin_store_part<S::NT / 8>(acc[0], l, part, block, 0);
    }
}

/* All scales of the tokens into shared memory. */
template <class S>
static __device__ __forceinline__ void sl_w8_keep(const sl_w8_plan &p, float *kept)
{
    constexpr int quads = S::NT / 4;
    for (int i = static_cast<int>(threadIdx.x) - 128; i < p.n_k * quads; i += 128) {
        int k = i / quads, token = 4 * (i % quads);
        float4 x = make_float4(0, 0, 0, 0);
        if (token < p.ld_xs)
            x = *reinterpret_cast<const float4 *>(p.xs + static_cast<int64_t>(k) * p.ld_xs + token);
        *reinterpret_cast<float4 *>(kept + k * S::NT + token) = x;
    }
}

/* The tokens as FP8 into shared memory, as the copy engine would lay them, and their scales. Eight
 * lanes have 128 columns of a token; four such groups a lane are loaded before the first is made.
 * Where there is no token there stays what was there, which only its own outputs see. */
template <class S>
static __device__ __forceinline__ void sl_w8_own(const sl_lin &l, const sl_w8_plan &p, uint8_t *to,
                                                 float *kept)
{
    const sl_w8_quant a = {l.x, l.ld_x, l.n, l.k, p.n_k, l.vec_x, nullptr, nullptr, 0};
    int piece = static_cast<int>(threadIdx.x % 8), first = static_cast<int>(threadIdx.x - 128) / 8;
#pragma unroll 1
    for (int base = 0; base < l.n * p.n_k; base += 64) {
        uint32_t w[4][8];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = base + 16 * i + first;
            sl_w8_quant_load(a, at / p.n_k, at % p.n_k * 128 + 16 * piece, w[i]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = base + 16 * i + first, token = at / p.n_k, k = at % p.n_k;
            float scale;
            uint4 codes = sl_w8_quant_make(w[i], &scale);
            if (token >= l.n)
                continue;
            *reinterpret_cast<uint4 *>(to + k * S::x_bytes + token * 128 + (piece ^ token) * 16) =
                codes;
            if (piece == 0)
                kept[k * S::NT + token] = scale;
        }
    }
    sl_fence_proxy_async();
}

template <class S>
static __device__ __forceinline__ void sl_w8_few_consume(const sl_lin &l, const sl_w8_plan &p,
                                                         uint8_t *smem)
{
    sl_w8_few_view<S> v = {};
    v.smem = smem;
    v.n_k = p.n_k;
    float *kept = reinterpret_cast<float *>(smem + S::s_offset);
    if constexpr (S::OWN)
        sl_w8_own<S>(l, p, smem + S::own_offset, kept);
    else
        sl_w8_keep<S>(p, kept);
    sl_bar_sync(1, 128);
    for (int id = static_cast<int>(blockIdx.x); id < p.n_units; id += static_cast<int>(gridDim.x)) {
        sl_w8_unit u = sl_w8_find(l, p, id, S::NT);
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
            v.scale[mi] = sl_w8_rows_of(l.part[S::GATED ? mi : u.part], p.n_k, u.tile).scales;
        float acc[S::MI][S::NT / 8][4];
        sl_w8_few_walk<S>(acc, v);
        sl_w8_few_store<S>(acc, l, p, u);
    }
}

template <class S>
__global__ void __launch_bounds__(256, 1)
    sl_w8_few_kernel(const __grid_constant__ sl_lin l, const __grid_constant__ sl_w8_plan p,
                     const __grid_constant__ CUtensorMap map)
{
    SL_SMEM(uint8_t, smem);
    sl_mbar_init_all(sl_w8_full(smem, 0), S::stages, S::OWN ? 1 : 2);
    sl_mbar_init_all(sl_w8_empty(smem, 0), S::stages, 4 * SL_WARP_ARRIVALS);
    sl_mbar_fence_init();
    __syncthreads();
    sl_grid_launch_dependents();
    if (__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) == 0) {
        if (threadIdx.x < 32)
            sl_w8_few_bring_w<S>(l, p, smem);
        sl_grid_wait();
        if (threadIdx.x == 32 && !S::OWN)
            sl_w8_few_bring_x<S>(p, &map, smem);
        __syncwarp();
    } else {
        sl_grid_wait();
        sl_w8_few_consume<S>(l, p, smem);
    }
}

/* ------------------------------------------------------------------ activations */

/* Codes of the tokens as rows, [n][n_k * 128]. A warp has four tokens of a group of columns, eight
 * lanes each; grid (tokens / 4, columns). */
static __global__ void __launch_bounds__(32 * SL_W8_QUANT_WARPS) sl_w8_quant_kernel(sl_w8_quant a)
{
    sl_grid_launch_dependents();
    sl_grid_wait();
    int lane = static_cast<int>(threadIdx.x % 32),
        token = static_cast<int>(blockIdx.x) * 4 + lane / 8;
    int group =
        static_cast<int>(blockIdx.y) * SL_W8_QUANT_WARPS + static_cast<int>(threadIdx.x / 32);
    if (group >= a.n_k)
        return;
    int col = group * 128 + lane % 8 * 16;
    uint32_t w[8];
    float scale;
    sl_w8_quant_load(a, token, col, w);
    uint4 codes = sl_w8_quant_make(w, &scale);
    if (token >= a.n)
        return;
    *reinterpret_cast<uint4 *>(a.q + static_cast<int64_t>(token) * a.n_k * 128 + col) = codes;
    if (lane % 8 == 0)
        a.xs[static_cast<int64_t>(group) * a.ld_xs + token] = scale;
}

/* ------------------------------------------------------------------ host */

static inline void sl_w8_quantise(struct sl_cuda *cu, const sl_w8_quant *a)
{
    dim3 grid((unsigned)SL_CEIL_DIV(a->n, 4), (unsigned)SL_CEIL_DIV(a->n_k, SL_W8_QUANT_WARPS));
    sl_launch(cu, sl_w8_quant_kernel, grid, dim3(32 * SL_W8_QUANT_WARPS), 0, *a);
}

/* q: codes of the tokens, [n][n_k * 128], and ld_xs a multiple of 4; not looked at with OWN. */
template <class S>
static void sl_w8_few_launch(struct sl_cuda *cu, const sl_lin *given, const uint8_t *q,
                             const float *xs, int32_t ld_xs, int32_t = 1)
{
    sl_lin l = *given;
    CUtensorMap map = {};
    sl_w8_plan p = sl_w8_plan_of(&l, xs, ld_xs, 64, S::NT, 1);
    SL_ASSERT(p.n_k <= S::KEPT && p.n_cols == 1);
    if (!S::OWN)
        sl_cuda_check(
            cu,
            sl_tensor_map_codes(&map, q, l.n, (int64_t)p.n_k * 128, (int64_t)p.n_k * 128, S::NT),
            "cuTensorMapEncodeTiled");
    unsigned grid = (unsigned)SL_MIN(p.n_units, cu->n_sms);
    sl_launch(cu, sl_w8_few_kernel<S>, dim3(grid), dim3(256), S::smem, l, p, map);
}

#endif
