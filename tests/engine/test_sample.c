/* SPDX-License-Identifier: MIT
 * Tests of sampling and log probabilities, against an oracle that sorts everything in double.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/rng.h"
#include "engine/sample.h"
#include "engine/sample_exp.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_V 1000

/* ------------------------------------------------------------------ oracle */

struct dist {
    double p[MAX_V];    /* by id */
    bool unsure[MAX_V]; /* so near a border that float may decide otherwise */
};

struct ranked {
    double p;
    int id;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->p != y->p)
        return x->p > y->p ? -1 : 1;
    return x->id - y->id;
}

static void oracle_row(double *x, const struct sl_sample_args *a, int v)
{
    const struct sl_sampling *s = a->sampling;
    for (int i = 0; i < v; i++)
        x[i] = (double)a->logits[i];
    for (int l = 0; l < 2; l++)
        for (int i = 0; i < a->n_banned[l]; i++)
            x[a->banned[l][i]] = -INFINITY;
    for (int i = 0; i < s->n_logit_bias; i++)
        x[s->logit_bias[i].id] += (double)s->logit_bias[i].bias;
    for (int i = 0; a->counts != NULL && i < a->counts->n; i++) {
        const struct sl_count *c = &a->counts->entries[i];
        double rep = (double)s->repetition_penalty;
        x[c->id] = x[c->id] > 0 ? x[c->id] / rep : x[c->id] * rep;
        if (c->n_out > 0)
            x[c->id] -= (double)s->frequency_penalty * c->n_out + (double)s->presence_penalty;
    }
}

static void oracle(struct dist *d, const struct sl_sample_args *a, int v)
{
    static double x[MAX_V];
    static struct ranked r[MAX_V];
    const struct sl_sampling *s = a->sampling;
    memset(d, 0, sizeof *d);
    oracle_row(x, a, v);
    double max = -INFINITY, sum = 0, t = (double)s->temperature;
    for (int i = 0; i < v; i++)
        max = fmax(max, x[i]);
    for (int i = 0; i < v; i++) {
        r[i] = (struct ranked){exp((x[i] - max) / t), i};
        d->unsure[i] = fabs(r[i].p - (double)s->min_p) < 1e-5;
        if (r[i].p < (double)s->min_p)
            r[i].p = 0;
    }
    qsort(r, (size_t)v, sizeof *r, by_rank);
    int n = s->top_k > 0 && s->top_k < v ? s->top_k : v;
    for (int i = 0; i < n; i++)
        sum += r[i].p;
    double before = 0, kept = 0;
    for (int i = 0; i < n; i++) {
        d->unsure[r[i].id] |= fabs(before - (double)s->top_p * sum) < 1e-5 * sum;
        if (i == 0 || before < (double)s->top_p * sum) {
            d->p[r[i].id] = r[i].p;
            kept += r[i].p;
        }
        before += r[i].p;
    }
    for (int i = 0; i < v; i++)
        d->p[i] /= kept;
}

/* ------------------------------------------------------------------ draws */

static void random_row(float *x, int v, struct sl_rng *r, float width)
{
    for (int i = 0; i < v; i++)
        x[i] = (float)sl_rng_normal(r) * width;
}

/* How far the counts of draws are from the distribution, in standard deviations of chi square. */
static double chi_z(const struct dist *d, const int *count, int v, int n)
{
    double chi = 0, rest_p = 0, rest_n = 0;
    int df = -1;
    for (int i = 0; i < v; i++) {
        double want = d->p[i] * n;
        if (want < 8) {
            rest_p += want;
            rest_n += count[i];
            continue;
        }
        chi += (count[i] - want) * (count[i] - want) / want;
        df++;
    }
    if (rest_p >= 8) {
        chi += (rest_n - rest_p) * (rest_n - rest_p) / rest_p;
        df++;
    }
    if (df < 1)
        return 0;
    double k = 2.0 / (9.0 * df); /* Wilson and Hilferty's cube root */
    return (cbrt(chi / df) - (1 - k)) / sqrt(k);
}

