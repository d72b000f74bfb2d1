/* SPDX-License-Identifier: MIT
 * state.cuh - layers with a recurrent state: their pages, and the order of their sums.
 *
 * Every recurrence is computed token after token in float32, by one rule for each operation, which
 * the heads of delta.cuh and ssm.cuh give. Which kernel computes a span, how many columns a block
 * has and how a text is cut into spans change no bit.
 *
 * A sum over the rows of a state (k_dim, n_state), or over a vector of so many values, is made in
 * eight groups: four rows after four rows belong to group 0, 1, .. 7, 0, 1, .. A group is one chain
 * s = fma(x, y, s) from +0 over its rows in ascending order, zeros behind the end. The groups are
 * added as a tree of neighbours: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
 */
#ifndef SL_CUDA_STATE_STATE_CUH
#define SL_CUDA_STATE_STATE_CUH

#include "cuda/launch.cuh"
#include "cuda/math.cuh"

#define SL_STATE_GROUPS 8
#define SL_STATE_STRIDE 32 /* rows from a group's four to its next four */
#define SL_STATE_FEW                                                                     \
    SL_BATCH_SHORT /* tokens: a span of more is computed by a kernel for many, and so is \
                      every span of a state that cannot be read 16 bytes at a time */

/* The pages of a layer, and the spans of a step. */
struct sl_state_pages {
    const struct sl_span *spans;
    const int32_t *table; /* of the group */
    uint8_t *pool;        /* with the layer's offset */
    size_t page_bytes;
    int32_t n_spans, block_size;

    __device__ __forceinline__ float *page(int32_t id) const
    {
        return reinterpret_cast<float *>(pool + static_cast<size_t>(id) * page_bytes);
    }
    /* Where the span begins; NULL: at zeros. */
    __device__ __forceinline__ const float *begin(const struct sl_span &s) const
    {
        return s.pos == 0 ? nullptr : page(table[s.table_idx + (s.pos - 1) / block_size]);
    }
    /* The first token from t on behind which the state may be stored: the last one of its block,
     * the last but drafts, or a draft. */
    __device__ __forceinline__ int32_t next_end(const struct sl_span &s, int32_t t) const
    {
        const int32_t end = t + block_size - 1 - (s.pos + t) % block_size;
        const int32_t last = s.n - 1 - s.n_drafts;
        return t > last ? t : end < last ? end : last;
    }
    /* The page of token t's block, or that of a draft; below 0: there is none. */
    __device__ __forceinline__ int32_t page_of(const struct sl_span &s, int32_t t) const
    {
        const int32_t draft = t - (s.n - s.n_drafts);
        const int32_t i = draft < 0 ? (s.pos + t) / block_size
                                    : (s.pos + s.n + block_size - 1) / block_size + draft;
        return table[s.table_idx + i];
    }
};

static inline struct sl_state_pages sl_state_pages_of(const struct sl_batch *b,
                                                      const struct sl_state_view *v)
{
    return {
        b->spans,     sl_batch_tables(b, v->group), v->pool + v->offset, v->page_bytes, b->n_spans,
        v->block_size};
}

/* What looks only a few tokens back cuts spans into pieces of so many tokens, each of threads of
 * its own. Pieces have numbers: those of span i begin at first / SL_STATE_PIECE + i, which leaves
 * room enough for every span, and some numbers without a piece. */
#define SL_STATE_PIECE 16

