/* SPDX-License-Identifier: MIT
 *
 * One thread, one event base. A slot is a connection with one request in flight; slots are made as
 * the load asks for them and reused. Replies are scanned for the few members that matter instead of
 * parsed, so that the generator stays far cheaper than what it measures.
 */
#include "cmd/bench_serve.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/sys.h"
#include "cmd/bench_drafts.h"
#include "cmd/flags.h"
#include "cmd/series.h"
#include "server/http/http_client.h"

#include <event2/event.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REPLY_LINE (1u << 20) /* of an event; a whole reply keeps its end only */

struct options {
    const char *url, *endpoint, *dataset, *dataset_path, *api_key, *model;
    int32_t n_prompts, concurrency;
    struct sl_bench_lengths lengths;
    float rate;        /* requests per second, 0 = as fast as allowed */
    float temperature; /* below 0: not sent, the server's default holds */
    uint64_t seed;     /* UINT64_MAX: another one in each run */
    bool ignore_eos, no_stream, json;
    bool spec_bench, any_n; /* any_n: nobody said how many requests */
};

struct bench;

struct slot {
    struct bench *bench;
    struct sl_http_client *client;
    struct slot *next_free;
    size_t item;
    uint64_t t_send_ns, t_first_ns, t_last_ns;
    int64_t n_events, n_prompt, n_output, n_accepted, n_rejected;
    struct sl_buf line; /* an unfinished line of a stream, or a whole reply */
    bool failed;
};

struct bench {
    const struct options *opt;
    struct sl_http_url url;
    struct event_base *base;
    struct event *arrival;
    struct sl_bench_dataset data;
    struct sl_rng rng;
    struct slot **slots, *free_slots;
    size_t n_slots, n_sent, n_due, n_done, n_ok;
    struct sl_buf body;
    struct sl_series ttft, tpot, itl, e2e, refusal; /* refusal: until 429 or 503 was read */
    int64_t n_input, n_output;
    struct sl_bench_draft_report drafts;
    uint64_t t_start_ns, t_end_ns;
    double next_arrival_s; /* since the start */
    char path[64], first_error[200];
    bool chat;
};

/* ---- reading replies */

/* The integer after the last "name": in s; false if there is none. */
static bool find_int(const char *s, size_t n, const char *name, int64_t *out)
{
    size_t n_name = strlen(name);
    bool found = false;
    for (const char *at = s; (at = memmem(at, n - (size_t)(at - s), name, n_name)) != NULL;) {
        at += n_name;
        const char *digits = at;
        while (digits < s + n && (*digits == ' ' || *digits == ':'))
            digits++;
        size_t len = 0;
        while (digits + len < s + n && digits[len] >= '0' && digits[len] <= '9')
            len++;
        found |= len > 0 && sl_parse_i64(digits, len, out);
    }
    return found;
}

/* Does the event carry text? A quote inside a JSON string is escaped, so the name is no content. */
static bool has_text(const char *s, size_t n, const char *name)
{
    const char *at = memmem(s, n, name, strlen(name));
    if (at == NULL)
        return false;
    at += strlen(name);
    while (at < s + n && (*at == ' ' || *at == ':'))
        at++;
    return at + 1 < s + n && at[0] == '"' && at[1] != '"';
}

static void take_usage(struct slot *slot, const char *s, size_t n)
{
    (void)find_int(s, n, "\"completion_tokens\"", &slot->n_output);
    (void)find_int(s, n, "\"prompt_tokens\"", &slot->n_prompt);
    (void)find_int(s, n, "\"accepted_prediction_tokens\"", &slot->n_accepted);
    (void)find_int(s, n, "\"rejected_prediction_tokens\"", &slot->n_rejected);
}

static void take_event(struct slot *slot, const char *s, size_t n)
{
    struct bench *b = slot->bench;
    bool text = has_text(s, n, b->chat ? "\"content\"" : "\"text\"") ||
                (b->chat && has_text(s, n, "\"reasoning_content\""));
    if (memmem(s, n, "\"usage\"", 7) != NULL)
        take_usage(slot, s, n);
    if (n > 9 && memmem(s, SL_MIN(n, 12), "{\"error\"", 8) != NULL)
        slot->failed = true;
    if (!text)
        return;
    uint64_t now = sl_now_ns();
    if (slot->n_events++ == 0)
        slot->t_first_ns = now;
    else
        (void)sl_series_add(&b->itl, (double)(now - slot->t_last_ns) * 1e-6);
    slot->t_last_ns = now;
}

