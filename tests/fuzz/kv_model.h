/* SPDX-License-Identifier: MIT
 * kv_model.h - what kv/kv.h promises, as plain arrays searched from end to end: every node of the
 * prefix cache knows its whole prefix and which groups it has pages in; what was used least
 * recently is found by a clock.
 */
#ifndef SL_FUZZ_KV_MODEL_H
#define SL_FUZZ_KV_MODEL_H

#include "fuzz.h"
#include "kv/kv.h"

#include <string.h>

#define MODEL_NODES  16
#define MODEL_TOKENS 48 /* of one prefix */
#define MODEL_GROUPS 3

struct model_page { /* a node's in a group */
    bool there;
    int32_t owners;
    uint64_t when; /* it lost its last owner */
    bool wanted;   /* of a state: found once, or asked for */
    int32_t saves;
    uint64_t value;
};

struct model_node {
    bool is_free, in_tree;
    bool dead, hidden; /* it is in doubt; it or a node before it is */
    int32_t refs, parent, ns, n;
    int32_t tokens[MODEL_TOKENS]; /* [n] all of its prefix and itself */
    uint64_t when;                /* it lost its last owner */
    struct model_page page[MODEL_GROUPS];
};

struct model_group {
    int32_t window, n_pages; /* window 0: FULL */
    bool state;              /* and window 2 */
};

struct model_kv {
    int32_t n_nodes, block, n_groups;
    bool keep;
    struct model_group group[MODEL_GROUPS];
    struct model_node node[MODEL_NODES];
    int32_t free_list[MODEL_NODES], n_free;
    uint64_t clock, n_releases, floor; /* floor: of the values of states */
};

struct model_blocks { /* of a sequence */
    int32_t nodes[MODEL_TOKENS], n, first[MODEL_GROUPS], end[MODEL_GROUPS];
    bool has_state[MODEL_TOKENS];
    int32_t wanted[SL_KV_CHECKPOINTS], kept, base; /* by blocks before them */
};

struct real_blocks { /* the same, with room */
    struct sl_kv_blocks b;
    int32_t nodes[MODEL_TOKENS], pages[SL_MAX_KV_GROUPS][MODEL_TOKENS];
};

static inline struct sl_kv_blocks *real_begin(struct real_blocks *r)
{
    r->b = (struct sl_kv_blocks){.nodes = r->nodes};
    for (int g = 0; g < SL_MAX_KV_GROUPS; g++)
        r->b.pages[g] = r->pages[g];
    return &r->b;
}

static inline void model_free(struct model_kv *m, int32_t node)
{
    m->node[node] = (struct model_node){.is_free = true, .parent = SL_NO_NODE};
    m->free_list[m->n_free++] = node;
}

/* Groups as the input says: FULL, FULL and a window, or a window alone; and perhaps one of states,
 * or that alone. */
static inline void model_init(struct model_kv *m, struct sl_input *in, struct sl_kv_config *cfg)
{
    *m = (struct model_kv){.n_nodes = 1 + sl_input_below(in, MODEL_NODES),
                           .block = 1 + sl_input_below(in, 4)};
    int32_t how = sl_input_below(in, 4), window = 1 + sl_input_below(in, 3 * m->block);
    m->keep = sl_input_below(in, 4) != 0;
    const int32_t with = sl_input_below(in, 5);
    if (how < 3 && with < 4)
        m->group[m->n_groups++] = (struct model_group){.n_pages = m->n_nodes};
    if (how > 0 && with < 4)
        m->group[m->n_groups++] = (struct model_group){.window = window};
    if (with > 1)
        m->group[m->n_groups++] = (struct model_group){.window = SL_STATE_WINDOW, .state = true};
    for (int32_t node = m->n_nodes; node-- > 0;)
        model_free(m, node);
    *cfg = (struct sl_kv_config){.n_nodes = m->n_nodes,
                                 .block_size = m->block,
                                 .keep = m->keep,
                                 .seed = sl_input_byte(in),
                                 .n_groups = m->n_groups};
    for (int32_t g = 0; g < m->n_groups; g++) {
        struct sl_kv_group_config *c = &cfg->groups[g];
        *c = (struct sl_kv_group_config){.window = m->group[g].window, .n_pages = m->n_nodes};
        c->kind = m->group[g].state ? SL_GROUP_STATE
                  : c->window > 0   ? SL_GROUP_WINDOW
                                    : SL_GROUP_FULL;
        int32_t least = sl_group_least(c, m->n_nodes, m->block);
        c->n_pages = least + sl_input_below(in, m->n_nodes - least + 1);
        m->group[g].n_pages = c->n_pages;
    }
}

