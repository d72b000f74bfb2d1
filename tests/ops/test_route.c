/* SPDX-License-Identifier: MIT
 * The choice of experts on the CPU against a count in double, by every rule, for every instruction
 * set and number of threads.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cpu/cpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N_EXPERTS = 36, TOP_K = 5, ROWS = 9 };

static const struct sl_route_rule plain = {
    .scale = 1, .n_groups = 1, .top_groups = 1, .group_top = 1};

static const enum sl_cpu_isa isas[] = {SL_ISA_C, SL_ISA_AVX2, SL_ISA_AVX512};
static struct sl_backend *backends[2 * SL_COUNT(isas)]; /* with one and with three threads */
static int n_backends;

static int create_backends(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(isas); i++) {
        for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
            struct sl_error err = {0};
            const struct sl_cpu_config cfg = {.n_threads = n_threads, .isa = isas[i]};
            if (sl_cpu_create(&cfg, &backends[n_backends], &err) == 0)
                n_backends++;
            else if (i == 0)
                fail_msg("%s", err.msg);
            else
                printf("skip: %s\n", err.msg);
        }
    }
    return 0;
}

static int destroy_backends(void **state)
{
    (void)state;
    while (n_backends > 0) {
        n_backends--;
        backends[n_backends]->vt->destroy(backends[n_backends]);
    }
    return 0;
}

static float *floats(struct sl_rng *rng, size_t n, double scale)
{
    float *x = sl_malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(sl_rng_normal(rng) * scale);
    return x;
}

/* What an expert of a row weighs before weights are divided, and what it is chosen by. */
static void scores_of(const struct sl_op_route *a, const float *logits, double *score,
                      double *choice)
{
    double max = -INFINITY, sum = 0;
    for (int32_t e = 0; e < a->n_experts; e++)
        max = fmax(max, (double)logits[e]);
    for (int32_t e = 0; e < a->n_experts; e++)
        sum += exp((double)logits[e] - max);
    for (int32_t e = 0; e < a->n_experts; e++) {
        const double x = (double)logits[e];
        score[e] = a->rule.score == SL_ROUTE_SIGMOID         ? 1 / (1 + exp(-x))
                   : a->rule.score == SL_ROUTE_ROOT_SOFTPLUS ? sqrt(log1p(exp(x)))
                                                             : exp(x - max) / sum;
        choice[e] = score[e] + (a->bias != NULL ? (double)a->bias[e] : 0);
    }
}

/* How many come before one that has x. */
static int32_t n_before(const double *x, int32_t n, int32_t one)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++)
        count += x[i] > x[one] || (x[i] == x[one] && i < one);
    return count;
}

static void mask_groups(const struct sl_op_route *a, double *choice)
{
    const int32_t n = a->rule.n_groups, size = a->n_experts / n;
    double group[N_EXPERTS];
    for (int32_t g = 0; g < n; g++) {
        group[g] = 0;
        for (int32_t e = 0; e < size; e++)
            if (n_before(choice + g * size, size, e) < a->rule.group_top)
                group[g] += choice[g * size + e];
    }
    for (int32_t e = 0; e < a->n_experts; e++)
        if (n_before(group, n, e / size) >= a->rule.top_groups)
            choice[e] = -INFINITY;
}

static void check_row(const struct sl_op_route *a, int32_t t)
{
    double score[N_EXPERTS], choice[N_EXPERTS], sum = 0;
    const int32_t *experts = a->experts + t * a->top_k;
    scores_of(a, a->logits + t * a->n_experts, score, choice);
    mask_groups(a, choice);
    for (int32_t e = 0; e < a->n_experts; e++) {
        const int32_t place = n_before(choice, a->n_experts, e);
        if (place < a->top_k) {
            assert_int_equal(experts[place], e);
            sum += score[e];
        }
    }
    if (!a->rule.renormalize)
        sum = 1;
    sum = fmax(sum, (double)a->rule.sum_min);
    for (int32_t s = 0; s < a->top_k; s++) {
        const double want = score[experts[s]] / sum * (double)a->rule.scale;
        assert_true(fabs((double)a->weights[t * a->top_k + s] - want) < 1e-6 * fmax(1, want));
    }
}

