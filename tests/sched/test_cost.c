/* SPDX-License-Identifier: MIT
 * Tests of sched/cost.c: machines whose steps cost what the model can say, or nearly, and what it
 * then promises of chunks.
 */
#include "base/check.h"
#include "base/rng.h"
#include "sched/cost.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Seconds of a step: memory or arithmetic, whichever takes longer, then attention. */
struct machine {
    double weights, token, pair, read;
};

static double takes(const struct machine *m, struct sl_work w)
{
    return fmax(m->weights, m->token * (double)w.tokens) + m->pair * (double)w.pairs +
           m->read * (double)w.reads;
}

static const struct machine gpu = {3.6e-3, 2.5e-5, 1.05e-9, 2.8e-8};
/* Whose attention of few tokens goes through what is behind them one after the other. */
static const struct machine chains = {3.6e-3, 2.5e-5, 3e-10, 6e-7};
static const struct machine cpu = {0.11, 0.009, 5e-8, 1e-6};

static struct sl_work decodes(int n, int64_t pos)
{
    struct sl_work w = {0};
    for (int i = 0; i < n; i++)
        w = sl_work_add(w, pos, 1);
    return w;
}

static void learn(struct sl_cost *c, const struct machine *m, struct sl_work w, struct sl_rng *r)
{
    const double noise = 0.97 + 0.06 * (double)sl_rng_below(r, 1000) / 1000;
    sl_cost_learn(c, w, takes(m, w) * noise);
}

/* What a server sees: a few prompts, many steps of decoding, prompts again. */
static void days_work(struct sl_cost *c, const struct machine *m, int32_t most, struct sl_rng *r)
{
    for (int round = 0; round < 6; round++) {
        for (int32_t n = 64; n <= most; n *= 2)
            for (int64_t pos = 0; pos < 4 * n; pos += n)
                learn(c, m, sl_work_add(decodes(round, 700), pos, n), r);
        for (int i = 0; i < 500; i++)
            learn(c, m, decodes(1 + i % 8, 500 + i), r);
    }
}

/* The largest n whose step is over in time, or all of them. */
static int32_t best(const struct machine *m, struct sl_work w, int32_t pos, int32_t n_most,
                    double seconds)
{
    int32_t n = 0;
    while (n < n_most && takes(m, sl_work_add(w, pos, n + 1)) <= seconds)
        n++;
    return n;
}

static void chunks_are_near_the_best(const struct machine *m, int32_t most, double seconds,
                                     int64_t far)
{
    struct sl_cost c = {0};
    struct sl_rng r = {.seed = 5};
    days_work(&c, m, most, &r);
    for (int32_t pos = 0; pos <= far; pos += (int32_t)(far / 8)) {
        for (int n = 1; n <= 8; n += 7) {
            const struct sl_work w = decodes(n, 800);
            const int32_t got = sl_cost_chunk(&c, w, pos, most, seconds);
            const int32_t want = best(m, w, pos, most, seconds);
            const double t = takes(m, sl_work_add(w, pos, got));
            if (t > 1.2 * seconds || got < want * 7 / 10 - 16)
                fail_msg("%d decodes, chunk at %d: %d tokens take %.4f s of %.4f, %d would do", n,
                         pos, got, t, seconds, want);
        }
    }
}

static void a_gpu_is_learnt(void **state)
{
    (void)state;
    chunks_are_near_the_best(&gpu, 8192, 0.04, 131072);
    chunks_are_near_the_best(&gpu, 8192, 0.1, 32768);
    chunks_are_near_the_best(&chains, 8192, 0.06, 65536);
}

static void a_cpu_is_learnt(void **state)
{
    (void)state;
    chunks_are_near_the_best(&cpu, 512, 0.22, 2048);
    chunks_are_near_the_best(&cpu, 512, 1, 8192);
}

/* What a prompt costs is known an hour after the last one. */
static void prompts_are_not_forgotten(void **state)
{
    (void)state;
    struct sl_cost c = {0};
    struct sl_rng r = {.seed = 7};
    days_work(&c, &gpu, 8192, &r);
    const int32_t before = sl_cost_chunk(&c, decodes(4, 500), 0, 8192, 0.04);
    for (int i = 0; i < 100000; i++)
        learn(&c, &gpu, decodes(4, 500 + i % 1000), &r);
    const int32_t after = sl_cost_chunk(&c, decodes(4, 500), 0, 8192, 0.04);
    assert_true(after > before * 8 / 10 && after < before * 12 / 10);
}

/* Four prompts of 32 tokens together and some decoding, on a machine whose steps last long. */
static void little_is_known_at_first(void **state)
{
    (void)state;
    struct sl_cost c = {0};
    struct sl_rng r = {.seed = 9};
    struct sl_work w = {0};
    assert_int_equal(sl_cost_chunk(&c, decodes(4, 10), 0, 4096, 0.1), 48); /* nothing at all */
    for (int i = 0; i < 4; i++)
        w = sl_work_add(w, 0, 32);
    learn(&c, &cpu, w, &r);
    assert_in_range(sl_cost_chunk(&c, decodes(4, 32), 0, 512, 0.2), 2, 30);
    for (int i = 0; i < 10; i++)
        learn(&c, &cpu, decodes(4, 32 + i), &r);
    const double seconds = 2 * takes(&cpu, decodes(4, 40));
    const int32_t n = sl_cost_chunk(&c, decodes(4, 40), 0, 512, seconds);
    assert_in_range(n, 2, 40);
    /* Nothing is believed of steps far beyond those that were seen. */
    assert_true(sl_cost_chunk(&c, decodes(4, 40), 0, 100000, 1e9) <= 4 * 128);
}

