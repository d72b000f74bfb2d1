/* SPDX-License-Identifier: MIT */
#include "kv/kv.h"

#include "base/check.h"
#include "base/sys.h"
#include "kv/feed.h"

#include <string.h>

#define BEFORE_END 128 /* blocks; tools/state_trace: of 32 to 512, and several, this finds most */

static int init_groups(struct sl_kv *kv, const struct sl_kv_config *cfg, struct sl_error *err)
{
    int rc = 0;
    SL_ASSERT(cfg->n_groups > 0 && cfg->n_groups <= SL_MAX_KV_GROUPS);
    for (int32_t i = 0; i < cfg->n_groups && rc == 0; i++) {
        const struct sl_kv_group_config *g = &cfg->groups[i];
        SL_ASSERT(g->kind == SL_GROUP_FULL ? i == 0 && g->n_pages == cfg->n_nodes
                                           : g->n_pages <= cfg->n_nodes);
        SL_ASSERT(g->kind != SL_GROUP_STATE || i == cfg->n_groups - 1);
        SL_ASSERT(g->n_pages >= sl_group_least(g, cfg->n_nodes, cfg->block_size));
        rc = sl_group_init(&kv->groups[i], g, cfg->n_nodes, cfg->block_size, err);
        kv->n_groups += rc == 0;
    }
    return rc;
}

/* Forgets all leases, whatever they own. */
static void kv_no_leases(struct sl_kv *kv)
{
    for (int32_t i = 0; i < SL_MAX_KV_LEASES; i++)
        kv->leases.list[i].leaf = SL_NO_NODE;
    kv->leases.n = kv->leases.n_leased = kv->leases.n_kept = 0;
    if (kv->leases.n_of != NULL)
        memset(kv->leases.n_of, 0, (size_t)kv->nodes.n_ids * sizeof *kv->leases.n_of);
    for (int32_t i = 0; i < kv->n_groups; i++)
        kv->groups[i].n_leases = kv->leases.n_of;
}

int sl_kv_init(struct sl_kv *kv, const struct sl_kv_config *cfg, struct sl_error *err)
{
    *kv = (struct sl_kv){.keep = cfg->keep, .block_size = cfg->block_size};
    int rc = sl_id_pool_init(&kv->nodes, cfg->n_nodes, false, err);
    if (rc == 0)
        rc = sl_radix_init(&kv->tree, cfg->n_nodes, cfg->block_size, &cfg->root, cfg->seed, err);
    if (rc == 0)
        rc = init_groups(kv, cfg, err);
    const struct sl_kv_group_config *last = &cfg->groups[cfg->n_groups - 1]; /* has the most ids */
    size_t n_scratch = (size_t)SL_MAX(cfg->n_nodes + last->n_drafts, cfg->block_size);
    if (rc == 0)
        kv->leases.n_of = sl_calloc((size_t)cfg->n_nodes, sizeof *kv->leases.n_of);
    kv_no_leases(kv);
    if (rc == 0 && (kv->leases.n_of == NULL ||
                    (kv->scratch = sl_calloc(n_scratch, sizeof *kv->scratch)) == NULL))
        rc = sl_fail(err, SL_ENOMEM, "out of memory for a cache of %d blocks", cfg->n_nodes);
    if (rc != 0)
        sl_kv_deinit(kv);
    return rc;
}

void sl_kv_deinit(struct sl_kv *kv)
{
    sl_free(kv->scratch);
    sl_free(kv->leases.n_of);
    for (int32_t i = 0; i < kv->n_groups; i++)
        sl_group_deinit(&kv->groups[i]);
    sl_radix_deinit(&kv->tree);
    sl_id_pool_deinit(&kv->nodes);
    *kv = (struct sl_kv){0};
}

/* NULL: no group is FULL. */
static struct sl_kv_group *full_group(const struct sl_kv *kv)
{
    const struct sl_kv_group *g = &kv->groups[0];
    return g->cfg.kind == SL_GROUP_FULL ? (struct sl_kv_group *)(uintptr_t)g : NULL;
}

