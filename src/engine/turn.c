/* SPDX-License-Identifier: MIT
 * One turn of the engine: take what was submitted and cancelled, plan a step and launch it, land
 * the oldest one, end sequences, deliver. Everything here runs on the engine thread and allocates
 * nothing.
 */
#include "engine/turn.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "engine/ahead.h"
#include "engine/stats.h"

#include <string.h>

void sl_engine_part(struct sl_engine *eng, enum sl_time_part part)
{
    uint64_t now = sl_now_ns();
    eng->stats.part_ns[eng->part] += now - eng->part_ns;
    eng->part = part;
    eng->part_ns = now;
}

/* ------------------------------------------------------------------ steps */

static void fail_live(struct sl_engine *eng, const struct sl_error *err)
{
    while (eng->live != NULL)
        sl_engine_fail(eng, eng->live, err);
}

/* What runs is computed again, from its first token: the same tokens with the same bits. */
static void redo_running(struct sl_engine *eng)
{
    SL_ASSERT(eng->n_flights == 0);
    while (eng->sched.n_running > 0) {
        struct sl_seq *seq = eng->sched.running[eng->sched.n_running - 1];
        SL_ASSERT(seq->n_pending == 0);
        seq->n_drafted = 0;
        sl_engine_forget_counts(eng, sl_rseq_of(seq));
        sl_sched_requeue(&eng->sched, seq, true);
    }
}

/* A failed step says nothing about which sequence is to blame, and their pages may hold anything.
 * A dead device takes all requests with it, once. So does a lost rank, with what is cached: its
 * part of every page is gone. While one is let in no step begins. */
static void fail_step(struct sl_engine *eng, const struct sl_flight *f, const struct sl_error *err)
{
    SL_ASSERT(err->code != SL_OK);
    if (err->code != SL_EBUSY)
        sl_log(SL_LOG_ERROR, "step failed: %s", err->msg);
    if (err->code == SL_EDEVICE) {
        eng->error = *err;
        atomic_store(&eng->failed, true);
        fail_live(eng, err);
        return;
    }
    if (err->code == SL_EBUSY) {
        redo_running(eng);
        return;
    }
    if (err->code == SL_ERANK) {
        fail_live(eng, err); /* the next turn empties the cache */
        return;
    }
    for (int32_t i = 0; i < f->n_seqs; i++)
        if (f->seqs[i].rs != NULL)
            sl_engine_fail(eng, f->seqs[i].rs->req, err);
}

/* The plan's sequences move on: what follows may be planned before the step is over. */
static void turn_advance(struct sl_engine *eng, const struct sl_flight *f)
{
    for (int32_t i = 0; i < f->n_seqs; i++) {
        const struct sl_flight_seq *fs = &f->seqs[i];
        struct sl_seq *seq = &fs->rs->seq;
        sl_sched_advance(&eng->sched, seq);
        if (fs->n_picks == 0)
            continue;
        SL_ASSERT(seq->n_pending < eng->max_flights && fs->n_picks <= fs->n_rows);
        seq->n_pending++;
        seq->pending_row = fs->row + fs->n_rows - 1;
        seq->pending_slot = f->batch.slot;
    }
}

/* False: the step was refused. */
static bool launch(struct sl_engine *eng)
{
    struct sl_error err = {.code = SL_OK};
    SL_ASSERT(eng->n_flights < eng->max_flights);
    struct sl_flight *f = &eng->flights[(eng->first_flight + eng->n_flights) % eng->max_flights];
    sl_engine_mark_started(eng, eng->now_ns);
    SL_ASSERT(f->n_seqs == 0 && eng->sched.n_plan > 0);
    f->launched_ns = eng->now_ns;
    f->work = eng->sched.work;
    sl_moves_before_step(eng);
    sl_engine_draft_launch(eng);
    int rc = sl_flight_launch(eng, f, &err);
    eng->stats.steps++;
    sl_hist_add(&eng->stats.step_tokens, SL_BOUNDS_STEP, f->batch.n_tokens);
    if (rc != 0) {
        eng->now_ns = sl_now_ns();
        atomic_fetch_add(&eng->n_moves, 1);
        fail_step(eng, f, &err);
        f->n_seqs = 0;
        return false;
    }
    sl_ahead_launched(eng, f);
    turn_advance(eng, f);
    eng->n_flights++;
    return true;
}

