/* SPDX-License-Identifier: MIT
 * A mixture of experts: the router's logits, the experts of each row, and what they give together
 * with the shared expert, through which every row goes. Or an MLP and experts as two branches with
 * norms of their own.
 */
#include "models/internal.h"

/* The experts of n rows, from what goes into the router. */
static void choose_experts(struct sl_run *r, int32_t layer, const void *x, int32_t n)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    const struct sl_weight *router = sl_run_mat(r, layer, SL_SLOT_ROUTER);
    const bool gated = (l->has & SL_HAS_SHARED_GATE) != 0;
    struct sl_backend *be = r->m->be;
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
    if (l->router_softcap > 0)
        be->vt->scale_logits(be, &(struct sl_op_scale_logits){.x = r->route,
                                                              .n = (int64_t)n * router->n_rows,
                                                              .scale = 1,
                                                              .cap = l->router_softcap});
    be->vt->route(be, &(struct sl_op_route){
                          .logits = r->route,
                          .bias = sl_run_vec(r, layer, SL_SLOT_CHOICE_BIAS),
                          .n = n,
                          .n_experts = l->n_experts + l->n_pass,
                          .top_k = l->top_experts,
                          .rule = l->route,
                          .of_token = l->hashed ? r->m->hashed[layer].of_token : NULL,
                          .tokens = r->tokens,
                          .n_vocab = r->m->hp.n_vocab,
                          .expert_scale = sl_run_vec(r, layer, SL_SLOT_EXPERT_SCALE),
                          .experts = r->top,
                          .weights = r->top_weight,
                      });
}

/* What the chosen experts give of x, to sum; shared: what is added to that, or NULL; spread: as in
 * struct sl_op_experts. */
static void run_chosen(struct sl_run *r, int32_t layer, const void *x, int32_t n,
                       const float *shared, float *sum, const struct sl_spread *spread)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    const struct sl_expert_stacks *s = &r->m->experts[layer];
    const bool gated = (l->has & SL_HAS_SHARED_GATE) != 0, placed = r->m->places != NULL;
    const bool some = sl_sums_experts(r->m) && !placed;
    const struct sl_rows own = sl_rank_experts(r->m, layer, r->m->rank);
    r->m->be->vt->experts(r->m->be,
                          &(struct sl_op_experts){
                              .x = x,
                              .n = n,
                              .top_k = l->top_experts,
                              .experts = r->top,
                              .weights = r->top_weight,
                              .weigh_input = l->weigh_input,
                              .gate = l->plain_experts ? &s->up : &s->gate,
                              .up = &s->up,
                              .down = &s->down,
                              .from = some ? (int32_t)own.first : 0,
                              .until = some            ? (int32_t)(own.first + own.n)
                                       : l->n_pass > 0 ? l->n_experts
                                                       : 0,
                              .gate_bias = sl_run_vec(r, layer, SL_SLOT_EXPERTS_GATE_BIAS),
                              .up_bias = sl_run_vec(r, layer, SL_SLOT_EXPERTS_UP_BIAS),
                              .down_bias = sl_run_vec(r, layer, SL_SLOT_EXPERTS_DOWN_BIAS),
                              .act = sl_expert_act(l),
                              .swiglu = l->swiglu,
                              .shared = shared,
                              .shared_logit = gated && shared != NULL ? r->shared_logit : NULL,
                              .scratch = r->expert_room,
                              .out = sum,
                              .spread = spread,
                              .rank = r->m->n_ranks > 1 && !some ? &r->rank : NULL,
                              .places = placed ? &r->m->places[layer].of : NULL,
                              .positions = r->positions,
                              .rows = r->row_of,
                              .counts = placed ? &r->expert_counts[layer] : NULL,
                              .exchange = r->expert_exchange,
                          });
}

/* The shared expert runs on the device meanwhile, of rows of the layer: shared_x. add: its place
 * if the host's sums are added to that, or NULL. */
static void run_on_host(struct sl_run *r, int32_t layer, const void *x, const void *shared_x,
                        int32_t n, const float *add, float *y)
{
    const struct sl_device_vt *dev = r->m->be->vt->device;
    const struct sl_host_experts a = sl_host_experts_of(r, layer, x, n, add, y);
    dev->host_begin(r->m->be, &a);
    if ((r->m->layers[layer].has & SL_HAS_SHARED) != 0)
        sl_ffn_shared(r, layer, shared_x, n, r->shared);
    dev->host_end(r->m->be, &a);
}

