/* SPDX-License-Identifier: MIT
 * kv_places.h - the formats of a model's KV pages: their names, and which layers keep another one.
 */
#ifndef SL_MODELS_KV_PLACES_H
#define SL_MODELS_KV_PLACES_H

#include "kv/layout.h"
#include "models/internal.h"

/* The format of --kv-cache-dtype; NULL and "auto" are auto_dtype. */
SL_MUST_CHECK int sl_kv_format_of(const char *name, enum sl_dtype auto_dtype, enum sl_dtype *out,
                                  struct sl_error *err);
/* Marks the layers that are exempt from l->dtype: the first and the last ones of coarse formats,
 * and those of list (--kv-cache-dtype-skip-layers, or NULL). SL_EUNSUPPORTED: others cannot have
 * that format. */
SL_MUST_CHECK int sl_kv_exempt_layers(const struct sl_model *m, const char *list,
                                      struct sl_kv_layout *l, struct sl_error *err);

#endif
