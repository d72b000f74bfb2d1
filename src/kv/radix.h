/* SPDX-License-Identifier: MIT
 * radix.h - the prefix tree: which node stands for which block of tokens after which prefix.
 *
 * A node is a block of block_size tokens, complete or not; the tree holds complete ones, so that
 * prompts find them. Which pages a node has is the groups' business (group.h), how many sequences
 * hold it kv.c's.
 *
 * A node's name is a chain of 128-bit hashes: of the model and the layout of its pages, the
 * namespace, and all tokens up to the end of the block. It holds over restarts and between
 * processes, or those that share a secret, where names are hashed with one (name_seed). Nodes are
 * looked up by a hash of the name with a secret seed; a hit is believed only after the parent, the
 * tokens and, at the root, the namespace were compared, so a collision, even a forced one, never
 * gives one prompt another's KV.
 *
 * kv.c tells the tree when a node loses its last owner and when it gets one again. Nodes without
 * owners stand in one list, least recently used first. Because whoever holds a node holds all its
 * ancestors, and gives up the deepest first, a child always stands before its parent in that list:
 * its head is always a leaf, and every node in it can be evicted in turn. Engine thread only.
 */
#ifndef SL_KV_RADIX_H
#define SL_KV_RADIX_H

#include "base/hash.h"
#include "base/limits.h"
#include "kv/lru.h"
#include "kv/pool.h"

/* Prefixes are shared only inside a namespace: one per tenant, adapter (with its factor) and cache
 * salt, or one private to a request. */
#define SL_KV_NS_TENANT  4  /* bytes of the tenant, then */
#define SL_KV_NS_ADAPTER 12 /* of the adapter's id and factor, then those of the salt */
struct sl_kv_ns {
    uint8_t is_private, n_bytes;
    uint8_t bytes[SL_KV_NS_TENANT + SL_KV_NS_ADAPTER + SL_MAX_CACHE_SALT];
};

struct sl_kv_node {
    struct sl_hash128 name;
    int32_t parent; /* SL_NO_NODE: first block of a prompt */
    int32_t next;   /* in its hash bucket */
    int32_t n_children;
    bool in_tree;
    bool dead;  /* contents in doubt: never found again, stays until its children are evicted */
    bool lasts; /* of a namespace that means the same after a restart */
};

/* An adapter's id is a number of this process. */
bool sl_kv_ns_lasts(const struct sl_kv_ns *ns);

struct sl_kv_feed;

struct sl_radix {
    int32_t n_nodes, block_size, n_in_tree;
    uint64_t seed;            /* of the buckets */
    uint64_t name_seed;       /* of names; 0: everybody's */
    struct sl_hash128 root;   /* where names begin */
    struct sl_kv_node *nodes; /* [n_nodes] */
    int32_t *tokens;          /* [n_nodes, block_size] */
    struct sl_kv_ns *spaces;  /* [n_nodes], valid for nodes without parent */
    int32_t *buckets;         /* [n_buckets] */
    uint32_t n_buckets;       /* power of two */
    struct sl_lru lru;        /* nodes of the tree without owners */
    struct sl_kv_feed *feed;  /* is told of nodes that leave; NULL: nobody is */
};

SL_MUST_CHECK int sl_radix_init(struct sl_radix *t, int32_t n_nodes, int32_t block_size,
                                const struct sl_hash128 *root, uint64_t seed, struct sl_error *err);
void sl_radix_deinit(struct sl_radix *t);
void sl_radix_reset(struct sl_radix *t); /* empty */
/* The node that holds tokens[block_size] after parent (SL_NO_NODE: at the root of ns), or
 * SL_NO_NODE. */
int32_t sl_radix_find(const struct sl_radix *t, int32_t parent, const struct sl_kv_ns *ns,
                      const int32_t *tokens);
/* The names of text's first n blocks, [n]; any thread. */
void sl_radix_names(const struct sl_radix *t, const struct sl_kv_ns *ns, const int32_t *tokens,
                    int32_t n, struct sl_hash128 *out);
/* sl_radix_find of a block whose name is known. */
int32_t sl_radix_find_named(const struct sl_radix *t, int32_t parent, const struct sl_kv_ns *ns,
                            const int32_t *tokens, const struct sl_hash128 *name);
/* Adds a node that must not be there yet; it has an owner, and so does the parent. */
void sl_radix_insert(struct sl_radix *t, int32_t node, int32_t parent, const struct sl_kv_ns *ns,
                     const int32_t *tokens);
void sl_radix_remove(struct sl_radix *t, int32_t node); /* a leaf, in the list or not */
void sl_radix_retire(struct sl_radix *t, int32_t node); /* no owner any more: to the list's end */
void sl_radix_revive(struct sl_radix *t, int32_t node); /* has an owner again: leaves the list */
int32_t sl_radix_evict(struct sl_radix *t);             /* removes and returns the oldest */
uint32_t sl_radix_bucket(const struct sl_radix *t, const struct sl_hash128 *name);

#endif
