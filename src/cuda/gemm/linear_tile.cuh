/* SPDX-License-Identifier: MIT
 * linear_tile.cuh - GEMMs of many tokens in BF16: both operands from shared memory.
 *
 * A tile is TOKENS tokens x ROWS rows of weights. Tokens are the 64-row operand of wgmma, so that
 * rows, the other one, can be any multiple of 16: what a matrix needs for its tiles to fill all
 * SMs once. A consumer warpgroup has 64 tokens and all rows of the tile; a warpgroup
 * loads: warp 0 the weights, as packed, warp 1 the tokens. One block an SM takes one
 * tile after another.
 *
 * Blocks go in pairs (clusters of two): tiles of rows side by side share tokens, or tiles of tokens
 * side by side share weights (where their number is even, mostly the faster: 8192 x 1024, 256
 * tokens, 128 x 128: 9.6 us for 10.3); each block loads half of what is shared for both. For few
 * tiles both have one tile, each half of its segments, and add up half of its rows each; for fewer
 * still four blocks have one, a segment each.
 *
 * Segments (linear.h): TOTALS walks through all segments of a tile, one after the other, and adds
 * their sums in registers. In a gated product half of a tile's rows are gate's and half up's, so
 * that a thread has both sums of an output.
 *
 * Sums of large tiles leave through shared memory by the copy engine, 32 rows at a time; those of
 * small ones straight from registers. What TOTALS adds up in lies beside the accumulator, so it
 * leaves beside the first products of the next tile; of 256 rows, which are all in one, half has
 * room in other registers and does so, too. 6144 x 4096, 8192 tokens, by 192 rows: 630 us for 660
 * with the sums ahead of the next products; 64 gated rows of 28672 x 4096, 512 tokens: 253 for 275.
 *
 * What a launch costs beside its steps decides for few tiles: weights are asked for as soon as a
 * block's own barriers are ready, and nothing at its end waits for what it has stored. 2048 x 2048,
 * 512 tokens, by 128 x 64 (H200, clocks from a block's start to its barriers, and from its last sum
 * to its end): 810 and 150, with a release at the cluster's barriers and all barriers made ready by
 * one warp 2,040 and 1,100.
 *
 * H200: a step of 64 columns takes 128 x 64, 96, 128 and 192 some 470, 550, 640 and 910 clocks (the
 * tensor cores 256, 384, 512, 768); a product of both operands from shared memory never less than
 * some 48, which is what 128 x 32 is bound by. Shared memory moves 160 bytes a clock of its 128 for
 * 128 x 128, 135 for 192 and 117 for 256. From some 1024 tokens on power is the limit. A copy takes
 * its warp some 110 clocks, so tiles of 64 tokens, which have short steps, load all rows by one:
 * 1280 x 8192, 64 tokens, 48 rows 17.2 us for 22.7 by three copies, 96 rows 20.8 for 25.2.
 */
#ifndef SL_CUDA_LINEAR_TILE_CUH
#define SL_CUDA_LINEAR_TILE_CUH

#include "cuda/gemm/linear_store.cuh"
#include "cuda/gemm/weight_format.cuh"
#include "cuda/ptx_tile.cuh"

#define SL_TILE_SMEM   232448
#define SL_TILE_HEADER 1024 /* barriers */
#define SL_TILE_RING   12
#define SL_TILE_BOX    8192 /* 64 tokens x 32 rows as float, on their way out */
#define SL_TILE_RASTER 8    /* columns of tokens of a raster group */

/* BOX: rows that come by one copy, of one part. */
template <int TOKENS_, int ROWS_, int BOX_, bool TOTALS_, bool GATED_, sl_lin_share SHARE_>
struct sl_tile_shape {
    static constexpr int TOKENS = TOKENS_, ROWS = ROWS_, BOX = BOX_;
    static constexpr bool TOTALS = TOTALS_, GATED = GATED_;
    static constexpr sl_lin_share SHARE = SHARE_;
    static constexpr int groups = TOKENS / 64, threads = 128 * (groups + 1);
    static constexpr int boxes = ROWS / BOX, own = SHARE == SL_SHARE_W ? boxes / 2 : boxes;
    static constexpr int tile_boxes = GATED ? boxes / 2 : boxes;
    static constexpr int share = SHARE == SL_SHARE_X ? TOKENS / 2 : TOKENS; /* a block loads */
    /* Steps of a stage; after the last one are zeros. */
    static constexpr int steps = TOKENS + ROWS <= 160 ? 2 : 1;
    static constexpr int x_step = TOKENS * 128, w_step = ROWS * 128;
    static constexpr int stage = steps * (x_step + w_step);
    static constexpr bool joins = SHARE == SL_SHARE_TILE || SHARE == SL_SHARE_QUARTERS;
    static constexpr int blocks = SHARE == SL_SHARE_QUARTERS ? 4 : 2; /* of a cluster */
    static constexpr int chunk = GATED                        ? 32
                                 : SHARE == SL_SHARE_QUARTERS ? 8
                                 : SHARE == SL_SHARE_TILE     ? 16
                                 : BOX % 32 != 0              ? 16
                                                              : 32; /* rows that leave at a time */
    static constexpr int chunks = ROWS / chunk / (GATED ? 2 : 1);
    static constexpr int now = TOTALS ? 0 : chunks / 2; /* of them, that no registers hold */
    /* Boxes of a group: two where chunks leave one right after the other. */
    static constexpr int leave = now > 0 ? 2 : 1;
    static constexpr int out = ROWS < 128 || joins ? 0 : groups * leave * SL_TILE_BOX;
    /* Sums that other blocks send. */
    static constexpr int set = joins ? ROWS / blocks * TOKENS * 4 : 0;
    static constexpr int come = SHARE == SL_SHARE_QUARTERS ? 3 * set : 2 * set;
    static constexpr int fit = (SL_TILE_SMEM - SL_TILE_HEADER - out - come) / stage;
    static constexpr int stages = fit > SL_TILE_RING ? SL_TILE_RING : fit;
    static constexpr int out_offset = SL_TILE_HEADER + stages * stage,
                         smem = out_offset + out + come;
    static_assert(stages > 2 && (SHARE != SL_SHARE_W || boxes % 2 == 0) && (!GATED || BOX >= 32) &&
                      (!joins || chunks % blocks == 0),
                  "tile");
};

