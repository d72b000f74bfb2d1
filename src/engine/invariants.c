/* SPDX-License-Identifier: MIT
 * What must hold whenever a turn of the engine is over. The letters are those of
 * docs/RELIABILITY.md and of the simulator's reports.
 *
 *   I1  every block (node) and every page is free, cached or owned; it has as many owners as
 *       sequences hold it
 *   I2  nothing runs: no block and no page is owned
 *   I3  every accepted sequence ends exactly once
 *   I4  what a reader was shown is what there is, and grows only before the end
 *   I5  usage counts the tokens delivered
 *   I6  what waits can run: it fits the empty pool, and the queue is whole
 *   I7  what runs has something to do, now or when a step in flight lands (with the watchdog)
 *   I8  a block is found only once the step that filled it has landed
 *   I9  the tree's tokens of a block are those of the sequences that hold it
 *   I10 a step in flight reads pages its sequences hold, or gave back after it was launched
 *   I14 of layers with a window or a state a sequence holds the pages that rows which have not
 *       landed, or are to come, can see, and no others
 *
 * I11, the same tokens in whatever company, is what the simulator's oracle and test_bits.c compare.
 */
#include "base/check.h"
#include "base/log.h"
#include "engine/core.h"

#include <string.h>

#define WALKED_PAGES 1024 /* debug builds walk a smaller pool after every turn */
#define IDLE_PAGES   256  /* looked at whenever the engine falls idle, in release builds */

#define WHO(rs) (unsigned long long)(rs)->seq.arrival, (rs)->seq.idx

struct sum { /* over the live requests */
    int32_t n_new, n_waiting, n_running, n_finished, n_pending;
};

static int check_seq(const struct sl_rseq *rs, struct sum *sum, struct sl_error *err)
{
    const struct sl_seq *seq = &rs->seq;
    uint64_t pub =
        rs->end != 0 ? rs->end : atomic_load_explicit(&rs->published, memory_order_relaxed);
    bool over = seq->state == SL_SEQ_FINISHED;
    if (over != (sl_pub_finish(pub) != SL_RUNNING))
        return sl_fail(err, SL_EINTERNAL,
                       "I3: sequence %llu.%d is in state %d, its reader is told finish %d", WHO(rs),
                       (int)seq->state, (int)sl_pub_finish(pub));
    if (sl_pub_tokens(pub) != seq->n_out)
        return sl_fail(err, SL_EINTERNAL, "I4: sequence %llu.%d has %d tokens, %d were shown",
                       WHO(rs), seq->n_out, sl_pub_tokens(pub));
    if (seq->n_out > seq->max_out)
        return sl_fail(err, SL_EINTERNAL, "I5: sequence %llu.%d has %d tokens of at most %d",
                       WHO(rs), seq->n_out, seq->max_out);
    if (seq->state != SL_SEQ_RUNNING && seq->blocks.n != 0)
        return sl_fail(err, SL_EINTERNAL, "I1: sequence %llu.%d in state %d holds %d blocks",
                       WHO(rs), (int)seq->state, seq->blocks.n);
    sum->n_new += seq->state == SL_SEQ_NEW;
    sum->n_waiting += seq->state == SL_SEQ_WAITING;
    sum->n_running += seq->state == SL_SEQ_RUNNING;
    sum->n_finished += over;
    sum->n_pending += over ? 0 : seq->n_pending;
    return 0;
}

/* Tokens of a sequence that steps in flight compute into the pages it has now. */
static int32_t in_flight(const struct sl_engine *eng, const struct sl_rseq *rs, int32_t *n_samples)
{
    int32_t n = 0;
    *n_samples = 0;
    for (int32_t i = 0; i < eng->n_flights; i++) {
        const struct sl_flight *f = &eng->flights[(eng->first_flight + i) % eng->max_flights];
        for (int32_t j = 0; j < f->n_seqs; j++) {
            if (f->seqs[j].rs != rs)
                continue;
            *n_samples += f->seqs[j].n_picks > 0;
            n += f->seqs[j].epoch == rs->seq.n_preempted ? f->seqs[j].n : 0;
        }
    }
    return n;
}

/* I14: neither too early nor too late. */
static int check_windows(const struct sl_engine *eng, const struct sl_rseq *rs,
                         struct sl_error *err)
{
    const struct sl_kv_blocks *b = &rs->seq.blocks;
    int32_t n_samples, n_landed = rs->seq.n_computed - in_flight(eng, rs, &n_samples);
    for (int32_t g = 0; g < eng->info.n_kv_groups && rs->seq.state == SL_SEQ_RUNNING; g++) {
        int32_t first = sl_group_first_seen(&eng->kv.groups[g], n_landed);
        if (b->first[g] != first)
            return sl_fail(err, SL_EINTERNAL,
                           "I14: sequence %llu.%d holds pages of group %d from block %d on; with "
                           "%d tokens landed it sees blocks from %d on",
                           WHO(rs), g, b->first[g], n_landed, first);
    }
    return 0;
}

