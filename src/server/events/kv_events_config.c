/* SPDX-License-Identifier: MIT
 * kv_events_config.c - the JSON of --kv-events-config.
 */
#include "base/check.h"
#include "base/str.h"
#include "server/events/kv_publisher.h"
#include "server/http/json_in.h"

#include <stdio.h>
#include <string.h>

#define MAX_STEPS 1000000

static int kv_events_config_read_text(const json_t *v, const char *name, char *out, size_t n_out,
                                      struct sl_refusal *r)
{
    const char *text = NULL;
    int rc = sl_json_cstr(v, name, n_out - 1, &text, r);
    if (rc == 0)
        memcpy(out, text, strlen(text) + 1);
    return rc;
}

static int kv_events_config_read_endpoint(const json_t *v, const char *name, char *out,
                                          struct sl_refusal *r)
{
    int rc = kv_events_config_read_text(v, name, out, SL_KV_MAX_ENDPOINT, r);
    if (rc == 0 && out[0] != '\0' && !sl_starts_with(out, "tcp://") &&
        !sl_starts_with(out, "ipc://"))
        rc = sl_refuse(r, SL_EINVAL, NULL, "%s: %s is neither tcp:// nor ipc://", name, out);
    return rc;
}

/* One of two words. */
static int read_word(const json_t *v, const char *name, const char *no, const char *yes, bool *out,
                     struct sl_refusal *r)
{
    char word[32] = "";
    int rc = kv_events_config_read_text(v, name, word, sizeof word, r);
    *out = strcmp(word, yes) == 0;
    if (rc == 0 && !*out && strcmp(word, no) != 0)
        rc = sl_refuse(r, SL_EINVAL, NULL, "%s: '%s' is neither %s nor %s", name, word, no, yes);
    return rc;
}

static int read_member(struct sl_kv_events_config *c, const char *name, const json_t *v,
                       bool *named, struct sl_refusal *r)
{
    int64_t unused;
    if (strcmp(name, "enable_kv_cache_events") == 0)
        return sl_json_bool(v, name, &c->enabled, r);
    if (strcmp(name, "publisher") == 0) {
        bool zmq = false;
        *named = true;
        int rc = json_is_null(v) ? (*named = false, 0) : read_word(v, name, "null", "zmq", &zmq, r);
        c->enabled &= zmq || !*named;
        return rc;
    }
    if (strcmp(name, "endpoint") == 0)
        return kv_events_config_read_endpoint(v, name, c->endpoint, r);
    if (strcmp(name, "replay_endpoint") == 0)
        return json_is_null(v) ? 0 : kv_events_config_read_endpoint(v, name, c->replay_endpoint, r);
    if (strcmp(name, "topic") == 0)
        return kv_events_config_read_text(v, name, c->topic, sizeof c->topic, r);
    if (strcmp(name, "buffer_steps") == 0)
        return sl_json_int(v, name, 1, MAX_STEPS, &c->buffer_steps, r);
    if (strcmp(name, "hwm") == 0)
        return sl_json_int(v, name, 0, INT32_MAX, &c->hwm, r);
    if (strcmp(name, "max_queue_size") == 0) /* there is no queue: see kv/feed.h */
        return sl_json_int(v, name, 0, INT32_MAX, &unused, r);
    if (strcmp(name, "format") == 0)
        return read_word(v, name, "map", "array", &c->arrays, r);
    if (strcmp(name, "tiers") == 0)
        return sl_json_bool(v, name, &c->tiers, r);
    if (strcmp(name, "renumber") == 0)
        return sl_json_bool(v, name, &c->renumber, r);
    return sl_refuse(r, SL_EINVAL, NULL, "unknown member '%.40s'", name);
}

int sl_kv_events_config_read(const char *text, struct sl_kv_events_config *c, struct sl_error *err)
{
    struct sl_refusal r = {0};
    json_t *root = NULL, *v;
    const char *name;
    bool named = false;
    *c = (struct sl_kv_events_config){
        .endpoint = "tcp://*:5557", .buffer_steps = 10000, .hwm = 100000, .renumber = true};
    int rc = sl_json_parse_object(text, strlen(text), &root, &r);
    if (rc == 0 && json_object_get(root, "enable_kv_cache_events") != NULL)
        rc = read_member(c, "enable_kv_cache_events",
                         json_object_get(root, "enable_kv_cache_events"), &named, &r);
    if (rc == 0) {
        json_object_foreach(root, name, v)
        {
            if (rc == 0 && strcmp(name, "enable_kv_cache_events") != 0)
                rc = read_member(c, name, v, &named, &r);
        }
    }
    if (rc == 0 && json_object_get(root, "tiers") == NULL)
        c->tiers = !c->arrays; /* readers of arrays want tokens with every page */
    json_decref(root);
    if (rc != 0)
        rc = sl_fail(err, rc, "--kv-events-config: %s", r.err.msg);
    return rc;
}

static int move_port(char *endpoint, size_t n_endpoint, int32_t by, struct sl_error *err)
{
    char *colon = strrchr(endpoint, ':');
    uint64_t port = 0;
    if (endpoint[0] == '\0' || by == 0)
        return 0;
    if (strncmp(endpoint, "tcp://", 6) != 0 || colon == NULL ||
        !sl_parse_u64(colon + 1, strlen(colon + 1), &port) || port + (uint64_t)by > 65535)
        return sl_fail(err, SL_EINVAL,
                       "--kv-events-config: with several models each has a TCP port of its own, "
                       "counted from the first one's; '%.80s' has none",
                       endpoint);
    if (port != 0) /* any free one is any for each */
        snprintf(colon + 1, n_endpoint - (size_t)(colon + 1 - endpoint), "%d", (int)port + by);
    return 0;
}

int sl_kv_events_config_of(const struct sl_kv_events_config *cfg, int32_t idx,
                           struct sl_kv_events_config *out, struct sl_error *err)
{
    *out = *cfg;
    int rc = move_port(out->endpoint, sizeof out->endpoint, idx, err);
    return rc != 0 ? rc : move_port(out->replay_endpoint, sizeof out->replay_endpoint, idx, err);
}
