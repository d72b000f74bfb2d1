/* SPDX-License-Identifier: MIT
 * delta_chunk.cuh - the gated delta rule by chunks of sixteen tokens, which lie at absolute
 * positions: 0 .. 15, 16 .. 31, ...
 *
 * A page keeps the state S before the last chunk that was begun, and of the tokens that are in it
 * what a later one of the same chunk needs. So a token has one arithmetic, whether it comes alone
 * (decode), as a draft, or with a prompt; and decode reads a state and writes it once in sixteen
 * tokens. With i, j tokens of a chunk, every product of matrices by m16n8k16 of BF16 with sums in
 * float, every other step one rounding:
 *
 *   q, k      x * (scale / sqrt(sum x^2 + eps)), sums as in state.cuh; scale 1 for k; made BF16
 *   g[i]      g[i - 1] + a softplus(decay_in + dt_bias); g[-1] = 0
 *   e[i, j]   exp(g[i] - g[j])
 *   beta      beta_scale / (1 + exp(-beta_in))
 *   L[i, j]   beta[i] (e[i, j] (k[i] . k[j])), j < i
 *   D         the inverse of 1 + L by rows in float: D[i, m] = -sum of L[i, j] D[j, m], one
 *             chain of fma over j = 0 .. i - 1
 *   R[i]      beta[i] fma(-exp(g[i]), k[i] S, v[i]), made BF16
 *   X         D R, with D made BF16
 *   out[i]    fma(exp(g[i]), q[i] S, sum of mix[i, j] X[j]) with
 *             mix[i, j] = e[i, j] (q[i] . k[j]), j <= i, mix and X made BF16
 *   S         behind token 15: exp(g[15]) S + sum of k[j] y[j], y[j] = e[15, j] X[j] made BF16
 *
 * For k S and q S S is made BF16; their sums over k_dim are of the even and of the odd sixteens of
 * rows, added. S itself is float. A warp has sixteen columns of S, transposed: S^T is the result of
 * the last product and the left operand of the first two, so it stays in registers.
 */
#ifndef SL_CUDA_STATE_DELTA_CHUNK_CUH
#define SL_CUDA_STATE_DELTA_CHUNK_CUH

#include "cuda/state/delta.cuh"

#include <cuda_bf16.h>

#define SL_DELTA_CHUNK 16 /* tokens; a tile of positions (SL_KV_TILE) */
#define SL_DELTA_LD    24 /* 16-bit values between rows of mix and D: no bank conflicts */
#define SL_DELTA_L     20 /* floats between rows of L */

/* A head's part of a page: S^T as the registers of warps have it, then R as they have it, k, D and
 * g of the tokens of the chunk. What lies behind the tokens that are there is undefined. */
struct delta_head {
    float *state; /* [v_tiles, KS, 2, 32 lanes, 4] */
    uint4 *r;     /* [v_tiles, 32 lanes] */
    uint16_t *k;  /* [16, 16 KS] */
    float *d;     /* [16, 16] */
    float *g;     /* [16] */
};

/* Sixteens of rows that a kernel is made for. */
static inline int32_t delta_k_tiles(int32_t k_dim)
{
    int32_t n = 1;
    while (16 * n < k_dim)
        n *= 2;
    return n;
}

static __host__ __device__ __forceinline__ size_t delta_head_bytes(int32_t k_tiles, int32_t v_tiles)
{
    return static_cast<size_t>(1024 * k_tiles * v_tiles + 512 * v_tiles + 512 * k_tiles + 1024 +
                               64);
}

template <int KS>
static __device__ __forceinline__ delta_head delta_head_at(float *page, int head, int v_tiles)
{
    uint8_t *at = reinterpret_cast<uint8_t *>(page) +
                  static_cast<size_t>(head) * delta_head_bytes(KS, v_tiles);
    delta_head h;
    h.state = reinterpret_cast<float *>(at);
    at += 1024 * KS * v_tiles;
    h.r = reinterpret_cast<uint4 *>(at);
    at += 512 * v_tiles;
    h.k = reinterpret_cast<uint16_t *>(at);
    h.d = reinterpret_cast<float *>(at + 512 * KS);
    h.g = h.d + SL_DELTA_CHUNK * SL_DELTA_CHUNK;
    return h;
}

