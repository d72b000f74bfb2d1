/* SPDX-License-Identifier: MIT
 *
 * A GGUF file, or a split set: NAME-00001-of-000NN.gguf and its siblings, which carry split.no,
 * split.count and split.tensors.count. Metadata is that of the first file.
 */
#include "base/check.h"
#include "base/str.h"
#include "io/checkpoint_impl.h"
#include "io/gguf_types.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SPLIT_TAIL_BYTES 20 /* "-00001-of-00003.gguf" */

static int checkpoint_gguf_no_memory(const struct sl_ckpt *c, struct sl_error *err)
{
    return sl_fail(err, SL_ENOMEM, "%s: out of memory", sl_names_path_tail(c->path));
}

/* A key that must be there, as an unsigned number. */
static int need_u64(const struct sl_gguf *g, const char *what, const char *key, uint64_t *out,
                    struct sl_error *err)
{
    int rc = sl_gguf_u64(g, key, out, err);
    if (rc == 0)
        return sl_fail(err, SL_EFORMAT, "%s: key %s is missing", sl_names_path_tail(what), key);
    return rc < 0 ? rc : 0;
}

static bool parse_split_name(const char *path, uint64_t *no, uint64_t *count)
{
    size_t n = strlen(path);
    if (n <= SPLIT_TAIL_BYTES)
        return false;
    const char *tail = path + n - SPLIT_TAIL_BYTES;
    return tail[0] == '-' && sl_parse_u64(tail + 1, 5, no) && memcmp(tail + 6, "-of-", 4) == 0 &&
           sl_parse_u64(tail + 10, 5, count) && strcmp(tail + 15, ".gguf") == 0;
}

static char *split_name(struct sl_ckpt *c, size_t idx)
{
    size_t n = strlen(c->path);
    char *name = sl_arena_strndup(&c->arena, c->path, n), digits[8];
    if (name != NULL) {
        snprintf(digits, sizeof digits, "%05u", (unsigned)(idx + 1) % 100000u);
        memcpy(name + n - SPLIT_TAIL_BYTES + 1, digits, 5);
    }
    return name;
}

static int map_shard(struct sl_ckpt_gguf_shard *s, const char *path, struct sl_error *err)
{
    int rc = sl_map_open(&s->map, path, err);
    return rc == 0 ? sl_gguf_open(s->map.data, s->map.n_bytes, path, &s->gguf, err) : rc;
}

static int open_sibling(struct sl_ckpt *c, size_t idx, struct sl_error *err)
{
    uint64_t no, count;
    const char *name = split_name(c, idx);
    if (name == NULL)
        return checkpoint_gguf_no_memory(c, err);
    c->shard_names[idx] = sl_names_path_tail(name);
    int rc = map_shard(&c->gguf[idx], name, err);
    if (rc == SL_ENOTFOUND)
        return sl_fail(err, SL_ENOTFOUND, "%s: file %zu of %zu of a split model is missing",
                       c->shard_names[idx], idx + 1, c->n_shards);
    if (rc == 0)
        rc = need_u64(c->gguf[idx].gguf, name, "split.no", &no, err);
    if (rc == 0)
        rc = need_u64(c->gguf[idx].gguf, name, "split.count", &count, err);
    if (rc == 0 && (no != idx || count != c->n_shards))
        return sl_fail(err, SL_EFORMAT,
                       "%s: split.no = %" PRIu64 " of split.count = %" PRIu64
                       ", its name says %zu of %zu",
                       c->shard_names[idx], no, count, idx, c->n_shards);
    return rc;
}

/* Sizes the shard tables; 1 unless the first file says that it is part of a set. */
static int split_count(const struct sl_ckpt *c, const struct sl_gguf *first, size_t *out,
                       struct sl_error *err)
{
    const char *what = sl_names_path_tail(c->path);
    uint64_t count = 0, no, name_no, name_count;
    *out = 1;
    int rc = sl_gguf_u64(first, "split.count", &count, err);
    if (rc < 0 || count <= 1)
        return SL_MIN(rc, 0);
    if (count > SL_MAX_SHARDS)
        return sl_fail(err, SL_ELIMIT, "%s: split.count = %" PRIu64 ", the limit is %d", what,
                       count, SL_MAX_SHARDS);
    rc = need_u64(first, c->path, "split.no", &no, err);
    if (rc != 0)
        return rc;
    if (no != 0)
        return sl_fail(err, SL_EINVAL,
                       "%s: split.no = %" PRIu64 ": open the first file of the split model", what,
                       no);
    if (!parse_split_name(c->path, &name_no, &name_count) || name_no != 1 || name_count != count)
        return sl_fail(err, SL_EFORMAT,
                       "%s: split.count = %" PRIu64 " wants the name to end in -00001-of-%05" PRIu64
                       ".gguf",
                       what, count, count);
    *out = (size_t)count;
    return 0;
}

