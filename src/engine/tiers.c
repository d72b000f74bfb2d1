/* SPDX-License-Identifier: MIT */
#include "engine/tiers.h"

#include "engine/transfer.h"

#include "base/check.h"
#include "base/sys.h"
#include "engine/turn.h"

#include <string.h>

#define TURN_BYTES  (UINT64_C(64) << 20) /* copied in a turn to load, which saves whole steps */
#define STORE_SHARE 8 /* ns of a step to a byte stored beside it: 3 % of it at 4 GB/s */
/* Of a device that copies beside its steps: bytes under way, a few ms each; what waits behind more
 * of them waits longer. Of those that leave some are kept for what a plan evicts. */
#define MOST_IN     (UINT64_C(256) << 20)
#define MOST_OUT    (UINT64_C(64) << 20)
#define EVICT_BYTES (UINT64_C(16) << 20)
#define MAX_WAIT_NS UINT64_C(10000000000)
#define MAX_LOADING 4 /* requests that ask at once: what they ask for lies in host memory */

static size_t tail_bytes(const struct sl_kv *kv)
{
    return sizeof(struct sl_tier_tail) + (size_t)kv->block_size * sizeof(int32_t);
}

/* May be at any address. */
static bool same_tail(const struct sl_kv *kv, const uint8_t *tail, const struct sl_hash128 *before,
                      const int32_t *tokens)
{
    return memcmp(tail, before, sizeof *before) == 0 &&
           memcmp(tail + sizeof *before, tokens, (size_t)kv->block_size * sizeof *tokens) == 0;
}

/* ------------------------------------------------------------------ storing */

/* ---- how often a block was seen ---- */

static void see(struct sl_tiers *t, const struct sl_hash128 *name)
{
    const struct sl_store_key key = {*name, 0};
    int32_t i = sl_nametab_find(&t->seen, &key);
    SL_ASSERT(t->store_threshold > 1 && t->seen.n <= t->seen.n_max);
    if (i != SL_NO_NAME) {
        sl_nametab_renew(&t->seen, i);
    } else {
        if (t->seen.n == t->seen.n_max)
            sl_nametab_remove(&t->seen, t->seen.lists[0].oldest);
        i = sl_nametab_add(&t->seen, &key, 0);
    }
    t->seen.names[i].n_seen += t->seen.names[i].n_seen < UINT32_MAX;
}

static bool was_seen_enough(const struct sl_tiers *t, const struct sl_hash128 *name)
{
    const struct sl_store_key key = {*name, 0};
    if (t->store_threshold < 2)
        return true;
    const int32_t i = sl_nametab_find(&t->seen, &key);
    return i != SL_NO_NAME && t->seen.names[i].n_seen >= t->store_threshold;
}

/* Copies a page of a node to the store, unless it is there. */
static void store_page(struct sl_engine *eng, int32_t node, int32_t group)
{
    struct sl_tiers *t = &eng->tiers;
    const struct sl_kv *kv = &eng->kv;
    const struct sl_kv_node *n = &kv->tree.nodes[node];
    const struct sl_store_key key = {n->name, group};
    const int32_t page = sl_group_page(&kv->groups[group], node);
    const struct sl_hash128 before =
        sl_tail_before(n->parent != SL_NO_NODE ? &kv->tree.nodes[n->parent].name : NULL, &n->name);
    struct sl_error err;
    SL_ASSERT(n->in_tree && !n->dead && n->lasts && page != SL_NO_PAGE);
    if (sl_store_has(t->store, &key) || !was_seen_enough(t, &n->name))
        return;
    uint8_t *room =
        sl_moves_room(&t->moves, SL_PAGES_OUT, 1) ? sl_store_reserve(t->store, &key) : NULL;
    if (room == NULL) {
        t->n_passed_over++;
        return;
    }
    const size_t n_bytes = t->page_bytes[group];
    SL_ASSERT(n_bytes > 0 && page < kv->groups[group].pool.n_ids);
    memcpy(room + n_bytes, &before, sizeof before);
    memcpy(room + n_bytes + sizeof before, kv->tree.tokens + (size_t)node * (size_t)kv->block_size,
           (size_t)kv->block_size * sizeof(int32_t));
    if (sl_moves_out(eng, group, page, room, n_bytes, &err) != 0) {
        sl_store_cancel(t->store, room);
        t->n_passed_over++;
        return;
    }
    t->budget -= SL_MIN(t->budget, n_bytes);
}

