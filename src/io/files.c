/* SPDX-License-Identifier: MIT */
#include "io/files.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "io/bundle.h"
#include "io/names.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>

struct file_entry {
    struct file_entry *next;
    struct sl_map map;
    char name[]; /* NUL-terminated */
};

struct sl_files {
    char *dir; /* NULL: bundled */
    pthread_mutex_t lock;
    struct file_entry *open; /* newest first; a model has few files, shards are asked for once */
    int n_open;
};

int sl_files_open(const char *dir, struct sl_files **out, struct sl_error *err)
{
    if (dir == NULL && sl_bundle_table[0].name == NULL)
        return sl_fail(err, SL_ENOTFOUND, "this build carries no bundled model; name a model");
    struct sl_files *f = sl_calloc(1, sizeof *f);
    if (f == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    if (dir != NULL && (f->dir = sl_strdup(dir)) == NULL) {
        sl_free(f);
        return sl_fail(err, SL_ENOMEM, "out of memory");
    }
    pthread_mutex_init(&f->lock, NULL); /* cannot fail with default attributes on Linux */
    *out = f;
    return 0;
}

void sl_files_close(struct sl_files *f)
{
    if (f == NULL)
        return;
    while (f->open != NULL) {
        struct file_entry *next = f->open->next;
        sl_map_close(&f->open->map);
        sl_free(f->open);
        f->open = next;
    }
    pthread_mutex_destroy(&f->lock);
    sl_free(f->dir);
    sl_free(f);
}

const char *sl_files_path(const struct sl_files *f)
{
    return f->dir != NULL ? f->dir : "(bundled)";
}

static int get_bundled(const char *name, const uint8_t **data, size_t *n_bytes)
{
    for (const struct sl_embedded *b = sl_bundle_table; b->name != NULL; b++) {
        if (strcmp(b->name, name) == 0) {
            *data = b->data;
            *n_bytes = (size_t)b->n_bytes;
            return 1;
        }
    }
    return 0;
}

static int open_locked(struct sl_files *f, const char *name, struct file_entry **out,
                       struct sl_error *err)
{
    for (*out = f->open; *out != NULL; *out = (*out)->next) {
        if (strcmp((*out)->name, name) == 0)
            return 1;
    }
    if (f->n_open >= SL_MAX_FILES)
        return sl_fail(err, SL_ELIMIT, "%s: more than %d files", sl_names_path_tail(f->dir),
                       SL_MAX_FILES);
    size_t n_dir = strlen(f->dir), n_name = strlen(name);
    char *path = sl_malloc(n_dir + n_name + 2);
    struct file_entry *e = sl_calloc(1, sizeof *e + n_name + 1);
    int rc;
    if (path == NULL || e == NULL) {
        rc = sl_fail(err, SL_ENOMEM, "%s: out of memory", name);
        goto out;
    }
    memcpy(path, f->dir, n_dir);
    path[n_dir] = '/';
    memcpy(path + n_dir + 1, name, n_name + 1);
    memcpy(e->name, name, n_name + 1);
    rc = sl_map_open(&e->map, path, err);
    if (rc != 0) {
        rc = rc == SL_ENOTFOUND ? 0 : rc;
        goto out;
    }
    e->next = f->open;
    f->open = e;
    f->n_open++;
    *out = e;
    e = NULL;
    rc = 1;
out:
    sl_free(e);
    sl_free(path);
    return rc;
}

int sl_files_get(struct sl_files *f, const char *name, const uint8_t **data, size_t *n_bytes,
                 struct sl_error *err)
{
    if (!sl_names_inner_file(name, strlen(name)))
        return sl_fail(err, SL_EINVAL, "%.100s: not the name of a file of a model", name);
    if (f->dir == NULL)
        return get_bundled(name, data, n_bytes);
    struct file_entry *e;
    pthread_mutex_lock(&f->lock);
    int rc = open_locked(f, name, &e, err);
    if (rc == 1) {
        *data = e->map.data;
        *n_bytes = e->map.n_bytes;
    }
    pthread_mutex_unlock(&f->lock);
    return rc;
}

void sl_files_drop(struct sl_files *f, const uint8_t *data, size_t n_bytes)
{
    pthread_mutex_lock(&f->lock);
    for (struct file_entry *e = f->open; e != NULL && !sl_map_drop(&e->map, data, n_bytes);)
        e = e->next;
    pthread_mutex_unlock(&f->lock);
}
