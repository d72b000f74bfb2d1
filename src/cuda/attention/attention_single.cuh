/* SPDX-License-Identifier: MIT
 * attention_single.cuh - paged attention by the products of warpgroups, one tile of 64 keys at a
 * time: chunks of prompts with heads of 256 dimensions, in tiles of 128 rows, and decodes with
 * drafts behind them, 17 to 64 rows of heads of 64, 128 or 256 dimensions.
 *
 * As attention_wg.cuh, but the sums of 256 dimensions take 128 registers, a tile's scores 32, its
 * probabilities 16. Scores are begun together with the values of the tile before, and become
 * probabilities while these are added.
 *
 * Up to 64 rows are bound by memory. A tile of 64 keys of D = 128, F16, is 32 KiB: a share of 1,640
 * clk of an SM's bandwidth (H200). One group's products take 512 clk, its exponentials 256, so that
 * two blocks of an SM, which do not wait for each other, take some 700 to 850 clk a tile. In flight
 * are up to 64 KiB of each block; 28 KiB an SM are needed. Pages of FP8 take half the bandwidth's
 * time, and two warps of a block dequantise. nvcc 13.0, sm_90a: no spills, of 256 dimensions 32
 * bytes, of FP8 136.
 *
 * 256 dimensions, 128 rows: shared memory has room for a quarter of the state over splits; the rest
 * is in the workspace, which stays in L2, and what a split's end waits for. TFLOP/s at 2,048 and
 * 8,192 queries and of 512 after 131,072 (H200, 32 heads over 8): 314, 431, 537; with all of the
 * state in L2, eight loads at a time, 302, 405, 490; without combines, which is wrong, 474, 603,
 * 659. mma.sync had 61, 85 and 94.
 */
#ifndef SL_CUDA_ATTENTION_SINGLE_CUH
#define SL_CUDA_ATTENTION_SINGLE_CUH

#include "cuda/attention/attention_group.cuh"

/* GROUPS: of 64 rows. */
template <class KV, int D, int GROUPS>
struct sl_attn_single : sl_attn_group<KV, sl_attn_group_cfg<KV, D, SL_ATTN_TILE, GROUPS>> {
    typedef sl_attn_group<KV, sl_attn_group_cfg<KV, D, SL_ATTN_TILE, GROUPS>> up;
    typedef typename up::cfg cfg;
    typedef typename KV::elem elem;
    typedef typename up::frags frags;
    static constexpr int F = SL_ATTN_TILE / 8;        /* fragments of a tile's scores */
    static constexpr int O = D / 8;                   /* and of the sums, which are those of so */
    static constexpr int PRODUCTS = D == 256 ? 2 : 1; /* many products */
    static constexpr int EACH = O / PRODUCTS;
    using up::a;
    using up::release;
    using up::scores;
    using up::tiles;
    using up::wait;

    int to;                     /* tiles of the item end here */
    bool fresh;                 /* nothing is in the sums yet */
    float m[2], l[2];           /* of the split */
    float base[2];              /* what exponents are taken from: m's */
    float done_m[2], done_l[2]; /* m and l of the split before */

    __device__ __forceinline__ sl_attn_single(const struct sl_attn_args &args,
                                              const sl_attn_bars<cfg> &barriers, int group_idx)
        : up(args, barriers, group_idx)
    {
        /* base too: a warp whose rows see nothing of their first tile never sets it. */
        m[0] = m[1] = l[0] = l[1] = base[0] = base[1] = 0.0f;
    }

    /* ---- products */

    __device__ __forceinline__ void values(int slot, float (&o)[PRODUCTS][EACH][4],
                                           const uint32_t (&p)[F / 2][4])
    {
        auto b = sl_wgmma_bt(this->slot_at(up::uniform(slot)));
        sl_wgmma_fence();
#pragma unroll
        for (int k = 0; k < F / 2; k++)
#pragma unroll
            for (int h = 0; h < PRODUCTS; h++)
                elem::wgmma_rs_bt(o[h], p[k],
                                  sl_wgmma_b_at(b, h * (cfg::BLOCK / 2) + k * cfg::PART),
                                  k > 0 || !fresh);
        sl_wgmma_commit();
    }

    __device__ __forceinline__ void wait_values(float (&o)[PRODUCTS][EACH][4],
                                                uint32_t (&p)[F / 2][4])
    {
        sl_wgmma_wait<0>();
#pragma unroll
        for (int h = 0; h < PRODUCTS; h++)
            sl_wgmma_keep(o[h]);
        sl_wgmma_keep(p);
    }

    /* The sums as one row of fragments. */
    static __device__ __forceinline__ float (&all(float (&o)[PRODUCTS][EACH][4]))[O][4]
    {
        return reinterpret_cast<float(&)[O][4]>(o);
    }

    /* ---- probabilities */