static void page_is_complete(void *arg, int32_t node, int32_t group)
{
    struct sl_engine *eng = arg;
    struct sl_tiers *t = &eng->tiers;
    SL_ASSERT(t->n_todo >= 0 && t->n_todo <= SL_MAX_TIER_TODO);
    if (t->n_todo == SL_MAX_TIER_TODO) {
        t->n_passed_over++;
        return;
    }
    t->todo[(t->first_todo + t->n_todo++) % SL_MAX_TIER_TODO] =
        (struct sl_tier_todo){eng->kv.tree.nodes[node].name, node, group};
    t->n_todos++;
}

/* Its turn to be stored has not come, or it was never worth it until now that nothing else has its
 * bytes. */
static void page_leaves(void *arg, int32_t node, int32_t group)
{
    struct sl_engine *eng = arg;
    const struct sl_kv_node *n = &eng->kv.tree.nodes[node];
    SL_ASSERT(sl_group_page(&eng->kv.groups[group], node) != SL_NO_PAGE);
    if (!n->in_tree || n->dead || !n->lasts)
        return;
    if (eng->tiers.budget > 0)
        store_page(eng, node, group);
    else
        eng->tiers.n_passed_over++;
}

/* The pages that are to be stored and still are where they were. */
static void store_todo(struct sl_engine *eng)
{
    struct sl_tiers *t = &eng->tiers;
    while (t->n_todo > 0 && t->budget > 0 && sl_moves_room(&t->moves, SL_PAGES_OUT, 1)) {
        const struct sl_tier_todo *d = &t->todo[t->first_todo];
        SL_ASSERT(d->node >= 0 && d->node < eng->kv.nodes.n_ids && d->group < eng->kv.n_groups);
        const struct sl_kv_node *n = &eng->kv.tree.nodes[d->node];
        t->first_todo = (t->first_todo + 1) % SL_MAX_TIER_TODO;
        t->n_todo--;
        t->n_todos_over++;
        if (n->in_tree && !n->dead && memcmp(&n->name, &d->name, sizeof n->name) == 0 &&
            sl_group_page(&eng->kv.groups[d->group], d->node) != SL_NO_PAGE)
            store_page(eng, d->node, d->group);
    }
    if (t->serve != NULL)
        sl_serve_stored(t->serve, t->n_todos_over);
}

void sl_tiers_offer(struct sl_engine *eng, const struct sl_request *req)
{
    const struct sl_tier_load *l = &req->load;
    const struct sl_kv *kv = &eng->kv;
    int32_t node = SL_NO_NODE;
    SL_ASSERT(l->names != NULL);
    for (int32_t i = 0; i < l->n_names; i++) {
        node = sl_radix_find_named(&kv->tree, node, &req->ns,
                                   req->prompt + (size_t)i * (size_t)kv->block_size, &l->names[i]);
        if (node == SL_NO_NODE)
            return;
        SL_ASSERT(kv->tree.nodes[node].in_tree);
        for (int32_t g = 0; g < kv->n_groups; g++) {
            const struct sl_kv_group *group = &kv->groups[g];
            const struct sl_store_key key = {l->names[i], g};
            const bool state = group->cfg.kind == SL_GROUP_STATE;
            if (sl_group_page(group, node) != SL_NO_PAGE && (!state || group->slots[node].wanted) &&
                !kv->tree.nodes[node].dead && was_seen_enough(&eng->tiers, &l->names[i]) &&
                !sl_store_has(eng->tiers.store, &key))
                page_is_complete(eng, node, g);
        }
    }
}

/* ------------------------------------------------------------------ loading */

static const int32_t *load_tokens(const struct sl_engine *eng, const struct sl_request *req,
                                  int32_t block)
{
    return req->prompt + (size_t)block * (size_t)eng->kv.block_size;
}

/* The first block whose page of the group a row behind `depth` blocks sees. */
static int32_t first_needed(const struct sl_engine *eng, int32_t group, int32_t depth)
{
    return sl_group_first_seen(&eng->kv.groups[group], depth * eng->kv.block_size);
}