static void draws_follow_the_oracle(void **state)
{
    (void)state;
    static float row[MAX_V];
    static struct dist d;
    static int count[MAX_V];
    struct sl_rng r = {.seed = 11};
    for (int c = 0; c < 60; c++) {
        int v = c % 4 == 0 ? MAX_V : 2 + (int)sl_rng_below(&r, 120), n = 8000;
        random_row(row, v, &r, c % 5 == 0 ? 0.3f : 3.0f);
        if (c % 7 == 0)
            row[1] = -INFINITY;
        struct sl_sampling s;
        sl_sampling_default(&s);
        s.temperature = 0.3f + 1.5f * (float)sl_rng_unit(sl_rng_next(&r));
        if (c % 3 == 1)
            s.top_k = 1 + (int32_t)sl_rng_below(&r, (uint64_t)v);
        if (c % 2 == 1)
            s.top_p = 0.05f + 0.95f * (float)sl_rng_unit(sl_rng_next(&r));
        if (c % 5 >= 3)
            s.min_p = 0.3f * (float)sl_rng_unit(sl_rng_next(&r));
        struct sl_sample_args a = {.logits = row, .sampling = &s, .seed = sl_rng_next(&r)};
        struct sl_sampler w;
        assert_int_equal(sl_sampler_init(&w, v, NULL), 0);
        oracle(&d, &a, v);
        memset(count, 0, sizeof count);
        bool unsure = false;
        for (int i = 0; i < v; i++)
            unsure |= d.unsure[i];
        for (a.pos = 0; a.pos < (uint64_t)n; a.pos++) {
            int32_t id = sl_sample(&w, &a);
            assert_in_range(id, 0, v - 1);
            if (d.p[id] <= 0 && !d.unsure[id])
                fail_msg("case %d: token %d has probability 0", c, id);
            count[id]++;
        }
        double z = chi_z(&d, count, v, n);
        if (z > 4.5 && !unsure)
            fail_msg("case %d (v %d, T %g, k %d, p %g, min_p %g): %.1f deviations off", c, v,
                     (double)s.temperature, s.top_k, (double)s.top_p, (double)s.min_p, z);
        sl_sampler_deinit(&w);
    }
}

static void penalties_and_bias_follow_the_oracle(void **state)
{
    (void)state;
    enum { V = 50 };
    static struct dist d;
    static int count[MAX_V];
    float row[V];
    struct sl_rng r = {.seed = 12};
    for (int c = 0; c < 30; c++) {
        random_row(row, V, &r, 2.0f);
        struct sl_logit_bias bias[] = {{3, 4.5f}, {7, -100.0f}, {9, 100.0f}};
        const int32_t banned[] = {9, 11};
        struct sl_count entries[16];
        int32_t slots[32] = {0};
        struct sl_counts counts;
        sl_counts_init(&counts, entries, slots, 32);
        for (int i = 0; i < 14; i++)
            sl_counts_add(&counts, (int32_t)sl_rng_below(&r, 14), i < 5 ? 0 : 1);
        struct sl_sampling s;
        sl_sampling_default(&s);
        s.repetition_penalty = 0.5f + (float)sl_rng_unit(sl_rng_next(&r));
        s.presence_penalty = 4.0f * (float)sl_rng_unit(sl_rng_next(&r)) - 2.0f;
        s.frequency_penalty = 4.0f * (float)sl_rng_unit(sl_rng_next(&r)) - 2.0f;
        s.logit_bias = bias;
        s.n_logit_bias = c % 3;
        assert_true(sl_sampling_has_penalty(&s));
        struct sl_sample_args a = {.logits = row,
                                   .sampling = &s,
                                   .seed = 5,
                                   .counts = &counts,
                                   .banned = {banned, banned + 1},
                                   .n_banned = {1, c % 2}};
        struct sl_sampler w;
        assert_int_equal(sl_sampler_init(&w, V, NULL), 0);
        oracle(&d, &a, V);
        memset(count, 0, sizeof count);
        for (a.pos = 0; a.pos < 8000; a.pos++)
            count[sl_sample(&w, &a)]++;
        assert_int_equal(count[9], 0);
        assert_true(chi_z(&d, count, V, 8000) < 4.5);
        sl_sampler_deinit(&w);
    }
}

