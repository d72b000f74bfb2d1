/* SPDX-License-Identifier: MIT
 * Mixtures of experts: products of rows grouped by expert (route.cu chooses the experts).
 *
 * Nothing of this comes back to the host, so that a step with experts can be recorded: grids are as
 * large as the most work there could be, and blocks that find none end at once.
 *
 * One or two rows (experts_few.cuh), where every pair of a row and an expert is on its own:
 *
 *   few      gate and up
 *   sum      down, and the sum of a row's experts and of what its shared expert gave
 *
 * More rows:
 *
 *   sort     one block: the places of pairs by expert, and the tiles that they are cut into
 *   gather   where wgmma multiplies: the rows in the order of places
 *   product  gate and up, then down: few or wg (experts_wg.cuh), by the pairs an expert has in the
 *            mean
 *   combine  each row adds its experts by leaves, and what its shared expert gave (combine.cu)
 *
 * A row's bits depend on the row and its experts and on nothing else (experts.h). Rows pass in
 * slabs, which bounds the scratch.
 *
 * Of several ranks each has some rows of every matrix. Between gate and up and down they gather
 * the middle, for which all of them have the pairs in the same places (sort_in_order). Or each has
 * some experts: it sorts and multiplies the pairs of those alone, and the rows' sums of ranks are
 * added elsewhere (all_reduce).
 */
#include "cuda/comm/comm.h"
#include "cuda/gemm/combine.h"
#include "cuda/gemm/experts_gate.cuh"
#include "cuda/gemm/experts_leaves.cuh"
#include "cuda/launch.cuh"
#include "ops/device.h"

#define SORT_BLOCK   1024
#define SORT_WARPS   (SORT_BLOCK / 32)
#define SORT_AHEAD   8 /* pairs of a thread whose experts are asked for at a time */
#define GATHER_BLOCK 256
#define SINGLE_ROWS  2             /* up to which every pair is on its own */
#define SPREAD_ROWS  64            /* more than those */
#define SPREAD_BYTES (8 << 20)     /* at most, to all others */
#define SLAB_BYTES   (512ll << 20) /* of scratch, unless one row wants more */

/* ------------------------------------------------------------------ stacks */

/* In device memory: descriptions for the copy engine, then the streams' addresses. */
static size_t stack_bytes(int32_t n)
{
    return (size_t)n * (sizeof(CUtensorMap) + sizeof(void *));
}

static struct sl_expert_stack stack_of(const struct sl_stack *s)
{
    const CUtensorMap *maps = static_cast<const CUtensorMap *>(s->table);
    return {maps, reinterpret_cast<const uint8_t *const *>(maps + s->n)};
}

static int check_mats(const struct sl_weight *mats, int32_t n, struct sl_error *err)
{
    if (n > SL_EXPERTS_MAX)
        return sl_fail(err, SL_EUNSUPPORTED, "%d experts: a GPU runs up to %d", n, SL_EXPERTS_MAX);
    for (int32_t i = 0; i < n; i++) {
        if (mats[i].layout != mats[0].layout || mats[i].layout == SL_CUDA_ROWS ||
            mats[i].layout == SL_CUDA_W8A8)
            return sl_fail(err, SL_EUNSUPPORTED, "experts in formats that a GPU does not mix");
        SL_ASSERT(mats[i].n_rows == mats[0].n_rows && mats[i].n_cols == mats[0].n_cols);
    }
    return 0;
}

static int fill_table(const struct sl_weight *mats, int32_t n, uint8_t *table, struct sl_error *err)
{
    const struct sl_cuda_layout_info *info = sl_cuda_layout_info(mats[0].layout);
    CUtensorMap *maps = reinterpret_cast<CUtensorMap *>(table);
    const void **streams = reinterpret_cast<const void **>(maps + n);
    for (int32_t i = 0; i < n; i++) {
        const int64_t n_blocks = SL_CEIL_DIV(mats[i].n_rows, (int64_t)SL_CUDA_ROW_BLOCK);
        const int64_t n_units = SL_CEIL_DIV(mats[i].n_cols, (int64_t)info->unit_k);
        streams[i] = mats[i].data;
        if (mats[i].data == NULL) /* another rank's */
            continue;
        if (sl_tensor_map_blocks(&maps[i], mats[i].data, n_blocks, n_units, info->unit_bytes, 4) !=
            cudaSuccess)
            return sl_fail(err, SL_EDEVICE, "cuTensorMapEncodeTiled failed for a stack of experts");
    }
    return 0;
}