/* Has the remote tier said that it has a page? */
static bool is_remote(const struct sl_engine *eng, const struct sl_tier_load *l, int32_t block,
                      int32_t group)
{
    const int32_t i = (block - l->first_probed) * eng->kv.n_groups + group;
    SL_ASSERT(block >= 0 && block < l->n_names && group >= 0 && group < eng->kv.n_groups);
    return l->probe != NULL && block >= l->first_probed && sl_store_probe_found(l->probe, i);
}

/* Is the page of a block in the tree, whose node is given, or in the store? */
static bool is_here(const struct sl_engine *eng, const struct sl_tier_load *l, int32_t block,
                    int32_t node, int32_t group)
{
    const struct sl_store_key key = {l->names[block], group};
    SL_ASSERT(block >= 0 && block < l->n_names);
    return (node != SL_NO_NODE && sl_group_page(&eng->kv.groups[group], node) != SL_NO_PAGE) ||
           sl_store_has(eng->tiers.store, &key);
}

/* The next block's node, while there are any. */
static int32_t next_node(const struct sl_engine *eng, const struct sl_request *req, int32_t block,
                         int32_t node)
{
    if (block > 0 && node == SL_NO_NODE)
        return SL_NO_NODE;
    return sl_radix_find_named(&eng->kv.tree, node, &req->ns, load_tokens(eng, req, block),
                               &req->load.names[block]);
}

/* How deep a sequence could begin with what the tree and the store have (K4), and the remote tier
 * said that it has. */
static void look(struct sl_engine *eng, struct sl_request *req)
{
    struct sl_tier_load *l = &req->load;
    const struct sl_kv *kv = &eng->kv;
    int32_t run[SL_MAX_KV_GROUPS] = {0}, node = SL_NO_NODE;
    SL_ASSERT(l->n_names * kv->block_size < req->n_prompt);
    l->depth = l->in_tree = l->n_local = 0;
    for (int32_t i = 0; i < l->n_names; i++) {
        bool usable = true;
        node = next_node(eng, req, i, node);
        for (int32_t g = 0; g < kv->n_groups; g++) {
            const bool here = is_here(eng, l, i, node, g);
            if (g == 0 && here && l->n_local == i)
                l->n_local++;
            run[g] = here || is_remote(eng, l, i, g) ? run[g] + 1 : 0;
            usable &= run[g] >= i + 1 - first_needed(eng, g, i + 1);
        }
        if (kv->groups[0].cfg.kind == SL_GROUP_FULL && run[0] != i + 1)
            break;
        l->in_tree += node != SL_NO_NODE;
        if (usable)
            l->depth = i + 1;
    }
    const struct sl_kv_text text = {req->prompt, req->n_prompt, NULL, 0};
    l->served = sl_kv_count(&eng->kv, &req->ns, &text, l->n_names);
    if (l->depth <= l->served)
        l->depth = 0;
    l->looked = true;
}

/* ---- the remote tier ---- */

/* Is it faster to have the pages come that blocks up to `depth` need beyond those that are here
 * than to compute the blocks behind `known`? What has not been measured is tried. */
static bool is_worth(const struct sl_engine *eng, const struct sl_tier_load *l, int32_t known,
                     int32_t depth)
{
    const struct sl_tiers *t = &eng->tiers;
    const double rate = sl_store_remote_rate(t->store);
    const int64_t last = (int64_t)depth * eng->kv.block_size;
    double bytes = 0, compute_s = 0;
    SL_ASSERT(known < depth && depth <= l->n_names);
    if (t->always_load || !(rate > 0))
        return true;
    for (int32_t g = 0; g < eng->kv.n_groups; g++) {
        int32_t first = first_needed(eng, g, depth);
        if (g == 0) /* the others' are rarely where the last rows see them */
            first = SL_MAX(first, SL_MIN(l->n_local, depth));
        bytes += (double)(depth - first) * (double)t->page_bytes[g];
    }
    for (int64_t pos = (int64_t)known * eng->kv.block_size, n; pos < last; pos += n) {
        n = SL_MIN(last - pos, eng->info.max_num_batched_tokens);
        const double s = sl_cost_of(&eng->sched.cost, sl_work_add((struct sl_work){0}, pos, n));
        if (!(s > 0))
            return true;
        compute_s += s;
    }
    return bytes / rate < compute_s;
}

