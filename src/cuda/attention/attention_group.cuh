/* SPDX-License-Identifier: MIT
 * attention_group.cuh - what the kernels of warpgroups share (attention_wg.cuh,
 * attention_single.cuh, attention_skip.cuh): tiles of 128 rows, or 192 for D = 64, chunks of
 * prompts; and of 64 rows, decodes with drafts.
 *
 * Two warps load page tiles as they are, by bulk copies, one the keys and one the values, each
 * into two slots of cfg::KEYS positions; where pages hold no BF16 or F16, attention_dequant.cuh's
 * warps make it of what was loaded. Warpgroups of 64 rows take them. Queries of 128 dimensions
 * come the same way, ahead of an item's first keys, while the item before ends: their floats take
 * the place of a tile, from where the group rounds them. The sums are those of mma.sync, to the
 * bit: one accumulator over ascending 16s. A row's state over the splits of a run is in memory,
 * touched once a split: shared memory, but for D = 256 three quarters are in the workspace, from
 * where as many loads as there are registers are under way at once.
 */
#ifndef SL_CUDA_ATTENTION_GROUP_CUH
#define SL_CUDA_ATTENTION_GROUP_CUH

#include "cuda/attention/attention_tile.cuh"

/* ---------------------------------------------------------------- sizes */

/* KEYS: of a slot, which no split divides. GROUPS: that multiply; another one loads. */
template <class KV, int D_, int KEYS_, int GROUPS_ = D_ == 64 ? 3 : 2> struct sl_attn_group_cfg {
    static constexpr int D = D_;
    static constexpr int KEYS = KEYS_;
    static constexpr bool DEQUANTS = KV::scaled; /* pages are not what is multiplied */
    static constexpr int GROUPS = GROUPS_;
    /* A lone group's block leaves room for another one on its SM, and begins to load before the
     * kernel ahead has ended. */
    static constexpr bool LONE = GROUPS == 1;
    static constexpr int CTAS = LONE && D <= 128 ? 2 : 1;
    /* Warps that dequantise: two of those that load, which have nothing to do, or a group besides.
     */
    static constexpr int DEQUANTERS = !DEQUANTS ? 0 : GROUPS == 3 || CTAS == 2 ? 2 : 4;
    static constexpr int DEQUANT_WARP = DEQUANTERS == 4 ? 4 : 2; /* the first of them */
    /* Registers of a thread that multiplies, and of the others; where an SM has one block of 256
     * threads they are as many as there can be, and stay with all. */
    static constexpr bool SHARES_REGS = !(LONE && CTAS == 1 && DEQUANTERS == 0);
    static constexpr int REGS = GROUPS == 3 ? 160 : CTAS == 2 ? 208 : DEQUANTS && !LONE ? 224 : 240;
    static constexpr int BRING_REGS = CTAS == 2 ? 48 : LONE ? 40 : DEQUANTS ? 32 : 24;
    static constexpr int ROWS = 64 * GROUPS;
    static constexpr int WORKERS = 128 * GROUPS;
    static constexpr int FIRST = DEQUANTERS == 4 ? 256 : 128; /* worker */
    static constexpr int THREADS = FIRST + WORKERS;
    static constexpr int PANELS = D / 64;          /* of 64 dimensions */
    static constexpr int PART = SL_KV_TILE * 128;  /* bytes of one in a page tile */
    static constexpr int PANEL = 64 * 128;         /* and in 64 rows */
    static constexpr int BLOCK = PANELS * PANEL;   /* 64 rows */
    static constexpr int SLOT = KEYS / 64 * BLOCK; /* keys or values of a tile */
    static constexpr int SLOTS = 4;                /* keys, values, keys, values */
    /* An item's queries come as if they were its first tile, as they are, those of one group in the
     * place of keys and of the other in that of values. */
    static constexpr bool AHEAD = !DEQUANTS && GROUPS == 2 && SLOT == 64 * D * 4;
    /* Of the state, fragments of eight dimensions that shared memory has room for. */
    static constexpr int KEPT = D <= 128 || LONE ? D / 8 : 8;
    static constexpr int STATE_AT = SLOTS * SLOT; /* float4 [GROUPS][KEPT][128] */
    static constexpr int STATE = KEPT * WORKERS * 16;
    static constexpr int Q_AT = STATE_AT + STATE;             /* [GROUPS][PANELS][64][128] */
    static constexpr int FULL_AT = Q_AT + GROUPS * BLOCK;     /* mbarriers */
    static constexpr int EMPTY_AT = FULL_AT + 8 * SLOTS;      /* mbarriers */
    static constexpr int WORK_FULL_AT = EMPTY_AT + 8 * SLOTS; /* [2] */
    static constexpr int WORK_EMPTY_AT = WORK_FULL_AT + 16;   /* [2] */
    static constexpr int WORK_AT = WORK_EMPTY_AT + 16;
    static constexpr int SCALES_AT = /* 16 bits [SLOTS][KEYS] */
        WORK_AT + 2 * static_cast<int>(sizeof(struct sl_attn_work));
    static constexpr int RAW_AT = SCALES_AT + 2 * SLOTS * KEYS; /* mbarriers */
    static constexpr int SEEN_AT = RAW_AT + 8 * SLOTS;          /* uint32_t [SLOTS] */
    static constexpr int BYTES = DEQUANTS ? SEEN_AT + 4 * SLOTS : SCALES_AT;
    static_assert(SL_ATTN_SPLIT % KEYS == 0, "splits are whole slots");
    static_assert(CTAS * (BYTES + 1024) <= 228 * 1024, "shared memory");

    /* A kernel's own barriers. */
    static __device__ __forceinline__ void init(uint8_t *)
    {
    }

    /* Where 16 rows of a panel lie in a slot: keys panel after panel, values 64 rows after 64. */
    static __device__ __forceinline__ int part_at(bool keys, int unit, int panel)
    {
        if (keys)
            return panel * (KEYS * 128) + unit * PART;
        return unit / 4 * BLOCK + panel * PANEL + unit % 4 * PART;
    }
    /* Where the codes of two panels (D = 64: one), from an even one on, lie till they are
     * dequantised: where the last of their own numbers will. */
    static __device__ __forceinline__ int codes_at(bool keys, int unit, int panel)
    {
        if (PANELS == 1)
            return part_at(keys, unit, 0) + PART / 2;
        return part_at(keys, unit, (PANELS + panel) / 2);
    }
};

