/* SPDX-License-Identifier: MIT
 * What steps do for drafters that read hidden rows: the model they draft for keeps such rows; a
 * drafter makes the input of its layers from them and from embeddings, and keeps its own for the
 * step behind.
 *
 * With e the embedding of a token and h the hidden row of the token before it, there are two kinds.
 * MTP: the stream begins as a product of [norm(e), norm(h)], and the layers are as any others (of
 * hyper-connections: hyper.c).
 * EAGLE-3: h is a product of several rows of the model; the first layer's attention reads
 * [norm(e), norm(h)], and the stream begins as h.
 *
 * DFlash: h is a product of several rows of the model, normed, and no input of the layers. Each
 * layer's keys and values of the text are made of it, in a step of its own. A block of the last
 * token and of masks then goes through the layers as other tokens do; its keys and values lie
 * behind those of the text, and are written over by the next rows of the model.
 */
#include "base/check.h"
#include "models/internal.h"

#include <string.h>

enum { FLOATS, ACTS }; /* formats of rows: floats, the backend's activations */

struct rows {
    const void *at;
    int64_t ld;
    int format;
    const int32_t *idx; /* NULL: row i */
    const float *other; /* in place of rows below 0; NULL: there are none */
};

static void draft_run_copy(struct sl_run *r, struct rows x, int32_t n, int32_t h, int format,
                           void *out, int64_t ld_out)
{
    r->m->be->vt->copy_rows(r->m->be, &(struct sl_op_copy_rows){.x = x.at,
                                                                .ld_x = x.ld,
                                                                .rows = x.idx,
                                                                .other = x.other,
                                                                .n = n,
                                                                .h = h,
                                                                .x_act = x.format == ACTS,
                                                                .out_act = format == ACTS,
                                                                .out = out,
                                                                .ld_out = ld_out});
}

/* out: activations; w NULL: out = x */
static void draft_run_norm(struct sl_run *r, const float *x, const float *w, int32_t n, int32_t h,
                           void *out)
{
    r->m->be->vt->rmsnorm(
        r->m->be, &(struct sl_op_rmsnorm){
                      .x = x, .w = w, .eps = (float)r->m->hp.norm_eps, .n = n, .h = h, .out = out});
}

/* x: activations */
static void draft_run_product(struct sl_run *r, const void *x, enum sl_slot slot, int32_t n,
                              float *out)
{
    const struct sl_weight *w = sl_run_mat(r, 0, slot);
    r->m->be->vt->linear(
        r->m->be, &(struct sl_op_linear){
                      .x = x, .ld_x = w->n_cols, .w = w, .n = n, .out = out, .ld_out = w->n_rows});
}

/* ---------------------------------------------------------------- of the target */

bool sl_run_keeps_end(const struct sl_run *r)
{
    bool keeps = false;
    for (int32_t i = 0; i < r->cfg.n_taps; i++)
        keeps = keeps || r->cfg.taps[i] == SL_TAP_NORMED || r->cfg.taps[i] == r->m->hp.n_layers;
    return keeps;
}

void sl_run_keep(struct sl_run *r, int32_t layer, const float *x, int32_t n)
{
    const int32_t h = r->m->hp.hidden, n_taps = r->cfg.n_taps;
    for (int32_t i = 0; i < n_taps; i++) {
        const bool normed = r->cfg.taps[i] == SL_TAP_NORMED;
        if ((normed ? r->m->hp.n_layers : r->cfg.taps[i]) == layer)
            draft_run_copy(
                r, (struct rows){normed ? r->norm : x, h, normed ? ACTS : FLOATS, NULL, NULL}, n, h,
                FLOATS, r->taps + i * h, (int64_t)n_taps * h);
    }
}

const float *sl_run_taps(const struct sl_run *r)
{
    SL_ASSERT(r->cfg.n_taps > 0);
    return r->taps;
}

/* ---------------------------------------------------------------- of the drafter */

bool sl_draft_norms_taps(const struct sl_model *m)
{
    for (int32_t i = 0; sl_is_draft(m) && i < m->desc->n_weights; i++)
        if (m->desc->weights[i].slot == SL_SLOT_TAPS_NORM ||
            m->desc->weights[i].slot == SL_SLOT_TAP_NORMS)
            return true;
    return false;
}

/* r->x = a product of the target's rows, which may be normed, each or all taps of a token as one.
 * r->norm is used up: it is as wide as one row of the target, or wider. */
static void join_taps(struct sl_run *r, int32_t n)
{
    const struct sl_draft_hparams *d = &r->m->hp.draft;
    const float *each = sl_run_vec(r, 0, SL_SLOT_TAP_NORMS),
                *all = sl_run_vec(r, 0, SL_SLOT_TAPS_NORM);
    const int32_t h = d->target_hidden, wide = d->n_taps * h;
    const size_t act = sl_dtype_info(r->m->be->vt->act_dtype)->block_bytes;
    /* rows that are not known yet (P-EAGLE) have one in common */
    struct rows x = {r->draft_rows, wide, FLOATS, r->draft_sources,
                     sl_run_vec(r, 0, SL_SLOT_DRAFT_MASK_ROW)};
    if (all != NULL) {
        draft_run_copy(r, x, n, wide, FLOATS, r->taps_wide, wide);
        draft_run_norm(r, r->taps_wide, all, n, wide, r->taps_in);
        x = (struct rows){r->taps_in, wide, ACTS, NULL, NULL};
    }
    for (int32_t i = 0; i < d->n_taps && each != NULL; i++) {
        const size_t at = (size_t)(i * h), each_bytes = x.format == ACTS ? act : sizeof(float);
        struct rows tap = x;
        tap.at = (const uint8_t *)x.at + at * each_bytes;
        tap.other = x.other != NULL ? x.other + at : NULL;
        draft_run_copy(r, tap, n, h, FLOATS, r->taps_wide, h);
        draft_run_norm(r, r->taps_wide, each + at, n, h, r->norm);
        draft_run_copy(r, (struct rows){r->norm, h, ACTS, NULL, NULL}, n, h, ACTS,
                       (uint8_t *)r->taps_in + at * act, wide);
    }
    if (all == NULL && each == NULL)
        draft_run_copy(r, x, n, wide, ACTS, r->taps_in, wide);
    draft_run_product(r, r->taps_in, SL_SLOT_TAPS_IN, n, r->x);
}

