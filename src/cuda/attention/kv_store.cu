/* SPDX-License-Identifier: MIT
 * kv_store.cu - queries and keys through their norm and rotation, queries back in place, keys and
 * values into the pages. Where these are F16, which has no larger number, a finite query is at most
 * 65504.
 *
 * Few tokens, or rotations of a part of a row: a warp has one head of one token, and the row goes
 * through shared memory, because the partner of a dimension in the rotation lies at any distance.
 * Here everything is latency: where a row goes is looked up before the wait for the previous
 * kernel, and row, angles and norm are loaded at once after it. A row costs some 250 instructions,
 * which bind from 128 tokens on (320 clk a row and scheduler).
 *
 * Many tokens: a warp has four rows at once, or eight, in registers only, and a token's angles
 * serve them all. What binds is memory; a warp with fewer rows under way is slower (one of 128
 * dimensions beside another: 31.2 us for 2,048 tokens, two 28.1, four 26.2), and so is one with
 * more (26.8).
 *
 * The sum of squares: a lane adds the squares of dimensions 4 lane .. 4 lane + 3, then those 128
 * further, as one chain of fma from +0; lanes are added over distances 16, 8, 4, 2, 1. Everything
 * else is as on the CPU: x * (1 / sqrt(sum / n + eps)) * w with two roundings, rotation with
 * separate multiplications and additions. Only the logarithm of a query's temperature may differ in
 * its last bit.
 *
 * Bytes of a token: (8 n_heads + 12 n_kv_heads) head_dim (q read and written, k and v read, written
 * at half the size): 45 KB for 32/8 heads of 128. H200, us before and with the second way: 2,048
 * tokens 33.7 and 25.6 (3,640 GB/s, where a kernel that copies 67 MB has 3,680), 8,192 137 and 94.8
 * (3,938), 512 9.2 and 7.7; FP8 pages, 2,048 43.1 and 27.1; with norms 38.0 and 26.7. One
 * token 1.1, 16 1.4, 64 1.6, 128 2.9, 256 4.7.
 */
#include "cuda/attention/attention.cuh"
#include "cuda/attention/kv4.cuh"
#include "cuda/norm.h"
#include "cuda/ptx_fp8.cuh"

#define STORE_WARPS      4
#define STORE_DIM        256 /* largest padded head */
#define STORE_MANY       192 /* tokens, from which on a warp takes several heads */
#define STORE_MOST_WARPS 16  /* of a block then */

struct store_args {
    float *q;
    const float *k, *v;
    int64_t ld_q, ld_k, ld_v;
    int32_t n_tokens, n_heads, n_kv_heads, head_dim;
    const float *q_norm, *k_norm;
    bool norm_bare, norm_v; /* without weights: of q and k, of v */
    float eps;
    float clip;      /* 0: none */
    bool norm_after; /* the rotation */
    struct sl_q_temperature temperature;
    int32_t n_rotated; /* 0: no rotation */
    bool interleaved;
    const float *angles;
    const int32_t *positions, *row_table, *tables;
    uint8_t *keys, *values; /* the pool, at this layer's planes */
    uint64_t page_bytes;
    struct sl_attn_divisor by_page; /* of 16 positions */
    struct sl_kv4_turn turn;        /* of pages of four-bit codes */
    bool early; /* the row table was complete before the previous kernel began */
};

static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, d));
    return x;
}

