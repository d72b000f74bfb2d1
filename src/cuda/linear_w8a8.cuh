/* SPDX-License-Identifier: MIT
 * linear_w8a8.cuh - products of FP8 weights and FP8 activations: tiles of rows x tokens by wgmma.
 *
 * Weights (layout w8a8 of weight.h) are the 64-row operand, tokens the other, both from shared
 * memory. For every output and every 128 columns there is a sum that wgmma makes from nothing, in
 * steps of 32 columns; behind it `acc = fma(sum, x_scale * w_scale, acc)` in ascending order from
 * +0, the product of the scales rounded once; at the end acc times the scale of the row, then the
 * bias. This also repairs what the chip's sums of FP8 lose, which keep about 14 bits. One order for
 * one token and for a thousand: all widths of wgmma give the same bits (lab/gemm_fp8.cu), mma.sync
 * does not, so that few tokens, too, take wgmma, 8 tokens wide.
 *
 * A block takes one tile after another: CW consumer warpgroups of 64 rows each and all NT tokens of
 * the tile, and a warpgroup of which warp 0 brings weights, in bulk copies of 8 KB that lie as they
 * will, warp 1 tokens and warp 2 the factors of the sums; of few tokens all scales are kept. In a
 * gated product the 64 rows of a warpgroup are 32 of gate and the same of up, eight by eight, so
 * that a thread has both sums of an output: copies of 1 KB place them so. With few tokens a group
 * has two sums under way; else it waits for its sum and adds it up while the other groups' products
 * run.
 *
 * Clusters (CL = 2) have tiles of rows side by side and share the tokens: each block brings half of
 * them for both.
 */
#ifndef SL_CUDA_LINEAR_W8A8_CUH
#define SL_CUDA_LINEAR_W8A8_CUH

#include "cuda/launch.cuh"
#include "cuda/linear_store.cuh"
#include "cuda/ptx_fp8.cuh"

#define SL_W8_UNIT   SL_CUDA_W8A8_UNIT
#define SL_W8_HEADER 1024   /* barriers */
#define SL_W8_RING   28     /* most stages */
#define SL_W8_WHOLE  232448 /* shared memory of a block that is alone */
#define SL_W8_HALF   113664 /* of one beside which the next kernel's fits */
#define SL_W8_KEPT   128    /* most steps of few tokens: their scales stay in shared memory */
#define SL_W8_RASTER 8      /* columns of tokens of a raster group */

template <int NT_, int CW_, int CL_, bool GATED_, int ROOM_ = NT_ <= 16 ? SL_W8_HALF : SL_W8_WHOLE,
          bool TWO_ = NT_ <= 64>
struct sl_w8_shape {
    static constexpr int NT = NT_, CW = CW_, CL = CL_;
    static constexpr bool GATED = GATED_;
    static constexpr int threads = 128 * (CW + 1);
    static constexpr int rows = (GATED ? 32 : 64) * CW;  /* of a part */
    static constexpr int factors = CW * (GATED ? 2 : 1); /* of a token: for each unit of a step */
    static constexpr int w_bytes = CW * SL_W8_UNIT, x_bytes = NT * 128, s_bytes = 4 * NT * factors;
    static constexpr bool kept = NT <= 64; /* all scales of the tokens */
    static constexpr int kept_bytes = kept ? SL_W8_KEPT * NT * 4 : 0;
    static constexpr int fit =
        (ROOM_ - SL_W8_HEADER - kept_bytes) / (w_bytes + x_bytes + (kept ? 0 : s_bytes));
    static constexpr int stages = fit > SL_W8_RING ? SL_W8_RING : fit;
    static constexpr int stage = w_bytes + x_bytes;
    static constexpr int s_offset = SL_W8_HEADER + stages * stage;
    static constexpr int smem = s_offset + (kept ? kept_bytes : stages * s_bytes);
    static constexpr bool two = TWO_; /* sums under way in a group */
    static constexpr int give = CW == 2 ? 72 : 56, take = CW == 2 ? 216 : 152;
    static constexpr int ahead = CW > 1 ? 2 : 4; /* steps whose scales are on their way */
    /* Factors are read while the products run, if there are registers for them. */
    static constexpr bool early = kept || NT + NT / 4 * (GATED ? 2 : 1) + 34 <= (CW == 3   ? 160
                                                                                 : CW == 2 ? 232
                                                                                           : 255);
    static_assert(stages >= 3 && NT / CL % 8 == 0 && CW <= 3, "shared memory");
};