/* NULL: no group is of states. */
static struct sl_kv_group *state_group(const struct sl_kv *kv)
{
    const struct sl_kv_group *g = &kv->groups[kv->n_groups - 1];
    return g->cfg.kind == SL_GROUP_STATE ? (struct sl_kv_group *)(uintptr_t)g : NULL;
}

/* Nodes that are free and whose pages have memory. */
static int32_t n_there(const struct sl_kv *kv)
{
    const struct sl_kv_group *full = full_group(kv);
    return full != NULL ? sl_id_pool_n_there(&full->pool) : kv->nodes.n_free;
}

int32_t sl_kv_n_cached(const struct sl_kv *kv)
{
    return kv->tree.lru.n + kv->leases.n_kept;
}

int32_t sl_kv_n_available(const struct sl_kv *kv)
{
    return n_there(kv) + kv->tree.lru.n;
}

int32_t sl_kv_n_cached_pages(const struct sl_kv *kv, int32_t group)
{
    SL_ASSERT(group >= 0 && group < kv->n_groups);
    const struct sl_kv_group *g = &kv->groups[group];
    return g->cfg.kind == SL_GROUP_FULL ? sl_kv_n_cached(kv) : g->lru.n;
}

/* Memory for as many absent pages as can be had, at most max; none if fewer than min. */
static int32_t kv_grow(struct sl_kv *kv, int32_t min, int32_t max)
{
    if (kv->share == NULL)
        return 0;
    struct sl_id_pool *pages = &full_group(kv)->pool;
    max = SL_MIN(max, pages->n_absent);
    int32_t n = min <= max ? sl_share_take(kv->share, min, max) : 0;
    sl_id_pool_admit(pages, n);
    return n;
}

bool sl_kv_ensure(struct sl_kv *kv, int32_t n)
{
    int32_t n_more = n - n_there(kv);
    if (n_more > 0)
        (void)kv_grow(kv, SL_MAX(n_more - kv->tree.lru.n, 0), n_more);
    return sl_kv_n_available(kv) >= n;
}

/* A node that nobody holds and the tree does not: it and its pages are free. */
static void free_node(struct sl_kv *kv, int32_t node)
{
    SL_ASSERT(!kv->tree.nodes[node].in_tree);
    for (int32_t i = 0; i < kv->n_groups; i++)
        sl_group_drop(&kv->groups[i], node);
    sl_id_pool_release(&kv->nodes, node);
}

/* The page of a node is complete, or about to be evicted. */
static void tell_watch(const struct sl_kv *kv, int32_t node, int32_t group, bool leaves)
{
    const struct sl_kv_watch *w = kv->watch;
    const struct sl_kv_node *n = &kv->tree.nodes[node];
    if (w == NULL || n->dead || !n->lasts || sl_group_page(&kv->groups[group], node) == SL_NO_PAGE)
        return;
    SL_ASSERT(n->in_tree);
    if (leaves)
        w->leaves(w->arg, node, group);
    else
        w->complete(w->arg, node, group);
}

/* The oldest cached node goes, to make room or because nothing cached is to be found any more.
 * False: there is none. */
static bool kv_evict(struct sl_kv *kv, bool for_room)
{
    int32_t node = kv->tree.lru.head;
    for (int32_t i = 0; i < kv->n_groups && for_room && node != SL_NO_NODE; i++)
        tell_watch(kv, node, i, true);
    node = sl_radix_evict(&kv->tree);
    if (node != SL_NO_NODE)
        free_node(kv, node);
    return node != SL_NO_NODE;
}

static void take_page(struct sl_kv *kv, int32_t i, struct sl_kv_blocks *b, int32_t idx)
{
    sl_group_take(&kv->groups[i], b->nodes[idx]);
    b->pages[i][idx] = sl_group_page(&kv->groups[i], b->nodes[idx]);
    b->n_owned[i]++;
}

