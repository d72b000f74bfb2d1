/* SPDX-License-Identifier: MIT
 * files.h - the files of one model by plain name: a folder on disk, or the table in the binary.
 *
 * A file is mapped when first asked for and stays mapped, read-only, until the set is closed. Any
 * thread may ask. Names come from model files too (weight_map), so only plain names are looked up:
 * nothing outside the folder can be reached, except through links the folder's owner placed there.
 */
#ifndef SL_IO_FILES_H
#define SL_IO_FILES_H

#include "base/err.h"

struct sl_files;

/* dir NULL: the bundled model; SL_ENOTFOUND when this build carries none. */
SL_MUST_CHECK int sl_files_open(const char *dir, struct sl_files **out, struct sl_error *err);
void sl_files_close(struct sl_files *f);
const char *sl_files_path(const struct sl_files *f); /* "(bundled)" for the bundled model */
/* 1 = found, 0 = absent, negative = unreadable. Bytes live until sl_files_close; they may start at
 * any address. */
SL_MUST_CHECK int sl_files_get(struct sl_files *f, const char *name, const uint8_t **data,
                               size_t *n_bytes, struct sl_error *err);
/* sl_map_drop on the file that holds the range; nothing to do for the bundled model. */
void sl_files_drop(struct sl_files *f, const uint8_t *data, size_t n_bytes);

#endif
