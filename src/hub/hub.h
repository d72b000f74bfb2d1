/* SPDX-License-Identifier: MIT
 * hub.h - models by name: the cache that Hugging Face's own tools use, and downloads into it.
 * sl_model_find of sluice.h is the way in; this is what else commands do with the cache.
 *
 * Layout, below HF_HUB_CACHE:
 *   models--ORG--NAME/refs/REVISION         the commit that a branch or tag meant when asked for
 *   models--ORG--NAME/snapshots/COMMIT/...  links into blobs
 *   models--ORG--NAME/blobs/ID              contents; ID.incomplete while they arrive
 *   .locks/models--ORG--NAME/ID.lock        held (flock) by who writes a blob
 * A model that is there is used without a word to the hub. Blocks; any thread; several processes.
 */
#ifndef SL_HUB_HUB_H
#define SL_HUB_HUB_H

#include "base/buf.h"
#include "base/err.h"
#include "sluice.h"

#define SL_HUB_DEFAULT_REVISION "main"

struct sl_hub_entry { /* one repository of the cache */
    const char *repo;
    const char *revisions; /* names with commas */
    uint64_t n_bytes;      /* of blobs, unfinished ones included */
    uint64_t n_partial_bytes;
    int n_files; /* of the snapshots */
};

/* Calls fn for each repository, by name. cfg may be NULL. */
SL_MUST_CHECK int sl_hub_list(const struct sl_hub_config *cfg,
                              void (*fn)(void *arg, const struct sl_hub_entry *e), void *arg,
                              struct sl_error *err);
/* Removes a repository with all its revisions. */
SL_MUST_CHECK int sl_hub_remove(const struct sl_hub_config *cfg, const char *name,
                                uint64_t *n_bytes, struct sl_error *err);
/* Is the text a name of the hub, and not a path that exists? Then *repo (200 bytes) is its
 * ORG/NAME. */
bool sl_hub_is_name(const char *text, char repo[200]);

/* Paths of the cache, for hub.c and cache.c. */
SL_MUST_CHECK int sl_hub_root(const struct sl_hub_config *cfg, struct sl_buf *out,
                              struct sl_error *err);
void sl_hub_repo_folder(struct sl_buf *out, const char *repo); /* models--ORG--NAME */
/* The token of the environment or of its file, malloc'ed; *out NULL: none. */
SL_MUST_CHECK int sl_hub_token(char **out, struct sl_error *err);
bool sl_hub_is_set(const char *variable); /* 1, true, yes, on */

#endif
