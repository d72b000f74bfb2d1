/* SPDX-License-Identifier: MIT
 * linear_wg.cuh - GEMMs of nine tokens and more: tiles of rows x tokens by wgmma.
 *
 * One block an SM, which takes one unit of work after another: a tile of rows and
 * tokens, or one segment of its columns. CW consumer warpgroups, each with MI runs of 64 rows and
 * all NT tokens of the tile, and a warpgroup that loads: warp 0 the weights (boxes of a unit of
 * four row blocks), warp 1 the activations (boxes of 64 columns). Weights are the A operand and
 * come through registers: as packed, the 16 bytes of a lane are its fragment, coded ones are
 * decoded on the way, the next 64 columns while the products of these run. Activations lie in
 * shared memory as [token][64 columns], 16-byte pieces at piece ^ (token % 8), and are the B
 * operand there.
 *
 * In a gated product run 0 of a warpgroup is gate's and run 1 the same rows of up, so that a thread
 * has both sums of an output. Wide tiles (256 tokens) have one run. Where a layout lets it, a
 * warp's 16 rows are then eight of gate and the same eight of up (pairs), the upper ones of a row
 * block in the first warpgroup, the lower ones in the second; a thread has both sums again, and the
 * groups run on their own, one storing while the other multiplies. Otherwise the first warpgroup
 * has gate, the second up, and they exchange sums through shared memory.
 *
 * Why wide: wgmma reads the tokens' 16 columns once for 64 rows, however many tokens. For 16
 * columns of 128 rows x 256 tokens shared memory moves 32 KB in 256 clocks (weights 4, tokens twice
 * 8, and 12 written by copies), of 256 x 128 36 KB: more than its 128 bytes a clock.
 *
 * Up to 64 tokens decoding is the work, not the products: matrices of codes with one segment have
 * tiles of 256 rows, of four warpgroups with a run each or, gated, of two with a run of gate and
 * one of up (H200, 16 tokens: 128256 x 4096 Q4_K 123 us for 160, gate and up of 28672 x 4096 in
 * four-bit groups 30 for 38). With several segments those tiles pay where they are one round of all
 * SMs and smaller ones two.
 *
 * Segments (linear.h): with enough tiles for all SMs a block walks through all segments
 * of its tile and adds their sums in registers (TOTALS). Else every segment is a unit of its own
 * (split): its sums go to memory, and the block that stores a tile's last ones adds them in order,
 * unless the next kernel does (fuse.h).
 *
 * H200, Llama-3.1-8B shapes: bench/results/cuda-h200.txt. In lab/gemm_bf16.cu, where the versions
 * compete, wide tiles with weights through registers reach 636 to 808 TFLOP/s from 2048 tokens on
 * (cuBLASLt in the same run: 653 to 779), at 1.35 to 1.6 GHz: the chip's power ends there. Not done
 * here: pairs of blocks that share tokens (794 for 755 at 8192^3), stores by the copy engine beside
 * the next tile (0 to 10 %).
 */
#ifndef SL_CUDA_LINEAR_WG_CUH
#define SL_CUDA_LINEAR_WG_CUH

#include "cuda/gemm/linear_store.cuh"
#include "cuda/gemm/weight_format.cuh"
#include "cuda/launch.cuh"

#define SL_WG_SMEM     (232448 - SL_WG_HEADER) /* of both rings and the swap */
#define SL_WG_HEADER   1024                    /* barriers */
#define SL_WG_SWAP     32768 /* sums on their way between the groups of a wide tile */
#define SL_WG_RASTER   8     /* columns of tokens of a raster group */
#define SL_WG_X_WARPS  3     /* that load activations without the copy engine */
#define SL_WG_MAX_RING 12
/* What it costs that a segment's sums go through memory: 8 to 10 us, when a step takes 0.42 (H200,
 * 128 x 128). */
#define SL_WG_JOIN_STEPS 20

