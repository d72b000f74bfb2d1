/* SPDX-License-Identifier: MIT
 * sample_pick.cuh - the last part of a draw, by the one block of threads that has seen a row's
 * other parts arrive.
 *
 * Without a filter: two walks, over the sums of blocks and in a block. With one: the candidates are
 * sorted by (probability, id) and added up in that order by one thread, as on the CPU; the order of
 * the additions is the order of the sorted list, so there is nothing to share out. Some tens or
 * hundreds of candidates are usual. When a filter keeps thousands, the list comes in batches of at
 * most 2048, each cut out of the row by histograms over the 64-bit keys (two passes over the row
 * and more): slow, but it needs no memory and is right for any row.
 */
#ifndef SL_CUDA_SAMPLE_PICK_CUH
#define SL_CUDA_SAMPLE_PICK_CUH

#include "cuda/sample.cuh"

/* ------------------------------------------------------------------ without filter */

/* The last id below `end` with a probability; -1: none. */
static __device__ int32_t sl_st_last_alive(const struct sl_st_args &a, struct sl_st_room *s,
                                           int row, int32_t end)
{
    for (int32_t tile = (end - 1) / SL_ST_TILE; tile >= 0; tile--) {
        float x[8];
        sl_u64 best = 0;
        sl_st_tile(a, s, row, tile, x);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int32_t id = tile * SL_ST_TILE + sl_st_at(j);
            if (id < end && sl_sample_exp(sl_st_y(&s->state, x[j])) > 0.0f)
                best = (sl_u64)id + 1;
        }
        best = sl_st_max_block(s, best);
        if (best > 0)
            return (int32_t)best - 1;
    }
    return -1;
}

/* In every thread. */
static __device__ __noinline__ int32_t sl_st_pick_any(const struct sl_st_args &a,
                                                      struct sl_st_room *s, int row,
                                                      const double *sums, double u)
{
    int32_t n_blocks = sl_st_n_blocks(a.op.n_vocab), b = 0;
    double left = u * sl_st_total(s, sums, n_blocks);
    if (threadIdx.x == 0)
        a.state[row].total = s->total;
    /* The last block is never walked past. */
    for (int32_t n; b < n_blocks - 1; b += n) {
        n = sl_st_stage_sums(s, sums, b, n_blocks - 1);
        if (threadIdx.x == 0) {
            s->index = sl_st_walk(s->sums, n, &left);
            s->acc = left;
        }
        __syncthreads();
        if (s->index < n) {
            b += s->index;
            break;
        }
    }
    int32_t tile = b * SL_ST_BLOCK / SL_ST_TILE, first = b * SL_ST_BLOCK;
    int32_t n = a.op.n_vocab - first < SL_ST_BLOCK ? a.op.n_vocab - first : SL_ST_BLOCK;
    const float *p = s->tile + b % (SL_ST_TILE / SL_ST_BLOCK) * SL_ST_STRIDE;
    float x[8];
    sl_st_tile(a, s, row, tile, x);
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] = sl_st_y(&s->state, x[j]);
    sl_st_exp_tile(s, x);
    if (threadIdx.x == 0) { /* the element that makes left negative has been seen, too */
        int32_t i = sl_st_walk(p, n, &left);
        s->index = i < n ? i : n - 1;
    }
    __syncthreads();
    int32_t i = threadIdx.x;
    sl_u64 best = i <= s->index && i < n && p[i] > 0.0f ? (sl_u64)(first + i) + 1 : 0;
    best = sl_st_max_block(s, best);
    return best > 0 ? (int32_t)best - 1 : sl_st_last_alive(a, s, row, first);
}

/* ------------------------------------------------------------------ sorted candidates */

