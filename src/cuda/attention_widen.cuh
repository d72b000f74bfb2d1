/* SPDX-License-Identifier: MIT
 * attention_widen.cuh - pages of FP8 for the kernels of attention_group.cuh: four warps bring page
 * tiles and make them BF16 where the tensor cores read them, without rounding.
 *
 * Shared memory has no room besides the slots. So the codes of 16 positions are copied to where the
 * last of their own numbers will lie, and a warp takes them from there into registers, in portions
 * none of whose results is on codes still to be read. Each warp has its own 16 positions of every
 * slot, from the copy to the numbers, and waits for no other.
 *
 * The order is that in which slots become free: keys are wanted a tile before values. Between two
 * slots that it widens a warp looks which are free and begins copies into them, three slots ahead
 * at most; only for its next one does it wait.
 *
 * TFLOP/s at 512, 2,048, 8,192, 16 x 512, 512 behind 131,072 (H200, 32 heads over 8), and those of
 * pages of F16: d 128 100, 263, 364, 169, 398 of 113, 335, 499, 167, 520; d 64 54, 200, 293, 124,
 * 285 of 59, 222, 334, 126, 340; d 256 107, 250, 347, 156, 403 of 131, 316, 406, 169, 517. mma.sync
 * had 38, 84, 111, 47, 115 of d 128. A warp's own time binds: 2,480 clk a slot of d 128 (behind
 * 131,072, of the version before), of which 1,313 are for the numbers and 402 until codes are
 * there, where one is wanted each 1,700.
 */
#ifndef SL_CUDA_ATTENTION_WIDEN_CUH
#define SL_CUDA_ATTENTION_WIDEN_CUH

#include "cuda/attention_group.cuh"

/* A place in the order of slots: keys 0, keys 1, values 0, keys 2, values 1 ... of each item. */
template <class cfg> struct sl_attn_place {
    struct sl_attn_turn items; /* of the item; the first one has not begun */
    int key_tile, value_tile;  /* of the item, the next ones, which end at: */
    int to;                    /* tiles */
    uint32_t before;           /* tiles of all items are ahead of the item's by this */
    int lo, hi;                /* keys of the item that somebody sees */

    __device__ __forceinline__ bool at_end() const
    {
        return value_tile == to;
    }
    __device__ __forceinline__ bool keys() const
    {
        return key_tile < to && key_tile - value_tile < 2;
    }
    __device__ __forceinline__ void enter(const struct sl_attn_work &w)
    {
        int from = 0;
        before += static_cast<uint32_t>(to);
        to = 0;
        if (w.item.valid)
            sl_attn_tiles_of<cfg::KEYS>(w, &from, &to);
        to = max(from, to);
        before -= static_cast<uint32_t>(from);
        key_tile = value_tile = from;
        lo = max(w.key_lo, from * cfg::KEYS);
        hi = min(w.key_hi, to * cfg::KEYS);
        items.n++;
    }
};

/* One of them. */
template <class cfg> struct sl_attn_stop {
    bool keys;
    int tile, slot;
    uint32_t parity;

    __device__ __forceinline__ explicit sl_attn_stop(const struct sl_attn_place<cfg> &p)
    {
        keys = p.keys();
        tile = keys ? p.key_tile : p.value_tile;
        const struct sl_attn_turn turn = {p.before + static_cast<uint32_t>(tile)};
        slot = turn.keys() + (keys ? 0 : 1);
        parity = turn.parity();
    }
    __device__ __forceinline__ void pass(struct sl_attn_place<cfg> &p) const
    {
        p.key_tile += keys ? 1 : 0;
        p.value_tile += keys ? 0 : 1;
    }
};

