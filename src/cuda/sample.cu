/* SPDX-License-Identifier: MIT
 * Choosing tokens on the GPU: the same tokens as src/engine/sample.c, bit for bit.
 *
 * Three kernels, a grid of (parts, rows) each; within one, the block that arrives last at a row's
 * counter finishes the row. Which block that is changes no bit: everything is computed from whole
 * rows, blocks of 256 logits, or a sorted list.
 *
 *   scan    is the row valid, its maximum (before and after changes); greedy rows are done here.
 *           For filters: maxima of groups of 16 logits, and from their histogram a cut above which
 *           enough candidates surely lie.
 *   draw    exp and its sums by block of 256, the candidates above the cut; the last block draws
 *           (sample_pick.cuh). Only if a row draws.
 *   report  log probabilities: the sum of exp, the rank, the best tokens. Only if wanted.
 *
 * Predictions, not measurements. One row of 128 Ki logits: 512 KiB in L2, 64 tiles on 64 blocks. A
 * launch inside a graph is taken as 1.3 us, a trip to L2 as 0.6 us, a dependent addition of doubles
 * as 8 cycles (4.7 ns at 1.7 GHz). Microseconds:
 *
 *   scan    launch 1.3, load 0.6, reductions and counter 1.5 = 3.4; filtered: 8192 maxima 1.5 more
 *   draw    launch 1.3, load 0.6, exp 0.3, chains of 64 additions 0.4, counter 1 = 3.6, and then
 *           no filter: chain of 512 sums 2.4, walks over 256 sums and in a block 1.8 = 7.8 in all;
 *           top_k or top_p: sort of 512 to 1024 (45 to 55 steps of 40 ns) 2, three chains over the
 *           kept (50 tokens: 0.7, 500: 7) = 6.3 to 12.6; top_p alone: chain of 512 sums 2.4 more
 *   report  launch 1.3, load 0.6, exp and chains 0.7, 20 rounds of a block-wide maximum 2.5,
 *           counter 1, merge of 64 lists 2.5, chain of 512 sums 2.4 = 11
 *
 * So about 3.5 greedy, 11 without filter, 11 to 20 with, 11 more with log probabilities. 256 rows:
 * 134 MB per kernel are 31 us at 4.3 TB/s, exp at 28 operations a logit 31 us: 90 us and a tail.
 *
 * Slow, as the CPU's order is one chain over the sorted tokens: a filter that keeps n costs three
 * chains of n additions (10,000: 140 us), and above 2048 tokens three times two passes of one block
 * over the row for each 2048 (128 Ki logits: about 15 us a pass).
 */
#include "cuda/sample_pick.cuh"

/* ------------------------------------------------------------------ parts of a kernel */

static __device__ void load_row(const struct sl_st_args &a, struct sl_st_room *s, int row)
{
    constexpr int n = sizeof(struct sl_sample_row) / 4;
    static_assert(sizeof(struct sl_sample_row) % 4 == 0 && n <= SL_ST_THREADS, "words of a row");
    if (threadIdx.x < n)
        reinterpret_cast<uint32_t *>(&s->row)[threadIdx.x] =
            reinterpret_cast<const uint32_t *>(a.op.rows + row)[threadIdx.x];
    __syncthreads();
}

static __device__ void load_state(const struct sl_st_args &a, struct sl_st_room *s, int row)
{
    constexpr int n = sizeof(struct sl_st_state) / 4;
    __syncthreads();
    if (threadIdx.x < n)
        reinterpret_cast<uint32_t *>(&s->state)[threadIdx.x] =
            reinterpret_cast<const uint32_t *>(a.state + row)[threadIdx.x];
    __syncthreads();
}

static __device__ __forceinline__ double *sums_of(const struct sl_st_args &a, int row)
{
    return a.sums + (size_t)row * a.n_tiles * (SL_ST_TILE / SL_ST_BLOCK);
}

static __device__ __forceinline__ float *groups_of(const struct sl_st_args &a, int row)
{
    return a.groups + (size_t)row * a.n_tiles * SL_ST_GROUPS;
}

