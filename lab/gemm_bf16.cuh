/* SPDX-License-Identifier: MIT
 * gemm_bf16.cuh - the versions of lab/gemm_bf16.cu: one kernel, its choices as template parameters.
 *
 * out[token][row] = sum over k of w[row][k] x[token][k], weights as the 64-row operand of wgmma.
 * Columns are cut into segments as src/cuda/gemm/linear.h says; each has an accumulator from +0,
 * and segments are added in order.
 */
#ifndef SL_LAB_GEMM_BF16_CUH
#define SL_LAB_GEMM_BF16_CUH

#include "lab.h"

enum gemm_mode {
    ALONE,   /* blocks know nothing of each other */
    SHARE_X, /* a cluster has tiles of rows side by side; each block brings a part of the tokens for
                all */
    SHARE_W, /* a cluster has tiles of tokens side by side; each brings a part of the rows */
    SPLIT,   /* a cluster has one tile, each block a segment of its columns */
    SPLIT2,  /* the same, each block of a pair two segments, one after the other */
};
enum gemm_operand { FROM_SMEM, FROM_REGS };
enum gemm_end {
    STORE_NONE,
    STORE_FLOAT, /* from the registers */
    STORE_BOXES, /* through shared memory, by the copy engine, beside the next tile */
};

struct gemm_args {
    void *out;
    int64_t ld_out;
    uint64_t *clocks; /* pinned: clocks and nanoseconds of block 0 */
    const void *x;    /* fills the ring where nothing is loaded */
    uint32_t *fault;
    int32_t n_rows, n_tokens, n_k64, seg_k64, n_segs;
    int32_t tiles_r, tiles_t, n_units; /* tiles of a cluster, of rows and of tokens */
    int32_t raster;                    /* columns of tokens of a raster group */
};

#define GEMM_SMEM   232448
#define GEMM_HEADER 1024
#define GEMM_RING   8

template <int CW_, int NT_, int CL_, gemm_mode MODE_, bool TOTALS_, gemm_operand A_,
          gemm_end STORE_ = STORE_FLOAT, bool LOADS_ = true>
struct gemm_shape {
    static constexpr int CW = CW_, NT = NT_, CL = CL_;
    static constexpr gemm_mode MODE = MODE_;
    static constexpr bool TOTALS = TOTALS_, LOADS = LOADS_;
    static constexpr gemm_operand A = A_;
    static constexpr gemm_end STORE = STORE_;
    static constexpr int threads = 128 * (CW + 1), rows = 64 * CW, blocks = 4 * CW;
    static constexpr int w_bytes = rows * 128, x_bytes = NT * 128, stage = w_bytes + x_bytes;
    static constexpr int out_bytes = STORE == STORE_BOXES ? CW * 16384 : 0; /* 64 x 64 each */
    static constexpr int fit = (GEMM_SMEM - GEMM_HEADER - out_bytes) / stage;
    static constexpr int stages = fit > GEMM_RING ? GEMM_RING : fit;
    static constexpr int out_offset = GEMM_HEADER + stages * stage, smem = out_offset + out_bytes;
    static constexpr int per_x = MODE == SHARE_X ? CL : 1, per_w = MODE == SHARE_W ? CL : 1;
    static constexpr bool split = MODE == SPLIT || MODE == SPLIT2, shared = CL > 1 && !split;
    /* registers: what a block has, shared out in eights */
    static constexpr int give = CW == 1 ? 0 : CW == 2 ? 40 : 32, take = CW == 2 ? 232 : 160;
    static_assert(stages >= 3 && NT % 16 == 0, "shared memory");
    static_assert(NT / per_x % 8 == 0 && blocks % per_w == 0, "parts of a tile");
    static_assert(!split || rows * NT * (MODE == SPLIT2 ? 8 : 4) <= stages * stage,
                  "sums pass through the ring");
};

struct gemm_place {
    int32_t slot;
    uint32_t parity;
};

template <class S> static __device__ __forceinline__ void gemm_next(gemm_place &p)
{
    if (++p.slot == S::stages) {
        p.slot = 0;
        p.parity ^= 1;
    }
}

struct gemm_unit {
    int32_t row0, token0, from, to;
};

/* What this block does of unit id. Columns of tokens go by groups, within a group tile rows by
 * tile rows, so that what runs at a time is about a square. */
