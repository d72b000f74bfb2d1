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
#include "engine/suffix.h"
#include "engine/turn.h"

#include <string.h>

/* Tokens. A model's drafts cost more than looking something up. */
#define MAX_PAUSE       8
#define MAX_PAUSE_MODEL 31
/* Of drafts, right and wrong ones that a sequence begins with, and what is kept of both as others
 * come. A token without a draft leaves less of them: what was wrong is tried again. */
#define FIRST_RIGHT 2.0f
#define FIRST_WRONG 1.0f
#define KEEP_TRIED  0.8f
#define KEEP_IDLE   0.98f
/* Of drafts by the length of their match, what is kept of right and wrong ones as others come. */
#define KEEP_MATCHED 0.98f
/* Drafts are given by probability: at least 1, then so much less again and again. */
#define LESS_LIKELY  0.85f
#define LEAST_LIKELY 0.04f
#define PLAIN_EVERY  32 /* steps, one has no drafts: what such a step takes stays known */

static bool propose_may(const struct sl_seq *seq)
{
    return !seq->all_logits && seq->n_computed + 1 == sl_seq_n_known(seq);
}

static int32_t match_size(int32_t match)
{
    int32_t i = 0;
    while (i < SL_MATCH_SIZES - 1 && match >= 2 << i)
        i++;
    return i;
}

/* Where what followed a match is known to differ, the match itself is less to blame. */
static void learn_match(struct sl_engine *eng, const struct sl_rseq *rs, int32_t n, int32_t n_right)
{
    const int32_t i = match_size(rs->match);
    eng->match_right[i] = eng->match_right[i] * KEEP_MATCHED + (float)n_right;
    eng->match_wrong[i] =
        eng->match_wrong[i] * KEEP_MATCHED + (n_right < n ? rs->share[n_right] : 0.0f);
}

/* Drafts that were wrong make the next ones fewer, as each costs a row of the step; right ones make
 * them more. Where none was right, some tokens come without, twice as many each time. Who knows how
 * likely each draft is needs no such rule. */