static void the_same_key_draws_the_same_token(void **state)
{
    (void)state;
    float row[300];
    struct sl_rng r = {.seed = 2};
    random_row(row, 300, &r, 1.0f);
    struct sl_sampler w;
    struct sl_sampling s;
    sl_sampling_default(&s);
    assert_int_equal(sl_sampler_init(&w, 300, NULL), 0);
    int n_other_seed = 0, n_other_pos = 0;
    for (int i = 0; i < 200; i++) {
        s.top_p = i % 2 ? 0.9f : 1.0f;
        struct sl_sample_args a = {
            .logits = row, .sampling = &s, .seed = (uint64_t)i, .pos = (uint64_t)i * 3};
        int32_t id = sl_sample(&w, &a);
        assert_int_equal(sl_sample(&w, &a), id);
        a.seed++;
        n_other_seed += sl_sample(&w, &a) != id;
        a.seed--;
        a.pos++;
        n_other_pos += sl_sample(&w, &a) != id;
    }
    assert_true(n_other_seed > 150 && n_other_pos > 150);
    sl_sampler_deinit(&w);
}

/* ------------------------------------------------------------------ edges */

static int32_t sample_once(const float *row, int v, const struct sl_sampling *s)
{
    struct sl_sampler w;
    struct sl_sample_args a = {.logits = row, .sampling = s, .seed = 1, .pos = 9};
    assert_int_equal(sl_sampler_init(&w, v, NULL), 0);
    int32_t id = sl_sample(&w, &a);
    sl_sampler_deinit(&w);
    return id;
}

static void greedy_takes_the_lowest_of_equals(void **state)
{
    (void)state;
    struct sl_sampling s;
    sl_sampling_default(&s);
    s.temperature = 0.0f;
    const float row[] = {-1.0f, 3.0f, 2.0f, 3.0f, 3.0f};
    assert_int_equal(sample_once(row, 5, &s), 1);
    s.temperature = 9e-6f;
    assert_int_equal(sample_once(row, 5, &s), 1);
    s.temperature = 1.0f;
    s.top_k = 1;
    assert_int_equal(sample_once(row, 5, &s), 1);
    s.top_k = 0;
    s.top_p = 1e-6f;
    assert_int_equal(sample_once(row, 5, &s), 1);
    const float low[] = {-INFINITY, -1e30f, -INFINITY};
    assert_int_equal(sample_once(low, 3, &s), 1);
}

static void rows_without_numbers_are_refused(void **state)
{
    (void)state;
    struct sl_sampling s;
    sl_sampling_default(&s);
    struct sl_logprob lp;
    for (int t = 0; t < 2; t++) {
        s.temperature = t ? 1.0f : 0.0f;
        for (int i = 0; i < 11; i++) {
            float row[11] = {0};
            row[i] = NAN;
            assert_int_equal(sample_once(row, 11, &s), -1);
            assert_false(sl_logprobs(row, 11, 0, 0, &lp, NULL));
            row[i] = INFINITY;
            assert_int_equal(sample_once(row, 11, &s), -1);
            assert_false(sl_logprobs(row, 11, 0, 0, &lp, NULL));
            row[i] = -INFINITY;
            assert_int_not_equal(sample_once(row, 11, &s), -1);
        }
        const float none[] = {-INFINITY, -INFINITY};
        assert_int_equal(sample_once(none, 2, &s), -1);
    }
}

