/* SPDX-License-Identifier: MIT
 * State space models for few tokens, which is decode: the state is read once, 16 bytes a lane and
 * load, and written once. Eight groups of lanes have the values of a column's state, and meet in
 * shared memory.
 *
 * Bound by memory, as delta.cu: Nemotron 3 Nano has 64 heads of 64 channels with 128 values each,
 * 2.1 MB a layer and sequence.
 */
#include "cuda/state/ssm.cuh"

template <int J, bool BY_STATE>
static __global__ void __launch_bounds__(256, J > 4 ? 1 : 2) ssm_few_kernel(ssm_args a)
{
    typedef ssm_token<J> at;
    SL_SMEM(float, room); /* tokens, and the groups' sums of this token and of the one before */
    const int n_lanes = static_cast<int>(blockDim.x) / SL_STATE_GROUPS, n_cols = 4 * n_lanes;
    const int group = static_cast<int>(threadIdx.x) / n_lanes;
    const int lane_col = 4 * (static_cast<int>(threadIdx.x) % n_lanes);
    const int token_floats = at::cols + 2 * n_cols;
    const ssm_cols cols(a, static_cast<int>(blockIdx.x), n_cols);
    const int32_t col = cols.first + lane_col;
    float *sums = room + SL_STATE_FEW * token_floats;
    sl_grid_launch_dependents();
    sl_grid_wait();
    const struct sl_span span = a.pages.spans[blockIdx.y];
    if (span.n > SL_STATE_FEW)
        return;
    sl_state_quads<J> state;
    state.load(a.pages.begin(span), a.n_cols, group, a.n_state, col, cols.end);
    int32_t end = a.pages.next_end(span, 0);
    int32_t page = a.pages.page_of(span, end);
    for (int i = static_cast<int>(threadIdx.x); i < span.n * at::len / 2;
         i += static_cast<int>(blockDim.x))
        ssm_vectors<J>(a, cols.group, span.first + i / (at::len / 2), i % (at::len / 2),
                       room + i / (at::len / 2) * token_floats);
    for (int i = static_cast<int>(threadIdx.x); i < span.n * n_cols;
         i += static_cast<int>(blockDim.x)) {
        const int token = i / n_cols, c = i % n_cols;
        float2 v = make_float2(0, 0);
        if (cols.first + c < cols.end)
            v = ssm_column<BY_STATE>(a, span.first + token, cols.first + c);
        room[token * token_floats + at::cols + c] = v.x;
        room[token * token_floats + at::cols + n_cols + c] = v.y;
    }
    __syncthreads();
    for (int32_t t = 0; t < span.n; t++) {
        const float *token = room + t * token_floats;
        const float4 dtx = *reinterpret_cast<const float4 *>(token + at::cols + lane_col);
        const float4 by = *reinterpret_cast<const float4 *>(token + at::cols + n_cols + lane_col);
        float *sum = sums + t % 2 * SL_STATE_GROUPS * n_cols;
#pragma unroll
        for (int j = 0; j < J; j++) {
            const int row = SL_STATE_STRIDE * j + 4 * group;
            const float4 b = *reinterpret_cast<const float4 *>(token + at::b + row);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float4 decay = by;
                if (BY_STATE) {
                    float4 e = make_float4(0, 0, 0, 0);
                    if (row + i < a.n_state)
                        e = sl_load4(a.a + static_cast<int64_t>(row + i) * a.n_cols, col, cols.end,
                                     a.wide_a);
                    decay = make_float4(sl_exp(__fmul_rn(by.x, e.x)), sl_exp(__fmul_rn(by.y, e.y)),
                                        sl_exp(__fmul_rn(by.z, e.z)), sl_exp(__fmul_rn(by.w, e.w)));
                }
                float4 &s = state.s[4 * j + i];
                s = sl_fma4(sl_part(b, i), dtx, sl_mul4(decay, s));
            }
        }
        *reinterpret_cast<float4 *>(sum + group * n_cols + lane_col) =
            state.dot(token + at::c, group);
        if (t == end) {
            if (page >= 0)
                state.store(a.pages.page(page), a.n_cols, group, a.n_state, col, cols.end);
            if (t + 1 < span.n) {
                end = a.pages.next_end(span, t + 1);
                page = a.pages.page_of(span, end);
            }
        }
        __syncthreads();
        const int32_t c = cols.first + static_cast<int32_t>(threadIdx.x);
        if (static_cast<int>(threadIdx.x) < n_cols && c < cols.end)
            ssm_write(a, span.first + t, c, sl_sum_groups1(sum + threadIdx.x, n_cols));
    }
}

