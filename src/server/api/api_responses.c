/* SPDX-License-Identifier: MIT
 * api_responses.c - POST /v1/responses: OpenAI's responses.
 *
 * A part of an answer is an output item. Every event of a stream has the next number, and ends of
 * items repeat their text, so that parts are kept in streams too. There is one choice.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "server/api/answer.h"
#include "server/api/conversation.h"
#include "server/api/free_form.h"
#include "server/api/kv_transfer.h"
#include "server/api/responses_in.h"
#include "server/api/tokens.h"
#include "server/http/json_tree.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "server/http/sse.h"
#include "server/jobs/response_store.h"
#include "text/tokenizer/tokenizer.h"

/* What a response has besides its call: of the task first, then of the call. */
struct response {
    struct sl_server *server;
    struct sl_responses_in in;
    struct sl_buf echo;              /* members that repeat the request */
    struct sl_buf kept;              /* of a compaction: items of the request that stay */
    bool compaction;                 /* the reply is that of /v1/responses/compact */
    struct sl_buf turn;              /* the request's messages, as JSON */
    struct sl_response_turn *parent; /* a reference */
    struct sl_stored *stored;        /* while it runs; NULL: it is not kept */
    int tenant;
    bool store;
    int64_t n_events;
    struct sl_buf waiting; /* struct sl_token: those with log probabilities whose text is to come */
    struct sl_buf logprobs; /* of those whose text the answer has, comma-separated */
    struct sl_buf news;     /* of its last news */
    uint64_t n_pushed;      /* bytes of text that the answer has */
    bool no_memory;
};

static void free_response(struct response *e)
{
    if (e->stored != NULL)
        sl_responses_drop(e->server->responses, e->stored);
    sl_response_turn_unref(e->server->responses, e->parent);
    sl_tool_map_deinit(&e->in.tools);
    sl_buf_deinit(&e->kept);
    sl_buf_deinit(&e->echo);
    sl_buf_deinit(&e->turn);
    sl_buf_deinit(&e->waiting);
    sl_buf_deinit(&e->logprobs);
    sl_buf_deinit(&e->news);
    sl_free(e);
}

/* ---- items */

static void put_item_id(struct sl_buf *b, const struct sl_call *call, const struct sl_part *part)
{
    const struct response *e = call->extra;
    const char *prefix = part->kind == SL_PART_REASONING ? "rs_"
                         : part->kind == SL_PART_CALL
                             ? sl_tool_item_prefix(sl_tool_kind_of(&e->in.tools, part))
                         : e->in.compact ? "cmp_"
                                         : "msg_";
    sl_buf_putc(b, '"');
    sl_buf_puts(b, prefix);
    sl_buf_puts(b, call->id + strlen(call->api->id_prefix));
    sl_buf_putc(b, '_');
    sl_put_i64(b, part->idx);
    sl_buf_putc(b, '"');
}

