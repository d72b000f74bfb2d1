/* SPDX-License-Identifier: MIT
 * linear_direct.cuh - GEMMs of up to 16 tokens: weights straight from memory into registers.
 *
 * A block an SM, of 16 warps in teams as in linear_stream.cuh: a warp for each segment
 * of a row block's columns, in a gated product one for gate and one for up. All tokens lie in the
 * block's shared memory, [token][columns], rows 16 bytes more than a multiple of 128. A lane reads
 * the 16 bytes of its own codes from memory and holds 512 columns of them. As soon as 64 are
 * multiplied, their registers are asked for the 64 after all these, over the end of a row block
 * too; the first go out before the kernel waits for the one ahead of it. BF16, which lies as wgmma
 * wants it, passes through shared memory of the warp's own, 256 columns, by cp.async, and ldmatrix
 * makes the fragments: 4096 x 4096 10.2 us for 10.9 straight into registers, 2048 x 8192 11.6 for
 * 15.3. (With L2's policy of what is read once ptxas 13.0 makes an instruction of that which the
 * chip refuses.)
 *
 * Bytes: weights once, x once a block from L2, outputs. In flight: 16 warps x 2 x 2.3 to 4.4 KB, 74
 * to 140 KB an SM, against the 36 KB that 4.7 TB/s times 1 us wants. Against the ring in
 * shared memory of linear_stream.cuh this saves the barriers and their waits, of codes a write and
 * a read there, too: instructions, which is what decoding lacks (lab/linear_small.cu). H200, 1
 * token, the same bits: 4096 x 4096 BF16 9.3 us for 12.5; 128256 x 4096 Q8_0 132 for 139, BF16 247
 * for 242: matrices of BF16 with one segment stay with the ring. Asking for each 64 columns at once
 * instead of 256 when all of those are multiplied: 128256 x 4096 Q4_K 86 us for 97 to 105, four-bit
 * groups 75 us, and 71 since decoding takes a third less.
 *
 * A few tokens whose norm waits for the product (fuse.h) are normalised by every block on their way
 * into shared memory, by 256 threads a token; the norm's weights come before the wait.
 *
 * Nine tokens and more are two eights: a fragment of weights is made once and multiplied twice.
 * That pays where row blocks are many (16 tokens, 128256 x 4096 in groups of 128 80.7 us for 102.3
 * by wgmma), but not against four segments of few, as each block loads all tokens (4096 x 4096
 * 11.4 for 8.6).
 */
#ifndef SL_CUDA_LINEAR_DIRECT_CUH
#define SL_CUDA_LINEAR_DIRECT_CUH

#include "cuda/gemm/linear_stream.cuh"
#include "cuda/norm.cuh"

#define SL_DIRECT_WARPS 16
#define SL_DIRECT_ZEROS 512 /* bytes, at the start of shared memory */

/* Some steps of 64 columns on their way: codes in a lane's registers, BF16 in shared memory of the
 * warp's own. Two of these take turns. */
template <class F> struct sl_direct_raw {
    static constexpr int steps = F::coded ? 4 : 2, subs = F::unit_k / 64;
    static constexpr int bytes = steps / subs * F::unit_bytes, slot_bytes = F::coded ? 0 : bytes;
    typename F::raw r[F::coded ? steps : 1];
    uint8_t *slot;

    __device__ __forceinline__ explicit sl_direct_raw(uint8_t *at) : slot(at)
    {
    }
    __device__ __forceinline__ void load(const uint8_t *src, int i)
    {
        int lane = static_cast<int>(threadIdx.x % 32);
        if constexpr (F::coded) {
            F::template load<true>(r[i], src + i / subs * F::unit_bytes, i % subs, lane);
        } else {
            __syncwarp(); /* all have read what was there */
#pragma unroll
            for (int at = i * F::unit_bytes; at < (i + 1) * F::unit_bytes; at += 512)
                sl_cp_async16(slot + at + 16 * lane, src + at + 16 * lane, true);
        }
    }
    /* After every step, loaded or not, so that as many groups follow each. */
    __device__ __forceinline__ void commit()
    {
        if (!F::coded)
            sl_cp_async_commit();
    }
    __device__ __forceinline__ typename F::raw get(int i) const
    {
        if constexpr (F::coded) {
            return r[i];
        } else {
            typename F::raw raw;
            sl_cp_async_wait<2 * steps - 1>();
            __syncwarp();
            F::load_shared(raw, slot + i * F::unit_bytes, static_cast<int>(threadIdx.x % 32));
            return raw;
        }
    }
};

