/* SPDX-License-Identifier: MIT
 * Faults of a disk: bytes changed in files, files cut, processes killed in the middle, disks that
 * are full, broken or gone. A page comes back exactly, or not at all.
 */
#include "io/fault.h"
#include "tier/disk_load.h"
#include "tier_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define N_PAGES 6

static struct rig filled(void)
{
    struct rig r = rig_plain(64);
    r.cfg.page_bytes[0] = 200; /* small, so that every byte can be tried */
    rig_add_disk(&r, 400);
    rig_open(&r);
    for (uint64_t id = 0; id < N_PAGES; id++)
        assert_true(rig_put(&r, id, 0));
    rig_close(&r);
    return r;
}

static void slab_path(const struct rig *r, int number, char path[128])
{
    snprintf(path, 128, "%s/" SL_DISK_NAME, r->dir, number);
}

static size_t read_slab(const struct rig *r, uint8_t *data, size_t room)
{
    char path[128];
    slab_path(r, 0, path);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    ssize_t n = read(fd, data, room);
    assert_true(n > 0 && (size_t)n < room);
    close(fd);
    return (size_t)n;
}

static void write_slab(const struct rig *r, const uint8_t *data, size_t n)
{
    char path[128];
    slab_path(r, 0, path);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, n), (ssize_t)n);
    close(fd);
}

/* Opens the store and asks for all pages: right ones or none. How many came. */
static int count_good(struct rig *r)
{
    int n = 0;
    rig_open(r);
    for (uint64_t id = 0; id < N_PAGES; id++)
        n += rig_get(r, id, 0);
    return n;
}

/* How many pages a byte is about: all in the head, one in an entry or a page, else none. */
static int lost_by(const uint8_t *slab, const struct rig *r, size_t at)
{
    int32_t n_slots;
    memcpy(&n_slots, slab + 40, sizeof n_slots);
    assert_in_range(n_slots, N_PAGES, 1000);
    size_t head = sl_slab_head_bytes(n_slots);
    if (at < SL_SLAB_ENTRY)
        return N_PAGES;
    if (at < head)
        return at < (size_t)(N_PAGES + 1) * SL_SLAB_ENTRY;
    return (at - head) % SL_SLAB_ALIGN < r->cfg.page_bytes[0] &&
           (at - head) / SL_SLAB_ALIGN < N_PAGES;
}

/* Whatever byte of a file is another one, what it speaks of is missed, counted, and forgotten. */
static void a_wrong_byte_is_a_miss(void **state)
{
    (void)state;
    static uint8_t slab[256 << 10];
    struct rig r = filled();
    size_t n = read_slab(&r, slab, sizeof slab);
    struct sl_rng rng = {.seed = 5};
    int n_tried = 0;
    for (size_t at = 0; at < n; at++) {
        uint8_t old = slab[at];
        int lost = lost_by(slab, &r, at);
        if (lost == 0 && at % 509 != 0)
            continue; /* of what nothing is kept in, some */
        slab[at] = (uint8_t)(old ^ (1 + sl_rng_below(&rng, 255)));
        write_slab(&r, slab, n);
        slab[at] = old;
        assert_int_equal(count_good(&r), N_PAGES - lost);
        assert_true(rig_stats(&r, SL_TIER_DISK).corrupt > 0 || lost == 0);
        for (uint64_t id = 0; lost > 0 && id < N_PAGES; id++)
            rig_put(&r, id, 0); /* what is lost can be stored again */
        rig_close(&r);
        if (lost > 0 && at % 16 == 0) {
            assert_int_equal(count_good(&r), N_PAGES);
            rig_close(&r);
        }
        n_tried += lost > 0;
    }
    assert_int_equal(n_tried, SL_SLAB_ENTRY * (N_PAGES + 1) + N_PAGES * 200);
    rig_remove_disk(&r);
}

