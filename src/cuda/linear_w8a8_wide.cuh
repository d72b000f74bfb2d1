/* SPDX-License-Identifier: MIT
 * linear_w8a8_wide.cuh - products of FP8 weights and FP8 activations for many tokens: the operands
 * of linear_w8a8_few.cuh exchanged, which changes no bit.
 *
 * Tokens are the 64-row operand, rows of weights the other. So a thread needs the scales of two
 * tokens, not factors for a fourth of all: those would take a quarter of what shared memory gives.
 *
 * A block takes one tile after another: CW consumer warpgroups of 64 tokens each and all 64 Q rows
 * of the tile, and a warpgroup of which warp 0 brings weights, in bulk copies of 8 KB that lie as
 * they will, warp 1 tokens and warp 2 the scales of both. In a gated product units of 64 rows are
 * gate's and up's in turn, so that a thread has both sums of an output. A warpgroup waits for its
 * sum and adds it up while the products of the others run; with two groups (TWO) each has two sums
 * under way.
 */
#ifndef SL_CUDA_LINEAR_W8A8_WIDE_CUH
#define SL_CUDA_LINEAR_W8A8_WIDE_CUH

#include "cuda/linear_w8a8.cuh"

template <int CW_, int Q_, bool GATED_, bool TWO_ = CW_ == 2 && Q_ <= 2> struct sl_w8_wide {
    static constexpr int CW = CW_, Q = Q_, R = 64 * Q_; /* R: rows of a tile, of both parts */
    static constexpr bool GATED = GATED_, TWO = TWO_;
    static constexpr int threads = 128 * (CW + 1), tokens = 64 * CW;
    static constexpr int rows = R / (GATED ? 2 : 1); /* of a part */
    static constexpr int w_bytes = Q * SL_W8_UNIT, x_bytes = tokens * 128;
    static constexpr int stage = w_bytes + x_bytes, s_stage = 4 * (tokens + 4);
    static constexpr int fit = (SL_W8_WHOLE - SL_W8_HEADER) / (stage + s_stage);
    static constexpr int stages = fit > SL_W8_RING ? SL_W8_RING : fit;
    static constexpr int s_offset = SL_W8_HEADER + stages * stage;
    static constexpr int smem = s_offset + stages * s_stage;
    static constexpr int give = CW == 3 ? 32 : 40, take = CW == 3 ? 160 : 232;
    static constexpr int ahead = 2; /* steps whose scales are on their way */
    static_assert(stages >= 3 && CW <= 3 && Q <= 4 && (!GATED || Q % 2 == 0), "shape");
};

/* The rows of unit u of a tile. */
template <class S>
static __device__ __forceinline__ sl_w8_rows sl_w8_wide_rows(const sl_lin &l, const sl_w8_plan &p,
                                                             const sl_w8_unit &t, int u)
{
    return sl_w8_rows_of(l.part[S::GATED ? u % 2 : t.part], p.n_k,
                         t.tile * (S::rows / 64) + (S::GATED ? u / 2 : u));
}

/* Warp 0: weights, which need not wait for the kernels ahead. */
template <class S>
static __device__ __forceinline__ void sl_w8_wide_bring_w(const sl_lin &l, const sl_w8_plan &p,
                                                          uint8_t *smem)
{
    int lane = static_cast<int>(threadIdx.x % 32);
    sl_w8_place at = {0, 1};
    for (int id = static_cast<int>(blockIdx.x); id < p.n_units; id += static_cast<int>(gridDim.x)) {
        sl_w8_unit t = sl_w8_find(l, p, id, S::tokens);
        const uint8_t *from = sl_w8_wide_rows<S>(l, p, t, min(lane, S::Q - 1)).codes;
        for (int k = 0; k < p.n_k; k++) {
            uint64_t *full = sl_w8_full(smem, at.slot);
            sl_mbar_wait(sl_w8_empty(smem, at.slot), at.parity);
            if (lane == 0)
                sl_mbar_expect_tx(full, S::w_bytes);
            __syncwarp();
            if (lane < S::Q)
                sl_bulk_load(smem + SL_W8_HEADER + at.slot * S::stage + lane * SL_W8_UNIT,
                             from + static_cast<int64_t>(k) * SL_W8_UNIT, SL_W8_UNIT, full);
            sl_w8_next<S>(at);
        }
    }
}

