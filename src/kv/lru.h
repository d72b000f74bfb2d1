/* SPDX-License-Identifier: MIT
 * lru.h - a list of nodes by when they were used last, oldest first: those that may be evicted.
 *
 * Links lie in an array by node, so that any node leaves in constant time. Engine thread only;
 * nothing is allocated after init.
 */
#ifndef SL_KV_LRU_H
#define SL_KV_LRU_H

#include "base/err.h"

struct sl_lru_link {
    int32_t prev, next;
    bool in;
};

struct sl_lru {
    struct sl_lru_link *links; /* [n_nodes] */
    int32_t n_nodes, n;        /* n: in the list */
    int32_t head, tail;        /* head: to be evicted next */
};

SL_MUST_CHECK int sl_lru_init(struct sl_lru *l, int32_t n_nodes, struct sl_error *err);
void sl_lru_deinit(struct sl_lru *l);
void sl_lru_reset(struct sl_lru *l); /* empty */
void sl_lru_append(struct sl_lru *l, int32_t node);
void sl_lru_remove(struct sl_lru *l, int32_t node);

static inline bool sl_lru_has(const struct sl_lru *l, int32_t node)
{
    return l->links[node].in;
}

#endif
