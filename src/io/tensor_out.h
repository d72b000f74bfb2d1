/* SPDX-License-Identifier: MIT
 * tensor_out.h - the output file of a checkpoint writer: a header, then the tensors' bytes in the
 * order they were declared.
 *
 * Owns the file and the list of sizes. A format's writer holds one, encodes its own header, and
 * leaves to this module what comes when and what is missing. Declaring a tensor keeps the first
 * failure in `failure`; begin, write and finish report it. One owner, any thread.
 */
#ifndef SL_IO_TENSOR_OUT_H
#define SL_IO_TENSOR_OUT_H

#include "base/buf.h"
#include "base/err.h"

#include <stdint.h>

#define SL_TENSOR_OUT_MAX_ALIGN 32u

struct sl_tensor_out {
    int fd;
    char *path;
    uint32_t align;      /* of every tensor's offset in the data; 1 = no gaps */
    struct sl_buf sizes; /* uint64_t per tensor */
    uint64_t n_tensors, next_offset;
    uint64_t tensor_idx, tensor_done; /* where write stands */
    bool in_data;                     /* the header is written or was tried */
    struct sl_error failure;          /* the first one of declaring; code 0 = none */
};

/* Creates the file. After a failure there is nothing to close. */
SL_MUST_CHECK int sl_tensor_out_open(struct sl_tensor_out *o, const char *path, uint32_t align,
                                     struct sl_error *err);
void sl_tensor_out_close(struct sl_tensor_out *o); /* before finish: gives up */

/* Declares the next tensor and gives its offset in the data. Fills o->failure. */
SL_MUST_CHECK int sl_tensor_out_add(struct sl_tensor_out *o, const char *name, uint64_t n_bytes,
                                    uint64_t *offset);
/* Reports the kept failure, 0 = none. */
SL_MUST_CHECK int sl_tensor_out_failure(const struct sl_tensor_out *o, struct sl_error *err);
/* Whether the header can be written now: nothing failed and it was not written before. */
SL_MUST_CHECK int sl_tensor_out_ready(const struct sl_tensor_out *o, struct sl_error *err);
/* Writes the header, given in parts, after ready said yes. Parts that failed to grow are ENOMEM. */
SL_MUST_CHECK int sl_tensor_out_begin(struct sl_tensor_out *o, const struct sl_buf *const *parts,
                                      size_t n_parts, struct sl_error *err);
/* The next bytes of the current tensor; tensors of no bytes are passed over. */
SL_MUST_CHECK int sl_tensor_out_write(struct sl_tensor_out *o, const void *data, size_t n_bytes,
                                      struct sl_error *err);
/* Completes the file; fails when data of a tensor is missing. Close is still due. */
SL_MUST_CHECK int sl_tensor_out_finish(struct sl_tensor_out *o, struct sl_error *err);

#endif
