/* SPDX-License-Identifier: MIT
 * attention_tile.cuh - a block's view of the work: which rows and keys an item has, the loads of
 * key and value tiles, the masks and the exponentials, and what happens to partial results.
 */
#ifndef SL_CUDA_ATTENTION_TILE_CUH
#define SL_CUDA_ATTENTION_TILE_CUH

#include "cuda/attention.cuh"

#define SL_ATTN_INF __int_as_float(0x7F800000)

/* ---------------------------------------------------------------- rows and keys */

/* In shared memory: the same for all threads, and registers are short. */
struct sl_attn_work {
    struct sl_attn_item item;
    const int32_t *pages;
    int kv;             /* key head */
    int token, pos;     /* of the span's first */
    int row0, n_rows;   /* of the span's rows, those of the tile */
    int key_lo, key_hi; /* keys some row sees */
    int all_lo, all_hi; /* keys every row sees; may be empty */
};

/* Position of a row of the tile. Rows behind the end count as the last one: they are computed on
 * and never written. */
static __device__ __forceinline__ int sl_attn_token(const struct sl_attn_args &a,
                                                    const struct sl_attn_work &w, int row)
{
    return (w.row0 + min(row, w.n_rows - 1)) / a.group;
}

static __device__ __forceinline__ int sl_attn_seen_from(const struct sl_attn_args &a, int pos)
{
    return a.window > 0 ? max(pos - a.window + 1, 0) : 0;
}

static __device__ __forceinline__ void sl_attn_work_of(const struct sl_attn_args &a,
                                                       const struct sl_attn_item &item, int kv,
                                                       int tile_rows, struct sl_attn_work &w)
{
    const struct sl_span span = a.spans[item.span];
    w.item = item;
    w.pages = a.tables + span.table_idx;
    w.kv = kv;
    w.token = span.first;
    w.pos = span.pos;
    w.row0 = item.tile * tile_rows;
    w.n_rows = min(tile_rows, span.n * a.group - w.row0);
    int first = span.pos + w.row0 / a.group, last = span.pos + (w.row0 + w.n_rows - 1) / a.group;
    w.key_lo = sl_attn_seen_from(a, first);
    w.key_hi = last + 1;
    w.all_lo = sl_attn_seen_from(a, last);
    w.all_hi = first + 1;
}

/* First row of slot `slot` of the tile: the states come first, then the splits after the first
 * part. */
static __device__ __forceinline__ int64_t sl_attn_slot(const struct sl_attn_args &a,
                                                       const struct sl_attn_work &w, int slot)
{
    int64_t at = w.item.rows_at + static_cast<int64_t>(slot) * w.n_rows;
    return at * a.n_kv_heads + w.kv * w.n_rows;
}

static __device__ __forceinline__ int sl_attn_split_slot(const struct sl_attn_work &w, int split)
{
    return SL_ATTN_STATE_SLOTS + split - w.item.first;
}

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
        next_page = wanted ? w.pages[idx] : 0;
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
                int sub = w.kv * (a.block_size / SL_KV_TILE) + next_sub;
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

/* ---------------------------------------------------------------- a warp's scores */

/* What a thread knows of its two rows, lane / 4 and lane / 4 + 8 of its warp's 16. */
struct sl_attn_rows {
    int pos[2];
};

static __device__ __forceinline__ struct sl_attn_rows sl_attn_rows_of(const struct sl_attn_args &a,
                                                                      const struct sl_attn_work &w,
                                                                      int row)
{
    struct sl_attn_rows r;
#pragma unroll
    for (int i = 0; i < 2; i++)
        r.pos[i] = w.pos + sl_attn_token(a, w, row + 8 * i);
    return r;
}

static __device__ __forceinline__ bool sl_attn_sees_split(const struct sl_attn_args &a, int pos,
                                                          int split)
{
    return pos >= split * SL_ATTN_SPLIT && sl_attn_seen_from(a, pos) < (split + 1) * SL_ATTN_SPLIT;
}

/* Soft cap, by tanh(x) = (1 - e) / (1 + e), e = exp(-2 |x|). The difference loses what is small
 * against 1, and a score is no better. Newton's steps give 1 / (1 + e) to the last bits, since the
 * line is within 5 % of it; a division costs the main loop registers for its rare cases. */
