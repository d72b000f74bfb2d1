/* SPDX-License-Identifier: MIT
 * Which sequences get drafts in the next step, and how many.
 *
 * A sequence is drafted for when all its text is known and nothing but its last token is left to
 * compute. With a runner that is one step ahead, its next token is usually pending: then it is held
 * for a turn if there would be something to draft, or all are, whatever costs less (ahead.h).
 *
 * A draft is worth its row if the step makes more tokens a second with it: what it adds to them,
 * the probability that it and all before it are right, against what it adds to the time of the
 * step, by the prices learnt from steps so far (sched/cost.h). So few sequences draft much, and
 * where a step is bound by arithmetic nobody does. That is what is expected; what drafts cost and
 * bring is kept count of, and bounded whatever was expected (fund.h).
 */
#include "base/check.h"
#include "base/sys.h"
#include "engine/ngram.h"
#include "engine/suffix.h"
#include "engine/turn.h"

#include <string.h>

/* Of drafts, right and wrong ones that a sequence begins with, and what is kept of both as others
 * come. A token without a draft leaves less of them: what was wrong is tried again. */
#define FIRST_RIGHT 2.0f
#define FIRST_WRONG 1.0f
#define KEEP_TRIED  0.8f
#define KEEP_IDLE   0.98f
/* Right ones to begin with after a match, by its length (match_size): one token says little, and
 * what is spent on trying it is not there when a long match comes. */
static const float first_right[SL_MATCH_SIZES] = {FIRST_RIGHT, 0.5f, 1, 2, 4, 4};
/* Of drafts by the length of their match, what is kept of right and wrong ones as others come. */
#define KEEP_MATCHED 0.98f
#define KEEP_SEARCH  0.875 /* of what a search takes, when one more was made */
#define PAYS_LATE    0.5   /* of what being late costs, drafts must be likely to bring */
#define PLAIN_EVERY  32    /* steps, one has no drafts: what such a step takes stays known */

static bool propose_may(const struct sl_seq *seq)
{
    return !seq->all_logits && seq->n_computed + 1 == sl_seq_n_known(seq);
}

static int32_t match_size(int32_t match)
{
    int32_t i = 0;
    while (i < SL_MATCH_SIZES - 1 && match >= 1 << i)
        i++;
    return i;
}

/* Where what followed a match is known to differ, the match itself is less to blame. */
static float how_wrong(const struct sl_rseq *rs, int32_t n, int32_t n_right)
{
    if (n_right == n)
        return 0;
    return rs->share != NULL ? rs->share[n_right] : 1;
}

static void learn_match(struct sl_engine *eng, const struct sl_rseq *rs, int32_t n, int32_t n_right)
{
    const int32_t i = match_size(rs->match);
    eng->match_right[i] = eng->match_right[i] * KEEP_MATCHED + (float)n_right;
    eng->match_wrong[i] = eng->match_wrong[i] * KEEP_MATCHED + how_wrong(rs, n, n_right);
}

/* Of n drafts, n_right were right, and the one behind them was not. */
void sl_engine_learn_drafts(struct sl_engine *eng, struct sl_rseq *rs, int32_t n, int32_t n_right)
{
    struct sl_stats *s = &eng->stats;
    SL_ASSERT(n >= 1 && n <= SL_MAX_DRAFTED && n_right >= 0 && n_right <= n);
    learn_match(eng, rs, n, n_right);
    rs->right = rs->right * KEEP_TRIED + (float)n_right;
    rs->wrong = rs->wrong * KEEP_TRIED + how_wrong(rs, n, n_right);
    sl_fund_bring(&eng->fund, &rs->credit, n_right);
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
    const int32_t n_left = seq->max_out - seq->n_out - seq->n_pending - 1;
    return SL_MAX(SL_MIN(eng->speculative.num_speculative_tokens, n_left), 0);
}

/* That of the sequence's drafts lately, which begins with what others after matches as long had. */
float sl_engine_draft_odds(const struct sl_engine *eng, const struct sl_rseq *rs)
{
    const int32_t i = match_size(rs->match);
    const float right = first_right[i] + eng->match_right[i];
    const float first = right / (right + FIRST_WRONG + eng->match_wrong[i]),
                weight = FIRST_RIGHT + FIRST_WRONG;
    return (rs->right + weight * first) / (rs->right + rs->wrong + weight);
}

int32_t sl_engine_draft_room(const struct sl_engine *eng)
{
    const struct sl_sched *s = &eng->sched;
    const int32_t n = SL_MIN(s->cfg.max_tokens - s->n_running, s->cfg.max_logits - s->cfg.max_seqs);
    return SL_MIN(n, sl_kv_n_draft_pages(s->kv));
}

bool sl_engine_prices_drafts(const struct sl_engine *eng)
{
    return eng->sched.cfg.max_step_s > 0;
}

float sl_engine_draft_comes(const struct sl_engine *eng, float comes)
{
    const float least = SL_DRAFT_LEAST / SL_DRAFT_LESS;
    return sl_engine_prices_drafts(eng) ? comes : SL_MAX(comes, least);
}

