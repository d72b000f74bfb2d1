/* SPDX-License-Identifier: MIT
 * ssm.cuh - state space models: what both kernels do of a token.
 *
 * A column is a channel of a head, column c of head c / head_dim. Of a token, with sums as in
 * state.cuh, every step one rounding:
 *
 *   dt        min(max(softplus(dt_in + dt_bias), dt_min), dt_max)
 *   decay     exp(dt a), of the head (Mamba 2) or of each value of a column's state (Mamba 1)
 *   h[s, c]   fma(dt x[c], b[s], decay h[s, c])
 *   out[c]    sum h[s, c] c[s], then fma(d, x[c], sum)
 */
#ifndef SL_CUDA_STATE_SSM_CUH
#define SL_CUDA_STATE_SSM_CUH

#include "cuda/state/state.cuh"

struct ssm_args {
    struct sl_state_pages pages;
    const float *x, *b, *c, *dt_in;
    int64_t ld_x, ld_bc, ld_dt;
    const float *a, *dt_bias, *d;
    float dt_min, dt_max;
    int32_t n_cols;       /* of all heads */
    int32_t n_group_cols; /* of heads that share b and c */
    int32_t head_dim, n_state;
    int32_t n_parts; /* blocks that share a group's columns */
    bool wide_bc;    /* b and c are read 16 bytes at a time */
    int32_t few;     /* spans of more tokens are ssm_wide.cu's */
    bool wide_a;     /* by state: a is read 16 bytes at a time */
    float *out;
};

/* A token in shared memory: b, c, then of each of the block's columns dt x, and its decay, or dt
 * where a value of the state has its own. */
template <int J> struct ssm_token {
    static constexpr int len = SL_STATE_STRIDE * J;
    static constexpr int b = 0, c = len, cols = 2 * len;
};

/* The block's columns: those of part `index` of all, up to the end of its group. */
struct ssm_cols {
    int32_t first, end, group;
    __device__ __forceinline__ ssm_cols(const ssm_args &a, int index, int width)
    {
        group = index / a.n_parts;
        first = group * a.n_group_cols + index % a.n_parts * width;
        end = (group + 1) * a.n_group_cols;
    }
};

/* Four values of b or c of a token, of `len` padded values each: quad i of both. */
template <int J>
static __device__ __forceinline__ void ssm_vectors(const ssm_args &a, int32_t group, int64_t row,
                                                   int i, float *token)
{
    const bool is_c = i >= ssm_token<J>::len / 4;
    const int at = 4 * (is_c ? i - ssm_token<J>::len / 4 : i);
    const float *from =
        (is_c ? a.c : a.b) + row * a.ld_bc + static_cast<int64_t>(group) * a.n_state;
    *reinterpret_cast<float4 *>(token + (is_c ? ssm_token<J>::c : ssm_token<J>::b) + at) =
        sl_load4(from, at, a.n_state, a.wide_bc);
}

/* dt x of a column, and its decay, or dt. */
template <bool BY_STATE>
static __device__ __forceinline__ float2 ssm_column(const ssm_args &a, int64_t row, int32_t col)
{
    const int32_t head = col / a.head_dim;
    const float in = a.dt_in[row * a.ld_dt + head];
    const float dt_raw = sl_softplus(a.dt_bias != nullptr ? __fadd_rn(in, a.dt_bias[head]) : in);
    const float dt = fminf(fmaxf(dt_raw, a.dt_min), a.dt_max);
    return make_float2(__fmul_rn(dt, a.x[row * a.ld_x + col]),
                       BY_STATE ? dt : sl_exp(__fmul_rn(dt, a.a[head])));
}

static __device__ __forceinline__ void ssm_write(const ssm_args &a, int64_t row, int32_t col,
                                                 float sum)
{
    if (a.d != nullptr)
        sum = __fmaf_rn(a.d[col / a.head_dim], a.x[row * a.ld_x + col], sum);
    a.out[row * a.n_cols + col] = sum;
}

/* ssm_wide.cu. Spans of more than a->few tokens. */
void sl_cuda_ssm_wide(struct sl_cuda *cu, const ssm_args *a, bool by_state, int32_t n_rows);

#endif
