/* SPDX-License-Identifier: MIT
 *
 * All of a request is known when it is over, so nothing is kept for its trace meanwhile: its
 * headers are still there, and the engine has its times.
 */
#include "server/api/tracing.h"

#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "server/api/answer.h"
#include "server/api/call.h"
#include "server/http/route.h"
#include "server/http/sse.h"
#include "trace/context.h"
#include "trace/exporter.h"

#include <stdio.h>
#include <string.h>

#define MAX_TRACED_PROMPTS 8 /* of a request, whose parts have spans of their own */
#define CLIENT_LEFT        499

enum { KIND_INTERNAL = 1, KIND_SERVER = 2 };           /* of a span */
enum { FLAG_HAS_REMOTE = 0x100, FLAG_REMOTE = 0x200 }; /* whether its parent is elsewhere */

struct span {
    struct sl_trace_context context; /* of its trace, and its parent where there is one */
    bool has_parent, sampled;
    uint8_t id[8];
    struct sl_buf state;    /* tracestate */
    int64_t wall_offset_ns; /* wall clock - monotonic clock, now */
};

/* ---- identity */

static void put_be64(uint8_t *out, uint64_t x)
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(x >> (56 - 8 * i));
}

/* Random, and never 0, which stands for none. */
static void tracing_make_id(const struct sl_conn *c, uint8_t *out, size_t n_bytes)
{
    struct sl_loop *loop = c->loop;
    for (size_t i = 0; i < n_bytes; i += 8) {
        uint64_t serial = atomic_fetch_add(&loop->server->next_id, 1);
        put_be64(out + i, SL_MAX(sl_rng_at(loop->id_seed[i / 8 % 2], serial), 1));
    }
}

static void read_parent(const struct sl_http_parser *p, struct span *s)
{
    int n_parents = 0, n_members = 0;
    bool state_ok = true;
    for (size_t i = 0; i < p->n_headers; i++) {
        struct sl_str name = p->headers[i].name, value = p->headers[i].value;
        if (sl_str_equals_nocase(name, "traceparent")) {
            n_parents++;
            s->has_parent = sl_traceparent_parse(value.p, value.n, &s->context);
        } else if (sl_str_equals_nocase(name, "tracestate")) {
            state_ok = state_ok && sl_tracestate_add(&s->state, &n_members, value.p, value.n);
        }
    }
    s->has_parent = s->has_parent && n_parents == 1; /* of two, neither */
    if (!s->has_parent || !state_ok)
        sl_buf_clear(&s->state);
}

static bool is_sampled(const struct sl_trace_settings *settings, const struct span *s)
{
    uint64_t low = 0;
    if (s->has_parent && settings->follow_parent)
        return (s->context.flags & SL_TRACE_SAMPLED) != 0;
    if (settings->sampler != SL_SAMPLE_RATIO)
        return settings->sampler == SL_SAMPLE_ALL;
    for (size_t i = 8; i < 16; i++) /* as other languages' libraries do, so that they agree */
        low = low << 8 | s->context.trace_id[i];
    return settings->ratio >= 1.0 || low < (uint64_t)(settings->ratio * 0x1p64);
}

static void tracing_begin(const struct sl_conn *c, const struct sl_trace_settings *settings,
                          struct span *s)
{
    if (settings->propagate)
        read_parent(c->parser, s);
    if (!s->has_parent) {
        s->context.flags = SL_TRACE_RANDOM;
        tracing_make_id(c, s->context.trace_id, sizeof s->context.trace_id);
    }
    s->sampled = is_sampled(settings, s);
    if (s->sampled)
        tracing_make_id(c, s->id, sizeof s->id);
}

/* ---- JSON */

static void put_hex(struct sl_buf *b, const char *name, const uint8_t *p, size_t n)
{
    sl_buf_printf(b, "\"%s\":\"", name);
    for (size_t i = 0; i < n; i++) {
        sl_buf_putc(b, "0123456789abcdef"[p[i] >> 4]);
        sl_buf_putc(b, "0123456789abcdef"[p[i] & 15]);
    }
    SL_PUT(b, "\",");
}

static void tracing_put_key(struct sl_buf *b, const char *key, const char *type)
{
    if (b->n_bytes > 0 && b->data[b->n_bytes - 1] == '}')
        sl_buf_putc(b, ',');
    sl_buf_printf(b, "{\"key\":\"%s\",\"value\":{\"%s\":", key, type);
}

