/* SPDX-License-Identifier: MIT
 *
 * A connection moves between three situations: waiting for a request (parser NULL or reading),
 * busy (a handler or a generation owns the reply), and lingering (the reply is out, the write side
 * is shut, and what the client still sends is thrown away so that the reply is not lost to a
 * reset). Its one timer is armed lazily: deadlines move with every request, the timer only when a
 * deadline comes before the moment it is already set to.
 */
#include "server/conn.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sys.h"
#include "server/api/api_files.h"
#include "server/api/call.h"
#include "server/api/pull.h"
#include "server/api/task.h"
#include "server/api/tracing.h"
#include "server/http/access_log.h"
#include "server/http/keys.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "server/http/tls.h"
#include "server/page/webui.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define MAX_PENDING      (64u << 10) /* pipelined bytes before reading stops */
#define MAX_SKIPPED_BODY (1u << 20)  /* a refused body beyond this costs the connection */
#define LINGER_NS        2000000000u
#define LINGER_BYTES     (4u << 20)
#define FLUSH_ROUNDS     4
#define PROBE_NS         50000000u   /* between looks for the end of a client not read from */
#define BODY_NS_PER_BYTE 61035u      /* a body's least speed once it is slow: 16 KB a second */
#define SMALL_BODY       (16u << 10) /* neither counted nor refused when memory is short */
#define MS               1000000u
#define KEEPALIVE_S      20 /* between probes of a silent connection */

static void conn_on_read(evutil_socket_t fd, short what, void *arg);
static void conn_on_write(evutil_socket_t fd, short what, void *arg);
static void conn_on_timer(evutil_socket_t fd, short what, void *arg);

static uint64_t conn_after_ms(const struct sl_conn *c, int32_t ms)
{
    return ms > 0 ? c->loop->now_ns + (uint64_t)ms * MS : 0;
}

/* While reading is paused the timer looks for the peer's end. An event cannot: libevent reports a
 * reset as input and output only, so that waiting for EV_CLOSED alone would spin and never hear it.
 */
static void pause_reading(struct sl_conn *c)
{
    event_del(&c->ev_read);
    c->read_paused = true;
    c->probe_deadline_ns = c->loop->now_ns + PROBE_NS;
}

static void resume_reading(struct sl_conn *c)
{
    if (event_add(&c->ev_read, NULL) != 0)
        c->dead = true;
    c->read_paused = false;
    c->probe_deadline_ns = 0;
}

static bool peer_is_gone(const struct sl_conn *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0;
}

bool sl_conn_over_memory(struct sl_conn *c)
{
    _Atomic uint64_t *total = &c->loop->server->held_bytes;
    uint64_t held = sl_conn_unsent(c) + c->pending.n_bytes;
    if (c->parser != NULL)
        held += c->parser->head.n_bytes + c->parser->body.n_bytes;
    if (c->task != NULL)
        held += c->task_bytes;
    if (c->call != NULL)
        held += sl_call_held(c->call);
    if (held < SMALL_BODY)
        held = 0; /* the usual case costs no atomic operation */
    if (held != c->held_bytes)
        atomic_fetch_add_explicit(total, held - c->held_bytes, memory_order_relaxed);
    c->held_bytes = held;
    return held > 0 &&
           atomic_load_explicit(total, memory_order_relaxed) > c->loop->server->cfg->max_held_bytes;
}

/* Fails without harm on UNIX sockets. A peer that vanished without a word is found by the kernel:
 * by what it does not acknowledge, or by probes when nothing is sent. What it does not read waits
 * here, where it is bounded, and not in the kernel. */
static void conn_set_options(const struct sl_conn *c)
{
    const struct {
        int level, name, value;
    } options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},
        {IPPROTO_TCP, TCP_NOTSENT_LOWAT, SL_OUT_HIGH},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, c->loop->server->cfg->write_timeout_ms},
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_S},
        {IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_S},
    };
    for (size_t i = 0; i < SL_COUNT(options); i++)
        (void)setsockopt(c->fd, options[i].level, options[i].name, &options[i].value,
                         sizeof options[i].value);
}

static void say_too_many(struct sl_conn *c)
{
    sl_buf_puts(&c->out, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n"
                         "Connection: close\r\nRetry-After: 1\r\n\r\n");
    c->close_after = true;
}

