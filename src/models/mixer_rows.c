/* SPDX-License-Identifier: MIT
 * Attention to a window and to rows that stand for several tokens each (DeepSeek V4). All heads
 * share one key, which is their value too; its last dimensions are rotated, and what attention
 * gives is rotated back by the position of the query, so that only distances count. Layers differ
 * in what is there beside the window: nothing, rows of a few tokens, of which an index chooses, or
 * rows of many. The index has rows of its own, made in the same way.
 *
 * The output is two products: each group of heads goes through a matrix of its own, then all of
 * that through another.
 *
 * What tokens have that are not enough for a row yet is a recurrent state (struct sl_op_compress).
 *
 * An index of latent attention may have such rows too (GLM-5.3): of keys that are normed before,
 * and not rotated.
 */
#include "base/check.h"
#include "models/internal.h"

/* ---------------------------------------------------------------- load */

int sl_rows_create(struct sl_model *m, int32_t layer, struct sl_error *err)
{
    struct sl_head_stacks *s = &m->heads[layer];
    const int32_t n = m->layers[layer].rows.o_groups;
    s->mats = sl_calloc((size_t)n, sizeof *s->mats);
    if (s->mats == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for matrices of %d groups of heads", n);
    for (int32_t g = 0; g < n; g++)
        s->mats[g] = sl_param(m, layer, SL_SLOT_O_DOWN)[g].mat;
    if (m->be->vt->device != NULL) /* as wide as others that are products of their own */
        return 0;
    return m->be->vt->stack_create(m->be, s->mats, n, &s->k_up, err);
}

static size_t rows_index_state(const struct sl_layer_desc *l)
{
    return l->index.n_heads > 0 ? sl_compress_state(l->index.dim, l->rows.overlap) : 0;
}

/* Latent attention has such rows only in its index. */
static size_t rows_index_offset(const struct sl_layer_desc *l)
{
    return l->mixer == SL_MIX_ROWS ? sl_compress_state(l->head_dim, l->rows.overlap) : 0;
}

size_t sl_rows_state_bytes(const struct sl_layer_desc *l)
{
    return rows_index_offset(l) + rows_index_state(l);
}

/* Rows made of several tokens that a position can see, whatever it chooses of them. */
static int32_t rows_far_most(const struct sl_model *m, const struct sl_layer_desc *l)
{
    return l->rows.ratio > 0 ? m->hp.context / l->rows.ratio : 0;
}

/* Rows that a position can attend to. */
static int32_t rows_most(const struct sl_model *m, const struct sl_layer_desc *l)
{
    int32_t far = rows_far_most(m, l);
    if (l->index.top_k > 0)
        far = SL_MIN(far, l->index.top_k);
    return far + SL_MIN(l->window, m->hp.context);
}

enum { ROOM = 32 * (1 << 20) }; /* bytes that what they see is copied to, if they need as many */

size_t sl_rows_room(const struct sl_model *m, const struct sl_backend *be, enum sl_dtype kv,
                    int32_t n_tokens)
{
    size_t most = 0;
    for (int32_t i = 0; i < m->hp.n_layers && be->vt->device == NULL;
         i++) { /* else read in place */
        const struct sl_layer_desc *l = &m->layers[i];
        if (l->mixer != SL_MIX_ROWS)
            continue;
        const size_t one = sl_compressed_room(kv, l->head_dim, rows_most(m, l), 1);
        most = SL_MAX(most, one * SL_MIN(SL_MAX(ROOM / one, 1), (size_t)n_tokens));
    }
    return most;
}

/* ---------------------------------------------------------------- run */

static struct sl_linear_part rows_part(const struct sl_run *r, int32_t layer, enum sl_slot slot,
                                       float *out)
{
    const struct sl_weight *mat = sl_run_mat(r, layer, slot);
    return (struct sl_linear_part){mat, NULL, out, mat->n_rows};
}

static void rows_linear(struct sl_run *r, const struct sl_weight *w, const void *x, int32_t n,
                        float *out)
{
    r->m->be->vt->linear(
        r->m->be, &(struct sl_op_linear){
                      .x = x, .ld_x = w->n_cols, .w = w, .n = n, .out = out, .ld_out = w->n_rows});
}

static void rows_turn(struct sl_run *r, int32_t layer, int32_t n_heads, int32_t dim, bool norm,
                      int32_t n, float *x)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    r->m->be->vt->turn_tails(r->m->be, &(struct sl_op_turn_tails){.x = x,
                                                                  .n = n,
                                                                  .n_heads = n_heads,
                                                                  .dim = dim,
                                                                  .norm = norm,
                                                                  .eps = l->mla.norm_eps,
                                                                  .rope = &r->m->ropes[l->rope],
                                                                  .angles = r->angles[l->rope]});
}