/* 32 columns, half of raw. */
template <class F, int T>
static __device__ __forceinline__ void sl_direct_mma(float (&acc)[T][4], const typename F::raw &raw,
                                                     int half, const uint32_t (&b)[T][4])
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t a[4];
        F::frag(raw, 2 * half + j, a);
#pragma unroll
        for (int t = 0; t < T; t++)
            sl_mma_bf16(acc[t], a, b[t] + 2 * j);
    }
}

/* A warp's way through its work: what it fetches next, and what it multiplies. T: eights of
 * tokens. */
template <class F, int T> struct sl_direct_warp {
    static constexpr int steps = sl_direct_raw<F>::steps;
    const sl_lin *l;
    const sl_stream_plan *p;
    sl_stream_role role;
    int32_t warp, n_steps;
    int32_t first, stride; /* items: they go round over the blocks, so that each has as many */
    int32_t turn, left;    /* multiplied: items so far, steps left of this one */
    int32_t turn_next, left_next; /* fetched */
    const uint8_t *src;           /* what to fetch */
    /* Where the lane reads tokens, in an item, and how it goes on. */
    uint32_t x[T], x_first[T], x_step[T];

    __device__ __forceinline__ sl_direct_warp(const sl_lin &lin, const sl_stream_plan &plan, int w)
        : l(&lin), p(&plan), role(sl_stream_role_of(lin, w % plan.team)), warp(w),
          n_steps(sl_stream_steps(lin, role.seg)),
          first(w / plan.team * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)),
          stride(plan.teams * static_cast<int>(gridDim.x)), turn(0), left(n_steps), turn_next(0),
          left_next(0), src(nullptr)
    {
        /* ldmatrix: lanes 8 m .. 8 m + 7 give the rows of columns 8 m .. 8 m + 7; those of tokens
         * that are not there stay at zeros */
#pragma unroll
        for (int t = 0; t < T; t++) {
            uint32_t token = 8 * t + (threadIdx.x & 7);
            bool live = token < static_cast<uint32_t>(lin.n);
            x_first[t] = !live ? 0
                               : plan.act_offset + token * static_cast<uint32_t>(plan.buf_bytes) +
                                     static_cast<uint32_t>(role.seg * lin.seg_k64) * 128 +
                                     threadIdx.x % 32 / 8 * 16;
            x_step[t] = live ? steps * 128 : 0;
            x[t] = x_first[t];
        }
        enter();
    }
    __device__ __forceinline__ int item(int i) const
    {
        return first + i * stride;
    }
    __device__ __forceinline__ void enter()
    {
        if (item(turn_next) >= p->n_items)
            return;
        constexpr int subs = F::unit_k / 64;
        sl_stream_item it = sl_stream_find(*l, item(turn_next), role.part);
        int64_t unit = it.block * sl_cuda_row_units(l->n_k64 / subs, F::unit_bytes) +
                       role.seg * (l->seg_k64 / subs);
        src = it.part->w + unit * F::unit_bytes;
        left_next = n_steps;
    }
    __device__ __forceinline__ void fetched()
    {
        src += sl_direct_raw<F>::bytes;
        left_next -= steps;
        if (left_next <= 0 && left_next > -steps) { /* once */
            turn_next++;
            enter();
        }
    }
    __device__ __forceinline__ void fetch(sl_direct_raw<F> &r)
    {
#pragma unroll
        for (int i = 0; i < steps; i++) {
            if (i < left_next)
                r.load(src, i);
            r.commit();
        }
        fetched();
    }
    /* The products of what r holds. After those of a step its place takes what comes next. WHOLE:
     * no item ends in it. */
    template <bool WHOLE>
    __device__ __forceinline__ void steps_of(float (&acc)[T][4], sl_direct_raw<F> &r,
                                             const uint8_t *smem)
    {
#pragma unroll
        for (int i = 0; i < steps; i++) {
            if (WHOLE || i < left) {
                const typename F::raw raw = r.get(i);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    uint32_t b[T][4];
#pragma unroll
                    for (int t = 0; t < T; t++)
                        sl_ldmatrix_x4(b[t], smem + x[t] + i * 128 + 64 * half);
                    sl_direct_mma<F, T>(acc, raw, half, b);
                }
            }
            if (WHOLE || i < left_next)
                r.load(src, i);
            r.commit();
        }
    }
    __device__ __forceinline__ void multiply(float (&acc)[T][4], sl_direct_raw<F> &r,
                                             const uint8_t *smem)
    {
        if (left >= steps && left_next >= steps)
            steps_of<true>(acc, r, smem);
        else
            steps_of<false>(acc, r, smem);
#pragma unroll
        for (int t = 0; t < T; t++)
            x[t] += x_step[t];
        fetched();
    }
    /* After the products of some steps; false: nothing is left. */
    __device__ __forceinline__ bool next(float (&acc)[T][4], uint8_t *smem)
    {
        left -= steps;
        if (left > 0)
            return true;
        sl_stream_store<F, T>(acc, *l, *p, item(turn), warp, smem);
#pragma unroll
        for (int t = 0; t < T; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[t][i] = 0.0f;
            x[t] = x_first[t];
        }
        left = n_steps;
        return item(++turn) < p->n_items;
    }
};

