/* SPDX-License-Identifier: MIT
 * Several residual streams (AltUp of Gemma 3n). Attention and MLP run on the first; before a layer
 * each stream becomes a mixture of all, by weights that a router makes of the first, and behind it
 * what the layer changed goes to all of them. A layer's own input goes to all but the first. Beside
 * attention there is a product of two thin matrices (Laurel).
 *
 * The first stream is the walk's x. Activations are float32 here: sl_model_load refuses others.
 */
#include "base/check.h"
#include "models/internal.h"

#include <math.h>

static void streams_rmsnorm(struct sl_run *r, const float *x, const float *w, int32_t n, void *out)
{
    const struct sl_model *m = r->m;
    m->be->vt->rmsnorm(
        m->be,
        &(struct sl_op_rmsnorm){
            .x = x, .w = w, .eps = (float)m->hp.norm_eps, .n = n, .h = m->hp.hidden, .out = out});
}

static void streams_linear(struct sl_run *r, const struct sl_weight *w, const void *x, int32_t n,
                           float *out)
{
    r->m->be->vt->linear(
        r->m->be, &(struct sl_op_linear){
                      .x = x, .ld_x = w->n_cols, .w = w, .n = n, .out = out, .ld_out = w->n_rows});
}

/* x += y, or its norm. */
static void streams_add(struct sl_run *r, float *x, float *y, const float *w_y, int32_t n)
{
    const struct sl_model *m = r->m;
    m->be->vt->add_rmsnorm(
        m->be,
        &(struct sl_op_add_rmsnorm){
            .x = x, .y = y, .w_y = w_y, .eps = (float)m->hp.norm_eps, .n = n, .h = m->hp.hidden});
}

static int64_t ld_streams(const struct sl_run *r)
{
    return (int64_t)r->cfg.max_tokens * r->m->hp.hidden;
}

static float *streams_stream(const struct sl_run *r, int32_t idx)
{
    return r->streams + (idx - 1) * ld_streams(r);
}

/* Weights of a row, which slot makes of what the router says of x: to r->stream_coefs. */
static void streams_route(struct sl_run *r, int32_t layer, enum sl_slot slot, const float *x,
                          int32_t n)
{
    struct sl_backend *be = r->m->be;
    const int32_t n_streams = r->m->hp.n_streams;
    streams_rmsnorm(r, x, sl_run_vec(r, layer, SL_SLOT_STREAM_NORM), n, r->norm);
    streams_linear(r, sl_run_mat(r, layer, SL_SLOT_STREAM_ROUTER), r->norm, n, r->stream_route);
    be->vt->activate(be, &(struct sl_op_activate){.x = r->stream_route,
                                                  .act = SL_ACT_TANH,
                                                  .n = (int64_t)n * n_streams,
                                                  .out = r->stream_route});
    streams_linear(r, sl_run_mat(r, layer, slot), r->stream_route, n, r->stream_coefs);
}

void sl_streams_begin(struct sl_run *r, int32_t n)
{
    const struct sl_model *m = r->m;
    streams_rmsnorm(r, r->x, NULL, n, r->norm);
    for (int32_t i = 1; i < m->hp.n_streams; i++) {
        streams_linear(r, &sl_param(m, 0, SL_SLOT_STREAMS_IN)[i - 1].mat, r->norm, n,
                       streams_stream(r, i));
        m->be->vt->match_rms(
            m->be,
            &(struct sl_op_match_rms){
                .x = r->x, .y = streams_stream(r, i), .n = n, .h = m->hp.hidden, .min = 1e-5f});
    }
}

