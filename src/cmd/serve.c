/* SPDX-License-Identifier: MIT
 * serve.c - `sluice serve [MODEL]`: the OpenAI-compatible HTTP server.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sys.h"
#include "cmd/constraint.h"
#include "cmd/lora.h"
#include "cmd/models.h"
#include "server/api/params.h"
#include "server/events/kv_publisher.h"
#include "server/http/keys.h"
#include "server/http/listen.h"
#include "server/http/loading.h"
#include "server/server.h"
#include "trace/settings.h"

#include <stdio.h>
#include <string.h>

#define MAX_ITEMS 64

struct serve_flags {
    struct sl_server_config server;
    struct sl_loading *loading;
    struct sl_listeners listeners; /* open before anything is looked up, downloaded or loaded */
    struct sl_flag_list api_keys, served_names, allowed_origins, lora_modules;
    const char *log_level, *policy, *key_file, *generation_config, *unknown_fields;
    const char *kv_events_text, *otlp_endpoint, *structured_text;
    struct sl_cli_json_style json_style;
    char *whitespace;
    struct sl_keys *keys;
    struct sl_kv_events_config kv_events;
    struct sl_trace_settings traces;
    int32_t shutdown_s, request_s, ping_s, max_queued, max_wait_s, watchdog_s, max_itl_ms;
    const char *model;     /* instead of the first argument, as vLLM's and llama-server's */
    const char *for_model; /* --help shows it; models.c reads it */
    bool null_model, auto_tools, allow_pull;
    int32_t n_replicas;
    struct sl_server_model more[SL_CLI_MAX_MODELS];
    char key_text[8192];
    const char *key_items[MAX_ITEMS];
};

#define SERVER(field) offsetof(struct serve_flags, server.field)
#define SERVE(field)  offsetof(struct serve_flags, field)

