/* SPDX-License-Identifier: MIT */
#include "server/http/json_in.h"

#include "base/check.h"
#include "base/json_load.h"
#include "base/limits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sl_refusal_param(struct sl_refusal *r, const char *field)
{
    snprintf(r->param, sizeof r->param, "%s", field != NULL ? field : "");
}

/* What the tree of a text takes in memory, counted in numbers of about 40 bytes. An empty object is
 * two letters and as much as eight numbers: a body of the largest size could take gigabytes. */
#define CONTAINER_COST 8
#define STRING_COST    2

struct shape {
    int deepest;
    size_t cost;
};

static struct shape json_in_measure(const char *text, size_t n, int limit)
{
    int depth = 0, deepest = 0;
    size_t cost = 1;
    bool in_string = false;
    for (size_t i = 0; i < n && deepest <= limit; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
            cost += STRING_COST;
        } else if (c == '[' || c == '{') {
            depth++;
            deepest = depth > deepest ? depth : deepest;
            cost += CONTAINER_COST;
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        } else if (c == ',') {
            cost++;
        }
    }
    SL_ASSERT(depth >= 0 && depth <= deepest && deepest <= limit + 1);
    SL_ASSERT(cost <= n * CONTAINER_COST + 1);
    return (struct shape){deepest, cost};
}

int sl_json_depth(const char *text, size_t n, int limit)
{
    return json_in_measure(text, n, limit).deepest;
}

int sl_json_parse_object(const char *text, size_t n, json_t **out, struct sl_refusal *r)
{
    json_error_t error;
    *out = NULL;
    if (n == 0)
        return sl_refuse(r, SL_EFORMAT, NULL, "body is empty, it must be a JSON object");
    struct shape shape = json_in_measure(text, n, SL_MAX_JSON_DEPTH);
    if (shape.deepest > SL_MAX_JSON_DEPTH)
        return sl_refuse(r, SL_ELIMIT, NULL, "body: JSON nested deeper than %d levels",
                         SL_MAX_JSON_DEPTH);
    if (shape.cost > SL_MAX_JSON_COST)
        return sl_refuse(r, SL_ELIMIT, NULL,
                         "body has too many JSON values: the limit is %u, where a string counts %d "
                         "more and an array or object %d",
                         SL_MAX_JSON_COST, STRING_COST, CONTAINER_COST);
    if (memchr(text, '\0', n) != NULL) /* jansson passes over one that follows a number */
        return sl_refuse(r, SL_EFORMAT, NULL, "body is not valid JSON: NUL byte");
    json_t *root = sl_json_load_wide(text, n, JSON_ALLOW_NUL, &error);
    if (root == NULL) {
        if (sl_json_no_memory(&error))
            return sl_refuse(r, SL_ENOMEM, NULL, "out of memory");
        return sl_refuse(r, SL_EFORMAT, NULL, "body is not valid JSON: line %d, column %d: %s",
                         error.line, error.column, error.text);
    }
    if (!json_is_object(root)) {
        int rc = sl_refuse(r, SL_EFORMAT, NULL, "body must be a JSON object, not %s",
                           sl_json_type_name(root));
        json_decref(root);
        return rc;
    }
    SL_ASSERT(root->refcount == 1); /* the caller's decref frees it */
    *out = root;
    return 0;
}

/* The integer of body that became this number in the tree. NULL: there is none, or there are two.
 */
static const char *find_wide(const char *body, size_t n_body, double x, size_t *n)
{
    const char *found = NULL;
    size_t at = 0, begin;
    while (sl_json_next_wide(body, n_body, &at, &begin)) {
        size_t n_here = at - begin;
        if (strtod(body + begin, NULL) != x) /* a bracket ends it at the latest */
            continue;
        if (found != NULL && (n_here != *n || memcmp(found, body + begin, n_here) != 0))
            return NULL;
        found = body + begin;
        *n = n_here;
    }
    return found;
}

/* A dump calls back with a number as a whole, and with a string in pieces between its quotes. */
struct dump {
    struct sl_buf *b;
    const char *body;
    size_t n_body;
    bool in_string;
};

