/* SPDX-License-Identifier: MIT
 * layer_chain.cuh - the kernel of lab/layer_chain.cu: layers of one token in one launch, a block a
 * multiprocessor, all of which are there at once.
 *
 * A block is T teams of four warps that multiply, each with a ring of weights and a warp that fills
 * it. A unit of work is a row block of q, k, v, o or down, whose segments the four warps share; of
 * gate and up PAIRS pairs of row blocks, a warp for each; or a split of a key head's attention,
 * whose 128 keys they share. Units of all layers have one numbering. The filling warp goes on to
 * its next number when its ring has room, so rings run on over the ends of products and layers:
 * numbers are dealt to teams in turn, or taken by atomicAdd. Who makes a row changes no bit of it.
 *
 * No fence, no barrier of the grid. What a product leaves lies in device memory in words of its own
 * for each layer and launch, which are NOT_YET before; readers poll the words themselves, once a
 * count says that nearly all are there. No rounding makes NOT_YET: it is a NaN other than the one
 * arithmetic gives. Two sets of these words take turns, a launch makes the other one's NOT_YET
 * again. All warps of a block bring a product's input together: 16 bytes a lane and load, all on
 * their way at once, normed in the order of norm.cuh, into one of two places of shared memory.
 *
 * Who waits for whom: a team makes its units in ascending order, and a unit reads only what units
 * of lower numbers make. The lowest unit that is not done is therefore under way or next in its
 * team, its input is complete, and its block's other teams, whose units are later, have no work
 * before the input that it waits for is brought. A filling warp waits only for its own team. So
 * there is always one who can go on, if all blocks are there.
 *
 * The attention is a stand-in: 768 positions in splits of 128, q times k as p (no exponentials),
 * pages that lie as ldmatrix wants them, no rotation, nothing stored; bytes, products, hand-overs
 * and the join of splits are as they would be.
 */
#ifndef SL_LAB_LAYER_CHAIN_CUH
#define SL_LAB_LAYER_CHAIN_CUH

#include "cuda/gemm/linear_stream.cuh"
#include "cuda/norm.cuh"
#include "lab.h"

#define NOT_YET 0xFFFFFFFFu

enum chain_kind { CHAIN_QKV, CHAIN_ATTEND, CHAIN_O, CHAIN_GATE_UP, CHAIN_DOWN, CHAIN_STEPS };

#define CHAIN_WIDE   4  /* warps of a team */
#define CHAIN_SLOTS  32 /* most of a ring */
#define CHAIN_QUEUE  16 /* units that a filling warp may be ahead: one more than slots in use */
#define CHAIN_SPLITS 6
#define CHAIN_GROUP  4  /* query heads of a key head */
#define CHAIN_APART  32 /* words between counts */
#define CHAIN_SMEM   232448

struct chain_product {
    int32_t blocks[3];      /* row blocks of the parts */
    int32_t n_segs, seg_k;  /* segments, units of each */
    int32_t n_k, row_bytes; /* units of a row block, bytes from one to the next */
};

struct chain_layer {
    const uint8_t *w[7]; /* q, k, v, o, gate, up, down */
    const float *norm[2];
    const uint8_t *pages; /* [key head][split][warp][4 of keys, 4 of values][8 keys x D] */
};

/* Words of a layer, by what makes them: offsets. */
struct chain_words {
    int32_t qkv, part, att, x1, g, x2;
    int32_t count; /* of units done: of each step, CHAIN_APART apart, from NOT_YET on */
    int32_t all;
};

struct chain_args {
    chain_product product[CHAIN_STEPS];
    chain_words at;
    int32_t first[CHAIN_STEPS + 1]; /* unit of each step in a layer */
    int32_t n_layers, n_slots, h, inner;
    float eps;
    bool fixed; /* units are dealt to teams in turn, not taken */
    int32_t
        early; /* inputs are polled when all but 1 / early of the units are counted; 0: at once */
    uint32_t acts[2], ring, pages, list; /* places in shared memory */
    int32_t n_list;                      /* most pieces of a warp in a layer */
    int32_t piece;    /* steps of 64 columns, the last of which come through shared memory */
    int32_t under[2]; /* most slots of a ring on their way: [1] while half of the blocks read */
    const chain_layer *layer;
    const float *x0;    /* the residual stream before the first layer */
    uint32_t *words[2]; /* of this launch and of the other one */
    uint32_t *taken[2]; /* units that teams took beyond their first ones */
    uint64_t *stamps;   /* [block][5 x layers + 1][1 + T], or NULL */
    uint32_t *fault;
};

/* ------------------------------------------------------------------ words */

static __device__ __forceinline__ uint4 chain_look(const uint32_t *p)
{
    uint4 v;
#ifdef SL_CUDA_SIM
    v = *reinterpret_cast<const uint4 *>(p);
#else
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
#endif
    return v;
}

static __device__ __forceinline__ bool chain_lacks(uint4 v)
{
    return v.x == NOT_YET || v.y == NOT_YET || v.z == NOT_YET || v.w == NOT_YET;
}

static __device__ __forceinline__ void chain_tell(uint32_t *p, uint32_t v)
{
    v = v == NOT_YET ? 0x7FFFFFFFu : v;
#ifdef SL_CUDA_SIM
    *p = v;
#else
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
#endif
}