/* r->latent_q_norm, r->q and r->k, of r->norm. */
static void rows_project(struct sl_run *r, int32_t layer, int32_t n)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    struct sl_backend *be = r->m->be;
    be->vt->linear_multi(be, &(struct sl_op_linear_multi){
                                 .x = r->norm,
                                 .ld_x = r->m->hp.hidden,
                                 .n = n,
                                 .n_parts = 2,
                                 .part = {rows_part(r, layer, SL_SLOT_MLA_Q_DOWN, r->latent_q),
                                          rows_part(r, layer, SL_SLOT_K, r->k)},
                             });
    be->vt->rmsnorm(be, &(struct sl_op_rmsnorm){.x = r->latent_q,
                                                .w = sl_run_vec(r, layer, SL_SLOT_MLA_Q_NORM),
                                                .eps = l->mla.norm_eps,
                                                .n = n,
                                                .h = l->mla.q_rank,
                                                .out = r->latent_q_norm});
    rows_linear(r, sl_run_mat(r, layer, SL_SLOT_Q), r->latent_q_norm, n, r->q);
    rows_turn(r, layer, l->n_heads, l->head_dim, true, n, r->q);
}

static void rows_store(struct sl_run *r, int32_t layer, const struct sl_batch *batch)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    r->m->be->vt->row_store(
        r->m->be,
        &(struct sl_op_row_store){.batch = batch,
                                  .x = r->k,
                                  .norm = sl_run_vec(r, layer, SL_SLOT_K_NORM),
                                  .eps = l->mla.norm_eps,
                                  .dim = l->head_dim,
                                  .rope = &r->m->ropes[l->rope],
                                  .angles = r->angles[l->rope],
                                  .rows = sl_kv_near_rows(&r->cfg.kv, r->cfg.kv_pool, layer)});
}

/* The rows that tokens of this step end, of attention or of its index, whose slots are those of
 * attention, `slots` further on. */
static void rows_compress(struct sl_run *r, int32_t layer, const struct sl_batch *batch, bool index)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    const int slots = index ? SL_SLOT_INDEX_ROWS_KV - SL_SLOT_ROWS_KV : 0;
    const int32_t dim = index ? l->index.dim : l->head_dim;
    const float *norm = index ? sl_run_vec(r, layer, SL_SLOT_INDEX_K_NORM) : NULL;
    struct sl_backend *be = r->m->be;
    be->vt->linear_multi(
        be,
        &(struct sl_op_linear_multi){
            .x = r->norm,
            .ld_x = r->m->hp.hidden,
            .n = batch->n_tokens,
            .n_parts = 2,
            .part = {rows_part(r, layer, (enum sl_slot)(SL_SLOT_ROWS_KV + slots), r->rows_kv),
                     rows_part(r, layer, (enum sl_slot)(SL_SLOT_ROWS_GATE + slots), r->rows_gate)},
        });
    if (norm != NULL) /* before rows are made, not behind it */
        be->vt->layernorm(
            be, &(struct sl_op_layernorm){.x = r->rows_kv,
                                          .w = norm,
                                          .b = sl_run_vec(r, layer, SL_SLOT_INDEX_K_NORM_BIAS),
                                          .eps = l->index.norm_eps,
                                          .n = batch->n_tokens,
                                          .h = dim,
                                          .out = r->rows_kv});
    struct sl_state_view state = sl_state_view(&r->cfg.kv, r->cfg.kv_pool, layer);
    if (index)
        state.offset += rows_index_offset(l);
    be->vt->compress(be,
                     &(struct sl_op_compress){
                         .batch = batch,
                         .kv = r->rows_kv,
                         .gate = r->rows_gate,
                         .bias = sl_run_vec(r, layer, (enum sl_slot)(SL_SLOT_ROWS_BIAS + slots)),
                         .norm = sl_run_vec(r, layer, (enum sl_slot)(SL_SLOT_ROWS_NORM + slots)),
                         .eps = l->mla.norm_eps,
                         .dim = dim,
                         .ratio = l->rows.ratio,
                         .overlap = l->rows.overlap,
                         .rope = l->rope >= 0 ? &r->m->ropes[l->rope] : NULL,
                         .state = state,
                         .rows = sl_kv_far_rows(&r->cfg.kv, r->cfg.kv_pool, layer, index),
                     });
}

static bool rows_must_choose(const struct sl_run *r, const struct sl_layer_desc *l,
                             const struct sl_batch *batch)
{
    if (r->m->be->vt->device != NULL) /* spans are the device's */
        return l->index.top_k < rows_far_most(r->m, l);
    for (int32_t i = 0; i < batch->n_spans; i++)
        if ((batch->spans[i].pos + batch->spans[i].n) / l->rows.ratio > l->index.top_k)
            return true;
    return false;
}