/* Of a row whose squares are `sum`. */
static __device__ __forceinline__ float scale_of(float sum, float eps, int32_t head_dim)
{
    float mean = __fdiv_rn(sum, static_cast<float>(head_dim));
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

static __device__ __forceinline__ float4 scaled(float4 x, float scale, float4 w)
{
    return make_float4(__fmul_rn(__fmul_rn(x.x, scale), w.x), __fmul_rn(__fmul_rn(x.y, scale), w.y),
                       __fmul_rn(__fmul_rn(x.z, scale), w.z),
                       __fmul_rn(__fmul_rn(x.w, scale), w.w));
}

/* Within -limit and limit, if there is one. */
static __device__ __forceinline__ float clipped(float x, float limit)
{
    return limit == 0.0f ? x : x < -limit ? -limit : x > limit ? limit : x;
}

static __device__ __forceinline__ float4 clipped(float4 x, float limit)
{
    return make_float4(clipped(x.x, limit), clipped(x.y, limit), clipped(x.z, limit),
                       clipped(x.w, limit));
}

#define STORE_PARTS (STORE_DIM / 128) /* of a row, four dimensions of each a lane's */
#define STORE_PAIRS (STORE_DIM / 64)  /* that a lane rotates */

/* Four dimensions of a norm's weights; of a norm without any they are 1. */
static __device__ __forceinline__ float4 weights_of(const float *at)
{
    return at != nullptr ? *reinterpret_cast<const float4 *>(at)
                         : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
}

/* Four dimensions, zeros after the end. */
static __device__ __forceinline__ float4 load_part(const float *row, int32_t part, int32_t head_dim)
{
    const int32_t d = static_cast<int32_t>(threadIdx.x % 32) * 4 + part * 128;
    return row != nullptr && d < head_dim ? *reinterpret_cast<const float4 *>(row + d)
                                          : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/* The row normed with weights w. */
static __device__ __forceinline__ void norm_row(float4 x[STORE_PARTS], const float4 w[STORE_PARTS],
                                                float eps, int32_t head_dim)
{
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < STORE_PARTS; i++) {
        sum = __fmaf_rn(x[i].x, x[i].x, sum);
        sum = __fmaf_rn(x[i].y, x[i].y, sum);
        sum = __fmaf_rn(x[i].z, x[i].z, sum);
        sum = __fmaf_rn(x[i].w, x[i].w, sum);
    }
    float scale = scale_of(warp_sum(sum), eps, head_dim);
#pragma unroll
    for (int i = 0; i < STORE_PARTS; i++)
        x[i] = scaled(x[i], scale, w[i]);
}

/* The row in shared memory; cs: cosine and sine of pairs lane, lane + 32, .. */
static __device__ __forceinline__ void rotate_row(const struct store_args &a,
                                                  const float2 cs[STORE_PAIRS], float *x)
{
    const int32_t n = a.n_rotated / 2, lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
    for (int k = 0; k < STORE_PAIRS; k++) {
        int32_t i = lane + 32 * k;
        if (i >= n)
            break;
        int32_t at = a.interleaved ? 2 * i : i, to = a.interleaved ? 2 * i + 1 : i + n;
        float p = x[at], q = x[to];
        x[at] = __fadd_rn(__fmul_rn(p, cs[k].x), -__fmul_rn(q, cs[k].y));
        x[to] = __fadd_rn(__fmul_rn(q, cs[k].x), __fmul_rn(p, cs[k].y));
    }
    __syncwarp();
}

/* A row in shared memory is normed in place. */
static __device__ __forceinline__ void norm_shared(float *x, const float4 w[STORE_PARTS], float eps,
                                                   int32_t head_dim)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), dim = (head_dim + 15) / 16 * 16;
    float4 part[STORE_PARTS];
#pragma unroll
    for (int i = 0; i < STORE_PARTS; i++)
        part[i] = load_part(x, i, head_dim);
    norm_row(part, w, eps, head_dim);
#pragma unroll
    for (int i = 0; i < STORE_PARTS; i++)
        if (lane * 4 + i * 128 < dim)
            *reinterpret_cast<float4 *>(x + lane * 4 + i * 128) = part[i];
    __syncwarp();
}

/* What the token's queries are multiplied by. */
static __device__ __forceinline__ float warmth_of(const struct store_args &a, int32_t token)
{
    const struct sl_q_temperature &t = a.temperature;
    if (t.beta == 0.0f)
        return 1.0f;
    const float spans = floorf(__fdiv_rn(static_cast<float>(a.positions[token] + t.first), t.span));
    return __fadd_rn(1.0f, __fmul_rn(t.beta, logf(__fadd_rn(1.0f, spans))));
}

