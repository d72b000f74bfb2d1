/* SPDX-License-Identifier: MIT
 * A folder of pages as a stranger may leave it: two files, made by the input. Opening it says which
 * pages there are, and reading gives right bytes or none; both are compared with what the bytes of
 * the files say. Then pages are written over it, which must be found when it is opened again.
 *
 * The input cannot guess a checksum. So it says which of them are to be made right.
 */
#include "base/fs.h"
#include "base/log.h"
#include "base/sys.h"
#include "fuzz.h"
#include "tier/disk_load.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_FILES  2
#define N_NAMES  6
#define N_GROUPS 2
#define ROOM     (64u << 10) /* bytes of a file */

static char dir[64];
static const uint64_t page_bytes[N_GROUPS] = {40, 5000};
static uint8_t files[N_FILES][ROOM], page[8192];
static uint32_t sizes[N_FILES];

static struct sl_store_config config(void)
{
    return (struct sl_store_config){.root = {3, 4},
                                    .n_groups = N_GROUPS,
                                    .page_bytes = {page_bytes[0], page_bytes[1]},
                                    .dir = dir,
                                    .disk_bytes = 10 * 12288};
}

static void path_of(int i, char path[128])
{
    snprintf(path, 128, "%s/" SL_DISK_NAME, dir, i);
}

static struct sl_store_key key_of(int32_t name, int32_t group)
{
    return (struct sl_store_key){{(uint64_t)name * 77, 9}, group};
}

static void fill_page(const struct sl_store_key *key, uint8_t *out)
{
    for (uint64_t i = 0; i < page_bytes[key->group]; i++)
        out[i] = (uint8_t)(key->name.lo + i * 7);
}

/* One edit of a file whose head says `kind`. */
static void edit(struct sl_input *in, uint8_t *file, const struct sl_slab_kind *kind,
                 int32_t number)
{
    int32_t slot = sl_input_below(in, kind->n_slots), what = sl_input_below(in, 4);
    uint8_t *entry = file + (size_t)(slot + 1) * SL_SLAB_ENTRY;
    struct sl_store_key key = key_of(sl_input_below(in, N_NAMES), kind->group);
    struct sl_slab_entry e = {.name = key.name};
    uint64_t at = sl_slab_page_at(kind, slot);
    switch (what) {
    case 0: /* a page and its entry */
    case 1: /* an entry that speaks of other bytes */
        fill_page(&key, file + at);
        e.digest = sl_slab_digest(kind, &key.name, file + at);
        e.digest.lo += what == 1;
        e.used = sl_input_byte(in);
        e.used = e.used == 255 ? SL_SLAB_USES - 1 : e.used == 254 ? UINT64_MAX : e.used / 8;
        sl_slab_put_entry(entry, kind, number, slot, &e);
        break;
    case 2: /* bytes of an entry */
        for (int n = sl_input_below(in, 64); n > 0 && !sl_input_empty(in); n--)
            entry[sl_input_below(in, SL_SLAB_ENTRY)] = sl_input_byte(in);
        break;
    default: /* a byte of a page */
        file[at + sl_input_byte(in) % page_bytes[kind->group]] ^= sl_input_byte(in);
    }
}

