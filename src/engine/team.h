/* SPDX-License-Identifier: MIT
 * team.h - the threads of ranks: one function on all ranks at once, each on a thread of its own.
 *
 * Between calls the threads look for the next one for a moment, then sleep. One caller at a time.
 */
#ifndef SL_ENGINE_TEAM_H
#define SL_ENGINE_TEAM_H

#include "base/err.h"

struct sl_team;

typedef int (*sl_team_fn)(void *arg, int rank, struct sl_error *err);

/* Starts n - 1 threads, 1 <= n <= SL_MAX_RANKS. */
SL_MUST_CHECK int sl_team_create(int n, struct sl_team **out, struct sl_error *err);
void sl_team_destroy(struct sl_team *t); /* joins them; NULL is fine */
/* fn for every rank, rank 0 on the calling thread. Returns when all have, with the error of the
 * lowest rank that failed. Does not allocate. */
SL_MUST_CHECK int sl_team_run(struct sl_team *t, sl_team_fn fn, void *arg, struct sl_error *err);

#endif
