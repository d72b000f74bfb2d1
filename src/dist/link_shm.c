/* SPDX-License-Identifier: MIT
 * Ranks of one host: they read one another's parts where they lie, in memory that all share.
 *
 * As between threads (cpu/gather.c), a gather waits once: a rank says where its part is and counts,
 * waits until the others have counted as far, and then all read all parts. A part is left alone
 * until the next gather returns, so two places in turns are enough, and no rank can be ahead by
 * more than one. What others wrote is checked before it is used: offsets and sizes may be anything.
 */
#include "base/check.h"
#include "base/shm.h"
#include "base/sys.h"
#include "dist/link.h"

#include <string.h>

#define PAGE     4096u
#define SLEEP_MS 20 /* then patience is asked */

struct shm_word { /* that others wait for */
    _Alignas(64) _Atomic uint32_t count;
    _Atomic uint32_t n_sleeping;
};

struct shm_rank {
    struct shm_word gathers;
    struct shm_word taken; /* steps */
    struct {
        uint64_t offset, bytes; /* of a part, of a row of it */
    } part[2];
};

struct shm_head {
    struct shm_word steps;
    uint64_t n_message;
    struct shm_rank ranks[SL_MAX_RANKS];
};

struct shm_link {
    struct sl_link link;
    struct shm_head *head;
    uint8_t *message;
    uint32_t n_gathers, n_steps;
};

/* The memory: head, a step, and of each rank four places of room_bytes: two where it computes, two
 * for parts that lie elsewhere. */
static size_t places_at(const struct sl_link_config *cfg)
{
    return SL_ROUND_UP(sizeof(struct shm_head), PAGE) + SL_ROUND_UP(cfg->max_message, PAGE);
}

static size_t place_at(const struct sl_link_config *cfg, int rank, int i)
{
    return places_at(cfg) + ((size_t)rank * 4 + (size_t)i) * SL_ROUND_UP(cfg->room_bytes, PAGE);
}

size_t sl_link_shm_bytes(const struct sl_link_config *cfg)
{
    return place_at(cfg, cfg->n_ranks, 0);
}

void *sl_link_shm_room(const struct sl_link_config *cfg, void *memory, int i)
{
    SL_ASSERT(i >= 0 && i < 2);
    return (uint8_t *)memory + place_at(cfg, cfg->rank, i);
}

static void count(struct shm_word *w, uint32_t n)
{
    atomic_store(&w->count, n);
    if (atomic_load(&w->n_sleeping) != 0)
        sl_shm_wake(&w->count);
}

/* Counts go around; nobody is ahead by half of them. */
static bool reached(uint32_t count, uint32_t n)
{
    return (int32_t)(count - n) >= 0;
}

static bool spin(const struct sl_link *l, const struct shm_word *w, uint32_t n)
{
    const uint64_t start = __builtin_ia32_rdtsc();
    do {
        if (reached(atomic_load(&w->count), n))
            return true;
        __builtin_ia32_pause();
    } while (__builtin_ia32_rdtsc() - start < l->spin_ticks);
    return false;
}

/* Who sleeps is counted before the word is read again (base/meet.c). A rank that is killed asleep
 * stays counted: others then wake nobody, which costs a call. */
static int wait_for(struct sl_link *l, int rank, struct shm_word *w, uint32_t n)
{
    int rc = 0;
    if (spin(l, w, n))
        return 0;
    const uint64_t start_ns = sl_now_ns();
    atomic_fetch_add(&w->n_sleeping, 1);
    for (uint32_t now = atomic_load(&w->count); rc == 0 && !reached(now, n);) {
        sl_shm_wait(&w->count, now, SLEEP_MS);
        now = atomic_load(&w->count);
        if (!reached(now, n))
            rc = sl_link_patience(l, rank, start_ns);
    }
    atomic_fetch_sub(&w->n_sleeping, 1);
    return rc;
}

static int shm_send(struct sl_link *l, const void *data, size_t n)
{
    struct shm_link *s = (struct shm_link *)l;
    int rc = 0;
    for (int i = 1; i < l->cfg.n_ranks && rc == 0; i++) /* have they read the one before? */
        if (sl_link_has(l, i))
            rc = wait_for(l, i, &s->head->ranks[i].taken, s->n_steps);
    if (rc != 0)
        return rc;
    memcpy(s->message, data, n);
    s->head->n_message = n;
    count(&s->head->steps, ++s->n_steps);
    return 0;
}

