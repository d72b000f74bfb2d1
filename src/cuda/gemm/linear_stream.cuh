/* SPDX-License-Identifier: MIT
 * linear_stream.cuh - GEMMs of up to eight tokens: weights stream through shared memory once.
 *
 * A block is up to 8 consumer warps, one that refills their rings of weights and one that loads
 * activations. A team of warps owns one row block of 16 rows at a time: a warp for each segment of
 * its columns (linear.h), in a gated product one for gate and one for up. A warp goes through its
 * segment with the sums of all tokens in its registers; at the end the team's sums pass through
 * shared memory to its first warp, which adds them in order and writes. Weights come through a ring
 * of the warp's own, filled by bulk copies of 2.2 to 4 KB, over the end of a segment into the next
 * row block's; the first ones go out before the kernel waits for the one ahead of it. Lanes read A
 * fragments (or codes, which they decode) with 16-byte loads without bank conflicts. Activations
 * lie in shared memory in chunks of 256 columns of every segment, [segment][token][264], read as B
 * fragments by ldmatrix (rows are 16 bytes more than a multiple of 128, so that 8 rows lie in
 * different banks); tokens that are not there read 16 zero bytes. When the whole input fits it
 * stays, else chunks go round a ring.
 *
 * Two blocks fit an SM (at most 113 KB, 96 registers): with few row blocks the second
 * place is the next kernel's, whose weights then arrive while this one ends. Long row blocks, of
 * which each warp has one or two, want deeper rings more (BLOCKS = 1): twice the memory and a warp
 * that refills for every two consumers. down of 8B in BF16, 4096 x 14336, in the step of one and of
 * four sequences: four products 114.8 and 119.1 us with linear_direct.cuh for it, 112.7 and 114.2
 * so; 4096 x 4096 and 6144 x 4096 so as well: 119.0 and 118.9 (H200).
 *
 * Bytes: weights once, x once a block from L2 (once a walk when it does not stay), outputs. In
 * flight: 8 warps x (slots - 1) x 2.2 to 4 KB, 32 to 90 KB a block, against the 36 KB an
 * SM that 4.7 TB/s times 1 us wants. One token's time is that of a warp in its segment:
 * where a consumer refilled its own ring, the copies' instructions were a third of it (8B shape in
 * BF16 on an H200: 198 tokens a second, 214 with the warp that refills).
 */
#ifndef SL_CUDA_LINEAR_STREAM_CUH
#define SL_CUDA_LINEAR_STREAM_CUH

#include "cuda/gemm/linear_store.cuh"
#include "cuda/gemm/weight_format.cuh"
#include "cuda/launch.cuh"

#define SL_STREAM_WARPS  8
#define SL_STREAM_SLOTS  16 /* most of a warp's ring */
#define SL_STREAM_BUFS   64 /* most buffers of activations */
#define SL_STREAM_SMEM   115712
#define SL_STREAM_ALONE  232448 /* instead, of one block an SM, */
#define SL_STREAM_FETCH  4      /* which has so many warps that refill */
#define SL_STREAM_EMPTY  1024   /* offset of the empty barriers of the rings, after the full ones */
#define SL_STREAM_BARS   2048   /* offset of the activations' barriers */
#define SL_STREAM_ZEROS  3072   /* offset of 16 zero bytes */
#define SL_STREAM_HEADER 3200

#define SL_STREAM_CHUNK 256 /* columns of a segment in a chunk of activations */
#define SL_STREAM_ROW   (SL_STREAM_CHUNK + 8)

struct sl_stream_plan {  /* sizes of one launch, made on the host */
    int32_t n_items;     /* row blocks of all parts; gated: pairs */
    int32_t teams, team; /* of a block; warps of a team */
    int32_t fetchers;    /* warps that refill */
    int32_t slots, slot_bytes;
    int32_t n_chunks, n_bufs, buf_bytes; /* activations; n_bufs = n_chunks: they stay */
    uint32_t act_offset, swap_offset;    /* in shared memory */
};

