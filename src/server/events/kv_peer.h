/* SPDX-License-Identifier: MIT
 * kv_peer.h - what the publisher of KV events serves with: the batches that are kept, sockets by
 * ZeroMQ's names, and peers. All of it belongs to the publisher's thread.
 */
#ifndef SL_SERVER_KV_PEER_H
#define SL_SERVER_KV_PEER_H

#include "base/err.h"
#include "server/events/zmtp.h"

#include <sys/socket.h>

/* ---- batches, numbered by place; their seq begins anew when all are cleared */

struct sl_kv_kept_batch {
    uint64_t seq;
    char *data;
    size_t n_bytes;
};

struct sl_kv_kept {
    struct sl_kv_kept_batch *ring; /* [cap] */
    size_t cap;
    uint64_t first, end; /* places */
    uint64_t n_bytes, max_bytes;
};

SL_MUST_CHECK int sl_kv_kept_init(struct sl_kv_kept *k, size_t cap, uint64_t max_bytes,
                                  struct sl_error *err);
void sl_kv_kept_deinit(struct sl_kv_kept *k);
void sl_kv_kept_clear(struct sl_kv_kept *k);
bool sl_kv_kept_is_full(const struct sl_kv_kept *k); /* the next one makes the oldest go */
/* Takes the buffer's memory; a buffer that failed is not kept. */
void sl_kv_kept_push(struct sl_kv_kept *k, uint64_t seq, struct sl_buf *b);

/* ---- sockets */

struct sl_kv_socket {
    const char *type; /* "PUB", "ROUTER" */
    bool listens;     /* else it connects, as ZeroMQ's name says: no *, no :: */
    int fd;           /* that listens, or -1 */
    char name[300];   /* with the port that was free */
    char host[256], port[16];
    unsigned n_attempts;
    const char *path; /* inside name: of a UNIX socket, which is ours to remove; or NULL */
};

/* tcp://HOST:PORT, a star for any of either, or ipc://PATH. A ROUTER always listens. */
SL_MUST_CHECK int sl_kv_socket_open(struct sl_kv_socket *s, const char *endpoint, const char *type,
                                    struct sl_error *err);
void sl_kv_socket_close(struct sl_kv_socket *s);
int sl_kv_socket_accept(const struct sl_kv_socket *s); /* -1: nobody waits */
/* -1: not now; else under way. Each call takes the next of the name's addresses. */
int sl_kv_socket_connect(struct sl_kv_socket *s);

/* ---- peers */

struct sl_kv_peer {
    const struct sl_kv_socket *socket;
    int fd;
    struct sl_zmtp in;
    struct sl_buf out;
    size_t out_sent;
    bool greeted, ready;  /* their greeting has come; their READY has */
    uint64_t deadline_ns; /* to be ready by */
    int32_t n_matching;   /* of a subscriber: subscriptions that match the topic */
    uint64_t at;          /* the next batch's place */
    uint64_t n_dropped;   /* since somebody looked */
    /* of a reader of replays */
    int n_frames;       /* of the request that is coming */
    bool request_bad;   /* which is none */
    uint64_t start_seq; /* it asks for */
    bool replaying;
    uint64_t replay_end; /* place */
    uint64_t n_replays;
};

/* Takes fd on success. NULL: out of memory. */
struct sl_kv_peer *sl_kv_peer_create(int fd, const struct sl_kv_socket *s,
                                     const struct sl_kv_kept *kept, uint64_t now_ns);
void sl_kv_peer_destroy(struct sl_kv_peer *p);
/* Reads, answers, and sends what it can of the batches. False: the peer is gone or does not speak
 * the protocol. */
bool sl_kv_peer_serve(struct sl_kv_peer *p, const struct sl_kv_kept *kept, const char *topic,
                      int64_t hwm, bool readable, uint64_t now_ns);
static inline bool sl_kv_peer_unsent(const struct sl_kv_peer *p)
{
    return p->out.n_bytes > p->out_sent;
}

#endif
