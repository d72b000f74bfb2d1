/* SPDX-License-Identifier: MIT
 * Facts: deepseek-ai/EPLB, rebalance_experts with one node and one group. Of equal ones the lower
 * number is first everywhere.
 *
 * Replicas for load alone may all be of one expert, or on one rank. Where a rank may be lost they
 * are spread: two of each expert first, and where both came to one rank one of them changes places
 * with an expert of another rank.
 */
#include "models/eplb.h"

#include "base/check.h"
#include "base/err.h"

#include <string.h>

/* A new place for an expert must take so much off the busiest rank; else weights move for noise. */
#define LEAST_GAIN 0.02

/* Replicas, all of one at least: each further one goes to the expert with most tokens of a replica.
 */
static void replicate(const uint64_t *tokens, int32_t n_experts, int32_t n_places, bool spread,
                      struct sl_eplb_room *r)
{
    const int32_t n_first = n_experts * (spread ? 2 : 1);
    for (int32_t i = 0; i < n_first; i++) {
        r->expert[i] = i % n_experts;
        r->count[i % n_experts] = spread ? 2 : 1;
    }
    for (int32_t i = n_first; i < n_places; i++) {
        int32_t most = 0;
        for (int32_t e = 1; e < n_experts; e++)
            if ((double)tokens[e] / r->count[e] > (double)tokens[most] / r->count[most])
                most = e;
        r->expert[i] = most;
        r->count[most]++;
    }
    for (int32_t i = 0; i < n_places; i++)
        r->weight[i] = (double)tokens[r->expert[i]] / r->count[r->expert[i]];
}

/* order: places by their weight, the heaviest first. Of a few hundred, and beside the steps. */
static void sort_places(struct sl_eplb_room *r, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t at = i;
        for (; at > 0 && r->weight[r->order[at - 1]] < r->weight[i]; at--)
            r->order[at] = r->order[at - 1];
        r->order[at] = i;
    }
}

/* Each replica to the rank that has least so far, of those that have a place left. */
static void pack(struct sl_eplb_room *r, int32_t n, int32_t n_ranks, int32_t *list)
{
    const int32_t of_rank = n / n_ranks;
    double load[SL_MAX_RANKS] = {0};
    int32_t n_has[SL_MAX_RANKS] = {0};
    sort_places(r, n);
    for (int32_t i = 0; i < n; i++) {
        const int32_t place = r->order[i];
        int32_t rank = of_rank == 1 ? place : -1; /* then nothing is to be chosen */
        for (int32_t k = 0; k < n_ranks && of_rank > 1; k++)
            if (n_has[k] < of_rank && (rank < 0 || load[k] < load[rank]))
                rank = k;
        list[rank * of_rank + n_has[rank]++] = r->expert[place];
        load[rank] += r->weight[place];
    }
}

/* Has the expert a place on a rank other than this one? but: a place that does not count. */
static bool is_elsewhere(const int32_t *list, int32_t n, int32_t of_rank, int32_t expert,
                         int32_t rank, int32_t but)
{
    for (int32_t i = 0; i < n; i++)
        if (list[i] == expert && i / of_rank != rank && i != but)
            return true;
    return false;
}

/* One replica of an expert that has them all on one rank goes to another: to the place there whose
 * load is most like its own, of an expert that is on a third rank or there once more. There is one,
 * or all experts of that rank would be on this one, which has fewer places than that and two. */
static void spread_out(struct sl_eplb_room *r, const uint64_t *tokens, int32_t n_experts, int32_t n,
                       int32_t of_rank, int32_t *list)
{
    for (int32_t e = 0; e < n_experts; e++) {
        int32_t place = 0, best = -1;
        double least = 0;
        while (list[place] != e)
            place++;
        const int32_t rank = place / of_rank;
        if (is_elsewhere(list, n, of_rank, e, rank, -1))
            continue;
        const double own = (double)tokens[e] / r->count[e];
        for (int32_t i = 0; i < n; i++) {
            const double load = (double)tokens[list[i]] / r->count[list[i]];
            const double gap = load > own ? load - own : own - load;
            if (i / of_rank == rank || (best >= 0 && gap >= least) ||
                !is_elsewhere(list, n, of_rank, list[i], rank, i))
                continue;
            best = i;
            least = gap;
        }
        SL_ASSERT(best >= 0);
        list[place] = list[best];
        list[best] = e;
    }
}

