/* SPDX-License-Identifier: MIT
 * tile_survey.h - the survey of tile_bench.c: everything needed to choose the shapes of tile
 * products on a processor, in one run.
 */
#ifndef TOOLS_TILE_SURVEY_H
#define TOOLS_TILE_SURVEY_H

#include "tile_util.h"

#include <sched.h>
#include <stdlib.h>

#define MOST_SURVEY 2048
#define MAX_CPUS    256

/* ---------------------------------------------------------------- processors */

/* A way to place threads. */
struct mode {
    const char *name;
    int n, cpus[MAX_CPUS];
    double int8, bf16;         /* ceilings, operations a second: registers only */
    double int8_vec, bf16_vec; /* where there are no tiles */
    struct sl_backend *be;
};

struct machine {
    bool tiles, bf16;
    int n_cpus, cpus[MAX_CPUS]; /* that this process may use */
    struct mode modes[3];
    int n_modes;
    uint64_t start;
};

static double elapsed(const struct machine *m)
{
    return 1e-9 * (double)(sl_now_ns() - m->start);
}

static void section(const struct machine *m, const char *name)
{
    printf("\n== %s   (%.0f s)\n", name, elapsed(m));
    fflush(stdout);
}

static void pin(const int *cpus, int n)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < n; i++)
        CPU_SET((size_t)cpus[i], &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        fail("a processor of the mask refused");
}

/* A pool whose threads, the caller among them, stay on these processors. */
static struct sl_thread_pool *pinned_pool(const struct machine *m, const int *cpus, int n)
{
    struct sl_thread_pool *pool;
    struct sl_error err;
    pin(m->cpus, m->n_cpus);
    if (sl_thread_pool_create(n, &pool, &err) != 0)
        fail(err.msg);
    sl_thread_pool_bind(pool, cpus);
    pin(cpus, 1);
    return pool;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Short slices of the registers-only loop on each processor: one whose sibling works, or that
 * others use, shows it in its median, one that is interrupted in its maximum. */
static void probe_slices(const struct machine *m, loop_fn body, uint8_t *loop_room)
{
    enum { SLICES = 60, STEPS = 400 };
    printf("ns a product (registers only, slices of %d steps)   min   median      max\n", STEPS);
    for (int i = 0; i < m->n_cpus; i++) {
        double ns[SLICES];
        pin(&m->cpus[i], 1);
        body(4 * STEPS, loop_room);
        for (int s = 0; s < SLICES; s++) {
            uint64_t t0 = sl_now_ns();
            body(STEPS, loop_room);
            ns[s] = (double)(sl_now_ns() - t0) / STEPS / STEP_DOTS;
        }
        qsort(ns, SLICES, sizeof ns[0], by_value);
        printf("  processor %-4d %46.2f %8.2f %8.2f\n", m->cpus[i], ns[0], ns[SLICES / 2],
               ns[SLICES - 1]);
    }
    fflush(stdout);
}

/* How much longer the loop takes on both processors at once than on the first alone. */
static double slowdown(const struct machine *m, int a, int b, loop_fn body, uint8_t *loop_room)
{
    const int cpus[2] = {a, b};
    double best[2];
    for (int n = 1; n <= 2; n++) {
        struct sl_thread_pool *pool = pinned_pool(m, cpus, n);
        struct loop l = {.pool = pool, .body = body, .n_steps = 2000, .room = loop_room};
        best[n - 1] = 1e9;
        for (int i = 0; i < 24; i++) {
            uint64_t t0 = sl_now_ns();
            loop_run(&l);
            best[n - 1] = SL_MIN(best[n - 1], (double)(sl_now_ns() - t0));
        }
        sl_thread_pool_destroy(pool);
    }
    return best[1] / best[0];
}

/* Which processors share a multiplier, found by using them at once: what a virtual machine says of
 * its cores need not be so. Fills the mode with one processor of each core. */
static void find_cores(const struct machine *m, loop_fn body, uint8_t *loop_room,
                       struct mode *cores)
{
    bool taken[MAX_CPUS] = {false};
    cores->n = 0;
    for (int i = 0; i < m->n_cpus; i++) {
        if (taken[i])
            continue;
        double worst = 0;
        int with = -1;
        for (int j = i + 1; j < m->n_cpus; j++) {
            double s = taken[j] ? 0 : slowdown(m, m->cpus[i], m->cpus[j], body, loop_room);
            if (s > worst) {
                worst = s;
                with = j;
            }
            if (s > 1.7) /* clear enough */
                break;
        }
        printf("  processor %-4d", m->cpus[i]);
        if (worst > 1.4) {
            taken[with] = true;
            printf(" and %d share a core: both at once take %.2f times as long\n", m->cpus[with],
                   worst);
        } else {
            printf(" alone: with any other at most %.2f times as long\n", worst);
        }
        fflush(stdout);
        cores->cpus[cores->n++] = m->cpus[i];
    }
}

static void find_processors(struct machine *m)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        fail("no processor mask");
    for (int i = 0; i < MAX_CPUS && m->n_cpus < SL_MAX_THREADS; i++)
        if (CPU_ISSET((size_t)i, &set))
            m->cpus[m->n_cpus++] = i;
    const loop_fn body = m->tiles ? int8_regs : vpdpbusd_loop;
    uint8_t *loop_room = loop_rooms(2, false);
    section(m, "who else is there");
    probe_slices(m, body, loop_room);
    struct mode one = {.name = "one", .n = 1, .cpus = {m->cpus[0]}};
    struct mode cores = {.name = "cores"}, all = {.name = "all", .n = m->n_cpus};
    memcpy(all.cpus, m->cpus, sizeof all.cpus);
    find_cores(m, body, loop_room, &cores);
    m->modes[m->n_modes++] = one;
    if (cores.n > 1 && cores.n < all.n)
        m->modes[m->n_modes++] = cores;
    if (all.n > 1)
        m->modes[m->n_modes++] = all;
    sl_aligned_free(loop_room, 2 * LOOP_BYTES);
}

