/* SPDX-License-Identifier: MIT
 * fake_store.h - the interface of tier/store.h for tests of who uses it: everything in static
 * memory, which outlives the store like a folder does; a part of the pages lies in a remote tier,
 * as the test says; pages and answers come late, are lost and are found corrupt as the test says,
 * and every use that the interface forbids ends the test.
 *
 * Included by a test it takes the place of the library's store.
 */
#ifndef SL_TESTS_FAKE_STORE_H
#define SL_TESTS_FAKE_STORE_H

#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "tier/store.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { FAKE_PAGES = 1 << 15, FAKE_GETS = 512, FAKE_BUCKETS = 4096, FAKE_PROBES = 4 };

struct fake_page {
    struct sl_store_key key;
    size_t n_bytes;
    uint8_t *bytes;
    bool committed;
    bool far;        /* in the remote tier only */
    int32_t next;    /* of its bucket, + 1 */
    int32_t n_users; /* gets that point to it, and who keeps it behind them */
};

struct sl_store_probe {
    struct sl_store_key keys[SL_MAX_TIER_PROBE];
    bool found[SL_MAX_TIER_PROBE];
    int32_t n, ends, due, late; /* ticks until it is answered, until nobody waits any more */
    bool taken, sent, answered;
};

struct sl_store {
    struct sl_store_config cfg;
    struct fake_page pages[FAKE_PAGES]; /* in the order in which they were reserved */
    int32_t n_pages, n_open;
    int32_t buckets[FAKE_BUCKETS]; /* pages + 1 */
    uint8_t *room;                 /* [room_bytes] where their bytes lie, one after another */
    size_t room_bytes, used;
    struct sl_store_get *gets[FAKE_GETS]; /* begun and not ended */
    int32_t due[FAKE_GETS], n_gets, n_kept;
    bool opened;
    struct sl_store_probe probes[FAKE_PROBES];
    uint64_t n_asked, n_far; /* questions to the remote tier; pages that came from there */
    struct sl_store_stats stats;
};

/* What goes wrong: of each 1,000 pages. */
struct fake_faults {
    int32_t lose;    /* that are there when one asks whether, and then are not */
    int32_t refuse;  /* have no room when they are to be stored */
    int32_t delay;   /* ticks at most until a page comes, each at random */
    int32_t corrupt; /* of other tokens than those of their name */
    bool hang;       /* no page ever comes */
    int32_t far;     /* are in the remote tier only when they are stored */
    double rate;     /* bytes a second of it; 0: known at times only */
    int32_t silent;  /* questions to it that are never answered, of 1,000 too */
};

static struct sl_store fake;
static struct fake_faults fake_faults;
static struct sl_rng fake_rng = {5, 0};

static inline bool fake_chance(int32_t of_1000)
{
    return of_1000 > 0 && sl_rng_below(&fake_rng, 1000) < (uint64_t)of_1000;
}

/* Forgets all pages. */
static inline void fake_clear(void)
{
    SL_ASSERT(!fake.opened);
    free(fake.room);
    memset(&fake, 0, sizeof fake);
}

static inline int32_t *fake_bucket(const struct sl_store_key *key)
{
    return &fake.buckets[(key->name.lo + (uint64_t)key->group) % FAKE_BUCKETS];
}

static inline struct fake_page *fake_find(const struct sl_store_key *key)
{
    for (int32_t i = *fake_bucket(key); i != 0; i = fake.pages[i - 1].next) {
        struct fake_page *p = &fake.pages[i - 1];
        if (p->key.group == key->group && p->key.name.lo == key->name.lo &&
            p->key.name.hi == key->name.hi)
            return p;
    }
    return NULL;
}

