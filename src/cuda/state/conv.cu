/* SPDX-License-Identifier: MIT
 * Short causal convolutions: sum = bias, then sum = fma(w[i], in[i], sum) from the oldest input on,
 * silu, times post; in = x * pre.
 *
 * An output needs the inputs of the few tokens before it, of which all but a span's first ones are
 * in the step: so a span is cut into pieces of PIECE tokens, each computed by threads of its own.
 * Only the first piece reads the state, and whatever may lie in the page that it is read from, the
 * first piece stores: no other thread does before it has read.
 *
 * Bound by memory, or by the launch: of a token of Qwen3.5-9B (8,192 channels, four taps) 64 KB are
 * read and written, and of each span 196 KB of state: 8,192 tokens 0.54 GB, 0.12 ms on an H200; a
 * decode step of 64 sequences 17 MB, 4 us.
 *
 * JetBlock: each token brings the taps of its own sum, and the first channels have none. Their
 * blocks come first, so that a thread's four channels are of one kind.
 */
#include "cuda/state/state.cuh"

#define PIECE   SL_STATE_PIECE /* at least SL_MAX_CONV_TAPS - 1 */
#define THREADS 128

struct conv_args {
    struct sl_state_pages pages;
    const float *x, *pre, *post;
    int64_t ld;
    const float *w, *bias, *kernels;
    int32_t n_channels, n_taps, n_plain;
    int32_t n_plain_quads; /* that these channels have, and of all */
    bool silu, wide;
    float *out;
    __nv_bfloat16 *act;
};

struct conv_thread {
    const conv_args &a;
    struct sl_span span;
    const float *begin; /* or NULL */
    int32_t channel;    /* first of four */

    /* Channels of a row of the state. */
    __device__ __forceinline__ int32_t tapped() const
    {
        return a.n_channels - a.n_plain;
    }
    __device__ __forceinline__ float4 load(const float *p, int64_t row) const
    {
        return sl_load4(p + row, channel, a.n_channels, a.wide);
    }
    /* Token t of the span, which may lie before it. */
    __device__ __forceinline__ float4 input(int32_t t) const
    {
        if (t < 0)
            return begin == nullptr
                       ? make_float4(0, 0, 0, 0)
                       : load(begin, static_cast<int64_t>(t + a.n_taps - 1) * tapped() - a.n_plain);
        const int64_t row = (span.first + t) * a.ld;
        const float4 x = load(a.x, row);
        return a.pre != nullptr ? sl_mul4(x, load(a.pre, row)) : x;
    }
    __device__ __forceinline__ void write(int32_t t, float4 y) const
    {
        const int64_t row = static_cast<int64_t>(span.first + t) * a.n_channels;
        if (a.post != nullptr)
            y = sl_mul4(y, load(a.post, (span.first + t) * a.ld));
        if (a.out != nullptr) {
            sl_store4(a.out + row, channel, a.n_channels, a.wide, y);
            return;
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (channel + e < a.n_channels)
                a.act[row + channel + e] = __float2bfloat16_rn(sl_part(y, e));
    }
};

template <int TAPS>
static __device__ __forceinline__ float4 convolve(const conv_args &a, const float4 (&w)[TAPS],
                                                  float4 bias, const float4 (&in)[TAPS])
{
    float4 y = bias;
#pragma unroll
    for (int i = 0; i < TAPS; i++)
        y = make_float4(__fmaf_rn(w[i].x, in[i].x, y.x), __fmaf_rn(w[i].y, in[i].y, y.y),
                        __fmaf_rn(w[i].z, in[i].z, y.z), __fmaf_rn(w[i].w, in[i].w, y.w));
    if (a.silu)
        y = make_float4(sl_act(SL_ACT_SILU, y.x), sl_act(SL_ACT_SILU, y.y),
                        sl_act(SL_ACT_SILU, y.z), sl_act(SL_ACT_SILU, y.w));
    return y;
}

template <int TAPS>
static __device__ __forceinline__ void store_tail(const conv_thread &me, int32_t page,
                                                  const float4 (&tail)[TAPS])
{
    float *to = me.a.pages.page(page);
#pragma unroll
    for (int i = 1; i < TAPS; i++)
        sl_store4(to + static_cast<int64_t>(i - 1) * me.tapped() - me.a.n_plain, me.channel,
                  me.a.n_channels, me.a.wide, tail[i]);
}

/* The taps of a token's four channels, which it has side by side. */
template <int TAPS>
static __device__ __forceinline__ void own_taps(const conv_thread &me, int32_t t, float4 (&w)[TAPS])
{
    const int64_t row = static_cast<int64_t>(me.span.first + t) * me.tapped() - me.a.n_plain;
    float k[4][TAPS];
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const float *from = me.a.kernels + (row + me.channel + c) * TAPS;
        if (TAPS == 4 && me.a.wide) {
            const float4 all = *reinterpret_cast<const float4 *>(from);
            k[c][0] = all.x, k[c][1] = all.y, k[c][2 % TAPS] = all.z, k[c][3 % TAPS] = all.w;
            continue;
        }
#pragma unroll
        for (int i = 0; i < TAPS; i++)
            k[c][i] = me.channel + c < me.a.n_channels ? from[i] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < TAPS; i++)
        w[i] = make_float4(k[0][i], k[1][i], k[2][i], k[3][i]);
}

