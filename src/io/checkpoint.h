/* SPDX-License-Identifier: MIT
 * checkpoint.h - one view of a model on disk: tensors by name and metadata, whatever the container.
 *
 * A checkpoint is a Hugging Face folder (config.json, safetensors single or sharded, tokenizer
 * files), a GGUF v2/v3 file (or split set), or the bundled model inside the binary. Files are
 * mapped and tensors point into the mapping. Everything in a file is untrusted: counts, offsets,
 * shapes and strings are checked before use, and a tensor view never reaches outside its file.
 * Immutable once open; any thread may read. Pointers live until sl_ckpt_close. A file that another
 * program truncates while it is mapped ends this process with SIGBUS: replace models by renaming.
 */
#ifndef SL_IO_CHECKPOINT_H
#define SL_IO_CHECKPOINT_H

#include "base/hash.h"
#include "base/limits.h"
#include "io/gguf.h"
#include "quant/dtype.h"

#include <jansson.h>

enum sl_ckpt_kind { SL_CKPT_HF, SL_CKPT_GGUF };

struct sl_ckpt_tensor {
    const char *name;
    enum sl_dtype dtype;       /* SL_DTYPE_COUNT: cannot be read, see sl_ckpt_unsupported */
    int32_t n_dims;            /* 0: a scalar of a safetensors file; unused dims are 1 */
    int64_t dims[SL_MAX_DIMS]; /* outermost first, as PyTorch prints them: a linear is [out, in] */
    const uint8_t *data;       /* in the mapping, at any alignment: read it with memcpy */
    uint64_t n_bytes;
};

struct sl_ckpt;

/* path: folder, .gguf file (the first one of a split set), or NULL for the bundled model. */
SL_MUST_CHECK int sl_ckpt_open(const char *path, struct sl_ckpt **out, struct sl_error *err);
void sl_ckpt_close(struct sl_ckpt *c);

enum sl_ckpt_kind sl_ckpt_kind(const struct sl_ckpt *c);
const char *sl_ckpt_path(const struct sl_ckpt *c); /* "(bundled)" for the bundled model */
size_t sl_ckpt_n_tensors(const struct sl_ckpt *c);
const struct sl_ckpt_tensor *sl_ckpt_tensor_at(const struct sl_ckpt *c, size_t idx);
const struct sl_ckpt_tensor *sl_ckpt_find(const struct sl_ckpt *c, const char *name); /* or NULL */
/* A tensor of a folder by its format's name in safetensors ("I32"), for packed data of formats that
 * are no rows of dtypes.def; its dtype stays SL_DTYPE_COUNT. NULL: there is none. */
const struct sl_ckpt_tensor *sl_ckpt_find_raw(const struct sl_ckpt *c, const char *name,
                                              const char *st_name);
/* A tensor of a format this build cannot read, of more than SL_MAX_DIMS dimensions or without
 * elements is listed with its name but not found by sl_ckpt_find; this tells the reason ("I64",
 * "NVFP4", "BF16 with 5 dimensions") for the message, or NULL when there is no such tensor. Of
 * more than SL_MAX_DIMS dimensions, dims[0] is the product of the outer ones. */
const char *sl_ckpt_unsupported(const struct sl_ckpt *c, const char *name);

/* The tensor's bytes will hardly be read again: they give back what memory they take in this
 * process, and stay readable. */
void sl_ckpt_drop(const struct sl_ckpt *c, const struct sl_ckpt_tensor *t);

/* Names the model by its content: configuration or metadata, every tensor's name, format and shape,
 * and stretches of bytes spread over it: weights that were trained further differ in nearly all
 * places, and reading all of a large model would take seconds. */
struct sl_hash128 sl_ckpt_digest(const struct sl_ckpt *c);

/* Hugging Face: config.json and generation_config.json (an object, or NULL when absent). */
const json_t *sl_ckpt_config(const struct sl_ckpt *c);
const json_t *sl_ckpt_generation_config(const struct sl_ckpt *c);
/* A file of the folder (tokenizer.json, chat_template.jinja ...), read-only bytes: 1, 0 = absent,
 * or why it cannot be read: without it the model would be another. */
SL_MUST_CHECK int sl_ckpt_file(const struct sl_ckpt *c, const char *name, const char **data,
                               size_t *n_bytes, struct sl_error *err);
/* GGUF metadata; NULL for a folder. */
const struct sl_gguf *sl_ckpt_gguf(const struct sl_ckpt *c);

#endif
