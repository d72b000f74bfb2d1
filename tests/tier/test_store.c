/* SPDX-License-Identifier: MIT
 * Tests of the store of pages: exact bytes, the order of eviction, requests that wait.
 */
#include "tier_rig.h"

#include <sys/stat.h>

static void pages_come_back(void **state)
{
    (void)state;
    struct rig r = rig_plain(64);
    r.cfg.n_groups = 3;
    r.cfg.page_bytes[1] = 3 * RIG_PAGE + 5;
    r.cfg.page_bytes[2] = 1;
    rig_open(&r);
    for (uint64_t id = 0; id < 6; id++) {
        for (int32_t g = 0; g < 3; g++) {
            assert_false(rig_has(&r, id, g));
            assert_int_equal(rig_get(&r, id, g), 0);
            assert_true(rig_put(&r, id, g));
            assert_true(rig_has(&r, id, g));
            assert_false(rig_put(&r, id, g)); /* it is there */
        }
    }
    for (uint64_t id = 0; id < 6; id++)
        for (int32_t g = 0; g < 3; g++)
            assert_int_equal(rig_get(&r, id, g), 1);
    struct sl_store_stats st = rig_stats(&r, SL_TIER_HOST);
    assert_int_equal(st.n_pages, 18);
    assert_int_equal(st.n_bytes, 6 * (RIG_PAGE + 3 * RIG_PAGE + 5 + 1));
    assert_int_equal(st.hits, 18);
    assert_int_equal(st.misses, 18);
    assert_int_equal(st.stored, 18);
    assert_int_equal(st.loaded_bytes, st.n_bytes);
    assert_int_equal(st.stored_bytes, st.n_bytes);
    assert_true(st.capacity_bytes <= r.cfg.host_bytes);
    rig_close(&r);
}

static void the_least_recently_used_goes(void **state)
{
    (void)state;
    struct rig r = rig_plain(4);
    struct sl_store_get held;
    rig_open(&r);
    for (uint64_t id = 0; id < 4; id++)
        assert_true(rig_put(&r, id, 0));
    assert_int_equal(rig_get(&r, 0, 0), 1);
    assert_true(rig_has(&r, 2, 0)); /* to be looked for is a use */
    rig_begin(&r, 1, 0, &held);
    assert_true(rig_put(&r, 4, 0)); /* 1 is held: 3 goes */
    assert_false(rig_has(&r, 3, 0));
    assert_true(rig_put(&r, 5, 0)); /* then 0 */
    assert_false(rig_has(&r, 0, 0));
    assert_true(rig_has(&r, 2, 0));
    assert_true(rig_same(&r, &held.key, held.page));
    sl_store_end(r.store, &held);
    assert_true(rig_put(&r, 6, 0));
    assert_false(rig_has(&r, 4, 0));
    assert_true(rig_has(&r, 1, 0));
    assert_int_equal(rig_stats(&r, SL_TIER_HOST).evicted, 3);
    rig_close(&r);
}

static void what_is_held_stays(void **state)
{
    (void)state;
    struct rig r = rig_plain(4);
    struct sl_store_get held[4];
    rig_open(&r);
    for (uint64_t id = 0; id < 4; id++) {
        assert_true(rig_put(&r, id, 0));
        rig_begin(&r, id, 0, &held[id]);
        assert_int_equal(rig_state(&held[id]), SL_STORE_HERE);
    }
    assert_false(rig_put(&r, 9, 0)); /* no room */
    assert_int_equal(rig_stats(&r, SL_TIER_HOST).dropped, 1);
    for (uint64_t id = 0; id < 4; id++) {
        assert_true(rig_same(&r, &held[id].key, held[id].page));
        sl_store_end(r.store, &held[id]);
    }
    assert_true(rig_put(&r, 9, 0));
    rig_close(&r);
}

