/* SPDX-License-Identifier: MIT
 * gguf.h - reader of GGUF v2/v3 metadata and tensor tables over a memory range.
 *
 * Typed getters only: a value of another type is an error that names the key, never a
 * reinterpretation. Source of the layout: ggml's gguf specification.
 *
 * Opening checks everything: counts against base/limits.h and against the bytes that are there
 * before anything is allocated for them, keys and names (unique, printable UTF-8), bools (0 or 1),
 * shapes, alignment, and that tensors lie inside the file without overlap. Memory taken is at most
 * a small multiple of the file's size. Refused: version 1, big-endian files, arrays of arrays.
 * Immutable once open; any thread may read.
 */
#ifndef SL_IO_GGUF_H
#define SL_IO_GGUF_H

#include "base/err.h"

enum sl_gguf_type {
    SL_GGUF_U8,
    SL_GGUF_I8,
    SL_GGUF_U16,
    SL_GGUF_I16,
    SL_GGUF_U32,
    SL_GGUF_I32,
    SL_GGUF_F32,
    SL_GGUF_BOOL,
    SL_GGUF_STRING,
    SL_GGUF_ARRAY,
    SL_GGUF_U64,
    SL_GGUF_I64,
    SL_GGUF_F64,
};

struct sl_gguf; /* borrows the range it was opened on */

struct sl_gguf_tensor {
    const char *name; /* NUL-terminated copy; names with a NUL inside are refused */
    uint32_t gguf_type;
    int32_t n_dims;
    uint64_t ne[4];   /* ne[0] is the contiguous dimension; unused ones are 1 */
    uint64_t offset;  /* from the start of the file */
    uint64_t n_bytes; /* 0: a type this build does not know, so that only the offset was checked */
};

/* what: the file's name for messages, copied. */
SL_MUST_CHECK int sl_gguf_open(const uint8_t *data, size_t n_bytes, const char *what,
                               struct sl_gguf **out, struct sl_error *err);
void sl_gguf_close(struct sl_gguf *g);
size_t sl_gguf_n_tensors(const struct sl_gguf *g);
const struct sl_gguf_tensor *sl_gguf_tensor_at(const struct sl_gguf *g, size_t idx);

/* Getters: 1 = found, 0 = absent, negative = present with another type or out of range (err names
 * it). Integer getters accept any integer type whose value fits. */
SL_MUST_CHECK int sl_gguf_u64(const struct sl_gguf *g, const char *key, uint64_t *out,
                              struct sl_error *err);
SL_MUST_CHECK int sl_gguf_i64(const struct sl_gguf *g, const char *key, int64_t *out,
                              struct sl_error *err);
SL_MUST_CHECK int sl_gguf_f64(const struct sl_gguf *g, const char *key, double *out,
                              struct sl_error *err);
SL_MUST_CHECK int sl_gguf_bool(const struct sl_gguf *g, const char *key, bool *out,
                               struct sl_error *err);
/* Borrowed, not NUL-terminated. */
SL_MUST_CHECK int sl_gguf_str(const struct sl_gguf *g, const char *key, const char **s, size_t *n,
                              struct sl_error *err);

/* 1 and *type when the key exists, else 0: for keys that may be a number or an array. */
int sl_gguf_type_of(const struct sl_gguf *g, const char *key, enum sl_gguf_type *type);
const char *sl_gguf_type_name(enum sl_gguf_type type); /* "u32" */

struct sl_gguf_array {
    enum sl_gguf_type type;
    uint64_t n;
    const uint8_t *data; /* elements as stored; strings as (u64 length, bytes)* */
    uint64_t n_bytes;
};
/* want: the type of the elements; SL_GGUF_ARRAY stands for "any integer type". */
SL_MUST_CHECK int sl_gguf_array(const struct sl_gguf *g, const char *key, enum sl_gguf_type want,
                                struct sl_gguf_array *out, struct sl_error *err);
/* Element idx of an array of any integer type, checked. */
SL_MUST_CHECK bool sl_gguf_array_i64(const struct sl_gguf_array *a, uint64_t idx, int64_t *out);
/* Walks a string array: *pos starts at 0. Returns false at the end. */
SL_MUST_CHECK bool sl_gguf_array_next_str(const struct sl_gguf_array *a, uint64_t *pos,
                                          const char **s, size_t *n);
/* Keys in file order, for `sluice inspect`. */
size_t sl_gguf_n_kv(const struct sl_gguf *g);
const char *sl_gguf_key_at(const struct sl_gguf *g, size_t idx, enum sl_gguf_type *type);

#endif
