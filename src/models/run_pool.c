/* SPDX-License-Identifier: MIT
 * From rows of hidden state to what a model of embeddings or scores gives: pooled, and normed or
 * read by the classifier. What goes through here is a row for each text, so that it takes no time.
 */
#include "base/check.h"
#include "models/internal.h"

#include <math.h>

static void pool(struct sl_run *r, const float *x, const struct sl_span *spans, int32_t n,
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

static void project(struct sl_run *r, enum sl_slot w, enum sl_slot bias, const float *x, int32_t n,
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

static void classify(struct sl_run *r, const float *x, const struct sl_span *spans, int32_t n)
{
    const struct sl_model *m = r->m;
    const int32_t n_out = m->facts.n_out;
    float *rows = r->rows;
    pool(r, x, spans, n, false, rows);
    if (sl_param(m, 0, SL_SLOT_POOLER)->loaded) {
        project(r, SL_SLOT_POOLER, SL_SLOT_POOLER_BIAS, rows, n, r->y);
        rows = r->y;
        m->be->vt->activate(
            m->be, &(struct sl_op_activate){
                       .x = rows, .act = SL_ACT_TANH, .n = (int64_t)n * m->hp.hidden, .out = rows});
    }
    project(r, SL_SLOT_CLASSIFIER, SL_SLOT_CLASSIFIER_BIAS, rows, n, r->logits);
    if (m->yes_no)
        sl_run_scale_logits(r, (int64_t)n * 2);
    for (int32_t i = 0; i < n; i++) {
        float *out = r->logits + (int64_t)i * n_out;
        if (m->yes_no) { /* two logits to a row, one score; a row is read before it is written */
            const float *two = r->logits + (int64_t)i * 2;
            const float difference = two[1] - two[0];
            scores_of(SL_SCORE_SIGMOID, &difference, 1, out);
        } else {
            scores_of(m->pool.act, out, n_out, out);
        }
    }
}

void sl_run_pool(struct sl_run *r, const float *x, const struct sl_span *spans, int32_t n)
{
    SL_ASSERT(r->m->facts.task != SL_TASK_GENERATE && n <= r->cfg.max_logits);
    if (r->m->facts.task == SL_TASK_SCORE)
        classify(r, x, spans, n);
    else
        pool(r, x, spans, n, r->m->pool.normalize, r->logits);
}