void sl_conn_create(struct sl_loop *loop, int fd, enum sl_conn_kind kind)
{
    struct sl_conn *c = sl_calloc(1, sizeof *c);
    if (c == NULL) {
        sl_loop_count(loop, -1, kind == SL_CONN_BACKGROUND);
        sl_sys->close(fd);
        return;
    }
    c->loop = loop;
    c->fd = fd;
    c->file = -1;
    c->background = kind == SL_CONN_BACKGROUND;
    conn_set_options(c);
    event_assign(&c->ev_read, loop->base, fd, EV_READ | EV_PERSIST, conn_on_read, c);
    event_assign(&c->ev_write, loop->base, fd, EV_WRITE, conn_on_write, c);
    evtimer_assign(&c->ev_timer, loop->base, conn_on_timer, c);
    c->next = loop->conns;
    if (c->next != NULL)
        c->next->prev = c;
    loop->conns = c;
    atomic_fetch_add_explicit(&loop->stats.connections, 1, memory_order_relaxed);
    c->read_deadline_ns = conn_after_ms(c, loop->server->cfg->idle_timeout_ms);
    if (loop->server->tls != NULL &&
        !c->background) { /* the handshake has the time of a request's headers */
        c->tls = sl_tls_accept(loop->server->tls, fd);
        c->dead =
            c->tls == NULL || kind == SL_CONN_REFUSED; /* nothing can be said before it is over */
        c->read_deadline_ns = conn_after_ms(c, loop->server->cfg->header_timeout_ms);
    } else if (kind == SL_CONN_REFUSED) {
        say_too_many(c);
    }
    if (event_add(&c->ev_read, NULL) != 0)
        c->dead = true;
    sl_loop_mark(loop, c);
}

/* Counts, logs and traces the current request; status 499 = the client went away. */
static void account(struct sl_conn *c, int status)
{
    struct sl_loop *loop = c->loop;
    enum sl_http_method method = c->parser != NULL ? c->parser->method : SL_HTTP_OTHER;
    uint64_t duration_ns = sl_now_ns() - c->t_start_ns;
    uint64_t reply_bytes = c->reply_bytes + sl_conn_unsent(c);
    sl_http_stats_request(&loop->stats, sl_route_idx(c->route), method, status, duration_ns,
                          c->request_bytes, reply_bytes);
    if (c->key >= 0 && loop->server->cfg->key_rules != NULL)
        atomic_fetch_add(&loop->server->cfg->key_rules[c->key].requests[sl_status_class(status)],
                         1);
    if (loop->server->cfg->access_log)
        sl_access_log(c->parser, status, duration_ns, reply_bytes);
    sl_tracing_put(c, status);
}

void sl_conn_destroy(struct sl_conn *c)
{
    struct sl_loop *loop = c->loop;
    if (c->busy) {
        atomic_fetch_add_explicit(&loop->stats.disconnects, 1, memory_order_relaxed);
        account(c, 499);
    }
    if (c->call != NULL)
        sl_call_destroy(c->call);
    if (c->task != NULL)
        sl_task_abandon(c->task);
    if (c->pulls)
        sl_pull_leave(c);
    if (c->parser != NULL)
        sl_loop_put_parser(loop, c->parser);
    if (c->file >= 0)
        sl_sys->close(c->file);
    event_del(&c->ev_read);
    event_del(&c->ev_write);
    event_del(&c->ev_timer);
    if (c->tls != NULL)
        sl_tls_end(c->tls);
    sl_sys->close(c->fd);
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        loop->conns = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    atomic_fetch_sub_explicit(&loop->server->held_bytes, c->held_bytes, memory_order_relaxed);
    sl_loop_count(loop, -1, c->background);
    sl_buf_deinit(&c->pending);
    sl_buf_deinit(&c->out);
    sl_free(c->ignored);
    sl_free(c);
}

/* Without memory the header is missing, which harms nobody. */
void sl_conn_set_ignored(struct sl_conn *c, const char *names)
{
    size_t n = strlen(names);
    sl_free(c->ignored);
    c->ignored = n > 0 ? sl_malloc(n + 1) : NULL;
    if (c->ignored != NULL)
        memcpy(c->ignored, names, n + 1);
}

size_t sl_conn_unsent(const struct sl_conn *c)
{
    return c->out.n_bytes - c->out_sent;
}

