/* SPDX-License-Identifier: MIT
 * Tests of what waiting threads ask memory for (linear_next.h): the right stream, the right bytes.
 */
#include "base/check.h"
#include "base/rng.h"
#include "cpu/linear.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* A matrix per letter, nothing of which is ever read. */
static struct sl_stream stream_of(uint8_t *base, char letter)
{
    return (struct sl_stream){
        .part = {{base + 1000 * (letter - 'a'), 100, 10, 5, 2}}, .n_parts = 1, .up = NULL};
}

static char letter_of(const struct sl_streams *all, uint8_t *base)
{
    const struct sl_stream *s = atomic_load(&all->next);
    return (char)(s == NULL ? '.' : 'a' + (s->part[0].panels - base) / 1000);
}

/* '-' is a product that is no stream. */
static void check(const char *runs, const char *next)
{
    static uint8_t base[26000];
    struct sl_streams all;
    assert_true(sl_streams_create(&all, 1));
    for (size_t i = 0; runs[i] != 0; i++) {
        const struct sl_stream s = stream_of(base, runs[i]);
        sl_streams_run(&all, runs[i] == '-' ? NULL : &s);
        if (letter_of(&all, base) != next[i])
            fail_msg("%s: after run %zu %c is next, not %c", runs, i, letter_of(&all, base),
                     next[i]);
    }
    sl_streams_destroy(&all, 1);
}

static void test_order(void **state)
{
    (void)state;
    check("abcabc", "...bca");
    check("abab", "..ba");
    check("aaa", ".aa");
    check("abacab", "..b.ca"); /* what came last counts */
    check("ab-ab", "...b.");   /* nothing comes after what is no stream, nor before it */
    check("abc-abc-", "....bc..");
}

/* Two matrices at one address, one after the other, are two streams. */
static void test_same_address(void **state)
{
    (void)state;
    static uint8_t base[26000];
    struct sl_streams all;
    assert_true(sl_streams_create(&all, 1));
    struct sl_stream a = stream_of(base, 'a'), b = stream_of(base, 'b'), longer = a;
    longer.part[0].n_panels = 20;
    const struct sl_stream *order[] = {&a, &b, &longer, &b, &longer};
    for (size_t i = 0; i < SL_COUNT(order); i++)
        sl_streams_run(&all, order[i]);
    assert_int_equal(all.n, 3);
    assert_ptr_equal(atomic_load(&all.next)->part[0].panels, b.part[0].panels);
    sl_streams_destroy(&all, 1);
}

/* More than are remembered: the others are as if they were none. */
static void test_full(void **state)
{
    (void)state;
    struct sl_streams all;
    assert_true(sl_streams_create(&all, 1));
    for (int round = 0; round < 2; round++)
        for (uintptr_t i = 0; i < SL_STREAMS + 10; i++) {
            const struct sl_stream s = {.part = {{(const uint8_t *)(64 * (i + 1)), 64, 1, 1, 1}},
                                        .n_parts = 1};
            sl_streams_run(&all, &s);
            const struct sl_stream *next = atomic_load(&all.next);
            if (round == 0 || i >= SL_STREAMS - 1)
                assert_null(next);
            else
                assert_ptr_equal(next->part[0].panels, (const uint8_t *)(64 * (i + 2)));
        }
    assert_int_equal(all.n, SL_STREAMS);
    sl_streams_destroy(&all, 1);
}

/* ---------------------------------------------------------------- bytes */

