/* SPDX-License-Identifier: MIT
 * rows_compress.cu - rows that stand for several tokens each (struct sl_op_compress), and the state
 * of the tokens that are not enough for one yet.
 *
 * The sums of a row have its own tokens, and with overlap those of the row before, so that all of
 * what lies behind the first rows of a span is made of the step's tokens alone. A block has a
 * token: it makes the row that ends there, and the state behind it where that is stored, each from
 * the first token that it is made of on. What the state before the span is part of belongs to the
 * block of the span's first token, which goes from token to token; so does the first state behind
 * that, which may go to the page that the state before the span came from. No other block touches
 * that page.
 *
 * Thread i has columns 4 i .. 4 i + 3 of a row. A sum takes tokens in their order, by the steps of
 * src/cpu/compress_tmpl.c; the norm of a row is norm.cuh's for narrow ones. Bytes of a token of 512
 * dimensions with overlap: 16 KB, read twice; a row and its tokens' exponentials, 4 KB.
 */
#include "cuda/attention/rows.cuh"
#include "cuda/math.cuh"
#include "cuda/norm.cuh"
#include "cuda/state/state.cuh"

#include <math.h>

#define COMPRESS_THREADS (SL_ROWS_DIM / 4)

struct compress_args {
    const float *kv, *gate, *bias, *norm, *inv_freq;
    float eps, factor;
    int32_t n_tokens, dim, ratio, n_dims;
    bool overlap;
    struct sl_state_pages pages;
    struct sl_rows_at to;
};

/* A softmax in one pass: the largest gate, the sum of weights, the weighted sum. */
struct pooled {
    float4 max, weights, sum;

    static __device__ __forceinline__ struct pooled none()
    {
        const float m = -INFINITY;
        return {make_float4(m, m, m, m), make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
    }
    static __device__ __forceinline__ void add1(float &max, float &weights, float &sum, float gate,
                                                float kv)
    {
        const float most = gate > max ? gate : max;
        const float was = sl_exp(__fadd_rn(max, -most)), now = sl_exp(__fadd_rn(gate, -most));
        max = most;
        weights = __fmaf_rn(weights, was, now);
        sum = __fmaf_rn(sum, was, __fmul_rn(now, kv));
    }
    __device__ __forceinline__ void add(float4 gate, float4 kv)
    {
        add1(max.x, weights.x, sum.x, gate.x, kv.x);
        add1(max.y, weights.y, sum.y, gate.y, kv.y);
        add1(max.z, weights.z, sum.z, gate.z, kv.z);
        add1(max.w, weights.w, sum.w, gate.w, kv.w);
    }
    __device__ __forceinline__ float4 mean() const
    {
        return make_float4(__fdiv_rn(sum.x, weights.x), __fdiv_rn(sum.y, weights.y),
                           __fdiv_rn(sum.z, weights.z), __fdiv_rn(sum.w, weights.w));
    }
};

/* What a block works on. */
struct compress_block {
    const struct compress_args &a;
    const struct sl_span &span;
    float *row;   /* shared memory: [SL_ROWS_DIM] */
    float *sums;  /* shared memory: of warps */
    int32_t w, c; /* columns of a token; the thread's first, at dim or behind it: it has none */
    struct pooled now, next;