struct sl_tile_plan {
    int32_t n_units;        /* of a cluster */
    int32_t n_rows, n_cols; /* tiles of a cluster, of rows and of tokens */
    bool boxes;             /* sums leave by the copy engine */
    bool two;               /* or two rows at a time */
};

struct sl_tile_unit {
    int32_t box0; /* of rows, of all parts one after the other; gated: of gate */
    int32_t token0;
};

/* Descriptions for the copy engine. */
struct sl_tile_maps {
    CUtensorMap x, w[SL_MAX_LINEAR_PARTS], out[SL_MAX_LINEAR_PARTS], peer[SL_LIN_PEERS];
};

static __device__ __forceinline__ uint64_t *sl_tile_full(uint8_t *smem, int slot)
{
    return reinterpret_cast<uint64_t *>(smem) + slot;
}

static __device__ __forceinline__ uint64_t *sl_tile_empty(uint8_t *smem, int slot)
{
    return reinterpret_cast<uint64_t *>(smem) + SL_TILE_RING + slot;
}

/* Place in the ring; parity of the phase that ends when the slot is full. */
template <class S> struct sl_tile_place {
    int32_t slot;
    uint32_t parity;
    __device__ __forceinline__ void next()
    {
        if (++slot == S::stages) {
            slot = 0;
            parity ^= 1;
        }
    }
};

/* Tiles go by groups of columns of tokens, within a group row by row, so that what runs at a time
 * is about a square. A partner after the last tile has zeros. */
template <class S>
static __device__ __forceinline__ sl_tile_unit sl_tile_find(const sl_tile_plan &p, int id, int rank)
{
    int per_group = SL_TILE_RASTER * p.n_rows, group = id / per_group, in = id % per_group;
    int width = min(SL_TILE_RASTER, p.n_cols - group * SL_TILE_RASTER);
    int row = in / width, col = group * SL_TILE_RASTER + in % width;
    sl_tile_unit u;
    u.box0 = (S::SHARE == SL_SHARE_X ? 2 * row + rank : row) * S::tile_boxes;
    u.token0 = (S::SHARE == SL_SHARE_W ? 2 * col + rank : col) * S::TOKENS;
    return u;
}

/* The steps of a block. */
template <class S>
static __device__ __forceinline__ void sl_tile_range(const sl_lin &l, int rank, int *from, int *to)
{
    int part = S::SHARE == SL_SHARE_TILE ? 2 * l.seg_k64 : l.seg_k64;
    *from = S::joins ? min(rank * part, l.n_k64) : 0;
    *to = S::joins ? min(*from + part, l.n_k64) : l.n_k64;
}

/* Box i of a tile: its part and first row block, which may lie after the last. */
template <class S>
static __device__ __forceinline__ int sl_tile_part(const sl_lin &l, const sl_tile_unit &u, int i,
                                                   int32_t *block)
{
    constexpr int n = S::BOX / SL_CUDA_ROW_BLOCK;
    int part = S::GATED ? i / S::tile_boxes : 0, box = u.box0 + i % S::tile_boxes;
    while (!S::GATED && part + 1 < l.n_parts && box >= l.part[part + 1].first)
        part++;
    *block = (box - (S::GATED ? 0 : l.part[part].first)) * n;
    return part;
}

/* ------------------------------------------------------------------ producers */

/* Waits until all that was loaded has been given back, by the partner, too: then nothing that it
 * sends is on its way here, and the block may end. */
template <class S>
static __device__ __forceinline__ void sl_tile_tail(uint8_t *smem, sl_tile_place<S> at)
{
    for (int i = 0; i < S::stages; i++) {
        sl_mbar_wait(sl_tile_empty(smem, at.slot), at.parity);
        at.next();
    }
}

