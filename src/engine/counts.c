/* SPDX-License-Identifier: MIT */
#include "engine/counts.h"

#include "base/check.h"
#include "base/err.h"
#include "base/hash.h"

#include <string.h>

#define FIRST_SLOTS 8u

uint32_t sl_counts_slots(int64_t n_tokens, int32_t n_vocab)
{
    int64_t n_distinct = SL_MIN(n_tokens, n_vocab);
    uint32_t n = 8;
    while (n < 2 * n_distinct)
        n *= 2;
    return n;
}

/* The table of slots for what is there, of n_slots; its room is cleared only as it grows into it.
 */
static void counts_rehash(struct sl_counts *c, uint32_t n_slots)
{
    SL_ASSERT(sl_is_pow2(n_slots) && n_slots <= c->n_slots && (uint32_t)c->n <= n_slots / 2);
    c->mask = n_slots - 1;
    memset(c->slots, 0, n_slots * sizeof *c->slots);
    for (int32_t j = 0; j < c->n; j++) {
        uint32_t i = (uint32_t)sl_mix64((uint64_t)c->entries[j].id + 1) & c->mask;
        while (c->slots[i] != 0)
            i = (i + 1) & c->mask;
        c->slots[i] = j + 1;
    }
}

void sl_counts_init(struct sl_counts *c, struct sl_count *entries, int32_t *slots, uint32_t n_slots)
{
    SL_ASSERT(sl_is_pow2(n_slots));
    *c = (struct sl_counts){.entries = entries, .slots = slots, .n_slots = n_slots};
    counts_rehash(c, SL_MIN(n_slots, FIRST_SLOTS));
}

void sl_counts_copy(struct sl_counts *c, const struct sl_counts *from)
{
    SL_ASSERT(from->mask < c->n_slots && c->n == 0);
    c->n = from->n;
    c->mask = from->mask;
    memcpy(c->entries, from->entries, (size_t)c->n * sizeof *c->entries);
    memcpy(c->slots, from->slots, ((size_t)c->mask + 1) * sizeof *c->slots);
}

/* The slot of an id, or the empty one where it would be. */
static uint32_t counts_slot(const struct sl_counts *c, int32_t id)
{
    SL_DCHECK(id >= 0);
    uint32_t i = (uint32_t)sl_mix64((uint64_t)id + 1) & c->mask;
    while (c->slots[i] != 0 && c->entries[c->slots[i] - 1].id != id)
        i = (i + 1) & c->mask;
    return i;
}

bool sl_counts_has(const struct sl_counts *c, int32_t id)
{
    return c->slots[counts_slot(c, id)] != 0;
}

void sl_counts_add(struct sl_counts *c, int32_t id, int32_t n_out)
{
    /* At least half of the slots stay empty, so that a search ends soon. */
    if ((uint32_t)c->n > c->mask / 2 && c->mask + 1 < c->n_slots)
        counts_rehash(c, 2 * (c->mask + 1));
    uint32_t i = counts_slot(c, id);
    if (c->slots[i] == 0) {
        SL_ASSERT((uint32_t)c->n <= c->mask / 2);
        c->entries[c->n] = (struct sl_count){.id = id};
        c->slots[i] = ++c->n;
    }
    SL_ASSERT(n_out >= 0 && c->slots[i] <= c->n);
    c->entries[c->slots[i] - 1].n_out += n_out;
}