static inline int32_t model_seen(const struct model_kv *m, int32_t g, int32_t pos)
{
    int32_t first = m->group[g].window > 0 ? pos - m->group[g].window + 1 : 0;
    return first > 0 ? first / m->block : 0;
}

static inline bool model_is_cached(const struct model_kv *m, int32_t node)
{
    return m->node[node].in_tree && m->node[node].refs == 0;
}

static inline int32_t model_oldest(const struct model_kv *m)
{
    int32_t best = SL_NO_NODE;
    for (int32_t i = 0; i < m->n_nodes; i++)
        if (model_is_cached(m, i) && (best == SL_NO_NODE || m->node[i].when < m->node[best].when))
            best = i;
    return best;
}

static inline int32_t model_available(const struct model_kv *m)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_nodes; i++)
        n += m->node[i].is_free || model_is_cached(m, i);
    return n;
}

static inline bool model_has_children(const struct model_kv *m, int32_t node)
{
    for (int32_t i = 0; i < m->n_nodes; i++)
        if (m->node[i].in_tree && m->node[i].parent == node)
            return true;
    return false;
}

/* ---- pages of groups with a window */

static inline bool model_is_alone(const struct model_kv *m, int32_t g, int32_t node)
{
    const struct model_page *p = &m->node[node].page[g];
    return m->group[g].window > 0 && p->there && p->owners == 0;
}

static inline int32_t model_n_free(const struct model_kv *m, int32_t g)
{
    int32_t n = m->group[g].n_pages;
    for (int32_t i = 0; i < m->n_nodes; i++)
        n -= m->node[i].page[g].there;
    return n;
}

/* Free, or cached alone. */
static inline int32_t model_room(const struct model_kv *m, int32_t g)
{
    int32_t n = model_n_free(m, g);
    for (int32_t i = 0; i < m->n_nodes; i++)
        n += model_is_alone(m, g, i);
    return n;
}

/* Of two cached pages: the one of less value, of those the older one. */
static inline bool model_goes_before(const struct model_kv *m, int32_t g, int32_t a, int32_t b)
{
    const struct model_page *p = &m->node[a].page[g], *q = &m->node[b].page[g];
    return p->value != q->value ? p->value < q->value : p->when < q->when;
}

static inline void model_take_page(struct model_kv *m, int32_t g, int32_t node)
{
    if (model_n_free(m, g) == 0) {
        int32_t old = SL_NO_NODE;
        for (int32_t i = 0; i < m->n_nodes; i++)
            if (model_is_alone(m, g, i) && (old == SL_NO_NODE || model_goes_before(m, g, i, old)))
                old = i;
        SL_ASSERT(old != SL_NO_NODE);
        if (m->node[old].page[g].value > m->floor)
            m->floor = m->node[old].page[g].value;
        m->node[old].page[g] = (struct model_page){.there = false};
    }
    m->node[node].page[g] = (struct model_page){.there = true, .owners = 1};
}

static inline void model_disown(struct model_kv *m, int32_t g, int32_t node, bool forget)
{
    struct model_page *p = &m->node[node].page[g];
    SL_ASSERT(p->there && p->owners > 0);
    if (--p->owners > 0 || m->group[g].window == 0)
        return;
    p->there = m->node[node].in_tree && !m->node[node].dead && !forget;
    p->when = ++m->clock;
    p->value = m->group[g].state ? m->floor + (uint64_t)p->saves : 0;
    if (!p->there)
        *p = (struct model_page){.there = false};
}

/* ---- states: a block may have none */

static inline int32_t model_states(const struct model_kv *m)
{
    return m->group[m->n_groups - 1].state ? m->n_groups - 1 : -1;
}

/* A later checkpoint takes the place of one that nobody wants. */
static inline void model_supersede(struct model_kv *m, struct model_blocks *b, int32_t depth)
{
    const int32_t g = model_states(m), older = depth < b->kept ? depth : b->kept;
    b->kept = depth > b->kept ? depth : b->kept;
    if (older == 0 || older == b->kept)
        return;
    struct model_page *p = &m->node[b->nodes[older - 1]].page[g];
    if (p->there && p->owners == 0 && !p->wanted)
        *p = (struct model_page){.there = false};
}

