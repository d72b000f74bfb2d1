/* SPDX-License-Identifier: MIT
 * index_blocks.cu - which blocks of positions key heads attend to, by an index of blocks (MiniMax
 * M3): the largest product of each query of a token with the keys of each block, then the blocks
 * with the largest (chosen_top.cu).
 *
 * A warp has queries as columns of the product, in registers, and goes through the keys of blocks,
 * 16 rows at a time, the next ones under way. A column is a query, whichever token it is of: 8 of
 * a decode with up to 8 queries, else 32. Of few columns a block's eight warps have a block of
 * positions each; of many they have 32 columns each and read the same keys, mostly from L1. A
 * decode reads each key once, 256 bytes of 128 values in BF16: what binds is memory. Of a prompt 32
 * columns are 64 products for each byte that a warp reads.
 *
 * Operands are loaded 16 bytes a lane, as in index_select.cu: values of a piece are spread over two
 * products of 16. A score is one accumulator over pieces of 32 values; the largest of a block needs
 * no order, and a product that is no number is none. So nothing depends on who computes it.
 */
#include "cuda/attention/attention.cuh"
#include "cuda/attention/chosen.cuh"
#include "cuda/attention/index_scan.cuh"
#include "cuda/ptx.cuh"
#include "ops/device.h"

#include <float.h>

#define BLOCKS_WARPS   8
#define BLOCKS_THREADS (BLOCKS_WARPS * 32)
#define BLOCKS_EACH    8 /* blocks of positions of an item */

struct blocks_args {
    const float *q; /* as index_store.cu leaves it */
    int32_t n_heads, dim, top_k, block;
    const struct sl_span *spans;
    int32_t n_spans;
    const int32_t *tables;
    const uint8_t *keys;
    uint64_t page_bytes;
    struct sl_attn_divisor by_page; /* of 16 positions */
    float *scores;
    int64_t ld, ld_head;
    int32_t first, n; /* tokens at hand */
};

/* Tokens from .. to - 1 of the step, of a span, that are at hand and choose; key: after the last
 * one that the last of them sees. Groups of columns are divided among `teams` of warps. */
struct blocks_span {
    int32_t from, to, key, n_groups, teams;
};

template <int NT>
static __device__ __forceinline__ struct blocks_span blocks_span_of(const struct blocks_args &a,
                                                                    const struct sl_span &span)
{
    struct blocks_span s;
    s.from = max(max(span.first, a.first), span.first + a.top_k * a.block - span.pos);
    s.to = min(span.first + span.n, a.first + a.n);
    s.key = span.pos + s.to - span.first;
    s.n_groups = s.from < s.to ? ((s.to - s.from) * a.n_heads + 8 * NT - 1) / (8 * NT) : 0;
    s.teams = s.n_groups > 4 ? 8 : s.n_groups > 2 ? 4 : s.n_groups > 1 ? 2 : 1;
    return s;
}

static __device__ __forceinline__ int32_t blocks_chunks(const struct blocks_args &a,
                                                        const struct blocks_span &s)
{
    return ((s.key - 1) / a.block + BLOCKS_EACH) / BLOCKS_EACH;
}

template <int NT>
static __device__ __forceinline__ int32_t blocks_items(const struct blocks_args &a,
                                                       const struct sl_span &span)
{
    const struct blocks_span s = blocks_span_of<NT>(a, span);
    return s.n_groups == 0 ? 0 : (s.n_groups + s.teams - 1) / s.teams * blocks_chunks(a, s);
}

