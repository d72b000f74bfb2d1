/* SPDX-License-Identifier: MIT */
#include "cuda/gemm/linear_inst.cuh"
#include "cuda/gemm/linear_tile.cuh"

SL_LIN_KERNELS(bf16)

void sl_lin_deep_bf16(struct sl_cuda *cu, const struct sl_lin *l)
{
    sl_stream_launch<sl_wf_bf16, 1>(cu, l);
}

void sl_lin_pairs_bf16(struct sl_cuda *cu, const struct sl_lin *l)
{
    sl_wg_launch<sl_wf_bf16, 1, 256, 2, false, true>(cu, l);
}

#define SL_LIN_TILE(kernel, ...)                                            \
    void sl_lin_##kernel##_bf16(struct sl_cuda *cu, const struct sl_lin *l) \
    {                                                                       \
        sl_tile_launch<sl_tile_shape<__VA_ARGS__>>(cu, l);                  \
    }
SL_LIN_TILE(tile256, 128, 256, 64, false, false, SL_SHARE_W)
SL_LIN_TILE(tile192, 128, 192, 32, true, false, SL_SHARE_W)
SL_LIN_TILE(tile160, 128, 160, 32, true, false, SL_SHARE_X)
SL_LIN_TILE(tile128, 128, 128, 64, true, false, SL_SHARE_X)
SL_LIN_TILE(tile96, 128, 96, 32, true, false, SL_SHARE_X)
SL_LIN_TILE(tile64, 128, 64, 64, true, false, SL_SHARE_X)
SL_LIN_TILE(tile128w, 128, 128, 64, true, false, SL_SHARE_W)
SL_LIN_TILE(tile64w, 128, 64, 32, true, false, SL_SHARE_W)
SL_LIN_TILE(half160, 128, 160, 32, true, false, SL_SHARE_TILE)
SL_LIN_TILE(half128, 128, 128, 64, true, false, SL_SHARE_TILE)
SL_LIN_TILE(half96, 128, 96, 32, true, false, SL_SHARE_TILE)
SL_LIN_TILE(half64, 128, 64, 32, true, false, SL_SHARE_TILE)
SL_LIN_TILE(half32, 128, 32, 32, true, false, SL_SHARE_TILE)
SL_LIN_TILE(quad96, 128, 96, 32, true, false, SL_SHARE_QUARTERS)
SL_LIN_TILE(quad64, 128, 64, 32, true, false, SL_SHARE_QUARTERS)
SL_LIN_TILE(ghalf128, 128, 128, 64, true, true, SL_SHARE_TILE)
SL_LIN_TILE(fewhalf96, 64, 96, 96, true, false, SL_SHARE_TILE)
SL_LIN_TILE(fewhalf64, 64, 64, 64, true, false, SL_SHARE_TILE)
SL_LIN_TILE(fewquad96, 64, 96, 96, true, false, SL_SHARE_QUARTERS)
SL_LIN_TILE(fewquad64, 64, 64, 64, true, false, SL_SHARE_QUARTERS)
SL_LIN_TILE(few96, 64, 96, 96, true, false, SL_SHARE_X)
SL_LIN_TILE(few64, 64, 64, 64, true, false, SL_SHARE_X)
SL_LIN_TILE(few48, 64, 48, 48, true, false, SL_SHARE_X)
SL_LIN_TILE(few32, 64, 32, 32, true, false, SL_SHARE_X)
SL_LIN_TILE(gate256, 128, 256, 64, false, true, SL_SHARE_W)
SL_LIN_TILE(gate128, 128, 128, 64, true, true, SL_SHARE_X)
SL_LIN_TILE(gate128w, 128, 128, 64, true, true, SL_SHARE_W)
SL_LIN_TILE(gate64, 128, 64, 32, true, true, SL_SHARE_X)
SL_LIN_TILE(fewgate, 64, 64, 32, true, true, SL_SHARE_X)
