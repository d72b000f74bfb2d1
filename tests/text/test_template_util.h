/* SPDX-License-Identifier: MIT
 * test_template_util.h - rendering in one call and loading JSON, for the tests of templates.
 */
#ifndef SL_TEST_TEMPLATE_UTIL_H
#define SL_TEST_TEMPLATE_UTIL_H

#include "base/sys.h"
#include "text/jinja/template.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <setjmp.h>

#include <cmocka.h>

#define NOW 1752148800 /* 2025-07-10 12:00:00 UTC */

struct rendering {
    int code; /* of compiling or rendering */
    struct sl_buf out;
    struct sl_error err;
};

static inline struct rendering render(const char *source, size_t n, const json_t *vars,
                                      const struct sl_template_limits *limits)
{
    struct rendering r = {0};
    struct sl_template *t = NULL;
    r.code = sl_template_compile(source, n, &t, &r.err);
    if (r.code == 0)
        r.code = sl_template_render(t, vars, NOW, limits, &r.out, &r.err);
    sl_template_destroy(t);
    return r;
}

/* NULL when the file is not there; the tests then skip what needs it. */
static inline json_t *load_json(const char *path)
{
    char *text = NULL;
    size_t n;
    struct sl_error err;
    if (sl_read_file(path, 64u << 20, &text, &n, &err) != 0)
        return NULL;
    for (char *s = text; (s = strstr(s, "u0000")) != NULL;) /* jansson has no NUL in keys */
        s[4] = '1';
    json_error_t jerr;
    json_t *j = json_loadb(text, n, JSON_ALLOW_NUL, &jerr);
    if (j == NULL)
        fail_msg("%s:%d: %s", path, jerr.line, jerr.text);
    sl_free(text);
    return j;
}

static inline bool same_text(const struct rendering *r, const char *text, size_t n)
{
    return r->code == 0 && r->out.n_bytes == n && (n == 0 || memcmp(r->out.data, text, n) == 0);
}

static inline double cpu_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec * 1e-6;
}

#endif