    __device__ __forceinline__ bool has() const
    {
        return c < a.dim;
    }
    __device__ __forceinline__ void load(const float *state)
    {
        const float *own = state + w - a.dim + c;
        now = {*reinterpret_cast<const float4 *>(own), *reinterpret_cast<const float4 *>(own + w),
               *reinterpret_cast<const float4 *>(own + 2 * w)};
        if (a.overlap)
            next = {*reinterpret_cast<const float4 *>(state + c),
                    *reinterpret_cast<const float4 *>(state + w + c),
                    *reinterpret_cast<const float4 *>(state + 2 * w + c)};
    }
    __device__ __forceinline__ void store(float *state) const
    {
        float *own = state + w - a.dim + c;
        *reinterpret_cast<float4 *>(own) = now.max;
        *reinterpret_cast<float4 *>(own + w) = now.weights;
        *reinterpret_cast<float4 *>(own + 2 * w) = now.sum;
        if (!a.overlap)
            return;
        *reinterpret_cast<float4 *>(state + c) = next.max;
        *reinterpret_cast<float4 *>(state + w + c) = next.weights;
        *reinterpret_cast<float4 *>(state + 2 * w + c) = next.sum;
    }
    static __device__ __forceinline__ float4 of(const float *p)
    {
        return *reinterpret_cast<const float4 *>(p);
    }
    /* Token t of the span. */
    __device__ __forceinline__ void add(int32_t t)
    {
        const int64_t at = static_cast<int64_t>(span.first + t) * w;
        const float *bias = a.bias + static_cast<int64_t>((span.pos + t) % a.ratio) * w;
        const int32_t own = w - a.dim + c;
        now.add(sl_add4(of(a.gate + at + own), of(bias + own)), of(a.kv + at + own));
        if (a.overlap)
            next.add(sl_add4(of(a.gate + at + c), of(bias + c)), of(a.kv + at + c));
    }
    /* Behind the last token of a row. */
    __device__ __forceinline__ void pass()
    {
        now = next;
        next = pooled::none();
    }

    __device__ __forceinline__ bool ends(int32_t t) const
    {
        return (span.pos + t + 1) % a.ratio == 0;
    }
    /* The first token of all that a row, or a state, behind token t is made of; below 0: the state
     * before the span is. A state behind a row has with overlap what that row's tokens have for the
     * next one, and else nothing. */
    __device__ __forceinline__ int32_t begins(int32_t t) const
    {
        return t - (span.pos + t) % a.ratio - (a.overlap ? a.ratio : 0);
    }
    __device__ __forceinline__ bool from_zero(int32_t t) const
    {
        return begins(t) >= 0 || span.pos == 0;
    }
    /* The sums behind token t, of tokens from begins(t) on. */
    __device__ __forceinline__ void collect(int32_t t)
    {
        now = next = pooled::none();
        if (!has())
            return;
        for (int32_t i = max(begins(t), 0); i < t; i++) {
            add(i);
            if (ends(i))
                pass();
        }
        add(t);
    }

    /* The page of the state behind token t; below 0: it is not stored. */
    __device__ __forceinline__ int32_t page(int32_t t) const
    {
        return a.pages.next_end(span, t) == t ? a.pages.page_of(span, t) : -1;
    }
    __device__ __forceinline__ void keep(int32_t id) const
    {
        if (id >= 0 && has())
            store(a.pages.page(id));
    }

    /* The row that ends with token t, of `now`. All threads call it. */
    template <class E> __device__ __forceinline__ void write(int32_t t)
    {
        const int32_t pos = span.pos + t, thread = static_cast<int32_t>(threadIdx.x);
        float4 x = has() ? now.mean() : make_float4(0, 0, 0, 0);
        const float sum = sl_norm_sum_block<COMPRESS_THREADS>(sl_norm_squares(0.0f, x), sums);
        const float by = sl_norm_scale(sum, a.eps, a.dim);
        if (has()) {
            const float4 f = of(a.norm + c);
            x = make_float4(__fmul_rn(__fmul_rn(x.x, by), f.x), __fmul_rn(__fmul_rn(x.y, by), f.y),
                            __fmul_rn(__fmul_rn(x.z, by), f.z), __fmul_rn(__fmul_rn(x.w, by), f.w));
        }
        *reinterpret_cast<float4 *>(row + c) = x;
        __syncthreads();
        for (int32_t i = thread; i < a.n_dims / 2; i += COMPRESS_THREADS) {
            float *pair = row + a.dim - a.n_dims + 2 * i;
            const float2 y = sl_rows_turn(pair[0], pair[1], angle(pos + 1 - a.ratio, i));
            pair[0] = y.x, pair[1] = y.y;
        }
        __syncthreads();
        if (2 * c < a.to.row_bytes)
            sl_rows_put4<E>(a.to.row(span.table_idx, pos), c, of(row + c));
        __syncthreads(); /* before the next row's sums */
    }
    /* As angles_kernel of rows.cu. */
    __device__ __forceinline__ float2 angle(int32_t pos, int32_t i) const
    {
        double s, c, x = static_cast<double>(__fmul_rn(static_cast<float>(pos), a.inv_freq[i]));
        sincos(x, &s, &c);
        return make_float2(__fmul_rn(static_cast<float>(c), a.factor),
                           __fmul_rn(static_cast<float>(s), a.factor));
    }

