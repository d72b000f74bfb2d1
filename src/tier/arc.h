/* SPDX-License-Identifier: MIT
 * arc.h - which list of a group gives up its oldest page (Megiddo and Modha: ARC, a self-tuning,
 * low overhead replacement cache, FAST 2003, figure 4).
 *
 * A group's pages stand in two lists: those that were used once, and those that were used again
 * (T1 and T2 of the paper). Names of pages that were evicted from either are remembered (B1, B2).
 * A page that comes back shows which list was too short: the target length of the first one moves.
 * So pages of prompts that nobody repeats do not push out those of prompts that many share.
 *
 * The paper's bounds hold for each group, c being the slots of its chunks: |T1| + |B1| <= c, all
 * four <= 2c, and |B1| + |B2| <= c. The paper drops a name before it evicts, here it is dropped
 * behind that; the same one goes. With one group and no page that is held or dropped the decisions
 * are the paper's (tests/tier/test_arc.py).
 *
 * Parts of slots.c, under the lock of its owner. With SL_POLICY_LRU all of a group's pages are in
 * its first list, and nothing is remembered.
 */
#ifndef SL_TIER_ARC_H
#define SL_TIER_ARC_H

#include "tier/slots.h"

/* A page comes that is not there: what is known of it, which is forgotten then; moves the target.
 */
struct sl_arrival {
    bool again;      /* it was there before: it has been used more than once */
    bool was_in_two; /* its last place was in the second list (the paper's x in B2) */
};
struct sl_arrival sl_arc_arrive(struct sl_slots *s, const struct sl_store_key *key);

/* The list of which the oldest page goes to make room, in the group that the page comes to or in
 * another one (arrival NULL): 0 or 1. The paper's REPLACE. */
int sl_arc_victim(const struct sl_slots *s, int32_t group, const struct sl_arrival *arrival);

/* A page of a list was evicted. */
void sl_arc_remember(struct sl_slots *s, const struct sl_store_key *key, int list);
/* A page came, or the group has fewer slots: makes the bounds hold. */
void sl_arc_trim(struct sl_slots *s, int32_t group);
/* Do they hold? For tests. */
SL_MUST_CHECK int sl_arc_check(const struct sl_slots *s, int32_t group, struct sl_error *err);

#endif
