/* SPDX-License-Identifier: MIT
 * sample.cuh - what the kernels of sample.cu share: scratch of a row, tiles of logits, and the
 * exact sums of the CPU sampler (src/engine/sample.c, sample_rows_tmpl.c).
 *
 * A row is worked on in tiles of 2048 logits, by 256 threads with eight each. Several blocks of
 * threads share a row (a part each); the one that arrives last does what needs the whole row.
 * Banned ids, the allowed set, biases and penalties are applied to each tile as it is loaded, every
 * time: that reads less than a changed copy of the row would, and keeps the row for the log
 * probabilities.
 */
#ifndef SL_CUDA_SAMPLE_CUH
#define SL_CUDA_SAMPLE_CUH

#include "cuda/launch.cuh"
#include "cuda/math.cuh"
#include "cuda/ptx.cuh"
#include "cuda/sample_scratch.cuh"

#include <float.h>

/* Shared memory of every sampling kernel. */
struct sl_st_room {
    float tile[SL_ST_TILE / SL_ST_BLOCK * SL_ST_STRIDE]; /* changes, then probabilities */
    union {
        sl_u64 cands[SL_ST_CANDS];
        double sums[SL_ST_CANDS];
    };
    uint32_t hist[SL_ST_BUCKETS];
    struct sl_sample_row row;
    struct sl_st_state state;
    sl_u64 words[32]; /* of reductions */
    uint32_t counts[32];
    sl_u64 top[SL_SAMPLE_MAX_TOP];
    sl_u64 lo, hi, cached_start;
    double total, acc, target;
    int32_t bin, before, n_hits, base, cached_n, index, chosen, stop, last;
};

/* ------------------------------------------------------------------ order */

/* The order of floats as integers; -0 counts as +0, NaN without sign bit is above +infinity. */
static __device__ __forceinline__ uint32_t sl_st_order(float x)
{
    int32_t b = __float_as_int(__fadd_rn(x, 0.0f));
    return (uint32_t)b ^ (uint32_t)(b >> 31 | (int32_t)0x80000000u);
}

static __device__ __forceinline__ float sl_st_unorder(uint32_t k)
{
    return __uint_as_float(k >> 31 ? k ^ 0x80000000u : ~k);
}

/* Larger value first, then lower id: the greater number. */
static __device__ __forceinline__ sl_u64 sl_st_pack(float x, int32_t id)
{
    return (sl_u64)sl_st_order(x) << 32 | ~(uint32_t)id;
}

static __device__ __forceinline__ int32_t sl_st_id(sl_u64 packed)
{
    return (int32_t) ~(uint32_t)packed;
}

/* ------------------------------------------------------------------ reductions of a block */

static __device__ __forceinline__ sl_u64 sl_st_max_warp(sl_u64 v)
{
    uint32_t hi = (uint32_t)(v >> 32), top = __reduce_max_sync(0xffffffffu, hi);
    uint32_t lo = __reduce_max_sync(0xffffffffu, hi == top ? (uint32_t)v : 0u);
    return (sl_u64)top << 32 | lo;
}

/* In every thread. Ends so that words may be used again. */
static __device__ __forceinline__ sl_u64 sl_st_max_block(struct sl_st_room *s, sl_u64 v)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    v = sl_st_max_warp(v);
    if (lane == 0)
        s->words[warp] = v;
    __syncthreads();
    v = sl_st_max_warp(s->words[lane % (SL_ST_THREADS / 32)]);
    __syncthreads();
    return v;
}

static __device__ __forceinline__ uint32_t sl_st_sum_block(struct sl_st_room *s, uint32_t v)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    v = __reduce_add_sync(0xffffffffu, v);
    if (lane == 0)
        s->counts[warp] = v;
    __syncthreads();
    v = __reduce_add_sync(0xffffffffu, lane < SL_ST_THREADS / 32 ? s->counts[lane] : 0u);
    __syncthreads();
    return v;
}