/* ---------------------------------------------------------------- ceilings */

static void survey_loop(const struct mode *mode, struct sl_thread_pool *pool, uint8_t *loop_room,
                        loop_fn body, const char *name, double ops, double *top)
{
    double steps = dots_of(pool, loop_room, body, 1000), rate = ops * steps;
    if (*top == 0)
        *top = rate;
    printf("  %-5s %-50s %8.3f TOPS %4.0f %%  %7.1f ns a step\n", mode->name, name, rate * 1e-12,
           100 * rate / *top, 1e9 * mode->n / steps);
    fflush(stdout);
}

static void survey_mode(const struct machine *m, struct mode *mode, const uint8_t *data)
{
    static const struct {
        loop_fn int8, bf16;
        const char *name;
    } loops[] = {{int8_regs, bf16_regs, "registers only"},
                 {int8_turns, bf16_turns, "registers only, operands in turn"},
                 {int8_loads, bf16_loads, "loads from L1, each counted as a product"},
                 {int8_half, bf16_half, "2x2, weights from L1, tokens in registers"},
                 {int8_l1, bf16_l1, "2x2, operands from L1"},
                 {int8_store, bf16_store, "2x2, operands from L1, 4 sums stored a step"},
                 {int8_l2, bf16_l2, "2x2, operands from L2"},
                 {int8_l2_ask, bf16_l2_ask, "2x2, operands from L2, fetched ahead"},
                 {int8_w1, bf16_w1, "1x4, weights from L1, tokens from L2"},
                 {int8_w1_ask, bf16_w1_ask, "1x4, the same, tokens fetched ahead"},
                 {int8_sums, bf16_sums, "1x4, the same, 4 sums in and out each 2 steps"}};
    struct sl_thread_pool *pool = pinned_pool(m, mode->cpus, mode->n);
    uint8_t *bytes = loop_rooms(mode->n, false), *numbers = loop_rooms(mode->n, true);
    struct stream s = {.pool = pool, .data = data};
    printf("  %-5s %d threads; stream read %.1f GB/s\n", mode->name, mode->n,
           (double)WEIGHT_BYTES / best_seconds(stream_run, &s) * 1e-9);
    survey_loop(mode, pool, bytes, vpdpbusd_loop, "vpdpbusd", 12 * 128, &mode->int8_vec);
    if (m->bf16)
        survey_loop(mode, pool, numbers, vdpbf16ps_loop, "vdpbf16ps", 12 * 64, &mode->bf16_vec);
    char name[64];
    for (size_t i = 0; m->tiles && i < SL_COUNT(loops); i++) {
        snprintf(name, sizeof name, "INT8 %s", loops[i].name);
        survey_loop(mode, pool, bytes, loops[i].int8, name, INT8_STEP, &mode->int8);
    }
    for (size_t i = 0; m->tiles && i < SL_COUNT(loops); i++) {
        snprintf(name, sizeof name, "BF16 %s", loops[i].name);
        survey_loop(mode, pool, numbers, loops[i].bf16, name, BF16_STEP, &mode->bf16);
    }
    if (!m->tiles) {
        mode->int8 = mode->int8_vec;
        mode->bf16 = mode->bf16_vec;
    } else {
        printf("  %-5s ldtilecfg, tilezero, tilerelease %.1f ns\n", mode->name,
               1e9 * mode->n / dots_of(pool, bytes, configure_loop, 1000));
    }
    sl_aligned_free(bytes, (size_t)mode->n * LOOP_BYTES);
    sl_aligned_free(numbers, (size_t)mode->n * LOOP_BYTES);
    sl_thread_pool_destroy(pool);
}

