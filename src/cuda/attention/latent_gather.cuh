/* SPDX-License-Identifier: MIT
 * latent_gather.cuh - latent attention whose keys are loaded row by row: those that an index has
 * chosen for a token, or pages of FP8, whose codes are no operands yet. What multiplies is
 * latent.cuh's, and so are the bits.
 *
 * All four warps of the first group load: each has half of a tile's dimensions of half of its rows.
 * A lane knows where a row lies. Positions come two tiles ahead and their pages one, so that a tile
 * waits for its rows alone, and these come while the tile before is finished. BF16 and F16 go from
 * L2 to their place in shared memory by cp.async, a line of 128 bytes by eight lanes. Codes of FP8
 * go to where the numbers of the same row will be. Each lane takes 16 of them, and when all of the
 * row are in registers its numbers are stored: so no room is wanted besides.
 *
 * Bytes: a tile of 64 rows of 576 values is 73.7 KB in BF16 and 37 KB in FP8, of which tiles of the
 * same token's other heads find most in L2. In FP8 a row is 20 + 16 pieces of a lane, some 45
 * instructions each: 64 rows take each of the four schedulers about 1,000 clk beside the 2,176 clk
 * of the products.
 */
#ifndef SL_CUDA_LATENT_GATHER_CUH
#define SL_CUDA_LATENT_GATHER_CUH

#include "cuda/attention/latent.cuh"
#include "cuda/ptx_ahead.cuh"

#define SL_GATHER_WARPS 2 /* that load half of a tile's dimensions */

/* Registers of a thread that loads, and of one that multiplies. Together no more than the block was
 * launched with: who takes waits for what others give. */
#define SL_GATHER_REGS     40
#define SL_GATHER_MUL_REGS 232
#define SL_GATHER_LAUNCHED (65536 / (128 + SL_LATENT_WORKERS) / 8 * 8)
static_assert(128 * SL_GATHER_REGS + SL_LATENT_WORKERS * SL_GATHER_MUL_REGS <=
                  (128 + SL_LATENT_WORKERS) * SL_GATHER_LAUNCHED,
              "registers of a block");

/* What pages are multiplied as. */
template <class KV> struct sl_gather_mul {
    typedef KV type;
};
template <> struct sl_gather_mul<struct sl_kv_fp8> {
    typedef struct sl_kv_bf16 type;
};

/* ---------------------------------------------------------------- rows to shared memory */

/* Of a row: where it lies behind the plane's begin, a multiple of 16, and below that its place in
 * its 16. */
typedef unsigned long long sl_gather_place;
#define SL_GATHER_NOWHERE (~0ull)

static __device__ __forceinline__ sl_gather_place sl_gather_from(sl_gather_place place, int lane)
{
    const unsigned lo = __shfl_sync(0xFFFFFFFFu, static_cast<unsigned>(place), lane);
    const unsigned hi = __shfl_sync(0xFFFFFFFFu, static_cast<unsigned>(place >> 32), lane);
    return static_cast<unsigned long long>(hi) << 32 | lo;
}

/* 32 rows, from `first` on, of a slot; dimensions of panels FROM .. TO - 1. A warp calls begin,
 * waits for its copies, and calls end with what begin gave. dim: of a row, padded. WHOLE: all rows
 * are there and as wide as ours. */
template <class KV, class cfg, int FROM, int TO> struct sl_gather_rows {
    template <bool WHOLE>
    static __device__ __forceinline__ uint32_t begin(const uint8_t *keys, sl_gather_place place,
                                                     int dim, uint8_t *slot, int first)
    {
        const int lane = static_cast<int>(threadIdx.x) & 31, bytes = KV::row_bytes(dim);
#pragma unroll 2
        for (int i = 0; i < 32; i += 4) {
            const sl_gather_place at = sl_gather_from(place, i + lane / 8);
            const int in_tile = static_cast<int>(at & 15), row = first + i + lane / 8;
            const uint8_t *from = keys + (at - static_cast<unsigned>(in_tile));
            uint8_t *to = slot + row * 128 + ((lane ^ row) & 7) * 16;
#pragma unroll
            for (int p = FROM; p < TO; p++) {
                const int piece = p * 8 + (lane & 7);
                const bool there = WHOLE || (at != SL_GATHER_NOWHERE && piece * 16 < bytes);
                sl_cp_async16(to + p * cfg::PANEL,
                              there ? from + sl_kv_piece(bytes, in_tile, piece) : keys, there);
            }
        }
        return 0;
    }
    static __device__ __forceinline__ void end(uint32_t, uint8_t *, int)
    {
    }
    static __device__ __forceinline__ void ask(const uint8_t *, sl_gather_place, int)
    {
    }
};

