/* SPDX-License-Identifier: MIT
 * sched.h - continuous batching: which sequences get how many tokens of the next step.
 *
 * A plan is made in this order, after Sarathi-Serve and vLLM:
 *   1. every running sequence that generates gets one token, and the drafts after it, and the
 *      blocks they need; when none is left, drafts are dropped, then the worst running sequence
 *      (last by priority, then arrival) is preempted: it gives back its blocks and waits, to be
 *      recomputed later from its tokens;
 *   2. running prompts, and sequences that got several tokens at once (what a grammar forces), get
 *      chunks of what is left of the token budget and, while something generates, of max_step_s;
 *   3. waiting sequences are admitted in order, no overtaking, while seats, blocks and budget last.
 * A sequence is admitted with blocks, and so with FULL pages, for all its present tokens: only
 * generation can run short of them. Before 1, a waiting sequence of strictly better priority takes
 * the seats and blocks of worse ones.
 *
 * Pages of WINDOW groups are taken when the tokens that are written to them are planned, and given
 * up when the step lands whose rows were the last to see them. A sequence is admitted if what it
 * and the others need of them while they generate is there; each running sequence then has the page
 * of its next token in 1, and chunks are cut to what is left.
 *
 * Of a STATE group a running sequence needs two pages: where a step begins and where it ends. Those
 * are there once it is admitted. A third, for a step planned while the one before it is in flight,
 * and those of checkpoints it gets only if nobody running may need them; else it is stalled until
 * that step has landed, or does without the checkpoint. The states behind drafts have pages of
 * their own (sl_sched_max_drafts): drafts that there is none for are dropped.
 *
 * A step may be planned while the one before it runs: its sequences then have a pending token,
 * whose place is known and value is not. Nothing is planned for a sequence that is held
 * (sl_seq_held). As steps run in order, pages given back while a step runs may be handed out at
 * once; but a row that may be rolled back is computed again, so a window moves on only when rows
 * have landed.
 *
 * Where a device computes steps of several groups at once, as a pipeline of stages does, what runs
 * is divided among the groups, and a step is of one group's sequences; groups take turns. A
 * sequence stays in the group in which it was admitted, which is never one that has its share. If a
 * group has become much larger than another one, some go there, each when its last token is known.
 * A group that has two steps in flight which choose tokens has no turn.
 *
 * Progress: only worse sequences are preempted for a better one, so the best running sequence is
 * never preempted; alone it always fits, because sl_sched_limit bounds a sequence's length by the
 * number of blocks, and WINDOW and STATE groups have sl_group_least pages, of which no chunk takes
 * the last.
 * What is waiting is therefore reached after finitely many steps.
 *
 * Engine thread only; nothing is allocated after init; no errors, only asserts, after init.
 */
#ifndef SL_SCHED_SCHED_H
#define SL_SCHED_SCHED_H

#include "sched/cost.h"
#include "sched/wait.h"

struct sl_sched_config {
    int32_t max_seqs;     /* running at once */
    int32_t max_tokens;   /* of one step, >= max_seqs, so that a decode is never skipped */
    int32_t max_logits;   /* rows of logits of one step, >= max_seqs and what is drafted */
    int32_t max_adapters; /* different ones of what runs, >= 1 where sequences have any */
    int32_t n_groups;     /* of what runs, at most SL_MAX_STAGES; 0: 1 */
    bool whole_prompts;   /* a prompt goes into one step: max_tokens holds the longest */
    /* Chunks make a step in which something generates take at most so long, as far as `cost` knows,
     * or twice as long as the last step without them was measured to take. Where that is needed and
     * no such step was measured lately, one goes without chunks. 0: no bound. */
    double max_step_s;
};

struct sl_sched {
    struct sl_sched_config cfg;
    struct sl_kv *kv;
    struct sl_wait wait;
    struct sl_seq **running; /* [max_seqs], best first */
    int32_t n_running;
    struct sl_seq **plan; /* [max_seqs], the step's sequences with n_step > 0 */
    int32_t n_plan, n_plan_tokens;
    int32_t n_chunks;                 /* of the step */
    int32_t group;                    /* of the step */
    int32_t n_members[SL_MAX_STAGES]; /* that run, of each group */
    /* Steps in flight of each that choose tokens, or that pages of windows and states wait for; the
     * owner's. */
    int32_t n_in_flight[SL_MAX_STAGES];
    struct sl_work work; /* of the step */
    double limit_s;      /* of the step; 0: none */
    struct sl_cost cost; /* of steps; the owner tells it what they took */
    int32_t n_short; /* blocks that the best waiting sequence lacked, or running ones soon will */
    uint64_t n_preemptions;
    uint64_t n_stops;  /* how often a sequence stopped running */
    int32_t *expected; /* [1 + n_groups, n_nodes], for sl_sched_check */
};

