/* SPDX-License-Identifier: MIT
 * api_chat.c - POST /v1/chat/completions.
 */
#include "server/api/answer.h"
#include "server/api/conversation.h"
#include "server/api/free_form.h"
#include "server/api/openai_out.h"
#include "server/api/task.h"
#include "server/api/tokens.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "server/http/sse.h"

static struct sl_token_style chat_style_of(const struct sl_call *call)
{
    return (struct sl_token_style){call->conn->loop, call->served, call->tokens_as_ids};
}

/* What was asked to be told about the prompt. */
static void put_prompt(struct sl_buf *b, const struct sl_call *call, const struct sl_prompt *prompt)
{
    if (call->return_token_ids && prompt->ids != NULL) {
        SL_PUT(b, ",\"prompt_token_ids\":");
        sl_call_put_ids(b, prompt->ids, prompt->n_ids);
    }
    if (call->return_prompt_text && prompt->text != NULL) {
        SL_PUT(b, ",\"prompt_text\":");
        sl_buf_json_string(b, prompt->text, prompt->n_text);
    }
}

/* ---- streams */

static void put_first_event(struct sl_buf *b, struct sl_call *call, const struct sl_prompt *prompt,
                            const struct sl_choice *choice)
{
    sl_openai_event_begin(b, call);
    SL_PUT(b, "{\"index\":");
    sl_put_i64(b, choice->idx);
    SL_PUT(b, ",\"delta\":{\"role\":\"assistant\",\"content\":\"");
    sl_buf_json_escape(b, prompt->final, prompt->n_final);
    SL_PUT(b, "\"},\"logprobs\":null,\"finish_reason\":null}");
    if (prompt->ids == NULL && prompt->text == NULL) {
        sl_openai_event_end(b, call, prompt, SL_RUNNING);
        return;
    }
    sl_buf_putc(b, ']');
    put_prompt(b, call, prompt);
    SL_PUT(b, "}\n\n");
}

static void begin_delta(struct sl_buf *b, struct sl_call *call, struct sl_choice *choice)
{
    if (choice->open) { /* one of several in this chunk: only the last has an end to show */
        SL_PUT(b, "},\"logprobs\":null,\"finish_reason\":null}");
        sl_openai_event_end(b, call, NULL, SL_RUNNING);
    }
    sl_openai_event_begin(b, call);
    SL_PUT(b, "{\"index\":");
    sl_put_i64(b, choice->idx);
    SL_PUT(b, ",\"delta\":{");
    choice->open = true;
}

static void put_text_member(struct sl_buf *b, const char *text, size_t n, bool reasoning)
{
    if (reasoning) { /* the name vLLM has now, and the one it had */
        SL_PUT(b, "\"reasoning\":\"");
        sl_buf_json_escape(b, text, n);
        SL_PUT(b, "\",\"reasoning_content\":\"");
    } else {
        SL_PUT(b, "\"content\":\"");
    }
    sl_buf_json_escape(b, text, n);
    sl_buf_putc(b, '"');
}

/* "id":...,"type":"function","function":{"name":...,"arguments": or "custom":{...,"input": */
static void put_call_head(struct sl_buf *b, const struct sl_part *part)
{
    SL_PUT(b, "\"id\":");
    sl_buf_json_string(b, part->id.data, part->id.n_bytes);
    sl_buf_puts(b, part->free_form ? ",\"type\":\"custom\",\"custom\":{\"name\":"
                                   : ",\"type\":\"function\",\"function\":{\"name\":");
    sl_buf_json_string(b, part->name.data, part->name.n_bytes);
    sl_buf_puts(b, part->free_form ? ",\"input\":" : ",\"arguments\":");
}

static void chat_part_begin(struct sl_buf *b, struct sl_call *call, struct sl_choice *choice,
                            const struct sl_part *part)
{
    if (part->kind != SL_PART_CALL)
        return;
    begin_delta(b, call, choice);
    SL_PUT(b, "\"tool_calls\":[{\"index\":");
    sl_put_i64(b, part->call_idx);
    sl_buf_putc(b, ',');
    put_call_head(b, part);
    SL_PUT(b, "\"\"}}]");
}

static void chat_part_text(struct sl_buf *b, struct sl_call *call, struct sl_choice *choice,
                           const struct sl_part *part, const char *text, size_t n)
{
    if (part->free_form) /* the text is known at the end */
        return;
    begin_delta(b, call, choice);
    if (part->kind != SL_PART_CALL) {
        put_text_member(b, text, n, part->kind == SL_PART_REASONING);
        return;
    }
    SL_PUT(b, "\"tool_calls\":[{\"index\":");
    sl_put_i64(b, part->call_idx);
    SL_PUT(b, ",\"function\":{\"arguments\":\"");
    sl_buf_json_escape(b, text, n);
    SL_PUT(b, "\"}}]");
}

