/* SPDX-License-Identifier: MIT
 * norm.cuh - norms of rows: the order of their sums, for the kernels of rows.cu and for products of
 * few tokens, which norm their input themselves.
 *
 * The sum of squares, in an order fixed by the width h alone (NT = 256 threads for h <= 8192, else
 * 1024): element i belongs to thread (i / 4) % NT; a thread adds its elements in ascending order,
 * from +0, by s = fma(x, x, s); 32 threads of a warp add by s[l] + s[l ^ 16], ^ 8, ^ 4, ^ 2, ^ 1;
 * the sums of the warps (zeros up to 32) by the same tree. Threads may be imagined: a warp can do
 * the work of several.
 *
 * In a product, every block norms all tokens: x comes from L2, 16 KB a token, where its normed row
 * would be 8. That takes the place of a kernel: its launch, its own way to L2 and back.
 */
#ifndef SL_CUDA_NORM_CUH
#define SL_CUDA_NORM_CUH

#include "cuda/ptx.cuh"

#include <cuda_bf16.h>

static __device__ __forceinline__ float sl_norm_sum_warp(float s)
{
#pragma unroll
    for (int m = 16; m > 0; m >>= 1)
        s = __fadd_rn(s, __shfl_xor_sync(0xffffffffu, s, m));
    return s;
}

static __device__ __forceinline__ float sl_norm_squares(float s, float4 v)
{
    s = __fmaf_rn(v.x, v.x, s);
    s = __fmaf_rn(v.y, v.y, s);
    s = __fmaf_rn(v.z, v.z, s);
    return __fmaf_rn(v.w, v.w, s);
}

static __device__ __forceinline__ float sl_norm_scale(float sum, float eps, int32_t h)
{
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)h), eps)));
}

struct __align__(8) sl_norm_quad
{
    __nv_bfloat162 a, b;
};

/* Four normed activations. */
static __device__ __forceinline__ sl_norm_quad sl_norm_of(float4 v, float4 w, float scale)
{
    return {__floats2bfloat162_rn(__fmul_rn(__fmul_rn(v.x, scale), w.x),
                                  __fmul_rn(__fmul_rn(v.y, scale), w.y)),
            __floats2bfloat162_rn(__fmul_rn(__fmul_rn(v.z, scale), w.z),
                                  __fmul_rn(__fmul_rn(v.w, scale), w.w))};
}

/* ------------------------------------------------------------------ rows */

/* The same in every thread: every warp adds the warps' sums. */
template <int NT> static __device__ __forceinline__ float sl_norm_sum_block(float s, float *room)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    s = sl_norm_sum_warp(s);
    if (lane == 0)
        room[warp] = s;
    __syncthreads();
    return sl_norm_sum_warp(lane < NT / 32 ? room[lane] : 0.0f);
}

/* Four floats from i on, zeros behind the end. WIDE: rows are 16-byte aligned and h % 4 == 0. */
template <bool WIDE>
static __device__ __forceinline__ float4 sl_norm_load4(const float *p, int32_t i, int32_t h)
{
    float4 v = make_float4(0, 0, 0, 0);
    if (WIDE) {
        if (i < h)
            v = *reinterpret_cast<const float4 *>(p + i);
        return v;
    }
    v.x = i < h ? p[i] : 0.0f;
    v.y = i + 1 < h ? p[i + 1] : 0.0f;
    v.z = i + 2 < h ? p[i + 2] : 0.0f;
    v.w = i + 3 < h ? p[i + 3] : 0.0f;
    return v;
}