bool sl_engine_is_plain(const struct sl_engine *eng)
{
    return sl_engine_prices_drafts(eng) && eng->n_proposals % PLAIN_EVERY == PLAIN_EVERY - 1;
}

bool sl_engine_afford_draft(const struct sl_engine *eng, struct sl_fund *left, struct sl_rseq *rs,
                            double seconds)
{
    if (!sl_engine_prices_drafts(eng))
        return true;
    seconds = SL_MAX(seconds, 0);
    const double most = sl_fund_most(left, rs->left);
    if (left->step_s == 0 || most == 0 || most < seconds)
        return false;
    sl_fund_pay(left, &rs->left, seconds);
    return true;
}

/* A search takes time too. */
static int32_t look_up(struct sl_engine *eng, struct sl_rseq *rs, int32_t n)
{
    const uint64_t t0 = sl_now_ns();
    const int32_t found_at = rs->found_at;
    n = rs->req->mode->propose(eng, rs, n);
    if (!sl_engine_prices_drafts(eng))
        return n;
    const double took_s = (double)(sl_now_ns() - t0) / 1e9;
    if (rs->found_at != found_at)
        eng->search_s = KEEP_SEARCH * eng->search_s + (1 - KEEP_SEARCH) * took_s;
    sl_fund_pay(&eng->fund, &rs->credit, took_s);
    return n;
}

/* With a mask, drafts came with it. */
static int32_t find_drafts(struct sl_engine *eng, struct sl_rseq *rs, int32_t n)
{
    if (rs->mask == NULL)
        return eng->drafter != NULL ? rs->req->mode->propose(eng, rs, n) : look_up(eng, rs, n);
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

/* The probability that draft i is right if all before it are. */
static float propose_draft(const struct sl_rseq *rs, int32_t i)
{
    return rs->each * (rs->share != NULL && i < rs->n_most ? rs->share[i] : 1.0f);
}

/* Where steps follow one another, one with drafts comes late, and so does the one behind it. That
 * is shared by all that draft; who does alone loses at most its own tokens. */
static double propose_late(const struct sl_engine *eng, const struct sl_rseq *rs)
{
    if (eng->max_flights == 1 || eng->drafter != NULL)
        return 0;
    const int32_t n = rs->seq.n_pending > 0 ? 2 : 1; /* steps */
    return n * SL_MIN(eng->ahead.late_s / eng->sched.n_running, eng->fund.token_s);
}

/* Could drafts that are found now be paid? What they are looked for with must be left for them, or
 * searches would take all that comes in: one now and one when the pending token is known, the first
 * draft's row and what it costs to be late. */
static bool propose_searches(const struct sl_engine *eng, const struct sl_rseq *rs, double row_s)
{
    const double left = sl_fund_most(&eng->fund, rs->credit);
    return !sl_engine_prices_drafts(eng) ||
           (left > 0 && left >= 2 * eng->search_s + row_s + propose_late(eng, rs));
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
    const double before_s = sl_cost_of(&eng->sched.cost, step.work);
    if (!sl_cost_draft(&eng->sched.cost, &step, rs->seq.n_computed, 0, 1.0))
        return 0;
    const double row_s = SL_MAX(sl_cost_of(&eng->sched.cost, step.work) - before_s, 0);
    return propose_searches(eng, rs, row_s) ? find_drafts(eng, rs, most) : 0;
}

/* Are all drafts of rs together likely to bring a good part of what it costs to be late? A trial of
 * fewer is not worth what was saved for it. */
static bool propose_pays(const struct sl_engine *eng, const struct sl_rseq *rs)
{
    double comes = 1, tokens = 0;
    if (!sl_engine_prices_drafts(eng) || rs->share == NULL)
        return true;
    for (int32_t i = 0; i < rs->n_worth; i++) {
        comes *= (double)propose_draft(rs, i);
        tokens += comes;
    }
    return tokens * eng->fund.token_s >= PAYS_LATE * propose_late(eng, rs);
}

/* May rs have one draft more in the step? Then the step has it. */
static bool propose_one(const struct sl_engine *eng, struct sl_drafting *step, struct sl_fund *left,
                        struct sl_rseq *rs)
{
    const struct sl_cost *c = &eng->sched.cost;
    struct sl_drafting with = *step;
    if (!sl_cost_draft(c, &with, rs->seq.n_computed, rs->n_worth, (double)rs->comes))
        return false;
    double price = sl_cost_of(c, with.work) - sl_cost_of(c, step->work);
    price += rs->n_worth == 0 ? propose_late(eng, rs) : 0;
    if (!sl_engine_afford_draft(eng, left, rs, price))
        return false;
    rs->price += SL_MAX(price, 0);
    *step = with;
    return true;
}

/* How many drafts of each sequence are worth their rows. Those that most likely come out go first,
 * whoever has them. */
static void propose_worth(struct sl_engine *eng, int32_t room)
{
    const struct sl_sched *s = &eng->sched;
    struct sl_drafting step = sl_engine_next_step(eng);
    if (step.work.tokens > 0 && sl_cost_knows(&s->cost, step.work))
        sl_fund_next(&eng->fund, sl_cost_of(&s->cost, step.work), step.tokens);
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sl_rseq *rs = sl_rseq_of(s->running[i]);
        rs->n_worth = 0;
        rs->price = 0;
        rs->n_most = room > 0 ? propose_most(eng, rs, step) : 0;
        rs->left = rs->credit;
        if (rs->n_most == 0) /* what was found for it may be a masker's now */
            continue;
        rs->each = sl_engine_draft_odds(eng, rs);
        rs->comes = sl_engine_draft_comes(eng, propose_draft(rs, 0));
    }
    struct sl_fund left = eng->fund;
    for (float least = 1; least > SL_DRAFT_LEAST; least *= SL_DRAFT_LESS)
        for (int32_t i = 0; i < s->n_running; i++) {
            struct sl_rseq *rs = sl_rseq_of(s->running[i]);
            while (room > 0 && rs->n_worth < rs->n_most && rs->comes >= least &&
                   propose_one(eng, &step, &left, rs)) {
                rs->n_worth++;
                rs->comes = sl_engine_draft_comes(eng, rs->comes * propose_draft(rs, rs->n_worth));
                room--;
            }
        }
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sl_rseq *rs = sl_rseq_of(s->running[i]);
        if (rs->n_worth > 0 && !propose_pays(eng, rs))
            rs->n_worth = 0, rs->price = 0;
    }
}

