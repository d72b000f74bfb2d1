/* SPDX-License-Identifier: MIT
 * Layers with a recurrent state: causal convolutions, the gated delta rule, state space models, and
 * the norm with a gate behind them. Token after token, in the order that ops.h gives, so that a
 * text's bits do not depend on how it is cut into steps; items are heads or channels of a span.
 */
#include "base/check.h"
#include "cpu/backend.h"

#include <math.h>
#include <string.h>

#define CONV_CHANNELS 64 /* of an item */

struct rec_job {
    struct sl_cpu *cpu;
    const void *a;
    uint32_t n_parts; /* items of a span */
};

/* ---------------------------------------------------------------- pages */

static float *page_of(const struct sl_state_view *v, int32_t page)
{
    SL_DCHECK(page >= 0);
    return (float *)(void *)(v->pool + (size_t)page * v->page_bytes + v->offset);
}

struct rec_span {
    const struct sl_state_view *view;
    const struct sl_span *span;
    const int32_t *table;
};

static struct rec_span span_of(const struct sl_batch *b, const struct sl_state_view *v, uint32_t i)
{
    const struct sl_span *s = &b->spans[i];
    return (struct rec_span){v, s, sl_batch_tables(b, v->group) + s->table_idx};
}

/* Where the span begins; NULL: at zeros. */
static const float *begin_of(const struct rec_span *s)
{
    if (s->span->pos == 0)
        return NULL;
    return page_of(s->view, s->table[(s->span->pos - 1) / s->view->block_size]);
}

/* Where the state behind token t of the span is stored; NULL: nowhere. */
static float *store_of(const struct rec_span *s, int32_t t)
{
    const int32_t pos = s->span->pos + t, block = pos / s->view->block_size;
    const bool last = t == s->span->n - 1;
    SL_DCHECK(!last || s->table[block] >= 0);
    if ((!last && (pos + 1) % s->view->block_size != 0) || s->table[block] < 0)
        return NULL;
    return page_of(s->view, s->table[block]);
}

static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* ---------------------------------------------------------------- convolutions */

static void conv_part(void *arg, uint32_t item, int thread_idx)
{
    const struct rec_job *j = arg;
    const struct sl_op_short_conv *a = j->a;
    const struct rec_span s = span_of(a->batch, &a->state, item / j->n_parts);
    const int32_t c0 = (int32_t)(item % j->n_parts) * CONV_CHANNELS;
    const int32_t n = SL_MIN(a->n_channels - c0, CONV_CHANNELS), taps = a->n_taps;
    float in[SL_MAX_CONV_TAPS][CONV_CHANNELS]; /* a ring by position */
    const float *begin = begin_of(&s);
    (void)thread_idx;
    for (int32_t i = 0; i < taps - 1; i++)
        for (int32_t c = 0; c < n; c++)
            in[i][c] = begin != NULL ? begin[(int64_t)i * a->n_channels + c0 + c] : 0;
    for (int32_t t = 0; t < s.span->n; t++) {
        const int64_t row = s.span->first + t, at = row * a->ld + c0;
        float *now = in[(t + taps - 1) % taps];
        float *out = (a->out != NULL ? a->out : (float *)a->act) + row * a->n_channels + c0;
        for (int32_t c = 0; c < n; c++)
            now[c] = a->pre != NULL ? a->x[at + c] * a->pre[at + c] : a->x[at + c];
        for (int32_t c = 0; c < n; c++) {
            float sum = a->bias != NULL ? a->bias[c0 + c] : 0;
            for (int32_t i = 0; i < taps; i++)
                sum += a->w[(int64_t)i * a->n_channels + c0 + c] * in[(t + i) % taps][c];
            if (a->silu)
                sum *= sigmoid(sum);
            out[c] = a->post != NULL ? sum * a->post[at + c] : sum;
        }
        float *store = store_of(&s, t);
        for (int32_t i = 0; i < taps - 1 && store != NULL; i++)
            memcpy(store + (int64_t)i * a->n_channels + c0, in[(t + 1 + i) % taps],
                   (size_t)n * sizeof(float));
    }
}

void sl_cpu_short_conv(struct sl_backend *be, const struct sl_op_short_conv *a)
{
    struct rec_job j = {sl_cpu(be), a, SL_CEIL_DIV((uint32_t)a->n_channels, CONV_CHANNELS)};
    SL_ASSERT(a->n_taps >= 2 && a->n_taps <= SL_MAX_CONV_TAPS);
    sl_cpu_run(j.cpu, conv_part, &j, (uint32_t)a->batch->n_spans * j.n_parts,
               (int64_t)a->batch->n_tokens * a->n_channels * (a->n_taps + 8));
}

/* ---------------------------------------------------------------- the gated delta rule */

