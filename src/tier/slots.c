/* SPDX-License-Identifier: MIT */
#include "tier/slots.h"

#include "base/check.h"
#include "base/sys.h"
#include "tier/arc.h"

#define MAX_MULTIPLE 4096 /* of the largest stride, that are tried for a chunk */
#define MIN_CHUNKS   16   /* of a tier, where pages are small enough */

/* The share of a chunk that no page of the group with the worst fit can use. */
static double waste_of(int32_t n_groups, const uint64_t *stride, uint64_t chunk)
{
    double worst = 0;
    for (int32_t g = 0; g < n_groups; g++) {
        double waste = (double)(chunk % stride[g]) / (double)chunk;
        worst = SL_MAX(worst, waste);
    }
    return worst;
}

uint64_t sl_chunk_bytes(int32_t n_groups, const uint64_t *stride, uint64_t total, uint64_t most)
{
    uint64_t largest = 0;
    SL_ASSERT(n_groups >= 1 && n_groups <= SL_MAX_KV_GROUPS);
    for (int32_t g = 0; g < n_groups; g++) {
        SL_ASSERT(stride[g] > 0);
        largest = SL_MAX(largest, stride[g]);
    }
    uint64_t best = largest;
    double least = waste_of(n_groups, stride, best);
    for (uint64_t k = 2; k <= MAX_MULTIPLE && k <= most / largest; k++) {
        double waste = waste_of(n_groups, stride, k * largest);
        if (total / (k * largest) < MIN_CHUNKS)
            break;
        if (waste <= least) {
            best = k * largest;
            least = waste;
        }
    }
    return best;
}

int sl_slots_init(struct sl_slots *s, int32_t n_groups, const int32_t *n_per_chunk,
                  uint64_t n_chunks, struct sl_error *err)
{
    int32_t most = 0;
    SL_ASSERT(n_groups >= 1 && n_groups <= SL_MAX_KV_GROUPS);
    *s = (struct sl_slots){.n_groups = n_groups};
    for (int32_t g = 0; g < n_groups; g++) {
        const struct sl_slot_list empty = {SL_NO_SLOT, SL_NO_SLOT};
        SL_ASSERT(n_per_chunk[g] > 0);
        s->groups[g] = (struct sl_slot_group){
            .n_per_chunk = n_per_chunk[g], .free = empty, .idle = {empty, empty}};
        most = SL_MAX(most, n_per_chunk[g]);
    }
    if (n_chunks <= (uint64_t)n_groups)
        return sl_fail(err, SL_EINVAL, "no room for pages of each of %d groups of layers",
                       n_groups);
    if (n_chunks > (uint64_t)(SL_MAX_TIER_PAGES / most))
        return sl_fail(err, SL_EINVAL, "room for more than %d pages", SL_MAX_TIER_PAGES);
    s->n_chunks = s->n_there = s->n_ownerless = (int32_t)n_chunks;
    s->n_stride = most;
    size_t n_slots = (size_t)n_chunks * (size_t)most;
    for (s->n_buckets = 16; s->n_buckets < n_slots;)
        s->n_buckets *= 2;
    s->slots = sl_calloc(n_slots, sizeof *s->slots);
    s->chunks = sl_calloc(n_chunks, sizeof *s->chunks);
    s->buckets = sl_calloc(s->n_buckets, sizeof *s->buckets);
    if (s->slots == NULL || s->chunks == NULL || s->buckets == NULL) {
        sl_slots_deinit(s);
        return sl_fail(err, SL_ENOMEM, "out of memory for the names of %zu pages", n_slots);
    }
    for (uint32_t i = 0; i < s->n_buckets; i++)
        s->buckets[i] = SL_NO_SLOT;
    for (int32_t c = 0; c < s->n_chunks; c++)
        s->chunks[c].group = SL_NO_SLOT;
    int rc = sl_random(&s->seed, sizeof s->seed, err);
    if (rc != 0)
        sl_slots_deinit(s);
    return rc;
}

int sl_slots_use_arc(struct sl_slots *s, struct sl_error *err)
{
    SL_ASSERT(s->n_ownerless == s->n_chunks && s->policy == SL_POLICY_LRU);
    int rc = sl_nametab_init(&s->gone, s->n_chunks * s->n_stride + 1, err);
    if (rc == 0)
        s->policy = SL_POLICY_ARC;
    return rc;
}

void sl_slots_deinit(struct sl_slots *s)
{
    sl_nametab_deinit(&s->gone);
    sl_free(s->buckets);
    sl_free(s->chunks);
    sl_free(s->slots);
    *s = (struct sl_slots){0};
}

void sl_slots_withhold(struct sl_slots *s, int32_t n)
{
    SL_ASSERT(s->n_ownerless == s->n_chunks && n > s->n_groups && n <= s->n_chunks);
    s->n_there = s->n_ownerless = n;
}

