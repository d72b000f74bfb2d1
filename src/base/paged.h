/* SPDX-License-Identifier: MIT
 * paged.h - memory whose contents lie in a file, for more of it than the machine has.
 *
 * The file has no name and ends with the process. Its room on the disk is reserved when a piece is
 * taken, so that a full disk is an error there and never a signal later. A piece is read and
 * written like any memory; what of it is not in memory comes from the file when it is touched. As
 * with any mapping, a disk that fails then ends the process.
 *
 * Calls for different pieces may run at once, but for take and give.
 */
#ifndef SL_BASE_PAGED_H
#define SL_BASE_PAGED_H

#include "base/err.h"

struct sl_paged_file;

struct sl_paged_piece {
    void *data; /* zero at first, at the start of a page */
    size_t n_bytes;
    uint64_t offset; /* in the file */
};

/* SL_ENOTFOUND, SL_EIO: no file can be made in the folder. */
SL_MUST_CHECK int sl_paged_create(const char *folder, struct sl_paged_file **out,
                                  struct sl_error *err);
void sl_paged_destroy(struct sl_paged_file *f); /* no piece is left; NULL is fine */

/* n_bytes > 0. SL_EIO: the disk has no room; SL_ENOMEM: the address space has none. */
SL_MUST_CHECK int sl_paged_take(struct sl_paged_file *f, size_t n_bytes, struct sl_paged_piece *out,
                                struct sl_error *err);
/* The room is free again when the last piece is given back. */
void sl_paged_give(struct sl_paged_file *f, struct sl_paged_piece *p);

/* What was written is on the disk when this returns, and the piece takes no memory. */
SL_MUST_CHECK int sl_paged_store(struct sl_paged_file *f, const struct sl_paged_piece *p,
                                 struct sl_error *err);
/* Begins to bring the piece into memory, and waits for nothing but a place in the disk's queue. */
void sl_paged_ask(const struct sl_paged_piece *p);
/* Brings the piece into memory and waits until it is there. */
void sl_paged_load(const struct sl_paged_piece *p);
/* The piece, stored and not written since, takes no memory any more, the system's own included. */
void sl_paged_drop(struct sl_paged_file *f, const struct sl_paged_piece *p);

#endif
