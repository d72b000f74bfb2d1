/* SPDX-License-Identifier: MIT
 * attention_dequant.cuh - pages of FP8, or of four-bit codes, for the kernels of
 * attention_group.cuh: warps that make BF16 of the codes, where the tensor cores read it, as the
 * format says (kv.cuh, kv4.cuh).
 *
 * Shared memory has no room besides the slots. So the codes of 16 positions are copied to where the
 * last of their own numbers will lie, and a warp takes them from there into registers, in portions
 * none of whose results is on codes still to be read. Each warp has its own 16 positions of every
 * slot and waits for no other.
 *
 * Warps that dequantise do nothing else: they need no item and no page to know which slot is next,
 * and which of its rows are seen comes with it.
 *
 * TFLOP/s at 512, 2,048, 8,192, 16 x 512, 512 after 131,072 (H200, 32 heads over 8), those of the
 * version before, whose four warps also found and began all copies, and of pages of F16:
 *   d 128   114, 302, 422, 188, 459    109, 274, 368, 190, 397    129, 361, 469, 202, 513
 *   d 64     57, 206, 316, 129, 307     57, 202, 296, 131, 285
 *   d 256   101, 243, 355, 133, 426    106, 249, 345, 154, 399
 * With the registers of a group more, d 256 keeps 280 bytes instead of 140 in memory, which short
 * prompts pay; by two of the warps that load it has 96, 238, 328, 153, 365. 24 registers for those
 * that dequantise and 232 for the others is 118 bytes instead of 76 for d 128, in the loop that
 * dequantises.
 */
#ifndef SL_CUDA_ATTENTION_DEQUANT_CUH
#define SL_CUDA_ATTENTION_DEQUANT_CUH

#include "cuda/attention/attention_group.cuh"

