/* SPDX-License-Identifier: MIT
 * attention_plan.cu - cuts a step's attention into work items, on the device.
 *
 * One block, once a step. Spans are narrow (up to 16 rows: one tile), medium (up to 64: one tile)
 * or wide; the classes are planned one after the other, their kernels run one after the other and
 * all use all slots.
 *
 * Tiles that fill all blocks several times stay whole, unless one is far above the average. The
 * rest, which would leave blocks idle (all tiles, when there are few), is cut into parts. Narrow
 * and medium: what counts is that loads are under way everywhere, up to the end, so that each block
 * has at most one part, or parts are runs and their rounds end soonest. The first splits are short:
 * parts of as many keys each are fewer than parts of as many splits, and may be shorter. Wide:
 * tiles cost what they have keys, parts some more each, and their length is what makes the last
 * round of the blocks end first. When slots or lists would not suffice, parts grow until they do.
 * All this decides who computes and nothing of what is computed.
 *
 * Order: first parts, the longest of each wide span first, then the others.
 */
#include "cuda/attention/attention.cuh"

#define PLAN_THREADS 512 /* at most: a barrier of few warps is cheaper */
#define PLAN_WARPS   (PLAN_THREADS / 32)
#define PLAN_STEPS   20 /* parts of 1, 2, 3, 4, 6 splits, of 1, 2, 3, 4, 6, 8, 12 .. 192 runs */
#define PLAN_RUN     5  /* the first of runs */
#define PLAN_SUMS    (4 + PLAN_STEPS + PLAN_RUN) /* 32 at most */
#define PLAN_EXTRA   6  /* tiles of keys that a wide part costs besides: it begins and ends */
#define PLAN_UNIT    64 /* rows: sums of them must fit 32 bits */

/* Narrow parts of runs: what a round of full blocks takes for a tile of keys, and one of a block
 * here and there (10 of BF16, 15 of FP8 pages, seen on an H200); tiles of keys that a part costs
 * besides. */
#define PLAN_FULL      16u
#define PLAN_ALONE     12u
#define PLAN_FEW_EXTRA 2u
#define PLAN_RUN_TILES (SL_ATTN_RUN / SL_ATTN_TILE)

struct plan_args {
    const struct sl_span *spans;
    int32_t n_spans, n_tokens, n_kv_heads;
    int32_t narrow; /* sl_attn_narrow_rows */
    bool whole;     /* rows see keys after their own */
    bool has[SL_ATTN_CLASSES];
    struct sl_attn_layout at;
};

struct plan_smem {
    int32_t scan[PLAN_WARPS][3];
    int32_t sums[PLAN_WARPS][PLAN_SUMS];
    int32_t total[PLAN_SUMS];
};

/* ---------------------------------------------------------------- sums over the block */

static __device__ __forceinline__ int32_t n_threads()
{
    return static_cast<int32_t>(blockDim.x);
}

/* Sums of N numbers of each thread, to all. */
template <int N>
static __device__ __forceinline__ void block_sums(struct plan_smem *s, int32_t x[N])
{
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    int32_t mine = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        int32_t sum = __reduce_add_sync(0xFFFFFFFFu, x[i]);
        mine = lane == i ? sum : mine;
    }
    if (lane < N)
        s->sums[warp][lane] = mine;
    __syncthreads();
    if (threadIdx.x < N) {
        int32_t sum = 0;
        for (int i = 0; i < n_threads() / 32; i++)
            sum += s->sums[i][threadIdx.x];
        s->total[threadIdx.x] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++)
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
        for (int k = 0; k < n_threads() / 32; k++) {
            before += k < warp ? s->scan[k][i] : 0;
            all += s->scan[k][i];
        }
        out[i] = carry[i] + before + up[i] - x[i];
        carry[i] += all;
    }
    __syncthreads();
}

/* ---------------------------------------------------------------- tiles */

/* Every span has one token: span i is token i. */
static __device__ __forceinline__ bool only_decodes(const struct plan_args &p)
{
    return p.n_tokens == p.n_spans;
}

/* One of the spans and its tile are the same number. */
static __device__ __forceinline__ bool is_plain(const struct plan_args &p, int cls)
{
    return cls == SL_ATTN_CLASS_NARROW && only_decodes(p) && p.at.group <= p.narrow;
}

