/* SPDX-License-Identifier: MIT
 *
 * Rows are sorted by name: each member of the request finds its row by binary search, so that the
 * cost follows what a client sends and not how many fields exist.
 */
#include "server/api/params.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

enum kind {
    K_BOOL,
    K_INT,      /* int32_t in [min, max] */
    K_FLOAT,    /* float in [min, max] */
    K_POSITIVE, /* float in (min, max] */
    K_SEED,
    K_STRING,        /* at most max bytes */
    K_JSON,          /* checked later */
    K_IGNORE,        /* accepted as it is: says nothing about the output */
    K_REFUSE,        /* would change the output and cannot be honoured */
    K_REFUSE_TRUE,   /* likewise, but false says nothing */
    K_REFUSE_FILLED, /* likewise, but an empty string, array or object says nothing */
    K_TRANSFER       /* K_JSON of one of two servers, else K_REFUSE_FILLED */
};

enum {
    C = SL_ENDPOINT_CHAT,
    T = SL_ENDPOINT_COMPLETIONS,
    M = SL_ENDPOINT_MESSAGES,
    R = SL_ENDPOINT_RESPONSES,
    CT = C | T,
    CTR = C | T | R,
    CMR = C | M | R, /* conversations */
    ALL = C | T | M | R
};

struct row {
    const char *name;
    enum kind kind;
    unsigned endpoints;
    size_t offset;
    double min, max;
};

#define P(field) offsetof(struct sl_params, field)
#define S(field) offsetof(struct sl_params, sampling.field)