static inline void model_leave_state(struct model_kv *m, struct model_blocks *b, int32_t idx,
                                     bool forget)
{
    const int32_t g = model_states(m), node = b->nodes[idx];
    struct model_page *p = &m->node[node].page[g];
    if (!b->has_state[idx])
        return;
    b->has_state[idx] = false;
    const bool keep = m->node[node].in_tree && !m->node[node].dead && !forget;
    if (keep) {
        for (int32_t k = 0; k < SL_KV_CHECKPOINTS; k++)
            p->wanted |= b->wanted[k] == idx + 1;
        if (p->saves == 0)
            p->saves = idx + 1 > b->base ? idx + 1 - b->base : 1;
        if (p->wanted && idx + 1 > b->base)
            b->base = idx + 1;
    }
    model_disown(m, g, node, forget);
    if (keep)
        model_supersede(m, b, idx + 1);
}

static inline int32_t model_unused(const struct model_kv *m, const struct model_blocks *b,
                                   int32_t n_done)
{
    const int32_t last = b->end[model_states(m)] - 1;
    return last >= 0 && b->has_state[last] && last * m->block >= n_done ? last : -1;
}

static inline void model_cover_state(struct model_kv *m, struct model_blocks *b, int32_t n_done,
                                     int32_t end)
{
    const int32_t g = model_states(m), unused = model_unused(m, b, n_done);
    if (end <= b->end[g])
        return;
    if (unused >= 0) {
        m->node[b->nodes[end - 1]].page[g] = m->node[b->nodes[unused]].page[g];
        m->node[b->nodes[unused]].page[g] = (struct model_page){.there = false};
        b->has_state[unused] = false;
    } else {
        model_take_page(m, g, b->nodes[end - 1]);
    }
    b->has_state[end - 1] = true;
    b->end[g] = end;
}

/* Wanted ones that a step passes by get pages, at most n. */
static inline void model_checkpoint(struct model_kv *m, struct model_blocks *b, int32_t n_done,
                                    int32_t n_after, int32_t n)
{
    for (int32_t k = 0; k < SL_KV_CHECKPOINTS; k++) {
        const int32_t at = b->wanted[k] * m->block, idx = b->wanted[k] - 1;
        if (at <= n_done || at > n_after || b->has_state[idx] || n-- <= 0)
            continue;
        model_take_page(m, model_states(m), b->nodes[idx]);
        b->has_state[idx] = true;
    }
}

/* ---- nodes */

static inline bool model_take(struct model_kv *m, struct model_blocks *b)
{
    if (m->n_free == 0) {
        int32_t old = model_oldest(m);
        if (old == SL_NO_NODE)
            return false;
        SL_ASSERT(!model_has_children(m, old));
        model_free(m, old);
    }
    int32_t node = m->free_list[--m->n_free];
    m->node[node].is_free = false;
    m->node[node].refs = 1;
    b->nodes[b->n++] = node;
    for (int32_t g = 0; g < m->n_groups; g++)
        if (m->group[g].window == 0) {
            m->node[node].page[g] = (struct model_page){.there = true, .owners = 1};
            b->end[g] = b->n;
        }
    return true;
}

static inline bool model_cover(struct model_kv *m, struct model_blocks *b, int32_t n_done,
                               int32_t end)
{
    for (int32_t g = 0; g < m->n_groups; g++) {
        int32_t need = end - b->end[g];
        if (m->group[g].state)
            need = need > 0 && model_unused(m, b, n_done) < 0;
        if (need > model_room(m, g))
            return false;
    }
    for (int32_t g = 0; g < m->n_groups; g++) {
        for (; !m->group[g].state && b->end[g] < end; b->end[g]++)
            model_take_page(m, g, b->nodes[b->end[g]]);
        if (m->group[g].state)
            model_cover_state(m, b, n_done, end);
    }
    return true;
}

static inline void model_pass(struct model_kv *m, struct model_blocks *b, int32_t n_done)
{
    for (int32_t g = 0; g < m->n_groups; g++)
        for (; b->first[g] < model_seen(m, g, n_done); b->first[g]++) {
            if (m->group[g].state)
                model_leave_state(m, b, b->first[g], false);
            else
                model_disown(m, g, b->nodes[b->first[g]], false);
        }
}

