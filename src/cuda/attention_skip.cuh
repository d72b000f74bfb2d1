/* SPDX-License-Identifier: MIT
 * attention_skip.cuh - attention_wg.cuh with skip-softmax: chunks of prompts by the products of
 * warpgroups, for a factor above 0.
 *
 * The same warps bring the same tiles. A warpgroup does a pair of tiles one step after the other:
 * scores; which rows take which tile in, a vote of its four warps; of a tile that some row takes in
 * the exponentials and the product with its values. So a tile that none takes in costs its scores,
 * and nothing is begun that would then not be wanted. The other warpgroup multiplies meanwhile.
 *
 * The values of a pair's tiles are products of their own, with the factor between them, so that a
 * second reference needs no second way. Rows' states are in shared memory, touched once a split of
 * which something was taken in.
 */
#ifndef SL_CUDA_ATTENTION_SKIP_CUH
#define SL_CUDA_ATTENTION_SKIP_CUH

#include "cuda/attention_wg.cuh"

/* Sizes as sl_attn_bring and sl_attn_wg_bars ask for them. */
template <int D_> struct sl_attn_skip_cfg {
    static constexpr int D = D_;
    static constexpr int GROUPS = 2; /* that multiply; group 0 brings */
    static constexpr int ROWS = 64 * GROUPS;
    static constexpr int WORKERS = 128 * GROUPS;
    static constexpr int THREADS = 128 + WORKERS;
    static constexpr int PANELS = D / 64;
    static constexpr int PART = SL_KV_TILE * 128;
    static constexpr int PANEL = 64 * 128;
    static constexpr int BLOCK = PANELS * PANEL;
    static constexpr int SLOT = SL_ATTN_PAIR / 64 * BLOCK;
    static constexpr int SLOTS = 4;
    static constexpr int STATE_AT = SLOTS * SLOT; /* float4 [GROUPS][D / 8][128], or first keys */
    static constexpr int Q_AT = STATE_AT + D / 8 * WORKERS * 16; /* [GROUPS][PANELS][64][128] */
    static constexpr int FULL_AT = Q_AT + GROUPS * BLOCK;        /* mbarriers */
    static constexpr int EMPTY_AT = FULL_AT + 8 * SLOTS;
    static constexpr int WORK_FULL_AT = EMPTY_AT + 8 * SLOTS; /* [2] */
    static constexpr int WORK_EMPTY_AT = WORK_FULL_AT + 16;   /* [2] */
    static constexpr int UNCLEAN_AT = WORK_EMPTY_AT + 16;     /* int [GROUPS][4] */
    static constexpr int VOTE_AT = UNCLEAN_AT + 16 * GROUPS;  /* uint8_t [2][GROUPS][4] */
    static constexpr int WORK_AT = VOTE_AT + 8 * GROUPS;
    static constexpr int BYTES = WORK_AT + 2 * static_cast<int>(sizeof(struct sl_attn_work));
};

