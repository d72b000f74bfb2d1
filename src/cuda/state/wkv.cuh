/* SPDX-License-Identifier: MIT
 * wkv.cuh - RWKV-7's recurrence, token after token: what both kernels do of a token.
 *
 * Of a token of a head, with sums as in state.cuh, every step one rounding; wkv.cu makes w, b, kk,
 * and what k and v become, beforehand:
 *
 *   p         sum kk[i] S[i, d] with S before the token
 *   S[i, d]   fma(k[i], v[d], fma(b[i], -p[d], w[i] S[i, d]))
 *   out[d]    sum r[i] S[i, d]
 *
 * So between two tokens' p lie two multiplications and additions, one sum and its way through three
 * shuffles: the decayed state and the sum of r are computed while those are under way.
 */
#ifndef SL_CUDA_STATE_WKV_CUH
#define SL_CUDA_STATE_WKV_CUH

#include "cuda/state/state.cuh"

struct wkv_args {
    struct sl_state_pages pages;
    const float *r, *w, *k, *v, *b, *kk; /* [T, n_heads, dim] */
    int32_t n_heads, dim;
    int32_t n_parts; /* blocks that share a head's columns */
    bool wide;       /* vectors and states are read 16 bytes at a time */
    int32_t few;     /* spans of more tokens are wkv_wide.cu's */
    float *out;
};

/* Vectors of a token in shared memory, 32 J values each. */
template <int J> struct wkv_token {
    static constexpr int len = SL_STATE_STRIDE * J;
    static constexpr int kk = 0, r = len, w = 2 * len, b = 3 * len, k = 4 * len;
    static constexpr int floats = 5 * len;
};

/* Quad i of all of a token's vectors. */
template <int J>
static __device__ __forceinline__ void wkv_bring(const wkv_args &a, int head, int64_t row, int i,
                                                 float *token)
{
    typedef wkv_token<J> at;
    const int which = i / (at::len / 4), first = 4 * (i % (at::len / 4));
    const float *from = which == 0   ? a.kk
                        : which == 1 ? a.r
                        : which == 2 ? a.w
                        : which == 3 ? a.b
                                     : a.k;
    from += (row * a.n_heads + head) * a.dim;
    *reinterpret_cast<float4 *>(token + which * at::len + first) =
        sl_load4(from, first, a.dim, a.wide);
}

/* wkv_wide.cu. Spans of more than a->few tokens. */
void sl_cuda_wkv_wide(struct sl_cuda *cu, const wkv_args *a, int32_t n_rows);

#endif
