/* SPDX-License-Identifier: MIT
 * settings.h - where traces go, how and which: a flag, and OpenTelemetry's environment variables.
 *
 * The variables are read because they mean the same to every program that a team traces: operators
 * of clusters inject them. As their specification has it, a value that cannot be read is told of in
 * the log and the default holds; but what would send traces nowhere is an error. Source:
 * opentelemetry-specification, configuration/sdk-environment-variables.md and protocol/exporter.md.
 * Read once, before threads that trace.
 */
#ifndef SL_TRACE_SETTINGS_H
#define SL_TRACE_SETTINGS_H

#include "base/buf.h"
#include "base/err.h"

#include <stdint.h>

#define SL_TRACE_MAX_HEADERS 32

enum sl_trace_sampler { SL_SAMPLE_ALL, SL_SAMPLE_NONE, SL_SAMPLE_RATIO };

struct sl_trace_settings {
    bool enabled;
    char *endpoint;                      /* the whole URL */
    char *headers[SL_TRACE_MAX_HEADERS]; /* "name: value" */
    int n_headers;
    int32_t timeout_ms;                         /* of one attempt to send */
    const char *ca_file, *cert_file, *key_file; /* of the environment; NULL: none */
    int32_t max_queue, max_batch;               /* spans */
    int32_t delay_ms;              /* longest time a span waits for others before it is sent */
    int32_t flush_ms;              /* in which what is queued at the end gets out, or not */
    enum sl_trace_sampler sampler; /* of traces that begin here, */
    double ratio;
    bool follow_parent;     /* ... and of those begun elsewhere? else as the caller decided */
    bool propagate;         /* traceparent and tracestate are read */
    struct sl_buf resource; /* JSON: its attributes, with commas */
};

/* endpoint: of the flag, or NULL. Without one there and in the environment, or when the
 * environment switches traces off, out->enabled is false. */
SL_MUST_CHECK int sl_trace_settings_read(struct sl_trace_settings *out, const char *endpoint,
                                         struct sl_error *err);
void sl_trace_settings_deinit(struct sl_trace_settings *s);

/* Puts {"key":...,"value":{"stringValue":...}} behind what is there. */
void sl_trace_put_string(struct sl_buf *b, const char *key, size_t n_key, const char *value,
                         size_t n_value);

#endif
