/* SPDX-License-Identifier: MIT
 * Grouped-query attention: project, rotate and store, attend; then the output projection, apart so
 * that the last layer runs it only for rows whose logits are wanted. A rank has some heads, and
 * their keys and values in its pages.
 */
#include "base/check.h"
#include "models/internal.h"

static struct sl_linear_part linear_part(const struct sl_run *r, int32_t layer, enum sl_slot w,
                                         enum sl_slot bias, float *out)
{
    const struct sl_weight *mat = &sl_param(r->m, layer, w)->mat;
    return (struct sl_linear_part){mat, sl_param(r->m, layer, bias)->vec, out, mat->n_rows};
}

/* What is not there is the last of q, k and v. */
static void project_qkv(struct sl_run *r, int32_t layer, int32_t n, float *q)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    struct sl_op_lora lora;
    r->m->be->vt->linear_multi(r->m->be,
                               &(struct sl_op_linear_multi){
                                   .x = r->norm,
                                   .ld_x = sl_layer_dim(&r->m->hp, l, SL_DIM_MIX_IN),
                                   .n = n,
                                   .n_parts = l->shares_kv ? 1
                                              : l->v_is_k  ? 2
                                                           : 3,
                                   .part = {linear_part(r, layer, SL_SLOT_Q, SL_SLOT_Q_BIAS, q),
                                            linear_part(r, layer, SL_SLOT_K, SL_SLOT_K_BIAS, r->k),
                                            linear_part(r, layer, SL_SLOT_V, SL_SLOT_V_BIAS, r->v)},
                                   .lora = sl_run_lora(r, layer, SL_LORA_Q, &lora),
                               });
}

void sl_mixer_gate_heads(struct sl_run *r, int32_t layer, int32_t n_heads, int32_t n, void *att)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    const struct sl_weight *mat = sl_run_mat(r, layer, SL_SLOT_OUT_GATE);
    struct sl_backend *be = r->m->be;
    be->vt->linear(be, &(struct sl_op_linear){
                           .x = l->mla.both_q ? sl_mixer_mla_q_row(r, layer) : r->norm,
                           .ld_x = mat->n_cols,
                           .w = mat,
                           .n = n,
                           .out = r->out_gate,
                           .ld_out = mat->n_rows,
                       });
    be->vt->gate_heads(
        be, &(struct sl_op_gate_heads){.x = att,
                                       .gate = r->out_gate,
                                       .n = n,
                                       .n_heads = n_heads,
                                       .dim = l->mixer == SL_MIX_MLA ? l->mla.v_dim : l->v_dim,
                                       .by_head = mat->n_rows == n_heads,
                                       .softplus = l->softplus_gate});
}

/* q is normed and rotated, k and v go to the pages. q NULL: there is none. */
static void store_heads(struct sl_run *r, int32_t layer, const struct sl_batch *batch, float *q)
{
    const struct sl_model *m = r->m;
    const struct sl_layer_desc *l = &m->layers[layer];
    const struct sl_rope *rope = l->rope >= 0 ? &m->ropes[l->rope] : NULL;
    const int32_t n_heads = l->n_heads / m->row_ranks, n_kv_heads = sl_rank_kv_heads(m, l);
    const int64_t ld_q = (int64_t)n_heads * l->head_dim, ld_k = (int64_t)n_kv_heads * l->head_dim;
    m->be->vt->qk_norm_rope_kv_store(m->be,
                                     &(struct sl_op_qk_norm_rope_kv_store){
                                         .batch = batch,
                                         .q = q,
                                         .k = l->shares_kv ? NULL : r->k,
                                         .v = l->v_is_k ? r->k : r->v,
                                         .ld_q = ld_q,
                                         .ld_k = ld_k,
                                         .ld_v = (int64_t)n_kv_heads * l->v_dim,
                                         .n_heads = q != NULL ? n_heads : 0,
                                         .n_kv_heads = n_kv_heads,
                                         .head_dim = l->head_dim,
                                         .v_dim = l->v_dim,
                                         .norm_v = l->norm_v,
                                         .q_norm = sl_run_vec(r, layer, SL_SLOT_Q_NORM),
                                         .k_norm = sl_run_vec(r, layer, SL_SLOT_K_NORM),
                                         .norm_rows = l->qk_norm == SL_QK_NORM_ROWS,
                                         .norm_bare = l->qk_norm == SL_QK_NORM_BARE,
                                         .norm_after = l->qk_norm_after,
                                         .clip = l->clip,
                                         .temperature = l->temperature,
                                         .eps = (float)m->hp.norm_eps,
                                         .rope = rope,
                                         .angles = rope != NULL ? r->angles[l->rope] : NULL,
                                         .kv = sl_kv_view(&r->cfg.kv, r->cfg.kv_pool, l->kv_source),
                                     });
    sl_top_pages_store(r, layer, batch);
}

