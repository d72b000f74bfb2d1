/* SPDX-License-Identifier: MIT
 * index_select.cu - which positions rows attend to, by an index (DSA): scores of all keys, then the
 * largest (index_top.cu).
 *
 * A block's eight warps have 32 keys each, in registers, and go through tokens: keys are rows of
 * the product and a token's queries its columns, which come to shared memory while the token before
 * is computed. A decode reads each key once, 256 bytes of 128 values in BF16: what binds is memory.
 * Of a prompt 32 tokens share keys, and the tensor cores bind: 64 queries of 128 values for 256
 * keys are 2.1 million products, and 16 KB of queries from L2.
 *
 * Operands are loaded 16 bytes a lane, so that values of a piece are spread over two products of
 * 16: the same for keys and queries. Order of a score: values of a query in pieces of 32 by one
 * accumulator; lane t of four adds w * max(0, ..) of the queries 8 j + {2t, 2t + 1} by fma, j
 * ascending; lanes add as a tree of neighbours. Tiles change nothing of it.
 *
 * The step's scores may be more than there is room for: then tokens go in turns.
 */
#include "cuda/attention/attention.cuh"
#include "cuda/attention/index.cuh"
#include "cuda/ptx.cuh"

#define SCORE_WARPS   8
#define SCORE_THREADS (SCORE_WARPS * 32)
#define SCORE_UNITS   2 /* of 16 keys, of a warp */
#define SCORE_KEYS    (SCORE_WARPS * SCORE_UNITS * SL_KV_TILE)
#define SCORE_TOKENS  32 /* that share keys */

struct score_args {
    const float *q; /* as index_store.cu leaves it */
    const float *w;
    int32_t n_heads, n_padded, dim, top_k; /* n_padded: whole eights */
    const struct sl_span *spans;
    int32_t n_spans;
    const int32_t *tables;
    const uint8_t *keys;
    uint64_t page_bytes;
    struct sl_attn_divisor by_page; /* of 16 positions */
    float *scores;
    int64_t ld;
    int32_t first, n; /* tokens at hand */
};

/* Tokens from .. to - 1 of the step, of a span, that are at hand and have scores; key: after the
 * last one that the last of them sees. */
struct score_span {
    int32_t from, to, key;
};

static __device__ __forceinline__ struct score_span score_span_of(const struct score_args &a,
                                                                  const struct sl_span &span)
{
    struct score_span s;
    s.from = max(max(span.first, a.first), span.first + a.top_k - span.pos);
    s.to = min(span.first + span.n, a.first + a.n);
    s.key = span.pos + s.to - span.first;
    return s;
}

static __device__ __forceinline__ int32_t score_items(const struct score_span &s)
{
    if (s.from >= s.to)
        return 0;
    return ((s.to - s.from + SCORE_TOKENS - 1) / SCORE_TOKENS) *
           ((s.key + SCORE_KEYS - 1) / SCORE_KEYS);
}

/* until[i]: items of the spans up to i. Each thread has neighbouring spans. */
static __device__ void score_count(const struct score_args &a, int32_t *until, int32_t *sums)
{
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    const int32_t each = (a.n_spans + SCORE_THREADS - 1) / SCORE_THREADS;
    const int32_t from = min(thread * each, a.n_spans), to = min(from + each, a.n_spans);
    int32_t mine = 0;
    for (int32_t i = from; i < to; i++)
        until[i] = mine += score_items(score_span_of(a, a.spans[i]));
    int32_t up = mine;
#pragma unroll
    for (int32_t d = 1; d < 32; d *= 2) {
        const int32_t y = __shfl_up_sync(0xFFFFFFFFu, up, static_cast<unsigned>(d));
        up += thread % 32 >= d ? y : 0;
    }
    if (thread % 32 == 31)
        sums[thread / 32] = up;
    __syncthreads();
    int32_t before = up - mine;
    for (int32_t i = 0; i < thread / 32; i++)
        before += sums[i];
    for (int32_t i = from; i < to; i++)
        until[i] += before;
    __syncthreads();
}

