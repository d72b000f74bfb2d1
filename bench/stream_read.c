/* SPDX-License-Identifier: MIT
 * stream_read - how many bytes a second N threads read from memory: the ceiling that
 * bench/peer_llamacpp holds decoding against. Every thread writes, then reads again and again, its
 * own part of a buffer far larger than the caches; the figure is the best of several short runs,
 * since other work on the machine can only make it smaller.
 *
 *   stream_read THREADS [MEGABYTES]      prints bytes a second
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { RUNS = 9, MAX_THREADS = 1024, HUGE_PAGE = 2 << 20 };

typedef uint64_t wide __attribute__((vector_size(32)));

struct part {
    pthread_t thread;
    pthread_barrier_t *barrier;
    size_t n_bytes;
    double seconds[RUNS]; /* between the barriers around a run */
    uint64_t sink;        /* keeps the reads from being left out */
};

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static uint64_t read_all(const wide *p, size_t n)
{
    wide a[8] = {{0}};
    for (size_t i = 0; i < n; i += 8)
        for (size_t j = 0; j < 8; j++)
            a[j] ^= p[i + j];
    for (size_t j = 1; j < 8; j++)
        a[0] ^= a[j];
    return a[0][0] ^ a[0][1] ^ a[0][2] ^ a[0][3];
}

static void *reader(void *arg)
{
    struct part *p = arg;
    uint8_t *data = aligned_alloc(HUGE_PAGE, p->n_bytes);
    if (data == NULL) {
        fputs("stream_read: out of memory\n", stderr);
        exit(1);
    }
    madvise(data, p->n_bytes, MADV_HUGEPAGE); /* as weights lie; small pages cost a third */
    for (size_t i = 0; i < p->n_bytes; i += 8) {
        uint64_t v = i * 0x9E3779B97F4A7C15u;
        memcpy(data + i, &v, 8);
    }
    for (int r = 0; r < RUNS; r++) {
        pthread_barrier_wait(p->barrier);
        double start = now();
        p->sink ^= read_all((const wide *)(const void *)data, p->n_bytes / sizeof(wide));
        pthread_barrier_wait(p->barrier);
        p->seconds[r] = now() - start;
    }
    free(data);
    return NULL;
}

int main(int argc, char **argv)
{
    static struct part parts[MAX_THREADS];
    pthread_barrier_t barrier;
    long n = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
    long megabytes = argc > 2 ? strtol(argv[2], NULL, 10) : 1024;
    if (n < 1 || n > MAX_THREADS || megabytes < 2 * n) {
        fputs("usage: stream_read THREADS [MEGABYTES]\n", stderr);
        return 2;
    }
    size_t each = ((size_t)megabytes << 20) / (size_t)n / HUGE_PAGE * HUGE_PAGE;
    pthread_barrier_init(&barrier, NULL, (unsigned)n);
    for (long i = 0; i < n; i++) {
        parts[i].barrier = &barrier;
        parts[i].n_bytes = each;
        if (pthread_create(&parts[i].thread, NULL, reader, &parts[i]) != 0) {
            fputs("stream_read: cannot start a thread\n", stderr);
            return 1;
        }
    }
    for (long i = 0; i < n; i++)
        pthread_join(parts[i].thread, NULL);
    double best = 0;
    for (int r = 0; r < RUNS; r++) {
        double slowest = 0;
        for (long i = 0; i < n; i++)
            slowest = parts[i].seconds[r] > slowest ? parts[i].seconds[r] : slowest;
        double rate = (double)each * (double)n / slowest;
        best = rate > best ? rate : best;
    }
    volatile uint64_t sink = 0;
    for (long i = 0; i < n; i++)
        sink ^= parts[i].sink;
    (void)sink;
    printf("%.0f\n", best);
    return 0;
}
