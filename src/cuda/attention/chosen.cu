/* SPDX-License-Identifier: MIT
 * chosen.cu - attention of tokens over the blocks of positions that each key head has chosen, by
 * the kernels of attention over pages.
 *
 * To these a token's key head is a sequence of its own with one key head: its pages are what it has
 * chosen, side by side in ascending order, up to the block with the token. A page there is the part
 * of a page of the pool that one head and one block have, and its id counts units of bytes from the
 * pool's beginning, of which pages, heads' parts and tiles are whole multiples. So there are no
 * kernels for it but one that makes the spans, once a step, as how much a token sees does not
 * depend on what was chosen, and one that writes the ids, in each layer. A token that sees no more
 * than may be chosen has all of it, with the bits of dense attention.
 *
 * Spans, ids and the plan lie apart from those of the step: layers take turns, and each plan is
 * made once. Where the room has no place for all tokens, these go in turns, with a plan each.
 */
#include "cuda/attention/chosen.cuh"

#include "cuda/attention/attention.cuh"

#define CHOSEN_THREADS 256

struct chosen_args {
    const int32_t *positions, *row_table, *tables;
    const int32_t *top;           /* [n, n_kv_heads, n_top] */
    int32_t first, n, n_kv_heads; /* tokens at hand */
    int32_t n_top, block;
    int32_t page;          /* positions of a page of a span */
    int32_t each;          /* such pages of a block */
    int32_t by_page;       /* tiles of a page of the pool */
    uint32_t page_units;   /* bytes of a page of the pool, */
    uint32_t tile_units;   /* and of a tile, in units */
    struct sl_span *spans; /* [n, n_kv_heads] */
    int32_t *ids;          /* [n, n_kv_heads, n_top * each] */
};

/* The place of a position among those that it sees. */
static __device__ __forceinline__ int32_t chosen_place(const struct chosen_args &a, int32_t pos)
{
    return pos / a.block < a.n_top ? pos : (a.n_top - 1) * a.block + pos % a.block;
}

static __global__ void __launch_bounds__(CHOSEN_THREADS)
    chosen_spans_kernel(const __grid_constant__ struct chosen_args a)
{
    const int32_t i = static_cast<int32_t>(blockIdx.x * CHOSEN_THREADS + threadIdx.x);
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (i >= a.n * a.n_kv_heads)
        return;
    const struct sl_span span = {i, 1, chosen_place(a, a.positions[a.first + i / a.n_kv_heads]),
                                 i * a.n_top * a.each, 0};
    a.spans[i] = span;
}

static __global__ void __launch_bounds__(CHOSEN_THREADS)
    chosen_ids_kernel(const __grid_constant__ struct chosen_args a)
{
    const int32_t n_ids = a.n_top * a.each;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * CHOSEN_THREADS + threadIdx.x;
    const int32_t row = static_cast<int32_t>(at / n_ids), i = static_cast<int32_t>(at % n_ids);
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (row >= a.n * a.n_kv_heads)
        return;
    const int32_t token = a.first + row / a.n_kv_heads, head = row % a.n_kv_heads;
    const int32_t pos = a.positions[token];
    if (i > chosen_place(a, pos) / a.page)
        return;
    int32_t block = i / a.each;
    if (pos / a.block >= a.n_top)
        block = a.top[static_cast<int64_t>(row) * a.n_top + block];
    const int32_t tile = (block * a.block + i % a.each * a.page) / SL_KV_TILE;
    const int32_t id = a.tables[a.row_table[token] + tile / a.by_page];
    a.ids[at] = static_cast<int32_t>(static_cast<uint32_t>(id) * a.page_units +
                                     static_cast<uint32_t>(head * a.by_page + tile % a.by_page) *
                                         a.tile_units);
}

