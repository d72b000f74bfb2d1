/* SPDX-License-Identifier: MIT
 * cost.h - how long a step will take, learnt from the steps so far.
 *
 * A step's time is modelled as a sum of what it has to do, each with a price that is not negative:
 * a constant, its tokens (with higher prices from 17 and from 257 on, where GEMMs are bound by
 * arithmetic, not by reading weights), pairs of a chunk's tokens and the positions they see, and
 * positions that are read. Prices minimise the squares of relative errors over all steps, of which
 * those with about as many tokens (a factor of two) are remembered together, the last 8 of them
 * mostly: a prompt's price outlives any number of steps without one.
 *
 * Used for how long prompts may hold up what generates (sched.h), and for which drafts are worth
 * their rows (engine/propose.c). That changes which tokens share a step, never their bits. Engine
 * thread only; no memory of its own, no errors.
 */
#ifndef SL_SCHED_COST_H
#define SL_SCHED_COST_H

#include <stdbool.h>
#include <stdint.h>

#define SL_COST_PRICES 6
#define SL_COST_SIZES  18 /* steps of up to 2^17 tokens */

struct sl_work { /* of a step */
    int64_t tokens;
    int64_t pairs; /* of tokens of chunks and the positions they see */
    int64_t reads; /* positions that are read for chunks and single tokens */
};

struct sl_cost_sums { /* normal equations of the steps of one size */
    double xx[SL_COST_PRICES][SL_COST_PRICES], xy[SL_COST_PRICES];
    uint32_t n; /* steps */
};

struct sl_cost_plain { /* the last two steps that had no chunk and as much work */
    struct sl_work work;
    double last_s, before_s;
    uint32_t n, age; /* how many of the two there are; steps since the last one */
};

struct sl_cost { /* zero-initialise */
    struct sl_cost_sums sums[SL_COST_SIZES];
    double price[SL_COST_PRICES];
    int64_t most_tokens; /* of a step so far */
    struct sl_cost_plain plain;
};

/* n tokens after pos others. */
struct sl_work sl_work_add(struct sl_work w, int64_t pos, int64_t n);
/* Of a step that has n tokens after pos others: it gets the next one too. */
struct sl_work sl_work_extend(struct sl_work w, int64_t pos, int64_t n);
/* A step of this work took so many seconds, more than 0. */
void sl_cost_learn(struct sl_cost *c, struct sl_work w, double seconds);
/* Seconds; 0 while nothing was learnt. */
double sl_cost_of(const struct sl_cost *c, struct sl_work w);
/* Is there more than one step with about as many tokens? The first counts little. */
bool sl_cost_knows(const struct sl_cost *c, struct sl_work w);
/* Seconds that a step without chunks, of work like this, was measured to take; 0 where there were
 * not two such steps lately. Unlike sl_cost_of this cannot be wrong about how the time of a step is
 * shared between its chunks and the rest, which steps that all have large chunks do not tell. */
double sl_cost_measured(const struct sl_cost *c, struct sl_work w);
struct sl_drafting { /* a step that may get drafts */
    struct sl_work work;
    double tokens; /* that come out of it */
};

/* Does the step make more tokens a second with one draft more after the token at pos, which is in
 * it with k drafts? Then the step has it. comes: the probability that it and those before it are
 * right. A step of a size from which nothing was learnt is tried. */
bool sl_cost_draft(const struct sl_cost *c, struct sl_drafting *step, int32_t pos, int32_t k,
                   double comes);
/* How many of n_most tokens after pos a step that has `w` to do may take, to be over within so many
 * seconds. At most four times as many as any step had: what has not been seen is not believed. */
int32_t sl_cost_chunk(const struct sl_cost *c, struct sl_work w, int32_t pos, int32_t n_most,
                      double seconds);

#endif