/* The first bucket by which the histogram has `want` elements, into s->bin, and how many lie before
 * it, into s->before; SL_ST_BUCKETS and all of them when there are not as many. */
static __device__ void sl_st_find_bin(struct sl_st_room *s, uint32_t want)
{
    int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const uint32_t *h = s->hist + 4 * t;
    uint32_t own = h[0] + h[1] + h[2] + h[3], sum = own;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        uint32_t other = __shfl_up_sync(0xffffffffu, sum, d);
        sum += lane >= d ? other : 0;
    }
    if (lane == 31)
        s->counts[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; w++)
        sum += s->counts[w];
    uint32_t before = sum - own;
    if (before < want && sum >= want) {
        int b = 0;
        while (before + h[b] < want)
            before += h[b++];
        s->bin = 4 * t + b;
        s->before = (int32_t)before;
    }
    if (t == SL_ST_THREADS - 1 && sum < want) {
        s->bin = SL_ST_BUCKETS;
        s->before = (int32_t)sum;
    }
    __syncthreads();
}

static __device__ __forceinline__ void sl_st_clear_hist(struct sl_st_room *s)
{
    for (int i = threadIdx.x; i < SL_ST_BUCKETS; i += SL_ST_THREADS)
        s->hist[i] = 0;
    __syncthreads();
}

/* True in the block that is the last of the row's to come here; it then sees what the others
 * wrote. The counter goes back to 0. */
static __device__ bool sl_st_last(struct sl_st_room *s, uint32_t *n_arrived, int n_parts)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        s->last = atomicAdd(n_arrived, 1u) == (uint32_t)n_parts - 1;
        __threadfence();
        if (s->last)
            *n_arrived = 0;
    }
    __syncthreads();
    return s->last != 0;
}

/* ------------------------------------------------------------------ tiles */

/* Thread t has the logits 4t .. 4t + 3 of a tile and those 1024 further. */
static __device__ __forceinline__ int sl_st_at(int j)
{
    return 4 * (int)threadIdx.x + (j & 3) + (j >> 2) * (SL_ST_TILE / 2);
}

static __device__ __forceinline__ int sl_st_slot(int at)
{
    return at / SL_ST_BLOCK * SL_ST_STRIDE + at % SL_ST_BLOCK;
}

/* Behind the end of the row: -infinity. */
static __device__ __forceinline__ void sl_st_load(const float *row, int32_t first, int32_t n_vocab,
                                                  float x[8])
{
    bool wide = (reinterpret_cast<uintptr_t>(row) & 15) == 0;
#pragma unroll
    for (int h = 0; h < 8; h += 4) {
        int32_t i = first + sl_st_at(h);
        if (wide && i + 3 < n_vocab) {
            float4 v = *reinterpret_cast<const float4 *>(row + i);
            x[h] = v.x;
            x[h + 1] = v.y;
            x[h + 2] = v.z;
            x[h + 3] = v.w;
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[h + j] = i + j < n_vocab ? row[i + j] : -INFINITY;
        }
    }
}

static __device__ __forceinline__ bool sl_st_is_changed(const struct sl_sample_row *r)
{
    return r->n_bias > 0 || r->n_banned[0] > 0 || r->n_banned[1] > 0 || r->counts != nullptr ||
           r->allowed != nullptr;
}

/* Biases and bans of this tile, through shared memory. A run of equal ids is added up by one
 * thread, in order. */
