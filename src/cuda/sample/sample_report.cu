/* SPDX-License-Identifier: MIT
 * Log probabilities of the tokens that were chosen: the weight of the row, the token's rank, the
 * best tokens. A grid of (parts, rows); the block that arrives last at a row's counter puts the
 * parts together. Which block that is changes no bit: sums are of integers, keys are distinct.
 */
#include "cuda/sample/sample.cuh"

#define REP_CANDS (2 * SL_ST_TILE / 8) /* a power of two that holds every part's list */
static_assert(REP_CANDS >= SL_ST_PARTS * SL_SAMPLE_MAX_TOP, "lists of all parts");

struct rep_room {
    struct sl_st_room base;
    sl_u64 cands[REP_CANDS];
    sl_u64 top[SL_SAMPLE_MAX_TOP];
    int32_t last;
};

/* Thread t has the logits 4t .. 4t + 3 of a tile and those half a tile further. */
static __device__ __forceinline__ int at_tile(int j)
{
    return 4 * (int)threadIdx.x + (j & 3) + (j >> 2) * (SL_ST_TILE / 2);
}

/* True in the block that is the last of the row's to come here; it then sees what the others
 * wrote. The counter goes back to 0. */
static __device__ bool is_last(struct rep_room *s, uint32_t *n_arrived, int n_parts)
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

/* s->cands[0 .. n) ascending. Bitonic, over the next power of two. */
static __device__ void sort_cands(struct rep_room *s, int32_t n)
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

/* The best of this tile into the ordered list s->top[0 .. n), 0: free. One round for each element
 * that enters. */
static __device__ void enter_top(struct rep_room *s, int32_t n, int32_t first, int32_t n_vocab,
                                 const float x[8])
{
    sl_u64 key[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int32_t id = first + at_tile(j);
        key[j] = id < n_vocab ? sl_st_pack(x[j], id) : 0;
    }
    for (;;) {
        sl_u64 own = 0;
#pragma unroll
        for (int j = 0; j < 8; j++)
            own = key[j] > own ? key[j] : own;
        sl_u64 best = sl_st_max_block(&s->base, own);
        if (best <= s->top[n - 1])
            break;
        __syncthreads();
        if (threadIdx.x == 0) {
            int32_t i = n - 1;
            for (; i > 0 && s->top[i - 1] < best; i--)
                s->top[i] = s->top[i - 1];
            s->top[i] = best;
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            key[j] = key[j] == best ? 0 : key[j];
        __syncthreads();
    }
    __syncthreads();
}

static __device__ void finish_report(const struct sl_st_args &a, struct rep_room *s, int row,
                                     int32_t id)
{
    const float *x = sl_st_logits(a, row);
    const struct sl_st_part *parts = a.parts + (size_t)row * SL_ST_PARTS;
    struct sl_sample_result *out = a.op.results + row;
    int32_t t = threadIdx.x, n_top = s->base.row.n_top, n = a.n_parts * n_top;
    uint32_t before = sl_st_sum_block(&s->base, t < a.n_parts ? parts[t].n_before : 0);
    sl_u64 mass = sl_st_sum_block64(&s->base, t < a.n_parts ? parts[t].mass : 0);
    if (t == 0) {
        out->id = id;
        out->n_before = (int32_t)before;
        out->logit = x[id];
        out->max = a.state[row].raw_max;
        out->sum = (double)mass / 0x1p41;
    }
    if (n_top == 0)
        return;
    for (int32_t i = t; i < n; i += SL_ST_THREADS) /* ascending order has the best last */
        s->cands[i] =
            ~a.tops[((size_t)row * SL_ST_PARTS + i / n_top) * SL_SAMPLE_MAX_TOP + i % n_top];
    __syncthreads();
    sort_cands(s, n);
    if (t < n_top) {
        sl_u64 key = ~s->cands[t];
        int32_t top = key != 0 ? sl_st_id(key) : -1;
        out->top_id[t] = top;
        out->top_logit[t] = top >= 0 ? x[top] : -INFINITY;
    }
}

static __global__ void __launch_bounds__(SL_ST_THREADS, 2)
    sl_sample_report(const __grid_constant__ struct sl_st_args a)
{
    SL_SMEM(struct rep_room, s);
    int row = blockIdx.y, part = blockIdx.x;
    sl_grid_wait();
    sl_st_load_row(a, &s->base, row);
    const struct sl_sample_row *r = &s->base.row;
    if (r->padding != 0 || r->n_top < 0)
        return;
    int32_t id = a.op.ids[row], end = min((part + 1) * a.part_tiles, a.n_tiles);
    if (id < 0) {
        if (part == 0 && threadIdx.x == 0)
            a.op.results[row].id = -1;
        return;
    }
    const float *logits = sl_st_logits(a, row);
    float max = a.state[row].raw_max, logit = logits[id];
    bool aligned = (reinterpret_cast<uintptr_t>(logits) & 15) == 0;
    uint32_t before = 0;
    sl_u64 mass = 0;
    if (threadIdx.x < SL_SAMPLE_MAX_TOP)
        s->top[threadIdx.x] = 0;
    __syncthreads();
    for (int32_t tile = part * a.part_tiles; tile < end; tile++) {
        float x[8];
        sl_st_load4(logits, aligned, tile * SL_ST_TILE + at_tile(0), a.op.n_vocab, x);
        sl_st_load4(logits, aligned, tile * SL_ST_TILE + at_tile(4), a.op.n_vocab, x + 4);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int32_t i = tile * SL_ST_TILE + at_tile(j);
            before += i < a.op.n_vocab && (x[j] > logit || (x[j] == logit && i < id));
            mass += sl_st_weight(sl_sample_exp(__fsub_rn(x[j], max)));
        }
        if (r->n_top > 0)
            enter_top(s, r->n_top, tile * SL_ST_TILE, a.op.n_vocab, x);
    }
    sl_grid_launch_dependents();
    before = sl_st_sum_block(&s->base, before);
    mass = sl_st_sum_block64(&s->base, mass);
    size_t at = (size_t)row * SL_ST_PARTS + part;
    if (threadIdx.x == 0) {
        a.parts[at].n_before = before;
        a.parts[at].mass = mass;
    }
    if ((int32_t)threadIdx.x < r->n_top)
        a.tops[at * SL_SAMPLE_MAX_TOP + threadIdx.x] = s->top[threadIdx.x];
    if (is_last(s, &a.state[row].n_arrived, a.n_parts))
        finish_report(a, s, row, id);
}

/* Few rows: a part for each tile. Many: four blocks for each SM are enough in all. */
void sl_st_report(struct sl_cuda *cu, struct sl_st_args *a)
{
    int32_t parts = SL_CEIL_DIV(4 * cu->n_sms, a->op.n);
    parts = SL_MAX(1, SL_MIN(SL_MIN(parts, SL_ST_PARTS), a->n_tiles));
    a->part_tiles = SL_CEIL_DIV(a->n_tiles, parts);
    a->n_parts = SL_CEIL_DIV(a->n_tiles, a->part_tiles);
    sl_launch(cu, sl_sample_report, dim3((unsigned)a->n_parts, (unsigned)a->op.n),
              dim3(SL_ST_THREADS), sizeof(struct rep_room), *a);
}
