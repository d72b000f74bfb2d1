/* SPDX-License-Identifier: MIT
 * ops_bench.h - how fast the kernels are, as a share of what the machine can read and multiply,
 * both measured here by the same clock. Every figure is the median of several short runs; one
 * thread is timed by the processor time it got, so that a busy machine shows less, more threads by
 * the wall.
 */
#ifndef TESTS_OPS_BENCH_H
#define TESTS_OPS_BENCH_H

#include "ops_bench_time.h"
#include "ops_pages_bench.h"
#include "ops_sparse_bench.h"

#include "cpu/thread_pool.h"

/* ---------------------------------------------------------------- ceilings */

struct stream {
    struct sl_thread_pool *pool;
    const uint8_t *data;
    size_t n_bytes;
    uint64_t sink[SL_MAX_THREADS][8];
};

#define STREAM_ITEM (256u << 10)

#if defined(__GNUC__) && !defined(__clang__)
#define WIDEST __attribute__((target("avx512f"), optimize("O3")))
#else
#define WIDEST __attribute__((target("avx512f")))
#endif

typedef uint64_t wide __attribute__((vector_size(64), aligned(8)));
typedef float wide_f __attribute__((vector_size(64)));

/* Reads every byte and keeps nothing of it. */
WIDEST static void stream_item(void *arg, uint32_t item, int thread_idx)
{
    struct stream *s = arg;
    const wide *p = (const wide *)(const void *)(s->data + (size_t)item * STREAM_ITEM);
    wide a[8] = {{0}};
    for (size_t i = 0; i < STREAM_ITEM / sizeof(wide); i += 8)
        for (int j = 0; j < 8; j++)
            a[j] ^= p[i + (size_t)j];
    for (int j = 1; j < 8; j++)
        a[0] ^= a[j];
    for (int j = 0; j < 8; j++)
        s->sink[thread_idx][j] ^= a[0][j];
}

static void stream_run(void *arg)
{
    struct stream *s = arg;
    sl_thread_pool_run(s->pool, stream_item, s, (uint32_t)(s->n_bytes / STREAM_ITEM));
}

struct peak {
    struct sl_thread_pool *pool;
    wide_f out[SL_MAX_THREADS];
};

#define PEAK_STEPS 20000

WIDEST static void peak_item(void *arg, uint32_t item, int thread_idx)
{
    struct peak *p = arg;
    wide_f x = {0}, y;
    x = x + 0.999f + 1e-9f * (float)item;
    y = x * 1e-3f;
    wide_f a0 = x, a1 = x, a2 = x, a3 = x, a4 = x, a5 = x, a6 = x, a7 = x, a8 = x, a9 = x;
    for (int i = 0; i < PEAK_STEPS; i++) /* ten chains: latency 4, two a cycle */
        __asm__ volatile("vfmadd213ps %11, %10, %0\n vfmadd213ps %11, %10, %1\n"
                         "vfmadd213ps %11, %10, %2\n vfmadd213ps %11, %10, %3\n"
                         "vfmadd213ps %11, %10, %4\n vfmadd213ps %11, %10, %5\n"
                         "vfmadd213ps %11, %10, %6\n vfmadd213ps %11, %10, %7\n"
                         "vfmadd213ps %11, %10, %8\n vfmadd213ps %11, %10, %9\n"
                         : "+v"(a0), "+v"(a1), "+v"(a2), "+v"(a3), "+v"(a4), "+v"(a5), "+v"(a6),
                           "+v"(a7), "+v"(a8), "+v"(a9)
                         : "v"(x), "v"(y));
    p->out[thread_idx] += a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9;
}

static void peak_run(void *arg)
{
    struct peak *p = arg;
    sl_thread_pool_run(p->pool, peak_item, p, (uint32_t)sl_thread_pool_n_threads(p->pool));
}

/* The same with dot products of bytes, VNNI: twelve chains of vpdpbusd. The registers are named
 * because compilers move an array of sums through memory. */
WIDEST static void peak_vnni_item(void *arg, uint32_t item, int thread_idx)
{
    (void)arg;
    (void)item;
    (void)thread_idx;
    for (int i = 0; i < PEAK_STEPS; i++)
        __asm__ volatile("vpdpbusd %%zmm12, %%zmm12, %%zmm0\n vpdpbusd %%zmm12, %%zmm12, %%zmm1\n"
                         "vpdpbusd %%zmm12, %%zmm12, %%zmm2\n vpdpbusd %%zmm12, %%zmm12, %%zmm3\n"
                         "vpdpbusd %%zmm12, %%zmm12, %%zmm4\n vpdpbusd %%zmm12, %%zmm12, %%zmm5\n"
                         "vpdpbusd %%zmm12, %%zmm12, %%zmm6\n vpdpbusd %%zmm12, %%zmm12, %%zmm7\n"
                         "vpdpbusd %%zmm12, %%zmm12, %%zmm8\n vpdpbusd %%zmm12, %%zmm12, %%zmm9\n"
                         "vpdpbusd %%zmm12, %%zmm12, %%zmm10\n"
                         "vpdpbusd %%zmm12, %%zmm12, %%zmm11\n" ::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                               "xmm8", "xmm9", "xmm10", "xmm11");
}

