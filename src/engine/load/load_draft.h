/* SPDX-License-Identifier: MIT
 * load_draft.h - a model that drafts for another one, on its backend. All of it is empty where the
 * configuration asks for none. Functions that return an int return the first error of what they
 * open or allocate.
 */
#ifndef SL_ENGINE_LOAD_DRAFT_H
#define SL_ENGINE_LOAD_DRAFT_H

#include "engine/load/memory_plan.h"
#include "text/tokenizer/tokenizer.h"

struct sl_load_draft { /* zero-initialise */
    struct sl_ckpt *ckpt;
    struct sl_model *model;
    struct sl_run *run;
    uint8_t *pool;
    uint64_t pool_bytes;
};

/* Finds the drafter that cfg names. Refuses one whose vocabulary is not tok. One that reads hidden
 * rows of the model may be in the model's own checkpoint, and is closed before the model. */
SL_MUST_CHECK int sl_load_draft_open(const struct sl_engine_config *cfg,
                                     const struct sl_model *model, const struct sl_ckpt *ckpt,
                                     const struct sl_tokenizer *tok, struct sl_load_draft *out,
                                     struct sl_error *err);
SL_MUST_CHECK int sl_load_draft_weights(struct sl_load_draft *d, const struct sl_engine_config *cfg,
                                        const struct sl_memory_plan *plan, struct sl_backend *be,
                                        struct sl_error *err);
/* Pages and activations. */
SL_MUST_CHECK int sl_load_draft_start(struct sl_load_draft *d, const struct sl_memory_plan *plan,
                                      uint8_t *const *pools, struct sl_backend *be,
                                      struct sl_error *err);
/* Does it read hidden rows of the model? */
bool sl_load_draft_reads_rows(const struct sl_load_draft *d);
void sl_load_draft_stop(struct sl_load_draft *d, struct sl_backend *be);
void sl_load_draft_close(struct sl_load_draft *d); /* it is stopped */

#endif
