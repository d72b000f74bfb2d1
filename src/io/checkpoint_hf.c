/* SPDX-License-Identifier: MIT
 *
 * A Hugging Face folder: config.json, and weights in model.safetensors or in the shards that the
 * weight_map of model.safetensors.index.json names.
 */
#include "base/check.h"
#include "base/log.h"
#include "base/str.h"
#include "io/checkpoint_impl.h"
#include "io/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE  "model.safetensors.index.json"

static int checkpoint_hf_no_memory(const struct sl_ckpt *c, struct sl_error *err)
{
    return sl_fail(err, SL_ENOMEM, "%s: out of memory", sl_names_path_tail(c->path));
}

/* 1 = parsed, 0 = absent, negative = unreadable or malformed */
static int read_json(struct sl_ckpt *c, const char *name, size_t max_bytes, json_t **out,
                     struct sl_error *err)
{
    const uint8_t *data;
    size_t n_bytes;
    int rc = sl_files_get(c->files, name, &data, &n_bytes, err);
    if (rc <= 0)
        return rc;
    rc = sl_json_object((const char *)data, n_bytes, max_bytes, name, out, err);
    return rc == 0 ? 1 : rc;
}

static int open_shard(struct sl_ckpt *c, size_t idx, struct sl_error *err)
{
    const uint8_t *data;
    size_t n_bytes;
    const char *name = c->shard_names[idx];
    int rc = sl_files_get(c->files, name, &data, &n_bytes, err);
    if (rc == 0)
        return sl_fail(err, SL_ENOTFOUND, "%s: shard %.120s named in %s is missing",
                       sl_names_path_tail(c->path), name, INDEX_FILE);
    return rc < 0 ? rc : sl_st_open(data, n_bytes, name, &c->st[idx], err);
}

static const char *shape_reason(struct sl_ckpt *c, const struct sl_st_tensor *t, const char *what)
{
    char text[96];
    int n = t->n_dims > SL_MAX_DIMS
                ? snprintf(text, sizeof text, "%s with %d dimensions", t->dtype, t->n_dims)
                : snprintf(text, sizeof text, "%s%s", t->dtype, what);
    return sl_arena_strndup(&c->arena, text, (size_t)n);
}

static int checkpoint_hf_add_tensor(struct sl_ckpt *c, uint32_t shard_idx, const uint8_t *data,
                                    const struct sl_st_tensor *t, struct sl_error *err)
{
    int dtype = sl_dtype_from_st(t->dtype, strlen(t->dtype));
    int32_t n_outer = SL_MAX(t->n_dims - SL_MAX_DIMS, 0); /* folded into the first dimension */
    bool empty = false;
    struct sl_ckpt_row row = {
        .tensor = {.name = t->name, .dims = {1, 1, 1, 1}, .n_bytes = t->n_bytes},
        .shard_idx = shard_idx,
    };
    row.tensor.n_dims = t->n_dims - n_outer;
    for (int32_t i = 0; i < t->n_dims; i++) {
        int64_t *dim = &row.tensor.dims[SL_MAX(i - n_outer, 0)];
        *dim *= t->dims[i]; /* no overflow: the product of all was checked by the reader */
        empty = empty || t->dims[i] == 0;
    }
    row.tensor.data = data + t->offset;
    row.tensor.dtype = dtype >= 0 ? (enum sl_dtype)dtype : SL_DTYPE_COUNT;
    if (dtype < 0 || n_outer > 0 || empty) {
        row.tensor.dtype = SL_DTYPE_COUNT;
        row.unsupported = shape_reason(c, t, dtype >= 0 ? " without elements" : "");
        if (row.unsupported == NULL)
            return checkpoint_hf_no_memory(c, err);
    }
    if (n_outer == 0 && !empty)
        row.raw = t->dtype; /* lives as long as the shard */
    return sl_ckpt_impl_add(c, &row, err);
}

/* Opens every shard of c->shard_names and lists their tensors. */
static int open_shards(struct sl_ckpt *c, struct sl_error *err)
{
    uint64_t n_tensors = 0;
    c->st = sl_arena_array(&c->arena, c->n_shards, sizeof(struct sl_st *));
    if (c->st == NULL)
        return checkpoint_hf_no_memory(c, err);
    for (size_t i = 0; i < c->n_shards; i++) {
        int rc = open_shard(c, i, err);
        if (rc != 0)
            return rc;
        n_tensors += sl_st_n_tensors(c->st[i]); /* at most SL_MAX_SHARDS * SL_MAX_TENSORS */
    }
    int rc = sl_ckpt_impl_reserve(c, n_tensors, err);
    for (size_t i = 0; rc == 0 && i < c->n_shards; i++) {
        const uint8_t *data;
        size_t n_bytes;
        rc = sl_files_get(c->files, c->shard_names[i], &data, &n_bytes, err);
        if (rc != 1) /* unreachable: true, open_shard() had it */
            return rc;
        rc = 0;
        for (size_t j = 0; rc == 0 && j < sl_st_n_tensors(c->st[i]); j++)
            rc = checkpoint_hf_add_tensor(c, (uint32_t)i, data, sl_st_tensor_at(c->st[i], j), err);
    }
    return rc;
}

