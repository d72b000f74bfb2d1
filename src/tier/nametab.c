/* SPDX-License-Identifier: MIT */
#include "tier/nametab.h"

#include "base/check.h"
#include "base/sys.h"

int sl_nametab_init(struct sl_nametab *t, int32_t n_max, struct sl_error *err)
{
    SL_ASSERT(n_max > 0 && n_max <= 2 * SL_MAX_TIER_PAGES);
    *t = (struct sl_nametab){.n_max = n_max, .n_buckets = 16};
    while (t->n_buckets < (uint32_t)n_max)
        t->n_buckets *= 2;
    t->names = sl_calloc((size_t)n_max, sizeof *t->names);
    t->buckets = sl_calloc(t->n_buckets, sizeof *t->buckets);
    int rc = 0;
    if (t->names == NULL || t->buckets == NULL)
        rc = sl_fail(err, SL_ENOMEM, "out of memory for the names of %d pages", n_max);
    if (rc == 0)
        rc = sl_random(&t->seed, sizeof t->seed, err);
    if (rc != 0) {
        sl_nametab_deinit(t);
        return rc;
    }
    for (uint32_t i = 0; i < t->n_buckets; i++)
        t->buckets[i] = SL_NO_NAME;
    for (int32_t i = 0; i < n_max; i++)
        t->names[i].next = i + 1 < n_max ? i + 1 : SL_NO_NAME;
    for (int32_t i = 0; i < SL_MAX_NAME_LISTS; i++)
        t->lists[i] = (struct sl_nametab_list){SL_NO_NAME, SL_NO_NAME, 0};
    return 0;
}

void sl_nametab_deinit(struct sl_nametab *t)
{
    sl_free(t->buckets);
    sl_free(t->names);
    *t = (struct sl_nametab){0};
}

static int32_t *bucket_of(const struct sl_nametab *t, const struct sl_store_key *key)
{
    uint64_t h = sl_mix64(sl_mix64(key->name.lo ^ t->seed) + key->name.hi + (uint64_t)key->group);
    return &t->buckets[h & (t->n_buckets - 1)];
}

int32_t sl_nametab_find(const struct sl_nametab *t, const struct sl_store_key *key)
{
    int32_t at = *bucket_of(t, key);
    for (; at != SL_NO_NAME; at = t->names[at].next) {
        const struct sl_store_key *k = &t->names[at].key;
        if (k->name.lo == key->name.lo && k->name.hi == key->name.hi && k->group == key->group)
            break;
    }
    return at;
}

static void append(struct sl_nametab *t, int32_t i)
{
    struct sl_nametab_entry *p = &t->names[i];
    struct sl_nametab_list *l = &t->lists[p->list];
    p->older = l->newest;
    p->newer = SL_NO_NAME;
    *(l->newest != SL_NO_NAME ? &t->names[l->newest].newer : &l->oldest) = i;
    l->newest = i;
    l->n++;
}

static void unlink_name(struct sl_nametab *t, int32_t i)
{
    const struct sl_nametab_entry *p = &t->names[i];
    struct sl_nametab_list *l = &t->lists[p->list];
    SL_ASSERT(l->n > 0 && (p->older != SL_NO_NAME || l->oldest == i));
    SL_ASSERT(p->newer != SL_NO_NAME || l->newest == i);
    *(p->older != SL_NO_NAME ? &t->names[p->older].newer : &l->oldest) = p->newer;
    *(p->newer != SL_NO_NAME ? &t->names[p->newer].older : &l->newest) = p->older;
    l->n--;
}

int32_t sl_nametab_add(struct sl_nametab *t, const struct sl_store_key *key, int32_t list)
{
    int32_t i = t->first_free, *head = bucket_of(t, key);
    SL_ASSERT(t->n < t->n_max && i != SL_NO_NAME && list >= 0 && list < SL_MAX_NAME_LISTS);
    SL_DCHECK(sl_nametab_find(t, key) == SL_NO_NAME);
    t->first_free = t->names[i].next;
    t->names[i] = (struct sl_nametab_entry){.key = *key, .next = *head, .list = list};
    *head = i;
    append(t, i);
    t->n++;
    return i;
}

void sl_nametab_renew(struct sl_nametab *t, int32_t i)
{
    SL_ASSERT(i >= 0 && i < t->n_max);
    unlink_name(t, i);
    append(t, i);
}

void sl_nametab_remove(struct sl_nametab *t, int32_t i)
{
    SL_ASSERT(i >= 0 && i < t->n_max && t->n > 0);
    int32_t *at = bucket_of(t, &t->names[i].key);
    while (*at != i) {
        SL_ASSERT(*at != SL_NO_NAME);
        at = &t->names[*at].next;
    }
    *at = t->names[i].next;
    unlink_name(t, i);
    t->names[i].next = t->first_free;
    t->first_free = i;
    t->n--;
}