/* Who asks for a page that is being filled gets it with its commit, or a miss with its cancel. */
static void a_page_being_filled_is_waited_for(void **state)
{
    (void)state;
    struct rig r = rig_plain(4);
    struct sl_store_key key = rig_key(7, 0);
    struct sl_store_get gets[3];
    rig_open(&r);
    for (int committed = 0; committed < 2; committed++) {
        uint8_t *page = sl_store_reserve(r.store, &key);
        assert_non_null(page);
        assert_true(rig_has(&r, 7, 0)); /* about to be */
        for (int i = 0; i < 3; i++) {
            rig_begin(&r, 7, 0, &gets[i]);
            assert_int_equal(rig_state(&gets[i]), SL_STORE_PENDING);
        }
        sl_store_end(r.store, &gets[1]); /* does not want it any more */
        int n_wakes = atomic_load(&r.n_wakes);
        rig_fill(&r, &key, page);
        if (committed)
            sl_store_commit(r.store, page);
        else
            sl_store_cancel(r.store, page);
        assert_int_equal(atomic_load(&r.n_wakes), n_wakes + 1);
        for (int i = 0; i < 3; i += 2) {
            assert_int_equal(rig_state(&gets[i]), committed ? SL_STORE_HERE : SL_STORE_MISS);
            if (committed)
                assert_true(rig_same(&r, &key, gets[i].page));
            sl_store_end(r.store, &gets[i]);
        }
        assert_int_equal(rig_has(&r, 7, 0), committed);
    }
    rig_close(&r);
}

/* Somebody may still write to the place of a page that will not come: it is found by nobody, and
 * is nobody else's, until it is cancelled. */
static void a_disowned_place_is_out_of_use(void **state)
{
    (void)state;
    struct rig r = rig_plain(64);
    struct sl_store_get get;
    const struct sl_store_key key = rig_key(1, 0);
    rig_open(&r);
    uint8_t *page = sl_store_reserve(r.store, &key);
    assert_non_null(page);
    rig_begin(&r, 1, 0, &get);
    assert_int_equal(rig_state(&get), SL_STORE_PENDING);
    sl_store_disown(r.store, page);
    assert_int_equal(rig_state(&get), SL_STORE_MISS);
    sl_store_end(r.store, &get);
    assert_false(sl_store_has(r.store, &key));
    assert_true(rig_put(&r, 1, 0)); /* the same page, at another place */
    for (uint64_t i = 2; i < 400; i++)
        rig_put(&r, i, 0); /* more than there is room for */
    memset(page, 0x55, RIG_PAGE);
    for (uint64_t i = 1; i < 400; i++)
        (void)rig_get(&r, i, 0); /* right, or not there */
    const uint64_t n = rig_stats(&r, SL_TIER_HOST).n_pages;
    sl_store_cancel(r.store, page);
    assert_int_equal(rig_stats(&r, SL_TIER_HOST).n_pages, n - 1);
    rig_close(&r);
}

static void a_store_without_room_is_refused(void **state)
{
    (void)state;
    struct rig r = rig_plain(1);
    struct sl_error err = {0};
    assert_int_equal(sl_store_open(&r.cfg, &r.store, &err), SL_EINVAL);
    r.cfg.host_bytes = 0;
    assert_int_equal(sl_store_open(&r.cfg, &r.store, &err), SL_EINVAL);
    r.cfg.host_bytes = RIG_PAGE;
    r.cfg.page_bytes[0] = SIZE_MAX;
    assert_int_equal(sl_store_open(&r.cfg, &r.store, &err), SL_EINVAL);
    assert_null(r.store);
    sl_store_close(NULL);
}

/* ---- with a disk ---- */

