/* SPDX-License-Identifier: MIT
 * latent.cuh - paged attention whose values are the first part of its keys (MLA in its absorbed
 * form): rows of up to 576 values for all heads, of which up to 512 are values.
 *
 * A tile is 64 rows of (token, head). All of a token's heads multiply the same keys, so even decode
 * is bound by the tensor cores: 64 keys of 576 are 73.7 KB and 2,176 clk. The sums of 64 rows, 512
 * floats each, fill the registers of two warpgroups: each has half the dimensions of all rows. Two
 * warps load tiles of 64 positions as they lie in pages, into two slots; a tile is keys and values.
 * Each has half a tile: the dimensions that are the first group's values, and the others. A half is
 * free when its group has added it, and the next but one is on its way.
 *
 * The groups take turns with scores: tile t's are made by group (t - first) % 2, which hands its
 * probabilities, references and sums to the other group, warp to warp and lane to lane, through
 * shared memory. While one group finds probabilities, the other one's products run. The first
 * group adds the values of the tile before and gives its half back, then begins scores; the second
 * one begins scores before. (The first group, too, once gave its half back behind the scores, so
 * that the two slots were loaded one after the other: 64 sequences of 8,192 took 513 us on an
 * H200.)
 *
 * Order of the sums: attention.cuh, with splits and runs of 2^SL_LATENT_SHIFT times as many keys. A
 * block meets the state of a run once a split, and it lies in L2 (128 KB read and written), so
 * splits are long; a single sequence of 8,192 keys still has twelve.
 */
#ifndef SL_CUDA_LATENT_CUH
#define SL_CUDA_LATENT_CUH

#include "cuda/attention/attention_group.cuh"

/* ---------------------------------------------------------------- sizes */

/* KD: dimensions of a row; VD: of values. Both padded. */
template <int KD_, int VD_> struct sl_latent_cfg {
    static constexpr bool PAIR = false; /* a cluster of two blocks loads for both */
    static constexpr int KD = KD_, VD = VD_;
    static constexpr int PART = SL_KV_TILE * 128; /* 64 dimensions of 16 positions */
    static constexpr int PANEL = 64 * 128;        /* and of 64 rows */
    static constexpr int PANELS = KD / 64;
    static constexpr int SLOT = PANELS * PANEL;
    static constexpr int MINE = VD / 2; /* dimensions of a group */
    static constexpr int O = MINE / 8;  /* fragments of its sums, which are those of so */
    static constexpr int PRODUCTS = MINE == 256 ? 2 : 1; /* many products */
    static constexpr int EACH = O / PRODUCTS;
    static constexpr int FIRST = 128; /* worker */
    static constexpr int WORKERS = SL_LATENT_WORKERS;
    static constexpr int THREADS = FIRST + WORKERS;
    static constexpr int Q_AT = 2 * SLOT;
    static constexpr int SWAP_AT = Q_AT + SLOT; /* uint4 [5][128]: what a group hands over */
    static constexpr int FULL_AT = SWAP_AT + 5 * 128 * 16; /* mbarriers [2][2]: slot and half */
    static constexpr int EMPTY_AT = FULL_AT + 32;
    static constexpr int WORK_FULL_AT = EMPTY_AT + 32;
    static constexpr int WORK_EMPTY_AT = WORK_FULL_AT + 16;
    static constexpr int SENT_AT = WORK_EMPTY_AT + 16; /* [2][4]: by a warp of a group */
    static constexpr int WORK_AT = SENT_AT + 64;
    static constexpr int BYTES = WORK_AT + 2 * static_cast<int>(sizeof(struct sl_attn_work));
    static_assert(BYTES <= 227 * 1024, "shared memory");
    static_assert(VD <= KD && MINE % 64 == 0, "whole panels");
};

