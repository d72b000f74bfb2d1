/* SPDX-License-Identifier: MIT
 * Tests of groups of pages: one scenario for each rule of windows. That the rules hold under random
 * calls is tests/fuzz/fuzz_kv.c's part.
 */
#include "kv/kv_rig.h"

#define BLOCK    2
#define N_NODES  16
#define N_TOKENS 24
#define WINDOW   5 /* a row at the end of block 4 (position 10) sees 6 to 10: blocks 3 and 4 */

static int32_t tokens[N_TOKENS];
static const struct sl_kv_text text = {tokens, N_TOKENS, NULL, 0};
static const struct sl_kv_ns ns;

static void init(struct sl_kv *kv, int32_t window_pages)
{
    struct sl_kv_config cfg = sl_kv_full(N_NODES, BLOCK, true, 3);
    cfg.groups[cfg.n_groups++] = (struct sl_kv_group_config){
        .kind = SL_GROUP_WINDOW, .window = WINDOW, .n_pages = window_pages};
    for (int32_t i = 0; i < N_TOKENS; i++)
        tokens[i] = 7 * i;
    assert_int_equal(sl_kv_init(kv, &cfg, NULL), 0);
}

static void whole(struct sl_kv *kv, const struct sl_kv_blocks *a, const struct sl_kv_blocks *b)
{
    int32_t owners[3 * N_NODES] = {0};
    struct sl_error err;
    if (a != NULL)
        kv_count(kv, a, owners);
    if (b != NULL)
        kv_count(kv, b, owners);
    if (sl_kv_check(kv, owners, &err) != 0)
        fail_msg("%s", err.msg);
}

/* Computes blocks up to end, one a step, as a sequence does that found the first ones. */
static void compute(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t end)
{
    for (int32_t i = b->n; i < end; i++) {
        assert_true(sl_kv_take(kv, b, SL_EVICT_PROMPT));
        assert_true(sl_kv_cover(kv, b, i * BLOCK, i + 1));
        sl_kv_publish(kv, &ns, &text, b, i);
        sl_kv_pass(kv, b, (i + 1) * BLOCK);
    }
}

static int32_t match(struct sl_kv *kv, int32_t max, struct kv_held *h)
{
    sl_kv_match(kv, &ns, &text, max, kv_hold(h));
    assert_int_equal(sl_kv_count(kv, &ns, &text, max), h->b.n);
    return h->b.n;
}

static bool has_page(const struct sl_kv *kv, const struct kv_held *h, int32_t block)
{
    return sl_group_page(&kv->groups[1], h->nodes[block]) != SL_NO_PAGE;
}

static void a_window_moves_on(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct kv_held a;
    init(&kv, 8);
    compute(&kv, kv_hold(&a), 6);
    assert_int_equal(a.b.first[1], 4); /* the row at 12 sees 8 to 12 */
    assert_int_equal(a.b.end[1], 6);
    assert_int_equal(a.pages[1][3], SL_NO_PAGE);
    assert_int_equal(a.pages[0][0], sl_group_page(&kv.groups[0], a.nodes[0]));
    assert_true(has_page(&kv, &a, 0)); /* cached */
    whole(&kv, &a.b, NULL);
    compute(&kv, &a.b, 8); /* the two free ones */
    assert_int_equal(kv.groups[1].n_evicted, 0);
    compute(&kv, &a.b, 11); /* and then those passed by first */
    assert_int_equal(kv.groups[1].n_evicted, 3);
    assert_false(has_page(&kv, &a, 2));
    assert_true(has_page(&kv, &a, 3));
    assert_int_equal(sl_kv_n_cached_pages(&kv, 1), 6);
    whole(&kv, &a.b, NULL);
    sl_kv_deinit(&kv);
}

