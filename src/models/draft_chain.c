/* SPDX-License-Identifier: MIT
 * Drafts of a block that depend on those before them, though the layers computed all at once: what
 * the token before says of the next one is added to a row of logits.
 *
 * With e the row of a first table for the token before and h the row that the logits were made of,
 * a second table times a row of its width is added: e (vanilla), e times the sigmoid of a product
 * of [h, e] (gated), or what a small recurrence over [state, e, h] gives (rnn); these are DSpark's.
 * Its confidence head says how likely a draft is right, from h and maybe e; that is asked for on
 * the host alone.
 */
#include "base/check.h"
#include "models/internal.h"

#include <math.h>

static void draft_chain_product(struct sl_run *r, const void *x, int64_t ld_x, enum sl_slot slot,
                                enum sl_slot bias, int32_t n, float *out)
{
    const struct sl_weight *w = sl_run_mat(r, 0, slot);
    r->m->be->vt->linear(
        r->m->be,
        &(struct sl_op_linear){.x = x,
                               .ld_x = ld_x,
                               .w = w,
                               .bias = bias != SL_SLOT_COUNT ? sl_run_vec(r, 0, bias) : NULL,
                               .n = n,
                               .out = out,
                               .ld_out = w->n_rows});
}

/* Values of a row of r->chain_in. */
static int64_t in_width(const struct sl_run *r)
{
    return 2 * (int64_t)r->m->hp.draft.chain_rank + r->m->hp.hidden;
}

/* A part of each row of r->chain_in, from `at` on. */
static void put_part(struct sl_run *r, struct sl_op_copy_rows part, int32_t n, int64_t at)
{
    const size_t act = sl_dtype_info(r->m->be->vt->act_dtype)->block_bytes;
    part.n = n;
    part.out_act = true;
    part.out = (uint8_t *)r->chain_in + (size_t)at * act;
    part.ld_out = in_width(r);
    r->m->be->vt->copy_rows(r->m->be, &part);
}

/* h of each draft. */
static void chain_put_hidden(struct sl_run *r, const struct sl_draft_chain *c, int64_t at)
{
    const int32_t h = r->m->hp.hidden;
    put_part(
        r,
        (struct sl_op_copy_rows){.x = r->ends, .ld_x = h, .rows = c->rows, .h = h, .x_act = true},
        c->n, at);
}

/* e of each. */
static void chain_put_prev(struct sl_run *r, const struct sl_draft_chain *c, int64_t at)
{
    const int32_t rank = r->m->hp.draft.chain_rank;
    put_part(r, (struct sl_op_copy_rows){.x = r->chain_prev, .ld_x = rank, .h = rank}, c->n, at);
}

/* [state, e, h] of each, and the states of their sequences behind it; r->chain_act is what the
 * recurrence gives. */
static void step_states(struct sl_run *r, const struct sl_draft_chain *c)
{
    const int32_t rank = r->m->hp.draft.chain_rank;
    if (c->first)
        put_part(r, (struct sl_op_copy_rows){.x = r->chain_zero, .h = rank}, c->n, 0);
    else
        put_part(
            r,
            (struct sl_op_copy_rows){.x = r->chain_state, .ld_x = rank, .rows = c->seqs, .h = rank},
            c->n, 0);
    chain_put_prev(r, c, rank);
    chain_put_hidden(r, c, 2 * (int64_t)rank);
    draft_chain_product(r, r->chain_in, in_width(r), SL_SLOT_CHAIN_MIX, SL_SLOT_CHAIN_MIX_BIAS,
                        c->n, r->chain_mix);
    r->m->be->vt->chain_state(r->m->be, &(struct sl_op_chain_state){.mix = r->chain_mix,
                                                                    .n = c->n,
                                                                    .width = rank,
                                                                    .first = c->first,
                                                                    .rows = c->seqs,
                                                                    .state = r->chain_state,
                                                                    .out = r->chain_act});
}

/* r->chain_act, e, times the sigmoid of a product. */
static void gate_rows(struct sl_run *r, const struct sl_draft_chain *c)
{
    const int32_t rank = r->m->hp.draft.chain_rank;
    chain_put_hidden(r, c, 0);
    chain_put_prev(r, c, r->m->hp.hidden);
    draft_chain_product(r, r->chain_in, in_width(r), SL_SLOT_CHAIN_MIX, SL_SLOT_CHAIN_MIX_BIAS,
                        c->n, r->chain_mix);
    r->m->be->vt->gate_heads(
        r->m->be,
        &(struct sl_op_gate_heads){
            .x = r->chain_act, .gate = r->chain_mix, .n = c->n, .n_heads = 1, .dim = rank});
}

static void tell_odds(struct sl_run *r, const struct sl_draft_chain *c)
{
    SL_ASSERT(r->m->be->vt->device == NULL && r->m->facts.draft_odds);
    chain_put_hidden(r, c, 0);
    chain_put_prev(r, c, r->m->hp.hidden);
    draft_chain_product(r, r->chain_in, in_width(r), SL_SLOT_CHAIN_ODDS, SL_SLOT_CHAIN_ODDS_BIAS,
                        c->n, r->chain_mix);
    for (int32_t i = 0; i < c->n; i++)
        c->odds[i] = 1.0f / (1.0f + expf(-r->chain_mix[i]));
}

const float *sl_run_draft_chain(struct sl_run *r, const struct sl_draft_chain *c)
{
    const struct sl_model *m = r->m;
    const struct sl_backend_vt *vt = m->be->vt;
    const int32_t rank = m->hp.draft.chain_rank, v = m->facts.n_row;
    SL_ASSERT(m->facts.draft_chain && c->n <= r->cfg.max_chains);
    vt->embed(m->be, &(struct sl_op_embed){.ids = c->prev,
                                           .n = c->n,
                                           .w = sl_run_mat(r, 0, SL_SLOT_CHAIN_PREV),
                                           .scale = 1,
                                           .out = r->chain_prev});
    if (m->hp.draft.chain == SL_CHAIN_RNN) {
        step_states(r, c);
    } else {
        vt->copy_rows(m->be, &(struct sl_op_copy_rows){.x = r->chain_prev,
                                                       .ld_x = rank,
                                                       .n = c->n,
                                                       .h = rank,
                                                       .out_act = true,
                                                       .out = r->chain_act,
                                                       .ld_out = rank});
        if (m->hp.draft.chain == SL_CHAIN_GATED)
            gate_rows(r, c);
    }
    draft_chain_product(r, r->chain_act, rank, SL_SLOT_CHAIN_NEXT, SL_SLOT_COUNT, c->n,
                        r->chain_logits);
    vt->copy_rows(m->be, &(struct sl_op_copy_rows){.x = r->logits,
                                                   .ld_x = v,
                                                   .rows = c->rows,
                                                   .n = c->n,
                                                   .h = v,
                                                   .out = r->chain_base,
                                                   .ld_out = v});
    vt->add_rmsnorm(m->be, &(struct sl_op_add_rmsnorm){
                               .x = r->chain_logits, .y = r->chain_base, .n = c->n, .h = v});
    if (c->odds != NULL)
        tell_odds(r, c);
    return r->chain_logits;
}