/* Asks the remote tier for what a prompt needs beyond what is here. False: it is not asked. */
static bool probe(struct sl_engine *eng, struct sl_request *req)
{
    struct sl_tier_load *l = &req->load;
    const struct sl_kv *kv = &eng->kv;
    const bool full = kv->groups[0].cfg.kind == SL_GROUP_FULL;
    int32_t node = SL_NO_NODE, first = l->n_local;
    l->known = SL_MAX(l->depth, l->served);
    if (l->known == l->n_names || !is_worth(eng, l, l->known, l->n_names))
        return false;
    l->probe = sl_store_probe_take(eng->tiers.store);
    if (l->probe == NULL)
        return false;
    for (int32_t g = 0; g < kv->n_groups; g++)
        first = SL_MIN(first, first_needed(eng, g, l->n_local + 1));
    l->first_probed = first;
    for (int32_t i = 0; i < l->n_names; i++) {
        node = next_node(eng, req, i, node);
        for (int32_t g = 0; g < kv->n_groups && i >= first; g++) {
            const struct sl_store_key key = {l->names[i], g};
            if (!sl_store_probe_add(l->probe, &key, is_here(eng, l, i, node, g)))
                break; /* what goes beyond is computed */
        }
    }
    sl_store_probe_send(eng->tiers.store, l->probe, full ? 0 : -1);
    return true;
}

/* The blocks of this request were seen once more, wherever their pages are. What has been seen
 * often enough by now and is in the tree alone is stored. */
static void count_uses(struct sl_engine *eng, const struct sl_request *req)
{
    struct sl_tiers *t = &eng->tiers;
    const struct sl_tier_load *l = &req->load;
    for (int32_t i = 0; t->store_threshold > 1 && i < l->n_names; i++)
        see(t, &l->names[i]);
    for (int32_t i = 0; i < SL_MAX(l->n_local, l->in_tree); i++) {
        for (int32_t g = 0; g < eng->kv.n_groups; g++) {
            const struct sl_store_key key = {l->names[i], g};
            sl_store_saw(t->store, &key);
        }
    }
    if (t->store_threshold > 1)
        sl_tiers_offer(eng, req);
}

/* The answer is there, or too late: now it is known how deep the request can begin. */
static void heed(struct sl_engine *eng, struct sl_request *req)
{
    struct sl_tier_load *l = &req->load;
    SL_ASSERT(l->waits && !l->looked && l->probe != NULL && l->n_asked == 0);
    look(eng, req);
    const int32_t depth = l->depth;
    sl_store_probe_give(eng->tiers.store, l->probe);
    l->probe = NULL;
    l->remote = depth > l->known;
    if (l->remote && !is_worth(eng, l, l->known, depth)) {
        l->remote = false;
        look(eng, req); /* without it */
    }
}

/* Asks for pages that the tree does not have, in the order in which they are placed. */
static void ask(struct sl_engine *eng, struct sl_request *req)
{
    struct sl_tier_load *l = &req->load;
    SL_ASSERT(l->depth <= l->n_names && l->next >= l->at);
    while (l->n_asked < l->n_asks && l->next < l->depth) {
        const int32_t block = l->next, group = l->next_group;
        if (++l->next_group == eng->kv.n_groups) {
            l->next_group = 0;
            l->next++;
        }
        const bool full = eng->kv.groups[group].cfg.kind == SL_GROUP_FULL;
        if (block < first_needed(eng, group, l->depth) || (full && block < l->in_tree))
            continue;
        struct sl_tier_ask *a = &l->asks[(l->first_ask + l->n_asked++) % l->n_asks];
        a->block = block;
        a->get.key = (struct sl_store_key){l->names[block], group};
        a->get.page = NULL;
        a->get.inside = NULL;
        a->get.remote = l->remote;
        atomic_store_explicit(&a->get.state, SL_STORE_PENDING, memory_order_relaxed);
        sl_store_begin(eng->tiers.store, &a->get);
    }
}

static struct sl_tier_ask *first_ask(const struct sl_tier_load *l)
{
    return l->n_asked > 0 ? &l->asks[l->first_ask] : NULL;
}

static void drop_ask(struct sl_engine *eng, struct sl_tier_load *l)
{
    SL_ASSERT(l->n_asked > 0);
    sl_store_end(eng->tiers.store, &l->asks[l->first_ask].get);
    l->first_ask = (l->first_ask + 1) % l->n_asks;
    l->n_asked--;
}