static __device__ __forceinline__ float4 times(float4 x, float f)
{
    return make_float4(__fmul_rn(x.x, f), __fmul_rn(x.y, f), __fmul_rn(x.z, f), __fmul_rn(x.w, f));
}

/* Where a token's row of a key head lies: its 16 positions in a plane, and which of them. */
struct store_place {
    uint64_t tile;
    int32_t slot;
};

template <class KV>
static __device__ __forceinline__ struct store_place place_of(const struct store_args &a,
                                                              int32_t token, int32_t kv_head,
                                                              int32_t dim)
{
    int32_t pos = a.positions[token], table = a.row_table[token];
    int32_t unit = pos / SL_KV_TILE, page_idx = sl_attn_div(unit, a.by_page);
    int32_t tile = unit + (kv_head - page_idx) * a.by_page.by;
    struct store_place p;
    p.tile = static_cast<uint64_t>(a.tables[table + page_idx]) * a.page_bytes +
             static_cast<uint64_t>(tile) * static_cast<uint64_t>(KV::tile_bytes(dim));
    p.slot = pos % SL_KV_TILE;
    return p;
}

/* What a warp has of each token: head h of queries, keys (from n_heads on) or values. */
struct store_head {
    float *q; /* of token 0, or NULL */
    const float *from;
    int64_t ld;
    const float *norm; /* weights, or NULL */
    uint8_t *plane;    /* NULL for queries */
    int32_t kv;
    bool normed, rotated;
};

static __device__ __forceinline__ struct store_head head_of(const struct store_args &a, int32_t h)
{
    struct store_head r = {};
    int32_t kv = h - a.n_heads;
    if (kv < 0) {
        r.q = a.q + static_cast<int64_t>(h) * a.head_dim;
        r.from = r.q;
        r.ld = a.ld_q;
        r.norm = a.q_norm;
    } else {
        bool key = kv < a.n_kv_heads;
        r.kv = key ? kv : kv - a.n_kv_heads;
        r.from = (key ? a.k : a.v) + static_cast<int64_t>(r.kv) * a.head_dim;
        r.ld = key ? a.ld_k : a.ld_v;
        r.norm = key ? a.k_norm : nullptr;
        r.plane = key ? a.keys : a.values;
    }
    r.normed = r.norm != nullptr || (kv >= a.n_kv_heads ? a.norm_v : a.norm_bare);
    r.rotated = a.n_rotated > 0 && kv < a.n_kv_heads;
    return r;
}

/* Pages of four-bit codes: what they hold has been rotated, and queries are alike. */
template <class KV> static constexpr bool turns = false;
template <> constexpr bool turns<sl_kv_turbo4> = true;

/* A key or a value in shared memory, to its page. */
template <class KV>
static __device__ __forceinline__ void store_row(const struct store_args &a, float *x, int32_t dim,
                                                 uint8_t *tile, int32_t slot)
{
    if constexpr (turns<KV>) {
        const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
        float4 part[STORE_PARTS];
#pragma unroll
        for (int i = 0; i < STORE_PARTS; i++)
            part[i] = load_part(x, i, dim);
        sl_kv4_rotate_row(a.turn, dim, lane, part);
#pragma unroll
        for (int i = 0; i < STORE_PARTS; i++)
            if (lane * 4 + i * 128 < dim)
                *reinterpret_cast<float4 *>(x + lane * 4 + i * 128) = part[i];
        __syncwarp();
    }
    KV::store(x, dim, tile, slot);
}

/* A token's row, where: of keys and values. */
template <class KV>
static __device__ __forceinline__ void store_token(const struct store_args &a,
                                                   const struct store_head &r, int32_t token,
                                                   const float4 w[STORE_PARTS],
                                                   const struct store_place &where, float *x)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), dim = (a.head_dim + 15) / 16 * 16;
    float4 part[STORE_PARTS];
    float2 cs[STORE_PAIRS];
