/* SPDX-License-Identifier: MIT
 * A job is published by one store to `ticket`: its number in the upper half, how many items it has
 * in the lower. Every thread's piece has a word too: the number of the job it was last used in, and
 * the items of it not yet taken. A word of an earlier job means that the whole piece is still
 * there, so publishing touches one line however many threads there are. A thread takes an item by
 * compare-and-swap, which can succeed only while that very job is unfinished: once a job is over,
 * the word of each of its pieces names it with nothing left, or a later one. Therefore the caller
 * waits for the items, never for the threads: a worker that the system has not scheduled in time is
 * not missed, and what it later reads of an old job is thrown away.
 *
 * What a thread has done it counts in a line of its own, which only the caller reads.
 */
#include "cpu/thread_pool.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "base/turn.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Time stamp ticks that a worker looks for a job before it sleeps: 150 to 300 microseconds at 2 to
 * 4 GHz, as long as choosing a token from a large vocabulary takes. */
#define SPIN_TICKS 600000u
/* Threads woken by the caller, and by each thread it woke: a call takes microseconds. */
#define WAKE_FAN 4
/* Job numbers wrap round. Words are renewed twice in between, so that an old one is never taken for
 * the current job's; the first job is not far from the wrap, so that it is a common event. */
#define FIRST_JOB  0xFFFFFF00u
#define RENEW_JOBS 0x80000000u

typedef bool idle_fn(void *arg, int thread_idx);

struct piece {
    _Alignas(64) _Atomic uint64_t left; /* job, items not yet taken */
    _Alignas(64) _Atomic uint64_t done; /* job, items this thread has done */
};

struct worker {
    struct sl_thread_pool *pool;
    pthread_t thread;
    int idx;
};

struct sl_thread_pool {
    _Alignas(64) _Atomic uint64_t ticket; /* job, items */
    _Atomic(sl_thread_pool_fn) fn;
    _Atomic(void *) arg;
    _Alignas(64) _Atomic(idle_fn *) idle; /* NULL: nothing */
    void *idle_arg;
    _Alignas(64) _Atomic uint32_t bell; /* what workers sleep on */
    _Atomic uint32_t n_sleeping;
    _Atomic bool stop;
    _Alignas(64) _Atomic uint32_t caller_bell;
    _Atomic bool caller_sleeps;
    _Alignas(64) uint64_t spin_ticks; /* 0: more threads than cores, one would hold another up */
    int n_threads, n_started, n_wake;
    bool shared;
    struct sl_turn callers; /* if shared */
    struct worker workers[SL_MAX_THREADS - 1];
    struct piece pieces[]; /* [n_threads] */
};

