/* SPDX-License-Identifier: MIT
 *
 * Public test suites of other Jinja implementations. Those of huggingface.js expect JavaScript's
 * way of printing in places, so they run in that dialect; the number that Python's dialect passes
 * as well is checked too. minijinja differs from jinja2 in places that are listed here by feature;
 * its snapshots are made without trim_blocks, so white space is left out of the comparison.
 */
#include "test_template_util.h"

#include "base/check.h"

#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>

#define DATA "build/testdata/templates/"

static bool passes(const json_t *source, const json_t *vars, const json_t *want,
                   enum sl_template_dialect dialect, bool show)
{
    struct sl_template_limits limits = {.dialect = dialect};
    struct rendering r =
        render(json_string_value(source), json_string_length(source), vars, &limits);
    bool ok = same_text(&r, json_string_value(want), json_string_length(want));
    if (!ok && show)
        print_error("%s\n  want: %s\n  have: %s\n", json_string_value(source),
                    json_string_value(want), r.code != 0 ? r.err.msg : r.out.data);
    sl_buf_deinit(&r.out);
    return ok;
}

static void chat_e2e(void **state)
{
    (void)state;
    static const char *const groups[] = {"default_templates", "custom_templates"};
    json_t *all = load_json(DATA "chat-e2e.json"), *row;
    const char *name;
    size_t n = 0, js = 0, python = 0;
    if (all == NULL) {
        print_message("skip: chat-e2e, %schat-e2e.json is not there\n", DATA);
        return;
    }
    for (size_t g = 0; g < SL_COUNT(groups); g++)
        json_object_foreach(json_object_get(all, groups[g]), name, row)
        {
            const json_t *source = json_object_get(row, "chat_template"),
                         *vars = json_object_get(row, "data"),
                         *want = json_object_get(row, "target");
            n++;
            js += passes(source, vars, want, SL_TEMPLATE_JAVASCRIPT, true);
            python += passes(source, vars, want, SL_TEMPLATE_PYTHON, false);
        }
    print_message("chat-e2e: %zu of %zu, %zu of them in the Python dialect too\n", js, n, python);
    assert_int_equal(n, 53);
    assert_int_equal(js, 53);
    assert_int_equal(python, 52); /* the other one prints a list of dicts */
    json_decref(all);
}

static void jinja_small(void **state)
{
    (void)state;
    json_t *all = load_json(DATA "jinja-small.json"), *row;
    size_t i, js = 0, python = 0;
    if (all == NULL) {
        print_message("skip: jinja-small, %sjinja-small.json is not there\n", DATA);
        return;
    }
    json_array_foreach(all, i, row)
    {
        const json_t *source = json_object_get(row, "template"),
                     *vars = json_object_get(row, "context"),
                     *want = json_object_get(row, "expected");
        js += passes(source, vars, want, SL_TEMPLATE_JAVASCRIPT, true);
        python += passes(source, vars, want, SL_TEMPLATE_PYTHON, false);
    }
    print_message("jinja-small: %zu of %zu, %zu of them in the Python dialect too\n", js,
                  json_array_size(all), python);
    assert_int_equal(json_array_size(all), 157);
    assert_int_equal(js, 157);
    assert_int_equal(python, 98); /* as many as jinja2 itself */
    json_decref(all);
}

/* ---------------------------------------------------------------- minijinja */

static const struct {
    const char *why, *files; /* separated by spaces */
} skipped[] = {
    {"include, import, extends, super, self",
     "block_scope_extends.txt block_scope_super.txt block_super.html block_super.txt "
     "block_super_super.txt do_macro_calling_macro.txt err_extends_actually_not.txt "
     "extends_set.txt import_all.txt include_ignore_choice.txt include_ignore_missing.txt "
     "macro_calling_macro.txt macro_extends.txt macro_import.txt macro_import2.txt "
     "macro_include.txt required_block.txt required_block_intermediate_required.txt self.txt"},
    {"autoescape", "autoescape.html escaping.html filter_block.html"},
    {"strict undefined, not jinja2's default",
     "err_strict_undefined_for.txt err_strict_undefined_for_filter.txt "
     "err_strict_undefined_if.txt err_strict_undefined_print.txt"},
    {"objects of its test program: functions, iterators, debug",
     "calls-and-literals.txt debug.txt loop.txt loop_break_one_shot_iter.txt "
     "loop_break_one_shot_iter_peek.txt"},
    {"filters and tests that jinja2 lacks", "filters.txt tests.txt"},
    {"another answer than jinja2: range and generators are lists, none is iterable and sorts with "
     "anything, 1.0 / 0 is inf, macros and undefined print otherwise, set on subscripts, 128 bits",
     "coerce.txt dict.txt float_div_by_zero.txt functions.txt groupby-filter.txt literals.txt "
     "loop_dictsort.txt loop_over_none.txt macro_basic.txt macro_caller_methods.txt "
     "macro_kwargs.txt mul.txt namespace.txt opfilters.txt err_block_in_macro.txt"},
};