/* Have all pages of the block to be placed next been asked for, and come or been missed? */
static bool block_is_here(const struct sl_tier_load *l)
{
    SL_ASSERT(l->n_asked >= 0 && l->n_asked <= l->n_asks && l->at <= l->next);
    if (l->next <= l->at)
        return false;
    for (int32_t i = 0; i < l->n_asked; i++) {
        const struct sl_tier_ask *a = &l->asks[(l->first_ask + i) % l->n_asks];
        if (a->block != l->at)
            break;
        if (atomic_load_explicit(&a->get.state, memory_order_acquire) == SL_STORE_PENDING)
            return false;
    }
    return true;
}

/* A page that has come goes where the block has none. False: it was missed, is of other tokens, or
 * has no room. */
static bool place_page(struct sl_engine *eng, struct sl_request *req, struct sl_tier_ask *a,
                       bool is_new)
{
    struct sl_tiers *t = &eng->tiers;
    struct sl_kv_blocks *b = &req->seqs[0].seq.blocks;
    const struct sl_tier_load *l = &req->load;
    const int32_t group = a->get.key.group, node = b->nodes[a->block];
    const bool full = eng->kv.groups[group].cfg.kind == SL_GROUP_FULL;
    struct sl_error err;
    SL_ASSERT(a->block == l->at && a->block < b->n && !(full && !is_new && node == SL_NO_NODE));
    if (!(is_new && full) && sl_group_page(&eng->kv.groups[group], node) != SL_NO_PAGE)
        return true; /* it was there, or somebody computed it meanwhile */
    if (atomic_load_explicit(&a->get.state, memory_order_acquire) != SL_STORE_HERE)
        return false;
    const struct sl_hash128 before =
        sl_tail_before(a->block > 0 ? &l->names[a->block - 1] : NULL, &l->names[a->block]);
    if (!same_tail(&eng->kv, a->get.page + t->page_bytes[group], &before,
                   load_tokens(eng, req, a->block)))
        return false;
    const int32_t page =
        full ? b->pages[group][a->block] : sl_kv_place(&eng->kv, b, group, a->block);
    t->budget -= SL_MIN(t->budget, t->page_bytes[group]);
    if (page == SL_NO_PAGE)
        return false;
    const uint8_t *from = sl_store_keep(t->store, &a->get);
    if (sl_moves_in(eng, group, page, from, t->page_bytes[group], &err) != 0) {
        sl_store_release(t->store, from);
        if (!full)
            sl_kv_displace(&eng->kv, b, group, a->block);
        return false;
    }
    req->load.placed = true;
    req->load.last_move = t->moves.begun.n[SL_PAGES_IN];
    return true;
}

/* The next block gets a node, if it has none, and the pages that have come. False: no further. */
static bool place_block(struct sl_engine *eng, struct sl_request *req)
{
    struct sl_tier_load *l = &req->load;
    struct sl_kv_blocks *b = &req->seqs[0].seq.blocks;
    const struct sl_kv_text text = {req->prompt, req->n_prompt, NULL, 0};
    const bool is_new = l->at == b->n;
    SL_ASSERT(req->seqs[0].seq.state == SL_SEQ_NEW && l->at < l->depth);
    bool good = l->at <= b->n, has_full = eng->kv.groups[0].cfg.kind != SL_GROUP_FULL || !is_new;
    if (good && is_new)
        good = sl_kv_take(&eng->kv, b, SL_EVICT_PROMPT);
    for (struct sl_tier_ask *a; (a = first_ask(l)) != NULL && a->block == l->at;) {
        good = good && place_page(eng, req, a, is_new);
        has_full |= good && a->get.key.group == 0;
        drop_ask(eng, l);
    }
    if (good && has_full && is_new)
        sl_kv_publish(&eng->kv, &req->ns, &text, b, l->at);
    if (good && has_full)
        l->at++;
    return good && has_full;
}

/* Can the pages of one more block begin to come? */
static bool has_room(const struct sl_engine *eng)
{
    return eng->tiers.budget > 0 && sl_moves_room(&eng->tiers.moves, SL_PAGES_IN, eng->kv.n_groups);
}