static void check(const float *logits, const float *bias, struct sl_route_rule rule)
{
    for (int i = 0; i < n_backends; i++) {
        int32_t experts[ROWS * TOP_K];
        float weights[ROWS * TOP_K];
        const struct sl_op_route a = {.logits = logits,
                                      .bias = bias,
                                      .n = ROWS,
                                      .n_experts = N_EXPERTS,
                                      .top_k = TOP_K,
                                      .rule = rule,
                                      .experts = experts,
                                      .weights = weights};
        backends[i]->vt->route(backends[i], &a);
        for (int32_t t = 0; t < ROWS; t++)
            check_row(&a, t);
    }
}

static float *random_logits(void)
{
    struct sl_rng rng = {7, 0};
    float *logits = floats(&rng, ROWS * N_EXPERTS, 2.0);
    for (int32_t e = 0; e < N_EXPERTS; e++) {
        logits[e] = (float)(e % 4);                           /* ties */
        logits[N_EXPERTS + e] = 0;                            /* nothing but ties */
        logits[2 * N_EXPERTS + e] = e == 30 ? 1e30f : -1e30f; /* one takes all */
    }
    return logits;
}

static void test_rules(void **state)
{
    static const int32_t groups[][3] = {{1, 1, 1}, {6, 2, 2}, {6, 1, 1}, {4, 3, 2}, {3, 3, 1}};
    struct sl_rng rng = {8, 0};
    float *logits = random_logits(), *bias = floats(&rng, N_EXPERTS, 0.3);
    (void)state;
    for (int way = 0; way < 16; way++) {
        for (size_t g = 0; g < SL_COUNT(groups); g++) {
            const struct sl_route_rule rule = {.score =
                                                   way & 1 ? SL_ROUTE_SIGMOID : SL_ROUTE_SOFTMAX,
                                               .renormalize = (way & 2) != 0,
                                               .scale = way & 4 ? 2.5f : 1,
                                               .n_groups = groups[g][0],
                                               .top_groups = groups[g][1],
                                               .group_top = groups[g][2]};
            check(logits, way & 8 ? bias : NULL, rule);
        }
    }
    sl_free(bias);
    sl_free(logits);
}

/* Biases that BF16 would make one number choose as float32 says; sglang#8729, #31213: a bias kept
 * in BF16 chose other experts. */
static void test_bias_in_float(void **state)
{
    float logits[N_EXPERTS] = {0}, bias[N_EXPERTS], weights[TOP_K];
    int32_t experts[TOP_K];
    struct sl_backend *be = backends[0];
    struct sl_route_rule rule = plain;
    (void)state;
    rule.score = SL_ROUTE_SIGMOID;
    for (int32_t e = 0; e < N_EXPERTS; e++)
        bias[e] = 8 + (float)(e * 7 % N_EXPERTS) * 0x1p-12f;
    be->vt->route(be, &(struct sl_op_route){.logits = logits,
                                            .bias = bias,
                                            .n = 1,
                                            .n_experts = N_EXPERTS,
                                            .top_k = TOP_K,
                                            .rule = rule,
                                            .experts = experts,
                                            .weights = weights});
    for (int32_t s = 0; s < TOP_K; s++) {
        assert_int_equal(experts[s] * 7 % N_EXPERTS, N_EXPERTS - 1 - s);
        assert_true(weights[s] == 0.5f); /* and not as (score + bias) - bias; sglang#30989 */
    }
}

/* SparseMixer against its definition in double: one expert after the other, each weighed within
 * those of the rest whose logits are near its own. */
