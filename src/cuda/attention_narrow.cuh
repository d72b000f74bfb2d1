/* SPDX-License-Identifier: MIT
 * attention_narrow.cuh - paged attention for tiles of up to 16 rows: decodes, and a few drafts.
 *
 * Bound by memory, so loads stay under way: each of a block's four warps works alone on every
 * fourth split of the block's item, through a ring of its own, which runs on into the next item. No
 * barrier but between items. Splits of a run join in order through a state in shared memory: a warp
 * waits for its turn, which the warp with the split before passes on. For a short sequence
 * instructions count that are executed once: a step is loaded by two instructions, whole page tiles
 * at a time.
 *
 * Keys before a span's position were written by steps before this one, and the list of items by a
 * kernel that is complete when the one ahead of this one begins (`early`): so both are read, and
 * the first loads are under way, before the wait for the kernel ahead.
 *
 * D = 128 on an H200 (132 SMs, 4.6 TB/s read, 1.75 GHz): a tile is 32 KiB, a share of 1,640 clk of
 * an SM's bandwidth; a warp needs some 1,500 clk for it alone, and eight warps work at a time. In
 * flight: 8 warps x 2 to 3 steps of 8 KiB = 128 to 192 KiB an SM; 4.7 TB/s x 800 ns / 132 = 28 KiB
 * are needed. Seen: 93 to 98 % of the read stream from 16 sequences of 32,768 positions or 64 of
 * 4,096 on; one sequence of 512 positions takes 9.4 us (four splits of eight key heads, then the
 * last joins four), where 2 us behind the wait were expected.
 *
 * With skip-softmax whether a tile's values are wanted is known by its scores. So the stream is one
 * of keys alone, and values come into the slots of the keys they belong to, which are loaded anew
 * after that: in flight are a tile's values and the next one's first keys, which is what it is
 * without.
 *
 * nvcc 13.0, sm_90a; blocks of an SM: 2, for D = 256: 1. D = 128: 255 registers, no spills.
 */
#ifndef SL_CUDA_ATTENTION_NARROW_CUH
#define SL_CUDA_ATTENTION_NARROW_CUH

#include "cuda/attention_tile.cuh"

/* ---------------------------------------------------------------- sizes */

template <class KV, int D, bool SKIP = false> struct sl_attn_narrow_cfg {
    static constexpr int WARPS = 4;
    static constexpr int THREADS = 32 * WARPS;
    static constexpr int CTAS = D <= 128 ? 2 : 1; /* of an SM */
    static constexpr int STEP = 32;               /* keys loaded at a time */
    static constexpr int HALVES = SL_ATTN_TILE / STEP;
    static constexpr int STEPS = SKIP ? HALVES : 2 * HALVES; /* of a tile: its keys, its values */
    static constexpr int TILE = KV::tile_bytes(D);           /* of a page */
    static constexpr int SLOT = STEP / SL_KV_TILE * TILE;
    static constexpr int STATE = 64 * D + 512;
    static constexpr int ROOM = (CTAS == 2 ? 112 : 225) * 1024 - STATE - (SKIP ? TILE : 0);
    static constexpr int FIT = ROOM / (WARPS * SLOT);
    static constexpr int SLOTS = FIT > 8 ? 8 : FIT;       /* of a warp */
    static constexpr bool KEEP_Q = D <= 128;              /* in registers */
    static constexpr int STATE_AT = WARPS * SLOTS * SLOT; /* float4 [D / 8][32], [32] */
    static constexpr int TURN_AT = STATE_AT + STATE;      /* mbarriers, one per warp */
    static constexpr int FULL_AT = TURN_AT + 8 * WARPS;   /* mbarriers, one per slot */
    static constexpr int FLAG_AT = FULL_AT + 8 * WARPS * SLOTS;
    static constexpr int BEST_AT = FLAG_AT + 8; /* mbarrier of the sequence's first keys */
    static constexpr int WORK_AT = FLAG_AT + 16;
    static constexpr int WORKS = 4; /* the last item, this one, the next, the one after it */
    static constexpr int FIRST_AT =
        (WORK_AT + WORKS * static_cast<int>(sizeof(struct sl_attn_work)) + 127) / 128 * 128;
    static constexpr int BYTES = FIRST_AT + (SKIP ? TILE : 0);
    static_assert(FIT >= 3, "shared memory");
};

