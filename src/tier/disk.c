/* SPDX-License-Identifier: MIT */
#include "tier/disk.h"

#include "base/check.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/sys.h"
#include "tier/disk_load.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define MOST_SLAB (256u << 20) /* bytes of pages of a file, where one page allows it */
#define LOG_EVERY 10000000000u /* ns between lines to the log */

static void complain(struct sl_disk *d, const char *what, const char *why)
{
    uint64_t now = sl_now_ns(), until = atomic_load(&d->quiet_until);
    if (now >= until && atomic_compare_exchange_strong(&d->quiet_until, &until, now + LOG_EVERY))
        sl_log(SL_LOG_WARN, "%.180s: a KV page cannot be %s: %s", d->dir, what, why);
}

/* ---- opening ---- */

static int plan(struct sl_disk *d, const struct sl_store_config *cfg, struct sl_error *err)
{
    uint64_t stride[SL_MAX_KV_GROUPS], head = 0;
    int32_t n_per_slab[SL_MAX_KV_GROUPS];
    for (int32_t g = 0; g < cfg->n_groups; g++)
        stride[g] = sl_slab_stride(cfg->page_bytes[g]);
    uint64_t bytes = sl_chunk_bytes(cfg->n_groups, stride, cfg->disk_bytes, MOST_SLAB);
    for (int32_t g = 0; g < cfg->n_groups; g++) {
        uint64_t n = SL_MIN(bytes / stride[g], SL_MAX_TIER_PAGES);
        n_per_slab[g] = (int32_t)n;
        head = SL_MAX(head, sl_slab_head_bytes((int32_t)n));
        d->kinds[g] = (struct sl_slab_kind){cfg->root, cfg->page_bytes[g], g, (int32_t)n};
    }
    d->slab_bytes = bytes + head;
    int rc =
        sl_slots_init(&d->slots, cfg->n_groups, n_per_slab, cfg->disk_bytes / d->slab_bytes, err);
    if (rc != 0)
        return sl_error_prefix(err, rc, "%.120s: %llu bytes for KV pages: ", cfg->dir,
                               (unsigned long long)cfg->disk_bytes);
    if (cfg->policy == SL_POLICY_ARC)
        rc = sl_slots_use_arc(&d->slots, err);
    if (rc != 0)
        sl_slots_deinit(&d->slots);
    return rc;
}

static int reserve(struct sl_disk *d, enum sl_coding coding, struct sl_error *err)
{
    size_t n_files = (size_t)d->slots.n_chunks, n_slots = n_files * (size_t)d->slots.n_stride;
    d->digests = sl_calloc(n_slots, sizeof *d->digests);
    d->n_coded = sl_calloc(n_slots, sizeof *d->n_coded);
    d->made_for = sl_calloc(n_files, sizeof *d->made_for);
    if (d->digests == NULL || d->n_coded == NULL || d->made_for == NULL)
        return sl_fail(err, SL_ENOMEM, "%.180s: out of memory for %zu KV pages", d->dir, n_slots);
    for (size_t i = 0; i < n_files; i++)
        d->made_for[i] = SL_NO_SLOT;
    uint64_t most = 0;
    for (int32_t g = 0; g < d->slots.n_groups; g++)
        most = SL_MAX(most, sl_slab_stride(d->kinds[g].page_bytes));
    return sl_disk_code_open(&d->code, coding, (size_t)most, err);
}

/* Takes the folder for this process. */
static int take_folder(struct sl_disk *d, struct sl_error *err)
{
    char path[SL_MAX_TIER_DIR + 32];
    int rc = sl_make_folders(d->dir, err);
    if (rc == SL_ENOMEM)
        return rc;
    if (rc != 0)
        return sl_fail(err, SL_EIO, "%.160s: cannot be a folder for KV pages", d->dir);
    snprintf(path, sizeof path, "%s/lock", d->dir);
    rc = sl_try_lock(path, &d->lock_fd, err);
    if (rc == 0)
        return sl_fail(err, SL_EIO, "%.160s: another process keeps its KV pages there", d->dir);
    return rc > 0 ? 0 : sl_fail(err, SL_EIO, "%.160s: cannot be locked", d->dir);
}

/* The folder's secret; the first process makes it. Without the one that was, names are others', and
 * what is there is evicted in time. */
