/* SPDX-License-Identifier: MIT
 * The invariants of nodes, pages and prefix tree, walked in full (debug builds, tests, the
 * simulator) or in bounded parts (release builds, while nothing runs).
 */
#include "base/check.h"
#include "kv/kv.h"

#include <string.h>

static int check_free_list(struct sl_kv *kv, const struct sl_id_pool *p, const char *what,
                           struct sl_error *err)
{
    memset(kv->scratch, 0, (size_t)p->n_ids * sizeof *kv->scratch); /* 1: seen in the list */
    if (p->n_free < 0 || p->n_free > p->n_ids)
        return sl_fail(err, SL_EINTERNAL, "I1: %d of %d %ss are free", p->n_free, p->n_ids, what);
    if (p->n_absent < 0 || p->n_absent > p->n_free || (kv->share == NULL && p->n_absent != 0))
        return sl_fail(err, SL_EINTERNAL, "I1: %d of %d free %ss have no memory", p->n_absent,
                       p->n_free, what);
    for (int32_t i = 0; i < p->n_free; i++) {
        int32_t id = p->free_list[i];
        if (id < 0 || id >= p->n_ids || !p->is_free[id] || kv->scratch[id]++)
            return sl_fail(
                err, SL_EINTERNAL,
                "I1: place %d of the free list holds %s %d, which is not free or there twice", i,
                what, id);
    }
    return 0;
}

/* tree: children stand before their parents. */
static int check_lru(struct sl_kv *kv, const struct sl_lru *l, const struct sl_radix *tree,
                     struct sl_error *err)
{
    int32_t n = 0, prev = SL_NO_NODE;
    memset(kv->scratch, 0, (size_t)l->n_nodes * sizeof *kv->scratch); /* 1: seen in the list */
    for (int32_t p = l->head; p != SL_NO_NODE; prev = p, p = l->links[p].next) {
        if (++n > l->n || l->links[p].prev != prev || !l->links[p].in)
            return sl_fail(err, SL_EINTERNAL,
                           "I1: the list of cached nodes is broken at node %d, the %dth of %d", p,
                           n, l->n);
        int32_t parent = tree != NULL ? tree->nodes[p].parent : SL_NO_NODE;
        if (parent != SL_NO_NODE && kv->scratch[parent])
            return sl_fail(err, SL_EINTERNAL, "I1: node %d would be evicted before its child %d",
                           parent, p);
        kv->scratch[p] = 1;
    }
    if (n != l->n || prev != l->tail)
        return sl_fail(err, SL_EINTERNAL,
                       "I1: the list of cached nodes ends at node %d after %d, not at %d after %d",
                       prev, n, l->tail, l->n);
    return 0;
}

/* Everything that can be looked up is in the tree, once. */
static int check_buckets(const struct sl_kv *kv, struct sl_error *err)
{
    const struct sl_radix *t = &kv->tree;
    int32_t n = 0;
    for (uint32_t i = 0; i < t->n_buckets; i++) {
        for (int32_t p = t->buckets[i]; p != SL_NO_NODE; p = t->nodes[p].next) {
            if (!t->nodes[p].in_tree || sl_radix_bucket(t, &t->nodes[p].name) != i ||
                ++n > t->n_in_tree)
                return sl_fail(err, SL_EINTERNAL, "I8: node %d can be found, but is not cached", p);
        }
    }
    if (n != t->n_in_tree)
        return sl_fail(err, SL_EINTERNAL, "I8: %d nodes can be found of %d in the tree", n,
                       t->n_in_tree);
    return 0;
}

static int check_node(const struct sl_kv *kv, int32_t node, struct sl_error *err)
{
    const struct sl_radix *t = &kv->tree;
    const struct sl_kv_node *n = &t->nodes[node];
    int32_t refs = kv->nodes.refs[node];
    bool in_lru = sl_lru_has(&t->lru, node);
    if (refs < 0)
        return sl_fail(err, SL_EINTERNAL, "I1: node %d has %d owners", node, refs);
    if (kv->nodes.is_free[node]) {
        if (n->in_tree || in_lru || refs != 0)
            return sl_fail(err, SL_EINTERNAL, "I1: free node %d is in use: %d owners, in tree: %d",
                           node, refs, n->in_tree);
        return 0;
    }
    if (!n->in_tree) {
        if (refs == 0 || in_lru)
            return sl_fail(err, SL_EINTERNAL, "I1: node %d has %d owners and is lost", node, refs);
        return 0;
    }
    if (in_lru != (refs == 0))
        return sl_fail(err, SL_EINTERNAL, "I1: node %d has %d owners, evictable: %d", node, refs,
                       in_lru);
    if (!n->dead && sl_radix_find(t, n->parent, &t->spaces[node],
                                  t->tokens + (size_t)node * (size_t)t->block_size) != node)
        return sl_fail(err, SL_EINTERNAL, "I8: cached node %d cannot be found", node);
    if (n->parent != SL_NO_NODE && !t->nodes[n->parent].in_tree)
        return sl_fail(err, SL_EINTERNAL, "I8: cached node %d lost its parent %d", node, n->parent);
    return 0;
}

