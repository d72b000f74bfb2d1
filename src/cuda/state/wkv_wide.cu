/* SPDX-License-Identifier: MIT
 * RWKV-7's recurrence for many tokens of a sequence: prompts. Warps, lanes and the ring are those
 * of delta_rows_wide.cu: a block has some columns of a head's state in registers, four warps
 * compute token after token, four others bring the tokens in, sixteen at a time.
 */
#include "cuda/state/wkv.cuh"

template <int J, int C> struct wkv_tile {
    typedef wkv_token<J> at;
    static constexpr int n_cols = SL_WIDE_WARPS * 4 * C; /* of a block */
    static constexpr int v = at::floats;
    static constexpr int floats = v + n_cols; /* of a token in the ring */
    static constexpr size_t bars = 0, ring = 64;
    static constexpr size_t bytes = ring + sizeof(float) * SL_WIDE_RING * floats;
};

template <int J, int C>
static __device__ __forceinline__ void bring(const wkv_args &a, const struct sl_span &span,
                                             int head, int first_col, float *ring,
                                             sl_wide_turn *turn)
{
    typedef wkv_tile<J, C> tile;
    const int thread = static_cast<int>(threadIdx.x) - 32 * SL_WIDE_WARPS;
    const int n_quads = tile::at::floats / 4, v_quads = tile::n_cols / 4;
    const float *values = a.v + static_cast<int64_t>(head) * a.dim;
    const int64_t ld = static_cast<int64_t>(a.n_heads) * a.dim;
    for (int32_t t = 0; t < span.n; t += SL_WIDE_TOKENS, turn->i++) {
        const int32_t n = min(span.n - t, SL_WIDE_TOKENS);
        const int64_t row = span.first + t;
        float *to = ring + turn->i % 2 * SL_WIDE_TOKENS * tile::floats;
        sl_mbar_wait(&turn->empty[turn->i % 2], turn->parity() ^ 1);
#pragma unroll 4
        for (int i = thread; i < n * n_quads; i += 32 * SL_WIDE_WARPS)
            wkv_bring<J>(a, head, row + i / n_quads, i % n_quads, to + i / n_quads * tile::floats);
        for (int i = thread; i < n * v_quads; i += 32 * SL_WIDE_WARPS) {
            const int token = i / v_quads, quad = i % v_quads;
            *reinterpret_cast<float4 *>(to + token * tile::floats + tile::v + 4 * quad) =
                sl_load4(values + (row + token) * ld, first_col + 4 * quad, a.dim, a.wide);
        }
        sl_mbar_arrive_warp(&turn->full[turn->i % 2]);
    }
}

/* What a lane knows of the token before it comes to it. */
template <int J, int C> struct wkv_ahead {
    float k[4 * J], b[4 * J];
    float v[C], minus[C];
};

template <int J, int C> struct wkv_lane {
    typedef wkv_tile<J, C> tile;
    typedef typename tile::at at;
    sl_state_cols<J, C> s; /* behind the last token */
    float decayed[4 * J][C];
    int group, col; /* in the block */

    /* From the state behind the token before: p of this one, and the state decayed for it. */
    __device__ __forceinline__ void look(const float *token, wkv_ahead<J, C> *next)
    {
        float sum[C], rows[4 * J];
        sl_group_rows<J>(token + at::kk, group, rows);
        s.dot(rows, sum);
        sl_group_rows<J>(token + at::w, group, rows);
        sl_group_rows<J>(token + at::k, group, next->k);
        sl_group_rows<J>(token + at::b, group, next->b);
#pragma unroll
        for (int c = 0; c < C; c++)
            sum[c] = sl_sum_groups<2>(sum[c]);
#pragma unroll
        for (int r = 0; r < 4 * J; r++)
#pragma unroll
            for (int c = 0; c < C; c++)
                decayed[r][c] = __fmul_rn(rows[r], s.s[r][c]);
#pragma unroll
        for (int c = 0; c < C; c++) {
            next->minus[c] = -sum[c];
            next->v[c] = token[tile::v + col + c];
        }
    }
    __device__ __forceinline__ void update(const wkv_ahead<J, C> &now)
    {
#pragma unroll
        for (int r = 0; r < 4 * J; r++)
#pragma unroll
            for (int c = 0; c < C; c++)
                s.s[r][c] =
                    __fmaf_rn(now.k[r], now.v[c], __fmaf_rn(now.b[r], now.minus[c], decayed[r][c]));
    }
    /* The output of column col + group % C, in the lanes of the first C groups. */
    __device__ __forceinline__ float output(const float (&q)[4 * J]) const
    {
        float sum[C];
        s.dot(q, sum);
        return sl_sum_cols<C>(sum, group);
    }
};

