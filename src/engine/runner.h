/* SPDX-License-Identifier: MIT
 * runner.h - what the engine needs from a model: steps from a batch to logits or to tokens. The
 * real one wraps models/run.c; the simulator's hashes what it reads through the block tables; the
 * null one counts.
 *
 * A runner has exactly one of three ways to work:
 *   step              computes in the call and gives logits, the engine chooses tokens;
 *   step_ids          computes in the call and gives tokens, from no logits;
 *   submit + choose + collect
 *                     starts a step without waiting and chooses tokens itself, which also feed the
 *                     next step: that one may be submitted before this one is collected.
 * Called by the engine thread only, never twice at once, and may not allocate. An error fails the
 * requests of that batch; SL_EDEVICE means that no later step can work and ends the engine's
 * service.
 */
#ifndef SL_ENGINE_RUNNER_H
#define SL_ENGINE_RUNNER_H

#include "base/err.h"
#include "engine/sample.h"
#include "ops/batch.h"

struct sl_pick {               /* what is wanted from a row of logits */
    struct sl_sample_args how; /* without logits; read until submit or choose returns */
    int32_t given; /* -1: choose a token as `how` says; else say how likely this one is */
    int32_t n_top; /* -1: no log probability; else that and the n_top best */
    bool skip;     /* nobody wants a token of this row: any may come of it, the rest is not set */
};

struct sl_picked {
    int32_t id; /* -1: the row holds NaN or infinity, or nothing that may be chosen */
    struct sl_logprob lp;
    const struct sl_top_logprob *top; /* [n_top], valid until the next collect */
};

struct sl_runner {
    void *ctx;
    int32_t n_vocab;    /* width of a row of logits */
    int32_t max_logits; /* rows of logits one step can give; 0 = max_num_seqs. More rows make
                           prompt_logprobs faster: its chunks are cut to fit. */
    /* With step: a row is not logits but so many values of the whole prompt, and a sequence is over
     * when its prompt is computed. 0: rows are logits. */
    int32_t n_pooled;
    bool whole; /* with n_pooled: a prompt goes into one step, and no page outlives it */
    /* logits: [batch->n_logits, n_vocab], valid until the next step. */
    int (*step)(void *ctx, const struct sl_batch *batch, const float **logits,
                struct sl_error *err);
    /* Writes the chosen ids [batch->n_logits]. Requests that need logits (logprobs,
     * prompt_logprobs, penalties) are refused. */
    int (*step_ids)(void *ctx, const struct sl_batch *batch, int32_t *ids, struct sl_error *err);
    /* picks: [batch->n_logits]; NULL: some need the tokens of the step before, so this step's are
     * chosen by a call of choose before the next submit. A token of the batch below 0 is what the
     * step submitted before chose from row -1 - token. The batch and what picks point to may change
     * after the call. If it fails, all steps before are collected before the next one: the runner
     * may have begun with the step, and written over what they chose. */
    int (*submit)(void *ctx, const struct sl_batch *batch, const struct sl_pick *picks,
                  struct sl_error *err);
    /* The other half of the step submitted last. If it fails, that step is over and not collected.
     */
    int (*choose)(void *ctx, const struct sl_pick *picks, struct sl_error *err);
    /* Results of the oldest step not collected: [n_logits of it]. */
    int (*collect)(void *ctx, struct sl_picked *out, struct sl_error *err);
    /* Optional, with submit: the runner counts the tokens of penalised sequences itself. Without it
     * the next token of such a sequence is chosen when its last one is known. Called when a
     * sequence ends, or when a token it chose is taken back: counts (pick.how.counts) will not be
     * used again, or are to be read anew. */
    void (*forget)(void *ctx, const struct sl_counts *counts);
    /* Optional: runs items on the runner's n_threads threads between steps, so that tokens of
     * several sequences are chosen at once. */
    void (*run_items)(void *ctx, void (*fn)(void *arg, uint32_t item, int thread_idx), void *arg,
                      uint32_t n_items);
    int n_threads;
    /* Optional, with submit: adds up how long the device worked, and stood idle, between steps. */
    void (*times)(const void *ctx, double *busy_s, double *gap_s);
    /* Optional, any thread: grows while a step computes, for steps that may take long. */
    uint64_t (*progress)(const void *ctx);
};

/* A runner that computes nothing: the token after t is t + 1 modulo n_vocab. Needs no destructor.
 * It measures what the engine and the server cost by themselves. */
void sl_null_runner_init(struct sl_runner *runner, int32_t n_vocab);

#endif