#pragma unroll
    for (int i = 0; i < STORE_PARTS; i++)
        part[i] = load_part(r.from + token * r.ld, i, a.head_dim);
    const float2 *angles =
        reinterpret_cast<const float2 *>(a.angles + static_cast<int64_t>(token) * a.n_rotated);
#pragma unroll
    for (int k = 0; k < STORE_PAIRS; k++)
        cs[k] = r.rotated && lane + 32 * k < a.n_rotated / 2 ? angles[lane + 32 * k]
                                                             : make_float2(0.0f, 0.0f);
    if (r.normed && !a.norm_after)
        norm_row(part, w, a.eps, a.head_dim);
#pragma unroll
    for (int i = 0; i < STORE_PARTS; i++)
        if (lane * 4 + i * 128 < dim)
            *reinterpret_cast<float4 *>(x + lane * 4 + i * 128) = clipped(part[i], a.clip);
    __syncwarp();
    if (r.rotated)
        rotate_row(a, cs, x);
    if (r.normed && a.norm_after)
        norm_shared(x, w, a.eps, a.head_dim);
    if (r.plane != nullptr) {
        store_row<KV>(a, x, dim, r.plane + where.tile, where.slot);
        return;
    }
    const float warmth = warmth_of(a, token);
#pragma unroll
    for (int i = 0; i < STORE_PARTS; i++)
        part[i] = times(load_part(x, i, a.head_dim), warmth);
    if constexpr (turns<KV>)
        sl_kv4_rotate_row(a.turn, dim, lane, part);
#pragma unroll
    for (int i = 0; i < STORE_PARTS; i++)
        if (lane * 4 + i * 128 < a.head_dim)
            *reinterpret_cast<float4 *>(r.q + token * r.ld + lane * 4 + i * 128) =
                sl_kv_bounded<typename KV::elem>(part[i]);
}

template <class KV>
static __global__ void __launch_bounds__(STORE_WARPS * 32)
    store_kernel(const __grid_constant__ struct store_args a)
{
    SL_SMEM(float, smem);
    const int32_t warp = static_cast<int32_t>(threadIdx.x / 32);
    const int32_t h = static_cast<int32_t>(blockIdx.x) * STORE_WARPS + warp;
    const int32_t dim = (a.head_dim + 15) / 16 * 16;
    const struct store_head r = head_of(a, h);
    const bool any = h < a.n_heads + 2 * a.n_kv_heads;
    int32_t token = static_cast<int32_t>(blockIdx.y);
    float *x = smem + warp * STORE_DIM;
    float4 w[STORE_PARTS];
    struct store_place where = {0, 0};
    sl_grid_launch_dependents();
#pragma unroll
    for (int i = 0; i < STORE_PARTS; i++)
        w[i] = any && r.norm != nullptr ? load_part(r.norm, i, a.head_dim) : weights_of(nullptr);
    if (!a.early)
        sl_grid_wait();
    if (any && r.plane != nullptr)
        where = place_of<KV>(a, token, r.kv, dim);
    sl_grid_wait();
    if (!any)
        return;
#pragma unroll 1
    for (;;) {
        store_token<KV>(a, r, token, w, where, x);
        token += static_cast<int32_t>(gridDim.y);
        if (token >= a.n_tokens)
            return;
        if (r.plane != nullptr)
            where = place_of<KV>(a, token, r.kv, dim);
        __syncwarp(); /* x is written anew */
    }
}

/* ---------------------------------------------------------------- many tokens */

/* Rows of HD dimensions that are rotated as a whole, or not at all. A lane has dimensions 4 l ..
 * 4 l + 3 of a row and those HD / 2 further: a dimension and its partner are the same lane's. */
