/* SPDX-License-Identifier: MIT
 * tags.h - structural tags: free text in which some strings begin a part with a form of its own.
 */
#ifndef SL_GRAMMAR_TAGS_H
#define SL_GRAMMAR_TAGS_H

#include "grammar/auto.h"

/* doc: {"type": "structural_tag", "structures": [{"begin": s, "schema": {...}, "end": s}],
 * "triggers": [s]}. Text may not contain a trigger, except as the start of a begin. */
SL_MUST_CHECK int sl_tags_compile(struct sl_auto *a, json_t *doc, uint32_t *start,
                                  struct sl_error *err);

#endif
