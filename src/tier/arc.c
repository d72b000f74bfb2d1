/* SPDX-License-Identifier: MIT */
#include "tier/arc.h"

#include "base/check.h"

static int32_t gone_list(int32_t group, int list)
{
    SL_ASSERT(list == 0 || list == 1);
    return 2 * group + list;
}

static int32_t n_gone(const struct sl_slots *s, int32_t group, int list)
{
    return s->gone.lists[gone_list(group, list)].n;
}

static int32_t capacity_of(const struct sl_slots *s, int32_t group)
{
    return s->groups[group].n_chunks * s->groups[group].n_per_chunk;
}

struct sl_arrival sl_arc_arrive(struct sl_slots *s, const struct sl_store_key *key)
{
    struct sl_slot_group *g = &s->groups[key->group];
    if (s->policy != SL_POLICY_ARC)
        return (struct sl_arrival){0};
    const int32_t at = sl_nametab_find(&s->gone, key);
    if (at == SL_NO_NAME)
        return (struct sl_arrival){0};
    const bool two = s->gone.names[at].list == gone_list(key->group, 1);
    const double b1 = n_gone(s, key->group, 0), b2 = n_gone(s, key->group, 1);
    if (two)
        g->target = SL_MAX(0.0, g->target - SL_MAX(1.0, b1 / b2));
    else
        g->target = SL_MIN((double)capacity_of(s, key->group), g->target + SL_MAX(1.0, b2 / b1));
    sl_nametab_remove(&s->gone, at);
    return (struct sl_arrival){.again = true, .was_in_two = two};
}

int sl_arc_victim(const struct sl_slots *s, int32_t group, const struct sl_arrival *arrival)
{
    const struct sl_slot_group *g = &s->groups[group];
    SL_ASSERT(group >= 0 && group < s->n_groups);
    if (s->policy != SL_POLICY_ARC)
        return 0;
    const double t1 = g->n_pages[0];
    const bool back = arrival != NULL && arrival->was_in_two;
    const bool first =
        g->n_pages[1] == 0 || t1 > g->target || (back && g->n_pages[0] > 0 && !(t1 < g->target));
    /* What is held cannot go: then the other list's oldest. */
    return g->idle[!first].oldest != SL_NO_SLOT ? !first : first;
}

static void forget_oldest(struct sl_slots *s, int32_t group, int list)
{
    SL_ASSERT(n_gone(s, group, list) > 0);
    sl_nametab_remove(&s->gone, s->gone.lists[gone_list(group, list)].oldest);
}

void sl_arc_remember(struct sl_slots *s, const struct sl_store_key *key, int list)
{
    if (s->policy != SL_POLICY_ARC)
        return;
    if (s->gone.n == s->gone.n_max) { /* other groups remember as much as they may */
        if (n_gone(s, key->group, 0) + n_gone(s, key->group, 1) == 0)
            return;
        forget_oldest(s, key->group, n_gone(s, key->group, 0) == 0);
    }
    (void)sl_nametab_add(&s->gone, key, gone_list(key->group, list));
}

void sl_arc_trim(struct sl_slots *s, int32_t group)
{
    struct sl_slot_group *g = &s->groups[group];
    const int32_t c = capacity_of(s, group);
    SL_ASSERT(group >= 0 && group < s->n_groups && c >= 0);
    if (s->policy != SL_POLICY_ARC)
        return;
    g->target = SL_MIN(g->target, (double)c);
    while (n_gone(s, group, 0) > 0 && g->n_pages[0] + n_gone(s, group, 0) > c)
        forget_oldest(s, group, 0);
    const int32_t most = SL_MIN(2 * c - g->n_pages[0] - g->n_pages[1], c);
    while (n_gone(s, group, 0) + n_gone(s, group, 1) > SL_MAX(most, 0))
        forget_oldest(s, group, n_gone(s, group, 1) > 0);
}

int sl_arc_check(const struct sl_slots *s, int32_t group, struct sl_error *err)
{
    const struct sl_slot_group *g = &s->groups[group];
    const int32_t c = capacity_of(s, group), b1 = n_gone(s, group, 0), b2 = n_gone(s, group, 1);
    if (g->n_pages[0] + b1 > c || g->n_pages[0] + g->n_pages[1] + b1 + b2 > 2 * c || b1 + b2 > c)
        return sl_fail(err, SL_EINTERNAL, "group %d remembers too much", group);
    if (!(g->target >= 0 && g->target <= c))
        return sl_fail(err, SL_EINTERNAL, "group %d: a target of %g", group, g->target);
    for (int list = 0; list < 2; list++) {
        int32_t at = s->gone.lists[gone_list(group, list)].oldest;
        for (; at != SL_NO_NAME; at = s->gone.names[at].newer)
            if (sl_slots_find(s, &s->gone.names[at].key) != SL_NO_SLOT)
                return sl_fail(err, SL_EINTERNAL, "a page of group %d is there and gone", group);
    }
    return 0;
}
