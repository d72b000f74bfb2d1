/* SPDX-License-Identifier: MIT
 * state_bench.c - how fast the operations of recurrent layers are on the CPU, in shapes of known
 * models: decode as a share of what memory gives to a loop that reads and writes floats in place,
 * prefill as a share of what products of matrices in the first level of cache reach. States of
 * different steps lie in different pages, more than caches hold. One thread is timed by the
 * processor time it got, as the machine may be shared; more by the wall.
 *
 * usage: state_bench [threads [isa [model]]]
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cpu/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POOL_BYTES (1u << 30)
#define MAX_TOKENS 512
#define BLOCK      1024

struct shape {
    const char *model;
    int32_t n_heads, n_groups, k_dim, v_dim, n_channels, n_taps;
    bool ssm, by_state, gates; /* gates: of a convolution that is all there is */
};

static const struct shape shapes[] = {
    {"Qwen3.5-9B", 32, 16, 128, 128, 8192, 4, false, false, false},
    {"Qwen3.5-0.8B", 16, 16, 128, 128, 6144, 4, false, false, false},
    {"LFM2-1.2B", 0, 0, 0, 0, 2048, 3, false, false, true},
    {"Mamba-2-2.7B", 80, 1, 128, 64, 5376, 4, true, false, false},
    {"Mamba-2.8B", 5120, 1, 16, 1, 5120, 4, true, true, false},
};

struct rig {
    struct sl_backend *be;
    const struct shape *s;
    int n_threads;
    float *x, *gate, *w, *out; /* random numbers; out is anything */
    uint8_t *pool;
    int32_t n_seqs, n_tokens, n_pages, next; /* of a step; pages that take turns */
    struct sl_span spans[64];
    int32_t tables[128];
    struct sl_state_view view;
};

static void fail(const char *what)
{
    fprintf(stderr, "state_bench: %s\n", what);
    exit(1);
}