static void pages_outlive_the_store(void **state)
{
    (void)state;
    struct rig r = rig_plain(64);
    r.cfg.n_groups = 3;
    r.cfg.page_bytes[1] = 3 * RIG_PAGE + 5;
    r.cfg.page_bytes[2] = 1;
    rig_add_disk(&r, 600);
    rig_open(&r);
    for (uint64_t id = 0; id < 30; id++) {
        for (int32_t g = 0; g < 3; g++)
            assert_true(rig_put(&r, id, g));
        rig_restart(&r); /* what is unwritten is written */
    }
    for (uint64_t id = 0; id < 30; id++) {
        for (int32_t g = 0; g < 3; g++) {
            assert_true(rig_has(&r, id, g));
            assert_false(rig_put(&r, id, g)); /* it is there */
            assert_int_equal(rig_get(&r, id, g), 1);
        }
    }
    struct sl_store_stats disk = rig_stats(&r, SL_TIER_DISK), host = rig_stats(&r, SL_TIER_HOST);
    assert_int_equal(disk.n_pages, 90);
    assert_int_equal(disk.hits, 90);
    assert_int_equal(disk.loaded_bytes, 30 * (RIG_PAGE + 3 * RIG_PAGE + 5 + 1));
    assert_int_equal(disk.corrupt + disk.io_errors + disk.misses + disk.evicted, 0);
    assert_int_equal(host.misses, 90);
    assert_int_equal(rig_get(&r, 29, 1), 1); /* now in host memory */
    assert_int_equal(rig_stats(&r, SL_TIER_HOST).hits, 1);
    assert_int_equal(rig_get(&r, 99, 0), 0);
    assert_int_equal(rig_stats(&r, SL_TIER_DISK).misses, 1);
    assert_true(atomic_load(&r.n_wakes) >= 90);
    rig_close(&r);
    rig_remove_disk(&r);
}

/* The engine's thread allocates nothing, whatever tier a page goes to or comes from. */
static void calls_allocate_nothing(void **state)
{
    (void)state;
    struct rig r = rig_plain(8);
    rig_add_disk(&r, 100);
    rig_open(&r);
    uint64_t before = sl_alloc_guard_count(), n_from_disk = 0;
    sl_alloc_guard_arm(true);
    for (uint64_t id = 0; id < 200; id++) {
        rig_put(&r, id, 0);
        rig_settle(&r, id + 1);
        for (uint64_t back = 0; back < 20 && back <= id; back += 5) {
            struct sl_store_get get;
            rig_begin(&r, id - back, 0, &get);
            n_from_disk += rig_await(&get) == SL_STORE_HERE && get.from == SL_TIER_DISK;
            sl_store_end(r.store, &get);
        }
    }
    sl_alloc_guard_arm(false);
    assert_int_equal(sl_alloc_guard_count(), before);
    assert_true(n_from_disk > 20);
    rig_close(&r);
    rig_remove_disk(&r);
}

static uint64_t bytes_below(const char *dir)
{
    char path[128];
    uint64_t sum = 0, n;
    for (int i = 0; i < 1000; i++) {
        snprintf(path, sizeof path, "%s/kv-%06d.slab", dir, i);
        if (sl_file_bytes(path, &n))
            sum += n;
    }
    return sum;
}

/* Far more pages than both tiers hold: the disk keeps the last ones, over a restart too, in the
 * bytes that it was given. */
static void the_disk_keeps_what_was_used_last(void **state)
{
    (void)state;
    struct rig r = rig_plain(8);
    rig_add_disk(&r, 100);
    rig_open(&r);
    for (uint64_t id = 0; id < 400; id++) {
        rig_settle(&r, id); /* so that nothing is dropped */
        assert_true(rig_put(&r, id, 0));
        assert_int_equal(rig_get(&r, 0, 0), 1); /* used all the time */
    }
    rig_restart(&r);
    struct sl_store_stats disk = rig_stats(&r, SL_TIER_DISK);
    assert_in_range(disk.n_pages, 60, 100);
    assert_true(disk.capacity_bytes <= r.cfg.disk_bytes);
    assert_true(bytes_below(r.dir) <= r.cfg.disk_bytes);
    assert_true(rig_has(&r, 0, 0));
    for (uint64_t id = 1; id < 400; id++)
        assert_int_equal(rig_has(&r, id, 0), id > 400 - disk.n_pages);
    for (uint64_t id = 400; id < 420; id++) { /* the oldest ones go first after a restart, too */
        assert_true(rig_put(&r, id, 0));
        rig_settle(&r, id - 399);
    }
    rig_restart(&r);
    for (uint64_t id = 420 - disk.n_pages + 1; id < 420; id++)
        assert_int_equal(rig_get(&r, id, 0), 1);
    assert_false(rig_has(&r, 400 - disk.n_pages + 1, 0));
    rig_close(&r);
    rig_remove_disk(&r);
}

