/* SPDX-License-Identifier: MIT
 * radix.h - the prefix tree: which full page holds the KV of which tokens after which prefix.
 *
 * One node is one page, and the node's number is the page's number, so that nothing is allocated
 * and a page cannot be in two nodes. A node is named by a chain hash (its parent's hash, its
 * tokens; at the root the namespace and a secret seed) and looked up in a hash table; a hit is
 * believed only after the parent, the tokens and, at the root, the namespace were compared, so a
 * collision, even a forced one, never gives one prompt another's KV.
 *
 * The tree does not count owners (pool.h does); radix.c is told by kv.c when a node loses its last
 * owner and when it gets one again. Nodes without owners stand in one list, least recently used
 * first. Because whoever holds a page holds all its ancestors, and gives up the deepest first, a
 * child always stands before its parent in that list: its head is always a leaf, and every page in
 * it can be evicted in turn. Engine thread only.
 */
#ifndef SL_KV_RADIX_H
#define SL_KV_RADIX_H

#include "base/err.h"
#include "base/limits.h"

/* Prefixes are shared only inside a namespace: one per tenant, adapter (with its factor) and cache
 * salt, or one private to a request. */
#define SL_KV_NS_TENANT  4  /* bytes of the tenant, then */
#define SL_KV_NS_ADAPTER 12 /* of the adapter's id and factor, then those of the salt */
struct sl_kv_ns {
    uint8_t is_private, n_bytes;
    uint8_t bytes[SL_KV_NS_TENANT + SL_KV_NS_ADAPTER + SL_MAX_CACHE_SALT];
};

struct sl_radix_node {
    uint64_t chain; /* hash of namespace and all tokens up to the end of this page */
    int32_t parent; /* SL_NO_PAGE: first page of a prompt */
    int32_t next;   /* in its hash bucket */
    int32_t n_children;
    int32_t lru_prev, lru_next;
    bool in_tree, in_lru;
    bool dead; /* contents in doubt: never found again, stays until its children are evicted */
};

struct sl_kv_feed;

struct sl_radix {
    int32_t n_nodes, block_size, n_in_tree, n_lru;
    uint64_t seed;
    struct sl_radix_node *nodes; /* [n_nodes], by page */
    int32_t *tokens;             /* [n_nodes, block_size] */
    struct sl_kv_ns *spaces;     /* [n_nodes], valid for nodes without parent */
    int32_t *buckets;            /* [n_buckets] */
    uint32_t n_buckets;          /* power of two */
    int32_t lru_head, lru_tail;  /* head: to be evicted next */
    struct sl_kv_feed *feed;     /* is told of every page that can be found; NULL: nobody is */
};

SL_MUST_CHECK int sl_radix_init(struct sl_radix *t, int32_t n_nodes, int32_t block_size,
                                uint64_t seed, struct sl_error *err);
void sl_radix_deinit(struct sl_radix *t);
void sl_radix_reset(struct sl_radix *t); /* empty */
/* The page that holds tokens[block_size] after parent (SL_NO_PAGE: at the root of ns), or
 * SL_NO_PAGE. */
int32_t sl_radix_find(const struct sl_radix *t, int32_t parent, const struct sl_kv_ns *ns,
                      const int32_t *tokens);
/* Adds a node that must not be there yet; its page has an owner, and so does the parent. */
void sl_radix_insert(struct sl_radix *t, int32_t page, int32_t parent, const struct sl_kv_ns *ns,
                     const int32_t *tokens);
void sl_radix_remove(struct sl_radix *t, int32_t page); /* a leaf, in the list or not */
void sl_radix_retire(struct sl_radix *t, int32_t page); /* no owner any more: to the list's end */
void sl_radix_revive(struct sl_radix *t, int32_t page); /* has an owner again: leaves the list */
int32_t sl_radix_evict(struct sl_radix *t);             /* removes and returns the oldest */

#endif
