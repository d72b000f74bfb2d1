/* SPDX-License-Identifier: MIT
 * seq.h - one sequence as the scheduler sees it: tokens known, tokens whose KV exists, its blocks.
 *
 * Embedded in the engine's request, which owns all memory the pointers name and sizes it when the
 * request is submitted. From sl_sched_add until it is finished, only the engine thread touches it.
 */
#ifndef SL_SCHED_SEQ_H
#define SL_SCHED_SEQ_H

#include "kv/kv.h"

enum sl_seq_state { SL_SEQ_NEW, SL_SEQ_WAITING, SL_SEQ_RUNNING, SL_SEQ_FINISHED };

struct sl_seq {
    /* set by the owner */
    int32_t idx;      /* 0 .. n-1 in its request */
    int32_t priority; /* lower first */
    uint64_t arrival; /* earlier first, of the request or its program (engine/retain.h) */
    uint64_t order;   /* of requests as they came; no two have the same */
    const int32_t *prompt;
    int32_t n_prompt;
    int32_t *out; /* the owner appends what was sampled, and what needed no sampling */
    int32_t n_out;
    /* Tokens that may follow those: computed in one step with the last known one, and rolled back
     * where something else was chosen. Only where that is all there is to compute. */
    const int32_t *drafts;
    int32_t n_drafted;
    int32_t max_out; /* tokens it may ever generate */
    const struct sl_kv_ns *ns;
    uint64_t adapter; /* its id, 0: none; only so many run at once (struct sl_sched_config) */
    bool waits;       /* nothing is to be planned: what its next token is chosen by is not there */
    bool holds;       /* nothing is to be planned before what is pending has landed */
    bool publish;     /* its complete blocks may be found by others */
    bool all_logits;  /* every prompt position's logits are wanted, so cached ones do not help */

    /* the scheduler's */
    enum sl_seq_state state;
    struct sl_kv_blocks blocks; /* held; its arrays are the owner's */
    int32_t n_published;        /* of them, in the prefix tree */
    int32_t n_computed;         /* tokens whose KV is in their pages */
    int32_t n_step;             /* tokens of the planned step */
    bool stalled;               /* no part of it: a step in flight has the page it needs */
    int32_t n_cached;           /* tokens found in the cache when first admitted, -1 before */
    int32_t n_preempted;
    int32_t n_pending;   /* tokens that steps in flight choose, 0 or 1 when planning; the owner's */
    int32_t pending_row; /* the last one's row of logits, and the slot of its step; the owner's */
    int32_t pending_slot;
    int32_t group;       /* while it runs: whose steps it is in (struct sl_sched) */
    uint64_t blocked_at; /* sl_sched_room when admission failed last; 0: it did not */
    struct sl_seq *heap_child, *heap_next, *heap_prev;
};

/* Prompt and output, without what is drafted or pending. */
static inline int32_t sl_seq_n_known(const struct sl_seq *s)
{
    return s->n_prompt + s->n_out;
}

/* What is drafted and what is pending included. */
static inline int32_t sl_seq_n_tokens(const struct sl_seq *s)
{
    return sl_seq_n_known(s) + s->n_drafted + s->n_pending;
}

/* Below 0: not known yet, -1 - row of the step that is not over (struct sl_batch). */
static inline int32_t sl_seq_token(const struct sl_seq *s, int32_t pos)
{
    if (pos < s->n_prompt)
        return s->prompt[pos];
    pos -= s->n_prompt;
    if (pos < s->n_out)
        return s->out[pos];
    return pos - s->n_out < s->n_drafted ? s->drafts[pos - s->n_out] : -1 - s->pending_row;
}

/* Must something land or come before more can be planned? After drafts nothing is known. */
static inline bool sl_seq_held(const struct sl_seq *s)
{
    return s->waits || s->stalled ||
           (s->n_pending > 0 &&
            (s->holds || s->n_drafted > 0 || s->n_out + s->n_pending >= s->max_out));
}

/* Is nothing left to compute but its last token, and its drafts? */
static inline bool sl_seq_decodes(const struct sl_seq *s)
{
    return sl_seq_n_tokens(s) - s->n_computed == 1 + s->n_drafted;
}

/* What is known of its text. */
static inline struct sl_kv_text sl_seq_text(const struct sl_seq *s)
{
    return (struct sl_kv_text){s->prompt, s->n_prompt, s->out, s->n_out};
}

/* Does a come before b? A total order: priority, arrival, order of requests, place in the request.
 */
static inline bool sl_seq_before(const struct sl_seq *a, const struct sl_seq *b)
{
    if (a->priority != b->priority)
        return a->priority < b->priority;
    if (a->arrival != b->arrival)
        return a->arrival < b->arrival;
    if (a->order != b->order)
        return a->order < b->order;
    return a->idx < b->idx;
}

#endif
