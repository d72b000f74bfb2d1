/* SPDX-License-Identifier: MIT
 * experts_few.cuh - products of experts with few rows each: only the experts that are hit are read,
 * straight from memory as linear_direct.cuh has it.
 *
 * A block is four warps with a row block each, in a gated product a warp for gate and one for up.
 * The rows of the tile lie in the block's shared memory; weights pass through a ring of the warp's
 * own, 8 to 13 KB of them on their way: no barrier, and no register waits for memory. (Into
 * registers, as linear_direct.cuh has it with four times as many warps an SM, each branch of the
 * loop waited for all of them: gpt-oss-20b, one row, 37 us.) The fragments of 32 columns are made
 * while the 32 before are multiplied. Which expert it is stands in memory: gate and up wait for it,
 * with the addresses of all experts at hand; the kernel of down starts when all blocks of gate and
 * up know theirs, so that its weights are on their way before those end.
 *
 * Of one or two rows every pair is a tile, and the same block multiplies a row block of `down` with
 * all experts of a row and adds them up: nothing is sorted, and what the experts give never goes
 * through memory.
 */
#ifndef SL_CUDA_EXPERTS_FEW_CUH
#define SL_CUDA_EXPERTS_FEW_CUH

#include "cuda/gemm/experts_gate.cuh"
#include "cuda/gemm/experts_leaves.cuh"
#include "cuda/gemm/linear_stream.cuh"

#define SL_FEW_WARPS     4
#define SL_FEW_SINGLE    2 /* warps, where every pair is a tile: blocks spread better */
#define SL_FEW_SUM_WARPS 8 /* experts at a time */
#define SL_FEW_SWAP      (SL_FEW_WARPS / 2 * 32 * 16)
#define SL_FEW_ZEROS     640 /* bytes, which lanes of absent rows read */

/* A warp's way through one row block of one expert. Weights come and go by pieces of some 2 to 3
 * KB, of which a row block's last may be shorter. */
