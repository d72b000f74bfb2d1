/* SPDX-License-Identifier: MIT */
#include "io/json.h"

#include "base/json_load.h"
#include "base/limits.h"
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
    json_t *root = sl_json_load(data, n_bytes, JSON_REJECT_DUPLICATES, &je);
    if (root == NULL && sl_json_no_memory(&je))
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
