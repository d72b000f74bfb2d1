/* SPDX-License-Identifier: MIT
 * Norms of whole rows in float: of what a sublayer adds to the residual stream (post-norms), those
 * with a mean, and of all heads of q and k together. The order of the sums is norm.cuh's.
 *
 * One block of threads has a row; a thread reads again what it wrote. join_kernel reads y twice
 * (the second time from L1), x once, and writes x and the activations: 14 bytes a column from
 * memory, as add_rmsnorm.
 */
#include "cuda/norm.h"

#include "cuda/launch.cuh"
#include "cuda/norm.cuh"

struct join_args {
    float *x;
    const float *y;       /* NULL: nothing is added */
    const float *w_y, *w; /* NULL: no such norm */
    __nv_bfloat16 *out;
    float eps, y_scale;
    float x_scale; /* of the sum; 0: none */
    int32_t h;
};

template <bool WIDE>
static __device__ __forceinline__ float4 join_normed(float4 v, const float *w, int32_t i, int32_t h,
                                                     float scale)
{
    const float4 f = sl_norm_load4<WIDE>(w, i, h);
    return make_float4(__fmul_rn(__fmul_rn(v.x, scale), f.x), __fmul_rn(__fmul_rn(v.y, scale), f.y),
                       __fmul_rn(__fmul_rn(v.z, scale), f.z),
                       __fmul_rn(__fmul_rn(v.w, scale), f.w));
}

/* The scale of a row's norm; room: 32 floats of shared memory that no one else uses. */
template <int NT, bool WIDE>
static __device__ __forceinline__ float join_scale(const float *row, int32_t h, float eps,
                                                   float *room)
{
    float s = 0.0f;
    for (int32_t i = 4 * static_cast<int32_t>(threadIdx.x); i < h; i += 4 * NT)
        s = sl_norm_squares(s, sl_norm_load4<WIDE>(row, i, h));
    return sl_norm_scale(sl_norm_sum_block<NT>(s, room), eps, h);
}

template <int NT, bool WIDE> static __global__ void __launch_bounds__(NT) join_kernel(join_args a)
{
    SL_SMEM(float, room); /* [2][32] */
    const int64_t at = static_cast<int64_t>(blockIdx.x) * a.h;
    float scale = 1.0f, s = 0.0f;
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (a.w_y != nullptr)
        scale = join_scale<NT, WIDE>(a.y + at, a.h, a.eps, room);
    for (int32_t i = 4 * static_cast<int32_t>(threadIdx.x); i < a.h; i += 4 * NT) {
        float4 v = sl_norm_load4<WIDE>(a.x + at, i, a.h);
        if (a.y != nullptr) {
            float4 y = sl_norm_load4<WIDE>(a.y + at, i, a.h);
            if (a.w_y != nullptr)
                y = join_normed<WIDE>(y, a.w_y, i, a.h, scale);
            y = make_float4(__fmul_rn(y.x, a.y_scale), __fmul_rn(y.y, a.y_scale),
                            __fmul_rn(y.z, a.y_scale), __fmul_rn(y.w, a.y_scale));
            v = sl_norm_add4(v, y);
            if (a.x_scale != 0.0f)
                v = make_float4(__fmul_rn(v.x, a.x_scale), __fmul_rn(v.y, a.x_scale),
                                __fmul_rn(v.z, a.x_scale), __fmul_rn(v.w, a.x_scale));
            sl_norm_store4<WIDE>(a.x + at, i, a.h, v);
        }
        s = sl_norm_squares(s, v);
        if (a.w == nullptr && a.out != nullptr) /* times 1 twice: the bits stay */
            sl_norm_store<WIDE>(a.out + at, i, a.h, v, make_float4(1, 1, 1, 1), 1.0f);
    }
    if (a.w == nullptr)
        return;
    scale = sl_norm_scale(sl_norm_sum_block<NT>(s, room + 32), a.eps, a.h);
    for (int32_t i = 4 * static_cast<int32_t>(threadIdx.x); i < a.h; i += 4 * NT)
        sl_norm_store<WIDE>(a.out + at, i, a.h, sl_norm_load4<WIDE>(a.x + at, i, a.h),
                            sl_norm_load4<WIDE>(a.w, i, a.h), scale);
}