template <class cfg> struct sl_latent_bars {
    uint8_t *smem;
    __device__ __forceinline__ uint64_t *at(int place, int i) const
    {
        return reinterpret_cast<uint64_t *>(smem + place) + i;
    }
    __device__ __forceinline__ uint64_t *full(int slot, int half) const
    {
        return at(cfg::FULL_AT, 2 * slot + half);
    }
    __device__ __forceinline__ uint64_t *empty(int slot, int half) const
    {
        return at(cfg::EMPTY_AT, 2 * slot + half);
    }
    __device__ __forceinline__ uint64_t *work_full(int i) const
    {
        return at(cfg::WORK_FULL_AT, i);
    }
    __device__ __forceinline__ uint64_t *work_empty(int i) const
    {
        return at(cfg::WORK_EMPTY_AT, i);
    }
    __device__ __forceinline__ uint64_t *sent(int group, int warp) const
    {
        return at(cfg::SENT_AT, 4 * group + warp);
    }
    __device__ __forceinline__ struct sl_attn_work *work(int i) const
    {
        return reinterpret_cast<struct sl_attn_work *>(smem + cfg::WORK_AT) + i;
    }
    /* By one thread. loaders: warps that load half a tile. */
    __device__ __forceinline__ void init(int loaders) const
    {
        for (int i = 0; i < 2; i++) {
            for (int half = 0; half < 2; half++) {
                sl_mbar_init(full(i, half), static_cast<uint32_t>(loaders * SL_WARP_ARRIVALS));
                sl_mbar_init(empty(i, half), (cfg::PAIR ? 8 : 4) * SL_WARP_ARRIVALS);
            }
            sl_mbar_init(work_full(i), SL_WARP_ARRIVALS);
            sl_mbar_init(
                work_empty(i),
                static_cast<uint32_t>((cfg::WORKERS / 32 + 2 * loaders - 1) * SL_WARP_ARRIVALS));
            for (int warp = 0; warp < 4; warp++)
                sl_mbar_init(sent(i, warp), SL_WARP_ARRIVALS);
        }
        sl_mbar_fence_init();
    }
};

/* ---------------------------------------------------------------- splits */

static __device__ __forceinline__ int sl_latent_split_of(const struct sl_attn_args &a, int tile)
{
    return sl_attn_split_of(tile * SL_ATTN_TILE >> a.shift);
}

/* The tiles of an item, and the key after the last one that some row sees of them. */
static __device__ __forceinline__ void sl_latent_tiles_of(const struct sl_attn_args &a,
                                                          const struct sl_attn_work &w, int *from,
                                                          int *to, int *end)
{
    *from = (sl_attn_split_at(w.item.from) << a.shift) / SL_ATTN_TILE;
    *end = min(sl_attn_split_at(w.item.to) << a.shift, w.key_hi);
    *to = (*end + SL_ATTN_TILE - 1) / SL_ATTN_TILE;
}

/* ---------------------------------------------------------------- the warps that load */