static uint64_t clock_ns(int n_threads)
{
    struct timespec ts;
    clock_gettime(n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of seven runs. */
static double seconds(void (*fn)(struct rig *r), struct rig *r)
{
    double s[7];
    fn(r);
    for (int i = 0; i < 7; i++) {
        const uint64_t t0 = clock_ns(r->n_threads);
        int n = 0;
        do {
            fn(r);
            n++;
        } while (clock_ns(r->n_threads) - t0 < 30000000);
        s[i] = 1e-9 * (double)(clock_ns(r->n_threads) - t0) / n;
    }
    qsort(s, 7, sizeof s[0], by_value);
    return s[3];
}

/* ---------------------------------------------------------------- ceilings */

#define PIECE (256u << 10) /* floats */

static void scale_piece(void *arg, uint32_t item, int thread_idx)
{
    const struct rig *r = arg;
    (void)thread_idx;
    sl_cpu(r->be)->k.scale((float *)(void *)r->pool + (size_t)item * PIECE, 1.0f, PIECE);
}

static void scale_run(struct rig *r)
{
    r->be->vt->run_items(r->be, scale_piece, r, POOL_BYTES / 4 / PIECE);
}

enum { GEMM_TOKENS = 6, GEMM_CALLS = 64 };

static void gemm_item(void *arg, uint32_t item, int thread_idx)
{
    const struct rig *r = arg;
    float acc[GEMM_TOKENS * SL_CPU_ROWS * SL_CPU_LANES];
    (void)item, (void)thread_idx;
    for (int i = 0; i < GEMM_CALLS; i++)
        sl_cpu(r->be)->k.gemm(r->w, SL_CPU_K, SL_CPU_ROWS, r->x, SL_CPU_K, GEMM_TOKENS, SL_CPU_K,
                              acc, i == 0);
}

static void gemm_run(struct rig *r)
{
    r->be->vt->run_items(r->be, gemm_item, r, (uint32_t)r->n_threads);
}

/* ---------------------------------------------------------------- operations */

/* A step begins behind a first token of its sequences, whose pages it changes. */
static struct sl_batch batch_of(struct rig *r)
{
    for (int32_t i = 0; i < r->n_seqs; i++) {
        r->spans[i] =
            (struct sl_span){i * (r->n_tokens / r->n_seqs), r->n_tokens / r->n_seqs, 1, i, 0};
        r->tables[i] = (r->next + i) % r->n_pages;
    }
    r->next = (r->next + r->n_seqs) % r->n_pages;
    return (struct sl_batch){.n_tokens = r->n_tokens,
                             .n_spans = r->n_seqs,
                             .spans = r->spans,
                             .block_tables = r->tables,
                             .n_tables = 1};
}

static void conv(struct rig *r)
{
    const struct shape *s = r->s;
    const struct sl_batch b = batch_of(r);
    r->be->vt->short_conv(r->be, &(struct sl_op_short_conv){
                                     .batch = &b,
                                     .x = r->x,
                                     .pre = s->gates ? r->x + s->n_channels : NULL,
                                     .post = s->gates ? r->x + 2 * (int64_t)s->n_channels : NULL,
                                     .ld = (s->gates ? 3 : 1) * (int64_t)s->n_channels,
                                     .w = r->w,
                                     .n_channels = s->n_channels,
                                     .n_taps = s->n_taps,
                                     .silu = !s->gates,
                                     .state = r->view,
                                     .out = r->out});
}

static void delta(struct rig *r)
{
    const struct shape *s = r->s;
    const struct sl_batch b = batch_of(r);
    const int64_t keys = (int64_t)s->n_groups * s->k_dim, n = (int64_t)r->n_tokens * s->n_heads;
    r->be->vt->delta_rule(r->be, &(struct sl_op_delta_rule){.batch = &b,
                                                            .q = r->x,
                                                            .k = r->x + keys,
                                                            .v = r->x + 2 * keys,
                                                            .ld = s->n_channels,
                                                            .decay_in = r->gate,
                                                            .beta_in = r->gate + n,
                                                            .a = r->w,
                                                            .dt_bias = r->w,
                                                            .l2_eps = 1e-6f,
                                                            .scale = 0.1f,
                                                            .beta_scale = 1,
                                                            .n_heads = s->n_heads,
                                                            .n_k_heads = s->n_groups,
                                                            .k_dim = s->k_dim,
                                                            .v_dim = s->v_dim,
                                                            .state = r->view,
                                                            .out = r->out});
}

static void ssm(struct rig *r)
{
    const struct shape *s = r->s;
    const struct sl_batch b = batch_of(r);
    const int64_t rows = (int64_t)s->n_heads * s->v_dim, keys = (int64_t)s->n_groups * s->k_dim;
    r->be->vt->ssm(r->be, &(struct sl_op_ssm){.batch = &b,
                                              .x = r->x,
                                              .ld_x = rows + 2 * keys,
                                              .b = r->x + rows,
                                              .c = r->x + rows + keys,
                                              .ld_bc = rows + 2 * keys,
                                              .dt_in = r->gate,
                                              .ld_dt = s->n_heads,
                                              .a = r->w,
                                              .dt_bias = r->w,
                                              .d = r->w,
                                              .dt_max = 100,
                                              .n_heads = s->n_heads,
                                              .n_groups = s->n_groups,
                                              .head_dim = s->v_dim,
                                              .n_state = s->k_dim,
                                              .by_state = s->by_state,
                                              .state = r->view,
                                              .out = r->out});
}

static void norm(struct rig *r)
{
    const struct shape *s = r->s;
    const int32_t rows = s->n_heads * s->v_dim, n_groups = s->ssm ? s->n_groups : s->n_heads;
    r->be->vt->gated_norm(r->be, &(struct sl_op_gated_norm){.x = r->x,
                                                            .gate = r->gate,
                                                            .ld_gate = rows,
                                                            .w = r->w,
                                                            .shared_w = !s->ssm,
                                                            .gate_first = s->ssm,
                                                            .eps = 1e-6f,
                                                            .n = r->n_tokens,
                                                            .n_groups = n_groups,
                                                            .dim = rows / n_groups,
                                                            .out = r->out,
                                                            .ld_out = rows});
}

/* ---------------------------------------------------------------- the table */

static void numbers(float *p, size_t n, float scale)
{
    struct sl_rng rng = {1, 0};
    for (size_t i = 0; i < n; i++)
        p[i] = scale * ((float)sl_rng_below(&rng, 2001) / 1000 - 1);
}

/* values: of a state; ops: vector operations for each value and token, 0: the share is not told */
static void line(struct rig *r, const char *op, void (*fn)(struct rig *r), size_t values, int ops,
                 double bytes_s, double macs_s)
{
    static const int steps[][2] = {{1, 1}, {8, 8}, {64, 64}, {1, MAX_TOKENS}};
    r->view = (struct sl_state_view){
        .pool = r->pool, .page_bytes = SL_ROUND_UP(values * 4, (size_t)4096), .block_size = BLOCK};
    r->n_pages = (int32_t)(POOL_BYTES / SL_MAX(r->view.page_bytes, (size_t)4096));
    for (size_t i = 0; i < SL_COUNT(steps); i++) {
        r->n_seqs = steps[i][0];
        r->n_tokens = steps[i][1];
        numbers(r->gate, MAX_TOKENS * 8192, 1); /* the delta rule changes its inputs */
        numbers(r->x, MAX_TOKENS * 16384, 1);
        const double s = seconds(fn, r), bytes = 2.0 * 4 * (double)values * r->n_seqs;
        printf("%-13s %-5s %s %3d  %10.1f us", r->s->model, op, i < 3 ? "decode " : "prefill",
               r->n_tokens, 1e6 * s);
        if (i < 3 && ops != 0)
            printf("  %6.1f GB/s %4.0f %%\n", 1e-9 * bytes / s, 100 * bytes / s / bytes_s);
        else if (ops != 0)
            printf("  %6.1f Gop/s %3.0f %%\n", 1e-9 * ops * (double)values * r->n_tokens / s,
                   100 * ops * (double)values * r->n_tokens / s / macs_s);
        else
            printf("  %6.3f us a token\n", 1e6 * s / r->n_tokens);
        fflush(stdout);
    }
}

static void bench(struct rig *r, double bytes_s, double macs_s)
{
    const struct shape *s = r->s;
    const size_t values = (size_t)s->n_heads * (size_t)s->k_dim * (size_t)s->v_dim;
    line(r, "conv", conv, (size_t)s->n_channels * (size_t)(s->n_taps - 1), 0, bytes_s, macs_s);
    if (s->n_heads == 0)
        return;
    if (s->ssm)
        line(r, "ssm", ssm, values, 3, bytes_s, macs_s);
    else
        line(r, "delta", delta, values, 4, bytes_s, macs_s);
    line(r, "norm", norm, 0, 0, bytes_s, macs_s);
}

static float *room(size_t n)
{
    float *p = sl_aligned_alloc(n * sizeof *p);
    if (p == NULL)
        fail("out of memory");
    return p;
}

int main(int argc, char **argv)
{
    struct rig r = {.n_threads = argc > 1 ? atoi(argv[1]) : 1};
    struct sl_cpu_config cfg = {.n_threads = r.n_threads};
    struct sl_error err = {0};
    if (argc > 2 && sl_cpu_isa_parse(argv[2], &cfg.isa, &err) != 0)
        fail(err.msg);
    if (r.n_threads < 1 || sl_cpu_create(&cfg, &r.be, &err) != 0)
        fail("usage: state_bench [threads [isa [model]]]");
    r.x = room(MAX_TOKENS * 16384);
    r.gate = room(MAX_TOKENS * 8192);
    r.out = room(MAX_TOKENS * 8192);
    r.w = room(1 << 17);
    r.pool = (uint8_t *)room(POOL_BYTES / 4);
    numbers(r.x, MAX_TOKENS * 16384, 1);
    numbers(r.w, 1 << 17, -1);
    for (size_t i = 0; i < 1 << 17; i++) /* rates are below 0 */
        r.w[i] = -0.5f * r.w[i] * r.w[i] - 0.01f;
    memset(r.pool, 0, POOL_BYTES);
    const double bytes_s = 2.0 * POOL_BYTES / seconds(scale_run, &r);
    const double macs_s = (double)r.n_threads * GEMM_CALLS * GEMM_TOKENS * SL_CPU_ROWS * SL_CPU_K /
                          seconds(gemm_run, &r);
    printf("%s, %d thread(s): %.1f GB/s read and written in place, %.1f G multiply-adds/s\n",
           r.be->vt->isa(r.be), r.n_threads, 1e-9 * bytes_s, 1e-9 * macs_s);
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        r.s = &shapes[i];
        if (argc <= 3 || strcmp(argv[3], r.s->model) == 0)
            bench(&r, bytes_s, macs_s);
    }
    r.be->vt->destroy(r.be);
    return 0;
}
