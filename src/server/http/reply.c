/* SPDX-License-Identifier: MIT */
#include "server/http/reply.h"

#include "base/check.h"
#include "server/http/json_tree.h"
#include "server/http/route.h"
#include "server/http/sse.h"
#include "server/page/webui.h"

#include <stdio.h>

static const char *status_text(int status)
{
    static const struct {
        int status;
        const char *text;
    } texts[] = {
        {200, "OK"},
        {204, "No Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {417, "Expectation Failed"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        if (texts[i].status == status)
            return texts[i].text;
    }
    return "Error";
}

/* The client's own name for a request, if it is one that may be repeated in a header. */
static bool echo_request_id(const struct sl_http_parser *p, struct sl_str *out)
{
    const struct sl_str *id = p != NULL ? sl_http_header(p, "x-request-id") : NULL;
    if (id == NULL || id->n == 0 || id->n > 128)
        return false;
    for (size_t i = 0; i < id->n; i++) {
        if (id->p[i] <= 0x20 || id->p[i] >= 0x7F)
            return false;
    }
    *out = *id;
    return true;
}

static void put_cors(struct sl_buf *b, const char *origin)
{
    SL_PUT(b, "Access-Control-Allow-Origin: ");
    sl_buf_puts(b, origin);
    sl_buf_puts(b, origin[0] == '*' ? "\r\n" : "\r\nVary: Origin\r\n");
}

/* Status line and the headers every reply has, up to and without the empty line. */
static void reply_put_head(struct sl_conn *c, int status, const char *content_type)
{
    struct sl_buf *b = &c->out;
    const struct sl_http_parser *p = c->parser;
    struct sl_str id;
    c->status = status;
    SL_PUT(b, "HTTP/1.1 ");
    sl_put_u64(b, (uint64_t)status);
    sl_buf_putc(b, ' ');
    sl_buf_puts(b, status_text(status));
    if (content_type != NULL) {
        SL_PUT(b, "\r\nContent-Type: ");
        sl_buf_puts(b, content_type);
    }
    SL_PUT(b, "\r\n");
    bool keep = p != NULL && p->keep_alive && !c->close_after &&
                atomic_load(&c->loop->server->drain) == SL_SERVING;
    if (!keep)
        SL_PUT(b, "Connection: close\r\n");
    else if (p->http_1_0)
        SL_PUT(b, "Connection: keep-alive\r\n");
    const char *origin = p != NULL ? sl_route_cors_origin(c->loop->server->cfg, p) : NULL;
    if (c->route != NULL && sl_webui_owns(c->route)) /* other sites have no business there */
        origin = NULL;
    if (origin != NULL)
        put_cors(b, origin);
    if (c->ignored != NULL) {
        SL_PUT(b, "X-Ignored-Fields: ");
        sl_buf_puts(b, c->ignored);
        SL_PUT(b, "\r\n");
    }
    if (echo_request_id(p, &id)) {
        SL_PUT(b, "X-Request-Id: ");
        sl_buf_put(b, id.p, id.n);
        SL_PUT(b, "\r\n");
    }
}

void sl_reply(struct sl_conn *c, int status, const char *content_type, const char *headers,
              const char *body, size_t n_body)
{
    reply_put_head(c, status, content_type);
    if (headers != NULL)
        sl_buf_puts(&c->out, headers);
    if (status != 204 && status != 304) {
        SL_PUT(&c->out, "Content-Length: ");
        sl_put_u64(&c->out, n_body);
        SL_PUT(&c->out, "\r\n");
    }
    SL_PUT(&c->out, "\r\n");
    if (c->parser == NULL || c->parser->method != SL_HTTP_HEAD)
        sl_buf_put(&c->out, body, n_body);
    sl_conn_reply_done(c);
}

void sl_reply_json(struct sl_conn *c, int status, struct sl_buf *body)
{
    if (sl_buf_ok(body)) {
        sl_reply(c, status, "application/json", NULL, body->data, body->n_bytes);
    } else {
        struct sl_refusal r = {0};
        (void)sl_refuse(&r, SL_ENOMEM, NULL, "out of memory for the reply");
        sl_reply_refusal(c, &r);
    }
    sl_buf_deinit(body);
}

void sl_reply_tree(struct sl_conn *c, json_t *v)
{
    struct sl_buf b = {.failed = v == NULL};
    if (v != NULL)
        sl_json_put(&b, v);
    json_decref(v);
    sl_reply_json(c, 200, &b);
}

void sl_reply_file(struct sl_conn *c, const char *content_type, int fd, uint64_t n_bytes)
{
    bool head = c->parser->method == SL_HTTP_HEAD;
    reply_put_head(c, 200, content_type);
    SL_PUT(&c->out, "Content-Length: ");
    sl_put_u64(&c->out, n_bytes);
    SL_PUT(&c->out, "\r\n\r\n");
    sl_conn_send_file(c, fd, head ? 0 : n_bytes);
}

/* What a status is called in an error object. The last row is for all statuses above. */
static const char *error_type(int status, enum sl_protocol protocol)
{
    static const struct {
        int least;
        const char *types[2]; /* OpenAI's, Anthropic's */
    } rows[] = {
        {503, {"server_error", "overloaded_error"}},
        {500, {"server_error", "api_error"}},
        {430, {"invalid_request_error", "invalid_request_error"}},
        {429, {"rate_limit_error", "rate_limit_error"}},
        {414, {"invalid_request_error", "invalid_request_error"}},
        {413, {"invalid_request_error", "request_too_large"}},
        {405, {"invalid_request_error", "invalid_request_error"}},
        {404, {"invalid_request_error", "not_found_error"}},
        {402, {"invalid_request_error", "invalid_request_error"}},
        {401, {"authentication_error", "authentication_error"}},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        if (status >= rows[i].least)
            return rows[i].types[protocol];
    }
    return "invalid_request_error";
}

static void put_string_or_null(struct sl_buf *b, const char *s)
{
    if (s != NULL && s[0] != '\0')
        sl_buf_json_string(b, s, strlen(s));
    else
        SL_PUT(b, "null");
}

void sl_reply_error_json(struct sl_buf *b, const struct sl_refusal *r, int status,
                         enum sl_protocol protocol)
{
    if (protocol == SL_PROTOCOL_OLLAMA) {
        SL_PUT(b, "{\"error\":");
        sl_buf_json_string(b, r->err.msg, strlen(r->err.msg));
        sl_buf_putc(b, '}');
        return;
    }
    sl_buf_puts(b, protocol == SL_PROTOCOL_ANTHROPIC ? "{\"type\":\"error\"," : "{");
    SL_PUT(b, "\"error\":{\"message\":");
    sl_buf_json_string(b, r->err.msg, strlen(r->err.msg));
    SL_PUT(b, ",\"type\":\"");
    sl_buf_puts(b, error_type(status, protocol));
    sl_buf_putc(b, '"');
    if (protocol == SL_PROTOCOL_OPENAI) {
        SL_PUT(b, ",\"param\":");
        put_string_or_null(b, r->param);
        SL_PUT(b, ",\"code\":");
        put_string_or_null(b, r->code);
    }
    SL_PUT(b, "}}");
}

void sl_reply_error(struct sl_conn *c, const struct sl_refusal *r, int status)
{
    struct sl_buf body = {0};
    char allow[64], headers[96] = "";
    sl_reply_error_json(&body, r, status, sl_route_protocol(c->route));
    if (status == 405 && c->route != NULL) {
        sl_route_allow(c->route, allow, sizeof allow);
        snprintf(headers, sizeof headers, "Allow: %s\r\n", allow);
    } else if (status == 401) {
        snprintf(headers, sizeof headers, "WWW-Authenticate: Bearer\r\n");
    } else if (status == 429 || status == 503) {
        snprintf(headers, sizeof headers, "Retry-After: 1\r\n");
    }
    /* Without memory even for this the body is empty and the status still says what happened. */
    sl_reply(c, status, "application/json", headers, sl_buf_ok(&body) ? body.data : "",
             sl_buf_ok(&body) ? body.n_bytes : 0);
    sl_buf_deinit(&body);
}

void sl_reply_refusal(struct sl_conn *c, const struct sl_refusal *r)
{
    int status = sl_code_http(r->err.code);
    sl_reply_error(c, r, status < 400 || status == 499 ? 500 : status);
}

void sl_reply_stream(struct sl_conn *c, const char *content_type)
{
    if (c->parser->http_1_0) { /* the end of the connection is the end of the reply */
        c->close_after = true;
        c->parser->keep_alive = false;
    }
    reply_put_head(c, 200, content_type);
    SL_PUT(&c->out, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    sl_buf_puts(&c->out, c->parser->http_1_0 ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n");
    c->streaming = true;
    sl_loop_mark(c->loop, c);
}

bool sl_reply_is_preflight(const struct sl_conn *c)
{
    const struct sl_http_parser *p = c->parser;
    return p->method == SL_HTTP_OPTIONS && c->route != NULL && !sl_webui_owns(c->route) &&
           sl_http_header(p, "access-control-request-method") != NULL &&
           sl_route_cors_origin(c->loop->server->cfg, p) != NULL;
}

void sl_reply_preflight(struct sl_conn *c)
{
    sl_reply(c, 204, NULL,
             "Access-Control-Allow-Methods: GET, POST, DELETE, OPTIONS\r\n"
             "Access-Control-Allow-Headers: Authorization, Content-Type, X-Request-Id, "
             "X-Api-Key, Anthropic-Version, Anthropic-Beta, "
             "Anthropic-Dangerous-Direct-Browser-Access, OpenAI-Organization, OpenAI-Project, "
             "OpenAI-Beta, X-Stainless-Lang, "
             "X-Stainless-Package-Version, X-Stainless-OS, X-Stainless-Arch, X-Stainless-Runtime, "
             "X-Stainless-Runtime-Version, X-Stainless-Retry-Count, X-Stainless-Timeout\r\n"
             "Access-Control-Max-Age: 600\r\n",
             "", 0);
}
