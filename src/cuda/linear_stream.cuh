/* SPDX-License-Identifier: MIT
 * linear_stream.cuh - products of few tokens (up to 64): weights stream through shared memory once.
 *
 * A block is up to 8 consumer warps and one that brings activations. A warp owns one row block of
 * 16 rows at a time, from the first column to the last, with the sums of all tokens in its
 * registers. Its weights come through a ring of its own, filled by bulk copies of 2.2 to 4 KB that
 * its lane 0 issues as slots fall free, over the end of a row block into the next; the first ones
 * go out before the kernel waits for the one ahead of it. Lanes read A fragments (or codes, which
 * they decode) with 16-byte loads without bank conflicts. Activations lie in shared memory in
 * chunks of kc columns, [token][kc + 8], read as B fragments by ldmatrix (rows are 16 bytes more
 * than a multiple of 128, so that 8 rows lie in different banks); tokens that are not there read 16
 * zero bytes. When the whole input fits it stays, else chunks go round a ring.
 *
 * In a gated product an even warp has a gate row block and the odd one after it the same block of
 * up; at the end up's sums pass through shared memory to the gate's warp.
 *
 * Two blocks fit a multiprocessor (at most 113 KB; 96 registers with 8 consumers, 128 with the 7 of
 * 17 and more tokens): with few row blocks the second place is the next kernel's, whose weights
 * then arrive while this one ends. ptxas (13.0, sm_90a), registers for 8, 16, 32, 64 tokens:
 *   bf16 86 83 112 128   q8_0 85 80 104 120   q4_0 80 79 96 121
 *   q4_k 87 79 93 124    q5_k 90 80 96 128    q6_k 94 80 96 128
 * no spills but 12 bytes in bf16 for 64 tokens, once a stage, outside the products.
 *
 * Bytes: weights once, x once a block from L2 (once a walk when it does not stay), outputs.
 * Everything below is PREDICTED, for an H200: 4.7 TB/s read stream, 132 multiprocessors, 1.75 GHz,
 * one token.
 *   In flight: 8 warps x (slots - 1) x 2.2 to 4 KB, 32 to 90 KB a block, against the 36 KB a
 *   multiprocessor that 4.7 TB/s times 1 us wants.
 *   The chain: a row block is n_k16 dependent mma of 33 clocks each, and about 20 clocks a step of
 *   64 columns around them: K = 4096 5.6 us, K = 14336 20 us. No format is faster than that, so
 *   q4_0 with N = 4096, K = 14336 (33 MB, 7 us of memory) is bound by the chain, at 35 % of the
 * read stream: the price of one accumulator. bf16 4096 x 4096 (34 MB, 7.1 us) is just above it.
 *   bf16 28672 x 4096 (gate and up): 235 MB, 50 us at the limit, predicted 85 to 90 % of it.
 *   Coded formats, every warp busy, are bound by instructions: those of weight_format.cuh and about
 *   one more a weight around them, x weights / (128 lanes x 132 x 1.75 GHz). q8_0 75 % of the issue
 *   slots at full bandwidth, q4_0 115 %, q6_k 105 %, q5_k 135 %, q4_k 160 %: predicted 85, 70, 70,
 *   60, 50 % of the read stream. q4_k would gain most from a decode without the subtraction of 128,
 *   exact wherever d and dmin of a block are within a few powers of two.
 */
#ifndef SL_CUDA_LINEAR_STREAM_CUH
#define SL_CUDA_LINEAR_STREAM_CUH

#include "cuda/launch.cuh"
#include "cuda/linear_store.cuh"
#include "cuda/weight_format.cuh"

#define SL_STREAM_WARPS  8
#define SL_STREAM_SLOTS  16 /* most of a warp's ring */
#define SL_STREAM_BUFS   64 /* most buffers of activations */
#define SL_STREAM_SMEM   115712
#define SL_STREAM_BARS   1024 /* offset of the activations' barriers, behind those of the rings */
#define SL_STREAM_ZEROS  2048 /* offset of 16 zero bytes */
#define SL_STREAM_HEADER 2176

/* Consumers of a block, by columns of tokens. Two blocks share 65536 registers: 9 warps get 96, 8
 * get 128. */
#define SL_STREAM_CONSUMERS(nt) ((nt) < 4 ? 8 : 7)

