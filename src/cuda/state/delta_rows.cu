/* SPDX-License-Identifier: MIT
 * The gated delta rule by row for few tokens, which is decode: a head's state is read once, 16
 * bytes a lane and load, and written once. Eight groups of lanes have the rows, and meet in shared
 * memory. Bound by memory: a block of 256 threads has a whole head in 64 registers a thread, all of
 * whose loads are under way at once; of two such blocks on a multiprocessor one computes while the
 * other loads or stores.
 *
 * Few sequences do not fill the device with whole heads: then a head's columns are shared by blocks
 * of 32 columns, 128 bytes of each row.
 */
#include "cuda/state/delta_rows.cuh"

template <int J>
static __global__ void __launch_bounds__(256, J > 4 ? 1 : 2) delta_rows_few_kernel(delta_args a)
{
    typedef delta_token<J> at;
    SL_SMEM(float, room); /* tokens' vectors, groups' sums of p and of out, gates */
    const int n_lanes = static_cast<int>(blockDim.x) / SL_STATE_GROUPS, n_cols = 4 * n_lanes;
    const int group = static_cast<int>(threadIdx.x) / n_lanes;
    const int lane_col = 4 * (static_cast<int>(threadIdx.x) % n_lanes);
    const int head = static_cast<int>(blockIdx.x) / a.n_parts;
    const int col = static_cast<int>(blockIdx.x) % a.n_parts * n_cols + lane_col;
    float *sum_p = room + SL_STATE_FEW * at::floats, *sum_o = sum_p + SL_STATE_GROUPS * n_cols;
    float *betas = sum_o + SL_STATE_GROUPS * n_cols;
    sl_grid_launch_dependents();
    sl_grid_wait();
    const struct sl_span span = a.pages.spans[blockIdx.y];
    if (span.n > SL_STATE_FEW)
        return;
    const int64_t first = static_cast<int64_t>(head) * a.k_dim * a.v_dim;
    const float *begin = a.pages.begin(span);
    sl_state_quads<J> state;
    state.load(begin != nullptr ? begin + first : nullptr, a.v_dim, group, a.k_dim, col, a.v_dim);
    const float *values = a.v + span.first * a.ld + static_cast<int64_t>(head) * a.v_dim;
    float4 v = sl_load4(values, col, a.v_dim, true);
    int32_t end = a.pages.next_end(span, 0);
    int32_t page = a.pages.page_of(span, end);
    for (int i = static_cast<int>(threadIdx.x) / 32 * 4; i < 2 * span.n;
         i += static_cast<int>(blockDim.x) / 8) {
        const int mine = i + static_cast<int>(threadIdx.x % 32) / 8, token = mine / 2;
        delta_vector<J>(a, head, span.first + token, mine % 2 == 0, token < span.n,
                        room + token * at::floats);
    }
    if (static_cast<int>(threadIdx.x) < span.n)
        betas[threadIdx.x] = delta_beta(a, head, span.first + threadIdx.x);
    __syncthreads();
    for (int32_t t = 0; t < span.n; t++) {
        const float *token = room + t * at::floats;
        const float beta = betas[t];
        *reinterpret_cast<float4 *>(sum_p + group * n_cols + lane_col) =
            state.dot(token + at::kd, group);
        __syncthreads();
        const float4 p = sl_sum_groups4(sum_p + lane_col, n_cols);
        const float4 delta = make_float4(delta_of(beta, p.x, v.x), delta_of(beta, p.y, v.y),
                                         delta_of(beta, p.z, v.z), delta_of(beta, p.w, v.w));
        if (t + 1 < span.n)
            v = sl_load4(values + (t + 1) * a.ld, col, a.v_dim, true);
#pragma unroll
        for (int j = 0; j < J; j++) {
            const int row = SL_STATE_STRIDE * j + 4 * group;
            const float4 k = *reinterpret_cast<const float4 *>(token + at::k + row);
            const float4 d = *reinterpret_cast<const float4 *>(token + at::decay + row);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float by = sl_part(d, i);
                float4 &s = state.s[4 * j + i];
                s = sl_fma4(sl_part(k, i), delta, sl_mul4(make_float4(by, by, by, by), s));
            }
        }
        *reinterpret_cast<float4 *>(sum_o + group * n_cols + lane_col) =
            state.dot(token + at::q, group);
        if (t == end) {
            if (page >= 0)
                state.store(a.pages.page(page) + first, a.v_dim, group, a.k_dim, col, a.v_dim);
            if (t + 1 < span.n) {
                end = a.pages.next_end(span, t + 1);
                page = a.pages.page_of(span, end);
            }
        }
        __syncthreads();
        const int c = col - lane_col + static_cast<int>(threadIdx.x);
        if (static_cast<int>(threadIdx.x) < n_cols && c < a.v_dim)
            a.out[((span.first + t) * static_cast<int64_t>(a.n_heads) + head) * a.v_dim + c] =
                sl_sum_groups1(sum_o + threadIdx.x, n_cols);
    }
}

template <int J> static void few(struct sl_cuda *cu, const delta_args &a, int n_lanes)
{
    const size_t smem =
        sizeof(float) * static_cast<size_t>(SL_STATE_FEW * (delta_token<J>::floats + 1) +
                                            2 * SL_STATE_GROUPS * 4 * n_lanes);
    sl_launch(
        cu, delta_rows_few_kernel<J>,
        dim3(static_cast<unsigned>(a.n_heads * a.n_parts), static_cast<unsigned>(a.pages.n_spans)),
        dim3(static_cast<unsigned>(SL_STATE_GROUPS * n_lanes)), smem, a);
}

void sl_cuda_delta_rows(struct sl_cuda *cu, const struct sl_batch *batch, delta_args a)
{
    a.few = a.wide_v ? SL_STATE_FEW : 0;
    const int32_t n_rows = sl_wide_rows(batch, a.few);
    if (n_rows > 0)
        sl_cuda_delta_rows_wide(cu, &a, n_rows);
    if (!sl_wide_leaves(batch, a.few))
        return;
    const int j = SL_CEIL_DIV(a.k_dim, SL_STATE_STRIDE);
    const int n_lanes =
        sl_state_lanes(cu, static_cast<int64_t>(a.pages.n_spans) * a.n_heads, a.v_dim);
    a.n_parts = SL_CEIL_DIV(a.v_dim, 4 * n_lanes);
    (j <= 1 ? few<1> : j <= 4 ? few<4> : few<8>)(cu, a, n_lanes);
}
