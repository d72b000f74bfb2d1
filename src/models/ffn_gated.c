/* SPDX-License-Identifier: MIT
 * The gated MLP: gate and up in one operation, or in two where a backend has not that activation in
 * its products or the layer has biases; then down.
 */
#include "models/internal.h"

static void gate_and_up(struct sl_run *r, int32_t layer, const void *x, int32_t n, void *mid)
{
    const struct sl_model *m = r->m;
    const struct sl_weight *gate = sl_run_mat(r, layer, SL_SLOT_GATE);
    const struct sl_weight *up = sl_run_mat(r, layer, SL_SLOT_UP);
    const struct sl_layer_desc *l = &m->layers[layer];
    struct sl_op_lora room;
    const struct sl_op_lora *lora = sl_run_lora(r, layer, SL_LORA_GATE, &room);
    if (sl_run_gates(m->be, l)) {
        m->be->vt->linear_gated_act(m->be, &(struct sl_op_linear_gated_act){.x = x,
                                                                            .ld_x = m->hp.hidden,
                                                                            .gate = gate,
                                                                            .up = up,
                                                                            .act = l->act,
                                                                            .n = n,
                                                                            .out = mid,
                                                                            .lora = lora});
        return;
    }
    float *gated = r->up, *factor = r->up + (int64_t)n * gate->n_rows;
    m->be->vt->linear_multi(
        m->be, &(struct sl_op_linear_multi){
                   .x = x,
                   .ld_x = m->hp.hidden,
                   .n = n,
                   .n_parts = 2,
                   .part = {{gate, sl_run_vec(r, layer, SL_SLOT_GATE_BIAS), gated, gate->n_rows},
                            {up, sl_run_vec(r, layer, SL_SLOT_UP_BIAS), factor, up->n_rows}},
                   .lora = lora,
               });
    m->be->vt->activate(
        m->be,
        &(struct sl_op_activate){
            .x = gated, .act = l->act, .n = (int64_t)n * gate->n_rows, .out = mid, .up = factor});
}

void sl_ffn_gated(struct sl_run *r, int32_t layer, const void *x, int32_t n, float *y)
{
    const struct sl_weight *down = sl_run_mat(r, layer, SL_SLOT_DOWN);
    void *mid = sl_run_part(r, r->ffn);
    struct sl_op_lora lora;
    gate_and_up(r, layer, x, n, mid);
    sl_run_gather(r, mid, sl_run_mat(r, layer, SL_SLOT_GATE)->n_rows,
                  sl_dtype_info(r->m->be->vt->act_dtype)->block_bytes, n, r->ffn);
    float *part = sl_run_part(r, y);
    r->m->be->vt->linear(r->m->be, &(struct sl_op_linear){
                                       .x = r->ffn,
                                       .ld_x = down->n_cols,
                                       .w = down,
                                       .bias = sl_run_vec(r, layer, SL_SLOT_DOWN_BIAS),
                                       .n = n,
                                       .out = part,
                                       .ld_out = down->n_rows,
                                       .lora = sl_run_lora(r, layer, SL_LORA_DOWN, &lora),
                                   });
    sl_run_gather(r, part, down->n_rows, sizeof *y, n, y);
}