/* H: which half of tiles. */
template <class KV, class cfg, int H> struct sl_latent_bring {
    static constexpr int FROM = H == 0 ? 0 : cfg::MINE / 64; /* panels */
    static constexpr int TO = H == 0 ? cfg::MINE / 64 : cfg::PANELS;
    const struct sl_attn_args &a;
    sl_latent_bars<cfg> bars;
    struct sl_attn_turn tiles;
    int lane, end;
    bool exact; /* rows are as wide as ours */
    /* Lane i: where the i-th 16 positions from `first` on lie in the plane. */
    unsigned long long at;
    int first;
    int next; /* and the page of the i-th behind these */

    __device__ __forceinline__ sl_latent_bring(const struct sl_attn_args &args,
                                               const sl_latent_bars<cfg> &barriers)
        : a(args), bars(barriers), tiles({0}), end(0), at(0), first(0), next(0)
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        exact = a.head_dim == cfg::KD;
    }

    __device__ __forceinline__ int row_bytes() const
    {
        return KV::row_bytes((a.head_dim + 15) / 16 * 16);
    }

    /* The page of a unit. */
    __device__ __forceinline__ int page_of(const struct sl_attn_work &w, int unit) const
    {
        return unit * SL_KV_TILE < end ? a.tables[w.item.table + sl_attn_div(unit, a.by_page)] : 0;
    }

    /* The 32 units from `from` on, whose pages are `id`; those behind them are asked for. */
    __device__ __forceinline__ void find(const struct sl_attn_work &w, int from, int id)
    {
        const int unit = from + lane, page = sl_attn_div(unit, a.by_page);
        first = from;
        at = static_cast<unsigned>(id) * static_cast<unsigned long long>(a.page_bytes) +
             static_cast<unsigned>((unit - page * a.by_page.by) * SL_KV_TILE * row_bytes());
        next = page_of(w, unit + 32);
    }

    /* Where the unit lies, one of those that a lane knows. */
    __device__ __forceinline__ const uint8_t *place_of(int unit) const
    {
        const int from = (unit - first) & 31;
        const unsigned lo = __shfl_sync(0xFFFFFFFFu, static_cast<unsigned>(at), from);
        const unsigned hi = __shfl_sync(0xFFFFFFFFu, static_cast<unsigned>(at >> 32), from);
        return a.keys + (static_cast<unsigned long long>(hi) << 32 | lo);
    }

    /* Rows from `from` on, which nobody sees, become zeros: what lies in the page may be no number.
     */
    __device__ __forceinline__ void clear(uint8_t *slot, int from)
    {
#pragma unroll 1
        for (int i = lane; i < (64 - from) * 8; i += 32)
#pragma unroll
            for (int p = FROM; p < TO; p++)
                *reinterpret_cast<uint4 *>(slot + p * cfg::PANEL + from * 128 + i * 16) =
                    make_uint4(0, 0, 0, 0);
    }

    /* n rows of a tile from `key` on, as they lie there: a copy each lane, of 16 rows' panel. */
    __device__ __forceinline__ void load_exact(uint8_t *slot, uint64_t *full, int key, int n)
    {
        static_assert(4 * (TO - FROM) <= 32, "a copy each lane");
        const int unit = lane & 3, panel = FROM + lane / 4;
        const uint8_t *page = place_of(key / SL_KV_TILE + unit);
        if (n < 64) {
            clear(slot, n);
            sl_fence_proxy_async();
        }
        sl_mbar_expect_warp(full, static_cast<uint32_t>(n * (TO - FROM) * 128));
        const int rows = min(n - unit * SL_KV_TILE, SL_KV_TILE);
        if (panel < TO && rows > 0)
            sl_bulk_load(slot + panel * cfg::PANEL + unit * cfg::PART, page + panel * cfg::PART,
                         static_cast<uint32_t>(rows) * 128, full);
    }

    /* The same of rows that are narrower, with zeros behind them: piece by piece. */
    __device__ __forceinline__ void load_padded(uint8_t *slot, uint64_t *full, int key, int n)
    {
        constexpr int PIECES = (TO - FROM) * 8;
#pragma unroll 1
        for (int unit = 0; unit < 4; unit++) {
            const uint8_t *page = place_of(key / SL_KV_TILE + unit);
#pragma unroll 4
            for (int i = lane; i < SL_KV_TILE * PIECES; i += 32) {
                const int row = i / PIECES, piece = FROM * 8 + i % PIECES;
                uint4 x = make_uint4(0, 0, 0, 0);
                if (unit * SL_KV_TILE + row < n && piece * 16 < row_bytes())
                    x = __ldcg(reinterpret_cast<const uint4 *>(
                        page + sl_kv_piece(row_bytes(), row, piece)));
                *reinterpret_cast<uint4 *>(slot + piece / 8 * cfg::PANEL + unit * cfg::PART +
                                           row * 128 + ((piece ^ row) & 7) * 16) = x;
            }
        }
        sl_mbar_give_warp(full);
    }

    __device__ __forceinline__ void item(const struct sl_attn_work &w)
    {
        int from, to;
        sl_latent_tiles_of(a, w, &from, &to, &end);
#pragma unroll 1
        for (int t = from; t < to; t++, tiles.n++) {
            const int key = t * SL_ATTN_TILE, slot = tiles.slot();
            if (t == from)
                find(w, key / SL_KV_TILE, page_of(w, key / SL_KV_TILE + lane));
            else if (key / SL_KV_TILE - first == 32)
                find(w, first + 32, next);
            sl_mbar_wait(bars.empty(slot, H), tiles.parity() ^ 1);
            const int n = min(end - key, SL_ATTN_TILE);
            if (exact)
                load_exact(bars.smem + slot * cfg::SLOT, bars.full(slot, H), key, n);
            else
                load_padded(bars.smem + slot * cfg::SLOT, bars.full(slot, H), key, n);
        }
    }

    /* The first warp takes items for all. */
    __device__ __forceinline__ void run(int n)
    {
        struct sl_attn_turn items = {0};
        int next = static_cast<int>(blockIdx.x);
        for (;; items.n++) {
            struct sl_attn_work &w = *bars.work(items.slot());
            uint32_t taken = 0;
            if (H == 0) {
                sl_mbar_wait(bars.work_empty(items.slot()), items.parity() ^ 1);
                sl_attn_fetch(a, next, n, &w, lane < 16);
                sl_mbar_arrive_warp(bars.work_full(items.slot()));
            } else {
                sl_mbar_wait(bars.work_full(items.slot()), items.parity());
            }
            if (!w.item.valid)
                return;
            if (H == 0 && lane == 0)
                taken = atomicAdd(&a.cls->taken, 1u);
            item(w);
            if (H == 1)
                sl_mbar_arrive_warp(bars.work_empty(items.slot()));
            else
                next = static_cast<int>(gridDim.x + __shfl_sync(0xFFFFFFFFu, taken, 0));
        }
    }
};

/* ---------------------------------------------------------------- the warpgroups that multiply */

