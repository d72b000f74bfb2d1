/* SPDX-License-Identifier: MIT
 * hostile.h - the whole server in this process and a client that trusts it in nothing: every reply
 * is parsed strictly, every error object is checked, and after each case a good request on a new
 * connection must still be answered.
 *
 * The server's reads go through host_sys, which can hand a request over in two parts or in single
 * bytes: a cut request is then cut exactly there, with no need to wait between the parts.
 */
#ifndef SL_TESTS_SERVER_HOSTILE_H
#define SL_TESTS_SERVER_HOSTILE_H

#include "base/buf.h"
#include "base/check.h"
#include "base/fs.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/str.h"
#include "base/sys.h"
#include "server/loop.h"
#include "server/server.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#define HOST_WAIT_MS 60000 /* a reply that takes longer is a failure */
#define HOST_LINE    "Host: a\r\n"

/* ---- the server */

struct host_options {
    bool real_model; /* the bundled one, else counted tokens */
    int32_t max_model_len, header_timeout_ms, watchdog_s;
    const char *const *keys, *const *origins;
    int32_t n_keys, n_origins;
    bool files; /* it keeps files and runs batches */
    bool two;   /* models, named first and second */
};

struct host {
    struct sl_server_config cfg;
    struct sl_engine *eng;
    struct sl_server_model second;
    pthread_t thread;
    int rc, n_fds, port;
    char folder[200], uds[256], port_file[256], files[256];
    const char *key; /* the good request carries it */
    bool tcp;        /* connect over loopback instead of the UNIX socket */
    long n_cases;
};

/* What the next read of a connection gives: 0 all, -1 always one byte, else so many bytes once. */
static atomic_int host_cut;
static atomic_int host_dribble; /* replies leave in single bytes, every second write is refused */
static struct sl_sys host_sys;
static int n_hosts; /* that run; a second one must not touch what the first reads */

static inline ssize_t host_read(int fd, void *buf, size_t n)
{
    int cut = atomic_load(&host_cut);
    if (n != SL_READ_BUF_BYTES || cut == 0)
        return sl_sys_real.read(fd, buf, n);
    ssize_t got = sl_sys_real.read(fd, buf, cut < 0 ? 1 : (size_t)cut);
    if (cut > 0 && got > 0) /* not the end of an earlier connection */
        atomic_store(&host_cut, 0);
    return got;
}

static inline ssize_t host_write(int fd, const void *buf, size_t n)
{
    static _Thread_local bool again;
    if (!atomic_load(&host_dribble) || n <= 8)
        return sl_sys_real.write(fd, buf, n);
    again = !again;
    if (again) {
        errno = EAGAIN;
        return -1;
    }
    return sl_sys_real.write(fd, buf, 1);
}

static inline int host_count_fds(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    for (; d != NULL && readdir(d) != NULL; n++)
        ;
    if (d != NULL)
        closedir(d);
    return n;
}

static inline void *host_main(void *arg)
{
    struct host *h = arg;
    struct sl_error err = {0};
    h->rc = sl_server_run(&h->cfg, h->eng, &err);
    if (h->rc != 0)
        fprintf(stderr, "server: %s\n", err.msg);
    return NULL;
}

static inline void host_wait_for_port(struct host *h)
{
    for (int ms = 0; ms < HOST_WAIT_MS; ms++) {
        char *text;
        size_t n;
        uint64_t port;
        if (access(h->port_file, R_OK) == 0 &&
            sl_read_file(h->port_file, 64, &text, &n, NULL) == 0) {
            bool ok = n > 1 && sl_parse_u64(text, n - 1, &port);
            sl_free(text);
            if (ok) {
                h->port = (int)port;
                return;
            }
        }
        poll(NULL, 0, 1);
    }
    fail_msg("the server does not listen");
}

static inline void host_name_models(struct host *h)
{
    static const char *const first[] = {"first"}, *const second[] = {"second"};
    h->second.names = second;
    h->second.n_names = 1;
    h->cfg.served_names = first;
    h->cfg.n_served_names = 1;
    h->cfg.more = &h->second;
    h->cfg.n_more = 1;
}