/* A warp's task in its team. */
struct sl_stream_role {
    int32_t seg, part; /* part: 1 for up */
};

static __device__ __forceinline__ sl_stream_role sl_stream_role_of(const sl_lin &l, int in_team)
{
    if (l.gated)
        return {in_team >> 1, in_team & 1};
    return {in_team, 0};
}

/* What a warp is working on. */
struct sl_stream_item {
    const sl_lin_part *part;
    int32_t block;
};

static __device__ __forceinline__ sl_stream_item sl_stream_find(const sl_lin &l, int item, int up)
{
    sl_stream_item it;
    if (l.gated) {
        it.part = &l.part[up];
        it.block = item;
        return it;
    }
    int p = 0;
    while (p + 1 < l.n_parts && item >= l.part[p + 1].first)
        p++;
    it.part = &l.part[p];
    it.block = item - l.part[p].first;
    return it;
}

/* The items of this block: ranges that differ by at most one item. */
static __device__ __forceinline__ void sl_stream_range(const sl_stream_plan &p, int *from, int *to)
{
    int64_t n = p.n_items;
    *from = static_cast<int>(n * blockIdx.x / gridDim.x);
    *to = static_cast<int>(n * (blockIdx.x + 1) / gridDim.x);
}

/* Columns of chunk c of a segment: the first, how many lie in the segment, and how many of those,
 * from the first on, come by bulk copy. */
struct sl_stream_piece {
    int32_t k0, cols, valid, whole;
};

static __device__ __forceinline__ sl_stream_piece sl_stream_piece_of(const sl_lin &l, int c,
                                                                     int seg)
{
    sl_stream_piece s;
    s.k0 = seg * l.seg_k64 * 64 + c * SL_STREAM_CHUNK;
    s.cols = max(0, min(SL_STREAM_CHUNK, min((seg + 1) * l.seg_k64, l.n_k64) * 64 - s.k0));
    s.valid = max(0, min(s.cols, l.k - s.k0));
    s.whole = l.vec_x ? s.valid & ~7 : 0;
    return s;
}

/* Loads the activations, chunk by chunk, for as many walks through K as the consumers make. Lane
 * n * segment + token copies that token's columns of the segment. */
static __device__ void sl_stream_bring(const sl_lin &l, const sl_stream_plan &p, uint8_t *smem,
                                       uint64_t *full, uint64_t *empty, int n_walks)
{
    int lane = static_cast<int>(threadIdx.x % 32);
    int total = p.n_bufs == p.n_chunks ? p.n_chunks : n_walks * p.n_chunks;
    int seg = lane / l.n, token = lane % l.n;
    int buf = 0, chunk = 0;
    uint32_t parity = 1; /* of the empty barriers: fresh ones count as past it */
    for (int i = 0; i < total; i++) {
        sl_mbar_wait(&empty[buf], parity);
        __nv_bfloat16 *dst =
            reinterpret_cast<__nv_bfloat16 *>(smem + p.act_offset + buf * p.buf_bytes);
        for (int s = 0; s < l.n_segs; s++) { /* what no bulk copy can load */
            sl_stream_piece c = sl_stream_piece_of(l, chunk, s);
            if (c.whole == c.cols)
                continue;
            for (int t = 0; t < l.n; t++)
                for (int e = c.whole + lane; e < c.cols; e += 32)
                    dst[(s * l.n + t) * SL_STREAM_ROW + e] =
                        e < c.valid ? l.x[t * l.ld_x + c.k0 + e] : __float2bfloat16_rn(0.0f);
        }
        sl_fence_proxy_async(); /* the next time the copy engine may write what was stored here */
        __syncwarp();
        sl_stream_piece c = sl_stream_piece_of(l, chunk, seg);
        uint32_t bytes = seg < l.n_segs ? static_cast<uint32_t>(c.whole * 2) : 0;
        uint32_t all = __reduce_add_sync(0xffffffffu, bytes);
        if (lane == 0) /* every lane arrives: each may have stored */
            sl_mbar_expect_tx(&full[buf], all);
        else
            sl_mbar_arrive(&full[buf]);
        __syncwarp();
        if (bytes > 0)
            sl_bulk_load(dst + lane * SL_STREAM_ROW, l.x + token * l.ld_x + c.k0, bytes,
                         &full[buf]);
        chunk = chunk + 1 == p.n_chunks ? 0 : chunk + 1;
        if (++buf == p.n_bufs) {
            buf = 0;
            parity ^= 1;
        }
    }
}