static void bench_serve_on_body(void *arg, const char *data, size_t n)
{
    struct slot *slot = arg;
    if (slot->bench->opt->no_stream) {
        sl_buf_put(&slot->line, data, n);
        return;
    }
    while (n > 0) {
        const char *lf = memchr(data, '\n', n);
        size_t took = lf != NULL ? (size_t)(lf - data) + 1 : n;
        if (lf != NULL && slot->line.n_bytes == 0) { /* the usual case needs no copy */
            if (took > 6 && memcmp(data, "data:", 5) == 0)
                take_event(slot, data + 5, took - 5);
        } else {
            sl_buf_put(&slot->line, data, took);
            if (lf != NULL) {
                if (slot->line.n_bytes > 6 && memcmp(slot->line.data, "data:", 5) == 0)
                    take_event(slot, slot->line.data + 5, slot->line.n_bytes - 5);
                sl_buf_clear(&slot->line);
            }
        }
        data += took;
        n -= took;
    }
}

static void record(struct bench *b, struct slot *slot)
{
    uint64_t now = sl_now_ns();
    if (b->opt->no_stream) {
        take_usage(slot, slot->line.data, slot->line.n_bytes);
        slot->t_first_ns = now;
    }
    if (slot->n_output == 0)
        slot->n_output = slot->n_events; /* a server without usage: one token an event */
    if (slot->t_first_ns == 0)
        slot->t_first_ns = now; /* it ended without text */
    double ttft = (double)(slot->t_first_ns - slot->t_send_ns) * 1e-6;
    double e2e = (double)(now - slot->t_send_ns) * 1e-6;
    (void)sl_series_add(&b->ttft, ttft);
    (void)sl_series_add(&b->e2e, e2e);
    if (slot->n_output > 1)
        (void)sl_series_add(&b->tpot, (e2e - ttft) / (double)(slot->n_output - 1));
    b->n_input += slot->n_prompt;
    b->n_output += slot->n_output;
    b->n_ok++;
    const int32_t kind = b->data.items[slot->item % b->data.n_items].kind;
    if (kind < 0)
        return;
    struct sl_bench_kind *k = &b->drafts.kinds[kind];
    k->n++;
    k->n_output += slot->n_output;
    k->n_accepted += slot->n_accepted;
    k->n_rejected += slot->n_rejected;
}

/* ---- sending */

