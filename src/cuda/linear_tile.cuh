/* SPDX-License-Identifier: MIT
 * linear_tile.cuh - products of many tokens: tiles of 128 rows, by pairs of blocks.
 *
 * One block a multiprocessor, which takes one tile of rows x tokens after another: two consumer
 * warpgroups, each with 64 rows and all NT tokens of the tile, and a warpgroup that brings: warp 0
 * the weights (a box of a unit of all row blocks), warp 1 the activations. Weights are the A
 * operand and come through registers as packed, coded ones decoded on the way, 32 columns while the
 * products of the 32 before run. Activations lie in shared memory as sl_wgmma_b wants them.
 *
 * Of a pair (CL 2, a cluster) the blocks have tiles of rows side by side and the same tokens: each
 * brings half of them for both, so that L2 is asked for a third less (lab/gemm_bf16.cu: 794 TFLOP/s
 * for 755 at 8192^3). Sums leave through shared memory by the copy engine, 32 tokens at a time,
 * while the next tile begins.
 *
 * Segments (linear.h): TOTALS walks through all segments of a tile, one behind the other, and adds
 * their sums in registers. Or every segment is a unit of its own (split), for few tiles: as many
 * blocks beside each other have the segments of a tile, each adds up its share of the tokens, and
 * gets the others' sums through device memory. There a number is its own signal: zero means not yet
 * there, whoever has read it makes it zero again, and a sum that is zero travels as -0, which no
 * sum is. Blocks wait for each other, so the grid is never larger than what runs at once.
 *
 * In a gated product a warp's 16 rows are eight of gate and the same eight of up, so that a thread
 * has both sums of an output.
 */
#ifndef SL_CUDA_LINEAR_TILE_CUH
#define SL_CUDA_LINEAR_TILE_CUH

#include "cuda/linear_store.cuh"
#include "cuda/ptx_post.cuh"
#include "cuda/weight_format.cuh"

#define SL_TILE_SMEM   232448
#define SL_TILE_HEADER 1024 /* barriers */
#define SL_TILE_RING   12
#define SL_TILE_CHUNK  32   /* tokens that leave at a time */
#define SL_TILE_BOX    4096 /* 32 rows of them as float */
#define SL_TILE_RASTER 8    /* columns of tokens of a raster group */

template <class F, int NT_, bool TOTALS_, bool PAIRS_, int CL_> struct sl_tile_shape {
    static constexpr int NT = NT_, CL = CL_;
    static constexpr bool TOTALS = TOTALS_, PAIRS = PAIRS_;
    static constexpr int threads = 384, blocks = 8; /* row blocks; of pairs four twice */
    static constexpr int subs = F::unit_k / 64;     /* steps of a unit */
    static constexpr int w_slot = blocks * F::unit_bytes, x_slot = NT * 128;
    static constexpr int box = PAIRS ? SL_TILE_CHUNK * 64 : 2 * SL_TILE_BOX; /* of a group */
    static constexpr int out = 4 * box;
    static constexpr int room = SL_TILE_SMEM - SL_TILE_HEADER - out;
    static constexpr int fit = room / (w_slot + subs * x_slot);
    static constexpr int w_slots = fit < 2 ? 2 : fit > SL_TILE_RING ? SL_TILE_RING : fit;
    static constexpr int x_fit = (room - w_slots * w_slot) / x_slot;
    static constexpr int x_slots = x_fit > SL_TILE_RING ? SL_TILE_RING : x_fit;
    static constexpr int x_offset = SL_TILE_HEADER, out_offset = x_offset + x_slots * x_slot;
    static constexpr int w_offset = out_offset + out, smem = w_offset + w_slots * w_slot;
    static_assert(w_slot % 128 == 0 && x_slots > 2 && smem <= SL_TILE_SMEM, "shared memory");
    static_assert(NT % (8 * CL) == 0 && NT % SL_TILE_CHUNK == 0, "tokens");
};

struct sl_tile_plan {
    int32_t n_units;         /* of a pair, or of a block that has no partner */
    int32_t n_tiles, n_cols; /* of rows, CL side by side count as one; of tokens */
    int32_t split;           /* units of a tile: 1, or its segments */
    bool boxes;              /* sums leave by the copy engine */
};

struct sl_tile_unit {
    const sl_lin_part *part; /* gated: of gate */
    int32_t block0, token0;
    int32_t from, to; /* steps of 64 columns */
    int32_t tile, seg;
};