static bool is_skipped(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < SL_COUNT(skipped); i++)
        for (const char *s = skipped[i].files; (s = strstr(s, name)) != NULL; s += n)
            if ((s == skipped[i].files || s[-1] == ' ') && (s[n] == ' ' || s[n] == '\0'))
                return true;
    return false;
}

static void drop_spaces(char *s)
{
    char *to = s;
    for (; *s != '\0'; s++)
        if (!isspace((unsigned char)*s))
            *to++ = *s;
    *to = '\0';
}

enum outcome { PASSED, FAILED, SKIPPED, NO_SNAPSHOT };

static enum outcome run_minijinja(const char *name)
{
    char path[400], *input, *snap;
    size_t n;
    struct sl_error err;
    snprintf(path, sizeof path, "%sminijinja/snapshots/test_templates__vm@%s.snap", DATA, name);
    if (sl_read_file(path, 1u << 20, &snap, &n, &err) != 0)
        return NO_SNAPSHOT;
    snprintf(path, sizeof path, "%sminijinja/%s", DATA, name);
    if (sl_read_file(path, 1u << 20, &input, &n, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
    char *source = strstr(input, "\n---\n"), *want = strstr(snap, "\n---\n");
    enum outcome result = NO_SNAPSHOT;
    json_t *vars = NULL;
    if (source != NULL && want != NULL) {
        *source = '\0';
        vars = json_loads(input, 0, NULL);
        source += 5;
        want += 5;
    }
    if (vars != NULL && is_skipped(name)) {
        result = SKIPPED;
    } else if (vars != NULL) {
        struct rendering r = render(source, strlen(source), vars, NULL);
        if (strncmp(want, "!!!", 3) == 0) {
            result = r.code != 0 ? PASSED : FAILED;
        } else {
            sl_buf_puts(&r.out, "");
            drop_spaces(want);
            drop_spaces(r.out.data);
            result = r.code == 0 && strcmp(r.out.data, want) == 0 ? PASSED : FAILED;
        }
        if (result == FAILED)
            print_error("%s\n  want: %s\n  have: %s\n", name, want,
                        r.code != 0 ? r.err.msg : r.out.data);
        sl_buf_deinit(&r.out);
    }
    json_decref(vars);
    sl_free(input);
    sl_free(snap);
    return result;
}

static void minijinja(void **state)
{
    (void)state;
    size_t count[4] = {0};
    DIR *dir = opendir(DATA "minijinja");
    if (dir == NULL) {
        print_message("skip: minijinja, %sminijinja is not there\n", DATA);
        return;
    }
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (strstr(e->d_name, ".txt") != NULL || strstr(e->d_name, ".html") != NULL)
            count[run_minijinja(e->d_name)]++;
    closedir(dir);
    print_message("minijinja: %zu passed, %zu failed, %zu skipped, %zu inputs without context or "
                  "expected text\n",
                  count[PASSED], count[FAILED], count[SKIPPED], count[NO_SNAPSHOT]);
    for (size_t i = 0; i < SL_COUNT(skipped); i++)
        print_message("skip: minijinja, %s: %s\n", skipped[i].why, skipped[i].files);
    assert_int_equal(count[FAILED], 0);
    assert_true(count[PASSED] >= 90);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_e2e),
        cmocka_unit_test(jinja_small),
        cmocka_unit_test(minijinja),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