/* As deep as the next row finds what it sees. */
static void a_match_ends_where_a_window_is_whole(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct kv_held a, b;
    init(&kv, 8);
    compute(&kv, kv_hold(&a), 8);
    sl_kv_give(&kv, &a.b, 0, false);
    assert_int_equal(match(&kv, 8, &b), 8);
    assert_int_equal(b.b.first[1], 6);
    whole(&kv, &b.b, NULL);
    sl_kv_give(&kv, &b.b, 0, false);
    sl_group_drop(&kv.groups[1], a.nodes[6]);
    assert_int_equal(match(&kv, 8, &b), 6); /* not 7 or 8, whose rows see block 6 */
    sl_kv_give(&kv, &b.b, 0, false);
    sl_group_drop(&kv.groups[1], a.nodes[4]);
    assert_int_equal(match(&kv, 8, &b), 4);
    assert_int_equal(match(&kv, 3, &a), 3);
    whole(&kv, &a.b, &b.b);
    assert_int_equal(sl_kv_n_cached(&kv), 4);
    sl_kv_deinit(&kv);
}

/* Who computes a block again that lost its page leaves the page to it. */
static void an_equal_block_gets_the_page_it_lacks(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct kv_held a, b;
    init(&kv, 12);
    compute(&kv, kv_hold(&a), 6);
    sl_group_drop(&kv.groups[1], a.nodes[2]); /* as if evicted */
    compute(&kv, kv_hold(&b), 3);
    assert_int_equal(b.nodes[2], a.nodes[2]);
    assert_true(has_page(&kv, &a, 2));
    assert_int_equal(b.pages[1][2], sl_group_page(&kv.groups[1], a.nodes[2]));
    whole(&kv, &a.b, &b.b);
    sl_kv_give(&kv, &a.b, 0, false);
    whole(&kv, &b.b, NULL);
    sl_kv_give(&kv, &b.b, 0, true);
    assert_int_equal(match(&kv, 6, &a), 0); /* its blocks are in doubt */
    whole(&kv, NULL, NULL);
    sl_kv_deinit(&kv);
}

static void what_is_in_doubt_is_not_kept(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct kv_held a, b;
    init(&kv, 12);
    compute(&kv, kv_hold(&a), 6);
    assert_int_equal(match(&kv, 4, &b), 4);
    sl_kv_give(&kv, &b.b, 0, true); /* a holds the blocks, but no page before block 4 */
    assert_false(has_page(&kv, &a, 3));
    assert_true(has_page(&kv, &a, 4));
    whole(&kv, &a.b, NULL);
    sl_kv_clear(&kv);
    assert_int_equal(sl_kv_n_cached_pages(&kv, 1), 0);
    whole(&kv, &a.b, NULL);
    sl_kv_give(&kv, &a.b, 0, false);
    sl_kv_reset(&kv);
    assert_int_equal(kv.groups[1].pool.n_free, 12);
    sl_kv_deinit(&kv);
}

static void too_few_pages_are_not_given_out(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct kv_held a, b;
    init(&kv, 5);
    for (int i = 0; i < 4; i++)
        assert_true(sl_kv_take(&kv, i == 0 ? kv_hold(&a) : &a.b, SL_EVICT_PROMPT));
    for (int i = 0; i < 4; i++)
        assert_true(sl_kv_take(&kv, i == 0 ? kv_hold(&b) : &b.b, SL_EVICT_PROMPT));
    assert_true(sl_kv_cover(&kv, &a.b, 0, 3));
    assert_false(sl_kv_cover(&kv, &b.b, 0, 3)); /* two are left, and none was taken */
    assert_int_equal(b.b.end[1], 0);
    assert_true(sl_kv_cover(&kv, &b.b, 0, 2));
    assert_int_equal(sl_group_n_room(&kv.groups[1]), 0);
    whole(&kv, &a.b, &b.b);
    sl_kv_deinit(&kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_moves_on),
        cmocka_unit_test(a_match_ends_where_a_window_is_whole),
        cmocka_unit_test(an_equal_block_gets_the_page_it_lacks),
        cmocka_unit_test(what_is_in_doubt_is_not_kept),
        cmocka_unit_test(too_few_pages_are_not_given_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
