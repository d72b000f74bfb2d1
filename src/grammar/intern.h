/* SPDX-License-Identifier: MIT
 * intern.h - a hash table of numbers, by which parts of an automaton are found again.
 *
 * It grows a little with every number that is added: a table of 30,000 that is hashed anew at once
 * takes longer than most masks. Numbers are not 0, and stay. Not thread-safe.
 */
#ifndef SL_GRAMMAR_INTERN_H
#define SL_GRAMMAR_INTERN_H

#include "base/check.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sl_intern_slot {
    uint32_t hash, id; /* id 0: free */
};

struct sl_intern {
    struct sl_intern_slot *slots, *old; /* old: those from n_moved on are not in slots yet */
    uint32_t cap, old_cap;              /* powers of two */
    uint32_t n, n_moved;
};

struct sl_intern_at { /* where a search is */
    uint32_t hash, place;
    bool in_old;
};

static inline struct sl_intern_at sl_intern_find(uint64_t hash)
{
    return (struct sl_intern_at){(uint32_t)(hash ^ hash >> 32), (uint32_t)(hash ^ hash >> 32),
                                 false};
}

/* One after another the numbers that were added with the hash, some perhaps twice; then 0. */
static inline uint32_t sl_intern_next(const struct sl_intern *t, struct sl_intern_at *at)
{
    for (;;) {
        const struct sl_intern_slot *slots = at->in_old ? t->old : t->slots;
        const uint32_t mask = (at->in_old ? t->old_cap : t->cap) - 1;
        while (slots != NULL && slots[at->place & mask].id != 0) {
            const struct sl_intern_slot *s = &slots[at->place++ & mask];
            if (s->hash == at->hash)
                return s->id;
        }
        if (at->in_old || t->old == NULL)
            return 0;
        at->in_old = true;
        at->place = at->hash;
    }
}

/* Room for one more; false: out of memory. */
SL_MUST_CHECK bool sl_intern_room(struct sl_intern *t);
/* Where there is room. at: of a search for it. */
void sl_intern_add(struct sl_intern *t, const struct sl_intern_at *at, uint32_t id);
void sl_intern_deinit(struct sl_intern *t);

#endif