/* Descriptions for the copy engine. */
struct sl_tile_maps {
    CUtensorMap x, w[SL_MAX_LINEAR_PARTS], out[SL_MAX_LINEAR_PARTS];
};

struct sl_tile_bars {
    uint64_t *full_w, *empty_w, *full_x, *empty_x;
};

static __device__ __forceinline__ sl_tile_bars sl_tile_bars_of(uint8_t *smem)
{
    uint64_t *b = reinterpret_cast<uint64_t *>(smem);
    return {b, b + SL_TILE_RING, b + 2 * SL_TILE_RING, b + 3 * SL_TILE_RING};
}

/* Place in a ring of N slots; parity of the phase that ends when the slot is full. */
template <int N> struct sl_tile_place {
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

/* Tiles go by groups of columns of tokens, within a group row by row, so that what runs at a time
 * is about a square. A partner behind the last row has row blocks behind the end: zeros. */
template <class S>
static __device__ __forceinline__ sl_tile_unit sl_tile_find(const sl_lin &l, const sl_tile_plan &p,
                                                            int id, int rank)
{
    sl_tile_unit u;
    u.seg = id % p.split;
    u.tile = id / p.split;
    int per_group = SL_TILE_RASTER * p.n_tiles;
    int group = u.tile / per_group, in = u.tile % per_group;
    int width = min(SL_TILE_RASTER, p.n_cols - group * SL_TILE_RASTER);
    int row = in / width * S::CL + rank, i = 0;
    while (!S::PAIRS && i + 1 < l.n_parts && row >= l.part[i + 1].first)
        i++;
    u.part = &l.part[i];
    u.block0 = (row - l.part[i].first) * (S::PAIRS ? S::blocks / 2 : S::blocks);
    u.token0 = (group * SL_TILE_RASTER + in % width) * S::NT;
    u.from = p.split > 1 ? u.seg * l.seg_k64 : 0;
    u.to = p.split > 1 ? min(u.from + l.seg_k64, l.n_k64) : l.n_k64;
    return u;
}

/* ------------------------------------------------------------------ who brings */

/* One lane. Weights need not wait for the kernels ahead. */
template <class S, class F>
static __device__ __forceinline__ void sl_tile_bring_w(const sl_lin &l, const sl_tile_plan &p,
                                                       const sl_tile_maps &maps, uint8_t *smem,
                                                       int first, int step, int rank)
{
    sl_tile_bars bars = sl_tile_bars_of(smem);
    sl_tile_place<S::w_slots> at = {0, 1};
    for (int id = first; id < p.n_units; id += step) {
        sl_tile_unit u = sl_tile_find<S>(l, p, id, rank);
        const CUtensorMap *map = &maps.w[u.part - l.part];
        for (int k = u.from; k < u.to; k += S::subs) {
            sl_mbar_wait(&bars.empty_w[at.slot], at.parity);
            uint64_t *full = &bars.full_w[at.slot];
            uint8_t *to = smem + S::w_offset + at.slot * S::w_slot;
            sl_mbar_expect_tx(full, S::w_slot);
            sl_blocks_load(to, map, k / S::subs, u.block0, full);
            if (S::PAIRS)
                sl_blocks_load(to + S::w_slot / 2, &maps.w[1], k / S::subs, u.block0, full);
            at.next();
        }
    }
}

/* One lane: this block's share of the tokens, for all blocks of the cluster. */
template <class S>
static __device__ __forceinline__ void sl_tile_bring_x(const sl_lin &l, const sl_tile_plan &p,
                                                       const CUtensorMap *map, uint8_t *smem,
                                                       int first, int step, int rank)
{
    constexpr int share = S::NT / S::CL;
    sl_tile_bars bars = sl_tile_bars_of(smem);
    sl_tile_place<S::x_slots> at = {0, 1};
    for (int id = first; id < p.n_units; id += step) {
        sl_tile_unit u = sl_tile_find<S>(l, p, id, rank);
        for (int k = u.from; k < u.to; k++) {
            sl_mbar_wait(&bars.empty_x[at.slot], at.parity);
            uint64_t *full = &bars.full_x[at.slot];
            uint8_t *to = smem + S::x_offset + at.slot * S::x_slot + rank * share * 128;
            sl_mbar_expect_tx(full, S::x_slot);
            if (S::CL > 1)
                sl_tensor_load_all(to, map, k * 64, u.token0 + rank * share, full,
                                   static_cast<uint16_t>((1u << S::CL) - 1));
            else
                sl_tensor_load(to, map, k * 64, u.token0, full);
            at.next();
        }
    }
}

/* ------------------------------------------------------------------ consumers */

/* A consumer warp's view of the rings. */
template <class S, class F> struct sl_tile_view {
    uint8_t *smem;
    sl_tile_place<S::w_slots> w;
    sl_tile_place<S::x_slots> x;
    int32_t w_free, x_free; /* the oldest slots that were not given back */
    uint32_t w_at;          /* of the warp's row block in a slot; of pairs its half of gate's */
    int32_t group, warp;
    uint32_t chunk; /* chunks that have left */
    typename F::raw raw;
};

/* Fragments of H times 16 columns. */
template <int H> struct sl_tile_frag {
    uint32_t a[H][4];
};

/* Part h of step k, of 4 / H parts. */
template <int H, class S, class F>
static __device__ __forceinline__ void sl_tile_load(sl_tile_frag<H> &f, sl_tile_view<S, F> &v,
                                                    int k, int h)
{
    int lane = static_cast<int>(threadIdx.x % 32), sub = k % S::subs;
    if (h == 0 && sub == 0)
        sl_mbar_wait(&sl_tile_bars_of(v.smem).full_w[v.w.slot], v.w.parity);
    const uint8_t *unit = v.smem + S::w_offset + v.w.slot * S::w_slot + v.w_at;
    if constexpr (F::coded) {
        if (h == 0)
            F::load(v.raw, unit, sub, lane);
#pragma unroll
        for (int j = 0; j < H; j++)
            F::frag(v.raw, h * H + j, f.a[j]);
    } else {
#pragma unroll
        for (int j = 0; j < H; j += 2)
            F::load_two(&f.a[j], unit, unit + (S::PAIRS ? S::w_slot / 2 : F::half_bytes),
                        (h * H + j) / 2, lane);
    }
    if (h == 4 / H - 1 && sub == S::subs - 1)
        v.w.next();
}

/* Gives back the oldest slot of weights, whose last fragments products have taken. */
template <class S, class F>
static __device__ __forceinline__ void sl_tile_free_w(sl_tile_view<S, F> &v)
{
    sl_mbar_give_warp(&sl_tile_bars_of(v.smem).empty_w[v.w_free]);
    v.w_free = v.w_free + 1 == S::w_slots ? 0 : v.w_free + 1;
}

/* Gives back the oldest stage, if there is one whose products have ended: to all blocks that bring
 * a share of it. */
template <class S, class F>
static __device__ __forceinline__ void sl_tile_free_x(sl_tile_view<S, F> &v)
{
    uint64_t *bar = &sl_tile_bars_of(v.smem).empty_x[v.x_free];
    if (S::CL == 1) {
        sl_mbar_arrive_warp(bar);
    } else {
        int lane = static_cast<int>(threadIdx.x % 32);
        __syncwarp();
#pragma unroll
        for (int r = 0; r < S::CL; r++)
            if (SL_WARP_ARRIVALS > 1 || lane == r)
                sl_mbar_arrive_at(bar, static_cast<uint32_t>(r));
    }
    v.x_free = v.x_free + 1 == S::x_slots ? 0 : v.x_free + 1;
}

/* Starts the products of part h of step k. Behind it at most these run: those of the part before
 * have ended. before: there were some, the last ones of a stage. */
template <int H, class S, class F>
static __device__ __forceinline__ void sl_tile_issue(float (&acc)[S::NT / 8][4],
                                                     const sl_tile_frag<H> &f,
                                                     sl_tile_view<S, F> &v, int k, int h,
                                                     bool before)
{
    if (h == 0)
        sl_mbar_wait(&sl_tile_bars_of(v.smem).full_x[v.x.slot], v.x.parity);
    auto b = sl_wgmma_b(v.smem + S::x_offset + v.x.slot * S::x_slot) + h * H * SL_WGMMA_B_K16;
    sl_wgmma_fence();
#pragma unroll
    for (int j = 0; j < H; j++)
        sl_wgmma_rs(acc, f.a[j], b + j * SL_WGMMA_B_K16);
    sl_wgmma_commit();
    if (h == 4 / H - 1) {
        v.x.next();
        if (k % S::subs == S::subs - 1)
            sl_tile_free_w(v);
    }
    sl_wgmma_wait<1>();
    if (h == 0 && before)
        sl_tile_free_x(v);
}

/* n steps from step k on: while the products of a part run, the fragments of the next one are read
 * into the registers of the one before. Where sums of segments leave no room for those of whole
 * steps, parts are half as large. */
template <class S, class F>
static __device__ __forceinline__ void sl_tile_walk(float (&acc)[S::NT / 8][4],
                                                    sl_tile_view<S, F> &v, int k, int n)
{
#pragma unroll
    for (int i = 0; i < S::NT / 2; i++)
        acc[i / 4][i % 4] = 0.0f;
    if constexpr (S::TOTALS && S::NT > 128) {
        sl_tile_frag<2> low, high;
        sl_tile_load<2, S, F>(low, v, k, 0);
#pragma unroll 1
        for (int i = 0; i < n; i++, k++) {
            sl_tile_issue<2, S, F>(acc, low, v, k, 0, i > 0);
            sl_tile_load<2, S, F>(high, v, k, 1);
            sl_tile_issue<2, S, F>(acc, high, v, k, 1, true);
            if (i + 1 < n)
                sl_tile_load<2, S, F>(low, v, k + 1, 0);
        }
    } else {
        sl_tile_frag<4> even, odd;
        sl_tile_load<4, S, F>(even, v, k, 0);
        bool before = false;
#pragma unroll 1
        for (; n >= 2; n -= 2, k += 2) {
            sl_tile_issue<4, S, F>(acc, even, v, k, 0, before);
            sl_tile_load<4, S, F>(odd, v, k + 1, 0);
            sl_tile_issue<4, S, F>(acc, odd, v, k + 1, 0, true);
            before = true;
            if (n > 2)
                sl_tile_load<4, S, F>(even, v, k + 2, 0);
        }
        if (n > 0)
            sl_tile_issue<4, S, F>(acc, even, v, k, 0, before);
    }
    sl_wgmma_wait<0>();
    sl_tile_free_x(v);
}

/* The sums of a unit: of one segment, or of all, added in order. */
template <class S, class F>
static __device__ __forceinline__ void sl_tile_sums(float (&sum)[S::NT / 8][4],
                                                    sl_tile_view<S, F> &v, const sl_tile_unit &u)
{
    if constexpr (!S::TOTALS) {
        sl_tile_walk<S, F>(sum, v, u.from, u.to - u.from);
    } else {
        const int seg = u.part->seg_k64;
        sl_tile_walk<S, F>(sum, v, u.from, min(seg, u.to - u.from));
        for (int k = u.from + seg; k < u.to; k += seg) {
            float acc[S::NT / 8][4];
            sl_tile_walk<S, F>(acc, v, k, min(seg, u.to - k));
#pragma unroll
            for (int i = 0; i < S::NT / 2; i++)
                sum[i / 4][i % 4] = __fadd_rn(sum[i / 4][i % 4], acc[i / 4][i % 4]);
        }
    }
}

/* ------------------------------------------------------------------ what leaves */

/* A chunk of a group as boxes of 32 rows x 32 tokens, two side by side: [token][32 rows], 16-byte
 * pieces at piece ^ (token % 8), so that the stores of a warp hit all banks. */
static __device__ __forceinline__ void sl_tile_fill_box(const float (&v)[4][4], uint8_t *box,
                                                        int warp)
{
    int lane = static_cast<int>(threadIdx.x % 32);
    uint8_t *at = box + warp / 2 * SL_TILE_BOX + 2 * (lane & 3) * 128 + (lane >> 2 & 3) * 4;
    int piece = warp % 2 * 4 + (lane >> 4); /* of row g; that of row g + 8 is two further */
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int to = (piece + (e & 2)) ^ (2 * (lane & 3) + (e & 1));
            *reinterpret_cast<float *>(at + i * 1024 + (e & 1) * 128 + to * 16) = v[i][e];
        }
}

