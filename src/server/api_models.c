/* SPDX-License-Identifier: MIT
 * api_models.c - GET /v1/models, /v1/models/{id}, /health, /ping, /version, /load.
 */
#include "base/check.h"
#include "base/str.h"
#include "server/reply.h"
#include "server/route.h"
#include "server/sse.h"

#include <stdio.h>
#include <time.h>

static void put_model(struct sl_buf *b, const struct sl_server *s, const char *name)
{
    const struct sl_model_info *info = sl_engine_info(s->eng);
    SL_PUT(b, "{\"id\":");
    sl_buf_json_string(b, name, strlen(name));
    SL_PUT(b, ",\"object\":\"model\",\"created\":");
    sl_put_i64(b, s->t_created_s);
    SL_PUT(b, ",\"owned_by\":\"sluice\",\"root\":");
    sl_buf_json_string(b, info->model_path, strlen(info->model_path));
    SL_PUT(b, ",\"parent\":null,\"max_model_len\":");
    sl_put_i64(b, info->max_model_len);
    SL_PUT(b, ",\"permission\":[]}");
}

/* As clients of Anthropic's API want it, who say so by a header of theirs. */
static void put_model_anthropic(struct sl_buf *b, const struct sl_server *s, const char *name)
{
    char date[32];
    time_t t = (time_t)s->t_created_s;
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
    sl_put_i64(b, sl_engine_info(s->eng)->max_model_len);
    sl_buf_putc(b, '}');
}

static int32_t n_names(const struct sl_server *s)
{
    return s->cfg->n_served_names > 0 ? s->cfg->n_served_names : 1;
}

static const char *name_at(const struct sl_server *s, int32_t i)
{
    return s->cfg->n_served_names > 0 ? s->cfg->served_names[i] : s->model_name;
}

static bool is_anthropic(const struct sl_conn *c)
{
    return sl_http_header(c->parser, "anthropic-version") != NULL;
}

static void put_name(struct sl_buf *b, const char *member, const char *name)
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
    for (int32_t i = 0; i < n_names(s); i++) {
        if (i > 0)
            sl_buf_putc(&b, ',');
        (anthropic ? put_model_anthropic : put_model)(&b, s, name_at(s, i));
    }
    sl_buf_putc(&b, ']');
    if (anthropic) {
        put_name(&b, ",\"has_more\":false,\"first_id\":", name_at(s, 0));
        put_name(&b, ",\"last_id\":", name_at(s, n_names(s) - 1));
    }
    sl_buf_putc(&b, '}');
    sl_reply_json(c, 200, &b);
}

/* Ids hold slashes, which some clients send as %2F: the id (and nothing else) is decoded. */
static bool decode_id(struct sl_str s, char *out, size_t n_out)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) {
        uint64_t x = (unsigned char)s.p[i];
        if (s.p[i] == '%') {
            if (s.n - i < 3 || !sl_parse_hex_u64(s.p + i + 1, 2, &x) || x == 0)
                return false;
            i += 2;
        }
        if (n + 1 >= n_out)
            return false;
        out[n++] = (char)x;
    }
    out[n] = '\0';
    return true;
}

void sl_api_model(struct sl_conn *c)
{
    const struct sl_server *s = c->loop->server;
    struct sl_refusal r = {.code = "model_not_found"};
    struct sl_str id = c->parser->path;
    char name[512];
    id.p += strlen(c->route->path);
    id.n -= strlen(c->route->path);
    bool decoded = decode_id(id, name, sizeof name);
    for (int32_t i = 0; decoded && i < n_names(s); i++) {
        if (strcmp(name, name_at(s, i)) == 0) {
            struct sl_buf b = {0};
            (is_anthropic(c) ? put_model_anthropic : put_model)(&b, s, name);
            sl_reply_json(c, 200, &b);
            return;
        }
    }
    (void)sl_refuse(&r, SL_ENOTFOUND, "model", "the model `%.*s` does not exist",
                    (int)SL_MIN(id.n, 120), id.p);
    sl_reply_refusal(c, &r);
}

/* Health is progress: a stuck engine is not healthy although the process answers. */
void sl_api_health(struct sl_conn *c)
{
    const struct sl_server *s = c->loop->server;
    struct sl_error err;
    char body[sizeof err.msg + 2] = "";
    if (atomic_load(&s->drain) != SL_SERVING)
        snprintf(body, sizeof body, "draining\n");
    else if (sl_engine_health(s->eng, &err) != 0)
        snprintf(body, sizeof body, "%s\n", err.msg);
    bool ok = body[0] == '\0';
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
    sl_engine_stats(s->eng, &st);
    SL_PUT(&b, "{\"server_load\":");
    sl_put_i64(&b, (int64_t)st.n_running + st.n_waiting);
    sl_buf_putc(&b, '}');
    sl_reply_json(c, 200, &b);
}