static size_t common(size_t a, size_t b)
{
    while (b != 0) {
        const size_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The plan that operations go by becomes that of what is chosen, or the step's again. */
struct chosen_turn {
    struct sl_cuda *cu;
    uint8_t *workspace;
    size_t workspace_bytes;
    int32_t heads, kv_heads, dim, narrow, top;
    bool whole;
};

static struct chosen_turn begin_turn(struct sl_cuda *cu, bool planned)
{
    const struct chosen_turn t = {
        cu,           cu->workspace,   cu->workspace_bytes, cu->plan_heads, cu->plan_kv_heads,
        cu->plan_dim, cu->plan_narrow, cu->plan_top,        cu->plan_whole};
    cu->workspace = cu->chosen.workspace;
    cu->workspace_bytes = cu->chosen.workspace_bytes;
    cu->plan_heads = planned ? cu->chosen.plan_heads : -1; /* of no layer: it is made */
    cu->plan_kv_heads = 1;
    cu->plan_dim = cu->chosen.plan_dim;
    cu->plan_narrow = cu->chosen.plan_narrow;
    cu->plan_top = 0;
    cu->plan_whole = false;
    cu->plan_settled = false; /* the ids are not there before the kernel ahead has ended */
    return t;
}

static void end_turn(const struct chosen_turn &t)
{
    struct sl_cuda *cu = t.cu;
    cu->chosen.plan_heads = cu->plan_heads;
    cu->chosen.plan_dim = cu->plan_dim;
    cu->chosen.plan_narrow = cu->plan_narrow;
    cu->workspace = t.workspace;
    cu->workspace_bytes = t.workspace_bytes;
    cu->plan_heads = t.heads;
    cu->plan_kv_heads = t.kv_heads;
    cu->plan_dim = t.dim;
    cu->plan_narrow = t.narrow;
    cu->plan_top = t.top;
    cu->plan_whole = t.whole;
    cu->plan_settled = true; /* kernels are enqueued behind it */
}

/* As if what the tokens at hand see were sequences in pages of their own. */
static void attend(struct sl_cuda *cu, const struct sl_op_attention *all,
                   const struct chosen_args &a, size_t unit, bool planned)
{
    const int32_t group = all->n_heads / all->n_kv_heads, rows = a.n * a.n_kv_heads;
    struct sl_batch b = {};
    struct sl_op_attention op = *all;
    b.n_tokens = b.n_spans = rows;
    b.spans = a.spans;
    b.block_tables = a.ids;
    b.n_tables = 1;
    op.batch = &b;
    op.q += static_cast<int64_t>(a.first) * all->ld_q;
    op.out = static_cast<__nv_bfloat16 *>(all->out) + static_cast<int64_t>(a.first) * all->ld_out;
    op.n_heads = group;
    op.n_kv_heads = 1;
    op.ld_q = op.ld_out = static_cast<int64_t>(group) * all->head_dim;
    op.skip_factor = 0.0f;
    op.skip_counts = nullptr;
    op.kv.page_bytes = unit;
    op.kv.block_size = a.page;
    op.kv.group = 0;
    const struct chosen_turn turn = begin_turn(cu, planned);
    sl_cuda_attention(&cu->base, &op);
    end_turn(turn);
}

static bool is_supported(const struct sl_op_attention *all, const struct sl_chosen_rule *rule)
{
    const int64_t row = static_cast<int64_t>(all->n_heads) * all->head_dim;
    return rule->n_top > 0 && rule->block % SL_KV_TILE == 0 && !all->v_in_k && !all->whole &&
           all->window == 0 && all->sinks == nullptr && all->ld_q == row && all->ld_out == row &&
           sl_v_dim(all->head_dim, all->v_dim) == all->head_dim;
}

void sl_chosen_attend(struct sl_cuda *cu, const struct sl_op_attention *all,
                      const struct sl_chosen_rule *rule, int32_t first, int32_t n,
                      const int32_t *top, void *room)
{
    const struct sl_batch *b = all->batch;
    struct sl_cuda_chosen *c = &cu->chosen;
    struct chosen_args a = {};
    const size_t tile = sl_kv_tile_bytes(all->kv.dtype, all->head_dim);
    const size_t unit = common(tile, all->kv.page_bytes);
    const int32_t rows = n * all->n_kv_heads;
    if (!is_supported(all, rule)) {
        sl_cuda_check(cu, cudaErrorInvalidValue, "attention over what is chosen");
        return;
    }
    a.positions = b->positions;
    a.row_table = reinterpret_cast<const int32_t *>(cu->workspace + SL_ATTN_ROW_TABLE);
    a.tables = sl_batch_tables(b, all->kv.group);
    a.top = top;
    a.first = first;
    a.n = n;
    a.n_kv_heads = all->n_kv_heads;
    a.n_top = rule->n_top;
    a.block = rule->block;
    a.page = sl_chosen_page(rule->block, all->kv.block_size);
    a.each = rule->block / a.page;
    a.by_page = all->kv.block_size / SL_KV_TILE;
    a.page_units = static_cast<uint32_t>(all->kv.page_bytes / unit);
    a.tile_units = static_cast<uint32_t>(tile / unit);
    a.spans = static_cast<struct sl_span *>(room);
    a.ids = reinterpret_cast<int32_t *>(a.spans + rows);
    const int64_t n_ids = static_cast<int64_t>(rows) * a.n_top * a.each;
    const bool planned = n == b->n_tokens && c->block == a.block && c->n_top == a.n_top &&
                         c->n_kv_heads == a.n_kv_heads;
    if (!planned)
        sl_launch(cu, chosen_spans_kernel,
                  dim3(static_cast<unsigned>(SL_CEIL_DIV(rows, CHOSEN_THREADS))),
                  dim3(CHOSEN_THREADS), 0, a);
    sl_launch(cu, chosen_ids_kernel,
              dim3(static_cast<unsigned>(SL_CEIL_DIV(n_ids, int64_t{CHOSEN_THREADS}))),
              dim3(CHOSEN_THREADS), 0, a);
    attend(cu, all, a, unit, planned);
    c->block = n == b->n_tokens ? a.block : 0;
    c->n_top = a.n_top;
    c->n_kv_heads = a.n_kv_heads;
}

/* ---------------------------------------------------------------- the operation */

void sl_chosen_blocks(struct sl_cuda *cu, const struct sl_op_sparse_attention *op)
{
    const struct sl_op_attention *all = &op->all;
    const struct sl_chosen_rule rule = {op->block, op->top_k, 0, 0};
    const size_t one = sl_chosen_room(all->n_kv_heads, op->top_k, op->block, all->kv.block_size);
    const int32_t n_tokens = all->batch->n_tokens;
    const int32_t most =
        static_cast<int32_t>(SL_MIN(op->room_bytes / one, static_cast<size_t>(n_tokens)));
    if (n_tokens > 0 && most == 0)
        sl_cuda_check(cu, cudaErrorInvalidValue, "room of attention over blocks");
    for (int32_t first = 0; first < n_tokens && most > 0; first += most)
        sl_chosen_attend(cu, all, &rule, first, SL_MIN(most, n_tokens - first),
                         op->top + static_cast<int64_t>(first) * all->n_kv_heads * op->top_k,
                         op->room);
}
