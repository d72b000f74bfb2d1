/* SPDX-License-Identifier: MIT
 * ptx_host.cuh - how a kernel and a thread of the host see each other's writes to pinned memory,
 * with inline PTX too.
 *
 * Loads and stores of the whole system go over PCIe one by one, in order; nothing else than these
 * is needed, atomic operations on host memory are not.
 */
#ifndef SL_CUDA_PTX_HOST_CUH
#define SL_CUDA_PTX_HOST_CUH

#include "cuda/ptx.cuh"

#ifdef SL_CUDA_SIM
#include <sched.h>
#endif

/* What this thread wrote, or saw through a barrier, before is seen by the host before what it
 * writes after. */
static __device__ __forceinline__ void sl_fence_host()
{
#ifdef SL_CUDA_SIM
    asm volatile("" ::: "memory"); /* stores of this processor keep their order */
#else
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

/* What this thread sees after it is not older than what the host had written before v. */
static __device__ __forceinline__ uint32_t sl_load_host(const uint32_t *p)
{
#ifdef SL_CUDA_SIM
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#else
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
                 : "=r"(v)
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
    return v;
#endif
}

/* The host sees v after all that this thread wrote before. */
static __device__ __forceinline__ void sl_store_host(uint32_t *p, uint32_t v)
{
#ifdef SL_CUDA_SIM
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
#else
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "r"(v)
                 : "memory");
#endif
}

/* Four floats the host wrote, past every cache. */
static __device__ __forceinline__ float4 sl_load_host4(const float4 *p)
{
#ifdef SL_CUDA_SIM
    return *p;
#else
    float4 v;
    asm volatile("ld.volatile.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
    return v;
#endif
}

/* Between two looks: a look is a read over PCIe. */
static __device__ __forceinline__ void sl_host_pause()
{
#ifdef SL_CUDA_SIM
    sched_yield();
#else
    __nanosleep(40);
#endif
}

#endif