static void peak_vnni_run(void *arg)
{
    struct peak *p = arg;
    sl_thread_pool_run(p->pool, peak_vnni_item, p, (uint32_t)sl_thread_pool_n_threads(p->pool));
}

/* What n threads can do in a second: read bytes, multiply and add floats, multiply and add bytes;
 * NAN where it is not measured. */
struct ceilings {
    double bytes, flops, int_ops;
};

static struct ceilings measure_ceilings(int n_threads, const uint8_t *data, size_t n_bytes)
{
    static struct stream s;
    static struct peak p;
    struct ceilings c = {NAN, NAN, NAN};
    struct sl_error err;
    struct sl_thread_pool *pool;
    if (!isa_available(2)) {
        printf("ceilings: need AVX-512 to be measured\n");
        return c;
    }
    if (sl_thread_pool_create(n_threads, &pool, &err) != 0)
        fail_msg("%s", err.msg);
    s = (struct stream){.pool = pool, .data = data, .n_bytes = n_bytes};
    p = (struct peak){.pool = pool};
    c.bytes = (double)n_bytes / median_seconds(stream_run, &s, n_threads);
    c.flops =
        (double)n_threads * PEAK_STEPS * 10 * 16 * 2 / median_seconds(peak_run, &p, n_threads);
    if (isa_available(ISA_VNNI))
        c.int_ops = (double)n_threads * PEAK_STEPS * 12 * 64 * 2 /
                    median_seconds(peak_vnni_run, &p, n_threads);
    sl_thread_pool_destroy(pool);
    printf("threads %d: stream read %.1f GB/s, multiply-add %.0f GFLOP/s, VNNI %.0f GOP/s\n",
           n_threads, c.bytes * 1e-9, c.flops * 1e-9, c.int_ops * 1e-9);
    return c;
}

/* ---------------------------------------------------------------- linear */

struct linear_bench {
    struct sl_backend *be;
    struct sl_weight *w; /* several, so that together they do not fit in a cache */
    int n_w, next;
    struct sl_op_linear a;
};

static void linear_step(void *arg)
{
    struct linear_bench *b = arg;
    b->a.w = &b->w[b->next];
    b->next = (b->next + 1) % b->n_w;
    b->be->vt->linear(b->be, &b->a);
}

/* Enough matrices that a cache holds few of them. The share of the peak is that of VNNI for block
 * formats, else of multiply-add. */
static void bench_linear(int isa, int threads, enum sl_dtype t, const uint8_t *data, int64_t n_rows,
                         int64_t n_cols, int n, const struct ceilings *c)
{
    enum { N_W = 8 };
    struct linear_bench b = {.be = backend(isa, threads), .n_w = N_W};
    struct sl_weight w[N_W];
    struct sl_rng rng = {1, 0};
    float *x = floats(&rng, (size_t)(n * n_cols), 1.0);
    float *out = sl_aligned_alloc((size_t)(n * n_rows) * sizeof *out);
    struct sl_error err;
    uint64_t each;
    assert_true(sl_dtype_bytes(t, (uint64_t)(n_rows * n_cols), &each));
    for (int i = 0; i < N_W; i++)
        if (b.be->vt->weight_create(b.be, SL_USE_LINEAR, t, n_rows, n_cols,
                                    data + (uint64_t)i % 4 * each, NULL, &w[i], &err) != 0)
            fail_msg("%s", err.msg);
    b.w = w;
    b.a = (struct sl_op_linear){.x = x, .ld_x = n_cols, .n = n, .out = out, .ld_out = n_rows};
    double s = median_seconds(linear_step, &b, threads);
    double gb = (double)w[0].n_bytes / s, ops = 2.0 * (double)n * (double)(n_rows * n_cols) / s;
    printf("linear %-5s %-11s %lldx%lld T=%-4d threads %d: %8.1f us  %5.1f GB/s %3.0f %%  %6.1f "
           "GOP/s %3.0f %%\n",
           sl_dtype_info(t)->name, isa_names[isa], (long long)n_rows, (long long)n_cols, n, threads,
           s * 1e6, gb * 1e-9, 100 * gb / c->bytes, ops * 1e-9,
           100 * ops / (sl_i8_form_of(t) != SL_I8_NONE ? c->int_ops : c->flops));
    for (int i = 0; i < N_W; i++)
        b.be->vt->weight_destroy(b.be, &w[i]);
    sl_free(x);
    sl_aligned_free(out, (size_t)(n * n_rows) * sizeof *out);
}

/* ---------------------------------------------------------------- attention */

struct attention_bench {
    struct sl_backend *be;
    struct sl_op_attention a;
};

static void attention_step(void *arg)
{
    struct attention_bench *b = arg;
    b->be->vt->attention(b->be, &b->a);
}