/* A page that was written long ago, but used since, is young after a restart too. */
static void uses_outlive_the_store(void **state)
{
    (void)state;
    struct rig r = rig_plain(8);
    rig_add_disk(&r, 100);
    rig_open(&r);
    uint64_t n = 0;
    for (; rig_stats(&r, SL_TIER_DISK).evicted == 0; n++) {
        assert_true(rig_put(&r, n, 0));
        rig_settle(&r, n + 1);
    }
    assert_int_equal(rig_get(&r, 1, 0), 1); /* the oldest one: from disk */
    assert_true(rig_has(&r, 2, 0));
    for (int round = 0; round < 2; round++) {
        rig_restart(&r);
        for (uint64_t id = 0; id < 10; id++) {
            assert_true(rig_put(&r, n, 0));
            rig_settle(&r, id + 1);
            n++;
        }
    }
    rig_restart(&r);
    for (uint64_t id = 0; id < n; id++)
        assert_int_equal(rig_get(&r, id, 0), id == 1 || id == 2 || id > 22);
    rig_close(&r);
    rig_remove_disk(&r);
}

/* A disk tier that is made smaller keeps to its new size, and what is left is found. */
static void a_disk_may_shrink(void **state)
{
    (void)state;
    struct rig r = rig_plain(8);
    rig_add_disk(&r, 100);
    rig_open(&r);
    for (uint64_t id = 0; id < 80; id++) {
        assert_true(rig_put(&r, id, 0));
        rig_settle(&r, id + 1);
    }
    rig_close(&r);
    r.cfg.disk_bytes = 96 * RIG_PAGE; /* one file less, of the same size */
    assert_true(bytes_below(r.dir) > r.cfg.disk_bytes - 3 * RIG_PAGE);
    rig_open(&r);
    assert_in_range(rig_stats(&r, SL_TIER_DISK).n_pages, 70, 79);
    assert_int_equal(rig_stats(&r, SL_TIER_DISK).corrupt, 0);
    assert_true(bytes_below(r.dir) <= rig_stats(&r, SL_TIER_DISK).capacity_bytes);
    for (uint64_t id = 0; id < 80; id++)
        assert_int_equal(rig_get(&r, id, 0), id < rig_stats(&r, SL_TIER_DISK).n_pages);
    rig_close(&r);
    rig_remove_disk(&r);
}

/* What a slow disk has not taken yet is bounded: the rest stays in host memory only. */
static void unwritten_pages_are_bounded(void **state)
{
    (void)state;
    struct rig r = rig_plain(64);
    rig_add_disk(&r, 4000);
    rig_open(&r);
    int n_put = 0;
    for (uint64_t id = 0; id < 2000; id++)
        n_put += rig_put(&r, id, 0);
    assert_int_equal(n_put, 2000); /* half of the memory can always be evicted */
    rig_restart(&r);
    uint64_t n = rig_stats(&r, SL_TIER_DISK).n_pages;
    assert_in_range(n, 32, 2000);
    for (uint64_t id = 0; id < 2000; id++)
        assert_int_equal(rig_get(&r, id, 0), rig_has(&r, id, 0));
    assert_int_equal(rig_stats(&r, SL_TIER_DISK).hits, n);
    rig_close(&r);
    rig_remove_disk(&r);
}