/* Tokens of a chunk: from .. to - 1 are computed, those before are in the page. */
struct delta_piece {
    int64_t row; /* that token 0 of the chunk has, or would have */
    int32_t from, to;
};

/* The piece of a span that begins with its token t. */
static __device__ __forceinline__ delta_piece delta_piece_at(const struct sl_span &s, int32_t t)
{
    delta_piece p;
    p.from = (s.pos + t) % SL_DELTA_CHUNK;
    p.to = min(SL_DELTA_CHUNK, p.from + s.n - t);
    p.row = static_cast<int64_t>(s.first) + t - p.from;
    return p;
}

/* The next place of a span where its state is stored: behind token t, in this page, which is known
 * before it is wanted; below 0: in none. */
struct delta_end {
    int32_t t, page;
};

static __device__ __forceinline__ delta_end delta_end_from(const struct sl_state_pages &pages,
                                                           const struct sl_span &span, int32_t t)
{
    delta_end e = {pages.next_end(span, t), -1};
    if (e.t < span.n)
        e.page = pages.page_of(span, e.t);
    return e;
}

/* Where the state is stored in a piece that begins with token t: keep(page, n) behind n tokens of
 * the chunk; advance() before that of a whole chunk. */
template <typename Keep, typename Advance>
static __device__ __forceinline__ void delta_ends(const struct sl_state_pages &pages,
                                                  const struct sl_span &span, int32_t t,
                                                  const delta_piece &p, delta_end *end, Keep keep,
                                                  Advance advance)
{
    const bool full = p.to == SL_DELTA_CHUNK;
    const int32_t next = t + p.to - p.from;
    for (; end->t < next - full; *end = delta_end_from(pages, span, end->t + 1))
        if (end->page >= 0)
            keep(pages.page(end->page), p.from + end->t - t + 1);
    if (!full)
        return;
    advance();
    if (end->t < next) {
        if (end->page >= 0)
            keep(pages.page(end->page), SL_DELTA_CHUNK);
        *end = delta_end_from(pages, span, next);
    }
}

/* What columns need of a chunk: k and q of the key head, the rest of the head. */
template <int KS> struct delta_used {
    static constexpr int ld = 16 * KS + 8;
    uint16_t k[SL_DELTA_CHUNK * ld], q[SL_DELTA_CHUNK * ld];
    uint16_t mix[SL_DELTA_CHUNK * SL_DELTA_LD], inverse[SL_DELTA_CHUNK * SL_DELTA_LD];
    float exp_g[SL_DELTA_CHUNK], beta[SL_DELTA_CHUNK], tail[SL_DELTA_CHUNK];
};

/* And what pages keep, and L. */
template <int KS> struct delta_stage : delta_used<KS> {
    float g[SL_DELTA_CHUNK];
    float d[SL_DELTA_CHUNK * SL_DELTA_CHUNK];
    float l[SL_DELTA_CHUNK * SL_DELTA_L];
};

static __device__ __forceinline__ uint32_t delta_pack(float lo, float hi)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(lo, hi);
    uint32_t bits;
    memcpy(&bits, &pair, 4);
    return bits;
}

/* Where a lane's row of four 8x8 matrices begins: rows 0 .. 15, two of eight columns. */
static __device__ __forceinline__ const uint16_t *delta_rows_of(const uint16_t *m, int ld, int col,
                                                                int lane)
{
    return m + lane % 16 * ld + col + lane / 16 * 8;
}

/* The key head of a head, and the n-th head of a key head. */
static __device__ __forceinline__ int delta_k_head(const delta_args &a, int head)
{
    return a.tiled ? head % a.n_k_heads : head / (a.n_heads / a.n_k_heads);
}

static __device__ __forceinline__ int delta_head_of(const delta_args &a, int k_head, int n)
{
    return a.tiled ? k_head + n * a.n_k_heads : k_head * (a.n_heads / a.n_k_heads) + n;
}

/* ------------------------------------------------------------------ what a warp prepares */

/* q and k of new tokens: eight lanes make a vector; AT_ONCE vectors of each lane are under way.
 * Four by four they are the warps' in turns. */
