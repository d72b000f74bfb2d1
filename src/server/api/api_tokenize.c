/* SPDX-License-Identifier: MIT
 * api_tokenize.c - POST /tokenize and /detokenize, in vLLM's shapes.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "server/api/prompt.h"
#include "server/api/task.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "server/http/sse.h"
#include "text/tokenizer/tokenizer.h"

static int optional_bool(const json_t *root, const char *name, bool *out, struct sl_refusal *r)
{
    const json_t *v = json_object_get(root, name);
    return v == NULL || json_is_null(v) ? 0 : sl_json_bool(v, name, out, r);
}

static int check_model(struct sl_task *t)
{
    const json_t *v = json_object_get(t->root, "model");
    const char *given = NULL;
    int rc = v == NULL || json_is_null(v) ? 0 : sl_json_cstr(v, "model", 4096, &given, &t->refusal);
    if (rc == 0)
        rc = sl_served_check(t->server, t->served, given, &t->model, &t->refusal);
    if (rc == SL_ENOTFOUND && given != NULL && sl_adapter_known(t->served->eng, given)) {
        t->refusal = (struct sl_refusal){0}; /* adapters share the tokenizer */
        rc = 0;
    }
    return rc;
}

static void put_tokenized(struct sl_buf *b, const struct sl_engine *eng,
                          const struct sl_prompt *prompt, bool with_strings)
{
    SL_PUT(b, "{\"count\":");
    sl_put_u64(b, prompt->n_ids);
    SL_PUT(b, ",\"max_model_len\":");
    sl_put_i64(b, sl_engine_info(eng)->max_model_len);
    SL_PUT(b, ",\"tokens\":");
    sl_call_put_ids(b, prompt->ids, prompt->n_ids);
    SL_PUT(b, ",\"token_strs\":");
    if (!with_strings) {
        SL_PUT(b, "null}");
        return;
    }
    sl_buf_putc(b, '[');
    for (size_t i = 0; i < prompt->n_ids; i++) {
        size_t n = 0;
        const char *piece = sl_tokenizer_piece(sl_engine_tokenizer(eng), prompt->ids[i], &n);
        if (i > 0)
            sl_buf_putc(b, ',');
        sl_buf_json_string(b, piece != NULL ? piece : "", piece != NULL ? n : 0);
    }
    SL_PUT(b, "]}");
}

/* A conversation takes the fields of a chat request that shape its prompt. */
static int render(struct sl_task *t, char **text, size_t *n_text)
{
    int rc = sl_task_params(t, SL_ENDPOINT_CHAT);
    t->params.formats = &t->served->formats; /* they say how earlier calls are shown */
    return rc != 0 ? rc : sl_prompt_render(t->served->eng, &t->params, text, n_text, &t->refusal);
}

static int tokenize(struct sl_task *t)
{
    const struct sl_engine *eng = t->served->eng;
    const json_t *given = json_object_get(t->root, "prompt");
    struct sl_refusal *r = &t->refusal;
    struct sl_prompt prompt = {0};
    char *text = NULL;
    size_t n_text = 0;
    bool chat = json_object_get(t->root, "messages") != NULL, with_strings = false;
    bool add_special = !chat;
    int rc = check_model(t);
    if (rc == 0)
        rc = optional_bool(t->root, "add_special_tokens", &add_special, r);
    if (rc == 0)
        rc = optional_bool(t->root, "return_token_strs", &with_strings, r);
    if (rc == 0 && chat)
        rc = render(t, &text, &n_text);
    else if (rc == 0 && !json_is_string(given))
        rc = sl_refuse(r, SL_EINVAL, "prompt", "prompt must be a string (or give messages)");
    if (rc == 0)
        rc = sl_prompt_encode(eng, chat ? text : json_string_value(given),
                              chat ? n_text : json_string_length(given), add_special, &prompt, r);
    if (rc == 0)
        put_tokenized(&t->out, eng, &prompt, with_strings);
    sl_free(prompt.ids);
    sl_free(text);
    return rc;
}

static int detokenize(struct sl_task *t)
{
    const struct sl_engine *eng = t->served->eng;
    const json_t *v = json_object_get(t->root, "tokens");
    struct sl_refusal *r = &t->refusal;
    char *text = NULL;
    size_t n_text = 0;
    int rc = check_model(t);
    if (rc != 0)
        return rc;
    if (!json_is_array(v))
        return sl_refuse(r, SL_EINVAL, "tokens", "tokens must be an array of integers");
    size_t n = json_array_size(v);
    int32_t *ids = sl_malloc((n + 1) * sizeof *ids);
    if (ids == NULL)
        return sl_refuse(r, SL_ENOMEM, "tokens", "out of memory");
    for (size_t i = 0; rc == 0 && i < n; i++) {
        int64_t id = 0;
        rc = sl_json_int(json_array_get(v, i), "tokens", 0, sl_engine_info(eng)->n_vocab - 1, &id,
                         r);
        ids[i] = (int32_t)id;
    }
    if (rc == 0)
        rc = sl_tokenizer_decode(sl_engine_tokenizer(eng), ids, n, false, &text, &n_text, &r->err);
    sl_free(ids);
    if (rc != 0)
        return rc;
    SL_PUT(&t->out, "{\"prompt\":");
    sl_buf_json_string(&t->out, text, n_text);
    sl_buf_putc(&t->out, '}');
    sl_free(text);
    return 0;
}

static void tokenize_prepare(struct sl_task *t, int (*fn)(struct sl_task *))
{
    t->out.max_bytes = SL_MAX_REPLY_BYTES;
    t->other_fields = true;
    t->rc = sl_task_parse(t);
    if (t->rc == 0)
        t->rc = fn(t);
}

static void prepare_tokenize(struct sl_task *t)
{
    tokenize_prepare(t, tokenize);
}

static void prepare_detokenize(struct sl_task *t)
{
    tokenize_prepare(t, detokenize);
}

static void tokenize_finish(struct sl_conn *c, struct sl_task *t)
{
    sl_reply_json(c, 200, &t->out);
}

void sl_api_tokenize(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_tokenize, tokenize_finish};
    sl_task_start(c, &kind);
}

void sl_api_detokenize(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_detokenize, tokenize_finish};
    sl_task_start(c, &kind);
}
