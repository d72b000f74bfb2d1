/* SPDX-License-Identifier: MIT
 * experts_few.cuh - products of experts with few rows each: only the experts that are hit are read,
 * straight from memory as linear_direct.cuh has it.
 *
 * A block is four warps with a row block each, in a gated product a warp for gate and one for up.
 * The rows of the tile lie in the block's shared memory; weights come into registers, those of BF16
 * into shared memory of the warp's own, so that a warp has 4.5 to 8.7 KB on their way. Which expert
 * it is stands in memory: gate and up wait for it; the kernel of down starts when all blocks of
 * gate and up know theirs, so that its weights are on their way before those end.
 *
 * Of one or two rows every pair is a tile, and the same block multiplies a row block of `down` with
 * all experts of a row and adds them up: nothing is sorted, and what the experts give never goes
 * through memory.
 */
#ifndef SL_CUDA_EXPERTS_FEW_CUH
#define SL_CUDA_EXPERTS_FEW_CUH

#include "cuda/gemm/experts_gate.cuh"
#include "cuda/gemm/linear_direct.cuh"

#define SL_FEW_WARPS     4
#define SL_FEW_SUM_WARPS 8 /* experts at a time */
#define SL_FEW_SWAP      (SL_FEW_WARPS / 2 * 32 * 16)

/* A warp's way through one row block of one expert. */
template <class F> struct sl_few_walk {
    static constexpr int steps = sl_direct_raw<F>::steps;
    const uint8_t *src; /* what to fetch */
    int32_t left_next;  /* steps to fetch */
    int32_t left;       /* steps to multiply */
    uint32_t x, x_step; /* where the lane reads rows */

    __device__ __forceinline__ void fetch(sl_direct_raw<F> &r)
    {
#pragma unroll
        for (int i = 0; i < steps; i++) {
            if (i < left_next)
                r.load(src, i);
            r.commit();
        }
        src += sl_direct_raw<F>::bytes;
        left_next -= steps;
    }
    /* The products of what r holds; then its place takes what comes next. */
    __device__ __forceinline__ void multiply(float (&acc)[1][4], sl_direct_raw<F> &r,
                                             const uint8_t *smem)
    {
#pragma unroll
        for (int i = 0; i < steps; i++) {
            if (i < left) {
                const typename F::raw raw = r.get(i);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    uint32_t b[1][4];
                    sl_ldmatrix_x4(b[0], smem + x + i * 128 + 64 * half);
                    sl_direct_mma<F, 1>(acc, raw, half, b);
                }
            }
            if (i < left_next)
                r.load(src, i);
            r.commit();
        }
        x += x_step;
        src += sl_direct_raw<F>::bytes;
        left_next -= steps;
        left -= steps;
    }
    __device__ __forceinline__ void all(float (&acc)[1][4], sl_direct_raw<F> &even,
                                        sl_direct_raw<F> &odd, const uint8_t *smem)
    {
        while (left > 0) {
            multiply(acc, even, smem);
            if (left > 0)
                multiply(acc, odd, smem);
        }
        sl_wf_restore<F>(acc);
    }
};

/* Behind the zeros that lanes of absent rows read: rows, then what BF16 comes through. */
struct sl_few_room {
    uint32_t pitch, x, ring, swap, n_bytes;
};

static __host__ __device__ inline sl_few_room sl_few_room_of(int n_k64, int n_rows, int slot_bytes,
                                                             int n_warps, int swap_bytes)
{
    sl_few_room r;
    r.pitch = static_cast<uint32_t>(n_k64) * 128 + 16;
    r.swap = SL_DIRECT_ZEROS;
    r.x = r.swap + static_cast<uint32_t>(swap_bytes);
    r.ring = SL_ROUND_UP(r.x + r.pitch * static_cast<uint32_t>(n_rows), 128u);
    r.n_bytes = r.ring + static_cast<uint32_t>(2 * n_warps * slot_bytes);
    return r;
}

