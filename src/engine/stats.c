/* SPDX-License-Identifier: MIT */
#include "engine/stats.h"

#include "base/check.h"

#include <math.h>

static const double ttft[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                              1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
static const double itl[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                             .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
static const double latency[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
static const double step[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
static const double len[] = {1e0, 2e0, 5e0, 1e1, 2e1, 5e1, 1e2, 2e2, 5e2, 1e3, 2e3, 5e3,
                             1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2e7, 5e7};

static const double grammar[] = {1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3,
                                 1e-2, 3e-2, .1,   .3,   1,    3};

static const struct {
    const double *list;
    int n;
} bounds[] = {
    [SL_BOUNDS_TTFT] = {ttft, SL_COUNT(ttft)},
    [SL_BOUNDS_ITL] = {itl, SL_COUNT(itl)},
    [SL_BOUNDS_LATENCY] = {latency, SL_COUNT(latency)},
    [SL_BOUNDS_STEP] = {step, SL_COUNT(step)},
    [SL_BOUNDS_LEN] = {len, SL_COUNT(len)},
    [SL_BOUNDS_GRAMMAR] = {grammar, SL_COUNT(grammar)},
};

_Static_assert(SL_COUNT(ttft) <= SL_HIST_MAX && SL_COUNT(len) <= SL_HIST_MAX, "too many buckets");

void sl_hist_add(struct sl_hist *h, enum sl_bounds which, double value)
{
    int i = 0;
    SL_ASSERT((size_t)which < SL_COUNT(bounds));
    while (i < bounds[which].n && value > bounds[which].list[i])
        i++;
    h->counts[i < bounds[which].n ? i : SL_HIST_MAX]++;
    h->sum += value;
}

const double *sl_hist_bounds(size_t offset_in_stats, int *n)
{
    static const struct {
        size_t offset;
        enum sl_bounds which;
    } map[] = {
        {offsetof(struct sl_stats, ttft_s), SL_BOUNDS_TTFT},
        {offsetof(struct sl_stats, itl_s), SL_BOUNDS_ITL},
        {offsetof(struct sl_stats, e2e_s), SL_BOUNDS_LATENCY},
        {offsetof(struct sl_stats, queue_s), SL_BOUNDS_LATENCY},
        {offsetof(struct sl_stats, prefill_s), SL_BOUNDS_LATENCY},
        {offsetof(struct sl_stats, decode_s), SL_BOUNDS_LATENCY},
        {offsetof(struct sl_stats, inference_s), SL_BOUNDS_LATENCY},
        {offsetof(struct sl_stats, step_tokens), SL_BOUNDS_STEP},
        {offsetof(struct sl_stats, prompt_len), SL_BOUNDS_LEN},
        {offsetof(struct sl_stats, output_len), SL_BOUNDS_LEN},
        {offsetof(struct sl_stats, tpot_s), SL_BOUNDS_ITL},
        {offsetof(struct sl_stats, preempted), SL_BOUNDS_LEN},
        {offsetof(struct sl_stats, prefill_computed), SL_BOUNDS_LEN},
        {offsetof(struct sl_stats, grammar_compile_s), SL_BOUNDS_GRAMMAR},
        {offsetof(struct sl_stats, grammar_mask_s), SL_BOUNDS_GRAMMAR},
    };
    for (size_t i = 0; i < SL_COUNT(map); i++) {
        if (map[i].offset == offset_in_stats) {
            *n = bounds[map[i].which].n;
            return bounds[map[i].which].list;
        }
    }
    *n = 0;
    return NULL;
}

/* Bucket 0 holds what is shorter than 2^FINE_FIRST ns; then come eight for each doubling. */
#define FINE_FIRST 14
#define FINE_BITS  3
#define FINE_STEPS (1 << FINE_BITS)

void sl_fine_add(struct sl_fine_hist *h, uint64_t ns)
{
    int i = 0;
    if (ns >> FINE_FIRST != 0) {
        int exponent = 63 - __builtin_clzll(ns);
        int part = (int)(ns >> (exponent - FINE_BITS)) & (FINE_STEPS - 1);
        i = 1 + (exponent - FINE_FIRST) * FINE_STEPS + part;
    }
    h->counts[SL_MIN(i, SL_FINE_MAX - 1)]++;
}

double sl_fine_bound(int i)
{
    SL_ASSERT(i >= 0 && i < SL_FINE_MAX);
    if (i == SL_FINE_MAX - 1)
        return INFINITY;
    return ldexp(FINE_STEPS + i % FINE_STEPS, i / FINE_STEPS + FINE_FIRST - FINE_BITS) * 1e-9;
}

double sl_fine_quantile(const struct sl_fine_hist *before, const struct sl_fine_hist *now, double q)
{
    uint64_t total = 0, sum = 0;
    SL_ASSERT(q >= 0 && q <= 1);
    for (int i = 0; i < SL_FINE_MAX; i++)
        total += now->counts[i] - (before != NULL ? before->counts[i] : 0);
    if (total == 0)
        return NAN;
    const double rank = q * (double)total;
    for (int i = 0; i < SL_FINE_MAX - 1; i++) {
        const double low = i > 0 ? sl_fine_bound(i - 1) : 0;
        const uint64_t n = now->counts[i] - (before != NULL ? before->counts[i] : 0);
        if (n > 0 && (double)(sum + n) >= rank)
            return low + (sl_fine_bound(i) - low) * (rank - (double)sum) / (double)n;
        sum += n;
    }
    return sl_fine_bound(SL_FINE_MAX - 2); /* the last bucket has no upper bound */
}
