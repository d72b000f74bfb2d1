/* SPDX-License-Identifier: MIT
 * attention_widen.cuh - pages of FP8 for the kernels of attention_group.cuh: four warps bring page
 * tiles and make them BF16 where the tensor cores read them, without rounding.
 *
 * Shared memory has no room besides the slots. So the codes of 16 positions are copied to where the
 * last of their own numbers will lie, and a warp takes them from there into registers, in portions
 * none of whose results is on codes still to be read. Each warp has its own 16 positions of every
 * slot, from the copy to the numbers, and waits for no other.
 *
 * The order is that in which slots become free: keys are wanted a tile before values. A warp begins
 * copies as far ahead as there are slots, which it looks after between two slots that it widens;
 * only for its next one does it wait.
 */
#ifndef SL_CUDA_ATTENTION_WIDEN_CUH
#define SL_CUDA_ATTENTION_WIDEN_CUH

#include "cuda/attention_group.cuh"

/* A place in the order of slots. */
template <class cfg> struct sl_attn_place {
    struct sl_attn_turn items; /* of the item; the first one has not begun */
    uint32_t base;             /* tiles of the items before it */
    int from, n_tiles, step;   /* of the item: two steps a tile */

    __device__ __forceinline__ bool at_end() const
    {
        return step == 2 * n_tiles;
    }
    /* Keys 0, keys 1, values 0, keys 2, values 1 ... */
    __device__ __forceinline__ bool keys() const
    {
        return step == 0 || (step % 2 == 1 && step + 1 < 2 * n_tiles);
    }
    __device__ __forceinline__ int tile() const
    {
        return keys() ? (step + 1) / 2 : (step - 1) / 2;
    }
    __device__ __forceinline__ struct sl_attn_turn turn() const
    {
        return {base + static_cast<uint32_t>(tile())};
    }
    __device__ __forceinline__ void enter(const struct sl_attn_work &w)
    {
        int to = 0;
        base += static_cast<uint32_t>(n_tiles);
        from = 0;
        if (w.item.valid)
            sl_attn_tiles_of<cfg::KEYS>(w, &from, &to);
        n_tiles = max(to - from, 0);
        items.n++;
        step = 0;
    }
};