/* Copies a row to shared memory, zeros behind its end: threads thread, thread + n_threads, ... */
static __device__ __forceinline__ void sl_few_bring(uint8_t *to, const __nv_bfloat16 *x, int k,
                                                    int n_k64, int thread, int n_threads)
{
    for (int piece = thread; piece < n_k64 * 8; piece += n_threads) {
        if (piece * 8 + 8 <= k) {
            sl_cp_async16(to + 16 * piece, x + 8 * piece, true);
            continue;
        }
        __nv_bfloat16 *at = reinterpret_cast<__nv_bfloat16 *>(to) + 8 * piece;
        for (int e = 0; e < 8; e++)
            at[e] = piece * 8 + e < k ? x[8 * piece + e] : __float2bfloat16_rn(0.0f);
    }
}

static __device__ __forceinline__ void sl_few_zeros(uint8_t *smem, int thread)
{
    if (thread < SL_DIRECT_ZEROS / 16)
        reinterpret_cast<uint4 *>(smem)[thread] = make_uint4(0, 0, 0, 0);
}

/* Tile `idx`; false: there are not so many. They are known before the kernel of gate and up. */
static __device__ __forceinline__ bool sl_expert_find(const sl_expert_pairs &p, int32_t idx,
                                                      sl_expert_tile *t)
{
    if (p.tiles == nullptr) {
        *t = {sl_load_settled(p.experts + idx), idx, 1};
        return true;
    }
    if (idx >= sl_load_settled(p.n_tiles))
        return false;
    const int32_t *at = &p.tiles[idx].expert;
    *t = {sl_load_settled(at), sl_load_settled(at + 1), sl_load_settled(at + 2)};
    return true;
}

/* The row of x that a place has. */
static __device__ __forceinline__ const __nv_bfloat16 *sl_expert_row(const sl_expert_product &a,
                                                                     int32_t place)
{
    int32_t pair = a.by_row && a.pairs.pair != nullptr ? a.pairs.pair[place] : place;
    return a.x + static_cast<int64_t>(a.by_row ? pair / a.pairs.top_k : place) * a.k;
}

/* The sums of 16 rows and eight places as they are written; g, u: those of gate and up. */
static __device__ __forceinline__ void sl_few_store_mid(const sl_expert_product &a,
                                                        const sl_expert_tile &t, int32_t block,
                                                        const float (&g)[4], const float4 &u)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    const float other[4] = {u.x, u.y, u.z, u.w};
    const float *g_bias = sl_expert_bias(a, 0, t.expert), *u_bias = sl_expert_bias(a, 1, t.expert);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int32_t row = block * SL_CUDA_ROW_BLOCK + lane / 4 + 8 * (i / 2);
        const int32_t at = 2 * (lane % 4) + i % 2;
        if (at < t.n && row < a.n_rows)
            a.mid[static_cast<int64_t>(t.first + at) * a.n_rows + row] =
                __float2bfloat16_rn(sl_expert_gated(a, sl_expert_biased(g[i], g_bias, row),
                                                    sl_expert_biased(other[i], u_bias, row)));
    }
}

