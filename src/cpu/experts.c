/* SPDX-License-Identifier: MIT
 * Mixtures of experts: the products of rows grouped by expert (route.c chooses the experts).
 *
 * Rows are grouped by expert, so that every expert that is hit reads its matrices once for a block
 * of rows. Each group is an ordinary gated product and an ordinary product: a row's bits do not
 * depend on the rows in its group. An expert's result is added to its rows before the next expert
 * begins, so a row adds its experts in ascending order, whoever shares them, to what its shared
 * expert gave.
 */
#include "cpu/linear.h"

#include "base/check.h"

#include <string.h>

#define BLOCK_ROWS 512 /* of one expert at a time */
#define ALIGN      64

/* ------------------------------------------------------------------ stacks */

int sl_cpu_stack_create(struct sl_backend *be, const struct sl_weight *mats, int32_t n,
                        struct sl_stack *out, struct sl_error *err)
{
    (void)be;
    (void)err;
    for (int32_t i = 1; i < n; i++)
        SL_ASSERT(mats[i].n_rows == mats[0].n_rows && mats[i].n_cols == mats[0].n_cols);
    *out = (struct sl_stack){.mats = mats, .n = n};
    return 0;
}

void sl_cpu_stack_destroy(struct sl_backend *be, struct sl_stack *s)
{
    (void)be;
    *s = (struct sl_stack){0};
}

/* ------------------------------------------------------------------ experts */

struct room {       /* the scratch of a call, in its parts */
    int32_t *first; /* [E + 1] where an expert's pairs begin */
    int32_t *pairs; /* [T * top_k] row * top_k + place, by expert, then ascending */
    float *x;       /* [BLOCK_ROWS, H] the rows of a block */
    float *mid;     /* [BLOCK_ROWS, I] */
    float *y;       /* [BLOCK_ROWS, H] */
    size_t n_bytes;
};

static size_t carve(struct room *r, size_t n_bytes)
{
    size_t at = r->n_bytes;
    r->n_bytes += SL_ROUND_UP(n_bytes, (size_t)ALIGN);
    return at;
}

/* base NULL: only n_bytes counts. */
static struct room room_of(uint8_t *base, int32_t n, int32_t n_experts, int32_t top_k, int64_t h,
                           int64_t i)
{
    struct room r = {0};
    const size_t rows = (size_t)SL_MIN(n, BLOCK_ROWS), f = sizeof(float);
    const size_t first = carve(&r, (size_t)(n_experts + 1) * sizeof *r.first);
    const size_t pairs = carve(&r, (size_t)n * (size_t)top_k * sizeof *r.pairs);
    const size_t x = carve(&r, rows * (size_t)h * f), mid = carve(&r, rows * (size_t)i * f);
    const size_t y = carve(&r, rows * (size_t)h * f);
    if (base == NULL)
        return r;
    r.first = (int32_t *)(void *)(base + first);
    r.pairs = (int32_t *)(void *)(base + pairs);
    r.x = (float *)(void *)(base + x);
    r.mid = (float *)(void *)(base + mid);
    r.y = (float *)(void *)(base + y);
    return r;
}

size_t sl_cpu_experts_bytes(struct sl_backend *be, int32_t n, int32_t n_experts, int32_t top_k,
                            int64_t hidden, int64_t intermediate)
{
    (void)be;
    return room_of(NULL, n, n_experts, top_k, hidden, intermediate).n_bytes;
}

/* A counting sort, which keeps the order of rows. */
static void sort_pairs(const struct sl_op_experts *a, const struct room *r)
{
    const int32_t n_pairs = a->n * a->top_k, n_experts = a->gate->n;
    memset(r->first, 0, (size_t)(n_experts + 1) * sizeof *r->first);
    for (int32_t p = 0; p < n_pairs; p++) {
        SL_ASSERT(a->experts[p] >= 0 && a->experts[p] < n_experts);
        r->first[a->experts[p] + 1]++;
    }
    for (int32_t e = 0; e < n_experts; e++)
        r->first[e + 1] += r->first[e];
    for (int32_t p = 0; p < n_pairs; p++)
        r->pairs[r->first[a->experts[p]]++] = p;
    for (int32_t e = n_experts; e > 0; e--)
        r->first[e] = r->first[e - 1];
    r->first[0] = 0;
}

struct rows_job {
    const struct sl_op_experts *a;
    const struct room *r;
    const int32_t *pairs; /* of the block */
    int64_t h;
};

static void take_row(void *arg, uint32_t i, int thread_idx)
{
    const struct rows_job *j = arg;
    const int64_t t = j->pairs[i] / j->a->top_k;
    const float *from = (const float *)j->a->x + t * j->h, w = j->a->weights[j->pairs[i]];
    float *to = j->r->x + (int64_t)i * j->h;
    (void)thread_idx;
    if (!j->a->weigh_input)
        memcpy(to, from, (size_t)j->h * sizeof *to);
    for (int64_t k = 0; k < j->h && j->a->weigh_input; k++)
        to[k] = w * from[k];
}

