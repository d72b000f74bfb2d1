/* SPDX-License-Identifier: MIT
 * Sparse attention by an index (DSA): of a token an index keeps one short key, a few queries of
 * each row score all of them, and the row attends to the positions that score best. A layer may
 * have no index of its own, but attend to what the nearest one before it has chosen (GLM-5.2).
 *
 * Up to top_k positions a row sees all, so that a text that short costs only its keys.
 *
 * An index of layers with grouped heads (MiniMax M3) chooses blocks of positions, for each key head
 * by a query of its own. Queries and keys are normed alike, and nothing weighs the queries.
 *
 * One of latent attention may score rows that are made of the keys of several tokens each
 * (GLM-5.3): a row then sees the tokens of those that it chooses (mixer_rows.c).
 */
#include "base/check.h"
#include "models/internal.h"
#include "models/tables.h"

#include <string.h>

/* ---------------------------------------------------------------- plan */

/* Has the layer an index of its own? */
static bool index_is_own(const struct sl_hparams *hp, int32_t idx)
{
    if (hp->from_gguf) /* whose tensors say so */
        return (hp->layer_has[idx] & SL_HAS_K) != 0;
    if (hp->index_layers[idx] != SL_LAYER_BY_INDEX)
        return hp->index_layers[idx] == SL_LAYER_ON;
    const int32_t step = SL_MAX(hp->index_step, 1);
    return SL_MAX(idx - hp->index_offset + 1, 0) % step == 0;
}

int sl_plan_index(const struct sl_hparams *hp, enum sl_rope_pairing pairing,
                  struct sl_layer_desc *layers, struct sl_error *err)
{
    if (hp->index_dim < hp->rope_dims)
        return sl_fail(err, SL_EFORMAT,
                       "index_head_dim is %d, must be at least qk_rope_head_dim, %d", hp->index_dim,
                       hp->rope_dims);
    if (hp->q_rank == 0)
        return sl_fail(err, SL_EFORMAT, "an index needs q_lora_rank, which is missing");
    if (!index_is_own(hp, 0))
        return sl_fail(err, SL_EFORMAT, "layer 0 shares the choice of an index before it");
    for (int32_t i = 0; i < hp->n_layers; i++) {
        const bool own = index_is_own(hp, i);
        layers[i].index = (struct sl_index_desc){.top_k = hp->index_top,
                                                 .n_heads = own ? hp->index_heads : 0,
                                                 .dim = own ? hp->index_dim : 0,
                                                 .pairing = pairing,
                                                 .norm_eps = 1e-6f};
        if (!own)
            layers[i].has &= ~(unsigned)SL_HAS_K;
    }
    return 0;
}

int sl_plan_index_blocks(const struct sl_hparams *hp, struct sl_layer_desc *layers,
                         struct sl_error *err)
{
    const int32_t rotated = hp->ropes[0].n_dims != 0 ? hp->ropes[0].n_dims : hp->head_dim;
    if (hp->index_dim < rotated)
        return sl_fail(err, SL_EFORMAT,
                       "index_head_dim is %d, must be at least the %d dimensions that are rotated",
                       hp->index_dim, rotated);
    if (hp->index_heads != hp->n_kv_heads)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "index_n_heads is %d, supported is one for each of the %d key heads",
                       hp->index_heads, hp->n_kv_heads);
    if (!sl_index_block_fits(hp->index_block))
        return sl_fail(err, SL_EUNSUPPORTED,
                       "index_block_size is %d, must be a power of two from %d to %d",
                       hp->index_block, SL_KV_TILE, SL_INDEX_BLOCK);
    if (hp->index_local > hp->index_top)
        return sl_fail(err, SL_EFORMAT, "index_local_blocks is %d, must be at most the %d chosen",
                       hp->index_local, hp->index_top);
    for (int32_t i = 0; i < hp->n_layers; i++) {
        if (hp->index_layers[i] != SL_LAYER_ON)
            continue;
        layers[i].index = (struct sl_index_desc){.top_k = hp->index_top,
                                                 .block = hp->index_block,
                                                 .n_local = hp->index_local,
                                                 .n_heads = hp->index_heads,
                                                 .dim = hp->index_dim,
                                                 .pairing = SL_ROPE_HALF,
                                                 .norm_eps = (float)hp->norm_eps};
    }
    return 0;
}

