/* SPDX-License-Identifier: MIT
 * gguf_impl.h - what gguf.c (parsing) and gguf_get.c (getters) share.
 */
#ifndef SL_IO_GGUF_IMPL_H
#define SL_IO_GGUF_IMPL_H

#include "base/arena.h"
#include "io/gguf.h"
#include "io/names.h"

struct sl_gguf_kv {
    const char *key;
    enum sl_gguf_type type;
    enum sl_gguf_type elem_type; /* of an array */
    uint64_t n;                  /* elements of an array, bytes of a string */
    const uint8_t *value;        /* past the length fields */
    uint64_t n_bytes;
};

struct sl_gguf {
    struct sl_arena arena;
    const uint8_t *data;
    size_t n_bytes;
    const char *what;
    struct sl_gguf_kv *kv;
    size_t n_kv;
    struct sl_names keys;
    struct sl_gguf_tensor *tensors;
    size_t n_tensors;
};

/* Bytes of one element, 0 for strings and arrays. type must be valid. */
uint64_t sl_gguf_impl_size(enum sl_gguf_type type);

#endif
