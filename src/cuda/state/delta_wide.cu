/* SPDX-License-Identifier: MIT
 * The gated delta rule for many tokens of a sequence: prompts. Four warps of a block have sixteen
 * columns each of a head's state in registers, and go from chunk to chunk. Eight others prepare the
 * chunks, each one of eight, so that a chunk may take one of them eight times as long.
 *
 * Of a chunk a warp with columns has 52 products, of which the first eight of k S and of q S come
 * one behind the other in four chains, then D R, X mix, and what the next chunk waits for: the
 * update's sixteen, which do not depend on each other. Measured on an H200 (bench_ops --only
 * state): 2 us a chunk, of which a profile gives a quarter to waiting for the preparers and a
 * quarter to instructions that are not in the cache: the code of both kinds of warps is long and
 * runs side by side. Fetching a preparer's next tokens into the L2 cache, or four vectors at once
 * in place of two, made it slower (1.5 to 2.1 ms for 8,192 tokens in place of 1.0).
 */
#include "cuda/state/delta_chunk.cuh"

#define DELTA_PREPARERS(KS) ((KS) > 8 ? 6 : 8)
#define DELTA_COLUMNS(KS)   ((KS) > 8 ? 2 : 4) /* warps with columns */

template <int KS> struct delta_ring {
    static constexpr int n_cols = 16 * DELTA_COLUMNS(KS), ld_v = n_cols + 4;
    struct place {
        delta_stage<KS> stage;
        float v[SL_DELTA_CHUNK * ld_v];
    };
    uint64_t full[DELTA_PREPARERS(KS)], empty[DELTA_PREPARERS(KS)];
    int32_t room[4];
    place places[DELTA_PREPARERS(KS)];
};

/* A head of a span, columns from 16 * tile on. */
struct delta_work {
    struct sl_span span;
    int head, tile;
    bool keeps; /* tokens in pages */
};

/* A preparer brings every eighth chunk; `turn` counts the block's chunks. */
template <int KS>
static __device__ __forceinline__ void bring(const delta_args &a, const delta_work &w,
                                             delta_ring<KS> *ring, uint32_t *turn)
{
    const int warp = static_cast<int>(threadIdx.x) / 32 - DELTA_COLUMNS(KS);
    const int lane = static_cast<int>(threadIdx.x % 32), v_tiles = SL_CEIL_DIV(a.v_dim, 16);
    const bool starts_inside = w.span.pos % SL_DELTA_CHUNK != 0;
    const delta_head old =
        delta_head_at<KS>(const_cast<float *>(a.pages.begin(w.span)), w.head, v_tiles);
    delta_end end = delta_end_from(a.pages, w.span, 0);
    typename delta_ring<KS>::place *place = &ring->places[warp];
    for (int32_t t = 0; t < w.span.n; ++*turn) {
        const delta_piece p = delta_piece_at(w.span, t);
        const bool mine = static_cast<int>(*turn % DELTA_PREPARERS(KS)) == warp;
        if (mine) {
            sl_mbar_wait(&ring->empty[warp], (*turn / DELTA_PREPARERS(KS) & 1) ^ 1);
            delta_values(a, w.head, p, 16 * w.tile, delta_ring<KS>::n_cols, lane, 32, place->v,
                         delta_ring<KS>::ld_v);
            if (t == 0) {
                delta_recall_k<KS>(p.from, old, &place->stage, lane, 32);
                delta_recall_d<KS>(p.from, old, &place->stage, lane, 32);
            }
            sl_cp_async_commit();
            delta_gates<KS>(a, w.head, p, old, &place->stage);
            delta_vectors<KS, (KS > 8 ? 1 : 2)>(a, w.head, p, &place->stage, 0, 1);
            sl_cp_async_wait<0>();
            __syncwarp();
            delta_pairs pairs;
            delta_pair<KS>(place->stage, &pairs);
            delta_mix<KS>(p, pairs, &place->stage);
            __syncwarp();
            delta_invert<KS>(p, &place->stage);
            __syncwarp();
        }
        /* Where a page is changed in place: nobody writes its tokens before they have been read. */
        if (t == 0 && starts_inside)
            sl_bar_sync(1, 32 * DELTA_PREPARERS(KS));
        auto keep = [&](float *page, int n) {
            if (mine && w.keeps && n < SL_DELTA_CHUNK)
                delta_keep<KS>(place->stage, place->stage.g, place->stage.d,
                               delta_head_at<KS>(page, w.head, v_tiles), 0, n);
        };
        delta_ends(a.pages, w.span, t, p, &end, keep, [] {});
        if (mine)
            sl_mbar_arrive_warp(&ring->full[warp]);
        t += p.to - p.from;
    }
}

