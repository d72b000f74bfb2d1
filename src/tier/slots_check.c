/* SPDX-License-Identifier: MIT */
#include "tier/arc.h"

/* Counts a list, whose slots all belong to the group and are in one state, by age if idle. */
static int check_list(const struct sl_slots *s, int32_t group, const struct sl_slot_list *l,
                      enum sl_slot_state state, int64_t *n, struct sl_error *err)
{
    int32_t last = SL_NO_SLOT;
    const int which = l == &s->groups[group].idle[1];
    for (int32_t at = l->oldest; at != SL_NO_SLOT; at = s->slots[at].newer) {
        const struct sl_slot *p = &s->slots[at];
        if (sl_slot_group(s, at) != group || p->state != state || p->n_holds != 0 ||
            (state != SL_SLOT_FREE && p->list != which))
            return sl_fail(err, SL_EINTERNAL, "slot %d is in a wrong list", at);
        if (p->older != last || ++*n > (int64_t)s->n_chunks * s->n_stride)
            return sl_fail(err, SL_EINTERNAL, "slot %d: broken links", at);
        if (state == SL_SLOT_READY && last != SL_NO_SLOT && s->slots[last].used > p->used)
            return sl_fail(err, SL_EINTERNAL, "slot %d is older than the one before it", at);
        last = at;
    }
    return last == l->newest ? 0 : sl_fail(err, SL_EINTERNAL, "a list's end is wrong");
}

/* Counts a chunk's slots against what it says of itself; adds the idle and the free ones. */
static int check_chunk(const struct sl_slots *s, int32_t chunk, int64_t *n_idle, int64_t *n_free,
                       struct sl_error *err)
{
    const struct sl_chunk *c = &s->chunks[chunk];
    int32_t n_used = 0, n_held = 0, n = s->groups[c->group].n_per_chunk;
    for (int32_t i = 0; i < n; i++) {
        int32_t slot = chunk * s->n_stride + i;
        const struct sl_slot *p = &s->slots[slot];
        struct sl_store_key key = {p->name, c->group};
        n_used += p->state != SL_SLOT_FREE;
        n_held += p->n_holds > 0;
        if (p->state != SL_SLOT_FREE && sl_slots_find(s, &key) != slot)
            return sl_fail(err, SL_EINTERNAL, "slot %d is not found by its name", slot);
        if (p->state == SL_SLOT_OPEN && p->n_holds == 0)
            return sl_fail(err, SL_EINTERNAL, "slot %d is open, and nobody fills it", slot);
    }
    *n_idle += n_used - n_held;
    *n_free += n - n_used;
    if (n_used != c->n_used || n_held != c->n_held)
        return sl_fail(err, SL_EINTERNAL, "chunk %d counts its slots wrong", chunk);
    return 0;
}

int sl_slots_check(const struct sl_slots *s, struct sl_error *err)
{
    int32_t n_ownerless = 0, n_empty = 0;
    int64_t n_used[SL_MAX_KV_GROUPS] = {0}, n_idle[SL_MAX_KV_GROUPS] = {0};
    int64_t n_free[SL_MAX_KV_GROUPS] = {0};
    for (int32_t c = 0; c < s->n_chunks; c++) {
        int32_t g = s->chunks[c].group;
        n_ownerless += g == SL_NO_SLOT && c < s->n_there;
        if (g == SL_NO_SLOT)
            continue;
        if (c >= s->n_there)
            return sl_fail(err, SL_EINTERNAL, "chunk %d is used before it is there", c);
        n_empty += s->chunks[c].n_used == 0;
        n_used[g] += s->chunks[c].n_used;
        int rc = check_chunk(s, c, &n_idle[g], &n_free[g], err);
        if (rc != 0)
            return rc;
    }
    if (n_ownerless != s->n_ownerless || n_empty != s->n_empty)
        return sl_fail(err, SL_EINTERNAL, "chunks are counted wrong");
    for (int32_t g = 0; g < s->n_groups; g++) {
        int64_t n = 0;
        int rc = check_list(s, g, &s->groups[g].idle[0], SL_SLOT_READY, &n, err);
        if (rc == 0)
            rc = check_list(s, g, &s->groups[g].idle[1], SL_SLOT_READY, &n, err);
        if (rc == 0 && n != n_idle[g])
            rc = sl_fail(err, SL_EINTERNAL, "group %d: idle slots are counted wrong", g);
        n = 0;
        if (rc == 0)
            rc = check_list(s, g, &s->groups[g].free, SL_SLOT_FREE, &n, err);
        if (rc == 0 && (n != n_free[g] || (uint64_t)n_used[g] != sl_slots_n_used(s, g)))
            rc = sl_fail(err, SL_EINTERNAL, "group %d: slots are counted wrong", g);
        if (rc == 0 && s->policy == SL_POLICY_ARC)
            rc = sl_arc_check(s, g, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}