struct sl_w8_plan {
    const float *xs; /* scales of tokens: [columns / 128][ld_xs] */
    int32_t ld_xs;   /* a multiple of 4 */
    int32_t n_k;     /* steps of 128 columns */
    int32_t n_tiles; /* of rows, of a cluster */
    int32_t n_cols;  /* of tokens */
    int32_t n_units;
    int32_t raster;
};

/* The scales behind the codes: of rows, then of units. */
static __device__ __host__ __forceinline__ const float *sl_w8_scales(const sl_lin_part &p, int n_k)
{
    int64_t n_units = static_cast<int64_t>(SL_CEIL_DIV(p.n_rows, 64)) * n_k;
    return reinterpret_cast<const float *>(p.w + n_units * SL_W8_UNIT);
}

static __device__ __forceinline__ const float *sl_w8_unit_scales(const sl_lin_part &p, int n_k,
                                                                 int block)
{
    return sl_w8_scales(p, n_k) + 64 * SL_CEIL_DIV(p.n_rows, 64) +
           static_cast<int64_t>(block) * n_k;
}

struct sl_w8_unit {
    int32_t part; /* of a gated product 0 */
    int32_t tile; /* of the part */
    int32_t token0;
};

static __device__ __forceinline__ sl_w8_unit sl_w8_find(const sl_lin &l, const sl_w8_plan &p,
                                                        int id, int tokens, int cluster, int rank)
{
    int per_group = p.raster * p.n_tiles;
    int group = id / per_group, in = id % per_group;
    int width = min(p.raster, p.n_cols - group * p.raster);
    int row = in / width;
    sl_w8_unit u;
    u.part = 0;
    while (!l.gated && u.part + 1 < l.n_parts && row >= l.part[u.part + 1].first)
        u.part++;
    u.tile = (row - l.part[u.part].first) * cluster + rank;
    u.token0 = (group * p.raster + in % width) * tokens;
    return u;
}

struct sl_w8_place {
    int32_t slot;
    uint32_t parity;
};

template <class S> static __device__ __forceinline__ void sl_w8_next(sl_w8_place &at)
{
    if (++at.slot == S::stages) {
        at.slot = 0;
        at.parity ^= 1;
    }
}

static __device__ __forceinline__ uint64_t *sl_w8_full(uint8_t *smem, int slot)
{
    return reinterpret_cast<uint64_t *>(smem) + slot;
}

static __device__ __forceinline__ uint64_t *sl_w8_empty(uint8_t *smem, int slot)
{
    return reinterpret_cast<uint64_t *>(smem) + SL_W8_RING + slot;
}

template <class S> static __device__ __forceinline__ uint8_t *sl_w8_stage(uint8_t *smem, int slot)
{
    return smem + SL_W8_HEADER + slot * S::stage; /* weights, then tokens */
}

/* Where warpgroup `group` of a tile has its rows: the unit of 64, of a gated product the half. What
 * is behind the last row reads the last ones again; nobody stores it. */
template <class S>
static __device__ __forceinline__ int sl_w8_block(const sl_lin_part &p, int tile, int group)
{
    int n = SL_CEIL_DIV(p.n_rows, 64) * (S::GATED ? 2 : 1);
    return min(tile * S::CW + group, n - 1);
}

