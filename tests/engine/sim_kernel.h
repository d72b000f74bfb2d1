/* SPDX-License-Identifier: MIT
 * sim_kernel.h - the operating system of a world: memory, clocks, randomness, a disk of one file,
 * event counters, sockets, and the calls by which the event library waits for them.
 *
 * Two doors lead here. The table of base/sys.h is replaced. What does not go through it is defined
 * in this program under the name it has in libc (accept4, eventfd, epoll_wait, poll, clock_gettime
 * ...), which the linker prefers, so that the event library, too, runs on virtual time and sockets.
 * Numbers from FD_BASE on are ours, the rest is the real system's.
 *
 * A socket has a buffer in each direction. The server's end may read less than is there, write less
 * than fits, be told of readiness that is not there, and be interrupted.
 */
#ifndef SL_TESTS_SIM_KERNEL_H
#define SL_TESTS_SIM_KERNEL_H

#include "engine/sim_world.h"

#include <dirent.h>
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#define FD_BASE 200
#define N_FDS   96
#define IN_CAP  (1 << 16)

enum fd_kind { FD_FREE, FD_EVENT, FD_EPOLL, FD_LISTENER, FD_SOCKET, FD_FILE };

struct vfd {
    enum fd_kind kind;
    uint64_t count; /* event counter */
    /* socket: to the server */
    char *in; /* [IN_CAP] */
    int32_t n_in;
    bool in_end, reset; /* the client sent its last byte; cut the connection */
    /* from the server */
    char *out; /* [sock_cap] */
    int32_t n_out;
    bool out_end; /* the server shut its side */
    bool server_open, client_open;
    bool queued, was_closed; /* in the backlog; the server closed it, or never will accept it */
    /* listener */
    int backlog[MAX_HTTP];
    int n_backlog;
    /* file */
    size_t at;
    /* watched by the event library */
    bool watched;
    int efd;
    uint32_t events;
    epoll_data_t data;
};

static struct {
    struct vfd fds[N_FDS];
    bool on;
    int listener; /* -1: none */
} kern = {.listener = -1};

enum { NOISE_READ = 1, NOISE_WRITE, NOISE_INTR, NOISE_READY, NOISE_ACCEPT, NOISE_FILE };

static struct vfd *vfd_of(int fd)
{
    return kern.on && fd >= FD_BASE && fd < FD_BASE + N_FDS ? &kern.fds[fd - FD_BASE] : NULL;
}

static int vfd_new(enum fd_kind kind)
{
    for (int i = 0; i < N_FDS; i++) {
        if (kern.fds[i].kind == FD_FREE) {
            struct vfd *v = &kern.fds[i];
            char *in = v->in, *out = v->out;
            *v = (struct vfd){.kind = kind, .in = in, .out = out};
            return FD_BASE + i;
        }
    }
    violation(sim, "the virtual kernel is out of descriptors: a leak, or too small");
}

/* ------------------------------------------------------------------ memory and clocks */

static bool alloc_struck(void)
{
    struct world *w = sim;
    if (w == NULL || w->own || w->alloc_fail == 0)
        return false;
    if (w->alloc_skip > 0) {
        w->alloc_skip--;
        return false;
    }
    w->alloc_fail--;
    w->n_alloc_faults++;
    total.alloc_faults++;
    return true;
}

static void *vk_alloc(size_t n)
{
    void *p = alloc_struck() ? NULL : sl_sys_real.alloc(n);
    if (sim != NULL)
        sim->blocks += p != NULL;
    return p;
}

static void *vk_realloc(void *old, size_t n)
{
    void *p = alloc_struck() ? NULL : sl_sys_real.realloc(old, n);
    if (sim != NULL)
        sim->blocks += old == NULL && p != NULL;
    return p;
}

static void vk_free(void *p)
{
    if (sim != NULL)
        sim->blocks -= p != NULL;
    sl_sys_real.free(p);
}

static uint64_t vk_now(void)
{
    return virtual_ns;
}

static int64_t vk_wall(void)
{
    return (int64_t)1700000000 * 1000000000 + (int64_t)virtual_ns + wall_offset_ns;
}

static int vk_random(void *buf, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((unsigned char *)buf)[i] = (unsigned char)sl_rng_at(sim != NULL ? sim->seed_no : 1, i);
    return 0;
}

int clock_gettime(clockid_t id, struct timespec *t)
{
    if (!kern.on)
        return (int)syscall(SYS_clock_gettime, id, t);
    uint64_t ns = id == CLOCK_REALTIME ? (uint64_t)vk_wall() : virtual_ns;
    *t = (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                           .tv_nsec = (long)(ns % 1000000000u)};
    return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    struct timespec ts;
    (void)zone;
    int rc = clock_gettime(CLOCK_REALTIME, &ts);
    *t = (struct timeval){.tv_sec = ts.tv_sec, .tv_usec = ts.tv_nsec / 1000};
    return rc;
}

