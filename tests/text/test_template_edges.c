/* SPDX-License-Identifier: MIT
 * Tests of templates where jinja2 is no measure: dates, compared with the C library over forty
 * years; what does not fit into 64 bits; what sluice refuses by its own rules.
 */
#include "test_template_util.h"

#include "base/check.h"

#include <stdlib.h>

static int render_at(const char *source, int64_t now, struct sl_buf *out, struct sl_error *err)
{
    struct sl_template *t;
    int rc = sl_template_compile(source, strlen(source), &t, err);
    if (rc != 0)
        return rc;
    sl_buf_clear(out);
    json_t *vars = json_object();
    rc = sl_template_render(t, vars, now, NULL, out, err);
    json_decref(vars);
    sl_template_destroy(t);
    return rc;
}

#define DATES                                                                                      \
    "%a %A %b %B %h %d %e %m %y %Y %H %I %k %l %M %S %j %C %G %g %V %w %u %U %W %p %P %s %% %n%t " \
    "%D %F %r %R %T %-d %_d %-j %_j %0e %-H %_m %-e %0k"

static void dates_are_those_of_the_c_library(void **state)
{
    (void)state;
    struct sl_buf out = {0};
    struct sl_error err;
    setenv("TZ", "UTC", 1); /* %s of the C library takes the time to be local */
    tzset();
    /* every day at another time of day, so that every week of every kind of year is met */
    for (int64_t day = 0; day < 40 * 366; day++) {
        time_t now = (time_t)(day * 86400 + day * 7919 % 86400);
        struct tm tm;
        char want[600];
        gmtime_r(&now, &tm);
        size_t n = strftime(want, sizeof want, DATES, &tm);
        if (render_at("{{ strftime_now('" DATES "') }}", now, &out, &err) != 0)
            fail_msg("%s", err.msg);
        if (out.n_bytes != n || memcmp(out.data, want, n) != 0)
            fail_msg("%lld: '%s', not '%s'", (long long)now, out.data, want);
    }
    static const char *const unknown[] = {"%E", "%Q", "%", "%-", "a%", "%0"};
    for (size_t i = 0; i < SL_COUNT(unknown); i++) {
        char source[64];
        snprintf(source, sizeof source, "{{ strftime_now('%s') }}", unknown[i]);
        assert_int_equal(render_at(source, NOW, &out, &err), 0);
        assert_string_equal(out.data, unknown[i]);
    }
    static const int64_t far[] = {INT64_MAX, INT64_MIN, 253402300800, -62167219201};
    for (size_t i = 0; i < SL_COUNT(far); i++) {
        assert_int_equal(render_at("{{ strftime_now('%Y') }}", far[i], &out, &err), SL_EINVAL);
        assert_non_null(strstr(err.msg, "the time is out of range"));
    }
    sl_buf_deinit(&out);
}

#define MIN "(-9223372036854775807 - 1)"
#define MAX "9223372036854775807"

/* Two lists inside lists, so many that comparing them would need too much stack. */
#define WRAPPED(n)                                                    \
    "{% set ns = namespace(a=[], b=[]) %}{% for i in range(" n ") %}" \
    "{% set ns.a = [ns.a] %}{% set ns.b = [ns.b] %}{% endfor %}"