/* One thread. */
static __device__ void choose(const struct sl_st_args &a, const struct sl_sample_row *r, int row,
                              int32_t id)
{
    a.op.ids[row] = id;
    if (id >= 0 && r->counts != nullptr)
        r->counts[id] += 2;
}

static __device__ __forceinline__ bool has_k(const struct sl_sample_row *r, int32_t n_vocab)
{
    return r->top_k > 0 && r->top_k < n_vocab;
}

/* Does top_p need the mass of the whole row? */
static __device__ __forceinline__ bool has_sums(const struct sl_sample_row *r, int32_t n_vocab)
{
    return !has_k(r, n_vocab) && r->top_p < 1.0f && r->floor <= SL_SAMPLE_FLOOR;
}

static __device__ __forceinline__ enum sl_st_mode mode_of(const struct sl_sample_row *r,
                                                          int32_t n_vocab)
{
    if (r->temperature < SL_SAMPLE_GREEDY_BELOW)
        return SL_ST_DONE;
    bool filtered = has_k(r, n_vocab) || r->top_p < 1.0f || r->min_p > 0.0f;
    return filtered ? SL_ST_FILTERED : SL_ST_ANY;
}

/* Groups that must lie above the cut; 0: the cut is not made from groups. */
static __device__ __forceinline__ int32_t n_groups_wanted(const struct sl_sample_row *r,
                                                          int32_t n_vocab)
{
    if (mode_of(r, n_vocab) != SL_ST_FILTERED)
        return 0;
    if (has_k(r, n_vocab))
        return r->top_k <= SL_ST_MAX_K ? r->top_k : 0;
    return has_sums(r, n_vocab) ? SL_ST_P_GROUPS : 0;
}

/* ------------------------------------------------------------------ scan */

/* The bucket by which so many groups have an element. */
static __device__ int32_t cut_by_groups(const struct sl_st_args &a, struct sl_st_room *s, int row,
                                        int32_t n_wanted)
{
    const float *groups = groups_of(a, row);
    sl_st_clear_hist(s);
    for (int32_t i = threadIdx.x; i < a.n_tiles * SL_ST_GROUPS; i += SL_ST_THREADS) {
        float y = sl_st_y(&s->state, groups[i]);
        if (y >= s->row.floor)
            atomicAdd(&s->hist[sl_st_bucket(s->state.scale, y)], 1u);
    }
    __syncthreads();
    sl_st_find_bin(s, (uint32_t)n_wanted);
    return s->bin < SL_ST_BUCKETS ? s->bin : SL_ST_BUCKETS - 1;
}

/* All parts of the row have arrived. */
static __device__ void finish_scan(const struct sl_st_args &a, struct sl_st_room *s, int row)
{
    const struct sl_sample_row *r = &s->row;
    const struct sl_st_part *parts = a.parts + (size_t)row * SL_ST_PARTS;
    int t = threadIdx.x;
    sl_u64 best = sl_st_max_block(s, t < a.n_parts ? parts[t].best : 0);
    uint32_t raw_key = (uint32_t)sl_st_max_block(s, t < a.n_parts ? parts[t].raw : 0);
    float raw_max = sl_st_unorder(raw_key), max = sl_st_unorder((uint32_t)(best >> 32));
    bool valid = raw_key != UINT32_MAX && raw_max >= -FLT_MAX && max >= -FLT_MAX;
    enum sl_st_mode mode = valid ? mode_of(r, a.op.n_vocab) : SL_ST_DONE;
    if (t == 0) {
        struct sl_st_state *st = &s->state;
        st->mode = mode;
        st->max = max;
        st->raw_max = raw_max;
        st->inv_t = __fdiv_rn(1.0f, r->temperature);
        st->scale = __fdiv_rn((float)SL_ST_BUCKETS, fmaxf(-r->floor, 1e-3f));
        st->cut = has_k(r, a.op.n_vocab) && r->top_k > SL_ST_MAX_K ? -1 : SL_ST_BUCKETS - 1;
        if (mode == SL_ST_DONE)
            choose(a, r, row, valid ? sl_st_id(best) : -1);
    }
    __syncthreads();
    int32_t n_wanted = n_groups_wanted(r, a.op.n_vocab);
    int32_t cut = s->state.cut;
    if (mode == SL_ST_FILTERED && n_wanted > 0)
        cut = cut_by_groups(a, s, row, n_wanted);
    if (t == 0) {
        struct sl_st_state *st = a.state + row;
        st->mode = s->state.mode;
        st->max = s->state.max;
        st->raw_max = s->state.raw_max;
        st->inv_t = s->state.inv_t;
        st->scale = s->state.scale;
        st->cut = cut;
        st->n_cands = 0;
    }
}