bool sl_kv_take(struct sl_kv *kv, struct sl_kv_blocks *b, enum sl_evict_cause why)
{
    if (n_there(kv) == 0 && kv_grow(kv, 1, 1) == 0) {
        while (kv->tree.lru.n == 0)
            if (!sl_kv_fall_one(kv))
                return false;
        const bool evicted = kv_evict(kv, true);
        SL_ASSERT(evicted);
        kv->n_evicted[why]++;
    }
    int32_t node = sl_id_pool_acquire(&kv->nodes), idx = b->n++;
    SL_ASSERT(node != SL_NO_NODE);
    b->nodes[idx] = node;
    for (int32_t i = 0; i < kv->n_groups; i++) {
        struct sl_kv_group *g = &kv->groups[i];
        b->pages[i][idx] = SL_NO_PAGE;
        if (g->cfg.kind != SL_GROUP_FULL)
            continue;
        take_page(kv, i, b, idx);
        b->end[i] = b->n;
    }
    return true;
}

/* The last block that has a page of states, where that was taken for positions from n_done on and
 * nothing was computed into it; -1: none. */
static int32_t spare_state(const struct sl_kv *kv, const struct sl_kv_blocks *b, int32_t n_done)
{
    const int32_t i = kv->n_groups - 1, last = b->end[i] - 1;
    return last >= 0 && last * kv->block_size >= n_done && b->pages[i][last] != SL_NO_PAGE ? last
                                                                                           : -1;
}

/* A page of states for the last block before end alone: a spare one moves there. */
static void cover_state(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t n_done, int32_t end)
{
    const int32_t i = kv->n_groups - 1, spare = spare_state(kv, b, n_done);
    if (end <= b->end[i])
        return;
    if (spare >= 0) {
        sl_group_move(&kv->groups[i], b->nodes[spare], b->nodes[end - 1]);
        b->pages[i][end - 1] = b->pages[i][spare];
        b->pages[i][spare] = SL_NO_PAGE;
    } else {
        take_page(kv, i, b, end - 1);
    }
    b->end[i] = end;
}

/* Pages that cover takes of group i. */
static int32_t cover_need(const struct sl_kv *kv, int32_t i, const struct sl_kv_blocks *b,
                          int32_t n_done, int32_t end)
{
    const int32_t n = SL_MAX(end - b->end[i], 0);
    if (kv->groups[i].cfg.kind != SL_GROUP_STATE)
        return n;
    return n > 0 && spare_state(kv, b, n_done) < 0;
}

bool sl_kv_cover(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t n_done, int32_t end)
{
    SL_ASSERT(end >= 0 && end <= b->n);
    for (int32_t i = 0; i < kv->n_groups; i++)
        if (cover_need(kv, i, b, n_done, end) > sl_group_n_room(&kv->groups[i]))
            return false;
    for (int32_t i = 0; i < kv->n_groups; i++) {
        if (kv->groups[i].cfg.kind == SL_GROUP_STATE)
            cover_state(kv, b, n_done, end);
        else
            for (int32_t *at = &b->end[i]; *at < end; (*at)++)
                take_page(kv, i, b, *at);
    }
    return true;
}

/* Does the step complete the block before this checkpoint without having a page there? */
static bool lacks_checkpoint(const struct sl_kv *kv, const struct sl_kv_blocks *b, int32_t depth,
                             int32_t n_done, int32_t n_after)
{
    const int32_t at = depth * kv->block_size;
    return at > n_done && at <= n_after && b->pages[kv->n_groups - 1][depth - 1] == SL_NO_PAGE;
}

int32_t sl_kv_n_wanted(const struct sl_kv *kv, const struct sl_kv_blocks *b, int32_t n_done,
                       int32_t n_after)
{
    int32_t n = 0;
    for (int i = 0; i < SL_KV_CHECKPOINTS && state_group(kv) != NULL; i++)
        n += lacks_checkpoint(kv, b, b->wanted[i], n_done, n_after);
    return n;
}

void sl_kv_checkpoint(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t n_done, int32_t n_after,
                      int32_t n)
{
    SL_ASSERT(state_group(kv) != NULL);
    for (int i = 0; i < SL_KV_CHECKPOINTS && n > 0; i++) {
        if (!lacks_checkpoint(kv, b, b->wanted[i], n_done, n_after))
            continue;
        take_page(kv, kv->n_groups - 1, b, b->wanted[i] - 1);
        n--;
    }
}

