/* SPDX-License-Identifier: MIT
 * Matrix products: by how the weights are kept, to linear_rows.c or linear_packed.c.
 */
#include "cpu/linear.h"

static void run(const struct sl_linear *l)
{
    if (l->n <= 0)
        return;
    if (l->w->layout == SL_LAYOUT_ROWS && (l->up == NULL || l->up->layout == SL_LAYOUT_ROWS))
        sl_linear_rows(l);
    else
        sl_linear_packed(l);
}

void sl_cpu_linear(struct sl_backend *be, const struct sl_op_linear *a)
{
    struct sl_linear l = {.cpu = sl_cpu(be),
                          .w = a->w,
                          .bias = a->bias,
                          .x = a->x,
                          .ld_x = a->ld_x,
                          .n = a->n,
                          .out = a->out,
                          .ld_out = a->ld_out};
    run(&l);
}

void sl_cpu_linear_multi(struct sl_backend *be, const struct sl_op_linear_multi *a)
{
    for (int32_t i = 0; i < a->n_parts; i++)
        sl_cpu_linear(be, &(struct sl_op_linear){.x = a->x,
                                                 .ld_x = a->ld_x,
                                                 .w = a->part[i].w,
                                                 .bias = a->part[i].bias,
                                                 .n = a->n,
                                                 .out = a->part[i].out,
                                                 .ld_out = a->part[i].ld_out});
}

void sl_cpu_linear_gated_act(struct sl_backend *be, const struct sl_op_linear_gated_act *a)
{
    SL_ASSERT(a->gate->n_rows == a->up->n_rows && a->gate->n_cols == a->up->n_cols);
    struct sl_linear l = {.cpu = sl_cpu(be),
                          .w = a->gate,
                          .up = a->up,
                          .act = a->act,
                          .x = a->x,
                          .ld_x = a->ld_x,
                          .n = a->n,
                          .out = a->out,
                          .ld_out = a->gate->n_rows};
    run(&l);
}
