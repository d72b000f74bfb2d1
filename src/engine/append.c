/* SPDX-License-Identifier: MIT
 * One more token of a sequence: counted, shown, and looked at for an end.
 */
#include "base/check.h"
#include "engine/stats.h"
#include "engine/turn.h"

#include <string.h>

void sl_engine_keep_logprobs(struct sl_rseq *rs, const struct sl_picked *p)
{
    size_t i = (size_t)rs->seq.n_out, k = (size_t)rs->req->n_top;
    if (rs->logprobs == NULL)
        return;
    SL_ASSERT(rs->seq.n_out < rs->seq.max_out);
    SL_ASSERT(k == 0 || (rs->tops != NULL && p->top != NULL));
    rs->logprobs[i] = p->lp;
    if (k > 0)
        memcpy(rs->tops + i * k, p->top, k * sizeof *rs->tops);
}

/* Feeds the new token's text to the search; sets the limit of what may be shown. */
static bool hits_stop_string(struct sl_engine *eng, struct sl_rseq *rs, int32_t id)
{
    const struct sl_stops *stops = &rs->req->stops;
    const struct sl_sampling *p = &rs->req->sampling;
    size_t n =
        id < sl_tokenizer_n_vocab(eng->tokenizer) ? sl_detok_push(&rs->detok, id, eng->text) : 0;
    SL_ASSERT(n <= sl_detok_max_bytes(eng->tokenizer)); /* the room of eng->text */
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
    SL_ASSERT(limit <= rs->n_text);
    SL_ASSERT(limit >= atomic_load_explicit(&rs->text_limit, memory_order_relaxed));
    atomic_store_explicit(&rs->text_limit, limit, memory_order_relaxed);
    return m.idx >= 0;
}

/* Is the end of the output one piece, several times in a row? For each size of the piece rs->runs
 * counts how many of the last tokens are those a piece earlier, so that a token costs as many looks
 * as there are sizes, whatever came before. */
static bool append_repeats(struct sl_rseq *rs, const struct sl_repetition *r)
{
    const int32_t *out = rs->out, n = rs->seq.n_out;
    bool found = false;
    SL_ASSERT(r->min_size >= 1 && n >= 1);
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
        bool own = sl_in_list(p->stop_token_ids, p->n_stop_token_ids, id);
        if (own || (!p->ignore_eos && sl_in_list(eng->eos_ids, eng->n_eos_ids, id))) {
            rs->stop_token_id = own ? id : -1; /* the end of the model's turn has no reason */
            *skip_last = !p->include_stop_str_in_output;
            return SL_FINISH_STOP;
        }
    }
    if (req->stops.n > 0 && hits_stop_string(eng, rs, id))
        return SL_FINISH_STOP;
    if (rs->runs != NULL && append_repeats(rs, &p->repetition) && rs->seq.n_out >= p->min_tokens) {
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

void sl_engine_add_siblings(struct sl_engine *eng, struct sl_request *req)
{
    if (req->siblings_added)
        return;
    req->siblings_added = true;
    SL_ASSERT(req->started && req->n_ended == 0);
    for (int32_t i = 1; i < req->n_seqs; i++)
        sl_sched_add(&eng->sched, &req->seqs[i].seq);
}

bool sl_engine_append(struct sl_engine *eng, struct sl_rseq *rs, int32_t id)
{
    SL_ASSERT(rs->seq.state == SL_SEQ_RUNNING || rs->seq.state == SL_SEQ_WAITING);
    SL_ASSERT(rs->seq.n_out >= 0 && rs->seq.n_out < rs->seq.max_out);
    SL_ASSERT(id >= 0 && id < eng->runner.n_vocab);
    rs->out[rs->seq.n_out++] = id;
    if (rs->counts.slots != NULL)
        sl_counts_add(&rs->counts, id, 1);
    count_token(eng, rs);
    bool skip_last = false;
    enum sl_finish finish = finish_of(eng, rs, id, &skip_last);
    if (finish == SL_RUNNING) {
        if (rs->seq.n_out == 1)
            sl_engine_show_usage(rs->req);
        atomic_store_explicit(&rs->published, sl_pub_pack(rs->seq.n_out, SL_RUNNING, false),
                              memory_order_release);
        sl_engine_tell(eng, rs->req);
        return true;
    }
    if (rs->stop_idx < 0)
        atomic_store_explicit(&rs->text_limit, UINT64_MAX, memory_order_relaxed);
    sl_engine_end_seq(eng, rs, finish, skip_last, false);
    return false;
}
