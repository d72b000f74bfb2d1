/* SPDX-License-Identifier: MIT */
#include "kv/lru.h"

#include "base/sys.h"
#include "kv/pool.h"

#include <string.h>

int sl_lru_init(struct sl_lru *l, int32_t n_nodes, struct sl_error *err)
{
    SL_ASSERT(n_nodes > 0);
    *l = (struct sl_lru){.n_nodes = n_nodes};
    l->links = sl_calloc((size_t)n_nodes, sizeof *l->links);
    if (l->links == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a list of %d cached blocks", n_nodes);
    sl_lru_reset(l);
    return 0;
}

void sl_lru_deinit(struct sl_lru *l)
{
    sl_free(l->links);
    *l = (struct sl_lru){0};
}

void sl_lru_reset(struct sl_lru *l)
{
    memset(l->links, 0, (size_t)l->n_nodes * sizeof *l->links);
    l->n = 0;
    l->head = l->tail = SL_NO_NODE;
}

void sl_lru_append(struct sl_lru *l, int32_t node)
{
    SL_ASSERT(node >= 0 && node < l->n_nodes && !l->links[node].in && l->n < l->n_nodes);
    l->links[node] = (struct sl_lru_link){.prev = l->tail, .next = SL_NO_NODE, .in = true};
    if (l->tail != SL_NO_NODE)
        l->links[l->tail].next = node;
    else
        l->head = node;
    l->tail = node;
    l->n++;
}

void sl_lru_remove(struct sl_lru *l, int32_t node)
{
    SL_ASSERT(node >= 0 && node < l->n_nodes && l->links[node].in && l->n > 0);
    const struct sl_lru_link at = l->links[node];
    if (at.prev != SL_NO_NODE)
        l->links[at.prev].next = at.next;
    else
        l->head = at.next;
    if (at.next != SL_NO_NODE)
        l->links[at.next].prev = at.prev;
    else
        l->tail = at.prev;
    l->links[node].in = false;
    l->n--;
}
