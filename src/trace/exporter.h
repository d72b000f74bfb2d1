/* SPDX-License-Identifier: MIT
 * exporter.h - spans on their way to a collector: a bounded queue, and one thread that sends what
 * is in it, in batches, as OTLP over HTTP in JSON.
 *
 * Who adds spans never waits for the collector: if the queue is full they are dropped and counted.
 * The thread tries again what the specification calls retryable, at growing distances, for a
 * minute; meanwhile the queue fills. Source: opentelemetry-proto, docs/specification.md
 * (OTLP/HTTP).
 */
#ifndef SL_TRACE_EXPORTER_H
#define SL_TRACE_EXPORTER_H

#include "trace/settings.h"

struct sl_exporter;

struct sl_exporter_stats {
    uint64_t n_exported; /* spans that the collector took */
    uint64_t n_rejected; /* that it took and threw away, as it said */
    uint64_t n_dropped;  /* for which there was no room in the queue */
    uint64_t n_failed;   /* that could not be delivered */
    uint64_t n_attempts; /* to send a batch */
    int32_t n_queued;
};

/* settings are borrowed. */
SL_MUST_CHECK int sl_exporter_start(const struct sl_trace_settings *settings,
                                    struct sl_exporter **out, struct sl_error *err);
/* Any thread. Takes what spans holds, n_spans JSON objects with commas between them. */
void sl_exporter_add(struct sl_exporter *x, struct sl_buf *spans, int n_spans);
/* Sends what is queued, for at most the settings' flush_ms, and ends the thread. NULL is fine. */
void sl_exporter_stop(struct sl_exporter *x);
void sl_exporter_stats(struct sl_exporter *x, struct sl_exporter_stats *out);

#endif