/* ---- requests */

/* May this request be served? Asked when its headers are complete and, to say why not, once more
 * after its body was skipped. */
static int check_head(const struct sl_conn *c, struct sl_refusal *r)
{
    const struct sl_http_parser *p = c->parser;
    const struct sl_server_config *cfg = c->loop->server->cfg;
    char allow[64];
    if (sl_reply_is_preflight(c))
        return 0;
    if (c->route == NULL)
        return sl_refuse(r, SL_ENOTFOUND, NULL, "no such path: %.*s", (int)SL_MIN(p->path.n, 80),
                         p->path.p);
    if (c->route->auth != SL_AUTH_OPEN && c->key < 0) {
        r->code = "invalid_api_key";
        return sl_refuse(r, SL_EAUTH, NULL, "missing or wrong API key");
    }
    if (!(c->route->methods & 1u << p->method)) {
        sl_route_allow(c->route, allow, sizeof allow);
        return sl_refuse(r, SL_EMETHOD, NULL, "this path accepts only %s", allow);
    }
    for (size_t i = 0; i < p->n_headers; i++) { /* each of them: codings add up */
        if (sl_str_equals_nocase(p->headers[i].name, "content-encoding") &&
            !sl_str_equals_nocase(p->headers[i].value, "identity"))
            return sl_refuse(r, SL_EUNSUPPORTED, NULL,
                             "not supported: Content-Encoding of a request");
    }
    if (!p->chunked && p->content_length > p->max_body_bytes)
        return sl_refuse(r, SL_ETOOBIG, NULL, "body is larger than %llu bytes",
                         (unsigned long long)p->max_body_bytes);
    if (c->route->starts_work && atomic_load(&c->loop->server->drain) != SL_SERVING)
        return sl_refuse(r, SL_ESHUTDOWN, NULL, "the server is shutting down");
    if (c->route->starts_work && cfg->key_rules != NULL && !cfg->key_rules[c->key].generate) {
        r->code = "insufficient_scope";
        return sl_refuse(r, SL_EAUTH, NULL, "this API key lacks the scope generate");
    }
    if (c->over_rate) {
        r->code = "rate_limit_exceeded";
        return sl_refuse(r, SL_EBUSY, NULL, "more than %d requests per minute with this API key",
                         cfg->key_rules[c->key].per_minute);
    }
    if (c->was_full) {
        r->code = "rate_limit_exceeded";
        return sl_refuse(r, SL_EBUSY, NULL, "too many requests are waiting already");
    }
    return 0;
}

