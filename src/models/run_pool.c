/* SPDX-License-Identifier: MIT
 * From rows of hidden state to what a model of embeddings or scores gives: pooled, and normed or
 * read by the classifier. What goes through here is a row for each text, so that it takes no time.
 */
#include "base/check.h"
#include "models/internal.h"

#include <math.h>
#include <string.h>

static void pool(struct sl_run *r, const void *x, const struct sl_span *spans, int32_t n,
                 bool normalize, float *out)
{
    struct sl_backend *be = r->m->be;
    be->vt->pool(be, &(struct sl_op_pool){
                         .x = x,
                         .spans = spans,
                         .n = n,
                         .h = r->m->hp.hidden,
                         .kind = r->m->pool.kind,
                         .normalize = normalize,
                         .out = out,
                     });
}

/* x: activations. */
static void project(struct sl_run *r, enum sl_slot w, enum sl_slot bias, const void *x, int32_t n,
                    float *out)
{
    struct sl_backend *be = r->m->be;
    const struct sl_weight *mat = &sl_param(r->m, 0, w)->mat;
    be->vt->linear(be, &(struct sl_op_linear){
                           .x = x,
                           .ld_x = mat->n_cols,
                           .w = mat,
                           .bias = sl_param(r->m, 0, bias)->vec,
                           .n = n,
                           .out = out,
                           .ld_out = mat->n_rows,
                       });
}

/* n rows of floats to r->norm, as activations: nobody needs the last layer's any more. */
static void *activations(struct sl_run *r, const float *x, int32_t n)
{
    struct sl_backend *be = r->m->be;
    be->vt->rmsnorm(be,
                    &(struct sl_op_rmsnorm){.x = x, .n = n, .h = r->m->hp.hidden, .out = r->norm});
    return r->norm;
}

static void classify(struct sl_run *r, const void *x, const struct sl_span *spans, int32_t n)
{
    const struct sl_model *m = r->m;
    pool(r, x, spans, n, false, r->rows);
    void *rows = activations(r, r->rows, n);
    if (sl_param(m, 0, SL_SLOT_POOLER)->loaded) {
        project(r, SL_SLOT_POOLER, SL_SLOT_POOLER_BIAS, rows, n, r->y);
        m->be->vt->activate(
            m->be, &(struct sl_op_activate){
                       .x = r->y, .act = SL_ACT_TANH, .n = (int64_t)n * m->hp.hidden, .out = rows});
    }
    project(r, SL_SLOT_CLASSIFIER, SL_SLOT_CLASSIFIER_BIAS, rows, n, r->pooled);
    if (m->yes_no)
        sl_run_scale_logits(r, r->pooled, (int64_t)n * 2);
}

/* In double: how sure a score is must not depend on how an exponential was rounded. */
static void scores_of(enum sl_score_act act, const float *logits, int32_t n, float *out)
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
    if (f->task == SL_TASK_EMBED) {
        memmove(out, row, (size_t)f->n_out * sizeof *out);
    } else if (m->yes_no) {
        const float difference = row[1] - row[0];
        scores_of(SL_SCORE_SIGMOID, &difference, 1, out);
    } else {
        scores_of(m->pool.act, row, f->n_out, out);
    }
}

void sl_run_pool(struct sl_run *r, const void *x, const struct sl_span *spans, int32_t n)
{
    const struct sl_model *m = r->m;
    const struct sl_model_facts *f = &m->facts;
    SL_ASSERT(f->task != SL_TASK_GENERATE && n <= r->cfg.max_logits);
    if (f->task == SL_TASK_EMBED) {
        pool(r, x, spans, n, m->pool.normalize, r->pooled);
        return;
    }
    classify(r, x, spans, n);
    for (int32_t i = 0; i < n && m->be->vt->device == NULL; i++)
        sl_model_pooled(m, r->pooled + (int64_t)i * f->n_row, r->pooled + (int64_t)i * f->n_out);
}
