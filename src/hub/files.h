/* SPDX-License-Identifier: MIT
 * files.h - the files of a repository, as the hub lists them or as a snapshot on disk has them, and
 * which of them a model needs.
 *
 * Weights are safetensors, those that the index names where there is one, else GGUF; with them go
 * the small files at the top (configuration, tokenizer, chat template). Copies of the weights in
 * other formats, and what is for people to read, are left.
 */
#ifndef SL_HUB_FILES_H
#define SL_HUB_FILES_H

#include "base/arena.h"
#include "base/err.h"
#include "hub/name.h"

#define SL_HUB_INDEX "model.safetensors.index.json"

struct sl_hub_file {
    const char *path;             /* relative, safe to join to a folder */
    uint64_t n_bytes;             /* if sized */
    char id[SL_HUB_ID_BYTES + 1]; /* name of its blob, "" = not known yet */
    bool sized, wanted;
};

struct sl_hub_files { /* zero-initialise; files_deinit frees all */
    struct sl_arena arena;
    struct sl_hub_file *items;
    size_t n, cap;
    char commit[41];
};

void sl_hub_files_deinit(struct sl_hub_files *f);
SL_MUST_CHECK int sl_hub_files_add(struct sl_hub_files *f, const char *path, size_t n_path,
                                   struct sl_hub_file **out, struct sl_error *err);
/* The reply of /api/models/REPO/revision/REV?blobs=true. What is not needed may be missing. */
SL_MUST_CHECK int sl_hub_files_parse(struct sl_hub_files *f, const char *json, size_t n,
                                     struct sl_error *err);
struct sl_hub_file *sl_hub_files_find(const struct sl_hub_files *f, const char *path);

struct sl_hub_pick {
    bool text_only;    /* the tokenizer and what goes with it; no weights of a folder */
    bool only_cached;  /* the list is what a cache has, perhaps not all of the repository */
    const char *index; /* text of SL_HUB_INDEX; NULL: not read yet */
    size_t n_index;
    const char *main; /* out: the (first) GGUF file, NULL: the model is the whole folder */
    bool needs_index; /* out: wanted is not complete before the index has been read */
    bool other_quant; /* out: main is the only GGUF model, not the quantisation that is the default
                       */
};

/* Sets wanted. An error says what the repository lacks. */
SL_MUST_CHECK int sl_hub_files_pick(struct sl_hub_files *f, const struct sl_hub_name *name,
                                    struct sl_hub_pick *pick, struct sl_error *err);

#endif