extern "C" int sl_cuda_stack_create(struct sl_backend *be, const struct sl_weight *mats, int32_t n,
                                    struct sl_stack *out, struct sl_error *err)
{
    struct sl_cuda *cu = sl_cuda(be);
    *out = {};
    int rc = check_mats(mats, n, err);
    if (rc != 0)
        return rc;
    uint8_t *table = static_cast<uint8_t *>(sl_calloc(1, stack_bytes(n)));
    if (table == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a table of %d experts", n);
    rc = fill_table(mats, n, table, err);
    void *there = rc == 0 ? sl_cuda_alloc(cu, stack_bytes(n)) : NULL;
    if (rc == 0 && there == NULL)
        rc = sl_cuda_no_memory(cu, stack_bytes(n), "a table of experts", err);
    if (rc == 0) {
        sl_cuda_stage(cu, there, table, stack_bytes(n));
        *out = {mats, n, there};
    }
    sl_free(table);
    return rc;
}

extern "C" void sl_cuda_stack_destroy(struct sl_backend *be, struct sl_stack *s)
{
    sl_cuda_free(sl_cuda(be), s->table, stack_bytes(s->n));
    *s = {};
}

extern "C" const uint8_t *const *sl_cuda_stack_streams(const struct sl_stack *s)
{
    return stack_of(s).streams;
}

/* ------------------------------------------------------------------ sort */

/* In one warp: counts[i] becomes the sum of those before it, counts[n] of all. */
static __device__ void sum_up(int32_t *counts, int32_t n)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x);
    int32_t before = 0;
    for (int32_t from = 0; from < n; from += 32) {
        const int32_t own = from + lane < n ? counts[from + lane] : 0;
        int32_t sum = own;
        for (unsigned d = 1; d < 32; d *= 2) {
            const int32_t lower = __shfl_up_sync(0xffffffffu, sum, d);
            sum += lane >= static_cast<int32_t>(d) ? lower : 0;
        }
        if (from + lane < n)
            counts[from + lane] = before + sum - own;
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0)
        counts[n] = before;
}

/* first: pairs of each expert, becomes the places before them; tiles: room for [E + 1]. */
static __device__ void cut_tiles(const sl_expert_pairs &p, int32_t n_experts, int32_t tile,
                                 int32_t *first, int32_t *tiles)
{
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    for (int32_t e = thread; e < n_experts; e += SORT_BLOCK)
        tiles[e] = (first[e] + tile - 1) / tile;
    __syncthreads();
    if (thread < 32) {
        sum_up(first, n_experts);
        sum_up(tiles, n_experts);
    }
    __syncthreads();
    for (int32_t e = thread; e < n_experts; e += SORT_BLOCK) {
        const int32_t n = first[e + 1] - first[e], n_parts = max(tiles[e + 1] - tiles[e], 1);
        const int32_t part = min((SL_CEIL_DIV(n, n_parts) + 15) / 16 * 16, tile); /* even ones */
        for (int32_t t = tiles[e]; t < tiles[e + 1]; t++) {
            const int32_t at = first[e] + (t - tiles[e]) * part;
            p.tiles[t] = {e, at, min(part, first[e + 1] - at)};
        }
    }
    if (thread == 0) {
        p.n_tiles[0] = tiles[n_experts];
        p.n_tiles[1] = first[n_experts];
    }
}

/* The experts of pairs i, i + SORT_BLOCK, .. that are here, -1 for others: all are on their way
 * before the first one is looked at. */