static const struct sl_flag flags[] = {
    {SL_FLAG_HEADING, 0, NULL, NULL, 0, 0, 0, NULL, "Server"},
    {SL_FLAG_STR, 'm', "model", "model-path", SERVE(model), 0, 0, "MODEL",
     "the model, instead of the first argument"},
    {SL_FLAG_STR, 0, "host", NULL, SERVER(host), 0, 0, "ADDR",
     "address to listen on, several with commas (default: 127.0.0.1)"},
    {SL_FLAG_INT, 'p', "port", NULL, SERVER(port), 0, 65535, "N",
     "TCP port, 0 = any free one (default: 8000)"},
    {SL_FLAG_STR, 0, "port-file", NULL, SERVER(port_file), 0, 0, "F",
     "write the port here once it listens"},
    {SL_FLAG_STR, 0, "uds", NULL, SERVER(uds), 0, 0, "PATH",
     "listen on a UNIX socket (alone, unless --host is given)"},
    {SL_FLAG_STR, 0, "ssl-certfile", NULL, SERVER(ssl_certfile), 0, 0, "F",
     "serve over TLS: certificate chain, PEM; SIGHUP reads it again"},
    {SL_FLAG_STR, 0, "ssl-keyfile", NULL, SERVER(ssl_keyfile), 0, 0, "F",
     "its private key, PEM (default: the file of the certificate)"},
    {SL_FLAG_STR_LIST, 0, "api-key", NULL, SERVE(api_keys), 0, 0, "KEY",
     "require this key (bearer or x-api-key); may be repeated"},
    {SL_FLAG_STR, 0, "api-key-file", NULL, SERVE(key_file), 0, 0, "F",
     "file of keys with scopes and limits, instead of --api-key"},
    {SL_FLAG_SWITCH, 0, "share-prefixes", NULL, SERVER(share_prefixes), 0, 0, NULL,
     "let API keys share one prefix cache (default: one each)"},
    {SL_FLAG_STR_LIST, 0, "served-model-name", "alias", SERVE(served_names), 0, 0, "NAME",
     "name for requests to use; may be repeated (default: MODEL)"},
    {SL_FLAG_INT, 0, "data-parallel-size", "dp-size", SERVE(n_replicas), 1, SL_MAX_REPLICAS, "N",
     "engines of the model, each with its own GPUs (default: 1)"},
    {SL_FLAG_STR, 0, "for", NULL, SERVE(for_model), 0, 0, "NAME FLAGS",
     "engine and adapter flags for one of several models, at the end"},
    {SL_FLAG_PAIR_LIST, 0, "lora-modules", "lora-paths", SERVE(lora_modules), 0, 0, "N=DIR ...",
     "adapters (PEFT) that `model` may name; enables them"},
    {SL_FLAG_SWITCH, 0, "allow-runtime-lora-updating", NULL, SERVER(lora_updates), 0, 0, NULL,
     "let clients load and unload adapters, from any folder"},
    {SL_FLAG_SWITCH, 0, "enable-sleep-mode", NULL, SERVER(sleep_mode), 0, 0, NULL,
     "/sleep, /wake_up and /is_sleeping, as in vLLM"},
    {SL_FLAG_SWITCH, 0, "allow-weight-updates", NULL, SERVER(weight_updates), 0, 0, NULL,
     "/update_weights_from_disk: other weights, from any path"},
    {SL_FLAG_STR_LIST, 0, "allowed-origins", NULL, SERVE(allowed_origins), 0, 0, "O",
     "CORS origin; may be repeated (default: *)"},
    {SL_FLAG_STR, 0, "unknown-fields", NULL, SERVE(unknown_fields), 0, 0, "U",
     "ignore, with X-Ignored-Fields, or refuse (default: ignore)"},
    {SL_FLAG_SWITCH, 0, "timings", NULL, SERVER(timings), 0, 0, NULL,
     "add llama.cpp's `timings` to every reply, not only on request"},
    {SL_FLAG_INT, 0, "stream-interval", NULL, SERVER(stream_interval), 1, SL_MAX_STREAM_INTERVAL,
     "N", "minimum tokens per event of a stream (default: 1)"},
    {SL_FLAG_SWITCH, 0, "trust-request-chat-template", NULL, SERVER(trust_request_chat_template), 0,
     0, NULL, "let requests set chat_template"},
    {SL_FLAG_SWITCH, 0, "allow-pull", NULL, SERVE(allow_pull), 0, 0, NULL,
     "let clients download models into the cache (/api/pull)"},
    {SL_FLAG_STR, 0, "tool-call-parser", NULL, SERVER(tool_call_parser), 0, 0, "NAME",
     "parser of tool calls: vLLM's names, auto, none (default: auto)"},
    {SL_FLAG_STR, 0, "reasoning-parser", NULL, SERVER(reasoning_parser), 0, 0, "NAME",
     "parser of reasoning, likewise; auto: from the template"},
    {SL_FLAG_STR, 0, "structured-outputs-config", NULL, SERVE(structured_text), 0, 0, "JSON",
     "options for constrained JSON, as in vLLM"},
    {SL_FLAG_STR, 0, "generation-config", NULL, SERVE(generation_config), 0, 0, "G",
     "sampling defaults: auto (the model's) or vllm (neutral)"},
    {SL_FLAG_SWITCH, 0, "enable-auto-tool-choice", NULL, SERVE(auto_tools), 0, 0, NULL,
     "accepted as in vLLM; tool_choice auto needs no flag"},
    {SL_FLAG_INT, 0, "http-threads", "threads-http", SERVER(n_http_threads), 1, SL_MAX_HTTP_THREADS,
     "N", "threads for HTTP (default: 1)"},
    {SL_FLAG_INT, 0, "max-connections", NULL, SERVER(max_connections), 1, 1 << 20, "N",
     "open connections (default: 16384)"},
    {SL_FLAG_U64, 0, "max-held-bytes", NULL, SERVER(max_held_bytes), 1, 0x1p50, "N",
     "bytes of bodies and unread replies before 503 (default: 1G)"},
    {SL_FLAG_U64, 0, "max-stored-bytes", NULL, SERVER(max_stored_bytes), 0, 0x1p50, "N",
     "bytes of /v1/responses kept for later, 0 = none (default: 64M)"},
    {SL_FLAG_STR, 0, "file-storage-path", NULL, SERVER(file_storage), 0, 0, "DIR",
     "folder for /v1/files and /v1/batches (default: routes are off)"},
    {SL_FLAG_U64, 0, "max-file-storage-bytes", NULL, SERVER(max_file_bytes), 1, 0x1p62, "N",
     "most bytes stored there (default: 10G)"},
    {SL_FLAG_INT, 0, "max-num-queued-reqs", "max-queued-requests", SERVE(max_queued), 1, 1 << 20,
     "N", "requests waiting before 429 (default: the engine's)"},
    {SL_FLAG_STR, 0, "scheduling-policy", NULL, SERVE(policy), 0, 0, "P",
     "fcfs, or priority: lower `priority` runs first (default: fcfs)"},
    {SL_FLAG_INT, 0, "priority-max-wait", NULL, SERVE(max_wait_s), 1, 1 << 20, "S",
     "wait after which a request runs at any priority (default: 30)"},
    {SL_FLAG_INT, 0, "max-itl", NULL, SERVE(max_itl_ms), 0, 1 << 20, "MS",
     "longest gap prompts cause in streams, 0 = any (default: 50)"},
    {SL_FLAG_INT, 0, "timeout-keep-alive", NULL, SERVER(idle_timeout_ms), 1, INT32_MAX, "MS",
     "idle time of a connection (default: 75000)"},
    {SL_FLAG_INT, 0, "timeout-header", NULL, SERVER(header_timeout_ms), 1, INT32_MAX, "MS",
     "time for the headers of a request (default: 15000)"},
    {SL_FLAG_INT, 0, "timeout-body", NULL, SERVER(body_timeout_ms), 1, INT32_MAX, "MS",
     "longest pause within a request body (default: 30000)"},
    {SL_FLAG_INT, 0, "timeout-write", NULL, SERVER(write_timeout_ms), 1, INT32_MAX, "MS",
     "time for a client to take 16 KB of a reply (default: 60000)"},
    {SL_FLAG_INT, 0, "request-timeout", "timeout", SERVE(request_s), 0, 1 << 20, "S",
     "longest generation, 0 = none (default: 0)"},
    {SL_FLAG_INT, 0, "watchdog-timeout", NULL, SERVE(watchdog_s), 0, 86400, "S",
     "no progress for so long: /health is 503, 0 = off (default: 120)"},
    {SL_FLAG_INT, 0, "sse-ping-interval", NULL, SERVE(ping_s), 0, 3600, "S",
     "interval of comments on an idle stream, 0 = none (default: 5)"},
    {SL_FLAG_INT, 0, "shutdown-timeout", NULL, SERVE(shutdown_s), 0, 86400, "S",
     "wait for requests in flight when stopping (default: 30)"},
    {SL_FLAG_STR, 0, "kv-events-config", NULL, SERVE(kv_events_text), 0, 0, "JSON",
     "publish changes of the prefix cache over ZeroMQ, as in vLLM"},
    {SL_FLAG_STR, 0, "otlp-traces-endpoint", NULL, SERVE(otlp_endpoint), 0, 0, "URL",
     "OpenTelemetry traces: http://HOST:4318/v1/traces, or OTEL_*"},
    {SL_FLAG_SWITCH, 0, "metrics-aliases", NULL, SERVER(metrics_aliases), 0, 0, NULL,
     "add metric names that vLLM has dropped to /metrics"},
    {SL_FLAG_SWITCH_OFF, 0, "webui", NULL, SERVER(no_webui), 0, 0, NULL,
     "turn off the page at /, /api/state and /api/cancel"},
    {SL_FLAG_STR, 0, "request-log", NULL, SERVER(request_log), 0, 0, "F",
     "append a JSON line per generation; - is stdout"},
    {SL_FLAG_INT, 0, "log-stats-interval", NULL, SERVER(log_stats_s), 0, 3600, "S",
     "seconds between throughput lines, 0 = none (default: 10)"},
    {SL_FLAG_SWITCH, 0, "access-log", NULL, SERVER(access_log), 0, 0, NULL,
     "log a line per request"},
    {SL_FLAG_STR, 0, "log-level", NULL, SERVE(log_level), 0, 0, "L",
     "error, warning, info or debug (default: info)"},
    {SL_FLAG_SWITCH, 0, "null-model", NULL, SERVE(null_model), 0, 0, NULL,
     "answer without a model, to measure everything else"},
};

