/* SPDX-License-Identifier: MIT
 * server.h - the OpenAI-compatible HTTP server over one engine, or several.
 *
 * sl_server_run opens the listeners (unless they are open already: server/http/loading.h), serves
 * on n_http_threads threads and returns when it was told to stop and every request in flight has
 * ended (or shutdown_timeout_ms passed). It belongs to the thread that calls it, which serves as
 * the first HTTP thread. The configuration and the engines are borrowed until it returns. Routes
 * and their authorisation are the table in server/http/route.c.
 */
#ifndef SL_SERVER_SERVER_H
#define SL_SERVER_SERVER_H

#include "base/err.h"
#include "sluice.h"

struct sl_key_rule;
struct sl_listeners;
struct sl_engine;

struct sl_server_model { /* one more model of a server */
    struct sl_engine *eng;
    const char *const *names; /* what `model` may say; the first is shown */
    int32_t n_names;          /* 0: the model's path */
};

struct sl_kv_events_config;
struct sl_trace_settings;

struct sl_server_config {               /* start from sl_server_config_default() */
    const char *host;                   /* address or name to listen on; NULL = no TCP listener */
    int32_t port;                       /* 0 = any free one */
    const char *uds;                    /* path of a UNIX socket, besides or instead of TCP */
    const char *port_file;              /* the TCP port is written here once it is served */
    struct sl_listeners *listeners;     /* listen.h: opened before; the server closes them. NULL: it
                                           opens what host, port and uds say */
    const char *const *api_keys;        /* any of these opens the routes that need a key */
    int32_t n_api_keys;                 /* 0: every route is open */
    struct sl_key_rule *key_rules;      /* [n_api_keys] keys.h; NULL: every key may do all */
    const char *const *served_names;    /* what `model` may say; the first is shown */
    int32_t n_served_names;             /* 0: the model's path */
    const struct sl_server_model *more; /* models beside the one that the server is run with; then
                                           every request says which it means */
    int32_t n_more;
    bool replicas; /* all of them are one model: any answers a request (replicas.h) */
    const char *const *allowed_origins; /* CORS; "*" = any; none: no CORS headers */
    int32_t n_allowed_origins;
    int32_t n_http_threads;
    int32_t max_connections;
    int32_t header_timeout_ms;  /* from the first byte of a request to the end of its headers */
    int32_t body_timeout_ms;    /* longest silence inside a body, and before a least speed holds */
    int32_t idle_timeout_ms;    /* a kept-alive connection without a request */
    int32_t write_timeout_ms;   /* in which a client takes SL_OUT_LOW bytes of its output, or all */
    int32_t request_timeout_ms; /* whole generation, 0 = none */
    int32_t sse_ping_ms;        /* comment on a silent stream, 0 = none */
    int32_t shutdown_timeout_ms; /* how long a drain waits for requests in flight */
    uint64_t max_body_bytes;
    uint64_t max_held_bytes;      /* of large bodies and unsent replies together; more is 503 */
    uint64_t max_stored_bytes;    /* of responses that clients may go on from; 0: none is kept */
    const char *file_storage;     /* folder of files and batches; NULL: there are none */
    uint64_t max_file_bytes;      /* that may lie there */
    const char *tool_call_parser; /* a name of output_formats.def, "none"; NULL or "auto": by the
                                     chat template */
    const char *reasoning_parser; /* likewise */
    const char *request_log;      /* a JSON line per generation is appended here; "-": stdout */
    const char *ssl_certfile;     /* PEM, the chain; NULL: no TLS */
    const char *ssl_keyfile;      /* PEM; NULL: in the same file */
    const struct sl_kv_events_config *kv_events; /* kv_publisher.h; NULL: none are published */
    const struct sl_trace_settings *traces;      /* trace/settings.h; NULL: none are made */
    int32_t log_stats_s;     /* while a model works, a line with its throughput so often; 0: none */
    bool access_log;         /* one line per request to the log; never bodies or keys */
    bool share_prefixes;     /* keys share one prefix cache instead of one each */
    bool refuse_unknown;     /* fields of requests that no endpoint knows are errors */
    bool timings;            /* replies say how fast they were made, as llama.cpp's */
    int32_t stream_interval; /* tokens of an event, at least; 0 or 1: as they come */
    struct sl_json_style json_style;  /* of constrained JSON, unless a request says otherwise */
    bool neutral_sampling;            /* ignore the defaults of generation_config.json */
    bool priority_scheduling;         /* requests may say a priority; else only 0 is accepted */
    bool lora_updates;                /* clients may load and unload adapters */
    bool sleep_mode;                  /* clients may put the engine to sleep and wake it */
    const struct sl_hub_config *pull; /* clients may download models into this cache; NULL: not */
    bool weight_updates;              /* clients may have other weights loaded, from any path */
    bool trust_request_chat_template; /* requests may bring their own chat_template */
    bool metrics_aliases;             /* /metrics has old names too */
    bool no_webui;                    /* without the page and what only the page needs */
    bool handle_signals;              /* SIGTERM and SIGINT drain, a second one aborts */
    int stop_fd;                      /* eventfd of an embedder: readable = drain; -1 = none */
};

void sl_server_config_default(struct sl_server_config *cfg);
/* Refuses what can be refused before there is an engine: names of parsers, files that cannot be
 * written. sl_server_run checks it again. */
SL_MUST_CHECK int sl_server_config_check(const struct sl_server_config *cfg, struct sl_error *err);
/* 0 after a complete drain. SL_ETIMEOUT: requests had to be aborted. Else why it could not start.
 */
SL_MUST_CHECK int sl_server_run(const struct sl_server_config *cfg, struct sl_engine *eng,
                                struct sl_error *err);

#endif
