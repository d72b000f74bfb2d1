/* SPDX-License-Identifier: MIT
 * nixl_impl.h - what the parts of the agent share. The lock guards states, lists and counters; it
 * is never held during a call of the library or of the store.
 */
#ifndef SL_TIER_NIXL_IMPL_H
#define SL_TIER_NIXL_IMPL_H

#include "tier/nixl.h"
#include "tier/nixl_lib.h"

#include <pthread.h>
#include <stdatomic.h>

struct sl_nixl_remote {
    struct sl_hash128 digest; /* of metadata */
    uint8_t *metadata;
    size_t n_metadata;
    int32_t n_users;        /* connections */
    int32_t n_reads;        /* that are not recycled yet */
    bool fails;             /* its connection is to go, when no read is under way over it */
    bool drop;              /* and so is this */
    uint64_t rest_until_ns; /* nothing is read from it before */
    uint64_t met_ns;        /* the last time */
    uint64_t heard_ns;      /* a read ended well */
    /* the agent's thread only */
    char *name;       /* NULL: its metadata is not loaded */
    int32_t n_posted; /* reads under way */
};

struct sl_nixl_read {
    struct sl_nixl_read *next; /* in the list that it stands in */
    struct sl_nixl_remote *remote;
    uint64_t addr, begun_ns;
    uint8_t *place;
    size_t n_bytes;
    int bell;
    enum sl_nixl_state state;
    bool given_up;   /* by whoever began it */
    bool late;       /* counted as such */
    sl_nixl_obj req; /* the agent's thread only; NULL: the library has not seen it */
};

struct sl_nixl {
    struct sl_nixl_config cfg;
    const struct sl_nixl_lib *lib;
    uint8_t *memory; /* [n_memory] of the store */
    size_t n_memory;
    pthread_t thread;
    bool started;
    atomic_bool ready;
    pthread_mutex_t lock;
    pthread_cond_t more, gone;
    bool closing, ended;
    int32_t n_conns, n_offered; /* of those who have pages */
    uint64_t serve_until_ns;    /* somebody may still read here */
    struct sl_nixl_stats stats;
    struct sl_nixl_read *pool; /* [SL_MAX_NIXL_READS] */
    struct sl_nixl_read *free, *queue, *last;
    struct sl_nixl_read *kept; /* over by an error and given up: until their connection is gone */
    struct sl_nixl_remote *remotes[SL_MAX_NIXL_REMOTES];
    /* the agent's thread only */
    struct sl_nixl_read *posted;
    sl_nixl_obj agent, backend, args, registered, notifs;
    void *metadata; /* the library's; constant once ready */
    size_t n_metadata;
    char name[48];
};

/* nixl_read.c, the agent's thread. */
void sl_nixl_post(struct sl_nixl *n, struct sl_nixl_read *queue);
void sl_nixl_progress(struct sl_nixl *n);
/* Connections that failed or are not used any more. True: some wait for reads to end. */
bool sl_nixl_tend(struct sl_nixl *n);
/* The library holds nothing any more: all places go back to the store. */
void sl_nixl_drop_all(struct sl_nixl *n);

#endif
