/* SPDX-License-Identifier: MIT */
#include "kv/radix.h"

#include "base/hash.h"
#include "base/sys.h"
#include "kv/feed.h"
#include "kv/pool.h"

#include <string.h>

int sl_radix_init(struct sl_radix *t, int32_t n_nodes, int32_t block_size, uint64_t seed,
                  struct sl_error *err)
{
    SL_ASSERT(n_nodes > 0 && block_size > 0 && block_size <= SL_MAX_BLOCK_SIZE);
    *t = (struct sl_radix){
        .n_nodes = n_nodes, .block_size = block_size, .seed = seed, .n_buckets = 16};
    while (t->n_buckets < (uint32_t)n_nodes)
        t->n_buckets *= 2;
    t->nodes = sl_calloc((size_t)n_nodes, sizeof *t->nodes);
    t->tokens = sl_calloc((size_t)n_nodes, (size_t)block_size * sizeof *t->tokens);
    t->spaces = sl_calloc((size_t)n_nodes, sizeof *t->spaces);
    t->buckets = sl_calloc(t->n_buckets, sizeof *t->buckets);
    if (t->nodes == NULL || t->tokens == NULL || t->spaces == NULL || t->buckets == NULL) {
        sl_radix_deinit(t);
        return sl_fail(err, SL_ENOMEM, "out of memory for a prefix cache of %d pages", n_nodes);
    }
    sl_radix_reset(t);
    return 0;
}

void sl_radix_reset(struct sl_radix *t)
{
    t->n_in_tree = t->n_lru = 0;
    t->lru_head = t->lru_tail = SL_NO_PAGE;
    memset(t->nodes, 0, (size_t)t->n_nodes * sizeof *t->nodes);
    for (uint32_t i = 0; i < t->n_buckets; i++)
        t->buckets[i] = SL_NO_PAGE;
    if (t->feed != NULL)
        sl_feed_cleared(t->feed);
}

void sl_radix_deinit(struct sl_radix *t)
{
    sl_free(t->buckets);
    sl_free(t->spaces);
    sl_free(t->tokens);
    sl_free(t->nodes);
    *t = (struct sl_radix){0};
}

static struct sl_radix_node *node_of(const struct sl_radix *t, int32_t page)
{
    SL_ASSERT(page >= 0 && page < t->n_nodes);
    return &t->nodes[page];
}

static int32_t *tokens_of(const struct sl_radix *t, int32_t page)
{
    return t->tokens + (size_t)page * (size_t)t->block_size;
}

static uint64_t chain_of(const struct sl_radix *t, int32_t parent, const struct sl_kv_ns *ns,
                         const int32_t *tokens)
{
    uint64_t up;
    if (parent == SL_NO_PAGE)
        up = sl_hash64(ns->bytes, ns->n_bytes, t->seed + ns->is_private);
    else
        up = node_of(t, parent)->chain;
    return sl_hash64(tokens, (size_t)t->block_size * sizeof *tokens, up);
}

static bool same_ns(const struct sl_kv_ns *a, const struct sl_kv_ns *b)
{
    return a->is_private == b->is_private && a->n_bytes == b->n_bytes &&
           memcmp(a->bytes, b->bytes, a->n_bytes) == 0;
}

int32_t sl_radix_find(const struct sl_radix *t, int32_t parent, const struct sl_kv_ns *ns,
                      const int32_t *tokens)
{
    uint64_t chain = chain_of(t, parent, ns, tokens);
    int32_t page = t->buckets[chain & (t->n_buckets - 1)];
    for (; page != SL_NO_PAGE; page = t->nodes[page].next) {
        const struct sl_radix_node *n = node_of(t, page);
        if (n->chain != chain || n->parent != parent || n->dead)
            continue;
        if (parent == SL_NO_PAGE && !same_ns(&t->spaces[page], ns))
            continue;
        if (memcmp(tokens_of(t, page), tokens, (size_t)t->block_size * sizeof *tokens) == 0)
            return page;
    }
    return SL_NO_PAGE;
}

void sl_radix_insert(struct sl_radix *t, int32_t page, int32_t parent, const struct sl_kv_ns *ns,
                     const int32_t *tokens)
{
    struct sl_radix_node *n = node_of(t, page);
    SL_ASSERT(!n->in_tree && page != parent);
    SL_DCHECK(sl_radix_find(t, parent, ns, tokens) == SL_NO_PAGE);
    if (parent == SL_NO_PAGE) {
        t->spaces[page] = *ns;
    } else {
        SL_ASSERT(node_of(t, parent)->in_tree && !node_of(t, parent)->in_lru);
        node_of(t, parent)->n_children++;
    }
    uint64_t chain = chain_of(t, parent, ns, tokens);
    int32_t *bucket = &t->buckets[chain & (t->n_buckets - 1)];
    *n = (struct sl_radix_node){.chain = chain,
                                .parent = parent,
                                .next = *bucket,
                                .lru_prev = SL_NO_PAGE,
                                .lru_next = SL_NO_PAGE,
                                .in_tree = true};
    *bucket = page;
    memcpy(tokens_of(t, page), tokens, (size_t)t->block_size * sizeof *tokens);
    t->n_in_tree++;
    if (t->feed != NULL)
        sl_feed_stored(t->feed, page, n, ns, tokens);
}

void sl_radix_remove(struct sl_radix *t, int32_t page)
{
    struct sl_radix_node *n = node_of(t, page);
    SL_ASSERT(n->in_tree && n->n_children == 0);
    if (n->in_lru)
        sl_radix_revive(t, page);
    int32_t *link = &t->buckets[n->chain & (t->n_buckets - 1)];
    while (*link != page) {
        SL_ASSERT(*link != SL_NO_PAGE);
        link = &t->nodes[*link].next;
    }
    *link = n->next;
    if (n->parent != SL_NO_PAGE)
        node_of(t, n->parent)->n_children--;
    n->in_tree = false;
    t->n_in_tree--;
    if (t->feed != NULL)
        sl_feed_removed(t->feed, page);
}

void sl_radix_retire(struct sl_radix *t, int32_t page)
{
    struct sl_radix_node *n = node_of(t, page);
    SL_ASSERT(n->in_tree && !n->in_lru);
    n->in_lru = true;
    n->lru_prev = t->lru_tail;
    n->lru_next = SL_NO_PAGE;
    if (t->lru_tail != SL_NO_PAGE)
        t->nodes[t->lru_tail].lru_next = page;
    else
        t->lru_head = page;
    t->lru_tail = page;
    t->n_lru++;
}

void sl_radix_revive(struct sl_radix *t, int32_t page)
{
    struct sl_radix_node *n = node_of(t, page);
    SL_ASSERT(n->in_tree && n->in_lru);
    if (n->lru_prev != SL_NO_PAGE)
        t->nodes[n->lru_prev].lru_next = n->lru_next;
    else
        t->lru_head = n->lru_next;
    if (n->lru_next != SL_NO_PAGE)
        t->nodes[n->lru_next].lru_prev = n->lru_prev;
    else
        t->lru_tail = n->lru_prev;
    n->in_lru = false;
    t->n_lru--;
}

int32_t sl_radix_evict(struct sl_radix *t)
{
    int32_t page = t->lru_head;
    if (page != SL_NO_PAGE)
        sl_radix_remove(t, page);
    return page;
}
