/* SPDX-License-Identifier: MIT
 * hyper.cu - hyper-connections: what a sublayer reads of several residual streams, and where what
 * it gives goes (struct sl_op_hyper_read).
 *
 * A block reads a row: the sum of squares of its streams side by side, by norm.cuh's order for 512
 * threads; one warp then makes the weights, a lane each, with the steps of src/cpu/hyper.c (a value
 * of the matrix that is balanced is a lane's, so that an iteration is four shuffles and a
 * division); all threads add up the streams. Bytes of a row of four streams of 4,096: 64 KB, from
 * memory and then from L1, and 16 KB written. What balances has 20 iterations of some 200 clk, so
 * that few rows take 3 us, of which these are most.
 *
 * Writing: four columns of all streams are a thread's, 64 KB read and written of a row, and 32 KB
 * as activations.
 */
#include "cuda/launch.cuh"
#include "cuda/math.cuh"
#include "cuda/norm.cuh"

#define HYPER_THREADS 512
#define WRITE_THREADS 256
#define WRITE_COLS    (4 * WRITE_THREADS)

static_assert(SL_MAX_STREAMS * SL_MAX_STREAMS <= 32, "a lane for each value of the matrix");

static __device__ __forceinline__ float hyper_sigmoid(float x)
{
    return __fdiv_rn(1.0f, __fadd_rn(1.0f, sl_exp(-x)));
}

/* x divided by eps + the sum of those of lanes from, from + step, .. (n of them), in order. All
 * lanes call it. */
static __device__ __forceinline__ float hyper_share(float x, int from, int step, int n, float eps)
{
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < SL_MAX_STREAMS; j++) {
        const float y = __shfl_sync(0xFFFFFFFFu, x, (from + j * step) & 31);
        sum = j < n ? __fadd_rn(sum, y) : sum;
    }
    return __fdiv_rn(x, __fadd_rn(sum, eps));
}

/* Softmax by rows, then columns and rows in turns: of lane i n + j the value of row i and column
 * j; other lanes have anything. */
static __device__ __forceinline__ float hyper_balance(float x, int n, int32_t n_iters, float eps)
{
    const int lane = static_cast<int>(threadIdx.x % 32), row = lane / n * n, col = lane % n;
    float max = __shfl_sync(0xFFFFFFFFu, x, row & 31), sum = 0.0f;
#pragma unroll
    for (int j = 1; j < SL_MAX_STREAMS; j++) {
        const float y = __shfl_sync(0xFFFFFFFFu, x, (row + j) & 31);
        max = j < n && y > max ? y : max;
    }
    x = sl_exp(__fadd_rn(x, -max));
#pragma unroll
    for (int j = 0; j < SL_MAX_STREAMS; j++) {
        const float y = __shfl_sync(0xFFFFFFFFu, x, (row + j) & 31);
        sum = j < n ? __fadd_rn(sum, y) : sum;
    }
    x = __fadd_rn(__fdiv_rn(x, sum), eps);
    x = hyper_share(x, col, n, n, eps);
#pragma unroll 1
    for (int32_t i = 1; i < n_iters; i++) {
        x = hyper_share(x, row, 1, n, eps);
        x = hyper_share(x, col, n, n, eps);
    }
    return x;
}

/* The row's weights, by the first warp, to w and to `pre` in shared memory. */
static __device__ __forceinline__ void hyper_weights(const struct sl_op_hyper_read &a, float *w,
                                                     float rms, float *pre)
{
    const int lane = static_cast<int>(threadIdx.x % 32), n = a.n_streams;
    if (lane < n) {
        const float m = __fadd_rn(__fmul_rn(__fmul_rn(w[lane], rms), a.scale[0]), a.base[lane]);
        pre[lane] = __fadd_rn(hyper_sigmoid(m), a.eps);
        w[lane] = pre[lane];
    }
    if (a.last)
        return;
    if (lane < n) {
        const float m =
            __fadd_rn(__fmul_rn(__fmul_rn(w[n + lane], rms), a.scale[1]), a.base[n + lane]);
        w[n + lane] = a.n_iters > 0 ? __fmul_rn(2.0f, hyper_sigmoid(m))
                                    : __fadd_rn(__fmul_rn(a.post_scale, hyper_sigmoid(m)), a.eps);
    }
    const bool in = lane < n * n;
    float x = 0.0f;
    if (a.n_iters == 0) { /* every stream is itself */
        if (in)
            w[2 * n + lane] = lane / n == lane % n ? 1.0f : 0.0f;
        return;
    }
    if (in)
        x = __fadd_rn(__fmul_rn(__fmul_rn(w[2 * n + lane], rms), a.scale[2]), a.base[2 * n + lane]);
    x = hyper_balance(x, n, a.n_iters, a.eps);
    if (in)
        w[2 * n + lane] = x;
}