/* The pool says which item a thread begins with; the products, where that item is. */
static void check_first(struct sl_rng *rng)
{
    static uint8_t base[1];
    int64_t n_items[SL_MAX_LINEAR_PARTS], all = 0;
    struct sl_stream s = {.n_parts = 1 + (int)sl_rng_below(rng, SL_MAX_LINEAR_PARTS)};
    const bool gated = s.n_parts == 1 && sl_rng_below(rng, 2) == 0;
    const int n_threads = 1 + (int)sl_rng_below(rng, 40);
    s.up = gated ? base + (1 << 30) : NULL;
    for (int i = 0; i < s.n_parts; i++) {
        struct sl_stream_part *p = &s.part[i];
        p->panels = base + (size_t)i * (1 << 28);
        p->panel_bytes = 64 * (1 + sl_rng_below(rng, 1000));
        p->n_panels = 1 + (int64_t)sl_rng_below(rng, 300);
        p->panels_per_item = 1 + (int32_t)sl_rng_below(rng, 9);
        p->n_items = SL_CEIL_DIV(p->n_panels, p->panels_per_item);
        n_items[i] = p->n_items;
        all += n_items[i];
    }
    for (int t = 0; t < n_threads; t++) {
        const struct sl_runs r = sl_stream_first(&s, n_threads, t);
        int64_t item = (all * t + n_threads - 1) / n_threads;
        if (item >= all) {
            assert_int_equal(r.n, 0);
            continue;
        }
        const int part = sl_linear_part_at(n_items, s.n_parts, &item);
        const struct sl_stream_part *p = &s.part[part];
        const size_t at = (size_t)(item * p->panels_per_item) * p->panel_bytes;
        assert_int_equal(r.n, gated ? 2 : 1);
        assert_ptr_equal(r.at[0], p->panels + at);
        if (gated)
            assert_ptr_equal(r.at[1], s.up + at);
        assert_true(r.n_bytes > 0 && at + r.n_bytes <= (size_t)p->n_panels * p->panel_bytes);
        assert_true(r.n_bytes * (size_t)r.n <= 128 << 10);
    }
}

static void test_first(void **state)
{
    (void)state;
    struct sl_rng rng = {5, 0};
    for (int i = 0; i < 500; i++)
        check_first(&rng);
}

/* ---------------------------------------------------------------- the backend */

/* A product per weight, as a step of a model makes them; what is next is the weight behind. */
static void test_products(void **state)
{
    (void)state;
    enum { ROWS = 64, COLS = 256, N = 3 };
    static float x[40 * COLS], out[40 * ROWS];
    static uint8_t rows[ROWS * COLS / 32 * 34];
    struct sl_cpu_config cfg = {.n_threads = 2};
    struct sl_backend *be;
    struct sl_weight w[N];
    struct sl_error err;
    assert_int_equal(sl_cpu_create(&cfg, &be, &err), 0);
    for (int i = 0; i < N; i++)
        assert_int_equal(be->vt->weight_create(be, SL_USE_LINEAR, SL_DTYPE_Q8_0, ROWS, COLS, rows,
                                               NULL, &w[i], &err),
                         0);
    const struct sl_streams *all = &sl_cpu(be)->streams;
    for (int i = 0; i < 4 * N; i++) {
        const struct sl_weight *now = &w[i % N], *behind = &w[(i + 1) % N];
        be->vt->linear(
            be, &(struct sl_op_linear){
                    .x = x, .ld_x = COLS, .w = now, .n = 1 + i % 2, .out = out, .ld_out = ROWS});
        const struct sl_stream *next = atomic_load(&all->next);
        if (i < N)
            assert_null(next);
        else
            assert_ptr_equal(next->part[0].panels, behind->data);
    }
    be->vt->linear(be, &(struct sl_op_linear){
                           .x = x, .ld_x = COLS, .w = &w[0], .n = 40, .out = out, .ld_out = ROWS});
    assert_null(atomic_load(&all->next)); /* many tokens: no stream */
    for (int i = 0; i < N; i++)
        be->vt->weight_destroy(be, &w[i]);
    be->vt->destroy(be);
}

/* Everything is asked for once, by and by, and again when another stream is next. */
static void test_ask(void **state)
{
    (void)state;
    static uint8_t base[26000];
    struct sl_cpu_config cfg = {.n_threads = 1};
    struct sl_backend *be;
    struct sl_error err;
    assert_int_equal(sl_cpu_create(&cfg, &be, &err), 0);
    struct sl_streams *all = &sl_cpu(be)->streams;
    assert_false(sl_streams_ask(be, 0));
    struct sl_stream a = stream_of(base, 'a'), b = stream_of(base, 'b');
    a.part[0].panel_bytes = 400; /* 4000 bytes */
    const struct sl_stream *order[] = {&a, &b, &a, &b};
    static const int asks[] = {0, 0, 1, 4};
    for (size_t i = 0; i < SL_COUNT(order); i++) {
        int n = 0;
        sl_streams_run(all, order[i]);
        while (sl_streams_ask(be, 0))
            n++;
        assert_int_equal(n, asks[i]);
        assert_false(sl_streams_ask(be, 0));
    }
    be->vt->destroy(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),    cmocka_unit_test(test_same_address),
        cmocka_unit_test(test_full),     cmocka_unit_test(test_first),
        cmocka_unit_test(test_products), cmocka_unit_test(test_ask),
    };
    return cmocka_run_group_tests_name("linear_next", tests, NULL, NULL);
}
