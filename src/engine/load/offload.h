/* SPDX-License-Identifier: MIT
 * offload.h - which layers' experts stay in host memory beside a device, and the backend that
 * computes them; decided together with the memory plan.
 */
#ifndef SL_ENGINE_OFFLOAD_H
#define SL_ENGINE_OFFLOAD_H

#include "engine/load/memory_plan.h"

/* The plan of a model on be as cfg asks for it. *host: the CPU backend that has the experts of some
 * layers, which the model was told of (sl_model_set_host), or NULL; to be destroyed after the
 * model, also if this fails. */
SL_MUST_CHECK int sl_offload_plan(struct sl_model *model, const struct sl_model *draft,
                                  struct sl_backend *be, const struct sl_engine_config *cfg,
                                  struct sl_backend **host, struct sl_memory_plan *plan,
                                  struct sl_error *err);

#endif