/* The outputs of a chunk of pairs, whose thread has gate's sums of a row, two for each eight
 * tokens, and up's. */
static __device__ __forceinline__ void sl_tile_gate(float (&out)[8], const float (&v)[4][4],
                                                    enum sl_act act)
{
#pragma unroll
    for (int k = 0; k < 8; k++)
        out[k] = __fmul_rn(sl_act(act, v[k / 2][k % 2]), v[k / 2][2 + k % 2]);
}

/* A group's chunk of pairs as one box: [token][32 rows]. */
static __device__ __forceinline__ void sl_tile_fill_pairs(const float (&v)[4][4], uint8_t *box,
                                                          int warp, enum sl_act act)
{
    float out[8];
    uint32_t two[4];
    sl_tile_gate(out, v, act);
#pragma unroll
    for (int i = 0; i < 4; i++)
        two[i] = sl_pack_bf16(out[2 * i], out[2 * i + 1]);
    sl_put_rows(box + warp * 16, 64, two);
}

/* A group's chunk from row0 on leaves by the copy engine. */
template <class S, class F>
static __device__ __forceinline__ void sl_tile_store_box(const float (&v)[4][4],
                                                         sl_tile_view<S, F> &w,
                                                         const CUtensorMap *map, enum sl_act act,
                                                         int row0, int token0)
{
    bool first = threadIdx.x % 128 == 0;
    uint8_t *box = w.smem + S::out_offset + (2 * w.group + static_cast<int>(w.chunk & 1)) * S::box;
    if (first)
        sl_tensor_store_wait<1>(); /* the chunk before the last one */
    sl_bar_sync(2 + w.group, 128);
    if constexpr (S::PAIRS)
        sl_tile_fill_pairs(v, box, w.warp, act);
    else
        sl_tile_fill_box(v, box, w.warp);
    sl_fence_proxy_async();
    sl_bar_sync(2 + w.group, 128);
    if (first) {
        sl_tensor_store(map, S::PAIRS ? row0 / 4 : row0, token0, box);
        if (!S::PAIRS)
            sl_tensor_store(map, row0 + 32, token0, box + SL_TILE_BOX);
        sl_tensor_store_commit();
    }
    w.chunk++;
}

