/* SPDX-License-Identifier: MIT
 * attention_skip.cuh - attention_wg.cuh with skip-softmax: chunks of prompts by the products of
 * warpgroups, for a factor above 0.
 *
 * The schedule is the same: the next pair's scores are begun together with this one's values, and
 * become probabilities while these are added. Which tiles of a pair are taken in is known as soon
 * as its scores are, a step before its values are multiplied: the four warps of a group vote, hear
 * the others' votes half a step later, and begin no product of a tile that none of their rows takes
 * in. A warp that takes in nothing of a tile makes no exponentials of it. Mostly all scores' best
 * are enough and no reference rises, which one vote of the warp tells.
 *
 * ptxas serialises products of a sum that stand in branches by themselves (C7515), but not where
 * all from the first product to the wait stands in the branch: so there are five of these, for
 * both tiles of a pair, either, none, and both with a reference that rises between them.
 *
 * nvcc 13.0: 168 registers at launch, no spills in the loop of D = 128 (64 bytes around it); D = 64
 * spills 900 bytes, which cost what its gain lacks: lab/attention_skip.cu has the figures.
 */
#ifndef SL_CUDA_ATTENTION_SKIP_CUH
#define SL_CUDA_ATTENTION_SKIP_CUH

#include "cuda/attention/attention_wg.cuh"

template <class KV, int D> struct sl_attn_skip_cfg : sl_attn_wg_cfg<KV, D> {
    typedef sl_attn_wg_cfg<KV, D> up;
    static constexpr int GROUPS = up::GROUPS;
    static constexpr int LIMIT_AT = up::BYTES;              /* struct sl_attn_limit [ROWS] */
    static constexpr int VOTE_AT = LIMIT_AT + 8 * up::ROWS; /* uint8_t [2][GROUPS][4] */
    static constexpr int VOTED_AT = VOTE_AT + 8 * GROUPS;   /* mbarriers [2][GROUPS] */
    static constexpr int BYTES = VOTED_AT + 16 * GROUPS;
    static_assert(LIMIT_AT % 8 == 0, "limits are read whole");

    static __device__ __forceinline__ void init(uint8_t *smem)
    {
        for (int i = 0; i < 2 * GROUPS; i++)
            sl_mbar_init(reinterpret_cast<uint64_t *>(smem + VOTED_AT) + i, 4 * SL_WARP_ARRIVALS);
    }
};