static uint64_t seed_of(struct rig *r)
{
    const uint64_t seed = sl_store_seed(r->store);
    rig_restart(r);
    assert_int_equal(sl_store_seed(r->store) == seed, r->cfg.dir != NULL);
    return seed;
}

/* A folder keeps what names are hashed with, for its owner alone; without one each process has its
 * own. */
static void names_have_a_secret(void **state)
{
    struct rig a = rig_plain(8), b = rig_plain(8), none = rig_plain(8);
    struct stat st;
    char path[96];
    (void)state;
    rig_add_disk(&a, 8);
    rig_add_disk(&b, 8);
    rig_open(&a);
    rig_open(&b);
    rig_open(&none);
    const uint64_t seed = seed_of(&a), other = seed_of(&b);
    assert_true(seed != other && seed != 0 && seed_of(&none) != seed);
    snprintf(path, sizeof path, "%s/secret", a.dir);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(st.st_size, sizeof seed);
    rig_close(&a);
    assert_int_equal(truncate(path, 3), 0);
    rig_open(&a);
    assert_true(sl_store_seed(a.store) != seed); /* another one, not what is left of it */
    (void)seed_of(&a);
    rig_close(&a);
    rig_close(&b);
    rig_close(&none);
    rig_remove_disk(&a);
    rig_remove_disk(&b);
}

static void a_folder_has_one_owner(void **state)
{
    (void)state;
    struct rig r = rig_plain(8), other;
    struct sl_error err = {0};
    rig_add_disk(&r, 100);
    rig_open(&r);
    assert_true(rig_put(&r, 1, 0));
    other = r;
    assert_int_equal(sl_store_open(&other.cfg, &other.store, &err), SL_EIO);
    assert_non_null(strstr(err.msg, r.dir));
    assert_non_null(strstr(err.msg, "another process"));
    rig_restart(&r);
    assert_int_equal(rig_get(&r, 1, 0), 1);
    rig_close(&r);
    r.cfg.dir = "/dev/null/x";
    assert_int_equal(sl_store_open(&r.cfg, &r.store, &err), SL_EIO);
    assert_non_null(strstr(err.msg, "/dev/null/x"));
    r.cfg.dir = r.dir;
    r.cfg.disk_bytes = RIG_PAGE;
    assert_int_equal(sl_store_open(&r.cfg, &r.store, &err), SL_EINVAL);
    rig_remove_disk(&r);
}

/* Pages of another model, layout or version are never found; nor do they stay in the way. */
static void other_pages_are_forgotten(void **state)
{
    (void)state;
    for (int what = 0; what < 3; what++) {
        struct rig r = rig_plain(64);
        rig_add_disk(&r, 400);
        rig_open(&r);
        for (uint64_t id = 0; id < 20; id++)
            assert_true(rig_put(&r, id, 0));
        rig_close(&r);
        r.cfg.root.hi += what == 0;
        r.cfg.page_bytes[0] -= what == 1;
        r.cfg.disk_bytes /= what == 2 ? 4 : 1; /* files of another size */
        rig_open(&r);
        assert_int_equal(rig_stats(&r, SL_TIER_DISK).n_pages, 0);
        assert_true(rig_stats(&r, SL_TIER_DISK).corrupt > 0 || what == 2);
        assert_int_equal(bytes_below(r.dir), 0);
        for (uint64_t id = 0; id < 20; id++)
            assert_int_equal(rig_get(&r, id, 0), 0);
        for (uint64_t id = 0; id < 20; id++)
            assert_true(rig_put(&r, id, 0));
        rig_restart(&r);
        for (uint64_t id = 0; id < 20; id++)
            assert_int_equal(rig_get(&r, id, 0), 1);
        rig_close(&r);
        rig_remove_disk(&r);
    }
}

