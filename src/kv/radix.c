/* SPDX-License-Identifier: MIT */
#include "kv/radix.h"

#include "base/sys.h"
#include "kv/feed.h"

#include <string.h>

int sl_radix_init(struct sl_radix *t, int32_t n_nodes, int32_t block_size,
                  const struct sl_hash128 *root, uint64_t seed, struct sl_error *err)
{
    SL_ASSERT(n_nodes > 0 && block_size > 0 && block_size <= SL_MAX_PAGE_TOKENS);
    *t = (struct sl_radix){
        .n_nodes = n_nodes, .block_size = block_size, .root = *root, .seed = seed, .n_buckets = 16};
    while (t->n_buckets < (uint32_t)n_nodes)
        t->n_buckets *= 2;
    t->nodes = sl_calloc((size_t)n_nodes, sizeof *t->nodes);
    t->tokens = sl_calloc((size_t)n_nodes, (size_t)block_size * sizeof *t->tokens);
    t->spaces = sl_calloc((size_t)n_nodes, sizeof *t->spaces);
    t->buckets = sl_calloc(t->n_buckets, sizeof *t->buckets);
    if (t->nodes == NULL || t->tokens == NULL || t->spaces == NULL || t->buckets == NULL ||
        sl_lru_init(&t->lru, n_nodes, err) != 0) {
        sl_radix_deinit(t);
        return sl_fail(err, SL_ENOMEM, "out of memory for a prefix cache of %d blocks", n_nodes);
    }
    sl_radix_reset(t);
    return 0;
}

void sl_radix_reset(struct sl_radix *t)
{
    t->n_in_tree = 0;
    sl_lru_reset(&t->lru);
    memset(t->nodes, 0, (size_t)t->n_nodes * sizeof *t->nodes);
    for (uint32_t i = 0; i < t->n_buckets; i++)
        t->buckets[i] = SL_NO_NODE;
    if (t->feed != NULL)
        sl_feed_cleared(t->feed);
}

void sl_radix_deinit(struct sl_radix *t)
{
    sl_lru_deinit(&t->lru);
    sl_free(t->buckets);
    sl_free(t->spaces);
    sl_free(t->tokens);
    sl_free(t->nodes);
    *t = (struct sl_radix){0};
}

static struct sl_kv_node *radix_node(const struct sl_radix *t, int32_t node)
{
    SL_ASSERT(node >= 0 && node < t->n_nodes);
    return &t->nodes[node];
}

static int32_t *tokens_of(const struct sl_radix *t, int32_t node)
{
    return t->tokens + (size_t)node * (size_t)t->block_size;
}

/* What a chain of names begins with in a namespace. */
static struct sl_hash128 root_of(const struct sl_radix *t, const struct sl_kv_ns *ns)
{
    struct sl_hash128 in[2] = {t->root,
                               sl_hash128(ns->bytes, ns->n_bytes, t->name_seed + ns->is_private)};
    return sl_hash128(in, sizeof in, t->name_seed);
}

static struct sl_hash128 name_after(const struct sl_radix *t, const struct sl_hash128 *parent,
                                    const int32_t *tokens)
{
    const size_t n_bytes = (size_t)t->block_size * sizeof *tokens;
    struct sl_hash128 in[2] = {*parent, sl_hash128(tokens, n_bytes, t->name_seed)};
    return sl_hash128(in, sizeof in, t->name_seed);
}

static struct sl_hash128 radix_name(const struct sl_radix *t, int32_t parent,
                                    const struct sl_kv_ns *ns, const int32_t *tokens)
{
    const struct sl_hash128 before =
        parent == SL_NO_NODE ? root_of(t, ns) : radix_node(t, parent)->name;
    return name_after(t, &before, tokens);
}

void sl_radix_names(const struct sl_radix *t, const struct sl_kv_ns *ns, const int32_t *tokens,
                    int32_t n, struct sl_hash128 *out)
{
    struct sl_hash128 before = root_of(t, ns);
    for (int32_t i = 0; i < n; i++)
        before = out[i] = name_after(t, &before, tokens + (size_t)i * (size_t)t->block_size);
}

static bool same_name(const struct sl_hash128 *a, const struct sl_hash128 *b)
{
    return a->lo == b->lo && a->hi == b->hi;
}

static bool same_ns(const struct sl_kv_ns *a, const struct sl_kv_ns *b)
{
    return a->is_private == b->is_private && a->n_bytes == b->n_bytes &&
           memcmp(a->bytes, b->bytes, a->n_bytes) == 0;
}