static int set_log_level(const char *name, struct sl_error *err)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    for (size_t i = 0; name != NULL && i < SL_COUNT(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            sl_log_set_level((enum sl_log_level)i);
            return 0;
        }
    }
    return name == NULL ? 0 : sl_fail(err, SL_EINVAL, "--log-level: unknown level '%s'", name);
}

static int set_policy(struct sl_server_config *cfg, const char *name, struct sl_error *err)
{
    cfg->priority_scheduling = name != NULL && strcmp(name, "priority") == 0;
    if (name == NULL || cfg->priority_scheduling || strcmp(name, "fcfs") == 0)
        return 0;
    return sl_fail(err, SL_EINVAL, "--scheduling-policy: '%s' is neither fcfs nor priority", name);
}

static int set_generation(struct sl_server_config *cfg, const char *name, struct sl_error *err)
{
    cfg->neutral_sampling = name != NULL && strcmp(name, "vllm") == 0;
    if (name == NULL || cfg->neutral_sampling || strcmp(name, "auto") == 0)
        return 0;
    return sl_fail(err, SL_EUNSUPPORTED, "--generation-config: '%s' is neither auto nor vllm",
                   name);
}

static int set_unknown(struct sl_server_config *cfg, const char *name, struct sl_error *err)
{
    cfg->refuse_unknown = name != NULL && strcmp(name, "refuse") == 0;
    if (name == NULL || cfg->refuse_unknown || strcmp(name, "ignore") == 0)
        return 0;
    return sl_fail(err, SL_EINVAL, "--unknown-fields: '%s' is neither ignore nor refuse", name);
}

