/* SPDX-License-Identifier: MIT */
#include "hub/files.h"

#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
#include "io/json.h"

#include <jansson.h>
#include <string.h>

#define MAX_LISTED 100000 /* files of one repository; model repositories have tens */

void sl_hub_files_deinit(struct sl_hub_files *f)
{
    sl_free(f->items);
    sl_arena_deinit(&f->arena);
    *f = (struct sl_hub_files){0};
}

int sl_hub_files_add(struct sl_hub_files *f, const char *path, size_t n_path,
                     struct sl_hub_file **out, struct sl_error *err)
{
    SL_ASSERT(f->n <= f->cap && sl_hub_path_safe(path, n_path));
    if (f->n == MAX_LISTED)
        return sl_fail(err, SL_ELIMIT, "the repository has more than %d files", MAX_LISTED);
    if (f->n == f->cap) {
        size_t cap = SL_MAX(f->cap * 2, 64);
        struct sl_hub_file *grown = sl_realloc(f->items, cap * sizeof *grown);
        if (grown == NULL)
            return sl_fail(err, SL_ENOMEM, "out of memory for a list of files");
        f->items = grown;
        f->cap = cap;
    }
    struct sl_hub_file *file = &f->items[f->n];
    *file = (struct sl_hub_file){.path = sl_arena_strndup(&f->arena, path, n_path)};
    if (file->path == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a list of files");
    f->n++;
    SL_ASSERT(f->n <= f->cap && file->path[n_path] == '\0');
    *out = file;
    return 0;
}

struct sl_hub_file *sl_hub_files_find(const struct sl_hub_files *f, const char *path)
{
    for (size_t i = 0; i < f->n; i++) {
        if (strcmp(f->items[i].path, path) == 0)
            return &f->items[i];
    }
    return NULL;
}

static void take_size(struct sl_hub_file *file, const json_t *size)
{
    if (json_is_integer(size) && json_integer_value(size) >= 0) {
        file->sized = true;
        file->n_bytes = (uint64_t)json_integer_value(size);
    }
}

static void take_id(struct sl_hub_file *file, const json_t *id, size_t n_digits)
{
    SL_ASSERT(n_digits <= SL_HUB_ID_BYTES);
    const char *s = json_string_value(id);
    if (s != NULL && json_string_length(id) == n_digits && sl_hub_is_hex(s, n_digits))
        memcpy(file->id, s, n_digits + 1);
    SL_DCHECK(file->id[0] == '\0' || strlen(file->id) == n_digits);
}

static int parse_file(struct sl_hub_files *f, const json_t *entry, struct sl_error *err)
{
    struct sl_hub_file *file;
    const json_t *path = json_object_get(entry, "rfilename");
    const char *s = json_string_value(path);
    if (s == NULL)
        return sl_fail(err, SL_EFORMAT, "the hub's list of files has an entry without rfilename");
    size_t n = json_string_length(path);
    if (!sl_hub_path_safe(s, n))
        return 0; /* no model needs a file of such a name */
    int rc = sl_hub_files_add(f, s, n, &file, err);
    if (rc != 0)
        return rc;
    const json_t *lfs = json_object_get(entry, "lfs");
    SL_ASSERT(file->id[0] == '\0' && !file->sized && !file->wanted);
    take_size(file, json_object_get(entry, "size"));
    take_id(file, json_object_get(entry, "blobId"), 40);
    if (json_is_object(lfs)) {
        file->id[0] = '\0'; /* the git object of a large file is only a pointer to it */
        take_size(file, json_object_get(lfs, "size"));
        take_id(file, json_object_get(lfs, "sha256"), 64);
    }
    return 0;
}

int sl_hub_files_parse(struct sl_hub_files *f, const char *json, size_t n, struct sl_error *err)
{
    json_t *root = NULL;
    SL_ASSERT(f->n == 0 && f->items == NULL);
    int rc = sl_json_object(json, n, SL_JSON_MAX_INDEX, "the hub's reply", &root, err);
    if (rc != 0)
        return rc;
    const json_t *sha = json_object_get(root, "sha"), *entry;
    const json_t *siblings = json_object_get(root, "siblings");
    const char *commit = json_string_value(sha);
    size_t i;
    if (commit == NULL || json_string_length(sha) != 40 || !sl_hub_is_hex(commit, 40))
        rc = sl_fail(err, SL_EFORMAT, "the hub's reply: sha is not a commit");
    else if (!json_is_array(siblings))
        rc = sl_fail(err, SL_EFORMAT, "the hub's reply: siblings is not a list of files");
    else
        memcpy(f->commit, commit, 41);
    for (i = 0; rc == 0 && i < json_array_size(siblings); i++) {
        entry = json_array_get(siblings, i);
        rc = parse_file(f, entry, err);
    }
    SL_ASSERT(f->n <= MAX_LISTED && (rc != 0 || f->commit[40] == '\0'));
    json_decref(root);
    return rc;
}