/* Experts in a space of their own: x goes there, and what they give goes back. */
static void run_latent(struct sl_run *r, int32_t layer, const void *x, int32_t n, float *y)
{
    struct sl_backend *be = r->m->be;
    const bool shared = (r->m->layers[layer].has & SL_HAS_SHARED) != 0;
    const struct sl_weight *down = sl_run_mat(r, layer, SL_SLOT_LATENT_DOWN);
    const struct sl_weight *up = sl_run_mat(r, layer, SL_SLOT_LATENT_UP);
    const int32_t width = (int32_t)down->n_rows;
    be->vt->linear(
        be,
        &(struct sl_op_linear){
            .x = x, .ld_x = down->n_cols, .w = down, .n = n, .out = r->latent_in, .ld_out = width});
    const void *rows = sl_run_activations(r, r->latent_in, n, width, r->latent_act);
    if (sl_experts_on_host(r->m, layer)) {
        run_on_host(r, layer, rows, x, n, NULL, r->latent_out);
    } else {
        if (shared)
            sl_ffn_shared(r, layer, x, n, r->shared);
        run_chosen(r, layer, rows, n, NULL, r->latent_out, NULL);
    }
    be->vt->linear(be, &(struct sl_op_linear){
                           .x = sl_run_activations(r, r->latent_out, n, width, r->latent_act),
                           .ld_x = width,
                           .w = up,
                           .n = n,
                           .out = y,
                           .ld_out = up->n_rows});
    if (shared)
        be->vt->add_rmsnorm(
            be, &(struct sl_op_add_rmsnorm){.x = y, .y = r->shared, .n = n, .h = r->m->hp.hidden});
}

/* y = the parts of all ranks, and what the shared expert gave; on CPUs through memory. */
static void sum_ranks(struct sl_run *r, int32_t layer, const float *part, int32_t n, float *y)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    const struct sl_backend_vt *vt = r->m->be->vt;
    const bool gated = (l->has & SL_HAS_SHARED_GATE) != 0;
    const float *shared = (l->has & SL_HAS_SHARED) != 0 ? r->shared : NULL;
    const int32_t h = r->m->hp.hidden;
    if (vt->all_reduce != NULL) {
        vt->all_reduce(r->m->be, &(struct sl_op_all_reduce){
                                     .rank = &r->rank,
                                     .part = part,
                                     .n_terms = 1,
                                     .n = n,
                                     .h = h,
                                     .tree = true,
                                     .parts = r->expert_parts,
                                     .add = shared,
                                     .add_logit = gated ? r->shared_logit : NULL,
                                     .out = y,
                                 });
        return;
    }
    for (int32_t at = 0; at < n; at += SL_SUM_ROWS) {
        const int32_t rows = SL_MIN(n - at, SL_SUM_ROWS);
        const int64_t begin = (int64_t)at * h;
        sl_run_exchange(r, part + begin, h, sizeof *y, rows, r->expert_parts);
        vt->sum_parts(r->m->be, &(struct sl_op_sum_parts){
                                    .parts = r->expert_parts,
                                    .n = rows,
                                    .n_parts = r->m->n_ranks,
                                    .h = h,
                                    .shared = shared != NULL ? shared + begin : NULL,
                                    .shared_logit = gated ? r->shared_logit + at : NULL,
                                    .out = y + begin,
                                });
    }
}

/* Of ranks that have some of the experts each: this one's sum of n rows, to which the others' are
 * added. The shared expert is divided by rows, as every MLP. */
static void run_own(struct sl_run *r, int32_t layer, const void *x, int32_t n, float *y)
{
    if ((r->m->layers[layer].has & SL_HAS_SHARED) != 0) {
        float *columns = sl_ffn_shared(r, layer, x, n, r->m->row_ranks == 1 ? r->shared : NULL);
        sl_run_gather(r, columns, sl_run_mat(r, layer, SL_SLOT_SHARED_DOWN)->n_rows, sizeof *y, n,
                      r->shared);
    }
    const int32_t rank = r->m->rank, h = r->m->hp.hidden;
    if (r->m->places != NULL) { /* then what is exchanged is the operation's */
        run_chosen(r, layer, x, n,
                   (r->m->layers[layer].has & SL_HAS_SHARED) != 0 ? r->shared : NULL, y, NULL);
        return;
    }
    const struct sl_spread spread = {
        .rank = &r->rank, .whole = r->expert_parts + (int64_t)rank * n * h, .ld = h};
    float *part = sl_rank_room(&r->rank);
    run_chosen(r, layer, x, n, NULL, part, n <= SL_SUM_ROWS ? &spread : NULL);
    sum_ranks(r, layer, part, n, y);
}

