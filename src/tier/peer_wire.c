/* SPDX-License-Identifier: MIT */
#include "tier/peer_wire.h"

#include "base/check.h"
#include "base/sys.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define BACKLOG 256

struct sl_hash128 sl_peer_digest(const struct sl_hash128 *root, const struct sl_lease_id *id,
                                 int32_t block, int32_t group, const void *bytes, size_t n)
{
    SL_ASSERT(block >= 0 && group >= 0);
    struct {
        struct sl_hash128 root, bytes;
        struct sl_lease_id id;
        int32_t block, group;
    } all = {*root, sl_hash128(bytes, n, 0), *id, block, group};
    _Static_assert(sizeof all == 64, "no gaps");
    return sl_hash128(&all, sizeof all, 0);
}

void sl_peer_tune(int fd)
{
    const int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int listen_on(const struct addrinfo *a, const char *addr, int *port, int fd,
                     struct sl_error *err)
{
    const int one = 1;
    struct sockaddr_storage own;
    socklen_t n = sizeof own;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&own, &n) != 0)
        return sl_fail(err, SL_EIO, "cannot listen on %.80s port %d for KV pages: %s", addr, *port,
                       strerror(errno));
    *port = ntohs(own.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&own)->sin6_port
                                            : ((struct sockaddr_in *)(void *)&own)->sin_port);
    return 0;
}

int sl_peer_listen(const char *addr, int *port, int *fd, struct sl_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *a = NULL;
    char service[16];
    *fd = -1;
    snprintf(service, sizeof service, "%d", *port);
    int rc = getaddrinfo(strcmp(addr, "localhost") == 0 ? "127.0.0.1" : addr, service, &hints, &a);
    if (rc != 0)
        return sl_fail(err, SL_EINVAL, "kv-transfer-host: %.80s cannot be resolved (%s)", addr,
                       gai_strerror(rc));
    *fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    rc = *fd < 0 ? sl_fail(err, SL_EIO, "socket: %s", strerror(errno))
                 : listen_on(a, addr, port, *fd, err);
    freeaddrinfo(a);
    if (rc != 0 && *fd >= 0) {
        sl_sys->close(*fd);
        *fd = -1;
    }
    return rc;
}

/* ---- bytes */

static ssize_t result_of(ssize_t n)
{
    if (n >= 0)
        return n;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

ssize_t sl_peer_send(int fd, const void *head, size_t n_head, const void *body, size_t n_body)
{
    struct iovec iov[2] = {{(void *)(uintptr_t)head, n_head}, {(void *)(uintptr_t)body, n_body}};
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};
    SL_ASSERT(n_head + n_body > 0);
    return result_of(sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT));
}

ssize_t sl_peer_recv(int fd, void *to, size_t n)
{
    SL_ASSERT(n > 0);
    ssize_t got = recv(fd, to, n, MSG_DONTWAIT);
    return got == 0 ? -1 : result_of(got);
}

int sl_peer_n_threads(int wanted)
{
    const int n = wanted > 0 ? wanted : sl_cpu_count() / 2;
    return SL_MIN(SL_MAX(n, 1), SL_MAX_PEER_THREADS);
}

/* ---- bells */

int sl_peer_bell(int *fd, struct sl_error *err)
{
    *fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return *fd >= 0 ? 0 : sl_fail(err, SL_EIO, "eventfd: %s", strerror(errno));
}

void sl_peer_ring(int fd)
{
    const uint64_t one = 1;
    ssize_t n = sl_sys->write(fd, &one, sizeof one);
    (void)n; /* full: it rings already */
}

void sl_peer_hush(int fd)
{
    uint64_t count;
    ssize_t n = sl_sys->read(fd, &count, sizeof count);
    (void)n; /* it did not ring */
}
