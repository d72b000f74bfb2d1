/* SPDX-License-Identifier: MIT
 * The gated delta rule for many tokens of a sequence: prompts. Two kernels. The first prepares
 * chunks side by side, a warp for a chunk of a key head: q and k normed and in BF16, and for each
 * of its heads mix, the inverse and the gates, which go to the operation's scratch. In the second a
 * block has some columns of a head of a sequence, and goes from chunk to chunk: one warp brings
 * what was prepared, and v, into a ring, the others have sixteen columns each of the state in
 * registers.
 *
 * What limits it, of 8,192 tokens, 16 key heads and 32 heads of 128 x 128: q, k, v and out are 403
 * MB, scratch 99 MB written and read once, 147 us at 4.1 TB/s; products of the second kernel 28
 * GFLOP. Chunks follow one another: a warp has 52 products in a chunk, of which ten wait for each
 * other, and a few hundred other instructions, some 600 clk, 512 times: 180 us.
 */
#include "cuda/ptx_fp8.cuh"
#include "cuda/state/delta_chunk.cuh"

#define DELTA_PREPARE_WARPS 4
#define DELTA_PLACES        4  /* of the ring */
#define DELTA_SPANS         32 /* that are prepared together, which bounds the scratch */

/* ------------------------------------------------------------------ scratch */

/* Of a chunk and head: the tail of delta_used; and where pages may want it, g and D. */
struct delta_prepared {
    uint16_t mix[SL_DELTA_CHUNK * SL_DELTA_LD], inverse[SL_DELTA_CHUNK * SL_DELTA_LD];
    float exp_g[SL_DELTA_CHUNK], beta[SL_DELTA_CHUNK], tail[SL_DELTA_CHUNK];
    float g[SL_DELTA_CHUNK];
    float d[SL_DELTA_CHUNK * SL_DELTA_CHUNK];
};

#define DELTA_HEAD_BYTES static_cast<uint32_t>(offsetof(delta_prepared, g))

/* k and q of a chunk and key head, as delta_used has them. */
static __host__ __device__ __forceinline__ uint32_t delta_keys_bytes(int k_tiles)
{
    return static_cast<uint32_t>(2 * 2 * SL_DELTA_CHUNK * (16 * k_tiles + 8));
}

/* Chunks are counted from the step's first token on, and each span may add two: it neither begins
 * nor ends with one. skip: spans prepared before. */
struct delta_scratch {
    uint8_t *keys;         /* [chunks, n_k_heads] of delta_keys_bytes */
    delta_prepared *heads; /* [chunks, n_heads] */
    int32_t skip;
    int32_t each; /* heads that a warp prepares, of the same k and q */
};

static inline int64_t delta_n_chunks(int32_t n)
{
    return n / SL_DELTA_CHUNK + 2 * SL_MIN(n, DELTA_SPANS);
}

/* Of the i-th of those spans. */
static __device__ __forceinline__ int64_t delta_first_chunk(const struct sl_span &s, int32_t i)
{
    return s.first / SL_DELTA_CHUNK + 2 * i;
}

extern "C" size_t sl_cuda_delta_room(int32_t n, int32_t n_heads, int32_t n_k_heads, int32_t k_dim,
                                     bool by_row)
{
    const size_t keys = delta_keys_bytes(delta_k_tiles(k_dim));
    if (by_row)
        return 0;
    return static_cast<size_t>(delta_n_chunks(n)) *
           (keys * static_cast<size_t>(n_k_heads) +
            sizeof(delta_prepared) * static_cast<size_t>(n_heads));
}

/* ------------------------------------------------------------------ the first kernel */

template <int KS> struct delta_stages {
    delta_stage<KS> stage[DELTA_PREPARE_WARPS];
    int32_t room[4];
};

/* A warp copies n_bytes, a multiple of 16. */
static __device__ __forceinline__ void delta_copy(void *to, const void *from, uint32_t n_bytes)
{
    for (uint32_t i = threadIdx.x % 32; i < n_bytes / 16; i += 32)
        static_cast<uint4 *>(to)[i] = static_cast<const uint4 *>(from)[i];
}

/* What depends on the head: a warp makes it in its stage, where k and q are. */
template <int KS>
static __device__ __forceinline__ void prepare_head(const delta_args &a, int head,
                                                    const delta_piece &p, const delta_head &old,
                                                    const delta_pairs &pairs, bool keeps,
                                                    delta_stage<KS> *stage, delta_prepared *to)
{
    delta_recall_d<KS>(p.from, old, stage, static_cast<int>(threadIdx.x % 32), 32);
    sl_cp_async_commit();
    delta_gates<KS>(a, head, p, old, stage);
    sl_cp_async_wait<0>();
    __syncwarp();
    delta_mix<KS>(p, pairs, stage);
    __syncwarp();
    delta_invert<KS>(p, stage);
    __syncwarp();
    delta_copy(to->mix, stage->mix, DELTA_HEAD_BYTES);
    if (keeps)
        delta_copy(to->g, stage->g, sizeof to->g + sizeof to->d);
    __syncwarp();
}

