/* SPDX-License-Identifier: MIT
 * pool.h - threads that share out the items of one job at a time and sleep when there is none.
 *
 * The caller of sl_pool_run takes part as thread 0 and returns when every item is done. Which
 * thread takes which item is left open, so an item must not depend on it: its result goes to a
 * place of its own. One caller at a time. An idle pool uses no processor time: workers look for the
 * next job for about ten microseconds, the gap between two operations of a step, and then sleep.
 */
#ifndef SL_CPU_POOL_H
#define SL_CPU_POOL_H

#include "base/err.h"

struct sl_pool;

typedef void (*sl_pool_fn)(void *arg, uint32_t item, int thread_idx);

/* Starts n_threads - 1 threads, 1 <= n_threads <= SL_MAX_THREADS. */
SL_MUST_CHECK int sl_pool_create(int n_threads, struct sl_pool **out, struct sl_error *err);
void sl_pool_destroy(struct sl_pool *p); /* joins them; NULL is fine */
void sl_pool_run(struct sl_pool *p, sl_pool_fn fn, void *arg, uint32_t n_items);
int sl_pool_n_threads(const struct sl_pool *p);

#endif