/* One lane. Weights need not wait for the previous kernels. */
template <class S>
static __device__ __forceinline__ void sl_tile_bring_w(const sl_lin &l, const sl_tile_plan &p,
                                                       const sl_tile_maps &maps, uint8_t *smem,
                                                       int first, int step, int rank)
{
    const int box0 = S::SHARE == SL_SHARE_W ? rank * S::own : 0;
    int from, to_k;
    sl_tile_range<S>(l, rank, &from, &to_k);
    sl_tile_place<S> at = {0, 1};
    for (int id = first; id < p.n_units; id += step) {
        sl_tile_unit u = sl_tile_find<S>(p, id, rank);
        const CUtensorMap *map[S::own];
        int32_t block[S::own];
#pragma unroll
        for (int i = 0; i < S::own; i++)
            map[i] = &maps.w[sl_tile_part<S>(l, u, box0 + i, &block[i])];
        for (int k = from; k < to_k; k += S::steps) {
            uint64_t *full = sl_tile_full(smem, at.slot);
            uint8_t *to = smem + SL_TILE_HEADER + at.slot * S::stage + S::steps * S::x_step +
                          box0 * S::BOX * 128;
            sl_mbar_wait(sl_tile_empty(smem, at.slot), at.parity);
            sl_mbar_expect_tx(full, S::steps * S::w_step);
#pragma unroll
            for (int s = 0; s < S::steps; s++)
#pragma unroll
                for (int i = 0; i < S::own; i++) {
                    uint8_t *box = to + s * S::w_step + i * S::BOX * 128;
                    if (S::SHARE == SL_SHARE_W)
                        sl_blocks_load_all(box, map[i], k + s, block[i], full, 3);
                    else
                        sl_blocks_load(box, map[i], k + s, block[i], full);
                }
            at.next();
        }
    }
    if (!S::joins)
        sl_tile_tail<S>(smem, at);
}

template <class S>
static __device__ __forceinline__ void sl_tile_bring_x(const sl_lin &l, const sl_tile_plan &p,
                                                       const CUtensorMap *map, uint8_t *smem,
                                                       int first, int step, int rank)
{
    const int token = S::SHARE == SL_SHARE_X ? rank * S::share : 0;
    int from, to_k;
    sl_tile_range<S>(l, rank, &from, &to_k);
    sl_tile_place<S> at = {0, 1};
    sl_prefetch_map(map);
    sl_tile_unit u = sl_tile_find<S>(p, first, rank);
    sl_grid_wait();
    for (int id = first; id < p.n_units;) {
        for (int k = from; k < to_k; k += S::steps) {
            uint64_t *full = sl_tile_full(smem, at.slot);
            uint8_t *to = smem + SL_TILE_HEADER + at.slot * S::stage + token * 128;
            sl_mbar_wait(sl_tile_empty(smem, at.slot), at.parity);
            sl_mbar_expect_tx(full, S::steps * S::x_step);
#pragma unroll
            for (int s = 0; s < S::steps; s++) {
                if (S::SHARE == SL_SHARE_X)
                    sl_tensor_load_all(to + s * S::x_step, map, (k + s) * 64, u.token0 + token,
                                       full, 3);
                else
                    sl_tensor_load(to + s * S::x_step, map, (k + s) * 64, u.token0, full);
            }
            at.next();
        }
        id += step;
        u = sl_tile_find<S>(p, id, rank);
    }
}

/* ------------------------------------------------------------------ consumers */

/* A consumer warp's view of the ring. */
template <class S> struct sl_tile_view {
    uint8_t *smem;
    sl_tile_place<S> at;
    int32_t oldest; /* the slot that is given back next */
    int32_t group, warp;
    uint32_t chunk; /* chunks that have left */
};

/* Gives back the oldest slot, whose products have ended, to the blocks that fill it. */
template <class S> static __device__ __forceinline__ void sl_tile_free(sl_tile_view<S> &v)
{
    uint64_t *bar = sl_tile_empty(v.smem, v.oldest);
    if (S::joins) {
        sl_mbar_arrive_warp(bar);
    } else {
        int lane = static_cast<int>(threadIdx.x % 32);
        __syncwarp();
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (SL_WARP_ARRIVALS > 1 || lane == r)
                sl_mbar_arrive_at(bar, static_cast<uint32_t>(r));
    }
    v.oldest = v.oldest + 1 == S::stages ? 0 : v.oldest + 1;
}

/* The products of a slot begin. */
template <class S>
static __device__ __forceinline__ void sl_tile_issue(float (&acc)[S::ROWS / 8][4],
                                                     sl_tile_view<S> &v)
{
    uint8_t *slot = v.smem + SL_TILE_HEADER + v.at.slot * S::stage;
    sl_mbar_wait(sl_tile_full(v.smem, v.at.slot), v.at.parity);
    sl_wgmma_fence();
#pragma unroll
    for (int s = 0; s < S::steps; s++) {
        auto x = sl_wgmma_b(slot + s * S::x_step + v.group * 8192);
        auto w = sl_wgmma_w(slot + S::steps * S::x_step + s * S::w_step);
#pragma unroll
        for (int j = 0; j < 4; j++)
            sl_wgmma_xw(acc, x + j * SL_WGMMA_B_K16, w + j * SL_WGMMA_W_K16);
    }
    sl_wgmma_commit();
    v.at.next();
}

/* The sums of n steps of 64 columns, or zeros. Beside the products of the first slots runs
 * beside(0), beside(1), .. beside(TIMES - 1), all of them whatever n is. */
template <class S, int TIMES, class F>
static __device__ __forceinline__ void sl_tile_walk(float (&acc)[S::ROWS / 8][4],
                                                    sl_tile_view<S> &v, int n, F beside)
{
#pragma unroll
    for (int i = 0; i < S::ROWS / 2; i++)
        acc[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int t = 0; t < TIMES; t++) {
        if (t * S::steps < n)
            sl_tile_issue<S>(acc, v);
        beside(t);
        if (t > 0 && t * S::steps < n) {
            sl_wgmma_wait<1>();
            sl_tile_free<S>(v);
        }
    }
#pragma unroll 1
    for (int k = TIMES * S::steps; k < n; k += S::steps) {
        sl_tile_issue<S>(acc, v);
        if (k > 0) {
            sl_wgmma_wait<1>();
            sl_tile_free<S>(v);
        }
    }
    sl_wgmma_wait<0>();
    sl_wgmma_keep(acc);
    if (n > 0)
        sl_tile_free<S>(v);
}