/* ---------------------------------------------------------------- a warp's loads */

/* The splits of an item some of whose keys are seen; the warp has each fourth from `first` on. */
struct sl_attn_range {
    int first, to;
};

static __device__ __forceinline__ struct sl_attn_range sl_attn_range_of(
    const struct sl_attn_work &w, int warp)
{
    struct sl_attn_range r;
    r.first = max(w.item.from, sl_attn_split_of(w.key_lo)) + warp;
    r.to = w.item.to;
    return r;
}

/* A warp's stream of steps: of each tile the keys, then the values, STEP positions at a time. All
 * slots are loaded that are not in use. Once the stream has ended (the next item was not known), it
 * starts anew with an item, when everything was used. */
template <class KV, int D, bool SKIP> struct sl_attn_feed {
    typedef sl_attn_narrow_cfg<KV, D, SKIP> cfg;

    const struct sl_attn_args &a;
    const struct sl_attn_work *works;
    uint8_t *slots;
    uint64_t *full;
    int warp, lane;
    int load_slot, use_slot;
    uint32_t parity;       /* of use_slot's phase; with SKIP bit i is that of slot i */
    int item;              /* of the block's, whose loads are under way */
    int split;             /* of the tile; -1: the stream has ended */
    int tile, tile_to;     /* whose loads are under way, and where the split ends */
    int tile_at;           /* its first 16 positions, of the split's */
    unsigned long long at; /* lane i: where the i-th 16 positions of the split lie in a plane */
    /* The split after it: its item (-1: none known), itself, and the lane's page. */
    int next_item, next_split, next_page;

    __device__ __forceinline__ sl_attn_feed(const struct sl_attn_args &args, uint8_t *smem)
        : a(args), works(reinterpret_cast<struct sl_attn_work *>(smem + cfg::WORK_AT))
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        warp = static_cast<int>(threadIdx.x) >> 5;
        slots = smem + warp * (cfg::SLOTS * cfg::SLOT);
        full = reinterpret_cast<uint64_t *>(smem + cfg::FULL_AT) + warp * cfg::SLOTS;
        load_slot = use_slot = 0;
        parity = 0;
        split = next_item = item = -1;
        at = 0;
    }

    __device__ __forceinline__ const struct sl_attn_work &work(int i) const
    {
        return works[i % cfg::WORKS];
    }

    /* Finds the split `from` of item i, or else the first of the next item, if that is known, and
     * asks for its pages. */
    __device__ __forceinline__ void look(int i, int from, int known)
    {
        next_item = -1;
        if (from >= work(i).item.to) {
            if (++i >= known || !work(i).item.valid)
                return;
            from = sl_attn_range_of(work(i), warp).first;
            if (from >= work(i).item.to)
                return;
        }
        const struct sl_attn_work &w = work(i);
        int pos = sl_attn_split_at(from) + lane * SL_KV_TILE;
        bool wanted =
            pos < min(sl_attn_split_at(from + 1), w.key_hi) && pos + SL_KV_TILE > w.key_lo;
        next_item = i;
        next_split = from;
        next_page = wanted ? a.tables[w.item.table + sl_attn_div(pos / SL_KV_TILE, a.by_page)] : 0;
    }

    /* Enters the split that was looked for. */
    __device__ __forceinline__ void enter(int known)
    {
        split = -1;
        if (next_item < 0)
            return;
        item = next_item;
        split = next_split;
        const struct sl_attn_work &w = work(item);
        int from = sl_attn_split_at(split), unit = from / SL_KV_TILE + lane;
        int sub = unit + (w.item.kv - sl_attn_div(unit, a.by_page)) * a.by_page.by;
        at = static_cast<unsigned>(next_page) * static_cast<unsigned long long>(a.page_bytes) +
             static_cast<unsigned>(sub) * static_cast<unsigned long long>(cfg::TILE);
        tile = max(from, w.key_lo) / SL_ATTN_TILE;
        tile_to = (min(sl_attn_split_at(split + 1), w.key_hi) + SL_ATTN_TILE - 1) / SL_ATTN_TILE;
        tile_at = (tile * SL_ATTN_TILE - from) / SL_KV_TILE;
        look(item, split + cfg::WARPS, known);
    }

    /* Where the lane's 16 positions of a split of an item lie, as enter finds it. */
    __device__ __forceinline__ unsigned long long find(const struct sl_attn_work &w, int from) const
    {
        int unit = sl_attn_split_at(from) / SL_KV_TILE + lane, pos = unit * SL_KV_TILE;
        int page = sl_attn_div(unit, a.by_page);
        bool wanted = pos < min(sl_attn_split_at(from + 1), w.key_hi);
        int id = wanted ? a.tables[w.item.table + page] : 0;
        int sub = unit + (w.item.kv - page) * a.by_page.by;
        return static_cast<unsigned>(id) * static_cast<unsigned long long>(a.page_bytes) +
               static_cast<unsigned>(sub) * static_cast<unsigned long long>(cfg::TILE);
    }

    /* Brings the values of half h of a tile into a slot that was read; from: the tile's first 16
     * positions, of those of its split, which lie `where`. */
    __device__ __forceinline__ void load_values(const struct sl_attn_work &w, int slot, int t,
                                                int h, int from, unsigned long long where)
    {
        int i = lane - from - h * (cfg::STEP / SL_KV_TILE);
        int key = t * SL_ATTN_TILE + h * cfg::STEP + i * SL_KV_TILE;
        bool mine = i >= 0 && i < cfg::STEP / SL_KV_TILE && key < w.key_hi;
        int n = __popc(__ballot_sync(0xFFFFFFFFu, mine));
        if (i == 0)
            sl_mbar_expect_tx(full + slot, static_cast<uint32_t>(n * cfg::TILE));
        __syncwarp();
        if (mine)
            sl_bulk_load_once(slots + slot * cfg::SLOT + i * cfg::TILE, a.values + where, cfg::TILE,
                              full + slot);
    }

    /* What comes next in a slot, there for all lanes. */
    __device__ __forceinline__ uint8_t *wait(int slot)
    {
        sl_mbar_wait(full + slot, parity >> slot & 1);
        parity ^= 1u << slot;
        return slots + slot * cfg::SLOT;
    }

    /* Was all that a step of the tile loads written by steps before this one? */
    __device__ __forceinline__ bool is_old(int step) const
    {
        int to = tile * SL_ATTN_TILE + (step % cfg::HALVES + 1) * cfg::STEP;
        return split >= 0 && to <= work(item).item.pos;
    }

    /* Starts the copies of a step of the tile: the lane that knows a page brings its tile, if
     * somebody sees something of it. */
    __device__ __forceinline__ void load(int step)
    {
        if (split < 0)
            return;
        const struct sl_attn_work &w = work(item);
        int first = tile_at + step % cfg::HALVES * (cfg::STEP / SL_KV_TILE), i = lane - first;
        int key = tile * SL_ATTN_TILE + step % cfg::HALVES * cfg::STEP + i * SL_KV_TILE;
        bool mine =
            i >= 0 && i < cfg::STEP / SL_KV_TILE && key < w.key_hi && key + SL_KV_TILE > w.key_lo;
        int n = __popc(__ballot_sync(0xFFFFFFFFu, mine));
        if (i == 0)
            sl_mbar_expect_tx(full + load_slot, static_cast<uint32_t>(n * cfg::TILE));
        __syncwarp();
        if (mine)
            sl_bulk_load_once(slots + load_slot * cfg::SLOT + i * cfg::TILE,
                              (step < cfg::HALVES ? a.keys : a.values) + at, cfg::TILE,
                              full + load_slot);
        load_slot = load_slot + 1 == cfg::SLOTS ? 0 : load_slot + 1;
    }

    /* Begins with item i; nothing is under way. */
    __device__ __forceinline__ void begin(int i)
    {
        look(i, sl_attn_range_of(work(i), warp).first, i + 1);
        enter(i + 2);
    }

    /* The loads of the slot that comes free with `step` of the tile in use. */
    __device__ __forceinline__ void refill(int step, int known)
    {
        sl_fence_proxy_async(); /* what was read there, the copy engine writes next */
        __syncwarp();
        step = (step + cfg::SLOTS) % cfg::STEPS;
        if (step == 0)
            advance(known);
        load(step);
    }

    /* To the next tile. */
    __device__ __forceinline__ void advance(int known)
    {
        tile++;
        tile_at += SL_ATTN_TILE / SL_KV_TILE;
        if (split >= 0 && tile == tile_to)
            enter(known);
    }

    /* The next step, there for all lanes. */
    __device__ __forceinline__ uint8_t *next()
    {
        uint8_t *slot = slots + use_slot * cfg::SLOT;
        sl_mbar_wait(full + use_slot, parity);
        if (++use_slot == cfg::SLOTS) {
            use_slot = 0;
            parity ^= 1;
        }
        return slot;
    }
};