static int put_piece(const char *data, size_t n, void *arg)
{
    struct dump *d = arg;
    bool quote = n == 1 && data[0] == '"';
    const char *wide = NULL;
    size_t n_wide = 0;
    if (!d->in_string && n >= 4 && (data[0] == '-' || (data[0] >= '0' && data[0] <= '9'))) {
        char number[64];
        snprintf(number, sizeof number, "%.*s", (int)SL_MIN(n, sizeof number - 1), data);
        double x = strtod(number, NULL);
        wide = fabs(x) >= 0x1p63 ? find_wide(d->body, d->n_body, x, &n_wide) : NULL;
    }
    if (wide != NULL)
        sl_buf_put(d->b, wide, n_wide);
    else
        sl_buf_put(d->b, data, n);
    d->in_string ^= quote;
    return sl_buf_ok(d->b) ? 0 : -1;
}

bool sl_json_dump_exact(struct sl_buf *b, const json_t *v, const char *body, size_t n_body)
{
    struct dump d = {.b = b, .body = body, .n_body = n_body};
    return json_dump_callback(v, put_piece, &d, JSON_COMPACT | JSON_ENCODE_ANY) == 0 &&
           sl_buf_ok(b);
}

const char *sl_json_type_name(const json_t *v)
{
    SL_ASSERT(v != NULL);
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

int sl_json_bool(const json_t *v, const char *name, bool *out, struct sl_refusal *r)
{
    if (!json_is_boolean(v))
        return sl_refuse(r, SL_EINVAL, name, "%s must be true or false, not %s", name,
                         sl_json_type_name(v));
    *out = json_is_true(v);
    return 0;
}

int sl_json_int(const json_t *v, const char *name, int64_t min, int64_t max, int64_t *out,
                struct sl_refusal *r)
{
    int64_t x;
    SL_ASSERT(min <= max);
    if (json_is_integer(v)) {
        x = json_integer_value(v);
    } else {
        double d = json_is_real(v) ? json_real_value(v) : NAN;
        if (fabs(d) >= 0x1p63) /* beyond what an integer holds */
            return sl_refuse(r, SL_EINVAL, name, "%s must be between %lld and %lld, got %.17g",
                             name, (long long)min, (long long)max, d);
        if (!(d >= -0x1p53 && d <= 0x1p53) || d != floor(d))
            return sl_refuse(r, SL_EINVAL, name, "%s must be an integer, not %s", name,
                             sl_json_type_name(v));
        x = (int64_t)d;
    }
    if (x < min || x > max)
        return sl_refuse(r, SL_EINVAL, name, "%s must be between %lld and %lld, got %lld", name,
                         (long long)min, (long long)max, (long long)x);
    *out = x;
    return 0;
}

int sl_json_number(const json_t *v, const char *name, double min, double max, double *out,
                   struct sl_refusal *r)
{
    SL_ASSERT(min <= max);
    if (!json_is_number(v))
        return sl_refuse(r, SL_EINVAL, name, "%s must be a number, not %s", name,
                         sl_json_type_name(v));
    double x = json_number_value(v);
    if (!(x >= min && x <= max)) /* written so that NaN fails */
        return sl_refuse(r, SL_EINVAL, name, "%s must be between %g and %g, got %g", name, min, max,
                         x);
    *out = x;
    return 0;
}

int sl_json_cstr(const json_t *v, const char *name, size_t max_bytes, const char **out,
                 struct sl_refusal *r)
{
    if (!json_is_string(v))
        return sl_refuse(r, SL_EINVAL, name, "%s must be a string, not %s", name,
                         sl_json_type_name(v));
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    SL_ASSERT(s[n] == '\0');
    if (n > max_bytes)
        return sl_refuse(r, SL_ELIMIT, name, "%s is longer than %zu bytes", name, max_bytes);
    if (memchr(s, '\0', n) != NULL)
        return sl_refuse(r, SL_EINVAL, name, "%s must not contain a NUL character", name);
    *out = s;
    return 0;
}