/* Where the ring of a warp lies. Places in shared memory are offsets everywhere: from pointers kept
 * in structs the compiler makes generic addresses. */
struct sl_stream_place {
    uint8_t *smem;
    uint32_t slots, bars; /* offsets */

    __device__ __forceinline__ sl_stream_place(const sl_stream_plan &p, uint8_t *base, int warp)
    {
        smem = base;
        slots = static_cast<uint32_t>(SL_STREAM_HEADER + warp * p.slots * p.slot_bytes);
        bars = static_cast<uint32_t>(warp * SL_STREAM_SLOTS * 8);
    }
    __device__ __forceinline__ uint64_t *full(int slot) const
    {
        return reinterpret_cast<uint64_t *>(smem + bars + 8 * slot);
    }
    __device__ __forceinline__ uint64_t *empty(int slot) const
    {
        return reinterpret_cast<uint64_t *>(smem + SL_STREAM_EMPTY + bars + 8 * slot);
    }
};

/* Steps of 64 columns in a segment. */
static __device__ __forceinline__ int32_t sl_stream_steps(const sl_lin &l, int seg)
{
    return min(l.seg_k64, l.n_k64 - seg * l.seg_k64);
}

/* The end of a ring where weights go in: of the warp that fetches, a lane for each consumer. */
template <class F> struct sl_stream_fetch {
    sl_stream_place at;
    const sl_lin *l;
    const sl_stream_plan *p;
    const uint8_t *src; /* next bytes to fetch */
    sl_stream_role role;
    int32_t item, to;   /* the item src belongs to; the block's end */
    int32_t units_left; /* of the item */
    int32_t put;        /* slot */
    uint32_t parity;    /* of its empty barrier, from the second round on */

    static constexpr int subs = F::unit_k / 64;

    __device__ __forceinline__ sl_stream_fetch(const sl_lin &lin, const sl_stream_plan &plan,
                                               uint8_t *smem, int warp, int from, int end)
        : at(plan, smem, warp), l(&lin), p(&plan), src(nullptr),
          role(sl_stream_role_of(lin, warp % plan.team)), item(from + warp / plan.team), to(end),
          put(0), parity(1)
    {
        start();
    }
    __device__ __forceinline__ void start()
    {
        units_left = sl_stream_steps(*l, role.seg) / subs;
        if (item < to) {
            sl_stream_item it = sl_stream_find(*l, item, role.part);
            int64_t unit = it.block * sl_cuda_row_units(l->n_k64 / subs, F::unit_bytes) +
                           role.seg * (l->seg_k64 / subs);
            src = it.part->w + unit * F::unit_bytes;
        }
    }
    /* n units, of the item, are on their way. */
    __device__ __forceinline__ void pass(int32_t units)
    {
        src += units * F::unit_bytes;
        units_left -= units;
        if (units_left == 0) {
            item += p->teams;
            start();
        }
    }
    /* The next slot counts as filled. */
    __device__ __forceinline__ void next()
    {
        if (++put == p->slots) {
            put = 0;
            parity ^= 1;
        }
        pass(min(units_left, F::stage_units));
    }
    /* Into the next slot, which is free. */
    __device__ __forceinline__ void fetch()
    {
        uint32_t n = static_cast<uint32_t>(min(units_left, F::stage_units) * F::unit_bytes);
        sl_mbar_expect_tx(at.full(put), n);
        sl_bulk_load_once(at.smem + at.slots + put * p->slot_bytes, src, n, at.full(put));
        next();
    }
};