/* ---------------------------------------------------------------- a warp's split */

template <class KV, int D, bool SKIP> struct sl_attn_narrow {
    typedef sl_attn_narrow_cfg<KV, D, SKIP> cfg;
    typedef sl_attn_page_frags<KV, D> frags;
    typedef typename KV::elem elem;
    static constexpr int TILES = cfg::STEP / SL_KV_TILE; /* of a step */

    const struct sl_attn_args &a;
    uint8_t *smem;
    struct sl_attn_feed<KV, D, SKIP> feed;
    struct sl_attn_rows rows;
    int warp, lane;
    uint32_t turn;                 /* parity of the next turn to wait for */
    bool tall;                     /* more than eight rows */
    const float *query[2];         /* of the rows; NULL: none */
    struct sl_attn_limit limit[2]; /* of skip-softmax */
    uint32_t best;                 /* parity of the phase of the sequence's first keys */
    uint32_t q[cfg::KEEP_Q ? D / 16 : 1][4];
    float o[D / 8][4], m[2], l[2];

    __device__ __forceinline__ sl_attn_narrow(const struct sl_attn_args &args, uint8_t *base)
        : a(args), smem(base), feed(args, base)
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        warp = static_cast<int>(threadIdx.x) >> 5;
        turn = 0;
    }

    /* 16 dimensions of the rows as an A operand. */
    __device__ __forceinline__ void load_query(uint32_t to[4], int d) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = d * 16 + 8 * (i >> 1) + lane % 4 * 2;
            to[i] = sl_attn_query2<elem>(query[i & 1], at, a.head_dim);
        }
    }

    __device__ __forceinline__ void begin_item(const struct sl_attn_work &w)
    {
        rows = sl_attn_rows_of(a, w, lane / 4);
        tall = w.item.n_rows > 8;
#pragma unroll
        for (int i = 0; i < 2; i++)
            query[i] = sl_attn_query_row(a, w, lane / 4 + 8 * i);
        if constexpr (cfg::KEEP_Q) {
#pragma unroll
            for (int d = 0; d < D / 16; d++)
                load_query(q[d], d);
        }
    }

    /* Skip-softmax: what tiles are compared with. */
    __device__ __forceinline__ void load_limits(const struct sl_attn_work &w)
    {
        limit[0].reach = limit[1].reach = limit[0].first = limit[1].first = -SL_ATTN_INF;
        if (!sl_attn_skips(a, w))
            return;
        float s[2][4] = {};
        sl_mbar_wait(reinterpret_cast<uint64_t *>(smem + cfg::BEST_AT), best);
        scores<1>(smem + cfg::FIRST_AT, s);
        sl_fence_proxy_async(); /* before they are brought anew */
        sl_attn_cap_and_mask(a, rows, s, 0, false, tall);
        sl_attn_limits(a, w, rows, 0, s, limit);
    }

    /* One thread begins to bring the first keys for an item. */
    __device__ __forceinline__ void bring_first(const struct sl_attn_work &w)
    {
        uint64_t *full = reinterpret_cast<uint64_t *>(smem + cfg::BEST_AT);
        const unsigned long long at = static_cast<unsigned>(a.tables[w.item.table]) *
                                          static_cast<unsigned long long>(a.page_bytes) +
                                      static_cast<unsigned>(w.item.kv * a.by_page.by) *
                                          static_cast<unsigned long long>(cfg::TILE);
        sl_mbar_expect_tx(full, cfg::TILE);
        sl_bulk_load(smem + cfg::FIRST_AT, a.keys + at, cfg::TILE, full);
    }

    /* Scores of N times 16 keys. */
    template <int N> __device__ __forceinline__ void scores(const uint8_t *keys, float s[2 * N][4])
    {
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t mine[4];
            if constexpr (!cfg::KEEP_Q)
                load_query(mine, d);
            const uint32_t *x = cfg::KEEP_Q ? q[cfg::KEEP_Q ? d : 0] : mine;
#pragma unroll
            for (int k = 0; k < N; k++) {
                uint32_t b[4];
                KV::template key_frags<D>(b, keys + k * cfg::TILE, d * 16);
                elem::mma(s[2 * k], x, b);
                elem::mma(s[2 * k + 1], x, b + 2);
            }
        }
    }

    /* Of STEP keys from `key` on. masked: some are not seen by some row. */
    __device__ __forceinline__ void values(const struct sl_attn_work &w, const uint32_t (*p)[4],
                                           uint8_t *slot, int key, bool masked)
    {
        if (masked) {
            if (key >= w.key_hi || key + cfg::STEP <= w.key_lo)
                return;
            sl_attn_clear<KV, D>(w, slot, TILES, key, lane, 32);
            sl_fence_proxy_async(); /* before the slot is loaded anew */
            __syncwarp();
            if (w.all_hi != w.key_hi /* several tokens */ &&
                sl_attn_unclean<frags, D, TILES>(slot)) {
                sl_attn_values_careful<frags, D, TILES>(a, rows, o, p, slot, key);
                return;
            }
        }
        sl_attn_values<frags, D, TILES>(o, p, slot);
    }

    __device__ __forceinline__ void scale(int i, float factor)
    {
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            o[n][2 * i] = __fmul_rn(o[n][2 * i], factor);
            o[n][2 * i + 1] = __fmul_rn(o[n][2 * i + 1], factor);
        }
    }

    __device__ __forceinline__ void tile(const struct sl_attn_work &w, int t, bool first, int known)
    {
        float s[8][4], top[2], alpha[2], base[2];
        uint32_t p[4][4];
        bool masked = sl_attn_masked(w, t);
#pragma unroll
        for (int f = 0; f < 8; f++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[f][i] = 0.0f;
#pragma unroll
        for (int h = 0; h < cfg::HALVES; h++) {
            scores<TILES>(feed.next(), s + h * (cfg::STEP / 8));
            feed.refill(h, known);
        }
        sl_attn_cap_and_mask(a, rows, s, t * SL_ATTN_TILE, masked, tall);
        sl_attn_row_max(s, top, tall);
        sl_attn_raise(a.scale2, m, top, alpha, base);
        sl_attn_exp<elem>(a.scale2, s, base, alpha, p, l, tall);
        if (!first) {
            scale(0, alpha[0]);
            if (tall)
                scale(1, alpha[1]);
        }
#pragma unroll
        for (int h = 0; h < cfg::HALVES; h++) {
            values(w, p + h * TILES, feed.next(), t * SL_ATTN_TILE + h * cfg::STEP, masked);
            feed.refill(cfg::HALVES + h, known);
        }
    }

    /* The same with skip-softmax. first: nothing was taken in yet. from, where: as load_values has
     * them. */
    __device__ __forceinline__ void tile_or_not(const struct sl_attn_work &w, int t, bool &first,
                                                int known, int from, unsigned long long where)
    {
        float s[8][4], top[2], alpha[2], base[2];
        uint32_t p[4][4];
        bool masked = sl_attn_masked(w, t), takes[2];
        int slot[cfg::HALVES];
#pragma unroll
        for (int f = 0; f < 8; f++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[f][i] = 0.0f;
#pragma unroll
        for (int h = 0; h < cfg::HALVES; h++) {
            slot[h] = feed.use_slot;
            feed.use_slot = feed.use_slot + 1 == cfg::SLOTS ? 0 : feed.use_slot + 1;
            scores<TILES>(feed.wait(slot[h]), s + h * (cfg::STEP / 8));
        }
        sl_attn_cap_and_mask(a, rows, s, t * SL_ATTN_TILE, masked, tall);
        const bool any = sl_attn_takes<8>(s, limit, m, tall, takes);
        sl_attn_count(a, rows, t * SL_ATTN_TILE, limit, takes, any);
        if (!any) {
#pragma unroll
            for (int h = 0; h < cfg::HALVES; h++)
                feed.refill(h, known);
            return;
        }
        sl_fence_proxy_async(); /* as in refill */
        __syncwarp();
#pragma unroll
        for (int h = 0; h < cfg::HALVES; h++)
            feed.load_values(w, slot[h], t, h, from, where);
        sl_attn_row_max(s, top, tall);
        sl_attn_raise_taken(a.scale2, takes, m, top, alpha, base);
        sl_attn_exp<elem>(a.scale2, s, base, alpha, p, l, tall);
        if (!first) {
            scale(0, alpha[0]);
            if (tall)
                scale(1, alpha[1]);
        }
        first = false;
#pragma unroll
        for (int h = 0; h < cfg::HALVES; h++) {
            values(w, p + h * TILES, feed.wait(slot[h]), t * SL_ATTN_TILE + h * cfg::STEP, masked);
            feed.refill(h, known);
        }
    }

    /* Row i of the state onto that of the split. */
    __device__ __forceinline__ void join_row(int i, const float2 *state, float top, float sum)
    {
        const struct sl_attn_join j = sl_attn_join_of(top, m[i], a.scale2);
        l[i] = sl_attn_joined(j, sum, l[i]);
        m[i] = j.top;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const float2 x = state[(n * 2 + i) * 32];
            o[n][2 * i] = sl_attn_joined(j, x.x, o[n][2 * i]);
            o[n][2 * i + 1] = sl_attn_joined(j, x.y, o[n][2 * i + 1]);
        }
    }

    /* The split onto the state of its run, when it is its turn, and a complete run onto those
     * before it, or to its slot. */
    __device__ __forceinline__ void join(const struct sl_attn_work &w, int split, int begin)
    {
        uint64_t *turns = reinterpret_cast<uint64_t *>(smem + cfg::TURN_AT);
        float2 *state = reinterpret_cast<float2 *>(smem + cfg::STATE_AT) + lane;
        float4 *ml = reinterpret_cast<float4 *>(smem + cfg::STATE_AT + 64 * D) + lane;
        const bool last = split + 1 == w.item.to;
        if (split != begin) {
            sl_mbar_wait(turns + warp, turn);
            turn ^= 1;
        }
        if (split != begin && !sl_attn_begins_run(sl_attn_split_at(split))) {
            const float4 was = *ml;
            join_row(0, state, was.x, was.z);
            if (tall)
                join_row(1, state, was.y, was.w);
        }
        if (last || sl_attn_begins_run(sl_attn_split_at(split + 1))) {
            end_run(w, split, sl_attn_run_of(split) == sl_attn_run_of(begin), last);
        } else {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (i == 1 && !tall)
                    break;
#pragma unroll
                for (int n = 0; n < D / 8; n++)
                    state[(n * 2 + i) * 32] = make_float2(o[n][2 * i], o[n][2 * i + 1]);
            }
            *ml = make_float4(m[0], m[1], l[0], l[1]);
        }
        if (!last)
            sl_mbar_arrive_warp(turns + (warp + 1) % cfg::WARPS);
    }

    __device__ __forceinline__ void end_run(const struct sl_attn_work &w, int split, bool first,
                                            bool last)
    {
        int slot = sl_attn_split_slot(w, split);
        if (w.item.from == 0) {
            sl_attn_join_total<D, 32>(a, lane, first, last, o, m, l);
            if (!last)
                return;
            slot = 0;
        }
        if (w.item.rows_at < 0)
            sl_attn_write_out<D>(a, w, 0, o, m, l);
        else
            sl_attn_write_slot<D>(a, w, 0, slot, o, m, l);
    }

    /* The warp's splits of an item. */
    __device__ __forceinline__ void splits(const struct sl_attn_work &w, int known)
    {
        struct sl_attn_range r = sl_attn_range_of(w, warp);
        const int begin = r.first - warp;
        if (r.first < r.to) {
            begin_item(w);
            if constexpr (SKIP)
                load_limits(w);
        }
#pragma unroll 1
        for (int split = r.first; split < r.to; split += cfg::WARPS) {
            int t = max(sl_attn_split_at(split), w.key_lo) / SL_ATTN_TILE;
            int to = (min(sl_attn_split_at(split + 1), w.key_hi) + SL_ATTN_TILE - 1) / SL_ATTN_TILE;
            clear();
            bool first = true;
            if constexpr (SKIP) {
                const unsigned long long where = feed.find(w, split);
                const int at = sl_attn_split_at(split);
#pragma unroll 1
                for (; t < to; t++)
                    tile_or_not(w, t, first, known, (t * SL_ATTN_TILE - at) / SL_KV_TILE, where);
            } else {
#pragma unroll 1
                for (; t < to; t++, first = false)
                    tile(w, t, first, known);
            }
#pragma unroll
            for (int i = 0; i < 2; i++)
                l[i] = sl_attn_row_sum(l[i]);
            if (w.item.from == 0 || sl_attn_by_run(w))
                join(w, split, begin);
            else
                sl_attn_write_slot<D>(a, w, 0, sl_attn_split_slot(w, split), o, m, l);
        }
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[n][j] = 0.0f;
        m[0] = m[1] = -SL_ATTN_INF;
        l[0] = l[1] = 0.0f;
    }
};

