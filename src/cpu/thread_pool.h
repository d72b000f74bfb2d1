/* SPDX-License-Identifier: MIT
 * thread_pool.h - threads that share out the items of one job at a time and sleep when there is
 * none.
 *
 * The caller of sl_thread_pool_run takes part as thread 0 and returns when every item is done. The
 * items are cut into one contiguous piece per thread, the same for every job of as many items; a
 * thread starts with its own piece and then helps with the others'. So what a thread touched first
 * while packing weights is mostly what it reads later, and nobody waits for a slow one. Which
 * thread takes which item stays open: an item must not depend on it, its result goes to a place of
 * its own. One caller at a time, unless sl_thread_pool_share was called.
 *
 * An idle pool uses no processor time: workers look for the next job for a few hundred
 * microseconds, which bridges the gaps between the operations of a step and between steps, and then
 * sleep. With more threads than cores they sleep at once, and a job wakes only as many as there are
 * cores.
 */
#ifndef SL_CPU_THREAD_POOL_H
#define SL_CPU_THREAD_POOL_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct sl_thread_pool;

typedef void (*sl_thread_pool_fn)(void *arg, uint32_t item, int thread_idx);

/* Starts n_threads - 1 threads, 1 <= n_threads <= SL_MAX_THREADS. */
SL_MUST_CHECK int sl_thread_pool_create(int n_threads, struct sl_thread_pool **out,
                                        struct sl_error *err);
void sl_thread_pool_destroy(struct sl_thread_pool *p); /* joins them; NULL is fine */
/* From now on callers may come at once: their jobs run in the order they came. Once, before the
 * first job. */
void sl_thread_pool_share(struct sl_thread_pool *p);
void sl_thread_pool_run(struct sl_thread_pool *p, sl_thread_pool_fn fn, void *arg,
                        uint32_t n_items);
int sl_thread_pool_n_threads(const struct sl_thread_pool *p);
/* What a thread does while it looks for a job or for the end of one: a little at a time, until
 * fn returns false. Not while it would hold up others, with more threads than cores. Once, before
 * the first job. */
void sl_thread_pool_set_idle(struct sl_thread_pool *p, bool (*fn)(void *arg, int thread_idx),
                             void *arg);
/* The first item of a thread's piece of a job; n_items: it has none. */
static inline int64_t sl_thread_pool_first_item(int64_t n_items, int n_threads, int thread_idx)
{
    return (n_items * thread_idx + n_threads - 1) / n_threads;
}
/* Binds thread i to processor cpus[i]; thread 0, the caller, goes where it likes: the threads it
 * starts would inherit. A processor that may not be used leaves its thread unbound. Returns how
 * many threads were bound. */
int sl_thread_pool_bind(struct sl_thread_pool *p, const int *cpus);

#endif
