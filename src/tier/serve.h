/* SPDX-License-Identifier: MIT
 * serve.h - pages of this server's store for other servers: who prefilled a prompt offers its pages
 * for a while (a lease), and who decodes it reads them over TCP or by NIXL (peer.h), while they are
 * computed or afterwards.
 *
 * A lease is found by a random number of 128 bits, or by the number of a room, and its pages by
 * their place in the prompt. Who asks comes from an address on a list and shows the prompt's
 * tokens, so that nobody gets pages, or learns names, of a text that it does not have.
 *
 * Pages of a lease stay in the store until they were read or it ends, up to half of the store; what
 * is beyond may be evicted, and is a miss then. A lease ends some time after its request.
 *
 * sl_serve_lease and sl_lease_* are for any thread and do not wait for anything; the engine thread
 * calls those that do not allocate. The rest happens on threads of this service.
 */
#ifndef SL_TIER_SERVE_H
#define SL_TIER_SERVE_H

#include "base/netlist.h"
#include "tier/nixl.h"
#include "tier/peer_wire.h"
#include "tier/store.h"

struct sl_serve;
struct sl_lease;

struct sl_page_layout { /* of a model: the same on both sides if the root is */
    struct sl_hash128 root;
    int32_t block_size, n_groups;
    size_t page_bytes[SL_MAX_KV_GROUPS]; /* of a page in the pool; the store has a tail behind it */
    int32_t window[SL_MAX_KV_GROUPS];    /* positions a row sees; 0: all before it */
    bool state[SL_MAX_KV_GROUPS];        /* pages of some blocks only: recurrent states */
};

struct sl_serve_config {
    struct sl_store *store;
    struct sl_nixl *nixl; /* NULL: pages go over TCP only */
    struct sl_page_layout layout;
    const char *host; /* to listen at */
    int port;         /* 0: any free one */
    struct sl_netlist peers;
    uint64_t host_bytes; /* of the store */
    uint32_t lease_ms;   /* behind the end of a request */
    int n_threads;       /* 0: half as many as processors, SL_MAX_PEER_THREADS at most */
};

struct sl_serve_stats {
    uint64_t n_leases, n_expired; /* made; ended before they were read */
    uint64_t n_pages, n_bytes;    /* sent, or read by others */
    uint64_t n_missed, n_refused; /* pages; connections and leases */
};

SL_MUST_CHECK int sl_serve_open(const struct sl_serve_config *cfg, struct sl_serve **out,
                                struct sl_error *err);
void sl_serve_close(struct sl_serve *s); /* before the store; NULL is fine */
int sl_serve_port(const struct sl_serve *s);
void sl_serve_stats(struct sl_serve *s, struct sl_serve_stats *out);

/* A request's prompt: names and tokens [n_blocks] are copied. NULL: there is no room, or somebody
 * has the room. */
struct sl_lease *sl_serve_lease(struct sl_serve *s, const struct sl_lease_id *id, int32_t n_blocks,
                                const struct sl_hash128 *names, const int32_t *tokens);
/* The room's request will not begin: who waits for it is told. */
void sl_serve_refuse_room(struct sl_serve *s, uint64_t room);
/* The request is over. Pages that are not in the store once so many were stored or passed over
 * (sl_serve_stored) will not come. */
void sl_lease_over(struct sl_lease *l, uint64_t n_stored, bool failed);
void sl_serve_stored(struct sl_serve *s, uint64_t n_stored);
void sl_lease_unref(struct sl_lease *l); /* also after the service is gone */

/* The first block of a group that a row behind depth blocks sees. */
static inline int32_t sl_layout_first(const struct sl_page_layout *l, int32_t group, int32_t depth)
{
    int32_t pos = depth * l->block_size, window = l->state[group] ? 2 : l->window[group];
    return window == 0 || pos < window ? 0 : (pos - window + 1) / l->block_size;
}

#endif
