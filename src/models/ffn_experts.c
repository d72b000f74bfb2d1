/* SPDX-License-Identifier: MIT
 * A mixture of experts: the router's logits, the experts of each row, and what they give together
 * with the shared expert, through which every row goes.
 */
#include "models/internal.h"

void sl_ffn_experts(struct sl_run *r, int32_t layer, const void *x, int32_t n, float *y)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    const struct sl_expert_stacks *s = &r->m->experts[layer];
    const struct sl_weight *router = sl_run_mat(r, layer, SL_SLOT_ROUTER);
    struct sl_backend *be = r->m->be;
    const bool divided = r->m->n_ranks > 1;
    float *sum = divided ? r->expert_sum : y;
    const bool shared = (l->has & SL_HAS_SHARED) != 0, gated = (l->has & SL_HAS_SHARED_GATE) != 0;
    be->vt->linear_multi(
        be,
        &(struct sl_op_linear_multi){
            .x = x,
            .ld_x = router->n_cols,
            .n = n,
            .n_parts = gated ? 2 : 1,
            .part = {{router, sl_run_vec(r, layer, SL_SLOT_ROUTER_BIAS), r->route, router->n_rows},
                     {sl_run_mat(r, layer, SL_SLOT_SHARED_LOGIT), NULL, r->shared_logit, 1}},
        });
    be->vt->route(be, &(struct sl_op_route){
                          .logits = r->route,
                          .bias = sl_run_vec(r, layer, SL_SLOT_CHOICE_BIAS),
                          .n = n,
                          .n_experts = l->n_experts,
                          .top_k = l->top_experts,
                          .rule = l->route,
                          .experts = r->top,
                          .weights = r->top_weight,
                      });
    if (shared)
        sl_ffn_shared(r, layer, x, n, r->shared);
    be->vt->experts(be, &(struct sl_op_experts){
                            .x = x,
                            .n = n,
                            .top_k = l->top_experts,
                            .experts = r->top,
                            .weights = r->top_weight,
                            .gate = &s->gate,
                            .up = &s->up,
                            .down = &s->down,
                            .gate_bias = sl_run_vec(r, layer, SL_SLOT_EXPERTS_GATE_BIAS),
                            .up_bias = sl_run_vec(r, layer, SL_SLOT_EXPERTS_UP_BIAS),
                            .down_bias = sl_run_vec(r, layer, SL_SLOT_EXPERTS_DOWN_BIAS),
                            .act = l->act,
                            .swiglu = l->swiglu,
                            .shared = shared ? r->shared : NULL,
                            .shared_logit = gated ? r->shared_logit : NULL,
                            .scratch = r->expert_room,
                            .out = sum,
                            .rank = divided ? &r->rank : NULL,
                        });
    sl_run_gather(r, sum, s->down.mats[0].n_rows, sizeof *y, n, y);
}