/* A warp: chunk `at` of those that the span is in, heads n .. n + each - 1 of a key head. */
template <int KS>
static __device__ __forceinline__ void prepare(const delta_args &a, const struct sl_span &span,
                                               int32_t at, int k_head, int n, int each,
                                               uint8_t *keys, delta_prepared *heads,
                                               delta_stage<KS> *stage)
{
    const int v_tiles = SL_CEIL_DIV(a.v_dim, 16), lane = static_cast<int>(threadIdx.x % 32);
    const int32_t t = at == 0 ? 0 : SL_DELTA_CHUNK * at - span.pos % SL_DELTA_CHUNK;
    const delta_piece p = delta_piece_at(span, t);
    float *begin = const_cast<float *>(a.pages.begin(span));
    const int first = delta_head_of(a, k_head, 0);
    delta_recall_k<KS>(p.from, delta_head_at<KS>(begin, first, v_tiles), stage, lane, 32);
    sl_cp_async_commit();
    delta_vectors<KS, (KS > 8 ? 2 : 4)>(a, first, p, stage, 0, 1);
    sl_cp_async_wait<0>();
    __syncwarp();
    delta_pairs pairs;
    delta_pair<KS>(*stage, &pairs);
    if (n == 0)
        delta_copy(keys, stage->k, delta_keys_bytes(KS));
#pragma unroll 1
    for (const int end = n + each; n < end; n++) {
        const int head = delta_head_of(a, k_head, n);
        prepare_head<KS>(a, head, p, delta_head_at<KS>(begin, head, v_tiles), pairs,
                         p.to < SL_DELTA_CHUNK || span.n_drafts > 0, stage, heads + head);
    }
}

template <int KS>
static __global__ void __launch_bounds__(32 * DELTA_PREPARE_WARPS, KS > 8 ? 2 : 4)
    delta_prepare_kernel(delta_args a, delta_scratch s)
{
    SL_SMEM(delta_stages<KS>, room);
    const int warp = static_cast<int>(threadIdx.x) / 32, i = static_cast<int>(blockIdx.y);
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int32_t which = sl_wide_span(a.pages, a.few, s.skip + i, room->room);
    if (which < 0)
        return;
    const struct sl_span span = a.pages.spans[which];
    const int32_t n_chunks =
        SL_CEIL_DIV(span.pos % SL_DELTA_CHUNK + span.n, static_cast<int32_t>(SL_DELTA_CHUNK));
    const int32_t step = static_cast<int32_t>(gridDim.x) * DELTA_PREPARE_WARPS;
    const int32_t n_parts = a.n_heads / s.each, per_key = n_parts / a.n_k_heads;
    for (int32_t item = static_cast<int32_t>(blockIdx.x) * DELTA_PREPARE_WARPS + warp;
         item < n_chunks * n_parts; item += step) {
        const int32_t at = item / n_parts, part = item % n_parts, k_head = part / per_key;
        const int64_t chunk = delta_first_chunk(span, i) + at;
        prepare<KS>(a, span, at, k_head, part % per_key * s.each, s.each,
                    s.keys + (chunk * a.n_k_heads + k_head) * delta_keys_bytes(KS),
                    s.heads + chunk * a.n_heads, &room->stage[warp]);
    }
}

/* ------------------------------------------------------------------ the second kernel */

/* C: warps with columns. */
template <int KS, int C> struct delta_ring {
    static constexpr int n_cols = 16 * C, ld_v = n_cols + 4;
    struct place {
        delta_used<KS> used;
        float v[SL_DELTA_CHUNK * ld_v];
    };
    uint64_t full[DELTA_PLACES], empty[DELTA_PLACES];
    int32_t room[4];
    place places[DELTA_PLACES];
};

/* The block's part of a span: columns of a head, from 16 * tile on. */
struct delta_work {
    struct sl_span span;
    const uint8_t *keys;         /* of the span's first chunk */
    const delta_prepared *ready; /* likewise, of the head */
    int head, tile;
};