template <class S>
static __device__ __forceinline__ void sl_tile_walk(float (&acc)[S::ROWS / 8][4],
                                                    sl_tile_view<S> &v, int n)
{
    sl_tile_walk<S, 0>(acc, v, n, [](int) {});
}

/* ------------------------------------------------------------------ what leaves */

/* Sums of a warp: 16 tokens and 8 N rows. A lane has of token g = lane / 4 and g + 8 two rows of
 * each eight, from 2 (lane % 4) on. */

template <int N>
static __device__ __forceinline__ void sl_tile_bias(float (&v)[N][4], const sl_lin_part &part,
                                                    int row)
{
    row += 2 * static_cast<int>(threadIdx.x % 4);
    if (part.bias == nullptr)
        return;
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float b = row + 8 * i + e < part.n_rows ? part.bias[row + 8 * i + e] : 0.0f;
            v[i][e] = __fadd_rn(v[i][e], b);
            v[i][2 + e] = __fadd_rn(v[i][2 + e], b);
        }
}

/* Where p lies on this GPU (0), or on another one. */
template <typename T>
static __device__ __forceinline__ T *sl_tile_on(const sl_lin &l, T *p, int gpu)
{
    const int64_t away = gpu == 0 ? 0 : l.to_peer[gpu - 1];
    return reinterpret_cast<T *>(reinterpret_cast<uint8_t *>(p) + away);
}

/* token: of lanes 0 to 3. */
template <int N>
static __device__ __forceinline__ void sl_tile_put(const float (&v)[N][4], const sl_lin_part &part,
                                                   float *out, int n_tokens, int row, int token,
                                                   bool two)
{
    int lane = static_cast<int>(threadIdx.x % 32);
    row += 2 * (lane & 3), token += lane >> 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *at = out + (token + 8 * h) * part.ld_out + row;
        if (token + 8 * h >= n_tokens)
            continue;
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (two && row + 8 * i < part.n_rows) {
                *reinterpret_cast<float2 *>(at + 8 * i) = make_float2(v[i][2 * h], v[i][2 * h + 1]);
                continue;
            }
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (row + 8 * i + e < part.n_rows)
                    at[8 * i + e] = v[i][2 * h + e];
        }
    }
}

/* To a box of 64 tokens: [token][32 rows], 16-byte pieces at piece ^ (token % 8). Lanes of odd
 * tokens store other rows first, so that half a warp hits all banks. */
static __device__ __forceinline__ void sl_tile_fill(const float (&v)[4][4], uint8_t *box, int warp)
{
    int lane = static_cast<int>(threadIdx.x % 32), g = lane >> 2;
    bool odd = (g & 1) != 0;
    uint8_t *at = box + (16 * warp + g) * 128 + (lane & 1) * 8;
    int flip = (g ^ (odd ? 4 : 0)) ^ (lane >> 1 & 1);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *reinterpret_cast<float2 *>(at + h * 1024 + ((2 * i) ^ flip) * 16) = make_float2(
                odd ? v[i ^ 2][2 * h] : v[i][2 * h], odd ? v[i ^ 2][2 * h + 1] : v[i][2 * h + 1]);
}

/* The same of a gated product, bf16. */
static __device__ __forceinline__ void sl_tile_fill(const uint32_t (&v)[2][4], uint8_t *box,
                                                    int warp)
{
    int lane = static_cast<int>(threadIdx.x % 32);
    uint8_t *at = box + (16 * warp + (lane & 7)) * 64 + (lane >> 3) * 16;
#pragma unroll
    for (int h = 0; h < 2; h++)
        sl_stmatrix_x4(at + h * 512, v[h]);
}

/* A group's chunk, 32 rows from row on, leaves by the copy engine. */
template <class S, class V>
static __device__ __forceinline__ void sl_tile_store_box(const V &values, sl_tile_view<S> &v,
                                                         const sl_tile_maps &maps, int part,
                                                         int n_peers, int col, int token)
{
    bool first = threadIdx.x % 128 == 0;
    uint8_t *box = v.smem + S::out_offset +
                   (S::leave * v.group + static_cast<int>(v.chunk % S::leave)) * SL_TILE_BOX;
    if (first)
        sl_tensor_store_wait<S::leave - 1>(); /* what has been in the box has left */
    sl_bar_sync(2 + v.group, 128);
    sl_tile_fill(values, box, v.warp);
    sl_fence_proxy_async();
    sl_bar_sync(2 + v.group, 128);
    if (first) {
        sl_tensor_store(&maps.out[part], col, token, box);
#pragma unroll 1
        for (int i = 0; i < n_peers; i++)
            sl_tensor_store(&maps.peer[i], col, token, box);
        sl_tensor_store_commit();
    }
    v.chunk++;
}