/* ---------------------------------------------------------------- operations of a layer */

/* Several projections of one input, or the gated pair. */
struct op {
    const char *model, *name;
    int64_t n_cols, n_rows[3];
    int n_parts;
    bool gated; /* two matrices of n_rows[0] rows */
};

static const struct op layer_ops[] = {
    {"1B", "qkv", 2048, {2048, 512, 512}, 3, false},   {"1B", "o", 2048, {2048}, 1, false},
    {"1B", "gate+up", 2048, {8192}, 1, true},          {"1B", "down", 8192, {2048}, 1, false},
    {"4B", "qkv", 2560, {4096, 1024, 1024}, 3, false}, {"4B", "o", 4096, {2560}, 1, false},
    {"4B", "gate+up", 2560, {9728}, 1, true},          {"4B", "down", 9728, {2560}, 1, false},
};
#define WIDEST 9728 /* columns, and rows of an output */

static int64_t op_rows(const struct op *op)
{
    int64_t n = op->gated ? 2 * op->n_rows[0] : 0;
    for (int i = 0; i < op->n_parts && !op->gated; i++)
        n += op->n_rows[i];
    return n;
}

/* An operation's weights, as one matrix in copies, and what it works on. */
struct task {
    const struct op *op;
    struct sl_backend *be;
    struct sl_weight whole[MAX_COPIES];
    int n_copies, next, n_tok;
    const float *x;
    float *out;
};

/* Rows [from, from + n) of a packed matrix, both whole panels. */
static struct sl_weight carve(const struct sl_weight *w, int64_t from, int64_t n)
{
    struct sl_weight part = *w;
    const size_t panel_bytes = w->n_bytes / (size_t)(w->n_rows / SL_I8_PANEL);
    part.n_rows = n;
    part.data = (const uint8_t *)w->data + (size_t)(from / SL_I8_PANEL) * panel_bytes;
    part.n_bytes = (size_t)(n / SL_I8_PANEL) * panel_bytes;
    return part;
}

static void task_run(void *arg)
{
    struct task *t = arg;
    const struct op *op = t->op;
    const struct sl_weight *w = &t->whole[t->next];
    struct sl_weight part[3];
    t->next = (t->next + 1) % t->n_copies;
    if (op->gated) {
        part[0] = carve(w, 0, op->n_rows[0]);
        part[1] = carve(w, op->n_rows[0], op->n_rows[0]);
        struct sl_op_linear_gated_act a = {.x = t->x,
                                           .ld_x = op->n_cols,
                                           .gate = &part[0],
                                           .up = &part[1],
                                           .act = SL_ACT_SILU,
                                           .n = t->n_tok,
                                           .out = t->out};
        t->be->vt->linear_gated_act(t->be, &a);
        return;
    }
    struct sl_op_linear_multi a = {
        .x = t->x, .ld_x = op->n_cols, .n = t->n_tok, .n_parts = op->n_parts};
    int64_t row = 0;
    for (int i = 0; i < op->n_parts; row += op->n_rows[i++]) {
        part[i] = carve(w, row, op->n_rows[i]);
        a.part[i] = (struct sl_linear_part){&part[i], NULL, t->out + t->n_tok * row, op->n_rows[i]};
    }
    t->be->vt->linear_multi(t->be, &a);
}

