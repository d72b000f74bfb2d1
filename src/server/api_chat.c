/* SPDX-License-Identifier: MIT
 * api_chat.c - POST /v1/chat/completions.
 */
#include "base/sys.h"
#include "server/answer.h"
#include "server/prompt.h"
#include "server/reply.h"
#include "server/route.h"
#include "server/sse.h"
#include "server/task.h"
#include "server/tokens.h"

static struct sl_token_style style_of(const struct sl_call *call)
{
    return (struct sl_token_style){call->conn->loop, call->tokens_as_ids};
}

/* ---- streams */

static void put_first_event(struct sl_buf *b, struct sl_call *call, const struct sl_prompt *prompt,
                            const struct sl_choice *choice)
{
    sl_call_event_begin(b, call);
    SL_PUT(b, "{\"index\":");
    sl_put_i64(b, choice->idx);
    SL_PUT(b, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
              "\"finish_reason\":null}");
    if (call->return_token_ids && prompt->ids != NULL) {
        SL_PUT(b, "],\"prompt_token_ids\":");
        sl_call_put_ids(b, prompt->ids, prompt->n_ids);
        SL_PUT(b, "}\n\n");
        return;
    }
    sl_call_event_end(b, call, prompt);
}

static void put_text_delta(struct sl_buf *b, struct sl_call *call, const struct sl_choice *choice,
                           const struct sl_chunk *chunk)
{
    sl_call_event_begin(b, call);
    SL_PUT(b, "{\"index\":");
    sl_put_i64(b, choice->idx);
    if (chunk->n_text > 0) {
        SL_PUT(b, ",\"delta\":{\"content\":\"");
        sl_buf_json_escape(b, chunk->text, chunk->n_text);
        SL_PUT(b, "\"},");
    } else {
        SL_PUT(b, ",\"delta\":{},");
    }
}

static void put_events(struct sl_buf *b, struct sl_call *call, struct sl_prompt *prompt,
                       struct sl_choice *choice, const struct sl_chunk *chunk)
{
    bool tokens_matter = chunk->n_tokens > 0 && (call->want_logprobs || call->return_token_ids);
    if (!choice->began)
        put_first_event(b, call, prompt, choice);
    choice->began = true;
    if (chunk->n_text == 0 && chunk->finish == SL_RUNNING && !tokens_matter)
        return; /* half a character: nothing to show yet */
    if (choice->answer != NULL) {
        bool open = sl_answer_push(choice->answer, b, chunk);
        if (!open && chunk->finish == SL_RUNNING && !tokens_matter)
            return; /* what came may still become a marker */
        if (!open)
            sl_answer_begin_delta(choice->answer, b);
    } else {
        put_text_delta(b, call, choice, chunk);
    }
    if (call->want_logprobs && chunk->n_tokens > 0) {
        SL_PUT(b, "\"logprobs\":{\"content\":[");
        sl_put_chat_logprobs(b, style_of(call), chunk->tokens, chunk->n_tokens, call->n_logprobs);
        SL_PUT(b, "]},");
    } else {
        SL_PUT(b, "\"logprobs\":null,");
    }
    sl_call_put_finish(b, chunk->finish, sl_answer_has_calls(choice->answer), chunk->stop_token_id,
                       chunk->stop_str, chunk->stop_str != NULL ? strlen(chunk->stop_str) : 0);
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
    sl_call_event_end(b, call, prompt);
}

/* ---- whole replies */

static void collect(struct sl_call *call, struct sl_prompt *prompt, struct sl_choice *choice,
                    const struct sl_chunk *chunk)
{
    (void)prompt;
    if (choice->answer != NULL)
        (void)sl_answer_push(choice->answer, NULL, chunk);
    else
        sl_buf_put(&choice->text, chunk->text, chunk->n_text);
    if (call->want_logprobs && chunk->n_tokens > 0) {
        if (choice->tokens.n_bytes > 0)
            sl_buf_putc(&choice->tokens, ',');
        sl_put_chat_logprobs(&choice->tokens, style_of(call), chunk->tokens, chunk->n_tokens,
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

static void put_choice(struct sl_buf *b, struct sl_call *call, struct sl_prompt *prompt,
                       struct sl_choice *choice)
{
    (void)prompt;
    SL_PUT(b, "{\"index\":");
    sl_put_i64(b, choice->idx);
    SL_PUT(b, ",\"message\":{\"role\":\"assistant\",");
    if (choice->answer != NULL) {
        sl_answer_put_message(choice->answer, b);
    } else {
        SL_PUT(b, "\"content\":\"");
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
    sl_call_put_finish(b, choice->finish, sl_answer_has_calls(choice->answer),
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
        sl_put_prompt_logprobs(b, style_of(call), t, (size_t)u.n_prompt);
    }
    if (call->return_token_ids && prompt->ids != NULL) {
        SL_PUT(b, ",\"prompt_token_ids\":");
        sl_call_put_ids(b, prompt->ids, prompt->n_ids);
    }
}

static int begin(struct sl_call *call, struct sl_choice *choice, const struct sl_params *p,
                 struct sl_error *err)
{
    return sl_answer_create(call, choice, p, &choice->answer, err);
}

static const struct sl_call_api chat_api = {
    .id_prefix = "chatcmpl",
    .object = "chat.completion",
    .event_object = "chat.completion.chunk",
    .begin = begin,
    .put_events = put_events,
    .collect = collect,
    .put_choice = put_choice,
    .put_tail = put_tail,
};

/* ---- the request */

/* Messages to text to ids. */
static int read_messages(struct sl_task *t)
{
    const struct sl_engine *eng = t->server->eng;
    struct sl_params *p = &t->params;
    char *text = NULL;
    size_t n_text = 0;
    int rc = sl_prompt_render(eng, t->root, p, &text, &n_text, &t->refusal);
    if (rc != 0)
        return rc;
    p->start = sl_formats_start(p->formats, text, n_text);
    rc = sl_params_thinking(p, eng, text, n_text, &t->refusal);
    if (rc != 0) {
        sl_free(text);
        return rc;
    }
    t->prompts = sl_calloc(1, sizeof *t->prompts);
    if (t->prompts == NULL) {
        rc = sl_refuse(&t->refusal, SL_ENOMEM, NULL, "out of memory");
    } else {
        t->n_prompts = 1;
        rc = sl_prompt_encode(eng, text, n_text, p->add_special_tokens, p->truncate_prompt_tokens,
                              t->prompts, &t->refusal);
    }
    sl_free(text);
    return rc;
}

static void prepare(struct sl_task *t)
{
    t->rc = sl_task_read(t, SL_ENDPOINT_CHAT);
    if (t->rc == 0)
        t->rc = sl_call_check_model(t->server, t->params.model, &t->model, &t->refusal);
    if (t->rc == 0)
        t->rc = sl_task_formats(t);
    if (t->rc == 0)
        t->rc = sl_task_compile(t);
    if (t->rc == 0 && !t->later)
        t->rc = read_messages(t);
}

static void finish(struct sl_conn *c, struct sl_task *t)
{
    sl_task_call(c, t, &chat_api);
}

void sl_api_chat(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare, finish};
    sl_task_start(c, &kind);
}
