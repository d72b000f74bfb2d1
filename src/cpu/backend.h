/* SPDX-License-Identifier: MIT
 * backend.h - the CPU backend's own struct and the operations it is made of.
 *
 * Everything an operation needs is allocated when the backend is created; no operation allocates or
 * fails. One caller at a time; the operations spread over the pool inside.
 */
#ifndef SL_CPU_BACKEND_H
#define SL_CPU_BACKEND_H

#include "base/limits.h"
#include "cpu/kernels.h"
#include "cpu/pool.h"

/* What one thread works in. */
struct sl_cpu_scratch {
    _Alignas(64) float panel[SL_CPU_ROWS * SL_CPU_K];
    float acc[SL_CPU_SUPER * SL_CPU_TOKENS * SL_CPU_LANES];
    float gate[SL_CPU_TOKENS * SL_CPU_SUPER], up[SL_CPU_TOKENS * SL_CPU_SUPER];
    float query[SL_CPU_QUERY * SL_MAX_HEAD_DIM];
    float kv[SL_CPU_KEYS * SL_MAX_HEAD_DIM];
    float score[SL_CPU_QUERY * SL_CPU_SPLIT];
    float o[SL_CPU_QUERY * SL_MAX_HEAD_DIM];     /* of a split */
    float state[SL_CPU_QUERY * SL_MAX_HEAD_DIM]; /* of the splits so far */
    float split_ml[SL_CPU_QUERY * 2], state_ml[SL_CPU_QUERY * 2];
};

struct sl_cpu {
    struct sl_backend base;
    struct sl_cpu_kernels k;
    const char *isa_name;
    struct sl_pool *pool;
    int n_threads;
    struct sl_cpu_scratch *scratch; /* [n_threads] */
    float *partials;                /* splits of a long context between threads */
    size_t n_partials;              /* floats */
    int32_t *first_block;           /* [SL_MAX_SEQS + 1] row blocks before each span */
};

static inline struct sl_cpu *sl_cpu(struct sl_backend *be)
{
    return (struct sl_cpu *)be;
}

/* Runs the items on the pool, or here when all of them together are not worth waking it: work is
 * about the number of multiplications. */
void sl_cpu_run(struct sl_cpu *cpu, sl_pool_fn fn, void *arg, int64_t n_items, int64_t work);

#define SL_OP(name) void sl_cpu_##name(struct sl_backend *be, const struct sl_op_##name *a);
#include "ops/ops.def"
#undef SL_OP

/* The best instruction set of this processor and operating system. */
enum sl_cpu_isa sl_cpu_isa_best(void);
const char *sl_cpu_isa_name(enum sl_cpu_isa isa);

#endif
