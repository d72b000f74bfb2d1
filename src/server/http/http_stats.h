/* SPDX-License-Identifier: MIT
 * http_stats.h - what one HTTP thread counts. Its thread adds, /metrics on any thread sums over all
 * threads; relaxed atomics suffice, since no counter is compared with another.
 */
#ifndef SL_SERVER_HTTP_STATS_H
#define SL_SERVER_HTTP_STATS_H

#include "server/http/http_parse.h"

#include <stdatomic.h>
#include <stdint.h>

#define SL_HTTP_MAX_ROUTES  72 /* rows of the route table, the last one counts unknown paths */
#define SL_HTTP_N_CLASSES   5  /* 1xx .. 5xx */
#define SL_HTTP_N_DURATIONS 3
#define SL_HTTP_N_HIGHR     21
#define SL_PARAM_N_BUCKETS  24

extern const double sl_http_duration_bounds[SL_HTTP_N_DURATIONS];
extern const double sl_http_highr_bounds[SL_HTTP_N_HIGHR];

struct sl_route_stats {
    _Atomic uint64_t requests[SL_HTTP_N_METHODS][SL_HTTP_N_CLASSES];
    _Atomic uint64_t durations[SL_HTTP_N_DURATIONS + 1];
    _Atomic uint64_t duration_ns, n, request_bytes, response_bytes;
};

struct sl_count_hist { /* whole numbers over the 1-2-5 series */
    _Atomic uint64_t counts[SL_PARAM_N_BUCKETS + 1], sum;
};

struct sl_http_stats {
    struct sl_route_stats routes[SL_HTTP_MAX_ROUTES];
    _Atomic uint64_t highr[SL_HTTP_N_HIGHR + 1], highr_ns;
    _Atomic uint64_t unknown_fields, disconnects, connections;
    struct sl_count_hist params_n, params_max_tokens, max_generation;
};

/* 0 .. SL_HTTP_N_CLASSES - 1; 5xx for what is no status. */
int sl_status_class(int status);
void sl_http_stats_request(struct sl_http_stats *s, int route_idx, enum sl_http_method method,
                           int status, uint64_t duration_ns, uint64_t request_bytes,
                           uint64_t response_bytes);
/* Bucket i of the 1-2-5 series: 1, 2, 5, 10, ... */
uint64_t sl_count_hist_bound(int i);
void sl_count_hist_add(struct sl_count_hist *h, uint64_t x);

#endif