/* s->cands[0 .. n) ascending. Bitonic, over the next power of two. */
static __device__ void sl_st_sort(struct sl_st_room *s, int32_t n)
{
    int32_t size = 2, t = threadIdx.x;
    while (size < n)
        size *= 2;
    for (int32_t i = n + t; i < size; i += SL_ST_THREADS)
        s->cands[i] = ~(sl_u64)0;
    __syncthreads();
    for (int32_t run = 2; run <= size; run *= 2) {
        for (int32_t d = run / 2; d > 0; d /= 2) {
            for (int32_t p = t; p < size / 2; p += SL_ST_THREADS) {
                int32_t i = ((p & ~(d - 1)) << 1) | (p & (d - 1));
                sl_u64 x = s->cands[i], y = s->cands[i + d];
                if ((x > y) == ((i & run) == 0)) {
                    s->cands[i] = y;
                    s->cands[i + d] = x;
                }
            }
            __syncthreads();
        }
    }
}

static __device__ __forceinline__ sl_u64 sl_st_composite(const struct sl_st_state *st, float x,
                                                         int32_t id)
{
    return (sl_u64)sl_st_key(sl_st_y(st, x)) << 32 | (uint32_t)id;
}

/* Narrows [s->lo, s->hi] to keys that fit into one batch and are the smallest of the range; false:
 * there is none. */
static __device__ bool sl_st_cut_batch(const struct sl_st_args &a, struct sl_st_room *s, int row)
{
    for (;;) {
        sl_u64 lo = s->lo, hi = s->hi;
        int bits = 64 - __clzll((long long)(hi - lo));
        int shift = bits > 10 ? bits - 10 : 0; /* 1024 buckets */
        sl_st_clear_hist(s);
        for (int32_t tile = 0; tile < a.n_tiles; tile++) {
            float x[8];
            sl_st_tile(a, s, row, tile, x);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                int32_t id = tile * SL_ST_TILE + sl_st_at(j);
                sl_u64 c = sl_st_composite(&s->state, x[j], id);
                if (id < a.op.n_vocab && c >= lo && c <= hi)
                    atomicAdd(&s->hist[(c - lo) >> shift], 1u);
            }
        }
        __syncthreads();
        sl_st_find_bin(s, SL_ST_CANDS + 1); /* this bucket does not fit any more */
        bool fits = s->bin == SL_ST_BUCKETS;
        if (threadIdx.x == 0 && !fits) {
            sl_u64 cut = lo + ((sl_u64)s->bin << shift);
            sl_u64 last = cut + (((sl_u64)1 << shift) - 1);
            if (s->before == 0) { /* it alone is too many: look into it */
                s->lo = cut;
                s->hi = last < hi ? last : hi;
            } else {
                s->hi = cut - 1;
            }
        }
        __syncthreads();
        if (fits || s->before > 0)
            return s->before > 0;
    }
}

/* The candidates from key `start` on, in order, as many as one batch has, into s->cands; how many.
 * The first batch may lie in the list that the parts have made. */
static __device__ int32_t sl_st_batch(const struct sl_st_args &a, struct sl_st_room *s, int row,
                                      sl_u64 start)
{
    if (s->cached_n >= 0 && s->cached_start == start)
        return s->cached_n;
    sl_u64 end = (sl_u64)sl_st_key(s->row.floor) << 32 | 0xffffffffu;
    int32_t n = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        s->lo = start;
        s->hi = end;
        s->n_hits = 0;
    }
    __syncthreads();
    if (start == 0 && s->state.cut >= 0 && s->state.n_cands <= SL_ST_CANDS) {
        n = (int32_t)s->state.n_cands;
        for (int32_t i = threadIdx.x; i < n; i += SL_ST_THREADS)
            s->cands[i] = a.cands[(size_t)row * SL_ST_CANDS + i];
    } else if (start <= end && sl_st_cut_batch(a, s, row)) {
        for (int32_t tile = 0; tile < a.n_tiles; tile++) {
            float x[8];
            sl_st_tile(a, s, row, tile, x);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                int32_t id = tile * SL_ST_TILE + sl_st_at(j);
                sl_u64 c = sl_st_composite(&s->state, x[j], id);
                if (id < a.op.n_vocab && c >= s->lo && c <= s->hi)
                    s->cands[atomicAdd(&s->n_hits, 1)] = c;
            }
        }
        __syncthreads();
        n = s->n_hits;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        s->cached_start = start;
        s->cached_n = n;
    }
    sl_st_sort(s, n);
    return n;
}

/* ------------------------------------------------------------------ with filters */

