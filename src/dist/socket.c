/* SPDX-License-Identifier: MIT
 * The sockets of ranks: they do not block, and send small messages at once.
 */
#include "base/check.h"
#include "base/sys.h"
#include "dist/note.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define BACKLOG 64

static int resolve(const char *addr, int port, struct addrinfo **out, struct sl_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    int rc = getaddrinfo(strcmp(addr, "localhost") == 0 ? "127.0.0.1" : addr, service, &hints, out);
    return rc == 0 ? 0
                   : sl_fail(err, SL_EINVAL, "master-addr: %.80s cannot be resolved (%s)", addr,
                             gai_strerror(rc));
}

const char *sl_rank_lost_text(ssize_t n)
{
    return n == 0 || errno == ECONNRESET || errno == EPIPE ? "the connection was closed"
                                                           : strerror(errno);
}

void sl_rank_no_delay(int fd)
{
    const int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int open_socket(const struct addrinfo *a, int *fd, struct sl_error *err)
{
    *fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return sl_fail(err, SL_EIO, "socket: %s", strerror(errno));
    sl_rank_no_delay(*fd);
    return 0;
}

static bool is_loopback(const struct addrinfo *a)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)a->ai_addr;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)a->ai_addr;
    return a->ai_family == AF_INET
               ? ntohl(v4->sin_addr.s_addr) >> 24 == 127
               : a->ai_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

static int listen_on(const struct addrinfo *a, const char *addr, bool anywhere, int *port, int fd,
                     struct sl_error *err)
{
    const int one = 1;
    struct sockaddr_storage own;
    socklen_t n = sizeof own;
    if (!anywhere && !is_loopback(a))
        return sl_fail(err, SL_EINVAL,
                       "master-addr: %.80s is not a loopback address: that needs a secret "
                       "(--rank-secret-file)",
                       addr);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&own, &n) != 0)
        return sl_fail(err, SL_EIO, "master-port: cannot listen on %.80s port %d: %s", addr, *port,
                       strerror(errno));
    *port = ntohs(own.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&own)->sin6_port
                                            : ((struct sockaddr_in *)&own)->sin_port);
    return 0;
}

int sl_rank_listen(const char *addr, bool anywhere, int *port, int *fd, struct sl_error *err)
{
    struct addrinfo *a = NULL;
    *fd = -1;
    int rc = resolve(addr, *port, &a, err);
    if (rc == 0)
        rc = open_socket(a, fd, err);
    if (rc == 0)
        rc = listen_on(a, addr, anywhere, port, *fd, err);
    if (a != NULL)
        freeaddrinfo(a);
    if (rc != 0 && *fd >= 0) {
        sl_sys->close(*fd);
        *fd = -1;
    }
    return rc;
}

static int connect_within(int fd, const struct addrinfo *a, int ms)
{
    int error = 0;
    socklen_t n = sizeof error;
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return errno;
    if (poll(&p, 1, ms) <= 0)
        return ETIMEDOUT;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) == 0 ? error : errno;
}

int sl_rank_dial(const char *addr, int port, int ms, int *fd, struct sl_error *err)
{
    struct addrinfo *a = NULL;
    *fd = -1;
    int rc = resolve(addr, port, &a, err);
    if (rc == 0)
        rc = open_socket(a, fd, err);
    const int error = rc == 0 ? connect_within(*fd, a, ms) : 0;
    if (error != 0)
        rc = sl_fail(err, SL_ERANK, "rank 0 at %.80s port %d: %s", addr, port, strerror(error));
    if (a != NULL)
        freeaddrinfo(a);
    if (rc != 0 && *fd >= 0) {
        sl_sys->close(*fd);
        *fd = -1;
    }
    return rc;
}

void sl_rank_peer_name(int fd, char out[64])
{
    struct sockaddr_storage peer = {0};
    socklen_t n = sizeof peer;
    char host[46] = "?", port[8] = "?";
    if (getpeername(fd, (struct sockaddr *)&peer, &n) == 0)
        (void)getnameinfo((struct sockaddr *)&peer, n, host, sizeof host, port, sizeof port,
                          NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(out, 64, "%s port %s", host, port);
}