static void head_done(struct sl_conn *c)
{
    struct sl_http_parser *p = c->parser;
    struct sl_refusal r = {0};
    const struct sl_server_config *cfg = c->loop->server->cfg;
    c->route = sl_route_find(p->path);
    if (c->route != NULL && (sl_webui_hides(cfg, c->route) || sl_sleep_hides(cfg, c->route)))
        c->route = NULL;
    c->key = c->route != NULL ? sl_route_key(cfg, p) : -1;
    p->max_body_bytes = c->loop->server->files != NULL && sl_api_files_takes(c->route)
                            ? SL_MAX_UPLOAD + SL_MAX_HTTP_HEADER
                            : cfg->max_body_bytes;
    /* Before its body: under load a refusal must cost nearly nothing. */
    c->was_full = c->route != NULL && c->route->starts_work && sl_served_all_full(c->loop->server);
    c->over_rate = c->route != NULL && c->route->starts_work && !c->was_full && c->key >= 0 &&
                   !c->background && cfg->key_rules != NULL && cfg->key_rules[c->key].generate &&
                   !sl_key_take(&cfg->key_rules[c->key], c->loop->now_ns);
    bool has_body = p->chunked || p->content_length > 0;
    if (check_head(c, &r) != 0) {
        if (has_body &&
            (p->expect_continue || p->chunked || p->content_length > MAX_SKIPPED_BODY)) {
            c->busy = true;
            c->close_after = true;
            sl_reply_refusal(c, &r);
            return;
        }
        c->refused = true;
    } else if (p->expect_continue && has_body) {
        sl_buf_puts(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
        sl_loop_mark(c->loop, c);
    }
    c->read_deadline_ns = conn_after_ms(c, c->loop->server->cfg->body_timeout_ms);
    c->body_deadline_ns = c->read_deadline_ns;
    sl_http_parser_body(p, c->refused || p->method != SL_HTTP_POST); /* others have no use for it */
}

static void request_done(struct sl_conn *c)
{
    struct sl_refusal r = {0};
    c->busy = true;
    c->read_deadline_ns = 0;
    if (c->refused) {
        int rc = check_head(c, &r);
        SL_ASSERT(rc != 0); /* nothing that refuses a request can end meanwhile */
        sl_reply_refusal(c, &r);
    } else if (sl_reply_is_preflight(c)) {
        sl_reply_preflight(c);
    } else {
        c->route->handle(c);
    }
    if (c->parser != NULL && c->parser->body.n_bytes >= SMALL_BODY)
        sl_buf_deinit(&c->parser->body); /* a generation runs, which has all it needs */
}

/* What all connections hold together has a bound; beyond it large requests wait outside. Counted
 * while they come, so that a length that was only announced blocks nobody. */
static void check_memory(struct sl_conn *c)
{
    struct sl_refusal r = {0};
    if (!sl_conn_over_memory(c))
        return;
    c->busy = true;
    c->close_after = true;
    (void)sl_refuse(&r, SL_ENOMEM, NULL, "too many large requests at once");
    sl_reply_refusal(c, &r);
}

static void request_bad(struct sl_conn *c)
{
    struct sl_refusal r = {0};
    int status = c->parser->status;
    c->busy = true;
    c->close_after = true;
    (void)sl_refuse(&r, SL_EFORMAT, NULL, "malformed request: %s", c->parser->reason);
    sl_reply_error(c, &r, status);
}

static void start_request(struct sl_conn *c)
{
    const struct sl_server_config *cfg = c->loop->server->cfg;
    c->parser = sl_loop_parser(c->loop);
    if (c->parser == NULL) {
        c->dead = true;
        return;
    }
    c->t_start_ns = c->loop->now_ns;
    c->read_deadline_ns = conn_after_ms(c, cfg->header_timeout_ms);
    c->request_bytes = 0;
    c->reply_bytes = 0 - (uint64_t)sl_conn_unsent(c); /* what is unsent is of earlier replies */
    c->route = NULL;
    c->refused = c->was_full = c->over_rate = false;
    sl_conn_set_ignored(c, "");
}

static void keep_rest(struct sl_conn *c, const char *data, size_t n)
{
    if (c->close_after || c->dead)
        return;
    sl_buf_put(&c->pending, data, n);
    if (!sl_buf_ok(&c->pending))
        c->dead = true;
    else if (c->pending.n_bytes >= MAX_PENDING && !c->read_paused)
        pause_reading(c);
}

/* Some of the body came: the silence begins anew, but single bytes do not keep a connection for
 * ever. */
static void body_moved(struct sl_conn *c, size_t n_bytes)
{
    uint64_t silence_ns = conn_after_ms(c, c->loop->server->cfg->body_timeout_ms);
    c->body_deadline_ns += n_bytes * BODY_NS_PER_BYTE;
    c->read_deadline_ns = SL_MIN(silence_ns, c->body_deadline_ns);
}

static void conn_consume(struct sl_conn *c, const char *data, size_t n)
{
    while (n > 0 && !c->busy && !c->dead && !c->close_after && sl_conn_unsent(c) < SL_OUT_HIGH) {
        if (c->parser == NULL)
            start_request(c);
        if (c->dead)
            break;
        struct sl_http_parser *p = c->parser;
        size_t took = sl_http_parser_feed(p, data, n);
        data += took;
        n -= took;
        c->request_bytes += took;
        if (p->state == SL_HTTP_BODY_PART)
            body_moved(c, took);
        if (p->state == SL_HTTP_HEAD_DONE)
            head_done(c);
        if (c->parser == p && p->head.n_bytes + p->body.n_bytes >= SMALL_BODY)
            check_memory(c);
        if (c->parser != p)
            continue; /* refused before its end: the reply is complete */
        if (p->state == SL_HTTP_COMPLETE)
            request_done(c);
        else if (p->state == SL_HTTP_BAD)
            request_bad(c);
    }
    if (n > 0)
        keep_rest(c, data, n);
}

static void consume_pending(struct sl_conn *c)
{
    struct sl_buf held = c->pending;
    c->pending = (struct sl_buf){0};
    conn_consume(c, held.data, held.n_bytes);
    sl_buf_deinit(&held);
    if (c->read_paused && c->pending.n_bytes < MAX_PENDING && !c->dead)
        resume_reading(c);
}

/* ---- replies */

/* The reply is complete in c->out. */
void sl_conn_reply_done(struct sl_conn *c)
{
    struct sl_loop *loop = c->loop;
    account(c, c->status);
    if (c->parser == NULL || !c->parser->keep_alive ||
        atomic_load(&loop->server->drain) != SL_SERVING)
        c->close_after = true;
    if (c->parser != NULL)
        sl_loop_put_parser(loop, c->parser);
    c->parser = NULL;
    c->busy = c->streaming = c->refused = c->was_full = c->over_rate = false;
    c->ping_deadline_ns = c->call_deadline_ns = 0;
    c->read_deadline_ns = conn_after_ms(c, loop->server->cfg->idle_timeout_ms);
    sl_loop_mark(loop, c);
}

struct sl_buf *sl_conn_stream_buf(struct sl_conn *c)
{
    if (!c->chunk_open && !c->parser->http_1_0) {
        c->chunk_open = true;
        c->chunk_at = c->out.n_bytes;
        sl_buf_puts(&c->out, "00000000\r\n"); /* the length is filled in by close_chunk */
    }
    sl_loop_mark(c->loop, c);
    return &c->out;
}

static void close_chunk(struct sl_conn *c)
{
    static const char hex[] = "0123456789abcdef";
    if (!c->chunk_open || !sl_buf_ok(&c->out))
        return;
    size_t n = c->out.n_bytes - c->chunk_at - 10;
    c->chunk_open = false;
    if (n == 0) {
        c->out.n_bytes = c->chunk_at; /* an empty chunk would end the reply */
        return;
    }
    for (int i = 0; i < 8; i++)
        c->out.data[c->chunk_at + 7 - (size_t)i] = hex[n >> (4 * i) & 15];
    sl_buf_puts(&c->out, "\r\n");
}

void sl_conn_stream_end(struct sl_conn *c)
{
    close_chunk(c);
    if (!c->parser->http_1_0)
        sl_buf_puts(&c->out, "0\r\n\r\n");
    sl_conn_reply_done(c);
}

/* ---- files */

/* More of the file: pages that were just written, or come from a local disk. */
static void read_file(struct sl_conn *c)
{
    size_t want = (size_t)SL_MIN(c->file_bytes - c->file_at, (uint64_t)SL_OUT_HIGH);
    if (sl_buf_reserve(&c->out, want)) {
        ssize_t n = sl_sys->pread(c->file, c->out.data + c->out.n_bytes, want, (int64_t)c->file_at);
        c->dead |= n <= 0; /* it became shorter: only the connection's end can say so */
        c->out.n_bytes += n > 0 ? (size_t)n : 0;
        c->file_at += n > 0 ? (uint64_t)n : 0;
    }
    if (c->dead || c->file_at < c->file_bytes)
        return;
    sl_sys->close(c->file);
    c->file = -1;
    sl_conn_reply_done(c);
}

void sl_conn_send_file(struct sl_conn *c, int fd, uint64_t n_bytes)
{
    SL_ASSERT(c->file < 0 && fd >= 0);
    c->file = fd;
    c->file_at = 0;
    c->file_bytes = n_bytes;
    if (n_bytes > 0) {
        read_file(c);
    } else {
        sl_sys->close(fd);
        c->file = -1;
        sl_conn_reply_done(c);
    }
    sl_loop_mark(c->loop, c);
}

/* ---- writing */

static ssize_t conn_put_bytes(struct sl_conn *c)
{
    const char *data = c->out.data + c->out_sent;
    return c->tls != NULL ? sl_tls_write(c->tls, data, sl_conn_unsent(c))
                          : sl_sys->write(c->fd, data, sl_conn_unsent(c));
}

static bool conn_write_out(struct sl_conn *c)
{
    uint64_t now = c->loop->now_ns;
    close_chunk(c);
    if (!sl_buf_ok(&c->out))
        return false;
    while (sl_conn_unsent(c) > 0) {
        ssize_t n = conn_put_bytes(c);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n <= 0)
            return false;
        c->out_sent += (size_t)n;
        c->reply_bytes += (uint64_t)n;
        c->taken_bytes += (size_t)n;
        if (c->ping_deadline_ns != 0)
            c->ping_deadline_ns = conn_after_ms(c, c->loop->server->cfg->sse_ping_ms);
    }
    if (sl_conn_unsent(c) == 0) {
        if (c->out_sent > 0 && c->parser == NULL) /* idle begins now, not when the reply began */
            c->read_deadline_ns = conn_after_ms(c, c->loop->server->cfg->idle_timeout_ms);
        c->out_sent = 0;
        if (c->out.cap_bytes > SL_OUT_LOW || (!c->busy && c->out.cap_bytes > 4096))
            sl_buf_deinit(&c->out);
        else
            sl_buf_clear(&c->out);
        c->write_deadline_ns = 0;
        return true;
    }
    size_t left = sl_conn_unsent(c);
    if (c->out_sent >= SL_MAX(SL_OUT_LOW, left)) { /* so a byte moves once on average */
        memmove(c->out.data, c->out.data + c->out_sent, left);
        c->out.n_bytes = left;
        c->out_sent = 0;
    }
    if (c->write_deadline_ns == 0 || c->taken_bytes >= SL_OUT_LOW) {
        c->write_deadline_ns =
            SL_MAX(now, 1) + (uint64_t)c->loop->server->cfg->write_timeout_ms * MS;
        c->taken_bytes = 0;
    }
    return event_pending(&c->ev_write, EV_WRITE, NULL) || event_add(&c->ev_write, NULL) == 0;
}