template <class F, int MI, int NT, int CW, bool PAIRS> struct sl_wg_shape {
    static constexpr int threads = 128 * (CW + 1);
    static constexpr int blocks = 4 * MI * CW;  /* row blocks of a tile */
    static constexpr int subs = F::unit_k / 64; /* steps of a unit */
    static constexpr int w_slot = blocks * F::unit_bytes, x_slot = NT * 128;
    static constexpr bool pairs = PAIRS; /* of gate and up in the rows of a warp */
    /* Several segments: the largest tiles have one. */
    static constexpr bool joins = MI * CW < 4 ? NT < 256 : MI == 1 && NT <= 64;
    static constexpr int swap = NT == 256 && !PAIRS ? SL_WG_SWAP : 0, room = SL_WG_SMEM - swap;
    static constexpr int fit = room / (w_slot + subs * x_slot);
    static constexpr int w_slots = fit < 2 ? 2 : fit > SL_WG_MAX_RING ? SL_WG_MAX_RING : fit;
    static constexpr int x_fit = (room - w_slots * w_slot) / x_slot;
    static constexpr int x_slots = x_fit > SL_WG_MAX_RING ? SL_WG_MAX_RING : x_fit;
    static constexpr int x_offset = SL_WG_HEADER, w_offset = x_offset + x_slots * x_slot;
    static constexpr int swap_offset = w_offset + w_slots * w_slot, smem = swap_offset + swap;
    static_assert(4 * F::unit_bytes % 128 == 0 && x_slots > 2 && smem <= 232448 &&
                      w_slot % 128 == 0,
                  "shared memory");
};

struct sl_wg_plan {
    int32_t n_units, n_tiles; /* tiles of rows */
    int32_t n_cols;           /* of tokens */
    int32_t split;            /* units of a tile: 1, or its segments, */
    bool left;                /* whose sums are left to the next kernel */
};

struct sl_wg_unit {
    const sl_lin_part *part; /* gated: of gate */
    int32_t block0, token0;
    int32_t from, to; /* steps of 64 columns */
    int32_t tile, seg;
};

/* Barriers of the two rings, in the header. */
struct sl_wg_bars {
    uint64_t *full_w, *empty_w, *full_x, *empty_x;
};

static __device__ __forceinline__ sl_wg_bars sl_wg_bars_of(uint8_t *smem)
{
    uint64_t *b = reinterpret_cast<uint64_t *>(smem);
    return {b, b + SL_WG_MAX_RING, b + 2 * SL_WG_MAX_RING, b + 3 * SL_WG_MAX_RING};
}

/* Place in a ring of N slots; parity of the phase that ends when the slot is full. */
template <int N> struct sl_wg_place {
    int32_t slot;
    uint32_t parity;
    __device__ __forceinline__ void next()
    {
        if (++slot == N) {
            slot = 0;
            parity ^= 1;
        }
    }
};

/* Row blocks of a unit and part: blocks of a tile, gated half as many of each. */
static __device__ __forceinline__ sl_wg_unit sl_wg_find(const sl_lin &l, const sl_wg_plan &p,
                                                        int id, int blocks, int tokens)
{
    sl_wg_unit u;
    u.seg = id % p.split;
    u.tile = id / p.split;
    int per_group = SL_WG_RASTER * p.n_tiles;
    int group = u.tile / per_group, in = u.tile % per_group;
    int width = min(SL_WG_RASTER, p.n_cols - group * SL_WG_RASTER);
    int row = in / width, i = 0;
    while (!l.gated && i + 1 < l.n_parts && row >= l.part[i + 1].first)
        i++;
    u.part = &l.part[i];
    u.block0 = (row - l.part[i].first) * (l.gated ? blocks / 2 : blocks);
    u.token0 = (group * SL_WG_RASTER + in % width) * tokens;
    u.from = p.split > 1 ? u.seg * l.seg_k64 : 0;
    u.to = p.split > 1 ? min(u.from + l.seg_k64, l.n_k64) : l.n_k64;
    return u;
}

/* Row block i of a tile, in the order of warpgroups, runs and warps: its part and number; false
 * after the end. */
template <int MI>
static __device__ __forceinline__ bool sl_wg_block(const sl_lin &l, const sl_wg_unit &u, int i,
                                                   const sl_lin_part **part, int32_t *block)
{
    int run = i / 4 % MI, group = i / (4 * MI);
    if (!l.gated) {
        *part = u.part;
        *block = u.block0 + i;
    } else { /* with one run the second group has up */
        *part = &l.part[MI > 1 ? run : group];
        *block = u.block0 + (MI > 1 ? group * 4 : 0) + i % 4;
    }
    return *block < (*part)->n_blocks;
}

