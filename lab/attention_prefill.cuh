/* SPDX-License-Identifier: MIT
 * attention_prefill.cuh - the versions of attention_prefill.cu beside that of src/cuda.
 */
#ifndef SL_LAB_ATTENTION_PREFILL_CUH
#define SL_LAB_ATTENTION_PREFILL_CUH

#include "cuda/attention_wg.cuh"
#include "cuda/attention_wide.cuh"

static __device__ __forceinline__ void lab_take(int group)
{
#ifndef SL_CUDA_SIM
    asm volatile("bar.sync %0, 256;" ::"r"(4 + group) : "memory");
#endif
}

static __device__ __forceinline__ void lab_pass(int group)
{
#ifndef SL_CUDA_SIM
    asm volatile("bar.arrive %0, 256;" ::"r"(5 - group) : "memory");
#endif
}

/* Scores, probabilities and values of a tile one after the other, so that registers have room for
 * the state. TURNS: the warpgroups take turns at the tensor cores. */
template <class KV, int D, bool TURNS> struct lab_plain : sl_attn_wg<KV, D> {
    typedef sl_attn_wg<KV, D> up;
    typedef typename up::cfg cfg;
    static constexpr int F = up::F, O = up::O;
    using up::a;
    using up::done_l;
    using up::done_m;
    using up::fresh;
    using up::group;
    using up::state_l;
    using up::state_m;
    using up::tiles;
    using up::to;

    __device__ __forceinline__ lab_plain(const struct sl_attn_args &args,
                                         const sl_attn_wg_bars<cfg> &barriers, int group_idx)
        : up(args, barriers, group_idx)
    {
    }

    __device__ __forceinline__ void take()
    {
        if (TURNS)
            lab_take(group);
    }
    __device__ __forceinline__ void pass()
    {
        if (TURNS)
            lab_pass(group);
    }

    __device__ __forceinline__ void finish_split(const struct sl_attn_work &w, int t,
                                                 const float (&o)[O][4], float (&state)[O][4])
    {
        this->begin_split();
        done_l[0] = sl_attn_row_sum(done_l[0]);
        done_l[1] = sl_attn_row_sum(done_l[1]);
        if (w.item.from > 0) {
            int slot = sl_attn_split_slot(w, sl_attn_split_of(t * SL_ATTN_PAIR));
            sl_attn_write_slot<D>(a, w, this->row0(), slot, o, done_m, done_l);
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
            const float alpha[2] = {j[0].a, j[1].a};
            this->scale(state, alpha);
        }
#pragma unroll
        for (int n = 0; n < O; n++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                state[n][k] = __fmaf_rn(o[n][k], j[k >> 1].b, state[n][k]);
    }

    __device__ __forceinline__ void tile(const struct sl_attn_work &w, int t, float (&o)[O][4],
                                         float (&state)[O][4])
    {
        volatile float saved[D / 2], second[2] = {1.0f, 1.0f};
        float alpha[2], s[F][4];
        uint32_t p[F / 2][4];
        const int slot = tiles.values();
        this->wait(tiles.keys(), tiles);
        take();
        this->scores(tiles.keys(), s);
        pass();
        sl_wgmma_wait<0>();
        sl_wgmma_keep(s);
        this->release(tiles.keys());
        if (this->raise(w, t, s, alpha) && !fresh)
            this->scale(o, alpha);
        this->template soften<0>(s, alpha);
        this->template soften<1>(s, alpha);
        this->pack(s, p);
        const bool careful = this->is_unclean(w, t, slot), apart = careful || this->late;
        if (apart)
            this->save(o, saved);
        if (this->late)
            second[0] = this->late_alpha[0], second[1] = this->late_alpha[1];
        this->wait(slot, tiles);
        take();
        this->values(slot, o, p);
        pass();
        this->wait_values(o, p);
        if (apart)
            this->values_apart(w, t, slot, o, p, saved, careful, second);
        this->release(slot);
        tiles.n++;
        fresh = sl_attn_last_of_split<SL_ATTN_PAIR>(t, to);
        if (fresh)
            finish_split(w, t, o, state);
    }

    __device__ __forceinline__ void idle(int from)
    {
#pragma unroll 1
        for (int t = from; t < to; t++, tiles.n++) {
            take();
            pass();
            this->wait(tiles.keys(), tiles);
            this->release(tiles.keys());
            take();
            pass();
            this->wait(tiles.values(), tiles);
            this->release(tiles.values());
        }
    }

    __device__ __forceinline__ void item(const struct sl_attn_work &w)
    {
        int t;
        float o[O][4], state[O][4];
        sl_attn_tiles_of<SL_ATTN_PAIR>(w, &t, &to);
        this->left = (w.all_lo + SL_ATTN_PAIR - 1) / SL_ATTN_PAIR;
        this->right = w.all_hi / SL_ATTN_PAIR;
        this->differ = w.all_hi != w.key_hi;
        if (t >= to)
            return;
        if (group * 64 >= w.item.n_rows) {
            idle(t);
            return;
        }
        this->load_queries(w);
#pragma unroll
        for (int n = 0; n < O; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[n][j] = state[n][j] = 0.0f;
        fresh = true;
        this->begin_split();
        state_m[0] = state_m[1] = -SL_ATTN_INF;
        state_l[0] = state_l[1] = 0.0f;
#pragma unroll 1
        for (; t < to; t++)
            tile(w, t, o, state);
        if (w.item.from > 0)
            return;
        if (w.item.rows_at < 0)
            sl_attn_write_out<D>(a, w, this->row0(), state, state_m, state_l);
        else
            sl_attn_write_slot<D>(a, w, this->row0(), 0, state, state_m, state_l);
    }

    __device__ __forceinline__ void run()
    {
        struct sl_attn_turn items = {0};
        this->m[0] = this->m[1] = this->l[0] = this->l[1] = 0.0f;
        this->base[0] = this->base[1] = 0.0f;
        if (group == 1)
            pass();
        for (;; items.n++) {
            const struct sl_attn_work &w = *this->bars.work(items.slot());
            sl_mbar_wait(this->bars.work_full(items.slot()), items.parity());
            if (!w.item.valid)
                return;
            item(w);
            if (w.item.rows_at >= 0) {
                sl_fence_gpu();
                sl_attn_arrive<D, cfg::WORKERS>(
                    a, w, static_cast<int>(threadIdx.x) - 128,
                    reinterpret_cast<int *>(this->bars.smem + cfg::FLAG_AT));
            }
            sl_mbar_arrive_warp(this->bars.work_empty(items.slot()));
        }
    }
};

/* ---------------------------------------------------------------- the kernel */

template <class Way>
static __global__ void __launch_bounds__((Way::cfg::THREADS), 1)
    lab_attn_kernel(const __grid_constant__ struct sl_attn_args a)
{
    typedef typename Way::cfg cfg;
    SL_SMEM(uint8_t, smem);
    const sl_attn_wg_bars<cfg> bars = {smem};
    sl_grid_launch_dependents();
    if (threadIdx.x == 0)
        bars.init();
    __syncthreads();
    sl_grid_wait();
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
        Way x(a, bars, group - 1);
        x.run();
    }
}

template <class Way>
static void lab_attn_launch(struct sl_cuda *cu, const struct sl_attn_args *a, int32_t grid)
{
    typedef typename Way::cfg cfg;
    sl_launch(cu, lab_attn_kernel<Way>, dim3(static_cast<unsigned>(grid)), dim3(cfg::THREADS),
              cfg::BYTES, *a);
}

#endif
