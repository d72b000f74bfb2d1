/* SPDX-License-Identifier: MIT
 * attention_combine.cuh - the last block of a narrow tile combines what its parts have left in
 * slots.
 *
 * One block, while all others have nothing more to do, so what counts is how long it takes: until
 * the first slots are there, the bytes (64 a clock is what a SM gets), and
 * instructions, which run for the first time. Few slots are two batches of sl_attn_combine_batch,
 * which are asked for at once. Of many a thread has four dimensions of a row and 16 slots of these
 * under way, always: a place in its registers is asked for again as soon as it was taken in. What
 * they are multiplied with depends on maxima alone: a warp makes it for 32 slots of a row, a slot
 * each lane, and all threads of the row find it in shared memory. Mostly no slot is far above the
 * first of its run, and then no factor waits for another. They are taken in by eights, which begin
 * where runs do. Where the first slots are is worked out while the parts' stores are on their way.
 *
 * One sequence of 32,768, D = 128, on an H200: 69 slots, 42.1 us in all by batches, 39.7 now (a
 * group of 8, two rounds of threads: 50.7, 44.8). Of 6 slots 6.2 and 6.6, of 10 9.3 and 9.9, of 20
 * 10.6 and 10.0, so that few are combined.
 */
#ifndef SL_CUDA_ATTENTION_COMBINE_CUH
#define SL_CUDA_ATTENTION_COMBINE_CUH

#include "cuda/attention/attention_tile.cuh"

#define SL_ATTN_FEW_SLOTS (2 * SL_ATTN_BATCH) /* besides the first part's */

/* ---------------------------------------------------------------- factors of a row's slots */

/* Of the state before a lane's slot, and of the slot; the reference after it. */
struct sl_attn_factors {
    float a, b, top;
};

/* m: the maximum of a lane's slot, -inf: of none. starts: the lanes whose slot is a state's first;
 * carry: the reference before lane 0. */
static __device__ __forceinline__ struct sl_attn_factors sl_attn_factors_of(float m,
                                                                            unsigned starts,
                                                                            float carry, float c)
{
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int first = 31 - __clz(static_cast<int>(starts & 0xFFFFFFFFu >> (31 - lane)));
    float top = __shfl_sync(0xFFFFFFFFu, m, max(first, 0));
    top = first < 0 ? carry : top;
    float before = top;
    if (__any_sync(0xFFFFFFFFu, sl_attn_is_far(m, top, c))) {
        float at = carry;
#pragma unroll 1
        for (int i = 0; i < 32; i++) {
            const float next = __shfl_sync(0xFFFFFFFFu, m, i);
            at = starts >> i & 1 ? -SL_ATTN_INF : at;
            before = i == lane ? at : before;
            at = sl_attn_is_far(next, at, c) ? next : at;
            top = i == lane ? at : top;
        }
    }
    const float safe = top == -SL_ATTN_INF ? 0.0f : top;
    struct sl_attn_factors f;
    f.a = top > before ? sl_ex2_approx(__fmul_rn(__fadd_rn(before, -safe), c)) : 1.0f;
    f.b = sl_ex2_approx(__fmul_rn(__fadd_rn(m, -safe), c));
    f.top = top;
    return f;
}

/* ---------------------------------------------------------------- many slots */

struct sl_attn_slots {
    int from, to;
};

