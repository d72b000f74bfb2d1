/* SPDX-License-Identifier: MIT */
#include "kv/kv.h"

#include "base/check.h"
#include "base/sys.h"

#include <string.h>

int sl_kv_init(struct sl_kv *kv, int32_t n_pages, int32_t block_size, bool keep, uint64_t seed,
               struct sl_error *err)
{
    *kv = (struct sl_kv){.keep = keep, .block_size = block_size};
    int rc = sl_pool_init(&kv->pool, n_pages, err);
    if (rc != 0)
        return rc;
    rc = sl_radix_init(&kv->tree, n_pages, block_size, seed, err);
    if (rc != 0)
        goto fail_pool;
    kv->scratch = sl_calloc((size_t)SL_MAX(n_pages, block_size), sizeof *kv->scratch);
    if (kv->scratch == NULL) {
        rc = sl_fail(err, SL_ENOMEM, "out of memory for a pool of %d pages", n_pages);
        goto fail_tree;
    }
    return 0;
fail_tree:
    sl_radix_deinit(&kv->tree);
fail_pool:
    sl_pool_deinit(&kv->pool);
    return rc;
}

void sl_kv_deinit(struct sl_kv *kv)
{
    sl_free(kv->scratch);
    sl_radix_deinit(&kv->tree);
    sl_pool_deinit(&kv->pool);
    *kv = (struct sl_kv){0};
}

int32_t sl_kv_n_cached(const struct sl_kv *kv)
{
    return kv->tree.n_lru;
}

int32_t sl_kv_n_available(const struct sl_kv *kv)
{
    return kv->pool.n_free + kv->tree.n_lru;
}

int32_t sl_kv_take(struct sl_kv *kv)
{
    if (kv->pool.n_free == 0) {
        int32_t page = sl_radix_evict(&kv->tree);
        if (page == SL_NO_PAGE)
            return SL_NO_PAGE;
        sl_pool_release(&kv->pool, page);
    }
    return sl_pool_acquire(&kv->pool);
}

/* The tokens of page idx, in place where they lie in one piece. */
static const int32_t *block_of(struct sl_kv *kv, const struct sl_kv_text *text, int32_t idx)
{
    int32_t n = kv->block_size, first = idx * n;
    SL_ASSERT(first >= 0 && first + n <= text->n_a + text->n_b);
    if (first + n <= text->n_a)
        return text->a + first;
    if (first >= text->n_a)
        return text->b + (first - text->n_a);
    int32_t head = text->n_a - first;
    memcpy(kv->scratch, text->a + first, (size_t)head * sizeof *kv->scratch);
    memcpy(kv->scratch + head, text->b, (size_t)(n - head) * sizeof *kv->scratch);
    return kv->scratch;
}

static void hold(struct sl_kv *kv, int32_t page)
{
    if (kv->tree.nodes[page].in_lru)
        sl_radix_revive(&kv->tree, page);
    sl_pool_ref(&kv->pool, page);
}

static void drop(struct sl_kv *kv, int32_t page, bool forget)
{
    if (sl_pool_unref(&kv->pool, page) > 0)
        return;
    kv->n_releases++;
    struct sl_radix_node *n = &kv->tree.nodes[page];
    /* Cached children hang below a page that is to be forgotten when somebody computed them from
     * it. It cannot leave before them, but nothing finds it, or them, any more. */
    if (forget && n->n_children > 0)
        n->dead = true;
    if (n->in_tree && ((kv->keep && !forget) || n->n_children > 0)) {
        sl_radix_retire(&kv->tree, page);
        return;
    }
    if (n->in_tree)
        sl_radix_remove(&kv->tree, page);
    sl_pool_release(&kv->pool, page);
}

int32_t sl_kv_match(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                    int32_t max_pages, int32_t *pages)
{
    int32_t n = 0, parent = SL_NO_PAGE;
    for (; n < max_pages; n++) {
        int32_t page = sl_radix_find(&kv->tree, parent, ns, block_of(kv, text, n));
        if (page == SL_NO_PAGE)
            break;
        hold(kv, page);
        pages[n] = parent = page;
    }
    return n;
}

