/* SPDX-License-Identifier: MIT
 * safetensors.h - reader of one safetensors file over a memory range.
 *
 * The rules are those of the official implementation, and none is optional: a header of at most
 * 100,000,000 bytes that is a valid UTF-8 JSON object starting at its first byte, `__metadata__` a
 * map of strings (or null), each tensor's range as long as its shape says, ranges that follow one
 * another without gap or overlap, and the last one ending with the file. On top of these, no key
 * appears twice, a tensor has no other fields, and names are printable. Numbers may have any
 * alignment in memory. Immutable once open; any thread may read. Pointers live until sl_st_close.
 */
#ifndef SL_IO_SAFETENSORS_H
#define SL_IO_SAFETENSORS_H

#include "base/err.h"

#define SL_ST_MAX_DIMS 8 /* convolutions have five; a file with more is refused */

struct sl_st_tensor {
    const char *name;
    const char *dtype; /* as written: "BF16"; one of the format's names, or unknown to this build */
    int32_t n_dims;    /* 0: a scalar */
    int64_t dims[SL_ST_MAX_DIMS]; /* outermost first; may be 0 */
    uint64_t offset;              /* from the start of the file */
    uint64_t n_bytes;
};

struct sl_st; /* borrows the range it was opened on */

/* what: the file's name for messages, copied. */
SL_MUST_CHECK int sl_st_open(const uint8_t *data, size_t n_bytes, const char *what,
                             struct sl_st **out, struct sl_error *err);
void sl_st_close(struct sl_st *st);
size_t sl_st_n_tensors(const struct sl_st *st); /* in the order of the header */
const struct sl_st_tensor *sl_st_tensor_at(const struct sl_st *st, size_t idx);
const struct sl_st_tensor *sl_st_find(const struct sl_st *st, const char *name); /* or NULL */
/* A value of __metadata__, or NULL. */
const char *sl_st_metadata(const struct sl_st *st, const char *key);

#endif