void sl_rows_choose(struct sl_run *r, int32_t layer, const struct sl_batch *batch)
{
    const struct sl_model *m = r->m;
    const struct sl_layer_desc *l = &m->layers[layer];
    const int32_t n = batch->n_tokens;
    rows_compress(r, layer, batch, true);
    if (!rows_must_choose(r, l, batch))
        return;
    rows_linear(r, sl_run_mat(r, layer, SL_SLOT_INDEX_Q), r->latent_q_norm, n, r->index_q);
    rows_linear(r, sl_run_mat(r, layer, SL_SLOT_INDEX_W), r->norm, n, r->index_w);
    if (l->rope >= 0)
        rows_turn(r, layer, l->index.n_heads, l->index.dim, false, n, r->index_q);
    m->be->vt->compressed_select(
        m->be, &(struct sl_op_compressed_select){
                   .batch = batch,
                   .q = r->index_q,
                   .w = r->index_w,
                   .n_heads = l->index.n_heads,
                   .dim = l->index.dim,
                   .top_k = l->index.top_k,
                   .ratio = l->rows.ratio,
                   .n_most = rows_far_most(m, l),
                   .rows = sl_kv_far_rows(&r->cfg.kv, r->cfg.kv_pool, layer, true),
                   .scores = r->index_scores,
                   .n_scores = sl_index_n_scores(m, m->be, r->cfg.max_tokens),
                   .seen = r->rows_seen,
                   .top = r->index_top,
               });
}

void sl_mixer_rows_attend(struct sl_run *r, int32_t layer, const struct sl_batch *batch)
{
    const struct sl_model *m = r->m;
    const struct sl_layer_desc *l = &m->layers[layer];
    const bool far = l->rows.ratio > 0;
    SL_ASSERT(m->n_ranks == 1); /* ranks.c */
    rows_project(r, layer, batch->n_tokens);
    rows_store(r, layer, batch);
    if (far)
        rows_compress(r, layer, batch, false);
    if (l->index.n_heads > 0)
        sl_rows_choose(r, layer, batch);
    struct sl_op_compressed_attention a = {
        .batch = batch,
        .q = r->q,
        .n_heads = l->n_heads,
        .dim = l->head_dim,
        .window = l->window,
        .scale = l->attn_scale,
        .sinks = sl_run_vec(r, layer, SL_SLOT_SINKS),
        .near = sl_kv_near_rows(&r->cfg.kv, r->cfg.kv_pool, layer),
        .ratio = l->rows.ratio,
        .top = l->index.n_heads > 0 ? r->index_top : NULL,
        .top_k = l->index.top_k,
        .room = r->rows_room,
        .room_bytes = sl_rows_room(m, m->be, r->cfg.kv.dtype, r->cfg.max_tokens),
        .n_most = rows_most(m, l),
        .rope = &m->ropes[l->rope],
        .angles = r->angles[l->rope],
        .out = r->att,
    };
    if (far)
        a.far = sl_kv_far_rows(&r->cfg.kv, r->cfg.kv_pool, layer, false);
    m->be->vt->compressed_attention(m->be, &a);
}

/* r->rows_low_act: a product for each group, which on a device fills it by itself. */
static void rows_lower_groups(struct sl_run *r, int32_t layer, int32_t n)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    const size_t act = sl_dtype_info(r->m->be->vt->act_dtype)->block_bytes;
    const int32_t n_groups = l->rows.o_groups, low = n_groups * l->rows.o_rank;
    const int64_t width = (int64_t)l->n_heads * l->head_dim;
    for (int32_t g = 0; g < n_groups; g++)
        r->m->be->vt->linear(
            r->m->be, &(struct sl_op_linear){
                          .x = (const uint8_t *)r->att + (size_t)(g * (width / n_groups)) * act,
                          .ld_x = width,
                          .w = &r->m->heads[layer].mats[g],
                          .n = n,
                          .out = r->rows_low + g * l->rows.o_rank,
                          .ld_out = low,
                      });
    r->m->be->vt->copy_rows(r->m->be, &(struct sl_op_copy_rows){.x = r->rows_low,
                                                                .ld_x = low,
                                                                .n = n,
                                                                .h = low,
                                                                .out_act = true,
                                                                .out = r->rows_low_act,
                                                                .ld_out = low});
}

void sl_mixer_rows_output(struct sl_run *r, int32_t layer, int32_t n, float *y)
{
    const struct sl_model *m = r->m;
    const struct sl_layer_desc *l = &m->layers[layer];
    const int64_t width = (int64_t)l->n_heads * l->head_dim;
    if (m->be->vt->device != NULL)
        rows_lower_groups(r, layer, n);
    else
        m->be->vt->heads_linear(m->be, &(struct sl_op_heads_linear){
                                           .x = r->att,
                                           .ld_x = width,
                                           .step_x = width / l->rows.o_groups,
                                           .w = &m->heads[layer].k_up,
                                           .n = n,
                                           .out = r->rows_low,
                                           .ld_out = (int64_t)l->rows.o_groups * l->rows.o_rank,
                                           .step_out = l->rows.o_rank,
                                       });
    rows_linear(r, sl_run_mat(r, layer, SL_SLOT_O), r->rows_low_act, n, y);
}
