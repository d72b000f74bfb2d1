/* SPDX-License-Identifier: MIT
 * fault_sys.h - an operating system of which the k-th call of one kind fails, for tests of whole
 * flows with several threads. It counts what is held, so that a leak shows after every run.
 *
 * Most calls come through the table of base/sys.h. Those that do not are caught where they leave:
 * the event library by its allocator hooks, accept4, eventfd, socket, bind, listen and
 * epoll by functions of the same name in this program, which the linker prefers to libc's.
 */
#ifndef SL_TESTS_FAULT_SYS_H
#define SL_TESTS_FAULT_SYS_H

#include "base/check.h"
#include "base/sys.h"

#include <dirent.h>
#include <errno.h>
#include <event2/event.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum fs_kind {
    FS_ALLOC, /* malloc, realloc, tensors, the JSON library's memory */
    FS_EVENT, /* memory of the event library */
    FS_OPEN,
    FS_SIZE,
    FS_MAP,
    FS_READ,
    FS_WRITE,
    FS_RANDOM,
    FS_THREAD,
    FS_ACCEPT,
    FS_EVENTFD,
    FS_SOCKET, /* socket, bind, listen */
    FS_EPOLL,
    FS_KINDS
};

static const char *const fs_names[FS_KINDS] = {
    "allocation", "event memory", "open",   "file size", "mmap",   "read",  "write",
    "random",     "thread start", "accept", "eventfd",   "socket", "epoll",
};

enum fs_manner {           /* how a call fails */
                 FS_ONCE,  /* the k-th, with the error of its kind */
                 FS_ALL,   /* the k-th and all that follow */
                 FS_INTR,  /* the k-th says EINTR */
                 FS_AGAIN, /* the k-th says EAGAIN */
                 FS_SHORT, /* the k-th read or write moves one byte */
                 FS_FULL,  /* the k-th says that descriptors ran out */
                 FS_MANNERS
};

#define FS_MAX_FDS 4096

static struct {
    atomic_int kind; /* which calls fail; -1: none */
    int manner;
    uint64_t k; /* the first that fails */
    atomic_uint_fast64_t n_seen;
    atomic_uint_fast64_t n_struck;
    atomic_int_fast64_t blocks, maps; /* held */
    atomic_bool is_event_fd[FS_MAX_FDS];
    struct sl_sys sys;
} fs = {.kind = -1};

static inline bool fs_hit(enum fs_kind kind, int error)
{
    if (atomic_load(&fs.kind) != (int)kind)
        return false;
    uint64_t at = atomic_fetch_add(&fs.n_seen, 1);
    if (at != fs.k && !(fs.manner == FS_ALL && at > fs.k))
        return false;
    atomic_fetch_add(&fs.n_struck, 1);
    errno = fs.manner == FS_INTR    ? EINTR
            : fs.manner == FS_AGAIN ? EAGAIN
            : fs.manner == FS_FULL  ? EMFILE
                                    : error;
    return true;
}

/* ---------------------------------------------------------------- memory */

static inline void *fs_count(void *p)
{
    if (p != NULL)
        atomic_fetch_add(&fs.blocks, 1);
    return p;
}

static void *fs_alloc(size_t n)
{
    return fs_hit(FS_ALLOC, ENOMEM) ? NULL : fs_count(sl_sys_real.alloc(n));
}

static void *fs_realloc(void *old, size_t n)
{
    void *p = fs_hit(FS_ALLOC, ENOMEM) ? NULL : sl_sys_real.realloc(old, n);
    return old == NULL ? fs_count(p) : p;
}

static void *fs_tensor(size_t n)
{
    return fs_hit(FS_ALLOC, ENOMEM) ? NULL : fs_count(sl_sys_real.alloc_tensor(n));
}

static void fs_free(void *p)
{
    if (p != NULL)
        atomic_fetch_sub(&fs.blocks, 1);
    sl_sys_real.free(p);
}

static void fs_free_tensor(void *p, size_t n)
{
    atomic_fetch_sub(&fs.blocks, 1);
    sl_sys_real.free_tensor(p, n);
}

static void *fs_event_alloc(size_t n)
{
    return fs_hit(FS_EVENT, ENOMEM) ? NULL : fs_count(sl_sys_real.alloc(n));
}

static void *fs_event_realloc(void *old, size_t n)
{
    void *p = fs_hit(FS_EVENT, ENOMEM) ? NULL : sl_sys_real.realloc(old, n);
    return old == NULL ? fs_count(p) : p;
}

/* ---------------------------------------------------------------- files and sockets */

/* Wake-ups between threads: the kernel cannot refuse eight bytes to or from an eventfd whose
 * counter is far from full, so a failure here would test something that does not exist. */
static inline bool fs_wakes(int fd)
{
    return fd >= 0 && fd < FS_MAX_FDS && atomic_load(&fs.is_event_fd[fd]);
}

static int fs_open(const char *path, int flags, int mode)
{
    return fs_hit(FS_OPEN, EACCES) ? -1 : sl_sys_real.open(path, flags, mode);
}

static int fs_close(int fd)
{
    if (fd >= 0 && fd < FS_MAX_FDS)
        atomic_store(&fs.is_event_fd[fd], false);
    return sl_sys_real.close(fd);
}

static int64_t fs_size(int fd)
{
    return fs_hit(FS_SIZE, EIO) ? -1 : sl_sys_real.file_size(fd);
}

static void *fs_map(int fd, size_t n)
{
    void *p = fs_hit(FS_MAP, ENOMEM) ? NULL : sl_sys_real.map(fd, n);
    if (p != NULL)
        atomic_fetch_add(&fs.maps, 1);
    return p;
}

