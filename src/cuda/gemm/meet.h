/* SPDX-License-Identifier: MIT
 * meet.h - what ranks add up: sums of all of them, and the residual stream behind what they have
 * gathered or added, in one kernel with the norm of the next product's input.
 */
#ifndef SL_CUDA_MEET_H
#define SL_CUDA_MEET_H

#include "cuda/gemm/linear.h"

/* A meeting of the ranks that waits for the operation behind it (gemm/fuse.h). */
struct sl_cuda_meet {
    bool reduces; /* else it gathers */
    bool there;   /* products have written what is gathered to all ranks */
    struct sl_op_all_gather gather;
    struct sl_op_all_reduce reduce;
};

struct sl_cuda_norm; /* gemm/fuse.h */

/* Whether a norm behind it may be one kernel with it. */
bool sl_cuda_meet_small(const struct sl_cuda *cu, const struct sl_cuda_meet *m);
/* The same of that norm: m gives its y. */
bool sl_cuda_meet_norms(const struct sl_cuda_meet *m, const struct sl_cuda_norm *a);
/* x += what m gives, and the norm. left: the sums of m's part, if its product has left them; bias
 * of those: after them. */
void sl_cuda_meet_norm(struct sl_cuda *cu, const struct sl_cuda_meet *m,
                       const struct sl_lin_left *left, const float *bias,
                       const struct sl_cuda_norm *a);
/* On its own. */
void sl_cuda_meet_run(struct sl_cuda *cu, const struct sl_cuda_meet *m);

#endif