static const struct row rows[] = {
    {"add_generation_prompt", K_BOOL, CMR, P(add_generation_prompt), 0, 0},
    {"add_special_tokens", K_BOOL, ALL, P(add_special_tokens), 0, 0},
    {"allowed_token_ids", K_JSON, ALL, P(allowed_token_ids), 0, 0},
    {"audio", K_REFUSE, C, 0, 0, 0},
    {"background", K_REFUSE_TRUE, R, 0, 0, 0},
    {"bad_words", K_JSON, ALL, P(bad_words), 0, 0},
    {"best_of", K_INT, CT, P(best_of), 1, SL_MAX_N},
    {"bootstrap_host", K_JSON, ALL, P(bootstrap_host), 0, 0},
    {"bootstrap_port", K_JSON, ALL, P(bootstrap_port), 0, 0},
    {"bootstrap_room", K_JSON, ALL, P(bootstrap_room), 0, 0},
    {"cache_control", K_IGNORE, M, 0, 0, 0},
    {"cache_hit_threshold", K_FLOAT, CT, P(cache_hit_threshold), 0, 1},
    {"cache_salt", K_STRING, ALL, P(cache_salt), 0, SL_MAX_CACHE_SALT},
    {"chat_template", K_STRING, CMR, P(chat_template), 0, SL_MAX_TEMPLATE},
    {"chat_template_kwargs", K_JSON, CMR, P(chat_template_kwargs), 0, 0},
    {"container", K_REFUSE_FILLED, M, 0, 0, 0},
    {"context_management", K_IGNORE, M, 0, 0, 0}, /* read by anthropic_in.c */
    {"continue_final_message", K_BOOL, CMR, P(continue_final_message), 0, 0},
    {"conversation", K_REFUSE, R, 0, 0, 0},
    {"custom_logit_processor", K_REFUSE_FILLED, ALL, 0, 0, 0},
    {"diagnostics", K_IGNORE, M, 0, 0, 0},
    {"documents", K_JSON, CMR, P(documents), 0, 0},
    {"ebnf", K_JSON, ALL, P(ebnf), 0, 0},
    {"ec_transfer_params", K_REFUSE_FILLED, ALL, 0, 0, 0},
    {"echo", K_BOOL, CT, P(echo), 0, 0},
    {"frequency_penalty", K_FLOAT, ALL, S(frequency_penalty), -2, 2},
    {"function_call", K_REFUSE, C, 0, 0, 0},
    {"functions", K_REFUSE_FILLED, C, 0, 0, 0},
    {"grammar", K_JSON, ALL, P(grammar), 0, 0},
    {"guided_choice", K_JSON, ALL, P(guided_choice), 0, 0},
    {"guided_decoding_backend", K_IGNORE, ALL, 0, 0, 0},
    {"guided_grammar", K_JSON, ALL, P(guided_grammar), 0, 0},
    {"guided_json", K_JSON, ALL, P(guided_json), 0, 0},
    {"guided_json_object", K_BOOL, ALL, P(guided_json_object), 0, 0},
    {"guided_regex", K_JSON, ALL, P(guided_regex), 0, 0},
    {"guided_whitespace_pattern", K_STRING, ALL, P(guided_whitespace), 0, SL_MAX_SPACE_PATTERN},
    {"ignore_eos", K_BOOL, ALL, S(ignore_eos), 0, 0},
    {"include", K_IGNORE, R, 0, 0, 0}, /* read by responses_in.c */
    {"include_reasoning", K_BOOL, CMR, P(include_reasoning), 0, 0},
    {"include_stop_str_in_output", K_BOOL, ALL, S(include_stop_str_in_output), 0, 0},
    {"inference_geo", K_IGNORE, M, 0, 0, 0},
    {"input", K_JSON, R, P(messages), 0, 0},
    {"instructions", K_STRING, R, P(instructions), 0, SL_MAX_HTTP_BODY},
    {"json_schema", K_JSON, ALL, P(json_schema), 0, 0},
    {"kv_transfer_params", K_TRANSFER, ALL, P(kv_transfer_params), 0, 0},
    {"length_penalty", K_IGNORE, CT, 0, 0, 0}, /* of beam search, which is refused */
    {"logit_bias", K_JSON, ALL, P(logit_bias), 0, 0},
    {"logprob_token_ids", K_JSON, CT, P(logprob_token_ids), 0, 0},
    {"logprobs", K_JSON, CTR, P(logprobs), 0, 0},
    {"lora_scale", K_FLOAT, ALL, P(lora_scale), -SL_MAX_ADAPTER_SCALE, SL_MAX_ADAPTER_SCALE},
    {"max_completion_tokens", K_INT, C, P(max_completion_tokens), 1, INT32_MAX},
    {"max_output_tokens", K_INT, R, S(max_tokens), 1, INT32_MAX},
    {"max_tokens", K_INT, C | T | M, S(max_tokens), 0, INT32_MAX},
    {"max_tool_calls", K_IGNORE, R, 0, 0, 0}, /* of tools that only OpenAI runs */
    {"mcp_servers", K_REFUSE_FILLED, M, 0, 0, 0},
    {"media_io_kwargs", K_IGNORE, C, 0, 0, 0}, /* of parts that are refused */
    {"messages", K_JSON, C | M, P(messages), 0, 0},
    {"metadata", K_IGNORE, ALL, 0, 0, 0},
    {"min_p", K_FLOAT, ALL, S(min_p), 0, 1},
    {"min_tokens", K_INT, ALL, S(min_tokens), 0, INT32_MAX},
    {"mm_processor_kwargs", K_IGNORE, C, 0, 0, 0}, /* likewise */
    {"modalities", K_JSON, C, P(modalities), 0, 0},
    {"model", K_STRING, ALL, P(model), 0, 4096},
    {"n", K_INT, CT, S(n), 1, SL_MAX_N},
    {"nvext", K_JSON, ALL, P(nvext), 0, 0},
    {"output_config", K_IGNORE, M, 0, 0, 0}, /* read by anthropic_in.c */
    {"output_format", K_IGNORE, M, 0, 0, 0}, /* likewise */
    {"parallel_tool_calls", K_BOOL, CMR, P(parallel_tool_calls), 0, 0},
    {"prediction", K_JSON, C, P(prediction), 0, 0},
    {"presence_penalty", K_FLOAT, ALL, S(presence_penalty), -2, 2},
    {"previous_response_id", K_STRING, R, P(previous_response_id), 0, 64},
    {"priority", K_INT, ALL, P(priority), INT32_MIN, INT32_MAX},
    {"prompt", K_JSON, T, P(prompt), 0, 0},
    {"prompt_cache_key", K_IGNORE, CTR, 0, 0, 0},
    {"prompt_cache_options", K_IGNORE, CTR, 0, 0, 0},
    {"prompt_cache_retention", K_IGNORE, CTR, 0, 0, 0},
    {"prompt_embeds", K_REFUSE, T, 0, 0, 0},
    {"prompt_logprobs", K_INT, CT, S(prompt_logprobs), 0, SL_MAX_LOGPROBS},
    {"reasoning", K_IGNORE, R, 0, 0, 0}, /* read by responses_in.c */
    {"reasoning_effort", K_STRING, CMR, P(reasoning_effort), 0, 64},
    {"regex", K_JSON, ALL, P(regex), 0, 0},
    {"repetition_detection", K_JSON, ALL, P(repetition_detection), 0, 0},
    {"repetition_penalty", K_POSITIVE, ALL, S(repetition_penalty), 0, 100},
    {"request_id", K_STRING, ALL, P(request_id), 0, 128},
    {"response_format", K_JSON, ALL, P(response_format), 0, 0},
    {"return_prompt_text", K_BOOL, C, P(return_prompt_text), 0, 0},
    {"return_token_ids", K_BOOL, CT, P(return_token_ids), 0, 0},
    {"return_tokens_as_token_ids", K_BOOL, CT, P(tokens_as_ids), 0, 0},
    {"safety_identifier", K_IGNORE, CTR, 0, 0, 0},
    {"seed", K_SEED, ALL, 0, 0, 0},
    {"service_tier", K_IGNORE, ALL, 0, 0, 0},
    {"session_id", K_JSON, ALL, P(session_id), 0, 0},
    {"skip_special_tokens", K_BOOL, ALL, P(skip_special_tokens), 0, 0},
    {"spaces_between_special_tokens", K_IGNORE, ALL, 0, 0, 0},
    {"speed", K_IGNORE, M, 0, 0, 0},
    {"stop", K_JSON, CTR, P(stop), 0, 0},
    {"stop_regex", K_REFUSE_FILLED, ALL, 0, 0, 0},
    {"stop_sequences", K_JSON, M, P(stop), 0, 0},
    {"stop_token_ids", K_JSON, ALL, P(stop_token_ids), 0, 0},
    {"store", K_BOOL, CTR, P(store), 0, 0},
    {"stream", K_BOOL, ALL, P(stream), 0, 0},
    {"stream_interval", K_INT, ALL, P(stream_interval), 1, SL_MAX_STREAM_INTERVAL},
    {"stream_options", K_JSON, CTR, P(stream_options), 0, 0},
    {"structural_tag", K_JSON, ALL, P(structural_tag), 0, 0},
    {"structured_outputs", K_JSON, ALL, P(structured_outputs), 0, 0},
    {"suffix", K_REFUSE_FILLED, T, 0, 0, 0},
    {"system", K_IGNORE, M, 0, 0, 0}, /* read by anthropic_in.c */
    {"temperature", K_FLOAT, ALL, S(temperature), 0, 100},
    {"text", K_IGNORE, R, 0, 0, 0},     /* read by responses_in.c */
    {"thinking", K_IGNORE, M, 0, 0, 0}, /* read by anthropic_in.c */
    {"thinking_token_budget", K_INT, ALL, P(thinking_token_budget), -1, INT32_MAX},
    {"timings_per_token", K_BOOL, CT, P(timings_per_token), 0, 0},
    {"tool_choice", K_JSON, CMR, P(tool_choice), 0, 0},
    {"tools", K_JSON, CMR, P(tools), 0, 0},
    {"top_k", K_INT, ALL, S(top_k), -1, INT32_MAX},
    {"top_logprobs", K_INT, C | R, P(top_logprobs), 0, SL_MAX_LOGPROBS},
    {"top_p", K_POSITIVE, ALL, S(top_p), 0, 1},
    {"truncate_prompt_tokens", K_INT, ALL, P(truncate_prompt_tokens), -1, INT32_MAX},
    {"truncation", K_IGNORE, R, 0, 0, 0}, /* read by responses_in.c */
    {"truncation_side", K_JSON, ALL, P(truncation_side), 0, 0},
    {"use_beam_search", K_REFUSE_TRUE, CT, 0, 0, 0},
    {"user", K_IGNORE, ALL, 0, 0, 0},
    {"verbosity", K_IGNORE, C, 0, 0, 0},
    {"vllm_xargs", K_REFUSE_FILLED, ALL, 0, 0, 0},
    {"watermarking", K_REFUSE_TRUE, ALL, 0, 0, 0},
    {"web_search_options", K_REFUSE, C, 0, 0, 0},
};