void sl_slots_admit(struct sl_slots *s, int32_t n)
{
    SL_ASSERT(n > 0 && n <= s->n_chunks - s->n_there);
    s->n_there += n;
    s->n_ownerless += n;
}

/* ---- lists of free and of idle slots ---- */

static void list_append(struct sl_slots *s, struct sl_slot_list *l, int32_t slot)
{
    struct sl_slot *p = &s->slots[slot];
    p->older = l->newest;
    p->newer = SL_NO_SLOT;
    if (l->newest != SL_NO_SLOT)
        s->slots[l->newest].newer = slot;
    else
        l->oldest = slot;
    l->newest = slot;
}

static void list_remove(struct sl_slots *s, struct sl_slot_list *l, int32_t slot)
{
    const struct sl_slot *p = &s->slots[slot];
    SL_ASSERT(p->older != SL_NO_SLOT || l->oldest == slot);
    SL_ASSERT(p->newer != SL_NO_SLOT || l->newest == slot);
    if (p->older != SL_NO_SLOT)
        s->slots[p->older].newer = p->newer;
    else
        l->oldest = p->newer;
    if (p->newer != SL_NO_SLOT)
        s->slots[p->newer].older = p->older;
    else
        l->newest = p->older;
}

static struct sl_slot_group *group_of(struct sl_slots *s, int32_t slot)
{
    SL_ASSERT(slot >= 0 && slot < s->n_chunks * s->n_stride);
    int32_t g = sl_slot_group(s, slot);
    SL_ASSERT(g >= 0 && g < s->n_groups);
    return &s->groups[g];
}

/* ---- the table ---- */

static int32_t *bucket_of(const struct sl_slots *s, const struct sl_hash128 *name, int32_t group)
{
    uint64_t h = sl_mix64(sl_mix64(name->lo ^ s->seed) + name->hi + (uint64_t)group);
    return &s->buckets[h & (s->n_buckets - 1)];
}

int32_t sl_slots_find(const struct sl_slots *s, const struct sl_store_key *key)
{
    SL_ASSERT(key->group >= 0 && key->group < s->n_groups);
    int32_t at = *bucket_of(s, &key->name, key->group);
    for (; at != SL_NO_SLOT; at = s->slots[at].next) {
        const struct sl_slot *p = &s->slots[at];
        SL_DCHECK(p->state != SL_SLOT_FREE);
        if (p->name.lo == key->name.lo && p->name.hi == key->name.hi &&
            sl_slot_group(s, at) == key->group)
            break;
    }
    return at;
}

static void table_add(struct sl_slots *s, int32_t slot)
{
    int32_t *head = bucket_of(s, &s->slots[slot].name, sl_slot_group(s, slot));
    s->slots[slot].next = *head;
    *head = slot;
}

static void table_remove(struct sl_slots *s, int32_t slot)
{
    int32_t *at = bucket_of(s, &s->slots[slot].name, sl_slot_group(s, slot));
    while (*at != slot) {
        SL_ASSERT(*at != SL_NO_SLOT);
        at = &s->slots[*at].next;
    }
    *at = s->slots[slot].next;
}

/* ---- chunks ---- */

void sl_slots_assign(struct sl_slots *s, int32_t chunk, int32_t group)
{
    SL_ASSERT(chunk >= 0 && chunk < s->n_there && group >= 0 && group < s->n_groups);
    SL_ASSERT(s->chunks[chunk].group == SL_NO_SLOT && s->n_ownerless > 0);
    s->chunks[chunk] = (struct sl_chunk){.group = group};
    s->groups[group].n_chunks++;
    s->n_ownerless--;
    s->n_empty++;
    for (int32_t i = 0; i < s->groups[group].n_per_chunk; i++) {
        int32_t slot = chunk * s->n_stride + i;
        s->slots[slot] = (struct sl_slot){.next = SL_NO_SLOT};
        list_append(s, &s->groups[group].free, slot);
    }
}

/* A page more or less in the chunk, and in its list. */
static void count_used(struct sl_slots *s, int32_t slot, int32_t by)
{
    struct sl_chunk *c = &s->chunks[sl_slot_chunk(s, slot)];
    s->n_empty -= c->n_used == 0;
    c->n_used += by;
    s->n_empty += c->n_used == 0;
    s->groups[c->group].n_pages[s->slots[slot].list] += by;
    SL_ASSERT(s->groups[c->group].n_pages[s->slots[slot].list] >= 0);
    SL_ASSERT(c->n_used >= 0 && c->n_used <= s->groups[c->group].n_per_chunk);
}

static struct sl_slot_list *idle_of(struct sl_slots *s, int32_t slot)
{
    return &group_of(s, slot)->idle[s->slots[slot].list];
}

