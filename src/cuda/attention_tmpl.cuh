/* SPDX-License-Identifier: MIT
 * attention_tmpl.cuh - the two kernels of paged attention, for a format of the pages and a padded
 * head dimension D. Order of the arithmetic: attention.cuh.
 *
 * narrow: tiles of up to 16 rows (decode; a few drafts). Four warps share the 16 rows: of a tile of
 *   64 keys each has 16 keys of the scores and every fourth 16 dimensions of the values; maxima and
 *   probabilities go through shared memory. Bound by memory.
 * wide: tiles of 128 rows (64 for D = 256). A warp has 16 rows, all keys and all dimensions. Bound
 *   by shared memory and the mma.sync rate.
 *
 * PREDICTIONS, nothing of this is measured. H200: 132 SMs, 4.7 TB/s read, 1.75 GHz.
 *   narrow, D = 128, group 8: a tile is 32 KiB of K and V. An SM's share of the bandwidth is
 *     36 B/ns = 20 B/clk: 1,600 clk per tile. In that time 128 mma (16 x 8 x 16) at about 8 clk an
 *     SM = 1,024 / 4 tensor cores = 260 clk, ldmatrix 32 KiB / 128 B = 260 clk and as much for the
 *     writes of cp.async. A tile is a chain of about 900 clk (3 barriers, 8 dependent mma, 2
 *     exponentials, 4 dependent mma); 3 blocks an SM need one every 4,800 clk. In flight an SM has
 *     3 blocks of 3 copies of 16 KiB = 144 KiB; 4.7 TB/s x 800 ns / 132 = 28 KiB are needed. Slots
 *     of partial results take group * D * 4 B a split of 1,024 * D B, written and read: 0.8 % of
 *     the bytes at group 1, 6 % at 8, mostly in L2; none where a sequence is one part. Expected:
 *     80 - 88 % of the read limit from 32 MB of K and V a layer on, less below (start: 5 us).
 *   wide, D = 128: a tile of 64 keys is 4.2 MFLOP of the block's 128 rows; ldmatrix reads 8 warps x
 *     (32 + 4) KiB / 128 B = 2,300 clk; the tensor cores need 1,024 clk at their full rate, about
 *     1,650 at that of mma.sync; exponentials 8,192 / 16 = 512. So shared memory bounds it:
 *     4.2 MFLOP / 2,300 clk x 132 x 1.75 GHz = 420 TFLOP/s, and about 1,050 instructions a warp
 *     and tile, 2,100 clk, are close behind; expected 280 - 360, half of what a wgmma kernel of the
 *     same order would reach. L2 gives 32 KiB per 2,300 clk and SM: 3.3 TB/s.
 *
 * nvcc 13.0, sm_90a; shared memory of a block and the blocks of an SM it is cut for:
 *   D                        16      32      64      80      96     128     256
 *   narrow: registers       100     105     109     143     151     138     220
 *           shared bytes  21344   33632   58208   70496   69472   72544  104288
 *           blocks            3       3       3       3       3       3       2
 *   wide:   registers       205     218     240     246     252     255     255
 *           shared bytes  18528   30816   55392   67680   79968  104544  200800
 *           blocks            1       1       1       1       1       1       1
 * No spills but in the wide kernel for 256: 540 bytes written, 428 read, some of them in the loop
 * over tiles. The 64 bytes of stack are those of sl_attn_values_careful.
 */
#include "cuda/attention_tile.cuh"

/* ---------------------------------------------------------------- sizes */

