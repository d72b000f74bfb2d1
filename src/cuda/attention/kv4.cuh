/* SPDX-License-Identifier: MIT
 * kv4.cuh - pages of four-bit codes (quant/kv4.h) as a format of kv.cuh, and the rotation that
 * their vectors have.
 *
 * Rows of codes, then F16 [16]: the scale of each position. A row is pieces of 32 dimensions, of
 * eight times 16 bits: element e has dimensions e + 8 j. The magnitude of j is at bit 4 j; signs
 * are at bits 7, 15, 3 and 11, where they are those of the bytes that magnitudes select. So a
 * word of two elements, those of one row or, after ldmatrix.trans, of two rows, becomes four pairs
 * of BF16 by 15 instructions: upper and lower bytes of four levels each are one byte permutation,
 * with the magnitudes as its selector.
 *
 * A number is level times scale, the scale rounded to BF16 and so is the product. The CPU applies
 * the scales of keys to scores, and rounds no scale: its numbers differ by up to 2^-8 of
 * themselves.
 *
 * kv_store.cu rotates what it stores, and queries, in place; attention's output is rotated back by
 * a kernel of its own (attention_rotate.cu). Heads have 64, 128 or 256 dimensions.
 */
#ifndef SL_CUDA_KV4_CUH
#define SL_CUDA_KV4_CUH

#include "cuda/attention/kv.cuh"
#include "cuda/ptx_pair.cuh"
#include "quant/kv4.h"

/* ---------------------------------------------------------------- rotation */

#define SL_KV4_MOST 256 /* dimensions */

/* As a kernel's argument. */
struct sl_kv4_turn {
    uint32_t signs[SL_KV4_MOST / 32];
    float scale; /* 1 / sqrt of the dimensions; 0: nothing is rotated */
};

static inline struct sl_kv4_turn sl_kv4_turn_of(int32_t dim)
{
    struct sl_kv4_turn t = {};
    for (int32_t i = 0; i < dim / 32; i++)
        t.signs[i] = sl_kv4_signs()[i];
    t.scale = static_cast<float>(1.0 / sqrt(static_cast<double>(dim)));
    return t;
}

static __device__ __forceinline__ float sl_kv4_negated(float x, uint32_t signs, int i)
{
    return __uint_as_float(__float_as_uint(x) ^ (signs >> i << 31));
}

/* Four numbers from dimension d on. */
static __device__ __forceinline__ float4 sl_kv4_signed(const struct sl_kv4_turn &t, float4 x, int d)
{
    const uint32_t s = t.signs[d / 32] >> d % 32;
    return make_float4(sl_kv4_negated(x.x, s, 0), sl_kv4_negated(x.y, s, 1),
                       sl_kv4_negated(x.z, s, 2), sl_kv4_negated(x.w, s, 3));
}

static __device__ __forceinline__ void sl_kv4_sum(float &p, float &q)
{
    const float x = p, y = q;
    p = __fadd_rn(x, y);
    q = __fadd_rn(x, -y);
}

/* Sums and differences of what lanes `apart` of each other have. */
static __device__ __forceinline__ float sl_kv4_across(float x, int apart, bool upper)
{
    const float other = __shfl_xor_sync(0xFFFFFFFFu, x, apart);
    return upper ? __fadd_rn(other, -x) : __fadd_rn(x, other);
}

/* The Hadamard matrix of quant/kv4.c: lane l of dim / 4, at most 32, has dimensions 4 l + 128 i ..
 * 4 l + 128 i + 3. The whole warp calls. */
static __device__ __forceinline__ void sl_kv4_hadamard(float scale, int dim, int lane,
                                                       float4 (&x)[SL_KV4_MOST / 128])
{
#pragma unroll
    for (int i = 0; i < SL_KV4_MOST / 128; i++) {
        float4 &v = x[i];
        v = make_float4(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale), __fmul_rn(v.z, scale),
                        __fmul_rn(v.w, scale));
        sl_kv4_sum(v.x, v.y);
        sl_kv4_sum(v.z, v.w);
        sl_kv4_sum(v.x, v.z);
        sl_kv4_sum(v.y, v.w);
        if (i > 0 && dim <= 128)
            break;
#pragma unroll
        for (int h = 1; h < 32; h *= 2) {
            if (4 * h >= dim)
                break;
            const bool upper = (lane & h) != 0;
            v.x = sl_kv4_across(v.x, h, upper);
            v.y = sl_kv4_across(v.y, h, upper);
            v.z = sl_kv4_across(v.z, h, upper);
            v.w = sl_kv4_across(v.w, h, upper);
        }
    }
    if (dim == SL_KV4_MOST) {
        sl_kv4_sum(x[0].x, x[1].x);
        sl_kv4_sum(x[0].y, x[1].y);
        sl_kv4_sum(x[0].z, x[1].z);
        sl_kv4_sum(x[0].w, x[1].w);
    }
}