/* Of an idle slot. It is free afterwards, in no list. */
static void evict(struct sl_slots *s, int32_t slot)
{
    struct sl_slot *p = &s->slots[slot];
    const struct sl_store_key key = {p->name, sl_slot_group(s, slot)};
    SL_ASSERT(p->state == SL_SLOT_READY && p->n_holds == 0);
    list_remove(s, idle_of(s, slot), slot);
    table_remove(s, slot);
    count_used(s, slot, -1);
    p->state = SL_SLOT_FREE;
    s->n_evicted++;
    if (s->news != NULL)
        sl_news_went(s->news, slot, &key);
    sl_arc_remember(s, &key, p->list);
}

/* Takes a chunk from its group, with the pages in it. */
static void take_back(struct sl_slots *s, int32_t chunk)
{
    struct sl_chunk *c = &s->chunks[chunk];
    const int32_t group = c->group;
    SL_ASSERT(group != SL_NO_SLOT && c->n_held == 0);
    struct sl_slot_group *g = &s->groups[group];
    for (int32_t i = 0; i < g->n_per_chunk; i++) {
        int32_t slot = chunk * s->n_stride + i;
        if (s->slots[slot].state == SL_SLOT_FREE)
            list_remove(s, &g->free, slot);
        else
            evict(s, slot);
    }
    SL_ASSERT(c->n_used == 0);
    s->n_empty--;
    s->n_ownerless++;
    c->group = SL_NO_SLOT;
    g->n_chunks--;
    sl_arc_trim(s, group);
}

/* The first chunk that nobody has; or, of other groups than this one, the first without a page, or
 * one of which nothing is held. */
static int32_t find_chunk(const struct sl_slots *s, int32_t group)
{
    int32_t empty = SL_NO_SLOT, unheld = SL_NO_SLOT;
    for (int32_t c = 0; c < s->n_there; c++) {
        const struct sl_chunk *p = &s->chunks[c];
        if (p->group == SL_NO_SLOT)
            return c;
        if (p->group != group && p->n_used == 0 && empty == SL_NO_SLOT)
            empty = c;
        if (p->group != group && p->n_held == 0)
            unheld = c;
    }
    return empty != SL_NO_SLOT ? empty : unheld;
}

static int32_t pop_free(struct sl_slots *s, int32_t group)
{
    int32_t slot = s->groups[group].free.oldest;
    if (slot != SL_NO_SLOT)
        list_remove(s, &s->groups[group].free, slot);
    return slot;
}

static int32_t pop_free_of(struct sl_slots *s, int32_t chunk, int32_t group)
{
    if (s->chunks[chunk].group != SL_NO_SLOT)
        take_back(s, chunk);
    sl_slots_assign(s, chunk, group);
    return pop_free(s, group);
}

/* The slot of each group that would go first, and of these the one that was used least recently;
 * between equals the group's own. */
static int32_t oldest_idle(const struct sl_slots *s, int32_t group, int32_t own)
{
    int32_t oldest = own;
    for (int32_t g = 0; g < s->n_groups; g++) {
        int32_t slot = g == group ? own : s->groups[g].idle[sl_arc_victim(s, g, NULL)].oldest;
        if (slot != SL_NO_SLOT &&
            (oldest == SL_NO_SLOT || s->slots[slot].used < s->slots[oldest].used))
            oldest = slot;
    }
    return oldest;
}

/* A slot of the group that is free and in no list. */
static int32_t find_room(struct sl_slots *s, int32_t group, const struct sl_arrival *arrival)
{
    int32_t slot = pop_free(s, group), chunk = SL_NO_SLOT;
    if (slot != SL_NO_SLOT)
        return slot;
    if (s->n_ownerless > 0 || s->n_empty > 0)
        chunk = find_chunk(s, group);
    if (chunk != SL_NO_SLOT && s->chunks[chunk].n_used == 0)
        return pop_free_of(s, chunk, group);
    const int32_t own = s->groups[group].idle[sl_arc_victim(s, group, arrival)].oldest;
    const int32_t oldest = oldest_idle(s, group, own);
    if (oldest == SL_NO_SLOT)
        return SL_NO_SLOT;
    chunk = sl_slot_chunk(s, oldest);
    if (oldest != own && s->chunks[chunk].n_held == 0)
        return pop_free_of(s, chunk, group);
    if (own != SL_NO_SLOT) {
        evict(s, own);
        return own;
    }
    chunk = find_chunk(s, group); /* its oldest page's chunk is in use: another one's place */
    return chunk != SL_NO_SLOT ? pop_free_of(s, chunk, group) : SL_NO_SLOT;
}

/* ---- slots ---- */

