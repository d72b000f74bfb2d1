/* SPDX-License-Identifier: MIT
 * counts.h - which tokens a sequence has, and how often it generated them, for the penalties.
 *
 * A hash table in memory of the request, so that a penalty costs the distinct tokens of one
 * sequence and not the vocabulary. There is room for the longest the sequence may become, but the
 * table grows into it and touches no more than the tokens it holds need.
 */
#ifndef SL_ENGINE_COUNTS_H
#define SL_ENGINE_COUNTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sl_count {
    int32_t id;
    int32_t n_out; /* times generated; 0: only in the prompt */
};

struct sl_counts {
    struct sl_count *entries; /* [n], in order of first appearance */
    int32_t *slots;           /* [mask + 1] index of an entry + 1, 0 = empty */
    int32_t n;
    uint32_t mask, n_slots; /* slots in use - 1, and room */
};

/* Slots for n_tokens tokens of which at most n_vocab are distinct; entries need half as many. */
uint32_t sl_counts_slots(int64_t n_tokens, int32_t n_vocab);
/* n_slots: a power of two. Nothing needs to be cleared. */
void sl_counts_init(struct sl_counts *c, struct sl_count *entries, int32_t *slots,
                    uint32_t n_slots);
/* c must be empty, with at least the room of from. */
void sl_counts_copy(struct sl_counts *c, const struct sl_counts *from);
void sl_counts_add(struct sl_counts *c, int32_t id, int32_t n_out);
bool sl_counts_has(const struct sl_counts *c, int32_t id);

#endif