/* Descriptions for the copy engine. */
struct sl_wg_maps {
    CUtensorMap x, w[SL_MAX_LINEAR_PARTS];
};

/* Warp 0, one lane: boxes of four row blocks, those of a warpgroup's run. As copies of single units
 * they took longer to issue than to multiply (H200: a quarter of the speed of 128 x 128). Weights
 * need not wait for the previous kernels. */
template <class S, class F, int MI, int NT>
static __device__ __forceinline__ void sl_wg_bring_w(const sl_lin &l, const sl_wg_plan &p,
                                                     const sl_wg_maps &maps, uint8_t *smem)
{
    sl_wg_bars bars = sl_wg_bars_of(smem);
    sl_wg_place<S::w_slots> at = {0, 1};
    for (int id = static_cast<int>(blockIdx.x); id < p.n_units; id += static_cast<int>(gridDim.x)) {
        sl_wg_unit u = sl_wg_find(l, p, id, S::blocks, NT);
        const sl_lin_part *part[S::blocks / 4];
        int32_t block[S::blocks / 4];
#pragma unroll
        for (int i = 0; i < S::blocks / 4; i++)
            sl_wg_block<MI>(l, u, 4 * i, &part[i], &block[i]);
        for (int k = u.from; k < u.to; k += S::subs) {
            sl_mbar_wait(&bars.empty_w[at.slot], at.parity);
            sl_mbar_expect_tx(&bars.full_w[at.slot], S::w_slot);
            uint8_t *to = smem + S::w_offset + at.slot * S::w_slot;
#pragma unroll
            for (int i = 0; i < S::blocks / 4; i++)
                sl_blocks_load(to + i * 4 * F::unit_bytes, &maps.w[part[i] - l.part], k / S::subs,
                               block[i], &bars.full_w[at.slot]);
            at.next();
        }
    }
}

/* Warp 1, one lane: the copy engine loads a stage in one box. */
template <class S, int NT>
static __device__ __forceinline__ void sl_wg_bring_boxes(const sl_lin &l, const sl_wg_plan &p,
                                                         const CUtensorMap *map, uint8_t *smem)
{
    sl_wg_bars bars = sl_wg_bars_of(smem);
    sl_wg_place<S::x_slots> at = {0, 1};
    for (int id = static_cast<int>(blockIdx.x); id < p.n_units; id += static_cast<int>(gridDim.x)) {
        sl_wg_unit u = sl_wg_find(l, p, id, S::blocks, NT);
        for (int k = u.from; k < u.to; k++) {
            sl_mbar_wait(&bars.empty_x[at.slot], at.parity);
            sl_mbar_expect_tx(&bars.full_x[at.slot], S::x_slot);
            sl_tensor_load(smem + S::x_offset + at.slot * S::x_slot, map, k * 64, u.token0,
                           &bars.full_x[at.slot]);
            at.next();
        }
    }
}

/* Tokens whose rows do not begin at multiples of 16 bytes, which no real model has, come by
 * ordinary loads. 64 columns of the tile's tokens; zeros after the last token and the last column.
 * thread: of those that load. */
template <int NT>
static __device__ __forceinline__ void sl_wg_fetch_odd(const sl_lin &l, int token0, uint8_t *slot,
                                                       int step, int thread)
{
    constexpr int stride = 32 * SL_WG_X_WARPS / 8; /* rows; a thread keeps its piece */
    int piece = thread & 7, col = step * 64 + piece * 8;
#pragma unroll 1
    for (int row = thread >> 3; row < NT; row += stride) {
        int token = token0 + row;
        __nv_bfloat16 *to =
            reinterpret_cast<__nv_bfloat16 *>(slot + row * 128 + ((piece ^ (row & 7)) << 4));
        for (int e = 0; e < 8; e++)
            to[e] = token < l.n && col + e < l.k ? l.x[token * l.ld_x + col + e]
                                                 : __float2bfloat16_rn(0.0f);
    }
}