/* A file changes hands between groups: a late group gets its room on the disk. */
static void groups_share_a_disk(void **state)
{
    (void)state;
    struct rig r = rig_plain(64);
    r.cfg.n_groups = 2;
    r.cfg.page_bytes[1] = 4 * RIG_PAGE;
    rig_add_disk(&r, 400);
    rig_open(&r);
    for (uint64_t id = 0; id < 1000; id++) {
        assert_true(rig_put(&r, id, id >= 500));
        rig_settle(&r, id + 1);
    }
    rig_restart(&r);
    int n[2] = {0};
    for (uint64_t id = 0; id < 1000; id++)
        n[id >= 500] += rig_get(&r, id, id >= 500);
    assert_int_equal(n[0], 0); /* the others are all younger */
    assert_in_range(n[1], 50, 100);
    assert_int_equal(rig_get(&r, 999, 1), 1);
    assert_int_equal(rig_stats(&r, SL_TIER_DISK).corrupt, 0);
    assert_true(bytes_below(r.dir) <= r.cfg.disk_bytes);
    rig_close(&r);
    rig_remove_disk(&r);
}

/* ---- memory that is made ready ---- */

enum { PIN_PAGE = 1 << 20, PIN_PAGES = 180, PIN_ROOM = 200, PIN_DEVICE = 3 };

static struct {
    const uint8_t *first; /* the pieces lie one behind the other */
    atomic_size_t n_bytes;
    atomic_int n_calls, n_unpinned;
    int fail_at; /* a call; 0: none */
} pins;

static int pin_piece(int device, void *p, size_t n_bytes, struct sl_error *err)
{
    assert_int_equal(device, PIN_DEVICE);
    if (atomic_fetch_add(&pins.n_calls, 1) + 1 == pins.fail_at)
        return sl_fail(err, SL_ENOMEM, "no");
    if (atomic_load(&pins.n_bytes) == 0)
        pins.first = p;
    assert_ptr_equal(p, pins.first + atomic_load(&pins.n_bytes));
    atomic_fetch_add(&pins.n_bytes, n_bytes);
    return 0;
}

static void unpin_piece(int device, void *p)
{
    assert_int_equal(device, PIN_DEVICE);
    assert_in_range((uintptr_t)p, (uintptr_t)pins.first,
                    (uintptr_t)pins.first + atomic_load(&pins.n_bytes) - 1);
    atomic_fetch_add(&pins.n_unpinned, 1);
}

/* Pages put until n bytes are pinned, and some more; none lies in memory that is not. */
static void put_while_pinned(struct rig *r, size_t until, bool all)
{
    struct sl_error err = {0};
    memset(&pins, 0, sizeof pins);
    pins.fail_at = all ? 0 : 3;
    r->cfg.pin = pin_piece;
    r->cfg.unpin = unpin_piece;
    r->cfg.device = PIN_DEVICE;
    assert_int_equal(sl_store_open(&r->cfg, &r->store, &err), 0);
    assert_true(atomic_load(&pins.n_bytes) > 0); /* at the start */
    for (uint64_t i = 0, n_more = 0; n_more < PIN_PAGES; i++) {
        const struct sl_store_key key = rig_key(i, 0);
        uint8_t *page = sl_store_reserve(r->store, &key);
        assert_non_null(page);
        const size_t ready = atomic_load(&pins.n_bytes);
        assert_true(page >= pins.first && page + PIN_PAGE <= pins.first + ready);
        sl_store_cancel(r->store, page);
        if (ready < until)
            (void)usleep(200);
        n_more += ready >= until;
        assert_true(i < 100000);
    }
    for (uint64_t i = 0; i < PIN_PAGES; i++) {
        const struct sl_store_key key = rig_key(i, 0);
        uint8_t *page = sl_store_reserve(r->store, &key);
        assert_non_null(page);
        assert_true(page + PIN_PAGE <= pins.first + atomic_load(&pins.n_bytes));
        sl_store_commit(r->store, page);
    }
    struct sl_store_stats st;
    sl_store_stats(r->store, SL_TIER_HOST, &st);
    assert_true(all ? st.evicted == 0 : st.evicted > 0);
    rig_close(r);
    const int n_pieces = atomic_load(&pins.n_calls) - (all ? 0 : 1);
    assert_int_equal(atomic_load(&pins.n_unpinned), n_pieces);
    assert_true(n_pieces > 1);
}

