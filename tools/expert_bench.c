/* SPDX-License-Identifier: MIT
 * expert_bench.c - how fast the experts of a layer are on this machine's CPU, from their choice to
 * their sum, as a share of what it reads in the same run.
 *
 * usage: expert_bench [shape [threads [rows ...]]]
 *            shape: qwen3 (Qwen3-30B-A3B, Q4_K), gpt-oss (gpt-oss-20b, MXFP4), mixtral (8x7B, Q4_K)
 *            (default: qwen3, one thread, 1 to 512 rows)
 *
 * Rows choose experts at random. Time is the best of several runs; of one thread it is processor
 * time, which other programs disturb least. Weights are counted once for each expert that is hit.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/sys.h"
#include "cpu/backend.h"
#include "quant/float.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WEIGHT_BYTES (256u << 20) /* read for the ceiling: more than caches hold */
#define READ_ITEM    (512u << 10)

#define MOST_ROWS 2048
#define ROUNDS    5

static const struct shape {
    const char *name;
    enum sl_dtype dtype;
    int32_t n_experts, top_k;
    int64_t hidden, mid;
    struct sl_swiglu swiglu; /* with biases, if there is a limit */
} shapes[] = {
    {"qwen3", SL_DTYPE_Q4_K, 128, 8, 2048, 768, {.limit = 0}},
    {"gpt-oss", SL_DTYPE_MXFP4, 32, 4, 2880, 2880, {.limit = 7, .alpha = 1.702f, .up_plus = 1}},
    {"mixtral", SL_DTYPE_Q4_K, 8, 2, 4096, 14336, {.limit = 0}},
};

static void fail(const char *what)
{
    fprintf(stderr, "expert_bench: %s\n", what);
    exit(1);
}

static void *room(size_t n)
{
    void *p = sl_aligned_alloc(n);
    if (p == NULL)
        fail("out of memory");
    return p;
}

struct stream {
    struct sl_thread_pool *pool;
    const uint8_t *data;
};

static void read_item(void *arg, uint32_t item, int thread_idx)
{
    const struct stream *s = arg;
    const uint64_t *p = (const uint64_t *)(const void *)(s->data + (size_t)item * READ_ITEM);
    uint64_t sum[8] = {0};
    (void)thread_idx;
    for (size_t i = 0; i < READ_ITEM / sizeof *p; i += 8)
        for (int k = 0; k < 8; k++)
            sum[k] |= p[i + (size_t)k];
    for (int k = 0; k < 8; k++)
        __asm__ volatile("" ::"r"(sum[k]));
}

static void stream_run(const struct stream *s)
{
    sl_thread_pool_run(s->pool, read_item, (void *)(uintptr_t)s, WEIGHT_BYTES / READ_ITEM);
}

/* Random blocks, their scales small numbers. */
static void random_rows(enum sl_dtype t, uint8_t *p, size_t n)
{
    const size_t block = sl_dtype_info(t)->block_bytes;
    struct sl_rng rng = {1, 0};
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)sl_rng_below(&rng, 256);
    for (size_t i = 0; i < n; i += block) {
        if (t == SL_DTYPE_MXFP4) {
            p[i] = (uint8_t)(120 + p[i] % 6); /* a power of two */
            continue;
        }
        sl_store_u16(p + i, sl_f32_to_f16(0.001f * (float)(i % 97))); /* Q4_K */
        sl_store_u16(p + i + 2, sl_f32_to_f16(0.001f * (float)(i % 89)));
    }
}

struct layer {
    struct sl_backend *be;
    const struct shape *s;
    struct sl_weight *mats[3];
    struct sl_stack stacks[3];
    float *bias[3], *x, *weights, *out;
    int32_t *experts;
    void *scratch;
    int32_t n; /* rows of a call */
};

static void make_stack(struct layer *l, int k)
{
    const struct shape *s = l->s;
    const int64_t n_rows = k < 2 ? s->mid : s->hidden, n_cols = k < 2 ? s->hidden : s->mid;
    struct sl_error err;
    uint64_t n;
    if (!sl_dtype_bytes(s->dtype, (uint64_t)(n_rows * n_cols), &n))
        fail("columns");
    uint8_t *rows = room(n);
    random_rows(s->dtype, rows, n);
    l->mats[k] = room((size_t)s->n_experts * sizeof *l->mats[k]);
    for (int32_t e = 0; e < s->n_experts; e++)
        if (l->be->vt->weight_create(l->be, SL_USE_LINEAR, s->dtype, n_rows, n_cols, rows, NULL,
                                     &l->mats[k][e], &err) != 0)
            fail(err.msg);
    sl_aligned_free(rows, n);
    if (l->be->vt->stack_create(l->be, l->mats[k], s->n_experts, &l->stacks[k], &err) != 0)
        fail(err.msg);
    if (s->swiglu.limit > 0) {
        l->bias[k] = room((size_t)(s->n_experts * n_rows) * sizeof(float));
        memset(l->bias[k], 0, (size_t)(s->n_experts * n_rows) * sizeof(float));
    }
}

/* Different experts of each row, all as likely. */
static void choose(struct layer *l, struct sl_rng *rng)
{
    for (int32_t t = 0; t < l->n; t++)
        for (int32_t k = 0; k < l->s->top_k; k++) {
            int32_t *e = l->experts + t * l->s->top_k;
            bool again = true;
            while (again) {
                e[k] = (int32_t)sl_rng_below(rng, (uint64_t)l->s->n_experts);
                again = false;
                for (int32_t i = 0; i < k; i++)
                    again = again || e[i] == e[k];
            }
        }
}

