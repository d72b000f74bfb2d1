/* SPDX-License-Identifier: MIT
 * rows_select.cu - which rows made of several tokens a position attends to (struct
 * sl_op_compressed_select): scores of all rows that it sees, then the largest (index_top.cu).
 *
 * A block has 256 rows of the index, of which each of eight warps has 32 in registers, and goes
 * through 16 tokens, or has one where most are other sequences': then rows would be loaded for each
 * anyway, 256 bytes a row. A token's queries come to shared memory, rounded to BF16, and are the
 * columns of the product. The order of a score is that of index_select.cu.
 *
 * Few of the blocks have rows: how long sequences are the device alone knows.
 */
#include "cuda/attention/index.cuh"
#include "cuda/attention/rows.cuh"
#include "cuda/ptx.cuh"

#define SELECT_WARPS   8
#define SELECT_THREADS (SELECT_WARPS * 32)
#define SELECT_UNITS   2 /* of 16 rows, of a warp */
#define SELECT_ROWS    (SELECT_WARPS * SELECT_UNITS * 16)
#define SELECT_TOKENS  16
#define SELECT_DIM     SL_DEVICE_INDEX_DIM
#define SELECT_STEPS   (SELECT_DIM / 32) /* of pieces of 16 bytes, four a step */
#define SELECT_QUERY   (SELECT_DIM * 2)  /* bytes */

struct select_args {
    const float *q, *w;
    int32_t n_tokens, n_heads, n_padded, dim, top_k; /* n_padded: whole eights */
    const struct sl_span *spans;
    int32_t n_spans;
    struct sl_rows_at rows;
    float *scores;
    int64_t ld;
    int32_t first, n; /* tokens at hand, */
    int32_t each;     /* and of a block */
    int32_t *seen;    /* [tokens] rows that each sees, less one */
};

struct select_block {
    const struct select_args &a;
    uint8_t *queries; /* [n_padded][SELECT_QUERY] */
    float *weights;   /* [n_padded] */
    int lane;
    int32_t from; /* the warp's first row */
    uint4 key[SELECT_UNITS][2][SELECT_STEPS];

    __device__ __forceinline__ select_block(const struct select_args &args, uint8_t *memory)
        : a(args), queries(memory),
          weights(reinterpret_cast<float *>(memory + args.n_padded * SELECT_QUERY)),
          lane(static_cast<int>(threadIdx.x % 32)), from(0)
    {
    }
    /* Of each 16 rows a lane has pieces lane % 4 of every four, of rows lane / 4 and 8 behind it;
     * n_seen: rows that there are. */
    __device__ __forceinline__ void load(int32_t table, int32_t n_seen)
    {
#pragma unroll
        for (int u = 0; u < SELECT_UNITS; u++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int32_t r = from + 16 * u + 8 * half + lane / 4;
                const uint8_t *row = nullptr;
                if (r < n_seen)
                    row = a.rows.row(table, (r + 1) * a.rows.ratio - 1);
#pragma unroll
                for (int s = 0; s < SELECT_STEPS; s++) {
                    const int piece = 4 * s + lane % 4;
                    key[u][half][s] = make_uint4(0, 0, 0, 0);
                    if (r < n_seen && piece * 16 < a.rows.row_bytes)
                        key[u][half][s] = *reinterpret_cast<const uint4 *>(row + piece * 16);
                }
            }
    }

    static __device__ __forceinline__ int place(int head, int piece)
    {
        return head * SELECT_QUERY + (piece ^ (head & 1) << 2) * 16; /* two heads, no bank twice */
    }
    static __device__ __forceinline__ uint32_t pair(const float *q, int32_t d, int32_t dim)
    {
        return sl_pack_bf16(d < dim ? q[d] : 0.0f, d + 1 < dim ? q[d + 1] : 0.0f);
    }

    /* A token's queries and their weights; zeros behind the last. */
    __device__ __forceinline__ void ask(int32_t t)
    {
        const int64_t row = static_cast<int64_t>(t) * a.n_heads;
        for (int i = static_cast<int>(threadIdx.x); i < a.n_padded * (SELECT_DIM / 8);
             i += SELECT_THREADS) {
            const int h = i / (SELECT_DIM / 8), d = i % (SELECT_DIM / 8) * 8;
            const float *q = a.q + (row + h) * a.dim;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (h < a.n_heads && d < a.dim)
                v = make_uint4(pair(q, d, a.dim), pair(q, d + 2, a.dim), pair(q, d + 4, a.dim),
                               pair(q, d + 6, a.dim));
            *reinterpret_cast<uint4 *>(queries + place(h, d / 8)) = v;
        }
        for (int h = static_cast<int>(threadIdx.x); h < a.n_padded; h += SELECT_THREADS)
            weights[h] = h < a.n_heads ? a.w[row + h] : 0.0f;
    }