static inline void host_start(struct host *h, const struct host_options *o)
{
    struct sl_engine_config engine = {.null_model = !o->real_model,
                                      .n_threads = o->real_model ? 1 : 0,
                                      .max_model_len = o->max_model_len,
                                      .max_num_seqs = 16,
                                      .max_num_batched_tokens = 512,
                                      .watchdog_s = o->watchdog_s};
    struct sl_error err;
    *h = (struct host){.n_fds = host_count_fds(), .key = o->n_keys > 0 ? o->keys[0] : NULL};
    if (n_hosts++ == 0) {
        host_sys = sl_sys_real;
        host_sys.read = host_read;
        host_sys.write = host_write;
        sl_sys = &host_sys;
        sl_log_set_level(SL_LOG_ERROR);
    }
    snprintf(h->folder, sizeof h->folder, "%s/sluice-test-XXXXXX", P_tmpdir);
    assert_non_null(mkdtemp(h->folder));
    snprintf(h->uds, sizeof h->uds, "%s/s", h->folder);
    snprintf(h->port_file, sizeof h->port_file, "%s/port", h->folder);
    if (sl_engine_create(&engine, &h->eng, &err) != 0)
        fail_msg("engine: %s", err.msg);
    if (o->two && sl_engine_create(&engine, &h->second.eng, &err) != 0)
        fail_msg("engine: %s", err.msg);
    sl_server_config_default(&h->cfg);
    if (o->two)
        host_name_models(h);
    h->cfg.port = 0;
    h->cfg.uds = h->uds;
    h->cfg.port_file = h->port_file;
    h->cfg.n_http_threads = 2;
    h->cfg.handle_signals = false;
    h->cfg.priority_scheduling = true; /* the field can be anything then */
    h->cfg.shutdown_timeout_ms = HOST_WAIT_MS;
    h->cfg.stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    h->cfg.api_keys = o->keys;
    h->cfg.n_api_keys = o->n_keys;
    h->cfg.n_allowed_origins = 0;
    if (o->n_origins > 0) {
        h->cfg.allowed_origins = o->origins;
        h->cfg.n_allowed_origins = o->n_origins;
    }
    snprintf(h->files, sizeof h->files, "%s/files", h->folder);
    h->cfg.file_storage = o->files ? h->files : NULL;
    if (o->header_timeout_ms > 0)
        h->cfg.header_timeout_ms = o->header_timeout_ms;
    assert_true(h->cfg.stop_fd >= 0);
    assert_int_equal(sl_thread_create(&h->thread, host_main, h, "server", NULL), 0);
    host_wait_for_port(h);
}

/* Whatever was sent, nothing may be left of it: no request, no page, no descriptor. */
static inline void host_stop(struct host *h)
{
    const uint64_t one = 1;
    struct sl_stats st;
    assert_int_equal(write(h->cfg.stop_fd, &one, sizeof one), sizeof one);
    pthread_join(h->thread, NULL);
    assert_int_equal(h->rc, 0);
    for (int ms = 0; ms < HOST_WAIT_MS; ms++) { /* cancelled requests end with the next step */
        sl_engine_stats(h->eng, &st);
        if (st.n_running + st.n_waiting == 0 && st.n_pages_free + st.n_pages_cached == st.n_pages)
            break;
        poll(NULL, 0, 1);
    }
    assert_int_equal(st.n_running + st.n_waiting, 0);
    assert_int_equal(st.n_pages_free + st.n_pages_cached, st.n_pages);
    assert_int_equal(st.step_mallocs, 0);
    assert_true(sl_engine_healthy(h->eng) || h->second.eng != NULL);
    sl_engine_destroy(h->eng);
    sl_engine_destroy(h->second.eng);
    close(h->cfg.stop_fd);
    unlink(h->port_file);
    assert_int_equal(sl_remove_tree(h->folder, NULL), 0);
    assert_true(host_count_fds() <= h->n_fds);
    if (--n_hosts == 0)
        sl_sys = &sl_sys_real;
}