/* False: it waits on, for pages or for the next turn. */
static bool load_some(struct sl_engine *eng, struct sl_request *req)
{
    struct sl_tiers *t = &eng->tiers;
    struct sl_tier_load *l = &req->load;
    struct sl_kv_blocks *b = &req->seqs[0].seq.blocks;
    const struct sl_kv_text text = {req->prompt, req->n_prompt, NULL, 0};
    SL_ASSERT(l->waits && l->looked && b->n == 0);
    if (l->depth == 0)
        return true;
    /* No step reads what is written: the copies of a device are ordered behind its steps. */
    SL_ASSERT(eng->n_flights == 0 || eng->runner.pages_over != NULL);
    if (!l->ended)
        ask(eng, req);
    if (!l->ended && has_room(eng) && block_is_here(l)) {
        sl_kv_hold(&eng->kv, &req->ns, &text, l->names, l->depth, b);
        while (!l->ended && has_room(eng) && block_is_here(l)) {
            l->ended = !place_block(eng, req) || l->at == l->depth;
            if (!l->ended)
                ask(eng, req);
        }
        sl_kv_give(&eng->kv, b, 0, false);
        atomic_fetch_add(&eng->n_moves, 1);
    }
    if (eng->now_ns >= l->deadline_ns || t->moves.broken)
        return true;
    if (l->ended)
        return t->moves.over.n[SL_PAGES_IN] >= l->last_move;
    t->more |= has_room(eng) && block_is_here(l);
    return false;
}

/* No longer than the watchdog would take it for. */
static uint64_t deadline_in(const struct sl_engine *eng, uint64_t most_ns)
{
    const uint64_t stall_ns = eng->watchdog.timeout_ns; /* 0: nobody looks */
    return sl_now_ns() + (stall_ns > 0 ? SL_MIN(stall_ns / 4, most_ns) : most_ns);
}

static void begin_to_wait(struct sl_engine *eng, struct sl_request *req, uint64_t most_ns)
{
    struct sl_tiers *t = &eng->tiers;
    struct sl_tier_load *l = &req->load;
    l->deadline_ns = deadline_in(eng, most_ns);
    l->waits = true;
    l->wait_next = NULL;
    if (t->waiting != NULL)
        t->last_waiting->load.wait_next = req;
    else
        t->waiting = req;
    t->last_waiting = req;
    t->n_waiting++;
}

static void count_asked(struct sl_engine *eng, const struct sl_tier_load *l)
{
    SL_ASSERT(l->looked && l->depth > l->served);
    eng->tiers.n_asked_tokens += (uint64_t)(l->depth - l->served) * (uint64_t)eng->kv.block_size;
}

/* Sees what there is, and asks the remote tier for more. False: there is nothing to wait for. */
static bool look_around(struct sl_engine *eng, struct sl_request *req)
{
    struct sl_tier_load *l = &req->load;
    SL_ASSERT(!l->looked && l->probe == NULL);
    look(eng, req);
    if (eng->tiers.counts)
        count_uses(eng, req);
    if (eng->tiers.remote)
        l->looked = !probe(eng, req);
    if (l->looked && l->depth == 0)
        return false;
    if (l->looked)
        count_asked(eng, l);
    return true;
}

bool sl_tiers_begin(struct sl_engine *eng, struct sl_request *req)
{
    struct sl_tier_load *l = &req->load;
    SL_ASSERT(!l->waits && l->n_asked == 0 && l->probe == NULL);
    if (l->names == NULL)
        return false;
    if (l->lease != NULL)
        sl_tiers_offer(eng, req);
    const bool over = sl_transfer_over(req);
    if (over && !look_around(eng, req))
        return false;
    begin_to_wait(eng, req, over ? MAX_WAIT_NS : SL_TRANSFER_WAIT_NS);
    return true;
}

/* Is it known how deep the request can begin? */
static bool has_looked(struct sl_engine *eng, struct sl_request *req)
{
    struct sl_tier_load *l = &req->load;
    SL_ASSERT(l->waits);
    if (l->looked)
        return true;
    if (l->probe == NULL) { /* pages of another server were waited for */
        if (!sl_transfer_over(req) && eng->now_ns < l->deadline_ns)
            return false;
        (void)look_around(eng, req);
        l->deadline_ns = deadline_in(eng, MAX_WAIT_NS);
        return l->looked;
    }
    if (!sl_store_probe_over(l->probe))
        return false;
    heed(eng, req);
    if (l->depth > 0)
        count_asked(eng, l);
    return true;
}