template <class F, bool GATED>
__global__ void __launch_bounds__(32 * SL_FEW_WARPS)
    sl_few_kernel(const __grid_constant__ sl_expert_product a)
{
    SL_SMEM(uint8_t, smem);
    constexpr int slot = sl_direct_raw<F>::slot_bytes;
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
    const int lane = static_cast<int>(threadIdx.x % 32), team = GATED ? warp / 2 : warp;
    const int32_t block =
        static_cast<int32_t>(blockIdx.x) * (GATED ? SL_FEW_WARPS / 2 : SL_FEW_WARPS) + team;
    const int n_most = a.pairs.tiles == nullptr ? 1 : SL_EXPERTS_FEW;
    const sl_few_room room =
        sl_few_room_of(a.n_k64, n_most, slot, SL_FEW_WARPS, GATED ? SL_FEW_SWAP : 0);
    sl_direct_raw<F> even(smem + room.ring + 2 * warp * slot),
        odd(smem + room.ring + (2 * warp + 1) * slot);
    sl_expert_tile t;
    sl_few_walk<F> w = {};
    if (GATED) { /* what sorts or routes is just ahead */
        sl_grid_wait();
        sl_grid_launch_dependents();
    }
    const bool live = sl_expert_find(a.pairs, static_cast<int32_t>(blockIdx.y), &t);
    if (live && block < a.n_blocks) {
        w.src = a.w[GATED ? warp & 1 : 0].streams[t.expert] + block * a.block_bytes;
        w.left = w.left_next = a.n_k64;
        w.fetch(even);
        w.fetch(odd);
    }
    if (!GATED) {
        sl_grid_launch_dependents();
        sl_grid_wait();
    }
    if (!live)
        return;
    for (int i = 0; i < t.n; i++)
        sl_few_bring(smem + room.x + static_cast<uint32_t>(i) * room.pitch,
                     sl_expert_row(a, t.first + i), a.k, a.n_k64, static_cast<int>(threadIdx.x),
                     32 * SL_FEW_WARPS);
    sl_few_zeros(smem, static_cast<int>(threadIdx.x));
    sl_cp_async_commit();
    sl_cp_async_wait<0>();
    __syncthreads();
    if (lane % 8 < t.n) {
        w.x = room.x + static_cast<uint32_t>(lane % 8) * room.pitch +
              static_cast<uint32_t>(lane / 8 * 16);
        w.x_step = sl_few_walk<F>::steps * 128;
    }
    float acc[1][4] = {};
    w.all(acc, even, odd, smem);
    if (!GATED) {
        if (block < a.n_blocks)
            sl_lin_store<float, 1>(acc, a.out, a.n_rows, sl_expert_bias(a, 0, t.expert), a.n_rows,
                                   block, t.first, t.first + t.n);
        return;
    }
    float4 *swap = reinterpret_cast<float4 *>(smem + room.swap) + team * 32 + lane;
    if (warp & 1)
        *swap = make_float4(acc[0][0], acc[0][1], acc[0][2], acc[0][3]);
    __syncthreads();
    if ((warp & 1) == 0 && block < a.n_blocks)
        sl_few_store_mid(a, t, block, acc[0], *swap);
}

/* order[i]: the place of the expert with i lower ones. One warp; top_k is at most 32. */
static __device__ __forceinline__ void sl_few_order(const int32_t *experts, int32_t top_k,
                                                    int32_t *order)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t own = lane < top_k ? sl_load_settled(experts + lane) : INT32_MAX;
    int32_t n_before = 0;
    for (int32_t o = 0; o < top_k; o++)
        n_before += __shfl_sync(0xffffffffu, own, o) < own;
    if (lane < top_k)
        order[n_before] = lane;
}

#define SL_FEW_SUM_ROOM (SL_EXPERTS_TOP_K * (SL_CUDA_ROW_BLOCK + 1) * 4)