/* A place in a ring of two, of which n were before, and the parity of its phase. */
struct sl_attn_turn {
    uint32_t n;
    __device__ __forceinline__ int slot() const
    {
        return static_cast<int>(n & 1);
    }
    __device__ __forceinline__ uint32_t parity() const
    {
        return n >> 1 & 1;
    }
    __device__ __forceinline__ int keys() const
    {
        return 2 * slot();
    }
    __device__ __forceinline__ int values() const
    {
        return 2 * slot() + 1;
    }
};

#define SL_ATTN_LAST    0x80000000u
#define SL_ATTN_NO_MORE 0xFFFFFFFFu /* slots will be loaded */

template <class cfg> struct sl_attn_bars {
    uint8_t *smem;
    __device__ __forceinline__ uint64_t *full(int i) const
    {
        return reinterpret_cast<uint64_t *>(smem + cfg::FULL_AT) + i;
    }
    __device__ __forceinline__ uint64_t *empty(int i) const
    {
        return reinterpret_cast<uint64_t *>(smem + cfg::EMPTY_AT) + i;
    }
    __device__ __forceinline__ uint64_t *work_full(int i) const
    {
        return reinterpret_cast<uint64_t *>(smem + cfg::WORK_FULL_AT) + i;
    }
    __device__ __forceinline__ uint64_t *work_empty(int i) const
    {
        return reinterpret_cast<uint64_t *>(smem + cfg::WORK_EMPTY_AT) + i;
    }
    __device__ __forceinline__ struct sl_attn_work *work(int i) const
    {
        return reinterpret_cast<struct sl_attn_work *>(smem + cfg::WORK_AT) + i;
    }
    /* What is to be dequantised is there. */
    __device__ __forceinline__ uint64_t *raw(int i) const
    {
        return reinterpret_cast<uint64_t *>(smem + cfg::RAW_AT) + i;
    }
    /* Which rows of it are seen, from | end << 16, and SL_ATTN_LAST with the last keys of an item;
     * or SL_ATTN_NO_MORE. */
    __device__ __forceinline__ uint32_t *seen(int i) const
    {
        return reinterpret_cast<uint32_t *>(smem + cfg::SEEN_AT) + i;
    }
    __device__ __forceinline__ uint8_t *scales(int i, int unit) const
    {
        return smem + cfg::SCALES_AT + (i * cfg::KEYS + unit * SL_KV_TILE) * 2;
    }
    /* By one thread. */
    __device__ __forceinline__ void init() const
    {
        for (int i = 0; i < cfg::SLOTS; i++) {
            sl_mbar_init(full(i), (cfg::DEQUANTS ? cfg::DEQUANTERS : 1) * SL_WARP_ARRIVALS);
            sl_mbar_init(empty(i), cfg::WORKERS / 32 * SL_WARP_ARRIVALS);
            if (cfg::DEQUANTS)
                sl_mbar_init(raw(i), SL_WARP_ARRIVALS);
        }
        for (int i = 0; i < 2; i++) {
            sl_mbar_init(work_full(i), SL_WARP_ARRIVALS);
            sl_mbar_init(work_empty(i), (cfg::WORKERS / 32 + 1) * SL_WARP_ARRIVALS);
        }
        cfg::init(smem);
        sl_mbar_fence_init();
    }
};

