/* SPDX-License-Identifier: MIT
 * linear_w8a8_few.cuh - GEMMs of FP8 weights and FP8 activations of up to 64 tokens.
 *
 * Weights are the 64-row operand, all tokens the other, both from shared memory. A block takes one
 * tile after another: 64 rows, of a gated product the same 64 of gate and of up, so that a thread
 * has both sums of an output. A warpgroup multiplies; of another warp 0 loads weights, in bulk
 * copies that lie as they will, and warp 1 tokens. The scales of the tokens stay in shared memory.
 * Those of the units of a tile are loaded while the tile before it is multiplied: loaded where they
 * are wanted, each eighth step would wait for device memory.
 *
 * A stage is some steps of 128 columns, for which there is one copy and one wait, and whose sums
 * are made side by side; the sums of two stages are under way. What counts is how much is on its
 * way to an SM, and by how few copies (H200, one token, 4096 x 14336: stages of one step
 * 17.5 us, of two 17.9, of four 15.6). So a block has all of shared memory: where it left half to
 * the next kernel's block, a layer of a step of one sequence took 90.0 us for 79.4.
 *
 * OWN: few tokens are made FP8 by the block itself, while the first weights are on their way: that
 * takes less than a kernel ahead of this one would. Their codes then stay in shared memory, without
 * gaps for tokens that are not there.
 */
#ifndef SL_CUDA_LINEAR_W8A8_FEW_CUH
#define SL_CUDA_LINEAR_W8A8_FEW_CUH

#include "cuda/gemm/linear_w8a8.cuh"

#define SL_W8_KEPT 128 /* most steps: scales of all of them stay in shared memory */
#define SL_W8_OWN  128 /* most groups of 128 columns that a block makes FP8 itself */

/* U: steps of a stage. */
template <int NT_, bool GATED_, bool OWN_ = false, int U_ = GATED_ ? 1 : (NT_ > 32 ? 2 : 4)>
struct sl_w8_few {
    static constexpr int NT = NT_, MI = GATED_ ? 2 : 1, U = U_;
    static constexpr bool GATED = GATED_, OWN = OWN_;
    static constexpr int w_part = U * SL_W8_UNIT, w_bytes = MI * w_part;
    static constexpr int x_step = OWN ? 0 : NT * 128, stage = w_bytes + U * x_step;
};

/* Shared memory: barriers, the ring, then by offsets what stays. */
struct sl_w8_few_plan : sl_w8_plan {
    int32_t stages;
    uint32_t codes, xs, ws; /* of the tokens, their scales [n_k][NT], those of two tiles' units */
};

/* Warp 0: weights, which need not wait for the previous kernels. */
template <class S>
static __device__ __forceinline__ void sl_w8_few_bring_w(const sl_lin &l, const sl_w8_few_plan &p,
                                                         uint8_t *smem)
{
    int lane = static_cast<int>(threadIdx.x % 32), mi = min(lane, S::MI - 1);
    sl_w8_place at = {0, 1};
    for (int id = static_cast<int>(blockIdx.x); id < p.n_units; id += static_cast<int>(gridDim.x)) {
        sl_w8_unit u = sl_w8_find(l, p, id, S::NT);
        const uint8_t *from = sl_w8_rows_of(l.part[S::GATED ? mi : u.part], p.n_k, u.tile).codes;
        for (int k = 0; k < p.n_k; k += S::U) {
            uint64_t *full = sl_w8_full(smem, at.slot);
            const uint32_t bytes = static_cast<uint32_t>(min(S::U, p.n_k - k) * SL_W8_UNIT);
            sl_mbar_wait(sl_w8_empty(smem, at.slot), at.parity);
            if (lane == 0)
                sl_mbar_expect_tx(full, S::MI * bytes);
            __syncwarp();
            if (lane < S::MI)
                sl_bulk_load_once(smem + SL_W8_HEADER + at.slot * S::stage + lane * S::w_part,
                                  from + static_cast<int64_t>(k) * SL_W8_UNIT, bytes, full);
            sl_w8_next(at, p.stages);
        }
    }
}

/* Warp 1, one lane: tokens. */
template <class S>
static __device__ __forceinline__ void sl_w8_few_bring_x(const sl_w8_few_plan &p,
                                                         const CUtensorMap *map, uint8_t *smem)
{
    sl_w8_place at = {0, 1};
    for (int id = static_cast<int>(blockIdx.x); id < p.n_units; id += static_cast<int>(gridDim.x)) {
        for (int k = 0; k < p.n_k; k += S::U) {
            uint64_t *full = sl_w8_full(smem, at.slot);
            uint8_t *to = smem + SL_W8_HEADER + at.slot * S::stage + S::w_bytes;
            const int steps = min(S::U, p.n_k - k);
            sl_mbar_wait(sl_w8_empty(smem, at.slot), at.parity);
            sl_mbar_expect_tx(full, static_cast<uint32_t>(steps * S::x_step));
            for (int u = 0; u < steps; u++)
                sl_tensor_load(to + u * S::x_step, map, (k + u) * 128, 0, full);
            sl_w8_next(at, p.stages);
        }
    }
}