/* Fills shard_names from the weight_map, each file once; *shards finds their index. */
static int collect_shards(struct sl_ckpt *c, json_t *map, struct sl_names *shards,
                          struct sl_error *err)
{
    const char *tensor;
    json_t *file;
    c->shard_names = sl_arena_array(&c->arena, SL_MAX_SHARDS, sizeof(const char *));
    if (c->shard_names == NULL || !sl_names_init(shards, &c->arena, SL_MAX_SHARDS))
        return checkpoint_hf_no_memory(c, err);
    json_object_foreach(map, tensor, file)
    {
        const char *name = json_string_value(file);
        size_t n = json_string_length(file);
        if (name == NULL || !sl_names_plain_file(name, n))
            return sl_fail(err, SL_EFORMAT, "%s: weight_map of %.80s: %.80s is not a plain name",
                           INDEX_FILE, tensor, name != NULL ? name : "the value");
        if (!sl_ends_with(name, ".safetensors"))
            return sl_fail(err, SL_EUNSUPPORTED,
                           "%s: weight_map of %.80s: %.80s is not a safetensors file", INDEX_FILE,
                           tensor, name);
        if (sl_names_find(shards, name, n) >= 0)
            continue;
        if (c->n_shards == SL_MAX_SHARDS)
            return sl_fail(err, SL_ELIMIT, "%s: more than %d shards", INDEX_FILE, SL_MAX_SHARDS);
        char *copy = sl_arena_strndup(&c->arena, name, n);
        if (copy == NULL)
            return checkpoint_hf_no_memory(c, err);
        sl_names_add(shards, copy, n, (uint32_t)c->n_shards);
        c->shard_names[c->n_shards++] = copy;
    }
    return 0;
}

/* Each tensor must be in the shard that the index names. */
static int check_map(const struct sl_ckpt *c, json_t *map, const struct sl_names *shards,
                     struct sl_error *err)
{
    const char *tensor;
    json_t *file;
    json_object_foreach(map, tensor, file)
    {
        int64_t want = sl_names_find(shards, json_string_value(file), json_string_length(file));
        int64_t idx = sl_names_find(&c->names, tensor, strlen(tensor));
        if (idx < 0 || c->rows[idx].shard_idx != want)
            return sl_fail(err, SL_EFORMAT, "%s: tensor %.80s is not in %.80s", INDEX_FILE, tensor,
                           json_string_value(file));
    }
    size_t n_listed = json_object_size(map);
    if (c->n_tensors > n_listed)
        sl_log(SL_LOG_WARN, "%s: %zu tensors of the shards are not in %s",
               sl_names_path_tail(c->path), c->n_tensors - n_listed, INDEX_FILE);
    return 0;
}

static int open_sharded(struct sl_ckpt *c, struct sl_error *err)
{
    json_t *index = NULL;
    struct sl_names shards = {0};
    int rc = read_json(c, INDEX_FILE, SL_JSON_MAX_INDEX, &index, err);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return sl_fail(err, SL_ENOTFOUND, "%s: folder has neither %s nor %s",
                       sl_names_path_tail(c->path), SINGLE_FILE, INDEX_FILE);
    json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        rc = sl_fail(err, SL_EFORMAT, "%s: weight_map is missing or empty", INDEX_FILE);
    else
        rc = collect_shards(c, map, &shards, err);
    if (rc == 0)
        rc = open_shards(c, err);
    if (rc == 0)
        rc = check_map(c, map, &shards, err);
    json_decref(index);
    return rc;
}

static int open_weights(struct sl_ckpt *c, struct sl_error *err)
{
    const uint8_t *data;
    size_t n_bytes;
    int rc = sl_files_get(c->files, SINGLE_FILE, &data, &n_bytes, err);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return open_sharded(c, err);
    c->shard_names = sl_arena_array(&c->arena, 1, sizeof(const char *));
    if (c->shard_names == NULL)
        return checkpoint_hf_no_memory(c, err);
    c->shard_names[0] = SINGLE_FILE;
    c->n_shards = 1;
    return open_shards(c, err);
}

int sl_ckpt_impl_open_folder(struct sl_ckpt *c, const char *dir, struct sl_error *err)
{
    int rc = sl_files_open(dir, &c->files, err);
    if (rc != 0)
        return rc;
    rc = read_json(c, "config.json", SL_JSON_MAX_CONFIG, &c->config, err);
    if (rc == 0)
        return sl_fail(err, SL_ENOTFOUND, "%s: folder has no config.json",
                       sl_names_path_tail(c->path));
    if (rc < 0)
        return rc;
    rc = read_json(c, "generation_config.json", SL_JSON_MAX_CONFIG, &c->generation_config, err);
    return rc < 0 ? rc : open_weights(c, err);
}
