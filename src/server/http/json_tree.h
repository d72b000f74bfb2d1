/* SPDX-License-Identifier: MIT
 * json_tree.h - small operations on JSON trees that several protocols need.
 */
#ifndef SL_SERVER_JSON_TREE_H
#define SL_SERVER_JSON_TREE_H

#include "base/buf.h"

#include <jansson.h>

/* Appends v as compact JSON; b is failed when memory runs out. */
void sl_json_put(struct sl_buf *b, const json_t *v);
/* A string that holds v written as Python's json.dumps writes it, as models saw it in training;
 * NULL when memory runs out. */
json_t *sl_json_as_text(const json_t *v);

/* The texts of two contents (strings, or arrays of text parts), an empty line between them; NULL
 * when memory runs out. */
json_t *sl_json_join_texts(const json_t *a, const json_t *b);

#endif
