/* SPDX-License-Identifier: MIT
 * Choosing tokens of rows of which few can be kept, many rows at once: those with a top_k or a
 * min_p, and greedy ones. The kernel of sample.cu holds a row in the shared memory of a cluster, of
 * which the chip has room for 33, and its blocks meet a dozen times. Here two kernels have no
 * clusters:
 *
 *   look   reads all rows as fast as memory gives them; of each thread's tokens the largest logit
 *   few    a block a row. As many threads as top_k have a token of at least some probability, so
 *          that no less likely one is kept: only threads with a larger logit are looked at again.
 *          What they have is a list of some dozens, and all that follows is done by comparing
 *          each with each: ranks, masses, and the place of the draw
 *
 * The sums are of integers and the same as sample.cu's, and so are the tokens. Rows with other
 * changes than a mask, and those that keep too many, are left to that kernel, which follows.
 *
 * One H200, 128,256 tokens and 256 rows, predicted: look 34 us (131 MB at 3.9 TB/s), few 12 (a wave
 * of 256 blocks, 3 passes over a list of 100), the other kernel 4 for nothing; 50 in all. Measured:
 * 86 where the other kernel alone took 226, and 93 for flat logits (505). Of that 66 are the two
 * kernels (greedy rows, which need no list), so look is further from memory's speed than thought,
 * and 10 are the other kernel's clusters, which only find out that they have nothing to do; as few
 * of these as run at once, each with several rows, were slower for the rows that do need it.
 */
#include "cuda/sample/sample_pick.cuh"

#define MAX_LIST   1024 /* tokens that can be kept */
#define MAX_HIGHS  1024 /* threads of the look that have some of them */
#define MAX_TOP_K  512
#define LIST_EACH  (MAX_LIST / SL_ST_THREADS)
#define HIGHS_EACH SL_ST_RUNS

/* Could the row's tokens be few? The same in both kernels. */
static __device__ __forceinline__ bool may_be_few(const struct sl_sample_row *r, int32_t n_vocab)
{
    bool changed =
        r->n_bias > 0 || r->n_banned[0] > 0 || r->n_banned[1] > 0 || r->counts != nullptr;
    bool top_k = r->top_k > 0 && r->top_k <= MAX_TOP_K && r->top_k < n_vocab;
    bool few = r->temperature < SL_SAMPLE_GREEDY_BELOW || top_k || r->min_p > 0.0f;
    return r->padding == 0 && !changed && few;
}

/* Four logits from i on, as the row allows them; raw: as they are. */
static __device__ __forceinline__ void load_allowed(const struct sl_sample_row *r,
                                                    const float *logits, bool aligned, int32_t i,
                                                    int32_t n_vocab, float raw[4], float x[4])
{
    uint32_t may = r->allowed != nullptr ? r->allowed[i >> 5] >> (i & 31) : 15u;
    sl_st_load4(logits, aligned, i, n_vocab, raw);
#pragma unroll
    for (int j = 0; j < 4; j++)
        x[j] = may >> j & 1 ? raw[j] : -INFINITY;
}

/* ------------------------------------------------------------------ look */

#define BATCH 4 /* loads under way before the first is looked at; 8 with two blocks: slower */

