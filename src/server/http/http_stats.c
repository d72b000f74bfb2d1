/* SPDX-License-Identifier: MIT */
#include "server/http/http_stats.h"

/* The buckets of prometheus-fastapi-instrumentator, which dashboards for vLLM expect. */
const double sl_http_duration_bounds[SL_HTTP_N_DURATIONS] = {.1, .5, 1};
const double sl_http_highr_bounds[SL_HTTP_N_HIGHR] = {
    .01, .025, .05, .075, .1, .25, .5, .75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60};

static void http_stats_add(_Atomic uint64_t *counter, uint64_t x)
{
    atomic_fetch_add_explicit(counter, x, memory_order_relaxed);
}

static int http_stats_bucket_of(const double *bounds, int n, double x)
{
    int i = 0;
    while (i < n && x > bounds[i])
        i++;
    return i;
}

int sl_status_class(int status)
{
    const int class = status / 100 - 1;
    return class < 0 || class >= SL_HTTP_N_CLASSES ? SL_HTTP_N_CLASSES - 1 : class;
}

void sl_http_stats_request(struct sl_http_stats *s, int route_idx, enum sl_http_method method,
                           int status, uint64_t duration_ns, uint64_t request_bytes,
                           uint64_t response_bytes)
{
    struct sl_route_stats *r = &s->routes[route_idx];
    double seconds = (double)duration_ns * 1e-9;
    http_stats_add(&r->requests[method][sl_status_class(status)], 1);
    http_stats_add(
        &r->durations[http_stats_bucket_of(sl_http_duration_bounds, SL_HTTP_N_DURATIONS, seconds)],
        1);
    http_stats_add(&r->duration_ns, duration_ns);
    http_stats_add(&r->n, 1);
    http_stats_add(&r->request_bytes, request_bytes);
    http_stats_add(&r->response_bytes, response_bytes);
    http_stats_add(&s->highr[http_stats_bucket_of(sl_http_highr_bounds, SL_HTTP_N_HIGHR, seconds)],
                   1);
    http_stats_add(&s->highr_ns, duration_ns);
}

uint64_t sl_count_hist_bound(int i)
{
    static const uint64_t mantissas[3] = {1, 2, 5};
    uint64_t x = mantissas[i % 3];
    for (int k = 0; k < i / 3; k++)
        x *= 10;
    return x;
}

void sl_count_hist_add(struct sl_count_hist *h, uint64_t x)
{
    int i = 0;
    while (i < SL_PARAM_N_BUCKETS && x > sl_count_hist_bound(i))
        i++;
    http_stats_add(&h->counts[i], 1);
    http_stats_add(&h->sum, x);
}
