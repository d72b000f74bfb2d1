/* SPDX-License-Identifier: MIT
 * sim_ptx.h - the simulator's versions of the functions of src/cuda/ptx.cuh.
 */
#ifndef SL_SIM_PTX_H
#define SL_SIM_PTX_H

#include "sim_tensor.h"

#include <cuda_runtime.h>

#include <cmath>

void sl_sim_grid_wait();
void sl_sim_grid_leave();
void sl_sim_launch_dependents();
void *sl_sim_smem();
void sl_sim_cluster_arrive(sl_sim_at at);
void sl_sim_cluster_wait(sl_sim_at at);
void sl_sim_store_at(float4 *to, const float4 &v, uint64_t *bar, uint32_t rank, sl_sim_at at);
uint32_t sl_sim_cluster_rank();
void *sl_sim_cluster_map(const void *p, uint32_t rank);
uint32_t sl_sim_smem_addr(const void *p);
void sl_sim_cp_async(void *dst, const void *src, bool pred, sl_sim_at at);
void sl_sim_cp_commit();
void sl_sim_cp_wait(int n);
void sl_sim_bulk_load(void *dst, const void *src, uint32_t n, uint64_t *bar, sl_sim_at at);
void sl_sim_tensor_load(void *dst, const CUtensorMap *map, int col, int row, uint64_t *bar,
                        sl_sim_at at);
void sl_sim_tensor_load_all(void *dst, const CUtensorMap *map, int col, int row, uint64_t *bar,
                            uint32_t ranks, sl_sim_at at);
void sl_sim_tensor_store(const CUtensorMap *map, int col, int row, const void *src, sl_sim_at at);
void sl_sim_tensor_store_commit();
void sl_sim_tensor_store_wait(int n);
void sl_sim_mbar_arrive_at(uint64_t *bar, uint32_t rank, sl_sim_at at);
void sl_sim_mbar_init(uint64_t *bar, uint32_t count, sl_sim_at at);
void sl_sim_mbar_fence();
void sl_sim_mbar_arrive(uint64_t *bar, uint32_t tx, sl_sim_at at);
void sl_sim_mbar_wait(uint64_t *bar, uint32_t parity, sl_sim_at at);
void sl_sim_check_stream16(const void *p, sl_sim_at at);

#define SL_SMEM(type, name) type *name = static_cast<type *>(sl_sim_smem())

