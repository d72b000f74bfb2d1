/* SPDX-License-Identifier: MIT
 * linear_tile.cuh - products of many tokens: tiles of rows x tokens, steps of 64 columns.
 *
 * WM x WN warps, each MI row blocks x NI columns of eight tokens; two shapes:
 *   tile256  128 rows x 256 tokens, 8 warps of 64 x 64, one block a multiprocessor
 *   tile64    64 rows x  64 tokens, 4 warps of 32 x 32, three blocks a multiprocessor
 * Four stages in shared memory. Weights come by bulk copies, a unit of every row block at a time,
 * as they are packed: A fragments are 16-byte loads without bank conflicts. Coded weights are
 * decoded once per block, a step ahead, into two buffers in the same order as bf16; decoding in
 * every warp would cost the WN warps that share rows four (two) times the instructions. Activations
 * come by cp.async, [token][64], 16-byte pieces at piece ^ (token % 8), and are read as B fragments
 * by ldmatrix, conflict-free. One barrier a step. Tiles are numbered in groups of 8 columns of
 * tokens, rows slower, so that what runs at the same time shares rows and tokens in L2.
 *
 * In a gated product the even row blocks of a tile are gate's and the odd ones up's, so that a
 * thread has both sums of an output and no exchange is needed.
 *
 * ptxas (13.0, sm_90a): tile256 239 to 248 registers, tile64 72 to 90, no spills; shared memory
 * 192 KB (bf16) to 214 KB (q6_k), tile64 64 to 75 KB.
 *
 * Everything below is PREDICTED, for an H200. tile256, bf16, a step and block: 48 KB from L2 (16
 * weights, 32 activations) for 2 x 128 x 256 x 64 = 4.2 MFLOP. If mma.sync runs at 62 % of wgmma's
 * 4096 FLOP a clock that is 1650 clocks; L2 gives 29 bytes a clock and multiprocessor (limit about
 * 42), shared memory is busy 1024 clocks with reads (4 KB a warp and k16) and 400 with writes.
 * 8192^3 in bf16: 450 to 550 TFLOP/s, 45 to 55 % of 989; coded formats 10 to 20 % less, as decoding
 * is 150 to 200 instructions a warp and step beside 128 mma and 48 loads. tile64 asks L2 for 16 KB
 * per 0.5 MFLOP and shared memory for 16 clocks per 13 of mma: 250 to 300 TFLOP/s, and is for what
 * leaves tile256 idle multiprocessors.
 */
#ifndef SL_CUDA_LINEAR_TILE_CUH
#define SL_CUDA_LINEAR_TILE_CUH

#include "cuda/launch.cuh"
#include "cuda/linear_store.cuh"
#include "cuda/weight_format.cuh"

#define SL_TILE_STAGES 4
#define SL_TILE_GROUP  8 /* columns of tokens of a raster group */

template <class F, int MI, int NI, int WM, int WN> struct sl_tile_shape {
    static constexpr int threads = 32 * WM * WN;
    static constexpr int blocks = MI * WM; /* row blocks */
    static constexpr int tokens = 8 * NI * WN;
    static constexpr int subs = F::unit_k / 64; /* steps of a unit */
    /* Units in flight: a step's own, or this one and the next. */
    static constexpr int units = subs == 1 ? SL_TILE_STAGES : 2;
    static constexpr int unit_slot = blocks * F::unit_bytes;
    static constexpr int x_slot = tokens * 128;
    static constexpr int decoded_slot = blocks * 2048;
    static constexpr int bars = 128; /* bytes */
    static constexpr int x_offset = units * unit_slot + (F::coded ? 2 * decoded_slot : 0);
    static constexpr int bar_offset = x_offset + SL_TILE_STAGES * x_slot;
    static constexpr int smem = bar_offset + bars;
    static_assert(MI % 2 == 0 && NI % 2 == 0, "pairs of gate and up, pairs of ldmatrix");
    static_assert(unit_slot % 128 == 0 && smem <= 232448, "shared memory");
};

struct sl_tile_place {
    const sl_lin_part *part; /* gated: of gate */
    int32_t block0;          /* first row block, gated: of each of the two */
    int32_t token0;
};

/* Row block i of the tile: the part and its row block; false behind the end. */
static __device__ __forceinline__ bool sl_tile_block(const sl_lin &l, const sl_tile_place &at,
                                                     int i, const sl_lin_part **part,
                                                     int32_t *block)
{
    *part = l.gated ? &l.part[i & 1] : at.part;
    *block = at.block0 + (l.gated ? i >> 1 : i);
    return *block < (*part)->n_blocks;
}

/* Warp 0 fetches unit u of all row blocks. Those behind the end keep whatever lies there: it
 * reaches only rows that nobody stores. */
