/* SPDX-License-Identifier: MIT
 * combine.h - the sum of what a row's experts gave.
 */
#ifndef SL_CUDA_COMBINE_H
#define SL_CUDA_COMBINE_H

#include "cuda/gemm/experts.h"

#define SL_EXPERT_PEERS 3

struct sl_expert_peers { /* where the sum goes besides: bytes away, on other ranks */
    int32_t n;
    int64_t to[SL_EXPERT_PEERS];
};

/* Of n rows, the experts that are here: y [places, n_cols] to s->out [n, n_cols]. */
void sl_expert_combine(struct sl_cuda *cu, const struct sl_expert_pairs *p, int32_t n_experts,
                       const float *y, int64_t n_cols, const struct sl_expert_sum *s,
                       const struct sl_expert_peers *peers, int32_t n);

#endif
