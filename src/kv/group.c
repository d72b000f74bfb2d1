/* SPDX-License-Identifier: MIT */
#include "kv/group.h"

#include "base/check.h"
#include "base/sys.h"
#include "kv/feed.h"

#define LOOKED_AT 64 /* a few us */

int sl_group_init(struct sl_kv_group *g, const struct sl_kv_group_config *cfg, int32_t n_nodes,
                  int32_t block_size, struct sl_error *err)
{
    SL_ASSERT((cfg->kind != SL_GROUP_FULL) == (cfg->window > 0) && cfg->n_pages > 0);
    SL_ASSERT(cfg->kind == SL_GROUP_STATE ? cfg->window == SL_STATE_WINDOW && cfg->n_drafts >= 0
                                          : cfg->n_drafts == 0);
    *g = (struct sl_kv_group){.cfg = *cfg, .block_size = block_size, .n_looked_at = LOOKED_AT};
    /* From the other end than nodes: a node's number that is taken for a page's is soon noticed. */
    const int32_t n_pages = cfg->n_pages + cfg->n_drafts;
    int rc = sl_id_pool_init(&g->pool, n_pages, true, err);
    if (rc == 0)
        rc = sl_lru_init(&g->lru, n_nodes, err);
    g->n_taken = sl_calloc((size_t)n_pages, sizeof *g->n_taken);
    g->slots = sl_calloc((size_t)n_nodes, sizeof *g->slots);
    if (cfg->n_drafts > 0)
        g->drafts = sl_calloc((size_t)cfg->n_drafts, sizeof *g->drafts);
    if (rc == 0 &&
        (g->slots == NULL || g->n_taken == NULL || (cfg->n_drafts > 0 && g->drafts == NULL)))
        rc = sl_fail(err, SL_ENOMEM, "out of memory for a pool of %d pages", cfg->n_pages);
    if (rc == 0)
        sl_group_reset(g);
    else
        sl_group_deinit(g);
    return rc;
}

void sl_group_deinit(struct sl_kv_group *g)
{
    sl_free(g->drafts);
    sl_free(g->slots);
    sl_free(g->n_taken);
    sl_lru_deinit(&g->lru);
    sl_id_pool_deinit(&g->pool);
    *g = (struct sl_kv_group){0};
}

void sl_group_reset(struct sl_kv_group *g)
{
    sl_id_pool_reset(&g->pool);
    for (int32_t i = 0; i < g->lru.n_nodes; i++)
        g->slots[i] = (struct sl_kv_slot){.page = SL_NO_PAGE};
    sl_lru_reset(&g->lru);
    for (g->n_drafts = 0; g->n_drafts < g->cfg.n_drafts; g->n_drafts++) {
        g->drafts[g->n_drafts] = sl_id_pool_acquire(&g->pool);
        g->n_taken[g->drafts[g->n_drafts]]++;
    }
}

int32_t sl_group_least(const struct sl_kv_group_config *cfg, int32_t n_nodes, int32_t block_size)
{
    if (cfg->kind == SL_GROUP_FULL)
        return n_nodes;
    if (cfg->kind == SL_GROUP_STATE)
        return SL_MIN(n_nodes, 2);
    return SL_MIN(n_nodes, SL_CEIL_DIV(cfg->window - 1, block_size) + 2);
}

static struct sl_kv_slot *group_slot(const struct sl_kv_group *g, int32_t node)
{
    SL_ASSERT(node >= 0 && node < g->lru.n_nodes);
    return &g->slots[node];
}

static void group_tell(const struct sl_kv_group *g, int32_t node)
{
    if (g->feed != NULL)
        sl_feed_page(g->feed, node, g->idx, g->slots[node].where != SL_KV_NOWHERE);
}

/* The node has no page any more: it had no owner. */
static void group_release(struct sl_kv_group *g, int32_t node)
{
    struct sl_kv_slot *s = group_slot(g, node);
    SL_ASSERT(s->where == SL_KV_DEVICE && !sl_lru_has(&g->lru, node));
    sl_id_pool_release(&g->pool, s->page);
    *s = (struct sl_kv_slot){.page = SL_NO_PAGE};
    group_tell(g, node);
}

static bool is_leased(const struct sl_kv_group *g, int32_t node)
{
    return g->n_leases != NULL && g->n_leases[node] > 0;
}

