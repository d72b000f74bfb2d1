/* SPDX-License-Identifier: MIT
 * attention_wide.cuh - paged attention for tiles of 128 rows, or 192 for D = 64, by mma.sync:
 * chunks of prompts, where attention_group.cuh's kernels do not do it; and of 64 rows, decodes with
 * drafts, likewise. A warp has 16 rows, all keys
 * and all dimensions.
 */
#ifndef SL_CUDA_ATTENTION_WIDE_CUH
#define SL_CUDA_ATTENTION_WIDE_CUH

#include "cuda/attention/attention_tile.cuh"

/* ---------------------------------------------------------------- sizes */

/* WARPS: of 16 rows. */
template <class KV, int D, int WARPS_ = D == 64 ? 12 : 8> struct sl_attn_wide_cfg {
    static constexpr int WARPS = WARPS_;
    static constexpr int ROWS = 16 * WARPS;
    static constexpr int THREADS = 32 * WARPS;
    static constexpr int SLOT = SL_ATTN_TILE / SL_KV_TILE * KV::tile_bytes(D);
    static constexpr int SLOTS = D <= 128 ? 4 : 3;
    static constexpr int Q_ROW = (D / 8 | 1) * 16;
    static constexpr bool KEEP_STATE = D <= 128; /* in registers */
    static constexpr int Q_AT = SLOTS * SLOT;    /* 16 bits [ROWS][Q_ROW / 2] */
    static constexpr int FLAG_AT = Q_AT + ROWS * Q_ROW;
    static constexpr int WORK_AT = FLAG_AT + 16;
    static constexpr int BYTES = WORK_AT + static_cast<int>(sizeof(struct sl_attn_work));
    static constexpr int CTAS = WARPS == SL_ATTN_MEDIUM / 16 && D <= 128 ? 2 : 1; /* of an SM */
    static_assert(CTAS * (BYTES + 1024) <= 228 * 1024, "shared memory");
};

/* ---------------------------------------------------------------- loads */

/* Tiles of keys and values, in turn, through SLOTS slots of shared memory: copy q is the keys
 * (q even) or the values of tile first + q / 2. SLOTS - 1 copies are under way. */
template <class KV, int D, int THREADS, int SLOTS> struct sl_attn_ring {
    static constexpr int SLOT_BYTES = SL_ATTN_TILE / SL_KV_TILE * KV::tile_bytes(D);
    uint8_t *smem;
    int load_slot, use_slot;
    int left; /* copies to begin */
    int tile; /* of the next copy */
    /* Lanes 0..3, of 16 positions each: where they lie in a plane, and the page and the place in it
     * of those of the tile after it. */
    unsigned long long at;
    int next_page, next_sub;

    /* Read a tile ahead: the table is in memory, and its entry is needed for the address. */
    __device__ __forceinline__ void find_next(const struct sl_attn_args &a,
                                              const struct sl_attn_work &w, int next)
    {
        int pos = next * SL_ATTN_TILE + (static_cast<int>(threadIdx.x) & 31) * SL_KV_TILE;
        bool wanted = (threadIdx.x & 31) < SL_ATTN_TILE / SL_KV_TILE && pos < w.key_hi &&
                      pos + SL_KV_TILE > w.key_lo;
        int unit = pos / SL_KV_TILE, idx = sl_attn_div(unit, a.by_page);
        next_page = wanted ? a.tables[w.item.table + idx] : 0;
        next_sub = unit - idx * a.by_page.by;
    }

    /* Page tiles as they are, if somebody sees something of them. */
    __device__ __forceinline__ void copy_tile(const struct sl_attn_work &w, const uint8_t *plane)
    {
        constexpr int EACH = KV::tile_bytes(D) / 16;
        const int lane = static_cast<int>(threadIdx.x) & 31;
        uint8_t *to = smem + load_slot * SLOT_BYTES;
#pragma unroll 2
        for (int i = static_cast<int>(threadIdx.x); i - lane < SLOT_BYTES / 16; i += THREADS) {
            int page_tile = i / EACH, key = tile * SL_ATTN_TILE + page_tile * SL_KV_TILE;
            unsigned long long from = __shfl_sync(0xFFFFFFFFu, at, page_tile);
            bool seen = key + SL_KV_TILE > w.key_lo && key < w.key_hi && i < SLOT_BYTES / 16;
            if (seen)
                sl_cp_async16(to + i * 16, plane + from + i % EACH * 16, true);
        }
    }

    __device__ __forceinline__ void load(const struct sl_attn_args &a, const struct sl_attn_work &w)
    {
        if (left > 0) {
            bool keys = left % 2 == 0;
            if (keys) {
                int sub = w.item.kv * a.by_page.by + next_sub;
                at =
                    static_cast<unsigned>(next_page) *
                        static_cast<unsigned long long>(a.page_bytes) +
                    static_cast<unsigned>(sub) * static_cast<unsigned long long>(KV::tile_bytes(D));
                if (left > 2)
                    find_next(a, w, tile + 1);
            }
            copy_tile(w, keys ? a.keys : a.values);
            tile += keys ? 0 : 1;
        }
        left--;
        load_slot = load_slot + 1 == SLOTS ? 0 : load_slot + 1;
        sl_cp_async_commit();
    }

    __device__ __forceinline__ void start(const struct sl_attn_args &a,
                                          const struct sl_attn_work &w, uint8_t *slots,
                                          int tile_from, int tile_to)
    {
        smem = slots;
        load_slot = use_slot = next_page = next_sub = 0;
        at = 0;
        tile = tile_from;
        left = 2 * max(tile_to - tile_from, 0);
        if (left > 0)
            find_next(a, w, tile);
#pragma unroll
        for (int i = 0; i < SLOTS - 1; i++)
            load(a, w);
    }

    /* The next copy, there for all threads; its predecessor's slot is loaded anew. Everybody is
     * done with that one, as everybody is past the barrier. */
    __device__ __forceinline__ uint8_t *next_tile(const struct sl_attn_args &a,
                                                  const struct sl_attn_work &w)
    {
        sl_cp_async_wait<SLOTS - 2>();
        __syncthreads();
        load(a, w);
        uint8_t *at = smem + use_slot * SLOT_BYTES;
        use_slot = use_slot + 1 == SLOTS ? 0 : use_slot + 1;
        return at;
    }

    __device__ __forceinline__ void finish()
    {
        sl_cp_async_wait<0>();
        __syncthreads();
    }
};