/* Columns of a chunk of activations, by columns of tokens. */
#define SL_STREAM_CHUNK(nt) ((nt) == 1 ? 512 : (nt) == 2 ? 256 : 128)

struct sl_stream_plan { /* sizes of one launch, made on the host */
    int32_t n_items;    /* row blocks of all parts, gated: pairs x 2 */
    int32_t warps;      /* consumers, even when gated */
    int32_t slots, slot_bytes;
    int32_t kc, n_chunks, n_bufs, buf_bytes; /* activations; n_bufs = n_chunks: they stay */
    uint32_t act_offset, swap_offset;        /* in shared memory */
};

/* What a warp is working on. */
struct sl_stream_item {
    const sl_lin_part *part;
    int32_t block;
};

static __device__ __forceinline__ sl_stream_item sl_stream_find(const sl_lin &l, int item)
{
    sl_stream_item it;
    if (l.gated) {
        it.part = &l.part[item & 1];
        it.block = item >> 1;
        return it;
    }
    int p = 0;
    while (p + 1 < l.n_parts && item >= l.part[p + 1].first)
        p++;
    it.part = &l.part[p];
    it.block = item - l.part[p].first;
    return it;
}

/* The items of this block: ranges that differ by at most one item (pair when gated). */
static __device__ __forceinline__ void sl_stream_range(const sl_lin &l, const sl_stream_plan &p,
                                                       int *from, int *to)
{
    int unit = l.gated ? 2 : 1;
    int64_t n = p.n_items / unit;
    *from = static_cast<int>(n * blockIdx.x / gridDim.x) * unit;
    *to = static_cast<int>(n * (blockIdx.x + 1) / gridDim.x) * unit;
}

/* Brings the activations, chunk by chunk, for as many walks through K as the consumers make. */
static __device__ void sl_stream_bring(const sl_lin &l, const sl_stream_plan &p, uint8_t *smem,
                                       uint64_t *full, uint64_t *empty, int n_walks)
{
    int lane = static_cast<int>(threadIdx.x % 32), row = p.kc + 8;
    int total = p.n_bufs == p.n_chunks ? p.n_chunks : n_walks * p.n_chunks;
    int buf = 0, chunk = 0;
    uint32_t parity = 1; /* of the empty barriers: fresh ones count as past it */
    for (int i = 0; i < total; i++) {
        sl_mbar_wait(&empty[buf], parity);
        __nv_bfloat16 *dst =
            reinterpret_cast<__nv_bfloat16 *>(smem + p.act_offset + buf * p.buf_bytes);
        int k0 = chunk * p.kc, cols = min(p.kc, l.n_k64 * 64 - k0);
        int valid = max(0, min(cols, l.k - k0)), whole = l.vec_x ? valid & ~7 : 0;
        if (whole < cols) {
            for (int t = 0; t < l.n; t++)
                for (int c = whole + lane; c < cols; c += 32)
                    dst[t * row + c] =
                        c < valid ? l.x[t * l.ld_x + k0 + c] : __float2bfloat16_rn(0.0f);
        }
        /* What was read or written here by ordinary accesses, the copy engine writes next. */
        sl_fence_proxy_async();
        __syncwarp();
        if (lane == 0)
            sl_mbar_expect_tx(&full[buf], static_cast<uint32_t>(l.n * whole * 2));
        __syncwarp();
        for (int t = lane; whole > 0 && t < l.n; t += 32)
            sl_bulk_load(dst + t * row, l.x + t * l.ld_x + k0, static_cast<uint32_t>(whole * 2),
                         &full[buf]);
        chunk = chunk + 1 == p.n_chunks ? 0 : chunk + 1;
        if (++buf == p.n_bufs) {
            buf = 0;
            parity ^= 1;
        }
    }
}

/* The warp's ring of weights: what is in flight and what is next to read. Places in shared memory
 * are offsets everywhere: from pointers kept in structs the compiler makes generic addresses. */