static void tracing_put_text(struct sl_buf *b, const char *key, const char *text)
{
    sl_trace_put_string(b, key, strlen(key), text, strlen(text));
}

static void tracing_put_int(struct sl_buf *b, const char *key, int64_t x)
{
    tracing_put_key(b, key, "intValue");
    sl_buf_printf(b, "\"%lld\"}}", (long long)x); /* of 64 bits, hence a string */
}

static void tracing_put_double(struct sl_buf *b, const char *key, double x)
{
    tracing_put_key(b, key, "doubleValue");
    sl_buf_json_double(b, x);
    SL_PUT(b, "}}");
}

/* What was a short decimal in the request is one here. */
static void tracing_put_float(struct sl_buf *b, const char *key, float x)
{
    tracing_put_key(b, key, "doubleValue");
    sl_buf_printf(b, "%.7g}}", (double)x);
}

static void tracing_put_bool(struct sl_buf *b, const char *key, bool x)
{
    tracing_put_key(b, key, "boolValue");
    sl_buf_puts(b, x ? "true}}" : "false}}");
}

/* A span up to its attributes. Times are monotonic. */
static void open_span(struct sl_buf *b, const struct span *s, const uint8_t id[8],
                      const uint8_t *parent, int kind, const char *name, uint64_t from_ns,
                      uint64_t to_ns)
{
    unsigned flags = SL_TRACE_SAMPLED | (s->context.flags & SL_TRACE_RANDOM) | FLAG_HAS_REMOTE;
    if (kind == KIND_SERVER && s->has_parent)
        flags |= FLAG_REMOTE;
    sl_buf_putc(b, '{');
    put_hex(b, "traceId", s->context.trace_id, sizeof s->context.trace_id);
    put_hex(b, "spanId", id, 8);
    if (parent != NULL)
        put_hex(b, "parentSpanId", parent, 8);
    if (s->state.n_bytes > 0) {
        SL_PUT(b, "\"traceState\":");
        sl_buf_json_string(b, s->state.data, s->state.n_bytes);
        sl_buf_putc(b, ',');
    }
    SL_PUT(b, "\"name\":");
    sl_buf_json_string(b, name, strlen(name));
    sl_buf_printf(b,
                  ",\"kind\":%d,\"flags\":%u,\"startTimeUnixNano\":\"%lld\","
                  "\"endTimeUnixNano\":\"%lld\",\"attributes\":[",
                  kind, flags, (long long)from_ns + s->wall_offset_ns,
                  (long long)SL_MAX(from_ns, to_ns) + s->wall_offset_ns);
}

/* ---- what a request was */

