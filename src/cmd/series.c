/* SPDX-License-Identifier: MIT */
#include "cmd/series.h"

#include "base/check.h"
#include "base/sys.h"

#include <stdlib.h>

void sl_series_deinit(struct sl_series *s)
{
    sl_free(s->values);
    *s = (struct sl_series){0};
}

bool sl_series_add(struct sl_series *s, double value)
{
    if (s->n == s->cap) {
        size_t cap = s->cap != 0 ? s->cap * 2 : 4096;
        double *grown = sl_realloc(s->values, cap * sizeof *grown);
        if (grown == NULL)
            return false;
        s->values = grown;
        s->cap = cap;
    }
    s->values[s->n++] = value;
    return true;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void sl_series_sort(struct sl_series *s)
{
    if (s->n > 0)
        qsort(s->values, s->n, sizeof(double), compare_doubles);
}

double sl_series_mean(const struct sl_series *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += s->values[i];
    return s->n > 0 ? sum / (double)s->n : 0;
}

double sl_series_percentile(const struct sl_series *s, double p)
{
    if (s->n == 0)
        return 0;
    double rank = p / 100 * (double)(s->n - 1);
    size_t lo = (size_t)rank, hi = SL_MIN(lo + 1, s->n - 1);
    return s->values[lo] + (rank - (double)lo) * (s->values[hi] - s->values[lo]);
}
