/* SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/sys.h"
#include "tier/serve_impl.h"

#include <string.h>

#define TEND_PAGES 256  /* looked at in one go, so that the lock is not held for long */
#define MOST_TRIES 1000 /* for a page that the store has and does not give */

static uint32_t bucket_of(const struct sl_lease_id *id)
{
    return (uint32_t)(sl_mix64(id->lo ^ id->hi) % SL_LEASE_BUCKETS);
}

static bool same_id(const struct sl_lease_id *a, const struct sl_lease_id *b)
{
    return a->lo == b->lo && a->hi == b->hi && a->is_room == b->is_room;
}

static struct sl_lease **find_at(struct sl_serve *s, const struct sl_lease_id *id)
{
    struct sl_lease **at = &s->leases[bucket_of(id)];
    while (*at != NULL && !same_id(&(*at)->id, id))
        at = &(*at)->next;
    return at;
}

struct sl_lease *sl_lease_find(struct sl_serve *s, const struct sl_lease_id *id)
{
    return *find_at(s, id);
}

/* ---- pages, under the lock */

static void end_page(struct sl_serve *s, struct sl_lease_page *p, int32_t group)
{
    SL_ASSERT(p->asked && p->n_readers == 0);
    sl_store_end(s->cfg.store, &p->get);
    p->asked = false;
    if (p->held) {
        SL_ASSERT(s->held_bytes >= s->cfg.layout.page_bytes[group]);
        s->held_bytes -= s->cfg.layout.page_bytes[group];
        p->held = false;
    }
}

void sl_lease_leave(struct sl_lease *l)
{
    struct sl_serve *s = l->serve;
    SL_ASSERT(s != NULL && l->n_users > 0);
    if (--l->n_users > 0)
        return;
    const int32_t n_groups = s->cfg.layout.n_groups;
    for (int32_t i = 0; i < l->n_blocks * n_groups; i++)
        if (l->pages[i].asked)
            end_page(s, &l->pages[i], i % n_groups);
    sl_lease_unref(l);
}

static void unlist(struct sl_serve *s, struct sl_lease **at)
{
    struct sl_lease *l = *at;
    SL_ASSERT(l->listed && s->n_leases > 0);
    *at = l->next;
    l->listed = false;
    l->next = NULL;
    s->n_leases--;
    sl_lease_leave(l);
}

/* ---- making */

void sl_lease_unref(struct sl_lease *l)
{
    if (l == NULL || atomic_fetch_sub(&l->refs, 1) > 1)
        return;
    SL_ASSERT(l->n_users == 0);
    sl_free(l->names);
    sl_free(l->tokens);
    sl_free(l->pages);
    sl_free(l);
}

static struct sl_lease *make(const struct sl_serve *s, const struct sl_lease_id *id,
                             int32_t n_blocks)
{
    const struct sl_page_layout *y = &s->cfg.layout;
    struct sl_lease *l = sl_calloc(1, sizeof *l);
    SL_ASSERT(n_blocks >= 0 && n_blocks <= SL_MAX_LEASE_BLOCKS);
    if (l == NULL)
        return NULL;
    l->names = sl_calloc((size_t)n_blocks + 1, sizeof *l->names);
    l->tokens = sl_calloc((size_t)n_blocks + 1, (size_t)y->block_size * sizeof *l->tokens);
    l->pages = sl_calloc((size_t)n_blocks + 1, (size_t)y->n_groups * sizeof *l->pages);
    l->id = *id;
    l->n_blocks = n_blocks;
    atomic_init(&l->refs, 1);
    if (l->names != NULL && l->tokens != NULL && l->pages != NULL)
        return l;
    sl_lease_unref(l);
    return NULL;
}

/* Under the lock. It has a reference for its users. A room whose request is over may be another's.
 */
static bool list(struct sl_serve *s, struct sl_lease *l)
{
    struct sl_lease **old = find_at(s, &l->id);
    if (*old != NULL && (*old)->over)
        unlist(s, old);
    if (s->n_leases == SL_MAX_LEASES || sl_lease_find(s, &l->id) != NULL) {
        s->stats.n_refused++;
        return false;
    }
    struct sl_lease **bucket = &s->leases[bucket_of(&l->id)];
    l->serve = s;
    l->next = *bucket;
    *bucket = l;
    l->listed = true;
    l->n_users = 1;
    atomic_fetch_add(&l->refs, 1);
    s->n_leases++;
    s->stats.n_leases++;
    return true;
}

struct sl_lease *sl_serve_lease(struct sl_serve *s, const struct sl_lease_id *id, int32_t n_blocks,
                                const struct sl_hash128 *names, const int32_t *tokens)
{
    const struct sl_page_layout *y = &s->cfg.layout;
    struct sl_lease *l = n_blocks <= SL_MAX_LEASE_BLOCKS ? make(s, id, n_blocks) : NULL;
    if (l == NULL)
        return NULL;
    if (n_blocks > 0) {
        memcpy(l->names, names, (size_t)n_blocks * sizeof *names);
        memcpy(l->tokens, tokens, (size_t)n_blocks * (size_t)y->block_size * sizeof *tokens);
    }
    for (int32_t g = 0; g < y->n_groups; g++)
        l->at[g] = sl_layout_first(y, g, n_blocks);
    pthread_mutex_lock(&s->lock);
    bool listed = list(s, l);
    pthread_mutex_unlock(&s->lock);
    if (!listed) {
        sl_lease_unref(l);
        return NULL;
    }
    sl_peer_ring(s->threads[0].bell);
    return l;
}

