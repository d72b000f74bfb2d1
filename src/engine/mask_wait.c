/* SPDX-License-Identifier: MIT
 * Waits for masks and takes them: a sequence goes on, ends, or gets the tokens that its constraint
 * forces.
 */
#include "base/check.h"
#include "base/sys.h"
#include "engine/turn.h"

#define MIN_MASK_WAIT_NS UINT64_C(200000)
#define MAX_MASK_WAIT_NS UINT64_C(20000000)

/* Its next token is known: the row in flight that was to choose it is not needed. */
static void unpick_row(struct sl_engine *eng, struct sl_rseq *rs)
{
    for (int32_t i = 0; i < eng->n_flights && rs->seq.n_pending > 0; i++) {
        struct sl_flight *f = &eng->flights[(eng->first_flight + i) % eng->max_flights];
        for (int32_t k = 0; k < f->n_seqs; k++)
            if (f->seqs[k].rs == rs && f->seqs[k].n_picks > 0)
                sl_flight_unpick(eng, &f->seqs[k]);
    }
    SL_ASSERT(rs->seq.n_pending == 0);
}

/* Tokens that the constraint forces after the last one need no step of their own: the next step
 * computes all of them, like a chunk of a prompt. False: the sequence has ended with one of them.
 */
static bool append_forced(struct sl_engine *eng, struct sl_rseq *rs)
{
    bool runs = true;
    if (rs->n_forced == 0 || rs->logprobs != NULL)
        return true;
    SL_ASSERT(rs->n_forced > 0 && rs->n_forced <= SL_MAX_JUMP && rs->mask_token >= 0);
    unpick_row(eng, rs);
    sl_engine_forget_counts(eng, rs); /* a device that counts has not seen them */
    for (int32_t i = 0; i < rs->n_forced && runs; i++) {
        runs = sl_engine_append(eng, rs, rs->forced[i]);
        eng->stats.grammar_forced++;
    }
    rs->n_forced = 0;
    return runs;
}

/* A text that is complete and cannot go on ends here, whatever min_tokens and ignore_eos say. */
static void mask_is_ready(struct sl_engine *eng, struct sl_rseq *rs)
{
    SL_ASSERT(!rs->seq.waits);
    SL_ASSERT(rs->mask_token >= 0 || (rs->seq.idx == 0 && rs->seq.n_out == 0));
    if (rs->mask_free)
        rs->mask = NULL;
    if (rs->mask_error.code != 0) {
        sl_engine_fail(eng, rs->req, &rs->mask_error);
        return;
    }
    if (!append_forced(eng, rs))
        return;
    rs->mask_at = sl_seq_n_known(&rs->seq);
    if (rs->mask_ends && rs->mask_token < 0) {
        sl_engine_end_all(eng, rs->req, SL_FINISH_STOP, false);
    } else if (rs->mask_ends) {
        atomic_store_explicit(&rs->text_limit, UINT64_MAX, memory_order_relaxed);
        sl_engine_end_seq(eng, rs, SL_FINISH_STOP, false, false);
    } else if (rs->mask_token < 0) {
        sl_sched_add(&eng->sched, &rs->seq);
    }
}

void sl_engine_take_masks(struct sl_engine *eng)
{
    struct sl_rseq *rs = sl_masker_take(eng);
    while (rs != NULL) {
        struct sl_rseq *next = rs->mask_next;
        struct sl_request *req = rs->req;
        SL_ASSERT(atomic_load_explicit(&req->refs, memory_order_relaxed) > 0);
        if (rs->seq.state != SL_SEQ_FINISHED)
            mask_is_ready(eng, rs);
        sl_request_unref(req); /* the masker's reference */
        rs = next;
    }
}

/* A mask usually takes less than its thread needs to wake, so that a short wait keeps a sequence in
 * every step. The wait is a share of a step, each mask is waited for once, and for longer only if
 * most of what runs needs one. free_ns: how long a device computes meanwhile all the same. */
void sl_engine_await_masks(struct sl_engine *eng, uint64_t free_ns)
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
    sl_engine_take_masks(eng);
}