static void extreme_parameters_still_give_a_token(void **state)
{
    (void)state;
    static float row[MAX_V];
    struct sl_rng r = {.seed = 4};
    random_row(row, MAX_V, &r, 30.0f);
    static const float temps[] = {1e-5f, 1e-3f, 1.0f, 1e4f, 3e38f};
    static const float ps[] = {1e-38f, 0.5f, 0.999999f, 1.0f};
    static const int32_t ks[] = {-1, 0, 1, MAX_V - 1, MAX_V, INT32_MAX};
    struct sl_sampling s;
    sl_sampling_default(&s);
    for (size_t t = 0; t < SL_COUNT(temps); t++)
        for (size_t p = 0; p < SL_COUNT(ps); p++)
            for (size_t k = 0; k < SL_COUNT(ks); k++)
                for (size_t m = 0; m < 3; m++) {
                    s.temperature = temps[t];
                    s.top_p = ps[p];
                    s.top_k = ks[k];
                    s.min_p = (float)m * 0.5f;
                    assert_in_range(sample_once(row, MAX_V, &s), 0, MAX_V - 1);
                }
}

/* The row after a penalty may leave the range of a float; that is not the model's fault. */
static void the_smallest_penalty_still_gives_a_token(void **state)
{
    (void)state;
    float row[4] = {1.0f, 3.0f, 2.0f, -1.0f};
    struct sl_count entries[4];
    int32_t slots[8];
    struct sl_counts counts;
    struct sl_sampler w;
    struct sl_sampling s;
    sl_counts_init(&counts, entries, slots, 8);
    sl_counts_add(&counts, 2, 0);
    sl_sampling_default(&s);
    s.repetition_penalty = 1e-38f;
    assert_int_equal(sl_sampler_init(&w, 4, NULL), 0);
    struct sl_sample_args a = {.logits = row, .sampling = &s, .seed = 3, .counts = &counts};
    assert_int_equal(sl_sample(&w, &a), 2);
    s.repetition_penalty = 1e-45f;
    assert_int_equal(sl_sample(&w, &a), 2);
    sl_sampler_deinit(&w);
}

#define N_COUNTED 700
#define N_ROOM    4096

static void counts_grow_into_room_that_was_never_cleared(void **state)
{
    (void)state;
    static struct sl_count entries[2][N_ROOM / 2];
    static int32_t slots[2][N_ROOM], want[N_COUNTED];
    struct sl_counts c[2];
    struct sl_rng r = {.seed = 9};
    memset(slots, 0x5a, sizeof slots);
    assert_int_equal(sl_counts_slots(2 * N_COUNTED, 1 << 20), N_ROOM);
    for (int k = 0; k < 2; k++)
        sl_counts_init(&c[k], entries[k], slots[k], N_ROOM);
    for (int i = 0; i < 9 * N_COUNTED; i++) {
        if (i == 300) /* the copy goes on from where the first one was */
            sl_counts_copy(&c[1], &c[0]);
        int32_t id = (int32_t)sl_rng_below(&r, N_COUNTED);
        want[id]++;
        sl_counts_add(&c[0], id * 1000, 1);
        if (i >= 300)
            sl_counts_add(&c[1], id * 1000, 1);
        /* What few tokens do not need stays untouched. */
        if (i == 9)
            assert_int_equal(slots[0][64], 0x5a5a5a5a);
    }
    for (int k = 0; k < 2; k++) {
        assert_int_equal(c[k].n, N_COUNTED);
        for (int i = 0; i < c[k].n; i++)
            assert_int_equal(entries[k][i].n_out, want[entries[k][i].id / 1000]);
    }
}

