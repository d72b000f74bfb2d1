/* SPDX-License-Identifier: MIT
 * Grouped-query attention: project, rotate and store, attend; then the output projection, apart so
 * that the last layer runs it only for rows whose logits are wanted.
 */
#include "models/internal.h"

static struct sl_linear_part part(const struct sl_run *r, int32_t layer, enum sl_slot w,
                                  enum sl_slot bias, float *out)
{
    const struct sl_weight *mat = &sl_param(r->m, layer, w)->mat;
    return (struct sl_linear_part){mat, sl_param(r->m, layer, bias)->vec, out, mat->n_rows};
}

static void project_qkv(struct sl_run *r, int32_t layer, int32_t n)
{
    struct sl_op_lora lora;
    r->m->be->vt->linear_multi(r->m->be,
                               &(struct sl_op_linear_multi){
                                   .x = r->norm,
                                   .ld_x = r->m->hp.hidden,
                                   .n = n,
                                   .n_parts = 3,
                                   .part = {part(r, layer, SL_SLOT_Q, SL_SLOT_Q_BIAS, r->q),
                                            part(r, layer, SL_SLOT_K, SL_SLOT_K_BIAS, r->k),
                                            part(r, layer, SL_SLOT_V, SL_SLOT_V_BIAS, r->v)},
                                   .lora = sl_run_lora(r, layer, SL_LORA_Q, &lora),
                               });
}

void sl_mixer_gqa_attend(struct sl_run *r, int32_t layer, const struct sl_batch *batch)
{
    const struct sl_model *m = r->m;
    const struct sl_hparams *hp = &m->hp;
    const struct sl_layer_desc *l = &m->layers[layer];
    int64_t ld_q = sl_hparams_dim(hp, SL_DIM_Q), ld_kv = sl_hparams_dim(hp, SL_DIM_KV);
    struct sl_kv_view kv = sl_kv_view(&r->cfg.kv, r->cfg.kv_pool, layer);

    project_qkv(r, layer, batch->n_tokens);
    m->be->vt->qk_norm_rope_kv_store(m->be, &(struct sl_op_qk_norm_rope_kv_store){
                                                .batch = batch,
                                                .q = r->q,
                                                .k = r->k,
                                                .v = r->v,
                                                .ld_q = ld_q,
                                                .ld_k = ld_kv,
                                                .ld_v = ld_kv,
                                                .n_heads = hp->n_heads,
                                                .n_kv_heads = hp->n_kv_heads,
                                                .head_dim = hp->head_dim,
                                                .q_norm = sl_param(m, layer, SL_SLOT_Q_NORM)->vec,
                                                .k_norm = sl_param(m, layer, SL_SLOT_K_NORM)->vec,
                                                .eps = (float)hp->norm_eps,
                                                .rope = &m->rope,
                                                .angles = r->angles,
                                                .kv = kv,
                                            });
    m->be->vt->attention(m->be, &(struct sl_op_attention){
                                    .batch = batch,
                                    .q = r->q,
                                    .ld_q = ld_q,
                                    .n_heads = hp->n_heads,
                                    .n_kv_heads = hp->n_kv_heads,
                                    .head_dim = hp->head_dim,
                                    .scale = l->attn_scale,
                                    .window = l->window,
                                    .skip_factor = r->cfg.skip_softmax,
                                    .skip_counts = r->cfg.skip_counts,
                                    .kv = kv,
                                    .out = r->att,
                                    .ld_out = ld_q,
                                });
}

void sl_mixer_gqa_output(struct sl_run *r, int32_t layer, const void *att, int32_t n, float *y)
{
    const struct sl_model *m = r->m;
    const struct sl_weight *mat = &sl_param(m, layer, SL_SLOT_O)->mat;
    struct sl_op_lora lora;
    m->be->vt->linear(m->be, &(struct sl_op_linear){
                                 .x = att,
                                 .ld_x = mat->n_cols,
                                 .w = mat,
                                 .bias = sl_param(m, layer, SL_SLOT_O_BIAS)->vec,
                                 .n = n,
                                 .out = y,
                                 .ld_out = mat->n_rows,
                                 .lora = sl_run_lora(r, layer, SL_LORA_O, &lora),
                             });
}
