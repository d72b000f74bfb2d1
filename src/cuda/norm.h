/* SPDX-License-Identifier: MIT
 * norm.h - norms of whole rows in float (step/norm_rows.cu), as attention and the residual stream
 * need them.
 */
#ifndef SL_CUDA_NORM_H
#define SL_CUDA_NORM_H

#include "cuda/device.h"

/* add_rmsnorm where a sublayer's output is normed, or the next one's input is not; y may be NULL.
 * It waits for nothing behind it: y is whole before it can be normed. */
void sl_cuda_join(struct sl_cuda *cu, const struct sl_op_add_rmsnorm *a);

struct sl_cuda_norm_row { /* x = rmsnorm(x), rows ld apart; w NULL: times 1 */
    float *x;
    int64_t ld;
    const float *w;
    int32_t h;
};
void sl_cuda_norm_one(struct sl_cuda *cu, const struct sl_cuda_norm_row *row, int32_t n, float eps);
/* n rows of two arrays. */
void sl_cuda_norm_two(struct sl_cuda *cu, const struct sl_cuda_norm_row rows[2], int32_t n,
                      float eps);

#endif