/* The program's one server, and the teardown that ends it. */
static struct host host;

static inline int stop(void **state)
{
    (void)state;
    host_stop(&host);
    return 0;
}

/* ---- the client */

struct client {
    int fd;
    struct sl_buf in;
    size_t at; /* begin of the next reply in `in` */
    bool ended;
};

struct answer {
    int status;
    const char *head; /* header lines, each with CR LF */
    size_t n_head;
    struct sl_buf body;
    bool says_close;
};

static inline void client_open(struct client *c, const struct host *h)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_in in = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)h->port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    *c = (struct client){.fd = socket(h->tcp ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_true(c->fd >= 0);
    memcpy(un.sun_path, h->uds, strlen(h->uds) + 1);
    const struct sockaddr *addr = h->tcp ? (const void *)&in : (const void *)&un;
    if (connect(c->fd, addr, h->tcp ? sizeof in : sizeof un) != 0)
        fail_msg("connect: %s", strerror(errno));
}

static inline void client_close(struct client *c)
{
    close(c->fd);
    sl_buf_deinit(&c->in);
}

static inline void client_take(struct client *c)
{
    char part[16384];
    ssize_t n = recv(c->fd, part, sizeof part, MSG_DONTWAIT);
    if (n > 0)
        sl_buf_put(&c->in, part, (size_t)n);
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        c->ended = true;
    assert_true(sl_buf_ok(&c->in));
}

/* Reads while it writes, as a peer must that is sent replies meanwhile. False: nobody took it. */
static inline bool client_send(struct client *c, const char *data, size_t n)
{
    while (n > 0 && !c->ended) {
        struct pollfd p = {.fd = c->fd, .events = POLLIN | POLLOUT};
        if (poll(&p, 1, HOST_WAIT_MS) <= 0)
            fail_msg("the server does not read");
        if (p.revents & POLLOUT) {
            ssize_t put = send(c->fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (put < 0 && errno != EAGAIN && errno != EINTR)
                return false;
            data += put > 0 ? put : 0;
            n -= put > 0 ? (size_t)put : 0;
        }
        if (p.revents & (POLLIN | POLLHUP | POLLERR))
            client_take(c);
    }
    return n == 0;
}

/* Waits for more input. False: the server has ended the connection. */
static inline bool client_more(struct client *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    if (c->ended)
        return false;
    if (poll(&p, 1, HOST_WAIT_MS) <= 0)
        fail_msg("the server does not answer");
    client_take(c);
    return !c->ended;
}

static inline bool answer_header(const struct answer *a, const char *name, struct sl_buf *value)
{
    size_t n_name = strlen(name);
    const char *at = a->head, *end = a->head + a->n_head;
    while (at < end) {
        const char *cr = memmem(at, (size_t)(end - at), "\r\n", 2);
        if ((size_t)(cr - at) > n_name + 1 && strncasecmp(at, name, n_name) == 0 &&
            at[n_name] == ':') {
            if (value != NULL) {
                sl_buf_clear(value);
                sl_buf_put(value, at + n_name + 2, (size_t)(cr - at) - n_name - 2);
            }
            return true;
        }
        at = cr + 2;
    }
    return false;
}

/* No header but these may appear: one more would mean that a request wrote it. */
static inline void check_header_names(const struct answer *a)
{
    static const char *const known[] = {"Content-Type",
                                        "Content-Length",
                                        "Connection",
                                        "Transfer-Encoding",
                                        "Cache-Control",
                                        "X-Accel-Buffering",
                                        "Allow",
                                        "WWW-Authenticate",
                                        "Retry-After",
                                        "X-Request-Id",
                                        "X-Ignored-Fields",
                                        "Vary",
                                        "Access-Control-Allow-Origin",
                                        "Access-Control-Allow-Methods",
                                        "Access-Control-Allow-Headers",
                                        "Access-Control-Max-Age",
                                        "ETag", /* these of the page at "/" alone */
                                        "Content-Security-Policy",
                                        "X-Content-Type-Options",
                                        "Referrer-Policy",
                                        "Cross-Origin-Opener-Policy",
                                        "Cross-Origin-Resource-Policy"};
    const char *at = a->head, *end = a->head + a->n_head;
    while (at < end) {
        const char *cr = memmem(at, (size_t)(end - at), "\r\n", 2);
        bool found = false;
        for (size_t i = 0; i < SL_COUNT(known) && !found; i++) {
            size_t n = strlen(known[i]);
            found = (size_t)(cr - at) > n + 1 && memcmp(at, known[i], n) == 0 &&
                    memcmp(at + n, ": ", 2) == 0;
        }
        if (!found)
            fail_msg("a reply has the header line %.*s", (int)(cr - at), at);
        for (const char *p = at; p < cr; p++)
            assert_true((unsigned char)*p >= 0x20 && *p != 0x7F);
        at = cr + 2;
    }
}

/* OpenAI's error object, Anthropic's or Ollama's, whole and of the right kinds. */
static inline void check_error_body(const struct answer *a)
{
    json_error_t je;
    json_t *root = json_loadb(a->body.data, a->body.n_bytes, 0, &je);
    const json_t *error = json_object_get(root, "error"), *type = json_object_get(root, "type");
    const json_t *param = json_object_get(error, "param"), *code = json_object_get(error, "code");
    bool anthropic = json_is_string(type) && strcmp(json_string_value(type), "error") == 0;
    bool ollama = json_object_size(root) == 1 && json_string_length(error) > 0;
    if (!ollama && (json_object_size(root) != 1u + anthropic ||
                    json_object_size(error) != (anthropic ? 2 : 4) ||
                    !json_is_string(json_object_get(error, "message")) ||
                    json_string_length(json_object_get(error, "message")) == 0 ||
                    !json_is_string(json_object_get(error, "type")) ||
                    (!anthropic && !json_is_null(param) && !json_is_string(param)) ||
                    (!anthropic && !json_is_null(code) && !json_is_string(code))))
        fail_msg("not an error object: %.300s", a->body.data);
    json_decref(root);
}

/* Reads all chunks from `at` on; returns where the reply ends. */
static inline size_t client_chunk(struct client *c, size_t at, struct answer *a)
{
    for (uint64_t n = 1; n > 0;) {
        const char *cr;
        while ((cr = memmem(c->in.data + at, c->in.n_bytes - at, "\r\n", 2)) == NULL)
            assert_true(client_more(c));
        size_t n_digits = (size_t)(cr - c->in.data) - at;
        assert_true(sl_parse_hex_u64(c->in.data + at, n_digits, &n));
        while (c->in.n_bytes < at + n_digits + 2 + n + 2)
            assert_true(client_more(c));
        at += n_digits + 2;
        sl_buf_put(&a->body, c->in.data + at, (size_t)n);
        assert_memory_equal(c->in.data + at + n, "\r\n", 2);
        at += (size_t)n + 2;
    }
    return at;
}

/* A reply with neither length nor chunks ends with the connection. */
static inline void client_body(struct client *c, struct answer *a, size_t at)
{
    struct sl_buf value = {0};
    uint64_t n;
    if (answer_header(a, "Transfer-Encoding", &value)) {
        assert_string_equal(value.data, "chunked");
        assert_false(answer_header(a, "Content-Length", NULL));
        c->at = client_chunk(c, at, a);
    } else if (!answer_header(a, "Content-Length", &value)) {
        assert_true(a->says_close);
        while (client_more(c))
            ;
        sl_buf_put(&a->body, c->in.data + at, c->in.n_bytes - at);
        c->at = c->in.n_bytes;
    } else {
        assert_true(sl_parse_u64(value.data, value.n_bytes, &n));
        while (c->in.n_bytes < at + n)
            if (!client_more(c))
                fail_msg("a reply ends after %zu of %llu bytes", c->in.n_bytes - at,
                         (unsigned long long)n);
        sl_buf_put(&a->body, c->in.data + at, (size_t)n);
        c->at = at + (size_t)n;
    }
    sl_buf_deinit(&value);
}

/* The next reply; is_head: of a HEAD request. False: the connection ended before it. The head's
 * text lives until the next call, the body until answer_free. */
static inline bool client_answer(struct client *c, bool is_head, struct answer *a)
{
    const char *end;
    uint64_t status = 0;
    *a = (struct answer){0};
    while (c->in.n_bytes == c->at ||
           (end = memmem(c->in.data + c->at, c->in.n_bytes - c->at, "\r\n\r\n", 4)) == NULL) {
        if (!client_more(c)) {
            if (c->in.n_bytes > c->at)
                fail_msg("a reply is cut off: %.200s", c->in.data + c->at);
            return false;
        }
    }
    const char *line = c->in.data + c->at;
    if (memcmp(line, "HTTP/1.1 ", 9) != 0 || !sl_parse_u64(line + 9, 3, &status) || line[12] != ' ')
        fail_msg("not a status line: %.100s", line);
    a->status = (int)status;
    a->head = (const char *)memmem(line, (size_t)(end + 2 - line), "\r\n", 2) + 2;
    a->n_head = (size_t)(end + 2 - a->head);
    if (a->head > end)
        a->n_head = 0;
    c->at += (size_t)(end + 4 - line);
    check_header_names(a);
    struct sl_buf value = {0};
    a->says_close = answer_header(a, "Connection", &value) && strcmp(value.data, "close") == 0;
    sl_buf_deinit(&value);
    if (is_head || status < 200 || status == 204)
        return true;
    size_t head_at = (size_t)(a->head - c->in.data);
    client_body(c, a, c->at);
    a->head = c->in.data + head_at; /* reading may have moved it */
    if (status >= 400 && a->body.n_bytes > 0 && a->body.data[0] == '{')
        check_error_body(a);
    return true;
}

static inline void answer_free(struct answer *a)
{
    sl_buf_deinit(&a->body);
}

/* Sends one whole request with a JSON body on an open connection and reads the reply. */
static inline int client_post(struct client *c, const char *path, const char *key, const char *body,
                              size_t n_body, struct answer *a)
{
    char head[600];
    int n = snprintf(head, sizeof head,
                     "POST %s HTTP/1.1\r\n" HOST_LINE "%s%s%sContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n",
                     path, key != NULL ? "Authorization: Bearer " : "", key != NULL ? key : "",
                     key != NULL ? "\r\n" : "", n_body);
    assert_true(n > 0 && (size_t)n < sizeof head);
    bool sent = client_send(c, head, (size_t)n) && client_send(c, body, n_body);
    if (!client_answer(c, false, a))
        fail_msg("no reply to %.300s", body);
    assert_true(sent || a->says_close);
    return a->status;
}

/* The server is well: a completion on a new connection gives its one token. */
static inline void host_good(struct host *h)
{
    static const char body[] = "{\"prompt\":[5,6],\"max_tokens\":1,\"temperature\":0}";
    struct client c;
    struct answer a;
    client_open(&c, h);
    if (client_post(&c, "/v1/completions", h->key, body, sizeof body - 1, &a) != 200)
        fail_msg("a good request gets %d %s", a.status, a.body.data);
    json_t *root = json_loadb(a.body.data, a.body.n_bytes, 0, NULL);
    const json_t *usage = json_object_get(root, "usage");
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), 1);
    json_decref(root);
    answer_free(&a);
    client_close(&c);
}

