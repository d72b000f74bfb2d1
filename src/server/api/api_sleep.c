/* SPDX-License-Identifier: MIT
 * api_sleep.c - POST /sleep?level=1|2&mode=wait|abort, POST /wake_up, GET /is_sleeping as in vLLM,
 * with &model=NAME for one of several models
 * (--enable-sleep-mode), and POST /update_weights_from_disk as in SGLang (--allow-weight-updates).
 * Giving up and taking memory takes long, so a worker does it. Where keys have scopes, these need
 * admin.
 */
#include "base/check.h"
#include "server/api/task.h"
#include "server/http/keys.h"
#include "server/http/reply.h"
#include "server/http/route.h"

#include <string.h>

#define MAX_PATH 4096

bool sl_sleep_hides(const struct sl_server_config *cfg, const struct sl_route *route)
{
    if (route->handle == sl_api_update_weights)
        return !cfg->weight_updates;
    return !cfg->sleep_mode && (route->handle == sl_api_sleep || route->handle == sl_api_wake_up ||
                                route->handle == sl_api_is_sleeping);
}

int sl_sleep_scope(const struct sl_server_config *cfg, int key, struct sl_refusal *r)
{
    if (cfg->key_rules == NULL || cfg->key_rules[key].admin)
        return 0;
    r->code = "insufficient_scope";
    return sl_refuse(r, SL_EAUTH, NULL, "this API key lacks the scope admin");
}

static void finish_empty(struct sl_conn *c, struct sl_task *t)
{
    (void)t;
    sl_reply(c, 200, "text/plain; charset=utf-8", NULL, "", 0);
}

/* ---- sleeping: what the query says is which of the kinds the task is of */

static void prepare_sleep(struct sl_task *t);
static const struct sl_task_kind sleep_kinds[2][2] = {
    {{prepare_sleep, finish_empty}, {prepare_sleep, finish_empty}},
    {{prepare_sleep, finish_empty}, {prepare_sleep, finish_empty}}};

/* one: the model that was named, and with it its replicas; NULL: all. */
static bool is_meant(const struct sl_server *s, const struct sl_served *one, int32_t i)
{
    return one == NULL || one == &s->models[i] || s->replicas != NULL;
}

/* Is the task about model i? */
static bool concerns(const struct sl_task *t, int32_t i)
{
    return is_meant(t->server, t->served, i);
}

static void prepare_sleep(struct sl_task *t)
{
    const struct sl_server *s = t->server;
    ptrdiff_t idx = t->kind - &sleep_kinds[0][0];
    SL_ASSERT(idx >= 0 && idx < 4);
    t->rc = sl_sleep_scope(s->cfg, t->key, &t->refusal);
    if (t->rc == 0 && t->at_once)
        t->later = true;
    for (int32_t i = 0; t->rc == 0 && !t->later && i < s->n_models; i++) {
        if (concerns(t, i))
            t->rc = sl_engine_sleep(s->models[i].eng, 1 + (int)(idx / 2), idx % 2 == 1,
                                    s->cfg->shutdown_timeout_ms, &t->refusal.err);
    }
}

void sl_api_sleep(struct sl_conn *c)
{
    struct sl_served *served;
    struct sl_refusal r = {0};
    struct sl_str level = sl_query_value(c->parser->query, "level");
    struct sl_str mode = sl_query_value(c->parser->query, "mode");
    bool two = sl_str_equals(level, "2"), abort = sl_str_equals(mode, "abort");
    int rc = sl_query_model(c, &served, &r);
    if (rc != 0)
        ;
    else if (level.n > 0 && !two && !sl_str_equals(level, "1"))
        rc = sl_refuse(&r, SL_EINVAL, "level", "level must be 1 or 2");
    else if (mode.n > 0 && !abort && !sl_str_equals(mode, "wait"))
        rc = sl_refuse(&r, SL_EINVAL, "mode", "mode must be wait or abort");
    if (rc != 0)
        sl_reply_refusal(c, &r);
    else
        sl_task_start_for(c, &sleep_kinds[two][abort], served);
}

/* ---- waking */

static void prepare_wake(struct sl_task *t)
{
    t->rc = sl_sleep_scope(t->server->cfg, t->key, &t->refusal);
    if (t->rc == 0 && t->at_once)
        t->later = true;
    for (int32_t i = 0; t->rc == 0 && !t->later && i < t->server->n_models; i++) {
        if (concerns(t, i))
            t->rc = sl_engine_wake(t->server->models[i].eng, &t->refusal.err);
    }
}

/* vLLM's tags name parts of what is to wake: here all of it does. */
void sl_api_wake_up(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_wake, finish_empty};
    struct sl_served *served;
    struct sl_refusal r = {0};
    if (sl_query_model(c, &served, &r) != 0)
        sl_reply_refusal(c, &r);
    else
        sl_task_start_for(c, &kind, served);
}

/* One of them, or with NULL all. */
static bool is_asleep(const struct sl_server *s, const struct sl_served *one)
{
    for (int32_t i = 0; i < s->n_models; i++) {
        if (is_meant(s, one, i) && sl_engine_sleep_level(s->models[i].eng) == 0)
            return false;
    }
    return true;
}

void sl_api_is_sleeping(struct sl_conn *c)
{
    struct sl_served *served;
    struct sl_refusal r = {0};
    if (sl_query_model(c, &served, &r) != 0) {
        sl_reply_refusal(c, &r);
        return;
    }
    bool asleep = is_asleep(c->loop->server, served);
    const char *body = asleep ? "{\"is_sleeping\":true}" : "{\"is_sleeping\":false}";
    sl_reply(c, 200, "application/json", NULL, body, strlen(body));
}

/* Whether requests should come here now. */
void sl_api_ready(struct sl_conn *c)
{
    static const char body[] = "asleep\n";
    if (!is_asleep(c->loop->server, NULL))
        sl_api_health(c);
    else
        sl_reply(c, 503, "text/plain; charset=utf-8", "Retry-After: 1\r\n", body, sizeof body - 1);
}

/* ---- other weights */

static int update(struct sl_task *t)
{
    const struct sl_server *s = t->server;
    const char *path = NULL;
    bool abort = false;
    int rc = sl_sleep_scope(s->cfg, t->key, &t->refusal);
    if (rc == 0)
        rc = sl_task_parse(t);
    const json_t *v = rc == 0 ? json_object_get(t->root, "model_path") : NULL;
    if (v != NULL && !json_is_null(v))
        rc = sl_json_cstr(v, "model_path", MAX_PATH, &path, &t->refusal);
    v = rc == 0 ? json_object_get(t->root, "abort_all_requests") : NULL;
    if (v != NULL)
        rc = sl_json_bool(v, "abort_all_requests", &abort, &t->refusal);
    if (rc == 0 && path != NULL && path[0] == '\0')
        rc = sl_refuse(&t->refusal, SL_EINVAL, "model_path", "model_path must not be empty");
    if (rc != 0)
        return rc;
    if (t->at_once) {
        t->later = true;
        return 0;
    }
    return sl_engine_reload(t->served->eng, path, abort, s->cfg->shutdown_timeout_ms,
                            &t->refusal.err);
}

static void prepare_update(struct sl_task *t)
{
    t->rc = update(t);
}

static void finish_update(struct sl_conn *c, struct sl_task *t)
{
    static const char body[] =
        "{\"success\":true,\"message\":\"Succeeded to update model weights.\"}";
    (void)t;
    sl_reply(c, 200, "application/json", NULL, body, sizeof body - 1);
}

void sl_api_update_weights(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_update, finish_update};
    sl_task_start(c, &kind);
}
