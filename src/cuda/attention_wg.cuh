/* SPDX-License-Identifier: MIT
 * attention_wg.cuh - paged attention for tiles of 128 rows by the products of warpgroups: chunks of
 * prompts, heads of 64 and 128 dimensions, pages of BF16 and F16.
 *
 * One warp brings page tiles as they are, by bulk copies, into slots of 64 keys or values; two
 * warpgroups of 64 rows each take them at their own pace, so that one multiplies while the other
 * makes probabilities. Scores: the queries are registers, the keys rows of the shared operand.
 * Values: the probabilities are registers, the values columns of it. The sums are those of
 * mma.sync, to the bit: one accumulator over ascending 16s.
 *
 * A tile of 64 keys is 256 + 256 clk of the tensor cores for 64 rows of D = 128, with about 350
 * instructions a warp and 4,096 exponentials (256 clk) beside them. H200: 97 TFLOP/s of what the
 * mask leaves for 512 tokens (22 us; 128 items for 132 SMs, the longest of eight tiles), 238 for
 * 2,048, 335 for 2,048 behind 8,192; 450 were hoped for. Within a warpgroup nothing overlaps yet:
 * scores, exponentials and values wait for each other.
 *
 * nvcc 13.0, sm_90a: 168 registers at launch, no spills.
 */
#ifndef SL_CUDA_ATTENTION_WG_CUH
#define SL_CUDA_ATTENTION_WG_CUH

#include "cuda/attention_tile.cuh"

/* ---------------------------------------------------------------- sizes */

template <int D> struct sl_attn_wg_cfg {
    static constexpr int GROUPS = 2; /* that multiply; group 0 brings */
    static constexpr int ROWS = 64 * GROUPS;
    static constexpr int WORKERS = 128 * GROUPS;
    static constexpr int THREADS = 128 + WORKERS;
    static constexpr int PANELS = D / 64;            /* of 64 dimensions */
    static constexpr int PANEL = SL_ATTN_TILE * 128; /* bytes of one in a slot */
    static constexpr int PART = SL_KV_TILE * 128;    /* and in a page tile */
    static constexpr int SLOT = PANELS * PANEL;
    static constexpr int SLOTS = 6; /* keys and values in turn */
    static constexpr int Q_ROW = D * 2 + 16;
    static constexpr int STATE_AT = SLOTS * SLOT;                /* float4 [D / 8][WORKERS] */
    static constexpr int Q_AT = STATE_AT + D / 8 * WORKERS * 16; /* 16 bits [ROWS][Q_ROW / 2] */
    static constexpr int FULL_AT = Q_AT + ROWS * Q_ROW;          /* mbarriers */
    static constexpr int EMPTY_AT = FULL_AT + 8 * SLOTS;         /* mbarriers */
    static constexpr int WORK_FULL_AT = EMPTY_AT + 8 * SLOTS;    /* [2] */
    static constexpr int WORK_EMPTY_AT = WORK_FULL_AT + 16;      /* [2] */
    static constexpr int FLAG_AT = WORK_EMPTY_AT + 16;
    static constexpr int UNCLEAN_AT = FLAG_AT + 16; /* int [GROUPS][4] */
    static constexpr int WORK_AT = UNCLEAN_AT + 16 * GROUPS;
    static constexpr int BYTES = WORK_AT + 2 * static_cast<int>(sizeof(struct sl_attn_work));
};

/* A place in a ring, and the parity of its phase. */
template <int N> struct sl_attn_turn {
    int slot;
    uint32_t parity;
    __device__ __forceinline__ void next()
    {
        if (++slot == N) {
            slot = 0;
            parity ^= 1;
        }
    }
};

template <int D> struct sl_attn_wg_bars {
    typedef sl_attn_wg_cfg<D> cfg;
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
            sl_mbar_init(work_empty(i), cfg::WORKERS / 32 * SL_WARP_ARRIVALS);
        }
        sl_mbar_fence_init();
    }
};

/* ---------------------------------------------------------------- the warp that brings */

