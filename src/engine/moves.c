/* SPDX-License-Identifier: MIT */
#include "engine/moves.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "engine/core.h"

static void free_way(struct sl_moves_way *w)
{
    for (int32_t g = 0; g < SL_MAX_KV_GROUPS; g++)
        sl_free(w->counts[g]);
    sl_free(w->ring);
    *w = (struct sl_moves_way){0};
}

int sl_moves_init(struct sl_engine *eng, struct sl_error *err)
{
    struct sl_moves *m = &eng->tiers.moves;
    bool good = true;
    *m = (struct sl_moves){0};
    for (int i = 0; i < SL_N_PAGE_WAYS; i++) {
        struct sl_moves_way *w = &m->ways[i];
        w->ring = sl_calloc(SL_MAX_TIER_MOVES, sizeof *w->ring);
        good = good && w->ring != NULL;
        for (int32_t g = 0; g < eng->kv.n_groups; g++) {
            w->counts[g] = sl_calloc((size_t)eng->kv.groups[g].pool.n_ids, sizeof *w->counts[g]);
            good = good && w->counts[g] != NULL;
        }
    }
    if (good)
        return 0;
    sl_moves_deinit(eng);
    return sl_fail(err, SL_ENOMEM, "out of memory for copies of pages");
}

/* The oldest copy of a way is over. */
static void end_oldest(struct sl_engine *eng, enum sl_page_way way, bool good)
{
    struct sl_moves *m = &eng->tiers.moves;
    struct sl_moves_way *w = &m->ways[way];
    SL_ASSERT(w->n > 0 && m->over.n[way] < m->begun.n[way]);
    const struct sl_move *v = &w->ring[w->first];
    const bool doubted = m->over.n[way] < m->n_doubted;
    w->first = (w->first + 1) % SL_MAX_TIER_MOVES;
    w->n--;
    w->n_bytes -= v->n_bytes;
    SL_ASSERT(w->counts[v->group][v->page] > 0);
    w->counts[v->group][v->page]--;
    m->over.n[way]++;
    if (way == SL_PAGES_IN)
        sl_store_release(eng->tiers.store, v->from);
    else if (good && !doubted)
        sl_store_commit(eng->tiers.store, v->room);
    else
        sl_store_cancel(eng->tiers.store, v->room);
}

/* The device does not say any more what became of its copies: the next step says why. */
static void give_up(struct sl_engine *eng, const struct sl_error *err)
{
    struct sl_moves *m = &eng->tiers.moves;
    if (!m->broken)
        sl_log(SL_LOG_ERROR, "copies of KV pages: %s", err->msg);
    m->broken = true;
    for (int i = 0; i < SL_N_PAGE_WAYS; i++)
        while (m->ways[i].n > 0)
            end_oldest(eng, (enum sl_page_way)i, false);
}

static bool send(struct sl_engine *eng)
{
    struct sl_moves *m = &eng->tiers.moves;
    struct sl_error err;
    if (!m->unsent || m->broken || eng->runner.pages_send == NULL)
        return !m->broken;
    m->unsent = false;
    if (eng->runner.pages_send(eng->runner.ctx, &err) == 0)
        return true;
    give_up(eng, &err);
    return false;
}

void sl_moves_end(struct sl_engine *eng, bool wait)
{
    struct sl_moves *m = &eng->tiers.moves;
    struct sl_page_counts over = m->begun; /* all, of a runner that copies in the call */
    struct sl_error err;
    if (sl_moves_n(m) == 0 || !send(eng))
        return;
    if (eng->runner.pages_over != NULL &&
        eng->runner.pages_over(eng->runner.ctx, wait, &over, &err) != 0) {
        give_up(eng, &err);
        return;
    }
    const uint64_t n_seen = over.n[SL_PAGES_OUT];
    /* A step in flight may fail, and have spoiled what was copied meanwhile: only what was over
     * when it had not begun is believed. */
    if (eng->n_flights > 0 && eng->runner.pages_over != NULL)
        over.n[SL_PAGES_OUT] = SL_MAX(m->n_seen, m->over.n[SL_PAGES_OUT]);
    m->n_seen = n_seen;
    for (int i = 0; i < SL_N_PAGE_WAYS; i++) {
        SL_ASSERT(over.n[i] >= m->over.n[i] && over.n[i] <= m->begun.n[i]);
        if (over.n[i] > m->over.n[i])
            atomic_fetch_add(&eng->n_moves, 1);
        while (m->over.n[i] < over.n[i])
            end_oldest(eng, (enum sl_page_way)i, true);
    }
    SL_ASSERT(!wait || sl_moves_n(m) == 0);
}

void sl_moves_deinit(struct sl_engine *eng)
{
    struct sl_moves *m = &eng->tiers.moves;
    struct sl_error err;
    if (sl_moves_n(m) > 0 && eng->runner.ctx != NULL)
        sl_moves_end(eng, true);
    if (sl_moves_n(m) > 0) {
        (void)sl_fail(&err, SL_EDEVICE, "the device is gone");
        give_up(eng, &err);
    }
    for (int i = 0; i < SL_N_PAGE_WAYS; i++)
        free_way(&m->ways[i]);
    *m = (struct sl_moves){0};
}

