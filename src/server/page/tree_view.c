/* SPDX-License-Identifier: MIT */
#include "server/page/tree_view.h"

#include "base/check.h"
#include "base/sys.h"

struct link { /* of one page */
    int32_t first_child, next, parent;
    int32_t n_open; /* children whose sums are not known yet */
    int32_t n_all, n_owned, n_state, height;
    int32_t shown_parent; /* the node in the view above it */
};

struct maker {
    struct link *links; /* [n_pages] */
    int32_t *heap;      /* [n_pages] first a stack of pages, then the largest candidates */
    int32_t n_heap, n_pages;
};

static bool tree_view_is_in(const struct maker *m, int32_t page)
{
    return page >= 0 && page < m->n_pages && m->links[page].n_all > 0;
}

/* Children of every page, from their parents; n_all is 1 for pages of the tree. */
static void link_pages(struct maker *m, const struct sl_page *pages)
{
    for (int32_t i = 0; i < m->n_pages; i++)
        m->links[i] = (struct link){.first_child = -1,
                                    .next = -1,
                                    .parent = pages[i].parent,
                                    .n_all = pages[i].in_tree,
                                    .n_owned = pages[i].in_tree && pages[i].use == SL_PAGE_OWNED,
                                    .height = pages[i].in_tree,
                                    .n_state = pages[i].in_tree && pages[i].has_state,
                                    .shown_parent = -1};
    for (int32_t i = 0; i < m->n_pages; i++) {
        struct link *l = &m->links[i];
        if (!tree_view_is_in(m, i) || l->parent < 0)
            continue;
        if (!tree_view_is_in(m, l->parent)) { /* it left while the copy was made */
            l->n_all = 0;
            continue;
        }
        l->next = m->links[l->parent].first_child;
        m->links[l->parent].first_child = i;
        m->links[l->parent].n_open++;
    }
}

/* Sums from the leaves up; what a circle holds is never reached and keeps n_open. */
static void sum_up(struct maker *m, struct sl_tree_view *v)
{
    for (int32_t i = 0; i < m->n_pages; i++) {
        if (tree_view_is_in(m, i) && m->links[i].n_open == 0) {
            m->heap[m->n_heap++] = i;
            v->n_leaves++;
        }
    }
    while (m->n_heap > 0) {
        const struct link *l = &m->links[m->heap[--m->n_heap]];
        if (l->parent < 0 || !tree_view_is_in(m, l->parent))
            continue;
        struct link *up = &m->links[l->parent];
        up->n_all += l->n_all;
        up->n_owned += l->n_owned;
        up->n_state += l->n_state;
        up->height = SL_MAX(up->height, l->height + 1);
        if (--up->n_open == 0)
            m->heap[m->n_heap++] = l->parent;
    }
}

static bool before(const struct maker *m, int32_t a, int32_t b)
{
    int32_t n_a = m->links[a].n_all, n_b = m->links[b].n_all;
    return n_a > n_b || (n_a == n_b && a < b);
}

static void heap_push(struct maker *m, int32_t page)
{
    SL_ASSERT(m->n_heap < m->n_pages);
    int32_t i = m->n_heap++;
    for (; i > 0 && before(m, page, m->heap[(i - 1) / 2]); i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = page;
}

static int32_t heap_pop(struct maker *m)
{
    SL_ASSERT(m->n_heap > 0);
    int32_t top = m->heap[0], last = m->heap[--m->n_heap], i = 0;
    for (int32_t kid; (kid = 2 * i + 1) < m->n_heap; i = kid) {
        kid += kid + 1 < m->n_heap && before(m, m->heap[kid + 1], m->heap[kid]);
        if (!before(m, m->heap[kid], last))
            break;
        m->heap[i] = m->heap[kid];
    }
    m->heap[i] = last;
    return top;
}

static void push_children(struct maker *m, int32_t page, int32_t shown_parent)
{
    for (int32_t kid = m->links[page].first_child; kid >= 0; kid = m->links[kid].next) {
        if (m->links[kid].n_open > 0) /* part of a circle */
            continue;
        m->links[kid].shown_parent = shown_parent;
        heap_push(m, kid);
    }
}

static void show_largest(struct maker *m, struct sl_tree_view *v)
{
    for (int32_t i = 0; i < m->n_pages; i++) {
        if (!tree_view_is_in(m, i) || m->links[i].parent >= 0 || m->links[i].n_open > 0)
            continue;
        v->n_roots++;
        v->n_pages += m->links[i].n_all;
        v->n_state += m->links[i].n_state;
        v->depth = SL_MAX(v->depth, m->links[i].height);
        heap_push(m, i);
    }
    while (m->n_heap > 0 && v->n_nodes < SL_TREE_VIEW_MAX) {
        int32_t page = heap_pop(m), n_run = 1, end = page, kid;
        while ((kid = m->links[end].first_child) >= 0 && m->links[kid].next < 0 &&
               m->links[kid].n_open == 0) {
            end = kid;
            n_run++;
        }
        const struct link *l = &m->links[page];
        v->nodes[v->n_nodes] = (struct sl_tree_node){.parent = l->shown_parent,
                                                     .n_run = n_run,
                                                     .n_all = l->n_all,
                                                     .n_owned = l->n_owned,
                                                     .n_state = l->n_state};
        push_children(m, end, v->n_nodes++);
    }
}

int sl_tree_view_make(struct sl_tree_view *v, const struct sl_page *pages, int32_t n_pages,
                      struct sl_error *err)
{
    struct maker m = {.n_pages = n_pages};
    *v = (struct sl_tree_view){0};
    m.links = sl_calloc((size_t)SL_MAX(n_pages, 1), sizeof *m.links);
    m.heap = sl_calloc((size_t)SL_MAX(n_pages, 1), sizeof *m.heap);
    int rc = 0;
    if (m.links == NULL || m.heap == NULL) {
        rc = sl_fail(err, SL_ENOMEM, "out of memory");
    } else {
        link_pages(&m, pages);
        sum_up(&m, v);
        show_largest(&m, v);
    }
    sl_free(m.heap);
    sl_free(m.links);
    return rc;
}

void sl_page_map(const struct sl_page *pages, int32_t n_pages, int32_t n_cells, uint8_t *out)
{
    SL_ASSERT(n_cells > 0 && n_cells <= n_pages);
    for (int32_t c = 0; c < n_cells; c++) {
        int32_t first = (int32_t)((int64_t)c * n_pages / n_cells);
        int32_t end = (int32_t)((int64_t)(c + 1) * n_pages / n_cells);
        int32_t n[SL_PAGE_OWNED + 1] = {0};
        for (int32_t i = first; i < end; i++)
            n[pages[i].use]++;
        out[2 * c] = (uint8_t)SL_CEIL_DIV(n[SL_PAGE_OWNED] * 15, end - first);
        out[2 * c + 1] = (uint8_t)SL_CEIL_DIV(n[SL_PAGE_CACHED] * 15, end - first);
    }
}