/* The end of a ring where a consumer takes them. */
struct sl_stream_take {
    sl_stream_place at;
    int32_t got;  /* slots: the next to wait for, */
    int32_t done; /* and to give back */
    uint32_t parity;

    __device__ __forceinline__ sl_stream_take(const sl_stream_plan &p, uint8_t *smem, int warp)
        : at(p, smem, warp), got(0), done(0), parity(0)
    {
    }
    /* Offset of the next slot, when it is there. */
    __device__ __forceinline__ uint32_t wait(const sl_stream_plan &p)
    {
        sl_mbar_wait(at.full(got), parity);
        uint32_t slot = at.slots + static_cast<uint32_t>(got * p.slot_bytes);
        if (++got == p.slots) {
            got = 0;
            parity ^= 1;
        }
        return slot;
    }
    /* After products that used the last of the oldest slot: the fence has little to wait for. */
    __device__ __forceinline__ void give(const sl_stream_plan &p)
    {
        sl_mbar_give_warp(at.empty(done));
        done = done + 1 == p.slots ? 0 : done + 1;
    }
};

/* Lane 0 of a consumer fills its ring for the first time: all at once are sooner done. */
template <class F>
static __device__ __forceinline__ void sl_stream_fill(const sl_lin &l, const sl_stream_plan &p,
                                                      uint8_t *smem, int from, int to, int warp)
{
    if (threadIdx.x % 32 == 0) {
        sl_stream_fetch<F> f(l, p, smem, warp, from, to);
        for (int i = 0; i < p.slots && f.item < to; i++)
            f.fetch();
    }
    __syncwarp();
}

/* Refills the rings of the consumers `me`, `me` + fetchers and so on, a lane for each. They run on
 * their own: a lane whose slot is not free yet holds up no other. */
template <class F>
static __device__ __forceinline__ void sl_stream_refill(const sl_lin &l, const sl_stream_plan &p,
                                                        uint8_t *smem, int from, int to, int me)
{
    int lane = static_cast<int>(threadIdx.x % 32), warp = lane * p.fetchers + me;
    bool mine = warp < p.teams * p.team;
    sl_stream_fetch<F> f(l, p, smem, mine ? warp : 0, from, mine ? to : 0);
    for (int i = 0; i < p.slots && f.item < f.to; i++)
        f.next();
    /* For racecheck, which follows one barrier an instruction, one lane after the other. */
    for (int turn = 0; f.item < f.to; turn = (turn + 1) % 32) {
        bool now = SL_WARP_ARRIVALS == 1 || turn == lane;
        if (now && sl_mbar_poll(f.at.empty(f.put), f.parity))
            f.fetch();
    }
    sl_grid_wait();
}

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
        sl_mbar_give_warp(bar(SL_STREAM_BUFS + out));
        if (++out == p.n_bufs)
            out = 0;
    }
    /* Passes n chunks without work. */
    __device__ __forceinline__ void skip(const sl_stream_plan &p, int n)
    {
        if (p.n_bufs == p.n_chunks) {
            in = 0; /* every walk begins with the first */
            return;
        }
        for (; n > 0; n--) {
            enter(p);
            leave(p);
        }
    }
};

/* B fragments of 32 columns. */
static __device__ __forceinline__ void sl_stream_load_x(uint32_t (&b)[4], const uint8_t *smem,
                                                        uint32_t cols, int n)
{
    int token = static_cast<int>(threadIdx.x & 7);
    sl_ldmatrix_x4(b, smem + (token < n ? cols : SL_STREAM_ZEROS));
}

