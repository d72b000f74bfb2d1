/* SPDX-License-Identifier: MIT
 * attention_narrow.cuh - paged attention for tiles of up to 16 rows: decodes, and a few drafts.
 *
 * Bound by memory, so loads stay under way: each of a block's four warps works alone on every
 * fourth split of the block's item, through a ring of its own, which runs on into the next item. No
 * barrier but between items. Splits join in order through a state in shared memory: a warp waits
 * for its turn, which the warp with the split before passes on.
 *
 * Keys before a span's position were written by steps before this one, and the list of items by a
 * kernel that is complete when the one ahead of this one begins (`early`): so both are read, and
 * the first loads are under way, before the wait for the kernel ahead.
 *
 * PREDICTIONS (H200: 132 SMs, 4.7 TB/s read, 1.75 GHz), D = 128: a tile is 32 KiB, a share of 1,640
 * clk of an SM's bandwidth; a warp needs some 1,900 clk for it alone, and eight warps work at a
 * time. In flight: 8 warps x 2 steps of 8 KiB = 128 KiB an SM; 4.7 TB/s x 800 ns / 132 = 28 KiB are
 * needed. One sequence of 512 positions: 72 splits on 72 SMs, each one tile, then the last joins
 * nine: about 2 us behind the wait.
 *
 * nvcc 13.0, sm_90a; blocks of an SM: 2, for D = 256: 1; no spills but for 256 (100 bytes written,
 * 84 read), the stack is that of sl_attn_values_careful:
 *   D                        16      32      64      80      96     128     256
 *   registers               206     213     239     245     251     254     255
 */
#ifndef SL_CUDA_ATTENTION_NARROW_CUH
#define SL_CUDA_ATTENTION_NARROW_CUH

#include "cuda/attention_tile.cuh"

/* ---------------------------------------------------------------- sizes */

