/* SPDX-License-Identifier: MIT
 * Pooling: one vector of each text's rows, and its norm.
 *
 * Columns are spread over blocks, and the rows of a text over eight warps, so that a long text does
 * not wait for one load after the other. The order of a mean's sums depends on the rows' places in
 * the text alone: warp w adds rows w, w + 8, w + 16, ... in ascending order from +0, and the eight
 * sums are added as a tree, neighbours first. 2 bytes a value are read once; a step of 8,192 tokens
 * of width 1,024 is 17 MB, some 5 us at 4 TB/s.
 */
#include "cuda/launch.cuh"
#include "cuda/norm.cuh"

#define POOL_COLS  64 /* of a block: two a lane */
#define POOL_WARPS 8
#define POOL_AHEAD 4 /* rows that a warp has under way */

struct pool_args {
    const __nv_bfloat16 *x;
    const struct sl_span *spans; /* NULL: a row each */
    int32_t h;
    enum sl_pool_kind kind;
    float *out;
};

/* Two columns, zeros behind the end. */
static __device__ __forceinline__ float2 load2(const __nv_bfloat16 *row, int32_t col, int32_t h)
{
    return make_float2(col < h ? __bfloat162float(row[col]) : 0.0f,
                       col + 1 < h ? __bfloat162float(row[col + 1]) : 0.0f);
}

static __device__ __forceinline__ float joined(enum sl_pool_kind kind, float a, float b)
{
    return kind == SL_POOL_MAX ? sl_max_nan(a, b) : __fadd_rn(a, b);
}

/* What a warp has of a text's rows. */
static __device__ __forceinline__ float2 warp_rows(const pool_args &a, const __nv_bfloat16 *x,
                                                   int32_t n, int warp, int32_t col)
{
    const float none = a.kind == SL_POOL_MAX ? __int_as_float(static_cast<int>(0xFF800000u)) : 0.0f;
    float2 all = make_float2(none, none);
    for (int32_t i = warp; i < n; i += POOL_WARPS * POOL_AHEAD) {
        float2 v[POOL_AHEAD];
#pragma unroll
        for (int k = 0; k < POOL_AHEAD; k++)
            if (i + k * POOL_WARPS < n)
                v[k] = load2(x + static_cast<int64_t>(i + k * POOL_WARPS) * a.h, col, a.h);
#pragma unroll
        for (int k = 0; k < POOL_AHEAD; k++)
            if (i + k * POOL_WARPS < n)
                all = make_float2(joined(a.kind, all.x, v[k].x), joined(a.kind, all.y, v[k].y));
    }
    return all;
}

/* grid (texts, columns / POOL_COLS) */
static __global__ void __launch_bounds__(POOL_WARPS * 32) pool_kernel(pool_args a)
{
    SL_SMEM(float2, part); /* [POOL_WARPS][32] */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int32_t text = static_cast<int32_t>(blockIdx.x);
    const int32_t col = static_cast<int32_t>(blockIdx.y) * POOL_COLS + 2 * lane;
    sl_grid_launch_dependents();
    sl_grid_wait();
    struct sl_span span = {text, 1, 0, 0, 0};
    if (a.spans != nullptr)
        span = a.spans[text];
    const bool several = a.kind == SL_POOL_MEAN || a.kind == SL_POOL_MAX;
    if (!several) {
        span.first += a.kind == SL_POOL_LAST ? span.n - 1 : 0;
        span.n = 1;
    }
    part[threadIdx.x] =
        warp_rows(a, a.x + static_cast<int64_t>(span.first) * a.h, span.n, warp, col);
    __syncthreads();
    for (int n = POOL_WARPS / 2; n > 0; n /= 2) {
        float2 both = {};
        if (warp < n) {
            const float2 even = part[2 * warp * 32 + lane], odd = part[(2 * warp + 1) * 32 + lane];
            both = make_float2(joined(a.kind, even.x, odd.x), joined(a.kind, even.y, odd.y));
        }
        __syncthreads();
        if (warp < n)
            part[threadIdx.x] = both;
        __syncthreads();
    }
    if (warp > 0)
        return;
    float2 v = part[lane];
    if (a.kind == SL_POOL_MEAN && span.n > 1) {
        const float by = __fdiv_rn(1.0f, static_cast<float>(span.n));
        v = make_float2(__fmul_rn(v.x, by), __fmul_rn(v.y, by));
    }
    float *out = a.out + static_cast<int64_t>(text) * a.h + col;
    if (col < a.h)
        out[0] = v.x;
    if (col + 1 < a.h)
        out[1] = v.y;
}

struct unit_args {
    float *x;
    int32_t h;
};

/* Rows to length 1; what is shorter than 1e-12 is divided by that. The order is norm.cuh's. */
template <int NT> static __global__ void __launch_bounds__(NT) unit_kernel(unit_args a)
{
    SL_SMEM(float, room);
    float *x = a.x + static_cast<int64_t>(blockIdx.x) * a.h;
    float s = 0.0f;
    sl_grid_launch_dependents();
    sl_grid_wait();
    for (int32_t i = 4 * static_cast<int32_t>(threadIdx.x); i < a.h; i += 4 * NT)
        s = sl_norm_squares(s, sl_norm_load4<false>(x, i, a.h));
    const float length = __fsqrt_rn(sl_norm_sum_block<NT>(s, room));
    const float by = length > 1e-12f ? length : 1e-12f;
    for (int32_t i = 4 * static_cast<int32_t>(threadIdx.x); i < a.h; i += 4 * NT) {
        const float4 v = sl_norm_load4<false>(x, i, a.h);
        sl_norm_store4<false>(x, i, a.h,
                              make_float4(__fdiv_rn(v.x, by), __fdiv_rn(v.y, by),
                                          __fdiv_rn(v.z, by), __fdiv_rn(v.w, by)));
    }
}

extern "C" void sl_cuda_pool(struct sl_backend *be, const struct sl_op_pool *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    const pool_args k = {static_cast<const __nv_bfloat16 *>(a->x), a->spans, a->h, a->kind, a->out};
    const unit_args u = {a->out, a->h};
    const dim3 rows(static_cast<unsigned>(a->n));
    sl_launch(
        cu, pool_kernel,
        dim3(static_cast<unsigned>(a->n), static_cast<unsigned>(SL_CEIL_DIV(a->h, POOL_COLS))),
        dim3(POOL_WARPS * 32), POOL_WARPS * 32 * sizeof(float2), k);
    if (!a->normalize)
        return;
    if (a->h <= 8192)
        sl_launch(cu, unit_kernel<256>, rows, dim3(256), 32 * sizeof(float), u);
    else
        sl_launch(cu, unit_kernel<1024>, rows, dim3(1024), 32 * sizeof(float), u);
}