/* Is it the client's turn to send? Not before it took what it was sent. */
static bool is_waiting(const struct sl_conn *c)
{
    return !c->busy && !c->lingering && sl_conn_unsent(c) == 0;
}

static void arm_timer(struct sl_conn *c)
{
    const uint64_t deadlines[] = {is_waiting(c) ? c->read_deadline_ns : 0,
                                  c->write_deadline_ns,
                                  c->ping_deadline_ns,
                                  c->call_deadline_ns,
                                  c->linger_deadline_ns,
                                  c->probe_deadline_ns};
    uint64_t first = UINT64_MAX, now = c->loop->now_ns;
    for (size_t i = 0; i < SL_COUNT(deadlines); i++) {
        if (deadlines[i] != 0)
            first = SL_MIN(first, deadlines[i]);
    }
    if (first == UINT64_MAX || (c->armed_ns != 0 && c->armed_ns <= first))
        return;
    uint64_t wait_us = first > now ? (first - now) / 1000 + 1000 : 1;
    struct timeval tv = {(time_t)(wait_us / 1000000), (suseconds_t)(wait_us % 1000000)};
    c->armed_ns = first;
    if (event_add(&c->ev_timer, &tv) != 0)
        c->dead = true;
}

/* Everything is sent and no more is wanted: shut our side and wait for the peer's end. */
static bool begin_linger(struct sl_conn *c)
{
    if (c->tls != NULL && !c->peer_closed)
        sl_tls_say_goodbye(c->tls);
    if (c->peer_closed || shutdown(c->fd, SHUT_WR) != 0)
        return false;
    c->lingering = true;
    c->linger_deadline_ns = c->loop->now_ns + LINGER_NS;
    c->read_deadline_ns = 0;
    if (c->read_paused)
        resume_reading(c);
    return true;
}

