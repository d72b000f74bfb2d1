/* SPDX-License-Identifier: MIT
 * One turn of the engine: take what was submitted and cancelled, plan a step and launch it, land
 * the oldest one, end sequences, deliver. Everything here runs on the engine thread and allocates
 * nothing.
 */
#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "engine/core.h"
#include "engine/stats.h"

#include <math.h>
#include <string.h>

#define MIN_MASK_WAIT_NS UINT64_C(200000)
#define MAX_MASK_WAIT_NS UINT64_C(20000000)

/* ------------------------------------------------------------------ ends and news */

static void add_news(struct sl_engine *eng, struct sl_request *req)
{
    if (req->has_news)
        return;
    req->has_news = true;
    req->news_next = NULL;
    if (eng->news_tail != NULL)
        eng->news_tail->news_next = req;
    else
        eng->news = req;
    eng->news_tail = req;
}

static void end_request(struct sl_engine *eng, struct sl_request *req)
{
    const struct sl_usage *u = &req->usage_now;
    atomic_fetch_sub(&eng->n_open, 1);
    if (!req->started)
        sl_engine_unqueue(eng, req->n_prompt);
    sl_hist_add(&eng->stats.prompt_len, SL_BOUNDS_LEN, u->n_prompt);
    sl_hist_add(&eng->stats.e2e_s, SL_BOUNDS_LATENCY, sl_seconds(u->t_submit_ns, eng->now_ns));
    if (u->t_first_ns != 0) {
        sl_hist_add(&eng->stats.decode_s, SL_BOUNDS_LATENCY,
                    sl_seconds(u->t_first_ns, u->t_last_ns));
        sl_hist_add(&eng->stats.inference_s, SL_BOUNDS_LATENCY,
                    sl_seconds(u->t_scheduled_ns, u->t_last_ns));
        sl_hist_add(&eng->stats.prefill_computed, SL_BOUNDS_LEN, u->n_prompt - u->n_cached);
    }
    sl_hist_add(&eng->stats.preempted, SL_BOUNDS_LEN, u->n_preemptions);
    int32_t n_gaps = u->n_output / req->n_seqs - 1; /* between tokens of one sequence */
    if (n_gaps > 0)
        sl_hist_add(&eng->stats.tpot_s, SL_BOUNDS_ITL,
                    sl_seconds(u->t_first_ns, u->t_last_ns) / n_gaps);
    if (req->live_prev != NULL)
        req->live_prev->live_next = req->live_next;
    else
        eng->live = req->live_next;
    if (req->live_next != NULL)
        req->live_next->live_prev = req->live_prev;
    else
        eng->live_oldest = req->live_prev;
    req->live_prev = req->live_next = NULL;
}

/* Before tokens that users may ask about become visible: a reader who saw the end, or the first
 * token, sees the usage that goes with it. In between it lags by less than a step. */
static void show_usage(struct sl_request *req)
{
    pthread_mutex_lock(&req->lock);
    req->usage = req->usage_now;
    pthread_mutex_unlock(&req->lock);
}

static void forget_counts(struct sl_engine *eng, const struct sl_rseq *rs)
{
    if (rs->counts.slots != NULL && eng->runner.forget != NULL)
        eng->runner.forget(eng->runner.ctx, &rs->counts);
}

/* The only place where a sequence ends: exactly one terminal event each. text_limit is final. */
static void end_seq(struct sl_engine *eng, struct sl_rseq *rs, enum sl_finish finish,
                    bool skip_last, bool forget)
{
    struct sl_request *req = rs->req;
    SL_ASSERT(rs->seq.state != SL_SEQ_FINISHED);
    req->usage_now.n_preemptions += rs->seq.n_preempted;
    eng->n_raised -= rs->raised;
    rs->raised = false;
    sl_sched_finish(&eng->sched, &rs->seq, forget);
    for (int32_t i = 0; i < eng->max_flights; i++)
        sl_flight_forget(&eng->flights[i], rs);
    forget_counts(eng, rs);
    show_usage(req);
    atomic_store_explicit(&rs->published, sl_pub_pack(rs->seq.n_out, finish, skip_last),
                          memory_order_release);
    eng->stats.finished[finish]++;
    sl_hist_add(&eng->stats.output_len, SL_BOUNDS_LEN, rs->seq.n_out);
    if (++req->n_ended == req->n_seqs)
        end_request(eng, req);
    add_news(eng, req);
}

