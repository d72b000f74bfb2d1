/* SPDX-License-Identifier: MIT
 *
 * The template interpreter: its interface, what jinja2 does not decide (limits, dialects), and
 * tests/golden/templates.json, which tells what Python's jinja2 makes of many small templates and
 * of the public chat templates over many conversations.
 */
#include "test_template_util.h"

#include "base/check.h"

#define GOLDEN    "tests/golden/templates.json"
#define TEMPLATES "build/testdata/templates/jinja/"

static void expect_text(const char *source, const char *vars, const char *want,
                        const struct sl_template_limits *limits)
{
    json_t *j = vars != NULL ? json_loads(vars, 0, NULL) : json_object();
    assert_non_null(j);
    struct rendering r = render(source, strlen(source), j, limits);
    if (want == NULL ? r.code == 0 : !same_text(&r, want, strlen(want)))
        fail_msg("%s\nwant: %s\nhave: %s", source, want != NULL ? want : "an error",
                 r.code == 0 ? (r.out.data != NULL ? r.out.data : "") : r.err.msg);
    sl_buf_deinit(&r.out);
    json_decref(j);
}

static void own_cases(void **state)
{
    (void)state;
    static const struct {
        const char *source, *vars, *want; /* want NULL: an error */
    } cases[] = {
        {"", NULL, ""},
        {"\n", NULL, ""},
        {"a\r\nb\rc\r\n", NULL, "a\nb\nc"},
        {"{{ '\\ud83e\\udd17' }}", NULL, "\xF0\x9F\xA4\x97"},
        {"{{ '\\ud83d' }}", NULL, "\xEF\xBF\xBD"},
        {"{{ 9223372036854775808 }}", NULL, NULL},
        {"{{ 9223372036854775807 + 1 }}", NULL, NULL},
        {"{{ -9223372036854775807 - 2 }}", NULL, NULL},
        {"{{ (-9223372036854775807 - 1) // -1 }}", NULL, NULL},
        {"{{ (-9223372036854775807 - 1) % -1 }}", NULL, "0"},
        {"{{ 3037000500 * 3037000500 }}", NULL, NULL},
        {"{{ 10 ** 19 }}", NULL, NULL},
        {"{{ 1e20 | int }}", NULL, NULL},
        {"{% do [1] %}x", NULL, "x"},
        {"{% include 'a' %}", NULL, NULL},
        {"{% extends 'a' %}", NULL, NULL},
        {"{{ x.y }}", "{\"x\": {\"y\": [1.0, -2, \"z\", null, false]}}",
         "[1.0, -2, 'z', None, False]"},
        {"{{ messages[0].content }}", "{\"messages\": [{\"content\": \"hi\"}]}", "hi"},
        {"{{ range }}", "{\"range\": 5}", "5"},
        {"{{ 'a\\x00b' | length }}", NULL, "3"},
        {"{{ 'a{}b'.format('x') }}{{ '{0.upper}'.format('x') is string }}", NULL, "axbTrue"},
        {"{% for x in [1,2,3] recursive %}{{ x }}{% if x == 2 %}{{ loop([7]) }}{% endif %}"
         "{% endfor %}",
         NULL, "1273"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        expect_text(cases[i].source, cases[i].vars, cases[i].want, NULL);
}

static void javascript_dialect(void **state)
{
    (void)state;
    struct sl_template_limits js = {.dialect = SL_TEMPLATE_JAVASCRIPT};
    expect_text("{{ [true, none, 'a', {'b': 1}] }}{{ 'n' + 1 }}{{ true }}", NULL,
                "[true, null, \"a\", {\"b\": 1}]n1true", &js);
    expect_text("{{ [1, 2] | select('odd') | length }}", NULL, "1", &js);
    expect_text("{{ [1, 2] | select('odd') | length }}", NULL, NULL, NULL);
}

static void errors_name_the_line(void **state)
{
    (void)state;
    const char *source = "a\n{% if true %}\n{{ x.y }}\n{% endif %}";
    json_t *vars = json_object();
    struct rendering r = render(source, strlen(source), vars, NULL);
    assert_int_equal(r.code, SL_EINVAL);
    assert_non_null(strstr(r.err.msg, "line 3"));
    assert_non_null(strstr(r.err.msg, "'x' is undefined"));
    sl_buf_deinit(&r.out);
    source = "a\n\n{{ 1 + }}";
    r = render(source, strlen(source), vars, NULL);
    assert_int_equal(r.code, SL_EINVAL);
    assert_non_null(strstr(r.err.msg, "line 3"));
    source = "{{ raise_exception('roles must alternate') }}";
    r = render(source, strlen(source), vars, NULL);
    assert_non_null(strstr(r.err.msg, "roles must alternate"));
    sl_buf_deinit(&r.out);
    json_decref(vars);
}

static void output_is_appended_or_untouched(void **state)
{
    (void)state;
    struct sl_template *good, *bad;
    struct sl_buf out = {0};
    json_t *vars = json_pack("{s:s}", "x", "y");
    assert_int_equal(sl_template_compile("<{{ x }}>", 9, &good, NULL), 0);
    assert_int_equal(sl_template_compile("abc{{ 1 / 0 }}", 14, &bad, NULL), 0);
    sl_buf_puts(&out, "pre");
    assert_int_equal(sl_template_render(good, vars, 0, NULL, &out, NULL), 0);
    assert_int_equal(sl_template_render(bad, vars, 0, NULL, &out, NULL), SL_EINVAL);
    assert_int_equal(sl_template_render(good, vars, 0, NULL, &out, NULL), 0);
    assert_string_equal(out.data, "pre<y><y>");
    sl_buf_deinit(&out);
    sl_template_destroy(good);
    sl_template_destroy(bad);
    json_decref(vars);
}

static void bad_sources(void **state)
{
    (void)state;
    struct sl_template *t;
    struct sl_error err;
    assert_int_equal(sl_template_compile("a\xFF", 2, &t, &err), SL_EFORMAT);
    assert_null(t);
    char *big = sl_malloc((1u << 20) + 1);
    assert_non_null(big);
    memset(big, 'a', (1u << 20) + 1);
    assert_int_equal(sl_template_compile(big, (1u << 20) + 1, &t, &err), SL_ELIMIT);
    assert_int_equal(sl_template_compile(big, 1u << 20, &t, &err), 0);
    sl_template_destroy(t);
    sl_template_destroy(NULL);
    sl_free(big);
}

/* The number of bytes and an FNV-1a hash stand for the text. */
static uint64_t fnv(const char *s, size_t n)
{
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 0x100000001B3u;
    return h;
}

static void golden_snippets(void **state)
{
    (void)state;
    json_t *golden = load_json(GOLDEN), *row;
    size_t i, bad = 0;
    assert_non_null(golden);
    assert_true(json_array_size(json_object_get(golden, "snippets")) > 250);
    json_array_foreach(json_object_get(golden, "snippets"), i, row)
    {
        const json_t *source = json_array_get(row, 0), *want = json_array_get(row, 2);
        struct rendering r = render(json_string_value(source), json_string_length(source),
                                    json_array_get(row, 1), NULL);
        bool ok = json_is_null(want)
                      ? r.code == SL_EINVAL
                      : same_text(&r, json_string_value(want), json_string_length(want));
        if (!ok) {
            bad++;
            print_error("%s\n  want: %s\n  have: %s\n", json_string_value(source),
                        json_is_null(want) ? "an error" : json_string_value(want),
                        r.code != 0 ? r.err.msg : r.out.data);
        }
        sl_buf_deinit(&r.out);
    }
    json_decref(golden);
    assert_int_equal(bad, 0);
}

static bool matches(const struct rendering *r, const json_t *want)
{
    char hash[20];
    if (json_is_null(want))
        return r->code == SL_EINVAL;
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)fnv(r->out.data, r->out.n_bytes));
    return r->code == 0 &&
           (json_int_t)r->out.n_bytes == json_integer_value(json_array_get(want, 0)) &&
           strcmp(hash, json_string_value(json_array_get(want, 1))) == 0;
}

