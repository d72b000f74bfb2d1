/* SPDX-License-Identifier: MIT
 * Generation: the row of the last known token chooses the next one, and the rows of its drafts
 * choose those that follow. Rows of a prompt give its log probabilities.
 */
#include "base/check.h"
#include "base/rng.h"
#include "engine/turn.h"

#include <math.h>
#include <string.h>

/* Row of position pos says how likely prompt token pos + 1 was. */
static bool prompt_logprob(struct sl_engine *eng, struct sl_request *req, int32_t pos,
                           const struct sl_picked *p)
{
    SL_ASSERT(pos >= 0 && pos + 1 < req->n_prompt);
    int32_t id = req->prompt[pos + 1], k = req->n_prompt_top;
    struct sl_top_logprob *top = k > 0 ? req->prompt_tops + (size_t)(pos + 1) * (size_t)k : NULL;
    struct sl_logprob lp = {.logprob = -INFINITY};
    if (p->id < 0)
        return false;
    if (id < eng->runner.n_vocab) /* embeddings may be wider than rows: such an id has no logit */
        lp = p->lp;
    if (k > 0)
        memcpy(top, p->top, (size_t)k * sizeof *top);
    req->prompt_logprobs[pos + 1] =
        (struct sl_token){.id = id, .rank = lp.rank, .logprob = lp.logprob, .n_top = k, .top = top};
    return true;
}

static bool prompt_rows(struct sl_engine *eng, const struct sl_flight *f,
                        const struct sl_flight_seq *fs)
{
    struct sl_request *req = fs->rs->req;
    SL_ASSERT(req->prompt_logprobs != NULL);
    if (fs->pos == 0)
        req->prompt_logprobs[0] = (struct sl_token){.id = req->prompt[0]};
    for (int32_t i = 0; i < fs->n_rows - fs->n_picks; i++)
        if (!prompt_logprob(eng, req, fs->pos + i, &f->picked[fs->row + i]))
            return false;
    return true;
}

/* Is there a token that the request's own rules let come? */
static bool any_may_come(struct sl_engine *eng, struct sl_rseq *rs, int32_t pos)
{
    const struct sl_sample_args a = sl_flight_args(eng, rs, pos, 0);
    for (int32_t id = 0; id < eng->runner.n_vocab; id++) {
        bool may = a.allowed == NULL || (a.allowed[id / 32] >> (id & 31) & 1) != 0;
        for (int i = 0; i < 2 && may; i++)
            may = !sl_in_list(a.banned[i], a.n_banned[i], id);
        if (may)
            return true;
    }
    return false;
}

/* No token was chosen for position pos. What a mask leaves, stop ids that may not come yet can
 * still rule out. */
static void fail_choice(struct sl_engine *eng, struct sl_rseq *rs, int32_t pos)
{
    struct sl_error err;
    struct sl_request *req = rs->req;
    if (pos >= sl_seq_n_known(&rs->seq) && !any_may_come(eng, rs, pos)) {
        sl_fail(&err, SL_ELIMIT, "%s: together with the other constraints, it allows no next token",
                req->allowed != NULL            ? "allowed_token_ids"
                : req->sampling.n_bad_words > 0 ? "bad_words"
                                                : "min_tokens");
    } else {
        sl_fail(&err, SL_EINTERNAL, "the model's output at position %d is not a number", pos - 1);
        eng->stats.corrupted++;
    }
    sl_engine_fail(eng, req, &err);
}

/* The first n_done tokens are right, and so are their pages if they are still those of the step. */
static void publish(struct sl_engine *eng, const struct sl_flight_seq *fs, int32_t n_done)
{
    struct sl_seq *seq = &fs->rs->seq;
    if (seq->state == SL_SEQ_RUNNING && seq->n_preempted == fs->epoch)
        sl_sched_publish(&eng->sched, seq, n_done);
}

/* How many drafts count as right is drawn, by seed and position, so that a request repeats itself.
 * Their rows are made to have chosen them. */
static int32_t choose_synthetic(struct sl_engine *eng, const struct sl_flight_seq *fs,
                                struct sl_picked *picked)
{
    const struct sl_rseq *rs = fs->rs;
    const int32_t n_drafted = fs->n_picks - 1;
    const double u = sl_rng_unit(sl_rng_at(~rs->seed, (uint64_t)sl_flight_first(fs)));
    int32_t n = 0;
    for (; n < n_drafted && u < (double)eng->speculative.synthetic_rates[n]; n++)
        picked[n].id = rs->seq.drafts[n];
    sl_engine_forget_counts(eng, rs); /* a device has counted what the rows chose */
    return n;
}