/* ---- cases of raw bytes */

/* Bytes in quotes for a failure's text. */
static inline const char *host_show(const char *data, size_t n)
{
    static struct sl_buf b;
    sl_buf_clear(&b);
    for (size_t i = 0; i < SL_MIN(n, 300); i++) {
        unsigned char x = (unsigned char)data[i];
        if (x >= 0x20 && x < 0x7F)
            sl_buf_putc(&b, (char)x);
        else
            sl_buf_printf(&b, "\\x%02x", x);
    }
    return n > 0 && sl_buf_ok(&b) ? b.data : "";
}

/* Reads the replies that `want` counts and tells what came: their statuses, then what became of the
 * connection: "open" a further request on it is answered, "close" the server announced its end and
 * ended it, "wait" the server waits for more and sent nothing else. */
static inline void host_outcome(struct client *c, bool is_head, const char *want,
                                struct sl_buf *got)
{
    static const char more[] = "GET /version HTTP/1.1\r\n" HOST_LINE "\r\n";
    struct answer a = {0};
    bool said_close = false, here = true, first = is_head;
    sl_buf_clear(got);
    for (const char *w = want; here && !said_close && *w >= '0' && *w <= '9'; w += 4) {
        here = client_answer(c, first, &a);
        first = false;
        if (here) {
            said_close = a.says_close;
            sl_buf_printf(got, "%d ", a.status);
            answer_free(&a);
        }
    }
    const char *state = !here ? "ended" : said_close ? "close" : "wait";
    if (here && !said_close && !sl_ends_with(want, "wait")) {
        (void)client_send(c, more, sizeof more - 1);
        here = client_answer(c, false, &a);
        state = here && a.status == 200 && !a.says_close ? "open" : "spoilt";
        answer_free(&a);
    }
    if (!said_close)
        (void)shutdown(c->fd, SHUT_WR);
    while (client_answer(c, false, &a)) { /* nothing may follow */
        sl_buf_printf(got, "%d! ", a.status);
        answer_free(&a);
    }
    sl_buf_puts(got, state);
}