void sl_tiers_end(struct sl_engine *eng, struct sl_request *req)
{
    struct sl_tiers *t = &eng->tiers;
    struct sl_tier_load *l = &req->load;
    if (!l->waits)
        return;
    sl_transfer_drop(req);
    if (l->probe != NULL)
        sl_store_probe_give(t->store, l->probe);
    l->probe = NULL;
    while (l->n_asked > 0)
        drop_ask(eng, l);
    struct sl_request *before = NULL;
    for (struct sl_request *r = t->waiting; r != req; r = r->load.wait_next)
        before = r;
    if (before != NULL)
        before->load.wait_next = l->wait_next;
    else
        t->waiting = l->wait_next;
    if (t->last_waiting == req)
        t->last_waiting = before;
    t->n_waiting--;
    SL_ASSERT((t->waiting == NULL) == (t->n_waiting == 0));
    l->waits = false;
}

/* What was placed of a prompt with windows or states serves nobody unless all of it was. */
static void count_loaded(struct sl_tiers *t, const struct sl_tier_load *l,
                         const struct sl_engine *eng)
{
    SL_ASSERT(l->at <= l->depth && (l->served < l->depth || l->depth == 0 || !l->looked));
    const bool all_full = eng->kv.n_groups == 1 && eng->kv.groups[0].cfg.kind == SL_GROUP_FULL;
    if (l->placed && (l->at == l->depth || (all_full && l->at > l->served)))
        t->n_loaded_tokens += (uint64_t)(l->at - l->served) * (uint64_t)eng->kv.block_size;
}

/* What may be copied beside the steps of a device, without the engine. */
static uint64_t budget_of(const struct sl_tiers *t, enum sl_page_way way, uint64_t most)
{
    return most - SL_MIN(most, t->moves.ways[way].n_bytes);
}

/* Pages that are complete are stored; sets the budget for what the plan evicts. */
static void store_some(struct sl_engine *eng)
{
    struct sl_tiers *t = &eng->tiers;
    const uint64_t share = SL_MIN(SL_MAX(eng->step_ns / STORE_SHARE, 1), 4 * TURN_BYTES);
    const bool beside = eng->runner.pages_over != NULL;
    t->budget = beside                       ? budget_of(t, SL_PAGES_OUT, MOST_OUT)
                : sl_sched_idle(&eng->sched) ? TURN_BYTES
                                             : share;
    store_todo(eng);
    t->full = beside && t->n_todo > 0;
    t->budget = beside ? budget_of(t, SL_PAGES_OUT, MOST_OUT + EVICT_BYTES) : share;
}

void sl_tiers_turn(struct sl_engine *eng)
{
    struct sl_tiers *t = &eng->tiers;
    if (t->store == NULL)
        return;
    sl_moves_end(eng, false);
    t->budget = eng->runner.pages_over == NULL ? TURN_BYTES : budget_of(t, SL_PAGES_IN, MOST_IN);
    t->more = false;
    int32_t n = 0;
    for (struct sl_request *req = t->waiting, *next; req != NULL; req = next) {
        next = req->load.wait_next;
        if (!has_looked(eng, req))
            continue;
        if (req->load.depth > 0 &&
            (n++ < MAX_LOADING ? !load_some(eng, req) : eng->now_ns < req->load.deadline_ns))
            continue;
        count_loaded(t, &req->load, eng);
        sl_tiers_end(eng, req);
        t->more |= next != NULL; /* whose turn it may be now */
        sl_engine_schedule(eng, req);
    }
    store_some(eng);
}

/* ------------------------------------------------------------------ start and end */

static void wake_up(void *arg)
{
    struct sl_engine *eng = arg;
    sl_inbox_wake(&eng->inbox);
}

static void pages_moved(void *arg)
{
    struct sl_engine *eng = arg;
    sl_feed_wake(eng->feed);
}