template <class KV, int D> struct sl_attn_narrow_cfg {
    static constexpr int ROWS = SL_ATTN_NARROW;
    static constexpr int THREADS = 128;
    static constexpr int CTAS = D <= 128 ? 3 : 2; /* of an SM */
    static constexpr int SLOT = SL_ATTN_TILE * KV::smem_row(D);
    static constexpr int FIT = 70 * 1024 / SLOT;
    static constexpr int SLOTS = D > 128 ? 3 : FIT > 6 ? 6 : FIT;
    static constexpr int P_ROW = SL_ATTN_TILE * 2 + 16;
    static constexpr int P_AT = SLOTS * SLOT;                      /* bf16 [16][P_ROW / 2] */
    static constexpr int TOP_AT = P_AT + SL_ATTN_NARROW * P_ROW;   /* float [4][16] */
    static constexpr int SUM_AT = TOP_AT + 4 * SL_ATTN_NARROW * 4; /* float [4][16] */
    static constexpr int FLAG_AT = SUM_AT + 4 * SL_ATTN_NARROW * 4;
    static constexpr int WORK_AT = FLAG_AT + 16;
    static constexpr int BYTES = WORK_AT + static_cast<int>(sizeof(struct sl_attn_work));
};

template <class KV, int D> struct sl_attn_wide_cfg {
    static constexpr int WARPS = D <= 128 ? 8 : 4;
    static constexpr int ROWS = 16 * WARPS;
    static constexpr int THREADS = 32 * WARPS;
    static constexpr int SLOT = SL_ATTN_TILE * KV::smem_row(D);
    static constexpr int SLOTS = D <= 128 ? 4 : 3;
    static constexpr int Q_ROW = (D / 8 | 1) * 16;
    static constexpr bool STATE_IN_SMEM = D > 128;
    static constexpr int Q_AT = SLOTS * SLOT;            /* bf16 [ROWS][Q_ROW / 2] */
    static constexpr int STATE_AT = Q_AT + ROWS * Q_ROW; /* float [D / 2][THREADS] */
    static constexpr int FLAG_AT = STATE_AT + (STATE_IN_SMEM ? D / 2 * THREADS * 4 : 0);
    static constexpr int WORK_AT = FLAG_AT + 16;
    static constexpr int BYTES = WORK_AT + static_cast<int>(sizeof(struct sl_attn_work));
};

/* Runs work() for all items of a class, each described in w; the next one is taken from a counter
 * by whoever is free. It is fetched early and read late: nobody waits for it. */
template <class Work>
static __device__ __forceinline__ void sl_attn_for_items(const struct sl_attn_args &a, int cls,
                                                         int tile_rows, int *flag,
                                                         struct sl_attn_work *w, Work work)
{
    struct sl_attn_class *c = a.cls + cls;
    const int n = c->n_items * a.n_kv_heads;
    int at = static_cast<int>(blockIdx.x);
    while (at < n) {
        uint32_t taken = 0;
        if (threadIdx.x == 0) {
            taken = atomicAdd(&c->taken, 1u);
            sl_attn_work_of(a, a.items[at / a.n_kv_heads], at % a.n_kv_heads, tile_rows, *w);
        }
        __syncthreads();
        work();
        __syncthreads();
        if (threadIdx.x == 0)
            *flag = static_cast<int>(gridDim.x + taken);
        __syncthreads();
        at = *flag;
    }
    sl_grid_launch_dependents();
    if (threadIdx.x == 0 && atomicAdd(&c->done, 1u) + 1 == gridDim.x) {
        c->taken = 0; /* for the next layer */
        c->done = 0;
    }
}

static __device__ __forceinline__ void sl_attn_tiles_of(const struct sl_attn_work &w, int *from,
                                                        int *to)
{
    *from = max(w.item.from * SL_ATTN_TILES, w.key_lo / SL_ATTN_TILE);
    *to = min(w.item.to * SL_ATTN_TILES, (w.key_hi - 1) / SL_ATTN_TILE + 1);
}

static __device__ __forceinline__ bool sl_attn_last_of_split(int tile, int tile_to)
{
    return tile % SL_ATTN_TILES == SL_ATTN_TILES - 1 || tile + 1 == tile_to;
}

/* Does a row not see all of the tile? */
static __device__ __forceinline__ bool sl_attn_masked(const struct sl_attn_work &w, int tile)
{
    return tile * SL_ATTN_TILE < w.all_lo || (tile + 1) * SL_ATTN_TILE > w.all_hi;
}