/* The number of rows that chose the draft after them. Tokens up to there are what they would have
 * been one by one, as a choice depends on nothing but the text before it and its position. What was
 * computed for later drafts is rolled back. */
static int32_t settle_drafts(struct sl_engine *eng, const struct sl_flight_seq *fs,
                             struct sl_picked *picked)
{
    struct sl_seq *seq = &fs->rs->seq;
    const int32_t n_drafted = fs->n_picks - 1;
    const int32_t n_most =
        eng->speculative.synthetic ? choose_synthetic(eng, fs, picked) : n_drafted;
    int32_t n_right = 0;
    while (n_right < n_most && picked[n_right].id == seq->drafts[n_right])
        n_right++;
    SL_ASSERT(seq->n_drafted == n_drafted);
    seq->n_drafted = 0;
    if (n_drafted == 0)
        return 0;
    if (seq->state == SL_SEQ_RUNNING) /* as before the step: it was held */
        sl_sched_settle(&eng->sched, seq, n_drafted, n_right);
    sl_engine_learn_drafts(eng, fs->rs, n_drafted, n_right);
    return n_right;
}

/* Its first row that chose a token came through: the prompt is computed. */
static void prompt_is_done(struct sl_engine *eng, struct sl_rseq *rs)
{
    if (rs->seq.all_logits) {
        SL_ASSERT(rs->seq.idx == 0 && !rs->req->siblings_added);
        rs->seq.all_logits = false;
        atomic_store_explicit(&rs->req->prompt_logprobs_ready, true, memory_order_release);
    }
    sl_engine_add_siblings(eng, rs->req);
}

/* The token that a row chose for position pos. False: the sequence has ended. */
static bool take_token(struct sl_engine *eng, const struct sl_flight_seq *fs,
                       const struct sl_picked *picked, int32_t pos)
{
    struct sl_rseq *rs = fs->rs;
    SL_ASSERT(pos == sl_seq_n_known(&rs->seq));
    if (picked->id < 0 || picked->id >= eng->runner.n_vocab) {
        fail_choice(eng, rs, pos);
        return false;
    }
    publish(eng, fs, pos);
    prompt_is_done(eng, rs);
    sl_engine_keep_logprobs(rs, picked);
    return sl_engine_append(eng, rs, picked->id);
}

/* Of n_new tokens more, the last one is id. Where a model drafts, its drafts come first: masks are
 * made for them, too. */
static void ask_mask(struct sl_engine *eng, struct sl_rseq *rs, int32_t id, int32_t n_new)
{
    if (eng->drafter == NULL) {
        sl_masker_push(eng, rs, id, n_new);
        return;
    }
    rs->mask_token = id;
    rs->n_new = n_new;
    rs->model.mask_due = true;
}

void sl_generate_consume(struct sl_engine *eng, const struct sl_flight *f,
                         const struct sl_flight_seq *fs)
{
    struct sl_rseq *rs = fs->rs;
    struct sl_picked *picked = &f->picked[fs->row + fs->n_rows - fs->n_picks];
    const int32_t first = sl_flight_first(fs);
    SL_ASSERT(fs->n_picks >= 0 && fs->n_picks <= fs->n_rows && fs->n_rows <= fs->n);
    SL_ASSERT(rs->seq.state == SL_SEQ_RUNNING || rs->seq.state == SL_SEQ_WAITING);
    if (rs->seq.all_logits && !prompt_rows(eng, f, fs)) {
        fail_choice(eng, rs, fs->pos + fs->n);
        return;
    }
    if (fs->n_picks == 0) {
        publish(eng, fs, fs->pos + fs->n);
        return;
    }
    SL_ASSERT(rs->seq.n_pending > 0);
    rs->seq.n_pending--;
    const int32_t n_right = settle_drafts(eng, fs, picked);
    bool runs = true;
    for (int32_t i = 0; i <= n_right && runs; i++)
        runs = take_token(eng, fs, &picked[i], first + i);
    if (runs && rs->mask != NULL)
        ask_mask(eng, rs, picked[n_right].id, n_right + 1);
}

const struct sl_mode sl_mode_generate = {.consume = sl_generate_consume};