int sl_tiers_init(struct sl_engine *eng, const struct sl_tiers_config *cfg, struct sl_error *err)
{
    struct sl_tiers *t = &eng->tiers;
    struct sl_store_config store = cfg->store;
    if (store.host_bytes == 0)
        return 0;
    SL_ASSERT(eng->runner.page_out != NULL && eng->runner.page_in != NULL);
    store.n_groups = eng->kv.n_groups;
    store.wake = wake_up;
    store.wake_arg = eng;
    if (eng->feed != NULL) {
        store.news = pages_moved;
        store.news_arg = eng;
    }
    store.pin = eng->runner.pin;
    store.unpin = eng->runner.unpin;
    store.device = eng->runner.device;
    SL_ASSERT(t->store == NULL && (eng->max_flights == 1 || eng->runner.pages_over != NULL));
    for (int32_t g = 0; g < store.n_groups; g++) {
        SL_ASSERT(cfg->page_bytes[g] > 0);
        t->page_bytes[g] = cfg->page_bytes[g];
        store.page_bytes[g] = cfg->page_bytes[g] + tail_bytes(&eng->kv);
    }
    t->todo = sl_calloc(SL_MAX_TIER_TODO, sizeof *t->todo);
    if (t->todo == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for pages to be stored");
    t->store_threshold = (uint32_t)SL_MAX(cfg->store_threshold, 0);
    int rc = t->store_threshold > 1 ? sl_nametab_init(&t->seen, cfg->max_tracker_size, err) : 0;
    if (rc == 0)
        rc = sl_moves_init(eng, err);
    if (rc == 0)
        rc = sl_store_open(&store, &t->store, err);
    if (rc != 0) {
        sl_moves_deinit(eng);
        sl_nametab_deinit(&t->seen);
        sl_free(t->todo);
        t->todo = NULL;
        return rc;
    }
    t->remote = store.remote_url != NULL;
    t->counts = t->remote || store.policy == SL_POLICY_ARC || t->store_threshold > 1;
    t->always_load = cfg->always_load;
    t->watch = (struct sl_kv_watch){eng, page_is_complete, page_leaves};
    sl_kv_set_watch(&eng->kv, &t->watch);
    sl_kv_seed_names(&eng->kv, sl_store_seed(t->store));
    return sl_transfer_init(eng, cfg, err);
}

void sl_tiers_drain(struct sl_engine *eng)
{
    struct sl_tiers *t = &eng->tiers;
    if (t->store == NULL || eng->runner.ctx == NULL || atomic_load(&eng->failed))
        return;
    SL_ASSERT(t->waiting == NULL && eng->n_flights == 0);
    do {
        t->budget = UINT64_MAX;
        store_todo(eng);
        sl_moves_end(eng, true);
    } while (t->n_todo > 0 && !t->moves.broken);
    t->budget = 0;
}

void sl_tiers_deinit(struct sl_engine *eng)
{
    struct sl_tiers *t = &eng->tiers;
    SL_ASSERT(t->waiting == NULL);
    sl_transfer_deinit(eng);
    sl_kv_set_watch(&eng->kv, NULL);
    sl_moves_deinit(eng);
    sl_store_close(t->store);
    sl_nametab_deinit(&t->seen);
    sl_free(t->todo);
    *t = (struct sl_tiers){0};
}

/* Stats of the store may be asked for by any thread; the engine's own counts go with a turn's. */
void sl_tiers_stats(const struct sl_engine *eng, struct sl_stats *out)
{
    sl_transfer_stats(eng, &out->kv_transfer);
    _Static_assert((int)SL_N_TIERS == (int)SL_N_KV_TIERS, "the same tiers");
    for (int i = 0; i < SL_N_TIERS && eng->tiers.store != NULL; i++) {
        struct sl_store_stats s;
        sl_store_stats(eng->tiers.store, (enum sl_tier_kind)i, &s);
        out->kv_tiers[i] = (struct sl_kv_tier_stats){.there = s.there,
                                                     .up = s.up,
                                                     .probes = s.probes,
                                                     .unanswered = s.unanswered,
                                                     .n_pages = s.n_pages,
                                                     .n_bytes = s.n_bytes,
                                                     .capacity_bytes = s.capacity_bytes,
                                                     .hits = s.hits,
                                                     .misses = s.misses,
                                                     .stored = s.stored,
                                                     .stored_bytes = s.stored_bytes,
                                                     .coded = s.coded,
                                                     .coded_bytes = s.coded_bytes,
                                                     .loaded_bytes = s.loaded_bytes,
                                                     .dropped = s.dropped,
                                                     .evicted = s.evicted,
                                                     .corrupt = s.corrupt,
                                                     .io_errors = s.io_errors};
    }
}
