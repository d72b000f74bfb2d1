/* SPDX-License-Identifier: MIT
 * Real-gated linear recurrent units (RG-LRU). Of a channel, every step one rounding:
 *
 *   log     a / (1 + exp(-decay_gate))
 *   in      x / (1 + exp(-in_gate)), but at position 0 times sqrt(1 - exp(2 log))
 *   h       fma(exp(log), h, in), which is the output
 *
 * A channel has nothing to do with another, so the bits are the CPU's of the same inputs. Few
 * tokens, which is decode: a thread has a channel. Bound by memory, 20 bytes of a channel: of the
 * 2,560 channels of RecurrentGemma 2B 51 KB a sequence.
 *
 * Many tokens: of what is above only the last line waits for the token before. Eight warps compute
 * decays and inputs of 32 tokens of 32 channels, a ninth goes through those of the 32 tokens
 * before: a multiplication and addition and two loads from shared memory a token, which 16 tokens
 * ahead are under way.
 */
#include "cuda/state/state.cuh"

#define FEW_THREADS  128
#define TILE         32 /* tokens, and channels */
#define WARPS        8  /* that compute inputs */
#define EACH         (TILE / WARPS)
#define WIDE_THREADS (32 * (WARPS + 1))

struct lru_args {
    struct sl_state_pages pages;
    const float *x, *in_gate, *decay_gate, *a;
    int32_t n_channels;
    float *out;
};

struct lru_token { /* of a channel, as read */
    float x, in_gate, decay_gate;
};

/* 1 - exp(x) for x <= 0, by the steps of v_one_minus_exp in src/cpu/recurrent_tmpl.c. */
static __device__ __forceinline__ float one_minus_exp(float x)
{
    float p = 0x1.a01a02p-13f;
    p = __fmaf_rn(p, x, 0x1.6c16c2p-10f);
    p = __fmaf_rn(p, x, 0x1.111112p-7f);
    p = __fmaf_rn(p, x, 0x1.555556p-5f);
    p = __fmaf_rn(p, x, 0x1.555556p-3f);
    p = __fmaf_rn(p, x, 0.5f);
    p = __fmaf_rn(p, x, 1.0f);
    return x < -0.375f ? __fadd_rn(1.0f, -sl_exp(x)) : __fmul_rn(p, -x);
}

static __device__ __forceinline__ lru_token token_of(const lru_args &a, int64_t row,
                                                     int32_t channel)
{
    const int64_t at = row * a.n_channels + channel;
    return {a.x[at], a.in_gate[at], a.decay_gate[at]};
}

/* The decay and what is added. */
static __device__ __forceinline__ float2 step_of(const lru_token &t, float rate, bool first)
{
    const float log = sl_gated(rate, t.decay_gate);
    const float in = sl_gated(t.x, t.in_gate);
    const float root = first ? 1.0f : __fsqrt_rn(one_minus_exp(__fadd_rn(log, log)));
    return make_float2(sl_exp(log), __fmul_rn(in, root));
}

/* A channel's way through a span: what comes out of each token, and the states that are stored. */
struct lru_channel {
    float h;
    int32_t end, page;

    __device__ __forceinline__ void begin(const lru_args &a, const struct sl_span &span,
                                          int32_t channel, bool has)
    {
        const float *from = a.pages.begin(span);
        h = has && from != nullptr ? from[channel] : 0.0f;
        end = a.pages.next_end(span, 0);
        page = a.pages.page_of(span, end);
    }
    __device__ __forceinline__ void step(const lru_args &a, const struct sl_span &span, int32_t t,
                                         int32_t channel, bool has, const float2 &s)
    {
        h = __fmaf_rn(s.x, h, s.y);
        if (has)
            a.out[static_cast<int64_t>(span.first + t) * a.n_channels + channel] = h;
        if (t != end)
            return;
        if (has && page >= 0)
            a.pages.page(page)[channel] = h;
        if (t + 1 < span.n) {
            end = a.pages.next_end(span, t + 1);
            page = a.pages.page_of(span, end);
        }
    }
};