/* Warps 1 to 3. */
template <class S, int NT>
static __device__ __forceinline__ void sl_wg_bring_odd(const sl_lin &l, const sl_wg_plan &p,
                                                       uint8_t *smem)
{
    sl_wg_bars bars = sl_wg_bars_of(smem);
    sl_wg_place<S::x_slots> at = {0, 1};
    int thread = static_cast<int>(threadIdx.x) - 32;
    for (int id = static_cast<int>(blockIdx.x); id < p.n_units; id += static_cast<int>(gridDim.x)) {
        sl_wg_unit u = sl_wg_find(l, p, id, S::blocks, NT);
        for (int k = u.from; k < u.to; k++) {
            sl_mbar_wait(&bars.empty_x[at.slot], at.parity);
            sl_wg_fetch_odd<NT>(l, u.token0, smem + S::x_offset + at.slot * S::x_slot, k, thread);
            sl_fence_proxy_async(); /* what was stored, wgmma may read */
            sl_mbar_arrive(&bars.full_x[at.slot]);
            at.next();
        }
    }
}

/* ------------------------------------------------------------------ consumers */

/* A consumer warp's view of the rings. */
template <class S> struct sl_wg_view {
    uint8_t *smem;
    sl_wg_place<S::w_slots> w;
    sl_wg_place<S::x_slots> x;
    int32_t w_free;           /* the oldest slot of weights that was not given back */
    int32_t x_free, n_behind; /* the oldest stage whose products run, and how many do */
    int32_t block;            /* the warp's row block of run 0 in a tile */
    uint32_t w_at; /* where that lies in a slot of weights; of pairs its half of gate's */
};

template <int MI> struct sl_wg_frag {
    uint32_t a[MI][4][4]; /* run, k16 */
};

/* The fragments of step k. */
template <class S, class F, int MI>
static __device__ __forceinline__ void sl_wg_load_a(sl_wg_frag<MI> &f, sl_wg_view<S> &v, int k)
{
    sl_wg_bars bars = sl_wg_bars_of(v.smem);
    int sub = k % S::subs, lane = static_cast<int>(threadIdx.x % 32);
    if (sub == 0)
        sl_mbar_wait(&bars.full_w[v.w.slot], v.w.parity);
    const uint8_t *unit = v.smem + S::w_offset + v.w.slot * S::w_slot + v.w_at;
#pragma unroll
    for (int m = 0; m < MI; m++) {
        typename F::raw raw;
        if constexpr (S::pairs) {
            F::load_half(raw, 0, unit, lane);
            F::load_half(raw, 1, unit + 4 * F::unit_bytes, lane);
        } else {
            sl_wf_load<F>(raw, unit + m * 4 * F::unit_bytes, sub, lane);
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            F::frag(raw, j, f.a[m][j]);
    }
    if (sub == S::subs - 1)
        v.w.next();
}

/* Gives back the oldest slot of weights. After the products that took its last fragments, the
 * fence has little to wait for. */
template <class S> static __device__ __forceinline__ void sl_wg_free_w(sl_wg_view<S> &v)
{
    sl_mbar_give_warp(&sl_wg_bars_of(v.smem).empty_w[v.w_free]);
    v.w_free = v.w_free + 1 == S::w_slots ? 0 : v.w_free + 1;
}

/* Gives back the oldest stage of activations whose products have ended. */
template <class S> static __device__ __forceinline__ void sl_wg_free_x(sl_wg_view<S> &v)
{
    sl_mbar_arrive_warp(&sl_wg_bars_of(v.smem).empty_x[v.x_free]);
    v.x_free = v.x_free + 1 == S::x_slots ? 0 : v.x_free + 1;
    v.n_behind--;
}

/* Starts the products of step k. */
template <class S, int MI, int NT>
static __device__ __forceinline__ void sl_wg_issue(float (&acc)[MI][NT / 8][4],
                                                   const sl_wg_frag<MI> &f, sl_wg_view<S> &v, int k)
{
    sl_mbar_wait(&sl_wg_bars_of(v.smem).full_x[v.x.slot], v.x.parity);
    auto b = sl_wgmma_b(v.smem + S::x_offset + v.x.slot * S::x_slot);
    sl_wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int m = 0; m < MI; m++)
            sl_wgmma_rs(acc[m], f.a[m][j], b + j * SL_WGMMA_B_K16);
    sl_wgmma_commit();
    v.x.next();
    v.n_behind++;
    if (k % S::subs == S::subs - 1)
        sl_wg_free_w(v);
}

/* n steps from step k on. Between two products nothing branches on them: while those of a step run,
 * the fragments of the next one are read into the registers of the one before. */