int32_t sl_kv_n_draft_pages(const struct sl_kv *kv)
{
    const struct sl_kv_group *g = state_group(kv);
    return g != NULL ? g->n_drafts : INT32_MAX;
}

int32_t sl_kv_max_drafts(const struct sl_kv *kv, int32_t pos)
{
    if (state_group(kv) == NULL)
        return INT32_MAX;
    /* A step that begins a block has the page before it and this one's; else this and the next. */
    const int32_t end = SL_ROUND_UP(pos, kv->block_size) + kv->block_size;
    return SL_MIN(sl_kv_n_draft_pages(kv), end - pos - 1);
}

void sl_kv_draft(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t n)
{
    struct sl_kv_group *g = state_group(kv);
    SL_ASSERT(g != NULL && b->n_drafts == 0 && n <= SL_MAX_DRAFTED);
    while (b->n_drafts < n)
        b->drafts[b->n_drafts++] = sl_group_take_draft(g);
}

static void give_drafts(struct sl_kv *kv, struct sl_kv_blocks *b)
{
    while (b->n_drafts > 0)
        sl_group_give_draft(state_group(kv), b->drafts[--b->n_drafts]);
}

void sl_kv_settle(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t pos, int32_t n_right)
{
    struct sl_kv_group *g = state_group(kv);
    SL_ASSERT(g != NULL && n_right >= 0 && n_right <= b->n_drafts);
    for (int32_t i = 0; i < n_right; i++) {
        const int32_t idx = (pos + i) / kv->block_size;
        if ((pos + i + 1) % kv->block_size != 0 && i + 1 < n_right)
            continue;
        SL_ASSERT(idx < b->n && b->pages[kv->n_groups - 1][idx] != SL_NO_PAGE);
        SL_ASSERT(!kv->tree.nodes[b->nodes[idx]].in_tree);
        b->pages[kv->n_groups - 1][idx] = b->drafts[i];
        b->drafts[i] = sl_group_swap_draft(g, b->nodes[idx], b->drafts[i]);
    }
    give_drafts(kv, b);
}

/* Does a page without owners of this node stay cached? */
static bool keeps_pages(const struct sl_kv *kv, int32_t node)
{
    return kv->tree.nodes[node].in_tree && !kv->tree.nodes[node].dead;
}

/* b left a state cached behind so many blocks. The last one stays, of the others those that are
 * wanted. */
static void keep_state(struct sl_kv_group *g, struct sl_kv_blocks *b, int32_t depth)
{
    const int32_t older = SL_MIN(depth, b->kept);
    b->kept = SL_MAX(depth, b->kept);
    if (older == 0 || older == b->kept)
        return;
    const int32_t node = b->nodes[older - 1];
    if (!g->slots[node].wanted && sl_lru_has(&g->lru, node))
        sl_group_drop(g, node);
}

/* b gives up its page of block idx in group i, if it has one. */
static void leave_page(struct sl_kv *kv, int32_t i, struct sl_kv_blocks *b, int32_t idx,
                       bool forget)
{
    struct sl_kv_group *g = &kv->groups[i];
    const int32_t node = b->nodes[idx];
    const bool keep = keeps_pages(kv, node) && !forget;
    if (b->pages[i][idx] == SL_NO_PAGE)
        return;
    b->pages[i][idx] = SL_NO_PAGE;
    b->n_owned[i]--;
    if (g->cfg.kind != SL_GROUP_STATE || !keep) {
        sl_group_disown(g, node, keep);
        return;
    }
    struct sl_kv_slot *s = &g->slots[node];
    for (int k = 0; k < SL_KV_CHECKPOINTS; k++)
        s->wanted |= b->wanted[k] == idx + 1;
    if (s->n_saved == 0)
        s->n_saved = SL_MAX(idx + 1 - b->base, 1);
    if (s->wanted) {
        b->base = SL_MAX(b->base, idx + 1);
        tell_watch(kv, node, i, false);
    }
    sl_group_disown(g, node, true);
    keep_state(g, b, idx + 1);
}