SL_MUST_CHECK int sl_sched_init(struct sl_sched *s, const struct sl_sched_config *cfg,
                                struct sl_kv *kv, struct sl_error *err);
void sl_sched_deinit(struct sl_sched *s);

/* Most tokens (prompt and generated) a sequence may have so that it fits the cache alone. */
int64_t sl_sched_limit(const struct sl_sched *s);
void sl_sched_add(struct sl_sched *s, struct sl_seq *seq);
/* Ends a sequence wherever it is. forget: its blocks are not to be reused (failed step). */
void sl_sched_finish(struct sl_sched *s, struct sl_seq *seq, bool forget);
/* What was computed last of seq is not to be used: if it is running, it gives back its blocks and
 * waits to be recomputed. forget: they are not to be reused, since a step cannot be trusted. */
void sl_sched_requeue(struct sl_sched *s, struct sl_seq *seq, bool forget);
/* A waiting sequence comes before every other priority from now on. */
void sl_sched_raise(struct sl_sched *s, struct sl_seq *seq);
/* The planned step has a chunk, and no time left for another. */
bool sl_sched_is_long(const struct sl_sched *s);
/* Can seq run beside what runs, as far as adapters are concerned? */
bool sl_sched_adapter_fits(const struct sl_sched *s, const struct sl_seq *seq);
/* As far as pages of WINDOW and STATE groups are concerned? */
bool sl_sched_pages_fit(const struct sl_sched *s, const struct sl_seq *seq);
/* Pages of a group that running sequences count with. */
int32_t sl_sched_n_counted(const struct sl_sched *s, const struct sl_kv_group *g);
/* Fills plan. n_plan is 0 only when nothing is running or waiting, or everything that could be
 * planned is held. */
void sl_sched_plan(struct sl_sched *s);
/* The planned tokens of seq are being computed. */
void sl_sched_advance(struct sl_sched *s, struct sl_seq *seq);
/* Is there a group of states? Then what is computed cannot be rolled back but drafts, only
 * requeued. */
static inline bool sl_sched_has_states(const struct sl_sched *s)
{
    return s->kv->groups[s->kv->n_groups - 1].cfg.kind == SL_GROUP_STATE;
}

/* Drafts behind the last known token of seq, or the pending one, that can be computed as far as
 * pages of states are concerned. */
static inline int32_t sl_sched_max_drafts(const struct sl_sched *s, const struct sl_seq *seq)
{
    return sl_kv_max_drafts(s->kv, seq->n_computed);
}

/* Rolls back the last n computed tokens: no token was chosen after them. Their positions are
 * computed again later. Not where there are states. */
void sl_sched_rollback(struct sl_sched *s, struct sl_seq *seq, int32_t n);
/* The last n computed tokens are drafts, of which the first n_right are those of the text. The
 * others are rolled back, a state as well. */
void sl_sched_settle(struct sl_sched *s, struct sl_seq *seq, int32_t n, int32_t n_right);
/* The first n_done tokens were computed, their logits are good and none of them is rolled back any
 * more: puts the blocks they fill into the prefix tree, and gives up the pages that only they saw.
 */
void sl_sched_publish(struct sl_sched *s, struct sl_seq *seq, int32_t n_done);

/* An attempt to admit that failed for want of blocks need not be repeated before this changes: a
 * node lost its last owner, or there is one sequence less to keep one free for. Never 0. */
static inline uint64_t sl_sched_room(const struct sl_sched *s)
{
    return s->kv->n_releases + s->n_stops + 1;
}

static inline bool sl_sched_idle(const struct sl_sched *s)
{
    return s->n_running == 0 && s->wait.n == 0;
}

/* Walks everything, sched_check.c: scheduler, tables, caches. SL_EINTERNAL with a message that
 * names the invariant and the numbers. */
SL_MUST_CHECK int sl_sched_check(struct sl_sched *s, struct sl_error *err);
/* Why a waiting sequence was not admitted by the last plan, in words for a log. */
void sl_sched_why(const struct sl_sched *s, const struct sl_seq *seq, char *out, size_t n_out);

#endif
