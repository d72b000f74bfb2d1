/* SPDX-License-Identifier: MIT */
#include "kv/lease.h"

#include "base/check.h"
#include "kv/kv.h"

bool sl_kv_is_kept(const struct sl_kv *kv, int32_t node)
{
    const int32_t n = kv->leases.n_of[node];
    return n > 0 && kv->nodes.refs[node] == n;
}

void sl_kv_allow_leases(struct sl_kv *kv, int32_t max)
{
    SL_ASSERT(max >= 0 && max <= kv->nodes.n_ids && kv->leases.n == 0);
    kv->leases.max = kv->keep ? max : 0;
}

static void own(struct sl_kv *kv, int32_t node)
{
    struct sl_kv_leases *l = &kv->leases;
    sl_kv_hold_node(kv, node); /* counts as another's, until it is ours */
    if (kv->groups[0].cfg.kind == SL_GROUP_FULL)
        sl_group_own(&kv->groups[0], node);
    l->n_leased += l->n_of[node]++ == 0;
    l->n_kept += sl_kv_is_kept(kv, node);
}

static void disown(struct sl_kv *kv, int32_t node)
{
    struct sl_kv_leases *l = &kv->leases;
    SL_ASSERT(l->n_of[node] > 0 && kv->nodes.refs[node] >= l->n_of[node]);
    l->n_kept -= sl_kv_is_kept(kv, node);
    l->n_leased -= --l->n_of[node] == 0;
    if (kv->groups[0].cfg.kind == SL_GROUP_FULL)
        sl_group_disown(&kv->groups[0], node, true);
    sl_kv_drop_node(kv, node, false);
}

/* Of two leases, does a go before b? */
static bool falls_before(const struct sl_kv_lease *a, const struct sl_kv_lease *b)
{
    return a->worth != b->worth ? a->worth < b->worth : a->end_ns < b->end_ns;
}

/* May the lease go for this claim? */
static bool yields(const struct sl_kv_lease *l, const struct sl_kv_claim *c)
{
    return c->any ||
           (l->priority != c->priority ? l->priority > c->priority : l->arrival > c->arrival);
}

/* The lease that goes first of those that may go for the claim; -1: none may. */
static int32_t first_to_fall(const struct sl_kv *kv, const struct sl_kv_claim *claim)
{
    const struct sl_kv_lease *list = kv->leases.list;
    int32_t best = -1;
    for (int32_t i = 0; i < SL_MAX_KV_LEASES && kv->leases.n > 0; i++)
        if (list[i].leaf != SL_NO_NODE && yields(&list[i], claim) &&
            (best < 0 || falls_before(&list[i], &list[best])))
            best = i;
    return best;
}

/* Nodes of the way from leaf to the root, and of those the ones without a lease. */
static int32_t count_way(const struct sl_kv *kv, int32_t leaf, int32_t *n_new)
{
    int32_t n = 0;
    *n_new = 0;
    for (; leaf != SL_NO_NODE; leaf = kv->tree.nodes[leaf].parent) {
        SL_ASSERT(kv->tree.nodes[leaf].in_tree && n < kv->nodes.n_ids);
        *n_new += kv->leases.n_of[leaf] == 0;
        n++;
    }
    return n;
}

/* Room for the way to leaf within the bound, if need be for leases that are worth less. */
static bool make_room(struct sl_kv *kv, int32_t leaf, double worth)
{
    const struct sl_kv_claim any = {.any = true};
    struct sl_kv_leases *l = &kv->leases;
    int32_t n_new;
    if (count_way(kv, leaf, &n_new) > l->max)
        return false;
    while (l->n == SL_MAX_KV_LEASES || l->n_leased + n_new > l->max) {
        const int32_t worst = first_to_fall(kv, &any);
        if (worst < 0 || l->list[worst].worth >= worth)
            return false;
        l->n_fell++;
        sl_kv_end_lease(kv, worst);
        (void)count_way(kv, leaf, &n_new); /* it may have held some of these */
    }
    return true;
}

int32_t sl_kv_lease(struct sl_kv *kv, int32_t leaf, const struct sl_hash128 *name,
                    const struct sl_kv_lease *what)
{
    struct sl_kv_leases *l = &kv->leases;
    SL_ASSERT(leaf >= 0 && leaf < kv->nodes.n_ids);
    const struct sl_kv_node *n = &kv->tree.nodes[leaf];
    if (!n->in_tree || n->dead || n->name.lo != name->lo || n->name.hi != name->hi ||
        !make_room(kv, leaf, what->worth))
        return -1;
    int32_t i = 0, n_new;
    while (l->list[i].leaf != SL_NO_NODE)
        SL_ASSERT(++i < SL_MAX_KV_LEASES);
    l->list[i] = *what;
    l->list[i].leaf = leaf;
    l->list[i].n_nodes = count_way(kv, leaf, &n_new);
    for (int32_t node = leaf; node != SL_NO_NODE; node = kv->tree.nodes[node].parent)
        own(kv, node);
    l->n++;
    SL_ASSERT(l->n_leased <= l->max && l->n_kept <= l->n_leased);
    return i;
}

void sl_kv_end_lease(struct sl_kv *kv, int32_t lease)
{
    struct sl_kv_leases *l = &kv->leases;
    SL_ASSERT(lease >= 0 && lease < SL_MAX_KV_LEASES && l->list[lease].leaf != SL_NO_NODE &&
              l->n > 0);
    int32_t node = l->list[lease].leaf;
    l->list[lease].leaf = SL_NO_NODE;
    l->n--;
    while (node != SL_NO_NODE) { /* the deepest first: it is evicted before its parent */
        const int32_t parent = kv->tree.nodes[node].parent;
        disown(kv, node);
        node = parent;
    }
}

void sl_kv_end_leases(struct sl_kv *kv, uint64_t now_ns)
{
    struct sl_kv_leases *l = &kv->leases;
    for (int32_t i = 0; i < SL_MAX_KV_LEASES && l->n > 0; i++) {
        if (l->list[i].leaf == SL_NO_NODE || l->list[i].end_ns > now_ns)
            continue;
        l->n_ended++;
        sl_kv_end_lease(kv, i);
    }
}

bool sl_kv_fall_one(struct sl_kv *kv)
{
    const struct sl_kv_claim any = {.any = true};
    const int32_t lease = first_to_fall(kv, &any);
    if (lease < 0)
        return false;
    kv->leases.n_fell++;
    sl_kv_end_lease(kv, lease);
    return true;
}

bool sl_kv_fall(struct sl_kv *kv, int32_t n, const struct sl_kv_claim *claim)
{
    struct sl_kv_leases *l = &kv->leases;
    int32_t most = 0, lease;
    for (int32_t i = 0; i < SL_MAX_KV_LEASES && l->n > 0; i++)
        if (l->list[i].leaf != SL_NO_NODE && yields(&l->list[i], claim))
            most = SL_MIN(most + l->list[i].n_nodes, l->n_kept);
    if (sl_kv_n_available(kv) + most < n)
        return false; /* what falls would be lost for nothing */
    while (!sl_kv_ensure(kv, n) && (lease = first_to_fall(kv, claim)) >= 0) {
        l->n_fell++;
        sl_kv_end_lease(kv, lease);
    }
    return sl_kv_ensure(kv, n);
}
