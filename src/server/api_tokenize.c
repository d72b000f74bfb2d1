/* SPDX-License-Identifier: MIT
 * api_tokenize.c - POST /tokenize and /detokenize, in vLLM's shapes.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "server/prompt.h"
#include "server/reply.h"
#include "server/route.h"
#include "server/sse.h"
#include "text/tokenizer.h"

static int optional_bool(const json_t *root, const char *name, bool *out, struct sl_refusal *r)
{
    const json_t *v = json_object_get(root, name);
    return v == NULL || json_is_null(v) ? 0 : sl_json_bool(v, name, out, r);
}

static int check_model(const struct sl_conn *c, const json_t *root, struct sl_refusal *r)
{
    const json_t *v = json_object_get(root, "model");
    const char *given = NULL, *name;
    int rc = v == NULL || json_is_null(v) ? 0 : sl_json_cstr(v, "model", 4096, &given, r);
    return rc != 0 ? rc : sl_call_check_model(c, given, &name, r);
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
static int render(struct sl_conn *c, json_t *root, struct sl_params *p, char **text, size_t *n_text,
                  struct sl_refusal *r)
{
    const struct sl_server *s = c->loop->server;
    struct sl_param_limits limits = {sl_engine_info(s->eng)->n_vocab,
                                     s->cfg->trust_request_chat_template};
    int rc = sl_params_parse(p, SL_ENDPOINT_CHAT, root, &s->defaults, &limits, r);
    return rc != 0 ? rc : sl_prompt_render(s->eng, root, p, text, n_text, r);
}

static int tokenize(struct sl_conn *c, json_t *root, struct sl_buf *b, struct sl_refusal *r)
{
    const struct sl_engine *eng = c->loop->server->eng;
    const json_t *given = json_object_get(root, "prompt");
    struct sl_params p = {0};
    struct sl_prompt prompt = {0};
    char *text = NULL;
    size_t n_text = 0;
    bool chat = json_object_get(root, "messages") != NULL, with_strings = false;
    bool add_special = !chat;
    int rc = check_model(c, root, r);
    if (rc == 0)
        rc = optional_bool(root, "add_special_tokens", &add_special, r);
    if (rc == 0)
        rc = optional_bool(root, "return_token_strs", &with_strings, r);
    if (rc == 0 && chat)
        rc = render(c, root, &p, &text, &n_text, r);
    else if (rc == 0 && !json_is_string(given))
        rc = sl_refuse(r, SL_EINVAL, "prompt", "prompt must be a string (or give messages)");
    if (rc == 0)
        rc =
            sl_prompt_encode(eng, chat ? text : json_string_value(given),
                             chat ? n_text : json_string_length(given), add_special, 0, &prompt, r);
    if (rc == 0)
        put_tokenized(b, eng, &prompt, with_strings);
    sl_params_deinit(&p);
    sl_free(prompt.ids);
    sl_free(text);
    return rc;
}

static int detokenize(struct sl_conn *c, json_t *root, struct sl_buf *b, struct sl_refusal *r)
{
    const struct sl_engine *eng = c->loop->server->eng;
    const json_t *v = json_object_get(root, "tokens");
    char *text = NULL;
    size_t n_text = 0;
    int rc = check_model(c, root, r);
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
    SL_PUT(b, "{\"prompt\":");
    sl_buf_json_string(b, text, n_text);
    sl_buf_putc(b, '}');
    sl_free(text);
    return 0;
}

static void answer(struct sl_conn *c,
                   int (*fn)(struct sl_conn *, json_t *, struct sl_buf *, struct sl_refusal *))
{
    struct sl_refusal r = {0};
    struct sl_buf b = {.max_bytes = SL_MAX_REPLY_BYTES};
    json_t *root;
    int rc = sl_json_parse_object(c->parser->body.data, c->parser->body.n_bytes, &root, &r);
    if (rc == 0)
        rc = fn(c, root, &b, &r);
    json_decref(root);
    if (rc == 0) {
        sl_reply_json(c, 200, &b);
        return;
    }
    sl_buf_deinit(&b);
    sl_reply_refusal(c, &r);
}

void sl_api_tokenize(struct sl_conn *c)
{
    answer(c, tokenize);
}

void sl_api_detokenize(struct sl_conn *c)
{
    answer(c, detokenize);
}