/* All tokens into shared memory, zeros after the last column. */
static __device__ __forceinline__ void sl_direct_bring(const sl_lin &l, const sl_stream_plan &p,
                                                       uint8_t *smem)
{
    int pieces = l.n_k64 * 8, thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < l.n * pieces; i += static_cast<int>(blockDim.x)) {
        int token = i / pieces, col = i % pieces * 8;
        const __nv_bfloat16 *from = l.x + token * l.ld_x + col;
        __nv_bfloat16 *to =
            reinterpret_cast<__nv_bfloat16 *>(smem + p.act_offset + token * p.buf_bytes + col * 2);
        if (l.vec_x && col + 8 <= l.k) {
            sl_cp_async16(to, from, true);
            continue;
        }
        for (int e = 0; e < 8; e++)
            to[e] = col + e < l.k ? from[e] : __float2bfloat16_rn(0.0f);
    }
    if (thread < SL_DIRECT_ZEROS / 16)
        reinterpret_cast<uint4 *>(smem)[thread] = make_uint4(0, 0, 0, 0);
    sl_cp_async_commit();
    sl_cp_async_wait<0>();
    __syncthreads();
}

/* The same of tokens that are not normalised yet. Half of the warps have a token; w: a warp's part
 * of the norm's weights. */
static __device__ __forceinline__ void sl_direct_norm(const sl_lin &l, const sl_stream_plan &p,
                                                      uint8_t *smem, const sl_norm_part &w,
                                                      int warp)
{
    float *room = reinterpret_cast<float *>(smem + p.act_offset + l.n * p.buf_bytes);
    const bool first = threadIdx.x % 32 == 0, last_block = blockIdx.x + 1 == gridDim.x;
    const int half = warp / SL_NORM_WARPS, part = warp % SL_NORM_WARPS;
    if (threadIdx.x < SL_DIRECT_ZEROS / 16)
        reinterpret_cast<uint4 *>(smem)[threadIdx.x] = make_uint4(0, 0, 0, 0);
    for (int t = 0; t < l.n; t += 2) {
        const int token = t + half;
        float *sums = room + SL_NORM_WARPS * (t % 4 + half);
        sl_norm_part x;
        if (token < l.n) {
            x.load(l.norm.x + token * l.k, part, l.k);
            float s = x.squares();
            if (first)
                sums[part] = s;
        }
        __syncthreads();
        if (token >= l.n)
            continue;
        const float scale = sl_norm_scale_of(sums, l.norm.eps, l.k);
#pragma unroll
        for (int k = 0; k < SL_NORM_QUADS; k++) {
            const int i = sl_norm_part::column(part, k);
            const sl_norm_quad q = sl_norm_of(x.v[k], w.v[k], scale);
            if (i < l.n_k64 * 64)
                *reinterpret_cast<sl_norm_quad *>(smem + p.act_offset + token * p.buf_bytes +
                                                  2 * i) = q;
            if (last_block && i < l.k) /* it has the least to do */
                *reinterpret_cast<sl_norm_quad *>(l.norm.out + token * l.k + i) = q;
        }
    }
    __syncthreads();
}