/* x of length 1, times scale. */
static void unit(const float *x, int32_t n, float eps, float scale, float *out)
{
    float sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    const float by = scale / sqrtf(sum + eps);
    for (int32_t i = 0; i < n; i++)
        out[i] = x[i] * by;
}

static void delta_step(const struct sl_op_delta_rule *a, int64_t row, int32_t head, float *state)
{
    const int32_t k_head = head / (a->n_heads / a->n_k_heads), kd = a->k_dim, vd = a->v_dim;
    const float *v = a->v + row * a->ld + (int64_t)head * vd;
    const int64_t at = row * a->n_heads + head;
    float *out = a->out + at * vd;
    float q[SL_MAX_STATE_DIM], k[SL_MAX_STATE_DIM], decay[SL_MAX_STATE_DIM],
        delta[SL_MAX_STATE_DIM] = {0};
    unit(a->q + row * a->ld + (int64_t)k_head * kd, kd, a->l2_eps, a->scale, q);
    unit(a->k + row * a->ld + (int64_t)k_head * kd, kd, a->l2_eps, 1, k);
    for (int32_t i = 0; i < (a->by_row ? kd : 1); i++) {
        const float in = a->by_row ? a->decay_in[at * kd + i] : a->decay_in[at];
        const float bias = a->by_row ? a->dt_bias[head * kd + i] : a->dt_bias[head];
        decay[i] = expf(a->a[head] * softplus(in + bias));
    }
    for (int32_t i = 1; i < kd && !a->by_row; i++)
        decay[i] = decay[0];
    const float beta = a->beta_scale * sigmoid(a->beta_in[at]);
    for (int32_t i = 0; i < kd; i++)
        for (int32_t d = 0; d < vd; d++) {
            float *s = &state[(int64_t)i * vd + d];
            *s *= decay[i];
            delta[d] += k[i] * *s;
        }
    for (int32_t d = 0; d < vd; d++) {
        delta[d] = beta * (v[d] - delta[d]);
        out[d] = 0;
    }
    for (int32_t i = 0; i < kd; i++)
        for (int32_t d = 0; d < vd; d++) {
            float *s = &state[(int64_t)i * vd + d];
            *s += k[i] * delta[d];
            out[d] += q[i] * *s;
        }
}

/* A span's last page is where its state is computed. */
static float *working_state(const struct rec_span *s, int64_t first, int64_t n)
{
    const float *begin = begin_of(s);
    float *state = store_of(s, s->span->n - 1) + first;
    if (begin == NULL)
        memset(state, 0, (size_t)n * sizeof(float));
    else if (begin + first != state)
        memcpy(state, begin + first, (size_t)n * sizeof(float));
    return state;
}

static void delta_head(void *arg, uint32_t item, int thread_idx)
{
    const struct rec_job *j = arg;
    const struct sl_op_delta_rule *a = j->a;
    const struct rec_span s = span_of(a->batch, &a->state, item / j->n_parts);
    const int32_t head = (int32_t)(item % j->n_parts);
    const int64_t n = (int64_t)a->k_dim * a->v_dim, first = head * n;
    float *state = working_state(&s, first, n);
    (void)thread_idx;
    for (int32_t t = 0; t < s.span->n; t++) {
        delta_step(a, s.span->first + t, head, state);
        float *store = t < s.span->n - 1 ? store_of(&s, t) : NULL;
        if (store != NULL)
            memcpy(store + first, state, (size_t)n * sizeof(float));
    }
}

void sl_cpu_delta_rule(struct sl_backend *be, const struct sl_op_delta_rule *a)
{
    struct rec_job j = {sl_cpu(be), a, (uint32_t)a->n_heads};
    SL_ASSERT(a->k_dim <= SL_MAX_STATE_DIM && a->v_dim <= SL_MAX_STATE_DIM &&
              a->n_heads % a->n_k_heads == 0);
    sl_cpu_run(j.cpu, delta_head, &j, (uint32_t)a->batch->n_spans * j.n_parts,
               (int64_t)a->batch->n_tokens * a->n_heads * a->k_dim * a->v_dim * 4);
}

/* ---------------------------------------------------------------- state space models */