/* A row block of down for one row of the step, and its experts in ascending order. */
template <class F>
__global__ void __launch_bounds__(32 * SL_FEW_SUM_WARPS)
    sl_few_sum_kernel(const __grid_constant__ sl_expert_product a,
                      const __grid_constant__ sl_expert_sum s)
{
    SL_SMEM(uint8_t, smem);
    constexpr int slot = sl_direct_raw<F>::slot_bytes;
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
    const int lane = static_cast<int>(threadIdx.x % 32),
              n_warps = static_cast<int>(blockDim.x) / 32;
    const int32_t block = static_cast<int32_t>(blockIdx.x), top_k = a.pairs.top_k;
    const int32_t first = static_cast<int32_t>(blockIdx.y) * top_k;
    const sl_few_room room = sl_few_room_of(a.n_k64, n_warps, slot, n_warps, SL_FEW_SUM_ROOM);
    float *sums = reinterpret_cast<float *>(smem + room.swap); /* [top_k, 16] */
    int32_t *order = reinterpret_cast<int32_t *>(sums + SL_EXPERTS_TOP_K * SL_CUDA_ROW_BLOCK);
    uint8_t *x = smem + room.x + static_cast<uint32_t>(warp) * room.pitch;
    sl_direct_raw<F> even(smem + room.ring + 2 * warp * slot),
        odd(smem + room.ring + (2 * warp + 1) * slot);
    sl_few_zeros(smem, static_cast<int>(threadIdx.x));
    for (int32_t at = warp; at < top_k; at += n_warps) {
        sl_few_walk<F> w = {};
        w.src =
            a.w[0].streams[sl_load_settled(a.pairs.experts + first + at)] + block * a.block_bytes;
        w.left = w.left_next = a.n_k64;
        w.fetch(even);
        w.fetch(odd);
        if (at == warp) {
            sl_grid_launch_dependents();
            if (warp == 0)
                sl_few_order(a.pairs.experts + first, top_k, order);
            sl_grid_wait();
            __syncthreads();
        }
        sl_few_bring(x, a.x + static_cast<int64_t>(first + at) * a.k, a.k, a.n_k64, lane, 32);
        sl_cp_async_commit();
        sl_cp_async_wait<0>();
        __syncwarp();
        if (lane % 8 == 0) {
            w.x = static_cast<uint32_t>(x - smem) + static_cast<uint32_t>(lane / 8 * 16);
            w.x_step = sl_few_walk<F>::steps * 128;
        }
        float acc[1][4] = {};
        w.all(acc, even, odd, smem);
        if (lane % 4 == 0) {
            sums[at * SL_CUDA_ROW_BLOCK + lane / 4] = acc[0][0];
            sums[at * SL_CUDA_ROW_BLOCK + lane / 4 + 8] = acc[0][2];
        }
        __syncwarp();
    }
    __syncthreads();
    const int32_t row = block * SL_CUDA_ROW_BLOCK + static_cast<int32_t>(threadIdx.x);
    if (threadIdx.x >= SL_CUDA_ROW_BLOCK || row >= a.n_rows)
        return;
    const int64_t out = static_cast<int64_t>(blockIdx.y) * a.n_rows + row;
    float sum = 0.0f;
    if (s.shared != nullptr)
        sum = __fmul_rn(sl_expert_open(s.shared_logit, static_cast<int32_t>(blockIdx.y)),
                        s.shared[out]);
    for (int32_t o = 0; o < top_k; o++) {
        const int32_t at = order[o];
        const float y = sl_expert_biased(
            sums[at * SL_CUDA_ROW_BLOCK + static_cast<int32_t>(threadIdx.x)],
            a.bias[0] != nullptr ? sl_expert_bias(a, 0, a.pairs.experts[first + at]) : nullptr,
            row);
        sum = __fadd_rn(sum, __fmul_rn(s.weights[first + at], y));
    }
    s.out[out] = sum;
}

/* ------------------------------------------------------------------ host */

template <class F> static void sl_few_launch(struct sl_cuda *cu, const sl_expert_product *a)
{
    constexpr int slot = sl_direct_raw<F>::slot_bytes;
    const bool single = a->pairs.tiles == NULL;
    const int per_block = a->gated ? SL_FEW_WARPS / 2 : SL_FEW_WARPS;
    const sl_few_room room = sl_few_room_of(a->n_k64, single ? 1 : SL_EXPERTS_FEW, slot,
                                            SL_FEW_WARPS, a->gated ? SL_FEW_SWAP : 0);
    const dim3 grid((unsigned)SL_CEIL_DIV(a->n_blocks, per_block), (unsigned)a->pairs.most_tiles);
    if (a->gated)
        sl_launch(cu, sl_few_kernel<F, true>, grid, dim3(32 * SL_FEW_WARPS), room.n_bytes, *a);
    else
        sl_launch(cu, sl_few_kernel<F, false>, grid, dim3(32 * SL_FEW_WARPS), room.n_bytes, *a);
}

template <class F>
static void sl_few_sum_launch(struct sl_cuda *cu, const sl_expert_product *a,
                              const sl_expert_sum *s, int32_t n)
{
    constexpr int slot = sl_direct_raw<F>::slot_bytes;
    int n_warps = SL_MIN(a->pairs.top_k, SL_FEW_SUM_WARPS);
    sl_few_room room = sl_few_room_of(a->n_k64, n_warps, slot, n_warps, SL_FEW_SUM_ROOM);
    while (n_warps > 1 && room.n_bytes > cu->smem_max) {
        n_warps--;
        room = sl_few_room_of(a->n_k64, n_warps, slot, n_warps, SL_FEW_SUM_ROOM);
    }
    sl_launch(cu, sl_few_sum_kernel<F>, dim3((unsigned)a->n_blocks, (unsigned)n),
              dim3((unsigned)(32 * n_warps)), room.n_bytes, *a, *s);
}

#endif