static __global__ void __launch_bounds__(SL_ST_THREADS, 4)
    sl_sample_scan(const __grid_constant__ struct sl_st_args a)
{
    SL_SMEM(struct sl_st_room, s);
    int row = blockIdx.y, part = blockIdx.x;
    sl_grid_wait();
    load_row(a, s, row);
    if (s->row.padding != 0) {
        if (part == 0 && threadIdx.x == 0) {
            a.op.ids[row] = 0;
            a.state[row].mode = SL_ST_DONE;
        }
        return;
    }
    bool changed = sl_st_is_changed(&s->row);
    bool grouped = n_groups_wanted(&s->row, a.op.n_vocab) > 0;
    float best = -INFINITY, raw = -INFINITY;
    int32_t best_id = 0, end = min((part + 1) * a.part_tiles, a.n_tiles);
    bool bad = false;
    for (int32_t tile = part * a.part_tiles; tile < end; tile++) {
        float x[8], top = -INFINITY;
        sl_st_load(sl_st_logits(a, row), tile * SL_ST_TILE, a.op.n_vocab, x);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            bad |= !(x[j] <= FLT_MAX);
            raw = x[j] > raw ? x[j] : raw;
        }
        if (changed)
            sl_st_change(s, tile * SL_ST_TILE, a.op.n_vocab, x);
#pragma unroll
        for (int j = 0; j < 8; j++) { /* ascending ids: the first of equals stays */
            bad |= !(x[j] <= FLT_MAX);
            top = x[j] > top ? x[j] : top;
            best_id = x[j] > best ? tile * SL_ST_TILE + sl_st_at(j) : best_id;
            best = x[j] > best ? x[j] : best;
        }
        if (grouped) {
            float other = __shfl_xor_sync(0xffffffffu, top, 1);
            top = other > top ? other : top;
            if (threadIdx.x % 2 == 0)
                groups_of(a, row)[tile * SL_ST_GROUPS + threadIdx.x / 2] = top;
        }
    }
    sl_grid_launch_dependents();
    sl_u64 key = sl_st_max_block(s, sl_st_pack(best, best_id));
    sl_u64 raw_key = sl_st_max_block(s, bad ? UINT32_MAX : sl_st_order(raw));
    if (threadIdx.x == 0) {
        struct sl_st_part *p = a.parts + (size_t)row * SL_ST_PARTS + part;
        p->best = key;
        p->raw = (uint32_t)raw_key;
    }
    if (sl_st_last(s, &a.state[row].n_arrived[0], a.n_parts))
        finish_scan(a, s, row);
}

/* ------------------------------------------------------------------ draw */

/* The elements of a tile down to the cut go to the row's list, in any order. */
static __device__ __forceinline__ void collect(const struct sl_st_args &a, struct sl_st_room *s,
                                               int row, int32_t tile, const float y[8])
{
    uint32_t hits = 0;
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (y[j] >= s->row.floor && sl_st_bucket(s->state.scale, y[j]) <= s->state.cut)
            hits |= 1u << j;
    uint32_t slot = hits != 0 ? (uint32_t)atomicAdd(&s->n_hits, __popc(hits)) : 0;
    __syncthreads();
    if (threadIdx.x == 0 && s->n_hits > 0) {
        s->base = (int32_t)atomicAdd(&a.state[row].n_cands, (uint32_t)s->n_hits);
        s->n_hits = 0;
    }
    __syncthreads();
    slot += hits != 0 ? (uint32_t)s->base : 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if ((hits >> j & 1) == 0)
            continue;
        if (slot < SL_ST_CANDS)
            a.cands[(size_t)row * SL_ST_CANDS + slot] =
                (sl_u64)sl_st_key(y[j]) << 32 | (uint32_t)(tile * SL_ST_TILE + sl_st_at(j));
        slot++;
    }
}