template <class S, class F, int MI, int NT>
static __device__ __forceinline__ void sl_wg_walk(float (&acc)[MI][NT / 8][4], sl_wg_view<S> &v,
                                                  int k, int n)
{
    sl_wg_frag<MI> even, odd;
    sl_wg_load_a<S, F, MI>(even, v, k);
    for (; n >= 2; n -= 2, k += 2) {
        sl_wg_issue<S, MI, NT>(acc, even, v, k);
        sl_wgmma_wait<1>();
        if (v.n_behind == 2)
            sl_wg_free_x(v);
        sl_wg_load_a<S, F, MI>(odd, v, k + 1);
        sl_wg_issue<S, MI, NT>(acc, odd, v, k + 1);
        sl_wgmma_wait<1>();
        sl_wg_free_x(v);
        if (n > 2)
            sl_wg_load_a<S, F, MI>(even, v, k + 2);
    }
    if (n > 0)
        sl_wg_issue<S, MI, NT>(acc, even, v, k);
    sl_wgmma_wait<0>();
    while (v.n_behind > 0)
        sl_wg_free_x(v);
}

template <int MI, int NT>
static __device__ __forceinline__ void sl_wg_clear(float (&acc)[MI][NT / 8][4])
{
#pragma unroll
    for (int i = 0; i < MI * NT / 2; i++)
        acc[i / (NT / 2)][i / 4 % (NT / 8)][i % 4] = 0.0f;
}

/* to += from */
template <int MI, int NT>
static __device__ __forceinline__ void sl_wg_add(float (&to)[MI][NT / 8][4],
                                                 const float (&from)[MI][NT / 8][4])
{
#pragma unroll
    for (int m = 0; m < MI; m++)
#pragma unroll
        for (int i = 0; i < NT / 2; i++)
            to[m][i / 4][i % 4] = __fadd_rn(to[m][i / 4][i % 4], from[m][i / 4][i % 4]);
}

/* The sums of a unit: of one segment, or of all, added in order. */
template <class S, class F, int MI, int NT, bool TOTALS>
static __device__ __forceinline__ void sl_wg_sums(float (&sum)[MI][NT / 8][4], const sl_lin &l,
                                                  sl_wg_view<S> &v, const sl_wg_unit &u)
{
    sl_wg_clear<MI, NT>(sum);
    if (!TOTALS) {
        sl_wg_walk<S, F, MI, NT>(sum, v, u.from, u.to - u.from);
        return;
    }
    sl_wg_walk<S, F, MI, NT>(sum, v, u.from, min(l.seg_k64, u.to - u.from));
    for (int k = u.from + l.seg_k64; k < u.to; k += l.seg_k64) {
        float acc[MI][NT / 8][4];
        sl_wg_clear<MI, NT>(acc);
        sl_wg_walk<S, F, MI, NT>(acc, v, k, min(l.seg_k64, u.to - k));
        sl_wg_add<MI, NT>(sum, acc);
    }
}

/* Leaves the sums of a segment in memory. In the block that does so last: true, and sum is that of
 * all segments. */
template <int MI, int NT, int CW>
static __device__ __forceinline__ bool sl_wg_join(float (&sum)[MI][NT / 8][4], const sl_lin &l,
                                                  const sl_wg_plan &p, const sl_wg_unit &u,
                                                  uint32_t *last)
{
    constexpr int threads = 128 * CW, n = MI * NT / 8; /* 16-byte pieces of a thread */
    int thread = static_cast<int>(threadIdx.x) - 128;
    float4 *tile = reinterpret_cast<float4 *>(l.partial) +
                   static_cast<int64_t>(u.tile) * p.split * n * threads + thread;
    float4 *mine = tile + u.seg * n * threads;
#pragma unroll
    for (int i = 0; i < n; i++) {
        const float *s = sum[i / (NT / 8)][i % (NT / 8)];
        mine[i * threads] = make_float4(s[0], s[1], s[2], s[3]);
    }
    __threadfence();
    sl_bar_sync(1, threads);
    if (thread == 0)
        *last = atomicAdd(&l.arrived[u.tile], 1u) + 1 == static_cast<uint32_t>(p.split);
    sl_bar_sync(1, threads);
    if (*last == 0)
        return false;
    __threadfence();
    for (int s = 0; s < p.split; s++) {
#pragma unroll
        for (int i = 0; i < n; i++) {
            float4 v = tile[(s * n + i) * threads];
            float *to = sum[i / (NT / 8)][i % (NT / 8)];
            to[0] = s == 0 ? v.x : __fadd_rn(to[0], v.x);
            to[1] = s == 0 ? v.y : __fadd_rn(to[1], v.y);
            to[2] = s == 0 ? v.z : __fadd_rn(to[2], v.z);
            to[3] = s == 0 ? v.w : __fadd_rn(to[3], v.w);
        }
    }
    if (thread == 0)
        l.arrived[u.tile] = 0; /* for the next launch */
    return true;
}

