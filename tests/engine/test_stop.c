/* SPDX-License-Identifier: MIT
 * Tests of the search for stop strings: every text in every cut into pieces finds what a search of
 * the whole text finds, and holds back exactly what could still become a stop string.
 */
#include "base/check.h"
#include "base/rng.h"
#include "engine/stop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct set {
    struct sl_stops stops;
    uint16_t fail[SL_MAX_STOPS][SL_MAX_STOP_BYTES + 1];
};

static void prepare(struct set *s, const char *const *list, int n)
{
    s->stops.n = n;
    for (int i = 0; i < n; i++) {
        int32_t len = (int32_t)strlen(list[i]);
        sl_stop_prepare(list[i], len, s->fail[i]);
        s->stops.list[i] = (struct sl_stop){list[i], s->fail[i], len};
    }
}

/* The match that ends first, the longest of those. False: none. */
static bool naive(const struct set *s, const char *text, size_t n, size_t *begin, size_t *end)
{
    for (size_t e = 1; e <= n; e++) {
        size_t longest = 0;
        for (int i = 0; i < s->stops.n; i++) {
            size_t len = (size_t)s->stops.list[i].n;
            if (len <= e && len > longest &&
                memcmp(text + e - len, s->stops.list[i].text, len) == 0)
                longest = len;
        }
        if (longest > 0) {
            *begin = e - longest;
            *end = e;
            return true;
        }
    }
    return false;
}

static size_t naive_held(const struct set *s, const char *text, size_t n)
{
    size_t held = 0;
    for (int i = 0; i < s->stops.n; i++)
        for (size_t len = 1; len < (size_t)s->stops.list[i].n && len <= n; len++)
            if (memcmp(text + n - len, s->stops.list[i].text, len) == 0)
                held = SL_MAX(held, len);
    return held;
}

/* Feeds the text cut before every byte whose bit is set in cuts. */
static void feed_cut(const struct set *s, const char *text, size_t n, uint64_t cuts)
{
    struct sl_stop_state state = {{0}};
    size_t want_begin = 0, want_end = 0, at = 0;
    bool found = naive(s, text, n, &want_begin, &want_end);
    while (at < n) {
        size_t len = 1;
        while (at + len < n && !(cuts >> (at + len) & 1))
            len++;
        struct sl_stop_match m = sl_stop_feed(&s->stops, &state, text + at, len, true);
        if (m.idx >= 0) {
            assert_true(found);
            assert_int_equal(at + m.begin, want_begin);
            assert_int_equal(at + m.end, want_end);
            return;
        }
        at += len;
        assert_int_equal(sl_stop_held(&s->stops, &state), naive_held(s, text, at));
    }
    assert_false(found);
}

static void every_cut_of_a_text(void **state)
{
    (void)state;
    static const char *const stops[] = {"\n\nUser:", "</s>", "aab"};
    static const char *const texts[] = {
        "hi\n\nUser: x", "a</s", "aaab", "\n\nUse\n\nUser:", "</</s>", "no", "aaaaab"};
    struct set s;
    prepare(&s, stops, 3);
    for (size_t t = 0; t < SL_COUNT(texts); t++) {
        size_t n = strlen(texts[t]);
        for (uint64_t cuts = 0; cuts < UINT64_C(1) << n; cuts += 2)
            feed_cut(&s, texts[t], n, cuts);
    }
}

static void random_texts_and_stops(void **state)
{
    (void)state;
    struct sl_rng r = {.seed = 8};
    for (int c = 0; c < 20000; c++) {
        char stops[4][8], text[24];
        const char *list[4];
        int n_stops = 1 + (int)sl_rng_below(&r, 4);
        for (int i = 0; i < n_stops; i++) {
            size_t len = 1 + sl_rng_below(&r, 6);
            for (size_t j = 0; j < len; j++)
                stops[i][j] = (char)('a' + (int)sl_rng_below(&r, 2));
            stops[i][len] = '\0';
            list[i] = stops[i];
        }
        size_t n = 1 + sl_rng_below(&r, 20);
        for (size_t j = 0; j < n; j++)
            text[j] = (char)('a' + (int)sl_rng_below(&r, c % 2 ? 2 : 3));
        struct set s;
        prepare(&s, list, n_stops);
        feed_cut(&s, text, n, sl_rng_next(&r));
    }
}

static void an_unarmed_match_is_text(void **state)
{
    (void)state;
    static const char *const stops[] = {"abab"};
    struct set s;
    struct sl_stop_state st = {{0}};
    prepare(&s, stops, 1);
    assert_int_equal(sl_stop_feed(&s.stops, &st, "abab", 4, false).idx, -1);
    assert_int_equal(sl_stop_held(&s.stops, &st), 2); /* "ab" may begin the next one */
    struct sl_stop_match m = sl_stop_feed(&s.stops, &st, "ab", 2, true);
    assert_int_equal(m.idx, 0);
    assert_int_equal((int64_t)m.begin, -2);
    assert_int_equal(m.end, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_of_a_text),
        cmocka_unit_test(random_texts_and_stops),
        cmocka_unit_test(an_unarmed_match_is_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