template <class KV, int D> struct sl_attn_skip {
    typedef sl_attn_skip_cfg<D> cfg;
    typedef typename KV::elem elem;
    typedef sl_attn_panel_frags<KV, cfg> frags;
    static constexpr int F = SL_ATTN_TILE / 8; /* fragments of a tile's scores */
    static constexpr int O = D / 8;            /* and of the sums */

    const struct sl_attn_args &a;
    sl_attn_wg_bars<cfg> bars;
    struct sl_attn_turn tiles;
    int group, warp, lane; /* warp: of the group */
    bool fresh;            /* nothing of the split was taken in */
    bool stateless;        /* nothing is in the state, of a run */
    bool first_run;        /* of the item */
    struct sl_attn_rows rows;
    struct sl_attn_limit limit[2];
    float m[2], l[2]; /* of the split */
    float state_m[2], state_l[2];

    __device__ __forceinline__ sl_attn_skip(const struct sl_attn_args &args,
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
    __device__ __forceinline__ void together() const
    {
        sl_bar_sync(2 + group, 128);
    }
    __device__ __forceinline__ void wait(int slot)
    {
        sl_mbar_wait(bars.full(slot), tiles.parity());
    }
    __device__ __forceinline__ void release(int slot)
    {
        sl_mbar_arrive_warp(bars.empty(slot));
    }
    __device__ __forceinline__ uint8_t *slot_at(int slot) const
    {
        return bars.smem + slot * cfg::SLOT;
    }
    /* For the compiler: the same in all lanes. */
    static __device__ __forceinline__ int uniform(int x)
    {
        return __shfl_sync(0xFFFFFFFFu, x, 0);
    }

    /* The group's: of sums over the splits. */
    __device__ __forceinline__ float4 *state() const
    {
        return reinterpret_cast<float4 *>(bars.smem + cfg::STATE_AT) + group * (D / 8 * 128);
    }

    /* ---- an item's beginning */

    __device__ __forceinline__ void load_queries(const struct sl_attn_work &w)
    {
        constexpr int PIECES = D / 8;
        uint8_t *at = bars.smem + cfg::Q_AT + group * cfg::BLOCK;
        together(); /* nobody multiplies the last item's any more */
#pragma unroll 4
        for (int i = warp * 32 + lane; i < 64 * PIECES; i += 128) {
            const int row = i / PIECES, piece = i % PIECES;
            const float *query = sl_attn_query_row(a, w, group * 64 + row);
            uint32_t x[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                x[k] = sl_attn_query2<elem>(query, piece * 8 + 2 * k, a.head_dim);
            *reinterpret_cast<uint4 *>(at + piece / 8 * cfg::PANEL + row * 128 +
                                       ((piece ^ row) & 7) * 16) =
                make_uint4(x[0], x[1], x[2], x[3]);
        }
        sl_fence_proxy_async();
        together();
    }

    /* What tiles are compared with. The first keys go where the group's state will be. */
    __device__ __forceinline__ void load_limits(const struct sl_attn_work &w)
    {
        limit[0].reach = limit[1].reach = limit[0].first = limit[1].first = -SL_ATTN_INF;
        if (!sl_attn_skips(a, w))
            return;
        uint8_t *room = reinterpret_cast<uint8_t *>(state());
        const uint8_t *from = a.keys +
                              static_cast<unsigned>(a.tables[w.item.table]) *
                                  static_cast<unsigned long long>(a.page_bytes) +
                              static_cast<unsigned>(w.item.kv * a.by_page.by) *
                                  static_cast<unsigned long long>(SL_KV_TILE * D * 2);
        for (int i = warp * 32 + lane; i < SL_KV_TILE * D / 8; i += 128)
            *reinterpret_cast<uint4 *>(room + i * 16) =
                *reinterpret_cast<const uint4 *>(from + i * 16);
        together();
        float s[2][4] = {};
        const uint8_t *query = bars.smem + cfg::Q_AT + group * cfg::BLOCK;
        const int row = warp * 16 + (lane & 15);
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t q[4], b[4];
            const int piece = d % 4 * 2 + (lane >> 4);
            sl_ldmatrix_x4(q, query + d / 4 * cfg::PANEL + row * 128 + ((piece ^ row) & 7) * 16);
            KV::template key_frags<D>(b, room, d * 16);
            elem::mma(s[0], q, b);
            elem::mma(s[1], q, b + 2);
        }
        sl_attn_cap_and_mask(a, rows, s, 0, false, true);
        sl_attn_limits(a, w, rows, row0(), s, limit);
        together(); /* before the state */
    }

    /* ---- values that are no numbers */

    /* Do rows from .. to - 1 of a slot hold something that p = 0 does not silence? */
    __device__ __forceinline__ bool unclean_rows(int slot, int from, int to)
    {
        constexpr int EACH = D / 8;
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

    /* Of the keys of pair t that some rows see and others do not; the group looks together. */
    __device__ __forceinline__ bool unclean(const struct sl_attn_work &w, int t, int slot)
    {
        int *found = reinterpret_cast<int *>(bars.smem + cfg::UNCLEAN_AT) + group * 4;
        const int key = t * SL_ATTN_PAIR;
        const int mid = min(max(w.all_hi - key, 0), SL_ATTN_PAIR);
        bool any = unclean_rows(slot, mid, min(w.key_hi - key, SL_ATTN_PAIR));
        any = __any_sync(0xFFFFFFFFu, any) != 0;
        if (lane == 0)
            found[warp] = any;
        sl_fence_proxy_async();
        together();
        any = (found[0] | found[1] | found[2] | found[3]) != 0;
        together(); /* before the next one's */
        return any;
    }

    /* ---- splits */

    __device__ __forceinline__ float4 *state_at(int n) const
    {
        return state() + n * 128 + warp * 32 + lane;
    }

    __device__ __forceinline__ void begin_split()
    {
        m[0] = m[1] = -SL_ATTN_INF;
        l[0] = l[1] = 0.0f;
        fresh = true;
    }

    /* o, m and l become the state that has taken the split in, if anything of it was. */
    __device__ __forceinline__ void join(float (&o)[O][4])
    {
        struct sl_attn_join j[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            j[i] = sl_attn_join_of(state_m[i], m[i], a.scale2);
            state_m[i] = j[i].top;
            state_l[i] = sl_attn_joined(j[i], state_l[i], l[i]);
        }
#pragma unroll
        for (int n = 0; n < O; n++) {
            const float4 x = stateless ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : *state_at(n);
            o[n][0] = sl_attn_joined(j[0], x.x, fresh ? 0.0f : o[n][0]);
            o[n][1] = sl_attn_joined(j[0], x.y, fresh ? 0.0f : o[n][1]);
            o[n][2] = sl_attn_joined(j[1], x.z, fresh ? 0.0f : o[n][2]);
            o[n][3] = sl_attn_joined(j[1], x.w, fresh ? 0.0f : o[n][3]);
        }
    }

    __device__ __forceinline__ void end_split(const struct sl_attn_work &w, int t, float (&o)[O][4],
                                              bool more)
    {
        const bool run_ends = !more || sl_attn_begins_run((t + 1) * SL_ATTN_PAIR);
        const bool by_split = w.item.from > 0 && !sl_attn_by_run(w);
        if (!by_split && !run_ends && fresh) /* the state stays what it is */
            return;
        l[0] = sl_attn_row_sum(l[0]);
        l[1] = sl_attn_row_sum(l[1]);
        if (by_split) {
            int slot = sl_attn_split_slot(w, sl_attn_split_of(t * SL_ATTN_PAIR));
#pragma unroll
            for (int n = 0; n < O; n++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    o[n][j] = fresh ? 0.0f : o[n][j];
            sl_attn_write_slot<D>(a, w, row0(), slot, o, m, l);
            return;
        }
        join(o);
        stateless = run_ends;
        if (run_ends) {
            end_run(w, t, o, more);
            return;
        }
#pragma unroll
        for (int n = 0; n < O; n++)
            *state_at(n) = make_float4(o[n][0], o[n][1], o[n][2], o[n][3]);
    }

    /* The run of pair t, o and the state's m and l, is complete. */
    __device__ __forceinline__ void end_run(const struct sl_attn_work &w, int t, float (&o)[O][4],
                                            bool more)
    {
        if (w.item.from > 0) {
            int slot = sl_attn_split_slot(w, sl_attn_split_of(t * SL_ATTN_PAIR));
            sl_attn_write_slot<D>(a, w, row0(), slot, o, state_m, state_l);
        } else {
            sl_attn_join_total<D, cfg::WORKERS>(a, static_cast<int>(threadIdx.x) - 128, first_run,
                                                !more, o, state_m, state_l);
            first_run = false;
            if (!more && w.item.rows_at < 0)
                sl_attn_write_out<D>(a, w, row0(), o, state_m, state_l);
            else if (!more)
                sl_attn_write_slot<D>(a, w, row0(), 0, o, state_m, state_l);
        }
        state_m[0] = state_m[1] = -SL_ATTN_INF;
        state_l[0] = state_l[1] = 0.0f;
    }

    /* ---- a pair of tiles */

    /* What exponents of a tile are taken from, and what is multiplied with what was before. */
    struct taken {
        float base[2], alpha[2];
        bool any;
    };

    /* Which rows take a tile in, and their references. */
    __device__ __forceinline__ struct taken take(int key, const float (*s)[4])
    {
        struct taken x;
        bool takes[2], rise = false;
        float top[2];
        x.any = sl_attn_takes<F>(s, limit, m, true, takes);
        sl_attn_count(a, rows, key, limit, takes, x.any);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            top[i] = takes[i] ? sl_attn_thread_max<F>(s, i) : -SL_ATTN_INF;
            rise = rise || sl_attn_is_far(top[i], m[i], a.scale2);
            x.alpha[i] = 1.0f;
            const float safe = m[i] == -SL_ATTN_INF ? 0.0f : m[i];
            x.base[i] = takes[i] ? __fmul_rn(safe, a.scale2) : SL_ATTN_INF;
        }
        if (__any_sync(0xFFFFFFFFu, rise)) {
            top[0] = sl_attn_quad_max(top[0]);
            top[1] = sl_attn_quad_max(top[1]);
            sl_attn_raise_taken(a.scale2, takes, m, top, x.alpha, x.base);
        }
        return x;
    }

    /* Which tiles some row of the group takes in: bits 0 and 1. */
    __device__ __forceinline__ int vote(bool first, bool second)
    {
        uint8_t *votes = bars.smem + cfg::VOTE_AT + (tiles.slot() * cfg::GROUPS + group) * 4;
        if (lane == 0)
            votes[warp] = static_cast<uint8_t>((first ? 1 : 0) | (second ? 2 : 0));
        together();
        uint32_t all = *reinterpret_cast<const uint32_t *>(votes);
        all |= all >> 16;
        return uniform(static_cast<int>((all | all >> 8) & 3));
    }

    __device__ __forceinline__ void scores(int slot, float (&s)[2 * F][4])
    {
        auto q = sl_wgmma_b(bars.smem + cfg::Q_AT + group * cfg::BLOCK);
        auto b = sl_wgmma_b(slot_at(uniform(slot)));
        sl_wgmma_fence();
#pragma unroll
        for (int d = 0; d < D / 16; d++)
            elem::wgmma_ss(s, sl_wgmma_b_at(q, d / 4 * cfg::PANEL + d % 4 * 32),
                           sl_wgmma_b_at(b, d / 4 * (SL_ATTN_PAIR * 128) + d % 4 * 32), d > 0);
        sl_wgmma_commit();
        sl_wgmma_wait<0>();
        sl_wgmma_keep(s);
    }

    /* A tile's scores to probabilities and onto the sums. */
    template <int H>
    __device__ __forceinline__ void values(int t, int slot, const float (&s)[2 * F][4],
                                           const struct taken &x, float (&o)[O][4], bool careful)
    {
        uint32_t p[F / 2][4];
        float half[F][4];
#pragma unroll
        for (int f = 0; f < F; f++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                half[f][j] = s[H * F + f][j];
        sl_attn_exp<elem>(a.scale2, half, x.base, x.alpha, p, l, true);
        if (fresh) {
#pragma unroll
            for (int n = 0; n < O; n++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    o[n][j] = 0.0f;
        } else if (__any_sync(0xFFFFFFFFu, x.alpha[0] != 1.0f || x.alpha[1] != 1.0f)) {
#pragma unroll
            for (int n = 0; n < O; n++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    o[n][j] = __fmul_rn(o[n][j], x.alpha[j >> 1]);
        }
        fresh = false;
        if (careful) {
            sl_attn_values_careful<frags, D, 4>(a, rows, o, p, slot_at(slot) + H * cfg::BLOCK,
                                                t * SL_ATTN_PAIR + H * SL_ATTN_TILE);
            sl_fence_proxy_async();
            return;
        }
        auto b = sl_wgmma_bt(slot_at(uniform(slot)));
        sl_wgmma_fence();
#pragma unroll
        for (int k = 0; k < F / 2; k++)
            elem::wgmma_rs_bt(o, p[k], sl_wgmma_b_at(b, H * cfg::BLOCK + k * cfg::PART), 1);
        sl_wgmma_commit();
        sl_wgmma_wait<0>();
        sl_wgmma_keep(o);
        sl_wgmma_keep(p);
    }

    __device__ __forceinline__ void pair(const struct sl_attn_work &w, int t, float (&o)[O][4])
    {
        float s[2 * F][4];
        const int key = t * SL_ATTN_PAIR, slot = tiles.values();
        const bool masked = key + SL_ATTN_PAIR > w.all_hi;
        wait(tiles.keys());
        scores(tiles.keys(), s);
        release(tiles.keys());
        if (masked || a.cap > 0.0f)
            sl_attn_cap_and_mask(a, rows, s, key, masked, true);
        const struct taken first = take(key, s), second = take(key + SL_ATTN_TILE, s + F);
        const int wanted = vote(first.any, second.any);
        wait(slot);
        if (wanted != 0) {
            const bool careful = masked && w.all_hi != w.key_hi && unclean(w, t, slot);
            if (wanted & 1)
                values<0>(t, slot, s, first, o, careful);
            if (wanted & 2)
                values<1>(t, slot, s, second, o, careful);
        }
        release(slot);
    }

    __device__ __forceinline__ void item(const struct sl_attn_work &w)
    {
        int t, to;
        float o[O][4];
        sl_attn_tiles_of<SL_ATTN_PAIR>(w, &t, &to);
        const bool idle = group * 64 >= w.item.n_rows;
        rows = sl_attn_rows_of(a, w, row0() + lane / 4);
        if (!idle) {
            load_queries(w);
            load_limits(w);
        }
#pragma unroll
        for (int n = 0; n < O; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[n][j] = 0.0f;
        stateless = first_run = true;
        state_m[0] = state_m[1] = -SL_ATTN_INF;
        state_l[0] = state_l[1] = 0.0f;
        begin_split();
#pragma unroll 1
        for (; t < to; t++, tiles.n++) {
            if (idle) {
                wait(tiles.keys());
                release(tiles.keys());
                wait(tiles.values());
                release(tiles.values());
                continue;
            }
            pair(w, t, o);
            if (!sl_attn_last_of_split<SL_ATTN_PAIR>(t, to))
                continue;
            end_split(w, t, o, t + 1 < to);
            begin_split();
        }
    }

    __device__ __forceinline__ void run()
    {
        struct sl_attn_turn items = {0};
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
static __global__ void __launch_bounds__((sl_attn_skip_cfg<D>::THREADS), 1)
    sl_attn_skip_kernel(const __grid_constant__ struct sl_attn_args a)
{
    typedef sl_attn_skip_cfg<D> cfg;
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
        sl_attn_skip<KV, D> x(a, bars, group - 1);
        x.run();
    }
}

#endif
