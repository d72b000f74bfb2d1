/* SPDX-License-Identifier: MIT
 * conn.h - one HTTP connection: reading requests, writing replies, time limits, disconnects.
 *
 * A connection belongs to one HTTP thread and serves one request at a time; bytes of later ones
 * wait, bounded. Handlers only append to the output; sockets are written once per wake-up, by
 * sl_loop_flush, which is also the only place that destroys connections. So a handler may use its
 * connection until it returns, whatever happened to the peer.
 */
#ifndef SL_SERVER_CONN_H
#define SL_SERVER_CONN_H

#include "server/http/http_parse.h"
#include "server/http/json_in.h"
#include "server/loop.h"

#include <event2/event.h>
#include <event2/event_struct.h>

/* Unsent bytes above which a request is not read from (slow reader), and below which it is again.
 * Whoever does not take SL_OUT_LOW in write_timeout_ms is cut off. */
#define SL_OUT_HIGH (64u << 10)
#define SL_OUT_LOW  (16u << 10)

struct sl_call;
struct sl_route;
struct sl_task;
struct sl_tls_session;

struct sl_conn {
    struct sl_loop *loop;
    int fd;
    struct sl_tls_session *tls; /* NULL: bytes go as they are */
    struct event ev_read, ev_write, ev_timer;
    struct sl_http_parser *parser; /* NULL while idle: an idle connection stays small */
    struct sl_buf pending;         /* bytes of requests after the current one */
    struct sl_buf out;
    char *ignored; /* names of fields that the current request had in vain; NULL: none */
    size_t out_sent;
    const struct sl_route *route; /* of the current request, NULL = unknown path */
    int key;                      /* of the current request: sl_route_key */
    struct sl_call *call;         /* generation in progress */
    struct sl_task *task;         /* a large body is being prepared */
    bool pulls;                   /* a download is under way for it */
    int file;                     /* the reply's body that is not in out yet; -1: none */
    uint64_t file_at, file_bytes; /* how far it is, and how far it goes */
    struct sl_conn *prev, *next, *next_dirty;
    uint64_t t_start_ns, armed_ns;                /* armed: the timer fires */
    uint64_t read_deadline_ns, write_deadline_ns; /* 0 = none */
    uint64_t body_deadline_ns; /* moves with the bytes that come: a body has a least speed */
    uint64_t ping_deadline_ns, call_deadline_ns, linger_deadline_ns, probe_deadline_ns;
    uint64_t held_bytes; /* its part of the server's held_bytes */
    uint64_t reply_bytes, request_bytes;
    size_t chunk_at, linger_bytes; /* chunk_at: where the open HTTP chunk begins in out */
    size_t task_bytes;             /* of the body that task has taken */
    size_t taken_bytes;            /* by the client since write_deadline_ns was set */
    int status;
    bool busy;      /* a request was handed over and its reply is not complete */
    bool refused;   /* the reply is decided, the body is only being skipped */
    bool over_rate; /* refused because its key has no requests left in this minute */
    bool was_full;  /* refused because too many requests waited when its headers came */
    bool streaming; /* the reply's headers are out, chunks follow */
    bool chunk_open;
    bool close_after; /* no further request on this connection */
    bool
        background; /* requests of batches: they come last, and the limits of keys are not theirs */
    bool read_paused, peer_closed, lingering, dead, is_dirty;
};

enum sl_conn_kind {
    SL_CONN_CLIENT,
    SL_CONN_REFUSED,   /* one too many: it is told so, and closed */
    SL_CONN_BACKGROUND /* of the server's own batches */
};
/* Takes the descriptor, which the acceptor has counted already, also on failure. */
void sl_conn_create(struct sl_loop *loop, int fd, enum sl_conn_kind kind);
void sl_conn_destroy(struct sl_conn *c);
/* Writes what is unsent; called by sl_loop_flush. false: the connection is over, destroy it. */
bool sl_conn_flush(struct sl_conn *c);
void sl_conn_begin_drain(struct sl_conn *c); /* closes it as soon as no request is in progress */

/* For the header of the reply; "": none. */
void sl_conn_set_ignored(struct sl_conn *c, const char *names);
/* The rest of the reply is a file, read from its beginning as the client takes it; closes it. */
void sl_conn_send_file(struct sl_conn *c, int fd, uint64_t n_bytes);
/* The reply lies complete in out: counts it and makes the connection ready for the next request. */
void sl_conn_reply_done(struct sl_conn *c);
/* Where the next part of a streamed reply is appended (sl_reply_stream came first). */
struct sl_buf *sl_conn_stream_buf(struct sl_conn *c);
void sl_conn_stream_end(struct sl_conn *c);
size_t sl_conn_unsent(const struct sl_conn *c);
/* Brings the server's count of held memory up to date; true if there is too much of it and c holds
 * some. */
bool sl_conn_over_memory(struct sl_conn *c);

#endif
