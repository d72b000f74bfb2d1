/* SPDX-License-Identifier: MIT
 * store_impl.h - what the parts of the store share. One mutex guards the tables, the queues and the
 * counters; it is held for such work only, never while bytes are copied, hashed, read or written.
 */
#ifndef SL_TIER_STORE_IMPL_H
#define SL_TIER_STORE_IMPL_H

#include "tier/host.h"

#include <pthread.h>

/* What is to happen to a slot of host memory, or whom it is for. */
struct sl_page_job {
    struct sl_store_get *waiters; /* pending ones, linked by `inside`; each holds the slot */
};

struct sl_store {
    struct sl_store_config cfg;
    pthread_mutex_t lock;
    struct sl_host host;
    struct sl_page_job *jobs; /* [slots of the host] */
    struct sl_store_stats stats[SL_N_TIERS];
};

/* Tells who waits for an OPEN slot that its page is here, or will not come; true: somebody did.
 * Under the lock; who calls wakes the engine when it has given the lock back. */
bool sl_store_tell(struct sl_store *s, int32_t slot, bool here, enum sl_tier_kind from);
void sl_store_wake(struct sl_store *s);

#endif
