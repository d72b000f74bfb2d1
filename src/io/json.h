/* SPDX-License-Identifier: MIT
 * json.h - strict reading of a model's JSON files: one object, bounded in size and depth, no key
 * twice in one object, valid UTF-8, no \u0000. One thing is read that no JSON has: the number
 * Infinity, as Python writes it.
 */
#ifndef SL_IO_JSON_H
#define SL_IO_JSON_H

#include "base/err.h"

#include <jansson.h>

/* A parsed value takes up to 50 times its text, so files that are parsed whole are held to a size
 * that real ones stay below: config.json has some KB, an index of 100,000 tensors about 10 MB. */
#define SL_JSON_MAX_CONFIG (8u << 20)
#define SL_JSON_MAX_INDEX  (64u << 20)

/* What Python writes as Infinity counts as this number. */
#define SL_JSON_INFINITY 1e308

/* *out is a new reference to an object; what: the file's name for messages. */
SL_MUST_CHECK int sl_json_object(const char *data, size_t n_bytes, size_t max_bytes,
                                 const char *what, json_t **out, struct sl_error *err);

#endif