static double task_ops(const struct task *t)
{
    return 2.0 * t->n_tok * (double)(op_rows(t->op) * t->op->n_cols);
}

/* Copies of the operation's weights in store, made by the last mode's threads. */
static void task_fill(const struct machine *m, struct task *t, const struct op *op,
                      enum sl_dtype dtype, uint8_t *store)
{
    struct sl_backend *be = m->modes[m->n_modes - 1].be;
    struct job *j = room(sizeof *j);
    fill_weights(j, be, dtype, op_rows(op), op->n_cols, store);
    t->op = op;
    t->n_copies = j->n_w;
    t->next = 0;
    memcpy(t->whole, j->w, sizeof t->whole);
    sl_aligned_free(j, sizeof *j);
}

/* A backend on the mode's processors, with room for the activations of every operation. */
static void mode_start(const struct machine *m, struct mode *mode)
{
    static const enum sl_dtype widest[] = {SL_DTYPE_Q8_0, SL_DTYPE_BF16};
    struct sl_cpu_config cfg = {.n_threads = mode->n};
    struct sl_error err;
    uint8_t *rows = room(16 * WIDEST * 2);
    pin(m->cpus, m->n_cpus);
    if (sl_cpu_create(&cfg, &mode->be, &err) != 0)
        fail(err.msg);
    sl_thread_pool_bind(sl_cpu(mode->be)->pool, mode->cpus);
    for (size_t i = 0; i < SL_COUNT(widest); i++) {
        struct sl_weight w;
        if (mode->be->vt->weight_create(mode->be, SL_USE_LINEAR, widest[i], 16, WIDEST, rows, NULL,
                                        &w, &err) != 0)
            fail(err.msg);
        mode->be->vt->weight_destroy(mode->be, &w);
    }
    sl_aligned_free(rows, 16 * WIDEST * 2);
}

static double mode_top(const struct mode *mode, enum sl_dtype t)
{
    return t == SL_DTYPE_BF16 ? mode->bf16 : mode->int8;
}

/* ---------------------------------------------------------------- shapes */

struct shape {
    struct sl_i8_shape i8;
    struct sl_bf16_shape bf16;
};

/* tokens, span, chunk, units, depth, operands, weights, late */
#define I8(...)               \
    {                         \
        .i8 = { __VA_ARGS__ } \
    }
static const struct shape i8_shapes[] = {
    I8(256, 64, 4, 2, 1, 0, 0, 0), /* nothing aside or ahead */
    I8(256, 64, 4, 2, 0, 0, 0, 0),  I8(256, 64, 4, 2, 2, 0, 0, 0),  I8(256, 64, 4, 2, 1, 1, 0, 0),
    I8(256, 64, 4, 2, 1, 0, 1, 0),  I8(256, 64, 4, 2, 1, 0, 0, 1),  I8(256, 64, 4, 2, 1, 0, 1, 1),
    I8(256, 64, 4, 2, 2, 0, 1, 1),  I8(256, 64, 4, 2, 2, 1, 1, 1),  I8(256, 64, 4, 2, 1, 1, 1, 1),
    I8(256, 32, 4, 2, 2, 1, 1, 1),  I8(256, 32, 4, 2, 2, 0, 1, 1),  I8(256, 32, 4, 1, 1, 0, 1, 1),
    I8(256, 96, 4, 2, 2, 1, 1, 1),  I8(256, 128, 4, 2, 2, 1, 1, 1), I8(256, 512, 4, 2, 2, 1, 1, 1),
    I8(256, 512, 4, 2, 2, 0, 1, 1), I8(256, 64, 1, 2, 2, 1, 1, 1),  I8(256, 64, 2, 2, 2, 1, 1, 1),
    I8(256, 64, 16, 2, 2, 1, 1, 1), I8(256, 64, 4, 1, 2, 1, 1, 1),  I8(256, 128, 4, 1, 2, 1, 1, 1),
    I8(512, 64, 4, 2, 2, 1, 1, 1),  I8(512, 64, 4, 2, 2, 0, 1, 1),  I8(512, 64, 16, 2, 2, 1, 1, 1),
};