/* The oldest flight is over. */
static void drop_flight(struct sl_engine *eng, struct sl_flight *f)
{
    SL_ASSERT(eng->n_flights > 0 && f == &eng->flights[eng->first_flight]);
    eng->first_flight = (eng->first_flight + 1) % eng->max_flights;
    eng->n_flights--;
    sl_ahead_over(eng, f);
    f->n_seqs = 0;
    atomic_fetch_add(&eng->n_moves, 1);
}

/* So is the one launched last. */
static void drop_last(struct sl_engine *eng)
{
    SL_ASSERT(eng->n_flights > 0);
    struct sl_flight *f =
        &eng->flights[(eng->first_flight + eng->n_flights - 1) % eng->max_flights];
    eng->n_flights--;
    sl_ahead_over(eng, f);
    f->n_seqs = 0;
    atomic_fetch_add(&eng->n_moves, 1);
}

/* Steps that were launched before a failure was known may have found pages in doubt, and given some
 * back to the cache: their sequences are computed again, and the cache is forgotten. */
static void redo_flights(struct sl_engine *eng)
{
    while (eng->n_flights > 0) {
        struct sl_error err;
        struct sl_flight *f = &eng->flights[eng->first_flight];
        int rc = sl_flight_land(eng, f, &err);
        if (rc != 0)
            fail_step(eng, f, &err);
        for (int32_t i = 0; i < f->n_seqs; i++) {
            const struct sl_flight_seq *fs = &f->seqs[i];
            if (fs->rs == NULL)
                continue;
            SL_ASSERT(fs->rs->seq.n_pending >= (fs->n_picks > 0));
            if (fs->n_picks > 0)
                fs->rs->seq.n_pending--;
            fs->rs->seq.n_drafted = 0;
            sl_engine_forget_counts(eng, fs->rs);
            sl_sched_requeue(&eng->sched, &fs->rs->seq, true);
        }
        drop_flight(eng, f);
    }
}

static void put_runner_stats(const struct sl_engine *eng, struct sl_stats *s)
{
    struct sl_device_times t;
    if (eng->runner.top_pages != NULL) {
        struct sl_top_page_counts pages;
        eng->runner.top_pages(eng->runner.ctx, &pages);
        s->top_pages_read = pages.read;
        s->top_pages_dense = pages.dense;
    }
    if (eng->runner.eplb != NULL)
        eng->runner.eplb(eng->runner.ctx, &s->eplb);
    if (eng->runner.times == NULL)
        return;
    eng->runner.times(eng->runner.ctx, &t);
    s->device_busy_s = t.busy_ms / 1e3;
    s->device_gap_s = t.gap_ms / 1e3;
    s->cpu_expert_calls = t.n_host_calls;
    s->cpu_expert_rows = t.n_host_rows;
    s->cpu_expert_s = t.host_ms / 1e3;
    if (eng->runner.stage_times == NULL)
        return;
    _Static_assert(SL_STATS_STAGES == SL_MAX_STAGES, "a time for each stage");
    s->n_stages = eng->runner.n_groups;
    for (int32_t i = 0; i < s->n_stages; i++) {
        eng->runner.stage_times(eng->runner.ctx, i, &t);
        s->stage_busy_s[i] = t.busy_ms / 1e3;
        s->stage_wait_s[i] = t.gap_ms / 1e3;
    }
}

/* What the step that has just landed took. A device's own clock knows it where steps follow one
 * another: on the host's clock a step whose end was noticed late seems long, the next one short. */
static double device_seconds(struct sl_engine *eng)
{
    struct sl_device_times t;
    double seconds = (double)eng->step_ns / 1e9;
    if (eng->runner.times == NULL)
        return seconds;
    eng->runner.times(eng->runner.ctx, &t);
    const double busy_s = t.busy_ms / 1e3;
    if (busy_s > eng->busy_s)
        seconds = busy_s - eng->busy_s;
    eng->busy_s = busy_s;
    return seconds;
}

/* Without what it waited for masks, which must not make the next wait longer. */
static void note_duration(struct sl_engine *eng, const struct sl_flight *f)
{
    uint64_t ns = eng->now_ns - SL_MAX(f->launched_ns, eng->landed_ns);
    eng->step_ns = ns - SL_MIN(ns, eng->waited_ns);
    eng->landed_ns = eng->now_ns;
    eng->waited_ns = 0;
    const double seconds = device_seconds(eng);
    if (eng->sched.cfg.max_step_s > 0 && seconds > 0 && f->work.tokens > 0) {
        sl_cost_learn(&eng->sched.cost, f->work, seconds);
        sl_fund_earn(&eng->fund, seconds);
    }
}