/* `--api-key a,b` means two keys, as does giving the flag twice; the pieces live in text. */
static int split_list(const struct sl_flag_list *given, char *text, size_t n_text,
                      const char **items, int max_items, int *n_items, struct sl_error *err)
{
    size_t at = 0;
    *n_items = 0;
    for (int i = 0; i < given->n; i++) {
        const char *s = given->items[i];
        for (bool more = true; more;) {
            size_t n = strcspn(s, ",");
            if (n == 0)
                return sl_fail(err, SL_EINVAL, "a key or name is empty");
            if (*n_items == max_items || n + 1 > n_text - at)
                return sl_fail(err, SL_ELIMIT, "more than %d keys or names", max_items);
            memcpy(text + at, s, n);
            text[at + n] = '\0';
            items[(*n_items)++] = text + at;
            at += n + 1;
            more = s[n] == ',';
            s += n + 1;
        }
    }
    return 0;
}

static int set_keys(struct serve_flags *f, struct sl_keys **keys, struct sl_error *err)
{
    struct sl_server_config *cfg = &f->server;
    if (f->key_file == NULL)
        return 0;
    if (cfg->n_api_keys > 0)
        return sl_fail(err, SL_EINVAL, "--api-key and --api-key-file: only one of them");
    int rc = sl_keys_open(f->key_file, keys, err);
    if (rc != 0)
        return rc;
    cfg->api_keys = sl_keys_texts(*keys);
    cfg->n_api_keys = sl_keys_n(*keys);
    cfg->key_rules = sl_keys_rules(*keys);
    return 0;
}

