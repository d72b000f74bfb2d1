/* SPDX-License-Identifier: MIT
 * Tokens mixed with the one before (RWKV-7): out_i = fma(before - x, w_i, x), each step one
 * rounding, then BF16. The state is the last token, in float.
 *
 * A token needs the one before it alone, so spans are cut into pieces, as in conv.cu: only the
 * first piece reads the state, and it stores whatever may lie in the page that it is read from.
 *
 * Bound by memory, or by the launch: of a token of RWKV-7 1.5B (2,048 channels, six mixtures) 4 KB
 * are read and 24 KB written.
 */
#include "cuda/state/state.cuh"

#include <cuda_bf16.h>

#define PIECE   SL_STATE_PIECE
#define THREADS 128

struct shift_args {
    struct sl_state_pages pages;
    const __nv_bfloat16 *x;
    const float *w;
    int32_t n_channels;
    bool wide;
    __nv_bfloat16 *out;
    int64_t ld_out;
};

struct __align__(8) bf16_quad
{
    __nv_bfloat162 a, b;
};

static __device__ __forceinline__ float4 load_quad(const __nv_bfloat16 *p, int32_t i, int32_t n,
                                                   bool wide)
{
    if (wide) {
        if (i >= n)
            return make_float4(0, 0, 0, 0);
        const bf16_quad q = *reinterpret_cast<const bf16_quad *>(p + i);
        const float2 a = __bfloat1622float2(q.a), b = __bfloat1622float2(q.b);
        return make_float4(a.x, a.y, b.x, b.y);
    }
    float v[4];
#pragma unroll
    for (int e = 0; e < 4; e++)
        v[e] = i + e < n ? __bfloat162float(p[i + e]) : 0.0f;
    return make_float4(v[0], v[1], v[2], v[3]);
}

static __device__ __forceinline__ void store_quad(__nv_bfloat16 *p, int32_t i, int32_t n, bool wide,
                                                  float4 v)
{
    if (wide) {
        if (i < n)
            *reinterpret_cast<bf16_quad *>(p + i) = {__floats2bfloat162_rn(v.x, v.y),
                                                     __floats2bfloat162_rn(v.z, v.w)};
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (i + e < n)
            p[i + e] = __float2bfloat16_rn(sl_part(v, e));
}

static __device__ __forceinline__ float4 mixed(float4 before, float4 x, float4 w)
{
    return make_float4(__fmaf_rn(__fadd_rn(before.x, -x.x), w.x, x.x),
                       __fmaf_rn(__fadd_rn(before.y, -x.y), w.y, x.y),
                       __fmaf_rn(__fadd_rn(before.z, -x.z), w.z, x.z),
                       __fmaf_rn(__fadd_rn(before.w, -x.w), w.w, x.w));
}

static __global__ void __launch_bounds__(THREADS) shift_kernel(shift_args a, int32_t n_outs)
{
    const int32_t channel = 4 * static_cast<int32_t>(blockIdx.x * THREADS + threadIdx.x);
    const int32_t c = a.n_channels;
    float4 w[SL_MAX_SHIFTS];
#pragma unroll
    for (int i = 0; i < SL_MAX_SHIFTS; i++)
        w[i] = i < n_outs ? sl_load4(a.w + static_cast<int64_t>(i) * c, channel, c, a.wide)
                          : make_float4(0, 0, 0, 0);
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int32_t which = sl_piece_span(a.pages, static_cast<int32_t>(blockIdx.y));
    const struct sl_span span = a.pages.spans[which];
    const int32_t first = (static_cast<int32_t>(blockIdx.y) - span.first / PIECE - which) * PIECE;
    if (channel >= c || first >= span.n)
        return;
    const int32_t stop = min(first + PIECE, span.n);
    const int32_t head_end = a.pages.next_end(span, 0); /* the first piece stores behind it */
    const __nv_bfloat16 *rows = a.x + static_cast<int64_t>(span.first) * c;
    const float *begin = a.pages.begin(span);
    float4 before = make_float4(0, 0, 0, 0);
    if (first > 0)
        before = load_quad(rows + static_cast<int64_t>(first - 1) * c, channel, c, a.wide);
    else if (begin != nullptr)
        before = sl_load4(begin, channel, c, a.wide);
#pragma unroll 4
    for (int32_t t = first; t < stop; t++) {
        const float4 x = load_quad(rows + static_cast<int64_t>(t) * c, channel, c, a.wide);
        __nv_bfloat16 *out = a.out + static_cast<int64_t>(span.first + t) * c;
#pragma unroll
        for (int i = 0; i < SL_MAX_SHIFTS; i++)
            if (i < n_outs)
                store_quad(out + i * a.ld_out, channel, c, a.wide, mixed(before, x, w[i]));
        if (t > head_end && t == a.pages.next_end(span, t)) {
            const int32_t page = a.pages.page_of(span, t);
            if (page >= 0)
                sl_store4(a.pages.page(page), channel, c, a.wide, x);
        }
        before = x;
    }
    const int32_t page = a.pages.page_of(span, head_end);
    if (first == 0 && page >= 0)
        sl_store4(a.pages.page(page), channel, c, a.wide,
                  load_quad(rows + static_cast<int64_t>(head_end) * c, channel, c, a.wide));
}

extern "C" void sl_cuda_token_shift(struct sl_backend *be, const struct sl_op_token_shift *a)
{
    const void *all[] = {a->x, a->w, a->out, a->state.pool + a->state.offset};
    shift_args k = {sl_state_pages_of(a->batch, &a->state),
                    static_cast<const __nv_bfloat16 *>(a->x),
                    a->w,
                    a->n_channels,
                    a->n_channels % 4 == 0 && a->ld_out % 4 == 0 && a->state.page_bytes % 16 == 0,
                    static_cast<__nv_bfloat16 *>(a->out),
                    a->ld_out};
    for (const void *p : all)
        k.wide = k.wide && sl_aligned16(p);
    SL_ASSERT(a->n_outs >= 1 && a->n_outs <= SL_MAX_SHIFTS);
    sl_launch(sl_cuda(be), shift_kernel,
              dim3(static_cast<unsigned>(SL_CEIL_DIV(a->n_channels, 4 * THREADS)),
                   static_cast<unsigned>(a->batch->n_tokens / PIECE + a->batch->n_spans)),
              dim3(THREADS), 0, k, a->n_outs);
}
