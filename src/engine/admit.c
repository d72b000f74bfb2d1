/* SPDX-License-Identifier: MIT
 * What enters the engine: requests from the inbox, and what is looked at before their first step.
 */
#include "base/check.h"
#include "engine/stats.h"
#include "engine/turn.h"

/* Blocks count that can be found now; the last one may be computed again all the same. */
static bool has_enough_cached(struct sl_engine *eng, struct sl_request *req)
{
    if (req->cache_hit_threshold <= 0)
        return true;
    const struct sl_kv_text text = {req->prompt, req->n_prompt, NULL, 0};
    int32_t n_blocks = sl_kv_count(&eng->kv, &req->ns, &text, req->n_prompt / eng->kv.block_size);
    SL_ASSERT(n_blocks >= 0 && n_blocks <= req->n_prompt / eng->kv.block_size);
    req->usage_now.n_cached = n_blocks * eng->kv.block_size;
    return (float)req->usage_now.n_cached >= req->cache_hit_threshold * (float)req->n_prompt;
}

void sl_engine_schedule(struct sl_engine *eng, struct sl_request *req)
{
    SL_ASSERT(!req->load.waits && req->seqs[0].seq.state == SL_SEQ_NEW);
    if (!has_enough_cached(eng, req))
        sl_engine_end_all(eng, req, SL_FINISH_CACHE, false);
    else if (req->seqs[0].mask != NULL)
        sl_masker_push(eng, &req->seqs[0], -1, 0); /* scheduled when its first mask is there */
    else
        sl_sched_add(&eng->sched, &req->seqs[0].seq);
}

static void take_submitted(struct sl_engine *eng, struct sl_request *req)
{
    SL_ASSERT(req->n_seqs >= 1 && req->n_ended == 0 && !req->started);
    SL_ASSERT(req->seqs[0].seq.state == SL_SEQ_NEW);
    SL_ASSERT(eng->live != NULL ? eng->live->live_prev == NULL : eng->live_oldest == NULL);
    req->live_prev = NULL;
    req->live_next = eng->live;
    if (eng->live != NULL)
        eng->live->live_prev = req;
    else
        eng->live_oldest = req;
    eng->live = req;
    uint64_t arrival = ++eng->n_arrivals;
    eng->n_seqs_taken += (uint64_t)req->n_seqs;
    req->seqs[0].seq.arrival = arrival;
    sl_retain_begin(eng, req);
    for (int32_t i = 0; i < req->n_seqs; i++) {
        req->seqs[i].seq.order = arrival;
        req->seqs[i].seq.arrival = req->seqs[0].seq.arrival;
    }
    if (atomic_load(&eng->failed))
        sl_engine_fail(eng, req, &eng->error);
    else if (!sl_tiers_begin(eng, req))
        sl_engine_schedule(eng, req);
}

/* Does best go first for its priority, or its program's arrival, though it came later? */
static bool is_passed_over(const struct sl_seq *seq, const struct sl_seq *best)
{
    return seq->priority != best->priority ? seq->priority > best->priority
                                           : seq->order < best->order;
}

void sl_engine_raise_overdue(struct sl_engine *eng)
{
    const struct sl_seq *best = sl_wait_best(&eng->sched.wait);
    SL_ASSERT(eng->n_raised >= 0 && eng->n_raised <= eng->max_raised);
    if (best == NULL || eng->n_raised == eng->max_raised)
        return;
    for (struct sl_request *req = eng->live_oldest; req != NULL; req = req->live_prev) {
        if (eng->now_ns - req->usage_now.t_submit_ns < eng->raise_ns)
            return;
        for (int32_t i = 0; i < req->n_seqs; i++) {
            struct sl_rseq *rs = &req->seqs[i];
            if (rs->seq.state != SL_SEQ_WAITING || !is_passed_over(&rs->seq, best))
                continue;
            SL_ASSERT(!rs->raised); /* else its priority would be the best */
            sl_sched_raise(&eng->sched, &rs->seq);
            rs->raised = true;
            if (++eng->n_raised == eng->max_raised)
                return;
        }
    }
}

