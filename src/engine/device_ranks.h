/* SPDX-License-Identifier: MIT
 * device_ranks.h - steps of a model that is divided among several devices (engine/ranks.h), for
 * the runner of its rank 0: every rank enqueues each step, each on a thread of its own, since their
 * devices wait for one another. What rank 0 chooses goes to the others on the devices, where their
 * next steps find it; the host reads rank 0's results alone. Stages of a pipeline enqueue it one
 * after the other, each on all of its ranks, and what the last one chooses goes to the first.
 *
 * Engine thread only, but for create and destroy. Nothing is allocated after create.
 */
#ifndef SL_ENGINE_DEVICE_RANKS_H
#define SL_ENGINE_DEVICE_RANKS_H

#include "engine/device_lora.h"
#include "engine/ranks.h"
#include "ops/device.h"

struct sl_device_ranks;

/* Those of the other ranks, whose steps bring nothing for a sampler and leave nothing. */
struct sl_step_limits sl_device_ranks_limits(const struct sl_step_limits *limits);
/* limits: of rank 0's steps, which are begun there already (steps_init). lora: the room that rank 0
 * has for adapters, none if it has no slots; the others get as much. */
SL_MUST_CHECK int sl_device_ranks_create(struct sl_ranks *ranks,
                                         const struct sl_step_limits *limits,
                                         const struct sl_device_lora *lora,
                                         struct sl_device_ranks **out, struct sl_error *err);
/* When rank 0's device has nothing more to do; NULL is fine. */
void sl_device_ranks_destroy(struct sl_device_ranks *d);
/* On the other ranks: what each has of an adapter, to the slot that it has on rank 0. */
void sl_device_ranks_put_adapter(struct sl_device_ranks *d, const struct sl_lora_weights *w,
                                 int32_t slot);
/* As of struct sl_device_vt, with rank 0's arguments; the error is of the lowest rank that failed.
 * A ticket is rank 0's. */
SL_MUST_CHECK int sl_device_ranks_step(struct sl_device_ranks *d, const struct sl_step *step,
                                       sl_forward_fn forward, void *arg, uint64_t *ticket,
                                       struct sl_error *err);
SL_MUST_CHECK int sl_device_ranks_choose(struct sl_device_ranks *d, const struct sl_step *step,
                                         sl_forward_fn forward, void *arg, struct sl_error *err);
/* All ranks have ended the step of that ticket; ids and results are rank 0's. */
SL_MUST_CHECK int sl_device_ranks_wait(struct sl_device_ranks *d, uint64_t ticket,
                                       const int32_t **ids, const void **results,
                                       struct sl_error *err);
/* Of a stage's first rank; of ranks that are of no stages, stage 0. */
void sl_device_ranks_times(const struct sl_device_ranks *d, int stage, struct sl_device_times *out);
/* In rank 0's forward, behind the choice: the ids go to the others. */
void sl_device_ranks_share(struct sl_device_ranks *d, int32_t n);
/* A bit of a step's variant: each row takes its best token of the logits as they are, which every
 * rank finds among its own (sl_device_vt.best_ids). */
#define SL_STEP_BEST 0x80000000u
/* Whether ranks do that. */
bool sl_device_ranks_may_best(const struct sl_device_ranks *d);
/* In the forward of such a step, on any rank: in place of sl_run_enqueue, a choice and a share. */
void sl_device_ranks_best(struct sl_backend *be, struct sl_run *run, const struct sl_batch *batch);

#endif
