/* SPDX-License-Identifier: MIT
 * cpu.h - the CPU backend: plain C reference of every op, AVX2 and AVX-512 kernels chosen at run
 * time, and a thread pool that sleeps when idle.
 */
#ifndef SL_CPU_CPU_H
#define SL_CPU_CPU_H

#include "ops/ops.h"

/* Each includes the ones before it. */
enum sl_cpu_isa {
    SL_ISA_AUTO,
    SL_ISA_C,
    SL_ISA_AVX2,        /* with FMA and F16C */
    SL_ISA_AVX512,      /* F, BW, VL, DQ */
    SL_ISA_AVX512_VNNI, /* dot products of bytes */
    SL_ISA_AVX512_BF16, /* dot products of BF16 pairs */
    SL_ISA_AMX,         /* tiles of bytes and BF16 */
};

/* isa names: "auto", "c", "avx2", "avx512", "avx512-vnni", "avx512-bf16", "amx"; an unknown or
 * unavailable one is an error, never a fallback. */
SL_MUST_CHECK int sl_cpu_isa_parse(const char *name, enum sl_cpu_isa *out, struct sl_error *err);

struct sl_cpu_threads; /* compute threads that several backends share */

struct sl_cpu_config {
    int n_threads; /* 0: one per core of this process */
    enum sl_cpu_isa isa;
    bool exact; /* weights of block formats are multiplied as the floats they stand for: slower, the
                   yardstick for the routes that quantise activations */
    bool numa;  /* on a machine of several memory nodes, bind threads to processors */
    int rank, n_ranks; /* of several backends with n_threads each: threads of one stay together.
                          n_ranks 0: it is alone */
    /* Where packed weights go that do not fit into so many bytes; NULL: all stay in memory. */
    const char *offload_folder;
    uint64_t weights_memory_bytes;
    struct sl_cpu_threads *threads; /* NULL: its own; else outlives it, n_threads and numa are not
                                       used */
};

/* Backends on the same threads may be called at once by different threads: operations take turns.
 * Only n_threads and numa of the configuration are used. */
SL_MUST_CHECK int sl_cpu_threads_create(const struct sl_cpu_config *cfg,
                                        struct sl_cpu_threads **out, struct sl_error *err);
void sl_cpu_threads_destroy(struct sl_cpu_threads *t); /* NULL is fine */

struct sl_link; /* dist/link.h */

/* For ops of all_gather: what n_ranks backends, each called by a thread of its own, share. */
SL_MUST_CHECK int sl_cpu_comm_create(int n_ranks, struct sl_comm **out, struct sl_error *err);
/* The same where each rank is a process of its own. The link is another one for each meeting of
 * those processes; NULL: they have none now, and gathers say that a rank is lost. */
SL_MUST_CHECK int sl_cpu_comm_create_linked(int n_ranks, struct sl_comm **out,
                                            struct sl_error *err);
void sl_cpu_comm_link(struct sl_comm *c, struct sl_link *link); /* between steps */
void sl_cpu_comm_destroy(struct sl_comm *c);                    /* NULL is fine */

/* One caller at a time. */
SL_MUST_CHECK int sl_cpu_create(const struct sl_cpu_config *cfg, struct sl_backend **out,
                                struct sl_error *err);

#endif
