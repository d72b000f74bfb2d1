/* SPDX-License-Identifier: MIT
 * measure.c - what reading of memory and copies to, from and between GPUs reach.
 */
#include "machine/machine.h"

#include "base/check.h"
#include "base/sys.h"
#include "cuda/cuda.h"

#include <string.h>

#define PART_BYTES  (64u << 20) /* that a thread reads: more than its share of any cache */
#define N_ROUNDS    4
#define MAX_READERS 256
#define GPU_BYTES   ((size_t)1 << 30)

struct reader {
    pthread_t thread;
    uint64_t *words;
    uint64_t sum;
};

static void *read_part(void *arg)
{
    struct reader *r = arg;
    const size_t n = PART_BYTES / sizeof *r->words;
    uint64_t sums[8] = {0};
    for (size_t i = 0; i + SL_COUNT(sums) <= n; i += SL_COUNT(sums))
        for (size_t k = 0; k < SL_COUNT(sums); k++)
            sums[k] += r->words[i + k];
    for (size_t k = 0; k < SL_COUNT(sums); k++)
        r->sum += sums[k];
    return NULL;
}

static void *fill_part(void *arg)
{
    struct reader *r = arg;
    memset(r->words, 1, PART_BYTES); /* by the thread that reads it: its node has the memory */
    return NULL;
}

/* Runs fn on a thread for each part; false: not all of them could be started. */
static bool run_readers(struct reader *readers, int n, void *(*fn)(void *))
{
    struct sl_error err;
    int started = 0;
    while (started < n &&
           sl_thread_create(&readers[started].thread, fn, &readers[started], "sl-read", &err) == 0)
        started++;
    for (int i = 0; i < started; i++)
        pthread_join(readers[i].thread, NULL);
    return started == n;
}

/* The best of some rounds. */
static double read_rate(int n_threads)
{
    struct reader *readers = sl_calloc((size_t)n_threads, sizeof *readers);
    double best = 0;
    bool ok = readers != NULL;
    for (int i = 0; ok && i < n_threads; i++)
        ok = (readers[i].words = sl_aligned_alloc(PART_BYTES)) != NULL;
    ok = ok && run_readers(readers, n_threads, fill_part);
    for (int round = 0; ok && round < N_ROUNDS; round++) {
        const uint64_t start = sl_now_ns();
        ok = run_readers(readers, n_threads, read_part);
        const double s = (double)(sl_now_ns() - start) / 1e9;
        if (ok && s > 0)
            best = SL_MAX(best, (double)n_threads * PART_BYTES / s);
    }
    for (int i = 0; readers != NULL && i < n_threads; i++)
        sl_aligned_free(readers[i].words, PART_BYTES);
    sl_free(readers);
    return best;
}

/* The device of CUDA's that a GPU is, whose order may be another; -1: none. */
static int device_of(const struct sl_machine_gpu *g, struct sl_cuda_facts *facts)
{
    for (int i = 0; i < sl_cuda_count(); i++)
        if (sl_cuda_facts(i, facts) && strcmp(facts->pci, g->pci) == 0)
            return i;
    return -1;
}

void sl_machine_served(struct sl_machine *m)
{
    struct sl_cuda_facts facts;
    for (int32_t i = 0; i < m->n_gpus; i++)
        m->gpus[i].served = device_of(&m->gpus[i], &facts) >= 0 && facts.served;
}

static void measure_gpus(struct sl_machine *m)
{
    struct sl_cuda_rates rates;
    struct sl_cuda_facts facts;
    for (int32_t i = 0; i < m->n_gpus; i++) {
        struct sl_machine_gpu *g = &m->gpus[i];
        const int device = device_of(g, &facts);
        if (device < 0 || !sl_cuda_measure(device, GPU_BYTES, &rates))
            continue;
        g->memory.measured = rates.memory;
        g->from_host.measured = rates.from_host;
        g->to_host.measured = rates.to_host;
        for (int32_t k = 0; k < m->n_gpus; k++) {
            const int other = k == i ? -1 : device_of(&m->gpus[k], &facts);
            if (other >= 0 && m->links[i][k].peers)
                m->links[i][k].rate.measured = sl_cuda_measure_pair(device, other, GPU_BYTES);
        }
    }
}

void sl_machine_measure(struct sl_machine *m)
{
    SL_ASSERT(m->n_cpus >= 1);
    m->ram.measured = read_rate(SL_MIN(m->n_cpus, MAX_READERS));
    measure_gpus(m);
}
