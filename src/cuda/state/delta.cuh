/* SPDX-License-Identifier: MIT
 * delta.cuh - the gated delta rule: what both kernels do of a token.
 *
 * Of a token, with sums as in state.cuh, every step one rounding:
 *
 *   q, k      x * (scale / sqrt(sum x^2 + eps)); scale 1 for k
 *   decay     exp(a softplus(decay_in + dt_bias)), of the head or of each row (KDA)
 *   beta      beta_scale / (1 + exp(-beta_in))
 *   p         sum k[i] S[i, d] with S before the token; by row sum (k[i] decay[i]) S[i, d]
 *   delta     beta fma(-decay, p, v); by row beta (v - p)
 *   S[i, d]   fma(k[i], delta[d], decay S[i, d])
 *   out[d]    sum q[i] S[i, d]
 *
 * So between two tokens' delta lie only the update, one sum and its way through three shuffles: the
 * decayed state and the sum of q are computed while the shuffles are under way.
 */
#ifndef SL_CUDA_STATE_DELTA_CUH
#define SL_CUDA_STATE_DELTA_CUH

#include "cuda/state/state.cuh"

struct delta_args {
    struct sl_state_pages pages;
    const float *q, *k, *v;
    int64_t ld;
    const float *decay_in, *beta_in, *a, *dt_bias;
    float l2_eps, scale, beta_scale;
    int32_t n_heads, n_k_heads, k_dim, v_dim;
    int32_t n_parts; /* blocks that share a head's columns */
    bool tiled;      /* heads of q and k take turns */
    bool wide_qk;    /* q, k and decay_in by row are read 16 bytes at a time */
    bool wide_v;     /* v and the state's rows */
    float *out;
    int32_t few; /* spans of more tokens are delta_wide.cu's */
};

/* Vectors of a token in shared memory, 32 J values each: k, q, by row k times decay and decay. */
template <int J, bool BY_ROW> struct delta_token {
    static constexpr int len = SL_STATE_STRIDE * J;
    static constexpr int k = 0, q = len, kd = BY_ROW ? 2 * len : 0, decay = 3 * len;
    static constexpr int floats = (BY_ROW ? 4 : 2) * len;
};

/* Eight lanes make a vector of a token: q, or k and what goes with it. All lanes of a warp call it;
 * those without a token have `live` false. */
template <int J, bool BY_ROW>
static __device__ __forceinline__ void delta_vector(const delta_args &a, int head, int64_t row,
                                                    bool is_q, bool live, float *token)
{
    typedef delta_token<J, BY_ROW> at;
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
        if (!BY_ROW || is_q)
            continue;
        const int64_t first = (row * a.n_heads + head) * a.k_dim;
        const float4 in = sl_load4(a.decay_in + first, i, a.k_dim, a.wide_qk);
        const float4 bias =
            sl_load4(a.dt_bias + static_cast<int64_t>(head) * a.k_dim, i, a.k_dim, false);
        const float4 x4 = sl_add4(in, bias);
        const float by_head = a.a[head];
        const float4 d = make_float4(sl_exp(__fmul_rn(by_head, sl_softplus(x4.x))),
                                     sl_exp(__fmul_rn(by_head, sl_softplus(x4.y))),
                                     sl_exp(__fmul_rn(by_head, sl_softplus(x4.z))),
                                     sl_exp(__fmul_rn(by_head, sl_softplus(x4.w))));
        *reinterpret_cast<float4 *>(token + at::decay + i) = d;
        *reinterpret_cast<float4 *>(token + at::kd + i) = sl_mul4(v[j], d);
    }
}

/* The decay of the head, 1 where each row has its own, and beta. */
template <bool BY_ROW>
static __device__ __forceinline__ float2 delta_gates(const delta_args &a, int head, int64_t row)
{
    const int64_t at = row * a.n_heads + head;
    float decay = 1.0f;
    if (!BY_ROW)
        decay =
            sl_exp(__fmul_rn(a.a[head], sl_softplus(__fadd_rn(a.decay_in[at], a.dt_bias[head]))));
    return make_float2(decay, sl_gated(a.beta_scale, a.beta_in[at]));
}

template <bool BY_ROW>
static __device__ __forceinline__ float delta_of(float2 gates, float p, float v)
{
    const float rest = BY_ROW ? __fadd_rn(v, -p) : __fmaf_rn(-gates.x, p, v);
    return __fmul_rn(gates.y, rest);
}

/* delta_wide.cu. Spans of more than a->few tokens. */
void sl_cuda_delta_wide(struct sl_cuda *cu, const delta_args *a, bool by_row, int32_t n_rows);

#endif
