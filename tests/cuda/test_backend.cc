/* SPDX-License-Identifier: MIT
 * The CUDA backend without its operations: device, memory, staging, steps, recordings, errors.
 *
 * The operations are small kernels of this file, which mix everything a step tells the device into
 * one number per token, so that a wrong pointer, page, padding row or order changes an id. Runs in
 * the simulator and on a device, where what only the simulator can make fail is left out.
 */
#include "cuda/step/step.h"

#include "base/limits.h"
#include "cuda/attention/attention.h"
#include "cuda/cuda.h"
#include "cuda/gemm/weight.h"
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"
#include "cuda/sample/sample.h"

#ifdef SL_CUDA_SIM
#include "sim.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int n_passed, n_failed;

#define CHECK(cond)                                                              \
    do {                                                                         \
        if (cond) {                                                              \
            n_passed++;                                                          \
        } else {                                                                 \
            n_failed++;                                                          \
            printf("FAIL %s:%d: %s: %s\n", __FILE__, __LINE__, __func__, #cond); \
        }                                                                        \
    } while (0)

/* ------------------------------------------------------------------ a model of three kernels */

#define N_PAGES    40 /* and the scratch page behind them */
#define BLOCK      16
#define N_VOCAB    50000
#define MAX_TOKENS 300
#define MAX_SEQS   270
#define MAX_TABLE  2000

struct param {
    uint32_t salt, more;
    const uint32_t *word; /* in the step's extra bytes, or NULL */
};

struct result {
    uint32_t hash, salt;
};

struct model {
    struct sl_cuda *cu;
    uint32_t *x;      /* device [MAX_TOKENS] */
    uint32_t *wanted; /* device [MAX_SEQS]: what a step in two parts hands on */
    uint32_t *pages;  /* device [N_PAGES + 1, BLOCK]: a number per position */
    int n_forwards;
};

__host__ __device__ static inline uint32_t mix(uint32_t h, uint32_t v)
{
    h = (h ^ v) * 0x9e3779b1u;
    return h ^ (h >> 15);
}

/* One thread per token: stores to the token's page, as attention's caller does. */
__global__ void store_kernel(int32_t n_spans, const struct sl_span *spans, const int32_t *tokens,
                             const int32_t *positions, const int32_t *tables, const int32_t *ids,
                             uint32_t *pages, uint32_t *x)
{
    sl_grid_wait();
    int32_t i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n_spans)
        return;
    struct sl_span s = spans[i];
    for (int32_t t = s.first; t < s.first + s.n; t++) {
        int32_t id = tokens[t] < 0 ? ids[-1 - tokens[t]] : tokens[t];
        int32_t pos = positions[t];
        uint32_t h = mix(mix(17, static_cast<uint32_t>(id)), static_cast<uint32_t>(pos));
        pages[tables[s.table_idx + pos / BLOCK] * BLOCK + pos % BLOCK] = h;
        x[t] = h;
    }
    sl_grid_launch_dependents();
}

/* Every token reads what its sequence stored up to its position, by the second group's table, which
 * names the same pages. */
__global__ void read_kernel(int32_t n_spans, const struct sl_span *spans, const int32_t *tables,
                            const uint32_t *pages, uint32_t *x)
{
    sl_grid_wait();
    int32_t i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n_spans)
        return;
    struct sl_span s = spans[i];
    uint32_t h = 0;
    for (int32_t p = 0; p < s.pos + s.n; p++) {
        h = mix(h, pages[tables[s.table_idx + p / BLOCK] * BLOCK + p % BLOCK]);
        if (p >= s.pos)
            x[s.first + p - s.pos] = h;
    }
    sl_grid_launch_dependents();
}

__global__ void choose_kernel(int32_t n, const int32_t *rows, const uint32_t *x,
                              const struct param *params, uint32_t variant, int32_t *ids,
                              struct result *results)
{
    sl_grid_wait();
    int32_t i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n)
        return;
    const uint32_t salt = params != NULL ? params[i].salt : 0;
    uint32_t h = mix(mix(x[rows != NULL ? rows[i] : i], salt), variant);
    if (params != NULL && params[i].word != NULL)
        h = mix(h, *params[i].word);
    ids[i] = static_cast<int32_t>(h % N_VOCAB);
    if (params == NULL)
        return;
    results[i] = {h, params[i].more};
}

__global__ void gather_kernel(int32_t n, const int32_t *rows, const uint32_t *x, uint32_t *out)
{
    sl_grid_wait();
    int32_t i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        out[i] = x[rows[i]];
    sl_grid_launch_dependents();
}

/* Counts the steps that ran. */
__global__ void plan_kernel(uint32_t *counter)
{
    sl_grid_wait();
    if (threadIdx.x == 0)
        *counter += 1;
}

static void forward(void *arg, const struct sl_step *st)
{
    struct model *m = static_cast<struct model *>(arg);
    const struct sl_batch *b = &st->batch;
    dim3 block(64), grid(static_cast<unsigned>(SL_CEIL_DIV(b->n_spans, 64)));
    m->n_forwards++;
    if (st->part != SL_STEP_CHOICE) {
        sl_launch(m->cu, store_kernel, grid, block, 0, b->n_spans, b->spans, b->tokens,
                  b->positions, b->block_tables, m->cu->ids_prev, m->pages, m->x);
        sl_launch(m->cu, read_kernel, grid, block, 0, b->n_spans, b->spans,
                  sl_batch_tables(b, st->drafts ? 0 : 1), m->pages, m->x);
    }
    grid.x = static_cast<unsigned>(SL_CEIL_DIV(b->n_logits, 64));
    if (st->part == SL_STEP_FORWARD)
        return sl_launch(m->cu, gather_kernel, grid, block, 0, b->n_logits, b->logit_rows, m->x,
                         m->wanted);
    bool whole = st->part != SL_STEP_CHOICE;
    sl_launch(m->cu, choose_kernel, grid, block, 0, b->n_logits, whole ? b->logit_rows : NULL,
              whole ? m->x : m->wanted, static_cast<const struct param *>(st->params), st->variant,
              st->ids, static_cast<struct result *>(st->results));
}

/* What the other files of the backend would define. */
void sl_cuda_comm_check(struct sl_cuda *)
{
}
#define STAGE(name, ...)                                    \
    void sl_cuda_pipe_##name(struct sl_cuda *, __VA_ARGS__) \
    {                                                       \
    }