static int shm_recv(struct sl_link *l, void *data, size_t max, size_t *n)
{
    struct shm_link *s = (struct shm_link *)l;
    int rc = wait_for(l, SL_LINK_IDLE, &s->head->steps, s->n_steps + 1);
    if (rc != 0)
        return rc;
    const uint64_t n_message = s->head->n_message;
    if (n_message > max || n_message > l->cfg.max_message)
        return sl_link_fail(l, "rank 0 sent a step of %llu bytes", (unsigned long long)n_message);
    memcpy(data, s->message, (size_t)n_message);
    *n = (size_t)n_message;
    count(&s->head->ranks[l->cfg.rank].taken, ++s->n_steps);
    return 0;
}

/* Where rows are that others can read. */
static uint64_t publish(const struct shm_link *s, const struct sl_link_gather *g, uint32_t set)
{
    const struct sl_link_config *cfg = &s->link.cfg;
    const uint8_t *base = (const uint8_t *)s->head, *part = g->part;
    const size_t n_bytes = (size_t)g->n * g->part_bytes;
    SL_ASSERT(n_bytes <= cfg->room_bytes);
    if (part >= base && part < base + sl_link_shm_bytes(cfg))
        return (uint64_t)(part - base);
    const size_t at = place_at(cfg, cfg->rank, 2 + (int)set);
    memcpy((uint8_t *)s->head + at, part, n_bytes);
    return at;
}

static int shm_all_gather(struct sl_link *l, const struct sl_link_gather *g,
                          struct sl_link_part parts[SL_MAX_RANKS])
{
    struct shm_link *s = (struct shm_link *)l;
    struct shm_rank *own = &s->head->ranks[l->cfg.rank];
    const uint64_t n_bytes = sl_link_shm_bytes(&l->cfg);
    const uint32_t set = s->n_gathers++ % 2;
    uint64_t row = 0;
    own->part[set].offset = publish(s, g, set);
    own->part[set].bytes = g->part_bytes;
    count(&own->gathers, s->n_gathers);
    for (int i = 0; i < l->cfg.n_ranks; i++) {
        struct shm_rank *r = &s->head->ranks[i];
        parts[i] = (struct sl_link_part){.rows = (const uint8_t *)s->head};
        if (!sl_link_has(l, i))
            continue;
        int rc = i == l->cfg.rank ? 0 : wait_for(l, i, &r->gathers, s->n_gathers);
        if (rc != 0)
            return rc;
        const uint64_t offset = r->part[set].offset, bytes = r->part[set].bytes;
        if (bytes > l->cfg.room_bytes || !sl_range_ok(offset, bytes * (uint64_t)g->n, n_bytes))
            return sl_link_fail(l, "rank %d has %llu bytes of a row at %llu", i,
                                (unsigned long long)bytes, (unsigned long long)offset);
        parts[i] = (struct sl_link_part){(const uint8_t *)s->head + offset, (size_t)bytes};
        row += bytes;
    }
    if (g->row_bytes != 0 && row != g->row_bytes)
        return sl_link_fail(l, "rows of all ranks have %llu bytes in place of %zu",
                            (unsigned long long)row, g->row_bytes);
    return 0;
}

static void shm_close(struct sl_link *l)
{
    sl_free(l);
}

int sl_link_shm_open(const struct sl_link_config *cfg, void *memory, struct sl_link **out,
                     struct sl_error *err)
{
    static const struct sl_link_vt vt = {
        .send = shm_send, .recv = shm_recv, .all_gather = shm_all_gather, .close = shm_close};
    struct shm_link *s = sl_calloc(1, sizeof *s);
    *out = NULL;
    if (s == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a link");
    sl_link_init(&s->link, cfg, &vt);
    s->head = memory;
    s->message = (uint8_t *)memory + SL_ROUND_UP(sizeof(struct shm_head), PAGE);
    *out = &s->link;
    return 0;
}