static __device__ __noinline__ void sl_st_change_few(struct sl_st_room *s, int32_t first)
{
    const struct sl_sample_row *r = &s->row;
    for (int32_t i = threadIdx.x; i < r->n_bias; i += SL_ST_THREADS) {
        int32_t id = r->bias[i].id;
        if ((uint32_t)(id - first) >= SL_ST_TILE || (i > 0 && r->bias[i - 1].id == id))
            continue;
        float x = s->tile[sl_st_slot(id - first)];
        for (int32_t k = i; k < r->n_bias && r->bias[k].id == id; k++)
            x = __fadd_rn(x, r->bias[k].bias);
        s->tile[sl_st_slot(id - first)] = x;
    }
    __syncthreads();
    for (int list = 0; list < 2; list++) {
        for (int32_t i = threadIdx.x; i < r->n_banned[list]; i += SL_ST_THREADS) {
            int32_t id = r->banned[list][i];
            if ((uint32_t)(id - first) < SL_ST_TILE)
                s->tile[sl_st_slot(id - first)] = -INFINITY;
        }
    }
    __syncthreads();
}

static __device__ __forceinline__ float sl_st_penalised(const struct sl_sample_row *r, int32_t id,
                                                        float x)
{
    int32_t c = r->counts[id];
    if (c == 0)
        return x;
    x = x > 0.0f ? __fdiv_rn(x, r->repetition_penalty) : __fmul_rn(x, r->repetition_penalty);
    if (c > 1) {
        x = __fsub_rn(x, __fmul_rn(r->frequency_penalty, (float)(c >> 1)));
        x = __fsub_rn(x, r->presence_penalty);
    }
    return x < FLT_MAX ? x : FLT_MAX;
}

/* Every thread of the block calls it, for a row that is changed. */
static __device__ __forceinline__ void sl_st_change(struct sl_st_room *s, int32_t first,
                                                    int32_t n_vocab, float x[8])
{
    const struct sl_sample_row *r = &s->row;
    if (r->n_bias > 0 || r->n_banned[0] > 0 || r->n_banned[1] > 0) {
        __syncthreads(); /* the tile may still be read */
#pragma unroll
        for (int j = 0; j < 8; j++)
            s->tile[sl_st_slot(sl_st_at(j))] = x[j];
        __syncthreads();
        sl_st_change_few(s, first);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = s->tile[sl_st_slot(sl_st_at(j))];
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int32_t id = first + sl_st_at(j);
        if (id >= n_vocab)
            continue;
        if (r->allowed != nullptr && (r->allowed[id >> 5] >> (id & 31) & 1) == 0)
            x[j] = -INFINITY;
        if (r->counts != nullptr)
            x[j] = sl_st_penalised(r, id, x[j]);
    }
}

static __device__ __forceinline__ const float *sl_st_logits(const struct sl_st_args &a, int row)
{
    return a.op.logits + (int64_t)row * a.op.ld;
}

/* A tile of the row as it is chosen from. */
static __device__ __forceinline__ void sl_st_tile(const struct sl_st_args &a, struct sl_st_room *s,
                                                  int row, int32_t tile, float x[8])
{
    sl_st_load(sl_st_logits(a, row), tile * SL_ST_TILE, a.op.n_vocab, x);
    if (sl_st_is_changed(&s->row))
        sl_st_change(s, tile * SL_ST_TILE, a.op.n_vocab, x);
}

/* ------------------------------------------------------------------ probabilities and sums */

/* What orders by probability: 0 the most likely. y <= 0. */
static __device__ __forceinline__ uint32_t sl_st_key(float y)
{
    return __float_as_uint(__fsub_rn(0.0f, y));
}

static __device__ __forceinline__ float sl_st_y(const struct sl_st_state *st, float x)
{
    return __fmul_rn(__fsub_rn(x, st->max), st->inv_t);
}

static __device__ __forceinline__ int32_t sl_st_bucket(float scale, float y)
{
    int32_t b = (int32_t)__fmul_rn(-y, scale);
    return b < SL_ST_BUCKETS - 1 ? b : SL_ST_BUCKETS - 1;
}

/* Sums of the eight blocks of a tile of probabilities in s->tile, by the first warp: a block has
 * four chains, elements 0, 4, 8 .. and so on, added as (0 + 1) + (2 + 3). A short last block is one
 * chain in the CPU's softmax (plain_tail) and four with zeros in its logprob. */
