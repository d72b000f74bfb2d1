/* SPDX-License-Identifier: MIT
 * heads_linear.h - a product with a matrix for each head: what heads_linear.cu hands to the
 * kernels.
 */
#ifndef SL_CUDA_HEADS_LINEAR_H
#define SL_CUDA_HEADS_LINEAR_H

#include "cuda/gemm/weight.h"

#include <cuda_bf16.h>

struct sl_heads_product {
    const __nv_bfloat16 *x; /* tokens ld_x apart, heads step_x */
    int64_t ld_x, step_x;
    bool aligned;                  /* all are at multiples of 16 bytes, and so long */
    const uint8_t *const *streams; /* [n_heads] in device memory */
    int32_t n, n_heads;            /* n: tokens */
    int32_t n_rows, n_blocks, k, n_k64;
    int64_t block_bytes; /* from a row block to the next one's */
    float *out;
    int64_t ld_out, step_out;
};

#define SL_HEADS_MOST_COLS 1024 /* whose values of 64 tokens fit shared memory */

/* By the layout of the matrices (tools/cuda_instances, beside those of experts). */
#define SL_HEADS_DECLARE(name) \
    void sl_heads_##name(struct sl_cuda *cu, const struct sl_heads_product *a)
SL_HEADS_DECLARE(bf16);
SL_HEADS_DECLARE(q8_0);
SL_HEADS_DECLARE(q4_0);
SL_HEADS_DECLARE(q4_k);
SL_HEADS_DECLARE(q5_k);
SL_HEADS_DECLARE(q6_k);
SL_HEADS_DECLARE(fp8);
SL_HEADS_DECLARE(int4_g128);
SL_HEADS_DECLARE(int4_g32);
SL_HEADS_DECLARE(mxfp4);
#undef SL_HEADS_DECLARE

#endif