/* ------------------------------------------------------------------ a disk of one file */

static const char disk_file[] = "42000 3100 900 200 0 2800 0\n"; /* /proc/self/statm */

static int vk_open(const char *path, int flags, int mode)
{
    if (!kern.on)
        return sl_sys_real.open(path, flags, mode);
    if (now_and_then(sim, NOISE_FILE, sim->cfg.io_noise_pct / 2)) {
        errno = EACCES;
        return -1;
    }
    return vfd_new(FD_FILE);
}

static ssize_t file_read(struct vfd *v, void *buf, size_t n)
{
    if (now_and_then(sim, NOISE_FILE, sim->cfg.io_noise_pct / 2)) {
        errno = noise(sim, NOISE_FILE, 2) ? EIO : EINTR;
        return -1;
    }
    size_t left = sizeof disk_file - 1 - v->at;
    n = SL_MIN(n, left);
    if (n > 1 && now_and_then(sim, NOISE_FILE, sim->cfg.io_noise_pct))
        n = 1 + (size_t)noise(sim, NOISE_FILE, (int32_t)n - 1);
    memcpy(buf, disk_file + v->at, n);
    v->at += n;
    return (ssize_t)n;
}

static int64_t vk_file_size(int fd)
{
    return vfd_of(fd) != NULL ? (int64_t)sizeof disk_file - 1 : sl_sys_real.file_size(fd);
}

static ssize_t vk_pread(int fd, void *buf, size_t n, int64_t offset)
{
    struct vfd *v = vfd_of(fd);
    if (v == NULL)
        return sl_sys_real.pread(fd, buf, n, offset);
    v->at = (size_t)offset;
    return file_read(v, buf, n);
}

DIR *opendir(const char *path)
{
    (void)path;
    return NULL;
}

int getrusage(__rusage_who_t who, struct rusage *u)
{
    (void)who;
    memset(u, 0, sizeof *u);
    return 0;
}

/* ------------------------------------------------------------------ reading and writing */

static ssize_t event_read(struct vfd *v, void *buf, size_t n)
{
    if (v->count == 0 || n < sizeof v->count) {
        errno = EAGAIN;
        return -1;
    }
    memcpy(buf, &v->count, sizeof v->count);
    v->count = 0;
    return sizeof v->count;
}

static ssize_t socket_read(struct vfd *v, void *buf, size_t n)
{
    if (!v->server_open)
        violation(sim, "a closed socket is read");
    if (v->reset) {
        errno = ECONNRESET;
        return -1;
    }
    if (now_and_then(sim, NOISE_INTR, sim->cfg.io_noise_pct / 4)) {
        errno = noise(sim, NOISE_INTR, 2) ? EINTR : EAGAIN;
        return -1;
    }
    n = SL_MIN(n, (size_t)v->n_in);
    if (n == 0) {
        errno = EAGAIN;
        return v->in_end ? 0 : -1;
    }
    if (n > 1 && now_and_then(sim, NOISE_READ, sim->cfg.io_noise_pct))
        n = 1 + (size_t)noise(sim, NOISE_READ, (int32_t)n - 1);
    memcpy(buf, v->in, n);
    v->n_in -= (int32_t)n;
    memmove(v->in, v->in + n, (size_t)v->n_in);
    return (ssize_t)n;
}

static ssize_t socket_write(struct vfd *v, const void *buf, size_t n)
{
    if (!v->server_open || v->out_end)
        violation(sim, "a socket is written after it was closed or shut");
    if (v->reset) {
        errno = ECONNRESET;
        return -1;
    }
    if (now_and_then(sim, NOISE_INTR, sim->cfg.io_noise_pct / 4)) {
        errno = EINTR;
        return -1;
    }
    n = SL_MIN(n, (size_t)(sim->cfg.sock_cap - v->n_out));
    if (n == 0) {
        errno = EAGAIN;
        return -1;
    }
    if (n > 1 && now_and_then(sim, NOISE_WRITE, sim->cfg.io_noise_pct))
        n = 1 + (size_t)noise(sim, NOISE_WRITE, (int32_t)n - 1);
    if (!v->client_open) { /* taken, and answered with a reset */
        v->reset = true;
        return (ssize_t)n;
    }
    memcpy(v->out + v->n_out, buf, n);
    v->n_out += (int32_t)n;
    return (ssize_t)n;
}