template <class F> struct sl_stream_ring {
    uint8_t *smem;
    const sl_lin *l;
    const sl_stream_plan *p;
    const uint8_t *src;   /* next bytes to fetch */
    uint32_t slots, bars; /* offsets */
    int32_t item, to;     /* the item src belongs to; the block's end */
    int32_t units_left;   /* of the item */
    int32_t put, got;     /* slots */
    uint32_t parity;

    static constexpr int subs = F::unit_k / 64;

    __device__ __forceinline__ uint64_t *bar(int slot)
    {
        return reinterpret_cast<uint64_t *>(smem + bars + 8 * slot);
    }
    __device__ __forceinline__ void open(int first)
    {
        item = first;
        put = 0;
        got = 0;
        parity = 0;
        src = nullptr;
        start();
    }
    __device__ __forceinline__ void start()
    {
        units_left = l->n_k64 / subs;
        if (item < to) {
            sl_stream_item it = sl_stream_find(*l, item);
            src = it.part->w + static_cast<int64_t>(it.block) * units_left * F::unit_bytes;
        }
    }
    /* Lane 0: fetches into the next slot. */
    __device__ __forceinline__ void fetch()
    {
        if (item >= to)
            return;
        int units = min(units_left, F::stage_units);
        uint32_t n = static_cast<uint32_t>(units * F::unit_bytes);
        sl_mbar_expect_tx(bar(put), n);
        sl_bulk_load(smem + slots + put * p->slot_bytes, src, n, bar(put));
        src += n;
        put = put + 1 == p->slots ? 0 : put + 1;
        units_left -= units;
        if (units_left == 0) {
            item += p->warps;
            start();
        }
    }
    /* Offset of the next slot to read, when it is there. */
    __device__ __forceinline__ uint32_t wait()
    {
        sl_mbar_wait(bar(got), parity);
        uint32_t at = slots + static_cast<uint32_t>(got * p->slot_bytes);
        if (++got == p->slots) {
            got = 0;
            parity ^= 1;
        }
        return at;
    }
    /* After products that used the last of a slot: every lane's loads of it have ended, as the
     * products needed what they brought, so the copy engine may write there again. */
    __device__ __forceinline__ void refill()
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            fetch();
    }
};

/* The consumers' place in the chunks of activations. A chunk may be entered before the one before
 * it is left. */
struct sl_stream_acts {
    uint8_t *smem;
    int32_t in, out; /* buffers to enter and to leave next */
    uint32_t parity; /* of the former */

    __device__ __forceinline__ uint64_t *bar(int i)
    {
        return reinterpret_cast<uint64_t *>(smem + SL_STREAM_BARS + 8 * i);
    }
    /* Offset of the next chunk, when it is there. */
    __device__ __forceinline__ uint32_t enter(const sl_stream_plan &p)
    {
        sl_mbar_wait(bar(in), parity);
        uint32_t at = p.act_offset + static_cast<uint32_t>(in * p.buf_bytes);
        if (++in == p.n_bufs) {
            in = 0;
            parity ^= p.n_bufs == p.n_chunks ? 0 : 1;
        }
        return at;
    }
    __device__ __forceinline__ void leave(const sl_stream_plan &p)
    {
        if (p.n_bufs == p.n_chunks)
            return; /* it stays */
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            sl_mbar_arrive(bar(SL_STREAM_BUFS + out));
        if (++out == p.n_bufs)
            out = 0;
    }
};

/* B fragments of 32 columns and N columns of eight tokens from token t0 on. */
template <int N>
static __device__ __forceinline__ void sl_stream_load_x(uint32_t (&b)[N][4], const uint8_t *smem,
                                                        uint32_t cols, uint32_t row_bytes, int t0,
                                                        int n)
{
    int token = t0 + static_cast<int>(threadIdx.x & 7);
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t at = cols + static_cast<uint32_t>(t0 + 8 * i) * row_bytes;
        sl_ldmatrix_x4(b[i], smem + (token + 8 * i < n ? at : SL_STREAM_ZEROS));
    }
}

template <int N>
static __device__ __forceinline__ void sl_stream_copy_x(uint32_t (&to)[2][N][4],
                                                        const uint32_t (&from)[2][N][4])
{
#pragma unroll
    for (int i = 0; i < 8 * N; i++)
        to[i / (4 * N)][i / 4 % N][i % 4] = from[i / (4 * N)][i / 4 % N][i % 4];
}

/* 32 columns, half of raw: acc += decode(raw) x for N columns of tokens. */
template <class F, int N>
static __device__ __forceinline__ void sl_stream_mma(float (*acc)[4], const typename F::raw &raw,
                                                     int half, const uint32_t (&b)[N][4])
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t a[4];
        F::frag(raw, 2 * half + j, a);
#pragma unroll
        for (int i = 0; i < N; i++)
            sl_mma_bf16(acc[i], a, b[i] + 2 * j);
    }
}

