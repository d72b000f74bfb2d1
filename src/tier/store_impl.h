/* SPDX-License-Identifier: MIT
 * store_impl.h - what the parts of the store share. One mutex guards the tables, the queues and the
 * counters; it is held for such work only, never while bytes are copied, hashed, read or written.
 */
#ifndef SL_TIER_STORE_IMPL_H
#define SL_TIER_STORE_IMPL_H

#include "tier/disk.h"
#include "tier/host.h"
#include "tier/remote.h"

#include <pthread.h>

/* What is to happen to a slot of host memory, and whom it is for. */
struct sl_page_job {
    int32_t next;                 /* in the queue that it stands in */
    int32_t disk_slot;            /* that it is read from; held until then */
    struct sl_store_get *waiters; /* pending ones, linked by `inside`; each holds the slot */
    int32_t remote_next;          /* in the queue of the remote tier that it stands in */
    uint32_t n_seen;              /* since it is in this slot */
    bool sent;                    /* the remote tier has it, or is about to */
};

struct sl_page_queue { /* of slots of host memory, each held: a slot stands in one at most */
    int32_t first, last;
};

/* Threads that read and write files. */
struct sl_store_io {
    pthread_cond_t to_read, to_write; /* there is something, or the end */
    struct sl_page_queue reads, writes;
    uint64_t unwritten_bytes, most_unwritten;
    bool closing;
    pthread_t threads[1 + SL_TIER_READERS];
    int n_threads;
};

/* The thread that makes host memory ready, in pieces of whole chunks, before pages lie there: a
 * first touch costs as much as copying, and memory has to be pinned for a device. */
struct sl_store_touch {
    pthread_cond_t more; /* little is ready that nobody has, or the end */
    pthread_t thread;
    int32_t piece; /* chunks */
    bool started, closing;
    bool pins;        /* memory is pinned */
    int32_t n_pinned; /* pieces */
};

struct sl_store {
    struct sl_store_config cfg;
    uint64_t seed;
    pthread_mutex_t lock;
    struct sl_host host;
    struct sl_page_job *jobs; /* [slots of the host] */
    bool has_disk;
    struct sl_disk disk;
    struct sl_remote *remote; /* NULL: there is none */
    struct sl_store_io io;
    struct sl_store_touch touch;
    struct sl_store_stats stats[SL_N_TIERS];
    struct sl_news news[2]; /* of host memory and of the disk */
};

/* Tells who waits for an OPEN slot that its page is here, or will not come; true: somebody did.
 * Under the lock; who calls wakes the engine when it has given the lock back. */
bool sl_store_tell(struct sl_store *s, int32_t slot, bool here, enum sl_tier_kind from);
void sl_store_wake(struct sl_store *s);

/* store_events.c. */
SL_MUST_CHECK int sl_store_events_open(struct sl_store *s, struct sl_error *err);
void sl_store_events_close(struct sl_store *s);

static inline size_t sl_store_page_bytes(const struct sl_store *s, int32_t slot)
{
    return s->cfg.page_bytes[sl_slot_group(&s->host.slots, slot)];
}

/* touch.c. Makes the first piece ready and starts the thread, if there are more. */
SL_MUST_CHECK int sl_store_touch_start(struct sl_store *s, struct sl_error *err);
void sl_store_touch_stop(struct sl_store *s);
void sl_store_unpin(struct sl_store *s);
void sl_store_touch_more(struct sl_store *s); /* under the lock: a slot was taken */

/* io.c. Starts and ends the threads; the end comes when everything is written. */
SL_MUST_CHECK int sl_store_io_start(struct sl_store *s, struct sl_error *err);
void sl_store_io_stop(struct sl_store *s);
/* Under the lock. The page of a slot is to be written, unless too much waits to be. */
void sl_store_write(struct sl_store *s, int32_t slot);
/* The page of an OPEN slot that somebody waits for is to be read. */
void sl_store_read(struct sl_store *s, int32_t slot, int32_t disk_slot);

#endif