static ssize_t vk_read(int fd, void *buf, size_t n)
{
    struct vfd *v = vfd_of(fd);
    if (v == NULL)
        return sl_sys_real.read(fd, buf, n);
    switch (v->kind) {
    case FD_EVENT:
        return event_read(v, buf, n);
    case FD_SOCKET:
        return socket_read(v, buf, n);
    case FD_FILE:
        return file_read(v, buf, n);
    default:
        violation(sim, "a descriptor that cannot be read is read");
    }
}

static ssize_t vk_write(int fd, const void *buf, size_t n)
{
    struct vfd *v = vfd_of(fd);
    if (fd == STDERR_FILENO &&
        !trace) /* the engine logs every failed step, which is every minute */
        return (ssize_t)n;
    if (v == NULL)
        return sl_sys_real.write(fd, buf, n);
    if (v->kind == FD_SOCKET)
        return socket_write(v, buf, n);
    if (v->kind != FD_EVENT || n != sizeof v->count)
        violation(sim, "a descriptor that cannot be written is written");
    uint64_t more;
    memcpy(&more, buf, sizeof more);
    v->count += more;
    return (ssize_t)n;
}

static int vk_close(int fd)
{
    struct vfd *v = vfd_of(fd);
    if (v == NULL)
        return sl_sys_real.close(fd);
    if (v->kind == FD_FREE || (v->kind == FD_SOCKET && !v->server_open))
        violation(sim, "descriptor %d is closed twice", fd - FD_BASE);
    for (int i = 0; v->kind == FD_LISTENER && i < v->n_backlog; i++) {
        struct vfd *lost = vfd_of(v->backlog[i]); /* connected, never accepted */
        lost->queued = false;
        lost->was_closed = true;
        if (!lost->client_open)
            lost->kind = FD_FREE;
    }
    v->watched = false;
    if (fd == kern.listener)
        kern.listener = -1;
    if (v->kind != FD_SOCKET || !v->client_open)
        v->kind = FD_FREE;
    v->server_open = false;
    v->was_closed = true;
    return 0;
}

/* ------------------------------------------------------------------ sockets and counters */

int eventfd(unsigned count, int flags)
{
    if (!kern.on)
        return (int)syscall(SYS_eventfd2, count, flags);
    int fd = vfd_new(FD_EVENT);
    vfd_of(fd)->count = count;
    return fd;
}

int socket(int domain, int type, int protocol)
{
    if (!kern.on)
        return (int)syscall(SYS_socket, domain, type, protocol);
    return kern.listener = vfd_new(FD_LISTENER);
}

int bind(int fd, const struct sockaddr *addr, socklen_t n)
{
    return vfd_of(fd) != NULL ? 0 : (int)syscall(SYS_bind, fd, addr, n);
}

int listen(int fd, int backlog)
{
    return vfd_of(fd) != NULL ? 0 : (int)syscall(SYS_listen, fd, backlog);
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t n)
{
    return vfd_of(fd) != NULL ? 0 : (int)syscall(SYS_setsockopt, fd, level, name, value, n);
}

int shutdown(int fd, int how)
{
    struct vfd *v = vfd_of(fd);
    if (v == NULL)
        return (int)syscall(SYS_shutdown, fd, how);
    if (v->reset) {
        errno = ENOTCONN;
        return -1;
    }
    v->out_end = true;
    return 0;
}

static int32_t n_server_open(void)
{
    int32_t n = 0;
    for (int i = 0; i < N_FDS; i++)
        n += kern.fds[i].kind == FD_SOCKET && kern.fds[i].server_open;
    return n;
}

int accept4(int fd, struct sockaddr *addr, socklen_t *n, int flags)
{
    struct vfd *v = vfd_of(fd);
    if (v == NULL)
        return (int)syscall(SYS_accept4, fd, addr, n, flags);
    errno = EAGAIN;
    if (v->n_backlog == 0)
        return -1;
    if (sim->no_fds_until > sim->turn && n_server_open() >= sim->max_fds && !sim->calm) {
        errno = noise(sim, NOISE_ACCEPT, 2) ? EMFILE : ENOMEM;
        if (sim->no_fds_allocs > 0) {
            sim->no_fds_allocs--;
            sim->alloc_skip = 0;
            sim->alloc_fail = 1;
        }
        return -1;
    }
    if (now_and_then(sim, NOISE_ACCEPT, sim->cfg.io_noise_pct / 4)) {
        errno = noise(sim, NOISE_ACCEPT, 2) ? EINTR : ECONNABORTED;
        return -1;
    }
    int got = v->backlog[0];
    memmove(v->backlog, v->backlog + 1, (size_t)--v->n_backlog * sizeof *v->backlog);
    vfd_of(got)->server_open = true;
    vfd_of(got)->queued = false;
    return got;
}