STAGE(await, const struct sl_batch *)
STAGE(take, int32_t)
STAGE(send, int32_t)
STAGE(chosen, int32_t, int32_t)
extern "C" {
bool sl_cuda_attention_supports(int32_t head_dim, int32_t group)
{
    return head_dim == 64 && group == 2;
}
bool sl_cuda_attention_pages(enum sl_dtype dtype, int32_t)
{
    return dtype == SL_DTYPE_BF16;
}
bool sl_cuda_latent_supports(int32_t head_dim, int32_t v_dim, int32_t n_heads, enum sl_dtype pages)
{
    return head_dim == 64 && v_dim == 48 && n_heads == 4 && pages == SL_DTYPE_BF16;
}
bool sl_cuda_rows_support(int32_t, enum sl_dtype)
{
    return false;
}
size_t sl_cuda_sample_scratch(int32_t, int32_t)
{
    return 0;
}
void sl_cuda_share_ids(struct sl_backend *, struct sl_rank *, int32_t)
{
}
void sl_cuda_best_ids(struct sl_backend *, const struct sl_best_ids *)
{
}
void sl_cuda_sample(struct sl_backend *, const struct sl_op_sample *)
{
}
#define SL_OP(name)                                                          \
    void sl_cuda_##name(struct sl_backend *be, const struct sl_op_##name *a) \
    {                                                                        \
        (void)be;                                                            \
        (void)a;                                                             \
    }
#include "ops/ops.def"
#undef SL_OP
int sl_cuda_weight_create(struct sl_backend *, enum sl_weight_use, enum sl_dtype, int64_t, int64_t,
                          const void *, const struct sl_scales *, struct sl_weight *,
                          struct sl_error *)
{
    return SL_EUNSUPPORTED;
}
uint64_t sl_cuda_weight_bytes(struct sl_backend *, enum sl_weight_use, enum sl_dtype, int64_t,
                              int64_t)
{
    return 0;
}
void sl_cuda_weight_destroy(struct sl_backend *, struct sl_weight *)
{
}
int sl_cuda_stack_create(struct sl_backend *, const struct sl_weight *, int32_t, struct sl_stack *,
                         struct sl_error *)
{
    return SL_EUNSUPPORTED;
}
void sl_cuda_stack_destroy(struct sl_backend *, struct sl_stack *)
{
}
size_t sl_cuda_delta_bytes(int32_t, int32_t, int32_t, bool)
{
    return 0;
}
size_t sl_cuda_experts_bytes(struct sl_backend *, int32_t, int32_t, int32_t, int64_t, int64_t)
{
    return 0;
}
const char *sl_cuda_weight_route(struct sl_backend *, const struct sl_weight *)
{
    return "none";
}
size_t sl_cuda_attention_workspace(const struct sl_cuda *, const struct sl_cuda_attention_limits *l)
{
    return static_cast<size_t>(l->n_spans) * 100;
}
static uint64_t planned_sizes; /* of the last step that was enqueued, not replayed */
void sl_cuda_attention_plan(struct sl_cuda *cu, const struct sl_batch *batch, int32_t n_heads,
                            int32_t n_kv_heads, int32_t head_dim, bool whole)
{
    planned_sizes = batch->span_sizes;
    CHECK(!whole && n_heads == 4 && n_kv_heads == 2 && head_dim == 64 && batch->n_tokens > 0);
    sl_launch(cu, plan_kernel, dim3(1), dim3(32), 0, reinterpret_cast<uint32_t *>(cu->workspace));
}
}

/* ------------------------------------------------------------------ helpers */

static struct sl_step_limits limits(void)
{
    struct sl_step_limits l = {};
    l.max_tokens = MAX_TOKENS;
    l.max_spans = MAX_SEQS;
    l.max_logits = MAX_SEQS;
    l.max_table = MAX_TABLE;
    l.block_size = BLOCK;
    l.n_groups = 2;
    l.scratch_pages[0] = l.scratch_pages[1] = N_PAGES;
    l.max_context = N_PAGES * BLOCK;
    l.n_kinds = 1;
    l.heads[0] = {4, 2, 64, 64, 0, 0};
    l.param_bytes = sizeof(struct param);
    l.result_bytes = sizeof(struct result);
    l.extra_bytes = MAX_SEQS * (sizeof(struct param) + sizeof(uint32_t));
    return l;
}

static struct sl_backend *create(int n_copy_threads)
{
    struct sl_cuda_config cfg = {0, n_copy_threads, false};
    struct sl_backend *be = NULL;
    struct sl_error err = {};
    if (sl_cuda_create(&cfg, &be, &err) != 0) {
        printf("cannot go on: %s\n", err.msg);
        exit(1);
    }
    return be;
}

static void model_init(struct model *m, struct sl_backend *be)
{
    *m = {};
    m->cu = sl_cuda(be);
    m->x = static_cast<uint32_t *>(be->vt->alloc(be, MAX_TOKENS * sizeof *m->x));
    m->pages = static_cast<uint32_t *>(be->vt->alloc(be, (N_PAGES + 1) * BLOCK * sizeof *m->pages));
    m->wanted = static_cast<uint32_t *>(be->vt->alloc(be, MAX_SEQS * sizeof *m->wanted));
    CHECK(m->x != NULL && m->pages != NULL && m->wanted != NULL);
}

static void model_deinit(struct model *m)
{
    struct sl_backend *be = &m->cu->base;
    be->vt->device->forget(be, m);
    be->vt->free(be, m->pages, (N_PAGES + 1) * BLOCK * sizeof *m->pages);
    be->vt->free(be, m->wanted, MAX_SEQS * sizeof *m->wanted);
    be->vt->free(be, m->x, MAX_TOKENS * sizeof *m->x);
}

/* A batch under construction, and what the device is to answer. */
struct work {
    int32_t tokens[MAX_TOKENS], positions[MAX_TOKENS], rows[MAX_SEQS], tables[2][MAX_TABLE];
    struct sl_span spans[MAX_SEQS];
    struct param params[MAX_SEQS], params_pad;
    uint32_t words[MAX_SEQS];
    struct sl_step step;
    int32_t n_table;
};

struct world { /* the model on the host */
    uint32_t pages[N_PAGES][BLOCK];
    int32_t ids[MAX_SEQS];
    struct result results[MAX_SEQS];
};

static void work_init(struct work *w)
{
    memset(w, 0, sizeof *w);
    w->step.batch.tokens = w->tokens;
    w->step.batch.positions = w->positions;
    w->step.batch.spans = w->spans;
    w->step.batch.block_tables = w->tables[0];
    w->step.batch.n_tables = 2;
    w->step.batch.table_stride = MAX_TABLE;
    w->step.batch.logit_rows = w->rows;
    w->step.params = w->params;
    w->params_pad = {4242, 0, NULL};
    w->step.params_pad = &w->params_pad;
    w->step.want_results = true;
}

