/* SPDX-License-Identifier: MIT
 * RWKV-7: what time mixing makes of its inputs, its recurrence for few tokens, which is decode, and
 * what comes out of it.
 *
 * Of a token of a head (wkv_inputs), with sums as in state.cuh, every step one rounding:
 *
 *   rate      1 / (1 + exp(-a))
 *   kk        k k_k * (1 / max(sqrt(sum (k k_k)^2), 1e-12)), and b = kk rate
 *   k         fma(k (rate - 1), k_a, k)
 *   v         fma(v_first - v, 1 / (1 + exp(-v_mix)), v)
 *   w         exp(-exp(-1/2) / (1 + exp(-w)))
 *
 * and behind the recurrence (wkv7_out), with the sums of x, of (x - mean)^2 and of (r k) r_k:
 *
 *   y         fma((x - mean) * (1 / sqrt(squares / dim + eps)), w, b)
 *   out       fma(sum, v, y) * g, as BF16
 *
 * The recurrence reads a state once and writes it once, as delta_rows.cu does: 16 KB of a head of
 * 64 values, 32 of them a layer of RWKV-7 1.5B. Bound by memory.
 */
#include "cuda/state/wkv.cuh"

#define ROW_THREADS 128
#define MAX_J       (SL_MAX_STATE_DIM / SL_STATE_STRIDE)

/* ------------------------------------------------------------------ heads of a token */