static __device__ __forceinline__ void sort_experts(const sl_expert_pairs &p, int32_t i,
                                                    int32_t (&e)[SORT_AHEAD])
{
#pragma unroll
    for (int k = 0; k < SORT_AHEAD; k++)
        e[k] = i + k * SORT_BLOCK < p.n_pairs ? p.experts[i + k * SORT_BLOCK] : -1;
#pragma unroll
    for (int k = 0; k < SORT_AHEAD; k++)
        e[k] = sl_expert_is_here(p, e[k]) ? e[k] : -1;
}

/* Which of an expert's pairs comes first may differ from call to call; no result depends on it. */
static __global__ void __launch_bounds__(SORT_BLOCK)
    sort_kernel(const sl_expert_pairs p, int32_t n_experts, int32_t tile)
{
    SL_SMEM(int32_t, first);                /* [E + 1] places of an expert, */
    int32_t *tiles = first + n_experts + 1; /* [E + 1] its tiles, */
    int32_t *next = tiles + n_experts + 1;  /* [E] where its next pair goes */
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    sl_grid_launch_dependents();
    sl_grid_wait();
    for (int32_t e = thread; e < n_experts; e += SORT_BLOCK)
        first[e] = 0;
    __syncthreads();
    for (int32_t i = thread; i < p.n_pairs; i += SORT_AHEAD * SORT_BLOCK) {
        int32_t e[SORT_AHEAD];
        sort_experts(p, i, e);
#pragma unroll
        for (int k = 0; k < SORT_AHEAD; k++)
            if (e[k] >= 0)
                atomicAdd(&first[e[k]], 1);
    }
    __syncthreads();
    cut_tiles(p, n_experts, tile, first, tiles);
    for (int32_t e = thread; e < n_experts; e += SORT_BLOCK)
        next[e] = first[e];
    __syncthreads();
    for (int32_t i = thread; i < p.n_pairs; i += SORT_AHEAD * SORT_BLOCK) {
        int32_t e[SORT_AHEAD];
        sort_experts(p, i, e);
#pragma unroll
        for (int k = 0; k < SORT_AHEAD; k++) {
            const int32_t pair = i + k * SORT_BLOCK;
            const int32_t place = e[k] >= 0 ? atomicAdd(&next[e[k]], 1) : -1;
            if (pair < p.n_pairs)
                p.place[pair] = place;
            if (place >= 0)
                p.pair[place] = pair;
        }
    }
}

/* The same of all experts with an expert's pairs in ascending order. Each warp has neighbouring
 * pairs, and places them behind those that the warps before it have of an expert. */
static __global__ void __launch_bounds__(SORT_BLOCK)
    sort_in_order_kernel(const sl_expert_pairs p, int32_t n_experts, int32_t tile)
{
    SL_SMEM(int32_t, first);                /* [E + 1] places of an expert, */
    int32_t *tiles = first + n_experts + 1; /* [E + 1] its tiles, */
    int32_t *own = tiles + n_experts + 1;   /* [SORT_WARPS, E] pairs of a warp, then those before */
    const int32_t thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32;
    const int32_t each = (p.n_pairs + SORT_WARPS - 1) / SORT_WARPS;
    const int32_t begin = min(thread / 32 * each, p.n_pairs), end = min(begin + each, p.n_pairs);
    int32_t *mine = own + thread / 32 * n_experts;
    sl_grid_launch_dependents();
    sl_grid_wait();
    for (int32_t e = lane; e < n_experts; e += 32)
        mine[e] = 0;
    __syncwarp();
    for (int32_t i = begin + lane; i < end; i += 32)
        atomicAdd(&mine[p.experts[i]], 1);
    __syncthreads();
    for (int32_t e = thread; e < n_experts; e += SORT_BLOCK) {
        int32_t sum = 0;
        for (int32_t w = 0; w < SORT_WARPS; w++) {
            const int32_t n = own[w * n_experts + e];
            own[w * n_experts + e] = sum;
            sum += n;
        }
        first[e] = sum;
    }
    __syncthreads();
    cut_tiles(p, n_experts, tile, first, tiles);
    for (int32_t at = begin; at < end; at += 32) {
        const int32_t i = at + lane, e = i < end ? p.experts[i] : -1;
        const uint32_t same = __match_any_sync(0xffffffffu, e);
        const int32_t n_before = __popc(same & ((1u << lane) - 1));
        if (e >= 0) {
            const int32_t place = first[e] + mine[e] + n_before;
            p.pair[place] = i;
            p.place[i] = place;
        }
        __syncwarp();
        if (e >= 0 && n_before == 0)
            mine[e] += __popc(same);
        __syncwarp();
    }
}