template <class S>
static __device__ __forceinline__ gemm_unit gemm_find(const gemm_args &a, int id, uint32_t rank)
{
    int per_group = a.raster * a.tiles_r, group = id / per_group, in = id % per_group;
    int width = min(a.raster, a.tiles_t - group * a.raster);
    int tr = in / width, tt = group * a.raster + in % width, r = static_cast<int>(rank);
    gemm_unit u;
    u.row0 = (S::MODE == SHARE_X ? tr * S::CL + r : tr) * S::rows;
    u.token0 = (S::MODE == SHARE_W ? tt * S::CL + r : tt) * S::NT;
    int seg = S::MODE == SPLIT ? r : S::MODE == SPLIT2 ? 2 * r : 0;
    int n_segs = S::MODE == SPLIT ? 1 : S::MODE == SPLIT2 ? 2 : a.n_segs;
    u.from = min(seg * a.seg_k64, a.n_k64);
    u.to = min(u.from + n_segs * a.seg_k64, a.n_k64);
    return u;
}

static __device__ __forceinline__ uint64_t *gemm_full(uint8_t *smem, int slot)
{
    return reinterpret_cast<uint64_t *>(smem) + slot;
}

static __device__ __forceinline__ uint64_t *gemm_empty(uint8_t *smem, int slot)
{
    return reinterpret_cast<uint64_t *>(smem) + GEMM_RING + slot;
}

template <class S> static __device__ __forceinline__ int gemm_slot(int slot)
{
    return GEMM_HEADER + slot * S::stage; /* x, then w */
}

/* One lane. Weights are nobody's output: their first stages need not wait for the kernel ahead. */
template <class S>
static __device__ __forceinline__ void gemm_bring(const gemm_args &a, const CUtensorMap *wmap,
                                                  const CUtensorMap *xmap, uint8_t *smem,
                                                  uint32_t rank, int first, int step)
{
    gemm_place at = {0, 1};
    const uint16_t all = static_cast<uint16_t>((1u << S::CL) - 1);
    const int r = static_cast<int>(rank);
    for (int id = first; id < a.n_units; id += step) {
        gemm_unit u = gemm_find<S>(a, id, rank);
        for (int k = u.from; k < u.to; k++) {
            lab_wait(gemm_empty(smem, at.slot), at.parity, 1, a.fault);
            uint64_t *full = gemm_full(smem, at.slot);
            uint8_t *x = smem + gemm_slot<S>(at.slot), *w = x + S::x_bytes;
            sl_mbar_expect_tx(full, S::stage);
            if (S::MODE == SHARE_W && S::CL > 1)
                sl_tensor_load_all(w + r * (S::w_bytes / S::per_w), wmap, k * 256,
                                   u.row0 / 16 + r * (S::blocks / S::per_w), full, all);
            else
                sl_tensor_load(w, wmap, k * 256, u.row0 / 16, full);
            if (S::MODE == SHARE_X && S::CL > 1)
                sl_tensor_load_all(x + r * (S::x_bytes / S::per_x), xmap, k * 64,
                                   u.token0 + r * (S::NT / S::per_x), full, all);
            else
                sl_tensor_load(x, xmap, k * 64, u.token0, full);
            gemm_next<S>(at);
        }
    }
}

/* A consumer warp's place: the next stage to wait for and the oldest that was not given back. */
struct gemm_view {
    uint8_t *smem;
    uint32_t *fault;
    gemm_place at;
    int32_t oldest;
    int32_t group; /* of the consumers */
};

template <class S> static __device__ __forceinline__ void gemm_release(gemm_view &v)
{
    if (S::LOADS) {
        uint32_t lane = threadIdx.x % 32;
        uint64_t *bar = gemm_empty(v.smem, v.oldest);
        if (S::shared) {
            if (lane < S::CL)
                sl_mbar_arrive_at(bar, lane);
        } else if (lane == 0) {
            sl_mbar_arrive(bar);
        }
    }
    v.oldest = v.oldest + 1 == S::stages ? 0 : v.oldest + 1;
}

template <class S> static __device__ __forceinline__ int gemm_wait_full(gemm_view &v)
{
    if (S::LOADS)
        lab_wait(gemm_full(v.smem, v.at.slot), v.at.parity, 2, v.fault);
    int slot = gemm_slot<S>(v.at.slot);
    gemm_next<S>(v.at);
    return slot;
}

