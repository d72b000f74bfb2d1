/* SPDX-License-Identifier: MIT
 * Products of heads: each has a matrix of its own, a few hundred rows and columns, and values of
 * its own. Heads by heads that would be a job of the pool each, too small for all threads, so heads
 * are worked on together: the values of all are brought to the form their matrices want, then
 * panels of all are the items of one job. Sums are those of linear.
 */
#include "cpu/backend.h"

#include "base/check.h"
#include "cpu/block.h"

#include <string.h>

#define MOST_HEADS 64  /* at a time */
#define TOKENS     128 /* of a block, at most */

struct job {
    struct sl_cpu *cpu;
    const struct sl_op_heads_linear *a;
    struct sl_block b[MOST_HEADS]; /* of heads first .. first + n_heads - 1 */
    int32_t first, n_heads;
    int32_t t0, n_t; /* tokens */
    int64_t n_items; /* of a head */
};

static const float *heads_linear_row_of(const struct job *j, int32_t head, int32_t t)
{
    return (const float *)j->a->x + (j->t0 + t) * j->a->ld_x + head * j->a->step_x;
}

static void heads_linear_place(void *arg, uint32_t i, int thread_idx)
{
    const struct job *j = arg;
    const int32_t head = (int32_t)i / j->n_t, t = (int32_t)i % j->n_t;
    (void)thread_idx;
    sl_block_place(&j->b[head], t, heads_linear_row_of(j, j->first + head, t));
}

static void heads_linear_multiply(void *arg, uint32_t i, int thread_idx)
{
    const struct job *j = arg;
    const int32_t head = (int32_t)(i / j->n_items);
    const int64_t row = (int64_t)(i % j->n_items) * SL_ITEM_ROWS;
    const struct sl_weight *w = &j->a->w->mats[j->first + head];
    const int n = (int)SL_MIN(w->n_rows - row, SL_ITEM_ROWS);
    float *acc = j->cpu->scratch[thread_idx].packed[0];
    sl_block_dot(&j->b[head], w, row / SL_I8_PANEL, SL_CEIL_DIV(n, SL_I8_PANEL), NULL, acc,
                 thread_idx);
    for (int32_t t = 0; t < j->n_t; t++)
        memcpy(j->a->out + (j->t0 + t) * j->a->ld_out + (j->first + head) * j->a->step_out + row,
               acc + t * SL_ITEM_ROWS, (size_t)n * sizeof *acc);
}

/* Gives the next heads their places, as many as there is room for. */
static void heads_linear_cut(struct job *j)
{
    size_t used = 0;
    for (j->n_heads = 0; j->n_heads < SL_MIN(MOST_HEADS, j->a->w->n - j->first); j->n_heads++) {
        const struct sl_weight *w = &j->a->w->mats[j->first + j->n_heads];
        struct sl_block *b = &j->b[j->n_heads];
        *b = (struct sl_block){.cpu = j->cpu,
                               .x = heads_linear_row_of(j, j->first + j->n_heads, 0),
                               .ld_x = j->a->ld_x,
                               .n_t = j->n_t,
                               .n_k = w->n_cols};
        sl_block_meet(b, w);
        const size_t n_bytes = SL_ROUND_UP(sl_block_bytes(b), (size_t)64);
        if (used + n_bytes > j->cpu->x_packed_bytes)
            break;
        sl_block_cut(b, (uint8_t *)j->cpu->x_packed + used);
        used += n_bytes;
    }
    SL_ASSERT(j->n_heads > 0); /* a matrix has room for a block of more tokens than ours */
}

void sl_cpu_heads_linear(struct sl_backend *be, const struct sl_op_heads_linear *a)
{
    struct job j = {.cpu = sl_cpu(be), .a = a};
    const struct sl_weight *w = &a->w->mats[0];
    j.n_items = SL_CEIL_DIV(w->n_rows, (int64_t)SL_ITEM_ROWS);
    for (j.t0 = 0; j.t0 < a->n; j.t0 += j.n_t) {
        j.n_t = SL_MIN(a->n - j.t0, TOKENS);
        for (j.first = 0; j.first < a->w->n; j.first += j.n_heads) {
            heads_linear_cut(&j);
            const int64_t work = (int64_t)j.n_heads * j.n_t * w->n_cols;
            sl_cpu_run(j.cpu, heads_linear_place, &j, (int64_t)j.n_heads * j.n_t, work);
            sl_cpu_run(j.cpu, heads_linear_multiply, &j, j.n_heads * j.n_items, work * w->n_rows);
        }
    }
}