/* Eight lanes have a head's vector: lane `group` the values of its rows. */
template <int J> struct wkv_head {
    int64_t at;      /* of the head's first value */
    int32_t channel; /* in a vector of all heads */
    int group;
    bool live;

    __device__ __forceinline__ wkv_head(int64_t n, int32_t n_heads, int32_t dim)
    {
        const int64_t i = (static_cast<int64_t>(blockIdx.x) * ROW_THREADS + threadIdx.x) / 8;
        group = static_cast<int>(threadIdx.x % 8);
        live = i < n * n_heads;
        at = i * dim;
        channel = static_cast<int32_t>(i % n_heads) * dim;
    }
    /* Quad j of a vector from p on, zeros behind its end. */
    __device__ __forceinline__ float4 load(const float *p, int64_t from, int j, int32_t dim) const
    {
        const int32_t i = SL_STATE_STRIDE * j + 4 * group;
        return live ? sl_load4(p + from, i, dim, false) : make_float4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void store(float *p, int j, int32_t dim, float4 v) const
    {
        if (live)
            sl_store4(p + at, SL_STATE_STRIDE * j + 4 * group, dim, false, v);
    }
};

static __device__ __forceinline__ float squares(float sum, float4 v)
{
    sum = __fmaf_rn(v.x, v.x, sum);
    sum = __fmaf_rn(v.y, v.y, sum);
    sum = __fmaf_rn(v.z, v.z, sum);
    return __fmaf_rn(v.w, v.w, sum);
}

struct wkv_in {
    float *w, *k, *v, *a, *kk;
    const float *v_first, *v_mix, *k_k, *k_a;
    int32_t n, n_heads, dim;
};

/* Of one value: kk, b, k, w and v in place. */
struct wkv_value {
    float kk, b, k, w;

    __device__ __forceinline__ wkv_value(float k_in, float k_k, float k_a, float a, float w_in,
                                         float by)
    {
        const float rate = sl_gated(1.0f, a), rest = __fadd_rn(rate, -1.0f);
        kk = __fmul_rn(__fmul_rn(k_in, k_k), by);
        b = __fmul_rn(kk, rate);
        k = __fmaf_rn(__fmul_rn(k_in, rest), k_a, k_in);
        w = sl_exp(sl_gated(-0.6065306597126334f, w_in));
    }
};

static __device__ __forceinline__ float mixed(float v, float first, float mix)
{
    return __fmaf_rn(__fadd_rn(first, -v), sl_gated(1.0f, mix), v);
}

template <int J>
static __device__ __forceinline__ void wkv_quad(const wkv_in &a, const wkv_head<J> &me, int j,
                                                float by)
{
    const float4 k = me.load(a.k, me.at, j, a.dim), k_k = me.load(a.k_k, me.channel, j, a.dim);
    const float4 k_a = me.load(a.k_a, me.channel, j, a.dim), in = me.load(a.a, me.at, j, a.dim);
    const float4 w = me.load(a.w, me.at, j, a.dim);
    const wkv_value x(k.x, k_k.x, k_a.x, in.x, w.x, by), y(k.y, k_k.y, k_a.y, in.y, w.y, by),
        z(k.z, k_k.z, k_a.z, in.z, w.z, by), u(k.w, k_k.w, k_a.w, in.w, w.w, by);
    me.store(a.kk, j, a.dim, make_float4(x.kk, y.kk, z.kk, u.kk));
    me.store(a.a, j, a.dim, make_float4(x.b, y.b, z.b, u.b));
    me.store(a.k, j, a.dim, make_float4(x.k, y.k, z.k, u.k));
    me.store(a.w, j, a.dim, make_float4(x.w, y.w, z.w, u.w));
    if (a.v_mix == nullptr)
        return;
    const float4 v = me.load(a.v, me.at, j, a.dim), first = me.load(a.v_first, me.at, j, a.dim);
    const float4 mix = me.load(a.v_mix, me.at, j, a.dim);
    me.store(a.v, j, a.dim,
             make_float4(mixed(v.x, first.x, mix.x), mixed(v.y, first.y, mix.y),
                         mixed(v.z, first.z, mix.z), mixed(v.w, first.w, mix.w)));
}

template <int J> static __global__ void __launch_bounds__(ROW_THREADS) inputs_kernel(wkv_in a)
{
    const wkv_head<J> me(a.n, a.n_heads, a.dim);
    float sum = 0.0f;
    sl_grid_launch_dependents();
    sl_grid_wait();
#pragma unroll
    for (int j = 0; j < J; j++)
        sum = squares(sum,
                      sl_mul4(me.load(a.k, me.at, j, a.dim), me.load(a.k_k, me.channel, j, a.dim)));
    const float length = __fsqrt_rn(sl_sum_groups<0>(sum));
    const float by = __fdiv_rn(1.0f, length > 1e-12f ? length : 1e-12f);
#pragma unroll
    for (int j = 0; j < J; j++)
        wkv_quad<J>(a, me, j, by);
}

struct wkv_out {
    const float *x, *r, *k, *v, *g, *r_k, *w, *b;
    float eps;
    int32_t n, n_heads, dim;
    __nv_bfloat16 *out;
};

template <int J> static __global__ void __launch_bounds__(ROW_THREADS) out_kernel(wkv_out a)
{
    const wkv_head<J> me(a.n, a.n_heads, a.dim);
    float4 x[J];
    float sum = 0.0f, bonus = 0.0f, spread = 0.0f;
    sl_grid_launch_dependents();
    sl_grid_wait();
#pragma unroll
    for (int j = 0; j < J; j++) {
        x[j] = me.load(a.x, me.at, j, a.dim);
        const float4 rk = sl_mul4(me.load(a.r, me.at, j, a.dim), me.load(a.k, me.at, j, a.dim));
        const float4 r_k = me.load(a.r_k, me.channel, j, a.dim);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum = __fadd_rn(sum, sl_part(x[j], i));
            bonus = __fmaf_rn(sl_part(rk, i), sl_part(r_k, i), bonus);
        }
    }
    const float n = static_cast<float>(a.dim);
    const float mean = __fdiv_rn(sl_sum_groups<0>(sum), n), more = sl_sum_groups<0>(bonus);
#pragma unroll
    for (int j = 0; j < J; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float off = __fadd_rn(sl_part(x[j], i), -mean);
            if (SL_STATE_STRIDE * j + 4 * me.group + i < a.dim)
                spread = __fmaf_rn(off, off, spread);
        }
    const float var = __fadd_rn(__fdiv_rn(sl_sum_groups<0>(spread), n), a.eps);
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn(var));
#pragma unroll
    for (int j = 0; j < J; j++) {
        const float4 w = me.load(a.w, me.channel, j, a.dim), b = me.load(a.b, me.channel, j, a.dim);
        const float4 v = me.load(a.v, me.at, j, a.dim), g = me.load(a.g, me.at, j, a.dim);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t c = SL_STATE_STRIDE * j + 4 * me.group + i;
            const float off = __fmul_rn(__fadd_rn(sl_part(x[j], i), -mean), scale);
            const float y = __fmaf_rn(off, sl_part(w, i), sl_part(b, i));
            if (me.live && c < a.dim)
                a.out[me.at + c] = __float2bfloat16_rn(
                    __fmul_rn(__fmaf_rn(more, sl_part(v, i), y), sl_part(g, i)));
        }
    }
}

