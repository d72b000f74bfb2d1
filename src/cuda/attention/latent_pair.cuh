/* SPDX-License-Identifier: MIT
 * latent_pair.cuh - latent attention to rows of FP8 of which two tiles of a token's heads have the
 * same: two blocks, a cluster, each make BF16 of half of the codes and store the numbers in both
 * blocks' shared memory. What multiplies is latent.cuh's, and so are the bits.
 *
 * A block loads 32 of a tile's 64 rows: each of the four warps of its first group has half of the
 * dimensions of 16 rows. A lane keeps the codes of the next tile, 128 or 160 bytes, in registers:
 * shared memory has no room for them besides. They are asked for when all of this one's are used.
 * (One by one, as registers became free, 64 sequences of 32k took 190 us on an H200: a warp has few
 * counters of loads under way, so that a use may wait for what was asked for just before.) What
 * waits for a slot is only the making of numbers. A slot is free when both blocks have given it
 * back, as both are written. What comes from the other block is counted by the barrier in bytes
 * (st.async).
 *
 * Both blocks follow the list of items by themselves, a pair of them at a time: there is no
 * counter.
 *
 * Bytes of a tile: 18.4 KB from L2, 36.9 KB to the other block. Instructions of a warp: 600 to
 * 700 for the numbers of 16 rows, beside the 2,176 clk of the products.
 */
#ifndef SL_CUDA_LATENT_PAIR_CUH
#define SL_CUDA_LATENT_PAIR_CUH

#include "cuda/attention/latent.cuh"
#include "cuda/ptx_far.cuh"

/* Registers of a thread that loads, and of one that multiplies (latent_gather.cuh). */
#define SL_PAIR_REGS     72
#define SL_PAIR_MUL_REGS 216
#define SL_PAIR_ROWS     16 /* of a tile, of a warp that loads */

template <int KD_, int VD_> struct sl_pair_cfg : sl_latent_cfg<KD_, VD_> {
    static constexpr bool PAIR = true;
};

static_assert(128 * SL_PAIR_REGS + SL_LATENT_WORKERS * SL_PAIR_MUL_REGS <=
                  (128 + SL_LATENT_WORKERS) * (65536 / (128 + SL_LATENT_WORKERS) / 8 * 8),
              "registers of a block");

/* ---------------------------------------------------------------- codes and numbers */

/* Where a row's codes lie, a multiple of 16, and below that by what its pieces are exchanged. */
typedef unsigned long long sl_pair_place;