static void all_equal_logits_keep_the_lowest_ids(void **state)
{
    (void)state;
    static float row[MAX_V];
    struct sl_sampling s;
    sl_sampling_default(&s);
    s.top_k = 10;
    struct sl_sampler w;
    assert_int_equal(sl_sampler_init(&w, MAX_V, NULL), 0);
    struct sl_sample_args a = {.logits = row, .sampling = &s, .seed = 3};
    bool seen[10] = {false};
    for (a.pos = 0; a.pos < 500; a.pos++) {
        int32_t id = sl_sample(&w, &a);
        assert_in_range(id, 0, 9);
        seen[id] = true;
    }
    for (int i = 0; i < 10; i++)
        assert_true(seen[i]);
    sl_sampler_deinit(&w);
}

/* Equal tokens share a mass that top_p cuts exactly between two of them, or not quite. */
static void top_p_ends_inside_equal_tokens(void **state)
{
    (void)state;
    static float row[MAX_V];
    static const struct {
        int n;
        float p;
        int kept;
    } cases[] = {{8, 0.5f, 4},      {8, 0.500001f, 5}, {8, 0.499999f, 4}, {1000, 0.25f, 250},
                 {1000, 1e-38f, 1}, {2, 0.5f, 1},      {3, 0.5f, 2},      {7, 0.99999994f, 7}};
    struct sl_sampling s;
    sl_sampling_default(&s);
    for (size_t c = 0; c < SL_COUNT(cases); c++) {
        struct sl_sampler w;
        int n = cases[c].n, most = 0;
        bool seen[MAX_V] = {false};
        s.top_p = cases[c].p;
        assert_int_equal(sl_sampler_init(&w, n, NULL), 0);
        struct sl_sample_args a = {.logits = row, .sampling = &s, .seed = 3};
        for (a.pos = 0; a.pos < (uint64_t)(40 * n); a.pos++) {
            int32_t id = sl_sample(&w, &a);
            assert_in_range(id, 0, cases[c].kept - 1);
            seen[id] = true;
        }
        while (most < n && seen[most])
            most++;
        assert_int_equal(most, cases[c].kept);
        sl_sampler_deinit(&w);
    }
}

/* ------------------------------------------------------------------ weights */

/* Keys of probabilities are narrowed down from the maximum of a block, which holds if exp never
 * rises when its argument falls. Steps of a few numbers through the whole range, and each number
 * where the power of two changes. */
static void exp_never_rises(void **state)
{
    (void)state;
    union sl_float_bits end = {.f = -SL_EXP_MIN}, y = {.i = 0};
    float last = 1.0f;
    assert_true(sl_exp_neg(0.0f) == 1.0f);
    for (; y.i < end.i; y.i += y.i < 0x30000000 ? 100003 : 37) {
        float p = sl_exp_neg(-y.f);
        assert_true(p <= last);
        last = p;
    }
    for (int n = 0; n < 125; n++) {
        union sl_float_bits at = {.f = ((float)n + 0.5f) * 0.693147181f};
        last = 1.0f;
        at.i -= 2000;
        for (int i = 0; i < 4000; i++, at.i++) {
            float p = sl_exp_neg(-at.f);
            assert_true(p <= last);
            last = p;
        }
    }
    assert_true(sl_exp_neg(-100.0f) == 0.0f && sl_exp_neg(-INFINITY) == 0.0f);
}

static void weights_are_rounded_to_even(void **state)
{
    (void)state;
    struct sl_rng g = {.seed = 6};
    assert_int_equal(sl_weight(0.0f), 0);
    assert_int_equal(sl_weight(1.0f), UINT64_C(1) << 41);
    assert_int_equal(sl_weight(SL_WEIGHT_ALIVE), 0);
    assert_int_equal(sl_weight(nextafterf(SL_WEIGHT_ALIVE, 1.0f)), 1);
    assert_int_equal(sl_weight(0x1.8p-41f), 2);
    assert_int_equal(sl_weight(0x1.4p-40f), 2);
    for (int i = 0; i < 100000; i++) {
        float p = sl_exp_neg(-40.0f * (float)sl_rng_unit(sl_rng_next(&g)));
        assert_int_equal(sl_weight(p), (uint64_t)nearbyint((double)p * 0x1p41));
    }
}

