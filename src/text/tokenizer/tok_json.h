/* SPDX-License-Identifier: MIT
 * tok_json.h - the two halves of the tokenizer.json reader: the file and its pipeline steps.
 */
#ifndef SL_TEXT_TOK_JSON_H
#define SL_TEXT_TOK_JSON_H

#include "text/tokenizer/tok.h"

#include <jansson.h>

SL_MUST_CHECK int tok_json_load(const char *what, const char *text, size_t n, json_t **out,
                                struct sl_error *err);
/* normalizer, pre_tokenizer, post_processor and decoder of the file; the vocabulary is loaded. */
SL_MUST_CHECK int tok_json_steps(struct sl_tokenizer *t, const json_t *root, struct sl_error *err);

/* Mistral's tekken.json, which the same reader is given. */
SL_MUST_CHECK int tok_tekken_load(struct sl_tokenizer *t, const char *json, size_t n,
                                  struct sl_error *err);

/* Members with a default for absent or null; another type is an error that names the member. */
SL_MUST_CHECK int tok_json_bool(const json_t *o, const char *key, bool fallback, bool *out,
                                struct sl_error *err);
SL_MUST_CHECK int tok_json_string(const json_t *o, const char *key, const char *fallback,
                                  char **out, size_t *n_out, struct sl_error *err);

#endif
