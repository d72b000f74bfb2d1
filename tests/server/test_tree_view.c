/* SPDX-License-Identifier: MIT
 * The summary of a prefix tree: sums, order, bounds, and copies in which the tree moved meanwhile.
 * Random trees are compared with sums that are found the slow way, by walking from every page to
 * its root.
 */
#include "base/rng.h"
#include "base/sys.h"
#include "server/page/tree_view.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define N 3000

static struct sl_page pages[N];
static struct sl_tree_view view;

static void make(int32_t n)
{
    struct sl_error err;
    assert_int_equal(sl_tree_view_make(&view, pages, n, &err), 0);
    assert_in_range(view.n_nodes, 0, SL_TREE_VIEW_MAX);
    for (int32_t i = 0; i < view.n_nodes; i++) {
        const struct sl_tree_node *a = &view.nodes[i];
        assert_true(a->parent >= -1 && a->parent < i);
        assert_true(a->n_run >= 1 && a->n_run <= a->n_all && a->n_owned <= a->n_all);
        if (i > 0)
            assert_true(a->n_all <= view.nodes[i - 1].n_all);
    }
}

static struct sl_page in_tree(int32_t parent, bool owned)
{
    return (struct sl_page){
        .parent = parent, .in_tree = true, .use = owned ? SL_PAGE_OWNED : SL_PAGE_CACHED};
}

/*  0 - 1 - 2 - 3
 *          \ - 4 - 5      6      (7 is free) */
static void test_by_hand(void **state)
{
    (void)state;
    memset(pages, 0, sizeof pages);
    pages[0] = in_tree(-1, true);
    pages[1] = in_tree(0, true);
    pages[2] = in_tree(1, true);
    pages[3] = in_tree(2, false);
    pages[4] = in_tree(2, true);
    pages[5] = in_tree(4, false);
    pages[6] = in_tree(-1, false);
    pages[7] = (struct sl_page){.parent = -1};
    pages[2].has_state = pages[3].has_state = true;
    make(8);
    static const struct sl_tree_node want[] = {
        {-1, 3, 6, 4, 2}, {0, 2, 2, 1, 0}, {0, 1, 1, 0, 1}, {-1, 1, 1, 0, 0}};
    assert_int_equal(view.n_nodes, 4);
    assert_memory_equal(view.nodes, want, sizeof want);
    assert_int_equal(view.n_pages, 7);
    assert_int_equal(view.n_state, 2);
    assert_int_equal(view.n_roots, 2);
    assert_int_equal(view.n_leaves, 3);
    assert_int_equal(view.depth, 5);
    make(0);
    assert_int_equal(view.n_nodes, 0);
}

/* Walks up at most N pages; false: no root is there, or a page on the way is not in the tree. */
static bool has_root(int32_t page, int32_t n, int32_t *depth)
{
    for (*depth = 1; *depth <= n; (*depth)++) {
        if (page < 0 || page >= n || !pages[page].in_tree)
            return false;
        if (pages[page].parent < 0)
            return true;
        page = pages[page].parent;
    }
    return false;
}

/* Parents are drawn at random: circles, pages below pages that left, and sound trees. */
static void test_random(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        int32_t n = 1 + (int32_t)(sl_rng_at(seed, 0) % 200), sound = seed % 3 == 0, depth;
        int32_t n_pages = 0, n_owned = 0, n_state = 0, deepest = 0, n_roots = 0;
        for (int32_t i = 0; i < n; i++) {
            uint64_t x = sl_rng_at(seed, (uint64_t)i + 1);
            int32_t parent = x % 5 == 0 ? -1 : (int32_t)(x / 8 % (uint64_t)(sound ? i + 1 : n));
            pages[i] = in_tree(parent == i ? -1 : parent, x >> 40 & 1);
            pages[i].in_tree = sound || x >> 41 & 7;
            pages[i].has_state = x >> 44 & 1;
        }
        for (int32_t i = 0; i < n; i++) {
            if (!has_root(i, n, &depth))
                continue;
            n_pages++;
            n_owned += pages[i].use == SL_PAGE_OWNED;
            n_state += pages[i].has_state;
            n_roots += pages[i].parent < 0;
            deepest = depth > deepest ? depth : deepest;
        }
        make(n);
        int32_t sum = 0, sum_owned = 0, sum_state = 0;
        for (int32_t i = 0; i < view.n_nodes; i++) {
            if (view.nodes[i].parent < 0) {
                sum += view.nodes[i].n_all;
                sum_owned += view.nodes[i].n_owned;
                sum_state += view.nodes[i].n_state;
            }
        }
        assert_int_equal(view.n_roots, n_roots);
        assert_int_equal(view.depth, deepest);
        assert_int_equal(view.n_pages, n_pages);
        assert_int_equal(view.n_state, n_state);
        if (view.n_nodes < SL_TREE_VIEW_MAX) { /* all of it is shown */
            assert_int_equal(sum, n_pages);
            assert_int_equal(sum_owned, n_owned);
            assert_int_equal(sum_state, n_state);
        }
    }
}

static void test_many_roots_show_the_largest(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N; i++) /* runs of 1, 2, 3 ... pages */
        pages[i] = in_tree(-1, false);
    for (int32_t i = 0, run = 1; i < N; i += run++) {
        for (int32_t k = 1; k < run && i + k < N; k++)
            pages[i + k].parent = i + k - 1;
    }
    make(N);
    assert_int_equal(view.n_roots, 77); /* 76 * 77 / 2 = 2926 */
    assert_int_equal(view.nodes[0].n_run, 76);
    assert_int_equal(view.depth, 76);
    for (int32_t i = 0; i < N; i++)
        pages[i] = in_tree(-1, i % 2);
    make(N);
    assert_int_equal(view.n_nodes, SL_TREE_VIEW_MAX);
    assert_int_equal(view.n_pages, N);
}

static void test_map(void **state)
{
    (void)state;
    uint8_t map[8];
    for (int32_t i = 0; i < 64; i++)
        pages[i] = (struct sl_page){.parent = -1,
                                    .use = i < 16    ? SL_PAGE_OWNED
                                           : i == 16 ? SL_PAGE_CACHED
                                                     : SL_PAGE_FREE};
    sl_page_map(pages, 64, 4, map);
    static const uint8_t want[] = {15, 0, 0, 1, 0, 0, 0, 0};
    assert_memory_equal(map, want, sizeof map);
    sl_page_map(pages, 3, 3, map);
    assert_int_equal(map[0] + map[2] + map[4], 45);
}

static void *no_memory(size_t n_bytes)
{
    (void)n_bytes;
    return NULL;
}

static void test_without_memory(void **state)
{
    struct sl_sys broken = *sl_sys;
    struct sl_error err;
    (void)state;
    broken.alloc = no_memory;
    const struct sl_sys *good = sl_sys;
    sl_sys = &broken;
    int rc = sl_tree_view_make(&view, pages, N, &err);
    sl_sys = good;
    assert_int_equal(rc, SL_ENOMEM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_many_roots_show_the_largest),
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
