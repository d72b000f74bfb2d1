/* SPDX-License-Identifier: MIT
 * Tests of groups of recurrent state: one scenario for each rule. That the rules hold under random
 * calls is tests/fuzz/fuzz_kv.c's part.
 */
#include "kv/kv_rig.h"

#define BLOCK    4
#define N_NODES  32
#define N_TOKENS 64
#define STATES   1 /* the group, beside one of layers that see everything */

static int32_t tokens[N_TOKENS];
static const struct sl_kv_text text = {tokens, N_TOKENS, NULL, 0};
static const struct sl_kv_ns ns;

static void init(struct sl_kv *kv, int32_t n_states)
{
    struct sl_kv_config cfg = sl_kv_full(N_NODES, BLOCK, true, 3);
    cfg.groups[cfg.n_groups++] = (struct sl_kv_group_config){
        .kind = SL_GROUP_STATE, .window = SL_STATE_WINDOW, .n_pages = n_states};
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

/* A step of the sequence's tokens from .. to, planned and landed. */
static void compute(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t from, int32_t to)
{
    const int32_t end = (to + BLOCK - 1) / BLOCK;
    while (b->n < end)
        assert_true(sl_kv_take(kv, b, SL_EVICT_PROMPT));
    assert_true(sl_kv_cover(kv, b, from, end));
    sl_kv_checkpoint(kv, b, from, to, sl_kv_n_wanted(kv, b, from, to));
    for (int32_t i = from / BLOCK; (i + 1) * BLOCK <= to; i++)
        sl_kv_publish(kv, &ns, &text, b, i);
    sl_kv_pass(kv, b, to);
}

static int32_t match(struct sl_kv *kv, int32_t max, struct kv_held *h, int32_t *depth)
{
    *depth = sl_kv_match(kv, &ns, &text, max, kv_hold(h));
    assert_int_equal(sl_kv_count(kv, &ns, &text, max), h->b.n);
    return h->b.n;
}

static bool has_state(const struct sl_kv *kv, const struct kv_held *h, int32_t block)
{
    return sl_group_page(&kv->groups[STATES], h->nodes[block]) != SL_NO_PAGE;
}

static void a_step_needs_the_page_of_its_last_block(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct kv_held a;
    init(&kv, 3);
    compute(&kv, kv_hold(&a), 0, 22); /* six blocks */
    assert_int_equal(a.b.n_owned[STATES], 1);
    assert_int_equal(kv.groups[STATES].pool.n_free, 2);
    assert_true(has_state(&kv, &a, 5));
    assert_false(has_state(&kv, &a, 4));
    const int32_t page = a.pages[STATES][5];
    compute(&kv, &a.b, 22, 24); /* in place */
    assert_int_equal(a.pages[STATES][5], page);
    whole(&kv, &a.b, NULL);
    compute(&kv, &a.b, 24, 25); /* a complete block's page is never written again */
    assert_int_not_equal(a.pages[STATES][6], page);
    assert_int_equal(sl_group_page(&kv.groups[STATES], a.nodes[5]), page);
    assert_int_equal(a.pages[STATES][5], SL_NO_PAGE);
    assert_int_equal(sl_kv_n_cached_pages(&kv, STATES), 1);
    whole(&kv, &a.b, NULL);
    sl_kv_deinit(&kv);
}

/* Taken for the next token, it goes along to where the chunk ends. */
static void an_unused_page_moves(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct kv_held a;
    init(&kv, 3);
    compute(&kv, kv_hold(&a), 0, 8);
    while (a.b.n < 6)
        assert_true(sl_kv_take(&kv, &a.b, SL_EVICT_PROMPT));
    assert_true(sl_kv_cover(&kv, &a.b, 8, 3));
    const int32_t page = a.pages[STATES][2];
    assert_true(sl_kv_cover(&kv, &a.b, 8, 6));
    assert_int_equal(a.pages[STATES][5], page);
    assert_int_equal(a.pages[STATES][2], SL_NO_PAGE);
    assert_int_equal(a.b.n_owned[STATES], 2); /* where the step begins, too */
    whole(&kv, &a.b, NULL);
    sl_kv_deinit(&kv);
}

static void a_match_ends_at_a_checkpoint(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct kv_held a, b;
    int32_t depth;
    init(&kv, 8);
    sl_kv_want(&kv, kv_hold(&a), 5, 0);
    compute(&kv, &a.b, 0, 26);
    sl_kv_give(&kv, &a.b, 0, false);
    assert_int_equal(kv.groups[STATES].pool.n_free, 7); /* that of an incomplete block is void */
    assert_int_equal(match(&kv, 6, &b, &depth), 5);
    assert_int_equal(depth, 6);
    assert_int_equal(b.b.first[STATES], 4);
    whole(&kv, &b.b, NULL);
    sl_kv_give(&kv, &b.b, 0, false);
    /* A prompt that shares three blocks finds no state there. It makes one, the next begins there.
     */
    assert_int_equal(match(&kv, 3, &b, &depth), 0);
    assert_int_equal(depth, 3);
    sl_kv_want(&kv, &b.b, 0, depth);
    compute(&kv, &b.b, 0, 20);
    sl_kv_give(&kv, &b.b, 0, false);
    assert_int_equal(match(&kv, 4, &a, &depth), 3);
    assert_int_equal(match(&kv, 3, &b, &depth), 3);
    assert_int_equal(a.pages[STATES][2], b.pages[STATES][2]);
    whole(&kv, &a.b, &b.b);
    sl_kv_deinit(&kv);
}

/* Of the states that generation leaves behind the last one stays, and those that are wanted. */
static void later_checkpoints_take_the_place_of_earlier_ones(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct kv_held a;
    init(&kv, 8);
    sl_kv_want(&kv, kv_hold(&a), 2, 0);
    compute(&kv, &a.b, 0, 9);
    for (int32_t n = 9; n < 30; n++)
        compute(&kv, &a.b, n, n + 1);
    assert_true(has_state(&kv, &a, 1) && has_state(&kv, &a, 6));
    assert_false(has_state(&kv, &a, 2) || has_state(&kv, &a, 5));
    assert_int_equal(sl_kv_n_cached_pages(&kv, STATES), 2);
    whole(&kv, &a.b, NULL);
    for (int32_t n = 30; n < 32; n++)
        compute(&kv, &a.b, n, n + 1);
    sl_kv_give(&kv, &a.b, 0, false); /* a turn that ends with a block */
    assert_true(has_state(&kv, &a, 7));
    assert_false(has_state(&kv, &a, 6));
    assert_int_equal(sl_kv_n_cached_pages(&kv, STATES), 2);
    whole(&kv, NULL, NULL);
    sl_kv_deinit(&kv);
}

/* What was found once stays when whoever left it is further on. */
static void a_state_in_use_stays(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct kv_held a, b;
    int32_t depth;
    init(&kv, 8);
    compute(&kv, kv_hold(&a), 0, 9);
    compute(&kv, &a.b, 9, 13);
    assert_int_equal(match(&kv, 3, &b, &depth), 3);
    compute(&kv, &a.b, 13, 17); /* a leaves block 3's, which took the place of block 2's */
    assert_true(has_state(&kv, &a, 2) && has_state(&kv, &a, 3));
    whole(&kv, &a.b, &b.b);
    sl_kv_give(&kv, &b.b, 0, false);
    compute(&kv, &a.b, 17, 21);
    assert_true(has_state(&kv, &a, 2));
    assert_false(has_state(&kv, &a, 3));
    whole(&kv, &a.b, NULL);
    sl_kv_deinit(&kv);
}

static void equal_blocks_share_a_state(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct kv_held a, b;
    init(&kv, 8);
    compute(&kv, kv_hold(&a), 0, 16);
    compute(&kv, kv_hold(&b), 0, 12); /* a has none in block 2: it gets b's */
    assert_int_equal(a.nodes[2], b.nodes[2]);
    assert_int_equal(b.pages[STATES][2], sl_group_page(&kv.groups[STATES], a.nodes[2]));
    compute(&kv, &b.b, 12, 16); /* a has one in block 3: b's is free */
    assert_int_equal(b.pages[STATES][3], a.pages[STATES][3]);
    assert_int_equal(kv.groups[STATES].pool.refs[a.pages[STATES][3]], 2);
    assert_int_equal(kv.groups[STATES].pool.n_free, 6);
    whole(&kv, &a.b, &b.b);
    sl_kv_give(&kv, &a.b, 0, true); /* in doubt: b still has it, but nobody finds it */
    whole(&kv, &b.b, NULL);
    sl_kv_give(&kv, &b.b, 0, true);
    assert_int_equal(kv.groups[STATES].pool.n_free, 8);
    whole(&kv, NULL, NULL);
    sl_kv_deinit(&kv);
}

/* One that saves more stays longer than one used later. */
static void what_saves_least_goes_first(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct kv_held a, b;
    int32_t depth;
    init(&kv, 3);
    compute(&kv, kv_hold(&a), 0, 32); /* saves eight blocks */
    sl_kv_give(&kv, &a.b, 0, false);
    for (int32_t i = 0; i < 3; i++) { /* others that save one each come and go */
        for (int32_t k = 0; k < N_TOKENS; k++)
            tokens[k] = 1000 * (i + 1) + k;
        compute(&kv, kv_hold(&b), 0, 4);
        sl_kv_give(&kv, &b.b, 0, false);
    }
    for (int32_t k = 0; k < N_TOKENS; k++)
        tokens[k] = 7 * k;
    assert_int_equal(kv.groups[STATES].n_evicted, 1);
    assert_true(has_state(&kv, &a, 7));
    assert_int_equal(match(&kv, 8, &a, &depth), 8);
    sl_kv_give(&kv, &a.b, 0, false);
    for (int32_t i = 3; i < 24; i++) { /* but not for ever */
        for (int32_t k = 0; k < N_TOKENS; k++)
            tokens[k] = 1000 * (i + 1) + k;
        compute(&kv, kv_hold(&b), 0, 4);
        sl_kv_give(&kv, &b.b, 0, false);
    }
    for (int32_t k = 0; k < N_TOKENS; k++)
        tokens[k] = 7 * k;
    assert_int_equal(match(&kv, 8, &a, &depth), 0);
    assert_int_equal(depth, 8); /* its keys are still there */
    whole(&kv, &a.b, NULL);
    sl_kv_deinit(&kv);
}

static void no_room_takes_nothing(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct kv_held a, b;
    init(&kv, 2);
    compute(&kv, kv_hold(&a), 0, 4);
    assert_true(sl_kv_take(&kv, &a.b, SL_EVICT_PROMPT));
    assert_true(sl_kv_cover(&kv, &a.b, 4, 2));
    assert_true(sl_kv_take(&kv, kv_hold(&b), SL_EVICT_PROMPT));
    assert_false(sl_kv_cover(&kv, &b.b, 0, 1));
    assert_int_equal(b.b.end[STATES], 0);
    sl_kv_pass(&kv, &a.b, 5);
    assert_true(sl_kv_cover(&kv, &b.b, 0, 1)); /* what a began at is cached, and goes */
    whole(&kv, &a.b, &b.b);
    sl_kv_deinit(&kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_needs_the_page_of_its_last_block),
        cmocka_unit_test(an_unused_page_moves),
        cmocka_unit_test(a_match_ends_at_a_checkpoint),
        cmocka_unit_test(later_checkpoints_take_the_place_of_earlier_ones),
        cmocka_unit_test(a_state_in_use_stays),
        cmocka_unit_test(equal_blocks_share_a_state),
        cmocka_unit_test(what_saves_least_goes_first),
        cmocka_unit_test(no_room_takes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