template <class KV, class cfg> struct sl_attn_dequant {
    static constexpr int MINE = cfg::KEYS / SL_KV_TILE / cfg::DEQUANTERS; /* page tiles of a slot */
    static constexpr int ROW = KV::row_bytes(cfg::D);                     /* bytes of codes */
    static constexpr bool FOUR = ROW < cfg::D;                            /* bits */
    /* Bytes of codes of eight rows, at most of 128 a row. */
    static constexpr int HALF = 8 * (ROW > 128 ? 128 : ROW);

    sl_attn_bars<cfg> bars;
    uint32_t code_at, number_at; /* the lane's first pieces, in codes of a panel and in a part */

    __device__ __forceinline__ sl_attn_dequant(const sl_attn_bars<cfg> &barriers, int warp)
        : bars(barriers)
    {
        const int lane = static_cast<int>(threadIdx.x) & 31, first = warp * cfg::PART;
        if constexpr (FOUR) { /* 32 dimensions of a row, or of two */
            const int piece = cfg::D == 64 ? lane / 16 : lane / 8;
            code_at = first + sl_kv_piece(ROW, cfg::D == 64 ? lane % 16 : lane % 8, piece);
            number_at = first + sl_kv_piece(128, lane % 8, piece % 2 * 4);
        } else {
            code_at = first + sl_kv_piece(cfg::D == 64 ? 64 : 128, lane % 8, lane / 8);
            number_at = first + sl_kv_piece(128, lane % 8, lane / 8 * 2);
        }
    }

    /* 16 dimensions of a row, to two pieces of which the first is at `to`. */
    static __device__ __forceinline__ void dequant(uint8_t *smem, uint32_t to, const uint4 &x,
                                                   uint32_t scale)
    {
        uint4 odd, even;
        KV::dequant(x.x, scale, odd.x, even.x);
        KV::dequant(x.y, scale, odd.y, even.y);
        KV::dequant(x.z, scale, odd.z, even.z);
        KV::dequant(x.w, scale, odd.w, even.w);
        *reinterpret_cast<uint4 *>(smem + to) = odd;
        *reinterpret_cast<uint4 *>(smem + (to ^ 16)) = even;
    }

    /* A page tile of the warp, 64 dimensions after 64; the last numbers lie on the codes. */
    template <bool KEYS>
    __device__ __forceinline__ void dequant_tile(int i, uint32_t code, uint32_t number,
                                                 uint32_t scales) const
    {
#pragma unroll
        for (int p = 0; p < cfg::PANELS; p++) {
            uint8_t *to = bars.smem + cfg::part_at(KEYS, i * cfg::DEQUANTERS, p);
            const uint8_t *from =
                bars.smem + cfg::codes_at(KEYS, i * cfg::DEQUANTERS, p & ~1) + (code ^ p % 2 * 64);
            const uint4 x = *reinterpret_cast<const uint4 *>(from);
            const uint4 y = *reinterpret_cast<const uint4 *>(from + HALF);
            __syncwarp();
            dequant(to, number, x, __byte_perm(scales, 0, 0x1010));
            dequant(to + 1024, number, y, __byte_perm(scales, 0, 0x3232));
        }
    }

    /* 32 dimensions of a row in codes of four bits, to four pieces. */
    static __device__ __forceinline__ void dequant_four(uint8_t *smem, uint32_t to, const uint4 &x,
                                                        uint32_t scale)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint4 first, second;
            KV::dequant_half(x.x, h, scale, first.x, second.x);
            KV::dequant_half(x.y, h, scale, first.y, second.y);
            KV::dequant_half(x.z, h, scale, first.z, second.z);
            KV::dequant_half(x.w, h, scale, first.w, second.w);
            *reinterpret_cast<uint4 *>(smem + (to ^ h * 32)) = first;
            *reinterpret_cast<uint4 *>(smem + (to ^ (h * 32 + 16))) = second;
        }
    }

    /* A page tile of these, 128 dimensions after 128: a lane has 32 of a row, or of two. */
    template <bool KEYS>
    __device__ __forceinline__ void dequant_four_tile(int i, uint32_t code, uint32_t number,
                                                      uint32_t scales) const
    {
        const uint32_t lane = threadIdx.x & 31;
        const uint8_t *codes = bars.smem + cfg::codes_at(KEYS, i * cfg::DEQUANTERS, 0);
        if constexpr (cfg::D == 64) {
            const uint4 x = *reinterpret_cast<const uint4 *>(codes + code);
            __syncwarp();
            dequant_four(bars.smem + cfg::part_at(KEYS, i * cfg::DEQUANTERS, 0),
                         number + (lane & 8) * 128, x,
                         __byte_perm(scales, 0, lane & 8 ? 0x3232 : 0x1010));
        } else {
            const uint32_t at = number + lane / 16 * (KEYS ? cfg::KEYS * 128 : cfg::PANEL);
#pragma unroll
            for (int p = 0; p < cfg::PANELS; p += 2) {
                uint8_t *to = bars.smem + cfg::part_at(KEYS, i * cfg::DEQUANTERS, p);
                const uint8_t *from = codes + (code ^ p * 32);
                const uint4 x = *reinterpret_cast<const uint4 *>(from);
                const uint4 y = *reinterpret_cast<const uint4 *>(from + HALF);
                __syncwarp();
                dequant_four(to, at, x, __byte_perm(scales, 0, 0x1010));
                dequant_four(to + 1024, at, y, __byte_perm(scales, 0, 0x3232));
            }
        }
    }

    /* Of the lane's rows lane % 8 and 8 further in page tile i of the warp, the scales. Those of
     * rows that nobody sees are zero, which makes zeros of any codes. */
    __device__ __forceinline__ uint32_t scales_of(int slot, int i, uint32_t seen) const
    {
        const int row =
            static_cast<int>(sl_opaque(number_at / 128)) + i * cfg::DEQUANTERS * SL_KV_TILE;
        const int from = static_cast<int>(seen & 0xFFFF),
                  n = static_cast<int>(seen >> 16 & 0x7FFF) - from;
        const uint16_t *scales = reinterpret_cast<const uint16_t *>(bars.scales(slot, 0)) + row;
        const bool first = static_cast<uint32_t>(row - from) < static_cast<uint32_t>(n);
        const bool second = static_cast<uint32_t>(row + 8 - from) < static_cast<uint32_t>(n);
        return KV::scale_pair((first ? scales[0] : 0u) | (second ? scales[8] : 0u) << 16);
    }

    /* A slot of keys or of values, unless there are no more; which rows of it are seen. */
    template <bool KEYS>
    __device__ __forceinline__ uint32_t dequant_slot(struct sl_attn_turn t) const
    {
        const int slot = KEYS ? t.keys() : t.values();
        sl_mbar_wait(bars.raw(slot), t.parity());
        const uint32_t seen = *bars.seen(slot);
        if (KEYS && seen == SL_ATTN_NO_MORE)
            return seen;
        /* As many sums as there are places, made beforehand, would not fit the registers. */
        const uint32_t at = static_cast<uint32_t>(slot * cfg::SLOT);
        const uint32_t code = sl_opaque(at + code_at), number = sl_opaque(at + number_at);
        uint32_t scales[MINE];
#pragma unroll
        for (int i = 0; i < MINE; i++)
            scales[i] = scales_of(slot, i, seen);
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            if constexpr (FOUR)
                dequant_four_tile<KEYS>(i, code, number, scales[i]);
            else
                dequant_tile<KEYS>(i, code, number, scales[i]);
        }
        sl_mbar_give_warp(bars.full(slot));
        return seen;
    }

    /* In the order in which slots are wanted: keys, keys, values, keys, values .. of each item. The
     * keys of the next one may come only when this one's values have been taken. */
    __device__ __forceinline__ void run() const
    {
        struct sl_attn_turn values = {0};
        for (struct sl_attn_turn keys = {0};; keys.n++) {
            const uint32_t seen = dequant_slot<true>(keys);
            if (seen == SL_ATTN_NO_MORE)
                return;
            const uint32_t end = keys.n + ((seen & SL_ATTN_LAST) != 0 ? 1 : 0);
#pragma unroll 1
            for (; values.n < end; values.n++)
                dequant_slot<false>(values);
        }
    }
};

#endif
