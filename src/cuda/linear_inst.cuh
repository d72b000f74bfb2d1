/* SPDX-License-Identifier: MIT
 * linear_inst.cuh - the kernels of one layout; each linear_<layout>.cu makes its own, so that they
 * compile side by side.
 */
#ifndef SL_CUDA_LINEAR_INST_CUH
#define SL_CUDA_LINEAR_INST_CUH

#include "cuda/linear_stream.cuh"
#include "cuda/linear_tile.cuh"

#define SL_LIN_STREAM(nt, name)                                                 \
    void sl_lin_stream##nt##_##name(struct sl_cuda *cu, const struct sl_lin *l) \
    {                                                                           \
        sl_stream_launch<sl_wf_##name, nt>(cu, l);                              \
    }
#define SL_LIN_KERNELS(name)                                               \
    SL_LIN_STREAM(1, name)                                                 \
    SL_LIN_STREAM(2, name)                                                 \
    SL_LIN_STREAM(4, name)                                                 \
    SL_LIN_STREAM(8, name)                                                 \
    void sl_lin_tile64_##name(struct sl_cuda *cu, const struct sl_lin *l)  \
    {                                                                      \
        sl_tile_launch<sl_wf_##name, 2, 4, 2, 2>(cu, l);                   \
    }                                                                      \
    void sl_lin_tile256_##name(struct sl_cuda *cu, const struct sl_lin *l) \
    {                                                                      \
        sl_tile_launch<sl_wf_##name, 4, 8, 2, 4>(cu, l);                   \
    }

#endif
