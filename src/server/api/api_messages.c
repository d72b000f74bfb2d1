/* SPDX-License-Identifier: MIT
 * api_messages.c - POST /v1/messages and /v1/messages/count_tokens, as Anthropic has them.
 *
 * A part of an answer is a content block. Usage counts a prompt's cached tokens apart from the
 * others. There is one choice.
 */
#include "server/api/answer.h"
#include "server/api/anthropic_in.h"
#include "server/api/conversation.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "server/http/sse.h"

/* ---- pieces */

static void messages_put_usage(struct sl_buf *b, const struct sl_call *call)
{
    struct sl_usage u;
    sl_call_usage(call, &u);
    SL_PUT(b, "\"usage\":{\"input_tokens\":");
    sl_put_i64(b, u.n_prompt - u.n_cached);
    SL_PUT(b, ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":");
    sl_put_i64(b, u.n_cached);
    SL_PUT(b, ",\"output_tokens\":");
    sl_put_i64(b, u.n_output);
    sl_buf_putc(b, '}');
}

/* "stop_reason":...,"stop_sequence":... */
static void put_stop(struct sl_buf *b, const struct sl_call *call, enum sl_finish finish,
                     const char *stop_str, size_t n_stop_str)
{
    const struct sl_choice *choice = &call->choices[0];
    const char *reason = "end_turn";
    if (finish == SL_FINISH_LENGTH) /* else it is the context that was too short */
        reason = call->max_tokens > 0 && (int64_t)choice->n_output < call->max_tokens &&
                         !call->drop_output
                     ? "model_context_window_exceeded"
                     : "max_tokens";
    else if (finish == SL_FINISH_ABORT)
        reason = "pause_turn"; /* a time limit, or the server stops: it may be sent again */
    else if (n_stop_str > 0)
        reason = "stop_sequence";
    else if (sl_answer_has_calls(choice->answer))
        reason = "tool_use";
    SL_PUT(b, "\"stop_reason\":\"");
    sl_buf_puts(b, reason);
    SL_PUT(b, "\",\"stop_sequence\":");
    if (n_stop_str > 0 && finish == SL_FINISH_STOP)
        sl_buf_json_string(b, stop_str, n_stop_str);
    else
        SL_PUT(b, "null");
}

