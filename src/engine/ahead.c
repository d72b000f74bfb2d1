/* SPDX-License-Identifier: MIT
 * What a step is compared with is the time that steps of its work without drafts were measured to
 * take, one behind the other. A step with a chunk of a prompt is not compared: no two are alike.
 */
#include "engine/ahead.h"

#include "base/check.h"
#include "base/sys.h"
#include "engine/draft.h"
#include "engine/turn.h"

#define KEEP_LATE 0.875 /* of late_s, when a step more began late */

/* Who drafted for the last step or the one before it may be why this one is late. */
#define LATELY 2

static bool drafted_lately(const struct sl_engine *eng, const struct sl_rseq *rs)
{
    return rs->drafted_at > 0 && rs->drafted_at + LATELY >= eng->n_proposals;
}

static int32_t n_drafting(const struct sl_flight *f)
{
    int32_t n = 0;
    for (int32_t i = 0; i < f->n_seqs; i++)
        n += f->seqs[i].rs != NULL && f->seqs[i].n_picks > 1;
    return n;
}

/* The step without its drafts; no tokens: there is a chunk of a prompt in it. */
static struct sl_work plain_work(const struct sl_flight *f)
{
    struct sl_work w = {0};
    for (int32_t i = 0; i < f->n_seqs; i++) {
        if (f->seqs[i].n_picks != f->seqs[i].n)
            return (struct sl_work){0};
        w = sl_work_add(w, f->seqs[i].pos, 1);
    }
    return w;
}

void sl_ahead_launched(struct sl_engine *eng, struct sl_flight *f)
{
    struct sl_ahead *a = &eng->ahead;
    SL_ASSERT(f->n_seqs > 0 && a->pass_s >= 0 && a->paid_s >= 0);
    f->late = a->free_ns != 0 && a->awaited;
    f->from_ns = f->late ? a->free_ns : f->launched_ns;
    if (f->late) {
        double late_s = SL_MAX((double)(sl_now_ns() - a->free_ns) / 1e9 - a->pass_s, 0);
        if (eng->fund.step_s > 0) /* more was something else */
            late_s = SL_MIN(late_s, eng->fund.step_s);
        a->late_s = a->late_s > 0 ? KEEP_LATE * a->late_s + (1 - KEEP_LATE) * late_s : late_s;
    }
    f->pass_s = a->pass_s;
    f->paid_s = a->paid_s;
    f->plain = plain_work(f);
    a->free_ns = 0;
    a->awaited = false;
    a->pass_s = a->paid_s = 0;
}

static void pay_lost(struct sl_engine *eng, double seconds)
{
    const struct sl_sched *s = &eng->sched;
    double none = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_running; i++)
        n += drafted_lately(eng, sl_rseq_of(s->running[i]));
    if (n == 0)
        sl_fund_pay(&eng->fund, &none, seconds);
    for (int32_t i = 0; i < s->n_running && n > 0; i++) {
        struct sl_rseq *rs = sl_rseq_of(s->running[i]);
        if (drafted_lately(eng, rs))
            sl_fund_pay(&eng->fund, &rs->credit, seconds / n);
    }
}

void sl_ahead_landed(struct sl_engine *eng, const struct sl_flight *f)
{
    const int32_t n = n_drafting(f);
    if (eng->max_flights == 1 || eng->drafting == NULL || !sl_engine_prices_drafts(eng) ||
        f->plain.tokens == 0 || (!f->late && n == 0))
        return;
    const double plain_s = sl_cost_measured(&eng->sched.cost, f->plain);
    if (plain_s == 0)
        return;
    const uint64_t from = f->late ? f->from_ns : SL_MAX(f->launched_ns, eng->landed_ns);
    const uint64_t ns = eng->now_ns - from;
    const double took_s = (double)(ns - SL_MIN(ns, eng->waited_ns)) / 1e9 - f->pass_s;
    /* A step that took twice as long was held up by something else. */
    const double lost_s = SL_MIN(SL_MAX(took_s - plain_s, 0), plain_s);
    /* Where a step follows, those with drafts are not in it. */
    const double left_out_s = eng->n_flights > 1 ? n * eng->fund.token_s : 0;
    pay_lost(eng, SL_MAX(lost_s - f->paid_s, 0) + left_out_s);
}

void sl_ahead_over(struct sl_engine *eng, const struct sl_flight *f)
{
    struct sl_ahead *a = &eng->ahead;
    if (eng->n_flights > 0 || eng->max_flights == 1) /* there each step begins late */
        return;
    a->awaited |= n_drafting(f) > 0;
    a->free_ns = eng->sched.n_running > 0 ? eng->now_ns : 0;
}

/* Who misses a step loses its tokens; if it waits all lose the time. */
bool sl_ahead_awaits(const struct sl_engine *eng, int32_t n)
{
    if (eng->fund.token_s == 0 || eng->ahead.late_s == 0)
        return 2 * n > eng->sched.n_running;
    return n * eng->fund.token_s > eng->ahead.late_s;
}

bool sl_ahead_stays(struct sl_engine *eng, const struct sl_flight *f)
{
    SL_ASSERT(eng->n_flights == 1);
    if (eng->max_flights == 1 || eng->drafting == NULL)
        return eng->max_flights > 1;
    const bool awaited = sl_ahead_awaits(eng, n_drafting(f)) ||
                         (eng->drafter != NULL && sl_engine_draft_awaits(eng, f));
    eng->ahead.awaited |= awaited;
    return !awaited;
}