template <int D> struct sl_attn_bring {
    typedef sl_attn_wg_cfg<D> cfg;
    const struct sl_attn_args &a;
    sl_attn_wg_bars<D> bars;
    sl_attn_turn<cfg::SLOTS> slot;
    int lane;
    /* Lane i: where the i-th 16 positions from `first` on lie in a plane. */
    unsigned long long at;
    int first;

    __device__ __forceinline__ void find(const struct sl_attn_work &w, int from)
    {
        int unit = from + lane, pos = unit * SL_KV_TILE, page = sl_attn_div(unit, a.by_page);
        bool wanted = pos < w.key_hi && pos + SL_KV_TILE > w.key_lo;
        int id = wanted ? a.tables[w.item.table + page] : 0;
        int sub = unit + (w.item.kv - page) * a.by_page.by;
        first = from;
        at = static_cast<unsigned>(id) * static_cast<unsigned long long>(a.page_bytes) +
             static_cast<unsigned>(sub) *
                 static_cast<unsigned long long>(SL_KV_TILE * cfg::PANELS * 128);
    }

    /* Rows of a slot that nobody sees become zeros: what lies in the page may be no number. */
    __device__ __forceinline__ void clear(const struct sl_attn_work &w, uint8_t *to, int key)
    {
#pragma unroll 1
        for (int i = lane; i < cfg::SLOT / 16; i += 32) {
            int pos = key + i / 8 % SL_ATTN_TILE;
            if (pos < w.key_lo || pos >= w.key_hi)
                *reinterpret_cast<uint4 *>(to + i * 16) = make_uint4(0, 0, 0, 0);
        }
        sl_fence_proxy_async();
    }

    /* The keys or the values of a tile, of which the rows that somebody sees are brought. */
    __device__ __forceinline__ void load(const struct sl_attn_work &w, int tile,
                                         const uint8_t *plane)
    {
        int key = tile * SL_ATTN_TILE;
        int i = lane - (key / SL_KV_TILE - first), pos = key + i * SL_KV_TILE;
        int lo = max(w.key_lo - pos, 0), hi = min(w.key_hi - pos, SL_KV_TILE);
        bool mine = i >= 0 && i < SL_ATTN_TILE / SL_KV_TILE && lo < hi;
        int n = min(w.key_hi, key + SL_ATTN_TILE) - max(w.key_lo, key);
        uint8_t *to = bars.smem + slot.slot * cfg::SLOT;
        sl_mbar_wait(bars.empty(slot.slot), slot.parity ^ 1);
        if (n < SL_ATTN_TILE)
            clear(w, to, key);
        sl_mbar_expect_warp(bars.full(slot.slot), static_cast<uint32_t>(n * cfg::PANELS * 128));
        if (mine) {
#pragma unroll
            for (int p = 0; p < cfg::PANELS; p++)
                sl_bulk_load(to + p * cfg::PANEL + i * cfg::PART + lo * 128,
                             plane + at + p * cfg::PART + lo * 128,
                             static_cast<uint32_t>((hi - lo) * 128), bars.full(slot.slot));
        }
        slot.next();
    }

    __device__ __forceinline__ void run(int n)
    {
        sl_attn_turn<2> turn = {0, 0};
        int item = static_cast<int>(blockIdx.x);
        for (bool any = true; any; turn.next()) {
            struct sl_attn_work &w = *bars.work(turn.slot);
            sl_mbar_wait(bars.work_empty(turn.slot), turn.parity ^ 1);
            sl_attn_fetch(a, item, n, &w, lane < 16);
            sl_mbar_arrive_warp(bars.work_full(turn.slot));
            any = w.item.valid != 0;
            if (!any)
                break;
            uint32_t taken = 0;
            if (lane == 0)
                taken = atomicAdd(&a.cls->taken, 1u);
            int tile, to;
            sl_attn_tiles_of(w, &tile, &to);
#pragma unroll 1
            for (bool begun = false; tile < to; tile++) {
                if (!begun || tile % 8 == 0)
                    find(w, tile * (SL_ATTN_TILE / SL_KV_TILE));
                begun = true;
                load(w, tile, a.keys);
                load(w, tile, a.values);
            }
            item = static_cast<int>(gridDim.x + __shfl_sync(0xFFFFFFFFu, taken, 0));
        }
    }
};

/* ---------------------------------------------------------------- the warpgroups that multiply */

