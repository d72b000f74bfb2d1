/* SPDX-License-Identifier: MIT
 * Tests of the thread pool: every item of every job exactly once, whatever the counts; idle threads
 * cost nothing. `test_thread_pool --bench` prints what a job costs.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cpu/thread_pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define MAX_ITEMS 5000

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define QUICK 1
#elif defined(__has_feature)
#define QUICK (__has_feature(thread_sanitizer) || __has_feature(address_sanitizer))
#else
#define QUICK 0
#endif

static struct sl_thread_pool *pool_of(int n_threads)
{
    struct sl_thread_pool *p;
    struct sl_error err;
    if (sl_thread_pool_create(n_threads, &p, &err) != 0)
        fail_msg("%s", err.msg);
    return p;
}

struct job {
    int n_threads;
    uint32_t number, work;
    uint32_t
        runs[MAX_ITEMS]; /* plain memory: a second run, or one of another job, is a data race */
    _Atomic uint32_t n_bad;
};

static void count_item(void *arg, uint32_t item, int thread_idx)
{
    struct job *j = arg;
    volatile uint32_t x = 0;
    if (thread_idx < 0 || thread_idx >= j->n_threads)
        atomic_fetch_add(&j->n_bad, 1);
    for (uint32_t i = 0; i < j->work; i++)
        x = x + i;
    j->runs[item] += j->number;
}

/* Jobs back to back, so that late threads of one meet the next; two argument blocks in turn. */
static void stress(int n_threads, int n_jobs, uint64_t seed)
{
    static struct job jobs[2];
    struct sl_rng rng = {seed, 0};
    struct sl_thread_pool *p = pool_of(n_threads);
    assert_int_equal(sl_thread_pool_n_threads(p), n_threads);
    for (int k = 0; k < n_jobs; k++) {
        struct job *j = &jobs[k & 1];
        uint32_t max = sl_rng_below(&rng, 16) == 0 ? MAX_ITEMS : 3 * (uint32_t)n_threads;
        uint32_t n = (uint32_t)sl_rng_below(&rng, SL_MIN(max, MAX_ITEMS) + 1);
        j->n_threads = n_threads;
        j->number = 1 + (uint32_t)k;
        j->work = sl_rng_below(&rng, 4) == 0 ? (uint32_t)sl_rng_below(&rng, 200) : 0;
        memset(j->runs, 0, sizeof j->runs);
        sl_thread_pool_run(p, count_item, j, n);
        for (uint32_t i = 0; i < MAX_ITEMS; i++)
            if (j->runs[i] != (i < n ? j->number : 0))
                fail_msg("%d threads, job %d of %u items: item %u ran %u times", n_threads, k, n, i,
                         j->runs[i] / j->number);
        assert_int_equal(atomic_load(&j->n_bad), 0);
    }
    sl_thread_pool_destroy(p);
}

static void test_every_item_once(void **state)
{
    static const int counts[] = {1, 2, 3, 4, 7, 16, 61, 128, SL_MAX_THREADS};
    (void)state;
    for (size_t i = 0; i < SL_COUNT(counts); i++)
        stress(counts[i], (QUICK ? 2000 : 6000) / (counts[i] > 16 ? 4 : 1), 100 + i);
    struct sl_rng rng = {9, 0};
    for (int i = 0; i < (QUICK ? 10 : 40); i++)
        stress(1 + (int)sl_rng_below(&rng, SL_MAX_THREADS), 50, 200 + (uint64_t)i);
}

struct meeting {
    _Atomic int at[2]; /* 1 + the thread that came to item 0, to item 50 */
};

/* Waits for the other one, so that two threads must take part. */
static void meet(void *arg, uint32_t item, int thread_idx)
{
    struct meeting *m = arg;
    struct timespec ms = {0, 1000000};
    if (item % 50 != 0)
        return;
    atomic_store(&m->at[item / 50], 1 + thread_idx);
    while (atomic_load(&m->at[1 - item / 50]) == 0)
        nanosleep(&ms, NULL);
}

