/* SPDX-License-Identifier: MIT */
#include "tier/store.h"

#include "base/sys.h"
#include "tier/store_impl.h"

#include <stdatomic.h>

static int check_config(const struct sl_store_config *cfg, struct sl_error *err)
{
    SL_ASSERT(cfg->n_groups >= 1 && cfg->n_groups <= SL_MAX_KV_GROUPS);
    for (int32_t g = 0; g < cfg->n_groups; g++) {
        if (cfg->page_bytes[g] == 0 || cfg->page_bytes[g] > SL_MAX_TIER_PAGE)
            return sl_fail(err, SL_EINVAL, "a KV page of %zu bytes cannot be stored",
                           cfg->page_bytes[g]);
    }
    return 0;
}

static int open_host(struct sl_store *s, const struct sl_store_config *cfg, struct sl_error *err)
{
    int rc = sl_host_open(&s->host, cfg, err);
    if (rc != 0)
        return rc;
    size_t n_slots = (size_t)s->host.slots.n_chunks * (size_t)s->host.slots.n_stride;
    s->jobs = sl_calloc(n_slots, sizeof *s->jobs);
    if (s->jobs == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for %zu KV pages", n_slots);
    return sl_store_touch_start(s, err);
}

static int open_disk(struct sl_store *s, const struct sl_store_config *cfg, struct sl_error *err)
{
    int rc = sl_disk_open(&s->disk, cfg, err);
    if (rc != 0)
        return rc;
    s->has_disk = true;
    s->seed = s->disk.seed;
    return sl_store_io_start(s, err);
}

int sl_store_open(const struct sl_store_config *cfg, struct sl_store **out, struct sl_error *err)
{
    int rc = check_config(cfg, err);
    *out = NULL;
    if (rc != 0)
        return rc;
    struct sl_store *s = sl_calloc(1, sizeof *s);
    if (s == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a store of KV pages");
    s->cfg = *cfg;
    s->cfg.dir = NULL; /* the disk has a copy */
    s->cfg.remote_url = s->cfg.remote_password = NULL;
    pthread_mutex_init(&s->lock, NULL);
    rc = open_host(s, cfg, err);
    if (rc == 0)
        rc = sl_random(&s->seed, sizeof s->seed, err);
    if (rc == 0 && cfg->dir != NULL)
        rc = open_disk(s, cfg, err);
    if (rc == 0)
        rc = sl_store_events_open(s, err);
    if (rc == 0 && cfg->remote_url != NULL)
        rc = sl_remote_open(s, cfg, err);
    if (rc == 0 && s->has_disk)
        sl_disk_use_seed(&s->disk, s->seed);
    if (rc != 0) {
        sl_store_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void sl_store_close(struct sl_store *s)
{
    if (s == NULL)
        return;
    sl_store_touch_stop(s);
    sl_remote_close(s); /* what it read may still be written to the disk */
    if (s->has_disk) {
        sl_store_io_stop(s);
        sl_disk_save_uses(&s->disk);
        sl_disk_close(&s->disk);
    }
    sl_store_events_close(s);
    sl_free(s->jobs);
    sl_store_unpin(s);
    sl_host_close(&s->host);
    pthread_mutex_destroy(&s->lock);
    sl_free(s);
}

uint64_t sl_store_seed(const struct sl_store *s)
{
    return s->seed;
}

static void check_key(const struct sl_store *s, const struct sl_store_key *key)
{
    SL_ASSERT(key->group >= 0 && key->group < s->cfg.n_groups);
}

/* ---- telling ---- */

/* The slot is held for this request. */
static void give(struct sl_store *s, struct sl_store_get *get, int32_t slot, enum sl_tier_kind from)
{
    size_t n = sl_store_page_bytes(s, slot);
    get->page = sl_host_page(&s->host, slot);
    get->from = from;
    s->stats[from].hits++;
    s->stats[SL_TIER_HOST].loaded_bytes += from == SL_TIER_HOST ? n : 0;
    atomic_store(&get->state, SL_STORE_HERE);
}

static void miss(struct sl_store *s, struct sl_store_get *get, enum sl_tier_kind tier)
{
    s->stats[tier].misses++;
    atomic_store(&get->state, SL_STORE_MISS);
}

bool sl_store_tell(struct sl_store *s, int32_t slot, bool here, enum sl_tier_kind from)
{
    struct sl_store_get *get = s->jobs[slot].waiters, *next;
    bool somebody = get != NULL;
    s->jobs[slot].waiters = NULL;
    for (; get != NULL; get = next) {
        next = get->inside; /* from its state on, the request is the engine's */
        get->inside = NULL;
        if (here) {
            give(s, get, slot, from);
        } else {
            sl_slots_release(&s->host.slots, slot);
            miss(s, get, from);
        }
    }
    return somebody;
}

void sl_store_wake(struct sl_store *s)
{
    if (s->cfg.wake != NULL)
        s->cfg.wake(s->cfg.wake_arg);
}

/* ---- putting ---- */

/* A page's slot on disk. To be used in host memory is a use there too. */
static int32_t use_on_disk(struct sl_store *s, const struct sl_store_key *key)
{
    int32_t slot = s->has_disk ? sl_slots_find(&s->disk.slots, key) : SL_NO_SLOT;
    if (slot != SL_NO_SLOT)
        sl_slots_touch(&s->disk.slots, slot);
    return slot;
}

bool sl_store_has(struct sl_store *s, const struct sl_store_key *key)
{
    check_key(s, key);
    pthread_mutex_lock(&s->lock);
    int32_t slot = sl_slots_find(&s->host.slots, key);
    if (slot != SL_NO_SLOT)
        sl_slots_touch(&s->host.slots, slot);
    bool has = use_on_disk(s, key) != SL_NO_SLOT || slot != SL_NO_SLOT;
    pthread_mutex_unlock(&s->lock);
    return has;
}

/* Of host memory, for a page that is not there. */
static int32_t take_slot(struct sl_store *s, const struct sl_store_key *key)
{
    int32_t slot = sl_slots_take(&s->host.slots, key);
    sl_store_touch_more(s);
    if (slot != SL_NO_SLOT) {
        s->jobs[slot].n_seen = 0;
        s->jobs[slot].sent = false;
    }
    return slot;
}

uint8_t *sl_store_reserve(struct sl_store *s, const struct sl_store_key *key)
{
    uint8_t *page = NULL;
    check_key(s, key);
    pthread_mutex_lock(&s->lock);
    if (sl_slots_find(&s->host.slots, key) == SL_NO_SLOT && use_on_disk(s, key) == SL_NO_SLOT) {
        int32_t slot = take_slot(s, key);
        if (slot != SL_NO_SLOT)
            page = sl_host_page(&s->host, slot);
        else
            s->stats[SL_TIER_HOST].dropped++;
    }
    pthread_mutex_unlock(&s->lock);
    return page;
}

/* The slot of a page that sl_store_reserve gave. */
static int32_t open_slot(const struct sl_store *s, const uint8_t *page)
{
    int32_t slot = sl_host_slot(&s->host, page);
    SL_ASSERT(s->host.slots.slots[slot].state == SL_SLOT_OPEN);
    return slot;
}

void sl_store_commit(struct sl_store *s, uint8_t *page)
{
    pthread_mutex_lock(&s->lock);
    int32_t slot = open_slot(s, page);
    s->stats[SL_TIER_HOST].stored++;
    s->stats[SL_TIER_HOST].stored_bytes += sl_store_page_bytes(s, slot);
    sl_slots_ready(&s->host.slots, slot);
    bool somebody = sl_store_tell(s, slot, true, SL_TIER_HOST);
    if (s->has_disk)
        sl_store_write(s, slot);
    if (s->remote != NULL)
        sl_remote_saw(s, slot);
    sl_slots_release(&s->host.slots, slot);
    pthread_mutex_unlock(&s->lock);
    if (somebody)
        sl_store_wake(s);
}

void sl_store_cancel(struct sl_store *s, uint8_t *page)
{
    pthread_mutex_lock(&s->lock);
    int32_t slot = open_slot(s, page);
    bool somebody = sl_store_tell(s, slot, false, SL_TIER_HOST);
    sl_slots_drop(&s->host.slots, slot);
    pthread_mutex_unlock(&s->lock);
    if (somebody)
        sl_store_wake(s);
}

void sl_store_disown(struct sl_store *s, const uint8_t *page)
{
    pthread_mutex_lock(&s->lock);
    int32_t slot = open_slot(s, page);
    const struct sl_hash128 nobodys = {.lo = (uint64_t)slot}; /* hi 0: no hash of a block */
    bool somebody = sl_store_tell(s, slot, false, SL_TIER_HOST);
    sl_slots_rename(&s->host.slots, slot, &nobodys);
    pthread_mutex_unlock(&s->lock);
    if (somebody)
        sl_store_wake(s);
}

uint8_t *sl_store_memory(const struct sl_store *s, size_t *n_bytes)
{
    *n_bytes = s->host.n_arena;
    return s->host.arena;
}

void sl_store_leave(struct sl_store *s)
{
    s->host.left = true;
}

/* ---- getting ---- */

static void wait_for(struct sl_store *s, int32_t slot, struct sl_store_get *get)
{
    SL_ASSERT(s->host.slots.slots[slot].state == SL_SLOT_OPEN);
    sl_slots_hold(&s->host.slots, slot);
    atomic_store(&get->state, SL_STORE_PENDING);
    get->inside = s->jobs[slot].waiters;
    s->jobs[slot].waiters = get;
}

/* A page that is not in host memory: it is on disk, or maybe in the remote tier, and gets a place
 * to be read into; or it is missed. */
static void fetch(struct sl_store *s, struct sl_store_get *get)
{
    const int32_t on_disk = use_on_disk(s, &get->key);
    const bool far = on_disk == SL_NO_SLOT && get->remote && s->remote != NULL;
    int32_t slot = SL_NO_SLOT;
    if (on_disk != SL_NO_SLOT || (far && sl_remote_serves(s)))
        slot = take_slot(s, &get->key);
    if (s->has_disk && (on_disk == SL_NO_SLOT || slot == SL_NO_SLOT))
        s->stats[SL_TIER_DISK].misses++;
    if (far && slot == SL_NO_SLOT)
        s->stats[SL_TIER_REMOTE].misses++;
    miss(s, get, SL_TIER_HOST);
    if (slot == SL_NO_SLOT)
        return;
    wait_for(s, slot, get);
    if (far)
        sl_remote_read(s, slot);
    else
        sl_store_read(s, slot, on_disk);
}

void sl_store_begin(struct sl_store *s, struct sl_store_get *get)
{
    check_key(s, &get->key);
    get->page = NULL;
    get->inside = NULL;
    get->from = SL_TIER_HOST;
    pthread_mutex_lock(&s->lock);
    int32_t slot = sl_slots_find(&s->host.slots, &get->key);
    if (slot == SL_NO_SLOT) {
        fetch(s, get);
    } else if (s->host.slots.slots[slot].state == SL_SLOT_READY) {
        use_on_disk(s, &get->key);
        sl_slots_hold(&s->host.slots, slot);
        give(s, get, slot, SL_TIER_HOST);
    } else {
        wait_for(s, slot, get);
    }
    pthread_mutex_unlock(&s->lock);
}

/* Takes a request that still waits out of its slot's list. */
static void leave(struct sl_store *s, struct sl_store_get *get)
{
    int32_t slot = sl_slots_find(&s->host.slots, &get->key);
    SL_ASSERT(slot != SL_NO_SLOT && s->host.slots.slots[slot].state == SL_SLOT_OPEN);
    struct sl_store_get *before = NULL, *at = s->jobs[slot].waiters;
    for (; at != get; at = at->inside) {
        SL_ASSERT(at != NULL);
        before = at;
    }
    if (before != NULL)
        before->inside = get->inside;
    else
        s->jobs[slot].waiters = get->inside;
    sl_slots_release(&s->host.slots, slot);
}

void sl_store_end(struct sl_store *s, struct sl_store_get *get)
{
    pthread_mutex_lock(&s->lock);
    switch (atomic_load(&get->state)) {
    case SL_STORE_HERE:
        sl_slots_release(&s->host.slots, sl_host_slot(&s->host, get->page));
        break;
    case SL_STORE_PENDING:
        leave(s, get);
        break;
    default:
        break;
    }
    atomic_store(&get->state, SL_STORE_MISS);
    get->page = NULL;
    get->inside = NULL;
    pthread_mutex_unlock(&s->lock);
}

const uint8_t *sl_store_keep(struct sl_store *s, struct sl_store_get *get)
{
    const uint8_t *page = get->page;
    (void)s; /* its hold on the slot changes hands */
    SL_ASSERT(atomic_load(&get->state) == SL_STORE_HERE && page != NULL);
    atomic_store(&get->state, SL_STORE_MISS);
    get->page = NULL;
    get->inside = NULL;
    return page;
}

void sl_store_saw(struct sl_store *s, const struct sl_store_key *key)
{
    check_key(s, key);
    pthread_mutex_lock(&s->lock);
    const int32_t slot = sl_slots_find(&s->host.slots, key);
    const int32_t on_disk = s->has_disk ? sl_slots_find(&s->disk.slots, key) : SL_NO_SLOT;
    if (slot != SL_NO_SLOT)
        sl_slots_again(&s->host.slots, slot);
    if (on_disk != SL_NO_SLOT)
        sl_slots_again(&s->disk.slots, on_disk);
    if (s->remote != NULL && slot != SL_NO_SLOT && s->host.slots.slots[slot].state == SL_SLOT_READY)
        sl_remote_saw(s, slot);
    pthread_mutex_unlock(&s->lock);
}

void sl_store_release(struct sl_store *s, const uint8_t *page)
{
    pthread_mutex_lock(&s->lock);
    sl_slots_release(&s->host.slots, sl_host_slot(&s->host, page));
    pthread_mutex_unlock(&s->lock);
}

/* ---- counters ---- */

static void count_pages(const struct sl_store *s, const struct sl_slots *slots,
                        struct sl_store_stats *out)
{
    for (int32_t g = 0; g < s->cfg.n_groups; g++) {
        out->n_pages += sl_slots_n_used(slots, g);
        out->n_bytes += sl_slots_n_used(slots, g) * s->cfg.page_bytes[g];
    }
    out->evicted = slots->n_evicted;
}

void sl_store_stats(struct sl_store *s, enum sl_tier_kind tier, struct sl_store_stats *out)
{
    SL_ASSERT(tier >= 0 && tier < SL_N_TIERS);
    pthread_mutex_lock(&s->lock);
    *out = s->stats[tier];
    if (tier == SL_TIER_REMOTE) {
        out->there = s->remote != NULL;
        out->up = s->remote != NULL && sl_remote_serves(s);
    } else if (tier == SL_TIER_HOST) {
        out->there = out->up = true;
        count_pages(s, &s->host.slots, out);
        out->capacity_bytes = (uint64_t)s->host.slots.n_chunks * s->host.chunk_bytes;
        out->ready_bytes = (uint64_t)s->host.slots.n_there * s->host.chunk_bytes;
    } else if (s->has_disk) {
        out->there = out->up = true;
        count_pages(s, &s->disk.slots, out);
        out->capacity_bytes = (uint64_t)s->disk.slots.n_chunks * s->disk.slab_bytes;
        out->corrupt += s->disk.n_forgotten;
        out->io_errors += s->disk.n_unreadable;
        out->coded = atomic_load(&s->disk.n_coded_pages);
        out->coded_bytes = atomic_load(&s->disk.n_coded_bytes);
    }
    pthread_mutex_unlock(&s->lock);
}
