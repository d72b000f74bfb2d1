/* SPDX-License-Identifier: MIT
 * http_client.h - a small HTTP/1.1 client on libevent: one connection, one request at a time,
 * kept alive between them. http:// and unix: only, there is no TLS. For batches, which ask the
 * server they run in, and for what measures servers.
 *
 * A client belongs to the thread of its event base. The callbacks may start the next request but
 * not destroy the client.
 */
#ifndef SL_SERVER_HTTP_CLIENT_H
#define SL_SERVER_HTTP_CLIENT_H

#include "base/buf.h"
#include "base/err.h"

#include <event2/event.h>
#include <sys/socket.h>

struct sl_http_url {
    struct sockaddr_storage addr;
    socklen_t n_addr;
    char host[256];   /* for the Host header */
    char prefix[256]; /* path before "/v1/...", without a trailing slash */
    /* Gives a connected descriptor, which does not block, in place of the address; -1: none. */
    int (*dial)(void *arg);
    void *dial_arg;
    bool patient; /* a reply may be silent for any time: its server is this process */
};

/* http://host[:port][/prefix] or unix:/path; looks the name up. */
SL_MUST_CHECK int sl_http_url_parse(const char *url, struct sl_http_url *out, struct sl_error *err);

struct sl_http_client_events {
    /* Part of the body, as it arrives. */
    void (*body)(void *arg, const char *data, size_t n);
    /* The end; status 0: the connection failed and error says how. */
    void (*done)(void *arg, int status, const char *error);
};

struct sl_http_client;

SL_MUST_CHECK int sl_http_client_create(struct event_base *base, const struct sl_http_url *url,
                                        const struct sl_http_client_events *events, void *arg,
                                        struct sl_http_client **out, struct sl_error *err);
void sl_http_client_destroy(struct sl_http_client *c);
void sl_http_client_abort(struct sl_http_client *c); /* the request, if any: done is not called */
/* Starts a request; done is called exactly once, never from inside this call. body NULL = GET. */
void sl_http_client_send(struct sl_http_client *c, const char *path, const char *api_key,
                         const char *body, size_t n_body);

#endif