void sl_kv_pass(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t n_done)
{
    for (int32_t i = 0; i < kv->n_groups; i++) {
        const int32_t to = sl_group_first_seen(&kv->groups[i], n_done);
        SL_ASSERT(to <= b->end[i]);
        for (int32_t *at = &b->first[i]; *at < to; (*at)++)
            leave_page(kv, i, b, *at, false);
    }
}

/* The tokens of block idx, in place where they lie in one piece. */
static const int32_t *block_of(struct sl_kv *kv, const struct sl_kv_text *text, int32_t idx)
{
    int32_t n = kv->block_size, first = idx * n;
    SL_ASSERT(first >= 0 && first + n <= text->n_a + text->n_b);
    if (first + n <= text->n_a)
        return text->a + first;
    if (first >= text->n_a)
        return text->b + (first - text->n_a);
    int32_t head = text->n_a - first;
    memcpy(kv->scratch, text->a + first, (size_t)head * sizeof *kv->scratch);
    memcpy(kv->scratch + head, text->b, (size_t)(n - head) * sizeof *kv->scratch);
    return kv->scratch;
}

void sl_kv_hold_node(struct sl_kv *kv, int32_t node)
{
    kv->leases.n_kept -= sl_kv_is_kept(kv, node);
    if (sl_lru_has(&kv->tree.lru, node))
        sl_radix_revive(&kv->tree, node);
    sl_id_pool_ref(&kv->nodes, node);
}

void sl_kv_drop_node(struct sl_kv *kv, int32_t node, bool forget)
{
    const int32_t n_left = sl_id_pool_unref(&kv->nodes, node);
    const bool kept = sl_kv_is_kept(kv, node);
    kv->leases.n_kept += kept;
    kv->n_releases += n_left == 0 || kept; /* a lease may fall */
    if (n_left > 0)
        return;
    struct sl_kv_node *n = &kv->tree.nodes[node];
    /* Cached children hang below a node that is to be forgotten when somebody computed them from
     * it. It cannot leave before them, but nothing finds it, or them, any more. */
    if (forget && n->n_children > 0) {
        n->dead = true;
        if (kv->tree.feed != NULL)
            sl_feed_lost(kv->tree.feed, node);
        for (int32_t i = 0; i < kv->n_groups; i++)
            if (kv->groups[i].cfg.kind != SL_GROUP_FULL)
                sl_group_drop(&kv->groups[i], node);
    }
    if (n->in_tree && ((kv->keep && !forget) || n->n_children > 0)) {
        sl_radix_retire(&kv->tree, node);
        return;
    }
    if (n->in_tree)
        sl_radix_remove(&kv->tree, node);
    free_node(kv, node);
}

/* b has one more owner of the page of its block idx in group i. */
static void own_page(struct sl_kv *kv, int32_t i, struct sl_kv_blocks *b, int32_t idx)
{
    struct sl_kv_group *g = &kv->groups[i];
    sl_group_own(g, b->nodes[idx]);
    g->slots[b->nodes[idx]].wanted = true; /* found once: it may be again */
    b->pages[i][idx] = sl_group_page(g, b->nodes[idx]);
    b->n_owned[i]++;
}

/* A walk down the tree along a text. */
struct kv_walk {
    int32_t n, node;               /* blocks found, the last one's node */
    int32_t run[SL_MAX_KV_GROUPS]; /* of them, how many at the end have a page in the group */
    int32_t n_usable;              /* blocks after which a sequence can go on (K4) */
};

