/* SPDX-License-Identifier: MIT
 * Choosing tokens on the GPU: the same tokens as src/engine/sample.c, bit for bit.
 *
 * One kernel chooses. A cluster of up to 8 blocks has a row, each block a run of the vocabulary in
 * its shared memory, so that a row is read once from where the model left it:
 *
 *   scan    the row, with its changes, into shared memory; is it valid; its maximum. Greedy rows
 *           are done.
 *   weigh   probabilities in its place; what they weigh, by warp, or for filters by digit.
 *           Most steps of a warp lie below the floor that min_p gives, or that top_k gives
 *           after a look at the best token of each thread: skipped, here and later
 *   filter  top_k, then top_p: three digits of a key each (sample_pick.cuh), the first shared
 *   draw    a number below the kept weight, and the first token, ascending, whose running sum is
 *           above it: by block, by warp, by lane
 *
 * sample_report.cu, a second kernel, makes log probabilities where they are wanted.
 *
 * Predictions, not measurements, for one H200 and 128,256 tokens. A row is 513 KB: 8 blocks with
 * 64 KB of it and 37.5 KB of tables each, two blocks an SM, 64 registers a thread, so 33 rows under
 * way. Operations per logit, counted in the source: scan 7, y and the floor 7, exp 31, weight 9,
 * counting a digit 20 and two atomics of shared memory, each later digit 9, weighing what is
 * kept 14. All SMs issue 28e12 a second at 1.7 GHz, one SM with its 16,384 logits of a single row
 * needs 76 ns for each operation per logit. A meeting of the cluster is taken as 0.5 us, adding up
 * digits over its blocks as 2, a launch with a cluster as 2, loading 64 KB on an SM as 1.5.
 *
 *                       batch 1   32   256 us   what binds at 256
 *   greedy                    5    8     42     memory: 131 MB at 4.3 TB/s are 31
 *   temperature 1            11   16     75     issue: 54 operations a logit, 63 us
 *   top-p 0.9                21   28    135     issue: 97 operations, 114 us; atomics beside that
 *   top-k 50                 14   17     50     memory and eight meetings of a cluster
 *   all filters              19   22     60     four more meetings
 *
 * Flat logits and peaked ones are alike, but for top-k and min-p that keep much of the row, which
 * then cost what top-p does. Rows of equal logits would queue up at one address in each warp's
 * atomics; sl_st_count takes such a warp in one step.
 */
#include "cuda/sample/sample_pick.cuh"

/* ------------------------------------------------------------------ changes */

static __device__ __forceinline__ bool is_changed(const struct sl_sample_row *r)
{
    return r->n_bias > 0 || r->n_banned[0] > 0 || r->n_banned[1] > 0 || r->counts != nullptr ||
           r->allowed != nullptr;
}

/* Biases and bans of the block's run of the row. A run of equal ids is added up by one thread, in
 * order. */
static __device__ __noinline__ void change_few(const struct sl_sample_row *r,
                                               const struct sl_st_mine &m)
{
    uint32_t n = (uint32_t)m.n;
    for (int32_t i = threadIdx.x; i < r->n_bias; i += SL_ST_THREADS) {
        int32_t id = r->bias[i].id;
        if ((uint32_t)(id - m.base) >= n || (i > 0 && r->bias[i - 1].id == id))
            continue;
        float x = m.p[id - m.base];
        for (int32_t k = i; k < r->n_bias && r->bias[k].id == id; k++)
            x = __fadd_rn(x, r->bias[k].bias);
        m.p[id - m.base] = x;
    }
    __syncthreads();
    for (int list = 0; list < 2; list++) {
        for (int32_t i = threadIdx.x; i < r->n_banned[list]; i += SL_ST_THREADS) {
            int32_t id = r->banned[list][i];
            if ((uint32_t)(id - m.base) < n)
                m.p[id - m.base] = -INFINITY;
        }
    }
    __syncthreads();
}

static __device__ __forceinline__ float penalised(const struct sl_sample_row *r, int32_t id,
                                                  float x)
{
    int32_t c = r->counts[id];
    for (int32_t i = 0; i < r->n_ahead; i++)
        c += r->ahead[i] == id ? 2 : 0;
    if (c == 0)
        return x;
    x = x > 0.0f ? __fdiv_rn(x, r->repetition_penalty) : __fmul_rn(x, r->repetition_penalty);
    if (c > 1) {
        x = __fsub_rn(x, __fmul_rn(r->frequency_penalty, (float)(c >> 1)));
        x = __fsub_rn(x, r->presence_penalty);
    }
    return x < FLT_MAX ? x : FLT_MAX;
}