static __device__ __forceinline__ void sl_tile_store_pairs(const float (&v)[4][4], const sl_lin &l,
                                                           int row, int token0)
{
    int lane = static_cast<int>(threadIdx.x % 32), t0 = token0 + 2 * (lane & 3);
    row += lane >> 2;
    if (row >= l.part[0].n_rows)
        return;
    int64_t ld = l.part[0].n_rows;
    __nv_bfloat16 *at = l.gated_out + t0 * ld + row;
    float out[8];
    sl_tile_gate(out, v, l.act);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        if (t0 + 8 * (k / 2) + k % 2 < l.n)
            sl_lin_put(at + k % 2 * ld, out[k]);
        at += k % 2 == 1 ? 8 * ld : 0;
    }
}

/* 32 tokens from token0 on. */
template <class S, class F>
static __device__ __forceinline__ void sl_tile_store(float (&v)[4][4], const sl_lin &l,
                                                     const sl_tile_plan &p,
                                                     const sl_tile_maps &maps,
                                                     sl_tile_view<S, F> &w, const sl_tile_unit &u,
                                                     int token0)
{
    if constexpr (S::PAIRS) {
        int row = (u.block0 + 2 * w.group) * SL_CUDA_ROW_BLOCK;
        if (p.boxes)
            sl_tile_store_box<S, F>(v, w, &maps.out[0], l.act, row, token0);
        else
            sl_tile_store_pairs(v, l, row + 8 * w.warp, token0);
    } else {
        int block = u.block0 + 4 * w.group + w.warp;
        if (!p.boxes) {
            if (block < u.part->n_blocks)
                sl_lin_store_part<4>(v, l, *u.part, block, token0);
            return;
        }
        if (u.part->bias != nullptr) {
            int row = block * SL_CUDA_ROW_BLOCK + static_cast<int>(threadIdx.x % 32 >> 2);
            float b0 = row < u.part->n_rows ? u.part->bias[row] : 0.0f;
            float b1 = row + 8 < u.part->n_rows ? u.part->bias[row + 8] : 0.0f;
#pragma unroll
            for (int i = 0; i < 16; i++)
                v[i / 4][i % 4] = __fadd_rn(v[i / 4][i % 4], i % 4 < 2 ? b0 : b1);
        }
        sl_tile_store_box<S, F>(v, w, &maps.out[u.part - l.part], l.act,
                                (u.block0 + 4 * w.group) * SL_CUDA_ROW_BLOCK, token0);
    }
}

