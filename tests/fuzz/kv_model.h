/* SPDX-License-Identifier: MIT
 * kv_model.h - what kv/kv.h promises, as plain arrays searched from end to end: every page of the
 * prefix cache knows its whole prefix, the least recently used one is found by a clock.
 */
#ifndef SL_FUZZ_KV_MODEL_H
#define SL_FUZZ_KV_MODEL_H

#include "fuzz.h"
#include "kv/kv.h"

#include <string.h>

#define MODEL_PAGES  16
#define MODEL_TOKENS 48 /* of one prefix */

struct model_page {
    bool is_free, in_tree;
    bool hidden; /* it or a page before it is in doubt */
    int32_t refs, parent, ns, n;
    int32_t tokens[MODEL_TOKENS]; /* [n] all of its prefix and itself */
    uint64_t when;                /* it lost its last owner */
};

struct model_kv {
    int32_t n_pages, block;
    bool keep;
    struct model_page page[MODEL_PAGES];
    int32_t free_list[MODEL_PAGES], n_free;
    uint64_t clock, n_releases;
};

static inline void model_free(struct model_kv *m, int32_t page)
{
    m->page[page] = (struct model_page){.is_free = true, .parent = SL_NO_PAGE};
    m->free_list[m->n_free++] = page;
}

static inline void model_init(struct model_kv *m, int32_t n_pages, int32_t block, bool keep)
{
    *m = (struct model_kv){.n_pages = n_pages, .block = block, .keep = keep};
    for (int32_t page = n_pages; page-- > 0;)
        model_free(m, page);
}

static inline bool model_is_cached(const struct model_kv *m, int32_t page)
{
    return m->page[page].in_tree && m->page[page].refs == 0;
}

static inline int32_t model_oldest(const struct model_kv *m)
{
    int32_t best = SL_NO_PAGE;
    for (int32_t i = 0; i < m->n_pages; i++)
        if (model_is_cached(m, i) && (best == SL_NO_PAGE || m->page[i].when < m->page[best].when))
            best = i;
    return best;
}

static inline int32_t model_available(const struct model_kv *m)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_pages; i++)
        n += m->page[i].is_free || model_is_cached(m, i);
    return n;
}

static inline bool model_has_children(const struct model_kv *m, int32_t page)
{
    for (int32_t i = 0; i < m->n_pages; i++)
        if (m->page[i].in_tree && m->page[i].parent == page)
            return true;
    return false;
}

static inline int32_t model_take(struct model_kv *m)
{
    if (m->n_free == 0) {
        int32_t old = model_oldest(m);
        if (old == SL_NO_PAGE)
            return SL_NO_PAGE;
        SL_ASSERT(!model_has_children(m, old));
        model_free(m, old);
    }
    int32_t page = m->free_list[--m->n_free];
    m->page[page].is_free = false;
    m->page[page].refs = 1;
    return page;
}

static inline int32_t model_find(const struct model_kv *m, int32_t ns, const int32_t *tokens,
                                 int32_t n)
{
    for (int32_t i = 0; i < m->n_pages; i++) {
        const struct model_page *e = &m->page[i];
        if (e->in_tree && !e->hidden && e->ns == ns && e->n == n &&
            memcmp(e->tokens, tokens, (size_t)n * sizeof *tokens) == 0)
            return i;
    }
    return SL_NO_PAGE;
}

static inline int32_t model_match(struct model_kv *m, int32_t ns, const int32_t *tokens,
                                  int32_t max_pages, int32_t *pages)
{
    int32_t n = 0;
    for (; n < max_pages; n++) {
        pages[n] = model_find(m, ns, tokens, (n + 1) * m->block);
        if (pages[n] == SL_NO_PAGE)
            break;
        m->page[pages[n]].refs++;
    }
    return n;
}

static inline void model_hide(struct model_kv *m, int32_t page)
{
    bool more = true;
    m->page[page].hidden = true;
    while (more) {
        more = false;
        for (int32_t i = 0; i < m->n_pages; i++) {
            struct model_page *e = &m->page[i];
            if (e->in_tree && !e->hidden && e->parent != SL_NO_PAGE && m->page[e->parent].hidden)
                e->hidden = more = true;
        }
    }
}

static inline void model_drop(struct model_kv *m, int32_t page, bool forget)
{
    struct model_page *e = &m->page[page];
    SL_ASSERT(e->refs > 0);
    if (--e->refs > 0)
        return;
    m->n_releases++;
    bool parent = model_has_children(m, page);
    if (forget && parent)
        model_hide(m, page);
    if (e->in_tree && ((m->keep && !forget) || parent))
        e->when = ++m->clock;
    else
        model_free(m, page);
}

static inline void model_publish(struct model_kv *m, int32_t ns, const int32_t *tokens,
                                 int32_t *pages, int32_t idx)
{
    int32_t n = (idx + 1) * m->block, same = model_find(m, ns, tokens, n);
    if (same != SL_NO_PAGE) {
        m->page[same].refs++;
        model_drop(m, pages[idx], false);
        pages[idx] = same;
        return;
    }
    struct model_page *e = &m->page[pages[idx]];
    e->in_tree = true;
    e->ns = ns;
    e->n = n;
    e->parent = idx > 0 ? pages[idx - 1] : SL_NO_PAGE;
    SL_ASSERT(n <= MODEL_TOKENS);
    memcpy(e->tokens, tokens, (size_t)n * sizeof *tokens);
}

static inline void model_give(struct model_kv *m, const int32_t *pages, int32_t n, bool forget)
{
    while (n > 0)
        model_drop(m, pages[--n], forget);
}

static inline void model_clear(struct model_kv *m)
{
    for (int32_t old; (old = model_oldest(m)) != SL_NO_PAGE;)
        model_free(m, old);
}

/* Every page, the free list, the order of eviction and the sums. */
static inline void model_compare(const struct model_kv *m, const struct sl_kv *kv)
{
    int32_t n_cached = 0;
    uint64_t when = 0;
    SL_ASSERT(kv->pool.n_free == m->n_free && kv->n_releases == m->n_releases);
    SL_ASSERT(memcmp(kv->pool.free_list, m->free_list, (size_t)m->n_free * sizeof(int32_t)) == 0);
    for (int32_t i = 0; i < m->n_pages; i++) {
        const struct model_page *e = &m->page[i];
        SL_ASSERT((kv->pool.is_free[i] != 0) == e->is_free && kv->pool.refs[i] == e->refs);
        SL_ASSERT(kv->tree.nodes[i].in_tree == e->in_tree);
        n_cached += model_is_cached(m, i);
    }
    SL_ASSERT(sl_kv_n_cached(kv) == n_cached && sl_kv_n_available(kv) == n_cached + m->n_free);
    for (int32_t i = kv->tree.lru_head; i != SL_NO_PAGE; i = kv->tree.nodes[i].lru_next) {
        SL_ASSERT(model_is_cached(m, i) && m->page[i].when > when && n_cached-- > 0);
        when = m->page[i].when;
    }
    SL_ASSERT(n_cached == 0);
}

#endif