static void test_threads_begin_in_their_pieces(void **state)
{
    (void)state;
    struct sl_thread_pool *p = pool_of(2);
    for (int i = 0; i < 20; i++) {
        struct meeting m = {{0, 0}};
        sl_thread_pool_run(p, meet, &m, 100);
        assert_int_equal(atomic_load(&m.at[0]), 1);
        assert_int_equal(atomic_load(&m.at[1]), 2);
    }
    sl_thread_pool_destroy(p);
}

static double cpu_seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* After a job, threads look for the next one for less than a millisecond each, then sleep. */
static void test_idle_costs_nothing(void **state)
{
    (void)state;
    static const int counts[] = {2, 8, SL_MAX_THREADS};
    static struct job j;
    for (size_t i = 0; i < SL_COUNT(counts); i++) {
        struct sl_thread_pool *p = pool_of(counts[i]);
        struct timespec ms20 = {0, 20000000}, ms200 = {0, 200000000};
        j.n_threads = counts[i];
        nanosleep(&ms20, NULL);
        for (int k = 0; k < 50; k++)
            sl_thread_pool_run(p, count_item, &j, 100);
        double before = cpu_seconds();
        nanosleep(&ms20, NULL);
        double spun = cpu_seconds() - before;
        assert_true(spun < 0.001 * (double)SL_MIN(counts[i], sl_cpu_count()) + 0.001);
        before = cpu_seconds();
        nanosleep(&ms200, NULL);
        assert_true(cpu_seconds() - before < 0.002);
        sl_thread_pool_destroy(p);
    }
}

static void test_bind(void **state)
{
    (void)state;
    struct sl_thread_pool *p = pool_of(3);
    static struct job j;
    int good[3] = {0, 0, 0}, bad[3] = {-1, 1023, 1023};
    j.n_threads = 3;
    /* Processor 0 may be outside of what this process may use; then no thread moves. */
    int n = sl_thread_pool_bind(p, good);
    assert_true(n == 2 || n == 0);
    assert_int_equal(sl_thread_pool_bind(p, bad), 0);
    j.number = 1;
    memset(j.runs, 0, sizeof j.runs);
    sl_thread_pool_run(p, count_item, &j, 1000);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(j.runs[i], 1);
    sl_thread_pool_destroy(p);
}

struct idler {
    _Atomic int calls[4], n_bad; /* calls: of each thread since the last job */
};

static bool idle_thrice(void *arg, int thread_idx)
{
    struct idler *d = arg;
    if (thread_idx < 0 || thread_idx >= 4)
        atomic_fetch_add(&d->n_bad, 1);
    return atomic_fetch_add(&d->calls[thread_idx & 3], 1) < 3;
}

/* Threads that wait call it, also after it has said no; jobs go on as before. */
static void test_idle_threads_help(void **state)
{
    (void)state;
    const int n = SL_MIN(4, sl_cpu_count());
    struct timespec ms = {0, 1000000};
    static struct idler d;
    static struct job j;
    struct sl_thread_pool *p = pool_of(n), *crowd = pool_of(sl_cpu_count() + 1);
    sl_thread_pool_set_idle(p, idle_thrice, &d);
    j.n_threads = n;
    for (j.number = 1; j.number <= 200; j.number++) {
        memset(j.runs, 0, sizeof j.runs);
        sl_thread_pool_run(p, count_item, &j, 100);
        for (int i = 0; i < 100; i++)
            assert_int_equal(j.runs[i], j.number);
        if (j.number % 20 == 0)
            nanosleep(&ms, NULL);
    }
    assert_int_equal(atomic_load(&d.n_bad), 0);
    for (int i = 1; i < n; i++)
        assert_true(atomic_load(&d.calls[i]) > 3);
    sl_thread_pool_destroy(p);
    memset(&d, 0, sizeof d);
    sl_thread_pool_set_idle(crowd, idle_thrice, &d); /* more threads than cores: none waits awake */
    j.n_threads = sl_cpu_count() + 1;
    sl_thread_pool_run(crowd, count_item, &j, 100);
    nanosleep(&ms, NULL);
    for (int i = 0; i < 4; i++)
        assert_int_equal(atomic_load(&d.calls[i]), 0);
    sl_thread_pool_destroy(crowd);
}

