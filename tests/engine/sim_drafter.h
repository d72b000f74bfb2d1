/* SPDX-License-Identifier: MIT
 * sim_drafter.h - a model that drafts, and computes nothing.
 *
 * It stores each token with its position where its table says, as the device does, and looks at all
 * that a row would see: tokens of the text at their positions, then drafts of this pass. What it
 * drafts is the oracle's, now and then something else. Some of its steps fail, and leave garbage.
 * One that reads hidden rows looks at those that it is given instead: entry p is of the row that
 * computed token p, and of token p + 1.
 */
#ifndef SL_TESTS_SIM_DRAFTER_H
#define SL_TESTS_SIM_DRAFTER_H

#include "engine/sim_http.h"

/* Whose span it is: tables of a pass are in the order of its sequences. */
static int32_t drafter_owner(const struct world *w, const struct sl_span *s)
{
    const struct sl_drafter *d = w->eng->drafter;
    int32_t i = 0;
    while (i < d->pass.batch.n_spans && d->spans[i].table_idx != s->table_idx)
        i++;
    if (i == d->pass.batch.n_spans)
        violation(w, "a span of the drafter has a table of nobody");
    return i;
}

/* The token at a position of its text and drafts. */
static int32_t drafter_token(const struct world *w, int32_t owner, int32_t pos)
{
    const struct sl_drafter *d = w->eng->drafter;
    const struct sl_seq *seq = &d->of[owner]->seq;
    const int32_t n_known = sl_seq_n_known(seq);
    return pos < n_known ? sl_seq_token(seq, pos)
                         : d->drafts[owner * SL_MAX_DRAFTED + pos - n_known];
}

static void drafter_write(struct world *w, const struct sl_batch *b, const struct sl_span *s,
                          bool garbage)
{
    const int32_t bs = w->cfg.block_size, *table = b->block_tables + s->table_idx;
    for (int32_t k = 0; k < s->n; k++) {
        const int32_t pos = s->pos + k, page = table[pos / bs], at = page * bs + pos % bs;
        if (page < 0 || page >= w->drafter.n_pages)
            violation(w, "the drafter writes page %d of %d", page, w->drafter.n_pages);
        w->drafter.token[at] = garbage ? -7 : b->tokens[s->first + k];
        w->drafter.pos[at] = pos;
    }
}

static void drafter_look(struct world *w, const struct sl_batch *b, const struct sl_span *s)
{
    const int32_t bs = w->cfg.block_size, *table = b->block_tables + s->table_idx;
    const int32_t owner = drafter_owner(w, s);
    for (int32_t pos = 0; pos < s->pos + s->n; pos++) {
        const int32_t at = table[pos / bs] * bs + pos % bs;
        if (w->drafter.pos[at] != pos || w->drafter.token[at] != drafter_token(w, owner, pos))
            violation(w, "I12: at position %d the drafter has token %d of position %d, not %d", pos,
                      w->drafter.token[at], w->drafter.pos[at], drafter_token(w, owner, pos));
    }
}

/* An entry of hidden rows: is it made of the right row and the right token? */
static void drafter_look_at_rows(struct world *w, const struct sl_batch *b, const struct sl_span *s,
                                 const int32_t *sources, bool own)
{
    const int32_t owner = drafter_owner(w, s);
    const struct sl_rseq *rs = w->eng->drafter->of[owner];
    for (int32_t k = 0; k < s->n; k++) {
        const int32_t pos = s->pos + k, from = sources[s->first + k];
        if (b->tokens[s->first + k] != drafter_token(w, owner, pos + 1))
            violation(w, "I12: entry %d of the drafter has token %d, not %d", pos,
                      b->tokens[s->first + k], drafter_token(w, owner, pos + 1));
        if (own && w->draft_rows_of[from] != rs)
            violation(w, "I12: entry %d goes on from another sequence's row", pos);
        if (!own && (w->step[from].rs != rs || w->step[from].pos != pos ||
                     w->step[from].token != drafter_token(w, owner, pos)))
            violation(w, "I12: entry %d is made of the row of token %d at %d", pos,
                      w->step[from].token, w->step[from].pos);
    }
}

static int drafter_step(void *ctx, const struct sl_batch *b, const int32_t *sources, bool own,
                        const float **rows, struct sl_error *err)
{
    struct world *w = ctx;
    const struct sl_drafter *d = w->eng->drafter;
    const bool fails = !w->calm && now_and_then(w, NOISE_DRAFT, 4);
    const bool reads_rows = w->cfg.draft_rows;
    virtual_ns += STEP_NS / 8;
    w->fed[fails]++;
    for (int32_t i = 0; i < b->n_spans; i++)
        drafter_write(w, b, &b->spans[i], fails);
    if (fails)
        return sl_fail(err, SL_EINTERNAL, "simulated fault of a drafter");
    for (int32_t i = 0; i < b->n_spans && !reads_rows; i++)
        drafter_look(w, b, &b->spans[i]);
    for (int32_t i = 0; i < b->n_spans && reads_rows; i++)
        drafter_look_at_rows(w, b, &b->spans[i], sources, own);
    for (int32_t r = 0; r < b->n_logits; r++)
        w->draft_rows_of[r] = d->of[drafter_owner(w, &b->spans[r])];
    for (int32_t r = 0; r < b->n_logits; r++) {
        const struct sl_span *s = &b->spans[r];
        const int32_t owner = drafter_owner(w, s), n_known = sl_seq_n_known(&d->of[owner]->seq);
        float *row = w->rows + r * w->cfg.n_vocab;
        int32_t id = noise(w, NOISE_DRAFT, w->cfg.n_vocab);
        (void)!sim_guess(w, d->of[owner], d->drafts + owner * SL_MAX_DRAFTED,
                         s->pos + s->n + reads_rows - n_known, 1, &id);
        for (int32_t k = 0; k < w->cfg.n_vocab; k++)
            row[k] = k == id ? 1.0f : 0.0f;
    }
    *rows = w->rows;
    return 0;
}

static void drafter_open(struct world *w, struct sl_host_model *m)
{
    const struct config *c = &w->cfg;
    const int32_t n_pages = sl_drafter_n_pages(c->n_pages, c->max_seqs, c->n_drafts, c->block_size);
    const size_t n_slots = (size_t)n_pages * (size_t)c->block_size;
    w->drafter = (struct store){.n_pages = n_pages,
                                .token = calloc(n_slots, sizeof(int32_t)),
                                .pos = calloc(n_slots, sizeof(int32_t))};
    w->draft_rows_of = calloc((size_t)c->max_seqs, sizeof(struct sl_rseq *));
    if (w->drafter.token == NULL || w->drafter.pos == NULL || w->draft_rows_of == NULL)
        violation(w, "no memory");
    m->draft = drafter_step;
    m->n_draft_vocab = c->n_vocab;
    m->draft_context = c->max_len;
    m->draft_rows = c->draft_rows;
}

#endif