/* Warp 0: weights, which need not wait for the kernels ahead. */
template <class S>
static __device__ __forceinline__ void sl_w8_bring_w(const sl_lin &l, const sl_w8_plan &p,
                                                     uint8_t *smem, int rank)
{
    constexpr int copies = S::GATED ? 8 * S::CW : S::CW;
    constexpr uint32_t bytes = S::w_bytes / copies;
    int lane = static_cast<int>(threadIdx.x % 32);
    sl_w8_place at = {0, 1};
    for (int id = static_cast<int>(blockIdx.x) / S::CL; id < p.n_units;
         id += static_cast<int>(gridDim.x) / S::CL) {
        sl_w8_unit u = sl_w8_find(l, p, id, S::NT, S::CL, rank);
        const uint8_t *from;
        if (S::GATED) {
            int block = sl_w8_block<S>(l.part[0], u.tile, min(lane / 8, S::CW - 1));
            from = l.part[lane & 1].w + static_cast<int64_t>(block / 2) * p.n_k * SL_W8_UNIT +
                   (block % 2 * 4 + lane / 2 % 4) * 1024;
        } else {
            int block = sl_w8_block<S>(l.part[u.part], u.tile, min(lane, S::CW - 1));
            from = l.part[u.part].w + static_cast<int64_t>(block) * p.n_k * SL_W8_UNIT;
        }
        for (int k = 0; k < p.n_k; k++) {
            uint64_t *full = sl_w8_full(smem, at.slot);
            sl_mbar_wait(sl_w8_empty(smem, at.slot), at.parity);
            if (lane == 0)
                sl_mbar_expect_tx(full, S::w_bytes);
            __syncwarp();
            if (lane < copies)
                sl_bulk_load(sl_w8_stage<S>(smem, at.slot) + lane * bytes,
                             from + static_cast<int64_t>(k) * SL_W8_UNIT, bytes, full);
            sl_w8_next<S>(at);
        }
    }
}

/* Warp 1, one lane: tokens. */
template <class S>
static __device__ __forceinline__ void sl_w8_bring_x(const sl_lin &l, const sl_w8_plan &p,
                                                     const CUtensorMap *map, uint8_t *smem,
                                                     int rank)
{
    constexpr int part = S::NT / S::CL;
    sl_w8_place at = {0, 1};
    for (int id = static_cast<int>(blockIdx.x) / S::CL; id < p.n_units;
         id += static_cast<int>(gridDim.x) / S::CL) {
        sl_w8_unit u = sl_w8_find(l, p, id, S::NT, S::CL, rank);
        for (int k = 0; k < p.n_k; k++) {
            uint64_t *full = sl_w8_full(smem, at.slot);
            uint8_t *x = sl_w8_stage<S>(smem, at.slot) + S::w_bytes;
            sl_mbar_wait(sl_w8_empty(smem, at.slot), at.parity);
            sl_mbar_expect_tx(full, S::x_bytes);
            if (S::CL > 1)
                sl_tensor_load_all(x + rank * part * 128, map, k * 128, u.token0 + rank * part,
                                   full, static_cast<uint16_t>((1 << S::CL) - 1));
            else
                sl_tensor_load(x, map, k * 128, u.token0, full);
            sl_w8_next<S>(at);
        }
    }
}

/* Scales of a step: of four tokens a lane (and of four more, 128 further), and of the units. */
template <class S> struct sl_w8_step {
    static constexpr int quads = (S::NT + 127) / 128;
    float4 x[quads];
    float w[S::factors];

    __device__ __forceinline__ void load(const sl_w8_plan &p,
                                         const float *const (&units)[S::factors], int k, int token)
    {
        if (k >= p.n_k)
            return;
#pragma unroll
        for (int i = 0; i < quads; i++)
            x[i] = token + 128 * i < p.ld_xs
                       ? *reinterpret_cast<const float4 *>(
                             p.xs + static_cast<int64_t>(k) * p.ld_xs + token + 128 * i)
                       : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < S::factors; i++)
            w[i] = units[i][k];
    }
    __device__ __forceinline__ void store(float *to, int lane) const
    {
#pragma unroll
        for (int i = 0; i < quads; i++)
#pragma unroll
            for (int f = 0; f < S::factors; f++)
                if (4 * lane + 128 * i < S::NT)
                    *reinterpret_cast<float4 *>(to + f * S::NT + 4 * lane + 128 * i) =
                        make_float4(__fmul_rn(x[i].x, w[f]), __fmul_rn(x[i].y, w[f]),
                                    __fmul_rn(x[i].z, w[f]), __fmul_rn(x[i].w, w[f]));
    }
};

