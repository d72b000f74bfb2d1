/* SPDX-License-Identifier: MIT */
#include "base/paged.h"

#include "base/check.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LOAD_AT_ONCE (8u << 20)   /* bytes: who waits for the beginning does not wait for the end */
#define ASK_AT_ONCE  (128u << 10) /* bytes: what Linux reads ahead of a file by default */

struct sl_paged_file {
    int fd, n_pieces;
    uint64_t end; /* of the pieces */
    char *folder;
};

/* A file without a name; where the file system has none, one whose name is removed at once. */
static int open_nameless(const char *folder)
{
    char path[4096];
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return fd;
    if (snprintf(path, sizeof path, "%s/sluice-XXXXXX", folder) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    return fd;
}

int sl_paged_create(const char *folder, struct sl_paged_file **out, struct sl_error *err)
{
    *out = NULL;
    const int fd = open_nameless(folder);
    if (fd < 0)
        return sl_fail(err, errno == ENOENT ? SL_ENOTFOUND : SL_EIO,
                       "%.180s: cannot make a file in this folder: %s", folder, strerror(errno));
    struct sl_paged_file *f = sl_calloc(1, sizeof *f);
    char *copy = sl_strdup(folder);
    if (f == NULL || copy == NULL) {
        sl_free(f);
        sl_free(copy);
        close(fd);
        return sl_fail(err, SL_ENOMEM, "%.180s: out of memory", folder);
    }
    *f = (struct sl_paged_file){.fd = fd, .folder = copy};
    *out = f;
    return 0;
}

void sl_paged_destroy(struct sl_paged_file *f)
{
    if (f == NULL)
        return;
    SL_ASSERT(f->n_pieces == 0);
    close(f->fd);
    sl_free(f->folder);
    sl_free(f);
}

int sl_paged_take(struct sl_paged_file *f, size_t n_bytes, struct sl_paged_piece *out,
                  struct sl_error *err)
{
    SL_ASSERT(n_bytes > 0 && n_bytes <= SIZE_MAX / 2);
    const size_t n = SL_ROUND_UP(n_bytes, (size_t)sysconf(_SC_PAGESIZE));
    const int e = posix_fallocate(f->fd, (off_t)f->end, (off_t)n);
    if (e != 0)
        return sl_fail(err, SL_EIO, "%.160s: no room for %zu bytes behind %llu: %s", f->folder, n,
                       (unsigned long long)f->end, strerror(e));
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, (off_t)f->end);
    if (p == MAP_FAILED)
        return sl_fail(err, SL_ENOMEM, "%.180s: cannot map %zu bytes: %s", f->folder, n,
                       strerror(errno));
    *out = (struct sl_paged_piece){.data = p, .n_bytes = n, .offset = f->end};
    f->end += n;
    f->n_pieces++;
    return 0;
}

void sl_paged_give(struct sl_paged_file *f, struct sl_paged_piece *p)
{
    SL_ASSERT(f->n_pieces > 0 && p->data != NULL);
    munmap(p->data, p->n_bytes);
    *p = (struct sl_paged_piece){0};
    if (--f->n_pieces > 0)
        return;
    f->end = 0;
    if (ftruncate(f->fd, 0) != 0) /* room that stays taken until the end: no harm to anybody here */
        return;
}

int sl_paged_store(struct sl_paged_file *f, const struct sl_paged_piece *p, struct sl_error *err)
{
    if (msync(p->data, p->n_bytes, MS_SYNC) != 0)
        return sl_fail(err, SL_EIO, "%.180s: writing %zu bytes: %s", f->folder, p->n_bytes,
                       strerror(errno));
    sl_paged_drop(f, p);
    return 0;
}

void sl_paged_ask(const struct sl_paged_piece *p)
{
    /* in parts: of a long range the system reads no more ahead than of any file */
    for (size_t at = 0; at < p->n_bytes; at += ASK_AT_ONCE)
        madvise((uint8_t *)p->data + at, SL_MIN(p->n_bytes - at, ASK_AT_ONCE), MADV_WILLNEED);
}

void sl_paged_load(const struct sl_paged_piece *p)
{
    sl_paged_ask(p); /* the disk has all of it to do */
    for (size_t at = 0; at < p->n_bytes; at += LOAD_AT_ONCE) {
        /* Where the system cannot map ahead of use (before Linux 5.14), reading has begun at least.
         */
        madvise((uint8_t *)p->data + at, SL_MIN(p->n_bytes - at, LOAD_AT_ONCE), MADV_POPULATE_READ);
    }
}

void sl_paged_drop(struct sl_paged_file *f, const struct sl_paged_piece *p)
{
    madvise(p->data, p->n_bytes, MADV_DONTNEED);
    posix_fadvise(f->fd, (off_t)p->offset, (off_t)p->n_bytes, POSIX_FADV_DONTNEED);
}
