/* SPDX-License-Identifier: MIT
 * api_completions.c - POST /v1/completions.
 *
 * logprobs are four columns (tokens, token_logprobs, top_logprobs, text_offset). A stream fills
 * them for one event, a whole reply over its length; with echo the prompt's tokens come first.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "server/api/openai_out.h"
#include "server/api/prompt.h"
#include "server/api/task.h"
#include "server/api/tokens.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "server/http/sse.h"

static struct sl_token_style completions_style_of(const struct sl_call *call)
{
    return (struct sl_token_style){call->conn->loop, call->served, call->tokens_as_ids};
}

/* ---- columns of logprobs */

static void clear_columns(struct sl_choice *ch)
{
    sl_buf_clear(&ch->tokens);
    sl_buf_clear(&ch->values);
    sl_buf_clear(&ch->tops);
    sl_buf_clear(&ch->offsets);
    sl_buf_clear(&ch->token_ids);
}

static void add_columns(const struct sl_call *call, struct sl_choice *ch, const struct sl_token *t,
                        size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool unknown = t[i].rank == 0; /* the first token of a prompt */
        if (ch->tokens.n_bytes > 0) {
            sl_buf_putc(&ch->tokens, ',');
            sl_buf_putc(&ch->values, ',');
            sl_buf_putc(&ch->tops, ',');
            sl_buf_putc(&ch->offsets, ',');
        }
        sl_put_u64(&ch->offsets, ch->n_chars);
        ch->n_chars += sl_put_token_string(&ch->tokens, completions_style_of(call), t[i].id);
        if (unknown) {
            SL_PUT(&ch->values, "null");
            SL_PUT(&ch->tops, "null");
            continue;
        }
        sl_put_logprob(&ch->values, t[i].logprob);
        sl_put_top_map(&ch->tops, completions_style_of(call), &t[i], call->n_logprobs);
    }
}

static void completions_put_part(struct sl_buf *b, const struct sl_buf *part)
{
    sl_buf_put(b, part->data, part->n_bytes);
    if (!sl_buf_ok(part))
        b->failed = true; /* the loss must show: it becomes a 503 */
}

static void put_columns(struct sl_buf *b, const struct sl_choice *ch)
{
    SL_PUT(b, "{\"text_offset\":[");
    completions_put_part(b, &ch->offsets);
    SL_PUT(b, "],\"token_logprobs\":[");
    completions_put_part(b, &ch->values);
    SL_PUT(b, "],\"tokens\":[");
    completions_put_part(b, &ch->tokens);
    SL_PUT(b, "],\"top_logprobs\":[");
    completions_put_part(b, &ch->tops);
    SL_PUT(b, "]}");
}

/* What a chunk adds to columns and ids; before the first, with echo, the prompt. */
static void completions_gather(struct sl_call *call, struct sl_prompt *prompt, struct sl_choice *ch,
                               const struct sl_chunk *chunk)
{
    if (!ch->began && call->echo && call->want_logprobs) {
        const struct sl_token *t = sl_request_prompt_logprobs(prompt->req);
        if (t != NULL)
            add_columns(call, ch, t, prompt->n_ids);
    }
    if (call->want_logprobs)
        add_columns(call, ch, chunk->tokens, chunk->n_tokens);
    for (size_t i = 0; call->return_token_ids && i < chunk->n_tokens; i++) {
        if (ch->token_ids.n_bytes > 0)
            sl_buf_putc(&ch->token_ids, ',');
        sl_put_i64(&ch->token_ids, chunk->tokens[i].id);
    }
}

static void put_ids(struct sl_buf *b, const struct sl_call *call, const struct sl_prompt *prompt,
                    const struct sl_choice *ch, bool with_prompt)
{
    if (!call->return_token_ids)
        return;
    SL_PUT(b, ",\"token_ids\":[");
    completions_put_part(b, &ch->token_ids);
    sl_buf_putc(b, ']');
    if (with_prompt && prompt->ids != NULL) {
        SL_PUT(b, ",\"prompt_token_ids\":");
        sl_call_put_ids(b, prompt->ids, prompt->n_ids);
    }
}