template <int HD> struct store_whole {
    static constexpr int LANES = HD / 8;          /* of a row */
    static constexpr int SIDE = 32 / LANES;       /* rows side by side in a warp */
    static constexpr int DEEP = HD < 128 ? 2 : 4; /* and one after the other */
    static constexpr int HEADS = SIDE * DEEP;     /* of a warp, of one token */
};

struct store_eight {
    float4 lo, hi;
};

static __device__ __forceinline__ struct store_eight eight_of(const float *from, int apart)
{
    return {*reinterpret_cast<const float4 *>(from),
            *reinterpret_cast<const float4 *>(from + apart)};
}

static __device__ __forceinline__ float squares(float4 x, float sum)
{
    sum = __fmaf_rn(x.x, x.x, sum);
    sum = __fmaf_rn(x.y, x.y, sum);
    sum = __fmaf_rn(x.z, x.z, sum);
    return __fmaf_rn(x.w, x.w, sum);
}

/* The order of norm_row: of 256 dimensions both fours are one lane's there, of fewer those of lanes
 * that are added first. */
template <int HD>
static __device__ __forceinline__ void norm_eight(struct store_eight &x,
                                                  const struct store_eight &w, float eps)
{
    float sum = HD == 256 ? squares(x.hi, squares(x.lo, 0.0f))
                          : __fadd_rn(squares(x.lo, 0.0f), squares(x.hi, 0.0f));
#pragma unroll
    for (int d = store_whole<HD>::LANES / 2; d > 0; d /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, d));
    const float scale = scale_of(sum, eps, HD);
    x.lo = scaled(x.lo, scale, w.lo);
    x.hi = scaled(x.hi, scale, w.hi);
}

static __device__ __forceinline__ void turn(float &p, float &q, float c, float s)
{
    const float x = p, y = q;
    p = __fadd_rn(__fmul_rn(x, c), -__fmul_rn(y, s));
    q = __fadd_rn(__fmul_rn(y, c), __fmul_rn(x, s));
}

/* cs: cosines and sines of the lane's four pairs. */
static __device__ __forceinline__ void rotate_eight(struct store_eight &x,
                                                    const struct store_eight &cs, bool interleaved)
{
    if (interleaved) {
        turn(x.lo.x, x.lo.y, cs.lo.x, cs.lo.y);
        turn(x.lo.z, x.lo.w, cs.lo.z, cs.lo.w);
        turn(x.hi.x, x.hi.y, cs.hi.x, cs.hi.y);
        turn(x.hi.z, x.hi.w, cs.hi.z, cs.hi.w);
    } else {
        turn(x.lo.x, x.hi.x, cs.lo.x, cs.lo.y);
        turn(x.lo.y, x.hi.y, cs.lo.z, cs.lo.w);
        turn(x.lo.z, x.hi.z, cs.hi.x, cs.hi.y);
        turn(x.lo.w, x.hi.w, cs.hi.z, cs.hi.w);
    }
}

/* Lane l of LANES: its part of a row, to a position of a tile of the page. */
template <class KV, int HD>
static __device__ __forceinline__ void store_plain(const struct store_eight &x, int l,
                                                   uint8_t *tile, int slot)
{
    typedef typename KV::elem elem;
    const float4 part[2] = {sl_kv_bounded<elem>(x.lo), sl_kv_bounded<elem>(x.hi)};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int four = l + i * (HD / 8);
        *reinterpret_cast<uint2 *>(tile + sl_kv_piece(2 * HD, slot, four / 2) + four % 2 * 8) =
            make_uint2(elem::pack(part[i].x, part[i].y), elem::pack(part[i].z, part[i].w));
    }
}

static __device__ __forceinline__ uint32_t top_of(float4 x)
{
    const uint32_t a = max(__float_as_uint(x.x) & 0x7FFFFFFFu, __float_as_uint(x.y) & 0x7FFFFFFFu);
    const uint32_t b = max(__float_as_uint(x.z) & 0x7FFFFFFFu, __float_as_uint(x.w) & 0x7FFFFFFFu);
    return max(a, b);
}

