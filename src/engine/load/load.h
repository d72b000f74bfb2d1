/* SPDX-License-Identifier: MIT
 * load.h - the part of loading that `sluice inspect` needs without loading anything.
 */
#ifndef SL_ENGINE_LOAD_H
#define SL_ENGINE_LOAD_H

#include "models/model.h"

/* What the model is to do, by the configuration and by its own files, and among how many ranks it
 * is divided: it is the first of them. */
SL_MUST_CHECK int sl_load_task(struct sl_model *model, const struct sl_ckpt *ckpt,
                               const struct sl_engine_config *cfg, struct sl_error *err);
/* The backend that cfg's device, threads and instruction set ask for, for a model that has its
 * task and its rank. */
SL_MUST_CHECK int sl_load_backend(const struct sl_model *model, const struct sl_engine_config *cfg,
                                  struct sl_backend **out, struct sl_error *err);

struct sl_device_memory;
/* What there is on the device of one of several parts (sl_model_part), before it is loaded. */
SL_MUST_CHECK int sl_load_rank_memory(const struct sl_model_facts *f, int32_t rank,
                                      const struct sl_engine_config *cfg,
                                      struct sl_device_memory *out, struct sl_error *err);

/* Bytes of repacked weights that stay in memory where there is an offload_folder. */
uint64_t sl_load_weights_memory(const struct sl_engine_config *cfg);

/* The CPU backend that cfg asks for. */
SL_MUST_CHECK int sl_load_cpu(const struct sl_model_facts *f, const struct sl_engine_config *cfg,
                              struct sl_backend **out, struct sl_error *err);

#endif
