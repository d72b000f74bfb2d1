/* SPDX-License-Identifier: MIT */
#include "base/fs.h"

#include "base/buf.h"
#include "base/sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MAX_DEPTH 16 /* of folders below one that is walked or removed */

static int fail_errno(const char *path, struct sl_error *err)
{
    int e = errno;
    return sl_fail(err, e == ENOENT ? SL_ENOTFOUND : SL_EIO, "%.180s: %s", path, strerror(e));
}

bool sl_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool sl_file_bytes(const char *path, uint64_t *n)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return false;
    *n = (uint64_t)st.st_size;
    return true;
}

static int make_folders_of(char *path, struct sl_error *err)
{
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        char was = *p;
        *p = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST && !sl_is_folder(path))
            return fail_errno(path, err);
        *p = was;
        if (was == '\0')
            break;
    }
    return sl_is_folder(path) ? 0 : sl_fail(err, SL_EIO, "%.180s: is not a folder", path);
}

static int make_folders(const char *path, size_t n, struct sl_error *err)
{
    if (n == 0)
        return 0;
    char *copy = sl_strndup(path, n);
    int rc = copy != NULL ? make_folders_of(copy, err)
                          : sl_fail(err, SL_ENOMEM, "%.180s: out of memory", path);
    sl_free(copy);
    return rc;
}

int sl_make_folders(const char *path, struct sl_error *err)
{
    return make_folders(path, strlen(path), err);
}

int sl_make_parent(const char *path, struct sl_error *err)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? make_folders(path, (size_t)(slash - path), err) : 0;
}

int sl_rename(const char *from, const char *to, struct sl_error *err)
{
    return rename(from, to) == 0 ? 0 : fail_errno(to, err);
}

/* A name beside path that no other process uses. */
static char *name_beside(const char *path)
{
    struct sl_buf b = {0};
    sl_buf_printf(&b, "%s.%ld.%llx.tmp", path, (long)getpid(), (unsigned long long)sl_now_ns());
    return sl_buf_steal(&b, NULL);
}

int sl_make_link(const char *target, const char *path, struct sl_error *err)
{
    char *temporary = name_beside(path);
    if (temporary == NULL)
        return sl_fail(err, SL_ENOMEM, "%.180s: out of memory", path);
    int rc =
        symlink(target, temporary) == 0 ? sl_rename(temporary, path, err) : fail_errno(path, err);
    if (rc != 0)
        sl_remove_file(temporary);
    sl_free(temporary);
    return rc;
}

/* Opens what is there, syncs it and closes it. */
static int sync_path(const char *path, int flags, struct sl_error *err)
{
    int fd = sl_sys->open(path, O_RDONLY | flags, 0);
    if (fd < 0)
        return fail_errno(path, err);
    int rc = 0;
    /* Some file systems cannot sync a folder and say so; they have nothing else to offer. */
    if (sl_sys->sync(fd) != 0 && !(flags == O_DIRECTORY && errno == EINVAL))
        rc = fail_errno(path, err);
    sl_sys->close(fd);
    return rc;
}

int sl_sync_folder(const char *path, struct sl_error *err)
{
    return sync_path(path, O_DIRECTORY, err);
}

static int sync_parent(const char *path, struct sl_error *err)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL || slash == path)
        return sl_sync_folder(slash == NULL ? "." : "/", err);
    char *folder = sl_strndup(path, (size_t)(slash - path));
    int rc = folder != NULL ? sl_sync_folder(folder, err)
                            : sl_fail(err, SL_ENOMEM, "%.180s: out of memory", path);
    sl_free(folder);
    return rc;
}

static int replace_file(const char *path, const void *data, size_t n, bool durably,
                        struct sl_error *err)
{
    char *temporary = name_beside(path);
    if (temporary == NULL)
        return sl_fail(err, SL_ENOMEM, "%.180s: out of memory", path);
    int rc = sl_write_file(temporary, data, n, err);
    if (rc == 0 && durably)
        rc = sync_path(temporary, 0, err);
    if (rc == 0)
        rc = sl_rename(temporary, path, err);
    if (rc != 0)
        sl_remove_file(temporary);
    sl_free(temporary);
    return rc == 0 && durably ? sync_parent(path, err) : rc;
}

int sl_replace_file(const char *path, const void *data, size_t n, struct sl_error *err)
{
    return replace_file(path, data, n, false, err);
}

int sl_replace_file_durably(const char *path, const void *data, size_t n, struct sl_error *err)
{
    return replace_file(path, data, n, true, err);
}

