/* SPDX-License-Identifier: MIT
 * series.h - measured values of one kind (say, every time to first token) and their statistics;
 * both benchmarks report through it, so that their percentiles mean the same.
 */
#ifndef SL_CMD_SERIES_H
#define SL_CMD_SERIES_H

#include <stdbool.h>
#include <stddef.h>

struct sl_series { /* zero-initialise */
    double *values;
    size_t n, cap;
};

void sl_series_deinit(struct sl_series *s);
bool sl_series_add(struct sl_series *s, double value); /* false: out of memory, value left out */
void sl_series_sort(struct sl_series *s);
double sl_series_mean(const struct sl_series *s); /* 0 when empty, as below */
/* Of a sorted series, p in 0..100, linear between ranks as numpy does. */
double sl_series_percentile(const struct sl_series *s, double p);

#endif