static void pages_beyond_the_end_are_missed(void **state)
{
    (void)state;
    static uint8_t slab[256 << 10];
    struct rig r = filled();
    size_t n = read_slab(&r, slab, sizeof slab), head = SL_SLAB_ALIGN;
    for (size_t cut = 0; cut < n; cut += cut < 1024 ? 7 : 301) {
        int entries = (int)(SL_MAX(cut, 64) - 64) / SL_SLAB_ENTRY, left = 0;
        for (size_t i = 0; i < N_PAGES; i++)
            left += head + i * SL_SLAB_ALIGN + r.cfg.page_bytes[0] <= cut;
        write_slab(&r, slab, cut);
        rig_open(&r);
        assert_int_equal(rig_stats(&r, SL_TIER_DISK).n_pages, SL_MIN(entries, left));
        rig_close(&r);
        assert_int_equal(count_good(&r), SL_MIN(entries, left));
        rig_close(&r);
    }
    /* Cut while it is open: found when it is read. */
    write_slab(&r, slab, n);
    rig_open(&r);
    write_slab(&r, slab, head + 2 * SL_SLAB_ALIGN);
    int good = 0;
    for (uint64_t id = 0; id < N_PAGES; id++)
        good += rig_get(&r, id, 0);
    assert_int_equal(good, 2);
    assert_int_equal(rig_stats(&r, SL_TIER_DISK).corrupt, N_PAGES - 2);
    rig_close(&r);
    rig_remove_disk(&r);
}

/* A page that was moved to another slot or file, with its entry, is not found there. */
static void pages_are_believed_in_their_place_only(void **state)
{
    (void)state;
    static uint8_t slab[256 << 10];
    uint8_t moved[SL_SLAB_ENTRY];
    char from[128], to[128];
    struct rig r = filled();
    size_t n = read_slab(&r, slab, sizeof slab), entry = SL_SLAB_ENTRY;
    memcpy(moved, slab + entry, entry);
    memcpy(slab + entry, slab + 2 * entry, entry);
    memcpy(slab + 2 * entry, moved, entry);
    write_slab(&r, slab, n);
    rig_open(&r);
    assert_int_equal(rig_stats(&r, SL_TIER_DISK).n_pages, N_PAGES - 2);
    assert_int_equal(rig_stats(&r, SL_TIER_DISK).corrupt, 2);
    rig_close(&r);
    slab_path(&r, 0, from);
    slab_path(&r, 1, to);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(count_good(&r), 0);
    rig_close(&r);
    rig_remove_disk(&r);
}

/* A digest is of all that makes a page: nothing else has it. */
static void a_digest_is_of_everything(void **state)
{
    (void)state;
    const struct sl_slab_kind kind = {{1, 2}, 8, 0, 4};
    const struct sl_hash128 name = {5, 6};
    const uint8_t page[8] = {1, 2, 3};
    struct sl_hash128 first = sl_slab_digest(&kind, &name, page);
    for (int what = 0; what < 7; what++) {
        struct sl_slab_kind k = kind;
        struct sl_hash128 n = name;
        uint8_t bytes[8];
        memcpy(bytes, page, sizeof bytes);
        k.root.lo += what == 1;
        k.root.hi += what == 2;
        k.group += what == 3;
        n.lo += what == 4;
        n.hi += what == 5;
        bytes[7] ^= what == 6;
        struct sl_hash128 d = sl_slab_digest(&k, &n, bytes);
        assert_int_equal(memcmp(&d, &first, sizeof d) == 0, what == 0);
    }
}

