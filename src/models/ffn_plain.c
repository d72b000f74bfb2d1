/* SPDX-License-Identifier: MIT
 * The MLP without a gate: up, activation, down, with biases where the layer has them.
 */
#include "models/internal.h"

static void ffn_plain_project(struct sl_run *r, int32_t layer, enum sl_slot w, enum sl_slot bias,
                              enum sl_lora_layer_mat mat, const void *x, int32_t n, float *out)
{
    struct sl_op_lora lora;
    r->m->be->vt->linear(r->m->be, &(struct sl_op_linear){
                                       .x = x,
                                       .ld_x = sl_run_mat(r, layer, w)->n_cols,
                                       .w = sl_run_mat(r, layer, w),
                                       .bias = sl_run_vec(r, layer, bias),
                                       .n = n,
                                       .out = out,
                                       .ld_out = sl_run_mat(r, layer, w)->n_rows,
                                       .lora = sl_run_lora(r, layer, mat, &lora),
                                   });
}

void sl_ffn_plain(struct sl_run *r, int32_t layer, const void *x, int32_t n, float *y)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    const int64_t mid = sl_run_mat(r, layer, SL_SLOT_UP)->n_rows;
    const size_t act_bytes = sl_dtype_info(r->m->be->vt->act_dtype)->block_bytes;
    void *ffn = sl_run_part(r, r->ffn);
    ffn_plain_project(r, layer, SL_SLOT_UP, SL_SLOT_UP_BIAS, SL_LORA_UP, x, n, r->up);
    r->m->be->vt->activate(r->m->be, &(struct sl_op_activate){
                                         .x = r->up,
                                         .act = l->act,
                                         .xielu = l->xielu,
                                         .n = (int64_t)n * mid,
                                         .out = ffn,
                                     });
    sl_run_gather(r, ffn, mid, act_bytes, n, r->ffn);
    float *part = sl_run_part(r, y);
    ffn_plain_project(r, layer, SL_SLOT_DOWN, SL_SLOT_DOWN_BIAS, SL_LORA_DOWN, r->ffn, n, part);
    sl_run_gather_stream(r, part, sl_run_mat(r, layer, SL_SLOT_DOWN)->n_rows, n, y);
}