bool sl_kv_ns_lasts(const struct sl_kv_ns *ns)
{
    static const uint8_t none[SL_KV_NS_ADAPTER];
    return !ns->is_private && ns->n_bytes >= SL_KV_NS_TENANT + SL_KV_NS_ADAPTER &&
           memcmp(ns->bytes + SL_KV_NS_TENANT, none, sizeof none) == 0;
}

uint32_t sl_radix_bucket(const struct sl_radix *t, const struct sl_hash128 *name)
{
    return (uint32_t)sl_hash64(name, sizeof *name, t->seed) & (t->n_buckets - 1);
}

int32_t sl_radix_find(const struct sl_radix *t, int32_t parent, const struct sl_kv_ns *ns,
                      const int32_t *tokens)
{
    const struct sl_hash128 name = radix_name(t, parent, ns, tokens);
    return sl_radix_find_named(t, parent, ns, tokens, &name);
}

int32_t sl_radix_find_named(const struct sl_radix *t, int32_t parent, const struct sl_kv_ns *ns,
                            const int32_t *tokens, const struct sl_hash128 *name)
{
    int32_t node = t->buckets[sl_radix_bucket(t, name)];
    for (; node != SL_NO_NODE; node = t->nodes[node].next) {
        const struct sl_kv_node *n = radix_node(t, node);
        if (!same_name(&n->name, name) || n->parent != parent || n->dead)
            continue;
        if (parent == SL_NO_NODE && !same_ns(&t->spaces[node], ns))
            continue;
        if (memcmp(tokens_of(t, node), tokens, (size_t)t->block_size * sizeof *tokens) == 0)
            return node;
    }
    return SL_NO_NODE;
}

void sl_radix_insert(struct sl_radix *t, int32_t node, int32_t parent, const struct sl_kv_ns *ns,
                     const int32_t *tokens)
{
    struct sl_kv_node *n = radix_node(t, node);
    SL_ASSERT(!n->in_tree && node != parent);
    SL_DCHECK(sl_radix_find(t, parent, ns, tokens) == SL_NO_NODE);
    if (parent == SL_NO_NODE) {
        t->spaces[node] = *ns;
    } else {
        SL_ASSERT(radix_node(t, parent)->in_tree && !sl_lru_has(&t->lru, parent));
        radix_node(t, parent)->n_children++;
    }
    const struct sl_hash128 name = radix_name(t, parent, ns, tokens);
    int32_t *bucket = &t->buckets[sl_radix_bucket(t, &name)];
    *n = (struct sl_kv_node){.name = name,
                             .parent = parent,
                             .next = *bucket,
                             .in_tree = true,
                             .lasts = parent == SL_NO_NODE ? sl_kv_ns_lasts(ns)
                                                           : radix_node(t, parent)->lasts};
    *bucket = node;
    memcpy(tokens_of(t, node), tokens, (size_t)t->block_size * sizeof *tokens);
    t->n_in_tree++;
}

void sl_radix_remove(struct sl_radix *t, int32_t node)
{
    struct sl_kv_node *n = radix_node(t, node);
    SL_ASSERT(n->in_tree && n->n_children == 0);
    if (sl_lru_has(&t->lru, node))
        sl_radix_revive(t, node);
    int32_t *link = &t->buckets[sl_radix_bucket(t, &n->name)];
    while (*link != node) {
        SL_ASSERT(*link != SL_NO_NODE);
        link = &t->nodes[*link].next;
    }
    *link = n->next;
    if (n->parent != SL_NO_NODE)
        radix_node(t, n->parent)->n_children--;
    n->in_tree = false;
    t->n_in_tree--;
    if (t->feed != NULL)
        sl_feed_removed(t->feed, node);
}

void sl_radix_retire(struct sl_radix *t, int32_t node)
{
    SL_ASSERT(radix_node(t, node)->in_tree);
    sl_lru_append(&t->lru, node);
}

void sl_radix_revive(struct sl_radix *t, int32_t node)
{
    SL_ASSERT(radix_node(t, node)->in_tree);
    sl_lru_remove(&t->lru, node);
}

int32_t sl_radix_evict(struct sl_radix *t)
{
    int32_t node = t->lru.head;
    if (node != SL_NO_NODE)
        sl_radix_remove(t, node);
    return node;
}