static inline int32_t model_find(const struct model_kv *m, int32_t ns, const int32_t *tokens,
                                 int32_t n)
{
    for (int32_t i = 0; i < m->n_nodes; i++) {
        const struct model_node *e = &m->node[i];
        if (e->in_tree && !e->hidden && e->ns == ns && e->n == n &&
            memcmp(e->tokens, tokens, (size_t)n * sizeof *tokens) == 0)
            return i;
    }
    return SL_NO_NODE;
}

/* Can a sequence go on behind n blocks, found at nodes[n]? */
static inline bool model_usable(const struct model_kv *m, const int32_t *nodes, int32_t n)
{
    for (int32_t g = 0; g < m->n_groups; g++)
        for (int32_t i = model_seen(m, g, n * m->block); i < n; i++)
            if (!m->node[nodes[i]].page[g].there)
                return false;
    return true;
}

static inline void model_match(struct model_kv *m, int32_t ns, const int32_t *tokens, int32_t max,
                               struct model_blocks *b)
{
    int32_t n = 0;
    *b = (struct model_blocks){.n = 0};
    for (; n < max; n++) {
        b->nodes[n] = model_find(m, ns, tokens, (n + 1) * m->block);
        if (b->nodes[n] == SL_NO_NODE)
            break;
    }
    while (!model_usable(m, b->nodes, n))
        n--;
    b->n = b->base = n;
    for (int32_t i = 0; i < n; i++)
        m->node[b->nodes[i]].refs++;
    for (int32_t g = 0; g < m->n_groups; g++) {
        b->first[g] = model_seen(m, g, n * m->block);
        b->end[g] = n;
        for (int32_t i = b->first[g]; i < n; i++) {
            m->node[b->nodes[i]].page[g].owners++;
            m->node[b->nodes[i]].page[g].wanted = true;
            b->has_state[i] = m->group[g].state;
        }
    }
}

static inline void model_hide(struct model_kv *m, int32_t node)
{
    bool more = true;
    m->node[node].hidden = m->node[node].dead = true;
    for (int32_t g = 0; g < m->n_groups; g++)
        if (m->group[g].window > 0)
            m->node[node].page[g] = (struct model_page){.there = false};
    while (more) {
        more = false;
        for (int32_t i = 0; i < m->n_nodes; i++) {
            struct model_node *e = &m->node[i];
            if (e->in_tree && !e->hidden && e->parent != SL_NO_NODE && m->node[e->parent].hidden)
                e->hidden = more = true;
        }
    }
}

static inline void model_drop(struct model_kv *m, int32_t node, bool forget)
{
    struct model_node *e = &m->node[node];
    SL_ASSERT(e->refs > 0);
    if (--e->refs > 0)
        return;
    m->n_releases++;
    bool parent = model_has_children(m, node);
    if (forget && parent)
        model_hide(m, node);
    if (e->in_tree && ((m->keep && !forget) || parent))
        e->when = ++m->clock;
    else
        model_free(m, node);
}

static inline void model_publish(struct model_kv *m, int32_t ns, const int32_t *tokens,
                                 struct model_blocks *b, int32_t idx)
{
    int32_t n = (idx + 1) * m->block, mine = b->nodes[idx], same = model_find(m, ns, tokens, n);
    if (same != SL_NO_NODE) {
        m->node[same].refs++;
        for (int32_t g = 0; g < m->n_groups; g++) {
            struct model_page *p = &m->node[same].page[g];
            if (m->group[g].state && !b->has_state[idx])
                continue;
            if (!p->there) { /* mine goes there */
                *p = m->node[mine].page[g];
                m->node[mine].page[g] = (struct model_page){.there = false};
            } else {
                p->owners++;
                model_disown(m, g, mine, true);
            }
        }
        model_drop(m, mine, false);
        b->nodes[idx] = same;
        return;
    }
    struct model_node *e = &m->node[mine];
    e->in_tree = true;
    e->ns = ns;
    e->n = n;
    e->parent = idx > 0 ? b->nodes[idx - 1] : SL_NO_NODE;
    SL_ASSERT(n <= MODEL_TOKENS);
    memcpy(e->tokens, tokens, (size_t)n * sizeof *tokens);
}