/* Of 16 rows, AT_ONCE panels from FROM on: a lane has 16 codes of a row at a time. */
template <class cfg, int FROM, int AT_ONCE> struct sl_pair_codes {
    static constexpr int LANES = 4 * AT_ONCE; /* of a row */
    static constexpr int ROWS = 32 / LANES;
    static constexpr int N = SL_PAIR_ROWS / ROWS;
    static_assert(cfg::KD % 128 == 64, "how pieces of a row are exchanged (sl_kv_piece)");

    uint4 codes[N];
    uint32_t from; /* the lane's first 16 codes, behind a row's place */
    uint32_t to;   /* and where its numbers go, behind the warp's first row in a slot */

    /* Of eight lanes whose stores are made at once four begin with the first and four with the
     * second half, which are in different banks. */
    __device__ __forceinline__ sl_pair_codes()
    {
        const int lane = static_cast<int>(threadIdx.x) & 31, row = lane / LANES;
        const int panel = FROM + lane % LANES / 4, piece = lane % 4 * 2 + half();
        from = static_cast<uint32_t>(FROM * 4 + lane % LANES) * 16;
        to = static_cast<uint32_t>(panel * cfg::PANEL + row * 128 + ((piece ^ row) & 7) * 16);
    }
    static __device__ __forceinline__ int half()
    {
        return (FROM + static_cast<int>(threadIdx.x) % LANES / 4) & 1;
    }

    /* place: of row lane % 16 of the warp's. */
    __device__ __forceinline__ void ask(int i, sl_pair_place place)
    {
        const int row = i * ROWS + (static_cast<int>(threadIdx.x) & 31) / LANES;
        const uint32_t lo = __shfl_sync(0xFFFFFFFFu, static_cast<uint32_t>(place), row);
        const uint32_t hi = __shfl_sync(0xFFFFFFFFu, static_cast<uint32_t>(place >> 32), row);
        const sl_pair_place line = static_cast<sl_pair_place>(hi) << 32 | (lo & ~15u);
        codes[i] = __ldcg(
            reinterpret_cast<const uint4 *>(line + (from ^ static_cast<uint32_t>(lo & 3) * 16)));
    }

    /* The numbers of these to both blocks. at: where the warp's first row, a multiple of 16, lies
     * behind smem; scale: of row lane % 16. */
    __device__ __forceinline__ void store(int i, uint32_t scale, uint8_t *smem, uint32_t at,
                                          uint64_t *full, const struct sl_far &far) const
    {
        const int row = i * ROWS + (static_cast<int>(threadIdx.x) & 31) / LANES;
        const uint32_t twice = __byte_perm(__shfl_sync(0xFFFFFFFFu, scale, row), 0, 0x1010);
        const uint32_t first = (at + to) ^ static_cast<uint32_t>(i * ROWS & 7) * 16;
        uint8_t *line = smem + i * ROWS * 128;
        uint4 lo, hi;
        sl_kv_fp8::dequant(codes[i].x, twice, lo.x, hi.x);
        sl_kv_fp8::dequant(codes[i].y, twice, lo.y, hi.y);
        sl_kv_fp8::dequant(codes[i].z, twice, lo.z, hi.z);
        sl_kv_fp8::dequant(codes[i].w, twice, lo.w, hi.w);
        const uint4 a = half() != 0 ? hi : lo, b = half() != 0 ? lo : hi;
        *reinterpret_cast<uint4 *>(line + first) = a;
        *reinterpret_cast<uint4 *>(line + (first ^ 16)) = b;
        sl_store_far(line + first, a, full, far);
        sl_store_far(line + (first ^ 16), b, full, far);
    }
};

template <class cfg, int FROM, int TO> struct sl_pair_rows {
    static constexpr int N = TO - FROM;
    static constexpr int MANY = N / 4 * 4; /* panels at once, then the last one */
    static_assert(MANY == 4 && N <= 5, "a lane's registers");
    sl_pair_codes<cfg, FROM, MANY> many;
    sl_pair_codes<cfg, TO - 1, 1> last;

    __device__ __forceinline__ void ask(sl_pair_place place)
    {
#pragma unroll
        for (int i = 0; i < many.N; i++)
            many.ask(i, place);
        if constexpr (N > MANY) {
#pragma unroll
            for (int i = 0; i < last.N; i++)
                last.ask(i, place);
        }
    }

    /* These, to both blocks. */
    __device__ __forceinline__ void store(uint32_t scale, uint8_t *smem, uint32_t at,
                                          uint64_t *full, const struct sl_far &far) const
    {
#pragma unroll
        for (int i = 0; i < many.N; i++)
            many.store(i, scale, smem, at, full, far);
        if constexpr (N > MANY) {
#pragma unroll
            for (int i = 0; i < last.N; i++)
                last.store(i, scale, smem, at, full, far);
        }
    }
};

/* ---------------------------------------------------------------- the warps that load */

/* Where pair `at` of the plan's items lies in its list, of this block's tile; n_tiles first parts
 * lie there from the last tile to the first, then the other parts of one tile after the other. */
static __device__ __forceinline__ int sl_pair_item(const struct sl_attn_args &a, int n_tiles,
                                                   int at, int rank)
{
    if (at < n_tiles / 2)
        return 2 * at + 1 - rank;
    const int k = at - n_tiles / 2;
    const struct sl_attn_item *item = a.items + n_tiles + 2 * k; /* of the same two tiles */
    const int from = __ldcg(&item->from), to = __ldcg(&item->to), n = __ldcg(&item->n_parts) - 1;
    const int which = to == __ldcg(&item->n_splits)
                          ? n - 1
                          : (from - __ldcg(&item->first)) / (to - from); /* part of the tile */
    const bool second = __ldcg(&item->row0) % (2 * SL_ATTN_MEDIUM) != 0;
    const int before = 2 * k - which - (second ? n : 0); /* parts of the tiles before */
    return n_tiles + before + (rank != 0 ? n : 0) + k - before / 2;
}

