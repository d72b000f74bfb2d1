/* SPDX-License-Identifier: MIT
 * remote.h - the remote tier: pages in a store that other servers use too.
 *
 * A kind of remote (redis.c) is a table of functions that block until a deadline. Threads of the
 * store call them, each with a connection of its own: one asks what is there and keeps the
 * connection to the remote alive, some read pages and some write them. The lock of the store guards
 * everything here, and is never held while such a function runs.
 *
 * A remote is believed in nothing. A value is a head of 64 bytes and a page; the head must be, byte
 * for byte, what this store would write for such a page, and has a digest over root, group, name
 * and bytes. Anything else is a miss, counted as corrupt, and the value is removed there.
 *
 * After a failure the remote rests: nothing is asked or written, so that requests do not wait for
 * it again and again. The rest begins with a second and doubles up to 30; a thread then connects
 * again, with no request waiting.
 */
#ifndef SL_TIER_REMOTE_H
#define SL_TIER_REMOTE_H

#include "tier/slab.h"
#include "tier/store.h"

#include <pthread.h>

#define SL_REMOTE_HEAD    64
#define SL_REMOTE_READERS 4 /* connections: one reaches about 1 GB/s */
#define SL_REMOTE_WRITERS 2
#define SL_REMOTE_BATCH   16 /* pages read or written at a time by a connection */
#define SL_REMOTE_PROBES  16 /* under way at a time */
#define SL_REMOTE_KEY     96 /* bytes of a key, with its end */

enum sl_remote_result {
    SL_REMOTE_NONE,    /* there is no such value */
    SL_REMOTE_DONE,    /* read or written */
    SL_REMOTE_BAD,     /* a value of another length or type */
    SL_REMOTE_REFUSED, /* not written: no room, or not now */
};

struct sl_remote_page { /* to be read into, or written from */
    struct sl_store_key key;
    uint8_t head[SL_REMOTE_HEAD];
    uint8_t *bytes;
    size_t n_bytes;
    enum sl_remote_result result;
};

/* Functions of a connection. One thread uses it. Deadlines are of sl_now_ns. A negative code is a
 * failure of the remote: a lost connection, an answer that is none, the deadline (SL_ETIMEOUT).
 * What the error says never has the password in it. */
struct sl_remote_kind {
    const char *name;
    int (*create)(const struct sl_store_config *cfg, void **conn, struct sl_error *err);
    void (*destroy)(void *conn); /* NULL is allowed */
    int (*open)(void *conn, uint64_t deadline, struct sl_error *err);
    void (*shut)(void *conn); /* open or not */
    /* All stores of a root are to have the same secret. Leaves *seed there if there is none, else
     * sets it to the one that is there. */
    int (*agree)(void *conn, uint64_t *seed, uint64_t deadline, struct sl_error *err);
    /* found[i]: is there a value of this key? Keys of which it is true already are not asked for.
     * May stop behind a missing key of group `ends`. */
    int (*probe)(void *conn, const struct sl_store_key *keys, int32_t n, int32_t ends, bool *found,
                 uint64_t deadline, struct sl_error *err);
    int (*get)(void *conn, struct sl_remote_page *pages, int32_t n, uint64_t deadline,
               struct sl_error *err);
    int (*put)(void *conn, struct sl_remote_page *pages, int32_t n, uint64_t deadline,
               struct sl_error *err);
    int (*forget)(void *conn, const struct sl_store_key *key, uint64_t deadline,
                  struct sl_error *err);
};

/* A question, in memory of the store's. */
struct sl_store_probe {
    struct sl_store_probe *next; /* free ones, or those that wait */
    _Atomic int32_t state;       /* of remote.c */
    bool given_back;             /* by who asked, while it was under way */
    int32_t n, ends;
    uint64_t deadline;
    struct sl_store_key *keys; /* [SL_MAX_TIER_PROBE] */
    bool *found;               /* [SL_MAX_TIER_PROBE] */
};

struct sl_remote_thread {
    struct sl_store *store;
    pthread_t thread;
    void *conn;
    bool open;
    bool used; /* it has answered since it was opened */
    struct sl_remote_page pages[SL_REMOTE_BATCH];
    int32_t slots[SL_REMOTE_BATCH];
};