void sl_lease_over(struct sl_lease *l, uint64_t n_stored, bool failed)
{
    struct sl_serve *s = l->serve;
    SL_ASSERT(s != NULL && atomic_load(&l->refs) > 0);
    pthread_mutex_lock(&s->lock);
    if (!l->over) {
        l->over = true;
        l->failed = failed;
        l->settled_at = n_stored;
        l->expires_ns = sl_now_ns() + (uint64_t)s->cfg.lease_ms * 1000000u;
    }
    pthread_mutex_unlock(&s->lock);
    sl_peer_ring(s->threads[0].bell);
}

void sl_serve_refuse_room(struct sl_serve *s, uint64_t room)
{
    const struct sl_lease_id id = {.lo = room, .is_room = 1};
    struct sl_lease *l = sl_serve_lease(s, &id, 0, NULL, NULL);
    if (l == NULL)
        return;
    sl_lease_over(l, 0, true);
    sl_lease_unref(l);
}

void sl_serve_stored(struct sl_serve *s, uint64_t n_stored)
{
    atomic_store(&s->n_stored, n_stored);
}

/* ---- looking, under the lock */

enum sl_store_state sl_lease_look(struct sl_lease *l, int32_t block, int32_t group)
{
    struct sl_serve *s = l->serve;
    const int32_t n_groups = s->cfg.layout.n_groups;
    SL_ASSERT(block >= 0 && block < l->n_blocks && group >= 0 && group < n_groups);
    struct sl_lease_page *p = &l->pages[(size_t)block * (size_t)n_groups + (size_t)group];
    const bool settled =
        l->over && atomic_load(&s->n_stored) >= l->settled_at; /* before it looks */
    if (!p->asked) {
        const struct sl_store_key key = {l->names[block], group};
        if (!sl_store_has(s->cfg.store, &key) || p->n_tries > MOST_TRIES)
            return settled || p->n_tries > MOST_TRIES ? SL_STORE_MISS : SL_STORE_PENDING;
        p->get.key = key;
        p->asked = true;
        p->n_tries++;
        sl_store_begin(s->cfg.store, &p->get);
    }
    enum sl_store_state state = (enum sl_store_state)atomic_load(&p->get.state);
    if (state == SL_STORE_MISS) { /* evicted or broken meanwhile: it is looked for anew */
        end_page(s, p, group);
        return SL_STORE_PENDING;
    }
    return state;
}

void sl_lease_read(struct sl_lease *l, int32_t idx)
{
    struct sl_lease_page *p = &l->pages[idx];
    SL_ASSERT(p->n_readers > 0 && p->asked);
    if (--p->n_readers == 0)
        end_page(l->serve, p, idx % l->serve->cfg.layout.n_groups);
}

/* Holds what has come of a group, in its order. True: more may come. */
static bool hold(struct sl_serve *s, struct sl_lease *l, int32_t group, int *budget)
{
    const size_t n = s->cfg.layout.page_bytes[group];
    SL_ASSERT(l->at[group] >= 0 && l->at[group] <= l->n_blocks);
    while (l->at[group] < l->n_blocks) {
        if (s->held_bytes + n > s->cfg.host_bytes / 2)
            return false; /* the rest is not kept */
        if (--*budget < 0)
            return true;
        const int32_t block = l->at[group];
        struct sl_lease_page *p =
            &l->pages[(size_t)block * (size_t)s->cfg.layout.n_groups + (size_t)group];
        enum sl_store_state state = sl_lease_look(l, block, group);
        if (state == SL_STORE_PENDING)
            return true;
        if (state == SL_STORE_HERE && !p->held) {
            p->held = true;
            s->held_bytes += n;
        }
        l->at[group]++;
    }
    return false;
}

bool sl_leases_tend(struct sl_serve *s, uint64_t now)
{
    bool more = false;
    int budget = TEND_PAGES;
    for (int i = 0; s->n_leases > 0 && i < SL_LEASE_BUCKETS; i++) {
        for (struct sl_lease **at = &s->leases[i]; *at != NULL;) {
            struct sl_lease *l = *at;
            if (l->over && (l->read || now >= l->expires_ns)) {
                s->stats.n_expired += !l->read;
                unlist(s, at);
                continue;
            }
            for (int32_t g = 0; !l->read && g < s->cfg.layout.n_groups; g++)
                more |= hold(s, l, g, &budget);
            at = &l->next;
        }
    }
    return more;
}

void sl_leases_drop(struct sl_serve *s)
{
    for (int i = 0; i < SL_LEASE_BUCKETS; i++)
        while (s->leases[i] != NULL)
            unlist(s, &s->leases[i]);
    SL_ASSERT(s->n_leases == 0);
}