/* Experts whose sum is added behind the next layer, to r->late; y: what the shared one gives. */
static void run_late(struct sl_run *r, int32_t layer, const void *x, int32_t n, float *y)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    SL_ASSERT(r->m->n_ranks == 1 && l->latent == 0 && !sl_experts_on_host(r->m, layer));
    if (l->n_pass > 0)
        r->m->be->vt->pass_experts(r->m->be, &(struct sl_op_pass_experts){
                                                 .x = x,
                                                 .n = n,
                                                 .h = r->m->hp.hidden,
                                                 .top_k = l->top_experts,
                                                 .first = l->n_experts,
                                                 .experts = r->top,
                                                 .weights = r->top_weight,
                                                 .out = r->passed,
                                             });
    run_chosen(r, layer, x, n, l->n_pass > 0 ? r->passed : NULL, r->late, NULL);
    sl_ffn_shared(r, layer, x, n, y);
}

void sl_ffn_experts(struct sl_run *r, int32_t layer, const void *x, int32_t n, float *y)
{
    const bool shared = (r->m->layers[layer].has & SL_HAS_SHARED) != 0;
    float *sum = r->m->n_ranks > 1 ? r->expert_sum : y;
    choose_experts(r, layer, x, n);
    if (r->m->layers[layer].late_experts) {
        run_late(r, layer, x, n, y);
        return;
    }
    if (r->m->layers[layer].latent > 0) {
        SL_ASSERT(!sl_sums_experts(r->m));
        run_latent(r, layer, x, n, y);
        return;
    }
    if (sl_experts_on_host(r->m, layer)) {
        run_on_host(r, layer, x, x, n, shared ? r->shared : NULL, y);
        return;
    }
    if (sl_sums_experts(r->m)) {
        run_own(r, layer, x, n, y);
        return;
    }
    if (shared)
        sl_ffn_shared(r, layer, x, n, r->shared);
    run_chosen(r, layer, x, n, shared ? r->shared : NULL, sum, NULL);
    sl_run_gather_stream(r, sum, r->m->experts[layer].down.mats[0].n_rows, n, y);
}

static void norm_rows(struct sl_run *r, int32_t layer, enum sl_slot w, const float *x, int32_t n,
                      void *out)
{
    r->m->be->vt->rmsnorm(r->m->be, &(struct sl_op_rmsnorm){.x = x,
                                                            .w = sl_run_vec(r, layer, w),
                                                            .eps = (float)r->m->hp.norm_eps,
                                                            .n = n,
                                                            .h = r->m->hp.hidden,
                                                            .out = out});
}

/* The norms of the two branches stay in float32, as their sum does. */
void sl_ffn_branches(struct sl_run *r, int32_t layer, const float *stream, int32_t n, float *y)
{
    float *experts = r->shared; /* before that what the router reads */
    sl_ffn_shared(r, layer, r->norm, n, y);
    norm_rows(r, layer, SL_SLOT_SHARED_OUT_NORM, y, n, NULL);
    norm_rows(r, layer, SL_SLOT_ROUTER_NORM, stream, n, experts);
    choose_experts(r, layer, experts, n);
    norm_rows(r, layer, SL_SLOT_EXPERTS_NORM, stream, n, r->norm);
    run_chosen(r, layer, r->norm, n, NULL, experts, NULL);
    r->m->be->vt->add_rmsnorm(
        r->m->be, &(struct sl_op_add_rmsnorm){.x = y,
                                              .y = experts,
                                              .w_y = sl_run_vec(r, layer, SL_SLOT_EXPERTS_OUT_NORM),
                                              .eps = (float)r->m->hp.norm_eps,
                                              .n = n,
                                              .h = r->m->hp.hidden});
}