/* Channels without taps. */
static __device__ __forceinline__ void open_plain(const conv_args &a, const struct sl_span &span,
                                                  int32_t channel, int32_t first, int32_t stop)
{
    for (int32_t t = first; t < stop; t++) {
        const int64_t row = span.first + t;
        const float4 x = sl_load4(a.x + row * a.ld, channel, a.n_plain, a.wide);
        sl_store4(a.out + row * a.n_channels, channel, a.n_plain, a.wide,
                  make_float4(sl_act(SL_ACT_SILU, x.x), sl_act(SL_ACT_SILU, x.y),
                              sl_act(SL_ACT_SILU, x.z), sl_act(SL_ACT_SILU, x.w)));
    }
}

template <int TAPS, bool OWN>
static __global__ void __launch_bounds__(THREADS) conv_kernel(conv_args a)
{
    const int32_t quad = static_cast<int32_t>(blockIdx.x * THREADS + threadIdx.x);
    const bool plain = OWN && quad < a.n_plain_quads;
    const int32_t channel = 4 * quad - (OWN && !plain ? 4 * a.n_plain_quads - a.n_plain : 0);
    float4 w[TAPS], in[TAPS] /* the last is the token's */, bias = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < TAPS && !OWN; i++)
        w[i] =
            sl_load4(a.w + static_cast<int64_t>(i) * a.n_channels, channel, a.n_channels, a.wide);
    if (!OWN && a.bias != nullptr)
        bias = sl_load4(a.bias, channel, a.n_channels, a.wide);
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int32_t which = sl_piece_span(a.pages, static_cast<int32_t>(blockIdx.y));
    const struct sl_span span = a.pages.spans[which];
    const int32_t first = (static_cast<int32_t>(blockIdx.y) - span.first / PIECE - which) * PIECE;
    if (channel >= a.n_channels || first >= span.n)
        return;
    const int32_t stop = min(first + PIECE, span.n);
    if (plain) {
        open_plain(a, span, channel, first, stop);
        return;
    }
    const conv_thread me = {a, span, a.pages.begin(span), channel};
    const int32_t head_end = a.pages.next_end(span, 0); /* the first piece stores behind it */
#pragma unroll
    for (int i = 1; i < TAPS; i++)
        in[i] = me.input(first - TAPS + i);
#pragma unroll 4
    for (int32_t t = first; t < stop; t++) {
#pragma unroll
        for (int i = 1; i < TAPS; i++)
            in[i - 1] = in[i];
        in[TAPS - 1] = me.input(t);
        if (OWN)
            own_taps<TAPS>(me, t, w);
        me.write(t, convolve<TAPS>(a, w, bias, in));
        if (t > head_end && t == a.pages.next_end(span, t)) {
            const int32_t page = a.pages.page_of(span, t);
            if (page >= 0)
                store_tail<TAPS>(me, page, in);
        }
    }
    const int32_t page = a.pages.page_of(span, head_end);
    if (first > 0 || page < 0)
        return;
#pragma unroll
    for (int i = 1; i < TAPS && head_end != stop - 1; i++)
        in[i] = me.input(head_end - TAPS + 1 + i);
    store_tail<TAPS>(me, page, in);
}

template <int TAPS> static void launch(struct sl_cuda *cu, const struct sl_op_short_conv *a)
{
    const uint8_t *pool = a->state.pool + a->state.offset;
    const void *all[] = {a->x, a->pre, a->post, a->w, a->bias, a->out, a->act, a->kernels, pool};
    conv_args k = {sl_state_pages_of(a->batch, &a->state),
                   a->x,
                   a->pre,
                   a->post,
                   a->ld,
                   a->w,
                   a->bias,
                   a->kernels,
                   a->n_channels,
                   a->n_taps,
                   a->n_plain,
                   SL_CEIL_DIV(a->n_plain, 4),
                   a->silu,
                   a->n_channels % 4 == 0 && a->n_plain % 4 == 0 && a->ld % 4 == 0 &&
                       a->state.page_bytes % 16 == 0,
                   a->out,
                   static_cast<__nv_bfloat16 *>(a->act)};
    for (const void *p : all)
        k.wide = k.wide && sl_aligned16(p);
    const int32_t n_quads = k.n_plain_quads + SL_CEIL_DIV(a->n_channels - a->n_plain, 4);
    sl_launch(cu, a->kernels != NULL ? conv_kernel<TAPS, true> : conv_kernel<TAPS, false>,
              dim3(static_cast<unsigned>(SL_CEIL_DIV(n_quads, THREADS)),
                   static_cast<unsigned>(a->batch->n_tokens / PIECE + a->batch->n_spans)),
              dim3(THREADS), 0, k);
}

extern "C" void sl_cuda_short_conv(struct sl_backend *be, const struct sl_op_short_conv *a)
{
    static_assert(PIECE >= SL_MAX_CONV_TAPS - 1 && SL_MAX_CONV_TAPS == 8, "");
    void (*const by_taps[])(struct sl_cuda *, const struct sl_op_short_conv *) = {
        launch<2>, launch<3>, launch<4>, launch<5>, launch<6>, launch<7>, launch<8>};
    SL_ASSERT(a->n_taps >= 2 && a->n_taps <= SL_MAX_CONV_TAPS && a->n_plain >= 0);
    SL_ASSERT(a->n_plain == 0 || (a->kernels != NULL && a->silu && a->out != NULL));
    SL_ASSERT(a->kernels == NULL || (a->pre == NULL && a->bias == NULL));
    by_taps[a->n_taps - 2](sl_cuda(be), a);
}