static void ssm_step(const struct sl_op_ssm *a, int64_t row, int32_t head, float *state)
{
    const int32_t dim = a->head_dim, group = head / (a->n_heads / a->n_groups);
    const int64_t stride = (int64_t)a->n_heads * dim; /* from one value of the state to the next */
    const float *x = a->x + row * a->ld_x + (int64_t)head * dim;
    const float *b = a->b + row * a->ld_bc + (int64_t)group * a->n_state;
    const float *c = a->c + row * a->ld_bc + (int64_t)group * a->n_state;
    const float bias = a->dt_bias != NULL ? a->dt_bias[head] : 0;
    const float dt =
        fminf(fmaxf(softplus(a->dt_in[row * a->ld_dt + head] + bias), a->dt_min), a->dt_max);
    float *out = a->out + row * stride + (int64_t)head * dim;
    float decay = a->by_state ? 0 : expf(dt * a->a[head]);
    memset(out, 0, (size_t)dim * sizeof(float));
    for (int32_t s = 0; s < a->n_state; s++) {
        float *h = state + s * stride;
        if (a->by_state)
            decay = expf(dt * a->a[(int64_t)s * a->n_heads + head]);
        for (int32_t i = 0; i < dim; i++) {
            h[i] = decay * h[i] + dt * x[i] * b[s];
            out[i] += h[i] * c[s];
        }
    }
    for (int32_t i = 0; i < dim && a->d != NULL; i++)
        out[i] += a->d[head] * x[i];
}

static void copy_head(const struct sl_op_ssm *a, const float *from, float *to)
{
    const int64_t stride = (int64_t)a->n_heads * a->head_dim;
    for (int32_t s = 0; s < a->n_state; s++) {
        if (from == NULL)
            memset(to + s * stride, 0, (size_t)a->head_dim * sizeof(float));
        else
            memcpy(to + s * stride, from + s * stride, (size_t)a->head_dim * sizeof(float));
    }
}

static void ssm_head(void *arg, uint32_t item, int thread_idx)
{
    const struct rec_job *j = arg;
    const struct sl_op_ssm *a = j->a;
    const struct rec_span s = span_of(a->batch, &a->state, item / j->n_parts);
    const int32_t head = (int32_t)(item % j->n_parts);
    const int64_t first = (int64_t)head * a->head_dim;
    const float *begin = begin_of(&s);
    float *state = store_of(&s, s.span->n - 1) + first;
    (void)thread_idx;
    if (begin == NULL || begin + first != state)
        copy_head(a, begin == NULL ? NULL : begin + first, state);
    for (int32_t t = 0; t < s.span->n; t++) {
        ssm_step(a, s.span->first + t, head, state);
        float *store = t < s.span->n - 1 ? store_of(&s, t) : NULL;
        if (store != NULL)
            copy_head(a, state, store + first);
    }
}

void sl_cpu_ssm(struct sl_backend *be, const struct sl_op_ssm *a)
{
    struct rec_job j = {sl_cpu(be), a, (uint32_t)a->n_heads};
    SL_ASSERT(a->n_heads % a->n_groups == 0 && (!a->by_state || a->head_dim == 1));
    sl_cpu_run(j.cpu, ssm_head, &j, (uint32_t)a->batch->n_spans * j.n_parts,
               (int64_t)a->batch->n_tokens * a->n_heads * a->head_dim * a->n_state * 4);
}

/* ---------------------------------------------------------------- the norm behind */

static void gated_group(const struct sl_op_gated_norm *a, const float *x, const float *gate,
                        const float *w, float *out)
{
    float sum = 0;
    for (int32_t i = 0; i < a->dim; i++) {
        const float open = gate == NULL ? 1 : (a->sigmoid ? 1 : gate[i]) * sigmoid(gate[i]);
        out[i] = a->gate_first || a->bare ? x[i] * open : x[i];
        sum += out[i] * out[i];
    }
    if (a->bare)
        return;
    const float by = 1 / sqrtf(sum / (float)a->dim + a->eps);
    for (int32_t i = 0; i < a->dim; i++) {
        out[i] *= by;
        out[i] *= w != NULL ? w[i] : 1;
        if (!a->gate_first && gate != NULL)
            out[i] *= (a->sigmoid ? 1 : gate[i]) * sigmoid(gate[i]);
    }
}

static void gated_row(void *arg, uint32_t t, int thread_idx)
{
    const struct rec_job *j = arg;
    const struct sl_op_gated_norm *a = j->a;
    (void)thread_idx;
    for (int32_t g = 0; g < a->n_groups; g++) {
        const int64_t at = (int64_t)g * a->dim;
        gated_group(a, a->x + (int64_t)t * a->n_groups * a->dim + at,
                    a->gate != NULL ? a->gate + (int64_t)t * a->ld_gate + at : NULL,
                    a->w != NULL ? a->w + (a->shared_w ? 0 : at) : NULL,
                    (float *)a->out + (int64_t)t * a->ld_out + at);
    }
}

void sl_cpu_gated_norm(struct sl_backend *be, const struct sl_op_gated_norm *a)
{
    struct rec_job j = {sl_cpu(be), a, 1};
    sl_cpu_run(j.cpu, gated_row, &j, (uint32_t)a->n, 24 * (int64_t)a->n * a->n_groups * a->dim);
}
