/* SPDX-License-Identifier: MIT
 * Tests of the store of pages: exact bytes, the order of eviction, requests that wait.
 */
#include "tier_rig.h"

static void pages_come_back(void **state)
{
    (void)state;
    struct rig r = rig_plain(64);
    r.cfg.n_groups = 3;
    r.cfg.page_bytes[1] = 3 * RIG_PAGE + 5;
    r.cfg.page_bytes[2] = 1;
    rig_open(&r);
    for (uint64_t id = 0; id < 6; id++) {
        for (int32_t g = 0; g < 3; g++) {
            assert_false(rig_has(&r, id, g));
            assert_int_equal(rig_get(&r, id, g), 0);
            assert_true(rig_put(&r, id, g));
            assert_true(rig_has(&r, id, g));
            assert_false(rig_put(&r, id, g)); /* it is there */
        }
    }
    for (uint64_t id = 0; id < 6; id++)
        for (int32_t g = 0; g < 3; g++)
            assert_int_equal(rig_get(&r, id, g), 1);
    struct sl_store_stats st = rig_stats(&r, SL_TIER_HOST);
    assert_int_equal(st.n_pages, 18);
    assert_int_equal(st.n_bytes, 6 * (RIG_PAGE + 3 * RIG_PAGE + 5 + 1));
    assert_int_equal(st.hits, 18);
    assert_int_equal(st.misses, 18);
    assert_int_equal(st.stored, 18);
    assert_int_equal(st.loaded_bytes, st.n_bytes);
    assert_int_equal(st.stored_bytes, st.n_bytes);
    assert_true(st.capacity_bytes <= r.cfg.host_bytes);
    rig_close(&r);
}

static void the_least_recently_used_goes(void **state)
{
    (void)state;
    struct rig r = rig_plain(4);
    struct sl_store_get held;
    rig_open(&r);
    for (uint64_t id = 0; id < 4; id++)
        assert_true(rig_put(&r, id, 0));
    assert_int_equal(rig_get(&r, 0, 0), 1);
    assert_true(rig_has(&r, 2, 0)); /* to be looked for is a use */
    rig_begin(&r, 1, 0, &held);
    assert_true(rig_put(&r, 4, 0)); /* 1 is held: 3 goes */
    assert_false(rig_has(&r, 3, 0));
    assert_true(rig_put(&r, 5, 0)); /* then 0 */
    assert_false(rig_has(&r, 0, 0));
    assert_true(rig_has(&r, 2, 0));
    assert_true(rig_same(&r, &held.key, held.page));
    sl_store_end(r.store, &held);
    assert_true(rig_put(&r, 6, 0));
    assert_false(rig_has(&r, 4, 0));
    assert_true(rig_has(&r, 1, 0));
    assert_int_equal(rig_stats(&r, SL_TIER_HOST).evicted, 3);
    rig_close(&r);
}

static void what_is_held_stays(void **state)
{
    (void)state;
    struct rig r = rig_plain(4);
    struct sl_store_get held[4];
    rig_open(&r);
    for (uint64_t id = 0; id < 4; id++) {
        assert_true(rig_put(&r, id, 0));
        rig_begin(&r, id, 0, &held[id]);
        assert_int_equal(rig_state(&held[id]), SL_STORE_HERE);
    }
    assert_false(rig_put(&r, 9, 0)); /* no room */
    assert_int_equal(rig_stats(&r, SL_TIER_HOST).dropped, 1);
    for (uint64_t id = 0; id < 4; id++) {
        assert_true(rig_same(&r, &held[id].key, held[id].page));
        sl_store_end(r.store, &held[id]);
    }
    assert_true(rig_put(&r, 9, 0));
    rig_close(&r);
}

/* Who asks for a page that is being filled gets it with its commit, or a miss with its cancel. */
static void a_page_being_filled_is_waited_for(void **state)
{
    (void)state;
    struct rig r = rig_plain(4);
    struct sl_store_key key = rig_key(7, 0);
    struct sl_store_get gets[3];
    rig_open(&r);
    for (int committed = 0; committed < 2; committed++) {
        uint8_t *page = sl_store_reserve(r.store, &key);
        assert_non_null(page);
        assert_true(rig_has(&r, 7, 0)); /* about to be */
        for (int i = 0; i < 3; i++) {
            rig_begin(&r, 7, 0, &gets[i]);
            assert_int_equal(rig_state(&gets[i]), SL_STORE_PENDING);
        }
        sl_store_end(r.store, &gets[1]); /* does not want it any more */
        int n_wakes = atomic_load(&r.n_wakes);
        rig_fill(&r, &key, page);
        if (committed)
            sl_store_commit(r.store, page);
        else
            sl_store_cancel(r.store, page);
        assert_int_equal(atomic_load(&r.n_wakes), n_wakes + 1);
        for (int i = 0; i < 3; i += 2) {
            assert_int_equal(rig_state(&gets[i]), committed ? SL_STORE_HERE : SL_STORE_MISS);
            if (committed)
                assert_true(rig_same(&r, &key, gets[i].page));
            sl_store_end(r.store, &gets[i]);
        }
        assert_int_equal(rig_has(&r, 7, 0), committed);
    }
    rig_close(&r);
}

static void a_store_without_room_is_refused(void **state)
{
    (void)state;
    struct rig r = rig_plain(1);
    struct sl_error err = {0};
    assert_int_equal(sl_store_open(&r.cfg, &r.store, &err), SL_EINVAL);
    r.cfg.host_bytes = 0;
    assert_int_equal(sl_store_open(&r.cfg, &r.store, &err), SL_EINVAL);
    r.cfg.host_bytes = RIG_PAGE;
    r.cfg.page_bytes[0] = SIZE_MAX;
    assert_int_equal(sl_store_open(&r.cfg, &r.store, &err), SL_EINVAL);
    assert_null(r.store);
    sl_store_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_come_back),
        cmocka_unit_test(the_least_recently_used_goes),
        cmocka_unit_test(what_is_held_stays),
        cmocka_unit_test(a_page_being_filled_is_waited_for),
        cmocka_unit_test(a_store_without_room_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
