/* SPDX-License-Identifier: MIT
 * kv.cuh - how keys and values lie in a page, and how attention's matrix instruction gets them.
 *
 * A format of the pages is a trait: attention and kv_store are templates over it and touch pages
 * through nothing else. A tile of 16 positions is their rows, for keys and for values; in a scaled
 * format a scale of each follows. Rows are cut into pieces of 16 bytes, which lie so that the same
 * piece of eight neighbouring rows is in different banks of shared memory: tiles are copied there
 * as they are, whole. Rows of a multiple of 128 bytes lie 128 bytes of all 16 rows after 128 bytes
 * of all 16 rows, swizzled as the tensor cores want it. The elements that are multiplied (KV::elem)
 * are BF16 or F16; queries and probabilities are rounded to the same. What is neither yet becomes
 * BF16 in the registers, in key_frags and value_frags.
 *
 * BF16, F16: rows of these. F16 has no number beyond 65504, which is what a finite number there
 * becomes in kv_store, queries included; infinities and NaN stay. FP8: rows of codes of E4M3, then
 * BF16 [16]: 2^120 times the scale of each position, a power of two (NaN: the row had a number that
 * is not finite). A code whose seven bits are put into the upper fraction and lower exponent of a
 * BF16 number is 2^-120 of its value, subnormal ones too; one product with that scale, which is
 * exact, makes it the value, as the CPU's pages have it. Of 16 dimensions the bytes lie so that the
 * operands of the matrix instruction come out of ldmatrix in pairs: word w is dimensions 2w + 8,
 * 2w, 2w + 9, 2w + 1.
 */
#ifndef SL_CUDA_KV_CUH
#define SL_CUDA_KV_CUH

#include "cuda/ptx.cuh"
#include "ops/ops.h"

#include <string.h>

static __device__ __forceinline__ uint32_t sl_pack_bf16(float lo, float hi)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(lo, hi); /* one instruction */
    uint32_t u;
    memcpy(&u, &pair, sizeof u);
    return u;
}

/* ---------------------------------------------------------------- elements of the products */

struct sl_elem_bf16 {
    /* A finite number as one that stays finite when it is packed. */
    static __device__ __forceinline__ float bounded(float x)
    {
        return x;
    }
    /* A pair, low half first. */
    static __device__ __forceinline__ uint32_t pack(float lo, float hi)
    {
        return sl_pack_bf16(lo, hi);
    }
    /* Is one of the two infinite or NaN? An exponent of all ones carries into the sign, which was
     * masked out. */
    static __device__ __forceinline__ bool not_finite2(uint32_t pair)
    {
        return (((pair & 0x7F807F80u) + 0x00800080u) & 0x80008000u) != 0;
    }
    static __device__ __forceinline__ void mma(float c[4], const uint32_t a[4], const uint32_t b[2])
    {
        sl_mma_bf16(c, a, b);
    }
    template <int T, class B>
    static __device__ __forceinline__ void wgmma_rs_bt(float (&d)[T][4], const uint32_t (&a)[4],
                                                       B b, int add)
    {
        sl_wgmma_rs_bt(d, a, b, add);
    }
    template <int T, class B>
    static __device__ __forceinline__ void wgmma_ss(float (&d)[T][4], B a, B b, int add)
    {
        sl_wgmma_ss(d, a, b, add);
    }
};