/* ------------------------------------------------------------------ consumers */

template <class S> struct sl_w8_few_view {
    uint8_t *smem;
    sl_w8_place at; /* the stage to multiply next */
    int32_t oldest; /* the one to give back next */
    int32_t stages, tokens;
    const uint8_t *codes; /* of the tokens */
    const float *xs, *ws; /* scales of this thread's first two tokens, and of the tile's units */
};

/* Sums under way, of a stage. */
template <class S> struct sl_w8_few_sums {
    float v[S::U][S::MI][S::NT / 8][4];
};

/* Starts the products of the stage of step k. Of a step after the last one what is in the place of
 * the first is multiplied, for nobody. */
template <class S>
static __device__ __forceinline__ void sl_w8_few_issue(sl_w8_few_sums<S> &s, sl_w8_few_view<S> &v,
                                                       int k, int n)
{
    sl_mbar_wait(sl_w8_full(v.smem, v.at.slot), v.at.parity);
    const uint8_t *stage = v.smem + SL_W8_HEADER + v.at.slot * S::stage;
    const uint8_t *x = S::OWN ? v.codes + k * 128 * v.tokens : stage + S::w_bytes;
    const int x_step = S::OWN ? 128 * v.tokens : S::x_step;
    sl_wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int u = 0; u < S::U; u++) {
            const int at = k + u < n ? u : 0;
#pragma unroll
            for (int mi = 0; mi < S::MI; mi++) {
                auto a = sl_wgmma_b(stage + mi * S::w_part + at * SL_W8_UNIT) + j * SL_WGMMA_B_K16;
                if constexpr (S::OWN)
                    sl_wgmma_e4m3(s.v[u][mi], a,
                                  sl_wgmma_dense(x + at * x_step + j * 32 * v.tokens, v.tokens), j);
                else
                    sl_wgmma_e4m3(s.v[u][mi], a, sl_wgmma_b(x + at * x_step) + j * SL_WGMMA_B_K16,
                                  j);
            }
        }
    sl_wgmma_commit();
    sl_w8_next(v.at, v.stages);
}

/* Adds up the sums of the stage of step k, which have ended, and gives it back. */
template <class S>
static __device__ __forceinline__ void sl_w8_few_add(float (&acc)[S::MI][S::NT / 8][4],
                                                     sl_w8_few_sums<S> &s, sl_w8_few_view<S> &v,
                                                     int k, int n)
{
#pragma unroll
    for (int u = 0; u < S::U; u++)
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
            sl_wgmma_done(s.v[u][mi]);
    sl_mbar_arrive_warp(sl_w8_empty(v.smem, v.oldest));
    v.oldest = v.oldest + 1 == v.stages ? 0 : v.oldest + 1;
#pragma unroll
    for (int u = 0; u < S::U; u++) {
        if (k + u >= n)
            break;
        float w[S::MI];
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
            w[mi] = v.ws[mi * SL_W8_KEPT + k + u];
#pragma unroll
        for (int i = 0; i < S::NT / 8; i++) {
            float2 x = *reinterpret_cast<const float2 *>(v.xs + (k + u) * S::NT + 8 * i);
#pragma unroll
            for (int mi = 0; mi < S::MI; mi++) {
                float f0 = __fmul_rn(x.x, w[mi]), f1 = __fmul_rn(x.y, w[mi]);
                float(&a)[4] = acc[mi][i];
                const float(&d)[4] = s.v[u][mi][i];
                a[0] = __fmaf_rn(d[0], f0, a[0]);
                a[1] = __fmaf_rn(d[1], f1, a[1]);
                a[2] = __fmaf_rn(d[2], f0, a[2]);
                a[3] = __fmaf_rn(d[3], f1, a[3]);
            }
        }
    }
}