static void end_all(struct sl_engine *eng, struct sl_request *req, enum sl_finish finish,
                    bool forget)
{
    for (int32_t i = 0; i < req->n_seqs; i++) {
        struct sl_rseq *rs = &req->seqs[i];
        if (rs->seq.state == SL_SEQ_FINISHED)
            continue;
        atomic_store_explicit(&rs->text_limit, UINT64_MAX, memory_order_relaxed);
        end_seq(eng, rs, finish, false, forget);
    }
}

/* One bad request harms itself only: it ends, and what it computed is not reused. */
static void fail_request(struct sl_engine *eng, struct sl_request *req, const struct sl_error *why)
{
    req->error = *why;
    end_all(eng, req, SL_FINISH_ERROR, true);
}

static void deliver_news(struct sl_engine *eng)
{
    while (eng->news != NULL) {
        struct sl_request *req = eng->news;
        eng->news = req->news_next;
        if (eng->news == NULL)
            eng->news_tail = NULL;
        req->has_news = false;
        bool over = req->n_ended == req->n_seqs;
        if (over)
            atomic_store(&req->over, true);
        sl_request_deliver(req);
        if (over)
            sl_request_unref(req);
    }
}

/* ------------------------------------------------------------------ inbox */

/* Pages count that can be found now; the last one may be computed again all the same. */
static bool has_enough_cached(struct sl_engine *eng, struct sl_request *req)
{
    if (req->cache_hit_threshold <= 0)
        return true;
    const struct sl_kv_text text = {req->prompt, req->n_prompt, NULL, 0};
    int32_t n_pages = sl_kv_count(&eng->kv, &req->ns, &text, req->n_prompt / eng->kv.block_size);
    req->usage_now.n_cached = n_pages * eng->kv.block_size;
    return (float)req->usage_now.n_cached >= req->cache_hit_threshold * (float)req->n_prompt;
}

static void take_submitted(struct sl_engine *eng, struct sl_request *req)
{
    req->live_prev = NULL;
    req->live_next = eng->live;
    if (eng->live != NULL)
        eng->live->live_prev = req;
    else
        eng->live_oldest = req;
    eng->live = req;
    uint64_t arrival = ++eng->n_arrivals;
    eng->n_seqs_taken += (uint64_t)req->n_seqs;
    for (int32_t i = 0; i < req->n_seqs; i++)
        req->seqs[i].seq.arrival = arrival;
    if (atomic_load(&eng->failed))
        fail_request(eng, req, &eng->error);
    else if (!has_enough_cached(eng, req))
        end_all(eng, req, SL_FINISH_CACHE, false);
    else if (req->seqs[0].mask != NULL)
        sl_masker_push(eng, &req->seqs[0], -1); /* scheduled when its first mask is there */
    else
        sl_sched_add(&eng->sched, &req->seqs[0].seq);
}

/* Better priorities may come without end. So that nobody waits for ever, the longest waiting get a
 * few seats of their own: those that are passed over by a better priority after raise_ns. */
static void raise_overdue(struct sl_engine *eng)
{
    const struct sl_seq *best = sl_wait_best(&eng->sched.wait);
    if (best == NULL || eng->n_raised == eng->max_raised)
        return;
    for (struct sl_request *req = eng->live_oldest; req != NULL; req = req->live_prev) {
        if (eng->now_ns - req->usage_now.t_submit_ns < eng->raise_ns)
            return;
        for (int32_t i = 0; i < req->n_seqs; i++) {
            struct sl_rseq *rs = &req->seqs[i];
            if (rs->seq.state != SL_SEQ_WAITING || rs->seq.priority <= best->priority)
                continue;
            sl_sched_raise(&eng->sched, &rs->seq);
            rs->raised = true;
            if (++eng->n_raised == eng->max_raised)
                return;
        }
    }
}

static void take_inbox(struct sl_engine *eng)
{
    struct sl_request *submitted, *cancelled;
    sl_inbox_take(&eng->inbox, &submitted, &cancelled);
    while (submitted != NULL) {
        struct sl_request *next = submitted->inbox_next;
        take_submitted(eng, submitted);
        submitted = next;
    }
    while (cancelled != NULL) {
        struct sl_request *next = cancelled->cancel_next;
        end_all(eng, cancelled, SL_FINISH_ABORT, false);
        sl_request_unref(cancelled); /* the inbox's reference; the engine's goes with the news */
        cancelled = next;
    }
}