/* FP8, panels at once: AT_ONCE from FROM on, a lane for 16 dimensions. */
template <class cfg, int FROM, int AT_ONCE> struct sl_gather_codes {
    static constexpr int LANES = 4 * AT_ONCE; /* of a row */
    static constexpr int ROWS = 32 / LANES;

    /* Where the lane's codes of a row wait: a lane reads those that it has copied. */
    static __device__ __forceinline__ uint8_t *waits(uint8_t *slot, int row, int lane)
    {
        const int i = lane % LANES;
        return slot + (FROM + i / 8) * cfg::PANEL + row * 128 + i % 8 * 16;
    }
    template <bool WHOLE>
    static __device__ __forceinline__ void begin(const uint8_t *keys, sl_gather_place place,
                                                 int dim, uint8_t *slot, int first)
    {
        const int lane = static_cast<int>(threadIdx.x) & 31, piece = FROM * 4 + lane % LANES;
#pragma unroll 2
        for (int i = 0; i < 32; i += ROWS) {
            const sl_gather_place at = sl_gather_from(place, i + lane / LANES);
            const int in_tile = static_cast<int>(at & 15);
            const bool there = WHOLE || (at != SL_GATHER_NOWHERE && piece * 16 < dim);
            sl_cp_async16(waits(slot, first + i + lane / LANES, lane),
                          there ? keys + (at - static_cast<unsigned>(in_tile)) +
                                      sl_kv_piece(dim, in_tile, piece)
                                : keys,
                          there);
        }
    }
    /* mine: the scale of the lane's row. Of eight lanes whose stores are made at once four
     * begin with the first and four with the second half, which are in different banks. */
    static __device__ __forceinline__ void end(uint32_t mine, uint8_t *slot, int first)
    {
        const int lane = static_cast<int>(threadIdx.x) & 31;
        const int panel = FROM + lane % LANES / 4, half = lane % LANES / 4 & 1;
        const int piece = lane % 4 * 2 + half;
#pragma unroll 2
        for (int i = 0; i < 32; i += ROWS) {
            const int row = first + i + lane / LANES;
            const uint4 codes = *reinterpret_cast<const uint4 *>(waits(slot, row, lane));
            const uint32_t one = __shfl_sync(0xFFFFFFFFu, mine, i + lane / LANES);
            const uint32_t scale = __byte_perm(one, one, 0x1010); /* twice */
            uint4 lo, hi;
            sl_kv_fp8::dequant(codes.x, scale, lo.x, hi.x);
            sl_kv_fp8::dequant(codes.y, scale, lo.y, hi.y);
            sl_kv_fp8::dequant(codes.z, scale, lo.z, hi.z);
            sl_kv_fp8::dequant(codes.w, scale, lo.w, hi.w);
            uint8_t *to = slot + panel * cfg::PANEL + row * 128;
            __syncwarp(); /* all of the row have been read */
            *reinterpret_cast<uint4 *>(to + ((piece ^ row) & 7) * 16) = half != 0 ? hi : lo;
            *reinterpret_cast<uint4 *>(to + ((piece ^ 1 ^ row) & 7) * 16) = half != 0 ? lo : hi;
        }
    }
};

template <class cfg, int FROM, int TO> struct sl_gather_rows<struct sl_kv_fp8, cfg, FROM, TO> {
    static constexpr int N = TO - FROM;
    static constexpr int MANY = N >= 4 ? 4 : N >= 2 ? 2 : 1; /* panels at once, then the last one */
    static_assert(N == MANY || N == MANY + 1, "one is left");
    typedef sl_gather_codes<cfg, FROM, MANY> many;
    typedef sl_gather_codes<cfg, TO - 1, 1> last;

    /* Gives the scale of the lane's row: 0, which makes zeros, where nothing lies. */
    template <bool WHOLE>
    static __device__ __forceinline__ uint32_t begin(const uint8_t *keys, sl_gather_place place,
                                                     int dim, uint8_t *slot, int first)
    {
        const uint8_t *scales = keys + (place & ~15ull) + SL_KV_TILE * dim;
        uint32_t scale = 0;
        if (place != SL_GATHER_NOWHERE)
            scale = __ldcg(reinterpret_cast<const uint16_t *>(scales) + (place & 15));
        many::template begin<WHOLE>(keys, place, dim, slot, first);
        if (N > MANY)
            last::template begin<WHOLE>(keys, place, dim, slot, first);
        return scale;
    }
    static __device__ __forceinline__ void end(uint32_t scale, uint8_t *slot, int first)
    {
        many::end(scale, slot, first);
        if (N > MANY)
            last::end(scale, slot, first);
    }
    /* For L2 to have it: the next tile's rows, a lane a row. */
    static __device__ __forceinline__ void ask(const uint8_t *keys, sl_gather_place place, int dim)
    {
        if (place == SL_GATHER_NOWHERE)
            return;
        const uint8_t *row = keys + (place & ~15ull) + static_cast<int>(place & 15) * dim;
#pragma unroll
        for (int at = FROM * 64; at < TO * 64; at += 128)
            if (at < dim)
                sl_prefetch_l2(row + at);
    }
};