template <class S, class F>
static __device__ __forceinline__ void sl_tile_fetch_w(const sl_lin &l, const sl_tile_place &at,
                                                       uint8_t *smem, uint64_t *full, int u)
{
    if (threadIdx.x >= 32)
        return;
    int lane = static_cast<int>(threadIdx.x), slot = u % S::units;
    const sl_lin_part *part;
    int32_t block;
    bool live = lane < S::blocks && sl_tile_block(l, at, lane, &part, &block);
    int n = __popc(__ballot_sync(0xffffffffu, live));
    if (lane == 0)
        sl_mbar_expect_tx(&full[slot], static_cast<uint32_t>(n * F::unit_bytes));
    __syncwarp();
    if (!live)
        return;
    int64_t n_units = l.n_k64 / S::subs;
    sl_bulk_load(smem + slot * S::unit_slot + lane * F::unit_bytes,
                 part->w + (block * n_units + u) * F::unit_bytes, F::unit_bytes, &full[slot]);
}

/* 64 columns of the tile's tokens; zeros behind the last token and the last column. */
template <class S>
static __device__ __forceinline__ void sl_tile_fetch_x(const sl_lin &l, const sl_tile_place &at,
                                                       uint8_t *smem, int step)
{
    uint8_t *slot = smem + S::x_offset + step % SL_TILE_STAGES * S::x_slot;
#pragma unroll
    for (int i = 0; i < S::tokens * 8 / S::threads; i++) {
        int piece = static_cast<int>(threadIdx.x) + i * S::threads, row = piece >> 3;
        int col = step * 64 + (piece & 7) * 8, token = at.token0 + row;
        uint8_t *dst = slot + row * 128 + (((piece & 7) ^ (row & 7)) << 4);
        bool live = token < l.n && col < l.k;
        const __nv_bfloat16 *src = l.x + (live ? token * l.ld_x + col : 0);
        if (l.vec_x && (col + 8 <= l.k || !live)) {
            sl_cp_async16(dst, src, live);
        } else { /* odd rows, or the piece that K ends in */
            __nv_bfloat16 *to = reinterpret_cast<__nv_bfloat16 *>(dst);
            for (int e = 0; e < 8; e++)
                to[e] = live && col + e < l.k ? src[e] : __float2bfloat16_rn(0.0f);
        }
    }
}

/* Waits for the weights of a step and decodes them to bf16, a warp one row block after another. */
template <class S, class F>
static __device__ __forceinline__ void sl_tile_decode(uint8_t *smem, uint64_t *full, int step)
{
    int unit = step / S::subs, slot = unit % S::units;
    int lane = static_cast<int>(threadIdx.x % 32);
    sl_mbar_wait(&full[slot], static_cast<uint32_t>(unit / S::units & 1));
    uint8_t *out = smem + S::units * S::unit_slot + (step & 1) * S::decoded_slot;
    for (int b = static_cast<int>(threadIdx.x / 32); b < S::blocks; b += S::threads / 32) {
        typename F::raw raw;
        F::load(raw, smem + slot * S::unit_slot + b * F::unit_bytes, step % S::subs, lane);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t a[4];
            F::frag(raw, j, a);
            *reinterpret_cast<uint4 *>(out + b * 2048 + j * 512 + lane * 16) =
                make_uint4(a[0], a[1], a[2], a[3]);
        }
    }
}

/* The products of a step. w: the warp's first row block of bf16 fragments; x: the stage. */
template <int MI, int NI>
static __device__ __forceinline__ void sl_tile_step(float (&acc)[MI][NI][4], const uint8_t *w,
                                                    const uint8_t *x)
{
    int lane = static_cast<int>(threadIdx.x % 32);
    /* ldmatrix: lanes 0..7 and 8..15 tokens 0..7 with columns 0..7 and 8..15, then tokens 8..15 */
    const uint8_t *rows = x + ((lane & 7) + (lane >> 4 << 3)) * 128;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint4 a[MI];
        uint32_t b[NI / 2][4];
#pragma unroll
        for (int i = 0; i < MI; i++)
            a[i] = sl_load16(w + i * 2048 + j * 512 + lane * 16);
        int piece = ((2 * j + (lane >> 3 & 1)) ^ (lane & 7)) << 4;
#pragma unroll
        for (int i = 0; i < NI / 2; i++)
            sl_ldmatrix_x4(b[i], rows + i * 2048 + piece);
#pragma unroll
        for (int i = 0; i < MI; i++) {
            uint32_t av[4] = {a[i].x, a[i].y, a[i].z, a[i].w};
#pragma unroll
            for (int c = 0; c < NI; c++)
                sl_mma_bf16(acc[i][c], av, b[c >> 1] + 2 * (c & 1));
        }
    }
}

