/* SPDX-License-Identifier: MIT
 * shared.h - what the engines of one process share: the bytes of KV pages (kv/budget.h), the
 * compute threads of the CPU, and the order in which engines use them.
 *
 * Two engines that both compute on the CPU take turns step by step, in the order they asked, on one
 * set of threads: with a set each they would hold each other up at every barrier. Any thread; made
 * before the engines, destroyed after them.
 */
#ifndef SL_ENGINE_SHARED_H
#define SL_ENGINE_SHARED_H

#include "base/turn.h"
#include "cpu/cpu.h"
#include "kv/budget.h"

#include "sluice.h"

#include <stdatomic.h>

struct sl_shared {
    struct sl_budget budget;
    int32_t n_engines; /* that are to share */
    bool given;        /* the budget was, not taken from the machine's memory */
    struct sl_turn steps;
    _Atomic uint64_t n_steps; /* of all engines: who waits for its turn has not stopped moving */
    pthread_mutex_t lock;
    struct sl_cpu_threads *threads; /* lock; made by the first engine that needs them */
    uint64_t taken_bytes;           /* lock; by weights and steps of the engines so far */
};

SL_MUST_CHECK int sl_shared_threads(struct sl_shared *s, const struct sl_cpu_config *cfg,
                                    struct sl_cpu_threads **out, struct sl_error *err);
uint64_t sl_shared_taken(struct sl_shared *s);
void sl_shared_add_taken(struct sl_shared *s, uint64_t n_bytes);
void sl_shared_sub_taken(struct sl_shared *s, uint64_t n_bytes);

#endif