/* Every second row reads a word of the extra bytes. */
static void add_words(struct work *w, struct sl_backend *be, uint32_t seed)
{
    const uint32_t *dev = static_cast<const uint32_t *>(be->vt->device->extra(be));
    int32_t n = w->step.batch.n_logits;
    for (int32_t i = 0; i < n; i++) {
        w->words[i] = seed + static_cast<uint32_t>(i);
        if (i % 2 == 0)
            w->params[i].word = dev + i;
    }
    w->step.extra = w->words;
    w->step.extra_bytes = static_cast<uint64_t>(n) * sizeof *dev;
}

/* n tokens of a sequence from position pos on, whose pages are pages[]. */
static void add_span(struct work *w, int32_t n, int32_t pos, const int32_t *pages,
                     const int32_t *tokens, bool wants_row)
{
    struct sl_batch *b = &w->step.batch;
    int32_t n_pages = SL_CEIL_DIV(pos + n, BLOCK), i = b->n_spans++;
    w->spans[i] = {b->n_tokens, n, pos, w->n_table, 0};
    for (int32_t *table : w->tables)
        memcpy(table + w->n_table, pages, static_cast<size_t>(n_pages) * sizeof *pages);
    w->n_table += n_pages;
    for (int32_t t = 0; t < n; t++, b->n_tokens++) {
        w->tokens[b->n_tokens] = tokens[t];
        w->positions[b->n_tokens] = pos + t;
    }
    if (wants_row) {
        w->params[b->n_logits] = {static_cast<uint32_t>(i * 77 + pos), static_cast<uint32_t>(i),
                                  NULL};
        w->rows[b->n_logits++] = b->n_tokens - 1;
    }
}

static void run_on_host(struct world *h, const struct sl_step *st)
{
    const struct sl_batch *b = &st->batch;
    const struct param *params = static_cast<const struct param *>(st->params);
    static uint32_t x[MAX_TOKENS];
    for (int32_t i = 0; i < b->n_spans; i++) {
        struct sl_span s = b->spans[i];
        for (int32_t t = s.first; t < s.first + s.n; t++) {
            int32_t id = b->tokens[t] < 0 ? h->ids[-1 - b->tokens[t]] : b->tokens[t];
            int32_t pos = b->positions[t];
            h->pages[b->block_tables[s.table_idx + pos / BLOCK]][pos % BLOCK] =
                mix(mix(17, static_cast<uint32_t>(id)), static_cast<uint32_t>(pos));
        }
    }
    for (int32_t i = 0; i < b->n_spans; i++) {
        struct sl_span s = b->spans[i];
        uint32_t v = 0;
        for (int32_t p = 0; p < s.pos + s.n; p++) {
            v = mix(v, h->pages[b->block_tables[s.table_idx + p / BLOCK]][p % BLOCK]);
            if (p >= s.pos)
                x[s.first + p - s.pos] = v;
        }
    }
    for (int32_t i = 0; i < b->n_logits; i++) {
        uint32_t v = mix(mix(x[b->logit_rows[i]], params[i].salt), st->variant);
        if (params[i].word != NULL)
            v = mix(v, static_cast<const uint32_t *>(st->extra)[i]);
        h->ids[i] = static_cast<int32_t>(v % N_VOCAB);
        h->results[i] = {v, params[i].more};
    }
}

/* Runs the step on both sides and compares ids and results. */
static bool run_both(struct model *m, struct world *h, const struct sl_step *st)
{
    struct sl_backend *be = &m->cu->base;
    struct sl_error err = {};
    uint64_t ticket = 0;
    const int32_t *ids = NULL;
    const void *results = NULL;
    if (be->vt->device->step(be, st, forward, m, &ticket, &err) != 0 ||
        be->vt->device->wait(be, ticket, &ids, &results, &err) != 0) {
        printf("step failed: %s\n", err.msg);
        return false;
    }
    run_on_host(h, st);
    size_t n = static_cast<size_t>(st->batch.n_logits);
    return memcmp(ids, h->ids, n * sizeof *ids) == 0 &&
           memcmp(results, h->results, n * sizeof(struct result)) == 0;
}

/* n sequences of one token each at position pos, sharing pages as the test likes. */
static void decode_work(struct work *w, int32_t n, int32_t pos, bool chained)
{
    work_init(w);
    for (int32_t i = 0; i < n; i++) {
        /* a page per sequence while they last; pos stays below BLOCK */
        int32_t page = i % N_PAGES, token = chained ? -1 - i : 1000 + i * 3 + pos;
        add_span(w, 1, pos, &page, &token, true);
    }
}

/* ------------------------------------------------------------------ device */

#ifdef SL_CUDA_SIM
static void test_device(void)
{
    struct sl_cuda_config cfg = {0, 1, false};
    struct sl_backend *be = NULL;
    struct sl_error err = {};
    sl_sim_set_devices(0);
    CHECK(sl_cuda_count() == 0 && sl_cuda_find() == -1);
    CHECK(sl_cuda_create(&cfg, &be, &err) == SL_EUNSUPPORTED && be == NULL);
    CHECK(strncmp(err.msg, "cuda:0: ", 8) == 0);
    sl_sim_set_devices(1);
    CHECK(sl_cuda_count() == 1 && sl_cuda_find() == 0);
    for (cfg.device = -1; cfg.device <= 1; cfg.device += 2) {
        CHECK(sl_cuda_create(&cfg, &be, &err) == SL_EUNSUPPORTED && be == NULL);
        CHECK(strstr(err.msg, "1 CUDA device") != NULL);
    }
    be = create(0);
    CHECK(strcmp(be->vt->name, "cuda") == 0 && strcmp(be->vt->isa(be), "sm_90a") == 0);
    CHECK(be->vt->act_dtype == SL_DTYPE_BF16 && be->vt->n_threads(be) == 1);
    const struct sl_heads heads[] = {{4, 2, 64, 64, 0, 0}, {4, 3, 64, 64, 0, 0},
                                     {4, 0, 64, 64, 0, 0}, {4, 4, 64, 64, 0, 0},
                                     {4, 2, 64, 32, 0, 0}, {4, 1, 64, 48, 1, 0}};
    for (int i = 0; i < 6; i++) {
        CHECK(be->vt->device->supports(be, &heads[i], SL_DTYPE_BF16) == (i % 5 == 0));
        CHECK(!be->vt->device->supports(be, &heads[i], SL_DTYPE_F16));
    }
    struct sl_device_memory before, after;
    CHECK(be->vt->device->memory(be, &before, &err) == 0 && before.own_bytes == 0);
    void *p = be->vt->alloc(be, 1 << 20);
    CHECK(be->vt->device->memory(be, &after, &err) == 0 && after.own_bytes == 1 << 20);
    CHECK(before.total_bytes == after.total_bytes &&
          after.free_bytes + (1 << 20) <= before.free_bytes);
    be->vt->free(be, p, 1 << 20);
    be->vt->destroy(be);
}