static void make_body(struct bench *b, size_t i)
{
    const struct options *opt = b->opt;
    struct sl_buf *out = &b->body;
    sl_buf_clear(out);
    sl_buf_puts(out, "{\"model\":");
    sl_buf_json_string(out, opt->model, strlen(opt->model));
    sl_buf_puts(out, b->chat ? ",\"messages\":[{\"role\":\"user\",\"content\":" : ",\"prompt\":");
    sl_bench_dataset_prompt(&b->data, i, out);
    sl_buf_printf(out, "%s,\"max_tokens\":%d", b->chat ? "}]" : "",
                  b->data.items[i % b->data.n_items].output_len);
    if (opt->temperature >= 0)
        sl_buf_printf(out, ",\"temperature\":%g", (double)opt->temperature);
    if (opt->ignore_eos)
        sl_buf_puts(out, ",\"ignore_eos\":true");
    sl_buf_puts(out, opt->no_stream
                         ? "}"
                         : ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
}

static void bench_serve_on_done(void *arg, int status, const char *error);
static const struct sl_http_client_events client_events = {bench_serve_on_body,
                                                           bench_serve_on_done};

static struct slot *bench_serve_take_slot(struct bench *b)
{
    struct slot *slot = b->free_slots;
    struct sl_error err;
    if (slot != NULL) {
        b->free_slots = slot->next_free;
        return slot;
    }
    if (b->n_slots == (size_t)b->opt->concurrency)
        return NULL;
    slot = sl_calloc(1, sizeof *slot);
    if (slot == NULL)
        return NULL;
    slot->bench = b;
    slot->line.max_bytes = MAX_REPLY_LINE;
    if (sl_http_client_create(b->base, &b->url, &client_events, slot, &slot->client, &err) != 0) {
        sl_free(slot);
        return NULL;
    }
    b->slots[b->n_slots++] = slot;
    return slot;
}

/* Sends what is due while slots are free. */
static void dispatch(struct bench *b)
{
    while (b->n_sent < b->n_due) {
        struct slot *slot = bench_serve_take_slot(b);
        if (slot == NULL)
            return;
        slot->item = b->n_sent++;
        slot->t_first_ns = slot->t_last_ns = 0;
        slot->n_events = slot->n_prompt = slot->n_output = 0;
        slot->n_accepted = slot->n_rejected = 0;
        slot->failed = false;
        sl_buf_clear(&slot->line);
        make_body(b, slot->item);
        slot->t_send_ns = sl_now_ns();
        sl_http_client_send(slot->client, b->path, b->opt->api_key, b->body.data, b->body.n_bytes);
    }
}

static void bench_serve_on_done(void *arg, int status, const char *error)
{
    struct slot *slot = arg;
    struct bench *b = slot->bench;
    if (status == 429 || status == 503)
        (void)sl_series_add(&b->refusal, (double)(sl_now_ns() - slot->t_send_ns) * 1e-6);
    if (status == 200 && !slot->failed) {
        record(b, slot);
    } else if (b->first_error[0] == '\0') {
        const char *line = slot->line.data != NULL && sl_buf_ok(&slot->line) ? slot->line.data : "";
        if (status == 0) /* no reply at all */
            snprintf(b->first_error, sizeof b->first_error, "%.150s",
                     error != NULL ? error : "no reply");
        else
            snprintf(b->first_error, sizeof b->first_error, "status %d: %.150s", status, line);
        sl_scrub(b->first_error, strlen(b->first_error));
    }
    slot->next_free = b->free_slots;
    b->free_slots = slot;
    if (++b->n_done == (size_t)b->opt->n_prompts) {
        b->t_end_ns = sl_now_ns();
        event_base_loopbreak(b->base);
        return;
    }
    dispatch(b);
}

/* Poisson arrivals: exponential gaps, kept as absolute times so that delays do not add up. */
static void on_arrival(evutil_socket_t fd, short what, void *arg)
{
    struct bench *b = arg;
    double now_s = (double)(sl_now_ns() - b->t_start_ns) * 1e-9;
    (void)fd;
    (void)what;
    while (b->n_due < (size_t)b->opt->n_prompts && b->next_arrival_s <= now_s) {
        b->n_due++;
        b->next_arrival_s += -log(1.0 - sl_rng_unit(sl_rng_next(&b->rng))) / (double)b->opt->rate;
    }
    dispatch(b);
    if (b->n_due == (size_t)b->opt->n_prompts)
        return;
    double wait_s = SL_MAX(b->next_arrival_s - now_s, 0.0);
    const struct timeval tv = {(time_t)wait_s, (suseconds_t)(fmod(wait_s, 1.0) * 1e6)};
    event_add(b->arrival, &tv);
}

static void bench_serve_on_interrupt(evutil_socket_t sig, short what, void *arg)
{
    struct bench *b = arg;
    (void)sig;
    (void)what;
    b->t_end_ns = sl_now_ns();
    event_base_loopbreak(b->base);
}

/* ---- the report */

struct section {
    const char *title, *label, *key;
    const struct sl_series *s;
};

static void print_table(const struct bench *b, double seconds, const struct section *sections,
                        size_t n)
{
    printf("============ Serving Benchmark Result ============\n");
    printf("%-40s %-10zu\n", "Successful requests:", b->n_ok);
    printf("%-40s %-10zu\n", "Failed requests:", b->n_done - b->n_ok);
    if (b->refusal.n > 0)
        printf("%-40s %-10zu\n", "Refused of them:", b->refusal.n);
    printf("%-40s %-10llu\n", "Seed:", (unsigned long long)b->opt->seed);
    printf("%-40s %-10.2f\n", "Benchmark duration (s):", seconds);
    printf("%-40s %-10lld\n", "Total input tokens:", (long long)b->n_input);
    printf("%-40s %-10lld\n", "Total generated tokens:", (long long)b->n_output);
    printf("%-40s %-10.2f\n", "Request throughput (req/s):", (double)b->n_ok / seconds);
    printf("%-40s %-10.2f\n", "Output token throughput (tok/s):", (double)b->n_output / seconds);
    printf("%-40s %-10.2f\n",
           "Total token throughput (tok/s):", (double)(b->n_input + b->n_output) / seconds);
    for (size_t i = 0; i < n; i++) {
        char name[48];
        static const double ps[] = {50, 90, 99};
        int pad = 50 - (int)strlen(sections[i].title);
        printf("%.*s%s%.*s\n", pad / 2, "-------------------------", sections[i].title,
               pad - pad / 2, "-------------------------");
        snprintf(name, sizeof name, "Mean %s (ms):", sections[i].label);
        printf("%-40s %-10.2f\n", name, sl_series_mean(sections[i].s));
        for (size_t k = 0; k < SL_COUNT(ps); k++) {
            if (k == 0)
                snprintf(name, sizeof name, "Median %s (ms):", sections[i].label);
            else
                snprintf(name, sizeof name, "P%.0f %s (ms):", ps[k], sections[i].label);
            printf("%-40s %-10.2f\n", name, sl_series_percentile(sections[i].s, ps[k]));
        }
    }
    sl_bench_drafts_table(&b->drafts, &b->data);
    printf("==================================================\n");
}

static void bench_serve_print_json(const struct bench *b, double seconds,
                                   const struct section *sections, size_t n)
{
    printf("{\"completed\": %zu, \"failed\": %zu, \"refused\": %zu, \"seed\": %llu, "
           "\"duration\": %.4f, \"total_input_tokens\": %lld, \"total_output_tokens\": %lld",
           b->n_ok, b->n_done - b->n_ok, b->refusal.n, (unsigned long long)b->opt->seed, seconds,
           (long long)b->n_input, (long long)b->n_output);
    printf(", \"request_throughput\": %.3f, \"output_throughput\": %.3f, "
           "\"total_token_throughput\": %.3f",
           (double)b->n_ok / seconds, (double)b->n_output / seconds,
           (double)(b->n_input + b->n_output) / seconds);
    for (size_t i = 0; i < n; i++)
        printf(", \"mean_%s_ms\": %.4f, \"median_%s_ms\": %.4f, \"p90_%s_ms\": %.4f, "
               "\"p99_%s_ms\": %.4f",
               sections[i].key, sl_series_mean(sections[i].s), sections[i].key,
               sl_series_percentile(sections[i].s, 50), sections[i].key,
               sl_series_percentile(sections[i].s, 90), sections[i].key,
               sl_series_percentile(sections[i].s, 99));
    sl_bench_drafts_json(&b->drafts, &b->data);
    printf("}\n");
}

static void bench_serve_report(struct bench *b)
{
    double seconds = (double)(b->t_end_ns - b->t_start_ns) * 1e-9;
    struct sl_series *all[] = {&b->ttft, &b->tpot, &b->itl, &b->e2e, &b->refusal};
    const struct section sections[] = {
        {"Time to First Token", "TTFT", "ttft", &b->ttft},
        {"Time per Output Token (excl. 1st token)", "TPOT", "tpot", &b->tpot},
        {"Inter-token Latency", "ITL", "itl", &b->itl},
        {"End-to-end Latency", "E2EL", "e2el", &b->e2e},
        {"Refusals (429 and 503)", "refusal", "refusal", &b->refusal},
    };
    size_t n_sections = SL_COUNT(sections) - (b->refusal.n == 0);
    for (size_t i = 0; i < SL_COUNT(all); i++) {
        sl_series_sort(all[i]);
    }
    if (b->opt->json)
        bench_serve_print_json(b, seconds, sections, n_sections);
    else
        print_table(b, seconds, sections, n_sections);
    if (b->first_error[0] != '\0')
        fprintf(stderr, "first failure: %s\n", b->first_error);
}

/* ---- the command */

static int run_load(struct bench *b, const struct sl_bench_server *server, struct sl_error *err)
{
    struct sl_error unknown; /* a server need not have /metrics */
    const bool counts = sl_bench_ask_drafts(server, &b->drafts.before, &unknown) == 0;
    const struct options *opt = b->opt;
    const struct timeval now = {0, 0};
    struct event *interrupt = evsignal_new(b->base, SIGINT, bench_serve_on_interrupt, b);
    b->arrival = evtimer_new(b->base, on_arrival, b);
    b->slots = sl_calloc((size_t)opt->concurrency, sizeof *b->slots);
    int rc = 0;
    if (interrupt == NULL || b->arrival == NULL || b->slots == NULL ||
        event_add(interrupt, NULL) != 0) {
        rc = sl_fail(err, SL_ENOMEM, "out of memory for %d connections", opt->concurrency);
    } else {
        b->rng = (struct sl_rng){.seed = opt->seed ^ 0xA5A5A5A5u};
        b->t_start_ns = sl_now_ns();
        if (opt->rate > 0) {
            event_add(b->arrival, &now);
        } else {
            b->n_due = (size_t)opt->n_prompts;
            dispatch(b);
        }
        event_base_dispatch(b->base);
        if (!counts || sl_bench_ask_drafts(server, &b->drafts.after, &unknown) != 0)
            b->drafts.after = b->drafts.before;
        bench_serve_report(b);
        if (b->n_ok < (size_t)opt->n_prompts)
            rc = sl_fail(err, SL_EIO, "%zu of %d requests succeeded", b->n_ok, opt->n_prompts);
    }
    for (size_t i = 0; i < b->n_slots; i++) {
        sl_http_client_destroy(b->slots[i]->client);
        sl_buf_deinit(&b->slots[i]->line);
        sl_free(b->slots[i]);
    }
    sl_free(b->slots);
    if (b->arrival != NULL)
        event_free(b->arrival);
    if (interrupt != NULL)
        event_free(interrupt);
    return rc;
}

/* Lengths are the server's tokens, where it can say what those are. */
static int fit_lengths(struct bench *b, const struct sl_bench_server *server, struct sl_error *err)
{
    const bool synthetic = b->data.n_items > 0 && b->data.items[0].prompt == NULL;
    int rc = synthetic ? sl_bench_ask_tokens(server, &b->data, err) : 0;
    if (rc == 0 || err->code == SL_ENOMEM)
        return rc;
    fprintf(stderr, "bench serve: %s: lengths of prompts are words, not tokens\n", err->msg);
    *err = (struct sl_error){0};
    return 0;
}

/* A name says what the file at --dataset-path is; without a name its lines do. */
static int dataset_of(struct options *opt, struct sl_error *err)
{
    const bool named = opt->dataset != NULL && (strcmp(opt->dataset, "spec-bench") == 0 ||
                                                strcmp(opt->dataset, "spec_bench") == 0);
    if (named && opt->dataset_path == NULL)
        return sl_fail(err, SL_EINVAL,
                       "--dataset %s: give Spec-Bench's question.jsonl with --dataset-path",
                       opt->dataset);
    if (!named && opt->dataset != NULL && opt->dataset_path != NULL)
        return sl_fail(err, SL_EINVAL,
                       "--dataset: '%.60s' is not spec-bench; a file alone needs no name",
                       opt->dataset);
    opt->spec_bench = named;
    if (opt->dataset_path != NULL)
        opt->dataset = opt->dataset_path;
    return 0;
}

static int bench_url(struct options *opt, struct sl_error *err)
{
    struct bench b = {.opt = opt, .chat = strcmp(opt->endpoint, "chat") == 0};
    char model[256];
    if (!b.chat && strcmp(opt->endpoint, "completions") != 0)
        return sl_fail(err, SL_EINVAL, "--endpoint must be chat or completions");
    snprintf(b.path, sizeof b.path, "/v1/%scompletions", b.chat ? "chat/" : "");
    int rc = sl_http_url_parse(opt->url, &b.url, err);
    if (rc == 0)
        rc = dataset_of(opt, err);
    if (rc == 0)
        rc = sl_bench_dataset_open(&b.data, opt->dataset, (size_t)opt->n_prompts, &opt->lengths,
                                   opt->seed, err);
    if (rc == 0 && opt->spec_bench && opt->any_n) /* each question once */
        opt->n_prompts = (int32_t)b.data.n_items;
    b.base = event_base_new();
    if (rc == 0 && b.base == NULL)
        rc = sl_fail(err, SL_ENOMEM, "out of memory");
    struct sl_bench_server server = {opt->url, opt->api_key, opt->model, b.chat};
    if (rc == 0 && opt->model == NULL) {
        rc = sl_bench_ask_model(&server, model, sizeof model, err);
        server.model = opt->model = model;
    }
    if (rc == 0)
        rc = fit_lengths(&b, &server, err);
    if (rc == 0)
        rc = run_load(&b, &server, err);
    if (b.base != NULL)
        event_base_free(b.base);
    sl_bench_dataset_close(&b.data);
    sl_buf_deinit(&b.body);
    struct sl_series *all[] = {&b.ttft, &b.tpot, &b.itl, &b.e2e, &b.refusal};
    for (size_t i = 0; i < SL_COUNT(all); i++)
        sl_series_deinit(all[i]);
    return rc;
}

#define OPT(field) offsetof(struct options, field)

static const struct sl_flag flags[] = {
    {SL_FLAG_STR, 0, "url", "base-url", OPT(url), 0, 0, "URL",
     "http://host:port or unix:/path, no TLS (default: port 8000)"},
    {SL_FLAG_STR, 0, "endpoint", NULL, OPT(endpoint), 0, 0, "E",
     "completions or chat (default: completions)"},
    {SL_FLAG_STR, 0, "model", NULL, OPT(model), 0, 0, "NAME", "default: the server's first"},
    {SL_FLAG_STR, 0, "api-key", NULL, OPT(api_key), 0, 0, "KEY", "sent as bearer key"},
    {SL_FLAG_INT, 0, "num-prompts", NULL, OPT(n_prompts), 1, 10000000, "N",
     "requests in all (default: 1000; spec-bench: each question)"},
    {SL_FLAG_INT, 0, "max-concurrency", NULL, OPT(concurrency), 1, 100000, "N",
     "requests at a time (default: 64; with --request-rate: all)"},
    {SL_FLAG_FLOAT, 0, "request-rate", NULL, OPT(rate), 0, 1e6, "R",
     "Poisson arrivals per second (default: as fast as answered)"},
    {SL_FLAG_INT, 0, "random-input-len", "input-len", OPT(lengths.input_len), 1, SL_MAX_CONTEXT,
     "N", "tokens of a synthetic prompt (default: 128)"},
    {SL_FLAG_INT, 0, "random-output-len", "output-len", OPT(lengths.output_len), 1, SL_MAX_CONTEXT,
     "N", "max_tokens (default: 128)"},
    {SL_FLAG_FLOAT, 0, "random-range-ratio", NULL, OPT(lengths.range), 0, 1, "R",
     "lengths vary by this share (default: 0)"},
    {SL_FLAG_STR, 0, "dataset", "dataset-name", OPT(dataset), 0, 0, "FILE",
     "trace (.csv, .jsonl), prompts (.jsonl), or spec-bench"},
    {SL_FLAG_STR, 0, "dataset-path", NULL, OPT(dataset_path), 0, 0, "FILE",
     "the same, or what --dataset spec-bench names: question.jsonl"},
    {SL_FLAG_INT, 0, "max-input-len", NULL, OPT(lengths.max_input_len), 1, SL_MAX_CONTEXT, "N",
     "cut the inputs of a trace to N tokens"},
    {SL_FLAG_SWITCH, 0, "ignore-eos", NULL, OPT(ignore_eos), 0, 0, NULL,
     "generate max_tokens whatever the model says"},
    {SL_FLAG_FLOAT, 0, "temperature", NULL, OPT(temperature), 0, 100, "T", "default: the server's"},
    {SL_FLAG_SWITCH_OFF, 0, "stream", NULL, OPT(no_stream), 0, 0, NULL,
     "ask for whole replies instead of streams"},
    {SL_FLAG_U64, 's', "seed", NULL, OPT(seed), 0, 0x1p53, "S",
     "of prompts and arrivals (default: a new one in each run)"},
    {SL_FLAG_SWITCH, 0, "json", NULL, OPT(json), 0, 0, NULL, "print one JSON object"},
};

static const struct sl_command command = {
    .name = "bench serve",
    .usage = "[--url URL] [FLAGS]",
    .summary = "measure an OpenAI-compatible server",
    .examples =
        "  sluice bench serve --url http://127.0.0.1:8000 --request-rate 8 --num-prompts 500\n"
        "  sluice bench serve --max-concurrency 32 --random-input-len 512 --ignore-eos\n",
};

int sl_bench_serve(int argc, char **argv)
{
    struct options opt = {
        .url = "http://127.0.0.1:8000",
        .endpoint = "completions",
        .lengths = {.input_len = 128, .output_len = 128},
        .temperature = -1,
        .seed = UINT64_MAX,
    };
    struct sl_flag_group groups[] = {{flags, (int)SL_COUNT(flags), &opt, 0}};
    struct sl_error err = {0};
    const char *none = NULL;
    int n_positional = 0;
    int rc = sl_flags_parse(&command, groups, 1, argc, argv, &none, 0, &n_positional, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    opt.any_n = opt.n_prompts == 0;
    if (opt.any_n)
        opt.n_prompts = 1000;
    if (opt.concurrency == 0)
        opt.concurrency = opt.rate > 0 ? opt.n_prompts : SL_MIN(64, opt.n_prompts);
    if (rc == 0 && opt.seed == UINT64_MAX) {
        rc = sl_random(&opt.seed, sizeof opt.seed, &err);
        opt.seed %= 1000000000; /* short enough to be typed again */
    }
    if (rc == 0)
        rc = bench_url(&opt, &err);
    return rc == 0 ? SL_EXIT_OK : sl_command_fail(&command, &err);
}