/* ------------------------------------------------------------------ one token */

void sl_engine_part(struct sl_engine *eng, enum sl_time_part part)
{
    uint64_t now = sl_now_ns();
    eng->stats.part_ns[eng->part] += now - eng->part_ns;
    eng->part = part;
    eng->part_ns = now;
}

static void mark_started(struct sl_engine *eng, uint64_t now)
{
    for (int32_t i = 0; i < eng->sched.n_plan; i++) {
        struct sl_rseq *rs = sl_rseq_of(eng->sched.plan[i]);
        struct sl_request *req = rs->req;
        if (req->started)
            continue;
        req->started = true;
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
        show_usage(req);
    }
}

static bool in_list(const int32_t *list, int32_t n, int32_t id)
{
    for (int32_t i = 0; i < n; i++)
        if (list[i] == id)
            return true;
    return false;
}

/* Feeds the new token's text to the search; sets the limit of what may be shown. */
static bool hits_stop_string(struct sl_engine *eng, struct sl_rseq *rs, int32_t id)
{
    const struct sl_stops *stops = &rs->req->stops;
    const struct sl_sampling *p = &rs->req->sampling;
    size_t n =
        id < sl_tokenizer_n_vocab(eng->tokenizer) ? sl_detok_push(&rs->detok, id, eng->text) : 0;
    bool arm = rs->seq.n_out > p->min_tokens;
    struct sl_stop_match m = sl_stop_feed(stops, &rs->stop_state, eng->text, n, arm);
    uint64_t limit;
    if (m.idx >= 0) {
        rs->stop_idx = m.idx;
        limit = rs->n_text + (p->include_stop_str_in_output ? m.end : m.begin);
    } else {
        limit = rs->n_text + n - sl_stop_held(stops, &rs->stop_state);
    }
    rs->n_text += n;
    atomic_store_explicit(&rs->text_limit, limit, memory_order_relaxed);
    return m.idx >= 0;
}

/* Is the end of the output one piece, several times in a row? For each size of the piece rs->runs
 * counts how many of the last tokens are those a piece earlier, so that a token costs as many looks
 * as there are sizes, whatever came before. */
static bool repeats(struct sl_rseq *rs, const struct sl_repetition *r)
{
    const int32_t *out = rs->out, n = rs->seq.n_out;
    bool found = false;
    for (int32_t size = r->min_size; size <= r->max_size && size < n; size++) {
        int32_t *run = &rs->runs[size - r->min_size];
        *run = out[n - 1] == out[n - 1 - size] ? *run + 1 : 0;
        found |= *run >= size * (r->min_count - 1);
    }
    return found;
}

/* How the sequence ends with the token just appended. A stop goes before a length. Before
 * min_tokens tokens nothing but length ends it. */
static enum sl_finish finish_of(struct sl_engine *eng, struct sl_rseq *rs, int32_t id,
                                bool *skip_last)
{
    struct sl_request *req = rs->req;
    const struct sl_sampling *p = &req->sampling;
    if (rs->seq.n_out > p->min_tokens) {
        bool own = in_list(p->stop_token_ids, p->n_stop_token_ids, id);
        if (own || (!p->ignore_eos && in_list(eng->eos_ids, eng->n_eos_ids, id))) {
            rs->stop_token_id = own ? id : -1; /* the end of the model's turn has no reason */
            *skip_last = !p->include_stop_str_in_output;
            return SL_FINISH_STOP;
        }
    }
    if (req->stops.n > 0 && hits_stop_string(eng, rs, id))
        return SL_FINISH_STOP;
    if (rs->runs != NULL && repeats(rs, &p->repetition) && rs->seq.n_out >= p->min_tokens) {
        rs->repeats = true;
        return SL_FINISH_STOP;
    }
    return rs->seq.n_out == req->max_out ? SL_FINISH_LENGTH : SL_RUNNING;
}