void sl_eplb_place(const uint64_t *tokens, int32_t n_experts, int32_t n_places, int32_t n_ranks,
                   bool spread, struct sl_eplb_room *room, int32_t *list)
{
    SL_ASSERT(!spread || (n_places >= 2 * n_experts && n_places <= n_ranks * n_experts));
    SL_ASSERT(n_experts >= 1 && n_experts <= SL_MAX_EXPERTS);
    SL_ASSERT(n_places >= n_experts && n_places <= SL_MAX_PLACES);
    SL_ASSERT(n_ranks >= 1 && n_ranks <= SL_MAX_RANKS && n_places % n_ranks == 0);
    replicate(tokens, n_experts, n_places, spread, room);
    pack(room, n_places, n_ranks, list);
    if (spread)
        spread_out(room, tokens, n_experts, n_places, n_places / n_ranks, list);
}

double sl_eplb_imbalance(const uint64_t *tokens, int32_t n_experts, int32_t n_places,
                         int32_t n_ranks, const int32_t *list, struct sl_eplb_room *room)
{
    const int32_t of_rank = n_places / n_ranks;
    double most = 0, all = 0;
    memset(room->count, 0, (size_t)n_experts * sizeof *room->count);
    for (int32_t i = 0; i < n_places; i++)
        room->count[list[i]]++;
    for (int32_t k = 0; k < n_ranks; k++) {
        double load = 0;
        for (int32_t i = k * of_rank; i < (k + 1) * of_rank; i++)
            load += (double)tokens[list[i]] / room->count[list[i]];
        most = SL_MAX(most, load);
        all += load;
    }
    return all > 0 ? most * n_ranks / all : 1;
}

/* How many of the experts of a pack a rank has. */
static int32_t n_common(const int32_t *pack_of, const int32_t *rank_of, int32_t n)
{
    int32_t common = 0;
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < n; k++)
            if (pack_of[i] == rank_of[k]) {
                common++;
                break;
            }
    return common;
}

/* Packs have no names yet: the pack and the rank that have most in common belong together, then the
 * next ones. */
static void name_ranks(const int32_t *packs, const int32_t *old, int32_t n_places, int32_t n_ranks,
                       int32_t *list)
{
    const int32_t of_rank = n_places / n_ranks;
    const size_t n_bytes = (size_t)of_rank * sizeof *list;
    bool packed[SL_MAX_RANKS] = {0}, named[SL_MAX_RANKS] = {0};
    for (int32_t done = 0; done < n_ranks; done++) {
        int32_t best = -1, from = 0, to = 0;
        for (int32_t p = 0; p < n_ranks; p++)
            for (int32_t k = 0; k < n_ranks && !packed[p]; k++) {
                const int32_t n =
                    named[k] ? -1 : n_common(packs + p * of_rank, old + k * of_rank, of_rank);
                if (n > best) {
                    best = n;
                    from = p;
                    to = k;
                }
            }
        packed[from] = named[to] = true;
        memcpy(list + to * of_rank, packs + from * of_rank, n_bytes);
    }
}

bool sl_eplb_replace(const uint64_t *tokens, int32_t n_experts, int32_t n_places, int32_t n_ranks,
                     bool spread, const int32_t *old, struct sl_eplb_room *room, int32_t *list)
{
    const double before = sl_eplb_imbalance(tokens, n_experts, n_places, n_ranks, old, room);
    sl_eplb_place(tokens, n_experts, n_places, n_ranks, spread, room, room->list);
    const double after = sl_eplb_imbalance(tokens, n_experts, n_places, n_ranks, room->list, room);
    if (after > before * (1 - LEAST_GAIN)) {
        memcpy(list, old, (size_t)n_places * sizeof *list);
        return false;
    }
    name_ranks(room->list, old, n_places, n_ranks, list);
    return true;
}
