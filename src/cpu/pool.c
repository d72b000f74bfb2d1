/* SPDX-License-Identifier: MIT
 * A job is published by one store to `ticket`: its number in the upper half, the items not yet
 * taken in the lower. A thread takes an item by decrementing the lower half with compare-and-swap,
 * which succeeds only while that very job is current and unfinished. Therefore the caller waits for
 * the items, never for the threads: a worker that the system has not scheduled in time is not
 * missed, and what it later reads of an old job is thrown away by the failing swap.
 */
#include "cpu/pool.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"

#include <stdatomic.h>
#include <stdio.h>

#define SPIN_TICKS 40000u /* time stamp ticks: 10 to 20 microseconds at 2 to 4 GHz */

struct worker {
    struct sl_pool *pool;
    pthread_t thread;
    int idx;
};

struct sl_pool {
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic uint32_t n_done; /* items of the current job */
    _Alignas(64) _Atomic(sl_pool_fn) fn;
    _Atomic(void *) arg;
    _Atomic uint32_t n_items;
    _Atomic bool stop;
    _Atomic uint32_t n_sleeping;
    _Atomic bool caller_sleeps;
    uint64_t spin_ticks; /* 0 when there are more threads than cores: spinning would hold one up */
    int n_threads, n_started;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct worker workers[]; /* [n_threads - 1] */
};

static inline uint32_t job_of(uint64_t ticket)
{
    return (uint32_t)(ticket >> 32);
}

static bool spin_until_job(struct sl_pool *p, uint32_t seen)
{
    uint64_t start = __builtin_ia32_rdtsc();
    while (p->spin_ticks != 0 && __builtin_ia32_rdtsc() - start < p->spin_ticks) {
        if (job_of(atomic_load_explicit(&p->ticket, memory_order_acquire)) != seen)
            return true;
        __builtin_ia32_pause();
    }
    return false;
}

/* Returns the number of a job other than seen, or seen itself when the pool stops. */
static uint32_t wait_for_job(struct sl_pool *p, uint32_t seen)
{
    if (!spin_until_job(p, seen)) {
        pthread_mutex_lock(&p->lock);
        /* Counted before the ticket is read again and read by the caller after it is written, both
         * sequentially consistent: one of the two always sees the other. */
        atomic_fetch_add(&p->n_sleeping, 1);
        while (job_of(atomic_load(&p->ticket)) == seen && !atomic_load(&p->stop))
            pthread_cond_wait(&p->work, &p->lock);
        atomic_fetch_sub(&p->n_sleeping, 1);
        pthread_mutex_unlock(&p->lock);
    }
    return job_of(atomic_load_explicit(&p->ticket, memory_order_acquire));
}

static void take_items(struct sl_pool *p, uint32_t job, int thread_idx)
{
    sl_pool_fn fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
    void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
    uint32_t n_items = atomic_load_explicit(&p->n_items, memory_order_relaxed), n_mine = 0;
    uint64_t t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    while (job_of(t) == job && (uint32_t)t != 0) {
        if (!atomic_compare_exchange_weak(&p->ticket, &t, t - 1))
            continue;
        fn(arg, n_items - (uint32_t)t, thread_idx);
        n_mine++;
        t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    }
    if (n_mine == 0)
        return;
    if (atomic_fetch_add(&p->n_done, n_mine) + n_mine == n_items &&
        atomic_load(&p->caller_sleeps)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->done);
        pthread_mutex_unlock(&p->lock);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    uint32_t seen = 0;
    while (!atomic_load_explicit(&w->pool->stop, memory_order_acquire)) {
        uint32_t job = wait_for_job(w->pool, seen);
        if (job != seen)
            take_items(w->pool, job, w->idx);
        seen = job;
    }
    return NULL;
}

static void wait_for_items(struct sl_pool *p, uint32_t n_items)
{
    uint64_t start = __builtin_ia32_rdtsc();
    while (p->spin_ticks != 0 && __builtin_ia32_rdtsc() - start < 4 * p->spin_ticks) {
        if (atomic_load_explicit(&p->n_done, memory_order_acquire) == n_items)
            return;
        __builtin_ia32_pause();
    }
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_sleeps, true);
    while (atomic_load(&p->n_done) != n_items)
        pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->caller_sleeps, false);
    pthread_mutex_unlock(&p->lock);
}

void sl_pool_run(struct sl_pool *p, sl_pool_fn fn, void *arg, uint32_t n_items)
{
    if (p->n_threads == 1 || n_items <= 1) {
        for (uint32_t i = 0; i < n_items; i++)
            fn(arg, i, 0);
        return;
    }
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&p->n_items, n_items, memory_order_relaxed);
    atomic_store_explicit(&p->n_done, 0, memory_order_relaxed);
    uint32_t job = job_of(atomic_load_explicit(&p->ticket, memory_order_relaxed)) + 1;
    atomic_store(&p->ticket, (uint64_t)job << 32 | n_items);
    if (atomic_load(&p->n_sleeping) != 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&p->lock);
    }
    take_items(p, job, 0);
    wait_for_items(p, n_items);
}

int sl_pool_n_threads(const struct sl_pool *p)
{
    return p->n_threads;
}

void sl_pool_destroy(struct sl_pool *p)
{
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    sl_aligned_free(p, sizeof *p + (size_t)(p->n_threads - 1) * sizeof p->workers[0]);
}

int sl_pool_create(int n_threads, struct sl_pool **out, struct sl_error *err)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > SL_MAX_THREADS)
        return sl_fail(err, SL_EINVAL, "threads: %d is not in 1..%d", n_threads, SL_MAX_THREADS);
    struct sl_pool *p =
        sl_aligned_alloc(sizeof *p + (size_t)(n_threads - 1) * sizeof p->workers[0]);
    if (p == NULL)
        return sl_fail(err, SL_ENOMEM, "threads: out of memory");
    p->n_threads = n_threads;
    p->spin_ticks = n_threads <= sl_cpu_count() ? SPIN_TICKS : 0;
    pthread_mutex_init(&p->lock, NULL); /* none of these three can fail on Linux */
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    for (int i = 0; i < n_threads - 1; i++) {
        char name[24];
        snprintf(name, sizeof name, "sl-cpu-%d", i + 1);
        p->workers[i].pool = p;
        p->workers[i].idx = i + 1;
        int rc = sl_thread_create(&p->workers[i].thread, worker_main, &p->workers[i], name, err);
        if (rc != 0) {
            sl_pool_destroy(p);
            return rc;
        }
        p->n_started++;
    }
    *out = p;
    return 0;
}