    __device__ __forceinline__ void score(int32_t n_seen, float *to) const
    {
        float sum[SELECT_UNITS][2] = {};
#pragma unroll 2
        for (int head = 0; head < a.n_padded; head += 8) {
            float c[SELECT_UNITS][4] = {};
#pragma unroll
            for (int s = 0; s < SELECT_STEPS; s++) {
                const uint4 q = *reinterpret_cast<const uint4 *>(
                    queries + place(head + lane / 4, 4 * s + lane % 4));
                const uint32_t b0[2] = {q.x, q.y}, b1[2] = {q.z, q.w};
#pragma unroll
                for (int u = 0; u < SELECT_UNITS; u++) {
                    const uint4 x = key[u][0][s], y = key[u][1][s];
                    const uint32_t a0[4] = {x.x, y.x, x.y, y.y}, a1[4] = {x.z, y.z, x.w, y.w};
                    sl_mma_bf16(c[u], a0, b0);
                    sl_mma_bf16(c[u], a1, b1);
                }
            }
            const float2 w = *reinterpret_cast<const float2 *>(weights + head + lane % 4 * 2);
#pragma unroll
            for (int u = 0; u < SELECT_UNITS; u++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float &y = sum[u][half];
                    y = __fmaf_rn(w.x, fmaxf(c[u][2 * half], 0.0f), y);
                    y = __fmaf_rn(w.y, fmaxf(c[u][2 * half + 1], 0.0f), y);
                }
        }
#pragma unroll
        for (int u = 0; u < SELECT_UNITS; u++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float x = sum[u][half];
                x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
                x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
                const int32_t at = from + 16 * u + 8 * half + lane / 4;
                if (lane % 4 == 0 && at < n_seen)
                    to[at] = x;
            }
    }

    /* Tokens t .. to - 1. */
    __device__ __forceinline__ void run(int32_t t, int32_t to, int32_t chunk)
    {
        struct sl_span span = {};
        bool loaded = false;
        from = chunk + static_cast<int32_t>(threadIdx.x / 32) * (16 * SELECT_UNITS);
#pragma unroll 1
        for (; t < to; t++) {
            if (t >= span.first + span.n) { /* none is empty: the first token, too */
                span = a.spans[sl_rows_span(a.spans, a.n_spans, a.n_tokens, t)];
                loaded = false;
            }
            const int32_t n_seen = (span.pos + t - span.first + 1) / a.rows.ratio;
            if (chunk == 0 && threadIdx.x == 0)
                a.seen[t] = n_seen - 1;
            if (n_seen <= a.top_k || chunk >= n_seen)
                continue;
            if (!loaded) /* all that a later token of the span sees */
                load(span.table_idx, (span.pos + min(to - span.first, span.n)) / a.rows.ratio);
            loaded = true;
            ask(t);
            __syncthreads();
            if (from < n_seen)
                score(n_seen, a.scores + (t - a.first) * a.ld);
            __syncthreads();
        }
    }
};

/* grid (rows / SELECT_ROWS, tokens / each) */
static __global__ void __launch_bounds__(SELECT_THREADS, 2)
    rows_select_kernel(const __grid_constant__ struct select_args a)
{
    SL_SMEM(uint8_t, smem);
    select_block x(a, smem);
    const int32_t t = a.first + static_cast<int32_t>(blockIdx.y) * a.each;
    sl_grid_launch_dependents();
    sl_grid_wait();
    x.run(t, min(t + a.each, a.first + a.n), static_cast<int32_t>(blockIdx.x) * SELECT_ROWS);
}

extern "C" void sl_cuda_compressed_select(struct sl_backend *be,
                                          const struct sl_op_compressed_select *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_batch *b = op->batch;
    const int64_t ld = sl_index_scores(op->n_most);
    if (op->n_most <= op->top_k)
        return;
    if (op->rows.dtype != SL_DTYPE_BF16 || op->dim > SELECT_DIM || op->dim < 8 ||
        op->dim % 4 != 0 || op->n_heads > SL_DEVICE_INDEX_HEADS || op->n_scores < ld ||
        op->seen == NULL) {
        sl_cuda_check(cu, cudaErrorInvalidValue, "format or size of an index of rows");
        return;
    }
    struct select_args a = {};
    a.q = op->q;
    a.w = op->w;
    a.n_tokens = b->n_tokens;
    a.n_heads = op->n_heads;
    a.n_padded = SL_CEIL_DIV(op->n_heads, 8) * 8;
    a.dim = op->dim;
    a.top_k = op->top_k;
    a.spans = b->spans;
    a.n_spans = b->n_spans;
    a.rows = sl_rows_at_of(b, &op->rows, op->ratio, op->dim);
    a.scores = op->scores;
    a.ld = ld;
    a.seen = op->seen;
    a.each = b->n_tokens > 2 * b->n_spans ? SELECT_TOKENS : 1;
    const size_t smem = static_cast<size_t>(a.n_padded) * (SELECT_QUERY + sizeof(float));
    for (a.first = 0; a.first < b->n_tokens; a.first += a.n) {
        a.n = static_cast<int32_t>(
            SL_MIN(static_cast<int64_t>(b->n_tokens - a.first), op->n_scores / ld));
        sl_launch(cu, rows_select_kernel,
                  dim3(static_cast<unsigned>(SL_CEIL_DIV(op->n_most, SELECT_ROWS)),
                       static_cast<unsigned>(SL_CEIL_DIV(a.n, a.each))),
                  dim3(SELECT_THREADS), smem, a);
        const struct sl_index_rows rows = {op->seen, op->scores, ld,     a.first,
                                           a.n,      op->top_k,  op->top};
        sl_index_largest(cu, &rows);
    }
}