/* A content part, whole or as it begins. */
static void put_content(struct sl_buf *b, const struct sl_part *part, bool whole)
{
    bool text = part->kind == SL_PART_TEXT;
    SL_ASSERT(part->kind != SL_PART_CALL);
    sl_buf_puts(b, text ? "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":["
                        : "{\"type\":\"reasoning_text\"");
    if (text && whole)
        sl_buf_put(b, part->extra.data, part->extra.n_bytes);
    sl_buf_puts(b, text ? "],\"text\":" : ",\"text\":");
    sl_buf_json_string(b, part->text.data, whole ? part->text.n_bytes : 0);
    sl_buf_putc(b, '}');
}

/* An answer that was cut off is cut off in its last item. */
static const char *item_status(const struct sl_call *call, const struct sl_part *part)
{
    if (!part->ended)
        return "in_progress";
    bool cut = part->kind == SL_PART_CALL ? !part->whole
                                          : part->last && call->choices[0].finish != SL_FINISH_STOP;
    return cut ? "incomplete" : "completed";
}

static void put_item(struct sl_buf *b, const struct sl_call *call, const struct sl_part *part)
{
    const struct response *e = call->extra;
    SL_PUT(b, "{\"id\":");
    put_item_id(b, call, part);
    if (e->in.compact && part->kind == SL_PART_TEXT) {
        SL_PUT(b, ",\"type\":\"compaction\",\"encrypted_content\":");
        sl_put_summary(b, part->text.data, part->text.n_bytes);
        sl_buf_putc(b, '}');
        return;
    }
    SL_PUT(b, ",\"status\":\"");
    sl_buf_puts(b, item_status(call, part));
    switch (part->kind) {
    case SL_PART_REASONING:
        SL_PUT(b, "\",\"type\":\"reasoning\",\"summary\":[],\"content\":[");
        break;
    case SL_PART_TEXT:
        SL_PUT(b, "\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
        break;
    case SL_PART_CALL:
        SL_PUT(b, "\",\"type\":\"");
        sl_buf_puts(b, sl_tool_item_type(sl_tool_kind_of(&e->in.tools, part)));
        sl_buf_putc(b, '"');
        sl_put_tool_call(b, &e->in.tools, part);
        sl_buf_putc(b, '}');
        return;
    }
    if (part->ended)
        put_content(b, part, true);
    SL_PUT(b, "]}");
}

/* ---- the response object */

/* Tokens that its reasoning takes. They are not counted as they come: a chunk may end anywhere. */
static size_t reasoning_tokens(const struct sl_call *call, const struct sl_answer *a)
{
    const struct sl_tokenizer *tok = sl_engine_tokenizer(call->served->eng);
    size_t n = 0;
    for (int32_t i = 0; i < sl_answer_n_parts(a); i++) {
        const struct sl_part *part = sl_answer_part(a, i);
        size_t n_ids = 0;
        int32_t *ids = NULL;
        if (part->kind == SL_PART_REASONING && tok != NULL &&
            sl_tokenizer_encode(tok, part->text.data, part->text.n_bytes, 0, &ids, &n_ids, NULL) ==
                0)
            n += n_ids;
        sl_free(ids);
    }
    return n;
}

static void responses_put_usage(struct sl_buf *b, const struct sl_call *call)
{
    struct sl_usage u;
    sl_call_usage(call, &u);
    size_t thought = reasoning_tokens(call, call->choices[0].answer);
    SL_PUT(b, "{\"input_tokens\":");
    sl_put_i64(b, u.n_prompt);
    SL_PUT(b, ",\"input_tokens_details\":{\"cached_tokens\":");
    sl_put_i64(b, u.n_cached);
    SL_PUT(b, ",\"cache_write_tokens\":0},\"output_tokens\":");
    sl_put_i64(b, u.n_output);
    SL_PUT(b, ",\"output_tokens_details\":{\"reasoning_tokens\":");
    sl_put_u64(b, SL_MIN(thought, (size_t)u.n_output));
    SL_PUT(b, "},\"total_tokens\":");
    sl_put_i64(b, (int64_t)u.n_prompt + u.n_output);
    sl_buf_putc(b, '}');
}

static const char *responses_status_of(enum sl_finish finish)
{
    static const char *const names[] = {
        [SL_RUNNING] = "in_progress",      [SL_FINISH_STOP] = "completed",
        [SL_FINISH_LENGTH] = "incomplete", [SL_FINISH_ABORT] = "cancelled",
        [SL_FINISH_ERROR] = "failed",      [SL_FINISH_CACHE] = "incomplete"};
    return names[finish];
}

/* r: why it failed, or NULL. */
static void put_response(struct sl_buf *b, const struct sl_call *call, enum sl_finish finish,
                         const struct sl_refusal *r)
{
    const struct response *e = call->extra;
    const struct sl_choice *choice = &call->choices[0];
    int32_t n = finish != SL_RUNNING ? sl_answer_n_parts(choice->answer) : 0;
    SL_PUT(b, "{\"id\":");
    sl_buf_json_string(b, call->id, strlen(call->id));
    SL_PUT(b, ",\"object\":\"response\",\"created_at\":");
    sl_put_i64(b, call->created_s);
    SL_PUT(b, ",\"status\":\"");
    sl_buf_puts(b, responses_status_of(finish));
    SL_PUT(b, "\",\"error\":");
    if (r != NULL) {
        SL_PUT(b, "{\"code\":\"server_error\",\"message\":");
        sl_buf_json_string(b, r->err.msg, strlen(r->err.msg));
        sl_buf_putc(b, '}');
    } else {
        SL_PUT(b, "null");
    }
    sl_buf_puts(b, finish == SL_FINISH_LENGTH
                       ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"
                       : ",\"incomplete_details\":null");
    SL_PUT(b, ",\"model\":");
    sl_buf_json_string(b, call->model, strlen(call->model));
    SL_PUT(b, ",\"output\":[");
    for (int32_t i = 0; i < n; i++) {
        if (i > 0)
            sl_buf_putc(b, ',');
        put_item(b, call, sl_answer_part(choice->answer, i));
    }
    SL_PUT(b, "],");
    sl_buf_put(b, e->echo.data, e->echo.n_bytes);
    SL_PUT(b, ",\"usage\":");
    if (finish == SL_RUNNING || r != NULL)
        SL_PUT(b, "null");
    else
        responses_put_usage(b, call);
    sl_buf_putc(b, '}');
    b->failed |= !sl_answer_ok(choice->answer) || e->no_memory;
}

/* ---- keeping it */

/* The answer as the message that a later turn shows to the model. */
static void put_answer_message(struct sl_buf *b, const struct sl_answer *a)
{
    static const char *const members[] = {
        [SL_PART_REASONING] = ",\"reasoning\":\"", [SL_PART_TEXT] = ",\"content\":\""};
    bool any_call = false;
    SL_PUT(b, "{\"role\":\"assistant\"");
    for (int kind = SL_PART_REASONING; kind <= SL_PART_TEXT; kind++) {
        bool any = false;
        for (int32_t i = 0; i < sl_answer_n_parts(a); i++) {
            const struct sl_part *part = sl_answer_part(a, i);
            if ((int)part->kind != kind)
                continue;
            if (!any)
                sl_buf_puts(b, members[kind]);
            any = true;
            sl_buf_json_escape(b, part->text.data, part->text.n_bytes);
        }
        if (any)
            sl_buf_putc(b, '"');
    }
    for (int32_t i = 0; i < sl_answer_n_parts(a); i++) {
        const struct sl_part *part = sl_answer_part(a, i);
        if (part->kind != SL_PART_CALL)
            continue;
        sl_buf_puts(b, any_call ? "," : ",\"tool_calls\":[");
        any_call = true;
        SL_PUT(b, "{\"id\":");
        sl_buf_json_string(b, part->id.data, part->id.n_bytes);
        SL_PUT(b, ",\"type\":\"function\",\"function\":{\"name\":");
        sl_buf_json_string(b, part->name.data, part->name.n_bytes);
        SL_PUT(b, ",\"arguments\":");
        sl_buf_json_string(b, part->text.data, part->text.n_bytes);
        SL_PUT(b, "}}");
    }
    sl_buf_puts(b, any_call ? "]}" : "}");
}

static void keep_begin(struct sl_call *call)
{
    struct response *e = call->extra;
    struct sl_buf body = {0};
    call->n_kept += e->echo.n_bytes + e->turn.n_bytes;
    if (!e->store)
        return;
    put_response(&body, call, SL_RUNNING, NULL);
    call->n_kept += body.n_bytes;
    e->stored =
        sl_responses_begin(e->server->responses, call->id, e->tenant, call->conn->loop, &body);
    if (e->stored != NULL)
        call->cancelled = sl_stored_cancelled(e->stored);
}

static void keep_end(struct sl_call *call, const struct sl_buf *body)
{
    struct response *e = call->extra;
    struct sl_buf copy = {0};
    if (e->stored == NULL)
        return;
    sl_buf_put(&copy, body->data, body->n_bytes);
    copy.failed |= !sl_buf_ok(body);
    e->turn.n_bytes--; /* the closing bracket of the request's messages */
    sl_buf_putc(&e->turn, ',');
    put_answer_message(&e->turn, call->choices[0].answer);
    sl_buf_putc(&e->turn, ']');
    call->cancelled = NULL;
    sl_responses_finish(e->server->responses, e->stored, &copy, &e->turn, e->parent);
    e->stored = NULL;
    e->parent = NULL;
}

/* ---- streams */

static void responses_event_begin(struct sl_buf *b, struct sl_call *call, const char *type)
{
    struct response *e = call->extra;
    SL_PUT(b, "event: response.");
    sl_buf_puts(b, type);
    SL_PUT(b, "\ndata: {\"type\":\"response.");
    sl_buf_puts(b, type);
    SL_PUT(b, "\",\"sequence_number\":");
    sl_put_i64(b, e->n_events++);
}

static void event_end(struct sl_buf *b)
{
    SL_PUT(b, "}\n\n");
}

static void part_event(struct sl_buf *b, struct sl_call *call, const struct sl_part *part,
                       const char *type)
{
    responses_event_begin(b, call, type);
    SL_PUT(b, ",\"item_id\":");
    put_item_id(b, call, part);
    SL_PUT(b, ",\"output_index\":");
    sl_put_i64(b, part->idx);
    if (part->kind != SL_PART_CALL)
        SL_PUT(b, ",\"content_index\":0");
}

static void item_event(struct sl_buf *b, struct sl_call *call, const struct sl_part *part,
                       const char *type)
{
    responses_event_begin(b, call, type);
    SL_PUT(b, ",\"output_index\":");
    sl_put_i64(b, part->idx);
    SL_PUT(b, ",\"item\":");
    put_item(b, call, part);
    event_end(b);
}

static void responses_part_begin(struct sl_buf *b, struct sl_call *call, struct sl_choice *choice,
                                 const struct sl_part *part)
{
    (void)choice;
    const struct response *e = call->extra;
    item_event(b, call, part, "output_item.added");
    if (part->kind == SL_PART_CALL || e->in.compact)
        return;
    part_event(b, call, part, "content_part.added");
    SL_PUT(b, ",\"part\":");
    put_content(b, part, false);
    event_end(b);
}

/* Log probabilities go with the text that they are of: with all of the part, and with this news. */
static void part_grows(struct sl_call *call, struct sl_part *part)
{
    struct response *e = call->extra;
    if (part->kind != SL_PART_TEXT)
        return;
    sl_buf_clear(&e->news);
    sl_buf_put(&e->news, e->logprobs.data, e->logprobs.n_bytes);
    if (e->news.n_bytes > 0 && part->extra.n_bytes > 0)
        sl_buf_putc(&part->extra, ',');
    sl_buf_put(&part->extra, e->news.data, e->news.n_bytes);
    part->extra.failed |= !sl_buf_ok(&e->logprobs) || !sl_buf_ok(&e->news);
    sl_buf_clear(&e->logprobs);
}

static void responses_part_text(struct sl_buf *b, struct sl_call *call, struct sl_choice *choice,
                                const struct sl_part *part, const char *text, size_t n)
{
    static const char *const types[] = {[SL_PART_REASONING] = "reasoning_text.delta",
                                        [SL_PART_TEXT] = "output_text.delta",
                                        [SL_PART_CALL] = "function_call_arguments.delta"};
    const struct response *e = call->extra;
    (void)choice;
    bool own_type =
        part->kind == SL_PART_CALL && sl_tool_kind_of(&e->in.tools, part) != SL_TOOL_FUNCTION;
    if (own_type || e->in.compact) /* what it says is known at its end */
        return;
    part_event(b, call, part, types[part->kind]);
    if (part->kind == SL_PART_TEXT) {
        SL_PUT(b, ",\"logprobs\":[");
        sl_buf_put(b, e->news.data, e->news.n_bytes);
        sl_buf_putc(b, ']');
    }
    SL_PUT(b, ",\"delta\":");
    sl_buf_json_string(b, text, n);
    event_end(b);
}

/* Of a free-form tool; others of their own type have no events but those of their item. */
static void custom_end(struct sl_buf *b, struct sl_call *call, const struct sl_part *part)
{
    part_event(b, call, part, "custom_tool_call_input.delta");
    SL_PUT(b, ",\"delta\":");
    sl_free_form_put(b, part);
    event_end(b);
    part_event(b, call, part, "custom_tool_call_input.done");
    SL_PUT(b, ",\"input\":");
    sl_free_form_put(b, part);
    event_end(b);
}

static void responses_part_end(struct sl_buf *b, struct sl_call *call, struct sl_choice *choice,
                               const struct sl_part *part)
{
    (void)choice;
    const struct response *e = call->extra;
    enum sl_tool_kind tool =
        part->kind == SL_PART_CALL ? sl_tool_kind_of(&e->in.tools, part) : SL_TOOL_FUNCTION;
    if (tool == SL_TOOL_CUSTOM)
        custom_end(b, call, part);
    if (tool != SL_TOOL_FUNCTION || e->in.compact) {
        item_event(b, call, part, "output_item.done");
        return;
    }
    static const char *const types[] = {[SL_PART_REASONING] = "reasoning_text.done",
                                        [SL_PART_TEXT] = "output_text.done",
                                        [SL_PART_CALL] = "function_call_arguments.done"};
    part_event(b, call, part, types[part->kind]);
    if (part->kind == SL_PART_TEXT) {
        SL_PUT(b, ",\"logprobs\":[");
        sl_buf_put(b, part->extra.data, part->extra.n_bytes);
        sl_buf_putc(b, ']');
    }
    if (part->kind == SL_PART_CALL) {
        SL_PUT(b, ",\"name\":");
        sl_put_tool_name(b, &e->in.tools, part);
    }
    sl_buf_puts(b, part->kind == SL_PART_CALL ? ",\"arguments\":" : ",\"text\":");
    sl_buf_json_string(b, part->text.data, part->text.n_bytes);
    event_end(b);
    if (part->kind != SL_PART_CALL) {
        part_event(b, call, part, "content_part.done");
        SL_PUT(b, ",\"part\":");
        put_content(b, part, true);
        event_end(b);
    }
    item_event(b, call, part, "output_item.done");
}

static void response_event(struct sl_buf *b, struct sl_call *call, const char *type,
                           const struct sl_buf *response)
{
    responses_event_begin(b, call, type);
    SL_PUT(b, ",\"response\":");
    sl_buf_put(b, response->data, response->n_bytes);
    b->failed |= !sl_buf_ok(response);
    event_end(b);
}

static void push_piece(struct sl_call *call, struct sl_choice *choice, struct sl_buf *b,
                       const struct sl_chunk *piece)
{
    struct response *e = call->extra;
    sl_answer_push(choice->answer, b, piece);
    e->n_pushed += piece->n_text;
    /* Tokens of reasoning, of calls or of markers. The first ones of a character have no text yet:
     * what they are of shows with the last. */
    if (piece->n_text > 0 && !sl_answer_in_text(choice->answer))
        sl_buf_clear(&e->logprobs);
}

/* Which part a token belongs to shows once the answer has its text and none behind it: tokens that
 * come together are pushed one by one, so that how they came changes nothing. */
static void push_tokens(struct sl_call *call, struct sl_choice *choice, struct sl_buf *b,
                        struct sl_chunk *rest)
{
    struct response *e = call->extra;
    struct sl_token_style style = {call->conn->loop, call->served, false};
    sl_buf_put(&e->waiting, rest->tokens, rest->n_tokens * sizeof *rest->tokens);
    struct sl_token *t = (struct sl_token *)(void *)e->waiting.data;
    size_t n = e->waiting.n_bytes / sizeof *t, at = 0;
    for (; at < n && t[at].text_end <= e->n_pushed + rest->n_text; at++) {
        struct sl_chunk piece = *rest;
        piece.n_text = (size_t)(t[at].text_end - e->n_pushed);
        piece.finish = SL_RUNNING;
        if (e->logprobs.n_bytes > 0)
            sl_buf_putc(&e->logprobs, ',');
        sl_put_chat_logprobs(&e->logprobs, style, &t[at], 1, call->n_logprobs);
        e->no_memory |= !sl_buf_ok(&e->logprobs);
        push_piece(call, choice, b, &piece);
        rest->text += piece.n_text;
        rest->n_text -= piece.n_text;
        rest->n_tokens = 0; /* the answer has them */
    }
    e->no_memory |= !sl_buf_ok(&e->waiting);
    if (at > 0)
        memmove(t, t + at, (n - at) * sizeof *t);
    e->waiting.n_bytes = (n - at) * sizeof *t;
}

static void responses_push(struct sl_call *call, struct sl_choice *choice, struct sl_buf *b,
                           const struct sl_chunk *chunk)
{
    struct sl_chunk rest = *chunk;
    if (call->want_logprobs)
        push_tokens(call, choice, b, &rest);
    if (rest.n_text > 0 || rest.n_tokens > 0 || rest.finish != SL_RUNNING)
        push_piece(call, choice, b, &rest);
}

static void responses_put_events(struct sl_buf *b, struct sl_call *call, struct sl_prompt *prompt,
                                 struct sl_choice *choice, const struct sl_chunk *chunk)
{
    (void)prompt;
    struct sl_buf response = {0};
    if (!choice->began) {
        put_response(&response, call, SL_RUNNING, NULL);
        response_event(b, call, "created", &response);
        response_event(b, call, "in_progress", &response);
        sl_buf_clear(&response);
    }
    choice->began = true;
    choice->finish = chunk->finish; /* ends of items look at it */
    responses_push(call, choice, b, chunk);
    if (chunk->finish != SL_RUNNING) {
        put_response(&response, call, chunk->finish, NULL);
        response_event(b, call, chunk->finish == SL_FINISH_STOP ? "completed" : "incomplete",
                       &response);
        keep_end(call, &response);
    }
    sl_buf_deinit(&response);
}

static void responses_end_stream(struct sl_buf *b, struct sl_call *call)
{
    (void)b;
    (void)call;
}

static void responses_fail_stream(struct sl_buf *b, struct sl_call *call,
                                  const struct sl_refusal *r)
{
    struct sl_buf response = {0};
    put_response(&response, call, SL_FINISH_ERROR, r);
    response_event(b, call, "failed", &response);
    sl_buf_deinit(&response);
}

/* ---- whole replies */

static void responses_collect(struct sl_call *call, struct sl_prompt *prompt,
                              struct sl_choice *choice, const struct sl_chunk *chunk)
{
    (void)prompt;
    responses_push(call, choice, NULL, chunk);
}

/* What takes the conversation's place: what the user said, and a summary. */
static void put_compaction(struct sl_buf *b, const struct sl_call *call)
{
    const struct response *e = call->extra;
    const struct sl_answer *a = call->choices[0].answer;
    bool any = e->kept.n_bytes > 0;
    SL_PUT(b, "{\"id\":");
    sl_buf_json_string(b, call->id, strlen(call->id));
    SL_PUT(b, ",\"object\":\"response.compaction\",\"created_at\":");
    sl_put_i64(b, call->created_s);
    SL_PUT(b, ",\"output\":[");
    sl_buf_put(b, e->kept.data, e->kept.n_bytes);
    for (int32_t i = 0; i < sl_answer_n_parts(a); i++) {
        if (sl_answer_part(a, i)->kind != SL_PART_TEXT)
            continue;
        sl_buf_puts(b, any ? "," : "");
        any = true;
        put_item(b, call, sl_answer_part(a, i));
    }
    SL_PUT(b, "],\"usage\":");
    responses_put_usage(b, call);
    sl_buf_putc(b, '}');
    b->failed |= !sl_answer_ok(a) || !sl_buf_ok(&e->kept);
}

static void responses_put_whole(struct sl_buf *b, struct sl_call *call)
{
    const struct response *e = call->extra;
    if (e->compaction) {
        put_compaction(b, call);
        return;
    }
    put_response(b, call, call->choices[0].finish, NULL);
    keep_end(call, b);
    if (!call->answers_transfer || !sl_buf_ok(b))
        return;
    b->n_bytes--; /* the closing bracket */
    sl_transfers_put(b, call);
    sl_buf_putc(b, '}');
}

static int responses_begin(struct sl_call *call, struct sl_choice *choice,
                           const struct sl_params *p, struct sl_error *err)
{
    return sl_answer_create(call, choice, p, true, &choice->answer, err);
}

static void destroy(struct sl_call *call)
{
    free_response(call->extra);
}

static const struct sl_call_api responses_api = {
    .id_prefix = "resp_",
    .own_ids = true,
    .begin = responses_begin,
    .begun = keep_begin,
    .destroy = destroy,
    .put_events = responses_put_events,
    .end_stream = responses_end_stream,
    .fail_stream = responses_fail_stream,
    .part_begin = responses_part_begin,
    .part_grows = part_grows,
    .part_text = responses_part_text,
    .part_end = responses_part_end,
    .collect = responses_collect,
    .put_whole = responses_put_whole,
};

/* ---- the request */

static void free_extra(struct sl_task *t)
{
    free_response(t->extra);
}

static void put_member(struct sl_buf *b, const char *name, const json_t *v, const char *otherwise)
{
    SL_PUT(b, ",\"");
    sl_buf_puts(b, name);
    SL_PUT(b, "\":");
    if (v == NULL || json_is_null(v))
        sl_buf_puts(b, otherwise);
    else
        sl_json_put(b, v);
}

static void put_number(struct sl_buf *b, const char *name, double x)
{
    SL_PUT(b, ",\"");
    sl_buf_puts(b, name);
    SL_PUT(b, "\":");
    sl_buf_printf(b, "%g", x); /* floats, as they were given */
}

/* The tools that the model was shown, as the client wrote them. */
static void put_tools(struct sl_buf *b, const json_t *tools, const json_t *left)
{
    const json_t *tool;
    size_t i;
    bool any = false;
    SL_PUT(b, ",\"tools\":[");
    json_array_foreach(tools, i, tool)
    {
        if (json_array_size(left) == 0 || sl_responses_is_hosted(tool))
            continue;
        if (any)
            sl_buf_putc(b, ',');
        any = true;
        sl_json_put(b, tool);
    }
    sl_buf_putc(b, ']');
}

/* What of the request was not shown to the model, where clients that look can see it. */
static void put_ignored(struct sl_buf *b, const struct sl_responses_in *in)
{
    const char *lists[] = {in->tools.ignored, in->skipped};
    const char *names[] = {",\"ignored_tools\":[\"", ",\"ignored_items\":[\""};
    for (size_t i = 0; i < SL_COUNT(lists); i++) {
        if (lists[i][0] == '\0')
            continue;
        sl_buf_puts(b, names[i]);
        for (const char *s = lists[i]; *s != '\0'; s++) {
            if (*s == ',')
                sl_buf_puts(b, "\",\"");
            else
                sl_buf_json_escape(b, s, 1);
        }
        sl_buf_puts(b, "\"]");
    }
}

static void put_echo(struct sl_buf *b, const json_t *original, const struct sl_task *t)
{
    static const struct {
        const char *name, *otherwise;
    } members[] = {{"instructions", "null"},
                   {"max_output_tokens", "null"},
                   {"max_tool_calls", "null"},
                   {"metadata", "{}"},
                   {"previous_response_id", "null"},
                   {"prompt_cache_key", "null"},
                   {"reasoning", "{\"effort\":null,\"summary\":null}"},
                   {"safety_identifier", "null"},
                   {"text", "{\"format\":{\"type\":\"text\"}}"},
                   {"tool_choice", "\"auto\""},
                   {"truncation", "\"disabled\""},
                   {"user", "null"}};
    const struct sl_params *p = &t->params;
    const struct response *e = t->extra;
    SL_PUT(b, "\"background\":false,\"service_tier\":\"default\"");
    sl_buf_puts(b, p->parallel_tool_calls ? ",\"parallel_tool_calls\":true"
                                          : ",\"parallel_tool_calls\":false");
    sl_buf_puts(b, e->store ? ",\"store\":true" : ",\"store\":false");
    put_number(b, "temperature", (double)p->sampling.temperature);
    put_number(b, "top_p", (double)p->sampling.top_p);
    put_number(b, "top_logprobs", SL_MAX(p->top_logprobs, 0));
    for (size_t i = 0; i < SL_COUNT(members); i++)
        put_member(b, members[i].name, json_object_get(original, members[i].name),
                   members[i].otherwise);
    put_tools(b, json_object_get(original, "tools"), p->tools);
    put_ignored(b, &e->in);
}

/* The messages of earlier turns and the instructions in front of the input. */
static int responses_go_on(struct sl_task *t, struct response *e)
{
    static const char field[] = "previous_response_id";
    const json_t *v = json_object_get(t->root, field);
    json_t *earlier = json_array();
    const char *id = NULL;
    int rc = earlier != NULL ? 0 : sl_refuse(&t->refusal, SL_ENOMEM, field, "out of memory");
    if (rc == 0 && v != NULL && !json_is_null(v))
        rc = sl_json_cstr(v, field, 64, &id, &t->refusal);
    if (rc == 0 && id != NULL) {
        e->parent = sl_responses_turn(t->server->responses, id, t->key);
        if (e->parent == NULL) {
            t->refusal.code = "previous_response_not_found";
            rc = sl_refuse(&t->refusal, SL_EINVAL, field,
                           "previous_response_id: there is no response %.64s", id);
        } else if (sl_response_turn_bytes(e->parent) > SL_MAX_HTTP_BODY) {
            rc =
                sl_refuse(&t->refusal, SL_ELIMIT, field, "%s: the conversation is too long", field);
        } else {
            t->later = t->at_once && sl_response_turn_bytes(e->parent) >= SL_LARGE_BODY;
            if (!t->later && sl_response_turn_messages(e->parent, earlier) != 0)
                rc = sl_refuse(&t->refusal, SL_ENOMEM, field, "out of memory");
        }
    }
    if (rc == 0 && !t->later)
        rc = sl_responses_prepend(t->root, earlier, &t->refusal);
    json_decref(earlier);
    return rc;
}

/* What the user said stays, word for word, when a summary takes the place of the rest. */
static void keep_user_items(struct sl_buf *b, const json_t *input)
{
    const json_t *item;
    size_t i;
    if (json_is_string(input)) {
        SL_PUT(b, "{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\","
                  "\"text\":");
        sl_json_put(b, input);
        SL_PUT(b, "}]}");
    }
    json_array_foreach(input, i, item)
    {
        const json_t *type = json_object_get(item, "type");
        const char *s = type == NULL ? "message" : json_string_value(type);
        const char *role = json_string_value(json_object_get(item, "role"));
        if (s == NULL || strcmp(s, "message") != 0 || role == NULL || strcmp(role, "user") != 0)
            continue;
        sl_buf_puts(b, b->n_bytes > 0 ? "," : "");
        sl_json_put(b, item);
    }
}

static int to_chat_for(struct sl_task *t, bool compaction)
{
    struct response *e = sl_calloc(1, sizeof *e);
    const json_t *instructions = json_object_get(t->root, "instructions");
    if (e == NULL)
        return sl_refuse(&t->refusal, SL_ENOMEM, NULL, "out of memory");
    e->server = t->server;
    e->tenant = t->key;
    e->compaction = compaction;
    t->extra = e;
    t->free_extra = free_extra;
    if (instructions != NULL && !json_is_null(instructions) && !json_is_string(instructions))
        return sl_refuse(&t->refusal, SL_EINVAL, "instructions",
                         "instructions must be a string, not %s", sl_json_type_name(instructions));
    if (compaction) {
        keep_user_items(&e->kept, json_object_get(t->root, "input"));
        (void)json_object_del(t->root, "stream");
        (void)json_object_del(t->root, "store");
    }
    int rc = sl_responses_to_chat(t->root, &e->in, &t->refusal);
    e->in.compact |= e->compaction;
    if (rc == 0)
        sl_json_put(&e->turn, json_object_get(t->root, "input"));
    if (rc == 0 && !sl_buf_ok(&e->turn))
        rc = sl_refuse(&t->refusal, SL_ENOMEM, "input", "out of memory");
    if (rc == 0)
        rc = responses_go_on(t, e);
    return rc == 0 && !t->later && e->in.compact ? sl_responses_ask_summary(t->root, &t->refusal)
                                                 : rc;
}

static int responses_to_chat(struct sl_task *t)
{
    return to_chat_for(t, false);
}

static int to_chat_compact(struct sl_task *t)
{
    return to_chat_for(t, true);
}

static void note_each(struct sl_params *p, const char *prefix, const char *list)
{
    char note[80];
    while (*list != '\0') {
        size_t n = strcspn(list, ",");
        snprintf(note, sizeof note, "%s.%.*s", prefix, (int)SL_MIN(n, (size_t)60), list);
        sl_params_note(p, note);
        list += n + (list[n] == ',');
    }
}

/* Tools and items that the model is not shown count as ignored fields do. */
static int responses_note_ignored(struct sl_task *t)
{
    const struct response *e = t->extra;
    if (e->in.tools.ignored[0] != '\0' && t->server->cfg->refuse_unknown)
        return sl_refuse(&t->refusal, SL_EUNSUPPORTED, "tools", "tools: this server cannot run %s",
                         e->in.tools.ignored);
    note_each(&t->params, "tools", e->in.tools.ignored);
    note_each(&t->params, "input", e->in.skipped);
    return 0;
}

static void prepare_for(struct sl_task *t, sl_to_chat_fn fn)
{
    json_t *original = NULL;
    int rc = sl_task_parse(t);
    if (rc == 0) {
        original = json_copy(t->root); /* not deep: members are replaced, not changed */
        if (original == NULL)
            rc = sl_refuse(&t->refusal, SL_ENOMEM, NULL, "out of memory");
    }
    t->rc = rc;
    if (rc == 0)
        sl_conversation_prepare(t, SL_ENDPOINT_RESPONSES, fn);
    if (t->rc == 0 && !t->later) {
        struct response *e = t->extra;
        e->store = t->params.store && !e->compaction && sl_responses_keeps(t->server->responses);
        put_echo(&e->echo, original, t);
        t->rc = responses_note_ignored(t);
        if (!sl_buf_ok(&e->echo))
            t->rc = sl_refuse(&t->refusal, SL_ENOMEM, NULL, "out of memory");
    }
    json_decref(original);
}

static void responses_prepare(struct sl_task *t)
{
    prepare_for(t, responses_to_chat);
}

static void prepare_compact(struct sl_task *t)
{
    prepare_for(t, to_chat_compact);
}

static void responses_finish(struct sl_conn *c, struct sl_task *t)
{
    sl_task_call(c, t, &responses_api);
}

static void responses_finish_count(struct sl_conn *c, struct sl_task *t)
{
    struct sl_buf b = {0};
    SL_PUT(&b, "{\"object\":\"response.input_tokens\",\"input_tokens\":");
    sl_put_u64(&b, t->prompts[0].n_ids);
    sl_buf_putc(&b, '}');
    sl_reply_json(c, 200, &b);
}

void sl_api_responses_compact(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_compact, responses_finish};
    sl_task_start(c, &kind);
}

void sl_api_responses_count(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {responses_prepare, responses_finish_count};
    sl_task_start(c, &kind);
}

void sl_api_responses(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {responses_prepare, responses_finish};
    sl_task_start(c, &kind);
}

/* ---- responses that were kept */

static void responses_refuse(struct sl_conn *c, int code, const char *why)
{
    struct sl_refusal r = {0};
    (void)sl_refuse(&r, code, code == SL_ENOTFOUND ? "response_id" : NULL, "%s", why);
    sl_reply_refusal(c, &r);
}

static void cancel(struct sl_conn *c, const char *id)
{
    struct sl_response_store *s = c->loop->server->responses;
    int tenant = c->key;
    struct sl_buf b = {0};
    bool running;
    if (!sl_responses_cancel(s, id, tenant, &running)) {
        responses_refuse(c, SL_ENOTFOUND, "there is no such response");
    } else if (!running) {
        responses_refuse(c, SL_EINVAL, "the response has ended: there is nothing to cancel");
    } else if (!sl_responses_get(s, id, tenant, &b)) {
        sl_buf_deinit(&b);
        responses_refuse(c, SL_ENOTFOUND, "there is no such response any more");
    } else {
        sl_reply_json(c, 200, &b);
    }
}

void sl_api_response(struct sl_conn *c)
{
    static const char end[] = "/cancel";
    struct sl_response_store *s = c->loop->server->responses;
    struct sl_str path = c->parser->path;
    int tenant = c->key;
    size_t n_route = strlen(c->route->path), n_end = sizeof end - 1;
    char id[64];
    struct sl_buf b = {0};
    path.p += n_route;
    path.n -= n_route;
    bool is_post = c->parser->method == SL_HTTP_POST;
    bool cancels = path.n > n_end && memcmp(path.p + path.n - n_end, end, n_end) == 0;
    if (cancels)
        path.n -= n_end;
    if (path.n >= sizeof id || cancels != is_post) {
        responses_refuse(c, SL_ENOTFOUND, "there is no such response");
        return;
    }
    memcpy(id, path.p, path.n);
    id[path.n] = '\0';
    if (cancels) {
        cancel(c, id);
        return;
    }
    if (c->parser->method == SL_HTTP_DELETE) {
        if (sl_responses_delete(s, id, tenant)) {
            SL_PUT(&b, "{\"id\":");
            sl_buf_json_string(&b, id, path.n);
            SL_PUT(&b, ",\"object\":\"response\",\"deleted\":true}");
        }
    } else {
        (void)sl_responses_get(s, id, tenant, &b);
    }
    if (b.n_bytes == 0 && sl_buf_ok(&b))
        responses_refuse(c, SL_ENOTFOUND, "there is no such response");
    else
        sl_reply_json(c, 200, &b);
}
