/* SPDX-License-Identifier: MIT
 * api_ollama.c - POST /api/chat and /api/generate, as Ollama has them.
 *
 * A stream is one JSON object per line; the last one says done and how long all took. A call of a
 * tool comes in one piece, its arguments an object. There is one choice.
 */
#include "base/check.h"
#include "base/sys.h"
#include "server/api/answer.h"
#include "server/api/conversation.h"
#include "server/api/ollama_in.h"
#include "server/api/ollama_out.h"
#include "server/api/to_chat.h"
#include "server/api/tokens.h"
#include "server/http/keys.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "server/http/sse.h"

#include <stdio.h>
#include <time.h>

static const struct sl_call_api chat_api, generate_api;

/* ---- pieces */

void sl_ollama_put_time(struct sl_buf *b, int64_t wall_ns)
{
    char text[32];
    time_t s = (time_t)(wall_ns / 1000000000);
    struct tm tm;
    if (gmtime_r(&s, &tm) == NULL || strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm) == 0)
        snprintf(text, sizeof text, "1970-01-01T00:00:00");
    sl_buf_printf(b, "%s.%09dZ", text, (int)(wall_ns % 1000000000));
}

static void ollama_put_span(struct sl_buf *b, const char *name, uint64_t from_ns, uint64_t to_ns)
{
    sl_buf_puts(b, name);
    sl_put_u64(b, from_ns != 0 && to_ns > from_ns ? to_ns - from_ns : 0);
}

void sl_ollama_put_timing(struct sl_buf *b, const struct sl_call *call)
{
    struct sl_usage u;
    sl_call_usage(call, &u);
    ollama_put_span(b, ",\"total_duration\":", u.t_submit_ns, sl_now_ns());
    ollama_put_span(b, ",\"load_duration\":", u.t_submit_ns, u.t_scheduled_ns);
    SL_PUT(b, ",\"prompt_eval_count\":");
    sl_put_i64(b, u.n_prompt);
}

static void put_end(struct sl_buf *b, const struct sl_call *call, enum sl_finish finish)
{
    struct sl_usage u;
    sl_call_usage(call, &u);
    SL_PUT(b, ",\"done\":true,\"done_reason\":\"");
    sl_buf_puts(b, finish == SL_FINISH_LENGTH  ? "length"
                   : finish == SL_FINISH_ABORT ? "abort"
                                               : "stop");
    sl_buf_putc(b, '"');
    sl_ollama_put_timing(b, call);
    ollama_put_span(b, ",\"prompt_eval_duration\":", u.t_scheduled_ns, u.t_first_ns);
    SL_PUT(b, ",\"eval_count\":");
    sl_put_i64(b, u.n_output);
    ollama_put_span(b, ",\"eval_duration\":", u.t_first_ns, u.t_last_ns);
}

static void put_event_head(struct sl_call *call)
{
    struct sl_buf *b = &call->event_head;
    SL_PUT(b, "{\"model\":");
    sl_buf_json_string(b, call->model, strlen(call->model));
    SL_PUT(b, ",\"created_at\":\"");
}

static void ollama_put_head(struct sl_buf *b, struct sl_call *call)
{
    if (call->event_head.n_bytes == 0)
        put_event_head(call);
    b->failed |= !sl_buf_ok(&call->event_head);
    sl_buf_put(b, call->event_head.data, call->event_head.n_bytes);
    sl_ollama_put_time(b, sl_wall_ns());
    SL_PUT(b, "\",");
}

static bool is_chat(const struct sl_call *call)
{
    return call->api == &chat_api;
}

/* Up to the text, which follows and is ended by its quote. */
static void put_text_head(struct sl_buf *b, const struct sl_call *call)
{
    if (is_chat(call))
        SL_PUT(b, "\"message\":{\"role\":\"assistant\",\"content\":\"");
    else
        SL_PUT(b, "\"response\":\"");
}

/* The model's own bytes, which lose nothing of a number too long to be read; but on one line, as
 * the reply may be. Valid JSON has line ends between its tokens alone. */
static void put_arguments(struct sl_buf *b, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sl_buf_putc(b, text[i] == '\n' || text[i] == '\r' ? ' ' : text[i]);
}

static void put_call(struct sl_buf *b, const struct sl_part *part, const struct sl_buf *arguments)
{
    SL_PUT(b, "{\"id\":");
    sl_buf_json_string(b, part->id.data, part->id.n_bytes);
    SL_PUT(b, ",\"function\":{\"index\":");
    sl_put_i64(b, part->call_idx);
    SL_PUT(b, ",\"name\":");
    sl_buf_json_string(b, part->name.data, part->name.n_bytes);
    SL_PUT(b, ",\"arguments\":");
    if (part->whole && arguments->n_bytes > 0)
        put_arguments(b, arguments->data, arguments->n_bytes);
    else
        SL_PUT(b, "{}"); /* the limit cut them off: done_reason says so */
    SL_PUT(b, "}}");
}