/* A chunk of rows of a tile, from row `at` on. */
template <class S>
static __device__ __forceinline__ void sl_tile_store(const float (*sum)[4], const sl_lin &l,
                                                     const sl_tile_plan &p,
                                                     const sl_tile_maps &maps, sl_tile_view<S> &w,
                                                     const sl_tile_unit &u, int at, int token)
{
    constexpr int n = S::chunk / 8;
    int32_t block;
    int part = sl_tile_part<S>(l, u, at / S::BOX, &block);
    int row = block * SL_CUDA_ROW_BLOCK + at % S::BOX;
    float v[n][4];
#pragma unroll
    for (int i = 0; i < 4 * n; i++)
        v[i / 4][i % 4] = sum[i / 4][i % 4];
    sl_tile_bias<n>(v, l.part[part], row);
    if constexpr (S::out > 0) {
        if (p.boxes) {
            sl_tile_store_box<S>(v, w, maps, part, l.n_peers, row, token);
            return;
        }
    }
#pragma unroll 1
    for (int i = 0; i <= l.n_peers; i++)
        sl_tile_put<n>(v, l.part[part], sl_tile_on(l, l.part[part].out, i), l.n, row,
                       token + 16 * w.warp, p.two);
}

/* act(gate) * up of 32 rows, of token g and g + 8, two rows of each eight. */
static __device__ __forceinline__ void sl_tile_gate(uint32_t (&out)[2][4], const float (*gate)[4],
                                                    const float (*up)[4], enum sl_act act)
{
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[h][i] = sl_pack_bf16(__fmul_rn(sl_act(act, gate[i][2 * h]), up[i][2 * h]),
                                     __fmul_rn(sl_act(act, gate[i][2 * h + 1]), up[i][2 * h + 1]));
}

static __device__ __forceinline__ void sl_tile_put_gated(const uint32_t (&v)[2][4], const sl_lin &l,
                                                         __nv_bfloat16 *out, int row, int token,
                                                         bool two)
{
    int lane = static_cast<int>(threadIdx.x % 32), n_rows = l.part[0].n_rows;
    row += 2 * (lane & 3), token += lane >> 2;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int t = token + 8 * (i / 4), r = row + i % 4 * 8;
        __nv_bfloat16 *at = out + t * l.gated_ld + r;
        uint32_t pair = v[i / 4][i % 4];
        if (t >= l.n || r >= n_rows)
            continue;
        if (two) {
            *reinterpret_cast<uint32_t *>(at) = pair;
            continue;
        }
        at[0] = __ushort_as_bfloat16(static_cast<unsigned short>(pair));
        if (r + 1 < n_rows)
            at[1] = __ushort_as_bfloat16(static_cast<unsigned short>(pair >> 16));
    }
}

/* Chunk c of a gated product: 32 of gate's rows and of up's. */
template <class S>
static __device__ __forceinline__ void sl_tile_store_gated(
    const float (*gate)[4], const float (*up)[4], const sl_lin &l, const sl_tile_plan &p,
    const sl_tile_maps &maps, sl_tile_view<S> &w, const sl_tile_unit &u, int c, int token)
{
    int row = u.box0 * S::BOX + 32 * c;
    uint32_t v[2][4];
    sl_tile_gate(v, gate, up, l.act);
    if constexpr (S::out > 0) {
        if (p.boxes) {
            sl_tile_store_box<S>(v, w, maps, 0, l.n_peers, row / 4, token);
            return;
        }
    }
#pragma unroll 1
    for (int i = 0; i <= l.n_peers; i++)
        sl_tile_put_gated(v, l, sl_tile_on(l, l.gated_out, i), row, token + 16 * w.warp, p.two);
}

/* Chunk c of a tile leaves. */
template <class S>
static __device__ __forceinline__ void sl_tile_out(const float (&sum)[S::ROWS / 8][4],
                                                   const sl_lin &l, const sl_tile_plan &p,
                                                   const sl_tile_maps &maps, sl_tile_view<S> &v,
                                                   const sl_tile_unit &u, int c)
{
    int token = u.token0 + 64 * v.group;
    if (token >= l.n)
        return;
    if constexpr (S::GATED)
        sl_tile_store_gated<S>(&sum[4 * c], &sum[S::ROWS / 16 + 4 * c], l, p, maps, v, u, c, token);
    else
        sl_tile_store<S>(&sum[c * S::chunk / 8], l, p, maps, v, u, c * S::chunk, token);
}

/* ------------------------------------------------------------------ a tile of several blocks */

/* The blocks of a cluster have one tile, each its segments (which may be empty: zeros), and each
 * adds up and stores its share of the chunks. Sums that another block needs are stored to its
 * shared memory, a float4 of every thread one after the other, as soon as they are there: sets of
 * them, each with a barrier. */

static __device__ __forceinline__ uint64_t *sl_tile_come(uint8_t *smem, int set)
{
    return reinterpret_cast<uint64_t *>(smem) + 2 * SL_TILE_RING + set;
}

/* Where a thread's part of a set lies. */
template <class S> static __device__ __forceinline__ float4 *sl_tile_set(uint8_t *smem, int set)
{
    return reinterpret_cast<float4 *>(smem + S::out_offset + set * S::set) + threadIdx.x - 128;
}

/* Where eight rows, number i of a block's share, are in a tile's sums: in a gated product half of
 * them are gate's and half up's. */
template <class S> static __device__ __forceinline__ int sl_tile_own(int rank, int i)
{
    constexpr int n = S::ROWS / 8 / S::blocks;
    if (S::GATED)
        return i / (n / 2) * (S::ROWS / 16) + rank * (n / 2) + i % (n / 2);
    return rank * n + i;
}