static void test_mixer(void **state)
{
    float *logits = random_logits();
    (void)state;
    for (int i = 0; i < 2 * n_backends; i++) {
        int32_t experts[ROWS * TOP_K];
        float weights[ROWS * TOP_K];
        struct sl_route_rule rule = plain;
        rule.score = SL_ROUTE_MIXER;
        rule.near = i % 2 ? 0.02f : 0.6f;
        struct sl_backend *be = backends[i / 2];
        be->vt->route(be, &(struct sl_op_route){.logits = logits,
                                                .n = ROWS,
                                                .n_experts = N_EXPERTS,
                                                .top_k = TOP_K,
                                                .rule = rule,
                                                .experts = experts,
                                                .weights = weights});
        for (int t = 0; t < ROWS; t++) {
            double x[N_EXPERTS];
            for (int e = 0; e < N_EXPERTS; e++)
                x[e] = (double)logits[t * N_EXPERTS + e];
            for (int s = 0; s < TOP_K; s++) {
                int best = 0;
                for (int e = 1; e < N_EXPERTS; e++)
                    best = x[e] > x[best] ? e : best;
                double sum = 0;
                for (int e = 0; e < N_EXPERTS; e++) {
                    const double size = fmax(fabs(x[e]), x[best]);
                    if (x[e] > -INFINITY && !((x[best] - x[e]) / size > (double)rule.near))
                        sum += exp(x[e] - x[best]);
                }
                assert_int_equal(experts[t * TOP_K + s], best);
                assert_true(fabs((double)weights[t * TOP_K + s] - 1 / sum) < 1e-6);
                x[best] = -INFINITY;
            }
        }
    }
    sl_free(logits);
}

/* A negative bias may be of all experts of the best groups: those of others are still not chosen,
 * which a mask of 0 would do. */
static void test_negative_bias(void **state)
{
    float logits[N_EXPERTS], bias[N_EXPERTS], weights[TOP_K];
    int32_t experts[TOP_K];
    struct sl_backend *be = backends[0];
    (void)state;
    for (int32_t e = 0; e < N_EXPERTS; e++) {
        logits[e] = e / 6 == 2 ? 4.0f : 1.0f;
        bias[e] = -2;
    }
    be->vt->route(be, &(struct sl_op_route){.logits = logits,
                                            .bias = bias,
                                            .n = 1,
                                            .n_experts = N_EXPERTS,
                                            .top_k = TOP_K,
                                            .rule = {.score = SL_ROUTE_SIGMOID,
                                                     .scale = 1,
                                                     .n_groups = 6,
                                                     .top_groups = 1,
                                                     .group_top = 2},
                                            .experts = experts,
                                            .weights = weights});
    for (int32_t s = 0; s < TOP_K; s++)
        assert_int_equal(experts[s], 12 + s);
}

/* The smallest sum that weights are divided by. */
static void test_least_sum(void **state)
{
    float logits[N_EXPERTS], bias[N_EXPERTS] = {[3] = 5, [9] = 4}, weights[2];
    int32_t experts[2];
    struct sl_backend *be = backends[0];
    (void)state;
    for (int32_t e = 0; e < N_EXPERTS; e++)
        logits[e] = e == 3 || e == 9 ? -60.0f : 0;
    struct sl_op_route a = {.logits = logits,
                            .bias = bias,
                            .n = 1,
                            .n_experts = N_EXPERTS,
                            .top_k = 2,
                            .rule = plain,
                            .experts = experts,
                            .weights = weights};
    a.rule.renormalize = true;
    be->vt->route(be, &a);
    assert_true(experts[0] == 3 && experts[1] == 9 && weights[0] == 0.5f && weights[1] == 0.5f);
    a.rule.sum_min = 1e-12f;
    be->vt->route(be, &a);
    assert_true(weights[0] > 0 && weights[0] < 1e-12f && weights[1] == weights[0]);
}

/* A row that is not numbers still names experts that exist, each once, in groups too. */
static void test_not_numbers(void **state)
{
    struct sl_backend *be = backends[0];
    float logits[3 * N_EXPERTS], weights[3 * TOP_K];
    int32_t experts[3 * TOP_K];
    (void)state;
    for (int32_t i = 0; i < 3 * N_EXPERTS; i++)
        logits[i] = i < N_EXPERTS ? NAN : i < 2 * N_EXPERTS ? -INFINITY : i % 2 ? NAN : 1.0f;
    for (int way = 0; way < 4; way++) {
        struct sl_route_rule rule = plain;
        rule.score = way % 2 ? SL_ROUTE_SIGMOID : SL_ROUTE_SOFTMAX;
        rule.n_groups = way / 2 ? 6 : 1;
        rule.group_top = way / 2 ? 2 : 1;
        be->vt->route(be, &(struct sl_op_route){.logits = logits,
                                                .n = 3,
                                                .n_experts = N_EXPERTS,
                                                .top_k = TOP_K,
                                                .rule = rule,
                                                .experts = experts,
                                                .weights = weights});
        for (int t = 0; t < 3; t++)
            for (int s = 0; s < TOP_K; s++) {
                assert_in_range(experts[t * TOP_K + s], 0, N_EXPERTS - 1);
                for (int o = 0; o < s; o++)
                    assert_int_not_equal(experts[t * TOP_K + s], experts[t * TOP_K + o]);
            }
    }
}