template <class F, int T>
__global__ void __launch_bounds__(32 * SL_DIRECT_WARPS, 1)
    sl_direct_kernel(const __grid_constant__ sl_lin l, const __grid_constant__ sl_stream_plan p)
{
    SL_SMEM(uint8_t, smem);
    int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
    sl_direct_warp<F, T> w(l, p, warp);
    bool any = warp < p.teams * p.team && w.item(0) < p.n_items;
    constexpr int slot = sl_direct_raw<F>::slot_bytes;
    uint8_t *ring = smem + p.swap_offset + (p.team > 1 ? SL_DIRECT_WARPS * 512 : 0);
    sl_norm_part norm_w;
    if (T == 1 && l.norm.x != nullptr)
        norm_w.load(l.norm.w, warp % SL_NORM_WARPS, l.k);
    sl_direct_raw<F> even(ring + 2 * warp * slot), odd(ring + (2 * warp + 1) * slot);
    if (any) {
        w.fetch(even);
        w.fetch(odd);
    }
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (T == 1 && l.norm.x != nullptr)
        sl_direct_norm(l, p, smem, norm_w, warp);
    else
        sl_direct_bring(l, p, smem);
    if (!any)
        return;
    float acc[T][4] = {};
    /* One place where teams meet, whichever half their warps come from. */
    bool second = false;
#pragma unroll 1
    do {
        if (!second)
            w.multiply(acc, even, smem);
        else
            w.multiply(acc, odd, smem);
        second = !second;
    } while (w.next(acc, smem));
}

/* ------------------------------------------------------------------ host */

/* Shared memory for l. */
static inline size_t sl_direct_make_plan(const sl_lin *l, int slot_bytes, sl_stream_plan *p)
{
    *p = {};
    for (int i = 0; i < (l->gated ? 1 : l->n_parts); i++)
        p->n_items += l->part[i].n_blocks;
    p->team = l->n_segs * (l->gated ? 2 : 1);
    p->teams = SL_DIRECT_WARPS / p->team;
    p->buf_bytes = l->n_k64 * 128 + 16; /* of a token */
    p->swap_offset = SL_DIRECT_ZEROS;
    p->act_offset = p->swap_offset + (p->team > 1 ? SL_DIRECT_WARPS * 512u : 0u) +
                    2 * SL_DIRECT_WARPS * static_cast<uint32_t>(slot_bytes);
    int norm = l->norm.x != NULL ? 4 * SL_NORM_WARPS * (int)sizeof(float) : 0;
    return p->act_offset + (size_t)(l->n * p->buf_bytes + norm);
}

template <class F, int T = 1> static void sl_direct_launch(struct sl_cuda *cu, const sl_lin *l)
{
    sl_stream_plan p;
    size_t smem = sl_direct_make_plan(l, sl_direct_raw<F>::slot_bytes, &p);
    unsigned grid = (unsigned)SL_MIN(p.n_items, cu->n_sms);
    sl_launch(cu, sl_direct_kernel<F, T>, dim3(grid), dim3(32 * SL_DIRECT_WARPS), smem, *l, p);
}

#endif
