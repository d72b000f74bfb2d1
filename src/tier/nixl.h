/* SPDX-License-Identifier: MIT
 * nixl.h - an agent of NIXL: another server's agent reads pages out of this one's memory, and this
 * one reads out of others', without their threads (RDMA, or the kernel's copies between processes)
 * or through UCX's own connections.
 *
 * Registered is the memory of the store, once, as a whole. Who has pages sends the agent's metadata
 * and a page's address over a connection of its own (peer_wire.h); who wants a page reads it from
 * there into its place in the store.
 *
 * One thread makes all calls of the library, also those that take long (start, registration, a
 * connection). It starts at open, and until it is ready there is no agent: nobody waits for it.
 *
 * What is being read may be written to until the library says that it is over: releasing a request
 * does not stop it (seen with 1.5.1 over shared memory and TCP). So a read that is given up is the
 * agent's, which keeps its place out of use until the read is over, or its connection is gone.
 *
 * Any thread, if not marked otherwise; nothing here waits or allocates behind open.
 */
#ifndef SL_TIER_NIXL_H
#define SL_TIER_NIXL_H

#include "tier/store.h"

struct sl_nixl;
struct sl_nixl_remote; /* another server's agent */
struct sl_nixl_read;   /* of a page */

/* That a page may take, and that nothing may come from its server; then another way is gone. Less
 * than a connection may be silent (peer_wire.h). */
enum { SL_NIXL_READ_MS = 4000, SL_NIXL_SILENT_MS = 2000 };

struct sl_nixl_config {
    struct sl_store *store; /* whose memory is registered, and which gets back what was given up */
    const char *backend;    /* plugin of the library: "UCX" */
};

struct sl_nixl_stats {
    uint64_t registered_bytes; /* 0: there is no agent (yet, or it could not start) */
    uint64_t n_reads, n_bytes; /* that went well */
    uint64_t n_failed, n_late; /* reads that the library gave up, and that took too long */
    uint64_t n_kept;           /* places out of use now */
};

/* SL_EUNSUPPORTED: the library is not here; SL_ENOMEM. The agent itself starts behind it. */
SL_MUST_CHECK int sl_nixl_open(const struct sl_nixl_config *cfg, struct sl_nixl **out,
                               struct sl_error *err);
/* Nobody reads any more. Before the store; NULL is fine. False: the library did not come back
 * within seconds, so the store's memory is still in its hands and must stay (sl_store_leave). */
bool sl_nixl_close(struct sl_nixl *n);
void sl_nixl_stats(struct sl_nixl *n, struct sl_nixl_stats *out);

/* ---- who has pages ---- */

/* What others need to read here; NULL: there is no agent. Valid until close. */
const void *sl_nixl_metadata(struct sl_nixl *n, size_t *n_bytes);
/* So many connections more, or fewer, may read; and so many pages are offered to them. The thread
 * helps transports that need it meanwhile. */
void sl_nixl_serve(struct sl_nixl *n, int conns, int pages);

/* ---- who wants them ---- */

/* NULL: there is no agent, or no room for another one. */
struct sl_nixl_remote *sl_nixl_meet(struct sl_nixl *n, const void *metadata, size_t n_bytes);
void sl_nixl_part(struct sl_nixl *n, struct sl_nixl_remote *r);
/* False: reads from it failed lately. */
bool sl_nixl_usable(struct sl_nixl *n, const struct sl_nixl_remote *r);

enum sl_nixl_state { SL_NIXL_PENDING, SL_NIXL_DONE, SL_NIXL_FAILED };

/* Reads n_bytes at addr of r into a place that the store has reserved. When it is over, the bell
 * (peer_wire.h) rings. NULL: not now. */
struct sl_nixl_read *sl_nixl_begin(struct sl_nixl *n, struct sl_nixl_remote *r, uint64_t addr,
                                   uint8_t *place, size_t n_bytes, int bell);
/* SL_NIXL_PENDING of one that takes too long turns into SL_NIXL_FAILED. */
enum sl_nixl_state sl_nixl_look(struct sl_nixl *n, struct sl_nixl_read *read, uint64_t now);
/* It is done: the place is the caller's again. */
void sl_nixl_end(struct sl_nixl *n, struct sl_nixl_read *read);
/* In whatever state: the place is the agent's, and the store has forgotten its name. */
void sl_nixl_give_up(struct sl_nixl *n, struct sl_nixl_read *read);

#endif