int sl_store_open(const struct sl_store_config *cfg, struct sl_store **out, struct sl_error *err)
{
    SL_ASSERT(!fake.opened && cfg->n_groups >= 1 && cfg->wake != NULL);
    if (fake.room == NULL) {
        fake.room_bytes = (size_t)cfg->host_bytes;
        fake.room = malloc(fake.room_bytes);
    } else {
        SL_ASSERT(memcmp(&cfg->root, &fake.cfg.root, sizeof cfg->root) == 0);
    }
    if (fake.room == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    fake.cfg = *cfg;
    fake.opened = true;
    *out = &fake;
    return 0;
}

uint64_t sl_store_seed(const struct sl_store *s)
{
    (void)s;
    return 11;
}

void sl_store_close(struct sl_store *s)
{
    if (s == NULL)
        return;
    SL_ASSERT(s->opened && s->n_gets == 0 && s->n_open == 0 && s->n_kept == 0);
    for (int32_t i = 0; i < FAKE_PROBES; i++)
        SL_ASSERT(!s->probes[i].taken);
    s->opened = false;
}

bool sl_store_has(struct sl_store *s, const struct sl_store_key *key)
{
    SL_ASSERT(s->opened && key->group >= 0 && key->group < s->cfg.n_groups);
    return fake_find(key) != NULL && !fake_find(key)->far;
}

/* Nobody reads events of these tests' stores. */
int32_t sl_store_events(struct sl_store *s, struct sl_store_event *out, int32_t max)
{
    (void)out;
    SL_ASSERT(s->opened && max > 0);
    return 0;
}

void sl_store_events_again(struct sl_store *s)
{
    SL_ASSERT(s->opened);
}

uint8_t *sl_store_reserve(struct sl_store *s, const struct sl_store_key *key)
{
    const size_t n = s->cfg.page_bytes[key->group];
    SL_ASSERT(s->opened);
    if (fake_find(key) != NULL || fake_chance(fake_faults.refuse) || s->n_pages == FAKE_PAGES ||
        s->used + n > s->room_bytes) {
        if (fake_find(key) != NULL)
            fake_find(key)->far = false;
        s->stats.dropped++;
        return NULL;
    }
    struct fake_page *p = &s->pages[s->n_pages++];
    *p = (struct fake_page){
        .key = *key, .n_bytes = n, .bytes = s->room + s->used, .next = *fake_bucket(key)};
    *fake_bucket(key) = s->n_pages;
    s->used += n;
    s->n_open++;
    memset(p->bytes, 0xFF, n);
    return p->bytes;
}

static inline struct fake_page *fake_reserved(struct sl_store *s, const uint8_t *bytes)
{
    int32_t i = s->n_pages - 1;
    while (i >= 0 && s->pages[i].bytes != bytes)
        i--;
    SL_ASSERT(i >= 0 && !s->pages[i].committed && s->n_open > 0);
    s->n_open--;
    return &s->pages[i];
}

/* It has what was stored under another name; a first one has other tokens. */
static inline void fake_corrupt(struct sl_store *s, struct fake_page *p)
{
    p->bytes[p->n_bytes - 1] ^= 1;
    for (int32_t i = 0; i < s->n_pages; i++)
        if (s->pages[i].committed && s->pages[i].key.group == p->key.group && &s->pages[i] != p)
            memcpy(p->bytes, s->pages[i].bytes, p->n_bytes);
}

void sl_store_commit(struct sl_store *s, uint8_t *page)
{
    struct fake_page *p = fake_reserved(s, page);
    p->committed = true;
    p->far = s->cfg.remote_url != NULL && fake_chance(fake_faults.far);
    if (fake_chance(fake_faults.corrupt))
        fake_corrupt(s, p);
    s->stats.stored++;
}

void sl_store_cancel(struct sl_store *s, uint8_t *page)
{
    fake_reserved(s, page)->key.group = -1;
}

void sl_store_disown(struct sl_store *s, const uint8_t *page)
{
    fake_reserved(s, page)->key.group = -1;
    s->n_open++; /* until it is cancelled */
}

uint8_t *sl_store_memory(const struct sl_store *s, size_t *n_bytes)
{
    *n_bytes = s->room_bytes;
    return s->room;
}

void sl_store_leave(struct sl_store *s)
{
    SL_ASSERT(s->opened); /* its memory stays anyway */
}

static inline void fake_answer(struct sl_store_get *g)
{
    struct fake_page *p = fake_find(&g->key);
    if (p == NULL || !p->committed || (p->far && !g->remote) || fake_chance(fake_faults.lose)) {
        fake.stats.misses++;
        atomic_store(&g->state, SL_STORE_MISS);
        return;
    }
    p->n_users++;
    g->inside = p;
    g->page = p->bytes;
    g->from = p->far ? SL_TIER_REMOTE : SL_TIER_HOST;
    fake.n_far += p->far;
    p->far = false;
    fake.stats.hits++;
    atomic_store(&g->state, SL_STORE_HERE);
}

void sl_store_begin(struct sl_store *s, struct sl_store_get *get)
{
    SL_ASSERT(s->opened && s->n_gets < FAKE_GETS);
    for (int32_t i = 0; i < s->n_gets; i++)
        SL_ASSERT(s->gets[i] != get);
    atomic_store(&get->state, SL_STORE_PENDING);
    get->inside = NULL;
    s->due[s->n_gets] = fake_faults.delay > 0
                            ? (int32_t)sl_rng_below(&fake_rng, (uint64_t)fake_faults.delay + 1)
                            : 0;
    s->gets[s->n_gets++] = get;
    if (s->due[s->n_gets - 1] == 0 && !fake_faults.hang)
        fake_answer(get);
}

/* All pages are in the remote tier only. */
static inline void fake_move_away(void)
{
    for (int32_t i = 0; i < fake.n_pages; i++)
        fake.pages[i].far = fake.pages[i].committed;
}

/* The remote tier says what it has; with `lose`, what it had until then. */
static inline void fake_answer_probe(struct sl_store_probe *p)
{
    for (int32_t i = 0; i < p->n; i++) {
        const struct fake_page *page = fake_find(&p->keys[i]);
        p->found[i] |= page != NULL && page->committed;
    }
    p->answered = true;
}

static inline void fake_tick_probes(void)
{
    for (int32_t i = 0; i < FAKE_PROBES; i++) {
        struct sl_store_probe *p = &fake.probes[i];
        if (!p->sent || p->answered || p->late == 0)
            continue;
        p->late--;
        if (p->due > 0 && --p->due == 0)
            fake_answer_probe(p);
        if (p->answered || p->late == 0)
            fake.cfg.wake(fake.cfg.wake_arg);
    }
}

/* Time passes. */
static inline void fake_tick(void)
{
    fake_tick_probes();
    for (int32_t i = 0; i < fake.n_gets && !fake_faults.hang; i++)
        if (atomic_load(&fake.gets[i]->state) == SL_STORE_PENDING && --fake.due[i] <= 0) {
            fake_answer(fake.gets[i]);
            fake.cfg.wake(fake.cfg.wake_arg);
        }
}

void sl_store_end(struct sl_store *s, struct sl_store_get *get)
{
    int32_t i = 0;
    while (i < s->n_gets && s->gets[i] != get)
        i++;
    SL_ASSERT(s->opened && i < s->n_gets);
    if (get->inside != NULL)
        ((struct fake_page *)get->inside)->n_users--;
    s->n_gets--;
    s->gets[i] = s->gets[s->n_gets];
    s->due[i] = s->due[s->n_gets];
    get->page = NULL; /* nobody reads it any more */
}

const uint8_t *sl_store_keep(struct sl_store *s, struct sl_store_get *get)
{
    const uint8_t *page = get->page;
    SL_ASSERT(atomic_load(&get->state) == SL_STORE_HERE && page != NULL);
    s->n_kept++;
    get->inside = NULL;
    get->page = NULL;
    atomic_store(&get->state, SL_STORE_MISS);
    return page;
}

void sl_store_release(struct sl_store *s, const uint8_t *page)
{
    int32_t i = s->n_pages - 1;
    while (i >= 0 && s->pages[i].bytes != page)
        i--;
    SL_ASSERT(i >= 0 && s->pages[i].n_users > 0 && s->n_kept > 0);
    s->pages[i].n_users--;
    s->n_kept--;
}

void sl_store_saw(struct sl_store *s, const struct sl_store_key *key)
{
    SL_ASSERT(s->opened && key->group >= 0 && key->group < s->cfg.n_groups);
}

struct sl_store_probe *sl_store_probe_take(struct sl_store *s)
{
    struct sl_store_probe *p = s->probes;
    while (p < s->probes + FAKE_PROBES && p->taken)
        p++;
    if (s->cfg.remote_url == NULL || p == s->probes + FAKE_PROBES)
        return NULL;
    p->n = 0;
    p->taken = true;
    p->sent = p->answered = false;
    return p;
}

bool sl_store_probe_add(struct sl_store_probe *p, const struct sl_store_key *key, bool known)
{
    SL_ASSERT(p->taken && !p->sent);
    if (p->n == SL_MAX_TIER_PROBE)
        return false;
    p->keys[p->n] = *key;
    p->found[p->n++] = known;
    return true;
}

void sl_store_probe_send(struct sl_store *s, struct sl_store_probe *p, int32_t ends)
{
    SL_ASSERT(s->opened && p->taken && !p->sent && ends < s->cfg.n_groups);
    p->sent = true;
    s->n_asked++;
    p->ends = ends;
    p->due = 1 + (int32_t)sl_rng_below(&fake_rng, (uint64_t)fake_faults.delay + 1);
    p->late = p->due;
    if (fake_faults.hang || fake_chance(fake_faults.silent))
        p->due = 0;
}

bool sl_store_probe_over(const struct sl_store_probe *p)
{
    SL_ASSERT(p->taken && p->sent);
    return p->answered || p->late == 0;
}

bool sl_store_probe_found(const struct sl_store_probe *p, int32_t i)
{
    SL_ASSERT(p->taken && p->sent);
    return p->answered && i >= 0 && i < p->n && p->found[i];
}

void sl_store_probe_give(struct sl_store *s, struct sl_store_probe *p)
{
    SL_ASSERT(s->opened && p->taken);
    p->taken = false;
}

double sl_store_remote_rate(struct sl_store *s)
{
    if (fake_faults.rate > 0)
        return fake_faults.rate;
    return s->cfg.remote_url != NULL && fake_chance(300) ? 1e9 : 0;
}

void sl_store_stats(struct sl_store *s, enum sl_tier_kind tier, struct sl_store_stats *out)
{
    *out = tier == SL_TIER_HOST ? s->stats : (struct sl_store_stats){0};
    out->n_pages = tier == SL_TIER_HOST ? (uint64_t)s->n_pages : 0;
}

#endif
