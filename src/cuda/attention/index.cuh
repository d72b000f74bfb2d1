/* SPDX-License-Identifier: MIT
 * index.cuh - what the two halves of the choice of an index share: scores of rows
 * (index_select.cu), and the largest of them (index_top.cu).
 */
#ifndef SL_CUDA_INDEX_CUH
#define SL_CUDA_INDEX_CUH

#include "cuda/device.h"

#include "ops/device.h"

/* Tokens first .. first + n - 1 of a step, whose scores are rows ld apart. */
struct sl_index_rows {
    const int32_t *positions; /* of the step's tokens */
    const float *scores;
    int64_t ld;
    int32_t first, n, top_k;
    int32_t *top; /* [tokens, top_k] */
};

/* Of tokens at top_k or behind it. */
void sl_index_largest(struct sl_cuda *cu, const struct sl_index_rows *rows);

#endif
