/* SPDX-License-Identifier: MIT */
#include "engine/counts.h"

#include "base/check.h"
#include "base/err.h"
#include "base/hash.h"

uint32_t sl_counts_slots(int64_t n_tokens, int32_t n_vocab)
{
    int64_t n_distinct = SL_MIN(n_tokens, n_vocab);
    uint32_t n = 8;
    while (n < 2 * n_distinct)
        n *= 2;
    return n;
}

void sl_counts_init(struct sl_counts *c, struct sl_count *entries, int32_t *slots, uint32_t n_slots)
{
    SL_ASSERT(sl_is_pow2(n_slots));
    *c = (struct sl_counts){.entries = entries, .slots = slots, .mask = n_slots - 1};
}

void sl_counts_add(struct sl_counts *c, int32_t id, int32_t n_out)
{
    uint32_t i = (uint32_t)sl_mix64((uint64_t)id + 1) & c->mask;
    while (c->slots[i] != 0 && c->entries[c->slots[i] - 1].id != id)
        i = (i + 1) & c->mask;
    if (c->slots[i] == 0) {
        SL_ASSERT((uint32_t)c->n <= c->mask / 2);
        c->entries[c->n] = (struct sl_count){.id = id};
        c->slots[i] = ++c->n;
    }
    c->entries[c->slots[i] - 1].n_out += n_out;
}
