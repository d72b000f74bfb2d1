/* SPDX-License-Identifier: MIT
 * budget.h - bytes of KV pages that several pools of one process share.
 *
 * Every pool has a floor: bytes that are its own, enough for its longest sequence, so that each
 * engine makes progress whatever the others do. What an engine never shares (pages of layers with
 * a window) counts as part of its floor that is always held. The rest goes to whoever asks first. A
 * pool holds the bytes of its pages that have memory (free, cached or owned); what it may hold is
 * decided here, which pages these are is the pool's business (kv.c).
 *
 *   held <= total:  the sum over the pools of max(held, floor) never exceeds the total
 *   no starving:    a pool always gets what its floor leaves; and while a pool that holds less than
 *                   its even part (floor, and the rest divided evenly) wants more, none above its
 *                   own even part grows
 *   giving back:    a pool that wants more than is left makes those that could spare pages wake;
 *                   each asks sl_share_asked what to give at the beginning of its turn
 *   oldest first:   a pool that evicts its own cached pages gets those of pools that are idle
 *
 * One lock, held for a few comparisons. Any thread; each share is used by its engine's thread alone
 * once that runs. Nothing is allocated.
 */
#ifndef SL_KV_BUDGET_H
#define SL_KV_BUDGET_H

#include "base/err.h"

#include <pthread.h>
#include <stdint.h>

#define SL_MAX_SHARES 16

struct sl_budget;

struct sl_share {
    struct sl_budget *budget;        /* NULL: not in use */
    uint64_t page_bytes, floor, own; /* own: never given, part of floor and held */
    /* under the budget's lock */
    uint64_t held;
    uint64_t wanted;  /* beyond its floor and what is left, for what waits or runs */
    uint64_t wished;  /* to keep more cached: it evicted so much of its own */
    uint64_t spare;   /* of what it holds, by nobody used now */
    bool idle;        /* nothing runs or waits: what it has cached is older than what others have */
    uint64_t n_given; /* pages, to others */
    void (*wake)(void *arg);
    void *wake_arg;
};

struct sl_budget {
    pthread_mutex_t lock;
    uint64_t total;
    uint64_t n_returns; /* how often something became possible that was refused before */
    struct sl_share shares[SL_MAX_SHARES];
};

void sl_budget_init(struct sl_budget *b, uint64_t total);
void sl_budget_deinit(struct sl_budget *b);

/* A pool of pages of page_bytes with floor_pages of its own, beside own bytes that are not of the
 * pool. SL_EINVAL: the floors do not fit. */
SL_MUST_CHECK int sl_share_open(struct sl_budget *b, uint64_t own, uint64_t page_bytes,
                                int32_t floor_pages, struct sl_share **out, struct sl_error *err);
void sl_share_close(struct sl_share *s); /* gives back what it holds; NULL is fine */
/* Called from other engines' threads when this one could spare pages, or may have what it wants.
 * NULL: nobody. */
void sl_share_set_wake(struct sl_share *s, void (*wake)(void *arg), void *arg);

/* Takes bytes of as many pages as there are, at most max; 0 if fewer than min. */
int32_t sl_share_take(struct sl_share *s, int32_t min, int32_t max);
void sl_share_give(struct sl_share *s, int32_t n_pages, bool to_others);
struct sl_share_state { /* pages, from now on */
    int32_t n_wanted;   /* besides, for what runs or waits */
    int32_t n_wished;   /* besides, not to evict cached ones: only idle pools give for that */
    int32_t n_spare;    /* of what the pool holds */
    bool idle;
};

void sl_share_tell(struct sl_share *s, const struct sl_share_state *state);
/* Pages that others want and this one is to give back, as far as it can spare them. */
int32_t sl_share_asked(struct sl_share *s);
/* Changes when a pool may succeed where it was refused. */
uint64_t sl_share_returns(struct sl_share *s);

struct sl_share_view { /* bytes */
    uint64_t total, floor, held, wanted, left;
    uint64_t n_given; /* pages */
};

void sl_share_look(struct sl_share *s, struct sl_share_view *out);
/* SL_EINTERNAL: the sums are wrong, or this one does not hold n_pages. */
SL_MUST_CHECK int sl_share_check(struct sl_share *s, int32_t n_pages, struct sl_error *err);

#endif
