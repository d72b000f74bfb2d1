/* SPDX-License-Identifier: MIT
 * fused_layer.h - what a layer does behind attention, and a product behind that, for tests that
 * compare it with and without operations that are one kernel (cuda/gemm/fuse.h).
 */
#ifndef SL_TESTS_CUDA_FUSED_LAYER_H
#define SL_TESTS_CUDA_FUSED_LAYER_H

#include "cuda/gemm/fuse.h"

struct fused_layer {
    const struct sl_weight *o, *gate, *up, *down; /* [h, k], [wide, h] twice, [h, wide] */
    int m;
    const void *att; /* [m][k] */
    const float *norm_w;
    float *x, *y, *out; /* the residual stream; what is added to it; gate's product of its norm */
    void *norm, *mid, *last; /* the norms; between them the gated activation */
};

static void fused_layer_run(struct sl_cuda *cu, const struct fused_layer *l, bool fused)
{
    const int64_t h = l->o->n_rows, wide = l->gate->n_rows;
    const int32_t width = static_cast<int32_t>(h);
    const struct sl_op_linear o = {l->att, l->o->n_cols, l->o,    nullptr, l->m, l->y,
                                   h,      nullptr,      nullptr, false};
    const struct sl_op_add_rmsnorm first = {l->x,  l->y,    l->norm_w, 1e-5f, l->m,
                                            width, l->norm, nullptr,   0,     0};
    const struct sl_op_linear_gated_act ff = {l->norm, h,      l->gate, l->up,  SL_ACT_SILU,
                                              l->m,    l->mid, nullptr, nullptr};
    const struct sl_op_linear down = {l->mid, wide, l->down, nullptr, l->m,
                                      l->y,   h,    nullptr, nullptr, false};
    const struct sl_op_add_rmsnorm second = {l->x,  l->y,    l->norm_w, 1e-5f, l->m,
                                             width, l->last, nullptr,   0,     0};
    const struct sl_op_linear next = {l->last, h,    l->gate, nullptr, l->m,
                                      l->out,  wide, nullptr, nullptr, false};
    struct sl_cuda_fuse room;
    if (fused)
        sl_cuda_fuse_begin(cu, &room);
    sl_cuda_linear(&cu->base, &o);
    sl_cuda_add_rmsnorm(&cu->base, &first);
    sl_cuda_linear_gated_act(&cu->base, &ff);
    sl_cuda_linear(&cu->base, &down);
    sl_cuda_add_rmsnorm(&cu->base, &second);
    sl_cuda_linear(&cu->base, &next);
    if (fused)
        sl_cuda_fuse_end(cu);
}

#endif