/* One row block from the first column to the last, a stage of weights at a time. What 64 columns
 * need, weights and with 8 tokens activations too, is read before the products of the 64 before
 * them, so that the chain of mma does not wait for shared memory; with 64 tokens there are chains
 * enough and too few registers. A stage is unrolled: where a step's weights and scales lie in it is
 * known to the compiler. */
template <class F, int NT>
static __device__ __forceinline__ void sl_stream_block(float (&acc)[NT][4], const sl_lin &l,
                                                       const sl_stream_plan &p,
                                                       sl_stream_ring<F> &ring,
                                                       sl_stream_acts &acts, const uint8_t *smem)
{
    constexpr int subs = F::unit_k / 64, steps = F::stage_units * subs;
    /* Columns of tokens side by side; more would not fit in registers. */
    constexpr int group = NT < 4 ? NT : F::coded || NT == 4 ? 4 : 2;
    /* A chunk is at least this long, or the only one: where its ends can be in a stage. */
    constexpr int span = steps < SL_STREAM_CHUNK(NT) / 64 ? steps : SL_STREAM_CHUNK(NT) / 64;
    constexpr bool ahead = NT <= 4, ahead_x = NT == 1;
    [[maybe_unused]] constexpr int unroll = ahead || subs == 4 ? steps : 1; /* in the pragma */
    int lane = static_cast<int>(threadIdx.x % 32);
    uint32_t row_bytes = static_cast<uint32_t>(p.kc + 8) * 2;
    /* ldmatrix: lanes 8 m .. 8 m + 7 give the rows of columns 8 m .. 8 m + 7 */
    uint32_t offset = static_cast<uint32_t>(lane & 7) * row_bytes + (lane >> 3) * 16;
    int in_left = p.kc / 64, out_left = in_left; /* steps of the chunks entered and to be left */
    uint32_t cols = acts.enter(p) + offset, stage = ring.wait();
    typename F::raw raw;
    uint32_t x[2][group][4];
    F::load(raw, smem + stage, 0, lane);
    if (ahead_x) {
        sl_stream_load_x<group>(x[0], smem, cols, row_bytes, 0, l.n);
        sl_stream_load_x<group>(x[1], smem, cols + 64, row_bytes, 0, l.n);
    }
    for (int left = l.n_k64; left > 0; left -= steps) {
#pragma unroll unroll
        for (int i = 0; i < steps; i++) {
            if (subs < 4 && i >= left)
                break; /* K ends in the stage; a unit of 256 columns is whole */
            bool in_stage = i + 1 < steps && (subs == 4 || i + 1 < left), more = i + 1 < left;
            uint32_t cols_next = cols + 128;
            typename F::raw next;
            uint32_t x_next[2][group][4];
            if (ahead && more) {
                if (!in_stage)
                    stage = ring.wait();
                int at = in_stage ? i + 1 : 0;
                F::load(next, smem + stage + at / subs * F::unit_bytes, at % subs, lane);
            }
            in_left--;
            if ((i + 1) % span == 0 && in_left == 0 && ahead_x && more) {
                cols_next = acts.enter(p) + offset;
                in_left = p.kc / 64;
            }
            if (ahead_x && more) {
                sl_stream_load_x<group>(x_next[0], smem, cols_next, row_bytes, 0, l.n);
                sl_stream_load_x<group>(x_next[1], smem, cols_next + 64, row_bytes, 0, l.n);
            }
            if (!ahead && i > 0)
                F::load(raw, smem + stage + i / subs * F::unit_bytes, i % subs, lane);
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int i0 = 0; i0 < NT; i0 += group) {
                    if (!ahead_x)
                        sl_stream_load_x<group>(x[half], smem, cols + 64 * half, row_bytes, 8 * i0,
                                                l.n);
                    sl_stream_mma<F, group>(acc + i0, raw, half, x[half]);
                }
            }
            if ((i + 1) % span == 0 && (out_left -= span) == 0) {
                acts.leave(p);
                out_left = p.kc / 64;
                if (!more)
                    out_left = 0;
                else if (!ahead_x)
                    cols_next = acts.enter(p) + offset;
            }
            cols = cols_next;
            if (ahead)
                raw = next;
            if (ahead_x)
                sl_stream_copy_x<group>(x, x_next);
        }
        ring.refill();
        if (!ahead && left > steps) {
            stage = ring.wait();
            F::load(raw, smem + stage, 0, lane);
        }
    }
    if (out_left != 0) /* K ended inside the last chunk */
        acts.leave(p);
}