/* ---- streams */

static void completions_put_events(struct sl_buf *b, struct sl_call *call, struct sl_prompt *prompt,
                                   struct sl_choice *ch, const struct sl_chunk *chunk)
{
    bool first = !ch->began;
    bool tokens_matter = chunk->n_tokens > 0 && (call->want_logprobs || call->return_token_ids);
    bool echo_now = first && call->echo;
    if (chunk->n_text == 0 && chunk->finish == SL_RUNNING && !tokens_matter && !echo_now)
        return;
    clear_columns(ch);
    completions_gather(call, prompt, ch, chunk);
    ch->began = true;
    sl_openai_event_begin(b, call);
    SL_PUT(b, "{\"index\":");
    sl_put_i64(b, ch->idx);
    SL_PUT(b, ",\"text\":\"");
    if (echo_now)
        sl_buf_json_escape(b, prompt->text, prompt->n_text);
    sl_buf_json_escape(b, chunk->text, chunk->n_text);
    SL_PUT(b, "\",\"logprobs\":");
    if (call->want_logprobs && ch->tokens.n_bytes > 0)
        put_columns(b, ch);
    else
        SL_PUT(b, "null");
    sl_buf_putc(b, ',');
    sl_openai_put_finish(b, chunk->finish, false, chunk->stop_token_id, chunk->stop_str,
                         chunk->stop_str != NULL ? strlen(chunk->stop_str) : 0);
    put_ids(b, call, prompt, ch, first);
    sl_buf_putc(b, '}');
    sl_openai_event_end(b, call, prompt, chunk->finish);
}

/* ---- whole replies */

static void completions_collect(struct sl_call *call, struct sl_prompt *prompt,
                                struct sl_choice *ch, const struct sl_chunk *chunk)
{
    completions_gather(call, prompt, ch, chunk);
    ch->began = true;
    sl_buf_put(&ch->text, chunk->text, chunk->n_text);
}

static void completions_put_choice(struct sl_buf *b, struct sl_call *call, struct sl_prompt *prompt,
                                   struct sl_choice *ch)
{
    SL_PUT(b, "{\"index\":");
    sl_put_i64(b, ch->idx);
    SL_PUT(b, ",\"text\":\"");
    if (call->echo)
        sl_buf_json_escape(b, prompt->text, prompt->n_text);
    sl_buf_json_escape(b, ch->text.data, ch->text.n_bytes);
    b->failed |= !sl_buf_ok(&ch->text);
    SL_PUT(b, "\",\"logprobs\":");
    if (call->want_logprobs)
        put_columns(b, ch);
    else
        SL_PUT(b, "null");
    sl_buf_putc(b, ',');
    sl_openai_put_finish(b, ch->finish, false, ch->stop_token_id, ch->stop_str.data,
                         ch->stop_str.n_bytes);
    const struct sl_token *t = sl_request_prompt_logprobs(prompt->req);
    if (t != NULL) {
        struct sl_usage u;
        sl_request_usage(prompt->req, &u);
        SL_PUT(b, ",\"prompt_logprobs\":");
        sl_put_prompt_logprobs(b, completions_style_of(call), t, (size_t)u.n_prompt);
    }
    put_ids(b, call, prompt, ch, true);
    sl_buf_putc(b, '}');
}

static const struct sl_call_api completions_api = {
    .id_prefix = "cmpl-",
    SL_OPENAI_OUT,
    .object = "text_completion",
    .event_object = "text_completion",
    .put_events = completions_put_events,
    .collect = completions_collect,
    .put_choice = completions_put_choice,
};

/* ---- the request */

