/* SPDX-License-Identifier: MIT
 * sys.h - the one door to the operating system: memory, files, time, randomness, threads.
 *
 * All other code calls these wrappers, which go through `sl_sys`, so that a test or the simulator
 * can put a failing allocator or a virtual clock underneath. The table is replaced only while no
 * other thread runs. `make lint` refuses direct calls of what is wrapped here.
 */
#ifndef SL_BASE_SYS_H
#define SL_BASE_SYS_H

#include "base/err.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sl_sys {
    void *(*alloc)(size_t n_bytes);
    void *(*realloc)(void *p, size_t n_bytes);
    void (*free)(void *p);
    void *(*alloc_tensor)(size_t n_bytes); /* zeroed, aligned to 64 */
    void (*free_tensor)(void *p, size_t n_bytes);
    int (*open)(const char *path, int flags, int mode); /* as open(2), O_CLOEXEC added */
    int (*close)(int fd);
    int64_t (*file_size)(int fd);
    bool (*is_folder)(const char *path);
    ssize_t (*pread)(int fd, void *buf, size_t n, int64_t offset);
    ssize_t (*pwrite)(int fd, const void *buf, size_t n, int64_t offset);
    ssize_t (*read)(int fd, void *buf, size_t n);
    ssize_t (*write)(int fd, const void *buf, size_t n);
    int (*sync)(int fd);                  /* as fsync(2) */
    void *(*map)(int fd, size_t n_bytes); /* read-only private mapping, NULL on failure */
    void (*unmap)(void *p, size_t n_bytes);
    void (*drop)(void *p, size_t n_bytes); /* whole pages of a mapping: read again when touched */
    uint64_t (*now_ns)(void);              /* monotonic */
    int64_t (*wall_ns)(void);              /* since 1970 UTC */
    int (*random)(void *buf, size_t n);    /* 0 or -1 */
    int (*thread_create)(pthread_t *t, void *(*fn)(void *), void *arg); /* 0 or errno */
};

extern const struct sl_sys sl_sys_real;
extern const struct sl_sys *sl_sys; /* &sl_sys_real unless a test replaced it */

/* Memory. NULL when out of memory or on overflow; sl_free(NULL) is fine. */
void *sl_malloc(size_t n_bytes) __attribute__((malloc));
void *sl_calloc(size_t n, size_t size) __attribute__((malloc));
void *sl_realloc(void *p, size_t n_bytes);
char *sl_strndup(const char *s, size_t n) __attribute__((malloc));
char *sl_strdup(const char *s) __attribute__((malloc));
/* Zeroed, aligned to 64 bytes, for tensors; page-backed lazily when large. Free with
 * sl_aligned_free. */
void *sl_aligned_alloc(size_t n_bytes) __attribute__((malloc));
void sl_aligned_free(void *p, size_t n_bytes);

/* Counts heap calls of the current thread while armed; the engine thread reads it after each step.
 */
void sl_alloc_guard_arm(bool on);
uint64_t sl_alloc_guard_count(void);

/* Files. A mapping of an empty file has data "" and size 0. */
struct sl_map {
    const uint8_t *data;
    size_t n_bytes;
};
SL_MUST_CHECK int sl_map_open(struct sl_map *map, const char *path, struct sl_error *err);
void sl_map_close(struct sl_map *map);
/* Says that a range will hardly be read again: the pages that lie wholly in it leave this process's
 * memory, not the page cache, and the content stays readable. False: not a range of this mapping.
 */
bool sl_map_drop(const struct sl_map *map, const uint8_t *data, size_t n_bytes);
/* The contents of a tensor's range are not needed any more: pages of memory that lie wholly in it
 * go back to the system, and are zero or as they were when touched again. */
void sl_memory_drop(void *p, size_t n_bytes);
/* Reads a whole file of at most max_bytes into a NUL-terminated heap buffer. path "-" is stdin. */
SL_MUST_CHECK int sl_read_file(const char *path, size_t max_bytes, char **out, size_t *n_out,
                               struct sl_error *err);
/* Writes everything or fails. */
SL_MUST_CHECK int sl_write_all(int fd, const void *buf, size_t n, struct sl_error *err);
SL_MUST_CHECK int sl_write_file(const char *path, const void *buf, size_t n, struct sl_error *err);

bool sl_is_folder(const char *path); /* false too when it cannot be asked */

/* Time. */
uint64_t sl_now_ns(void);
int64_t sl_wall_ns(void);

/* Threads. */
SL_MUST_CHECK int sl_thread_create(pthread_t *t, void *(*fn)(void *), void *arg, const char *name,
                                   struct sl_error *err);
int sl_cpu_count(void);      /* cores this process may run on, >= 1 */
uint64_t sl_ram_bytes(void); /* of the machine, or of the container if less; 0 = unknown */

SL_MUST_CHECK int sl_random(void *buf, size_t n, struct sl_error *err);

#ifdef __cplusplus
}
#endif

#endif
