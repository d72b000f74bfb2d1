/* SPDX-License-Identifier: MIT
 * State space models for many tokens of a sequence: prompts. A block has some columns of a group of
 * heads in registers; four warps compute token after token, four others bring the tokens in,
 * sixteen at a time. Lanes have rows and columns as in the delta rule by row. Nothing of a token
 * waits for a sum of the one before, so that only the number of instructions counts.
 *
 * An estimate, not a measurement: of a token a warp issues 32 x 3 multiplications and additions
 * (two columns, 16 values: decay, b, c), 10 loads, 3 shuffles and about 15 other instructions: 125
 * cycles of a scheduler. The 4,096 channels of Nemotron 3 Nano are 128 blocks: 8,192 tokens of a
 * layer 1.0 million cycles, 0.57 ms at 1.8 GHz. With more channels two blocks share a
 * multiprocessor.
 */
#include "cuda/state/ssm.cuh"

template <int J, int C> struct wide_tile {
    typedef ssm_token<J> at;
    static constexpr int n_cols = SL_WIDE_WARPS * 4 * C; /* of a block */
    static constexpr int floats = at::cols + 2 * n_cols; /* of a token in the ring */
    static constexpr size_t bars = 0, ring = 64;
    static constexpr size_t bytes = ring + sizeof(float) * SL_WIDE_RING * floats;
};

template <int J, int C, bool BY_STATE>
static __device__ __forceinline__ void bring(const ssm_args &a, const struct sl_span &span,
                                             const ssm_cols &cols, float *ring, uint64_t *full,
                                             uint64_t *empty, uint32_t *turn)
{
    typedef wide_tile<J, C> tile;
    const int thread = static_cast<int>(threadIdx.x) - 32 * SL_WIDE_WARPS;
    const int n_quads = tile::at::len / 2;
    for (int32_t t = 0; t < span.n; t += SL_WIDE_TOKENS, (*turn)++) {
        const int n = min(span.n - t, SL_WIDE_TOKENS);
        const int64_t row = span.first + t;
        float *to = ring + *turn % 2 * SL_WIDE_TOKENS * tile::floats;
        sl_mbar_wait(&empty[*turn % 2], (*turn / 2 & 1) ^ 1);
#pragma unroll 4
        for (int i = thread; i < n * n_quads; i += 32 * SL_WIDE_WARPS)
            ssm_vectors<J>(a, cols.group, row + i / n_quads, i % n_quads,
                           to + i / n_quads * tile::floats);
        for (int i = thread; i < n * tile::n_cols; i += 32 * SL_WIDE_WARPS) {
            const int token = i / tile::n_cols, c = i % tile::n_cols;
            float2 v = make_float2(0, 0);
            if (cols.first + c < cols.end)
                v = ssm_column<BY_STATE>(a, row + token, cols.first + c);
            float *at = to + token * tile::floats + tile::at::cols + c;
            at[0] = v.x;
            at[tile::n_cols] = v.y;
        }
        sl_mbar_arrive_warp(&full[*turn % 2]);
    }
}

template <int J, int C, bool BY_STATE> struct wide_lane {
    typedef wide_tile<J, C> tile;
    sl_state_cols<J, C> h;
    float a[BY_STATE ? 4 * J : 1][C];
    int group, col; /* in the block */

    __device__ __forceinline__ void load_a(const ssm_args &args, int32_t first, int32_t end)
    {
#pragma unroll
        for (int r = 0; r < (BY_STATE ? 4 * J : 1); r++) {
            const int row = sl_state_quads<J>::row(r, group);
#pragma unroll
            for (int c = 0; c < C; c++)
                a[r][c] = BY_STATE && row < args.n_state && first + c < end
                              ? args.a[static_cast<int64_t>(row) * args.n_cols + first + c]
                              : 0.0f;
        }
    }
    /* The token's output of column col + group % C, in the lanes of the first C groups. */
    __device__ __forceinline__ float step(const float *token)
    {
        float b[4 * J], cs[4 * J], sum[C];
        sl_group_rows<J>(token + tile::at::b, group, b);
        sl_group_rows<J>(token + tile::at::c, group, cs);
        const float *own = token + tile::at::cols + col;
#pragma unroll
        for (int c = 0; c < C; c++) {
            const float dtx = own[c], by = own[tile::n_cols + c];
#pragma unroll
            for (int r = 0; r < 4 * J; r++) {
                const float decay = BY_STATE ? sl_exp(__fmul_rn(by, a[BY_STATE ? r : 0][c])) : by;
                h.s[r][c] = __fmaf_rn(b[r], dtx, __fmul_rn(decay, h.s[r][c]));
            }
        }
        h.dot(cs, sum);
        return sl_sum_cols<C>(sum, group);
    }
};