/* ------------------------------------------------------------------ rows */

static bool is_gap(const float *groups, int i)
{
    bool gap = true;
    for (int j = 0; j < SL_ROW_GROUPS; j++)
        gap = gap && groups[i / SL_ROW_BLOCK * SL_ROW_GROUPS + j] == -INFINITY;
    return gap;
}

/* A row through a mask is the row that plain loops make of it, with that one's maxima. */
static void row_kernels_mask(void **state)
{
    (void)state;
    enum { MAX_N = 1500, MAX_GROUPS = (MAX_N / SL_ROW_BLOCK + 1) * SL_ROW_GROUPS };
    static float row[MAX_N], want[MAX_N], got[MAX_N + 1], groups[2][MAX_GROUPS];
    static uint32_t allowed[MAX_N / 32 + 1];
    const struct sl_row_kernels *k[2] = {&sl_row_kernels_c, sl_row_kernels()};
    struct sl_rng g = {.seed = 78};
    for (int c = 0; c < 400; c++) {
        int n = 1 + (int)sl_rng_below(&g, MAX_N), at = (int)sl_rng_below(&g, (uint64_t)n);
        random_row(row, n, &g, 4.0f);
        memset(allowed, c % 3 == 1 ? 0xFF : 0, sizeof allowed);
        for (int i = 0; i < n && c % 3 != 1; i += 1 + (int)sl_rng_below(&g, c % 3 ? 3 : 400))
            allowed[i / 32] |= 1u << (i & 31);
        if (c % 7 == 0)
            row[at] = c % 14 == 0 ? NAN : INFINITY;
        bool any = false, sound = c % 7 != 0;
        for (int i = 0; i < n; i++) {
            bool may = allowed[i / 32] >> (i & 31) & 1;
            want[i] = may ? row[i] : -INFINITY;
            any = any || may;
        }
        for (int j = 0; j < 2; j++) {
            float max, plain;
            got[n] = 42.0f;
            bool ok = k[j]->scan_allowed(row, n, allowed, got, groups[0], &max);
            assert_int_equal(ok, sound && any);
            assert_true(got[n] == 42.0f);
            if (!ok)
                continue;
            assert_true(k[j]->scan(want, n, groups[1], &plain));
            for (int i = 0; i < n; i++)
                assert_true(got[i] == want[i] || is_gap(groups[1], i));
            assert_true(max == plain);
            size_t n_groups = (size_t)SL_CEIL_DIV(n, SL_ROW_BLOCK) * SL_ROW_GROUPS;
            assert_memory_equal(groups[0], groups[1], n_groups * sizeof(float));
        }
    }
}

/* Through a mask the same token is chosen as of a row that has -infinity where it does not allow,
 * whatever else the request wants. The sampler is used again, as its row of before lies in it. */