/* The second of two devices, with a caller whose current device is the first. */
static void test_second_device(void)
{
    struct sl_cuda_config cfg = {1, 1, false};
    struct sl_backend *be = NULL;
    struct sl_step_limits lim = limits();
    struct sl_error err = {};
    struct model m;
    static struct work w;
    static struct world h;
    int current = -1;
    uint8_t byte = 1;
    memset(&h, 0, sizeof h);
    sl_sim_set_devices(2);
    CHECK(sl_cuda_create(&cfg, &be, &err) == 0);
    CHECK(cudaSetDevice(0) == cudaSuccess && be->vt->device->steps_init(be, &lim, &err) == 0);
    CHECK(cudaGetDevice(&current) == cudaSuccess && current == 1);
    cudaSetDevice(0);
    model_init(&m, be);
    CHECK(cudaGetDevice(&current) == cudaSuccess && current == 1);
    cudaSetDevice(0);
    be->vt->upload(be, m.x, &byte, 1);
    CHECK(cudaGetDevice(&current) == cudaSuccess && current == 1);
    decode_work(&w, 3, 0, false);
    cudaSetDevice(0);
    CHECK(run_both(&m, &h, &w.step));
    CHECK(cudaGetDevice(&current) == cudaSuccess && current == 1);
    cudaSetDevice(0);
    model_deinit(&m);
    CHECK(cudaGetDevice(&current) == cudaSuccess && current == 1);
    be->vt->destroy(be);
    sl_sim_set_devices(1);
    cudaSetDevice(0);
}

/* Every allocation of create, steps and staging fails once: a message with numbers, no leak. */
static void fail_each(void (*fail)(int nth), const char *word)
{
    struct sl_step_limits lim = limits();
    struct sl_error err;
    int nth = 1, rc = -1;
    for (; nth < 50 && rc != 0; nth++) {
        err = {};
        struct sl_backend *be = create(1);
        uint8_t byte = 5, *dst = static_cast<uint8_t *>(be->vt->alloc(be, 1));
        fail(nth);
        rc = be->vt->device->steps_init(be, &lim, &err);
        be->vt->upload(be, dst, &byte, 1);
        if (rc == 0)
            rc = be->vt->device->load_end(be, &err);
        fail(0);
        CHECK(rc == 0 || (rc == SL_ENOMEM && strstr(err.msg, word) != NULL));
        /* and after the failure all is well */
        if (rc != 0) {
            be->vt->device->load_end(be, &err);
            CHECK(sl_cuda(be)->steps != NULL || be->vt->device->steps_init(be, &lim, &err) == 0);
        }
        be->vt->free(be, dst, 1);
        be->vt->destroy(be);
        CHECK(sl_sim_counts().bytes == 0 && sl_sim_counts().host_bytes == 0);
    }
    CHECK(rc == 0 && nth >= 3);
}

static void *no_memory(size_t n)
{
    (void)n;
    return NULL;
}

static void test_out_of_memory(void)
{
    fail_each(sl_sim_fail_malloc, "wanted");
    fail_each(sl_sim_fail_malloc_host, "");
    struct sl_cuda_config cfg = {0, 1, false};
    struct sl_backend *be = NULL;
    struct sl_error err = {};
    struct sl_sys poor = sl_sys_real;
    poor.alloc = no_memory;
    sl_sys = &poor;
    CHECK(sl_cuda_create(&cfg, &be, &err) == SL_ENOMEM && be == NULL);
    sl_sys = &sl_sys_real;
    be = create(1);
    CHECK(be->vt->alloc(be, static_cast<size_t>(1) << 60) == NULL);
    CHECK(sl_cuda_report(sl_cuda(be), &err) == 0); /* a refusal is no error of the device */
    CHECK(sl_cuda_no_memory(sl_cuda(be), 1 << 20, "a test", &err) == SL_ENOMEM);
    CHECK(strstr(err.msg, "out of memory for a test: wanted 1.0 MB, free ") != NULL);
    be->vt->destroy(be);
}
#endif

/* ------------------------------------------------------------------ staging */

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static bool stage_and_compare(struct sl_backend *be, uint8_t *dev, const uint8_t *host,
                              uint8_t *back, size_t dev_at, size_t host_at, size_t n)
{
    struct sl_error err = {};
    be->vt->upload(be, dev + dev_at, host + host_at, n);
    return be->vt->device->download(be, back, dev + dev_at, n, &err) == 0 &&
           memcmp(back, host + host_at, n) == 0;
}

static void test_stage(int n_threads)
{
    const size_t n_max = (static_cast<size_t>(50) << 20) + 4321; /* more than the ring holds */
    struct sl_backend *be = create(n_threads);
    struct sl_error err = {};
    uint8_t *host = static_cast<uint8_t *>(malloc(n_max)),
            *back = static_cast<uint8_t *>(malloc(n_max));
    uint8_t *dev = static_cast<uint8_t *>(be->vt->alloc(be, n_max));
    uint32_t state = 1;
    for (size_t i = 0; i < n_max; i++)
        host[i] = static_cast<uint8_t>(next_random(&state));
    const size_t sizes[] = {1,    2,      3,      15,     16,      17,      255,     4095,
                            4097, 262143, 262144, 262145, 2097151, 2097152, 2097153, 5000001};
    for (size_t i = 0; i < SL_COUNT(sizes); i++)
        CHECK(stage_and_compare(be, dev, host, back, i * 7 % 19, i * 5 % 23, sizes[i]));
    CHECK(stage_and_compare(be, dev, host, back, 0, 0, n_max)); /* the ring goes round */
    uint64_t ring = sl_cuda(be)->counts.host_allocs;
    be->vt->upload(be, dev, host, 0);
    /* many in flight at once, the source overwritten as soon as upload returns */
    size_t at = 0;
    for (int i = 0; i < 40; i++) {
        size_t n = 1 + next_random(&state) % 600000;
        if (at + n > n_max)
            break;
        memcpy(back, host + at, n);
        be->vt->upload(be, dev + at, back, n);
        memset(back, 0xee, n);
        at += n;
    }
    CHECK(be->vt->device->download(be, back, dev, at, &err) == 0 && memcmp(back, host, at) == 0);
    CHECK(sl_cuda(be)->counts.host_allocs == ring);
    CHECK(be->vt->device->load_end(be, &err) == 0);
    CHECK(stage_and_compare(be, dev, host, back, 3, 5, 5000001)); /* without threads now */
    CHECK(sl_cuda(be)->counts.host_allocs == ring);
    be->vt->free(be, dev, n_max);
    be->vt->destroy(be);
    free(host);
    free(back);
}