static uint32_t ready(const struct vfd *v)
{
    uint32_t e = 0;
    switch (v->kind) {
    case FD_EVENT:
        return v->count > 0 ? EPOLLIN : 0;
    case FD_LISTENER:
        return v->n_backlog > 0 ? EPOLLIN : 0;
    case FD_SOCKET:
        if (v->reset)
            return EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP;
        e |= v->n_in > 0 || v->in_end ? EPOLLIN : 0;
        e |= v->in_end ? EPOLLRDHUP : 0;
        e |= v->n_out < sim->cfg.sock_cap ? EPOLLOUT : 0;
        return e;
    default:
        return 0;
    }
}

/* Under another name, because libc's declaration says that poll only writes. */
int virtual_poll(struct pollfd *p, nfds_t n, int timeout) __asm__("poll");
int virtual_poll(struct pollfd *p, nfds_t n, int timeout)
{
    if (!kern.on || n == 0 || vfd_of(p[0].fd) == NULL)
        return (int)syscall(SYS_poll, p, n, timeout);
    uint32_t e = ready(vfd_of(p[0].fd));
    p[0].revents = (short)(((uint32_t)p[0].events | EPOLLERR | EPOLLHUP) & e);
    return p[0].revents != 0;
}

int epoll_create1(int flags)
{
    return kern.on ? vfd_new(FD_EPOLL) : (int)syscall(SYS_epoll_create1, flags);
}

int epoll_ctl(int efd, int op, int fd, struct epoll_event *ev)
{
    struct vfd *v = vfd_of(fd);
    if (v == NULL)
        return kern.on ? 0 : (int)syscall(SYS_epoll_ctl, efd, op, fd, ev);
    if ((op == EPOLL_CTL_ADD) == v->watched) {
        errno = v->watched ? EEXIST : ENOENT;
        return -1;
    }
    v->watched = op != EPOLL_CTL_DEL;
    if (v->watched) {
        v->efd = efd;
        v->events = ev->events;
        v->data = ev->data;
    }
    return 0;
}

/* What is ready, beginning anywhere, and not always all of it. */
static int collect(int efd, struct epoll_event *events, int max)
{
    int n = 0, first = noise(sim, NOISE_READY, N_FDS);
    for (int i = 0; i < N_FDS && n < max; i++) {
        struct vfd *v = &kern.fds[(first + i) % N_FDS];
        if (!v->watched || v->efd != efd)
            continue;
        uint32_t e = ready(v) & (v->events | EPOLLERR | EPOLLHUP);
        if (e == 0 && v->kind == FD_SOCKET &&
            now_and_then(sim, NOISE_READY, sim->cfg.io_noise_pct / 20))
            e = v->events & EPOLLIN; /* readiness that is not there */
        if (e == 0 || (n > 0 && now_and_then(sim, NOISE_READY, sim->cfg.io_noise_pct / 2)))
            continue;
        events[n++] = (struct epoll_event){.events = e, .data = v->data};
    }
    return n;
}

/* ------------------------------------------------------------------ use */

static void quiet_event_log(int severity, const char *msg)
{
    (void)severity;
    say("  event library: %s\n", msg);
}

static struct sl_sys virtual_sys;

/* Once, before anything is allocated. */
static void kernel_install(void)
{
    virtual_sys = sl_sys_real;
    virtual_sys.alloc = vk_alloc;
    virtual_sys.realloc = vk_realloc;
    virtual_sys.free = vk_free;
    virtual_sys.now_ns = vk_now;
    virtual_sys.wall_ns = vk_wall;
    virtual_sys.random = vk_random;
    virtual_sys.open = vk_open;
    virtual_sys.file_size = vk_file_size;
    virtual_sys.pread = vk_pread;
    virtual_sys.read = vk_read;
    virtual_sys.write = vk_write;
    virtual_sys.close = vk_close;
    sl_sys = &virtual_sys;
    event_set_mem_functions(vk_alloc, vk_realloc, vk_free);
    event_set_log_callback(quiet_event_log);
    for (int i = 0; i < N_FDS; i++) {
        kern.fds[i].in = malloc(IN_CAP);
        kern.fds[i].out = malloc(1 << 16);
    }
}

static void kernel_start(void)
{
    for (int i = 0; i < N_FDS; i++)
        kern.fds[i].kind = FD_FREE;
    kern.on = true;
    kern.listener = -1;
}

/* What is still open; the event library closes its own by their numbers, which are not ours. */
static int kernel_stop(void)
{
    int n = 0;
    for (int i = 0; i < N_FDS; i++)
        n += kern.fds[i].kind != FD_FREE && kern.fds[i].kind != FD_EPOLL;
    kern.on = false;
    return n;
}

#endif
