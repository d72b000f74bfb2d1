/* SPDX-License-Identifier: MIT
 * ptx_post.cuh - what blocks of a running kernel need to pass numbers to each other through device
 * memory: beside ptx.cuh, with inline PTX too; and how such a kernel is launched.
 */
#ifndef SL_CUDA_PTX_POST_CUH
#define SL_CUDA_PTX_POST_CUH

#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

#ifdef SL_CUDA_SIM

static inline void sl_post16(float4 *p, const float4 &v)
{
    sl_sim_preempt();
    *p = v;
}

static inline float4 sl_peek16(const float4 *p)
{
    sl_sim_let_others();
    return *p;
}

static inline void sl_prefetch_map(const CUtensorMap *)
{
}

static inline void sl_put_rows(uint8_t *at, int pitch, const uint32_t (&v)[4])
{
    int lane = static_cast<int>(threadIdx.x % 32), row = 2 * (lane & 3);
    for (int i = 0; i < 8; i++) {
        uint16_t half = static_cast<uint16_t>(v[i / 2] >> 16 * (i & 1));
        memcpy(at + (i / 2 * 8 + row + i % 2) * pitch + (lane >> 2) * 2, &half, 2);
    }
}

#else

/* 16 bytes that others wait for, or that another may have posted: every four of them arrive as a
 * whole, in no order. */
static __device__ __forceinline__ void sl_post16(float4 *p, const float4 &v)
{
    asm volatile(
        "st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)),
        "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
        : "memory");
}

static __device__ __forceinline__ float4 sl_peek16(const float4 *p)
{
    float4 v;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
    return v;
}

/* The copy engine will want this description. */
static __device__ __forceinline__ void sl_prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}

/* Four blocks of 8 rows x 8 values of 16 bits to shared memory, row r of block i at at + (8 i + r)
 * pitch, a multiple of 16 bytes. Lane l has of column l / 4 rows 2 (l % 4) and the next one. */
static __device__ __forceinline__ void sl_put_rows(uint8_t *at, int pitch, const uint32_t (&v)[4])
{
    int lane = static_cast<int>(threadIdx.x % 32);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     sl_smem_addr(at + lane * pitch)),
                 "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}

#endif

/* sl_launch_cluster for a kernel in which `beside` blocks beside each other wait for what the
 * others post. All blocks of the grid must run at once: no more of them than there are
 * multiprocessors. The simulator, which runs few at a time, is told by a cluster which ones belong
 * together. */
template <typename... Params, typename... Args>
static inline void sl_launch_beside(struct sl_cuda *cu, void (*kernel)(Params...), dim3 grid,
                                    dim3 block, size_t smem, unsigned cluster, unsigned beside,
                                    const Args &...args)
{
#ifdef SL_CUDA_SIM
    cluster *= beside;
#else
    (void)beside;
#endif
    sl_launch_cluster(cu, kernel, grid, block, smem, cluster, args...);
}

#endif