int sl_params_n_fields(void)
{
    return (int)SL_COUNT(rows);
}

const char *sl_params_field(int i, unsigned *endpoints)
{
    *endpoints = rows[i].endpoints;
    return rows[i].name;
}

static const struct row *params_find_row(const char *name)
{
    size_t lo = 0, hi = SL_COUNT(rows);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        int order = strcmp(name, rows[mid].name);
        if (order == 0)
            return &rows[mid];
        if (order < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

void sl_params_blame(struct sl_refusal *r)
{
    char name[sizeof r->param];
    size_t n = strspn(r->err.msg, "abcdefghijklmnopqrstuvwxyz_");
    if (n == 0 || n >= sizeof name)
        return;
    memcpy(name, r->err.msg, n);
    name[n] = '\0';
    if (params_find_row(name) != NULL)
        sl_refusal_param(r, name);
}

static int refuse_unsupported(const struct row *row, struct sl_refusal *r)
{
    return sl_refuse(r, SL_EUNSUPPORTED, row->name, "not supported yet: %s", row->name);
}

static bool is_filled(const json_t *v)
{
    return json_is_array(v)    ? json_array_size(v) > 0
           : json_is_object(v) ? json_object_size(v) > 0
           : json_is_string(v) ? json_string_length(v) > 0
                               : true;
}

static int read_float(struct sl_params *p, const struct row *row, const json_t *v,
                      struct sl_refusal *r)
{
    double x = 0;
    int rc = sl_json_number(v, row->name, row->min, row->max, &x, r);
    if (rc != 0)
        return rc;
    /* The smallest doubles above zero would round to a float zero. */
    if (row->kind == K_POSITIVE && (float)x <= (float)row->min)
        return sl_refuse(r, SL_EINVAL, row->name, "%s must be above %g, got %g", row->name,
                         row->min, x);
    *(float *)((char *)p + row->offset) = (float)x;
    return 0;
}

static int params_read_field(struct sl_params *p, const struct row *row, const json_t *v,
                             struct sl_refusal *r)
{
    void *field = (char *)p + row->offset;
    int64_t x = 0;
    int rc;
    switch (row->kind) { /* unreachable: none of them */
    case K_BOOL:
        return sl_json_bool(v, row->name, field, r);
    case K_INT:
        rc = sl_json_int(v, row->name, (int64_t)row->min, (int64_t)row->max, &x, r);
        if (rc == 0)
            *(int32_t *)field = (int32_t)x;
        return rc;
    case K_FLOAT:
    case K_POSITIVE:
        return read_float(p, row, v, r);
    case K_SEED:
        rc = sl_json_int(v, row->name, INT64_MIN, INT64_MAX, &x, r);
        if (rc == 0 && x != -1) { /* -1 means "draw one", as in vLLM */
            p->sampling.seed = (uint64_t)x;
            p->sampling.has_seed = true;
        }
        return rc;
    case K_STRING:
        return sl_json_cstr(v, row->name, (size_t)row->max, field, r);
    case K_JSON:
        *(const json_t **)field = v;
        return 0;
    case K_IGNORE:
        return 0;
    case K_REFUSE:
        return refuse_unsupported(row, r);
    case K_REFUSE_TRUE:
        return json_is_false(v) ? 0 : refuse_unsupported(row, r);
    case K_REFUSE_FILLED:
        return is_filled(v) ? refuse_unsupported(row, r) : 0;
    case K_TRANSFER:
        if (is_filled(v) && !p->transfers)
            return sl_refuse(r, SL_EUNSUPPORTED, row->name,
                             "%s: this server has no --disaggregation-mode", row->name);
        *(const json_t **)field = is_filled(v) ? v : NULL;
        return 0;
    }
    return 0;
}

static int check_logprob_ids(const struct sl_params *p, struct sl_refusal *r)
{
    return p->sampling.n_logprob_token_ids == 0 || p->want_logprobs
               ? 0
               : sl_refuse(r, SL_EINVAL, "logprob_token_ids", "logprob_token_ids needs logprobs");
}

static int parse_logprobs(struct sl_params *p, struct sl_refusal *r)
{
    if (p->endpoint == SL_ENDPOINT_COMPLETIONS) {
        int64_t k;
        if (p->logprobs == NULL)
            return check_logprob_ids(p, r);
        int rc = sl_json_int(p->logprobs, "logprobs", 0, SL_MAX_LOGPROBS, &k, r);
        if (rc != 0)
            return rc;
        p->want_logprobs = true;
        p->sampling.logprobs = (int32_t)k;
        if (p->echo && p->sampling.prompt_logprobs < k)
            p->sampling.prompt_logprobs = (int32_t)k;
        return 0;
    }
    if (p->logprobs != NULL) {
        int rc = sl_json_bool(p->logprobs, "logprobs", &p->want_logprobs, r);
        if (rc != 0)
            return rc;
    }
    if (p->top_logprobs > 0 && !p->want_logprobs && p->endpoint == SL_ENDPOINT_CHAT)
        return sl_refuse(r, SL_EINVAL, "top_logprobs", "top_logprobs needs logprobs: true");
    if (p->want_logprobs)
        p->sampling.logprobs = SL_MAX(p->top_logprobs, 0);
    return check_logprob_ids(p, r);
}

static int parse_stream_options(struct sl_params *p, struct sl_refusal *r)
{
    const json_t *v = p->stream_options;
    if (v == NULL)
        return 0;
    if (!json_is_object(v))
        return sl_refuse(r, SL_EINVAL, "stream_options", "stream_options must be an object");
    if (!p->stream)
        return sl_refuse(r, SL_EINVAL, "stream_options", "stream_options needs stream: true");
    const json_t *usage = json_object_get(v, "include_usage");
    const json_t *each = json_object_get(v, "continuous_usage_stats");
    int rc = 0;
    if (usage != NULL && !json_is_null(usage))
        rc = sl_json_bool(usage, "stream_options.include_usage", &p->include_usage, r);
    if (rc == 0 && each != NULL && !json_is_null(each))
        rc = sl_json_bool(each, "stream_options.continuous_usage_stats", &p->continuous_usage, r);
    return rc;
}

static int parse_modalities(const struct sl_params *p, struct sl_refusal *r)
{
    const json_t *v = p->modalities;
    if (v == NULL)
        return 0;
    if (!json_is_array(v))
        return sl_refuse(r, SL_EINVAL, "modalities", "modalities must be an array of strings");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *s = json_string_value(json_array_get(v, i));
        if (s == NULL || strcmp(s, "text") != 0)
            return sl_refuse(r, SL_EUNSUPPORTED, "modalities",
                             "not supported: modalities other than text");
    }
    return 0;
}

static int check_chat(struct sl_params *p, const struct sl_param_limits *limits,
                      struct sl_refusal *r)
{
    if (p->max_completion_tokens > 0)
        p->sampling.max_tokens = p->max_completion_tokens;
    if (p->chat_template != NULL && !limits->trust_request_chat_template)
        return sl_refuse(r, SL_EINVAL, "chat_template",
                         "chat_template in a request is refused; the server can allow it with "
                         "--trust-request-chat-template");
    if (p->chat_template_kwargs != NULL && !json_is_object(p->chat_template_kwargs))
        return sl_refuse(r, SL_EINVAL, "chat_template_kwargs",
                         "chat_template_kwargs must be an object");
    if (p->documents != NULL && !json_is_array(p->documents))
        return sl_refuse(r, SL_EINVAL, "documents", "documents must be an array");
    if (p->continue_final_message && p->add_generation_prompt)
        return sl_refuse(r, SL_EINVAL, "continue_final_message",
                         "continue_final_message needs add_generation_prompt: false");
    int rc = parse_modalities(p, r);
    return rc != 0 ? rc : sl_params_tools(p, r);
}

/* So many are made, and the n likeliest of them are the reply. */
static int check_best_of(struct sl_params *p, struct sl_refusal *r)
{
    if (p->best_of > 1 && p->endpoint != SL_ENDPOINT_COMPLETIONS)
        return sl_refuse(r, SL_EUNSUPPORTED, "best_of", "not supported: best_of of a conversation");
    if (p->best_of == 0 || p->endpoint != SL_ENDPOINT_COMPLETIONS)
        return 0;
    if (p->best_of < p->sampling.n)
        return sl_refuse(r, SL_EINVAL, "best_of", "best_of (%d) is less than n (%d)", p->best_of,
                         p->sampling.n);
    if (p->best_of > p->sampling.n && p->stream)
        return sl_refuse(r, SL_EINVAL, "best_of",
                         "best_of cannot be combined with stream: the best are known at the end");
    if (p->best_of == p->sampling.n)
        return 0;
    p->n_best = p->sampling.n;
    p->sampling.n = p->best_of;
    p->sampling.logprobs = SL_MAX(p->sampling.logprobs, 0);
    return 0;
}

/* Checks that involve several fields. */
static int check_together(struct sl_params *p, bool has_max_tokens, struct sl_refusal *r)
{
    int rc = check_best_of(p, r);
    if (rc != 0)
        return rc;
    if (p->endpoint == SL_ENDPOINT_COMPLETIONS && p->thinking_token_budget >= 0)
        return sl_refuse(r, SL_EUNSUPPORTED, "thinking_token_budget",
                         "not supported: thinking_token_budget of a completion, whose text is not "
                         "parsed");
    if (has_max_tokens && p->sampling.max_tokens == 0) {
        if (!p->echo && p->endpoint != SL_ENDPOINT_MESSAGES) /* there: fills the prefix cache */
            return sl_refuse(r, SL_EINVAL, "max_tokens", "max_tokens must be at least 1, got 0");
        p->drop_output = true;
        p->sampling.max_tokens = 1;
    }
    if (p->sampling.max_tokens > 0 && p->sampling.min_tokens > p->sampling.max_tokens)
        return sl_refuse(r, SL_EINVAL, "min_tokens", "min_tokens must not exceed max_tokens");
    bool columns = p->echo && p->endpoint == SL_ENDPOINT_COMPLETIONS; /* the stream has them */
    if (p->stream && p->sampling.prompt_logprobs >= 0 && !columns)
        return sl_refuse(r, SL_EINVAL, "prompt_logprobs",
                         "prompt_logprobs cannot be combined with stream");
    for (const char *s = p->request_id; s != NULL && *s != '\0'; s++) {
        if (*s <= 0x20 || *s >= 0x7F)
            return sl_refuse(r, SL_EINVAL, "request_id", "request_id must be visible ASCII");
    }
    if (p->cache_salt != NULL && p->cache_salt[0] == '\0')
        return sl_refuse(r, SL_EINVAL, "cache_salt", "cache_salt must not be empty");
    p->sampling.keep_special_tokens = !p->skip_special_tokens;
    const char *side = json_string_value(p->truncation_side);
    p->keep_first = side != NULL && strcmp(side, "right") == 0;
    if (p->truncation_side == NULL || p->keep_first || (side != NULL && strcmp(side, "left") == 0))
        return 0;
    return sl_refuse(r, SL_EINVAL, "truncation_side", "truncation_side must be left or right");
}

/* Its name for whoever sent it, as far as there is room and it can stand in a header. */
void sl_params_note(struct sl_params *p, const char *key)
{
    size_t at = strlen(p->unknown), n = strlen(key);
    p->n_unknown++;
    for (size_t i = 0; i < n; i++)
        if (key[i] <= 0x20 || key[i] >= 0x7F || key[i] == ',')
            return;
    if (n > 0 && at + n + 3 <= sizeof p->unknown)
        snprintf(p->unknown + at, sizeof p->unknown - at, at > 0 ? ", %s" : "%s", key);
}

static int params_read_members(struct sl_params *p, const json_t *root,
                               const struct sl_param_limits *limits, struct sl_refusal *r)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)root, key, value)
    {
        const struct row *row = params_find_row(key);
        if (row == NULL || !(row->endpoints & (unsigned)p->endpoint)) {
            if (limits->refuse_unknown)
                return sl_refuse(r, SL_EINVAL, key, "unknown field: %.64s", key);
            sl_params_note(p, key);
            continue;
        }
        if (json_is_null(value))
            continue;
        int rc = params_read_field(p, row, value, r);
        if (rc != 0)
            return rc;
    }
    return 0;
}

