/* SPDX-License-Identifier: MIT
 * gguf_write.h - a streaming writer of GGUF v3 files (alignment 32, little endian).
 *
 * Use: create, add_* metadata and add_tensor in any order, begin_data, then the tensors' bytes in
 * the order they were added (in as many pieces as wanted, padding is the writer's), finish. The
 * add_* calls return nothing: the first failure is kept and begin_data and finish report it, so
 * that declaring a model is a plain list of lines. One owner, any thread. Strings are copied.
 */
#ifndef SL_IO_GGUF_WRITE_H
#define SL_IO_GGUF_WRITE_H

#include "quant/dtype.h"

struct sl_gguf_writer;

SL_MUST_CHECK int sl_gguf_writer_create(const char *path, struct sl_gguf_writer **out,
                                        struct sl_error *err);
void sl_gguf_writer_add_u32(struct sl_gguf_writer *w, const char *key, uint32_t v);
void sl_gguf_writer_add_i32(struct sl_gguf_writer *w, const char *key, int32_t v);
void sl_gguf_writer_add_u64(struct sl_gguf_writer *w, const char *key, uint64_t v);
void sl_gguf_writer_add_u16(struct sl_gguf_writer *w, const char *key, uint16_t v);
void sl_gguf_writer_add_f32(struct sl_gguf_writer *w, const char *key, float v);
void sl_gguf_writer_add_bool(struct sl_gguf_writer *w, const char *key, bool v);
void sl_gguf_writer_add_str(struct sl_gguf_writer *w, const char *key, const char *s);
/* n_bytes: lengths of the strings, for entries with NUL bytes inside; NULL = NUL-terminated. */
void sl_gguf_writer_add_arr_str(struct sl_gguf_writer *w, const char *key, const char *const *s,
                                const uint32_t *n_bytes, size_t n);
void sl_gguf_writer_add_arr_f32(struct sl_gguf_writer *w, const char *key, const float *x,
                                size_t n);
void sl_gguf_writer_add_arr_i32(struct sl_gguf_writer *w, const char *key, const int32_t *x,
                                size_t n);
void sl_gguf_writer_add_arr_bool(struct sl_gguf_writer *w, const char *key, const bool *x,
                                 size_t n);
/* dims outermost first, as in struct sl_ckpt_tensor; the file stores them innermost first. */
void sl_gguf_writer_add_tensor(struct sl_gguf_writer *w, const char *name, enum sl_dtype dtype,
                               int32_t n_dims, const int64_t *dims);

/* Writes the header. Nothing can be added afterwards. */
SL_MUST_CHECK int sl_gguf_writer_begin_data(struct sl_gguf_writer *w, struct sl_error *err);
/* The next n_bytes of the current tensor; a piece may not reach into the next tensor. */
SL_MUST_CHECK int sl_gguf_writer_write_tensor_data(struct sl_gguf_writer *w, const void *data,
                                                   size_t n_bytes, struct sl_error *err);
/* Fails when data of a tensor is missing. Releases w in every case. */
SL_MUST_CHECK int sl_gguf_writer_finish(struct sl_gguf_writer *w, struct sl_error *err);
void sl_gguf_writer_destroy(struct sl_gguf_writer *w); /* gives up; the file stays incomplete */

#endif