__global__ void add_kernel(uint32_t *sum, const uint32_t *from, int n)
{
    sl_grid_wait();
    int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        sum[i] += from[i];
}

/* A copy lies between the kernels enqueued before and after it: one pack buffer serves them all. */
static void test_stage_order(void)
{
    const int n = 1 << 20;
    const size_t n_bytes = n * sizeof(uint32_t);
    struct sl_backend *be = create(3);
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_error err = {};
    uint32_t *sum = static_cast<uint32_t *>(be->vt->alloc(be, n_bytes));
    uint32_t *host = static_cast<uint32_t *>(malloc(n_bytes));
    CHECK(sl_cuda_pack_buffer(cu, 100) != NULL && cu->pack_bytes == 100);
    for (uint32_t round = 1; round <= 4; round++) {
        uint32_t *tmp = static_cast<uint32_t *>(sl_cuda_pack_buffer(cu, n_bytes));
        for (int i = 0; i < n; i++)
            host[i] = round * static_cast<uint32_t>(i);
        sl_cuda_stage(cu, tmp, host, n_bytes);
        sl_launch(cu, add_kernel, dim3(n / 256), dim3(256), 0, sum, tmp, n);
    }
    uint64_t allocs = cu->counts.device_allocs;
    CHECK(sl_cuda_pack_buffer(cu, n_bytes / 2) == cu->pack_buffer && cu->pack_bytes == n_bytes);
    CHECK(cu->counts.device_allocs == allocs);
    CHECK(be->vt->device->download(be, host, sum, n_bytes, &err) == 0);
    bool same = true;
    for (int i = 0; i < n; i++)
        same = same && host[i] == 10 * static_cast<uint32_t>(i);
    CHECK(same);
    CHECK(be->vt->device->load_end(be, &err) == 0 && cu->pack_buffer == NULL);
    CHECK(cu->own_bytes == n_bytes);
    be->vt->free(be, sum, n_bytes);
    be->vt->destroy(be);
    free(host);
}

/* ------------------------------------------------------------------ steps */

static void test_rungs(void)
{
    const int32_t want[][2] = {{1, 1},     {2, 2},     {3, 4},     {4, 4},    {5, 8},
                               {8, 8},     {9, 16},    {16, 16},   {17, 24},  {250, 256},
                               {256, 256}, {257, 288}, {288, 288}, {289, 320}};
    for (size_t i = 0; i < SL_COUNT(want); i++)
        CHECK(sl_cuda_rung(want[i][0], 1024) == want[i][1]);
    int32_t n_rungs = 0;
    for (int32_t n = 1, last = 0; n <= SL_MAX_SEQS; n++) {
        int32_t rung = sl_cuda_rung(n, 1001);
        CHECK(n > 1001 || (rung >= n && rung <= 1001 && rung >= last));
        n_rungs += rung != last;
        last = rung;
    }
    CHECK(n_rungs < SL_CUDA_GRAPHS / 2); /* two variants of every size fit */
    CHECK(sl_cuda_rung(9, 13) == 13);
}

static void test_ragged(void)
{
    struct sl_backend *be = create(1);
    struct sl_step_limits lim = limits();
    struct sl_error err = {};
    struct model m;
    static struct work w;
    static struct world h;
    memset(&h, 0, sizeof h);
    CHECK(be->vt->device->steps_init(be, &lim, &err) == 0);
    model_init(&m, be);
    int32_t tokens[100], a[] = {3, 9, 4, 31, 0, 12, 13}, b[] = {7, 8};
    for (int32_t i = 0; i < 100; i++)
        tokens[i] = i * 31 % 777;
    work_init(&w); /* a chunk without rows */
    add_span(&w, 33, 0, a, tokens, false);
    CHECK(run_both(&m, &h, &w.step));
    work_init(&w); /* its end beside another prompt */
    add_span(&w, 60, 33, a, tokens + 33, true);
    add_span(&w, 20, 0, b, tokens, true);
    CHECK(run_both(&m, &h, &w.step));
    work_init(&w); /* both decode, from ids only the device knows */
    int32_t prev[] = {-1, -2};
    add_span(&w, 1, 93, a, prev, true);
    add_span(&w, 1, 20, b, prev + 1, true);
    CHECK(run_both(&m, &h, &w.step));
    work_init(&w); /* a decode beside a chunk, order changed */
    add_span(&w, 1, 21, b, prev + 1, true);
    add_span(&w, 9, 94, a, tokens, false);
    CHECK(run_both(&m, &h, &w.step));
    CHECK(sl_cuda(be)->counts.eager == 4 && sl_cuda(be)->counts.recorded == 1);
    model_deinit(&m);
    be->vt->destroy(be);
}

/* What padding rows chose, which nobody reads: token 0 at position 0 with the parameters given for
 * padding. Anything else would mean that a row is left over from an earlier step. */
static bool check_padding(struct model *m, const struct sl_step *st, int32_t rung)
{
    struct sl_backend *be = &m->cu->base;
    struct sl_error err = {};
    const struct param *pad = static_cast<const struct param *>(st->params_pad);
    int32_t n = st->batch.n_logits;
    static int32_t ids[MAX_SEQS];
    uint32_t h = mix(mix(mix(0, mix(mix(17, 0), 0)), pad->salt), st->variant);
    if (be->vt->device->download(be, ids, m->cu->ids, sizeof ids, &err) != 0)
        return false;
    while (n < rung && ids[n] == static_cast<int32_t>(h % N_VOCAB))
        n++;
    return n == rung;
}

/* Decode steps of every size: eager, recorded and replayed give what the host gives, padding
 * touches the scratch page alone, and after the first of a size nothing is launched by hand. */