template <class F> struct sl_few_walk {
    static constexpr int subs = F::unit_k / 64;
    /* Of 64 columns, of a piece; instructions count for codes of few bits, room for the others. */
    static constexpr int steps = subs > 1 ? subs : F::unit_bytes <= 640 ? 4 : 1;
    static constexpr int bytes = steps / subs * F::unit_bytes;
    static constexpr int slots = bytes > 3500 ? 3 : bytes > 1500 ? 4 : 8; /* 8 to 13 KB */
    static constexpr int ring_bytes = slots * bytes;
    const uint8_t *src;
    uint8_t *ring;       /* of the warp */
    uint32_t asked, at;  /* places in it: that the next piece will take, that is multiplied */
    int32_t left;        /* bytes to ask for */
    uint32_t x, x_piece; /* where the lane reads rows, and its way to the next piece */
    typename F::raw raw;

    /* Asks for the first pieces of n_bytes. */
    __device__ __forceinline__ void begin(const uint8_t *from, uint8_t *to, int32_t n_bytes)
    {
        ring = to;
        src = from + 16 * (threadIdx.x % 32);
        left = n_bytes - 16 * static_cast<int32_t>(threadIdx.x % 32);
        asked = at = 0;
#pragma unroll
        for (int i = 0; i < slots; i++)
            ask();
    }
    static __device__ __forceinline__ uint32_t next(uint32_t place)
    {
        return place + bytes == ring_bytes ? 0 : place + bytes;
    }
    /* A group for every piece, those that are not there too, so that as many follow each. */
    __device__ __forceinline__ void ask()
    {
        uint8_t *to = ring + asked + 16 * (threadIdx.x % 32);
#pragma unroll
        for (int i = 0; i < bytes; i += 512)
            if (i < left &&
                (i + 512 <= bytes || i + 16 * static_cast<int>(threadIdx.x % 32) < bytes))
                sl_cp_async16(to + i, src + i, true);
        sl_cp_async_commit();
        asked = next(asked);
        src += bytes;
        left -= bytes;
    }
    __device__ __forceinline__ void wait() const
    {
        sl_cp_async_wait<slots - 1>();
        __syncwarp();
    }
    __device__ __forceinline__ void take(uint32_t place, int step)
    {
        sl_wf_load<F>(raw, ring + place + step / subs * F::unit_bytes, step % subs,
                      static_cast<int>(threadIdx.x % 32));
    }
    /* Columns 32 half .. 32 half + 31 of raw. */
    __device__ __forceinline__ void frags(uint32_t (&a)[2][4], int half) const
    {
        F::frag(raw, 2 * half, a[0]);
        F::frag(raw, 2 * half + 1, a[1]);
    }
    /* The rows that meet half `half` of a piece. */
    __device__ __forceinline__ void rows(uint32_t (&b)[4], const uint8_t *smem, int half) const
    {
        sl_ldmatrix_x4(b, smem + x + 64 * half);
    }
    static __device__ __forceinline__ void multiply(float (&acc)[4], const uint32_t (&a)[2][4],
                                                    const uint32_t (&b)[4])
    {
        sl_mma_bf16(acc, a[0], b);
        sl_mma_bf16(acc, a[1], b + 2);
    }
    /* n of a piece's steps. The fragments of its first half are there; those of what follows are
     * made. more: a piece follows; else the first half is read once more, and not multiplied. */
    __device__ __forceinline__ void piece(float (&acc)[4], uint32_t (&a)[2][2][4],
                                          uint32_t (&b)[2][4], const uint8_t *smem, int n,
                                          bool more)
    {
#pragma unroll
        for (int i = 0; i < steps; i++) {
            rows(b[1], smem, 2 * i + 1);
            multiply(acc, a[0], b[0]);
            frags(a[1], 1);
            if (i + 1 < steps) {
                if (i + 1 == n) {
                    multiply(acc, a[1], b[1]);
                    return;
                }
                take(at, i + 1);
                rows(b[0], smem, 2 * i + 2);
            } else {
                __syncwarp(); /* all have read the piece */
                ask();
                wait();
                at = next(at);
                x += more ? x_piece : 0;
                take(at, 0);
                rows(b[0], smem, 0);
            }
            multiply(acc, a[1], b[1]);
            frags(a[0], 0);
        }
    }
    __device__ __forceinline__ void all(float (&acc)[1][4], const uint8_t *smem, int n_k64)
    {
        uint32_t a[2][2][4], b[2][4];
        wait();
        take(0, 0);
        rows(b[0], smem, 0);
        frags(a[0], 0);
#pragma unroll 1
        for (; n_k64 >= steps; n_k64 -= steps)
            piece(acc[0], a, b, smem, steps, n_k64 > steps);
        if (n_k64 > 0)
            piece(acc[0], a, b, smem, n_k64, false);
        sl_wf_restore<F>(acc);
    }
};

/* Behind the zeros: what warps hand over, addresses of experts, rows, the rings. */
struct sl_few_room {
    uint32_t pitch, swap, table, x, ring, n_bytes;
};

static __host__ __device__ inline sl_few_room sl_few_room_of(int n_k64, int n_rows, int ring_bytes,
                                                             int n_warps, int swap_bytes,
                                                             int n_experts)
{
    sl_few_room r;
    r.pitch = static_cast<uint32_t>(n_k64) * 128 + 16;
    r.swap = SL_FEW_ZEROS;
    r.table = r.swap + static_cast<uint32_t>(swap_bytes);
    r.x = SL_ROUND_UP(r.table + 16u * static_cast<uint32_t>(n_experts), 128u);
    r.ring = SL_ROUND_UP(r.x + r.pitch * static_cast<uint32_t>(n_rows), 128u);
    r.n_bytes = r.ring + static_cast<uint32_t>(n_warps * ring_bytes);
    return r;
}

/* Copies a row to shared memory, zeros behind its end: threads thread, thread + n_threads, ... By
 * registers, as a wait for copies would wait for weights that were asked for before. */
static __device__ __forceinline__ void sl_few_bring(uint8_t *to, const __nv_bfloat16 *x, int k,
                                                    int n_k64, int thread, int n_threads)
{
    const uint4 *from = reinterpret_cast<const uint4 *>(x);
    for (int first = thread; first < n_k64 * 8; first += 6 * n_threads) {
        uint4 v[6];
#pragma unroll
        for (int i = 0; i < 6; i++) {
            const int piece = first + i * n_threads;
            v[i] = piece < k / 8 ? __ldcg(from + piece) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < 6; i++)
            if (first + i * n_threads < n_k64 * 8)
                reinterpret_cast<uint4 *>(to)[first + i * n_threads] = v[i];
    }
}