/* Warp 2: the factors of a step's sums, by ordinary stores: were they brought by the copy engine,
 * whoever has read them would owe it a fence, which takes as long as the products of a step. */
template <class S>
static __device__ __forceinline__ void sl_w8_bring_scales(const sl_lin &l, const sl_w8_plan &p,
                                                          uint8_t *smem, int rank)
{
    int lane = static_cast<int>(threadIdx.x % 32);
    sl_w8_place at = {0, 1};
    for (int id = static_cast<int>(blockIdx.x) / S::CL; id < p.n_units;
         id += static_cast<int>(gridDim.x) / S::CL) {
        sl_w8_unit u = sl_w8_find(l, p, id, S::NT, S::CL, rank);
        const float *units[S::factors];
#pragma unroll
        for (int i = 0; i < S::factors; i++) {
            const sl_lin_part &part = l.part[S::GATED ? i % 2 : u.part];
            int block = sl_w8_block<S>(part, u.tile, S::GATED ? i / 2 : i);
            units[i] = sl_w8_unit_scales(part, p.n_k, S::GATED ? block / 2 : block);
        }
        sl_w8_step<S> step[S::ahead];
#pragma unroll
        for (int j = 0; j < S::ahead; j++)
            step[j].load(p, units, j, u.token0 + 4 * lane);
#pragma unroll 1
        for (int k = 0; k < p.n_k; k += S::ahead) {
#pragma unroll
            for (int j = 0; j < S::ahead; j++) {
                if (k + j >= p.n_k)
                    break;
                sl_mbar_wait(sl_w8_empty(smem, at.slot), at.parity);
                step[j].store(reinterpret_cast<float *>(smem + S::s_offset + at.slot * S::s_bytes),
                              lane);
                sl_mbar_arrive_warp(sl_w8_full(smem, at.slot));
                step[j].load(p, units, k + j + S::ahead, u.token0 + 4 * lane);
                sl_w8_next<S>(at);
            }
        }
    }
}

/* ------------------------------------------------------------------ consumers */

template <class S> struct sl_w8_view {
    uint8_t *smem;
    sl_w8_place at; /* the stage to multiply next */
    int32_t oldest; /* the one to give back next */
    int32_t group;
    const float *scale[2]; /* of the next step's units, where scales are kept */
    const float *last;     /* of the first row's */
    float w[2];            /* what they are */
    const float *xs;       /* the next step's scales of tokens */
};

/* Sums under way, and their factors: of a pair of tokens, for the warp's upper eight rows and, in a
 * gated product, for the lower ones. */
template <class S> struct sl_w8_sums {
    static constexpr int kinds = S::GATED ? 2 : 1;
    float v[S::NT / 8][4];
    float2 f[S::early ? S::NT / 8 : 1][kinds];
    const float *factors;

    __device__ __forceinline__ void read(float2 (&to)[kinds], int i) const
    {
#pragma unroll
        for (int r = 0; r < kinds; r++)
            to[r] = *reinterpret_cast<const float2 *>(factors + r * S::NT + 8 * i);
    }
};

/* Starts the products of a stage. */
template <class S>
static __device__ __forceinline__ void sl_w8_issue(sl_w8_sums<S> &s, sl_w8_view<S> &v)
{
    sl_mbar_wait(sl_w8_full(v.smem, v.at.slot), v.at.parity);
    uint8_t *stage = sl_w8_stage<S>(v.smem, v.at.slot);
    auto w = sl_wgmma_b(stage + v.group * SL_W8_UNIT), x = sl_wgmma_b(stage + S::w_bytes);
    sl_wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; j++)
        sl_wgmma_e4m3(s.v, w + j * SL_WGMMA_B_K16, x + j * SL_WGMMA_B_K16, j);
    sl_wgmma_commit();
    if constexpr (S::kept) {
#pragma unroll
        for (int i = 0; i < S::NT / 8; i++) {
            float2 x = *reinterpret_cast<const float2 *>(v.xs + 8 * i);
#pragma unroll
            for (int r = 0; r < s.kinds; r++)
                s.f[i][r] = make_float2(__fmul_rn(x.x, v.w[r]), __fmul_rn(x.y, v.w[r]));
        }
        v.xs += S::NT;
        bool more = v.scale[0] < v.last;
#pragma unroll
        for (int r = 0; r < s.kinds; r++) {
            v.scale[r] += more;
            v.w[r] = *v.scale[r];
        }
        sl_w8_next<S>(v.at);
        return;
    }
    s.factors = reinterpret_cast<const float *>(v.smem + S::s_offset + v.at.slot * S::s_bytes) +
                v.group * s.kinds * S::NT + 2 * (threadIdx.x & 3);
    if constexpr (S::early) {
#pragma unroll
        for (int i = 0; i < S::NT / 8; i++)
            s.read(s.f[i], i);
    }
    sl_w8_next<S>(v.at);
}

