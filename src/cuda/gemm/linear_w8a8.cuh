/* SPDX-License-Identifier: MIT
 * linear_w8a8.cuh - GEMMs of FP8 weights and FP8 activations: the order of sums, and what the
 * kernels for few tokens (linear_w8a8_few.cuh) and for many (linear_w8a8_wide.cuh) share.
 *
 * Weights have the layout w8a8 of weight.h. For every output and every 128 columns there is a sum
 * that wgmma makes from nothing, in steps of 32 columns; after it `acc = fma(sum, x_scale *
 * w_scale, acc)` in ascending order from +0, the product of the scales rounded once; at the end acc
 * times the scale of the row, then the bias. This also repairs what the chip's sums of FP8 lose,
 * which keep about 14 bits. One order for one token and for a thousand: all widths of wgmma give
 * the same bits, and so do the operands exchanged (lab/gemm_fp8.cu); mma.sync does not.
 */
#ifndef SL_CUDA_LINEAR_W8A8_CUH
#define SL_CUDA_LINEAR_W8A8_CUH

#include "cuda/gemm/linear_store.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx_fp8.cuh"

#define SL_W8_UNIT   SL_CUDA_W8A8_UNIT
#define SL_W8_HEADER 1024   /* barriers */
#define SL_W8_RING   28     /* most stages */
#define SL_W8_WHOLE  232448 /* shared memory of a block that is alone */
#define SL_W8_RASTER 8      /* columns of tokens of a raster group */

struct sl_w8_plan {
    const float *xs; /* scales of tokens: [columns / 128][ld_xs] */
    int32_t ld_xs;
    int32_t n_k;     /* steps of 128 columns */
    int32_t n_tiles; /* of rows */
    int32_t n_cols;  /* of tokens */
    int32_t n_units;
    int32_t raster;
};

/* The scales after the codes: of rows, then of units. */
static __device__ __host__ __forceinline__ const float *sl_w8_scales(const sl_lin_part &p, int n_k)
{
    int64_t n_units = static_cast<int64_t>(SL_CEIL_DIV(p.n_rows, 64)) * n_k;
    return reinterpret_cast<const float *>(p.w + n_units * SL_W8_UNIT);
}

/* A unit of 64 rows and 128 columns; what is after the last rows reads those again, and nobody
 * stores it. */
struct sl_w8_rows {
    const uint8_t *codes; /* n_k units */
    const float *scales;  /* n_k */
};

static __device__ __forceinline__ sl_w8_rows sl_w8_rows_of(const sl_lin_part &p, int n_k, int block)
{
    int64_t at = static_cast<int64_t>(min(block, SL_CEIL_DIV(p.n_rows, 64) - 1)) * n_k;
    return {p.w + at * SL_W8_UNIT, sl_w8_scales(p, n_k) + 64 * SL_CEIL_DIV(p.n_rows, 64) + at};
}

struct sl_w8_unit {
    int32_t part; /* of a gated product 0 */
    int32_t tile; /* of the part */
    int32_t token0;
};

static __device__ __forceinline__ sl_w8_unit sl_w8_find(const sl_lin &l, const sl_w8_plan &p,
                                                        int id, int tokens)
{
    int per_group = p.raster * p.n_tiles;
    int group = id / per_group, in = id % per_group;
    int width = min(p.raster, p.n_cols - group * p.raster);
    int row = in / width;
    sl_w8_unit u;
    u.part = 0;
    while (!l.gated && u.part + 1 < l.n_parts && row >= l.part[u.part + 1].first)
        u.part++;
    u.tile = row - l.part[u.part].first;
    u.token0 = (group * p.raster + in % width) * tokens;
    return u;
}

/* Tiles of `rows` rows and `tokens` tokens. */
static inline sl_w8_plan sl_w8_plan_of(sl_lin *l, const float *xs, int32_t ld_xs, int32_t rows,
                                       int32_t tokens, int32_t raster)
{
    sl_w8_plan p = {};
    p.xs = xs;
    p.ld_xs = ld_xs;
    p.n_k = SL_CEIL_DIV(l->k, 128);
    for (int i = 0; i < (l->gated ? 1 : l->n_parts); i++) {
        l->part[i].first = p.n_tiles;
        p.n_tiles += SL_CEIL_DIV(l->part[i].n_rows, rows);
    }
    p.n_cols = SL_CEIL_DIV(l->n, tokens);
    p.raster = SL_MIN(raster, p.n_cols);
    p.n_units = p.n_tiles * p.n_cols;
    return p;
}