template <class KV, int D> struct sl_attn_narrow_cfg {
    static constexpr int ROWS = SL_ATTN_NARROW;
    static constexpr int WARPS = 4;
    static constexpr int THREADS = 32 * WARPS;
    static constexpr int CTAS = D <= 128 ? 2 : 1; /* of an SM */
    static constexpr int STEP = 32;               /* keys loaded at a time */
    static constexpr int HALVES = SL_ATTN_TILE / STEP;
    static constexpr int STEPS = 2 * HALVES; /* of a tile: its keys, then its values */
    static constexpr int SLOT = STEP * KV::smem_row(D);
    static constexpr int STATE = 64 * D + 512;
    static constexpr int FIT = ((CTAS == 2 ? 112 : 225) * 1024 - STATE) / (WARPS * SLOT);
    static constexpr int AHEAD = FIT > 4 ? 4 : 2;         /* steps whose loads are under way */
    static constexpr int SLOTS = AHEAD + 1;               /* of a warp */
    static constexpr bool KEEP_Q = D <= 128;              /* in registers */
    static constexpr int STATE_AT = WARPS * SLOTS * SLOT; /* float4 [D / 8][32], [32] */
    static constexpr int TURN_AT = STATE_AT + STATE;      /* mbarriers, one per warp */
    static constexpr int FLAG_AT = TURN_AT + 8 * WARPS;
    static constexpr int WORK_AT = FLAG_AT + 16;
    static constexpr int WORKS = 4; /* the last item, this one, the next, the one after it */
    static constexpr int BYTES = WORK_AT + WORKS * static_cast<int>(sizeof(struct sl_attn_work));
    static_assert(FIT >= 3 && AHEAD <= STEPS, "shared memory");
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

/* A warp's stream of steps: of each tile the keys, then the values, STEP positions at a time. AHEAD
 * copies are under way. Once the stream has ended (the next item was not known), it starts anew
 * with an item, when everything was used. */
template <class KV, int D> struct sl_attn_feed {
    typedef sl_attn_narrow_cfg<KV, D> cfg;
    static constexpr int CHUNKS = KV::row_bytes(D); /* of 16 bytes, of 16 positions */

    const struct sl_attn_args &a;
    const struct sl_attn_work *works;
    uint8_t *smem;
    int warp, lane;
    int load_slot, use_slot;
    int item;              /* of the block's, whose loads are under way */
    int split;             /* of the tile; -1: the stream has ended */
    int tile, tile_to;     /* whose loads are under way, and where the split ends */
    int tile_at;           /* its first 16 positions, of the split's */
    unsigned long long at; /* lane i: where the i-th 16 positions of the split lie in a plane */
    /* The split after it: its item (-1: none known), itself, and the lane's page. */
    int next_item, next_split, next_page;

    __device__ __forceinline__ sl_attn_feed(const struct sl_attn_args &args,
                                            const struct sl_attn_work *w, uint8_t *slots)
        : a(args), works(w)
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        warp = static_cast<int>(threadIdx.x) >> 5;
        smem = slots + warp * (cfg::SLOTS * cfg::SLOT);
        load_slot = use_slot = 0;
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
        int sub = unit - sl_attn_div(unit, a.by_page) * a.by_page.by + w.item.kv * a.by_page.by;
        at = static_cast<unsigned>(next_page) * static_cast<unsigned long long>(a.page_bytes) +
             static_cast<unsigned>(sub) *
                 static_cast<unsigned long long>(SL_KV_TILE * KV::row_bytes(D));
        tile = max(from, w.key_lo) / SL_ATTN_TILE;
        tile_to = (min(sl_attn_split_at(split + 1), w.key_hi) + SL_ATTN_TILE - 1) / SL_ATTN_TILE;
        tile_at = (tile * SL_ATTN_TILE - from) / SL_KV_TILE;
        look(item, split + cfg::WARPS, known);
    }

    /* To the next tile. */
    __device__ __forceinline__ void advance(int known)
    {
        tile++;
        tile_at += SL_ATTN_TILE / SL_KV_TILE;
        if (split >= 0 && tile == tile_to)
            enter(known);
    }

    /* Was all that a step of the tile loads written by steps before this one? */
    __device__ __forceinline__ bool is_old(int step) const
    {
        int to = tile * SL_ATTN_TILE + (step % cfg::HALVES + 1) * cfg::STEP;
        return split >= 0 && to <= work(item).item.pos;
    }

    __device__ __forceinline__ void copy_chunk(const uint8_t *from, uint8_t *to, int i, int lo,
                                               int n)
    {
        constexpr int ROW = KV::row_bytes(D) / 16;
        int c = i * 32 + lane, row = c / ROW;
        if (CHUNKS % 32 != 0 && c >= CHUNKS)
            return;
        /* keys nobody sees are zeros: what lies there may be no number at all */
        bool seen = static_cast<unsigned>(row - lo) < static_cast<unsigned>(n);
        sl_cp_async16(to + row * KV::smem_row(D) + c % ROW * 16, from + c * 16, seen);
    }

    /* Starts the copies of a step of the tile. */
    __device__ __forceinline__ void load(int step)
    {
        if (split >= 0) {
            const struct sl_attn_work &w = work(item);
            const uint8_t *plane = step < cfg::HALVES ? a.keys : a.values;
            int key = tile * SL_ATTN_TILE + step % cfg::HALVES * cfg::STEP;
            int unit = tile_at + step % cfg::HALVES * (cfg::STEP / SL_KV_TILE);
            bool all = key >= w.key_lo && key + cfg::STEP <= w.key_hi;
            uint8_t *to = smem + load_slot * cfg::SLOT;
#pragma unroll
            for (int g = 0; g < cfg::STEP; g += 16) {
                const uint8_t *from = plane + __shfl_sync(0xFFFFFFFFu, at, unit + g / 16);
                uint8_t *slot = to + g * KV::smem_row(D);
                if (all) {
#pragma unroll
                    for (int i = 0; i < (CHUNKS + 31) / 32; i++)
                        copy_chunk(from, slot, i, 0, 16);
                } else {
                    int lo = max(w.key_lo - key - g, 0), n = min(w.key_hi - key - g, 16) - lo;
#pragma unroll 1
                    for (int i = 0; i < (CHUNKS + 31) / 32; i++)
                        copy_chunk(from, slot, i, lo, max(n, 0));
                }
            }
        }
        load_slot = load_slot + 1 == cfg::SLOTS ? 0 : load_slot + 1;
        sl_cp_async_commit();
    }

    /* Begins with item i; nothing is under way. */
    __device__ __forceinline__ void begin(int i)
    {
        load_slot = use_slot = 0;
        look(i, sl_attn_range_of(work(i), warp).first, i + 1);
        enter(i + 2);
    }

    /* A step of the tile that is used, there for all lanes. */
    __device__ __forceinline__ const uint8_t *next(int step, int known)
    {
        sl_cp_async_wait<cfg::AHEAD - 1>();
        __syncwarp();
        if ((step + cfg::AHEAD) % cfg::STEPS == 0)
            advance(known);
        load((step + cfg::AHEAD) % cfg::STEPS);
        const uint8_t *from = smem + use_slot * cfg::SLOT;
        use_slot = use_slot + 1 == cfg::SLOTS ? 0 : use_slot + 1;
        return from;
    }
};

/* ---------------------------------------------------------------- a warp's split */