/* Two entries with one name, which evictions leave behind: the younger one counts. */
static void the_younger_of_two_counts(void **state)
{
    (void)state;
    static uint8_t slab[256 << 10];
    struct rig r = filled();
    size_t n = read_slab(&r, slab, sizeof slab);
    struct sl_slab_kind kind = {r.cfg.root, r.cfg.page_bytes[0], 0, 0};
    struct sl_slab_entry e;
    memcpy(&kind.n_slots, slab + 40, sizeof kind.n_slots);
    assert_int_equal(sl_slab_get_entry(slab + 64, &kind, 0, 0, &e), SL_SLAB_GOOD);
    for (int younger = 0; younger < 2; younger++) { /* slot 1 has page 0, and the bytes of page 1 */
        e.used = younger ? 1000 : 0;
        sl_slab_put_entry(slab + 128, &kind, 0, 1, &e);
        write_slab(&r, slab, n);
        assert_int_equal(count_good(&r), N_PAGES - 1 - younger);
        rig_close(&r);
    }
    rig_remove_disk(&r);
}

/* ---- a process that is killed ---- */

struct shared {
    _Atomic uint64_t n_stored;
};

/* Stores pages until it is killed, and says how many are on disk. */
static void store_for_ever(struct rig *r, struct shared *sh)
{
    rig_open(r);
    for (uint64_t id = 0;; id++) {
        while (rig_stats(r, SL_TIER_DISK).stored + 4 < id)
            sched_yield();
        rig_put(r, id, 0);
        atomic_store(&sh->n_stored, rig_stats(r, SL_TIER_DISK).stored);
    }
}

static struct shared *share(void)
{
    char name[] = "/tmp/sl-tier-XXXXXX";
    int fd = mkstemp(name);
    assert_true(fd >= 0 && ftruncate(fd, sizeof(struct shared)) == 0);
    unlink(name);
    void *p = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(p != MAP_FAILED);
    close(fd);
    return p;
}

