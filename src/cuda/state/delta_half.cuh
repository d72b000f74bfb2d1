/* SPDX-License-Identifier: MIT
 * delta_half.cuh - sixteen columns of a state by two warps, for prompts: one has the even sixteens
 * of rows and the other the odd ones, whose sums the rule adds (delta_chunk.cuh). From chunk to
 * chunk what counts is how long a warp's instructions take one behind the other, as few other warps
 * run beside it: each has half of the products with the state and of its update, and half of the
 * outputs. They hand each other sums of k S and q S, once a chunk; R and X both make.
 */
#ifndef SL_CUDA_STATE_DELTA_HALF_CUH
#define SL_CUDA_STATE_DELTA_HALF_CUH

#include "cuda/state/delta_chunk.cuh"

/* Where a lane's row of four 8x8 matrices begins, in the order that makes two neighbouring
 * registers an operand of eight tokens: rows 0 .. 7, two of eight columns, then rows 8 .. 15. */
static __device__ __forceinline__ const uint16_t *delta_tokens_of(const uint16_t *m, int ld,
                                                                  int col)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    return m + (lane % 8 + lane / 16 * 8) * ld + col + lane / 8 % 2 * 8;
}

static __device__ __forceinline__ void delta_mma(float (&sum)[4], const uint32_t (&a)[4],
                                                 uint32_t b0, uint32_t b1)
{
    const uint32_t b[2] = {b0, b1};
    sl_mma_bf16(sum, a, b);
}

/* What a lane hands to the same lane of the other warp: k S of 16 tokens, q S of the other's eight.
 * Two in turns, so that a chunk takes one barrier. */
struct delta_hand {
    float4 part[2][3][32]; /* of a warp */
};