static void test_decode(void)
{
    struct sl_backend *be = create(1);
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_step_limits lim = limits();
    struct sl_error err = {};
    struct model m;
    static struct work w;
    static struct world h;
    static uint32_t pages[N_PAGES + 1][BLOCK];
    const int32_t sizes[] = {1, 2, 4, 3, 8, 5, 7, 16, 9, 25, 40, 33};
    memset(&h, 0, sizeof h);
    CHECK(be->vt->device->steps_init(be, &lim, &err) == 0);
    model_init(&m, be);
    uint64_t n_sizes = 0;
    for (size_t i = 0; i < SL_COUNT(sizes); i++) {
        for (int32_t pos = 0; pos < 5; pos++) {
            int32_t rung = sl_cuda_rung(sizes[i], 1024);
            uint64_t before = cu->counts.recorded;
            decode_work(&w, sizes[i], pos, pos > 0);
            if (pos % 2 == 1)
                add_words(&w, be, static_cast<uint32_t>(pos * 1000));
            CHECK(run_both(&m, &h, &w.step));
            if (cu->counts.recorded != before) {
                CHECK(pos == 0);
                n_sizes++;
            }
            CHECK(cu->steps->graph[n_sizes - 1].n_spans == rung);
            CHECK(check_padding(&m, &w.step, rung));
        }
    }
    CHECK(cu->counts.recorded == n_sizes && cu->counts.eager == n_sizes && n_sizes == 7);
    CHECK(cu->counts.replayed == SL_COUNT(sizes) * 5 - n_sizes);
    CHECK(m.n_forwards == static_cast<int>(2 * n_sizes));
    CHECK(cu->counts.late_waits == 0 && cu->counts.record_failures == 0);
    CHECK(be->vt->device->download(be, pages, m.pages, sizeof pages, &err) == 0);
    CHECK(memcmp(pages, h.pages, sizeof h.pages) == 0);
    CHECK(pages[N_PAGES][0] == mix(mix(17, 0), 0) && pages[N_PAGES][1] == 0);
    model_deinit(&m);
    be->vt->destroy(be);
}

/* n sequences of `width` tokens each from position pos on, all of which choose. */
static void draft_work(struct work *w, int32_t n, int32_t width, int32_t pos)
{
    struct sl_batch *b = &w->step.batch;
    int32_t tokens[BLOCK];
    work_init(w);
    for (int32_t i = 0; i < n; i++) {
        int32_t page = i % N_PAGES, first = b->n_tokens;
        for (int32_t t = 0; t < width; t++)
            tokens[t] = 100 + i * 31 + t * 7 + pos;
        add_span(w, width, pos, &page, tokens, false);
        for (int32_t t = 0; t < width; t++) {
            w->params[b->n_logits] = {static_cast<uint32_t>(i * 77 + t), static_cast<uint32_t>(t),
                                      NULL};
            w->rows[b->n_logits++] = first + t;
        }
    }
}

/* Steps in which every sequence has the same number of drafts are recorded by sequences and width,
 * and padded with spans of that width. Wider ones, and those of several widths, run eagerly. */
static void test_drafts(void)
{
    struct sl_backend *be = create(1);
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_step_limits lim = limits();
    struct sl_error err = {};
    struct model m;
    static struct work w;
    static struct world h;
    static uint32_t pages[N_PAGES + 1][BLOCK];
    const int32_t widths[] = {3, 1, 5, 3}, sizes[] = {1, 3, 4, 5, 7, 2};
    lim.max_width = 5;
    memset(&h, 0, sizeof h);
    CHECK(be->vt->device->steps_init(be, &lim, &err) == 0);
    model_init(&m, be);
    for (size_t k = 0; k < SL_COUNT(widths); k++)
        for (size_t i = 0; i < SL_COUNT(sizes); i++)
            for (int32_t pos = 0; pos < 3; pos++) {
                uint64_t before = cu->counts.recorded;
                draft_work(&w, sizes[i], widths[k], pos);
                CHECK(run_both(&m, &h, &w.step));
                const struct sl_cuda_graph *g = &cu->steps->graph[cu->steps->n_graphs - 1];
                if (cu->counts.recorded != before)
                    CHECK(g->n_spans == sl_cuda_rung(sizes[i], 100) && g->width == widths[k] &&
                          planned_sizes == 1u << widths[k]);
            }
    CHECK(cu->counts.recorded == 3 * 4 && cu->counts.eager == 3 * 4); /* rungs 1, 2, 4, 8 */
    CHECK(cu->counts.replayed == 4 * SL_COUNT(sizes) * 3 - 3 * 4);
    CHECK(be->vt->device->download(be, pages, m.pages, sizeof pages, &err) == 0);
    CHECK(memcmp(pages, h.pages, sizeof h.pages) == 0);
    CHECK(pages[N_PAGES][4] != 0 && pages[N_PAGES][5] == 0);
    draft_work(&w, 2, 6, 0);
    CHECK(run_both(&m, &h, &w.step));
    draft_work(&w, 2, 3, 0);
    int32_t page = 9, token = 5;
    add_span(&w, 1, 0, &page, &token, true);
    CHECK(run_both(&m, &h, &w.step) && planned_sizes == (1u << 3 | 1u << 1));
    draft_work(&w, N_PAGES, 5, 0);
    CHECK(run_both(&m, &h, &w.step));
    CHECK(cu->counts.eager == 3 * 4 + 3 && cu->counts.recorded == 3 * 4 + 1);
    model_deinit(&m);
    be->vt->destroy(be);
}

#include "cuda/step_passes.h" /* with what is defined above */

/* The largest step of the limits; without a scratch page nothing is padded or recorded. */
static void test_limits(void)
{
    struct sl_error err = {};
    struct model m;
    static struct work w;
    static struct world h;
    for (int pass = 0; pass < 2; pass++) {
        struct sl_backend *be = create(1);
        struct sl_step_limits lim = limits();
        lim.max_spans = lim.max_logits = 21;
        lim.max_table = 21;
        lim.scratch_pages[0] = pass == 0 ? N_PAGES : 0;
        memset(&h, 0, sizeof h);
        CHECK(be->vt->device->steps_init(be, &lim, &err) == 0);
        model_init(&m, be);
        CHECK(sl_cuda(be)->own_bytes >= be->vt->device->steps_bytes(be, &lim));
        for (int32_t n = 19; n <= 21; n++) {
            decode_work(&w, n, 0, false);
            CHECK(run_both(&m, &h, &w.step));
        }
        CHECK(sl_cuda(be)->counts.recorded == (pass == 0));
        CHECK(sl_cuda(be)->counts.replayed == (pass == 0 ? 2 : 0));
        model_deinit(&m);
        lim.max_spans = 0;
        be->vt->destroy(be);
        be = create(1);
        CHECK(be->vt->device->steps_init(be, &lim, &err) == SL_EINVAL);
        be->vt->destroy(be);
    }
}