/* G: which of the two. */
template <class KV, class cfg, int G> struct sl_latent_group {
    typedef typename KV::elem elem;
    typedef sl_attn_panel_frags<elem, cfg> frags;
    typedef sl_attn_group<KV, sl_attn_group_cfg<KV, 128, SL_ATTN_TILE, 2>> shared;
    typedef float sums[cfg::PRODUCTS][cfg::EACH][4];
    typedef uint32_t operands[4][4]; /* probabilities of 64 keys */
    typedef float fragments[8][4];   /* scores of 64 keys */
    static constexpr int O = cfg::O;
    static constexpr int AT_ONCE = 8; /* of the state, on their way from L2 */
    static constexpr int FROM = G * (cfg::MINE / 64) * cfg::PANEL; /* values in a slot */

    const struct sl_attn_args &a;
    sl_latent_bars<cfg> bars;
    struct sl_attn_turn tiles, received;
    int warp, lane, to;
    bool fresh;       /* nothing is in the sums yet */
    float m[2], l[2]; /* of the split */
    bool stateless;   /* nothing is in the state yet, of a run */
    bool first_run;   /* of the item */
    float state_m[2], state_l[2];

    __device__ __forceinline__ sl_latent_group(const struct sl_attn_args &args,
                                               const sl_latent_bars<cfg> &barriers)
        : a(args), bars(barriers), tiles({0}), received({0})
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 32), 0) % 4;
    }

    /* The sums as one row of fragments. */
    static __device__ __forceinline__ float (&all(sums &o))[O][4]
    {
        return reinterpret_cast<float(&)[O][4]>(o);
    }

    /* The block's threads that multiply. */
    static __device__ __forceinline__ void together()
    {
        sl_bar_sync(1, cfg::WORKERS);
    }

    __device__ __forceinline__ bool is_masked(const struct sl_attn_work &w, int t) const
    {
        return (t + 1) * SL_ATTN_TILE > w.all_hi;
    }

    __device__ __forceinline__ bool is_mixed(const struct sl_attn_work &w, int t) const
    {
        return is_masked(w, t) && sl_attn_differ(w);
    }

    __device__ __forceinline__ bool ends_split(int t) const
    {
        const int end = (t + 1) * SL_ATTN_TILE >> a.shift;
        return t + 1 == to || (end & (sl_attn_split_size(end - 1) - 1)) == 0;
    }

    /* ---- slots and products */

    /* Tile `ahead` tiles after the one that is next: its slot, the same for the compiler in all
     * lanes. */
    __device__ __forceinline__ uint8_t *slot_at(unsigned ahead) const
    {
        return bars.smem +
               __shfl_sync(0xFFFFFFFFu, static_cast<int>((tiles.n + ahead) & 1), 0) * cfg::SLOT;
    }

    /* For half of a tile; the one that has the group's values. */
    __device__ __forceinline__ void wait(unsigned ahead, int half) const
    {
        const struct sl_attn_turn turn = {tiles.n + ahead};
        sl_mbar_wait(bars.full(turn.slot(), half), turn.parity());
        if (cfg::PAIR)
            sl_fence_proxy_async(); /* what the other block has stored, by ordinary stores */
    }
    __device__ __forceinline__ void wait_half() const
    {
        wait(0, G);
    }

    /* Gives that half of the tile back. What the other group's scores read of it has been read when
     * all warps have their probabilities. */
    __device__ __forceinline__ void release()
    {
        sl_mbar_arrive_warp(bars.empty(tiles.slot(), G));
        if (cfg::PAIR && (SL_WARP_ARRIVALS > 1 || lane == 0))
            sl_mbar_arrive_at(bars.empty(tiles.slot(), G), sl_cluster_rank() ^ 1);
        tiles.n++;
    }

    /* Begun with the half that comes first. */
    __device__ __forceinline__ void scores(unsigned ahead, fragments &s)
    {
        auto q = sl_wgmma_b(bars.smem + cfg::Q_AT);
        auto b = sl_wgmma_b(slot_at(ahead));
        wait(ahead, 0);
        sl_wgmma_fence();
#pragma unroll
        for (int d = 0; d < cfg::KD / 16; d++) {
            if (d == cfg::MINE / 16) {
                wait(ahead, 1);
                sl_wgmma_fence();
            }
            elem::wgmma_ss(s, sl_wgmma_b_at(q, d / 4 * cfg::PANEL + d % 4 * 32),
                           sl_wgmma_b_at(b, d / 4 * cfg::PANEL + d % 4 * 32), d > 0);
        }
        sl_wgmma_commit();
    }

    __device__ __forceinline__ void values(sums &o, const operands &p)
    {
        auto b = sl_wgmma_bt(slot_at(0) + FROM);
        sl_wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int h = 0; h < cfg::PRODUCTS; h++)
                elem::wgmma_rs_bt(o[h], p[k], sl_wgmma_b_at(b, h * 2 * cfg::PANEL + k * cfg::PART),
                                  k > 0 || !fresh);
        sl_wgmma_commit();
    }

    static __device__ __forceinline__ void keep(sums &o, operands &p)
    {
#pragma unroll
        for (int h = 0; h < cfg::PRODUCTS; h++)
            sl_wgmma_keep(o[h]);
        sl_wgmma_keep(p);
    }

    /* ---- values that are no numbers (attention_single.cuh) */

    typedef volatile float saved[cfg::MINE / 2];

    __device__ __forceinline__ void save(sums &o, saved &to_memory) const
    {
#pragma unroll
        for (int i = 0; i < cfg::MINE / 2; i++)
            to_memory[i] = fresh ? 0.0f : all(o)[i / 4][i % 4];
    }

    /* Products of a mixed tile, whose sums are no numbers, once more. */
    __device__ __forceinline__ void again(const struct sl_attn_work &w, int t, sums &o,
                                          const operands &p, const saved &from)
    {
        const struct sl_attn_rows rows = sl_attn_rows_of(a, w, warp * 16 + lane / 4);
        if (!shared::has_odd(all(o)))
            return;
#pragma unroll
        for (int i = 0; i < cfg::MINE / 2; i++)
            all(o)[i / 4][i % 4] = from[i];
        sl_attn_values_careful<frags, cfg::MINE, 4>(a, w, rows, all(o), p, slot_at(0) + FROM,
                                                    t * SL_ATTN_TILE);
        sl_fence_proxy_async();
    }

    /* ---- probabilities */

    /* Masks scores and finds what their exponents are taken from. true: what was summed before is
     * to be multiplied with alpha. */
    __device__ __forceinline__ bool raise(const struct sl_attn_work &w, int t, fragments &s,
                                          float alpha[2], float base[2])
    {
        if (is_masked(w, t)) {
            const struct sl_attn_rows rows = sl_attn_rows_of(a, w, warp * 16 + lane / 4);
            sl_attn_cap_and_mask(a, w, rows, s, t * SL_ATTN_TILE, true, true);
        }
        float top[2];
        bool rise = false;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            top[i] = sl_attn_thread_max<8>(s, i);
            rise = rise || sl_attn_is_far(top[i], m[i], a.scale2);
            alpha[i] = 1.0f;
            base[i] = __fmul_rn(m[i] == -SL_ATTN_INF ? 0.0f : m[i], a.scale2);
        }
        if (!__any_sync(0xFFFFFFFFu, rise))
            return false;
        top[0] = sl_attn_quad_max(top[0]);
        top[1] = sl_attn_quad_max(top[1]);
        sl_attn_raise(a.scale2, m, top, alpha, base);
        return true;
    }

    /* Scores become probabilities, still as floats. */
    __device__ __forceinline__ void softmax(fragments &s, const float alpha[2], const float base[2])
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float *x = &s[2 * k][2 * i], *y = &s[2 * k + 1][2 * i];
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    x[j] = sl_ex2_approx(__fmaf_rn(x[j], a.scale2, -base[i]));
                    y[j] = sl_ex2_approx(__fmaf_rn(y[j], a.scale2, -base[i]));
                }
                sum[k] = __fadd_rn(__fadd_rn(x[0], x[1]), __fadd_rn(y[0], y[1]));
            }
            l[i] = __fmaf_rn(l[i], alpha[i], sl_attn_tree<4>(sum));
        }
    }

    static __device__ __forceinline__ uint32_t packed(const fragments &s, int k, int i)
    {
        const float *x = &s[2 * k + i / 2][2 * (i % 2)];
        return elem::pack(x[0], x[1]);
    }

    static __device__ __forceinline__ void pack(const fragments &s, operands &p)
    {
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                p[k][i] = packed(s, k, i);
    }

    static __device__ __forceinline__ void scale(sums &o, const float alpha[2])
    {
#pragma unroll
        for (int n = 0; n < O; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                all(o)[n][j] = __fmul_rn(all(o)[n][j], alpha[j >> 1]);
    }

    /* ---- what the groups hand over */

    __device__ __forceinline__ uint4 *swap() const
    {
        return reinterpret_cast<uint4 *>(bars.smem + cfg::SWAP_AT) + warp * 32 + lane;
    }

    /* A tile's probabilities, and m and l after it. The lane has read what lay there. */
    __device__ __forceinline__ void send(const fragments &s)
    {
        uint4 *at = swap();
#pragma unroll
        for (int k = 0; k < 4; k++)
            at[128 * k] =
                make_uint4(packed(s, k, 0), packed(s, k, 1), packed(s, k, 2), packed(s, k, 3));
        at[128 * 4] = make_uint4(__float_as_uint(m[0]), __float_as_uint(m[1]),
                                 __float_as_uint(l[0]), __float_as_uint(l[1]));
        sl_mbar_arrive_warp(bars.sent(G, warp));
    }

    /* The same from the other group; the sums become what its tile's values are added to. */
    __device__ __forceinline__ void receive(sums &o, operands &p)
    {
        const uint4 *at = swap();
        float alpha[2];
        sl_mbar_wait(bars.sent(1 - G, warp), received.n++ & 1);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint4 x = at[128 * k];
            p[k][0] = x.x;
            p[k][1] = x.y;
            p[k][2] = x.z;
            p[k][3] = x.w;
        }
        const uint4 x = at[128 * 4];
        const float new_m[2] = {__uint_as_float(x.x), __uint_as_float(x.y)};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float safe = new_m[i] == -SL_ATTN_INF ? 0.0f : new_m[i];
            alpha[i] =
                new_m[i] > m[i] ? sl_ex2_approx(__fmul_rn(__fadd_rn(m[i], -safe), a.scale2)) : 1.0f;
            m[i] = new_m[i];
        }
        l[0] = __uint_as_float(x.z);
        l[1] = __uint_as_float(x.w);
        if (!fresh && __any_sync(0xFFFFFFFFu, alpha[0] != 1.0f || alpha[1] != 1.0f))
            scale(o, alpha);
    }

    /* ---- splits and runs */

    /* The thread's words of the state, WORKERS float4 apart. */
    __device__ __forceinline__ float4 *state() const
    {
        return a.states + static_cast<int>(blockIdx.x) * (O * cfg::WORKERS) +
               static_cast<int>(threadIdx.x) - cfg::FIRST;
    }

    /* A split, o, m and l, is complete: o becomes the state that has taken it in. */
    __device__ __forceinline__ void combine(float (&o)[O][4], const float of_m[2],
                                            const float of_l[2])
    {
        struct sl_attn_combine j[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            j[i] = sl_attn_combine_of(state_m[i], of_m[i], a.scale2);
            state_m[i] = stateless ? of_m[i] : j[i].top;
            state_l[i] = stateless ? of_l[i] : sl_attn_combined(j[i], state_l[i], of_l[i]);
        }
        if (stateless)
            return;
        const float4 *from = state();
#pragma unroll
        for (int n = 0; n < O; n += AT_ONCE) {
            float4 x[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                x[i] = __ldcg(from + (n + i) * cfg::WORKERS);
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                o[n + i][0] = sl_attn_combined(j[0], x[i].x, o[n + i][0]);
                o[n + i][1] = sl_attn_combined(j[0], x[i].y, o[n + i][1]);
                o[n + i][2] = sl_attn_combined(j[1], x[i].z, o[n + i][2]);
                o[n + i][3] = sl_attn_combined(j[1], x[i].w, o[n + i][3]);
            }
        }
    }

    __device__ __forceinline__ void write_slot(const struct sl_attn_work &w, int slot,
                                               const float (&o)[O][4], const float of_m[2],
                                               const float of_l[2])
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = warp * 16 + lane / 4 + 8 * i;
            if (row >= w.item.n_rows)
                continue;
            const int64_t at = sl_attn_slot(a, w, slot) + row;
            if (G == 0 && lane % 4 == 0)
                a.slot_ml[at] = make_float2(of_m[i], of_l[i]);
            float *there = a.slots + at * cfg::VD + G * cfg::MINE + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < O; n++)
                *reinterpret_cast<float2 *>(there + 8 * n) =
                    make_float2(o[n][2 * i], o[n][2 * i + 1]);
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

    /* The item's result. A row's four lanes change their dimensions, so that each stores eight that
     * are neighbours. */
    __device__ __forceinline__ void write_out(const struct sl_attn_work &w, const float (&o)[O][4],
                                              const float of_m[2], const float of_l[2]) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = warp * 16 + lane / 4 + 8 * i;
            const int r = w.item.row0 + min(row, w.item.n_rows - 1);
            const int token = sl_attn_div(r, a.by_group), head = r - token * a.group;
            __nv_bfloat16 *there =
                a.out + (w.item.token + token) * a.ld_out + static_cast<int64_t>(head) * a.v_dim;
            const float f = sl_attn_inverse(a, of_m[i], of_l[i], head);