/* Walks through K without work, so that the others' chunks can move on. */
static __device__ __forceinline__ void sl_stream_pass(const sl_stream_plan &p, sl_stream_acts &acts)
{
    if (p.n_bufs == p.n_chunks)
        return;
    for (int c = 0; c < p.n_chunks; c++) {
        acts.enter(p);
        acts.leave(p);
    }
}

/* The odd warp of a pair hands its sums to the even one, which writes. */
template <int NT>
static __device__ __forceinline__ void sl_stream_store_gated(float (&acc)[NT][4], const sl_lin &l,
                                                             const sl_stream_item &it, float *swap,
                                                             int warp)
{
    int lane = static_cast<int>(threadIdx.x % 32), pair = warp >> 1;
    swap += pair * NT * 128 + lane;
    if (warp & 1) {
#pragma unroll
        for (int i = 0; i < NT * 4; i++)
            swap[32 * i] = acc[i / 4][i % 4];
    }
    sl_bar_sync(1 + pair, 64);
    if ((warp & 1) == 0) {
#pragma unroll
        for (int i = 0; i < NT * 4; i++)
            acc[i / 4][i % 4] = __fmul_rn(sl_act(l.act, acc[i / 4][i % 4]), swap[32 * i]);
        sl_lin_store_gated<NT>(acc, l, it.block, 0);
    }
    sl_bar_sync(1 + pair, 64); /* swap is free */
}

template <class F, int NT>
static __device__ __forceinline__ void sl_stream_consume(const sl_lin &l, const sl_stream_plan &p,
                                                         uint8_t *smem, sl_stream_ring<F> &ring,
                                                         int from, int to, int warp)
{
    sl_stream_acts acts = {smem, 0, 0, 0};
    for (int base = from; base < to; base += p.warps) {
        if (base + warp >= to) {
            sl_stream_pass(p, acts);
            continue;
        }
        float acc[NT][4] = {};
        sl_stream_block<F, NT>(acc, l, p, ring, acts, smem);
        sl_stream_item it = sl_stream_find(l, base + warp);
        if (l.gated)
            sl_stream_store_gated<NT>(acc, l, it, reinterpret_cast<float *>(smem + p.swap_offset),
                                      warp);
        else
            sl_lin_store_part<NT>(acc, l, *it.part, it.block, 0);
    }
}

/* Barriers: one per slot of every warp, then full and empty of the activations' buffers. */
static __device__ __forceinline__ void sl_stream_init(const sl_stream_plan &p, uint8_t *smem)
{
    int i = static_cast<int>(threadIdx.x);
    /* Every thread one of each kind: one thread would take a microsecond for all. */
    uint64_t *bars = reinterpret_cast<uint64_t *>(smem);
    for (int j = i; j < p.warps * SL_STREAM_SLOTS; j += static_cast<int>(blockDim.x))
        sl_mbar_init(&bars[j], 1);
    bars = reinterpret_cast<uint64_t *>(smem + SL_STREAM_BARS);
    for (int j = i; j < p.n_bufs; j += static_cast<int>(blockDim.x)) {
        sl_mbar_init(&bars[j], 1);
        sl_mbar_init(&bars[SL_STREAM_BUFS + j], static_cast<uint32_t>(p.warps));
    }
    sl_mbar_fence_init();
    if (i == 0)
        *reinterpret_cast<uint4 *>(smem + SL_STREAM_ZEROS) = make_uint4(0, 0, 0, 0);
    __syncthreads();
}

/* The life of a consumer warp. F: its layout. */
template <class F, int NT>
static __device__ __forceinline__ void sl_stream_warp(const sl_lin &l, const sl_stream_plan &p,
                                                      uint8_t *smem, int from, int to, int warp)
{
    sl_stream_ring<F> ring;
    ring.smem = smem;
    ring.slots = static_cast<uint32_t>(SL_STREAM_HEADER + warp * p.slots * p.slot_bytes);
    ring.bars = static_cast<uint32_t>(warp * SL_STREAM_SLOTS * 8);
    ring.l = &l;
    ring.p = &p;
    ring.to = to;
    ring.open(from + warp);
    if (threadIdx.x % 32 == 0) {
        for (int i = 0; i < p.slots; i++)
            ring.fetch();
    }
    __syncwarp();
    sl_grid_launch_dependents();
    sl_grid_wait();
    sl_stream_consume<F, NT>(l, p, smem, ring, from, to, warp);
}

