/* SPDX-License-Identifier: MIT
 * slots.h - which page lies where in one tier: a table of names over slots of fixed size.
 *
 * The room of a tier is cut into chunks of one size. A chunk belongs to one group of layers at a
 * time, which cuts it into slots for its pages. Whoever needs a slot gets a free one of its group,
 * else a chunk that nobody has, else the place of the page that was used least recently, or that of
 * the page that ARC chooses (arc.h); among groups the one whose page of that kind is the oldest. If
 * that page is another group's, the whole chunk changes hands, so that groups share the room by
 * what is used and no group's share has to be known.
 *
 * A slot is free; or held by somebody (being filled, read or written); or idle, which means that it
 * may be evicted. Free and idle slots stand in lists of their group, idle ones by their last use.
 *
 * Here are neither bytes nor locks: the owner has one. Nothing is allocated after init.
 */
#ifndef SL_TIER_SLOTS_H
#define SL_TIER_SLOTS_H

#include "tier/nametab.h"
#include "tier/news.h"

#define SL_NO_SLOT (-1)

enum sl_slot_state { SL_SLOT_FREE, SL_SLOT_OPEN, SL_SLOT_READY };

struct sl_slot {
    struct sl_hash128 name;
    uint64_t used;        /* the count of uses at its last one */
    int32_t next;         /* in its bucket */
    int32_t older, newer; /* in the list that it stands in */
    int32_t n_holds;
    uint8_t state; /* enum sl_slot_state; OPEN: the bytes are not there yet */
    uint8_t list;  /* of its group: 1 = it was used again (ARC) */
};

struct sl_chunk {
    int32_t group;  /* SL_NO_SLOT: nobody's */
    int32_t n_used; /* slots with a page */
    int32_t n_held; /* of them, held by somebody */
};

struct sl_slot_list {
    int32_t oldest, newest;
};

struct sl_slot_group {
    int32_t n_per_chunk, n_chunks;
    struct sl_slot_list free, idle[2]; /* idle: of each list */
    int32_t n_pages[2];                /* in each list, held ones too */
    double target;                     /* ARC: pages that the first list should have */
};

struct sl_slots {
    int32_t n_groups, n_chunks;
    int32_t n_there;     /* the first chunks, which may be used */
    int32_t n_stride;    /* slot numbers from one chunk to the next */
    int32_t n_ownerless; /* chunks that nobody has */
    int32_t n_empty;     /* chunks that somebody has without a page in it */
    uint32_t n_buckets;  /* power of two */
    uint64_t seed;       /* of the buckets: nobody chooses names that meet in one */
    uint64_t n_uses, n_evicted;
    enum sl_tier_policy policy;
    struct sl_nametab gone;  /* ARC: pages that were evicted, in two lists of each group */
    struct sl_news *news;    /* NULL: nobody reads which pages came and went */
    struct sl_slot *slots;   /* [n_chunks, n_stride] */
    struct sl_chunk *chunks; /* [n_chunks] */
    int32_t *buckets;        /* [n_buckets] */
    struct sl_slot_group groups[SL_MAX_KV_GROUPS];
};

/* Bytes of a chunk, without what goes on top: a multiple of the largest stride, at most `most` if
 * one page allows it, with the least waste in the groups; and so that `total` has several. */
uint64_t sl_chunk_bytes(int32_t n_groups, const uint64_t *stride, uint64_t total, uint64_t most);

/* SL_EINVAL: fewer chunks than a group each and one more, or too many slots. */
SL_MUST_CHECK int sl_slots_init(struct sl_slots *s, int32_t n_groups, const int32_t *n_per_chunk,
                                uint64_t n_chunks, struct sl_error *err);
void sl_slots_deinit(struct sl_slots *s);
/* Right after init: what goes is chosen by ARC. SL_ENOMEM, SL_EIO. */
SL_MUST_CHECK int sl_slots_use_arc(struct sl_slots *s, struct sl_error *err);
/* Right after init: only the first n chunks may be used, until more are admitted. */
void sl_slots_withhold(struct sl_slots *s, int32_t n);
void sl_slots_admit(struct sl_slots *s, int32_t n); /* so many more */

int32_t sl_slots_find(const struct sl_slots *s, const struct sl_store_key *key); /* or SL_NO_SLOT */
/* A slot for a page that is not there: OPEN, held once. SL_NO_SLOT: too much is held. */
int32_t sl_slots_take(struct sl_slots *s, const struct sl_store_key *key);
void sl_slots_ready(struct sl_slots *s, int32_t slot);   /* its bytes are there */
void sl_slots_hold(struct sl_slots *s, int32_t slot);    /* not to be evicted now */
void sl_slots_release(struct sl_slots *s, int32_t slot); /* a use */
void sl_slots_touch(struct sl_slots *s, int32_t slot);   /* a use too */
/* A later request came upon the page: a use, of which ARC takes note. */
void sl_slots_again(struct sl_slots *s, int32_t slot);
/* From now on the page is another one: nobody finds it by its name. */
void sl_slots_rename(struct sl_slots *s, int32_t slot, const struct sl_hash128 *name);
/* Forgets the page of a slot that the caller alone holds. */
void sl_slots_drop(struct sl_slots *s, int32_t slot);

/* To put in what a tier has already: a chunk for a group, then its pages, the least recently used
 * one first. */
void sl_slots_assign(struct sl_slots *s, int32_t chunk, int32_t group);
void sl_slots_place(struct sl_slots *s, int32_t slot, const struct sl_hash128 *name, uint64_t used);

static inline int32_t sl_slot_chunk(const struct sl_slots *s, int32_t slot)
{
    return slot / s->n_stride;
}

static inline int32_t sl_slot_group(const struct sl_slots *s, int32_t slot)
{
    return s->chunks[slot / s->n_stride].group;
}

static inline uint64_t sl_slots_n_used(const struct sl_slots *s, int32_t group)
{
    return (uint64_t)s->groups[group].n_pages[0] + (uint64_t)s->groups[group].n_pages[1];
}

/* Says what does not hold; 0 = all is well. For tests: looks at everything. */
SL_MUST_CHECK int sl_slots_check(const struct sl_slots *s, struct sl_error *err);

#endif