/* n steps of 64 columns, both operands from shared memory; the sums begin anew. */
template <class S>
static __device__ __forceinline__ void gemm_walk_smem(float (&acc)[S::NT / 8][4], gemm_view &v,
                                                      int n)
{
#pragma unroll 1
    for (int k = 0; k < n; k++) {
        int slot = gemm_wait_full<S>(v);
        auto x = sl_wgmma_b(v.smem + slot);
        auto w = sl_wgmma_b(v.smem + slot + S::x_bytes + v.group * 8192);
        sl_wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; j++)
            sl_wgmma_ss(acc, w + j * SL_WGMMA_B_K16, x + j * SL_WGMMA_B_K16, k + j);
        sl_wgmma_commit();
        if (k > 0) {
            sl_wgmma_wait<1>();
            gemm_release<S>(v);
        }
    }
    sl_wgmma_wait<0>();
    gemm_release<S>(v);
}

/* Weights through registers, as fragments: those of a step while the products of the one before
 * run. */
template <class S>
static __device__ __forceinline__ void gemm_frag(uint32_t (&a)[4][4], const gemm_view &v, int slot)
{
    int warp = static_cast<int>(threadIdx.x / 32 % 4), lane = static_cast<int>(threadIdx.x % 32);
    const uint8_t *unit = v.smem + slot + S::x_bytes + (v.group * 4 + warp) * 2048 + lane * 16;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint4 q = *reinterpret_cast<const uint4 *>(unit + 512 * j);
        a[j][0] = q.x;
        a[j][1] = q.y;
        a[j][2] = q.z;
        a[j][3] = q.w;
    }
}

template <class S>
static __device__ __forceinline__ void gemm_issue_regs(float (&acc)[S::NT / 8][4],
                                                       const uint32_t (&a)[4][4],
                                                       const gemm_view &v, int slot)
{
    auto x = sl_wgmma_b(v.smem + slot);
    sl_wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; j++)
        sl_wgmma_rs(acc, a[j], x + j * SL_WGMMA_B_K16);
    sl_wgmma_commit();
}

template <class S>
static __device__ __forceinline__ void gemm_walk_regs(float (&acc)[S::NT / 8][4], gemm_view &v,
                                                      int n)
{
    uint32_t even[4][4], odd[4][4];
#pragma unroll
    for (int i = 0; i < S::NT / 2; i++)
        acc[i / 4][i % 4] = 0.0f;
    int slot = gemm_wait_full<S>(v), next = 0;
    gemm_frag<S>(even, v, slot);
#pragma unroll 1
    for (int k = 0; k < n; k += 2) {
        gemm_issue_regs<S>(acc, even, v, slot);
        if (k > 0) {
            sl_wgmma_wait<1>();
            gemm_release<S>(v);
        }
        if (k + 1 == n)
            break;
        next = gemm_wait_full<S>(v);
        gemm_frag<S>(odd, v, next);
        gemm_issue_regs<S>(acc, odd, v, next);
        sl_wgmma_wait<1>();
        gemm_release<S>(v);
        if (k + 2 < n) {
            slot = gemm_wait_full<S>(v);
            gemm_frag<S>(even, v, slot);
        }
    }
    sl_wgmma_wait<0>();
    gemm_release<S>(v);
}

template <class S>
static __device__ __forceinline__ void gemm_walk(float (&acc)[S::NT / 8][4], gemm_view &v, int n)
{
    if (S::A == FROM_SMEM)
        gemm_walk_smem<S>(acc, v, n);
    else
        gemm_walk_regs<S>(acc, v, n);
}

template <class S>
static __device__ __forceinline__ void gemm_sums(float (&sum)[S::NT / 8][4], const gemm_args &a,
                                                 gemm_view &v, const gemm_unit &u)
{
    if constexpr (!S::TOTALS) {
        gemm_walk<S>(sum, v, u.to - u.from);
    } else {
        gemm_walk<S>(sum, v, min(a.seg_k64, u.to));
        for (int k = a.seg_k64; k < u.to; k += a.seg_k64) {
            float acc[S::NT / 8][4];
            gemm_walk<S>(acc, v, min(a.seg_k64, u.to - k));
#pragma unroll
            for (int i = 0; i < S::NT / 2; i++)
                sum[i / 4][i % 4] = __fadd_rn(sum[i / 4][i % 4], acc[i / 4][i % 4]);
        }
    }
}

