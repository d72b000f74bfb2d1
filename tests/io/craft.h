/* SPDX-License-Identifier: MIT
 * craft.h - builds model files in memory byte by byte, well-formed or not, and notes where each
 * count and size field lies so that tests can overwrite it.
 */
#ifndef SL_TESTS_IO_CRAFT_H
#define SL_TESTS_IO_CRAFT_H

#include "base/buf.h"
#include "base/check.h"
#include "base/sys.h"
#include "io/gguf.h"

#include <stdarg.h>
#include <string.h>

struct craft_field {
    const char *name; /* "n_kv", "a.str:length" ... */
    size_t at, width;
};

struct craft {
    struct sl_buf b;
    struct craft_field fields[64];
    size_t n_fields;
};

static inline void craft_note(struct craft *c, const char *name, size_t width)
{
    if (c->n_fields < SL_COUNT(c->fields))
        c->fields[c->n_fields++] = (struct craft_field){name, c->b.n_bytes, width};
}

static inline void craft_uint(struct craft *c, uint64_t v, size_t width)
{
    sl_buf_put(&c->b, &v, width); /* little endian, as the host */
}

static inline void craft_bytes(struct craft *c, const void *s, size_t n)
{
    craft_uint(c, n, 8);
    sl_buf_put(&c->b, s, n);
}

static inline void craft_str(struct craft *c, const char *s)
{
    craft_bytes(c, s, strlen(s));
}

static inline void craft_head(struct craft *c, uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    sl_buf_put(&c->b, "GGUF", 4);
    craft_note(c, "version", 4);
    craft_uint(c, version, 4);
    craft_note(c, "n_tensors", 8);
    craft_uint(c, n_tensors, 8);
    craft_note(c, "n_kv", 8);
    craft_uint(c, n_kv, 8);
}

static inline void craft_key(struct craft *c, const char *key, enum sl_gguf_type type)
{
    craft_str(c, key);
    craft_uint(c, type, 4);
}

static inline void craft_kv(struct craft *c, const char *key, enum sl_gguf_type type, uint64_t bits,
                            size_t width)
{
    craft_key(c, key, type);
    craft_uint(c, bits, width);
}

static inline void craft_kv_str(struct craft *c, const char *key, const char *value)
{
    craft_key(c, key, SL_GGUF_STRING);
    craft_str(c, value);
}

static inline void craft_array(struct craft *c, const char *key, enum sl_gguf_type type, uint64_t n)
{
    craft_key(c, key, SL_GGUF_ARRAY);
    craft_uint(c, type, 4);
    craft_uint(c, n, 8);
}

static inline void craft_tensor(struct craft *c, const char *name, uint32_t n_dims,
                                const uint64_t *ne, uint32_t type, uint64_t offset)
{
    craft_str(c, name);
    craft_uint(c, n_dims, 4);
    for (uint32_t i = 0; i < n_dims; i++)
        craft_uint(c, ne[i], 8);
    craft_uint(c, type, 4);
    craft_uint(c, offset, 8);
}

/* Zeros up to a multiple of align, then n bytes of data. */
static inline void craft_data(struct craft *c, size_t align, size_t n)
{
    while (sl_buf_ok(&c->b) && c->b.n_bytes % align != 0)
        sl_buf_putc(&c->b, 0);
    for (size_t i = 0; i < n; i++)
        sl_buf_putc(&c->b, (char)i);
}

static inline void craft_deinit(struct craft *c)
{
    sl_buf_deinit(&c->b);
}

/* A copy in a block of exactly its size, so that a sanitizer sees any read beyond the end. */
static inline uint8_t *craft_exact(const void *data, size_t n)
{
    uint8_t *p = sl_malloc(n);
    if (p != NULL && n > 0)
        memcpy(p, data, n);
    return p;
}

#endif