/* All n steps of a tile. With a loop for what is left the compiler would wait for every product. */
template <class S>
static __device__ __forceinline__ void sl_w8_few_walk(float (&acc)[S::MI][S::NT / 8][4],
                                                      sl_w8_few_view<S> &v, int n)
{
    constexpr int U = S::U;
    sl_w8_few_sums<S> even, odd;
#pragma unroll
    for (int i = 0; i < S::MI * S::NT / 2; i++)
        acc[i / (S::NT / 2)][i / 4 % (S::NT / 8)][i % 4] = 0.0f;
    int k = 0;
    sl_w8_few_issue<S>(even, v, 0, n);
#pragma unroll 1
    for (; k + 2 * U < n; k += 2 * U) {
        sl_w8_few_issue<S>(odd, v, k + U, n);
        sl_wgmma_wait<1>();
        sl_w8_few_add<S>(acc, even, v, k, n);
        sl_w8_few_issue<S>(even, v, k + 2 * U, n);
        sl_wgmma_wait<1>();
        sl_w8_few_add<S>(acc, odd, v, k + U, n);
    }
    if (k + U < n) {
        sl_w8_few_issue<S>(odd, v, k + U, n);
        sl_wgmma_wait<1>();
        sl_w8_few_add<S>(acc, even, v, k, n);
        sl_wgmma_wait<0>();
        sl_w8_few_add<S>(acc, odd, v, k + U, n);
    } else {
        sl_wgmma_wait<0>();
        sl_w8_few_add<S>(acc, even, v, k, n);
    }
}

/* The scales of a thread's two rows of a tile, of gate and of up; of 64 rows there are always. */
template <class S>
static __device__ __forceinline__ void sl_w8_few_factors(float (&f)[S::MI][2], const sl_lin &l,
                                                         const sl_w8_plan &p, const sl_w8_unit &u)
{
    int row = u.tile * 64 + static_cast<int>(threadIdx.x % 128) / 32 * 16 +
              static_cast<int>(threadIdx.x % 32) / 4;
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            f[mi][r] = sl_w8_scales(l.part[S::GATED ? mi : u.part], p.n_k)[row + 8 * r];
}

