/* SPDX-License-Identifier: MIT */
#include "server/http/route.h"

#include "base/check.h"
#include "base/str.h"
#include "server/conn.h"
#include "server/page/webui.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define GET    (1u << SL_HTTP_GET | 1u << SL_HTTP_HEAD)
#define POST   (1u << SL_HTTP_POST)
#define DELETE (1u << SL_HTTP_DELETE)

/* Open routes tell nothing about users and change nothing: probes and scrapers carry no key. */
const struct sl_route sl_routes[] = {
    {"/v1/chat/completions", false, POST, SL_AUTH_KEY, true, sl_api_chat},
    {"/v1/completions", false, POST, SL_AUTH_KEY, true, sl_api_completions},
    {"/v1/chat/completions/render", false, POST, SL_AUTH_KEY, false, sl_api_render_chat},
    {"/v1/completions/render", false, POST, SL_AUTH_KEY, false, sl_api_render_completions},
    {"/apply-template", false, POST, SL_AUTH_KEY, false, sl_api_apply_template},
    {"/v1/messages", false, POST, SL_AUTH_KEY, true, sl_api_messages},
    {"/v1/messages/count_tokens", false, POST, SL_AUTH_KEY, false, sl_api_count_tokens},
    {"/v1/responses", false, POST, SL_AUTH_KEY, true, sl_api_responses},
    {"/v1/responses/compact", false, POST, SL_AUTH_KEY, true, sl_api_responses_compact},
    {"/v1/responses/input_tokens", false, POST, SL_AUTH_KEY, false, sl_api_responses_count},
    {"/v1/responses/", true, GET | POST | DELETE, SL_AUTH_KEY, false, sl_api_response},
    {"/v1/files", false, GET | POST, SL_AUTH_KEY, false, sl_api_files},
    {"/v1/files/", true, GET | DELETE, SL_AUTH_KEY, false, sl_api_file},
    {"/v1/batches", false, GET | POST, SL_AUTH_KEY, false, sl_api_batches},
    {"/v1/batches/", true, GET | POST, SL_AUTH_KEY, false, sl_api_batch},
    {"/v1/embeddings", false, POST, SL_AUTH_KEY, true, sl_api_embeddings},
    {"/pooling", false, POST, SL_AUTH_KEY, true, sl_api_pooling},
    {"/rerank", false, POST, SL_AUTH_KEY, true, sl_api_rerank},
    {"/v1/rerank", false, POST, SL_AUTH_KEY, true, sl_api_rerank},
    {"/v2/rerank", false, POST, SL_AUTH_KEY, true, sl_api_rerank},
    {"/score", false, POST, SL_AUTH_KEY, true, sl_api_score},
    {"/v1/score", false, POST, SL_AUTH_KEY, true, sl_api_score},
    {"/v1/models", false, GET, SL_AUTH_KEY, false, sl_api_models},
    {"/v1/models/", true, GET, SL_AUTH_KEY, false, sl_api_model},
    {"/v1/load_lora_adapter", false, POST, SL_AUTH_KEY, false, sl_api_load_lora},
    {"/v1/unload_lora_adapter", false, POST, SL_AUTH_KEY, false, sl_api_unload_lora},
    {"/tokenize", false, POST, SL_AUTH_KEY, false, sl_api_tokenize},
    {"/detokenize", false, POST, SL_AUTH_KEY, false, sl_api_detokenize},
    {"/health", false, GET, SL_AUTH_OPEN, false, sl_api_health},
    {"/health/ready", false, GET, SL_AUTH_OPEN, false, sl_api_ready},
    {"/livez", false, GET, SL_AUTH_OPEN, false, sl_api_live},
    {"/readyz", false, GET, SL_AUTH_OPEN, false, sl_api_ready},
    {"/api/chat", false, POST, SL_AUTH_KEY, true, sl_api_ollama_chat},
    {"/api/generate", false, POST, SL_AUTH_KEY, true, sl_api_ollama_generate},
    {"/api/embed", false, POST, SL_AUTH_KEY, true, sl_api_ollama_embed},
    {"/api/embeddings", false, POST, SL_AUTH_KEY, true, sl_api_ollama_embeddings},
    {"/api/tags", false, GET, SL_AUTH_KEY, false, sl_api_ollama_tags},
    {"/api/ps", false, GET, SL_AUTH_KEY, false, sl_api_ollama_ps},
    {"/api/show", false, POST, SL_AUTH_KEY, false, sl_api_ollama_show},
    {"/api/pull", false, POST, SL_AUTH_KEY, false, sl_api_ollama_pull},
    {"/api/version", false, GET, SL_AUTH_OPEN, false, sl_api_ollama_version},
    {"/props", false, GET, SL_AUTH_KEY, false, sl_api_props},
    {"/slots", false, GET, SL_AUTH_KEY, false, sl_api_slots},
    {"/tokenizer_info", false, GET, SL_AUTH_KEY, false, sl_api_tokenizer_info},
    {"/server_info", false, GET, SL_AUTH_KEY, false, sl_api_server_info},
    {"/get_server_info", false, GET, SL_AUTH_KEY, false, sl_api_server_info},
    {"/model_info", false, GET, SL_AUTH_KEY, false, sl_api_model_info},
    {"/get_model_info", false, GET, SL_AUTH_KEY, false, sl_api_model_info},
    {"/sleep", false, POST, SL_AUTH_KEY, false, sl_api_sleep},
    {"/wake_up", false, POST, SL_AUTH_KEY, false, sl_api_wake_up},
    {"/is_sleeping", false, GET, SL_AUTH_KEY, false, sl_api_is_sleeping},
    {"/update_weights_from_disk", false, POST, SL_AUTH_KEY, false, sl_api_update_weights},
    {"/ping", false, GET | POST, SL_AUTH_OPEN, false, sl_api_health},
    {"/version", false, GET, SL_AUTH_OPEN, false, sl_api_version},
    {"/load", false, GET, SL_AUTH_OPEN, false, sl_api_load},
    {"/metrics", false, GET, SL_AUTH_OPEN, false, sl_api_metrics},
    {"/", false, GET, SL_AUTH_OPEN, false, sl_api_root},
    {"/page.css", false, GET, SL_AUTH_OPEN, false, sl_api_page},
    {"/page.js", false, GET, SL_AUTH_OPEN, false, sl_api_page},
    {"/api/state", false, GET, SL_AUTH_KEY, false, sl_api_state},
    {"/api/cancel", false, POST, SL_AUTH_KEY, false, sl_api_cancel},
};
const int sl_n_routes = (int)SL_COUNT(sl_routes);

