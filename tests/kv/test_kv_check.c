/* SPDX-License-Identifier: MIT
 * Tests of the walk over pool and prefix tree: every condition it looks at is broken by hand, and
 * the walk must say which and with what numbers; put right again, it must find nothing.
 */
#include "base/check.h"
#include "kv/kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK   3
#define N_PAGES 12

/* Three pages of a prompt that is held, three that are cached, one page that is a whole prompt, one
 * page that is not complete; the others are free. */
struct world {
    struct sl_kv kv;
    int32_t held[3], cached[3], single[1], partial, free_page;
};

static void compute(struct sl_kv *kv, uint8_t ns, int32_t n, int32_t *pages)
{
    static const int32_t tokens[] = {5, 6, 7, 8, 9, 10, 11, 12, 13};
    const struct sl_kv_text text = {tokens, 9, NULL, 0};
    const struct sl_kv_ns space = {.n_bytes = 1, .bytes = {ns}};
    for (int32_t i = 0; i < n; i++)
        pages[i] = sl_kv_take(kv, SL_EVICT_PROMPT);
    for (int32_t i = 0; i < n; i++)
        sl_kv_publish(kv, &space, &text, pages, i);
}

static void whole(struct world *w)
{
    struct sl_error err;
    if (sl_kv_check(&w->kv, NULL, &err) != 0)
        fail_msg("%s", err.msg);
}

static void names(struct world *w, const int32_t *refs, const char *what)
{
    struct sl_error err = {.msg = "nothing"};
    assert_int_equal(sl_kv_check(&w->kv, refs, &err), SL_EINTERNAL);
    if (strstr(err.msg, what) == NULL)
        fail_msg("'%s' does not say '%s'", err.msg, what);
}

static void start(struct world *w)
{
    assert_int_equal(sl_kv_init(&w->kv, N_PAGES, BLOCK, true, 7, NULL), 0);
    compute(&w->kv, 1, 3, w->held);
    compute(&w->kv, 2, 3, w->cached);
    compute(&w->kv, 3, 1, w->single);
    sl_kv_give(&w->kv, w->cached, 3, false);
    w->partial = sl_kv_take(&w->kv, SL_EVICT_PROMPT);
    w->free_page = w->kv.pool.free_list[0];
    whole(w);
}

/* Puts a wrong value, looks, and puts the right one back. */
#define BROKEN(lvalue, wrong, what)    \
    do {                               \
        __auto_type right_ = (lvalue); \
        (lvalue) = (wrong);            \
        names(&w, NULL, what);         \
        (lvalue) = right_;             \
        whole(&w);                     \
    } while (0)

static void the_free_list(void **state)
{
    (void)state;
    struct world w;
    start(&w);
    struct sl_pool *p = &w.kv.pool;
    BROKEN(p->n_free, -1, "I1: -1 of 12 pages are free");
    BROKEN(p->n_free, 13, "I1: 13 of 12 pages are free");
    BROKEN(p->n_free, 3, "I1: 4 free + 3 cached + 5 owned of 12 pages; the counters say 3 free");
    BROKEN(p->free_list[0], -1, "I1: place 0 of the free list holds page -1");
    BROKEN(p->free_list[0], N_PAGES, "I1: place 0 of the free list holds page 12");
    BROKEN(p->free_list[0], w.held[0], "I1: place 0 of the free list");
    BROKEN(p->free_list[1], w.free_page, "I1: place 1 of the free list");
    sl_kv_deinit(&w.kv);
}

static void the_list_of_cached_pages(void **state)
{
    (void)state;
    struct world w;
    start(&w);
    struct sl_radix *t = &w.kv.tree;
    assert_int_equal(t->lru_head, w.cached[2]);
    BROKEN(t->n_lru, 2, "I1: the list of cached pages is broken at page");
    BROKEN(t->n_lru, 4, "I1: the list of cached pages ends at page");
    BROKEN(t->lru_tail, w.cached[1], "I1: the list of cached pages ends at page");
    BROKEN(t->nodes[w.cached[1]].lru_prev, SL_NO_PAGE, "the 2th of 3");
    BROKEN(t->nodes[w.cached[0]].in_lru, false, "the 3th of 3");
    BROKEN(t->nodes[w.cached[1]].parent, w.cached[2], "would be evicted before its child");
    sl_kv_deinit(&w.kv);
}

static void children_and_owners(void **state)
{
    (void)state;
    struct world w;
    start(&w);
    struct sl_radix *t = &w.kv.tree;
    int32_t *refs = w.kv.pool.refs;
    t->nodes[w.free_page].parent = t->nodes[w.partial].parent = SL_NO_PAGE;
    BROKEN(t->nodes[w.held[0]].n_children, 2, "counts 2 children of 1");
    BROKEN(refs[w.held[1]], 2, "have 2 owners, the page has 1");
    BROKEN(refs[w.free_page], -1, "has -1 owners");
    BROKEN(refs[w.free_page], 1, "in use: 1 owners, in tree: 0");
    BROKEN(t->nodes[w.free_page].in_tree, true, "in use: 0 owners, in tree: 1");
    BROKEN(t->nodes[w.free_page].in_lru, true, "in use: 0 owners, in tree: 0");
    BROKEN(refs[w.partial], 0, "has 0 owners and is lost");
    BROKEN(t->nodes[w.partial].in_lru, true, "has 1 owners and is lost");
    BROKEN(t->nodes[w.single[0]].in_lru, true, "has 1 owners, evictable: 1");
    BROKEN(refs[w.single[0]], 0, "has 0 owners, evictable: 0");

    int32_t expected[N_PAGES];
    memcpy(expected, refs, sizeof expected);
    assert_int_equal(sl_kv_check(&w.kv, expected, NULL), 0);
    expected[w.partial] = 2;
    names(&w, expected, "has 1 owners, 2 tables name it");

    /* an owned page that claims to be cached, and one of the list that the list does not hold */
    t->nodes[w.partial].in_tree = t->nodes[w.partial].dead = true;
    names(&w, NULL, "the counters say 4 free, 3 cached, 7 in the tree");
    t->nodes[w.partial].in_tree = t->nodes[w.partial].dead = false;
    t->nodes[w.single[0]].in_lru = true;
    refs[w.single[0]] = 0;
    names(&w, NULL, "4 free + 4 cached + 4 owned of 12 pages; the counters say 4 free, 3 cached");
    sl_kv_deinit(&w.kv);
}