template <int J, int C>
static __device__ __forceinline__ void compute(const wkv_args &a, const struct sl_span &span,
                                               int head, int first_col, const float *ring,
                                               sl_wide_turn *turn)
{
    typedef wkv_tile<J, C> tile;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x) / 32;
    wkv_lane<J, C> me;
    me.group = lane / 4;
    me.col = C * (4 * warp + lane % 4);
    const int32_t col = first_col + me.col, out_col = col + me.group % C;
    const bool writes = me.group < C && out_col < a.dim;
    const int64_t at = static_cast<int64_t>(head) * a.dim * a.dim;
    const float *begin = a.pages.begin(span);
    float *out = a.out + (span.first * static_cast<int64_t>(a.n_heads) + head) * a.dim + out_col;
    int32_t end = a.pages.next_end(span, 0), page = a.pages.page_of(span, end);
    uint32_t place = turn->i % 2 * SL_WIDE_TOKENS; /* of the token in the ring */
    wkv_ahead<J, C> ahead;
    me.s.load(begin != nullptr ? begin + at : nullptr, a.dim, me.group, a.dim, col, a.dim);
    sl_mbar_wait(&turn->full[turn->i % 2], turn->parity());
    me.look(ring + place * tile::floats, &ahead);
#pragma unroll 1
    for (int32_t t = 0; t < span.n; t++) {
        const bool more = t + 1 < span.n;
        float r[4 * J];
        sl_group_rows<J>(ring + place * tile::floats + tile::at::r, me.group, r);
        me.update(ahead);
        if (more) {
            place = (place + 1) % SL_WIDE_RING;
            if (place % SL_WIDE_TOKENS == 0) {
                sl_mbar_arrive_warp(&turn->empty[turn->i % 2]);
                turn->i++;
                sl_mbar_wait(&turn->full[turn->i % 2], turn->parity());
            }
            me.look(ring + place * tile::floats, &ahead);
        }
        const float o = me.output(r);
        if (writes)
            *out = o;
        out += static_cast<int64_t>(a.n_heads) * a.dim;
        if (t == end) {
            if (page >= 0)
                me.s.store(a.pages.page(page) + at, a.dim, me.group, a.dim, col, a.dim);
            if (more) {
                end = a.pages.next_end(span, t + 1);
                page = a.pages.page_of(span, end);
            }
        }
    }
    sl_mbar_arrive_warp(&turn->empty[turn->i % 2]);
    turn->i++;
}

template <int J, int C>
static __global__ void __launch_bounds__(SL_WIDE_THREADS, 1) wkv_wide_kernel(wkv_args a)
{
    typedef wkv_tile<J, C> tile;
    SL_SMEM(uint8_t, smem);
    uint64_t *bars = reinterpret_cast<uint64_t *>(smem + tile::bars);
    int32_t *room = reinterpret_cast<int32_t *>(bars + 4);
    float *ring = reinterpret_cast<float *>(smem + tile::ring);
    const int head = static_cast<int>(blockIdx.x) / a.n_parts;
    const int first_col = static_cast<int>(blockIdx.x) % a.n_parts * tile::n_cols;
    sl_wide_turn turn = {bars, bars + 2, 0};
    sl_mbar_init_all(bars, 4, SL_WIDE_WARPS * SL_WARP_ARRIVALS);
    sl_mbar_fence_init();
    __syncthreads();
    sl_grid_launch_dependents();
    sl_grid_wait();
    for (int32_t i = static_cast<int32_t>(blockIdx.y);; i += static_cast<int32_t>(gridDim.y)) {
        const int32_t which = sl_wide_span(a.pages, a.few, i, room);
        if (which < 0)
            return;
        const struct sl_span span = a.pages.spans[which];
        if (threadIdx.x < 32 * SL_WIDE_WARPS)
            compute<J, C>(a, span, head, first_col, ring, &turn);
        else
            bring<J, C>(a, span, head, first_col, ring, &turn);
    }
}

template <int J, int C> static void launch(struct sl_cuda *cu, wkv_args a, int32_t n_rows)
{
    typedef wkv_tile<J, C> tile;
    a.n_parts = SL_CEIL_DIV(a.dim, tile::n_cols);
    sl_launch(cu, wkv_wide_kernel<J, C>,
              dim3(static_cast<unsigned>(a.n_heads * a.n_parts), static_cast<unsigned>(n_rows)),
              dim3(SL_WIDE_THREADS), tile::bytes, a);
}

void sl_cuda_wkv_wide(struct sl_cuda *cu, const wkv_args *a, int32_t n_rows)
{
    const int j = SL_CEIL_DIV(a->dim, SL_STATE_STRIDE);
    (j <= 1   ? launch<1, 2>
     : j <= 2 ? launch<2, 2>
     : j <= 4 ? launch<4, 2>
              : launch<8, 1>)(cu, *a, n_rows);
}