static void land(struct sl_engine *eng)
{
    struct sl_error err = {.code = SL_OK};
    SL_ASSERT(eng->n_flights > 0);
    struct sl_flight *f = &eng->flights[eng->first_flight];
    const int32_t n_seqs = f->n_seqs;
    int rc = sl_flight_land(eng, f, &err);
    f->pass_s += sl_engine_draft_end(eng);
    eng->now_ns = sl_now_ns();
    sl_ahead_landed(eng, f);
    note_duration(eng, f);
    sl_engine_part(eng, SL_PART_OUTPUT);
    for (int32_t i = 0; i < f->n_seqs && rc == 0; i++)
        if (f->seqs[i].rs != NULL) /* else it has ended since */
            f->seqs[i].rs->req->mode->consume(eng, f, &f->seqs[i]);
    if (rc != 0)
        fail_step(eng, f, &err);
    drop_flight(eng, f);
    if (rc != 0 && eng->max_flights > 1) {
        sl_moves_doubt(&eng->tiers.moves);
        redo_flights(eng);
        sl_kv_clear(&eng->kv);
    }
    if (rc == 0)
        sl_engine_draft(eng, f, n_seqs);
    sl_engine_part(eng, SL_PART_HOST);
}

static struct sl_flight *last_flight(struct sl_engine *eng)
{
    SL_ASSERT(eng->n_flights > 0);
    return &eng->flights[(eng->first_flight + eng->n_flights - 1) % eng->max_flights];
}

/* Does a step before the last one choose tokens for sequences of its group? */
static bool follows_its_group(struct sl_engine *eng)
{
    const struct sl_flight *last = last_flight(eng);
    bool found = false;
    for (int32_t i = 0; i + 1 < eng->n_flights; i++) {
        const struct sl_flight *f = &eng->flights[(eng->first_flight + i) % eng->max_flights];
        found = found || (f->batch.slot == last->batch.slot && f->batch.n_logits > 0);
    }
    return found;
}

/* The step launched last computes; what its tokens are chosen by is there now. Where it is not, the
 * row is left out: it is computed again when its mask has come. */
static void decide(struct sl_engine *eng)
{
    struct sl_error err = {.code = SL_OK};
    if (eng->n_flights == 0 || !last_flight(eng)->undecided)
        return;
    struct sl_flight *f = last_flight(eng);
    while (eng->n_flights > 1 && follows_its_group(eng))
        land(eng);
    if (eng->n_flights == 0 || !f->undecided) /* a step before it has failed */
        return;
    SL_ASSERT(f == last_flight(eng));
    if (eng->max_flights > 1) /* else no mask can have come since the plan */
        sl_engine_await_masks(eng, eng->step_ns);
    for (int32_t i = 0; i < f->n_seqs; i++)
        if (f->seqs[i].rs != NULL && f->seqs[i].n_picks > 0 && f->seqs[i].rs->seq.waits)
            sl_flight_rollback(eng, &f->seqs[i]);
    if (sl_flight_choose(eng, f, &err) == 0)
        return;
    fail_step(eng, f, &err);
    drop_last(eng);
}

/* A step stays in flight while the next one is planned; of a pipeline as many as it has stages. If
 * there is no new one, whatever waits can wait for nothing but the oldest; if one was refused,
 * those before it must land before the next one. */
static void land_some(struct sl_engine *eng, bool launched, bool refused)
{
    const int32_t keep = refused ? 0 : launched ? eng->max_flights - 1 : eng->n_flights - 1;
    while (eng->n_flights > SL_MAX(keep, 1))
        land(eng);
    decide(eng);
    if (eng->n_flights == 1 && !(launched && sl_ahead_stays(eng, &eng->flights[eng->first_flight])))
        land(eng);
}

/* What the scheduler is to know of steps in flight. Chunks of a prompt may follow one another as
 * they like where all their pages are there from the start; those of a window or a state are given
 * up when a step has landed, and there are enough for two. */