/* The query as BF16, two dimensions. */
static __device__ __forceinline__ uint32_t sl_attn_query2(const struct sl_attn_args &a,
                                                          const struct sl_attn_work &w, int row,
                                                          int d)
{
    if (row >= w.n_rows || d >= a.head_dim)
        return 0;
    int r = w.row0 + row, token = w.token + r / a.group, head = w.kv * a.group + r % a.group;
    const float *q = a.q + token * a.ld_q + static_cast<int64_t>(head) * a.head_dim + d;
    float2 x = *reinterpret_cast<const float2 *>(q);
    return sl_pack_bf16(x.x, x.y);
}

/* ---------------------------------------------------------------- narrow */

template <class KV, int D> struct sl_attn_narrow {
    typedef sl_attn_narrow_cfg<KV, D> cfg;
    static constexpr int PAIRS = (D / 16 + 3) / 4; /* of 16 dimensions, of a warp */

    const struct sl_attn_args &a;
    const struct sl_attn_work &w;
    uint8_t *smem;
    struct sl_attn_rows rows;
    int warp, lane;
    float o[PAIRS][8], m[2], l[1][2]; /* of the split */
    float state[PAIRS][8], state_m[2], state_l[2];

    __device__ __forceinline__ sl_attn_narrow(const struct sl_attn_args &args,
                                              const struct sl_attn_work &work, uint8_t *base)
        : a(args), w(work), smem(base)
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        warp = static_cast<int>(threadIdx.x) >> 5;
        rows = sl_attn_rows_of(a, w, lane / 4);
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                o[i][j] = state[i][j] = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            m[i] = state_m[i] = -SL_ATTN_INF;
            l[0][i] = state_l[i] = 0.0f;
        }
    }

    /* Raises m by a tile's maximum and leaves the probabilities in shared memory. */
    __device__ __forceinline__ void scores(const uint32_t q[D / 16][4], const uint8_t *keys,
                                           int tile)
    {
        float s[2][4] = {}, top[2], alpha[2], base[2];
        uint32_t p[4];
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t b[4];
            KV::template key_frags<D>(b, keys, warp * 16, d * 16);
            sl_mma_bf16(s[0], q[d], b);
            sl_mma_bf16(s[1], q[d], b + 2);
        }
        sl_attn_cap_and_mask<2>(a, rows, s, tile * SL_ATTN_TILE + warp * 16,
                                sl_attn_masked(w, tile));
        sl_attn_row_max<2>(s, top);
        float *tops = reinterpret_cast<float *>(smem + cfg::TOP_AT);
        if (lane % 4 == 0) {
            tops[warp * 16 + lane / 4] = top[0];
            tops[warp * 16 + lane / 4 + 8] = top[1];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float *t = tops + lane / 4 + 8 * i;
            top[i] = fmaxf(fmaxf(t[0], t[16]), fmaxf(t[32], t[48]));
        }
        sl_attn_raise(a.scale2, m, top, alpha, base);
        sl_attn_exp<2>(a.scale2, s, base, alpha, p, l);
        uint8_t *to = smem + cfg::P_AT + lane / 4 * cfg::P_ROW + warp * 32 + lane % 4 * 4;
        *reinterpret_cast<uint32_t *>(to) = p[0];
        *reinterpret_cast<uint32_t *>(to + 8 * cfg::P_ROW) = p[1];
        *reinterpret_cast<uint32_t *>(to + 16) = p[2];
        *reinterpret_cast<uint32_t *>(to + 8 * cfg::P_ROW + 16) = p[3];
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                o[i][j] = __fmul_rn(o[i][j], alpha[j >> 1 & 1]);
    }

    __device__ __forceinline__ void values(const uint8_t *tile_at, int tile)
    {
        uint32_t p[16];
        const uint8_t *from = smem + cfg::P_AT + (lane & 15) * cfg::P_ROW + (lane >> 4) * 16;
#pragma unroll
        for (int k = 0; k < 4; k++)
            sl_ldmatrix_x4(p + 4 * k, from + 32 * k);
        bool differ = w.all_hi != w.key_hi; /* several tokens */
        if (differ && sl_attn_masked(w, tile) && sl_attn_unclean<KV, D, PAIRS, 4>(tile_at, warp))
            sl_attn_values_careful<KV, D, PAIRS, 4>(a, rows, o, p, tile_at, warp,
                                                    tile * SL_ATTN_TILE);
        else
            sl_attn_values<KV, D, PAIRS, 4>(o, p, tile_at, warp);
    }

    /* l of the split to all warps. */
    __device__ __forceinline__ void sum_l(float sum[2])
    {
        float *sums = reinterpret_cast<float *>(smem + cfg::SUM_AT);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float x = l[0][i];
            x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
            x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
            if (lane % 4 == 0)
                sums[warp * 16 + lane / 4 + 8 * i] = x;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float *x = sums + lane / 4 + 8 * i;
            sum[i] = __fadd_rn(__fadd_rn(x[0], x[16]), __fadd_rn(x[32], x[48]));
        }
    }

    __device__ __forceinline__ void write_slot(const float x[PAIRS][8], const float top[2],
                                               const float sum[2], int slot)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = lane / 4 + 8 * i;
            if (row >= w.n_rows)
                continue;
            int64_t at = sl_attn_slot(a, w, slot) + row;
            float *to = a.slots + at * D + warp * 16 + lane % 4 * 2;
            if (warp == 0 && lane % 4 == 0)
                a.slot_ml[at] = make_float2(top[i], sum[i]);