/* ---------------------------------------------------------------- the warps that load */

template <class KV, class cfg> struct sl_attn_bring {
    const struct sl_attn_args &a;
    sl_attn_bars<cfg> bars;
    struct sl_attn_turn tiles;
    int lane;
    bool keys;   /* or values */
    bool waited; /* for the kernel ahead, which may have written the step's own positions */
    int lo, hi;  /* keys of the item that are loaded */
    /* Lane i: where the i-th 16 positions from `first` on lie in a plane. */
    unsigned long long at;
    int first;

    __device__ __forceinline__ sl_attn_bring(const struct sl_attn_args &args,
                                             const sl_attn_bars<cfg> &barriers)
        : a(args), bars(barriers), tiles({0}), waited(!cfg::LONE), lo(0), hi(0), at(0), first(0)
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        keys = threadIdx.x < 32;
    }

    /* Positions up to `end` of the item may be read. */
    __device__ __forceinline__ void await(const struct sl_attn_work &w, int end)
    {
        if (!cfg::LONE || waited || (a.early && end <= w.item.pos))
            return;
        sl_grid_wait();
        waited = true;
    }

    __device__ __forceinline__ void find(const struct sl_attn_work &w, int from)
    {
        int unit = from + lane, pos = unit * SL_KV_TILE, page = sl_attn_div(unit, a.by_page);
        bool wanted = pos < hi && pos + SL_KV_TILE > lo;
        int id = wanted ? a.tables[w.item.table + page] : 0;
        int sub = unit + (w.item.kv - page) * a.by_page.by;
        first = from;
        at = static_cast<unsigned>(id) * static_cast<unsigned long long>(a.page_bytes) +
             static_cast<unsigned>(sub) * static_cast<unsigned long long>(KV::tile_bytes(cfg::D));
    }

    __device__ __forceinline__ int part_at(int unit, int panel) const
    {
        return cfg::part_at(keys, unit, panel);
    }

    /* Rows from .. end - 1 of a slot, which nobody sees, become zeros: what lies in the page may be
     * no number. */
    __device__ __forceinline__ void clear(uint8_t *to, int from, int end)
    {
#pragma unroll 1
        for (int i = lane; i < (end - from) * 8; i += 32) {
            int row = from + i / 8;
#pragma unroll
            for (int p = 0; p < cfg::PANELS; p++)
                *reinterpret_cast<uint4 *>(to + part_at(row / 16, p) + row % 16 * 128 +
                                           i % 8 * 16) = make_uint4(0, 0, 0, 0);
        }
    }

    /* The tile from `key` on, of which the rows that somebody sees are loaded. */
    __device__ __forceinline__ void load(int key)
    {
        const uint8_t *plane = keys ? a.keys : a.values;
        int i = lane - (key / SL_KV_TILE - first), pos = key + i * SL_KV_TILE;
        int from = max(lo - pos, 0), end = min(hi - pos, SL_KV_TILE);
        bool mine = i >= 0 && i < cfg::KEYS / SL_KV_TILE && from < end;
        int slot_from = max(lo - key, 0), slot_end = min(hi - key, cfg::KEYS);
        int slot = keys ? tiles.keys() : tiles.values();
        uint8_t *to = bars.smem + slot * cfg::SLOT;
        sl_mbar_wait(bars.empty(slot), tiles.parity() ^ 1);
        if (slot_end - slot_from < cfg::KEYS) {
            clear(to, 0, slot_from);
            clear(to, slot_end, cfg::KEYS);
            sl_fence_proxy_async();
        }
        sl_mbar_expect_warp(bars.full(slot),
                            static_cast<uint32_t>((slot_end - slot_from) * cfg::PANELS * 128));
        if (mine) {
#pragma unroll
            for (int p = 0; p < cfg::PANELS; p++)
                sl_bulk_load(to + part_at(i, p) + from * 128,
                             plane + at + p * cfg::PART + from * 128,
                             static_cast<uint32_t>((end - from) * 128), bars.full(slot));
        }
        tiles.n++;
    }

    /* The same for the warps that dequantise: all of a page tile of which somebody sees a row. */
    __device__ __forceinline__ void load_codes(int key, bool last)
    {
        constexpr int CODES = SL_KV_TILE * KV::row_bytes(cfg::D);
        constexpr int EACH = CODES > cfg::PART ? cfg::PART : CODES;
        const uint8_t *from = (keys ? a.keys : a.values) + at;
        const int unit = lane - (key / SL_KV_TILE - first), pos = key + unit * SL_KV_TILE;
        const bool mine =
            unit >= 0 && unit < cfg::KEYS / SL_KV_TILE && pos < hi && pos + SL_KV_TILE > lo;
        const int slot = keys ? tiles.keys() : tiles.values();
        const int n_units = __popc(__ballot_sync(0xFFFFFFFFu, mine));
        uint8_t *to = bars.smem + slot * cfg::SLOT;
        sl_mbar_wait(bars.empty(slot), tiles.parity() ^ 1);
        if (lane == 0)
            *bars.seen(slot) = static_cast<uint32_t>(max(lo - key, 0)) |
                               static_cast<uint32_t>(min(hi - key, cfg::KEYS)) << 16 |
                               (last ? SL_ATTN_LAST : 0);
        sl_mbar_expect_warp(bars.raw(slot),
                            static_cast<uint32_t>(n_units * KV::tile_bytes(cfg::D)));
        if (mine) {
#pragma unroll
            for (int k = 0; k < CODES; k += EACH)
                sl_bulk_load(to + cfg::codes_at(keys, unit, k / EACH * 2), from + k, EACH,
                             bars.raw(slot));
            sl_bulk_load(bars.scales(slot, unit), from + CODES, 2 * SL_KV_TILE, bars.raw(slot));
        }
        tiles.n++;
    }

    /* Tells the warps that dequantise that this is all. */
    __device__ __forceinline__ void end_codes()
    {
        sl_mbar_wait(bars.empty(tiles.keys()), tiles.parity() ^ 1);
        if (lane == 0)
            *bars.seen(tiles.keys()) = SL_ATTN_NO_MORE;
        sl_mbar_arrive_warp(bars.raw(tiles.keys()));
    }

    /* A group's queries, to a slot, one row after the other: those of a token lie together. */
    __device__ __forceinline__ void load_queries(const struct sl_attn_work &w)
    {
        const int slot = keys ? tiles.keys() : tiles.values();
        const int from = w.item.row0 + (keys ? 0 : 64);
        const int end = min(w.item.row0 + w.item.n_rows, from + 64);
        const int bytes = a.head_dim * 4; /* of a row */
        int token = sl_attn_div(from, a.by_group) + lane;
        sl_mbar_wait(bars.empty(slot), tiles.parity() ^ 1);
        sl_mbar_expect_warp(bars.full(slot), static_cast<uint32_t>(max(end - from, 0) * bytes));
#pragma unroll 1
        for (; from < end && token * a.group < end; token += 32) {
            const int row = max(token * a.group, from), to = min((token + 1) * a.group, end);
            const int head = w.item.kv * a.group + row - token * a.group;
            sl_bulk_load(bars.smem + slot * cfg::SLOT + (row - from) * bytes,
                         a.q + (w.item.token + token) * a.ld_q + head * a.head_dim,
                         static_cast<uint32_t>((to - row) * bytes), bars.full(slot));
        }
        tiles.n++;
    }

    __device__ __forceinline__ void item(const struct sl_attn_work &w)
    {
        int from, to;
        sl_attn_tiles_of<cfg::KEYS>(w, &from, &to);
        if (from >= to)
            return;
        lo = max(w.key_lo, from * cfg::KEYS);
        hi = min(w.key_hi, to * cfg::KEYS);
        find(w, from * cfg::KEYS / SL_KV_TILE);
        if (cfg::AHEAD)
            load_queries(w);
#pragma unroll 1
        for (int t = from; t < to; t++) {
            int key = t * cfg::KEYS;
            if (t > from && key % (32 * SL_KV_TILE) == 0)
                find(w, key / SL_KV_TILE);
            await(w, min(key + cfg::KEYS, hi));
            if constexpr (cfg::DEQUANTS)
                load_codes(key, t + 1 == to);
            else
                load(key);
        }
    }

    /* The warp of the keys takes items for all. */
    __device__ __forceinline__ void run(int n)
    {
        struct sl_attn_turn items = {0};
        int next = static_cast<int>(blockIdx.x);
        for (;; items.n++) {
            struct sl_attn_work &w = *bars.work(items.slot());
            uint32_t taken = 0;
            if (keys) {
                sl_mbar_wait(bars.work_empty(items.slot()), items.parity() ^ 1);
                sl_attn_fetch(a, next, n, &w, lane < 16);
                sl_mbar_arrive_warp(bars.work_full(items.slot()));
            } else {
                sl_mbar_wait(bars.work_full(items.slot()), items.parity());
            }
            if (!w.item.valid)
                break;
            const bool takes_first = waited;
            if (keys && lane == 0 && takes_first)
                taken = atomicAdd(&a.cls->taken, 1u);
            item(w);
            await(w, INT32_MAX);
            if (keys && lane == 0 && !takes_first)
                taken = atomicAdd(&a.cls->taken, 1u);
            if (!keys)
                sl_mbar_arrive_warp(bars.work_empty(items.slot()));
            next = static_cast<int>(gridDim.x + __shfl_sync(0xFFFFFFFFu, taken, 0));
        }
        if (cfg::DEQUANTS && keys)
            end_codes();
    }
};