static __device__ __forceinline__ void sl_st_sum_tile(const struct sl_st_room *s, int32_t tile,
                                                      int32_t n_vocab, bool plain_tail,
                                                      double *sums)
{
    int lane = threadIdx.x, b = lane / 4, j = lane % 4;
    int32_t n = n_vocab - tile * SL_ST_TILE - b * SL_ST_BLOCK;
    const float *p = s->tile + b * SL_ST_STRIDE;
    double sum = 0;
    if (plain_tail && n < SL_ST_BLOCK) {
        for (int i = 0; j == 0 && i < n; i++)
            sum += (double)p[i];
    } else {
#pragma unroll 8
        for (int i = 0; i < SL_ST_BLOCK; i += 4)
            sum += (double)p[i + j];
    }
    double other = __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += other;
    other = __shfl_xor_sync(0xffffffffu, sum, 2);
    sum += other;
    if (j == 0 && n > 0)
        sums[tile * (SL_ST_TILE / SL_ST_BLOCK) + b] = sum;
}

/* Every thread: exp(y) into the tile, then the sums. */
static __device__ __forceinline__ void sl_st_exp_tile(struct sl_st_room *s, const float y[8])
{
    __syncthreads(); /* the tile may still be read */
#pragma unroll
    for (int j = 0; j < 8; j++)
        s->tile[sl_st_slot(sl_st_at(j))] = sl_sample_exp(y[j]);
    __syncthreads();
}

static __device__ __forceinline__ int32_t sl_st_n_blocks(int32_t n_vocab)
{
    return (n_vocab + SL_ST_BLOCK - 1) / SL_ST_BLOCK;
}

/* Blocks' sums from `first` on into s->sums, as many as fit; how many. */
static __device__ int32_t sl_st_stage_sums(struct sl_st_room *s, const double *sums, int32_t first,
                                           int32_t n_blocks)
{
    int32_t n = n_blocks - first < SL_ST_CANDS ? n_blocks - first : SL_ST_CANDS;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < n; i += SL_ST_THREADS)
        s->sums[i] = sums[first + i];
    __syncthreads();
    return n;
}

/* The sum over all blocks, one chain in order, in every thread. */
static __device__ double sl_st_total(struct sl_st_room *s, const double *sums, int32_t n_blocks)
{
    double total = 0;
    for (int32_t first = 0; first < n_blocks; first += SL_ST_CANDS) {
        int32_t n = sl_st_stage_sums(s, sums, first, n_blocks);
        if (threadIdx.x == 0) {
#pragma unroll 8
            for (int32_t i = 0; i < n; i++)
                total += s->sums[i];
            s->total = total;
        }
    }
    __syncthreads();
    return s->total;
}

/* left - x[0] - x[1] .. while left stays >= 0, which is the same as testing left >= x[i] before
 * each: a difference of floating-point numbers is rounded to a number of its own sign. Eight
 * subtractions are made before one test, as the chain costs the time. Returns the first i that
 * would make left negative (left stays as before it), or n. T: float or double. */
template <typename T>
static __device__ __forceinline__ int32_t sl_st_walk(const T *x, int32_t n, double *left)
{
    int32_t i = 0;
    double l = *left;
    for (; i + 8 <= n; i += 8) {
        double r = l;
#pragma unroll
        for (int k = 0; k < 8; k++)
            r -= (double)x[i + k];
        if (r < 0)
            break;
        l = r;
    }
    while (i < n && l >= (double)x[i])
        l -= (double)x[i++];
    *left = l;
    return i;
}

/* The draw's number in [0, 1), of src/base/rng.h. */
static __device__ __forceinline__ uint64_t sl_st_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static __device__ __forceinline__ double sl_st_unit(uint64_t seed, uint64_t pos)
{
    uint64_t bits =
        sl_st_mix(sl_st_mix(seed + 0x9E3779B97F4A7C15u) ^ (pos * 0xD1342543DE82EF95u + 1));
    return (double)(bits >> 11) * 0x1p-53;
}

#endif