/* Scores far below 0, whose exponential alone is what is left; and experts that tokens choose. */
static void test_root_softplus(void **state)
{
    struct sl_rng rng = {77, 0};
    float *logits = floats(&rng, ROWS * N_EXPERTS, 4), *bias = floats(&rng, N_EXPERTS, 0.3);
    struct sl_route_rule rule = plain;
    int32_t of_token[ROWS * TOP_K], tokens[ROWS];
    (void)state;
    rule.score = SL_ROUTE_ROOT_SOFTPLUS;
    rule.renormalize = true;
    rule.scale = 1.5f;
    for (int32_t e = 0; e < N_EXPERTS; e++)
        logits[e] -= 30;
    check(logits, NULL, rule);
    check(logits, bias, rule);
    for (int32_t t = 0; t < ROWS; t++) {
        tokens[t] = (t * 4 + 1) % ROWS;
        for (int32_t s = 0; s < TOP_K; s++)
            of_token[t * TOP_K + s] = (t * 11 + s * 5) % N_EXPERTS;
    }
    for (int i = 0; i < n_backends; i++) {
        int32_t experts[ROWS * TOP_K];
        float weights[ROWS * TOP_K];
        const struct sl_op_route a = {.logits = logits,
                                      .n = ROWS,
                                      .n_experts = N_EXPERTS,
                                      .top_k = TOP_K,
                                      .rule = rule,
                                      .of_token = of_token,
                                      .tokens = tokens,
                                      .experts = experts,
                                      .weights = weights};
        backends[i]->vt->route(backends[i], &a);
        for (int32_t t = 0; t < ROWS; t++) {
            double score[N_EXPERTS], choice[N_EXPERTS], sum = 0;
            const int32_t *of = of_token + tokens[t] * TOP_K;
            scores_of(&a, logits + t * N_EXPERTS, score, choice);
            for (int32_t s = 0; s < TOP_K; s++)
                sum += score[of[s]];
            for (int32_t s = 0; s < TOP_K; s++) {
                const double want = score[of[s]] / sum * 1.5;
                assert_int_equal(experts[t * TOP_K + s], of[s]);
                assert_true(fabs((double)weights[t * TOP_K + s] - want) < 1e-6);
            }
        }
    }
    sl_free(logits);
    sl_free(bias);
}

/* Of a row's experts those from 7 on give back what they read: none of the first row's, two of the
 * second's, all of the third's. */
static void test_pass(void **state)
{
    enum { H = 35, N = 3, K = 3 };
    static const int32_t experts[N * K] = {0, 3, 6, 9, 2, 7, 12, 8, 7};
    static const float weights[N * K] = {0.5f, 0.25f, 1, 0.1f, 2, 0.7f, -0.3f, 0.2f, 0.9f};
    float x[N * H], out[N * H];
    (void)state;
    for (int i = 0; i < N * H; i++)
        x[i] = (float)(i % 11) - 4.5f;
    for (int b = 0; b < n_backends; b++) {
        backends[b]->vt->pass_experts(backends[b], &(struct sl_op_pass_experts){.x = x,
                                                                                .n = N,
                                                                                .h = H,
                                                                                .top_k = K,
                                                                                .first = 7,
                                                                                .experts = experts,
                                                                                .weights = weights,
                                                                                .out = out});
        for (int i = 0; i < N * H; i++) {
            const float sums[N] = {0, 0.1f + 0.7f, -0.3f + 0.2f + 0.9f};
            assert_true(out[i] == sums[i / H] * x[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),         cmocka_unit_test(test_bias_in_float),
        cmocka_unit_test(test_negative_bias), cmocka_unit_test(test_least_sum),
        cmocka_unit_test(test_not_numbers),   cmocka_unit_test(test_mixer),
        cmocka_unit_test(test_root_softplus), cmocka_unit_test(test_pass),
    };
    return cmocka_run_group_tests(tests, create_backends, destroy_backends);
}
