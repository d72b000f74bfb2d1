/* SPDX-License-Identifier: MIT
 * attention_narrow.cuh - paged attention for tiles of up to 16 rows: decodes, and a few drafts.
 *
 * Bound by memory, so loads stay under way: each of a block's four warps works alone on every
 * fourth split of the block's items (attention_assign.cuh), through a ring of its own, which runs
 * on into the next items. No barrier but after items that leave slots. Splits of a run combine in
 * order through a state in shared memory: a warp waits for its turn, which the warp with the split
 * before passes on. For a short sequence instructions count that are executed once: a step is
 * loaded by two instructions, whole page tiles at a time. Where the next split is another item's,
 * its queries are asked for before this one combines, or each split of a short sequence would wait
 * for them.
 *
 * Keys, and dimensions of values, are rows of the matrix instruction and queries its eight columns:
 * scores^T = K Q^T, sums^T = V^T P^T. As 16 rows the four or eight queries that share a key head
 * would fill a half or less. N is 1 where no tile has more than eight rows, else 2. movmatrix turns
 * scores into rows, so that a lane has what the sums of attention.cuh want of its row, and p as it
 * comes out of these is a second operand.
 *
 * Keys before a span's position were written by steps before this one, and the list of items by a
 * kernel that is complete when the one ahead of this one begins (`early`): so both are read, and
 * the first loads are under way, before the wait for the previous kernel.
 *
 * D = 128 on an H200 (132 SMs, 4.6 TB/s read, 1.75 GHz): a tile is 32 KiB, a share of 1,640 clk of
 * an SM's bandwidth, and eight warps work at a time. In flight: 8 warps x 2 to 3 steps of 8 KiB =
 * 128 to 192 KiB an SM; 4.7 TB/s x 800 ns / 132 = 28 KiB are needed. Of FP8 a warp alone takes
 * 1,600 instructions for a tile, 3 clk each (ncu), most of them to make BF16 of codes, so that a
 * block by itself on its SM reads half of what the SM could. Two blocks of an SM are as fast
 * as three, whose 168 registers spill; four of 128 are up to a fifth slower.
 *
 * With skip-softmax whether a tile's values are wanted is known by its scores. So the stream is one
 * of keys alone, and values come into the slots of the keys they belong to, which are loaded anew
 * after that: in flight are a tile's values and the next one's first keys, which is what it is
 * without.
 *
 * nvcc 13.0, sm_90a; blocks of an SM: 2, for D = 256: 1. D = 128: 248 registers (N = 1), 255, where
 * the combine of many slots spills 16 bytes.
 */
#ifndef SL_CUDA_ATTENTION_NARROW_CUH
#define SL_CUDA_ATTENTION_NARROW_CUH

#include "cuda/attention/attention_assign.cuh"
#include "cuda/attention/attention_combine.cuh"
#include "cuda/ptx_turn.cuh"

/* ---------------------------------------------------------------- sizes */

/* N: times eight rows of a tile, at most. */
template <class KV, int D, int N, bool SKIP = false> struct sl_attn_narrow_cfg {
    static constexpr int WARPS = 4;
    static constexpr int THREADS = 32 * WARPS;
    static constexpr int CTAS = D <= 128 ? 2 : 1;  /* of an SM */
    static constexpr int TILE = KV::tile_bytes(D); /* of a page */
    /* where items are short, the scores of eight rows and 128 keys (attention_short.cuh) */
    static constexpr int SCORES = N == 1 ? SL_ATTN_FEW * (2 * SL_ATTN_TILE + 8) * 4 : 0;
    static constexpr int COMBINE = sl_attn_combine_many<D, N, THREADS>::BYTES;
    static constexpr int MOST = SCORES > COMBINE ? SCORES : COMBINE;
    static constexpr int STATE = (32 * D * N > MOST ? 32 * D * N : MOST) + 512;
    static constexpr int ROOM = 227 * 1024 / CTAS - 2048 - STATE - (SKIP ? TILE : 0);
    /* keys loaded at a time: a step costs 60 instructions besides its copies */
    static constexpr int MOST_TILES = ROOM / (WARPS * 3 * TILE);
    static constexpr int STEP = MOST_TILES >= 4 && !SKIP ? 64 : MOST_TILES >= 2 ? 32 : 16;
    static constexpr int TILES = STEP / SL_KV_TILE;
    static constexpr int KEY_STEPS = SL_ATTN_TILE / STEP; /* of a tile's keys; so many of values */
    static constexpr int STEPS = SKIP ? KEY_STEPS : 2 * KEY_STEPS; /* of a tile */
    static constexpr int HALF = 32 / STEP; /* steps multiplied at a time; 0: half a step */
    static constexpr int SLOT = TILES * TILE;
    static constexpr int FIT = ROOM / (WARPS * SLOT);
    static constexpr int SLOTS = FIT > 8 ? 8 : FIT;             /* of a warp */
    static constexpr bool KEEP_Q = D * N <= 256;                /* in registers */
    static constexpr int STATE_AT = WARPS * SLOTS * SLOT;       /* float4 [D / 16 N][32], [32] */
    static constexpr int TURN_AT = STATE_AT + STATE;            /* mbarriers, one per warp */
    static constexpr int FULL_AT = TURN_AT + 8 * WARPS;         /* mbarriers, one per slot */
    static constexpr int HERE_AT = FULL_AT + 8 * WARPS * SLOTS; /* mbarriers of items */
    static constexpr int FLAG_AT = HERE_AT + 8 * sl_attn_assign::PLACES;
    static constexpr int BEST_AT = FLAG_AT + 8; /* mbarrier of the sequence's first keys */
    static constexpr int WORK_AT = FLAG_AT + 16;
    static constexpr int FIRST_AT = (WORK_AT + sl_attn_assign::BYTES + 127) / 128 * 128;
    static constexpr int BYTES = FIRST_AT + (SKIP ? TILE : 0);
    static_assert(WARPS == SL_ATTN_ASSIGNED, "splits are assigned to all");
    static_assert(FIT >= 3 && (!SKIP || KEY_STEPS < FIT), "shared memory");
    static_assert(CTAS * (BYTES + 1024) <= 228 * 1024, "shared memory");
};

