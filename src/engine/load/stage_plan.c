/* SPDX-License-Identifier: MIT */
#include "engine/load/stage_plan.h"

#include "base/check.h"
#include "engine/device_runner.h"
#include "engine/load/memory_plan.h"
#include "models/model.h"

void sl_stage_plan_weights(const struct sl_model *model, struct sl_backend *be,
                           struct sl_memory_plan *p)
{
    p->packed_bytes = p->mapped_bytes = 0;
    for (int32_t s = 0; s < p->n_stages; s++) {
        struct sl_stage_plan *stage = &p->stages[s];
        sl_model_stage_layers(model, s, &stage->first, &stage->end);
        sl_model_stage_memory(model, s, be, &stage->packed_bytes, &stage->mapped_bytes);
        p->packed_bytes += stage->packed_bytes;
        p->mapped_bytes += stage->mapped_bytes;
    }
}

void sl_stage_plan_pages(struct sl_memory_plan *p)
{
    for (int32_t s = 0; s < p->n_stages; s++) {
        struct sl_kv_layout own = p->kv;
        SL_ASSERT(p->stages[s].end > p->stages[s].first);
        sl_kv_layout_stage(&own, p->stages[s].first, p->stages[s].end);
        for (int32_t g = 0; g < p->kv.n_groups; g++)
            p->stages[s].page_bytes[g] = own.groups[g].page_bytes;
    }
}

/* Logits are the last stage's; the runs of the others have no room for them. */
static uint64_t activation_bytes(const struct sl_model *model, struct sl_backend *be,
                                 const struct sl_run_config *run, bool is_last)
{
    const struct sl_model_facts *f = sl_model_facts(model);
    const uint64_t logits =
        (uint64_t)run->max_logits * (uint64_t)f->n_row * sizeof(float); /* model is the last one */
    const uint64_t all = sl_run_bytes(model, be, run);
    SL_ASSERT(f->stage == f->n_stages - 1 && f->rank == 0 && all > logits);
    return is_last ? all : all - logits;
}

void sl_stage_plan_steps(const struct sl_model *model, struct sl_backend *be,
                         const struct sl_run_config *run,
                         const struct sl_device_runner_config *runner, struct sl_memory_plan *p)
{
    p->activation_bytes = p->runner_bytes = 0;
    for (int32_t s = 0; s < p->n_stages; s++) {
        const bool is_last = s == p->n_stages - 1;
        const uint64_t n_ranks = (uint64_t)sl_model_facts(model)->n_ranks; /* like the first one */
        const uint64_t activations = activation_bytes(model, be, run, is_last) * n_ranks;
        uint64_t steps = 0;
        if (runner != NULL)
            steps = n_ranks * ((is_last ? sl_device_runner_bytes(model, be, runner)
                                        : sl_device_runner_part_bytes(model, be, runner)) +
                               (s > 0 ? sl_device_runner_inbox_bytes(model, runner) : 0));
        p->stages[s].step_bytes = activations + steps;
        p->activation_bytes += activations;
        p->runner_bytes += steps;
    }
}

/* The largest part of a group's page that is the stage's. */
static double share_of(const struct sl_memory_plan *p, int32_t stage)
{
    double most = 0;
    for (int32_t g = 0; g < p->kv.n_groups; g++)
        most = SL_MAX(most,
                      (double)p->stages[stage].page_bytes[g] / (double)p->kv.groups[g].page_bytes);
    return most;
}

uint64_t sl_stage_plan_room(const struct sl_memory_plan *p)
{
    double least = -1;
    for (int32_t s = 0; s < p->n_stages; s++) {
        const struct sl_stage_plan *stage = &p->stages[s];
        const uint64_t taken = stage->packed_bytes + stage->step_bytes;
        const double share = share_of(p, s);
        if (share == 0) /* none of its layers keeps anything */
            continue;
        const double room =
            stage->ram_bytes > taken ? (double)(stage->ram_bytes - taken) / share : 0;
        least = least < 0 ? room : SL_MIN(least, room);
    }
    return (uint64_t)SL_MAX(least, 0.0);
}

uint64_t sl_stage_plan_group_bytes(const struct sl_memory_plan *p, int32_t stage, int32_t group)
{
    SL_ASSERT(stage >= 0 && stage < p->n_stages && group < p->kv.n_groups);
    return sl_memory_plan_group_bytes(p, group) / p->kv.groups[group].page_bytes *
           p->stages[stage].page_bytes[group];
}

int sl_stage_plan_check(const struct sl_memory_plan *p, struct sl_error *err)
{
    for (int32_t s = 0; p->on_device && s < p->n_stages; s++) {
        const struct sl_stage_plan *stage = &p->stages[s];
        uint64_t pages = 0;
        for (int32_t g = 0; g < p->kv.n_groups; g++)
            pages += sl_stage_plan_group_bytes(p, s, g);
        if (stage->packed_bytes + stage->step_bytes + pages > stage->ram_bytes)
            return sl_fail(
                err, SL_ENOMEM,
                "pipeline_parallel_size: stage %d with layers %d to %d takes %.1f GB of "
                "weights, %.1f GB of KV pages and %.1f GB for steps, and its GPU or GPUs "
                "have %.1f GB: divide the layers otherwise (--pipeline-parallel-layers), or "
                "lower --max-model-len or --kv-cache-memory-bytes",
                s, stage->first, stage->end - 1, (double)stage->packed_bytes / 1e9,
                (double)pages / 1e9, (double)stage->step_bytes / 1e9,
                (double)stage->ram_bytes / 1e9);
    }
    return 0;
}
