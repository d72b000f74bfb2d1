/* SPDX-License-Identifier: MIT
 * What only drafters need: logits of the tokens of a few clusters, and the state of a chain of
 * drafts.
 *
 * Clusters are chosen by their ranks, which a block counts of all scores of a row: of 2,048 each
 * thread compares 4,096 pairs. Then a block multiplies the tokens of one cluster of a row, a warp a
 * token, whose row it finds in the matrix: of 32 clusters of 128 tokens of 256 values in BF16 that
 * is 2 MiB of the 128 that all tokens have. Beside that the row of logits is written, 1 MiB of
 * 262,144 tokens. Expected, not measured: bound by the latency of three short launches.
 */
#include "cuda/launch.cuh"
#include "cuda/math.cuh"
#include "cuda/ptx.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>

#define CHOOSE_THREADS 1024
#define FILL_THREADS   256
#define FILL_VALUES    (16 * FILL_THREADS) /* of a block */
#define TOKEN_WARPS    8
#define STATE_THREADS  256

struct cluster_args {
    const __nv_bfloat16 *x;
    const float *scores;
    const int32_t *order;
    const uint8_t *w;
    int64_t row_bytes, n_vocab;
    int32_t n_clusters, top_k, h;
    int32_t *top;
    float *out;
};

/* grid (rows). Of equal scores the lower index comes first, so that each rank is one cluster's. A
 * score that is no number is below all others. */
static __global__ void __launch_bounds__(CHOOSE_THREADS) cluster_choose_kernel(cluster_args a)
{
    SL_SMEM(float, s); /* [n_clusters] */
    sl_grid_launch_dependents();
    sl_grid_wait();
    const float *scores = a.scores + (int64_t)blockIdx.x * a.n_clusters;
    for (int32_t c = static_cast<int32_t>(threadIdx.x); c < a.n_clusters; c += CHOOSE_THREADS)
        s[c] = scores[c] == scores[c] ? scores[c] : -FLT_MAX;
    __syncthreads();
    for (int32_t c = static_cast<int32_t>(threadIdx.x); c < a.n_clusters; c += CHOOSE_THREADS) {
        const float own = s[c];
        int32_t rank = 0;
        for (int32_t i = 0; i < a.n_clusters; i++)
            rank += s[i] > own || (s[i] == own && i < c);
        if (rank < a.top_k)
            a.top[(int64_t)blockIdx.x * a.top_k + rank] = c;
    }
}

/* grid (pieces of all logits) */
static __global__ void __launch_bounds__(FILL_THREADS) cluster_fill_kernel(float *out, int64_t n)
{
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int64_t from = (int64_t)blockIdx.x * FILL_VALUES;
    for (int64_t i = from + threadIdx.x; i < n && i < from + FILL_VALUES; i += FILL_THREADS)
        out[i] = -FLT_MAX;
}

struct cluster_bf16 {
    static __device__ __forceinline__ float at(const uint8_t *row, int32_t i)
    {
        return __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(row)[i]);
    }
};

struct cluster_f16 {
    static __device__ __forceinline__ float at(const uint8_t *row, int32_t i)
    {
        return __half2float(reinterpret_cast<const __half *>(row)[i]);
    }
};

struct cluster_f32 {
    static __device__ __forceinline__ float at(const uint8_t *row, int32_t i)
    {
        return reinterpret_cast<const float *>(row)[i];
    }
};

/* grid (clusters of a row, rows) */
template <typename F>
static __global__ void __launch_bounds__(32 * TOKEN_WARPS) cluster_tokens_kernel(cluster_args a)
{
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32,
                  lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int64_t t = blockIdx.y, size = a.n_vocab / a.n_clusters;
    const int32_t *tokens = a.order + a.top[t * a.top_k + blockIdx.x] * size;
    const __nv_bfloat16 *x = a.x + t * a.h;
    for (int64_t j = warp; j < size; j += TOKEN_WARPS) {
        const int32_t token = tokens[j];
        const uint8_t *row = a.w + token * a.row_bytes;
        float sum = 0.0f;
        for (int32_t i = lane; i < a.h; i += 32)
            sum = __fmaf_rn(F::at(row, i), __bfloat162float(x[i]), sum);
        for (int m = 16; m > 0; m /= 2)
            sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, m));
        if (lane == 0)
            a.out[t * a.n_vocab + token] = sum;
    }
}

