/* SPDX-License-Identifier: MIT
 * attention_wg.cuh - paged attention for tiles of 128 rows by the products of warpgroups: chunks of
 * prompts, heads of 64 and 128 dimensions, pages of BF16 and F16.
 *
 * Two warps bring page tiles as they are, by bulk copies, one the keys and one the values, each
 * into two slots of 128 positions: a pair of the canonical order's tiles. Two warpgroups of 64 rows
 * take them: scores with queries and keys in shared memory, values with probabilities in registers.
 * A warpgroup begins the next tile's scores together with this tile's values and makes
 * probabilities of the scores while the values are added. The sums are those of mma.sync, to the
 * bit: one accumulator over ascending 16s. A row's state over the splits of a run is in shared
 * memory, touched once a split: the sums of a split, its scores and its probabilities fill the
 * registers.
 *
 * The two tiles of a pair mostly have one reference, and their values are one product. Where the
 * second tile's is higher in some row, the warp does that product again by mma.sync, a tile after
 * the other, with the factor between them.
 *
 * A pair, 128 keys, is 512 + 512 clk of the tensor cores for 64 rows of D = 128, with about 450
 * instructions a warp and 8,192 exponentials (512 clk) beside them; lab/attention_prefill.cu has
 * the figures, and what was tried.
 *
 * nvcc 13.0, sm_90a: 168 registers at launch; D = 128 spills some 40 bytes.
 */
#ifndef SL_CUDA_ATTENTION_WG_CUH
#define SL_CUDA_ATTENTION_WG_CUH

#include "cuda/attention_tile.cuh"

#define SL_ATTN_PAIR (2 * SL_ATTN_TILE) /* keys: two tiles at once, which no split divides */
static_assert(SL_ATTN_SPLIT % SL_ATTN_PAIR == 0, "splits are whole pairs");

/* ---------------------------------------------------------------- sizes */