static int set_kv_events(struct serve_flags *f, struct sl_engine_config *engine,
                         struct sl_error *err)
{
    if (f->kv_events_text == NULL)
        return 0;
    int rc = sl_kv_events_config_read(f->kv_events_text, &f->kv_events, err);
    if (rc != 0 || !f->kv_events.enabled)
        return rc;
    engine->kv_events = true;
    f->server.kv_events = &f->kv_events;
    return 0;
}

static int set_traces(struct serve_flags *f, struct sl_error *err)
{
    int rc = sl_trace_settings_read(&f->traces, f->otlp_endpoint, err);
    if (rc == 0 && f->traces.enabled)
        f->server.traces = &f->traces;
    return rc;
}

static int set_json_style(struct serve_flags *f, struct sl_error *err)
{
    struct sl_json_style *style = &f->server.json_style;
    int rc = f->structured_text == NULL
                 ? 0
                 : sl_json_style_read(f->structured_text, style, &f->whitespace, err);
    return rc != 0 ? rc : sl_cli_json_style(&f->json_style, style, err);
}

/* A pattern that cannot be used is told at start, not to every request. */
static int check_json_style(const struct serve_flags *f, struct sl_engine *eng,
                            struct sl_error *err)
{
    struct sl_constraint_desc desc = {.kind = SL_GRAMMAR_JSON_OBJECT,
                                      .style = f->server.json_style};
    struct sl_constraint *c = NULL;
    if (desc.style.whitespace == NULL || desc.style.whitespace[0] == '\0')
        return 0;
    int rc = sl_constraint_open(eng, &desc, &c, err);
    sl_constraint_release(c);
    return rc;
}

/* What the flags say of the server, and of every engine. */
static int configure(struct serve_flags *f, struct sl_engine_config *engine, struct sl_error *err)
{
    struct sl_server_config *cfg = &f->server;
    int rc = split_list(&f->api_keys, f->key_text, sizeof f->key_text, f->key_items, MAX_ITEMS,
                        &cfg->n_api_keys, err);
    cfg->api_keys = f->key_items;
    if (rc == 0)
        rc = set_log_level(f->log_level, err);
    if (rc == 0)
        rc = set_policy(cfg, f->policy, err);
    if (rc == 0)
        rc = set_generation(cfg, f->generation_config, err);
    if (rc == 0)
        rc = set_unknown(cfg, f->unknown_fields, err);
    if (rc == 0)
        rc = set_json_style(f, err);
    if (rc == 0)
        rc = set_keys(f, &f->keys, err);
    if (rc == 0)
        rc = set_kv_events(f, engine, err);
    if (rc == 0)
        rc = set_traces(f, err);
    if (rc != 0)
        return rc;
    if (f->allowed_origins.n > 0) {
        cfg->allowed_origins = f->allowed_origins.items;
        cfg->n_allowed_origins = f->allowed_origins.n;
    }
    if (cfg->ssl_keyfile != NULL && cfg->ssl_certfile == NULL)
        return sl_fail(err, SL_EINVAL, "--ssl-keyfile needs --ssl-certfile");
    cfg->replicas = f->n_replicas > 1;
    rc = sl_cli_lora_modules_check(&f->lora_modules, err);
    if (rc == 0)
        rc = sl_server_config_check(cfg, err);
    if (rc != 0)
        return rc;
    cfg->shutdown_timeout_ms = f->shutdown_s * 1000;
    cfg->request_timeout_ms = f->request_s * 1000;
    cfg->sse_ping_ms = f->ping_s * 1000;
    engine->enable_lora |= f->lora_modules.n > 0;
    engine->max_queued = f->max_queued;
    engine->priority_max_wait_ms = f->max_wait_s * 1000;
    engine->null_model = f->null_model;
    engine->max_itl_ms = f->max_itl_ms > 0 ? f->max_itl_ms : -1;
    engine->watchdog_s = f->watchdog_s > 0 ? f->watchdog_s : -1;
    return 0;
}