extern "C" void sl_cuda_cluster_logits(struct sl_backend *be, const struct sl_op_cluster_logits *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_weight *w = a->w;
    const cluster_args k = {static_cast<const __nv_bfloat16 *>(a->x),
                            a->scores,
                            a->order,
                            static_cast<const uint8_t *>(w->data),
                            static_cast<int64_t>(w->row_bytes),
                            w->n_rows,
                            a->n_clusters,
                            a->top_k,
                            static_cast<int32_t>(w->n_cols),
                            a->top,
                            a->out};
    const int64_t n_all = a->n * w->n_rows;
    const dim3 rows(static_cast<unsigned>(a->n)),
        clusters(static_cast<unsigned>(a->top_k), static_cast<unsigned>(a->n));
    sl_launch(cu, cluster_choose_kernel, rows, dim3(CHOOSE_THREADS),
              static_cast<size_t>(a->n_clusters) * sizeof(float), k);
    sl_launch(cu, cluster_fill_kernel, dim3(static_cast<unsigned>(SL_CEIL_DIV(n_all, FILL_VALUES))),
              dim3(FILL_THREADS), 0, a->out, n_all);
    switch (w->dtype) {
    case SL_DTYPE_BF16:
        return sl_launch(cu, cluster_tokens_kernel<cluster_bf16>, clusters, dim3(32 * TOKEN_WARPS),
                         0, k);
    case SL_DTYPE_F16:
        return sl_launch(cu, cluster_tokens_kernel<cluster_f16>, clusters, dim3(32 * TOKEN_WARPS),
                         0, k);
    case SL_DTYPE_F32:
        return sl_launch(cu, cluster_tokens_kernel<cluster_f32>, clusters, dim3(32 * TOKEN_WARPS),
                         0, k);
    default: /* refused when it was loaded */
        sl_cuda_check(cu, cudaErrorInvalidValue, "cluster_logits: format");
    }
}

/* ------------------------------------------------------------------ the state of a chain */

struct state_args {
    const float *mix;
    const int32_t *rows;
    float *state;
    __nv_bfloat16 *out;
    int32_t n, width;
    bool first;
};

static __global__ void __launch_bounds__(STATE_THREADS) chain_state_kernel(state_args a)
{
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int64_t at = (int64_t)blockIdx.x * STATE_THREADS + threadIdx.x;
    if (at >= (int64_t)a.n * a.width)
        return;
    const int64_t i = at / a.width, k = at % a.width;
    const float *mix = a.mix + i * 3 * a.width;
    float *state = a.state + (a.rows != nullptr ? a.rows[i] : i) * a.width + k;
    const float s = __fdiv_rn(1.0f, __fadd_rn(1.0f, sl_exp(-mix[k])));
    const float old = a.first ? 0.0f : __fmul_rn(s, *state);
    *state = __fadd_rn(old, __fmul_rn(__fadd_rn(1.0f, -s), sl_tanh(mix[a.width + k])));
    a.out[at] = __float2bfloat16_rn(sl_tanh(mix[2 * a.width + k]));
}

extern "C" void sl_cuda_chain_state(struct sl_backend *be, const struct sl_op_chain_state *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    const state_args k = {a->mix, a->rows,  a->state, static_cast<__nv_bfloat16 *>(a->out),
                          a->n,   a->width, a->first};
    const int64_t n = (int64_t)a->n * a->width;
    sl_launch(cu, chain_state_kernel, dim3(static_cast<unsigned>(SL_CEIL_DIV(n, STATE_THREADS))),
              dim3(STATE_THREADS), 0, k);
}