static dim3 head_blocks(int64_t n, int32_t n_heads)
{
    return dim3(static_cast<unsigned>(SL_CEIL_DIV(8 * n * n_heads, ROW_THREADS)));
}

static void inputs(struct sl_cuda *cu, const struct sl_op_wkv7 *a, int j)
{
    const wkv_in k = {a->w,       a->k,       a->v,   a->a,   a->kk,
                      a->v_first, a->v_mix,   a->k_k, a->k_a, a->batch->n_tokens,
                      a->n_heads, a->head_dim};
    sl_launch(cu,
              j <= 1   ? inputs_kernel<1>
              : j <= 2 ? inputs_kernel<2>
              : j <= 4 ? inputs_kernel<4>
                       : inputs_kernel<MAX_J>,
              head_blocks(k.n, k.n_heads), dim3(ROW_THREADS), 0, k);
}

extern "C" void sl_cuda_wkv7_out(struct sl_backend *be, const struct sl_op_wkv7_out *a)
{
    const int j = SL_CEIL_DIV(a->head_dim, SL_STATE_STRIDE);
    const wkv_out k = {a->x,
                       a->r,
                       a->k,
                       a->v,
                       a->g,
                       a->r_k,
                       a->w,
                       a->b,
                       a->eps,
                       a->n,
                       a->n_heads,
                       a->head_dim,
                       static_cast<__nv_bfloat16 *>(a->out)};
    SL_ASSERT(a->head_dim <= SL_MAX_STATE_DIM);
    sl_launch(sl_cuda(be),
              j <= 1   ? out_kernel<1>
              : j <= 2 ? out_kernel<2>
              : j <= 4 ? out_kernel<4>
                       : out_kernel<MAX_J>,
              head_blocks(k.n, k.n_heads), dim3(ROW_THREADS), 0, k);
}

/* ------------------------------------------------------------------ few tokens */

template <int J>
static __global__ void __launch_bounds__(256, J > 4 ? 1 : 2) wkv_few_kernel(wkv_args a)
{
    typedef wkv_token<J> at;
    SL_SMEM(float, room); /* tokens' vectors, groups' sums of p and of out */
    const int n_lanes = static_cast<int>(blockDim.x) / SL_STATE_GROUPS, n_cols = 4 * n_lanes;
    const int group = static_cast<int>(threadIdx.x) / n_lanes;
    const int lane_col = 4 * (static_cast<int>(threadIdx.x) % n_lanes);
    const int head = static_cast<int>(blockIdx.x) / a.n_parts;
    const int col = static_cast<int>(blockIdx.x) % a.n_parts * n_cols + lane_col;
    float *sum_p = room + SL_STATE_FEW * at::floats, *sum_o = sum_p + SL_STATE_GROUPS * n_cols;
    sl_grid_launch_dependents();
    sl_grid_wait();
    const struct sl_span span = a.pages.spans[blockIdx.y];
    if (span.n > SL_STATE_FEW)
        return;
    const int64_t first = static_cast<int64_t>(head) * a.dim * a.dim;
    const int64_t ld = static_cast<int64_t>(a.n_heads) * a.dim;
    const float *begin = a.pages.begin(span);
    sl_state_quads<J> state;
    state.load(begin != nullptr ? begin + first : nullptr, a.dim, group, a.dim, col, a.dim);
    const float *values = a.v + span.first * ld + static_cast<int64_t>(head) * a.dim;
    float4 v = sl_load4(values, col, a.dim, true);
    int32_t end = a.pages.next_end(span, 0);
    int32_t page = a.pages.page_of(span, end);
    for (int i = static_cast<int>(threadIdx.x); i < span.n * at::floats / 4;
         i += static_cast<int>(blockDim.x))
        wkv_bring<J>(a, head, span.first + i / (at::floats / 4), i % (at::floats / 4),
                     room + i / (at::floats / 4) * at::floats);
    __syncthreads();
    for (int32_t t = 0; t < span.n; t++) {
        const float *token = room + t * at::floats;
        *reinterpret_cast<float4 *>(sum_p + group * n_cols + lane_col) =
            state.dot(token + at::kk, group);
        __syncthreads();
        const float4 p = sl_sum_groups4(sum_p + lane_col, n_cols);
        const float4 minus = make_float4(-p.x, -p.y, -p.z, -p.w), now = v;
        if (t + 1 < span.n)
            v = sl_load4(values + (t + 1) * ld, col, a.dim, true);
#pragma unroll
        for (int j = 0; j < J; j++) {
            const int row = SL_STATE_STRIDE * j + 4 * group;
            const float4 k = *reinterpret_cast<const float4 *>(token + at::k + row);
            const float4 b = *reinterpret_cast<const float4 *>(token + at::b + row);
            const float4 w = *reinterpret_cast<const float4 *>(token + at::w + row);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float by = sl_part(w, i);
                float4 &s = state.s[4 * j + i];
                s = sl_fma4(sl_part(b, i), minus, sl_mul4(make_float4(by, by, by, by), s));
                s = sl_fma4(sl_part(k, i), now, s);
            }
        }
        *reinterpret_cast<float4 *>(sum_o + group * n_cols + lane_col) =
            state.dot(token + at::r, group);
        if (t == end) {
            if (page >= 0)
                state.store(a.pages.page(page) + first, a.dim, group, a.dim, col, a.dim);
            if (t + 1 < span.n) {
                end = a.pages.next_end(span, t + 1);
                page = a.pages.page_of(span, end);
            }
        }
        __syncthreads();
        const int c = col - lane_col + static_cast<int>(threadIdx.x);
        if (static_cast<int>(threadIdx.x) < n_cols && c < a.dim)
            a.out[((span.first + t) * static_cast<int64_t>(a.n_heads) + head) * a.dim + c] =
                sl_sum_groups1(sum_o + threadIdx.x, n_cols);
    }
}

