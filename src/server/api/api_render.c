/* SPDX-License-Identifier: MIT
 * api_render.c - what a request would generate from, without generating: vLLM's
 * /v1/chat/completions/render (one object) and /v1/completions/render (an array of them), which
 * routers ask for token ids, and llama.cpp's /apply-template.
 *
 * The bodies are those of the endpoints that generate and are checked as there, up to and without
 * what only the engine refuses: a prompt that is too long is shown as it is.
 */
#include "base/check.h"
#include "base/sys.h"
#include "server/api/conversation.h"
#include "server/api/prompt.h"
#include "server/api/task.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "server/http/sse.h"

static void render_put_float(struct sl_buf *b, const char *name, float x)
{
    sl_buf_printf(b, ",\"%s\":%.9g", name, (double)x);
}

static void render_put_int(struct sl_buf *b, const char *name, int64_t x)
{
    sl_buf_printf(b, ",\"%s\":%lld", name, (long long)x);
}

static void render_put_bool(struct sl_buf *b, const char *name, bool x)
{
    sl_buf_printf(b, ",\"%s\":%s", name, x ? "true" : "false");
}

/* null for less than nothing asked, as vLLM has it */
static void put_count(struct sl_buf *b, const char *name, int32_t n)
{
    if (n >= 0)
        render_put_int(b, name, n);
    else
        sl_buf_printf(b, ",\"%s\":null", name);
}

static void put_sampling(struct sl_buf *b, const struct sl_sampling *s, int32_t room)
{
    sl_buf_printf(b, "{\"n\":%d", s->n);
    render_put_float(b, "temperature", s->temperature);
    render_put_float(b, "top_p", s->top_p);
    render_put_int(b, "top_k", s->top_k);
    render_put_float(b, "min_p", s->min_p);
    render_put_float(b, "presence_penalty", s->presence_penalty);
    render_put_float(b, "frequency_penalty", s->frequency_penalty);
    render_put_float(b, "repetition_penalty", s->repetition_penalty);
    if (s->has_seed)
        render_put_int(b, "seed", (int64_t)s->seed);
    else
        SL_PUT(b, ",\"seed\":null");
    render_put_int(b, "max_tokens", s->max_tokens > 0 ? SL_MIN(s->max_tokens, room) : room);
    render_put_int(b, "min_tokens", s->min_tokens);
    put_count(b, "logprobs", s->logprobs);
    put_count(b, "prompt_logprobs", s->prompt_logprobs);
    render_put_bool(b, "ignore_eos", s->ignore_eos);
    render_put_bool(b, "include_stop_str_in_output", s->include_stop_str_in_output);
    render_put_bool(b, "skip_special_tokens", !s->keep_special_tokens);
    SL_PUT(b, ",\"stop\":[");
    for (int32_t i = 0; i < s->n_stop; i++) {
        if (i > 0)
            sl_buf_putc(b, ',');
        sl_buf_json_string(b, s->stop[i], strlen(s->stop[i]));
    }
    SL_PUT(b, "],\"stop_token_ids\":");
    sl_call_put_ids(b, s->stop_token_ids, (size_t)s->n_stop_token_ids);
    sl_buf_putc(b, '}');
}

static void put_rendered(struct sl_buf *b, const struct sl_task *t, const struct sl_prompt *prompt,
                         const char *id_prefix)
{
    const struct sl_params *p = &t->params;
    struct sl_server *s = t->server;
    int32_t room = sl_engine_info(t->served->eng)->max_model_len - (int32_t)prompt->n_ids;
    SL_PUT(b, "{\"request_id\":\"");
    sl_buf_puts(b, id_prefix);
    if (p->request_id != NULL && p->request_id[0] != '\0')
        sl_buf_json_escape(b, p->request_id, strlen(p->request_id));
    else
        sl_put_u64(b, atomic_fetch_add(&s->next_id, 1));
    SL_PUT(b, "\",\"token_ids\":");
    sl_call_put_ids(b, prompt->ids, prompt->n_ids);
    SL_PUT(b, ",\"features\":null,\"sampling_params\":");
    put_sampling(b, &p->sampling, SL_MAX(room, 0));
    SL_PUT(b, ",\"model\":");
    sl_buf_json_string(b, t->model, strlen(t->model));
    render_put_bool(b, "stream", p->stream);
    SL_PUT(b, ",\"cache_salt\":");
    if (p->cache_salt != NULL)
        sl_buf_json_string(b, p->cache_salt, strlen(p->cache_salt));
    else
        SL_PUT(b, "null");
    render_put_int(b, "priority", p->priority);
    if (p->return_prompt_text && prompt->text != NULL) {
        SL_PUT(b, ",\"prompt_text\":");
        sl_buf_json_string(b, prompt->text, prompt->n_text);
    }
    SL_PUT(b, ",\"kv_transfer_params\":null}");
}

/* ---- chats and completions */

static void render_prepare_chat(struct sl_task *t)
{
    sl_conversation_prepare(t, SL_ENDPOINT_CHAT, NULL);
}

static void render_finish_chat(struct sl_conn *c, struct sl_task *t)
{
    t->out.max_bytes = SL_MAX_REPLY_BYTES;
    SL_ASSERT(t->n_prompts == 1);
    put_rendered(&t->out, t, &t->prompts[0], "chatcmpl-");
    sl_reply_json(c, 200, &t->out);
}

static void finish_completions(struct sl_conn *c, struct sl_task *t)
{
    t->out.max_bytes = SL_MAX_REPLY_BYTES;
    for (int32_t i = 0; i < t->n_prompts; i++) {
        sl_buf_putc(&t->out, i == 0 ? '[' : ',');
        put_rendered(&t->out, t, &t->prompts[i], "cmpl-");
    }
    sl_buf_putc(&t->out, ']');
    sl_reply_json(c, 200, &t->out);
}

void sl_api_render_chat(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {render_prepare_chat, render_finish_chat};
    sl_task_start(c, &kind);
}

void sl_api_render_completions(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {sl_completions_prepare, finish_completions};
    sl_task_start(c, &kind);
}

/* ---- llama.cpp's */

static void prepare_template(struct sl_task *t)
{
    char *text = NULL;
    size_t n = 0;
    t->out.max_bytes = SL_MAX_REPLY_BYTES;
    t->rc = sl_task_read(t, SL_ENDPOINT_CHAT);
    if (t->rc == 0)
        t->rc = sl_task_formats(t);
    if (t->rc == 0)
        t->rc = sl_prompt_render(t->served->eng, &t->params, &text, &n, &t->refusal);
    if (t->rc != 0)
        return;
    SL_PUT(&t->out, "{\"prompt\":");
    sl_buf_json_string(&t->out, text, n);
    sl_buf_putc(&t->out, '}');
    sl_free(text);
}

static void finish_template(struct sl_conn *c, struct sl_task *t)
{
    sl_reply_json(c, 200, &t->out);
}

void sl_api_apply_template(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_template, finish_template};
    sl_task_start(c, &kind);
}
