/* SPDX-License-Identifier: MIT
 * The choice of experts of src/cuda has the bits of the CPU's, which tests/ops/test_route.c
 * compares with a count in double. Runs in the simulator or on a GPU, where the cases are larger.
 */
#include "cuda/cuda.h"
#include "cuda/device.h"

extern "C" {
#include "base/rng.h"
#include "cpu/cpu.h"
}
#include "device_array.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#ifdef SL_CUDA_SIM
#include "sim.h"
#define LARGE 1 /* times as large on a GPU */
#else
#define LARGE 40
#endif

static int n_failures;
static long n_checks;
static struct sl_rng rng;
static struct sl_backend *be, *cpu;

#define CHECK(cond, ...)                                      \
    do {                                                      \
        n_checks++;                                           \
        if (!(cond) && n_failures++ < 20) {                   \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #cond); \
            printf(__VA_ARGS__);                              \
            printf("\n");                                     \
        }                                                     \
    } while (0)

static bool same(float a, float b)
{
    return isnan(a) ? isnan(b) : memcmp(&a, &b, sizeof a) == 0;
}

/* Of the root of a softplus: the logarithm is the library's, here and there another one. */
static bool near(float a, float b)
{
    return same(a, b) || fabsf(a - b) <= 3e-7f * fabsf(b);
}

/* A value of the kinds that make ties, that overflow, that are no numbers. */
static float odd_value(int32_t row)
{
    switch (row) {
    case 0:
        return (float)sl_rng_below(&rng, 3);
    case 1:
        return sl_rng_below(&rng, 2) ? NAN : (float)sl_rng_normal(&rng);
    case 2:
        return sl_rng_below(&rng, 2) ? -INFINITY : 90.0f * (float)sl_rng_normal(&rng);
    default:
        return 3.0f * (float)sl_rng_normal(&rng);
    }
}

static void route_case(int32_t n, int32_t n_experts, int32_t top_k, bool biased,
                       struct sl_route_rule rule)
{
    const size_t n_out = (size_t)(n * top_k);
    std::vector<float> logits((size_t)(n * n_experts)), bias((size_t)n_experts), want_w(n_out);
    std::vector<int32_t> want(n_out);
    for (size_t i = 0; i < logits.size(); i++)
        logits[i] = odd_value((int32_t)i / n_experts);
    std::vector<float> scale((size_t)n_experts);
    const bool root = rule.score == SL_ROUTE_ROOT_SOFTPLUS;
    for (float &b : bias)
        b = 8.0f + 0.3f * (float)sl_rng_normal(&rng);
    for (float &s : scale)
        s = 1.0f + 0.3f * (float)sl_rng_normal(&rng);
    dev<float> d_logits(logits), d_bias(bias), d_scale(scale), weights(n_out);
    dev<int32_t> experts(n_out);
    struct sl_op_route a = {};
    a.n = n, a.n_experts = n_experts, a.top_k = top_k, a.rule = rule;
    a.logits = logits.data(), a.bias = biased ? bias.data() : NULL;
    a.expert_scale = biased ? NULL : scale.data();
    a.experts = want.data(), a.weights = want_w.data();
    cpu->vt->route(cpu, &a);
    a.logits = d_logits.p, a.bias = biased ? d_bias.p : NULL;
    a.expert_scale = biased ? NULL : d_scale.p;
    a.experts = experts.p, a.weights = weights.p;
    be->vt->route(be, &a);
    cudaStreamSynchronize(sl_cuda(be)->stream);
    const std::vector<int32_t> got = experts.get();
    const std::vector<float> got_w = weights.get();
    for (size_t i = 0; i < n_out; i++) {
        const int row = (int)i / top_k, place = (int)i % top_k;
        CHECK(got[i] == want[i], "%d experts, row %d place %d: %d, not %d", n_experts, row, place,
              got[i], want[i]);
        CHECK(root ? near(got_w[i], want_w[i]) : same(got_w[i], want_w[i]),
              "%d experts, row %d place %d: %.9g, not %.9g", n_experts, row, place,
              (double)got_w[i], (double)want_w[i]);
    }
}

