/* SPDX-License-Identifier: MIT
 * stats.h - counting into the histograms of struct sl_stats. Bucket bounds are vLLM's where it has
 * them, so that its dashboards read ours.
 */
#ifndef SL_ENGINE_STATS_H
#define SL_ENGINE_STATS_H

#include "base/err.h"
#include "sluice.h"

enum sl_bounds {
    SL_BOUNDS_TTFT,
    SL_BOUNDS_ITL,
    SL_BOUNDS_LATENCY,
    SL_BOUNDS_STEP,
    SL_BOUNDS_LEN,
    SL_BOUNDS_GRAMMAR
};

void sl_hist_add(struct sl_hist *h, enum sl_bounds which, double value);
void sl_fine_add(struct sl_fine_hist *h, uint64_t ns);

static inline double sl_seconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-9 : 0.0;
}

#endif
