/* SPDX-License-Identifier: MIT
 * Ends of sequences and requests, and what their readers are told.
 */
#include "base/check.h"
#include "engine/stats.h"
#include "engine/transfer.h"
#include "engine/turn.h"

void sl_engine_forget_counts(struct sl_engine *eng, const struct sl_rseq *rs)
{
    if (rs->counts.slots != NULL && eng->runner.forget != NULL)
        eng->runner.forget(eng->runner.ctx, &rs->counts);
}

void sl_engine_tell(struct sl_engine *eng, struct sl_request *req)
{
    if (req->has_news)
        return;
    SL_ASSERT((eng->news == NULL) == (eng->news_tail == NULL));
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
    int n_open = atomic_fetch_sub(&eng->n_open, 1);
    SL_ASSERT(n_open > 0);
    SL_ASSERT(u->n_cached >= 0 && u->n_cached <= u->n_prompt);
    sl_retain_end(eng, req);
    sl_tiers_end(eng, req);
    sl_transfer_end(eng, req, u->n_output == 0);
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
    SL_ASSERT(req->live_prev != NULL ? req->live_prev->live_next == req : eng->live == req);
    SL_ASSERT(req->live_next != NULL ? req->live_next->live_prev == req : eng->live_oldest == req);
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

void sl_engine_show_usage(struct sl_request *req)
{
    pthread_mutex_lock(&req->lock);
    req->usage = req->usage_now;
    pthread_mutex_unlock(&req->lock);
}

void sl_engine_end_seq(struct sl_engine *eng, struct sl_rseq *rs, enum sl_finish finish,
                       bool skip_last, bool forget)
{
    struct sl_request *req = rs->req;
    SL_ASSERT(rs->seq.state != SL_SEQ_FINISHED);
    SL_ASSERT(finish != SL_RUNNING && (size_t)finish < SL_COUNT(eng->stats.finished));
    SL_ASSERT(req->n_ended < req->n_seqs);
    SL_ASSERT(eng->n_raised >= rs->raised);
    req->usage_now.n_preemptions += rs->seq.n_preempted;
    eng->n_raised -= rs->raised;
    rs->raised = false;
    sl_fund_close(&eng->fund, &rs->credit);
    if (!forget)
        sl_retain_note(eng, rs);
    sl_sched_finish(&eng->sched, &rs->seq, forget);
    for (int32_t i = 0; i < eng->max_flights; i++)
        sl_flight_forget(&eng->flights[i], rs);
    sl_engine_draft_forget(eng, rs);
    sl_engine_forget_counts(eng, rs);
    if (eng->corpus != NULL && !forget)
        sl_suffix_corpus_add(eng->corpus, &req->ns, rs->out, rs->seq.n_out);
    sl_engine_show_usage(req);
    rs->end = sl_pub_pack(rs->seq.n_out, finish, skip_last);
    eng->stats.finished[finish]++;
    sl_hist_add(&eng->stats.output_len, SL_BOUNDS_LEN, rs->seq.n_out);
    if (++req->n_ended == req->n_seqs)
        end_request(eng, req);
    sl_engine_tell(eng, req);
}

void sl_engine_end_all(struct sl_engine *eng, struct sl_request *req, enum sl_finish finish,
                       bool forget)
{
    for (int32_t i = 0; i < req->n_seqs; i++) {
        struct sl_rseq *rs = &req->seqs[i];
        if (rs->seq.state == SL_SEQ_FINISHED)
            continue;
        atomic_store_explicit(&rs->text_limit, UINT64_MAX, memory_order_relaxed);
        sl_engine_end_seq(eng, rs, finish, false, forget);
    }
}

void sl_engine_fail(struct sl_engine *eng, struct sl_request *req, const struct sl_error *why)
{
    SL_ASSERT(why->code != SL_OK);
    req->error = *why;
    sl_engine_end_all(eng, req, SL_FINISH_ERROR, true);
}

void sl_engine_deliver(struct sl_engine *eng)
{
    while (eng->news != NULL) {
        struct sl_request *req = eng->news;
        SL_ASSERT(req->has_news && req->n_ended <= req->n_seqs);
        eng->news = req->news_next;
        if (eng->news == NULL)
            eng->news_tail = NULL;
        req->has_news = false;
        for (int32_t i = 0; i < req->n_seqs; i++)
            if (req->seqs[i].end != 0)
                atomic_store_explicit(&req->seqs[i].published, req->seqs[i].end,
                                      memory_order_release);
        bool over = req->n_ended == req->n_seqs;
        if (over)
            atomic_store(&req->over, true);
        sl_request_deliver(req);
        if (over)
            sl_request_unref(req);
    }
}