/* Warp 1, one lane: tokens. */
template <class S>
static __device__ __forceinline__ void sl_w8_wide_bring_x(const sl_lin &l, const sl_w8_plan &p,
                                                          const CUtensorMap *map, uint8_t *smem)
{
    sl_w8_place at = {0, 1};
    for (int id = static_cast<int>(blockIdx.x); id < p.n_units; id += static_cast<int>(gridDim.x)) {
        sl_w8_unit t = sl_w8_find(l, p, id, S::tokens);
        for (int k = 0; k < p.n_k; k++) {
            uint64_t *full = sl_w8_full(smem, at.slot);
            sl_mbar_wait(sl_w8_empty(smem, at.slot), at.parity);
            sl_mbar_expect_tx(full, S::x_bytes);
            sl_tensor_load(smem + SL_W8_HEADER + at.slot * S::stage + S::w_bytes, map, k * 128,
                           t.token0, full);
            sl_w8_next<S>(at);
        }
    }
}

/* Warp 2: the scales of a step, of two tokens a lane and 64 and 128 further, and of the units, by
 * ordinary stores: were they brought by the copy engine, whoever has read them would owe it a
 * fence, which takes as long as the products of a step. */
template <class S>
static __device__ __forceinline__ void sl_w8_wide_scales(const sl_lin &l, const sl_w8_plan &p,
                                                         uint8_t *smem)
{
    int lane = static_cast<int>(threadIdx.x % 32);
    sl_w8_place at = {0, 1};
    for (int id = static_cast<int>(blockIdx.x); id < p.n_units; id += static_cast<int>(gridDim.x)) {
        sl_w8_unit t = sl_w8_find(l, p, id, S::tokens);
        const float *w = sl_w8_wide_rows<S>(l, p, t, min(lane, S::Q - 1)).scales;
        float2 xs[S::ahead][S::CW];
        float ws[S::ahead];
        auto load = [&](int j, int k) {
            k = min(k, p.n_k - 1);
#pragma unroll
            for (int i = 0; i < S::CW; i++) {
                int token = min(t.token0 + 64 * i + 2 * lane, p.ld_xs - 2);
                xs[j][i] = *reinterpret_cast<const float2 *>(
                    p.xs + static_cast<int64_t>(k) * p.ld_xs + token);
            }
            ws[j] = w[k];
        };
#pragma unroll
        for (int j = 0; j < S::ahead; j++)
            load(j, j);
#pragma unroll 1
        for (int k = 0; k < p.n_k; k += S::ahead) {
#pragma unroll
            for (int j = 0; j < S::ahead; j++) {
                if (k + j >= p.n_k)
                    break;
                float *to = reinterpret_cast<float *>(smem + S::s_offset + at.slot * S::s_stage);
                sl_mbar_wait(sl_w8_empty(smem, at.slot), at.parity);
#pragma unroll
                for (int i = 0; i < S::CW; i++)
                    *reinterpret_cast<float2 *>(to + 64 * i + 2 * lane) = xs[j][i];
                if (lane < S::Q)
                    to[S::tokens + lane] = ws[j];
                sl_mbar_arrive_warp(sl_w8_full(smem, at.slot));
                load(j, k + j + S::ahead);
                sl_w8_next<S>(at);
            }
        }
    }
}

/* ------------------------------------------------------------------ consumers */

template <class S> struct sl_w8_wide_view {
    uint8_t *smem;
    sl_w8_place at; /* the stage to multiply next */
    int32_t oldest; /* the one to give back next */
    int32_t group,
        token; /* of the warpgroup's tokens the first of this thread, the other is 8 on */
};

/* Sums under way, and their factors. */
template <class S> struct sl_w8_wide_sums {
    float v[S::R / 8][4];
    float f[S::Q][2];
};

/* Starts the products of a stage, and reads their factors meanwhile. */
template <class S>
static __device__ __forceinline__ void sl_w8_wide_issue(sl_w8_wide_sums<S> &s,
                                                        sl_w8_wide_view<S> &v)
{
    sl_mbar_wait(sl_w8_full(v.smem, v.at.slot), v.at.parity);
    uint8_t *stage = v.smem + SL_W8_HEADER + v.at.slot * S::stage;
    auto w = sl_wgmma_b(stage), x = sl_wgmma_b(stage + S::w_bytes + v.group * SL_W8_UNIT);
    sl_wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; j++)
        sl_wgmma_e4m3(s.v, x + j * SL_WGMMA_B_K16, w + j * SL_WGMMA_B_K16, j);
    sl_wgmma_commit();
    const float *scales =
        reinterpret_cast<const float *>(v.smem + S::s_offset + v.at.slot * S::s_stage);
    float x0 = scales[64 * v.group + v.token], x1 = scales[64 * v.group + v.token + 8];