static inline void sl_grid_wait()
{
    sl_sim_grid_wait();
}
static inline void sl_grid_leave()
{
    sl_sim_grid_leave();
}
static inline void sl_grid_launch_dependents()
{
    sl_sim_launch_dependents();
}
static inline int32_t sl_load_settled(const int32_t *p)
{
    return *p;
}
static inline void sl_cluster_sync(SL_SIM_AT)
{
    sl_sim_cluster_arrive(SL_SIM_HERE);
    sl_sim_cluster_wait(SL_SIM_HERE);
}
static inline void sl_cluster_arrive(SL_SIM_AT)
{
    sl_sim_cluster_arrive(SL_SIM_HERE);
}
static inline void sl_cluster_wait(SL_SIM_AT)
{
    sl_sim_cluster_wait(SL_SIM_HERE);
}
static inline void sl_store_at(float4 *to, const float4 &v, uint64_t *bar, uint32_t rank, SL_SIM_AT)
{
    sl_sim_store_at(to, v, bar, rank, SL_SIM_HERE);
}
static inline uint32_t sl_cluster_rank()
{
    return sl_sim_cluster_rank();
}
template <typename T> static inline T *sl_cluster_map(T *p, uint32_t rank)
{
    return static_cast<T *>(sl_sim_cluster_map(p, rank));
}
static inline void sl_fence_gpu()
{
    __threadfence();
}
static inline uint32_t sl_smem_addr(const void *p)
{
    return sl_sim_smem_addr(p);
}
static inline float sl_sim_flush(float v)
{
    return std::fabs(v) < 0x1p-126f ? std::copysign(0.0f, v) : v;
}
static inline float sl_add_ftz(float a, float b)
{
    return sl_sim_flush(sl_sim_flush(a) + sl_sim_flush(b));
}
static inline void sl_red_add(float *p, float v)
{
    *p = sl_add_ftz(*p, v);
}
static inline void sl_cp_async16(void *smem, const void *gmem, bool pred, SL_SIM_AT)
{
    sl_sim_cp_async(smem, gmem, pred, SL_SIM_HERE);
}
static inline void sl_cp_async_commit()
{
    sl_sim_cp_commit();
}
template <int N> static inline void sl_cp_async_wait()
{
    sl_sim_cp_wait(N);
}
static inline void sl_bulk_load(void *smem, const void *gmem, uint32_t n_bytes, uint64_t *mbar,
                                SL_SIM_AT)
{
    sl_sim_bulk_load(smem, gmem, n_bytes, mbar, SL_SIM_HERE);
}
static inline void sl_bulk_load_once(void *smem, const void *gmem, uint32_t n_bytes, uint64_t *mbar,
                                     SL_SIM_AT)
{
    sl_sim_bulk_load(smem, gmem, n_bytes, mbar, SL_SIM_HERE);
}
static inline uint4 sl_load16_once(const void *gmem)
{
    return *static_cast<const uint4 *>(gmem);
}
static inline void sl_tensor_load(void *smem, const CUtensorMap *map, int col, int row,
                                  uint64_t *mbar, SL_SIM_AT)
{
    sl_sim_tensor_load(smem, map, col, row, mbar, SL_SIM_HERE);
}
static inline void sl_blocks_load(void *smem, const CUtensorMap *map, int unit, int block,
                                  uint64_t *mbar, SL_SIM_AT)
{
    sl_sim_tensor_load(smem, map, unit * map->box_cols, block, mbar, SL_SIM_HERE);
}
static inline void sl_tensor_load_all(void *smem, const CUtensorMap *map, int col, int row,
                                      uint64_t *mbar, uint16_t ranks, SL_SIM_AT)
{
    sl_sim_tensor_load_all(smem, map, col, row, mbar, ranks, SL_SIM_HERE);
}
static inline void sl_tensor_store(const CUtensorMap *map, int col, int row, const void *smem,
                                   SL_SIM_AT)
{
    sl_sim_tensor_store(map, col, row, smem, SL_SIM_HERE);
}
static inline void sl_tensor_store_commit()
{
    sl_sim_tensor_store_commit();
}
template <int N> static inline void sl_tensor_store_wait()
{
    sl_sim_tensor_store_wait(N);
}
static inline void sl_tensor_store_wait_all()
{
    sl_sim_tensor_store_wait(0);
}
static inline void sl_mbar_arrive_at(uint64_t *bar, uint32_t rank, SL_SIM_AT)
{
    sl_sim_mbar_arrive_at(bar, rank, SL_SIM_HERE);
}
static inline uint32_t sl_merge(uint32_t x, uint32_t mask, uint32_t y)
{
    return (x & mask) | (y & ~mask);
}
static inline uint32_t sl_opaque(uint32_t x)
{
    return x;
}
static inline void sl_mbar_init(uint64_t *bar, uint32_t count, SL_SIM_AT)
{
    sl_sim_mbar_init(bar, count, SL_SIM_HERE);
}
static inline void sl_mbar_fence_init()
{
    sl_sim_mbar_fence();
}
static inline void sl_mbar_expect_tx(uint64_t *bar, uint32_t bytes, SL_SIM_AT)
{
    sl_sim_mbar_arrive(bar, bytes, SL_SIM_HERE);
}
static inline void sl_mbar_arrive(uint64_t *bar, SL_SIM_AT)
{
    sl_sim_mbar_arrive(bar, 0, SL_SIM_HERE);
}
static inline void sl_mbar_wait(uint64_t *bar, uint32_t parity, SL_SIM_AT)
{
    sl_sim_mbar_wait(bar, parity, SL_SIM_HERE);
}
/* Threads are on their own here: this one comes back when the phase has ended. */
static inline bool sl_mbar_poll(uint64_t *bar, uint32_t parity, SL_SIM_AT)
{
    sl_sim_mbar_wait(bar, parity, SL_SIM_HERE);
    return true;
}
static inline void sl_fence_proxy_async()
{
    sl_sim_fence_proxy();
}

