/* SPDX-License-Identifier: MIT
 *
 * template_batch: renders chat templates given as JSON, one object a line on stdin, and writes one
 * object a line: {"template", "vars", "now", "dialect": "js"} -> {"out"} or {"error", "code"}.
 * tests/text/template_oracle.py compares these with Python's jinja2. With --bench N each template
 * is rendered N times and "ns" says how long one rendering took.
 */
#include "base/str.h"
#include "base/sys.h"
#include "text/jinja/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *run(const json_t *job, uint64_t n_runs)
{
    struct sl_template *t = NULL;
    struct sl_buf out = {0};
    struct sl_error err = {0};
    const json_t *source = json_object_get(job, "template"), *vars = json_object_get(job, "vars");
    const char *dialect = json_string_value(json_object_get(job, "dialect"));
    struct sl_template_limits limits = {0};
    if (dialect != NULL && strcmp(dialect, "js") == 0)
        limits.dialect = SL_TEMPLATE_JAVASCRIPT;
    int code = sl_template_compile(json_string_value(source), json_string_length(source), &t, &err);
    uint64_t start = sl_now_ns();
    for (uint64_t i = 0; code == 0 && i < n_runs; i++) {
        sl_buf_clear(&out);
        code = sl_template_render(t, vars, json_integer_value(json_object_get(job, "now")), &limits,
                                  &out, &err);
    }
    uint64_t ns = (sl_now_ns() - start) / n_runs;
    json_t *answer = json_object();
    if (code == 0)
        json_object_set_new(answer, "out",
                            json_stringn(out.data != NULL ? out.data : "", out.n_bytes));
    else
        json_object_set_new(answer, "error", json_string(err.msg));
    json_object_set_new(answer, "code", json_integer(code));
    if (n_runs > 1)
        json_object_set_new(answer, "ns", json_integer((json_int_t)ns));
    sl_buf_deinit(&out);
    sl_template_destroy(t);
    return answer;
}

int main(int argc, char **argv)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    uint64_t n_runs = 1;
    if (argc == 3 && strcmp(argv[1], "--bench") == 0 &&
        !sl_parse_u64(argv[2], strlen(argv[2]), &n_runs))
        return 2;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        json_t *job = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        if (!json_is_object(job))
            return 1;
        json_t *answer = run(job, n_runs > 0 ? n_runs : 1);
        json_dumpf(answer, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(answer);
        json_decref(job);
    }
    free(line);
    return 0;
}