template <class S>
static __device__ __forceinline__ void sl_w8_few_store(float (&acc)[S::MI][S::NT / 8][4],
                                                       const float (&f)[S::MI][2], const sl_lin &l,
                                                       const sl_w8_unit &u)
{
    const sl_lin_part &part = l.part[u.part];
    int block = u.tile * 4 + static_cast<int>(threadIdx.x % 128) / 32;
    if (block >= part.n_blocks)
        return;
#pragma unroll
    for (int i = 0; i < S::NT / 2; i++) {
        float &a = acc[0][i / 4][i % 4];
        a = __fmul_rn(a, f[0][i % 4 / 2]);
        if constexpr (S::GATED)
            a = __fmul_rn(sl_act(l.act, a), __fmul_rn(acc[1][i / 4][i % 4], f[1][i % 4 / 2]));
    }
    if constexpr (S::GATED)
        sl_lin_store_gated<S::NT / 8>(acc[0], l, block, 0);
    else
        sl_lin_store_part<S::NT / 8>(acc[0], l, part, block, 0);
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

/* The tokens as FP8 into shared memory, as sl_wgmma_dense wants them, and their scales, by all
 * warps but the first. Eight lanes have 128 columns of a token, and load the next ones before they
 * make these. A short loop: instructions that run once come from far away. */
template <class S>
static __device__ __forceinline__ void sl_w8_own(const sl_lin &l, const sl_w8_plan &p, uint8_t *to,
                                                 float *xs)
{
    constexpr int groups = 28;
    const sl_w8_quant a = {l.x, l.ld_x, l.n, l.k, p.n_k, l.vec_x, nullptr, nullptr, 0};
    int piece = static_cast<int>(threadIdx.x % 8), at = static_cast<int>(threadIdx.x - 32) / 8;
    int token = at / p.n_k, k = at % p.n_k, total = l.n * p.n_k;
    uint32_t w[8], next[8];
    sl_w8_quant_load(a, token, k * 128 + 16 * piece, w);
#pragma unroll 1
    for (int base = at & ~3; base < total; base += groups) {
        int to_token = token, to_k = k;
        float scale;
        for (k += groups; k >= p.n_k; k -= p.n_k)
            token++;
        sl_w8_quant_load(a, token, k * 128 + 16 * piece, next);
        uint4 codes = sl_w8_quant_make(w, &scale);
        if (to_token < l.n) {
            *reinterpret_cast<uint4 *>(to + ((8 * to_k + piece) * l.n + to_token) * 16) = codes;
            if (piece == 0)
                xs[to_k * S::NT + to_token] = scale;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i] = next[i];
    }
    sl_fence_proxy_async();
}

/* This thread's of the scales of a tile's units. */
template <class S>
static __device__ __forceinline__ void sl_w8_few_scales(float (&w)[S::MI], const sl_lin &l,
                                                        const sl_w8_plan &p, int id)
{
    int k = static_cast<int>(threadIdx.x - 128);
    if (id >= p.n_units || k >= p.n_k)
        return;
    sl_w8_unit u = sl_w8_find(l, p, id, S::NT);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        w[mi] = sl_w8_rows_of(l.part[S::GATED ? mi : u.part], p.n_k, u.tile).scales[k];
}

/* w: the scales of the first tile's units. */
template <class S>
static __device__ __forceinline__ void sl_w8_few_consume(const sl_lin &l, const sl_w8_few_plan &p,
                                                         uint8_t *smem, float (&w)[S::MI])
{
    int thread = static_cast<int>(threadIdx.x - 128), step = static_cast<int>(gridDim.x), odd = 0;
    sl_w8_few_view<S> v = {};
    v.smem = smem;
    v.stages = p.stages;
    v.tokens = l.n;
    v.codes = smem + p.codes;
    v.xs = reinterpret_cast<const float *>(smem + p.xs) + 2 * (thread & 3);
    for (int id = static_cast<int>(blockIdx.x); id < p.n_units; id += step, odd ^= 1) {
        float *ws = reinterpret_cast<float *>(smem + p.ws) + odd * S::MI * SL_W8_KEPT;
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
            ws[mi * SL_W8_KEPT + thread] = w[mi];
        sl_bar_sync(1, 128);
        sl_w8_few_scales<S>(w, l, p, id + step);
        v.ws = ws;
        sl_w8_unit u = sl_w8_find(l, p, id, S::NT);
        float acc[S::MI][S::NT / 8][4], f[S::MI][2];
        sl_w8_few_factors<S>(f, l, p, u);
        sl_w8_few_walk<S>(acc, v, p.n_k);
        sl_w8_few_store<S>(acc, f, l, u);
    }
}

template <class S>
__global__ void __launch_bounds__(256, 1)
    sl_w8_few_kernel(const __grid_constant__ sl_lin l, const __grid_constant__ sl_w8_few_plan p,
                     const __grid_constant__ CUtensorMap map)
{
    SL_SMEM(uint8_t, smem);
    sl_mbar_init_all(sl_w8_full(smem, 0), p.stages, S::OWN ? 1 : 2);
    sl_mbar_init_all(sl_w8_empty(smem, 0), p.stages, 4 * SL_WARP_ARRIVALS);
    sl_mbar_fence_init();
    __syncthreads();
    sl_grid_launch_dependents();
    bool multiplies = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) == 1;
    float w[S::MI] = {};
    if (threadIdx.x < 32)
        sl_w8_few_bring_w<S>(l, p, smem);
    else if (multiplies)
        sl_w8_few_scales<S>(w, l, p, static_cast<int>(blockIdx.x));
    sl_grid_wait();
    float *xs = reinterpret_cast<float *>(smem + p.xs);
    if (S::OWN && threadIdx.x >= 32) {
        sl_w8_own<S>(l, p, smem + p.codes, xs);
        sl_bar_sync(2, 224);
    }
    if (!S::OWN && threadIdx.x == 32)
        sl_w8_few_bring_x<S>(p, &map, smem);
    __syncwarp();
    if (multiplies) {
        if (!S::OWN)
            sl_w8_keep<S>(p, xs);
        sl_w8_few_consume<S>(l, p, smem, w);
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

/* Where things lie. */
template <class S> static size_t sl_w8_few_room(sl_w8_few_plan *p, int n_tokens)
{
    int codes = S::OWN ? n_tokens * p->n_k * 128 + 128 : 0, xs = p->n_k * S::NT * 4;
    int ws = 2 * S::MI * SL_W8_KEPT * 4, room = SL_W8_WHOLE - SL_W8_HEADER - codes - xs - ws;
    p->stages = SL_MIN(room / S::stage, SL_W8_RING);
    SL_ASSERT(p->stages >= 3);
    p->codes = (uint32_t)(SL_W8_HEADER + p->stages * S::stage);
    p->xs = p->codes + (uint32_t)codes;
    p->ws = p->xs + (uint32_t)xs;
    return p->ws + (size_t)ws;
}

/* q: codes of the tokens, [n][n_k * 128], and ld_xs a multiple of 4; not looked at with OWN. */
template <class S>
static void sl_w8_few_launch(struct sl_cuda *cu, const sl_lin *given, const uint8_t *q,
                             const float *xs, int32_t ld_xs, int32_t = 1)
{
    sl_lin l = *given;
    CUtensorMap map = {};
    sl_w8_few_plan p = {};
    static_cast<sl_w8_plan &>(p) = sl_w8_plan_of(&l, xs, ld_xs, 64, S::NT, 1);
    SL_ASSERT(p.n_k <= SL_W8_KEPT && p.n_cols == 1);
    size_t smem = sl_w8_few_room<S>(&p, l.n);
    if (!S::OWN)
        sl_cuda_check(
            cu,
            sl_tensor_map_codes(&map, q, l.n, (int64_t)p.n_k * 128, (int64_t)p.n_k * 128, S::NT),
            "cuTensorMapEncodeTiled");
    unsigned grid = (unsigned)SL_MIN(p.n_units, cu->n_sms);
    sl_launch(cu, sl_w8_few_kernel<S>, dim3(grid), dim3(256), smem, l, p, map);
}

#endif