/* ------------------------------------------------------------------ the row */

struct scanned {
    sl_u64 best;  /* packed, after changes */
    uint32_t raw; /* ordered maximum before; UINT32_MAX: NaN or infinity somewhere */
};

struct sample_seen { /* by a thread, in ascending order of ids */
    float best, raw;
    int32_t id;
    bool bad;
};

static __device__ __forceinline__ void sample_look_at(struct sample_seen *out, const float x[4],
                                                      int32_t id)
{
#pragma unroll
    for (int j = 0; j < 4; j++) { /* the first of equals stays */
        out->bad |= !(x[j] <= FLT_MAX);
        out->id = x[j] > out->best ? id + j : out->id;
        out->best = x[j] > out->best ? x[j] : out->best;
    }
}

#define BATCH 4 /* loads under way before the first is looked at */

/* The logits into m.p, if they are needed again. WHOLE: all of the warp's are there and aligned, so
 * that no branch keeps its loads apart. */
template <bool WHOLE>
static __device__ __forceinline__ void sample_load_run(const float *logits,
                                                       const struct sl_st_mine &m, int32_t n,
                                                       bool keep, struct sample_seen *out)
{
    int32_t lane = threadIdx.x % 32;
    for (int32_t from = m.from; from < m.to; from += BATCH * SL_ST_STEP) {
        float x[BATCH][4];
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            int32_t i = from + u * SL_ST_STEP + 4 * lane;
            if (from + u * SL_ST_STEP < m.to)
                sl_st_load4(logits, WHOLE, i, WHOLE ? INT32_MAX : n, x[u]);
        }
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            int32_t i = from + u * SL_ST_STEP + 4 * lane;
            if (from + u * SL_ST_STEP >= m.to)
                break;
            sample_look_at(out, x[u], m.base + i);
            if (keep)
                *reinterpret_cast<float4 *>(m.p + i) =
                    make_float4(x[u][0], x[u][1], x[u][2], x[u][3]);
        }
    }
}

/* Changes the row in m.p to what it is chosen from. */
static __device__ __noinline__ void change(const struct sl_sample_row *r,
                                           const struct sl_st_mine &m, int32_t n,
                                           struct sample_seen *out)
{
    __syncthreads();
    change_few(r, m);
    for (int32_t i = m.from + 4 * (int32_t)(threadIdx.x % 32); i < m.to; i += SL_ST_STEP) {
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int32_t id = m.base + i + j;
            x[j] = m.p[i + j];
            if (i + j >= n)
                continue;
            if (r->allowed != nullptr && (r->allowed[id >> 5] >> (id & 31) & 1) == 0)
                x[j] = -INFINITY;
            if (r->counts != nullptr)
                x[j] = penalised(r, id, x[j]);
            m.p[i + j] = x[j];
        }
        sample_look_at(out, x, m.base + i);
    }
}

static __device__ __forceinline__ struct sample_seen sample_scan(const struct sl_st_args &a,
                                                                 const struct sl_sample_row *r,
                                                                 const struct sl_st_mine &m,
                                                                 int row, bool draws)
{
    const float *logits = sl_st_logits(a, row) + m.base;
    bool changed = is_changed(r), aligned = (reinterpret_cast<uintptr_t>(logits) & 15) == 0;
    int32_t n = a.op.n_vocab - m.base;
    struct sample_seen out = {-INFINITY, -INFINITY, 0, false};
    if (aligned && m.to <= n)
        sample_load_run<true>(logits, m, n, changed || draws, &out);
    else
        sample_load_run<false>(logits, m, n, changed || draws, &out);
    out.raw = out.best;
    if (changed) {
        out.best = -INFINITY;
        change(r, m, n, &out);
    }
    return out;
}

/* What all blocks found, in every thread of the cluster. */
static __device__ struct scanned scan_all(struct sl_st_pick *s, const struct sl_st_mine &m,
                                          const struct sample_seen &own)
{
    sl_u64 best = sl_st_max_block(&s->base, sl_st_pack(own.best, own.id));
    sl_u64 raw = sl_st_max_block(&s->base, own.bad ? UINT32_MAX : sl_st_order(own.raw));
    const struct sl_st_slot *all = sl_st_exchange(s, m, best, raw);
    for (int32_t i = 0; i < m.cluster; i++) {
        best = all[i].a > best ? all[i].a : best;
        raw = all[i].b > raw ? all[i].b : raw;
    }
    return {best, (uint32_t)raw};
}

