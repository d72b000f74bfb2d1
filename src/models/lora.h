/* SPDX-License-Identifier: MIT
 * lora.h - an adapter bound to a model: its matrices in the order of the model's, packed for the
 * kernels (ops/lora.h).
 *
 * Any thread may open one while the model runs. Immutable; the files are not needed afterwards.
 */
#ifndef SL_MODELS_LORA_H
#define SL_MODELS_LORA_H

#include "models/model.h"
#include "ops/lora.h"

struct sl_lora {
    struct sl_lora_weights w; /* id: the caller's to set */
    struct sl_lora_mat *mats; /* [w.n_mats] */
    uint8_t *block;           /* w.block */
    uint64_t digest;          /* of the files */
};

struct sl_lora_options {
    int32_t max_rank; /* SL_ELIMIT above */
    bool bf16;        /* numbers are rounded to BF16, for a device; else they stay as they are */
};

/* dir: a folder as PEFT writes it. Every tensor must belong to a linear layer of the model, in its
 * shape, and hold finite numbers. */
SL_MUST_CHECK int sl_lora_open(const struct sl_model *m, const char *dir,
                               const struct sl_lora_options *opt, struct sl_lora **out,
                               struct sl_error *err);
void sl_lora_close(struct sl_lora *l);
/* Bytes of an adapter of that rank for all matrices, in BF16. */
uint64_t sl_model_lora_bytes(const struct sl_model *m, int32_t rank);
/* Matrices of every adapter of the model. */
int32_t sl_model_n_lora_mats(const struct sl_model *m);
/* Rows and columns of the model's matrix at an index of mats. */
void sl_model_lora_shape(const struct sl_model *m, int32_t idx, int64_t *n_rows, int64_t *n_cols);
/* The module that begins with that matrix: its name as PEFT calls it, at most SL_MAX_TENSOR_NAME
 * bytes, and its rows, more than the matrix' if it is fused. False: none does. */
bool sl_model_lora_module(const struct sl_model *m, int32_t idx, char *out, int64_t *n_rows);

#endif
