/* SPDX-License-Identifier: MIT
 * late_runner.h - makes a runner that is collected one step later out of one that computes in the
 * call, as a GPU works: it chooses tokens itself, resolves the tokens the engine has not seen, and
 * says everything, failures too, only when asked.
 */
#ifndef SL_TESTS_LATE_RUNNER_H
#define SL_TESTS_LATE_RUNNER_H

#include "base/check.h"
#include "base/sys.h"
#include "engine/host_runner.h"

#include <string.h>

struct late_step {
    struct sl_picked *picked;    /* [max_logits] */
    struct sl_top_logprob *tops; /* [max_logits, SL_MAX_LOGPROBS] */
    int32_t n, rc;
    bool open;              /* not collected */
    const float *undecided; /* logits of a step whose tokens are to be chosen */
    struct sl_error err;
};

struct late_runner {
    struct sl_host_model inner;
    int32_t max_tokens, max_logits;
    int32_t *tokens; /* [max_tokens] resolved */
    struct sl_sampler sampler;
    struct late_step steps[SL_MAX_FLIGHTS];
    int32_t first, n_steps;       /* not collected */
    int32_t n_groups;             /* of sequences, whose steps are in flight at once */
    float none[1];                /* logits of a step that failed */
    const struct late_step *last; /* submitted */
    const struct late_step *kept[SL_MAX_STAGES]; /* by slot: whose tokens a step may name */
    uint64_t n_deep;     /* steps submitted while steps of other groups were not collected */
    uint64_t n_overlaps; /* steps submitted before the last one was collected */
    uint64_t n_halves, n_skipped; /* steps decided later; rows of them that nobody wanted */
    int32_t refuse_at;            /* the submit of this number from now is refused; 0: none */
    bool refused;                 /* the last one was */
    struct sl_runner drafter;     /* who makes drafts; draft NULL: nobody */
    uint64_t n_passes, n_late;    /* of them those that were not waited for */
    struct {                      /* the last of these */
        int32_t drafts[SL_MAX_SEQS * SL_MAX_DRAFTED];
        int32_t n_behind, rc; /* steps behind it */
        bool open;            /* it was not ended */
        struct sl_error err;
    } pass;
};

static inline void late_row(struct late_runner *l, const struct sl_pick *pick, const float *row,
                            struct sl_picked *out, struct sl_top_logprob *top)
{
    struct sl_sample_args args = pick->how;
    int32_t id = pick->given < l->inner.n_vocab ? pick->given : 0;
    l->n_skipped += pick->skip;
    if (pick->skip) {
        *out = (struct sl_picked){.id = 0};
        return;
    }
    args.logits = row;
    *out =
        (struct sl_picked){.id = pick->given >= 0 ? id : sl_sample(&l->sampler, &args), .top = top};
    if (out->id >= 0 && pick->n_top >= 0 &&
        !sl_logprobs(row, l->inner.n_vocab, out->id, pick->n_top, &out->lp, top))
        out->id = -1;
}

static inline void late_rows_of(struct late_runner *l, struct late_step *s,
                                const struct sl_pick *picks, const float *logits)
{
    for (int32_t r = 0; r < s->n && s->rc == 0; r++)
        late_row(l, &picks[r], logits + (size_t)r * (size_t)l->inner.n_vocab, &s->picked[r],
                 s->tops + (size_t)r * SL_MAX_LOGPROBS);
}

static inline int late_submit(void *ctx, const struct sl_batch *batch, const struct sl_pick *picks,
                              struct sl_error *err)
{
    struct late_runner *l = ctx;
    SL_ASSERT(l->n_steps <= l->n_groups && batch->n_tokens <= l->max_tokens);
    SL_ASSERT(batch->slot >= 0 && batch->slot < l->n_groups);
    SL_ASSERT(l->last == NULL || l->last->undecided == NULL);
    SL_ASSERT(!l->refused || l->n_steps == 0);
    l->refused = l->refuse_at > 0 && --l->refuse_at == 0;
    if (l->refused)
        return sl_fail(err, SL_ENOMEM, "no memory for a step");
    struct late_step *s = &l->steps[(l->first + l->n_steps) % SL_MAX_FLIGHTS];
    l->n_overlaps += l->n_steps > 0;
    l->n_deep += l->n_steps > 1;
    const struct late_step *before = l->kept[batch->slot];
    struct sl_batch b = *batch;
    const float *logits = NULL;
    for (int32_t i = 0; i < b.n_tokens; i++) {
        int32_t id = batch->tokens[i];
        if (id < 0 && l->pass.open && l->pass.n_behind == 0) {
            SL_ASSERT(-1 - id < SL_MAX_SEQS * SL_MAX_DRAFTED);
            id = l->pass.rc == 0 ? l->pass.drafts[-1 - id] : 0;
        } else if (id < 0) {
            SL_ASSERT(before != NULL && before->open && before->undecided == NULL);
            SL_ASSERT(-1 - id < before->n || before->rc != 0);
            id = before->rc == 0 ? before->picked[-1 - id].id : 0;
        }
        l->tokens[i] = SL_MAX(id, 0);
    }
    SL_ASSERT(!l->pass.open || l->pass.n_behind == 0); /* else its drafts are gone */
    l->pass.n_behind++;
    b.tokens = l->tokens;
    s->n = b.n_logits;
    s->rc = l->inner.forward(l->inner.ctx, &b, &logits, &s->err);
    s->undecided = NULL;
    if (picks != NULL)
        late_rows_of(l, s, picks, logits);
    else
        s->undecided = logits != NULL ? logits : l->none;
    l->last = s;
    s->open = true;
    if (s->n > 0)
        l->kept[batch->slot] = s;
    l->n_steps++;
    return 0;
}