/* ---------------------------------------------------------------- the kernel */

/* Item k of a block: its own index, then that behind all blocks' first, then whatever is next. It
 * is known one item ahead, so that loads run on. */
template <class KV, int D, bool SKIP = false>
static __global__ void __launch_bounds__((sl_attn_narrow_cfg<KV, D>::THREADS),
                                         (sl_attn_narrow_cfg<KV, D>::CTAS))
    sl_attn_narrow_kernel(const __grid_constant__ struct sl_attn_args a)
{
    typedef sl_attn_narrow_cfg<KV, D, SKIP> cfg;
    SL_SMEM(uint8_t, smem);
    struct sl_attn_work *works = reinterpret_cast<struct sl_attn_work *>(smem + cfg::WORK_AT);
    uint64_t *bars = reinterpret_cast<uint64_t *>(smem + cfg::TURN_AT);
    const int grid = static_cast<int>(gridDim.x), warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    sl_grid_launch_dependents();
    sl_mbar_init_all(bars, cfg::WARPS, SL_WARP_ARRIVALS); /* turns */
    sl_mbar_init_all(bars + cfg::WARPS, cfg::WARPS * cfg::SLOTS, 1);
    if constexpr (SKIP)
        sl_mbar_init_all(reinterpret_cast<uint64_t *>(smem + cfg::BEST_AT), 1, 1);
    sl_mbar_fence_init();
    if (!a.early)
        sl_grid_wait();
    const int n = __ldcg(&a.cls->n_items) * a.n_kv_heads;
    if (warp == 0)
        sl_attn_fetch(a, static_cast<int>(blockIdx.x) + (lane < 16 ? 0 : grid), n,
                      works + lane / 16, true);
    __syncthreads();
    /* Blocks without work make room for the kernel behind; one waits, so that this grid does not
     * end before the one ahead of it. */
    if (a.early && blockIdx.x > 0 && !works[0].item.valid) {
        sl_grid_leave();
        return;
    }
    sl_attn_narrow<KV, D, SKIP> x(a, smem);
    int loaded = 0;
    uint32_t n_firsts = 0;
#pragma unroll 1
    for (int k = 0; works[k % cfg::WORKS].item.valid; k++) {
        const struct sl_attn_work &w = works[k % cfg::WORKS];
        if (SKIP && sl_attn_skips(a, w)) {
            x.best = n_firsts++ & 1;
            if (threadIdx.x == 0)
                x.bring_first(w);
        }
        if (x.feed.item != k) {
            x.feed.begin(k);
            loaded = 0;
        }
#pragma unroll 1
        for (; loaded < cfg::SLOTS; loaded++) {
            if (loaded > 0 && loaded % cfg::STEPS == 0)
                x.feed.advance(k + 2);
            if (k == 0 && !(a.early && x.feed.is_old(loaded)))
                sl_grid_wait();
            x.feed.load(loaded % cfg::STEPS);
        }
        if (k == 0)
            sl_grid_wait();
        uint32_t taken = 0;
        if (n > 2 * grid && threadIdx.x == 0)
            taken = atomicAdd(&a.cls->taken, 1u);
        x.splits(w, k + 2);
        if (warp == 0)
            sl_attn_fetch(a, 2 * grid + __shfl_sync(0xFFFFFFFFu, static_cast<int>(taken), 0),
                          n > 2 * grid ? n : 0, works + (k + 2) % cfg::WORKS, lane < 16);
        if (w.item.rows_at >= 0) {
            sl_fence_gpu();
            sl_attn_arrive<D, cfg::THREADS>(a, w, static_cast<int>(threadIdx.x),
                                            reinterpret_cast<int *>(smem + cfg::FLAG_AT));
        }
        __syncthreads();
    }
    sl_grid_wait();
    if (n > 2 * grid && threadIdx.x == 0 && atomicAdd(&a.cls->done, 1u) + 1 == gridDim.x) {
        a.cls->taken = 0; /* for the next layer */
        a.cls->done = 0;
    }
}

#endif
