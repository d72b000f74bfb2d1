/* SPDX-License-Identifier: MIT
 * attention_wide.cuh - paged attention for tiles of 128 rows (64 for D = 256): chunks of prompts. A
 * warp has 16 rows, all keys and all dimensions. Bound by shared memory and the mma.sync rate.
 */
#ifndef SL_CUDA_ATTENTION_WIDE_CUH
#define SL_CUDA_ATTENTION_WIDE_CUH

#include "cuda/attention_tile.cuh"

/* ---------------------------------------------------------------- sizes */

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

/* ---------------------------------------------------------------- loads */

/* Tiles of keys and values, in turn, through SLOTS slots of shared memory: copy q is the keys
 * (q even) or the values of tile first + q / 2. SLOTS - 1 copies are under way. */
template <class KV, int D, int THREADS, int SLOTS> struct sl_attn_ring {
    static constexpr int SLOT_BYTES = SL_ATTN_TILE * KV::smem_row(D);
    uint8_t *smem;
    int load_slot, use_slot;
    int left; /* copies to begin */
    int tile; /* of the next copy */
    /* Lanes 0..3, of 16 positions each: where they lie in a plane, and the page and the place in it
     * of those of the tile after it. */
    unsigned long long at;
    int next_page, next_sub;

    /* Read a tile ahead: the table is in memory, and its entry is needed for the address. */
    __device__ __forceinline__ void find_next(const struct sl_attn_args &a,
                                              const struct sl_attn_work &w, int next)
    {
        int pos = next * SL_ATTN_TILE + (static_cast<int>(threadIdx.x) & 31) * SL_KV_TILE;
        bool wanted = (threadIdx.x & 31) < SL_ATTN_TILE / SL_KV_TILE && pos < w.key_hi &&
                      pos + SL_KV_TILE > w.key_lo;
        int idx = pos / a.block_size;
        next_page = wanted ? a.tables[w.item.table + idx] : 0;
        next_sub = (pos - idx * a.block_size) / SL_KV_TILE;
    }

    __device__ __forceinline__ void copy_tile(const struct sl_attn_work &w, const uint8_t *plane)
    {
        constexpr int CHUNKS = KV::row_bytes(D) / 16; /* of a row */
        constexpr int ROWS = THREADS / CHUNKS;        /* at a time */
        const int thread = static_cast<int>(threadIdx.x);
        uint8_t *to = smem + load_slot * SLOT_BYTES;
        if constexpr (THREADS % CHUNKS == 0 && ROWS <= SL_ATTN_TILE) {
            /* a thread's chunks lie below each other, so that offsets are constants */
            int row = thread / CHUNKS, col = thread % CHUNKS * 16;
#pragma unroll
            for (int i = 0; i < SL_ATTN_TILE; i += ROWS)
                copy_chunk(w, plane, to, row + i, ROWS > 16 ? (row + i) / 16 : i / 16,
                           ROWS > 16 ? row % 16 : row + i % 16, col);
        } else {
#pragma unroll
            for (int i = 0; i < SL_ATTN_TILE * CHUNKS; i += THREADS) {
                int c = i + thread, row = c / CHUNKS;
                if (SL_ATTN_TILE * CHUNKS % THREADS != 0 && c >= SL_ATTN_TILE * CHUNKS)
                    break; /* whole warps */
                copy_chunk(w, plane, to, row, row / 16, row % 16, c % CHUNKS * 16);
            }
        }
    }

    /* 16 bytes at byte col of a row of the tile: row row16 of the 16 positions sub. */
    __device__ __forceinline__ void copy_chunk(const struct sl_attn_work &w, const uint8_t *plane,
                                               uint8_t *to, int row, int sub, int row16, int col)
    {
        int key = tile * SL_ATTN_TILE + row;
        unsigned long long from = __shfl_sync(0xFFFFFFFFu, at, sub);
        from += static_cast<unsigned>(row16 * KV::row_bytes(D) + col);
        /* keys nobody sees are zeros: what lies there may be no number at all */
        bool seen = key >= w.key_lo && key < w.key_hi;
        sl_cp_async16(to + row * KV::smem_row(D) + col, plane + (seen ? from : 0), seen);
    }

    __device__ __forceinline__ void load(const struct sl_attn_args &a, const struct sl_attn_work &w)
    {
        if (left > 0) {
            bool keys = left % 2 == 0;
            if (keys) {
                int sub = w.item.kv * (a.block_size / SL_KV_TILE) + next_sub;
                at = static_cast<unsigned>(next_page) *
                         static_cast<unsigned long long>(a.page_bytes) +
                     static_cast<unsigned>(sub) *
                         static_cast<unsigned long long>(SL_KV_TILE * KV::row_bytes(D));
                if (left > 2)
                    find_next(a, w, tile + 1);
            }
            copy_tile(w, keys ? a.keys : a.values);
            tile += keys ? 0 : 1;
        }
        left--;
        load_slot = load_slot + 1 == SLOTS ? 0 : load_slot + 1;
        sl_cp_async_commit();
    }

    __device__ __forceinline__ void start(const struct sl_attn_args &a,
                                          const struct sl_attn_work &w, uint8_t *slots,
                                          int tile_from, int tile_to)
    {
        smem = slots;
        load_slot = use_slot = next_page = next_sub = 0;
        at = 0;
        tile = tile_from;
        left = 2 * max(tile_to - tile_from, 0);
        if (left > 0)
            find_next(a, w, tile);
#pragma unroll
        for (int i = 0; i < SLOTS - 1; i++)
            load(a, w);
    }

    /* The next copy, there for all threads; its predecessor's slot is loaded anew. Everybody is
     * done with that one, as everybody is past the barrier. */
    __device__ __forceinline__ const uint8_t *next_tile(const struct sl_attn_args &a,
                                                        const struct sl_attn_work &w)
    {
        sl_cp_async_wait<SLOTS - 2>();
        __syncthreads();
        load(a, w);
        const uint8_t *at = smem + use_slot * SLOT_BYTES;
        use_slot = use_slot + 1 == SLOTS ? 0 : use_slot + 1;
        return at;
    }

    __device__ __forceinline__ void finish()
    {
        sl_cp_async_wait<0>();
        __syncthreads();
    }
};