/* 32 columns, half of raw: acc += decode(raw) x. */
template <class F>
static __device__ __forceinline__ void sl_stream_mma(float (&acc)[4], const typename F::raw &raw,
                                                     int half, const uint32_t (&b)[4])
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t a[4];
        F::frag(raw, 2 * half + j, a);
        sl_mma_bf16(acc, a, b + 2 * j);
    }
}

/* What a warp holds of a step of 64 columns before its products. */
template <class F> struct sl_stream_step {
    typename F::raw raw;
    uint32_t x[2][4];
};

/* Step i of a stage. cols: where its activations lie. */
template <class F>
static __device__ __forceinline__ void sl_stream_load(sl_stream_step<F> &s, const uint8_t *smem,
                                                      uint32_t stage, int i, uint32_t cols,
                                                      int n_tokens)
{
    constexpr int subs = F::unit_k / 64;
    int lane = static_cast<int>(threadIdx.x % 32);
    sl_wf_load<F>(s.raw, smem + stage + i / subs * F::unit_bytes, i % subs, lane);
    sl_stream_load_x(s.x[0], smem, cols, n_tokens);
    sl_stream_load_x(s.x[1], smem, cols + 64, n_tokens);
}

/* One segment of a row block, a chunk of activations after another. What a step needs is read
 * before the products of the step before, over the ends of stages and chunks too. x0: the warp's
 * place in a buffer of activations; n: steps. */
template <class F>
static __device__ __forceinline__ void sl_stream_block(float (&acc)[4], const sl_lin &l,
                                                       const sl_stream_plan &p,
                                                       sl_stream_take &ring, sl_stream_acts &acts,
                                                       uint32_t x0, int n, const uint8_t *smem)
{
    constexpr int steps = F::stage_units * (F::unit_k / 64), chunk = SL_STREAM_CHUNK / 64;
    static_assert(chunk % steps == 0 && chunk % 2 == 0, "a chunk ends where a stage does");
    int lane = static_cast<int>(threadIdx.x % 32);
    /* ldmatrix: lanes 8 m .. 8 m + 7 give the rows of columns 8 m .. 8 m + 7 */
    uint32_t offset = x0 + static_cast<uint32_t>(lane & 7) * (SL_STREAM_ROW * 2) + (lane >> 3) * 16;
    sl_stream_step<F> s[2];
    uint32_t cols = acts.enter(p) + offset, stage = ring.wait(p);
    sl_stream_load<F>(s[0], smem, stage, 0, cols, l.n);
#pragma unroll 1
    for (; n > 0; n -= chunk) {
#pragma unroll
        for (int i = 0; i < chunk; i++) {
            constexpr int last = chunk - 1;
            if (i + 1 < n) {
                if (i == last)
                    cols = acts.enter(p) + offset;
                if ((i + 1) % steps == 0)
                    stage = ring.wait(p);
                sl_stream_load<F>(s[(i + 1) % 2], smem, stage, (i + 1) % steps,
                                  cols + 128 * ((i + 1) % chunk), l.n);
            }
            sl_stream_mma<F>(acc, s[i % 2].raw, 0, s[i % 2].x[0]);
            sl_stream_mma<F>(acc, s[i % 2].raw, 1, s[i % 2].x[1]);
            if ((i + 1) % steps == 0 || i + 1 == n)
                ring.give(p);
            if (i == last || i + 1 == n)
                acts.leave(p);
            if (i + 1 == n)
                break;
        }
    }
}

/* A team's sums: its first warp receives the others', and has act(gate) * up or the sum. */
static __device__ __forceinline__ void sl_stream_join(float (&acc)[4], const sl_lin &l,
                                                      const float *swap)
{
    int lane = static_cast<int>(threadIdx.x % 32), step = l.gated ? 2 : 1;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        for (int s = 1; s < l.n_segs; s++)
            acc[i] = __fadd_rn(acc[i], swap[(s * step * 4 + i) * 32 + lane]);
        if (l.gated) {
            float up = swap[(4 + i) * 32 + lane];
            for (int s = 1; s < l.n_segs; s++)
                up = __fadd_rn(up, swap[((s * 2 + 1) * 4 + i) * 32 + lane]);
            acc[i] = __fmul_rn(sl_act(l.act, acc[i]), up);
        }
    }
}

