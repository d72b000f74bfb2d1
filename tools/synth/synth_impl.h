/* SPDX-License-Identifier: MIT
 * synth_impl.h - between synth.c (tensors), synth_int4.c (matrices of four-bit codes) and
 * synth_meta.c (config, metadata, vocabulary).
 */
#ifndef SL_SYNTH_IMPL_H
#define SL_SYNTH_IMPL_H

#include "base/buf.h"
#include "io/gguf_write.h"
#include "io/safetensors_write.h"
#include "models/internal.h"
#include "synth/synth.h"

/* config.json, generation_config.json and, if asked for, the tokenizer, into folder dir. */
SL_MUST_CHECK int sl_synth_write_configs(const struct sl_synth *s, const struct sl_model_desc *desc,
                                         const struct sl_model_name *name, const char *dir,
                                         struct sl_error *err);
SL_MUST_CHECK int sl_synth_add_metadata(const struct sl_synth *s, const struct sl_model_desc *desc,
                                        const struct sl_model_name *name, struct sl_gguf_writer *w,
                                        struct sl_error *err);

struct sl_synth_int4 { /* one matrix */
    enum sl_int4_kind kind;
    int64_t group; /* columns */
    bool symmetric;
    const char *name; /* "X.weight" */
    uint64_t key;
    int64_t n_rows, n_cols;
    enum sl_dtype scale_dtype;
};

SL_MUST_CHECK int sl_synth_int4_declare(const struct sl_synth_int4 *m, struct sl_st_writer *w,
                                        struct sl_error *err);
SL_MUST_CHECK int sl_synth_int4_write(const struct sl_synth_int4 *m, struct sl_st_writer *w,
                                      struct sl_error *err);
/* synth_lora.c: the next tensor's values, evenly spread with standard deviation scale, in F32, F16
 * or BF16. */
SL_MUST_CHECK int sl_synth_write_even(struct sl_st_writer *w, enum sl_dtype dtype, uint64_t key,
                                      float scale, int64_t n_rows, int64_t n_cols,
                                      struct sl_error *err);
/* quantization_config of config.json */
void sl_synth_int4_config(const struct sl_synth *s, struct sl_buf *b);

#endif