static void count_token(struct sl_engine *eng, struct sl_rseq *rs)
{
    struct sl_usage *u = &rs->req->usage_now;
    uint64_t now = eng->now_ns;
    if (u->t_first_ns == 0) {
        u->t_first_ns = now;
        sl_hist_add(&eng->stats.ttft_s, SL_BOUNDS_TTFT, sl_seconds(u->t_submit_ns, now));
        sl_fine_add(&eng->stats.ttft_fine, now - SL_MIN(u->t_submit_ns, now));
        sl_hist_add(&eng->stats.prefill_s, SL_BOUNDS_LATENCY, sl_seconds(u->t_scheduled_ns, now));
    }
    if (rs->t_last_ns != 0) {
        sl_hist_add(&eng->stats.itl_s, SL_BOUNDS_ITL, sl_seconds(rs->t_last_ns, now));
        sl_fine_add(&eng->stats.itl_fine, now - SL_MIN(rs->t_last_ns, now));
    }
    rs->t_last_ns = u->t_last_ns = now;
    u->n_output++;
    eng->stats.generation_tokens++;
}

/* The prompt is computed: the other sequences of the request find it in the prefix tree (under the
 * request's private name when prefix caching is off) and compute only its unfinished last page. */
static void add_siblings(struct sl_engine *eng, struct sl_request *req)
{
    if (req->siblings_added)
        return;
    req->siblings_added = true;
    for (int32_t i = 1; i < req->n_seqs; i++)
        sl_sched_add(&eng->sched, &req->seqs[i].seq);
}

/* False: the sequence has ended with it. */
static bool append_token(struct sl_engine *eng, struct sl_rseq *rs, int32_t id)
{
    rs->out[rs->seq.n_out++] = id;
    if (rs->counts.slots != NULL)
        sl_counts_add(&rs->counts, id, 1);
    count_token(eng, rs);
    bool skip_last = false;
    enum sl_finish finish = finish_of(eng, rs, id, &skip_last);
    if (finish == SL_RUNNING) {
        if (rs->seq.n_out == 1)
            show_usage(rs->req);
        atomic_store_explicit(&rs->published, sl_pub_pack(rs->seq.n_out, SL_RUNNING, false),
                              memory_order_release);
        add_news(eng, rs->req);
        return true;
    }
    if (rs->stop_idx < 0)
        atomic_store_explicit(&rs->text_limit, UINT64_MAX, memory_order_relaxed);
    end_seq(eng, rs, finish, skip_last, false);
    return false;
}

/* ------------------------------------------------------------------ masks */

/* Its next token is known: a row that was to choose it is not wanted. */
static void take_back_row(struct sl_engine *eng, struct sl_rseq *rs)
{
    for (int32_t i = 0; i < eng->n_flights && rs->seq.n_pending > 0; i++) {
        struct sl_flight *f = &eng->flights[(eng->first_flight + i) % eng->max_flights];
        for (int32_t k = 0; k < f->n_seqs; k++)
            if (f->seqs[k].rs == rs && f->seqs[k].samples)
                sl_flight_take_back(eng, &f->seqs[k]);
    }
    SL_ASSERT(rs->seq.n_pending == 0);
}

/* What the constraint forces behind the last token needs no step of its own: the next one computes
 * all of it, like a chunk of a prompt. False: the sequence has ended with one of them. */
static bool append_forced(struct sl_engine *eng, struct sl_rseq *rs)
{
    bool runs = true;
    if (rs->n_forced == 0 || rs->logprobs != NULL)
        return true;
    take_back_row(eng, rs);
    forget_counts(eng, rs); /* a device that counts has not seen them */
    for (int32_t i = 0; i < rs->n_forced && runs; i++) {
        runs = append_token(eng, rs, rs->forced[i]);
        eng->stats.grammar_forced++;
    }
    rs->n_forced = 0;
    return runs;
}

/* A text that is complete and cannot go on ends here, whatever min_tokens and ignore_eos say. */
static void mask_is_ready(struct sl_engine *eng, struct sl_rseq *rs)
{
    if (rs->mask_free)
        rs->mask = NULL;
    if (rs->mask_error.code != 0) {
        fail_request(eng, rs->req, &rs->mask_error);
    } else if (!append_forced(eng, rs)) {
        return;
    } else if (rs->mask_ends && rs->mask_token < 0) {
        end_all(eng, rs->req, SL_FINISH_STOP, false);
    } else if (rs->mask_ends) {
        atomic_store_explicit(&rs->text_limit, UINT64_MAX, memory_order_relaxed);
        end_seq(eng, rs, SL_FINISH_STOP, false, false);
    } else if (rs->mask_token < 0) {
        sl_sched_add(&eng->sched, &rs->seq);
    }
}