/* ------------------------------------------------------------------ gather */

/* Rows of n16 pieces of 16 bytes: out[place] = x[row] for each of its pairs that has a place. */
static __global__ void __launch_bounds__(GATHER_BLOCK)
    gather_kernel(const sl_expert_pairs p, const uint4 *x, int32_t n16, uint4 *out)
{
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int64_t row = blockIdx.x;
    const int32_t *place = p.place + row * p.top_k;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < n16; i += GATHER_BLOCK) {
        const uint4 v = x[row * n16 + i];
#pragma unroll 4
        for (int32_t s = 0; s < p.top_k; s++)
            if (place[s] >= 0)
                out[static_cast<int64_t>(place[s]) * n16 + i] = v;
    }
}

/* ------------------------------------------------------------------ products */

static const struct kernels {
    void (*few)(struct sl_cuda *cu, const struct sl_expert_product *a);
    void (*sum)(struct sl_cuda *cu, const struct sl_expert_product *a,
                const struct sl_expert_sum *s, int32_t n);
    void (*wg)(struct sl_cuda *cu, const struct sl_expert_product *a, int32_t tile);
} kernels[SL_CUDA_LAYOUTS] = {
    {},
#define KERNELS(name)                                                      \
    {                                                                      \
        sl_experts_few_##name, sl_experts_sum_##name, sl_experts_wg_##name \
    }
    KERNELS(bf16),
    KERNELS(q8_0),
    KERNELS(q4_0),
    KERNELS(q4_k),
    KERNELS(q5_k),
    KERNELS(q6_k),
    KERNELS(fp8),
    {}, /* w8a8: stack_create refuses it */
    KERNELS(int4_g128),
    KERNELS(int4_g32),
    KERNELS(mxfp4),
#undef KERNELS
};

/* Places of a tile. Few pairs want their experts read, and decoded, once: so large that few experts
 * have more, who have their pairs by chance. (gpt-oss-20b, every expert as many, H200: 16 places by
 * tiles of 16 and 32 192 and 218 us, 32 by 32 and 64 218 and 286, 64 by 64 and 288 292 and 354.)
 * Many want a tile that is worth its weights. Only the mean counts. */
static int32_t tile_of(int32_t n_pairs, int32_t n_experts, int64_t k)
{
    const int32_t mean = SL_CEIL_DIV(n_pairs, n_experts);
    if (mean <= 6 && k <= SL_EXPERTS_FEW_COLS)
        return mean <= 1 ? SL_EXPERTS_FEWEST : SL_EXPERTS_FEW;
    if (mean <= 12)
        return SL_EXPERTS_WG16;
    if (mean <= 26)
        return SL_EXPERTS_WG32;
    return mean <= 56 ? SL_EXPERTS_WG64 : SL_EXPERTS_WIDE;
}

/* Tiles there are at most: every expert may have one that is not full. */
static int32_t most_tiles(int32_t n_pairs, int32_t n_experts, int32_t tile)
{
    return SL_MIN(n_pairs, n_pairs / tile + SL_MIN(n_pairs, n_experts));
}

struct room_of { /* the scratch, in its parts */
    size_t tiles, pair, place, x, mid, y, n_bytes;
};