static void chat_part_end(struct sl_buf *b, struct sl_call *call, struct sl_choice *choice,
                          const struct sl_part *part)
{
    if (!part->free_form)
        return;
    begin_delta(b, call, choice);
    SL_PUT(b, "\"tool_calls\":[{\"index\":");
    sl_put_i64(b, part->call_idx);
    SL_PUT(b, ",\"custom\":{\"input\":");
    sl_free_form_put(b, part);
    SL_PUT(b, "}}]");
}

static void chat_put_events(struct sl_buf *b, struct sl_call *call, struct sl_prompt *prompt,
                            struct sl_choice *choice, const struct sl_chunk *chunk)
{
    bool tokens_matter = chunk->n_tokens > 0 && (call->want_logprobs || call->return_token_ids);
    if (!choice->began)
        put_first_event(b, call, prompt, choice);
    choice->began = true;
    if (choice->answer == NULL && chunk->n_text == 0 && chunk->finish == SL_RUNNING &&
        !tokens_matter)
        return; /* half a character: nothing to show yet; an answer counts its tokens */
    choice->open = false;
    if (choice->answer != NULL) {
        sl_answer_push(choice->answer, b, chunk);
        if (!choice->open && chunk->finish == SL_RUNNING && !tokens_matter)
            return; /* what came may still become a marker */
    }
    if (!choice->open)
        begin_delta(b, call, choice);
    if (choice->answer == NULL && chunk->n_text > 0)
        put_text_member(b, chunk->text, chunk->n_text, false);
    SL_PUT(b, "},");
    if (call->want_logprobs && chunk->n_tokens > 0) {
        SL_PUT(b, "\"logprobs\":{\"content\":[");
        sl_put_chat_logprobs(b, chat_style_of(call), chunk->tokens, chunk->n_tokens,
                             call->n_logprobs);
        SL_PUT(b, "]},");
    } else {
        SL_PUT(b, "\"logprobs\":null,");
    }
    sl_openai_put_finish(b, chunk->finish, sl_answer_has_calls(choice->answer),
                         chunk->stop_token_id, chunk->stop_str,
                         chunk->stop_str != NULL ? strlen(chunk->stop_str) : 0);
    if (call->return_token_ids) {
        SL_PUT(b, ",\"token_ids\":[");
        for (size_t i = 0; i < chunk->n_tokens; i++) {
            if (i > 0)
                sl_buf_putc(b, ',');
            sl_put_i64(b, chunk->tokens[i].id);
        }
        sl_buf_putc(b, ']');
    }
    sl_buf_putc(b, '}');
    sl_openai_event_end(b, call, prompt, chunk->finish);
}

/* ---- whole replies */

static void chat_collect(struct sl_call *call, struct sl_prompt *prompt, struct sl_choice *choice,
                         const struct sl_chunk *chunk)
{
    (void)prompt;
    if (choice->answer != NULL)
        sl_answer_push(choice->answer, NULL, chunk);
    else
        sl_buf_put(&choice->text, chunk->text, chunk->n_text);
    if (call->want_logprobs && chunk->n_tokens > 0) {
        if (choice->tokens.n_bytes > 0)
            sl_buf_putc(&choice->tokens, ',');
        sl_put_chat_logprobs(&choice->tokens, chat_style_of(call), chunk->tokens, chunk->n_tokens,
                             call->n_logprobs);
    }
    for (size_t i = 0; call->return_token_ids && i < chunk->n_tokens; i++) {
        if (choice->token_ids.n_bytes > 0)
            sl_buf_putc(&choice->token_ids, ',');
        sl_put_i64(&choice->token_ids, chunk->tokens[i].id);
    }
}

static void put_buf(struct sl_buf *b, const struct sl_buf *part)
{
    sl_buf_put(b, part->data, part->n_bytes);
    if (!sl_buf_ok(part))
        b->failed = true; /* the loss must show: it becomes a 503 */
}

/* The parts of a kind, behind what an echo puts before them. */
static void put_text_of(struct sl_buf *b, const struct sl_answer *a, enum sl_part_kind kind,
                        const struct sl_prompt *echo)
{
    sl_buf_putc(b, '"');
    if (echo != NULL)
        sl_buf_json_escape(b, echo->final, echo->n_final);
    for (int32_t i = 0; i < sl_answer_n_parts(a); i++) {
        const struct sl_part *part = sl_answer_part(a, i);
        if (part->kind == kind)
            sl_buf_json_escape(b, part->text.data, part->text.n_bytes);
    }
    sl_buf_putc(b, '"');
}

