/* SPDX-License-Identifier: MIT
 * nametab.h - a bounded table of names of pages, in lists by their last use: pages that are gone
 * (arc.h), and how often blocks were seen before they are stored (engine/tiers.c).
 *
 * A name stands in one list. Who adds one to a full table removes another first. Nothing is
 * allocated after init; the owner has the lock.
 */
#ifndef SL_TIER_NAMETAB_H
#define SL_TIER_NAMETAB_H

#include "tier/store.h"

#define SL_NO_NAME        (-1)
#define SL_MAX_NAME_LISTS (2 * SL_MAX_KV_GROUPS)

struct sl_nametab_entry {
    struct sl_store_key key;
    int32_t next;         /* in its bucket; of a free entry, among those */
    int32_t older, newer; /* in its list */
    int32_t list;
    uint32_t n_seen; /* the owner's; 0 at first */
};

struct sl_nametab_list {
    int32_t oldest, newest, n;
};

struct sl_nametab {
    int32_t n, n_max, first_free;
    uint32_t n_buckets; /* power of two */
    uint64_t seed;
    struct sl_nametab_entry *names; /* [n_max] */
    int32_t *buckets;               /* [n_buckets] */
    struct sl_nametab_list lists[SL_MAX_NAME_LISTS];
};

/* SL_ENOMEM, SL_EIO. */
SL_MUST_CHECK int sl_nametab_init(struct sl_nametab *t, int32_t n_max, struct sl_error *err);
void sl_nametab_deinit(struct sl_nametab *t);

int32_t sl_nametab_find(const struct sl_nametab *t,
                        const struct sl_store_key *key); /* SL_NO_NAME */
/* The newest of a list; it is not there yet, and there is room. */
int32_t sl_nametab_add(struct sl_nametab *t, const struct sl_store_key *key, int32_t list);
void sl_nametab_renew(struct sl_nametab *t, int32_t i); /* it becomes the newest of its list */
void sl_nametab_remove(struct sl_nametab *t, int32_t i);

#endif
