/* SPDX-License-Identifier: MIT
 * lora.h - an adapter bound to a model: its matrices in the order of the model's, packed for the
 * kernels (ops/lora.h). Of a model that is divided among ranks there are weights for each of them:
 * all have A whole, as what a product needs is whole on every rank, and the rows of B that are of
 * their own rows of the matrix.
 *
 * Any thread may open one while the model runs. Immutable; the files are not needed afterwards.
 */
#ifndef SL_MODELS_LORA_H
#define SL_MODELS_LORA_H

#include "models/model.h"
#include "ops/lora.h"

struct sl_lora {
    struct sl_lora_weights w; /* of rank 0; id: the caller's to set */
    struct sl_lora_weights others[SL_MAX_RANKS - 1];
    int32_t n_ranks;
    struct sl_lora_mat *mats;      /* [n_ranks, w.n_mats] */
    uint8_t *blocks[SL_MAX_RANKS]; /* of the ranks' weights */
    uint64_t digest;               /* of the files */
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
/* Bytes of an adapter of that rank for all matrices, for the rank of the model that has most. */
uint64_t sl_model_lora_bytes(const struct sl_model *m, int32_t rank, enum sl_dtype dtype);
/* Sets where the matrices of w, whose n_mats, dtype and mats[].rank say what there is, lie in a
 * block for that rank of the model, and how large it is; block NULL: sizes alone. */
void sl_lora_place(const struct sl_model *m, int32_t model_rank, struct sl_lora_mat *mats,
                   uint8_t *block, struct sl_lora_weights *w);
/* Matrices of every adapter of the model. */
int32_t sl_model_n_lora_mats(const struct sl_model *m);
/* Rows and columns of the model's matrix at an index of mats. */
void sl_model_lora_shape(const struct sl_model *m, int32_t idx, int64_t *n_rows, int64_t *n_cols);
/* The module that begins with that matrix: its name as PEFT calls it, at most SL_MAX_TENSOR_NAME
 * bytes, and its rows, more than the matrix' if it is fused. False: none does. */
bool sl_model_lora_module(const struct sl_model *m, int32_t idx, char *out, int64_t *n_rows);

#endif
