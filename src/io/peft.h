/* SPDX-License-Identifier: MIT
 * peft.h - the files of a LoRA adapter as PEFT writes them: adapter_config.json and
 * adapter_model.safetensors in a folder.
 *
 * What the configuration asks for and this program does not compute (DoRA, biases, whole modules
 * ...) is refused by the setting's name, since without it the adapter would be another. Everything
 * in both files is untrusted. Immutable once open; pointers live until sl_peft_close.
 */
#ifndef SL_IO_PEFT_H
#define SL_IO_PEFT_H

#include "io/safetensors.h"
#include "quant/dtype.h"

#define SL_MAX_LORA_RANK 256

struct sl_peft;

struct sl_peft_tensor { /* A [rank, n_cols] or B [n_rows, rank] of a matrix of the model */
    const char *name;   /* in the file, for messages */
    const char *module; /* "model.layers.0.self_attn.q_proj", n_module bytes */
    size_t n_module;
    bool is_b;
    enum sl_dtype dtype; /* F32, F16 or BF16 */
    int64_t dims[2];
    const uint8_t *data; /* at any alignment */
    size_t n_bytes;
};

SL_MUST_CHECK int sl_peft_open(const char *dir, struct sl_peft **out, struct sl_error *err);
void sl_peft_close(struct sl_peft *p);

size_t sl_peft_n_tensors(const struct sl_peft *p);
/* Fails for what is no matrix of an adapter, by its name. */
SL_MUST_CHECK int sl_peft_tensor_at(const struct sl_peft *p, size_t idx, struct sl_peft_tensor *out,
                                    struct sl_error *err);
/* What a module's product with B is multiplied by; fails if its rank is not the configuration's.
 * A pattern of rank_pattern or alpha_pattern is a regular expression for the end of a module. */
SL_MUST_CHECK int sl_peft_scale(const struct sl_peft *p, const char *module, size_t n_module,
                                int64_t rank, float *out, struct sl_error *err);
/* Of both files' bytes: the same digest, the same adapter. */
uint64_t sl_peft_digest(const struct sl_peft *p);

#endif