static bool aligned(const void *p)
{
    return (reinterpret_cast<uintptr_t>(p) & 15) == 0;
}

void sl_cuda_join(struct sl_cuda *cu, const struct sl_op_add_rmsnorm *a)
{
    const join_args k = {a->x,
                         a->y,
                         a->w_y,
                         a->w,
                         static_cast<__nv_bfloat16 *>(a->out),
                         a->eps,
                         a->y_scale != 0 ? a->y_scale : 1.0f,
                         a->x_scale,
                         a->h};
    const bool wide = a->h % 4 == 0 && aligned(a->x) && aligned(a->y) && aligned(a->w_y) &&
                      aligned(a->w) && aligned(a->out);
    const dim3 grid(static_cast<unsigned>(a->n));
    const size_t smem = 64 * sizeof(float);
    if (a->h <= 8192)
        sl_launch(cu, wide ? join_kernel<256, true> : join_kernel<256, false>, grid, dim3(256),
                  smem, k);
    else
        sl_launch(cu, wide ? join_kernel<1024, true> : join_kernel<1024, false>, grid, dim3(1024),
                  smem, k);
}

/* ------------------------------------------------------------------ with a mean */

struct layer_args {
    float *x;
    const float *y; /* NULL: nothing is added */
    const float *w, *b;
    __nv_bfloat16 *out;
    float eps, y_scale;
    int32_t h;
    bool keep;
};

/* v - mean; zeros behind the end of the row. */
static __device__ __forceinline__ float4 layer_centred(float4 v, float mean, int32_t i, int32_t h)
{
    return make_float4(
        i < h ? __fadd_rn(v.x, -mean) : 0.0f, i + 1 < h ? __fadd_rn(v.y, -mean) : 0.0f,
        i + 2 < h ? __fadd_rn(v.z, -mean) : 0.0f, i + 3 < h ? __fadd_rn(v.w, -mean) : 0.0f);
}

/* The mean's sum is in the order of the squares, by additions. */
template <int NT, bool WIDE> static __global__ void __launch_bounds__(NT) layer_kernel(layer_args a)
{
    SL_SMEM(float, room); /* [2][32] */
    const int64_t at = static_cast<int64_t>(blockIdx.x) * a.h;
    const int32_t first = 4 * static_cast<int32_t>(threadIdx.x);
    float *x = a.x + at, s = 0.0f;
    sl_grid_launch_dependents();
    sl_grid_wait();
    for (int32_t i = first; i < a.h; i += 4 * NT) {
        float4 v = sl_norm_load4<WIDE>(x, i, a.h);
        if (a.y != nullptr) {
            const float4 y = sl_norm_load4<WIDE>(a.y + at, i, a.h);
            v = sl_norm_add4(v, make_float4(__fmul_rn(y.x, a.y_scale), __fmul_rn(y.y, a.y_scale),
                                            __fmul_rn(y.z, a.y_scale), __fmul_rn(y.w, a.y_scale)));
            sl_norm_store4<WIDE>(x, i, a.h, v);
        }
        s = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(s, v.x), v.y), v.z), v.w);
    }
    const float mean = __fdiv_rn(sl_norm_sum_block<NT>(s, room), static_cast<float>(a.h));
    s = 0.0f;
    for (int32_t i = first; i < a.h; i += 4 * NT)
        s = sl_norm_squares(s, layer_centred(sl_norm_load4<WIDE>(x, i, a.h), mean, i, a.h));
    const float scale = sl_norm_scale(sl_norm_sum_block<NT>(s, room + 32), a.eps, a.h);
    for (int32_t i = first; i < a.h; i += 4 * NT) {
        const float4 d = layer_centred(sl_norm_load4<WIDE>(x, i, a.h), mean, i, a.h);
        const float4 w = sl_norm_load4<WIDE>(a.w, i, a.h);
        float4 b = make_float4(0, 0, 0, 0);
        if (a.b != nullptr)
            b = sl_norm_load4<WIDE>(a.b, i, a.h);
        const float4 n = make_float4(
            __fmaf_rn(__fmul_rn(d.x, scale), w.x, b.x), __fmaf_rn(__fmul_rn(d.y, scale), w.y, b.y),
            __fmaf_rn(__fmul_rn(d.z, scale), w.z, b.z), __fmaf_rn(__fmul_rn(d.w, scale), w.w, b.w));
        sl_norm_store<WIDE>(a.out + at, i, a.h, n, make_float4(1, 1, 1, 1), 1.0f);
        if (a.keep)
            sl_norm_store4<WIDE>(x, i, a.h, n);
    }
}

