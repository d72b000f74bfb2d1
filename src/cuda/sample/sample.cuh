/* SPDX-License-Identifier: MIT
 * sample.cuh - what the kernels of sampling share: orders of numbers, reductions over a block,
 * weights of probabilities (src/engine/sample_exp.h).
 */
#ifndef SL_CUDA_SAMPLE_CUH
#define SL_CUDA_SAMPLE_CUH

#include "cuda/launch.cuh"
#include "cuda/math.cuh"
#include "cuda/ptx.cuh"
#include "cuda/sample/sample_scratch.cuh"

#include <float.h>

/* Shared memory of reductions. */
struct sl_st_room {
    struct sl_sample_row row;
    sl_u64 words[32];
    uint32_t counts[32];
};

/* Enqueues the kernels that choose from few tokens (sample_few.cu); they leave state[row].open. */
void sl_st_few(struct sl_cuda *cu, const struct sl_st_args *a);

/* Enqueues the report (sample_report.cu). */
void sl_st_report(struct sl_cuda *cu, struct sl_st_args *a);

static __device__ __forceinline__ void sl_st_load_row(const struct sl_st_args &a,
                                                      struct sl_st_room *s, int row)
{
    constexpr int n = sizeof(struct sl_sample_row) / 4;
    static_assert(sizeof(struct sl_sample_row) % 4 == 0 && n <= SL_ST_THREADS, "words of a row");
    if (threadIdx.x < n)
        reinterpret_cast<uint32_t *>(&s->row)[threadIdx.x] =
            reinterpret_cast<const uint32_t *>(a.op.rows + row)[threadIdx.x];
    __syncthreads();
}

static __device__ __forceinline__ const float *sl_st_logits(const struct sl_st_args &a, int row)
{
    return a.op.logits + (int64_t)row * a.op.ld;
}

/* Four logits from i on; after the end of the row -infinity. aligned: the row is, to 16 bytes. */
static __device__ __forceinline__ void sl_st_load4(const float *row, bool aligned, int32_t i,
                                                   int32_t n_vocab, float x[4])
{
    if (aligned && i + 3 < n_vocab) {
        float4 v = *reinterpret_cast<const float4 *>(row + i);
        x[0] = v.x;
        x[1] = v.y;
        x[2] = v.z;
        x[3] = v.w;
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        x[j] = i + j < n_vocab ? row[i + j] : -INFINITY;
}

/* ------------------------------------------------------------------ order */

/* The order of floats as integers; -0 counts as +0, NaN without sign bit is above +infinity. */
static __device__ __forceinline__ uint32_t sl_st_order(float x)
{
    int32_t b = __float_as_int(__fadd_rn(x, 0.0f));
    return (uint32_t)b ^ (uint32_t)(b >> 31 | (int32_t)0x80000000u);
}

static __device__ __forceinline__ float sl_st_unorder(uint32_t k)
{
    return __uint_as_float(k >> 31 ? k ^ 0x80000000u : ~k);
}

/* Larger value first, then lower id: the greater number. */
static __device__ __forceinline__ sl_u64 sl_st_pack(float x, int32_t id)
{
    return (sl_u64)sl_st_order(x) << 32 | ~(uint32_t)id;
}

static __device__ __forceinline__ int32_t sl_st_id(sl_u64 packed)
{
    return (int32_t) ~(uint32_t)packed;
}

/* ------------------------------------------------------------------ reductions of a block */

static __device__ __forceinline__ sl_u64 sl_st_max_warp(sl_u64 v)
{
    uint32_t hi = (uint32_t)(v >> 32), top = __reduce_max_sync(0xffffffffu, hi);
    uint32_t lo = __reduce_max_sync(0xffffffffu, hi == top ? (uint32_t)v : 0u);
    return (sl_u64)top << 32 | lo;
}

/* In every thread. Ends so that words may be used again. */
static __device__ __forceinline__ sl_u64 sl_st_max_block(struct sl_st_room *s, sl_u64 v)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    v = sl_st_max_warp(v);
    if (lane == 0)
        s->words[warp] = v;
    __syncthreads();
    v = sl_st_max_warp(s->words[lane % SL_ST_WARPS]);
    __syncthreads();
    return v;
}

static __device__ __forceinline__ uint32_t sl_st_sum_block(struct sl_st_room *s, uint32_t v)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    v = __reduce_add_sync(0xffffffffu, v);
    if (lane == 0)
        s->counts[warp] = v;
    __syncthreads();
    v = __reduce_add_sync(0xffffffffu, lane < SL_ST_WARPS ? s->counts[lane] : 0u);
    __syncthreads();
    return v;
}

static __device__ __forceinline__ sl_u64 sl_st_sum_warp(sl_u64 v)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

static __device__ __forceinline__ sl_u64 sl_st_sum_block64(struct sl_st_room *s, sl_u64 v)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    v = sl_st_sum_warp(v);
    if (lane == 0)
        s->words[warp] = v;
    __syncthreads();
    v = sl_st_sum_warp(lane < SL_ST_WARPS ? s->words[lane] : 0);
    __syncthreads();
    return v;
}

/* ------------------------------------------------------------------ weights */

/* The weight of a probability is p * 2^41, rounded to nearest even: these 24 bits, shifted left by
 * sl_st_shift. From 2^-18 on p has its own 24 bits and nothing is rounded. */
#define SL_ST_EXACT 109u /* the exponent field of 2^-18 */

static __device__ __forceinline__ uint32_t sl_st_digits(float p)
{
    uint32_t bits = __float_as_uint(p), rounded = __float2uint_rn(__fmul_rn(p, 0x1p41f));
    return bits >> 23 >= SL_ST_EXACT ? (bits & 0x7fffffu) | 0x800000u : rounded;
}

static __device__ __forceinline__ uint32_t sl_st_shift(uint32_t bits)
{
    uint32_t e = bits >> 23;
    return e >= SL_ST_EXACT ? e - SL_ST_EXACT : 0;
}

static __device__ __forceinline__ sl_u64 sl_st_weight(float p)
{
    return (sl_u64)sl_st_digits(p) << sl_st_shift(__float_as_uint(p));
}

#endif
