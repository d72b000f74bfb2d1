/* SPDX-License-Identifier: MIT
 * Products of heads: the operation.
 */
#include "cuda/gemm/experts.h"
#include "cuda/gemm/heads_linear.h"

static void (*const kernels[SL_CUDA_LAYOUTS])(struct sl_cuda *, const struct sl_heads_product *) = {
    nullptr,
    sl_heads_bf16,
    sl_heads_q8_0,
    sl_heads_q4_0,
    sl_heads_q4_k,
    sl_heads_q5_k,
    sl_heads_q6_k,
    sl_heads_fp8,
    nullptr, /* w8a8: stack_create refuses it */
    sl_heads_int4_g128,
    sl_heads_int4_g32,
    sl_heads_mxfp4,
};

extern "C" void sl_cuda_heads_linear(struct sl_backend *be, const struct sl_op_heads_linear *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_weight *w = &op->w->mats[0];
    const int32_t unit_k = sl_cuda_layout_info(w->layout)->unit_k;
    struct sl_heads_product a = {};
    if (op->n <= 0)
        return;
    if (w->n_cols > SL_HEADS_MOST_COLS) {
        sl_cuda_check(cu, cudaErrorInvalidValue, "columns of products of heads");
        return;
    }
    a.aligned = (uintptr_t)op->x % 16 == 0 && op->ld_x % 8 == 0 && op->step_x % 8 == 0 &&
                w->n_cols % 8 == 0;
    a.x = (const __nv_bfloat16 *)op->x;
    a.ld_x = op->ld_x;
    a.step_x = op->step_x;
    a.streams = sl_cuda_stack_streams(op->w);
    a.n = op->n;
    a.n_heads = op->w->n;
    a.n_rows = (int32_t)w->n_rows;
    a.n_blocks = (int32_t)SL_CEIL_DIV(w->n_rows, (int64_t)SL_CUDA_ROW_BLOCK);
    a.k = (int32_t)w->n_cols;
    a.n_k64 = (int32_t)SL_CEIL_DIV(w->n_cols, (int64_t)unit_k) * (unit_k / 64);
    a.block_bytes = sl_cuda_stream_bytes(w->layout, w->n_cols);
    a.out = op->out;
    a.ld_out = op->ld_out;
    a.step_out = op->step_out;
    kernels[w->layout](cu, &a);
}
