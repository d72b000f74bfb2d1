/* SPDX-License-Identifier: MIT
 * Drafts of a block that depend on those before them, though the layers computed all at once: what
 * the token before says of the next one is added to a row of logits.
 *
 * With e the row of a first table for the token before and h the row that the logits were made of,
 * a second table times a row of its width is added: e (vanilla), e times the sigmoid of a product
 * of [h, e] (gated), or what a small recurrence over [state, e, h] gives (rnn); these are DSpark's.
 * Its confidence head says how likely a draft is right, from h and maybe e.
 */
#include "base/check.h"
#include "models/internal.h"

#include <math.h>
#include <string.h>

static float draft_chain_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static void draft_chain_product(struct sl_run *r, const float *x, int64_t ld_x, enum sl_slot slot,
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

/* [h, e] of each draft. */
static void put_hidden(struct sl_run *r, const struct sl_draft_chain *c)
{
    const int32_t h = r->m->hp.hidden, rank = r->m->hp.draft.chain_rank;
    for (int32_t i = 0; i < c->n; i++) {
        float *in = r->chain_in + i * in_width(r);
        memcpy(in, (const float *)r->ends + (int64_t)c->rows[i] * h, (size_t)h * sizeof *in);
        memcpy(in + h, r->chain_prev + (int64_t)i * rank, (size_t)rank * sizeof *in);
    }
}

/* [state, e, h] of each, and the states of their sequences behind it; what is behind that goes to
 * the last third of r->chain_mix. */
static void step_states(struct sl_run *r, const struct sl_draft_chain *c)
{
    const int32_t h = r->m->hp.hidden, n = r->m->hp.draft.chain_rank;
    const size_t bytes = (size_t)n * sizeof(float);
    for (int32_t i = 0; i < c->n; i++) {
        float *in = r->chain_in + i * in_width(r),
              *state = r->chain_state + (int64_t)c->seqs[i] * n;
        if (c->first)
            memset(state, 0, bytes);
        memcpy(in, state, bytes);
        memcpy(in + n, r->chain_prev + (int64_t)i * n, bytes);
        memcpy(in + 2 * n, (const float *)r->ends + (int64_t)c->rows[i] * h,
               (size_t)h * sizeof *in);
    }
    draft_chain_product(r, r->chain_in, in_width(r), SL_SLOT_CHAIN_MIX, SL_SLOT_CHAIN_MIX_BIAS,
                        c->n, r->chain_mix);
    for (int32_t i = 0; i < c->n; i++) {
        float *mix = r->chain_mix + (int64_t)i * 3 * n,
              *state = r->chain_state + (int64_t)c->seqs[i] * n;
        for (int32_t k = 0; k < n; k++) {
            const float gate = draft_chain_sigmoid(mix[k]);
            state[k] = gate * state[k] + (1.0f - gate) * tanhf(mix[n + k]);
            mix[2 * n + k] = tanhf(mix[2 * n + k]);
        }
    }
}

static void gate_rows(struct sl_run *r, const struct sl_draft_chain *c)
{
    const int32_t n = r->m->hp.draft.chain_rank;
    put_hidden(r, c);
    draft_chain_product(r, r->chain_in, in_width(r), SL_SLOT_CHAIN_MIX, SL_SLOT_CHAIN_MIX_BIAS,
                        c->n, r->chain_mix);
    for (int32_t i = 0; i < c->n * n; i++)
        r->chain_mix[i] = draft_chain_sigmoid(r->chain_mix[i]) * r->chain_prev[i];
}

static void tell_odds(struct sl_run *r, const struct sl_draft_chain *c)
{
    put_hidden(r, c);
    draft_chain_product(r, r->chain_in, in_width(r), SL_SLOT_CHAIN_ODDS, SL_SLOT_CHAIN_ODDS_BIAS,
                        c->n, r->chain_mix);
    for (int32_t i = 0; i < c->n; i++)
        c->odds[i] = draft_chain_sigmoid(r->chain_mix[i]);
}

const float *sl_run_draft_chain(struct sl_run *r, const struct sl_draft_chain *c)
{
    const struct sl_model *m = r->m;
    const int64_t n = m->hp.draft.chain_rank, v = m->facts.n_row;
    const float *x = r->chain_prev;
    int64_t ld_x = n;
    SL_ASSERT(m->facts.draft_chain && c->n <= r->cfg.max_logits);
    SL_ASSERT(m->be->vt->device == NULL && (c->odds == NULL || m->facts.draft_odds));
    m->be->vt->embed(m->be, &(struct sl_op_embed){.ids = c->prev,
                                                  .n = c->n,
                                                  .w = sl_run_mat(r, 0, SL_SLOT_CHAIN_PREV),
                                                  .scale = 1,
                                                  .out = r->chain_prev});
    switch (m->hp.draft.chain) {
    case SL_CHAIN_GATED:
        gate_rows(r, c);
        x = r->chain_mix;
        break;
    case SL_CHAIN_RNN:
        step_states(r, c);
        x = r->chain_mix + 2 * n;
        ld_x = 3 * n;
        break;
    case SL_CHAIN_VANILLA:
    case SL_CHAIN_NONE:
        break;
    }
    draft_chain_product(r, x, ld_x, SL_SLOT_CHAIN_NEXT, SL_SLOT_COUNT, c->n, r->chain_logits);
    for (int32_t i = 0; i < c->n; i++) {
        const float *row = r->logits + c->rows[i] * v;
        for (int64_t k = 0; k < v; k++)
            r->chain_logits[i * v + k] += row[k];
    }
    if (c->odds != NULL)
        tell_odds(r, c);
    return r->chain_logits;
}