/* ---------------------------------------------------------------- a warp's loads */

/* A warp's stream of steps: of each tile the keys, then the values, STEP positions at a time. All
 * slots are loaded that are not in use. Once the stream has ended (the next item was not there), it
 * starts anew with an item, when everything was used. */
template <class KV, int D, int N, bool SKIP> struct sl_attn_feed {
    typedef sl_attn_narrow_cfg<KV, D, N, SKIP> cfg;
    static constexpr int UNITS = SL_ATTN_TILE / SL_KV_TILE; /* 16 positions each, of a tile */

    const struct sl_attn_args &a;
    struct sl_attn_assign assign;
    uint8_t *slots;
    uint64_t *full;
    int warp, lane;
    int load_slot, use_slot;
    uint32_t parity; /* of use_slot's phase; with SKIP bit i is that of slot i */
    int item, split; /* whose loads are under way; split -1: the stream has ended */
    /* Of its 16 positions: those that somebody sees something of; the first of the tile that is
     * loaded, and after the last of all; where lane i's lie in a plane. */
    uint32_t wanted;
    int tile_at, end;
    unsigned long long at;
    int lead; /* splits whose loads have begun and whose use has not */
    /* The split after it: its item, itself, and of the lane's positions the page, -1: none was
     * found yet, and what is said of it is where to go on looking; their place in the page's plane,
     * and who is wanted. */
    int next_item, next_split, next_page, next_place;
    uint32_t next_wanted;

    __device__ __forceinline__ sl_attn_feed(const struct sl_attn_args &args, uint8_t *smem)
        : a(args),
          assign(args, smem + cfg::WORK_AT, reinterpret_cast<uint64_t *>(smem + cfg::HERE_AT))
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        warp = static_cast<int>(threadIdx.x) >> 5;
        slots = smem + warp * (cfg::SLOTS * cfg::SLOT);
        full = reinterpret_cast<uint64_t *>(smem + cfg::FULL_AT) + warp * cfg::SLOTS;
        load_slot = use_slot = 0;
        parity = 0;
        split = item = next_page = -1;
        next_item = next_split = next_place = lead = tile_at = end = 0;
        at = wanted = next_wanted = 0;
    }

    /* Finds the split `from` of item i, or else the warp's first of the items behind it that are
     * here, and asks for its pages. */
    __device__ __forceinline__ void look(int i, int from)
    {
        next_page = -1;
        while (from >= assign.at(i).item.to && assign.knows(i + 1) && assign.at(i + 1).item.valid)
            from = assign.split_of(++i, warp);
        next_item = i;
        next_split = from;
        const struct sl_attn_work &w = assign.at(i);
        if (from >= w.item.to)
            return;
        const int key = sl_attn_split_at(from), pos = key + lane * SL_KV_TILE;
        const bool mine =
            pos < min(key + sl_attn_split_size(key), w.key_hi) && pos + SL_KV_TILE > w.key_lo;
        const int unit = pos / SL_KV_TILE, page = sl_attn_div(unit, a.by_page);
        next_wanted = __ballot_sync(0xFFFFFFFFu, mine);
        next_page = mine ? a.tables[w.item.table + page] : 0;
        next_place = unit + (w.item.kv - page) * a.by_page.by;
    }

    /* Enters the split that was looked for. */
    __device__ __forceinline__ void enter()
    {
        split = -1;
        if (next_page < 0)
            look(next_item, next_split);
        if (next_page < 0)
            return;
        item = next_item;
        split = next_split;
        wanted = next_wanted;
        lead++;
        at = static_cast<unsigned>(next_page) * static_cast<unsigned long long>(a.page_bytes) +
             static_cast<unsigned>(next_place) * static_cast<unsigned long long>(cfg::TILE);
        tile_at = (__ffs(static_cast<int>(wanted)) - 1) & -UNITS;
        end = 32 - __clz(static_cast<int>(wanted));
        look(item, split + cfg::WARPS);
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

    /* Loads the values of step h of a tile into a slot that was read; from: the tile's first 16
     * positions, of those of its split, which lie `where`. */
    __device__ __forceinline__ void load_values(const struct sl_attn_work &w, int slot, int t,
                                                int h, int from, unsigned long long where)
    {
        int i = lane - from - h * cfg::TILES;
        int key = t * SL_ATTN_TILE + h * cfg::STEP + i * SL_KV_TILE;
        bool mine = i >= 0 && i < cfg::TILES && key < w.key_hi;
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
        const int units = tile_at + (step % cfg::KEY_STEPS + 1) * cfg::TILES;
        return split >= 0 &&
               sl_attn_split_at(split) + units * SL_KV_TILE <= assign.at(item).item.pos;
    }

    /* Starts the copies of a step of the tile: the lane that knows a page loads its tile, if
     * somebody sees something of it. */
    __device__ __forceinline__ void load(int step)
    {
        if (split < 0)
            return;
        const int first = tile_at + step % cfg::KEY_STEPS * cfg::TILES, i = lane - first;
        const uint32_t these = (1u << cfg::TILES) - 1;
        const bool mine = i >= 0 && i < cfg::TILES && (wanted >> lane & 1) != 0;
        const int n = __popc(wanted >> first & these);
        if (i == 0)
            sl_mbar_expect_tx(full + load_slot, static_cast<uint32_t>(n * cfg::TILE));
        __syncwarp();
        if (mine)
            sl_bulk_load_once(slots + load_slot * cfg::SLOT + i * cfg::TILE,
                              (step < cfg::KEY_STEPS ? a.keys : a.values) + at, cfg::TILE,
                              full + load_slot);
        load_slot = load_slot + 1 == cfg::SLOTS ? 0 : load_slot + 1;
    }

    /* Begins with a split of item i, or the warp's next one after it; nothing is under way. waits:
     * what the previous kernel may have written waits for it. */
    __device__ __forceinline__ void begin(int i, int from, bool waits)
    {
        next_item = i;
        next_split = from;
        next_page = -1;
        split = tile_at = end = 0;
#pragma unroll 1
        for (int step = 0; step < cfg::SLOTS; step++) {
            if (step % cfg::STEPS == 0)
                advance();
            if (waits && !(a.early && is_old(step)))
                sl_grid_wait();
            load(step % cfg::STEPS);
        }
    }

    /* The loads of the slot that comes free with `step` of the tile in use. */
    __device__ __forceinline__ void refill(int step)
    {
        sl_fence_proxy_async(); /* what was read there, the copy engine writes next */
        __syncwarp();
        step = (step + cfg::SLOTS) % cfg::STEPS;
        if (step == 0)
            advance();
        load(step);
    }

    /* To the next tile. */
    __device__ __forceinline__ void advance()
    {
        tile_at += UNITS;
        if (split >= 0 && tile_at >= end)
            enter();
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

/* use(i, raw) for each i < N, 16 dimensions each, after load(i, raw) of the LOADS from i on, of
 * which some are ahead: a warp has few others beside it that would do something while it waits. */
template <class KV, int LOADS, int N, class Load, class Use>
static __device__ __forceinline__ void sl_attn_ahead(Load load, Use use)
{
    constexpr int AHEAD = 16 / KV::RAW;
    static_assert(N % LOADS == 0 && AHEAD % LOADS == 0, "whole loads");
    uint32_t raw[2][AHEAD][KV::RAW];
#pragma unroll
    for (int i = 0; i < AHEAD && i < N; i += LOADS)
        load(i, raw[0][i]);
#pragma unroll
    for (int i = 0; i < N; i += AHEAD) {
#pragma unroll
        for (int j = i + AHEAD; j < i + 2 * AHEAD && j < N; j += LOADS)
            load(j, raw[j / AHEAD % 2][j % AHEAD]);
#pragma unroll
        for (int j = i; j < i + AHEAD && j < N; j++)
            use(j, raw[j / AHEAD % 2][j % AHEAD]);
    }
}

/* N: times eight rows, the columns of the products. */
template <class KV, int D, int N, bool SKIP> struct sl_attn_narrow {
    typedef sl_attn_narrow_cfg<KV, D, N, SKIP> cfg;
    typedef sl_attn_page_frags<KV, D> frags;
    typedef typename KV::elem elem;
    static constexpr int STATE_WORDS = D / 16 * N;   /* float4 of a thread */
    static constexpr bool ASKS = N == 1 && D <= 128; /* for queries ahead: there are registers */

    const struct sl_attn_args &a;
    uint8_t *smem;
    struct sl_attn_feed<KV, D, N, SKIP> feed;
    struct sl_attn_rows rows;
    int warp, lane;
    uint32_t turn;                 /* parity of the next turn to wait for */
    bool tall;                     /* more than eight rows */
    const float *query[N];         /* of the rows; NULL: none */
    struct sl_attn_limit limit[2]; /* of skip-softmax */
    uint32_t best;                 /* parity of the phase of the sequence's first keys */
    uint32_t q[cfg::KEEP_Q ? D / 16 : 1][2 * N];
    int q_of; /* whose they are, -1: nobody's */
    /* Sums: dimension 16 i + lane / 4, and the eighth after it, of rows 8 n + 2 (lane % 4) and the
     * next. References and sums of p: of rows lane / 4 + 8 n, alike in four threads. */
    float o[D / 16][N][4], m[2], l[2];

    __device__ __forceinline__ sl_attn_narrow(const struct sl_attn_args &args, uint8_t *base)
        : a(args), smem(base), feed(args, base)
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        warp = static_cast<int>(threadIdx.x) >> 5;
        turn = 0;
        q_of = -1;
    }

    /* 16 dimensions of the rows as B operands. */
    __device__ __forceinline__ void load_query(uint32_t to[2 * N], int d) const
    {
#pragma unroll
        for (int i = 0; i < 2 * N; i++) {
            int at = d * 16 + 8 * (i & 1) + lane % 4 * 2;
            to[i] = sl_attn_query2<elem>(query[i >> 1], at, a.head_dim);
        }
    }

    /* A row of queries on their way. */
    struct queries {
        float2 of[D / 8];
    };

    __device__ __forceinline__ void ask_query(struct queries &to, int item) const
    {
        const float *const row = sl_attn_query_row(a, feed.assign.at(item), lane / 4);
        const int n_dims = row != nullptr ? a.head_dim : 0;
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            const int at = 8 * i + lane % 4 * 2;
            to.of[i] = make_float2(0.0f, 0.0f);
            if (at < n_dims)
                to.of[i] = *reinterpret_cast<const float2 *>(row + at);
        }
    }
    __device__ __forceinline__ void take_query(const struct queries &from, int item)
    {
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            q[i / 2][i % 2] = elem::pack(from.of[i].x, from.of[i].y);
        q_of = item;
    }

    __device__ __forceinline__ void begin_item(const struct sl_attn_work &w, int k)
    {
        rows = sl_attn_rows_of(a, w, lane / 4);
        tall = N > 1 && w.item.n_rows > 8;
        if (q_of == k)
            return;
#pragma unroll
        for (int n = 0; n < N; n++)
            query[n] = sl_attn_query_row(a, w, lane / 4 + 8 * n);
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
        const uint8_t *const first[1] = {smem + cfg::FIRST_AT};
        scores<1>(first, s);
        sl_fence_proxy_async(); /* before they are loaded anew */
        sl_attn_cap_and_mask(a, w, rows, s, 0, false, tall);
        sl_attn_limits(a, w, rows, 0, s, limit);
    }

    /* One thread begins to load the first keys for an item. */
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

    /* Scores of K times 16 keys, as rows again: of row lane / 4 + 8 n the keys 2 (lane % 4) and the
     * next of each eight. */
    template <int K>
    __device__ __forceinline__ void scores(const uint8_t *const keys[K], float (*s)[4])
    {
        float c[K][N][4] = {};
        typename KV::scales scales[K];
#pragma unroll
        for (int k = 0; k < K; k++)
            scales[k] = KV::template key_scales<D>(keys[k]);
        constexpr int L = KV::template LOADS<D>; /* of a tile of keys, then of the next */
        sl_attn_ahead<KV, L, K * D / 16>(
            [&](int i, uint32_t *raw) {
                KV::template key_raw<D, L>(raw, keys[i / L % K], i / (L * K) * L * 16);
            },
            [&](int i, const uint32_t *raw) {
                const int k = i / L % K, d = i / (L * K) * L + i % L;
                uint32_t mine[2 * N], rows_of[4];
                if constexpr (!cfg::KEEP_Q)
                    load_query(mine, d);
                const uint32_t *x = cfg::KEEP_Q ? q[cfg::KEEP_Q ? d : 0] : mine;
                KV::template key_rows<L>(rows_of, raw, d, scales[k]);
#pragma unroll
                for (int n = 0; n < N; n++)
                    elem::mma(c[k][n], rows_of, x + 2 * n);
            });
#pragma unroll
        for (int i = 0; i < 2 * K * N; i++) {
            float *from = c[i / (2 * N)][i % N] + i / N % 2 * 2;
            float *to = s[i / N] + i % N * 2;
            to[0] = from[0];
            to[1] = from[1];
            sl_turn2(to[0], to[1]);
        }
    }

    /* What all threads that share a row know, to those that have sums of it. */
    __device__ __forceinline__ void to_columns(const float x[2], float (&out)[N][2]) const
    {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                out[n][j] = __shfl_sync(0xFFFFFFFFu, x[n], lane % 4 * 8 + 4 * j);
    }

    /* The sums of a state, times factors, by most tiles one. */
    __device__ __forceinline__ void scale(const float alpha[2])
    {
        float by[N][2];
        if (!__any_sync(0xFFFFFFFFu, alpha[0] != 1.0f || (tall && alpha[1] != 1.0f)))
            return;
        to_columns(alpha, by);
#pragma unroll
        for (int i = 0; i < D / 16; i++)
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    o[i][n][j] = __fmul_rn(o[i][n][j], by[n][j % 2]);
    }

    /* The tiles of pages of half h of a tile of keys, then of values, in slots, when they are
     * there. */
    __device__ __forceinline__ void next_half(int h, const uint8_t *at[2])
    {
        if constexpr (cfg::HALF == 0) {
            at[0] = h % 2 == 0 ? feed.next() : at[1] + cfg::TILE;
            at[1] = at[0] + cfg::TILE;
        }
#pragma unroll
        for (int i = 0; i < cfg::HALF; i++) {
            const uint8_t *slot = feed.next();
#pragma unroll
            for (int k = 0; k < cfg::TILES; k++)
                at[i * cfg::TILES + k] = slot + k * cfg::TILE;
        }
    }

    __device__ __forceinline__ void refill_half(int h)
    {
        if (cfg::HALF == 0 && h % 2 == 1)
            feed.refill(h / 2);
#pragma unroll
        for (int i = 0; i < cfg::HALF; i++)
            feed.refill(h * cfg::HALF + i);
    }

    /* Does nobody see anything of 32 keys from `key` on? */
    static __device__ __forceinline__ bool is_unseen(const struct sl_attn_work &w, int key)
    {
        return key >= w.key_hi || key + 32 <= w.key_lo;
    }

    /* Of 32 keys from `key` on. masked: some are not seen by some row. */
    __device__ __forceinline__ void values(const struct sl_attn_work &w, const uint32_t (*p)[4],
                                           const uint8_t *const at[2], int key, bool masked)
    {
        if (masked) {
            if (is_unseen(w, key))
                return;
            bool unclean = false;
#pragma unroll
            for (int k = 0; k < 2; k++)
                sl_attn_clear<KV, D>(w, const_cast<uint8_t *>(at[k]), 1, key + k * SL_KV_TILE, lane,
                                     32);
            sl_fence_proxy_async(); /* before the slot is loaded anew */
            __syncwarp();
            if constexpr (N > 1) {
                if (sl_attn_differ(w))
                    unclean =
                        sl_attn_unclean<frags, D, 1>(at[0]) || sl_attn_unclean<frags, D, 1>(at[1]);
                if (unclean) {
                    values_careful(w, p, at, key);
                    return;
                }
            }
        }
        const typename KV::scales scales[2] = {KV::template value_scales<D>(at[0]),
                                               KV::template value_scales<D>(at[1])};
        constexpr int L = KV::template LOADS<D>;
        sl_attn_ahead<KV, L, 2 * D / 16>(
            [&](int i, uint32_t *raw) {
                KV::template value_raw<D, L>(raw, at[i / (D / 16)], i % (D / 16) * 16);
            },
            [&](int i, const uint32_t *raw) {
                const int k = i / (D / 16);
                uint32_t rows_of[4];
                KV::template value_rows<L>(rows_of, raw, i % (D / 16), scales[k]);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const uint32_t x[2] = {p[k][n], p[k][2 + n]};
                    elem::mma(o[i % (D / 16)][n], rows_of, x);
                }
            });
    }

    /* As sl_attn_values_careful. */
    __device__ __forceinline__ void values_careful(const struct sl_attn_work &w,
                                                   const uint32_t (*p)[4],
                                                   const uint8_t *const at[2], int first)
    {
        uint32_t parts[2][4];
        int key = first + lane % 4 * 2, of[N][2];
        const int from = __shfl_sync(0xFFFFFFFFu, rows.pos[0], 0);
        const int to = __shfl_sync(0xFFFFFFFFu, rows.pos[1], 31);
#pragma unroll
        for (int i = 0; i < 8; i++)
            parts[i / 4][i % 4] = p[i / 4][i % 4];
#pragma unroll
        for (int i = 0; i < 2 * N; i++)
            of[i / 2][i % 2] = w.item.pos + sl_attn_token(a, w, 8 * (i / 2) + lane % 4 * 2 + i % 2);
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
#pragma unroll 1
            for (int pos = from; pos <= to; pos++) {
                const int hi = sl_attn_seen_to(a, w, pos), lo = sl_attn_seen_from(a, pos);
                float c[N][4];
#pragma unroll
                for (int j = 0; j < 4 * N; j++)
                    c[j / 4][j % 4] = o[i][j / 4][j % 4];
#pragma unroll 1
                for (int k = 0; k < 2; k++) {
                    uint32_t b[4];
                    frags::frags(b, k == 0 ? at[0] : at[1], i);
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        b[j] = sl_attn_clean(b[j], key + k * 16 + j % 2 * 8, lo, hi);
                    const uint32_t rows_of[4] = {b[0], b[2], b[1], b[3]};
#pragma unroll
                    for (int n = 0; n < N; n++) {
                        const uint32_t x[2] = {parts[k][n], parts[k][2 + n]};
                        elem::mma(c[n], rows_of, x);
                    }
                }
#pragma unroll
                for (int j = 0; j < 4 * N; j++)
                    o[i][j / 4][j % 4] =
                        of[j / 4][j % 2] == pos ? c[j / 4][j % 4] : o[i][j / 4][j % 4];
            }
        }
    }

    __device__ __forceinline__ void tile(const struct sl_attn_work &w, int t, bool first)
    {
        float s[8][4], top[2], alpha[2], base[2];
        uint32_t p[4][4];
        const uint8_t *at[2];
        const bool masked = sl_attn_masked(w, t);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            next_half(h, at);
            if (masked && is_unseen(w, t * SL_ATTN_TILE + h * 32)) {
#pragma unroll
                for (int i = 0; i < 16; i++)
                    s[4 * h + i / 4][i % 4] = 0.0f;
            } else {
                scores<2>(at, s + 4 * h);
            }
            refill_half(h);
        }
        sl_attn_cap_and_mask(a, w, rows, s, t * SL_ATTN_TILE, masked, tall);
        sl_attn_row_max(s, top, tall);
        sl_attn_raise(a.scale2, m, top, alpha, base);
        sl_attn_exp<elem>(a.scale2, s, base, alpha, p, l, tall);
        if (!first)
            scale(alpha);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            next_half(2 + h, at);
            values(w, p + 2 * h, at, t * SL_ATTN_TILE + h * 32, masked);
            refill_half(2 + h);
        }
    }

    /* The same with skip-softmax. first: nothing was taken in yet. from, where: as load_values has
     * them. */
    __device__ __forceinline__ void tile_or_not(const struct sl_attn_work &w, int t, bool &first,
                                                int from, unsigned long long where)
    {
        static_assert(!SKIP || cfg::HALF == 1, "a half is a slot");
        float s[8][4], top[2], alpha[2], base[2];
        uint32_t p[4][4];
        bool masked = sl_attn_masked(w, t), takes[2];
        int slot[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            slot[h] = feed.use_slot;
            feed.use_slot = feed.use_slot + 1 == cfg::SLOTS ? 0 : feed.use_slot + 1;
            const uint8_t *const keys = feed.wait(slot[h]);
            const uint8_t *const at[2] = {keys, keys + cfg::TILE};
            scores<2>(at, s + 4 * h);
        }
        sl_attn_cap_and_mask(a, w, rows, s, t * SL_ATTN_TILE, masked, tall);
        const bool any = sl_attn_takes<8>(s, limit, m, tall, takes);
        sl_attn_count(a, rows, t * SL_ATTN_TILE, limit, takes, any);
        if (!any) {
#pragma unroll
            for (int h = 0; h < 2; h++)
                feed.refill(h);
            return;
        }
        sl_fence_proxy_async(); /* as in refill */
        __syncwarp();
#pragma unroll
        for (int h = 0; h < 2; h++)
            feed.load_values(w, slot[h], t, h, from, where);
        sl_attn_row_max(s, top, tall);
        sl_attn_raise_taken(a.scale2, takes, m, top, alpha, base);
        sl_attn_exp<elem>(a.scale2, s, base, alpha, p, l, tall);
        if (!first)
            scale(alpha);
        first = false;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint8_t *const there = feed.wait(slot[h]);
            const uint8_t *const at[2] = {there, there + cfg::TILE};
            values(w, p + 2 * h, at, t * SL_ATTN_TILE + h * 32, masked);
            feed.refill(h);
        }
    }

    /* A state before the warp's sums, which become the two together. MEMORY: it lies there. */
    template <bool MEMORY>
    __device__ __forceinline__ void combine_onto(const float4 *state, const float4 &was)
    {
        float fa[2], fb[2], ca[N][2], cb[N][2];
#pragma unroll
        for (int n = 0; n < N; n++) {
            const struct sl_attn_combine j =
                sl_attn_combine_of(n == 0 ? was.x : was.y, m[n], a.scale2);
            l[n] = sl_attn_combined(j, n == 0 ? was.z : was.w, l[n]);
            m[n] = j.top;
            fa[n] = j.a;
            fb[n] = j.b;
        }
        to_columns(fa, ca);
        to_columns(fb, cb);
#pragma unroll
        for (int i = 0; i < D / 16; i++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float4 *at = state + (i * N + n) * 32;
                const float4 x = MEMORY ? __ldcg(at) : *at;
                const struct sl_attn_combine even = {0.0f, ca[n][0], cb[n][0]};
                const struct sl_attn_combine odd = {0.0f, ca[n][1], cb[n][1]};
                float *to = o[i][n];
                to[0] = sl_attn_combined(even, x.x, to[0]);
                to[1] = sl_attn_combined(odd, x.y, to[1]);
                to[2] = sl_attn_combined(even, x.z, to[2]);
                to[3] = sl_attn_combined(odd, x.w, to[3]);
            }
    }

    /* The split onto the state of its run, when it is its turn, and a complete run onto those
     * before it, or to its slot. */
    __device__ __forceinline__ void combine(const struct sl_attn_work &w, int split)
    {
        const int begin = sl_attn_begin_of(w);
        uint64_t *turns = reinterpret_cast<uint64_t *>(smem + cfg::TURN_AT);
        float4 *state = reinterpret_cast<float4 *>(smem + cfg::STATE_AT) + lane;
        float4 *ml = state + STATE_WORDS * 32;
        const bool last = split + 1 == w.item.to;
        const bool ends = last || sl_attn_begins_run(sl_attn_split_at(split + 1));
        sl_mbar_wait(turns + warp, turn);
        turn ^= 1;
        if (split != begin && !sl_attn_begins_run(sl_attn_split_at(split)))
            combine_onto<false>(state, *ml);
        if (!ends) {
#pragma unroll
            for (int i = 0; i < D / 16; i++)
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const float *x = o[i][n];
                    state[(i * N + n) * 32] = make_float4(x[0], x[1], x[2], x[3]);
                }
            *ml = make_float4(m[0], m[1], l[0], l[1]);
        } else if (w.item.from == 0) {
            combine_total(sl_attn_run_of(split) == sl_attn_run_of(begin), last);
        }
        sl_mbar_arrive_warp(turns + (warp + 1) % cfg::WARPS);
        if (!ends || (w.item.from == 0 && !last))
            return;
        if (w.item.rows_at < 0)
            write_out(w);
        else
            write_slot(w, w.item.from == 0 ? 0 : sl_attn_split_slot(w, split));
    }

    /* As sl_attn_combine_total. */
    __device__ __forceinline__ void combine_total(bool first, bool last)
    {
        float4 *at = a.totals + static_cast<int>(blockIdx.x) * ((STATE_WORDS + 1) * 32) + lane;
        if (!first)
            combine_onto<true>(at, __ldcg(at + STATE_WORDS * 32));
        if (last)
            return;
#pragma unroll
        for (int i = 0; i < D / 16; i++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float *x = o[i][n];
                __stcg(at + (i * N + n) * 32, make_float4(x[0], x[1], x[2], x[3]));
            }
        __stcg(at + STATE_WORDS * 32, make_float4(m[0], m[1], l[0], l[1]));
    }

    __device__ __forceinline__ void write_slot(const struct sl_attn_work &w, int slot) const
    {
        const int64_t at = sl_attn_slot(a, w, slot);
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int row = lane / 4 + 8 * n;
            if (lane % 4 == 0 && row < w.item.n_rows)
                a.slot_ml[at + row] = make_float2(m[n], l[n]);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int of = 8 * n + lane % 4 * 2 + j;
                if (of >= w.item.n_rows)
                    continue;
                float *to = a.slots + (at + of) * D + lane / 4;
#pragma unroll
                for (int i = 0; i < D / 8; i++)
                    to[8 * i] = o[i / 2][n][i % 2 * 2 + j];
            }
        }
    }

    __device__ __forceinline__ void write_out(const struct sl_attn_work &w) const
    {
        float by[2], f[N][2];
        struct sl_attn_out out[N];
#pragma unroll
        for (int n = 0; n < N; n++) {
            out[n] = sl_attn_out_of(a, w, min(lane / 4 + 8 * n, w.item.n_rows - 1));
            by[n] = sl_attn_inverse(a, m[n], l[n], out[n].head);
        }
        to_columns(by, f);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < D / 8; i++) {
                const float *x = o[i / 2][n] + i % 2 * 2;
                const int d = 8 * i + lane % 4 * 2;
                const uint32_t pair = sl_turn(sl_attn_out2(x[0], x[1], f[n][0], f[n][1]));
                if (lane / 4 + 8 * n < w.item.n_rows && d < a.head_dim)
                    *reinterpret_cast<uint32_t *>(out[n].to + d) = pair;
            }
    }

    /* The warp's splits of item k. Its loads begin before the wait for the previous kernel. */
    __device__ __forceinline__ void splits(int k)
    {
        const struct sl_attn_work &w = feed.assign.at(k);
        int split = feed.assign.split_of(k, warp);
        if (feed.lead == 0 && (k == 0 || split < w.item.to))
            feed.begin(k, split, k == 0);
        if (k == 0)
            sl_grid_wait();
        feed.assign.begin_bring(k, warp);
        if (split < w.item.to) {
            begin_item(w, k);
            if constexpr (SKIP)
                load_limits(w);
        }
#pragma unroll 1
        for (; split < w.item.to; split += cfg::WARPS) {
            struct queries x; /* of the next item: here when they are wanted */
            tiles(w, split);
            const bool asks = ASKS && feed.lead == 1 && feed.item != k;
            if constexpr (ASKS) {
                if (asks)
                    ask_query(x, feed.item);
            }
            feed.assign.end_bring(k);
            if (sl_attn_combines(w))
                combine(w, split);
            else
                write_slot(w, sl_attn_split_slot(w, split));
            if constexpr (ASKS) {
                if (asks)
                    take_query(x, feed.item);
            }
        }
        feed.assign.end_bring(k); /* where nobody sees anything of it */
    }

    __device__ __forceinline__ void tiles(const struct sl_attn_work &w, int split)
    {
        const int from = sl_attn_split_at(split);
        const int to =
            (min(sl_attn_split_at(split + 1), w.key_hi) + SL_ATTN_TILE - 1) / SL_ATTN_TILE;
        unsigned long long where = 0;
        bool first = true;
        feed.lead--;
        if constexpr (SKIP)
            where = feed.find(w, split);
        clear();
#pragma unroll 1
        for (int t = max(from, w.key_lo) / SL_ATTN_TILE; t < to; t++) {
            if constexpr (SKIP) {
                tile_or_not(w, t, first, (t * SL_ATTN_TILE - from) / SL_KV_TILE, where);
            } else {
                tile(w, t, first);
                first = false;
            }
            feed.assign.go_on();
        }
#pragma unroll
        for (int n = 0; n < N; n++)
            l[n] = sl_attn_row_sum(l[n]);
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < D / 16; i++)
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    o[i][n][j] = 0.0f;
        m[0] = m[1] = -SL_ATTN_INF;
        l[0] = l[1] = 0.0f;
    }
};

