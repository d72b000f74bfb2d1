/* SPDX-License-Identifier: MIT
 * linear_inst.cuh - the kernels of one layout; tools/cuda_instances makes a file of each, so that
 * they compile side by side. BF16 has more kernels and a file here.
 */
#ifndef SL_CUDA_LINEAR_INST_CUH
#define SL_CUDA_LINEAR_INST_CUH

#include "cuda/gemm/linear_direct.cuh"
#include "cuda/gemm/linear_wg.cuh"

/* Runs of 64 rows a warpgroup, tokens, warpgroups; whether it can walk through several segments. */
#define SL_LIN_WG(kernel, name, runs, tokens, groups, totals)                 \
    void sl_lin_##kernel##_##name(struct sl_cuda *cu, const struct sl_lin *l) \
    {                                                                         \
        sl_wg_launch<sl_wf_##name, runs, tokens, groups, totals>(cu, l);      \
    }
#define SL_LIN_KERNELS(name)                                              \
    void sl_lin_stream_##name(struct sl_cuda *cu, const struct sl_lin *l) \
    {                                                                     \
        sl_stream_launch<sl_wf_##name, 2>(cu, l);                         \
    }                                                                     \
    void sl_lin_direct_##name(struct sl_cuda *cu, const struct sl_lin *l) \
    {                                                                     \
        sl_direct_launch<sl_wf_##name>(cu, l);                            \
    }                                                                     \
    SL_LIN_WG(wg16, name, 1, 16, 2, false)                                \
    SL_LIN_WG(wg32, name, 1, 32, 2, false)                                \
    SL_LIN_WG(wg64, name, 1, 64, 2, false)                                \
    SL_LIN_WG(wg128, name, 1, 128, 2, true)                               \
    SL_LIN_WG(gated16, name, 2, 16, 1, false)                             \
    SL_LIN_WG(gated32, name, 2, 32, 1, false)                             \
    SL_LIN_WG(gated64, name, 2, 64, 1, true)                              \
    SL_LIN_WG(wg256, name, 2, 128, 2, false)                              \
    SL_LIN_WG(wide, name, 1, 256, 2, false)
/* Codes want more warps than two groups have. */
#define SL_LIN_CODED(name)                                                  \
    SL_LIN_KERNELS(name)                                                    \
    void sl_lin_direct16_##name(struct sl_cuda *cu, const struct sl_lin *l) \
    {                                                                       \
        sl_direct_launch<sl_wf_##name, 2>(cu, l);                           \
    }                                                                       \
    SL_LIN_WG(tall16, name, 1, 16, 4, false)                                \
    SL_LIN_WG(tall32, name, 1, 32, 4, false)                                \
    SL_LIN_WG(tall64, name, 1, 64, 4, false)                                \
    SL_LIN_WG(gtall16, name, 2, 16, 2, false)                               \
    SL_LIN_WG(gtall32, name, 2, 32, 2, false)                               \
    SL_LIN_WG(gtall64, name, 2, 64, 2, false)

#endif