static inline void host_raw(struct host *h, const char *data, size_t n, const char *want)
{
    struct client c;
    struct sl_buf got = {0};
    bool is_head = n > 5 && memcmp(data, "HEAD ", 5) == 0;
    client_open(&c, h);
    (void)client_send(&c, data, n);
    host_outcome(&c, is_head, want, &got);
    client_close(&c);
    int cut = atomic_exchange(&host_cut, 0);
    if (strcmp(got.data, want) != 0)
        fail_msg("%s (%zu bytes, cut %d)\n  gives %s\n  not   %s", host_show(data, n), n, cut,
                 got.data, want);
    sl_buf_deinit(&got);
    host_good(h);
    h->n_cases++;
}

/* ---- cases of JSON bodies */

/* The text of a member of an error object; "" for null. */
static inline const char *error_member(const json_t *root, const char *name)
{
    const char *s = json_string_value(json_object_get(json_object_get(root, "error"), name));
    return s != NULL ? s : "";
}

/* Posts on an open connection and compares: param NULL = whatever, "" = none, else the field that
 * the error must name, or begin with when what follows is its inside; text: in the message. */
static inline void host_expect(struct host *h, struct client *c, const char *path, const char *body,
                               size_t n, int status, const char *param, const char *text)
{
    struct answer a;
    int got = client_post(c, path, h->key, body, n, &a);
    json_t *root = got < 400 ? NULL : json_loadb(a.body.data, a.body.n_bytes, 0, NULL);
    const char *blamed = error_member(root, "param"), *message = error_member(root, "message");
    size_t n_param = param != NULL ? strlen(param) : 0;
    bool same =
        param == NULL ||
        (strncmp(blamed, param, n_param) == 0 &&
         (blamed[n_param] == '\0' || (n_param > 0 && strchr(".[", blamed[n_param]) != NULL)));
    if (got != status || !same || (text != NULL && strstr(message, text) == NULL))
        fail_msg("%s %s (%zu bytes)\n  gives %d '%s' %s\n  not   %d '%s' %s", path,
                 host_show(body, n), n, got, blamed, message, status, param != NULL ? param : "*",
                 text != NULL ? text : "");
    json_decref(root);
    answer_free(&a);
    h->n_cases++;
}

/* The same on a connection of its own, and then a good request. */
static inline void host_json(struct host *h, const char *path, const char *body, size_t n,
                             int status, const char *param, const char *text)
{
    struct client c;
    client_open(&c, h);
    host_expect(h, &c, path, body, n, status, param, text);
    client_close(&c);
    host_good(h);
}

#endif