static void add_row(void *arg, uint32_t i, int thread_idx)
{
    const struct rows_job *j = arg;
    const int64_t n = j->a->down->mats[0].n_rows;
    const float w = j->a->weigh_input ? 1 : j->a->weights[j->pairs[i]];
    const float *y = j->r->y + (int64_t)i * n;
    float *out = j->a->out + j->pairs[i] / j->a->top_k * n;
    (void)thread_idx;
    for (int64_t k = 0; k < n; k++)
        out[k] += w * y[k];
}

static const float *of_expert(const float *biases, int32_t e, int64_t n)
{
    return biases == NULL ? NULL : biases + e * n;
}

/* The rows of a block differ, so they can be added side by side. */
static void expert_block(struct sl_backend *be, const struct sl_op_experts *a, int32_t e,
                         const struct room *r, const int32_t *pairs, int32_t n)
{
    const struct sl_weight *gate = &a->gate->mats[e], *down = &a->down->mats[e];
    struct rows_job j = {.a = a, .r = r, .pairs = pairs, .h = gate->n_cols};
    float *mid = a->rank != NULL ? sl_rank_room(a->rank) : r->mid;
    sl_cpu_run(sl_cpu(be), take_row, &j, n, n * j.h);
    struct sl_linear l = {.cpu = sl_cpu(be),
                          .n_parts = 1,
                          .up = &a->up->mats[e],
                          .up_bias = of_expert(a->up_bias, e, gate->n_rows),
                          .act = a->act,
                          .swiglu = a->swiglu,
                          .x = r->x,
                          .ld_x = j.h,
                          .n = n};
    l.part[0] =
        (struct sl_linear_part){gate, of_expert(a->gate_bias, e, gate->n_rows), mid, gate->n_rows};
    sl_linear_run(&l);
    if (a->rank != NULL)
        sl_cpu_all_gather(
            be, &(struct sl_op_all_gather){.rank = a->rank,
                                           .part = mid,
                                           .part_bytes = (size_t)gate->n_rows * sizeof *mid,
                                           .n = n,
                                           .out = r->mid});
    sl_cpu_linear(be, &(struct sl_op_linear){.x = r->mid,
                                             .ld_x = down->n_cols,
                                             .w = down,
                                             .bias = of_expert(a->down_bias, e, down->n_rows),
                                             .n = n,
                                             .out = r->y,
                                             .ld_out = down->n_rows});
    sl_cpu_run(sl_cpu(be), add_row, &j, n, n * j.h);
}

struct begin_job {
    const struct sl_cpu *cpu;
    const struct sl_op_experts *a;
    int64_t h;
};

/* What a row has before its experts are added. */
static void begin_row(void *arg, uint32_t t, int thread_idx)
{
    const struct begin_job *j = arg;
    const struct sl_op_experts *a = j->a;
    float *out = a->out + (int64_t)t * j->h, scale = 1;
    (void)thread_idx;
    if (a->shared == NULL) {
        memset(out, 0, (size_t)j->h * sizeof *out);
        return;
    }
    if (a->shared_logit != NULL)
        scale = 1 / (1 + j->cpu->k.exp(-a->shared_logit[t]));
    for (int64_t k = 0; k < j->h; k++)
        out[k] = scale * a->shared[(int64_t)t * j->h + k];
}

void sl_cpu_experts(struct sl_backend *be, const struct sl_op_experts *a)
{
    const struct sl_weight *gate = &a->gate->mats[0];
    const struct sl_weight *down = &a->down->mats[0];
    SL_ASSERT(a->gate->n == a->up->n && a->gate->n == a->down->n);
    SL_ASSERT((a->gate_bias != NULL) == (a->up_bias != NULL));
    SL_ASSERT(!a->weigh_input || (a->gate_bias == NULL && a->down_bias == NULL));
    SL_ASSERT(a->rank != NULL || (down->n_rows == gate->n_cols && down->n_cols == gate->n_rows));
    const struct room r =
        room_of(a->scratch, a->n, a->gate->n, a->top_k, gate->n_cols, down->n_cols);
    struct begin_job begin = {sl_cpu(be), a, down->n_rows};
    sl_cpu_run(sl_cpu(be), begin_row, &begin, a->n, a->n * down->n_rows);
    sort_pairs(a, &r);
    for (int32_t e = 0; e < a->gate->n; e++)
        for (int32_t p = r.first[e]; p < r.first[e + 1]; p += BLOCK_ROWS)
            expert_block(be, a, e, &r, r.pairs + p, SL_MIN(r.first[e + 1] - p, BLOCK_ROWS));
}
