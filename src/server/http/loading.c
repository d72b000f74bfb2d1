/* SPDX-License-Identifier: MIT */
#include "server/http/loading.h"

#include "base/check.h"
#include "base/sys.h"
#include "server/http/listen.h"
#include "server/http/tls.h"
#include "server/server.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#define HEAD_BYTES 4096 /* of a request: its line and headers, as much as is looked at */
#define HEAD_NS    UINT64_C(5000000000)
#define READS      8 /* of one visitor in a row: TLS may hold more than poll knows of */
#define LINGER_NS  UINT64_C(1000000000) /* for the client to read the reply */

struct visitor {
    int fd;
    struct sl_tls_session *tls; /* or NULL */
    bool answered; /* what still comes is thrown away, so that the reply is not cut off */
    uint64_t deadline_ns;
    size_t n;
    char head[HEAD_BYTES];
};

struct sl_loading {
    struct sl_listeners listeners; /* a copy; not closed here */
    struct sl_tls *tls;            /* or NULL */
    int stop_fd;
    pthread_t thread;
    int n_visitors;
    struct visitor visitors[SL_LOADING_CONNS];
};

static void loading_answer(struct visitor *v)
{
    static const char why[] = "{\"error\":{\"message\":\"Loading model\",\"type\":"
                              "\"unavailable_error\",\"param\":null,\"code\":503}}";
    static const char alive[] = "ok\n";
    char reply[512];
    const char *target = memchr(v->head, ' ', v->n);
    bool is_head = v->n > 5 && memcmp(v->head, "HEAD ", 5) == 0;
    bool live = target != NULL && (size_t)(v->head + v->n - target) > 7 &&
                memcmp(target + 1, "/livez", 6) == 0 && strchr(" ?\r\n", target[7]) != NULL;
    const char *body = live ? alive : why;
    int n = snprintf(reply, sizeof reply,
                     "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
                     "%sConnection: close\r\n\r\n%s",
                     live ? "200 OK" : "503 Service Unavailable",
                     live ? "text/plain; charset=utf-8" : "application/json", strlen(body),
                     live ? "" : "Retry-After: 1\r\n", is_head ? "" : body);
    SL_ASSERT(n > 0 && (size_t)n < sizeof reply);
    /* An empty socket buffer takes all of it; a peer that is gone needs none. */
    if (v->tls != NULL) {
        (void)!sl_tls_write(v->tls, reply, (size_t)n);
        sl_tls_say_goodbye(v->tls);
    } else {
        (void)!send(v->fd, reply, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    (void)shutdown(v->fd, SHUT_WR);
    v->answered = true;
    v->deadline_ns = sl_now_ns() + LINGER_NS;
}

static ssize_t read_from(struct visitor *v, char *to, size_t room)
{
    return v->tls != NULL ? sl_tls_read(v->tls, to, room) : recv(v->fd, to, room, MSG_DONTWAIT);
}

/* False: it is over. */
static bool read_some(struct visitor *v)
{
    char unread[HEAD_BYTES];
    for (int i = 0; i < READS; i++) {
        char *to = v->answered ? unread : v->head + v->n;
        size_t room = v->answered ? sizeof unread : sizeof v->head - 1 - v->n;
        ssize_t n = read_from(v, to, room);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        if (n == 0)
            return false;
        if (v->answered)
            continue;
        v->n += (size_t)n;
        v->head[v->n] = '\0';
        if (v->n == sizeof v->head - 1 || memmem(v->head, v->n, "\r\n\r\n", 4) != NULL)
            loading_answer(v);
    }
    return true;
}

static short awaited(const struct visitor *v)
{
    return v->tls != NULL && sl_tls_wants_write(v->tls) ? POLLIN | POLLOUT : POLLIN;
}

static void loading_leave(struct sl_loading *l, int i)
{
    if (l->visitors[i].tls != NULL)
        sl_tls_end(l->visitors[i].tls);
    sl_sys->close(l->visitors[i].fd);
    l->visitors[i] = l->visitors[--l->n_visitors];
}

static void let_in(struct sl_loading *l, int listener)
{
    while (l->n_visitors < SL_LOADING_CONNS) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        struct sl_tls_session *tls = l->tls != NULL ? sl_tls_accept(l->tls, fd) : NULL;
        if (l->tls != NULL && tls == NULL) {
            sl_sys->close(fd);
            continue;
        }
        struct visitor *v = &l->visitors[l->n_visitors++];
        v->fd = fd;
        v->tls = tls;
        v->answered = false;
        v->n = 0;
        v->deadline_ns = sl_now_ns() + HEAD_NS;
    }
}

static void *main_of_thread(void *arg)
{
    struct sl_loading *l = arg;
    struct pollfd all[1 + SL_MAX_LISTENERS + SL_LOADING_CONNS];
    sigset_t pipe;
    sigemptyset(&pipe); /* OpenSSL writes to peers that may be gone */
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, NULL);
    for (;;) {
        int n = 0;
        all[n++] = (struct pollfd){.fd = l->stop_fd, .events = POLLIN};
        for (int i = 0; i < l->listeners.n; i++) /* those beyond the limit wait in the kernel */
            all[n++] =
                (struct pollfd){.fd = l->n_visitors < SL_LOADING_CONNS ? l->listeners.fds[i] : -1,
                                .events = POLLIN};
        for (int i = 0; i < l->n_visitors; i++)
            all[n++] = (struct pollfd){.fd = l->visitors[i].fd, .events = awaited(&l->visitors[i])};
        if (poll(all, (nfds_t)n, l->n_visitors > 0 ? 100 : -1) < 0 && errno != EINTR)
            break;
        if (all[0].revents != 0)
            break;
        uint64_t now = sl_now_ns();
        for (int i = l->n_visitors;
             i-- > 0;) { /* downwards: the last takes the place of a gone one */
            bool stays = all[1 + l->listeners.n + i].revents == 0 || read_some(&l->visitors[i]);
            if (!stays || now > l->visitors[i].deadline_ns)
                loading_leave(l, i);
        }
        for (int i = 0; i < l->listeners.n; i++)
            if (all[1 + i].revents != 0)
                let_in(l, l->listeners.fds[i]);
    }
    while (l->n_visitors > 0)
        loading_leave(l, l->n_visitors - 1);
    return NULL;
}

int sl_loading_start(const struct sl_listeners *listeners, const struct sl_server_config *cfg,
                     struct sl_loading **out, struct sl_error *err)
{
    struct sl_loading *l = sl_calloc(1, sizeof *l);
    if (l == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    l->listeners = *listeners;
    l->stop_fd = eventfd(0, EFD_CLOEXEC);
    int rc = l->stop_fd >= 0 ? 0 : sl_fail(err, SL_EIO, "eventfd: %s", strerror(errno));
    if (rc == 0 && cfg->ssl_certfile != NULL)
        rc = sl_tls_create(cfg->ssl_certfile, cfg->ssl_keyfile, &l->tls, err);
    if (rc == 0)
        rc = sl_thread_create(&l->thread, main_of_thread, l, "sl-loading", err);
    if (rc == 0) {
        *out = l;
        return 0;
    }
    if (l->stop_fd >= 0)
        sl_sys->close(l->stop_fd);
    sl_tls_destroy(l->tls);
    sl_free(l);
    return rc;
}

void sl_loading_stop(struct sl_loading *l)
{
    const uint64_t one = 1;
    if (l == NULL)
        return;
    (void)!sl_sys->write(l->stop_fd, &one, sizeof one);
    pthread_join(l->thread, NULL);
    sl_sys->close(l->stop_fd);
    sl_tls_destroy(l->tls);
    sl_free(l);
}