/* T: eights of tokens. */
template <class F, int T>
static __device__ __forceinline__ void sl_stream_store(float (&acc)[T][4], const sl_lin &l,
                                                       const sl_stream_plan &p, int item, int warp,
                                                       uint8_t *smem)
{
    int team = warp / p.team, in_team = warp % p.team, lane = static_cast<int>(threadIdx.x % 32);
    float *swap = reinterpret_cast<float *>(smem + p.swap_offset) + team * p.team * 128;
    sl_wf_restore<F>(acc);
    if (l.apart) {
        const sl_lin_part &to = l.part[0];
        sl_lin_store<float, T>(acc, to.out + static_cast<int64_t>(in_team) * l.n * to.n_rows,
                               to.n_rows, nullptr, to.n_rows, item, 0, l.n);
        return;
    }
#pragma unroll
    for (int t = 0; p.team > 1 && t < T; t++) {
        if (in_team > 0) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                swap[(in_team * 4 + i) * 32 + lane] = acc[t][i];
        }
        sl_bar_sync(1 + team, 32 * p.team);
        if (in_team == 0)
            sl_stream_join(acc[t], l, swap);
        sl_bar_sync(1 + team, 32 * p.team); /* swap is free */
    }
    if (in_team > 0)
        return;
    sl_stream_item it = sl_stream_find(l, item, 0);
    if (l.gated)
        sl_lin_store_gated<T>(acc, l, it.block, 0);
    else
        sl_lin_store_part<T>(acc, l, *it.part, it.block, 0);
}

/* The life of a consumer warp. F: its layout. */
template <class F>
static __device__ __forceinline__ void sl_stream_consume(const sl_lin &l, const sl_stream_plan &p,
                                                         uint8_t *smem, int from, int to, int warp)
{
    sl_stream_acts acts = {smem, 0, 0, 0};
    sl_stream_take ring(p, smem, warp);
    int team = warp / p.team, seg = sl_stream_role_of(l, warp % p.team).seg;
    int n = sl_stream_steps(l, seg), n_idle = p.n_chunks - SL_CEIL_DIV(n * 64, SL_STREAM_CHUNK);
    uint32_t x0 = static_cast<uint32_t>(seg * l.n * SL_STREAM_ROW * 2);
    for (int base = from; base < to; base += p.teams) {
        if (base + team >= to) {
            acts.skip(p, p.n_chunks); /* so that the others' chunks can move on */
            continue;
        }
        float acc[1][4] = {};
        sl_stream_block<F>(acc[0], l, p, ring, acts, x0, n, smem);
        acts.skip(p, n_idle);
        sl_stream_store<F, 1>(acc, l, p, base + team, warp, smem);
    }
}

/* Barriers: full and empty of every warp's slots, then of the activations' buffers. */
static __device__ __forceinline__ void sl_stream_init(const sl_stream_plan &p, uint8_t *smem)
{
    int n_slots = p.teams * p.team * SL_STREAM_SLOTS;
    uint64_t *acts = reinterpret_cast<uint64_t *>(smem + SL_STREAM_BARS);
    sl_mbar_init_all(reinterpret_cast<uint64_t *>(smem), n_slots, 1);
    sl_mbar_init_all(reinterpret_cast<uint64_t *>(smem + SL_STREAM_EMPTY), n_slots,
                     SL_WARP_ARRIVALS);
    sl_mbar_init_all(acts, p.n_bufs, 32);
    sl_mbar_init_all(acts + SL_STREAM_BUFS, p.n_bufs,
                     static_cast<uint32_t>(p.teams * p.team) * SL_WARP_ARRIVALS);
    sl_mbar_fence_init();
    if (threadIdx.x == 0)
        *reinterpret_cast<uint4 *>(smem + SL_STREAM_ZEROS) = make_uint4(0, 0, 0, 0);
    __syncthreads();
}