/* A wide gated tile: group 0 has the sums of gate, group 1 those of up, of the same rows. Each
 * gives half of its tokens away and finishes the other half, 64 tokens at a time: those from its
 * r-th eight on. */
template <int G>
static __device__ __forceinline__ void sl_wg_give_sums(const float (&sum)[32][4], int r,
                                                       float4 *swap)
{
    constexpr int theirs = 16 - 16 * G;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float *s = sum[theirs + r + i];
        swap[(8 * G + i) * 128] = make_float4(s[0], s[1], s[2], s[3]);
    }
}

template <int G>
static __device__ __forceinline__ void sl_wg_take_sums(const float (&sum)[32][4], int r,
                                                       const float4 *swap, enum sl_act act,
                                                       float (&out)[8][4])
{
    constexpr int mine = 16 * G;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float4 q = swap[(8 - 8 * G + i) * 128];
        const float other[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float own = sum[mine + r + i][e];
            out[i][e] = __fmul_rn(sl_act(act, G == 0 ? own : other[e]), G == 0 ? other[e] : own);
        }
    }
}

/* Both groups meet at the same places of the program, as synccheck wants. */
static __device__ __forceinline__ void sl_wg_store_wide(const float (&sum)[32][4], const sl_lin &l,
                                                        const sl_wg_unit &u, float4 *swap,
                                                        int group, int block)
{
    swap += threadIdx.x % 128;
#pragma unroll
    for (int r = 0; r < 16; r += 8) {
        float out[8][4];
        if (group == 0)
            sl_wg_give_sums<0>(sum, r, swap);
        else
            sl_wg_give_sums<1>(sum, r, swap);
        sl_bar_sync(1, 256);
        if (group == 0)
            sl_wg_take_sums<0>(sum, r, swap, l.act, out);
        else
            sl_wg_take_sums<1>(sum, r, swap, l.act, out);
        sl_bar_sync(1, 256); /* swap is free */
        if (block < l.part[0].n_blocks)
            sl_lin_store_gated<8>(out, l, block, u.token0 + 8 * (16 * group + r));
    }
}

/* Sums of a segment, for who adds them up. */
template <int MI, int NT>
static __device__ __forceinline__ void sl_wg_leave(const float (&sum)[MI][NT / 8][4],
                                                   const sl_lin &l, const sl_wg_unit &u, int first)
{
    const int64_t n_rows = l.part[0].n_rows;
#pragma unroll
    for (int m = 0; m < MI; m++)
        if (u.block0 + first + 4 * m < l.part[0].n_blocks)
            sl_lin_store<float, NT / 8>(sum[m], l.partial + u.seg * l.n * n_rows, n_rows, nullptr,
                                        l.part[0].n_rows, u.block0 + first + 4 * m, u.token0, l.n);
}

template <int MI, int NT>
static __device__ __forceinline__ void sl_wg_store(float (&sum)[MI][NT / 8][4], const sl_lin &l,
                                                   const sl_wg_unit &u, int first)
{
#pragma unroll
    for (int m = 0; m < MI; m++) {
        const sl_lin_part *part;
        int32_t block;
        if (!sl_wg_block<MI>(l, u, first + 4 * m, &part, &block))
            continue;
        if (!l.gated) {
            sl_lin_store_part<NT / 8>(sum[m], l, *part, block, u.token0);
        } else if (MI > 1 && m == 0) {
#pragma unroll
            for (int i = 0; i < NT / 2; i++)
                sum[0][i / 4][i % 4] =
                    __fmul_rn(sl_act(l.act, sum[0][i / 4][i % 4]), sum[MI - 1][i / 4][i % 4]);
            sl_lin_store_gated<NT / 8>(sum[0], l, block, u.token0);
        }
    }
}