template <class KV, int D> struct sl_attn_skip : sl_attn_wg<KV, D, sl_attn_skip_cfg<KV, D>> {
    typedef sl_attn_wg<KV, D, sl_attn_skip_cfg<KV, D>> up;
    typedef typename up::cfg cfg;
    typedef typename KV::elem elem;
    static constexpr int F = SL_ATTN_PAIR / 8; /* fragments of a pair's scores */
    static constexpr int H = F / 2;            /* of a tile's */
    static constexpr int O = D / 8;            /* and of the sums */
    using up::a;
    using up::again;
    using up::bars;
    using up::fresh;
    using up::group;
    using up::l;
    using up::lane;
    using up::late;
    using up::m;
    using up::release;
    using up::tiles;
    using up::to;
    using up::wait;
    using up::warp;

    int wanted;       /* tiles of the pair that some row of the group takes in: bits 0 and 1 */
    int mine;         /* and of the warp */
    float kept[2];    /* m's, what exponents are taken from */
    float base[2][2]; /* the same of the two tiles: inf where a row leaves one out */
    bool rises;       /* some reference of the warp did in this pair: */
    volatile float alpha_l[2][2], alpha_o[2]; /* in memory, as that is rare */

    __device__ __forceinline__ sl_attn_skip(const struct sl_attn_args &args,
                                            const sl_attn_bars<cfg> &barriers, int group_idx)
        : up(args, barriers, group_idx)
    {
    }

    /* ---- what tiles are compared with */

    /* Of the thread's two rows, [0] and [8]. */
    __device__ __forceinline__ struct sl_attn_limit *limits() const
    {
        return reinterpret_cast<struct sl_attn_limit *>(bars.smem + cfg::LIMIT_AT) + this->row0() +
               lane / 4;
    }

    /* The scores of the first keys, which go where the group's state will be. */
    __device__ __forceinline__ void first_scores(const struct sl_attn_work &w, float (&s)[2][4])
    {
        uint8_t *room = bars.smem + cfg::STATE_AT + group * (D * 256);
        const uint8_t *from = a.keys +
                              static_cast<unsigned>(a.tables[w.item.table]) *
                                  static_cast<unsigned long long>(a.page_bytes) +
                              static_cast<unsigned>(w.item.kv * a.by_page.by) *
                                  static_cast<unsigned long long>(KV::tile_bytes(D));
        for (int i = warp * 32 + lane; i < KV::tile_bytes(D) / 16; i += 128)
            *reinterpret_cast<uint4 *>(room + i * 16) =
                *reinterpret_cast<const uint4 *>(from + i * 16);
        this->together();
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
        this->together(); /* before the state */
    }

    __device__ __forceinline__ void load_limits(const struct sl_attn_work &w)
    {
        struct sl_attn_limit limit[2];
        limit[0].reach = limit[1].reach = limit[0].first = limit[1].first = -SL_ATTN_INF;
        if (sl_attn_skips(a, w)) {
            const struct sl_attn_rows rows = sl_attn_rows_of(a, w, this->row0() + lane / 4);
            float s[2][4] = {};
            first_scores(w, s);
            sl_attn_cap_and_mask(a, w, rows, s, 0, false, true);
            sl_attn_limits(a, w, rows, this->row0(), s, limit);
        }
        if (lane % 4 == 0) {
            limits()[0] = limit[0];
            limits()[8] = limit[1];
        }
        __syncwarp();
    }

    /* ---- which tiles are taken in */

    /* The largest of the thread's scores of its row i of a tile, or NaN. */
    static __device__ __forceinline__ float top_of(const float (*s)[4], int i)
    {
        float x[H / 2];
#pragma unroll
        for (int f = 0; f < H / 2; f++)
            x[f] = sl_max_nan(sl_max_nan(s[2 * f][2 * i], s[2 * f][2 * i + 1]),
                              sl_max_nan(s[2 * f + 1][2 * i], s[2 * f + 1][2 * i + 1]));
#pragma unroll
        for (int n = H / 4; n > 0; n /= 2)
#pragma unroll
            for (int f = 0; f < n; f++)
                x[f] = sl_max_nan(x[f], x[f + n]);
        return x[0];
    }

    /* Is a score of the thread's row i enough for the row to take the tile in? */
    __device__ __forceinline__ bool is_enough(float top, const struct sl_attn_limit &limit, int i)
    {
        return !(top < fmaxf(limit.first, __fadd_rn(m[i], limit.reach)));
    }

    /* Of tile h, by what the thread's scores say: which of its rows take it in. */
    __device__ __forceinline__ void take(int h, const bool enough[2], bool takes[2])
    {
        const unsigned row_lanes = 15u << (lane & 28); /* the four that share the rows */
        unsigned all = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const unsigned votes = __ballot_sync(0xFFFFFFFFu, enough[i]);
            takes[i] = (votes & row_lanes) != 0;
            all |= votes;
        }
        mine |= all != 0 ? 1 << h : 0;
    }

    /* One tile after the other, as a reference rises: the factors of what was summed before each.
     * Those of the sums before a tile that a row leaves out may be those of the next, and so the
     * values of a pair are mostly one product. */
    __device__ __forceinline__ void raise(const struct sl_attn_limit limit[2], float (&top)[2][2])
    {
        bool takes[2][2], once_more = false;
        float alpha[2][2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const bool enough[2] = {is_enough(top[h][0], limit[0], 0),
                                    is_enough(top[h][1], limit[1], 1)};
            take(h, enough, takes[h]);
            top[h][0] = sl_attn_quad_max(top[h][0]);
            top[h][1] = sl_attn_quad_max(top[h][1]);
            sl_attn_raise_taken(a.scale2, takes[h], m, top[h], alpha[h], base[h]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            again[i] = takes[0][i] ? alpha[1][i] : 1.0f;
            once_more = once_more || again[i] != 1.0f;
            alpha_l[0][i] = alpha[0][i];
            alpha_l[1][i] = alpha[1][i];
            alpha_o[i] = takes[0][i] ? alpha[0][i] : alpha[1][i];
            kept[i] = m[i] == -SL_ATTN_INF ? 0.0f : __fmul_rn(m[i], a.scale2);
        }
        late = __any_sync(0xFFFFFFFFu, once_more) != 0;
    }

    /* The same where none rises. */
    __device__ __forceinline__ void stay(const bool enough[2][2])
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            bool takes[2];
            take(h, enough[h], takes);
#pragma unroll
            for (int i = 0; i < 2; i++)
                base[h][i] = takes[i] ? kept[i] : SL_ATTN_INF;
        }
    }

    __device__ __forceinline__ void count(const struct sl_attn_work &w, int t,
                                          const struct sl_attn_limit limit[2])
    {
        const struct sl_attn_rows rows = sl_attn_rows_of(a, w, this->row0() + lane / 4);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const bool takes[2] = {base[h][0] != SL_ATTN_INF, base[h][1] != SL_ATTN_INF};
            sl_attn_count(a, rows, t * SL_ATTN_PAIR + h * SL_ATTN_TILE, limit, takes,
                          (mine >> h & 1) != 0);
        }
    }

    /* Which tiles of pair t the warp takes in, and references. begins: a split. */
    __device__ __forceinline__ void decide(const struct sl_attn_work &w, int t,
                                           const struct sl_attn_turn &turn, bool begins,
                                           float (&s)[F][4])
    {
        const struct sl_attn_limit limit[2] = {limits()[0], limits()[8]};
        float top[2][2];
        bool enough[2][2], rise = false;
        this->mask(w, t, s);
        if (begins) {
            this->begin_split();
            kept[0] = kept[1] = 0.0f;
        }
        late = false;
        again[0] = again[1] = 1.0f;
        mine = 0;
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                top[h][i] = top_of(s + h * H, i);
                enough[h][i] = is_enough(top[h][i], limit[i], i);
            }