/* A tile's sums. */
template <class S, class F>
static __device__ __forceinline__ void sl_tile_store_all(const float (&sum)[S::NT / 8][4],
                                                         const sl_lin &l, const sl_tile_plan &p,
                                                         const sl_tile_maps &maps,
                                                         sl_tile_view<S, F> &w,
                                                         const sl_tile_unit &u)
{
#pragma unroll
    for (int c = 0; c < S::NT / SL_TILE_CHUNK; c++) {
        const int token0 = u.token0 + c * SL_TILE_CHUNK;
        float v[4][4];
#pragma unroll
        for (int i = 0; i < 16; i++)
            v[i / 4][i % 4] = sum[4 * c + i / 4][i % 4];
        if (token0 < l.n)
            sl_tile_store<S, F>(v, l, p, maps, w, u, token0);
    }
}

/* ------------------------------------------------------------------ segments apart */

/* Where the sums of chunk c of a tile wait, of one segment and warp: 4 times 32 lanes. */
template <class S>
static __device__ __forceinline__ float4 *sl_tile_shelf(const sl_lin &l, int tile, int c, int seg,
                                                        int warp)
{
    int64_t at = static_cast<int64_t>(tile) * (S::NT / SL_TILE_CHUNK) + c;
    return reinterpret_cast<float4 *>(l.shelf) + ((at * SL_LIN_SEGS + seg) * 8 + warp) * 128 +
           threadIdx.x % 32;
}

