/* SPDX-License-Identifier: MIT
 * tiers.h - copies of pages outside the pool (tier/store.h): which are stored, and how a prompt
 * gets its blocks back.
 *
 * Stored is a copy of every page that is complete, soon after it is, some bytes each turn; what was
 * not copied when its page is evicted is copied then. Pages of private namespaces are left out, and
 * those of adapters, whose ids mean something else after a restart.
 *
 * A prompt of which the store has blocks beyond those that the prefix tree serves waits before it
 * is scheduled, for a bounded time. Its pages are asked for a few at a time and put into the tree
 * as cached nodes in their order, up to the first that is missed. Then it is scheduled like any
 * other and finds them there. So nothing else of the engine knows of it, and whatever a tier does
 * costs time only.
 *
 * What a remote tier has is not known until it was asked. A prompt that goes beyond what is here
 * waits for the answer, for a bounded time, if having its pages come is faster than computing them.
 *
 * With a threshold a block is stored when that many requests had it in their prompts, first in the
 * pool and then as it comes by again. A bounded table counts them; the block that was seen least
 * recently leaves it.
 *
 * Behind a page's bytes the store keeps the block's tokens and the name of the block before it:
 * like the tree, it does not believe a name alone.
 *
 * Called by the engine thread, or with the turn lock while that has nothing to do. Nothing
 * allocates after init.
 */
#ifndef SL_ENGINE_TIERS_H
#define SL_ENGINE_TIERS_H

#include "engine/moves.h"
#include "kv/kv.h"
#include "sluice.h"
#include "tier/nametab.h"
#include "tier/peer.h"
#include "tier/serve.h"
#include "tier/store.h"

struct sl_engine;
struct sl_request;

/* Pages between servers (transfer.h). */
struct sl_transfer_config {
    bool serves, asks;
    const char *host; /* NULL: loopback */
    int32_t port;
    int32_t bootstrap_port; /* of others */
    struct sl_netlist peers;
    const char *nixl; /* back end of NIXL that carries pages; NULL: TCP does */
};

struct sl_tiers_config {
    struct sl_store_config store; /* host_bytes 0: no tiers. The engine fills in groups and wake;
                                     root names all that the bytes of pages depend on */
    size_t page_bytes[SL_MAX_KV_GROUPS]; /* of the pool */
    bool always_load; /* from the remote tier, also where to compute is expected to be faster */
    int32_t
        store_threshold; /* requests that come upon a block before it is stored; 0, 1: all are */
    int32_t max_tracker_size; /* blocks whose requests are counted */
    struct sl_transfer_config transfer;
};

/* Behind the bytes of a page in the store. */
struct sl_tier_tail {
    struct sl_hash128 before; /* the name of the block before it; see sl_tail_before */
    int32_t tokens[];
};

struct sl_tier_ask {
    struct sl_store_get get;
    int32_t block;
};

/* Of a request that looks for its blocks. */
struct sl_tier_load {
    struct sl_hash128 *names; /* [n_names] of its prompt's blocks; NULL: it looks for none */
    struct sl_tier_ask *asks; /* [n_asks] a ring */
    int32_t n_names, n_asks;
    int32_t first_ask, n_asked;
    int32_t depth;                /* blocks that can be had, from the tree and the store */
    int32_t in_tree, served;      /* of which the tree knew, and served, when it was looked at */
    int32_t known;                /* the depth without the remote tier, when that was asked */
    int32_t n_local;              /* blocks in front whose pages of the first group are here */
    struct sl_store_probe *probe; /* what the remote tier is asked */
    int32_t first_probed;         /* the block that its pages begin with */
    int32_t next, next_group;     /* the page to be asked for next */
    int32_t at;                   /* the block to be placed next */
    uint64_t last_move;           /* the copy in behind which all of it is there */
    uint64_t deadline_ns;
    struct sl_lease *lease;  /* its pages are on offer; NULL: they are not */
    struct sl_peer_job *job; /* its pages are asked for elsewhere; NULL: they are not */
    bool looked;             /* the depth is known */
    bool remote;             /* pages may come from the remote tier */
    bool placed;             /* something of it came from the store */
    bool ended;              /* no page more is placed; copies may be under way */
    bool waits;
    struct sl_request *wait_next; /* the engine's list of those that wait */
};

struct sl_tier_todo { /* a page to be stored */
    struct sl_hash128 name;
    int32_t node, group;
};

struct sl_tiers {
    struct sl_store *store; /* NULL: there are no tiers */
    size_t page_bytes[SL_MAX_KV_GROUPS];
    struct sl_kv_watch watch;
    struct sl_moves moves;
    struct sl_tier_todo *todo; /* [SL_MAX_TIER_TODO] a ring */
    int32_t first_todo, n_todo;
    uint64_t budget;                           /* bytes that may still be copied in this turn */
    struct sl_request *waiting, *last_waiting; /* in the order in which they came */
    int32_t n_waiting;
    bool more;   /* one of those can go on at once */
    bool remote; /* there is a remote tier */
    bool counts; /* the store is told of uses */
    uint32_t store_threshold;
    struct sl_nametab seen; /* how many requests came upon a block; of a threshold */
    bool always_load;
    bool full;                      /* pages wait to be stored until copies have ended */
    uint64_t n_todos, n_todos_over; /* entries of todo so far, and those that were seen to */
    struct sl_serve *serve;         /* pages are read here; NULL: they are not */
    struct sl_peer *peer;           /* and elsewhere */
    struct sl_nixl *nixl;           /* carries them; NULL: TCP does */
    struct sl_netlist peers;
    struct sl_kv_transfer_info info;
    uint64_t n_passed_over; /* pages that were not stored: there was no room or no time */
    uint64_t n_asked_tokens, n_loaded_tokens;
};

SL_MUST_CHECK int sl_tiers_init(struct sl_engine *eng, const struct sl_tiers_config *cfg,
                                struct sl_error *err);
/* Nothing waits and no step runs: stores all that is still to be stored. */
void sl_tiers_drain(struct sl_engine *eng);
void sl_tiers_deinit(struct sl_engine *eng);

/* At the beginning of a turn: goes on with what waits, then stores. */
void sl_tiers_turn(struct sl_engine *eng);
/* The request comes in. False: it is not to wait. */
bool sl_tiers_begin(struct sl_engine *eng, struct sl_request *req);
/* The request ends, or has what it waited for: it gives back what it asked for. */
void sl_tiers_end(struct sl_engine *eng, struct sl_request *req);
void sl_tiers_stats(const struct sl_engine *eng, struct sl_stats *out);

/* Blocks of the prompt that the tree has, and the store has not (or not any more), are stored. */
void sl_tiers_offer(struct sl_engine *eng, const struct sl_request *req);

/* Is there something to be done at once? */
static inline bool sl_tiers_busy(const struct sl_tiers *t)
{
    return (t->n_todo > 0 && !t->full) || t->more;
}

/* Is there something to be waited for? */
static inline bool sl_tiers_waits(const struct sl_tiers *t)
{
    return t->n_waiting > 0 || sl_moves_n(&t->moves) > 0;
}

#endif
