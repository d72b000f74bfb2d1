/* SPDX-License-Identifier: MIT
 * kv_bench - processor time of attention over pages of each format, one decode step of one layer:
 * the formats take turns, so that what else the machine does meets all of them.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/sys.h"
#include "cpu/cpu.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char help[] = "usage: kv_bench [SEQUENCES [CONTEXT [ROUNDS [ISA]]]]\n"
                           "\n"
                           "One decode step of SEQUENCES (64) of CONTEXT tokens (8192), 32 heads "
                           "and 8 key heads of 128, on\n"
                           "one thread: median of ROUNDS (7) in processor time, the lowest and the "
                           "highest, and the pages'\n"
                           "bytes.\n";

enum { NQ = 32, NKV = 8, HD = 128, BS = 16, MAX_ROUNDS = 64 };

static const enum sl_dtype formats[] = {SL_DTYPE_BF16, SL_DTYPE_Q8_0, SL_DTYPE_FP8_E4M3,
                                        SL_KV_K8V4,    SL_KV_NVFP4,   SL_KV_INT4_HEAD,
                                        SL_KV_TURBO4,  SL_KV_TURBO3};

struct bench {
    struct sl_backend *be;
    struct sl_op_attention a;
    uint8_t *pool;
    size_t page_bytes, pool_bytes;
    double seconds[MAX_ROUNDS];
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *normals(struct sl_rng *rng, size_t n)
{
    float *x = sl_malloc(n * sizeof *x);
    for (size_t i = 0; x != NULL && i < n; i++)
        x[i] = (float)sl_rng_normal(rng);
    return x;
}

/* Pages of random keys and values: one is stored, and the others are copies. */
static int fill(struct bench *b, enum sl_dtype kv, size_t n_pages)
{
    const size_t keys = NKV * (BS / SL_KV_TILE) * sl_kv_tile_bytes(sl_kv_keys(kv), HD);
    const size_t values = NKV * (BS / SL_KV_TILE) * sl_kv_tile_bytes(sl_kv_values(kv), HD);
    struct sl_rng rng = {1, 0};
    float *x = normals(&rng, 2 * BS * NKV * HD);
    int32_t positions[BS], page = 0;
    struct sl_span span = {.n = BS};
    struct sl_batch batch = {.n_tokens = BS,
                             .n_spans = 1,
                             .positions = positions,
                             .spans = &span,
                             .block_tables = &page};
    b->page_bytes = keys + values;
    b->pool_bytes = n_pages * b->page_bytes;
    b->pool = sl_aligned_alloc(b->pool_bytes);
    if (b->pool == NULL || x == NULL)
        return -1;
    for (int i = 0; i < BS; i++)
        positions[i] = i;
    b->a.kv = (struct sl_kv_view){b->pool, b->page_bytes, 0, keys, kv, BS, 0, 0, 0};
    struct sl_op_qk_norm_rope_kv_store store = {.batch = &batch,
                                                .k = x,
                                                .v = x + BS * NKV * HD,
                                                .ld_k = NKV * HD,
                                                .ld_v = NKV * HD,
                                                .n_kv_heads = NKV,
                                                .head_dim = HD,
                                                .kv = b->a.kv};
    b->be->vt->qk_norm_rope_kv_store(b->be, &store);
    for (size_t i = 1; i < n_pages; i++)
        memcpy(b->pool + i * b->page_bytes, b->pool, b->page_bytes);
    sl_free(x);
    return 0;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(struct sl_backend *be, int n_seqs, int context, int rounds)
{
    const size_t n_blocks = (size_t)SL_CEIL_DIV(context, BS), n_pages = n_blocks * (size_t)n_seqs;
    struct bench b[SL_COUNT(formats)];
    struct sl_rng rng = {2, 0};
    struct sl_span *spans = sl_calloc((size_t)n_seqs, sizeof *spans);
    int32_t *table = sl_malloc(n_pages * sizeof *table);
    float *q = normals(&rng, (size_t)(n_seqs * NQ * HD));
    float *out = sl_malloc((size_t)(n_seqs * NQ * HD) * sizeof *out);
    if (spans == NULL || table == NULL || q == NULL || out == NULL)
        return -1;
    for (int i = 0; i < n_seqs; i++)
        spans[i] = (struct sl_span){
            .first = i, .n = 1, .pos = context - 1, .table_idx = (int32_t)((size_t)i * n_blocks)};
    for (size_t i = 0; i < n_pages; i++) /* scattered */
        table[i] = (int32_t)(i * 7919 % n_pages);
    struct sl_batch batch = {
        .n_tokens = n_seqs, .n_spans = n_seqs, .spans = spans, .block_tables = table};
    for (size_t f = 0; f < SL_COUNT(formats); f++) {
        b[f] = (struct bench){.be = be};
        b[f].a = (struct sl_op_attention){.batch = &batch,
                                          .q = q,
                                          .ld_q = NQ * HD,
                                          .n_heads = NQ,
                                          .n_kv_heads = NKV,
                                          .head_dim = HD,
                                          .scale = 0.0884f,
                                          .out = out,
                                          .ld_out = NQ * HD};
        if (fill(&b[f], formats[f], n_pages) != 0)
            return -1;
        be->vt->attention(be, &b[f].a);
    }
    for (int r = 0; r < rounds; r++)
        for (size_t f = 0; f < SL_COUNT(formats); f++) {
            const double t0 = now();
            be->vt->attention(be, &b[f].a);
            b[f].seconds[r] = now() - t0;
        }
    for (size_t f = 0; f < SL_COUNT(formats); f++) {
        qsort(b[f].seconds, (size_t)rounds, sizeof(double), by_value);
        printf("%-20s %8.2f ms  %8.2f  %8.2f  %8.1f MB\n", sl_dtype_info(formats[f])->name,
               b[f].seconds[rounds / 2] * 1e3, b[f].seconds[0] * 1e3,
               b[f].seconds[rounds - 1] * 1e3, (double)b[f].pool_bytes / 1e6);
        sl_aligned_free(b[f].pool, b[f].pool_bytes);
    }
    sl_free(spans);
    sl_free(table);
    sl_free(q);
    sl_free(out);
    return 0;
}

int main(int argc, char **argv)
{
    static const uint64_t most[] = {256, 1 << 20, MAX_ROUNDS};
    uint64_t n[] = {64, 8192, 7};
    struct sl_error err = {0};
    struct sl_cpu_config cpu = {.n_threads = 1};
    struct sl_backend *be = NULL;
    for (int i = 1; i < argc && i < 4; i++)
        if (!sl_parse_u64(argv[i], strlen(argv[i]), &n[i - 1]) || n[i - 1] < 1 ||
            n[i - 1] > most[i - 1]) {
            fputs(help, stderr);
            return 2;
        }
    int rc = argc > 4 ? sl_cpu_isa_parse(argv[4], &cpu.isa, &err) : 0;
    if (rc == 0)
        rc = sl_cpu_create(&cpu, &be, &err);
    if (rc == 0)
        printf("%d sequences of %d, %s\n", (int)n[0], (int)n[1], be->vt->isa(be));
    if (rc == 0 && measure(be, (int)n[0], (int)n[1], (int)n[2]) != 0)
        rc = sl_fail(&err, SL_ENOMEM, "out of memory");
    if (rc != 0)
        fprintf(stderr, "kv_bench: %s\n", err.msg);
    if (be != NULL)
        be->vt->destroy(be);
    return rc != 0;
}
