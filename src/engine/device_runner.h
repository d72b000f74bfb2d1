/* SPDX-License-Identifier: MIT
 * device_runner.h - the runner of a model on a backend that works behind its host (ops/device.h):
 * a step is enqueued with what its rows are sampled by, tokens are chosen on the device and read
 * one step later.
 *
 * Engine thread only, but for create and destroy. Nothing is allocated after create.
 */
#ifndef SL_ENGINE_DEVICE_RUNNER_H
#define SL_ENGINE_DEVICE_RUNNER_H

#include "engine/device_draft.h"
#include "engine/runner.h"
#include "models/model.h"

struct sl_device_runner;
struct sl_ranks;

struct sl_device_runner_config {
    int32_t max_tokens, max_seqs, max_logits; /* of a step */
    int32_t max_drafts;                       /* behind one sequence */
    int32_t max_model_len;
    int32_t n_pages[SL_MAX_KV_GROUPS]; /* of each group; pools of keys have one more, for padding */
    struct sl_kv_layout kv;
    int32_t max_loras, max_lora_rank; /* adapters on the device; 0: none */
    const struct sl_model *draft;     /* a model that drafts, or NULL; */
    int32_t draft_tokens, draft_rows; /* of a step of its run, */
    int32_t draft_block;              /* and of a block of its drafts; 0: it makes none */
    struct sl_run *draft_run;         /* for create: of it; */
    struct sl_ranks *ranks;           /* likewise, where the model is one of several; or NULL */
    int32_t n_stages;                 /* of these, if they are stages; 0 or 1: they are not */
    uint8_t *pools[SL_MAX_KV_GROUPS]; /* of pages that are copied; NULL in the first: none is */
};

/* Device memory create takes. */
uint64_t sl_device_runner_bytes(const struct sl_model *m, struct sl_backend *be,
                                const struct sl_device_runner_config *cfg);
/* The same of a stage that is not the last one; and what a stage takes of what comes from the one
 * before it. */
uint64_t sl_device_runner_part_bytes(const struct sl_model *m, struct sl_backend *be,
                                     const struct sl_device_runner_config *cfg);
uint64_t sl_device_runner_inbox_bytes(const struct sl_model *m,
                                      const struct sl_device_runner_config *cfg);
SL_MUST_CHECK int sl_device_runner_create(const struct sl_model *m, struct sl_backend *be,
                                          struct sl_run *run,
                                          const struct sl_device_runner_config *cfg,
                                          struct sl_device_runner **out, struct sl_error *err);
void sl_device_runner_destroy(struct sl_device_runner *d);
void sl_device_runner_use(struct sl_device_runner *d, struct sl_runner *r);

#endif
