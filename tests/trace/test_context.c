/* SPDX-License-Identifier: MIT
 * Headers of W3C Trace Context: the cases of the recommendation and of its own test suite, and what
 * a collector says.
 */
#include "base/check.h"
#include "base/sys.h"
#include "trace/context.h"
#include "trace/post.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define TRACE "0af7651916cd43dd8448eb211c80319c"
#define SPAN  "b7ad6b7169203331"

static void test_traceparent(void **state)
{
    static const struct {
        const char *text;
        bool good;
        uint8_t flags;
    } rows[] = {
        {"00-" TRACE "-" SPAN "-01", true, 1},
        {"00-" TRACE "-" SPAN "-00", true, 0},
        {"00-" TRACE "-" SPAN "-03", true, 3},
        {"00-" TRACE "-" SPAN "-ff", true, 3}, /* unknown flags are not passed on */
        {"00-" TRACE "-" SPAN "-fc", true, 0},
        {"cc-" TRACE "-" SPAN "-01", true, 1}, /* later versions */
        {"cc-" TRACE "-" SPAN "-01-what-comes", true, 1},
        {"cc-" TRACE "-" SPAN "-01-", true, 1},
        {"cc-" TRACE "-" SPAN "-01.what", false, 0},
        {"cc-" TRACE "-" SPAN "-0100", false, 0},
        {"ff-" TRACE "-" SPAN "-01", false, 0},
        {"00-" TRACE "-" SPAN "-01-", false, 0},
        {"00-" TRACE "-" SPAN "-0", false, 0},
        {"00-" TRACE "-" SPAN "-0x", false, 0},
        {"00-" TRACE "-" SPAN "", false, 0},
        {"0G-" TRACE "-" SPAN "-01", false, 0},
        {"0A-" TRACE "-" SPAN "-01", false, 0},
        {"00-0AF7651916cd43dd8448eb211c80319c-" SPAN "-01", false, 0},
        {"00-.af7651916cd43dd8448eb211c80319c-" SPAN "-01", false, 0},
        {"00-00000000000000000000000000000000-" SPAN "-01", false, 0},
        {"00-" TRACE "-0000000000000000-01", false, 0},
        {"00-" TRACE "-b7ad6b716920333.-01", false, 0},
        {"00-" TRACE "_" SPAN "-01", false, 0},
        {"00-" TRACE SPAN "-01--", false, 0},
        {"", false, 0},
        {"-", false, 0},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_trace_context c = {.flags = 0x55};
        size_t n = strlen(rows[i].text);
        char *exact = sl_malloc(n + 1); /* of this size, so that a byte behind it would be seen */
        memcpy(exact, rows[i].text, n + 1);
        char *shorter = sl_realloc(exact, SL_MAX(n, 1));
        bool good = sl_traceparent_parse(shorter, n, &c);
        sl_free(shorter);
        if (good != rows[i].good)
            fail_msg("%s", rows[i].text);
        assert_int_equal(c.flags, good ? rows[i].flags : 0x55);
        if (!good)
            continue;
        assert_int_equal(c.trace_id[0], 0x0a);
        assert_int_equal(c.trace_id[15], 0x9c);
        assert_int_equal(c.span_id[0], 0xb7);
        assert_int_equal(c.span_id[7], 0x31);
    }
}

static void check_state(const char *const *headers, int n_headers, const char *want)
{
    struct sl_buf b = {0};
    int n = 0;
    bool ok = true;
    for (int i = 0; ok && i < n_headers; i++)
        ok = sl_tracestate_add(&b, &n, headers[i], strlen(headers[i]));
    assert_int_equal(ok, want != NULL);
    if (want != NULL)
        assert_string_equal(b.n_bytes > 0 ? b.data : "", want);
    sl_buf_deinit(&b);
}

static void test_tracestate(void **state)
{
    static const struct {
        const char *headers[3], *want;
    } rows[] = {
        {{"a=1"}, "a=1"},
        {{"a=1,b=2"}, "a=1,b=2"},
        {{" a=1 ,\t, b=2\t,"}, "a=1,b=2"},
        {{"a=1", "b=2", "c=3"}, "a=1,b=2,c=3"},
        {{""}, ""},
        {{","}, ""},
        {{"0a-_*/@z=v"}, "0a-_*/@z=v"},
        {{"a= v"}, "a= v"}, /* blanks inside belong to the value */
        {{"a=v w"}, "a=v w"},
        {{"a"}, NULL},
        {{"a="}, NULL},
        {{"=a"}, NULL},
        {{"a=b=c"}, NULL},
        {{"_a=1"}, NULL},
        {{"@a=1"}, NULL},
        {{"A=1"}, NULL},
        {{"a =1"}, NULL},
        {{"a=\x80"}, NULL},
        {{"a=1,b"}, NULL},
        {{"a=1,b=2,a=3"}, NULL},
        {{"a=1", "a=2"}, NULL},
        {{"aa=1,a=1,aaa=1"}, "aa=1,a=1,aaa=1"},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        int n = 0;
        while (n < 3 && rows[i].headers[n] != NULL)
            n++;
        check_state(rows[i].headers, n, rows[i].want);
    }
}

static void test_tracestate_bounds(void **state)
{
    char text[4096];
    const char *headers[1] = {text};
    (void)state;
    for (int n = 32; n <= 33; n++) {
        text[0] = '\0';
        for (int i = 0; i < n; i++)
            snprintf(text + strlen(text), 16, "%sk%d=v", i > 0 ? "," : "", i);
        check_state(headers, 1, n == 32 ? text : NULL);
    }
    for (int n = 256; n <= 257; n++) {
        memset(text, 'a', (size_t)n);
        strcpy(text + n, "=v");
        check_state(headers, 1, n == 256 ? text : NULL);
        memset(text, 'v', (size_t)n + 2);
        text[0] = 'a';
        text[1] = '=';
        text[n + 2] = '\0';
        check_state(headers, 1, n == 256 ? text : NULL);
    }
}

static void test_replies(void **state)
{
    static const struct {
        const char *text;
        int64_t n_rejected;
        const char *why;
    } rows[] = {
        {"{}", 0, ""},
        {"", 0, ""},
        {"{\"partialSuccess\":{}}", 0, ""},
        {"{\"partialSuccess\":{\"rejectedSpans\":\"7\",\"errorMessage\":\"too\\nold\"}}", 7,
         "too old"},
        {"{\"partialSuccess\":{\"rejectedSpans\":7}}", 7, ""},
        {"{\"partialSuccess\":{\"rejectedSpans\":-7}}", 0, ""},
        {"{\"partialSuccess\":{\"rejectedSpans\":\"x\"}}", 0, ""},
        {"{\"partialSuccess\":{\"rejectedSpans\":[7],\"errorMessage\":{}}}", 0, ""},
        {"{\"partialSuccess\":[7]}", 0, ""},
        {"[]", 0, ""},
        {"<html>", 0, ""},
        {"{\"partialSuccess\":{\"rejectedSpans\":\"7\"}", 0, ""},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_post_reply r = {0};
        sl_post_read_reply(rows[i].text, strlen(rows[i].text), &r);
        assert_int_equal(r.n_rejected, rows[i].n_rejected);
        assert_string_equal(r.why, rows[i].why);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_traceparent),
        cmocka_unit_test(test_tracestate),
        cmocka_unit_test(test_tracestate_bounds),
        cmocka_unit_test(test_replies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
