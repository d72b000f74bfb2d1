/* SPDX-License-Identifier: MIT */
#include "engine/tool_times.h"

#include "base/check.h"
#include "base/sys.h"

#include <math.h>
#include <string.h>

#define WAYS      8     /* places that a name may have */
#define OLDER     0.97f /* what a time counts when one more is added */
#define FIRST_S   0.01  /* upper bound of the first bin */
#define ENOUGH    3     /* times that say something about a tool */
#define UNKNOWN_S 5.0   /* where nothing is known */

static double bin_end(int i)
{
    return FIRST_S * exp2(0.5 * i);
}

static int bin_of(double seconds)
{
    int i = 0;
    while (i < SL_TOOL_BINS && seconds > bin_end(i))
        i++;
    return i;
}

/* Where a name may be: some places beside one another. */
static int first_place(uint64_t name)
{
    _Static_assert(SL_TOOL_NAMES % WAYS == 0, "sets of places are whole");
    return (int)(name % (SL_TOOL_NAMES / WAYS)) * WAYS;
}

static const struct sl_tool_hist *find(const struct sl_tool_times *t, uint64_t name)
{
    const struct sl_tool_hist *set = &t->list[first_place(name)];
    for (int i = 0; i < WAYS; i++)
        if (set[i].used > 0 && set[i].name == name)
            return &set[i];
    return NULL;
}

static struct sl_tool_hist *find_or_make(struct sl_tool_times *t, uint64_t name)
{
    struct sl_tool_hist *set = &t->list[first_place(name)], *h = set;
    for (int i = 0; i < WAYS; i++) {
        if (set[i].used > 0 && set[i].name == name)
            return &set[i];
        if (set[i].used < h->used)
            h = &set[i];
    }
    memset(h, 0, sizeof *h);
    h->name = name;
    return h;
}

static void tool_add(struct sl_tool_hist *h, double seconds)
{
    const int bin = seconds < 0 ? SL_TOOL_BINS : bin_of(seconds);
    for (int i = 0; i < SL_TOOL_BINS; i++)
        h->weight[i] *= OLDER;
    h->never *= OLDER;
    if (bin < SL_TOOL_BINS)
        h->weight[bin] += 1;
    else
        h->never += 1;
    h->sum = h->sum * OLDER + 1;
    SL_ASSERT(h->sum > 0 && h->sum * (1 - OLDER) < 1.01f);
}

void sl_tool_times_add(struct sl_tool_times *t, uint64_t name, double seconds)
{
    struct sl_tool_hist *h = find_or_make(t, name);
    h->used = ++t->n_uses;
    tool_add(h, seconds);
    tool_add(&t->all, seconds);
}

struct sl_tool_wait sl_tool_times_wait(const struct sl_tool_times *t, uint64_t name, double price,
                                       double most_s)
{
    const struct sl_tool_hist *h = find(t, name);
    struct sl_tool_wait best = {0};
    double gain = 0, returned = 0, waited = 0; /* weights up to the bin, and seconds they took */
    SL_ASSERT(price >= 0 && most_s > 0);
    if (h == NULL || h->sum < ENOUGH)
        h = &t->all;
    if (h->sum < ENOUGH)
        return (struct sl_tool_wait){.seconds = SL_MIN(UNKNOWN_S, most_s), .returns = 0.5};
    for (int i = 0; i < SL_TOOL_BINS && bin_end(i) <= most_s; i++) {
        const double end = bin_end(i), w = (double)h->weight[i];
        returned += w;
        waited += w * end;
        const double now =
            (returned - price * (waited + ((double)h->sum - returned) * end)) / (double)h->sum;
        if (now <= gain)
            continue;
        gain = now;
        best = (struct sl_tool_wait){.seconds = end, .returns = returned / (double)h->sum};
    }
    return best;
}