static int check_request(const struct sl_engine *eng, const struct sl_request *req, struct sum *sum,
                         struct sl_error *err)
{
    struct sum mine = {0};
    int32_t n_out = 0, rc = 0;
    for (int32_t i = 0; i < req->n_seqs && rc == 0; i++) {
        rc = check_seq(&req->seqs[i], &mine, err);
        if (rc == 0)
            rc = check_windows(eng, &req->seqs[i], err);
        n_out += req->seqs[i].seq.n_out;
    }
    if (rc != 0)
        return rc;
    unsigned long long arrival = (unsigned long long)req->seqs[0].seq.arrival;
    if (mine.n_finished != req->n_ended || req->n_ended >= req->n_seqs)
        return sl_fail(err, SL_EINTERNAL,
                       "I3: %d of %d sequences of live request %llu have ended, %d are counted",
                       mine.n_finished, req->n_seqs, arrival, req->n_ended);
    if (mine.n_new > 0 && (req->siblings_added || req->seqs[0].seq.state == SL_SEQ_FINISHED))
        return sl_fail(err, SL_EINTERNAL, "I3: %d sequences of request %llu never started",
                       mine.n_new, arrival);
    if (req->usage_now.n_output != n_out)
        return sl_fail(err, SL_EINTERNAL, "I5: request %llu has %d tokens, usage says %d", arrival,
                       n_out, req->usage_now.n_output);
    sum->n_waiting += mine.n_waiting;
    sum->n_running += mine.n_running;
    sum->n_new += mine.n_new;
    sum->n_finished += mine.n_finished;
    sum->n_pending += mine.n_pending;
    return 0;
}

static int check_flight_tables(const struct sl_engine *eng, const struct sl_flight *f,
                               const struct sl_flight_seq *fs, struct sl_error *err)
{
    const struct sl_kv_blocks *b = &fs->rs->seq.blocks;
    const int32_t bs = eng->info.block_size;
    for (int32_t g = 0; g < eng->info.n_kv_groups; g++) {
        const int32_t *table =
            f->tables + (size_t)g * (size_t)f->table_stride + f->spans[fs - f->seqs].table_idx;
        for (int32_t p = fs->pos / bs; p * bs < fs->pos + fs->n; p++)
            if (table[p] != b->pages[g][p])
                return sl_fail(err, SL_EINTERNAL,
                               "I10: a step in flight writes page %d of group %d, sequence "
                               "%llu.%d holds page %d",
                               table[p], g, WHO(fs->rs), b->pages[g][p]);
        if (eng->kv.groups[g].cfg.kind != SL_GROUP_STATE)
            continue;
        const int32_t begin = (fs->pos - 1) / bs, last = (fs->pos + fs->n - 1) / bs;
        if ((fs->pos > 0 && b->pages[g][begin] == SL_NO_PAGE) || b->pages[g][last] == SL_NO_PAGE)
            return sl_fail(err, SL_EINTERNAL,
                           "I10: a step in flight begins at the state of block %d of sequence "
                           "%llu.%d and ends in block %d, whose pages are %d and %d",
                           fs->pos > 0 ? begin : -1, WHO(fs->rs), last,
                           fs->pos > 0 ? b->pages[g][begin] : SL_NO_PAGE, b->pages[g][last]);
        const int32_t n_drafts = f->spans[fs - f->seqs].n_drafts;
        if (n_drafts != b->n_drafts ||
            memcmp(table + last + 1, b->drafts, (size_t)n_drafts * sizeof *table) != 0)
            return sl_fail(err, SL_EINTERNAL,
                           "I10: a step in flight writes the states behind %d drafts of sequence "
                           "%llu.%d, which has pages for %d, or other ones",
                           n_drafts, WHO(fs->rs), b->n_drafts);
    }
    return 0;
}

static int check_flight_seq(const struct sl_engine *eng, const struct sl_flight *f,
                            const struct sl_flight_seq *fs, struct sl_error *err)
{
    const struct sl_rseq *rs = fs->rs;
    const struct sl_seq *seq = &rs->seq;
    int32_t n_samples, n = in_flight(eng, rs, &n_samples), bs = eng->info.block_size;
    if (seq->state != SL_SEQ_RUNNING && seq->state != SL_SEQ_WAITING)
        return sl_fail(err, SL_EINTERNAL,
                       "I10: a step in flight is for sequence %llu.%d in state %d", WHO(rs),
                       (int)seq->state);
    if (n_samples != seq->n_pending)
        return sl_fail(err, SL_EINTERNAL,
                       "I7: sequence %llu.%d waits for %d tokens, steps in flight choose %d",
                       WHO(rs), seq->n_pending, n_samples);
    if (seq->state != SL_SEQ_RUNNING || seq->n_preempted != fs->epoch)
        return 0; /* its pages of then are others' */
    if (fs->pos + fs->n > seq->n_computed || seq->n_published * bs > seq->n_computed - n)
        return sl_fail(err, SL_EINTERNAL,
                       "I8: sequence %llu.%d computed %d tokens, %d of them not landed, and %d "
                       "blocks are published",
                       WHO(rs), seq->n_computed, n, seq->n_published);
    return check_flight_tables(eng, f, fs, err);
}