static __device__ __forceinline__ void sl_stream_bring_warp(const sl_lin &l,
                                                            const sl_stream_plan &p, uint8_t *smem,
                                                            int from, int to)
{
    uint64_t *bars = reinterpret_cast<uint64_t *>(smem + SL_STREAM_BARS);
    sl_grid_launch_dependents();
    sl_grid_wait();
    sl_stream_bring(l, p, smem, bars, bars + SL_STREAM_BUFS, (to - from + p.warps - 1) / p.warps);
}

template <class F, int NT>
__global__ void __launch_bounds__(32 * (SL_STREAM_CONSUMERS(NT) + 1), 2)
    sl_stream_kernel(const __grid_constant__ sl_lin l, const __grid_constant__ sl_stream_plan p)
{
    SL_SMEM(uint8_t, smem);
    int warp = static_cast<int>(threadIdx.x / 32), from, to;
    sl_stream_init(p, smem);
    sl_stream_range(l, p, &from, &to);
    if (warp < p.warps)
        sl_stream_warp<F, NT>(l, p, smem, from, to, warp);
    else
        sl_stream_bring_warp(l, p, smem, from, to);
}

/* ------------------------------------------------------------------ host */

/* Sizes for l with slots of slot_bytes and nt columns of tokens; returns the grid. */
static inline unsigned sl_stream_make_plan(const struct sl_cuda *cu, const sl_lin *l,
                                           int slot_bytes, int nt, sl_stream_plan *p, size_t *smem)
{
    int unit = l->gated ? 2 : 1;
    p->n_items = l->gated ? 2 * l->part[0].n_blocks : 0;
    for (int i = 0; !l->gated && i < l->n_parts; i++)
        p->n_items += l->part[i].n_blocks;
    /* One block a multiprocessor if its warps are enough for its share, else two. */
    int units = p->n_items / unit, share = SL_CEIL_DIV(units, cu->n_sms);
    int most = SL_STREAM_CONSUMERS(nt) / unit;
    int grid = SL_MIN(units, share <= most ? cu->n_sms : 2 * cu->n_sms);
    share = SL_CEIL_DIV(units, grid);
    int walks = SL_CEIL_DIV(share, most); /* of equal width */
    p->warps = SL_CEIL_DIV(share, walks) * unit;
    p->slot_bytes = slot_bytes;
    int swap = l->gated ? p->warps / 2 * nt * 512 : 0;
    int room = SL_STREAM_SMEM - SL_STREAM_HEADER - swap, ring = p->warps * slot_bytes;
    int want = room - 3 * ring; /* for activations, with three slots a warp */
    p->kc = SL_MIN(SL_STREAM_CHUNK(nt), l->n_k64 * 64);
    p->n_chunks = SL_CEIL_DIV(l->n_k64 * 64, p->kc);
    p->buf_bytes = l->n * (p->kc + 8) * 2;
    p->n_bufs = SL_MAX(2, SL_MIN(want / p->buf_bytes, SL_STREAM_BUFS));
    p->n_bufs = SL_MIN(p->n_bufs, p->n_chunks);
    room -= p->n_bufs * p->buf_bytes;
    p->slots = SL_MIN(room / ring, SL_STREAM_SLOTS);
    SL_ASSERT(p->slots >= 2);
    p->act_offset = (uint32_t)(SL_STREAM_HEADER + p->slots * ring);
    p->swap_offset = p->act_offset + (uint32_t)(p->n_bufs * p->buf_bytes);
    *smem = p->swap_offset + (size_t)swap;
    return (unsigned)grid;
}

template <class F, int NT> static void sl_stream_launch(struct sl_cuda *cu, const sl_lin *l)
{
    sl_stream_plan p;
    size_t smem;
    unsigned grid = sl_stream_make_plan(cu, l, F::stage_units * F::unit_bytes, NT, &p, &smem);
    sl_launch(cu, sl_stream_kernel<F, NT>, dim3(grid), dim3(32u * (unsigned)(p.warps + 1)), smem,
              *l, p);
}

#endif
