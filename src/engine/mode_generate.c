/* SPDX-License-Identifier: MIT
 * Autoregressive generation: the row of the last token chooses the next one. Rows of a prompt give
 * its log probabilities.
 */
#include "base/check.h"
#include "engine/turn.h"

#include <math.h>
#include <string.h>

/* Row of position pos says how likely prompt token pos + 1 was. */
static bool prompt_logprob(struct sl_engine *eng, struct sl_request *req, int32_t pos,
                           const struct sl_picked *p)
{
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
    if (fs->pos == 0)
        req->prompt_logprobs[0] = (struct sl_token){.id = req->prompt[0]};
    for (int32_t i = 0; i < fs->n_rows - fs->samples; i++)
        if (!prompt_logprob(eng, req, fs->pos + i, &f->picked[fs->row + i]))
            return false;
    return true;
}

/* Is there a token that the request's own rules let come? */
static bool any_may_come(struct sl_engine *eng, const struct sl_flight_seq *fs)
{
    const struct sl_sample_args a = sl_flight_args(eng, fs);
    for (int32_t id = 0; id < eng->runner.n_vocab; id++) {
        bool may = a.allowed == NULL || (a.allowed[id / 32] >> (id & 31) & 1) != 0;
        for (int i = 0; i < 2 && may; i++)
            may = !sl_in_list(a.banned[i], a.n_banned[i], id);
        if (may)
            return true;
    }
    return false;
}

/* No token was chosen. What a mask leaves, stop ids that may not come yet can still rule out. */
static void fail_choice(struct sl_engine *eng, const struct sl_flight_seq *fs)
{
    struct sl_error err;
    struct sl_request *req = fs->rs->req;
    if (fs->samples && !any_may_come(eng, fs)) {
        sl_fail(&err, SL_ELIMIT, "%s: together with the other constraints, it allows no next token",
                req->allowed != NULL            ? "allowed_token_ids"
                : req->sampling.n_bad_words > 0 ? "bad_words"
                                                : "min_tokens");
    } else {
        sl_fail(&err, SL_EINTERNAL, "the model's output at position %d is not a number",
                fs->pos + fs->n - 1);
        eng->stats.corrupted++;
    }
    sl_engine_fail(eng, req, &err);
}

static void consume(struct sl_engine *eng, const struct sl_flight *f,
                    const struct sl_flight_seq *fs)
{
    struct sl_rseq *rs = fs->rs;
    struct sl_seq *seq = &rs->seq;
    const struct sl_picked *picked = fs->samples ? &f->picked[fs->row + fs->n_rows - 1] : NULL;
    bool ok = !seq->all_logits || prompt_rows(eng, f, fs);
    if (ok && fs->samples)
        ok = picked->id >= 0 && picked->id < eng->runner.n_vocab;
    if (!ok) {
        fail_choice(eng, fs);
        return;
    }
    if (seq->state == SL_SEQ_RUNNING && seq->n_preempted == fs->epoch)
        sl_sched_publish(&eng->sched, seq, fs->pos + fs->n);
    if (!fs->samples)
        return;
    if (seq->all_logits) {
        seq->all_logits = false;
        atomic_store_explicit(&rs->req->prompt_logprobs_ready, true, memory_order_release);
    }
    sl_engine_add_siblings(eng, rs->req);
    seq->n_pending--;
    sl_engine_keep_logprobs(rs, picked);
    if (sl_engine_append(eng, rs, picked->id) && rs->mask != NULL)
        sl_masker_push(eng, rs, picked->id);
}

const struct sl_mode sl_mode_generate = {.consume = consume};