/* Of two cached pages, the first one older, does b go before a? */
static bool goes_before(const struct sl_kv_group *g, int32_t b, int32_t a)
{
    if (is_leased(g, a) != is_leased(g, b))
        return is_leased(g, a);
    return g->cfg.kind == SL_GROUP_STATE && g->slots[b].value < g->slots[a].value;
}

/* The cached page that goes first: of a WINDOW the oldest one without a lease. */
static int32_t group_victim(const struct sl_kv_group *g)
{
    int32_t best = g->lru.head, node = best, n = g->n_looked_at;
    SL_ASSERT(best != SL_NO_NODE);
    while (--n > 0 && (node = g->lru.links[node].next) != SL_NO_NODE) {
        if (g->cfg.kind == SL_GROUP_WINDOW && !is_leased(g, best))
            break;
        best = goes_before(g, node, best) ? node : best;
    }
    return best;
}

void sl_group_take(struct sl_kv_group *g, int32_t node)
{
    struct sl_kv_slot *s = group_slot(g, node);
    SL_ASSERT(s->where == SL_KV_NOWHERE);
    if (sl_id_pool_n_there(&g->pool) == 0) {
        const int32_t victim = group_victim(g);
        g->floor = SL_MAX(g->floor, g->slots[victim].value);
        if (g->watch != NULL)
            g->watch->leaves(g->watch->arg, victim, g->idx);
        sl_group_drop(g, victim);
        g->n_evicted++;
    }
    s->page = sl_id_pool_acquire(&g->pool);
    s->where = SL_KV_DEVICE;
    SL_ASSERT(s->page != SL_NO_PAGE);
    g->n_taken[s->page]++;
    group_tell(g, node);
}

void sl_group_own(struct sl_kv_group *g, int32_t node)
{
    const struct sl_kv_slot *s = group_slot(g, node);
    SL_ASSERT(s->where == SL_KV_DEVICE);
    if (sl_lru_has(&g->lru, node))
        sl_lru_remove(&g->lru, node);
    sl_id_pool_ref(&g->pool, s->page);
}

void sl_group_disown(struct sl_kv_group *g, int32_t node, bool keep)
{
    const struct sl_kv_slot *s = group_slot(g, node);
    SL_ASSERT(s->where == SL_KV_DEVICE && !sl_lru_has(&g->lru, node));
    if (sl_id_pool_unref(&g->pool, s->page) > 0 || g->cfg.kind == SL_GROUP_FULL)
        return;
    if (!keep) {
        group_release(g, node);
        return;
    }
    g->slots[node].value = g->floor + (uint64_t)s->n_saved;
    sl_lru_append(&g->lru, node);
}

void sl_group_drop(struct sl_kv_group *g, int32_t node)
{
    if (group_slot(g, node)->where == SL_KV_NOWHERE)
        return;
    if (sl_lru_has(&g->lru, node))
        sl_lru_remove(&g->lru, node);
    group_release(g, node);
}

void sl_group_move(struct sl_kv_group *g, int32_t from, int32_t to)
{
    struct sl_kv_slot *a = group_slot(g, from), *b = group_slot(g, to);
    SL_ASSERT(a->where == SL_KV_DEVICE && b->where == SL_KV_NOWHERE);
    SL_ASSERT(!sl_lru_has(&g->lru, from));
    *b = *a;
    *a = (struct sl_kv_slot){.page = SL_NO_PAGE};
    group_tell(g, from);
    group_tell(g, to);
}

void sl_group_clear(struct sl_kv_group *g)
{
    while (g->lru.n > 0)
        sl_group_drop(g, g->lru.head);
}

int32_t sl_group_take_draft(struct sl_kv_group *g)
{
    SL_ASSERT(g->n_drafts > 0);
    return g->drafts[--g->n_drafts];
}

void sl_group_give_draft(struct sl_kv_group *g, int32_t page)
{
    SL_ASSERT(g->n_drafts < g->cfg.n_drafts && !g->pool.is_free[page] && g->pool.refs[page] == 1);
    g->drafts[g->n_drafts++] = page;
}

int32_t sl_group_swap_draft(struct sl_kv_group *g, int32_t node, int32_t page)
{
    struct sl_kv_slot *s = group_slot(g, node);
    const int32_t old = s->page;
    SL_ASSERT(s->where == SL_KV_DEVICE && !sl_lru_has(&g->lru, node) && old != page);
    SL_ASSERT(g->pool.refs[old] == 1 && g->pool.refs[page] == 1 && !g->pool.is_free[page]);
    s->page = page;
    return old;
}
