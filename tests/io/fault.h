/* SPDX-License-Identifier: MIT
 * fault.h - an operating system whose k-th call fails, and which counts memory and files held.
 */
#ifndef SL_TESTS_IO_FAULT_H
#define SL_TESTS_IO_FAULT_H

#include "base/sys.h"

#include <errno.h>

enum { FAULT_ALLOC, FAULT_OPEN, FAULT_SIZE, FAULT_MAP, FAULT_WRITE, FAULT_CLOSE, FAULT_KINDS };

static struct {
    int kind;          /* which calls fail; -1 = none */
    uint64_t left;     /* calls of that kind that still succeed; then one fails */
    bool struck;       /* the failure happened */
    int64_t blocks;    /* heap blocks held */
    int64_t files;     /* descriptors held */
    int64_t maps;      /* mappings held */
    uint64_t bytes;    /* allocated since fault_arm, freed or not */
    struct sl_sys sys; /* the table in use */
} fault = {.kind = -1};

static inline bool fault_hit(int kind, int error)
{
    if (kind != fault.kind || fault.struck)
        return false;
    if (fault.left-- > 0)
        return false;
    fault.struck = true;
    errno = error;
    return true;
}

static inline void *fault_alloc(size_t n)
{
    void *p = fault_hit(FAULT_ALLOC, ENOMEM) ? NULL : sl_sys_real.alloc(n);
    fault.blocks += p != NULL;
    fault.bytes += n;
    return p;
}

static inline void *fault_realloc(void *old, size_t n)
{
    void *p = fault_hit(FAULT_ALLOC, ENOMEM) ? NULL : sl_sys_real.realloc(old, n);
    fault.blocks += p != NULL && old == NULL;
    fault.bytes += n;
    return p;
}

static inline void fault_free(void *p)
{
    fault.blocks -= p != NULL;
    sl_sys_real.free(p);
}

static inline int fault_open(const char *path, int flags, int mode)
{
    int fd = fault_hit(FAULT_OPEN, EACCES) ? -1 : sl_sys_real.open(path, flags, mode);
    fault.files += fd >= 0;
    return fd;
}

static inline int fault_close(int fd)
{
    fault.files--;
    int rc = sl_sys_real.close(fd);
    return fault_hit(FAULT_CLOSE, EIO) ? -1 : rc;
}

static inline int64_t fault_size(int fd)
{
    return fault_hit(FAULT_SIZE, EIO) ? -1 : sl_sys_real.file_size(fd);
}

static inline void *fault_map(int fd, size_t n)
{
    void *p = fault_hit(FAULT_MAP, ENOMEM) ? NULL : sl_sys_real.map(fd, n);
    fault.maps += p != NULL;
    return p;
}

static inline void fault_unmap(void *p, size_t n)
{
    fault.maps--;
    sl_sys_real.unmap(p, n);
}

static inline ssize_t fault_write(int fd, const void *buf, size_t n)
{
    return fault_hit(FAULT_WRITE, ENOSPC) ? -1 : sl_sys_real.write(fd, buf, n);
}

/* Puts the table underneath; the call number `left` of this kind will fail. */
static inline void fault_arm(int kind, uint64_t left)
{
    fault.kind = kind;
    fault.left = left;
    fault.struck = false;
    fault.bytes = 0;
    fault.sys = sl_sys_real;
    fault.sys.alloc = fault_alloc;
    fault.sys.realloc = fault_realloc;
    fault.sys.free = fault_free;
    fault.sys.open = fault_open;
    fault.sys.close = fault_close;
    fault.sys.file_size = fault_size;
    fault.sys.map = fault_map;
    fault.sys.unmap = fault_unmap;
    fault.sys.write = fault_write;
    sl_sys = &fault.sys;
}

/* Calls still go through the table, so that what is freed later is counted; none fails. */
static inline void fault_disarm(void)
{
    fault.kind = -1;
}

static inline bool fault_clean(void)
{
    return fault.blocks == 0 && fault.files == 0 && fault.maps == 0;
}

#endif
