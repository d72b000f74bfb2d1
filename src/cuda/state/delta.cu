/* SPDX-License-Identifier: MIT
 * The gated delta rule for few tokens of a sequence, which is decode and drafts. A block has a
 * head, or some of its columns: a warp for sixteen of them, whose loads of the state are under way
 * while the first warp prepares the token.
 *
 * Bound by memory. Qwen3.5-9B has 32 heads of [128, 128] in a layer: a batch of 64 reads 134 MB of
 * states and, on average over a chunk, 9 MB of tokens before, and writes 8 MB, where a rule that
 * writes the state behind each token moves 268 MB: 66 us at what an H200 gives. Measured 76 us
 * (bench_ops --only state); what is left is latency: two blocks fit on a multiprocessor, and a
 * block needs 3 us or more from its loads to its outputs.
 */
#include "cuda/state/delta_chunk.cuh"

#define DELTA_WARPS(KS) ((KS) > 8 ? 4 : 8) /* that have columns, at most */

template <int KS> struct delta_room {
    delta_stage<KS> stage;
    static constexpr int ld_v = 16 * DELTA_WARPS(KS) + 4;
    float v[SL_DELTA_CHUNK * ld_v];
};

template <int KS>
static __global__ void __launch_bounds__(32 * DELTA_WARPS(KS), KS > 8 ? 1 : 2)
    delta_few_kernel(delta_args a)
{
    SL_SMEM(delta_room<KS>, room);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x % 32);
    const int thread = static_cast<int>(threadIdx.x), n_threads = static_cast<int>(blockDim.x);
    const int n_warps = n_threads / 32;
    const int v_tiles = SL_CEIL_DIV(a.v_dim, 16);
    const int head = static_cast<int>(blockIdx.x) / a.n_parts;
    const int part = static_cast<int>(blockIdx.x) % a.n_parts;
    const int tile = part * n_warps + warp, col = 16 * tile + lane / 4;
    const bool computes = tile < v_tiles;
    const int64_t ld_out = static_cast<int64_t>(a.n_heads) * a.v_dim;
    sl_grid_launch_dependents();
    /* Spans and pages are older than this step, so they are read while the kernel before still
     * runs. (Steps whose spans a kernel moves on are those of drafters, which have no states.) */
    const struct sl_span span = a.pages.spans[blockIdx.y];
    if (span.n > a.few) {
        sl_grid_wait();
        return;
    }
    const float *begin = a.pages.begin(span);
    const delta_head old = delta_head_at<KS>(const_cast<float *>(begin), head, v_tiles);
    const float *lies = begin; /* the page in which the state of the chunk's begin is already */
    delta_columns<KS> cols;
    cols.lane = lane;
    if (computes && begin != nullptr)
        cols.load(old, tile, span.pos % SL_DELTA_CHUNK != 0);
    else
        cols.clear();
    delta_recall_k<KS>(span.pos % SL_DELTA_CHUNK, old, &room->stage, thread, n_threads);
    delta_recall_d<KS>(span.pos % SL_DELTA_CHUNK, old, &room->stage, thread, n_threads);
    sl_grid_wait();
    delta_end end = delta_end_from(a.pages, span, 0);
    for (int32_t t = 0; t < span.n;) {
        const delta_piece p = delta_piece_at(span, t);
        float *out = a.out + p.row * ld_out + static_cast<int64_t>(head) * a.v_dim + col;
        delta_asked asked;
        delta_values(a, head, p, 16 * part * n_warps, 16 * n_warps, thread, n_threads, room->v,
                     delta_room<KS>::ld_v);
        sl_cp_async_commit();
        if (warp == n_warps - 1)
            delta_gates<KS>(a, head, p, old, &room->stage);
        delta_vectors<KS, 1>(a, head, p, &room->stage, warp, n_warps);
        sl_cp_async_wait<0>();
        __syncthreads();
        if (warp == 0) {
            delta_pairs pairs;
            delta_pair<KS>(room->stage, &pairs);
            delta_mix<KS>(p, pairs, &room->stage);
            __syncwarp();
            delta_invert<KS>(p, &room->stage);
        }
        if (computes)
            cols.template ask<false, false>(room->stage, p, &asked);
        __syncthreads();
        const delta_late<KS, delta_room<KS>::ld_v> by = {room->stage,
                                                         room->v + 16 * warp + lane / 4, lane};
        if (computes) {
            uint32_t x[4];
            cols.solve(room->stage, p, by, asked.k);
            cols.x_words(x);
            delta_answer<false>(room->stage, p, x, asked.q, by, out, ld_out, a.v_dim - col);
        }
        auto keep = [&](float *page, int n) {
            const delta_head to = delta_head_at<KS>(page, head, v_tiles);
            const bool whole = n == SL_DELTA_CHUNK;
            if (computes && page != lies)
                cols.store_state(to, tile);
            if (computes && !whole)
                cols.store_tokens(to, tile);
            if (warp == 0 && !whole && part == 0)
                delta_keep<KS>(room->stage, room->stage.g, room->stage.d, to,
                               page == begin && t == 0 ? p.from : 0, n);
            if (whole)
                lies = page;
        };
        auto advance = [&] {
            lies = nullptr;
            if (computes)
                cols.advance(room->stage, by);
        };
        delta_ends(a.pages, span, t, p, &end, keep, advance);
        t += p.to - p.from;
        if (t < span.n)
            __syncthreads();
    }
}