static void take_masks(struct sl_engine *eng)
{
    struct sl_rseq *rs = sl_masker_take(eng);
    while (rs != NULL) {
        struct sl_rseq *next = rs->mask_next;
        struct sl_request *req = rs->req;
        if (rs->seq.state != SL_SEQ_FINISHED)
            mask_is_ready(eng, rs);
        sl_request_unref(req); /* the masker's reference */
        rs = next;
    }
}

/* A mask usually takes less than its thread needs to wake, so that a short wait keeps a sequence in
 * every step. The wait is a share of a step, each mask is waited for once, and for longer only if
 * most of what runs needs one. free_ns: how long a device computes meanwhile all the same. */
static void await_masks(struct sl_engine *eng, uint64_t free_ns)
{
    struct sl_masker *m = &eng->masker;
    if (sl_masker_owes(m)) {
        bool most = 2 * m->n_awaited_most >= eng->sched.n_running;
        uint64_t share = most ? eng->step_ns : eng->step_ns / 8;
        uint64_t wait = SL_MIN(free_ns + SL_MAX(share, MIN_MASK_WAIT_NS), MAX_MASK_WAIT_NS);
        uint64_t begun = m->pushed_ns;
        sl_engine_part(eng, SL_PART_MASKS);
        sl_masker_wait(eng, begun + wait);
        sl_engine_part(eng, SL_PART_HOST);
        eng->now_ns = sl_now_ns();
        eng->waited_ns = eng->now_ns > begun + free_ns ? eng->now_ns - begun - free_ns : 0;
    }
    take_masks(eng);
}

/* ------------------------------------------------------------------ results of a step */

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

/* The chosen token's log probabilities, to where the reader finds them. */
static void keep_logprobs(struct sl_rseq *rs, const struct sl_picked *p)
{
    size_t i = (size_t)rs->seq.n_out, k = (size_t)rs->req->n_top;
    if (rs->logprobs == NULL)
        return;
    rs->logprobs[i] = p->lp;
    if (k > 0)
        memcpy(rs->tops + i * k, p->top, k * sizeof *rs->tops);
}

/* The prompt is computed: its values go to the request, which is over. */
static void take_pooled(struct sl_engine *eng, const struct sl_flight *f,
                        const struct sl_flight_seq *fs)
{
    struct sl_request *req = fs->rs->req;
    const float *row = f->picked[fs->row].pooled;
    fs->rs->seq.n_pending--;
    for (int32_t i = 0; i < req->n_pooled; i++) {
        struct sl_error err;
        if (isfinite(row[i]))
            continue;
        sl_fail(&err, SL_EINTERNAL, "the model's output has a value that is not a number");
        fail_request(eng, req, &err);
        return;
    }
    memcpy(req->pooled, row, (size_t)req->n_pooled * sizeof *row);
    req->usage_now.t_first_ns = req->usage_now.t_last_ns = eng->now_ns;
    end_seq(eng, fs->rs, SL_FINISH_STOP, false, false);
}

