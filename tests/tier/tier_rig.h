/* SPDX-License-Identifier: MIT
 * tier_rig.h - a store for tests: pages whose bytes follow from their names, and someone to wake.
 */
#ifndef SL_TESTS_TIER_RIG_H
#define SL_TESTS_TIER_RIG_H

#include "base/check.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/sys.h"
#include "tier/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define RIG_PAGE 4096u /* bytes that a page takes at least */

struct rig {
    struct sl_store_config cfg;
    struct sl_store *store;
    atomic_int n_wakes;
    char dir[64];
};

static inline void rig_wake(void *arg)
{
    struct rig *r = arg;
    atomic_fetch_add(&r->n_wakes, 1);
}

static inline struct sl_store_key rig_key(uint64_t id, int32_t group)
{
    return (struct sl_store_key){{sl_mix64(id + 1), id}, group};
}

/* The bytes that the page of a name has. */
static inline void rig_fill(const struct rig *r, const struct sl_store_key *key, uint8_t *page)
{
    size_t n = r->cfg.page_bytes[key->group];
    uint64_t seed = key->name.lo + (uint64_t)key->group;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t x = sl_rng_at(seed, i);
        memcpy(page + i, &x, SL_MIN(n - i, sizeof x));
    }
}

static inline bool rig_same(const struct rig *r, const struct sl_store_key *key,
                            const uint8_t *page)
{
    size_t n = r->cfg.page_bytes[key->group];
    uint64_t seed = key->name.lo + (uint64_t)key->group;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t x = sl_rng_at(seed, i);
        if (memcmp(page + i, &x, SL_MIN(n - i, sizeof x)) != 0)
            return false;
    }
    return true;
}

static inline void rig_open(struct rig *r)
{
    struct sl_error err = {0};
    r->cfg.wake = rig_wake;
    r->cfg.wake_arg = r;
    r->cfg.dir = r->dir[0] != '\0' ? r->dir : NULL; /* a rig may have been copied */
    if (sl_store_open(&r->cfg, &r->store, &err) != 0)
        fail_msg("%s", err.msg);
}

static inline void rig_close(struct rig *r)
{
    sl_store_close(r->store);
    r->store = NULL;
}

/* One group with pages of one size, host memory for n of them. */
static inline struct rig rig_plain(uint64_t n_pages)
{
    return (struct rig){.cfg = {.root = {1, 2},
                                .n_groups = 1,
                                .page_bytes = {RIG_PAGE},
                                .host_bytes = n_pages * RIG_PAGE}};
}

/* The same in front of a folder of its own with room for n pages. */
static inline void rig_add_disk(struct rig *r, uint64_t n_pages)
{
    snprintf(r->dir, sizeof r->dir, "/tmp/sl-tier-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    r->cfg.disk_bytes = n_pages * RIG_PAGE;
    r->cfg.dir = r->dir;
}

static inline void rig_remove_disk(struct rig *r)
{
    struct sl_error err;
    assert_int_equal(sl_remove_tree(r->dir, &err), 0);
}

/* Ends the store, with everything written, and starts it again. */
static inline void rig_restart(struct rig *r)
{
    rig_close(r);
    rig_open(r);
}

/* Stores a page; false: it is there, or there is no room. */
static inline bool rig_put(struct rig *r, uint64_t id, int32_t group)
{
    struct sl_store_key key = rig_key(id, group);
    uint8_t *page = sl_store_reserve(r->store, &key);
    if (page == NULL)
        return false;
    rig_fill(r, &key, page);
    sl_store_commit(r->store, page);
    return true;
}

static inline bool rig_has(struct rig *r, uint64_t id, int32_t group)
{
    struct sl_store_key key = rig_key(id, group);
    return sl_store_has(r->store, &key);
}

static inline int32_t rig_state(struct sl_store_get *get)
{
    return atomic_load(&get->state);
}

static inline void rig_begin(struct rig *r, uint64_t id, int32_t group, struct sl_store_get *get)
{
    *get = (struct sl_store_get){.key = rig_key(id, group)};
    sl_store_begin(r->store, get);
}

/* Waits until a request is decided, for 20 seconds at most. */
static inline int32_t rig_await(struct sl_store_get *get)
{
    uint64_t end = sl_now_ns() + 20000000000u;
    while (rig_state(get) == SL_STORE_PENDING && sl_now_ns() < end)
        usleep(100);
    return rig_state(get);
}

/* Asks for a page and waits: 1 = here with the right bytes, 0 = missed. */
static inline int rig_get(struct rig *r, uint64_t id, int32_t group)
{
    struct sl_store_get get;
    rig_begin(r, id, group, &get);
    int32_t state = rig_await(&get);
    assert_int_not_equal(state, SL_STORE_PENDING);
    if (state == SL_STORE_HERE)
        assert_true(rig_same(r, &get.key, get.page));
    sl_store_end(r->store, &get);
    return state == SL_STORE_HERE;
}

static inline struct sl_store_stats rig_stats(struct rig *r, enum sl_tier_kind tier)
{
    struct sl_store_stats st;
    sl_store_stats(r->store, tier, &st);
    return st;
}

/* Waits until n pages were written or dropped since the store was opened. */
static inline void rig_settle(struct rig *r, uint64_t n)
{
    uint64_t end = sl_now_ns() + 20000000000u;
    struct sl_store_stats st;
    do {
        usleep(100);
        st = rig_stats(r, SL_TIER_DISK);
    } while (st.stored + st.dropped < n && sl_now_ns() < end);
    assert_int_equal(st.stored + st.dropped, n);
}

#endif