/* A wait in a loop: the simulator's other threads go on, and the device ends it some day. */
struct chain_patience {
    long long from;
    uint32_t site, *fault;

    __device__ __forceinline__ chain_patience(uint32_t s, uint32_t *f) : from(0), site(s), fault(f)
    {
    }
    __device__ __forceinline__ void wait(unsigned ns)
    {
#ifdef SL_CUDA_SIM
        (void)ns;
        sl_sim_let_others();
#else
        __nanosleep(ns);
        long long now = clock64();
        from = from == 0 ? now : from;
        if (now - from > LAB_PATIENCE) {
            fault[0] = site;
            fault[1] = blockIdx.x;
            __threadfence_system();
            asm volatile("trap;");
        }
#endif
    }
};

/* n <= N pieces of a lane, `stride` words apart, when all their words are there. fault NULL: what
 * is there, for the time. */
template <int N>
static __device__ __forceinline__ void chain_poll(uint4 (&v)[N], const uint32_t *at, int stride,
                                                  int n, uint32_t site, uint32_t *fault)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i].x = v[i].y = v[i].z = v[i].w = i < n ? NOT_YET : 0;
    chain_patience p(site, fault);
#pragma unroll 1
    for (;;) { /* one copy of this: what runs once a product comes from far away */
        bool lacks = false;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (chain_lacks(v[i]))
                v[i] = chain_look(at + i * stride);
#pragma unroll
        for (int i = 0; i < N; i++)
            lacks = lacks || chain_lacks(v[i]);
        if (!lacks || fault == nullptr)
            return;
        p.wait(20);
    }
}

/* Waits until all but the last few of n units are counted. Nothing is said of what they have
 * written: that is polled, but not for as long as a product takes. */
static __device__ __forceinline__ void chain_nearly(const uint32_t *count, int n, int early,
                                                    uint32_t site, uint32_t *fault)
{
    const uint32_t want = static_cast<uint32_t>(n - max(n / early, 1));
    if (fault == nullptr)
        return;
    chain_patience p(site, fault);
    if (threadIdx.x % 32 == 0)
        while (chain_look(count).x + 1 < want)
            p.wait(50);
    __syncwarp();
}

static __device__ __forceinline__ void chain_count(uint32_t *count)
{
#ifdef SL_CUDA_SIM
    atomicAdd(count, 1u);
#else
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
#endif
}

static __device__ __forceinline__ float4 chain_float4(uint4 v)
{
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                       __uint_as_float(v.w));
}

static __device__ __forceinline__ uint64_t chain_time()
{
#ifdef SL_CUDA_SIM
    return 0;
#else
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
#endif
}

/* Row: CHAIN_STEPS a layer, then one of the launch; i < per. */
static __device__ __forceinline__ void chain_stamp(const chain_args &a, int row, int i, int per)
{
    if (a.stamps != nullptr)
        a.stamps[(static_cast<int>(blockIdx.x) * (a.n_layers * CHAIN_STEPS + 1) + row) * per + i] =
            chain_time();
}

static __device__ __forceinline__ uint32_t *chain_words_of(const chain_args &a, int layer)
{
    return a.words[0] + static_cast<int64_t>(layer) * a.at.all;
}

static __device__ __forceinline__ uint32_t *chain_count_of(const chain_args &a, int layer, int step)
{
    return chain_words_of(a, layer) + a.at.count + step * CHAIN_APART;
}

/* A layer's words of the launch behind this one. */
static __device__ __forceinline__ void chain_clear(const chain_args &a, int layer, int thread,
                                                   int n_threads)
{
    const int64_t n = a.at.all;
    uint32_t *to = a.words[1] + layer * n;
    int from = static_cast<int>(n * blockIdx.x / gridDim.x),
        end = static_cast<int>(n * (blockIdx.x + 1) / gridDim.x);
    for (int i = from + thread; i < end; i += n_threads)
        to[i] = NOT_YET;
}

/* Words that a layer's down leaves, or the first layer's input. */
static __device__ __forceinline__ const uint32_t *chain_input_of(const chain_args &a, int layer)
{
    return layer == 0 ? reinterpret_cast<const uint32_t *>(a.x0)
                      : chain_words_of(a, layer - 1) + a.at.x2;
}

/* ------------------------------------------------------------------ attention's stand-in */

/* Words that the attention of a key head reads: its queries, its key, its value. */
struct chain_rows {
    const uint32_t *queries, *key, *value;
};

/* One warp's 32 keys of a split: sums of the head's queries, of lane 4 g + t those of query g < 4
 * and dimensions 8 i + 2 t, + 1. The key and the value are treated as queries 4 and more, so that
 * they are waited for. Pages: enter(i) is where key block i lies, leave(i)
 * gives it back. */