/* ---------------------------------------------------------------- the warpgroups that multiply */

/* Values as they lie in 64 rows of a slot, for sl_attn_values_careful. */
template <class E, class cfg> struct sl_attn_panel_frags {
    typedef E elem;
    static constexpr int TILE = cfg::PART;
    static __device__ __forceinline__ void frags(uint32_t b[4], const uint8_t *tile, int i)
    {
        sl_kv_plain<E>::template value_frags<64>(b, tile + i / 4 * cfg::PANEL, i % 4 * 16);
    }
};

template <class KV, class cfg_> struct sl_attn_group {
    typedef cfg_ cfg;
    typedef KV pages;
    typedef typename KV::elem elem;
    typedef sl_attn_panel_frags<elem, cfg> frags;
    static constexpr int O = cfg::D / 8;   /* fragments of the sums */
    static constexpr int KEPT = cfg::KEPT; /* of the state in shared memory */
    static constexpr int FAR_AT_ONCE = 12; /* of the others, on their way from L2 */
    static_assert(KEPT == O || (O - KEPT) % FAR_AT_ONCE == 0, "whole batches");

    const struct sl_attn_args &a;
    sl_attn_bars<cfg> bars;
    struct sl_attn_turn tiles;
    int group, warp, lane; /* warp: of the group */
    int left, right;       /* tiles before, and from which on, some row does not see all */
    bool differ;           /* rows do not all see the same */
    bool stateless;        /* nothing is in the state yet, of a run */
    bool first_run;        /* of the item */
    float state_m[2], state_l[2];

    __device__ __forceinline__ sl_attn_group(const struct sl_attn_args &args,
                                             const sl_attn_bars<cfg> &barriers, int group_idx)
        : a(args), bars(barriers), tiles({0}), group(group_idx)
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 32), 0) % 4;
    }

    __device__ __forceinline__ int row0() const
    {
        return group * 64 + warp * 16;
    }

    /* The group's warps. */
    __device__ __forceinline__ void together() const
    {
        sl_bar_sync(2 + group, 128);
    }

    __device__ __forceinline__ bool is_masked(int t) const
    {
        return t < left || t >= right;
    }

    /* ---- slots */

    __device__ __forceinline__ void wait(int slot, const struct sl_attn_turn &t)
    {
        sl_mbar_wait(bars.full(slot), t.parity());
    }
    __device__ __forceinline__ void release(int slot)
    {
        sl_mbar_arrive_warp(bars.empty(slot));
    }
    __device__ __forceinline__ uint8_t *slot_at(int slot) const
    {
        return bars.smem + slot * cfg::SLOT;
    }

    /* The slot, as a number that the compiler sees to be the same in all lanes: places of operands
     * are in uniform registers, and would be moved there one by one (50 instructions a tile, 5 % of
     * the speed). */
    static __device__ __forceinline__ int uniform(int slot)
    {
        return __shfl_sync(0xFFFFFFFFu, slot, 0);
    }

    /* Scores of a slot's keys, begun. */
    __device__ __forceinline__ void scores(int slot, float (&s)[cfg::KEYS / 8][4])
    {
        auto q = sl_wgmma_b(bars.smem + cfg::Q_AT + group * cfg::BLOCK);
        auto b = sl_wgmma_b(slot_at(uniform(slot)));
        sl_wgmma_fence();
#pragma unroll
        for (int d = 0; d < cfg::D / 16; d++)
            elem::wgmma_ss(s, sl_wgmma_b_at(q, d / 4 * cfg::PANEL + d % 4 * 32),
                           sl_wgmma_b_at(b, d / 4 * (cfg::KEYS * 128) + d % 4 * 32), d > 0);
        sl_wgmma_commit();
    }

    /* ---- values that are no numbers */

    /* Do some rows see a position of tile t that others do not? What is no number there is silenced
     * by no probability. */
    __device__ __forceinline__ bool is_mixed(int t) const
    {
        return differ && is_masked(t);
    }

    /* Is one of the warp's sums no number? None is while all values are numbers: there is nothing
     * to be looked for among these. */
    template <int N> static __device__ __forceinline__ bool has_odd(const float (&o)[N][4])
    {
        float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[j] = __fmaf_rn(o[n][j], 0.0f, x[j]);
        const float any = __fadd_rn(__fadd_rn(x[0], x[1]), __fadd_rn(x[2], x[3]));
        return __any_sync(0xFFFFFFFFu, any != 0.0f) != 0;
    }

    /* ---- splits and runs */

    /* The thread's words of it, 128 float4 apart: fragments up to KEPT, and the others. */
    __device__ __forceinline__ float4 *near_state() const
    {
        return reinterpret_cast<float4 *>(bars.smem + cfg::STATE_AT) + group * (KEPT * 128) +
               static_cast<int>(threadIdx.x) % 128;
    }
    __device__ __forceinline__ float4 *far_state() const
    {
        return a.states + static_cast<int>(blockIdx.x) * (O * cfg::WORKERS) + group * (O * 128) +
               static_cast<int>(threadIdx.x) % 128;
    }

    /* FAR_AT_ONCE of the others, from n on. */
    __device__ __forceinline__ void load_far(float4 (&x)[FAR_AT_ONCE], int n) const
    {
        const float4 *from = far_state();
#pragma unroll
        for (int i = 0; i < FAR_AT_ONCE; i++)
            x[i] = __ldcg(from + (n + i) * 128);
    }

    /* RISES: else j's factors of the state are 1. */
    template <bool RISES>
    static __device__ __forceinline__ void combine_one(const struct sl_attn_combine j[2],
                                                       float (&o)[4], const float4 &x)
    {
        o[0] = RISES ? sl_attn_combined(j[0], x.x, o[0]) : __fmaf_rn(o[0], j[0].b, x.x);
        o[1] = RISES ? sl_attn_combined(j[0], x.y, o[1]) : __fmaf_rn(o[1], j[0].b, x.y);
        o[2] = RISES ? sl_attn_combined(j[1], x.z, o[2]) : __fmaf_rn(o[2], j[1].b, x.z);
        o[3] = RISES ? sl_attn_combined(j[1], x.w, o[3]) : __fmaf_rn(o[3], j[1].b, x.w);
    }

    template <bool RISES>
    __device__ __forceinline__ void combine_all(const struct sl_attn_combine j[2], float (&o)[O][4])
    {
        float4 far[FAR_AT_ONCE];
        if constexpr (KEPT < O)
            load_far(far, KEPT);
        const float4 *from = near_state();
#pragma unroll
        for (int n = 0; n < KEPT; n++)
            combine_one<RISES>(j, o[n], from[n * 128]);
#pragma unroll
        for (int n = KEPT; n < O; n += FAR_AT_ONCE) {
            if (n > KEPT)
                load_far(far, n);
#pragma unroll
            for (int i = 0; i < FAR_AT_ONCE; i++)
                combine_one<RISES>(j, o[n + i], far[i]);
        }
    }

    /* A split, o, m and l, is complete: o becomes the state that has taken it in. */
    __device__ __forceinline__ void combine(float (&o)[O][4], const float m[2], const float l[2])
    {
        if (stateless) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                state_m[i] = m[i];
                state_l[i] = l[i];
            }
            return;
        }
        struct sl_attn_combine j[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            j[i] = sl_attn_combine_of(state_m[i], m[i], a.scale2);
            state_m[i] = j[i].top;
            state_l[i] = sl_attn_combined(j[i], state_l[i], l[i]);
        }
        if (__any_sync(0xFFFFFFFFu, j[0].a != 1.0f || j[1].a != 1.0f))
            combine_all<true>(j, o);
        else
            combine_all<false>(j, o);
    }

    /* A split is complete that has combined the state, which o is: it waits for the next one, or
     * the run is complete. */
    __device__ __forceinline__ void keep_state(const struct sl_attn_work &w, int t,
                                               float (&o)[O][4], bool more)
    {
        stateless = !more || sl_attn_begins_run((t + 1) * cfg::KEYS);
        if (stateless) {
            end_run(w, t, o, more);
            return;
        }
        float4 *near = near_state(), *far = far_state();
#pragma unroll
        for (int n = 0; n < O; n++) {
            const float4 x = make_float4(o[n][0], o[n][1], o[n][2], o[n][3]);
            if (n < KEPT)
                near[n * 128] = x;
            else
                __stcg(far + n * 128, x);
        }
    }

    __device__ __forceinline__ void write_split(const struct sl_attn_work &w, int t,
                                                const float (&o)[O][4], const float m[2],
                                                const float l[2])
    {
        int slot = sl_attn_split_slot(w, sl_attn_split_of(t * cfg::KEYS));
        sl_attn_write_slot<cfg::D>(a, w, row0(), slot, o, m, l);
    }

    /* The run of tile t, o and the state's m and l, is complete. */
    __device__ __forceinline__ void end_run(const struct sl_attn_work &w, int t, float (&o)[O][4],
                                            bool more)
    {
        if (w.item.from > 0) {
            write_split(w, t, o, state_m, state_l);
            return;
        }
        sl_attn_combine_total<cfg::D, cfg::WORKERS>(a, static_cast<int>(threadIdx.x) - cfg::FIRST,
                                                    first_run, !more, o, state_m, state_l);
        first_run = false;
        if (more)
            return;
        if (w.item.rows_at < 0)
            write_out(w, o, state_m, state_l);
        else
            sl_attn_write_slot<cfg::D>(a, w, row0(), 0, o, state_m, state_l);
    }

    /* The item's result. Of each eight dimensions a lane has two, 4 bytes, and a store takes as
     * long as the rows it touches: so a row's four lanes change them for eight dimensions of
     * each 32. */
    __device__ __forceinline__ void write_out(const struct sl_attn_work &w, const float (&o)[O][4],
                                              const float m[2], const float l[2]) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = row0() + lane / 4 + 8 * i;
            const struct sl_attn_out out = sl_attn_out_of(a, w, min(row, w.item.n_rows - 1));
            const float f = sl_attn_inverse(a, m[i], l[i], out.head);
