/* SPDX-License-Identifier: MIT
 * The gated delta rule for many tokens of a sequence: prompts. Two kernels. The first prepares
 * chunks side by side, a warp for a chunk of a key head: q and k normed and in BF16, and for each
 * of its heads mix, the inverse and the gates, which go to the operation's scratch. In the second a
 * block has some columns of a head of a sequence, and goes from chunk to chunk: two warps bring
 * what was prepared, and v, into a ring, others have sixteen columns each of the state in
 * registers.
 *
 * Chunks follow one another, 512 of them in 8,192 tokens, so what counts is how long one takes a
 * warp with columns. Where there are few sequences such a warp computes only what the next chunk
 * waits for: k S, X and the new S. It leaves the outputs (q S, half of the first products, mix X
 * and the stores) to a second warp, in the ring: S as the operand that it was, and X. And it never
 * fences: that would wait for stores that are under way.
 *
 * What limits it else, of 8,192 tokens, 16 key heads and 32 heads of 128 x 128: q, k, v and out are
 * 403 MB, scratch 99 MB written and read once, 147 us at 4.1 TB/s; products of the second kernel 28
 * GFLOP.
 */
#include "cuda/ptx_fp8.cuh"
#include "cuda/state/delta_chunk.cuh"

#define DELTA_PREPARE_WARPS 4
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

template <int KS, int N> struct delta_mails {
    delta_mail<KS> mail[N];
};
template <int KS> struct delta_mails<KS, 0> {
};

/* C: warps with columns. HELP: each leaves its outputs to another warp. */
template <int KS, int C, bool HELP> struct delta_ring {
    static constexpr int n_cols = 16 * C, ld_v = n_cols + 4, n_warps = HELP ? 2 * C : C;
    static constexpr int n_places = HELP ? 5 : 4;
    struct place : delta_mails<KS, HELP ? C : 0> {
        delta_used<KS> used;
        float v[SL_DELTA_CHUNK * ld_v];
        uint64_t full, empty, sent[C];
    };
    int32_t room[4];
    place places[n_places];
};

/* A place of the ring, and whether all have been passed an odd number of times. */
template <typename R> struct delta_turn {
    R *ring;
    typename R::place *place;
    uint32_t odd;

    __device__ __forceinline__ explicit delta_turn(R *of) : ring(of), place(of->places), odd(0)
    {
    }
    __device__ __forceinline__ void next()
    {
        if (++place == ring->places + R::n_places)
            place = ring->places, odd ^= 1;
    }
};

/* The block's part of a span: columns of a head, from 16 * tile on. */
struct delta_work {
    struct sl_span span;
    const uint8_t *keys;         /* of the span's first chunk */
    const delta_prepared *ready; /* likewise, of the head */
    int head, tile;
};

/* A warp brings what was prepared. What was read there by ordinary loads, the copy engine writes
 * next, so this warp orders its copies behind those reads: of warps that have stores under way the
 * fence would take them out of their chain. */
template <typename R>
static __device__ __forceinline__ void bring(const delta_args &a, const delta_work &w, R *ring,
                                             uint32_t keys_bytes)
{
    const int64_t keys_step = static_cast<int64_t>(a.n_k_heads) * keys_bytes;
    const uint8_t *keys = w.keys;
    const delta_prepared *ready = w.ready;
    delta_turn<R> turn(ring);
#pragma unroll 1
    for (int32_t t = 0; t < w.span.n; turn.next()) {
        const delta_piece p = delta_piece_at(w.span, t);
        typename R::place *place = turn.place;
        sl_mbar_wait(&place->empty, turn.odd ^ 1);
        sl_fence_proxy_async();
        sl_mbar_expect_warp(&place->full, keys_bytes + DELTA_HEAD_BYTES);
        if (threadIdx.x % 32 == 0) {
            sl_bulk_load(place->used.k, keys, keys_bytes, &place->full);
            sl_bulk_load(place->used.mix, ready->mix, DELTA_HEAD_BYTES, &place->full);
        }
        keys += keys_step;
        ready += a.n_heads;
        t += p.to - p.from;
    }
}

