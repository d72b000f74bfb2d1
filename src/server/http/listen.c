/* SPDX-License-Identifier: MIT */
#include "server/http/listen.h"

#include "base/check.h"
#include "base/sys.h"
#include "server/server.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG  1024
#define MAX_PATH 4096 /* of --port-file */

static int port_of(int fd)
{
    struct sockaddr_storage addr;
    socklen_t n = sizeof addr;
    if (getsockname(fd, (struct sockaddr *)&addr, &n) != 0)
        return -1;
    if (addr.ss_family == AF_INET6)
        return ntohs(((struct sockaddr_in6 *)&addr)->sin6_port);
    return ntohs(((struct sockaddr_in *)&addr)->sin_port);
}

int sl_listen_tcp(const char *host, int *port, int *fd, struct sl_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *addr = NULL;
    char service[16];
    int one = 1;
    snprintf(service, sizeof service, "%d", *port);
    const char *numeric = strcmp(host, "localhost") == 0 ? "127.0.0.1" : host;
    int rc = getaddrinfo(numeric, service, &hints, &addr);
    if (rc != 0)
        return sl_fail(err, SL_EINVAL, "--host %s is not an IP address (%s)", host,
                       gai_strerror(rc));
    *fd = socket(addr->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*fd < 0) {
        freeaddrinfo(addr);
        return sl_fail(err, SL_EIO, "socket for %s: %s", host, strerror(errno));
    }
    (void)setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (addr->ai_family == AF_INET6)
        (void)setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    rc = bind(*fd, addr->ai_addr, addr->ai_addrlen);
    freeaddrinfo(addr);
    if (rc != 0 || listen(*fd, BACKLOG) != 0) {
        const char *hint = errno == EADDRINUSE ? " by another process; --port chooses another" : "";
        rc = sl_fail(err, SL_EIO, "cannot listen on %s port %d: %s%s", host, *port, strerror(errno),
                     hint);
        sl_sys->close(*fd);
        return rc;
    }
    *port = port_of(*fd);
    return 0;
}

/* A socket file whose server is gone refuses connections; only then may it be replaced. */
static bool is_abandoned(const struct sockaddr_un *addr)
{
    struct stat st;
    if (stat(addr->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode))
        return false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    bool refused =
        connect(fd, (const struct sockaddr *)addr, sizeof *addr) != 0 && errno == ECONNREFUSED;
    sl_sys->close(fd);
    return refused;
}

static bool set_address(struct sockaddr_un *addr, const char *path)
{
    *addr = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof addr->sun_path)
        return false;
    memcpy(addr->sun_path, path, strlen(path) + 1);
    return true;
}

void sl_listen_close_unix(const char *path, int fd)
{
    struct sockaddr_un addr;
    sl_sys->close(fd);
    if (set_address(&addr, path) && is_abandoned(&addr))
        (void)unlink(path);
}

int sl_listen_unix(const char *path, int *fd, struct sl_error *err)
{
    struct sockaddr_un addr;
    if (!set_address(&addr, path))
        return sl_fail(err, SL_EINVAL, "--uds: path is longer than %zu bytes",
                       sizeof addr.sun_path - 1);
    if (is_abandoned(&addr))
        (void)unlink(path);
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return sl_fail(err, SL_EIO, "socket for %s: %s", path, strerror(errno));
    if (bind(*fd, (struct sockaddr *)&addr, sizeof addr) != 0 || listen(*fd, BACKLOG) != 0) {
        int rc = sl_fail(err, SL_EIO, "cannot listen on %s: %s", path, strerror(errno));
        sl_sys->close(*fd);
        return rc;
    }
    return 0;
}

/* host may list several addresses, separated by commas; a port of 0 is chosen by the first. */
static int listen_open_tcp(const char *hosts, struct sl_listeners *l, struct sl_error *err)
{
    for (const char *at = hosts; at != NULL;) {
        const char *comma = strchr(at, ',');
        size_t n = comma != NULL ? (size_t)(comma - at) : strlen(at);
        if (n >= sizeof l->hosts[0] || l->n == SL_MAX_LISTENERS)
            return sl_fail(err, SL_EINVAL,
                           "--host: an address is too long, or there are more than %d",
                           SL_MAX_LISTENERS - 1);
        memcpy(l->hosts[l->n], at, n);
        l->hosts[l->n][n] = '\0';
        int rc = sl_listen_tcp(l->hosts[l->n], &l->port, &l->fds[l->n], err);
        if (rc != 0)
            return rc;
        l->n++;
        at = comma != NULL ? comma + 1 : NULL;
    }
    return 0;
}

int sl_listeners_open(const struct sl_server_config *cfg, struct sl_listeners *l,
                      struct sl_error *err)
{
    int rc = 0;
    *l = (struct sl_listeners){.port = cfg->port};
    if (cfg->host == NULL && cfg->uds == NULL)
        return sl_fail(err, SL_EINVAL, "nothing to listen on: neither a host nor a socket path");
    if (cfg->uds != NULL) {
        rc = sl_listen_unix(cfg->uds, &l->fds[0], err);
        if (rc == 0) {
            l->uds = cfg->uds;
            l->n = 1;
        }
    }
    if (rc == 0 && cfg->host != NULL)
        rc = listen_open_tcp(cfg->host, l, err);
    if (rc != 0)
        sl_listeners_close(l);
    return rc;
}

void sl_listeners_close(struct sl_listeners *l)
{
    for (int i = 0; i < l->n; i++) {
        if (l->uds != NULL && i == 0)
            sl_listen_close_unix(l->uds, l->fds[i]);
        else
            sl_sys->close(l->fds[i]);
    }
    l->n = 0;
}

/* Next to the file, so that a rename replaces it. */
static int write_temporary(const char *path, const char *text, char temporary[MAX_PATH],
                           struct sl_error *err)
{
    if ((size_t)snprintf(temporary, MAX_PATH, "%s.tmp", path) >= MAX_PATH)
        return sl_fail(err, SL_EINVAL, "--port-file: the path is too long");
    int rc = sl_write_file(temporary, text, strlen(text), err);
    return rc != 0 ? sl_error_prefix(err, rc, "--port-file") : 0;
}

int sl_listen_check_port_file(const char *path, struct sl_error *err)
{
    char temporary[MAX_PATH];
    int rc = write_temporary(path, "", temporary, err);
    if (rc == 0)
        (void)unlink(temporary);
    return rc;
}

int sl_listen_write_port(const char *path, int port, struct sl_error *err)
{
    char text[16], temporary[MAX_PATH];
    snprintf(text, sizeof text, "%d\n", port);
    int rc = write_temporary(path, text, temporary, err);
    if (rc == 0 && rename(temporary, path) != 0)
        rc = sl_fail(err, SL_EIO, "--port-file %s: %s", path, strerror(errno));
    return rc;
}

uint64_t sl_listen_raise_fd_limit(void)
{
    struct rlimit limit, wanted;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return UINT64_MAX;
    wanted = limit;
    wanted.rlim_cur = limit.rlim_max;
    bool raised = limit.rlim_cur == limit.rlim_max || setrlimit(RLIMIT_NOFILE, &wanted) == 0;
    return raised ? limit.rlim_max : limit.rlim_cur;
}
