/* SPDX-License-Identifier: MIT
 * safetensors_write.h - a streaming writer of safetensors files.
 *
 * Use: create, add_metadata and add_tensor, begin_data, then the tensors' bytes in the order they
 * were added (in as many pieces as wanted), finish. The add calls keep the first failure, which
 * begin_data and finish report. Formats without a safetensors name (the GGUF block formats) are
 * refused. One owner, any thread. Strings are copied.
 */
#ifndef SL_IO_SAFETENSORS_WRITE_H
#define SL_IO_SAFETENSORS_WRITE_H

#include "quant/dtype.h"

struct sl_st_writer;

SL_MUST_CHECK int sl_st_writer_create(const char *path, struct sl_st_writer **out,
                                      struct sl_error *err);
void sl_st_writer_add_metadata(struct sl_st_writer *w, const char *key, const char *value);
/* dims outermost first; n_dims 0 is a scalar. */
void sl_st_writer_add_tensor(struct sl_st_writer *w, const char *name, enum sl_dtype dtype,
                             int32_t n_dims, const int64_t *dims);

/* The same of a format that is no row of dtypes.def, by its name in safetensors ("I32"). */
void sl_st_writer_add_raw(struct sl_st_writer *w, const char *name, const char *st_name,
                          size_t elem_bytes, int32_t n_dims, const int64_t *dims);

/* Writes the header. Nothing can be added afterwards. */
SL_MUST_CHECK int sl_st_writer_begin_data(struct sl_st_writer *w, struct sl_error *err);
/* The next n_bytes of the current tensor; a piece may not reach into the next tensor. */
SL_MUST_CHECK int sl_st_writer_write_tensor_data(struct sl_st_writer *w, const void *data,
                                                 size_t n_bytes, struct sl_error *err);
/* Fails when data of a tensor is missing. Releases w in every case. */
SL_MUST_CHECK int sl_st_writer_finish(struct sl_st_writer *w, struct sl_error *err);
void sl_st_writer_destroy(struct sl_st_writer *w); /* gives up; the file stays incomplete */

#endif