static __device__ int32_t tiles_of(const struct plan_args &p, int32_t span_idx, int cls)
{
    if (span_idx >= p.n_spans)
        return 0;
    if (p.at.shape.keys == 0 && sl_attn_class_of(p.spans[span_idx].n, p.at.group, p.narrow) != cls)
        return 0;
    int32_t rows = p.spans[span_idx].n * p.at.group;
    return cls != SL_ATTN_CLASS_WIDE ? 1 : (rows + p.at.shape.wide - 1) / p.at.shape.wide;
}

struct plan_tile {
    struct sl_span span;
    int32_t row0, n_rows, tok_last, n_splits;
    int32_t last; /* the last key that a row may see, in units of 2^shift keys */
};

/* Tile x of the class. */
static __device__ struct plan_tile tile_at(const struct plan_args &p, int cls, int32_t x)
{
    int32_t lo = 0, hi = p.n_spans - 1, tile = 0;
    if (is_plain(p, cls)) {
        lo = x;
    } else {
        while (lo < hi) { /* the last span whose tiles do not start after x */
            int32_t mid = lo + (hi - lo + 1) / 2;
            if (p.at.first_tile[mid] <= x)
                lo = mid;
            else
                hi = mid - 1;
        }
        tile = x - p.at.first_tile[lo];
    }
    struct plan_tile t;
    t.span = p.spans[lo];
    t.row0 = tile * p.at.shape.wide;
    t.n_rows = t.span.n * p.at.group - t.row0;
    if (cls == SL_ATTN_CLASS_WIDE)
        t.n_rows = min(p.at.shape.wide, t.n_rows);
    t.tok_last = (t.row0 + t.n_rows - 1) / p.at.group;
    t.last = (t.span.pos + (p.whole ? t.span.n - 1 : t.tok_last)) >> p.at.shape.shift;
    t.n_splits = sl_attn_split_of(t.last) + 1;
    return t;
}