static inline int late_choose(void *ctx, const struct sl_pick *picks, struct sl_error *err)
{
    struct late_runner *l = ctx;
    (void)err;
    SL_ASSERT(l->n_steps > 0);
    struct late_step *s = &l->steps[(l->first + l->n_steps - 1) % SL_MAX_FLIGHTS];
    SL_ASSERT(s->undecided != NULL && s == l->last);
    late_rows_of(l, s, picks, s->undecided);
    s->undecided = NULL;
    l->n_halves++;
    return 0;
}

static inline int late_collect(void *ctx, struct sl_picked *out, struct sl_error *err)
{
    struct late_runner *l = ctx;
    SL_ASSERT(l->n_steps > 0);
    struct late_step *s = &l->steps[l->first];
    SL_ASSERT(s->undecided == NULL);
    s->open = false;
    l->first = (l->first + 1) % SL_MAX_FLIGHTS;
    l->n_steps--;
    if (s->rc != 0) {
        *err = s->err;
        return s->rc;
    }
    memcpy(out, s->picked, (size_t)s->n * sizeof *out);
    return 0;
}

static inline void late_init(struct late_runner *l, const struct sl_host_model *inner,
                             int32_t max_tokens, int32_t max_logits, struct sl_runner *out)
{
    struct sl_error err;
    size_t n = (size_t)max_logits;
    *l = (struct late_runner){
        .inner = *inner, .max_tokens = max_tokens, .max_logits = max_logits, .n_groups = 1};
    l->tokens = sl_calloc((size_t)max_tokens, sizeof *l->tokens);
    int rc = sl_sampler_init(&l->sampler, inner->n_vocab, &err);
    SL_ASSERT(rc == 0 && l->tokens != NULL);
    for (int i = 0; i < SL_MAX_FLIGHTS; i++) {
        l->steps[i].picked = sl_calloc(n, sizeof *l->steps[i].picked);
        l->steps[i].tops = sl_calloc(n, SL_MAX_LOGPROBS * sizeof *l->steps[i].tops);
        SL_ASSERT(l->steps[i].picked != NULL && l->steps[i].tops != NULL);
    }
    *out = (struct sl_runner){.ctx = l,
                              .n_vocab = inner->n_vocab,
                              .max_logits = max_logits,
                              .max_flights = 2,
                              .submit = late_submit,
                              .choose = late_choose,
                              .collect = late_collect};
}

/* As a pipeline of so many stages: steps of as many groups are in flight. */
static inline void late_groups(struct late_runner *l, int32_t n_groups, struct sl_runner *out)
{
    SL_ASSERT(n_groups >= 1 && n_groups <= SL_MAX_STAGES && l->n_steps == 0);
    l->n_groups = n_groups;
    out->n_groups = n_groups;
    out->max_flights = n_groups + 1;
}

/* A model that drafts reads what the last step left: nothing may be in flight. */
static inline int late_draft(void *ctx, struct sl_draft_pass *pass, struct sl_error *err)
{
    struct late_runner *l = ctx;
    SL_ASSERT(l->n_steps == 0 && !l->pass.open);
    l->n_passes++;
    if (!pass->late)
        return l->drafter.draft(l->drafter.ctx, pass, err);
    SL_ASSERT(pass->batch.n_logits > 0);
    l->n_late++;
    l->pass.rc = l->drafter.draft(l->drafter.ctx, pass, &l->pass.err);
    l->pass.open = true;
    l->pass.n_behind = 0;
    for (int32_t i = 0; i < pass->batch.n_logits; i++)
        for (int32_t k = 0; k < pass->wanted[i]; k++) {
            const int32_t at = i * SL_MAX_DRAFTED + k;
            l->pass.drafts[at] = pass->drafts[at];
            pass->drafts[at] = -1 - at;
        }
    return 0;
}

/* Says what a pass made that was not waited for, or that it failed. */
static inline int late_draft_end(void *ctx, struct sl_draft_pass *pass, struct sl_error *err)
{
    struct late_runner *l = ctx;
    SL_ASSERT(l->pass.open && pass->late && l->pass.n_behind <= 1);
    l->pass.open = false;
    for (int32_t i = 0; i < pass->batch.n_logits && l->pass.rc == 0; i++)
        memcpy(pass->drafts + i * SL_MAX_DRAFTED, l->pass.drafts + i * SL_MAX_DRAFTED,
               (size_t)pass->wanted[i] * sizeof *pass->drafts);
    if (l->pass.rc != 0)
        *err = l->pass.err;
    return l->pass.rc;
}

/* Drafts are made by the drafter of another runner, which is not used for anything else. */
static inline void late_drafts(struct late_runner *l, const struct sl_runner *drafter,
                               struct sl_runner *out)
{
    SL_ASSERT(drafter->draft != NULL);
    l->drafter = *drafter;
    out->draft = late_draft;
    out->draft_end = drafter->draft_odds ? NULL : late_draft_end; /* odds come with the drafts */
    out->n_draft_vocab = drafter->n_draft_vocab;
    out->draft_context = drafter->draft_context;
    out->draft_rows = drafter->draft_rows;
    out->draft_odds = drafter->draft_odds;
    out->draft_at_once = drafter->draft_at_once;
    out->draft_block = drafter->draft_block;
}

static inline void late_deinit(struct late_runner *l)
{
    for (int i = 0; i < SL_MAX_FLIGHTS; i++) {
        sl_free(l->steps[i].picked);
        sl_free(l->steps[i].tops);
    }
    sl_sampler_deinit(&l->sampler);
    sl_free(l->tokens);
}

#endif
