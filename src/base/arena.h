/* SPDX-License-Identifier: MIT
 * arena.h - bump allocation with one lifetime: a parsed file, a compiled template, a request.
 *
 * Memory comes in chunks and is freed all at once. Not thread-safe. max_bytes bounds what a hostile
 * input can make it take; beyond it allocation returns NULL, exactly as when the heap is exhausted.
 */
#ifndef SL_BASE_ARENA_H
#define SL_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sl_arena_chunk;

struct sl_arena { /* zero-initialise; max_bytes 0 = unbounded */
    struct sl_arena_chunk *chunks;
    uint8_t *next, *end;
    size_t used_bytes, max_bytes;
    bool no_memory; /* an allocation failed, and not for max_bytes */
};

void *sl_arena_alloc(struct sl_arena *a, size_t n_bytes);        /* 16-byte aligned, zeroed */
void *sl_arena_array(struct sl_arena *a, size_t n, size_t size); /* NULL on overflow too */
char *sl_arena_strndup(struct sl_arena *a, const char *s, size_t n);
void sl_arena_deinit(struct sl_arena *a);

#endif
