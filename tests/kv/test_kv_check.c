/* SPDX-License-Identifier: MIT
 * Tests of the walk over nodes, pages and prefix tree: every condition it looks at is broken by
 * hand, and the walk must say which and with what numbers; put right again, it must find nothing.
 */
#include "base/check.h"
#include "kv/kv_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK   3
#define N_PAGES 12

/* Three blocks of a prompt that is held, three that are cached, one that is a whole prompt, one
 * that is not complete; the others are free. */
struct world {
    struct sl_kv kv;
    struct kv_held owned, old, one, rest;
    const int32_t *held, *cached, *single; /* their nodes */
    int32_t partial, free_node;
};

static const int32_t *compute(struct sl_kv *kv, uint8_t ns, int32_t n, struct kv_held *h)
{
    static const int32_t tokens[] = {5, 6, 7, 8, 9, 10, 11, 12, 13};
    const struct sl_kv_text text = {tokens, 9, NULL, 0};
    const struct sl_kv_ns space = {.n_bytes = 1, .bytes = {ns}};
    struct sl_kv_blocks *b = kv_hold(h);
    for (int32_t i = 0; i < n; i++)
        assert_true(sl_kv_take(kv, b, SL_EVICT_PROMPT));
    for (int32_t i = 0; i < n; i++)
        sl_kv_publish(kv, &space, &text, b, i);
    return h->nodes;
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
    kv_init_full(&w->kv, N_PAGES, BLOCK, true, 7);
    w->held = compute(&w->kv, 1, 3, &w->owned);
    w->cached = compute(&w->kv, 2, 3, &w->old);
    w->single = compute(&w->kv, 3, 1, &w->one);
    sl_kv_give(&w->kv, &w->old.b, 0, false);
    assert_true(sl_kv_take(&w->kv, kv_hold(&w->rest), SL_EVICT_PROMPT));
    w->partial = w->rest.nodes[0];
    w->free_node = w->kv.nodes.free_list[0];
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
    struct sl_id_pool *p = &w.kv.nodes;
    BROKEN(p->n_free, -1, "I1: -1 of 12 nodes are free");
    BROKEN(p->n_free, 13, "I1: 13 of 12 nodes are free");
    BROKEN(p->n_free, 3, "I1: 4 free + 3 cached + 5 owned of 12 nodes; the counters say 3 free");
    BROKEN(p->free_list[0], -1, "I1: place 0 of the free list holds node -1");
    BROKEN(p->free_list[0], N_PAGES, "I1: place 0 of the free list holds node 12");
    BROKEN(p->free_list[0], w.held[0], "I1: place 0 of the free list");
    BROKEN(p->free_list[1], w.free_node, "I1: place 1 of the free list");
    sl_kv_deinit(&w.kv);
}

static void the_list_of_cached_nodes(void **state)
{
    (void)state;
    struct world w;
    start(&w);
    struct sl_radix *t = &w.kv.tree;
    assert_int_equal(t->lru.head, w.cached[2]);
    BROKEN(t->lru.n, 2, "I1: the list of cached nodes is broken at node");
    BROKEN(t->lru.n, 4, "I1: the list of cached nodes ends at node");
    BROKEN(t->lru.tail, w.cached[1], "I1: the list of cached nodes ends at node");
    BROKEN(t->lru.links[w.cached[1]].prev, SL_NO_NODE, "the 2th of 3");
    BROKEN(t->lru.links[w.cached[0]].in, false, "the 3th of 3");
    BROKEN(t->nodes[w.cached[1]].parent, w.cached[2], "would be evicted before its child");
    sl_kv_deinit(&w.kv);
}