/* K1 and K2 of one node's page in group i. */
static int check_slot(const struct sl_kv *kv, int32_t i, int32_t node, struct sl_error *err)
{
    const struct sl_kv_group *g = &kv->groups[i];
    const struct sl_kv_slot *s = &g->slots[node];
    const struct sl_kv_node *n = &kv->tree.nodes[node];
    const bool is_free = kv->nodes.is_free[node], full = g->cfg.kind == SL_GROUP_FULL;
    if ((s->page == SL_NO_PAGE) != (s->where == SL_KV_NOWHERE) || s->page < SL_NO_PAGE ||
        s->page >= g->pool.n_ids)
        return sl_fail(err, SL_EINTERNAL, "I1: node %d has page %d of %d in group %d, at place %d",
                       node, s->page, g->pool.n_ids, i, (int)s->where);
    if (s->page == SL_NO_PAGE) {
        if ((full && !is_free) || sl_lru_has(&g->lru, node))
            return sl_fail(err, SL_EINTERNAL, "I1: node %d lost its page of group %d", node, i);
        return 0;
    }
    const int32_t refs = kv->nodes.refs[node], owners = g->pool.refs[s->page];
    if (is_free || g->pool.is_free[s->page] || kv->scratch[s->page]++)
        return sl_fail(err, SL_EINTERNAL,
                       "I1: page %d of group %d is free, or twice in use, or of a free node: %d",
                       s->page, i, node);
    if (owners < 0 || owners > refs || (full && owners != refs))
        return sl_fail(err, SL_EINTERNAL,
                       "I1: page %d of group %d has %d owners, its node %d has %d", s->page, i,
                       owners, node, refs);
    if (sl_lru_has(&g->lru, node) != (!full && owners == 0) ||
        (!full && owners == 0 && (!n->in_tree || n->dead)))
        return sl_fail(err, SL_EINTERNAL,
                       "I1: page %d of group %d has %d owners, evictable: %d, node %d in tree: %d",
                       s->page, i, owners, sl_lru_has(&g->lru, node), node, n->in_tree);
    return 0;
}

/* Pages for drafts that no step has. */
static int check_drafts(struct sl_kv *kv, int32_t i, struct sl_error *err)
{
    const struct sl_kv_group *g = &kv->groups[i];
    if (g->n_drafts < 0 || g->n_drafts > g->cfg.n_drafts)
        return sl_fail(err, SL_EINTERNAL, "I1: %d of %d pages for drafts of group %d are left",
                       g->n_drafts, g->cfg.n_drafts, i);
    for (int32_t k = 0; k < g->n_drafts; k++) {
        const int32_t page = g->drafts[k];
        if (page < 0 || page >= g->pool.n_ids || g->pool.is_free[page] || g->pool.refs[page] != 1 ||
            kv->scratch[page]++)
            return sl_fail(err, SL_EINTERNAL,
                           "I1: page %d of group %d, for drafts, is free, shared or there twice",
                           page, i);
    }
    return 0;
}

static int check_group(struct sl_kv *kv, int32_t i, const int32_t *expected, struct sl_error *err)
{
    const struct sl_kv_group *g = &kv->groups[i];
    int rc = check_free_list(kv, &g->pool, "page", err);
    if (rc == 0)
        rc = check_lru(kv, &g->lru, NULL, err);
    memset(kv->scratch, 0, (size_t)g->pool.n_ids * sizeof *kv->scratch); /* 1: a node has it */
    int32_t n_used = 0;
    if (rc == 0)
        rc = check_drafts(kv, i, err);
    for (int32_t node = 0; node < kv->nodes.n_ids && rc == 0; node++) {
        rc = check_slot(kv, i, node, err);
        const int32_t page = g->slots[node].page;
        const int32_t owners = rc == 0 && page != SL_NO_PAGE ? g->pool.refs[page] : 0;
        const int32_t n_leases = g->cfg.kind == SL_GROUP_FULL ? kv->leases.n_of[node] : 0;
        n_used += page != SL_NO_PAGE;
        if (rc == 0 && expected != NULL && owners != expected[node] + n_leases)
            rc = sl_fail(err, SL_EINTERNAL,
                         "I1: page %d of group %d, of node %d, has %d owners, %d sequences use it, "
                         "and %d leases",
                         page, i, node, owners, expected[node], n_leases);
    }
    if (rc == 0 && n_used + g->pool.n_free + g->cfg.n_drafts != g->pool.n_ids)
        rc = sl_fail(err, SL_EINTERNAL,
                     "I1: group %d has %d pages, %d in use, %d free and %d for drafts", i,
                     g->pool.n_ids, n_used, g->pool.n_free, g->cfg.n_drafts);
    return rc;
}