static struct sl_token_style ollama_style_of(const struct sl_call *call)
{
    return (struct sl_token_style){call->conn->loop, call->served, false};
}

/* ---- streams: a line is open until it is known whether another one follows in this chunk */

static void close_line(struct sl_buf *b, struct sl_choice *choice)
{
    if (choice->open)
        SL_PUT(b, ",\"done\":false}\n");
    choice->open = false;
}

static void open_line(struct sl_buf *b, struct sl_call *call, struct sl_choice *choice)
{
    close_line(b, choice);
    ollama_put_head(b, call);
    put_text_head(b, call);
    choice->open = true;
}

static void ollama_part_begin(struct sl_buf *b, struct sl_call *call, struct sl_choice *choice,
                              const struct sl_part *part)
{
    (void)b;
    (void)call;
    (void)part;
    sl_buf_clear(&choice->text); /* of a stream: the arguments of the call that comes in */
}

static void ollama_part_text(struct sl_buf *b, struct sl_call *call, struct sl_choice *choice,
                             const struct sl_part *part, const char *text, size_t n)
{
    if (part->kind == SL_PART_CALL) {
        sl_buf_put(&choice->text, text, n);
        b->failed |= !sl_buf_ok(&choice->text);
        return;
    }
    open_line(b, call, choice);
    if (part->kind == SL_PART_REASONING)
        SL_PUT(b, "\",\"thinking\":\"");
    sl_buf_json_escape(b, text, n);
    sl_buf_puts(b, is_chat(call) ? "\"}" : "\"");
}

static void ollama_part_end(struct sl_buf *b, struct sl_call *call, struct sl_choice *choice,
                            const struct sl_part *part)
{
    if (part->kind != SL_PART_CALL || !is_chat(call))
        return;
    open_line(b, call, choice);
    SL_PUT(b, "\",\"tool_calls\":[");
    put_call(b, part, &choice->text);
    SL_PUT(b, "]}");
}

static void ollama_put_events(struct sl_buf *b, struct sl_call *call, struct sl_prompt *prompt,
                              struct sl_choice *choice, const struct sl_chunk *chunk)
{
    bool last = chunk->finish != SL_RUNNING, tokens = call->want_logprobs && chunk->n_tokens > 0;
    (void)prompt;
    choice->began = true;
    sl_answer_push(choice->answer, b, chunk);
    if (!choice->open && !last && !tokens)
        return; /* half a character, or what may still become a marker */
    if (!choice->open) {
        open_line(b, call, choice);
        sl_buf_puts(b, is_chat(call) ? "\"}" : "\"");
    }
    if (tokens) {
        SL_PUT(b, ",\"logprobs\":[");
        sl_put_chat_logprobs(b, ollama_style_of(call), chunk->tokens, chunk->n_tokens,
                             call->n_logprobs);
        sl_buf_putc(b, ']');
    }
    close_line(b, choice);
    if (!last)
        return;
    ollama_put_head(b, call);
    put_text_head(b, call);
    sl_buf_puts(b, is_chat(call) ? "\"}" : "\"");
    put_end(b, call, chunk->finish);
    SL_PUT(b, "}\n");
}

static void ollama_end_stream(struct sl_buf *b, struct sl_call *call)
{
    (void)b;
    (void)call;
}

static void ollama_fail_stream(struct sl_buf *b, struct sl_call *call, const struct sl_refusal *r)
{
    (void)call;
    sl_reply_error_json(b, r, sl_code_http(r->err.code), SL_PROTOCOL_OLLAMA);
    sl_buf_putc(b, '\n');
}

/* ---- whole replies */

static void ollama_collect(struct sl_call *call, struct sl_prompt *prompt, struct sl_choice *choice,
                           const struct sl_chunk *chunk)
{
    (void)prompt;
    sl_answer_push(choice->answer, NULL, chunk);
    if (!call->want_logprobs || chunk->n_tokens == 0)
        return;
    if (choice->tokens.n_bytes > 0)
        sl_buf_putc(&choice->tokens, ',');
    sl_put_chat_logprobs(&choice->tokens, ollama_style_of(call), chunk->tokens, chunk->n_tokens,
                         call->n_logprobs);
}

