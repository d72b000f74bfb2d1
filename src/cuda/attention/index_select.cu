/* SPDX-License-Identifier: MIT
 * index_select.cu - which positions rows attend to, by an index (DSA): scores of all keys, then the
 * largest (index_top.cu).
 *
 * Keys are rows of a product and a token's queries its columns. Each of a block's sixteen warps has
 * 16 keys, in registers as the tensor cores want them, and each of its four warpgroups multiplies
 * its 64 by itself. A block has one part of all work, side by side. Where one or two tokens of a
 * sequence share keys (a decode) their queries stay in shared memory and keys stream through
 * registers, the next ones on their way while these are multiplied: 128 KB of a multiprocessor's
 * are, and what binds is memory. Of a prompt 32 tokens share 256 keys, and their queries pass: the
 * copies of the next two are on their way, no warp is more than a token ahead of another, and the
 * tensor cores bind. 64 queries of 128 values are 16 KB from L2 for 256 keys, 1,024 clk of
 * products.
 *
 * Keys are loaded 16 bytes a lane, so that values of a piece are spread over two products of 16:
 * queries are put into shared memory in that order, four bytes at a time. Order of a score: values
 * of a query in pieces of 32 by one accumulator; lane t of four adds w * max(0, ..) of the queries
 * 8 j + {2t, 2t + 1} by fma, j ascending; lanes add as a tree of neighbours. Tiles change nothing
 * of it, nor do queries of zeros behind the last.
 *
 * The step's scores may be more than there is room for: then tokens go in turns.
 */
#include "cuda/attention/attention.cuh"
#include "cuda/attention/chosen.cuh"
#include "cuda/attention/index.cuh"
#include "cuda/attention/index_scan.cuh"
#include "cuda/ptx_fp8.cuh"

#define SCORE_WARPS   16
#define SCORE_THREADS (SCORE_WARPS * 32)
#define SCORE_KEYS    (SCORE_WARPS * SL_KV_TILE)
#define SCORE_TOKENS  32 /* that share keys */
#define SCORE_FEW     2  /* whose queries stay */
#define SCORE_BUFFERS 4  /* of a token's queries */