static __global__ void __launch_bounds__(SL_ST_THREADS, 3)
    sl_sample_look(const __grid_constant__ struct sl_st_args a)
{
    SL_SMEM(struct sl_st_room, s);
    const int row = blockIdx.y, t = threadIdx.x, n = a.op.n_vocab;
    sl_grid_wait();
    sl_st_load_row(a, s, row);
    sl_grid_launch_dependents();
    const struct sl_sample_row *r = &s->row;
    if (!may_be_few(r, n))
        return;
    const float *logits = sl_st_logits(a, row);
    const bool aligned = (reinterpret_cast<uintptr_t>(logits) & 15) == 0;
    const int32_t base = (int32_t)blockIdx.x * a.run_n;
    const int32_t end = base + a.run_n < n ? base + a.run_n : n;
    float best = -INFINITY, raw_best = -INFINITY;
    int32_t id = 0;
    bool bad = false;
    for (int32_t from = base + 4 * t; from < end; from += BATCH * 4 * SL_ST_THREADS) {
        float raw[BATCH][4], x[BATCH][4];
#pragma unroll
        for (int u = 0; u < BATCH; u++)
            if (from + u * 4 * SL_ST_THREADS < end)
                load_allowed(r, logits, aligned, from + u * 4 * SL_ST_THREADS, n, raw[u], x[u]);
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            if (from + u * 4 * SL_ST_THREADS >= end)
                break;
#pragma unroll
            for (int j = 0; j < 4; j++) { /* the first of equals stays */
                bad |= !(raw[u][j] <= FLT_MAX);
                raw_best = raw[u][j] > raw_best ? raw[u][j] : raw_best;
                id = x[u][j] > best ? from + u * 4 * SL_ST_THREADS + j : id;
                best = x[u][j] > best ? x[u][j] : best;
            }
        }
    }
    const int64_t run = (int64_t)row * SL_ST_RUNS + blockIdx.x;
    if (r->temperature >= SL_SAMPLE_GREEDY_BELOW)
        a.highs[run * SL_ST_THREADS + t] = best;
    sl_u64 top = sl_st_max_block(s, sl_st_pack(best, id));
    sl_u64 raw = sl_st_max_block(s, bad ? UINT32_MAX : sl_st_order(raw_best));
    if (t == 0)
        a.runs[run] = {top, raw};
}

/* ------------------------------------------------------------------ few */

struct __align__(16) few
{
    struct sl_st_pick pick; /* its tables of digits, and room for reductions */
    uint32_t key[MAX_LIST];
    int32_t id[MAX_LIST];
    sl_u64 weight[MAX_LIST];
    uint16_t highs[MAX_HIGHS];
    uint32_t n_highs, n;
};
static_assert(SL_ST_RUNS * SL_ST_THREADS <= 65536, "numbers of threads of the look");

/* The floor below which top_k keeps nothing: of so many threads the largest is not below it. */
static __device__ float floor_of_highs(struct few *f, const struct sl_st_scale &y,
                                       const float high[HIGHS_EACH], int32_t top_k)
{
    struct sl_st_pick *s = &f->pick;
    sl_st_clear_digits(s);
#pragma unroll
    for (int i = 0; i < HIGHS_EACH; i++) {
        float p = sl_sample_exp(__fmul_rn(__fsub_rn(high[i], y.max), y.inv_t));
        sl_st_count(s, sl_st_key(p) >> 19, 0);
    }
    __syncthreads();
    for (int d = threadIdx.x; d < SL_ST_DIGITS; d += SL_ST_THREADS) {
        s->next.count[d] = s->count[d];
        s->next.mass[d] = 0;
    }
    __syncthreads();
    sl_st_find_digit(s, &s->next, (sl_u64)top_k, false);
    return sl_st_floor_of_digit(y.floor, s->digit);
}