/* 8 N tokens from token0 on. */
template <int N>
static __device__ __forceinline__ void gemm_store_float(const float (&v)[N][4], const gemm_args &a,
                                                        int row0, int token0)
{
    int lane = static_cast<int>(threadIdx.x % 32), t0 = token0 + 2 * (lane & 3);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = row0 + (lane >> 2) + 8 * r;
        if (row >= a.n_rows)
            continue;
        float *at = static_cast<float *>(a.out) + t0 * a.ld_out + row;
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (t0 + 8 * i < a.n_tokens)
                *at = v[i][2 * r];
            if (t0 + 8 * i + 1 < a.n_tokens)
                at[a.ld_out] = v[i][2 * r + 1];
            at += 8 * a.ld_out;
        }
    }
}

/* Boxes of 32 rows x 64 tokens, two side by side: [token][32 rows], 16-byte pieces at piece ^
 * (token % 8), so that the stores of a warp hit all banks. */
template <class S, int N>
static __device__ __forceinline__ void gemm_store_boxes(const float (&v)[N][4],
                                                        const CUtensorMap *omap, uint8_t *smem,
                                                        int group, int row0, int token0)
{
    int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32, warp = thread / 32;
    uint8_t *box = smem + S::out_offset + group * 16384;
    uint8_t *at = box + warp / 2 * 8192 + 2 * (lane & 3) * 128 + (lane >> 2 & 3) * 4;
    int piece = warp % 2 * 4 + (lane >> 4); /* of row g; that of row g + 8 is two further */
#pragma unroll
    for (int c = 0; c < N / 8; c++) {
        if (thread == 0)
            sl_tensor_store_wait<0>(); /* the boxes of the 64 tokens before */
        sl_bar_sync(2 + group, 128);
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int to = (piece + (e & 2)) ^ (2 * (lane & 3) + (e & 1));
                *reinterpret_cast<float *>(at + i * 1024 + (e & 1) * 128 + to * 16) =
                    v[8 * c + i][e];
            }
        sl_fence_proxy_async();
        sl_bar_sync(2 + group, 128);
        if (thread == 0) {
            sl_tensor_store(omap, row0 + group * 64, token0 + 64 * c, box);
            sl_tensor_store(omap, row0 + group * 64 + 32, token0 + 64 * c, box + 8192);
            sl_tensor_store_commit();
        }
    }
}

template <class S, int N>
static __device__ __forceinline__ void gemm_store(const float (&v)[N][4], const gemm_args &a,
                                                  int group, int row0, int token0)
{
    if (S::STORE == STORE_NONE) { /* what nobody can leave out, and never happens */
        float all = 0.0f;
#pragma unroll
        for (int i = 0; i < 4 * N; i++)
            all = fmaxf(all, v[i / 4][i % 4]);
        if (all == 1e30f)
            *static_cast<float *>(a.out) = all;
        return;
    }
    int warp = static_cast<int>(threadIdx.x / 32 % 4);
    gemm_store_float<N>(v, a, row0 + group * 64 + warp * 16, token0);
}

/* A block's sums to its shared memory, in place n; a float4 of every thread one behind the other.
 */
template <class S>
static __device__ __forceinline__ void gemm_leave(const float (&acc)[S::NT / 8][4], float4 *mine,
                                                  int n)
{
    constexpr int threads = 128 * S::CW;
#pragma unroll
    for (int i = 0; i < S::NT / 8; i++)
        mine[(n * S::NT / 8 + i) * threads] =
            make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
}

template <int N>
static __device__ __forceinline__ void gemm_add(float (&sum)[N][4], const float4 *from, int step,
                                                bool first)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        float4 q = from[i * step];
        sum[i][0] = first ? q.x : __fadd_rn(sum[i][0], q.x);
        sum[i][1] = first ? q.y : __fadd_rn(sum[i][1], q.y);
        sum[i][2] = first ? q.z : __fadd_rn(sum[i][2], q.z);
        sum[i][3] = first ? q.w : __fadd_rn(sum[i][3], q.w);
    }
}

/* Adds up this block's share of the tokens: the sums of all segments, in order, from where the
 * blocks of the cluster left them. Of a pair the first block has added its two already. */
template <class S>
static __device__ __forceinline__ void gemm_join(const gemm_args &a, const float4 *mine, int group,
                                                 const gemm_unit &u, uint32_t rank)
{
    constexpr int threads = 128 * S::CW, share = S::NT / 8 / S::CL;
    static_assert(!S::split || S::NT / 8 % S::CL == 0, "shares of the tokens");
    const float4 *part = mine + static_cast<int>(rank) * share * threads;
    float sum[share][4];
    sl_cluster_sync();
#pragma unroll 1
    for (int s = 0; s < S::CL; s++) {
        const float4 *from = sl_cluster_map(part, static_cast<uint32_t>(s));
        gemm_add<share>(sum, from, threads, s == 0);
        if (S::MODE == SPLIT2 && s == 1)
            gemm_add<share>(sum, from + S::NT / 8 * threads, threads, false);
    }
    gemm_store<S, share>(sum, a, group, u.row0, u.token0 + static_cast<int>(rank) * share * 8);
}