int sl_params_parse(struct sl_params *p, enum sl_endpoint endpoint, const json_t *root,
                    const struct sl_sampling *defaults, const struct sl_param_limits *limits,
                    struct sl_refusal *r)
{
    memset(p, 0, sizeof *p);
    p->endpoint = endpoint;
    p->json_style = limits->json_style;
    p->body = limits->body;
    p->n_body = limits->n_body;
    p->transfers = limits->transfers;

    p->sampling = *defaults;
    /* OpenAI's default for completions; a conversation may run to the end of the context. */
    p->sampling.max_tokens = endpoint == SL_ENDPOINT_COMPLETIONS ? 16 : -1;
    p->sampling.logprobs = p->sampling.prompt_logprobs = -1;
    p->add_special_tokens = endpoint == SL_ENDPOINT_COMPLETIONS;
    p->add_generation_prompt = p->skip_special_tokens = true;
    p->parallel_tool_calls = p->include_reasoning = p->store = true;
    p->lora_scale = 1;
    p->thinking_token_budget = -1;
    p->budget_is_wish =
        endpoint == SL_ENDPOINT_MESSAGES; /* clients ask without knowing the model */
    p->arena.max_bytes = 4u << 20;
    int rc = params_read_members(p, root, limits, r);
    bool has_max_tokens = p->sampling.max_tokens >= 0;
    if (rc == 0 && endpoint != SL_ENDPOINT_COMPLETIONS)
        rc = check_chat(p, limits, r);
    if (rc == 0)
        rc = sl_params_lists(p, limits, r);
    if (rc == 0)
        rc = parse_logprobs(p, r);
    if (rc == 0)
        rc = parse_stream_options(p, r);
    if (rc == 0)
        rc = sl_params_constraint(p, r);
    if (rc == 0)
        rc = check_together(p, has_max_tokens, r);
    return rc;
}

void sl_params_deinit(struct sl_params *p)
{
    sl_constraint_release(p->constraint);
    p->constraint = NULL;
    sl_buf_deinit(&p->constraint_text);
    json_decref(p->free_form);
    p->free_form = NULL;
    sl_free(p->predicted);
    sl_arena_deinit(&p->arena);
}