static __device__ __forceinline__ void sl_few_zeros(uint8_t *smem, int thread)
{
    for (int i = thread; i < SL_FEW_ZEROS / 16; i += 32)
        reinterpret_cast<uint4 *>(smem)[i] = make_uint4(0, 0, 0, 0);
}

/* Tile `idx`; false: there are not so many, or its expert is another rank's. They are known before
 * the kernel of gate and up. */
static __device__ __forceinline__ bool sl_expert_find(const sl_expert_pairs &p, int32_t idx,
                                                      sl_expert_tile *t)
{
    if (p.tiles == nullptr) {
        *t = {sl_load_settled(p.experts + idx), idx, 1};
        return sl_expert_is_here(p, t->expert);
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

/* The sums of 16 rows and eight places as they are written, of experts without a gate. */
static __device__ __forceinline__ void sl_few_store_plain(const sl_expert_product &a,
                                                          const sl_expert_tile &t, int32_t block,
                                                          float (&v)[1][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[0][i] = sl_expert_plain(v[0][i]);
    sl_lin_store<__nv_bfloat16, 1>(v, a.mid, a.n_rows, nullptr, a.n_rows, block, t.first,
                                   t.first + t.n);
}

/* The same with a gate; g, u: the sums of gate and up. */
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
        if (at >= t.n || row >= a.n_rows)
            continue;
        const float w = sl_expert_weight(a.in_weights, a.pairs, t.first + at);
        a.mid[static_cast<int64_t>(t.first + at) * a.n_rows + row] = __float2bfloat16_rn(
            sl_expert_gated(a, __fmul_rn(w, sl_expert_biased(g[i], g_bias, row)),
                            __fmul_rn(w, sl_expert_biased(other[i], u_bias, row))));
    }
}

template <class F, bool FIRST, bool GATED>
__global__ void __launch_bounds__(32 * SL_FEW_WARPS)
    sl_few_kernel(const __grid_constant__ sl_expert_product a)
{
    SL_SMEM(uint8_t, smem);
    typedef sl_few_walk<F> walk;
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
    const int lane = static_cast<int>(threadIdx.x % 32), team = GATED ? warp / 2 : warp;
    const int thread = static_cast<int>(threadIdx.x), n_threads = static_cast<int>(blockDim.x);
    const int n_warps = n_threads / 32;
    const int32_t block = static_cast<int32_t>(blockIdx.x) * (GATED ? n_warps / 2 : n_warps) + team;
    const bool single = FIRST && a.pairs.tiles == nullptr;
    const sl_few_room room = sl_few_room_of(a.n_k64, a.pairs.tile, walk::ring_bytes, n_warps,
                                            GATED ? SL_FEW_SWAP : 0, FIRST ? a.n_experts : 0);
    const uint8_t **table = reinterpret_cast<const uint8_t **>(smem + room.table);
    uint8_t *ring = smem + room.ring + warp * walk::ring_bytes;
    sl_expert_tile t;
    walk w;
    sl_few_zeros(smem, thread);
    if (FIRST) { /* what sorts or routes is just ahead */
        for (int e = thread; e < a.n_experts; e += n_threads) {
            table[2 * e] = a.w[0].streams[e];
            if (GATED)
                table[2 * e + 1] = a.w[1].streams[e];
        }
        __syncthreads();
        sl_grid_wait();
        sl_grid_launch_dependents();
    }
    const bool live = sl_expert_find(a.pairs, static_cast<int32_t>(blockIdx.y), &t);
    if (single) /* rows are there before the expert is known, and would be late behind weights */
        sl_few_bring(smem + room.x, sl_expert_row(a, t.first), a.k, a.n_k64, thread, n_threads);
    if (live && block < a.n_blocks) {
        const uint8_t *stream =
            FIRST ? table[2 * t.expert + (GATED ? warp & 1 : 0)] : a.w[0].streams[t.expert];
        w.begin(stream + block * a.block_bytes, ring, a.n_k64 / walk::subs * F::unit_bytes);
    }
    if (!FIRST) {
        sl_grid_launch_dependents();
        sl_grid_wait();
    }
    if (!live)
        return;
    for (int i = single ? t.n : 0; i < t.n; i++)
        sl_few_bring(smem + room.x + static_cast<uint32_t>(i) * room.pitch,
                     sl_expert_row(a, t.first + i), a.k, a.n_k64, thread, n_threads);
    __syncthreads();
    const bool some = lane % 8 < t.n;
    w.x = some ? room.x + static_cast<uint32_t>(lane % 8) * room.pitch +
                     static_cast<uint32_t>(lane / 8 * 16)
               : 0;
    w.x_piece = some ? 128 * walk::steps : 0;
    float acc[1][4] = {};
    if (block < a.n_blocks)
        w.all(acc, smem, a.n_k64);
    if (!GATED) {
        if (block < a.n_blocks && FIRST)
            sl_few_store_plain(a, t, block, acc);
        else if (block < a.n_blocks)
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

/* In which order a row adds its experts that are here. */
struct sl_few_order {
    int32_t n;
    struct {
        int32_t at, ends; /* among the row's experts; sums that end before it */
        float weight;
    } of[SL_EXPERTS_TOP_K];
};

/* One warp; top_k is at most 32. */
static __device__ __forceinline__ void sl_few_find_order(const sl_expert_pairs &p, int32_t first,
                                                         int32_t n_experts, const float *weights,
                                                         sl_few_order *order)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
    const bool weighs = weights != nullptr && lane < p.top_k;
    const float weight = weighs ? __int_as_float(sl_load_settled(
                                      reinterpret_cast<const int32_t *>(weights) + first + lane))
                                : 1.0f;
    const int32_t own = lane < p.top_k ? sl_load_settled(p.experts + first + lane) : -1;
    const bool here = sl_expert_is_here(p, own);
    int32_t n_before = 0, before = -1;
    for (int32_t o = 0; o < p.top_k; o++) {
        const int32_t e = __shfl_sync(0xffffffffu, own, o);
        const bool lower = sl_expert_is_here(p, e) && e < own;
        n_before += lower;
        before = lower ? max(before, e) : before;
    }
    if (here) {
        order->of[n_before].at = lane;
        order->of[n_before].weight = weight;
        order->of[n_before].ends = before < 0 ? 0 : sl_expert_ends(before, own, n_experts);
    }
    const uint32_t all = __ballot_sync(0xffffffffu, here);
    if (lane == 0)
        order->n = __popc(all);
}

#define SL_FEW_SUM_AHEAD 4 /* experts whose sums are read before they are added */
#define SL_FEW_SUM_ROOM                         \
    (SL_EXPERTS_TOP_K * SL_CUDA_ROW_BLOCK * 4 + \
     SL_ROUND_UP(static_cast<int>(sizeof(sl_few_order)), 16))

/* A row block of down for one row of the step, and its experts that are here. */
template <class F>
__global__ void __launch_bounds__(32 * SL_FEW_SUM_WARPS)
    sl_few_sum_kernel(const __grid_constant__ sl_expert_product a,
                      const __grid_constant__ sl_expert_sum s)
{
    SL_SMEM(uint8_t, smem);
    typedef sl_few_walk<F> walk;
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
    const int lane = static_cast<int>(threadIdx.x % 32),
              n_warps = static_cast<int>(blockDim.x) / 32;
    const int32_t block = static_cast<int32_t>(blockIdx.x), top_k = a.pairs.top_k;
    const int32_t first = static_cast<int32_t>(blockIdx.y) * top_k;
    const sl_few_room room =
        sl_few_room_of(a.n_k64, n_warps, walk::ring_bytes, n_warps, SL_FEW_SUM_ROOM, 0);
    float *sums = reinterpret_cast<float *>(smem + room.swap); /* [top_k, 16] */
    sl_few_order *order =
        reinterpret_cast<sl_few_order *>(sums + SL_EXPERTS_TOP_K * SL_CUDA_ROW_BLOCK);
    uint8_t *x = smem + room.x + static_cast<uint32_t>(warp) * room.pitch;
    uint8_t *ring = smem + room.ring + warp * walk::ring_bytes;
    sl_few_zeros(smem, static_cast<int>(threadIdx.x));
    for (int32_t at = warp; at < top_k; at += n_warps) {
        const int32_t expert = sl_load_settled(a.pairs.experts + first + at);
        const bool here = sl_expert_is_here(a.pairs, expert);
        walk w;
        if (here)
            w.begin(a.w[0].streams[expert] + block * a.block_bytes, ring,
                    a.n_k64 / walk::subs * F::unit_bytes);
        if (at == warp) {
            sl_grid_launch_dependents();
            if (warp == 0)
                sl_few_find_order(a.pairs, first, a.n_experts, s.weights, order);
            sl_grid_wait();
            __syncthreads();
        }
        if (!here)
            continue;
        sl_few_bring(x, a.x + static_cast<int64_t>(first + at) * a.k, a.k, a.n_k64, lane, 32);
        __syncwarp();
        w.x = lane % 8 == 0 ? static_cast<uint32_t>(x - smem) + static_cast<uint32_t>(lane / 8 * 16)
                            : 0;
        w.x_piece = lane % 8 == 0 ? 128 * walk::steps : 0;
        float acc[1][4] = {};
        w.all(acc, smem, a.n_k64);
        sl_cp_async_wait<0>(); /* the ring is the next expert's */
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
    sl_expert_sums<float> sum;
    sum.begin(0.0f);
    for (int32_t from = 0; from < order->n; from += SL_FEW_SUM_AHEAD) {
        float v[SL_FEW_SUM_AHEAD];
        int32_t ends[SL_FEW_SUM_AHEAD];
#pragma unroll
        for (int k = 0; k < SL_FEW_SUM_AHEAD; k++) {
            const int32_t o = min(from + k, order->n - 1), at = order->of[o].at;
            const float y = sl_expert_biased(
                sums[at * SL_CUDA_ROW_BLOCK + static_cast<int32_t>(threadIdx.x)],
                a.bias[0] != nullptr ? sl_expert_bias(a, 0, a.pairs.experts[first + at]) : nullptr,
                row);
            v[k] = __fmul_rn(order->of[o].weight, y);
            ends[k] = order->of[o].ends;
        }
#pragma unroll
        for (int k = 0; k < SL_FEW_SUM_AHEAD; k++)
            if (from + k < order->n)
                sum.add(v[k], ends[k], 0.0f);
    }
    float whole = sum.whole();
    if (s.shared != nullptr)
        whole =
            __fadd_rn(__fmul_rn(sl_expert_open(s.shared_logit, static_cast<int32_t>(blockIdx.y)),
                                s.shared[out]),
                      whole);
    s.out[out] = whole;
}

/* ------------------------------------------------------------------ host */

template <class F> static void sl_few_launch(struct sl_cuda *cu, const sl_expert_product *a)
{
    const bool single = a->pairs.tiles == NULL;
    const int n_warps = single && a->first ? SL_FEW_SINGLE : SL_FEW_WARPS;
    const int per_block = a->gated ? n_warps / 2 : n_warps;
    const sl_few_room room =
        sl_few_room_of(a->n_k64, a->pairs.tile, sl_few_walk<F>::ring_bytes, n_warps,
                       a->gated ? SL_FEW_SWAP : 0, a->first ? a->n_experts : 0);
    const dim3 grid((unsigned)SL_CEIL_DIV(a->n_blocks, per_block), (unsigned)a->pairs.most_tiles);
    const dim3 threads(32 * (unsigned)n_warps);
    if (a->gated)
        sl_launch(cu, sl_few_kernel<F, true, true>, grid, threads, room.n_bytes, *a);
    else if (a->first)
        sl_launch(cu, sl_few_kernel<F, true, false>, grid, threads, room.n_bytes, *a);
    else
        sl_launch(cu, sl_few_kernel<F, false, false>, grid, threads, room.n_bytes, *a);
}

template <class F>
static void sl_few_sum_launch(struct sl_cuda *cu, const sl_expert_product *a,
                              const sl_expert_sum *s, int32_t n)
{
    constexpr int ring = sl_few_walk<F>::ring_bytes;
    int n_warps = SL_MIN(a->pairs.top_k, SL_FEW_SUM_WARPS);
    sl_few_room room = sl_few_room_of(a->n_k64, n_warps, ring, n_warps, SL_FEW_SUM_ROOM, 0);
    while (n_warps > 1 && room.n_bytes > cu->smem_max) {
        n_warps--;
        room = sl_few_room_of(a->n_k64, n_warps, ring, n_warps, SL_FEW_SUM_ROOM, 0);
    }
    sl_launch(cu, sl_few_sum_kernel<F>, dim3((unsigned)a->n_blocks, (unsigned)n),
              dim3((unsigned)(32 * n_warps)), room.n_bytes, *a, *s);
}

#endif