static void golden_templates(void **state)
{
    (void)state;
    json_t *golden = load_json(GOLDEN), *rows, *want;
    const char *name, *conv;
    size_t n_templates = 0, n = 0, bad = 0;
    assert_non_null(golden);
    json_object_foreach(json_object_get(golden, "templates"), name, rows)
    {
        char path[300], *source;
        size_t len;
        struct sl_template *t;
        struct sl_error err;
        snprintf(path, sizeof path, "%s%s", TEMPLATES, name);
        if (sl_read_file(path, 1u << 20, &source, &len, &err) != 0)
            continue;
        n_templates++;
        if (sl_template_compile(source, len, &t, &err) != 0)
            fail_msg("%s: %s", name, err.msg);
        json_object_foreach(rows, conv, want)
        {
            struct rendering r = {0};
            const json_t *vars = json_object_get(json_object_get(golden, "conversations"), conv);
            r.code = sl_template_render(t, vars, NOW, NULL, &r.out, &r.err);
            n++;
            if (!matches(&r, want)) {
                bad++;
                print_error("%s / %s: %s\n", name, conv, r.code != 0 ? r.err.msg : r.out.data);
            }
            sl_buf_deinit(&r.out);
        }
        sl_template_destroy(t);
        sl_free(source);
    }
    json_decref(golden);
    if (n_templates == 0) {
        print_message("skip: golden renderings, %s is not there\n", TEMPLATES);
        return;
    }
    print_message("%zu templates, %zu renderings, %zu wrong\n", n_templates, n, bad);
    assert_int_equal(n_templates, 42);
    assert_int_equal(bad, 0);
}

/* Not an assertion, as machines differ: how long a usual rendering takes. */
static void usual_rendering_time(void **state)
{
    (void)state;
    char *source;
    size_t len;
    struct sl_template *t;
    struct sl_error err;
    json_t *golden = load_json(GOLDEN);
    if (sl_read_file(TEMPLATES "meta-llama-Llama-3.2-3B-Instruct.jinja", 1u << 20, &source, &len,
                     &err) != 0) {
        print_message("skip: rendering time, %s is not there\n", TEMPLATES);
        json_decref(golden);
        return;
    }
    assert_int_equal(sl_template_compile(source, len, &t, &err), 0);
    const json_t *vars = json_object_get(json_object_get(golden, "conversations"), "multi");
    struct sl_buf out = {0};
    double start = cpu_ms();
    for (int i = 0; i < 200; i++) {
        sl_buf_clear(&out);
        assert_int_equal(sl_template_render(t, vars, NOW, NULL, &out, &err), 0);
    }
    print_message("Llama 3.2, 4 messages: %.1f us a rendering\n", (cpu_ms() - start) * 1e3 / 200);
    sl_buf_deinit(&out);
    sl_template_destroy(t);
    sl_free(source);
    json_decref(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_cases),
        cmocka_unit_test(javascript_dialect),
        cmocka_unit_test(errors_name_the_line),
        cmocka_unit_test(output_is_appended_or_untouched),
        cmocka_unit_test(bad_sources),
        cmocka_unit_test(golden_snippets),
        cmocka_unit_test(golden_templates),
        cmocka_unit_test(usual_rendering_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
