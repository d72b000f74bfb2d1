/* SPDX-License-Identifier: MIT
 * Which experts a row goes to, and what each of them weighs; and what those give that give back
 * what they read.
 */
#include "cpu/backend.h"

#include "base/check.h"
#include "base/limits.h"

#include <math.h>

struct job {
    const struct sl_cpu *cpu;
    const struct sl_op_route *a;
};

/* A row while its experts are chosen. */
struct row {
    float score[SL_MAX_EXPERTS];  /* what an expert weighs, not yet divided by a sum */
    float choice[SL_MAX_EXPERTS]; /* what it is chosen by */
    bool out[SL_MAX_EXPERTS];     /* chosen already, or in a group that is left out */
};

/* The index of the largest value that is not out; the first of equals. What is not a number comes
 * behind all numbers, so that a broken row still has top_k different experts. */
static int32_t best_of(const float *x, const bool *out, int32_t n)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (!out[i] && (best < 0 || x[i] > x[best] || (isnan(x[best]) && !isnan(x[i]))))
            best = i;
    SL_ASSERT(best >= 0);
    return best;
}

/* Fills r->score; returns the sum that softmax divides by, which is not done yet. */
static float route_softmax(const struct job *j, const float *logits, int32_t n, struct row *r)
{
    float max = -INFINITY, sum = 0;
    for (int32_t e = 0; e < n; e++)
        max = logits[e] > max ? logits[e] : max;
    for (int32_t e = 0; e < n; e++) {
        r->score[e] = j->cpu->k.exp(logits[e] - max);
        sum += r->score[e];
    }
    return sum;
}

static void choose_by_logits(const struct sl_op_route *a, const float *logits, struct row *r)
{
    for (int32_t e = 0; e < a->n_experts; e++) {
        r->choice[e] = logits[e];
        r->out[e] = false;
    }
}

/* sqrt(ln(1 + exp(x))); the C library's log, as ln(1 + exp(x)) = max(x, 0) + ln(1 + exp(-|x|)). */
static float route_root_softplus(const struct job *j, float x)
{
    const float more = (float)log1p((double)j->cpu->k.exp(-fabsf(x)));
    return sqrtf((x > 0 ? x : 0) + more);
}

/* Fills the row; returns what weights are divided by if not by their own sum. Scores keep the order
 * of logits, so without a bias these choose, also among sigmoids that all round to 1; nothing is
 * divided then, unless scores of a group are added up. */
static float score_experts(const struct job *j, const float *logits, struct row *r)
{
    const struct sl_op_route *a = j->a;
    const bool root = a->rule.score == SL_ROUTE_ROOT_SOFTPLUS;
    const bool alone = a->rule.score == SL_ROUTE_SIGMOID || root; /* a logit is a score */
    const bool by_logit = a->bias == NULL && a->rule.group_top <= 1;
    if (a->rule.score == SL_ROUTE_MIXER) {
        choose_by_logits(a, logits, r);
        return 1;
    }
    float sum = alone ? 1 : route_softmax(j, logits, a->n_experts, r);
    for (int32_t e = 0; e < a->n_experts; e++) {
        if (alone)
            r->score[e] =
                root ? route_root_softplus(j, logits[e]) : 1 / (1 + j->cpu->k.exp(-logits[e]));
        else if (!by_logit)
            r->score[e] /= sum;
        r->choice[e] = by_logit ? logits[e] : r->score[e] + (a->bias != NULL ? a->bias[e] : 0);
        r->out[e] = false;
    }
    return by_logit ? sum : 1; /* of scores alone the sum is 1 */
}

/* The sum of the largest values of a group, largest first. */
static float group_score(const float *choice, int32_t size, int32_t n_top)
{
    bool out[SL_MAX_EXPERTS] = {false};
    float sum = 0;
    for (int32_t i = 0; i < n_top; i++) {
        const int32_t best = best_of(choice, out, size);
        out[best] = true;
        sum += choice[best];
    }
    return sum;
}

