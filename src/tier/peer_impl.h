/* SPDX-License-Identifier: MIT
 * peer_impl.h - what the parts of the client of page services share.
 *
 * A job's lock guards its plan. A connection belongs to one thread, a job to its users (the list
 * of open jobs, connections) and whoever began it.
 */
#ifndef SL_TIER_PEER_IMPL_H
#define SL_TIER_PEER_IMPL_H

#include "tier/peer.h"

#include <pthread.h>
#include <stdatomic.h>

enum sl_peer_phase { SL_PHASE_FULL, SL_PHASE_STATE, SL_PHASE_WINDOW, SL_PHASE_OVER };

struct sl_peer_job {
    struct sl_peer *peer; /* until it is over */
    struct sl_peer_job *next;
    atomic_int refs;
    atomic_bool over, cancelled;
    char host[SL_MAX_PEER_HOST + 1];
    int port;
    struct sl_lease_id id;
    int32_t n_blocks;
    struct sl_hash128 *names; /* [n_blocks] */
    int32_t *tokens;          /* [n_blocks, block_size] */
    uint64_t begun_ns, deadline_ns;
    /* under lock */
    pthread_mutex_t lock;
    enum sl_peer_phase phase;
    int32_t n;            /* blocks that can still be had */
    int32_t block, group; /* to be asked for next */
    int32_t n_out;        /* asked for and not answered */
    int32_t n_conns;
    bool missed; /* a state of this block */
    bool refused;
};

struct sl_peer_got { /* a page that was asked for */
    int32_t block, group;
    uint8_t *room; /* in the store */
    /* of an answer */
    bool gone;                 /* it will not come */
    struct sl_nixl_read *read; /* NULL: it comes by the stream */
    struct sl_hash128 digest;
};

struct sl_peer_conn {
    int fd;
    int state; /* of peer_conn.c */
    struct sl_peer_job *job;
    bool first; /* of its job */
    struct sl_peer_hello hello;
    size_t sent, got; /* of what is being sent, and received */
    union {
        struct sl_peer_welcome welcome;
        struct sl_peer_page page;
    } in;
    bool in_page; /* head is there, bytes are coming */
    struct sl_peer_got asked[SL_MAX_PEER_WINDOW];
    int32_t first_asked, n_asked;
    int32_t n_heads; /* of them, from the first on, that are gone or being read by NIXL */
    struct sl_peer_got again[SL_MAX_PEER_WINDOW]; /* to be asked for by the stream */
    int32_t n_again;
    struct sl_nixl_remote *remote; /* the peer's memory; NULL: pages come by the stream */
    uint8_t *metadata;             /* [n_metadata] of it, while that comes */
    int bell;                      /* of the thread */
    bool read[SL_MAX_PEER_WINDOW]; /* to be told: which of its pages were read */
    int32_t n_read;
    struct sl_peer_ask out[2 * SL_MAX_PEER_WINDOW];
    size_t n_out; /* bytes of asks to be sent, of which `sent` are */
    uint64_t heard_ns;
    bool rests; /* nothing to ask for until another connection is answered */
};

struct sl_peer_thread {
    struct sl_peer *peer;
    pthread_t thread;
    int bell;
    struct sl_peer_conn *conns[SL_MAX_PEER_CONNS];
    struct sl_peer_conn *incoming[SL_MAX_PEER_CONNS]; /* under the peer's lock */
    int n_incoming, n_conns;                          /* likewise; n_conns counts both */
};

struct sl_peer {
    struct sl_peer_config cfg;
    pthread_mutex_t lock;
    pthread_cond_t to_dial;
    struct sl_peer_job *dials, *last_dial; /* wait for the thread that looks up names */
    int32_t n_jobs;
    struct sl_peer_stats stats;
    atomic_bool closing, ending; /* of the thread that dials; of all */
    pthread_t dialer;
    bool dials_started;
    struct sl_peer_thread threads[SL_MAX_PEER_THREADS];
    int n_threads, n_started, next_thread;
    uint64_t told_ns; /* when the log last said that something is wrong */
    unsigned told;    /* bits of enum sl_peer_why */
};

/* peer_job.c. What is to be asked for next: 1 it is in *out, 0 nothing now, -1 nothing more. */
int sl_peer_next(struct sl_peer_job *j, struct sl_peer_got *out);
/* A page has come, or will not. */
void sl_peer_answered(struct sl_peer_job *j, const struct sl_peer_got *got, bool here);
/* The room of a page was given up: another one for it, or NULL. */
uint8_t *sl_peer_another_room(struct sl_peer_job *j, const struct sl_peer_got *got);
void sl_peer_job_over(struct sl_peer_job *j); /* once */
void sl_peer_welcomed(struct sl_peer_job *j, int32_t n_blocks);
void sl_peer_conn_gone(struct sl_peer_job *j); /* the last one takes the job with it */

/* peer_conn.c. False: the connection is over. */
bool sl_peer_conn_go(struct sl_peer *p, struct sl_peer_conn *c, uint64_t now);
void sl_peer_conn_close(struct sl_peer *p, struct sl_peer_conn *c);
short sl_peer_conn_events(const struct sl_peer_conn *c);

/* Receives what is still missing of n bytes. 1: all of it is there; 0; -1: the connection is over.
 */
int sl_peer_conn_take(struct sl_peer_conn *c, void *to, size_t n, uint64_t now);

/* peer_pull.c: asks for pages and brings them into the store. 0: it waits, -1: the connection is
 * over. */
int sl_peer_pull(struct sl_peer *p, struct sl_peer_conn *c, uint64_t now);
void sl_peer_lose_asked(struct sl_peer *p, struct sl_peer_conn *c); /* what is under way */

/* A line in the log, at most one in ten seconds. */
void sl_peer_tell(struct sl_peer *p, const struct sl_peer_job *j, const char *what);
/* Why pages come by the stream and not by NIXL: once for each reason. */
enum sl_peer_why { SL_WHY_NO_NIXL, SL_WHY_TOO_MANY, SL_WHY_FAILED };
void sl_peer_tell_stream(struct sl_peer *p, const struct sl_peer_job *j, enum sl_peer_why why);

#endif