struct score_args {
    const float *q; /* as index_store.cu leaves it */
    const float *w;
    int32_t n_heads, n_padded, dim, top_k; /* n_padded: whole parts */
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

/* KS: 16s of a row, padded. N: queries of a product. */
template <int KS, int N> struct score_block {
    static constexpr int WORDS = KS * 8;                   /* of a query */
    static constexpr int PANEL = N * 128;                  /* 64 values of N queries */
    static constexpr int PART = KS * N * 32;               /* N queries */
    static constexpr int STEPS = KS / 2;                   /* pieces of a lane */
    static constexpr int EACH = SCORE_THREADS / WORDS * 4; /* bytes from a query to the next */
    const struct score_args &a;
    uint8_t *queries; /* [SCORE_BUFFERS][n_padded / N][PART] */
    float *weights;   /* [SCORE_BUFFERS][n_padded] */
    uint64_t *full;   /* [SCORE_BUFFERS]: all warps have put their part of a token there */
    uint32_t passed;  /* tokens that have passed through the buffers */
    int warp, lane;
    uint32_t key[KS][4]; /* operands */

    __device__ __forceinline__ score_block(const struct score_args &args, uint8_t *smem)
        : a(args), queries(smem), passed(0)
    {
        weights = reinterpret_cast<float *>(smem + SCORE_BUFFERS * a.n_padded * KS * 32);
        full = reinterpret_cast<uint64_t *>(weights + SCORE_BUFFERS * a.n_padded);
        lane = static_cast<int>(threadIdx.x) & 31;
        /* The same in all lanes, as the compiler shall see. */
        warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 32), 0);
    }

    static __host__ __device__ constexpr size_t smem_bytes(int n_padded)
    {
        return static_cast<size_t>(SCORE_BUFFERS * n_padded) * (KS * 32 + sizeof(float)) +
               SCORE_BUFFERS * sizeof(uint64_t);
    }

    /* Barriers, and zeros where no query is. */
    __device__ __forceinline__ void begin()
    {
        if (threadIdx.x == 0) {
            for (int i = 0; i < SCORE_BUFFERS; i++)
                sl_mbar_init(&full[i], SCORE_WARPS * SL_WARP_ARRIVALS);
            sl_mbar_fence_init();
        }
        const int n = static_cast<int>(smem_bytes(a.n_padded) - SCORE_BUFFERS * sizeof(uint64_t));
        if (a.n_heads < a.n_padded || a.dim < 16 * KS)
            for (int i = static_cast<int>(threadIdx.x) * 16; i < n; i += SCORE_THREADS * 16)
                *reinterpret_cast<uint4 *>(queries + i) = make_uint4(0, 0, 0, 0);
        sl_fence_proxy_async();
        __syncthreads();
    }

    /* ---- keys */

    /* The warp's 16 keys of a chunk, in units of 16. */
    __device__ __forceinline__ int32_t unit_of(int32_t chunk) const
    {
        return chunk * SCORE_WARPS + warp;
    }
    __device__ __forceinline__ int32_t page_of(const struct sl_span &span, int32_t chunk,
                                               int32_t end) const
    {
        const int32_t unit = unit_of(chunk);
        return unit * SL_KV_TILE < end
                   ? __ldg(a.tables + span.table_idx + sl_attn_div(unit, a.by_page))
                   : 0;
    }

    /* The pieces of the lane: of rows lane / 4 and 8 behind it what four lanes share. WHOLE: keys
     * are as wide as operands. */
    template <bool WHOLE>
    __device__ __forceinline__ void load_tile(uint4 (&piece)[2][STEPS], const uint8_t *tile,
                                              bool seen) const
    {
        const int32_t dim = WHOLE ? 16 * KS : (a.dim + 15) / 16 * 16;
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const int at = 4 * s + lane % 4, row = 8 * half + lane / 4;
                piece[half][s] = make_uint4(0, 0, 0, 0);
                if (seen && (WHOLE || at * 8 < dim))
                    piece[half][s] = __ldcg(reinterpret_cast<const uint4 *>(
                        tile + sl_kv_piece(sl_kv_bf16::row_bytes(dim), row, at)));
            }
    }

    /* The same of the warp's keys of a chunk, whose page is id. */
    __device__ __forceinline__ void load(uint4 (&piece)[2][STEPS], int32_t chunk, int32_t id,
                                         int32_t end) const
    {
        const int32_t dim = (a.dim + 15) / 16 * 16;
        const int32_t unit = unit_of(chunk), page = sl_attn_div(unit, a.by_page);
        const bool seen = unit * SL_KV_TILE < end;
        const uint8_t *tile =
            a.keys + static_cast<uint64_t>(id) * a.page_bytes +
            static_cast<uint64_t>((unit - page * a.by_page.by) * sl_kv_bf16::tile_bytes(dim));
        if (dim == 16 * KS)
            load_tile<true>(piece, tile, seen);
        else
            load_tile<false>(piece, tile, seen);
    }

    /* As operands: the first and the last four of each eight values. */
    __device__ __forceinline__ void take(const uint4 (&piece)[2][STEPS])
    {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const uint4 x = piece[0][s], y = piece[1][s];
            key[2 * s][0] = x.x, key[2 * s][1] = y.x, key[2 * s][2] = x.y, key[2 * s][3] = y.y;
            key[2 * s + 1][0] = x.z, key[2 * s + 1][1] = y.z;
            key[2 * s + 1][2] = x.w, key[2 * s + 1][3] = y.w;
        }
    }

    /* ---- queries */

    /* A token's queries and their weights on their way. Of each 32 values, 16 words, word 4 t + i
     * becomes word t of piece i. A thread has the same word of several queries. */
    __device__ __forceinline__ void ask(int32_t token, uint32_t buffer) const
    {
        static_assert(SCORE_THREADS / WORDS % 8 == 0, "the same swizzle for all of a thread");
        const int thread = static_cast<int>(threadIdx.x);
        const int first = thread / WORDS, word = thread % WORDS, t = word % 16 / 4;
        const int piece = word / 16 * 4 + word % 4;
        const int64_t row = static_cast<int64_t>(token) * a.n_heads;
        const uint8_t *from =
            reinterpret_cast<const uint8_t *>(a.q + (row + first) * a.dim) + word * 4;
        uint8_t *to = queries + static_cast<int>(buffer) * a.n_padded * KS * 32 +
                      piece / 8 * PANEL + first * 128 + ((piece ^ first) & 7) * 16 + t * 4;
        if (thread < a.n_heads)
            sl_cp_async4(&weights[static_cast<int>(buffer) * a.n_padded + thread],
                         a.w + row + thread);
        if (word >= (a.dim + 7) / 8 * 4)
            return;
#pragma unroll 1
        for (int n = a.n_heads - first; n > 0; n -= N, to += PART)
#pragma unroll
            for (int i = 0; i < N; i += SCORE_THREADS / WORDS, from += EACH * a.dim)
                if (i < n)
                    sl_cp_async4(to + i * 128, from);
    }

    /* ---- scores */

    static __device__ __forceinline__ void add(const float2 &w, const float (&c)[4], float sum[2])
    {
        sum[0] = __fmaf_rn(w.x, fmaxf(c[0], 0.0f), sum[0]);
        sum[0] = __fmaf_rn(w.y, fmaxf(c[1], 0.0f), sum[0]);
        sum[1] = __fmaf_rn(w.x, fmaxf(c[2], 0.0f), sum[1]);
        sum[1] = __fmaf_rn(w.y, fmaxf(c[3], 0.0f), sum[1]);
    }

    /* Of N queries, onto sum. */
    __device__ __forceinline__ void multiply(const uint8_t *from, const float *w, float sum[2])
    {
        float c[N / 8][4] = {};
        auto b = sl_wgmma_b(from);
        sl_wgmma_keep(c);
        sl_wgmma_fence();
#pragma unroll
        for (int k = 0; k < KS; k++)
            sl_wgmma_rs(c, key[k],
                        sl_wgmma_b_at(b, static_cast<uint32_t>(k / 4 * PANEL + k % 4 * 32)));
        sl_wgmma_commit();
        sl_wgmma_wait<0>();
        sl_wgmma_keep(c);
        sl_wgmma_keep(key);
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            add(*reinterpret_cast<const float2 *>(w + 8 * j + lane % 4 * 2), c[j], sum);
    }

    /* Scores of the warp's keys of a chunk for a token at pos, to its row, if the warpgroup has
     * keys that it sees. */
    __device__ __forceinline__ void score(uint32_t buffer, int32_t chunk, int32_t pos, float *to)
    {
        const int n = static_cast<int>(buffer) * a.n_padded;
        float sum[2] = {0.0f, 0.0f};
        if (unit_of(chunk) / 4 * 4 * SL_KV_TILE > pos)
            return;
#pragma unroll 1
        for (int head = 0; head < a.n_padded; head += N)
            multiply(queries + (n + head) * KS * 32, weights + n + head, sum);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x = sum[half];
            x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
            x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
            const int32_t at = unit_of(chunk) * SL_KV_TILE + 8 * half + lane / 4;
            if (lane % 4 == 0 && at <= pos)
                to[at] = x;
        }
    }

    /* ---- keys of tokens */

    __device__ __forceinline__ void score_token(const struct sl_span &span, int32_t token,
                                                uint32_t buffer, int32_t chunk)
    {
        score(buffer, chunk, span.pos + token - span.first, a.scores + (token - a.first) * a.ld);
    }

    /* One or two tokens, chunks from .. to - 1. */
    __device__ __forceinline__ void few(const struct sl_span &span, int32_t token, int32_t n,
                                        int32_t from, int32_t to)
    {
        const int32_t end = span.pos + token + n - span.first;
        uint4 piece[2][STEPS];
        load(piece, from, page_of(span, from, end), end);
        int32_t id = page_of(span, from + 1, end);
        __syncthreads(); /* nobody multiplies what is there */
        for (int32_t i = 0; i < n; i++)
            ask(token + i, static_cast<uint32_t>(i));
        sl_cp_async_commit();
        sl_cp_async_wait<0>();
        sl_fence_proxy_async();
        __syncthreads();
#pragma unroll 1
        for (int32_t chunk = from; chunk < to; chunk++) {
            take(piece);
            if (chunk + 1 < to)
                load(piece, chunk + 1, id, end);
            id = page_of(span, chunk + 2, end);
            score_token(span, token, 0, chunk);
            if (n > 1)
                score_token(span, token + 1, 1, chunk);
        }
    }

    __device__ __forceinline__ uint64_t *full_of(uint32_t i) const
    {
        return &full[(passed + i) % SCORE_BUFFERS];
    }

    /* Token i of n has come, as far as the lane has asked for it. */
    __device__ __forceinline__ void put(uint32_t i, uint32_t n)
    {
        sl_cp_async_wait<1>();
        if (i < n)
            sl_mbar_give_warp(full_of(i));
    }

    /* n tokens, of one chunk. Who has seen that all of token i are there knows that all warps are
     * done with token i - 2, whose buffer then is token i + 2's. */
    __device__ __forceinline__ void many(const struct sl_span &span, int32_t token, uint32_t n,
                                         int32_t chunk)
    {
        const int32_t end = span.pos + token + static_cast<int32_t>(n) - span.first;
        uint4 piece[2][STEPS];
        load(piece, chunk, page_of(span, chunk, end), end);
        __syncthreads(); /* nobody multiplies what is there */
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            if (i < n)
                ask(token + static_cast<int32_t>(i), (passed + i) % SCORE_BUFFERS);
            sl_cp_async_commit();
        }
        put(0, n);
        take(piece);
