/* SPDX-License-Identifier: MIT
 * synth_impl.h - between synth.c (tensors) and synth_meta.c (config, metadata, vocabulary).
 */
#ifndef SL_MODELS_SYNTH_IMPL_H
#define SL_MODELS_SYNTH_IMPL_H

#include "io/gguf_write.h"
#include "models/internal.h"
#include "models/synth.h"

/* config.json, generation_config.json and, if asked for, the tokenizer, into folder dir. */
SL_MUST_CHECK int sl_synth_write_configs(const struct sl_synth *s, const struct sl_model_desc *desc,
                                         const struct sl_model_name *name, const char *dir,
                                         struct sl_error *err);
SL_MUST_CHECK int sl_synth_add_metadata(const struct sl_synth *s, const struct sl_model_desc *desc,
                                        const struct sl_model_name *name, struct sl_gguf_writer *w,
                                        struct sl_error *err);

#endif