/* A tile of pairs: a thread has gate's sums of a row, two for each eight tokens, and up's. */
template <int NT>
static __device__ __forceinline__ void sl_wg_store_pairs(const float (&sum)[NT / 8][4],
                                                         const sl_lin &l, int row, int token0)
{
    int lane = static_cast<int>(threadIdx.x % 32), t0 = token0 + 2 * (lane & 3);
    row += lane >> 2;
    if (row >= l.part[0].n_rows)
        return;
    int64_t ld = l.part[0].n_rows;
    __nv_bfloat16 *at = l.gated_out + t0 * ld + row;
    constexpr int together = 8; /* outputs worked on side by side */
#pragma unroll
    for (int i = 0; i < NT / 8; i += together / 2) {
        float out[together];
#pragma unroll
        for (int k = 0; k < together; k++) {
            const float *s = sum[i + k / 2];
            out[k] = __fmul_rn(sl_act(l.act, s[k % 2]), s[2 + k % 2]);
        }
#pragma unroll
        for (int k = 0; k < together; k++) {
            if (t0 + 8 * (i + k / 2) + k % 2 < l.n)
                sl_lin_put(at + k % 2 * ld, out[k]);
            at += k % 2 == 1 ? 8 * ld : 0;
        }
    }
}

template <class S, class F, int MI, int NT, int CW, bool TOTALS>
static __device__ __forceinline__ void sl_wg_consume(const sl_lin &l, const sl_wg_plan &p,
                                                     uint8_t *smem)
{
    int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) - 1;
    sl_wg_view<S> v = {};
    v.smem = smem;
    int warp = static_cast<int>(threadIdx.x / 32 % 4);
    v.block = S::pairs ? warp : group * 4 * MI + warp;
    v.w_at = static_cast<uint32_t>(v.block * F::unit_bytes);
    if constexpr (S::pairs)
        v.w_at += static_cast<uint32_t>(group * F::half_bytes);
    uint32_t *last = reinterpret_cast<uint32_t *>(smem + 4 * SL_WG_MAX_RING * 8);
    for (int id = static_cast<int>(blockIdx.x); id < p.n_units; id += static_cast<int>(gridDim.x)) {
        sl_wg_unit u = sl_wg_find(l, p, id, S::blocks, NT);
        float sum[MI][NT / 8][4];
        sl_wg_sums<S, F, MI, NT, TOTALS>(sum, l, v, u);
#pragma unroll
        for (int m = 0; m < MI; m++)
            sl_wf_restore<F>(sum[m]);
        if constexpr (S::joins) {
            if (p.left) {
                sl_wg_leave<MI, NT>(sum, l, u, v.block);
                continue;
            }
            if (p.split > 1 && !sl_wg_join<MI, NT, CW>(sum, l, p, u, last))
                continue;
        }
        if constexpr (S::pairs) {
            sl_wg_store_pairs<NT>(sum[0], l, (u.block0 + v.block) * SL_CUDA_ROW_BLOCK + 8 * group,
                                  u.token0);
            continue;
        } else if constexpr (NT == 256) {
            float4 *swap = reinterpret_cast<float4 *>(smem + S::swap_offset);
            int block = u.block0 + v.block % 4;
            if (l.gated) {
                sl_wg_store_wide(sum[0], l, u, swap, group, block);
                continue;
            }
        }
        sl_wg_store<MI, NT>(sum, l, u, v.block);
    }
}

template <class S>
static __device__ __forceinline__ void sl_wg_init(uint8_t *smem, int n_consumers, int n_x)
{
    sl_wg_bars bars = sl_wg_bars_of(smem);
    uint32_t warps = static_cast<uint32_t>(n_consumers) * SL_WARP_ARRIVALS;
    sl_mbar_init_all(bars.full_w, S::w_slots, 1);
    sl_mbar_init_all(bars.empty_w, S::w_slots, warps);
    sl_mbar_init_all(bars.full_x, S::x_slots, static_cast<uint32_t>(n_x));
    sl_mbar_init_all(bars.empty_x, S::x_slots, warps);
    sl_mbar_fence_init();
    __syncthreads();
}