static inline void sl_sim_ldmatrix(sl_sim_kind kind, uint32_t *r, const void *row, sl_sim_at at)
{
    sl_sim_part p = {};
    p.row = row;
    p.pc = __builtin_return_address(0);
    p.regs = r;
    sl_sim_collective(kind, 0xffffffffu, &p, at);
}
static inline void sl_ldmatrix_x4(uint32_t r[4], const void *row, SL_SIM_AT)
{
    sl_sim_ldmatrix(SL_SIM_LDMATRIX_X4, r, row, SL_SIM_HERE);
}
static inline void sl_ldmatrix_x4_trans(uint32_t r[4], const void *row, SL_SIM_AT)
{
    sl_sim_ldmatrix(SL_SIM_LDMATRIX_X4_TRANS, r, row, SL_SIM_HERE);
}
static inline void sl_ldmatrix_x2(uint32_t r[2], const void *row, SL_SIM_AT)
{
    sl_sim_ldmatrix(SL_SIM_LDMATRIX_X2, r, row, SL_SIM_HERE);
}
static inline void sl_ldmatrix_x2_trans(uint32_t r[2], const void *row, SL_SIM_AT)
{
    sl_sim_ldmatrix(SL_SIM_LDMATRIX_X2_TRANS, r, row, SL_SIM_HERE);
}
static inline void sl_sim_mma(sl_sim_kind kind, float *c, const uint32_t *a, const uint32_t *b,
                              sl_sim_at at)
{
    sl_sim_part p = {};
    p.c = c;
    p.a = a;
    p.b = b;
    sl_sim_collective(kind, 0xffffffffu, &p, at);
}
static inline void sl_mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2], SL_SIM_AT)
{
    sl_sim_mma(SL_SIM_MMA_BF16, c, a, b, SL_SIM_HERE);
}
static inline void sl_mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2], SL_SIM_AT)
{
    sl_sim_mma(SL_SIM_MMA_F16, c, a, b, SL_SIM_HERE);
}

/* The rows of b as tokens of a place in shared memory, the pieces of 16 bytes exchanged. The
 * product is made at once, by the warps of the group one after the other. */