/* Gives the oldest stage back. */
template <class S> static __device__ __forceinline__ void sl_w8_give(sl_w8_view<S> &v)
{
    uint64_t *empty = sl_w8_empty(v.smem, v.oldest);
    if (S::CL == 1) {
        sl_mbar_arrive_warp(empty);
    } else {
        __syncwarp();
        if (threadIdx.x % 32 < S::CL)
            sl_mbar_arrive_at(empty, threadIdx.x % 32);
    }
    v.oldest = v.oldest + 1 == S::stages ? 0 : v.oldest + 1;
}

/* Adds up the sums of the oldest stage, which have ended. */
template <class S>
static __device__ __forceinline__ void sl_w8_promote(float (&acc)[S::NT / 8][4], sl_w8_sums<S> &s,
                                                     sl_w8_view<S> &v)
{
    sl_wgmma_done(s.v);
    if (S::early)
        sl_w8_give<S>(v);
#pragma unroll
    for (int i = 0; i < S::NT / 8; i++) {
        float2(&f)[s.kinds] = s.f[S::early ? i : 0];
        if (!S::early)
            s.read(f, i);
        acc[i][0] = __fmaf_rn(s.v[i][0], f[0].x, acc[i][0]);
        acc[i][1] = __fmaf_rn(s.v[i][1], f[0].y, acc[i][1]);
        acc[i][2] = __fmaf_rn(s.v[i][2], f[s.kinds - 1].x, acc[i][2]);
        acc[i][3] = __fmaf_rn(s.v[i][3], f[s.kinds - 1].y, acc[i][3]);
    }
    if (!S::early)
        sl_w8_give<S>(v);
}

template <class S>
static __device__ __forceinline__ void sl_w8_walk(float (&acc)[S::NT / 8][4], sl_w8_view<S> &v,
                                                  int n)
{
#pragma unroll
    for (int i = 0; i < S::NT / 2; i++)
        acc[i / 4][i % 4] = 0.0f;
    if constexpr (!S::two) {
#pragma unroll 1
        for (int k = 0; k < n; k++) {
            sl_w8_sums<S> s;
            sl_w8_issue<S>(s, v);
            sl_wgmma_wait<0>();
            sl_w8_promote<S>(acc, s, v);
        }
    } else { /* with a loop for what is left the compiler would wait for every product */
        sl_w8_sums<S> even, odd;
        int k = 0;
        sl_w8_issue<S>(even, v);
#pragma unroll 1
        for (; k + 2 < n; k += 2) {
            sl_w8_issue<S>(odd, v);
            sl_wgmma_wait<1>();
            sl_w8_promote<S>(acc, even, v);
            sl_w8_issue<S>(even, v);
            sl_wgmma_wait<1>();
            sl_w8_promote<S>(acc, odd, v);
        }
        if (k + 2 == n) {
            sl_w8_issue<S>(odd, v);
            sl_wgmma_wait<1>();
            sl_w8_promote<S>(acc, even, v);
            sl_wgmma_wait<0>();
            sl_w8_promote<S>(acc, odd, v);
        } else {
            sl_wgmma_wait<0>();
            sl_w8_promote<S>(acc, even, v);
        }
    }
}