/* Another variant, another model: recordings of their own; forgetting drops one model's alone. */
static void test_keys(void)
{
    struct sl_backend *be = create(1);
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_step_limits lim = limits();
    struct sl_error err = {};
    struct model a, b;
    static struct work w;
    static struct world ha, hb;
    memset(&ha, 0, sizeof ha);
    memset(&hb, 0, sizeof hb);
    CHECK(be->vt->device->steps_init(be, &lim, &err) == 0);
    model_init(&a, be);
    model_init(&b, be);
    decode_work(&w, 6, 0, false);
    for (uint32_t variant = 0; variant < 6; variant++) {
        w.step.variant = variant % 3;
        CHECK(run_both(&a, &ha, &w.step));
    }
    CHECK(cu->counts.recorded == 3 && cu->counts.replayed == 3);
    CHECK(run_both(&b, &hb, &w.step) && run_both(&b, &hb, &w.step));
    CHECK(cu->counts.recorded == 4 && cu->counts.replayed == 4);
    be->vt->device->forget(be, &a);
    CHECK(cu->steps->n_graphs == 1);
    CHECK(run_both(&b, &hb, &w.step) && cu->counts.replayed == 5);
    CHECK(run_both(&a, &ha, &w.step) && cu->counts.recorded == 5);
    /* more variants than there is room for run eagerly */
    for (uint32_t variant = 0; variant < SL_CUDA_GRAPHS + 5; variant++) {
        w.step.variant = 100 + variant;
        decode_work(&w, 1, 0, false);
        w.step.variant = 100 + variant;
        CHECK(run_both(&a, &ha, &w.step));
    }
    CHECK(cu->steps->n_graphs == SL_CUDA_GRAPHS && cu->counts.record_failures == 0);
    CHECK(cu->counts.unrecorded == 5 + 5 - 3); /* 5 were there before, 3 of them forgotten */
    model_deinit(&a);
    model_deinit(&b);
    be->vt->destroy(be);
}

/* One step ahead: step N + 1 is enqueued before the ids of step N are read, and nothing on the way
 * allocates or waits for the stream. */
static void test_ahead(void)
{
    struct sl_backend *be = create(1);
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_step_limits lim = limits();
    struct sl_error err = {};
    struct model m;
    static struct work w;
    static struct world h;
    static int32_t want[2][MAX_SEQS];
    const int32_t n = 13;
    uint64_t ticket[2] = {0, 0}, n_fed = 0;
    void *table = be->vt->alloc(be, sizeof n_fed);
    memset(&h, 0, sizeof h);
    CHECK(be->vt->device->steps_init(be, &lim, &err) == 0);
    model_init(&m, be);
    decode_work(&w, n, 0, false);
    CHECK(run_both(&m, &h, &w.step)); /* recorded */
    struct sl_cuda_counts before = cu->counts;
    sl_alloc_guard_arm(true);
    uint64_t heap = sl_alloc_guard_count();
    for (int32_t i = 0; i < 14; i++) {
        be->vt->upload(be, table, &n_fed, sizeof n_fed); /* beside the steps, as the engine does */
        decode_work(&w, n, 1 + i, true);
        add_words(&w, be, static_cast<uint32_t>(i));
        CHECK(be->vt->device->step(be, &w.step, forward, &m, &ticket[i % 2], &err) == 0);
        run_on_host(&h, &w.step);
        memcpy(want[i % 2], h.ids, sizeof h.ids);
        memset(&w, 0xee, sizeof w); /* the arrays may be reused at once */
        const int32_t *ids = NULL;
        if (i > 0) {
            CHECK(be->vt->device->wait(be, ticket[(i - 1) % 2], &ids, NULL, &err) == 0);
            CHECK(ids != NULL && memcmp(ids, want[(i - 1) % 2], n * sizeof *ids) == 0);
        }
    }
    CHECK(sl_alloc_guard_count() == heap);
    sl_alloc_guard_arm(false);
    CHECK(cu->counts.device_allocs == before.device_allocs);
    CHECK(cu->counts.host_allocs == before.host_allocs);
    CHECK(cu->counts.syncs == before.syncs && cu->counts.late_waits == 0);
    CHECK(cu->counts.replayed == before.replayed + 14 && cu->counts.eager == before.eager);
    /* a third step without reading the first waits for it by itself */
    for (int32_t i = 0; i < 3; i++) {
        decode_work(&w, n, 1, false);
        CHECK(be->vt->device->step(be, &w.step, forward, &m, &ticket[0], &err) == 0);
        run_on_host(&h, &w.step);
    }
    CHECK(cu->counts.late_waits == 2);
    const int32_t *ids = NULL;
    CHECK(be->vt->device->wait(be, ticket[0], &ids, NULL, &err) == 0);
    CHECK(memcmp(ids, h.ids, n * sizeof *ids) == 0);
    be->vt->free(be, table, sizeof n_fed);
    model_deinit(&m);
    be->vt->destroy(be);
}

/* The choice of the step enqueued last, from params and words that lie together. */
static bool choose_part(struct model *m, struct work *w)
{
    struct sl_backend *be = &m->cu->base;
    struct sl_error err = {};
    int32_t n = w->step.batch.n_logits;
    size_t n_params = static_cast<size_t>(n) * sizeof(struct param);
    uint8_t *host = static_cast<uint8_t *>(be->vt->device->extra_host(be));
    const uint8_t *dev = static_cast<const uint8_t *>(be->vt->device->extra(be)) + n_params;
    struct sl_step rest = {};
    for (int32_t i = 0; i < n; i++)
        if (w->params[i].word != NULL)
            w->params[i].word = reinterpret_cast<const uint32_t *>(dev) + i;
    memcpy(host, w->params, n_params);
    memcpy(host + n_params, w->words, static_cast<size_t>(n) * sizeof *w->words);
    rest.batch.n_logits = n;
    rest.part = SL_STEP_CHOICE;
    rest.extra = host;
    rest.extra_bytes = n_params + static_cast<size_t>(n) * sizeof *w->words;
    rest.variant = w->step.variant;
    rest.want_results = true;
    return be->vt->device->choose(be, &rest, forward, m, &err) == 0;
}

/* Steps in two parts: what the choice reads is brought when the ids of the step before are read.
 * Padded decodes that are recorded, and whole steps between them. */