template <int J> static void few(struct sl_cuda *cu, const wkv_args &a, int n_lanes)
{
    const size_t smem = sizeof(float) * static_cast<size_t>(SL_STATE_FEW * wkv_token<J>::floats +
                                                            2 * SL_STATE_GROUPS * 4 * n_lanes);
    sl_launch(
        cu, wkv_few_kernel<J>,
        dim3(static_cast<unsigned>(a.n_heads * a.n_parts), static_cast<unsigned>(a.pages.n_spans)),
        dim3(static_cast<unsigned>(SL_STATE_GROUPS * n_lanes)), smem, a);
}

extern "C" void sl_cuda_wkv7(struct sl_backend *be, const struct sl_op_wkv7 *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    const int j = SL_CEIL_DIV(a->head_dim, SL_STATE_STRIDE);
    const uint8_t *pool = a->state.pool + a->state.offset;
    const void *all[] = {a->r, a->w, a->k, a->v, a->a, a->kk, pool};
    wkv_args k = {sl_state_pages_of(a->batch, &a->state),
                  a->r,
                  a->w,
                  a->k,
                  a->v,
                  a->a,
                  a->kk,
                  a->n_heads,
                  a->head_dim,
                  1,
                  a->head_dim % 4 == 0 && a->state.page_bytes % 16 == 0,
                  0,
                  a->out};
    SL_ASSERT(a->head_dim <= SL_MAX_STATE_DIM);
    for (const void *p : all)
        k.wide = k.wide && sl_aligned16(p);
    k.few = k.wide ? SL_STATE_FEW : 0;
    inputs(cu, a, j);
    const int32_t n_rows = sl_wide_rows(a->batch, k.few);
    if (n_rows > 0)
        sl_cuda_wkv_wide(cu, &k, n_rows);
    if (!sl_wide_leaves(a->batch, k.few))
        return;
    const int n_lanes =
        sl_state_lanes(cu, static_cast<int64_t>(k.pages.n_spans) * k.n_heads, k.dim);
    k.n_parts = SL_CEIL_DIV(a->head_dim, 4 * n_lanes);
    (j <= 1 ? few<1> : j <= 2 ? few<2> : j <= 4 ? few<4> : few<MAX_J>)(cu, k, n_lanes);
}
