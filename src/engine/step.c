/* SPDX-License-Identifier: MIT
 * One turn of the engine: take what was submitted and cancelled, plan, build the batch, run it,
 * choose tokens, end sequences, deliver. Everything here runs on the engine thread and allocates
 * nothing.
 */
#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "engine/core.h"
#include "engine/stats.h"

#include <math.h>
#include <string.h>

#define MIN_PARALLEL_LOGITS 32768

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
    if (!req->started)
        atomic_fetch_sub(&eng->n_queued, 1);
    sl_hist_add(&eng->stats.prompt_len, SL_BOUNDS_LEN, u->n_prompt);
    sl_hist_add(&eng->stats.e2e_s, SL_BOUNDS_LATENCY, sl_seconds(u->t_submit_ns, eng->now_ns));
    if (u->t_first_ns != 0) {
        sl_hist_add(&eng->stats.decode_s, SL_BOUNDS_LATENCY,
                    sl_seconds(u->t_first_ns, u->t_last_ns));
        sl_hist_add(&eng->stats.inference_s, SL_BOUNDS_LATENCY,
                    sl_seconds(u->t_scheduled_ns, u->t_last_ns));
    }
    if (req->live_prev != NULL)
        req->live_prev->live_next = req->live_next;
    else
        eng->live = req->live_next;
    if (req->live_next != NULL)
        req->live_next->live_prev = req->live_prev;
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

/* The only place where a sequence ends: exactly one terminal event each. text_limit is final. */
static void end_seq(struct sl_engine *eng, struct sl_rseq *rs, enum sl_finish finish,
                    bool skip_last, bool forget)
{
    struct sl_request *req = rs->req;
    SL_ASSERT(rs->seq.state != SL_SEQ_FINISHED);
    req->usage_now.n_preemptions += rs->seq.n_preempted;
    sl_sched_finish(&eng->sched, &rs->seq, forget);
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

static void take_submitted(struct sl_engine *eng, struct sl_request *req)
{
    req->live_prev = NULL;
    req->live_next = eng->live;
    if (eng->live != NULL)
        eng->live->live_prev = req;
    eng->live = req;
    uint64_t arrival = ++eng->n_arrivals;
    for (int32_t i = 0; i < req->n_seqs; i++)
        req->seqs[i].seq.arrival = arrival;
    if (atomic_load(&eng->failed))
        fail_request(eng, req, &eng->error);
    else
        sl_sched_add(&eng->sched, &req->seqs[0].seq);
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

/* ------------------------------------------------------------------ batch */

/* Row of logits wanted at position pos of a sequence? The last known token's row is sampled; with
 * prompt_logprobs every row that predicts a prompt token is wanted too. */
static bool wants_row(const struct sl_seq *seq, int32_t pos)
{
    return pos + 1 == sl_seq_n_tokens(seq) || (seq->all_logits && pos + 1 < seq->n_prompt);
}

static void build_batch(struct sl_engine *eng, struct sl_batch *batch)
{
    struct sl_batch_arrays *a = &eng->batch;
    int32_t n_tokens = 0, n_table = 0, n_rows = 0;
    for (int32_t i = 0; i < eng->sched.n_plan; i++) {
        const struct sl_seq *seq = eng->sched.plan[i];
        int32_t n_pages = SL_CEIL_DIV(seq->n_computed + seq->n_step, eng->info.block_size);
        a->spans[i] = (struct sl_span){
            .first = n_tokens, .n = seq->n_step, .pos = seq->n_computed, .table_idx = n_table};
        memcpy(a->tables + n_table, seq->pages, (size_t)n_pages * sizeof *a->tables);
        n_table += n_pages;
        a->n_rows[i] = n_rows;
        for (int32_t j = 0; j < seq->n_step; j++, n_tokens++) {
            int32_t pos = seq->n_computed + j;
            a->tokens[n_tokens] = sl_seq_token(seq, pos);
            a->positions[n_tokens] = pos;
            if (wants_row(seq, pos))
                a->logit_rows[n_rows++] = n_tokens;
        }
        a->n_rows[i] = n_rows - a->n_rows[i];
    }
    SL_ASSERT(n_rows <= eng->sched.cfg.max_logits);
    *batch = (struct sl_batch){.n_tokens = n_tokens,
                               .n_spans = eng->sched.n_plan,
                               .n_logits = n_rows,
                               .tokens = a->tokens,
                               .positions = a->positions,
                               .spans = a->spans,
                               .block_tables = a->tables,
                               .logit_rows = a->logit_rows};
}

static void mark_started(struct sl_engine *eng, uint64_t now)
{
    for (int32_t i = 0; i < eng->sched.n_plan; i++) {
        struct sl_rseq *rs = sl_rseq_of(eng->sched.plan[i]);
        struct sl_request *req = rs->req;
        if (req->started)
            continue;
        req->started = true;
        atomic_fetch_sub(&eng->n_queued, 1);
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
    }
}

/* ------------------------------------------------------------------ one token */

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
    return rs->seq.n_out == req->max_out ? SL_FINISH_LENGTH : SL_RUNNING;
}

static void count_token(struct sl_engine *eng, struct sl_rseq *rs)
{
    struct sl_usage *u = &rs->req->usage_now;
    uint64_t now = eng->now_ns;
    if (u->t_first_ns == 0) {
        u->t_first_ns = now;
        sl_hist_add(&eng->stats.ttft_s, SL_BOUNDS_TTFT, sl_seconds(u->t_submit_ns, now));
        sl_hist_add(&eng->stats.prefill_s, SL_BOUNDS_LATENCY, sl_seconds(u->t_scheduled_ns, now));
    }
    if (rs->t_last_ns != 0)
        sl_hist_add(&eng->stats.itl_s, SL_BOUNDS_ITL, sl_seconds(rs->t_last_ns, now));
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

static void append_token(struct sl_engine *eng, struct sl_rseq *rs, int32_t id)
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
        return;
    }
    if (rs->stop_idx < 0)
        atomic_store_explicit(&rs->text_limit, UINT64_MAX, memory_order_relaxed);
    end_seq(eng, rs, finish, skip_last, false);
}

