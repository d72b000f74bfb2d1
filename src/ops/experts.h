/* SPDX-License-Identifier: MIT
 * experts.h - what an operation over experts and those who prepare it agree on: the order in which
 * a row's experts are added up, and which rank has which experts.
 */
#ifndef SL_OPS_EXPERTS_H
#define SL_OPS_EXPERTS_H

#include <stdint.h>

/* Pairs of a row and an expert whose activated middles, n_mid floats each, are kept at a time:
 * by the operation's scratch on a CPU, and by the room of a rank. */
static inline int32_t sl_expert_room_pairs(int32_t n, int32_t top_k, int64_t n_mid)
{
    const int64_t n_floats = 4 << 20, fit = n_floats / n_mid, all = (int64_t)n * top_k;
    const int64_t most = fit < 32 ? 32 : fit > 2048 ? 2048 : fit;
    return (int32_t)(all < most ? all : most);
}

/* Experts lie in so many leaves, ranges of their numbers that are as equal as can be. A row adds up
 * its experts leaf by leaf, in ascending order, and leaves as a balanced binary tree: ranks that
 * have 1, 2, 4 or 8 leaves each can add theirs up alone, and have the bits of one device. */
#define SL_EXPERT_LEAVES                  8
#define SL_EXPERT_LEAF(expert, n_experts) ((SL_EXPERT_LEAVES * ((expert) + 1) - 1) / (n_experts))
/* The tree as a row's experts come: sums of a leaf, of two, of four and of all. Between experts of
 * two leaves so many of the sums are ended, each added to the next one and cleared: from the lowest
 * on. */
#define SL_EXPERT_ENDS(leaf, next) \
    (((leaf) ^ (next)) == 0 ? 0 : ((leaf) ^ (next)) == 1 ? 1 : ((leaf) ^ (next)) < 4 ? 2 : 3)

/* Which ranks have an expert, where experts are placed by their load: a replica on each rank that
 * is named, all alike; twice the same one has twice the share. */
struct sl_expert_places {
    const int32_t *first; /* [E + 1] where an expert's replicas begin in */
    const uint8_t *rank;  /* [first[E]] */
};

/* The rank whose replica a row takes: by its position and the expert alone, so that a row's path
 * does not depend on the rows beside it. No result depends on it, as replicas are alike. */
static inline int32_t sl_expert_rank(const struct sl_expert_places *p, int32_t expert,
                                     int32_t position)
{
    const uint32_t first = (uint32_t)p->first[expert];
    const uint32_t n = (uint32_t)p->first[expert + 1] - first;
    const uint32_t mixed = ((uint32_t)position + (uint32_t)expert * 0x85EBCA6Bu) * 0x9E3779B1u;
    return p->rank[first + (n == 1 ? 0 : (mixed >> 16) % n)];
}

struct sl_expert_counts { /* of a layer, added to by every call */
    uint64_t *tokens;     /* [E] rows of each expert */
    uint64_t n_pairs;     /* rows of all of them */
    uint64_t n_most;      /* of the rank that had the most of the call */
};

/* Rows whose experts ranks exchange at a time, where these are placed by their load. */
#define SL_PLACED_ROWS 256

#endif