static void count_in_flight(struct sl_engine *eng)
{
    int32_t *n = eng->sched.n_in_flight;
    const bool all = eng->kv.n_groups > 1 || eng->kv.groups[0].cfg.kind != SL_GROUP_FULL;
    memset(n, 0, sizeof eng->sched.n_in_flight);
    for (int32_t i = 0; i < eng->n_flights; i++) {
        const struct sl_batch *b = &eng->flights[(eng->first_flight + i) % eng->max_flights].batch;
        n[b->slot] += all || b->n_logits > 0;
    }
}

static void publish_stats(struct sl_engine *eng)
{
    struct sl_stats *s = &eng->stats;
    s->n_running = eng->sched.n_running;
    s->n_waiting = eng->sched.wait.n;
    s->n_pages = eng->kv.nodes.n_ids;
    s->n_pages_free = eng->kv.nodes.n_free;
    s->n_pages_cached = sl_kv_n_cached(&eng->kv);
    s->n_leases = eng->kv.leases.n;
    s->n_pages_leased = eng->kv.leases.n_kept;
    s->lease_ends = eng->kv.leases.n_ended;
    s->lease_falls = eng->kv.leases.n_fell;
    s->n_kv_groups = eng->kv.n_groups;
    for (int32_t g = 0; g < eng->kv.n_groups; g++) {
        const struct sl_kv_group *group = &eng->kv.groups[g];
        s->kv_groups[g].n_free = group->pool.n_free;
        s->kv_groups[g].n_cached = sl_kv_n_cached_pages(&eng->kv, g);
        s->kv_groups[g].n_evicted = group->n_evicted;
    }
    s->preemptions = eng->sched.n_preemptions;
    memcpy(s->evicted, eng->kv.n_evicted, sizeof s->evicted);
    s->grammar_late = eng->masker.n_late;
    s->tier_queries = eng->tiers.n_asked_tokens;
    s->tier_hits = eng->tiers.n_loaded_tokens;
    s->n_loading = eng->tiers.n_waiting;
    s->step_mallocs = sl_alloc_guard_count() - eng->n_mallocs_before;
    put_runner_stats(eng, s);
    pthread_mutex_lock(&eng->stats_lock);
    eng->stats_public = *s;
    pthread_mutex_unlock(&eng->stats_lock);
}

void sl_engine_leave(struct sl_engine *eng)
{
    SL_ASSERT(atomic_load_explicit(&eng->phase, memory_order_relaxed) == SL_PHASE_TURN);
    atomic_store_explicit(&eng->phase, SL_PHASE_RUNNER, memory_order_relaxed);
    pthread_mutex_unlock(&eng->turn_lock);
}

void sl_engine_return(struct sl_engine *eng)
{
    pthread_mutex_lock(&eng->turn_lock);
    SL_ASSERT(atomic_load_explicit(&eng->phase, memory_order_relaxed) != SL_PHASE_TURN);
    atomic_store_explicit(&eng->phase, SL_PHASE_TURN, memory_order_relaxed);
}

static void begin_turn(struct sl_engine *eng)
{
    sl_engine_return(eng);
    eng->now_ns = eng->part_ns = sl_now_ns();
    eng->part = SL_PART_HOST;
}

static void end_turn(struct sl_engine *eng)
{
    sl_engine_part(eng, SL_PART_OUTPUT);
    publish_stats(eng);
    sl_engine_deliver(eng);
    SL_ASSERT(eng->news == NULL && eng->news_tail == NULL);
    if (eng->feed != NULL)
        sl_feed_signal(eng->feed);
    sl_engine_part(eng, SL_PART_OUTPUT); /* seen with the next turn's */
    atomic_store_explicit(&eng->phase, SL_PHASE_ASLEEP, memory_order_relaxed);
    pthread_mutex_unlock(&eng->turn_lock);
}

/* A request that is neither running nor waiting would never end. */
static void end_lost(struct sl_engine *eng, struct sl_request *req)
{
    struct sl_error err;
    sl_fail(&err, SL_EINTERNAL, "the engine lost the request");
    for (int32_t i = 0; i < req->n_seqs; i++) {
        struct sl_seq *seq = &req->seqs[i].seq;
        if (seq->state != SL_SEQ_FINISHED)
            seq->state = SL_SEQ_NEW; /* no list has it, so none must be asked for it */
        seq->blocks.n = seq->blocks.n_drafts = 0;
    }
    sl_engine_fail(eng, req, &err);
}

