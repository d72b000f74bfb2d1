/* SPDX-License-Identifier: MIT
 * link.h - how ranks in processes of their own exchange data: the steps that rank 0 gives out, and
 * what they gather in the middle of a step.
 *
 * Two kinds, a file each: over TCP, where rank 0 has a connection with every other one, and in
 * memory that processes of one host share. One thread of a process uses a link, and
 * sl_link_lose is for any. No call allocates, and none waits longer than the link's patience.
 */
#ifndef SL_DIST_LINK_H
#define SL_DIST_LINK_H

#include "base/err.h"
#include "base/limits.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct sl_link;

/* Asked while a link waits for another rank, or for the next step (SL_LINK_IDLE): false: it waits
 * no longer. NULL: it waits as long as it takes. */
enum { SL_LINK_IDLE = -1 };
typedef bool (*sl_link_patience_fn)(void *arg, int rank, uint64_t waited_ns);

struct sl_link_config {
    int rank, n_ranks;
    uint32_t absent;    /* ranks, a bit each, that are not in it: nobody sends to them or waits for
                           them, and what they have of a row is nothing. Never rank 0 */
    size_t max_message; /* bytes of a step */
    size_t room_bytes;  /* most that a rank has of what is gathered */
    sl_link_patience_fn patience;
    void *arg;
};

struct sl_link_gather {
    const void *part;  /* [n] rows of this rank */
    size_t part_bytes; /* of a row, maybe other than the others' */
    size_t row_bytes;  /* what all parts of a row must add up to; 0: whatever they do */
    int32_t n;
    void *out;       /* [n] rows of all ranks' parts; NULL: not wanted here */
    bool first_only; /* that is so on all ranks but rank 0, */
    int also;        /* and this one; 0: no other */
};

struct sl_link_part { /* a rank's, where it is not in out yet */
    const uint8_t *rows;
    size_t bytes; /* of a row */
};

struct sl_link_vt {
    int (*send)(struct sl_link *l, const void *data, size_t n);
    int (*recv)(struct sl_link *l, void *data, size_t max, size_t *n);
    int (*all_gather)(struct sl_link *l, const struct sl_link_gather *g,
                      struct sl_link_part parts[SL_MAX_RANKS]);
    void (*close)(struct sl_link *l);
};

struct sl_link { /* what both kinds begin with */
    const struct sl_link_vt *vt;
    struct sl_link_config cfg;
    uint64_t spin_ticks; /* that a wait looks before it sleeps */
    atomic_bool lost;
    int culprit;           /* rank that closed its connection, or with which patience was over; 0:
                              not known */
    struct sl_error error; /* of the call that found it so */
};

/* Over TCP. fds: of rank 0 connections with ranks 1 to n - 1, else fds[0], the one with rank 0. The
 * link closes them. */
SL_MUST_CHECK int sl_link_tcp_open(const struct sl_link_config *cfg, const int *fds,
                                   struct sl_link **out, struct sl_error *err);
/* Shared memory: bytes that all ranks of such a configuration need, and a link in them; zeroed
 * before the first link is opened in them. They outlive it. */
size_t sl_link_shm_bytes(const struct sl_link_config *cfg);
SL_MUST_CHECK int sl_link_shm_open(const struct sl_link_config *cfg, void *memory,
                                   struct sl_link **out, struct sl_error *err);
/* There, two places where this rank can compute its parts in turns: they are gathered without a
 * copy. */
void *sl_link_shm_room(const struct sl_link_config *cfg, void *memory, int i);
void sl_link_close(struct sl_link *l); /* NULL is fine */

/* A step from rank 0 to all others; recv waits for it as long as patience has it. */
SL_MUST_CHECK int sl_link_send(struct sl_link *l, const void *data, size_t n);
SL_MUST_CHECK int sl_link_recv(struct sl_link *l, void *data, size_t max, size_t *n);
/* All ranks call it, as often as the others. On return parts[i].rows says where rank i's part lies,
 * until the next call returns, for the caller to copy; NULL: it is in out. */
SL_MUST_CHECK int sl_link_all_gather(struct sl_link *l, const struct sl_link_gather *g,
                                     struct sl_link_part parts[SL_MAX_RANKS]);
/* Every call fails from now on, one that waits too. */
void sl_link_lose(struct sl_link *l);

/* For the kinds. */
static inline bool sl_link_has(const struct sl_link *l, int rank)
{
    return (l->cfg.absent >> rank & 1) == 0;
}
static inline bool sl_link_wants(const struct sl_link_gather *g, int rank)
{
    return !g->first_only || rank == 0 || rank == g->also;
}
void sl_link_init(struct sl_link *l, const struct sl_link_config *cfg, const struct sl_link_vt *vt);
/* After waiting for a rank since start_ns: SL_ERANK where that was long enough. */
SL_MUST_CHECK int sl_link_patience(struct sl_link *l, int rank, uint64_t start_ns);
/* Loses the link, and says why. */
SL_MUST_CHECK int sl_link_fail(struct sl_link *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