template <int D, class Pages>
static __device__ __forceinline__ void chain_attend(float (&out)[D / 8][2], const chain_rows &rows,
                                                    Pages &pages, uint32_t site, uint32_t *fault)
{
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    const uint32_t *row = g < CHAIN_GROUP    ? rows.queries + g * D
                          : g == CHAIN_GROUP ? rows.key
                                             : rows.value;
    uint32_t q[D / 16][2];
    {
        /* A lane has columns 4 t .. 4 t + 3 of 16: which of them meets which of the keys' is the
         * same question for both, so keys lie so. */
        uint4 v[D / 16];
        chain_poll<D / 16>(v, row + 4 * t, 16, D / 16, site, fault);
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            float4 f = chain_float4(v[i]);
            __half2 lo = __floats2half2_rn(f.x, f.y), hi = __floats2half2_rn(f.z, f.w);
            q[i][0] = *reinterpret_cast<uint32_t *>(&lo);
            q[i][1] = *reinterpret_cast<uint32_t *>(&hi);
        }
    }
    uint32_t p[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint8_t *keys = pages.enter(k);
        float c[4] = {};
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            uint32_t b[4];
            sl_ldmatrix_x4(b, keys + 512 * i + 16 * lane);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t a[4] = {q[2 * i + j][0], 0, q[2 * i + j][1], 0};
                sl_mma_f16(c, a, b + 2 * j);
            }
        }
        pages.leave(k);
        __half2 both = __floats2half2_rn(__fmul_rn(c[0], 0x1p-6f), __fmul_rn(c[1], 0x1p-6f));
        p[k] = *reinterpret_cast<uint32_t *>(&both);
    }
#pragma unroll
    for (int i = 0; i < D / 8; i++)
        out[i][0] = out[i][1] = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
        const uint8_t *v0 = pages.enter(4 + k), *v1 = pages.enter(5 + k);
        const uint8_t *at = (lane & 8 ? v1 : v0) + 128 * (lane / 16) + 16 * (lane % 8);
        const uint32_t a[4] = {p[k], 0, p[k + 1], 0};
#pragma unroll
        for (int i = 0; i < D / 8; i += 2) {
            uint32_t b[4];
            sl_ldmatrix_x4_trans(b, at + 128 * i);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float c[4] = {out[i + j][0], out[i + j][1], 0.0f, 0.0f};
                sl_mma_f16(c, a, b + 2 * j);
                out[i + j][0] = c[0];
                out[i + j][1] = c[1];
            }
        }
        pages.leave(4 + k);
        pages.leave(5 + k);
    }
}

#define CHAIN_SUMS(d) (CHAIN_WIDE * CHAIN_GROUP * (d)) /* floats */

/* The four warps' sums, added from the last to the first, as a split's words. sums: CHAIN_SUMS(D)
 * floats of shared memory; bar: a barrier of the team. */
template <int D>
static __device__ __forceinline__ void chain_attend_tell(float (&out)[D / 8][2], float *sums,
                                                         uint32_t *to, int warp, int bar)
{
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    if (g < CHAIN_GROUP)
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            *reinterpret_cast<float2 *>(sums + (warp * CHAIN_GROUP + g) * D + 8 * i + 2 * t) =
                make_float2(out[i][0], out[i][1]);
    sl_bar_sync(bar, 32 * CHAIN_WIDE);
    for (int at = 32 * warp + lane; at < CHAIN_GROUP * D; at += 32 * CHAIN_WIDE) {
        float s = sums[(CHAIN_WIDE - 1) * CHAIN_GROUP * D + at];
#pragma unroll
        for (int w = CHAIN_WIDE - 2; w >= 0; w--)
            s = __fadd_rn(s, sums[w * CHAIN_GROUP * D + at]);
        chain_tell(to + at, __float_as_uint(s));
    }
    sl_bar_sync(bar, 32 * CHAIN_WIDE); /* the sums are read */
}

/* All splits of a key head as its BF16 columns; thread: of the team. part: the first split's words.
 */
template <int D>
static __device__ __forceinline__ void chain_join(const uint32_t *part, uint32_t *to, int thread,
                                                  uint32_t site, uint32_t *fault)
{
    if (thread >= CHAIN_GROUP * D / 4)
        return;
    uint4 v[CHAIN_SPLITS];
    chain_poll<CHAIN_SPLITS>(v, part + 4 * thread, CHAIN_GROUP * D, CHAIN_SPLITS, site, fault);
    float4 s = chain_float4(v[0]);
#pragma unroll
    for (int i = 1; i < CHAIN_SPLITS; i++) {
        float4 f = chain_float4(v[i]);
        s.x = __fadd_rn(s.x, f.x);
        s.y = __fadd_rn(s.y, f.y);
        s.z = __fadd_rn(s.z, f.z);
        s.w = __fadd_rn(s.w, f.w);
    }
    chain_tell(to + 2 * thread, sl_pack_bf16(s.x, s.y));
    chain_tell(to + 2 * thread + 1, sl_pack_bf16(s.z, s.w));
}

/* ------------------------------------------------------------------ the chain */

