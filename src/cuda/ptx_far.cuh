/* SPDX-License-Identifier: MIT
 * ptx_far.cuh - stores to another block's shared memory where many go to the same block, with
 * inline PTX too.
 */
#ifndef SL_CUDA_PTX_FAR_CUH
#define SL_CUDA_PTX_FAR_CUH

#include "cuda/ptx.cuh"

/* The other block: what is added to a place here for the same place there. */
struct sl_far {
    uint32_t by;
};

#ifdef SL_CUDA_SIM

static inline struct sl_far sl_far_of(const void *, uint32_t rank)
{
    return {rank};
}

static inline void sl_store_far(void *to, const uint4 &v, uint64_t *bar, const struct sl_far &far,
                                SL_SIM_AT)
{
    float4 x;
    memcpy(&x, &v, sizeof x);
    sl_sim_store_at(static_cast<float4 *>(to), x, bar, far.by, SL_SIM_HERE);
}

#else

/* smem: any place in this block's shared memory. */
static __device__ __forceinline__ struct sl_far sl_far_of(const void *smem, uint32_t rank)
{
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(sl_smem_addr(smem)), "r"(rank));
    return {there - sl_smem_addr(smem)};
}

/* sl_store_at of 16 bytes. */
static __device__ __forceinline__ void sl_store_far(void *to, const uint4 &v, uint64_t *bar,
                                                    const struct sl_far &far)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], "
                 "{%2, %3, %4, %5}, [%1];" ::"r"(sl_smem_addr(to) + far.by),
                 "r"(sl_smem_addr(bar) + far.by), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

#endif
#endif