#pragma unroll 1
        for (uint32_t i = 0; i < n; i++) {
            sl_mbar_wait(full_of(i), (passed + i) / SCORE_BUFFERS & 1);
            if (i + 2 < n)
                ask(token + static_cast<int32_t>(i + 2), (passed + i + 2) % SCORE_BUFFERS);
            sl_cp_async_commit();
            put(i + 1, n);
            score_token(span, token + static_cast<int32_t>(i), (passed + i) % SCORE_BUFFERS, chunk);
        }
        passed += n;
    }

    /* Items of a span, from the i-th on, up to n; gives how many are done. */
    __device__ __forceinline__ int32_t items(const struct sl_span &span, int32_t i, int32_t n)
    {
        const struct score_span s = score_span_of(a, span);
        const int32_t n_chunks = (s.key + SCORE_KEYS - 1) / SCORE_KEYS;
        const int32_t group = i / n_chunks, chunk = i - group * n_chunks;
        int32_t from = s.from + group * SCORE_TOKENS;
        const int32_t to = min(from + SCORE_TOKENS, s.to);
        if (to - from <= SCORE_FEW) {
            const int32_t most = min(n, n_chunks - chunk);
            few(span, from, to - from, chunk, chunk + most);
            return most;
        }
        from = max(from, span.first + chunk * SCORE_KEYS - span.pos); /* others see no key of it */
        if (from < to)
            many(span, from, static_cast<uint32_t>(to - from), chunk);
        return 1;
    }
};