static struct room_of room_for(int32_t n, int32_t n_experts, int32_t top_k, int64_t h, int64_t i)
{
    const size_t pairs = (size_t)n * (size_t)top_k, align = 256;
    const size_t tiles =
        (size_t)most_tiles((int32_t)pairs, n_experts, SL_EXPERTS_FEWEST) * sizeof(sl_expert_tile);
    struct room_of r;
    r.tiles = align; /* behind their number */
    r.pair = r.tiles + SL_ROUND_UP(tiles, align);
    r.place = r.pair + SL_ROUND_UP(pairs * sizeof(int32_t), align);
    r.x = r.place + SL_ROUND_UP(pairs * sizeof(int32_t), align);
    r.mid = r.x + SL_ROUND_UP(pairs * (size_t)h * sizeof(__nv_bfloat16), align);
    r.y = r.mid + SL_ROUND_UP(pairs * (size_t)i * sizeof(__nv_bfloat16), align);
    r.n_bytes = r.y + pairs * (size_t)h * sizeof(float);
    return r;
}

/* Rows that go together. */
static int32_t slab_rows(int32_t n, int32_t top_k, int64_t h, int64_t i)
{
    const int64_t row = top_k * (6 * h + 2 * i);
    return (int32_t)SL_MIN((int64_t)SL_MIN(n, SL_DEVICE_EXPERT_ROWS),
                           SL_MAX(SLAB_BYTES / row, 1ll));
}

extern "C" size_t sl_cuda_experts_bytes(struct sl_backend *be, int32_t n, int32_t n_experts,
                                        int32_t top_k, int64_t hidden, int64_t intermediate)
{
    (void)be;
    return room_for(slab_rows(n, top_k, hidden, intermediate), n_experts, top_k, hidden,
                    intermediate)
        .n_bytes;
}

static struct sl_expert_product product_of(const struct sl_stack *stack,
                                           struct sl_expert_pairs pairs)
{
    const struct sl_weight *w = &stack->mats[0];
    const struct sl_cuda_layout_info *info = sl_cuda_layout_info(w->layout);
    struct sl_expert_product p = {};
    p.pairs = pairs;
    p.n_rows = (int32_t)w->n_rows;
    p.n_blocks = (int32_t)SL_CEIL_DIV(w->n_rows, (int64_t)SL_CUDA_ROW_BLOCK);
    p.k = (int32_t)w->n_cols;
    p.n_k64 = (int32_t)(SL_CEIL_DIV(w->n_cols, (int64_t)info->unit_k) * (info->unit_k / 64));
    p.block_bytes = sl_cuda_stream_bytes(w->layout, w->n_cols);
    p.n_experts = stack->n;
    return p;
}

/* What experts' results are multiplied by, from row `from` on. */
static const float *out_weights(const struct sl_op_experts *a, int32_t from)
{
    return a->weigh_input ? NULL : a->weights + (int64_t)from * a->top_k;
}

/* The first and the second product; where their rows go is the caller's. Of experts without a gate
 * the first is up alone, half of the work. */
static struct sl_expert_product gate_and_up(const struct sl_op_experts *a,
                                            struct sl_expert_pairs pairs, int32_t from)
{
    struct sl_expert_product p = product_of(a->gate, pairs);
    p.w[0] = stack_of(a->gate);
    p.w[1] = stack_of(a->up);
    p.bias[0] = a->gate_bias;
    p.bias[1] = a->up_bias;
    p.first = true;
    p.gated = a->gate != a->up;
    p.act = a->act;
    p.swiglu = a->swiglu;
    if (a->weigh_input)
        p.in_weights = a->weights + (int64_t)from * a->top_k;
    return p;
}

static struct sl_expert_product down(const struct sl_op_experts *a, struct sl_expert_pairs pairs)
{
    struct sl_expert_product p = product_of(a->down, pairs);
    p.w[0] = stack_of(a->down);
    p.bias[0] = a->down_bias;
    return p;
}

/* The pairs of n rows from row `from` on. */
static struct sl_expert_pairs pairs_of(const struct sl_op_experts *a, int32_t from, int32_t n)
{
    struct sl_expert_pairs p = {};
    p.experts = a->experts + (int64_t)from * a->top_k;
    p.n_pairs = p.most_tiles = n * a->top_k;
    p.top_k = a->top_k;
    p.from = a->from;
    p.until = a->until != 0 ? a->until : a->gate->n;
    p.tile = 1;
    return p;
}