/* tokens, span, strips, wide, ahead, weights, late */
#define BF16(...)               \
    {                           \
        .bf16 = { __VA_ARGS__ } \
    }
static const struct shape bf16_shapes[] = {
    BF16(256, 512, 64, 0, 0, 0, 0), /* nothing aside or ahead */
    BF16(256, 512, 64, 0, 0, 0, 1), BF16(256, 512, 64, 0, 0, 1, 1), BF16(256, 512, 64, 0, 1, 1, 1),
    BF16(256, 512, 64, 0, 3, 1, 1), BF16(256, 512, 5, 0, 0, 1, 1),  BF16(256, 512, 5, 0, 2, 1, 1),
    BF16(256, 512, 8, 0, 2, 1, 1),  BF16(256, 512, 16, 0, 2, 1, 1), BF16(256, 64, 4, 0, 0, 1, 1),
    BF16(256, 64, 4, 0, 2, 1, 1),   BF16(256, 512, 3, 1, 2, 1, 1),  BF16(256, 512, 4, 1, 0, 1, 1),
    BF16(256, 512, 4, 1, 2, 1, 1),  BF16(256, 512, 6, 1, 2, 1, 1),  BF16(256, 512, 8, 1, 0, 1, 1),
    BF16(256, 512, 8, 1, 1, 1, 1),  BF16(256, 512, 8, 1, 2, 1, 1),  BF16(256, 512, 8, 1, 4, 1, 1),
    BF16(256, 512, 8, 1, 2, 0, 1),  BF16(256, 512, 8, 1, 2, 1, 0),  BF16(512, 512, 8, 1, 2, 1, 1),
    BF16(256, 512, 16, 1, 2, 1, 1),
};

static const char *shape_name(const struct shape *s, enum sl_dtype t, char *name, size_t n)
{
    const struct sl_i8_shape *i = &s->i8;
    const struct sl_bf16_shape *b = &s->bf16;
    if (t == SL_DTYPE_BF16)
        snprintf(name, n, "tokens %d span %d %s strips %d ahead %d%s%s", b->tokens, b->span,
                 b->wide ? "16x4" : "32x2", b->strips, b->ahead, b->weights ? " weights" : "",
                 b->late ? " late" : "");
    else
        snprintf(name, n, "tokens %d span %d chunk %d units %d depth %d%s%s%s", i->tokens, i->span,
                 i->chunk, i->units, i->depth, i->operands ? " operands" : "",
                 i->weights ? " weights" : "", i->late ? " late" : "");
    return name;
}

static void use_shape(struct sl_backend *be, enum sl_dtype t, const struct shape *s)
{
    if (t == SL_DTYPE_BF16)
        sl_cpu(be)->bf16.shape = &s->bf16;
    else
        sl_cpu(be)->i8.shape = &s->i8;
}

/* Ranks the shapes of a format by their time for the outputs of 1B's largest two products, in
 * rounds, so that a slow moment is not one shape's alone. Every shape must write the same bits. */
struct ranking {
    const struct shape *shapes;
    int n;
    double seconds[32]; /* of both products */
};

static uint64_t hash_of(const float *p, size_t n)
{
    uint64_t h = 1;
    for (size_t i = 0; i < n; i++)
        h = (h ^ sl_f32_bits(p[i])) * 0x9E3779B97F4A7C15u;
    return h;
}

static void rank_task(struct task *t, enum sl_dtype dtype, struct ranking *r)
{
    enum { ROUNDS = 4 };
    const size_t n_out = (size_t)(t->n_tok * t->op->n_rows[0]);
    double best[32];
    uint64_t bits = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < r->n; i++) {
            use_shape(t->be, dtype, &r->shapes[i]);
            if (round == 0)
                memset(t->out, 0x7F, n_out * sizeof *t->out); /* what is not written shows */
            uint64_t t0 = sl_now_ns();
            task_run(t);
            double s = 1e-9 * (double)(sl_now_ns() - t0);
            best[i] = round == 0 ? s : SL_MIN(best[i], s);
            if (round > 0)
                continue;
            uint64_t h = hash_of(t->out, n_out);
            bits = i == 0 ? h : bits;
            if (h != bits)
                printf("  WRONG BITS: shape %d of %d\n", i + 1, r->n);
        }
    for (int i = 0; i < r->n; i++)
        r->seconds[i] += best[i];
}