struct sl_remote_queue { /* of slots of host memory, each held */
    int32_t first, last, n;
};

enum {
    SL_REMOTE_KEEPER, /* the thread that asks and connects */
    SL_REMOTE_READER,
    SL_REMOTE_WRITER = SL_REMOTE_READER + SL_REMOTE_READERS,
    SL_REMOTE_THREADS = SL_REMOTE_WRITER + SL_REMOTE_WRITERS
};

struct sl_remote {
    const struct sl_remote_kind *kind;
    struct sl_slab_kind pages[SL_MAX_KV_GROUPS]; /* root and sizes, for digests */
    pthread_cond_t to_ask, to_get, to_put;
    struct sl_remote_queue gets, puts;
    uint64_t unsent_bytes, most_unsent;
    struct sl_store_probe probes[SL_REMOTE_PROBES], *free_probes, *first_probe, *last_probe;
    bool closing, up;
    uint64_t rest_ns, rest_until, put_rest_until, close_by;
    uint64_t quiet_until; /* of the log */
    /* How fast pages come: bytes over the time in which some were asked for. */
    uint64_t got_bytes, busy_ns, busy_since, measured_at;
    int32_t n_busy;
    struct sl_remote_thread threads[SL_REMOTE_THREADS];
    int n_threads;
};

/* remote_find.c. The kind that a URL names; SL_EINVAL, SL_EUNSUPPORTED: the message does not quote
 * the URL, which may have a password in it. */
SL_MUST_CHECK int sl_remote_find(const char *url, const struct sl_remote_kind **out,
                                 struct sl_error *err);

/* Reaches the remote once, which sets the store's secret, and starts the threads. A remote that is
 * not there is not an error. */
SL_MUST_CHECK int sl_remote_open(struct sl_store *s, const struct sl_store_config *cfg,
                                 struct sl_error *err);
/* Writes what is still to be written, for 5 seconds at most. */
void sl_remote_close(struct sl_store *s);

/* ---- under the lock ---- */

/* May pages be asked for? */
bool sl_remote_serves(const struct sl_store *s);
/* The page of an OPEN slot that somebody waits for is to be read. */
void sl_remote_read(struct sl_store *s, int32_t slot);
/* The page of a READY slot was stored, or seen again: it is written when it was seen often enough.
 */
void sl_remote_saw(struct sl_store *s, int32_t slot);

/* ---- remote_work.c, by the threads ---- */

/* Connects if need be, and looks whether the secret still is the store's (SL_EAUTH: it is not).
 * Without the lock. */
SL_MUST_CHECK int sl_remote_connect(struct sl_store *s, struct sl_remote_thread *t,
                                    struct sl_error *err);
/* Under the lock, which they give up while they wait. */
SL_MUST_CHECK bool sl_remote_do_probe(struct sl_store *s, struct sl_remote_thread *t,
                                      struct sl_store_probe *p);
void sl_remote_do_get(struct sl_store *s, struct sl_remote_thread *t);
void sl_remote_do_put(struct sl_store *s, struct sl_remote_thread *t);
/* Under the lock. It rests: what waits for it gets nothing. True: somebody waited, and is to be
 * woken when the lock was given back. */
bool sl_remote_fail(struct sl_store *s, const struct sl_error *why);
/* What waits gets no answer, no page, is not written. True: somebody waited. */
bool sl_remote_drop_probes(struct sl_store *s);
bool sl_remote_drop_gets(struct sl_store *s);
void sl_remote_drop_puts(struct sl_store *s);

/* ---- what a value is ---- */

void sl_remote_put_head(uint8_t out[SL_REMOTE_HEAD], const struct sl_slab_kind *kind,
                        const struct sl_hash128 *name, const void *page);
bool sl_remote_head_right(const uint8_t in[SL_REMOTE_HEAD], const struct sl_slab_kind *kind,
                          const struct sl_hash128 *name, const void *page);
/* "sluice:1:ROOT:GROUP:NAME", numbers in hex. Returns its length. */
size_t sl_remote_key(char out[SL_REMOTE_KEY], const struct sl_hash128 *root,
                     const struct sl_store_key *key);

#endif