/* H: which half of the dimensions. */
template <class KV, class cfg, int H> struct sl_pair_bring {
    static constexpr int FROM = H == 0 ? 0 : cfg::MINE / 64; /* panels */
    static constexpr int TO = H == 0 ? cfg::MINE / 64 : cfg::PANELS;
    static constexpr uint32_t BYTES = SL_PAIR_ROWS * (TO - FROM) * 128; /* of a warp's rows */
    const struct sl_gather_args &g;
    const struct sl_attn_args &a;
    sl_latent_bars<cfg> bars;
    struct sl_far far;
    struct sl_attn_turn tiles;
    int lane, rank, first; /* row of the tile, of the warp */
    int to, end;           /* tiles and keys of the item */
    const int32_t *chosen; /* NULL: key i is position i */
    int row_pos, row_page; /* of the lane's row of the next tile; -1: there is none */
    int next_pos;          /* of the tile behind that */
    uint32_t scale;        /* of the lane's row of the tile whose codes it has */
    sl_pair_rows<cfg, FROM, TO> rows;

    __device__ __forceinline__ sl_pair_bring(const struct sl_gather_args &args,
                                             const sl_latent_bars<cfg> &barriers)
        : g(args), a(args.a), bars(barriers), tiles({0}), to(0), end(0), chosen(nullptr),
          row_pos(-1), row_page(0), next_pos(-1), scale(0)
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        rank = static_cast<int>(sl_cluster_rank());
        far = sl_far_of(bars.smem, static_cast<uint32_t>(1 - rank));
        first = (2 * rank + static_cast<int>(threadIdx.x / 32) % 2) * SL_PAIR_ROWS;
    }

    /* The position of the lane's row of tile t; -1: there is none. */
    __device__ __forceinline__ int position(int t) const
    {
        const int key = t * SL_ATTN_TILE + first + lane % SL_PAIR_ROWS;
        if (t >= to || key >= end)
            return -1;
        return chosen != nullptr ? __ldcg(chosen + key) : key;
    }
    __device__ __forceinline__ int page_of(const struct sl_attn_work &w, int pos) const
    {
        return pos < 0 ? 0
                       : __ldg(a.tables + w.item.table + sl_attn_div(pos / SL_KV_TILE, a.by_page));
    }

    /* Where the lane's row of the next tile lies, and its scale: 0, which makes zeros of any codes,
     * where there is none. Of the tiles behind it, t the first, page and position are asked for. */
    __device__ __forceinline__ sl_pair_place step(const struct sl_attn_work &w, int t,
                                                  uint32_t *row_scale)
    {
        const int pos = max(row_pos, 0), in_tile = pos % SL_KV_TILE;
        const int unit = pos / SL_KV_TILE, page = sl_attn_div(unit, a.by_page);
        const uint8_t *tile =
            a.keys +
            static_cast<unsigned>(row_page) * static_cast<unsigned long long>(a.page_bytes) +
            static_cast<unsigned>((unit - page * a.by_page.by) * KV::tile_bytes(cfg::KD));
        *row_scale = 0;
        if (row_pos >= 0)
            *row_scale =
                __ldcg(reinterpret_cast<const uint16_t *>(tile + SL_KV_TILE * cfg::KD) + in_tile);
        row_pos = next_pos;
        row_page = page_of(w, row_pos);
        next_pos = position(t + 1);
        return (reinterpret_cast<sl_pair_place>(tile) + static_cast<unsigned>(in_tile * cfg::KD)) |
               static_cast<unsigned>(in_tile / 2 & 3);
    }

    __device__ __forceinline__ void item(const struct sl_attn_work &w)
    {
        int t;
        sl_latent_tiles_of(a, w, &t, &to, &end);
        chosen = nullptr;
        if (g.top != nullptr && __ldg(g.positions + w.item.token) >= g.top_k)
            chosen = g.top + static_cast<int64_t>(w.item.token) * g.top_k;
        row_pos = position(t);
        row_page = page_of(w, row_pos);
        next_pos = position(t + 1);
        if (t < to)
            rows.ask(step(w, t + 1, &scale));
#pragma unroll 1
        for (; t < to; t++, tiles.n++) {
            const int slot = tiles.slot();
            sl_mbar_wait(bars.empty(slot, H), tiles.parity() ^ 1);
            rows.store(scale, bars.smem, static_cast<uint32_t>(slot * cfg::SLOT + first * 128),
                       bars.full(slot, H), far);
            sl_fence_proxy_async();
            sl_mbar_expect_warp(bars.full(slot, H), BYTES);
            if (t + 1 < to)
                rows.ask(step(w, t + 2, &scale));
        }
    }

    /* The first warp finds items for all. */
    __device__ __forceinline__ void run(int n, int n_tiles)
    {
        const bool finds = threadIdx.x < 32;
        struct sl_attn_turn items = {0};
        int at = static_cast<int>(blockIdx.x / 2);
        for (;; items.n++, at += static_cast<int>(gridDim.x / 2)) {
            struct sl_attn_work &w = *bars.work(items.slot());
            if (finds) {
                const int in_list = at < n / 2 ? sl_pair_item(a, n_tiles, at, rank) : n;
                sl_mbar_wait(bars.work_empty(items.slot()), items.parity() ^ 1);
                sl_attn_fetch(a, in_list, n, &w, lane < 16);
                sl_mbar_arrive_warp(bars.work_full(items.slot()));
            } else {
                sl_mbar_wait(bars.work_full(items.slot()), items.parity());
            }
            if (!w.item.valid)
                return;
            item(w);
            if (!finds)
                sl_mbar_arrive_warp(bars.work_empty(items.slot()));
        }
    }
};

