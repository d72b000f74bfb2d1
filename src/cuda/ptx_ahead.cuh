/* SPDX-License-Identifier: MIT
 * ptx_ahead.cuh - questions by who has something else to do until the answer counts, with inline
 * PTX too.
 */
#ifndef SL_CUDA_PTX_AHEAD_CUH
#define SL_CUDA_PTX_AHEAD_CUH

#include "cuda/ptx.cuh"

#ifdef SL_CUDA_SIM
bool sl_sim_mbar_ended(uint64_t *bar, uint32_t parity, sl_sim_at at);
#endif

/* Has the phase with this parity ended, as far as is known now? What was done before a phase that
 * has is seen after the answer. */
static __device__ __forceinline__ bool sl_mbar_ended(uint64_t *bar, uint32_t parity)
{
#ifdef SL_CUDA_SIM
    return sl_sim_mbar_ended(bar, parity, sl_sim_at{__FILE__, __LINE__});
#else
    return sl_mbar_poll(bar, parity);
#endif
}

/* What was there before one was added. Of one thread: atomicAdd adds for all of a warp that are
 * active, and waits for the sum to tell them apart. */
static __device__ __forceinline__ uint32_t sl_take_one(uint32_t *counter)
{
#ifdef SL_CUDA_SIM
    return atomicAdd(counter, 1u);
#else
    uint32_t was;
    asm volatile("atom.global.add.u32 %0, [%1], 1;"
                 : "=r"(was)
                 : "l"(__cvta_generic_to_global(counter))
                 : "memory");
    return was;
#endif
}

#endif