#pragma unroll
            for (int n = 0; n < PAIRS; n++)
#pragma unroll
                for (int k = 0; k < 2; k++)
                    if (warp * 16 + 64 * n < D)
                        *reinterpret_cast<float2 *>(to + 64 * n + 8 * k) =
                            make_float2(x[n][4 * k + 2 * i], x[n][4 * k + 2 * i + 1]);
        }
    }

    __device__ __forceinline__ void write_out()
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = lane / 4 + 8 * i;
            if (row >= w.n_rows)
                continue;
            float f = sl_attn_inverse(a, state_m[i], state_l[i], sl_attn_head(a, w, row));
            __nv_bfloat16 *to = sl_attn_out_row(a, w, row);
#pragma unroll
            for (int n = 0; n < PAIRS; n++)
#pragma unroll
                for (int k = 0; k < 2; k++)
                    sl_attn_write2(a, to, (warp + 4 * n) * 16 + 8 * k + lane % 4 * 2,
                                   __fmul_rn(state[n][4 * k + 2 * i], f),
                                   __fmul_rn(state[n][4 * k + 2 * i + 1], f));
        }
    }

    /* The split is complete: to the state, or to its slot. */
    __device__ __forceinline__ void end_split(int split)
    {
        float sum[2];
        sum_l(sum);
        if (w.item.from > 0) {
            write_slot(o, m, sum, sl_attn_split_slot(w, split));
        } else {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (!sl_attn_sees_split(a, rows.pos[i], split))
                    continue;
                struct sl_attn_join j = sl_attn_join_of(state_m[i], m[i], a.scale2);
                state_m[i] = j.top;
                state_l[i] = sl_attn_joined(j, state_l[i], sum[i]);
#pragma unroll
                for (int n = 0; n < PAIRS; n++)
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        int at = 4 * (k >> 1) + 2 * i + (k & 1);
                        state[n][at] = sl_attn_joined(j, state[n][at], o[n][at]);
                    }
            }
        }
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                o[i][j] = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            m[i] = -SL_ATTN_INF;
            l[0][i] = 0.0f;
        }
    }
};