/* Runs work() for all items of a class, each described in w; the next one is taken from a counter
 * by whoever is free. It is fetched early and read late: nobody waits for it. */
template <class Work>
static __device__ __forceinline__ void sl_attn_for_items(const struct sl_attn_args &a, int *flag,
                                                         struct sl_attn_work *w, Work work)
{
    struct sl_attn_class *c = a.cls;
    const int n = c->n_items * a.n_kv_heads;
    int at = static_cast<int>(blockIdx.x);
    while (at < n) {
        uint32_t taken = 0;
        if (threadIdx.x == 0)
            taken = atomicAdd(&c->taken, 1u);
        if (threadIdx.x < 32)
            sl_attn_fetch(a, at, n, w, threadIdx.x < 16);
        __syncthreads();
        work();
        __syncthreads();
        if (threadIdx.x == 0)
            *flag = static_cast<int>(gridDim.x + taken);
        __syncthreads();
        at = *flag;
    }
    sl_grid_launch_dependents();
    if (threadIdx.x == 0 && atomicAdd(&c->done, 1u) + 1 == gridDim.x) {
        c->taken = 0; /* for the next layer */
        c->done = 0;
    }
}

/* ---------------------------------------------------------------- wide */

template <class KV, int D, bool SKIP, class cfg_> struct sl_attn_wide {
    typedef cfg_ cfg;
    typedef sl_attn_page_frags<KV, D> frags;
    typedef typename KV::elem elem;
    static constexpr int TILES = SL_ATTN_TILE / SL_KV_TILE;

    const struct sl_attn_args &a;
    const struct sl_attn_work &w;
    uint8_t *smem;
    struct sl_attn_rows rows;
    int warp, lane;
    int key_lo, key_hi;            /* keys some row of the warp sees */
    struct sl_attn_limit limit[2]; /* of skip-softmax */
    bool first_run;                /* of the item */
    float o[D / 8][4], m[2], l[2]; /* of the split, and of the run: */
    float state[cfg::KEEP_STATE ? D / 8 : 1][4], state_m[2], state_l[2];

    __device__ __forceinline__ sl_attn_wide(const struct sl_attn_args &args,
                                            const struct sl_attn_work &work, uint8_t *base)
        : a(args), w(work), smem(base)
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        warp = static_cast<int>(threadIdx.x) >> 5;
        rows = sl_attn_rows_of(a, w, warp * 16 + lane / 4);
        key_lo = sl_attn_seen_from(a, w.item.pos + sl_attn_token(a, w, warp * 16));
        key_hi = warp * 16 < w.item.n_rows
                     ? sl_attn_seen_to(a, w, w.item.pos + sl_attn_token(a, w, warp * 16 + 15))
                     : 0;
        clear();
        clear_state();
        first_run = true;
    }

    __device__ __forceinline__ void clear_state()
    {
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                state_at(n, j) = 0.0f;
        state_m[0] = state_m[1] = -SL_ATTN_INF;
        state_l[0] = state_l[1] = 0.0f;
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

    /* Each thread's own words of the workspace where registers do not suffice. */
    __device__ __forceinline__ float &state_at(int n, int j)
    {
        if constexpr (cfg::KEEP_STATE)
            return state[n][j];
        float *all = reinterpret_cast<float *>(a.states) + blockIdx.x * (D / 2 * cfg::THREADS);
        return all[(n * 4 + j) * cfg::THREADS + static_cast<int>(threadIdx.x)];
    }

    /* Of a tile none of whose keys a row of the warp sees nothing is computed. */
    __device__ __forceinline__ bool sees(int tile) const
    {
        return tile * SL_ATTN_TILE < key_hi && (tile + 1) * SL_ATTN_TILE > key_lo;
    }

    __device__ __forceinline__ void load_query()
    {
        uint8_t *to = smem + cfg::Q_AT;
#pragma unroll 2
        for (int i = static_cast<int>(threadIdx.x); i < cfg::ROWS * D / 2; i += cfg::THREADS) {
            int row = i / (D / 2), d = i % (D / 2) * 2;
            *reinterpret_cast<uint32_t *>(to + row * cfg::Q_ROW + d * 2) =
                sl_attn_query2<elem>(sl_attn_query_row(a, w, row), d, a.head_dim);
        }
    }

    /* Scores of N times 16 keys. */
    template <int N>
    __device__ __forceinline__ void multiply(const uint8_t *keys, float (&s)[2 * N][4])
    {
#pragma unroll
        for (int f = 0; f < 2 * N; f++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[f][i] = 0.0f;
        const uint8_t *query =
            smem + cfg::Q_AT + (warp * 16 + (lane & 15)) * cfg::Q_ROW + (lane >> 4) * 16;
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t q[4];
            sl_ldmatrix_x4(q, query + d * 32);
#pragma unroll
            for (int k = 0; k < N; k++) {
                uint32_t b[4];
                KV::template key_frags<D>(b, keys + k * frags::TILE, d * 16);
                elem::mma(s[2 * k], q, b);
                elem::mma(s[2 * k + 1], q, b + 2);
            }
        }
    }

    /* Skip-softmax: what tiles are compared with. room: of 16 keys, which nobody uses now; nobody
     * must use it before the next barrier either. */
    __device__ __forceinline__ void load_limits(uint8_t *room)
    {
        limit[0].reach = limit[1].reach = limit[0].first = limit[1].first = -SL_ATTN_INF;
        if (!sl_attn_skips(a, w)) /* the same for all threads */
            return;
        const uint8_t *from = a.keys +
                              static_cast<unsigned>(a.tables[w.item.table]) *
                                  static_cast<unsigned long long>(a.page_bytes) +
                              static_cast<unsigned>(w.item.kv * a.by_page.by) *
                                  static_cast<unsigned long long>(frags::TILE);
        for (int i = static_cast<int>(threadIdx.x); i < frags::TILE / 16; i += cfg::THREADS)
            *reinterpret_cast<uint4 *>(room + i * 16) =
                *reinterpret_cast<const uint4 *>(from + i * 16);
        __syncthreads();
        float s[2][4];
        multiply<1>(room, s);
        sl_attn_cap_and_mask(a, w, rows, s, 0, false, true);
        sl_attn_limits(a, w, rows, warp * 16, s, limit);
    }

    /* false: no row of the warp takes the tile in. */
    __device__ __forceinline__ bool scores(const uint8_t *keys, int tile, uint32_t (&p)[4][4])
    {
        float s[8][4], top[2], alpha[2], base[2];
        bool takes[2] = {true, true};
        multiply<TILES>(keys, s);
        sl_attn_cap_and_mask(a, w, rows, s, tile * SL_ATTN_TILE, sl_attn_masked(w, tile), true);
        if constexpr (SKIP) {
            const bool any = sl_attn_takes<8>(s, limit, m, true, takes);
            sl_attn_count(a, rows, tile * SL_ATTN_TILE, limit, takes, any);
            if (!any)
                return false;
        }
        sl_attn_row_max(s, top, true);
        if constexpr (SKIP)
            sl_attn_raise_taken(a.scale2, takes, m, top, alpha, base);
        else
            sl_attn_raise(a.scale2, m, top, alpha, base);
        sl_attn_exp<elem>(a.scale2, s, base, alpha, p, l, true);
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[n][j] = __fmul_rn(o[n][j], alpha[j >> 1]);
        return true;
    }

    __device__ __forceinline__ void values(const uint32_t p[4][4], const uint8_t *values, int tile)
    {
        if (sl_attn_differ(w) && sl_attn_masked(w, tile) &&
            sl_attn_unclean<frags, D, TILES>(values))
            sl_attn_values_careful<frags, D, TILES>(a, w, rows, o, p, values, tile * SL_ATTN_TILE);
        else
            sl_attn_values<frags, D, TILES>(o, p, values);
    }

    /* more: splits follow. */
    __device__ __forceinline__ void end_split(int tile, bool more)
    {
        const int split = sl_attn_split_of(tile * SL_ATTN_TILE);
        l[0] = sl_attn_row_sum(l[0]);
        l[1] = sl_attn_row_sum(l[1]);
        if (w.item.from > 0 && !sl_attn_by_run(w)) {
            sl_attn_write_slot<D>(a, w, warp * 16, sl_attn_split_slot(w, split), o, m, l);
            clear();
            return;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            struct sl_attn_combine j = sl_attn_combine_of(state_m[i], m[i], a.scale2);
            state_m[i] = j.top;
            state_l[i] = sl_attn_combined(j, state_l[i], l[i]);
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int k = 2 * i; k < 2 * i + 2; k++)
                    state_at(n, k) = sl_attn_combined(j, state_at(n, k), o[n][k]);
        }
        if (!more || sl_attn_begins_run((tile + 1) * SL_ATTN_TILE))
            end_run(split, more);
        clear();
    }

    /* The run of the split is complete: to its slot, or onto the runs before it. */
    __device__ __forceinline__ void end_run(int split, bool more)
    {
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[n][j] = state_at(n, j);
        if (w.item.from > 0) {
            sl_attn_write_slot<D>(a, w, warp * 16, sl_attn_split_slot(w, split), o, state_m,
                                  state_l);
        } else {
            sl_attn_combine_total<D, cfg::THREADS>(a, static_cast<int>(threadIdx.x), first_run,
                                                   !more, o, state_m, state_l);
            first_run = false;
            if (!more && w.item.rows_at < 0)
                sl_attn_write_out<D>(a, w, warp * 16, o, state_m, state_l);
            else if (!more)
                sl_attn_write_slot<D>(a, w, warp * 16, 0, o, state_m, state_l);
        }
        clear_state();
    }
};