/* Is there a token that the request's own rules let come? */
static bool any_may_come(struct sl_engine *eng, const struct sl_flight_seq *fs)
{
    const struct sl_sample_args a = sl_flight_args(eng, fs);
    for (int32_t id = 0; id < eng->runner.n_vocab; id++) {
        bool may = a.allowed == NULL || (a.allowed[id / 32] >> (id & 31) & 1) != 0;
        for (int i = 0; i < 2 && may; i++)
            may = !in_list(a.banned[i], a.n_banned[i], id);
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
    fail_request(eng, req, &err);
}

static void consume(struct sl_engine *eng, const struct sl_flight *f,
                    const struct sl_flight_seq *fs)
{
    struct sl_rseq *rs = fs->rs;
    if (rs == NULL) /* it has ended since */
        return;
    struct sl_seq *seq = &rs->seq;
    if (eng->runner.n_pooled > 0) {
        if (seq->state == SL_SEQ_RUNNING && seq->n_preempted == fs->epoch)
            sl_sched_publish(&eng->sched, seq, fs->pos + fs->n);
        if (fs->samples)
            take_pooled(eng, f, fs);
        return;
    }
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
    add_siblings(eng, rs->req);
    seq->n_pending--;
    keep_logprobs(rs, picked);
    if (append_token(eng, rs, picked->id) && rs->mask != NULL)
        sl_masker_push(eng, rs, picked->id);
}

/* ------------------------------------------------------------------ steps */

/* A failed step says nothing about which sequence is to blame, and their pages may hold anything.
 * A dead device takes all requests with it, once. */
static void fail_step(struct sl_engine *eng, const struct sl_flight *f, const struct sl_error *err)
{
    sl_log(SL_LOG_ERROR, "step failed: %s", err->msg);
    if (err->code == SL_EDEVICE) {
        eng->error = *err;
        atomic_store(&eng->failed, true);
        while (eng->live != NULL)
            fail_request(eng, eng->live, err);
        return;
    }
    for (int32_t i = 0; i < f->n_seqs; i++)
        if (f->seqs[i].rs != NULL)
            fail_request(eng, f->seqs[i].rs->req, err);
}

/* The plan's sequences move on: what follows may be planned before the step is over. */
static void advance(struct sl_engine *eng, const struct sl_flight *f)
{
    for (int32_t i = 0; i < f->n_seqs; i++) {
        const struct sl_flight_seq *fs = &f->seqs[i];
        struct sl_seq *seq = &fs->rs->seq;
        sl_sched_advance(&eng->sched, seq);
        if (!fs->samples)
            continue;
        seq->n_pending++;
        seq->pending_row = fs->row + fs->n_rows - 1;
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

/* Pages that were there when a request came may have gone before its turn. False: none had. */
static bool drop_cold(struct sl_engine *eng)
{
    struct sl_sched *s = &eng->sched;
    int32_t n_planned = s->n_plan;
    s->n_plan = s->n_plan_tokens = 0;
    s->work = (struct sl_work){0};
    for (int32_t i = 0; i < n_planned; i++) {
        struct sl_rseq *rs = sl_rseq_of(s->plan[i]);
        if (is_cold(eng, rs)) {
            rs->req->usage_now.n_cached = rs->seq.n_cached;
            end_all(eng, rs->req, SL_FINISH_CACHE, false);
            continue;
        }
        s->work = sl_work_add(s->work, rs->seq.n_computed, rs->seq.n_step);
        s->n_plan_tokens += rs->seq.n_step;
        s->plan[s->n_plan++] = &rs->seq;
    }
    return s->n_plan < n_planned;
}

/* False: the step was refused. */
static bool launch(struct sl_engine *eng)
{
    struct sl_error err = {.code = SL_OK};
    SL_ASSERT(eng->n_flights < eng->max_flights);
    struct sl_flight *f = &eng->flights[(eng->first_flight + eng->n_flights) % eng->max_flights];
    mark_started(eng, eng->now_ns);
    f->launched_ns = eng->now_ns;
    f->work = eng->sched.work;
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
    advance(eng, f);
    eng->n_flights++;
    return true;
}

/* The oldest flight is over. */
static void drop_flight(struct sl_engine *eng, struct sl_flight *f)
{
    f->n_seqs = 0;
    eng->first_flight = (eng->first_flight + 1) % eng->max_flights;
    eng->n_flights--;
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
            if (fs->samples)
                fs->rs->seq.n_pending--;
            forget_counts(eng, fs->rs);
            sl_sched_requeue(&eng->sched, &fs->rs->seq);
        }
        drop_flight(eng, f);
    }
}

/* What the step that has just landed took. A device's own clock knows it where steps follow one
 * another: on the host's clock a step whose end was noticed late seems long, the next one short. */
static double device_seconds(struct sl_engine *eng)
{
    double busy_s = 0, gap_s, seconds = (double)eng->step_ns / 1e9;
    if (eng->runner.times == NULL)
        return seconds;
    eng->runner.times(eng->runner.ctx, &busy_s, &gap_s);
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
    if (eng->sched.cfg.max_step_s > 0 && seconds > 0 && f->work.tokens > 0)
        sl_cost_learn(&eng->sched.cost, f->work, seconds);
}

static void land(struct sl_engine *eng)
{
    struct sl_error err = {.code = SL_OK};
    struct sl_flight *f = &eng->flights[eng->first_flight];
    int rc = sl_flight_land(eng, f, &err);
    eng->now_ns = sl_now_ns();
    note_duration(eng, f);
    sl_engine_part(eng, SL_PART_OUTPUT);
    for (int32_t i = 0; i < f->n_seqs && rc == 0; i++)
        consume(eng, f, &f->seqs[i]);
    if (rc != 0)
        fail_step(eng, f, &err);
    drop_flight(eng, f);
    if (rc != 0 && eng->max_flights > 1) {
        redo_flights(eng);
        sl_kv_clear(&eng->kv);
    }
    sl_engine_part(eng, SL_PART_HOST);
}

/* The step launched last computes; what its tokens are chosen by is there now. Where it is not, the
 * row is left out: it is computed again when its mask has come. */
static void decide(struct sl_engine *eng)
{
    struct sl_error err = {.code = SL_OK};
    struct sl_flight *f = &eng->flights[eng->first_flight];
    if (eng->n_flights == 0 || !f->undecided)
        return;
    SL_ASSERT(eng->n_flights == 1);
    if (eng->max_flights > 1) /* else no mask can have come since the plan */
        await_masks(eng, eng->step_ns);
    for (int32_t i = 0; i < f->n_seqs; i++)
        if (f->seqs[i].rs != NULL && f->seqs[i].samples && f->seqs[i].rs->seq.waits)
            sl_flight_take_back(eng, &f->seqs[i]);
    if (sl_flight_choose(eng, f, &err) == 0)
        return;
    fail_step(eng, f, &err);
    drop_flight(eng, f);
}

static void publish_stats(struct sl_engine *eng)
{
    struct sl_stats *s = &eng->stats;
    s->n_running = eng->sched.n_running;
    s->n_waiting = eng->sched.wait.n;
    s->n_pages = eng->kv.pool.n_pages;
    s->n_pages_free = eng->kv.pool.n_free;
    s->n_pages_cached = sl_kv_n_cached(&eng->kv);
    s->preemptions = eng->sched.n_preemptions;
    memcpy(s->evicted, eng->kv.n_evicted, sizeof s->evicted);
    s->grammar_late = eng->masker.n_late;
    s->step_mallocs = sl_alloc_guard_count() - eng->n_mallocs_before;
    if (eng->runner.times != NULL)
        eng->runner.times(eng->runner.ctx, &s->device_busy_s, &s->device_gap_s);
    pthread_mutex_lock(&eng->stats_lock);
    eng->stats_public = *s;
    pthread_mutex_unlock(&eng->stats_lock);
}

void sl_engine_leave(struct sl_engine *eng)
{
    atomic_store_explicit(&eng->phase, SL_PHASE_RUNNER, memory_order_relaxed);
    pthread_mutex_unlock(&eng->turn_lock);
}

void sl_engine_return(struct sl_engine *eng)
{
    pthread_mutex_lock(&eng->turn_lock);
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
    deliver_news(eng);
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
        seq->n_pages = 0;
    }
    fail_request(eng, req, &err);
}