bool sl_moves_room(const struct sl_moves *m, enum sl_page_way way, int32_t n)
{
    return !m->broken && m->ways[way].n + n <= SL_MAX_TIER_MOVES;
}

/* A copy that is under way may concern the same page: it comes first. */
static int follow(struct sl_engine *eng, enum sl_page_way way, int32_t group, int32_t page,
                  struct sl_error *err)
{
    const struct sl_moves *m = &eng->tiers.moves;
    int32_t n = 0;
    SL_ASSERT(page >= 0 && page < eng->kv.groups[group].pool.n_ids);
    for (int i = 0; i < SL_N_PAGE_WAYS; i++)
        n += m->ways[i].counts[group][page];
    return n > 0 ? eng->runner.pages_follow(eng->runner.ctx, way, err) : 0;
}

static void begin(struct sl_engine *eng, enum sl_page_way way, const struct sl_move *v)
{
    struct sl_moves *m = &eng->tiers.moves;
    struct sl_moves_way *w = &m->ways[way];
    SL_ASSERT(w->n < SL_MAX_TIER_MOVES);
    w->ring[(w->first + w->n++) % SL_MAX_TIER_MOVES] = *v;
    w->n_bytes += v->n_bytes;
    w->counts[v->group][v->page]++;
    m->begun.n[way]++;
    m->unsent = true;
    if (eng->runner.pages_over == NULL)
        sl_moves_end(eng, false);
}

int sl_moves_out(struct sl_engine *eng, int32_t group, int32_t page, uint8_t *room, size_t n_bytes,
                 struct sl_error *err)
{
    SL_ASSERT(sl_moves_room(&eng->tiers.moves, SL_PAGES_OUT, 1));
    int rc = follow(eng, SL_PAGES_OUT, group, page, err);
    if (rc == 0)
        rc = eng->runner.page_out(eng->runner.ctx, group, page, room, err);
    if (rc != 0)
        return rc;
    begin(eng, SL_PAGES_OUT,
          &(struct sl_move){.group = group,
                            .page = page,
                            .n_taken = eng->kv.groups[group].n_taken[page],
                            .room = room,
                            .n_bytes = n_bytes});
    return 0;
}

int sl_moves_in(struct sl_engine *eng, int32_t group, int32_t page, const uint8_t *from,
                size_t n_bytes, struct sl_error *err)
{
    SL_ASSERT(sl_moves_room(&eng->tiers.moves, SL_PAGES_IN, 1));
    int rc = follow(eng, SL_PAGES_IN, group, page, err);
    if (rc == 0)
        rc = eng->runner.page_in(eng->runner.ctx, group, page, from, err);
    if (rc != 0)
        return rc;
    begin(eng, SL_PAGES_IN,
          &(struct sl_move){.group = group,
                            .page = page,
                            .n_taken = eng->kv.groups[group].n_taken[page],
                            .from = from,
                            .n_bytes = n_bytes});
    return 0;
}

/* May a step touch the page that this copy concerns? */
static bool is_in_use(const struct sl_engine *eng, enum sl_page_way way, const struct sl_move *v)
{
    const struct sl_kv_group *g = &eng->kv.groups[v->group];
    return g->n_taken[v->page] != v->n_taken || (way == SL_PAGES_IN && g->pool.refs[v->page] > 0);
}

/* The last copy that the next step has to wait for; 0: none. */
static uint64_t last_in_use(const struct sl_engine *eng, enum sl_page_way way)
{
    const struct sl_moves *m = &eng->tiers.moves;
    const struct sl_moves_way *w = &m->ways[way];
    for (int32_t i = w->n - 1; i >= 0 && m->over.n[way] + (uint64_t)i >= m->awaited.n[way]; i--)
        if (is_in_use(eng, way, &w->ring[(w->first + i) % SL_MAX_TIER_MOVES]))
            return m->over.n[way] + (uint64_t)i + 1;
    return 0;
}

void sl_moves_before_step(struct sl_engine *eng)
{
    struct sl_moves *m = &eng->tiers.moves;
    struct sl_page_counts n = {{0}};
    struct sl_error err;
    if (sl_moves_n(m) == 0 || !send(eng) || eng->runner.pages_await == NULL)
        return;
    for (int i = 0; i < SL_N_PAGE_WAYS; i++) {
        n.n[i] = last_in_use(eng, (enum sl_page_way)i);
        m->awaited.n[i] = SL_MAX(m->awaited.n[i], n.n[i]);
    }
    if (n.n[SL_PAGES_OUT] + n.n[SL_PAGES_IN] == 0)
        return;
    m->n_stalls++;
    if (eng->runner.pages_await(eng->runner.ctx, &n, &err) != 0)
        give_up(eng, &err);
}

void sl_moves_restart(struct sl_moves *m)
{
    SL_ASSERT(sl_moves_n(m) == 0);
    m->begun = m->over = m->awaited = (struct sl_page_counts){{0}};
    m->n_doubted = m->n_seen = 0;
    m->unsent = false;
}

void sl_moves_doubt(struct sl_moves *m)
{
    m->n_doubted = m->begun.n[SL_PAGES_OUT];
}