static int add_tensors(struct sl_ckpt *c, uint32_t shard_idx, struct sl_error *err)
{
    const struct sl_ckpt_gguf_shard *s = &c->gguf[shard_idx];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sl_gguf_n_tensors(s->gguf); i++) {
        const struct sl_gguf_tensor *t = sl_gguf_tensor_at(s->gguf, i);
        int dtype = sl_dtype_from_gguf(t->gguf_type);
        struct sl_ckpt_row row = {
            .tensor = {.name = t->name,
                       .dtype = dtype >= 0 ? (enum sl_dtype)dtype : SL_DTYPE_COUNT,
                       .n_dims = t->n_dims,
                       .dims = {1, 1, 1, 1},
                       .data = s->map.data + t->offset,
                       .n_bytes = t->n_bytes},
            .shard_idx = shard_idx,
        };
        for (int32_t d = 0; d < t->n_dims; d++)
            row.tensor.dims[d] = (int64_t)t->ne[t->n_dims - 1 - d];
        if (dtype < 0) {
            const struct sl_gguf_type_info *info = sl_gguf_type_info(t->gguf_type);
            char text[32];
            int n = snprintf(text, sizeof text, "type %" PRIu32, t->gguf_type);
            row.unsupported =
                info != NULL ? info->name : sl_arena_strndup(&c->arena, text, (size_t)n);
            if (row.unsupported == NULL)
                return checkpoint_gguf_no_memory(c, err);
        }
        rc = sl_ckpt_impl_add(c, &row, err);
    }
    return rc;
}

static int check_total(const struct sl_ckpt *c, uint64_t n_tensors, struct sl_error *err)
{
    uint64_t declared;
    if (c->n_shards == 1)
        return 0;
    int rc = need_u64(c->gguf[0].gguf, c->path, "split.tensors.count", &declared, err);
    if (rc == 0 && declared != n_tensors)
        return sl_fail(err, SL_EFORMAT,
                       "%s: split.tensors.count = %" PRIu64 ", the files have %" PRIu64,
                       sl_names_path_tail(c->path), declared, n_tensors);
    return rc;
}

static int check_is_gguf(const struct sl_map *map, const char *path, struct sl_error *err)
{
    if (sl_ends_with(path, ".gguf") || (map->n_bytes >= 4 && memcmp(map->data, "GGUF", 4) == 0))
        return 0;
    return sl_fail(err, SL_EUNSUPPORTED,
                   "%s: not a GGUF file; a model is a .gguf file or a folder with config.json%s",
                   sl_names_path_tail(path),
                   sl_ends_with(path, ".safetensors") ? " (name the folder of this file)" : "");
}

int sl_ckpt_impl_open_gguf(struct sl_ckpt *c, const char *path, struct sl_error *err)
{
    struct sl_ckpt_gguf_shard first = {0};
    size_t n_shards = 0;
    int rc = sl_map_open(&first.map, path, err);
    if (rc != 0)
        return rc;
    rc = check_is_gguf(&first.map, path, err);
    if (rc == 0)
        rc = sl_gguf_open(first.map.data, first.map.n_bytes, path, &first.gguf, err);
    if (rc == 0)
        rc = split_count(c, first.gguf, &n_shards, err);
    if (rc == 0) {
        c->gguf = sl_arena_array(&c->arena, n_shards, sizeof *c->gguf);
        c->shard_names = sl_arena_array(&c->arena, n_shards, sizeof(const char *));
        if (c->gguf == NULL || c->shard_names == NULL)
            rc = checkpoint_gguf_no_memory(c, err);
    }
    if (rc != 0) {
        c->gguf = NULL;
        sl_gguf_close(first.gguf);
        sl_map_close(&first.map);
        return rc;
    }
    c->gguf[0] = first; /* from here on sl_ckpt_close releases it */
    c->n_shards = n_shards;
    c->shard_names[0] = sl_names_path_tail(c->path);
    uint64_t n_tensors = sl_gguf_n_tensors(first.gguf);
    for (size_t i = 1; rc == 0 && i < n_shards; i++) {
        rc = open_sibling(c, i, err);
        n_tensors += rc == 0 ? sl_gguf_n_tensors(c->gguf[i].gguf) : 0;
    }
    if (rc == 0)
        rc = check_total(c, n_tensors, err);
    if (rc == 0)
        rc = sl_ckpt_impl_reserve(c, n_tensors, err);
    for (size_t i = 0; rc == 0 && i < n_shards; i++)
        rc = add_tensors(c, (uint32_t)i, err);
    return rc;
}