static void masks_choose_as_masked_rows(void **state)
{
    (void)state;
    enum { N = 2100 };
    static float row[N], masked[N];
    static uint32_t allowed[N / 32 + 1];
    struct sl_rng g = {.seed = 79};
    struct sl_sampler w;
    int n_chosen = 0;
    assert_int_equal(sl_sampler_init(&w, N, NULL), 0);
    for (int c = 0; c < 3000; c++) {
        random_row(row, N, &g, 6.0f);
        memset(allowed, 0, sizeof allowed);
        for (int i = (int)sl_rng_below(&g, N); i < N;
             i += 1 + (int)sl_rng_below(&g, c % 2 ? 900 : 9))
            allowed[i / 32] |= 1u << (i & 31);
        for (int i = 0; i < N; i++)
            masked[i] = allowed[i / 32] >> (i & 31) & 1 ? row[i] : -INFINITY;
        const int32_t ids[] = {(int32_t)sl_rng_below(&g, N), (int32_t)sl_rng_below(&g, N)};
        const struct sl_logit_bias bias[] = {{ids[0], 3.0f}, {ids[1], 5.0f}};
        struct sl_count entries[2] = {{.id = ids[1], .n_out = 2}, {.id = 700, .n_out = 1}};
        const struct sl_counts counts = {.entries = entries, .n = 2};
        const struct sl_sampling p = {.temperature = c % 5 ? 1.3f : 0.0f,
                                      .top_p = c % 7 < 3 ? 0.8f : 1.0f,
                                      .top_k = c % 11 < 4 ? 7 : 0,
                                      .min_p = c % 13 < 3 ? 0.05f : 0.0f,
                                      .repetition_penalty = 1.2f,
                                      .frequency_penalty = 0.5f,
                                      .logit_bias = bias,
                                      .n_logit_bias = c % 3 == 0 ? 2 : 0};
        struct sl_sample_args a = {.logits = row,
                                   .sampling = &p,
                                   .seed = 5,
                                   .pos = (uint64_t)c,
                                   .allowed = allowed,
                                   .counts = c % 4 == 0 ? &counts : NULL,
                                   .banned = {ids},
                                   .n_banned = {c % 6 == 0}};
        int32_t got = sl_sample(&w, &a);
        a.logits = masked;
        a.allowed = NULL;
        assert_int_equal(got, sl_sample(&w, &a));
        n_chosen += got >= 0;
    }
    assert_in_range(n_chosen, 2900, 3000);
    sl_sampler_deinit(&w);
}

/* Lengths of whole and broken blocks; every result of the vectors has the bits of plain C. */
static void row_kernels_agree(void **state)
{
    (void)state;
    enum { MAX_N = 3000, MAX_BLOCKS = MAX_N / SL_ROW_BLOCK + 1 };
    static float row[MAX_N], probs[2][MAX_N], groups[2][MAX_BLOCKS * SL_ROW_GROUPS];
    static uint64_t sums[2][MAX_BLOCKS];
    const struct sl_row_kernels *k[2] = {&sl_row_kernels_c, sl_row_kernels()};
    struct sl_rng g = {.seed = 77};
    for (int c = 0; c < 300; c++) {
        int n = c < 20 ? 250 + c : 1 + (int)sl_rng_below(&g, MAX_N);
        int id = (int)sl_rng_below(&g, (uint64_t)n), bad = (int)sl_rng_below(&g, (uint64_t)n);
        random_row(row, n, &g, c % 3 ? 4.0f : 40.0f);
        for (int i = 0; i < n && c % 4 == 0; i++)
            row[i] = floorf(row[i]);
        if (c % 5 == 0)
            row[bad] = c % 10 == 0 ? NAN : c % 15 == 0 ? INFINITY : -INFINITY;
        float max[2], plain = -INFINITY;
        uint64_t total[2], sum[2];
        int32_t before[2], n_before = 0;
        bool ok[2], sound = true;
        for (int i = 0; i < n; i++) {
            sound = sound && row[i] <= FLT_MAX;
            plain = row[i] > plain ? row[i] : plain;
            n_before += row[i] > row[id] || (row[i] == row[id] && i < id);
        }
        for (int j = 0; j < 2; j++) {
            ok[j] = k[j]->scan(row, n, groups[j], &max[j]);
            assert_int_equal(ok[j], sound && plain >= -FLT_MAX);
            if (!ok[j])
                continue;
            assert_true(max[j] == plain);
            const struct sl_row_scale y = {plain, 0.7f, c % 2 ? SL_EXP_MIN : -1.5f};
            k[j]->probs(row, n, &y, probs[j]);
            total[j] = k[j]->weigh(row, n, &y, groups[j], sums[j]);
            sum[j] = k[j]->logprob(row, n, plain, id, &before[j]);
            assert_int_equal(before[j], n_before);
        }
        size_t n_blocks = (size_t)SL_CEIL_DIV(n, SL_ROW_BLOCK);
        if (!ok[0])
            continue;
        assert_memory_equal(groups[0], groups[1], n_blocks * SL_ROW_GROUPS * sizeof(float));
        assert_memory_equal(probs[0], probs[1], (size_t)n * sizeof(float));
        assert_memory_equal(sums[0], sums[1], n_blocks * sizeof(uint64_t));
        assert_int_equal(total[0], total[1]);
        assert_int_equal(sum[0], sum[1]);
        uint64_t all = 0, hits[2][SL_ROW_BLOCK / 64];
        for (int i = 0; i < n; i++)
            all += sl_weight(probs[0][i]);
        assert_int_equal(total[0], all);
        if (n >= SL_ROW_BLOCK) {
            bool any[2];
            for (int j = 0; j < 2; j++)
                any[j] = k[j]->above(probs[0], 0.125f, hits[j]);
            assert_int_equal(any[0], any[1]);
            assert_memory_equal(hits[0], hits[1], sizeof hits[0]);
            for (int i = 0; i < SL_ROW_BLOCK; i++)
                assert_int_equal(hits[0][i / 64] >> i % 64 & 1, probs[0][i] > 0.125f);
        }
        for (int i = 0; i < n; i++) {
            int group = i / SL_ROW_BLOCK * SL_ROW_GROUPS + i % SL_ROW_GROUPS;
            assert_true(groups[0][group] >= row[i]);
        }
    }
}

