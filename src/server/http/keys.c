/* SPDX-License-Identifier: MIT */
#include "server/http/keys.h"

#include "base/check.h"
#include "base/sys.h"
#include "server/http/json_in.h"

#include <string.h>

#define MAX_FILE_BYTES (1u << 20)
#define MAX_KEY_BYTES  1024
#define MAX_NAME_BYTES 128
#define MINUTE_NS      UINT64_C(60000000000)

struct sl_keys {
    json_t *root; /* keys and names lie in it */
    int n;
    const char **texts;
    struct sl_key_rule *rules;
};

static int read_scopes(struct sl_key_rule *rule, const json_t *v, struct sl_refusal *r)
{
    if (v == NULL) {
        rule->generate = true;
        return 0;
    }
    if (!json_is_array(v))
        return sl_refuse(r, SL_EINVAL, NULL, "scopes must be an array");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *scope = NULL;
        int rc = sl_json_cstr(json_array_get(v, i), "scopes", MAX_NAME_BYTES, &scope, r);
        if (rc != 0)
            return rc;
        if (strcmp(scope, "generate") == 0)
            rule->generate = true;
        else if (strcmp(scope, "admin") == 0)
            rule->admin = true;
        else
            return sl_refuse(r, SL_EINVAL, NULL, "scope '%s' is neither generate nor admin", scope);
    }
    return 0;
}

static int keys_read_limit(int32_t *out, const json_t *v, const char *name, struct sl_refusal *r)
{
    int64_t x = 0;
    if (v == NULL)
        return 0;
    int rc = sl_json_int(v, name, 1, 1000000, &x, r);
    *out = (int32_t)x;
    return rc;
}

/* A misspelt limit would be no limit. */
static int check_members(json_t *v, struct sl_refusal *r)
{
    static const char *const known[] = {"key", "name", "scopes", "max_running",
                                        "requests_per_minute"};
    const char *name;
    json_t *member;
    json_object_foreach(v, name, member)
    {
        bool found = false;
        for (size_t i = 0; i < SL_COUNT(known); i++)
            found |= strcmp(name, known[i]) == 0;
        if (!found)
            return sl_refuse(r, SL_EINVAL, NULL, "unknown member '%.40s'", name);
    }
    return 0;
}

static int read_key(struct sl_keys *keys, json_t *v, struct sl_refusal *r)
{
    struct sl_key_rule *rule = &keys->rules[keys->n];
    const char *text = NULL;
    if (!json_is_object(v) || json_object_get(v, "key") == NULL ||
        json_object_get(v, "name") == NULL)
        return sl_refuse(r, SL_EINVAL, NULL, "each must be an object with key and name");
    int rc = check_members(v, r);
    if (rc == 0)
        rc = sl_json_cstr(json_object_get(v, "key"), "key", MAX_KEY_BYTES, &text, r);
    if (rc == 0)
        rc = sl_json_cstr(json_object_get(v, "name"), "name", MAX_NAME_BYTES, &rule->name, r);
    if (rc == 0)
        rc = read_scopes(rule, json_object_get(v, "scopes"), r);
    if (rc == 0)
        rc = keys_read_limit(&rule->max_running, json_object_get(v, "max_running"), "max_running",
                             r);
    if (rc == 0)
        rc = keys_read_limit(&rule->per_minute, json_object_get(v, "requests_per_minute"),
                             "requests_per_minute", r);
    if (rc == 0 && text[0] == '\0')
        rc = sl_refuse(r, SL_EINVAL, NULL, "key is empty");
    for (int i = 0; rc == 0 && i < keys->n; i++) {
        if (strcmp(keys->texts[i], text) == 0)
            rc = sl_refuse(r, SL_EINVAL, NULL, "its key is already used by '%.40s'",
                           keys->rules[i].name);
    }
    keys->texts[keys->n++] = text;
    return rc;
}

static int read_keys(struct sl_keys *keys, struct sl_refusal *r)
{
    const json_t *list = json_object_get(keys->root, "keys");
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n == 0 || n > SL_MAX_KEYS)
        return sl_refuse(r, SL_EINVAL, NULL, "keys must be an array of 1 to %d objects",
                         SL_MAX_KEYS);
    keys->texts = sl_calloc(n, sizeof *keys->texts);
    keys->rules = sl_calloc(n, sizeof *keys->rules);
    if (keys->texts == NULL || keys->rules == NULL)
        return sl_refuse(r, SL_ENOMEM, NULL, "out of memory");
    for (size_t i = 0; i < n; i++) {
        int rc = read_key(keys, json_array_get(list, i), r);
        if (rc != 0)
            return sl_error_prefix(&r->err, rc, "keys[%zu]", i);
    }
    return 0;
}

int sl_keys_open(const char *path, struct sl_keys **out, struct sl_error *err)
{
    struct sl_refusal r = {0};
    char *text = NULL;
    size_t n_text = 0;
    *out = NULL;
    int rc = sl_read_file(path, MAX_FILE_BYTES, &text, &n_text, err);
    if (rc != 0)
        return sl_error_prefix(err, rc, "--api-key-file");
    struct sl_keys *keys = sl_calloc(1, sizeof *keys);
    if (keys == NULL)
        rc = sl_refuse(&r, SL_ENOMEM, NULL, "out of memory");
    if (rc == 0)
        rc = sl_json_parse_object(text, n_text, &keys->root, &r);
    if (rc == 0)
        rc = read_keys(keys, &r);
    sl_free(text);
    if (rc == 0) {
        *out = keys;
        return 0;
    }
    sl_keys_close(keys);
    if (err != NULL)
        *err = r.err;
    return sl_error_prefix(err, rc, "--api-key-file: %s", path);
}

void sl_keys_close(struct sl_keys *keys)
{
    if (keys == NULL)
        return;
    json_decref(keys->root);
    sl_free(keys->texts);
    sl_free(keys->rules);
    sl_free(keys);
}

int sl_keys_n(const struct sl_keys *keys)
{
    return keys->n;
}

const char *const *sl_keys_texts(const struct sl_keys *keys)
{
    return keys->texts;
}

struct sl_key_rule *sl_keys_rules(struct sl_keys *keys)
{
    return keys->rules;
}

/* full_ns moves on by a request's share of a minute with each request, and may lie a minute ahead
 * at most. */
bool sl_key_take(struct sl_key_rule *rule, uint64_t now_ns)
{
    if (rule->per_minute == 0)
        return true;
    uint64_t share = MINUTE_NS / (uint64_t)rule->per_minute, was = atomic_load(&rule->full_ns),
             will;
    do {
        will = SL_MAX(was, now_ns) + share;
        if (will > now_ns + MINUTE_NS)
            return false;
    } while (!atomic_compare_exchange_weak(&rule->full_ns, &was, will));
    return true;
}

bool sl_key_enter(struct sl_key_rule *rule)
{
    int n = atomic_fetch_add(&rule->n_running, 1);
    if (rule->max_running == 0 || n < rule->max_running)
        return true;
    atomic_fetch_sub(&rule->n_running, 1);
    return false;
}

void sl_key_leave(struct sl_key_rule *rule)
{
    int n = atomic_fetch_sub(&rule->n_running, 1);
    SL_ASSERT(n > 0);
}