/* Tiles of the class before each span; returns how many there are. */
static __device__ int32_t count_tiles(struct plan_smem *s, const struct plan_args &p, int cls)
{
    if (is_plain(p, cls))
        return p.n_spans;
    int32_t carry[3] = {0, 0, 0}, out[3];
    for (int32_t i = 0; i < p.n_spans; i += n_threads()) {
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

/* Splits of a tile's first part and of the others, or keys of each if that is not 0. */
struct plan_part {
    int32_t first, step, keys;
};

/* Of the tiles that fill the blocks, and of the rest: those after, or before (wide: the list is in
 * reverse). */
struct plan_parts {
    int32_t n_rest;
    int32_t body; /* splits: a tile of more is cut into parts of this */
    int32_t step; /* as part_of_step has it */
    bool even;
};

static __device__ __forceinline__ int32_t plan_count(int32_t i)
{
    return i == 0 ? 1 : (3 - i % 2) << (i - 1) / 2;
}

static __device__ __forceinline__ int32_t plan_step(int32_t i)
{
    return i < PLAN_RUN ? plan_count(i) : SL_ATTN_RUN_SPLITS * plan_count(i - PLAN_RUN);
}

/* Twice as long; from a run on parts are whole runs. */
static __device__ __forceinline__ int32_t longer(int32_t step)
{
    step = min(2 * step, 1 << 20);
    return step < SL_ATTN_RUN_SPLITS
               ? step
               : (step + SL_ATTN_RUN_SPLITS - 1) / SL_ATTN_RUN_SPLITS * SL_ATTN_RUN_SPLITS;
}

/* Parts of `step` splits. A tile's first splits have fewer keys than its last one, so that the
 * first part has more of them, as many keys as the last; even: so have all. */
static __device__ __forceinline__ struct plan_part part_of_step(const struct plan_tile &t,
                                                                int32_t step, bool even)
{
    int32_t keys = step * sl_attn_split_size(t.last);
    struct plan_part p = {sl_attn_split_of(keys), step, even ? keys : 0};
    return p;
}

static __device__ __forceinline__ bool is_rest(int cls, const struct plan_parts &parts, int32_t x,
                                               int32_t n_tiles)
{
    return cls != SL_ATTN_CLASS_WIDE ? x >= n_tiles - parts.n_rest : x < parts.n_rest;
}

static __device__ __forceinline__ struct plan_part part_of(int cls, const struct plan_parts &parts,
                                                           int32_t x, int32_t n_tiles,
                                                           const struct plan_tile &t)
{
    if (is_rest(cls, parts, x, n_tiles))
        return part_of_step(t, parts.step, parts.even);
    struct plan_part body = {parts.body, max(parts.body / 4, 1), 0};
    if (body.first >= SL_ATTN_FAR_SPLITS) { /* whole runs */
        body.first = sl_attn_run_end(sl_attn_run_of(body.first - 1));
        body.step = max(body.step / SL_ATTN_RUN_SPLITS, 1) * SL_ATTN_RUN_SPLITS;
    }
    return body;
}

/* Parts after the first, whether there are any, and rows of slots. A last part may be a quarter
 * longer than the others. */
static __device__ __forceinline__ void needs_of(const struct plan_tile &t,
                                                const struct plan_part &part, int32_t needs[3])
{
    int32_t step = part.step, slots = t.n_splits - part.first, rest = slots - step / 4;
    if (part.keys > 0) {
        step = part.keys;
        rest = sl_attn_split_at(t.n_splits) - step - step / 4;
    }
    rest = max(rest, 0);
    if (part.first >= SL_ATTN_FAR_SPLITS)
        slots = sl_attn_run_of(t.n_splits - 1) - sl_attn_run_of(part.first - 1);
    needs[0] = (rest + step - 1) / step;
    needs[1] = rest > 0;
    needs[2] = rest > 0 ? (slots + 1) * t.n_rows : 0;
}

static __device__ bool fits(struct plan_smem *s, const struct plan_args &p, int cls,
                            int32_t n_tiles, const struct plan_parts &parts)
{
    int32_t sum[2] = {0, 0};
    for (int32_t x = static_cast<int32_t>(threadIdx.x); x < n_tiles; x += n_threads()) {
        int32_t needs[3];
        const struct plan_tile t = tile_at(p, cls, x);
        needs_of(t, part_of(cls, parts, x, n_tiles, t), needs);
        sum[0] += needs[0];
        sum[1] += (needs[2] + PLAN_UNIT - 1) / PLAN_UNIT;
    }
    block_sums<2>(s, sum);
    return n_tiles + sum[0] <= p.at.cap_items[cls] &&
           static_cast<int64_t>(sum[1]) * PLAN_UNIT <= p.at.cap_rows;
}

/* Tiles of keys, rows of slots and splits if all splits were parts; tiles of keys of the rest, and
 * how many parts of each step there would be of it, then how many even ones of less than a run. */
static __device__ void measure(struct plan_smem *s, const struct plan_args &p, int cls,
                               int32_t n_tiles, const struct plan_parts &parts,
                               int32_t sum[PLAN_SUMS])
{
#pragma unroll
    for (int i = 0; i < PLAN_SUMS; i++)
        sum[i] = 0;
    for (int32_t x = static_cast<int32_t>(threadIdx.x); x < n_tiles; x += n_threads()) {
        struct plan_tile t = tile_at(p, cls, x);
        const int32_t keys = t.last / SL_ATTN_TILE + 1;
        const bool rest = is_rest(cls, parts, x, n_tiles);
        sum[0] += keys;
        sum[1] += ((t.n_splits + 1) * t.n_rows + PLAN_UNIT - 1) / PLAN_UNIT;
        sum[2] += t.n_splits;
        sum[3] += rest ? keys : 0;
#pragma unroll
        for (int i = 0; i < PLAN_STEPS; i++) {
            int32_t needs[3];
            needs_of(t, part_of_step(t, plan_step(i), false), needs);
            sum[4 + i] += rest ? needs[0] + 1 : 0;
            if (i >= PLAN_RUN)
                continue;
            needs_of(t, part_of_step(t, plan_step(i), true), needs);
            sum[4 + PLAN_STEPS + i] += rest ? needs[0] + 1 : 0;
        }
    }
    block_sums<PLAN_SUMS>(s, sum);
}

/* Narrow, parts of runs: what the rounds of the blocks take, where one that does not fill them
 * takes PLAN_ALONE of PLAN_FULL, or more, and has the longest parts. Each lane weighs a step, the
 * last ones whole tiles; of equals the shortest. keys: tiles of all. */
static __device__ __forceinline__ int32_t narrow_runs(const int32_t *n, int32_t n_rest,
                                                      int32_t keys, uint32_t kv, uint32_t grid)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int32_t at = min(PLAN_RUN + lane, PLAN_STEPS);
    int32_t parts = n_rest;
#pragma unroll
    for (int i = PLAN_RUN; i < PLAN_STEPS; i++)
        parts = at == i ? n[i] : parts;
    const uint32_t items = static_cast<uint32_t>(parts) * kv, rounds = items / grid;
    const uint32_t rest = items - rounds * grid;
    const uint32_t last = rest > 0 ? max(PLAN_ALONE * grid, PLAN_FULL * rest) : 0;
    const int32_t longest = min(plan_count(at - PLAN_RUN) * PLAN_RUN_TILES, keys / n_rest);
    const uint32_t each = static_cast<uint32_t>(keys / parts) + PLAN_FEW_EXTRA;
    const uint64_t cost = static_cast<uint64_t>(each) * (PLAN_FULL * rounds * grid) +
                          (static_cast<uint32_t>(longest) + PLAN_FEW_EXTRA) * uint64_t{last};
    const uint64_t weighed = min(cost / grid, uint64_t{UINT32_MAX});
    const uint32_t best = __reduce_min_sync(0xFFFFFFFFu, static_cast<uint32_t>(weighed));
    const int32_t which = __ffs(static_cast<int>(__ballot_sync(0xFFFFFFFFu, weighed == best))) - 1;
    return plan_step(min(PLAN_RUN + which, PLAN_STEPS));
}

/* Narrow: the shortest parts of which each block has at most one; runs, of which fewer results are
 * left, if they keep three blocks of five busy and tiles are long. Of longer tiles parts of runs
 * may be more than there are blocks. Parts of 1, 2 or 4 splits are even ones where only these are
 * few enough and all tiles are cut: the warps of a block share such a part or have a split each. n:
 * as measure has them; keys: tiles of all. */
static __device__ int32_t narrow_step(const int32_t *n, int32_t n_rest, int32_t n_tiles,
                                      int32_t keys, int64_t kv, int64_t grid, bool *even)
{
    int32_t step = plan_step(PLAN_STEPS);
    const bool runs = n[PLAN_RUN] >= 4 * n_rest && 5 * n[PLAN_RUN] * kv >= 3 * grid;
#pragma unroll
    for (int i = PLAN_STEPS - 1; i >= 0; i--) {
        const int32_t size = plan_step(i);
        const bool may = i < PLAN_RUN && (size & (size - 1)) == 0 && n_rest == n_tiles;
        if ((runs && i < PLAN_RUN) || (may ? n[PLAN_STEPS + i] : n[i]) * kv > grid)
            continue;
        step = size;
        *even = n[i] * kv > grid;
    }
    if (step < SL_ATTN_RUN_SPLITS || keys <= n_rest * PLAN_RUN_TILES)
        return step;
    return narrow_runs(n, n_rest, keys, static_cast<uint32_t>(kv), static_cast<uint32_t>(grid));
}

/* Wide: the rounds of the blocks, times a part's mean length, and what combines have to read: two
 * tiles' time for each hundred slots of 128 rows. keys: tiles of all. */
static __device__ int32_t wide_step(const int32_t *n, int32_t n_rest, int64_t keys, int64_t kv,
                                    int64_t grid)
{
    int32_t step = 1 << 20;
    int64_t best = (n_rest * kv + grid - 1) / grid * (keys / n_rest + PLAN_EXTRA);
#pragma unroll
    for (int i = 0; i < PLAN_STEPS; i++) {
        const int64_t slots = n[i] == n_rest ? 0
                              : i < PLAN_RUN ? n[i] * plan_count(i)
                                             : n[i] * plan_count(i - PLAN_RUN);
        const int64_t cost =
            (n[i] * kv + grid - 1) / grid * (keys / n[i] + PLAN_EXTRA) + slots * kv / 50;
        step = cost < best ? plan_step(i) : step;
        best = min(cost, best);
    }
    return step;
}

static __device__ struct plan_parts choose_parts(struct plan_smem *s, const struct plan_args &p,
                                                 int cls, int32_t n_tiles)
{
    const int64_t grid = p.at.grid[cls], kv = p.n_kv_heads;
    struct plan_parts parts;
    /* after full rounds of the blocks */
    parts.n_rest = n_tiles - static_cast<int32_t>(n_tiles * kv / grid * grid / kv);
    int32_t sum[PLAN_SUMS];
    measure(s, p, cls, n_tiles, parts, sum);
    int32_t share = static_cast<int32_t>(min(sum[0] * kv / grid, static_cast<int64_t>(1) << 20));
    parts.body = sl_attn_split_of((2 * share + 1) * SL_ATTN_TILE - 1) + 1;
    parts.step = 1;
    parts.even = false;
    if (cls != SL_ATTN_CLASS_WIDE)
        parts.step = narrow_step(sum + 4, parts.n_rest, n_tiles, sum[3], kv, grid, &parts.even);
    else if (parts.n_rest > 0)
        parts.step =
            wide_step(sum + 4, parts.n_rest, int64_t{sum[3]} << p.at.shape.shift, kv, grid);
    if (n_tiles + sum[2] <= p.at.cap_items[cls] &&
        static_cast<int64_t>(sum[1]) * PLAN_UNIT <= p.at.cap_rows)
        return parts;
    while (!fits(s, p, cls, n_tiles, parts)) { /* whole tiles do */
        parts.body = min(2 * parts.body, 1 << 28);
        parts.step = longer(parts.step);
    }
    return parts;
}

/* ---------------------------------------------------------------- the items */

static __device__ void write_tile(const struct plan_args &p, int cls, int32_t n_tiles, int32_t x,
                                  const struct plan_tile &t, const struct plan_part &part,
                                  const int32_t needs[3], const int32_t at[3])
{
    struct sl_attn_item item;
    item.token = t.span.first;
    item.pos = t.span.pos;
    item.table = t.span.table_idx;
    item.row0 = t.row0;
    item.n_rows = t.n_rows;
    item.tok_last = t.tok_last;
    item.end = t.span.pos + t.span.n;
    item.from = 0;
    item.to = needs[0] > 0 ? part.first : t.n_splits;
    item.first = item.to;
    item.n_splits = t.n_splits;
    item.rows_at = needs[1] ? at[2] : -1;
    item.counter_at = at[1];
    item.n_parts = needs[0] + 1;
    item.kv = item.valid = 0;
    const int32_t here = cls != SL_ATTN_CLASS_WIDE ? x : n_tiles - 1 - x;
    p.at.item[cls][here] = item;
    if (cls != SL_ATTN_CLASS_NARROW && needs[1])
        p.at.cut[cls][at[1]] = here;
    int32_t to = n_tiles + at[0];
    for (int32_t i = 0; i < needs[0]; i++) {
        item.from = item.to;
        item.to = part.keys > 0 ? sl_attn_split_of((i + 2) * part.keys) : item.from + part.step;
        item.to = i + 1 < needs[0] ? item.to : t.n_splits;
        p.at.item[cls][to + i] = item;
    }
}

static __device__ void plan_class(struct plan_smem *s, const struct plan_args &p, int cls)
{
    int32_t n_tiles = count_tiles(s, p, cls);
    int32_t carry[3] = {0, 0, 0}, at[3];
    struct plan_parts parts = {};
    if (n_tiles > 0)
        parts = choose_parts(s, p, cls, n_tiles);
    for (int32_t i = 0; i < n_tiles; i += n_threads()) {
        int32_t x = i + static_cast<int32_t>(threadIdx.x);
        struct plan_tile t = tile_at(p, cls, min(x, n_tiles - 1));
        int32_t needs[3] = {0, 0, 0};
        if (x < n_tiles)
            needs_of(t, part_of(cls, parts, x, n_tiles, t), needs);
        block_scan(s, needs, carry, at);
        if (x < n_tiles)
            write_tile(p, cls, n_tiles, x, t, part_of(cls, parts, x, n_tiles, t), needs, at);
    }
    for (int32_t i = static_cast<int32_t>(threadIdx.x);
         cls == SL_ATTN_CLASS_NARROW && i < carry[1] * p.n_kv_heads; i += n_threads())
        p.at.counters[i] = 0;
    if (threadIdx.x == 0) {
        struct sl_attn_class c = {n_tiles + carry[0], 0, 0, carry[1], n_tiles};
        p.at.cls[cls] = c;
    }
}

/* The page table of each token, for the store. */
static __device__ void fill_row_table(const struct plan_args &p)
{
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < p.n_tokens; i += n_threads()) {
        int32_t lo = 0, hi = p.n_spans - 1;
        if (only_decodes(p))
            lo = hi = i;
        while (lo < hi) {
            int32_t mid = lo + (hi - lo + 1) / 2;
            if (p.spans[mid].first <= i)
                lo = mid;
            else
                hi = mid - 1;
        }
        p.at.row_table[i] = p.spans[lo].table_idx;
    }
}

