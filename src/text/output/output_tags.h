/* SPDX-License-Identifier: MIT
 * output_tags.h - what calls look like in a format, as a structural tag that a grammar is made of:
 * from the same rows of output_formats.def that the parser reads, so that what it allows, the
 * parser takes for calls.
 *
 * Where a format leaves a choice (white space, one call or a list), so does the tag, and the model
 * writes as it was trained to. Formats and schemas for which there is no tag are refused by name.
 */
#ifndef SL_TEXT_OUTPUT_TAGS_H
#define SL_TEXT_OUTPUT_TAGS_H

#include "text/output/output_parse.h"

/* The format of calls for models that have none: [{"name": ..., "arguments": {...}}, ...] */
#define SL_OUTPUT_JSON_CALLS "json"
/* The one argument of a tool that takes text. */
#define SL_OUTPUT_TEXT_ARGUMENT "input"

struct sl_output_calls {
    const char *tools_format;
    const json_t *tools;          /* the request's list, checked: every one has a name */
    const json_t *grammars;       /* {name: {"syntax", "definition"}}: of tools that take text;
                                     {}: any text. NULL: there are none */
    const char *name;             /* only this one may be called; NULL: any */
    const json_t *special_tokens; /* {text: id} of those that spell parts of marks */
    const json_t *answer;         /* a schema for the answer if nothing is called; NULL: any text */
    bool must;                    /* the output is calls; else it may have them */
    bool one;                     /* at most one call */
};

/* *out: {"type": "structural_tag", "format": ...} as grammar/tags.h has it. Arguments are as the
 * tool's schema says, without `must` only of tools that say strict. Text is as its grammar says,
 * whichever way the format spells it. */
SL_MUST_CHECK int sl_output_tags(const struct sl_output_calls *calls, json_t **out,
                                 struct sl_error *err);

#endif