template <int KS, int AT_ONCE>
static __device__ __forceinline__ void delta_vectors(const delta_args &a, int head,
                                                     const delta_piece &p, delta_stage<KS> *to,
                                                     int warp, int n_warps)
{
    constexpr int J = (KS + 1) / 2;
    const int group = static_cast<int>(threadIdx.x % SL_STATE_GROUPS);
    const int place = static_cast<int>(threadIdx.x % 32) / SL_STATE_GROUPS;
    const int64_t first = static_cast<int64_t>(delta_k_head(a, head)) * a.k_dim;
#pragma unroll 1
    for (int i = 2 * p.from + 4 * AT_ONCE * warp; i < 2 * p.to; i += 4 * AT_ONCE * n_warps) {
        float4 v[AT_ONCE][J];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            const int mine = i + 4 * n + place, row = mine / 2;
            const float *x = (mine % 2 == 0 ? a.q : a.k) + (p.row + row) * a.ld + first;
#pragma unroll
            for (int j = 0; j < J; j++)
                v[n][j] = row < p.to
                              ? sl_load4(x, SL_STATE_STRIDE * j + 4 * group, a.k_dim, a.wide_qk)
                              : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            const int mine = i + 4 * n + place, row = mine / 2;
            const bool is_q = mine % 2 == 0;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sum = __fmaf_rn(sl_part(v[n][j], e), sl_part(v[n][j], e), sum);
            sum = sl_sum_groups<0>(sum);
            const float by = __fdiv_rn(is_q ? a.scale : 1.0f, __fsqrt_rn(__fadd_rn(sum, a.l2_eps)));
            uint16_t *at = (is_q ? to->q : to->k) + row * delta_stage<KS>::ld;
#pragma unroll
            for (int j = 0; j < J; j++) {
                const int col = SL_STATE_STRIDE * j + 4 * group;
                const float4 x = sl_mul4(v[n][j], make_float4(by, by, by, by));
                if (row < p.to && col < 16 * KS)
                    *reinterpret_cast<uint2 *>(at + col) =
                        make_uint2(delta_pack(x.x, x.y), delta_pack(x.z, x.w));
            }
        }
    }
}

/* A warp's: what depends on the decays, and beta. */
template <int KS>
static __device__ __forceinline__ void delta_gates(const delta_args &a, int head,
                                                   const delta_piece &p, const delta_head &old,
                                                   delta_stage<KS> *to)
{
    const int i = static_cast<int>(threadIdx.x % SL_DELTA_CHUNK);
    const bool is_new = i >= p.from && i < p.to;
    float step = 0.0f, beta = 0.0f;
    float g = p.from == 0 ? 0.0f : old.g[min(i, p.from - 1)];
    if (is_new) {
        const int64_t at = (p.row + i) * a.n_heads + head;
        step = __fmul_rn(a.a[head], sl_softplus(__fadd_rn(a.decay_in[at], a.dt_bias[head])));
        beta = sl_gated(a.beta_scale, a.beta_in[at]);
    }
#pragma unroll
    for (int j = 0; j < SL_DELTA_CHUNK; j++) {
        const float x = __shfl_sync(0xffffffffu, step, j);
        if (j >= p.from && j < p.to && j <= i)
            g = __fadd_rn(g, x);
    }
    const float last = __shfl_sync(0xffffffffu, g, SL_DELTA_CHUNK - 1);
    if (threadIdx.x % 32 >= SL_DELTA_CHUNK)
        return;
    to->g[i] = g;
    to->exp_g[i] = sl_exp(g);
    to->beta[i] = beta;
    to->tail[i] = p.to == SL_DELTA_CHUNK ? sl_exp(__fadd_rn(last, -g)) : 0.0f;
}

/* k of the first n tokens of the chunk, and the rows of D, by threads of which this is the
 * thread-th; on its way until sl_cp_async_wait. */
template <int KS>
static __device__ __forceinline__ void delta_recall_k(int n, const delta_head &old,
                                                      delta_stage<KS> *to, int thread,
                                                      int n_threads)
{
    for (int i = thread; i < n * 2 * KS; i += n_threads)
        sl_cp_async16(to->k + i / (2 * KS) * delta_stage<KS>::ld + i % (2 * KS) * 8, old.k + i * 8,
                      true);
}

template <int KS>
static __device__ __forceinline__ void delta_recall_d(int n, const delta_head &old,
                                                      delta_stage<KS> *to, int thread,
                                                      int n_threads)
{
    for (int i = thread; i < n * SL_DELTA_CHUNK / 4; i += n_threads)
        sl_cp_async16(to->d + 4 * i, old.d + 4 * i, true);
}