struct sl_elem_f16 {
    static __device__ __forceinline__ float bounded(float x)
    {
        return fabsf(x) < __int_as_float(0x7F800000) ? fminf(fmaxf(x, -65504.0f), 65504.0f) : x;
    }
    static __device__ __forceinline__ uint32_t pack(float lo, float hi)
    {
        const __half2 pair = __floats2half2_rn(lo, hi);
        uint32_t u;
        memcpy(&u, &pair, sizeof u);
        return u;
    }
    static __device__ __forceinline__ bool not_finite2(uint32_t pair)
    {
        return (((pair & 0x7C007C00u) + 0x04000400u) & 0x80008000u) != 0;
    }
    static __device__ __forceinline__ void mma(float c[4], const uint32_t a[4], const uint32_t b[2])
    {
        sl_mma_f16(c, a, b);
    }
    template <int T, class B>
    static __device__ __forceinline__ void wgmma_rs_bt(float (&d)[T][4], const uint32_t (&a)[4],
                                                       B b, int add)
    {
        sl_wgmma_rs_bt_f16(d, a, b, add);
    }
    template <int T, class B>
    static __device__ __forceinline__ void wgmma_ss(float (&d)[T][4], B a, B b, int add)
    {
        sl_wgmma_ss_f16(d, a, b, add);
    }
};

template <class E> static __device__ __forceinline__ float4 sl_kv_bounded(float4 x)
{
    return make_float4(E::bounded(x.x), E::bounded(x.y), E::bounded(x.z), E::bounded(x.w));
}

/* ---------------------------------------------------------------- formats of pages */

/* Where a piece of a row (0..15) of row_bytes (a multiple of 16) lies in its tile. */
static __host__ __device__ __forceinline__ int sl_kv_piece(int row_bytes, int row, int piece)
{
    if (row_bytes % 128 == 0)
        return piece / 8 * (SL_KV_TILE * 128) + row * 128 + ((piece ^ row) & 7) * 16;
    int n = (row_bytes & -row_bytes) / 16; /* 1, 2 or 4 */
    return row * row_bytes + (piece ^ (row * n / 8 & (n - 1))) * 16;
}