/* N: times eight rows, at most. */
template <int D, int N, int THREADS> struct sl_attn_combine_many {
    static constexpr int EACH = D / 4; /* threads of a row */
    static constexpr int EIGHT = 8, EIGHTS = 2, TABLE = 32;
    static constexpr int SPAN = THREADS / EACH + (THREADS % EACH > 0 ? 2 : 0);
    static constexpr int ROWS = SPAN < 8 * N ? SPAN : 8 * N; /* of all threads, at a time */
    static constexpr int WARPS = THREADS / 32, MINE = (ROWS + WARPS - 1) / WARPS; /* of a warp */
    static constexpr int BYTES = ROWS * TABLE * 16;
    static_assert(TABLE % (EIGHT * EIGHTS) == 0, "whole rounds");

    const struct sl_attn_args &a;
    const struct sl_attn_work &w;
    /* Of a row's slot: factors of the state before it and of itself, and its sum; last, of each
     * eight slots in turn: 4 the reference after them, 5 that of all runs, 6 and 7 factors of the
     * runs before and of this one, if it ends. */
    float4 *tables;
    int thread, first_row;
    int begin, end;  /* slots of all rows, begin a first of eight */
    int runs_from;   /* the slot from which on each eight are a run */
    int64_t step;    /* rows from slot to slot */
    float2 ml[MINE]; /* of a lane's slot, of the warp's rows */

    __device__ __forceinline__ sl_attn_combine_many(const struct sl_attn_args &args,
                                                    const struct sl_attn_work &work, int of_thread,
                                                    void *smem)
        : a(args), w(work), tables(static_cast<float4 *>(smem)), thread(of_thread), first_row(0)
    {
    }

    __device__ __forceinline__ void find()
    {
        begin = first_slot(w.key_lo);
        end = slots_to(w.item.n_splits);
        runs_from = sl_attn_by_run(w) ? 1 << 30 : 1 + SL_ATTN_FAR_SPLITS - w.item.first;
        begin -= (begin - runs_from) & (EIGHT - 1);
        step = static_cast<int64_t>(w.item.n_rows) * a.n_kv_heads;
    }

    __device__ __forceinline__ int row_of(int i) const
    {
        return first_row + (thread >> 5) + i * WARPS;
    }
    __device__ __forceinline__ bool has(int i) const
    {
        return row_of(i) < min(first_row + ROWS, w.item.n_rows);
    }
    /* The slot of the key, and the slots of the splits up to `to`. */
    __device__ __forceinline__ int first_slot(int key) const
    {
        const int split = key > 0 ? sl_attn_split_of(key) : 0;
        return split < w.item.first ? 0 : sl_attn_split_slot(w, split);
    }
    __device__ __forceinline__ int slots_to(int to) const
    {
        return to > w.item.first ? sl_attn_split_slot(w, to - 1) + 1 : 1;
    }
    /* Those that a row sees something of: mostly all. */
    __device__ __forceinline__ struct sl_attn_slots seen(int row) const
    {
        struct sl_attn_slots s = {0, end};
        if (a.window == 0 && w.all_hi == w.key_hi)
            return s;
        const int pos = w.item.pos + sl_attn_token(a, w, row);
        s.from = first_slot(sl_attn_seen_from(a, pos));
        s.to = slots_to(min(w.item.n_splits, sl_attn_split_of(sl_attn_seen_to(a, w, pos) - 1) + 1));
        return s;
    }
    __device__ __forceinline__ bool ends_run(int to) const
    {
        return to >= runs_from || to >= end;
    }

    /* The lane's maximum and sum of the 32 slots from `at` on. */
    __device__ __forceinline__ void load_ml(int at)
    {
        const int slot = at + (thread & 31);
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            ml[i] = make_float2(-SL_ATTN_INF, 0.0f);
            if (!has(i))
                continue;
            const struct sl_attn_slots s = seen(row_of(i));
            if (slot >= s.from && slot < s.to)
                ml[i] = __ldcg(a.slot_ml + sl_attn_slot(a, w, slot) + row_of(i));
        }
    }

    /* Makes the warp's tables of these slots: factors of slots by their maxima, then those of the
     * runs that end here, each in the last lane of eight. */
    __device__ __forceinline__ void make_tables(int at)
    {
        const int lane = thread & 31, slot = at + lane;
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            if (!has(i))
                continue;
            float4 *table = tables + (row_of(i) - first_row) * TABLE;
            const float run = at == begin ? -SL_ATTN_INF : table[TABLE - 4].w;
            const float all = at == begin ? -SL_ATTN_INF : table[TABLE - 3].w;
            const unsigned starts =
                __ballot_sync(0xFFFFFFFFu, (lane % EIGHT == 0 && slot >= runs_from) ||
                                               slot == seen(row_of(i)).from);
            const struct sl_attn_factors f = sl_attn_factors_of(ml[i].x, starts, run, a.scale2);
            const bool last = lane % EIGHT == EIGHT - 1 && ends_run(slot + 1);
            const float top = last ? f.top : -SL_ATTN_INF;
            const unsigned tops = __ballot_sync(0xFFFFFFFFu, top > -SL_ATTN_INF);
            const struct sl_attn_factors r =
                sl_attn_factors_of(top, all == -SL_ATTN_INF ? tops & -tops : 0, all, a.scale2);
            const float after = __shfl_sync(0xFFFFFFFFu, f.top, lane | 7);
            const float after_all = __shfl_sync(0xFFFFFFFFu, r.top, lane | 7);
            const float ra = __shfl_sync(0xFFFFFFFFu, r.a, lane | 7);
            const float x = lane & 1 ? after_all : after, y = lane & 1 ? r.b : ra;
            __syncwarp(); /* all lanes have read what the last table says */
            table[lane] = make_float4(f.a, f.b, ml[i].y, lane & 2 ? y : x);
        }
    }

    /* Four dimensions of a state, and its sum. */
    struct sum {
        float4 o;
        float l;

        __device__ __forceinline__ void clear()
        {
            o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            l = 0.0f;
        }
        __device__ __forceinline__ void combine(float by, float of, const float4 &o_in, float l_in)
        {
            const struct sl_attn_combine j = {0.0f, by, of};
            o.x = sl_attn_combined(j, o.x, o_in.x);
            o.y = sl_attn_combined(j, o.y, o_in.y);
            o.z = sl_attn_combined(j, o.z, o_in.z);
            o.w = sl_attn_combined(j, o.w, o_in.w);
            l = sl_attn_combined(j, l, l_in);
        }
    };

    /* Rows from first_row on: four dimensions of one of them to the output. */
    __device__ __forceinline__ void rows(int unit)
    {
        const int row = unit / EACH, d = unit % EACH * 4;
        const bool mine = row < w.item.n_rows;
        struct sl_attn_slots s = {0, 0};
        if (mine)
            s = seen(row);
        const float *from = a.slots + (sl_attn_slot(a, w, begin) + row) * D + d;
        const float4 *table = tables + (mine ? row - first_row : 0) * TABLE;
        int next = begin; /* slot to ask for */
        float4 o[EIGHTS][EIGHT];
        auto load = [&](float4(&to)[EIGHT]) {
#pragma unroll
            for (int i = 0; i < EIGHT; i++, next++, from += step * D) {
                to[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (next >= s.from && next < s.to)
                    to[i] = __ldcg(reinterpret_cast<const float4 *>(from));
            }
        };
        struct sum run, all;
        run.clear();
        all.clear();
        load_ml(begin);
#pragma unroll
        for (int q = 0; q < EIGHTS; q++)
            load(o[q]);
        float top = 0.0f;
        int at = begin;
#pragma unroll 1
        for (int t = 0; at < end; t = (t + EIGHT * EIGHTS) % TABLE) {
            if (t == 0) {
                sl_bar_sync(1, THREADS); /* all have read the last ones */
                make_tables(at);
                sl_bar_sync(1, THREADS);
                load_ml(at + TABLE);
            }
#pragma unroll
            for (int q = 0; q < EIGHTS; q++, at += EIGHT) {
                const float4 *f = table + t + q * EIGHT;
                if (at >= end)
                    break;
#pragma unroll
                for (int i = 0; i < EIGHT; i++)
                    run.combine(f[i].x, f[i].y, o[q][i], f[i].z);
                if (ends_run(at + EIGHT)) {
                    all.combine(f[6].w, f[7].w, run.o, run.l);
                    run.clear();
                    top = f[5].w;
                }
                load(o[q]);
            }
        }
        if (!mine)
            return;
        struct sl_attn_out out = sl_attn_out_of(a, w, row);
        const float f = sl_attn_inverse(a, top, all.l, out.head);
        sl_attn_write2(a, out.to, d, all.o.x, all.o.y, f);
        sl_attn_write2(a, out.to, d + 2, all.o.z, all.o.w, f);
    }

    __device__ __forceinline__ void go()
    {
#pragma unroll 1
        for (int u = 0; u < w.item.n_rows * EACH; u += THREADS) {
            first_row = u / EACH;
            rows(u + thread);
        }
    }
};