#pragma unroll
            for (int n = 0; n < O; n += 4) {
                uint32_t x[4];
#pragma unroll
                for (int k = 0; k < 4; k++)
                    x[k] = sl_attn_out2(o[n + k][2 * i], o[n + k][2 * i + 1], f, f);
                quad_transpose(x);
                if (row < w.item.n_rows && (n + lane % 4) * 8 < a.head_dim)
                    *reinterpret_cast<uint4 *>(out.to + (n + lane % 4) * 8) =
                        make_uint4(x[0], x[1], x[2], x[3]);
            }
        }
    }

    /* x[k] of lane j of four becomes x[j] of lane k. */
    __device__ __forceinline__ void quad_transpose(uint32_t (&x)[4]) const
    {
#pragma unroll
        for (int bit = 1; bit <= 2; bit *= 2) {
            const bool upper = (lane & bit) != 0;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (k & bit)
                    continue;
                const uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, upper ? x[k] : x[k + bit], bit);
                x[k] = upper ? got : x[k];
                x[k + bit] = upper ? x[k + bit] : got;
            }
        }
    }

    /* ---- an item */

    __device__ __forceinline__ void begin_item(const struct sl_attn_work &w)
    {
        left = (w.all_lo + cfg::KEYS - 1) / cfg::KEYS;
        right = w.all_hi / cfg::KEYS;
        differ = sl_attn_differ(w);
        stateless = first_run = true;
        if constexpr (cfg::AHEAD)
            take_queries(w);
        else
            load_queries(w);
    }

    __device__ __forceinline__ void load_queries(const struct sl_attn_work &w)
    {
        constexpr int PIECES = cfg::D / 8,
                      EACH = 64 * PIECES / 128; /* of eight dimensions; a thread's */
        uint8_t *at = bars.smem + cfg::Q_AT + group * cfg::BLOCK;
        float4 x[EACH][2];
        together(); /* nobody multiplies the last item's any more */
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            int unit = warp * 32 + lane + k * 128, d = unit % PIECES * 8;
            const float *query = sl_attn_query_row(a, w, group * 64 + unit / PIECES);
            bool any = query != nullptr && d < a.head_dim;
            const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            x[k][0] = any ? *reinterpret_cast<const float4 *>(query + d) : zero;
            x[k][1] = any ? *reinterpret_cast<const float4 *>(query + d + 4) : zero;
        }
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            int unit = warp * 32 + lane + k * 128, row = unit / PIECES, piece = unit % PIECES;
            *reinterpret_cast<uint4 *>(at + piece / 8 * cfg::PANEL + row * 128 +
                                       ((piece ^ row) & 7) * 16) =
                make_uint4(elem::pack(x[k][0].x, x[k][0].y), elem::pack(x[k][0].z, x[k][0].w),
                           elem::pack(x[k][1].x, x[k][1].y), elem::pack(x[k][1].z, x[k][1].w));
        }
        sl_fence_proxy_async();
        together();
    }

    /* The same of what was loaded to a slot: a warp has a row at a time. */
    __device__ __forceinline__ void take_queries(const struct sl_attn_work &w)
    {
        const int slot = group == 0 ? tiles.keys() : tiles.values();
        const int other = group == 0 ? tiles.values() : tiles.keys();
        const int n_rows = lane * 4 < a.head_dim ? w.item.n_rows - group * 64 : 0;
        const float4 *from = reinterpret_cast<const float4 *>(slot_at(slot)) + lane;
        uint8_t *at = bars.smem + cfg::Q_AT + group * cfg::BLOCK + lane / 16 * cfg::PANEL;
        together(); /* nobody multiplies the last item's any more */
        wait(slot, tiles);
#pragma unroll 8
        for (int row = warp; row < 64; row += 4) {
            uint2 x = make_uint2(0, 0);
            if (row < n_rows) {
                const float4 q = from[row * (a.head_dim / 4)];
                x = make_uint2(elem::pack(q.x, q.y), elem::pack(q.z, q.w));
            }
            *reinterpret_cast<uint2 *>(at + row * 128 + ((lane / 2 ^ row) & 7) * 16 +
                                       lane % 2 * 8) = x;
        }
        sl_fence_proxy_async();
        together();
        release(slot);
        wait(other, tiles);
        release(other);
        tiles.n++;
    }

    /* The group has no rows. */
    __device__ __forceinline__ void idle(int from, int to)
    {
#pragma unroll 1
        for (int t = cfg::AHEAD ? from - 1 : from; t < to; t++, tiles.n++) {
            wait(tiles.keys(), tiles);
            release(tiles.keys());
            wait(tiles.values(), tiles);
            release(tiles.values());
        }
    }
};