template <class KV, int D, bool SKIP, class cfg>
static __device__ __forceinline__ void sl_attn_wide_item(const struct sl_attn_args &a,
                                                         uint8_t *smem)
{
    const struct sl_attn_work &w = *reinterpret_cast<struct sl_attn_work *>(smem + cfg::WORK_AT);
    int tile, tile_to;
    sl_attn_tiles_of(w, &tile, &tile_to);
    sl_attn_ring<KV, D, cfg::THREADS, cfg::SLOTS> ring;
    ring.start(a, w, smem, tile, tile_to);
    sl_attn_wide<KV, D, SKIP, cfg> n(a, w, smem);
    n.load_query(); /* the first barrier is in next_tile */
    if constexpr (SKIP)
        n.load_limits(smem + (cfg::SLOTS - 1) * cfg::SLOT); /* the one that start left free */
#pragma unroll 1
    for (; tile < tile_to; tile++) {
        uint32_t p[4][4];
        bool takes = n.sees(tile);
        const uint8_t *keys = ring.next_tile(a, w);
        if (takes)
            takes = n.scores(keys, tile, p);
        uint8_t *values = ring.next_tile(a, w);
        if (tile * SL_ATTN_TILE < w.key_lo || (tile + 1) * SL_ATTN_TILE > w.key_hi) {
            sl_attn_clear<KV, D>(w, values, SL_ATTN_TILE / SL_KV_TILE, tile * SL_ATTN_TILE,
                                 static_cast<int>(threadIdx.x), cfg::THREADS);
            __syncthreads();
        }
        if (takes)
            n.values(p, values, tile);
        if (sl_attn_last_of_split(tile, tile_to))
            n.end_split(tile, tile + 1 < tile_to);
    }
    ring.finish();
}

template <class KV, int D, bool SKIP, class cfg>
static __global__ void __launch_bounds__((cfg::THREADS), (cfg::CTAS))
    sl_attn_wide_kernel(const __grid_constant__ struct sl_attn_args a)
{
    SL_SMEM(uint8_t, smem);
    sl_grid_wait();
    sl_attn_for_items(a, reinterpret_cast<int *>(smem + cfg::FLAG_AT),
                      reinterpret_cast<struct sl_attn_work *>(smem + cfg::WORK_AT),
                      [&] { sl_attn_wide_item<KV, D, SKIP, cfg>(a, smem); });
}

#endif
