/* SPDX-License-Identifier: MIT
 * The invariants of pool and prefix tree, walked in full (debug builds, tests, the simulator) or in
 * bounded parts (release builds, while nothing runs).
 */
#include "base/check.h"
#include "kv/kv.h"

#include <string.h>

static int check_free_list(struct sl_kv *kv, struct sl_error *err)
{
    const struct sl_pool *p = &kv->pool;
    memset(kv->scratch, 0, (size_t)p->n_pages * sizeof *kv->scratch); /* 1: seen in the list */
    if (p->n_free < 0 || p->n_free > p->n_pages)
        return sl_fail(err, SL_EINTERNAL, "I1: %d of %d pages are free", p->n_free, p->n_pages);
    if (p->n_absent < 0 || p->n_absent > p->n_free || (kv->share == NULL && p->n_absent != 0))
        return sl_fail(err, SL_EINTERNAL, "I1: %d of %d free pages have no memory", p->n_absent,
                       p->n_free);
    for (int32_t i = 0; i < p->n_free; i++) {
        int32_t page = p->free_list[i];
        if (page < 0 || page >= p->n_pages || !p->is_free[page] || kv->scratch[page]++)
            return sl_fail(
                err, SL_EINTERNAL,
                "I1: place %d of the free list holds page %d, which is not free or there "
                "twice",
                i, page);
    }
    return 0;
}

static int check_lru(struct sl_kv *kv, struct sl_error *err)
{
    const struct sl_radix *t = &kv->tree;
    int32_t n = 0, prev = SL_NO_PAGE;
    memset(kv->scratch, 0, (size_t)t->n_nodes * sizeof *kv->scratch); /* 1: seen in the list */
    for (int32_t p = t->lru_head; p != SL_NO_PAGE; prev = p, p = t->nodes[p].lru_next) {
        if (++n > t->n_lru || t->nodes[p].lru_prev != prev || !t->nodes[p].in_lru)
            return sl_fail(err, SL_EINTERNAL,
                           "I1: the list of cached pages is broken at page %d, the %dth of %d", p,
                           n, t->n_lru);
        int32_t parent = t->nodes[p].parent;
        if (parent != SL_NO_PAGE && kv->scratch[parent])
            return sl_fail(err, SL_EINTERNAL, "I1: page %d would be evicted before its child %d",
                           parent, p);
        kv->scratch[p] = 1;
    }
    if (n != t->n_lru || prev != t->lru_tail)
        return sl_fail(err, SL_EINTERNAL,
                       "I1: the list of cached pages ends at page %d after %d, not at %d after %d",
                       prev, n, t->lru_tail, t->n_lru);
    return 0;
}

/* Everything that can be looked up is in the tree, once. */
static int check_buckets(const struct sl_kv *kv, struct sl_error *err)
{
    const struct sl_radix *t = &kv->tree;
    int32_t n = 0;
    for (uint32_t i = 0; i < t->n_buckets; i++) {
        for (int32_t p = t->buckets[i]; p != SL_NO_PAGE; p = t->nodes[p].next) {
            if (!t->nodes[p].in_tree || (t->nodes[p].chain & (t->n_buckets - 1)) != i ||
                ++n > t->n_in_tree)
                return sl_fail(err, SL_EINTERNAL, "I8: page %d can be found, but is not cached", p);
        }
    }
    if (n != t->n_in_tree)
        return sl_fail(err, SL_EINTERNAL, "I8: %d pages can be found of %d in the tree", n,
                       t->n_in_tree);
    return 0;
}

static int check_node(const struct sl_kv *kv, int32_t page, struct sl_error *err)
{
    const struct sl_radix *t = &kv->tree;
    const struct sl_radix_node *n = &t->nodes[page];
    int32_t refs = kv->pool.refs[page];
    if (refs < 0)
        return sl_fail(err, SL_EINTERNAL, "I1: page %d has %d owners", page, refs);
    if (kv->pool.is_free[page]) {
        if (n->in_tree || n->in_lru || refs != 0)
            return sl_fail(err, SL_EINTERNAL, "I1: free page %d is in use: %d owners, in tree: %d",
                           page, refs, n->in_tree);
        return 0;
    }
    if (!n->in_tree) {
        if (refs == 0 || n->in_lru)
            return sl_fail(err, SL_EINTERNAL, "I1: page %d has %d owners and is lost", page, refs);
        return 0;
    }
    if (n->in_lru != (refs == 0))
        return sl_fail(err, SL_EINTERNAL, "I1: page %d has %d owners, evictable: %d", page, refs,
                       n->in_lru);
    if (!n->dead && sl_radix_find(t, n->parent, &t->spaces[page],
                                  t->tokens + (size_t)page * (size_t)t->block_size) != page)
        return sl_fail(err, SL_EINTERNAL, "I8: cached page %d cannot be found", page);
    if (n->parent != SL_NO_PAGE && !t->nodes[n->parent].in_tree)
        return sl_fail(err, SL_EINTERNAL, "I8: cached page %d lost its parent %d", page, n->parent);
    return 0;
}