/* ---------------------------------------------------------------- the kernel */

/* The warps that make of pages what is multiplied: attention_dequant.cuh. */
template <class KV, class cfg> struct sl_attn_dequant;

template <class Way>
static __global__ void __launch_bounds__((Way::cfg::THREADS), (Way::cfg::CTAS))
    sl_attn_group_kernel(const __grid_constant__ struct sl_attn_args a)
{
    typedef typename Way::cfg cfg;
    SL_SMEM(uint8_t, smem);
    const sl_attn_bars<cfg> bars = {smem};
    sl_grid_launch_dependents();
    if (threadIdx.x == 0)
        bars.init();
    __syncthreads();
    if (!cfg::LONE || !a.early || threadIdx.x >= cfg::FIRST)
        sl_grid_wait();
    /* The same in all lanes, as the compiler shall see: products do not run in divergent code. */
    const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 128), 0);
    if (group < cfg::FIRST / 128) {
        if constexpr (cfg::SHARES_REGS)
            sl_regs_give<cfg::BRING_REGS>();
        if (threadIdx.x < 64) {
            sl_attn_bring<typename Way::pages, cfg> x(a, bars);
            x.run(__ldcg(&a.cls->n_items) * a.n_kv_heads);
        } else if constexpr (cfg::DEQUANTS) {
            const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 32), 0);
            if (warp >= cfg::DEQUANT_WARP)
                sl_attn_dequant<typename Way::pages, cfg>(bars, warp - cfg::DEQUANT_WARP).run();
        }
        if (cfg::LONE)
            sl_grid_wait();
        if (threadIdx.x == 0 && atomicAdd(&a.cls->done, 1u) + 1 == gridDim.x) {
            a.cls->taken = 0; /* for the next layer */
            a.cls->done = 0;
        }
        return;
    }
    if constexpr (cfg::SHARES_REGS)
        sl_regs_take<cfg::REGS>();
    Way x(a, bars, group - cfg::FIRST / 128);
    struct sl_attn_turn items = {0};
    for (;; items.n++) {
        const struct sl_attn_work &w = *bars.work(items.slot());
        sl_mbar_wait(bars.work_full(items.slot()), items.parity());
        if (!w.item.valid)
            return;
        x.item(w);
        sl_mbar_arrive_warp(bars.work_empty(items.slot()));
    }
}

#endif