/* The sums of 32 tokens, from eight tokens `first` on. */
template <int N>
static __device__ __forceinline__ void sl_tile_leave(const float (&sum)[N][4], int first,
                                                     float4 *to)
{
#pragma unroll
    for (int i = 0; i < SL_TILE_CHUNK / 8; i++) {
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            v[e] = sum[first + i][e] == 0.0f ? -0.0f : sum[first + i][e];
        sl_post16(to + i * 32, make_float4(v[0], v[1], v[2], v[3]));
    }
}

static __device__ __forceinline__ bool sl_tile_there(const float4 &q)
{
    return __float_as_uint(q.x) != 0 && __float_as_uint(q.y) != 0 && __float_as_uint(q.z) != 0 &&
           __float_as_uint(q.w) != 0;
}

/* The sums of all segments for 32 tokens: sum's of this block's segment, the others' from shelves.
 */
static __device__ __forceinline__ void sl_tile_take(float (&sum)[4][4], float4 *const *from,
                                                    int seg, int n_segs)
{
    float4 q[SL_LIN_SEGS][4];
    float own[16];
#pragma unroll
    for (int s = 0; s < SL_LIN_SEGS; s++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (s < n_segs && s != seg)
                q[s][i] = sl_peek16(from[s] + i * 32);
#pragma unroll
    for (int i = 0; i < 16; i++)
        own[i] = sum[i / 4][i % 4];
#pragma unroll
    for (int s = 0; s < SL_LIN_SEGS; s++) {
        if (s >= n_segs)
            break;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float v[4] = {own[4 * i], own[4 * i + 1], own[4 * i + 2], own[4 * i + 3]};
            if (s != seg) {
                while (!sl_tile_there(q[s][i]))
                    q[s][i] = sl_peek16(from[s] + i * 32);
                from[s][i * 32] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                v[0] = q[s][i].x, v[1] = q[s][i].y, v[2] = q[s][i].z, v[3] = q[s][i].w;
            }
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[i][e] = __fadd_rn(s == 0 ? 0.0f : sum[i][e], v[e]);
        }
    }
}

/* Which segment's block adds up chunk c of n. */
static __device__ __forceinline__ int sl_tile_owner(int c, int n, int n_segs)
{
    return c * n_segs / n;
}

