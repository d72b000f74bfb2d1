/* SPDX-License-Identifier: MIT
 * ops_pages_bench.h - `test_ops --bench pages`: one token behind a long context, attention over all
 * of it beside attention over the pages that bounds promise most of, the choice included.
 */
#ifndef TESTS_OPS_PAGES_BENCH_H
#define TESTS_OPS_PAGES_BENCH_H

#include "ops_bench_time.h"

struct pages_bench {
    struct sl_backend *be;
    struct sl_op_page_attention op;
};

static void pages_dense_step(void *arg)
{
    struct pages_bench *b = arg;
    b->be->vt->attention(b->be, &b->op.all);
}

static void pages_chosen_step(void *arg)
{
    struct pages_bench *b = arg;
    b->be->vt->page_attention(b->be, &b->op);
}

/* Medians of both, in turns, so that what else the machine does falls on both. */
static void pages_times(struct pages_bench *b, int threads, double *dense, double *chosen)
{
    double s[2][BENCH_RUNS];
    for (int i = 0; i < BENCH_RUNS; i++)
        for (int k = 0; k < 2; k++) {
            const uint64_t from = bench_ns(threads);
            (k == 0 ? pages_dense_step : pages_chosen_step)(b);
            s[k][i] = 1e-9 * (double)(bench_ns(threads) - from);
        }
    for (int k = 0; k < 2; k++)
        qsort(s[k], BENCH_RUNS, sizeof s[k][0], by_value);
    *dense = s[0][BENCH_RUNS / 2];
    *chosen = s[1][BENCH_RUNS / 2];
}

/* Layers of 32 heads and 8 key heads of 128, in BF16. */
static void bench_pages(int isa, int threads, int context)
{
    enum { NQ = 32, NKV = 8, HD = 128, BS = 16, SOME = 509 };
    static const int tops[] = {256, 512, 1024, 2048};
    const int n_pages = context / BS;
    const size_t keys = NKV * sl_kv_tile_bytes(SL_DTYPE_BF16, HD);
    const size_t page = 2 * keys + sl_page_bounds_bytes(SL_DTYPE_BF16, NKV, HD);
    const size_t pool_bytes = page * (size_t)n_pages, room = sl_page_room(NKV, 2048, n_pages);
    struct sl_rng rng = {1, 0};
    uint8_t *pool = sl_aligned_alloc(pool_bytes), *chosen = sl_aligned_alloc(room);
    int32_t *table = sl_malloc((size_t)n_pages * sizeof *table);
    float *q = floats(&rng, NQ * HD, 1.0), *out = sl_aligned_alloc(NQ * HD * sizeof *out);
    assert_true(pool != NULL && chosen != NULL && table != NULL && out != NULL);
    random_blocks(&rng, SL_DTYPE_BF16, pool, SOME * page);
    for (int i = SOME; i < n_pages; i++)
        memcpy(pool + (size_t)i * page, pool + (size_t)(i % SOME) * page, page);
    for (int i = 0; i < n_pages; i++)
        table[i] = (int32_t)((i * 7919LL) % n_pages); /* scattered */
    struct sl_span span = {.n = context};
    struct sl_batch batch = {.n_tokens = 1, .n_spans = 1, .spans = &span, .block_tables = table};
    struct pages_bench b = {.be = backend(isa, threads)};
    const struct sl_kv_view kv = {pool, page, 0, keys, SL_DTYPE_BF16, BS, 0, 0, 0};
    b.be->vt->page_bounds(b.be, &(struct sl_op_page_bounds){.batch = &batch,
                                                            .n_kv_heads = NKV,
                                                            .head_dim = HD,
                                                            .bounds_offset = 2 * keys,
                                                            .kv = kv});
    span = (struct sl_span){.n = 1, .pos = context - 1};
    b.op = (struct sl_op_page_attention){.all = {.batch = &batch,
                                                 .q = q,
                                                 .ld_q = NQ * HD,
                                                 .n_heads = NQ,
                                                 .n_kv_heads = NKV,
                                                 .head_dim = HD,
                                                 .scale = 0.0884f,
                                                 .kv = kv,
                                                 .out = out,
                                                 .ld_out = NQ * HD},
                                         .bounds_offset = 2 * keys,
                                         .room = chosen,
                                         .room_bytes = room};
    for (size_t i = 0; i < SL_COUNT(tops) && tops[i] < n_pages; i++) {
        double dense, some;
        b.op.top_pages = tops[i];
        pages_times(&b, threads, &dense, &some);
        printf("pages     bf16  %-11s context %d T=1 threads %d: dense %8.0f us, %4d of %d pages "
               "%8.0f us, share %.3f\n",
               isa_names[isa], context, threads, dense * 1e6, tops[i], n_pages, some * 1e6,
               some / dense);
    }
    sl_aligned_free(pool, pool_bytes);
    sl_aligned_free(chosen, room);
    sl_aligned_free(out, NQ * HD * sizeof *out);
    sl_free(table);
    sl_free(q);
}

#endif
