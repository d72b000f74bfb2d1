/* SPDX-License-Identifier: MIT
 * metrics.h - GET /metrics: Prometheus text under vLLM's names, so that routers, autoscalers and
 * dashboards made for it work; what vLLM has no name for begins with "sluice:".
 */
#ifndef SL_SERVER_METRICS_H
#define SL_SERVER_METRICS_H

#include "base/buf.h"
#include "server/http/http_stats.h"

#include "sluice.h"

struct sl_kv_publisher_stats;
struct sl_exporter_stats;
struct sl_key_rule;

struct sl_metrics_model {
    const char *name;
    const struct sl_model_info *info;
    const struct sl_stats *stats;
    const char *adapters; /* that requests have, with commas; NULL: adapters are not enabled */
    const struct sl_kv_publisher_stats *kv_events; /* NULL: none are published */
};

struct sl_metrics_in {
    const struct sl_metrics_model *models; /* [n_models] at least one */
    int32_t n_models;
    const struct sl_http_stats *const *http; /* one per HTTP thread */
    int n_http;
    const char *const *handlers; /* path per route row, NULL past the end */
    uint64_t n_connections, n_refused_connections, held_bytes;
    const struct sl_key_rule *clients; /* [n_clients] keys with names */
    int32_t n_clients;
    int64_t t_start_s;
    const struct sl_exporter_stats *traces; /* NULL: none are made */
    bool aliases;                           /* also under names that vLLM gave up */
};

void sl_metrics_render(struct sl_buf *b, const struct sl_metrics_in *in);

#endif