/* The first model's names are the server's; --served-model-name replaces them. */
static void set_names(struct serve_flags *f, struct sl_cli_served_models *m)
{
    struct sl_server_config *cfg = &f->server;
    if (f->served_names.n > 0) {
        m->bases[0].names = f->served_names.items;
        m->bases[0].n_names = f->served_names.n;
    }
    cfg->served_names = m->bases[0].names;
    cfg->n_served_names = m->bases[0].n_names;
    for (int i = 1; i < m->n && m->replicas; i++) {
        m->bases[i].names = m->bases[0].names;
        m->bases[i].n_names = m->bases[0].n_names;
    }
    for (int i = 1; i < m->n; i++)
        f->more[i - 1] = (struct sl_server_model){
            .eng = m->bases[i].eng, .names = m->bases[i].names, .n_names = m->bases[i].n_names};
    cfg->more = f->more;
    cfg->n_more = m->n - 1;
}

/* The port first: another server on it is found out before a model is downloaded or loaded, and
 * probes get an answer meanwhile. */
static int open_port(struct serve_flags *f, struct sl_error *err)
{
    int rc = sl_listeners_open(&f->server, &f->listeners, err);
    f->server.listeners = &f->listeners;
    return rc == 0 ? sl_loading_start(&f->listeners, &f->server, &f->loading, err) : rc;
}

static void end_loading(struct serve_flags *f)
{
    sl_loading_stop(f->loading);
    f->loading = NULL;
}

/* Another rank than 0 has no API: it computes for the server that has. */
static int follow(const struct sl_cli_served_models *m, struct sl_error *err)
{
    if (m->n > 1)
        return sl_fail(err, SL_EUNSUPPORTED, "--nnodes: several models cannot be divided yet");
    return sl_rank_follow(&m->all[0].cfg, err);
}

/* Each replica has all of them. */
static int load_adapters(const struct serve_flags *f, const struct sl_cli_served_models *m,
                         struct sl_error *err)
{
    const bool replicas = f->server.replicas;
    int rc = 0;
    for (int at = 0; at < (replicas ? m->n : 1) && rc == 0; at++) {
        char *names[SL_FLAG_LIST_MAX] = {0};
        rc = sl_cli_lora_modules(&f->lora_modules, m->bases + at, replicas ? 1 : m->n, names, err);
        for (int i = 0; i < f->lora_modules.n; i++)
            sl_free(names[i]);
    }
    return rc;
}

static int serve(struct serve_flags *f, struct sl_cli_served_models *m, struct sl_error *err)
{
    int rc = sl_cli_models_open(m, err);
    if (rc == 0)
        set_names(f, m);
    if (rc == 0)
        rc = load_adapters(f, m, err);
    end_loading(f);
    if (rc == 0)
        rc = check_json_style(f, m->all[0].eng, err);
    if (rc == 0)
        rc = sl_server_run(&f->server, m->all[0].eng, err);
    for (int i = 0; i < m->n; i++) {
        struct sl_error stuck;
        if (m->all[i].eng != NULL && sl_engine_health(m->all[i].eng, &stuck) == SL_ESTALLED) {
            *err = stuck; /* its thread may never end */
            rc = SL_ESTALLED;
        }
    }
    return rc;
}