#define NESTED WRAPPED("450")
#define DEEP   WRAPPED("1700")

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *source, *error;
    } cases[] = {
        {"{{ -" MIN " }}", "integer overflow"},
        {"{{ " MIN " // -1 }}", "integer overflow"},
        {"{{ " MIN " % -1 }}", NULL},
        {"{{ " MAX " + 1 }}", "integer overflow"},
        {"{{ " MIN " - 1 }}", "integer overflow"},
        {"{{ " MAX " * 2 }}", "integer overflow"},
        {"{{ 3 ** 50 }}", "integer overflow"},
        {"{{ 4294967296 ** 3 }}", "integer overflow"},
        {"{{ " MIN " | abs }}", "integer overflow"},
        {"{{ (-8) ** 0.5 }}", "complex numbers"},
        {"{{ 1e300 ** 2 }}", "out of range"},
        {"{{ 0.0 ** -1 }}", "0.0 cannot be raised"},
        {"{{ 9223372036854775808 }}", "does not fit into 64 bits"},
        {"{{ 0xFFFFFFFFFFFFFFFFF }}", "does not fit into 64 bits"},
        {"{{ '9223372036854775808' | int }}", "integer overflow"},
        {"{{ '-9223372036854775808' | int }}", NULL},
        {"{{ '92233720368547758080' | int }}", "integer overflow"},
        {"{{ '18446744073709551615' | int }}", "integer overflow"},
        {"{{ range(" MIN ", " MIN " + 7, 3)[::-1] }}", "integer overflow"},
        {"{{ range(" MAX " - 1, " MAX ", 5)[1:] }}", "integer overflow"},
        {"{{ range(0, 5, 4611686018427387904)[::3] }}", "integer overflow"},
        {"{{ range(0, 10, 3)[::-1] }}|{{ range(0, 10, 3)[1:] | list }}", NULL},
        {"{{ '%d' % 1e30 }}", "cannot convert this float"},
        {"{{ '%d' % -1e30 }}", "cannot convert this float"},
        {"{{ '{a:>{b}}'.format(a=1, b=5) }}", "nested fields in format() are not supported"},
        {"{{ {} | attr('items') }}", "attr() of a method is not supported"},
        {"{% autoescape true %}{% endautoescape %}", "autoescape is not supported"},
        {"{% autoescape 1 %}{% endautoescape %}", "autoescape is not supported"},
        {"{% autoescape none %}{% endautoescape %}", "autoescape is not supported"},
        {"{% set l = [1] %}{{ l.append(2) }}", "has no attribute"},
        {"{% set l = [1] %}{{ l.sort() }}{{ l.reverse() }}", "has no attribute"},
        {"{% set d = {} %}{{ d.update({}) }}", "has no attribute"},
        {"{{ [1] | batch('x') }}", "batch needs an integer"},
        {"{{ '1' | int(0, 'x') }}", "int needs an integer"},
        {"{{ '18446744073709551616' | int }}", "integer overflow"},
        {"{{ 18446744073709551616 }}", "does not fit into 64 bits"},
        {"{{ 92233720368547758070 }}", "does not fit into 64 bits"},
        {"{{ 0x7FFFFFFFFFFFFFFFF }}", "does not fit into 64 bits"},
        {"{{ range(" MIN ", " MAX ", 4611686018427387904)[2:3] }}", "integer overflow"},
        {"{{ 'abc' * " MAX " }}", "too much memory"},
        {"{{ 'abc'['a':] }}", "slice indices must be integers"},
        {"{{ [1][0:,2] }}", "a slice cannot be part of a tuple"},
        {"{{ [1][0::,2] }}", "a slice cannot be part of a tuple"},
        {"{% autoescape x %}{% endautoescape %}", "autoescape is not supported"},
        {"{{ '\\ud800' }}", NULL},
        {"{{ '\\ud800abcdef' }}", NULL},
        {"{{ '\\ud800\\nabcdef' }}", NULL},
        {"{{ '\\ud800\\u0041' }}", NULL},
        {"{{ '\\ud800\\ue000' }}", NULL},
        {NESTED "{{ ns.a == ns.b }}", "values are nested too deeply to compare"},
        {NESTED "{{ ns.a < ns.b }}", "values are nested too deeply to compare"},
        {NESTED "{{ ns.a }}", "nested too deeply"},
        {NESTED "{{ ns.a | tojson }}", "nested too deeply"},
        {DEEP "{{ ns.a | map(*(['map'] * 1600)) | list }}", "nested too deeply"},
    };
    struct sl_buf out = {0};
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_error err = {.msg = ""};
        int rc = render_at(cases[i].source, NOW, &out, &err);
        if (cases[i].error == NULL ? rc != 0
                                   : rc != SL_EINVAL || strstr(err.msg, cases[i].error) == NULL)
            fail_msg("%s: %d '%s'", cases[i].source, rc, err.msg);
    }
    sl_buf_deinit(&out);
}

