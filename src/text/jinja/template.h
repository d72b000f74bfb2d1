/* SPDX-License-Identifier: MIT
 * template.h - the Jinja dialect of chat templates: compile once, render with JSON variables.
 *
 * Same output, byte for byte, as Python's jinja2 with trim_blocks, lstrip_blocks and loop controls,
 * as transformers configures it (raise_exception, strftime_now, tojson, generation blocks
 * included). A template is hostile: fuel bounds its steps, SL_TEMPLATE_DEPTH its nesting,
 * SL_TEMPLATE_OUTPUT its output and max_memory its working memory; only maps, lists, strings and
 * the documented methods can be reached. Compiled templates are immutable and may be rendered by
 * several threads at once. Rendering needs about 1 MiB of stack at the worst.
 *
 * Known differences from jinja2: integers end at 64 bits (then an error), what jinja2 makes a
 * generator is computed at once, include, import and extends are refused, self and lipsum are
 * undefined. A variable that an inner scope reads before its own scope sets it has the value from
 * further out, where jinja2 has an undefined.
 */
#ifndef SL_TEXT_TEMPLATE_H
#define SL_TEXT_TEMPLATE_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>

struct sl_template;

SL_MUST_CHECK int sl_template_compile(const char *source, size_t n, struct sl_template **out,
                                      struct sl_error *err);
void sl_template_destroy(struct sl_template *t);
/* The text it was compiled from, NUL-terminated. */
const char *sl_template_source(const struct sl_template *t, size_t *n);

enum sl_template_dialect {
    SL_TEMPLATE_PYTHON,     /* jinja2 as transformers uses it */
    SL_TEMPLATE_JAVASCRIPT, /* prints true, null and ["a"], and "a" + 1 is "a1", as in browsers */
};

struct sl_template_limits { /* zero-initialise for the defaults */
    uint64_t fuel;          /* SL_TEMPLATE_FUEL, for long conversations up to 25 times as much */
    size_t max_output;      /* SL_TEMPLATE_OUTPUT */
    size_t max_memory;      /* 64 MiB: values made while rendering, not the output */
    enum sl_template_dialect dialect;
};

/* vars: a JSON object, its members are the global variables (order of keys is kept). now_unix_s is
 * what strftime_now sees. A template error (raise_exception, undefined attribute, fuel) is
 * SL_EINVAL with the template's line. Appends to out; after a failure out is as it was. */
SL_MUST_CHECK int sl_template_render(const struct sl_template *t, const json_t *vars,
                                     int64_t now_unix_s, const struct sl_template_limits *limits,
                                     struct sl_buf *out, struct sl_error *err);

#endif
