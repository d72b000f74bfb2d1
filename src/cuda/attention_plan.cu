/* SPDX-License-Identifier: MIT
 * attention_plan.cu - cuts a step's attention into work items, on the device.
 *
 * One block, once a step. Spans are narrow (up to 16 rows: one tile) or wide; the two classes are
 * planned one after the other, the narrow kernel runs before the wide one and both use all slots.
 * With `share` the splits of a class over the blocks that will run it: the first part of a tile is
 * as long as the share (wide) or half of it (narrow, whose slots are small), so that most tiles are
 * one part and need no slot, and none is so long that the others wait for it; what is left is cut
 * into parts of a quarter of the share. When slots or lists would not suffice, first parts grow
 * until they do. All this decides who computes and nothing of what is computed.
 *
 * Order: first parts, the longest of each wide span first, then the others.
 *
 * Cost (prediction): about 5 us for 256 decodes, 10 us for 2,048 tiles.
 */
#include "cuda/attention.cuh"

#define PLAN_THREADS 512
#define PLAN_WARPS   (PLAN_THREADS / 32)

struct plan_args {
    const struct sl_span *spans;
    int32_t n_spans, n_tokens, n_kv_heads;
    struct sl_attn_layout at;
};

struct plan_smem {
    int32_t scan[PLAN_WARPS][3];
    int64_t sums[PLAN_WARPS][4];
    int64_t total[4];
};

/* ---------------------------------------------------------------- sums over the block */

/* Sums of four numbers of each thread, to all. */
static __device__ void block_sums(struct plan_smem *s, int64_t x[4])
{
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        for (int d = 16; d > 0; d /= 2)
            x[i] += __shfl_xor_sync(0xFFFFFFFFu, x[i], d);
        if (lane == 0)
            s->sums[warp][i] = x[i];
    }
    __syncthreads();
    if (threadIdx.x < 4) {
        int64_t sum = 0;
        for (int i = 0; i < PLAN_WARPS; i++)
            sum += s->sums[i][threadIdx.x];
        s->total[threadIdx.x] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = s->total[i];
    __syncthreads();
}

/* x: of each thread; out: the sum of the threads before it, onto *carry, which all get the block's
 * sum added to. */