static void a_kill_loses_only_what_is_unwritten(void **state)
{
    (void)state;
    struct shared *sh = share();
    struct sl_rng rng = {.seed = 11};
    uint64_t n_all = 0;
    for (int round = 0; round < 30; round++) {
        bool small = round % 2 != 0; /* places are used again and again */
        struct rig r = rig_plain(16);
        r.cfg.page_bytes[0] = small ? RIG_PAGE : 5 * RIG_PAGE + 77;
        r.cfg.host_bytes *= 6;
        rig_add_disk(&r, small ? 100 : 200000);
        atomic_store(&sh->n_stored, 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            store_for_ever(&r, sh);
        while (atomic_load(&sh->n_stored) < 20)
            usleep(100);
        usleep((useconds_t)sl_rng_below(&rng, 20000));
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
        uint64_t n = atomic_load(&sh->n_stored), found = 0;
        rig_open(&r);
        for (uint64_t id = 0; id < n + 10; id++) {
            bool has = rig_has(&r, id, 0);
            found += has;
            assert_true(has || small || id >= n);
            assert_int_equal(rig_get(&r, id, 0), has);
        }
        assert_true(found >= (small ? SL_MIN(n, 50u) : n));
        assert_int_equal(rig_stats(&r, SL_TIER_DISK).corrupt, 0);
        n_all += n;
        rig_close(&r);
        rig_remove_disk(&r);
    }
    assert_true(n_all > 600);
    munmap(sh, sizeof *sh);
}

/* ---- disks that fail ---- */

static struct {
    _Atomic int write_error, read_error, open_error; /* 0: none */
    atomic_bool torn;       /* half of a page is written, then the disk fails */
    _Atomic int interrupts; /* of the next calls, one of each kind */
    atomic_bool shut;       /* reads wait until it is opened */
    struct sl_sys sys;
} sick;

static bool strikes(_Atomic int *error)
{
    errno = atomic_load(error);
    if (errno == 0 && atomic_load(&sick.interrupts) > 0) {
        atomic_fetch_sub(&sick.interrupts, 1);
        errno = EINTR;
    }
    return errno != 0;
}

static ssize_t sick_pwrite(int fd, const void *buf, size_t n, int64_t offset)
{
    if (strikes(&sick.write_error))
        return -1;
    if (!atomic_load(&sick.torn) || n <= SL_SLAB_ENTRY)
        return sl_sys_real.pwrite(fd, buf, n, offset);
    atomic_store(&sick.write_error, EIO); /* to the end: as if the process had died */
    return sl_sys_real.pwrite(fd, buf, n / 2, offset);
}

static ssize_t sick_pread(int fd, void *buf, size_t n, int64_t offset)
{
    while (atomic_load(&sick.shut))
        usleep(100);
    return strikes(&sick.read_error) ? -1 : sl_sys_real.pread(fd, buf, n, offset);
}

static int sick_open(const char *path, int flags, int mode)
{
    errno = atomic_load(&sick.open_error);
    return errno != 0 ? -1 : sl_sys_real.open(path, flags, mode);
}

static void make_sick(void)
{
    sick.sys = sl_sys_real;
    sick.sys.pwrite = sick_pwrite;
    sick.sys.pread = sick_pread;
    sick.sys.open = sick_open;
    sl_sys = &sick.sys;
}

static void a_full_disk_costs_pages_only(void **state)
{
    (void)state;
    struct rig r = rig_plain(64);
    make_sick();
    rig_add_disk(&r, 400);
    rig_open(&r);
    atomic_store(&sick.write_error, ENOSPC);
    for (uint64_t id = 0; id < 10; id++)
        assert_true(rig_put(&r, id, 0));
    rig_settle(&r, 10);
    struct sl_store_stats st = rig_stats(&r, SL_TIER_DISK);
    assert_int_equal(st.n_pages, 0);
    assert_int_equal(st.dropped, 10);
    assert_in_range(st.io_errors, 1, 2); /* then it is left alone for a second */
    for (uint64_t id = 0; id < 10; id++)
        assert_int_equal(rig_get(&r, id, 0), 1); /* from host memory */
    atomic_store(&sick.write_error, 0);
    atomic_store(&sick.interrupts, 3);
    sleep(1);
    usleep(100000);
    for (uint64_t id = 10; id < 20; id++)
        assert_true(rig_put(&r, id, 0));
    rig_settle(&r, 20);
    assert_int_equal(rig_stats(&r, SL_TIER_DISK).n_pages, 10);
    rig_restart(&r);
    for (uint64_t id = 0; id < 20; id++)
        assert_int_equal(rig_get(&r, id, 0), id >= 10);
    rig_close(&r);
    rig_remove_disk(&r);
    sl_sys = &sl_sys_real;
}

/* A write that ends in the middle of a page, in a slot that had one before: neither page is found,
 * and none is found wrong. */
static void half_a_page_is_none(void **state)
{
    (void)state;
    for (uint64_t n_before = 0; n_before < 200; n_before += 50) {
        struct rig r = rig_plain(64);
        r.cfg.page_bytes[0] = 2 * RIG_PAGE;
        make_sick();
        rig_add_disk(&r, 100);
        rig_open(&r);
        for (uint64_t id = 0; id < n_before; id++) {
            assert_true(rig_put(&r, id, 0));
            rig_settle(&r, id + 1);
        }
        uint64_t n = rig_stats(&r, SL_TIER_DISK).n_pages;
        atomic_store(&sick.torn, true);
        assert_true(rig_put(&r, n_before, 0));
        rig_settle(&r, n_before + 1);
        assert_int_equal(rig_stats(&r, SL_TIER_DISK).dropped, 1);
        rig_close(&r);
        atomic_store(&sick.torn, false);
        atomic_store(&sick.write_error, 0);
        rig_open(&r);
        uint64_t found = 0;
        for (uint64_t id = 0; id <= n_before; id++)
            found += (uint64_t)rig_get(&r, id, 0);
        assert_int_equal(found, n - (n < n_before));
        assert_int_equal(rig_stats(&r, SL_TIER_DISK).corrupt, 0);
        rig_close(&r);
        rig_remove_disk(&r);
    }
    sl_sys = &sl_sys_real;
}

/* A real limit: files may not grow, so writes end in the middle. */
static void a_file_that_cannot_grow(void **state)
{
    (void)state;
    struct rig r = rig_plain(64);
    struct rlimit old, small;
    rig_add_disk(&r, 1000);
    rig_open(&r);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 5 * RIG_PAGE + 100;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (uint64_t id = 0; id < 30; id++)
        assert_true(rig_put(&r, id, 0));
    rig_settle(&r, 30);
    struct sl_store_stats st = rig_stats(&r, SL_TIER_DISK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(st.n_pages, 4);
    assert_true(st.dropped == 26 && st.io_errors > 0);
    rig_restart(&r);
    for (uint64_t id = 0; id < 30; id++)
        assert_int_equal(rig_get(&r, id, 0), id < 4);
    assert_int_equal(rig_stats(&r, SL_TIER_DISK).corrupt, 0);
    rig_close(&r);
    rig_remove_disk(&r);
}

static void a_broken_disk_is_a_miss(void **state)
{
    (void)state;
    for (int what = 0; what < 2; what++) {
        struct rig r = filled();
        make_sick();
        rig_open(&r);
        atomic_store(what == 0 ? &sick.read_error : &sick.open_error, EIO);
        assert_int_equal(rig_get(&r, 0, 0), 0);
        assert_int_equal(rig_get(&r, 1, 0), 0);
        atomic_store(what == 0 ? &sick.read_error : &sick.open_error, 0);
        struct sl_store_stats st = rig_stats(&r, SL_TIER_DISK);
        assert_int_equal(st.io_errors, 2);
        assert_int_equal(st.misses, 2);
        atomic_store(&sick.interrupts, 2);
        for (uint64_t id = 0; id < N_PAGES; id++) /* those two are forgotten */
            assert_int_equal(rig_get(&r, id, 0), id >= 2);
        assert_true(rig_put(&r, 0, 0));
        rig_restart(&r);
        assert_int_equal(rig_get(&r, 0, 0), 1);
        rig_close(&r);
        rig_remove_disk(&r);
        sl_sys = &sl_sys_real;
    }
}

static void a_folder_may_vanish(void **state)
{
    (void)state;
    struct rig r = filled();
    char away[128];
    snprintf(away, sizeof away, "%s-away", r.dir);
    rig_open(&r);
    assert_int_equal(rig_get(&r, 0, 0), 1);
    assert_int_equal(rename(r.dir, away), 0);
    assert_int_equal(rig_get(&r, 0, 0), 1); /* host memory */
    assert_int_equal(rig_get(&r, 1, 0), 0);
    assert_true(rig_put(&r, 50, 0));
    rig_settle(&r, 1);
    assert_int_equal(rig_stats(&r, SL_TIER_DISK).dropped, 1);
    assert_int_equal(rig_get(&r, 50, 0), 1);
    assert_int_equal(rename(away, r.dir), 0);
    sleep(1);
    usleep(100000);
    assert_int_equal(rig_get(&r, 2, 0), 1);
    assert_true(rig_put(&r, 51, 0));
    rig_restart(&r);
    assert_int_equal(rig_get(&r, 51, 0), 1);
    rig_close(&r);
    rig_remove_disk(&r);
}

/* A file that somebody deletes costs its pages. Later ones go into a new file, which lasts. */
static void a_file_may_vanish(void **state)
{
    (void)state;
    char path[128];
    struct rig r = filled();
    rig_open(&r);
    slab_path(&r, 0, path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rig_get(&r, 1, 0), 0);
    assert_true(rig_put(&r, 1, 0)); /* into the same slot, but nowhere else */
    rig_settle(&r, 1);
    assert_int_equal(rig_stats(&r, SL_TIER_DISK).dropped, 0);
    assert_int_equal(rig_get(&r, 2, 0), 0); /* nothing, or bytes that are not its own */
    rig_restart(&r);
    assert_int_equal(rig_stats(&r, SL_TIER_DISK).n_pages, 1);
    for (uint64_t id = 0; id < N_PAGES; id++)
        assert_int_equal(rig_get(&r, id, 0), id == 1);
    rig_close(&r);
    rig_remove_disk(&r);
}

/* ---- a slow disk ---- */

/* More pages than threads that read, so that some wait in the queue. Of a few all who asked leave.
 */
static void requests_may_leave_early(void **state)
{
    (void)state;
    enum { N = 20 };
    struct rig r = rig_plain(64);
    struct sl_store_get gets[2 * N];
    make_sick();
    rig_add_disk(&r, 400);
    rig_open(&r);
    for (uint64_t id = 0; id < N; id++)
        assert_true(rig_put(&r, id, 0));
    rig_restart(&r);
    atomic_store(&sick.shut, true);
    for (uint64_t i = 0; i < 2 * N; i++) { /* two for each page */
        rig_begin(&r, i / 2, 0, &gets[i]);
        assert_int_equal(rig_state(&gets[i]), SL_STORE_PENDING);
    }
    for (uint64_t i = 0; i < 2 * N; i++) {
        if (i % 2 == 1 || i / 2 % 5 == 3) {
            sl_store_end(r.store, &gets[i]);
            assert_int_equal(rig_state(&gets[i]), SL_STORE_MISS);
        }
    }
    atomic_store(&sick.shut, false);
    for (uint64_t i = 0; i < 2 * N; i += 2) {
        if (i / 2 % 5 == 3)
            continue;
        assert_int_equal(rig_await(&gets[i]), SL_STORE_HERE);
        assert_int_equal(gets[i].from, SL_TIER_DISK);
        assert_true(rig_same(&r, &gets[i].key, gets[i].page));
        sl_store_end(r.store, &gets[i]);
    }
    assert_true(rig_stats(&r, SL_TIER_DISK).loaded_bytes < N * RIG_PAGE); /* not all were read */
    for (uint64_t id = 0; id < N; id++)
        assert_int_equal(rig_get(&r, id, 0), 1);
    rig_restart(&r);
    for (uint64_t id = 0; id < N; id++) { /* and the store may end while pages are read */
        rig_begin(&r, id, 0, &gets[id]);
        sl_store_end(r.store, &gets[id]);
    }
    rig_close(&r);
    sl_sys = &sl_sys_real;
    rig_remove_disk(&r);
}

/* ---- everything at once ---- */

#define N_GETS 12

struct crowd {
    struct rig r;
    struct sl_rng rng;
    struct sl_store_get gets[N_GETS];
    bool begun[N_GETS];
    uint8_t *open[3]; /* reserved pages that are not committed */
    struct sl_store_key keys[3];
    uint64_t n_here, n_from_disk;
};

static void crowd_get(struct crowd *c, size_t i)
{
    struct sl_store_get *get = &c->gets[i];
    if (!c->begun[i]) {
        rig_begin(&c->r, sl_rng_below(&c->rng, 60), (int32_t)sl_rng_below(&c->rng, 2), get);
        c->begun[i] = true;
        return;
    }
    if (rig_state(get) == SL_STORE_HERE) {
        assert_true(rig_same(&c->r, &get->key, get->page));
        c->n_here++;
        c->n_from_disk += get->from == SL_TIER_DISK;
    } else if (rig_state(get) == SL_STORE_PENDING && sl_rng_below(&c->rng, 4) != 0) {
        return;
    }
    sl_store_end(c->r.store, get);
    c->begun[i] = false;
}

static void crowd_put(struct crowd *c, size_t i)
{
    if (c->open[i] == NULL) {
        c->keys[i] = rig_key(sl_rng_below(&c->rng, 60), (int32_t)sl_rng_below(&c->rng, 2));
        c->open[i] = sl_store_reserve(c->r.store, &c->keys[i]);
        return;
    }
    if (sl_rng_below(&c->rng, 4) == 0) {
        memset(c->open[i], 0xEE, c->r.cfg.page_bytes[c->keys[i].group]);
        sl_store_cancel(c->r.store, c->open[i]);
    } else {
        rig_fill(&c->r, &c->keys[i], c->open[i]);
        sl_store_commit(c->r.store, c->open[i]);
    }
    c->open[i] = NULL;
}

/* Puts, gets and cancels of two groups in tiers that are far too small, on a disk that fails now
 * and then: what comes is right. */
static void a_crowd_gets_right_pages(void **state)
{
    (void)state;
    struct crowd c = {.r = rig_plain(40), .rng = {.seed = 3}};
    c.r.cfg.n_groups = 2;
    c.r.cfg.page_bytes[1] = 3 * RIG_PAGE - 9;
    make_sick();
    rig_add_disk(&c.r, 90);
    for (int round = 0; round < 4; round++) {
        rig_open(&c.r);
        for (int i = 0; i < 6000; i++) {
            crowd_get(&c, sl_rng_below(&c.rng, N_GETS));
            crowd_put(&c, sl_rng_below(&c.rng, SL_COUNT(c.open)));
            if (i % 4 == 0)
                sched_yield(); /* to the disk's threads */
            atomic_store(&sick.read_error, round == 2 && i % 64 == 0 ? EIO : 0);
            atomic_store(&sick.write_error, round == 3 && i % 512 == 0 ? ENOSPC : 0);
        }
        for (size_t i = 0; i < N_GETS; i++)
            while (c.begun[i])
                crowd_get(&c, i);
        for (size_t i = 0; i < SL_COUNT(c.open); i++)
            if (c.open[i] != NULL)
                crowd_put(&c, i);
        atomic_store(&sick.read_error, 0);
        atomic_store(&sick.write_error, 0);
        assert_int_equal(rig_stats(&c.r, SL_TIER_DISK).corrupt, 0);
        rig_close(&c.r);
    }
    assert_true(c.n_here > 500 && c.n_from_disk > 50);
    sl_sys = &sl_sys_real;
    rig_remove_disk(&c.r);
}

/* ---- memory and files that are not to be had at the start ---- */

static void an_open_that_fails_leaves_nothing(void **state)
{
    (void)state;
    static const int kinds[] = {FAULT_ALLOC, FAULT_OPEN, FAULT_SIZE};
    struct rig r = filled();
    struct sl_error err;
    r.cfg.dir = r.dir;
    for (size_t i = 0; i < SL_COUNT(kinds); i++) {
        for (uint64_t k = 0;; k++) {
            fault_arm(kinds[i], k);
            int rc = sl_store_open(&r.cfg, &r.store, &err);
            fault_disarm();
            assert_true(rc == 0 || rc == SL_ENOMEM || rc == SL_EIO);
            assert_true((rc != 0) == (r.store == NULL));
            assert_true(kinds[i] != FAULT_ALLOC || rc == SL_ENOMEM || !fault.struck);
            sl_store_close(r.store);
            assert_true(fault_clean());
            if (!fault.struck) {
                assert_true(k > 0);
                break;
            }
        }
    }
    sl_sys = &sl_sys_real;
    rig_remove_disk(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_byte_is_a_miss),
        cmocka_unit_test(pages_beyond_the_end_are_missed),
        cmocka_unit_test(pages_are_believed_in_their_place_only),
        cmocka_unit_test(a_digest_is_of_everything),
        cmocka_unit_test(the_younger_of_two_counts),
        cmocka_unit_test(a_kill_loses_only_what_is_unwritten),
        cmocka_unit_test(a_full_disk_costs_pages_only),
        cmocka_unit_test(half_a_page_is_none),
        cmocka_unit_test(a_file_that_cannot_grow),
        cmocka_unit_test(a_broken_disk_is_a_miss),
        cmocka_unit_test(a_folder_may_vanish),
        cmocka_unit_test(a_file_may_vanish),
        cmocka_unit_test(requests_may_leave_early),
        cmocka_unit_test(a_crowd_gets_right_pages),
        cmocka_unit_test(an_open_that_fails_leaves_nothing),
    };
    sl_log_set_level(SL_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
