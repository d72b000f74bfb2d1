/* SPDX-License-Identifier: MIT
 * A mixture of experts: the router's logits, the experts of each row, and what they give.
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
    be->vt->linear(be, &(struct sl_op_linear){
                           .x = x,
                           .ld_x = router->n_cols,
                           .w = router,
                           .n = n,
                           .out = r->route,
                           .ld_out = router->n_rows,
                       });
    be->vt->route(be, &(struct sl_op_route){
                          .logits = r->route,
                          .n = n,
                          .n_experts = l->n_experts,
                          .top_k = l->top_experts,
                          .renormalize = l->norm_top_experts,
                          .experts = r->top,
                          .weights = r->top_weight,
                      });
    be->vt->experts(be, &(struct sl_op_experts){
                            .x = x,
                            .n = n,
                            .top_k = l->top_experts,
                            .experts = r->top,
                            .weights = r->top_weight,
                            .gate = &s->gate,
                            .up = &s->up,
                            .down = &s->down,
                            .act = l->act,
                            .scratch = r->expert_room,
                            .out = sum,
                            .rank = divided ? &r->rank : NULL,
                        });
    sl_run_gather(r, sum, s->down.mats[0].n_rows, sizeof *y, n, y);
}