static void rank_format(const struct machine *m, enum sl_dtype t, struct task *task, uint8_t *store,
                        const struct shape *best[3])
{
    static const struct op *const of[] = {&layer_ops[2], &layer_ops[3]};
    struct ranking r[3];
    char name[96];
    double work = 0;
    for (int i = 0; i < m->n_modes; i++) {
        const bool bf16 = t == SL_DTYPE_BF16;
        r[i] = (struct ranking){bf16 ? bf16_shapes : i8_shapes,
                                bf16 ? (int)SL_COUNT(bf16_shapes) : (int)SL_COUNT(i8_shapes),
                                {0}};
    }
    task->n_tok = 512;
    for (size_t o = 0; o < SL_COUNT(of); o++) {
        task_fill(m, task, of[o], t, store);
        work += task_ops(task);
        for (int i = 0; i < m->n_modes; i++) {
            pin(m->modes[i].cpus, 1);
            task->be = m->modes[i].be;
            rank_task(task, t, &r[i]);
        }
    }
    printf("%-5s M = 512, gate+up and down of 1B%31s", sl_dtype_info(t)->name, "");
    for (int i = 0; i < m->n_modes; i++) {
        printf("  %18s", m->modes[i].name);
        best[i] = r[i].shapes;
    }
    printf("\n");
    for (int v = 0; v < r[0].n; v++) {
        printf("  %-64s", shape_name(&r[0].shapes[v], t, name, sizeof name));
        for (int i = 0; i < m->n_modes; i++) {
            double rate = work / r[i].seconds[v];
            printf("  %8.3f TOPS %3.0f %%", rate * 1e-12, 100 * rate / mode_top(&m->modes[i], t));
            if (r[i].seconds[v] < r[i].seconds[best[i] - r[i].shapes])
                best[i] = &r[i].shapes[v];
        }
        printf("\n");
    }
    for (int i = 0; i < m->n_modes; i++)
        printf("  best on %s: %s\n", m->modes[i].name, shape_name(best[i], t, name, sizeof name));
    fflush(stdout);
}

/* ---------------------------------------------------------------- layers */

static double task_seconds(struct task *t)
{
    double best = 1e9;
    task_run(t);
    for (int i = 0; i < 3; i++) {
        uint64_t t0 = sl_now_ns();
        task_run(t);
        best = SL_MIN(best, 1e-9 * (double)(sl_now_ns() - t0));
    }
    return best;
}

/* A line of an operation, or of the layer: the default shape and the best one. */
static void print_line(const char *model, const char *name, enum sl_dtype t,
                       const struct mode *mode, int n_tok, double work, const double seconds[2])
{
    printf("  %-3s %-8s %-5s %-5s M %-5d", model, name, sl_dtype_info(t)->name, mode->name, n_tok);
    for (int i = 0; i < 2 && seconds[i] > 0; i++)
        printf("  %9.0f us %8.3f TOPS %3.0f %%", seconds[i] * 1e6, work / seconds[i] * 1e-12,
               100 * work / seconds[i] / mode_top(mode, t));
    printf("\n");
    fflush(stdout);
}

struct layer {
    double work[3][2], seconds[3][2][2]; /* of mode, M, default and best shape */
};