_Static_assert(SL_COUNT(sl_routes) < SL_HTTP_MAX_ROUTES, "counters need one more row");

const struct sl_route *sl_route_find(struct sl_str path)
{
    for (int i = 0; i < sl_n_routes; i++) {
        const struct sl_route *r = &sl_routes[i];
        size_t n = strlen(r->path);
        if (r->prefix ? path.n > n : path.n == n) {
            if (memcmp(path.p, r->path, n) == 0)
                return r;
        }
    }
    return NULL;
}

enum sl_protocol sl_route_protocol(const struct sl_route *route)
{
    static const char anthropic[] = "/v1/messages", ollama[] = "/api/";
    if (route == NULL || sl_webui_owns(route))
        return SL_PROTOCOL_OPENAI;
    return strncmp(route->path, anthropic, sizeof anthropic - 1) == 0 ? SL_PROTOCOL_ANTHROPIC
           : strncmp(route->path, ollama, sizeof ollama - 1) == 0     ? SL_PROTOCOL_OLLAMA
                                                                      : SL_PROTOCOL_OPENAI;
}

const char *sl_route_label(const struct sl_route *route)
{
    static const char *const labels[][2] = {{"/v1/models/", "/v1/models/{model}"},
                                            {"/v1/responses/", "/v1/responses/{id}"},
                                            {"/v1/files/", "/v1/files/{id}"},
                                            {"/v1/batches/", "/v1/batches/{id}"}};
    for (size_t i = 0; i < SL_COUNT(labels); i++) {
        if (strcmp(route->path, labels[i][0]) == 0)
            return labels[i][1];
    }
    return route->path;
}