static __device__ void finish_draw(const struct sl_st_args &a, struct sl_st_room *s, int row,
                                   bool summed)
{
    double u = sl_st_unit(s->row.seed, s->row.pos);
    int32_t id;
    load_state(a, s, row); /* again, for the number of candidates */
    if (s->state.mode == SL_ST_ANY)
        id = sl_st_pick_any(a, s, row, sums_of(a, row), u);
    else
        id = sl_st_pick_filtered(a, s, row, sums_of(a, row), summed, u);
    if (threadIdx.x == 0)
        choose(a, &s->row, row, id);
}

static __global__ void __launch_bounds__(SL_ST_THREADS, 3)
    sl_sample_draw(const __grid_constant__ struct sl_st_args a)
{
    SL_SMEM(struct sl_st_room, s);
    int row = blockIdx.y, part = blockIdx.x;
    sl_grid_wait();
    if (a.state[row].mode == SL_ST_DONE)
        return;
    load_row(a, s, row);
    load_state(a, s, row);
    bool listed = s->state.mode == SL_ST_FILTERED && s->state.cut >= 0;
    bool summed = s->state.mode == SL_ST_ANY || has_sums(&s->row, a.op.n_vocab);
    int32_t end = min((part + 1) * a.part_tiles, a.n_tiles);
    if (threadIdx.x == 0)
        s->n_hits = 0;
    __syncthreads();
    for (int32_t tile = part * a.part_tiles; tile < end; tile++) {
        float y[8];
        sl_st_tile(a, s, row, tile, y);
#pragma unroll
        for (int j = 0; j < 8; j++)
            y[j] = sl_st_y(&s->state, y[j]);
        if (listed)
            collect(a, s, row, tile, y);
        if (!summed)
            continue;
        sl_st_exp_tile(s, y);
        if (threadIdx.x < 32)
            sl_st_sum_tile(s, tile, a.op.n_vocab, true, sums_of(a, row));
    }
    sl_grid_launch_dependents();
    if (sl_st_last(s, &a.state[row].n_arrived[1], a.n_parts))
        finish_draw(a, s, row, summed);
}

/* ------------------------------------------------------------------ report */

/* The best of this tile into the ordered list s->top[0 .. n), 0: free. One round for each element
 * that enters. */