static void survey_op(const struct machine *m, const struct op *op, enum sl_dtype t,
                      struct task *task, uint8_t *store, const struct shape *const best[3],
                      struct layer *sum)
{
    static const int tokens[2] = {512, MOST_SURVEY};
    task_fill(m, task, op, t, store);
    for (int i = 0; i < m->n_modes; i++)
        for (int k = 0; k < 2; k++) {
            const struct mode *mode = &m->modes[i];
            struct sl_cpu *cpu = sl_cpu(mode->be);
            const struct sl_i8_shape *i8 = cpu->i8.shape;
            const struct sl_bf16_shape *bf16 = cpu->bf16.shape;
            double s[2] = {0, 0};
            if (k == 1 && mode->n == 1) /* as much of everything, for four times as long */
                continue;
            pin(mode->cpus, 1);
            task->be = mode->be;
            task->n_tok = tokens[k];
            s[0] = task_seconds(task);
            if (best[i] != NULL) {
                use_shape(mode->be, t, best[i]);
                s[1] = task_seconds(task);
                cpu->i8.shape = i8;
                cpu->bf16.shape = bf16;
            }
            print_line(op->model, op->name, t, mode, tokens[k], task_ops(task), s);
            sum->work[i][k] += task_ops(task);
            for (int v = 0; v < 2; v++)
                sum->seconds[i][k][v] += s[v];
        }
}

static void survey_format(const struct machine *m, enum sl_dtype t, struct task *task,
                          uint8_t *store)
{
    const struct shape *best[3] = {NULL, NULL, NULL};
    struct layer sum = {0};
    if (m->tiles)
        rank_format(m, t, task, store, best);
    printf("  each: the default shape%s\n", m->tiles ? ", then the best one" : "");
    for (size_t o = 0; o < SL_COUNT(layer_ops); o++) {
        survey_op(m, &layer_ops[o], t, task, store, best, &sum);
        if (o + 1 < SL_COUNT(layer_ops) && strcmp(layer_ops[o].model, layer_ops[o + 1].model) == 0)
            continue;
        for (int i = 0; i < m->n_modes; i++)
            for (int k = 0; k < 2 && sum.work[i][k] > 0; k++)
                print_line(layer_ops[o].model, "LAYER", t, &m->modes[i], k == 0 ? 512 : MOST_SURVEY,
                           sum.work[i][k], sum.seconds[i][k]);
        sum = (struct layer){0};
    }
}

static int survey_main(int n_only, char **only)
{
    static const enum sl_dtype formats[] = {SL_DTYPE_Q8_0, SL_DTYPE_BF16, SL_DTYPE_Q4_K,
                                            SL_DTYPE_Q6_K};
    struct machine m = {.tiles = sl_cpu_isa_best() >= SL_ISA_AMX,
                        .bf16 = sl_cpu_isa_best() >= SL_ISA_AVX512_BF16,
                        .start = sl_now_ns()};
    const size_t x_bytes = (size_t)MOST_SURVEY * WIDEST * sizeof(float);
    /* outputs of qkv and of gate+up are the widest */
    uint8_t *store = room(WEIGHT_BYTES);
    struct task *task = room(sizeof *task);
    float *x = room(x_bytes), *out = room(x_bytes);
    struct sl_rng rng = {2, 0};
    memset(store, 1, WEIGHT_BYTES);
    memset(out, 1, x_bytes);
    for (size_t i = 0; i < x_bytes / sizeof *x; i++)
        x[i] = (float)(sl_rng_unit(sl_rng_next(&rng)) - 0.5);
    task->x = x;
    task->out = out;
    find_processors(&m);
    section(&m, "ceilings, random data; a step is 16 products");
    for (int i = 0; i < m.n_modes; i++)
        survey_mode(&m, &m.modes[i], store);
    for (int i = 0; i < m.n_modes; i++)
        mode_start(&m, &m.modes[i]);
    for (size_t f = 0; f < SL_COUNT(formats); f++) {
        const char *name = sl_dtype_info(formats[f])->name;
        bool wanted = n_only == 0;
        for (int i = 0; i < n_only; i++)
            wanted = wanted || strcmp(only[i], name) == 0;
        if (!wanted || (formats[f] == SL_DTYPE_BF16 && !m.bf16))
            continue;
        section(&m, name);
        survey_format(&m, formats[f], task, store);
    }
    section(&m, "done");
    pin(m.cpus, m.n_cpus);
    for (int i = 0; i < m.n_modes; i++)
        m.modes[i].be->vt->destroy(m.modes[i].be);
    sl_aligned_free(store, WEIGHT_BYTES);
    sl_aligned_free(x, x_bytes);
    sl_aligned_free(out, x_bytes);
    sl_aligned_free(task, sizeof *task);
    return 0;
}

#endif
