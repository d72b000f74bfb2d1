/* SPDX-License-Identifier: MIT
 * template.h - the Jinja dialect of chat templates: compile once, render with JSON variables.
 *
 * Same output, byte for byte, as Python's jinja2 with trim_blocks, lstrip_blocks and loop controls,
 * as transformers configures it (raise_exception, strftime_now, tojson, generation blocks
 * included). A template is hostile: fuel bounds its steps, SL_TEMPLATE_DEPTH its nesting,
 * SL_TEMPLATE_OUTPUT its output; only maps, lists, strings and the documented methods can be
 * reached. Compiled templates are immutable and may be rendered by several threads at once.
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

struct sl_template_limits { /* zero-initialise for the defaults of limits.h */
    uint64_t fuel;
    size_t max_output;
};

/* vars: a JSON object, its members are the global variables (order of keys is kept). now_unix_s is
 * what strftime_now sees. A template error (raise_exception, undefined attribute, fuel) is
 * SL_EINVAL with the template's line. Appends to out. */
SL_MUST_CHECK int sl_template_render(const struct sl_template *t, const json_t *vars,
                                     int64_t now_unix_s, const struct sl_template_limits *limits,
                                     struct sl_buf *out, struct sl_error *err);

#endif