/* Values as they lie in a slot, for sl_attn_values_careful. */
template <class KV, int D> struct sl_attn_panel_frags {
    typedef typename KV::elem elem;
    static constexpr int TILE = sl_attn_wg_cfg<D>::PART;
    static __device__ __forceinline__ void frags(uint32_t b[4], const uint8_t *tile, int i)
    {
        KV::template value_frags<64>(b, tile + i / 4 * sl_attn_wg_cfg<D>::PANEL, i % 4 * 16);
    }
};

template <class KV, int D> struct sl_attn_wg {
    typedef sl_attn_wg_cfg<D> cfg;
    typedef typename KV::elem elem;

    const struct sl_attn_args &a;
    sl_attn_wg_bars<D> bars;
    sl_attn_turn<cfg::SLOTS> slot;
    struct sl_attn_rows rows;
    int group, warp, lane; /* warp: of the group */
    int key_lo, key_hi;    /* keys some row of the group sees */
    float m[2], l[2];      /* of the split */
    float state_m[2], state_l[2];

    __device__ __forceinline__ sl_attn_wg(const struct sl_attn_args &args,
                                          const sl_attn_wg_bars<D> &barriers, int group_idx)
        : a(args), bars(barriers), slot({0, 0}), group(group_idx)
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 32), 0) % 4;
    }

    __device__ __forceinline__ int row0() const
    {
        return group * 64 + warp * 16;
    }

    __device__ __forceinline__ void begin_item(const struct sl_attn_work &w)
    {
        rows = sl_attn_rows_of(a, w, row0() + lane / 4);
        key_lo = sl_attn_seen_from(a, w.item.pos + sl_attn_token(a, w, group * 64));
        key_hi =
            group * 64 < w.item.n_rows ? w.item.pos + sl_attn_token(a, w, group * 64 + 63) + 1 : 0;
        /* Queries wait in shared memory, where each warp has its own rows: registers are short. */
        uint8_t *to = bars.smem + cfg::Q_AT + (row0() + lane / 4) * cfg::Q_ROW + lane % 4 * 4;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float *query = sl_attn_query_row(a, w, row0() + lane / 4 + 8 * i);
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                *reinterpret_cast<uint32_t *>(to + 8 * i * cfg::Q_ROW + n * 16) =
                    sl_attn_query2<elem>(query, n * 8 + lane % 4 * 2, a.head_dim);
        }
        __syncwarp();
        state_m[0] = state_m[1] = -SL_ATTN_INF;
        state_l[0] = state_l[1] = 0.0f;
    }

    static __device__ __forceinline__ void zero(float (&x)[D / 8][4])
    {
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[n][j] = 0.0f;
    }

    __device__ __forceinline__ void begin_split()
    {
        m[0] = m[1] = -SL_ATTN_INF;
        l[0] = l[1] = 0.0f;
    }

    /* Of a tile none of whose keys a row of the group sees nothing is computed. */
    __device__ __forceinline__ bool sees(int tile) const
    {
        return tile * SL_ATTN_TILE < key_hi && (tile + 1) * SL_ATTN_TILE > key_lo;
    }

    __device__ __forceinline__ const uint8_t *wait()
    {
        sl_mbar_wait(bars.full(slot.slot), slot.parity);
        return bars.smem + slot.slot * cfg::SLOT;
    }

    __device__ __forceinline__ void release()
    {
        sl_mbar_give_warp(bars.empty(slot.slot));
        slot.next();
    }

    __device__ __forceinline__ void load_query(uint32_t (&q)[D / 16][4]) const
    {
        const uint8_t *from =
            bars.smem + cfg::Q_AT + (row0() + (lane & 15)) * cfg::Q_ROW + (lane >> 4) * 16;
#pragma unroll
        for (int d = 0; d < D / 16; d++)
            sl_ldmatrix_x4(q[d], from + d * 32);
    }

    __device__ __forceinline__ void scores(const uint8_t *keys, const uint32_t (&q)[D / 16][4],
                                           float (&s)[8][4])
    {
#pragma unroll
        for (int f = 0; f < 8; f++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[f][i] = 0.0f;
        auto b = sl_wgmma_b(keys);
        sl_wgmma_fence();
#pragma unroll
        for (int d = 0; d < D / 16; d++)
            elem::wgmma_rs(s, q[d], sl_wgmma_b_at(b, d / 4 * cfg::PANEL + d % 4 * 32));
        sl_wgmma_commit();
        sl_wgmma_wait<0>();
    }

    __device__ __forceinline__ void values(float (&o)[D / 8][4], const uint8_t *values,
                                           const uint32_t (&p)[4][4])
    {
        auto b = sl_wgmma_bt(values);
        sl_wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            elem::wgmma_rs_bt(o, p[k], sl_wgmma_b_at(b, k * cfg::PART));
        sl_wgmma_commit();
        sl_wgmma_wait<0>();
    }

    /* Do the values hold something that p = 0 does not silence? The group looks together. */
    __device__ __forceinline__ bool unclean(const uint8_t *values)
    {
        int *found = reinterpret_cast<int *>(bars.smem + cfg::UNCLEAN_AT) + group * 4;
        bool any = false;
#pragma unroll 4
        for (int i = warp * 32 + lane; i < cfg::SLOT / 16; i += 128) {
            const uint4 x = reinterpret_cast<const uint4 *>(values)[i];
            any = any || elem::not_finite2(x.x) || elem::not_finite2(x.y) ||
                  elem::not_finite2(x.z) || elem::not_finite2(x.w);
        }
        any = __any_sync(0xFFFFFFFFu, any) != 0;
        if (lane == 0)
            found[warp] = any;
        sl_bar_sync(2 + group, 128);
        any = (found[0] | found[1] | found[2] | found[3]) != 0;
        sl_bar_sync(2 + group, 128); /* before the next one's */
        return any;
    }

    /* A tile of a split. NEAR: the split's only one. */
    template <bool NEAR>
    __device__ __forceinline__ void tile(const struct sl_attn_work &w, int t, float (&o)[D / 8][4])
    {
        float s[8][4], top[2], alpha[2], base[2];
        uint32_t p[4][4];
        const bool some = sees(t), masked = sl_attn_masked(w, t);
        uint32_t q[D / 16][4];
        load_query(q);
        const uint8_t *at = wait();
        if (some)
            scores(at, q, s);
        release();
        if (some) {
            sl_attn_cap_and_mask(a, rows, s, t * SL_ATTN_TILE, masked, true);
            sl_attn_row_max(s, top, true);
            sl_attn_raise(a.scale2, m, top, alpha, base);
            sl_attn_exp<elem>(a.scale2, s, base, alpha, p, l, true);
#pragma unroll
            for (int n = 0; !NEAR && n < D / 8; n++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    o[n][j] = __fmul_rn(o[n][j], alpha[j >> 1]);
        }
        if (NEAR)
            zero(o);
        at = wait();
        if (some) {
            if (masked && w.all_hi != w.key_hi && unclean(at))
                sl_attn_values_careful<sl_attn_panel_frags<KV, D>, D, 4>(a, rows, o, p, at,
                                                                         t * SL_ATTN_TILE);
            else
                values(o, at, p);
        }
        release();
    }

    /* The factors of a row's state and of its split, which is complete. */
    __device__ __forceinline__ struct sl_attn_join join_of(int i)
    {
        struct sl_attn_join j = sl_attn_join_of(state_m[i], m[i], a.scale2);
        state_m[i] = j.top;
        state_l[i] = sl_attn_joined(j, state_l[i], l[i]);
        return j;
    }

    __device__ __forceinline__ float4 *state_at(int n) const
    {
        return reinterpret_cast<float4 *>(bars.smem + cfg::STATE_AT) + n * cfg::WORKERS +
               (static_cast<int>(threadIdx.x) - 128);
    }

    /* Tiles that are splits: nothing but the state outlives them, which therefore is in registers.
     */
    __device__ __forceinline__ int near(const struct sl_attn_work &w, int t, int to,
                                        float (&state)[D / 8][4])
    {
#pragma unroll 1
        for (; t < to; t++) {
            float o[D / 8][4];
            begin_split();
            tile<true>(w, t, o);
            l[0] = sl_attn_row_sum(l[0]);
            l[1] = sl_attn_row_sum(l[1]);
            if (w.item.from > 0) {
                sl_attn_write_slot<D>(a, w, row0(), sl_attn_split_slot(w, t), o, m, l);
                continue;
            }
            const struct sl_attn_join j[2] = {join_of(0), join_of(1)};
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    state[n][k] = sl_attn_joined(j[k >> 1], state[n][k], o[n][k]);
        }
        return t;
    }

    /* Splits of several tiles: the state waits in shared memory. */
    __device__ __forceinline__ void far(const struct sl_attn_work &w, int t, int to)
    {
        float o[D / 8][4];
        zero(o);
        begin_split();
#pragma unroll 1
        for (; t < to; t++) {
            tile<false>(w, t, o);
            if (!sl_attn_last_of_split(t, to))
                continue;
            l[0] = sl_attn_row_sum(l[0]);
            l[1] = sl_attn_row_sum(l[1]);
            if (w.item.from > 0) {
                int split = sl_attn_split_of(t * SL_ATTN_TILE);
                sl_attn_write_slot<D>(a, w, row0(), sl_attn_split_slot(w, split), o, m, l);
            } else {
                const struct sl_attn_join j[2] = {join_of(0), join_of(1)};
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    float4 x = *state_at(n);
                    x.x = sl_attn_joined(j[0], x.x, o[n][0]);
                    x.y = sl_attn_joined(j[0], x.y, o[n][1]);
                    x.z = sl_attn_joined(j[1], x.z, o[n][2]);
                    x.w = sl_attn_joined(j[1], x.w, o[n][3]);
                    *state_at(n) = x;
                }
            }
            zero(o);
            begin_split();
        }
    }

    __device__ __forceinline__ void item(const struct sl_attn_work &w)
    {
        int t, to;
        float state[D / 8][4];
        begin_item(w);
        zero(state);
        sl_attn_tiles_of(w, &t, &to);
        t = near(w, t, min(to, SL_ATTN_NEAR / SL_ATTN_TILE), state);
        if (t < to) {
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                *state_at(n) = make_float4(state[n][0], state[n][1], state[n][2], state[n][3]);
            far(w, t, to);
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                const float4 x = *state_at(n);
                state[n][0] = x.x;
                state[n][1] = x.y;
                state[n][2] = x.z;
                state[n][3] = x.w;
            }
        }
        if (w.item.from == 0) {
            if (w.item.rows_at < 0)
                sl_attn_write_out<D>(a, w, row0(), state, state_m, state_l);
            else
                sl_attn_write_slot<D>(a, w, row0(), 0, state, state_m, state_l);
        }
        if (w.item.rows_at < 0)
            return;
        sl_fence_gpu();
        sl_attn_arrive<D, cfg::WORKERS>(a, w, static_cast<int>(threadIdx.x) - 128,
                                        reinterpret_cast<int *>(bars.smem + cfg::FLAG_AT));
    }

    __device__ __forceinline__ void run()
    {
        sl_attn_turn<2> turn = {0, 0};
        for (;; turn.next()) {
            const struct sl_attn_work &w = *bars.work(turn.slot);
            sl_mbar_wait(bars.work_full(turn.slot), turn.parity);
            if (!w.item.valid)
                return;
            item(w);
            sl_mbar_arrive_warp(bars.work_empty(turn.slot));
        }
    }
};