/* ------------------------------------------------------------------ results of a step */

static int32_t sample(struct sl_engine *eng, struct sl_sampler *sampler, struct sl_rseq *rs,
                      const float *row)
{
    const struct sl_sampling *p = &rs->req->sampling;
    bool ban = rs->seq.n_out < p->min_tokens;
    struct sl_sample_args args = {
        .logits = row,
        .sampling = p,
        .seed = rs->seed,
        .pos = (uint64_t)sl_seq_n_tokens(&rs->seq),
        .counts = rs->counts.slots != NULL ? &rs->counts : NULL,
        .banned = {p->stop_token_ids, eng->eos_ids},
        .n_banned = {ban ? p->n_stop_token_ids : 0, ban && !p->ignore_eos ? eng->n_eos_ids : 0},
    };
    int32_t id = sl_sample(sampler, &args), i = rs->seq.n_out, k = rs->req->n_top;
    if (id >= 0 && rs->logprobs != NULL) {
        struct sl_top_logprob *top = k > 0 ? rs->tops + (size_t)i * (size_t)k : NULL;
        if (!sl_logprobs(row, eng->runner.n_vocab, id, k, &rs->logprobs[i], top))
            return -1;
    }
    return id;
}

static bool ends_known(const struct sl_seq *seq)
{
    return seq->n_computed + seq->n_step == sl_seq_n_tokens(seq);
}

struct sample_job {
    struct sl_engine *eng;
    const float *logits;
    int32_t n_items;
};

/* Every n_items-th sequence of the plan. Choosing touches nothing that another sequence has. */
static void sample_some(void *arg, uint32_t item, int thread_idx)
{
    const struct sample_job *j = arg;
    struct sl_engine *eng = j->eng;
    (void)thread_idx;
    for (int32_t i = 0, row = 0; i < eng->sched.n_plan; i++) {
        struct sl_rseq *rs = sl_rseq_of(eng->sched.plan[i]);
        row += eng->batch.n_rows[i];
        if (i % j->n_items == (int32_t)item && ends_known(&rs->seq))
            eng->batch.ids[row - 1] =
                sample(eng, &eng->samplers[item], rs,
                       j->logits + (size_t)(row - 1) * (size_t)eng->runner.n_vocab);
    }
}

/* From few or short rows tokens are chosen sooner than a thread wakes. */
static void sample_all(struct sl_engine *eng, const float *logits)
{
    int64_t work = (int64_t)eng->sched.n_plan * eng->runner.n_vocab;
    struct sample_job j = {eng, logits, SL_MIN(eng->n_samplers, eng->sched.n_plan)};
    if (j.n_items > 1 && work >= MIN_PARALLEL_LOGITS) {
        eng->runner.run_items(eng->runner.ctx, sample_some, &j, (uint32_t)j.n_items);
        return;
    }
    j.n_items = 1;
    sample_some(&j, 0, 0);
}

/* Row of position pos says how likely prompt token pos + 1 was. */
static bool prompt_logprob(struct sl_engine *eng, struct sl_request *req, int32_t pos,
                           const float *row)
{
    int32_t id = req->prompt[pos + 1], k = req->n_prompt_top;
    struct sl_top_logprob *top = k > 0 ? req->prompt_tops + (size_t)(pos + 1) * (size_t)k : NULL;
    struct sl_logprob lp = {.logprob = -INFINITY};
    /* Embeddings may be wider than the rows: such an id cannot be predicted. */
    bool known = id < eng->runner.n_vocab;
    if (!sl_logprobs(row, eng->runner.n_vocab, known ? id : 0, k, &lp, top))
        return false;
    if (!known)
        lp = (struct sl_logprob){.logprob = -INFINITY};
    req->prompt_logprobs[pos + 1] =
        (struct sl_token){.id = id, .rank = lp.rank, .logprob = lp.logprob, .n_top = k, .top = top};
    return true;
}