static int threads_left;

static int failing_thread_create(pthread_t *t, void *(*fn)(void *), void *arg)
{
    return threads_left-- > 0 ? sl_sys_real.thread_create(t, fn, arg) : 11;
}

static void test_create_fails(void **state)
{
    (void)state;
    struct sl_sys sys = sl_sys_real;
    struct sl_thread_pool *p;
    struct sl_error err;
    assert_int_equal(sl_thread_pool_create(0, &p, &err), SL_EINVAL);
    assert_int_equal(sl_thread_pool_create(SL_MAX_THREADS + 1, &p, &err), SL_EINVAL);
    sys.thread_create = failing_thread_create;
    sl_sys = &sys;
    for (int i = 0; i < 6; i++) {
        threads_left = i;
        assert_int_equal(sl_thread_pool_create(7, &p, &err), SL_ENOMEM);
        assert_null(p);
    }
    sl_sys = &sl_sys_real;
    sl_thread_pool_destroy(NULL);
}

/* ---------------------------------------------------------------- --bench */

static void empty_item(void *arg, uint32_t item, int thread_idx)
{
    (void)arg;
    (void)item;
    (void)thread_idx;
}

static void work_item(void *arg, uint32_t item, int thread_idx)
{
    volatile uint32_t *x = arg;
    (void)thread_idx;
    for (uint32_t i = 0; i < 2000; i++)
        x[64 * (item & 255)] = i;
}

/* Microseconds of one job, the best of several rounds. */
static double job_us(struct sl_thread_pool *p, sl_thread_pool_fn fn, void *arg, uint32_t n_items,
                     int n_jobs)
{
    double best = 1e30;
    for (int round = 0; round < 7; round++) {
        uint64_t t = sl_now_ns();
        for (int i = 0; i < n_jobs; i++)
            sl_thread_pool_run(p, fn, arg, n_items);
        best = SL_MIN(best, (double)(sl_now_ns() - t) / 1e3 / n_jobs);
    }
    return best;
}

static int bench(void)
{
    static const int counts[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
    static uint32_t x[64 * 256];
    printf("%d cores; microseconds a job\n", sl_cpu_count());
    printf("threads   empty, an item a thread   empty, 1024 items   2 items of ~0.5 us   256 items "
           "of ~0.5 us\n");
    for (size_t i = 0; i < SL_COUNT(counts); i++) {
        struct sl_thread_pool *p = pool_of(counts[i]);
        uint32_t n = (uint32_t)SL_MAX(counts[i], 2);
        (void)job_us(p, empty_item, NULL, n, 20);
        double a = job_us(p, empty_item, NULL, n, 5000), b = job_us(p, empty_item, NULL, 1024, 500);
        double c = job_us(p, work_item, x, 2, 2000), d = job_us(p, work_item, x, 256, 200);
        printf("%7d   %23.2f   %17.2f   %17.2f   %18.1f\n", counts[i], a, b, c, d);
        sl_thread_pool_destroy(p);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--bench") == 0)
        return bench();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_once),
        cmocka_unit_test(test_threads_begin_in_their_pieces),
        cmocka_unit_test(test_idle_costs_nothing),
        cmocka_unit_test(test_idle_threads_help),
        cmocka_unit_test(test_bind),
        cmocka_unit_test(test_create_fails),
    };
    return cmocka_run_group_tests_name("thread_pool", tests, NULL, NULL);
}
