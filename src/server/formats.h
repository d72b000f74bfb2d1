/* SPDX-License-Identifier: MIT
 * formats.h - how the answers of a chat template are read: the parsers of calls and of reasoning,
 * and which special tokens belong to their markers.
 *
 * Found once when the server starts, and per request for a template that the request brings.
 * Constant afterwards; any thread.
 */
#ifndef SL_SERVER_FORMATS_H
#define SL_SERVER_FORMATS_H

#include "base/err.h"
#include "sluice.h"
#include "text/output/output_parse.h"

struct sl_formats {
    const char *tools, *reasoning; /* names of output_formats.def; NULL: not parsed */
    bool reasoning_in_template;    /* the template has the marker that opens a block */
    bool arguments_as_text;        /* the template prints arguments of earlier calls as they are */
    int32_t *marker_ids;           /* special tokens that are part of a marker, ascending */
    int32_t n_marker_ids;
};

/* Are these names that sl_formats_init takes? */
SL_MUST_CHECK int sl_formats_check(const char *tools, const char *reasoning, struct sl_error *err);
/* tools, reasoning: a parser's name, "none", or NULL or "auto": what the template's text tells.
 * source: the template, NULL: the engine's own. */
SL_MUST_CHECK int sl_formats_init(struct sl_formats *f, struct sl_engine *eng, const char *tools,
                                  const char *reasoning, const char *source, struct sl_error *err);
void sl_formats_deinit(struct sl_formats *f);
/* The parser's start for a rendered prompt. */
enum sl_output_start sl_formats_start(const struct sl_formats *f, const char *prompt, size_t n);

#endif