static int32_t ollama_put_texts(struct sl_buf *b, const struct sl_answer *a, enum sl_part_kind kind)
{
    int32_t n = 0;
    for (int32_t i = 0; i < sl_answer_n_parts(a); i++) {
        const struct sl_part *part = sl_answer_part(a, i);
        if (part->kind != kind)
            continue;
        if (kind == SL_PART_REASONING && n == 0)
            SL_PUT(b, ",\"thinking\":\"");
        sl_buf_json_escape(b, part->text.data, part->text.n_bytes);
        n++;
    }
    return n;
}

static void ollama_put_whole(struct sl_buf *b, struct sl_call *call)
{
    const struct sl_choice *choice = &call->choices[0];
    const struct sl_answer *a = choice->answer;
    ollama_put_head(b, call);
    put_text_head(b, call);
    (void)ollama_put_texts(b, a, SL_PART_TEXT);
    sl_buf_putc(b, '"');
    if (ollama_put_texts(b, a, SL_PART_REASONING) > 0)
        sl_buf_putc(b, '"');
    for (int32_t i = 0; is_chat(call) && i < sl_answer_n_parts(a); i++) {
        const struct sl_part *part = sl_answer_part(a, i);
        if (part->kind != SL_PART_CALL)
            continue;
        sl_buf_puts(b, part->call_idx == 0 ? ",\"tool_calls\":[" : ",");
        put_call(b, part, &part->text);
    }
    if (is_chat(call))
        sl_buf_puts(b, sl_answer_has_calls(a) ? "]}" : "}");
    if (call->want_logprobs) {
        SL_PUT(b, ",\"logprobs\":[");
        sl_buf_put(b, choice->tokens.data, choice->tokens.n_bytes);
        sl_buf_putc(b, ']');
    }
    put_end(b, call, choice->finish);
    sl_buf_putc(b, '}');
    b->failed |= !sl_answer_ok(a) || !sl_buf_ok(&choice->tokens); /* it becomes a 503 */
}

static int ollama_begin(struct sl_call *call, struct sl_choice *choice, const struct sl_params *p,
                        struct sl_error *err)
{
    return sl_answer_create(call, choice, p, !call->stream, &choice->answer, err);
}

#define OLLAMA_API                                                                               \
    .begin = ollama_begin, .put_event_head = put_event_head, .put_events = ollama_put_events,    \
    .end_stream = ollama_end_stream, .fail_stream = ollama_fail_stream, .ndjson = true,          \
    .part_begin = ollama_part_begin, .part_text = ollama_part_text, .part_end = ollama_part_end, \
    .collect = ollama_collect, .put_whole = ollama_put_whole

static const struct sl_call_api chat_api = {.id_prefix = "ollama-chat-", OLLAMA_API};
static const struct sl_call_api generate_api = {.id_prefix = "ollama-", OLLAMA_API};

/* ---- requests */

int sl_ollama_name(struct sl_task *t)
{
    static const char *const hosts[] = {"hf.co/", "huggingface.co/"};
    static const char tag[] = ":latest";
    json_t *v = json_object_get(t->root, "model"), *cut;
    if (v == NULL || json_is_null(v))
        v = json_object_get(t->root, "name");
    const char *name = json_string_value(v);
    if (name == NULL) /* absent, or refused later by its type */
        return v == NULL || json_object_set(t->root, "model", v) == 0
                   ? 0
                   : sl_chat_no_memory(&t->refusal, "model");
    size_t n = strlen(name);
    for (size_t i = 0; i < SL_COUNT(hosts) && sl_served_find(t->server, name) == NULL; i++) {
        size_t n_host = strlen(hosts[i]);
        if (strncmp(name, hosts[i], n_host) == 0) {
            name += n_host;
            n -= n_host;
        }
    }
    if (sl_served_find(t->server, name) == NULL && n > sizeof tag - 1 &&
        strcmp(name + n - (sizeof tag - 1), tag) == 0)
        n -= sizeof tag - 1;
    cut = json_stringn(name, n);
    return cut != NULL && json_object_set_new(t->root, "model", cut) == 0
               ? 0
               : sl_chat_no_memory(&t->refusal, "model");
}

int sl_ollama_parse(struct sl_task *t)
{
    int rc =
        t->root != NULL ? 0 : sl_json_parse_object(t->body.p, t->body.n, &t->root, &t->refusal);
    if (rc == 0)
        rc = sl_ollama_name(t);
    return rc == 0 ? sl_task_parse(t) : rc;
}

int sl_ollama_wake(struct sl_task *t)
{
    const struct sl_server_config *cfg = t->server->cfg;
    struct sl_refusal ignored;
    if (sl_engine_sleep_level(t->served->eng) == 0 || !cfg->sleep_mode ||
        sl_sleep_scope(cfg, t->key, &ignored) != 0)
        return 0; /* who may not wake it hears that it sleeps */
    if (t->at_once)
        t->later = true;
    return t->later ? 0 : sl_engine_wake(t->served->eng, &t->refusal.err);
}