/* ---------------------------------------------------------------- the kernel */

template <class KV, class cfg>
static __global__ void __launch_bounds__(cfg::THREADS, 1)
    sl_pair_kernel(const __grid_constant__ struct sl_gather_args g)
{
    SL_SMEM(uint8_t, smem);
    const sl_latent_bars<cfg> bars = {smem};
    sl_grid_launch_dependents();
    if (threadIdx.x == 0)
        bars.init(2);
    __syncthreads();
    sl_cluster_sync(); /* both blocks' barriers are ready */
    sl_grid_wait();
    /* The same in all lanes, as the compiler shall see: products do not run in divergent code. */
    const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 128), 0);
    if (group == 0) {
        sl_regs_give<SL_PAIR_REGS>();
        if (threadIdx.x < 64) {
            sl_pair_bring<KV, cfg, 0> x(g, bars);
            x.run(__ldcg(&g.a.cls->n_items), __ldcg(&g.a.cls->n_tiles));
        } else {
            sl_pair_bring<KV, cfg, 1> x(g, bars);
            x.run(__ldcg(&g.a.cls->n_items), __ldcg(&g.a.cls->n_tiles));
        }
    } else {
        sl_regs_take<SL_PAIR_MUL_REGS>();
        if (group == 1) {
            sl_latent_group<struct sl_kv_bf16, cfg, 0> x(g.a, bars);
            x.run();
        } else {
            sl_latent_group<struct sl_kv_bf16, cfg, 1> x(g.a, bars);
            x.run();
        }
    }
    sl_cluster_sync(); /* nobody stores here, or arrives, any more */
}

#define SL_PAIR_INSTANCE(pages, kd, vd)                                                            \
    void sl_pair_run_##pages##_##kd(struct sl_cuda *cu, const struct sl_gather_args *g,            \
                                    int32_t grid)                                                  \
    {                                                                                              \
        typedef sl_pair_cfg<kd, vd> cfg;                                                           \
        sl_launch_cluster(cu, sl_pair_kernel<struct sl_kv_##pages, cfg>,                           \
                          dim3(static_cast<unsigned>(grid) & ~1u), dim3(cfg::THREADS), cfg::BYTES, \
                          2, *g);                                                                  \
    }

#endif
