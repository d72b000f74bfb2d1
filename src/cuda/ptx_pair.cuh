/* SPDX-License-Identifier: MIT
 * ptx_pair.cuh - arithmetic of two bf16 in a word: beside ptx.cuh, with inline PTX too.
 */
#ifndef SL_CUDA_PTX_PAIR_CUH
#define SL_CUDA_PTX_PAIR_CUH

#include "cuda/ptx.cuh"

#ifdef SL_CUDA_SIM

static inline uint32_t sl_fma_pair(uint32_t a, uint32_t b, uint32_t c)
{
    __nv_bfloat162 v[3];
    memcpy(&v[0], &a, 4);
    memcpy(&v[1], &b, 4);
    memcpy(&v[2], &c, 4);
    v[0] = __hfma2(v[0], v[1], v[2]);
    memcpy(&a, &v[0], 4);
    return a;
}

static inline uint32_t sl_mask_or(uint32_t w, uint32_t mask, uint32_t bits)
{
    return (w & mask) | bits;
}

#else

/* a * b + c, rounded once. */
static __device__ __forceinline__ uint32_t sl_fma_pair(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* (w & mask) | bits in one instruction, of which the compiler makes two. */
static __device__ __forceinline__ uint32_t sl_mask_or(uint32_t w, uint32_t mask, uint32_t bits)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(w), "r"(mask), "r"(bits));
    return d;
}

#endif

static __device__ __forceinline__ uint32_t sl_mul_pair(uint32_t a, uint32_t b)
{
    return sl_fma_pair(a, b, 0x80008000u);
}

/* The lower (0) or upper (1) bf16 of w twice. */
static __device__ __forceinline__ uint32_t sl_twice(uint32_t w, int upper)
{
    return __byte_perm(w, 0, upper ? 0x3232u : 0x1010u);
}

#endif