/* A thread has gate's sums of a row, two for each eight tokens, and up's. */
template <int N>
static __device__ __forceinline__ void sl_w8_store_gated(const float (&acc)[N][4], const sl_lin &l,
                                                         int n_k, int row, int token0)
{
    int lane = static_cast<int>(threadIdx.x % 32), t0 = token0 + 2 * (lane & 3);
    if (row >= l.part[0].n_rows)
        return;
    float g = sl_w8_scales(l.part[0], n_k)[row], u = sl_w8_scales(l.part[1], n_k)[row];
    int64_t ld = l.part[0].n_rows;
    __nv_bfloat16 *at = l.gated_out + t0 * ld + row;
    constexpr int together = N > 4 ? 4 : N; /* worked on side by side */
#pragma unroll
    for (int i = 0; i < N; i += together) {
        float out[2 * together];
#pragma unroll
        for (int k = 0; k < 2 * together; k++) {
            const float *s = acc[i + k / 2];
            out[k] = __fmul_rn(sl_act(l.act, __fmul_rn(s[k % 2], g)), __fmul_rn(s[2 + k % 2], u));
        }
#pragma unroll
        for (int k = 0; k < 2 * together; k++) {
            if (t0 + 8 * (i + k / 2) + k % 2 < l.n)
                sl_lin_put(at + k % 2 * ld, out[k]);
            at += k % 2 == 1 ? 8 * ld : 0;
        }
    }
}

template <class S>
static __device__ __forceinline__ void sl_w8_store(float (&acc)[S::NT / 8][4], const sl_lin &l,
                                                   const sl_w8_plan &p, const sl_w8_unit &u,
                                                   int group)
{
    int warp = static_cast<int>(threadIdx.x / 32 % 4), g = static_cast<int>(threadIdx.x % 32) / 4;
    if constexpr (S::GATED) {
        sl_w8_store_gated<S::NT / 8>(acc, l, p.n_k, (u.tile * S::CW + group) * 32 + warp * 8 + g,
                                     u.token0);
    } else {
        const sl_lin_part &part = l.part[u.part];
        int block = (u.tile * S::CW + group) * 4 + warp, row = block * SL_CUDA_ROW_BLOCK + g;
        if (row - g >= part.n_rows)
            return;
        const float *scale = sl_w8_scales(part, p.n_k); /* of 64 rows, and again of 64 */
        float s0 = scale[row], s1 = scale[row + 8];
#pragma unroll
        for (int i = 0; i < S::NT / 2; i++)
            acc[i / 4][i % 4] = __fmul_rn(acc[i / 4][i % 4], i % 4 < 2 ? s0 : s1);
        sl_lin_store_part<S::NT / 8>(acc, l, part, block, u.token0);
    }
}

/* All scales of the tokens into shared memory. */
template <class S>
static __device__ __forceinline__ void sl_w8_keep(const sl_w8_plan &p, float *kept)
{
    constexpr int quads = S::NT / 4, threads = 128 * S::CW;
    for (int i = static_cast<int>(threadIdx.x) - 128; i < p.n_k * quads; i += threads) {
        int k = i / quads, token = 4 * (i % quads);
        float4 x = make_float4(0, 0, 0, 0);
        if (token < p.ld_xs)
            x = *reinterpret_cast<const float4 *>(p.xs + static_cast<int64_t>(k) * p.ld_xs + token);
        *reinterpret_cast<float4 *>(kept + k * S::NT + token) = x;
    }
    sl_bar_sync(1, threads);
}

/* Begins a unit: where its scales are. */
template <class S>
static __device__ __forceinline__ void sl_w8_begin(const sl_lin &l, const sl_w8_plan &p,
                                                   const sl_w8_unit &u, sl_w8_view<S> &v)
{
    int block = sl_w8_block<S>(l.part[u.part], u.tile, v.group) / (S::GATED ? 2 : 1);
    v.scale[0] = sl_w8_unit_scales(l.part[u.part], p.n_k, block);
    v.scale[1] = S::GATED ? sl_w8_unit_scales(l.part[1], p.n_k, block) : v.scale[0];
    v.last = v.scale[0] + p.n_k - 1;
    v.w[0] = *v.scale[0];
    v.w[1] = *v.scale[1];
    v.xs = reinterpret_cast<const float *>(v.smem + S::s_offset) + 2 * (threadIdx.x & 3);
}