template <int KS>
static __device__ __forceinline__ void compute(const delta_args &a, const delta_work &w,
                                               delta_ring<KS> *ring, uint32_t *turn)
{
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x % 32);
    const int v_tiles = SL_CEIL_DIV(a.v_dim, 16), tile = w.tile + warp, col = 16 * tile + lane / 4;
    const bool computes = tile < v_tiles;
    const int64_t ld_out = static_cast<int64_t>(a.n_heads) * a.v_dim;
    const float *begin = a.pages.begin(w.span), *lies = begin;
    delta_end end = delta_end_from(a.pages, w.span, 0);
    delta_columns<KS> cols;
    if (computes && begin != nullptr)
        cols.load(delta_head_at<KS>(const_cast<float *>(begin), w.head, v_tiles), tile,
                  w.span.pos % SL_DELTA_CHUNK != 0);
    else
        cols.clear();
#pragma unroll 1
    for (int32_t t = 0; t < w.span.n; ++*turn) {
        const delta_piece p = delta_piece_at(w.span, t);
        const uint32_t at = *turn % DELTA_PREPARERS(KS);
        const typename delta_ring<KS>::place *place = &ring->places[at];
        float *out = a.out + p.row * ld_out + static_cast<int64_t>(w.head) * a.v_dim + col;
        sl_mbar_wait(&ring->full[at], *turn / DELTA_PREPARERS(KS) & 1);
        delta_asked asked;
        if (computes) {
            cols.template ask<(KS <= 8), false>(place->stage, p, &asked);
            cols.template solve<delta_ring<KS>::ld_v, false>(place->stage, p, asked,
                                                             place->v + 16 * warp + lane / 4, out,
                                                             ld_out, a.v_dim - col);
        }
        auto keep = [&](float *page, int n) {
            const delta_head to = delta_head_at<KS>(page, w.head, v_tiles);
            if (computes && page != lies)
                cols.store_state(to, tile);
            if (computes && n < SL_DELTA_CHUNK)
                cols.store_tokens(to, tile);
            else
                lies = page;
        };
        auto advance = [&] {
            lies = nullptr;
            if (computes)
                cols.advance(place->stage);
        };
        delta_ends(a.pages, w.span, t, p, &end, keep, advance);
        sl_mbar_arrive_warp(&ring->empty[at]);
        t += p.to - p.from;
    }
}

/* Whether a span begins and ends inside of chunks of one block, whose page it changes in place.
 * Then blocks that share a head must not share its tokens: one has all columns, one part after the
 * other, and keeps the tokens with the last. */
static __device__ __forceinline__ bool in_place(const struct sl_state_pages &p,
                                                const struct sl_span &s)
{
    return s.pos % SL_DELTA_CHUNK != 0 &&
           (s.pos - 1) / p.block_size == (s.pos + s.n - 1 - s.n_drafts) / p.block_size;
}

template <int KS>
static __global__ void __launch_bounds__(32 * (DELTA_PREPARERS(KS) + DELTA_COLUMNS(KS)), 1)
    delta_wide_kernel(delta_args a)
{
    SL_SMEM(delta_ring<KS>, ring);
    const int part = static_cast<int>(blockIdx.x) % a.n_parts;
    uint32_t turn = 0;
    sl_mbar_init_all(ring->full, DELTA_PREPARERS(KS), SL_WARP_ARRIVALS);
    sl_mbar_init_all(ring->empty, DELTA_PREPARERS(KS), DELTA_COLUMNS(KS) * SL_WARP_ARRIVALS);
    sl_mbar_fence_init();
    __syncthreads();
    sl_grid_launch_dependents();
    sl_grid_wait();
    for (int32_t i = static_cast<int32_t>(blockIdx.y);; i += static_cast<int32_t>(gridDim.y)) {
        const int32_t which = sl_wide_span(a.pages, a.few, i, ring->room);
        if (which < 0)
            return;
        delta_work w = {a.pages.spans[which], static_cast<int>(blockIdx.x) / a.n_parts, 0, false};
        const bool alone = in_place(a.pages, w.span);
        if (alone && part > 0)
            continue;
        for (int n = alone ? 0 : part; n < (alone ? a.n_parts : part + 1); n++) {
            w.tile = n * DELTA_COLUMNS(KS);
            w.keeps = n == (alone ? a.n_parts - 1 : 0);
            if (threadIdx.x < 32 * DELTA_COLUMNS(KS))
                compute<KS>(a, w, ring, &turn);
            else
                bring<KS>(a, w, ring, &turn);
        }
    }
}

template <int KS> static void launch(struct sl_cuda *cu, delta_args a, int32_t n_rows)
{
    a.n_parts = SL_CEIL_DIV(a.v_dim, delta_ring<KS>::n_cols);
    sl_launch(cu, delta_wide_kernel<KS>,
              dim3(static_cast<unsigned>(a.n_heads * a.n_parts), static_cast<unsigned>(n_rows)),
              dim3(32 * (DELTA_PREPARERS(KS) + DELTA_COLUMNS(KS))), sizeof(delta_ring<KS>), a);
}

void sl_cuda_delta_wide(struct sl_cuda *cu, const delta_args *a, int32_t n_rows)
{
    const int ks = delta_k_tiles(a->k_dim);
    (ks <= 1   ? launch<1>
     : ks <= 2 ? launch<2>
     : ks <= 4 ? launch<4>
     : ks <= 8 ? launch<8>
               : launch<16>)(cu, *a, n_rows);
}
