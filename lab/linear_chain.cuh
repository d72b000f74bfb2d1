/* SPDX-License-Identifier: MIT
 * linear_chain.cuh - the kernel of lab/linear_chain.cu: products one behind the other in one
 * launch.
 *
 * A walk is as many row blocks (gated: pairs) as the warps of a block take at once: of a row block
 * each segment is a stream of one warp, of a pair gate and up are two streams of one. Slots of the
 * ring go round over the streams of a walk, then to their next columns, then to the next walk, over
 * the ends of products. All columns of all tokens lie in shared memory: up to two of 14,336.
 */
#ifndef SL_LAB_LINEAR_CHAIN_CUH
#define SL_LAB_LINEAR_CHAIN_CUH

#include "cuda/linear_stream.cuh"
#include "lab.h"

#define CHAIN_STEPS  4
#define CHAIN_BARS   0    /* offset of full barriers, then empty ones */
#define CHAIN_SLOTS  64   /* most */
#define CHAIN_ZEROS  1024 /* 16 zero bytes */
#define CHAIN_FROM   1152 /* addresses of the streams of a walk */
#define CHAIN_HEADER 1920
#define CHAIN_SMEM   232448
#define CHAIN_STAMPS 4

struct chain_step {
    sl_lin l;
    int32_t teams, n_items, roles; /* roles: streams of an item */
};

struct chain_args {
    chain_step step[CHAIN_STEPS];
    int32_t n, n_slots, ahead; /* ahead: slots under way at most */
    uint32_t swap, acts, ring; /* offsets */
    uint32_t *meet;            /* grid barrier */
    uint64_t *stamps;          /* [block][CHAIN_STEPS + 1][CHAIN_STAMPS], or NULL */
};

static __device__ __forceinline__ uint64_t chain_time()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

