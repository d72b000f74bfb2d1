/* SPDX-License-Identifier: MIT */
#include "base/shm.h"

#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NAME "sluice-ranks"

int sl_shm_create(size_t n_bytes, int *fd, struct sl_error *err)
{
    *fd = memfd_create(NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0)
        return sl_fail(err, SL_EIO, "memfd_create: %s", strerror(errno));
    /* A peer that made it shorter would end this process at its next access. */
    if (ftruncate(*fd, (off_t)n_bytes) != 0 ||
        fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        int rc =
            sl_fail(err, SL_ENOMEM, "%zu bytes of shared memory: %s", n_bytes, strerror(errno));
        sl_sys->close(*fd);
        *fd = -1;
        return rc;
    }
    return 0;
}

int sl_shm_open_peer(int64_t pid, int32_t peer_fd, size_t n_bytes, int *fd, struct sl_error *err)
{
    static const char is[] = "/memfd:" NAME;
    char path[64], target[64] = "";
    struct stat st;
    *fd = -1;
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)pid, peer_fd);
    const ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < (ssize_t)strlen(is) || memcmp(target, is, strlen(is)) != 0)
        return sl_fail(err, SL_ENOTFOUND, "%s is not shared memory of ranks", path);
    *fd = sl_sys->open(path, O_RDWR, 0);
    if (*fd >= 0 && fstat(*fd, &st) == 0 && (uint64_t)st.st_size == n_bytes &&
        (fcntl(*fd, F_GET_SEALS) & F_SEAL_SHRINK) != 0)
        return 0;
    if (*fd >= 0)
        sl_sys->close(*fd);
    *fd = -1;
    return sl_fail(err, SL_EIO, "%s cannot be opened, or has another size", path);
}

int sl_shm_map(int fd, size_t n_bytes, void *at, void **out, struct sl_error *err)
{
    const int flags = MAP_SHARED | MAP_NORESERVE | (at != NULL ? MAP_FIXED : 0);
    void *p = mmap(at, n_bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    *out = NULL;
    if (p == MAP_FAILED)
        return sl_fail(err, SL_ENOMEM, "mapping %zu bytes of shared memory: %s", n_bytes,
                       strerror(errno));
    *out = p;
    return 0;
}

void sl_shm_unmap(void *p, size_t n_bytes)
{
    if (p != NULL)
        munmap(p, n_bytes);
}

void sl_shm_wait(const _Atomic uint32_t *word, uint32_t value, int ms)
{
    const struct timespec limit = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000L};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0);
}

void sl_shm_wake(const _Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
