/* SPDX-License-Identifier: MIT
 * attention_wg.cuh - paged attention for tiles of 128 rows (192 for D = 64) by the products of
 * warpgroups: chunks of prompts, heads of 64 and 128 dimensions.
 *
 * What attention_group.cuh loads are pairs of the canonical order's tiles, 128 positions. Scores
 * are products of queries and keys in shared memory, values of those there with probabilities in
 * registers. A warpgroup begins the next pair's scores together with this one's values and finds
 * the scores' references while the values are added. The sums of a split, its scores and its
 * probabilities fill the registers.
 *
 * The two tiles of a pair mostly have one reference, and their values are one product. Where the
 * second tile's is higher in some row, the warp has zeros for that tile in the product, and adds
 * its values after it by mma.sync, with the factor between them: each warp for itself, so that a
 * group need not agree. The sums may show that a value is no number, where a row does not see it
 * or meets it with such zeros: then the warp does the product again by mma.sync, a tile after the
 * other.
 *
 * A pair, 128 keys, is 512 + 512 clk of the tensor cores for 64 rows of D = 128, with about 450
 * instructions a warp and 8,192 exponentials (512 clk) beside them; lab/attention_prefill.cu has
 * the figures, and what was tried.
 *
 * nvcc 13.0, sm_90a: 168 registers at launch, of which D = 128 spills some 60 bytes, none of them
 * in the loop; D = 64 has three warpgroups that multiply, 128 registers at launch, and spills 290.
 */
#ifndef SL_CUDA_ATTENTION_WG_CUH
#define SL_CUDA_ATTENTION_WG_CUH

#include "cuda/attention/attention_group.cuh"

#define SL_ATTN_PAIR (2 * SL_ATTN_TILE) /* keys: two tiles at once, which no split divides */

template <class KV, int D> using sl_attn_wg_cfg = sl_attn_group_cfg<KV, D, SL_ATTN_PAIR>;

template <class KV, int D, class CFG = sl_attn_wg_cfg<KV, D>>
struct sl_attn_wg : sl_attn_group<KV, CFG> {
    typedef sl_attn_group<KV, CFG> up;
    typedef typename up::cfg cfg;
    typedef typename KV::elem elem;
    typedef typename up::frags frags;
    static constexpr int F = SL_ATTN_PAIR / 8; /* fragments of a tile's scores */
    static constexpr int O = D / 8;            /* and of the sums */
    /* Three groups have few registers: what is multiplied gives its own back before references. */
    static constexpr bool WAITS_FIRST = cfg::GROUPS == 3;
    using up::a;
    using up::lane;
    using up::release;
    using up::row0;
    using up::scores;
    using up::slot_at;
    using up::tiles;
    using up::wait;

    int to;                          /* tiles of the item end here */
    bool fresh;                      /* nothing is in the sums yet */
    float m[2], l[2];                /* of the split */
    float base[2][2];                /* what exponents of a pair's tiles are taken from: m's */
    float again[2];                  /* what was summed before the second tile is multiplied with */
    bool late;                       /* that is not 1 in some row of the warp */
    float done_m[2], done_l[2];      /* m and l of the split before */
    typedef uint32_t held[F / 4][4]; /* a late tile's probabilities */

    __device__ __forceinline__ sl_attn_wg(const struct sl_attn_args &args,
                                          const sl_attn_bars<cfg> &barriers, int group_idx)
        : up(args, barriers, group_idx)
    {
        /* base too: a warp whose rows see nothing of their first tile never sets it, and what a
         * register happens to hold may be no number. */
        m[0] = m[1] = l[0] = l[1] = base[1][0] = base[1][1] = 0.0f;
    }

    /* ---- products */