/* Gives away the sums of other blocks' tokens, adds up and stores those of this block's. */
template <class S, class F>
static __device__ __forceinline__ void sl_tile_join(const float (&sum)[S::NT / 8][4],
                                                    const sl_lin &l, const sl_tile_plan &p,
                                                    const sl_tile_maps &maps, sl_tile_view<S, F> &w,
                                                    const sl_tile_unit &u)
{
    constexpr int n = S::NT / SL_TILE_CHUNK;
    const int warp = 4 * w.group + w.warp;
#pragma unroll
    for (int c = 0; c < n; c++)
        if (sl_tile_owner(c, n, p.split) != u.seg && u.token0 + c * SL_TILE_CHUNK < l.n)
            sl_tile_leave(sum, 4 * c, sl_tile_shelf<S>(l, u.tile, c, u.seg, warp));
#pragma unroll
    for (int c = 0; c < n; c++) {
        const int token0 = u.token0 + c * SL_TILE_CHUNK;
        if (sl_tile_owner(c, n, p.split) != u.seg || token0 >= l.n)
            continue;
        float v[4][4];
        float4 *from[SL_LIN_SEGS];
#pragma unroll
        for (int i = 0; i < 16; i++)
            v[i / 4][i % 4] = sum[4 * c + i / 4][i % 4];
#pragma unroll
        for (int s = 0; s < SL_LIN_SEGS; s++)
            from[s] = sl_tile_shelf<S>(l, u.tile, c, s, warp);
        sl_tile_take(v, from, u.seg, p.split);
        sl_tile_store<S, F>(v, l, p, maps, w, u, token0);
    }
}

/* ------------------------------------------------------------------ the kernel */

template <class S, class F>
static __device__ __forceinline__ void sl_tile_consume(const sl_lin &l, const sl_tile_plan &p,
                                                       const sl_tile_maps &maps, uint8_t *smem,
                                                       int first, int step, int rank)
{
    sl_tile_view<S, F> v = {};
    v.smem = smem;
    v.group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) - 1;
    v.warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32 % 4), 0);
    if constexpr (S::PAIRS)
        v.w_at = static_cast<uint32_t>((2 * v.group + v.warp / 2) * F::unit_bytes +
                                       v.warp % 2 * F::half_bytes);
    else
        v.w_at = static_cast<uint32_t>((4 * v.group + v.warp) * F::unit_bytes);
    for (int id = first; id < p.n_units; id += step) {
        sl_tile_unit u = sl_tile_find<S>(l, p, id, rank);
        float sum[S::NT / 8][4];
        sl_tile_sums<S, F>(sum, v, u);
        if constexpr (!S::TOTALS && S::CL == 1) {
            if (p.split > 1) {
                sl_tile_join<S, F>(sum, l, p, maps, v, u);
                continue;
            }
        }
        sl_tile_store_all<S, F>(sum, l, p, maps, v, u);
    }
    if (p.boxes && threadIdx.x % 128 == 0)
        sl_tensor_store_wait<0>(); /* the end of the grid waits for what they write */
}

template <class S> static __device__ __forceinline__ void sl_tile_init(uint8_t *smem)
{
    sl_tile_bars bars = sl_tile_bars_of(smem);
    sl_mbar_init_all(bars.full_w, S::w_slots, 1);
    sl_mbar_init_all(bars.empty_w, S::w_slots, 8 * SL_WARP_ARRIVALS);
    sl_mbar_init_all(bars.full_x, S::x_slots, 1);
    sl_mbar_init_all(bars.empty_x, S::x_slots, 8 * S::CL * SL_WARP_ARRIVALS);
    sl_mbar_fence_init();
    if (S::CL > 1)
        sl_cluster_sync();
    else
        __syncthreads();
}

template <class F, int NT, bool TOTALS, bool PAIRS, int CL>
__global__ void __launch_bounds__(384, 1)
    sl_tile_kernel(const __grid_constant__ sl_lin l, const __grid_constant__ sl_tile_plan p,
                   const __grid_constant__ sl_tile_maps maps)
{
    typedef sl_tile_shape<F, NT, TOTALS, PAIRS, CL> S;
    SL_SMEM(uint8_t, smem);
    int rank = CL > 1 ? static_cast<int>(sl_cluster_rank()) : 0;
    int first = static_cast<int>(blockIdx.x) / CL, step = static_cast<int>(gridDim.x) / CL;
    if (threadIdx.x < static_cast<unsigned>(l.n_parts)) {
        sl_prefetch_map(&maps.w[threadIdx.x]);
        if (p.boxes && (!PAIRS || threadIdx.x == 0))
            sl_prefetch_map(&maps.out[threadIdx.x]);
    } else if (threadIdx.x == 32) {
        sl_prefetch_map(&maps.x);
    }
    sl_tile_init<S>(smem);
    sl_grid_launch_dependents();
    /* The same in all lanes, as the compiler shall see: products do not run in divergent code. */
    if (__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) == 0) {
        sl_regs_give<24>();
        if (threadIdx.x < 32) {
            if (threadIdx.x == 0)
                sl_tile_bring_w<S, F>(l, p, maps, smem, first, step, rank);
            sl_grid_wait();
        } else {
            sl_grid_wait();
            if (threadIdx.x == 32)
                sl_tile_bring_x<S>(l, p, &maps.x, smem, first, step, rank);
        }
    } else {
        sl_regs_take<240>();
        sl_grid_wait();
        sl_tile_consume<S, F>(l, p, maps, smem, first, step, rank);
    }
    if (CL > 1)
        sl_cluster_sync(); /* the partner may still reach for what is here */
}