static int check_flights(const struct sl_engine *eng, const struct sum *sum, struct sl_error *err)
{
    int32_t n_samples = 0;
    if (eng->n_flights < 0 || eng->n_flights > eng->max_flights)
        return sl_fail(err, SL_EINTERNAL, "I7: %d steps in flight of at most %d", eng->n_flights,
                       eng->max_flights);
    for (int32_t i = 0; i < eng->n_flights; i++) {
        const struct sl_flight *f = &eng->flights[(eng->first_flight + i) % eng->max_flights];
        for (int32_t j = 0; j < f->n_seqs; j++) {
            if (f->seqs[j].rs == NULL)
                continue;
            int rc = check_flight_seq(eng, f, &f->seqs[j], err);
            if (rc != 0)
                return rc;
            n_samples += f->seqs[j].n_picks > 0;
        }
    }
    if (n_samples != sum->n_pending)
        return sl_fail(err, SL_EINTERNAL,
                       "I7: sequences wait for %d tokens, %d steps in flight choose %d",
                       sum->n_pending, eng->n_flights, n_samples);
    return 0;
}

static int check_sums(const struct sl_engine *eng, const struct sum *sum, struct sl_error *err)
{
    uint64_t n_ended = 0, n_open;
    for (size_t i = 0; i < SL_COUNT(eng->stats.finished); i++)
        n_ended += eng->stats.finished[i];
    if (sum->n_running != eng->sched.n_running || sum->n_waiting != eng->sched.wait.n)
        return sl_fail(err, SL_EINTERNAL,
                       "I3: live requests have %d sequences running and %d waiting, the scheduler "
                       "has %d and %d",
                       sum->n_running, sum->n_waiting, eng->sched.n_running, eng->sched.wait.n);
    n_open = (uint64_t)sum->n_new + (uint64_t)sum->n_running + (uint64_t)sum->n_waiting;
    if (n_ended + n_open != eng->n_seqs_taken)
        return sl_fail(err, SL_EINTERNAL,
                       "I3: %llu sequences were accepted, %llu ended and %llu are open",
                       (unsigned long long)eng->n_seqs_taken, (unsigned long long)n_ended,
                       (unsigned long long)n_open);
    return 0;
}

int sl_engine_check(struct sl_engine *eng, struct sl_error *err)
{
    struct sum sum = {0};
    const struct sl_request *prev = NULL;
    uint64_t n = 0;
    for (const struct sl_request *req = eng->live; req != NULL; prev = req, req = req->live_next) {
        if (req->live_prev != prev || ++n > eng->n_arrivals)
            return sl_fail(err, SL_EINTERNAL,
                           "I3: the list of live requests is broken at its %lluth",
                           (unsigned long long)n);
        int rc = check_request(eng, req, &sum, err);
        if (rc != 0)
            return rc;
    }
    int rc = check_sums(eng, &sum, err);
    if (rc == 0)
        rc = check_flights(eng, &sum, err);
    return rc != 0 ? rc : sl_sched_check(&eng->sched, err);
}

static int check_idle(struct sl_engine *eng, struct sl_error *err)
{
    struct sum none = {0};
    int rc = check_sums(eng, &none, err);
    if (rc == 0 && eng->live != NULL)
        rc = sl_fail(err, SL_EINTERNAL, "I3: nothing runs or waits, but request %llu has not ended",
                     (unsigned long long)eng->live->seqs[0].seq.arrival);
    return rc != 0 ? rc : sl_kv_check_idle(&eng->kv, IDLE_PAGES, &eng->idle_cursor, err);
}

bool sl_engine_verify(struct sl_engine *eng, bool work, struct sl_error *err)
{
#ifdef SL_DEBUG
    /* Of a large pool not after every turn, so that tests of whole servers come to an end. */
    uint64_t every = 1 + (uint64_t)eng->info.n_pages / WALKED_PAGES;
    bool due = !work || atomic_load(&eng->n_moves) % every == 0;
    if (due && sl_engine_check(eng, err) != 0) {
        sl_log(SL_LOG_ERROR, "an invariant is broken: %s", err->msg);
        SL_ASSERT(false && "an invariant is broken, see the line above");
    }
#endif
    return work || check_idle(eng, err) == 0;
}
