/* SPDX-License-Identifier: MIT
 * lease.h - cached prefixes that are kept for a time: what a conversation will go on from that has
 * called a tool and waits for its answer.
 *
 * A lease is one more owner of a node and of all its ancestors, and of their pages in the FULL
 * group. So nothing else about the cache changes: what is leased is not in the list of nodes that
 * may be evicted, and goes to that list's end when the lease is over. A node is kept while leases
 * are its only owners. Pages of WINDOW and STATE groups have no such owner, since running sequences
 * count with all that nobody uses: there a leased node's page is only evicted after others
 * (group.h).
 *
 * A lease is over when it is dropped: when its time has come, when its conversation goes on, and
 * when somebody needs the memory. Then the lease of the lowest worth goes first, and of equal ones
 * the one that ends first. Which may go for whom is said by a claim: what runs takes any, what
 * waits only those that come after it in the queue's order.
 *
 * A table of fixed size; engine thread only; nothing is allocated after init.
 */
#ifndef SL_KV_LEASE_H
#define SL_KV_LEASE_H

#include "base/hash.h"
#include "base/limits.h"
#include "kv/pool.h"

#include <stdbool.h>

struct sl_kv;

struct sl_kv_lease {
    int32_t leaf;    /* the deepest node; SL_NO_NODE: this place of the table is free */
    int32_t n_nodes; /* it and its ancestors */
    /* the owner's */
    uint64_t end_ns;
    double worth;     /* of a block; the lowest goes first */
    uint64_t serial;  /* tells it from others that had this place of the table */
    int32_t priority; /* its place in the queue, as of a sequence */
    uint64_t arrival;
};

struct sl_kv_claim { /* whom memory is for */
    bool any;        /* all leases may go for it; else those that come after this: */
    int32_t priority;
    uint64_t arrival;
};

struct sl_kv_leases {
    struct sl_kv_lease list[SL_MAX_KV_LEASES];
    int32_t *n_of;            /* [n_nodes] leases that own the node */
    int32_t n;                /* leases */
    int32_t n_leased;         /* nodes that some lease owns */
    int32_t n_kept;           /* of those, the ones that nobody else owns */
    int32_t max;              /* most of n_leased; 0: no leases */
    uint64_t n_ended, n_fell; /* leases whose time came; that were dropped for their memory */
};

/* Has the node no owners but leases, and some of those? */
bool sl_kv_is_kept(const struct sl_kv *kv, int32_t node);

/* Right after init: leases may have so many nodes together. */
void sl_kv_allow_leases(struct sl_kv *kv, int32_t max);

/* Leases the node of this name and its ancestors. Returns the lease's number, or -1: the node has
 * left the cache, or the bound is reached and no lease is worth less. */
int32_t sl_kv_lease(struct sl_kv *kv, int32_t leaf, const struct sl_hash128 *name,
                    const struct sl_kv_lease *what);
void sl_kv_end_lease(struct sl_kv *kv, int32_t lease);
void sl_kv_end_leases(struct sl_kv *kv, uint64_t now_ns); /* those whose time has come */
/* n nodes can be taken once some leases are dropped that may go for this claim: drops as many. */
bool sl_kv_fall(struct sl_kv *kv, int32_t n, const struct sl_kv_claim *claim);
/* Drops the lease that goes first; false: there is none. */
bool sl_kv_fall_one(struct sl_kv *kv);

/* The deepest node of the tree along text, at most max blocks; SL_NO_NODE: none. */
struct sl_kv_ns;
struct sl_kv_text;
int32_t sl_kv_deepest(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                      int32_t max);

/* kv.c: one owner more of a node, one less. */
void sl_kv_hold_node(struct sl_kv *kv, int32_t node);
void sl_kv_drop_node(struct sl_kv *kv, int32_t node, bool forget);

#endif
