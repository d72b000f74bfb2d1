/* SPDX-License-Identifier: MIT
 * The gated MLP, of a layer or beside its experts (where it may have no gate): gate and up in one
 * operation, or in two where a backend has not that activation in its products or the layer has
 * biases; then down.
 */
#include "models/internal.h"

/* Its matrices, and what adapters may change; SL_LORA_LAYER_MATS: nothing. */
struct mlp {
    const struct sl_weight *gate, *up, *down;
    const float *gate_bias, *up_bias, *down_bias; /* NULL: none */
    enum sl_lora_layer_mat gate_lora, down_lora;
};

static const struct sl_op_lora *lora_of(const struct sl_run *r, int32_t layer,
                                        enum sl_lora_layer_mat mat, struct sl_op_lora *room)
{
    return mat == SL_LORA_LAYER_MATS ? NULL : sl_run_lora(r, layer, mat, room);
}

/* Without a gate. */
static void plain_up(struct sl_run *r, int32_t layer, const struct mlp *mlp, const void *x,
                     int32_t n, void *mid)
{
    const struct sl_weight *up = mlp->up;
    struct sl_backend *be = r->m->be;
    be->vt->linear(be, &(struct sl_op_linear){.x = x,
                                              .ld_x = up->n_cols,
                                              .w = up,
                                              .bias = mlp->up_bias,
                                              .n = n,
                                              .out = r->up,
                                              .ld_out = up->n_rows});
    be->vt->activate(be, &(struct sl_op_activate){.x = r->up,
                                                  .act = r->m->layers[layer].act,
                                                  .n = (int64_t)n * up->n_rows,
                                                  .out = mid});
}

static void gate_and_up(struct sl_run *r, int32_t layer, const struct mlp *mlp, const void *x,
                        int32_t n, void *mid, const struct sl_spread *spread)
{
    const struct sl_model *m = r->m;
    const struct sl_layer_desc *l = &m->layers[layer];
    const struct sl_weight *gate = mlp->gate, *up = mlp->up;
    struct sl_op_lora room;
    const struct sl_op_lora *lora = lora_of(r, layer, mlp->gate_lora, &room);
    if (mlp->gate == NULL) {
        plain_up(r, layer, mlp, x, n, mid);
        return;
    }
    if (sl_run_gates(m->be, l)) {
        m->be->vt->linear_gated_act(m->be, &(struct sl_op_linear_gated_act){.x = x,
                                                                            .ld_x = m->hp.hidden,
                                                                            .gate = gate,
                                                                            .up = up,
                                                                            .act = l->act,
                                                                            .n = n,
                                                                            .out = mid,
                                                                            .lora = lora,
                                                                            .spread = spread});
        return;
    }
    float *gated = r->up, *factor = r->up + (int64_t)n * gate->n_rows;
    m->be->vt->linear_multi(m->be, &(struct sl_op_linear_multi){
                                       .x = x,
                                       .ld_x = m->hp.hidden,
                                       .n = n,
                                       .n_parts = 2,
                                       .part = {{gate, mlp->gate_bias, gated, gate->n_rows},
                                                {up, mlp->up_bias, factor, up->n_rows}},
                                       .lora = lora,
                                   });
    if (l->gate_scale != 0)
        m->be->vt->scale_logits(m->be, &(struct sl_op_scale_logits){.x = gated,
                                                                    .n = (int64_t)n * gate->n_rows,
                                                                    .scale = l->gate_scale});
    if (l->cuts_gate)
        m->be->vt->cut_gate(m->be, &(struct sl_op_cut_gate){.x = gated,
                                                            .n = n,
                                                            .h = (int32_t)gate->n_rows,
                                                            .deviations = l->gate_deviations});
    m->be->vt->activate(m->be, &(struct sl_op_activate){.x = gated,
                                                        .act = l->act,
                                                        .n = (int64_t)n * gate->n_rows,
                                                        .out = mid,
                                                        .up = factor,
                                                        .swiglu = l->mlp_swiglu});
}

/* What goes into down, to r->ffn, whole on every rank. */
static void run_middle(struct sl_run *r, int32_t layer, const struct mlp *mlp, const void *x,
                       int32_t n)
{
    const size_t act = sl_dtype_info(r->m->be->vt->act_dtype)->block_bytes;
    void *mid = sl_run_part(r, r->ffn);
    struct sl_spread spread;
    gate_and_up(r, layer, mlp, x, n, mid,
                sl_run_spread(r, r->ffn, mlp->up->n_rows, mlp->down->n_cols, act, &spread));
    sl_run_gather_open(r, mid, mlp->up->n_rows, mlp->down->n_cols, act, n, r->ffn);
}

/* spread: for a gather of out that follows; or NULL */
static void run_down(struct sl_run *r, int32_t layer, const struct mlp *mlp, int32_t n, float *out,
                     const struct sl_spread *spread)
{
    struct sl_op_lora room;
    r->m->be->vt->linear(r->m->be, &(struct sl_op_linear){
                                       .x = r->ffn,
                                       .ld_x = mlp->down->n_cols,
                                       .w = mlp->down,
                                       .bias = mlp->down_bias,
                                       .n = n,
                                       .out = out,
                                       .ld_out = mlp->down->n_rows,
                                       .lora = lora_of(r, layer, mlp->down_lora, &room),
                                       .spread = spread,
                                   });
}

void sl_ffn_gated(struct sl_run *r, int32_t layer, const void *x, int32_t n, float *y)
{
    const struct mlp mlp = {
        .gate = sl_run_mat(r, layer, SL_SLOT_GATE),
        .up = sl_run_mat(r, layer, SL_SLOT_UP),
        .down = sl_run_mat(r, layer, SL_SLOT_DOWN),
        .gate_bias = sl_run_vec(r, layer, SL_SLOT_GATE_BIAS),
        .up_bias = sl_run_vec(r, layer, SL_SLOT_UP_BIAS),
        .down_bias = sl_run_vec(r, layer, SL_SLOT_DOWN_BIAS),
        .gate_lora = SL_LORA_GATE,
        .down_lora = SL_LORA_DOWN,
    };
    if (sl_run_by_columns(r, layer, SL_SLOT_DOWN)) {
        gate_and_up(r, layer, &mlp, x, n, r->ffn, NULL);
        sl_run_columns(r, layer, SL_SLOT_DOWN, r->ffn, n, y);
        return;
    }
    run_middle(r, layer, &mlp, x, n);
    float *part = sl_run_part(r, y);
    struct sl_spread spread;
    run_down(r, layer, &mlp, n, part,
             sl_run_spread(r, y, mlp.down->n_rows, r->m->hp.hidden, sizeof *y, &spread));
    sl_run_gather_stream(r, part, mlp.down->n_rows, n, y);
}

float *sl_ffn_shared(struct sl_run *r, int32_t layer, const void *x, int32_t n, float *part)
{
    const struct mlp mlp = {
        .gate =
            r->m->layers[layer].plain_experts ? NULL : sl_run_mat(r, layer, SL_SLOT_SHARED_GATE),
        .up = sl_run_mat(r, layer, SL_SLOT_SHARED_UP),
        .down = sl_run_mat(r, layer, SL_SLOT_SHARED_DOWN),
        .gate_lora = SL_LORA_LAYER_MATS,
        .down_lora = SL_LORA_LAYER_MATS,
    };
    run_middle(r, layer, &mlp, x, n);
    float *out = part != NULL ? part : sl_run_part(r, r->shared); /* behind the middle's room */
    run_down(r, layer, &mlp, n, out, NULL);
    return out;
}