static void pages_lie_in_memory_that_is_ready(void **state)
{
    struct rig r = {.cfg = {.root = {1, 2},
                            .n_groups = 1,
                            .page_bytes = {PIN_PAGE},
                            .host_bytes = (uint64_t)PIN_ROOM * PIN_PAGE}};
    (void)state;
    put_while_pinned(&r, (size_t)PIN_PAGES * PIN_PAGE, true);
    put_while_pinned(&r, (size_t)100 << 20, false);
    /* none of it: all is used as it is, when it has been touched */
    memset(&pins, 0, sizeof pins);
    pins.fail_at = 1;
    rig_open(&r);
    for (uint64_t i = 0; i < PIN_PAGES; i++)
        assert_true(rig_put(&r, i, 0));
    rig_close(&r);
    assert_int_equal(atomic_load(&pins.n_calls), 1);
}

/* Pages of few exponents lie coded on the disk, others as they are; both come back over a restart,
 * and damage of a coded one is noticed. */
static void a_disk_codes_what_shrinks(void **state)
{
    (void)state;
    enum { N = 24, BYTES = 40000 };
    struct rig r = {.cfg = {.root = {1, 2},
                            .n_groups = 1,
                            .page_bytes = {BYTES},
                            .host_bytes = 64 * 40960,
                            .coding = SL_CODING_ALWAYS}};
    static uint8_t pages[N][BYTES];
    struct sl_rng rng = {.seed = 12};
    rig_add_disk(&r, N * 12);
    rig_open(&r);
    for (uint64_t id = 0; id < N; id++) {
        struct sl_store_key key = rig_key(id, 0);
        for (size_t i = 0; i < BYTES; i += 2) { /* the exponents of every third page are noise */
            const uint64_t x = sl_rng_below(&rng, UINT64_C(1) << 32);
            pages[id][i] = (uint8_t)x;
            pages[id][i + 1] =
                (uint8_t)(id % 3 == 0 ? x >> 8 : 0x3c + (x >> 8 & 3) + (x >> 20 & 128));
        }
        uint8_t *page = sl_store_reserve(r.store, &key);
        assert_non_null(page);
        memcpy(page, pages[id], BYTES);
        sl_store_commit(r.store, page);
    }
    rig_settle(&r, N);
    const struct sl_store_stats st = rig_stats(&r, SL_TIER_DISK);
    assert_int_equal(st.coded, N - N / 3);
    assert_true((double)st.coded_bytes * 1.3 < (double)st.coded * BYTES);
    for (int round = 0; round < 2; round++) {
        rig_restart(&r);
        for (uint64_t id = 0; id < N; id++) {
            struct sl_store_get get;
            rig_begin(&r, id, 0, &get);
            const int32_t got = rig_await(&get);
            assert_int_equal(got, round == 1 && id == 1 ? SL_STORE_MISS : SL_STORE_HERE);
            if (got == SL_STORE_HERE)
                assert_memory_equal(get.page, pages[id], BYTES);
            sl_store_end(r.store, &get);
        }
        assert_int_equal(rig_stats(&r, SL_TIER_DISK).corrupt, round);
        rig_close(&r);
        char path[128]; /* a byte in the middle of the second page, which is coded, in a file of its
                           own */
        snprintf(path, sizeof path, "%s/kv-000001.slab", r.dir);
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        assert_int_equal(fseek(f, 4096 + 20000, SEEK_SET), 0);
        const int was = fgetc(f);
        assert_int_equal(fseek(f, 4096 + 20000, SEEK_SET), 0);
        assert_int_equal(fputc(was ^ 1, f), was ^ 1);
        fclose(f);
        rig_open(&r);
    }
    rig_close(&r);
    r.cfg.coding = SL_CODING_NONE; /* who does not code forgets what is coded */
    rig_open(&r);
    assert_true(rig_has(&r, 0, 0) && !rig_has(&r, 2, 0));
    rig_close(&r);
    rig_remove_disk(&r);
}