/* Another one brings v. */
template <typename R>
static __device__ __forceinline__ void bring_values(const delta_args &a, const delta_work &w,
                                                    R *ring)
{
    constexpr int quads = R::n_cols / 4, rows = 32 / quads; /* at once */
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int col = 16 * w.tile + lane % quads * 4, row = lane / quads;
    const float *v = a.v + static_cast<int64_t>(w.head) * a.v_dim + (col < a.v_dim ? col : 0);
    delta_turn<R> turn(ring);
#pragma unroll 1
    for (int32_t t = 0; t < w.span.n; turn.next()) {
        const delta_piece p = delta_piece_at(w.span, t);
        typename R::place *place = turn.place;
        sl_mbar_wait(&place->empty, turn.odd ^ 1);
        if (a.wide_v) {
            const float *from = v + (p.row + row) * a.ld;
            float *to = place->v + row * R::ld_v + lane % quads * 4;
#pragma unroll
            for (int i = 0; i < SL_DELTA_CHUNK; i += rows)
                if (i + row >= p.from && i + row < p.to)
                    sl_cp_async16(to + i * R::ld_v, from + i * a.ld, col < a.v_dim);
            sl_cp_async_arrive(&place->full);
        } else {
            delta_values(a, w.head, p, 16 * w.tile, R::n_cols, lane, 32, place->v, R::ld_v);
            sl_mbar_arrive(&place->full);
        }
        t += p.to - p.from;
    }
    sl_cp_async_commit();
    sl_cp_async_wait<0>();
}

/* x, as nothing that could be asked for anew in each turn. */
static __device__ __forceinline__ int kept(int x)
{
    return __shfl_sync(0xffffffffu, x, static_cast<int>(threadIdx.x % 32));
}

/* The state of sixteen columns from chunk to chunk. */
template <int KS, int C, bool HELP>
static __device__ __forceinline__ void compute(const delta_args &a, const delta_work &w,
                                               delta_ring<KS, C, HELP> *ring)
{
    typedef delta_ring<KS, C, HELP> ring_of;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = kept(static_cast<int>(threadIdx.x % 32));
    const int v_tiles = SL_CEIL_DIV(a.v_dim, 16), tile = w.tile + warp, col = 16 * tile + lane / 4;
    const int64_t ld_out = static_cast<int64_t>(a.n_heads) * a.v_dim;
    const float *begin = a.pages.begin(w.span), *lies = begin;
    const delta_prepared *ready = w.ready;
    delta_end end = delta_end_from(a.pages, w.span, 0);
    delta_columns<KS> cols;
    cols.lane = lane;
    if (begin != nullptr)
        cols.load(delta_head_at<KS>(const_cast<float *>(begin), w.head, v_tiles), tile,
                  w.span.pos % SL_DELTA_CHUNK != 0);
    else
        cols.clear();
    delta_turn<ring_of> turn(ring);
#pragma unroll 1
    for (int32_t t = 0; t < w.span.n; turn.next()) {
        const delta_piece p = delta_piece_at(w.span, t);
        const int32_t next = t + p.to - p.from;
        const bool passes = p.to == SL_DELTA_CHUNK && end.t >= next; /* and stores nothing */
        typename ring_of::place *place = turn.place;
        const delta_late<KS, ring_of::ld_v> late = {place->used, place->v + 16 * warp + lane / 4,
                                                    lane};
        delta_early by;
        uint32_t x[4];
        sl_mbar_wait(&place->full, turn.odd);
        by.load(late);
        if constexpr (HELP) {
            float asked[2][2][4];
            delta_mail<KS> *mail = &place->mail[warp];
            cols.ask_keys(place->used, mail, asked);
            cols.solve(place->used, p, by, asked);
            cols.x_words(x);
            mail->x[lane] = make_uint4(x[0], x[1], x[2], x[3]);
            sl_mbar_arrive_warp(&place->sent[warp]);
        } else {
            delta_asked asked;
            float *out = a.out + p.row * ld_out + static_cast<int64_t>(w.head) * a.v_dim + col;
            cols.template ask<(KS <= 8), true>(place->used, p, &asked);
            cols.solve(place->used, p, by, asked.k);
            cols.x_words(x);
            delta_answer<true>(place->used, p, x, asked.q, by, out, ld_out, a.v_dim - col);
        }
        auto keep = [&](float *page, int n) {
            const delta_head to = delta_head_at<KS>(page, w.head, v_tiles);
            const bool whole = n == SL_DELTA_CHUNK;
            if (page != lies)
                cols.store_state(to, tile);
            if (!whole)
                cols.store_tokens(to, tile);
            if (tile == 0 && !whole)
                delta_keep<KS>(place->used, ready->g, ready->d, to, 0, n);
            if (whole)
                lies = page;
        };
        auto advance = [&] {
            lies = nullptr;
            cols.advance(place->used, by);
        };
        if (passes)
            advance();
        else
            delta_ends(a.pages, w.span, t, p, &end, keep, advance);
        sl_mbar_arrive_warp(&place->empty);
        ready += a.n_heads;
        t = next;
    }
}