bool sl_conn_flush(struct sl_conn *c)
{
    for (int round = 0;; round++) {
        if (c->dead || !conn_write_out(c))
            return false;
        size_t unsent = sl_conn_unsent(c);
        if (c->call != NULL && unsent < SL_OUT_LOW)
            sl_call_resume(c->call);
        if (c->file >= 0 && unsent < SL_OUT_LOW)
            read_file(c);
        if (!c->busy && c->pending.n_bytes > 0 && !c->close_after && unsent < SL_OUT_HIGH)
            consume_pending(c);
        if (c->dead)
            return false;
        if (sl_conn_unsent(c) == unsent)
            break;
        if (round == FLUSH_ROUNDS) { /* let others have their turn */
            event_active(&c->ev_write, EV_WRITE, 0);
            break;
        }
    }
    if (c->close_after && !c->busy && !c->lingering && sl_conn_unsent(c) == 0 && !begin_linger(c))
        return false;
    (void)sl_conn_over_memory(c); /* what is decided already leaves in any case */
    arm_timer(c);
    return !c->dead;
}

/* ---- events */

static void peer_ended(struct sl_conn *c)
{
    c->peer_closed = true;
    c->probe_deadline_ns = 0;
    if (c->busy || sl_conn_unsent(c) == 0) {
        c->dead = true; /* nobody reads the rest of a generation */
        return;
    }
    c->close_after = true;
    event_del(&c->ev_read);
}