static void propose_pay(struct sl_engine *eng, struct sl_rseq *rs, double seconds)
{
    rs->drafted_at = eng->n_proposals;
    if (sl_engine_prices_drafts(eng))
        sl_fund_pay(&eng->fund, &rs->credit, seconds);
}

/* Those whose next token is pending, though there would be something to draft behind it, are held
 * for a turn while others go on. Where they are many all are: true. */
static bool propose_hold(struct sl_engine *eng)
{
    const struct sl_sched *s = &eng->sched;
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sl_rseq *rs = sl_rseq_of(s->running[i]);
        if (!propose_asks(rs) || rs->seq.n_pending == 0)
            continue;
        const bool holds = rs->n_worth > 0 && find_drafts(eng, rs, 1) > 0;
        rs->seq.holds = rs->never_ahead || holds;
        rs->n_worth = holds ? rs->n_worth : 0;
        n += holds;
    }
    if (n == 0)
        return false;
    const bool all = sl_ahead_awaits(eng, n);
    const double left_out_s = all || s->n_running == 1 ? 0 : eng->fund.token_s;
    eng->ahead.awaited = true;
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sl_rseq *rs = sl_rseq_of(s->running[i]);
        if (propose_asks(rs) && rs->seq.n_pending > 0 && rs->n_worth > 0)
            propose_pay(eng, rs, left_out_s);
    }
    return all;
}

bool sl_engine_propose(struct sl_engine *eng)
{
    const struct sl_sched *s = &eng->sched;
    const int32_t room = sl_engine_is_plain(eng) ? 0 : sl_engine_draft_room(eng);
    SL_ASSERT(room >= 0);
    eng->n_proposals++;
    eng->ahead.paid_s = 0;
    propose_worth(eng, room);
    if (propose_hold(eng))
        return false;
    bool idle = true;
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sl_rseq *rs = sl_rseq_of(s->running[i]);
        struct sl_seq *seq = &rs->seq;
        if (!propose_asks(rs))
            continue;
        const int32_t n = rs->n_worth;
        idle = idle && n == 0;
        if (n == 0)
            rs->right *= KEEP_IDLE, rs->wrong *= KEEP_IDLE;
        if (seq->n_pending > 0)
            continue;
        seq->n_drafted = n > 0 && propose_may(seq) ? find_drafts(eng, rs, n) : 0;
        SL_ASSERT(seq->n_drafted <= n);
        if (seq->n_drafted == 0)
            continue;
        eng->ahead.paid_s += rs->price * seq->n_drafted / n;
        propose_pay(eng, rs, rs->price * seq->n_drafted / n);
    }
    for (int32_t i = 0; i < SL_MATCH_SIZES && idle; i++)
        eng->match_right[i] *= KEEP_IDLE, eng->match_wrong[i] *= KEEP_IDLE;
    return true;
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
    static const struct sl_mode *const modes[] = {
        [SL_DRAFT_NGRAM] = &sl_mode_ngram,  [SL_DRAFT_SUFFIX] = &sl_mode_suffix,
        [SL_DRAFT_MODEL] = &sl_mode_model,  [SL_DRAFT_MTP] = &sl_mode_model,
        [SL_DRAFT_EAGLE3] = &sl_mode_model, [SL_DRAFT_DFLASH] = &sl_mode_model,
        [SL_DRAFT_DSPARK] = &sl_mode_model};
    SL_ASSERT((size_t)method < SL_COUNT(modes));
    return modes[method];
}
