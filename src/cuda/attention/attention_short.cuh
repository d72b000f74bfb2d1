/* SPDX-License-Identifier: MIT
 * attention_short.cuh - decodes whose items are a split or a few and of which no block has a second
 * one: one short sequence, or a few of them.
 *
 * A warp alone goes through a split's tiles one after the other, while the block's other warps have
 * nothing to do. Here all four share each 128 keys: a warp makes the scores of 32 of them, which
 * all read from shared memory, and the sums of a quarter of the dimensions. The order of every sum
 * is that of attention_narrow.cuh, whose rings are one place for the keys and values of two tiles.
 *
 * One sequence of 768 positions of BF16, D = 128, on an H200, us after the wait for the
 * previous kernel, by %globaltimer: queries there 0.9, own scores 0.5, all scores 0.2, p and
 * sums 1.2 (since then the two tiles side by side), slot 0.3, fence 0.4, arrival 0.6; the last
 * block combines six slots in 1.4 more.
 */
#ifndef SL_CUDA_ATTENTION_SHORT_CUH
#define SL_CUDA_ATTENTION_SHORT_CUH

#include "cuda/attention/attention_narrow.cuh"

#define SL_ATTN_SHORT 1024 /* keys of an item at most */

template <class KV, int D> struct sl_attn_short : sl_attn_narrow<KV, D, 1, false> {
    typedef sl_attn_narrow<KV, D, 1, false> base;
    typedef sl_attn_narrow_cfg<KV, D, 1, false> cfg;
    using base::a, base::smem, base::rows, base::warp, base::lane, base::m, base::l;
    static constexpr int ROUND = 2 * SL_ATTN_TILE;   /* keys of all warps */
    static constexpr int UNITS = ROUND / SL_KV_TILE; /* of 16 positions */
    static constexpr int MINE = UNITS / cfg::WARPS;  /* of a warp */
    static constexpr int BLOCKS = (D / 16 + 3) / 4;  /* of 16 dimensions, of a warp */
    static constexpr bool FITS = cfg::WARPS * cfg::SLOTS * cfg::SLOT >= 2 * UNITS * cfg::TILE;

    unsigned long long at, next_at; /* as in the feed; of the split, and of the one after it */
    uint32_t parity;
    float sum[BLOCKS][4];

    __device__ __forceinline__ sl_attn_short(const struct sl_attn_args &args, uint8_t *smem_base)
        : base(args, smem_base)
    {
        parity = 0;
        m[0] = l[0] = 0.0f;
        for (int i = 0; i < 4 * BLOCKS; i++)
            sum[i / 4][i % 4] = 0.0f;
    }

    /* An item of few keys, all of one run, that leaves no slot for a run. */
    static __device__ __forceinline__ bool is_short(const struct sl_attn_work &w)
    {
        const int from = max(w.item.from, sl_attn_split_of(w.key_lo));
        return !sl_attn_by_run(w) && from < w.item.to &&
               sl_attn_split_at(w.item.to) - sl_attn_split_at(from) <= SL_ATTN_SHORT;
    }

    /* The barrier of a warp's keys, or values. */
    __device__ __forceinline__ uint64_t *full(int of, bool values) const
    {
        return reinterpret_cast<uint64_t *>(smem + cfg::FULL_AT) + (values ? cfg::WARPS : 0) + of;
    }
    __device__ __forceinline__ uint8_t *tile_at(int unit, bool values) const
    {
        return smem + ((values ? UNITS : 0) + unit) * cfg::TILE;
    }

    /* The warp's keys, or values, of a round of a split, whose units lie `where`. */
    __device__ __forceinline__ void bring(const struct sl_attn_work &w, int split, int round,
                                          unsigned long long where, bool values)
    {
        const int i = lane - (round * UNITS + warp * MINE);
        const int key = sl_attn_split_at(split) + lane * SL_KV_TILE;
        const bool mine = i >= 0 && i < MINE && key < w.key_hi && key + SL_KV_TILE > w.key_lo;
        const int n = __popc(__ballot_sync(0xFFFFFFFFu, mine));
        if (lane == 0)
            sl_mbar_expect_tx(full(warp, values), static_cast<uint32_t>(n * cfg::TILE));
        __syncwarp();
        if (mine)
            sl_bulk_load_once(tile_at(warp * MINE + i, values),
                              (values ? a.values : a.keys) + where, cfg::TILE, full(warp, values));
    }

    /* The same of the first round, keys and values, before and after the wait for the
     * previous kernel: before it what was there by steps before this one, and the rest as far as
     * the L2. */
    __device__ __forceinline__ void bring_first(const struct sl_attn_work &w, int split, int round)
    {
        const int i = lane - (round * UNITS + warp * MINE);
        const int key = sl_attn_split_at(split) + lane * SL_KV_TILE;
        const bool mine = i >= 0 && i < MINE && key < w.key_hi && key + SL_KV_TILE > w.key_lo;
        const bool old = a.early && key + SL_KV_TILE <= w.item.pos;
        const uint32_t n_bytes =
            static_cast<uint32_t>(__popc(__ballot_sync(0xFFFFFFFFu, mine)) * cfg::TILE);
        if (lane < 2)
            sl_mbar_expect_tx(full(warp, lane == 1), n_bytes);
        __syncwarp();
        if (mine && old)
            load_unit(i);
        if (mine && !old)
            for (int at_byte = 0; at_byte < cfg::TILE; at_byte += 128) {
                sl_prefetch_l2(a.keys + at + at_byte);
                sl_prefetch_l2(a.values + at + at_byte);
            }
        sl_grid_wait();
        if (mine && !old)
            load_unit(i);
    }
    __device__ __forceinline__ void load_unit(int i) const
    {
        const int unit = warp * MINE + i;
        sl_bulk_load_once(tile_at(unit, false), a.keys + at, cfg::TILE, full(warp, false));
        sl_bulk_load_once(tile_at(unit, true), a.values + at, cfg::TILE, full(warp, true));
    }

    /* Where all warps find a row's scores of a round; 8 more than ROUND: rows in other banks. */
    __device__ __forceinline__ float *score_at(int key) const
    {
        float *to = reinterpret_cast<float *>(smem + cfg::STATE_AT);
        return to + lane / 4 * (ROUND + 8) + key + lane % 4 * 2;
    }

    __device__ __forceinline__ void own_scores()
    {
        float s[4][4];
        sl_mbar_wait(full(warp, false), parity);
        const uint8_t *const keys[2] = {tile_at(warp * MINE, false),
                                        tile_at(warp * MINE + 1, false)};
        base::template scores<2>(keys, s);
#pragma unroll
        for (int f = 0; f < 4; f++)
            *reinterpret_cast<float2 *>(score_at(warp * MINE * SL_KV_TILE + 8 * f)) =
                make_float2(s[f][0], s[f][1]);
    }

    /* Values of the warp's keys that nobody sees become zeros, before all read them. */
    __device__ __forceinline__ void clear_own(const struct sl_attn_work &w, int key)
    {
        sl_mbar_wait(full(warp, true), parity);
        sl_attn_clear<KV, D>(w, tile_at(warp * MINE, true), MINE, key + warp * MINE * SL_KV_TILE,
                             lane, 32);
    }

    /* The sums of the dimensions, times a factor of each row. */
    __device__ __forceinline__ void scale_sums(float alpha)
    {
        const float of[2] = {alpha, 1.0f};
        float by[1][2];
        if (!__any_sync(0xFFFFFFFFu, alpha != 1.0f))
            return;
        base::to_columns(of, by);
#pragma unroll
        for (int i = 0; i < 4 * BLOCKS; i++)
            sum[i / 4][i % 4] = __fmul_rn(sum[i / 4][i % 4], by[0][i % 2]);
    }

    /* The two tiles of a round, from `key` on, side by side as far as they do not depend on each
     * other. One of which nothing is seen changes no bits. */
    __device__ __forceinline__ void take(const struct sl_attn_work &w, int key, bool first)
    {
        float s[2][8][4], top[2][2], alpha[2][2], base_of[2][2];
        uint32_t p[2][4][4];
#pragma unroll
        for (int f = 0; f < 16; f++) {
            const float2 x = *reinterpret_cast<const float2 *>(score_at(8 * f));
            s[f / 8][f % 8][0] = x.x;
            s[f / 8][f % 8][1] = x.y;
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int tile = key / SL_ATTN_TILE + h;
            sl_attn_cap_and_mask(a, w, rows, s[h], tile * SL_ATTN_TILE, sl_attn_masked(w, tile),
                                 false);
            sl_attn_row_max(s[h], top[h], false);
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
            sl_attn_raise(a.scale2, m, top[h], alpha[h], base_of[h]);
#pragma unroll
        for (int h = 0; h < 2; h++)
            sl_attn_exp<typename KV::elem>(a.scale2, s[h], base_of[h], alpha[h], p[h], l, false);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (h > 0 || !first)
                scale_sums(alpha[h][0]);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int at_key = key + h * SL_ATTN_TILE + half * 32;
                sl_mbar_wait(full(2 * h + half, true), parity);
                if (at_key < w.key_hi && at_key + 32 > w.key_lo) /* as the lone warp */
                    half_sums(4 * h + 2 * half, p[h] + 2 * half);
            }
        }
    }

    __device__ __forceinline__ int block_of(int i) const
    {
        return warp * BLOCKS + i;
    }

    /* Two units of 16 values. */
    __device__ __forceinline__ void half_sums(int unit, const uint32_t (*p)[4])
    {
        const uint8_t *const tiles[2] = {tile_at(unit, true), tile_at(unit + 1, true)};
        const typename KV::scales scales[2] = {KV::template value_scales<D>(tiles[0]),
                                               KV::template value_scales<D>(tiles[1])};
        constexpr int MOST = KV::template LOADS<D>;
        constexpr int L = BLOCKS % MOST == 0 ? MOST : BLOCKS % 2 == 0 && MOST > 2 ? 2 : 1;
        sl_attn_ahead<KV, L, 2 * BLOCKS>(
            [&](int i, uint32_t *raw) {
                if (D % 64 == 0 || block_of(i % BLOCKS) < D / 16)
                    KV::template value_raw<D, L>(raw, tiles[i / BLOCKS], block_of(i % BLOCKS) * 16);
            },
            [&](int i, const uint32_t *raw) {
                const uint32_t x[2] = {p[i / BLOCKS][0], p[i / BLOCKS][2]};
                uint32_t rows_of[4];
                const int step = L > 1 ? i % BLOCKS : block_of(i % BLOCKS);
                KV::template value_rows<L>(rows_of, raw, step, scales[i / BLOCKS]);
                KV::elem::mma(sum[i % BLOCKS], rows_of, x);
            });
    }

    __device__ __forceinline__ void split_sums(const struct sl_attn_work &w, int split)
    {
        const int from = sl_attn_split_at(split);
        const int to = min(sl_attn_split_at(split + 1), w.key_hi);
        int round = (max(w.key_lo, from) - from) / ROUND;
        bool first = true;
#pragma unroll
        for (int i = 0; i < 4 * BLOCKS; i++)
            sum[i / 4][i % 4] = 0.0f;
        m[0] = m[1] = -SL_ATTN_INF;
        l[0] = l[1] = 0.0f;
#pragma unroll 1
        for (; from + round * ROUND < to; round++) {
            const int key = from + round * ROUND;
            const bool more = key + ROUND < to, next = !more && split + 1 < w.item.to;
            own_scores();
            if (sl_attn_masked(w, key / SL_ATTN_TILE) || sl_attn_masked(w, key / SL_ATTN_TILE + 1))
                clear_own(w, key);
            sl_fence_proxy_async(); /* what was read there, the copy engine writes next */
            __syncwarp();
            if (more || next)
                bring(w, split + next, more ? round + 1 : 0, more ? at : next_at, false);
            sl_bar_sync(1, cfg::THREADS);
            take(w, key, first);
            first = false;
            if (more || next) {
                sl_fence_proxy_async();
                sl_bar_sync(1, cfg::THREADS);
                bring(w, split + next, more ? round + 1 : 0, more ? at : next_at, true);
            }
            parity ^= 1;
        }
        l[0] = sl_attn_row_sum(l[0]);
    }

    /* The sums of the splits before, in the same registers of another, before this one's. */
    __device__ __forceinline__ void combine_sums(const float (&was)[BLOCKS][4], float top,
                                                 float total)
    {
        float by_a[1][2], by_b[1][2];
        const struct sl_attn_combine j = sl_attn_combine_of(top, m[0], a.scale2);
        l[0] = sl_attn_combined(j, total, l[0]);
        m[0] = j.top;
        const float fa[2] = {j.a, 0.0f}, fb[2] = {j.b, 0.0f};
        base::to_columns(fa, by_a);
        base::to_columns(fb, by_b);
#pragma unroll
        for (int i = 0; i < 4 * BLOCKS; i++) {
            const struct sl_attn_combine of = {0.0f, by_a[0][i % 2], by_b[0][i % 2]};
            sum[i / 4][i % 4] = sl_attn_combined(of, was[i / 4][i % 4], sum[i / 4][i % 4]);
        }
    }

    __device__ __forceinline__ void leave_slot(const struct sl_attn_work &w, int slot) const
    {
        const int64_t to = sl_attn_slot(a, w, slot);
        if (warp == 0 && lane % 4 == 0 && lane / 4 < w.item.n_rows)
            a.slot_ml[to + lane / 4] = make_float2(m[0], l[0]);
#pragma unroll
        for (int i = 0; i < 4 * BLOCKS; i++) {
            const int row = lane % 4 * 2 + i % 2, block = block_of(i / 4);
            const int d = block * 16 + i % 4 / 2 * 8 + lane / 4;
            if (row < w.item.n_rows && block < D / 16)
                a.slots[(to + row) * D + d] = sum[i / 4][i % 4];
        }
    }

    __device__ __forceinline__ void leave_out(const struct sl_attn_work &w) const
    {
        const struct sl_attn_out out = sl_attn_out_of(a, w, min(lane / 4, w.item.n_rows - 1));
        const float by[2] = {sl_attn_inverse(a, m[0], l[0], out.head), 0.0f};
        float f[1][2];
        base::to_columns(by, f);
#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; i++) {
            const float *x = sum[i / 2] + i % 2 * 2;
            const int d = block_of(i / 2) * 16 + i % 2 * 8 + lane % 4 * 2;
            const uint32_t pair = sl_turn(sl_attn_out2(x[0], x[1], f[0][0], f[0][1]));
            if (lane / 4 < w.item.n_rows && d < a.head_dim)
                *reinterpret_cast<uint32_t *>(out.to + d) = pair;
        }
    }

    /* The block's only item. Waits for the previous kernel. */
    __device__ __forceinline__ void go(const struct sl_attn_work &w)
    {
        int split = max(w.item.from, sl_attn_split_of(w.key_lo));
        const int begin = split, at_key = sl_attn_split_at(split);
        const int round = (max(w.key_lo, at_key) - at_key) / ROUND;
        at = base::feed.find(w, split);
        bring_first(w, split, round);
        base::begin_item(w, 0);
#pragma unroll 1
        for (; split < w.item.to; split++) {
            float was[BLOCKS][4];
            const float top = m[0], total = l[0];
#pragma unroll
            for (int i = 0; i < 4 * BLOCKS; i++)
                was[i / 4][i % 4] = sum[i / 4][i % 4];
            next_at = split + 1 < w.item.to ? base::feed.find(w, split + 1) : 0;
            split_sums(w, split);
            at = next_at;
            if (w.item.from > 0)
                leave_slot(w, sl_attn_split_slot(w, split));
            else if (split > begin)
                combine_sums(was, top, total);
        }
        if (w.item.rows_at < 0)
            leave_out(w);
        else if (w.item.from == 0)
            leave_slot(w, 0);
    }
};

#endif
