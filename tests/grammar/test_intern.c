/* SPDX-License-Identifier: MIT
 * test_intern.c - the table by which parts of an automaton are found: while it grows, each number
 * is found, and no addition does the work of many.
 */
#include "base/hash.h"
#include "grammar/intern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { N = 40000 };

/* Three numbers share each hash. */
static uint64_t hash_of(uint32_t id)
{
    return sl_mix64(id / 3);
}

static bool has(const struct sl_intern *t, uint32_t id)
{
    struct sl_intern_at at = sl_intern_find(hash_of(id));
    for (uint32_t x; (x = sl_intern_next(t, &at)) != 0;)
        if (x == id)
            return true;
    return false;
}

static void add(struct sl_intern *t, uint32_t id)
{
    struct sl_intern_at at = sl_intern_find(hash_of(id));
    while (sl_intern_next(t, &at) != 0) {
    }
    assert_true(sl_intern_room(t));
    sl_intern_add(t, &at, id);
}

static void test_all_are_found(void **state)
{
    (void)state;
    struct sl_intern t = {0};
    for (uint32_t id = 1; id <= N; id++) {
        assert_false(has(&t, id));
        add(&t, id);
        for (uint32_t step = 1; step < id; step *= 3) /* old ones and new ones */
            assert_true(has(&t, id - step) && has(&t, step));
    }
    for (uint32_t id = 1; id <= N; id++)
        assert_true(has(&t, id));
    sl_intern_deinit(&t);
}

/* Of the old table only so many slots move with each addition, and all before the next growth. */
static void test_grows_without_a_pause(void **state)
{
    (void)state;
    struct sl_intern t = {0};
    uint32_t n_growths = 0;
    for (uint32_t id = 1; id <= N; id++) {
        const uint32_t cap = t.cap, moved = t.n_moved;
        add(&t, id);
        n_growths += t.cap != cap;
        if (t.cap != cap && cap != 0)
            assert_true(t.old != NULL && t.n_moved <= 16);
        else if (t.old != NULL)
            assert_in_range(t.n_moved - moved, 1, 16);
    }
    assert_in_range(n_growths, 6, 9);
    sl_intern_deinit(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_are_found),
        cmocka_unit_test(test_grows_without_a_pause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