template <class S>
static __device__ __forceinline__ void sl_w8_consume(const sl_lin &l, const sl_w8_plan &p,
                                                     uint8_t *smem, int rank)
{
    sl_w8_view<S> v = {};
    v.smem = smem;
    v.group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) - 1;
    if (S::kept)
        sl_w8_keep<S>(p, reinterpret_cast<float *>(smem + S::s_offset));
    for (int id = static_cast<int>(blockIdx.x) / S::CL; id < p.n_units;
         id += static_cast<int>(gridDim.x) / S::CL) {
        sl_w8_unit u = sl_w8_find(l, p, id, S::NT, S::CL, rank);
        if constexpr (S::kept)
            sl_w8_begin<S>(l, p, u, v);
        float acc[S::NT / 8][4];
        sl_w8_walk<S>(acc, v, p.n_k);
        sl_w8_store<S>(acc, l, p, u, v.group);
    }
}

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    sl_w8_kernel(const __grid_constant__ sl_lin l, const __grid_constant__ sl_w8_plan p,
                 const __grid_constant__ CUtensorMap map)
{
    SL_SMEM(uint8_t, smem);
    int rank = S::CL > 1 ? static_cast<int>(sl_cluster_rank()) : 0;
    sl_mbar_init_all(sl_w8_full(smem, 0), S::stages, 2 + (S::kept ? 0 : SL_WARP_ARRIVALS));
    sl_mbar_init_all(sl_w8_empty(smem, 0), S::stages,
                     static_cast<uint32_t>(4 * S::CW * (S::CL > 1 ? S::CL : SL_WARP_ARRIVALS)));
    sl_mbar_fence_init();
    __syncthreads();
    if (S::CL > 1)
        sl_cluster_sync();
    sl_grid_launch_dependents();
    if (__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) == 0) {
        if (S::CW > 1)
            sl_regs_give<S::give>();
        if (threadIdx.x < 32)
            sl_w8_bring_w<S>(l, p, smem, rank);
        sl_grid_wait();
        if (threadIdx.x == 32)
            sl_w8_bring_x<S>(l, p, &map, smem, rank);
        else if (threadIdx.x / 32 == 2 && !S::kept)
            sl_w8_bring_scales<S>(l, p, smem, rank);
        __syncwarp();
    } else {
        if (S::CW > 1)
            sl_regs_take<S::take>();
        sl_grid_wait();
        sl_w8_consume<S>(l, p, smem, rank);
    }
    if (S::CL > 1)
        sl_cluster_sync(); /* others may still reach for what is here */
}

/* ------------------------------------------------------------------ activations */

#define SL_W8_QUANT_WARPS 8

struct sl_w8_quant {
    const __nv_bfloat16 *x;
    int64_t ld_x;
    int32_t n, k, n_k;
    bool vec; /* rows of x start at multiples of 16 bytes */
    uint8_t *q;
    float *xs;
    int32_t ld_xs;
};

/* 16 columns from col on, as eight pairs; zeros behind the end. */
static __device__ __forceinline__ void sl_w8_quant_load(const sl_w8_quant &a, int token, int col,
                                                        uint32_t (&w)[8])
{
    const uint16_t *from = reinterpret_cast<const uint16_t *>(a.x) + token * a.ld_x + col;
    bool live = token < a.n;
    if (live && a.vec && col + 16 <= a.k) {
        uint4 lo = *reinterpret_cast<const uint4 *>(from);
        uint4 hi = *reinterpret_cast<const uint4 *>(from + 8);
        w[0] = lo.x, w[1] = lo.y, w[2] = lo.z, w[3] = lo.w;
        w[4] = hi.x, w[5] = hi.y, w[6] = hi.z, w[7] = hi.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        w[i] = live && col + 2 * i < a.k ? from[2 * i] : 0u;
        w[i] |= live && col + 2 * i + 1 < a.k ? static_cast<uint32_t>(from[2 * i + 1]) << 16 : 0u;
    }
}

