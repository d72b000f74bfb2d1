/* SPDX-License-Identifier: MIT
 * device_draft.h - the model that drafts, on a backend that works behind its host: a pass
 * (struct sl_draft_pass) is one step and those that follow it without a wait, in which each draft
 * is the most likely token and the next step's input; or, of a drafter of blocks apart from the
 * text, a step of the text's rows and one of all blocks. Hidden rows of the model it drafts for
 * stay where that model's step left them.
 *
 * Engine thread only, but for create and destroy. Nothing is allocated after create.
 */
#ifndef SL_ENGINE_DEVICE_DRAFT_H
#define SL_ENGINE_DEVICE_DRAFT_H

#include "engine/runner.h"
#include "models/model.h"

struct sl_device_draft;

struct sl_device_draft_config {
    const struct sl_model *model;    /* NULL: none drafts */
    struct sl_run *run;              /* of it, */
    const struct sl_run *target_run; /* and of the model that it drafts for: for create */
    int32_t n_vocab;                 /* of that model */
    int32_t max_tokens, max_rows;    /* of a step of the run: tokens and rows of logits */
    int32_t max_seqs;                /* in a pass */
    int32_t max_drafts;              /* behind one sequence */
    int32_t block;                   /* tokens of a block of drafts; 0: one is made after another */
    int32_t max_model_len;
};

/* What its steps want of the limits of steps, which are those of the model it drafts for. */
void sl_device_draft_limits(const struct sl_device_draft_config *cfg, struct sl_step_limits *lim);
/* Device memory that create takes. */
uint64_t sl_device_draft_bytes(const struct sl_device_draft_config *cfg, struct sl_backend *be);
/* Errors: SL_ENOMEM. Behind vt->device->steps_init. */
SL_MUST_CHECK int sl_device_draft_create(const struct sl_device_draft_config *cfg,
                                         struct sl_backend *be, struct sl_device_draft **out,
                                         struct sl_error *err);
void sl_device_draft_destroy(struct sl_device_draft *d); /* NULL is allowed */
/* The draft and draft_end of struct sl_runner. */
int sl_device_draft_run(struct sl_device_draft *d, struct sl_draft_pass *pass,
                        struct sl_error *err);
int sl_device_draft_end(struct sl_device_draft *d, struct sl_draft_pass *pass,
                        struct sl_error *err);
uint64_t sl_device_draft_progress(const struct sl_device_draft *d); /* NULL: 0 */

#endif