static bool prompt_rows(struct sl_engine *eng, struct sl_rseq *rs, const float *rows,
                        int32_t first_pos, int32_t n)
{
    struct sl_request *req = rs->req;
    if (first_pos == 0)
        req->prompt_logprobs[0] = (struct sl_token){.id = req->prompt[0]};
    for (int32_t i = 0; i < n; i++)
        if (!prompt_logprob(eng, req, first_pos + i,
                            rows + (size_t)i * (size_t)eng->runner.n_vocab))
            return false;
    return true;
}

/* rows: the sequence's rows of logits, if the runner gives any; ids: what was chosen from them. */
static void consume(struct sl_engine *eng, struct sl_rseq *rs, int32_t n_rows, const float *rows,
                    const int32_t *ids)
{
    struct sl_seq *seq = &rs->seq;
    if (seq->state == SL_SEQ_FINISHED) /* another sequence of its request failed in this step */
        return;
    int32_t first_pos = seq->n_computed, id = 0;
    bool last = ends_known(seq), ok = true;
    if (seq->all_logits)
        ok = prompt_rows(eng, rs, rows, first_pos, n_rows - last);
    if (ok && last)
        id = ids[n_rows - 1];
    if (!ok || id < 0 || id >= eng->runner.n_vocab) {
        struct sl_error err;
        sl_fail(&err, SL_EINTERNAL, "the model's output at position %d is not a number",
                first_pos + seq->n_step - 1);
        fail_request(eng, rs->req, &err);
        return;
    }
    sl_sched_advance(&eng->sched, seq);
    sl_sched_publish(&eng->sched, seq);
    if (!last)
        return;
    if (seq->all_logits) {
        seq->all_logits = false;
        atomic_store_explicit(&rs->req->prompt_logprobs_ready, true, memory_order_release);
    }
    add_siblings(eng, rs->req);
    append_token(eng, rs, id);
}

/* A failed step says nothing about which sequence is to blame, and their pages may hold anything.
 * A dead device takes all requests with it, once. */
static void fail_step(struct sl_engine *eng, const struct sl_error *err)
{
    sl_log(SL_LOG_ERROR, "step failed: %s", err->msg);
    if (err->code == SL_EDEVICE) {
        eng->error = *err;
        atomic_store(&eng->failed, true);
        while (eng->live != NULL)
            fail_request(eng, eng->live, err);
        return;
    }
    for (int32_t i = 0; i < eng->sched.n_plan; i++) {
        struct sl_rseq *rs = sl_rseq_of(eng->sched.plan[i]);
        if (rs->seq.state != SL_SEQ_FINISHED)
            fail_request(eng, rs->req, err);
    }
}

static void run_step(struct sl_engine *eng)
{
    struct sl_batch batch;
    struct sl_error err = {.code = SL_OK};
    const float *logits = NULL;
    int rc;
    build_batch(eng, &batch);
    mark_started(eng, eng->now_ns);
    if (eng->runner.step_ids != NULL)
        rc = eng->runner.step_ids(eng->runner.ctx, &batch, eng->batch.ids, &err);
    else
        rc = eng->runner.step(eng->runner.ctx, &batch, &logits, &err);
    eng->now_ns = sl_now_ns();
    eng->stats.steps++;
    sl_hist_add(&eng->stats.step_tokens, SL_BOUNDS_STEP, batch.n_tokens);
    if (rc != 0) {
        fail_step(eng, &err);
        return;
    }
    if (logits != NULL)
        sample_all(eng, logits);
    for (int32_t i = 0, row = 0; i < eng->sched.n_plan; i++) {
        size_t first = (size_t)row * (size_t)eng->runner.n_vocab;
        consume(eng, sl_rseq_of(eng->sched.plan[i]), eng->batch.n_rows[i],
                logits != NULL ? logits + first : NULL, eng->batch.ids + row);
        row += eng->batch.n_rows[i];
    }
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
    s->step_mallocs = sl_alloc_guard_count() - eng->n_mallocs_before;
    pthread_mutex_lock(&eng->stats_lock);
    eng->stats_public = *s;
    pthread_mutex_unlock(&eng->stats_lock);
}

bool sl_engine_turn(struct sl_engine *eng)
{
    eng->now_ns = sl_now_ns();
    take_inbox(eng);
    eng->now_ns = sl_now_ns(); /* not before anything just taken was submitted */
    if (!sl_sched_idle(&eng->sched)) {
        atomic_store(&eng->busy_since, eng->now_ns);
        sl_sched_plan(&eng->sched);
        run_step(eng);
    }
    publish_stats(eng);
    deliver_news(eng);
    bool work = !sl_sched_idle(&eng->sched);
    atomic_store(&eng->busy_since, work ? eng->now_ns : 0);
    return work;
}

void sl_engine_cancel_all(struct sl_engine *eng)
{
    eng->now_ns = sl_now_ns();
    take_inbox(eng);
    while (eng->live != NULL)
        end_all(eng, eng->live, SL_FINISH_ABORT, false);
    publish_stats(eng);
    deliver_news(eng);
}