void sl_streams_predict(struct sl_run *r, int32_t layer, int32_t n)
{
    const struct sl_model *m = r->m;
    streams_route(r, layer, SL_SLOT_STREAM_PREDICT, r->x, n);
    m->be->vt->mix_streams(m->be, &(struct sl_op_mix_streams){.x = r->x,
                                                              .others = r->streams,
                                                              .ld_others = ld_streams(r),
                                                              .coefs = r->stream_coefs,
                                                              .n_streams = m->hp.n_streams,
                                                              .n = n,
                                                              .h = m->hp.hidden,
                                                              .keep = r->stream_keep});
    streams_rmsnorm(r, r->x, sl_run_vec(r, layer, SL_SLOT_ATTN_NORM), n, r->norm);
}

void sl_streams_laurel(struct sl_run *r, int32_t layer, int32_t n)
{
    streams_linear(r, sl_run_mat(r, layer, SL_SLOT_LAUREL_LEFT), r->norm, n, r->laurel);
    streams_linear(r, sl_run_mat(r, layer, SL_SLOT_LAUREL_RIGHT), r->laurel, n, r->y);
    streams_add(r, r->x, r->norm, NULL, n);
    streams_add(r, r->x, r->y, sl_run_vec(r, layer, SL_SLOT_LAUREL_NORM), n);
}

void sl_streams_correct(struct sl_run *r, int32_t layer, const float *inputs, int32_t n)
{
    const struct sl_model *m = r->m;
    struct sl_backend *be = m->be;
    streams_route(r, layer, SL_SLOT_STREAM_CORRECT, r->x, n);
    be->vt->correct_streams(
        be, &(struct sl_op_correct_streams){.x = r->x,
                                            .others = r->streams,
                                            .ld_others = ld_streams(r),
                                            .coefs = r->stream_coefs,
                                            .keep = r->stream_keep,
                                            .w = sl_run_vec(r, layer, SL_SLOT_STREAM_SCALE),
                                            .n_streams = m->hp.n_streams,
                                            .n = n,
                                            .h = m->hp.hidden,
                                            .out = r->norm});
    sl_run_layer_input(r, layer, inputs, n);
    streams_rmsnorm(r, r->y, sl_run_vec(r, layer, SL_SLOT_INPUT_OUT_NORM), n, r->norm);
    for (int32_t i = 1; i < m->hp.n_streams; i++)
        streams_add(r, streams_stream(r, i), r->norm, NULL, n);
}

static void streams_gather(struct sl_run *r, const struct sl_batch *b, const float *x, void *out)
{
    r->m->be->vt->gather_rows(
        r->m->be, &(struct sl_op_gather_rows){.x = x,
                                              .rows = b->logit_rows,
                                              .n = b->n_logits,
                                              .row_bytes = (size_t)r->m->hp.hidden * sizeof(float),
                                              .out = out});
}

void sl_streams_end(struct sl_run *r, const struct sl_batch *b)
{
    const struct sl_model *m = r->m;
    const int32_t n = b->n_logits;
    float *sum = r->x;
    streams_gather(r, b, r->x, r->rows);
    streams_rmsnorm(r, r->rows, NULL, n, sum); /* what is not gathered has no use any more */
    for (int32_t i = 1; i < m->hp.n_streams; i++) {
        const bool last = i == m->hp.n_streams - 1;
        streams_gather(r, b, streams_stream(r, i), r->norm);
        streams_linear(r, &sl_param(m, 0, SL_SLOT_STREAMS_OUT)[i - 1].mat, r->norm, n, r->y);
        m->be->vt->match_rms(m->be,
                             &(struct sl_op_match_rms){
                                 .x = r->rows, .y = r->y, .n = n, .h = m->hp.hidden, .min = 1e-5f});
        m->be->vt->add_rmsnorm(m->be, &(struct sl_op_add_rmsnorm){
                                          .x = sum,
                                          .y = r->y,
                                          .w = last ? sl_run_vec(r, 0, SL_SLOT_FINAL_NORM) : NULL,
                                          .eps = (float)m->hp.norm_eps,
                                          .n = n,
                                          .h = m->hp.hidden,
                                          .out = last ? r->norm : NULL,
                                          .x_scale = last ? 1.0f / (float)m->hp.n_streams : 0,
                                      });
    }
}