/* A record at a time: what is left of more is still in the socket, which stays readable. */
static ssize_t get_bytes(struct sl_conn *c)
{
    char *buf = c->loop->read_buf;
    ssize_t n = c->tls != NULL ? sl_tls_read(c->tls, buf, SL_READ_BUF_BYTES)
                               : sl_sys->read(c->fd, buf, SL_READ_BUF_BYTES);
    if (c->tls != NULL && n < 0 && sl_tls_wants_write(c->tls) && event_add(&c->ev_write, NULL) != 0)
        errno = ENOMEM;
    return n;
}

static void conn_on_read(evutil_socket_t fd, short what, void *arg)
{
    struct sl_conn *c = arg;
    struct sl_loop *loop = c->loop;
    (void)fd;
    (void)what;
    sl_loop_enter(loop);
    sl_loop_mark(loop, c);
    ssize_t n = get_bytes(c);
    if (n == 0) {
        peer_ended(c);
    } else if (n < 0) {
        c->dead = errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR;
    } else if (c->lingering) {
        c->linger_bytes += (size_t)n;
        c->dead = c->linger_bytes > LINGER_BYTES;
    } else if (c->busy || c->pending.n_bytes > 0) {
        keep_rest(c, loop->read_buf, (size_t)n);
    } else {
        conn_consume(c, loop->read_buf, (size_t)n);
    }
    sl_loop_flush(loop);
}

static void conn_on_write(evutil_socket_t fd, short what, void *arg)
{
    struct sl_conn *c = arg;
    if (c->tls != NULL && sl_tls_wants_write(c->tls)) { /* a handshake's answer found no room */
        conn_on_read(fd, what, arg);
        return;
    }
    sl_loop_enter(c->loop);
    sl_loop_mark(c->loop, c);
    sl_loop_flush(c->loop);
}

static bool passed(const struct sl_conn *c, uint64_t deadline_ns)
{
    return deadline_ns != 0 && c->loop->now_ns >= deadline_ns;
}

static void read_timed_out(struct sl_conn *c)
{
    struct sl_refusal r = {0};
    if (c->parser == NULL || !sl_http_parser_started(c->parser)) {
        c->dead = true;
        return;
    }
    c->busy = true;
    c->close_after = true;
    (void)sl_refuse(&r, SL_ETIMEOUT, NULL, "the request did not arrive in time");
    sl_reply_refusal(c, &r);
}

static void conn_on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct sl_conn *c = arg;
    struct sl_loop *loop = c->loop;
    (void)fd;
    (void)what;
    sl_loop_enter(loop);
    sl_loop_mark(loop, c);
    c->armed_ns = 0;
    if (passed(c, c->linger_deadline_ns) || passed(c, c->write_deadline_ns))
        c->dead = true;
    else if (is_waiting(c) && passed(c, c->read_deadline_ns))
        read_timed_out(c);
    if (passed(c, c->probe_deadline_ns)) {
        c->probe_deadline_ns = loop->now_ns + PROBE_NS;
        if (peer_is_gone(c))
            peer_ended(c);
    }
    if (c->call != NULL && passed(c, c->call_deadline_ns)) {
        c->call_deadline_ns = 0;
        sl_call_abort(c->call);
    }
    if (c->call != NULL && passed(c, c->ping_deadline_ns)) {
        c->ping_deadline_ns = conn_after_ms(c, loop->server->cfg->sse_ping_ms);
        sl_call_ping(c->call);
    }
    sl_loop_flush(loop);
}

void sl_conn_begin_drain(struct sl_conn *c)
{
    bool between = c->parser == NULL || !sl_http_parser_started(c->parser);
    if (!c->busy && between && sl_conn_unsent(c) == 0 && c->pending.n_bytes == 0) {
        c->dead = true;
        sl_loop_mark(c->loop, c);
    }
}