/* T: teams. S: units of a stream in a slot, where four streams share it. D: of a head. */
template <class F, int T, int S, int PAIRS, int D> struct chain {
    static constexpr int subs = F::unit_k / 64, chunk = S * F::unit_bytes;
    static constexpr int slot_bytes = CHAIN_WIDE * chunk, page_bytes = 16 * D;
    static constexpr int slot_pages = chunk / 2048 * 2048 / page_bytes; /* of a stream */
    static constexpr int full_at = 0, empty_at = T * CHAIN_SLOTS * 8, queue_at = 2 * empty_at;
    static constexpr int norm_at = queue_at + T * CHAIN_QUEUE * 4, swap_at = norm_at + 64;
    static constexpr int swap_bytes = 2 * 8 * 64, sums_at = swap_at + T * swap_bytes;
    static constexpr int header = sums_at + T * CHAIN_SUMS(D) * 4;
    static_assert(T >= 2 && slot_pages >= 1 && 8 % slot_pages == 0, "");

    struct unit {
        int layer, step, item;
    };
    static __device__ __forceinline__ unit find(const chain_args &a, int n)
    {
        unit u = {n / a.first[CHAIN_STEPS], 0, n % a.first[CHAIN_STEPS]};
        while (u.item >= a.first[u.step + 1])
            u.step++;
        u.item -= a.first[u.step];
        return u;
    }
    static __device__ __forceinline__ int total(const chain_args &a)
    {
        return a.n_layers * a.first[CHAIN_STEPS];
    }

    /* Part and row block of a plain product's unit. */
    static __device__ __forceinline__ int part_of(const chain_product &p, int *block)
    {
        int part = 0;
        while (*block >= p.blocks[part])
            *block -= p.blocks[part++];
        return part;
    }

    static __device__ __forceinline__ uint64_t *bar(uint8_t *smem, int at, int team, int slot)
    {
        return reinterpret_cast<uint64_t *>(smem + at) + team * CHAIN_SLOTS + slot;
    }
    static __device__ __forceinline__ volatile uint32_t *queue(uint8_t *smem, int team, int turn)
    {
        return reinterpret_cast<volatile uint32_t *>(smem + queue_at) + team * CHAIN_QUEUE +
               turn % CHAIN_QUEUE;
    }

    /* -------------------------------------------------------------- filling */

    struct stream {
        const uint8_t *src;
        int bytes, chunk; /* of all slots, and of one */
        int n_slots;      /* of the unit */
    };

    static __device__ __forceinline__ stream stream_of(const chain_args &a, const unit &u, int i)
    {
        const chain_layer &l = a.layer[u.layer];
        const chain_product &p = a.product[u.step];
        if (u.step == CHAIN_ATTEND)
            return {l.pages + static_cast<int64_t>(CHAIN_WIDE * u.item + i) * (8 * page_bytes),
                    8 * page_bytes, slot_pages * page_bytes, 8 / slot_pages};
        if (u.step == CHAIN_GATE_UP) {
            constexpr int wide = chunk * (2 / PAIRS);
            int64_t block = u.item * PAIRS + i / 2;
            return {l.w[4 + i % 2] + block * p.row_bytes, i < 2 * PAIRS ? p.n_k * F::unit_bytes : 0,
                    wide, SL_CEIL_DIV(p.n_k * F::unit_bytes, wide)};
        }
        int block = u.item, part = part_of(p, &block), own = p.n_segs / CHAIN_WIDE * p.seg_k;
        const uint8_t *w = l.w[u.step == CHAIN_QKV ? part : u.step == CHAIN_O ? 3 : 6];
        return {w + static_cast<int64_t>(block) * p.row_bytes + i * own * F::unit_bytes,
                max(min(own, p.n_k - i * own), 0) * F::unit_bytes, chunk, SL_CEIL_DIV(own, S)};
    }

    /* The life of a filling warp: a lane for each stream. */
    static __device__ void fetch(const chain_args &a, uint8_t *smem, int team)
    {
        const int lane = static_cast<int>(threadIdx.x % 32), all = total(a);
        const int n_teams = T * static_cast<int>(gridDim.x);
        int slot = 0, asked = 0;
        uint32_t parity = 1;
        int n = team * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
        for (int turn = 0;; turn++) {
            if (lane == 0)
                *queue(smem, team, turn) = static_cast<uint32_t>(min(n, all)) + 1;
            if (n >= all)
                return;
            uint32_t next = static_cast<uint32_t>(n);
            if (lane == 0 && !a.fixed)
                next = atomicAdd(a.taken[0], 1u);
            stream s = stream_of(a, find(a, n), lane % CHAIN_WIDE);
            if (lane >= CHAIN_WIDE)
                s.bytes = 0;
            uint8_t *to = smem + a.ring + team * a.n_slots * slot_bytes + lane * s.chunk;
            for (int i = 0; i < s.n_slots; i++) {
                const uint32_t bytes = static_cast<uint32_t>(min(s.bytes, s.chunk));
                const uint32_t sum = __reduce_add_sync(0xffffffffu, bytes);
                uint64_t *full = bar(smem, full_at, team, slot);
                lab_wait(bar(smem, empty_at, team, slot), parity, 1, a.fault);
                if (asked >= a.under[0]) {
                    const int old = asked - a.under[0];
                    lab_wait(bar(smem, full_at, team, old % a.n_slots),
                             static_cast<uint32_t>(old / a.n_slots % 2), 8, a.fault);
                }
                if (lane == 0)
                    sl_mbar_expect_tx(full, sum);
                __syncwarp();
                if (bytes > 0)
                    sl_bulk_load_once(to + slot * slot_bytes, s.src, bytes, full);
                s.src += s.chunk;
                s.bytes -= static_cast<int>(bytes);
                if (++slot == a.n_slots) {
                    slot = 0;
                    parity ^= 1;
                }
                if (++asked == a.n_slots && lane == 0)
                    stamp(a, a.n_layers * CHAIN_STEPS, 1 + team);
            }
            n = static_cast<int>(__shfl_sync(0xffffffffu, next, 0)) + n_teams;
        }
    }

    /* -------------------------------------------------------------- inputs */

    static __device__ __forceinline__ void stamp(const chain_args &a, int row, int i)
    {
        chain_stamp(a, row, i, 1 + T);
    }

    static __device__ __forceinline__ void bring_normed(const chain_args &a, const uint32_t *x,
                                                        const float *weights, uint8_t *smem)
    {
        const int warp = static_cast<int>(threadIdx.x / 32);
        if (warp >= SL_NORM_WARPS)
            return;
        float *sums = reinterpret_cast<float *>(smem + norm_at);
        sl_norm_part w, part;
        w.load(weights, warp, a.h);
        const int from = sl_norm_part::column(warp, 0), apart = 128 * SL_NORM_WARPS;
        uint4 v[SL_NORM_QUADS];
        chain_poll<SL_NORM_QUADS>(v, x + from, apart, SL_CEIL_DIV(a.h - from, apart), 2, a.fault);
#pragma unroll
        for (int k = 0; k < SL_NORM_QUADS; k++)
            part.v[k] = chain_float4(v[k]);
        float s = part.squares();
        if (threadIdx.x % 32 == 0)
            sums[warp] = s;
        sl_bar_sync(2, 32 * SL_NORM_WARPS);
        const float scale = sl_norm_scale_of(sums, a.eps, a.h);
#pragma unroll
        for (int k = 0; k < SL_NORM_QUADS; k++) {
            const int i = sl_norm_part::column(warp, k);
            if (i < a.h)
                *reinterpret_cast<sl_norm_quad *>(smem + a.acts[0] + 2 * i) =
                    sl_norm_of(part.v[k], w.v[k], scale);
        }
    }

    /* n_words as they are, or floats to BF16. */
    template <bool ROUND>
    static __device__ __forceinline__ void bring_plain(const chain_args &a, const uint32_t *x,
                                                       int n_words, uint8_t *smem)
    {
        constexpr int threads = 32 * CHAIN_WIDE * T;
        for (int i = static_cast<int>(threadIdx.x); 4 * i < n_words; i += 4 * threads) {
            uint4 v[4];
            int n = SL_CEIL_DIV(n_words / 4 - i, threads);
            chain_poll<4>(v, x + 4 * i, 4 * threads, n, 3, a.fault);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint8_t *to = smem + a.acts[1] + (ROUND ? 8 : 16) * (i + k * threads);
                float4 f = chain_float4(v[k]);
                if (k >= n)
                    continue;
                if (ROUND)
                    *reinterpret_cast<uint2 *>(to) =
                        make_uint2(sl_pack_bf16(f.x, f.y), sl_pack_bf16(f.z, f.w));
                else
                    *reinterpret_cast<uint4 *>(to) = v[k];
            }
        }
    }

    /* All but a few units of a step are done. Of attention joined heads count. */
    static __device__ __forceinline__ void nearly(const chain_args &a, int layer, int step)
    {
        int n = a.first[step + 1] - a.first[step];
        if (step == CHAIN_ATTEND)
            n /= CHAIN_SPLITS;
        chain_nearly(chain_count_of(a, layer, step), n, a.early, 10, a.fault);
    }

    /* The input of product n: of a layer q, k, v; o; gate and up; down. */
    static __device__ __forceinline__ void bring(const chain_args &a, int n, uint8_t *smem)
    {
        const int layer = n / 4, which = n % 4;
        const uint32_t *w = chain_words_of(a, layer);
        const bool attention = a.first[CHAIN_O] > a.first[CHAIN_ATTEND];
        if (which == 0) {
            if (layer > 0)
                nearly(a, layer - 1, CHAIN_DOWN);
            bring_normed(a, chain_input_of(a, layer), a.layer[layer].norm[0], smem);
        } else if (which == 2) {
            nearly(a, layer, CHAIN_O);
            bring_normed(a, w + a.at.x1, a.layer[layer].norm[1], smem);
        } else if (which == 3) {
            nearly(a, layer, CHAIN_GATE_UP);
            bring_plain<false>(a, w + a.at.g, a.inner / 2, smem);
        } else if (attention) {
            nearly(a, layer, CHAIN_ATTEND);
            bring_plain<false>(a, w + a.at.att, a.h / 2, smem);
        } else {
            nearly(a, layer, CHAIN_QKV);
            bring_plain<true>(a, w + a.at.qkv, a.h, smem);
        }
        sl_bar_sync(1, 32 * CHAIN_WIDE * T);
        if (threadIdx.x == 0)
            stamp(a, layer * CHAIN_STEPS + (which == 0 ? 0 : which + 1), 0);
        if (which == 3 && a.fault != nullptr)
            chain_clear(a, layer, static_cast<int>(threadIdx.x), 32 * CHAIN_WIDE * T);
    }

    /* -------------------------------------------------------------- products */

    /* A warp's end of its team's ring. */
    struct ring {
        uint8_t *smem;
        const chain_args *a;
        int team, got, done; /* slots: to wait for, to give back */
        uint32_t parity;

        __device__ __forceinline__ uint32_t come()
        {
            lab_wait(bar(smem, full_at, team, got), parity, 4, a->fault);
            uint32_t at = a->ring + static_cast<uint32_t>((team * a->n_slots + got) * slot_bytes);
            if (++got == a->n_slots) {
                got = 0;
                parity ^= 1;
            }
            return at;
        }
        __device__ __forceinline__ void give()
        {
            sl_mbar_give_warp(bar(smem, empty_at, team, done));
            done = done + 1 == a->n_slots ? 0 : done + 1;
        }
        /* Slots that hold nothing for this warp. */
        __device__ __forceinline__ void pass(int n)
        {
            for (; n > 0; n--) {
                come();
                give();
            }
        }
    };

    static __device__ __forceinline__ void load(sl_stream_step<F> &s, const uint8_t *smem,
                                                uint32_t at, int i, uint32_t x)
    {
        sl_wf_load<F>(s.raw, smem + at + i / subs * F::unit_bytes, i % subs,
                      static_cast<int>(threadIdx.x % 32));
        sl_ldmatrix_x4(s.x[0], smem + x);
        sl_ldmatrix_x4(s.x[1], smem + x + 64);
    }

    /* n steps of 64 columns, PER of them in a slot, `offset` bytes from its start. x: where the
     * lane reads the input; all eight columns of the other operand are this one token. */
    template <int PER>
    static __device__ __forceinline__ void walk(float (&acc)[4], ring &r, int n, uint32_t x,
                                                uint32_t offset)
    {
        constexpr int round = PER % 2 ? 2 * PER : PER;
        if (n <= 0)
            return;
        sl_stream_step<F> s[2];
        uint32_t at = r.come() + offset;
        load(s[0], r.smem, at, 0, x);
#pragma unroll 1
        for (; n > 0; n -= round, x += 128 * round) {
#pragma unroll
            for (int i = 0; i < round; i++) {
                if (i + 1 < n) {
                    if ((i + 1) % PER == 0)
                        at = r.come() + offset;
                    load(s[(i + 1) % 2], r.smem, at, (i + 1) % PER, x + 128 * (i + 1));
                }
                sl_stream_mma<F>(acc, s[i % 2].raw, 0, s[i % 2].x[0]);
                sl_stream_mma<F>(acc, s[i % 2].raw, 1, s[i % 2].x[1]);
                if ((i + 1) % PER == 0 || i + 1 == n)
                    r.give();
                if (i + 1 == n)
                    break;
            }
        }
    }

    /* The sums of a row block's segment, or of a pair's half, for the team's first warp. */
    static __device__ __forceinline__ void leave(float (&acc)[4], float *swap, int i)
    {
        const int lane = static_cast<int>(threadIdx.x % 32);
        float sum[1][4] = {{acc[0], acc[1], acc[2], acc[3]}};
        sl_wf_restore<F>(sum);
        if (lane % 4 == 0) {
            swap[16 * i + lane / 4] = sum[0][0];
            swap[16 * i + lane / 4 + 8] = sum[0][2];
        }
    }

    static __device__ __forceinline__ void gate_up(const chain_args &a, const unit &u, ring &r,
                                                   int warp, float *swap)
    {
        constexpr int per = S * subs * (2 / PAIRS);
        const chain_product &p = a.product[CHAIN_GATE_UP];
        const int lane = static_cast<int>(threadIdx.x % 32);
        if (warp < 2 * PAIRS) {
            float acc[4] = {};
            walk<per>(acc, r, p.n_k * subs, a.acts[0] + lane / 8 * 16,
                      static_cast<uint32_t>(warp * chunk * (2 / PAIRS)));
            leave(acc, swap, warp);
        } else {
            r.pass(SL_CEIL_DIV(p.n_k * subs, per));
        }
        sl_bar_sync(3 + r.team, 32 * CHAIN_WIDE);
        if (warp > 0)
            return;
        const int pair = min(lane / 16, PAIRS - 1), row = lane % 16;
        float v = __fmul_rn(sl_act(SL_ACT_SILU, swap[32 * pair + row]), swap[32 * pair + 16 + row]);
        float next = __shfl_down_sync(0xffffffffu, v, 1);
        uint32_t *to =
            chain_words_of(a, u.layer) + a.at.g + ((u.item * PAIRS + pair) * 16 + row) / 2;
        if (row % 2 == 0 && lane < 16 * PAIRS)
            chain_tell(to, sl_pack_bf16(v, next));
        if (lane == 0)
            chain_count(chain_count_of(a, u.layer, CHAIN_GATE_UP));
    }

    /* Where a plain product's row goes, and what is added there. */
    struct target {
        uint32_t *to;
        const uint32_t *old; /* or NULL */
    };
    static __device__ __forceinline__ target target_of(const chain_args &a, const unit &u, int row)
    {
        uint32_t *w = chain_words_of(a, u.layer);
        if (u.step == CHAIN_QKV)
            return {w + a.at.qkv + row, nullptr};
        if (u.step == CHAIN_DOWN)
            return {w + a.at.x2 + row, w + a.at.x1 + row};
        return {w + a.at.x1 + row, chain_input_of(a, u.layer) + row};
    }

    template <int OWN> /* segments of a warp */
    static __device__ __forceinline__ void plain(const chain_args &a, const unit &u, ring &r,
                                                 int warp, float *swap, uint32_t acts)
    {
        const chain_product &p = a.product[u.step];
        const int lane = static_cast<int>(threadIdx.x % 32);
        const target t = target_of(a, u, u.item * 16 + lane % 16);
        uint32_t old = 0;
        if (warp == 0 && t.old != nullptr) /* it was there before this product's input */
            old = *const_cast<const volatile uint32_t *>(t.old);
        int slots = SL_CEIL_DIV(OWN * p.seg_k, S);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int seg = warp * OWN + i, n = max(min(p.seg_k, p.n_k - seg * p.seg_k), 0);
            float acc[4] = {};
            walk<S * subs>(acc, r, n * subs,
                           acts + static_cast<uint32_t>(seg * p.seg_k * F::unit_k * 2) +
                               lane / 8 * 16,
                           static_cast<uint32_t>(warp * chunk));
            leave(acc, swap, seg);
            slots -= SL_CEIL_DIV(n, S);
        }
        r.pass(slots);
        sl_bar_sync(3 + r.team, 32 * CHAIN_WIDE);
        if (warp > 0 || lane >= 16)
            return;
        float sum = swap[lane];
        for (int s = 1; s < p.n_segs; s++)
            sum = __fadd_rn(sum, swap[16 * s + lane]);
        if (t.old != nullptr)
            sum = sl_add_ftz(__uint_as_float(old), sum);
        chain_tell(t.to, __float_as_uint(sum));
        if (lane == 0)
            chain_count(chain_count_of(a, u.layer, u.step));
    }

    /* Pages in the team's ring. */
    struct pages {
        ring *r;
        uint32_t at;
        __device__ __forceinline__ const uint8_t *enter(int i)
        {
            if (i % slot_pages == 0)
                at = r->come() +
                     static_cast<uint32_t>(threadIdx.x / 32 % CHAIN_WIDE) * slot_pages * page_bytes;
            return r->smem + at + i % slot_pages * page_bytes;
        }
        __device__ __forceinline__ void leave(int i)
        {
            if ((i + 1) % slot_pages == 0)
                r->give();
        }
    };

    static __device__ __forceinline__ void attend(const chain_args &a, const unit &u, ring &r,
                                                  int warp)
    {
        const int head = u.item / CHAIN_SPLITS, n_heads = a.product[CHAIN_QKV].blocks[1] * 16 / D;
        uint32_t *w = chain_words_of(a, u.layer);
        const uint32_t *qkv = w + a.at.qkv;
        const chain_rows rows = {qkv + CHAIN_GROUP * D * head, qkv + a.h + D * head,
                                 qkv + a.h + D * (n_heads + head)};
        float out[D / 8][2];
        pages at = {&r, 0};
        nearly(a, u.layer, CHAIN_QKV);
        chain_attend<D>(out, rows, at, 5, a.fault);
        float *sums = reinterpret_cast<float *>(r.smem + sums_at) + r.team * CHAIN_SUMS(D);
        chain_attend_tell<D>(out, sums, w + a.at.part + u.item * CHAIN_GROUP * D, warp, 3 + r.team);
        if (u.item % CHAIN_SPLITS == CHAIN_SPLITS - 1) { /* the others' numbers are lower */
            chain_join<D>(w + a.at.part + head * CHAIN_SPLITS * CHAIN_GROUP * D,
                          w + a.at.att + head * CHAIN_GROUP * D / 2,
                          warp * 32 + static_cast<int>(threadIdx.x % 32), 6, a.fault);
            if (warp == 0 && threadIdx.x % 32 == 0)
                chain_count(chain_count_of(a, u.layer, CHAIN_ATTEND));
        }
    }

    /* The life of a warp that multiplies. */
    static __device__ void consume(const chain_args &a, uint8_t *smem, int warp)
    {
        const int team = warp / CHAIN_WIDE, in_team = warp % CHAIN_WIDE, all = total(a);
        ring r = {smem, &a, team, 0, 0, 0};
        int brought = 0;
        uint32_t last = 0;
        for (int turn = 0;; turn++) {
            volatile uint32_t *entry = queue(smem, team, turn);
            chain_patience p(7, a.fault);
            uint32_t next;
            while ((next = *entry) <= last)
                p.wait(20);
            last = next;
            const int n = static_cast<int>(next) - 1;
            const unit u = find(a, min(n, all - 1));
            int want = 4 * (n < all ? u.layer : a.n_layers);
            if (n < all)
                want += u.step < CHAIN_O ? 1 : u.step;
            for (; brought < want; brought++)
                bring(a, brought, smem);
            if (n >= all)
                return;
            float *swap = reinterpret_cast<float *>(smem + swap_at) +
                          (2 * team + turn % 2) * (swap_bytes / 8);
            if (u.step == CHAIN_ATTEND)
                attend(a, u, r, in_team);
            else if (u.step == CHAIN_GATE_UP)
                gate_up(a, u, r, in_team, swap);
            else if (a.product[u.step].n_segs > CHAIN_WIDE)
                plain<2>(a, u, r, in_team, swap, a.acts[u.step == CHAIN_QKV ? 0 : 1]);
            else
                plain<1>(a, u, r, in_team, swap, a.acts[u.step == CHAIN_QKV ? 0 : 1]);
            if (threadIdx.x % (32 * CHAIN_WIDE) == 0)
                stamp(a, u.layer * CHAIN_STEPS + u.step, 1 + team);
        }
    }
};