/* Warps with columns in a block: those of a whole head, or fewer while there is less than a block
 * for each multiprocessor. Only where every span is one token: blocks that share a head share the
 * tokens in its page, which a longer span may write before another block has read them. */
static int warps_of(const struct sl_cuda *cu, const struct sl_batch *b, const delta_args &a,
                    int most)
{
    const int v_tiles = SL_CEIL_DIV(a.v_dim, 16);
    int n = SL_MIN(v_tiles, most);
    if (b->n_tokens == b->n_spans)
        while (n > 2 &&
               static_cast<int64_t>(b->n_spans) * a.n_heads * SL_CEIL_DIV(v_tiles, n) < cu->n_sms)
            n = SL_CEIL_DIV(n, 2);
    return n;
}

template <int KS> static void few(struct sl_cuda *cu, const struct sl_batch *b, delta_args a)
{
    const int n_warps = warps_of(cu, b, a, DELTA_WARPS(KS));
    a.n_parts = SL_CEIL_DIV(SL_CEIL_DIV(a.v_dim, 16), n_warps);
    sl_launch(
        cu, delta_few_kernel<KS>,
        dim3(static_cast<unsigned>(a.n_heads * a.n_parts), static_cast<unsigned>(a.pages.n_spans)),
        dim3(static_cast<unsigned>(32 * n_warps)), sizeof(delta_room<KS>), a);
}

static void by_chunks(struct sl_cuda *cu, const struct sl_batch *b, delta_args a, void *scratch)
{
    const int ks = delta_k_tiles(a.k_dim), most = ks > 8 ? DELTA_WARPS(16) : DELTA_WARPS(8);
    const bool whole = SL_CEIL_DIV(a.v_dim, 16) <= most;
    a.few = whole || b->n_tokens == b->n_spans ? SL_STATE_FEW : 0;
    if (sl_wide_most(b, a.few) > 0)
        sl_cuda_delta_prompt(cu, b, &a, scratch);
    if (sl_wide_leaves(b, a.few))
        (ks <= 1   ? few<1>
         : ks <= 2 ? few<2>
         : ks <= 4 ? few<4>
         : ks <= 8 ? few<8>
                   : few<16>)(cu, b, a);
}

extern "C" size_t sl_cuda_delta_bytes(int32_t n_heads, int32_t k_dim, int32_t v_dim, bool by_row)
{
    if (by_row)
        return sizeof(float) * static_cast<size_t>(n_heads) * static_cast<size_t>(k_dim) *
               static_cast<size_t>(v_dim);
    return static_cast<size_t>(n_heads) *
           delta_head_bytes(delta_k_tiles(k_dim), SL_CEIL_DIV(v_dim, 16));
}

extern "C" void sl_cuda_delta_rule(struct sl_backend *be, const struct sl_op_delta_rule *a)
{
    const uint8_t *pool = a->state.pool + a->state.offset;
    const bool wide_v = a->v_dim % 4 == 0 && a->ld % 4 == 0 && sl_aligned16(a->v);
    const bool wide_pages = sl_aligned16(pool) && a->state.page_bytes % 16 == 0;
    const delta_args k = {sl_state_pages_of(a->batch, &a->state),
                          a->q,
                          a->k,
                          a->v,
                          a->ld,
                          a->decay_in,
                          a->beta_in,
                          a->a,
                          a->dt_bias,
                          a->l2_eps,
                          a->scale,
                          a->beta_scale,
                          a->bound,
                          a->n_heads,
                          a->n_k_heads,
                          a->k_dim,
                          a->v_dim,
                          1,
                          a->tiled,
                          a->k_dim % 4 == 0 && a->ld % 4 == 0 && sl_aligned16(a->q) &&
                              sl_aligned16(a->k) && sl_aligned16(a->decay_in),
                          wide_v && (wide_pages || !a->by_row),
                          a->out,
                          0};
    SL_ASSERT(a->k_dim <= SL_MAX_STATE_DIM && a->v_dim <= SL_MAX_STATE_DIM &&
              a->n_heads % a->n_k_heads == 0);
    SL_ASSERT(a->by_row || (wide_pages && a->state.block_size % SL_DELTA_CHUNK == 0));
    if (a->by_row)
        sl_cuda_delta_rows(sl_cuda(be), a->batch, k);
    else
        by_chunks(sl_cuda(be), a->batch, k, a->scratch);
}