static int32_t n_hit(const struct layer *l)
{
    bool hit[SL_MAX_EXPERTS] = {false};
    int32_t n = 0;
    for (int32_t i = 0; i < l->n * l->s->top_k; i++) {
        n += !hit[l->experts[i]];
        hit[l->experts[i]] = true;
    }
    return n;
}

static void run_layer(struct layer *l)
{
    l->be->vt->experts(l->be, &(struct sl_op_experts){.x = l->x,
                                                      .n = l->n,
                                                      .top_k = l->s->top_k,
                                                      .experts = l->experts,
                                                      .weights = l->weights,
                                                      .gate = &l->stacks[0],
                                                      .up = &l->stacks[1],
                                                      .down = &l->stacks[2],
                                                      .gate_bias = l->bias[0],
                                                      .up_bias = l->bias[1],
                                                      .down_bias = l->bias[2],
                                                      .act = SL_ACT_SILU,
                                                      .swiglu = l->s->swiglu,
                                                      .scratch = l->scratch,
                                                      .out = l->out});
}

static double seconds(bool own)
{
    struct timespec t;
    clock_gettime(own ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One row hits a few experts, which a second call would find in the cache: each call chooses anew.
 */
static void measure_rows(struct layer *l, struct stream *read, int32_t n, int n_threads)
{
    const bool own = n_threads == 1;
    struct sl_rng rng = {(uint64_t)n, 7};
    double best = 1e9, best_read = 1e9, bytes = 0, hit = 0;
    l->n = n;
    for (int round = 0; round < ROUNDS; round++) {
        double t0 = seconds(own), spent = 0, read_bytes = 0, hits = 0;
        stream_run(read);
        best_read = SL_MIN(best_read, seconds(own) - t0);
        int n_calls = 0;
        for (; spent < 0.12; n_calls++) {
            choose(l, &rng);
            const int32_t h = n_hit(l);
            t0 = seconds(own);
            run_layer(l);
            spent += seconds(own) - t0;
            hits += h;
            read_bytes += (double)h * (double)(2 * l->mats[0][0].n_bytes + l->mats[2][0].n_bytes);
        }
        if (spent / n_calls < best) {
            best = spent / n_calls;
            bytes = read_bytes / n_calls;
            hit = hits / n_calls;
        }
    }
    const double rate = bytes / best, peak = (double)WEIGHT_BYTES / best_read;
    const double ops =
        2.0 * n * l->s->top_k * 3.0 * (double)(l->s->hidden * l->s->mid) / best * 1e-12;
    printf("%-8s %-6s rows %-5d hit %6.1f %10.1f us %7.2f GB/s %4.0f %% of %.2f %8.3f TOPS\n",
           l->s->name, sl_dtype_info(l->s->dtype)->name, n, hit, best * 1e6, rate * 1e-9,
           100 * rate / peak, peak * 1e-9, ops);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const int32_t usual[] = {1, 2, 4, 8, 32, 128, 512};
    uint64_t n_threads = 1, n;
    const struct shape *s = &shapes[0];
    struct sl_error err;
    for (size_t i = 0; i < SL_COUNT(shapes) && argc > 1; i++)
        s = strcmp(argv[1], shapes[i].name) == 0 ? &shapes[i] : s;
    if ((argc > 1 && strcmp(argv[1], s->name) != 0) ||
        (argc > 2 && (!sl_parse_u64(argv[2], strlen(argv[2]), &n_threads) || n_threads == 0 ||
                      n_threads > SL_MAX_THREADS))) {
        fprintf(stderr, "usage: expert_bench [qwen3|gpt-oss|mixtral [threads [rows ...]]]\n");
        return 2;
    }
    struct layer l = {.s = s};
    struct sl_cpu_config cfg = {.n_threads = (int)n_threads};
    if (sl_cpu_create(&cfg, &l.be, &err) != 0)
        fail(err.msg);
    for (int k = 0; k < 3; k++)
        make_stack(&l, k);
    const size_t row = (size_t)s->hidden * sizeof(float);
    l.x = room(MOST_ROWS * row);
    l.out = room(MOST_ROWS * row);
    l.weights = room((size_t)(MOST_ROWS * s->top_k) * sizeof *l.weights);
    l.experts = room((size_t)(MOST_ROWS * s->top_k) * sizeof *l.experts);
    l.scratch =
        room(l.be->vt->experts_bytes(l.be, MOST_ROWS, s->n_experts, s->top_k, s->hidden, s->mid));
    for (int64_t i = 0; i < MOST_ROWS * s->hidden; i++)
        l.x[i] = (float)(i % 13 - 6);
    for (int32_t i = 0; i < MOST_ROWS * s->top_k; i++)
        l.weights[i] = 1.0f / (float)s->top_k;
    uint8_t *store = room(WEIGHT_BYTES);
    memset(store, 1, WEIGHT_BYTES);
    struct stream read = {.data = store};
    if (sl_thread_pool_create((int)n_threads, &read.pool, &err) != 0)
        fail(err.msg);
    for (size_t i = 0; argc <= 3 && i < SL_COUNT(usual); i++)
        measure_rows(&l, &read, usual[i], (int)n_threads);
    for (int i = 3; i < argc; i++) {
        if (!sl_parse_u64(argv[i], strlen(argv[i]), &n) || n == 0 || n > MOST_ROWS)
            fail("rows: 1 to 2048");
        measure_rows(&l, &read, (int32_t)n, (int)n_threads);
    }
    return 0;
}
