/* SPDX-License-Identifier: MIT */
#include "cuda/linear_inst.cuh"
#include "cuda/linear_tile.cuh"

SL_LIN_KERNELS(bf16)

void sl_lin_deep_bf16(struct sl_cuda *cu, const struct sl_lin *l)
{
    sl_stream_launch<sl_wf_bf16, 1>(cu, l);
}

void sl_lin_pairs_bf16(struct sl_cuda *cu, const struct sl_lin *l)
{
    sl_wg_launch<sl_wf_bf16, 1, 256, 2, false, true>(cu, l);
}

#define SL_LIN_TILE(kernel, tokens, totals, pairs, blocks, split)                \
    void sl_lin_##kernel##_bf16(struct sl_cuda *cu, const struct sl_lin *l)      \
    {                                                                            \
        sl_tile_launch<sl_wf_bf16, tokens, totals, pairs, blocks>(cu, l, split); \
    }
SL_LIN_TILE(tile256, 256, false, false, 2, false)
SL_LIN_TILE(total192, 192, true, false, 2, false)
SL_LIN_TILE(total128, 128, true, false, 2, false)
SL_LIN_TILE(split256, 256, false, false, 1, true)
SL_LIN_TILE(split128, 128, false, false, 1, true)
SL_LIN_TILE(pairs256, 256, false, true, 2, false)
SL_LIN_TILE(pairtot192, 192, true, true, 2, false)
SL_LIN_TILE(pairtot128, 128, true, true, 2, false)