static inline uint32_t job_of(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

static inline uint64_t word_of(uint32_t job, uint32_t n)
{
    return (uint64_t)job << 32 | n;
}

static void sleep_on(_Atomic uint32_t *bell, uint32_t seen)
{
    syscall(SYS_futex, bell, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void thread_pool_wake(_Atomic uint32_t *bell, int n)
{
    syscall(SYS_futex, bell, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* A moment of waiting. */
static inline void thread_pool_idle(const struct sl_thread_pool *p, int thread_idx)
{
    idle_fn *fn = atomic_load_explicit(&p->idle, memory_order_acquire);
    if (p->spin_ticks == 0 || fn == NULL || !fn(p->idle_arg, thread_idx))
        __builtin_ia32_pause();
}

static bool spin_until_job(const struct sl_thread_pool *p, uint32_t seen, int thread_idx)
{
    uint64_t start = __builtin_ia32_rdtsc();
    while (p->spin_ticks != 0 && __builtin_ia32_rdtsc() - start < p->spin_ticks) {
        if (job_of(atomic_load_explicit(&p->ticket, memory_order_acquire)) != seen)
            return true;
        thread_pool_idle(p, thread_idx);
    }
    return false;
}

/* Returns the ticket of a job other than seen, or of seen itself when the pool stops. */
static uint64_t wait_for_job(struct sl_thread_pool *p, uint32_t seen, int thread_idx)
{
    if (!spin_until_job(p, seen, thread_idx)) {
        /* Counted before the ticket is read again and read by the caller after it is written, both
         * sequentially consistent: one of the two always sees the other. */
        atomic_fetch_add(&p->n_sleeping, 1);
        uint32_t bell = atomic_load(&p->bell);
        while (job_of(atomic_load(&p->ticket)) == seen && !atomic_load(&p->stop)) {
            sleep_on(&p->bell, bell);
            bell = atomic_load(&p->bell);
        }
        if (atomic_fetch_sub(&p->n_sleeping, 1) > 1 && p->spin_ticks != 0)
            thread_pool_wake(&p->bell, WAKE_FAN);
    }
    return atomic_load_explicit(&p->ticket, memory_order_acquire);
}

/* Takes one item of a piece. *word is what was last read of it. False: nothing is left of it, or
 * the job is over. */
static bool thread_pool_take(struct sl_thread_pool *p, uint32_t job, struct piece *piece,
                             uint32_t size, uint64_t *word, uint32_t *left)
{
    for (;;) {
        *left = (uint32_t)*word;
        if (job_of(*word) != job) {
            /* Of an earlier job if ours is still current: the word was read before the ticket. */
            if (job_of(atomic_load_explicit(&p->ticket, memory_order_acquire)) != job)
                return false;
            *left = size;
        }
        if (*left == 0)
            return false;
        uint64_t taken = word_of(job, *left - 1);
        if (atomic_compare_exchange_weak(&piece->left, word, taken)) {
            *word = taken;
            return true;
        }
    }
}

static bool all_done(struct sl_thread_pool *p, uint32_t job, uint32_t n_items)
{
    uint32_t n = 0;
    for (int i = 0; i < p->n_threads; i++) {
        uint64_t done = atomic_load(&p->pieces[i].done);
        n += job_of(done) == job ? (uint32_t)done : 0;
    }
    return n == n_items;
}

/* Tells what this thread has done so far. Of several that finish at once, one sees everything. */
static void thread_pool_tell(struct sl_thread_pool *p, uint32_t job, uint32_t n_items,
                             uint32_t n_mine, int thread_idx)
{
    atomic_store(&p->pieces[thread_idx].done, word_of(job, n_mine));
    if (atomic_load(&p->caller_sleeps) && all_done(p, job, n_items)) {
        atomic_fetch_add(&p->caller_bell, 1);
        thread_pool_wake(&p->caller_bell, 1);
    }
}

/* A thread's piece is [ceil(n * i / T), ceil(n * (i + 1) / T)): thread 0 always has an item. */
static void take_items(struct sl_thread_pool *p, uint64_t ticket, int thread_idx)
{
    sl_thread_pool_fn fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
    void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
    uint32_t job = job_of(ticket), n_items = (uint32_t)ticket, n_threads = (uint32_t)p->n_threads;
    uint32_t each = n_items / n_threads, rest = n_items % n_threads, n_mine = 0, left;
    uint64_t at = (uint64_t)n_items * (uint32_t)thread_idx + n_threads - 1;
    uint32_t end = (uint32_t)(at / n_threads), carry = (uint32_t)(at % n_threads);
    for (uint32_t i = 0, of = (uint32_t)thread_idx; i < n_threads; i++, of++) {
        if (of == n_threads) {
            of = 0;
            end = 0;
            carry = n_threads - 1;
        }
        uint32_t begin = end, n_before = n_mine;
        carry += rest;
        end += each + (carry >= n_threads);
        carry -= carry >= n_threads ? n_threads : 0;
        if (begin == end)
            continue;
        if (job_of(atomic_load_explicit(&p->ticket, memory_order_relaxed)) != job)
            return;
        uint64_t word = atomic_load_explicit(&p->pieces[of].left, memory_order_acquire);
        while (thread_pool_take(p, job, &p->pieces[of], end - begin, &word, &left)) {
            fn(arg, end - left, thread_idx);
            n_mine++;
        }
        /* Piece by piece: the caller need not wait until this thread has looked at all of them. */
        if (n_mine != n_before)
            thread_pool_tell(p, job, n_items, n_mine, thread_idx);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    uint32_t seen = FIRST_JOB;
    while (!atomic_load_explicit(&w->pool->stop, memory_order_acquire)) {
        uint64_t ticket = wait_for_job(w->pool, seen, w->idx);
        if (job_of(ticket) != seen)
            take_items(w->pool, ticket, w->idx);
        seen = job_of(ticket);
    }
    return NULL;
}

static void wait_for_items(struct sl_thread_pool *p, uint32_t job, uint32_t n_items)
{
    uint64_t start = __builtin_ia32_rdtsc();
    do {
        if (all_done(p, job, n_items))
            return;
        thread_pool_idle(p, 0);
    } while (__builtin_ia32_rdtsc() - start < 4 * p->spin_ticks);
    atomic_store(&p->caller_sleeps, true);
    uint32_t bell = atomic_load(&p->caller_bell);
    while (!all_done(p, job, n_items)) {
        sleep_on(&p->caller_bell, bell);
        bell = atomic_load(&p->caller_bell);
    }
    atomic_store(&p->caller_sleeps, false);
}

/* Between jobs nobody writes these words, and a compare-and-swap of a late thread fails as before.
 */
static void renew_words(struct sl_thread_pool *p, uint32_t last_job)
{
    for (int i = 0; i < p->n_threads; i++) {
        atomic_store(&p->pieces[i].left, word_of(last_job, 0));
        atomic_store(&p->pieces[i].done, word_of(last_job, 0));
    }
}

void sl_thread_pool_run(struct sl_thread_pool *p, sl_thread_pool_fn fn, void *arg, uint32_t n_items)
{
    if (p->n_threads == 1 || n_items <= 1) {
        for (uint32_t i = 0; i < n_items; i++)
            fn(arg, i, 0);
        return;
    }
    if (p->shared)
        sl_turn_take(&p->callers);
    uint32_t last = job_of(atomic_load_explicit(&p->ticket, memory_order_relaxed)), job = last + 1;
    if (job % RENEW_JOBS == 0)
        renew_words(p, last);
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    atomic_store(&p->ticket, word_of(job, n_items));
    if (atomic_load(&p->n_sleeping) != 0) {
        atomic_fetch_add(&p->bell, 1);
        thread_pool_wake(&p->bell, (int)SL_MIN((uint32_t)p->n_wake, n_items - 1));
    }
    take_items(p, word_of(job, n_items), 0);
    wait_for_items(p, job, n_items);
    if (p->shared)
        sl_turn_pass(&p->callers);
}

void sl_thread_pool_share(struct sl_thread_pool *p)
{
    sl_turn_init(&p->callers);
    p->shared = true;
}

int sl_thread_pool_n_threads(const struct sl_thread_pool *p)
{
    return p->n_threads;
}

void sl_thread_pool_set_idle(struct sl_thread_pool *p, bool (*fn)(void *arg, int thread_idx),
                             void *arg)
{
    p->idle_arg = arg;
    atomic_store_explicit(&p->idle, fn, memory_order_release);
}

int sl_thread_pool_bind(struct sl_thread_pool *p, const int *cpus)
{
    int n_bound = 0;
    for (int i = 0; i < p->n_started; i++) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((size_t)cpus[i + 1], &set);
        n_bound += pthread_setaffinity_np(p->workers[i].thread, sizeof set, &set) == 0;
    }
    return n_bound;
}

void sl_thread_pool_destroy(struct sl_thread_pool *p)
{
    if (p == NULL)
        return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->bell, 1);
    thread_pool_wake(&p->bell, INT_MAX);
    for (int i = 0; i < p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    if (p->shared)
        sl_turn_deinit(&p->callers);
    sl_aligned_free(p, sizeof *p + (size_t)p->n_threads * sizeof p->pieces[0]);
}

int sl_thread_pool_create(int n_threads, struct sl_thread_pool **out, struct sl_error *err)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > SL_MAX_THREADS)
        return sl_fail(err, SL_EINVAL, "threads: %d is not in 1..%d", n_threads, SL_MAX_THREADS);
    struct sl_thread_pool *p =
        sl_aligned_alloc(sizeof *p + (size_t)n_threads * sizeof p->pieces[0]);
    if (p == NULL)
        return sl_fail(err, SL_ENOMEM, "threads: out of memory");
    int n_cores = sl_cpu_count();
    p->n_threads = n_threads;
    p->spin_ticks = n_threads <= n_cores ? SPIN_TICKS : 0;
    atomic_store(&p->ticket, word_of(FIRST_JOB, 0));
    renew_words(p, FIRST_JOB);
    p->n_wake = n_threads <= n_cores ? WAKE_FAN : SL_MAX(n_cores - 1, 1);
    for (int i = 0; i < n_threads - 1; i++) {
        char name[24];
        snprintf(name, sizeof name, "sl-cpu-%d", i + 1);
        p->workers[i].pool = p;
        p->workers[i].idx = i + 1;
        int rc = sl_thread_create(&p->workers[i].thread, worker_main, &p->workers[i], name, err);
        if (rc != 0) {
            sl_thread_pool_destroy(p);
            return rc;
        }
        p->n_started++;
    }
    *out = p;
    return 0;
}
