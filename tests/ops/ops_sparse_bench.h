/* SPDX-License-Identifier: MIT
 * ops_sparse_bench.h - `test_ops --bench sparse`: one token of DeepSeek V3.2's attention behind a
 * long context, latent attention over all of it beside an index and attention over what it chooses;
 * and one of MiniMax M3's, whose index chooses blocks for each key head.
 */
#ifndef TESTS_OPS_SPARSE_BENCH_H
#define TESTS_OPS_SPARSE_BENCH_H

#include "ops_bench_time.h"

struct sparse_bench {
    struct sl_backend *be;
    struct sl_op_attention dense;
    struct sl_op_index_select index;
    struct sl_op_sparse_attention sparse;
};

static void sparse_dense_step(void *arg)
{
    struct sparse_bench *b = arg;
    b->be->vt->attention(b->be, &b->dense);
}

static void sparse_index_step(void *arg)
{
    struct sparse_bench *b = arg;
    b->be->vt->index_select(b->be, &b->index);
}

static void sparse_chosen_step(void *arg)
{
    struct sparse_bench *b = arg;
    b->be->vt->sparse_attention(b->be, &b->sparse);
}

static void bench_sparse(int isa, int threads, int context)
{
    enum { NQ = 128, RANK = 512, HD = RANK + 64, BS = 32, IQ = 64, ID = 128, TOP = 2048 };
    const int n_pages = SL_CEIL_DIV(context, BS);
    const size_t rows = BS / SL_KV_TILE * sl_kv_tile_bytes(SL_DTYPE_BF16, HD);
    const size_t page = rows + BS / SL_KV_TILE * sl_kv_tile_bytes(SL_DTYPE_BF16, ID);
    const size_t pool_bytes = page * (size_t)n_pages,
                 room = sl_sparse_room(SL_DTYPE_BF16, HD, TOP, 1);
    struct sl_rng rng = {1, 0};
    uint8_t *pool = sl_aligned_alloc(pool_bytes), *chosen = sl_aligned_alloc(room);
    int32_t *table = sl_malloc((size_t)n_pages * sizeof *table), top[TOP];
    float *q = floats(&rng, NQ * HD, 1.0), *iq = floats(&rng, IQ * ID, 1.0);
    float *w = floats(&rng, IQ, 1.0), *out = sl_aligned_alloc(NQ * RANK * sizeof *out);
    float *scores = sl_malloc((size_t)sl_index_scores(context) * sizeof *scores);
    assert_true(pool != NULL && chosen != NULL && table != NULL && out != NULL && scores != NULL);
    random_blocks(&rng, SL_DTYPE_BF16, pool, pool_bytes);
    memset(chosen, 0, room);
    for (int i = 0; i < n_pages; i++)
        table[i] = (int32_t)((i * 7919LL) % n_pages); /* scattered */
    struct sl_span span = {.n = 1, .pos = context - 1};
    struct sl_batch batch = {.n_tokens = 1, .n_spans = 1, .spans = &span, .block_tables = table};
    struct sparse_bench b = {.be = backend(isa, threads)};
    b.dense = (struct sl_op_attention){.batch = &batch,
                                       .q = q,
                                       .ld_q = NQ * HD,
                                       .n_heads = NQ,
                                       .n_kv_heads = 1,
                                       .head_dim = HD,
                                       .v_dim = RANK,
                                       .v_in_k = true,
                                       .scale = 0.0722f,
                                       .kv = {pool, page, 0, 0, SL_DTYPE_BF16, BS, 0},
                                       .out = out,
                                       .ld_out = NQ * RANK};
    b.index = (struct sl_op_index_select){.batch = &batch,
                                          .q = iq,
                                          .w = w,
                                          .n_heads = IQ,
                                          .dim = ID,
                                          .top_k = TOP,
                                          .kv = {pool, page, rows, rows, SL_DTYPE_BF16, BS, 0},
                                          .scores = scores,
                                          .n_scores = sl_index_scores(context),
                                          .top = top};
    b.sparse = (struct sl_op_sparse_attention){
        .all = b.dense, .top = top, .top_k = TOP, .room = chosen, .room_bytes = room};
    const double dense = median_seconds(sparse_dense_step, &b, threads),
                 index = median_seconds(sparse_index_step, &b, threads),
                 sparse = median_seconds(sparse_chosen_step, &b, threads);
    printf("sparse    bf16  %-7s context %d T=1 threads %d: dense %9.0f us, index %8.0f us, chosen "
           "%8.0f us, dense / both %5.2f\n",
           isa_names[isa], context, threads, dense * 1e6, index * 1e6, sparse * 1e6,
           dense / (index + sparse));
    sl_aligned_free(pool, pool_bytes);
    sl_aligned_free(chosen, room);
    sl_aligned_free(out, NQ * RANK * sizeof *out);
    sl_free(scores);
    sl_free(table);
    sl_free(q);
    sl_free(iq);
    sl_free(w);
}