static __device__ void block_scan(struct plan_smem *s, const int32_t x[3], int32_t carry[3],
                                  int32_t out[3])
{
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    int32_t up[3];
#pragma unroll
    for (int i = 0; i < 3; i++) {
        up[i] = x[i];
        for (int d = 1; d < 32; d *= 2) {
            int32_t y = __shfl_up_sync(0xFFFFFFFFu, up[i], static_cast<unsigned>(d));
            up[i] += lane >= d ? y : 0;
        }
        if (lane == 31)
            s->scan[warp][i] = up[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 3; i++) {
        int32_t before = 0, all = 0;
        for (int k = 0; k < PLAN_WARPS; k++) {
            before += k < warp ? s->scan[k][i] : 0;
            all += s->scan[k][i];
        }
        out[i] = carry[i] + before + up[i] - x[i];
        carry[i] += all;
    }
    __syncthreads();
}

/* ---------------------------------------------------------------- tiles */

static __device__ int32_t class_of(const struct plan_args &p, const struct sl_span &span)
{
    return static_cast<int64_t>(span.n) * p.at.group > SL_ATTN_NARROW;
}

static __device__ int32_t tiles_of(const struct plan_args &p, int32_t span_idx, int cls)
{
    if (span_idx >= p.n_spans || class_of(p, p.spans[span_idx]) != cls)
        return 0;
    int32_t rows = p.spans[span_idx].n * p.at.group;
    return cls == 0 ? 1 : (rows + p.at.shape.wide - 1) / p.at.shape.wide;
}

struct plan_tile {
    int32_t span, tile, n_rows, n_splits;
};

/* Tile x of the class. */
static __device__ struct plan_tile tile_at(const struct plan_args &p, int cls, int32_t x)
{
    int32_t lo = 0, hi = p.n_spans - 1;
    while (lo < hi) { /* the last span whose tiles do not start behind x */
        int32_t mid = lo + (hi - lo + 1) / 2;
        if (p.at.first_tile[mid] <= x)
            lo = mid;
        else
            hi = mid - 1;
    }
    const struct sl_span span = p.spans[lo];
    struct plan_tile t;
    t.span = lo;
    t.tile = x - p.at.first_tile[lo];
    int32_t wide = cls == 0 ? SL_ATTN_NARROW : p.at.shape.wide, row0 = t.tile * wide;
    t.n_rows = min(wide, span.n * p.at.group - row0);
    int32_t last = span.pos + (row0 + t.n_rows - 1) / p.at.group;
    t.n_splits = last / SL_ATTN_SPLIT + 1;
    return t;
}

/* Tiles of the class before each span; returns how many there are. */
static __device__ int32_t count_tiles(struct plan_smem *s, const struct plan_args &p, int cls)
{
    int32_t carry[3] = {0, 0, 0}, out[3];
    for (int32_t i = 0; i < p.n_spans; i += PLAN_THREADS) {
        int32_t span = i + static_cast<int32_t>(threadIdx.x);
        const int32_t x[3] = {tiles_of(p, span, cls), 0, 0};
        block_scan(s, x, carry, out);
        if (span < p.n_spans)
            p.at.first_tile[span] = out[0];
    }
    __syncthreads();
    return carry[0];
}

/* ---------------------------------------------------------------- how long parts are */

/* Parts after the first, groups of splits that are joined at a time, and rows of slots. */
static __device__ void needs_of(const struct plan_tile &t, int32_t first, int32_t step,
                                int32_t needs[3])
{
    int32_t rest = max(t.n_splits - first, 0);
    needs[0] = (rest + step - 1) / step;
    needs[1] = (rest + SL_ATTN_FOLD - 1) / SL_ATTN_FOLD;
    needs[2] = rest > 0 ? (rest + SL_ATTN_STATE_SLOTS) * t.n_rows : 0;
}

static __device__ bool fits(struct plan_smem *s, const struct plan_args &p, int cls,
                            int32_t n_tiles, int32_t first, int32_t step)
{
    int64_t sum[4] = {0, 0, 0, 0};
    for (int32_t x = static_cast<int32_t>(threadIdx.x); x < n_tiles; x += PLAN_THREADS) {
        int32_t needs[3];
        needs_of(tile_at(p, cls, x), first, step, needs);
        for (int i = 0; i < 3; i++)
            sum[i] += needs[i];
    }
    block_sums(s, sum);
    return n_tiles + sum[0] <= p.at.cap_items[cls] && sum[1] <= p.at.cap_groups &&
           sum[2] <= p.at.cap_rows;
}

/* Splits of first parts and of the others. */
static __device__ void choose_parts(struct plan_smem *s, const struct plan_args &p, int cls,
                                    int32_t n_tiles, int32_t *first, int32_t *step)
{
    int64_t sum[4] = {0, 0, 0, 0};
    int32_t most = 1;
    for (int32_t x = static_cast<int32_t>(threadIdx.x); x < n_tiles; x += PLAN_THREADS) {
        struct plan_tile t = tile_at(p, cls, x);
        sum[0] += t.n_splits;
        most = max(most, t.n_splits);
    }
    for (int d = 16; d > 0; d /= 2)
        most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, d));
    block_sums(s, sum);
    if (threadIdx.x % 32 == 0)
        s->sums[threadIdx.x / 32][0] = most;
    __syncthreads();
    for (int i = 0; i < PLAN_WARPS; i++)
        most = max(most, static_cast<int32_t>(s->sums[i][0]));
    __syncthreads();
    int64_t share = sum[0] * p.n_kv_heads / p.at.grid[cls];
    *step = 1;
    while (*step < SL_ATTN_FOLD && *step * 8 <= share)
        *step *= 2;
    int64_t want = cls == 0 ? share / 2 : share + 1;
    int32_t lo = static_cast<int32_t>(
        min(max(want, static_cast<int64_t>(*step)), static_cast<int64_t>(most)));
    if (!fits(s, p, cls, n_tiles, lo, *step)) {
        int32_t hi = most; /* whole tiles always fit */
        while (lo + 1 < hi) {
            int32_t mid = lo + (hi - lo) / 2;
            if (fits(s, p, cls, n_tiles, mid, *step))
                hi = mid;
            else
                lo = mid;
        }
        lo = hi;
    }
    *first = lo;
}