static __device__ __forceinline__ uint32_t codes_of(float4 x, const struct sl_kv_scale &s)
{
    const uint32_t lo = sl_e4m3x2(__fmul_rn(x.x, s.inverse), __fmul_rn(x.y, s.inverse));
    const uint32_t hi = sl_e4m3x2(__fmul_rn(x.z, s.inverse), __fmul_rn(x.w, s.inverse));
    return s.finite ? lo | hi << 16 : 0;
}

/* The same in codes. A word has two of four dimensions and two of those 8 further, so a lane makes
 * one word of its four and another lane's, which makes the next of the same. */
template <int HD>
static __device__ __forceinline__ void store_codes(const struct store_eight &x, int l,
                                                   uint8_t *tile, int slot, bool any)
{
    uint32_t top = max(top_of(x.lo), top_of(x.hi));
#pragma unroll
    for (int d = store_whole<HD>::LANES / 2; d > 0; d /= 2)
        top = max(top, __shfl_xor_sync(0xFFFFFFFFu, top, d));
    const struct sl_kv_scale scale(top);
    const float4 part[2] = {x.lo, x.hi};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t mine = codes_of(part[i], scale);
        const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, mine, 2);
        const uint32_t word =
            l & 2 ? __byte_perm(mine, other, 0x7362) : __byte_perm(other, mine, 0x5140);
        const int at = l % 4 / 2 + l % 2 * 2; /* of four words */
        if (any)
            *reinterpret_cast<uint32_t *>(tile + sl_kv_piece(HD, slot, l / 4 + i * (HD / 32)) +
                                          at * 4) = word;
    }
    if (any && l == 0)
        *reinterpret_cast<uint16_t *>(tile + SL_KV_TILE * HD + 2 * slot) = scale.bits;
}

/* r and the n - 1 heads after it, as many of them as a warp has. */
template <class KV, int HD>
static __device__ __forceinline__ void store_heads(const struct store_args &a,
                                                   const struct store_head &r, int32_t token,
                                                   int32_t n, const struct store_eight &cs)
{
    typedef store_whole<HD> whole;
    const int lane = static_cast<int>(threadIdx.x % 32), l = lane % whole::LANES;
    const int first = lane / whole::LANES;
    const int64_t at = token * r.ld + first * HD + l * 4;
    struct store_eight x[whole::DEEP] = {}, w = {};
    struct store_place where = {0, 0};
    if (r.plane != nullptr)
        where = place_of<KV>(a, token, r.kv + first, HD);
#pragma unroll
    for (int i = 0; i < whole::DEEP; i++)
        if (first + i * whole::SIDE < n)
            x[i] = eight_of(r.from + at + i * (whole::SIDE * HD), HD / 2);
    const float warmth = r.q != nullptr ? warmth_of(a, token) : 1.0f;
    if (r.normed) {
        w.lo = weights_of(r.norm != nullptr ? r.norm + l * 4 : nullptr);
        w.hi = weights_of(r.norm != nullptr ? r.norm + l * 4 + HD / 2 : nullptr);
    }
#pragma unroll
    for (int i = 0; i < whole::DEEP; i++) {
        if (r.normed && !a.norm_after)
            norm_eight<HD>(x[i], w, a.eps);
        x[i].lo = clipped(x[i].lo, a.clip);
        x[i].hi = clipped(x[i].hi, a.clip);
        if (r.rotated)
            rotate_eight(x[i], cs, a.interleaved);
        if (r.normed && a.norm_after)
            norm_eight<HD>(x[i], w, a.eps);
        const bool any = first + i * whole::SIDE < n;
        if (r.plane != nullptr) {
            uint8_t *tile =
                r.plane + where.tile +
                static_cast<int64_t>(i * whole::SIDE * a.by_page.by) * KV::tile_bytes(HD);
            if constexpr (KV::scaled)
                store_codes<HD>(x[i], l, tile, where.slot, any);
            else if (any)
                store_plain<KV, HD>(x[i], l, tile, where.slot);
        } else if (any) {
            float *to = r.q + at + i * (whole::SIDE * HD);
            const float4 lo = times(x[i].lo, warmth), hi = times(x[i].hi, warmth);
            *reinterpret_cast<float4 *>(to) = sl_kv_bounded<typename KV::elem>(lo);
            *reinterpret_cast<float4 *>(to + HD / 2) = sl_kv_bounded<typename KV::elem>(hi);
        }
    }
}