static __global__ void __launch_bounds__(PLAN_THREADS)
    plan_kernel(const __grid_constant__ struct plan_args p)
{
    SL_SMEM(struct plan_smem, s);
    sl_grid_wait();
    fill_row_table(p);
#pragma unroll 1
    for (int cls = 0; cls < SL_ATTN_CLASSES; cls++)
        if (p.has[cls])
            plan_class(s, p, cls);
    /* Attention may read the plan as soon as it is on the device, before its own wait. */
    __threadfence();
    __syncthreads();
    sl_grid_launch_dependents();
}

/* top: 0, or what rows see at most (sl_attn_plan_rows). */
static void plan(struct sl_cuda *cu, const struct sl_batch *batch, int32_t n_heads,
                 int32_t n_kv_heads, int32_t head_dim, bool whole, int32_t top)
{
    struct plan_args p = {batch->spans,
                          batch->n_spans,
                          batch->n_tokens,
                          SL_MAX(n_kv_heads, 1),
                          SL_ATTN_NARROW,
                          whole,
                          {},
                          {}};
    bool ok = sl_attn_layout_of(cu->workspace, cu->workspace_bytes, cu->n_sms, batch->n_tokens,
                                batch->n_spans, n_heads, n_kv_heads, head_dim, &p.at);
    if (!ok || p.at.list_bytes > cu->workspace_bytes) {
        sl_cuda_check(cu, cudaErrorInvalidValue, "workspace of attention");
        return;
    }
    if (top > 0)
        p.at.shape.shift = SL_SPARSE_SHIFT;
    p.narrow = sl_attn_narrow_rows(cu, batch, n_kv_heads, head_dim);
    sl_attn_classes_of(batch, &p.at, p.narrow, p.has);
    int32_t threads = SL_MIN(SL_CEIL_DIV(batch->n_tokens, 32) * 32, PLAN_THREADS);
    if (batch->n_spans > 0)
        sl_launch(cu, plan_kernel, dim3(1), dim3(static_cast<unsigned>(threads)),
                  sizeof(struct plan_smem), p);
    cu->plan_settled = false;
    cu->plan_heads = n_heads;
    cu->plan_kv_heads = n_kv_heads;
    cu->plan_dim = head_dim;
    cu->plan_whole = whole;
    cu->plan_narrow = p.narrow;
    cu->plan_top = top;
}

void sl_cuda_attention_plan(struct sl_cuda *cu, const struct sl_batch *batch, int32_t n_heads,
                            int32_t n_kv_heads, int32_t head_dim, bool whole)
{
    cu->chosen.block = 0; /* of another step */
    plan(cu, batch, n_heads, n_kv_heads, head_dim, whole, 0);
}

void sl_attn_plan_rows(struct sl_cuda *cu, const struct sl_batch *b, int32_t n_heads,
                       int32_t head_dim, int32_t top_k)
{
    plan(cu, b, n_heads, 0, head_dim, false, top_k);
}

void sl_attn_plan_layer(struct sl_cuda *cu, const struct sl_batch *batch, int32_t n_heads,
                        int32_t n_kv_heads, int32_t head_dim, bool whole)
{
    if (n_heads != cu->plan_heads || n_kv_heads != cu->plan_kv_heads || head_dim != cu->plan_dim ||
        whole != cu->plan_whole || cu->plan_top != 0 ||
        sl_attn_narrow_rows(cu, batch, n_kv_heads, head_dim) != cu->plan_narrow)
        plan(cu, batch, n_heads, n_kv_heads, head_dim, whole, 0);
}