/* k k^T and q k^T of a chunk, as a lane of a warp has them: the same for heads that share k and q.
 */
struct delta_pairs {
    float kk[2][4], qk[2][4];
};

template <int KS>
static __device__ __forceinline__ void delta_pair(const delta_stage<KS> &of, delta_pairs *to)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            to->kk[n][e] = to->qk[n][e] = 0.0f;
#pragma unroll
    for (int ks = 0; ks < KS; ks++) {
        uint32_t k[4], q[4];
        sl_ldmatrix_x4(k, delta_rows_of(of.k, delta_stage<KS>::ld, 16 * ks, lane));
        sl_ldmatrix_x4(q, delta_rows_of(of.q, delta_stage<KS>::ld, 16 * ks, lane));
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const uint32_t b[2] = {k[n], k[n + 2]};
            sl_mma_bf16(to->kk[n], k, b);
            sl_mma_bf16(to->qk[n], q, b);
        }
    }
}

/* L in float and mix in BF16, of new tokens. */
template <int KS>
static __device__ __forceinline__ void delta_mix(const delta_piece &p, const delta_pairs &of,
                                                 delta_stage<KS> *to)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = lane / 4 + 8 * h, j = 8 * n + 2 * (lane % 4);
            const bool is_new = i >= p.from && i < p.to;
            float mix[2] = {0, 0};
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float l = 0.0f;
                if (is_new && j + e <= i) {
                    const float by = sl_exp(__fadd_rn(to->g[i], -to->g[j + e]));
                    mix[e] = __fmul_rn(by, of.qk[n][2 * h + e]);
                    l = __fmul_rn(to->beta[i], __fmul_rn(by, of.kk[n][2 * h + e]));
                }
                to->l[i * SL_DELTA_L + j + e] = l;
            }
            *reinterpret_cast<uint32_t *>(to->mix + i * SL_DELTA_LD + j) =
                delta_pack(mix[0], mix[1]);
        }
}

/* The rows of D of new tokens: a lane has a column. */
template <int KS>
static __device__ __forceinline__ void delta_invert(const delta_piece &p, delta_stage<KS> *to)
{
    const int m = static_cast<int>(threadIdx.x % SL_DELTA_CHUNK);
    float col[SL_DELTA_CHUNK];
#pragma unroll
    for (int i = 0; i < SL_DELTA_CHUNK; i++) {
        col[i] = 0.0f;
        if (i < p.from) {
            col[i] = to->d[i * SL_DELTA_CHUNK + m];
        } else if (i < p.to) {
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < i; j += 4) { /* L is 0 from i on */
                const float4 l = *reinterpret_cast<const float4 *>(to->l + i * SL_DELTA_L + j);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (j + e < i)
                        sum = __fmaf_rn(sl_part(l, e), col[j + e], sum);
            }
            col[i] = m < i ? -sum : m == i ? 1.0f : 0.0f;
        }
    }
    if (threadIdx.x % 32 >= SL_DELTA_CHUNK)
        return;
#pragma unroll
    for (int i = 0; i < SL_DELTA_CHUNK; i++) {
        if (i >= p.from)
            to->d[i * SL_DELTA_CHUNK + m] = col[i];
        to->inverse[i * SL_DELTA_LD + m] = static_cast<uint16_t>(delta_pack(col[i], 0.0f));
    }
}

/* v of new tokens, n_cols columns from `first` on, by threads of which this is the thread-th; on
 * its way until sl_cp_async_wait. */
static __device__ __forceinline__ void delta_values(const delta_args &a, int head,
                                                    const delta_piece &p, int first, int n_cols,
                                                    int thread, int n_threads, float *to, int ld)
{
    const float *values = a.v + p.row * a.ld + static_cast<int64_t>(head) * a.v_dim;
    const int quads = n_cols / 4;
    for (int i = p.from * quads + thread; i < p.to * quads; i += n_threads) {
        const int col = first + i % quads * 4;
        const float *from = values + i / quads * a.ld;
        float *at = to + i / quads * ld + i % quads * 4;
        if (a.wide_v)
            sl_cp_async16(at, from + (col < a.v_dim ? col : 0), col < a.v_dim);
        else
            *reinterpret_cast<float4 *>(at) = sl_load4(from, col, a.v_dim, false);
    }
}