/* KS: 16s of a row, padded; NT: eights of columns. */
template <int KS, int NT> struct blocks_warp {
    static constexpr int STEPS = KS / 2;
    const struct blocks_args &a;
    int lane;
    uint4 query[NT][STEPS]; /* of column 8 n + lane / 4 */
    int32_t last[NT][2];    /* key that column 8 n + 2 (lane % 4) + {0, 1} sees; -1: no column */
    int32_t place[NT][2];   /* of its scores */
    int32_t least;          /* of all columns' last keys */
    uint4 key[2][STEPS];    /* rows lane / 4 and 8 behind it, of these what four lanes share */
    float most[NT][2];

    /* Columns from `column` on, of those of n tokens from `token` on. */
    __device__ __forceinline__ void load_queries(int32_t token, int32_t n, int32_t column,
                                                 int32_t pos)
    {
        const int32_t n_columns = n * a.n_heads;
        least = pos + column / a.n_heads;
#pragma unroll
        for (int i = 0; i < NT; i++) {
            const int32_t c = column + 8 * i + lane / 4;
            const uint8_t *row = reinterpret_cast<const uint8_t *>(
                a.q + (static_cast<int64_t>(token) * a.n_heads + c) * a.dim);
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const int piece = 4 * s + lane % 4;
                query[i][s] = make_uint4(0, 0, 0, 0);
                if (c < n_columns && piece * 8 < a.dim)
                    query[i][s] = __ldcg(reinterpret_cast<const uint4 *>(row) + piece);
            }
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int32_t x = column + 8 * i + lane % 4 * 2 + e, t = x / a.n_heads;
                last[i][e] = x < n_columns ? pos + t : -1;
                place[i][e] = static_cast<int32_t>((token + t - a.first) * a.ld +
                                                   (x - t * a.n_heads) * a.ld_head);
            }
        }
    }

    /* Keys of unit `u` of those whose pages the lanes have. */
    __device__ __forceinline__ void load_keys(int32_t first, int u, int32_t id)
    {
        const int32_t dim = (a.dim + 15) / 16 * 16, bytes = sl_kv_bf16::row_bytes(dim);
        const int32_t unit = first + u, page = sl_attn_div(unit, a.by_page);
        const uint8_t *tile =
            a.keys + static_cast<uint64_t>(__shfl_sync(0xFFFFFFFFu, id, u)) * a.page_bytes +
            static_cast<uint64_t>((unit - page * a.by_page.by) * SL_KV_TILE * bytes);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const int piece = 4 * s + lane % 4, row = 8 * half + lane / 4;
                key[half][s] = make_uint4(0, 0, 0, 0);
                if (piece * 8 < dim)
                    key[half][s] = __ldg(
                        reinterpret_cast<const uint4 *>(tile + sl_kv_piece(bytes, row, piece)));
            }
    }

    /* The products of the 16 keys from `at` on; the keys of the next unit come meanwhile. */
    __device__ __forceinline__ void unit(int32_t at, int32_t first, int next, int32_t id)
    {
        float c[NT][4] = {};
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const uint4 x = key[0][s], y = key[1][s];
            const uint32_t a0[4] = {x.x, y.x, x.y, y.y}, a1[4] = {x.z, y.z, x.w, y.w};
#pragma unroll
            for (int i = 0; i < NT; i++) {
                const uint4 q = query[i][s];
                const uint32_t b0[2] = {q.x, q.y}, b1[2] = {q.z, q.w};
                sl_mma_bf16(c[i], a0, b0);
                sl_mma_bf16(c[i], a1, b1);
            }
        }
        if (next >= 0)
            load_keys(first, next, id);
        const bool all = at + SL_KV_TILE - 1 <= least;
        const int32_t low = at + lane / 4, high = low + 8;
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (all || low <= last[i][e])
                    most[i][e] = fmaxf(most[i][e], c[i][e]);
                if (all || high <= last[i][e])
                    most[i][e] = fmaxf(most[i][e], c[i][2 + e]);
            }
    }

    /* The scores of a block of positions; end: after the last key that is there. */
    __device__ __forceinline__ void block(const int32_t *table, int32_t idx, int32_t end)
    {
        const int32_t first = idx * a.block / SL_KV_TILE;
        const int n = min(a.block / SL_KV_TILE, (end + SL_KV_TILE - 1) / SL_KV_TILE - first);
        const int32_t id = lane < n ? __ldg(table + sl_attn_div(first + lane, a.by_page)) : 0;
#pragma unroll
        for (int i = 0; i < NT; i++)
            most[i][0] = most[i][1] = __int_as_float(static_cast<int>(0xFF800000u));
        load_keys(first, 0, id);
#pragma unroll 1
        for (int u = 0; u < n; u++)
            unit((first + u) * SL_KV_TILE, first, u + 1 < n ? u + 1 : -1, id);
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float x = most[i][e];
#pragma unroll
                for (int m = 4; m < 32; m *= 2)
                    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, m));
                if (lane < 4 && idx * a.block <= last[i][e])
                    a.scores[place[i][e] + idx] = fminf(x, FLT_MAX);
            }
    }

    __device__ __forceinline__ void item(const struct sl_span &span, int32_t i)
    {
        const struct blocks_span s = blocks_span_of<NT>(a, span);
        const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), n_chunks = blocks_chunks(a, s);
        const int32_t group = i / n_chunks * s.teams + warp % s.teams;
        const int32_t step = BLOCKS_WARPS / s.teams, from = i % n_chunks * BLOCKS_EACH;
        if (group >= s.n_groups)
            return;
        load_queries(s.from, s.to - s.from, group * 8 * NT, span.pos + s.from - span.first);