static __device__ __forceinline__ float sl_attn_cap(const struct sl_attn_args &a, float s)
{
    float x = __fmul_rn(s, a.cap_in);
    float e = sl_ex2_approx(__fmul_rn(fabsf(x), -0x1.715476p1f));
    float d = __fadd_rn(1.0f, e), r = __fmaf_rn(d, -0.5f, 1.4571068f);
#pragma unroll
    for (int i = 0; i < 3; i++)
        r = __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
    return copysignf(__fmul_rn(a.cap, __fmul_rn(__fadd_rn(1.0f, -e), r)), x);
}

/* N fragments of eight keys each, from `key` on. */
template <int N>
static __device__ __forceinline__ void sl_attn_cap_and_mask(const struct sl_attn_args &a,
                                                            const struct sl_attn_rows &r,
                                                            float s[N][4], int key, bool masked)
{
    if (a.cap > 0.0f) {
#pragma unroll
        for (int f = 0; f < N; f++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[f][i] = sl_attn_cap(a, s[f][i]);
    }
    if (!masked)
        return;
    key += (static_cast<int>(threadIdx.x) & 3) * 2;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int hi = r.pos[i >> 1], lo = sl_attn_seen_from(a, hi);
#pragma unroll
        for (int f = 0; f < N; f++) {
            int at = key + 8 * f + (i & 1);
            s[f][i] = at >= lo && at <= hi ? s[f][i] : -SL_ATTN_INF;
        }
    }
}

/* The largest of a row's scores in the warp, to all four threads that share the row. */
template <int N>
static __device__ __forceinline__ void sl_attn_row_max(const float s[N][4], float top[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float t = fmaxf(s[0][2 * i], s[0][2 * i + 1]);
#pragma unroll
        for (int f = 1; f < N; f++)
            t = fmaxf(t, fmaxf(s[f][2 * i], s[f][2 * i + 1]));
        t = fmaxf(t, __shfl_xor_sync(0xFFFFFFFFu, t, 1));
        top[i] = fmaxf(t, __shfl_xor_sync(0xFFFFFFFFu, t, 2));
    }
}

/* The running maximum m takes in top. alpha: what was there before is multiplied with it. base:
 * m' c, with 0 for a row that has seen nothing yet, where m' is -inf. */
static __device__ __forceinline__ void sl_attn_raise(float c, float m[2], const float top[2],
                                                     float alpha[2], float base[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float most = fmaxf(m[i], top[i]);
        float safe = most == -SL_ATTN_INF ? 0.0f : most;
        alpha[i] = sl_ex2_approx(__fmul_rn(__fadd_rn(m[i], -safe), c));
        base[i] = __fmul_rn(safe, c);
        m[i] = most;
    }
}

/* Scores to probabilities in BF16, as A operands: p[2 f + i] is fragment f, row i; l as in
 * attention.cuh, two fragments for each of its sums. */
template <int N>
static __device__ __forceinline__ void sl_attn_exp(float c, const float s[N][4],
                                                   const float base[2], const float alpha[2],
                                                   uint32_t p[2 * N], float l[N / 2][2])
{
#pragma unroll
    for (int w = 0; w < N / 2; w++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float e[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                e[j] = sl_ex2_approx(__fmaf_rn(s[2 * w + j / 2][2 * i + j % 2], c, -base[i]));
            l[w][i] = __fmaf_rn(l[w][i], alpha[i],
                                __fadd_rn(__fadd_rn(e[0], e[1]), __fadd_rn(e[2], e[3])));
            p[4 * w + i] = sl_pack_bf16(e[0], e[1]);
            p[4 * w + 2 + i] = sl_pack_bf16(e[2], e[3]);
        }
}

/* ---------------------------------------------------------------- a warp's values */

/* o[i] (16 dimensions each: pair + i * STRIDE) += p [16 rows, 64 keys] times the tile. */
template <class KV, int D, int N, int STRIDE>
static __device__ __forceinline__ void sl_attn_values(float o[N][8], const uint32_t p[16],
                                                      const uint8_t *tile, int pair)
{
#pragma unroll
    for (int k = 0; k < SL_ATTN_TILE / 16; k++)
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (N * STRIDE > D / 16 && pair + i * STRIDE >= D / 16)
                continue;
            uint32_t b[4];
            KV::template value_frags<D>(b, tile, k * 16, (pair + i * STRIDE) * 16);
            sl_mma_bf16(o[i], p + 4 * k, b);
            sl_mma_bf16(o[i] + 4, p + 4 * k, b + 2);
        }
}