template <class KV, int D> struct sl_attn_narrow {
    typedef sl_attn_narrow_cfg<KV, D> cfg;
    static constexpr int PAIRS = D / 16;

    const struct sl_attn_args &a;
    uint8_t *smem;
    struct sl_attn_feed<KV, D> feed;
    struct sl_attn_rows rows;
    int warp, lane;
    uint32_t turn;         /* parity of the next turn to wait for */
    const float *query[2]; /* of the rows; NULL: none */
    uint32_t q[cfg::KEEP_Q ? PAIRS : 1][4];
    float o[PAIRS][8], m[2], l[2];

    __device__ __forceinline__ sl_attn_narrow(const struct sl_attn_args &args, uint8_t *base)
        : a(args), smem(base),
          feed(args, reinterpret_cast<struct sl_attn_work *>(base + cfg::WORK_AT), base)
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
            to[i] = sl_attn_query2(query[i & 1], at, a.head_dim);
        }
    }

    __device__ __forceinline__ void begin_item(const struct sl_attn_work &w)
    {
        rows = sl_attn_rows_of(a, w, lane / 4);
#pragma unroll
        for (int i = 0; i < 2; i++)
            query[i] = sl_attn_query_row(a, w, lane / 4 + 8 * i);
        if constexpr (cfg::KEEP_Q) {
#pragma unroll
            for (int d = 0; d < PAIRS; d++)
                load_query(q[d], d);
        }
    }

    /* Scores of STEP keys. */
    __device__ __forceinline__ void scores(const uint8_t *keys, float s[cfg::STEP / 8][4])
    {
#pragma unroll
        for (int d = 0; d < PAIRS; d++) {
            uint32_t mine[4];
            if constexpr (!cfg::KEEP_Q)
                load_query(mine, d);
            const uint32_t *x = cfg::KEEP_Q ? q[cfg::KEEP_Q ? d : 0] : mine;
#pragma unroll
            for (int k = 0; k < cfg::STEP / 16; k++) {
                uint32_t b[4];
                KV::template key_frags<D>(b, keys, k * 16, d * 16);
                sl_mma_bf16(s[2 * k], x, b);
                sl_mma_bf16(s[2 * k + 1], x, b + 2);
            }
        }
    }

    __device__ __forceinline__ void values(const uint32_t *p, const uint8_t *slot, int key,
                                           bool differ)
    {
        if (differ && sl_attn_unclean<KV, D, cfg::STEP>(slot))
            sl_attn_values_careful<KV, D, cfg::STEP>(a, rows, o, p, slot, key);
        else
            sl_attn_values<KV, D, cfg::STEP>(o, p, slot);
    }

    __device__ __forceinline__ void tile(const struct sl_attn_work &w, int t, bool first, int known)
    {
        float s[8][4], top[2], alpha[2], base[2];
        uint32_t p[16];
        bool masked = sl_attn_masked(w, t), differ = masked && w.all_hi != w.key_hi;
#pragma unroll
        for (int f = 0; f < 8; f++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[f][i] = 0.0f;
#pragma unroll
        for (int h = 0; h < cfg::HALVES; h++)
            scores(feed.next(h, known), s + h * (cfg::STEP / 8));
        sl_attn_cap_and_mask<8>(a, rows, s, t * SL_ATTN_TILE, masked);
        sl_attn_row_max<8>(s, top);
        sl_attn_raise(a.scale2, m, top, alpha, base);
        sl_attn_exp(a.scale2, s, base, alpha, p, l);
        if (!first) {
#pragma unroll
            for (int i = 0; i < PAIRS; i++)
#pragma unroll
                for (int j = 0; j < 8; j++)
                    o[i][j] = __fmul_rn(o[i][j], alpha[j >> 1 & 1]);
        }
#pragma unroll
        for (int h = 0; h < cfg::HALVES; h++)
            values(p + h * (cfg::STEP / 4), feed.next(cfg::HALVES + h, known),
                   t * SL_ATTN_TILE + h * cfg::STEP, differ);
    }

    /* The split onto the state, when it is its turn. */
    __device__ __forceinline__ void join(bool first, bool last)
    {
        uint64_t *turns = reinterpret_cast<uint64_t *>(smem + cfg::TURN_AT);
        float4 *state = reinterpret_cast<float4 *>(smem + cfg::STATE_AT) + lane;
        float4 *ml = state + D / 8 * 32;
        if (!first) {
            sl_mbar_wait(turns + warp, turn);
            turn ^= 1;
            const float4 was = *ml;
            const struct sl_attn_join j[2] = {sl_attn_join_of(was.x, m[0], a.scale2),
                                              sl_attn_join_of(was.y, m[1], a.scale2)};
            l[0] = sl_attn_joined(j[0], was.z, l[0]);
            l[1] = sl_attn_joined(j[1], was.w, l[1]);
            m[0] = j[0].top;
            m[1] = j[1].top;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                const float4 x = state[n * 32];
                float *to = o[n / 2] + n % 2 * 4;
                to[0] = sl_attn_joined(j[0], x.x, to[0]);
                to[1] = sl_attn_joined(j[0], x.y, to[1]);
                to[2] = sl_attn_joined(j[1], x.z, to[2]);
                to[3] = sl_attn_joined(j[1], x.w, to[3]);
            }
        }
        if (last)
            return;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const float *x = o[n / 2] + n % 2 * 4;
            state[n * 32] = make_float4(x[0], x[1], x[2], x[3]);
        }
        *ml = make_float4(m[0], m[1], l[0], l[1]);
        __syncwarp();
        if (lane == 0)
            sl_mbar_arrive(turns + (warp + 1) % cfg::WARPS);
    }

    /* The warp's splits of an item. */
    __device__ __forceinline__ void splits(const struct sl_attn_work &w, int known)
    {
        struct sl_attn_range r = sl_attn_range_of(w, warp);
        const int begin = r.first - warp;
        if (r.first < r.to)
            begin_item(w);
#pragma unroll 1
        for (int split = r.first; split < r.to; split += cfg::WARPS) {
            int t = max(sl_attn_split_at(split), w.key_lo) / SL_ATTN_TILE;
            int to = (min(sl_attn_split_at(split + 1), w.key_hi) + SL_ATTN_TILE - 1) / SL_ATTN_TILE;
            clear();
            bool first = true;
#pragma unroll 1
            for (; t < to; t++, first = false)
                tile(w, t, first, known);
#pragma unroll
            for (int i = 0; i < 2; i++)
                l[i] = sl_attn_row_sum(l[i]);
            int slot = w.item.rows_at < 0 ? -1 : 0;
            if (w.item.from == 0) {
                join(split == begin, split + 1 == w.item.to);
                if (split + 1 < w.item.to)
                    continue;
            } else {
                slot = sl_attn_split_slot(w, split);
            }
            if (slot < 0)
                sl_attn_write_out<D>(a, w, 0, o, m, l);
            else
                sl_attn_write_slot<D>(a, w, 0, slot, o, m, l);
        }
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                o[i][j] = 0.0f;
        m[0] = m[1] = -SL_ATTN_INF;
        l[0] = l[1] = 0.0f;
    }
};