template <int D_> struct sl_attn_wg_cfg {
    static constexpr int D = D_;
    static constexpr int GROUPS = 2; /* that multiply; group 0 brings */
    static constexpr int ROWS = 64 * GROUPS;
    static constexpr int WORKERS = 128 * GROUPS;
    static constexpr int THREADS = 128 + WORKERS;
    static constexpr int PANELS = D / 64;                        /* of 64 dimensions */
    static constexpr int PART = SL_KV_TILE * 128;                /* bytes of one in a page tile */
    static constexpr int PANEL = 64 * 128;                       /* and in 64 rows */
    static constexpr int BLOCK = PANELS * PANEL;                 /* 64 rows */
    static constexpr int SLOT = SL_ATTN_PAIR / 64 * BLOCK;       /* keys or values of a tile */
    static constexpr int SLOTS = 4;                              /* keys, values, keys, values */
    static constexpr int STATE_AT = SLOTS * SLOT;                /* float4 [D / 8][WORKERS] */
    static constexpr int Q_AT = STATE_AT + D / 8 * WORKERS * 16; /* [GROUPS][PANELS][64][128] */
    static constexpr int FULL_AT = Q_AT + GROUPS * BLOCK;        /* mbarriers */
    static constexpr int EMPTY_AT = FULL_AT + 8 * SLOTS;         /* mbarriers */
    static constexpr int WORK_FULL_AT = EMPTY_AT + 8 * SLOTS;    /* [2] */
    static constexpr int WORK_EMPTY_AT = WORK_FULL_AT + 16;      /* [2] */
    static constexpr int UNCLEAN_AT = WORK_EMPTY_AT + 16;        /* int [GROUPS][4] */
    static constexpr int WORK_AT = UNCLEAN_AT + 16 * GROUPS;
    static constexpr int BYTES = WORK_AT + 2 * static_cast<int>(sizeof(struct sl_attn_work));
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

template <class cfg> struct sl_attn_wg_bars {
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
    /* By one thread. */
    __device__ __forceinline__ void init() const
    {
        for (int i = 0; i < cfg::SLOTS; i++) {
            sl_mbar_init(full(i), SL_WARP_ARRIVALS);
            sl_mbar_init(empty(i), cfg::WORKERS / 32 * SL_WARP_ARRIVALS);
        }
        for (int i = 0; i < 2; i++) {
            sl_mbar_init(work_full(i), SL_WARP_ARRIVALS);
            sl_mbar_init(work_empty(i), (cfg::WORKERS / 32 + 1) * SL_WARP_ARRIVALS);
        }
        sl_mbar_fence_init();
    }
};

/* ---------------------------------------------------------------- the warps that bring */

template <class cfg> struct sl_attn_bring {
    const struct sl_attn_args &a;
    sl_attn_wg_bars<cfg> bars;
    struct sl_attn_turn tiles;
    int lane;
    bool keys;  /* or values */
    int lo, hi; /* keys of the item that are brought */
    /* Lane i: where the i-th 16 positions from `first` on lie in a plane. */
    unsigned long long at;
    int first;

    __device__ __forceinline__ sl_attn_bring(const struct sl_attn_args &args,
                                             const sl_attn_wg_bars<cfg> &barriers)
        : a(args), bars(barriers), tiles({0}), lo(0), hi(0), at(0), first(0)
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        keys = threadIdx.x < 32;
    }

    __device__ __forceinline__ void find(const struct sl_attn_work &w, int from)
    {
        int unit = from + lane, pos = unit * SL_KV_TILE, page = sl_attn_div(unit, a.by_page);
        bool wanted = pos < hi && pos + SL_KV_TILE > lo;
        int id = wanted ? a.tables[w.item.table + page] : 0;
        int sub = unit + (w.item.kv - page) * a.by_page.by;
        first = from;
        at = static_cast<unsigned>(id) * static_cast<unsigned long long>(a.page_bytes) +
             static_cast<unsigned>(sub) *
                 static_cast<unsigned long long>(SL_KV_TILE * cfg::PANELS * 128);
    }

    /* Where 16 rows of a panel lie in a slot: keys panel after panel, values 64 rows after 64. */
    __device__ __forceinline__ int part_at(int unit, int panel) const
    {
        if (keys)
            return panel * (SL_ATTN_PAIR * 128) + unit * cfg::PART;
        return unit / 4 * cfg::BLOCK + panel * cfg::PANEL + unit % 4 * cfg::PART;
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

    /* The tile from `key` on, of which the rows that somebody sees are brought. */
    __device__ __forceinline__ void load(int key)
    {
        const uint8_t *plane = keys ? a.keys : a.values;
        int i = lane - (key / SL_KV_TILE - first), pos = key + i * SL_KV_TILE;
        int from = max(lo - pos, 0), end = min(hi - pos, SL_KV_TILE);
        bool mine = i >= 0 && i < SL_ATTN_PAIR / SL_KV_TILE && from < end;
        int slot_from = max(lo - key, 0), slot_end = min(hi - key, SL_ATTN_PAIR);
        int slot = keys ? tiles.keys() : tiles.values();
        uint8_t *to = bars.smem + slot * cfg::SLOT;
        sl_mbar_wait(bars.empty(slot), tiles.parity() ^ 1);
        if (slot_end - slot_from < SL_ATTN_PAIR) {
            clear(to, 0, slot_from);
            clear(to, slot_end, SL_ATTN_PAIR);
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

    __device__ __forceinline__ void item(const struct sl_attn_work &w)
    {
        int from, to;
        sl_attn_tiles_of<SL_ATTN_PAIR>(w, &from, &to);
        lo = max(w.key_lo, from * SL_ATTN_PAIR);
        hi = min(w.key_hi, to * SL_ATTN_PAIR);
#pragma unroll 1
        for (int t = from; t < to; t++) {
            int key = t * SL_ATTN_PAIR;
            if (t == from || key % (32 * SL_KV_TILE) == 0)
                find(w, key / SL_KV_TILE);
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
            if (keys && lane == 0)
                taken = atomicAdd(&a.cls->taken, 1u);
            item(w);
            if (!keys)
                sl_mbar_arrive_warp(bars.work_empty(items.slot()));
            next = static_cast<int>(gridDim.x + __shfl_sync(0xFFFFFFFFu, taken, 0));
        }
    }
};

/* ---------------------------------------------------------------- the warpgroups that multiply */

/* Values as they lie in 64 rows of a slot, for sl_attn_values_careful. */
template <class KV, class cfg> struct sl_attn_panel_frags {
    typedef typename KV::elem elem;
    static constexpr int TILE = cfg::PART;
    static __device__ __forceinline__ void frags(uint32_t b[4], const uint8_t *tile, int i)
    {
        KV::template value_frags<64>(b, tile + i / 4 * cfg::PANEL, i % 4 * 16);
    }
};

template <class KV, int D> struct sl_attn_wg {
    typedef sl_attn_wg_cfg<D> cfg;
    typedef typename KV::elem elem;
    static constexpr int F = SL_ATTN_PAIR / 8; /* fragments of a tile's scores */
    static constexpr int O = D / 8;            /* and of the sums */

    const struct sl_attn_args &a;
    sl_attn_wg_bars<cfg> bars;
    struct sl_attn_turn tiles;
    int group, warp, lane; /* warp: of the group */
    int to;                /* tiles of the item end here */
    int left, right;       /* tiles before, and from which on, some row does not see all */
    bool differ;           /* rows do not all see the same */
    bool fresh;            /* nothing is in the sums yet */
    bool stateless;        /* nothing is in the state yet, of a run */
    bool first_run;        /* of the item */
    float m[2], l[2];      /* of the split */
    float base[2];         /* what exponents are taken from: m's */
    bool late;             /* the second tile of a pair has a reference of its own: */
    volatile float late_base[2], late_alpha[2]; /* in memory, as that is rare */
    float done_m[2], done_l[2];                 /* m and l of the split before */
    float state_m[2], state_l[2];

    __device__ __forceinline__ sl_attn_wg(const struct sl_attn_args &args,
                                          const sl_attn_wg_bars<cfg> &barriers, int group_idx)
        : a(args), bars(barriers), tiles({0}), group(group_idx)
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 32), 0) % 4;
    }

    __device__ __forceinline__ int row0() const
    {
        return group * 64 + warp * 16;
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

    /* ---- products */

    /* The slot, as a number that the compiler sees to be the same in all lanes: places of operands
     * are in uniform registers, and would be moved there one by one (50 instructions a tile, 5 % of
     * the speed). */
    static __device__ __forceinline__ int uniform(int slot)
    {
        return __shfl_sync(0xFFFFFFFFu, slot, 0);
    }

    __device__ __forceinline__ void scores(int slot, float (&s)[F][4])
    {
        auto q = sl_wgmma_b(bars.smem + cfg::Q_AT + group * cfg::BLOCK);
        auto b = sl_wgmma_b(slot_at(uniform(slot)));
        sl_wgmma_fence();
#pragma unroll
        for (int d = 0; d < D / 16; d++)
            elem::wgmma_ss(s, sl_wgmma_b_at(q, d / 4 * cfg::PANEL + d % 4 * 32),
                           sl_wgmma_b_at(b, d / 4 * (SL_ATTN_PAIR * 128) + d % 4 * 32), d > 0);
        sl_wgmma_commit();
    }

    __device__ __forceinline__ void values(int slot, float (&o)[O][4],
                                           const uint32_t (&p)[F / 2][4])
    {
        auto b = sl_wgmma_bt(slot_at(uniform(slot)));
        sl_wgmma_fence();
#pragma unroll
        for (int k = 0; k < F / 2; k++)
            elem::wgmma_rs_bt(o, p[k], sl_wgmma_b_at(b, k / 4 * cfg::BLOCK + k % 4 * cfg::PART),
                              k > 0 || !fresh);
        sl_wgmma_commit();
    }

    __device__ __forceinline__ void wait_values(float (&o)[O][4], uint32_t (&p)[F / 2][4])
    {
        sl_wgmma_wait<0>();
        sl_wgmma_keep(o);
        sl_wgmma_keep(p);
    }

    /* ---- probabilities */

    __device__ __forceinline__ bool is_masked(int t) const
    {
        return t < left || t >= right;
    }

    /* Masks scores and finds what their exponents are taken from. true: what was summed before is
     * to be multiplied with alpha. The four threads of a row look at its maxima only if one of them
     * has a score that is far above. */
    __device__ __forceinline__ bool raise(const struct sl_attn_work &w, int t, float (&s)[F][4],
                                          float alpha[2])
    {
        if (is_masked(t) || a.cap > 0.0f) {
            const struct sl_attn_rows rows = sl_attn_rows_of(a, w, row0() + lane / 4);
            sl_attn_cap_and_mask(a, rows, s, t * SL_ATTN_PAIR, is_masked(t), true);
        }
        float top[2], second[2];
        bool rise = false;
        late = false;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            top[i] = sl_attn_thread_max<F / 2>(s, i);
            second[i] = sl_attn_thread_max<F / 2>(s + F / 2, i);
            rise = rise || sl_attn_is_far(fmaxf(top[i], second[i]), m[i], a.scale2);
            alpha[i] = 1.0f;
        }
        if (!__any_sync(0xFFFFFFFFu, rise))
            return false;
        raise_both(top, second, alpha);
        return true;
    }

    /* The first tile's reference, and the second one's where it rises once more. A row that sees
     * nothing of the first tile takes the second one's for both. */
    __device__ __forceinline__ void raise_both(float top[2], float second[2], float alpha[2])
    {
        float again[2], then[2];
        bool once_more = false;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            top[i] = sl_attn_quad_max(top[i]);
            second[i] = sl_attn_quad_max(second[i]);
        }
        sl_attn_raise(a.scale2, m, top, alpha, base);
        const bool empty[2] = {m[0] == -SL_ATTN_INF, m[1] == -SL_ATTN_INF};
        sl_attn_raise(a.scale2, m, second, again, then);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            base[i] = empty[i] ? then[i] : base[i];
            again[i] = empty[i] ? 1.0f : again[i];
            once_more = once_more || again[i] != 1.0f;
        }
        late = __any_sync(0xFFFFFFFFu, once_more) != 0;
        if (late) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                late_base[i] = then[i];
                late_alpha[i] = again[i];
            }
        }
    }

    /* Scores of one of the thread's two rows become probabilities, still as floats. */
    template <int I> __device__ __forceinline__ void soften(float (&s)[F][4], const float alpha[2])
    {
        float sum[F / 2], then = late ? late_base[I] : base[I];
#pragma unroll
        for (int k = 0; k < F / 2; k++) {
            float *x = &s[2 * k][2 * I], *y = &s[2 * k + 1][2 * I];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float from = k < F / 4 ? base[I] : then;
                x[j] = sl_ex2_approx(__fmaf_rn(x[j], a.scale2, -from));
                y[j] = sl_ex2_approx(__fmaf_rn(y[j], a.scale2, -from));
            }
            sum[k] = __fadd_rn(__fadd_rn(x[0], x[1]), __fadd_rn(y[0], y[1]));
        }
        l[I] = __fmaf_rn(l[I], alpha[I], sl_attn_tree<F / 4>(sum));
        l[I] = __fmaf_rn(l[I], late ? late_alpha[I] : 1.0f, sl_attn_tree<F / 4>(sum + F / 4));
        base[I] = then;
    }

    static __device__ __forceinline__ void pack(const float (&s)[F][4], uint32_t (&p)[F / 2][4])
    {
#pragma unroll
        for (int k = 0; k < F / 2; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *x = &s[2 * k + i / 2][2 * (i % 2)];
                p[k][i] = elem::pack(x[0], x[1]);
            }
    }

    static __device__ __forceinline__ void scale(float (&o)[O][4], const float alpha[2])
    {
#pragma unroll
        for (int n = 0; n < O; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[n][j] = __fmul_rn(o[n][j], alpha[j >> 1]);
    }

    /* ---- values that are no numbers */

    /* Are there numbers that p = 0 does not silence in positions from .. to - 1 of a slot? */
    __device__ __forceinline__ bool unclean_rows(int slot, int from, int to)
    {
        constexpr int EACH = D / 8; /* pieces of 16 bytes in a row */
        bool any = false;
#pragma unroll 1
        for (int i = from * EACH + warp * 32 + lane; i < to * EACH; i += 128) {
            const int row = i / EACH, piece = i % EACH;
            const uint4 x = *reinterpret_cast<const uint4 *>(slot_at(slot) + row / 64 * cfg::BLOCK +
                                                             piece / 8 * cfg::PANEL +
                                                             row % 64 * 128 + piece % 8 * 16);
            any = any || elem::not_finite2(x.x) || elem::not_finite2(x.y) ||
                  elem::not_finite2(x.z) || elem::not_finite2(x.w);
        }
        return any;
    }

    /* Do the values of tile t that some rows see, and others not, hold something that p = 0 does
     * not silence? The group looks together. */
    __device__ __forceinline__ bool unclean(const struct sl_attn_work &w, int t, int slot)
    {
        int *found = reinterpret_cast<int *>(bars.smem + cfg::UNCLEAN_AT) + group * 4;
        const int key = t * SL_ATTN_PAIR;
        const int lo = max(w.key_lo - key, 0), hi = min(w.key_hi - key, SL_ATTN_PAIR);
        /* What all rows see lies between; there may be nothing of it. */
        const int mid = min(max(w.all_lo - key, lo), hi), end = max(min(w.all_hi - key, hi), mid);
        bool any = unclean_rows(slot, lo, mid);
        any = unclean_rows(slot, end, hi) || any;
        any = __any_sync(0xFFFFFFFFu, any) != 0;
        if (lane == 0)
            found[warp] = any;
        sl_fence_proxy_async();
        sl_bar_sync(2 + group, 128);
        any = (found[0] | found[1] | found[2] | found[3]) != 0;
        sl_bar_sync(2 + group, 128); /* before the next one's */
        return any;
    }

    /* The product that follows is not to stand, as values are no numbers or the second tile has
     * another reference: the sums before it. Memory, not registers, keeps them: both are rare. */
    __device__ __forceinline__ void save(const float (&o)[O][4], volatile float *saved)
    {
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            saved[i] = fresh ? 0.0f : o[i / 4][i % 4];
    }

    __device__ __forceinline__ bool is_unclean(const struct sl_attn_work &w, int t, int slot)
    {
        if (!is_masked(t) || !differ)
            return false;
        wait(slot, tiles);
        return unclean(w, t, slot);
    }

    /* The values once more, a tile after the other. */
    __device__ __forceinline__ void values_apart(const struct sl_attn_work &w, int t, int slot,
                                                 float (&o)[O][4], const uint32_t (&p)[F / 2][4],
                                                 const volatile float *saved, bool careful,
                                                 const volatile float *alpha)
    {
        typedef sl_attn_panel_frags<KV, cfg> frags;
        const struct sl_attn_rows rows = sl_attn_rows_of(a, w, row0() + lane / 4);
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o[i / 4][i % 4] = saved[i];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint8_t *tile = slot_at(slot) + h * cfg::BLOCK;
            if (h == 1) {
                const float by[2] = {alpha[0], alpha[1]};
                scale(o, by);
            }
            if (careful)
                sl_attn_values_careful<frags, D, 4>(a, rows, o, p + 4 * h, tile,
                                                    t * SL_ATTN_PAIR + h * SL_ATTN_TILE);
            else
                sl_attn_values<frags, D, 4>(o, p + 4 * h, tile);
        }
        sl_fence_proxy_async();
    }

    /* ---- splits */

    __device__ __forceinline__ float4 *state_at(int n) const
    {
        return reinterpret_cast<float4 *>(bars.smem + cfg::STATE_AT) + n * cfg::WORKERS +
               (static_cast<int>(threadIdx.x) - 128);
    }

    /* The split of tile t, with done_m and done_l, is complete: o becomes the state that has taken
     * it in. */
    __device__ __forceinline__ void join(float (&o)[O][4])
    {
        if (stateless) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                state_m[i] = done_m[i];
                state_l[i] = done_l[i];
            }
            return;
        }
        struct sl_attn_join j[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            j[i] = sl_attn_join_of(state_m[i], done_m[i], a.scale2);
            state_m[i] = j[i].top;
            state_l[i] = sl_attn_joined(j[i], state_l[i], done_l[i]);
        }
        if (__any_sync(0xFFFFFFFFu, j[0].a != 1.0f || j[1].a != 1.0f)) {
#pragma unroll
            for (int n = 0; n < O; n++) {
                const float4 x = *state_at(n);
                o[n][0] = sl_attn_joined(j[0], x.x, o[n][0]);
                o[n][1] = sl_attn_joined(j[0], x.y, o[n][1]);
                o[n][2] = sl_attn_joined(j[1], x.z, o[n][2]);
                o[n][3] = sl_attn_joined(j[1], x.w, o[n][3]);
            }
            return;
        }