    __device__ __forceinline__ void values(int slot, float (&o)[O][4],
                                           const uint32_t (&p)[F / 2][4])
    {
        auto b = sl_wgmma_bt(slot_at(up::uniform(slot)));
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

    __device__ __forceinline__ void mask(const struct sl_attn_work &w, int t, float (&s)[F][4])
    {
        if (!this->is_masked(t) && a.cap <= 0.0f)
            return;
        const struct sl_attn_rows rows = sl_attn_rows_of(a, w, row0() + lane / 4);
        sl_attn_cap_and_mask(a, w, rows, s, t * SL_ATTN_PAIR, this->is_masked(t), true);
    }

    /* What the exponents of a split's first pair are taken from. A row that sees nothing of the
     * first tile takes the second one's reference for both. */
    __device__ __forceinline__ void refer(const float (&s)[F][4])
    {
        float second[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float first = sl_attn_quad_max(sl_attn_thread_max<F / 2>(s, i));
            second[i] = sl_attn_quad_max(sl_attn_thread_max<F / 2>(s + F / 2, i));
            m[i] = first == -SL_ATTN_INF ? second[i] : first;
            base[0][i] = __fmul_rn(m[i] == -SL_ATTN_INF ? 0.0f : m[i], a.scale2);
        }
        raise_second(second);
    }

    /* The second tile's reference, where it rises above the first one's. */
    __device__ __forceinline__ void raise_second(const float second[2])
    {
        sl_attn_raise(a.scale2, m, second, again, base[1]);
        late = __any_sync(0xFFFFFFFFu, again[0] != 1.0f || again[1] != 1.0f) != 0;
    }

    /* The same of another pair. true: what was summed before is to be multiplied with alpha. The
     * four threads of a row look at its maxima only if one of them has a score that is far above.
     */
    __device__ __forceinline__ bool raise(const float (&s)[F][4], float alpha[2])
    {
        float top[2], second[2];
        bool rise = false;
        late = false;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            top[i] = sl_attn_thread_max<F / 2>(s, i);
            second[i] = sl_attn_thread_max<F / 2>(s + F / 2, i);
            rise = rise || sl_attn_is_far(fmaxf(top[i], second[i]), m[i], a.scale2);
            base[0][i] = base[1][i];
            again[i] = 1.0f;
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
#pragma unroll
        for (int i = 0; i < 2; i++) {
            second[i] = sl_attn_quad_max(second[i]);
            const float first = sl_attn_quad_max(top[i]);
            top[i] = m[i] == -SL_ATTN_INF && first == -SL_ATTN_INF ? second[i] : first;
        }
        sl_attn_raise(a.scale2, m, top, alpha, base[0]);
        raise_second(second);
    }

    /* The reference of tile t's exponents; first: of a split. true: as raise. */
    __device__ __forceinline__ bool refer_or_raise(const struct sl_attn_work &w, int t, bool first,
                                                   float (&s)[F][4], float alpha[2])
    {
        alpha[0] = alpha[1] = 1.0f;
        mask(w, t, s);
        if (!first)
            return raise(s, alpha);
        begin_split();
        refer(s);
        return false;
    }

    /* Scores of one of the thread's two rows become probabilities, still as floats. */
    template <int I> __device__ __forceinline__ void softmax(float (&s)[F][4], const float alpha[2])
    {
        float sum[F / 2];
#pragma unroll
        for (int k = 0; k < F / 2; k++) {
            float *x = &s[2 * k][2 * I], *y = &s[2 * k + 1][2 * I];
            const float from = base[k < F / 4 ? 0 : 1][I];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                x[j] = sl_ex2_approx(__fmaf_rn(x[j], a.scale2, -from));
                y[j] = sl_ex2_approx(__fmaf_rn(y[j], a.scale2, -from));
            }
            sum[k] = __fadd_rn(__fadd_rn(x[0], x[1]), __fadd_rn(y[0], y[1]));
        }
        l[I] = __fmaf_rn(l[I], alpha[I], sl_attn_tree<F / 4>(sum));
        l[I] = __fmaf_rn(l[I], again[I], sl_attn_tree<F / 4>(sum + F / 4));
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

    /* The same, with zeros for a late tile, whose own wait. */
    __device__ __forceinline__ void pack_early(const float (&s)[F][4], uint32_t (&p)[F / 2][4],
                                               held &late_p) const
    {
        pack(s, p);
        if (!late)
            return;
#pragma unroll
        for (int k = 0; k < F / 4; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                late_p[k][i] = p[F / 4 + k][i];
                p[F / 4 + k][i] = 0;
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

    /* ---- values by mma.sync */

    /* What may be needed after a product of values: the sums before it, and what these are
     * multiplied with before the second tile. Memory, not registers, keeps it: it is rare. */
    struct before {
        volatile float o[D / 2], alpha[2];
    };

    /* Before the product of pair t. true: something may have to be done after it. */
    __device__ __forceinline__ bool may_fail(int t, const float (&o)[O][4], struct before &b)
    {
        if (!late && !this->is_mixed(t))
            return false;
#pragma unroll
        for (int i = 0; i < 2; i++)
            b.alpha[i] = again[i];
        if (!fresh) {
#pragma unroll
            for (int i = 0; i < D / 2; i++)
                b.o[i] = o[i / 4][i % 4];
        }
        return true;
    }

    /* After it. apart: its second tile is late. */
    __device__ __forceinline__ void values_behind(const struct sl_attn_work &w, int t, int slot,
                                                  float (&o)[O][4], uint32_t (&p)[F / 2][4],
                                                  const struct before &b, bool apart,
                                                  const held &late_p)
    {
        if (this->has_odd(o)) {
#pragma unroll
            for (int k = 0; k < F / 4; k++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    p[F / 4 + k][i] = apart ? late_p[k][i] : p[F / 4 + k][i];
            values_again(w, t, slot, o, p, b);
        } else if (apart) {
            values_late(slot, o, b, late_p);
        }
    }

    /* A late tile's. The loop keeps its probabilities in memory, and the rare code short. */
    __device__ __forceinline__ void values_late(int slot, float (&o)[O][4], const struct before &b,
                                                const held &late_p)
    {
        const float by[2] = {b.alpha[0], b.alpha[1]};
        const uint8_t *tile = slot_at(slot) + cfg::BLOCK;
        scale(o, by);
#pragma unroll 1
        for (int k = 0; k < F / 4; k++)
            sl_attn_values<frags, D, 1>(o, late_p + k, tile + k * frags::TILE);
        sl_fence_proxy_async();
    }

    /* All of the product once more. which: tiles that it is of, bits 0 and 1. */
    __device__ __forceinline__ void values_again(const struct sl_attn_work &w, int t, int slot,
                                                 float (&o)[O][4], const uint32_t (&p)[F / 2][4],
                                                 const struct before &b, int which = 3)
    {
        const struct sl_attn_rows rows = sl_attn_rows_of(a, w, row0() + lane / 4);
        const bool mixed = this->is_mixed(t);
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o[i / 4][i % 4] = fresh ? 0.0f : b.o[i];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint8_t *tile = slot_at(slot) + h * cfg::BLOCK;
            if (h == 1) {
                const float by[2] = {b.alpha[0], b.alpha[1]};
                scale(o, by);
            }
            if ((which >> h & 1) == 0)
                continue;
            if (mixed)
                sl_attn_values_careful<frags, D, 4>(a, w, rows, o, p + 4 * h, tile,
                                                    t * SL_ATTN_PAIR + h * SL_ATTN_TILE);
            else
                sl_attn_values<frags, D, 4>(o, p + 4 * h, tile);
        }
        sl_fence_proxy_async();
    }

    /* ---- splits */

    /* More splits follow if `more`. */
    __device__ __forceinline__ void end_split(const struct sl_attn_work &w, int t, float (&o)[O][4],
                                              bool more)
    {
        done_l[0] = sl_attn_row_sum(done_l[0]);
        done_l[1] = sl_attn_row_sum(done_l[1]);
        if (w.item.from > 0 && !sl_attn_by_run(w)) {
            this->write_split(w, t, o, done_m, done_l);
            return;
        }
        this->combine(o, done_m, done_l);
        this->keep_state(w, t, o, more);
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

    /* Probabilities of the first tile. */
    __device__ __forceinline__ void first(const struct sl_attn_work &w, int t, float (&s)[F][4],
                                          uint32_t (&p)[F / 2][4], held &late_p)
    {
        float alpha[2];
        wait(tiles.keys(), tiles);
        scores(tiles.keys(), s);
        sl_wgmma_wait<0>();
        sl_wgmma_keep(s);
        release(tiles.keys());
        refer_or_raise(w, t, true, s, alpha);
        softmax<0>(s, alpha);
        softmax<1>(s, alpha);
        pack_early(s, p, late_p);
    }

    /* The values of tile t, and the probabilities of the next one. */
    __device__ __forceinline__ void step(const struct sl_attn_work &w, int t, float (&o)[O][4],
                                         float (&s)[F][4], uint32_t (&p)[F / 2][4], held &late_p)
    {
        struct before before;
        float alpha[2];
        const struct sl_attn_turn next = {tiles.n + 1};
        const int slot = tiles.values();
        const bool ends = sl_attn_last_of_split<SL_ATTN_PAIR>(t, to), apart = late;
        wait(next.keys(), next);
        scores(next.keys(), s);
        const bool fails = may_fail(t, o, before);
        wait(slot, tiles);
        values(slot, o, p);
        sl_wgmma_wait<1>();
        sl_wgmma_keep(s);
        release(next.keys());
        bool rises = false;
        if constexpr (!WAITS_FIRST)
            rises = refer_or_raise(w, t + 1, ends, s, alpha);
        wait_values(o, p);
        if (fails)
            values_behind(w, t, slot, o, p, before, apart, late_p);
        release(slot);
        if constexpr (WAITS_FIRST)
            rises = refer_or_raise(w, t + 1, ends, s, alpha);
        softmax<0>(s, alpha);
        softmax<1>(s, alpha);
        pack_early(s, p, late_p);
        if (ends)
            end_split(w, t, o, true);
        else if (rises)
            scale(o, alpha);
        fresh = ends;
        tiles.n++;
    }

    __device__ __forceinline__ void last(const struct sl_attn_work &w, int t, float (&o)[O][4],
                                         uint32_t (&p)[F / 2][4], held &late_p)
    {
        struct before before;
        const int slot = tiles.values();
        const bool apart = late;
        const bool fails = may_fail(t, o, before);
        wait(slot, tiles);
        values(slot, o, p);
        wait_values(o, p);
        if (fails)
            values_behind(w, t, slot, o, p, before, apart, late_p);
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
        held late_p;
        sl_attn_tiles_of<SL_ATTN_PAIR>(w, &t, &to);
        if (t >= to) /* a part before all windows: nobody asks for its sums */
            return;
        if (up::group * 64 >= w.item.n_rows) {
            this->idle(t, to);
            return;
        }
        this->begin_item(w);
#pragma unroll
        for (int n = 0; n < O; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[n][j] = 0.0f;
        fresh = true;
        first(w, t, s, p, late_p);
#pragma unroll 1
        for (; t + 1 < to; t++)
            step(w, t, o, s, p, late_p);
        last(w, t, o, p, late_p);
    }
};

#endif