/* Runs work() for all items of a class, each described in w; the next one is taken from a counter
 * by whoever is free. It is fetched early and read late: nobody waits for it. */
template <class Work>
static __device__ __forceinline__ void sl_attn_for_items(const struct sl_attn_args &a, int *flag,
                                                         struct sl_attn_work *w, Work work)
{
    struct sl_attn_class *c = a.cls;
    const int n = c->n_items * a.n_kv_heads;
    int at = static_cast<int>(blockIdx.x);
    while (at < n) {
        uint32_t taken = 0;
        if (threadIdx.x == 0)
            taken = atomicAdd(&c->taken, 1u);
        if (threadIdx.x < 32)
            sl_attn_fetch(a, at, n, w, threadIdx.x < 16);
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
    *from = max(sl_attn_split_at(w.item.from), w.key_lo) / SL_ATTN_TILE;
    *to = (min(sl_attn_split_at(w.item.to), w.key_hi) + SL_ATTN_TILE - 1) / SL_ATTN_TILE;
}

static __device__ __forceinline__ bool sl_attn_last_of_split(int tile, int tile_to)
{
    int end = (tile + 1) * SL_ATTN_TILE;
    return tile + 1 == tile_to || sl_attn_split_at(sl_attn_split_of(end)) == end;
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
    float o[PAIRS][8], m[2], l[2];
    float state[cfg::STATE_IN_SMEM ? 1 : PAIRS][8], state_m[2], state_l[2];

    __device__ __forceinline__ sl_attn_wide(const struct sl_attn_args &args,
                                            const struct sl_attn_work &work, uint8_t *base)
        : a(args), w(work), smem(base)
    {
        lane = static_cast<int>(threadIdx.x) & 31;
        warp = static_cast<int>(threadIdx.x) >> 5;
        rows = sl_attn_rows_of(a, w, warp * 16 + lane / 4);
        key_lo = sl_attn_seen_from(a, w.item.pos + sl_attn_token(a, w, warp * 16));
        key_hi =
            warp * 16 < w.item.n_rows ? w.item.pos + sl_attn_token(a, w, warp * 16 + 15) + 1 : 0;
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
            l[i] = 0.0f;
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
                sl_attn_query2(sl_attn_query_row(a, w, row), d, a.head_dim);
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
        sl_attn_exp(a.scale2, s, base, alpha, p, l);
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                o[i][j] = __fmul_rn(o[i][j], alpha[j >> 1 & 1]);
    }

    __device__ __forceinline__ void values(const uint32_t p[16], const uint8_t *tile_at, int tile)
    {
        bool differ = w.all_hi != w.key_hi;
        if (differ && sl_attn_masked(w, tile) && sl_attn_unclean<KV, D, SL_ATTN_TILE>(tile_at))
            sl_attn_values_careful<KV, D, SL_ATTN_TILE>(a, rows, o, p, tile_at,
                                                        tile * SL_ATTN_TILE);
        else
            sl_attn_values<KV, D, SL_ATTN_TILE>(o, p, tile_at);
    }

    __device__ __forceinline__ void write_slot(int slot, bool of_state)
    {
        const float sum[2] = {sl_attn_row_sum(l[0]), sl_attn_row_sum(l[1])}; /* all lanes */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = warp * 16 + lane / 4 + 8 * i;
            if (row >= w.item.n_rows)
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
            if (row >= w.item.n_rows)
                continue;
            struct sl_attn_out out = sl_attn_out_of(a, w, row);
            float f = sl_attn_inverse(a, state_m[i], state_l[i], out.head);
#pragma unroll
            for (int n = 0; n < PAIRS; n++)
#pragma unroll
                for (int k = 0; k < 2; k++)
                    sl_attn_write2(a, out.to, 16 * n + 8 * k + lane % 4 * 2,
                                   state_at(n, 4 * k + 2 * i), state_at(n, 4 * k + 2 * i + 1), f);
        }
    }

