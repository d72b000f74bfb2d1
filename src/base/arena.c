/* SPDX-License-Identifier: MIT */
#include "base/arena.h"

#include "base/check.h"
#include "base/sys.h"

#include <string.h>

/* Sanitizers see a chunk as one block. With ASan, what was not given out is poisoned, and a gap
 * lies behind each allocation, so that who writes over its end is caught; limits do not count the
 * gaps. */
#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#define ARENA_GAP 16u
#else
#define ARENA_GAP                         0u
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

#define ARENA_ALIGN     16u
#define ARENA_CHUNK_MIN 4096u
#define ARENA_CHUNK_MAX (256u << 10)

struct sl_arena_chunk {
    struct sl_arena_chunk *next;
    size_t n_bytes;
};

#define CHUNK_HEADER SL_ROUND_UP(sizeof(struct sl_arena_chunk), ARENA_ALIGN)

static int arena_grow(struct sl_arena *a, size_t need)
{
    size_t want = a->chunks != NULL ? a->chunks->n_bytes * 2 : ARENA_CHUNK_MIN;
    want = SL_MIN(want, ARENA_CHUNK_MAX);
    want = SL_MAX(want, need);
    size_t total;
    if (!sl_add_size(want, CHUNK_HEADER, &total))
        return -1;
    struct sl_arena_chunk *c = sl_malloc(total);
    if (c == NULL)
        return -1;
    c->next = a->chunks;
    c->n_bytes = want;
    a->chunks = c;
    a->next = (uint8_t *)c + CHUNK_HEADER;
    a->end = a->next + want;
    ASAN_POISON_MEMORY_REGION(a->next, want);
    return 0;
}

void *sl_arena_alloc(struct sl_arena *a, size_t n_bytes)
{
    size_t need, used;
    if (!sl_add_size(SL_MAX(n_bytes, 1), ARENA_ALIGN - 1 + ARENA_GAP, &need))
        return NULL;
    need &= ~(size_t)(ARENA_ALIGN - 1);
    if (!sl_add_size(a->used_bytes, need - ARENA_GAP, &used) ||
        (a->max_bytes != 0 && used > a->max_bytes))
        return NULL;
    if ((size_t)(a->end - a->next) < need && arena_grow(a, need) != 0) {
        a->no_memory = true;
        return NULL;
    }
    void *p = a->next;
    a->next += need;
    a->used_bytes = used;
    ASAN_UNPOISON_MEMORY_REGION(p, n_bytes);
    return memset(p, 0, n_bytes);
}

void *sl_arena_array(struct sl_arena *a, size_t n, size_t size)
{
    size_t n_bytes;
    return sl_mul_size(n, size, &n_bytes) ? sl_arena_alloc(a, n_bytes) : NULL;
}

char *sl_arena_strndup(struct sl_arena *a, const char *s, size_t n)
{
    char *out = n < SIZE_MAX ? sl_arena_alloc(a, n + 1) : NULL;
    if (out != NULL && n > 0)
        memcpy(out, s, n);
    return out;
}

void sl_arena_deinit(struct sl_arena *a)
{
    while (a->chunks != NULL) {
        struct sl_arena_chunk *next = a->chunks->next;
        ASAN_UNPOISON_MEMORY_REGION(a->chunks, CHUNK_HEADER + a->chunks->n_bytes);
        sl_free(a->chunks);
        a->chunks = next;
    }
    *a = (struct sl_arena){.max_bytes = a->max_bytes};
}