/* A warp keeps tokens from .. to - 1 of a chunk in a page, but what the columns' warps keep: k of
 * the stage, g and d [16, 16]. */
template <int KS>
static __device__ __forceinline__ void delta_keep(const delta_used<KS> &s, const float *g,
                                                  const float *d, const delta_head &page, int from,
                                                  int to)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int i = from * 2 * KS + lane; i < to * 2 * KS; i += 32)
        *reinterpret_cast<uint4 *>(page.k + i * 8) = *reinterpret_cast<const uint4 *>(
            s.k + i / (2 * KS) * delta_used<KS>::ld + i % (2 * KS) * 8);
    for (int i = from * SL_DELTA_CHUNK + lane; i < to * SL_DELTA_CHUNK; i += 32)
        page.d[i] = d[i];
    if (lane >= from && lane < to)
        page.g[lane] = g[lane];
}

/* ------------------------------------------------------------------ sixteen columns */

/* What a lane needs of a chunk beside matrices: of its tokens, 8 n + 2 (lane % 4) + e, and of v its
 * columns lane / 4 + 8 h. As it is wanted, by v in shared memory, of token 0 and the lane's first
 * column, rows LD_V apart ... */
template <int KS, int LD_V> struct delta_late {
    const delta_used<KS> &c;
    const float *values;
    int lane;

    __device__ __forceinline__ int token(int n, int e) const
    {
        return 8 * n + 2 * (lane % 4) + e;
    }
    __device__ __forceinline__ float exp_g(int n, int e) const
    {
        return c.exp_g[token(n, e)];
    }
    __device__ __forceinline__ float beta(int n, int e) const
    {
        return c.beta[token(n, e)];
    }
    __device__ __forceinline__ float tail(int n, int e) const
    {
        return c.tail[token(n, e)];
    }
    __device__ __forceinline__ float last() const
    {
        return c.exp_g[SL_DELTA_CHUNK - 1];
    }
    __device__ __forceinline__ float v(int n, int h, int e) const
    {
        return values[token(n, e) * LD_V + 8 * h];
    }
};

/* ... or all at once, before a chain of products: 21 registers. */
struct delta_early {
    int lane;
    float of_exp_g[2][2], of_beta[2][2], of_tail[2][2], of_v[2][2][2], of_last;

    template <typename Late> __device__ __forceinline__ void load(const Late &from)
    {
        lane = from.lane;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                of_exp_g[n][e] = from.exp_g(n, e);
                of_beta[n][e] = from.beta(n, e);
                of_tail[n][e] = from.tail(n, e);
                of_v[n][0][e] = from.v(n, 0, e);
                of_v[n][1][e] = from.v(n, 1, e);
            }
        of_last = from.last();
    }
    __device__ __forceinline__ float exp_g(int n, int e) const
    {
        return of_exp_g[n][e];
    }
    __device__ __forceinline__ float beta(int n, int e) const
    {
        return of_beta[n][e];
    }
    __device__ __forceinline__ float tail(int n, int e) const
    {
        return of_tail[n][e];
    }
    __device__ __forceinline__ float last() const
    {
        return of_last;
    }
    __device__ __forceinline__ float v(int n, int h, int e) const
    {
        return of_v[n][h][e];
    }
};

/* k S and q S of a lane: [even and odd sixteens of rows, tokens 0 .. 7 and 8 .. 15, as S^T]. */
struct delta_asked {
    float k[2][2][4], q[2][2][4];
};

static __device__ __forceinline__ void delta_clear(float asked[2][2][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            asked[i / 2][i % 2][e] = 0.0f;
}

/* What the warp that has sixteen columns leaves for another one, which makes their outputs: S
 * before the chunk and X, as operands. */
template <int KS> struct delta_mail {
    uint4 s[32 * KS], x[32];
};

/* q S. */
template <int KS>
static __device__ __forceinline__ void delta_ask_mail(const delta_used<KS> &c,
                                                      const delta_mail<KS> &from, int lane,
                                                      float asked[2][2][4])
{
    delta_clear(asked);
#pragma unroll
    for (int ks = 0; ks < KS; ks++) {
        uint32_t q[4];
        sl_ldmatrix_x4(q, delta_rows_of(c.q, delta_used<KS>::ld, 16 * ks, lane));
        const uint4 v = from.s[32 * ks + lane];
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const uint32_t b[2] = {q[n], q[n + 2]};
            sl_mma_bf16(asked[ks % 2][n], w, b);
        }
    }
}