void sl_engine_learn_drafts(struct sl_engine *eng, struct sl_rseq *rs, int32_t n, int32_t n_right)
{
    struct sl_stats *s = &eng->stats;
    SL_ASSERT(n >= 1 && n <= SL_MAX_DRAFTED && n_right >= 0 && n_right <= n);
    if (rs->share == NULL) {
        const int32_t max_pause = eng->drafter != NULL ? MAX_PAUSE_MODEL : MAX_PAUSE;
        rs->n_try = n_right < n ? n_right + 1 : 2 * n;
        rs->pause = n_right > 0 ? 0 : SL_MIN(2 * rs->pause + 1, max_pause);
        rs->resume_at = rs->seq.n_out + 1 + rs->pause;
    } else {
        learn_match(eng, rs, n, n_right);
    }
    rs->right = rs->right * KEEP_TRIED + (float)n_right;
    rs->wrong = rs->wrong * KEEP_TRIED + (n_right == n        ? 0
                                          : rs->share != NULL ? rs->share[n_right]
                                                              : 1);
    rs->req->usage_now.n_drafted += n;
    rs->req->usage_now.n_accepted += n_right;
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

/* The probability that a draft is right if all before it are: that of the sequence's drafts lately,
 * which begins with what others after matches as long had. */
static float propose_each(const struct sl_engine *eng, const struct sl_rseq *rs)
{
    if (rs->share == NULL || rs->n_most == 0)
        return sl_engine_draft_odds(rs);
    const int32_t i = match_size(rs->match);
    const float all = FIRST_RIGHT + eng->match_right[i] + FIRST_WRONG + eng->match_wrong[i];
    const float first = (FIRST_RIGHT + eng->match_right[i]) / all,
                weight = FIRST_RIGHT + FIRST_WRONG;
    return (rs->right + weight * first) / (rs->right + rs->wrong + weight);
}

/* The same for draft i. */
static float propose_draft(const struct sl_rseq *rs, int32_t i)
{
    return rs->each * (rs->share != NULL && i < rs->n_most ? rs->share[i] : 1.0f);
}

/* How many drafts a sequence may have. They are looked for where they say how likely they are,
 * unless not even a certain one would be worth its row. */
static int32_t propose_most(struct sl_engine *eng, struct sl_rseq *rs, struct sl_drafting step)
{
    const int32_t fits = sl_sched_max_drafts(&eng->sched, &rs->seq);
    const int32_t most = propose_asks(rs) ? SL_MIN(sl_engine_n_drafts(eng, rs), fits) : 0;
    if (eng->drafter != NULL)
        return sl_draft_waiting(rs, most);
    if (rs->share == NULL || most == 0)
        return most;
    if (!sl_cost_draft(&eng->sched.cost, &step, rs->seq.n_computed, 0, 1.0))
        return 0;
    return find_drafts(eng, rs, most);
}

/* How many drafts of each sequence are worth their rows. Those that most likely come out go first,
 * whoever has them. */
static void propose_worth(struct sl_engine *eng, int32_t room)
{
    const struct sl_sched *s = &eng->sched;
    struct sl_drafting step = sl_engine_next_step(eng);
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sl_rseq *rs = sl_rseq_of(s->running[i]);
        rs->n_worth = 0;
        rs->n_most = room > 0 ? propose_most(eng, rs, step) : 0;
        rs->each = propose_each(eng, rs);
        rs->comes = propose_draft(rs, 0);
    }
    for (float least = 1; least > LEAST_LIKELY; least *= LESS_LIKELY)
        for (int32_t i = 0; i < s->n_running; i++) {
            struct sl_rseq *rs = sl_rseq_of(s->running[i]);
            while (room > 0 && rs->n_worth < rs->n_most && rs->comes >= least &&
                   sl_cost_draft(&s->cost, &step, rs->seq.n_computed, rs->n_worth,
                                 (double)rs->comes)) {
                rs->n_worth++;
                rs->comes *= propose_draft(rs, rs->n_worth);
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
static int32_t propose_valid(const struct sl_engine *eng, const struct sl_rseq *rs, int32_t n)
{
    int32_t n_good = 0;
    while (n_good < n && rs->drafts[n_good] < eng->runner.n_vocab)
        n_good++;
    return n_good;
}

static int32_t propose_ngram(struct sl_engine *eng, struct sl_rseq *rs, int32_t n)
{
    const struct sl_seq *seq = &rs->seq;
    SL_ASSERT(rs->drafts != NULL && n <= eng->speculative.num_speculative_tokens);
    n = sl_ngram_find(&eng->speculative, seq->prompt, seq->n_prompt, seq->out, seq->n_out, n,
                      rs->drafts);
    return propose_valid(eng, rs, n);
}

/* They are looked for once behind each text, as many as may ever be asked for there. */
static int32_t propose_suffix(struct sl_engine *eng, struct sl_rseq *rs, int32_t n)
{
    const struct sl_seq *seq = &rs->seq;
    const struct sl_speculative *how = &eng->speculative;
    const struct sl_suffix_text t = {seq->prompt, seq->out, seq->n_prompt,
                                     seq->n_prompt + seq->n_out};
    struct sl_suffix_drafts found[3] = {{0}}, *best = &found[0];
    SL_ASSERT(rs->drafts != NULL && rs->share != NULL && n <= how->num_speculative_tokens);
    if (rs->found_at == t.n)
        return SL_MIN(n, rs->n_found);
    sl_suffix_extend(&rs->links, &t);
    const int32_t most = how->num_speculative_tokens;
    sl_suffix_find(&rs->links, &t, &t, how, most, &found[0]);
    if (eng->corpus != NULL)
        sl_suffix_corpus_find(eng->corpus, &rs->req->ns, &t, how, most, &found[1]);
    if (rs->req->n_prediction > 0) {
        const struct sl_suffix_text p = {seq->prompt, rs->req->prediction, seq->n_prompt,
                                         seq->n_prompt + rs->req->n_prediction};
        sl_suffix_find(&rs->req->predicted, &p, &t, how, most, &found[2]);
    }
    for (size_t i = 1; i < SL_COUNT(found); i++)
        best = found[i].score > best->score ? &found[i] : best;
    memcpy(rs->drafts, best->ids, (size_t)best->n * sizeof *rs->drafts);
    memcpy(rs->share, best->share, (size_t)best->n * sizeof *rs->share);
    rs->match = best->match;
    rs->found_at = t.n;
    rs->n_found = propose_valid(eng, rs, best->n);
    return SL_MIN(n, rs->n_found);
}

const struct sl_mode sl_mode_ngram = {.propose = propose_ngram, .consume = sl_generate_consume};
const struct sl_mode sl_mode_suffix = {.propose = propose_suffix, .consume = sl_generate_consume};

const struct sl_mode *sl_mode_of(enum sl_draft_method method)
{
    static const struct sl_mode *const modes[] = {[SL_DRAFT_NGRAM] = &sl_mode_ngram,
                                                  [SL_DRAFT_SUFFIX] = &sl_mode_suffix,
                                                  [SL_DRAFT_MODEL] = &sl_mode_model,
                                                  [SL_DRAFT_MTP] = &sl_mode_model,
                                                  [SL_DRAFT_EAGLE3] = &sl_mode_model};
    SL_ASSERT((size_t)method < SL_COUNT(modes));
    return modes[method];
}
