/* SPDX-License-Identifier: MIT
 * rows_store.cu - the last dimensions of heads rotated, and a token's row to its page.
 *
 * A warp has a head of a token, or its row, in registers: lane l the numbers 4 l .. 4 l + 3, then
 * those 128 further on. The sum of squares: a lane's in that order by fma from +0, then lanes by
 * s[l] + s[l ^ 16], ^ 8, .. ^ 1. Bytes of a token with 64 heads of 512: 256 KB, read and written.
 */
#include "cuda/attention/rows.cuh"
#include "cuda/norm.cuh"

#define STORE_WARPS 8
#define STORE_PARTS (SL_ROWS_DIM / 128)

struct store_row {
    float4 x[STORE_PARTS];

    static __device__ __forceinline__ int32_t at(int i)
    {
        return 4 * static_cast<int32_t>(threadIdx.x % 32) + 128 * i;
    }
    __device__ __forceinline__ void load(const float *from, int32_t dim)
    {
#pragma unroll
        for (int i = 0; i < STORE_PARTS; i++)
            x[i] = at(i) < dim ? *reinterpret_cast<const float4 *>(from + at(i))
                               : make_float4(0, 0, 0, 0);
    }
    /* w NULL: 1 */
    __device__ __forceinline__ void norm(const float *w, float eps, int32_t dim)
    {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < STORE_PARTS; i++)
            sum = sl_norm_squares(sum, x[i]);
        const float by = sl_norm_scale(sl_norm_sum_warp(sum), eps, dim);
#pragma unroll
        for (int i = 0; i < STORE_PARTS; i++) {
            if (at(i) >= dim)
                break;
            float4 f = make_float4(1, 1, 1, 1);
            if (w != nullptr)
                f = *reinterpret_cast<const float4 *>(w + at(i));
            x[i] = make_float4(
                __fmul_rn(__fmul_rn(x[i].x, by), f.x), __fmul_rn(__fmul_rn(x[i].y, by), f.y),
                __fmul_rn(__fmul_rn(x[i].z, by), f.z), __fmul_rn(__fmul_rn(x[i].w, by), f.w));
        }
    }
    /* The last n; angles: the token's. */
    __device__ __forceinline__ void turn(const float *angles, int32_t n, int32_t dim)
    {
#pragma unroll
        for (int i = 0; i < STORE_PARTS; i++) {
            const int32_t d = at(i) - (dim - n); /* even: so are both */
            float2 y;
            if (at(i) >= dim)
                break;
            if (d >= 0) {
                y = sl_rows_turn(x[i].x, x[i].y, *reinterpret_cast<const float2 *>(angles + d));
                x[i].x = y.x, x[i].y = y.y;
            }
            if (d + 2 >= 0) {
                y = sl_rows_turn(x[i].z, x[i].w, *reinterpret_cast<const float2 *>(angles + d + 2));
                x[i].z = y.x, x[i].w = y.y;
            }
        }
    }
};

/* ---------------------------------------------------------------- heads */

struct tails_args {
    float *x;
    const float *angles;
    int64_t n; /* heads of all tokens */
    int32_t n_heads, dim, n_dims;
    bool norm;
    float eps;
};

static __global__ void __launch_bounds__(STORE_WARPS * 32)
    rows_tails_kernel(const __grid_constant__ struct tails_args a)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * STORE_WARPS + threadIdx.x / 32;
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (i >= a.n)
        return;
    struct store_row row;
    float *x = a.x + i * a.dim;
    row.load(x, a.dim);
    if (a.norm)
        row.norm(nullptr, a.eps, a.dim);
    row.turn(a.angles + i / a.n_heads * a.n_dims, a.n_dims, a.dim);
#pragma unroll
    for (int k = 0; k < STORE_PARTS; k++)
        if (row.at(k) < a.dim)
            *reinterpret_cast<float4 *>(x + row.at(k)) = row.x[k];
}

extern "C" void sl_cuda_turn_tails(struct sl_backend *be, const struct sl_op_turn_tails *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    if (!sl_rows_fit(cu, op->rope, op->dim, SL_DTYPE_BF16))
        return;
    const struct tails_args a = {op->x,       op->angles, static_cast<int64_t>(op->n) * op->n_heads,
                                 op->n_heads, op->dim,    op->rope->n_dims,
                                 op->norm,    op->eps};
    sl_launch(cu, rows_tails_kernel,
              dim3(static_cast<unsigned>(SL_CEIL_DIV(a.n, static_cast<int64_t>(STORE_WARPS)))),
              dim3(STORE_WARPS * 32), 0, a);
}

/* ---------------------------------------------------------------- rows of tokens */

struct store_args {
    const float *x, *norm, *angles;
    float eps;
    int32_t n, dim, n_dims;
    const struct sl_span *spans;
    int32_t n_spans;
    struct sl_rows_at to;
};

template <class E>
static __global__ void __launch_bounds__(STORE_WARPS * 32)
    rows_store_kernel(const __grid_constant__ struct store_args a)
{
    const int32_t t = static_cast<int32_t>(blockIdx.x * STORE_WARPS + threadIdx.x / 32);
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (t >= a.n)
        return;
    struct store_row row;
    row.load(a.x + static_cast<int64_t>(t) * a.dim, a.dim);
    const struct sl_span span = a.spans[sl_rows_span(a.spans, a.n_spans, a.n, t)];
    uint8_t *to = a.to.row(span.table_idx, span.pos + t - span.first);
    row.norm(a.norm, a.eps, a.dim);
    row.turn(a.angles + static_cast<int64_t>(t) * a.n_dims, a.n_dims, a.dim);
#pragma unroll
    for (int k = 0; k < STORE_PARTS; k++)
        if (2 * row.at(k) < a.to.row_bytes) /* zeros behind the end */
            sl_rows_put4<E>(to, row.at(k), row.x[k]);
}

extern "C" void sl_cuda_row_store(struct sl_backend *be, const struct sl_op_row_store *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_batch *b = op->batch;
    if (!sl_rows_fit(cu, op->rope, op->dim, op->rows.dtype))
        return;
    const struct store_args a = {
        op->x,   op->norm,         op->angles, op->eps,    b->n_tokens,
        op->dim, op->rope->n_dims, b->spans,   b->n_spans, sl_rows_at_of(b, &op->rows, 1, op->dim)};
    sl_launch(cu,
              op->rows.dtype == SL_DTYPE_F16 ? rows_store_kernel<sl_elem_f16>
                                             : rows_store_kernel<sl_elem_bf16>,
              dim3(static_cast<unsigned>(SL_CEIL_DIV(b->n_tokens, STORE_WARPS))),
              dim3(STORE_WARPS * 32), 0, a);
}