/* Rows of what is multiplied. */
template <class E> struct sl_kv_plain {
    typedef E elem;
    static constexpr bool scaled = false;

    /* Bytes of 16 positions of one head, and of a position's row there without its scale. */
    static constexpr __host__ __device__ int tile_bytes(int dim)
    {
        return SL_KV_TILE * row_bytes(dim);
    }
    static constexpr __host__ __device__ int row_bytes(int dim)
    {
        return dim * 2;
    }

    /* A operands: keys as rows (of a score), or dimensions (of a sum of values), which come in two
     * steps, so that a warp may have some of the first under way. The first yields L times 16
     * dimensions, from `dim` on, LOADS<D> at most; raw: of one of them. Scales, of what has any,
     * are the same for a tile's keys, or values. The second gives the operands of a step, its
     * dimensions 16 step .. 16 step + 15, of raw, which lies where it was put with the others. */
    template <int D> static constexpr int LOADS = 1;
    static constexpr int RAW = 4;
    struct scales {
    };
    template <int D> static __device__ __forceinline__ struct scales key_scales(const uint8_t *)
    {
        return {};
    }
    template <int D> static __device__ __forceinline__ struct scales value_scales(const uint8_t *)
    {
        return {};
    }
    template <int D, int L>
    static __device__ __forceinline__ void key_raw(uint32_t raw[RAW], const uint8_t *tile, int dim)
    {
        int lane = static_cast<int>(threadIdx.x) & 31;
        int row = (lane & 7) + (lane >> 3 & 1) * 8, piece = dim / 8 + (lane >> 4);
        sl_ldmatrix_x4(raw, tile + sl_kv_piece(row_bytes(D), row, piece));
    }
    template <int D, int L>
    static __device__ __forceinline__ void value_raw(uint32_t raw[RAW], const uint8_t *tile,
                                                     int dim)
    {
        int lane = static_cast<int>(threadIdx.x) & 31;
        int row = (lane & 7) + (lane >> 4) * 8, piece = dim / 8 + (lane >> 3 & 1);
        sl_ldmatrix_x4_trans(raw, tile + sl_kv_piece(row_bytes(D), row, piece));
    }
    template <int L>
    static __device__ __forceinline__ void key_rows(uint32_t to[4], const uint32_t *raw, int,
                                                    const struct scales &)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[i] = raw[i];
    }
    template <int L>
    static __device__ __forceinline__ void value_rows(uint32_t to[4], const uint32_t *raw, int step,
                                                      const struct scales &s)
    {
        key_rows<L>(to, raw, step, s);
    }

    /* The B operands of a score: the keys of a tile as columns, dimensions dim .. dim + 15 as the
     * sum; b[0..1] for the first eight keys, b[2..3] for the others. */
    template <int D>
    static __device__ __forceinline__ void key_frags(uint32_t b[4], const uint8_t *tile, int dim)
    {
        int lane = static_cast<int>(threadIdx.x) & 31;
        int row = (lane & 7) + (lane >> 4) * 8, piece = dim / 8 + (lane >> 3 & 1);
        sl_ldmatrix_x4(b, tile + sl_kv_piece(row_bytes(D), row, piece));
    }

    /* The B operands of a sum of values: dimensions dim .. dim + 15 as columns, the keys of a tile
     * as the sum; b[0..1] for the first eight dimensions, b[2..3] for the others. */
    template <int D>
    static __device__ __forceinline__ void value_frags(uint32_t b[4], const uint8_t *tile, int dim)
    {
        int lane = static_cast<int>(threadIdx.x) & 31;
        int row = (lane & 7) + (lane >> 3 & 1) * 8, piece = dim / 8 + (lane >> 4);
        sl_ldmatrix_x4_trans(b, tile + sl_kv_piece(row_bytes(D), row, piece));
    }

    /* What makes rows of a tile zeros: part i of `parts` does it for a part of one row. */
    static constexpr __device__ int parts(int dim)
    {
        return row_bytes(dim);
    }
    static __device__ __forceinline__ int part_row(int dim, int i)
    {
        return row_bytes(dim) % 128 == 0 ? i / 8 % SL_KV_TILE : i / (row_bytes(dim) / 16);
    }
    static __device__ __forceinline__ void clear(uint8_t *tile, int, int i)
    {
        *reinterpret_cast<uint4 *>(tile + i * 16) = make_uint4(0, 0, 0, 0);
    }

    /* A warp: the row x [dim], rounded, to a position of a tile of the page. */
    static __device__ __forceinline__ void store(const float *x, int dim, uint8_t *tile, int slot)
    {
        int d = static_cast<int>(threadIdx.x % 32) * 8;
        if (d >= dim)
            return;
        const float4 lo = sl_kv_bounded<E>(*reinterpret_cast<const float4 *>(x + d));
        const float4 hi = sl_kv_bounded<E>(*reinterpret_cast<const float4 *>(x + d + 4));
        *reinterpret_cast<uint4 *>(tile + sl_kv_piece(row_bytes(dim), slot, d / 8)) = make_uint4(
            E::pack(lo.x, lo.y), E::pack(lo.z, lo.w), E::pack(hi.x, hi.y), E::pack(hi.z, hi.w));
    }
};

struct sl_kv_bf16 : sl_kv_plain<sl_elem_bf16> {
};
struct sl_kv_f16 : sl_kv_plain<sl_elem_f16> {
};

/* Code of E4M3 nearest to x, ties to even, at most 448; as sl_f32_to_fp8_e4m3. */
static __device__ __forceinline__ uint32_t sl_fp8_code(float x)
{
    uint32_t b = __float_as_uint(x), sign = b >> 24 & 0x80u, mag = b & 0x7FFFFFFFu;
    if (mag >= 0x43E00000u)
        return sign | 0x7Eu;
    if (mag < 0x3C800000u)
        return sign | (__float_as_uint(__fadd_rn(__uint_as_float(mag), 16384.0f)) - 0x46800000u);
    uint32_t r = mag - (120u << 23);
    return sign | (r + 0x7FFFFu + (r >> 20 & 1u)) >> 20;
}

/* The scale of a row whose largest magnitude is, as bits, `top`. */
struct sl_kv_scale {
    bool finite;
    float inverse;
    uint16_t bits; /* as it lies in the page */