/* Does the tile hold something that p = 0 does not silence? */
template <class KV, int D, int N, int STRIDE>
static __device__ __forceinline__ bool sl_attn_unclean(const uint8_t *tile, int pair)
{
    bool found = false;
#pragma unroll 1
    for (int k = 0; k < SL_ATTN_TILE; k += 16)
#pragma unroll 1
        for (int i = pair; i < D / 16; i += STRIDE) {
            uint32_t b[4];
            KV::template value_frags<D>(b, tile, k, i * 16);
            found = found || sl_not_finite2(b[0]) || sl_not_finite2(b[1]) || sl_not_finite2(b[2]) ||
                    sl_not_finite2(b[3]);
        }
    return __any_sync(0xFFFFFFFFu, found) != 0;
}

/* The pair of keys key, key + 1, with zero for what is outside [lo, hi). */
static __device__ __forceinline__ uint32_t sl_attn_clean(uint32_t pair, int key, int lo, int hi)
{
    return (key >= lo && key < hi ? pair & 0xFFFFu : 0) |
           (key + 1 >= lo && key + 1 < hi ? pair & 0xFFFF0000u : 0);
}

/* The same for a tile with a NaN or an infinity among its values, of which the warp's tokens do not
 * all see everything: token by token with what it does not see as zeros, which is what a lone row
 * gets from the copy. Rare, so it is slow and saves registers: p waits in local memory. first: key
 * of the tile. */
template <class KV, int D, int N, int STRIDE>
static __device__ __forceinline__ void sl_attn_values_careful(const struct sl_attn_args &a,
                                                              const struct sl_attn_rows &r,
                                                              float o[N][8], const uint32_t p[16],
                                                              const uint8_t *tile, int pair,
                                                              int first)
{
    uint32_t parts[16];
    int key = first + (static_cast<int>(threadIdx.x) & 3) * 2;
    int from = __shfl_sync(0xFFFFFFFFu, r.pos[0], 0);
    int to = __shfl_sync(0xFFFFFFFFu, r.pos[1], 31);
#pragma unroll
    for (int i = 0; i < 16; i++)
        parts[i] = p[i];
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (N * STRIDE > D / 16 && pair + i * STRIDE >= D / 16)
            continue;
#pragma unroll 1
        for (int pos = from; pos <= to; pos++) {
            int hi = pos + 1, lo = sl_attn_seen_from(a, pos);
            float c[8];
#pragma unroll
            for (int j = 0; j < 8; j++)
                c[j] = o[i][j];
#pragma unroll 1
            for (int k = 0; k < SL_ATTN_TILE / 16; k++) {
                uint32_t b[4];
                KV::template value_frags<D>(b, tile, k * 16, (pair + i * STRIDE) * 16);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    b[j] = sl_attn_clean(b[j], key + k * 16 + j % 2 * 8, lo, hi);
                sl_mma_bf16(c, parts + 4 * k, b);
                sl_mma_bf16(c + 4, parts + 4 * k, b + 2);
            }
#pragma unroll
            for (int j = 0; j < 8; j++)
                o[i][j] = r.pos[j >> 1 & 1] == pos ? c[j] : o[i][j];
        }
    }
}

/* ---------------------------------------------------------------- results */

static __device__ __forceinline__ int sl_attn_head(const struct sl_attn_args &a,
                                                   const struct sl_attn_work &w, int row)
{
    return w.kv * a.group + (w.row0 + row) % a.group;
}

static __device__ __forceinline__ __nv_bfloat16 *sl_attn_out_row(const struct sl_attn_args &a,
                                                                 const struct sl_attn_work &w,
                                                                 int row)
{
    return a.out + static_cast<int64_t>(w.token + (w.row0 + row) / a.group) * a.ld_out +
           static_cast<int64_t>(sl_attn_head(a, w, row)) * a.head_dim;
}

/* Two neighbouring dimensions of it. */
static __device__ __forceinline__ void sl_attn_write2(const struct sl_attn_args &a,
                                                      __nv_bfloat16 *out_row, int d, float x,
                                                      float y)
{
    if (d < a.head_dim)
        *reinterpret_cast<uint32_t *>(out_row + d) = sl_pack_bf16(x, y);
}

