/* SPDX-License-Identifier: MIT */
#include "io/json.h"

#include "base/json_load.h"
#include "base/limits.h"
#include "base/sys.h"
#include "io/names.h"

#include <string.h>

/* The depth is checked beforehand because the parser recurses to its own, larger limit. Text in
 * quotes does not count; malformed text is left to the parser. */
static bool depth_ok(const char *s, size_t n)
{
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        if (quoted) {
            if (s[i] == '\\')
                i++;
            else if (s[i] == '"')
                quoted = false;
        } else if (s[i] == '"') {
            quoted = true;
        } else if (s[i] == '[' || s[i] == '{') {
            if (++depth > SL_MAX_JSON_DEPTH)
                return false;
        } else if (s[i] == ']' || s[i] == '}') {
            depth--;
        }
    }
    return true;
}

#define INFINITY_WORD   "Infinity"
#define INFINITY_NUMBER "1e308   "
_Static_assert(sizeof INFINITY_WORD == sizeof INFINITY_NUMBER, "no byte moves");

/* Where the word stands, from s[i] on, neither in quotes nor behind digits; n: nowhere. */
static size_t find_infinity(const char *s, size_t n, size_t i)
{
    const size_t n_word = strlen(INFINITY_WORD);
    for (bool quoted = false; i < n; i++) {
        if (quoted && s[i] == '\\')
            i++;
        else if (s[i] == '"')
            quoted = !quoted;
        else if (!quoted && n - i >= n_word && memcmp(s + i, INFINITY_WORD, n_word) == 0 &&
                 (i == 0 || strchr("0123456789.", s[i - 1]) == NULL))
            return i;
    }
    return n;
}

/* As sl_json_load. Python's module of JSON writes what no JSON has: a word for the infinite
 * number. */
static json_t *load(const char *data, size_t n, json_error_t *why, bool *no_memory)
{
    size_t at = find_infinity(data, n, 0);
    *no_memory = false;
    if (at == n)
        return sl_json_load(data, n, JSON_REJECT_DUPLICATES, why);
    char *copy = sl_malloc(n);
    *no_memory = copy == NULL;
    if (copy == NULL)
        return NULL;
    memcpy(copy, data, n);
    for (; at < n; at = find_infinity(data, n, at + strlen(INFINITY_WORD)))
        memcpy(copy + at, INFINITY_NUMBER, strlen(INFINITY_NUMBER));
    json_t *root = sl_json_load(copy, n, JSON_REJECT_DUPLICATES, why);
    sl_free(copy);
    return root;
}

int sl_json_object(const char *data, size_t n_bytes, size_t max_bytes, const char *what,
                   json_t **out, struct sl_error *err)
{
    SL_ASSERT(max_bytes <= INT32_MAX); /* or a depth could wrap */
    what = sl_names_path_tail(what);
    if (n_bytes > max_bytes)
        return sl_fail(err, SL_ELIMIT, "%s: %zu bytes of JSON, the limit is %zu", what, n_bytes,
                       max_bytes);
    if (!depth_ok(data, n_bytes))
        return sl_fail(err, SL_ELIMIT, "%s: JSON nested deeper than %d", what, SL_MAX_JSON_DEPTH);
    if (memchr(data, '\0', n_bytes) != NULL) /* jansson passes over one that follows a number */
        return sl_fail(err, SL_EFORMAT, "%s: a NUL byte in JSON", what);
    json_error_t je;
    bool no_memory;
    json_t *root = load(data, n_bytes, &je, &no_memory);
    if (root == NULL && (no_memory || sl_json_no_memory(&je)))
        return sl_fail(err, SL_ENOMEM, "%s: out of memory", what);
    if (root == NULL)
        return sl_names_scrub(err,
                              sl_fail(err, SL_EFORMAT, "%s: line %d: %s", what, je.line, je.text));
    if (!json_is_object(root)) {
        json_decref(root);
        return sl_fail(err, SL_EFORMAT, "%s: the JSON text is not an object", what);
    }
    SL_ASSERT(root->refcount == 1); /* the caller's decref frees it */
    *out = root;
    return 0;
}