/* Lanes of a group: as few as give every multiprocessor a block or two, at most 32. */
static int lanes_of(const struct sl_cuda *cu, const ssm_args *a, int32_t n_groups)
{
    const int64_t groups = static_cast<int64_t>(a->pages.n_spans) * n_groups;
    int n = 32;
    while (n > 8 && (2 * n >= a->n_group_cols || groups * SL_CEIL_DIV(a->n_group_cols, 4 * n) <
                                                     2 * static_cast<int64_t>(cu->n_sms)))
        n /= 2;
    return n;
}

template <int J, bool BY_STATE>
static void few(struct sl_cuda *cu, const ssm_args &a, int32_t n_groups, int n_lanes)
{
    const int n_cols = 4 * n_lanes;
    const size_t smem =
        sizeof(float) * static_cast<size_t>(SL_STATE_FEW * (ssm_token<J>::cols + 2 * n_cols) +
                                            2 * SL_STATE_GROUPS * n_cols);
    sl_launch(
        cu, ssm_few_kernel<J, BY_STATE>,
        dim3(static_cast<unsigned>(n_groups * a.n_parts), static_cast<unsigned>(a.pages.n_spans)),
        dim3(static_cast<unsigned>(SL_STATE_GROUPS * n_lanes)), smem, a);
}

extern "C" void sl_cuda_ssm(struct sl_backend *be, const struct sl_op_ssm *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    const uint8_t *pool = a->state.pool + a->state.offset;
    const int32_t n_cols = a->n_heads * a->head_dim, n_group_cols = n_cols / a->n_groups;
    ssm_args k = {
        sl_state_pages_of(a->batch, &a->state),
        a->x,
        a->b,
        a->c,
        a->dt_in,
        a->ld_x,
        a->ld_bc,
        a->ld_dt,
        a->a,
        a->dt_bias,
        a->d,
        a->dt_min,
        a->dt_max,
        n_cols,
        n_group_cols,
        a->head_dim,
        a->n_state,
        1,
        a->n_state % 4 == 0 && a->ld_bc % 4 == 0 && sl_aligned16(a->b) && sl_aligned16(a->c),
        n_group_cols % 4 == 0 && sl_aligned16(pool) && a->state.page_bytes % 16 == 0 ? SL_STATE_FEW
                                                                                     : 0,
        sl_aligned16(a->a),
        a->out};
    SL_ASSERT(a->n_state <= SL_MAX_STATE_DIM && a->n_heads % a->n_groups == 0 &&
              (!a->by_state || a->head_dim == 1));
    const int32_t n_rows = sl_wide_rows(a->batch, k.few);
    if (n_rows > 0)
        sl_cuda_ssm_wide(cu, &k, a->by_state, n_rows);
    if (!sl_wide_leaves(a->batch, k.few))
        return;
    const int n_lanes = lanes_of(cu, &k, a->n_groups), j = SL_CEIL_DIV(a->n_state, SL_STATE_STRIDE);
    k.n_parts = SL_CEIL_DIV(n_group_cols, 4 * n_lanes);
    if (a->by_state)
        (j <= 1 ? few<1, true> : few<8, true>)(cu, k, a->n_groups, n_lanes);
    else
        (j <= 1   ? few<1, false>
         : j <= 2 ? few<2, false>
         : j <= 4 ? few<4, false>
                  : few<8, false>)(cu, k, a->n_groups, n_lanes);
}