static void children_and_owners(void **state)
{
    (void)state;
    struct world w;
    start(&w);
    struct sl_radix *t = &w.kv.tree;
    int32_t *refs = w.kv.nodes.refs;
    t->nodes[w.free_node].parent = t->nodes[w.partial].parent = SL_NO_NODE;
    BROKEN(t->nodes[w.held[0]].n_children, 2, "counts 2 children of 1");
    BROKEN(refs[w.held[1]], 2, "have 2 owners, the node has 1");
    BROKEN(refs[w.free_node], -1, "has -1 owners");
    BROKEN(refs[w.free_node], 1, "in use: 1 owners, in tree: 0");
    BROKEN(t->nodes[w.free_node].in_tree, true, "in use: 0 owners, in tree: 1");
    BROKEN(t->lru.links[w.free_node].in, true, "in use: 0 owners, in tree: 0");
    BROKEN(refs[w.partial], 0, "has 0 owners and is lost");
    BROKEN(t->lru.links[w.partial].in, true, "has 1 owners and is lost");
    BROKEN(t->lru.links[w.single[0]].in, true, "has 1 owners, evictable: 1");
    BROKEN(refs[w.single[0]], 0, "has 0 owners, evictable: 0");

    int32_t expected[2 * N_PAGES] = {0};
    kv_count(&w.kv, &w.owned.b, expected);
    kv_count(&w.kv, &w.one.b, expected);
    kv_count(&w.kv, &w.rest.b, expected);
    assert_int_equal(sl_kv_check(&w.kv, expected, NULL), 0);
    expected[w.partial] = 2;
    names(&w, expected, "has 1 owners, 2 sequences hold it");

    /* an owned page that claims to be cached, and one of the list that the list does not hold */
    t->nodes[w.partial].in_tree = t->nodes[w.partial].dead = true;
    names(&w, NULL, "the counters say 4 free, 3 cached, 7 in the tree");
    t->nodes[w.partial].in_tree = t->nodes[w.partial].dead = false;
    t->lru.links[w.single[0]].in = true;
    refs[w.single[0]] = 0;
    names(&w, NULL, "4 free + 4 cached + 4 owned of 12 nodes; the counters say 4 free, 3 cached");
    sl_kv_deinit(&w.kv);
}

static void what_can_be_found(void **state)
{
    (void)state;
    struct world w;
    start(&w);
    struct sl_radix *t = &w.kv.tree;
    BROKEN(t->nodes[w.single[0]].in_tree, false, "can be found, but is not cached");
    BROKEN(t->nodes[w.single[0]].name.lo, t->nodes[w.single[0]].name.lo ^ 1, "I8: ");
    BROKEN(t->n_in_tree, 6, "can be found, but is not cached");
    BROKEN(t->n_in_tree, 8, "I8: 7 nodes can be found of 8 in the tree");
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
    assert_int_equal(sl_radix_find(&w.kv.tree, SL_NO_NODE, &asked, tokens), w.single[0]);
    space->bytes[0] ^= 1;
    assert_int_equal(sl_radix_find(&w.kv.tree, SL_NO_NODE, &asked, tokens), SL_NO_NODE);
    space->bytes[0] ^= 1;
    space->n_bytes++;
    assert_int_equal(sl_radix_find(&w.kv.tree, SL_NO_NODE, &asked, tokens), SL_NO_NODE);
    space->n_bytes--;
    space->is_private ^= 1;
    assert_int_equal(sl_radix_find(&w.kv.tree, SL_NO_NODE, &asked, tokens), SL_NO_NODE);
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
    idle(&w, "I2: nothing runs, but of 12 nodes 4 are free and 3 cached");
    sl_kv_give(&w.kv, &w.owned.b, 0, false);
    sl_kv_give(&w.kv, &w.one.b, 0, false);
    sl_kv_give(&w.kv, &w.rest.b, 0, false);
    idle(&w, NULL);
    IDLE_BROKEN(w.kv.keep, false, "I2: 7 nodes stay cached without prefix caching");
    IDLE_BROKEN(w.kv.nodes.refs[w.held[0]], 1, "has 1 owners (free 0, in the tree 1");
    IDLE_BROKEN(w.kv.nodes.is_free[w.free_node], 0, "has 0 owners (free 0, in the tree 0");
    IDLE_BROKEN(w.kv.tree.lru.links[w.held[0]].in, false, "evictable 0)");

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
        cmocka_unit_test(the_list_of_cached_nodes),
        cmocka_unit_test(children_and_owners),
        cmocka_unit_test(what_can_be_found),
        cmocka_unit_test(a_namespace_is_compared_too),
        cmocka_unit_test(what_nothing_running_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
