/* SPDX-License-Identifier: MIT
 * Which sequences get drafts in the next step, and how many.
 *
 * A sequence is drafted for when all its text is known and nothing but its last token is left to
 * compute. With a runner that is one step ahead, its next token is usually pending: then it is held
 * for a turn if there would be something to draft.
 *
 * A draft is worth its row if the step makes more tokens a second with it: what it adds to them,
 * the probability that it and all before it are right, against what it adds to the time of the
 * step, by the prices learnt from steps so far (sched/cost.h). So few sequences draft much, and
 * where a step is bound by arithmetic nobody does.
 */
#include "base/check.h"
#include "engine/ngram.h"
#include "engine/turn.h"

/* Tokens. A model's drafts cost more than looking something up. */
#define MAX_PAUSE       8
#define MAX_PAUSE_MODEL 31
/* Of drafts, right and wrong ones that a sequence begins with, and what is kept of both as others
 * come. A token without a draft leaves less of them: what was wrong is tried again. */
#define FIRST_RIGHT 2.0f
#define FIRST_WRONG 1.0f
#define KEEP_TRIED  0.8f
#define KEEP_IDLE   0.98f
/* Drafts are given by probability: at least 1, then so much less again and again. */
#define LESS_LIKELY  0.85f
#define LEAST_LIKELY 0.04f
#define PLAIN_EVERY  32 /* steps, one has no drafts: what such a step takes stays known */

static bool propose_may(const struct sl_seq *seq)
{
    return !seq->all_logits && seq->n_computed + 1 == sl_seq_n_known(seq);
}

/* Drafts that were wrong make the next ones fewer, as each costs a row of the step; right ones make
 * them more. Where none was right, some tokens come without, twice as many each time. */
void sl_engine_learn_drafts(struct sl_engine *eng, struct sl_rseq *rs, int32_t n, int32_t n_right)
{
    struct sl_stats *s = &eng->stats;
    SL_ASSERT(n >= 1 && n <= SL_MAX_DRAFTED && n_right >= 0 && n_right <= n);
    rs->n_try = n_right < n ? n_right + 1 : 2 * n;
    const int32_t max_pause = eng->drafter != NULL ? MAX_PAUSE_MODEL : MAX_PAUSE;
    rs->pause = n_right > 0 ? 0 : SL_MIN(2 * rs->pause + 1, max_pause);
    rs->resume_at = rs->seq.n_out + 1 + rs->pause;
    rs->right = rs->right * KEEP_TRIED + (float)n_right;
    rs->wrong = rs->wrong * KEEP_TRIED + (n_right < n ? 1.0f : 0.0f);
    s->n_drafts++;
    s->n_draft_tokens += (uint64_t)n;
    s->n_accepted_tokens += (uint64_t)n_right;
    for (int32_t i = 0; i < n_right; i++)
        s->n_accepted_at[i]++;
}

int32_t sl_engine_n_drafts(const struct sl_engine *eng, const struct sl_rseq *rs)
{
    const struct sl_seq *seq = &rs->seq;
    const int32_t n_out = seq->n_out + seq->n_pending;
    const int32_t n = SL_MIN(eng->speculative.num_speculative_tokens, rs->n_try);
    return n_out < rs->resume_at ? 0 : SL_MAX(SL_MIN(n, seq->max_out - n_out - 1), 0);
}

float sl_engine_draft_odds(const struct sl_rseq *rs)
{
    const float right = rs->right + FIRST_RIGHT, wrong = rs->wrong + FIRST_WRONG;
    return right / (right + wrong);
}

int32_t sl_engine_draft_room(const struct sl_engine *eng)
{
    const struct sl_sched *s = &eng->sched;
    const int32_t n = SL_MIN(s->cfg.max_tokens - s->n_running, s->cfg.max_logits - s->cfg.max_seqs);
    return SL_MIN(n, sl_kv_n_draft_pages(s->kv));
}

bool sl_engine_is_plain(const struct sl_engine *eng)
{
    return eng->sched.cfg.max_step_s > 0 && eng->n_proposals % PLAIN_EVERY == PLAIN_EVERY - 1;
}

/* With a mask, drafts came with it. */
static int32_t find_drafts(struct sl_engine *eng, struct sl_rseq *rs, int32_t n)
{
    if (rs->mask == NULL)
        return rs->req->mode->propose(eng, rs, n);
    return rs->mask_at == sl_seq_n_known(&rs->seq) ? SL_MIN(n, rs->n_masked) : 0;
}

