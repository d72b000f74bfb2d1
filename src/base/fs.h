/* SPDX-License-Identifier: MIT
 * fs.h - folders, links and locks: what a cache on disk needs besides reading and writing files.
 *
 * Any thread. Paths are NUL-terminated; errors name the path. Contents go through base/sys.h.
 */
#ifndef SL_BASE_FS_H
#define SL_BASE_FS_H

#include "base/err.h"

bool sl_exists(const char *path); /* follows links; false when it cannot be asked */
bool sl_file_bytes(const char *path, uint64_t *n); /* of a regular file, links followed */
/* The folder and all above it; no error if they are there. */
SL_MUST_CHECK int sl_make_folders(const char *path, struct sl_error *err);
/* The same for the folder that a file is to lie in. */
SL_MUST_CHECK int sl_make_parent(const char *path, struct sl_error *err);
SL_MUST_CHECK int sl_rename(const char *from, const char *to, struct sl_error *err);
/* A symbolic link at path, put in the place of whatever file or link was there, in one step. */
SL_MUST_CHECK int sl_make_link(const char *target, const char *path, struct sl_error *err);
/* Text into a file, in one step: a reader sees the old content or the new. */
SL_MUST_CHECK int sl_replace_file(const char *path, const void *data, size_t n,
                                  struct sl_error *err);
/* The same, on disk when it returns: what was acknowledged is there after a power cut. */
SL_MUST_CHECK int sl_replace_file_durably(const char *path, const void *data, size_t n,
                                          struct sl_error *err);
/* Makes the names in a folder last: files created, renamed and removed. */
SL_MUST_CHECK int sl_sync_folder(const char *path, struct sl_error *err);
void sl_remove_file(const char *path); /* if it is there and may be removed */
/* A file or a folder with all in it; links are removed, not followed. */
SL_MUST_CHECK int sl_remove_tree(const char *path, struct sl_error *err);

/* Calls fn for each regular file below dir, links to files included, with its path relative to dir
 * and its size; folders that are links are not entered. A missing folder has no files. Stops at
 * the first call that does not return 0 and returns that. */
typedef int (*sl_walk_fn)(void *arg, const char *path, uint64_t n_bytes, struct sl_error *err);
SL_MUST_CHECK int sl_walk(const char *dir, sl_walk_fn fn, void *arg, struct sl_error *err);
/* Calls fn for each entry of one folder, names only, "." and ".." left out. */
SL_MUST_CHECK int sl_list_folder(const char *dir, sl_walk_fn fn, void *arg, struct sl_error *err);

/* Bytes that this user may still write where path lies; UINT64_MAX if that cannot be asked. */
uint64_t sl_free_bytes(const char *path);

/* A lock that ends with the process that holds it (flock on a file that stays). *fd: the lock;
 * returns 1 = held now, 0 = another process has it. sl_unlock gives it back. */
SL_MUST_CHECK int sl_try_lock(const char *path, int *fd, struct sl_error *err);
void sl_unlock(int fd);

/* For names that other programs have given a meaning (HF_HOME), and where a library lies; nothing
 * else of sluice's own is chosen by the environment. NULL if absent or empty. */
const char *sl_environment(const char *name);

#endif