template <class KV, int D>
static __device__ __forceinline__ void sl_attn_narrow_item(const struct sl_attn_args &a,
                                                           uint8_t *smem)
{
    typedef sl_attn_narrow_cfg<KV, D> cfg;
    const struct sl_attn_work &w = *reinterpret_cast<struct sl_attn_work *>(smem + cfg::WORK_AT);
    int tile, tile_to;
    sl_attn_tiles_of(w, &tile, &tile_to);
    sl_attn_ring<KV, D, cfg::THREADS, cfg::SLOTS> ring;
    ring.start(a, w, smem, tile, tile_to);
    sl_attn_narrow<KV, D> n(a, w, smem);
    uint32_t q[D / 16][4];
#pragma unroll
    for (int d = 0; d < D / 16; d++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            q[d][i] = sl_attn_query2(a, w, n.lane / 4 + 8 * (i & 1),
                                     d * 16 + 8 * (i >> 1) + n.lane % 4 * 2);
#pragma unroll 1
    for (; tile < tile_to; tile++) {
        n.scores(q, ring.next_tile(a, w), tile);
        n.values(ring.next_tile(a, w), tile);
        if (sl_attn_last_of_split(tile, tile_to))
            n.end_split(tile / SL_ATTN_TILES);
    }
    ring.finish();
    if (w.item.from == 0 && w.item.rows_at < 0)
        n.write_out();
    else if (w.item.from == 0)
        n.write_slot(n.state, n.state_m, n.state_l, 0);
    if (w.item.rows_at >= 0)
        sl_attn_arrive<D, cfg::THREADS>(a, w, a.cls[0].step,
                                        reinterpret_cast<int *>(smem + cfg::FLAG_AT));
}

template <class KV, int D>
static __global__ void __launch_bounds__((sl_attn_narrow_cfg<KV, D>::THREADS),
                                         (sl_attn_narrow_cfg<KV, D>::CTAS))
    sl_attn_narrow_kernel(const struct sl_attn_args a)
{
    SL_SMEM(uint8_t, smem);
    sl_grid_wait();
    typedef sl_attn_narrow_cfg<KV, D> cfg;
    sl_attn_for_items(a, 0, cfg::ROWS, reinterpret_cast<int *>(smem + cfg::FLAG_AT),
                      reinterpret_cast<struct sl_attn_work *>(smem + cfg::WORK_AT),
                      [&] { sl_attn_narrow_item<KV, D>(a, smem); });
}

/* ---------------------------------------------------------------- wide */

template <class KV, int D> struct sl_attn_wide {
    typedef sl_attn_wide_cfg<KV, D> cfg;
    static constexpr int PAIRS = D / 16;

    const struct sl_attn_args &a;
    const struct sl_attn_work &w;
    uint8_t *smem;
    struct sl_attn_rows rows;
    int warp, lane;
    int key_lo, key_hi; /* keys some row of the warp sees */
    float o[PAIRS][8], m[2], l[4][2];
    float state[cfg::STATE_IN_SMEM ? 1 : PAIRS][8], state_m[2], state_l[2];

    __device__ __forceinline__ sl_attn_wide(const struct sl_attn_args &args,
                                            const struct sl_attn_work &work, uint8_t *base)
        : a(args), w(work), smem(base)
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        warp = static_cast<int>(threadIdx.x) >> 5;
        rows = sl_attn_rows_of(a, w, warp * 16 + lane / 4);
        key_lo = sl_attn_seen_from(a, w.pos + sl_attn_token(a, w, warp * 16));
        key_hi = warp * 16 < w.n_rows ? w.pos + sl_attn_token(a, w, warp * 16 + 15) + 1 : 0;
        clear();
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                state_at(i, j) = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            state_m[i] = -SL_ATTN_INF;
            state_l[i] = 0.0f;
        }
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                o[i][j] = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            m[i] = -SL_ATTN_INF;
            l[0][i] = l[1][i] = l[2][i] = l[3][i] = 0.0f;
        }
    }

    /* Each thread's own words of shared memory where registers do not suffice. */
    __device__ __forceinline__ float &state_at(int i, int j)
    {
        if (!cfg::STATE_IN_SMEM)
            return state[cfg::STATE_IN_SMEM ? 0 : i][j];
        return reinterpret_cast<float *>(
            smem + cfg::STATE_AT)[(i * 8 + j) * cfg::THREADS + static_cast<int>(threadIdx.x)];
    }

    /* Of a tile none of whose keys a row of the warp sees nothing is computed. */
    __device__ __forceinline__ bool sees(int tile) const
    {
        return tile * SL_ATTN_TILE < key_hi && (tile + 1) * SL_ATTN_TILE > key_lo;
    }

    __device__ __forceinline__ void load_query()
    {
        uint8_t *to = smem + cfg::Q_AT;
#pragma unroll 4
        for (int i = static_cast<int>(threadIdx.x); i < cfg::ROWS * D / 2; i += cfg::THREADS) {
            int row = i / (D / 2), d = i % (D / 2) * 2;
            *reinterpret_cast<uint32_t *>(to + row * cfg::Q_ROW + d * 2) =
                sl_attn_query2(a, w, row, d);
        }
    }

    __device__ __forceinline__ void scores(const uint8_t *keys, int tile, uint32_t p[16])
    {
        float s[8][4], top[2], alpha[2], base[2];
#pragma unroll
        for (int f = 0; f < 8; f++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[f][i] = 0.0f;
        const uint8_t *query =
            smem + cfg::Q_AT + (warp * 16 + (lane & 15)) * cfg::Q_ROW + (lane >> 4) * 16;
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t q[4];
            sl_ldmatrix_x4(q, query + d * 32);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint32_t b[4];
                KV::template key_frags<D>(b, keys, k * 16, d * 16);
                sl_mma_bf16(s[2 * k], q, b);
                sl_mma_bf16(s[2 * k + 1], q, b + 2);
            }
        }
        sl_attn_cap_and_mask<8>(a, rows, s, tile * SL_ATTN_TILE, sl_attn_masked(w, tile));
        sl_attn_row_max<8>(s, top);
        sl_attn_raise(a.scale2, m, top, alpha, base);
        sl_attn_exp<8>(a.scale2, s, base, alpha, p, l);
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                o[i][j] = __fmul_rn(o[i][j], alpha[j >> 1 & 1]);
    }

    __device__ __forceinline__ void values(const uint32_t p[16], const uint8_t *tile_at, int tile)
    {
        bool differ = w.all_hi != w.key_hi;
        if (differ && sl_attn_masked(w, tile) && sl_attn_unclean<KV, D, PAIRS, 1>(tile_at, 0))
            sl_attn_values_careful<KV, D, PAIRS, 1>(a, rows, o, p, tile_at, 0, tile * SL_ATTN_TILE);
        else
            sl_attn_values<KV, D, PAIRS, 1>(o, p, tile_at, 0);
    }

    __device__ __forceinline__ float sum_l(int i) const
    {
        float x[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            x[k] = __fadd_rn(l[k][i], __shfl_xor_sync(0xFFFFFFFFu, l[k][i], 1));
            x[k] = __fadd_rn(x[k], __shfl_xor_sync(0xFFFFFFFFu, x[k], 2));
        }
        return __fadd_rn(__fadd_rn(x[0], x[1]), __fadd_rn(x[2], x[3]));
    }

    __device__ __forceinline__ void write_slot(int slot, bool of_state)
    {
        const float sum[2] = {sum_l(0), sum_l(1)}; /* all lanes */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = warp * 16 + lane / 4 + 8 * i;
            if (row >= w.n_rows)
                continue;
            int64_t at = sl_attn_slot(a, w, slot) + row;
            if (lane % 4 == 0)
                a.slot_ml[at] =
                    of_state ? make_float2(state_m[i], state_l[i]) : make_float2(m[i], sum[i]);
            float *to = a.slots + at * D + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < PAIRS; n++)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    int j = 4 * k + 2 * i;
                    *reinterpret_cast<float2 *>(to + 16 * n + 8 * k) =
                        of_state ? make_float2(state_at(n, j), state_at(n, j + 1))
                                 : make_float2(o[n][j], o[n][j + 1]);
                }
        }
    }

    __device__ __forceinline__ void write_out()
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = warp * 16 + lane / 4 + 8 * i;
            if (row >= w.n_rows)
                continue;
            float f = sl_attn_inverse(a, state_m[i], state_l[i], sl_attn_head(a, w, row));
            __nv_bfloat16 *to = sl_attn_out_row(a, w, row);
