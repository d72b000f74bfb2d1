/* SPDX-License-Identifier: MIT
 * From rows of hidden state to what a model of embeddings or scores gives: pooled, and normed or
 * read by the classifier. What goes through here is a row for each text, so that it takes no time.
 */
#include "base/check.h"
#include "models/internal.h"

#include <math.h>
#include <string.h>

static void run_pool_pool(struct sl_run *r, const void *x, const struct sl_span *spans, int32_t n,
                          int32_t h, bool normalize, float *out)
{
    struct sl_backend *be = r->m->be;
    be->vt->pool(be, &(struct sl_op_pool){
                         .x = x,
                         .spans = spans,
                         .n = n,
                         .h = h,
                         .kind = r->m->pool.kind,
                         .normalize = normalize,
                         .out = out,
                     });
}

/* x: activations. */
static void run_pool_project(struct sl_run *r, const struct sl_param *w,
                             const struct sl_param *bias, const void *x, int32_t n, float *out)
{
    struct sl_backend *be = r->m->be;
    be->vt->linear(be, &(struct sl_op_linear){
                           .x = x,
                           .ld_x = w->mat.n_cols,
                           .w = &w->mat,
                           .bias = bias->vec,
                           .n = n,
                           .out = out,
                           .ld_out = w->mat.n_rows,
                       });
}

/* n rows of h floats to out, as activations. */
static void *run_pool_activations(struct sl_run *r, const float *x, int32_t n, int32_t h, void *out)
{
    struct sl_backend *be = r->m->be;
    be->vt->rmsnorm(be, &(struct sl_op_rmsnorm){.x = x, .n = n, .h = h, .out = out});
    return out;
}

/* Rows x through the Dense modules: activations of the last one's width. */
static const void *run_dense(struct sl_run *r, const void *x, int32_t n)
{
    struct sl_backend *be = r->m->be;
    for (int32_t i = 0; i < r->m->pool.n_dense; i++) {
        const struct sl_dense *d = &r->m->pool.dense[i];
        run_pool_project(r, sl_dense_param(r->m, i, false), sl_dense_param(r->m, i, true), x, n,
                         r->dense);
        if (d->activates)
            be->vt->activate(be, &(struct sl_op_activate){.x = r->dense,
                                                          .act = d->act,
                                                          .n = (int64_t)n * d->n_out,
                                                          .out = r->dense_in});
        else
            run_pool_activations(r, r->dense, n, d->n_out, r->dense_in);
        x = r->dense_in;
    }
    return x;
}

/* n: texts, or rows where each has an embedding. */
static void run_pool_embed(struct sl_run *r, const void *x, const struct sl_span *spans, int32_t n)
{
    const struct sl_model *m = r->m;
    const int32_t h = m->hp.hidden;
    if (m->facts.task == SL_TASK_TOKEN_EMBED) {
        spans = NULL;
    } else if (m->pool.n_dense > 0) {
        run_pool_pool(r, x, spans, n, h, false, r->rows);
        x = run_pool_activations(r, r->rows, n, h, r->dense_in);
        spans = NULL;
    }
    run_pool_pool(r, run_dense(r, x, n), spans, n, m->facts.n_out, m->pool.normalize, r->pooled);
}

static void run_pool_classify(struct sl_run *r, const void *x, const struct sl_span *spans,
                              int32_t n)
{
    const struct sl_model *m = r->m;
    run_pool_pool(r, x, spans, n, m->hp.hidden, false, r->rows);
    /* nobody needs the last layer's any more */
    void *rows = run_pool_activations(r, r->rows, n, m->hp.hidden, r->norm);
    if (sl_param(m, 0, SL_SLOT_POOLER)->loaded) {
        run_pool_project(r, sl_param(m, 0, SL_SLOT_POOLER), sl_param(m, 0, SL_SLOT_POOLER_BIAS),
                         rows, n, r->y);
        m->be->vt->activate(
            m->be, &(struct sl_op_activate){
                       .x = r->y, .act = SL_ACT_TANH, .n = (int64_t)n * m->hp.hidden, .out = rows});
    }
    run_pool_project(r, sl_param(m, 0, SL_SLOT_CLASSIFIER), sl_param(m, 0, SL_SLOT_CLASSIFIER_BIAS),
                     rows, n, r->pooled);
    if (m->yes_no)
        sl_run_scale_logits(r, r->pooled, (int64_t)n * 2);
}

/* In double: how sure a score is must not depend on how an exponential was rounded. */
static void run_pool_scores_of(enum sl_score_act act, const float *logits, int32_t n, float *out)
{
    double max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++)
        max = fmax(max, (double)logits[i]);
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    for (int32_t i = 0; i < n; i++) {
        double x = (double)logits[i];
        if (act == SL_SCORE_SIGMOID)
            x = 1 / (1 + exp(-x));
        else if (act == SL_SCORE_SOFTMAX)
            x = exp(x - max) / sum;
        out[i] = (float)x;
    }
}

void sl_model_pooled(const struct sl_model *m, const float *row, float *out)
{
    const struct sl_model_facts *f = &m->facts;
    SL_ASSERT(f->task != SL_TASK_GENERATE && f->n_row >= f->n_out);
    if (f->task != SL_TASK_SCORE) {
        memmove(out, row, (size_t)f->n_out * sizeof *out);
    } else if (m->yes_no) {
        const float difference = row[1] - row[0];
        run_pool_scores_of(SL_SCORE_SIGMOID, &difference, 1, out);
    } else {
        run_pool_scores_of(m->pool.act, row, f->n_out, out);
    }
}

void sl_run_pool(struct sl_run *r, const void *x, const struct sl_span *spans, int32_t n)
{
    const struct sl_model *m = r->m;
    const struct sl_model_facts *f = &m->facts;
    SL_ASSERT(f->task != SL_TASK_GENERATE);
    SL_ASSERT(n <= (f->task == SL_TASK_TOKEN_EMBED ? r->cfg.max_tokens : r->cfg.max_logits));
    if (f->task != SL_TASK_SCORE) {
        run_pool_embed(r, x, spans, n);
        return;
    }
    run_pool_classify(r, x, spans, n);
    for (int32_t i = 0; i < n && m->be->vt->device == NULL; i++)
        sl_model_pooled(m, r->pooled + (int64_t)i * f->n_row, r->pooled + (int64_t)i * f->n_out);
}
