/* SPDX-License-Identifier: MIT
 * api_models.c - GET /v1/models, /v1/models/{id}, /health, /ping, /version, /load.
 */
#include "base/check.h"
#include "base/str.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "server/http/sse.h"

#include <stdio.h>
#include <time.h>

/* m: what else it answers to; NULL: nothing. */
static void put_aliases(struct sl_buf *b, const struct sl_served *m, const char *name)
{
    const char *path = m != NULL && m->path != NULL ? sl_engine_info(m->eng)->model_path : NULL;
    const char *slash = m != NULL ? strrchr(name, '/') : NULL;
    bool base = slash != NULL && slash[1] != '\0';
    SL_PUT(b, ",\"aliases\":[");
    if (base)
        sl_buf_json_string(b, slash + 1, strlen(slash + 1));
    if (path != NULL && strcmp(path, name) != 0) {
        sl_buf_puts(b, base ? "," : "");
        sl_buf_json_string(b, path, strlen(path));
    }
    sl_buf_putc(b, ']');
}

static void put_card(struct sl_buf *b, const char *name, int64_t created_s, const char *root,
                     const char *parent, int32_t max_model_len, const struct sl_served *m)
{
    SL_PUT(b, "{\"id\":");
    sl_buf_json_string(b, name, strlen(name));
    SL_PUT(b, ",\"object\":\"model\",\"created\":");
    sl_put_i64(b, created_s);
    SL_PUT(b, ",\"owned_by\":\"sluice\",\"root\":");
    sl_buf_json_string(b, root, strlen(root));
    SL_PUT(b, ",\"parent\":");
    if (parent != NULL)
        sl_buf_json_string(b, parent, strlen(parent));
    else
        SL_PUT(b, "null");
    SL_PUT(b, ",\"max_model_len\":");
    sl_put_i64(b, max_model_len);
    put_aliases(b, m, name);
    SL_PUT(b, ",\"permission\":[]}");
}