/* Half `idx` of the rows that lie in r->norm, from r->y. */
static void draft_run_put_half(struct sl_run *r, int32_t idx, int32_t n)
{
    const int32_t h = r->m->hp.hidden;
    const size_t act = sl_dtype_info(r->m->be->vt->act_dtype)->block_bytes;
    draft_run_copy(r, (struct rows){r->y, h, ACTS, NULL, NULL}, n, h, ACTS,
                   (uint8_t *)r->norm + (size_t)(idx * h) * act, 2 * (int64_t)h);
}

/* Of a drafter that borrows: the model's embedding, in r->taps_wide, and its row or one as it. */
static void begin_borrowed(struct sl_run *r, int32_t n)
{
    const int32_t h = r->m->hp.draft.target_hidden;
    const size_t act = sl_dtype_info(r->m->be->vt->act_dtype)->block_bytes;
    draft_run_copy(r, (struct rows){r->taps_wide, h, FLOATS, NULL, NULL}, n, h, ACTS, r->taps_in,
                   2 * (int64_t)h);
    draft_run_copy(r, (struct rows){r->draft_rows, h, FLOATS, r->draft_sources, NULL}, n, h, ACTS,
                   (uint8_t *)r->taps_in + (size_t)h * act, 2 * (int64_t)h);
    draft_run_product(r, r->taps_in, SL_SLOT_DRAFT_JOIN, n, r->x);
}

void sl_draft_begin(struct sl_run *r, int32_t n)
{
    const struct sl_draft_hparams *d = &r->m->hp.draft;
    const int32_t h = r->m->hp.hidden;
    const bool joined = r->m->layers[0].joined;
    if (d->borrows) {
        begin_borrowed(r, n);
        return;
    }
    const float *w_e =
        joined ? sl_run_vec(r, 0, SL_SLOT_ATTN_NORM) : sl_run_vec(r, 0, SL_SLOT_DRAFT_EMBED_NORM);
    draft_run_norm(r, r->x, w_e, n, h, r->y);
    if (joined && !r->draft_own)
        join_taps(r, n); /* to r->x, by way of r->norm */
    else
        draft_run_copy(r, (struct rows){r->draft_rows, h, FLOATS, r->draft_sources, NULL}, n, h,
                       FLOATS, r->x, h);
    draft_run_put_half(r, d->hidden_first ? 1 : 0, n);
    draft_run_norm(r, r->x, sl_run_vec(r, 0, SL_SLOT_DRAFT_HIDDEN_NORM), n, h, r->y);
    draft_run_put_half(r, d->hidden_first ? 0 : 1, n);
    if (!joined)
        draft_run_product(r, r->norm, SL_SLOT_DRAFT_JOIN, n, r->x);
    else if (d->normed_residual)
        draft_run_copy(r, (struct rows){r->y, h, ACTS, NULL, NULL}, n, h, FLOATS, r->x, h);
}

void sl_draft_end(struct sl_run *r, const float *x, int32_t n)
{
    const int32_t h = r->m->hp.hidden;
    const bool normed = r->m->hp.draft.normed_output;
    if (n > 0 && r->m->hp.n_hyper > 0)
        sl_hyper_end_draft(r, n);
    else if (n > 0 && r->m->hp.draft.borrows)
        draft_run_product(r, r->norm, SL_SLOT_DRAFT_OUT, n, r->hidden);
    else if (n > 0)
        draft_run_copy(r,
                       (struct rows){normed ? r->norm : x, h, normed ? ACTS : FLOATS, NULL, NULL},
                       n, h, FLOATS, r->hidden, h);
}

/* Keys and values of every layer, of the target's rows. */
static void store_context(struct sl_run *r, const struct sl_batch *batch)
{
    const int32_t n = batch->n_tokens;
    SL_ASSERT(batch->n_logits == 0 && !r->draft_own);
    sl_run_begin(r, batch);
    join_taps(r, n);
    draft_run_norm(r, r->x, sl_run_vec(r, 0, SL_SLOT_DRAFT_HIDDEN_NORM), n, r->m->hp.hidden,
                   r->norm);
    for (int32_t i = 0; i < r->m->hp.n_layers; i++) {
        sl_run_next_part(r);
        sl_mixer_gqa_store(r, i, batch);
    }
}

const float *sl_run_enqueue_draft(struct sl_run *r, const struct sl_batch *batch,
                                  const float *hidden, const int32_t *sources, bool own)
{
    SL_ASSERT(sl_is_draft(r->m) && hidden != NULL);
    r->draft_rows = hidden;
    r->draft_sources = sources;
    r->draft_own = own;
    if (r->m->hp.draft.context)
        store_context(r, batch);
    else
        (void)sl_run_enqueue(r, batch);
    r->draft_rows = NULL;
    r->draft_sources = NULL;
    return r->logits;
}

const float *sl_run_hidden(const struct sl_run *r)
{
    SL_ASSERT(sl_is_draft(r->m));
    return r->hidden;
}