/* ---------------------------------------------------------------- the kernel */

/* Item k of a block: its own index, then that behind all blocks' first, then whatever is next. It
 * is known one item ahead, so that loads run on. */
template <class KV, int D>
static __global__ void __launch_bounds__((sl_attn_narrow_cfg<KV, D>::THREADS),
                                         (sl_attn_narrow_cfg<KV, D>::CTAS))
    sl_attn_narrow_kernel(const __grid_constant__ struct sl_attn_args a)
{
    typedef sl_attn_narrow_cfg<KV, D> cfg;
    SL_SMEM(uint8_t, smem);
    struct sl_attn_work *works = reinterpret_cast<struct sl_attn_work *>(smem + cfg::WORK_AT);
    uint64_t *turns = reinterpret_cast<uint64_t *>(smem + cfg::TURN_AT);
    const int grid = static_cast<int>(gridDim.x), warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    sl_grid_launch_dependents();
    if (!a.early)
        sl_grid_wait();
    const int n = __ldcg(&a.cls->n_items) * a.n_kv_heads;
    if (warp == 0)
        sl_attn_fetch(a, static_cast<int>(blockIdx.x) + (lane < 16 ? 0 : grid), n,
                      works + lane / 16, true);
    if (threadIdx.x == 32) {
        for (int i = 0; i < cfg::WARPS; i++)
            sl_mbar_init(turns + i, 1);
        sl_mbar_fence_init();
    }
    __syncthreads();
    sl_attn_narrow<KV, D> x(a, smem);
    int loaded = 0;
#pragma unroll 1
    for (int k = 0; works[k % cfg::WORKS].item.valid; k++) {
        const struct sl_attn_work &w = works[k % cfg::WORKS];
        if (x.feed.item != k) {
            x.feed.begin(k);
            loaded = 0;
        }
#pragma unroll 1
        for (; loaded < cfg::AHEAD; loaded++) {
            if (k == 0 && !(a.early && x.feed.is_old(loaded)))
                sl_grid_wait();
            x.feed.load(loaded);
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
        if (w.item.rows_at >= 0)
            __threadfence();
        __syncthreads();
        if (w.item.rows_at >= 0)
            sl_attn_arrive<D, cfg::THREADS>(a, w, reinterpret_cast<int *>(smem + cfg::FLAG_AT));
    }
    sl_grid_wait();
    sl_cp_async_wait<0>();
    if (n > 2 * grid && threadIdx.x == 0 && atomicAdd(&a.cls->done, 1u) + 1 == gridDim.x) {
        a.cls->taken = 0; /* for the next layer */
        a.cls->done = 0;
    }
}

#endif