/* Who holds a node holds its parent; no sequence holds two children of one node. */
static int check_links(struct sl_kv *kv, struct sl_error *err)
{
    const struct sl_radix *t = &kv->tree;
    for (int pass = 0; pass < 2; pass++) {
        memset(kv->scratch, 0, (size_t)t->n_nodes * sizeof *kv->scratch);
        for (int32_t node = 0; node < t->n_nodes; node++) {
            const struct sl_kv_node *n = &t->nodes[node];
            if (n->in_tree && n->parent != SL_NO_NODE)
                kv->scratch[n->parent] += pass == 0 ? 1 : kv->nodes.refs[node];
        }
        for (int32_t node = 0; node < t->n_nodes; node++) {
            if (!t->nodes[node].in_tree)
                continue;
            if (pass == 0 && kv->scratch[node] != t->nodes[node].n_children)
                return sl_fail(err, SL_EINTERNAL, "I1: node %d counts %d children of %d", node,
                               t->nodes[node].n_children, kv->scratch[node]);
            if (pass == 1 && kv->scratch[node] > kv->nodes.refs[node])
                return sl_fail(err, SL_EINTERNAL,
                               "I1: children of node %d have %d owners, the node has %d", node,
                               kv->scratch[node], kv->nodes.refs[node]);
        }
    }
    return 0;
}

static int check_totals(const struct sl_kv *kv, const int32_t *expected, struct sl_error *err)
{
    const struct sl_radix *t = &kv->tree;
    int32_t n_free = 0, n_cached = 0, n_owned = 0, n_in_tree = 0;
    for (int32_t node = 0; node < t->n_nodes; node++) {
        int rc = check_node(kv, node, err);
        if (rc != 0)
            return rc;
        n_free += kv->nodes.is_free[node];
        n_cached += !kv->nodes.is_free[node] && kv->nodes.refs[node] == 0;
        n_owned += kv->nodes.refs[node] > 0;
        n_in_tree += t->nodes[node].in_tree;
        const int32_t n_leases = kv->leases.n_of[node];
        if (expected != NULL && kv->nodes.refs[node] != expected[node] + n_leases)
            return sl_fail(err, SL_EINTERNAL,
                           "I1: node %d has %d owners, %d sequences hold it, and %d leases", node,
                           kv->nodes.refs[node], expected[node], n_leases);
    }
    if (n_free != kv->nodes.n_free || n_cached != t->lru.n || n_in_tree != t->n_in_tree)
        return sl_fail(err, SL_EINTERNAL,
                       "I1: %d free + %d cached + %d owned of %d nodes; the counters say %d free, "
                       "%d cached, %d in the tree",
                       n_free, n_cached, n_owned, t->n_nodes, kv->nodes.n_free, t->lru.n,
                       t->n_in_tree);
    return 0;
}

static int check_share(const struct sl_kv *kv, struct sl_error *err)
{
    const struct sl_id_pool *pages = &kv->groups[0].pool;
    if (kv->share == NULL)
        return 0;
    return sl_share_check(kv->share, pages->n_ids - pages->n_absent, err);
}

/* What leases own is what the table says, within its bound. */
static int check_leases(struct sl_kv *kv, struct sl_error *err)
{
    const struct sl_kv_leases *l = &kv->leases;
    int32_t n = 0, n_leased = 0, n_kept = 0;
    memset(kv->scratch, 0, (size_t)kv->nodes.n_ids * sizeof *kv->scratch);
    for (int32_t i = 0; i < SL_MAX_KV_LEASES; i++) {
        int32_t n_nodes = 0;
        for (int32_t p = l->list[i].leaf; p != SL_NO_NODE; p = kv->tree.nodes[p].parent) {
            if (!kv->tree.nodes[p].in_tree || ++n_nodes > l->list[i].n_nodes)
                return sl_fail(err, SL_EINTERNAL, "I15: lease %d of %d nodes holds node %d", i,
                               l->list[i].n_nodes, p);
            kv->scratch[p]++;
        }
        n += l->list[i].leaf != SL_NO_NODE;
    }
    for (int32_t node = 0; node < kv->nodes.n_ids; node++) {
        if (kv->scratch[node] != l->n_of[node] || l->n_of[node] > kv->nodes.refs[node])
            return sl_fail(err, SL_EINTERNAL,
                           "I15: node %d has %d owners, %d leases by its count and %d by the table",
                           node, kv->nodes.refs[node], l->n_of[node], kv->scratch[node]);
        n_leased += l->n_of[node] > 0;
        n_kept += sl_kv_is_kept(kv, node);
    }
    if (n != l->n || n_leased != l->n_leased || n_kept != l->n_kept || n_leased > l->max)
        return sl_fail(err, SL_EINTERNAL,
                       "I15: %d leases own %d nodes of at most %d, %d alone; the counters say %d, "
                       "%d, %d",
                       n, n_leased, l->max, n_kept, l->n, l->n_leased, l->n_kept);
    return 0;
}

