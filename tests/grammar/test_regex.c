/* SPDX-License-Identifier: MIT
 * test_regex.c - patterns to languages: a table, a comparison with PCRE2 over random patterns, and
 * what must be refused.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/sys.h"
#include "grammar/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct sl_rx_limits limits = {200000, 50000, 64u << 20};

static int compile(struct sl_rx *rx, const char *pattern, unsigned flags, enum sl_spelling sp,
                   sl_rx_id *id, struct sl_error *err)
{
    int rc = sl_rx_init(rx, &limits, err);
    assert_int_equal(rc, 0);
    rx->max_derived = 5000000;
    return sl_regex_parse(rx, pattern, strlen(pattern), flags, sp, id, err);
}

static const struct {
    const char *pattern;
    bool search;
    const char *yes[4], *no[4];
} table[] = {
    {"abc", false, {"abc"}, {"", "ab", "abcd", "xabc"}},
    {"abc", true, {"abc", "xabcx"}, {"ab", "acb"}},
    {"^abc", true, {"abc", "abcx"}, {"xabc"}},
    {"abc$", true, {"abc", "xabc"}, {"abcx"}},
    {"^a|b$", true, {"ax", "xb", "a"}, {"xa", "bx"}},
    {"(^a|b)c", true, {"ac", "xbc", "bcx"}, {"xac"}},
    {"^$", true, {""}, {"a"}},
    {"a*^b", true, {"b", "bx"}, {"ab", "xb"}},
    {"^(a|b)*$", true, {"", "abba"}, {"abc"}},
    {"x{2,3}", false, {"xx", "xxx"}, {"x", "xxxx"}},
    {"x{2,}", false, {"xx", "xxxxxx"}, {"x"}},
    {"x{,3}", false, {"x{,3}"}, {"xx"}},
    {"[a-c]+", false, {"a", "cab"}, {"", "d"}},
    {"[^a-c]", false, {"d", "é", "\xF0\x9F\x98\x80"}, {"a", "dd", "\xFF"}},
    {".", false, {"x", "é"}, {"\n", "xx", "\xE2\x80\xA8"}},
    {"\\d{3}-\\w\\s", false, {"123-a ", "999-_\xC2\xA0"}, {"12-a ", "123-- "}},
    {"\\p{Lu}\\P{Lu}", false, {"Éa", "A1"}, {"aa", "AA"}},
    {"\\u00e9\\x41\\t", false, {"éA\t"}, {"e"}},
    {"\\uD83D\\uDE00|\\u{1F601}", false, {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x81"}, {"x"}},
    {"^(?!foo).*$", true, {"", "fo", "bar"}, {"foo", "foobar"}},
    {"^(?=.*[A-Z])(?=.*\\d).{3,5}$", true, {"aA1", "1Aaaa"}, {"aa1", "A1", "AAA111"}},
    {"(?:ab)?(?P<n>c)(?<m>d)", false, {"cd", "abcd"}, {"ab"}},
    {"a.*?b", false, {"ab", "axxb"}, {"a"}},
    {"(?i)aB[c-d]", false, {"AbC", "abd"}, {"aab"}},
    {"(a?){1000}b", false, {"b", "aaab"}, {"a"}},
    {"[]", false, {NULL}, {"", "a"}},
    {"[^]", false, {"\n", "a"}, {""}},
    {"[\\]\\-x-]", false, {"]", "-", "x"}, {"\\"}},
    {"[ࠀ-\xEF\xBF\xBF]", false, {"ࠀ", "丁", "\xEF\xBF\xBF"}, {"a", "\xED\xA0\x80"}},
    {"a||b", false, {"a", "", "b"}, {"c"}},
};

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(table); i++) {
        struct sl_rx rx;
        struct sl_error err = {0};
        sl_rx_id id;
        int rc = compile(&rx, table[i].pattern, table[i].search ? SL_REGEX_SEARCH : 0,
                         SL_SPELL_UTF8, &id, &err);
        if (rc != 0)
            fail_msg("%s: %s", table[i].pattern, err.msg);
        for (size_t k = 0; k < 4 && table[i].yes[k] != NULL; k++)
            if (!sl_rx_matches(&rx, id, table[i].yes[k], strlen(table[i].yes[k])))
                fail_msg("/%s/ does not match '%s'", table[i].pattern, table[i].yes[k]);
        for (size_t k = 0; k < 4 && table[i].no[k] != NULL; k++)
            if (sl_rx_matches(&rx, id, table[i].no[k], strlen(table[i].no[k])))
                fail_msg("/%s/ matches '%s'", table[i].pattern, table[i].no[k]);
        sl_rx_deinit(&rx);
    }
}

static const struct {
    const char *pattern, *says;
} refused[] = {
    {"(a", "')' is missing"},
    {"a)", "unbalanced ')'"},
    {"[a", "']' is missing"},
    {"[z-a]", "range runs backwards"},
    {"a{3,2}", "bounds run backwards"},
    {"*a", "nothing to repeat"},
    {"a**", "nothing to repeat"},
    {"^+", "an assertion cannot be repeated"},
    {"(?<=x)+", "look-behind"},
    {"(a)\\1", "back-reference"},
    {"\\bfoo", "\\b and \\B"},
    {"\\p{Script=Greek}", "general categories"},
    {"\\", "nothing follows the backslash"},
    {"\\xZZ", "hexadecimal digits"},
    {"\\q", "this escape"},
    {"(?x)a", "this kind of group"},
    {"a{2147483647}", "a count of more than"},
    {"a++", "possessive"},
    {"\xFF", "invalid UTF-8"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(refused); i++) {
        struct sl_rx rx;
        struct sl_error err = {0};
        sl_rx_id id;
        assert_int_not_equal(compile(&rx, refused[i].pattern, 0, SL_SPELL_UTF8, &id, &err), 0);
        if (strstr(err.msg, refused[i].says) == NULL)
            fail_msg("/%s/: \"%s\" does not say \"%s\"", refused[i].pattern, err.msg,
                     refused[i].says);
        sl_rx_deinit(&rx);
    }
}

/* Patterns that bring other engines down end in an error or a working automaton. */
static void test_hostile(void **state)
{
    (void)state;
    struct sl_rx rx;
    struct sl_error err = {0};
    sl_rx_id id;
    size_t n = 60000;
    char *deep = sl_malloc(n + 1);
    assert_non_null(deep);
    memset(deep, '(', n);
    deep[n] = 0;
    assert_int_equal(compile(&rx, deep, 0, SL_SPELL_UTF8, &id, &err), SL_ELIMIT);
    sl_rx_deinit(&rx);
    for (size_t i = 0; i + 1 < n; i += 2)
        memcpy(deep + i, "a?", 2);
    assert_int_equal(compile(&rx, deep, 0, SL_SPELL_UTF8, &id, &err), 0);
    assert_false(sl_rx_matches(&rx, id, "aaaa", 4)); /* over the time limit, and says so */
    assert_int_equal(sl_rx_check(&rx, &err), SL_ELIMIT);
    sl_rx_deinit(&rx);
    deep[800] = 0;
    assert_int_equal(compile(&rx, deep, 0, SL_SPELL_UTF8, &id, &err), 0);
    assert_true(sl_rx_matches(&rx, id, "aaaa", 4));
    sl_rx_deinit(&rx);
    sl_free(deep);
    static const char *const slow[] = {"(a|aa)+$", "((a{0,1000}){0,1000}){0,1000}",
                                       "(.*)(.*)(.*)(.*)x{2147483646}", "(a|b)*a(a|b){5000}",
                                       "(?=(a|b)*a(a|b){40}$)(?!(a|b)*b(a|b){40}$)[ab]*"};
    for (size_t i = 0; i < SL_COUNT(slow); i++) {
        char text[2000];
        for (size_t k = 0; k < sizeof text; k++)
            text[k] = "ab"[k * k % 7 & 1];
        uint64_t t0 = sl_now_ns();
        if (compile(&rx, slow[i], 0, SL_SPELL_UTF8, &id, &err) == 0)
            (void)sl_rx_matches(&rx, id, text, sizeof text);
        assert_in_range(sl_now_ns() - t0, 0, 20000000000u);
        sl_rx_deinit(&rx);
    }
}

