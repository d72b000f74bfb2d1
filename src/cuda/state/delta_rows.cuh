/* SPDX-License-Identifier: MIT
 * delta_rows.cuh - the gated delta rule with a decay of each row of the state (KDA), token after
 * token: what both kernels do of a token.
 *
 * Of a token, with sums as in state.cuh, every step one rounding:
 *
 *   q, k      x * (scale / sqrt(sum x^2 + eps)); scale 1 for k
 *   decay     exp(a softplus(decay_in + dt_bias)) of each row, or with a bound
 *             exp(bound / (1 + exp(-(-a (decay_in + dt_bias)))))
 *   beta      beta_scale / (1 + exp(-beta_in))
 *   p         sum (k[i] decay[i]) S[i, d] with S before the token
 *   delta     beta (v - p)
 *   S[i, d]   fma(k[i], delta[d], decay[i] S[i, d])
 *   out[d]    sum q[i] S[i, d]
 *
 * So between two tokens' delta lie only the update, one sum and its way through three shuffles: the
 * decayed state and the sum of q are computed while the shuffles are under way.
 */
#ifndef SL_CUDA_STATE_DELTA_ROWS_CUH
#define SL_CUDA_STATE_DELTA_ROWS_CUH

#include "cuda/state/delta.cuh"

/* Vectors of a token in shared memory, 32 J values each: k, q, k times decay and decay. */
template <int J> struct delta_token {
    static constexpr int len = SL_STATE_STRIDE * J;
    static constexpr int k = 0, q = len, kd = 2 * len, decay = 3 * len;
    static constexpr int floats = 4 * len;
};

static __device__ __forceinline__ float delta_decay(const delta_args &a, float by_head, float x)
{
    return sl_exp(a.bound != 0.0f ? sl_gated(a.bound, __fmul_rn(-by_head, x))
                                  : __fmul_rn(by_head, sl_softplus(x)));
}

/* Eight lanes make a vector of a token: q, or k and what goes with it. All lanes of a warp call it;
 * those without a token have `live` false. */
template <int J>
static __device__ __forceinline__ void delta_vector(const delta_args &a, int head, int64_t row,
                                                    bool is_q, bool live, float *token)
{
    typedef delta_token<J> at;
    const int group = static_cast<int>(threadIdx.x % SL_STATE_GROUPS);
    const int k_head = a.tiled ? head % a.n_k_heads : head / (a.n_heads / a.n_k_heads);
    const float *x = (is_q ? a.q : a.k) + row * a.ld + static_cast<int64_t>(k_head) * a.k_dim;
    float4 v[J];
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < J; j++)
        v[j] = live ? sl_load4(x, SL_STATE_STRIDE * j + 4 * group, a.k_dim, a.wide_qk)
                    : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < J; j++) {
        sum = __fmaf_rn(v[j].x, v[j].x, sum);
        sum = __fmaf_rn(v[j].y, v[j].y, sum);
        sum = __fmaf_rn(v[j].z, v[j].z, sum);
        sum = __fmaf_rn(v[j].w, v[j].w, sum);
    }
    sum = sl_sum_groups<0>(sum);
    const float by = __fdiv_rn(is_q ? a.scale : 1.0f, __fsqrt_rn(__fadd_rn(sum, a.l2_eps)));
    if (!live)
        return;
#pragma unroll
    for (int j = 0; j < J; j++) {
        const int i = SL_STATE_STRIDE * j + 4 * group;
        v[j] = sl_mul4(v[j], make_float4(by, by, by, by));
        *reinterpret_cast<float4 *>(token + (is_q ? at::q : at::k) + i) = v[j];
        if (is_q)
            continue;
        const int64_t first = (row * a.n_heads + head) * a.k_dim;
        const float4 in = sl_load4(a.decay_in + first, i, a.k_dim, a.wide_qk);
        const float4 bias =
            sl_load4(a.dt_bias + static_cast<int64_t>(head) * a.k_dim, i, a.k_dim, false);
        const float4 x4 = sl_add4(in, bias);
        const float by_head = a.a[head];
        const float4 d = make_float4(delta_decay(a, by_head, x4.x), delta_decay(a, by_head, x4.y),
                                     delta_decay(a, by_head, x4.z), delta_decay(a, by_head, x4.w));
        *reinterpret_cast<float4 *>(token + at::decay + i) = d;
        *reinterpret_cast<float4 *>(token + at::kd + i) = sl_mul4(v[j], d);
    }
}

static __device__ __forceinline__ float delta_beta(const delta_args &a, int head, int64_t row)
{
    return sl_gated(a.beta_scale, a.beta_in[row * a.n_heads + head]);
}

static __device__ __forceinline__ float delta_of(float beta, float p, float v)
{
    return __fmul_rn(beta, __fadd_rn(v, -p));
}

/* delta_rows_wide.cu. Spans of more than a->few tokens. */
void sl_cuda_delta_rows_wide(struct sl_cuda *cu, const delta_args *a, int32_t n_rows);

#endif