int sl_kv_check(struct sl_kv *kv, const int32_t *expected, struct sl_error *err)
{
    int rc = check_free_list(kv, &kv->nodes, "node", err);
    if (rc == 0)
        rc = check_share(kv, err);
    if (rc == 0)
        rc = check_lru(kv, &kv->tree.lru, &kv->tree, err);
    if (rc == 0)
        rc = check_links(kv, err);
    if (rc == 0)
        rc = check_leases(kv, err);
    if (rc == 0)
        rc = check_buckets(kv, err);
    if (rc == 0)
        rc = check_totals(kv, expected, err);
    for (int32_t i = 0; i < kv->n_groups && rc == 0; i++) {
        if (expected != NULL)
            expected += kv->nodes.n_ids;
        rc = check_group(kv, i, expected, err);
    }
    return rc;
}

/* Every page of a group that is not free is cached: with its node, or alone. */
static int check_idle_group(const struct sl_kv *kv, int32_t i, struct sl_error *err)
{
    const struct sl_kv_group *g = &kv->groups[i];
    const int32_t n_cached = sl_kv_n_cached_pages(kv, i);
    if (g->pool.n_free + n_cached + g->cfg.n_drafts != g->pool.n_ids)
        return sl_fail(err, SL_EINTERNAL,
                       "I2: nothing runs, but of %d pages of group %d %d are free and %d cached",
                       g->pool.n_ids - g->cfg.n_drafts, i, g->pool.n_free, n_cached);
    if (g->n_drafts != g->cfg.n_drafts)
        return sl_fail(err, SL_EINTERNAL,
                       "I2: nothing runs, but of %d pages for drafts of group %d %d are left",
                       g->cfg.n_drafts, i, g->n_drafts);
    return 0;
}

static int check_idle_node(const struct sl_kv *kv, int32_t node, struct sl_error *err)
{
    const bool in_tree = kv->tree.nodes[node].in_tree, in_lru = sl_lru_has(&kv->tree.lru, node);
    const int32_t n_leases = kv->leases.n_of[node];
    if (kv->nodes.refs[node] != n_leases || kv->nodes.is_free[node] != !in_tree ||
        in_lru != (in_tree && n_leases == 0))
        return sl_fail(err, SL_EINTERNAL,
                       "I2: nothing runs, but node %d has %d owners (free %d, in the tree %d, "
                       "evictable %d)",
                       node, kv->nodes.refs[node], kv->nodes.is_free[node], in_tree, in_lru);
    for (int32_t i = 0; i < kv->n_groups; i++) {
        const int32_t page = kv->groups[i].slots[node].page;
        const int32_t n_owners = kv->groups[i].cfg.kind == SL_GROUP_FULL ? n_leases : 0;
        if (page != SL_NO_PAGE && (!in_tree || kv->groups[i].pool.refs[page] != n_owners))
            return sl_fail(err, SL_EINTERNAL,
                           "I2: nothing runs, but page %d of group %d, of node %d, has %d owners",
                           page, i, node, kv->groups[i].pool.refs[page]);
    }
    return 0;
}

int sl_kv_check_idle(const struct sl_kv *kv, int32_t n_nodes, int32_t *cursor, struct sl_error *err)
{
    const struct sl_id_pool *p = &kv->nodes;
    const int32_t n_cached = sl_kv_n_cached(kv);
    if (p->n_free + n_cached != p->n_ids)
        return sl_fail(err, SL_EINTERNAL,
                       "I2: nothing runs, but of %d nodes %d are free and %d cached", p->n_ids,
                       p->n_free, n_cached);
    int rc = check_share(kv, err);
    for (int32_t i = 0; i < kv->n_groups && rc == 0; i++)
        rc = check_idle_group(kv, i, err);
    if (rc == 0 && !kv->keep && kv->tree.lru.n != 0)
        rc = sl_fail(err, SL_EINTERNAL, "I2: %d nodes stay cached without prefix caching",
                     kv->tree.lru.n);
    for (int32_t i = 0; i < SL_MIN(n_nodes, p->n_ids) && rc == 0; i++) {
        *cursor = (*cursor + 1) % p->n_ids;
        rc = check_idle_node(kv, *cursor, err);
    }
    return rc;
}
