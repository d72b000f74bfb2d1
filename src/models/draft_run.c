/* SPDX-License-Identifier: MIT
 * What steps do for drafters that read hidden rows: the model they draft for keeps such rows; a
 * drafter makes the input of its layers from them and from embeddings, and keeps its own for the
 * step behind.
 *
 * With e the embedding of a token and h the hidden row of the token before it, there are two kinds.
 * MTP: the stream begins as a product of [norm(e), norm(h)], and the layers are as any others.
 * EAGLE-3: h is a product of several rows of the model; the first layer's attention reads
 * [norm(e), norm(h)], and the stream begins as h.
 */
#include "base/check.h"
#include "models/internal.h"

static void copy(struct sl_run *r, const float *x, int64_t ld_x, int32_t n, int32_t h, float *out,
                 int64_t ld_out)
{
    r->m->be->vt->copy_rows(
        r->m->be, &(struct sl_op_copy_rows){
                      .x = x, .ld_x = ld_x, .n = n, .h = h, .out = out, .ld_out = ld_out});
}

/* w NULL: out = x */
static void norm(struct sl_run *r, const float *x, const float *w, int32_t n, int32_t h, float *out)
{
    r->m->be->vt->rmsnorm(
        r->m->be, &(struct sl_op_rmsnorm){
                      .x = x, .w = w, .eps = (float)r->m->hp.norm_eps, .n = n, .h = h, .out = out});
}

static void product(struct sl_run *r, const float *x, enum sl_slot slot, int32_t n, float *out)
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
            copy(r, normed ? r->norm : x, h, n, h, r->taps + i * h, (int64_t)n_taps * h);
    }
}

const float *sl_run_taps(const struct sl_run *r)
{
    SL_ASSERT(r->cfg.n_taps > 0);
    return r->taps;
}

/* ---------------------------------------------------------------- of the drafter */

/* x = a product of the target's rows, which may be normed, each or all taps of a token as one. */
static void join_taps(struct sl_run *r, int32_t n)
{
    const struct sl_draft_hparams *d = &r->m->hp.draft;
    const float *each = sl_run_vec(r, 0, SL_SLOT_TAP_NORMS),
                *all = sl_run_vec(r, 0, SL_SLOT_TAPS_NORM), *x = r->draft_rows;
    const int32_t h = d->target_hidden, wide = d->n_taps * h;
    float *apart = r->norm; /* for a moment: as wide as one row of the target, or wider */
    if (all != NULL) {
        norm(r, x, all, n, wide, r->taps_in);
        x = r->taps_in;
    }
    for (int32_t i = 0; i < d->n_taps && each != NULL; i++) {
        copy(r, x + i * h, wide, n, h, apart, h);
        norm(r, apart, each + i * h, n, h, apart);
        copy(r, apart, h, n, h, r->taps_in + i * h, wide);
    }
    product(r, each != NULL ? r->taps_in : x, SL_SLOT_TAPS_IN, n, r->x);
}

/* Half `idx` of the rows that lie in r->norm. */
static void put_half(struct sl_run *r, const float *x, int32_t idx, int32_t n)
{
    const int32_t h = r->m->hp.hidden;
    copy(r, x, h, n, h, (float *)r->norm + idx * h, 2 * (int64_t)h);
}

void sl_draft_begin(struct sl_run *r, int32_t n)
{
    const struct sl_draft_hparams *d = &r->m->hp.draft;
    const int32_t h = r->m->hp.hidden;
    const bool joined = r->m->layers[0].joined;
    const float *hidden = r->draft_rows, *w_e = joined ? sl_run_vec(r, 0, SL_SLOT_ATTN_NORM)
                                                       : sl_run_vec(r, 0, SL_SLOT_DRAFT_EMBED_NORM);
    norm(r, r->x, w_e, n, h, r->y);
    if (joined && !r->draft_own) {
        join_taps(r, n); /* to r->x, by way of r->norm */
        hidden = r->x;
    }
    put_half(r, r->y, d->hidden_first ? 1 : 0, n);
    norm(r, hidden, sl_run_vec(r, 0, SL_SLOT_DRAFT_HIDDEN_NORM), n, h, r->y);
    put_half(r, r->y, d->hidden_first ? 0 : 1, n);
    if (!joined)
        product(r, r->norm, SL_SLOT_DRAFT_JOIN, n, r->x);
    else if (d->normed_residual)
        copy(r, r->y, h, n, h, r->x, h);
    else if (r->draft_own)
        copy(r, hidden, h, n, h, r->x, h);
}

void sl_draft_end(struct sl_run *r, const float *x, int32_t n)
{
    const int32_t h = r->m->hp.hidden;
    copy(r, r->m->hp.draft.normed_output ? r->norm : x, h, n, h, r->hidden, h);
}

const float *sl_run_enqueue_draft(struct sl_run *r, const struct sl_batch *batch,
                                  const float *hidden, bool own)
{
    SL_ASSERT(sl_is_draft(r->m) && hidden != NULL);
    r->draft_rows = hidden;
    r->draft_own = own;
    const float *logits = sl_run_enqueue(r, batch);
    r->draft_rows = NULL;
    return logits;
}

const float *sl_run_hidden(const struct sl_run *r)
{
    SL_ASSERT(sl_is_draft(r->m));
    return r->hidden;
}
