/* SPDX-License-Identifier: MIT
 * ptx_peer.cuh - how kernels of several GPUs see each other's writes over NVLink, with inline PTX
 * too.
 *
 * A store of 8 bytes is seen whole or not at all, so that half of them can say what the other half
 * is. Vectors of two such are one transaction, but not one store: each half is looked at.
 */
#ifndef SL_CUDA_PTX_PEER_CUH
#define SL_CUDA_PTX_PEER_CUH

#include "cuda/ptx.cuh"

#ifdef SL_CUDA_SIM
void sl_sim_peer(const void *p, size_t n); /* the running device may use that memory */
void sl_sim_poll();                        /* other threads, and other devices, go on */
uint64_t sl_sim_clock_ns();
#endif

/* Orders what this thread wrote or read before, or knows of through a barrier, and what it writes
 * or reads after, for all GPUs. */
static __device__ __forceinline__ void sl_fence_peers()
{
#ifdef SL_CUDA_SIM
    __threadfence_system();
#else
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

/* Two stores of 8 bytes; p is aligned to 16. */
static __device__ __forceinline__ void sl_peer_store2(ulonglong2 *p, uint64_t x, uint64_t y)
{
#ifdef SL_CUDA_SIM
    sl_sim_peer(p, sizeof *p);
    *p = {x, y};
#else
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(p)),
                 "l"(x), "l"(y)
                 : "memory");
#endif
}

/* Two loads of 8 bytes. */
static __device__ __forceinline__ ulonglong2 sl_peer_load2(const ulonglong2 *p)
{
#ifdef SL_CUDA_SIM
    sl_sim_peer(p, sizeof *p);
    return *p;
#else
    uint64_t x, y;
    asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(x), "=l"(y)
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
    return make_ulonglong2(x, y);
#endif
}

/* What another GPU has written, past caches that may hold what was there before: 16, 4 or 1 byte.
 * Loads may be under way together; they stay behind what was waited for before. */
static __device__ __forceinline__ uint4 sl_peer_load(const uint4 *p)
{
#ifdef SL_CUDA_SIM
    sl_sim_peer(p, sizeof *p);
    return *p;
#else
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(__cvta_generic_to_global(p)));
    return v;
#endif
}

static __device__ __forceinline__ uint32_t sl_peer_load(const uint32_t *p)
{
#ifdef SL_CUDA_SIM
    sl_sim_peer(p, sizeof *p);
    return *p;
#else
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.b32 %0, [%1];"
                 : "=r"(v)
                 : "l"(__cvta_generic_to_global(p)));
    return v;
#endif
}

static __device__ __forceinline__ uint8_t sl_peer_load(const uint8_t *p)
{
#ifdef SL_CUDA_SIM
    sl_sim_peer(p, sizeof *p);
    return *p;
#else
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(v) : "l"(__cvta_generic_to_global(p)));
    return static_cast<uint8_t>(v);
#endif
}

/* Between two looks at what another GPU will write. */
static __device__ __forceinline__ void sl_peer_pause()
{
#ifdef SL_CUDA_SIM
    sl_sim_poll();
#endif
}

/* Nanoseconds of the device, in steps of about 1,000. */
static __device__ __forceinline__ uint64_t sl_clock_ns()
{
#ifdef SL_CUDA_SIM
    return sl_sim_clock_ns();
#else
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
#endif
}

#endif