void sl_mixer_gqa_heads(struct sl_run *r, int32_t layer, const struct sl_batch *batch, float *q)
{
    const struct sl_model *m = r->m;
    const struct sl_layer_desc *l = &m->layers[layer];
    const int32_t n_heads = l->n_heads / m->row_ranks, n_kv_heads = sl_rank_kv_heads(m, l);
    const int64_t ld_q = (int64_t)n_heads * l->head_dim;
    const int64_t ld_out = (int64_t)n_heads * l->v_dim;
    const bool stays = sl_run_by_columns(r, layer, SL_SLOT_O);
    struct sl_kv_view kv = sl_kv_view(&r->cfg.kv, r->cfg.kv_pool, l->kv_source);

    store_heads(r, layer, batch, q);
    struct sl_op_attention all = {
        .batch = batch,
        .q = q,
        .ld_q = ld_q,
        .n_heads = n_heads,
        .n_kv_heads = n_kv_heads,
        .head_dim = l->head_dim,
        .v_dim = l->v_dim,
        .scale = l->attn_scale,
        .whole = l->whole,
        .window = l->window,
        .chunks = l->chunks,
        .softcap = l->softcap,
        .sinks = sl_run_vec(r, layer, SL_SLOT_SINKS),
        .skip_factor = r->cfg.skip_softmax,
        .skip_counts = r->cfg.skip_counts,
        .kv = kv,
        .ld_out = ld_out,
    };
    sl_run_share_queries(r, &all);
    void *att = all.out = m->kv_ranks > 1 ? r->own_att : stays ? r->att : sl_run_part(r, r->att);
    if (l->index.top_k > 0) {
        sl_index_choose(r, layer, batch);
        sl_index_attend(r, layer, &all);
    } else if (sl_top_pages_layer(m, layer)) {
        sl_top_pages_attend(r, layer, &all);
    } else {
        m->be->vt->attention(m->be, &all);
    }
    if ((l->has & SL_HAS_OUT_GATE) != 0)
        sl_mixer_gate_heads(r, layer, n_heads, batch->n_tokens, att);
    if (!stays)
        sl_run_gather_open(r, att, ld_out, ld_out * m->row_ranks,
                           sl_dtype_info(m->be->vt->act_dtype)->block_bytes, batch->n_tokens,
                           r->att);
}

void sl_mixer_gqa_store(struct sl_run *r, int32_t layer, const struct sl_batch *batch)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    SL_ASSERT(!l->shares_kv && !l->v_is_k && l->qk_norm != SL_QK_NORM_ROWS);
    r->m->be->vt->linear_multi(
        r->m->be, &(struct sl_op_linear_multi){
                      .x = r->norm,
                      .ld_x = sl_layer_dim(&r->m->hp, l, SL_DIM_MIX_IN),
                      .n = batch->n_tokens,
                      .n_parts = 2,
                      .part = {linear_part(r, layer, SL_SLOT_K, SL_SLOT_K_BIAS, r->k),
                               linear_part(r, layer, SL_SLOT_V, SL_SLOT_V_BIAS, r->v)}});
    store_heads(r, layer, batch, NULL);
}

void sl_mixer_gqa_attend(struct sl_run *r, int32_t layer, const struct sl_batch *batch)
{
    float *q = sl_run_own_queries(r);
    project_qkv(r, layer, batch->n_tokens, q);
    sl_mixer_gqa_heads(r, layer, batch, q);
}

void sl_mixer_gqa_output(struct sl_run *r, int32_t layer, const void *att, int32_t n, float *y)
{
    const struct sl_model *m = r->m;
    const struct sl_weight *mat = &sl_param(m, layer, SL_SLOT_O)->mat;
    if (sl_run_by_columns(r, layer, SL_SLOT_O)) {
        sl_run_columns(r, layer, SL_SLOT_O, att, n, y);
        return;
    }
    float *part = sl_run_part(r, y);
    struct sl_op_lora lora;
    struct sl_spread spread;
    m->be->vt->linear(
        m->be, &(struct sl_op_linear){
                   .x = att,
                   .ld_x = mat->n_cols,
                   .w = mat,
                   .bias = sl_param(m, layer, SL_SLOT_O_BIAS)->vec,
                   .n = n,
                   .out = part,
                   .ld_out = mat->n_rows,
                   .lora = sl_run_lora(r, layer, SL_LORA_O, &lora),
                   .spread = sl_run_spread(r, y, mat->n_rows, m->hp.hidden, sizeof *y, &spread),
               });
    sl_run_gather_stream(r, part, mat->n_rows, n, y);
}