template <int KS, int C>
static __device__ __forceinline__ void bring(const delta_args &a, const delta_work &w,
                                             delta_ring<KS, C> *ring)
{
    typedef delta_ring<KS, C> ring_of;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int64_t keys_step = static_cast<int64_t>(a.n_k_heads) * delta_keys_bytes(KS);
    const uint8_t *keys = w.keys;
    const delta_prepared *ready = w.ready;
    uint32_t turn = 0;
#pragma unroll 1
    for (int32_t t = 0; t < w.span.n; turn++) {
        const delta_piece p = delta_piece_at(w.span, t);
        const uint32_t at = turn % DELTA_PLACES;
        typename ring_of::place *place = &ring->places[at];
        sl_mbar_wait(&ring->empty[at], (turn / DELTA_PLACES & 1) ^ 1);
        if (lane == 0) {
            sl_mbar_expect_tx(&ring->full[at], delta_keys_bytes(KS) + DELTA_HEAD_BYTES);
            sl_bulk_load(place->used.k, keys, delta_keys_bytes(KS), &ring->full[at]);
            sl_bulk_load(place->used.mix, ready->mix, DELTA_HEAD_BYTES, &ring->full[at]);
        }
        __syncwarp();
        delta_values(a, w.head, p, 16 * w.tile, ring_of::n_cols, lane, 32, place->v, ring_of::ld_v);
        if (a.wide_v)
            sl_cp_async_arrive(&ring->full[at]);
        else
            sl_mbar_arrive(&ring->full[at]);
        keys += keys_step;
        ready += a.n_heads;
        t += p.to - p.from;
    }
    sl_cp_async_commit();
    sl_cp_async_wait<0>();
}

template <int KS, int C>
static __device__ __forceinline__ void compute(const delta_args &a, const delta_work &w,
                                               delta_ring<KS, C> *ring)
{
    typedef delta_ring<KS, C> ring_of;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x % 32);
    const int v_tiles = SL_CEIL_DIV(a.v_dim, 16), tile = w.tile + warp, col = 16 * tile + lane / 4;
    const bool computes = tile < v_tiles;
    const int64_t ld_out = static_cast<int64_t>(a.n_heads) * a.v_dim;
    const float *begin = a.pages.begin(w.span), *lies = begin;
    const delta_prepared *ready = w.ready;
    delta_end end = delta_end_from(a.pages, w.span, 0);
    delta_columns<KS> cols;
    if (computes && begin != nullptr)
        cols.load(delta_head_at<KS>(const_cast<float *>(begin), w.head, v_tiles), tile,
                  w.span.pos % SL_DELTA_CHUNK != 0);
    else
        cols.clear();
    uint32_t turn = 0;
#pragma unroll 1
    for (int32_t t = 0; t < w.span.n; turn++) {
        const delta_piece p = delta_piece_at(w.span, t);
        const uint32_t at = turn % DELTA_PLACES;
        const typename ring_of::place *place = &ring->places[at];
        float *out = a.out + p.row * ld_out + static_cast<int64_t>(w.head) * a.v_dim + col;
        sl_mbar_wait(&ring->full[at], turn / DELTA_PLACES & 1);
        if (computes) {
            delta_asked asked;
            cols.template ask<(KS <= 8), true>(place->used, p, &asked);
            cols.template solve<ring_of::ld_v, true>(
                place->used, p, asked, place->v + 16 * warp + lane / 4, out, ld_out, a.v_dim - col);
        }
        auto keep = [&](float *page, int n) {
            const delta_head to = delta_head_at<KS>(page, w.head, v_tiles);
            const bool whole = n == SL_DELTA_CHUNK;
            if (computes && page != lies)
                cols.store_state(to, tile);
            if (computes && !whole)
                cols.store_tokens(to, tile);
            if (tile == 0 && !whole)
                delta_keep<KS>(place->used, ready->g, ready->d, to, 0, n);
            if (whole)
                lies = page;
        };
        auto advance = [&] {
            lies = nullptr;
            if (computes)
                cols.advance(place->used);
        };
        delta_ends(a.pages, w.span, t, p, &end, keep, advance);
        sl_mbar_give_warp(&ring->empty[at]);
        ready += a.n_heads;
        t += p.to - p.from;
    }
}