/* Groups of 128 columns of a token: scale = amax / 448, code = x * (448 / amax) to the nearest. A
 * warp has four tokens of a group of columns, eight lanes each; grid (tokens / 4, columns). */
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
    uint32_t w[8], most = 0;
    sl_w8_quant_load(a, token, col, w);
#pragma unroll
    for (int i = 0; i < 8; i++)
        most = max(most, max(w[i] & 0x7FFFu, w[i] >> 16 & 0x7FFFu));
#pragma unroll
    for (int m = 4; m > 0; m >>= 1)
        most = max(most, __shfl_xor_sync(0xffffffffu, most, m));
    float amax = __uint_as_float(most << 16);
    bool finite = most < 0x7F80u, live = finite && amax >= 0x1p-100f;
    float scale = live ? __fdiv_rn(amax, 448.0f) : finite ? 0.0f : __uint_as_float(0x7FC00000u);
    float inv = live ? __fdiv_rn(448.0f, amax) : 0.0f;
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t lo = w[2 * i], hi = w[2 * i + 1];
        out[i] = sl_e4m3x2(__fmul_rn(__uint_as_float(lo << 16), inv),
                           __fmul_rn(__uint_as_float(lo & 0xFFFF0000u), inv)) |
                 sl_e4m3x2(__fmul_rn(__uint_as_float(hi << 16), inv),
                           __fmul_rn(__uint_as_float(hi & 0xFFFF0000u), inv))
                     << 16;
        out[i] = live ? out[i] : 0u;
    }
    if (token >= a.n)
        return;
    *reinterpret_cast<uint4 *>(a.q + static_cast<int64_t>(token) * a.n_k * 128 + col) =
        make_uint4(out[0], out[1], out[2], out[3]);
    if (lane % 8 == 0)
        a.xs[static_cast<int64_t>(group) * a.ld_xs + token] = scale;
}

/* ------------------------------------------------------------------ host */

static inline void sl_w8_quantise(struct sl_cuda *cu, const sl_w8_quant *a)
{
    dim3 grid((unsigned)SL_CEIL_DIV(a->n, 4), (unsigned)SL_CEIL_DIV(a->n_k, SL_W8_QUANT_WARPS));
    sl_launch(cu, sl_w8_quant_kernel, grid, dim3(32 * SL_W8_QUANT_WARPS), 0, *a);
}

/* q: codes of the tokens, [n][n_k * 128]. */
template <class S>
static void sl_w8_launch(struct sl_cuda *cu, const sl_lin *given, const uint8_t *q, const float *xs,
                         int32_t ld_xs, int32_t raster = SL_W8_RASTER)
{
    sl_lin l = *given;
    sl_w8_plan p = {};
    CUtensorMap map = {};
    p.xs = xs;
    p.ld_xs = ld_xs;
    p.n_k = SL_CEIL_DIV(l.k, 128);
    for (int i = 0; i < (l.gated ? 1 : l.n_parts); i++) {
        l.part[i].first = p.n_tiles;
        p.n_tiles += SL_CEIL_DIV(l.part[i].n_rows, S::rows * S::CL);
    }
    p.n_cols = SL_CEIL_DIV(l.n, S::NT);
    p.raster = SL_MIN(raster, p.n_cols);
    SL_ASSERT(!S::kept || (p.n_k <= SL_W8_KEPT && p.n_cols == 1));
    p.n_units = p.n_tiles * p.n_cols;
    sl_cuda_check(cu,
                  sl_tensor_map_codes(&map, q, l.n, (int64_t)p.n_k * 128, (int64_t)p.n_k * 128,
                                      S::NT / S::CL),
                  "cuTensorMapEncodeTiled");
    unsigned grid = (unsigned)(SL_MIN(p.n_units, SL_MAX(cu->n_sms / S::CL, 1)) * S::CL);
    sl_launch_cluster(cu, sl_w8_kernel<S>, dim3(grid), dim3(S::threads), S::smem, S::CL, l, p, map);
}

#endif
