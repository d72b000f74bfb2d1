/* SPDX-License-Identifier: MIT
 *
 * The reply parser trusts the server it asks but not its framing: lengths are checked, lines
 * are bounded, and a connection that breaks ends the request with an error instead of a hang.
 */
#include "server/http/http_client.h"

#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"

#include <errno.h>
#include <event2/event_struct.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

#define MAX_LINE      (64u << 10)
#define READ_BYTES    (16u << 10)
#define SILENCE_LIMIT 300 /* seconds without a byte before a request counts as failed */

enum state { IDLE, STATUS_LINE, HEADER, SIZED, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER, TO_END };

struct sl_http_client {
    struct event_base *base;
    const struct sl_http_url *url;
    const struct sl_http_client_events *events;
    void *arg;
    int fd; /* -1: not connected */
    struct event ev_read, ev_write, ev_failed;
    struct sl_buf out, line;
    size_t out_sent;
    enum state state;
    int status;
    uint64_t left;
    bool chunked, has_length, close_after;
    bool reused;   /* the connection served a request before: its end may just be a timeout */
    bool any_byte; /* of the current reply */
    char *read_buf;
};

/* ---- addresses */

static int parse_unix(const char *path, struct sl_http_url *out, struct sl_error *err)
{
    struct sockaddr_un *addr = (struct sockaddr_un *)&out->addr;
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof addr->sun_path)
        return sl_fail(err, SL_EINVAL, "--url: socket path is empty or too long");
    addr->sun_family = AF_UNIX;
    memcpy(addr->sun_path, path, n + 1);
    out->n_addr = sizeof *addr;
    snprintf(out->host, sizeof out->host, "localhost");
    return 0;
}

static int look_up(const char *host, const char *port, struct sl_http_url *out,
                   struct sl_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int rc = getaddrinfo(host, port, &hints, &found);
    if (rc != 0)
        return sl_fail(err, SL_EINVAL, "--url: %s: %s", host, gai_strerror(rc));
    memcpy(&out->addr, found->ai_addr, found->ai_addrlen);
    out->n_addr = found->ai_addrlen;
    freeaddrinfo(found);
    return 0;
}

int sl_http_url_parse(const char *url, struct sl_http_url *out, struct sl_error *err)
{
    char name[256], port[8] = "80";
    memset(out, 0, sizeof *out);
    if (sl_starts_with(url, "unix:"))
        return parse_unix(url + 5, out, err);
    if (sl_starts_with(url, "https:"))
        return sl_fail(err, SL_EUNSUPPORTED, "--url: no TLS here; measure the server behind it");
    if (!sl_starts_with(url, "http://"))
        return sl_fail(err, SL_EINVAL, "--url must be http://host:port or unix:/path");
    const char *at = url + 7;
    bool bracket = at[0] == '[';
    size_t n_name = strcspn(bracket ? ++at : at, bracket ? "]" : ":/");
    if (n_name == 0 || n_name >= sizeof name)
        return sl_fail(err, SL_EINVAL, "--url: no host in '%s'", url);
    memcpy(name, at, n_name);
    name[n_name] = '\0';
    at += n_name + bracket;
    if (*at == ':') {
        uint64_t number;
        size_t n = strcspn(++at, "/");
        if (n >= sizeof port || !sl_parse_u64(at, n, &number) || number > 65535)
            return sl_fail(err, SL_EINVAL, "--url: malformed port in '%s'", url);
        memcpy(port, at, n);
        port[n] = '\0';
        at += n;
    }
    size_t n_prefix = strlen(at);
    while (n_prefix > 0 && at[n_prefix - 1] == '/')
        n_prefix--;
    if (n_prefix >= sizeof out->prefix)
        return sl_fail(err, SL_EINVAL, "--url: path is too long");
    memcpy(out->prefix, at, n_prefix);
    snprintf(out->host, sizeof out->host, "%s%.240s%s:%s", bracket ? "[" : "", name,
             bracket ? "]" : "", port);
    return look_up(name, port, out, err);
}

/* ---- the connection */

static void http_client_on_read(evutil_socket_t fd, short what, void *arg);
static void http_client_on_write(evutil_socket_t fd, short what, void *arg);

static void disconnect(struct sl_http_client *c)
{
    if (c->fd < 0)
        return;
    event_del(&c->ev_read);
    event_del(&c->ev_write);
    sl_sys->close(c->fd);
    c->fd = -1;
    c->reused = false;
}

static void http_client_finish(struct sl_http_client *c, int status, const char *error)
{
    c->state = IDLE;
    if (status == 0 || c->close_after)
        disconnect(c);
    else
        c->reused = true;
    c->events->done(c->arg, status, error);
}