int sl_route_idx(const struct sl_route *route)
{
    return route != NULL ? (int)(route - sl_routes) : SL_HTTP_MAX_ROUTES - 1;
}

void sl_route_allow(const struct sl_route *route, char *out, size_t n_out)
{
    size_t at = 0;
    out[0] = '\0';
    for (int m = 1; m < SL_HTTP_N_METHODS && at < n_out; m++) {
        if (route->methods & 1u << m)
            at += (size_t)snprintf(out + at, n_out - at, "%s%s", at > 0 ? ", " : "",
                                   sl_http_method_names[m]);
    }
}

/* Reads all of `given` whatever it holds, so that timing tells nothing but its length. */
static bool same_key(const char *key, struct sl_str given)
{
    size_t n = strlen(key);
    unsigned differ = n != given.n;
    for (size_t i = 0; i < given.n; i++)
        differ |= (unsigned char)given.p[i] ^ (unsigned char)key[n > 0 ? i % n : 0];
    return differ == 0;
}

static int route_find_key(const struct sl_server_config *cfg, struct sl_str given)
{
    int found = -1;
    for (int i = 0; i < cfg->n_api_keys; i++) /* all of them: the time does not say which */
        found = same_key(cfg->api_keys[i], given) ? i : found;
    return found;
}

int sl_route_key(const struct sl_server_config *cfg, const struct sl_http_parser *p)
{
    const struct sl_str *auth = NULL, *plain = NULL;
    if (cfg->n_api_keys == 0)
        return 0;
    for (size_t i = 0; i < p->n_headers; i++) {
        bool bearer = sl_str_equals_nocase(p->headers[i].name, "authorization");
        if (!bearer && !sl_str_equals_nocase(p->headers[i].name, "x-api-key"))
            continue;
        const struct sl_str **at = bearer ? &auth : &plain;
        if (*at != NULL) /* a proxy in front may have checked the other one */
            return -1;
        *at = &p->headers[i].value;
    }
    if (auth == NULL)
        return plain != NULL ? route_find_key(cfg, *plain) : -1;
    if (auth->n < 8 || strncasecmp(auth->p, "bearer ", 7) != 0)
        return -1;
    int found = route_find_key(cfg, (struct sl_str){auth->p + 7, auth->n - 7});
    return plain == NULL || route_find_key(cfg, *plain) == found ? found : -1;
}

const char *sl_route_cors_origin(const struct sl_server_config *cfg, const struct sl_http_parser *p)
{
    const struct sl_str *origin = sl_http_header(p, "origin");
    for (int i = 0; origin != NULL && i < cfg->n_allowed_origins; i++) {
        const char *allowed = cfg->allowed_origins[i];
        if (strcmp(allowed, "*") == 0 || sl_str_equals(*origin, allowed))
            return allowed;
    }
    return NULL;
}

bool sl_route_decode(struct sl_str s, char *out, size_t n_out)
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

int sl_query_model(struct sl_conn *c, struct sl_served **out, struct sl_refusal *r)
{
    struct sl_str given = sl_query_value(c->parser->query, "model");
    char name[512];
    *out = NULL;
    if (given.n == 0)
        return 0;
    if (sl_route_decode(given, name, sizeof name))
        *out = sl_served_find(c->loop->server, name);
    if (*out != NULL)
        return 0;
    return sl_served_missing(c->loop->server, "model", given.p, given.n, r);
}