/* The bookkeeping is wrong and nothing runs: everything can be set to what nothing running means,
 * at the price of what was cached. An engine that is still wrong then ends its service. */
static void repair(struct sl_engine *eng, struct sl_error *err)
{
    if (atomic_load(&eng->failed))
        return;
    SL_ASSERT(eng->n_flights == 0 && eng->masker.n_open == 0);
    eng->stats.invariant_violations++;
    sl_log(SL_LOG_ERROR,
           "an invariant is broken while nothing runs, the prefix cache is emptied: %s", err->msg);
    while (eng->live != NULL)
        end_lost(eng, eng->live);
    sl_kv_reset(&eng->kv);
    if (sl_engine_verify(eng, false, err))
        return;
    sl_log(SL_LOG_ERROR, "the engine stops serving: %s", err->msg);
    eng->error = *err;
    atomic_store(&eng->failed, true);
}

static void abort_live(struct sl_engine *eng)
{
    while (eng->live != NULL)
        sl_engine_end_all(eng, eng->live, SL_FINISH_ABORT, false);
}

/* A rank may have been lost, and be back, while no step ran; or one that steps did without comes
 * back, without the pages that others have. */
static void renew(struct sl_engine *eng)
{
    struct sl_error err;
    if (eng->runner.renew == NULL)
        return;
    sl_engine_leave(eng); /* it may wait */
    const enum sl_renewal news = eng->runner.renew(eng->runner.ctx);
    sl_engine_return(eng);
    if (news == SL_RENEW_NOTHING)
        return;
    SL_ASSERT(eng->n_flights == 0); /* such a runner computes in the call */
    (void)sl_fail(&err, SL_ERANK, "a rank was lost, and what it had computed");
    if (news == SL_RENEW_LOST)
        fail_live(eng, &err);
    else
        redo_running(eng);
    sl_kv_clear(&eng->kv);
}

bool sl_engine_turn(struct sl_engine *eng)
{
    begin_turn(eng);
    renew(eng);
    SL_ASSERT(eng->n_flights < eng->max_flights); /* there is room for a step */
    sl_engine_take_inbox(eng);
    eng->now_ns = sl_now_ns(); /* not before anything just taken was submitted */
    bool ahead = false;        /* may the newest step stay in flight? */
    eng->sched.n_plan = 0;
    if (atomic_load(&eng->abort_all))
        abort_live(eng);
    bool dropped = false;
    sl_retain_turn(eng);
    sl_tiers_turn(eng);
    sl_engine_await_masks(eng, 0);
    sl_kv_share_turn(&eng->kv);
    if (!sl_sched_idle(&eng->sched)) {
        sl_engine_raise_overdue(eng);
        count_in_flight(eng);
        if (eng->drafting == NULL || sl_engine_propose(eng))
            sl_sched_plan(&eng->sched);
        dropped = sl_engine_drop_cold(eng);
        if (eng->sched.n_plan > 0 && launch(eng))
            ahead = true;
    }
    eng->starved = eng->sched.n_plan == 0 && !dropped && eng->n_flights == 0 &&
                   (eng->masker.n_open > 0 || sl_tiers_waits(&eng->tiers));
    if (eng->sched.n_plan == 0 && eng->n_flights == 0) { /* nothing waits for a device */
        eng->ahead.free_ns = 0;
        (void)sl_engine_draft_end(eng);
    }
    land_some(eng, ahead, eng->sched.n_plan > 0 && !ahead);
    eng->starved &= !sl_tiers_busy(&eng->tiers);
    bool work = !sl_sched_idle(&eng->sched) || eng->n_flights > 0 || eng->masker.n_open > 0 ||
                sl_tiers_waits(&eng->tiers) || sl_tiers_busy(&eng->tiers);
    sl_kv_share_tell(&eng->kv, work ? eng->sched.n_short : 0, !work);
    struct sl_error err;
    if (!sl_engine_verify(eng, work, &err))
        repair(eng, &err);
    end_turn(eng);
    return work;
}

void sl_engine_cancel_all(struct sl_engine *eng)
{
    begin_turn(eng);
    sl_engine_take_inbox(eng);
    abort_live(eng);
    while (eng->n_flights > 0)
        land(eng);
    (void)sl_engine_draft_end(eng);
    sl_engine_take_masks(eng);
    end_turn(eng);
}
