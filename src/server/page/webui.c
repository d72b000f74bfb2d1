/* SPDX-License-Identifier: MIT */
#include "server/page/webui.h"

#include "base/check.h"
#include "base/embed.h"
#include "base/hash.h"
#include "server/http/reply.h"

#include <stdio.h>
#include <string.h>

extern const struct sl_embedded sl_web_table[]; /* NAME and NAME.gz, ended by a row of zeros */

/* Scripts and styles come from here alone, and nothing in the page may talk to anybody else. */
#define SECURITY                                                                         \
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; " \
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "    \
    "frame-ancestors 'none'\r\n"                                                         \
    "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"                \
    "Cross-Origin-Opener-Policy: same-origin\r\nCross-Origin-Resource-Policy: same-origin\r\n"

bool sl_webui_owns(const struct sl_route *route)
{
    return route->handle == sl_api_root || route->handle == sl_api_page ||
           route->handle == sl_api_state || route->handle == sl_api_cancel;
}

bool sl_webui_hides(const struct sl_server_config *cfg, const struct sl_route *route)
{
    return cfg->no_webui && sl_webui_owns(route) && route->handle != sl_api_root;
}

static const struct sl_embedded *webui_find(struct sl_str name, bool gzip)
{
    for (const struct sl_embedded *e = sl_web_table; e->name != NULL; e++) {
        size_t n = strlen(e->name), n_suffix = gzip ? 3 : 0;
        if (n == name.n + n_suffix && memcmp(e->name, name.p, name.n) == 0 &&
            memcmp(e->name + name.n, ".gz", n_suffix) == 0)
            return e;
    }
    return NULL;
}

static bool contains(const struct sl_str *s, const char *part)
{
    return s != NULL && memmem(s->p, s->n, part, strlen(part)) != NULL;
}

/* A client that lists gzip gets it, unless it gives it a weight, of which 0 would mean no. */
static bool takes_gzip(const struct sl_http_parser *p)
{
    const struct sl_str *accept = sl_http_header(p, "accept-encoding");
    return contains(accept, "gzip") && !contains(accept, "gzip;");
}

static const char *webui_type_of(const char *name)
{
    return strncmp(name, "page.js", 7) == 0    ? "text/javascript; charset=utf-8"
           : strncmp(name, "page.css", 8) == 0 ? "text/css; charset=utf-8"
                                               : "text/html; charset=utf-8";
}

/* Browsers, and clients that do not say what they take, get the page. */
static bool takes_html(const struct sl_http_parser *p)
{
    const struct sl_str *accept = sl_http_header(p, "accept");
    return accept == NULL || contains(accept, "text/") || contains(accept, "*/*");
}

/* Ollama's clients ask here whether there is a server, and some read the answer. */
void sl_api_root(struct sl_conn *c)
{
    static const char body[] = "Ollama is running";
    if (!c->loop->server->cfg->no_webui && takes_html(c->parser))
        sl_api_page(c);
    else
        sl_reply(c, 200, "text/plain; charset=utf-8", "Vary: Accept\r\n", body, sizeof body - 1);
}

void sl_api_page(struct sl_conn *c)
{
    const struct sl_http_parser *p = c->parser;
    struct sl_str name = {c->route->path + 1, strlen(c->route->path) - 1};
    char etag[24], headers[1024];
    bool gzip = takes_gzip(p);
    if (name.n == 0)
        name = (struct sl_str){"index.html", 10};
    const struct sl_embedded *e = webui_find(name, gzip);
    SL_ASSERT(e != NULL); /* the build carries every file that a route names */
    snprintf(etag, sizeof etag, "\"%016llx\"",
             (unsigned long long)sl_hash64(e->data, (size_t)e->n_bytes, 0));
    int n = snprintf(headers, sizeof headers,
                     SECURITY "ETag: %s\r\nCache-Control: no-cache\r\nVary: Accept-Encoding\r\n%s",
                     etag, gzip ? "Content-Encoding: gzip\r\n" : "");
    SL_ASSERT(n > 0 && (size_t)n < sizeof headers);
    if (contains(sl_http_header(p, "if-none-match"), etag))
        sl_reply(c, 304, NULL, headers, "", 0);
    else
        sl_reply(c, 200, webui_type_of(e->name), headers, (const char *)e->data,
                 (size_t)e->n_bytes);
}