static __device__ __forceinline__ void sl_kv4_rotate_row(const struct sl_kv4_turn &t, int dim,
                                                         int lane, float4 (&x)[SL_KV4_MOST / 128])
{
#pragma unroll
    for (int i = 0; i < SL_KV4_MOST / 128; i++)
        if (lane * 4 + i * 128 < dim)
            x[i] = sl_kv4_signed(t, x[i], lane * 4 + i * 128);
    sl_kv4_hadamard(t.scale, dim, lane, x);
}

static __device__ __forceinline__ void sl_kv4_rotate_row_back(const struct sl_kv4_turn &t, int dim,
                                                              int lane,
                                                              float4 (&x)[SL_KV4_MOST / 128])
{
    sl_kv4_hadamard(t.scale, dim, lane, x);
#pragma unroll
    for (int i = 0; i < SL_KV4_MOST / 128; i++)
        if (lane * 4 + i * 128 < dim)
            x[i] = sl_kv4_signed(t, x[i], lane * 4 + i * 128);
}

/* ---------------------------------------------------------------- levels */

/* Bytes of four levels from `first` on: upper (shift 8) or lower ones. */
static constexpr __host__ __device__ uint32_t sl_kv4_bytes(int first, int shift)
{
    constexpr uint16_t level[SL_KV4_LEVELS] = SL_KV4_TURBO4;
    uint32_t w = 0;
    for (int i = 0; i < 4; i++)
        w |= static_cast<uint32_t>(level[first + i] >> shift & 0xFF) << 8 * i;
    return w;
}

/* 2^10 times a level, which is whole: they are 0.125 at least and have eight bits. */
static constexpr __host__ __device__ uint32_t sl_kv4_whole(int i)
{
    constexpr uint16_t level[SL_KV4_LEVELS] = SL_KV4_TURBO4;
    return static_cast<uint32_t>(0x80 | (level[i] & 0x7F)) << ((level[i] >> 7) - 127 + 10 - 7);
}

/* The border between level i and the next one. */
static constexpr __host__ __device__ float sl_kv4_border(int i)
{
    return static_cast<float>(sl_kv4_whole(i) + sl_kv4_whole(i + 1)) * 0x1p-11f;
}

/* 2^20 times the square of a level. */
static constexpr __host__ __device__ uint32_t sl_kv4_square(int i)
{
    return sl_kv4_whole(i) * sl_kv4_whole(i);
}

/* ---------------------------------------------------------------- the format */

struct sl_kv_turbo4 {
    typedef sl_elem_bf16 elem;
    static constexpr bool scaled = true;

    static constexpr __host__ __device__ int tile_bytes(int dim)
    {
        return SL_KV_TILE * (row_bytes(dim) + 2);
    }
    static constexpr __host__ __device__ int row_bytes(int dim)
    {
        return dim / 2;
    }
    /* Two scales as they are multiplied. */
    static __device__ __forceinline__ uint32_t scale_pair(uint32_t f16)
    {
        __half2 pair;
        memcpy(&pair, &f16, sizeof pair);
        const float2 x = __half22float2(pair);
        return sl_pack_bf16(x.x, x.y);
    }
    static __device__ __forceinline__ uint32_t scales_of(const uint8_t *tile, int dim, int row)
    {
        return scale_pair(
            *reinterpret_cast<const uint32_t *>(tile + SL_KV_TILE * row_bytes(dim) + row * 2));
    }