/* The life of a consumer of a block that has segments of one tile. */
template <class S>
static __device__ __forceinline__ void gemm_consume_split(const gemm_args &a, gemm_view &v,
                                                          uint32_t rank, int id)
{
    gemm_unit u = gemm_find<S>(a, id, rank);
    float4 *mine = reinterpret_cast<float4 *>(v.smem + GEMM_HEADER) + threadIdx.x - 128;
    if constexpr (S::MODE == SPLIT) {
        float sum[S::NT / 8][4];
        gemm_walk<S>(sum, v, u.to - u.from);
        sl_bar_sync(1, 128 * S::CW); /* nobody's products read the ring */
        gemm_leave<S>(sum, mine, 0);
    } else {
        float first[S::NT / 8][4], second[S::NT / 8][4];
        gemm_walk<S>(first, v, min(a.seg_k64, u.to - u.from));
        gemm_walk<S>(second, v, u.to - u.from - a.seg_k64);
        sl_bar_sync(1, 128 * S::CW);
        if (rank == 0) {
#pragma unroll
            for (int i = 0; i < S::NT / 2; i++)
                first[i / 4][i % 4] = __fadd_rn(first[i / 4][i % 4], second[i / 4][i % 4]);
        } else {
            gemm_leave<S>(second, mine, 1);
        }
        gemm_leave<S>(first, mine, 0);
    }
    gemm_join<S>(a, mine, v.group, u, rank);
}

template <class S>
static __device__ __forceinline__ void gemm_consume(const gemm_args &a, const CUtensorMap *omap,
                                                    uint8_t *smem, uint32_t rank, int first,
                                                    int step)
{
    /* The same in all lanes, as the compiler shall see. */
    int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) - 1;
    gemm_view v = {smem, a.fault, {0, 0}, 0, group};
    if constexpr (S::split) {
        gemm_consume_split<S>(a, v, rank, first);
    } else {
        for (int id = first; id < a.n_units; id += step) {
            gemm_unit u = gemm_find<S>(a, id, rank);
            float sum[S::NT / 8][4];
            gemm_sums<S>(sum, a, v, u);
            if constexpr (S::STORE == STORE_BOXES)
                gemm_store_boxes<S, S::NT / 8>(sum, omap, smem, group, u.row0, u.token0);
            else
                gemm_store<S, S::NT / 8>(sum, a, group, u.row0, u.token0);
        }
        if (S::STORE == STORE_BOXES && threadIdx.x % 128 == 0)
            sl_tensor_store_wait_all();
    }
}

template <class S>
static __device__ __forceinline__ void gemm_init(const gemm_args &a, uint8_t *smem)
{
    int i = static_cast<int>(threadIdx.x);
    if (i < S::stages) {
        sl_mbar_init(gemm_full(smem, i), 1);
        sl_mbar_init(gemm_empty(smem, i), 4 * S::CW * (S::shared ? S::CL : 1));
    }
    sl_mbar_fence_init();
    if (!S::LOADS) { /* random numbers to multiply */
        const uint32_t *from = static_cast<const uint32_t *>(a.x);
        for (; i < S::stages * S::stage / 4; i += S::threads)
            reinterpret_cast<uint32_t *>(smem + GEMM_HEADER)[i] = from[i];
        sl_fence_proxy_async();
    }
    __syncthreads();
    if (S::shared)
        sl_cluster_sync();
}

static __device__ __forceinline__ uint64_t gemm_clock()
{
#ifdef SL_CUDA_SIM
    return 0;
#else
    return static_cast<uint64_t>(clock64());
#endif
}