static void make_file(struct sl_input *in, const struct sl_disk *d, int32_t number)
{
    uint8_t *file = files[number];
    const struct sl_slab_kind *kind = &d->kinds[sl_input_below(in, N_GROUPS)];
    char path[128];
    memset(file, 0, ROOM);
    sl_slab_put_head(file, kind, number);
    for (int n = sl_input_below(in, 32); n > 0; n--)
        edit(in, file, kind, number);
    if (sl_input_below(in, 8) == 1)
        file[sl_input_below(in, SL_SLAB_ENTRY)] ^= sl_input_byte(in);
    sizes[number] = (uint32_t)sl_slab_page_at(kind, kind->n_slots - 1) + 8192;
    SL_ASSERT(sizes[number] <= ROOM);
    if (sl_input_flag(in))
        sizes[number] = sizes[number] * (uint32_t)sl_input_byte(in) / 256;
    path_of(number, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    SL_ASSERT(fd >= 0 && write(fd, file, sizes[number]) == (ssize_t)sizes[number]);
    close(fd);
}

/* Looks in the bytes of the files for the youngest entry of a name. 0: none, 1: one whose bytes are
 * other ones, 2: a page. */
static int expected(const struct sl_disk *d, const struct sl_store_key *key)
{
    uint64_t youngest = 0;
    int found = 0;
    for (int32_t f = 0; f < N_FILES; f++) {
        const struct sl_slab_kind *kind = &d->kinds[key->group];
        struct sl_slab_entry e;
        if (sizes[f] < SL_SLAB_ENTRY ||
            sl_slab_kind_of(files[f], d->kinds, N_GROUPS, f) != key->group)
            continue;
        for (int32_t i = 0; i < kind->n_slots; i++) {
            const uint8_t *at = files[f] + (size_t)(i + 1) * SL_SLAB_ENTRY;
            uint64_t page_at = sl_slab_page_at(kind, i);
            if (sl_slab_get_entry(at, kind, f, i, &e) != SL_SLAB_GOOD ||
                memcmp(&e.name, &key->name, sizeof e.name) != 0 ||
                page_at + kind->page_bytes > sizes[f] || (found != 0 && e.used < youngest))
                continue;
            struct sl_hash128 digest = sl_slab_digest(kind, &key->name, files[f] + page_at);
            youngest = e.used;
            found = memcmp(&digest, &e.digest, sizeof digest) == 0 ? 2 : 1;
        }
    }
    return found;
}

static void open_disk(struct sl_disk *d)
{
    struct sl_store_config cfg = config();
    struct sl_error err;
    int rc = sl_disk_open(d, &cfg, &err);
    SL_ASSERT(rc == 0);
    rc = sl_slots_check(&d->slots, &err);
    SL_ASSERT(rc == 0);
}

/* 0: not there, 1: there, but its bytes are other ones, 2: a page. */
static int get(struct sl_disk *d, const struct sl_store_key *key)
{
    int32_t slot = sl_slots_find(&d->slots, key);
    if (slot == SL_NO_SLOT)
        return 0;
    sl_slots_hold(&d->slots, slot);
    int got = sl_disk_read(d, slot, key, page) == SL_DISK_DONE ? 2 : 1;
    if (got == 2)
        sl_slots_release(&d->slots, slot);
    else
        sl_slots_drop(&d->slots, slot);
    return got;
}

static void put(struct sl_disk *d, const struct sl_store_key *key)
{
    int32_t slot = sl_slots_find(&d->slots, key);
    if (slot != SL_NO_SLOT)
        return;
    slot = sl_slots_take(&d->slots, key);
    SL_ASSERT(slot != SL_NO_SLOT);
    fill_page(key, page);
    enum sl_disk_result done = sl_disk_write(d, slot, key, d->slots.slots[slot].used, page, false);
    SL_ASSERT(done == SL_DISK_DONE);
    sl_slots_ready(&d->slots, slot);
    sl_slots_release(&d->slots, slot);
}

static void remove_files(void)
{
    char path[128];
    for (int i = 0; i < 16; i++) {
        path_of(i, path);
        unlink(path);
    }
}

static void remove_folder(void)
{
    struct sl_error err;
    if (sl_remove_tree(dir, &err) != 0)
        fprintf(stderr, "fuzz_store: %s\n", err.msg);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    sl_log_set_level(SL_LOG_ERROR);
    snprintf(dir, sizeof dir, "%s/sl-fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    SL_ASSERT(mkdtemp(dir) != NULL && atexit(remove_folder) == 0);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_input in = {data, data + size};
    struct sl_disk d;
    int32_t n_put = 0, groups[N_NAMES];
    remove_files();
    open_disk(&d); /* for the sizes of its files */
    for (int32_t f = 0; f < N_FILES; f++)
        make_file(&in, &d, f);
    sl_disk_close(&d);
    open_disk(&d);
    for (int32_t i = 0; i < N_NAMES * N_GROUPS; i++) {
        struct sl_store_key key = key_of(i / N_GROUPS, i % N_GROUPS);
        int want = expected(&d, &key);
        SL_ASSERT(get(&d, &key) == want);
    }
    for (; n_put < N_NAMES && !sl_input_empty(&in); n_put++) {
        groups[n_put] = sl_input_below(&in, N_GROUPS);
        struct sl_store_key key = key_of(100 + n_put, groups[n_put]);
        put(&d, &key);
    }
    sl_disk_close(&d);
    open_disk(&d);
    for (int32_t i = 0; i < n_put; i++) { /* there is room for all */
        struct sl_store_key key = key_of(100 + i, groups[i]);
        SL_ASSERT(get(&d, &key) == 2);
    }
    sl_disk_close(&d);
    return 0;
}