/* What a lane has of them: S^T as the product's result lies, and words of R and X, each with two
 * tokens of a column: word 2 n + h is of column lane / 4 + 8 h, tokens 8 n + 2 (lane % 4) .. */
template <int KS> struct delta_columns {
    int lane;
    float s[KS][8];
    uint32_t r[4];
    float x[2][4];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int ks = 0; ks < KS; ks++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                s[ks][i] = 0.0f;
        r[0] = r[1] = r[2] = r[3] = 0;
    }
    __device__ __forceinline__ void load(const delta_head &h, int tile, bool has_tokens)
    {
        const float4 *from = reinterpret_cast<const float4 *>(h.state) + tile * KS * 64 + lane;
#pragma unroll
        for (int i = 0; i < 2 * KS; i++) {
            const float4 v = from[32 * i];
            float *to = s[i / 2] + i % 2 * 4;
            to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
        }
        uint4 w = make_uint4(0, 0, 0, 0);
        if (has_tokens)
            w = h.r[tile * 32 + lane];
        r[0] = w.x, r[1] = w.y, r[2] = w.z, r[3] = w.w;
    }
    __device__ __forceinline__ void store_state(const delta_head &h, int tile) const
    {
        float4 *to = reinterpret_cast<float4 *>(h.state) + tile * KS * 64 + lane;
#pragma unroll
        for (int i = 0; i < 2 * KS; i++) {
            const float *from = s[i / 2] + i % 2 * 4;
            to[32 * i] = make_float4(from[0], from[1], from[2], from[3]);
        }
    }
    __device__ __forceinline__ void store_tokens(const delta_head &h, int tile) const
    {
        h.r[tile * 32 + lane] = make_uint4(r[0], r[1], r[2], r[3]);
    }

    /* S of sixteen rows as a product's left operand. */
    __device__ __forceinline__ void operand(int ks, uint32_t w[4]) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = delta_pack(s[ks][2 * i], s[ks][2 * i + 1]);
    }

    /* k S and q S, of even and of odd sixteens of rows. AHEAD: the next operands are under way
     * while products are computed, for 16 registers more. ALL: of tokens that are not wanted too,
     * without branches. */
    template <bool AHEAD, bool ALL>
    __device__ __forceinline__ void ask(const delta_used<KS> &c, const delta_piece &p,
                                        delta_asked *to) const
    {
        constexpr int N = AHEAD ? 2 : 1, LD = delta_used<KS>::ld;
        const bool wants[2] = {ALL || p.from < 8, ALL || p.to > 8};
        uint32_t k[N][4], q[N][4];
        if (AHEAD) {
            sl_ldmatrix_x4(k[0], delta_rows_of(c.k, LD, 0, lane));
            sl_ldmatrix_x4(q[0], delta_rows_of(c.q, LD, 0, lane));
        }
        delta_clear(to->k);
        delta_clear(to->q);
#pragma unroll
        for (int ks = 0; ks < KS; ks++) {
            const int at = ks % N, next = AHEAD ? ks + 1 : ks;
            if (next < KS) {
                sl_ldmatrix_x4(k[next % N], delta_rows_of(c.k, LD, 16 * next, lane));
                sl_ldmatrix_x4(q[next % N], delta_rows_of(c.q, LD, 16 * next, lane));
            }
            uint32_t w[4];
            operand(ks, w);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const uint32_t bk[2] = {k[at][n], k[at][n + 2]}, bq[2] = {q[at][n], q[at][n + 2]};
                if (wants[n]) {
                    sl_mma_bf16(to->k[ks % 2][n], w, bk);
                    sl_mma_bf16(to->q[ks % 2][n], w, bq);
                }
            }
        }
    }
    /* k S alone; S as it was multiplied goes to `to`. */
    __device__ __forceinline__ void ask_keys(const delta_used<KS> &c, delta_mail<KS> *to,
                                             float asked[2][2][4]) const
    {
        delta_clear(asked);
#pragma unroll
        for (int ks = 0; ks < KS; ks++) {
            uint32_t k[4], w[4];
            sl_ldmatrix_x4(k, delta_rows_of(c.k, delta_used<KS>::ld, 16 * ks, lane));
            operand(ks, w);
            to->s[32 * ks + lane] = make_uint4(w[0], w[1], w[2], w[3]);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const uint32_t b[2] = {k[n], k[n + 2]};
                sl_mma_bf16(asked[ks % 2][n], w, b);
            }
        }
    }
    /* R and X of new tokens. */
    template <typename By>
    __device__ __forceinline__ void solve(const delta_used<KS> &c, const delta_piece &p,
                                          const By &by, const float asked[2][2][4])
    {
        uint32_t d[4];
        sl_ldmatrix_x4(d, delta_rows_of(c.inverse, SL_DELTA_LD, 0, lane));
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t keep = 0;
                float rest[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int i = 8 * n + 2 * (lane % 4) + e;
                    const float sum = __fadd_rn(asked[0][n][2 * h + e], asked[1][n][2 * h + e]);
                    rest[e] =
                        __fmul_rn(by.beta(n, e), __fmaf_rn(-by.exp_g(n, e), sum, by.v(n, h, e)));
                    rest[e] = i < p.to ? rest[e] : 0.0f;
                    keep |= i < p.from ? 0xFFFFu << 16 * e : 0;
                }
                const uint32_t now = delta_pack(rest[0], rest[1]);
                r[2 * n + h] = (r[2 * n + h] & keep) | (now & ~keep);
            }
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const uint32_t b[2] = {d[n], d[n + 2]};
            x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0.0f;
            sl_mma_bf16(x[n], r, b);
        }
    }
    /* X as a product's left operand. */
    __device__ __forceinline__ void x_words(uint32_t w[4]) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = delta_pack(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
    }
    /* S behind the chunk's last token. */
    template <typename By>
    __device__ __forceinline__ void advance(const delta_used<KS> &c, const By &by)
    {
        const float last = by.last();
        uint32_t y[4];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                y[2 * n + h] = delta_pack(__fmul_rn(by.tail(n, 0), x[n][2 * h]),
                                          __fmul_rn(by.tail(n, 1), x[n][2 * h + 1]));
        uint32_t k[2][4];
        sl_ldmatrix_x4_trans(k[0], delta_rows_of(c.k, delta_used<KS>::ld, 0, lane));
#pragma unroll
        for (int ks = 0; ks < KS; ks++) {
            if (ks + 1 < KS)
                sl_ldmatrix_x4_trans(k[(ks + 1) % 2],
                                     delta_rows_of(c.k, delta_used<KS>::ld, 16 * ks + 16, lane));
#pragma unroll
            for (int i = 0; i < 8; i++)
                s[ks][i] = __fmul_rn(last, s[ks][i]);
            sl_mma_bf16(s[ks], y, k[ks % 2]);
            sl_mma_bf16(s[ks] + 4, y, k[ks % 2] + 2);
        }
    }
};

/* The outputs of new tokens. x: X as words; asked: q S; out: of token 0 and the lane's first
 * column, ld apart; n_cols: there are so many from there on. */
template <bool ALL, int KS, typename By>
static __device__ __forceinline__ void delta_answer(const delta_used<KS> &c, const delta_piece &p,
                                                    const uint32_t x[4], const float asked[2][2][4],
                                                    const By &by, float *out, int64_t ld,
                                                    int n_cols)
{
    const int lane = by.lane;
    const bool wants[2] = {ALL || p.from < 8, ALL || p.to > 8};
    uint32_t mix[4];
    sl_ldmatrix_x4(mix, delta_rows_of(c.mix, SL_DELTA_LD, 0, lane));
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const uint32_t b[2] = {mix[n], mix[n + 2]};
        float o[4] = {};
        if (!wants[n])
            continue;
        sl_mma_bf16(o, x, b);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = 8 * n + 2 * (lane % 4) + e % 2, col = e / 2 * 8;
            const float sum = __fadd_rn(asked[0][n][e], asked[1][n][e]);
            if (i >= p.from && i < p.to && col < n_cols)
                out[i * ld + col] = __fmaf_rn(by.exp_g(n, e % 2), sum, o[e]);
        }
    }
}

#endif
