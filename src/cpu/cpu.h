/* SPDX-License-Identifier: MIT
 * cpu.h - the CPU backend: plain C reference of every op, AVX2 and AVX-512 kernels chosen at run
 * time, and a thread pool that sleeps when idle.
 */
#ifndef SL_CPU_CPU_H
#define SL_CPU_CPU_H

#include "ops/ops.h"

enum sl_cpu_isa { SL_ISA_AUTO, SL_ISA_C, SL_ISA_AVX2, SL_ISA_AVX512 };

/* isa names: "auto", "c", "avx2", "avx512"; an unknown or unavailable one is an error, never a
 * fallback. */
SL_MUST_CHECK int sl_cpu_isa_parse(const char *name, enum sl_cpu_isa *out, struct sl_error *err);

/* n_threads 0: one per core of this process. One caller at a time. */
SL_MUST_CHECK int sl_cpu_create(int n_threads, enum sl_cpu_isa isa, struct sl_backend **out,
                                struct sl_error *err);

#endif