static void random_pattern(struct sl_rng *r, char *out, size_t *n, int depth)
{
    static const char *const atoms[] = {"a", "b", "c", ".", "[ab]", "[^a]", "\\d", "\\w", "1"};
    size_t parts = 1 + sl_rng_below(r, 3);
    for (size_t i = 0; i < parts; i++) {
        if (depth > 0 && sl_rng_below(r, 3) == 0) {
            *n += (size_t)sprintf(out + *n, sl_rng_below(r, 6) == 0 ? "(?=" : "(?:");
            bool look = out[*n - 1] == '=';
            random_pattern(r, out, n, depth - 1);
            *n += (size_t)sprintf(out + *n, "|");
            random_pattern(r, out, n, depth - 1);
            *n += (size_t)sprintf(out + *n, ")");
            if (look)
                continue;
        } else {
            *n += (size_t)sprintf(out + *n, "%s", atoms[sl_rng_below(r, SL_COUNT(atoms))]);
        }
        static const char *const quant[] = {"", "", "", "*", "+", "?", "{2}", "{1,2}", "{2,}"};
        *n += (size_t)sprintf(out + *n, "%s", quant[sl_rng_below(r, SL_COUNT(quant))]);
    }
}

static void test_against_pcre(void **state)
{
    (void)state;
    struct sl_rng r = {7, 0};
    int compared = 0;
    for (int t = 0; t < 1500; t++) {
        char pattern[4096], text[16];
        size_t n = 0;
        if (sl_rng_below(&r, 4) == 0)
            pattern[n++] = '^';
        random_pattern(&r, pattern, &n, 2);
        if (sl_rng_below(&r, 4) == 0)
            pattern[n++] = '$';
        pattern[n] = 0;
        int code;
        PCRE2_SIZE where;
        pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, n,
                                       PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_NO_AUTO_POSSESS,
                                       &code, &where, NULL);
        struct sl_rx rx;
        struct sl_error err = {0};
        sl_rx_id id;
        int rc = compile(&rx, pattern, SL_REGEX_SEARCH, SL_SPELL_UTF8, &id, &err);
        if (re != NULL && rc == 0) {
            pcre2_match_data *md = pcre2_match_data_create_from_pattern(re, NULL);
            for (int k = 0; k < 60; k++) {
                size_t len = sl_rng_below(&r, 8);
                for (size_t j = 0; j < len; j++)
                    text[j] = "aabbc1x"[sl_rng_below(&r, 7)];
                bool theirs = pcre2_match(re, (PCRE2_SPTR)text, len, 0, 0, md, NULL) >= 0;
                bool ours = sl_rx_matches(&rx, id, text, len);
                if (ours != theirs)
                    fail_msg("/%s/ on '%.*s': %d, PCRE2 says %d", pattern, (int)len, text, ours,
                             theirs);
                compared++;
            }
            pcre2_match_data_free(md);
        }
        pcre2_code_free(re);
        sl_rx_deinit(&rx);
    }
    assert_true(compared > 50000);
}