/* Who reads which pages are where: after every look it knows exactly that, however much came and
 * went in between. */
static void events_say_what_is_where(void **state)
{
    (void)state;
    enum { N_IDS = 64 };
    struct rig r = rig_plain(8);
    struct sl_rng rng = {.seed = 4};
    bool known[2][N_IDS] = {{false}};
    uint64_t n_removed[2] = {0};
    rig_add_disk(&r, 20);
    r.cfg.news = rig_wake;
    r.cfg.news_arg = &r;
    rig_open(&r);
    for (int i = 0; i < 2000; i++) {
        const uint64_t n_put = sl_rng_below(&rng, 12);
        for (uint64_t k = 0; k < n_put; k++)
            rig_put(&r, sl_rng_below(&rng, N_IDS), 0);
        if (i == 1000) {
            rig_settle(&r, rig_stats(&r, SL_TIER_HOST).stored);
            rig_restart(&r); /* its host memory is empty, its disk is not */
            memset(known, 0, sizeof known);
        } else if (sl_rng_below(&rng, 100) == 0) {
            sl_store_events_again(r.store);
            memset(known, 0, sizeof known);
        }
        struct sl_store_event e[5];
        for (int32_t n; (n = sl_store_events(r.store, e, 5)) > 0;) {
            for (int32_t k = 0; k < n; k++) {
                bool *it = &known[e[k].tier][e[k].key.name.hi];
                assert_int_equal(*it, e[k].removed);
                *it = !e[k].removed;
                n_removed[e[k].tier] += e[k].removed;
            }
        }
        if (i % 50 == 49) {
            rig_settle(&r, rig_stats(&r, SL_TIER_HOST).stored);
            atomic_store(&r.n_wakes, 0);
            while (sl_store_events(r.store, e, 1) > 0)
                known[e[0].tier][e[0].key.name.hi] = !e[0].removed;
            for (uint64_t id = 0; id < N_IDS; id++)
                assert_int_equal(rig_has(&r, id, 0), known[0][id] || known[1][id]);
            if (rig_put(&r, 1000 % N_IDS, 0))
                assert_true(atomic_load(&r.n_wakes) > 0);
        }
    }
    assert_true(n_removed[0] > 0 && n_removed[1] > 0);
    rig_close(&r);
    rig_remove_disk(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_come_back),
        cmocka_unit_test(the_least_recently_used_goes),
        cmocka_unit_test(what_is_held_stays),
        cmocka_unit_test(a_page_being_filled_is_waited_for),
        cmocka_unit_test(a_disowned_place_is_out_of_use),
        cmocka_unit_test(a_store_without_room_is_refused),
        cmocka_unit_test(pages_outlive_the_store),
        cmocka_unit_test(calls_allocate_nothing),
        cmocka_unit_test(the_disk_keeps_what_was_used_last),
        cmocka_unit_test(uses_outlive_the_store),
        cmocka_unit_test(a_disk_may_shrink),
        cmocka_unit_test(unwritten_pages_are_bounded),
        cmocka_unit_test(a_folder_has_one_owner),
        cmocka_unit_test(names_have_a_secret),
        cmocka_unit_test(other_pages_are_forgotten),
        cmocka_unit_test(groups_share_a_disk),
        cmocka_unit_test(pages_lie_in_memory_that_is_ready),
        cmocka_unit_test(events_say_what_is_where),
        cmocka_unit_test(a_disk_codes_what_shrinks),
    };
    sl_log_set_level(SL_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