template <class KV, class cfg> struct sl_attn_widen {
    static constexpr int D = cfg::D;
    static constexpr int UNITS = cfg::KEYS / SL_KV_TILE;     /* page tiles of a slot */
    static constexpr int MINE = UNITS / cfg::WIDENERS;       /* of them, a warp's */
    static constexpr int CODES = SL_KV_TILE * D;             /* bytes of one */
    static constexpr int KNOWN = 32 * cfg::WIDENERS / UNITS; /* tiles whose pages are known */
    static constexpr int HALF = D == 64 ? 512 : 1024;        /* bytes of codes of eight rows */
    typedef sl_attn_stop<cfg> stop;

    const struct sl_attn_args &a;
    sl_attn_bars<cfg> bars;
    struct sl_attn_place<cfg> put, take; /* what is brought next, and widened */
    int n_ahead;                         /* slots brought, and not yet widened */
    int n_items, warp, lane;
    bool ended; /* no item is left to bring */
    uint32_t taken;
    int code_at, number_at; /* the lane's first pieces, in codes of a panel and in a part */
    /* Lane i: where the warp's i-th page tile from tile `first` on lies in a plane. */
    unsigned long long at;
    int first;

    __device__ __forceinline__ sl_attn_widen(const struct sl_attn_args &args,
                                             const sl_attn_bars<cfg> &barriers)
        : a(args), bars(barriers), n_ahead(0), ended(false), taken(0), at(0), first(0)
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 32), 0);
        put = take = {{0xFFFFFFFFu}, 0, 0, 0, 0, 0, 0};
        code_at = sl_kv_piece(D == 64 ? 64 : 128, lane % 8, lane / 8);
        number_at = sl_kv_piece(128, lane % 8, lane / 8 * 2);
    }

    /* Where the codes of a panel and its neighbour, from an even one on, lie in a slot: together
     * codes fill the second half of what their numbers will. */
    static __device__ __forceinline__ int codes_at(const stop &s, int unit, int panel)
    {
        if constexpr (D == 64)
            return s.slot * cfg::SLOT + cfg::part_at(s.keys, unit, 0) + CODES;
        return s.slot * cfg::SLOT + cfg::part_at(s.keys, unit, (cfg::PANELS + panel) / 2);
    }
    __device__ __forceinline__ uint16_t *scales_of(const stop &s, int unit) const
    {
        return reinterpret_cast<uint16_t *>(bars.smem + cfg::SCALES_AT) + s.slot * cfg::KEYS +
               unit * SL_KV_TILE;
    }

    /* ---- copies */

    /* The phase has ended; false: not yet, and it is not waited for. */
    __device__ __forceinline__ bool pass(uint64_t *bar, uint32_t parity, bool wait) const
    {
        if (!wait)
            return __all_sync(0xFFFFFFFFu, sl_mbar_ended(bar, parity)) != 0;
        sl_mbar_wait(bar, parity);
        return true;
    }

    /* The next item, which the first warp takes for all. */
    __device__ __forceinline__ bool begin_item(bool wait)
    {
        const struct sl_attn_turn next = {put.items.n + 1};
        struct sl_attn_work &w = *bars.work(next.slot());
        if (warp > 0) {
            if (!pass(bars.work_full(next.slot()), next.parity(), wait))
                return false;
        } else {
            if (!pass(bars.work_empty(next.slot()), next.parity() ^ 1, wait))
                return false;
            const int i = static_cast<int>(next.n == 0 ? blockIdx.x : gridDim.x + taken);
            sl_attn_fetch(a, __shfl_sync(0xFFFFFFFFu, i, 0), n_items, &w, lane < 16);
            sl_mbar_arrive_warp(bars.work_full(next.slot()));
            if (lane == 0 && w.item.valid)
                taken = atomicAdd(&a.cls->taken, 1u);
        }
        ended = !w.item.valid;
        put.enter(w);
        return true;
    }

    __device__ __forceinline__ void find(int tile)
    {
        const struct sl_attn_work &w = *bars.work(put.items.slot());
        int unit = tile * UNITS + warp + cfg::WIDENERS * lane;
        bool wanted = unit * SL_KV_TILE < put.hi && (unit + 1) * SL_KV_TILE > put.lo;
        int page = sl_attn_div(unit, a.by_page);
        int id = wanted ? a.tables[w.item.table + page] : 0;
        int sub = unit + (w.item.kv - page) * a.by_page.by;
        first = tile;
        at = static_cast<unsigned>(id) * static_cast<unsigned long long>(a.page_bytes) +
             static_cast<unsigned>(sub) * static_cast<unsigned long long>(KV::tile_bytes(D));
    }

    /* Begins the copy of the warp's page tiles of the next slot. Those that nobody sees anything of
     * are of the scratch page. Values come a tile behind the keys: their pages are still known. */
    __device__ __forceinline__ bool bring_slot(bool wait)
    {
        constexpr int PART = D == 256 ? CODES / 2 : CODES;
        const stop s(put);
        if (!pass(bars.empty(s.slot), s.parity ^ 1, wait))
            return false;
        if (put.key_tile == put.value_tile)
            find(s.tile);
        else if (s.tile == first + KNOWN)
            find(s.tile - 1);
        const uint8_t *plane = (s.keys ? a.keys : a.values) + lane * 16, *scales = plane;
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            const int unit = warp + cfg::WIDENERS * i;
            const uint8_t *from =
                sl_opaque(plane + __shfl_sync(0xFFFFFFFFu, at, (s.tile - first) * MINE + i));
#pragma unroll
            for (int k = 0; k < CODES; k += 512)
                sl_cp_async16(bars.smem + codes_at(s, unit, k / PART * 2) + lane * 16 + k % PART,
                              from + k, true);
            scales = lane / 2 == i ? from : scales;
        }
        if (lane < 2 * MINE)
            sl_cp_async16(scales_of(s, warp + lane / 2 * cfg::WIDENERS) + lane % 2 * 8,
                          scales + CODES - lane / 2 * 32, true);
        sl_cp_async_commit();
        s.pass(put);
        n_ahead++;
        return true;
    }

    /* Begins what comes next; false: there is nothing, or no room, and it is not waited for. The
     * item after the next one is begun when the warp is done with this one. */
    __device__ __forceinline__ bool bring(bool wait)
    {
        if (put.at_end())
            return !ended && put.items.n == take.items.n && begin_item(wait);
        return bring_slot(wait);
    }

    /* ---- numbers */

    /* 16 dimensions of a row, to two pieces of which the first is at `to`. */
    static __device__ __forceinline__ void widen(uint8_t *smem, int to, const uint4 &x, uint32_t s)
    {
        uint4 odd, even;
        KV::widen(x.x, s, odd.x, even.x);
        KV::widen(x.y, s, odd.y, even.y);
        KV::widen(x.z, s, odd.z, even.z);
        KV::widen(x.w, s, odd.w, even.w);
        *reinterpret_cast<uint4 *>(smem + to) = odd;
        *reinterpret_cast<uint4 *>(smem + (to ^ 16)) = even;
    }

    /* The codes of a panel that are the lane's: a quarter of rows lane % 8 and lane % 8 + 8. */
    __device__ __forceinline__ void load(uint4 (&x)[2], const stop &s, int unit, int panel) const
    {
        const uint8_t *from =
            bars.smem + ((codes_at(s, unit, panel & ~1) + code_at) ^ panel % 2 * 64);
        x[0] = *reinterpret_cast<const uint4 *>(from);
        x[1] = *reinterpret_cast<const uint4 *>(from + HALF);
    }

    /* Rows that nobody sees get a scale of zero, which makes zeros of any codes. */
    __device__ __forceinline__ void clear(const stop &s)
    {
        const int unit = warp + lane / SL_KV_TILE * cfg::WIDENERS, row = lane % SL_KV_TILE;
        const int key = s.tile * cfg::KEYS + unit * SL_KV_TILE + row;
        if (unit < UNITS && (key < take.lo || key >= take.hi))
            scales_of(s, unit)[row] = 0;
        __syncwarp();
    }

    /* A page tile, 64 dimensions after 64; the last numbers lie on the codes. */
    __device__ __forceinline__ void widen_unit(const stop &s, int unit)
    {
        uint32_t scale[2];
#pragma unroll
        for (int h = 0; h < 2; h++)
            scale[h] = scales_of(s, unit)[lane % 8 + 8 * h] * 0x10001u;
#pragma unroll
        for (int p = 0; p < cfg::PANELS; p++) {
            const int to = s.slot * cfg::SLOT + cfg::part_at(s.keys, unit, p) + number_at;
            uint4 x[2];
            load(x, s, unit, p);
            __syncwarp();
            widen(bars.smem, to, x[0], scale[0]);
            widen(bars.smem, to + 1024, x[1], scale[1]);
        }
    }

    __device__ __forceinline__ void widen_slot()
    {
        const stop s(take);
        if (n_ahead == 1)
            sl_cp_async_wait<0>();
        else if (n_ahead == 2)
            sl_cp_async_wait<1>();
        else
            sl_cp_async_wait<2>();
        __syncwarp();
        if (s.tile * cfg::KEYS < take.lo || (s.tile + 1) * cfg::KEYS > take.hi)
            clear(s);
#pragma unroll
        for (int i = 0; i < MINE; i++)
            widen_unit(s, warp + cfg::WIDENERS * i);
        sl_mbar_give_warp(bars.full(s.slot));
        s.pass(take);
        n_ahead--;
    }

    /* ---- all items */

    __device__ __forceinline__ void run(int n)
    {
        n_items = n;
        for (;;) {
            while (n_ahead < 3 && bring(n_ahead == 0))
                continue;
            if (!take.at_end()) {
                widen_slot();
                continue;
            }
            if (take.items.n != 0xFFFFFFFFu)
                sl_mbar_arrive_warp(bars.work_empty(take.items.slot()));
            take.enter(*bars.work((take.items.n + 1) & 1));
            if (!bars.work(take.items.slot())->item.valid)
                return;
        }
    }
};

#endif