/* Which item is the first of a block's. */
static __device__ __forceinline__ int32_t score_share(int32_t n, uint32_t block)
{
    return static_cast<int32_t>(static_cast<int64_t>(n) * block / gridDim.x);
}

template <int KS, int N>
static __global__ void __launch_bounds__(SCORE_THREADS, 1)
    index_score_kernel(const __grid_constant__ struct score_args a)
{
    SL_SMEM(uint8_t, smem);
    score_block<KS, N> x(a, smem);
    uint32_t *sums = reinterpret_cast<uint32_t *>(smem + x.smem_bytes(a.n_padded));
    int32_t *until = reinterpret_cast<int32_t *>(sums + SCORE_WARPS);
    sl_grid_launch_dependents();
    x.begin();
    sl_grid_wait();
    const int32_t n = sl_count_items<SCORE_WARPS>(
        a.spans, a.n_spans, until, sums,
        [&](const struct sl_span &span) { return score_items(score_span_of(a, span)); });
    const int32_t end = score_share(n, blockIdx.x + 1);
#pragma unroll 1
    for (int32_t i = score_share(n, blockIdx.x); i < end;) {
        int32_t first;
        const struct sl_span span = a.spans[sl_span_of_item(until, a.n_spans, i, &first)];
        i += x.items(span, i - first, end - i);
    }
}

template <int KS, int N> static void score_run(struct sl_cuda *cu, struct score_args *a)
{
    a->n_padded = SL_CEIL_DIV(a->n_heads, N) * N;
    const size_t smem = score_block<KS, N>::smem_bytes(a->n_padded) +
                        static_cast<size_t>(SCORE_WARPS + a->n_spans) * sizeof(int32_t);
    sl_launch(cu, index_score_kernel<KS, N>, dim3(static_cast<unsigned>(cu->n_sms)),
              dim3(SCORE_THREADS), smem, *a);
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
    if (op->dim <= 64)
        op->n_heads <= 32 ? score_run<4, 32>(cu, &a) : score_run<4, 64>(cu, &a);
    else
        op->n_heads <= 32 ? score_run<8, 32>(cu, &a) : score_run<8, 64>(cu, &a);
}

extern "C" void sl_cuda_index_select(struct sl_backend *be, const struct sl_op_index_select *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_batch *b = op->batch;
    const int64_t ld = sl_index_scores(op->n_most);
    if (op->block > 0) {
        sl_chosen_index(cu, op);
        return;
    }
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