#pragma unroll
            for (int n = 0; n < PAIRS; n++)
#pragma unroll
                for (int k = 0; k < 2; k++)
                    sl_attn_write2(a, to, 16 * n + 8 * k + lane % 4 * 2,
                                   __fmul_rn(state_at(n, 4 * k + 2 * i), f),
                                   __fmul_rn(state_at(n, 4 * k + 2 * i + 1), f));
        }
    }

    __device__ __forceinline__ void end_split(int split)
    {
        if (w.item.from > 0) {
            write_slot(sl_attn_split_slot(w, split), false);
            clear();
            return;
        }
        const float sum[2] = {sum_l(0), sum_l(1)}; /* all lanes */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (!sl_attn_sees_split(a, rows.pos[i], split))
                continue;
            struct sl_attn_join j = sl_attn_join_of(state_m[i], m[i], a.scale2);
            state_m[i] = j.top;
            state_l[i] = sl_attn_joined(j, state_l[i], sum[i]);
#pragma unroll
            for (int n = 0; n < PAIRS; n++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    int at = 4 * (k >> 1) + 2 * i + (k & 1);
                    state_at(n, at) = sl_attn_joined(j, state_at(n, at), o[n][at]);
                }
        }
        clear();
    }
};

template <class KV, int D>
static __device__ __forceinline__ void sl_attn_wide_item(const struct sl_attn_args &a,
                                                         uint8_t *smem)
{
    typedef sl_attn_wide_cfg<KV, D> cfg;
    const struct sl_attn_work &w = *reinterpret_cast<struct sl_attn_work *>(smem + cfg::WORK_AT);
    int tile, tile_to;
    sl_attn_tiles_of(w, &tile, &tile_to);
    sl_attn_ring<KV, D, cfg::THREADS, cfg::SLOTS> ring;
    ring.start(a, w, smem, tile, tile_to);
    sl_attn_wide<KV, D> n(a, w, smem);
    n.load_query(); /* the first barrier is in next_tile */
#pragma unroll 1
    for (; tile < tile_to; tile++) {
        uint32_t p[16];
        bool sees = n.sees(tile);
        const uint8_t *keys = ring.next_tile(a, w);
        if (sees)
            n.scores(keys, tile, p);
        const uint8_t *values = ring.next_tile(a, w);
        if (sees)
            n.values(p, values, tile);
        if (sl_attn_last_of_split(tile, tile_to))
            n.end_split(tile / SL_ATTN_TILES);
    }
    ring.finish();
    if (w.item.from == 0 && w.item.rows_at < 0)
        n.write_out();
    else if (w.item.from == 0)
        n.write_slot(0, true);
    if (w.item.rows_at >= 0)
        sl_attn_arrive<D, cfg::THREADS>(a, w, a.cls[1].step,
                                        reinterpret_cast<int *>(smem + cfg::FLAG_AT));
}