static __global__ void __launch_bounds__(HYPER_THREADS)
    hyper_read_kernel(const __grid_constant__ struct sl_op_hyper_read a)
{
    SL_SMEM(float, room); /* sums of warps, and the weights that read */
    float *pre = room + 32;
    const int32_t n = a.n_streams, width = n * a.h;
    const float *x = a.x + static_cast<int64_t>(blockIdx.x) * width;
    float *out = a.out + static_cast<int64_t>(blockIdx.x) * a.h, sum = 0.0f;
    sl_grid_launch_dependents();
    sl_grid_wait();
    for (int32_t i = 4 * static_cast<int32_t>(threadIdx.x); i < width; i += 4 * HYPER_THREADS)
        sum = sl_norm_squares(sum, *reinterpret_cast<const float4 *>(x + i));
    sum = sl_norm_sum_block<HYPER_THREADS>(sum, room);
    if (threadIdx.x < 32)
        hyper_weights(a, a.w + static_cast<int64_t>(blockIdx.x) * (a.last ? n : (2 + n) * n),
                      sl_norm_scale(sum, a.norm_eps, width), pre);
    __syncthreads();
    for (int32_t i = 4 * static_cast<int32_t>(threadIdx.x); i < a.h; i += 4 * HYPER_THREADS) {
        float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < SL_MAX_STREAMS; j++) {
            if (j >= n)
                break;
            const float4 v = *reinterpret_cast<const float4 *>(x + j * a.h + i);
            const float by = pre[j];
            y = j == 0 ? make_float4(__fmul_rn(by, v.x), __fmul_rn(by, v.y), __fmul_rn(by, v.z),
                                     __fmul_rn(by, v.w))
                       : make_float4(__fmaf_rn(by, v.x, y.x), __fmaf_rn(by, v.y, y.y),
                                     __fmaf_rn(by, v.z, y.z), __fmaf_rn(by, v.w, y.w));
        }
        *reinterpret_cast<float4 *>(out + i) = y;
    }
}

static bool hyper_fits(struct sl_cuda *cu, int32_t n_streams, int32_t h)
{
    const bool fits = n_streams >= 2 && n_streams <= SL_MAX_STREAMS && h > 0 && h % 4 == 0;
    if (!fits)
        sl_cuda_check(cu, cudaErrorInvalidValue, "width of hyper-connections");
    return fits;
}

extern "C" void sl_cuda_hyper_read(struct sl_backend *be, const struct sl_op_hyper_read *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    if (hyper_fits(cu, op->n_streams, op->h))
        sl_launch(cu, hyper_read_kernel, dim3(static_cast<unsigned>(op->n)), dim3(HYPER_THREADS),
                  (32 + SL_MAX_STREAMS) * sizeof(float), *op);
}

/* grid (rows, columns / WRITE_COLS) */
static __global__ void __launch_bounds__(WRITE_THREADS)
    hyper_write_kernel(const __grid_constant__ struct sl_op_hyper_write a)
{
    const int32_t n = a.n_streams, i = static_cast<int32_t>(blockIdx.y) * WRITE_COLS +
                                       4 * static_cast<int32_t>(threadIdx.x);
    const int64_t at = static_cast<int64_t>(blockIdx.x) * n * a.h + i;
    const float *w = a.w + static_cast<int64_t>(blockIdx.x) * (2 + n) * n;
    float4 in[SL_MAX_STREAMS];
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (i >= a.h)
        return;
    const float4 y =
        *reinterpret_cast<const float4 *>(a.y + static_cast<int64_t>(blockIdx.x) * a.h + i);
#pragma unroll
    for (int j = 0; j < SL_MAX_STREAMS; j++)
        if (j < n)
            in[j] = *reinterpret_cast<const float4 *>(a.x + at + static_cast<int64_t>(j) * a.h);
#pragma unroll
    for (int k = 0; k < SL_MAX_STREAMS; k++) {
        if (k >= n)
            break;
        const float post = w[n + k];
        float4 s = make_float4(__fmul_rn(post, y.x), __fmul_rn(post, y.y), __fmul_rn(post, y.z),
                               __fmul_rn(post, y.w));
#pragma unroll
        for (int j = 0; j < SL_MAX_STREAMS; j++) {
            if (j >= n)
                break;
            const float by = w[2 * n + j * n + k];
            s = make_float4(__fmaf_rn(by, in[j].x, s.x), __fmaf_rn(by, in[j].y, s.y),
                            __fmaf_rn(by, in[j].z, s.z), __fmaf_rn(by, in[j].w, s.w));
        }
        const int64_t to = at + static_cast<int64_t>(k) * a.h;
        *reinterpret_cast<float4 *>(a.x + to) = s;
        if (a.act != nullptr)
            *reinterpret_cast<sl_norm_quad *>(static_cast<__nv_bfloat16 *>(a.act) + to) = {
                __floats2bfloat162_rn(s.x, s.y), __floats2bfloat162_rn(s.z, s.w)};
    }
}

extern "C" void sl_cuda_hyper_write(struct sl_backend *be, const struct sl_op_hyper_write *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    if (hyper_fits(cu, op->n_streams, op->h))
        sl_launch(cu, hyper_write_kernel,
                  dim3(static_cast<unsigned>(op->n),
                       static_cast<unsigned>(SL_CEIL_DIV(op->h, WRITE_COLS))),
                  dim3(WRITE_THREADS), 0, *op);
}
