/* SPDX-License-Identifier: MIT
 * Gated feed-forward: down(act(gate x) * (up x)).
 */
#include "models/internal.h"

void sl_ffn_gated(struct sl_run *r, int32_t layer, const void *x, int32_t n, float *y)
{
    const struct sl_model *m = r->m;
    const struct sl_weight *down = &sl_param(m, layer, SL_SLOT_DOWN)->mat;
    struct sl_op_lora lora;
    m->be->vt->linear_gated_act(m->be, &(struct sl_op_linear_gated_act){
                                           .x = x,
                                           .ld_x = m->hp.hidden,
                                           .gate = &sl_param(m, layer, SL_SLOT_GATE)->mat,
                                           .up = &sl_param(m, layer, SL_SLOT_UP)->mat,
                                           .act = m->layers[layer].act,
                                           .n = n,
                                           .out = r->ffn,
                                           .lora = sl_run_lora(r, layer, SL_LORA_GATE, &lora),
                                       });
    m->be->vt->linear(m->be, &(struct sl_op_linear){
                                 .x = r->ffn,
                                 .ld_x = down->n_cols,
                                 .w = down,
                                 .n = n,
                                 .out = y,
                                 .ld_out = down->n_rows,
                                 .lora = sl_run_lora(r, layer, SL_LORA_DOWN, &lora),
                             });
}