template <int J, int C, bool BY_STATE>
static __device__ __forceinline__ void compute(const ssm_args &a, const struct sl_span &span,
                                               const ssm_cols &cols, const float *ring,
                                               uint64_t *full, uint64_t *empty, uint32_t *turn)
{
    typedef wide_tile<J, C> tile;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x) / 32;
    wide_lane<J, C, BY_STATE> me;
    me.group = lane / 4;
    me.col = C * (4 * warp + lane % 4);
    const int32_t col = cols.first + me.col, out_col = col + me.group % C;
    const bool writes = me.group < C && out_col < cols.end;
    int32_t end = a.pages.next_end(span, 0), page = a.pages.page_of(span, end);
    me.h.load(a.pages.begin(span), a.n_cols, me.group, a.n_state, col, cols.end);
    me.load_a(a, col, cols.end);
    for (int32_t t = 0; t < span.n; (*turn)++) {
        const int32_t last = min(span.n, t + SL_WIDE_TOKENS);
        const float *token = ring + *turn % 2 * SL_WIDE_TOKENS * tile::floats;
        sl_mbar_wait(&full[*turn % 2], *turn / 2 & 1);
        while (t < last) {
            const int32_t stop = min(last, end + 1);
#pragma unroll 2
            for (; t < stop; t++, token += tile::floats) {
                const float sum = me.step(token);
                if (writes)
                    ssm_write(a, span.first + t, out_col, sum);
            }
            if (t <= end)
                continue;
            if (page >= 0)
                me.h.store(a.pages.page(page), a.n_cols, me.group, a.n_state, col, cols.end);
            if (t < span.n) {
                end = a.pages.next_end(span, t);
                page = a.pages.page_of(span, end);
            }
        }
        sl_mbar_arrive_warp(&empty[*turn % 2]);
    }
}

template <int J, int C, bool BY_STATE>
static __global__ void __launch_bounds__(SL_WIDE_THREADS, 2) ssm_wide_kernel(ssm_args a)
{
    typedef wide_tile<J, C> tile;
    SL_SMEM(uint8_t, smem);
    uint64_t *bars = reinterpret_cast<uint64_t *>(smem + tile::bars);
    int32_t *room = reinterpret_cast<int32_t *>(bars + 4);
    float *ring = reinterpret_cast<float *>(smem + tile::ring);
    const ssm_cols cols(a, static_cast<int>(blockIdx.x), tile::n_cols);
    uint32_t turn = 0;
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
            compute<J, C, BY_STATE>(a, span, cols, ring, bars, bars + 2, &turn);
        else
            bring<J, C, BY_STATE>(a, span, cols, ring, bars, bars + 2, &turn);
    }
}

template <int J, int C, bool BY_STATE>
static void launch(struct sl_cuda *cu, ssm_args a, int32_t n_rows)
{
    typedef wide_tile<J, C> tile;
    a.n_parts = SL_CEIL_DIV(a.n_group_cols, tile::n_cols);
    sl_launch(cu, ssm_wide_kernel<J, C, BY_STATE>,
              dim3(static_cast<unsigned>(a.n_cols / a.n_group_cols * a.n_parts),
                   static_cast<unsigned>(n_rows)),
              dim3(SL_WIDE_THREADS), tile::bytes, a);
}

void sl_cuda_ssm_wide(struct sl_cuda *cu, const ssm_args *a, bool by_state, int32_t n_rows)
{
    const int j = SL_CEIL_DIV(a->n_state, SL_STATE_STRIDE);
    if (by_state)
        (j <= 1 ? launch<1, 2, true> : launch<8, 1, true>)(cu, *a, n_rows);
    else
        (j <= 1   ? launch<1, 2, false>
         : j <= 2 ? launch<2, 2, false>
         : j <= 4 ? launch<4, 2, false>
                  : launch<8, 1, false>)(cu, *a, n_rows);
}
