/* SPDX-License-Identifier: MIT
 * stage_plan.h - the memory plan of a model whose layers are divided among stages: what each one's
 * GPU has and takes, or those of its ranks together. On CPUs all stages are in one memory, and sums
 * are all there is to plan.
 */
#ifndef SL_ENGINE_STAGE_PLAN_H
#define SL_ENGINE_STAGE_PLAN_H

#include "base/err.h"
#include "base/limits.h"

#include <stddef.h>
#include <stdint.h>

struct sl_backend;
struct sl_device_runner_config;
struct sl_memory_plan;
struct sl_model;
struct sl_run_config;

struct sl_stage_plan {
    int32_t first, end;                  /* its layers */
    uint64_t packed_bytes, mapped_bytes; /* of weights */
    uint64_t step_bytes;                 /* activations, and what its steps take besides */
    uint64_t ram_bytes;                  /* that may be used of its GPUs */
    size_t page_bytes[SL_MAX_KV_GROUPS];
};

/* Weights and pages of each stage; the plan's sums are those of all. */
void sl_stage_plan_weights(const struct sl_model *model, struct sl_backend *be,
                           struct sl_memory_plan *p);
void sl_stage_plan_pages(struct sl_memory_plan *p);
/* What steps take, on a device; the plan's activations and runner are those of all stages. */
void sl_stage_plan_steps(const struct sl_model *model, struct sl_backend *be,
                         const struct sl_run_config *run,
                         const struct sl_device_runner_config *runner, struct sl_memory_plan *p);
/* Bytes for pages of all stages together, so that none has less room than its share. */
uint64_t sl_stage_plan_room(const struct sl_memory_plan *p);
/* Bytes of a group's pages on a stage. */
uint64_t sl_stage_plan_group_bytes(const struct sl_memory_plan *p, int32_t stage, int32_t group);
/* Does what each stage takes fit its GPUs? */
SL_MUST_CHECK int sl_stage_plan_check(const struct sl_memory_plan *p, struct sl_error *err);

#endif
