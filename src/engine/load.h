/* SPDX-License-Identifier: MIT
 * load.h - the part of loading that `sluice inspect` needs without loading anything.
 */
#ifndef SL_ENGINE_LOAD_H
#define SL_ENGINE_LOAD_H

#include "ops/ops.h"

/* The backend that cfg's device, threads and instruction set ask for. */
SL_MUST_CHECK int sl_load_backend(const struct sl_engine_config *cfg, struct sl_backend **out,
                                  struct sl_error *err);

#endif