/* False: the tree ends here. */
static bool walk_on(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                    struct kv_walk *w)
{
    bool usable = true;
    int32_t node = sl_radix_find(&kv->tree, w->node, ns, block_of(kv, text, w->n));
    if (node == SL_NO_NODE)
        return false;
    w->node = node;
    w->n++;
    for (int32_t i = 0; i < kv->n_groups; i++) {
        const struct sl_kv_group *g = &kv->groups[i];
        w->run[i] = sl_group_page(g, node) != SL_NO_PAGE ? w->run[i] + 1 : 0;
        usable &= w->run[i] >= w->n - sl_group_first_seen(g, w->n * kv->block_size);
    }
    if (usable)
        w->n_usable = w->n;
    return true;
}

int32_t sl_kv_match(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                    int32_t max, struct sl_kv_blocks *b)
{
    struct kv_walk w = {.node = SL_NO_NODE};
    SL_ASSERT(b->n == 0);
    while (w.n < max && walk_on(kv, ns, text, &w))
        b->nodes[w.n - 1] = w.node;
    b->n = b->base = w.n_usable;
    for (int32_t idx = 0; idx < b->n; idx++)
        sl_kv_hold_node(kv, b->nodes[idx]);
    for (int32_t i = 0; i < kv->n_groups; i++) {
        b->first[i] = sl_group_first_seen(&kv->groups[i], b->n * kv->block_size);
        b->end[i] = b->n;
        for (int32_t idx = 0; idx < b->n; idx++) {
            b->pages[i][idx] = SL_NO_PAGE;
            if (idx < b->first[i])
                continue;
            own_page(kv, i, b, idx);
        }
    }
    return w.n;
}

void sl_kv_want(const struct sl_kv *kv, struct sl_kv_blocks *b, int32_t last, int32_t known)
{
    b->wanted[0] = last;
    b->wanted[1] = known;
    b->wanted[2] = kv->keep ? SL_MAX(last - BEFORE_END, 0) : 0;
}

int32_t sl_kv_count(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                    int32_t max)
{
    struct kv_walk w = {.node = SL_NO_NODE};
    SL_ASSERT(max >= 0 && max <= (text->n_a + text->n_b) / kv->block_size);
    while (w.n < max && walk_on(kv, ns, text, &w)) {
    }
    return w.n_usable;
}

int32_t sl_kv_deepest(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                      int32_t max)
{
    struct kv_walk w = {.node = SL_NO_NODE};
    SL_ASSERT(max >= 0 && max <= (text->n_a + text->n_b) / kv->block_size);
    while (w.n < max && walk_on(kv, ns, text, &w)) {
    }
    return w.node;
}

/* Block idx of b is node `same` from now on, which holds the same tokens. */
static void kv_replace(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t idx, int32_t same)
{
    const int32_t mine = b->nodes[idx];
    sl_kv_hold_node(kv, same);
    for (int32_t i = 0; i < kv->n_groups; i++) {
        struct sl_kv_group *g = &kv->groups[i];
        SL_ASSERT(idx >= b->first[i] && idx < b->end[i]); /* just computed: its rows are seen */
        if (b->pages[i][idx] == SL_NO_PAGE)
            continue; /* no state was wanted there */
        if (sl_group_page(g, same) == SL_NO_PAGE) {
            sl_group_move(g, mine, same);
        } else {
            sl_group_own(g, same);
            sl_group_disown(g, mine, false);
        }
        b->pages[i][idx] = sl_group_page(g, same);
    }
    sl_kv_drop_node(kv, mine, false);
    b->nodes[idx] = same;
}

/* A state is told of when its sequence leaves it: only then it is known whether others want it. */
static void tell_complete(const struct sl_kv *kv, int32_t node)
{
    for (int32_t i = 0; i < kv->n_groups; i++)
        if (kv->groups[i].cfg.kind != SL_GROUP_STATE)
            tell_watch(kv, node, i, false);
}

