/* SPDX-License-Identifier: MIT
 * tags_impl.h - the two notations of structural tags: tags.c has structures and triggers, and hands
 * a document with a format to tags_format.c.
 */
#ifndef SL_GRAMMAR_TAGS_IMPL_H
#define SL_GRAMMAR_TAGS_IMPL_H

#include "grammar/tags.h"

SL_MUST_CHECK int sl_tags_format(struct sl_auto *a, const json_t *doc, uint32_t *start,
                                 struct sl_error *err);

#endif
