/* SPDX-License-Identifier: MIT
 * experts_inst.cuh - the kernels of experts, and of products of heads, of one layout;
 * tools/cuda_instances makes a file of each.
 */
#ifndef SL_CUDA_EXPERTS_INST_CUH
#define SL_CUDA_EXPERTS_INST_CUH

#include "cuda/gemm/experts_few.cuh"
#include "cuda/gemm/experts_wide.cuh"
#include "cuda/gemm/heads_linear.cuh"

#define SL_EXPERTS_KERNELS(name)                                                                   \
    void sl_experts_few_##name(struct sl_cuda *cu, const struct sl_expert_product *a)              \
    {                                                                                              \
        sl_few_launch<sl_wf_##name>(cu, a);                                                        \
    }                                                                                              \
    void sl_experts_sum_##name(struct sl_cuda *cu, const struct sl_expert_product *a,              \
                               const struct sl_expert_sum *s, int32_t n)                           \
    {                                                                                              \
        sl_few_sum_launch<sl_wf_##name>(cu, a, s, n);                                              \
    }                                                                                              \
    void sl_experts_wg_##name(struct sl_cuda *cu, const struct sl_expert_product *a, int32_t tile) \
    {                                                                                              \
        if (tile == SL_EXPERTS_WG16)                                                               \
            sl_experts_launch<sl_wf_##name, SL_EXPERTS_WG16>(cu, a);                               \
        else if (tile == SL_EXPERTS_WG32)                                                          \
            sl_experts_launch<sl_wf_##name, SL_EXPERTS_WG32>(cu, a);                               \
        else if (tile == SL_EXPERTS_WG64)                                                          \
            sl_experts_launch<sl_wf_##name, SL_EXPERTS_WG64>(cu, a);                               \
        else                                                                                       \
            sl_wide_launch<sl_wf_##name>(cu, a);                                                   \
    }                                                                                              \
    SL_HEADS_KERNELS(name)

#endif