/* Where the middle of n_pairs is computed, and then made whole at `mid`. */
static __nv_bfloat16 *middle(const struct sl_op_experts *a, void *mid)
{
    return static_cast<__nv_bfloat16 *>(a->rank != NULL ? sl_rank_room(a->rank) : mid);
}

static void gather_middle(struct sl_cuda *cu, const struct sl_op_experts *a, int32_t n_pairs,
                          const __nv_bfloat16 *part, void *mid)
{
    if (a->rank == NULL)
        return;
    struct sl_op_all_gather g = {};
    g.rank = a->rank;
    g.part = part;
    g.part_bytes = (size_t)a->gate->mats[0].n_rows * sizeof *part;
    g.n = n_pairs;
    g.out = mid;
    sl_cuda_all_gather(&cu->base, &g);
}

static void run_single(struct sl_cuda *cu, const struct sl_op_experts *a)
{
    const int64_t h = a->gate->mats[0].n_cols, i = a->down->mats[0].n_cols;
    const struct room_of r = room_for(a->n, a->gate->n, a->top_k, h, i);
    struct sl_expert_product up = gate_and_up(a, pairs_of(a, 0, a->n), 0);
    up.x = static_cast<const __nv_bfloat16 *>(a->x);
    up.by_row = true;
    uint8_t *mid = static_cast<uint8_t *>(a->scratch) + r.mid;
    up.mid = middle(a, mid);
    kernels[a->gate->mats[0].layout].few(cu, &up);
    gather_middle(cu, a, up.pairs.n_pairs, up.mid, mid);
    struct sl_expert_product last = down(a, pairs_of(a, 0, a->n));
    last.x = reinterpret_cast<__nv_bfloat16 *>(mid);
    const struct sl_expert_sum sum = {out_weights(a, 0), a->shared, a->shared_logit, a->out};
    kernels[a->down->mats[0].layout].sum(cu, &last, &sum, a->n);
}

/* Where else the sums of all rows go: of more rows than a meeting sends as lines, they are on the
 * other ranks when all_reduce asks for them. All ranks decide alike. */
static struct sl_expert_peers peers_of(const struct sl_cuda *cu, const struct sl_op_experts *a,
                                       int32_t n)
{
    const struct sl_comm *c = cu->comm;
    const struct sl_spread *s = a->spread;
    struct sl_expert_peers peers = {};
    if (s == NULL || n < a->n || n <= SPREAD_ROWS || c == NULL || !c->alike ||
        c->n_ranks - 1 > SL_EXPERT_PEERS ||
        (c->n_ranks - 1) * n * a->down->mats[0].n_rows * 4 > SPREAD_BYTES)
        return peers;
    for (int i = 0; i < c->n_ranks; i++)
        if (s->rank->mem[i] == NULL)
            return peers;
    for (int i = 0; i < c->n_ranks; i++)
        if (i != s->rank->idx)
            peers.to[peers.n++] = s->rank->mem[i] - s->rank->mem[s->rank->idx];
    return peers;
}