static void bench_sparse_blocks(int isa, int threads, int context)
{
    enum { NQ = 64, NKV = 4, HD = 128, BS = 32, ID = 128, TOP = 16, BLOCK = 128 };
    const int n_pages = SL_CEIL_DIV(context, BS);
    const size_t one = BS / SL_KV_TILE * sl_kv_tile_bytes(SL_DTYPE_BF16, HD), keys = NKV * one,
                 page = 2 * keys + one, pool_bytes = page * (size_t)n_pages;
    const int64_t n_scores = sl_index_block_scores(context, BLOCK, NKV);
    struct sl_rng rng = {1, 0};
    uint8_t *pool = sl_aligned_alloc(pool_bytes);
    int32_t *table = sl_malloc((size_t)n_pages * sizeof *table), top[NKV * TOP];
    float *q = floats(&rng, NQ * HD, 1.0), *iq = floats(&rng, NKV * ID, 1.0);
    float *out = sl_aligned_alloc(NQ * HD * sizeof *out);
    float *scores = sl_malloc((size_t)n_scores * sizeof *scores);
    assert_true(pool != NULL && table != NULL && out != NULL && scores != NULL);
    random_blocks(&rng, SL_DTYPE_BF16, pool, pool_bytes);
    for (int i = 0; i < n_pages; i++)
        table[i] = (int32_t)((i * 7919LL) % n_pages); /* scattered */
    struct sl_span span = {.n = 1, .pos = context - 1}, room;
    struct sl_batch batch = {.n_tokens = 1, .n_spans = 1, .spans = &span, .block_tables = table};
    struct sparse_bench b = {.be = backend(isa, threads)};
    b.dense = (struct sl_op_attention){.batch = &batch,
                                       .q = q,
                                       .ld_q = NQ * HD,
                                       .n_heads = NQ,
                                       .n_kv_heads = NKV,
                                       .head_dim = HD,
                                       .v_dim = HD,
                                       .scale = 0.0884f,
                                       .kv = {pool, page, 0, keys, SL_DTYPE_BF16, BS, 0},
                                       .out = out,
                                       .ld_out = NQ * HD};
    b.index =
        (struct sl_op_index_select){.batch = &batch,
                                    .q = iq,
                                    .n_heads = NKV,
                                    .dim = ID,
                                    .top_k = TOP,
                                    .block = BLOCK,
                                    .n_local = 1,
                                    .kv = {pool, page, 2 * keys, 2 * keys, SL_DTYPE_BF16, BS, 0},
                                    .scores = scores,
                                    .n_scores = n_scores,
                                    .top = top};
    b.sparse = (struct sl_op_sparse_attention){.all = b.dense,
                                               .top = top,
                                               .top_k = TOP,
                                               .block = BLOCK,
                                               .room = &room,
                                               .room_bytes = sizeof room};
    const double dense = median_seconds(sparse_dense_step, &b, threads),
                 index = median_seconds(sparse_index_step, &b, threads),
                 sparse = median_seconds(sparse_chosen_step, &b, threads);
    printf("blocks    bf16  %-7s context %d T=1 threads %d: dense %9.0f us, index %8.0f us, chosen "
           "%8.0f us, dense / both %5.2f\n",
           isa_names[isa], context, threads, dense * 1e6, index * 1e6, sparse * 1e6,
           dense / (index + sparse));
    sl_aligned_free(pool, pool_bytes);
    sl_aligned_free(out, NQ * HD * sizeof *out);
    sl_free(scores);
    sl_free(table);
    sl_free(q);
    sl_free(iq);
}

#endif