/* Everything from the floor on into the list, in any order. False: it is too much. */
static __device__ bool make_list(const struct sl_st_args &a, struct few *f, int row,
                                 const struct sl_st_scale &y, const float high[HIGHS_EACH])
{
    const struct sl_sample_row *r = &f->pick.base.row;
    const float *logits = sl_st_logits(a, row);
    const bool aligned = (reinterpret_cast<uintptr_t>(logits) & 15) == 0;
#pragma unroll
    for (int i = 0; i < HIGHS_EACH; i++) {
        if (!(__fmul_rn(__fsub_rn(high[i], y.max), y.inv_t) >= y.floor))
            continue;
        uint32_t at = atomicAdd(&f->n_highs, 1u);
        if (at < MAX_HIGHS)
            f->highs[at] = (uint16_t)(i * SL_ST_THREADS + (int)threadIdx.x);
    }
    __syncthreads();
    if (f->n_highs > MAX_HIGHS)
        return false;
    const int fours = a.run_n / (4 * SL_ST_THREADS), n_items = (int)f->n_highs * fours;
    for (int item = threadIdx.x; item < n_items; item += SL_ST_THREADS) {
        int high_idx = f->highs[item / fours], u = item % fours;
        int32_t i =
            high_idx / SL_ST_THREADS * a.run_n + 4 * (u * SL_ST_THREADS + high_idx % SL_ST_THREADS);
        float raw[4], x[4];
        if (i >= a.op.n_vocab)
            continue;
        load_allowed(r, logits, aligned, i, a.op.n_vocab, raw, x);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float e = __fmul_rn(__fsub_rn(x[j], y.max), y.inv_t);
            if (!(e >= y.floor))
                continue;
            float p = sl_sample_exp(e);
            uint32_t key = sl_st_key(p), at;
            if (key == SL_ST_DEAD || (at = atomicAdd(&f->n, 1u)) >= MAX_LIST)
                continue;
            f->key[at] = key;
            f->id[at] = i + j;
            f->weight[at] = sl_st_weight(p);
        }
    }
    __syncthreads();
    return f->n <= MAX_LIST;
}

/* Takes what the filters drop out of the list, by making it weigh nothing. */
static __device__ struct sl_st_prefix filter_list(struct few *f, int32_t top_k, float top_p)
{
    const uint32_t n = f->n, t = threadIdx.x, keep_n = top_k > 0 ? (uint32_t)top_k : n;
    uint32_t rank[LIST_EACH];
    sl_u64 before[LIST_EACH], sum = 0;
#pragma unroll
    for (int e = 0; e < LIST_EACH; e++) {
        uint32_t i = t + (uint32_t)e * SL_ST_THREADS;
        rank[e] = n;
        before[e] = 0;
        if (i >= n)
            continue;
        uint32_t key = f->key[i];
        int32_t id = f->id[i];
        rank[e] = 0;
        for (uint32_t j = 0; j < n; j++) {
            bool ahead = f->key[j] < key || (f->key[j] == key && f->id[j] < id);
            rank[e] += ahead;
            before[e] += ahead ? f->weight[j] : 0;
        }
        sum += rank[e] < keep_n ? f->weight[i] : 0;
    }
    sl_u64 mass = sl_st_sum_block64(&f->pick.base, sum);
    sl_u64 want = top_p < 1.0f ? sl_st_share(mass, top_p) : ~0ull;
    uint32_t n_kept = 0;
    sum = 0;
#pragma unroll
    for (int e = 0; e < LIST_EACH; e++) {
        uint32_t i = t + (uint32_t)e * SL_ST_THREADS;
        if (i >= n)
            continue;
        if (rank[e] >= keep_n || before[e] >= want)
            f->weight[i] = 0; /* all have read it */
        n_kept += f->weight[i] > 0;
        sum += f->weight[i];
    }
    mass = sl_st_sum_block64(&f->pick.base, sum);
    n_kept = sl_st_sum_block(&f->pick.base, n_kept);
#pragma unroll
    for (int e = 0; e < LIST_EACH; e++) {
        uint32_t i = t + (uint32_t)e * SL_ST_THREADS;
        if (i < n && rank[e] == n_kept - 1) {
            f->pick.digit = f->key[i];
            f->pick.id = f->id[i];
        }
    }
    __syncthreads();
    return {f->pick.digit, f->pick.id, mass};
}

/* What all weighs, where nothing is filtered. */
static __device__ struct sl_st_prefix whole_list(struct few *f)
{
    sl_u64 sum = 0;
    for (uint32_t i = threadIdx.x; i < f->n; i += SL_ST_THREADS)
        sum += f->weight[i];
    return {SL_ST_DEAD, INT32_MAX, sl_st_sum_block64(&f->pick.base, sum)};
}