    __device__ __forceinline__ explicit sl_kv_scale(uint32_t top)
    {
        /* the smallest e with top <= 448 * 2^e: 448 is 1.75 * 2^8 */
        int e = static_cast<int>(top >> 23) - 135 + ((top & 0x7FFFFFu) > 0x600000u ? 1 : 0);
        e = min(max(e, -100), 7);
        finite = top < 0x7F800000u;
        inverse = __uint_as_float(static_cast<uint32_t>(127 - e) << 23);
        bits = finite ? static_cast<uint16_t>((247 + e) << 7) : static_cast<uint16_t>(0x7FC0);
    }
};

struct sl_kv_fp8 {
    typedef sl_elem_bf16 elem;
    static constexpr bool scaled = true;

    static constexpr __host__ __device__ int tile_bytes(int dim)
    {
        return SL_KV_TILE * (row_bytes(dim) + 2);
    }
    static constexpr __host__ __device__ int row_bytes(int dim)
    {
        return dim;
    }
    /* Two scales as they are multiplied. */
    static __device__ __forceinline__ uint32_t scale_pair(uint32_t bf16)
    {
        return bf16;
    }
    /* The scales of rows row, row + 1 of a tile; row is even. */
    static __device__ __forceinline__ uint32_t scales_of(const uint8_t *tile, int dim, int row)
    {
        return *reinterpret_cast<const uint32_t *>(tile + SL_KV_TILE * dim + row * 2);
    }

    /* Four codes, of bytes 1 and 3 and of bytes 0 and 2, times scales. The signs are taken at once:
     * the two that are not wanted lie where the seven bits of a number do, and are masked out. */
    static __device__ __forceinline__ void dequant(uint32_t w, uint32_t scales, uint32_t &odd,
                                                   uint32_t &even)
    {
        const uint32_t signs = sl_opaque(w & 0x80808080u), bits = 0x07F007F0u;
        odd = scaled_by(sl_merge(w >> 4, bits, signs), scales);
        even = scaled_by(sl_merge(w << 4, bits, signs << 8), scales);
    }
    static __device__ __forceinline__ uint32_t scaled_by(uint32_t bits, uint32_t scales)
    {
        __nv_bfloat162 x, s;
        memcpy(&x, &bits, sizeof x);
        memcpy(&s, &scales, sizeof s);
        x = __hmul2(x, s);
        memcpy(&bits, &x, sizeof bits);
        return bits;
    }