/* ---------------------------------------------------------------- the kernel */

template <class KV, int D> struct sl_attn_short; /* attention_short.cuh */

/* Are all items short, of a block that has no other? */
template <class KV, int D, int N, bool SKIP>
static __device__ __forceinline__ bool sl_attn_is_short(const struct sl_attn_work &w, bool alone)
{
    if constexpr (N == 1 && !SKIP && sl_attn_short<KV, D>::FITS)
        return alone && w.item.valid && sl_attn_short<KV, D>::is_short(w);
    return false;
}

/* All warps have left their part of an item. */
template <class cfg, int D, int N>
static __device__ __forceinline__ void sl_attn_end_item(const struct sl_attn_args &a,
                                                        const struct sl_attn_work &w, uint8_t *smem)
{
    if (w.item.rows_at < 0)
        return;
    sl_attn_arrive<D, N, cfg::THREADS>(a, w, static_cast<int>(threadIdx.x),
                                       reinterpret_cast<int *>(smem + cfg::FLAG_AT),
                                       smem + cfg::STATE_AT);
}

/* Item k of a block: its own index, then that after all blocks' first, then whatever is next.
 * Warps meet after an item only if it leaves slots, or they have shared keys (SKIP). */
template <class KV, int D, int N, bool SKIP = false>
static __global__ void __launch_bounds__((sl_attn_narrow_cfg<KV, D, N, SKIP>::THREADS),
                                         (sl_attn_narrow_cfg<KV, D, N, SKIP>::CTAS))
    sl_attn_narrow_kernel(const __grid_constant__ struct sl_attn_args a)
{
    typedef sl_attn_narrow_cfg<KV, D, N, SKIP> cfg;
    SL_SMEM(uint8_t, smem);
    uint64_t *bars = reinterpret_cast<uint64_t *>(smem + cfg::TURN_AT);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    sl_grid_launch_dependents();
    sl_mbar_init_all(bars, cfg::WARPS, SL_WARP_ARRIVALS); /* turns */
    sl_mbar_init_all(bars + cfg::WARPS, cfg::WARPS * cfg::SLOTS, 1);
    sl_mbar_init_all(reinterpret_cast<uint64_t *>(smem + cfg::HERE_AT), sl_attn_assign::PLACES,
                     SL_WARP_ARRIVALS);
    if constexpr (SKIP)
        sl_mbar_init_all(reinterpret_cast<uint64_t *>(smem + cfg::BEST_AT), 1, 1);
    sl_mbar_fence_init();
    if (!a.early)
        sl_grid_wait();
    sl_attn_narrow<KV, D, N, SKIP> x(a, smem);
    struct sl_attn_assign &assign = x.feed.assign;
    assign.n = __ldcg(&a.cls->n_items) * a.n_kv_heads;
    if (warp == 0)
        assign.begin();
    __syncthreads();
    /* Blocks without work make room for the kernel after; one waits, so that this grid does not
     * end before the one ahead of it. */
    if (a.early && blockIdx.x > 0 && !assign.at(0).item.valid) {
        sl_grid_leave();
        return;
    }
    if (sl_attn_is_short<KV, D, N, SKIP>(assign.at(0), assign.n <= static_cast<int>(gridDim.x))) {
        if constexpr (N == 1 && !SKIP) {
            sl_attn_short<KV, D> lone(a, smem);
            lone.go(assign.at(0));
            sl_attn_end_item<cfg, D, N>(a, assign.at(0), smem);
        }
        return;
    }
    if (warp == cfg::WARPS - 1) /* the first turn */
        sl_mbar_arrive_warp(bars);
    uint32_t n_firsts = 0;
#pragma unroll 1
    for (int k = 0; k < sl_attn_assign::AHEAD || assign.more(); k++) {
        assign.wait(k);
        const struct sl_attn_work &w = assign.at(k);
        if (!w.item.valid)
            break;
        if (SKIP && sl_attn_skips(a, w)) {
            x.best = n_firsts++ & 1;
            if (threadIdx.x == 0)
                x.bring_first(w);
        }
        x.splits(k);
        if (SKIP || w.item.rows_at >= 0) {
            sl_attn_end_item<cfg, D, N>(a, w, smem);
            __syncthreads();
        }
    }
    sl_grid_wait();
    __syncthreads(); /* nobody takes another item */
    if (assign.more() && threadIdx.x == 0 && atomicAdd(&a.cls->done, 1u) + 1 == gridDim.x) {
        a.cls->taken = 0; /* for the next layer */
        a.cls->done = 0;
    }
}

#endif