static int open_socket(const struct sl_http_url *url)
{
    int one = 1;
    if (url->dial != NULL)
        return url->dial(url->dial_arg);
    int fd = socket(url->addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    int rc = connect(fd, (const struct sockaddr *)&url->addr, url->n_addr);
    if (rc == 0 || errno == EINPROGRESS || errno == EAGAIN)
        return fd;
    sl_sys->close(fd);
    return -1;
}

static bool connect_now(struct sl_http_client *c)
{
    const struct timeval silence = {SILENCE_LIMIT, 0};
    c->fd = open_socket(c->url);
    if (c->fd < 0)
        return false;
    event_assign(&c->ev_read, c->base, c->fd, EV_READ | EV_PERSIST, http_client_on_read, c);
    event_assign(&c->ev_write, c->base, c->fd, EV_WRITE, http_client_on_write, c);
    if (event_add(&c->ev_read, c->url->patient ? NULL : &silence) == 0)
        return true;
    sl_sys->close(c->fd);
    c->fd = -1;
    return false;
}

/* Sends what the socket takes; false when the connection is broken. */
static bool http_client_push(struct sl_http_client *c)
{
    while (c->out_sent < c->out.n_bytes) {
        ssize_t n = sl_sys->write(c->fd, c->out.data + c->out_sent, c->out.n_bytes - c->out_sent);
        if (n < 0 && (errno == EAGAIN || errno == ENOTCONN || errno == EINPROGRESS))
            return event_add(&c->ev_write, NULL) == 0;
        if (n <= 0)
            return false;
        c->out_sent += (size_t)n;
    }
    return true;
}

/* A kept-alive connection may have been closed by the server in the meantime: try once anew. */
static void broken(struct sl_http_client *c, const char *error)
{
    bool again = c->reused && !c->any_byte && c->state != IDLE;
    disconnect(c);
    if (c->state == IDLE)
        return;
    if (again && connect_now(c)) {
        c->out_sent = 0;
        if (http_client_push(c))
            return;
    }
    http_client_finish(c, 0, error);
}

/* ---- the reply */

static void end_of_headers(struct sl_http_client *c)
{
    if (c->status == 100) {
        c->state = STATUS_LINE;
        return;
    }
    if (c->chunked) {
        c->state = CHUNK_SIZE;
    } else if (c->has_length || c->status == 204) {
        c->state = SIZED;
        if (c->left == 0)
            http_client_finish(c, c->status, NULL);
    } else {
        c->close_after = true;
        c->state = TO_END;
    }
}

/* One line without its line end; false when it makes no sense. */
static bool take_line(struct sl_http_client *c, const char *s, size_t n)
{
    uint64_t x;
    switch (c->state) {
    case STATUS_LINE:
        if (n < 12 || memcmp(s, "HTTP/1.", 7) != 0 || !sl_parse_u64(s + 9, 3, &x))
            return false;
        c->status = (int)x;
        c->chunked = c->has_length = false;
        c->close_after = s[7] == '0';
        c->left = 0;
        c->state = HEADER;
        return true;
    case HEADER:
        if (n == 0)
            end_of_headers(c);
        else if (n > 15 && strncasecmp(s, "content-length:", 15) == 0) {
            size_t skip = 15 + strspn(s + 15, " \t");
            c->has_length = true;
            return sl_parse_u64(s + skip, n - skip, &c->left);
        } else if (n > 18 && strncasecmp(s, "transfer-encoding:", 18) == 0)
            c->chunked = true;
        else if (n >= 17 && strncasecmp(s, "connection: close", 17) == 0)
            c->close_after = true;
        return true;
    case CHUNK_SIZE: {
        size_t digits = strspn(s, "0123456789abcdefABCDEF");
        if (!sl_parse_hex_u64(s, SL_MIN(digits, n), &c->left))
            return false;
        c->state = c->left > 0 ? CHUNK_DATA : TRAILER;
        return true;
    }
    case CHUNK_END:
        c->state = CHUNK_SIZE;
        return n == 0;
    case TRAILER:
        if (n == 0)
            http_client_finish(c, c->status, NULL);
        return true;
    default:
        return false;
    }
}

static size_t take_data(struct sl_http_client *c, const char *data, size_t n)
{
    size_t take = c->state == TO_END ? n : (size_t)SL_MIN((uint64_t)n, c->left);
    c->events->body(c->arg, data, take);
    if (c->state == TO_END)
        return take;
    c->left -= take;
    if (c->left == 0) {
        if (c->state == CHUNK_DATA)
            c->state = CHUNK_END;
        else
            http_client_finish(c, c->status, NULL);
    }
    return take;
}

/* false: the reply is malformed */
static bool feed(struct sl_http_client *c, const char *data, size_t n)
{
    while (n > 0 && c->state != IDLE) {
        if (c->state == SIZED || c->state == CHUNK_DATA || c->state == TO_END) {
            size_t took = take_data(c, data, n);
            data += took;
            n -= took;
            continue;
        }
        const char *lf = memchr(data, '\n', n);
        size_t took = lf != NULL ? (size_t)(lf - data) + 1 : n;
        sl_buf_put(&c->line, data, took);
        data += took;
        n -= took;
        if (!sl_buf_ok(&c->line))
            return false;
        if (lf == NULL)
            continue;
        size_t len = c->line.n_bytes - 1;
        len -= len > 0 && c->line.data[len - 1] == '\r';
        c->line.data[len] = '\0';
        bool ok = take_line(c, c->line.data, len);
        sl_buf_clear(&c->line);
        if (!ok)
            return false;
    }
    return true;
}

static void http_client_on_read(evutil_socket_t fd, short what, void *arg)
{
    struct sl_http_client *c = arg;
    if (what & EV_TIMEOUT) {
        broken(c, "the server was silent for too long");
        return;
    }
    ssize_t n = sl_sys->read((int)fd, c->read_buf, READ_BYTES);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n < 0) {
        broken(c, strerror(errno));
    } else if (n == 0 && c->state == TO_END) {
        http_client_finish(c, c->status, NULL);
    } else if (n == 0) {
        broken(c, "the server closed the connection");
    } else {
        c->any_byte = true;
        if (c->state == IDLE)
            disconnect(c); /* bytes nobody asked for, such as a 408 of an idle connection */
        else if (!feed(c, c->read_buf, (size_t)n))
            http_client_finish(c, 0, "malformed reply");
    }
}