static void run_slab(struct sl_cuda *cu, const struct sl_op_experts *a, int32_t from, int32_t n)
{
    const int32_t n_experts = a->gate->n;
    const int64_t h = a->gate->mats[0].n_cols, i = a->down->mats[0].n_cols;
    const int64_t n_out = a->down->mats[0].n_rows; /* h, or a rank's part of it */
    const struct room_of r = room_for(n, n_experts, a->top_k, h, i);
    uint8_t *at = static_cast<uint8_t *>(a->scratch);
    struct sl_expert_pairs pairs = pairs_of(a, from, n);
    const int32_t tile = tile_of(pairs.n_pairs, n_experts, SL_MAX(h, i));
    pairs.most_tiles = most_tiles(pairs.n_pairs, n_experts, tile);
    pairs.tile = tile;
    pairs.n_tiles = reinterpret_cast<int32_t *>(at);
    pairs.tiles = reinterpret_cast<sl_expert_tile *>(at + r.tiles);
    pairs.pair = reinterpret_cast<int32_t *>(at + r.pair);
    pairs.place = reinterpret_cast<int32_t *>(at + r.place);
    const size_t counts = (size_t)n_experts * (a->rank != NULL ? SORT_WARPS : 1);
    sl_launch(cu, a->rank != NULL ? sort_in_order_kernel : sort_kernel, dim3(1), dim3(SORT_BLOCK),
              (counts + 2 * (size_t)n_experts + 2) * sizeof(int32_t), pairs, n_experts, tile);

    struct sl_expert_product up = gate_and_up(a, pairs, from), last = down(a, pairs);
    up.x = static_cast<const __nv_bfloat16 *>(a->x) + from * h;
    up.by_row = tile <= SL_EXPERTS_FEW;
    if (!up.by_row) {
        uint4 *x = reinterpret_cast<uint4 *>(at + r.x);
        sl_launch(cu, gather_kernel, dim3((unsigned)n), dim3(GATHER_BLOCK), 0, pairs,
                  reinterpret_cast<const uint4 *>(up.x), (int32_t)(h / 8), x);
        up.x = reinterpret_cast<const __nv_bfloat16 *>(x);
    }
    up.mid = middle(a, at + r.mid);
    last.x = reinterpret_cast<__nv_bfloat16 *>(at + r.mid);
    last.out = reinterpret_cast<float *>(at + r.y);
    const struct kernels *first = &kernels[a->gate->mats[0].layout];
    const struct kernels *second = &kernels[a->down->mats[0].layout];
    if (tile <= SL_EXPERTS_FEW) {
        first->few(cu, &up);
        gather_middle(cu, a, pairs.n_pairs, up.mid, at + r.mid);
        second->few(cu, &last);
    } else {
        first->wg(cu, &up, tile);
        gather_middle(cu, a, pairs.n_pairs, up.mid, at + r.mid);
        second->wg(cu, &last, tile);
    }
    struct sl_expert_sum sum = {
        out_weights(a, from), a->shared == NULL ? NULL : a->shared + from * n_out,
        a->shared_logit == NULL ? NULL : a->shared_logit + from, a->out + from * n_out};
    const struct sl_expert_peers peers = peers_of(cu, a, n);
    if (peers.n > 0) {
        SL_ASSERT(cu->spread == NULL && n_out == a->spread->ld);
        sum.out = static_cast<float *>(a->spread->whole);
        cu->spread = a->out;
    }
    sl_expert_combine(cu, &pairs, n_experts, last.out, n_out, &sum, &peers, n);
}

extern "C" void sl_cuda_experts(struct sl_backend *be, const struct sl_op_experts *a)
{
    const struct sl_weight *gate = &a->gate->mats[0], *last = &a->down->mats[0];
    SL_ASSERT(a->top_k >= 1 && a->top_k <= SL_EXPERTS_TOP_K);
    SL_ASSERT(gate->layout == a->up->mats[0].layout);
    SL_ASSERT(a->from >= 0 && a->until <= a->gate->n && (a->until == 0 || a->rank == NULL));
    SL_ASSERT((a->gate_bias != NULL) == (a->up_bias != NULL));
    SL_ASSERT(!a->weigh_input || (a->gate_bias == NULL && a->down_bias == NULL));
    SL_ASSERT(a->gate != a->up || (a->act == SL_ACT_RELU && a->gate_bias == NULL &&
                                   a->swiglu.limit <= 0 && !a->weigh_input));
    SL_ASSERT(a->rank != NULL || (last->n_rows == gate->n_cols && last->n_cols == gate->n_rows));
    SL_ASSERT(last->n_rows % 4 == 0);
    SL_ASSERT(gate->n_cols % 8 == 0 && last->n_cols % 8 == 0); /* sl_experts_create */
    if (a->n <= SINGLE_ROWS) {
        run_single(sl_cuda(be), a);
        return;
    }
    const int32_t slab = slab_rows(a->n, a->top_k, gate->n_cols, last->n_cols);
    for (int32_t from = 0; from < a->n; from += slab)
        run_slab(sl_cuda(be), a, from, SL_MIN(a->n - from, slab));
}
