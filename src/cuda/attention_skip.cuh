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

template <class KV, int D> struct sl_attn_skip : sl_attn_group<KV, sl_attn_wg_cfg<KV, D>> {
    typedef sl_attn_group<KV, sl_attn_wg_cfg<KV, D>> up;
    typedef typename up::cfg cfg;
    typedef typename KV::elem elem;
    typedef typename up::frags frags;
    static constexpr int F = SL_ATTN_TILE / 8; /* fragments of a tile's scores */
    static constexpr int O = D / 8;            /* and of the sums */
    using up::a;
    using up::tiles;

    bool fresh; /* nothing of the split was taken in */
    struct sl_attn_rows rows;
    struct sl_attn_limit limit[2];
    float m[2], l[2]; /* of the split */

    __device__ __forceinline__ sl_attn_skip(const struct sl_attn_args &args,
                                            const sl_attn_bars<cfg> &barriers, int group_idx)
        : up(args, barriers, group_idx)
    {
    }

    /* What tiles are compared with. The first keys go where the group's state will be. */
    __device__ __forceinline__ void load_limits(const struct sl_attn_work &w)
    {
        limit[0].reach = limit[1].reach = limit[0].first = limit[1].first = -SL_ATTN_INF;
        if (!sl_attn_skips(a, w))
            return;
        uint8_t *room = up::bars.smem + cfg::STATE_AT + up::group * (D * 256);
        const uint8_t *from = a.keys +
                              static_cast<unsigned>(a.tables[w.item.table]) *
                                  static_cast<unsigned long long>(a.page_bytes) +
                              static_cast<unsigned>(w.item.kv * a.by_page.by) *
                                  static_cast<unsigned long long>(KV::tile_bytes(D));
        for (int i = up::warp * 32 + up::lane; i < KV::tile_bytes(D) / 16; i += 128)
            *reinterpret_cast<uint4 *>(room + i * 16) =
                *reinterpret_cast<const uint4 *>(from + i * 16);
        this->together();
        float s[2][4] = {};
        const uint8_t *query = up::bars.smem + cfg::Q_AT + up::group * cfg::BLOCK;
        const int row = up::warp * 16 + (up::lane & 15);
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t q[4], b[4];
            const int piece = d % 4 * 2 + (up::lane >> 4);
            sl_ldmatrix_x4(q, query + d / 4 * cfg::PANEL + row * 128 + ((piece ^ row) & 7) * 16);
            KV::template key_frags<D>(b, room, d * 16);
            elem::mma(s[0], q, b);
            elem::mma(s[1], q, b + 2);
        }
        sl_attn_cap_and_mask(a, rows, s, 0, false, true);
        sl_attn_limits(a, w, rows, this->row0(), s, limit);
        this->together(); /* before the state */
    }

    /* ---- splits */

    __device__ __forceinline__ void begin_split()
    {
        m[0] = m[1] = -SL_ATTN_INF;
        l[0] = l[1] = 0.0f;
        fresh = true;
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
        if (fresh) {
#pragma unroll
            for (int n = 0; n < O; n++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    o[n][j] = 0.0f;
        }
        if (by_split) {
            this->write_split(w, t, o, m, l);
            return;
        }
        this->join(o, m, l);
        this->keep_state(w, t, o, more);
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
        uint8_t *votes =
            up::bars.smem + cfg::VOTE_AT + (up::tiles.slot() * cfg::GROUPS + up::group) * 4;
        if (up::lane == 0)
            votes[up::warp] = static_cast<uint8_t>((first ? 1 : 0) | (second ? 2 : 0));
        this->together();
        uint32_t all = *reinterpret_cast<const uint32_t *>(votes);
        all |= all >> 16;
        return up::uniform(static_cast<int>((all | all >> 8) & 3));
    }

    /* A tile's scores to probabilities and onto the sums. */
    template <int H>
    __device__ __forceinline__ void values(int t, int slot, const float (&s)[2 * F][4],
                                           const struct taken &x, float (&o)[O][4], bool mixed)
    {
        volatile float saved[D / 2]; /* in memory, as that is rare */
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
        if (mixed) {
#pragma unroll
            for (int i = 0; i < D / 2; i++)
                saved[i] = o[i / 4][i % 4];
        }
        auto b = sl_wgmma_bt(this->slot_at(up::uniform(slot)));
        sl_wgmma_fence();
#pragma unroll
        for (int k = 0; k < F / 2; k++)
            elem::wgmma_rs_bt(o, p[k], sl_wgmma_b_at(b, H * cfg::BLOCK + k * cfg::PART), 1);
        sl_wgmma_commit();
        sl_wgmma_wait<0>();
        sl_wgmma_keep(o);
        sl_wgmma_keep(p);
        if (!mixed || !this->has_odd(o))
            return;
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o[i / 4][i % 4] = saved[i];
        sl_attn_values_careful<frags, D, 4>(a, rows, o, p, this->slot_at(slot) + H * cfg::BLOCK,
                                            t * SL_ATTN_PAIR + H * SL_ATTN_TILE);
        sl_fence_proxy_async();
    }

    __device__ __forceinline__ void pair(int t, float (&o)[O][4])
    {
        float s[2 * F][4];
        const int key = t * SL_ATTN_PAIR, slot = tiles.values();
        const bool masked = this->is_masked(t);
        this->wait(tiles.keys(), tiles);
        this->scores(tiles.keys(), s);
        sl_wgmma_wait<0>();
        sl_wgmma_keep(s);
        this->release(tiles.keys());
        if (masked || a.cap > 0.0f)
            sl_attn_cap_and_mask(a, rows, s, key, masked, true);
        const struct taken first = take(key, s), second = take(key + SL_ATTN_TILE, s + F);
        const int wanted = vote(first.any, second.any);
        this->wait(slot, tiles);
        if (wanted & 1)
            values<0>(t, slot, s, first, o, this->is_mixed(t));
        if (wanted & 2)
            values<1>(t, slot, s, second, o, this->is_mixed(t));
        this->release(slot);
    }

    __device__ __forceinline__ void item(const struct sl_attn_work &w)
    {
        int t, to;
        float o[O][4];
        sl_attn_tiles_of<SL_ATTN_PAIR>(w, &t, &to);
        if (up::group * 64 >= w.item.n_rows) {
            this->idle(t, to);
            return;
        }
        rows = sl_attn_rows_of(a, w, this->row0() + up::lane / 4);
        this->begin_item(w);
        load_limits(w);
#pragma unroll
        for (int n = 0; n < O; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[n][j] = 0.0f;
        begin_split();
#pragma unroll 1
        for (; t < to; t++, tiles.n++) {
            pair(t, o);
            if (!sl_attn_last_of_split<SL_ATTN_PAIR>(t, to))
                continue;
            end_split(w, t, o, t + 1 < to);
            begin_split();
        }
    }
};

#endif