/* An opening that is repeated until the parser, or the rendering, gives up. */
static void nesting_ends_somewhere(void **state)
{
    (void)state;
    static const struct {
        const char *head, *open, *tail;
    } cases[] = {
        {"{{ ", "(", ""},       {"{{ ", "[", ""},
        {"{{ ", "{1: ", ""},    {"{{ ", "x[", ""},
        {"{{ ", "x(", ""},      {"{{ ", "x(a=", ""},
        {"{{ ", "not ", ""},    {"{{ ", "- ", ""},
        {"{{ ", "1 if ", ""},   {"{{ ", "x|join(", ""},
        {"{{ ", "x ~ (", ""},   {"{{ ", "1 if 1 else ", ""},
        {"", "{% if 1 %}", ""}, {"{{ ", "x is in ", ""},
        {"{{ ", "x ** ", ""},   {"", "{% for a in b %}", ""},
        {"{% set ", "(", ""},   {"{% for ", "(a, ", ""},
    };
    struct sl_buf out = {0}, source = {0};
    struct sl_error err;
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        for (int odd = 0; odd < 6; odd++) { /* what counts twice meets the limit at odd places */
            sl_buf_clear(&source);
            for (int k = 0; k < odd; k++)
                sl_buf_puts(&source, "{% if 1 %}");
            sl_buf_puts(&source, cases[i].head);
            for (int k = 0; k < 3000; k++)
                sl_buf_puts(&source, cases[i].open);
            assert_int_equal(render_at(source.data, NOW, &out, &err), SL_EINVAL);
        }
    /* a macro that calls itself, at each depth of statements and expressions */
    for (int k = 0; k < 48; k++) {
        sl_buf_clear(&source);
        sl_buf_puts(&source, "{% macro m(n) %}");
        for (int j = 0; j < k % 4 * 12; j++)
            sl_buf_puts(&source, "{% with %}");
        sl_buf_puts(&source, "{{ ");
        for (int j = 0; j < k / 4; j++)
            sl_buf_puts(&source, "not ");
        sl_buf_puts(&source, "m(n) }}");
        for (int j = 0; j < k % 4 * 12; j++)
            sl_buf_puts(&source, "{% endwith %}");
        sl_buf_puts(&source, "{% endmacro %}{{ m(1) }}");
        assert_int_equal(render_at(source.data, NOW, &out, &err), SL_EINVAL);
        assert_non_null(strstr(err.msg, "nested too deeply"));
    }
    sl_buf_deinit(&source);
    sl_buf_deinit(&out);
}

/* What no template file can hold, and what jinja2 prints with an address in it. */
static void what_python_cannot_say(void **state)
{
    (void)state;
    struct sl_buf out = {0};
    struct sl_error err;
    struct sl_template *t;
    assert_int_equal(sl_template_compile("{{ \0 }}", 7, &t, &err), SL_EINVAL);
    assert_non_null(strstr(err.msg, "unexpected char '?'"));
    assert_int_equal(render_at("{{ 'a\\0' | tojson }}", NOW, &out, &err), 0);
    assert_string_equal(out.data, "\"a\\u0000\"");
    assert_int_equal(render_at("{{ [1] | map('string') }}", NOW, &out, &err), 0);
    assert_string_equal(out.data, "<generator object sync_do_map>");
    static const char *const undefined[] = {"{{ x + 'a' }}", "{{ 'a' + x }}"};
    const struct sl_template_limits javascript = {.dialect = SL_TEMPLATE_JAVASCRIPT};
    for (size_t i = 0; i < SL_COUNT(undefined); i++) {
        struct rendering r = render(undefined[i], strlen(undefined[i]), NULL, &javascript);
        assert_int_equal(r.code, SL_EINVAL);
        sl_buf_deinit(&r.out);
    }
    sl_buf_deinit(&out);
}

static void limits_of_the_caller(void **state)
{
    (void)state;
    const struct sl_template_limits no_limit = {.max_output = SIZE_MAX};
    struct sl_template *t;
    struct sl_error err;
    assert_int_equal(sl_template_compile("{{ x }}", 7, &t, &err), 0);
    json_t *vars = json_pack("{s:s}", "x", "0123456789");
    struct sl_buf out = {.max_bytes = 12};
    sl_buf_puts(&out, "<>");
    assert_int_equal(sl_template_render(t, vars, NOW, &no_limit, &out, &err), 0);
    assert_string_equal(out.data, "<>0123456789");
    assert_int_equal(sl_template_render(t, vars, NOW, &no_limit, &out, &err), SL_EINVAL);
    assert_string_equal(out.data, "<>0123456789");
    sl_buf_puts(&out, "x"); /* too much, and the buffer remembers */
    assert_int_equal(sl_template_render(t, vars, NOW, NULL, &out, &err), SL_ENOMEM);
    json_decref(vars);
    sl_buf_deinit(&out);
    json_t *deep = json_array();
    for (int i = 0; i < 300; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, deep);
        deep = outer;
    }
    vars = json_object();
    json_object_set_new(vars, "x", deep);
    struct sl_buf text = {0};
    assert_int_equal(sl_template_render(t, vars, NOW, NULL, &text, &err), SL_EINVAL);
    assert_non_null(strstr(err.msg, "the variables are nested too deeply"));
    json_decref(vars);
    sl_buf_deinit(&text);
    sl_template_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dates_are_those_of_the_c_library),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(nesting_ends_somewhere),
        cmocka_unit_test(what_python_cannot_say),
        cmocka_unit_test(limits_of_the_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