/* A machine that gets faster, or slower, is learnt anew. */
static void a_change_is_followed(void **state)
{
    (void)state;
    struct sl_cost c = {0};
    struct sl_rng r = {.seed = 11};
    struct machine slow = {2 * gpu.weights, 2 * gpu.token, 2 * gpu.pair, 2 * gpu.read};
    days_work(&c, &gpu, 8192, &r);
    days_work(&c, &slow, 8192, &r);
    const struct sl_work w = sl_work_add(decodes(8, 700), 4096, 1024);
    const double got = sl_cost_of(&c, w), want = takes(&slow, w);
    assert_true(got > 0.8 * want && got < 1.2 * want);
}

/* A long prompt beside sixteen streams, from the first step on: steps are about as long as wished,
 * so the prompt is as quick as that allows. */
static void a_long_prompt_beside_streams(void **state)
{
    (void)state;
    struct sl_cost c = {0};
    struct sl_rng r = {.seed = 13};
    struct sl_work w = {0};
    const double seconds = 0.04;
    for (int i = 0; i < 16; i++)
        w = sl_work_add(w, 0, 512);
    sl_cost_learn(&c, w, 2 * takes(&gpu, w)); /* the first step of all */
    int n_steps = 0, n_late = 0;
    double passed = 0;
    for (int32_t pos = 0; pos < 131000; n_steps++) {
        const struct sl_work d = decodes(16, 512 + n_steps);
        int32_t n = sl_cost_chunk(&c, d, pos, SL_MIN(8192 - 16, 131000 - pos), seconds);
        n = SL_MAX(n, 16);
        w = sl_work_add(d, pos, n);
        passed += takes(&gpu, w);
        n_late += takes(&gpu, w) > 1.25 * seconds;
        learn(&c, &gpu, w, &r);
        pos += n;
    }
    const double mean = passed / n_steps;
    assert_true(mean > 0.8 * seconds);
    assert_in_range(n_late, 0, n_steps / 100);
}

/* Tokens a second of a step of n sequences with k drafts each. */
static double draft_rate(const struct machine *m, int n, int64_t pos, int32_t k, double each)
{
    struct sl_work w = {0};
    double tokens = n;
    for (int i = 0; i < n; i++) {
        w = sl_work_add(w, pos, 1 + k);
        for (int32_t j = 1; j <= k; j++)
            tokens += pow(each, j);
    }
    return tokens / takes(m, w);
}

/* Learnt from steps with the drafts it chose, the choice is near the best number of drafts for all,
 * and hardly worse than none: one sequence drafts much, many on a CPU nothing. */
static void drafts_are_worth_it(void **state)
{
    static const struct machine *const machines[] = {&gpu, &chains, &cpu};
    static const int counts[] = {1, 4, 32, 128};
    static const double likely[] = {0.2, 0.5, 0.8, 0.95};
    const int32_t most = 7, pos = 600;
    int32_t fewest = INT32_MAX, highest = 0;
    (void)state;
    for (size_t i = 0; i < SL_COUNT(machines) * SL_COUNT(counts) * SL_COUNT(likely); i++) {
        const struct machine *m = machines[i / (SL_COUNT(counts) * SL_COUNT(likely))];
        const int n = counts[i / SL_COUNT(likely) % SL_COUNT(counts)];
        const double each = likely[i % SL_COUNT(likely)];
        struct sl_cost c = {0};
        struct sl_rng r = {.seed = i};
        struct sl_drafting step;
        days_work(&c, m, 512, &r);
        for (int turn = 0; turn < 200; turn++) {
            struct sl_work w = {0};
            step = (struct sl_drafting){decodes(n, pos), n};
            int32_t k[128] = {0};
            for (int32_t deep = 0; deep < most && turn % 32 != 0; deep++) /* as propose.c */
                for (int s = 0; s < n; s++)
                    k[s] +=
                        k[s] == deep && sl_cost_draft(&c, &step, pos, deep, pow(each, deep + 1));
            for (int s = 0; s < n; s++)
                w = sl_work_add(w, pos, 1 + k[s]);
            assert_true(w.tokens == step.work.tokens && w.reads == step.work.reads);
            learn(&c, m, w, &r);
        }
        double best_rate = 0, none = draft_rate(m, n, pos, 0, each);
        for (int32_t j = 0; j <= most; j++)
            best_rate = fmax(best_rate, draft_rate(m, n, pos, j, each));
        const double rate = step.tokens / takes(m, step.work);
        if (rate < 0.75 * best_rate || rate < 0.97 * none)
            fail_msg("machine %zu, %d sequences, %.2f: %.1f tokens/s, the best %.1f, none %.1f",
                     i / (SL_COUNT(counts) * SL_COUNT(likely)), n, each, rate, best_rate, none);
        fewest = m == &cpu && n > 32 ? SL_MIN(fewest, (int32_t)step.work.tokens - n) : fewest;
        highest = m == &gpu && n == 1 ? SL_MAX(highest, (int32_t)step.work.tokens - n) : highest;
    }
    assert_int_equal(fewest, 0);
    assert_int_equal(highest, most);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpu_is_learnt),           cmocka_unit_test(a_cpu_is_learnt),
        cmocka_unit_test(prompts_are_not_forgotten), cmocka_unit_test(little_is_known_at_first),
        cmocka_unit_test(a_change_is_followed),      cmocka_unit_test(a_long_prompt_beside_streams),
        cmocka_unit_test(drafts_are_worth_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
