/* SPDX-License-Identifier: MIT
 * Matrix products: by how the weights are kept, to linear_rows.c or linear_packed.c. One product is
 * a job of the pool with one part.
 */
#include "cpu/linear.h"

static bool any_packed(const struct sl_linear *l)
{
    bool any = l->up != NULL && l->up->layout != SL_LAYOUT_ROWS;
    for (int i = 0; i < l->n_parts; i++)
        any = any || l->part[i].w->layout != SL_LAYOUT_ROWS;
    return any;
}

void sl_linear_bias_gate(const struct sl_linear *l, int64_t row, int n, float *gate, float *up)
{
    if (l->part[0].bias == NULL)
        return;
    l->cpu->k.add(gate, l->part[0].bias + row, n);
    l->cpu->k.add(up, l->up_bias + row, n);
}

void sl_linear_join_gate(const struct sl_linear *l, const float *gate, const float *up, int n,
                         float *out)
{
    if (l->swiglu.limit > 0)
        l->cpu->k.swiglu(&l->swiglu, gate, up, n, out);
    else
        l->cpu->k.act(l->act, gate, up, n, out);
}

/* Says what is read next to whoever brings weights into memory. */
static void announce(const struct sl_linear *l)
{
    const void *weights[SL_MAX_LINEAR_PARTS + 1];
    int n = 0;
    for (int i = 0; i < l->n_parts; i++)
        weights[n++] = l->part[i].w->data;
    if (l->up != NULL)
        weights[n++] = l->up->data;
    sl_weight_stream_use(l->cpu->weights, weights, n);
}

void sl_linear_run(struct sl_linear *l)
{
    l->n_cols = l->part[0].w->n_cols;
    for (int i = 1; i < l->n_parts; i++)
        SL_ASSERT(l->part[i].w->n_cols == l->n_cols);
    if (l->n <= 0)
        return;
    if (l->cpu->weights != NULL)
        announce(l);
    if (any_packed(l))
        sl_linear_packed(l);
    else
        sl_linear_rows(l);
}

void sl_cpu_linear(struct sl_backend *be, const struct sl_op_linear *a)
{
    struct sl_linear l = {
        .cpu = sl_cpu(be), .n_parts = 1, .x = a->x, .ld_x = a->ld_x, .n = a->n, .lora = a->lora};
    l.part[0] = (struct sl_linear_part){a->w, a->bias, a->out, a->ld_out};
    sl_linear_run(&l);
}

void sl_cpu_linear_multi(struct sl_backend *be, const struct sl_op_linear_multi *a)
{
    struct sl_linear l = {.cpu = sl_cpu(be),
                          .n_parts = a->n_parts,
                          .x = a->x,
                          .ld_x = a->ld_x,
                          .n = a->n,
                          .lora = a->lora};
    SL_ASSERT(a->n_parts >= 1 && a->n_parts <= SL_MAX_LINEAR_PARTS);
    for (int i = 0; i < a->n_parts; i++)
        l.part[i] = a->part[i];
    sl_linear_run(&l);
}

void sl_cpu_linear_gated_act(struct sl_backend *be, const struct sl_op_linear_gated_act *a)
{
    SL_ASSERT(a->gate->n_rows == a->up->n_rows && a->gate->n_cols == a->up->n_cols);
    struct sl_linear l = {.cpu = sl_cpu(be),
                          .n_parts = 1,
                          .up = a->up,
                          .act = a->act,
                          .x = a->x,
                          .ld_x = a->ld_x,
                          .n = a->n,
                          .lora = a->lora};
    l.part[0] = (struct sl_linear_part){a->gate, NULL, a->out, a->gate->n_rows};
    sl_linear_run(&l);
}