static __device__ __forceinline__ uint64_t gemm_ns()
{
    uint64_t ns = 0;
#ifndef SL_CUDA_SIM
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
#endif
    return ns;
}

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    gemm_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ CUtensorMap wmap,
                const __grid_constant__ CUtensorMap xmap, const __grid_constant__ CUtensorMap omap)
{
    uint64_t clocks = gemm_clock(), ns = gemm_ns();
    SL_SMEM(uint8_t, smem);
    uint32_t rank = S::CL > 1 ? sl_cluster_rank() : 0;
    int first = static_cast<int>(blockIdx.x) / S::CL, step = static_cast<int>(gridDim.x) / S::CL;
    gemm_init<S>(a, smem);
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) == 0) {
        if (S::give > 0)
            sl_regs_give<S::give>();
        if (threadIdx.x == 0 && S::LOADS)
            gemm_bring<S>(a, &wmap, &xmap, smem, rank, first, step);
        __syncwarp();
        if (S::split)
            sl_cluster_sync();
    } else {
        if (S::give > 0)
            sl_regs_take<S::take>();
        gemm_consume<S>(a, &omap, smem, rank, first, step);
    }
    if (S::CL > 1)
        sl_cluster_sync(); /* others may still reach for what is here */
    if (blockIdx.x == 0 && threadIdx.x == 128) {
        a.clocks[0] = gemm_clock() - clocks;
        a.clocks[1] = gemm_ns() - ns;
    }
}

/* ------------------------------------------------------------------ host */

struct gemm_product {
    const void *w; /* packed for the operand */
    const void *x;
    void *out;
    int n_rows, n_cols, n_tokens, n_segs, raster;
};

/* Clusters that run at once. */
template <class S> static int gemm_resident()
{
    static int n;
    if (n > 0)
        return n;
    n = lab_cu.n_sms / S::CL;
#ifndef SL_CUDA_SIM
    if (S::CL > 1) {
        cudaLaunchConfig_t cfg = {};
        cudaLaunchAttribute attr = {};
        int most = 0;
        attr.id = cudaLaunchAttributeClusterDimension;
        attr.val.clusterDim.x = S::CL, attr.val.clusterDim.y = attr.val.clusterDim.z = 1;
        cfg.gridDim = dim3(static_cast<unsigned>(n * S::CL));
        cfg.blockDim = dim3(S::threads);
        cfg.dynamicSmemBytes = S::smem;
        cfg.attrs = &attr;
        cfg.numAttrs = 1;
        MUST(cudaFuncSetAttribute(gemm_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  S::smem));
        MUST(cudaOccupancyMaxActiveClusters(&most, gemm_kernel<S>, &cfg));
        printf("%d clusters of %d run at once\n", most, S::CL);
        n = std::min(n, most);
    }
#endif
    return n;
}

template <class S> static void gemm_launch(const gemm_product &p)
{
    gemm_args a = {};
    a.out = p.out;
    a.ld_out = p.n_rows;
    a.x = p.x;
    a.fault = lab_fault;
    a.clocks = reinterpret_cast<uint64_t *>(lab_fault + 4);
    a.n_rows = p.n_rows;
    a.n_tokens = p.n_tokens;
    a.n_k64 = p.n_cols / 64;
    a.seg_k64 = SL_ROUND_UP(SL_CEIL_DIV(a.n_k64, p.n_segs), 4);
    a.n_segs = (a.n_k64 + a.seg_k64 - 1) / a.seg_k64;
    int rows = S::rows * (S::MODE == SHARE_X ? S::CL : 1);
    int tokens = S::NT * (S::MODE == SHARE_W ? S::CL : 1);
    a.tiles_r = (p.n_rows + rows - 1) / rows;
    a.tiles_t = (p.n_tokens + tokens - 1) / tokens;
    a.n_units = a.tiles_r * a.tiles_t;
    a.raster = std::max(1, std::min(p.raster, a.tiles_t));
    CHECK(!S::split || a.n_segs == (S::MODE == SPLIT ? 1 : 2) * S::CL, "%d segments", a.n_segs);
    CHECK(S::split || S::TOTALS || a.n_segs == 1, "%d segments", a.n_segs);
    CUtensorMap wmap = {}, xmap = {};
    MUST(
        sl_tensor_map_units(&wmap, p.w, (p.n_rows + 15) / 16, a.n_k64, 2048, S::blocks / S::per_w));
    MUST(sl_tensor_map(&xmap, p.x, p.n_tokens, p.n_cols, p.n_cols, S::NT / S::per_x));
    CUtensorMap omap = {};
    MUST(sl_tensor_map_float(&omap, p.out, p.n_tokens, p.n_rows, p.n_rows, 64));
    int resident = gemm_resident<S>();
    int most = S::split ? a.n_units * S::CL : resident * S::CL;
    unsigned grid = static_cast<unsigned>(std::min(a.n_units * S::CL, most));
    sl_launch_cluster(&lab_cu, gemm_kernel<S>, dim3(grid), dim3(S::threads), S::smem, S::CL, a,
                      wmap, xmap, omap);
}

#endif
