/* SPDX-License-Identifier: MIT
 * loop.h - one HTTP thread: an event base, its connections, its outbox, its counters.
 *
 * Everything in struct sl_loop belongs to its thread except `inbox` (accepted sockets handed over
 * by the first thread) and the atomics. struct sl_server is shared and constant while serving,
 * except its atomics.
 */
#ifndef SL_SERVER_LOOP_H
#define SL_SERVER_LOOP_H

#include "base/queue.h"
#include "server/http/http_stats.h"
#include "server/served.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdatomic.h>

struct sl_conn;
struct sl_call;
struct sl_http_parser;
struct sl_loop;
struct sl_workers;
struct sl_response_store;
struct sl_batches;
struct sl_exporter;
struct sl_puller;
struct sl_tls;

enum sl_drain { SL_SERVING, SL_DRAINING, SL_ABORTING };

struct sl_server {
    const struct sl_server_config *cfg;
    struct sl_served *models; /* [n_models] at least one */
    int32_t n_models;
    struct sl_replicas *replicas; /* NULL: models are different ones, or there is one */
    int64_t t_created_s;
    struct sl_loop *loops;
    struct sl_workers *workers; /* for what takes long */
    struct sl_response_store *responses;
    struct sl_file_store *files;  /* NULL: none are kept */
    struct sl_batches *batches;   /* NULL likewise */
    struct sl_exporter *exporter; /* of traces; NULL: none */
    struct sl_puller *puller;     /* NULL: clients download nothing */
    struct sl_tls *tls;           /* NULL: connections are not encrypted */
    struct sl_history *history;   /* of the load, for the page; NULL: without it */
    int n_loops;
    int max_conns;        /* as configured, or what descriptors allow */
    atomic_int drain;     /* enum sl_drain */
    atomic_int n_conns;   /* of clients, over all threads */
    atomic_int n_running; /* threads whose loop has not ended */
    _Atomic uint64_t next_id, n_refused_conns;
    int request_log_fd; /* -1: none */
    atomic_bool request_log_failed;
    _Atomic uint64_t held_bytes; /* by large bodies and unsent replies, over all connections */
};

struct sl_loop {
    struct sl_server *server;
    struct event_base *base;
    struct sl_outbox *outbox;
    struct event *ev_outbox, *ev_inbox;
    struct sl_queue inbox;
    struct sl_conn *conns, *dirty;
    /* Written by this thread alone, with the lock; other threads read with the lock: ids, models,
     * and what requests say of themselves. */
    struct sl_call *calls;
    pthread_mutex_t calls_lock;
    struct sl_http_parser *spare_parser; /* kept for the next request */
    char *read_buf;
    char *token_buf; /* room for the text of one token */
    size_t n_token_buf;
    uint64_t now_ns; /* of the current wake-up */
    uint64_t id_seed[2];
    atomic_int n_conns; /* those of the server's own batches too */
    int n_calls;
    int drain_seen; /* enum sl_drain that this thread has acted on */
    int rc;
    pthread_t thread;
    struct sl_http_stats stats;
};

#define SL_READ_BUF_BYTES (64u << 10)

SL_MUST_CHECK int sl_loop_init(struct sl_loop *loop, struct sl_server *server,
                               struct sl_error *err);
void sl_loop_deinit(struct sl_loop *loop);
void sl_loop_run(struct sl_loop *loop); /* returns when drained or aborted */
/* A connection for the server's own batches, from any thread: its other end. -1: none can be had.
 */
int sl_loop_dial(struct sl_server *server);
/* An accepted descriptor for another thread's loop, counted already. False: it has no room. */
SL_MUST_CHECK bool sl_loop_hand_over(struct sl_loop *loop, int fd, bool background);
/* The loop with the fewest connections. */
struct sl_loop *sl_loop_least_loaded(struct sl_server *server);
/* Every event callback begins with enter and ends with flush. */
void sl_loop_enter(struct sl_loop *loop);
void sl_loop_flush(struct sl_loop *loop);
void sl_loop_mark(struct sl_loop *loop, struct sl_conn *c); /* c has output or ended */
/* From any thread: act on server->drain. */
void sl_loop_wake(struct sl_loop *loop);
/* A connection comes or is gone. Those of the server's own batches take no client's place. */
void sl_loop_count(struct sl_loop *loop, int change, bool background);
struct sl_http_parser *sl_loop_parser(struct sl_loop *loop); /* NULL: out of memory */
void sl_loop_put_parser(struct sl_loop *loop, struct sl_http_parser *p);

#endif