static const char *operation_of(const struct sl_route *route)
{
    static const struct {
        const char *path, *operation;
    } rows[] = {
        {"/v1/completions", "text_completion"},
        {"/v1/embeddings", "embeddings"},
        {"/pooling", "embeddings"},
        {"/rerank", "rerank"},
        {"/v1/rerank", "rerank"},
        {"/v2/rerank", "rerank"},
        {"/score", "score"},
        {"/v1/score", "score"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        if (strcmp(route->path, rows[i].path) == 0)
            return rows[i].operation;
    return "chat";
}

static void tracing_put_request(struct sl_buf *b, const struct sl_call *call)
{
    const struct sl_call_asked *a = &call->asked;
    tracing_put_text(b, "gen_ai.request.model", call->model);
    tracing_put_text(b, "gen_ai.response.model", call->model);
    tracing_put_text(b, "gen_ai.response.id", call->id);
    tracing_put_text(b, "gen_ai.request.id", call->id);
    if (call->api->pooling)
        return;
    tracing_put_int(b, "gen_ai.request.n", call->n);
    tracing_put_int(b, "gen_ai.request.choice.count", call->n_best > 0 ? call->n_best : call->n);
    tracing_put_float(b, "gen_ai.request.temperature", a->temperature);
    tracing_put_float(b, "gen_ai.request.top_p", a->top_p);
    if (a->top_k > 0)
        tracing_put_int(b, "gen_ai.request.top_k", a->top_k);
    tracing_put_float(b, "gen_ai.request.frequency_penalty", a->frequency_penalty);
    tracing_put_float(b, "gen_ai.request.presence_penalty", a->presence_penalty);
    if (call->max_tokens > 0)
        tracing_put_int(b, "gen_ai.request.max_tokens", call->max_tokens);
    if (a->has_seed)
        tracing_put_int(b, "gen_ai.request.seed", (int64_t)a->seed);
    tracing_put_bool(b, "gen_ai.request.stream", call->stream);
}

static void tracing_put_finish(struct sl_buf *b, const struct sl_call *call)
{
    static const char *const names[SL_N_FINISHES] = {[SL_FINISH_STOP] = "stop",
                                                     [SL_FINISH_LENGTH] = "length",
                                                     [SL_FINISH_ABORT] = "abort",
                                                     [SL_FINISH_ERROR] = "error",
                                                     [SL_FINISH_CACHE] = "cache_threshold"};
    bool any = false;
    for (int32_t i = 0; i < call->n_prompts * call->n; i++) {
        const struct sl_choice *ch = &call->choices[i];
        if (ch->finish == SL_RUNNING)
            continue;
        if (!any)
            tracing_put_key(b, "gen_ai.response.finish_reasons", "arrayValue");
        bool calls = ch->finish == SL_FINISH_STOP && sl_answer_has_calls(ch->answer);
        sl_buf_printf(b, "%s{\"stringValue\":\"%s\"}", any ? "," : "{\"values\":[",
                      calls ? "tool_calls" : names[ch->finish]);
        any = true;
    }
    if (any)
        SL_PUT(b, "]}}}");
}

static void tracing_put_latency(struct sl_buf *b, const char *key, uint64_t from_ns, uint64_t to_ns)
{
    if (from_ns != 0 && to_ns >= from_ns)
        tracing_put_double(b, key, (double)(to_ns - from_ns) * 1e-9);
}

static void tracing_put_usage(struct sl_buf *b, const struct sl_call *call, uint64_t now_ns)
{
    struct sl_usage u;
    int64_t n_thought = -1;
    sl_call_usage(call, &u);
    for (int32_t i = 0; i < call->n_prompts * call->n; i++) {
        int64_t n = sl_answer_n_thought(call->choices[i].answer);
        if (n >= 0)
            n_thought = SL_MAX(n_thought, 0) + n;
    }
    tracing_put_int(b, "gen_ai.usage.input_tokens", u.n_prompt);
    tracing_put_int(b, "gen_ai.usage.output_tokens", u.n_output);
    tracing_put_int(b, "gen_ai.usage.cache_read.input_tokens", u.n_cached);
    if (n_thought >= 0)
        tracing_put_int(b, "gen_ai.usage.reasoning.output_tokens", n_thought);
    tracing_put_int(b, "gen_ai.usage.prompt_tokens", u.n_prompt);
    tracing_put_int(b, "gen_ai.usage.completion_tokens", u.n_output);
    tracing_put_int(b, "gen_ai.usage.num_sequences", (int64_t)call->n * call->n_prompts);
    tracing_put_int(b, "sluice.preemptions", u.n_preemptions);
    tracing_put_latency(b, "gen_ai.latency.time_in_queue", u.t_submit_ns, u.t_scheduled_ns);
    tracing_put_latency(b, "gen_ai.latency.time_to_first_token", u.t_submit_ns, u.t_first_ns);
    tracing_put_latency(b, "gen_ai.latency.e2e", u.t_submit_ns, now_ns);
    tracing_put_latency(b, "gen_ai.latency.time_in_model_prefill", u.t_scheduled_ns, u.t_first_ns);
    tracing_put_latency(b, "gen_ai.latency.time_in_model_decode", u.t_first_ns, u.t_last_ns);
    tracing_put_latency(b, "gen_ai.latency.time_in_model_inference", u.t_scheduled_ns, u.t_last_ns);
}

/* The status of a server's span is an error when the server failed, not when it refused. */
static void close_request(struct sl_buf *b, const struct sl_call *call, int status)
{
    int code = call != NULL ? call->failed : 0;
    char text[16];
    bool failed = status >= 500 || (code != 0 && sl_code_http(code) >= 500);
    snprintf(text, sizeof text, "%d", status);
    if (code != 0)
        tracing_put_text(b, "error.type", sl_code_name(code));
    else if (status == CLIENT_LEFT)
        tracing_put_text(b, "error.type", "client_disconnected");
    else if (status >= 400)
        tracing_put_text(b, "error.type", text);
    sl_buf_putc(b, ']');
    if (failed)
        sl_buf_printf(b, ",\"status\":{\"code\":2,\"message\":\"%s\"}",
                      code != 0 ? sl_code_name(code) : text);
    sl_buf_putc(b, '}');
}

/* ---- its parts */

static int tracing_put_part(const struct sl_conn *c, struct sl_buf *b, const struct span *s,
                            const char *name, const struct sl_prompt *prompt, uint64_t from_ns,
                            uint64_t to_ns)
{
    uint8_t id[8];
    if (from_ns == 0 || to_ns < from_ns)
        return 0;
    tracing_make_id(c, id, sizeof id);
    sl_buf_putc(b, ',');
    open_span(b, s, id, s->id, KIND_INTERNAL, name, from_ns, to_ns);
    if (prompt->call->n_prompts > 1)
        tracing_put_int(b, "sluice.prompt.index", prompt->idx);
    SL_PUT(b, "]}");
    return 1;
}

static int put_parts(const struct sl_conn *c, struct sl_buf *b, const struct span *s,
                     uint64_t now_ns)
{
    const struct sl_call *call = c->call;
    int n = 0;
    for (int32_t i = 0; call != NULL && i < SL_MIN(call->n_prompts, MAX_TRACED_PROMPTS); i++) {
        const struct sl_prompt *p = &call->prompts[i];
        struct sl_usage u;
        sl_request_usage(p->req, &u);
        /* A part that has no end ended with the request. */
        bool ran = u.t_scheduled_ns != 0, spoke = u.t_first_ns != 0;
        n += tracing_put_part(c, b, s, "queue", p, u.t_submit_ns, ran ? u.t_scheduled_ns : now_ns);
        if (ran)
            n += tracing_put_part(c, b, s, "prefill", p, u.t_scheduled_ns,
                                  spoke ? u.t_first_ns : now_ns);
        if (spoke && !call->api->pooling)
            n += tracing_put_part(c, b, s, "decode", p, u.t_first_ns,
                                  SL_MAX(u.t_last_ns, u.t_first_ns));
    }
    return n;
}

static void put_request_span(const struct sl_conn *c, struct sl_buf *b, const struct span *s,
                             int status, uint64_t now_ns)
{
    const char *operation = operation_of(c->route);
    struct sl_buf name = {0};
    sl_buf_puts(&name, operation);
    if (c->call != NULL)
        sl_buf_printf(&name, " %s", c->call->model);
    open_span(b, s, s->id, s->has_parent ? s->context.span_id : NULL, KIND_SERVER,
              sl_buf_ok(&name) ? name.data : operation, c->t_start_ns, now_ns);
    sl_buf_deinit(&name);
    tracing_put_text(b, "gen_ai.operation.name", operation);
    tracing_put_text(b, "gen_ai.provider.name", "sluice");
    tracing_put_text(b, "http.request.method", sl_http_method_names[c->parser->method]);
    tracing_put_text(b, "http.route", c->route->path);
    tracing_put_int(b, "http.response.status_code", status);
    if (c->call != NULL) {
        tracing_put_request(b, c->call);
        tracing_put_finish(b, c->call);
        tracing_put_usage(b, c->call, now_ns);
    }
    close_request(b, c->call, status);
}

void sl_tracing_put(const struct sl_conn *c, int status)
{
    struct sl_server *server = c->loop->server;
    struct span s = {0};
    struct sl_buf b = {0};
    if (server->exporter == NULL || c->parser == NULL || c->route == NULL ||
        !c->route->starts_work || !(c->route->methods & 1u << c->parser->method))
        return;
    tracing_begin(c, server->cfg->traces, &s);
    if (s.sampled) {
        uint64_t now_ns = sl_now_ns();
        s.wall_offset_ns = sl_wall_ns() - (int64_t)now_ns;
        put_request_span(c, &b, &s, status, now_ns);
        int n = put_parts(c, &b, &s, now_ns);
        sl_exporter_add(server->exporter, &b, 1 + n);
    }
    sl_buf_deinit(&s.state);
    sl_buf_deinit(&b);
}