static void leave_groups_out(const struct sl_op_route *a, struct row *r)
{
    const int32_t size = a->n_experts / a->rule.n_groups;
    float score[SL_MAX_EXPERTS];
    bool in[SL_MAX_EXPERTS] = {false};
    for (int32_t g = 0; g < a->rule.n_groups; g++)
        score[g] = group_score(r->choice + g * size, size, a->rule.group_top);
    for (int32_t i = 0; i < a->rule.top_groups; i++)
        in[best_of(score, in, a->rule.n_groups)] = true;
    for (int32_t e = 0; e < a->n_experts; e++)
        r->out[e] = !in[e / size];
}

/* SparseMixer: what is left over is no part of the softmax, nor is what is far below. */
static float mixer_weight(const struct job *j, const float *logits, const struct row *r, int32_t e)
{
    const float max = logits[e];
    float sum = 0;
    for (int32_t i = 0; i < j->a->n_experts; i++) {
        const float size = fabsf(logits[i]) > max ? fabsf(logits[i]) : max;
        if (i == e || !(r->out[i] || (max - logits[i]) / size > j->a->rule.near))
            sum += j->cpu->k.exp(logits[i] - max);
    }
    return 1 / sum;
}

static void route_row(void *arg, uint32_t t, int thread_idx)
{
    const struct job *j = arg;
    const struct sl_op_route *a = j->a;
    int32_t *experts = a->experts + (size_t)t * (size_t)a->top_k;
    float *weights = a->weights + (size_t)t * (size_t)a->top_k, sum = 0;
    const float *logits = a->logits + (size_t)t * (size_t)a->n_experts;
    const bool mixer = a->rule.score == SL_ROUTE_MIXER;
    struct row r;
    (void)thread_idx;
    const float whole = score_experts(j, logits, &r);
    if (a->rule.n_groups > 1)
        leave_groups_out(a, &r);
    for (int32_t s = 0; s < a->top_k; s++) {
        const int32_t e = a->of_token != NULL ? a->of_token[(int64_t)a->tokens[t] * a->top_k + s]
                                              : best_of(r.choice, r.out, a->n_experts);
        SL_ASSERT(e >= 0 && e < a->n_experts);
        experts[s] = e;
        weights[s] = mixer ? mixer_weight(j, logits, &r, e) : r.score[e];
        r.out[e] = true;
        sum += r.score[e];
    }
    sum = !a->rule.renormalize ? whole : sum < a->rule.sum_min ? a->rule.sum_min : sum;
    for (int32_t s = 0; s < a->top_k; s++) {
        weights[s] = weights[s] / sum * a->rule.scale;
        if (a->expert_scale != NULL)
            weights[s] *= a->expert_scale[experts[s]];
    }
}

void sl_cpu_route(struct sl_backend *be, const struct sl_op_route *a)
{
    struct job j = {sl_cpu(be), a};
    SL_ASSERT(sl_route_fits(a->n_experts, a->top_k, &a->rule));
    SL_ASSERT(a->rule.score != SL_ROUTE_MIXER || a->bias == NULL);
    SL_ASSERT(a->of_token == NULL || (a->tokens != NULL && a->bias == NULL &&
                                      a->rule.n_groups == 1 && a->rule.score != SL_ROUTE_MIXER));
    sl_cpu_run(sl_cpu(be), route_row, &j, a->n, (int64_t)a->n * a->n_experts * a->top_k);
}

static void pass_row(void *arg, uint32_t t, int thread_idx)
{
    const struct sl_op_pass_experts *a = arg;
    const float *x = (const float *)a->x + (int64_t)t * a->h;
    float *out = a->out + (int64_t)t * a->h, sum = 0;
    (void)thread_idx;
    for (int64_t s = (int64_t)t * a->top_k; s < (int64_t)(t + 1) * a->top_k; s++)
        sum += a->experts[s] >= a->first ? a->weights[s] : 0;
    for (int32_t d = 0; d < a->h; d++)
        out[d] = sum * x[d];
}

void sl_cpu_pass_experts(struct sl_backend *be, const struct sl_op_pass_experts *a)
{
    struct sl_op_pass_experts own = *a;
    SL_ASSERT(a->first > 0 && a->top_k >= 1 && a->h > 0);
    sl_cpu_run(sl_cpu(be), pass_row, &own, a->n, (int64_t)a->n * a->h);
}
