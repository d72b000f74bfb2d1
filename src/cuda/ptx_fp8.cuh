/* SPDX-License-Identifier: MIT
 * ptx_fp8.cuh - as ptx.cuh, the instructions for MMAs of E4M3. Apart, so that kernels without FP8
 * do not depend on it.
 */
#ifndef SL_CUDA_PTX_FP8_CUH
#define SL_CUDA_PTX_FP8_CUH

#include "cuda/ptx.cuh"

/* A matrix of bytes with rows ld apart, x and ld multiples of 16. Boxes are 128 columns x box_rows
 * (at most 256), as those of sl_tensor_map. */
cudaError_t sl_tensor_map_codes(CUtensorMap *map, const void *x, int64_t n_rows, int64_t n_cols,
                                int64_t ld, int32_t box_rows);

#ifdef SL_CUDA_SIM
#include "sim_ptx_fp8.h"
#else

/* Codes of E4M3 nearest to a (low byte) and b, ties to even, at most 448. */
static __device__ __forceinline__ uint32_t sl_e4m3x2(float a, float b)
{
    uint16_t r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(b), "f"(a));
    return r;
}

/* The larger ones of two pairs of 16 bits. */
static __device__ __forceinline__ uint32_t sl_max_u16x2(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("max.u16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/* sl_cp_async16 of 4 bytes. */
static __device__ __forceinline__ void sl_cp_async4(void *smem, const void *gmem)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(sl_smem_addr(smem)),
                 "l"(__cvta_generic_to_global(gmem))
                 : "memory");
}

/* Arrives once all that this thread has asked for by these has come: one arrival of each thread,
 * which the barrier's count must have (noinc). Who then waits there sees the copies, whoever asked
 * for them. PTX ISA, mbarrier.test_wait / try_wait: "All cp.async operations requested prior, in
 * program order, to cp.async.mbarrier.arrive during the completed phase by the participating
 * threads of the CTA are performed and made visible to the executing thread". They are no bulk
 * copies, so reads before them, ended by an arrival that this thread has waited for, want no fence
 * of a proxy. Racecheck does not follow such an arrival and calls the reads hazards. */
static __device__ __forceinline__ void sl_cp_async_arrive(uint64_t *bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(sl_smem_addr(bar))
                 : "memory");
}

/* Two groups of threads, together n_threads, that go on in turn, by barriers of which each has one:
 * a group waits at its own until the other one has passed the turn to it. */
static __device__ __forceinline__ void sl_turn_wait(int id, int n_threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}

static __device__ __forceinline__ void sl_turn_pass(int id, int n_threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}

/* Up to eight rows (tokens) without gaps as b of 32 columns and eight rows: 16 bytes of each row
 * one after the other, then the next 16 of each. What follows counts as the rows that are not
 * there. */
static __device__ __forceinline__ uint64_t sl_wgmma_dense(const void *smem, int rows)
{
    /* address / 16, 16 columns after 16 columns, no swizzle */
    return (static_cast<uint64_t>(sl_smem_addr(smem)) & 0x3FFFF) >> 4 |
           static_cast<uint64_t>(rows) << 16 | 8ull << 32;
}

/* d[64, N] += a[64, 32] b[32, N] of a warpgroup: sl_wgmma_ss with E4M3 instead of BF16, 32 columns
 * in the same bytes. What lies between a product's sum and float is the chip's: the sum is not what
 * mma.sync gives (H200: all values differ). */
#define SL_WG_SUM_8  SL_WG_D(0)
#define SL_WG_R4     "%0, %1, %2, %3"
#define SL_WG_SS_8   "{" SL_WG_R4 "}, %4, %5"
#define SL_WG_SS_16  "{" SL_WG_R8 "}, %8, %9"
#define SL_WG_SS_32  "{" SL_WG_R16 "}, %16, %17"
#define SL_WG_SUM_96 SL_WG_D8(0), SL_WG_D2(8), SL_WG_D2(10)
#define SL_WG_SS_96 \
    "{" SL_WG_R32   \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, %48, %49"
#define SL_WGMMA_E4M3(n, add_reg)                                                             \
    static __device__ __forceinline__ void sl_wgmma_e4m3(float(&d)[n / 8][4], uint64_t a,     \
                                                         uint64_t b, int add)                 \
    {                                                                                         \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " add_reg ", 0;\n\t"               \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 " SL_WG_SS_##n \
                     ", p, 1, 1;\n\t}"                                                        \
                     : SL_WG_SUM_##n                                                          \
                     : "l"(a), "l"(b), "r"(add));                                             \
    }
SL_WGMMA_E4M3(8, "%6")
SL_WGMMA_E4M3(16, "%10")
SL_WGMMA_E4M3(32, "%18")
SL_WGMMA_E4M3(64, "%34")
SL_WGMMA_E4M3(96, "%50")
SL_WGMMA_E4M3(128, "%66")
SL_WGMMA_E4M3(192, "%98")
#undef SL_WGMMA_E4M3

/* After sl_wgmma_wait: nothing that uses d moves ahead of it. */
template <int T> static __device__ __forceinline__ void sl_wgmma_done(float (&d)[T][4])
{
#pragma unroll
    for (int i = 0; i < T; i++)
        asm volatile("" : SL_WG_D(i)::"memory");
}

#endif
#endif
