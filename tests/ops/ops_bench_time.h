/* SPDX-License-Identifier: MIT
 * ops_bench_time.h - the clock of the benchmarks of operations.
 */
#ifndef TESTS_OPS_BENCH_TIME_H
#define TESTS_OPS_BENCH_TIME_H

#include "ops_util.h"

#include <time.h>

#define BENCH_RUNS 9

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef void (*bench_fn)(void *arg);

static uint64_t bench_ns(int n_threads)
{
    struct timespec ts;
    clock_gettime(n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static double median_seconds(bench_fn fn, void *arg, int n_threads)
{
    double s[BENCH_RUNS];
    fn(arg);
    for (int i = 0; i < BENCH_RUNS; i++) {
        uint64_t t0 = bench_ns(n_threads);
        int n = 0;
        do {
            fn(arg);
            n++;
        } while (bench_ns(n_threads) - t0 < 20000000);
        s[i] = 1e-9 * (double)(bench_ns(n_threads) - t0) / n;
    }
    qsort(s, BENCH_RUNS, sizeof s[0], by_value);
    return s[BENCH_RUNS / 2];
}

#endif