int sl_plan_index_rows(const struct sl_hparams *hp, struct sl_layer_desc *layers,
                       struct sl_error *err)
{
    if (hp->index_top % hp->sparse_ratio != 0)
        return sl_fail(err, SL_EFORMAT, "index_topk is %d, must be a multiple of index_kpool, %d",
                       hp->index_top, hp->sparse_ratio);
    if (hp->q_rank == 0)
        return sl_fail(err, SL_EFORMAT, "an index needs q_lora_rank, which is missing");
    for (int32_t i = 0; i < hp->n_layers; i++) {
        struct sl_layer_desc *l = &layers[i];
        if (l->mixer != SL_MIX_MLA)
            continue;
        if (!index_is_own(hp, i))
            return sl_fail(err, SL_EUNSUPPORTED,
                           "layer %d shares the choice of an index before it: not supported where "
                           "keys of an index are made of several tokens",
                           i);
        l->rows.ratio = hp->sparse_ratio;
        l->index = (struct sl_index_desc){.top_k = hp->index_top / hp->sparse_ratio,
                                          .n_heads = hp->index_heads,
                                          .dim = hp->index_dim,
                                          .norm_eps = 1e-6f};
    }
    return 0;
}

/* ---------------------------------------------------------------- room */

enum {
    SCORES = 1 << 20,        /* floats that rows are scored in together, */
    DEVICE_SCORES = 1 << 25, /* on a device, which has to have work for all of itself, */
    ROOM = 32 * (1 << 20)    /* and bytes that what they see is copied to, if they need as many */
};

static int32_t index_largest(const struct sl_model *m, int32_t (*of)(const struct sl_layer_desc *l))
{
    int32_t most = 0;
    for (int32_t i = 0; i < m->hp.n_layers; i++)
        most = SL_MAX(most, of(&m->layers[i]));
    return most;
}

static int32_t index_top_of(const struct sl_layer_desc *l)
{
    return l->index.block > 0 ? l->index.top_k * l->index.n_heads : l->index.top_k;
}

/* Positions that a row's choice is copied from; blocks are read where they are. */
static int32_t index_gathered_of(const struct sl_layer_desc *l)
{
    return l->mixer == SL_MIX_MLA ? sl_sparse_seen(l->index.top_k, l->rows.ratio) : 0;
}

/* Rows made of several tokens have a room of their own (mixer_rows.c). */
static int32_t index_spans_of(const struct sl_layer_desc *l)
{
    return l->mixer == SL_MIX_ROWS ? 0 : l->index.top_k;
}

static int32_t index_dim_of(const struct sl_layer_desc *l)
{
    return index_gathered_of(l) > 0 ? l->head_dim : 0;
}

/* Scores of a row, of the layer with most. */
static int64_t index_row_scores(const struct sl_model *m)
{
    int64_t most = 0;
    for (int32_t i = 0; i < m->hp.n_layers; i++) {
        const struct sl_index_desc *x = &m->layers[i].index;
        if (x->top_k > 0)
            most = SL_MAX(most, x->block > 0
                                    ? sl_index_block_scores(m->hp.context, x->block, x->n_heads)
                                    : sl_index_scores(m->hp.context));
    }
    return most;
}

int64_t sl_index_n_scores(const struct sl_model *m, const struct sl_backend *be, int32_t n_tokens)
{
    if (sl_index_top(m) == 0)
        return 0;
    const int64_t one = index_row_scores(m);
    const int64_t all = be->vt->device != NULL ? DEVICE_SCORES : SCORES;
    return SL_MAX(one, SL_MIN(all, n_tokens * one));
}

/* Of a token where nothing is copied. */
static size_t index_row_room(const struct sl_model *m, const struct sl_backend *be,
                             int32_t block_size)
{
    size_t most = sizeof(struct sl_span);
    for (int32_t i = 0; i < m->hp.n_layers && be->vt->device != NULL; i++) {
        const struct sl_layer_desc *l = &m->layers[i];
        if (l->index.block > 0)
            most = SL_MAX(
                most, sl_chosen_room(l->n_kv_heads, l->index.top_k, l->index.block, block_size));
    }
    return most;
}

size_t sl_index_room(const struct sl_model *m, const struct sl_backend *be,
                     const struct sl_kv_layout *kv, int32_t n_tokens)
{
    const int32_t gathered = index_largest(m, index_gathered_of);
    if (index_largest(m, index_spans_of) == 0)
        return 0;
    if (be->vt->device != NULL || gathered == 0) /* nothing is copied */
        return (size_t)n_tokens * index_row_room(m, be, kv->block_size);
    const size_t one = sl_sparse_room(kv->dtype, index_largest(m, index_dim_of), gathered, 1);
    return one * SL_MIN(SL_MAX(ROOM / one, 1), (size_t)n_tokens);
}

int32_t sl_index_top(const struct sl_model *m)
{
    return index_largest(m, index_top_of);
}

/* ---------------------------------------------------------------- run */

/* Does some row see more than the index chooses? */
static bool index_must_choose(const struct sl_run *r, const struct sl_index_desc *x,
                              const struct sl_batch *batch)
{
    const int32_t n_all = x->top_k * SL_MAX(x->block, 1);
    if (r->m->be->vt->device != NULL) /* spans are the device's */
        return true;
    for (int32_t i = 0; i < batch->n_spans; i++)
        if (batch->spans[i].pos + batch->spans[i].n > n_all)
            return true;
    return false;
}