/* ---------------------------------------------------------------- the warps that load */

/* H: which half of the dimensions. */
template <class KV, class cfg, int H> struct sl_gather_bring {
    static constexpr int FROM = H == 0 ? 0 : cfg::MINE / 64; /* panels */
    static constexpr int TO = H == 0 ? cfg::MINE / 64 : cfg::PANELS;
    typedef sl_gather_rows<KV, cfg, FROM, TO> rows;
    const struct sl_gather_args &g;
    const struct sl_attn_args &a;
    sl_latent_bars<cfg> bars;
    struct sl_attn_turn tiles;
    int lane, first;       /* row of the tile, of the warp */
    int dim;               /* of a row, padded */
    int end;               /* keys of the item */
    const int32_t *chosen; /* NULL: key i is position i */
    int row_pos, row_page; /* of the lane's row of the next tile; -1: there is none */
    int next_pos;          /* of the tile behind that */

    __device__ __forceinline__ sl_gather_bring(const struct sl_gather_args &args,
                                               const sl_latent_bars<cfg> &barriers)
        : g(args), a(args.a), bars(barriers), tiles({0}), end(0), chosen(nullptr), row_pos(-1),
          row_page(0), next_pos(-1)
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        first = static_cast<int>(threadIdx.x / 32) % SL_GATHER_WARPS * 32;
        dim = (a.head_dim + 15) / 16 * 16;
    }

    /* The position of the lane's row of tile t; -1: there is none. */
    __device__ __forceinline__ int position(int t) const
    {
        const int key = t * SL_ATTN_TILE + first + lane;
        if (key >= end)
            return -1;
        return chosen != nullptr ? __ldcg(chosen + key) : key;
    }
    __device__ __forceinline__ int page_of(const struct sl_attn_work &w, int pos) const
    {
        return pos < 0 ? 0
                       : __ldg(a.tables + w.item.table + sl_attn_div(pos / SL_KV_TILE, a.by_page));
    }
    __device__ __forceinline__ sl_gather_place place_of(int pos, int id) const
    {
        const int unit = pos / SL_KV_TILE, page = sl_attn_div(unit, a.by_page);
        if (pos < 0)
            return SL_GATHER_NOWHERE;
        return static_cast<unsigned>(id) * static_cast<unsigned long long>(a.page_bytes) +
               static_cast<unsigned>((unit - page * a.by_page.by) * KV::tile_bytes(dim)) +
               static_cast<unsigned>(pos % SL_KV_TILE);
    }

    /* Tile t, the next one, to its slot; asks for what the tiles behind it need. */
    __device__ __forceinline__ uint32_t begin(const struct sl_attn_work &w, int t, int to, int slot)
    {
        const sl_gather_place place = place_of(row_pos, row_page);
        row_pos = next_pos;
        row_page = page_of(w, row_pos);
        next_pos = t + 2 < to ? position(t + 2) : -1;
        uint8_t *to_slot = bars.smem + slot * cfg::SLOT;
        uint32_t held;
        if (dim == cfg::KD && __all_sync(0xFFFFFFFFu, place != SL_GATHER_NOWHERE))
            held = rows::template begin<true>(a.keys, place, cfg::KD, to_slot, first);
        else
            held = rows::template begin<false>(a.keys, place, dim, to_slot, first);
        sl_cp_async_commit();
        rows::ask(a.keys, place_of(row_pos, row_page), dim);
        return held;
    }

    /* While a tile's numbers are made, or its copies are awaited, those of the next one are on
     * their way if its half of a slot is free by then. */
    __device__ __forceinline__ void item(const struct sl_attn_work &w)
    {
        int from, to;
        sl_latent_tiles_of(a, w, &from, &to, &end);
        chosen = nullptr;
        if (g.top != nullptr && __ldg(g.positions + w.item.token) >= g.top_k)
            chosen = g.top + static_cast<int64_t>(w.item.token) * g.top_k;
        row_pos = from < to ? position(from) : -1;
        row_page = page_of(w, row_pos);
        next_pos = from + 1 < to ? position(from + 1) : -1;
        bool begun = false;
        uint32_t held = 0, ahead = 0;
#pragma unroll 1
        for (int t = from; t < to; t++, tiles.n++) {
            const struct sl_attn_turn after = {tiles.n + 1};
            if (!begun) {
                sl_mbar_wait(bars.empty(tiles.slot(), H), tiles.parity() ^ 1);
                held = begin(w, t, to, tiles.slot());
            }
            begun = t + 1 < to && __all_sync(0xFFFFFFFFu, sl_mbar_ended(bars.empty(after.slot(), H),
                                                                        after.parity() ^ 1));
            if (begun) {
                ahead = begin(w, t + 1, to, after.slot());
                sl_cp_async_wait<1>();
            } else {
                sl_cp_async_wait<0>();
            }
            rows::end(held, bars.smem + tiles.slot() * cfg::SLOT, first);
            sl_mbar_give_warp(bars.full(tiles.slot(), H));
            held = ahead;
        }
    }

    /* The first warp takes items for all. */
    __device__ __forceinline__ void run(int n)
    {
        const bool takes = threadIdx.x < 32;
        struct sl_attn_turn items = {0};
        int next = static_cast<int>(blockIdx.x);
        for (;; items.n++) {
            struct sl_attn_work &w = *bars.work(items.slot());
            uint32_t taken = 0;
            if (takes) {
                sl_mbar_wait(bars.work_empty(items.slot()), items.parity() ^ 1);
                sl_attn_fetch(a, next, n, &w, lane < 16);
                sl_mbar_arrive_warp(bars.work_full(items.slot()));
            } else {
                sl_mbar_wait(bars.work_full(items.slot()), items.parity());
            }
            if (!w.item.valid)
                return;
            if (takes && lane == 0)
                taken = atomicAdd(&a.cls->taken, 1u);
            item(w);
            if (!takes)
                sl_mbar_arrive_warp(bars.work_empty(items.slot()));
            else
                next = static_cast<int>(gridDim.x + __shfl_sync(0xFFFFFFFFu, taken, 0));
        }
    }
};

