/* SPDX-License-Identifier: MIT */
#include "tier/wire.h"

#include "base/check.h"
#include "base/sys.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int await(const struct sl_wire *w, short events, uint64_t deadline, struct sl_error *err)
{
    SL_ASSERT(w->fd >= 0);
    for (;;) {
        const uint64_t now = sl_now_ns();
        if (now >= deadline)
            return sl_fail(err, SL_ETIMEOUT, "no answer in time");
        struct pollfd p = {.fd = w->fd, .events = events};
        const uint64_t ms = SL_MIN((deadline - now + 999999) / 1000000, 60000);
        const int n = poll(&p, 1, (int)ms);
        if (n > 0)
            return 0; /* an error shows in the call that follows */
        if (n < 0 && errno != EINTR)
            return sl_fail(err, SL_EIO, "poll: %s", strerror(errno));
    }
}

static int dial(struct sl_wire *w, const struct addrinfo *a, uint64_t deadline,
                struct sl_error *err)
{
    const int one = 1;
    int why = 0;
    socklen_t n = sizeof why;
    w->fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (w->fd < 0)
        return sl_fail(err, SL_EIO, "socket: %s", strerror(errno));
    (void)setsockopt(w->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(w->fd, a->ai_addr, a->ai_addrlen) != 0) {
        if (errno != EINPROGRESS)
            return sl_fail(err, SL_EIO, "cannot connect: %s", strerror(errno));
        int rc = await(w, POLLOUT, deadline, err);
        if (rc != 0)
            return rc;
    }
    if (getsockopt(w->fd, SOL_SOCKET, SO_ERROR, &why, &n) != 0 || why != 0)
        return sl_fail(err, SL_EIO, "cannot connect: %s", strerror(why));
    return 0;
}

int sl_wire_open(struct sl_wire *w, const char *host, const char *port, uint64_t deadline,
                 struct sl_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *all = NULL;
    SL_ASSERT(w->fd < 0);
    w->at = w->n = 0;
    int rc = getaddrinfo(host, port, &hints, &all);
    if (rc != 0)
        return sl_fail(err, SL_EIO, "its name cannot be resolved: %s", gai_strerror(rc));
    rc = SL_EIO;
    for (const struct addrinfo *a = all; a != NULL && rc != 0; a = a->ai_next) {
        rc = dial(w, a, deadline, err);
        if (rc != 0)
            sl_wire_close(w);
    }
    freeaddrinfo(all);
    return rc;
}

void sl_wire_close(struct sl_wire *w)
{
    if (w->fd >= 0)
        (void)close(w->fd);
    w->fd = -1;
    w->at = w->n = 0;
}

int sl_wire_send(struct sl_wire *w, struct iovec *iov, int n, uint64_t deadline,
                 struct sl_error *err)
{
    SL_ASSERT(w->fd >= 0 && n >= 0);
    while (n > 0) {
        if (iov->iov_len == 0) {
            iov++;
            n--;
            continue;
        }
        struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)n};
        ssize_t sent = sendmsg(w->fd, &m, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            int rc = await(w, POLLOUT, deadline, err);
            if (rc != 0)
                return rc;
        } else if (sent < 0 && errno != EINTR) {
            return sl_fail(err, SL_EIO, "the connection was lost: %s", strerror(errno));
        }
        for (size_t left = sent > 0 ? (size_t)sent : 0; left > 0;) {
            const size_t k = SL_MIN(left, iov->iov_len);
            iov->iov_base = (uint8_t *)iov->iov_base + k;
            iov->iov_len -= k;
            left -= k;
            if (iov->iov_len == 0 && n > 1) {
                iov++;
                n--;
            }
        }
    }
    return 0;
}

/* Some bytes, at least one. */
static int receive(struct sl_wire *w, void *dst, size_t max, size_t *n, uint64_t deadline,
                   struct sl_error *err)
{
    SL_ASSERT(max > 0);
    /* Also checked where bytes are there all the time: a peer may send without an end. */
    if (sl_now_ns() >= deadline)
        return sl_fail(err, SL_ETIMEOUT, "no answer in time");
    for (;;) {
        ssize_t got = recv(w->fd, dst, max, 0);
        if (got > 0) {
            *n = (size_t)got;
            return 0;
        }
        if (got == 0)
            return sl_fail(err, SL_EIO, "the connection was closed");
        if (errno != EAGAIN && errno != EINTR)
            return sl_fail(err, SL_EIO, "the connection was lost: %s", strerror(errno));
        int rc = await(w, POLLIN, deadline, err);
        if (rc != 0)
            return rc;
    }
}

/* More bytes behind those that are there. */
static int receive_ahead(struct sl_wire *w, uint64_t deadline, struct sl_error *err)
{
    size_t got = 0;
    SL_ASSERT(w->at <= w->n && w->n <= SL_WIRE_ROOM);
    if (w->at > 0) {
        memmove(w->room, w->room + w->at, w->n - w->at);
        w->n -= w->at;
        w->at = 0;
    }
    if (w->n == SL_WIRE_ROOM)
        return sl_fail(err, SL_EFORMAT, "an answer has no end of line");
    int rc = receive(w, w->room + w->n, SL_WIRE_ROOM - w->n, &got, deadline, err);
    w->n += (uint32_t)got;
    return rc;
}

int sl_wire_line(struct sl_wire *w, const char **line, size_t *n, uint64_t deadline,
                 struct sl_error *err)
{
    SL_ASSERT(w->fd >= 0);
    for (;;) {
        const uint8_t *end = memchr(w->room + w->at, '\n', w->n - w->at);
        if (end != NULL) {
            *line = (const char *)w->room + w->at;
            *n = (size_t)(end - (w->room + w->at));
            w->at += (uint32_t)*n + 1;
            if (*n == 0 || (*line)[*n - 1] != '\r')
                return sl_fail(err, SL_EFORMAT, "an answer has a wrong end of line");
            (*n)--;
            return 0;
        }
        int rc = receive_ahead(w, deadline, err);
        if (rc != 0)
            return rc;
    }
}

int sl_wire_read(struct sl_wire *w, void *dst, size_t n, uint64_t deadline, struct sl_error *err)
{
    uint8_t *to = dst;
    SL_ASSERT(w->fd >= 0);
    while (n > 0) {
        size_t k = SL_MIN(n, (size_t)(w->n - w->at));
        int rc = 0;
        if (k > 0) {
            if (to != NULL)
                memcpy(to, w->room + w->at, k);
            w->at += (uint32_t)k;
        } else if (to != NULL && n >= SL_WIRE_ROOM) { /* straight to where they belong */
            rc = receive(w, to, n, &k, deadline, err);
        } else {
            rc = receive_ahead(w, deadline, err);
        }
        if (rc != 0)
            return rc;
        to = to != NULL ? to + k : NULL;
        n -= k;
    }
    return 0;
}