void sl_kv_publish(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                   struct sl_kv_blocks *b, int32_t idx)
{
    const int32_t *tokens = block_of(kv, text, idx);
    int32_t parent = idx > 0 ? b->nodes[idx - 1] : SL_NO_NODE;
    int32_t same = sl_radix_find(&kv->tree, parent, ns, tokens);
    SL_ASSERT(idx < b->n && same != b->nodes[idx]);
    if (same != SL_NO_NODE) {
        kv_replace(kv, b, idx, same);
        tell_complete(kv, same);
        return;
    }
    const int32_t node = b->nodes[idx];
    sl_radix_insert(&kv->tree, node, parent, ns, tokens);
    tell_complete(kv, node);
    if (kv->tree.feed == NULL)
        return;
    unsigned has = 0;
    for (int32_t i = 0; i < kv->n_groups; i++)
        has |= (unsigned)(sl_group_page(&kv->groups[i], node) != SL_NO_PAGE) << i;
    sl_feed_stored(kv->tree.feed, node, &kv->tree.nodes[node], ns, tokens, has);
}

void sl_kv_set_feed(struct sl_kv *kv, struct sl_kv_feed *feed)
{
    kv->tree.feed = feed;
    for (int32_t i = 0; i < kv->n_groups; i++) {
        kv->groups[i].feed = feed;
        kv->groups[i].idx = i;
    }
}

void sl_kv_seed_names(struct sl_kv *kv, uint64_t seed)
{
    SL_ASSERT(kv->tree.n_in_tree == 0);
    kv->tree.name_seed = seed;
}

void sl_kv_set_watch(struct sl_kv *kv, const struct sl_kv_watch *watch)
{
    kv->watch = watch;
    for (int32_t i = 0; i < kv->n_groups; i++) {
        kv->groups[i].watch = watch;
        kv->groups[i].idx = i;
    }
}

void sl_kv_hold(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                const struct sl_hash128 *names, int32_t max, struct sl_kv_blocks *b)
{
    int32_t node = SL_NO_NODE;
    SL_ASSERT(b->n == 0);
    while (b->n < max) {
        node = sl_radix_find_named(&kv->tree, node, ns, block_of(kv, text, b->n), &names[b->n]);
        if (node == SL_NO_NODE)
            break;
        sl_kv_hold_node(kv, node);
        b->nodes[b->n] = node;
        for (int32_t i = 0; i < kv->n_groups; i++) {
            b->pages[i][b->n] = SL_NO_PAGE;
            if (kv->groups[i].cfg.kind == SL_GROUP_FULL)
                own_page(kv, i, b, b->n);
        }
        b->n++;
    }
}

int32_t sl_kv_place(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t group, int32_t idx)
{
    struct sl_kv_group *g = &kv->groups[group];
    SL_ASSERT(idx < b->n && g->cfg.kind != SL_GROUP_FULL);
    if (sl_group_page(g, b->nodes[idx]) != SL_NO_PAGE || sl_group_n_room(g) == 0)
        return SL_NO_PAGE;
    take_page(kv, group, b, idx);
    g->slots[b->nodes[idx]].wanted = true;
    return b->pages[group][idx];
}

void sl_kv_displace(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t group, int32_t idx)
{
    SL_ASSERT(kv->groups[group].cfg.kind != SL_GROUP_FULL && b->pages[group][idx] != SL_NO_PAGE);
    leave_page(kv, group, b, idx, true);
}

/* What a sequence leaves behind of its text: where the next turn of a conversation begins. */
static void tell_kept(const struct sl_kv *kv, const struct sl_kv_blocks *b)
{
    const int32_t node = b->kept > 0 ? b->nodes[b->kept - 1] : SL_NO_NODE;
    if (node != SL_NO_NODE && keeps_pages(kv, node))
        tell_watch(kv, node, kv->n_groups - 1, false);
}

void sl_kv_give(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t n_keep, bool forget)
{
    SL_ASSERT(n_keep >= 0 && n_keep <= b->n);
    while (b->n > n_keep) {
        const int32_t idx = --b->n, node = b->nodes[idx];
        for (int32_t i = 0; i < kv->n_groups; i++)
            leave_page(kv, i, b, idx, forget);
        sl_kv_drop_node(kv, node, forget);
    }
    for (int32_t i = 0; i < kv->n_groups; i++) {
        b->end[i] = SL_MIN(b->end[i], n_keep);
        b->first[i] = SL_MIN(b->first[i], n_keep);
    }
    if (n_keep > 0)
        return;
    if (!forget)
        tell_kept(kv, b);
    give_drafts(kv, b);
    memset(b->wanted, 0, sizeof b->wanted);
    b->kept = b->base = 0;
}

