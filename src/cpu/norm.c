/* SPDX-License-Identifier: MIT
 * Operations on whole rows: embedding, norms, gather. Each row is one item.
 */
#include "cpu/backend.h"

#include <string.h>

struct embed_job {
    const struct sl_cpu *cpu;
    const struct sl_op_embed *a;
};

struct norm_job {
    const struct sl_cpu *cpu;
    float *sum; /* NULL: plain norm; else x + y goes here first */
    const float *x, *y, *w;
    float eps;
    int32_t h;
    float *out;
};

static void embed_row(void *arg, uint32_t t, int thread_idx)
{
    const struct embed_job *j = arg;
    const struct sl_weight *w = j->a->w;
    (void)thread_idx;
    float *out = j->a->out + (int64_t)t * w->n_cols;
    j->cpu->k.decode[w->dtype]((const uint8_t *)w->data + (size_t)j->a->ids[t] * w->row_bytes, out,
                               w->n_cols);
    for (int64_t i = 0; i < w->n_cols && j->a->scale != 1.0f; i++)
        out[i] *= j->a->scale;
}

void sl_cpu_embed(struct sl_backend *be, const struct sl_op_embed *a)
{
    struct embed_job j = {sl_cpu(be), a};
    sl_cpu_run(sl_cpu(be), embed_row, &j, a->n, a->n * a->w->n_cols);
}

static void norm_row(void *arg, uint32_t t, int thread_idx)
{
    const struct norm_job *j = arg;
    (void)thread_idx;
    int64_t at = (int64_t)t * j->h;
    if (j->sum != NULL)
        j->cpu->k.add(j->sum + at, j->y + at, j->h);
    j->cpu->k.rmsnorm(j->x + at, j->w, j->eps, j->h, j->out + at);
}

void sl_cpu_rmsnorm(struct sl_backend *be, const struct sl_op_rmsnorm *a)
{
    struct norm_job j = {
        .cpu = sl_cpu(be), .x = a->x, .w = a->w, .eps = a->eps, .h = a->h, .out = a->out};
    sl_cpu_run(sl_cpu(be), norm_row, &j, a->n, (int64_t)a->n * a->h);
}

void sl_cpu_add_rmsnorm(struct sl_backend *be, const struct sl_op_add_rmsnorm *a)
{
    struct norm_job j = {.cpu = sl_cpu(be),
                         .sum = a->x,
                         .x = a->x,
                         .y = a->y,
                         .w = a->w,
                         .eps = a->eps,
                         .h = a->h,
                         .out = a->out};
    sl_cpu_run(sl_cpu(be), norm_row, &j, a->n, (int64_t)a->n * a->h);
}

void sl_cpu_gather_rows(struct sl_backend *be, const struct sl_op_gather_rows *a)
{
    const uint8_t *x = a->x;
    uint8_t *out = a->out;
    (void)be;
    for (int32_t i = 0; i < a->n; i++)
        memcpy(out + (size_t)i * a->row_bytes, x + (size_t)a->rows[i] * a->row_bytes, a->row_bytes);
}