template <class KV, int D>
static __global__ void __launch_bounds__((sl_attn_wide_cfg<KV, D>::THREADS), 1)
    sl_attn_wide_kernel(const struct sl_attn_args a)
{
    SL_SMEM(uint8_t, smem);
    sl_grid_wait();
    typedef sl_attn_wide_cfg<KV, D> cfg;
    sl_attn_for_items(a, 1, cfg::ROWS, reinterpret_cast<int *>(smem + cfg::FLAG_AT),
                      reinterpret_cast<struct sl_attn_work *>(smem + cfg::WORK_AT),
                      [&] { sl_attn_wide_item<KV, D>(a, smem); });
}

/* ---------------------------------------------------------------- launch */

template <class KV, int D>
static inline void sl_attn_run(struct sl_cuda *cu, const struct sl_attn_args *a, int cls,
                               int32_t grid)
{
    typedef sl_attn_narrow_cfg<KV, D> narrow;
    typedef sl_attn_wide_cfg<KV, D> wide;
    dim3 blocks(static_cast<unsigned>(grid));
    if (cls == 0)
        sl_launch(cu, sl_attn_narrow_kernel<KV, D>, blocks, dim3(narrow::THREADS), narrow::BYTES,
                  *a);
    else
        sl_launch(cu, sl_attn_wide_kernel<KV, D>, blocks, dim3(wide::THREADS), wide::BYTES, *a);
}
