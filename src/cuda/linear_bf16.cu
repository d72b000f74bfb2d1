/* SPDX-License-Identifier: MIT */
#include "cuda/linear_inst.cuh"

SL_LIN_KERNELS(bf16)

void sl_lin_pairs_bf16(struct sl_cuda *cu, const struct sl_lin *l)
{
    sl_wg_launch<sl_wf_bf16, 1, 256, 2, false, true>(cu, l);
}