/* ---------------------------------------------------------------- the kernel */

template <class KV, class cfg>
static __global__ void __launch_bounds__(cfg::THREADS, 1)
    sl_gather_kernel(const __grid_constant__ struct sl_gather_args g)
{
    typedef typename sl_gather_mul<KV>::type mul;
    SL_SMEM(uint8_t, smem);
    const sl_latent_bars<cfg> bars = {smem};
    sl_grid_launch_dependents();
    if (threadIdx.x == 0)
        bars.init(SL_GATHER_WARPS);
    __syncthreads();
    sl_grid_wait();
    /* The same in all lanes, as the compiler shall see: products do not run in divergent code. */
    const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 128), 0);
    if (group == 0) {
        sl_regs_give<SL_GATHER_REGS>();
        if (threadIdx.x < 32 * SL_GATHER_WARPS) {
            sl_gather_bring<KV, cfg, 0> x(g, bars);
            x.run(__ldcg(&g.a.cls->n_items));
        } else {
            sl_gather_bring<KV, cfg, 1> x(g, bars);
            x.run(__ldcg(&g.a.cls->n_items));
        }
        if (threadIdx.x == 0 && atomicAdd(&g.a.cls->done, 1u) + 1 == gridDim.x) {
            g.a.cls->taken = 0; /* for the next layer */
            g.a.cls->done = 0;
        }
        return;
    }
    sl_regs_take<SL_GATHER_MUL_REGS>();
    if (group == 1) {
        sl_latent_group<mul, cfg, 0> x(g.a, bars);
        x.run();
    } else {
        sl_latent_group<mul, cfg, 1> x(g.a, bars);
        x.run();
    }
}

#define SL_GATHER_INSTANCE(pages, kd, vd)                                                 \
    void sl_gather_run_##pages##_##kd(struct sl_cuda *cu, const struct sl_gather_args *g, \
                                      int32_t grid)                                       \
    {                                                                                     \
        typedef sl_latent_cfg<kd, vd> cfg;                                                \
        sl_launch(cu, sl_gather_kernel<struct sl_kv_##pages, cfg>,                        \
                  dim3(static_cast<unsigned>(grid)), dim3(cfg::THREADS), cfg::BYTES, *g); \
    }

#endif
