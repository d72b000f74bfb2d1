/* SPDX-License-Identifier: MIT */
#include "io/names.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/str.h"
#include "base/sys.h"

#include <string.h>

#define PATH_TAIL_BYTES 96

struct sl_names_slot {
    const char *name; /* NULL: free */
    uint32_t n_bytes, idx;
};

bool sl_names_init(struct sl_names *t, struct sl_arena *arena, size_t n)
{
    SL_ASSERT(n <= (size_t)1 << 30);
    uint32_t n_slots = 4;
    while (n_slots < n + n / 2)
        n_slots *= 2;
    SL_ASSERT(sl_is_pow2(n_slots) && n_slots > n); /* a free slot always ends a search */
    t->slots = sl_arena_array(arena, n_slots, sizeof *t->slots);
    t->mask = n_slots - 1;
    t->seed = sl_mix64(sl_now_ns() ^ (uint64_t)(uintptr_t)t->slots);
    return t->slots != NULL;
}

/* The slot that holds the name, or the free one where it would go. */
static struct sl_names_slot *probe(const struct sl_names *t, const char *name, size_t n_bytes)
{
    uint64_t at = sl_hash64(name, n_bytes, t->seed);
    for (;; at++) {
        struct sl_names_slot *s = &t->slots[at & t->mask];
        if (s->name == NULL || (s->n_bytes == n_bytes && memcmp(s->name, name, n_bytes) == 0))
            return s;
    }
}

bool sl_names_add(struct sl_names *t, const char *name, size_t n_bytes, uint32_t idx)
{
    SL_ASSERT(t->slots != NULL && n_bytes <= UINT32_MAX);
    struct sl_names_slot *s = probe(t, name, n_bytes);
    if (s->name != NULL)
        return false;
    *s = (struct sl_names_slot){name, (uint32_t)n_bytes, idx};
    return true;
}

int64_t sl_names_find(const struct sl_names *t, const char *name, size_t n_bytes)
{
    if (t->slots == NULL || n_bytes > UINT32_MAX)
        return -1;
    const struct sl_names_slot *s = probe(t, name, n_bytes);
    SL_DCHECK(s >= t->slots && s <= t->slots + t->mask);
    return s->name != NULL ? (int64_t)s->idx : -1;
}

bool sl_names_valid(const char *name, size_t n_bytes)
{
    if (n_bytes == 0)
        return false;
    for (size_t i = 0; i < n_bytes;) {
        size_t len = sl_printable_len(name + i, n_bytes - i);
        if (len == 0)
            return false;
        i += len;
    }
    return true;
}

int sl_names_scrub(struct sl_error *err, int rc)
{
    if (rc >= 0 || err == NULL)
        return rc;
    sl_scrub(err->msg, strlen(err->msg));
    return rc;
}

bool sl_names_plain_file(const char *name, size_t n_bytes)
{
    if (!sl_names_valid(name, n_bytes) || n_bytes > 255)
        return false;
    if (memchr(name, '/', n_bytes) != NULL || memchr(name, '\\', n_bytes) != NULL)
        return false;
    return name[0] != '.' || (n_bytes > 1 && !(n_bytes == 2 && name[1] == '.'));
}

bool sl_names_inner_file(const char *name, size_t n_bytes)
{
    const char *slash = memchr(name, '/', n_bytes);
    if (slash == NULL)
        return sl_names_plain_file(name, n_bytes);
    const size_t n_dir = (size_t)(slash - name);
    SL_ASSERT(n_dir < n_bytes);
    return sl_names_plain_file(name, n_dir) && sl_names_plain_file(slash + 1, n_bytes - n_dir - 1);
}

const char *sl_names_path_tail(const char *path)
{
    size_t n = strlen(path);
    if (n <= PATH_TAIL_BYTES)
        return path;
    const char *tail = path + n - PATH_TAIL_BYTES, *slash = strchr(tail, '/');
    return slash != NULL && slash[1] != '\0' ? slash + 1 : tail;
}
