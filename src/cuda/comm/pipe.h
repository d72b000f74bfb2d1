/* SPDX-License-Identifier: MIT
 * pipe.h - the hand-over between the stages of a pipeline, for the steps of each (step.cu).
 *
 * The residual stream of a step is copied from where a stage leaves it to an inbox of the next one,
 * and from there to where that one computes. There are two inboxes, in turns, so that a stage may
 * be done with a step before the next one is done with the step ahead of it. The ids that the last
 * stage chooses go to the first, to a place for each slot of struct sl_batch.
 */
#ifndef SL_CUDA_PIPE_H
#define SL_CUDA_PIPE_H

#include "cuda/device.h"

#define SL_PIPE_TURNS 2 /* inboxes of a stage */

struct sl_pipe_stage {
    struct sl_cuda *cu;
    uint8_t *rows;                    /* where its steps find them, and leave them */
    uint8_t *inbox;                   /* [SL_PIPE_TURNS, inbox_bytes]; NULL: it is the first */
    cudaEvent_t sent[SL_PIPE_TURNS];  /* its rows are in the next one's inbox */
    cudaEvent_t taken[SL_PIPE_TURNS]; /* its inbox is read */
    uint64_t n_steps;
};

struct sl_pipe {
    int n;
    size_t row_bytes, inbox_bytes;
    struct sl_pipe_stage stage[SL_MAX_STAGES];
    int32_t *ids; /* of the first stage's memory: [SL_MAX_STAGES, max_logits] */
    int32_t max_logits;
    cudaEvent_t chosen[SL_MAX_STAGES]; /* by slot: the ids are there */
};

static inline bool sl_pipe_is_last(const struct sl_pipe *p, int stage)
{
    return stage == p->n - 1;
}

/* The stage's step waits for what it needs: the ids of its slot, where it has tokens that are not
 * known yet, or the rows of n tokens from the stage before. */
void sl_cuda_pipe_await(struct sl_cuda *cu, const struct sl_batch *batch);
void sl_cuda_pipe_take(struct sl_cuda *cu, int32_t n);
/* Its rows go to the next stage. */
void sl_cuda_pipe_send(struct sl_cuda *cu, int32_t n);
/* The n ids that the last stage's step has chosen go to the first. */
void sl_cuda_pipe_chosen(struct sl_cuda *cu, int32_t slot, int32_t n);

#endif