/* ---------------------------------------------------------------- the end of a part */

static __device__ __forceinline__ bool sl_attn_many_slots(const struct sl_attn_work &w)
{
    const int splits = w.item.n_splits - w.item.first;
    return splits > SL_ATTN_FEW_SLOTS * (sl_attn_by_run(w) ? SL_ATTN_RUN_SPLITS : 1);
}

/* The threads' part of a narrow tile is in its slots. The last part to come combines all. No block
 * waits for another. thread: of those that work on the item, who share barrier 1. flag: a word of
 * shared memory; smem: room for the combine. */
template <int D, int N, int THREADS>
static __device__ __forceinline__ void sl_attn_arrive(const struct sl_attn_args &a,
                                                      const struct sl_attn_work &w, int thread,
                                                      int *flag, void *smem)
{
    struct sl_attn_combine_many<D, N, THREADS> x(a, w, thread, smem);
    const bool many = sl_attn_many_slots(w);
    if (many)
        x.find();
    sl_fence_gpu();
    sl_bar_sync(1, THREADS);
    if (thread == 0) {
        uint32_t *counter = a.counters + w.item.counter_at * a.n_kv_heads + w.item.kv;
        *flag = atomicAdd(counter, 1u) + 1 == static_cast<uint32_t>(w.item.n_parts);
        if (*flag)
            *counter = 0; /* for the next layer */
        sl_fence_gpu();
    }
    sl_bar_sync(1, THREADS);
    if (*flag == 0)
        return;
    if (many) {
        x.go();
        return;
    }
#pragma unroll 1
    for (int u = thread; u < w.item.n_rows * (D / 4); u += THREADS) {
        struct sl_attn_combine_batch f = {a, 0, 0, 0, 0, 0, D, false, {}, {}};
        f.go(w, u / (D / 4), u % (D / 4) * 4);
    }
}

#endif