template <class F, int MI, int NT, int CW, bool TOTALS, bool PAIRS>
__global__ void __launch_bounds__(128 * (CW + 1), 1)
    sl_wg_kernel(const __grid_constant__ sl_lin l, const __grid_constant__ sl_wg_plan p,
                 const __grid_constant__ sl_wg_maps maps)
{
    typedef sl_wg_shape<F, MI, NT, CW, PAIRS> S;
    SL_SMEM(uint8_t, smem);
    sl_wg_init<S>(smem, 4 * CW, l.vec_x ? 1 : 32 * SL_WG_X_WARPS);
    sl_grid_launch_dependents();
    /* The same in all lanes, as the compiler shall see: products do not run in divergent code. */
    if (__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) == 0) {
        if (CW > 1)
            sl_regs_give<56>();
        if (threadIdx.x < 32) {
            if (threadIdx.x == 0)
                sl_wg_bring_w<S, F, MI, NT>(l, p, maps, smem);
            sl_grid_wait();
        } else {
            sl_grid_wait();
            if (!l.vec_x)
                sl_wg_bring_odd<S, NT>(l, p, smem);
            else if (threadIdx.x == 32)
                sl_wg_bring_boxes<S, NT>(l, p, &maps.x, smem);
        }
    } else {
        if (CW > 1)
            sl_regs_take<CW == 2 ? 224 : 104>();
        sl_grid_wait();
        sl_wg_consume<S, F, MI, NT, CW, TOTALS>(l, p, smem);
    }
}

/* ------------------------------------------------------------------ host */

template <class F, int MI, int NT, int CW, bool TOTALS, bool PAIRS = false>
static void sl_wg_launch(struct sl_cuda *cu, const sl_lin *given)
{
    typedef sl_wg_shape<F, MI, NT, CW, PAIRS> S;
    sl_lin l = *given;
    sl_wg_plan p = {};
    for (int i = 0; i < (l.gated ? 1 : l.n_parts); i++) {
        l.part[i].first = p.n_tiles;
        p.n_tiles += SL_CEIL_DIV(l.part[i].n_blocks, l.gated ? S::blocks / 2 : S::blocks);
    }
    p.n_cols = SL_CEIL_DIV(l.n, NT);
    int64_t n_tiles = (int64_t)p.n_tiles * p.n_cols;
    int64_t bytes = n_tiles * l.n_segs * S::blocks * 16 * NT * 4;
    bool room = bytes <= SL_LIN_PARTIAL_BYTES && n_tiles <= SL_LIN_TILES;
    /* Rounds of all SMs, in steps of 64 columns. */
    int64_t apart =
        SL_CEIL_DIV(n_tiles * l.n_segs, (int64_t)cu->n_sms) * (l.seg_k64 + SL_WG_JOIN_STEPS);
    int64_t whole = SL_CEIL_DIV(n_tiles, (int64_t)cu->n_sms) * l.n_k64;
    bool want = !TOTALS || apart < whole;
    p.split = l.n_segs > 1 && want && room ? l.n_segs : 1;
    SL_ASSERT(l.n_segs == 1 || (S::joins && (TOTALS || p.split > 1)));
    p.n_units = (int32_t)n_tiles * p.split;
    p.left = p.split > 1 && (l.left != NULL || l.apart);
    if (p.left && !l.apart)
        *l.left = {cu->lin_partial, p.split};
    l.partial = p.left && l.apart ? l.part[0].out : cu->lin_partial;
    l.arrived = cu->lin_arrived;
    sl_wg_maps maps = {};
    cudaError_t e = l.vec_x ? sl_tensor_map(&maps.x, l.x, l.n, l.k, l.ld_x, NT) : cudaSuccess;
    for (int i = 0; i < l.n_parts && e == cudaSuccess; i++)
        e = sl_tensor_map_blocks(&maps.w[i], l.part[i].w, l.part[i].n_blocks, l.n_k64 / S::subs,
                                 F::unit_bytes, 4);
    sl_cuda_check(cu, e, "cuTensorMapEncodeTiled");
    unsigned grid = (unsigned)SL_MIN(p.n_units, cu->n_sms);
    sl_launch(cu, sl_wg_kernel<F, MI, NT, CW, TOTALS, PAIRS>, dim3(grid), dim3(S::threads), S::smem,
              l, p, maps);
}

#endif