/* The outputs of a warp with columns, a chunk behind it. */
template <int KS, int C>
static __device__ __forceinline__ void answer(const delta_args &a, const delta_work &w,
                                              delta_ring<KS, C, true> *ring)
{
    typedef delta_ring<KS, C, true> ring_of;
    const int warp = static_cast<int>(threadIdx.x) / 32 - C;
    const int lane = kept(static_cast<int>(threadIdx.x % 32));
    const int col = 16 * (w.tile + warp) + lane / 4;
    const int64_t ld_out = static_cast<int64_t>(a.n_heads) * a.v_dim;
    delta_turn<ring_of> turn(ring);
#pragma unroll 1
    for (int32_t t = 0; t < w.span.n; turn.next()) {
        const delta_piece p = delta_piece_at(w.span, t);
        typename ring_of::place *place = turn.place;
        const delta_mail<KS> *mail = &place->mail[warp];
        const delta_late<KS, ring_of::ld_v> by = {place->used, nullptr, lane};
        float *out = a.out + p.row * ld_out + static_cast<int64_t>(w.head) * a.v_dim + col;
        float asked[2][2][4];
        sl_mbar_wait(&place->full, turn.odd);
        sl_mbar_wait(&place->sent[warp], turn.odd);
        delta_ask_mail<KS>(place->used, *mail, lane, asked);
        const uint4 v = mail->x[lane];
        const uint32_t x[4] = {v.x, v.y, v.z, v.w};
        delta_answer<true>(place->used, p, x, asked, by, out, ld_out, a.v_dim - col);
        sl_mbar_arrive_warp(&place->empty);
        t += p.to - p.from;
    }
}

/* n_live: warps that have columns. */
template <int KS, int C, bool HELP>
static __device__ __forceinline__ void begin_ring(delta_ring<KS, C, HELP> *ring, int n_live)
{
    const uint32_t live = static_cast<uint32_t>(n_live) * SL_WARP_ARRIVALS;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < delta_ring<KS, C, HELP>::n_places;
         i += static_cast<int>(blockDim.x)) {
        auto *place = &ring->places[i];
        sl_mbar_init(&place->full, SL_WARP_ARRIVALS + 32); /* lanes arrive with v */
        sl_mbar_init(&place->empty, HELP ? 2 * live : live);
        for (int c = 0; c < C && HELP; c++)
            sl_mbar_init(&place->sent[c], SL_WARP_ARRIVALS);
    }
    sl_mbar_fence_init();
    __syncthreads();
}

template <int KS, int C, bool HELP>
static __global__ void __launch_bounds__(32 * (delta_ring<KS, C, HELP>::n_warps + 2),
                                         KS > 8 ? 1 : 2)
    delta_prompt_kernel(delta_args a, delta_scratch s)
{
    typedef delta_ring<KS, C, HELP> ring_of;
    SL_SMEM(ring_of, ring);
    const int part = static_cast<int>(blockIdx.x) % a.n_parts, i = static_cast<int>(blockIdx.y);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int n_live = min(C, SL_CEIL_DIV(a.v_dim, 16) - part * C);
    begin_ring<KS, C, HELP>(ring, n_live);
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
    if (warp == ring_of::n_warps)
        bring<ring_of>(a, w, ring, delta_keys_bytes(KS));
    else if (warp > ring_of::n_warps)
        bring_values<ring_of>(a, w, ring);
    else if (warp < n_live)
        compute<KS, C, HELP>(a, w, ring);
    else if constexpr (HELP)
        if (warp >= C && warp - C < n_live)
            answer<KS, C>(a, w, ring);
}

/* ------------------------------------------------------------------ launches */

template <int KS, int C, bool HELP>
static void launch_columns(struct sl_cuda *cu, delta_args a, const delta_scratch &s, int32_t n_rows)
{
    a.n_parts = SL_CEIL_DIV(SL_CEIL_DIV(a.v_dim, 16), C);
    typedef delta_ring<KS, C, HELP> ring_of;
    sl_launch(cu, delta_prompt_kernel<KS, C, HELP>,
              dim3(static_cast<unsigned>(a.n_heads * a.n_parts), static_cast<unsigned>(n_rows)),
              dim3(32 * (ring_of::n_warps + 2)), sizeof(ring_of), a, s);
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
            launch_columns<KS, KS <= 8 ? 4 : 2, (KS > 8)>(cu, a, s, n_rows);
        else if (cu->delta_cols >= 0)
            launch_columns<KS, 2, true>(cu, a, s, n_rows);
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
