/* SPDX-License-Identifier: MIT
 * runner.h - what the engine needs from a model: one step from a batch to logits. The real one
 * wraps models/run.c; the simulator's hashes what it reads through the block tables; the null one
 * counts.
 */
#ifndef SL_ENGINE_RUNNER_H
#define SL_ENGINE_RUNNER_H

#include "base/err.h"
#include "ops/batch.h"

struct sl_runner {
    void *ctx;
    int32_t n_vocab; /* width of a row of logits */
    /* logits: [batch->n_logits, n_vocab], valid until the next step. */
    int (*step)(void *ctx, const struct sl_batch *batch, const float **logits,
                struct sl_error *err);
};

#endif