/* A floor below which no token of the top_k lies: of so many threads the best one is not below it.
 * Then most steps of most warps have nothing to raise to a power or to count. */
static __device__ __noinline__ float floor_of_k(struct sl_st_pick *s, const struct sl_st_mine &m,
                                                const struct sl_st_scale &y, float best,
                                                int32_t top_k)
{
    float p = sl_sample_exp(__fmul_rn(__fsub_rn(best, y.max), y.inv_t));
    sl_st_clear_digits(s);
    sl_st_count(s, sl_st_key(p) >> 19, 0);
    sl_st_merge(s, m, &s->next, 0, 19);
    sl_st_find_digit(s, &s->next, (sl_u64)top_k, false);
    return sl_st_floor_of_digit(y.floor, s->digit);
}

/* Probabilities instead of logits; by warp what they weigh, or by digit with counts. */
static __device__ __forceinline__ void weigh(struct sl_st_pick *s, struct sl_st_mine &m,
                                             const struct sl_st_scale &y, bool digits)
{
    sl_u64 sum = 0;
    uint32_t step = 1;
    m.live = 0;
    for (int32_t i = m.from + 4 * (int32_t)(threadIdx.x % 32); i < m.to; i += SL_ST_STEP) {
        float4 v = *reinterpret_cast<const float4 *>(m.p + i);
        float p[4] = {v.x, v.y, v.z, v.w};
        bool live = false;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            p[j] = __fmul_rn(__fsub_rn(p[j], y.max), y.inv_t);
            live |= p[j] >= y.floor;
        }
        live = __any_sync(0xffffffffu, live);
        m.live |= live ? step : 0;
        step = step << 1 | step >> 31;
        if (!live) {
            *reinterpret_cast<float4 *>(m.p + i) = make_float4(0, 0, 0, 0);
            continue;
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float e = sl_sample_exp(p[j]);
            p[j] = p[j] >= y.floor ? e : 0.0f;
        }
        *reinterpret_cast<float4 *>(m.p + i) = make_float4(p[0], p[1], p[2], p[3]);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (digits) {
                uint32_t key = sl_st_key(p[j]);
                sl_st_count(s, key >> 19, key != SL_ST_DEAD ? sl_st_digits(p[j]) : 0);
            } else {
                sum += sl_st_weight(p[j]);
            }
        }
    }
    if (digits)
        return;
    sum = sl_st_sum_warp(sum);
    if (threadIdx.x % 32 == 0)
        s->warp_sums[threadIdx.x / 32] = sum;
}

/* ------------------------------------------------------------------ draw */

static __device__ __forceinline__ struct sl_st_prefix filter(struct sl_st_pick *s,
                                                             const struct sl_st_mine &m,
                                                             int32_t top_k, float top_p)
{
    sl_st_merge(s, m, &s->first, 0, 19);
    /* No row has so many: everything. */
    struct sl_st_prefix kept = sl_st_shortest(s, m, top_k > 0 ? (sl_u64)top_k : ~0ull >> 1, false);
    if (top_p < 1.0f) {
        kept = sl_st_shortest(s, m, sl_st_share(kept.mass, top_p), true);
    }
    return kept;
}

/* By warp what the kept tokens weigh. */
static __device__ __forceinline__ void weigh_kept(struct sl_st_pick *s, const struct sl_st_mine &m,
                                                  const struct sl_st_prefix &kept)
{
    sl_u64 sum = 0;
    sl_st_each(m, [&](int32_t i, const float p[4]) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            sum += sl_st_keeps(kept, m.base + i + j, p[j]) ? sl_st_weight(p[j]) : 0;
    });
    sum = sl_st_sum_warp(sum);
    if (threadIdx.x % 32 == 0)
        s->warp_sums[threadIdx.x / 32] = sum;
}