    /* The first block of a span. */
    template <class E> __device__ __forceinline__ void first()
    {
        int32_t t = 0;
        bool stored = false;
        now = next = pooled::none();
        if (span.pos > 0 && has())
            load(a.pages.begin(span));
        for (; t < span.n && !from_zero(t); t++) {
            if (has())
                add(t);
            if (ends(t)) {
                write<E>(t);
                pass();
            }
            const int32_t id = page(t);
            stored = stored || id >= 0;
            keep(id);
        }
        if (t == 0) {
            const int32_t id = page(0);
            one<E>(0, id);
            stored = id >= 0;
            t = 1;
        }
        if (!stored)
            next_state(t);
    }
    /* The first token from t on behind which a state is stored. */
    __device__ __forceinline__ int32_t stores(int32_t t) const
    {
        for (; t < span.n; t = a.pages.next_end(span, t) + 1) {
            const int32_t end = a.pages.next_end(span, t);
            if (end >= span.n || a.pages.page_of(span, end) >= 0)
                return end;
        }
        return span.n;
    }
    __device__ __forceinline__ void next_state(int32_t t)
    {
        t = stores(t);
        if (t >= span.n)
            return;
        collect(t);
        if (ends(t))
            pass();
        keep(page(t));
    }
    /* Token t, whose row and state are made of the step's tokens; id: where that goes. */
    template <class E> __device__ __forceinline__ void one(int32_t t, int32_t id)
    {
        if (!ends(t) && id < 0)
            return;
        collect(t);
        if (ends(t)) {
            write<E>(t);
            pass();
        }
        keep(id);
    }
    /* Another block of a span. */
    template <class E> __device__ __forceinline__ void other(int32_t t)
    {
        if (!from_zero(t))
            return;
        const int32_t id = page(t);
        one<E>(t, id >= 0 && stores(0) == t ? -1 : id); /* the first state is the first block's */
    }
};

template <class E>
static __global__ void __launch_bounds__(COMPRESS_THREADS)
    compress_kernel(const __grid_constant__ struct compress_args a)
{
    SL_SMEM(float, row);
    const int32_t t = static_cast<int32_t>(blockIdx.x);
    sl_grid_launch_dependents();
    sl_grid_wait();
    const struct sl_span span =
        a.pages.spans[sl_rows_span(a.pages.spans, a.pages.n_spans, a.n_tokens, t)];
    struct compress_block x = {a,
                               span,
                               row,
                               row + SL_ROWS_DIM,
                               a.overlap ? 2 * a.dim : a.dim,
                               4 * static_cast<int32_t>(threadIdx.x),
                               pooled::none(),
                               pooled::none()};
    if (t == span.first)
        x.first<E>();
    else
        x.other<E>(t - span.first);
}

extern "C" void sl_cuda_compress(struct sl_backend *be, const struct sl_op_compress *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_batch *b = op->batch;
    if (!sl_rows_fit(cu, op->rope, op->dim, op->rows.dtype))
        return;
    const struct compress_args a = {op->kv,
                                    op->gate,
                                    op->bias,
                                    op->norm,
                                    op->rope->inv_freq,
                                    op->eps,
                                    op->rope->attn_factor,
                                    b->n_tokens,
                                    op->dim,
                                    op->ratio,
                                    op->rope->n_dims,
                                    op->overlap,
                                    sl_state_pages_of(b, &op->state),
                                    sl_rows_at_of(b, &op->rows, op->ratio, op->dim)};
    sl_launch(cu,
              op->rows.dtype == SL_DTYPE_F16 ? compress_kernel<sl_elem_f16>
                                             : compress_kernel<sl_elem_bf16>,
              dim3(static_cast<unsigned>(b->n_tokens)), dim3(COMPRESS_THREADS),
              (SL_ROWS_DIM + 32) * sizeof(float), a);
}