static __device__ __forceinline__ uint32_t chain_read(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

static __device__ __forceinline__ void chain_add(uint32_t *p, uint32_t v)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

/* S: units of a slot. CW: warps that multiply. P: warps that fill the ring, slot by slot in turn.
 */
template <class F, int S, int CW, int P> struct chain {
    static constexpr int subs = F::unit_k / 64, slot_bytes = S * F::unit_bytes;

    static __device__ __forceinline__ uint64_t *full(uint8_t *smem, int i)
    {
        return reinterpret_cast<uint64_t *>(smem + CHAIN_BARS) + i;
    }
    static __device__ __forceinline__ uint64_t *empty(uint8_t *smem, int i)
    {
        return reinterpret_cast<uint64_t *>(smem + CHAIN_BARS) + CHAIN_SLOTS + i;
    }
    static __device__ __forceinline__ uint64_t *go(uint8_t *smem)
    {
        return reinterpret_cast<uint64_t *>(smem + CHAIN_ZEROS + 16);
    }
    static __device__ __forceinline__ void range(const chain_step &st, int *from, int *to)
    {
        int64_t n = st.n_items;
        *from = static_cast<int>(n * blockIdx.x / gridDim.x);
        *to = static_cast<int>(n * (blockIdx.x + 1) / gridDim.x);
    }
    static __device__ __forceinline__ int seg_units(const sl_lin &l, int seg)
    {
        return min(l.seg_k64, l.n_k64 - seg * l.seg_k64) / subs;
    }
    static __device__ __forceinline__ int rows_of(const sl_lin &l)
    {
        return SL_CEIL_DIV(l.seg_k64 / subs, S);
    }

    /* Where the streams of a walk come from, a lane for each. */
    static __device__ __forceinline__ void find_streams(const chain_step &st, int base, int streams,
                                                        uint8_t *smem)
    {
        const sl_lin &l = st.l;
        int lane = static_cast<int>(threadIdx.x % 32);
        __syncwarp();
        if (lane < streams) {
            int role = lane % st.roles, seg = l.gated ? 0 : role;
            sl_stream_item it = sl_stream_find(l, base + lane / st.roles, l.gated ? role : 0);
            int64_t unit = it.block * sl_cuda_row_units(l.n_k64 / subs, F::unit_bytes) +
                           seg * (l.seg_k64 / subs);
            uint64_t at = reinterpret_cast<uint64_t>(it.part->w + unit * F::unit_bytes);
            reinterpret_cast<uint4 *>(smem + CHAIN_FROM)[lane] =
                make_uint4(static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32),
                           static_cast<uint32_t>(seg_units(l, seg) * F::unit_bytes), 0);
        }
        __syncwarp();
    }

    struct line {
        int slot;
        uint32_t parity;
        __device__ __forceinline__ void next(int n_slots)
        {
            if (++slot == n_slots) {
                slot = 0;
                parity ^= 1;
            }
        }
    };

    /* Fills slots in order, from the first product's to the last's. */
    static __device__ void fetch(const chain_args &a, uint8_t *smem, int me)
    {
        int lane = static_cast<int>(threadIdx.x % 32);
        const int n_slots = a.n_slots, n_steps = a.n, ahead = a.ahead;
        int first = n_slots, room = ahead, turn = 0;
        line put = {0, 1}, come = {0, 0};
        const uint8_t *ring = smem + a.ring;
        for (int i = 0; i < n_steps; i++) {
            int from, to;
            range(a.step[i], &from, &to);
            const int teams = a.step[i].teams, roles = a.step[i].roles,
                      n_bytes = rows_of(a.step[i].l) * slot_bytes;
            for (int base = from; base < to; base += teams) {
                const int streams = min(teams, to - base) * roles;
                find_streams(a.step[i], base, streams, smem + me * 384);
                if (lane != 0)
                    continue;
                for (int at = 0; at < n_bytes; at += slot_bytes) {
#pragma unroll 1
                    for (int j = 0; j < streams; j++) {
                        uint4 v = reinterpret_cast<const uint4 *>(smem + CHAIN_FROM + me * 384)[j];
                        int bytes = min(slot_bytes, max(static_cast<int>(v.z) - at, 0));
                        const uint8_t *src = reinterpret_cast<const uint8_t *>(
                            static_cast<uint64_t>(v.y) << 32 | v.x);
                        if (first == 0)
                            sl_mbar_arrive(go(smem));
                        first--;
                        bool mine = P == 1 || turn == me;
                        if (P > 1 && ++turn == P)
                            turn = 0;
                        if (!mine) {
                            put.next(n_slots);
                            continue;
                        }
                        sl_mbar_wait(empty(smem, put.slot), put.parity);
                        while (first < 0 && ahead < n_slots && room <= 0) {
                            sl_mbar_wait(full(smem, come.slot), come.parity);
                            come.next(n_slots);
                            room++;
                        }
                        room--;
                        sl_mbar_expect_tx(full(smem, put.slot), static_cast<uint32_t>(bytes));
                        if (bytes > 0)
                            sl_bulk_load_once(const_cast<uint8_t *>(ring) + put.slot * slot_bytes,
                                              src + at, static_cast<uint32_t>(bytes),
                                              full(smem, put.slot));
                        put.next(n_slots);
                    }
                }
            }
        }
    }

    static __device__ __forceinline__ void bring(const chain_args &a, const sl_lin &l,
                                                 uint8_t *smem)
    {
        int pieces = l.n_k64 * 8, stride = l.n_k64 * 128 + 16;
        for (int i = static_cast<int>(threadIdx.x); i < l.n * pieces; i += 32 * CW) {
            int token = i / pieces, col = i % pieces * 8;
            sl_cp_async16(smem + a.acts + token * stride + col * 2, l.x + token * l.ld_x + col,
                          true);
        }
        sl_cp_async_commit();
        sl_cp_async_wait<0>();
        sl_bar_sync(1, 32 * CW);
    }

    /* T: streams a warp takes at once. */
    template <int T>
    static __device__ __forceinline__ void slot_of(float (&acc)[2][4], const uint8_t *const (&w)[2],
                                                   int units, uint32_t x, const uint8_t *smem,
                                                   int n_tokens)
    {
        int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
        for (int u = 0; u < S * subs; u++) {
            if (u / subs >= units)
                break;
            typename F::raw r[T];
            uint32_t b[2][4];
#pragma unroll
            for (int t = 0; t < T; t++)
                F::load(r[t], w[t] + u / subs * F::unit_bytes, u % subs, lane);
            sl_stream_load_x(b[0], smem, x + u * 128, n_tokens);
            sl_stream_load_x(b[1], smem, x + u * 128 + 64, n_tokens);
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int t = 0; t < T; t++)
                    sl_stream_mma<F>(acc[t], r[t], h, b[h]);
        }
    }

    struct place {
        int slot;
        uint32_t parity;
        __device__ __forceinline__ void skip(int n, int n_slots)
        {
            slot += n;
            while (slot >= n_slots) {
                slot -= n_slots;
                parity ^= 1;
            }
        }
    };

    /* What was in the slot before was another warp's and may still be under way: as a barrier tells
     * two phases apart, first that must have been taken. (That it is no more than one round behind
     * wants as many slots as two walks have streams.) */
    static __device__ __forceinline__ void come(uint8_t *smem, place at)
    {
        sl_mbar_wait(empty(smem, at.slot), at.parity ^ 1);
        sl_mbar_wait(full(smem, at.slot), at.parity);
    }

    template <int T>
    static __device__ __forceinline__ void walk(float (&acc)[2][4], const chain_args &a,
                                                const sl_lin &l, uint8_t *smem, place at, int seg,
                                                int streams)
    {
        int lane = static_cast<int>(threadIdx.x % 32), left = seg_units(l, seg);
        int stride = l.n_k64 * 128 + 16;
        uint32_t x = a.acts + static_cast<uint32_t>((lane & 7) * stride + seg * l.seg_k64 * 128 +
                                                    (lane >> 3) * 16);
        for (int s = rows_of(l); s > 0; s--, left -= S, x += S * subs * 128) {
            place second = at;
            if (T == 2)
                second.skip(1, a.n_slots);
            come(smem, at);
            if (T == 2)
                come(smem, second);
            const uint8_t *w[2] = {smem + a.ring + at.slot * slot_bytes,
                                   smem + a.ring + second.slot * slot_bytes};
            slot_of<T>(acc, w, left, x, smem, l.n);
            sl_mbar_give_warp(empty(smem, at.slot));
            if (T == 2)
                sl_mbar_give_warp(empty(smem, second.slot));
            at.skip(streams, a.n_slots);
        }
    }

    static __device__ __forceinline__ void finish(float (&acc)[2][4], const chain_args &a,
                                                  const chain_step &st, int item, int warp,
                                                  uint8_t *smem)
    {
        const sl_lin &l = st.l;
        int lane = static_cast<int>(threadIdx.x % 32);
        sl_stream_item it = sl_stream_find(l, item, 0);
        float sum[1][4];
        if (l.gated) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[0][i] = __fmul_rn(sl_act(l.act, acc[0][i]), acc[1][i]);
            sl_lin_store_gated<1>(sum, l, it.block, 0);
            return;
        }
        int team = warp / st.roles, in_team = warp % st.roles;
        float *swap = reinterpret_cast<float *>(smem + a.swap) + team * st.roles * 128;
        if (st.roles > 1) {
            if (in_team > 0) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    swap[(in_team * 4 + i) * 32 + lane] = acc[0][i];
            }
            sl_bar_sync(3 + team, 32 * st.roles);
            if (in_team == 0)
                sl_stream_join(acc[0], l, swap);
            sl_bar_sync(3 + team, 32 * st.roles);
        }
        if (in_team > 0)
            return;
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[0][i] = acc[0][i];
        sl_lin_store_part<1>(sum, l, *it.part, it.block, 0);
    }

    static __device__ __forceinline__ void stamp(const chain_args &a, int step, int i)
    {
        if (a.stamps != nullptr && threadIdx.x == 0)
            a.stamps[(blockIdx.x * (CHAIN_STEPS + 1) + static_cast<uint32_t>(step)) * CHAIN_STAMPS +
                     static_cast<uint32_t>(i)] = chain_time();
    }

    static __device__ void consume(const chain_args &a, uint8_t *smem)
    {
        int warp = static_cast<int>(threadIdx.x / 32);
        place at = {0, 0};
        uint32_t sense = threadIdx.x == 0 ? chain_read(a.meet) : 0;
        bring(a, a.step[0].l, smem);
        for (int i = 0; i < a.n; i++) {
            const chain_step &st = a.step[i];
            const sl_lin &l = st.l;
            int from, to, roles = l.gated ? 1 : st.roles;
            stamp(a, i, 1);
            range(st, &from, &to);
            for (int base = from; base < to; base += st.teams) {
                int teams = min(st.teams, to - base), team = warp / roles;
                int streams = teams * st.roles, seg = warp % roles;
                if (team < teams) {
                    float acc[2][4] = {};
                    place mine = at;
                    mine.skip(l.gated ? 2 * warp : warp, a.n_slots);
                    if (l.gated)
                        walk<2>(acc, a, l, smem, mine, 0, streams);
                    else
                        walk<1>(acc, a, l, smem, mine, seg, streams);
                    finish(acc, a, st, base + team, warp, smem);
                }
                at.skip(rows_of(l) * streams, a.n_slots);
            }
            sl_bar_sync(1, 32 * CW);
            stamp(a, i, 2);
            if (i + 1 == a.n)
                break;
            if (threadIdx.x == 0) {
                chain_add(a.meet, blockIdx.x == 0 ? 0x80000001u - gridDim.x : 1u);
                stamp(a, i, 3);
                while (((chain_read(a.meet) ^ sense) & 0x80000000u) == 0)
                    ;
                sense ^= 0x80000000u;
            }
            sl_bar_sync(1, 32 * CW);
            stamp(a, i + 1, 0);
            bring(a, a.step[i + 1].l, smem);
        }
    }
};