template <class F, int T, int S, int PAIRS, int D>
__global__ void __launch_bounds__(32 * (CHAIN_WIDE + 1) * T, 1)
    chain_kernel(const __grid_constant__ chain_args a)
{
    SL_SMEM(uint8_t, smem);
    typedef chain<F, T, S, PAIRS, D> C;
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
    if (threadIdx.x == 0)
        C::stamp(a, a.n_layers * CHAIN_STEPS, 0);
    sl_mbar_init_all(C::bar(smem, C::full_at, 0, 0), T * CHAIN_SLOTS, 1);
    sl_mbar_init_all(C::bar(smem, C::empty_at, 0, 0), T * CHAIN_SLOTS,
                     CHAIN_WIDE * SL_WARP_ARRIVALS);
    sl_mbar_fence_init();
    if (threadIdx.x < T * CHAIN_QUEUE)
        reinterpret_cast<uint32_t *>(smem + C::queue_at)[threadIdx.x] = 0;
    __syncthreads();
    sl_grid_wait();
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *a.taken[1] = 0;
    if (warp >= CHAIN_WIDE * T) {
        if constexpr (T == 4)
            sl_regs_give<40>();
        C::fetch(a, smem, warp - CHAIN_WIDE * T);
    } else {
        if constexpr (T == 4)
            sl_regs_take<104>();
        C::consume(a, smem, warp);
    }
}