/* max: of the row; best: of this thread. */
static __device__ __forceinline__ void sample_draw(const struct sl_st_args &a, struct sl_st_pick *s,
                                                   struct sl_st_mine &m, int row, float max,
                                                   float best)
{
    const struct sl_sample_row *r = &s->base.row;
    int32_t top_k = r->top_k > 0 && r->top_k < a.op.n_vocab ? r->top_k : 0;
    bool digits = top_k > 0 || r->top_p < 1.0f;
    struct sl_st_prefix kept = {SL_ST_DEAD, INT32_MAX, 0};
    struct sl_st_scale y = {max, __fdiv_rn(1.0f, r->temperature), r->floor};
    if (top_k > 0)
        y.floor = floor_of_k(s, m, y, best, top_k);
    if (digits)
        sl_st_clear_digits(s);
    weigh(s, m, y, digits);
    if (digits) {
        kept = filter(s, m, top_k, r->top_p);
        weigh_kept(s, m, kept);
    }
    __syncthreads(); /* warp_sums */
    if (!digits) {
        sl_u64 own = 0;
        for (int i = 0; i < SL_ST_WARPS; i++)
            own += s->warp_sums[i];
        const struct sl_st_slot *all = sl_st_exchange(s, m, own, 0);
        for (int32_t i = 0; i < m.cluster; i++)
            kept.mass += all[i].a;
    }
    if (m.rank == 0 && threadIdx.x == 0) {
        a.state[row].key = kept.key;
        a.state[row].id = kept.id;
        a.state[row].mass = kept.mass;
    }
    int32_t id = -1;
    auto weight = [&](int32_t i, float p) {
        return sl_st_keeps(kept, m.base + i, p) ? sl_st_weight(p) : (sl_u64)0;
    };
    if (sl_st_locate(s, m, __umul64hi(kept.mass, sl_st_random(r)), &id, weight))
        sl_st_choose(a, r, row, id);
}

static __device__ __forceinline__ void choose_row(const struct sl_st_args &a, struct sl_st_pick *s,
                                                  struct sl_st_mine &m, int row)
{
    sl_st_load_row(a, &s->base, row);
    const struct sl_sample_row *r = &s->base.row;
    bool first = m.rank == 0 && threadIdx.x == 0;
    if (r->padding != 0) {
        if (first)
            a.op.ids[row] = 0;
        return;
    }
    bool draws = r->temperature >= SL_SAMPLE_GREEDY_BELOW;
    struct sample_seen own = sample_scan(a, r, m, row, draws);
    struct scanned found = scan_all(s, m, own);
    sl_grid_launch_dependents();
    float max = sl_st_unorder((uint32_t)(found.best >> 32)), raw_max = sl_st_unorder(found.raw);
    bool valid = found.raw != UINT32_MAX && raw_max >= -FLT_MAX && max >= -FLT_MAX;
    if (first)
        a.state[row].raw_max = raw_max;
    if (draws && valid)
        sample_draw(a, s, m, row, max, own.best);
    else if (first)
        sl_st_choose(a, r, row, valid ? sl_st_id(found.best) : -1);
}

/* After the kernels for few tokens: the rows that they left open. */
static __global__ void __launch_bounds__(SL_ST_THREADS, 2)
    sl_sample_choose(const __grid_constant__ struct sl_st_args a)
{
    SL_SMEM(struct sl_st_pick, s);
    int row = blockIdx.y, warp = threadIdx.x / 32;
    struct sl_st_mine m;
    m.cluster = a.cluster;
    m.rank = sl_cluster_rank();
    m.n = a.warp_n * SL_ST_WARPS;
    m.base = (int32_t)m.rank * m.n;
    m.from = warp * a.warp_n;
    m.to = m.from + a.warp_n;
    m.live = ~0u;
    m.p = a.wide != nullptr ? a.wide + ((int64_t)row * a.cluster + m.rank) * m.n
                            : reinterpret_cast<float *>(s + 1);
    if (threadIdx.x == 0)
        s->turn = 0;
    sl_cluster_sync(); /* the other blocks are there */
    sl_grid_wait();
    if (!a.after_few || a.state[row].open)
        choose_row(a, s, m, row);
}

/* ------------------------------------------------------------------ host */

size_t sl_cuda_sample_scratch(int32_t max_n, int32_t n_vocab)
{
    struct sl_st_args a = {};
    a.op.max_n = max_n;
    a.op.n_vocab = n_vocab;
    return sl_st_lay_out(&a);
}

void sl_cuda_sample(struct sl_backend *be, const struct sl_op_sample *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_st_args a = {};
    a.op = *op;
    if (op->n <= 0)
        return;
    SL_ASSERT(op->n <= op->max_n);
    sl_st_lay_out(&a);
    size_t row_bytes = a.wide != nullptr ? 0 : (size_t)a.warp_n * SL_ST_WARPS * sizeof(float);
    a.after_few = a.runs != nullptr && op->n >= SL_ST_FEW_ROWS;
    if (a.after_few)
        sl_st_few(cu, &a);
    sl_launch_cluster(cu, sl_sample_choose, dim3((unsigned)a.cluster, (unsigned)op->n),
                      dim3(SL_ST_THREADS), sizeof(struct sl_st_pick) + row_bytes,
                      (unsigned)a.cluster, a);
    if (op->results != nullptr)
        sl_st_report(cu, &a);
}