/* Splits from .. to - 1, counted from the end of the first part, onto the state in slot g % 2, to
 * the other state slot or to the output. */
template <int D, int THREADS>
static __device__ void sl_attn_fold(const struct sl_attn_args &a, const struct sl_attn_work &w,
                                    int g, bool last)
{
    const int64_t in = sl_attn_slot(a, w, g % 2), out = sl_attn_slot(a, w, (g + 1) % 2);
    const int64_t slot_rows = static_cast<int64_t>(w.n_rows) * a.n_kv_heads;
#pragma unroll 1
    for (int u = static_cast<int>(threadIdx.x); u < w.n_rows * (D / 4); u += THREADS) {
        int row = u / (D / 4), d = u % (D / 4) * 4;
        int hi = w.pos + sl_attn_token(a, w, row) + 1, lo = sl_attn_seen_from(a, hi - 1);
        int first = w.item.first + g * SL_ATTN_FOLD;
        int from = max(first, lo / SL_ATTN_SPLIT);
        int to = min(min(first + SL_ATTN_FOLD, w.item.n_splits), (hi - 1) / SL_ATTN_SPLIT + 1);
        float2 state = a.slot_ml[in + row];
        float4 sum = *reinterpret_cast<const float4 *>(a.slots + (in + row) * D + d);
        int64_t at = sl_attn_slot(a, w, sl_attn_split_slot(w, from)) + row;
#pragma unroll 4
        for (int split = from; split < to; split++, at += slot_rows) {
            float2 ml = a.slot_ml[at];
            float4 o = *reinterpret_cast<const float4 *>(a.slots + at * D + d);
            struct sl_attn_join j = sl_attn_join_of(state.x, ml.x, a.scale2);
            state.x = j.top;
            state.y = sl_attn_joined(j, state.y, ml.y);
            sum.x = sl_attn_joined(j, sum.x, o.x);
            sum.y = sl_attn_joined(j, sum.y, o.y);
            sum.z = sl_attn_joined(j, sum.z, o.z);
            sum.w = sl_attn_joined(j, sum.w, o.w);
        }
        if (last) {
            __nv_bfloat16 *to_row = sl_attn_out_row(a, w, row);
            float f = sl_attn_inverse(a, state.x, state.y, sl_attn_head(a, w, row));
            sl_attn_write2(a, to_row, d, __fmul_rn(sum.x, f), __fmul_rn(sum.y, f));
            sl_attn_write2(a, to_row, d + 2, __fmul_rn(sum.z, f), __fmul_rn(sum.w, f));
        } else {
            *reinterpret_cast<float4 *>(a.slots + (out + row) * D + d) = sum;
            if (d == 0)
                a.slot_ml[out + row] = state;
        }
    }
}

/* The block's part is in its slots. The last of a group of parts and of the state before them
 * joins them, and passes the state on: groups are joined while later ones are computed, so that of
 * a long sequence only the last group remains to be joined in the end. No block waits for another.
 * flag: a word of shared memory. */
template <int D, int THREADS>
static __device__ void sl_attn_arrive(const struct sl_attn_args &a, const struct sl_attn_work &w,
                                      int step, int *flag)
{
    int rest = w.item.n_splits - w.item.first;
    int g = w.item.from == 0 ? 0 : (w.item.from - w.item.first) / SL_ATTN_FOLD;
#pragma unroll 1
    for (;; g++) {
        int in_group = min(rest - g * SL_ATTN_FOLD, SL_ATTN_FOLD);
        bool last = (g + 1) * SL_ATTN_FOLD >= rest;
        uint32_t *counter =
            a.counters + static_cast<int64_t>(w.item.groups_at + g) * a.n_kv_heads + w.kv;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t wanted = static_cast<uint32_t>((in_group + step - 1) / step); /* and a state */
            *flag = atomicAdd(counter, 1u) == wanted;
            if (*flag)
                *counter = 0; /* for the next layer */
        }
        __syncthreads();
        bool mine = *flag != 0;
        __syncthreads();
        if (!mine)
            return;
        __threadfence();
        sl_attn_fold<D, THREADS>(a, w, g, last);
        if (last)
            return;
    }
}

#endif