/* What the passes over the sorted candidates do with the next n, whose probabilities lie in p. */
enum sl_st_pass { SL_ST_PART, SL_ST_KEEP, SL_ST_DRAW };

/* s->acc += p, up to the first sum that reaches the target: that many are kept. */
static __device__ void sl_st_keep(struct sl_st_room *s, const float *p, int32_t n)
{
    double acc = s->acc, target = s->target;
    int32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        double r = acc;
#pragma unroll
        for (int k = 0; k < 8; k++)
            r += (double)p[i + k];
        if (r >= target)
            break;
        acc = r;
    }
    while (i < n && (s->index + i == 0 || acc < target))
        acc += (double)p[i++];
    s->acc = acc;
    s->index += i;
    s->stop = acc >= target;
}

/* n: what is left up to the last kept one, which takes all that remains. */
static __device__ void sl_st_draw(struct sl_st_room *s, const float *p, int32_t n, bool has_end)
{
    int32_t i = sl_st_walk(p, has_end ? n - 1 : n, &s->acc);
    s->stop = i < n;
    i = i < n ? i : n - 1;
    while (i >= 0 && p[i] <= 0.0f)
        i--;
    if (i >= 0)
        s->chosen = (int32_t)(uint32_t)s->cands[i];
}

/* One pass over the first `limit` candidates. */
static __device__ __noinline__ void sl_st_pass(const struct sl_st_args &a, struct sl_st_room *s,
                                               int row, enum sl_st_pass pass, int32_t limit)
{
    sl_u64 start = 0;
    for (int32_t taken = 0; taken < limit;) {
        int32_t n = sl_st_batch(a, s, row, start);
        if (n == 0)
            break;
        start = s->cands[n - 1] + 1;
        int32_t n_use = n < limit - taken ? n : limit - taken;
        __syncthreads(); /* the tile may still be read */
        for (int32_t i = threadIdx.x; i < n_use; i += SL_ST_THREADS)
            s->tile[i] = sl_sample_exp(-__uint_as_float((uint32_t)(s->cands[i] >> 32)));
        __syncthreads();
        if (threadIdx.x == 0) {
            if (pass == SL_ST_PART) {
                double acc = s->acc;
#pragma unroll 8
                for (int32_t i = 0; i < n_use; i++)
                    acc += (double)s->tile[i];
                s->acc = acc;
            } else if (pass == SL_ST_KEEP) {
                sl_st_keep(s, s->tile, n_use);
            } else {
                sl_st_draw(s, s->tile, n_use, taken + n_use == limit);
            }
        }
        __syncthreads();
        taken += n_use;
        if (s->stop)
            break;
    }
    __syncthreads();
}

/* top_p is a share of the mass that min_p and top_k leave; without them, of the whole row. In every
 * thread. */
static __device__ int32_t sl_st_pick_filtered(const struct sl_st_args &a, struct sl_st_room *s,
                                              int row, const double *sums, bool has_sums, double u)
{
    const struct sl_sample_row *r = &s->row;
    int32_t n_vocab = a.op.n_vocab;
    int32_t limit = r->top_k > 0 && r->top_k < n_vocab ? r->top_k : n_vocab;
    double total = has_sums ? sl_st_total(s, sums, sl_st_n_blocks(n_vocab)) : 0;
    if (threadIdx.x == 0) {
        s->acc = 0;
        s->stop = 0;
        s->cached_n = -1;
        s->chosen = -1;
    }
    __syncthreads();
    if (!has_sums) {
        sl_st_pass(a, s, row, SL_ST_PART, limit);
        total = s->acc;
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        s->acc = 0;
        s->index = 0;
        s->target = (double)r->top_p * total;
    }
    __syncthreads();
    sl_st_pass(a, s, row, SL_ST_KEEP, limit);
    int32_t n_kept = s->index;
    __syncthreads();
    if (threadIdx.x == 0) {
        a.state[row].total = total;
        a.state[row].kept = s->acc;
        a.state[row].n_kept = n_kept;
        s->acc = u * s->acc;
        s->stop = 0;
    }
    __syncthreads();
    sl_st_pass(a, s, row, SL_ST_DRAW, n_kept);
    return s->chosen;
}

#endif