/* Tokens that say which experts they have, some of them as what the step before chose. */
static void token_case(int32_t n, int32_t n_experts, int32_t top_k)
{
    const int32_t n_vocab = 50, n_prev = 4;
    const size_t n_out = (size_t)(n * top_k);
    std::vector<float> logits((size_t)(n * n_experts)), want_w(n_out);
    std::vector<int32_t> want(n_out), table((size_t)(n_vocab * top_k)), tokens((size_t)n), prev;
    for (float &x : logits)
        x = 3.0f * (float)sl_rng_normal(&rng);
    for (int32_t i = 0; i < n_vocab * top_k; i++)
        table[(size_t)i] = (i / top_k * 5 + i % top_k * 3) % n_experts;
    for (int32_t i = 0; i < n_prev; i++)
        prev.push_back(n_vocab - 1 - i);
    for (int32_t &t : tokens)
        t = (int32_t)sl_rng_below(&rng, (uint64_t)n_vocab);
    struct sl_op_route a = {};
    a.n = n, a.n_experts = n_experts, a.top_k = top_k, a.n_vocab = n_vocab;
    a.rule = {SL_ROUTE_ROOT_SOFTPLUS, true, 1e-20f, 1.5f, 1, 1, 1, 0.0f};
    a.logits = logits.data(), a.of_token = table.data(), a.tokens = tokens.data();
    a.experts = want.data(), a.weights = want_w.data();
    for (int32_t i = 0; i < n_prev; i++)
        tokens[(size_t)i] = prev[(size_t)i];
    cpu->vt->route(cpu, &a);
    for (int32_t i = 0; i < n_prev; i++)
        tokens[(size_t)i] = -1 - i;
    dev<float> d_logits(logits), weights(n_out);
    dev<int32_t> d_table(table), d_tokens(tokens), d_prev(prev), experts(n_out);
    a.logits = d_logits.p, a.of_token = d_table.p, a.tokens = d_tokens.p;
    a.experts = experts.p, a.weights = weights.p;
    sl_cuda(be)->ids_prev = d_prev.p;
    be->vt->route(be, &a);
    cudaStreamSynchronize(sl_cuda(be)->stream);
    sl_cuda(be)->ids_prev = NULL;
    const std::vector<int32_t> got = experts.get();
    const std::vector<float> got_w = weights.get();
    for (size_t i = 0; i < n_out; i++) {
        CHECK(got[i] == want[i], "expert %zu is %d, not %d", i, got[i], want[i]);
        CHECK(near(got_w[i], want_w[i]), "weight %zu is %.9g, not %.9g", i, (double)got_w[i],
              (double)want_w[i]);
    }
}

int main(int argc, char **argv)
{
    rng.seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 5;
    struct sl_cuda_config cfg = {0, 1, false};
    struct sl_cpu_config cpu_cfg = {};
    struct sl_error err = {};
    cpu_cfg.n_threads = 1;
    cpu_cfg.isa = SL_ISA_C;
    if (sl_cuda_create(&cfg, &be, &err) != 0 || sl_cpu_create(&cpu_cfg, &cpu, &err) != 0) {
        printf("cannot go on: %s\n", err.msg);
        return 1;
    }
    for (int way = 0; way < 8; way++) {
        struct sl_route_rule r = {way & 1 ? SL_ROUTE_SIGMOID : SL_ROUTE_SOFTMAX,
                                  (way & 2) != 0,
                                  way & 4 ? 1e-12f : 0.0f,
                                  way & 4 ? 2.5f : 1.0f,
                                  1,
                                  1,
                                  1,
                                  0.0f};
        for (int biased = 0; biased < 2; biased++) {
            r.n_groups = r.top_groups = r.group_top = 1;
            route_case(3, 8, 2, biased != 0, r);
            route_case(9 * LARGE, 128, 8, biased != 0, r);
            route_case(2, 33, 32, biased != 0, r);
            r.n_groups = 8, r.top_groups = 4, r.group_top = 2;
            route_case(5 * LARGE, 64, 6, biased != 0, r);
            r.n_groups = 50, r.top_groups = 3, r.group_top = 1;
            route_case(3, 100, 5, biased != 0, r);
        }
    }
    struct sl_route_rule most = {SL_ROUTE_SIGMOID, true, 0.0f, 1.0f, 512, 40, 2, 0.0f};
    route_case(4, 1024, 32, true, most);
    struct sl_route_rule mixer = {SL_ROUTE_MIXER, false, 0.0f, 1.0f, 1, 1, 1, 0.02f};
    route_case(9 * LARGE, 16, 2, false, mixer);
    mixer.near = 0.7f, mixer.scale = 1.5f;
    route_case(9 * LARGE, 100, 7, false, mixer);
    struct sl_route_rule root = {SL_ROUTE_ROOT_SOFTPLUS, true, 1e-20f, 1.5f, 1, 1, 1, 0.0f};
    route_case(9 * LARGE, 256, 6, true, root);
    route_case(5, 40, 6, false, root);
    token_case(9 * LARGE, 256, 6);
    token_case(5, 33, 3);
    be->vt->destroy(be);
    cpu->vt->destroy(cpu);
    printf("test_route: %ld checks, %d failures\n", n_checks, n_failures);
    return n_failures != 0;
}