/* The begin of a message object, up to its content. */
static void put_message_head(struct sl_buf *b, const struct sl_call *call)
{
    SL_PUT(b, "{\"id\":");
    sl_buf_json_string(b, call->id, strlen(call->id));
    SL_PUT(b, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    sl_buf_json_string(b, call->model, strlen(call->model));
    SL_PUT(b, ",\"content\":[");
}

/* A block without its text: as streams begin it, and up to the text as whole replies have it. */
static void put_block_head(struct sl_buf *b, const struct sl_part *part)
{
    switch (part->kind) {
    case SL_PART_REASONING:
        SL_PUT(b, "{\"type\":\"thinking\",\"thinking\":");
        return;
    case SL_PART_TEXT:
        SL_PUT(b, "{\"type\":\"text\",\"text\":");
        return;
    case SL_PART_CALL:
        SL_PUT(b, "{\"type\":\"tool_use\",\"id\":");
        sl_buf_json_string(b, part->id.data, part->id.n_bytes);
        SL_PUT(b, ",\"name\":");
        sl_buf_json_string(b, part->name.data, part->name.n_bytes);
        SL_PUT(b, ",\"input\":");
    }
}

/* Clients give a thinking block back as it is, and some drop one without a signature. Nobody checks
 * it here: what was thought is text like any other. */
static void put_signature(struct sl_buf *b, const struct sl_call *call, const struct sl_part *part)
{
    SL_PUT(b, "\"signature\":\"");
    sl_buf_json_escape(b, call->id, strlen(call->id));
    sl_buf_putc(b, '.');
    sl_put_i64(b, part->idx);
    sl_buf_putc(b, '"');
}

/* The model's own bytes: what streams have, and what a number too long to be read loses nothing of.
 * Arguments that max_tokens cut off are no JSON; stop_reason says so. */
static void put_input(struct sl_buf *b, const struct sl_part *part)
{
    if (part->whole)
        sl_buf_put(b, part->text.data, part->text.n_bytes);
    else
        SL_PUT(b, "{}");
}

/* ---- streams */

static void messages_event_begin(struct sl_buf *b, const char *type)
{
    SL_PUT(b, "event: ");
    sl_buf_puts(b, type);
    SL_PUT(b, "\ndata: {\"type\":\"");
    sl_buf_puts(b, type);
    sl_buf_putc(b, '"');
}

static void put_index(struct sl_buf *b, const struct sl_part *part)
{
    SL_PUT(b, ",\"index\":");
    sl_put_i64(b, part->idx);
}

static void messages_part_begin(struct sl_buf *b, struct sl_call *call, struct sl_choice *choice,
                                const struct sl_part *part)
{
    static const char *const empty[] = {[SL_PART_REASONING] = "\"\",\"signature\":\"\"",
                                        [SL_PART_TEXT] = "\"\"",
                                        [SL_PART_CALL] = "{}"};
    (void)call;
    (void)choice;
    messages_event_begin(b, "content_block_start");
    put_index(b, part);
    SL_PUT(b, ",\"content_block\":");
    put_block_head(b, part);
    sl_buf_puts(b, empty[part->kind]);
    SL_PUT(b, "}}\n\n");
}

static void messages_part_text(struct sl_buf *b, struct sl_call *call, struct sl_choice *choice,
                               const struct sl_part *part, const char *text, size_t n)
{
    static const char *const deltas[] = {[SL_PART_REASONING] = "thinking_delta\",\"thinking\":\"",
                                         [SL_PART_TEXT] = "text_delta\",\"text\":\"",
                                         [SL_PART_CALL] = "input_json_delta\",\"partial_json\":\""};
    (void)call;
    (void)choice;
    messages_event_begin(b, "content_block_delta");
    put_index(b, part);
    SL_PUT(b, ",\"delta\":{\"type\":\"");
    sl_buf_puts(b, deltas[part->kind]);
    sl_buf_json_escape(b, text, n);
    SL_PUT(b, "\"}}\n\n");
}

static void messages_part_end(struct sl_buf *b, struct sl_call *call, struct sl_choice *choice,
                              const struct sl_part *part)
{
    (void)choice;
    if (part->kind == SL_PART_REASONING) {
        messages_event_begin(b, "content_block_delta");
        put_index(b, part);
        SL_PUT(b, ",\"delta\":{\"type\":\"signature_delta\",");
        put_signature(b, call, part);
        SL_PUT(b, "}}\n\n");
    }
    messages_event_begin(b, "content_block_stop");
    put_index(b, part);
    SL_PUT(b, "}\n\n");
}

static void messages_put_events(struct sl_buf *b, struct sl_call *call, struct sl_prompt *prompt,
                                struct sl_choice *choice, const struct sl_chunk *chunk)
{
    (void)prompt;
    if (!choice->began) {
        messages_event_begin(b, "message_start");
        SL_PUT(b, ",\"message\":");
        put_message_head(b, call);
        SL_PUT(b, "],\"stop_reason\":null,\"stop_sequence\":null,");
        messages_put_usage(b, call);
        SL_PUT(b, "}}\n\n");
    }
    choice->began = true;
    sl_answer_push(choice->answer, b, chunk);
    if (chunk->finish == SL_RUNNING)
        return;
    messages_event_begin(b, "message_delta");
    SL_PUT(b, ",\"delta\":{");
    put_stop(b, call, chunk->finish, chunk->stop_str,
             chunk->stop_str != NULL ? strlen(chunk->stop_str) : 0);
    SL_PUT(b, "},");
    messages_put_usage(b, call);
    SL_PUT(b, "}\n\n");
}

static void messages_end_stream(struct sl_buf *b, struct sl_call *call)
{
    (void)call;
    messages_event_begin(b, "message_stop");
    SL_PUT(b, "}\n\n");
}

static void messages_fail_stream(struct sl_buf *b, struct sl_call *call, const struct sl_refusal *r)
{
    (void)call;
    SL_PUT(b, "event: error\ndata: ");
    sl_reply_error_json(b, r, sl_code_http(r->err.code), SL_PROTOCOL_ANTHROPIC);
    SL_PUT(b, "\n\n");
}

static void ping(struct sl_buf *b)
{
    messages_event_begin(b, "ping");
    SL_PUT(b, "}\n\n");
}

/* ---- whole replies */

static void messages_collect(struct sl_call *call, struct sl_prompt *prompt,
                             struct sl_choice *choice, const struct sl_chunk *chunk)
{
    (void)call;
    (void)prompt;
    sl_answer_push(choice->answer, NULL, chunk);
}

static void messages_put_whole(struct sl_buf *b, struct sl_call *call)
{
    const struct sl_choice *choice = &call->choices[0];
    const struct sl_answer *a = choice->answer;
    put_message_head(b, call);
    for (int32_t i = 0; i < sl_answer_n_parts(a); i++) {
        const struct sl_part *part = sl_answer_part(a, i);
        if (i > 0)
            sl_buf_putc(b, ',');
        put_block_head(b, part);
        if (part->kind == SL_PART_CALL)
            put_input(b, part);
        else
            sl_buf_json_string(b, part->text.data, part->text.n_bytes);
        if (part->kind == SL_PART_REASONING) {
            sl_buf_putc(b, ',');
            put_signature(b, call, part);
        }
        sl_buf_putc(b, '}');
    }
    SL_PUT(b, "],");
    put_stop(b, call, choice->finish, choice->stop_str.data, choice->stop_str.n_bytes);
    sl_buf_putc(b, ',');
    messages_put_usage(b, call);
    sl_buf_putc(b, '}');
    b->failed |= !sl_answer_ok(a); /* the loss must show: it becomes a 503 */
}

static int messages_begin(struct sl_call *call, struct sl_choice *choice, const struct sl_params *p,
                          struct sl_error *err)
{
    return sl_answer_create(call, choice, p, !call->stream, &choice->answer, err);
}

static const struct sl_call_api messages_api = {
    .id_prefix = "msg_",
    .begin = messages_begin,
    .put_events = messages_put_events,
    .end_stream = messages_end_stream,
    .fail_stream = messages_fail_stream,
    .ping = ping,
    .part_begin = messages_part_begin,
    .part_text = messages_part_text,
    .part_end = messages_part_end,
    .collect = messages_collect,
    .put_whole = messages_put_whole,
};

/* ---- the request */

static int messages_to_chat(struct sl_task *t)
{
    return sl_anthropic_to_chat(t->root, &t->refusal);
}

static int to_chat_to_generate(struct sl_task *t)
{
    const json_t *max_tokens = json_object_get(t->root, "max_tokens");
    if (max_tokens == NULL || json_is_null(max_tokens))
        return sl_refuse(&t->refusal, SL_EINVAL, "max_tokens", "max_tokens is missing");
    return messages_to_chat(t);
}

static void messages_prepare(struct sl_task *t)
{
    sl_conversation_prepare(t, SL_ENDPOINT_MESSAGES, to_chat_to_generate);
}

static void messages_finish(struct sl_conn *c, struct sl_task *t)
{
    sl_task_call(c, t, &messages_api);
}

void sl_api_messages(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {messages_prepare, messages_finish};
    sl_task_start(c, &kind);
}

static void prepare_count(struct sl_task *t)
{
    sl_conversation_prepare(t, SL_ENDPOINT_MESSAGES, messages_to_chat);
}

static void messages_finish_count(struct sl_conn *c, struct sl_task *t)
{
    struct sl_buf b = {0};
    SL_PUT(&b, "{\"input_tokens\":");
    sl_put_u64(&b, t->prompts[0].n_ids);
    sl_buf_putc(&b, '}');
    sl_reply_json(c, 200, &b);
}

void sl_api_count_tokens(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_count, messages_finish_count};
    sl_task_start(c, &kind);
}
