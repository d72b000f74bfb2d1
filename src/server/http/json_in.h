/* SPDX-License-Identifier: MIT
 * json_in.h - request bodies: bytes to a checked JSON tree, and refusals that name the field.
 *
 * Nesting is bounded before the decoder sees the text, and nothing is converted silently: a string
 * is not a number, 1 is not true, NaN and 1e400 do not parse. An integer beyond 64 bits is the real
 * number next to it, which a field of integers refuses by its range. The tree belongs to the caller
 * (json_decref). Used by one thread at a time.
 */
#ifndef SL_SERVER_JSON_IN_H
#define SL_SERVER_JSON_IN_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>

/* Why a request is refused, in the terms of OpenAI's error object. */
struct sl_refusal {
    struct sl_error err; /* code decides the HTTP status */
    const char *code;    /* machine-readable, static; NULL = null */
    char param[64];      /* the field at fault; "" = null */
};

#define sl_refuse(refusal, err_code, field, ...) \
    (sl_refusal_param((refusal), (field)), sl_fail(&(refusal)->err, (err_code), __VA_ARGS__))

void sl_refusal_param(struct sl_refusal *r, const char *field); /* NULL = none */

/* A JSON object of at most SL_MAX_JSON_DEPTH levels, or a refusal. */
SL_MUST_CHECK int sl_json_parse_object(const char *text, size_t n, json_t **out,
                                       struct sl_refusal *r);
/* Appends v as compact JSON. Its integers beyond 64 bits, which are reals in the tree, have the
 * digits that they have in body, the text of the request. false: memory, or b's limit. */
SL_MUST_CHECK bool sl_json_dump_exact(struct sl_buf *b, const json_t *v, const char *body,
                                      size_t n_body);
/* Deepest nesting of arrays and objects; stops counting at limit + 1. */
int sl_json_depth(const char *text, size_t n, int limit);

/* Each reads one value; name is what the refusal calls it. Integers may be written 3.0. */
SL_MUST_CHECK int sl_json_bool(const json_t *v, const char *name, bool *out, struct sl_refusal *r);
SL_MUST_CHECK int sl_json_int(const json_t *v, const char *name, int64_t min, int64_t max,
                              int64_t *out, struct sl_refusal *r);
SL_MUST_CHECK int sl_json_number(const json_t *v, const char *name, double min, double max,
                                 double *out, struct sl_refusal *r);
/* Without NUL inside, at most max_bytes; borrowed from the tree. */
SL_MUST_CHECK int sl_json_cstr(const json_t *v, const char *name, size_t max_bytes,
                               const char **out, struct sl_refusal *r);
const char *sl_json_type_name(const json_t *v);

#endif