int sl_ollama_unload(struct sl_task *t)
{
    const struct sl_server_config *cfg = t->server->cfg;
    if (!cfg->sleep_mode)
        return sl_refuse(&t->refusal, SL_EUNSUPPORTED, "keep_alive",
                         "keep_alive 0 unloads the model, which this server was not told to allow "
                         "(--enable-sleep-mode)");
    int rc = sl_sleep_scope(cfg, t->key, &t->refusal);
    if (rc == 0 && t->at_once)
        t->later = true;
    return rc != 0 || t->later ? rc
                               : sl_engine_sleep(t->served->eng, 2, false, cfg->shutdown_timeout_ms,
                                                 &t->refusal.err);
}

/* Nothing to answer: the reply says what became of the model. */
static int ollama_load(struct sl_task *t, bool unload, bool chat)
{
    struct sl_buf *b = &t->out;
    const json_t *given = json_object_get(t->root, "model");
    int rc =
        sl_served_check(t->server, t->served, json_string_value(given), &t->model, &t->refusal);
    if (rc == SL_ENOTFOUND && sl_adapter_known(t->served->eng, json_string_value(given))) {
        t->refusal = (struct sl_refusal){0};
        t->model = t->served->name;
        rc = 0;
    }
    if (rc == 0)
        rc = unload ? sl_ollama_unload(t) : sl_ollama_wake(t);
    if (rc != 0 || t->later)
        return rc;
    SL_PUT(b, "{\"model\":");
    sl_buf_json_string(b, t->model, strlen(t->model));
    SL_PUT(b, ",\"created_at\":\"");
    sl_ollama_put_time(b, sl_wall_ns());
    sl_buf_puts(b, chat ? "\",\"message\":{\"role\":\"assistant\",\"content\":\"\"}"
                        : "\",\"response\":\"\"");
    SL_PUT(b, ",\"done\":true,\"done_reason\":\"");
    sl_buf_puts(b, unload ? "unload\"}" : "load\"}");
    return 0;
}

static int to_chat_shape(struct sl_task *t, bool chat, struct sl_ollama_request *req)
{
    const struct sl_ollama_model m = {.name = t->served->name,
                                      .has_template = sl_engine_has_chat_template(t->served->eng),
                                      .thinks = t->served->formats.reasoning != NULL};
    return chat ? sl_ollama_chat(t->root, &m, req, &t->refusal)
                : sl_ollama_generate(t->root, &m, req, &t->refusal);
}

static void ollama_prepare(struct sl_task *t, bool chat)
{
    struct sl_ollama_request req = {0};
    t->rc = sl_ollama_parse(t);
    if (t->rc == 0)
        t->rc = sl_task_generates(t);
    if (t->rc == 0)
        t->rc = to_chat_shape(t, chat, &req);
    if (t->rc == 0 && req.idle) {
        t->rc = ollama_load(t, req.unload, chat);
        return;
    }
    if (t->rc == 0)
        t->rc = sl_ollama_wake(t);
    if (t->rc != 0 || t->later)
        return;
    if (!req.raw) {
        sl_conversation_prepare(t, SL_ENDPOINT_CHAT, NULL);
    } else {
        bool limited = json_object_get(t->root, "max_tokens") != NULL;
        sl_completions_prepare(t);
        if (!limited) /* but for the default of completions */
            t->params.sampling.max_tokens = -1;
    }
    if (t->rc == 0 && !t->later && t->params.sampling.n != 1)
        t->rc = sl_refuse(&t->refusal, SL_EUNSUPPORTED, "n",
                          "not supported: n above 1, as a reply has one message");
}

static void ollama_prepare_chat(struct sl_task *t)
{
    ollama_prepare(t, true);
}

static void prepare_generate(struct sl_task *t)
{
    ollama_prepare(t, false);
}

static void ollama_finish(struct sl_conn *c, struct sl_task *t, const struct sl_call_api *api)
{
    if (t->out.n_bytes > 0 || !sl_buf_ok(&t->out))
        sl_reply_json(c, 200, &t->out);
    else
        sl_task_call(c, t, api);
}

static void ollama_finish_chat(struct sl_conn *c, struct sl_task *t)
{
    ollama_finish(c, t, &chat_api);
}

static void finish_generate(struct sl_conn *c, struct sl_task *t)
{
    ollama_finish(c, t, &generate_api);
}

void sl_api_ollama_chat(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {ollama_prepare_chat, ollama_finish_chat};
    sl_task_start(c, &kind);
}

void sl_api_ollama_generate(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_generate, finish_generate};
    sl_task_start(c, &kind);
}
