/* SPDX-License-Identifier: MIT
 * leader.h - rank 0 of a model whose ranks are processes: it takes in the others, watches them, and
 * meets them in a link.
 *
 * A thread of its own listens, speaks with the others and notices within a few seconds that one is
 * dead (its connection closes), stopped (it says nothing) or stuck (what it computes does not move
 * while rank 0 waits for it). Then the meeting is over: the link is lost, all others are sent away
 * and come back by themselves, a dead one when it is started again, and when all are there a new
 * meeting begins, with memory of its own, so that one believed dead cannot write into it. Pages
 * that were computed before mean nothing then: sl_leader_renew.
 *
 * Where rank 0 says that it can (covers), the others meet without those that were lost, as soon as
 * they are back themselves. When one of the lost has loaded, it is let in between two steps: that
 * is a new meeting, too, which the thread of the steps waits for.
 */
#ifndef SL_DIST_LEADER_H
#define SL_DIST_LEADER_H

#include "dist/link.h"
#include "dist/note.h"

struct sl_leader;

struct sl_leader_config {
    const char *addr; /* an address or a name, beyond loopback only with a secret */
    int port;         /* 0: any free one */
    struct sl_rank_identity id;
    const void *secret; /* [n_secret], copied */
    size_t n_secret;
    const void *plan; /* [n_plan], at most SL_RANK_PLAN: what other ranks need to know */
    size_t n_plan;
    size_t max_message, room_bytes; /* of the link */
    int32_t timeout_ms;
    bool only_tcp;
    /* Whether steps can do without these ranks, a bit each; asked between steps, after the first
     * meeting. NULL: never. */
    bool (*covers)(const void *arg, uint32_t absent);
    const void *covers_arg;
};

enum sl_leader_news {
    SL_LEADER_NOTHING,
    SL_LEADER_LOST,  /* what others had computed is gone */
    SL_LEADER_JOINED /* that of who was let in, for which no step failed */
};

SL_MUST_CHECK int sl_leader_open(const struct sl_leader_config *cfg, struct sl_leader **out,
                                 struct sl_error *err);
void sl_leader_close(struct sl_leader *l); /* tells the others that it is over; NULL is fine */
int sl_leader_port(const struct sl_leader *l);
/* Two places of room_bytes where rank 0 can compute its parts, through all meetings. */
void *sl_leader_room(const struct sl_leader *l, int i);
/* What shows that rank 0 moves, for the others; any thread calls it. NULL: nothing. */
void sl_leader_watch(struct sl_leader *l, uint64_t (*progress)(const void *arg), const void *arg);
/* Until all are there. SL_ERANK: not within ms. */
SL_MUST_CHECK int sl_leader_wait(struct sl_leader *l, int ms, struct sl_error *err);

/* Around a step, by one thread. begin fails with SL_ERANK and says who is lost, or with SL_EBUSY
 * while one is let in (renew waits for that); end fails if that happened during the step, whose
 * results then mean nothing. */
SL_MUST_CHECK int sl_leader_begin(struct sl_leader *l, struct sl_link **link, struct sl_error *err);
SL_MUST_CHECK int sl_leader_end(struct sl_leader *l, struct sl_error *err);
/* That thread, between steps: once after each meeting. No step begins before it was asked. It lets
 * in who waits for that, for which it waits at most twice the timeout. */
enum sl_leader_news sl_leader_renew(struct sl_leader *l);
/* Any thread: 0 while all are there, or steps do without the others: *absent says which, a bit
 * each, and err->msg who was lost last. */
SL_MUST_CHECK int sl_leader_health(struct sl_leader *l, uint32_t *absent, struct sl_error *err);
/* Any thread: ranks that have loaded and speak, rank 0 among them. */
int sl_leader_n_there(const struct sl_leader *l);

#endif