/* The bookkeeping is wrong and nothing runs: everything can be set to what nothing running means,
 * at the price of what was cached. An engine that is still wrong then ends its service. */
static void repair(struct sl_engine *eng, struct sl_error *err)
{
    if (atomic_load(&eng->failed))
        return;
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
        end_all(eng, eng->live, SL_FINISH_ABORT, false);
}

bool sl_engine_turn(struct sl_engine *eng)
{
    begin_turn(eng);
    take_inbox(eng);
    eng->now_ns = sl_now_ns(); /* not before anything just taken was submitted */
    int32_t ahead = 0;         /* steps that may stay in flight */
    eng->sched.n_plan = 0;
    if (atomic_load(&eng->abort_all))
        abort_live(eng);
    bool dropped = false;
    await_masks(eng, 0);
    sl_kv_share_turn(&eng->kv);
    if (!sl_sched_idle(&eng->sched)) {
        raise_overdue(eng);
        sl_sched_plan(&eng->sched);
        dropped = drop_cold(eng);
        if (eng->sched.n_plan > 0 && launch(eng))
            ahead = eng->max_flights - 1;
    }
    eng->starved =
        eng->sched.n_plan == 0 && !dropped && eng->n_flights == 0 && eng->masker.n_open > 0;
    while (eng->n_flights > 1)
        land(eng);
    decide(eng);
    while (eng->n_flights > ahead)
        land(eng);
    bool work = !sl_sched_idle(&eng->sched) || eng->n_flights > 0 || eng->masker.n_open > 0;
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
    take_inbox(eng);
    abort_live(eng);
    while (eng->n_flights > 0)
        land(eng);
    take_masks(eng);
    end_turn(eng);
}