static void http_client_on_write(evutil_socket_t fd, short what, void *arg)
{
    struct sl_http_client *c = arg;
    int error = 0;
    socklen_t n = sizeof error;
    (void)what;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) == 0 && error != 0)
        broken(c, strerror(error));
    else if (!http_client_push(c))
        broken(c, "the connection broke while sending");
}

static void on_failed_start(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    http_client_finish(arg, 0, "cannot connect");
}

int sl_http_client_create(struct event_base *base, const struct sl_http_url *url,
                          const struct sl_http_client_events *events, void *arg,
                          struct sl_http_client **out, struct sl_error *err)
{
    struct sl_http_client *c = sl_calloc(1, sizeof *c);
    char *read_buf = sl_malloc(READ_BYTES);
    if (c == NULL || read_buf == NULL) {
        sl_free(c);
        sl_free(read_buf);
        return sl_fail(err, SL_ENOMEM, "out of memory for a connection");
    }
    *c = (struct sl_http_client){.base = base, .url = url, .events = events, .arg = arg, .fd = -1};
    c->read_buf = read_buf;
    c->line.max_bytes = MAX_LINE;
    evtimer_assign(&c->ev_failed, base, on_failed_start, c);
    *out = c;
    return 0;
}

void sl_http_client_destroy(struct sl_http_client *c)
{
    if (c == NULL)
        return;
    event_del(&c->ev_failed);
    disconnect(c);
    sl_buf_deinit(&c->out);
    sl_buf_deinit(&c->line);
    sl_free(c->read_buf);
    sl_free(c);
}

void sl_http_client_abort(struct sl_http_client *c)
{
    if (c->state == IDLE)
        return;
    c->state = IDLE;
    event_del(&c->ev_failed);
    disconnect(c);
}

void sl_http_client_send(struct sl_http_client *c, const char *path, const char *api_key,
                         const char *body, size_t n_body)
{
    const struct timeval now = {0, 0};
    SL_ASSERT(c->state == IDLE);
    sl_buf_clear(&c->out);
    sl_buf_clear(&c->line);
    sl_buf_printf(&c->out, "%s %s%s HTTP/1.1\r\nHost: %s\r\n", body != NULL ? "POST" : "GET",
                  c->url->prefix, path, c->url->host);
    if (api_key != NULL)
        sl_buf_printf(&c->out, "Authorization: Bearer %s\r\n", api_key);
    if (body != NULL) {
        sl_buf_printf(&c->out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", n_body);
        sl_buf_puts(&c->out, "\r\n");
        sl_buf_put(&c->out, body, n_body);
    } else {
        sl_buf_puts(&c->out, "\r\n");
    }
    c->out_sent = 0;
    c->state = STATUS_LINE;
    c->any_byte = false;
    bool ok = sl_buf_ok(&c->out) && (c->fd >= 0 || connect_now(c));
    if (ok && http_client_push(c))
        return;
    if (ok && c->reused) { /* closed meanwhile, noticed while sending */
        disconnect(c);
        c->out_sent = 0;
        if (connect_now(c) && http_client_push(c))
            return;
    }
    disconnect(c);
    if (event_add(&c->ev_failed, &now) != 0)
        http_client_finish(c, 0, "cannot connect");
}