/* KS: 16s of a row, padded. */
template <int KS> struct score_block {
    static constexpr int ROW = KS * 32;   /* bytes of a query in shared memory */
    static constexpr int PIECES = KS * 2; /* of 16 bytes */
    static constexpr int STEPS = KS / 2;
    const struct score_args &a;
    uint8_t *queries; /* [2][n_padded][ROW] */
    float *weights;   /* [2][n_padded] */
    uint4 key[SCORE_UNITS][2][STEPS];
    int lane, first; /* key of the warp */

    /* The keys of the lane: rows lane / 4 and 8 behind it of each 16, and of these what four lanes
     * share. */
    __device__ __forceinline__ void load_keys(const struct sl_span &span, int32_t end)
    {
        const int32_t dim = (a.dim + 15) / 16 * 16, bytes = sl_kv_bf16::row_bytes(dim);
#pragma unroll
        for (int u = 0; u < SCORE_UNITS; u++) {
            const int32_t unit = first / SL_KV_TILE + u, page = sl_attn_div(unit, a.by_page);
            const bool seen = unit * SL_KV_TILE < end;
            const int32_t id = seen ? __ldg(a.tables + span.table_idx + page) : 0;
            const uint8_t *tile =
                a.keys + static_cast<uint64_t>(id) * a.page_bytes +
                static_cast<uint64_t>((unit - page * a.by_page.by) * SL_KV_TILE * bytes);
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    const int piece = 4 * s + lane % 4, row = 8 * half + lane / 4;
                    key[u][half][s] = make_uint4(0, 0, 0, 0);
                    if (seen && piece * 8 < dim)
                        key[u][half][s] = __ldcg(
                            reinterpret_cast<const uint4 *>(tile + sl_kv_piece(bytes, row, piece)));
                }
        }
    }

    static __device__ __forceinline__ int place(int head, int piece)
    {
        return head * ROW + (piece ^ (head & 1) << 2) * 16; /* so that two heads share no bank */
    }

    /* A token's queries and their weights on their way; zeros behind the last. */
    __device__ __forceinline__ void ask(int32_t token, int buffer)
    {
        uint8_t *to = queries + buffer * a.n_padded * ROW;
        const int64_t row = static_cast<int64_t>(token) * a.n_heads;
        for (int i = static_cast<int>(threadIdx.x); i < a.n_padded * PIECES; i += SCORE_THREADS) {
            const int head = i / PIECES, piece = i % PIECES;
            const bool there = head < a.n_heads && piece * 8 < a.dim;
            sl_cp_async16(to + place(head, piece),
                          there ? reinterpret_cast<const uint8_t *>(a.q + (row + head) * a.dim) +
                                      piece * 16
                                : reinterpret_cast<const uint8_t *>(a.q),
                          there);
        }
        for (int i = static_cast<int>(threadIdx.x); i < a.n_padded; i += SCORE_THREADS)
            weights[buffer * a.n_padded + i] = i < a.n_heads ? a.w[row + i] : 0.0f;
    }

    static __device__ __forceinline__ void add(const float2 &w, const float (&c)[4], float sum[2])
    {
        sum[0] = __fmaf_rn(w.x, fmaxf(c[0], 0.0f), sum[0]);
        sum[0] = __fmaf_rn(w.y, fmaxf(c[1], 0.0f), sum[0]);
        sum[1] = __fmaf_rn(w.x, fmaxf(c[2], 0.0f), sum[1]);
        sum[1] = __fmaf_rn(w.y, fmaxf(c[3], 0.0f), sum[1]);
    }

    /* Scores of a token at pos, to its row. */
    __device__ __forceinline__ void score(int buffer, int32_t pos, float *to) const
    {
        const uint8_t *from = queries + buffer * a.n_padded * ROW;
        float sum[SCORE_UNITS][2] = {};
#pragma unroll 2
        for (int head = 0; head < a.n_padded; head += 8) {
            float c[SCORE_UNITS][4] = {};
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const uint4 q = *reinterpret_cast<const uint4 *>(
                    from + place(head + lane / 4, 4 * s + lane % 4));
                const uint32_t b0[2] = {q.x, q.y}, b1[2] = {q.z, q.w};
#pragma unroll
                for (int u = 0; u < SCORE_UNITS; u++) {
                    const uint4 x = key[u][0][s], y = key[u][1][s];
                    const uint32_t a0[4] = {x.x, y.x, x.y, y.y}, a1[4] = {x.z, y.z, x.w, y.w};
                    sl_mma_bf16(c[u], a0, b0);
                    sl_mma_bf16(c[u], a1, b1);
                }
            }
            const float2 w = *reinterpret_cast<const float2 *>(weights + buffer * a.n_padded +
                                                               head + lane % 4 * 2);
#pragma unroll
            for (int u = 0; u < SCORE_UNITS; u++)
                add(w, c[u], sum[u]);
        }