static void test_parts(void)
{
    struct sl_backend *be = create(1);
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_step_limits lim = limits();
    struct sl_error err = {};
    struct model m;
    static struct work w;
    static struct world h;
    static int32_t want[MAX_SEQS];
    const int32_t n = 13, n_steps = 14;
    uint64_t ticket = 0, before = 0;
    memset(&h, 0, sizeof h);
    CHECK(be->vt->device->steps_init(be, &lim, &err) == 0);
    model_init(&m, be);
    for (int32_t i = 0; i < n_steps; i++) {
        decode_work(&w, n, i, i > 0);
        add_words(&w, be, static_cast<uint32_t>(i));
        w.step.variant = static_cast<uint32_t>(i % 2);
        struct sl_step first = w.step;
        bool whole = i % 5 == 4;
        if (!whole) {
            first.part = SL_STEP_FORWARD;
            first.params = NULL;
            first.extra_bytes = 0;
            first.variant = 0;
        }
        before = ticket;
        CHECK(be->vt->device->step(be, &first, forward, &m, &ticket, &err) == 0);
        const int32_t *ids = NULL;
        const void *results = NULL;
        if (i > 0) {
            CHECK(be->vt->device->wait(be, before, &ids, &results, &err) == 0);
            CHECK(memcmp(ids, want, n * sizeof *ids) == 0);
            CHECK(memcmp(results, h.results, n * sizeof(struct result)) == 0);
        }
        CHECK(whole || choose_part(&m, &w));
        run_on_host(&h, &w.step);
        memcpy(want, h.ids, sizeof want);
    }
    const int32_t *ids = NULL;
    CHECK(be->vt->device->wait(be, ticket, &ids, NULL, &err) == 0);
    CHECK(memcmp(ids, want, n * sizeof *ids) == 0);
    /* one recording of first parts, and one of whole steps of each variant */
    CHECK(cu->counts.recorded == 3 && cu->counts.replayed == static_cast<uint64_t>(n_steps - 3));
    CHECK(cu->counts.late_waits == 0 && cu->counts.record_failures == 0);
    model_deinit(&m);
    be->vt->destroy(be);
}

/* ------------------------------------------------------------------ failures */

#ifdef SL_CUDA_SIM
/* A recording that fails costs nothing but itself. */
static void test_record_failure(void)
{
    struct sl_backend *be = create(1);
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_step_limits lim = limits();
    struct sl_error err = {};
    struct model m;
    static struct work w;
    static struct world h;
    memset(&h, 0, sizeof h);
    CHECK(be->vt->device->steps_init(be, &lim, &err) == 0);
    model_init(&m, be);
    decode_work(&w, 3, 0, false);
    sl_sim_fail_launch(6); /* 4 launches of the step, the second of the recording */
    CHECK(run_both(&m, &h, &w.step));
    CHECK(cu->counts.record_failures == 1 && cu->counts.recorded == 0);
    CHECK(run_both(&m, &h, &w.step) && run_both(&m, &h, &w.step));
    CHECK(cu->counts.eager == 3 && cu->counts.record_failures == 1);
    decode_work(&w, 5, 0, false);
    CHECK(run_both(&m, &h, &w.step) && run_both(&m, &h, &w.step));
    CHECK(cu->counts.recorded == 1 && cu->counts.replayed == 1);
    model_deinit(&m);
    be->vt->destroy(be);
}

/* A launch that fails and a device that breaks are reported by the step or the wait, with the call
 * and the reason, and by every step after that. */
static void test_errors(bool broken)
{
    struct sl_backend *be = create(1);
    struct sl_step_limits lim = limits();
    struct sl_error err = {};
    struct model m;
    static struct work w;
    static struct world h;
    uint64_t ticket = 0;
    memset(&h, 0, sizeof h);
    CHECK(be->vt->device->steps_init(be, &lim, &err) == 0);
    model_init(&m, be);
    decode_work(&w, 3, 0, false);
    CHECK(run_both(&m, &h, &w.step));
    if (broken)
        sl_sim_break_at(2);
    else
        sl_sim_fail_launch(1);
    w.rows[0] = 1; /* no decode step: eager */
    w.rows[1] = 2;
    w.step.batch.n_logits = 2;
    int rc = be->vt->device->step(be, &w.step, forward, &m, &ticket, &err);
    if (rc == 0)
        rc = be->vt->device->wait(be, ticket, NULL, NULL, &err);
    CHECK(rc == SL_EDEVICE);
    CHECK(strncmp(err.msg, "cuda:0 (", 8) == 0);
    CHECK(strstr(err.msg, cudaGetErrorString(sl_cuda(be)->error)) != NULL);
    CHECK(strstr(err.msg, sl_cuda(be)->error_what) != NULL);
    if (!broken)
        CHECK(strstr(err.msg, "kernel launch") != NULL);
    struct sl_error again = {};
    CHECK(be->vt->device->step(be, &w.step, forward, &m, &ticket, &again) == SL_EDEVICE);
    CHECK(strcmp(again.msg, err.msg) == 0);
    CHECK(be->vt->device->load_end(be, &again) == SL_EDEVICE);
    sl_sim_repair(); /* so that the simulator can look for leaks */
    model_deinit(&m);
    be->vt->destroy(be);
}
#endif

/* ------------------------------------------------------------------ main */

static void count_item(void *arg, uint32_t item, int thread_idx)
{
    static_cast<int *>(arg)[item] += 1 + thread_idx;
}

static void test_items(void)
{
    struct sl_backend *be = create(1);
    int seen[5] = {0, 0, 0, 0, 0};
    be->vt->run_items(be, count_item, seen, 4);
    CHECK(seen[0] == 1 && seen[1] == 1 && seen[2] == 1 && seen[3] == 1 && seen[4] == 0);
    be->vt->destroy(be);
}

/* In the middle of loading: threads, ring and pack buffer go too. */
static void test_destroy_while_loading(void)
{
    struct sl_backend *be = create(3);
    uint8_t bytes[100] = {0};
    CHECK(sl_cuda_pack_buffer(sl_cuda(be), sizeof bytes) != NULL);
    sl_cuda_stage(sl_cuda(be), sl_cuda(be)->pack_buffer, bytes, sizeof bytes);
    CHECK(sl_cuda(be)->stager != NULL && sl_cuda_report(sl_cuda(be), NULL) == 0);
    be->vt->destroy(be);
#ifdef SL_CUDA_SIM
    CHECK(sl_sim_counts().bytes == 0 && sl_sim_counts().host_bytes == 0);
#endif
}

/* "stage" runs what has threads alone: ThreadSanitizer does not know the simulator's fibers. */
int main(int argc, char **argv)
{
    if (sl_cuda_find() < 0) {
        printf("skip: no device of compute capability 9.0\n");
        return 0;
    }
    test_rungs();
    test_items();
    test_stage(1);
    test_stage(4);
    if (argc > 1 && strcmp(argv[1], "stage") == 0) {
        printf("%d passed, %d failed\n", n_passed, n_failed);
        return n_failed != 0;
    }
    test_destroy_while_loading();
    test_stage_order();
    test_ragged();
    test_decode();
    test_drafts();
    test_passes();
    test_limits();
    test_keys();
    test_ahead();
    test_parts();
#ifdef SL_CUDA_SIM
    test_device();
    test_second_device();
    test_out_of_memory();
    test_record_failure();
    test_errors(false);
    test_errors(true);
#endif
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed != 0;
}