static int find_seed(struct sl_disk *d, struct sl_error *err)
{
    char path[SL_MAX_TIER_DIR + 32];
    SL_ASSERT(d->lock_fd >= 0); /* nobody else makes one now */
    snprintf(path, sizeof path, "%s/secret", d->dir);
    const int fd = sl_sys->open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0)
        return sl_fail(err, SL_EIO, "%.160s: a secret cannot be kept there: %s", d->dir,
                       strerror(errno));
    int rc = 0;
    if (sl_sys->pread(fd, &d->seed, sizeof d->seed, 0) != (ssize_t)sizeof d->seed) {
        rc = sl_random(&d->seed, sizeof d->seed, err);
        if (rc == 0 && sl_sys->pwrite(fd, &d->seed, sizeof d->seed, 0) != (ssize_t)sizeof d->seed)
            complain(d, "found after a restart", strerror(errno));
    }
    sl_sys->close(fd);
    return rc;
}

void sl_disk_use_seed(struct sl_disk *d, uint64_t seed)
{
    char path[SL_MAX_TIER_DIR + 32];
    SL_ASSERT(d->lock_fd >= 0);
    if (d->seed == seed)
        return;
    d->seed = seed;
    snprintf(path, sizeof path, "%s/secret", d->dir);
    const int fd = sl_sys->open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || sl_sys->pwrite(fd, &seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        complain(d, "found after a restart", strerror(errno));
    if (fd >= 0)
        sl_sys->close(fd);
}

/* Does this file system read and write past its cache? */
static bool can_be_direct(struct sl_disk *d)
{
    char path[SL_MAX_TIER_DIR + 32];
    snprintf(path, sizeof path, "%s/lock", d->dir);
    int fd = sl_sys->open(path, O_RDONLY | O_DIRECT, 0);
    if (fd >= 0)
        sl_sys->close(fd);
    return fd >= 0;
}

int sl_disk_open(struct sl_disk *d, const struct sl_store_config *cfg, struct sl_error *err)
{
    *d = (struct sl_disk){.lock_fd = -1};
    if (strlen(cfg->dir) > SL_MAX_TIER_DIR)
        return sl_fail(err, SL_EINVAL, "%.160s...: a path of more than %d bytes", cfg->dir,
                       SL_MAX_TIER_DIR);
    int rc = plan(d, cfg, err);
    if (rc != 0)
        return rc;
    d->dir = sl_strdup(cfg->dir);
    if (d->dir == NULL)
        rc = sl_fail(err, SL_ENOMEM, "%.180s: out of memory", cfg->dir);
    if (rc == 0)
        rc = reserve(d, cfg->coding, err);
    if (rc == 0)
        rc = take_folder(d, err);
    if (rc == 0)
        rc = find_seed(d, err);
    if (rc == 0) {
        d->direct = can_be_direct(d);
        rc = sl_disk_load(d, err);
    }
    if (rc != 0)
        sl_disk_close(d);
    return rc;
}

void sl_disk_close(struct sl_disk *d)
{
    if (d->lock_fd >= 0)
        sl_unlock(d->lock_fd);
    sl_disk_code_close(&d->code);
    sl_free(d->made_for);
    sl_free(d->n_coded);
    sl_free(d->digests);
    sl_slots_deinit(&d->slots);
    sl_free(d->dir);
    *d = (struct sl_disk){.lock_fd = -1};
}

/* ---- files ---- */

static void path_of(const struct sl_disk *d, int32_t number, char path[SL_MAX_TIER_DIR + 32])
{
    int n = snprintf(path, SL_MAX_TIER_DIR + 32, "%s/" SL_DISK_NAME, d->dir, (int)number);
    SL_ASSERT(n > 0 && n < SL_MAX_TIER_DIR + 32);
}

static int open_slab(const struct sl_disk *d, int32_t number, int flags)
{
    char path[SL_MAX_TIER_DIR + 32];
    path_of(d, number, path);
    return sl_sys->open(path, flags, 0600);
}

static void remove_slab(const struct sl_disk *d, int32_t number)
{
    char path[SL_MAX_TIER_DIR + 32];
    path_of(d, number, path);
    sl_remove_file(path);
}

/* Up to n bytes; fewer at the end of the file. -1 and errno. */
static int64_t read_at(int fd, uint8_t *p, size_t n, uint64_t at)
{
    size_t done = 0;
    while (done < n) {
        ssize_t got = sl_sys->pread(fd, p + done, n - done, (int64_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        done += (size_t)got;
    }
    return (int64_t)done;
}

static bool write_at(int fd, const uint8_t *p, size_t n, uint64_t at)
{
    size_t done = 0;
    while (done < n) {
        ssize_t put = sl_sys->pwrite(fd, p + done, n - done, (int64_t)(at + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put == 0)
            errno = ENOSPC;
        if (put <= 0)
            return false;
        done += (size_t)put;
    }
    return true;
}

/* Whoever reads or writes a slot holds it, so its file cannot change hands. */
static void check_slot(const struct sl_disk *d, int32_t slot, const struct sl_store_key *key)
{
    SL_ASSERT(slot >= 0 && slot < d->slots.n_chunks * d->slots.n_stride);
    SL_ASSERT(sl_slot_group(&d->slots, slot) == key->group);
    SL_ASSERT(d->slots.slots[slot].name.lo == key->name.lo);
}

/* What the file has at a slot, into memory with room for whole blocks; false and errno. */
static int64_t read_slot(struct sl_disk *d, const struct sl_slab_kind *kind, int32_t slot,
                         uint8_t *to, size_t n)
{
    const int32_t number = slot / d->slots.n_stride, i = slot % d->slots.n_stride;
    const uint64_t start = sl_now_ns();
    int fd = open_slab(d, number, O_RDONLY | (d->direct ? O_DIRECT : 0));
    int64_t got = fd >= 0 ? read_at(fd, to, n, sl_slab_page_at(kind, i)) : -1;
    if (got < 0)
        complain(d, "read", strerror(errno));
    if (fd >= 0)
        sl_sys->close(fd);
    if (got > 0)
        sl_disk_code_took(&d->code, true, (size_t)got, sl_now_ns() - start);
    return got;
}

enum sl_disk_result sl_disk_read(struct sl_disk *d, int32_t slot, const struct sl_store_key *key,
                                 uint8_t *page)
{
    const struct sl_slab_kind *kind = &d->kinds[key->group];
    const size_t n_coded = d->n_coded[slot], n_page = (size_t)kind->page_bytes;
    const size_t n = n_coded > 0 ? n_coded : n_page;
    struct sl_disk_room *room = NULL;
    check_slot(d, slot, key);
    if (n_coded > 0)
        room = sl_disk_room_take(&d->code);
    const int64_t got = read_slot(d, kind, slot, room != NULL ? room->coded : page,
                                  d->direct ? (size_t)sl_slab_stride(n) : n);
    bool right = got >= (int64_t)n;
    if (right && room != NULL)
        right = sl_disk_decode_page(&d->code, room, n_coded, page, n_page);
    if (room != NULL)
        sl_disk_room_give(&d->code, room);
    if (got < 0)
        return SL_DISK_FAILED;
    if (right) {
        struct sl_hash128 digest = sl_slab_digest(kind, &key->name, page);
        if (memcmp(&digest, &d->digests[slot], sizeof digest) == 0)
            return SL_DISK_DONE;
    }
    complain(d, "read", "it is not what was written");
    return SL_DISK_CORRUPT;
}

/* For writing: with a new head, if the file had pages of another group, in which nobody holds a
 * slot; or if it is gone, which costs its pages. -1 and errno. */
static int open_to_write(struct sl_disk *d, int32_t number, int32_t group)
{
    uint8_t head[SL_SLAB_ENTRY];
    bool mine = d->made_for[number] == group;
    int fd = open_slab(d, number, O_RDWR | (mine ? 0 : O_CREAT | O_TRUNC));
    bool gone = mine && fd < 0 && errno == ENOENT;
    if (gone)
        fd = open_slab(d, number, O_RDWR | O_CREAT);
    sl_slab_put_head(head, &d->kinds[group], number);
    if (fd >= 0 && (gone || !mine) && !write_at(fd, head, sizeof head, 0)) {
        int error = errno;
        sl_sys->close(fd);
        remove_slab(d, number);
        errno = error;
        fd = -1;
    }
    if (!mine) {
        memset(&d->digests[(size_t)number * (size_t)d->slots.n_stride], 0,
               (size_t)d->slots.n_stride * sizeof *d->digests);
        d->made_for[number] = fd >= 0 ? group : SL_NO_SLOT;
    }
    return fd;
}

static bool write_entry(int fd, int32_t i, const uint8_t entry[SL_SLAB_ENTRY])
{
    return write_at(fd, entry, SL_SLAB_ENTRY, ((uint64_t)i + 1) * SL_SLAB_ENTRY);
}

/* n bytes of it, coded or not; in memory with room for whole blocks. */
static bool write_page(struct sl_disk *d, int32_t number, int fd, const struct sl_slab_kind *kind,
                       int32_t i, const uint8_t *page, size_t n)
{
    if (!d->direct)
        return write_at(fd, page, n, sl_slab_page_at(kind, i));
    int direct = open_slab(d, number, O_WRONLY | O_DIRECT);
    if (direct < 0)
        return false;
    bool written = write_at(direct, page, (size_t)sl_slab_stride(n), sl_slab_page_at(kind, i));
    int error = errno;
    sl_sys->close(direct);
    errno = error;
    return written;
}

/* With the bytes that the slot is to have, which e counts if they are coded. */
static bool write_slot(struct sl_disk *d, int32_t slot, const struct sl_slab_kind *kind,
                       const struct sl_slab_entry *e, const uint8_t *bytes)
{
    static const uint8_t none[SL_SLAB_ENTRY];
    const int32_t number = slot / d->slots.n_stride, i = slot % d->slots.n_stride;
    const size_t n = (size_t)(e->n_coded > 0 ? e->n_coded : kind->page_bytes);
    const uint64_t start = sl_now_ns();
    uint8_t entry[SL_SLAB_ENTRY];
    int fd = open_to_write(d, number, kind->group);
    sl_slab_put_entry(entry, kind, number, i, e);
    /* First an old entry goes, so that after a crash it does not speak of new bytes. */
    bool fresh = d->digests[slot].lo == 0 && d->digests[slot].hi == 0;
    bool done = fd >= 0 && (fresh || write_entry(fd, i, none)) &&
                write_page(d, number, fd, kind, i, bytes, n) && write_entry(fd, i, entry);
    if (!done)
        complain(d, "written", strerror(errno));
    if (fd >= 0)
        sl_sys->close(fd);
    if (done)
        sl_disk_code_took(&d->code, false, n, sl_now_ns() - start);
    return done;
}

enum sl_disk_result sl_disk_write(struct sl_disk *d, int32_t slot, const struct sl_store_key *key,
                                  uint64_t used, const uint8_t *page, bool hurry)
{
    const struct sl_slab_kind *kind = &d->kinds[key->group];
    struct sl_slab_entry e = {key->name, sl_slab_digest(kind, &key->name, page), used, 0};
    struct sl_disk_room *room = NULL;
    check_slot(d, slot, key);
    if (d->code.coding != SL_CODING_NONE) {
        room = sl_disk_room_take(&d->code);
        e.n_coded = sl_disk_code_page(&d->code, room, page, (size_t)kind->page_bytes, hurry);
    }
    const bool done = write_slot(d, slot, kind, &e, e.n_coded > 0 ? room->coded : page);
    if (room != NULL)
        sl_disk_room_give(&d->code, room);
    d->digests[slot] = e.digest;
    d->n_coded[slot] = (uint32_t)e.n_coded;
    if (done && e.n_coded > 0) {
        atomic_fetch_add(&d->n_coded_pages, 1);
        atomic_fetch_add(&d->n_coded_bytes, e.n_coded);
    }
    return done ? SL_DISK_DONE : SL_DISK_FAILED;
}

/* Brings the entries of a file up to date that are there; true: there was one. */
static bool update_uses(const struct sl_disk *d, int32_t number, uint8_t *area)
{
    const struct sl_slab_kind *kind = &d->kinds[d->made_for[number]];
    bool changed = false;
    SL_ASSERT(d->made_for[number] == d->slots.chunks[number].group);
    for (int32_t i = 0; i < kind->n_slots; i++) {
        int32_t slot = number * d->slots.n_stride + i;
        const struct sl_slot *p = &d->slots.slots[slot];
        uint8_t *at = area + (size_t)i * SL_SLAB_ENTRY;
        struct sl_slab_entry e;
        if (p->state != SL_SLOT_READY ||
            sl_slab_get_entry(at, kind, number, i, &e) != SL_SLAB_GOOD || e.used == p->used ||
            memcmp(&e.name, &p->name, sizeof e.name) != 0 ||
            memcmp(&e.digest, &d->digests[slot], sizeof e.digest) != 0)
            continue;
        e.used = p->used;
        sl_slab_put_entry(at, kind, number, i, &e);
        changed = true;
    }
    return changed;
}

static bool save_uses_of(struct sl_disk *d, int32_t number, uint8_t *area)
{
    size_t n = (size_t)d->kinds[d->made_for[number]].n_slots * SL_SLAB_ENTRY;
    int fd = open_slab(d, number, O_RDWR);
    if (fd < 0)
        return false;
    memset(area, 0, n); /* a file may end before its last entry */
    int64_t got = read_at(fd, area, n, SL_SLAB_ENTRY);
    bool saved = got >= 0 &&
                 (!update_uses(d, number, area) || write_at(fd, area, (size_t)got, SL_SLAB_ENTRY));
    sl_sys->close(fd);
    return saved;
}

void sl_disk_save_uses(struct sl_disk *d)
{
    uint8_t *area = sl_malloc((size_t)d->slots.n_stride * SL_SLAB_ENTRY);
    bool saved = area != NULL;
    for (int32_t i = 0; saved && i < d->slots.n_chunks; i++) {
        int32_t group = d->slots.chunks[i].group;
        if (group != SL_NO_SLOT && d->made_for[i] == group)
            saved = save_uses_of(d, i, area);
    }
    sl_free(area); /* what was not saved is older than it was */
}