#pragma unroll
        for (int u = 0; u < SCORE_UNITS; u++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float x = sum[u][half];
                x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
                x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
                const int32_t at = first + SL_KV_TILE * u + 8 * half + lane / 4;
                if (lane % 4 == 0 && at <= pos)
                    to[at] = x;
            }
    }

    /* Tokens from .. to - 1 of a span, for the keys at hand. */
    __device__ __forceinline__ void tokens(const struct sl_span &span, int32_t from, int32_t to)
    {
        ask(from, 0);
        sl_cp_async_commit();
#pragma unroll 1
        for (int32_t t = from; t < to; t++) {
            const int buffer = (t - from) & 1;
            const int32_t pos = span.pos + t - span.first;
            if (t + 1 < to)
                ask(t + 1, buffer ^ 1);
            sl_cp_async_commit();
            sl_cp_async_wait<1>();
            __syncthreads();
            if (first <= pos)
                score(buffer, pos, a.scores + (t - a.first) * a.ld);
            __syncthreads();
        }
    }

    __device__ __forceinline__ void item(const struct sl_span &span, int32_t i)
    {
        const struct score_span s = score_span_of(a, span);
        const int32_t n_chunks = (s.key + SCORE_KEYS - 1) / SCORE_KEYS;
        const int32_t chunk = i % n_chunks * SCORE_KEYS, group = i / n_chunks;
        int32_t from = s.from + group * SCORE_TOKENS;
        const int32_t to = min(from + SCORE_TOKENS, s.to);
        from = max(from, span.first + chunk - span.pos); /* those before see none of the keys */
        if (from >= to)
            return;
        first = chunk + static_cast<int>(threadIdx.x / 32) * (SCORE_UNITS * SL_KV_TILE);
        load_keys(span, span.pos + to - span.first);
        tokens(span, from, to);
    }
};

template <int KS>
static __global__ void __launch_bounds__(SCORE_THREADS, 2)
    index_score_kernel(const __grid_constant__ struct score_args a)
{
    SL_SMEM(uint8_t, smem);
    float *weights = reinterpret_cast<float *>(smem + 2 * a.n_padded * score_block<KS>::ROW);
    int32_t *sums = reinterpret_cast<int32_t *>(weights + 2 * a.n_padded);
    int32_t *until = sums + SCORE_WARPS;
    sl_grid_launch_dependents();
    sl_grid_wait();
    score_count(a, until, sums);
    score_block<KS> x = {a, smem, weights, {}, static_cast<int>(threadIdx.x % 32), 0};
    const int32_t n = a.n_spans > 0 ? until[a.n_spans - 1] : 0;
#pragma unroll 1
    for (int32_t i = static_cast<int32_t>(blockIdx.x); i < n;
         i += static_cast<int32_t>(gridDim.x)) {
        int32_t lo = 0, hi = a.n_spans - 1;
        while (lo < hi) { /* the first span with items behind i */
            const int32_t mid = (lo + hi) / 2;
            if (until[mid] > i)
                hi = mid;
            else
                lo = mid + 1;
        }
        x.item(a.spans[lo], i - (lo > 0 ? until[lo - 1] : 0));
    }
}

/* Tokens first .. first + n - 1. */
static void score(struct sl_cuda *cu, const struct sl_op_index_select *op, int64_t ld,
                  int32_t first, int32_t n)
{
    const struct sl_batch *b = op->batch;
    struct score_args a = {};
    a.q = op->q;
    a.w = op->w;
    a.n_heads = op->n_heads;
    a.n_padded = SL_CEIL_DIV(op->n_heads, 8) * 8;
    a.dim = op->dim;
    a.top_k = op->top_k;
    a.spans = b->spans;
    a.n_spans = b->n_spans;
    a.tables = sl_batch_tables(b, op->kv.group);
    a.keys = op->kv.pool + op->kv.k_offset;
    a.page_bytes = op->kv.page_bytes;
    a.by_page = sl_attn_divisor_of(op->kv.block_size / SL_KV_TILE);
    a.scores = op->scores;
    a.ld = ld;
    a.first = first;
    a.n = n;
    const bool narrow = op->dim <= 64;
    const size_t row = narrow ? score_block<4>::ROW : score_block<8>::ROW;
    const size_t smem = static_cast<size_t>(a.n_padded) * 2 * (row + sizeof(float)) +
                        static_cast<size_t>(SCORE_WARPS + b->n_spans) * sizeof(int32_t);
    sl_launch(cu, narrow ? index_score_kernel<4> : index_score_kernel<8>,
              dim3(static_cast<unsigned>(2 * cu->n_sms)), dim3(SCORE_THREADS), smem, a);
}

extern "C" void sl_cuda_index_select(struct sl_backend *be, const struct sl_op_index_select *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_batch *b = op->batch;
    const int64_t ld = sl_index_scores(op->n_most);
    if (b->n_tokens == 0 || op->n_most <= op->top_k)
        return;
    if (op->kv.dtype != SL_DTYPE_BF16 || op->dim > SL_DEVICE_INDEX_DIM || op->dim % 4 != 0 ||
        op->n_heads > SL_DEVICE_INDEX_HEADS || op->n_scores < ld) {
        sl_cuda_check(cu, cudaErrorInvalidValue, "format or size of an index");
        return;
    }
    const int32_t most = static_cast<int32_t>(SL_MIN(op->n_scores / ld, int64_t{b->n_tokens}));
    for (int32_t first = 0; first < b->n_tokens; first += most) {
        const int32_t n = SL_MIN(most, b->n_tokens - first);
        const struct sl_index_rows rows = {b->positions, op->scores, ld, first, n,
                                           op->top_k,    op->top};
        score(cu, op, ld, first, n);
        sl_index_largest(cu, &rows);
    }
}
