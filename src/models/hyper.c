/* SPDX-License-Identifier: MIT
 * Hyper-connections: a row has several residual streams. A sublayer reads one mixture of them and
 * writes to each in a share of its own, while they are mixed; all of these weights come of the row
 * (struct sl_op_hyper_read). They begin as copies of the embedding, and the head reads one mixture,
 * or their mean.
 *
 * A module that predicts further tokens (DeepSeek V4's MTP) reads all streams of its target, and
 * begins with a product of each.
 *
 * r->x is what a sublayer reads, before its norm. The weights are made of the streams as
 * activations; the streams themselves are float32 everywhere.
 */
#include "base/check.h"
#include "models/internal.h"

static int64_t hyper_width(const struct sl_run *r)
{
    return (int64_t)r->m->hp.n_hyper * r->m->hp.hidden;
}

/* r->x and then r->norm of the streams x, act as activations; w, base, scale: the slots. */
static void hyper_mixture(struct sl_run *r, int32_t layer, enum sl_slot w, enum sl_slot norm,
                          const float *x, const void *act, int32_t n)
{
    const struct sl_model *m = r->m;
    const struct sl_weight *mat = sl_run_mat(r, layer, w);
    const bool last = w == SL_SLOT_HYPER_HEAD, mean = sl_param(m, layer, w)->desc == NULL;
    const int32_t n_weights = sl_hyper_weights(m->hp.n_hyper); /* with those that mix streams, */
    /* of which some models have none */
    SL_ASSERT(last || !mean);
    if (!mean)
        m->be->vt->linear(m->be, &(struct sl_op_linear){.x = act,
                                                        .ld_x = hyper_width(r),
                                                        .w = mat,
                                                        .n = n,
                                                        .out = r->hyper_w,
                                                        .ld_out = last ? mat->n_rows : n_weights});
    m->be->vt->hyper_read(m->be, &(struct sl_op_hyper_read){
                                     .x = x,
                                     .w = r->hyper_w,
                                     .base = sl_run_vec(r, layer, (enum sl_slot)(w + 1)),
                                     .scale = sl_run_vec(r, layer, (enum sl_slot)(w + 2)),
                                     .last = last,
                                     .norm_eps = (float)m->hp.norm_eps,
                                     .eps = (float)m->hp.hyper_eps,
                                     .n_iters = m->hp.hyper_iters,
                                     .post_scale = (float)m->hp.hyper_post,
                                     .n = n,
                                     .n_streams = m->hp.n_hyper,
                                     .h = m->hp.hidden,
                                     .out = r->x,
                                 });
    m->be->vt->rmsnorm(m->be, &(struct sl_op_rmsnorm){.x = r->x,
                                                      .w = sl_run_vec(r, layer, norm),
                                                      .eps = (float)m->hp.norm_eps,
                                                      .n = n,
                                                      .h = m->hp.hidden,
                                                      .out = r->norm});
}

/* n rows of r->x to every stream at `to`. */
static void hyper_spread(struct sl_run *r, int32_t n, float *to)
{
    const int32_t h = r->m->hp.hidden;
    struct sl_op_copy_rows copy = {.x = r->x, .ld_x = h, .n = n, .h = h, .ld_out = hyper_width(r)};
    for (int32_t i = 0; i < r->m->hp.n_hyper; i++) {
        copy.out = to + i * h;
        r->m->be->vt->copy_rows(r->m->be, &copy);
    }
}

/* n rows of all streams, as floats. */
static void hyper_copy(struct sl_run *r, const float *x, const int32_t *rows, int32_t n, float *out)
{
    r->m->be->vt->copy_rows(r->m->be, &(struct sl_op_copy_rows){.x = x,
                                                                .ld_x = hyper_width(r),
                                                                .rows = rows,
                                                                .n = n,
                                                                .h = (int32_t)hyper_width(r),
                                                                .out = out,
                                                                .ld_out = hyper_width(r)});
}

/* The streams as activations. */
static void hyper_to_act(struct sl_run *r, int32_t n)
{
    if (r->hyper_act == r->hyper)
        return;
    const struct sl_op_copy_rows copy = {.x = r->hyper,
                                         .ld_x = hyper_width(r),
                                         .n = n,
                                         .h = (int32_t)hyper_width(r),
                                         .out_act = true,
                                         .out = r->hyper_act,
                                         .ld_out = hyper_width(r)};
    r->m->be->vt->copy_rows(r->m->be, &copy);
}

void sl_hyper_begin(struct sl_run *r, int32_t n)
{
    hyper_spread(r, n, r->hyper);
    hyper_to_act(r, n);
}

/* ---------------------------------------------------------------- drafters */