/* The token, ascending by id, at which the running weight is above `at`: one thread's. */
static __device__ void draw_from_list(const struct sl_st_args &a, const struct few *f, int row,
                                      sl_u64 at)
{
    for (uint32_t i = threadIdx.x; i < f->n; i += SL_ST_THREADS) {
        int32_t id = f->id[i];
        sl_u64 before = 0;
        for (uint32_t j = 0; j < f->n; j++)
            before += f->id[j] < id ? f->weight[j] : 0;
        if (at >= before && at - before < f->weight[i])
            sl_st_choose(a, &f->pick.base.row, row, id);
    }
}

/* False: the list is too long. */
static __device__ bool draw_few(const struct sl_st_args &a, struct few *f, int row, float max)
{
    const struct sl_sample_row *r = &f->pick.base.row;
    int32_t top_k = r->top_k > 0 && r->top_k < a.op.n_vocab ? r->top_k : 0;
    struct sl_st_scale y = {max, __fdiv_rn(1.0f, r->temperature), r->floor};
    const float *highs = a.highs + (int64_t)row * SL_ST_RUNS * SL_ST_THREADS + threadIdx.x;
    float high[HIGHS_EACH];
#pragma unroll
    for (int i = 0; i < HIGHS_EACH; i++)
        high[i] = highs[i * SL_ST_THREADS];
    if (top_k > 0 && top_k <= MAX_TOP_K)
        y.floor = floor_of_highs(f, y, high, top_k);
    if (!make_list(a, f, row, y, high))
        return false;
    struct sl_st_prefix kept =
        top_k > 0 || r->top_p < 1.0f ? filter_list(f, top_k, r->top_p) : whole_list(f);
    if (threadIdx.x == 0) {
        a.state[row].key = kept.key;
        a.state[row].id = kept.id;
        a.state[row].mass = kept.mass;
    }
    draw_from_list(a, f, row, __umul64hi(kept.mass, sl_st_random(r)));
    return true;
}

static __global__ void __launch_bounds__(SL_ST_THREADS, 2)
    sl_sample_few(const __grid_constant__ struct sl_st_args a)
{
    SL_SMEM(struct few, f);
    const int row = blockIdx.x;
    if (threadIdx.x == 0)
        f->n = f->n_highs = 0;
    sl_grid_wait();
    sl_st_load_row(a, &f->pick.base, row);
    sl_grid_launch_dependents();
    const struct sl_sample_row *r = &f->pick.base.row;
    bool may = may_be_few(r, a.op.n_vocab), done = may;
    sl_u64 best = 0, raw = 0;
    for (int i = 0; i < SL_ST_RUNS && may; i++) {
        const struct sl_st_run run = a.runs[(int64_t)row * SL_ST_RUNS + i];
        best = run.best > best ? run.best : best;
        raw = run.raw > raw ? run.raw : raw;
    }
    float max = sl_st_unorder((uint32_t)(best >> 32)), raw_max = sl_st_unorder((uint32_t)raw);
    bool valid = (uint32_t)raw != UINT32_MAX && raw_max >= -FLT_MAX && max >= -FLT_MAX;
    if (may && valid && r->temperature >= SL_SAMPLE_GREEDY_BELOW)
        done = draw_few(a, f, row, max);
    else if (may && threadIdx.x == 0)
        sl_st_choose(a, r, row, valid ? sl_st_id(best) : -1);
    if (threadIdx.x == 0) {
        a.state[row].open = !done;
        if (done)
            a.state[row].raw_max = raw_max;
    }
}

void sl_st_few(struct sl_cuda *cu, const struct sl_st_args *a)
{
    sl_launch(cu, sl_sample_look, dim3(SL_ST_RUNS, (unsigned)a->op.n), dim3(SL_ST_THREADS),
              sizeof(struct sl_st_room), *a);
    sl_launch(cu, sl_sample_few, dim3((unsigned)a->op.n), dim3(SL_ST_THREADS), sizeof(struct few),
              *a);
}
