/* SPDX-License-Identifier: MIT
 * attention_assign.cuh - a block's items of narrow tiles, which its warps go through apart from
 * each other, and who has which of their splits.
 *
 * Splits are assigned round: each warp has every fourth of the block's, counted on from item to
 * item, so that short sequences, whose splits are no multiple of four, leave no warp without work.
 * Splits that combine do so in the order they were assigned in: their warp waits for a turn, which
 * the split before them passes on, also that of the item before.
 *
 * The warp that has an item's first split loads the item AHEAD after it: it takes its number when
 * the item before that one is here, so that a block's numbers ascend and the first that is none is
 * the end; asks for it a tile later; and puts it into its place after the split. No warp waits for
 * an item but to begin it: one whose loads would run on into an item that is not here yet stops
 * loading, and begins anew when it is.
 *
 * No warp waits for ever. To begin an item, or to load the one after it, it waits for an item
 * that comes with an earlier split, whose warp puts it there before it waits for its turn; for a
 * turn it waits for splits assigned before its own; at the barrier after an item that has slots it
 * waits for warps that are in that item or before it, and the splits of these were assigned before
 * those after the barrier. So of the splits that are not done the one assigned first is never held
 * up by others.
 *
 * A place is used again when nobody reads it: while a warp is at split g, split g - 4 has had its
 * turn, so have those up to g - 7 of the other warps, and these may still be looking for their next
 * split from the item of g - 7 on. An item that combines has a split at least; after others there
 * is a barrier. So readers are at most seven items behind.
 */
#ifndef SL_CUDA_ATTENTION_ASSIGN_CUH
#define SL_CUDA_ATTENTION_ASSIGN_CUH

#include "cuda/attention/attention_tile.cuh"
#include "cuda/ptx_ahead.cuh"

#define SL_ATTN_ASSIGNED 4 /* warps */

/* The item's first split some of whose keys are seen. */
static __device__ __forceinline__ int sl_attn_begin_of(const struct sl_attn_work &w)
{
    return max(w.item.from, sl_attn_split_of(w.key_lo));
}

/* Do its splits combine in turns? Others leave a slot each. */
static __device__ __forceinline__ bool sl_attn_combines(const struct sl_attn_work &w)
{
    return w.item.from == 0 || sl_attn_by_run(w);
}

struct sl_attn_assign {
    static constexpr int PLACES = 16;
    static constexpr int AHEAD = 2; /* the first are each block's own, and here from the start */
    static constexpr int BYTES = PLACES * (static_cast<int>(sizeof(struct sl_attn_work)) + 1);
    static_assert(7 + AHEAD < PLACES, "nobody reads an item whose place is used again");

    const struct sl_attn_args &a;
    struct sl_attn_work *works;
    uint8_t *first_warps; /* who has the first split of the item */
    uint64_t *here;       /* mbarriers: the item AHEAD after place i is in its place */
    int n;                /* items, times key heads */
    int n_known;          /* of the block's, that are known to be here */
    int stage;            /* of what the warp loads, 0: nothing */
    int taken, word;      /* its number, of lane 0; the lane's word of it */

    __device__ __forceinline__ sl_attn_assign(const struct sl_attn_args &args, void *places,
                                              uint64_t *bars)
        : a(args), works(static_cast<struct sl_attn_work *>(places)),
          first_warps(reinterpret_cast<uint8_t *>(works + PLACES)), here(bars), n(0),
          n_known(AHEAD), stage(0), taken(0), word(0)
    {
    }

    static __device__ __forceinline__ unsigned place(int i)
    {
        return static_cast<unsigned>(i) % PLACES;
    }
    __device__ __forceinline__ const struct sl_attn_work &at(int i) const
    {
        return works[place(i)];
    }
    __device__ __forceinline__ int first_warp(int i) const
    {
        return first_warps[place(i)];
    }

    /* The mbarrier of an item that is not one of the first, and the parity of its phase. */
    __device__ __forceinline__ uint64_t *bar(int i) const
    {
        return here + place(i - AHEAD);
    }
    static __device__ __forceinline__ uint32_t parity(int i)
    {
        return static_cast<unsigned>(i - AHEAD) / PLACES & 1;
    }

    /* The first split of item i that a warp has. */
    __device__ __forceinline__ int split_of(int i, int warp) const
    {
        return sl_attn_begin_of(at(i)) + ((warp - first_warp(i)) & (SL_ATTN_ASSIGNED - 1));
    }

    /* Who has the first split after item i? */
    __device__ __forceinline__ int warp_behind(int i) const
    {
        const struct sl_attn_work &w = at(i);
        const int n_splits = max(w.item.to - sl_attn_begin_of(w), 0);
        return (first_warp(i) + (sl_attn_combines(w) ? n_splits : 0)) & (SL_ATTN_ASSIGNED - 1);
    }

    /* One warp loads the first items. */
    __device__ __forceinline__ void begin()
    {
        static_assert(AHEAD == 2, "halves of a warp");
        const int lane = static_cast<int>(threadIdx.x) & 31;
        sl_attn_fetch(a, static_cast<int>(blockIdx.x + (lane < 16 ? 0 : gridDim.x)), n,
                      works + lane / 16, true);
        __syncwarp();
        if (lane == 0) {
            first_warps[0] = 0;
            first_warps[1] = static_cast<uint8_t>(warp_behind(0));
        }
    }

    /* Are there items that no block has from the start? */
    __device__ __forceinline__ bool more() const
    {
        return n > AHEAD * static_cast<int>(gridDim.x);
    }

    /* Begins to load the item AHEAD after item k, if the warp has k's first split. */
    __device__ __forceinline__ void begin_bring(int k, int warp)
    {
        stage = more() && warp == first_warp(k) ? 1 : 0;
        if (stage == 1 && knows(k + AHEAD - 1))
            take(k + AHEAD);
    }

    /* Lane 0 takes a number for item i: n or above, there is none. */
    __device__ __forceinline__ void take(int i)
    {
        taken = n;
        if (threadIdx.x % 32 == 0 && at(i - 1).item.valid)
            taken =
                AHEAD * static_cast<int>(gridDim.x) + static_cast<int>(sl_take_one(&a.cls->taken));
        stage = 2;
    }

    /* Goes on when the number has had time to come. */
    __device__ __forceinline__ void go_on()
    {
        if (stage != 2)
            return;
        word = sl_attn_ask(a, __shfl_sync(0xFFFFFFFFu, taken, 0), n, true);
        stage = 3;
    }

    /* Item k + AHEAD is here. */
    __device__ __forceinline__ void end_bring(int k)
    {
        const int i = k + AHEAD, lane = static_cast<int>(threadIdx.x) & 31;
        if (stage == 0)
            return;
        wait(i - 1);
        if (stage == 1)
            take(i);
        go_on();
        sl_attn_put(a, word, works + place(i), lane < 16);
        if (lane == 0)
            first_warps[place(i)] = static_cast<uint8_t>(warp_behind(i - 1));
        sl_mbar_arrive_warp(bar(i));
        stage = 0;
    }

    __device__ __forceinline__ void wait(int i)
    {
        if (i < n_known)
            return;
        sl_mbar_wait(bar(i), parity(i));
        n_known = i + 1;
    }

    /* Is item i here, as far as the warp knows? The one before it is. */
    __device__ __forceinline__ bool knows(int i)
    {
        if (i >= n_known && more() && __all_sync(0xFFFFFFFFu, sl_mbar_ended(bar(i), parity(i))))
            n_known = i + 1;
        return i < n_known;
    }
};

#endif