    /* Bytes of levels 0 to 3, as numbers that the compiler does not know: what it knows it puts
     * into a register anew for many of the permutations. */
    struct table {
        uint32_t lower, upper;
    };
    static __device__ __forceinline__ struct table table_of()
    {
        return {__shfl_sync(0xFFFFFFFFu, sl_kv4_bytes(0, 0), 0),
                __shfl_sync(0xFFFFFFFFu, sl_kv4_bytes(0, 8), 0)};
    }

    /* Of the two elements of a word the dimensions j = 2 half and the one after it, each a pair, a
     * number of the lower element first. */
    static __device__ __forceinline__ void dequant_half(const struct table &t, uint32_t w, int half,
                                                        uint32_t scales, uint32_t &first,
                                                        uint32_t &second)
    {
        constexpr uint32_t LOWER = sl_kv4_bytes(4, 0), UPPER = sl_kv4_bytes(4, 8);
        const uint32_t which = __byte_perm(w, 0, half == 0 ? 0x4420 : 0x4431) & 0x7777u;
        const uint32_t lower = __byte_perm(t.lower, LOWER, which);
        const uint32_t upper =
            sl_mask_or(half == 0 ? w : w << 4, 0x80808080u, __byte_perm(t.upper, UPPER, which));
        first = sl_kv_fp8::scaled_by(__byte_perm(lower, upper, 0x6240), scales);
        second = sl_kv_fp8::scaled_by(__byte_perm(lower, upper, 0x7351), scales);
    }
    static __device__ __forceinline__ void dequant_half(uint32_t w, int half, uint32_t scales,
                                                        uint32_t &first, uint32_t &second)
    {
        const struct table t = {sl_kv4_bytes(0, 0), sl_kv4_bytes(0, 8)};
        dequant_half(t, w, half, scales, first, second);
    }

    struct scales {
        uint32_t of[2];
        struct table levels;
    };
    template <int D> static __device__ __forceinline__ struct scales key_scales(const uint8_t *tile)
    {
        const int lane = static_cast<int>(threadIdx.x) & 31;
        struct scales s;
        s.levels = table_of();
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
        return {{scales_of(tile, D, 2 * (lane & 3)), scales_of(tile, D, 8 + 2 * (lane & 3))},
                table_of()};
    }

    /* Two words are 32 dimensions of 16 positions: of a step of 16 dimensions a half of each. */
    template <int D> static constexpr int LOADS = 4;
    static constexpr int RAW = 2;
    template <int D, int L>
    static __device__ __forceinline__ void key_raw(uint32_t raw[], const uint8_t *tile, int dim)
    {
        const int lane = static_cast<int>(threadIdx.x) & 31;
        if constexpr (L == 4)
            sl_ldmatrix_x4(raw, tile + sl_kv_piece(D / 2, lane & 15, dim / 32 + (lane >> 4)));
        else
            sl_ldmatrix_x2(raw, tile + sl_kv_piece(D / 2, lane & 15, dim / 32));
    }
    template <int D, int L>
    static __device__ __forceinline__ void value_raw(uint32_t raw[], const uint8_t *tile, int dim)
    {
        const int lane = static_cast<int>(threadIdx.x) & 31;
        if constexpr (L == 4)
            sl_ldmatrix_x4_trans(raw, tile + sl_kv_piece(D / 2, lane & 15, dim / 32 + (lane >> 4)));
        else
            sl_ldmatrix_x2_trans(raw, tile + sl_kv_piece(D / 2, lane & 15, dim / 32));
    }
    /* The words of a step, of which L were loaded at once. */
    template <int L>
    static __device__ __forceinline__ const uint32_t *words_of(const uint32_t *raw, int step)
    {
        return raw - step % L * RAW + step % L / 2 * 2;
    }
    template <int L>
    static __device__ __forceinline__ void key_rows(uint32_t to[4], const uint32_t *raw, int step,
                                                    const struct scales &s)
    {
        const uint32_t *w = words_of<L>(raw, step);
#pragma unroll
        for (int i = 0; i < 2; i++)
            dequant_half(s.levels, w[i], step % 2, s.of[i], to[i], to[2 + i]);
    }
    template <int L>
    static __device__ __forceinline__ void value_rows(uint32_t to[4], const uint32_t *raw, int step,
                                                      const struct scales &s)
    {
        const uint32_t *w = words_of<L>(raw, step);
#pragma unroll
        for (int i = 0; i < 2; i++)
            dequant_half(s.levels, w[i], step % 2, s.of[i], to[2 * i], to[2 * i + 1]);
    }