    __device__ __forceinline__ void end_split(int split)
    {
        if (w.item.from > 0) {
            write_slot(sl_attn_split_slot(w, split), false);
            clear();
            return;
        }
        const float sum[2] = {sl_attn_row_sum(l[0]), sl_attn_row_sum(l[1])}; /* all lanes */
#pragma unroll
        for (int i = 0; i < 2; i++) {
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
            n.end_split(sl_attn_split_of(tile * SL_ATTN_TILE));
    }
    ring.finish();
    if (w.item.from == 0 && w.item.rows_at < 0)
        n.write_out();
    else if (w.item.from == 0)
        n.write_slot(0, true);
    if (w.item.rows_at < 0)
        return;
    __threadfence();
    __syncthreads();
    sl_attn_arrive<D, cfg::THREADS>(a, w, reinterpret_cast<int *>(smem + cfg::FLAG_AT));
}

template <class KV, int D>
static __global__ void __launch_bounds__((sl_attn_wide_cfg<KV, D>::THREADS), 1)
    sl_attn_wide_kernel(const __grid_constant__ struct sl_attn_args a)
{
    SL_SMEM(uint8_t, smem);
    sl_grid_wait();
    typedef sl_attn_wide_cfg<KV, D> cfg;
    sl_attn_for_items(a, reinterpret_cast<int *>(smem + cfg::FLAG_AT),
                      reinterpret_cast<struct sl_attn_work *>(smem + cfg::WORK_AT),
                      [&] { sl_attn_wide_item<KV, D>(a, smem); });
}

#endif