#pragma unroll
        for (int n = 0; n < O; n++) { /* the same without products by 1 */
            const float4 x = *state_at(n);
            o[n][0] = __fmaf_rn(o[n][0], j[0].b, x.x);
            o[n][1] = __fmaf_rn(o[n][1], j[0].b, x.y);
            o[n][2] = __fmaf_rn(o[n][2], j[1].b, x.z);
            o[n][3] = __fmaf_rn(o[n][3], j[1].b, x.w);
        }
    }

    /* More splits follow if `more`. */
    __device__ __forceinline__ void end_split(const struct sl_attn_work &w, int t, float (&o)[O][4],
                                              bool more)
    {
        done_l[0] = sl_attn_row_sum(done_l[0]);
        done_l[1] = sl_attn_row_sum(done_l[1]);
        if (w.item.from > 0 && !sl_attn_by_run(w)) {
            int slot = sl_attn_split_slot(w, sl_attn_split_of(t * SL_ATTN_PAIR));
            sl_attn_write_slot<D>(a, w, row0(), slot, o, done_m, done_l);
            return;
        }
        join(o);
        stateless = !more || sl_attn_begins_run((t + 1) * SL_ATTN_PAIR);
        if (stateless) {
            end_run(w, t, o, more);
            return;
        }
#pragma unroll
        for (int n = 0; n < O; n++)
            *state_at(n) = make_float4(o[n][0], o[n][1], o[n][2], o[n][3]);
    }

    /* The run of tile t, o and the state's m and l, is complete. */
    __device__ __forceinline__ void end_run(const struct sl_attn_work &w, int t, float (&o)[O][4],
                                            bool more)
    {
        if (w.item.from > 0) {
            int slot = sl_attn_split_slot(w, sl_attn_split_of(t * SL_ATTN_PAIR));
            sl_attn_write_slot<D>(a, w, row0(), slot, o, state_m, state_l);
            return;
        }
        sl_attn_join_total<D, cfg::WORKERS>(a, static_cast<int>(threadIdx.x) - 128, first_run,
                                            !more, o, state_m, state_l);
        first_run = false;
        if (more)
            return;
        if (w.item.rows_at < 0)
            sl_attn_write_out<D>(a, w, row0(), o, state_m, state_l);
        else
            sl_attn_write_slot<D>(a, w, row0(), 0, o, state_m, state_l);
    }

    __device__ __forceinline__ void begin_split()
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            done_m[i] = m[i];
            done_l[i] = l[i];
            m[i] = -SL_ATTN_INF;
            l[i] = 0.0f;
        }
    }

    /* ---- an item */

    __device__ __forceinline__ void load_queries(const struct sl_attn_work &w)
    {
        constexpr int PIECES = D / 8,
                      EACH = 64 * PIECES / 128; /* of eight dimensions; a thread's */
        uint8_t *at = bars.smem + cfg::Q_AT + group * cfg::BLOCK;
        float4 x[EACH][2];
        sl_bar_sync(2 + group, 128); /* nobody multiplies the last item's any more */
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
        sl_bar_sync(2 + group, 128);
    }

    /* The group has no rows. */
    __device__ __forceinline__ void idle(int from)
    {
#pragma unroll 1
        for (int t = from; t < to; t++, tiles.n++) {
            wait(tiles.keys(), tiles);
            release(tiles.keys());
            wait(tiles.values(), tiles);
            release(tiles.values());
        }
    }

    /* Probabilities of the first tile. */
    __device__ __forceinline__ void first(const struct sl_attn_work &w, int t, float (&s)[F][4],
                                          uint32_t (&p)[F / 2][4])
    {
        float alpha[2];
        wait(tiles.keys(), tiles);
        scores(tiles.keys(), s);
        sl_wgmma_wait<0>();
        sl_wgmma_keep(s);
        release(tiles.keys());
        raise(w, t, s, alpha);
        soften<0>(s, alpha);
        soften<1>(s, alpha);
        pack(s, p);
    }

    /* The values of tile t, and the probabilities of the next one. */
    __device__ __forceinline__ void step(const struct sl_attn_work &w, int t, float (&o)[O][4],
                                         float (&s)[F][4], uint32_t (&p)[F / 2][4])
    {
        volatile float saved[D / 2], second[2] = {1.0f, 1.0f};
        float alpha[2];
        const struct sl_attn_turn next = {tiles.n + 1};
        const int slot = tiles.values();
        const bool careful = is_unclean(w, t, slot), apart = careful || late;
        if (apart)
            save(o, saved);
        if (late)
            second[0] = late_alpha[0], second[1] = late_alpha[1];
        const bool ends = sl_attn_last_of_split<SL_ATTN_PAIR>(t, to);
        wait(next.keys(), next);
        scores(next.keys(), s);
        wait(slot, tiles);
        values(slot, o, p);
        sl_wgmma_wait<1>();
        sl_wgmma_keep(s);
        release(next.keys());
        if (ends)
            begin_split();
        const bool rises = raise(w, t + 1, s, alpha);
        soften<0>(s, alpha);
        sl_wgmma_keep(s); /* or the compiler would wait first */
        wait_values(o, p);
        if (apart)
            values_apart(w, t, slot, o, p, saved, careful, second);
        release(slot);
        soften<1>(s, alpha);
        pack(s, p);
        if (ends)
            end_split(w, t, o, true);
        else if (rises)
            scale(o, alpha);
        fresh = ends;
        tiles.n++;
    }

    __device__ __forceinline__ void last(const struct sl_attn_work &w, int t, float (&o)[O][4],
                                         uint32_t (&p)[F / 2][4])
    {
        volatile float saved[D / 2], second[2] = {1.0f, 1.0f};
        const int slot = tiles.values();
        const bool careful = is_unclean(w, t, slot), apart = careful || late;
        if (apart)
            save(o, saved);
        if (late)
            second[0] = late_alpha[0], second[1] = late_alpha[1];
        wait(slot, tiles);
        values(slot, o, p);
        wait_values(o, p);
        if (apart)
            values_apart(w, t, slot, o, p, saved, careful, second);
        release(slot);
        tiles.n++;
        begin_split();
        end_split(w, t, o, false);
    }

    __device__ __forceinline__ void item(const struct sl_attn_work &w)
    {
        int t;
        float o[O][4], s[F][4];
        uint32_t p[F / 2][4];
        sl_attn_tiles_of<SL_ATTN_PAIR>(w, &t, &to);
        left = (w.all_lo + SL_ATTN_PAIR - 1) / SL_ATTN_PAIR;
        right = w.all_hi / SL_ATTN_PAIR;
        differ = w.all_hi != w.key_hi;
        if (t >= to) /* a part before all windows: nobody asks for its sums */
            return;
        if (group * 64 >= w.item.n_rows) {
            idle(t);
            return;
        }
        load_queries(w);
#pragma unroll
        for (int n = 0; n < O; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[n][j] = 0.0f;
        fresh = stateless = first_run = true;
        begin_split();
        first(w, t, s, p);
#pragma unroll 1
        for (; t + 1 < to; t++)
            step(w, t, o, s, p);
        last(w, t, o, p);
    }

    __device__ __forceinline__ void run()
    {
        struct sl_attn_turn items = {0};
        /* base too: a warp whose rows see nothing of their first tile never sets it, and what a
         * register happens to hold may be no number. */
        m[0] = m[1] = l[0] = l[1] = base[0] = base[1] = 0.0f;
        for (;; items.n++) {
            const struct sl_attn_work &w = *bars.work(items.slot());
            sl_mbar_wait(bars.work_full(items.slot()), items.parity());
            if (!w.item.valid)
                return;
            item(w);
            sl_mbar_arrive_warp(bars.work_empty(items.slot()));
        }
    }
};

/* ---------------------------------------------------------------- the kernel */

template <class KV, int D>
static __global__ void __launch_bounds__((sl_attn_wg_cfg<D>::THREADS), 1)
    sl_attn_wg_kernel(const __grid_constant__ struct sl_attn_args a)
{
    typedef sl_attn_wg_cfg<D> cfg;
    SL_SMEM(uint8_t, smem);
    const sl_attn_wg_bars<cfg> bars = {smem};
    sl_grid_launch_dependents();
    if (threadIdx.x == 0)
        bars.init();
    __syncthreads();
    sl_grid_wait();
    /* The same in all lanes, as the compiler shall see: products do not run in divergent code. */
    const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 128), 0);
    if (group == 0) {
        sl_regs_give<24>();
        if (threadIdx.x < 64) {
            sl_attn_bring<cfg> x(a, bars);
            x.run(a.cls->n_items * a.n_kv_heads);
            if (threadIdx.x == 0 && atomicAdd(&a.cls->done, 1u) + 1 == gridDim.x) {
                a.cls->taken = 0; /* for the next layer */
                a.cls->done = 0;
            }
        }
    } else {
        sl_regs_take<240>();
        sl_attn_wg<KV, D> x(a, bars, group - 1);
        x.run();
    }
}

#endif
