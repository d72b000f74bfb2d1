/* SPDX-License-Identifier: MIT
 * serve_impl.h - what the parts of the page service share. One mutex guards leases and counters; it
 * is held for such work only, and the store's is taken within it.
 */
#ifndef SL_TIER_SERVE_IMPL_H
#define SL_TIER_SERVE_IMPL_H

#include "tier/serve.h"

#include <pthread.h>
#include <stdatomic.h>

#define SL_LEASE_BUCKETS 1024

struct sl_lease_page {
    struct sl_store_get get;
    bool asked;        /* get has begun */
    bool held;         /* counted among the bytes that leases hold */
    int32_t n_readers; /* connections that send it */
    int32_t n_tries;
};

struct sl_lease {
    struct sl_serve *serve; /* while it has users */
    struct sl_lease *next;  /* in its bucket */
    struct sl_lease_id id;
    atomic_int refs;
    int32_t n_users; /* the table, and connections; the last one ends all gets */
    int32_t n_blocks;
    bool over, failed, listed, read;
    uint64_t settled_at, expires_ns;
    int32_t at[SL_MAX_KV_GROUPS]; /* the block to be held next */
    struct sl_hash128 *names;     /* [n_blocks] */
    int32_t *tokens;              /* [n_blocks, block_size] */
    struct sl_lease_page *pages;  /* [n_blocks, n_groups] */
};

struct sl_serve_conn {
    int fd;
    int state;              /* of serve_conn.c */
    struct sl_lease *lease; /* a user */
    int32_t n_same;         /* blocks of it whose tokens were shown: only those are served */
    struct sl_peer_hello hello;
    int32_t *tokens;
    size_t got; /* bytes of hello, then of tokens, then of the ask that comes */
    struct sl_peer_ask ask, asks[SL_MAX_PEER_WINDOW];
    int32_t first_ask, n_asks;
    struct sl_peer_page head; /* or a welcome */
    size_t n_head, sent;
    const uint8_t *page; /* [n_page] behind it, or metadata */
    size_t n_page;
    int32_t page_idx;                    /* of the lease; -1: none is being sent */
    bool by_nixl;                        /* it was told how to read here */
    int32_t granted[SL_MAX_PEER_WINDOW]; /* pages of the lease that it reads, a ring */
    int32_t first_granted, n_granted;
    bool waits; /* for a page, or its lease */
    uint64_t deadline_ns, wait_until_ns, beat_ns;
};

struct sl_serve_thread {
    struct sl_serve *serve;
    pthread_t thread;
    int bell;
    atomic_int n_conns;
    struct sl_serve_conn *conns[SL_MAX_PEER_CONNS];
};

struct sl_serve {
    struct sl_serve_config cfg;
    int listen_fd, port;
    pthread_mutex_t lock;
    struct sl_lease *leases[SL_LEASE_BUCKETS];
    int32_t n_leases;
    uint64_t held_bytes;
    struct sl_serve_stats stats;
    _Atomic uint64_t n_stored;
    atomic_bool closing;
    struct sl_serve_thread threads[SL_MAX_PEER_THREADS];
    int n_threads, n_started;
};

/* serve_lease.c, under the lock. */
struct sl_lease *sl_lease_find(struct sl_serve *s, const struct sl_lease_id *id);
void sl_lease_leave(struct sl_lease *l); /* a user goes */
/* Is the page here (SL_STORE_HERE), will it not come (SL_STORE_MISS), or is it waited for? */
enum sl_store_state sl_lease_look(struct sl_lease *l, int32_t block, int32_t group);
void sl_lease_read(struct sl_lease *l, int32_t idx); /* was sent, or will not be */
/* Holds pages that have come, ends what has expired. True: it is to be called again soon. */
bool sl_leases_tend(struct sl_serve *s, uint64_t now);
void sl_leases_drop(struct sl_serve *s); /* all of them */

/* serve_conn.c. False: the connection is over. */
bool sl_serve_conn_go(struct sl_serve *s, struct sl_serve_conn *c, uint64_t now);
bool sl_serve_conn_reads(const struct sl_serve_conn *c); /* is there something it would read? */
void sl_serve_conn_close(struct sl_serve *s, struct sl_serve_conn *c);

#endif