    template <int D>
    static __device__ __forceinline__ void key_frags(uint32_t b[4], const uint8_t *tile, int dim)
    {
        uint32_t r[2];
        const struct scales s = key_scales<D>(tile);
        key_raw<D, 1>(r, tile, dim);
#pragma unroll
        for (int i = 0; i < 2; i++)
            dequant_half(s.levels, r[i], dim / 16 % 2, s.of[i], b[2 * i], b[2 * i + 1]);
    }
    template <int D>
    static __device__ __forceinline__ void value_frags(uint32_t b[4], const uint8_t *tile, int dim)
    {
        uint32_t r[2];
        const struct scales s = value_scales<D>(tile);
        value_raw<D, 1>(r, tile, dim);
#pragma unroll
        for (int i = 0; i < 2; i++)
            dequant_half(s.levels, r[i], dim / 16 % 2, s.of[i], b[i], b[2 + i]);
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
        *reinterpret_cast<uint16_t *>(tile + SL_KV_TILE * row_bytes(dim) + i * 2) = 0;
    }

    /* The sum of squares of a row, as sl_kv4_encode has it. */
    static __device__ __forceinline__ double power_of(const float *x, int dim)
    {
        const int lane = static_cast<int>(threadIdx.x % 32);
        double part = 0.0, sum = 0.0;
        for (int d = lane % 16; d < dim; d += 16)
            part = __dadd_rn(part, __dmul_rn(static_cast<double>(x[d]), static_cast<double>(x[d])));
#pragma unroll
        for (int j = 0; j < 16; j++)
            sum = __dadd_rn(sum, __shfl_sync(0xFFFFFFFFu, part, j));
        return sum;
    }

    /* A code where its bits lie in an element; its square is added, times 2^20. */
    static __device__ __forceinline__ uint32_t code_of(float x, float unit, int j,
                                                       uint32_t &squares)
    {
        const int sign = j < 2 ? 8 * j + 7 : 8 * j - 13;
        uint32_t code = 0;
        squares += sl_kv4_square(0);
#pragma unroll
        for (int i = 0; i < SL_KV4_LEVELS - 1; i++) {
            const bool above = fabsf(x) >= __fmul_rn(sl_kv4_border(i), unit);
            code += above;
            squares += above ? sl_kv4_square(i + 1) - sl_kv4_square(i) : 0;
        }
        return code << 4 * j | __float_as_uint(x) >> 31 << sign;
    }

    /* A warp: the row x [dim], which has been rotated. */
    static __device__ __forceinline__ void store(const float *x, int dim, uint8_t *tile, int slot)
    {
        const int lane = static_cast<int>(threadIdx.x % 32);
        const double power = power_of(x, dim);
        const bool finite = power <= 1e300;
        const float unit =
            static_cast<float>(__dsqrt_rn(__ddiv_rn(power, static_cast<double>(dim))));
        const bool any = finite && unit != 0.0f;
        uint32_t squares = 0;
        for (int e = lane; e < dim / 4; e += 32) {
            const float *from = x + e / 8 * 32 + e % 8;
            uint32_t element = 0;
#pragma unroll
            for (int j = 0; j < 4; j++)
                element |= code_of(from[8 * j], unit, j, squares);
            *reinterpret_cast<uint16_t *>(tile + sl_kv_piece(row_bytes(dim), slot, e / 8) +
                                          e % 8 * 2) = static_cast<uint16_t>(any ? element : 0);
        }
        squares = __reduce_add_sync(0xFFFFFFFFu, squares);
        const double of_codes = __dmul_rn(static_cast<double>(squares), 0x1p-20);
        const float scale =
            fminf(static_cast<float>(__dsqrt_rn(__ddiv_rn(power, of_codes))), 65504.0f);
        const __half half = __float2half_rn(any ? scale : 0.0f);
        if (lane == 0)
            *reinterpret_cast<uint16_t *>(tile + SL_KV_TILE * row_bytes(dim) + 2 * slot) =
                finite ? __half_as_ushort(half) : static_cast<uint16_t>(0x7E00);
    }
};

#endif