/* N of the sums of block `to`, from number `first` on, become part of its set. */
template <class S, int N>
static __device__ __forceinline__ void sl_tile_send(const float (&sum)[S::ROWS / 8][4],
                                                    uint8_t *smem, int to, int set, int first)
{
#pragma unroll
    for (int i = first; i < first + N; i++) {
        const float(&v)[4] = sum[sl_tile_own<S>(to, i)];
        sl_store_at(sl_tile_set<S>(smem, set) + i * 128 * S::groups,
                    make_float4(v[0], v[1], v[2], v[3]), sl_tile_come(smem, set),
                    static_cast<uint32_t>(to));
    }
}

/* sum += a set. */
template <class S>
static __device__ __forceinline__ void sl_tile_add(float (&sum)[S::ROWS / 8 / S::blocks][4],
                                                   uint8_t *smem, int set)
{
    const float4 *from = sl_tile_set<S>(smem, set);
    sl_mbar_wait(sl_tile_come(smem, set), 0);
#pragma unroll
    for (int i = 0; i < S::ROWS / 8 / S::blocks; i++) {
        float4 q = from[i * 128 * S::groups];
        sum[i][0] = __fadd_rn(sum[i][0], q.x), sum[i][1] = __fadd_rn(sum[i][1], q.y);
        sum[i][2] = __fadd_rn(sum[i][2], q.z), sum[i][3] = __fadd_rn(sum[i][3], q.w);
    }
}

/* The same of this block's own sums. */
template <class S>
static __device__ __forceinline__ void sl_tile_add(float (&sum)[S::ROWS / 8 / S::blocks][4],
                                                   const float (&own)[S::ROWS / 8][4], int rank)
{
#pragma unroll
    for (int i = 0; i < S::ROWS / 2 / S::blocks; i++)
        sum[i / 4][i % 4] = __fadd_rn(sum[i / 4][i % 4], own[sl_tile_own<S>(rank, i / 4)][i % 4]);
}

/* What is added up leaves. */
template <class S>
static __device__ __forceinline__ void sl_tile_share_out(
    const float (&sum)[S::ROWS / 8 / S::blocks][4], const sl_lin &l, const sl_tile_plan &p,
    const sl_tile_maps &maps, sl_tile_view<S> &v, const sl_tile_unit &u, int rank)
{
    constexpr int n = S::chunks / S::blocks, groups = S::chunk / 8;
    int token = u.token0 + 64 * v.group;
    if (token >= l.n)
        return;
#pragma unroll
    for (int c = 0; c < n; c++) {
        if constexpr (S::GATED)
            sl_tile_store_gated<S>(&sum[c * groups], &sum[(n + c) * groups], l, p, maps, v, u,
                                   rank * n + c, token);
        else
            sl_tile_store<S>(&sum[c * groups], l, p, maps, v, u, (rank * n + c) * S::chunk, token);
    }
}

/* Of two blocks the first has segments 0 and 1, the second 2 and 3. */
template <class S>
static __device__ __forceinline__ void sl_tile_join(const sl_lin &l, const sl_tile_plan &p,
                                                    const sl_tile_maps &maps, sl_tile_view<S> &v,
                                                    int rank)
{
    constexpr int half = S::ROWS / 16, parts = 2;
    sl_tile_unit u = sl_tile_find<S>(p, static_cast<int>(blockIdx.x) / 2, rank);
    int from_k, to_k;
    sl_tile_range<S>(l, rank, &from_k, &to_k);
    float first[2 * half][4], second[2 * half][4], sum[half][4] = {};
    int n = to_k - from_k;
    sl_tile_walk<S>(first, v, min(l.seg_k64, n));
    sl_cluster_wait(); /* the other's barriers are ready */
    if (rank == 0) {
        sl_tile_walk<S>(second, v, n - min(l.seg_k64, n));
#pragma unroll
        for (int i = 0; i < 8 * half; i++)
            first[i / 4][i % 4] = __fadd_rn(first[i / 4][i % 4], second[i / 4][i % 4]);
        sl_tile_send<S, half>(first, v.smem, 1, 0, 0);
        sl_tile_add<S>(sum, first, 0);
        sl_tile_add<S>(sum, v.smem, 0);
        sl_tile_add<S>(sum, v.smem, 1);
    } else {
        sl_tile_walk<S, parts>(second, v, n - min(l.seg_k64, n), [&](int c) {
            sl_tile_send<S, half / parts>(first, v.smem, 0, 0, c * (half / parts));
        });
        sl_tile_send<S, half>(second, v.smem, 0, 1, 0);
        sl_tile_add<S>(sum, v.smem, 0);
        sl_tile_add<S>(sum, first, 1);
        sl_tile_add<S>(sum, second, 1);
    }
    sl_tile_share_out<S>(sum, l, p, maps, v, u, rank);
}

