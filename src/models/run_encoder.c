/* SPDX-License-Identifier: MIT
 * The walk of a model that reads whole texts: embeddings of words, places and types, normed; then
 * post-norm blocks, x = norm(x + attention(x)), x = norm(x + mlp(x)).
 *
 * A sequence is computed in one step. Its keys and values are in pages only while a layer is
 * computed, so that attention is the same operation as everywhere, and every layer writes over the
 * one before (SL_KV_STEP). Activations are float32 here: no other backend has these operations.
 */
#include "base/check.h"
#include "models/internal.h"

static const struct sl_weight *mat(const struct sl_run *r, int32_t layer, enum sl_slot slot)
{
    return &sl_param(r->m, layer, slot)->mat;
}

static const float *vec(const struct sl_run *r, int32_t layer, enum sl_slot slot)
{
    return sl_param(r->m, layer, slot)->vec;
}

static void project(struct sl_run *r, int32_t layer, enum sl_slot w, enum sl_slot bias,
                    const void *x, int32_t n, float *out)
{
    struct sl_backend *be = r->m->be;
    be->vt->linear(be, &(struct sl_op_linear){
                           .x = x,
                           .ld_x = mat(r, layer, w)->n_cols,
                           .w = mat(r, layer, w),
                           .bias = vec(r, layer, bias),
                           .n = n,
                           .out = out,
                           .ld_out = mat(r, layer, w)->n_rows,
                       });
}

/* x = norm(x + y) */
static void add_norm(struct sl_run *r, int32_t layer, enum sl_slot w, enum sl_slot b,
                     const float *y, int32_t n)
{
    struct sl_backend *be = r->m->be;
    be->vt->layernorm(be, &(struct sl_op_layernorm){
                              .x = r->x,
                              .y = y,
                              .w = vec(r, layer, w),
                              .b = vec(r, layer, b),
                              .eps = (float)r->m->hp.norm_eps,
                              .n = n,
                              .h = r->m->hp.hidden,
                              .out = r->x,
                          });
}

static struct sl_linear_part part(const struct sl_run *r, int32_t layer, enum sl_slot w,
                                  enum sl_slot bias, float *out)
{
    return (struct sl_linear_part){mat(r, layer, w), vec(r, layer, bias), out,
                                   mat(r, layer, w)->n_rows};
}

static void attend(struct sl_run *r, int32_t layer, const struct sl_batch *b)
{
    struct sl_backend *be = r->m->be;
    const struct sl_hparams *hp = &r->m->hp;
    const int64_t ld = sl_hparams_dim(hp, SL_DIM_Q);
    struct sl_kv_view kv = sl_kv_view(&r->cfg.kv, r->cfg.kv_pool, 0);
    be->vt->linear_multi(be, &(struct sl_op_linear_multi){
                                 .x = r->x,
                                 .ld_x = hp->hidden,
                                 .n = b->n_tokens,
                                 .n_parts = 3,
                                 .part = {part(r, layer, SL_SLOT_Q, SL_SLOT_Q_BIAS, r->q),
                                          part(r, layer, SL_SLOT_K, SL_SLOT_K_BIAS, r->k),
                                          part(r, layer, SL_SLOT_V, SL_SLOT_V_BIAS, r->v)},
                             });
    be->vt->qk_norm_rope_kv_store(be, &(struct sl_op_qk_norm_rope_kv_store){
                                          .batch = b,
                                          .q = r->q,
                                          .k = r->k,
                                          .v = r->v,
                                          .ld_q = ld,
                                          .ld_k = ld,
                                          .ld_v = ld,
                                          .n_heads = hp->n_heads,
                                          .n_kv_heads = hp->n_kv_heads,
                                          .head_dim = hp->head_dim,
                                          .kv = kv,
                                      });
    be->vt->attention(be, &(struct sl_op_attention){
                              .batch = b,
                              .q = r->q,
                              .ld_q = ld,
                              .n_heads = hp->n_heads,
                              .n_kv_heads = hp->n_kv_heads,
                              .head_dim = hp->head_dim,
                              .scale = r->m->layers[layer].attn_scale,
                              .whole = true,
                              .kv = kv,
                              .out = r->att,
                              .ld_out = ld,
                          });
}

static void feed_forward(struct sl_run *r, int32_t layer, int32_t n)
{
    struct sl_backend *be = r->m->be;
    project(r, layer, SL_SLOT_UP, SL_SLOT_UP_BIAS, r->x, n, r->ffn);
    be->vt->activate(be, &(struct sl_op_activate){
                             .x = r->ffn,
                             .act = r->m->layers[layer].act,
                             .n = (int64_t)n * r->m->hp.intermediate,
                             .out = r->ffn,
                         });
    project(r, layer, SL_SLOT_DOWN, SL_SLOT_DOWN_BIAS, r->ffn, n, r->y);
}

void sl_run_encoder(struct sl_run *r, const struct sl_batch *b)
{
    struct sl_backend *be = r->m->be;
    const int32_t n = b->n_tokens;
    SL_ASSERT(be->vt->act_dtype == SL_DTYPE_F32);
    be->vt->embed_positions(be, &(struct sl_op_embed_positions){
                                    .batch = b,
                                    .word = mat(r, 0, SL_SLOT_EMBED),
                                    .position = mat(r, 0, SL_SLOT_POSITIONS),
                                    .type = mat(r, 0, SL_SLOT_TYPES),
                                    .first = sl_first_place(r->m->desc, &r->m->hp),
                                    .one_type = r->m->desc->behind_pad || r->m->hp.n_types < 2,
                                    .out = r->x,
                                });
    add_norm(r, 0, SL_SLOT_EMBED_NORM, SL_SLOT_EMBED_NORM_BIAS, NULL, n);
    for (int32_t l = 0; l < r->m->hp.n_layers; l++) {
        sl_run_next_part(r);
        attend(r, l, b);
        sl_run_next_part(r);
        project(r, l, SL_SLOT_O, SL_SLOT_O_BIAS, r->att, n, r->y);
        add_norm(r, l, SL_SLOT_ATTN_NORM, SL_SLOT_ATTN_NORM_BIAS, r->y, n);
        sl_run_next_part(r);
        feed_forward(r, l, n);
        add_norm(r, l, SL_SLOT_FFN_NORM, SL_SLOT_FFN_NORM_BIAS, r->y, n);
    }
    sl_run_next_part(r);
}