/* A block for each token, whose warps take its heads in turn. */
template <class KV, int HD>
static __global__ void __launch_bounds__(STORE_MOST_WARPS * 32)
    store_whole_kernel(const __grid_constant__ struct store_args a)
{
    typedef store_whole<HD> whole;
    const int32_t token = static_cast<int32_t>(blockIdx.x);
    const int32_t of_q = (a.n_heads + whole::HEADS - 1) / whole::HEADS;
    const int32_t of_kv = (a.n_kv_heads + whole::HEADS - 1) / whole::HEADS;
    const int l = static_cast<int>(threadIdx.x) % whole::LANES;
    struct store_eight cs = {};
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (a.n_rotated > 0) {
        const float *angles = a.angles + static_cast<int64_t>(token) * HD;
        cs = a.interleaved ? eight_of(angles + l * 4, HD / 2) : eight_of(angles + l * 8, 4);
    }
    for (int32_t i = static_cast<int32_t>(threadIdx.x / 32); i < of_q + 2 * of_kv;
         i += static_cast<int32_t>(blockDim.x / 32)) {
        const int kind = i < of_q ? 0 : i < of_q + of_kv ? 1 : 2; /* queries, keys, values */
        const int32_t head = (i - (kind > 0 ? of_q : 0) - (kind > 1 ? of_kv : 0)) * whole::HEADS;
        const int32_t before = (kind > 0 ? a.n_heads : 0) + (kind > 1 ? a.n_kv_heads : 0);
        store_heads<KV, HD>(a, head_of(a, before + head), token,
                            (kind > 0 ? a.n_kv_heads : a.n_heads) - head, cs);
    }
}

/* ---------------------------------------------------------------- the launches */

static decltype(&store_kernel<sl_kv_bf16>) kernel_of(enum sl_dtype dtype)
{
    switch (dtype) {
    case SL_DTYPE_F16:
        return store_kernel<sl_kv_f16>;
    case SL_DTYPE_FP8_E4M3:
        return store_kernel<sl_kv_fp8>;
    case SL_KV_TURBO4:
        return store_kernel<sl_kv_turbo4>;
    default:
        return store_kernel<sl_kv_bf16>;
    }
}

/* Of `whole` heads of the size; NULL: there is none. */
template <class KV>
static decltype(&store_kernel<sl_kv_bf16>) whole_kernel_of(int32_t head_dim, int32_t *heads)
{
    switch (head_dim) {
    case 64:
        *heads = store_whole<64>::HEADS;
        return store_whole_kernel<KV, 64>;
    case 128:
        *heads = store_whole<128>::HEADS;
        return store_whole_kernel<KV, 128>;
    case 256:
        *heads = store_whole<256>::HEADS;
        return store_whole_kernel<KV, 256>;
    default:
        return nullptr;
    }
}