/* In a JSON string every character has one spelling; \u escapes of others are not it. */
static void test_json_spelling(void **state)
{
    (void)state;
    struct sl_rx rx;
    struct sl_error err = {0};
    sl_rx_id id;
    assert_int_equal(compile(&rx, "[^]", 0, SL_SPELL_JSON, &id, &err), 0);
    static const char *const yes[] = {"a", "\\\"", "\\\\", "\\n", "\\u000a", "\\u000A", "é", "/"};
    static const char *const no[] = {"\"", "\\", "\n", "\\/", "\\u0041", "\\u00e9", "\x7f\x7f"};
    for (size_t i = 0; i < SL_COUNT(yes); i++)
        assert_true(sl_rx_matches(&rx, id, yes[i], strlen(yes[i])));
    for (size_t i = 0; i < SL_COUNT(no); i++)
        assert_false(sl_rx_matches(&rx, id, no[i], strlen(no[i])));
    sl_rx_deinit(&rx);
}

/* A state that cannot reach acceptance is never entered, through intersections as well. */
static void test_dead_states(void **state)
{
    (void)state;
    struct sl_rx rx;
    struct sl_error err = {0};
    sl_rx_id id;
    assert_int_equal(compile(&rx, "(?=(abc)+$)[^]{1,4}", 0, SL_SPELL_UTF8, &id, &err), 0);
    static const char abc[] = "abc";
    for (int i = 0; i < 3; i++)
        id = sl_rx_step(&rx, id, (uint8_t)abc[i]);
    assert_true(sl_rx_nullable(&rx, id));
    for (unsigned b = 0; b < 256; b++)
        assert_int_equal(sl_rx_step(&rx, id, (uint8_t)b), SL_RX_NONE);
    assert_int_equal(sl_rx_check(&rx, &err), 0);
    sl_rx_deinit(&rx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),         cmocka_unit_test(test_refused),
        cmocka_unit_test(test_hostile),       cmocka_unit_test(test_against_pcre),
        cmocka_unit_test(test_json_spelling), cmocka_unit_test(test_dead_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