/* ---------------------------------------------------------------- the kernel */

template <class KV, int D>
static __global__ void __launch_bounds__((sl_attn_wg_cfg<D>::THREADS), 1)
    sl_attn_wg_kernel(const __grid_constant__ struct sl_attn_args a)
{
    SL_SMEM(uint8_t, smem);
    const sl_attn_wg_bars<D> bars = {smem};
    const int lane = static_cast<int>(threadIdx.x) % 32;
    sl_grid_launch_dependents();
    if (threadIdx.x == 0)
        bars.init();
    __syncthreads();
    sl_grid_wait();
    /* The same in all lanes, as the compiler shall see: products do not run in divergent code. */
    const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 128), 0);
    if (group == 0) {
        sl_regs_give<40>();
        if (threadIdx.x < 32) {
            sl_attn_bring<D> x = {a, bars, {0, 0}, lane, 0, 0};
            x.run(a.cls->n_items * a.n_kv_heads);
            if (lane == 0 && atomicAdd(&a.cls->done, 1u) + 1 == gridDim.x) {
                a.cls->taken = 0; /* for the next layer */
                a.cls->done = 0;
            }
        }
    } else {
        sl_regs_take<232>();
        sl_attn_wg<KV, D> x(a, bars, group - 1);
        x.run();
    }
}

#endif