/* false: rows are not of a kind for this way, or too few. */
static bool launch_whole(struct sl_cuda *cu, const struct store_args &a, enum sl_dtype dtype)
{
    int32_t heads = 0;
    if (a.n_tokens < STORE_MANY || dtype == SL_KV_TURBO4 ||
        (a.n_rotated != 0 && a.n_rotated != a.head_dim))
        return false;
    auto kernel = dtype == SL_DTYPE_F16        ? whole_kernel_of<sl_kv_f16>(a.head_dim, &heads)
                  : dtype == SL_DTYPE_FP8_E4M3 ? whole_kernel_of<sl_kv_fp8>(a.head_dim, &heads)
                                               : whole_kernel_of<sl_kv_bf16>(a.head_dim, &heads);
    if (kernel == nullptr)
        return false;
    int32_t warps = SL_CEIL_DIV(a.n_heads, heads) + 2 * SL_CEIL_DIV(a.n_kv_heads, heads);
    sl_launch(cu, kernel, dim3(static_cast<unsigned>(a.n_tokens)),
              dim3(static_cast<unsigned>(SL_MIN(warps, STORE_MOST_WARPS)) * 32), 0, a);
    return true;
}

void sl_cuda_qk_norm_rope_kv_store(struct sl_backend *be,
                                   const struct sl_op_qk_norm_rope_kv_store *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_batch *b = op->batch;
    if (!sl_cuda_attention_pages(op->kv.dtype, op->head_dim)) {
        sl_cuda_check(cu, cudaErrorInvalidValue, "format or head of the pages");
        return;
    }
    if (op->n_heads > 0) /* else nothing attends: any plan of the batch has its row table */
        sl_attn_plan_layer(cu, b, op->n_heads, op->n_kv_heads, op->head_dim, cu->plan_whole);
    struct store_args a = {};
    a.q = op->q;
    a.k = op->k;
    a.v = op->v;
    a.ld_q = op->ld_q;
    a.ld_k = op->ld_k;
    a.ld_v = op->ld_v;
    a.n_tokens = b->n_tokens;
    a.n_heads = op->n_heads;
    a.n_kv_heads = op->k != nullptr ? op->n_kv_heads : 0;
    a.head_dim = op->head_dim;
    a.norm_bare = op->norm_bare;
    a.norm_v = op->norm_v;
    a.clip = op->clip;
    if (op->norm_rows) {
        const struct sl_cuda_norm_row rows[2] = {
            {op->q, op->ld_q, op->q_norm, op->n_heads * op->head_dim},
            {op->k, op->ld_k, op->k_norm, op->n_kv_heads * op->head_dim},
        };
        sl_cuda_norm_two(cu, rows, b->n_tokens, op->eps);
    } else {
        a.q_norm = op->q_norm;
        a.k_norm = op->k_norm;
    }
    a.eps = op->eps;
    a.norm_after = op->norm_after;
    a.temperature = op->temperature;
    if (op->rope != nullptr) {
        a.n_rotated = op->rope->n_dims;
        a.interleaved = op->rope->pairing == SL_ROPE_INTERLEAVED;
        a.angles = op->angles;
    }
    a.positions = b->positions;
    a.row_table = reinterpret_cast<const int32_t *>(cu->workspace + SL_ATTN_ROW_TABLE);
    a.tables = sl_batch_tables(b, op->kv.group);
    a.keys = op->kv.pool + op->kv.k_offset;
    a.values = op->kv.pool + op->kv.v_offset;
    a.page_bytes = op->kv.page_bytes;
    a.by_page = sl_attn_divisor_of(op->kv.block_size / SL_KV_TILE);
    if (op->kv.dtype == SL_KV_TURBO4)
        a.turn = sl_kv4_turn_of(op->head_dim);
    a.early = cu->plan_settled;
    if (launch_whole(cu, a, op->kv.dtype)) {
        cu->plan_settled = true;
        return;
    }
    int32_t across = SL_CEIL_DIV(a.n_heads + 2 * a.n_kv_heads, STORE_WARPS);
    int32_t down = SL_MIN(b->n_tokens, SL_MAX(cu->n_sms * 16 / across, 1));
    sl_launch(cu, kernel_of(op->kv.dtype),
              dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)),
              dim3(STORE_WARPS * 32), STORE_WARPS * STORE_DIM * sizeof(float), a);
    cu->plan_settled = true;
}