/* Tile of this block; n_cols: columns of tokens. */
static __device__ __forceinline__ sl_tile_place sl_tile_find(const sl_lin &l, int n_tiles,
                                                             int n_cols, int blocks, int tokens)
{
    int id = static_cast<int>(blockIdx.x), per_group = SL_TILE_GROUP * n_tiles;
    int group = id / per_group, in = id % per_group;
    int width = min(SL_TILE_GROUP, n_cols - group * SL_TILE_GROUP);
    int tile = in / width, p = 0;
    while (!l.gated && p + 1 < l.n_parts && tile >= l.part[p + 1].first)
        p++;
    sl_tile_place at;
    at.part = &l.part[p];
    at.block0 = (tile - l.part[p].first) * (l.gated ? blocks / 2 : blocks);
    at.token0 = (group * SL_TILE_GROUP + in % width) * tokens;
    return at;
}

template <class F, int MI, int NI, int WM, int WN>
__global__ void __launch_bounds__(32 * WM * WN)
    sl_tile_kernel(const __grid_constant__ sl_lin l, int n_tiles, int n_cols)
{
    typedef sl_tile_shape<F, MI, NI, WM, WN> S;
    SL_SMEM(uint8_t, smem);
    uint64_t *full = reinterpret_cast<uint64_t *>(smem + S::bar_offset);
    int warp = static_cast<int>(threadIdx.x / 32), wm = warp / WN, wn = warp % WN;
    sl_tile_place at = sl_tile_find(l, n_tiles, n_cols, S::blocks, S::tokens);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::units; i++)
            sl_mbar_init(&full[i], 1);
        sl_mbar_fence_init();
    }
    __syncthreads();
    constexpr int ahead = SL_TILE_STAGES - 1;
    for (int s = 0; s < ahead && s < l.n_k64; s += S::subs)
        sl_tile_fetch_w<S, F>(l, at, smem, full, s / S::subs);
    sl_grid_wait();
    for (int s = 0; s < ahead; s++) {
        if (s < l.n_k64)
            sl_tile_fetch_x<S>(l, at, smem, s);
        sl_cp_async_commit();
    }
    float acc[MI][NI][4] = {};
    if (F::coded)
        sl_tile_decode<S, F>(smem, full, 0);
    for (int s = 0; s < l.n_k64; s++) {
        if (!F::coded)
            sl_mbar_wait(&full[s % S::units], static_cast<uint32_t>(s / S::units & 1));
        sl_cp_async_wait<ahead - 1>();
        __syncthreads(); /* step s is here for all, and all are done with step s - 1 */
        int next = s + ahead;
        if (next < l.n_k64) {
            if (next % S::subs == 0)
                sl_tile_fetch_w<S, F>(l, at, smem, full, next / S::subs);
            sl_tile_fetch_x<S>(l, at, smem, next);
        }
        sl_cp_async_commit();
        if (F::coded && s + 1 < l.n_k64)
            sl_tile_decode<S, F>(smem, full, s + 1);
        const uint8_t *w = F::coded ? smem + S::units * S::unit_slot + (s & 1) * S::decoded_slot
                                    : smem + s % S::units * S::unit_slot;
        sl_tile_step<MI, NI>(acc, w + wm * MI * 2048,
                             smem + S::x_offset + s % SL_TILE_STAGES * S::x_slot + wn * NI * 1024);
    }
    sl_grid_launch_dependents();
    int token0 = at.token0 + wn * NI * 8;
#pragma unroll
    for (int i = 0; i < MI; i++) {
        const sl_lin_part *part;
        int32_t block;
        if (!sl_tile_block(l, at, wm * MI + i, &part, &block))
            continue;
        if (!l.gated) {
            sl_lin_store_part<NI>(acc[i], l, *part, block, token0);
        } else if (i % 2 == 0) {
#pragma unroll
            for (int e = 0; e < NI * 4; e++)
                acc[i][e / 4][e % 4] =
                    __fmul_rn(sl_act(l.act, acc[i][e / 4][e % 4]), acc[i | 1][e / 4][e % 4]);
            sl_lin_store_gated<NI>(acc[i], l, block, token0);
        }
    }
}

template <class F, int MI, int NI, int WM, int WN>
static void sl_tile_launch(struct sl_cuda *cu, const sl_lin *given)
{
    typedef sl_tile_shape<F, MI, NI, WM, WN> S;
    sl_lin l = *given;
    int n_tiles = 0;
    for (int i = 0; i < (l.gated ? 1 : l.n_parts); i++) {
        l.part[i].first = n_tiles;
        n_tiles += SL_CEIL_DIV(l.part[i].n_blocks, l.gated ? S::blocks / 2 : S::blocks);
    }
    int n_cols = SL_CEIL_DIV(l.n, S::tokens);
    sl_launch(cu, sl_tile_kernel<F, MI, NI, WM, WN>, dim3((unsigned)(n_tiles * n_cols)),
              dim3(S::threads), S::smem, l, n_tiles, n_cols);
}

#endif