template <class F, int S, int CW, int P>
__global__ void __launch_bounds__(32 * (CW + P), 1)
    chain_kernel(const __grid_constant__ chain_args a)
{
    SL_SMEM(uint8_t, smem);
    typedef chain<F, S, CW, P> C;
    int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
    C::stamp(a, CHAIN_STEPS, 0);
    sl_mbar_init_all(C::go(smem), 1, P);
    sl_mbar_init_all(C::full(smem, 0), a.n_slots, 1);
    sl_mbar_init_all(C::empty(smem, 0), a.n_slots, SL_WARP_ARRIVALS);
    sl_mbar_fence_init();
    if (threadIdx.x == 0)
        *reinterpret_cast<uint4 *>(smem + CHAIN_ZEROS) = make_uint4(0, 0, 0, 0);
    __syncthreads();
    if (warp >= CW) {
        C::fetch(a, smem, warp - CW);
        sl_grid_wait();
        return;
    }
    sl_mbar_wait(C::go(smem), 0);
    C::stamp(a, CHAIN_STEPS, 1);
    sl_grid_launch_dependents();
    sl_grid_wait();
    C::stamp(a, 0, 0);
    C::consume(a, smem);
}

template <class F, int S, int CW, int P>
static void chain_launch(const sl_lin *l, int n, int ahead, bool together, uint32_t *meet,
                         uint64_t *stamps)
{
    static size_t asked;
    chain_args a = {};
    int acts = 0;
    for (int i = 0; i < n; i++) {
        chain_step *st = &a.step[i];
        st->l = l[i];
        for (int p = 0; p < (l[i].gated ? 1 : l[i].n_parts); p++)
            st->n_items += l[i].part[p].n_blocks;
        st->roles = l[i].gated ? 2 : l[i].n_segs;
        int most = l[i].gated ? std::min(CW, 16) : CW / st->roles;
        int share = SL_CEIL_DIV(st->n_items, b.cu->n_sms);
        st->teams = SL_CEIL_DIV(share, SL_CEIL_DIV(share, most));
        acts = std::max(acts, l[i].n * (l[i].n_k64 * 128 + 16));
    }
    a.n = n;
    a.swap = CHAIN_HEADER;
    a.acts = a.swap + CW * 512;
    a.ring = SL_ROUND_UP(a.acts + static_cast<uint32_t>(acts), 128u);
    a.n_slots =
        std::min(static_cast<int>((CHAIN_SMEM - a.ring) / (S * F::unit_bytes)), CHAIN_SLOTS);
    a.ahead = ahead > 0 ? std::min(ahead, a.n_slots) : a.n_slots;
    a.meet = meet;
    a.stamps = stamps;
    size_t smem = a.ring + static_cast<size_t>(a.n_slots) * S * F::unit_bytes;
    if (asked < smem) {
        MUST(cudaFuncSetAttribute(chain_kernel<F, S, CW, P>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(smem)));
        asked = smem;
    }
    cudaLaunchAttribute attrs[2] = {};
    attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attrs[0].val.programmaticStreamSerializationAllowed = 1;
    attrs[1].id = cudaLaunchAttributeCooperative;
    attrs[1].val.cooperative = 1;
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = dim3(static_cast<unsigned>(b.cu->n_sms));
    cfg.blockDim = dim3(32 * (CW + P));
    cfg.dynamicSmemBytes = smem;
    cfg.stream = b.cu->stream;
    cfg.attrs = attrs;
    cfg.numAttrs = together ? 2 : 1;
    MUST(cudaLaunchKernelEx(&cfg, chain_kernel<F, S, CW, P>, a));
}

#endif
