/* SPDX-License-Identifier: MIT */
#include "io/checkpoint.h"

#include "base/check.h"
#include "io/checkpoint_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

int sl_ckpt_impl_reserve(struct sl_ckpt *c, uint64_t n, struct sl_error *err)
{
    if (n > SL_MAX_TENSORS)
        return sl_fail(err, SL_ELIMIT, "%s: %" PRIu64 " tensors, the limit is %d",
                       sl_names_path_tail(c->path), n, SL_MAX_TENSORS);
    c->rows = sl_arena_array(&c->arena, (size_t)n, sizeof *c->rows);
    if (c->rows == NULL || !sl_names_init(&c->names, &c->arena, (size_t)n))
        return sl_fail(err, SL_ENOMEM, "%s: out of memory for %" PRIu64 " tensors",
                       sl_names_path_tail(c->path), n);
    c->n_expected = (size_t)n;
    return 0;
}

int sl_ckpt_impl_add(struct sl_ckpt *c, const struct sl_ckpt_row *row, struct sl_error *err)
{
    SL_ASSERT(c->n_tensors < c->n_expected);
    const char *name = row->tensor.name;
    if (!sl_names_add(&c->names, name, strlen(name), (uint32_t)c->n_tensors)) {
        int64_t other = sl_names_find(&c->names, name, strlen(name));
        return sl_fail(err, SL_EFORMAT, "tensor %.80s is in %.60s and in %.60s", name,
                       sl_ckpt_impl_shard_name(c, c->rows[other].shard_idx),
                       sl_ckpt_impl_shard_name(c, row->shard_idx));
    }
    c->rows[c->n_tensors++] = *row;
    return 0;
}

const char *sl_ckpt_impl_shard_name(const struct sl_ckpt *c, uint32_t shard_idx)
{
    return c->shard_names[shard_idx];
}

/* Opened as a folder to ask the kernel what it is, through the same door as everything else. */
static int is_folder(const char *path, bool *out, struct sl_error *err)
{
    int fd = sl_sys->open(path, O_RDONLY | O_DIRECTORY, 0);
    *out = fd >= 0;
    if (fd >= 0) {
        sl_sys->close(fd);
        return 0;
    }
    if (errno == ENOTDIR)
        return 0;
    return sl_fail(err, errno == ENOENT ? SL_ENOTFOUND : SL_EIO, "%s: %s", sl_names_path_tail(path),
                   strerror(errno));
}

int sl_ckpt_open(const char *path, struct sl_ckpt **out, struct sl_error *err)
{
    bool folder = true;
    int rc = path != NULL ? is_folder(path, &folder, err) : 0;
    if (rc != 0)
        return rc;
    struct sl_ckpt *c = sl_calloc(1, sizeof *c);
    if (c == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    c->kind = folder ? SL_CKPT_HF : SL_CKPT_GGUF;
    c->path = sl_strdup(path != NULL ? path : "(bundled)");
    if (c->path == NULL)
        rc = sl_fail(err, SL_ENOMEM, "out of memory");
    else
        rc = folder ? sl_ckpt_impl_open_folder(c, path, err) : sl_ckpt_impl_open_gguf(c, path, err);
    if (rc != 0) {
        sl_ckpt_close(c);
        return sl_names_scrub(err, rc);
    }
    *out = c;
    return 0;
}

void sl_ckpt_close(struct sl_ckpt *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; c->gguf != NULL && i < c->n_shards; i++) {
        sl_gguf_close(c->gguf[i].gguf);
        sl_map_close(&c->gguf[i].map);
    }
    for (size_t i = 0; c->st != NULL && i < c->n_shards; i++)
        sl_st_close(c->st[i]);
    json_decref(c->config);
    json_decref(c->generation_config);
    sl_files_close(c->files);
    sl_arena_deinit(&c->arena);
    sl_free(c->path);
    sl_free(c);
}

enum sl_ckpt_kind sl_ckpt_kind(const struct sl_ckpt *c)
{
    return c->kind;
}

const char *sl_ckpt_path(const struct sl_ckpt *c)
{
    return c->path;
}

size_t sl_ckpt_n_tensors(const struct sl_ckpt *c)
{
    return c->n_tensors;
}

const struct sl_ckpt_tensor *sl_ckpt_tensor_at(const struct sl_ckpt *c, size_t idx)
{
    SL_ASSERT(idx < c->n_tensors);
    return &c->rows[idx].tensor;
}

static const struct sl_ckpt_row *find_row(const struct sl_ckpt *c, const char *name)
{
    int64_t idx = sl_names_find(&c->names, name, strlen(name));
    return idx >= 0 ? &c->rows[idx] : NULL;
}

const struct sl_ckpt_tensor *sl_ckpt_find(const struct sl_ckpt *c, const char *name)
{
    const struct sl_ckpt_row *row = find_row(c, name);
    return row != NULL && row->unsupported == NULL ? &row->tensor : NULL;
}

const struct sl_ckpt_tensor *sl_ckpt_find_raw(const struct sl_ckpt *c, const char *name,
                                              const char *st_name)
{
    const struct sl_ckpt_row *row = find_row(c, name);
    if (row == NULL || row->raw == NULL || strcmp(row->raw, st_name) != 0)
        return NULL;
    return &row->tensor;
}

const char *sl_ckpt_unsupported(const struct sl_ckpt *c, const char *name)
{
    const struct sl_ckpt_row *row = find_row(c, name);
    return row != NULL ? row->unsupported : NULL;
}

void sl_ckpt_drop(const struct sl_ckpt *c, const struct sl_ckpt_tensor *t)
{
    if (c->files != NULL)
        sl_files_drop(c->files, t->data, (size_t)t->n_bytes);
    for (size_t i = 0; c->gguf != NULL && i < c->n_shards; i++) {
        if (sl_map_drop(&c->gguf[i].map, t->data, (size_t)t->n_bytes))
            return;
    }
}

const json_t *sl_ckpt_config(const struct sl_ckpt *c)
{
    return c->config;
}

const json_t *sl_ckpt_generation_config(const struct sl_ckpt *c)
{
    return c->generation_config;
}

int sl_ckpt_file(const struct sl_ckpt *c, const char *name, const char **data, size_t *n_bytes,
                 struct sl_error *err)
{
    const uint8_t *bytes;
    if (c->files == NULL)
        return 0;
    int rc = sl_files_get(c->files, name, &bytes, n_bytes, err);
    if (rc == 1)
        *data = (const char *)bytes;
    return rc;
}

const struct sl_gguf *sl_ckpt_gguf(const struct sl_ckpt *c)
{
    return c->gguf != NULL ? c->gguf[0].gguf : NULL;
}