void sl_engine_take_inbox(struct sl_engine *eng)
{
    struct sl_request *submitted, *cancelled, *called;
    sl_inbox_take(&eng->inbox, &submitted, &cancelled, &called);
    while (called != NULL) {
        struct sl_request *next = called->call_next;
        if (called->n_ended == called->n_seqs)
            sl_retain_call(eng, called);
        sl_request_unref(called); /* the inbox's reference */
        called = next;
    }
    while (submitted != NULL) {
        struct sl_request *next = submitted->inbox_next;
        take_submitted(eng, submitted);
        submitted = next;
    }
    while (cancelled != NULL) {
        struct sl_request *next = cancelled->cancel_next;
        SL_ASSERT(atomic_load(&cancelled->cancelled));
        sl_engine_end_all(eng, cancelled, SL_FINISH_ABORT, false);
        sl_request_unref(cancelled); /* the inbox's reference; the engine's goes with the news */
        cancelled = next;
    }
}

void sl_engine_mark_started(struct sl_engine *eng, uint64_t now)
{
    for (int32_t i = 0; i < eng->sched.n_plan; i++) {
        struct sl_rseq *rs = sl_rseq_of(eng->sched.plan[i]);
        struct sl_request *req = rs->req;
        if (req->started)
            continue;
        SL_ASSERT(rs->seq.idx == 0); /* the others come when the prompt is computed */
        SL_ASSERT(rs->seq.n_cached >= 0 && rs->seq.n_cached <= req->n_prompt);
        req->started = true;
        sl_retain_started(eng, req);
        sl_engine_unqueue(eng, req->n_prompt);
        req->usage_now.t_scheduled_ns = now;
        req->usage_now.n_cached = rs->seq.n_cached;
        eng->stats.prompt_tokens += (uint64_t)req->n_prompt;
        eng->stats.prompt_tokens_cached += (uint64_t)rs->seq.n_cached;
        if (eng->prefix_caching && !rs->seq.all_logits) {
            eng->stats.prefix_queries += (uint64_t)req->n_prompt;
            eng->stats.prefix_hits += (uint64_t)rs->seq.n_cached;
        }
        sl_hist_add(&eng->stats.queue_s, SL_BOUNDS_LATENCY,
                    sl_seconds(req->usage_now.t_submit_ns, now));
        sl_engine_show_usage(req);
    }
}

/* Was too little of its prompt cached when it was admitted? A full last page is computed again for
 * its logits, cached or not. */
static bool is_cold(const struct sl_engine *eng, const struct sl_rseq *rs)
{
    const struct sl_request *req = rs->req;
    int32_t bs = eng->kv.block_size, again = req->n_prompt % bs == 0 ? bs : 0;
    return !req->started && !rs->seq.all_logits &&
           (float)(rs->seq.n_cached + again) < req->cache_hit_threshold * (float)req->n_prompt;
}

bool sl_engine_drop_cold(struct sl_engine *eng)
{
    struct sl_sched *s = &eng->sched;
    int32_t n_planned = s->n_plan;
    s->n_plan = s->n_plan_tokens = 0;
    s->work = (struct sl_work){0};
    for (int32_t i = 0; i < n_planned; i++) {
        struct sl_rseq *rs = sl_rseq_of(s->plan[i]);
        if (is_cold(eng, rs)) {
            SL_ASSERT(rs->seq.idx == 0 && rs->req->n_seqs > rs->req->n_ended);
            rs->req->usage_now.n_cached = rs->seq.n_cached;
            sl_engine_end_all(eng, rs->req, SL_FINISH_CACHE, false);
            continue;
        }
        s->work = sl_work_add(s->work, rs->seq.n_computed, rs->seq.n_step);
        s->n_plan_tokens += rs->seq.n_step;
        s->plan[s->n_plan++] = &rs->seq;
    }
    SL_ASSERT(s->n_plan_tokens >= s->n_plan && s->n_plan_tokens <= s->cfg.max_tokens);
    return s->n_plan < n_planned;
}