extern "C" void sl_cuda_layernorm(struct sl_backend *be, const struct sl_op_layernorm *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    const layer_args k = {a->x,
                          a->y,
                          a->w,
                          a->b,
                          static_cast<__nv_bfloat16 *>(a->out),
                          a->eps,
                          a->y_scale != 0 ? a->y_scale : 1.0f,
                          a->h,
                          a->keep};
    const bool wide = a->h % 4 == 0 && aligned(a->x) && aligned(a->y) && aligned(a->w) &&
                      aligned(a->b) && aligned(a->out);
    const dim3 grid(static_cast<unsigned>(a->n));
    const size_t smem = 64 * sizeof(float);
    if (a->h <= 8192)
        sl_launch(cu, wide ? layer_kernel<256, true> : layer_kernel<256, false>, grid, dim3(256),
                  smem, k);
    else
        sl_launch(cu, wide ? layer_kernel<1024, true> : layer_kernel<1024, false>, grid, dim3(1024),
                  smem, k);
}

/* ------------------------------------------------------------------ q and k */

struct two_args {
    sl_cuda_norm_row rows[2];
    float eps;
};

/* grid (rows, 1 or 2) */
template <int NT, bool WIDE> static __global__ void __launch_bounds__(NT) two_kernel(two_args a)
{
    SL_SMEM(float, room);
    const sl_cuda_norm_row r = blockIdx.y == 0 ? a.rows[0] : a.rows[1];
    float *row = r.x + static_cast<int64_t>(blockIdx.x) * r.ld;
    sl_grid_launch_dependents();
    sl_grid_wait();
    const float scale = join_scale<NT, WIDE>(row, r.h, a.eps, room);
    for (int32_t i = 4 * static_cast<int32_t>(threadIdx.x); i < r.h; i += 4 * NT) {
        float4 v = sl_norm_load4<WIDE>(row, i, r.h);
        if (r.w != nullptr)
            v = join_normed<WIDE>(v, r.w, i, r.h, scale);
        else
            v = make_float4(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale), __fmul_rn(v.z, scale),
                            __fmul_rn(v.w, scale));
        sl_norm_store4<WIDE>(row, i, r.h, v);
    }
}

static bool is_wide(const struct sl_cuda_norm_row *r)
{
    return r->h % 4 == 0 && r->ld % 4 == 0 && aligned(r->x) && aligned(r->w);
}

void sl_cuda_norm_one(struct sl_cuda *cu, const struct sl_cuda_norm_row *row, int32_t n, float eps)
{
    const two_args k = {{*row, *row}, eps};
    const dim3 grid(static_cast<unsigned>(n));
    const size_t smem = 32 * sizeof(float);
    if (row->h <= 8192)
        sl_launch(cu, is_wide(row) ? two_kernel<256, true> : two_kernel<256, false>, grid,
                  dim3(256), smem, k);
    else
        sl_launch(cu, is_wide(row) ? two_kernel<1024, true> : two_kernel<1024, false>, grid,
                  dim3(1024), smem, k);
}

void sl_cuda_norm_two(struct sl_cuda *cu, const struct sl_cuda_norm_row rows[2], int32_t n,
                      float eps)
{
    const two_args k = {{rows[0], rows[1]}, eps};
    const dim3 grid(static_cast<unsigned>(n), 2);
    SL_ASSERT(is_wide(&rows[0]) && is_wide(&rows[1]));
    if (SL_MAX(rows[0].h, rows[1].h) <= 8192)
        sl_launch(cu, two_kernel<256, true>, grid, dim3(256), 32 * sizeof(float), k);
    else
        sl_launch(cu, two_kernel<1024, true>, grid, dim3(1024), 32 * sizeof(float), k);
}
