/* SPDX-License-Identifier: MIT
 * runner.h - what the engine needs from a model: one step from a batch to logits. The real one
 * wraps models/run.c; the simulator's hashes what it reads through the block tables; the null one
 * counts.
 *
 * Called by the engine thread only, never twice at once, and may not allocate. An error fails the
 * requests of that batch; SL_EDEVICE means that no later step can work and ends the engine's
 * service.
 */
#ifndef SL_ENGINE_RUNNER_H
#define SL_ENGINE_RUNNER_H

#include "base/err.h"
#include "ops/batch.h"

struct sl_runner {
    void *ctx;
    int32_t n_vocab;    /* width of a row of logits */
    int32_t max_logits; /* rows of logits one step can give; 0 = max_num_seqs. More rows make
                           prompt_logprobs faster: its chunks are cut to fit. */
    /* logits: [batch->n_logits, n_vocab], valid until the next step. */
    int (*step)(void *ctx, const struct sl_batch *batch, const float **logits,
                struct sl_error *err);
    /* Optional, instead of step: writes the chosen ids [batch->n_logits] itself. Requests that need
     * logits (logprobs, prompt_logprobs) are then refused. */
    int (*step_ids)(void *ctx, const struct sl_batch *batch, int32_t *ids, struct sl_error *err);
    /* Optional: runs items on the runner's n_threads threads between steps, so that tokens of
     * several sequences are chosen at once. */
    void (*run_items)(void *ctx, void (*fn)(void *arg, uint32_t item, int thread_idx), void *arg,
                      uint32_t n_items);
    int n_threads;
};

/* A runner that computes nothing: the token after t is t + 1 modulo n_vocab. Needs no destructor.
 * It measures what the engine and the server cost by themselves. */
void sl_null_runner_init(struct sl_runner *runner, int32_t n_vocab);

#endif