static void bench_attention(int isa, int threads, enum sl_dtype kv, int context, int n,
                            const struct ceilings *c)
{
    enum { NQ = 32, NKV = 8, HD = 128, BS = 16 };
    int n_pages = SL_CEIL_DIV(context, BS);
    size_t plane = NKV * (BS / SL_KV_TILE) * sl_kv_tile_bytes(kv, HD);
    size_t pool_bytes = 2 * plane * (size_t)n_pages;
    struct sl_rng rng = {1, 0};
    uint8_t *pool = sl_aligned_alloc(pool_bytes);
    int32_t *table = sl_malloc((size_t)n_pages * sizeof *table);
    float *q = floats(&rng, (size_t)(n * NQ * HD), 1.0);
    float *out = sl_aligned_alloc((size_t)(n * NQ * HD) * sizeof *out);
    assert_true(pool != NULL && table != NULL && out != NULL);
    random_blocks(&rng, kv, pool, pool_bytes);
    for (int i = 0; i < n_pages; i++)
        table[i] = (int32_t)((i * 7919LL) % n_pages); /* scattered */
    struct sl_span span = {.n = n, .pos = context - n};
    struct sl_batch batch = {.n_tokens = n, .n_spans = 1, .spans = &span, .block_tables = table};
    struct attention_bench b = {backend(isa, threads),
                                {.batch = &batch,
                                 .q = q,
                                 .ld_q = NQ * HD,
                                 .n_heads = NQ,
                                 .n_kv_heads = NKV,
                                 .head_dim = HD,
                                 .scale = 0.0884f,
                                 .kv = {pool, 2 * plane, 0, plane, kv, BS},
                                 .out = out,
                                 .ld_out = NQ * HD}};
    double s = median_seconds(attention_step, &b, threads);
    double pairs = (double)n * ((double)context - (double)(n - 1) / 2) * NQ;
    printf("attention %-5s %-7s context %d T=%-4d threads %d: %8.1f us  %5.1f GB/s %3.0f %%  %6.1f "
           "GFLOP/s %3.0f %%\n",
           sl_dtype_info(kv)->name, isa_names[isa], context, n, threads, s * 1e6,
           (double)pool_bytes / s * 1e-9, 100 * (double)pool_bytes / s / c->bytes,
           4 * pairs * HD / s * 1e-9, 400 * pairs * HD / s / c->flops);
    sl_aligned_free(pool, pool_bytes);
    sl_aligned_free(out, (size_t)(n * NQ * HD) * sizeof *out);
    sl_free(table);
    sl_free(q);
}

/* Has the instruction set a kernel of its own for the format? */
static bool is_new_route(int isa, enum sl_dtype t)
{
    char route[32], before[32];
    expected_route(isa, false, t, route, sizeof route);
    expected_route(isa - 1, false, t, before, sizeof before);
    return strcmp(route, before) != 0;
}

/* filter: "" for all, else a part of "decode", "batch", "prefill", "attention",
 * "sparse", "pages". */
static void run_bench(const char *filter)
{
    const size_t n_bytes = 384u << 20;
    uint8_t *data = sl_aligned_alloc(n_bytes);
    assert_non_null(data);
    struct sl_rng rng = {1, 0};
    for (size_t i = 0; i < n_bytes; i += 2) { /* small numbers in every format */
        uint64_t r = sl_rng_next(&rng);
        data[i] = (uint8_t)r;
        data[i + 1] = (uint8_t)(0x20 + (r >> 8) % 16);
    }
    for (int threads = 1; threads <= 2; threads++) {
        struct ceilings c = measure_ceilings(threads, data, n_bytes);
        for (int isa = N_ISAS - 1; isa >= 1; isa--) {
            for (int t = 0; isa_available(isa) && t < SL_DTYPE_COUNT; t++) {
                enum sl_dtype d = (enum sl_dtype)t;
                if (!is_new_route(isa, d))
                    continue;
                if (strstr("decode", filter) != NULL)
                    bench_linear(isa, threads, d, data, 4096, 4096, 1, &c);
                if (strstr("batch", filter) != NULL)
                    bench_linear(isa, threads, d, data, 4096, 4096, 4, &c);
                if (strstr("prefill", filter) != NULL)
                    bench_linear(isa, threads, d, data, 4096, 4096, 512, &c);
            }
            for (int n = 4096; isa_available(isa) && threads == 1 && n <= 65536; n *= 4)
                if (strstr("sparse", filter) != NULL) {
                    bench_sparse(isa, threads, n);
                    bench_sparse_blocks(isa, threads, n);
                }
            if (isa_available(isa) && strstr("pages", filter) != NULL)
                bench_pages(isa, threads, 131072);
            if (isa_available(isa) && strstr("attention", filter) != NULL) {
                bench_attention(isa, threads, SL_DTYPE_F16, 4096, 1, &c);
                bench_attention(isa, threads, SL_DTYPE_F16, 32768, 1, &c);
                bench_attention(isa, threads, SL_DTYPE_F16, 2048, 256, &c);
            }
        }
    }
    sl_aligned_free(data, n_bytes);
}

#endif