/* Of four blocks each has a segment. */
template <class S>
static __device__ __forceinline__ void sl_tile_join_four(const sl_lin &l, const sl_tile_plan &p,
                                                         const sl_tile_maps &maps,
                                                         sl_tile_view<S> &v, int rank)
{
    constexpr int quarter = S::ROWS / 32;
    sl_tile_unit u = sl_tile_find<S>(p, static_cast<int>(blockIdx.x) / 4, rank);
    int from_k, to_k;
    sl_tile_range<S>(l, rank, &from_k, &to_k);
    float acc[S::ROWS / 8][4], sum[quarter][4] = {};
    sl_tile_walk<S>(acc, v, to_k - from_k);
    sl_cluster_wait(); /* the others' barriers are ready */
#pragma unroll
    for (int r = 0; r < 4; r++)
        if (r != rank)
            sl_tile_send<S, quarter>(acc, v.smem, r, rank < r ? rank : rank - 1, 0);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        if (r != rank) {
            sl_tile_add<S>(sum, v.smem, r < rank ? r : r - 1);
            continue;
        }
#pragma unroll
        for (int q = 0; q < 4; q++)
            if (q == rank)
                sl_tile_add<S>(sum, acc, q);
    }
    sl_tile_share_out<S>(sum, l, p, maps, v, u, rank);
}

/* ------------------------------------------------------------------ the kernel */

/* Tile after tile. Chunks from S::now on leave beside the first products of the next tile, those
 * before as soon as they are there. */
template <class S>
static __device__ __forceinline__ void sl_tile_consume(const sl_lin &l, const sl_tile_plan &p,
                                                       const sl_tile_maps &maps, sl_tile_view<S> &v,
                                                       int first, int step, int rank)
{
    float acc[S::ROWS / 8][4], sum[S::ROWS / 8][4];
    sl_tile_unit last = {0, l.n}; /* nothing to leave */
    for (int id = first;; id += step) {
        sl_tile_unit u = sl_tile_find<S>(p, id, rank);
        int32_t n = id < p.n_units ? l.n_k64 : 0, block;
        int seg = l.part[sl_tile_part<S>(l, u, 0, &block)].seg_k64;
        sl_tile_walk<S, S::chunks - S::now>(acc, v, min(seg, n), [&](int c) {
            sl_tile_out<S>(sum, l, p, maps, v, last, S::now + c);
        });
        if (n == 0)
            break;
#pragma unroll
        for (int c = 0; c < S::now; c++)
            sl_tile_out<S>(acc, l, p, maps, v, u, c);
#pragma unroll
        for (int i = 0; i < S::ROWS / 2; i++)
            sum[i / 4][i % 4] = acc[i / 4][i % 4];
#pragma unroll 1
        for (int k = seg; S::TOTALS && k < n; k += seg) {
            sl_tile_walk<S>(acc, v, min(seg, n - k));
#pragma unroll
            for (int i = 0; i < S::ROWS / 2; i++)
                sum[i / 4][i % 4] = __fadd_rn(sum[i / 4][i % 4], acc[i / 4][i % 4]);
        }
        last = u;
    }
}

/* A lane of each warp makes some barriers ready: a warp's lanes do so one after another, and all of
 * them by one warp take 1,700 clocks from a block's start (H200). */
template <class S> static __device__ __forceinline__ void sl_tile_init(uint8_t *smem, int rank)
{
    constexpr int warps = S::threads / 32, readers = (S::joins ? 4 : 8) * S::groups;
    const int sets = !S::joins ? 0 : S::SHARE == SL_SHARE_QUARTERS ? 3 : 2 - rank;
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int first = threadIdx.x % 32 == 0 ? warp : SL_TILE_RING;
#pragma unroll 1
    for (int i = first; i < S::stages; i += warps) {
        sl_mbar_init(sl_tile_full(smem, i), 2);
        sl_mbar_init(sl_tile_empty(smem, i), readers * SL_WARP_ARRIVALS);
    }
#pragma unroll 1
    for (int i = first; i < sets; i += warps) {
        sl_mbar_init(sl_tile_come(smem, i), 1);
        sl_mbar_expect_tx(sl_tile_come(smem, i), S::set);
    }
    sl_mbar_fence_init();
}

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    sl_tile_kernel(const __grid_constant__ sl_lin l, const __grid_constant__ sl_tile_plan p,
                   const __grid_constant__ sl_tile_maps maps)
{
    SL_SMEM(uint8_t, smem);
    int rank = static_cast<int>(sl_cluster_rank());
    int first = static_cast<int>(blockIdx.x) / S::blocks;
    int step = static_cast<int>(gridDim.x) / S::blocks;
    sl_tile_init<S>(smem, rank);
    sl_cluster_arrive();
    __syncthreads();
    if (!S::joins && (S::SHARE == SL_SHARE_W || threadIdx.x >= 32))
        sl_cluster_wait(); /* the partner's barriers are ready */
    sl_grid_launch_dependents();
    /* The same in all lanes, as the compiler shall see: products do not run in divergent code. */
    if (__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) == 0) {
        if (S::groups > 1)
            sl_regs_give<24>();
        if (threadIdx.x < 32) {
            if (threadIdx.x == 0)
                sl_tile_bring_w<S>(l, p, maps, smem, first, step, rank);
            sl_grid_wait();
        } else if (threadIdx.x == 32) {
            sl_tile_bring_x<S>(l, p, &maps.x, smem, first, step, rank);
        } else {
            if (threadIdx.x == 64)
                for (int i = 0; p.boxes && i < (S::GATED ? 1 : l.n_parts); i++)
                    sl_prefetch_map(&maps.out[i]);
            sl_grid_wait();
        }
        if (S::joins || (S::SHARE == SL_SHARE_X && threadIdx.x < 32))
            sl_cluster_wait(); /* all of a cluster's threads do */
    } else {
        if (S::groups > 1)
            sl_regs_take<240>();
        sl_grid_wait();
        sl_tile_view<S> v = {};
        v.smem = smem;
        v.group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) - 1;
        v.warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32 % 4), 0);
        if constexpr (S::SHARE == SL_SHARE_QUARTERS)
            sl_tile_join_four<S>(l, p, maps, v, rank);
        else if constexpr (S::joins)
            sl_tile_join<S>(l, p, maps, v, rank);
        else
            sl_tile_consume<S>(l, p, maps, v, first, step, rank);
        if (p.boxes && threadIdx.x % 128 == 0) {
            if (l.n_peers > 0)
                sl_tensor_store_wait_all(); /* others are told that it is there */
            else
                sl_tensor_store_wait<0>(); /* the end of the grid waits for what they write */
        }
    }
}

