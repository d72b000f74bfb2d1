/* SPDX-License-Identifier: MIT
 * flight.h - one step from its plan to its results.
 *
 * A runner that has several flights computes one step while the next is planned; its sequences have
 * moved on by then (sl_sched_advance) and their new tokens are pending. Where the choice of a token
 * needs the values of the tokens before it (a mask, penalties that the host counts), the step is
 * launched without the choice, which follows when the step before has landed, while this one
 * computes. A runner with one flight computes in the call: its choice follows at once, and the step
 * lands in the turn that launched it. Engine thread only.
 */
#ifndef SL_ENGINE_FLIGHT_H
#define SL_ENGINE_FLIGHT_H

#include "engine/flight_lora.h"
#include "engine/request.h"
#include "engine/runner.h"
#include "sched/cost.h"

struct sl_engine;

struct sl_flight_seq {
    struct sl_rseq *rs;  /* NULL: it has ended since */
    int32_t pos, n;      /* its tokens of this step */
    int32_t row, n_rows; /* its rows of logits */
    int32_t epoch;       /* n_preempted at launch: another one by now means other pages */
    int32_t n_picks;     /* its last rows that choose a token each; 0: more of a prompt follows */
};

struct sl_flight {
    int32_t *tokens, *positions; /* [max_tokens] */
    struct sl_span *spans;       /* [max_seqs] */
    int32_t *tables; /* [n_groups of pages, max_seqs * blocks of the longest sequence + drafts] */
    size_t tables_bytes;
    int32_t table_stride;       /* between groups */
    int32_t *logit_rows;        /* [max_logits] */
    struct sl_pick *picks;      /* [max_logits] */
    struct sl_picked *picked;   /* [max_logits] */
    struct sl_flight_seq *seqs; /* [max_seqs] */
    int32_t *second_from;       /* [max_seqs] of struct sl_batch */
    int32_t n_seqs;
    struct sl_flight_lora *lora; /* NULL: the engine has no adapters */
    struct sl_batch batch;
    uint64_t launched_ns;
    struct sl_work work;
    bool undecided; /* its tokens are to be chosen by sl_flight_choose */
    /* ahead.h: nothing was in flight before it, since from_ns, as drafts were waited for; passes
     * took so much of that; what its drafts have paid; its work without them. */
    bool late;
    uint64_t from_ns;
    double pass_s, paid_s;
    struct sl_work plain;
};

SL_MUST_CHECK int sl_flight_init(struct sl_flight *f, const struct sl_engine *eng,
                                 struct sl_error *err);
void sl_flight_deinit(struct sl_flight *f);
/* Builds the batch of the scheduler's plan and starts it. */
SL_MUST_CHECK int sl_flight_launch(struct sl_engine *eng, struct sl_flight *f,
                                   struct sl_error *err);
/* Of a step that is undecided, when nothing is in flight before it. A failure ends the step. */
SL_MUST_CHECK int sl_flight_choose(struct sl_engine *eng, struct sl_flight *f,
                                   struct sl_error *err);
/* How the token at position pos is chosen, after the known text of the sequence and the first
 * n_ahead of its drafts. */
struct sl_sample_args sl_flight_args(const struct sl_engine *eng, struct sl_rseq *rs, int32_t pos,
                                     int32_t n_ahead);
/* The position of the first token that the sequence's rows choose. */
static inline int32_t sl_flight_first(const struct sl_flight_seq *fs)
{
    return fs->pos + fs->n + 1 - fs->n_picks;
}
/* Rolls back the choice of the sequence's last row: the row's token is computed again later. A
 * recurrent state cannot be rolled back so: the sequence then waits to be computed again from its
 * last checkpoint on. */
void sl_flight_rollback(struct sl_engine *eng, struct sl_flight_seq *fs);
/* What the sequence's last row was to choose is known already. The row's token is computed again
 * with what follows, unless there is a state, which is right as it is. */
void sl_flight_unpick(struct sl_engine *eng, struct sl_flight_seq *fs);
/* Waits for the results: afterwards picked is filled for every row. */
SL_MUST_CHECK int sl_flight_land(struct sl_engine *eng, struct sl_flight *f, struct sl_error *err);
/* A sequence ends: its results are not wanted any more. */
void sl_flight_forget(struct sl_flight *f, const struct sl_rseq *rs);

#endif
