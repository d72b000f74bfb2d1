/* SPDX-License-Identifier: MIT
 * eplb.h - where experts go so that every rank has about as many of a layer's tokens: the balancing
 * of experts' load (EPLB) that DeepSeek published, its global policy: replicas for those that have
 * most, then all replicas packed onto ranks. Plain arithmetic in one order, so that ranks which
 * count alike decide alike without a word.
 */
#ifndef SL_MODELS_EPLB_H
#define SL_MODELS_EPLB_H

#include "base/limits.h"

#include <stdbool.h>
#include <stdint.h>

#define SL_MAX_PLACES (SL_MAX_EXPERTS + SL_MAX_REDUNDANT)

struct sl_eplb_room { /* to work in */
    double weight[SL_MAX_PLACES];
    int32_t count[SL_MAX_EXPERTS], expert[SL_MAX_PLACES], order[SL_MAX_PLACES];
    int32_t list[SL_MAX_PLACES];
};

/* list [n_places]: the expert of each place, rank by rank, n_places / n_ranks of them each, for
 * tokens [n_experts] of each expert. n_ranks divides n_places >= n_experts. spread: each expert has
 * replicas on two ranks at least, which takes 2 n_experts <= n_places <= n_ranks * n_experts. */
void sl_eplb_place(const uint64_t *tokens, int32_t n_experts, int32_t n_places, int32_t n_ranks,
                   bool spread, struct sl_eplb_room *room, int32_t *list);
/* The same, where experts are placed as `old` says: list is what to move to. Ranks are named so
 * that many experts stay where they are, and all do where the busiest rank would not have clearly
 * less. Returns whether it differs from old. spread: old is spread, too. */
bool sl_eplb_replace(const uint64_t *tokens, int32_t n_experts, int32_t n_places, int32_t n_ranks,
                     bool spread, const int32_t *old, struct sl_eplb_room *room, int32_t *list);
/* Tokens of the rank that has most, over those of the mean: 1 is balanced. */
double sl_eplb_imbalance(const uint64_t *tokens, int32_t n_experts, int32_t n_places,
                         int32_t n_ranks, const int32_t *list, struct sl_eplb_room *room);

#endif
