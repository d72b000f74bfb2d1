/* SPDX-License-Identifier: MIT
 * Where experts go by their load: the lists that DeepSeek's EPLB gives for the loads of its README
 * under its global policy, what must hold of any loads, and that few experts move.
 */
#include "base/check.h"
#include "base/rng.h"
#include "models/eplb.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct sl_eplb_room room;

static void test_published(void **state)
{
    static const uint64_t loads[2][12] = {{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86},
                                          {20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27}};
    static const int32_t want[2][16] = {{10, 6, 10, 7, 0, 2, 11, 4, 5, 9, 5, 4, 8, 3, 1, 1},
                                        {1, 10, 2, 4, 5, 11, 5, 0, 6, 7, 6, 3, 8, 8, 9, 7}};
    static const double balance[2] = {0.9323, 0.8401}; /* mean over max of ranks */
    int32_t list[16];
    (void)state;
    for (int i = 0; i < 2; i++) {
        sl_eplb_place(loads[i], 12, 16, 8, false, &room, list);
        assert_memory_equal(list, want[i], sizeof list);
        const double have = 1 / sl_eplb_imbalance(loads[i], 12, 16, 8, list, &room);
        assert_true(have > balance[i] - 5e-5 && have < balance[i] + 5e-5);
    }
}

/* The least possible load of the heaviest replica, by trying all ways to give out `left` more. */
static double least_most(const uint64_t *tokens, int32_t n, int32_t left)
{
    double best = 1e300;
    if (n == 1)
        return (double)tokens[0] / (1 + left);
    for (int32_t k = 0; k <= left; k++) {
        const double own = (double)tokens[0] / (1 + k),
                     rest = least_most(tokens + 1, n - 1, left - k);
        best = SL_MIN(best, SL_MAX(own, rest));
    }
    return best;
}

static void test_any_loads(void **state)
{
    struct sl_rng rng = {41, 0};
    (void)state;
    for (int round = 0; round < 400; round++) {
        uint64_t tokens[16];
        int32_t list[32], count[16] = {0};
        const int32_t n_ranks = 1 << sl_rng_below(&rng, 4);
        const int32_t n = 1 + (int32_t)sl_rng_below(&rng, round % 2 == 0 ? 6 : 16);
        const int32_t n_places = SL_ROUND_UP(n + (int32_t)sl_rng_below(&rng, 5), n_ranks);
        for (int32_t i = 0; i < n; i++)
            tokens[i] = sl_rng_below(&rng, round % 3 == 0 ? 4 : 1000);
        sl_eplb_place(tokens, n, n_places, n_ranks, false, &room, list);
        for (int32_t i = 0; i < n_places; i++) {
            assert_in_range(list[i], 0, n - 1);
            count[list[i]]++;
        }
        double most = 0;
        for (int32_t e = 0; e < n; e++) {
            assert_true(count[e] >= 1);
            most = SL_MAX(most, (double)tokens[e] / count[e]);
        }
        if (n <= 6)
            assert_true(most == least_most(tokens, n, n_places - n));
    }
}

/* From where experts are: to what is better, nowhere for nothing, and no further than needed. */
static void test_replace(void **state)
{
    uint64_t tokens[32];
    int32_t old[32], list[32], again[32];
    (void)state;
    for (int32_t i = 0; i < 32; i++) {
        tokens[i] = i < 4 ? 1000 : 10; /* all on rank 0 */
        old[i] = i;
    }
    const double before = sl_eplb_imbalance(tokens, 32, 32, 4, old, &room);
    assert_true(sl_eplb_replace(tokens, 32, 32, 4, false, old, &room, list));
    const double after = sl_eplb_imbalance(tokens, 32, 32, 4, list, &room);
    assert_true(before > 3.5 && after < 1.01);
    assert_false(sl_eplb_replace(tokens, 32, 32, 4, false, list, &room, again));
    assert_memory_equal(again, list, sizeof list);
    tokens[31] += 3; /* hardly another load */
    assert_false(sl_eplb_replace(tokens, 32, 32, 4, false, list, &room, again));
    for (int32_t i = 0; i < 32; i++)
        tokens[i] = 0; /* none at all */
    assert_false(sl_eplb_replace(tokens, 32, 32, 4, false, old, &room, again));
    assert_memory_equal(again, old, sizeof old);
}

/* Two ranks of four are as they should be, though the packing would number them otherwise: they
 * stay, and the others exchange one expert. */
static void test_names(void **state)
{
    static const uint64_t tokens[8] = {80, 70, 60, 50, 40, 30, 20, 10};
    static const int32_t old[8] = {2, 5, 3, 4, 0, 1, 7, 6};
    int32_t list[8];
    int n_stay = 0;
    (void)state;
    assert_true(sl_eplb_replace(tokens, 8, 8, 4, false, old, &room, list));
    for (int32_t i = 0; i < 8; i++)
        n_stay += list[i] == old[i / 2 * 2] || list[i] == old[i / 2 * 2 + 1];
    assert_int_equal(n_stay, 6);
    assert_true(sl_eplb_imbalance(tokens, 8, 8, 4, list, &room) == 1);
}

/* Each expert is on two ranks, and loads are as even as the numbers of places let them be, nearly;
 * so is what is placed anew from there. */
static void test_spread(void **state)
{
    struct sl_rng rng = {43, 0};
    double worse = 0;
    (void)state;
    for (int round = 0; round < 400; round++) {
        uint64_t tokens[16];
        int32_t list[64], again[64];
        const int32_t n_ranks = 2 << sl_rng_below(&rng, 2);
        const int32_t n = SL_ROUND_UP(2 + (int32_t)sl_rng_below(&rng, 15), 2);
        const int32_t most = n * n_ranks;
        const int32_t n_places =
            SL_MIN(SL_ROUND_UP(2 * n + (int32_t)sl_rng_below(&rng, 9), n_ranks), most);
        for (int pass = 0; pass < 2; pass++) {
            for (int32_t i = 0; i < n; i++)
                tokens[i] = sl_rng_below(&rng, round % 3 == 0 ? 4 : 1000);
            if (pass == 0)
                sl_eplb_place(tokens, n, n_places, n_ranks, true, &room, list);
            else
                (void)sl_eplb_replace(tokens, n, n_places, n_ranks, true, list, &room, again);
            const int32_t *now = pass == 0 ? list : again;
            for (int32_t e = 0; e < n; e++) {
                uint32_t on = 0;
                for (int32_t i = 0; i < n_places; i++)
                    on |= now[i] == e ? 1u << i / (n_places / n_ranks) : 0;
                assert_true((on & (on - 1)) != 0);
            }
        }
        sl_eplb_place(tokens, n, n_places, n_ranks, true, &room, list);
        const double spread = sl_eplb_imbalance(tokens, n, n_places, n_ranks, list, &room);
        sl_eplb_place(tokens, n, n_places, n_ranks, false, &room, again);
        worse += spread - sl_eplb_imbalance(tokens, n, n_places, n_ranks, again, &room);
    }
    print_message("spread, the busiest rank has %.3f of a mean one's load more\n", worse / 400);
    assert_true(worse / 400 < 0.05);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published), cmocka_unit_test(test_any_loads),
        cmocka_unit_test(test_replace),   cmocka_unit_test(test_names),
        cmocka_unit_test(test_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
