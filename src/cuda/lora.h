/* SPDX-License-Identifier: MIT
 * lora.h - what adapters add to the outputs of a product (lora.cu): one kernel ahead of the product
 * and one behind it.
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

/* lora->s = A x. Needs nothing of the product, whose weights are asked for meanwhile. */
void sl_cuda_lora_shrink(struct sl_cuda *cu, const struct sl_cuda_lora *l);
/* out += B s, behind the product; with gated_out also what follows it, for rows without adapter
 * too. */
void sl_cuda_lora_expand(struct sl_cuda *cu, const struct sl_cuda_lora *l);

#endif
