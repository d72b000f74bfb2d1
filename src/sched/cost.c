/* SPDX-License-Identifier: MIT */
#include "sched/cost.h"

#include "base/check.h"
#include "base/err.h"

#include <stdbool.h>
#include <string.h>

#define KEEP   (7.0 / 8) /* of what a size knows, when a step is added */
#define SWEEPS 50
#define ROUND  16 /* tokens; larger chunks are multiples, so that tiles are full */
#define FIRST  64 /* tokens of a chunk while nothing is known */
#define RECENT 64 /* steps for which a step without chunks tells what the next one takes */

struct sl_work sl_work_add(struct sl_work w, int64_t pos, int64_t n)
{
    w.tokens += n;
    w.reads += pos + n;
    if (n > 1)
        w.pairs += n * pos + n * (n + 1) / 2;
    return w;
}

struct sl_work sl_work_extend(struct sl_work w, int64_t pos, int64_t n)
{
    const struct sl_work none = {0}, own = sl_work_add(none, pos, n);
    w = sl_work_add(w, pos, n + 1);
    w.tokens -= own.tokens, w.pairs -= own.pairs, w.reads -= own.reads;
    return w;
}

/* In units that make prices of about the same size. What is asked first explains what it can, so
 * a single step is taken for one that costs by its tokens: chunks begin small. */
static void features(struct sl_work w, double x[SL_COST_PRICES])
{
    const double t = (double)w.tokens;
    x[0] = t / 256;
    x[1] = SL_MAX(t - 16, 0) / 256;
    x[2] = SL_MAX(t - 256, 0) / 256;
    x[3] = (double)w.pairs / 1e6;
    x[4] = (double)w.reads / 1e5;
    x[5] = 1;
}

double sl_cost_of(const struct sl_cost *c, struct sl_work w)
{
    double x[SL_COST_PRICES], sum = 0;
    features(w, x);
    for (int i = 0; i < SL_COST_PRICES; i++)
        sum += c->price[i] * x[i];
    return sum;
}

/* Least squares without negative prices: each price in turn is set to the best one beside the
 * others. The prices before are a good start, so few sweeps do. */
static void solve(struct sl_cost *c)
{
    double xx[SL_COST_PRICES][SL_COST_PRICES] = {{0}}, xy[SL_COST_PRICES] = {0};
    for (int s = 0; s < SL_COST_SIZES; s++) {
        for (int i = 0; i < SL_COST_PRICES && c->sums[s].n > 0; i++) {
            xy[i] += c->sums[s].xy[i];
            for (int j = 0; j < SL_COST_PRICES; j++)
                xx[i][j] += c->sums[s].xx[i][j];
        }
    }
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        for (int i = 0; i < SL_COST_PRICES; i++) {
            double rest = xy[i];
            for (int j = 0; j < SL_COST_PRICES; j++)
                rest -= j != i ? xx[i][j] * c->price[j] : 0;
            c->price[i] = xx[i][i] > 0 && rest > 0 ? rest / xx[i][i] : 0;
        }
    }
}

static int cost_size(int64_t tokens)
{
    int s = 0;
    while (s + 1 < SL_COST_SIZES && tokens >> (s + 1) > 0)
        s++;
    return s;
}

/* Up to a quarter more tokens, or positions to read, than the step that was measured. */
static bool is_like(struct sl_work w, struct sl_work measured)
{
    return 4 * w.tokens <= 5 * measured.tokens && 4 * w.reads <= 5 * measured.reads;
}

/* The faster one of two counts: one alone may have captured a CUDA graph or waited for another
 * process. */
static void learn_plain(struct sl_cost *c, struct sl_work w, double seconds)
{
    struct sl_cost_plain *p = &c->plain;
    p->age += p->age < UINT32_MAX;
    if (w.pairs > 0)
        return;
    const bool again = p->n > 0 && p->age < RECENT && is_like(w, p->work);
    p->before_s = again ? p->last_s : 0;
    p->n = again ? 2 : 1;
    p->work = w;
    p->last_s = seconds;
    p->age = 0;
}

double sl_cost_measured(const struct sl_cost *c, struct sl_work w)
{
    const struct sl_cost_plain *p = &c->plain;
    const bool known = p->n > 1 && p->age < RECENT && is_like(w, p->work);
    return known ? SL_MIN(p->last_s, p->before_s) : 0;
}

/* The first step of a size counts little beside others: it loads kernels and touches memory. An
 * error is relative to what was measured or expected, whichever is more: a step that seems to have
 * taken no time, as its end was noticed together with that of the one before, would else outweigh
 * all others. */
void sl_cost_learn(struct sl_cost *c, struct sl_work w, double seconds)
{
    double x[SL_COST_PRICES];
    struct sl_cost_sums *s = &c->sums[cost_size(w.tokens)];
    SL_ASSERT(w.tokens > 0 && seconds > 0);
    const double scale = SL_MAX(seconds, sl_cost_of(c, w));
    const double weight = (s->n == 0 ? 1.0 / 16 : 1) / (scale * scale);
    features(w, x);
    for (int i = 0; i < SL_COST_PRICES; i++) {
        s->xy[i] = s->xy[i] * KEEP + weight * x[i] * seconds;
        for (int j = 0; j < SL_COST_PRICES; j++)
            s->xx[i][j] = s->xx[i][j] * KEEP + weight * x[i] * x[j];
    }
    s->n += s->n < UINT32_MAX;
    c->most_tokens = SL_MAX(c->most_tokens, w.tokens);
    learn_plain(c, w, seconds);
    solve(c);
}

bool sl_cost_knows(const struct sl_cost *c, struct sl_work w)
{
    return c->sums[cost_size(w.tokens)].n > 1;
}

bool sl_cost_draft(const struct sl_cost *c, struct sl_drafting *step, int32_t pos, int32_t k,
                   double comes)
{
    SL_ASSERT(pos >= 0 && k >= 0 && comes >= 0 && comes <= 1);
    const struct sl_work with = sl_work_extend(step->work, pos, k + 1);
    const double time = sl_cost_of(c, step->work), more = sl_cost_of(c, with) - time;
    if (sl_cost_knows(c, with) && comes * time <= step->tokens * more)
        return false;
    *step = (struct sl_drafting){with, step->tokens + comes};
    return true;
}

int32_t sl_cost_chunk(const struct sl_cost *c, struct sl_work w, int32_t pos, int32_t n_most,
                      double seconds)
{
    SL_ASSERT(pos >= 0 && n_most >= 0 && seconds > 0);
    int64_t seen = SL_MAX(4 * c->most_tokens, FIRST) - w.tokens;
    int32_t low = 0, high = (int32_t)SL_MAX(SL_MIN(seen, n_most), 0);
    while (low < high) {
        const int32_t n = low + (high - low + 1) / 2;
        if (sl_cost_of(c, sl_work_add(w, pos, n)) <= seconds)
            low = n;
        else
            high = n - 1;
    }
    return low < n_most && low > ROUND ? low - low % ROUND : low;
}