/* ------------------------------------------------------------------ host */

/* Whether a thread can store two rows at once. */
static inline bool sl_tile_two(const sl_lin &l)
{
    if (l.gated)
        return reinterpret_cast<uintptr_t>(l.gated_out) % 4 == 0 && l.part[0].n_rows % 2 == 0 &&
               l.gated_ld % 2 == 0;
    bool can = true;
    for (int i = 0; i < l.n_parts; i++)
        can = can && reinterpret_cast<uintptr_t>(l.part[i].out) % 8 == 0 &&
              l.part[i].ld_out % 2 == 0 && l.part[i].n_rows % 2 == 0;
    return can;
}

static inline uint8_t *sl_tile_place_on(const sl_lin &l, void *p, int gpu)
{
    return static_cast<uint8_t *>(p) + (gpu == 0 ? 0 : l.to_peer[gpu - 1]);
}

template <class S>
static inline cudaError_t sl_tile_describe(sl_tile_maps *maps, const sl_lin &l,
                                           const sl_tile_plan &p)
{
    cudaError_t e = sl_tensor_map(&maps->x, l.x, l.n, l.k, l.ld_x, S::share);
    for (int i = 0; i < l.n_parts && e == cudaSuccess; i++) {
        const sl_lin_part &a = l.part[i];
        e = sl_tensor_map_blocks(&maps->w[i], a.w, a.n_blocks, l.n_k64, sl_wf_bf16::unit_bytes,
                                 S::BOX / SL_CUDA_ROW_BLOCK);
        if (e == cudaSuccess && p.boxes && !S::GATED)
            e = sl_tensor_map_float(&maps->out[i], a.out, l.n, a.n_rows, a.ld_out, 64);
    }
    for (int i = 0; e == cudaSuccess && p.boxes && S::GATED && i <= l.n_peers; i++)
        e = sl_tensor_map_units(i == 0 ? &maps->out[0] : &maps->peer[i - 1],
                                sl_tile_place_on(l, l.gated_out, i), l.n, l.part[0].n_rows / 32,
                                2 * l.gated_ld, 64, 64);
    for (int i = 1; e == cudaSuccess && p.boxes && !S::GATED && i <= l.n_peers; i++)
        e = sl_tensor_map_float(&maps->peer[i - 1], sl_tile_place_on(l, l.part[0].out, i), l.n,
                                l.part[0].n_rows, l.part[0].ld_out, 64);
    return e;
}

/* Numbers the boxes of all parts, and returns how many they are. A tile has rows of parts with the
 * same segments. */
template <class S> static inline int sl_tile_number(sl_lin *l)
{
    int n = 0;
    for (int i = 0; i < (S::GATED ? 1 : l->n_parts); i++) {
        if (i > 0 && l->part[i].seg_k64 != l->part[i - 1].seg_k64)
            n = SL_ROUND_UP(n, S::tile_boxes);
        l->part[i].first = n;
        n += SL_CEIL_DIV(l->part[i].n_blocks, S::BOX / SL_CUDA_ROW_BLOCK);
    }
    return n;
}

template <class S> static void sl_tile_launch(struct sl_cuda *cu, const sl_lin *given)
{
    sl_lin l = *given;
    sl_tile_plan p = {};
    int rows = SL_CEIL_DIV(sl_tile_number<S>(&l), S::tile_boxes);
    int cols = SL_CEIL_DIV(l.n, S::TOKENS);
    p.n_rows = S::SHARE == SL_SHARE_X ? SL_CEIL_DIV(rows, 2) : rows;
    p.n_cols = S::SHARE == SL_SHARE_W ? SL_CEIL_DIV(cols, 2) : cols;
    p.n_units = p.n_rows * p.n_cols;
    p.boxes = S::out > 0 && sl_lin_boxes(l, 32);
    p.two = sl_tile_two(l);
    SL_ASSERT(l.vec_x && l.gated == S::GATED && (S::TOTALS || l.n_segs == 1));
    sl_tile_maps maps = {};
    sl_cuda_check(cu, sl_tile_describe<S>(&maps, l, p), "cuTensorMapEncodeTiled");
    int most = S::joins ? p.n_units : SL_MAX(cu->n_sms / 2, 1);
    unsigned grid = S::blocks * (unsigned)SL_MIN(p.n_units, most);
    sl_launch_cluster(cu, sl_tile_kernel<S>, dim3(grid), dim3(S::threads), S::smem, S::blocks, l, p,
                      maps);
}

#endif