template <int KS, int C>
static __global__ void __launch_bounds__(32 * (C + 1), KS > 8 || C > 2 ? 2 : 4)
    delta_prompt_kernel(delta_args a, delta_scratch s)
{
    typedef delta_ring<KS, C> ring_of;
    SL_SMEM(ring_of, ring);
    const int part = static_cast<int>(blockIdx.x) % a.n_parts, i = static_cast<int>(blockIdx.y);
    sl_mbar_init_all(ring->full, DELTA_PLACES, 33); /* lanes, and the bytes */
    sl_mbar_init_all(ring->empty, DELTA_PLACES, C * SL_WARP_ARRIVALS);
    sl_mbar_fence_init();
    __syncthreads();
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int32_t which = sl_wide_span(a.pages, a.few, s.skip + i, ring->room);
    if (which < 0)
        return;
    delta_work w = {a.pages.spans[which], nullptr, nullptr, 0, part * C};
    w.head = static_cast<int>(blockIdx.x) / a.n_parts;
    const int64_t chunk = delta_first_chunk(w.span, i);
    w.keys = s.keys + (chunk * a.n_k_heads + delta_k_head(a, w.head)) * delta_keys_bytes(KS);
    w.ready = s.heads + chunk * a.n_heads + w.head;
    if (threadIdx.x < 32 * C)
        compute<KS, C>(a, w, ring);
    else
        bring<KS, C>(a, w, ring);
}

/* ------------------------------------------------------------------ launches */

template <int KS, int C>
static void launch_columns(struct sl_cuda *cu, delta_args a, const delta_scratch &s, int32_t n_rows)
{
    a.n_parts = SL_CEIL_DIV(SL_CEIL_DIV(a.v_dim, 16), C);
    sl_launch(cu, delta_prompt_kernel<KS, C>,
              dim3(static_cast<unsigned>(a.n_heads * a.n_parts), static_cast<unsigned>(n_rows)),
              dim3(32 * (C + 1)), sizeof(delta_ring<KS, C>), a, s);
}

/* Whether blocks have four warps with columns, which read what was prepared half as often as blocks
 * of two: where there is one and a third of those, or more, for each multiprocessor. */
static bool wide_blocks(const struct sl_cuda *cu, const delta_args &a, int32_t n_rows)
{
    if (cu->delta_cols != 0)
        return cu->delta_cols > 2;
    return 3 * static_cast<int64_t>(n_rows) * a.n_heads * SL_CEIL_DIV(a.v_dim, 64) >=
           4 * static_cast<int64_t>(cu->n_sms);
}

template <int KS>
static void launch(struct sl_cuda *cu, const struct sl_batch *b, const delta_args &a,
                   delta_scratch s)
{
    static_assert(offsetof(delta_used<KS>, mix) == 4 * SL_DELTA_CHUNK * (16 * KS + 8) &&
                      sizeof(delta_used<KS>) ==
                          offsetof(delta_used<KS>, mix) + offsetof(delta_prepared, g),
                  "scratch has the two parts of what columns need");
    const int32_t most = sl_wide_most(b, a.few);
    s.heads = reinterpret_cast<delta_prepared *>(s.keys + delta_n_chunks(b->n_tokens) *
                                                              a.n_k_heads * delta_keys_bytes(KS));
    /* While a head for each warp leaves warps without work, no warp has two. */
    const int64_t n_chunks = b->n_tokens / SL_DELTA_CHUNK + 2;
    s.each = n_chunks * a.n_heads <= 4 * DELTA_PREPARE_WARPS * static_cast<int64_t>(cu->n_sms)
                 ? 1
                 : a.n_heads / a.n_k_heads;
    for (s.skip = 0; s.skip < most; s.skip += DELTA_SPANS) {
        const int32_t n_rows = SL_MIN(most - s.skip, DELTA_SPANS);
        const int64_t n_blocks =
            SL_MIN(SL_CEIL_DIV(n_chunks * (a.n_heads / s.each), int64_t{DELTA_PREPARE_WARPS}),
                   static_cast<int64_t>(SL_CEIL_DIV((KS > 8 ? 2 : 4) * cu->n_sms, n_rows)));
        sl_launch(cu, delta_prepare_kernel<KS>,
                  dim3(static_cast<unsigned>(n_blocks), static_cast<unsigned>(n_rows)),
                  dim3(32 * DELTA_PREPARE_WARPS), sizeof(delta_stages<KS>), a, s);
        if (KS <= 8 && wide_blocks(cu, a, n_rows))
            launch_columns<KS, KS <= 8 ? 4 : 2>(cu, a, s, n_rows);
        else if (cu->delta_cols >= 0)
            launch_columns<KS, 2>(cu, a, s, n_rows);
    }
}

void sl_cuda_delta_prompt(struct sl_cuda *cu, const struct sl_batch *b, const delta_args *a,
                          void *scratch)
{
    const delta_scratch s = {static_cast<uint8_t *>(scratch), nullptr, 0, 1};
    const int ks = delta_k_tiles(a->k_dim);
    SL_ASSERT(scratch != nullptr && sl_aligned16(scratch));
    (ks <= 1   ? launch<1>
     : ks <= 2 ? launch<2>
     : ks <= 4 ? launch<4>
     : ks <= 8 ? launch<8>
               : launch<16>)(cu, b, *a, s);
}