void sl_kv_share(struct sl_kv *kv, struct sl_share *share, void (*discard)(void *arg, int32_t page),
                 void *arg)
{
    struct sl_kv_group *full = full_group(kv);
    SL_ASSERT(full != NULL && full->pool.n_free == full->pool.n_ids && kv->share == NULL);
    kv->share = share;
    kv->discard = discard;
    kv->discard_arg = arg;
    full->pool.n_absent = full->pool.n_ids;
}

static void discard(const struct sl_kv *kv, int32_t page)
{
    if (kv->discard != NULL)
        kv->discard(kv->discard_arg, page);
}

/* Free pages first, then those of cached nodes, least recently used first. */
static void give_back(struct sl_kv *kv, int32_t n)
{
    struct sl_id_pool *pages = &full_group(kv)->pool;
    int32_t n_given = 0;
    for (; n_given < n; n_given++) {
        int32_t page = sl_id_pool_withdraw(pages);
        if (page == SL_NO_PAGE) {
            if (kv->tree.lru.n == 0)
                (void)sl_kv_fall_one(kv);
            if (!kv_evict(kv, true))
                break;
            kv->n_evicted[SL_EVICT_SHARED]++;
            page = sl_id_pool_withdraw(pages);
        }
        discard(kv, page);
    }
    sl_share_give(kv->share, n_given, true);
}

void sl_kv_share_turn(struct sl_kv *kv)
{
    if (kv->share == NULL)
        return;
    give_back(kv, sl_share_asked(kv->share));
    uint64_t n = sl_share_returns(kv->share);
    kv->n_releases += n != kv->n_returns; /* who was refused for want of pages may ask again */
    kv->n_returns = n;
}

void sl_kv_share_tell(struct sl_kv *kv, int32_t n_wanted, bool idle)
{
    if (kv->share == NULL)
        return;
    const int32_t n_absent = full_group(kv)->pool.n_absent;
    uint64_t n_pressed = kv->n_evicted[SL_EVICT_PROMPT] + kv->n_evicted[SL_EVICT_OUTPUT];
    struct sl_share_state state = {
        .n_wanted = SL_MIN(n_wanted, n_absent),
        .n_wished = (int32_t)SL_MIN(n_pressed - kv->n_pressed, (uint64_t)n_absent),
        .n_spare = sl_kv_n_available(kv) + kv->leases.n_kept,
        .idle = idle};
    kv->n_pressed = n_pressed;
    sl_share_tell(kv->share, &state);
}

void sl_kv_clear(struct sl_kv *kv)
{
    while (sl_kv_fall_one(kv)) {
    }
    kv->n_evicted[SL_EVICT_RESET] += (uint64_t)kv->tree.lru.n;
    while (kv_evict(kv, false)) {
    }
    for (int32_t i = 0; i < kv->n_groups; i++)
        sl_group_clear(&kv->groups[i]);
}

void sl_kv_reset(struct sl_kv *kv)
{
    kv->n_evicted[SL_EVICT_RESET] += (uint64_t)SL_MAX(kv->tree.lru.n + kv->leases.n_kept, 0);
    struct sl_id_pool *pages = &kv->groups[0].pool;
    int32_t n_memory = pages->n_ids - pages->n_absent;
    sl_radix_reset(&kv->tree);
    sl_id_pool_reset(&kv->nodes);
    kv_no_leases(kv);
    for (int32_t i = 0; i < kv->n_groups; i++)
        sl_group_reset(&kv->groups[i]);
    if (kv->share != NULL) { /* which pages had memory is in doubt, how many is not */
        for (int32_t page = 0; page < pages->n_ids; page++)
            discard(kv, page);
        pages->n_absent = pages->n_ids;
        sl_share_give(kv->share, n_memory, false);
    }
    kv->n_releases++; /* nodes that were missing are there */
}
