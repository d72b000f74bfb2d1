/* SPDX-License-Identifier: MIT
 * tags.h - structural tags: free text in which some strings begin a part with a form of its own.
 */
#ifndef SL_GRAMMAR_TAGS_H
#define SL_GRAMMAR_TAGS_H

#include "grammar/auto.h"

/* doc: {"type": "structural_tag", "structures": [{"begin": s, "schema": {...}, "end": s}],
 * "triggers": [s]}. Text may not contain a trigger, except as the start of a begin.
 *
 * Or {"type": "structural_tag", "format": F}, where F is an object with a type, as xgrammar has
 * them: const_string {value}, regex {pattern}, any_text {excludes, min_length, max_length, pattern,
 * not_prefix, special_tokens}, json_schema {json_schema, label}, sequence and or {elements},
 * optional, star and plus {content, separator, max}, tag {begin, content, end}, triggered_tags
 * {triggers, tags, at_least_one, stop_after_first}, tags_with_separator {tags, separator, ...}, ref
 * {name}, grammar {grammar, syntax, spelling, excludes, pattern, label}: syntax is gbnf, lark or
 * regex, without it gbnf or lark by the text; spelling "json": the content of a JSON string;
 * excludes and pattern as of any_text. Besides: "rules": {name: F} for ref, "special_tokens":
 * {text: id} that texts of F may spell. special_tokens of any_text and triggered_tags: true if the
 * text may have any special token but those that end it. */
SL_MUST_CHECK int sl_tags_compile(struct sl_auto *a, json_t *doc, uint32_t *start,
                                  struct sl_error *err);

#endif