static int copy_ids(const json_t *v, int32_t n_vocab, struct sl_prompt *prompt,
                    struct sl_refusal *r)
{
    size_t n = json_array_size(v);
    prompt->ids = sl_malloc((n + 1) * sizeof *prompt->ids);
    if (prompt->ids == NULL)
        return sl_refuse(r, SL_ENOMEM, "prompt", "out of memory");
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        int rc = sl_json_int(json_array_get(v, i), "prompt", 0, n_vocab - 1, &id, r);
        if (rc != 0)
            return rc;
        prompt->ids[i] = (int32_t)id;
    }
    prompt->n_ids = n;
    return 0;
}

/* One prompt: a string or an array of ids. With echo the text is kept. */
static int completions_read_prompt(const struct sl_engine *eng, const json_t *v,
                                   const struct sl_params *p, struct sl_prompt *out,
                                   struct sl_refusal *r)
{
    if (json_is_array(v)) {
        int rc = copy_ids(v, sl_engine_info(eng)->n_vocab, out, r);
        sl_prompt_truncate(eng, p, out);
        if (rc != 0 || !p->echo)
            return rc;
        return sl_tokenizer_decode(sl_engine_tokenizer(eng), out->ids, out->n_ids,
                                   p->skip_special_tokens, &out->text, &out->n_text, &r->err);
    }
    if (!json_is_string(v))
        return sl_refuse(r, SL_EINVAL, "prompt",
                         "prompt must be a string, an array of strings, or token ids, not %s",
                         sl_json_type_name(v));
    const char *text = json_string_value(v);
    size_t n = json_string_length(v);
    if (p->echo) {
        out->text = sl_malloc(n + 1);
        if (out->text == NULL)
            return sl_refuse(r, SL_ENOMEM, "prompt", "out of memory");
        memcpy(out->text, text, n + 1);
        out->n_text = n;
    }
    int rc = sl_prompt_encode(eng, text, n, p->add_special_tokens, out, r);
    sl_prompt_truncate(eng, p, out);
    return rc;
}

static int read_prompts(const struct sl_engine *eng, const struct sl_params *p,
                        struct sl_prompt **out, int32_t *n_out, struct sl_refusal *r)
{
    const json_t *v = p->prompt;
    if (v == NULL)
        return sl_refuse(r, SL_EINVAL, "prompt", "prompt is missing");
    if (json_is_array(v) && json_array_size(v) == 0)
        return sl_refuse(r, SL_EINVAL, "prompt", "prompt must not be empty");
    bool several = json_is_array(v) && !json_is_number(json_array_get(v, 0));
    size_t n = several ? json_array_size(v) : 1;
    if (n > SL_MAX_PROMPTS)
        return sl_refuse(r, SL_ELIMIT, "prompt", "prompt has more than %d entries", SL_MAX_PROMPTS);
    struct sl_prompt *prompts = sl_calloc(n, sizeof *prompts);
    if (prompts == NULL)
        return sl_refuse(r, SL_ENOMEM, "prompt", "out of memory");
    for (size_t i = 0; i < n; i++) {
        int rc =
            completions_read_prompt(eng, several ? json_array_get(v, i) : v, p, &prompts[i], r);
        if (rc != 0) {
            sl_call_free_prompts(prompts, (int32_t)n);
            return rc;
        }
    }
    *out = prompts;
    *n_out = (int32_t)n;
    return 0;
}

void sl_completions_prepare(struct sl_task *t)
{
    t->rc = sl_task_read(t, SL_ENDPOINT_COMPLETIONS);
    if (t->rc == 0)
        t->rc = sl_task_model(t);
    if (t->rc == 0 && !t->later)
        t->rc = sl_task_compile(t);
    if (t->rc == 0 && !t->later)
        t->rc = read_prompts(t->served->eng, &t->params, &t->prompts, &t->n_prompts, &t->refusal);
}

static void completions_finish(struct sl_conn *c, struct sl_task *t)
{
    sl_task_call(c, t, &completions_api);
}

void sl_api_completions(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {sl_completions_prepare, completions_finish};
    sl_task_start(c, &kind);
}