#pragma unroll
        for (int i = 0; i < 2; i++)
            rise |= (enough[0][i] | enough[1][i]) &
                    sl_attn_is_far(fmaxf(top[0][i], top[1][i]), m[i], a.scale2);
        const bool plain = !rise & enough[0][0] & enough[0][1] & enough[1][0] & enough[1][1];
        if (__all_sync(0xFFFFFFFFu, plain)) {
            rises = false;
            mine = 3;
            base[0][0] = base[1][0] = kept[0];
            base[0][1] = base[1][1] = kept[1];
        } else {
            rises = __any_sync(0xFFFFFFFFu, rise) != 0;
            if (rises)
                raise(limit, top);
            else
                stay(enough);
        }
        if (a.skip_counts != nullptr)
            count(w, t, limit);
        if (lane == 0)
            votes(turn)[warp] = static_cast<uint8_t>(mine | (late ? 4 : 0));
        sl_mbar_arrive_warp(voted(turn));
    }

    /* ---- votes */

    __device__ __forceinline__ uint8_t *votes(const struct sl_attn_turn &turn) const
    {
        return bars.smem + cfg::VOTE_AT + (turn.slot() * cfg::GROUPS + group) * 4;
    }
    __device__ __forceinline__ uint64_t *voted(const struct sl_attn_turn &turn) const
    {
        return reinterpret_cast<uint64_t *>(bars.smem + cfg::VOTED_AT) +
               (turn.slot() * cfg::GROUPS + group);
    }

    /* All warps' votes, cast long before. */
    __device__ __forceinline__ void hear(const struct sl_attn_turn &turn)
    {
        sl_mbar_wait(voted(turn), turn.parity());
        uint32_t all = *reinterpret_cast<const uint32_t *>(votes(turn));
        all |= all >> 16;
        wanted = up::uniform(static_cast<int>((all | all >> 8) & 7));
    }

    /* ---- probabilities */

    template <int T, bool RISES> __device__ __forceinline__ void softmax_rows(float (&s)[F][4])
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum[H / 2];
#pragma unroll
            for (int k = 0; k < H / 2; k++) {
                float *x = &s[T * H + 2 * k][2 * i], *y = &s[T * H + 2 * k + 1][2 * i];
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    x[j] = sl_ex2_approx(__fmaf_rn(x[j], a.scale2, -base[T][i]));
                    y[j] = sl_ex2_approx(__fmaf_rn(y[j], a.scale2, -base[T][i]));
                }
                sum[k] = __fadd_rn(__fadd_rn(x[0], x[1]), __fadd_rn(y[0], y[1]));
            }
            l[i] = __fmaf_rn(l[i], RISES ? alpha_l[T][i] : 1.0f, sl_attn_tree<H / 2>(sum));
        }
    }

    /* Scores of tile T become probabilities, still as floats; of a tile left out nothing does. */
    template <int T> __device__ __forceinline__ void softmax_tile(float (&s)[F][4])
    {
        if ((mine >> T & 1) == 0)
            return;
        if (rises)
            softmax_rows<T, true>(s);
        else
            softmax_rows<T, false>(s);
    }

    /* Zeros for what the warp leaves out and others of the group take in. */
    __device__ __forceinline__ void pack_taken(const float (&s)[F][4], uint32_t (&p)[F / 2][4])
    {
        this->pack(s, p);
        if (mine == 3)
            return;
        asm volatile("" ::: "memory"); /* a branch, not 32 choices */
#pragma unroll
        for (int k = 0; k < H; k++)
            if ((mine >> k / (H / 2) & 1) == 0)
                p[k][0] = p[k][1] = p[k][2] = p[k][3] = 0;
    }

    /* ---- values */

    /* The product of those tiles of the pair, begun. */
    template <int WHICH>
    __device__ __forceinline__ void begin_values(int slot, float (&o)[O][4],
                                                 const uint32_t (&p)[F / 2][4], bool begins)
    {
        auto b = sl_wgmma_bt(this->slot_at(up::uniform(slot)));
        constexpr int FROM = WHICH & 1 ? 0 : H / 2, END = WHICH & 2 ? H : H / 2;
        sl_wgmma_fence();
#pragma unroll
        for (int k = FROM; k < END; k++)
            elem::wgmma_rs_bt(o, p[k], sl_wgmma_b_at(b, k / 4 * cfg::BLOCK + k % 4 * cfg::PART),
                              k > FROM || !begins);
        sl_wgmma_commit();
    }

    /* Beside it the next pair's scores, and the probabilities of the first tile of these. */
    template <int WHICH>
    __device__ __forceinline__ void multiply(const struct sl_attn_work &w, int t, bool ends,
                                             float (&o)[O][4], float (&s)[F][4],
                                             uint32_t (&p)[F / 2][4])
    {
        const struct sl_attn_turn next = {tiles.n + 1};
        const int slot = tiles.values();
        wait(next.keys(), next);
        this->scores(next.keys(), s);
        if (WHICH != 0) {
            wait(slot, tiles);
            begin_values<WHICH>(slot, o, p, fresh);
        }
        sl_wgmma_wait<WHICH != 0 ? 1 : 0>();
        sl_wgmma_keep(s);
        release(next.keys());
        decide(w, t + 1, next, ends, s);
        softmax_tile<0>(s);
        if (WHICH != 0) {
            sl_wgmma_keep(s); /* or the compiler would wait first */
            this->wait_values(o, p);
        } else {
            wait(slot, tiles);
        }
    }

    /* The same of a pair whose second tile has another reference: two products, with the factor
     * between them. */
    __device__ __forceinline__ void multiply_apart(const struct sl_attn_work &w, int t, bool ends,
                                                   float (&o)[O][4], float (&s)[F][4],
                                                   uint32_t (&p)[F / 2][4])
    {
        const struct sl_attn_turn next = {tiles.n + 1};
        const int slot = tiles.values();
        wait(next.keys(), next);
        this->scores(next.keys(), s);
        wait(slot, tiles);
        begin_values<1>(slot, o, p, fresh);
        sl_wgmma_wait<0>();
        sl_wgmma_keep(s);
        sl_wgmma_keep(o);
        scale_late(o);
        begin_values<2>(slot, o, p, false);
        release(next.keys());
        decide(w, t + 1, next, ends, s);
        softmax_tile<0>(s);
        sl_wgmma_keep(s);
        this->wait_values(o, p);
    }

    __device__ __forceinline__ void scale_late(float (&o)[O][4])
    {
        if (!late)
            return;
        this->scale(o, again);
    }

    /* That of an item's last pair. */
    template <int WHICH>
    __device__ __forceinline__ void multiply_last(float (&o)[O][4], uint32_t (&p)[F / 2][4])
    {
        wait(tiles.values(), tiles);
        if (WHICH != 0) {
            begin_values<WHICH>(tiles.values(), o, p, fresh);
            this->wait_values(o, p);
        }
    }

    /* ---- splits */

    __device__ __forceinline__ void end_split(const struct sl_attn_work &w, int t, float (&o)[O][4],
                                              bool more)
    {
        const bool run_ends = !more || sl_attn_begins_run((t + 1) * SL_ATTN_PAIR);
        const bool by_split = w.item.from > 0 && !sl_attn_by_run(w);
        if (fresh && !by_split && !run_ends) /* the state stays what it is */
            return;
        if (fresh) {
#pragma unroll
            for (int n = 0; n < O; n++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    o[n][j] = 0.0f;
        }
        up::end_split(w, t, o, more);
    }

    /* ---- an item */

    __device__ __forceinline__ void first(const struct sl_attn_work &w, int t, float (&s)[F][4],
                                          uint32_t (&p)[F / 2][4])
    {
        wait(tiles.keys(), tiles);
        this->scores(tiles.keys(), s);
        sl_wgmma_wait<0>();
        sl_wgmma_keep(s);
        release(tiles.keys());
        decide(w, t, tiles, true, s);
        softmax_tile<0>(s);
        softmax_tile<1>(s);
        hear(tiles);
        pack_taken(s, p);
    }

    /* The values of pair t, and the probabilities of the next one. */
    __device__ __forceinline__ void step(const struct sl_attn_work &w, int t, float (&o)[O][4],
                                         float (&s)[F][4], uint32_t (&p)[F / 2][4])
    {
        typename up::before before;
        const struct sl_attn_turn next = {tiles.n + 1};
        const int slot = tiles.values();
        const bool ends = sl_attn_last_of_split<SL_ATTN_PAIR>(t, to);
        const bool fails = wanted != 0 && this->is_mixed(t) && this->may_fail(t, o, before);
        if (wanted > 3)
            multiply_apart(w, t, ends, o, s, p);
        else if (wanted == 3)
            multiply<3>(w, t, ends, o, s, p);
        else if (wanted == 2)
            multiply<2>(w, t, ends, o, s, p);
        else if (wanted == 1)
            multiply<1>(w, t, ends, o, s, p);
        else
            multiply<0>(w, t, ends, o, s, p);
        if (fails && this->has_odd(o))
            this->values_again(w, t, slot, o, p, before, wanted);
        release(slot);
        fresh = fresh && wanted == 0;
        softmax_tile<1>(s);
        hear(next);
        pack_taken(s, p);
        if (ends) {
            end_split(w, t, o, true);
        } else if (rises && !fresh) {
            const float alpha[2] = {alpha_o[0], alpha_o[1]};
            this->scale(o, alpha);
        }
        fresh = fresh || ends;
        tiles.n++;
    }

    __device__ __forceinline__ void last(const struct sl_attn_work &w, int t, float (&o)[O][4],
                                         uint32_t (&p)[F / 2][4])
    {
        typename up::before before;
        const int slot = tiles.values();
        const bool fails = wanted != 0 && this->is_mixed(t) && this->may_fail(t, o, before);
        if (wanted > 3) {
            multiply_last<1>(o, p);
            scale_late(o);
            fresh = false;
            multiply_last<2>(o, p);
        } else if (wanted == 3)
            multiply_last<3>(o, p);
        else if (wanted == 2)
            multiply_last<2>(o, p);
        else if (wanted == 1)
            multiply_last<1>(o, p);
        else
            multiply_last<0>(o, p);
        if (fails && this->has_odd(o))
            this->values_again(w, t, slot, o, p, before, wanted);
        release(slot);
        fresh = fresh && wanted == 0;
        tiles.n++;
        this->begin_split();
        end_split(w, t, o, false);
    }

    /* The group has no rows; its barriers go on all the same. */
    __device__ __forceinline__ void idle(int from)
    {
#pragma unroll 1
        for (int t = cfg::AHEAD ? from - 1 : from; t < to; t++, tiles.n++) {
            wait(tiles.keys(), tiles);
            sl_mbar_arrive_warp(voted(tiles));
            release(tiles.keys());
            wait(tiles.values(), tiles);
            release(tiles.values());
        }
    }

    __device__ __forceinline__ void item(const struct sl_attn_work &w)
    {
        int t;
        float o[O][4], s[F][4];
        uint32_t p[F / 2][4];
        sl_attn_tiles_of<SL_ATTN_PAIR>(w, &t, &to);
        if (t >= to) /* a part before all windows: nobody asks for its sums */
            return;
        if (group * 64 >= w.item.n_rows) {
            idle(t);
            return;
        }
        if (cfg::AHEAD) /* a turn without votes */
            sl_mbar_arrive_warp(voted(tiles));
        this->begin_item(w);
        load_limits(w);
#pragma unroll
        for (int n = 0; n < O; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[n][j] = 0.0f;
        fresh = true;
        first(w, t, s, p);
#pragma unroll 1
        for (; t + 1 < to; t++)
            step(w, t, o, s, p);
        last(w, t, o, p);
    }
};

#endif