static inline void model_give(struct model_kv *m, struct model_blocks *b, int32_t n_keep,
                              bool forget)
{
    while (b->n > n_keep) {
        int32_t i = --b->n;
        for (int32_t g = 0; g < m->n_groups; g++) {
            if (m->group[g].state)
                model_leave_state(m, b, i, forget);
            else if (i >= b->first[g] && i < b->end[g])
                model_disown(m, g, b->nodes[i], forget);
        }
        model_drop(m, b->nodes[i], forget);
    }
    for (int32_t g = 0; g < m->n_groups; g++) {
        b->first[g] = b->first[g] < n_keep ? b->first[g] : n_keep;
        b->end[g] = b->end[g] < n_keep ? b->end[g] : n_keep;
    }
}

static inline void model_clear(struct model_kv *m)
{
    for (int32_t old; (old = model_oldest(m)) != SL_NO_NODE;)
        model_free(m, old);
    for (int32_t g = 0; g < m->n_groups; g++)
        for (int32_t i = 0; i < m->n_nodes; i++)
            if (model_is_alone(m, g, i))
                m->node[i].page[g] = (struct model_page){.there = false};
}

/* ---- comparison */

static inline void model_compare_blocks(const struct model_kv *m, const struct model_blocks *a,
                                        const struct sl_kv_blocks *b)
{
    SL_ASSERT(a->n == b->n);
    SL_ASSERT(memcmp(a->nodes, b->nodes, (size_t)a->n * sizeof *a->nodes) == 0);
    for (int32_t g = 0; g < m->n_groups; g++) {
        SL_ASSERT(a->first[g] == b->first[g] && a->end[g] == b->end[g]);
        for (int32_t i = 0; i < a->n; i++)
            SL_ASSERT((b->pages[g][i] != SL_NO_PAGE) ==
                      (m->group[g].state ? a->has_state[i] : i >= a->first[g] && i < a->end[g]));
    }
}

static inline void model_compare_group(const struct model_kv *m, const struct sl_kv *kv, int32_t g)
{
    const struct sl_kv_group *group = &kv->groups[g];
    int32_t n_alone = 0;
    uint64_t when = 0;
    SL_ASSERT(group->pool.n_free == model_n_free(m, g));
    for (int32_t i = 0; i < m->n_nodes; i++) {
        const struct model_page *p = &m->node[i].page[g];
        const int32_t page = sl_group_page(group, i);
        SL_ASSERT((page != SL_NO_PAGE) == p->there);
        SL_ASSERT(page == SL_NO_PAGE || group->pool.refs[page] == p->owners);
        n_alone += model_is_alone(m, g, i);
    }
    for (int32_t i = group->lru.head; i != SL_NO_NODE; i = group->lru.links[i].next) {
        SL_ASSERT(model_is_alone(m, g, i) && m->node[i].page[g].when > when && n_alone-- > 0);
        when = m->node[i].page[g].when;
    }
    SL_ASSERT(n_alone == 0);
}

/* Every node and page, the free list, the order of eviction and the sums. */
static inline void model_compare(const struct model_kv *m, const struct sl_kv *kv)
{
    int32_t n_cached = 0;
    uint64_t when = 0;
    SL_ASSERT(kv->nodes.n_free == m->n_free && kv->n_releases == m->n_releases);
    SL_ASSERT(memcmp(kv->nodes.free_list, m->free_list, (size_t)m->n_free * sizeof(int32_t)) == 0);
    for (int32_t i = 0; i < m->n_nodes; i++) {
        const struct model_node *e = &m->node[i];
        SL_ASSERT((kv->nodes.is_free[i] != 0) == e->is_free && kv->nodes.refs[i] == e->refs);
        SL_ASSERT(kv->tree.nodes[i].in_tree == e->in_tree);
        n_cached += model_is_cached(m, i);
    }
    SL_ASSERT(sl_kv_n_cached(kv) == n_cached && sl_kv_n_available(kv) == n_cached + m->n_free);
    for (int32_t i = kv->tree.lru.head; i != SL_NO_NODE; i = kv->tree.lru.links[i].next) {
        SL_ASSERT(model_is_cached(m, i) && m->node[i].when > when && n_cached-- > 0);
        when = m->node[i].when;
    }
    SL_ASSERT(n_cached == 0);
    for (int32_t g = 0; g < m->n_groups; g++)
        model_compare_group(m, kv, g);
}

#endif
