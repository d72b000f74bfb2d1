/* SPDX-License-Identifier: MIT */
#include "tier/disk_load.h"

#include "base/check.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/str.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A page that an entry speaks of. */
struct found {
    struct sl_hash128 name;
    uint64_t used;
    int32_t slot;
};

struct loading {
    struct sl_disk *d;
    uint8_t *area; /* room for the head of any file */
    struct found *found;
    size_t n_found, n_room;
};

int32_t sl_disk_number(const char *name)
{
    char again[32];
    uint64_t number;
    const char *digits = name + 3;
    size_t n = strlen(name);
    if (!sl_starts_with(name, "kv-") || !sl_ends_with(name, ".slab") || n < 3 + 6 + 5 ||
        !sl_parse_u64(digits, n - 3 - 5, &number) || number > INT32_MAX)
        return -1;
    snprintf(again, sizeof again, SL_DISK_NAME, (int)number);
    return strcmp(name, again) == 0 ? (int32_t)number : -1;
}

static bool read_all(int fd, uint8_t *p, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = sl_sys->pread(fd, p + done, n - done, (int64_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    return true;
}

/* Bytes of entries that a file has at its beginning, read behind its head. */
static bool read_entries(struct loading *l, int fd, const struct sl_slab_kind *kind, uint64_t size,
                         size_t *n)
{
    uint64_t want = (uint64_t)kind->n_slots * SL_SLAB_ENTRY;
    *n = (size_t)SL_MIN(want, size - SL_SLAB_ENTRY);
    return read_all(fd, l->area + SL_SLAB_ENTRY, *n, SL_SLAB_ENTRY);
}

static int add_found(struct loading *l, const struct sl_slab_entry *e, int32_t slot,
                     struct sl_error *err)
{
    if (l->n_found == l->n_room) {
        size_t n = SL_MAX(l->n_room * 2, 1024);
        struct found *grown = sl_realloc(l->found, n * sizeof *grown);
        if (grown == NULL)
            return sl_fail(err, SL_ENOMEM, "%.180s: out of memory", l->d->dir);
        l->found = grown;
        l->n_room = n;
    }
    SL_ASSERT(l->n_found < l->n_room && slot < l->d->slots.n_chunks * l->d->slots.n_stride);
    l->found[l->n_found++] = (struct found){e->name, e->used, slot};
    l->d->digests[slot] = e->digest;
    l->d->n_coded[slot] = (uint32_t)e->n_coded;
    return 0;
}

/* Pages that were coded are forgotten by a process that does not. */
static bool can_decode(const struct sl_disk *d, const struct sl_slab_kind *kind)
{
    return d->code.coding != SL_CODING_NONE && sl_slab_stride(kind->page_bytes) <= d->code.most;
}

/* The entries of a file of this kind; what lies beyond its end is not there. */
static int load_entries(struct loading *l, const struct sl_slab_kind *kind, int32_t number,
                        uint64_t size, size_t n_bytes, struct sl_error *err)
{
    struct sl_disk *d = l->d;
    int rc = 0;
    SL_ASSERT(n_bytes <= (size_t)kind->n_slots * SL_SLAB_ENTRY);
    SL_ASSERT(number < d->slots.n_chunks && kind->n_slots <= d->slots.n_stride);
    sl_slots_assign(&d->slots, number, kind->group);
    d->made_for[number] = kind->group;
    for (int32_t i = 0; rc == 0 && ((size_t)i + 1) * SL_SLAB_ENTRY <= n_bytes; i++) {
        struct sl_slab_entry e;
        const uint8_t *in = l->area + ((size_t)i + 1) * SL_SLAB_ENTRY;
        enum sl_slab_state state = sl_slab_get_entry(in, kind, number, i, &e);
        const uint64_t n = state == SL_SLAB_GOOD && e.n_coded > 0 ? e.n_coded : kind->page_bytes;
        const bool readable = state == SL_SLAB_GOOD && (e.n_coded == 0 || can_decode(d, kind));
        if (readable && sl_slab_page_at(kind, i) + n <= size)
            rc = add_found(l, &e, number * d->slots.n_stride + i, err);
        else
            d->n_forgotten += state != SL_SLAB_NONE;
    }
    return rc;
}

/* Its place is taken by pages of this store: it may be larger than theirs, so it goes now. */
static void forget(struct loading *l, const char *path)
{
    l->d->n_forgotten++;
    sl_remove_file(path);
}

static int load_slab(struct loading *l, const char *path, int32_t number, struct sl_error *err)
{
    struct sl_disk *d = l->d;
    size_t n_bytes = 0;
    int rc = 0, fd = sl_sys->open(path, O_RDONLY | O_NONBLOCK, 0);
    int64_t size = fd >= 0 ? sl_sys->file_size(fd) : -1;
    if (size < 0) {
        d->n_unreadable++;
    } else if (size == 0) {
        /* A crash came before its head was written. */
    } else if (size < SL_SLAB_ENTRY || !read_all(fd, l->area, SL_SLAB_ENTRY, 0)) {
        d->n_forgotten++;
    } else {
        int32_t g = sl_slab_kind_of(l->area, d->kinds, d->slots.n_groups, number);
        if (g < 0)
            forget(l, path); /* of another root, version or size */
        else if (!read_entries(l, fd, &d->kinds[g], (uint64_t)size, &n_bytes))
            d->n_unreadable++;
        else
            rc = load_entries(l, &d->kinds[g], number, (uint64_t)size, n_bytes, err);
    }
    if (fd >= 0)
        sl_sys->close(fd);
    return rc;
}

static int load_file(void *arg, const char *name, uint64_t n_bytes, struct sl_error *err)
{
    struct loading *l = arg;
    char path[SL_MAX_TIER_DIR + 32];
    int32_t number = sl_disk_number(name);
    (void)n_bytes;
    if (number < 0)
        return 0;
    snprintf(path, sizeof path, "%s/" SL_DISK_NAME, l->d->dir, (int)number);
    if (number >= l->d->slots.n_chunks) {
        sl_remove_file(path); /* the tier has become smaller */
        return 0;
    }
    /* A folder may be listed with the same name twice while others change it. */
    bool seen = l->d->slots.chunks[number].group != SL_NO_SLOT;
    return seen ? 0 : load_slab(l, path, number, err);
}

static int by_use(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    if (x->used != y->used)
        return x->used < y->used ? -1 : 1;
    return x->slot < y->slot ? -1 : x->slot > y->slot;
}

/* Of two entries with the same name, the younger one counts: a page is evicted without being
 * erased, and may have been stored again elsewhere. */
static void place_all(struct loading *l)
{
    struct sl_slots *s = &l->d->slots;
    if (l->n_found > 0)
        qsort(l->found, l->n_found, sizeof *l->found, by_use);
    for (size_t i = 0; i < l->n_found; i++) {
        const struct found *f = &l->found[i];
        struct sl_store_key key = {f->name, sl_slot_group(s, f->slot)};
        int32_t old = sl_slots_find(s, &key);
        if (old != SL_NO_SLOT) {
            sl_slots_hold(s, old);
            sl_slots_drop(s, old);
        }
        sl_slots_place(s, f->slot, &f->name, f->used);
    }
}

int sl_disk_load(struct sl_disk *d, struct sl_error *err)
{
    struct loading l = {.d = d};
    uint64_t n_area = 0;
    for (int32_t g = 0; g < d->slots.n_groups; g++)
        n_area = SL_MAX(n_area, sl_slab_head_bytes(d->kinds[g].n_slots));
    l.area = sl_malloc(n_area);
    if (l.area == NULL)
        return sl_fail(err, SL_ENOMEM, "%.180s: out of memory", d->dir);
    int rc = sl_list_folder(d->dir, load_file, &l, err);
    if (rc == 0)
        place_all(&l);
    if (rc == 0 && (l.n_found > 0 || d->n_forgotten > 0))
        sl_log(SL_LOG_INFO, "%.180s: %zu KV pages, %llu forgotten", d->dir, l.n_found,
               (unsigned long long)d->n_forgotten);
    sl_free(l.found);
    sl_free(l.area);
    return rc;
}