static __device__ void enter_top(struct sl_st_room *s, int32_t n, int32_t first, int32_t n_vocab,
                                 const float x[8])
{
    sl_u64 key[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int32_t id = first + sl_st_at(j);
        key[j] = id < n_vocab ? sl_st_pack(x[j], id) : 0;
    }
    for (;;) {
        sl_u64 own = 0;
#pragma unroll
        for (int j = 0; j < 8; j++)
            own = key[j] > own ? key[j] : own;
        sl_u64 best = sl_st_max_block(s, own);
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

static __device__ void finish_report(const struct sl_st_args &a, struct sl_st_room *s, int row,
                                     int32_t id)
{
    const float *x = sl_st_logits(a, row);
    const struct sl_st_part *parts = a.parts + (size_t)row * SL_ST_PARTS;
    struct sl_sample_result *out = a.op.results + row;
    int32_t t = threadIdx.x, n_top = s->row.n_top, n = a.n_parts * n_top;
    uint32_t before = sl_st_sum_block(s, t < a.n_parts ? (uint32_t)parts[t].best : 0);
    double sum = sl_st_total(s, sums_of(a, row), sl_st_n_blocks(a.op.n_vocab));
    if (t == 0) {
        out->id = id;
        out->n_before = (int32_t)before;
        out->logit = x[id];
        out->max = s->state.raw_max;
        out->sum = sum;
    }
    if (n_top == 0)
        return;
    __syncthreads();
    for (int32_t i = t; i < n; i += SL_ST_THREADS) /* ascending order has the best last */
        s->cands[i] =
            ~a.tops[((size_t)row * SL_ST_PARTS + i / n_top) * SL_SAMPLE_MAX_TOP + i % n_top];
    __syncthreads();
    sl_st_sort(s, n);
    if (t < n_top) {
        sl_u64 key = ~s->cands[t];
        int32_t top = key != 0 ? sl_st_id(key) : -1;
        out->top_id[t] = top;
        out->top_logit[t] = top >= 0 ? x[top] : -INFINITY;
    }
}

static __global__ void __launch_bounds__(SL_ST_THREADS, 4)
    sl_sample_report(const __grid_constant__ struct sl_st_args a)
{
    SL_SMEM(struct sl_st_room, s);
    int row = blockIdx.y, part = blockIdx.x;
    sl_grid_wait();
    load_row(a, s, row);
    if (s->row.padding != 0 || s->row.n_top < 0)
        return;
    int32_t id = a.op.ids[row], end = min((part + 1) * a.part_tiles, a.n_tiles);
    if (id < 0) {
        if (part == 0 && threadIdx.x == 0)
            a.op.results[row].id = -1;
        return;
    }
    load_state(a, s, row);
    float max = s->state.raw_max, logit = sl_st_logits(a, row)[id];
    uint32_t before = 0;
    if (threadIdx.x < SL_SAMPLE_MAX_TOP)
        s->top[threadIdx.x] = 0;
    __syncthreads();
    for (int32_t tile = part * a.part_tiles; tile < end; tile++) {
        float x[8];
        sl_st_load(sl_st_logits(a, row), tile * SL_ST_TILE, a.op.n_vocab, x);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int32_t i = tile * SL_ST_TILE + sl_st_at(j);
            before += i < a.op.n_vocab && (x[j] > logit || (x[j] == logit && i < id));
        }
        if (s->row.n_top > 0)
            enter_top(s, s->row.n_top, tile * SL_ST_TILE, a.op.n_vocab, x);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = __fsub_rn(x[j], max);
        sl_st_exp_tile(s, x);
        if (threadIdx.x < 32)
            sl_st_sum_tile(s, tile, a.op.n_vocab, false, sums_of(a, row));
    }
    sl_grid_launch_dependents();
    before = sl_st_sum_block(s, before);
    size_t at = (size_t)row * SL_ST_PARTS + part;
    if (threadIdx.x == 0)
        a.parts[at].best = before;
    if ((int32_t)threadIdx.x < s->row.n_top)
        a.tops[at * SL_SAMPLE_MAX_TOP + threadIdx.x] = s->top[threadIdx.x];
    if (sl_st_last(s, &a.state[row].n_arrived[2], a.n_parts))
        finish_report(a, s, row, id);
}

/* ------------------------------------------------------------------ host */

size_t sl_cuda_sample_scratch(int32_t max_n, int32_t n_vocab)
{
    struct sl_st_args a = {};
    a.op.max_n = max_n;
    a.op.n_vocab = n_vocab;
    return sl_st_lay_out(&a);
}

/* Few rows: a part for each tile. Many: four blocks for each SM are enough in all. */
static void share_out(struct sl_st_args *a, int n_sms)
{
    int32_t parts = SL_CEIL_DIV(4 * n_sms, a->op.n);
    parts = SL_MAX(1, SL_MIN(SL_MIN(parts, SL_ST_PARTS), a->n_tiles));
    a->part_tiles = SL_CEIL_DIV(a->n_tiles, parts);
    a->n_parts = SL_CEIL_DIV(a->n_tiles, a->part_tiles);
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
    share_out(&a, cu->n_sms);
    dim3 grid((unsigned)a.n_parts, (unsigned)op->n), block(SL_ST_THREADS);
    sl_launch(cu, sl_sample_scan, grid, block, sizeof(struct sl_st_room), a);
    if (op->draws)
        sl_launch(cu, sl_sample_draw, grid, block, sizeof(struct sl_st_room), a);
    if (op->results != nullptr)
        sl_launch(cu, sl_sample_report, grid, block, sizeof(struct sl_st_room), a);
}