static void what_can_be_found(void **state)
{
    (void)state;
    struct world w;
    start(&w);
    struct sl_radix *t = &w.kv.tree;
    BROKEN(t->nodes[w.single[0]].in_tree, false, "can be found, but is not cached");
    BROKEN(t->nodes[w.single[0]].chain, t->nodes[w.single[0]].chain ^ 1, "I8: page");
    BROKEN(t->n_in_tree, 6, "can be found, but is not cached");
    BROKEN(t->n_in_tree, 8, "I8: 7 pages can be found of 8 in the tree");
    BROKEN(t->tokens[w.single[0] * BLOCK], 99, "cannot be found");
    BROKEN(t->spaces[w.single[0]].bytes[0], 9, "cannot be found");
    BROKEN(t->spaces[w.single[0]].is_private, 1, "cannot be found");
    BROKEN(t->spaces[w.single[0]].n_bytes, 0, "cannot be found");

    /* a parent that is not in the tree, which only pages in doubt can have unseen by a search */
    t->nodes[w.held[0]].n_children = 0;
    t->nodes[w.held[1]].parent = w.partial;
    t->nodes[w.held[1]].dead = true;
    names(&w, NULL, "lost its parent");
    sl_kv_deinit(&w.kv);
}

/* As if namespaces had the same hash: a page is that of its own only. */
static void a_namespace_is_compared_too(void **state)
{
    (void)state;
    struct world w;
    start(&w);
    const int32_t *tokens = w.kv.tree.tokens + (size_t)w.single[0] * BLOCK;
    struct sl_kv_ns *space = &w.kv.tree.spaces[w.single[0]], asked = *space;
    assert_int_equal(sl_radix_find(&w.kv.tree, SL_NO_PAGE, &asked, tokens), w.single[0]);
    space->bytes[0] ^= 1;
    assert_int_equal(sl_radix_find(&w.kv.tree, SL_NO_PAGE, &asked, tokens), SL_NO_PAGE);
    space->bytes[0] ^= 1;
    space->n_bytes++;
    assert_int_equal(sl_radix_find(&w.kv.tree, SL_NO_PAGE, &asked, tokens), SL_NO_PAGE);
    space->n_bytes--;
    space->is_private ^= 1;
    assert_int_equal(sl_radix_find(&w.kv.tree, SL_NO_PAGE, &asked, tokens), SL_NO_PAGE);
    sl_kv_deinit(&w.kv);
}

static void idle(struct world *w, const char *what)
{
    int32_t cursor = 0;
    struct sl_error err = {.msg = "nothing"};
    assert_int_equal(sl_kv_check_idle(&w->kv, N_PAGES + 5, &cursor, &err),
                     what != NULL ? SL_EINTERNAL : 0);
    if (what != NULL && strstr(err.msg, what) == NULL)
        fail_msg("'%s' does not say '%s'", err.msg, what);
}

#define IDLE_BROKEN(lvalue, wrong, what) \
    do {                                 \
        __auto_type right_ = (lvalue);   \
        (lvalue) = (wrong);              \
        idle(&w, what);                  \
        (lvalue) = right_;               \
        idle(&w, NULL);                  \
    } while (0)

static void what_nothing_running_leaves(void **state)
{
    (void)state;
    struct world w;
    start(&w);
    idle(&w, "I2: nothing runs, but of 12 pages 4 are free and 3 cached");
    sl_kv_give(&w.kv, w.held, 3, false);
    sl_kv_give(&w.kv, w.single, 1, false);
    sl_kv_give(&w.kv, &w.partial, 1, false);
    idle(&w, NULL);
    IDLE_BROKEN(w.kv.keep, false, "I2: 7 pages stay cached without prefix caching");
    IDLE_BROKEN(w.kv.pool.refs[w.held[0]], 1, "has 1 owners (free 0, in the tree 1");
    IDLE_BROKEN(w.kv.pool.is_free[w.free_page], 0, "has 0 owners (free 0, in the tree 0");
    IDLE_BROKEN(w.kv.tree.nodes[w.held[0]].in_lru, false, "evictable 0)");

    int32_t cursor = N_PAGES - 1; /* a part of the pages, from where the last one ended */
    assert_int_equal(sl_kv_check_idle(&w.kv, 5, &cursor, NULL), 0);
    assert_int_equal(cursor, 4);
    sl_kv_clear(&w.kv);
    w.kv.keep = false;
    idle(&w, NULL);
    sl_kv_deinit(&w.kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_free_list),
        cmocka_unit_test(the_list_of_cached_pages),
        cmocka_unit_test(children_and_owners),
        cmocka_unit_test(what_can_be_found),
        cmocka_unit_test(a_namespace_is_compared_too),
        cmocka_unit_test(what_nothing_running_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