/* Of an index of blocks: everything of what attention reads. */
static void index_project_blocks(struct sl_run *r, int32_t layer, int32_t n, bool chooses)
{
    struct sl_backend *be = r->m->be;
    const struct sl_weight *k = sl_run_mat(r, layer, SL_SLOT_INDEX_K);
    const struct sl_weight *q = sl_run_mat(r, layer, SL_SLOT_INDEX_Q);
    be->vt->linear_multi(
        be, &(struct sl_op_linear_multi){
                .x = r->norm,
                .ld_x = r->m->hp.hidden,
                .n = n,
                .n_parts = chooses ? 2 : 1,
                .part = {{k, NULL, r->index_k, k->n_rows}, {q, NULL, r->index_q, q->n_rows}},
            });
}

static void index_project(struct sl_run *r, int32_t layer, int32_t n, bool chooses)
{
    struct sl_backend *be = r->m->be;
    const struct sl_weight *k = sl_run_mat(r, layer, SL_SLOT_INDEX_K);
    const struct sl_weight *w = sl_run_mat(r, layer, SL_SLOT_INDEX_W);
    const struct sl_weight *q = sl_run_mat(r, layer, SL_SLOT_INDEX_Q);
    be->vt->linear_multi(
        be, &(struct sl_op_linear_multi){
                .x = r->norm,
                .ld_x = r->m->hp.hidden,
                .n = n,
                .n_parts = chooses ? 2 : 1,
                .part = {{k, NULL, r->index_k, k->n_rows}, {w, NULL, r->index_w, w->n_rows}},
            });
    if (chooses)
        be->vt->linear(be, &(struct sl_op_linear){.x = r->latent_q_norm,
                                                  .ld_x = q->n_cols,
                                                  .w = q,
                                                  .n = n,
                                                  .out = r->index_q,
                                                  .ld_out = q->n_rows});
}

void sl_index_choose(struct sl_run *r, int32_t layer, const struct sl_batch *batch)
{
    const struct sl_model *m = r->m;
    const struct sl_layer_desc *l = &m->layers[layer];
    const struct sl_index_desc *x = &l->index;
    if (x->n_heads == 0) /* what an earlier layer has chosen stays */
        return;
    if (l->rows.ratio > 0) {
        sl_rows_choose(r, layer, batch);
        return;
    }
    const bool chooses = index_must_choose(r, x, batch);
    const struct sl_kv_view kv = sl_kv_index_view(&r->cfg.kv, r->cfg.kv_pool, layer);
    struct sl_rope rope = {0};
    if (l->rope >= 0)
        rope = m->ropes[l->rope];
    rope.pairing = x->pairing; /* the angles are the same for both */
    if (x->block > 0)
        index_project_blocks(r, layer, batch->n_tokens, chooses);
    else
        index_project(r, layer, batch->n_tokens, chooses);
    m->be->vt->index_store(m->be, &(struct sl_op_index_store){
                                      .batch = batch,
                                      .q = r->index_q,
                                      .k = r->index_k,
                                      .norm = sl_run_vec(r, layer, SL_SLOT_INDEX_K_NORM),
                                      .norm_bias = sl_run_vec(r, layer, SL_SLOT_INDEX_K_NORM_BIAS),
                                      .q_norm = sl_run_vec(r, layer, SL_SLOT_INDEX_Q_NORM),
                                      .eps = x->norm_eps,
                                      .n_heads = chooses ? x->n_heads : 0,
                                      .dim = x->dim,
                                      .rope = l->rope >= 0 ? &rope : NULL,
                                      .rope_from = x->rope_from,
                                      .angles = l->rope >= 0 ? r->angles[l->rope] : NULL,
                                      .kv = kv,
                                  });
    if (!chooses)
        return;
    m->be->vt->index_select(m->be, &(struct sl_op_index_select){
                                       .batch = batch,
                                       .q = r->index_q,
                                       .w = x->block > 0 ? NULL : r->index_w,
                                       .n_heads = x->n_heads,
                                       .dim = x->dim,
                                       .top_k = x->top_k,
                                       .block = x->block,
                                       .n_local = x->n_local,
                                       .n_most = m->hp.context,
                                       .kv = kv,
                                       .scores = r->index_scores,
                                       .n_scores = sl_index_n_scores(m, m->be, r->cfg.max_tokens),
                                       .top = r->index_top,
                                   });
}

void sl_index_attend(struct sl_run *r, int32_t layer, const struct sl_op_attention *all)
{
    const struct sl_model *m = r->m;
    m->be->vt->sparse_attention(
        m->be, &(struct sl_op_sparse_attention){
                   .all = *all,
                   .top = r->index_top,
                   .top_k = m->layers[layer].index.top_k,
                   .ratio = m->layers[layer].rows.ratio,
                   .block = m->layers[layer].index.block,
                   .room = r->sparse_room,
                   .room_bytes = sl_index_room(m, m->be, &r->cfg.kv, r->cfg.max_tokens),
               });
}