template <class KV, class cfg> struct sl_attn_widen {
    static constexpr int D = cfg::D;
    static constexpr int UNITS = cfg::KEYS / SL_KV_TILE;     /* page tiles of a slot */
    static constexpr int MINE = UNITS / cfg::WIDENERS;       /* of them, a warp's */
    static constexpr int CODES = SL_KV_TILE * D;             /* bytes of one */
    static constexpr int AHEAD = 32 * cfg::WIDENERS / UNITS; /* tiles whose pages are known */

    const struct sl_attn_args &a;
    sl_attn_bars<cfg> bars;
    struct sl_attn_place<cfg> put, take; /* what is brought next, and widened */
    int n_items, warp, lane;
    bool ended; /* no item is left to bring */
    uint32_t taken;
    /* Lane i: where the warp's i-th page tile from tile `first` on lies in a plane. */
    unsigned long long at;
    int first;

    __device__ __forceinline__ sl_attn_widen(const struct sl_attn_args &args,
                                             const sl_attn_bars<cfg> &barriers)
        : a(args), bars(barriers), put({{0xFFFFFFFFu}, 0, 0, 0, 0}),
          take({{0xFFFFFFFFu}, 0, 0, 0, 0}), ended(false), taken(0), at(0), first(0)
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 32), 0);
    }

    __device__ __forceinline__ const struct sl_attn_work &work(
        const struct sl_attn_place<cfg> &p) const
    {
        return *bars.work(p.items.slot());
    }
    /* Of the item, keys that somebody sees. */
    __device__ __forceinline__ void seen(const struct sl_attn_place<cfg> &p, int *lo, int *hi) const
    {
        const struct sl_attn_work &w = work(p);
        *lo = max(w.key_lo, p.from * cfg::KEYS);
        *hi = min(w.key_hi, (p.from + p.n_tiles) * cfg::KEYS);
    }
    static __device__ __forceinline__ int slot_of(const struct sl_attn_place<cfg> &p)
    {
        return p.keys() ? p.turn().keys() : p.turn().values();
    }

    /* Where piece 4 panel + q of a row (16 dimensions) lies before it is widened: the codes fill
     * the second half of what their numbers will. */
    static __device__ __forceinline__ int code_at(bool keys, int unit, int panel, int row, int q)
    {
        if constexpr (D == 64)
            return cfg::part_at(keys, unit, 0) + CODES + sl_kv_piece(D, row, q);
        return cfg::part_at(keys, unit, cfg::PANELS / 2 + panel / 2) +
               sl_kv_piece(128, row, panel % 2 * 4 + q);
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
        const struct sl_attn_work &w = work(put);
        int lo, hi, unit = tile * UNITS + warp + cfg::WIDENERS * lane;
        seen(put, &lo, &hi);
        bool wanted = unit * SL_KV_TILE < hi && (unit + 1) * SL_KV_TILE > lo;
        int page = sl_attn_div(unit, a.by_page);
        int id = wanted ? a.tables[w.item.table + page] : 0;
        int sub = unit + (w.item.kv - page) * a.by_page.by;
        first = tile;
        at = static_cast<unsigned>(id) * static_cast<unsigned long long>(a.page_bytes) +
             static_cast<unsigned>(sub) * static_cast<unsigned long long>(KV::tile_bytes(D));
    }

    /* Begins the copy of the warp's page tiles of the next slot; those that nobody sees anything of
     * stay what they are. Values come a tile behind the keys: their pages are still known. */
    __device__ __forceinline__ bool bring_slot(bool wait)
    {
        const int slot = slot_of(put), tile = put.from + put.tile();
        const bool keys = put.keys();
        if (!pass(bars.empty(slot), put.turn().parity() ^ 1, wait))
            return false;
        if (put.step == 0)
            find(tile);
        else if (tile == first + AHEAD)
            find(tile - 1);
        int lo, hi;
        seen(put, &lo, &hi);
        const int i = lane - (tile - first) * MINE, unit = warp + cfg::WIDENERS * i;
        const int pos = (tile * UNITS + unit) * SL_KV_TILE;
        const bool mine = i >= 0 && i < MINE && pos < hi && pos + SL_KV_TILE > lo;
        const int n = __popc(__ballot_sync(0xFFFFFFFFu, mine));
        sl_mbar_expect_warp(bars.copied(slot, warp), static_cast<uint32_t>(n * KV::tile_bytes(D)));
        if (mine) {
            const uint8_t *from = (keys ? a.keys : a.values) + at;
            uint8_t *to = bars.smem + slot * cfg::SLOT;
            constexpr int PIECE = D == 256 ? CODES / 2 : CODES;
#pragma unroll
            for (int k = 0; k < CODES / PIECE; k++)
                sl_bulk_load(to + code_at(keys, unit, 2 * k, 0, 0), from + k * PIECE, PIECE,
                             bars.copied(slot, warp));
            sl_bulk_load(scales_of(slot, unit), from + CODES, 2 * SL_KV_TILE,
                         bars.copied(slot, warp));
        }
        put.step++;
        return true;
    }

    /* Begins what comes next; false: there is nothing, or no room, and it is not waited for. */
    __device__ __forceinline__ bool bring(bool wait)
    {
        if (put.at_end())
            return !ended && begin_item(wait);
        return bring_slot(wait);
    }

    /* ---- numbers */

    __device__ __forceinline__ uint16_t *scales_of(int slot, int unit) const
    {
        return reinterpret_cast<uint16_t *>(bars.smem + cfg::SCALES_AT) + slot * cfg::KEYS +
               unit * SL_KV_TILE;
    }

    /* 16 dimensions of a row, to two pieces of which the first is at `to`. */
    static __device__ __forceinline__ void widen(uint8_t *slot, int to, const uint4 &x, uint32_t s)
    {
        *reinterpret_cast<uint4 *>(slot + to) =
            make_uint4(KV::widen(x.x, s), KV::widen(x.y, s), KV::widen(x.z, s), KV::widen(x.w, s));
        *reinterpret_cast<uint4 *>(slot + (to ^ 16)) =
            make_uint4(KV::widen(x.x << 8, s), KV::widen(x.y << 8, s), KV::widen(x.z << 8, s),
                       KV::widen(x.w << 8, s));
    }

    /* A page tile. Rows outside lo .. hi - 1 become zeros, as with a scale of zero any codes do. A
     * lane has a quarter of 64 dimensions of rows lane % 8 and lane % 8 + 8. */
    __device__ __forceinline__ void widen_unit(int slot_idx, bool keys, int unit, int lo, int hi)
    {
        constexpr int PANELS = D == 64 ? 1 : 2; /* at once */
        uint8_t *slot = bars.smem + slot_idx * cfg::SLOT;
        const int r = lane % 8, q = lane / 8;
        uint32_t s[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = r + 8 * h;
            s[h] = row >= lo && row < hi ? scales_of(slot_idx, unit)[row] * 0x10001u : 0;
        }
#pragma unroll
        for (int p = 0; p < cfg::PANELS; p += PANELS) {
            uint4 x[PANELS][2];
#pragma unroll
            for (int i = 0; i < PANELS; i++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    x[i][h] = *reinterpret_cast<const uint4 *>(
                        slot + code_at(keys, unit, p + i, r + 8 * h, q));
            __syncwarp();
#pragma unroll
            for (int i = 0; i < PANELS; i++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    widen(slot,
                          cfg::part_at(keys, unit, p + i) + (r + 8 * h) * 128 +
                              ((2 * q ^ r) & 7) * 16,
                          x[i][h], s[h]);
        }
    }

    __device__ __forceinline__ void widen_slot()
    {
        const int slot = slot_of(take), key = (take.from + take.tile()) * cfg::KEYS;
        const bool keys = take.keys();
        int lo, hi;
        seen(take, &lo, &hi);
        sl_mbar_wait(bars.copied(slot, warp), take.turn().parity());
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            const int unit = warp + cfg::WIDENERS * i, pos = key + unit * SL_KV_TILE;
            widen_unit(slot, keys, unit, lo - pos, hi - pos);
        }
        sl_mbar_give_warp(bars.full(slot));
        take.step++;
    }

    /* ---- all items */

    __device__ __forceinline__ void run(int n)
    {
        n_items = n;
        for (;;) {
            bool wait = put.items.n == take.items.n && put.step == take.step;
            while (bring(wait))
                wait = false;
            if (!take.at_end()) {
                widen_slot();
                continue;
            }
            if (take.items.n != 0xFFFFFFFFu)
                sl_mbar_arrive_warp(bars.work_empty(take.items.slot()));
            take.enter(*bars.work((take.items.n + 1) & 1));
            if (!work(take).item.valid)
                return;
        }
    }
};

#endif
