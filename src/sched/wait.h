/* SPDX-License-Identifier: MIT
 * wait.h - the sequences that wait for admission, best first (sl_seq_before).
 *
 * A pairing heap linked through the sequences themselves: no capacity, no allocation, constant time
 * to add, O(log n) amortised to take, and any member can be removed (cancellation). Loops, no
 * recursion: its depth is up to a client.
 */
#ifndef SL_SCHED_WAIT_H
#define SL_SCHED_WAIT_H

#include "sched/seq.h"

struct sl_wait { /* zero-initialise */
    struct sl_seq *root;
    int32_t n;
};

void sl_wait_push(struct sl_wait *w, struct sl_seq *seq);
void sl_wait_remove(struct sl_wait *w, struct sl_seq *seq); /* must be in w */

/* Walks the heap: SL_EINTERNAL, or 0 if it has n members, linked right and in order. */
SL_MUST_CHECK int sl_wait_check(const struct sl_wait *w, struct sl_error *err);
/* The member after seq in the order of links, best first; NULL: seq was the last. */
struct sl_seq *sl_wait_next(const struct sl_seq *seq);

static inline struct sl_seq *sl_wait_best(const struct sl_wait *w)
{
    return w->root;
}

#endif