template <bool WIDE>
static __device__ __forceinline__ void sl_norm_store4(float *p, int32_t i, int32_t h, float4 v)
{
    if (WIDE) {
        if (i < h)
            *reinterpret_cast<float4 *>(p + i) = v;
        return;
    }
    const float e[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (i + j < h)
            p[i + j] = e[j];
}

/* As sl_red_add does it in products that add to the residual stream themselves. */
static __device__ __forceinline__ float4 sl_norm_add4(float4 a, float4 b)
{
    return make_float4(sl_add_ftz(a.x, b.x), sl_add_ftz(a.y, b.y), sl_add_ftz(a.z, b.z),
                       sl_add_ftz(a.w, b.w));
}

template <bool WIDE>
static __device__ __forceinline__ void sl_norm_store(__nv_bfloat16 *p, int32_t i, int32_t h,
                                                     float4 v, float4 w, float scale)
{
    const sl_norm_quad q = sl_norm_of(v, w, scale);
    if constexpr (WIDE) {
        if (i < h)
            *reinterpret_cast<sl_norm_quad *>(p + i) = q;
    } else {
        const __nv_bfloat16 e[4] = {__low2bfloat16(q.a), __high2bfloat16(q.a), __low2bfloat16(q.b),
                                    __high2bfloat16(q.b)};
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (i + j < h)
                p[i + j] = e[j];
    }
}

/* ------------------------------------------------------------------ rows of a cluster */

/* A cluster of four blocks has a row, each two of the eight warps of the order above, for which
 * four times as many threads load and store. QUADS: times SL_NORM_CLUSTER_COLS a row has columns.
 */
#define SL_NORM_CLUSTER         4
#define SL_NORM_CLUSTER_THREADS 256
#define SL_NORM_CLUSTER_COLS    4096
#define SL_NORM_WARPS           8 /* of the order above */
#define SL_NORM_SUMS            8 /* most sums of segments that are added up */

template <int QUADS> struct sl_norm_cluster {
    static constexpr int width = 64;
    static constexpr int bytes = 4 * QUADS * width * 16 + SL_NORM_WARPS * 4;
    float4 *row; /* [4 QUADS][width] */
    float *room;
    int rank, t, first;

    __device__ __forceinline__ explicit sl_norm_cluster(float4 *smem)
        : row(smem), room(reinterpret_cast<float *>(smem + 4 * QUADS * width)),
          rank(static_cast<int>(sl_cluster_rank())), t(static_cast<int>(threadIdx.x) % width),
          first(static_cast<int>(threadIdx.x) / width)
    {
    }
    /* Where quad j of a thread lies. */
    __device__ __forceinline__ int column(int j) const
    {
        return 4 * (width * rank + t + 256 * first) + SL_NORM_CLUSTER_COLS * j;
    }
    /* 1 / sqrt(...) of the row whose quads these are. */
    __device__ __forceinline__ float scale(const float4 (&v)[QUADS], float eps, int32_t h)
    {
#pragma unroll
        for (int j = 0; j < QUADS; j++)
            row[(first + 4 * j) * width + t] = v[j];
        __syncthreads();
        if (threadIdx.x < width) {
            float s = 0.0f;
#pragma unroll
            for (int k = 0; k < 4 * QUADS; k++)
                s = sl_norm_squares(s, row[k * width + t]);
            s = sl_norm_sum_warp(s);
            if (t % 32 < SL_NORM_CLUSTER)
                sl_cluster_map(room, static_cast<uint32_t>(t % 32))[2 * rank + t / 32] = s;
        }
        sl_cluster_sync();
        const int lane = static_cast<int>(threadIdx.x % 32);
        const float s = lane < SL_NORM_WARPS ? room[lane] : 0.0f;
        return sl_norm_scale(sl_norm_sum_warp(s), eps, h);
    }
};

static __device__ __forceinline__ float4 sl_norm_plus(float4 a, float4 b)
{
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                       __fadd_rn(a.w, b.w));
}

/* Four columns of n sums, which lie `apart` floats apart, added in order, and of a bias or NULL. */
static __device__ __forceinline__ float4 sl_norm_sums(const float *sums, int64_t apart, int32_t n,
                                                      const float *bias)
{
    float4 p[SL_NORM_SUMS];
#pragma unroll
    for (int s = 0; s < SL_NORM_SUMS; s++)
        if (s < n)
            p[s] = *reinterpret_cast<const float4 *>(sums + s * apart);
    float4 y = p[0];
#pragma unroll
    for (int s = 1; s < SL_NORM_SUMS; s++)
        if (s < n)
            y = sl_norm_plus(y, p[s]);
    return bias != nullptr ? sl_norm_plus(y, *reinterpret_cast<const float4 *>(bias)) : y;
}

/* ------------------------------------------------------------------ in products */

#define SL_NORM_QUADS 4    /* of a thread, at most */
#define SL_NORM_WIDTH 4096 /* which is this width */

/* What an imagined warp has of a row. Rows start at multiples of 16 bytes, widths are a multiple of
 * 4. */
struct sl_norm_part {
    float4 v[SL_NORM_QUADS];

    static __device__ __forceinline__ int32_t column(int warp, int k)
    {
        return 4 * (32 * (SL_NORM_WARPS * k + warp) + static_cast<int32_t>(threadIdx.x % 32));
    }
    __device__ __forceinline__ void load(const float *row, int warp, int32_t h)
    {
#pragma unroll
        for (int k = 0; k < SL_NORM_QUADS; k++) {
            int32_t i = column(warp, k);
            v[k] = i < h ? *reinterpret_cast<const float4 *>(row + i) : make_float4(0, 0, 0, 0);
        }
    }
    /* The warp's sum, in all lanes. */
    __device__ __forceinline__ float squares() const
    {
        float s = 0.0f;
#pragma unroll
        for (int k = 0; k < SL_NORM_QUADS; k++)
            s = sl_norm_squares(s, v[k]);
        return sl_norm_sum_warp(s);
    }
};

/* 1 / sqrt(...) of a row, of its warps' sums. */
static __device__ __forceinline__ float sl_norm_scale_of(const float *sums, float eps, int32_t h)
{
    int lane = static_cast<int>(threadIdx.x % 32);
    float s = lane < SL_NORM_WARPS ? sums[lane] : 0.0f;
    return sl_norm_scale(sl_norm_sum_warp(s), eps, h);
}

#endif