/* Who holds a page holds its parent; no sequence holds two children of one page. */
static int check_links(struct sl_kv *kv, struct sl_error *err)
{
    const struct sl_radix *t = &kv->tree;
    for (int pass = 0; pass < 2; pass++) {
        memset(kv->scratch, 0, (size_t)t->n_nodes * sizeof *kv->scratch);
        for (int32_t page = 0; page < t->n_nodes; page++) {
            const struct sl_radix_node *n = &t->nodes[page];
            if (n->in_tree && n->parent != SL_NO_PAGE)
                kv->scratch[n->parent] += pass == 0 ? 1 : kv->pool.refs[page];
        }
        for (int32_t page = 0; page < t->n_nodes; page++) {
            if (!t->nodes[page].in_tree)
                continue;
            if (pass == 0 && kv->scratch[page] != t->nodes[page].n_children)
                return sl_fail(err, SL_EINTERNAL, "I1: page %d counts %d children of %d", page,
                               t->nodes[page].n_children, kv->scratch[page]);
            if (pass == 1 && kv->scratch[page] > kv->pool.refs[page])
                return sl_fail(err, SL_EINTERNAL,
                               "I1: children of page %d have %d owners, the page has %d", page,
                               kv->scratch[page], kv->pool.refs[page]);
        }
    }
    return 0;
}

static int check_totals(const struct sl_kv *kv, const int32_t *expected_refs, struct sl_error *err)
{
    const struct sl_radix *t = &kv->tree;
    int32_t n_free = 0, n_cached = 0, n_owned = 0, n_in_tree = 0;
    for (int32_t page = 0; page < t->n_nodes; page++) {
        int rc = check_node(kv, page, err);
        if (rc != 0)
            return rc;
        n_free += kv->pool.is_free[page];
        n_cached += !kv->pool.is_free[page] && kv->pool.refs[page] == 0;
        n_owned += kv->pool.refs[page] > 0;
        n_in_tree += t->nodes[page].in_tree;
        if (expected_refs != NULL && kv->pool.refs[page] != expected_refs[page])
            return sl_fail(err, SL_EINTERNAL, "I1: page %d has %d owners, %d tables name it", page,
                           kv->pool.refs[page], expected_refs[page]);
    }
    if (n_free != kv->pool.n_free || n_cached != t->n_lru || n_in_tree != t->n_in_tree)
        return sl_fail(err, SL_EINTERNAL,
                       "I1: %d free + %d cached + %d owned of %d pages; the counters say %d free, "
                       "%d cached, %d in the tree",
                       n_free, n_cached, n_owned, t->n_nodes, kv->pool.n_free, t->n_lru,
                       t->n_in_tree);
    return 0;
}

int sl_kv_check(struct sl_kv *kv, const int32_t *expected_refs, struct sl_error *err)
{
    int rc = check_free_list(kv, err);
    if (rc == 0 && kv->share != NULL)
        rc = sl_share_check(kv->share, kv->pool.n_pages - kv->pool.n_absent, err);
    if (rc == 0)
        rc = check_lru(kv, err);
    if (rc == 0)
        rc = check_links(kv, err);
    if (rc == 0)
        rc = check_buckets(kv, err);
    return rc != 0 ? rc : check_totals(kv, expected_refs, err);
}

int sl_kv_check_idle(const struct sl_kv *kv, int32_t n_pages, int32_t *cursor, struct sl_error *err)
{
    const struct sl_pool *p = &kv->pool;
    if (p->n_free + kv->tree.n_lru != p->n_pages)
        return sl_fail(err, SL_EINTERNAL,
                       "I2: nothing runs, but of %d pages %d are free and %d cached", p->n_pages,
                       p->n_free, kv->tree.n_lru);
    if (kv->share != NULL && sl_share_check(kv->share, p->n_pages - p->n_absent, err) != 0)
        return SL_EINTERNAL;
    if (!kv->keep && kv->tree.n_lru != 0)
        return sl_fail(err, SL_EINTERNAL, "I2: %d pages stay cached without prefix caching",
                       kv->tree.n_lru);
    for (int32_t i = 0; i < SL_MIN(n_pages, p->n_pages); i++) {
        int32_t page = *cursor = (*cursor + 1) % p->n_pages;
        const struct sl_radix_node *n = &kv->tree.nodes[page];
        if (p->refs[page] != 0 || p->is_free[page] != !n->in_tree || n->in_lru != n->in_tree)
            return sl_fail(err, SL_EINTERNAL,
                           "I2: nothing runs, but page %d has %d owners (free %d, in the tree %d, "
                           "evictable %d)",
                           page, p->refs[page], p->is_free[page], n->in_tree, n->in_lru);
    }
    return 0;
}