/* ---------------------------------------------------------------- the items */

static __device__ void write_tile(const struct plan_args &p, int cls, int32_t n_tiles, int32_t x,
                                  const struct plan_tile &t, int32_t first, int32_t step,
                                  const int32_t at[3])
{
    struct sl_attn_item item;
    item.span = t.span;
    item.tile = t.tile;
    item.from = 0;
    item.to = min(first, t.n_splits);
    item.first = first;
    item.n_splits = t.n_splits;
    item.groups_at = at[1];
    item.rows_at = t.n_splits > first ? at[2] : -1;
    p.at.item[cls][cls == 0 ? x : n_tiles - 1 - x] = item;
    int32_t to = n_tiles + at[0];
    for (int32_t split = first; split < t.n_splits; split += step) {
        item.from = split;
        item.to = min(split + step, t.n_splits);
        p.at.item[cls][to++] = item;
    }
}

static __device__ void plan_class(struct plan_smem *s, const struct plan_args &p, int cls)
{
    int32_t n_tiles = count_tiles(s, p, cls), first = 1, step = 1;
    int32_t carry[3] = {0, 0, 0}, at[3];
    if (n_tiles > 0)
        choose_parts(s, p, cls, n_tiles, &first, &step);
    for (int32_t i = 0; i < n_tiles; i += PLAN_THREADS) {
        int32_t x = i + static_cast<int32_t>(threadIdx.x);
        struct plan_tile t = tile_at(p, cls, min(x, n_tiles - 1));
        int32_t needs[3] = {0, 0, 0};
        if (x < n_tiles)
            needs_of(t, first, step, needs);
        block_scan(s, needs, carry, at);
        if (x < n_tiles)
            write_tile(p, cls, n_tiles, x, t, first, step, at);
    }
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < carry[1] * p.n_kv_heads;
         i += PLAN_THREADS)
        p.at.counters[i] = 0;
    if (threadIdx.x == 0) {
        struct sl_attn_class c = {n_tiles + carry[0], step, 0, 0};
        p.at.cls[cls] = c;
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(PLAN_THREADS) plan_kernel(const struct plan_args p)
{
    SL_SMEM(struct plan_smem, s);
    sl_grid_wait();
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < p.n_tokens; i += PLAN_THREADS) {
        int32_t lo = 0, hi = p.n_spans - 1;
        while (lo < hi) {
            int32_t mid = lo + (hi - lo + 1) / 2;
            if (p.spans[mid].first <= i)
                lo = mid;
            else
                hi = mid - 1;
        }
        p.at.row_table[i] = p.spans[lo].table_idx;
    }
    plan_class(s, p, 0);
    plan_class(s, p, 1);
    sl_grid_launch_dependents();
}

void sl_cuda_attention_plan(struct sl_cuda *cu, const struct sl_batch *batch, int32_t n_heads,
                            int32_t n_kv_heads, int32_t head_dim)
{
    struct plan_args p = {batch->spans, batch->n_spans, batch->n_tokens, n_kv_heads, {}};
    bool ok = sl_attn_layout_of(cu->workspace, cu->workspace_bytes, cu->n_sms, batch->n_tokens,
                                batch->n_spans, n_heads, n_kv_heads, head_dim, &p.at);
    if (!ok || p.at.list_bytes > cu->workspace_bytes) {
        sl_cuda_check(cu, cudaErrorInvalidValue, "workspace of attention");
        return;
    }
    if (batch->n_spans > 0)
        sl_launch(cu, plan_kernel, dim3(1), dim3(PLAN_THREADS), sizeof(struct plan_smem), p);
}