/* BLOCKS: that fit an SM. */
template <class F, int BLOCKS>
__global__ void __launch_bounds__(32 * (SL_STREAM_WARPS + (BLOCKS == 1 ? SL_STREAM_FETCH : 1) + 1),
                                  BLOCKS)
    sl_stream_kernel(const __grid_constant__ sl_lin l, const __grid_constant__ sl_stream_plan p)
{
    SL_SMEM(uint8_t, smem);
    int warp = static_cast<int>(threadIdx.x / 32), n_warps = p.teams * p.team, from, to;
    sl_stream_init(p, smem);
    sl_stream_range(p, &from, &to);
    if (warp >= n_warps && warp < n_warps + p.fetchers) {
        sl_stream_refill<F>(l, p, smem, from, to, warp - n_warps);
        return;
    }
    if (warp < n_warps)
        sl_stream_fill<F>(l, p, smem, from, to, warp);
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (warp < n_warps) {
        sl_stream_consume<F>(l, p, smem, from, to, warp);
        return;
    }
    uint64_t *bars = reinterpret_cast<uint64_t *>(smem + SL_STREAM_BARS);
    sl_stream_bring(l, p, smem, bars, bars + SL_STREAM_BUFS, (to - from + p.teams - 1) / p.teams);
}

/* ------------------------------------------------------------------ host */

/* Sizes for l with slots of slot_bytes and `blocks` blocks an SM; returns the grid. */
static inline unsigned sl_stream_make_plan(const struct sl_cuda *cu, const sl_lin *l,
                                           int slot_bytes, int blocks, sl_stream_plan *p,
                                           size_t *smem)
{
    p->n_items = 0;
    for (int i = 0; i < (l->gated ? 1 : l->n_parts); i++)
        p->n_items += l->part[i].n_blocks;
    p->team = l->n_segs * (l->gated ? 2 : 1);
    /* One block an SM if its warps are enough for its share, else as many as fit. */
    int most = SL_STREAM_WARPS / p->team, share = SL_CEIL_DIV(p->n_items, cu->n_sms);
    int grid = SL_MIN(p->n_items, share <= most ? cu->n_sms : blocks * cu->n_sms);
    share = SL_CEIL_DIV(p->n_items, grid);
    p->teams = SL_CEIL_DIV(share, SL_CEIL_DIV(share, most)); /* walks of equal width */
    int warps = p->teams * p->team;
    p->fetchers = blocks == 1 ? SL_STREAM_FETCH : 1;
    p->slot_bytes = slot_bytes;
    int swap = p->team > 1 ? warps * 512 : 0;
    int room = (blocks == 1 ? SL_STREAM_ALONE : SL_STREAM_SMEM) - SL_STREAM_HEADER - swap,
        ring = warps * slot_bytes;
    int want = room - 3 * ring; /* for activations, with three slots a warp */
    p->n_chunks = l->seg_k64 * 64 / SL_STREAM_CHUNK;
    p->buf_bytes = l->n_segs * l->n * SL_STREAM_ROW * 2;
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

template <class F, int BLOCKS> static void sl_stream_launch(struct sl_cuda *cu, const sl_lin *l)
{
    sl_stream_plan p;
    size_t smem;
    unsigned grid = sl_stream_make_plan(cu, l, F::stage_units * F::unit_bytes, BLOCKS, &p, &smem);
    unsigned warps = (unsigned)(p.teams * p.team + p.fetchers + 1);
    sl_launch(cu, sl_stream_kernel<F, BLOCKS>, dim3(grid), dim3(32 * warps), smem, *l, p);
}

#endif
