/* SPDX-License-Identifier: MIT
 * Blocks of attention and an MLP that layers share (Zamba 2). A block reads the residual stream and
 * the embedding of the token side by side, one norm over both. What comes out goes through a matrix
 * of the layer and is added to what its recurrence reads, not to the stream. Each use of a block
 * adds products of thin matrices of its own to q, k and v, and to gate and up.
 */
#include "models/internal.h"

/* x, [n, H], to one half of the pairs. */
static void shared_block_put_half(struct sl_run *r, const float *x, int32_t half, int32_t n)
{
    const int32_t h = r->m->hp.hidden;
    r->m->be->vt->copy_rows(r->m->be, &(struct sl_op_copy_rows){.x = x,
                                                                .ld_x = h,
                                                                .n = n,
                                                                .h = h,
                                                                .out = r->pair + half * h,
                                                                .ld_out = 2 * (int64_t)h});
}

static void shared_block_norm(struct sl_run *r, const float *x, const float *w, int32_t h,
                              int32_t n, void *out)
{
    r->m->be->vt->rmsnorm(
        r->m->be, &(struct sl_op_rmsnorm){
                      .x = x, .w = w, .eps = (float)r->m->hp.norm_eps, .n = n, .h = h, .out = out});
}

/* out = x w^T */
static void shared_block_product(struct sl_run *r, int32_t layer, enum sl_slot slot, const void *x,
                                 int32_t n, float *out)
{
    const struct sl_weight *w = sl_run_mat(r, layer, slot);
    r->m->be->vt->linear(
        r->m->be, &(struct sl_op_linear){
                      .x = x, .ld_x = w->n_cols, .w = w, .n = n, .out = out, .ld_out = w->n_rows});
}

/* y += x w^T, by way of r->use_up. */
static void add_product(struct sl_run *r, int32_t layer, enum sl_slot slot, const void *x,
                        int32_t n, float *y)
{
    shared_block_product(r, layer, slot, x, n, r->use_up);
    r->m->be->vt->add_rmsnorm(
        r->m->be,
        &(struct sl_op_add_rmsnorm){
            .x = y, .y = r->use_up, .n = n, .h = (int32_t)sl_run_mat(r, layer, slot)->n_rows});
}

/* n rows of r->use_down as activations. */
static const void *thin_rows(const struct sl_run *r, int32_t n)
{
    return sl_run_activations(r, r->use_down, n, r->m->hp.adapter_rank, r->use_act);
}

static struct sl_linear_part shared_block_part(const struct sl_run *r, int32_t layer,
                                               enum sl_slot slot, float *out)
{
    const struct sl_weight *w = sl_run_mat(r, layer, slot);
    return (struct sl_linear_part){w, NULL, out, w->n_rows};
}

static void shared_block_project(struct sl_run *r, int32_t layer, int32_t n)
{
    struct sl_backend *be = r->m->be;
    float *const out[] = {r->q, r->k, r->v};
    struct sl_op_linear_multi a = {.x = r->pair_norm,
                                   .ld_x = 2 * (int64_t)r->m->hp.hidden,
                                   .n = n,
                                   .n_parts = 3,
                                   .part = {shared_block_part(r, layer, SL_SLOT_BLOCK_Q, out[0]),
                                            shared_block_part(r, layer, SL_SLOT_BLOCK_K, out[1]),
                                            shared_block_part(r, layer, SL_SLOT_BLOCK_V, out[2])}};
    be->vt->linear_multi(be, &a);
    if ((r->m->layers[layer].has & SL_HAS_USE_ADAPTERS) == 0)
        return;
    const int64_t low = (int64_t)n * r->m->hp.adapter_rank;
    a.part[0] = shared_block_part(r, layer, SL_SLOT_USE_Q_DOWN, r->use_down);
    a.part[1] = shared_block_part(r, layer, SL_SLOT_USE_K_DOWN, r->use_down + low);
    a.part[2] = shared_block_part(r, layer, SL_SLOT_USE_V_DOWN, r->use_down + 2 * low);
    be->vt->linear_multi(be, &a);
    const size_t width = sl_dtype_info(be->vt->act_dtype)->block_bytes;
    const uint8_t *x = thin_rows(r, 3 * n);
    for (int i = 0; i < 3; i++)
        add_product(r, layer, (enum sl_slot)(SL_SLOT_USE_Q_UP + i), x + (size_t)(i * low) * width,
                    n, out[i]);
}

/* Of r->norm -> r->y. */
static void shared_block_feed_forward(struct sl_run *r, int32_t layer, int32_t n)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    struct sl_backend *be = r->m->be;
    float *gate = r->up, *up = r->up + (int64_t)n * l->intermediate;
    be->vt->linear_multi(
        be, &(struct sl_op_linear_multi){
                .x = r->norm,
                .ld_x = r->m->hp.hidden,
                .n = n,
                .n_parts = 3,
                .part = {shared_block_part(r, layer, SL_SLOT_BLOCK_GATE, gate),
                         shared_block_part(r, layer, SL_SLOT_BLOCK_UP, up),
                         shared_block_part(r, layer, SL_SLOT_USE_MLP_DOWN, r->use_down)}});
    const void *x = thin_rows(r, n);
    add_product(r, layer, SL_SLOT_USE_GATE_UP, x, n, gate);
    add_product(r, layer, SL_SLOT_USE_UP_UP, x, n, up);
    be->vt->activate(
        be,
        &(struct sl_op_activate){
            .x = gate, .act = l->act, .n = (int64_t)n * l->intermediate, .out = r->ffn, .up = up});
    shared_block_product(r, layer, SL_SLOT_BLOCK_DOWN, r->ffn, n, r->y);
}

void sl_shared_block_begin(struct sl_run *r, int32_t n)
{
    shared_block_put_half(r, r->x, 1, n);
}

void sl_shared_block(struct sl_run *r, int32_t layer, const struct sl_batch *batch)
{
    const int32_t n = batch->n_tokens, h = r->m->hp.hidden;
    shared_block_put_half(r, r->x, 0, n);
    shared_block_norm(r, r->pair, sl_run_vec(r, layer, SL_SLOT_BLOCK_NORM), 2 * h, n, r->pair_norm);
    shared_block_project(r, layer, n);
    sl_mixer_gqa_heads(r, layer, batch, r->q);
    shared_block_product(r, layer, SL_SLOT_BLOCK_O, r->att, n, r->y);
    shared_block_norm(r, r->y, sl_run_vec(r, layer, SL_SLOT_FFN_NORM), h, n, r->norm);
    shared_block_feed_forward(r, layer, n);
    shared_block_product(r, layer, SL_SLOT_BLOCK_END, sl_run_activations(r, r->y, n, h, r->norm), n,
                         r->state_y);
    r->m->be->vt->add_rmsnorm(
        r->m->be, &(struct sl_op_add_rmsnorm){.x = r->state_y,
                                              .y = r->x,
                                              .w = sl_run_vec(r, layer, SL_SLOT_ATTN_NORM),
                                              .eps = (float)r->m->hp.norm_eps,
                                              .n = n,
                                              .h = h,
                                              .out = r->norm});
}