    /* Of a tile's keys, or values, those that a lane's operands want. */
    struct scales {
        uint32_t of[2];
    };
    template <int D> static __device__ __forceinline__ struct scales key_scales(const uint8_t *tile)
    {
        const int lane = static_cast<int>(threadIdx.x) & 31;
        struct scales s;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t two = scales_of(tile, D, 8 * i + (lane >> 3) * 2);
            s.of[i] =
                __byte_perm(two, two, lane & 4 ? 0x3232 : 0x1010); /* the odd key's is above */
        }
        return s;
    }
    template <int D>
    static __device__ __forceinline__ struct scales value_scales(const uint8_t *tile)
    {
        const int lane = static_cast<int>(threadIdx.x) & 31;
        return {{scales_of(tile, D, 2 * (lane & 3)), scales_of(tile, D, 8 + 2 * (lane & 3))}};
    }

    template <int D> static constexpr int LOADS = D % 32 == 0 ? 2 : 1;
    static constexpr int RAW = 2;
    template <int D, int L>
    static __device__ __forceinline__ void key_raw(uint32_t raw[], const uint8_t *tile, int dim)
    {
        const int lane = static_cast<int>(threadIdx.x) & 31;
        if constexpr (L == 2)
            sl_ldmatrix_x4(raw, tile + sl_kv_piece(D, lane & 15, dim / 16 + (lane >> 4)));
        else
            sl_ldmatrix_x2(raw, tile + sl_kv_piece(D, lane & 15, dim / 16));
    }
    template <int D, int L>
    static __device__ __forceinline__ void value_raw(uint32_t raw[], const uint8_t *tile, int dim)
    {
        const int lane = static_cast<int>(threadIdx.x) & 31;
        if constexpr (L == 2)
            sl_ldmatrix_x4_trans(raw, tile + sl_kv_piece(D, lane & 15, dim / 16 + (lane >> 4)));
        else
            sl_ldmatrix_x2_trans(raw, tile + sl_kv_piece(D, lane & 15, dim / 16));
    }
    template <int L>
    static __device__ __forceinline__ void key_rows(uint32_t to[4], const uint32_t *raw, int,
                                                    const struct scales &s)
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            dequant(raw[i], s.of[i], to[i], to[2 + i]);
    }
    template <int L>
    static __device__ __forceinline__ void value_rows(uint32_t to[4], const uint32_t *raw, int,
                                                      const struct scales &s)
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            dequant(raw[i], s.of[i], to[2 * i], to[2 * i + 1]);
    }

    template <int D>
    static __device__ __forceinline__ void key_frags(uint32_t b[4], const uint8_t *tile, int dim)
    {
        int lane = static_cast<int>(threadIdx.x) & 31;
        uint32_t r[2];
        const struct scales s = key_scales<D>(tile);
        sl_ldmatrix_x2(r, tile + sl_kv_piece(D, lane & 15, dim / 16));
#pragma unroll
        for (int i = 0; i < 2; i++)
            dequant(r[i], s.of[i], b[2 * i], b[2 * i + 1]);
    }

    template <int D>
    static __device__ __forceinline__ void value_frags(uint32_t b[4], const uint8_t *tile, int dim)
    {
        int lane = static_cast<int>(threadIdx.x) & 31;
        uint32_t r[2];
        const struct scales s = value_scales<D>(tile);
        sl_ldmatrix_x2_trans(r, tile + sl_kv_piece(D, lane & 15, dim / 16));
#pragma unroll
        for (int i = 0; i < 2; i++)
            dequant(r[i], s.of[i], b[i], b[2 + i]);
    }

    /* A scale of zero makes zeros of any codes. */
    static constexpr __device__ int parts(int)
    {
        return SL_KV_TILE;
    }
    static __device__ __forceinline__ int part_row(int, int i)
    {
        return i;
    }
    static __device__ __forceinline__ void clear(uint8_t *tile, int dim, int i)
    {
        *reinterpret_cast<uint16_t *>(tile + SL_KV_TILE * dim + i * 2) = 0;
    }

    static __device__ __forceinline__ void store(const float *x, int dim, uint8_t *tile, int slot)
    {
        int lane = static_cast<int>(threadIdx.x % 32);
        uint32_t top = 0;
        for (int d = lane; d < dim; d += 32)
            top = max(top, __float_as_uint(x[d]) & 0x7FFFFFFFu);
        top = __reduce_max_sync(0xFFFFFFFFu, top);
        const struct sl_kv_scale scale(top);
        for (int w = lane; w < dim / 4; w += 32) {
            const float *from = x + w / 4 * 16 + w % 4 * 2;
            uint32_t codes = sl_fp8_code(__fmul_rn(from[8], scale.inverse)) |
                             sl_fp8_code(__fmul_rn(from[0], scale.inverse)) << 8 |
                             sl_fp8_code(__fmul_rn(from[9], scale.inverse)) << 16 |
                             sl_fp8_code(__fmul_rn(from[1], scale.inverse)) << 24;
            *reinterpret_cast<uint32_t *>(tile + sl_kv_piece(dim, slot, w / 4) + w % 4 * 4) =
                scale.finite ? codes : 0;
        }
        if (lane == 0)
            *reinterpret_cast<uint16_t *>(tile + SL_KV_TILE * dim + 2 * slot) = scale.bits;
    }
};

#endif
