/* SPDX-License-Identifier: MIT
 * checkpoint_impl.h - what the two containers (checkpoint_hf.c, checkpoint_gguf.c) share with the
 * view over them (checkpoint.c).
 */
#ifndef SL_IO_CHECKPOINT_IMPL_H
#define SL_IO_CHECKPOINT_IMPL_H

#include "base/sys.h"
#include "io/checkpoint.h"
#include "io/files.h"
#include "io/names.h"
#include "io/safetensors.h"

struct sl_ckpt_row {
    struct sl_ckpt_tensor tensor;
    const char *unsupported; /* reason, NULL when it can be read */
    const char *raw;         /* format's name of a safetensors tensor with elements, or NULL */
    uint32_t shard_idx;
};

struct sl_ckpt_gguf_shard {
    struct sl_map map;
    struct sl_gguf *gguf;
};

struct sl_ckpt {
    enum sl_ckpt_kind kind;
    char *path;
    struct sl_arena arena;
    size_t n_tensors, n_expected; /* rows filled, rows there is room for */
    struct sl_ckpt_row *rows;
    struct sl_names names;

    struct sl_files *files; /* folder */
    json_t *config, *generation_config;
    size_t n_shards;
    const char **shard_names; /* [n_shards] */
    struct sl_st **st;        /* [n_shards] */

    struct sl_ckpt_gguf_shard *gguf; /* [n_shards] */
};

/* Room for n tensors; then one add per tensor, which refuses names that are there already. */
int sl_ckpt_impl_reserve(struct sl_ckpt *c, uint64_t n, struct sl_error *err);
int sl_ckpt_impl_add(struct sl_ckpt *c, const struct sl_ckpt_row *row, struct sl_error *err);
const char *sl_ckpt_impl_shard_name(const struct sl_ckpt *c, uint32_t shard_idx);

int sl_ckpt_impl_open_folder(struct sl_ckpt *c, const char *dir, struct sl_error *err);
int sl_ckpt_impl_open_gguf(struct sl_ckpt *c, const char *path, struct sl_error *err);

#endif