/* "content":...,"tool_calls":[...] and so on */
static void put_message(struct sl_buf *b, const struct sl_answer *a, const struct sl_prompt *prompt)
{
    int32_t n_parts = sl_answer_n_parts(a), n[3] = {0};
    for (int32_t i = 0; i < n_parts; i++)
        n[sl_answer_part(a, i)->kind]++;
    SL_PUT(b, "\"content\":");
    if (n[SL_PART_TEXT] == 0 && n_parts > 0 && prompt->n_final == 0)
        SL_PUT(b, "null");
    else
        put_text_of(b, a, SL_PART_TEXT, prompt);
    SL_PUT(b, ",\"refusal\":null");
    for (int32_t i = 0; n[SL_PART_CALL] > 0 && i < n_parts; i++) {
        const struct sl_part *part = sl_answer_part(a, i);
        if (part->kind != SL_PART_CALL)
            continue;
        sl_buf_puts(b, part->call_idx == 0 ? ",\"tool_calls\":[{" : ",{");
        put_call_head(b, part);
        if (part->free_form)
            sl_free_form_put(b, part);
        else
            sl_buf_json_string(b, part->text.data, part->text.n_bytes);
        SL_PUT(b, "}}");
    }
    if (n[SL_PART_CALL] > 0)
        sl_buf_putc(b, ']');
    if (n[SL_PART_REASONING] > 0) {
        SL_PUT(b, ",\"reasoning\":");
        put_text_of(b, a, SL_PART_REASONING, NULL);
        SL_PUT(b, ",\"reasoning_content\":");
        put_text_of(b, a, SL_PART_REASONING, NULL);
    }
    b->failed |= !sl_answer_ok(a); /* the loss must show: it becomes a 503 */
}

static void chat_put_choice(struct sl_buf *b, struct sl_call *call, struct sl_prompt *prompt,
                            struct sl_choice *choice)
{
    SL_PUT(b, "{\"index\":");
    sl_put_i64(b, choice->idx);
    SL_PUT(b, ",\"message\":{\"role\":\"assistant\",");
    if (choice->answer != NULL) {
        put_message(b, choice->answer, prompt);
    } else {
        SL_PUT(b, "\"content\":\"");
        sl_buf_json_escape(b, prompt->final, prompt->n_final);
        sl_buf_json_escape(b, choice->text.data, choice->text.n_bytes);
        b->failed |= !sl_buf_ok(&choice->text);
        SL_PUT(b, "\",\"refusal\":null");
    }
    SL_PUT(b, "},\"logprobs\":");
    if (call->want_logprobs) {
        SL_PUT(b, "{\"content\":[");
        put_buf(b, &choice->tokens);
        SL_PUT(b, "]},");
    } else {
        SL_PUT(b, "null,");
    }
    sl_openai_put_finish(b, choice->finish, sl_answer_has_calls(choice->answer),
                         choice->stop_token_id, choice->stop_str.data, choice->stop_str.n_bytes);
    if (call->return_token_ids) {
        SL_PUT(b, ",\"token_ids\":[");
        put_buf(b, &choice->token_ids);
        sl_buf_putc(b, ']');
    }
    sl_buf_putc(b, '}');
}

static void put_tail(struct sl_buf *b, struct sl_call *call)
{
    const struct sl_prompt *prompt = &call->prompts[0];
    const struct sl_token *t = sl_request_prompt_logprobs(prompt->req);
    if (t != NULL) {
        struct sl_usage u;
        sl_request_usage(prompt->req, &u);
        SL_PUT(b, ",\"prompt_logprobs\":");
        sl_put_prompt_logprobs(b, chat_style_of(call), t, (size_t)u.n_prompt);
    }
    put_prompt(b, call, prompt);
}

static int chat_begin(struct sl_call *call, struct sl_choice *choice, const struct sl_params *p,
                      struct sl_error *err)
{
    bool as_it_is =
        p->tools_format == NULL && (p->formats == NULL || p->formats->reasoning == NULL);
    return as_it_is ? 0 : sl_answer_create(call, choice, p, !call->stream, &choice->answer, err);
}

static const struct sl_call_api chat_api = {
    .id_prefix = "chatcmpl-",
    SL_OPENAI_OUT,
    .object = "chat.completion",
    .event_object = "chat.completion.chunk",
    .begin = chat_begin,
    .put_events = chat_put_events,
    .part_begin = chat_part_begin,
    .part_text = chat_part_text,
    .part_end = chat_part_end,
    .collect = chat_collect,
    .put_choice = chat_put_choice,
    .put_tail = put_tail,
};

/* ---- the request */

static void chat_prepare(struct sl_task *t)
{
    sl_conversation_prepare(t, SL_ENDPOINT_CHAT, NULL);
}

static void chat_finish(struct sl_conn *c, struct sl_task *t)
{
    sl_task_call(c, t, &chat_api);
}

void sl_api_chat(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {chat_prepare, chat_finish};
    sl_task_start(c, &kind);
}