/* out = a product of n rows x, activations so far apart */
static void hyper_product(struct sl_run *r, const void *x, int64_t ld_x, enum sl_slot slot,
                          int32_t n, float *out, int64_t ld_out)
{
    r->m->be->vt->linear(r->m->be, &(struct sl_op_linear){.x = x,
                                                          .ld_x = ld_x,
                                                          .w = sl_run_mat(r, 0, slot),
                                                          .n = n,
                                                          .out = out,
                                                          .ld_out = ld_out});
}

/* Stream i = E norm(embedding) + H norm(stream i of the target). */
void sl_hyper_begin_draft(struct sl_run *r, int32_t n)
{
    const struct sl_model *m = r->m;
    const int32_t h = m->hp.hidden, n_rows = n * m->hp.n_hyper;
    const size_t act = sl_dtype_info(m->be->vt->act_dtype)->block_bytes;
    struct sl_op_rmsnorm norm = {.x = r->x,
                                 .w = sl_run_vec(r, 0, SL_SLOT_DRAFT_EMBED_NORM),
                                 .eps = (float)m->hp.norm_eps,
                                 .n = n,
                                 .h = h,
                                 .out = r->y};
    SL_ASSERT(n <= INT32_MAX / m->hp.n_hyper);
    m->be->vt->rmsnorm(m->be, &norm);
    hyper_product(r, r->y, h, SL_SLOT_DRAFT_EMBED_IN, n, r->x, h);
    hyper_spread(r, n, r->taps_wide);
    hyper_copy(r, r->draft_rows, r->draft_sources, n, r->hyper);
    norm.x = r->hyper;
    norm.w = sl_run_vec(r, 0, SL_SLOT_DRAFT_HIDDEN_NORM);
    norm.n = n_rows;
    norm.out = r->taps_in;
    m->be->vt->rmsnorm(m->be, &norm);
    for (int32_t i = 0; i < m->hp.n_hyper; i++)
        hyper_product(r, (const uint8_t *)r->taps_in + (size_t)(i * h) * act, hyper_width(r),
                      SL_SLOT_DRAFT_JOIN, n, r->hyper + i * h, hyper_width(r));
    m->be->vt->add_rmsnorm(
        m->be, &(struct sl_op_add_rmsnorm){.x = r->hyper, .y = r->taps_wide, .n = n_rows, .h = h});
    hyper_to_act(r, n);
}

void sl_hyper_keep(struct sl_run *r, int32_t n)
{
    hyper_copy(r, r->hyper, NULL, n, r->taps);
}

void sl_hyper_end_draft(struct sl_run *r, int32_t n)
{
    hyper_copy(r, r->hyper_rows, NULL, n, r->hidden);
}

void sl_hyper_read(struct sl_run *r, int32_t layer, bool ffn, int32_t n)
{
    if (ffn)
        hyper_mixture(r, layer, SL_SLOT_HYPER_FFN, SL_SLOT_FFN_NORM, r->hyper, r->hyper_act, n);
    else
        hyper_mixture(r, layer, SL_SLOT_HYPER_ATTN, SL_SLOT_ATTN_NORM, r->hyper, r->hyper_act, n);
}

void sl_hyper_write(struct sl_run *r, int32_t n)
{
    r->m->be->vt->hyper_write(r->m->be, &(struct sl_op_hyper_write){
                                            .x = r->hyper,
                                            .y = r->y,
                                            .w = r->hyper_w,
                                            .n = n,
                                            .n_streams = r->m->hp.n_hyper,
                                            .h = r->m->hp.hidden,
                                            .act = r->hyper_act != r->hyper ? r->hyper_act : NULL});
}

static void hyper_gather(struct sl_run *r, const struct sl_batch *b, const void *x, size_t size,
                         void *out)
{
    r->m->be->vt->gather_rows(
        r->m->be, &(struct sl_op_gather_rows){.x = x,
                                              .rows = b->logit_rows,
                                              .n = b->n_logits,
                                              .row_bytes = (size_t)hyper_width(r) * size,
                                              .out = out});
}

void sl_hyper_end(struct sl_run *r, const struct sl_batch *b)
{
    const size_t act = sl_dtype_info(r->m->be->vt->act_dtype)->block_bytes;
    hyper_gather(r, b, r->hyper, sizeof *r->hyper, r->hyper_rows);
    if (r->hyper_act != r->hyper)
        hyper_gather(r, b, r->hyper_act, act, r->hyper_rows_act);
    hyper_mixture(r, 0, SL_SLOT_HYPER_HEAD, SL_SLOT_FINAL_NORM, r->hyper_rows, r->hyper_rows_act,
                  b->n_logits);
}