#pragma unroll
    for (int q = 0; q < S::Q; q++) {
        s.f[q][0] = __fmul_rn(x0, scales[S::tokens + q]);
        s.f[q][1] = __fmul_rn(x1, scales[S::tokens + q]);
    }
    sl_w8_next<S>(v.at);
}

/* Gives the oldest stage back and adds up its sums, which have ended. */
template <class S>
static __device__ __forceinline__ void sl_w8_wide_add(float (&acc)[S::R / 8][4],
                                                      sl_w8_wide_sums<S> &s, sl_w8_wide_view<S> &v)
{
    sl_wgmma_done(s.v);
    sl_mbar_arrive_warp(sl_w8_empty(v.smem, v.oldest));
    v.oldest = v.oldest + 1 == S::stages ? 0 : v.oldest + 1;
#pragma unroll
    for (int i = 0; i < S::R / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            acc[i][e] = __fmaf_rn(s.v[i][e], s.f[i / 8][e / 2], acc[i][e]);
}

template <class S>
static __device__ __forceinline__ void sl_w8_wide_walk(float (&acc)[S::R / 8][4],
                                                       sl_w8_wide_view<S> &v, int n)
{
#pragma unroll
    for (int i = 0; i < S::R / 2; i++)
        acc[i / 4][i % 4] = 0.0f;
    if constexpr (!S::TWO) {
#pragma unroll 1
        for (int k = 0; k < n; k++) {
            sl_w8_wide_sums<S> s;
            sl_w8_wide_issue<S>(s, v);
            sl_wgmma_wait<0>();
            sl_w8_wide_add<S>(acc, s, v);
        }
    } else { /* with a loop for what is left the compiler would wait for every product */
        sl_w8_wide_sums<S> even, odd;
        int k = 0;
        sl_w8_wide_issue<S>(even, v);
#pragma unroll 1
        for (; k + 2 < n; k += 2) {
            sl_w8_wide_issue<S>(odd, v);
            sl_wgmma_wait<1>();
            sl_w8_wide_add<S>(acc, even, v);
            sl_w8_wide_issue<S>(even, v);
            sl_wgmma_wait<1>();
            sl_w8_wide_add<S>(acc, odd, v);
        }
        if (k + 2 == n) {
            sl_w8_wide_issue<S>(odd, v);
            sl_wgmma_wait<1>();
            sl_w8_wide_add<S>(acc, even, v);
            sl_wgmma_wait<0>();
            sl_w8_wide_add<S>(acc, odd, v);
        } else {
            sl_wgmma_wait<0>();
            sl_w8_wide_add<S>(acc, even, v);
        }
    }
}

template <typename T>
static __device__ __forceinline__ void sl_w8_put2(T *at, float a, float b, bool both, bool vec)
{
    if constexpr (sizeof(T) == 4) {
        if (both && vec) {
            *reinterpret_cast<float2 *>(at) = make_float2(a, b);
            return;
        }
    } else {
        if (both && vec) {
            *reinterpret_cast<__nv_bfloat162 *>(at) = __floats2bfloat162_rn(a, b);
            return;
        }
    }
    sl_lin_put(at, a);
    if (both)
        sl_lin_put(at + 1, b);
}

/* A thread has two rows next to each other of each eight, of two tokens. The scales and biases of
 * 64 rows are loaded together: behind a store the compiler would wait for each. */
template <class S>
static __device__ __forceinline__ void sl_w8_wide_store(const float (&acc)[S::R / 8][4],
                                                        const sl_lin &l, const sl_w8_plan &p,
                                                        const sl_w8_unit &u, int token)
{
    const sl_lin_part &part = l.part[u.part];
    const float *scale = sl_w8_scales(part, p.n_k), *up_scale = sl_w8_scales(l.part[1], p.n_k);
    int row0 = u.tile * S::rows + 2 * static_cast<int>(threadIdx.x % 4);
    int64_t ld = S::GATED ? part.n_rows : part.ld_out;
    bool vec = ld % 2 == 0 && (S::GATED || (reinterpret_cast<uintptr_t>(part.out) & 7) == 0);
#pragma unroll
    for (int q = 0; q < S::rows / 64; q++) {
        float2 s[8], t[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int row = min(row0 + 64 * q + 8 * i, SL_ROUND_UP(part.n_rows, 64) - 2);
            s[i] = *reinterpret_cast<const float2 *>(scale + row);
            t[i] = make_float2(0, 0);
            if (S::GATED) {
                t[i] = *reinterpret_cast<const float2 *>(up_scale + row);
            } else if (part.bias != nullptr) {
                t[i].x = part.bias[min(row, part.n_rows - 1)];
                t[i].y = part.bias[min(row + 1, part.n_rows - 1)];
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int row = row0 + 64 * q + 8 * i;
            if (row >= part.n_rows)
                continue;
            const float *v = acc[8 * q * (S::GATED ? 2 : 1) + i];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (token + 8 * h >= l.n)
                    continue;
                int64_t at = (token + 8 * h) * ld + row;
                float a = __fmul_rn(v[2 * h], s[i].x), b = __fmul_rn(v[2 * h + 1], s[i].y);
                if constexpr (S::GATED) {
                    const float *up = acc[8 * (2 * q + 1) + i];
                    a = __fmul_rn(sl_act(l.act, a), __fmul_rn(up[2 * h], t[i].x));
                    b = __fmul_rn(sl_act(l.act, b), __fmul_rn(up[2 * h + 1], t[i].y));
                    sl_w8_put2(l.gated_out + at, a, b, row + 1 < part.n_rows, vec);
                } else {
                    if (part.bias != nullptr) {
                        a = __fadd_rn(a, t[i].x);
                        b = __fadd_rn(b, t[i].y);
                    }
                    sl_w8_put2(part.out + at, a, b, row + 1 < part.n_rows, vec);
                }
            }
        }
    }
}

template <class S>
static __device__ __forceinline__ void sl_w8_wide_consume(const sl_lin &l, const sl_w8_plan &p,
                                                          uint8_t *smem)
{
    sl_w8_wide_view<S> v = {};
    v.smem = smem;
    v.group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) - 1;
    v.token = static_cast<int>(threadIdx.x / 32 % 4) * 16 + static_cast<int>(threadIdx.x % 32) / 4;
    for (int id = static_cast<int>(blockIdx.x); id < p.n_units; id += static_cast<int>(gridDim.x)) {
        sl_w8_unit u = sl_w8_find(l, p, id, S::tokens);
        float acc[S::R / 8][4];
        sl_w8_wide_walk<S>(acc, v, p.n_k);
        sl_w8_wide_store<S>(acc, l, p, u, u.token0 + 64 * v.group + v.token);
    }
}

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    sl_w8_wide_kernel(const __grid_constant__ sl_lin l, const __grid_constant__ sl_w8_plan p,
                      const __grid_constant__ CUtensorMap map)
{
    SL_SMEM(uint8_t, smem);
    sl_mbar_init_all(sl_w8_full(smem, 0), S::stages, 2 + SL_WARP_ARRIVALS);
    sl_mbar_init_all(sl_w8_empty(smem, 0), S::stages, 4 * S::CW * SL_WARP_ARRIVALS);
    sl_mbar_fence_init();
    __syncthreads();
    sl_grid_launch_dependents();
    if (__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) == 0) {
        sl_regs_give<S::give>();
        if (threadIdx.x < 32)
            sl_w8_wide_bring_w<S>(l, p, smem);
        sl_grid_wait();
        if (threadIdx.x == 32)
            sl_w8_wide_bring_x<S>(l, p, &map, smem);
        else if (threadIdx.x / 32 == 2)
            sl_w8_wide_scales<S>(l, p, smem);
        __syncwarp();
    } else {
        sl_regs_take<S::take>();
        sl_grid_wait();
        sl_w8_wide_consume<S>(l, p, smem);
    }
}

/* ------------------------------------------------------------------ host */

/* q: codes of the tokens, [n][n_k * 128]; ld_xs a multiple of 4. */
template <class S>
static void sl_w8_wide_launch(struct sl_cuda *cu, const sl_lin *given, const uint8_t *q,
                              const float *xs, int32_t ld_xs, int32_t raster = SL_W8_RASTER)
{
    sl_lin l = *given;
    CUtensorMap map = {};
    sl_w8_plan p = sl_w8_plan_of(&l, xs, ld_xs, S::rows, S::tokens, raster);
    sl_cuda_check(
        cu,
        sl_tensor_map_codes(&map, q, l.n, (int64_t)p.n_k * 128, (int64_t)p.n_k * 128, S::tokens),
        "cuTensorMapEncodeTiled");
    unsigned grid = (unsigned)SL_MIN(p.n_units, cu->n_sms);
    sl_launch(cu, sl_w8_wide_kernel<S>, dim3(grid), dim3(S::threads), S::smem, l, p, map);
}

#endif