static __global__ void __launch_bounds__(FEW_THREADS) lru_few_kernel(lru_args a)
{
    const int32_t channel = static_cast<int32_t>(blockIdx.x * FEW_THREADS + threadIdx.x);
    const bool has = channel < a.n_channels;
    const float rate = has ? a.a[channel] : 0.0f;
    sl_grid_launch_dependents();
    sl_grid_wait();
    const struct sl_span span = a.pages.spans[blockIdx.y];
    if (span.n > SL_STATE_FEW || !has)
        return;
    lru_channel me = {};
    me.begin(a, span, channel, true);
#pragma unroll 1
    for (int32_t t = 0; t < span.n; t++)
        me.step(a, span, t, channel, true,
                step_of(token_of(a, span.first + t, channel), rate, span.pos + t == 0));
}

/* Tokens of a tile that a warp has, read while those of the tile before are computed. */
struct lru_ahead {
    lru_token of[EACH];

    __device__ __forceinline__ void read(const lru_args &a, const struct sl_span &span,
                                         int32_t from, int32_t channel, bool has)
    {
        const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int32_t t = from + warp + WARPS * i;
            of[i] = has && t < span.n ? token_of(a, span.first + t, channel)
                                      : lru_token{0.0f, 0.0f, 0.0f};
        }
    }
};

/* Two tiles in turns: one is computed while the other is gone through. */
static __device__ __forceinline__ void lru_span(const lru_args &a, const struct sl_span &span,
                                                int32_t channel, float rate, float2 *tiles)
{
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x % 32);
    const bool has = channel < a.n_channels, scans = warp == WARPS;
    const int32_t n_tiles = (span.n + TILE - 1) / TILE;
    lru_channel me = {};
    lru_ahead ahead = {};
    if (scans)
        me.begin(a, span, channel, has);
    else
        ahead.read(a, span, 0, channel, has);
    for (int32_t k = 0; k <= n_tiles; k++) {
        if (!scans && k < n_tiles) {
            const lru_ahead now = ahead;
            ahead.read(a, span, (k + 1) * TILE, channel, has);
            float2 *to = tiles + k % 2 * TILE * TILE + lane;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const int at = warp + WARPS * i;
                to[at * TILE] = step_of(now.of[i], rate, span.pos + k * TILE + at == 0);
            }
        }
        if (scans && k > 0) {
            const float2 *from = tiles + (k - 1) % 2 * TILE * TILE + lane;
            const int32_t first = (k - 1) * TILE, n = min(span.n - first, TILE);
#pragma unroll 16
            for (int32_t i = 0; i < n; i++)
                me.step(a, span, first + i, channel, has, from[i * TILE]);
        }
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(WIDE_THREADS) lru_wide_kernel(lru_args a)
{
    SL_SMEM(float2, tiles); /* two of decays and inputs; behind them which span it is */
    int32_t *room = reinterpret_cast<int32_t *>(tiles + 2 * TILE * TILE);
    const int32_t channel = static_cast<int32_t>(blockIdx.x * TILE + threadIdx.x % 32);
    const float rate = channel < a.n_channels ? a.a[channel] : 0.0f;
    sl_grid_launch_dependents();
    sl_grid_wait();
    for (int32_t i = static_cast<int32_t>(blockIdx.y);; i += static_cast<int32_t>(gridDim.y)) {
        const int32_t which = sl_wide_span(a.pages, SL_STATE_FEW, i, room);
        if (which < 0)
            return;
        lru_span(a, a.pages.spans[which], channel, rate, tiles);
    }
}

extern "C" void sl_cuda_rglru(struct sl_backend *be, const struct sl_op_rglru *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    const lru_args k = {sl_state_pages_of(a->batch, &a->state),
                        a->x,
                        a->in_gate,
                        a->decay_gate,
                        a->a,
                        a->n_channels,
                        a->out};
    const int32_t n_rows = sl_wide_rows(a->batch, SL_STATE_FEW);
    if (n_rows > 0)
        sl_launch(cu, lru_wide_kernel,
                  dim3(static_cast<unsigned>(SL_CEIL_DIV(a->n_channels, TILE)),
                       static_cast<unsigned>(n_rows)),
                  dim3(WIDE_THREADS), sizeof(float2) * 2 * TILE * TILE + 16, k);
    if (sl_wide_leaves(a->batch, SL_STATE_FEW))
        sl_launch(cu, lru_few_kernel,
                  dim3(static_cast<unsigned>(SL_CEIL_DIV(a->n_channels, FEW_THREADS)),
                       static_cast<unsigned>(a->batch->n_spans)),
                  dim3(FEW_THREADS), 0, k);
}
