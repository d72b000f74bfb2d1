/* SPDX-License-Identifier: MIT
 * mem_files.h - files that exist only in memory: a folder "dir" and what is in it, behind the
 * system table. Everything else is absent, and what is opened must be closed.
 */
#ifndef SL_FUZZ_MEM_FILES_H
#define SL_FUZZ_MEM_FILES_H

#include "base/str.h"
#include "base/sys.h"
#include "fuzz.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

struct mem_file {
    const char *name; /* NULL: absent */
    const void *data;
    size_t n_bytes;
};

static struct mem_file mem_files[8];
static int mem_n_open;
static struct sl_sys mem_sys;

/* A descriptor is the index of a file; the folder itself has one past the last. */
static int mem_open(const char *path, int flags, int mode)
{
    (void)mode;
    mem_n_open++;
    if (strcmp(path, "dir") == 0)
        return (int)SL_COUNT(mem_files);
    SL_ASSERT(sl_starts_with(path, "dir/") && strchr(path + 4, '/') == NULL);
    errno = ENOENT;
    for (size_t i = 0; i < SL_COUNT(mem_files); i++) {
        if (mem_files[i].name == NULL || strcmp(path + 4, mem_files[i].name) != 0)
            continue;
        if ((flags & O_DIRECTORY) == 0)
            return (int)i;
        errno = ENOTDIR;
    }
    mem_n_open--;
    return -1;
}

static int mem_close(int fd)
{
    (void)fd;
    mem_n_open--;
    return 0;
}

static int64_t mem_size(int fd)
{
    return (int64_t)mem_files[fd].n_bytes;
}

static void *mem_map(int fd, size_t n)
{
    SL_ASSERT(n == mem_files[fd].n_bytes);
    return (void *)(uintptr_t)mem_files[fd].data;
}

static void mem_unmap(void *p, size_t n)
{
    (void)p;
    (void)n;
}

static inline void mem_files_use(void)
{
    mem_sys = sl_sys_real;
    mem_sys.open = mem_open;
    mem_sys.close = mem_close;
    mem_sys.file_size = mem_size;
    mem_sys.map = mem_map;
    mem_sys.unmap = mem_unmap;
    mem_sys.drop = mem_unmap;
    sl_sys = &mem_sys;
}

#endif
