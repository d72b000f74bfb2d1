/* SPDX-License-Identifier: MIT
 * rank_stage.h - a step of a model whose stages are processes of their own: each computes its
 * layers when the rows of the stage before it have come over the link (dist/link.h).
 */
#ifndef SL_ENGINE_RANK_STAGE_H
#define SL_ENGINE_RANK_STAGE_H

#include "dist/link.h"
#include "models/model.h"

/* Of the link: the rows that a stage hands over. */
size_t sl_rank_stage_room(const struct sl_model *model, int32_t max_tokens);
/* All stages call it with the same batch. rows: what the last one's run gives. SL_ERANK: the link
 * is lost, and says why. */
SL_MUST_CHECK int sl_rank_stage_step(struct sl_link *link, const struct sl_model *model,
                                     struct sl_run *run, const struct sl_batch *batch,
                                     const float **rows);

#endif
