/* SPDX-License-Identifier: MIT */
#include "base/sys.h"

#include "base/check.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TENSOR_ALIGN 64u
/* From here on a tensor gets its own zero pages: untouched parts of a pool then cost no memory. */
#define MAP_THRESHOLD (128u << 10)
#define HUGE_PAGE     (2u << 20)

static int real_open(const char *path, int flags, int mode)
{
    return open(path, flags | O_CLOEXEC, (mode_t)mode);
}

static int64_t real_file_size(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return -1;
    if (!S_ISREG(st.st_mode)) {
        errno = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
        return -1;
    }
    return st.st_size;
}

static bool real_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static ssize_t real_pread(int fd, void *buf, size_t n, int64_t offset)
{
    return pread(fd, buf, n, (off_t)offset);
}

static ssize_t real_pwrite(int fd, const void *buf, size_t n, int64_t offset)
{
    return pwrite(fd, buf, n, (off_t)offset);
}

static void *real_map(int fd, size_t n_bytes)
{
    void *p = mmap(NULL, n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void real_unmap(void *p, size_t n_bytes)
{
    munmap(p, n_bytes);
}

static uint64_t clock_ns(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static uint64_t real_now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static int64_t real_wall_ns(void)
{
    return (int64_t)clock_ns(CLOCK_REALTIME);
}

static int real_random(void *buf, size_t n)
{
    return getrandom(buf, n, 0) == (ssize_t)n ? 0 : -1;
}

static int real_thread_create(pthread_t *t, void *(*fn)(void *), void *arg)
{
    return pthread_create(t, NULL, fn, arg);
}

static void real_drop(void *p, size_t n_bytes)
{
    madvise(p, n_bytes, MADV_DONTNEED); /* of a read-only file mapping: nothing is lost */
}

/* Fresh pages that begin where a huge page can: elsewhere the kernel would fill both ends with
 * small ones. */
static void *map_tensor(size_t n_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = SL_ROUND_UP(n_bytes, page);
    size_t align = n_bytes >= HUGE_PAGE ? HUGE_PAGE : page, n_all = n + align - page;
    uint8_t *p = mmap(NULL, n_all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    size_t skip = SL_ROUND_UP((uintptr_t)p, align) - (uintptr_t)p;
    if (skip > 0)
        munmap(p, skip);
    if (n_all - skip > n)
        munmap(p + skip + n, n_all - skip - n);
    madvise(p + skip, n, MADV_HUGEPAGE); /* advice only: failure costs speed, not correctness */
    return p + skip;
}

static void *real_alloc_tensor(size_t n_bytes)
{
    if (n_bytes >= MAP_THRESHOLD)
        return n_bytes <= SIZE_MAX / 2 ? map_tensor(n_bytes) : NULL;
    size_t rounded = SL_ROUND_UP(SL_MAX(n_bytes, 1), TENSOR_ALIGN);
    void *p = aligned_alloc(TENSOR_ALIGN, rounded);
    if (p != NULL)
        memset(p, 0, rounded);
    return p;
}

static void real_free_tensor(void *p, size_t n_bytes)
{
    if (n_bytes >= MAP_THRESHOLD)
        munmap(p, n_bytes);
    else
        free(p);
}

const struct sl_sys sl_sys_real = {
    .alloc = malloc,
    .realloc = realloc,
    .free = free,
    .alloc_tensor = real_alloc_tensor,
    .free_tensor = real_free_tensor,
    .open = real_open,
    .close = close,
    .file_size = real_file_size,
    .is_folder = real_is_folder,
    .pread = real_pread,
    .pwrite = real_pwrite,
    .read = read,
    .write = write,
    .sync = fsync,
    .map = real_map,
    .unmap = real_unmap,
    .drop = real_drop,
    .now_ns = real_now_ns,
    .wall_ns = real_wall_ns,
    .random = real_random,
    .thread_create = real_thread_create,
};

const struct sl_sys *sl_sys = &sl_sys_real;

static _Thread_local bool guard_armed;
static _Thread_local uint64_t guard_count;

void sl_alloc_guard_arm(bool on)
{
    guard_armed = on;
}

uint64_t sl_alloc_guard_count(void)
{
    return guard_count;
}

void *sl_malloc(size_t n_bytes)
{
    guard_count += guard_armed;
    return sl_sys->alloc(n_bytes != 0 ? n_bytes : 1);
}

void *sl_calloc(size_t n, size_t size)
{
    size_t n_bytes;
    if (!sl_mul_size(n, size, &n_bytes))
        return NULL;
    void *p = sl_malloc(n_bytes);
    if (p != NULL)
        memset(p, 0, n_bytes);
    return p;
}

void *sl_realloc(void *p, size_t n_bytes)
{
    guard_count += guard_armed;
    return sl_sys->realloc(p, n_bytes != 0 ? n_bytes : 1);
}

void sl_free(void *p)
{
    if (p != NULL)
        sl_sys->free(p);
}

char *sl_strndup(const char *s, size_t n)
{
    char *out = n < SIZE_MAX ? sl_malloc(n + 1) : NULL;
    if (out != NULL) {
        memcpy(out, s, n);
        out[n] = '\0';
    }
    return out;
}

char *sl_strdup(const char *s)
{
    return sl_strndup(s, strlen(s));
}

void *sl_aligned_alloc(size_t n_bytes)
{
    guard_count += guard_armed;
    return sl_sys->alloc_tensor(n_bytes);
}

void sl_aligned_free(void *p, size_t n_bytes)
{
    if (p != NULL)
        sl_sys->free_tensor(p, n_bytes);
}

static int open_regular(const char *path, int *fd, size_t *n_bytes, struct sl_error *err)
{
    *fd = sl_sys->open(path, O_RDONLY | O_NONBLOCK, 0); /* a FIFO is refused, not waited for */
    if (*fd < 0)
        return sl_fail(err, errno == ENOENT ? SL_ENOTFOUND : SL_EIO, "%s: %s", path,
                       strerror(errno));
    int64_t size = sl_sys->file_size(*fd);
    if (size < 0) {
        int rc = sl_fail(err, SL_EIO, "%s: %s", path, strerror(errno));
        sl_sys->close(*fd);
        return rc;
    }
    *n_bytes = (size_t)size;
    return 0;
}

int sl_map_open(struct sl_map *map, const char *path, struct sl_error *err)
{
    int fd;
    size_t n_bytes = 0;
    *map = (struct sl_map){(const uint8_t *)"", 0};
    int rc = open_regular(path, &fd, &n_bytes, err);
    if (rc != 0)
        return rc;
    if (n_bytes > 0) {
        const uint8_t *p = sl_sys->map(fd, n_bytes);
        if (p == NULL)
            rc = sl_fail(err, SL_EIO, "%s: cannot map: %s", path, strerror(errno));
        else
            *map = (struct sl_map){p, n_bytes};
    }
    sl_sys->close(fd);
    return rc;
}

void sl_map_close(struct sl_map *map)
{
    if (map->n_bytes > 0)
        sl_sys->unmap((void *)(uintptr_t)map->data, map->n_bytes);
    *map = (struct sl_map){(const uint8_t *)"", 0};
}

void sl_memory_drop(void *p, size_t n_bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t at = SL_ROUND_UP((uintptr_t)p, page), end = ((uintptr_t)p + n_bytes) / page * page;
    if (at < end)
        sl_sys->drop((void *)at, end - at);
}

bool sl_map_drop(const struct sl_map *map, const uint8_t *data, size_t n_bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), map_at = (uintptr_t)map->data;
    uintptr_t at = (uintptr_t)data, end = at + n_bytes;
    if (at < map_at || at - map_at > map->n_bytes || n_bytes > map->n_bytes - (at - map_at))
        return false;
    at = SL_ROUND_UP(at, page);
    end = end / page * page;
    if (at < end)
        sl_sys->drop((void *)at, end - at);
    return true;
}

/* Reads to the end of the stream, whatever fstat says: pipes and /proc files have no size. */
static int read_stream(int fd, const char *path, size_t max_bytes, char **out, size_t *n_out,
                       struct sl_error *err)
{
    size_t cap = 65536, n = 0;
    char *buf = sl_malloc(cap);
    if (buf == NULL)
        return sl_fail(err, SL_ENOMEM, "%s: out of memory", path);
    for (;;) {
        ssize_t got = sl_sys->read(fd, buf + n, cap - n - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            sl_free(buf);
            return sl_fail(err, SL_EIO, "%s: %s", path, strerror(errno));
        }
        if (got == 0)
            break;
        n += (size_t)got;
        if (n > max_bytes) {
            sl_free(buf);
            return sl_fail(err, SL_ETOOBIG, "%s: larger than %zu bytes", path, max_bytes);
        }
        if (cap - n < 2) {
            char *grown = sl_realloc(buf, cap * 2);
            if (grown == NULL) {
                sl_free(buf);
                return sl_fail(err, SL_ENOMEM, "%s: out of memory", path);
            }
            buf = grown;
            cap *= 2;
        }
    }
    buf[n] = '\0';
    *out = buf;
    *n_out = n;
    return 0;
}

int sl_read_file(const char *path, size_t max_bytes, char **out, size_t *n_out,
                 struct sl_error *err)
{
    if (strcmp(path, "-") == 0)
        return read_stream(STDIN_FILENO, "standard input", max_bytes, out, n_out, err);
    int fd = sl_sys->open(path, O_RDONLY, 0);
    if (fd < 0)
        return sl_fail(err, errno == ENOENT ? SL_ENOTFOUND : SL_EIO, "%s: %s", path,
                       strerror(errno));
    int rc = read_stream(fd, path, max_bytes, out, n_out, err);
    sl_sys->close(fd);
    return rc;
}

int sl_write_all(int fd, const void *buf, size_t n, struct sl_error *err)
{
    const char *p = buf;
    while (n > 0) {
        ssize_t put = sl_sys->write(fd, p, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return sl_fail(err, SL_EIO, "write failed: %s", strerror(errno));
        p += put;
        n -= (size_t)put;
    }
    return 0;
}

int sl_write_file(const char *path, const void *buf, size_t n, struct sl_error *err)
{
    int fd = sl_sys->open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0)
        return sl_fail(err, SL_EIO, "%s: %s", path, strerror(errno));
    int rc = sl_write_all(fd, buf, n, err);
    if (rc != 0)
        sl_error_prefix(err, rc, "%s", path);
    if (sl_sys->close(fd) != 0 && rc == 0)
        rc = sl_fail(err, SL_EIO, "%s: %s", path, strerror(errno));
    return rc;
}

bool sl_is_folder(const char *path)
{
    return sl_sys->is_folder(path);
}

uint64_t sl_now_ns(void)
{
    return sl_sys->now_ns();
}

int64_t sl_wall_ns(void)
{
    return sl_sys->wall_ns();
}

int sl_thread_create(pthread_t *t, void *(*fn)(void *), void *arg, const char *name,
                     struct sl_error *err)
{
    int e = sl_sys->thread_create(t, fn, arg);
    if (e != 0)
        return sl_fail(err, SL_ENOMEM, "cannot start thread %s: %s", name, strerror(e));
    pthread_setname_np(*t, name); /* 15 bytes at most; only a label for top and gdb */
    return 0;
}

int sl_cpu_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    return SL_MAX(CPU_COUNT(&set), 1);
}

/* The number that a file holds, UINT64_MAX when there is none. */
static uint64_t limit_in(const char *path)
{
    char text[32];
    uint64_t x;
    int fd = sl_sys->open(path, O_RDONLY, 0);
    if (fd < 0)
        return UINT64_MAX;
    ssize_t n = sl_sys->read(fd, text, sizeof text);
    sl_sys->close(fd);
    if (n > 0 && text[n - 1] == '\n')
        n--;
    return n > 0 && sl_parse_u64(text, (size_t)n, &x) ? x : UINT64_MAX; /* "max": no limit */
}

uint64_t sl_ram_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t ram = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    /* A container sees its own limit here, by the second version of control groups or the first. */
    uint64_t v2 = limit_in("/sys/fs/cgroup/memory.max");
    uint64_t limit = SL_MIN(v2, limit_in("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
    return limit != UINT64_MAX && (ram == 0 || limit < ram) ? limit : ram;
}

int sl_random(void *buf, size_t n, struct sl_error *err)
{
    return sl_sys->random(buf, n) == 0 ? 0 : sl_fail(err, SL_EIO, "no randomness from the kernel");
}