#define SL_WGMMA_B_K16 32
static inline const uint8_t *sl_wgmma_b(const void *smem)
{
    return static_cast<const uint8_t *>(smem);
}
static inline void sl_wgmma_fence()
{
    sl_sim_preempt();
}
static inline void sl_wgmma_commit()
{
    sl_sim_preempt();
}
template <int N> static inline void sl_wgmma_wait()
{
    sl_sim_preempt();
}
template <int T> static inline void sl_wgmma_keep(float (&)[T][4])
{
}
template <int T> static inline void sl_wgmma_keep(uint32_t (&)[T][4])
{
}
static inline uint32_t sl_sim_swizzled(const uint8_t *b, uint32_t row, uint32_t byte)
{
    uint32_t at = sl_sim_smem_addr(b);
    uint32_t to = at + row * 128 + byte;
    to ^= (to >> 7 & 7) << 4;
    uint32_t v;
    sl_sim_by_wgmma(true);
    __builtin_memcpy(&v, b + static_cast<int32_t>(to - at), 4);
    sl_sim_by_wgmma(false);
    return v;
}
template <int T>
static inline void sl_sim_wgmma(sl_sim_kind kind, float (&d)[T][4], const uint32_t (&a)[4],
                                const uint8_t *b, sl_sim_at at)
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (uint32_t i = 0; i < T; i++) {
        uint32_t frag[2] = {sl_sim_swizzled(b, 8 * i + g, 4 * t),
                            sl_sim_swizzled(b, 8 * i + g, 4 * t + 16)};
        sl_sim_mma(kind, d[i], a, frag, at);
    }
}
template <int T>
static inline void sl_wgmma_rs(float (&d)[T][4], const uint32_t (&a)[4], const uint8_t *b,
                               SL_SIM_AT)
{
    sl_sim_wgmma(SL_SIM_MMA_BF16, d, a, b, SL_SIM_HERE);
}
/* b as rows of sums. */
static inline const uint8_t *sl_wgmma_bt(const void *smem)
{
    return static_cast<const uint8_t *>(smem);
}
static inline const uint8_t *sl_wgmma_b_at(const uint8_t *b, uint32_t n_bytes)
{
    return b + n_bytes;
}
template <int T>
static inline void sl_sim_wgmma_bt(sl_sim_kind kind, float (&d)[T][4], const uint32_t (&a)[4],
                                   const uint8_t *b, sl_sim_at at)
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (uint32_t i = 0; i < T; i++) {
        uint32_t frag[2], col = 8 * i + g;
        for (uint32_t h = 0; h < 2; h++) {
            uint32_t lo = sl_sim_swizzled(b + col / 64 * 8192, 2 * t + 8 * h, col % 64 / 2 * 4),
                     hi = sl_sim_swizzled(b + col / 64 * 8192, 2 * t + 8 * h + 1, col % 64 / 2 * 4);
            frag[h] = col % 2 ? lo >> 16 | (hi & 0xFFFF0000u) : (lo & 0xFFFFu) | hi << 16;
        }
        sl_sim_mma(kind, d[i], a, frag, at);
    }
}
template <int T> static inline void sl_sim_forget(float (&d)[T][4], int add)
{
    for (uint32_t i = 0; i < 4 * T && !add; i++)
        d[i / 4][i % 4] = 0.0f;
}
template <int T>
static inline void sl_wgmma_rs_bt(float (&d)[T][4], const uint32_t (&a)[4], const uint8_t *b,
                                  int add, SL_SIM_AT)
{
    sl_sim_forget(d, add);
    sl_sim_wgmma_bt(SL_SIM_MMA_BF16, d, a, b, SL_SIM_HERE);
}
template <int T>
static inline void sl_wgmma_rs_bt_f16(float (&d)[T][4], const uint32_t (&a)[4], const uint8_t *b,
                                      int add, SL_SIM_AT)
{
    sl_sim_forget(d, add);
    sl_sim_wgmma_bt(SL_SIM_MMA_F16, d, a, b, SL_SIM_HERE);
}
/* Both operands in shared memory. */
template <int T>
static inline void sl_sim_wgmma_ss(sl_sim_kind kind, float (&d)[T][4], const uint8_t *a,
                                   const uint8_t *b, int add, sl_sim_at at)
{
    uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4, t = lane % 4;
    uint32_t frag[4] = {sl_sim_swizzled(a, row, 4 * t), sl_sim_swizzled(a, row + 8, 4 * t),
                        sl_sim_swizzled(a, row, 4 * t + 16),
                        sl_sim_swizzled(a, row + 8, 4 * t + 16)};
    sl_sim_forget(d, add);
    sl_sim_wgmma(kind, d, frag, b, at);
}
template <int T>
static inline void sl_wgmma_ss(float (&d)[T][4], const uint8_t *a, const uint8_t *b, int add,
                               SL_SIM_AT)
{
    sl_sim_wgmma_ss(SL_SIM_MMA_BF16, d, a, b, add, SL_SIM_HERE);
}
template <int T>
static inline void sl_wgmma_ss_f16(float (&d)[T][4], const uint8_t *a, const uint8_t *b, int add,
                                   SL_SIM_AT)
{
    sl_sim_wgmma_ss(SL_SIM_MMA_F16, d, a, b, add, SL_SIM_HERE);
}
template <int N> static inline void sl_regs_take()
{
}
template <int N> static inline void sl_regs_give()
{
}

static inline uint4 sl_ldg_stream16(const void *p, SL_SIM_AT)
{
    sl_sim_check_stream16(p, SL_SIM_HERE);
    return *static_cast<const uint4 *>(p);
}
static inline void sl_prefetch_l2(const void *)
{
}
static inline void sl_bar_sync(int id, int n_threads, SL_SIM_AT)
{
    sl_sim_barrier(id, n_threads, SL_SIM_HERE);
}
static inline float sl_lg2_approx(float x)
{
    return log2f(x);
}

static inline float sl_max_nan(float x, float y)
{
    return x != x || y != y ? __builtin_nanf("") : fmaxf(x, y);
}

static inline float sl_ex2_approx(float x)
{
    float y = exp2f(x < -126.0f ? -INFINITY : x);
    return x != x ? x : y;
}
/* Neighbours of the quotient too, as hardware gives them. */
static inline float sl_rcp_approx(float x)
{
    float y = 1.0f / x;
    uint32_t u;
    memcpy(&u, &x, 4);
    u = u * 0x9E3779B1u >> 30;
    return x < 1.0f || x > 0x1p100f || u > 1 ? y : nextafterf(y, u == 0 ? 0.0f : 1.0f);
}

#endif