/* ------------------------------------------------------------------ host */

/* Whether the copy engine can store: of all parts the rows of out are whole pieces of 16 bytes
 * (what is left of one behind the last row it would write, too), and a gated product has whole
 * boxes. */
static inline bool sl_tile_boxes(const sl_lin &l)
{
    bool can = true;
    if (l.gated)
        return reinterpret_cast<uintptr_t>(l.gated_out) % 16 == 0 && l.part[0].n_rows % 32 == 0;
    for (int i = 0; i < l.n_parts; i++)
        can = can && reinterpret_cast<uintptr_t>(l.part[i].out) % 16 == 0 &&
              l.part[i].ld_out % 4 == 0 && l.part[i].n_rows % 4 == 0;
    return can;
}

template <class S, class F>
static inline cudaError_t sl_tile_describe(sl_tile_maps *maps, const sl_lin &l,
                                           const sl_tile_plan &p)
{
    cudaError_t e = sl_tensor_map(&maps->x, l.x, l.n, l.k, l.ld_x, S::NT / S::CL);
    for (int i = 0; i < l.n_parts && e == cudaSuccess; i++) {
        const sl_lin_part &a = l.part[i];
        e = sl_tensor_map_blocks(&maps->w[i], a.w, a.n_blocks, l.n_k64 / S::subs, F::unit_bytes,
                                 S::PAIRS ? S::blocks / 2 : S::blocks);
        if (e == cudaSuccess && p.boxes && !S::PAIRS)
            e = sl_tensor_map_float(&maps->out[i], a.out, l.n, a.n_rows, a.ld_out, SL_TILE_CHUNK);
    }
    if (e == cudaSuccess && p.boxes && S::PAIRS)
        e = sl_tensor_map_units(&maps->out[0], l.gated_out, l.n, l.part[0].n_rows / 32, 64,
                                SL_TILE_CHUNK);
    return e;
}

/* split: every segment apart. */
template <class F, int NT, bool TOTALS, bool PAIRS, int CL>
static void sl_tile_launch(struct sl_cuda *cu, const sl_lin *given, bool split)
{
    typedef sl_tile_shape<F, NT, TOTALS, PAIRS, CL> S;
    sl_lin l = *given;
    sl_tile_plan p = {};
    int per_tile = PAIRS ? S::blocks / 2 : S::blocks, n_tiles = 0;
    for (int i = 0; i < (l.gated ? 1 : l.n_parts); i++) {
        l.part[i].first = n_tiles;
        n_tiles += SL_CEIL_DIV(l.part[i].n_blocks, per_tile);
    }
    p.n_tiles = SL_CEIL_DIV(n_tiles, CL);
    p.n_cols = SL_CEIL_DIV(l.n, NT);
    p.split = split ? l.n_segs : 1;
    p.n_units = p.n_tiles * p.n_cols * p.split;
    p.boxes = sl_tile_boxes(l);
    SL_ASSERT(l.vec_x && l.gated == PAIRS && (TOTALS || l.n_segs == p.split));
    l.shelf = sl_cuda_linear_shelf(cu);
    sl_tile_maps maps = {};
    sl_cuda_check(cu, sl_tile_describe<S, F>(&maps, l, p), "cuTensorMapEncodeTiled");
    int together = CL * p.split; /* blocks that want each other */
    int most = SL_MAX(cu->n_sms / together, 1) * together;
    unsigned grid = (unsigned)SL_MIN(p.n_units * CL, most);
    sl_launch_beside(cu, sl_tile_kernel<F, NT, TOTALS, PAIRS, CL>, dim3(grid), dim3(S::threads),
                     S::smem, CL, (unsigned)p.split, l, p, maps);
}

#endif