void sl_remove_file(const char *path)
{
    unlink(path);
}

/* Opens a folder; *out NULL and 0: there is none. */
static int open_folder(const char *dir, DIR **out, struct sl_error *err)
{
    *out = opendir(dir);
    return *out != NULL || errno == ENOENT || errno == ENOTDIR ? 0 : fail_errno(dir, err);
}

static const char *next_name(DIR *d)
{
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            return e->d_name;
    }
    return NULL;
}

int sl_list_folder(const char *dir, sl_walk_fn fn, void *arg, struct sl_error *err)
{
    DIR *d;
    int rc = open_folder(dir, &d, err);
    if (rc != 0 || d == NULL)
        return rc;
    for (const char *name; rc == 0 && (name = next_name(d)) != NULL;)
        rc = fn(arg, name, 0, err);
    closedir(d);
    return rc;
}

struct walk {
    struct sl_buf path;
    size_t n_root; /* bytes of path in front of what is relative */
    sl_walk_fn fn;
    void *arg;
    bool remove; /* what is found, instead of calling fn */
    int depth;
};

static int walk_folder(struct walk *w, struct sl_error *err);

static int walk_entry(struct walk *w, struct sl_error *err)
{
    struct stat st;
    const char *path = w->path.data;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? 0 : fail_errno(path, err); /* gone meanwhile */
    if (S_ISDIR(st.st_mode))
        return walk_folder(w, err);
    if (w->remove)
        return unlink(path) == 0 || errno == ENOENT ? 0 : fail_errno(path, err);
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return 0; /* a link to nowhere, a socket */
    return w->fn(w->arg, path + w->n_root, (uint64_t)st.st_size, err);
}

static int walk_folder(struct walk *w, struct sl_error *err)
{
    DIR *d;
    size_t n_here = w->path.n_bytes;
    if (w->depth == MAX_DEPTH)
        return sl_fail(err, SL_ELIMIT, "%.180s: folders nest deeper than %d", w->path.data,
                       MAX_DEPTH);
    int rc = open_folder(w->path.data, &d, err);
    if (rc != 0 || d == NULL)
        return rc;
    w->depth++;
    for (const char *name; rc == 0 && (name = next_name(d)) != NULL;) {
        sl_buf_printf(&w->path, "/%s", name);
        rc = sl_buf_ok(&w->path) ? walk_entry(w, err) : sl_fail(err, SL_ENOMEM, "out of memory");
        w->path.n_bytes = n_here;
        if (w->path.data != NULL)
            w->path.data[n_here] = '\0';
    }
    closedir(d);
    w->depth--;
    if (rc == 0 && w->remove && rmdir(w->path.data) != 0 && errno != ENOENT)
        rc = fail_errno(w->path.data, err);
    return rc;
}

static int walk_tree(struct walk *w, const char *dir, struct sl_error *err)
{
    sl_buf_puts(&w->path, dir);
    w->n_root = w->path.n_bytes + 1;
    int rc = sl_buf_ok(&w->path) ? walk_folder(w, err) : sl_fail(err, SL_ENOMEM, "out of memory");
    sl_buf_deinit(&w->path);
    return rc;
}

int sl_walk(const char *dir, sl_walk_fn fn, void *arg, struct sl_error *err)
{
    struct walk w = {.fn = fn, .arg = arg};
    return walk_tree(&w, dir, err);
}

int sl_remove_tree(const char *path, struct sl_error *err)
{
    struct stat st;
    struct walk w = {.remove = true};
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? 0 : fail_errno(path, err);
    if (!S_ISDIR(st.st_mode))
        return unlink(path) == 0 ? 0 : fail_errno(path, err);
    return walk_tree(&w, path, err);
}

uint64_t sl_free_bytes(const char *path)
{
    struct statvfs st;
    return statvfs(path, &st) == 0 ? (uint64_t)st.f_bavail * (uint64_t)st.f_frsize : UINT64_MAX;
}

int sl_try_lock(const char *path, int *fd, struct sl_error *err)
{
    *fd = sl_sys->open(path, O_RDWR | O_CREAT, 0644);
    if (*fd < 0)
        return fail_errno(path, err);
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0)
        return 1;
    int rc = errno == EWOULDBLOCK || errno == EINTR ? 0 : fail_errno(path, err);
    sl_sys->close(*fd);
    *fd = -1;
    return rc;
}

void sl_unlock(int fd)
{
    sl_sys->close(fd); /* the lock goes with it */
}

const char *sl_environment(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}