void sl_kv_publish(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                   int32_t *pages, int32_t idx)
{
    const int32_t *tokens = block_of(kv, text, idx);
    int32_t parent = idx > 0 ? pages[idx - 1] : SL_NO_PAGE;
    int32_t same = sl_radix_find(&kv->tree, parent, ns, tokens);
    SL_ASSERT(same != pages[idx]);
    if (same == SL_NO_PAGE) {
        sl_radix_insert(&kv->tree, pages[idx], parent, ns, tokens);
        return;
    }
    hold(kv, same);
    drop(kv, pages[idx], false);
    pages[idx] = same;
}

void sl_kv_give(struct sl_kv *kv, const int32_t *pages, int32_t n, bool forget)
{
    while (n > 0)
        drop(kv, pages[--n], forget);
}

void sl_kv_clear(struct sl_kv *kv)
{
    while (kv->tree.n_lru > 0)
        sl_pool_release(&kv->pool, sl_radix_evict(&kv->tree));
}

static const char *check_lru(struct sl_kv *kv)
{
    const struct sl_radix *t = &kv->tree;
    int32_t n = 0, prev = SL_NO_PAGE;
    memset(kv->scratch, 0, (size_t)t->n_nodes * sizeof *kv->scratch); /* 1: seen in the list */
    for (int32_t p = t->lru_head; p != SL_NO_PAGE; prev = p, p = t->nodes[p].lru_next) {
        if (++n > t->n_lru || t->nodes[p].lru_prev != prev || !t->nodes[p].in_lru)
            return "the list of cached pages is broken";
        int32_t parent = t->nodes[p].parent;
        if (parent != SL_NO_PAGE && kv->scratch[parent])
            return "a page would be evicted before its child";
        kv->scratch[p] = 1;
    }
    return n == t->n_lru && prev == t->lru_tail ? NULL : "the list of cached pages has a wrong end";
}

static const char *check_node(const struct sl_kv *kv, int32_t page)
{
    const struct sl_radix *t = &kv->tree;
    const struct sl_radix_node *n = &t->nodes[page];
    int32_t refs = kv->pool.refs[page];
    if (kv->pool.is_free[page])
        return n->in_tree || refs != 0 ? "a free page is in use" : NULL;
    if (!n->in_tree)
        return refs == 0 || n->in_lru ? "a page without owner is neither free nor cached" : NULL;
    if (n->in_lru != (refs == 0))
        return "a page is both owned and evictable, or neither";
    if (!n->dead && sl_radix_find(t, n->parent, &t->spaces[page],
                                  t->tokens + (size_t)page * (size_t)t->block_size) != page)
        return "a cached page cannot be found";
    if (n->parent != SL_NO_PAGE && !t->nodes[n->parent].in_tree)
        return "a cached page lost its parent";
    return NULL;
}

/* Who holds a page holds its parent; no sequence holds two children of one page. */
static const char *check_links(struct sl_kv *kv)
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
                return "a cached page miscounts its children";
            if (pass == 1 && kv->scratch[page] > kv->pool.refs[page])
                return "a page is held without its parent";
        }
    }
    return NULL;
}

const char *sl_kv_check(struct sl_kv *kv, const int32_t *expected_refs)
{
    const struct sl_radix *t = &kv->tree;
    const char *bad = check_lru(kv);
    if (bad == NULL)
        bad = check_links(kv);
    if (bad != NULL)
        return bad;
    int32_t n_free = 0, n_cached = 0, n_owned = 0, n_in_tree = 0;
    for (int32_t page = 0; page < t->n_nodes; page++) {
        bad = check_node(kv, page);
        if (bad != NULL)
            return bad;
        n_free += kv->pool.is_free[page];
        n_cached += !kv->pool.is_free[page] && kv->pool.refs[page] == 0;
        n_owned += kv->pool.refs[page] > 0;
        n_in_tree += t->nodes[page].in_tree && !kv->pool.is_free[page];
        if (expected_refs != NULL && kv->pool.refs[page] != expected_refs[page])
            return "a page's count of owners is not the number of tables that name it";
    }
    if (n_free != kv->pool.n_free || n_cached != t->n_lru || n_in_tree != t->n_in_tree ||
        n_free + n_cached + n_owned != t->n_nodes)
        return "free + cached + owned pages are not the total";
    return NULL;
}
