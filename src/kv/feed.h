/* SPDX-License-Identifier: MIT
 * feed.h - the contents of the prefix tree for a reader outside: pages stored, pages removed, of
 * each group of layers.
 *
 * Not a log. The feed keeps the nodes that can be found now, in the order they were stored, which
 * groups have a page of each, which of these pages were reported, and how far its reader has got;
 * and the names of removed pages that the reader still knows. So its size is fixed, and a slow
 * reader costs the engine nothing and loses nothing: pages that came and went meanwhile are left
 * out. A node comes after its parent in that order, so parents are reported first. A page that a
 * node gets later than the reader passed it (kv_replace, kv.c) is reported after all these.
 * Removals are reported before anything stored later.
 *
 * A node without any page in a group stays known: a page may come later.
 *
 * Nodes of private namespaces and of adapters with a factor of their own are left out: no other
 * request, or none that can be described, finds them.
 *
 * The engine thread calls the functions that change it; one thread at a time reads. The lock is
 * held for a page's tokens, or for the batch that a reader copies.
 */
#ifndef SL_KV_FEED_H
#define SL_KV_FEED_H

#include "kv/radix.h"
#include "sluice.h"

#include <pthread.h>

_Static_assert(SL_MAX_KV_GROUPS <= 8, "bits of has and told");

struct sl_feed_node {
    uint64_t name, parent_name; /* parent_name 0: it begins a prompt */
    uint64_t adapter;           /* id, 0: none */
    uint64_t change;            /* the feed's when told was set */
    int32_t parent, prev, next;
    int32_t next_late;
    uint8_t n_salt;
    uint8_t has, told; /* bits of groups: with a page, reported */
    bool in, late;
};

struct sl_feed_removed {
    uint64_t name;
    int32_t group;
};

struct sl_kv_feed {
    pthread_mutex_t lock;
    int event_fd; /* readable while something is unreported */
    bool signalled;
    bool cleared;    /* to be reported first: what was reported before is void */
    uint64_t change; /* counts up when everything is to be reported again */
    int32_t n_nodes, n_groups, block_size, n_in;
    struct sl_feed_node *nodes;       /* [n_nodes] */
    int32_t *tokens;                  /* [n_nodes, block_size] */
    char (*salts)[SL_MAX_CACHE_SALT]; /* [n_nodes] */
    int32_t head, tail;               /* nodes that can be found, in the order they were stored */
    int32_t unreported;               /* the first the reader did not pass; SL_NO_NODE: none */
    int32_t first_late, last_late;    /* nodes it passed that got a page since */
    struct sl_feed_removed *removed;  /* [n_nodes * n_groups] a ring */
    int64_t first_removed, n_removed;
};

/* What readers know a page by. Signed 64-bit integers are all that some of them take. */
uint64_t sl_feed_name(const struct sl_hash128 *name);

SL_MUST_CHECK int sl_feed_create(int32_t n_nodes, int32_t n_groups, int32_t block_size,
                                 struct sl_kv_feed **out, struct sl_error *err);
void sl_feed_destroy(struct sl_kv_feed *f); /* NULL is fine */

/* Engine thread. sl_feed_stored: a node is in the tree; has: bits of the groups with a page of it.
 * sl_feed_page: the page of a group came, or went; of a node that cannot be found nothing happens.
 */
void sl_feed_stored(struct sl_kv_feed *f, int32_t node, const struct sl_kv_node *n,
                    const struct sl_kv_ns *ns, const int32_t *tokens, unsigned has);
void sl_feed_page(struct sl_kv_feed *f, int32_t node, int32_t group, bool has);
void sl_feed_removed(struct sl_kv_feed *f, int32_t node);
/* The node cannot be found any more, though it stays in the tree; nor can what hangs below it. */
void sl_feed_lost(struct sl_kv_feed *f, int32_t node);
void sl_feed_cleared(struct sl_kv_feed *f);
void sl_feed_signal(struct sl_kv_feed *f); /* wakes the reader if something is unreported */
void sl_feed_wake(struct sl_kv_feed *f);   /* any thread: in any case, for what others report */

/* The reader. One event each; tokens and salt are copied to room for max of them. Returns how many;
 * 0: nothing is left, and event_fd is quiet. */
struct sl_feed_event {
    enum sl_kv_event_kind kind;
    uint64_t name, parent_name, adapter;
    int32_t group, n_salt;
    char salt[SL_MAX_CACHE_SALT];
};
int32_t sl_feed_read(struct sl_kv_feed *f, struct sl_feed_event *out, int32_t *tokens, int32_t max);
void sl_feed_again(struct sl_kv_feed *f); /* everything from the beginning: cleared, then all */

#endif