template <int KS> struct delta_half {
    static constexpr int N = (KS + 1) / 2, LD = delta_used<KS>::ld;
    int odd; /* which half */
    float s[N][8];
    uint32_t r[4];
    float x[2][4];

    /* Sixteen j of the half. */
    __device__ __forceinline__ int at(int j) const
    {
        return 2 * j + odd;
    }
    __device__ __forceinline__ bool has_rows() const
    {
        return KS > 1 || odd == 0;
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                s[j][i] = 0.0f;
        r[0] = r[1] = r[2] = r[3] = 0;
    }
    __device__ __forceinline__ void load(const delta_head &h, int tile, bool has_tokens)
    {
        const int lane = static_cast<int>(threadIdx.x % 32);
        const float4 *from = reinterpret_cast<const float4 *>(h.state) + tile * KS * 64 + lane;
        clear();
        if (has_rows())
#pragma unroll
            for (int i = 0; i < 2 * N; i++) {
                const float4 v = from[32 * (2 * at(i / 2) + i % 2)];
                float *to = s[i / 2] + i % 2 * 4;
                to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
            }
        if (has_tokens) {
            const uint4 w = h.r[tile * 32 + lane];
            r[0] = w.x, r[1] = w.y, r[2] = w.z, r[3] = w.w;
        }
    }
    __device__ __forceinline__ void store_state(const delta_head &h, int tile) const
    {
        const int lane = static_cast<int>(threadIdx.x % 32);
        float4 *to = reinterpret_cast<float4 *>(h.state) + tile * KS * 64 + lane;
        if (has_rows())
#pragma unroll
            for (int i = 0; i < 2 * N; i++) {
                const float *from = s[i / 2] + i % 2 * 4;
                to[32 * (2 * at(i / 2) + i % 2)] = make_float4(from[0], from[1], from[2], from[3]);
            }
    }
    __device__ __forceinline__ void store_tokens(const delta_head &h, int tile) const
    {
        h.r[tile * 32 + static_cast<int>(threadIdx.x % 32)] = make_uint4(r[0], r[1], r[2], r[3]);
    }

    /* This half's k S and q S of all sixteen tokens. */
    __device__ __forceinline__ void ask(const delta_used<KS> &c, float (&k)[2][4],
                                        float (&q)[2][4]) const
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
            k[i / 4][i % 4] = q[i / 4][i % 4] = 0.0f;
        if (!has_rows())
            return;
        const uint16_t *of_k = delta_tokens_of(c.k, LD, 16 * odd);
        const uint16_t *of_q = delta_tokens_of(c.q, LD, 16 * odd);
        uint32_t bk[2][4], bq[2][4];
        sl_ldmatrix_x4(bk[0], of_k);
        sl_ldmatrix_x4(bq[0], of_q);
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (j + 1 < N) {
                sl_ldmatrix_x4(bk[(j + 1) % 2], of_k + 32 * (j + 1));
                sl_ldmatrix_x4(bq[(j + 1) % 2], of_q + 32 * (j + 1));
            }
            const uint32_t w[4] = {delta_pack(s[j][0], s[j][1]), delta_pack(s[j][2], s[j][3]),
                                   delta_pack(s[j][4], s[j][5]), delta_pack(s[j][6], s[j][7])};
#pragma unroll
            for (int n = 0; n < 2; n++) {
                delta_mma(k[n], w, bk[j % 2][2 * n], bk[j % 2][2 * n + 1]);
                delta_mma(q[n], w, bq[j % 2][2 * n], bq[j % 2][2 * n + 1]);
            }
        }
    }

    /* R of new tokens and X, of k S of both halves. v: [n][h][e] of token 8 n + 2 (lane % 4) + e
     * and column lane / 4 + 8 h. */
    __device__ __forceinline__ void solve(const delta_used<KS> &c, const delta_piece &p,
                                          const float (&mine)[2][4], const float4 (&other)[2],
                                          const float (&v)[2][2][2])
    {
        const int token = 2 * (static_cast<int>(threadIdx.x) % 4);
        uint32_t d[4];
        sl_ldmatrix_x4(d, delta_tokens_of(c.inverse, SL_DELTA_LD, 0));
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float2 beta = *reinterpret_cast<const float2 *>(c.beta + 8 * n + token);
            const float2 by = *reinterpret_cast<const float2 *>(c.exp_g + 8 * n + token);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int i = 8 * n + token;
                const float first = __fadd_rn(mine[n][2 * h], sl_part(other[n], 2 * h));
                const float second = __fadd_rn(mine[n][2 * h + 1], sl_part(other[n], 2 * h + 1));
                const float r0 = __fmul_rn(beta.x, __fmaf_rn(-by.x, first, v[n][h][0]));
                const float r1 = __fmul_rn(beta.y, __fmaf_rn(-by.y, second, v[n][h][1]));
                const uint32_t keep =
                    (i < p.from ? 0xFFFFu : 0) | (i + 1 < p.from ? 0xFFFF0000u : 0);
                const uint32_t now = delta_pack(i < p.to ? r0 : 0.0f, i + 1 < p.to ? r1 : 0.0f);
                r[2 * n + h] = (r[2 * n + h] & keep) | (now & ~keep);
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++) {
            x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0.0f;
            delta_mma(x[n], r, d[2 * n], d[2 * n + 1]);
        }
    }

    /* The outputs of the half's eight tokens, which are new: of q S of both halves. */
    __device__ __forceinline__ void outputs(const delta_used<KS> &c, const delta_piece &p,
                                            const float (&mine)[4], const float4 &other, float *out,
                                            int64_t ld, int n_cols) const
    {
        const int i = 8 * odd + 2 * (static_cast<int>(threadIdx.x) % 4);
        uint32_t mix[4];
        float o[4] = {};
        sl_ldmatrix_x4(mix, delta_tokens_of(c.mix, SL_DELTA_LD, 0));
        const uint32_t w[4] = {delta_pack(x[0][0], x[0][1]), delta_pack(x[0][2], x[0][3]),
                               delta_pack(x[1][0], x[1][1]), delta_pack(x[1][2], x[1][3])};
        delta_mma(o, w, odd ? mix[2] : mix[0], odd ? mix[3] : mix[1]);
        const float2 by = *reinterpret_cast<const float2 *>(c.exp_g + i);
        float *to = out + i * ld;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float sum = __fadd_rn(mine[e], sl_part(other, e));
            if (i + e % 2 >= p.from && i + e % 2 < p.to && e / 2 * 8 < n_cols)
                to[e % 2 * ld + e / 2 * 8] = __fmaf_rn(e % 2 == 0 ? by.x : by.y, sum, o[e]);
        }
    }

    /* The half's rows of S behind the chunk's last token. */
    __device__ __forceinline__ void advance(const delta_used<KS> &c)
    {
        const int token = 2 * (static_cast<int>(threadIdx.x) % 4);
        const float by = c.exp_g[SL_DELTA_CHUNK - 1];
        uint32_t y[4];
        if (!has_rows())
            return;
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float2 tail = *reinterpret_cast<const float2 *>(c.tail + 8 * n + token);
#pragma unroll
            for (int h = 0; h < 2; h++)
                y[2 * n + h] =
                    delta_pack(__fmul_rn(tail.x, x[n][2 * h]), __fmul_rn(tail.y, x[n][2 * h + 1]));
        }
        const uint16_t *of_k = delta_rows_of(c.k, LD, 16 * odd);
        uint32_t k[2][4];
        sl_ldmatrix_x4_trans(k[0], of_k);
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (j + 1 < N)
                sl_ldmatrix_x4_trans(k[(j + 1) % 2], of_k + 32 * (j + 1));
#pragma unroll
            for (int i = 0; i < 8; i++)
                s[j][i] = __fmul_rn(by, s[j][i]);
            sl_mma_bf16(s[j], y, k[j % 2]);
            sl_mma_bf16(s[j] + 4, y, k[j % 2] + 2);
        }
    }
};

#endif
