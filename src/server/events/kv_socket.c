/* SPDX-License-Identifier: MIT
 * kv_socket.c - endpoints as ZeroMQ writes them, and the batches that are kept for their peers.
 */
#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
#include "server/events/kv_peer.h"
#include "server/http/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#define KEEPALIVE_S 20

/* ---- batches */

int sl_kv_kept_init(struct sl_kv_kept *k, size_t cap, uint64_t max_bytes, struct sl_error *err)
{
    SL_ASSERT(cap > 0 && max_bytes > 0);
    *k = (struct sl_kv_kept){.cap = cap, .max_bytes = max_bytes};
    k->ring = sl_calloc(cap, sizeof *k->ring);
    return k->ring != NULL ? 0 : sl_fail(err, SL_ENOMEM, "out of memory for %zu batches", cap);
}

static void drop_first(struct sl_kv_kept *k)
{
    struct sl_kv_kept_batch *batch = &k->ring[k->first++ % k->cap];
    SL_ASSERT(k->first <= k->end && k->n_bytes >= batch->n_bytes);
    k->n_bytes -= batch->n_bytes;
    sl_free(batch->data);
    batch->data = NULL;
}

void sl_kv_kept_clear(struct sl_kv_kept *k)
{
    while (k->ring != NULL && k->first < k->end)
        drop_first(k);
}

void sl_kv_kept_deinit(struct sl_kv_kept *k)
{
    sl_kv_kept_clear(k);
    sl_free(k->ring);
    *k = (struct sl_kv_kept){0};
}

bool sl_kv_kept_is_full(const struct sl_kv_kept *k)
{
    return k->end - k->first == k->cap || k->n_bytes >= k->max_bytes;
}

void sl_kv_kept_push(struct sl_kv_kept *k, uint64_t seq, struct sl_buf *b)
{
    size_t n_bytes;
    char *data = sl_buf_steal(b, &n_bytes);
    if (data == NULL)
        return;
    while (k->first < k->end && sl_kv_kept_is_full(k))
        drop_first(k);
    k->ring[k->end++ % k->cap] = (struct sl_kv_kept_batch){seq, data, n_bytes};
    k->n_bytes += n_bytes;
}

/* ---- sockets */

static int open_ipc(struct sl_kv_socket *s, struct sl_error *err)
{
    s->path = s->name + strlen("ipc://");
    int rc = sl_listen_unix(s->path, &s->fd, err);
    if (rc != 0)
        s->path = NULL;
    return rc;
}

static int kv_socket_open_tcp(struct sl_kv_socket *s, struct sl_error *err)
{
    uint64_t port = 0;
    const char *host = strcmp(s->host, "*") == 0 ? "0.0.0.0" : s->host;
    bool any_port = strcmp(s->port, "*") == 0;
    if (!any_port && (!sl_parse_u64(s->port, strlen(s->port), &port) || port > 65535))
        return sl_fail(err, SL_EINVAL, "%s: the port must be a number", s->name);
    if (!s->listens)
        return 0;
    int number = (int)port;
    int rc = sl_listen_tcp(host, &number, &s->fd, err);
    if (rc != 0)
        return rc;
    bool v6 = strchr(s->host, ':') != NULL;
    snprintf(s->name, sizeof s->name, "tcp://%s%s%s:%d", v6 ? "[" : "", s->host, v6 ? "]" : "",
             number);
    return 0;
}

int sl_kv_socket_open(struct sl_kv_socket *s, const char *endpoint, const char *type,
                      struct sl_error *err)
{
    static const char tcp[] = "tcp://", ipc[] = "ipc://";
    *s = (struct sl_kv_socket){.type = type, .fd = -1};
    bool is_ipc = strncmp(endpoint, ipc, sizeof ipc - 1) == 0;
    s->listens = is_ipc || strcmp(type, "ROUTER") == 0 || strchr(endpoint, '*') != NULL ||
                 strstr(endpoint, "::") != NULL;
    snprintf(s->name, sizeof s->name, "%s", endpoint);
    int rc = 0;
    if (is_ipc) {
        rc = open_ipc(s, err);
    } else if (strncmp(endpoint, tcp, sizeof tcp - 1) == 0) {
        const char *host = endpoint + sizeof tcp - 1, *colon = strrchr(host, ':');
        size_t n = colon != NULL ? (size_t)(colon - host) : 0;
        if (n >= 2 && host[0] == '[' && host[n - 1] == ']') {
            host++;
            n -= 2;
        }
        if (colon == NULL || n == 0 || n >= sizeof s->host || strlen(colon) > sizeof s->port)
            return sl_fail(err, SL_EINVAL, "--kv-events-config: %s is not tcp://HOST:PORT",
                           endpoint);
        memcpy(s->host, host, n);
        s->host[n] = '\0';
        snprintf(s->port, sizeof s->port, "%s", colon + 1);
        rc = kv_socket_open_tcp(s, err);
    } else {
        return sl_fail(err, SL_EINVAL, "--kv-events-config: %s is neither tcp:// nor ipc://",
                       endpoint);
    }
    return rc != 0 ? sl_error_prefix(err, rc, "--kv-events-config: %s", endpoint) : 0;
}

void sl_kv_socket_close(struct sl_kv_socket *s)
{
    if (s->path != NULL)
        sl_listen_close_unix(s->path, s->fd);
    else if (s->fd >= 0)
        sl_sys->close(s->fd);
    s->fd = -1;
    s->path = NULL;
}

/* Fails without harm on UNIX sockets. */
static void kv_socket_set_options(int fd)
{
    const int one = 1, seconds = KEEPALIVE_S;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
}

int sl_kv_socket_accept(const struct sl_kv_socket *s)
{
    int fd = accept4(s->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0)
        kv_socket_set_options(fd);
    return fd;
}

/* Looks a name up, which may take seconds; nothing else waits for this thread. Whether an address
 * answers is known later, so that each attempt takes another one. */
int sl_kv_socket_connect(struct sl_kv_socket *s)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *all = NULL;
    unsigned n = 0;
    SL_ASSERT(!s->listens);
    if (getaddrinfo(s->host, s->port, &hints, &all) != 0)
        return -1;
    for (const struct addrinfo *a = all; a != NULL; a = a->ai_next)
        n++;
    const struct addrinfo *a = all;
    for (unsigned skip = n > 0 ? s->n_attempts++ % n : 0; skip > 0; skip--)
        a = a->ai_next;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) {
        sl_sys->close(fd);
        fd = -1;
    }
    freeaddrinfo(all);
    if (fd >= 0)
        kv_socket_set_options(fd);
    return fd;
}