int32_t sl_slots_take(struct sl_slots *s, const struct sl_store_key *key)
{
    SL_ASSERT(key->group >= 0 && key->group < s->n_groups);
    SL_DCHECK(sl_slots_find(s, key) == SL_NO_SLOT);
    /* If there is no room now, its last use is forgotten with it. */
    const struct sl_arrival arrival = sl_arc_arrive(s, key);
    int32_t slot = find_room(s, key->group, &arrival);
    if (slot == SL_NO_SLOT)
        return slot;
    SL_ASSERT(s->slots[slot].state == SL_SLOT_FREE && sl_slot_group(s, slot) == key->group);
    s->slots[slot] = (struct sl_slot){.name = key->name,
                                      .used = ++s->n_uses,
                                      .n_holds = 1,
                                      .state = SL_SLOT_OPEN,
                                      .list = arrival.again};
    s->chunks[sl_slot_chunk(s, slot)].n_held++;
    count_used(s, slot, 1);
    table_add(s, slot);
    sl_arc_trim(s, key->group);
    return slot;
}

void sl_slots_ready(struct sl_slots *s, int32_t slot)
{
    SL_ASSERT(s->slots[slot].state == SL_SLOT_OPEN && s->slots[slot].n_holds > 0);
    s->slots[slot].state = SL_SLOT_READY;
    if (s->news != NULL)
        sl_news_came(s->news, slot);
}

void sl_slots_hold(struct sl_slots *s, int32_t slot)
{
    struct sl_slot *p = &s->slots[slot];
    SL_ASSERT(p->state != SL_SLOT_FREE);
    if (p->n_holds++ > 0)
        return;
    SL_ASSERT(p->state == SL_SLOT_READY);
    list_remove(s, idle_of(s, slot), slot);
    s->chunks[sl_slot_chunk(s, slot)].n_held++;
}

void sl_slots_release(struct sl_slots *s, int32_t slot)
{
    struct sl_slot *p = &s->slots[slot];
    SL_ASSERT(p->n_holds > 0);
    p->used = ++s->n_uses;
    if (--p->n_holds > 0)
        return;
    SL_ASSERT(p->state == SL_SLOT_READY);
    list_append(s, idle_of(s, slot), slot);
    s->chunks[sl_slot_chunk(s, slot)].n_held--;
}

void sl_slots_touch(struct sl_slots *s, int32_t slot)
{
    struct sl_slot *p = &s->slots[slot];
    SL_ASSERT(p->state != SL_SLOT_FREE);
    p->used = ++s->n_uses;
    if (p->n_holds > 0)
        return;
    struct sl_slot_list *idle = idle_of(s, slot);
    list_remove(s, idle, slot);
    list_append(s, idle, slot);
}

void sl_slots_again(struct sl_slots *s, int32_t slot)
{
    struct sl_slot *p = &s->slots[slot];
    struct sl_slot_group *g = group_of(s, slot);
    if (s->policy == SL_POLICY_ARC && p->list == 0) {
        if (p->n_holds == 0)
            list_remove(s, &g->idle[0], slot);
        g->n_pages[0]--;
        g->n_pages[1]++;
        p->list = 1;
        if (p->n_holds == 0)
            list_append(s, &g->idle[1], slot);
    }
    sl_slots_touch(s, slot);
}

void sl_slots_rename(struct sl_slots *s, int32_t slot, const struct sl_hash128 *name)
{
    SL_ASSERT(s->slots[slot].state != SL_SLOT_FREE && s->slots[slot].n_holds > 0);
    table_remove(s, slot);
    s->slots[slot].name = *name;
    table_add(s, slot);
}

void sl_slots_drop(struct sl_slots *s, int32_t slot)
{
    struct sl_slot *p = &s->slots[slot];
    const struct sl_store_key key = {p->name, sl_slot_group(s, slot)};
    SL_ASSERT(p->state != SL_SLOT_FREE && p->n_holds == 1);
    if (s->news != NULL)
        sl_news_went(s->news, slot, &key);
    table_remove(s, slot);
    count_used(s, slot, -1);
    s->chunks[sl_slot_chunk(s, slot)].n_held--;
    p->state = SL_SLOT_FREE;
    p->n_holds = 0;
    list_append(s, &group_of(s, slot)->free, slot);
}

void sl_slots_place(struct sl_slots *s, int32_t slot, const struct sl_hash128 *name, uint64_t used)
{
    struct sl_slot_group *g = group_of(s, slot);
    SL_ASSERT(s->slots[slot].state == SL_SLOT_FREE);
    SL_ASSERT(g->idle[0].newest == SL_NO_SLOT || s->slots[g->idle[0].newest].used <= used);
    list_remove(s, &g->free, slot);
    s->slots[slot] = (struct sl_slot){.name = *name, .used = used, .state = SL_SLOT_READY};
    s->n_uses = SL_MAX(s->n_uses, used);
    count_used(s, slot, 1);
    table_add(s, slot);
    list_append(s, &g->idle[0], slot);
}