/* ------------------------------------------------------------------ the ring */

struct sl_w8_place {
    int32_t slot;
    uint32_t parity;
};

static __device__ __forceinline__ void sl_w8_next(sl_w8_place &at, int stages)
{
    if (++at.slot == stages) {
        at.slot = 0;
        at.parity ^= 1;
    }
}

static __device__ __forceinline__ uint64_t *sl_w8_full(uint8_t *smem, int slot)
{
    return reinterpret_cast<uint64_t *>(smem) + slot;
}

static __device__ __forceinline__ uint64_t *sl_w8_empty(uint8_t *smem, int slot)
{
    return reinterpret_cast<uint64_t *>(smem) + SL_W8_RING + slot;
}

/* ------------------------------------------------------------------ activations */

#define SL_W8_QUANT_WARPS 8

struct sl_w8_quant {
    const __nv_bfloat16 *x;
    int64_t ld_x;
    int32_t n, k, n_k;
    bool vec; /* rows of x start at multiples of 16 bytes */
    uint8_t *q;
    float *xs;
    int32_t ld_xs;
};

/* Of a group whose largest magnitude has the bits `most` (of BF16): scale = amax / 448, code = x *
 * (448 / amax) to the nearest. */
struct sl_w8_scale {
    float scale, inv;
    bool live; /* codes are not all zeros */

    /* Of two columns. */
    __device__ __forceinline__ uint32_t codes(uint32_t pair) const
    {
        uint32_t c = sl_e4m3x2(__fmul_rn(__uint_as_float(pair << 16), inv),
                               __fmul_rn(__uint_as_float(pair & 0xFFFF0000u), inv));
        return live ? c : 0u;
    }
};

static __device__ __forceinline__ sl_w8_scale sl_w8_scale_of(uint32_t most)
{
    float amax = __uint_as_float(most << 16);
    bool finite = most < 0x7F80u, live = finite && amax >= 0x1p-100f;
    return {live     ? __fdiv_rn(amax, 448.0f)
            : finite ? 0.0f
                     : __uint_as_float(0x7FC00000u),
            live ? __fdiv_rn(448.0f, amax) : 0.0f, live};
}

/* 16 columns from col on, as eight pairs; zeros after the end. */
static __device__ __forceinline__ void sl_w8_quant_load(const sl_w8_quant &a, int token, int col,
                                                        uint32_t (&w)[8])
{
    const uint16_t *from = reinterpret_cast<const uint16_t *>(a.x) + token * a.ld_x + col;
    if (token < a.n && a.vec && col + 16 <= a.k) {
        uint4 lo = *reinterpret_cast<const uint4 *>(from);
        uint4 hi = *reinterpret_cast<const uint4 *>(from + 8);
        w[0] = lo.x, w[1] = lo.y, w[2] = lo.z, w[3] = lo.w;
        w[4] = hi.x, w[5] = hi.y, w[6] = hi.z, w[7] = hi.w;
        return;
    }
    const int left = token < a.n ? a.k - col : 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        w[i] = 2 * i < left ? from[2 * i] : 0u;
        w[i] |= 2 * i + 1 < left ? static_cast<uint32_t>(from[2 * i + 1]) << 16 : 0u;
    }
}

/* The codes of what eight lanes loaded, 16 columns each, and the scale of them all. */
static __device__ __forceinline__ uint4 sl_w8_quant_make(const uint32_t (&w)[8], float *scale)
{
    uint32_t most = 0, out[4];
#pragma unroll
    for (int i = 0; i < 8; i++)
        most = max(most, max(w[i] & 0x7FFFu, w[i] >> 16 & 0x7FFFu));
#pragma unroll
    for (int m = 4; m > 0; m >>= 1)
        most = max(most, __shfl_xor_sync(0xffffffffu, most, m));
    sl_w8_scale s = sl_w8_scale_of(most);
#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = s.codes(w[2 * i]) | s.codes(w[2 * i + 1]) << 16;
    *scale = s.scale;
    return make_uint4(out[0], out[1], out[2], out[3]);
}

#endif