static int serve_run(int argc, char **argv)
{
    struct serve_flags f = {.shutdown_s = 30, .ping_s = 5, .watchdog_s = 120, .max_itl_ms = 50};
    struct sl_engine_config engine = {0};
    struct sl_error err = {0};
    struct sl_hub_config hub = {0};
    struct sl_cli_served_models models = {0};
    const char *given[SL_CLI_MAX_MODELS];
    int n_given = 0, first_for = sl_cli_models_split(argc, argv);
    sl_server_config_default(&f.server);
    const char *default_host = f.server.host;
    f.server.host = NULL;
    struct sl_flag_group groups[] = {
        {flags, (int)SL_COUNT(flags), &f, 0},
        {sl_flags_json_style, sl_n_flags_json_style, &f.json_style, 0},
        {sl_flags_engine, sl_n_flags_engine, &engine, 0},
        {sl_flags_hub, sl_n_flags_hub, &hub, 0},
        {sl_flags_adapters, sl_n_flags_adapters, &engine, 0},
    };
    int rc = sl_flags_parse(&sl_cmd_serve, groups, (int)SL_COUNT(groups), first_for, argv, given,
                            SL_CLI_MAX_MODELS, &n_given, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    if (rc == 0 && f.model != NULL && n_given > 0)
        rc = sl_fail(&err, SL_EINVAL, "--model and the argument '%.60s' cannot be combined",
                     given[0]);
    if (rc == 0 && f.served_names.n > 0 && n_given > 1)
        rc = sl_fail(&err, SL_EINVAL,
                     "--served-model-name is for one model: of several, write NAME=MODEL");
    if (f.model != NULL && n_given == 0)
        given[n_given++] = f.model;
    if (f.server.host == NULL && f.server.uds == NULL)
        f.server.host = default_host;
    if (rc == 0)
        rc = configure(&f, &engine, &err);
    if (rc == 0)
        rc = sl_cli_models_check(argc, argv, first_for, &err);
    if (rc == 0 && engine.node_rank == 0)
        rc = open_port(&f, &err);
    if (rc == 0)
        rc =
            sl_cli_models_read(&models, given, n_given, &engine, &hub, argc, argv, first_for, &err);
    if (rc == 0)
        rc = sl_cli_models_replicate(&models, f.n_replicas, &err);
    struct sl_hub_config pulls = {.download_dir = hub.download_dir, .offline = hub.offline};
    if (f.allow_pull)
        f.server.pull = &pulls;
    if (rc == 0)
        rc = engine.node_rank == 0 ? serve(&f, &models, &err) : follow(&models, &err);
    end_loading(&f);
    sl_listeners_close(&f.listeners);
    sl_cli_models_close(&models);
    sl_keys_close(f.keys);
    sl_trace_settings_deinit(&f.traces);
    sl_free(f.whitespace);
    if (rc == SL_FLAGS_HELP) /* behind --for */
        return SL_EXIT_OK;
    /* Requests cut off by the time limit of a drain are in the log; the stop itself succeeded. */
    return rc == 0 || rc == SL_ETIMEOUT ? SL_EXIT_OK : sl_command_fail(&sl_cmd_serve, &err);
}

const struct sl_command sl_cmd_serve = {
    .name = "serve",
    .usage = "[MODEL | NAME=MODEL ...] [FLAGS] [--for NAME FLAGS]",
    .summary = "serve models over HTTP, compatible with OpenAI's API",
    .examples =
        "  sluice serve Qwen/Qwen3-0.6B                            http://127.0.0.1:8000/v1\n"
        "  sluice serve Qwen/Qwen3-0.6B --host 0.0.0.0 --api-key SECRET\n"
        "  sluice serve chat=./Qwen3-0.6B embed=./bge              two models, one pool of KV "
        "pages\n",
    .brief = "host port api-key served-model-name max-model-len max-num-seqs "
             "max-num-batched-tokens kv-cache-memory-bytes kv-cache-dtype gpu-memory-utilization "
             "cpu-offload-experts device threads chat-template tool-call-parser reasoning-parser "
             "lora-modules max-itl "
             "uds ssl-certfile file-storage-path request-log log-level offline",
    .details =
        "Endpoints under /v1: chat/completions completions responses messages embeddings files\n"
        "batches models; others: /tokenize /detokenize /rerank /score /health /metrics, a page at "
        "/\n",
    .run = serve_run,
};
