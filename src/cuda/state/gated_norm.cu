/* SPDX-License-Identifier: MIT
 * The norm behind a recurrence, with its gate.
 *
 * The sum of squares of a group: up to 512 values a warp's, value i belongs to lane i / 4 % 32;
 * more are 256 threads', i / 4 % 256. A thread adds its values in ascending order, fma(x, x, s)
 * from +0; then lanes and warps by the tree of norm.cuh. Then x * (1 / sqrt(sum / dim + eps)) * w *
 * act(gate) one after the other, or, gate_first, x * act(gate) before the sum.
 */
#include "cuda/norm.cuh"
#include "cuda/state/state.cuh"

#define WARP_DIM 512
#define THREADS  256
#define QUADS    (WARP_DIM / 128)

struct gated_args {
    const float *x, *gate, *w;
    int64_t ld_gate, ld_out;
    bool shared_w, gate_first, bare, sigmoid, wide;
    float eps;
    int32_t n_groups, dim;
    int64_t n; /* groups of all rows */
    __nv_bfloat16 *out;
};

static __device__ __forceinline__ float open_by(bool sigmoid, float g)
{
    return sigmoid ? sl_gated(1.0f, g) : sl_act(SL_ACT_SILU, g);
}

struct gated_group { /* of a row */
    const float *x, *gate, *w;
    __nv_bfloat16 *out;

    __device__ __forceinline__ gated_group(const gated_args &a, int64_t i)
    {
        const int64_t row = i / a.n_groups, at = i % a.n_groups * a.dim;
        x = a.x + i * a.dim;
        gate = a.gate != nullptr ? a.gate + row * a.ld_gate + at : nullptr;
        w = a.w != nullptr ? a.w + (a.shared_w ? 0 : at) : nullptr;
        out = a.out + row * a.ld_out + at;
    }
    __device__ __forceinline__ float4 open(const gated_args &a, int32_t i) const
    {
        if (gate == nullptr)
            return make_float4(1, 1, 1, 1);
        const float4 g = sl_load4(gate, i, a.dim, a.wide);
        return make_float4(open_by(a.sigmoid, g.x), open_by(a.sigmoid, g.y),
                           open_by(a.sigmoid, g.z), open_by(a.sigmoid, g.w));
    }
    /* What is normed. */
    __device__ __forceinline__ float4 value(const gated_args &a, int32_t i) const
    {
        const float4 v = sl_load4(x, i, a.dim, a.wide);
        return (a.gate_first || a.bare) && gate != nullptr ? sl_mul4(v, open(a, i)) : v;
    }
    __device__ __forceinline__ void finish(const gated_args &a, int32_t i, float4 v,
                                           float scale) const
    {
        if (!a.bare) {
            v = sl_mul4(v, make_float4(scale, scale, scale, scale));
            if (w != nullptr)
                v = sl_mul4(v, sl_load4(w, i, a.dim, a.wide));
            if (!a.gate_first && gate != nullptr)
                v = sl_mul4(v, open(a, i));
        }
        const sl_norm_quad q = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
        if (a.wide && i < a.dim) {
            *reinterpret_cast<sl_norm_quad *>(out + i) = q;
            return;
        }
        const __nv_bfloat16 e[4] = {__low2bfloat16(q.a), __high2bfloat16(q.a), __low2bfloat16(q.b),
                                    __high2bfloat16(q.b)};
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (i + c < a.dim)
                out[i + c] = e[c];
    }
};

/* A warp for a group. */
static __global__ void __launch_bounds__(THREADS) gated_warp_kernel(gated_args a)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
    const int lane = static_cast<int>(threadIdx.x % 32);
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (i >= a.n)
        return;
    const gated_group group(a, i);
    float4 v[QUADS];
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < QUADS; k++)
        v[k] = 128 * k < a.dim ? group.value(a, 4 * lane + 128 * k) : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < QUADS; k++)
        sum = sl_norm_squares(sum, v[k]);
    const float scale = sl_norm_scale(sl_norm_sum_warp(sum), a.eps, a.dim);
#pragma unroll
    for (int k = 0; k < QUADS; k++)
        if (128 * k < a.dim)
            group.finish(a, 4 * lane + 128 * k, v[k], scale);
}

/* A block for a group; what is normed is made twice, as it may not fit registers. */
static __global__ void __launch_bounds__(THREADS) gated_block_kernel(gated_args a)
{
    SL_SMEM(float, room);
    sl_grid_launch_dependents();
    sl_grid_wait();
    const gated_group group(a, blockIdx.x);
    float sum = 0.0f;
    for (int32_t i = 4 * static_cast<int32_t>(threadIdx.x); i < a.dim; i += 4 * THREADS)
        sum = sl_norm_squares(sum, group.value(a, i));
    const float scale = sl_norm_scale(sl_norm_sum_block<THREADS>(sum, room), a.eps, a.dim);
    for (int32_t i = 4 * static_cast<int32_t>(threadIdx.x); i < a.dim; i += 4 * THREADS)
        group.finish(a, i, group.value(a, i), scale);
}

extern "C" void sl_cuda_gated_norm(struct sl_backend *be, const struct sl_op_gated_norm *a)
{
    const void *all[] = {a->x, a->gate, a->w, a->out};
    gated_args k = {a->x,
                    a->gate,
                    a->w,
                    a->ld_gate,
                    a->ld_out,
                    a->shared_w,
                    a->gate_first,
                    a->bare,
                    a->sigmoid,
                    a->dim % 4 == 0 && a->ld_gate % 4 == 0 && a->ld_out % 4 == 0,
                    a->eps,
                    a->n_groups,
                    a->dim,
                    static_cast<int64_t>(a->n) * a->n_groups,
                    static_cast<__nv_bfloat16 *>(a->out)};
    for (const void *p : all)
        k.wide = k.wide && sl_aligned16(p);
    if (a->dim <= WARP_DIM)
        sl_launch(sl_cuda(be), gated_warp_kernel,
                  dim3(static_cast<unsigned>(SL_CEIL_DIV(k.n, THREADS / 32))), dim3(THREADS), 0, k);
    else
        sl_launch(sl_cuda(be), gated_block_kernel, dim3(static_cast<unsigned>(k.n)), dim3(THREADS),
                  sizeof(float) * (THREADS / 32), k);
}
