/* SPDX-License-Identifier: MIT
 * ptx_tile.cuh - what linear_tile.cuh needs besides ptx.cuh, with inline PTX too: wgmma whose
 * second operand is packed weights, and the instructions that move tiles.
 */
#ifndef SL_CUDA_PTX_TILE_CUH
#define SL_CUDA_PTX_TILE_CUH

#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

#ifdef SL_CUDA_SIM

static inline void sl_prefetch_map(const CUtensorMap *)
{
}

static inline void sl_blocks_load_all(void *smem, const CUtensorMap *map, int unit, int block,
                                      uint64_t *mbar, uint16_t ranks, SL_SIM_AT)
{
    sl_sim_tensor_load_all(smem, map, unit * map->box_cols, block, mbar, ranks, SL_SIM_HERE);
}

static inline void sl_stmatrix_x4(uint8_t *row, const uint32_t (&v)[4])
{
    int lane = static_cast<int>(threadIdx.x % 32);
    for (int i = 0; i < 4; i++) {
        auto to =
            __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(row), 8 * i + lane / 4);
        memcpy(reinterpret_cast<uint8_t *>(to) + lane % 4 * 4, &v[i], 4);
    }
}

#define SL_WGMMA_W_K16 256
static inline const uint8_t *sl_wgmma_w(const void *smem)
{
    return static_cast<const uint8_t *>(smem);
}

template <int T>
static inline void sl_wgmma_xw(float (&d)[T][4], const uint8_t *x, const uint8_t *w, SL_SIM_AT)
{
    uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4, t = lane % 4;
    const uint32_t a[4] = {sl_sim_swizzled(x, row, 4 * t), sl_sim_swizzled(x, row + 8, 4 * t),
                           sl_sim_swizzled(x, row, 4 * t + 16),
                           sl_sim_swizzled(x, row + 8, 4 * t + 16)};
    for (uint32_t i = 0; i < T; i++) {
        uint32_t b[2];
        sl_sim_by_wgmma(true);
        for (uint32_t h = 0; h < 2; h++)
            memcpy(&b[h], w + 1024 * i + 128 * h + 4 * lane, 4);
        sl_sim_by_wgmma(false);
        sl_sim_mma(SL_SIM_MMA_BF16, d[i], a, b, SL_SIM_HERE);
    }
}

#else

/* The copy engine will want this description. */
static __device__ __forceinline__ void sl_prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}

/* sl_blocks_load as sl_tensor_load_all. */
static __device__ __forceinline__ void sl_blocks_load_all(void *smem, const CUtensorMap *map,
                                                          int unit, int block, uint64_t *mbar,
                                                          uint16_t ranks)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(sl_smem_addr(smem)),
        "l"(reinterpret_cast<uint64_t>(map)), "r"(sl_smem_addr(mbar)), "r"(0), "r"(2 * unit),
        "r"(block), "h"(ranks)
        : "memory");
}

/* Four blocks of 8 x 8 values of 16 bits to shared memory: lanes 8 i .. 8 i + 7 say where the rows
 * of block i go, at multiples of 16 bytes; lane l has the pair (row l / 4, columns 2 (l % 4)..). */
static __device__ __forceinline__ void sl_stmatrix_x4(uint8_t *row, const uint32_t (&v)[4])
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(sl_smem_addr(row)),
        "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
        : "memory");
}

/* A place of weights as sl_wf_bf16 has them: blocks of 8 rows x 8 columns are 128 bytes, the next
 * columns' follow, the next rows' are 1024 bytes further. */
#define SL_WGMMA_W_K16 16
static __device__ __forceinline__ uint64_t sl_wgmma_w(const void *smem)
{
    /* address / 16, columns after columns, rows after rows, no swizzle */
    return (static_cast<uint64_t>(sl_smem_addr(smem)) & 0x3FFFF) >> 4 | 8ull << 16 | 64ull << 32;
}

/* d[64 tokens, N rows of weights] += x[64, 16] w[N, 16]: x a place of tokens (sl_wgmma_b), w one of
 * weights, both in shared memory. The bits of sl_wgmma_rs of the same weights and tokens. */
#define SL_WG_SUM_48   SL_WG_SUM_32, SL_WG_D2(4)
#define SL_WG_SUM_96   SL_WG_D8(0), SL_WG_D2(8), SL_WG_D2(10)
#define SL_WG_R24      SL_WG_R16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define SL_WG_R48 \
    SL_WG_R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define SL_WG_SUM_160 SL_WG_SUM_128, SL_WG_D2(16), SL_WG_D2(18)
#define SL_WG_R80 \
    SL_WG_R64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define SL_WGMMA_XW(n, regs, x_reg, w_reg)                                                         \
    static __device__ __forceinline__ void sl_wgmma_xw(float(&d)[n / 8][4], uint64_t x,            \
                                                       uint64_t w)                                 \
    {                                                                                              \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, 1, 0;\n\t"                              \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" regs "}, " x_reg \
                     ", " w_reg ", p, 1, 1, 0, 0;\n\t}"                                            \
                     : SL_WG_SUM_##n                                                               \
                     : "l"(x), "l"(w));                                                            \
    }
SL_WGMMA_XW(16, SL_WG_R8, "%8", "%9")
SL_WGMMA_XW(32, SL_WG_R16, "%16", "%17")
SL_WGMMA_XW(48, SL_WG_R24, "%24", "%25")
SL_WGMMA_XW(64, SL_WG_R32, "%32", "%33")
SL_WGMMA_XW(96, SL_WG_R48, "%48", "%49")
SL_WGMMA_XW(128, SL_WG_R64, "%64", "%65")
SL_WGMMA_XW(160, SL_WG_R80, "%80", "%81")
SL_WGMMA_XW(192, SL_WG_R96, "%96", "%97")
SL_WGMMA_XW(256, SL_WG_R128, "%128", "%129")
#undef SL_WGMMA_XW

#endif

#endif