#pragma unroll 1
        for (int32_t at = from + warp / s.teams; at < from + BLOCKS_EACH; at += step)
            if (at * a.block < s.key)
                block(a.tables + span.table_idx, at, s.key);
    }
};

template <int KS, int NT>
static __global__ void __launch_bounds__(BLOCKS_THREADS, NT == 1 ? 2 : 1)
    index_blocks_kernel(const __grid_constant__ struct blocks_args a)
{
    SL_SMEM(uint32_t, sums);
    int32_t *until = reinterpret_cast<int32_t *>(sums + BLOCKS_WARPS);
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int32_t n = sl_count_items<BLOCKS_WARPS>(
        a.spans, a.n_spans, until, sums,
        [&](const struct sl_span &span) { return blocks_items<NT>(a, span); });
    struct blocks_warp<KS, NT> x = {
        a, static_cast<int>(threadIdx.x % 32), {}, {}, {}, 0, {},
        {
        }
    };
#pragma unroll 1
    for (int32_t i = static_cast<int32_t>(blockIdx.x); i < n;
         i += static_cast<int32_t>(gridDim.x)) {
        int32_t first;
        const int32_t at = sl_span_of_item(until, a.n_spans, i, &first);
        x.item(a.spans[at], i - first);
    }
}

/* Of tokens first .. first + n - 1. */
static void score(struct sl_cuda *cu, const struct sl_op_index_select *op, int64_t ld,
                  int32_t first, int32_t n)
{
    const struct sl_batch *b = op->batch;
    struct blocks_args a = {};
    a.q = op->q;
    a.n_heads = op->n_heads;
    a.dim = op->dim;
    a.top_k = op->top_k;
    a.block = op->block;
    a.spans = b->spans;
    a.n_spans = b->n_spans;
    a.tables = sl_batch_tables(b, op->kv.group);
    a.keys = op->kv.pool + op->kv.k_offset;
    a.page_bytes = op->kv.page_bytes;
    a.by_page = sl_attn_divisor_of(op->kv.block_size / SL_KV_TILE);
    a.scores = op->scores;
    a.ld = ld;
    a.ld_head = ld / op->n_heads;
    a.first = first;
    a.n = n;
    static void (*const kernels[2][2])(struct blocks_args) = {
        {index_blocks_kernel<4, 1>, index_blocks_kernel<4, 4>},
        {index_blocks_kernel<8, 1>, index_blocks_kernel<8, 4>}};
    const bool few = b->n_spans == b->n_tokens && op->n_heads <= 8;
    const size_t smem = static_cast<size_t>(BLOCKS_WARPS + b->n_spans) * sizeof(int32_t);
    sl_launch(cu, kernels[op->dim > 64][!few],
              dim3(static_cast<unsigned>((few ? 2 : 1) * cu->n_sms)), dim3(BLOCKS_THREADS), smem,
              a);
}

void sl_chosen_index(struct sl_cuda *cu, const struct sl_op_index_select *op)
{
    const struct sl_batch *b = op->batch;
    const int64_t ld = sl_index_block_scores(op->n_most, op->block, op->n_heads);
    const struct sl_chosen_rule rule = {op->block, op->top_k, 0, op->n_local};
    if (b->n_tokens == 0 || (op->n_most - 1) / op->block < op->top_k)
        return;
    if (op->kv.dtype != SL_DTYPE_BF16 || op->dim > SL_DEVICE_INDEX_DIM || op->dim % 4 != 0 ||
        !sl_index_block_fits(op->block) || op->n_scores < ld || op->n_scores > INT32_MAX) {
        sl_cuda_check(cu, cudaErrorInvalidValue, "format or size of an index of blocks");
        return;
    }
    const int32_t most = static_cast<int32_t>(SL_MIN(op->n_scores / ld, int64_t{b->n_tokens}));
    for (int32_t first = 0; first < b->n_tokens; first += most) {
        const int32_t n = SL_MIN(most, b->n_tokens - first);
        const struct sl_chosen_scores scores = {
            b->positions, op->scores, ld, ld / op->n_heads, first, n, op->n_heads};
        score(cu, op, ld, first, n);
        sl_chosen_largest(cu, &rule, &scores,
                          op->top + static_cast<int64_t>(first) * op->n_heads * op->top_k);
    }
}