#pragma unroll
            for (int n = 0; n < O; n += 4) {
                const int d = G * cfg::MINE + (n + lane % 4) * 8;
                uint32_t x[4];
#pragma unroll
                for (int k = 0; k < 4; k++)
                    x[k] = sl_attn_out2(o[n + k][2 * i], o[n + k][2 * i + 1], f, f);
                quad_transpose(x);
                if (row < w.item.n_rows && d < a.v_dim)
                    *reinterpret_cast<uint4 *>(there + d) = make_uint4(x[0], x[1], x[2], x[3]);
            }
        }
    }

    /* The run of tile t, o and the state's m and l, is complete. */
    __device__ __forceinline__ void end_run(const struct sl_attn_work &w, int t, float (&o)[O][4],
                                            bool more)
    {
        if (w.item.from > 0) {
            write_slot(w, sl_attn_split_slot(w, sl_latent_split_of(a, t)), o, state_m, state_l);
            return;
        }
        sl_attn_combine_total<cfg::MINE, cfg::WORKERS>(
            a, static_cast<int>(threadIdx.x) - cfg::FIRST, first_run, !more, o, state_m, state_l);
        first_run = false;
        if (more)
            return;
        if (w.item.rows_at < 0)
            write_out(w, o, state_m, state_l);
        else
            write_slot(w, 0, o, state_m, state_l);
    }

    /* The split of tile t, o and these, is complete; more follow if `more`. */
    __device__ __forceinline__ void end_split(const struct sl_attn_work &w, int t, sums &o,
                                              const float of_m[2], const float of_l[2], bool more)
    {
        const float sum[2] = {sl_attn_row_sum(of_l[0]), sl_attn_row_sum(of_l[1])};
        if (w.item.from > 0 && !sl_attn_by_run(w)) {
            write_slot(w, sl_attn_split_slot(w, sl_latent_split_of(a, t)), all(o), of_m, sum);
            return;
        }
        combine(all(o), of_m, sum);
        stateless = !more || sl_attn_begins_run((t + 1) * SL_ATTN_TILE >> a.shift);
        if (stateless) {
            end_run(w, t, all(o), more);
            return;
        }
        float4 *there = state();
#pragma unroll
        for (int n = 0; n < O; n++)
            __stcg(there + n * cfg::WORKERS,
                   make_float4(all(o)[n][0], all(o)[n][1], all(o)[n][2], all(o)[n][3]));
    }

    __device__ __forceinline__ void begin_split()
    {
        m[0] = m[1] = -SL_ATTN_INF;
        l[0] = l[1] = 0.0f;
    }

    /* ---- an item */

    /* Queries, rounded, by both groups. */
    __device__ __forceinline__ void load_queries(const struct sl_attn_work &w)
    {
        constexpr int PIECES = cfg::KD / 8, EACH = 64 * PIECES / cfg::WORKERS;
        constexpr int BATCH = EACH % 6 == 0 ? 6 : EACH % 5 == 0 ? 5 : 4;
        uint8_t *at = bars.smem + cfg::Q_AT;
        together(); /* nobody multiplies the last item's any more */
#pragma unroll 1
        for (int k = 0; k < EACH; k += BATCH) {
            float4 x[BATCH][2];
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int unit =
                    static_cast<int>(threadIdx.x) - cfg::FIRST + (k + i) * cfg::WORKERS;
                const int d = unit % PIECES * 8;
                const float *query = sl_attn_query_row(a, w, unit / PIECES);
                const bool any = query != nullptr && d < a.head_dim;
                const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                x[i][0] = any ? *reinterpret_cast<const float4 *>(query + d) : zero;
                x[i][1] = any ? *reinterpret_cast<const float4 *>(query + d + 4) : zero;
            }
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int unit =
                    static_cast<int>(threadIdx.x) - cfg::FIRST + (k + i) * cfg::WORKERS;
                const int row = unit / PIECES, piece = unit % PIECES;
                const float4 lo = sl_kv_bounded<elem>(x[i][0]), hi = sl_kv_bounded<elem>(x[i][1]);
                *reinterpret_cast<uint4 *>(at + piece / 8 * cfg::PANEL + row * 128 +
                                           ((piece ^ row) & 7) * 16) =
                    make_uint4(elem::pack(lo.x, lo.y), elem::pack(lo.z, lo.w),
                               elem::pack(hi.x, hi.y), elem::pack(hi.z, hi.w));
            }
        }
        sl_fence_proxy_async();
        together();
    }

    /* Values of tile t, which is next, to the end; the slot is given back. m and l are those after
     * the tile. */
    __device__ __forceinline__ void add_values(const struct sl_attn_work &w, int t, sums &o,
                                               operands &p)
    {
        saved before;
        const bool mixed = is_mixed(w, t);
        wait_half();
        if (mixed)
            save(o, before);
        values(o, p);
        sl_wgmma_wait<0>();
        keep(o, p);
        if (mixed)
            again(w, t, o, p, before);
        release();
        fresh = ends_split(t);
        if (fresh) {
            end_split(w, t, o, m, l, t + 1 < to);
            begin_split();
        }
    }

    /* The first tile, which is group 0's. */
    __device__ __forceinline__ void alone(const struct sl_attn_work &w, int t, sums &o,
                                          fragments &s, operands &p)
    {
        float alpha[2], base[2];
        scores(0, s);
        sl_wgmma_wait<0>();
        sl_wgmma_keep(s);
        raise(w, t, s, alpha, base);
        softmax(s, alpha, base);
        send(s);
        pack(s, p);
        add_values(w, t, o, p);
    }

    /* Tile t of the other group, and t + 1. */
    __device__ __forceinline__ void pair(const struct sl_attn_work &w, int t, sums &o, fragments &s,
                                         operands &p)
    {
        saved before;
        float alpha[2], base[2];
        const bool mixed = is_mixed(w, t), ends = ends_split(t);
        if (G == 1) {
            scores(1, s);
        }
        receive(o, p);
        wait_half();
        if (mixed)
            save(o, before);
        values(o, p);
        if (G == 0) {
            sl_wgmma_wait<0>();
            keep(o, p);
            if (mixed)
                again(w, t, o, p, before);
            release();
            scores(0, s);
        }
        sl_wgmma_wait<G == 0 ? 0 : 1>();
        sl_wgmma_keep(s);
        const float done_m[2] = {m[0], m[1]}, done_l[2] = {l[0], l[1]};
        if (ends)
            begin_split();
        const bool rises = raise(w, t + 1, s, alpha, base);
        softmax(s, alpha, base);
        send(s);
        if (G == 1) {
            sl_wgmma_keep(s); /* or the compiler would wait first */
            sl_wgmma_wait<0>();
            keep(o, p);
            if (mixed)
                again(w, t, o, p, before);
            release();
        }
        if (ends)
            end_split(w, t, o, done_m, done_l, true);
        else if (rises)
            scale(o, alpha);
        fresh = ends;
        pack(s, p);
        add_values(w, t + 1, o, p);
    }

    __device__ __forceinline__ void item(const struct sl_attn_work &w)
    {
        int t, end;
        sums o;
        fragments s;
        operands p;
        sl_latent_tiles_of(a, w, &t, &to, &end);
        if (t >= to)
            return;
        load_queries(w);
#pragma unroll
        for (int n = 0; n < O; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                all(o)[n][j] = 0.0f;
        fresh = stateless = first_run = true;
        begin_split();
        state_m[0] = state_m[1] = -SL_ATTN_INF;
        state_l[0] = state_l[1] = 0.0f;
        if (G == 0)
            alone(w, t++, o, s, p);
#pragma unroll 1
        for (; t + 1 < to; t += 2)
            pair(w, t, o, s, p);
        if (t < to) {
            receive(o, p);
            add_values(w, t, o, p);
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

template <class KV, class cfg>
static __global__ void __launch_bounds__(cfg::THREADS, 1)
    sl_latent_kernel(const __grid_constant__ struct sl_attn_args a)
{
    SL_SMEM(uint8_t, smem);
    const sl_latent_bars<cfg> bars = {smem};
    sl_grid_launch_dependents();
    if (threadIdx.x == 0)
        bars.init(1);
    __syncthreads();
    sl_grid_wait();
    /* The same in all lanes, as the compiler shall see: products do not run in divergent code. */
    const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 128), 0);
    if (group == 0) {
        sl_regs_give<24>();
        if (threadIdx.x < 32) {
            sl_latent_bring<KV, cfg, 0> x(a, bars);
            x.run(__ldcg(&a.cls->n_items));
        } else if (threadIdx.x < 64) {
            sl_latent_bring<KV, cfg, 1> x(a, bars);
            x.run(__ldcg(&a.cls->n_items));
        }
        if (threadIdx.x == 0 && atomicAdd(&a.cls->done, 1u) + 1 == gridDim.x) {
            a.cls->taken = 0; /* for the next layer */
            a.cls->done = 0;
        }
        return;
    }
    sl_regs_take<240>();
    if (group == 1) {
        sl_latent_group<KV, cfg, 0> x(a, bars);
        x.run();
    } else {
        sl_latent_group<KV, cfg, 1> x(a, bars);
        x.run();
    }
}

#define SL_LATENT_INSTANCE(pages, kd, vd)                                                 \
    void sl_latent_run_##pages##_##kd(struct sl_cuda *cu, const struct sl_attn_args *a,   \
                                      int32_t grid)                                       \
    {                                                                                     \
        typedef sl_latent_cfg<kd, vd> cfg;                                                \
        sl_launch(cu, sl_latent_kernel<struct sl_kv_##pages, cfg>,                        \
                  dim3(static_cast<unsigned>(grid)), dim3(cfg::THREADS), cfg::BYTES, *a); \
    }

#endif