/* As clients of Anthropic's API want it, who say so by a header of theirs. */
static void put_card_anthropic(struct sl_buf *b, const char *name, int64_t created_s,
                               int32_t max_model_len)
{
    char date[32];
    time_t t = (time_t)created_s;
    struct tm tm;
    if (gmtime_r(&t, &tm) == NULL || strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        snprintf(date, sizeof date, "1970-01-01T00:00:00Z");
    SL_PUT(b, "{\"type\":\"model\",\"id\":");
    sl_buf_json_string(b, name, strlen(name));
    SL_PUT(b, ",\"display_name\":");
    sl_buf_json_string(b, name, strlen(name));
    SL_PUT(b, ",\"created_at\":\"");
    sl_buf_puts(b, date);
    SL_PUT(b, "\",\"lifecycle\":\"active\",\"max_input_tokens\":");
    sl_put_i64(b, max_model_len);
    sl_buf_putc(b, '}');
}

static void put_model(struct sl_buf *b, const struct sl_server *s, const struct sl_served *m,
                      bool anthropic, const char *name)
{
    const struct sl_model_info *info = sl_engine_info(m->eng);
    if (anthropic)
        put_card_anthropic(b, name, s->t_created_s, info->max_model_len);
    else
        put_card(b, name, s->t_created_s, info->model_path, NULL, info->max_model_len, m);
}

struct adapter_list {
    const struct sl_served *m;
    struct sl_buf *b;
    bool anthropic;
    const char *only; /* NULL: all of them */
    char last[512];   /* the last one's name; "": none was put */
};

static void models_put_adapter(void *arg, const struct sl_adapter_info *a)
{
    struct adapter_list *l = arg;
    const int32_t max_model_len = sl_engine_info(l->m->eng)->max_model_len;
    if (l->only != NULL && strcmp(l->only, a->name) != 0)
        return;
    if (l->only == NULL)
        sl_buf_putc(l->b, ',');
    if (l->anthropic)
        put_card_anthropic(l->b, a->name, a->t_loaded_s, max_model_len);
    else
        put_card(l->b, a->name, a->t_loaded_s, a->path, l->m->name, max_model_len, NULL);
    snprintf(l->last, sizeof l->last, "%s", a->name);
}

static bool is_anthropic(const struct sl_conn *c)
{
    return sl_http_header(c->parser, "anthropic-version") != NULL;
}

static void models_put_name(struct sl_buf *b, const char *member, const char *name)
{
    sl_buf_puts(b, member);
    sl_buf_json_string(b, name, strlen(name));
}

void sl_api_models(struct sl_conn *c)
{
    const struct sl_server *s = c->loop->server;
    bool anthropic = is_anthropic(c);
    struct sl_buf b = {0};
    sl_buf_puts(&b, anthropic ? "{\"data\":[" : "{\"object\":\"list\",\"data\":[");
    struct adapter_list l = {.b = &b, .anthropic = anthropic};
    const char *last = "";
    for (int32_t k = 0; k < sl_served_n_named(s); k++) {
        l.m = &s->models[k];
        l.last[0] = '\0';
        for (int32_t i = 0; i < sl_served_n_names(l.m); i++) {
            if (k > 0 || i > 0)
                sl_buf_putc(&b, ',');
            last = sl_served_name_at(l.m, i);
            put_model(&b, s, l.m, anthropic, last);
        }
        sl_adapter_each(l.m->eng, models_put_adapter, &l);
    }
    sl_buf_putc(&b, ']');
    if (anthropic) {
        models_put_name(&b, ",\"has_more\":false,\"first_id\":", s->models[0].name);
        models_put_name(&b, ",\"last_id\":", l.last[0] != '\0' ? l.last : last);
    }
    sl_buf_putc(&b, '}');
    sl_reply_json(c, 200, &b);
}

void sl_api_model(struct sl_conn *c)
{
    const struct sl_server *s = c->loop->server;
    struct sl_refusal r = {0};
    struct sl_str id = c->parser->path;
    char name[512];
    id.p += strlen(c->route->path);
    id.n -= strlen(c->route->path);
    bool decoded = sl_route_decode(id, name, sizeof name);
    const struct sl_served *m = decoded ? sl_served_find(s, name) : NULL;
    struct sl_buf b = {0};
    struct adapter_list l = {.m = m, .b = &b, .anthropic = is_anthropic(c), .only = name};
    const char *own;
    bool is_own = m != NULL && sl_served_has_name(m, name, &own);
    if (is_own)
        put_model(&b, s, m, l.anthropic, own);
    else if (m != NULL)
        sl_adapter_each(m->eng, models_put_adapter, &l);
    if (is_own || l.last[0] != '\0') {
        sl_reply_json(c, 200, &b);
        return;
    }
    (void)sl_served_missing(s, "model", id.p, id.n, &r);
    sl_reply_refusal(c, &r);
}

/* Health is progress: a stuck engine is not healthy although the process answers. One that serves
 * without ranks that were lost is, and says so. */
void sl_api_health(struct sl_conn *c)
{
    const struct sl_server *s = c->loop->server;
    struct sl_error err;
    char body[sizeof err.msg + 116] = "";
    bool ok = atomic_load(&s->drain) == SL_SERVING;
    if (!ok)
        snprintf(body, sizeof body, "draining\n");
    for (int32_t i = 0; i < s->n_models && ok; i++) {
        ok = sl_engine_health(s->models[i].eng, &err) == 0;
        const char *what = ok ? "degraded: " : "";
        if (ok && err.msg[0] == '\0')
            continue;
        if (s->n_models > 1)
            snprintf(body, sizeof body, "%s%.100s: %s\n", what, s->models[i].label, err.msg);
        else
            snprintf(body, sizeof body, "%s%s\n", what, err.msg);
    }
    sl_reply(c, ok ? 200 : 503, "text/plain; charset=utf-8", ok ? NULL : "Retry-After: 1\r\n", body,
             strlen(body));
}

void sl_api_version(struct sl_conn *c)
{
    static const char body[] = "{\"version\":\"" SLUICE_VERSION "\"}";
    sl_reply(c, 200, "application/json", NULL, body, sizeof body - 1);
}

void sl_api_load(struct sl_conn *c)
{
    const struct sl_server *s = c->loop->server;
    struct sl_stats st;
    struct sl_buf b = {0};
    int64_t n = 0;
    for (int32_t i = 0; i < s->n_models; i++) {
        sl_engine_stats(s->models[i].eng, &st);
        n += (int64_t)st.n_running + st.n_waiting;
    }
    SL_PUT(&b, "{\"server_load\":");
    sl_put_i64(&b, n);
    sl_buf_putc(&b, '}');
    sl_reply_json(c, 200, &b);
}