/* ------------------------------------------------------------------ host */

/* A block a multiprocessor, all of which are there at once. */
static void chain_launch_together(void (*kernel)(chain_args), const chain_args &a, int threads)
{
    cudaLaunchAttribute attr = {};
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = dim3(static_cast<unsigned>(b.cu->n_sms));
    cfg.blockDim = dim3(static_cast<unsigned>(threads));
    cfg.dynamicSmemBytes = CHAIN_SMEM;
    cfg.stream = b.cu->stream;
    cfg.attrs = &attr;
    cfg.numAttrs = 1;
#ifdef SL_CUDA_SIM /* whose blocks of a cluster are there at once */
    attr.id = cudaLaunchAttributeClusterDimension;
    attr.val.clusterDim.x = static_cast<unsigned>(b.cu->n_sms);
    attr.val.clusterDim.y = attr.val.clusterDim.z = 1;
#else
    attr.id = cudaLaunchAttributeCooperative;
    attr.val.cooperative = 1;
#endif
    MUST(cudaLaunchKernelEx(&cfg, kernel, a));
}

template <class F, int T, int S, int PAIRS, int D> static void chain_launch(chain_args a)
{
    typedef chain<F, T, S, PAIRS, D> C;
    static bool asked;
    const uint32_t h = static_cast<uint32_t>(a.h), inner = static_cast<uint32_t>(a.inner);
    a.acts[0] = SL_ROUND_UP(C::header, 128u);
    a.acts[1] = a.acts[0] + 2 * h;
    a.ring = SL_ROUND_UP(a.acts[1] + 2 * std::max(h, inner), 128u);
    a.n_slots = static_cast<int>((CHAIN_SMEM - a.ring) / (T * C::slot_bytes));
    a.under[0] = std::min(a.under[0], a.n_slots);
    CHECK(a.n_slots >= 2 && a.n_slots + 2 <= CHAIN_QUEUE, "%d slots", a.n_slots);
    for (int i : {CHAIN_QKV, CHAIN_O, CHAIN_DOWN}) {
        const chain_product &p = a.product[i];
        CHECK(p.n_segs == 4 || (p.n_segs == 8 && p.seg_k % S == 0), "%d segments", p.n_segs);
    }
    CHECK(a.product[CHAIN_GATE_UP].blocks[0] % PAIRS == 0, "pairs");
    a.first[0] = 0;
    for (int i = 0; i < CHAIN_STEPS; i++) {
        const int32_t *n = a.product[i].blocks;
        int units = i == CHAIN_GATE_UP ? n[0] / PAIRS : n[0] + n[1] + n[2];
        a.first[i + 1] = a.first[i] + units;
    }
    if (!asked)
        MUST(cudaFuncSetAttribute(chain_kernel<F, T, S, PAIRS, D>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, CHAIN_SMEM));
    asked = true;
    chain_launch_together(chain_kernel<F, T, S, PAIRS, D>, a, 32 * (CHAIN_WIDE + 1) * T);
}

#endif
