/* SPDX-License-Identifier: MIT
 * sparse.cu - latent attention of tokens over the positions that an index has chosen for each
 * (sparse_top.cu). What a token sees counts as lying side by side, so that to the plan each token
 * is a span of its own, at the last of these positions: a kernel makes those spans, in the
 * operation's room, and the plan cuts them. Both are made once a step, as all layers see as many.
 * latent_gather.cuh attends.
 *
 * A token with 128 heads has two tiles of 64 rows. They run at about the same time and read the
 * same rows, the second one from L2.
 */
#include "cuda/attention/attention.cuh"
#include "cuda/attention/chosen.cuh"

#define SPARSE_THREADS 256

struct sparse_spans_args {
    const int32_t *positions, *row_table;
    int32_t n, top_k;
    struct sl_span *spans;
};

static __global__ void __launch_bounds__(SPARSE_THREADS) sparse_spans_kernel(sparse_spans_args a)
{
    const int32_t i = static_cast<int32_t>(blockIdx.x * SPARSE_THREADS + threadIdx.x);
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (i >= a.n)
        return;
    const struct sl_span span = {i, 1, min(a.positions[i], a.top_k - 1), a.row_table[i], 0};
    a.spans[i] = span;
}

/* The plan for the operation, if the last one is another. b: its batch, with the spans here. */
static void plan(struct sl_cuda *cu, const struct sl_op_sparse_attention *op, struct sl_batch *b)
{
    const struct sl_op_attention *all = &op->all;
    b->spans = static_cast<struct sl_span *>(op->room);
    b->n_spans = b->n_tokens;
    b->span_sizes = 0;
    if (cu->plan_top == op->top_k && cu->plan_heads == all->n_heads && cu->plan_kv_heads == 0 &&
        cu->plan_dim == all->head_dim)
        return;
    const sparse_spans_args a = {
        b->positions, reinterpret_cast<const int32_t *>(cu->workspace + SL_ATTN_ROW_TABLE),
        b->n_tokens, op->top_k, static_cast<struct sl_span *>(op->room)};
    sl_launch(cu, sparse_spans_kernel,
              dim3(static_cast<unsigned>(SL_CEIL_DIV(b->n_tokens, SPARSE_THREADS))),
              dim3(SPARSE_THREADS), 0, a);
    sl_attn_plan_rows(cu, b, all->n_heads, all->head_dim, op->top_k);
}

extern "C" void sl_cuda_sparse_attention(struct sl_backend *be,
                                         const struct sl_op_sparse_attention *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_batch b = *op->all.batch;
    struct sl_attn_layout l;
    struct sl_gather_args g = {};
    if (b.n_tokens == 0)
        return;
    if (op->block > 0) {
        sl_chosen_blocks(cu, op);
        return;
    }
    if (op->top_k < 1 || !op->all.v_in_k ||
        op->room_bytes < static_cast<size_t>(b.n_tokens) * sizeof(struct sl_span)) {
        sl_cuda_check(cu, cudaErrorInvalidValue, "room of sparse attention");
        return;
    }
    if (!sl_latent_args_of(cu, &op->all, b.n_tokens, &l, &g.a))
        return;
    plan(cu, op, &b);
    g.a.shift = SL_SPARSE_SHIFT;
    g.top = op->top;
    g.positions = b.positions;
    g.top_k = op->top_k;
    sl_gather_launch(cu, &op->all, &l, &g);
    cu->plan_settled = true;
    g.a.head_dim = g.a.v_dim; /* of the output's rows */
    sl_attn_combine_wide(cu, &g.a, l.shape.dim, l.shape.wide);
}
