/* SPDX-License-Identifier: MIT
 * lora.h - what adapters add to the outputs of a product (lora.cu): one kernel ahead of the product
 * and one after it.
 */
#ifndef SL_CUDA_LORA_H
#define SL_CUDA_LORA_H

#include "cuda/device.h"

struct sl_cuda_lora_part {
    const struct sl_weight *w; /* the model's matrix, for its shape */
    float *out;                /* [n, N], rows ld_out apart: the product */
    int64_t ld_out;
};

/* Rows of x that are rows first .. first + n of those lora speaks of; part i has matrix lora->mat +
 * i. gated_out: parts 0 and 1 are gate and up of the same shape, and the result is act(gate) * up,
 * rows N apart. */
struct sl_cuda_lora {
    const struct sl_op_lora *lora;
    const void *x;
    int64_t ld_x;
    int32_t first, n;
    int32_t n_parts;
    struct sl_cuda_lora_part part[SL_MAX_LINEAR_PARTS];
    void *gated_out; /* NULL: none */
    enum sl_act act;
};

#define SL_LORA_APART 256 /* rows of a step up to which they are looked up ahead */

struct sl_lora_row { /* of one matrix */
    const void *a, *b;
    int32_t rank;
    float scale;    /* of the matrix times the row's */
    int32_t n_same; /* rows from this one on with its adapter, in the same eight; 0: one before it
                       has counted it */
    int32_t unused;
};

static inline size_t sl_cuda_lora_rows_bytes(int32_t n_mats)
{
    return (size_t)n_mats * SL_LORA_APART * sizeof(struct sl_lora_row);
}
/* Looks up all rows of a step, of at most SL_LORA_APART, into device memory of
 * sl_cuda_lora_rows_bytes. At its begin: another kernel comes before the first product. */
void sl_cuda_lora_resolve(struct sl_cuda *cu, const struct sl_lora_rows *rows, int32_t n,
                          void *by_row);
/* lora->s = A x. Needs nothing of the product, whose weights are asked for meanwhile. */
void sl_cuda_lora_shrink(struct sl_cuda *cu, const struct sl_cuda_lora *l);
/* out += B s, after the product; with gated_out also what follows it, for rows without adapter
 * too. */
void sl_cuda_lora_expand(struct sl_cuda *cu, const struct sl_cuda_lora *l);

#endif