/* ------------------------------------------------------------------ log probabilities */

static void logprobs_follow_the_oracle(void **state)
{
    (void)state;
    static float row[MAX_V];
    static struct ranked r[MAX_V];
    struct sl_rng g = {.seed = 21};
    for (int c = 0; c < 200; c++) {
        const int v = 1 + (int)sl_rng_below(&g, MAX_V), most = (int)sl_rng_below(&g, 21);
        const int k = SL_MIN(v, most);
        random_row(row, v, &g, c % 2 ? 5.0f : 0.5f);
        for (int i = 0; i < v && c % 4 == 0; i++)
            row[i] = floorf(row[i]); /* many ties */
        double max = -INFINITY, sum = 0;
        for (int i = 0; i < v; i++)
            max = fmax(max, (double)row[i]);
        for (int i = 0; i < v; i++) {
            sum += exp((double)row[i] - max);
            r[i] = (struct ranked){(double)row[i], i};
        }
        qsort(r, (size_t)v, sizeof *r, by_rank);
        int at = (int)sl_rng_below(&g, (uint64_t)v);
        struct sl_logprob lp;
        struct sl_top_logprob top[SL_MAX_LOGPROBS];
        assert_true(sl_logprobs(row, v, r[at].id, k, &lp, top));
        assert_int_equal(lp.rank, at + 1);
        assert_true(fabs((double)lp.logprob - (r[at].p - max - log(sum))) < 2e-6);
        for (int i = 0; i < k; i++) {
            assert_int_equal(top[i].id, r[i].id);
            assert_true(fabs((double)top[i].logprob - (r[i].p - max - log(sum))) < 2e-6);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_oracle),
        cmocka_unit_test(penalties_and_bias_follow_the_oracle),
        cmocka_unit_test(the_same_key_draws_the_same_token),
        cmocka_unit_test(greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(rows_without_numbers_are_refused),
        cmocka_unit_test(extreme_parameters_still_give_a_token),
        cmocka_unit_test(the_smallest_penalty_still_gives_a_token),
        cmocka_unit_test(counts_grow_into_room_that_was_never_cleared),
        cmocka_unit_test(all_equal_logits_keep_the_lowest_ids),
        cmocka_unit_test(top_p_ends_inside_equal_tokens),
        cmocka_unit_test(exp_never_rises),
        cmocka_unit_test(weights_are_rounded_to_even),
        cmocka_unit_test(row_kernels_mask),
        cmocka_unit_test(masks_choose_as_masked_rows),
        cmocka_unit_test(row_kernels_agree),
        cmocka_unit_test(logprobs_follow_the_oracle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