static void fs_unmap(void *p, size_t n)
{
    atomic_fetch_sub(&fs.maps, 1);
    sl_sys_real.unmap(p, n);
}

static ssize_t fs_pread(int fd, void *buf, size_t n, int64_t offset)
{
    if (!fs_hit(FS_READ, EIO))
        return sl_sys_real.pread(fd, buf, n, offset);
    return fs.manner == FS_SHORT ? sl_sys_real.pread(fd, buf, SL_MIN(n, 1u), offset) : -1;
}

static ssize_t fs_read(int fd, void *buf, size_t n)
{
    if (fs_wakes(fd) || !fs_hit(FS_READ, EIO))
        return sl_sys_real.read(fd, buf, n);
    return fs.manner == FS_SHORT ? sl_sys_real.read(fd, buf, SL_MIN(n, 1u)) : -1;
}

static ssize_t fs_write(int fd, const void *buf, size_t n)
{
    if (fs_wakes(fd) || !fs_hit(FS_WRITE, EPIPE))
        return sl_sys_real.write(fd, buf, n);
    return fs.manner == FS_SHORT ? sl_sys_real.write(fd, buf, SL_MIN(n, 1u)) : -1;
}

static int fs_random(void *buf, size_t n)
{
    return fs_hit(FS_RANDOM, EIO) ? -1 : sl_sys_real.random(buf, n);
}

static int fs_thread(pthread_t *t, void *(*fn)(void *), void *arg)
{
    return fs_hit(FS_THREAD, EAGAIN) ? EAGAIN : sl_sys_real.thread_create(t, fn, arg);
}

/* ---------------------------------------------------------------- what the table does not hold */

int accept4(int fd, struct sockaddr *addr, socklen_t *n, int flags)
{
    return fs_hit(FS_ACCEPT, ECONNABORTED) ? -1 : (int)syscall(SYS_accept4, fd, addr, n, flags);
}

int eventfd(unsigned count, int flags)
{
    if (fs_hit(FS_EVENTFD, EMFILE))
        return -1;
    int fd = (int)syscall(SYS_eventfd2, count, flags);
    if (fd >= 0 && fd < FS_MAX_FDS)
        atomic_store(&fs.is_event_fd[fd], true);
    return fd;
}

int socket(int domain, int type, int protocol)
{
    return fs_hit(FS_SOCKET, EMFILE) ? -1 : (int)syscall(SYS_socket, domain, type, protocol);
}

int bind(int fd, const struct sockaddr *addr, socklen_t n)
{
    return fs_hit(FS_SOCKET, EADDRINUSE) ? -1 : (int)syscall(SYS_bind, fd, addr, n);
}

int listen(int fd, int backlog)
{
    return fs_hit(FS_SOCKET, EADDRINUSE) ? -1 : (int)syscall(SYS_listen, fd, backlog);
}

int epoll_create1(int flags)
{
    return fs_hit(FS_EPOLL, EMFILE) ? -1 : (int)syscall(SYS_epoll_create1, flags);
}

int epoll_ctl(int efd, int op, int fd, struct epoll_event *ev)
{
    if (op != EPOLL_CTL_DEL && fs_hit(FS_EPOLL, ENOSPC)) /* taking something out cannot fail */
        return -1;
    return (int)syscall(SYS_epoll_ctl, efd, op, fd, ev);
}

/* ---------------------------------------------------------------- use */

static void fs_quiet(int severity, const char *msg)
{
    (void)severity;
    (void)msg;
}

/* Once, before anything is allocated and while there is one thread. */
static inline void fs_install(void)
{
    fs.sys = sl_sys_real;
    fs.sys.alloc = fs_alloc;
    fs.sys.realloc = fs_realloc;
    fs.sys.free = fs_free;
    fs.sys.alloc_tensor = fs_tensor;
    fs.sys.free_tensor = fs_free_tensor;
    fs.sys.open = fs_open;
    fs.sys.close = fs_close;
    fs.sys.file_size = fs_size;
    fs.sys.map = fs_map;
    fs.sys.unmap = fs_unmap;
    fs.sys.pread = fs_pread;
    fs.sys.read = fs_read;
    fs.sys.write = fs_write;
    fs.sys.random = fs_random;
    fs.sys.thread_create = fs_thread;
    sl_sys = &fs.sys;
    event_set_mem_functions(fs_event_alloc, fs_event_realloc, fs_free);
    event_set_log_callback(fs_quiet);
}

static inline void fs_arm(enum fs_kind kind, enum fs_manner manner, uint64_t k)
{
    fs.manner = (int)manner;
    fs.k = k;
    atomic_store(&fs.n_seen, 0);
    atomic_store(&fs.n_struck, 0);
    atomic_store(&fs.kind, (int)kind);
}

static inline void fs_disarm(void)
{
    atomic_store(&fs.kind, -1);
}

struct fs_held {
    int64_t blocks, maps;
    int n_fds, n_threads;
};

static inline int fs_entries(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    while (d != NULL && readdir(d) != NULL)
        n++;
    if (d != NULL)
        closedir(d);
    return n;
}

static inline struct fs_held fs_held(void)
{
    return (struct fs_held){atomic_load(&fs.blocks), atomic_load(&fs.maps),
                            fs_entries("/proc/self/fd"), fs_entries("/proc/self/task")};
}

static inline bool fs_same(const struct fs_held *a, const struct fs_held *b)
{
    return a->blocks == b->blocks && a->maps == b->maps && a->n_fds == b->n_fds &&
           a->n_threads == b->n_threads;
}

#endif