static __device__ __forceinline__ int32_t sl_piece_span(const sl_state_pages &p, int32_t piece)
{
    int32_t low = 0, high = p.n_spans - 1;
    while (low < high) {
        const int32_t mid = (low + high + 1) / 2;
        if (p.spans[mid].first / SL_STATE_PIECE + mid <= piece)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* ------------------------------------------------------------------ arithmetic */

/* x / (1 + exp(-g)) */
static __device__ __forceinline__ float sl_gated(float x, float g)
{
    return __fdiv_rn(x, __fadd_rn(1.0f, sl_exp(-g)));
}

static __device__ __forceinline__ float4 sl_fma4(float a, float4 b, float4 c)
{
    return make_float4(__fmaf_rn(a, b.x, c.x), __fmaf_rn(a, b.y, c.y), __fmaf_rn(a, b.z, c.z),
                       __fmaf_rn(a, b.w, c.w));
}

static __device__ __forceinline__ float4 sl_mul4(float4 a, float4 b)
{
    return make_float4(__fmul_rn(a.x, b.x), __fmul_rn(a.y, b.y), __fmul_rn(a.z, b.z),
                       __fmul_rn(a.w, b.w));
}

static __device__ __forceinline__ float4 sl_add4(float4 a, float4 b)
{
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                       __fadd_rn(a.w, b.w));
}

static __device__ __forceinline__ float sl_part(const float4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* The sum of groups, of which lane `group` << SHIFT has one, in all lanes. */
template <int SHIFT> static __device__ __forceinline__ float sl_sum_groups(float s)
{
#pragma unroll
    for (int m = 1; m < SL_STATE_GROUPS; m *= 2)
        s = __fadd_rn(s, __shfl_xor_sync(0xffffffffu, s, m << SHIFT));
    return s;
}

/* The same of groups in shared memory, `stride` values apart. */
static __device__ __forceinline__ float4 sl_sum_groups4(const float *p, int stride)
{
    float4 v[SL_STATE_GROUPS];
#pragma unroll
    for (int g = 0; g < SL_STATE_GROUPS; g++)
        v[g] = *reinterpret_cast<const float4 *>(p + g * stride);
    return sl_add4(sl_add4(sl_add4(v[0], v[1]), sl_add4(v[2], v[3])),
                   sl_add4(sl_add4(v[4], v[5]), sl_add4(v[6], v[7])));
}

static __device__ __forceinline__ float sl_sum_groups1(const float *p, int stride)
{
    float v[SL_STATE_GROUPS];
#pragma unroll
    for (int g = 0; g < SL_STATE_GROUPS; g++)
        v[g] = p[g * stride];
    return __fadd_rn(__fadd_rn(__fadd_rn(v[0], v[1]), __fadd_rn(v[2], v[3])),
                     __fadd_rn(__fadd_rn(v[4], v[5]), __fadd_rn(v[6], v[7])));
}

/* Four values from i on, zeros behind n. wide: p + i is aligned to 16 bytes where i < n, and n is a
 * multiple of 4. */
static __device__ __forceinline__ float4 sl_load4(const float *p, int32_t i, int32_t n, bool wide)
{
    float4 v = make_float4(0, 0, 0, 0);
    if (wide) {
        if (i < n)
            v = *reinterpret_cast<const float4 *>(p + i);
        return v;
    }
    v.x = i < n ? p[i] : 0.0f;
    v.y = i + 1 < n ? p[i + 1] : 0.0f;
    v.z = i + 2 < n ? p[i + 2] : 0.0f;
    v.w = i + 3 < n ? p[i + 3] : 0.0f;
    return v;
}

static __device__ __forceinline__ void sl_store4(float *p, int32_t i, int32_t n, bool wide,
                                                 float4 v)
{
    if (wide) {
        if (i < n)
            *reinterpret_cast<float4 *>(p + i) = v;
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (i + e < n)
            p[i + e] = sl_part(v, e);
}

static inline bool sl_aligned16(const void *p)
{
    return (reinterpret_cast<uintptr_t>(p) & 15) == 0;
}

/* ------------------------------------------------------------------ tiles of a state */

/* What a thread of a kernel for few tokens has: all rows of one group, four columns. A state is
 * [n_rows, n_cols] with rows `ld` apart, all of them and n_cols multiples of 4. */
template <int J> struct sl_state_quads {
    float4 s[4 * J];

    static __device__ __forceinline__ int row(int r, int group)
    {
        return r / 4 * SL_STATE_STRIDE + 4 * group + r % 4;
    }
    __device__ __forceinline__ void load(const float *from, int64_t ld, int group, int32_t n_rows,
                                         int32_t col, int32_t n_cols)
    {
        const bool has = from != nullptr && col < n_cols;
        from += col + 4 * group * ld;
#pragma unroll
        for (int r = 0; r < 4 * J; r++) {
            s[r] = make_float4(0, 0, 0, 0);
            if (has && row(r, group) < n_rows)
                s[r] = *reinterpret_cast<const float4 *>(from);
            from += r % 4 == 3 ? (SL_STATE_STRIDE - 3) * ld : ld;
        }
    }
    __device__ __forceinline__ void store(float *to, int64_t ld, int group, int32_t n_rows,
                                          int32_t col, int32_t n_cols) const
    {
        to += col + 4 * group * ld;
#pragma unroll
        for (int r = 0; r < 4 * J; r++) {
            if (col < n_cols && row(r, group) < n_rows)
                *reinterpret_cast<float4 *>(to) = s[r];
            to += r % 4 == 3 ? (SL_STATE_STRIDE - 3) * ld : ld;
        }
    }
    /* A group's sum of x[row] s[row], x in shared memory. */
    __device__ __forceinline__ float4 dot(const float *x, int group) const
    {
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < J; j++) {
            const float4 v = *reinterpret_cast<const float4 *>(x + SL_STATE_STRIDE * j + 4 * group);
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum = sl_fma4(sl_part(v, i), s[4 * j + i], sum);
        }
        return sum;
    }
};

/* What a lane of a kernel for many tokens has: all rows of one group, C columns. */
template <int J, int C> struct sl_state_cols {
    float s[4 * J][C];

    __device__ __forceinline__ void load(const float *from, int64_t ld, int group, int32_t n_rows,
                                         int32_t col, int32_t n_cols)
    {
#pragma unroll
        for (int r = 0; r < 4 * J; r++) {
            const int row = sl_state_quads<J>::row(r, group);
#pragma unroll
            for (int c = 0; c < C; c++)
                s[r][c] = from != nullptr && row < n_rows && col + c < n_cols
                              ? from[row * ld + col + c]
                              : 0.0f;
        }
    }
    __device__ __forceinline__ void store(float *to, int64_t ld, int group, int32_t n_rows,
                                          int32_t col, int32_t n_cols) const
    {
#pragma unroll
        for (int r = 0; r < 4 * J; r++) {
            const int row = sl_state_quads<J>::row(r, group);
#pragma unroll
            for (int c = 0; c < C; c++)
                if (row < n_rows && col + c < n_cols)
                    to[row * ld + col + c] = s[r][c];
        }
    }
    __device__ __forceinline__ void dot(const float (&x)[4 * J], float (&sum)[C]) const
    {
#pragma unroll
        for (int c = 0; c < C; c++)
            sum[c] = 0.0f;
#pragma unroll
        for (int r = 0; r < 4 * J; r++)
#pragma unroll
            for (int c = 0; c < C; c++)
                sum[c] = __fmaf_rn(x[r], s[r][c], sum[c]);
    }
};

/* A group's values of a vector in shared memory. */
template <int J>
static __device__ __forceinline__ void sl_group_rows(const float *x, int group, float (&out)[4 * J])
{
#pragma unroll
    for (int j = 0; j < J; j++) {
        const float4 v = *reinterpret_cast<const float4 *>(x + SL_STATE_STRIDE * j + 4 * group);
        out[4 * j] = v.x, out[4 * j + 1] = v.y, out[4 * j + 2] = v.z, out[4 * j + 3] = v.w;
    }
}

/* ------------------------------------------------------------------ kernels for many tokens */

#define SL_WIDE_WARPS   4 /* that compute; as many bring the tokens in */
#define SL_WIDE_THREADS (2 * 32 * SL_WIDE_WARPS)
#define SL_WIDE_TOKENS  16 /* handed over at a time */
#define SL_WIDE_RING    (2 * SL_WIDE_TOKENS)
#define SL_WIDE_SPANS   8 /* rows of blocks at most; each takes every eighth span */

/* Hand-over number i of the block: two places in turns. */
struct sl_wide_turn {
    uint64_t *full, *empty;
    uint32_t i;
    __device__ __forceinline__ uint32_t parity() const
    {
        return i / 2 & 1;
    }
};

/* Of the sums that lane l has of group l / 4 in C columns, the whole sum of column group % C, in
 * the lanes of the first C groups: neighbours share two columns. */
template <int C>
static __device__ __forceinline__ float sl_sum_cols(const float (&sum)[C], int group)
{
    if (C == 1)
        return sl_sum_groups<2>(sum[0]);
    const bool odd = group % 2 != 0;
    const float keep = odd ? sum[C - 1] : sum[0], give = odd ? sum[0] : sum[C - 1];
    float out = __fadd_rn(keep, __shfl_xor_sync(0xffffffffu, give, 4));
    out = __fadd_rn(out, __shfl_xor_sync(0xffffffffu, out, 8));
    return __fadd_rn(out, __shfl_xor_sync(0xffffffffu, out, 16));
}

/* Of the spans with more than `few` tokens the one that `skip` others precede; -1: there are not so
 * many. The same in all threads of the block, each of which calls it. */
static __device__ __forceinline__ int32_t sl_wide_span(const sl_state_pages &p, int32_t few,
                                                       int32_t skip, int32_t *room)
{
    if (p.n_spans == 1)
        return skip == 0 && p.spans[0].n > few ? 0 : -1;
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (threadIdx.x < 32) {
        int32_t found = -1;
        for (int32_t i = 0; i < p.n_spans && found < 0; i += 32) {
            const bool many = i + lane < p.n_spans && p.spans[i + lane].n > few;
            const uint32_t all = __ballot_sync(0xffffffffu, many);
            const int32_t before = __popc(all & ((1u << lane) - 1));
            const uint32_t mine = __ballot_sync(0xffffffffu, many && before == skip);
            if (mine != 0)
                found = i + __ffs(static_cast<int>(mine)) - 1;
            skip -= __popc(all);
        }
        if (lane == 0)
            *room = found;
    }
    __syncthreads();
    const int32_t found = *room;
    __syncthreads();
    return found;
}

/* Sizes of spans up to `few`, as bits of struct sl_batch. */
static inline uint64_t sl_few_sizes(int32_t few)
{
    static_assert(SL_STATE_FEW < SL_BATCH_SIZES - 1, "few have a bit of their own");
    return (static_cast<uint64_t>(2) << few) - 1;
}

/* No more spans of a step have more than `few` tokens. */
static inline int32_t sl_wide_most(const struct sl_batch *b, int32_t few)
{
    if (b->span_sizes != 0 && (b->span_sizes & ~sl_few_sizes(few)) == 0)
        return 0;
    if (few == SL_BATCH_SHORT && b->n_long > 0)
        return b->n_long;
    const int32_t most = few > 0 ? (b->n_tokens - b->n_spans) / few : b->n_spans;
    return SL_MIN(most, b->n_spans);
}

/* Rows of blocks for them; 0: there are none. */
static inline int32_t sl_wide_rows(const struct sl_batch *b, int32_t few)
{
    return SL_MIN(sl_wide_most(b, few), SL_WIDE_SPANS);
}

/* Whether some span may have few tokens. */
static inline bool sl_wide_leaves(const struct sl_batch *b, int32_t few)
{
    if (b->span_sizes != 0 && (b->span_sizes & sl_few_sizes(few)) == 0)
        return false;
    return few > 0 && (b->n_spans > 1 || b->n_tokens <= few);
}

/* Lanes of a group that share the columns of n_heads heads, four each: as few as give every
 * multiprocessor a block or two, or a whole head's. */
static inline int sl_state_lanes(const struct sl_cuda *cu, int64_t n_heads, int32_t dim)
{
    int n = 32;
    while (n > 8 && (2 * n >= dim ||
                     n_heads * SL_CEIL_DIV(dim, 4 * n) < 2 * static_cast<int64_t>(cu->n_sms)))
        n /= 2;
    return n;
}

#endif