    /* Masks scores and finds what their exponents are taken from. true: what was summed before is
     * to be multiplied with alpha. */
    __device__ __forceinline__ bool raise(const struct sl_attn_work &w, int t, float (&s)[F][4],
                                          float alpha[2])
    {
        if (this->is_masked(t) || a.cap > 0.0f) {
            const struct sl_attn_rows rows = sl_attn_rows_of(a, w, this->row0() + up::lane / 4);
            sl_attn_cap_and_mask(a, w, rows, s, t * SL_ATTN_TILE, this->is_masked(t), true);
        }
        float top[2];
        bool rise = false;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            top[i] = sl_attn_thread_max<F>(s, i);
            rise = rise || sl_attn_is_far(top[i], m[i], a.scale2);
            alpha[i] = 1.0f;
        }
        if (!__any_sync(0xFFFFFFFFu, rise))
            return false;
        top[0] = sl_attn_quad_max(top[0]);
        top[1] = sl_attn_quad_max(top[1]);
        sl_attn_raise(a.scale2, m, top, alpha, base);
        return true;
    }

    /* Scores become probabilities, still as floats. */
    __device__ __forceinline__ void softmax(float (&s)[F][4], const float alpha[2])
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum[F / 2];
#pragma unroll
            for (int k = 0; k < F / 2; k++) {
                float *x = &s[2 * k][2 * i], *y = &s[2 * k + 1][2 * i];
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    x[j] = sl_ex2_approx(__fmaf_rn(x[j], a.scale2, -base[i]));
                    y[j] = sl_ex2_approx(__fmaf_rn(y[j], a.scale2, -base[i]));
                }
                sum[k] = __fadd_rn(__fadd_rn(x[0], x[1]), __fadd_rn(y[0], y[1]));
            }
            l[i] = __fmaf_rn(l[i], alpha[i], sl_attn_tree<F / 2>(sum));
        }
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

    static __device__ __forceinline__ void scale(float (&o)[PRODUCTS][EACH][4],
                                                 const float alpha[2])
    {
#pragma unroll
        for (int n = 0; n < O; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[n / EACH][n % EACH][j] = __fmul_rn(o[n / EACH][n % EACH][j], alpha[j >> 1]);
    }

    /* ---- values that are no numbers */

    /* The sums before a product that may have to be done again, in memory. */
    __device__ __forceinline__ void save(float (&o)[PRODUCTS][EACH][4], volatile float *saved)
    {
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            saved[i] = fresh ? 0.0f : all(o)[i / 4][i % 4];
    }

    __device__ __forceinline__ void values_careful(const struct sl_attn_work &w, int t, int slot,
                                                   float (&o)[PRODUCTS][EACH][4],
                                                   const uint32_t (&p)[F / 2][4],
                                                   const volatile float *saved)
    {
        const struct sl_attn_rows rows = sl_attn_rows_of(a, w, this->row0() + up::lane / 4);
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            all(o)[i / 4][i % 4] = saved[i];
        sl_attn_values_careful<frags, D, F / 2>(a, w, rows, all(o), p, this->slot_at(slot),
                                                t * SL_ATTN_TILE);
        sl_fence_proxy_async();
    }

    /* ---- splits */

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

    /* ---- an item */

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
        softmax(s, alpha);
        pack(s, p);
    }

    /* The values of tile t, and the probabilities of the next one. */
    __device__ __forceinline__ void step(const struct sl_attn_work &w, int t,
                                         float (&o)[PRODUCTS][EACH][4], float (&s)[F][4],
                                         uint32_t (&p)[F / 2][4])
    {
        volatile float saved[D / 2];
        float alpha[2];
        const struct sl_attn_turn next = {tiles.n + 1};
        const int slot = tiles.values();
        const bool fails = this->is_mixed(t);
        if (fails)
            save(o, saved);
        const bool ends = sl_attn_last_of_split(t, to);
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
        softmax(s, alpha);
        sl_wgmma_keep(s); /* or the compiler would wait first */
        wait_values(o, p);
        if (fails && this->has_odd(all(o)))
            values_careful(w, t, slot, o, p, saved);
        release(slot);
        pack(s, p);
        if (ends)
            end_split(w, t, all(o), true);
        else if (rises)
            scale(o, alpha);
        fresh = ends;
        tiles.n++;
    }

    __device__ __forceinline__ void last(const struct sl_attn_work &w, int t,
                                         float (&o)[PRODUCTS][EACH][4], uint32_t (&p)[F / 2][4])
    {
        volatile float saved[D / 2];
        const int slot = tiles.values();
        const bool fails = this->is_mixed(t);
        if (fails)
            save(o, saved);
        wait(slot, tiles);
        values(slot, o, p);
        wait_values(o, p);
        if (fails && this->has_odd(all(o)))
            values_careful(w, t, slot, o, p, saved);
        release(slot);
        tiles.n++;
        begin_split();
        end_split(w, t, all(o), false);
    }

    __device__ __forceinline__ void item(const struct sl_attn_work &w)
    {
        int t;
        float o[PRODUCTS][EACH][4], s[F][4];
        uint32_t p[F / 2][4];
        sl_attn_tiles_of(w, &t, &to);
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
                o[n / EACH][n % EACH][j] = 0.0f;
        fresh = true;
        begin_split();
        first(w, t, s, p);
#pragma unroll 1
        for (; t + 1 < to; t++)
            step(w, t, o, s, p);
        last(w, t, o, p);
    }
};

#endif