struct sl_drafting sl_engine_next_step(const struct sl_engine *eng)
{
    const struct sl_sched *s = &eng->sched;
    struct sl_drafting step = {{0}, 0};
    for (int32_t i = 0; i < s->n_running; i++) {
        const struct sl_seq *seq = s->running[i];
        if (seq->waits || seq->n_computed + 1 < sl_seq_n_tokens(seq))
            continue;
        step.work = sl_work_add(step.work, seq->n_computed, 1);
        step.tokens++;
    }
    return step;
}

/* May it have drafts, as far as its own text and mode say? */
static bool propose_asks(const struct sl_rseq *rs)
{
    const struct sl_seq *seq = &rs->seq;
    return rs->req->mode->propose != NULL && !seq->waits &&
           !(seq->n_pending > 0 && seq->n_drafted > 0);
}

/* How many drafts of each sequence are worth their rows. Those that most likely come out go first,
 * whoever has them. */
static void propose_worth(struct sl_engine *eng, int32_t room)
{
    const struct sl_sched *s = &eng->sched;
    struct sl_drafting step = sl_engine_next_step(eng);
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sl_rseq *rs = sl_rseq_of(s->running[i]);
        rs->each = rs->comes = sl_engine_draft_odds(rs);
        rs->n_worth = 0;
    }
    for (float least = 1; least > LEAST_LIKELY; least *= LESS_LIKELY)
        for (int32_t i = 0; i < s->n_running; i++) {
            struct sl_rseq *rs = sl_rseq_of(s->running[i]);
            const int32_t fits = sl_sched_max_drafts(s, &rs->seq);
            const int32_t may = propose_asks(rs) ? SL_MIN(sl_engine_n_drafts(eng, rs), fits) : 0;
            const int32_t most = eng->drafter != NULL ? sl_draft_waiting(rs, may) : may;
            while (room > 0 && rs->n_worth < most && rs->comes >= least &&
                   sl_cost_draft(&s->cost, &step, rs->seq.n_computed, rs->n_worth,
                                 (double)rs->comes)) {
                rs->comes *= rs->each;
                rs->n_worth++;
                room--;
            }
        }
}

void sl_engine_propose(struct sl_engine *eng)
{
    const struct sl_sched *s = &eng->sched;
    const int32_t room = sl_engine_is_plain(eng) ? 0 : sl_engine_draft_room(eng);
    SL_ASSERT(room >= 0);
    eng->n_proposals++;
    propose_worth(eng, room);
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sl_rseq *rs = sl_rseq_of(s->running[i]);
        struct sl_seq *seq = &rs->seq;
        if (!propose_asks(rs))
            continue;
        const int32_t n = rs->n_worth;
        if (n == 0)
            rs->right *= KEEP_IDLE, rs->wrong *= KEEP_IDLE;
        if (seq->n_pending > 0) {
            seq->holds = rs->never_ahead || (n > 0 && find_drafts(eng, rs, 1) > 0);
            continue;
        }
        seq->n_drafted = n > 0 && propose_may(seq) ? find_drafts(eng, rs, n) : 0;
        SL_ASSERT(seq->n_drafted <= n);
    }
}

/* Up to the first one that no row can choose. */
static int32_t propose_ngram(struct sl_engine *eng, struct sl_rseq *rs, int32_t n)
{
    const struct sl_seq *seq = &rs->seq;
    int32_t n_good = 0;
    SL_ASSERT(rs->drafts != NULL && n <= eng->speculative.num_speculative_tokens);
    n = sl_ngram_find(&eng->speculative, seq->prompt, seq->n_prompt, seq->out, seq->n_out, n,
                      rs->drafts);
    while (n_good < n && rs->drafts[n_good] < eng->runner.n_vocab)
        n_good++;
    return n_good;
}

const struct sl_mode sl_mode_ngram = {.propose = propose_ngram, .consume = sl_generate_consume};

const struct sl_mode *sl_mode_of(enum sl_draft_method method)
{
    static const struct sl_mode *const modes[] = {
        [SL_DRAFT_NGRAM] = &sl_mode_ngram, [SL_DRAFT_MODEL] = &sl_mode_model};
    SL_ASSERT((size_t)method < SL_COUNT(modes));
    return modes[method];
}
