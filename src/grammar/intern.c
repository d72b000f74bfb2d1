/* SPDX-License-Identifier: MIT
 * intern.c - a hash table that grows without a pause.
 */
#include "grammar/intern.h"

#include "base/sys.h"

#include <string.h>

enum { FIRST = 1024, MOVES = 8 }; /* MOVES: slots of the old table, for each number added */
_Static_assert((int)MOVES >= 4, "the old table is empty before the next one is needed");

static void put(struct sl_intern *t, uint32_t hash, uint32_t id)
{
    uint32_t place = hash;
    SL_ASSERT(id != 0 && t->n < t->cap); /* a free place ends every search */
    while (t->slots[place & (t->cap - 1)].id != 0)
        place++;
    t->slots[place & (t->cap - 1)] = (struct sl_intern_slot){hash, id};
}

static void move(struct sl_intern *t, uint32_t n)
{
    SL_ASSERT(t->n_moved <= t->old_cap);
    for (; n > 0 && t->n_moved < t->old_cap; n--) {
        const struct sl_intern_slot *s = &t->old[t->n_moved++];
        if (s->id != 0)
            put(t, s->hash, s->id);
    }
    if (t->n_moved < t->old_cap)
        return;
    sl_free(t->old);
    t->old = NULL;
    t->old_cap = t->n_moved = 0;
}

bool sl_intern_room(struct sl_intern *t)
{
    SL_ASSERT(t->n <= t->cap / 2 && t->cap <= UINT32_MAX / 2);
    if (t->n < t->cap / 2)
        return true;
    SL_ASSERT(t->old == NULL);
    const uint32_t cap = t->cap == 0 ? FIRST : t->cap * 2;
    struct sl_intern_slot *slots = sl_calloc(cap, sizeof *slots);
    if (slots == NULL)
        return false;
    t->old = t->slots;
    t->old_cap = t->cap;
    t->slots = slots;
    t->cap = cap;
    return true;
}

void sl_intern_add(struct sl_intern *t, const struct sl_intern_at *at, uint32_t id)
{
    SL_ASSERT(t->n < t->cap / 2);
    put(t, at->hash, id);
    t->n++;
    if (t->old != NULL)
        move(t, MOVES);
}

void sl_intern_deinit(struct sl_intern *t)
{
    sl_free(t->slots);
    sl_free(t->old);
    memset(t, 0, sizeof *t);
}
