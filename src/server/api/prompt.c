/* SPDX-License-Identifier: MIT */
#include "server/api/prompt.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "server/api/free_form.h"
#include "text/jinja/template.h"
#include "text/tokenizer/tokenizer.h"

#include <stdio.h>
#include <string.h>

/* ---- messages */

static int flatten_content(json_t *message, const json_t *parts, const char *name,
                           struct sl_refusal *r)
{
    struct sl_buf text = {0};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *value = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!json_is_object(part) || type == NULL)
            rc = sl_refuse(r, SL_EINVAL, name, "%s[%zu] must be an object with a type", name, i);
        else if (strcmp(type, "text") != 0)
            rc = sl_refuse(r, SL_EUNSUPPORTED, name, "%s[%zu]: not supported: parts of type %s",
                           name, i, type);
        else if (!json_is_string(value))
            rc = sl_refuse(r, SL_EINVAL, name, "%s[%zu].text must be a string", name, i);
        if (rc != 0)
            break;
        if (i > 0)
            sl_buf_putc(&text, '\n');
        sl_buf_put(&text, json_string_value(value), json_string_length(value));
    }
    if (rc == 0 && (!sl_buf_ok(&text) ||
                    json_object_set_new(message, "content",
                                        json_stringn_nocheck(text.n_bytes > 0 ? text.data : "",
                                                             text.n_bytes)) != 0))
        rc = sl_refuse(r, SL_ENOMEM, name, "out of memory");
    sl_buf_deinit(&text);
    return rc;
}

/* A body's own values are few or refused; text in it that is opened as JSON must not get round
 * that. Counted as in json_in.c, but inside strings too, which only makes it more. */
static size_t opened_cost(const char *text, size_t n)
{
    size_t cost = 1;
    for (size_t i = 0; i < n; i++)
        cost += text[i] == '{' || text[i] == '[' ? 8 : text[i] == '"' || text[i] == ',';
    return cost;
}

/* The function that is called; a call of a tool that takes text becomes one of a function. */
static int function_of(json_t *call, const char *field, size_t i, json_t **out,
                       struct sl_refusal *r)
{
    const json_t *custom = json_object_get(call, "custom");
    const json_t *input = json_object_get(custom, "input"), *name = json_object_get(custom, "name");
    *out = json_object_get(call, "function");
    if (*out != NULL || custom == NULL)
        return 0;
    if (!json_is_string(name) || !json_is_string(input))
        return sl_refuse(r, SL_EINVAL, field, "%s[%zu].custom must have name and input, strings",
                         field, i);
    *out = json_pack("{s:O, s:o}", "name", name, "arguments", sl_free_form_arguments(input));
    (void)json_object_del(call, "custom");
    if (*out == NULL || json_object_set_new(call, "function", *out) != 0 ||
        json_object_set_new(call, "type", json_string("function")) != 0)
        return sl_refuse(r, SL_ENOMEM, field, "out of memory");
    return 0;
}

/* Templates walk the arguments of earlier tool calls; clients send them as JSON text. left: of
 * SL_MAX_JSON_COST, for all messages together. */
static int open_tool_calls(json_t *message, const char *name, bool as_text, size_t *left,
                           struct sl_refusal *r)
{
    json_t *calls = json_object_get(message, "tool_calls");
    if (calls == NULL || json_is_null(calls))
        return 0;
    if (!json_is_array(calls))
        return sl_refuse(r, SL_EINVAL, name, "%s must be an array", name);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *function = NULL;
        int rc = function_of(json_array_get(calls, i), name, i, &function, r);
        if (rc != 0)
            return rc;
        const json_t *arguments = json_object_get(function, "arguments");
        if (!json_is_object(function))
            return sl_refuse(r, SL_EINVAL, name, "%s[%zu].function must be an object", name, i);
        if (!json_is_string(arguments) || as_text)
            continue;
        struct sl_refusal ignored;
        json_t *opened;
        const char *text = json_string_value(arguments);
        size_t n = json_string_length(arguments), cost = opened_cost(text, n);
        if (cost > *left)
            return sl_refuse(r, SL_ELIMIT, name, "%s: the arguments have too many JSON values",
                             name);
        *left -= cost;
        if (sl_json_parse_object(text, n, &opened, &ignored) != 0) {
            if (ignored.err.code == SL_ENOMEM)
                return sl_refuse(r, SL_ENOMEM, name, "out of memory");
            continue; /* what a model once wrote need not be JSON: the text stays */
        }
        if (json_object_set_new(function, "arguments", opened) != 0)
            return sl_refuse(r, SL_ENOMEM, name, "out of memory");
    }
    return 0;
}

/* Templates know one of two names for what an earlier answer thought. */
static int copy_reasoning(json_t *m, size_t i, struct sl_refusal *r)
{
    static const char *const names[] = {"reasoning", "reasoning_content"};
    for (int k = 0; k < 2; k++) {
        json_t *v = json_object_get(m, names[k]);
        char field[64];
        snprintf(field, sizeof field, "messages[%zu].%s", i, names[k]);
        if (v == NULL || json_is_null(v))
            continue;
        if (!json_is_string(v))
            return sl_refuse(r, SL_EINVAL, field, "%s must be a string, not %s", field,
                             sl_json_type_name(v));
        const json_t *other = json_object_get(m, names[1 - k]);
        if ((other == NULL || json_is_null(other)) && json_object_set(m, names[1 - k], v) != 0)
            return sl_refuse(r, SL_ENOMEM, field, "out of memory");
    }
    return 0;
}

static int normalise_message(json_t *m, size_t i, bool as_text, size_t *left, struct sl_refusal *r)
{
    char name[48];
    snprintf(name, sizeof name, "messages[%zu]", i);
    if (!json_is_object(m))
        return sl_refuse(r, SL_EINVAL, name, "%s must be an object, not %s", name,
                         sl_json_type_name(m));
    const char *role = json_string_value(json_object_get(m, "role"));
    snprintf(name, sizeof name, "messages[%zu].role", i);
    if (role == NULL || role[0] == '\0')
        return sl_refuse(r, SL_EINVAL, name, "%s must be a string", name);
    const json_t *content = json_object_get(m, "content");
    snprintf(name, sizeof name, "messages[%zu].content", i);
    if (content == NULL || json_is_null(content)) {
        if (strcmp(role, "assistant") != 0)
            return sl_refuse(r, SL_EINVAL, name, "%s is missing", name);
        if (json_object_set_new(m, "content", json_string("")) != 0)
            return sl_refuse(r, SL_ENOMEM, name, "out of memory");
    } else if (json_is_array(content)) {
        int rc = flatten_content(m, content, name, r);
        if (rc != 0)
            return rc;
    } else if (!json_is_string(content)) {
        return sl_refuse(r, SL_EINVAL, name, "%s must be a string or an array of parts, not %s",
                         name, sl_json_type_name(content));
    }
    int rc = copy_reasoning(m, i, r);
    if (rc != 0)
        return rc;
    snprintf(name, sizeof name, "messages[%zu].tool_calls", i);
    return open_tool_calls(m, name, as_text, left, r);
}

int sl_messages_normalise(json_t *messages, bool arguments_as_text, struct sl_refusal *r)
{
    size_t left = SL_MAX_JSON_COST;
    if (messages == NULL || json_is_null(messages))
        return sl_refuse(r, SL_EINVAL, "messages", "messages is missing");
    if (!json_is_array(messages))
        return sl_refuse(r, SL_EINVAL, "messages", "messages must be an array, not %s",
                         sl_json_type_name(messages));
    if (json_array_size(messages) == 0)
        return sl_refuse(r, SL_EINVAL, "messages", "messages must not be empty");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        int rc = normalise_message(json_array_get(messages, i), i, arguments_as_text, &left, r);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* The template of gpt-oss shows of an earlier answer with a call what it thought, from "thinking",
 * or else its content in the same place; both are refused. So both become one text. */
static int put_thinking(json_t *messages, struct sl_refusal *r)
{
    size_t i;
    json_t *m;
    json_array_foreach(messages, i, m)
    {
        const json_t *reasoning = json_object_get(m, "reasoning");
        const char *content = json_string_value(json_object_get(m, "content"));
        if (json_array_size(json_object_get(m, "tool_calls")) == 0 ||
            json_string_length(reasoning) == 0 || json_object_get(m, "thinking") != NULL)
            continue;
        const bool both = content != NULL && content[0] != '\0';
        json_t *text = json_sprintf("%s%s%s", json_string_value(reasoning), both ? "\n\n" : "",
                                    both ? content : "");
        if (text == NULL || json_object_set_new(m, "thinking", text) != 0 ||
            json_object_set_new(m, "content", json_string("")) != 0)
            return sl_refuse(r, SL_ENOMEM, "messages", "out of memory");
    }
    return 0;
}

/* ---- rendering */

/* A reference of its own for a tree that another value holds as well. */
static json_t *prompt_shared(const json_t *v)
{
    return json_incref((json_t *)(uintptr_t)v);
}

static json_t *make_context(json_t *messages, const struct sl_params *p)
{
    const char *key;
    json_t *value, *ctx = json_object();
    bool ok = ctx != NULL && json_object_set(ctx, "messages", messages) == 0;
    if (ok && p->tool_mode != SL_TOOLS_NONE)
        ok = json_object_set_new(ctx, "tools", prompt_shared(p->tools)) == 0;
    if (ok && p->documents != NULL)
        ok = json_object_set_new(ctx, "documents", prompt_shared(p->documents)) == 0;
    if (ok && p->reasoning_effort != NULL)
        ok = json_object_set_new(ctx, "reasoning_effort", json_string(p->reasoning_effort)) == 0;
    ok = ok && json_object_set_new(ctx, "add_generation_prompt",
                                   json_boolean(p->add_generation_prompt)) == 0;
    if (ok && p->chat_template_kwargs != NULL) {
        json_object_foreach((json_t *)(uintptr_t)p->chat_template_kwargs, key, value)
        {
            if (strcmp(key, "messages") != 0)
                ok = ok && json_object_set(ctx, key, value) == 0;
        }
    }
    if (ok)
        return ctx;
    json_decref(ctx);
    return NULL;
}

static int prompt_append_json(const char *data, size_t n, void *arg)
{
    sl_buf_put(arg, data, n);
    return sl_buf_ok(arg) ? 0 : -1;
}

static int render_own(const struct sl_engine *eng, json_t *ctx, struct sl_buf *out,
                      struct sl_refusal *r)
{
    struct sl_buf text = {0};
    char *rendered = NULL;
    size_t n = 0;
    int rc = 0;
    if (json_dump_callback(ctx, prompt_append_json, &text, JSON_COMPACT) != 0 || !sl_buf_ok(&text))
        rc = sl_refuse(r, SL_ENOMEM, NULL, "out of memory");
    else
        rc = sl_engine_render_chat(eng, text.data, text.n_bytes, &rendered, &n, &r->err);
    if (rc == 0)
        *out = (struct sl_buf){.data = rendered, .n_bytes = n, .cap_bytes = n + 1};
    sl_buf_deinit(&text);
    return rc;
}

static int set_token(const struct sl_tokenizer *tok, json_t *ctx, const char *name, int32_t id)
{
    size_t n;
    const char *piece = id >= 0 ? sl_tokenizer_piece(tok, id, &n) : NULL;
    return piece == NULL ? 0 : json_object_set_new(ctx, name, json_stringn(piece, n));
}

static int render_given(const struct sl_engine *eng, json_t *ctx, const char *source,
                        struct sl_buf *out, struct sl_refusal *r)
{
    const struct sl_tokenizer *tok = sl_engine_tokenizer(eng);
    struct sl_template *t;
    if (set_token(tok, ctx, "bos_token", sl_tokenizer_bos(tok)) != 0 ||
        set_token(tok, ctx, "eos_token", sl_tokenizer_eos(tok)) != 0)
        return sl_refuse(r, SL_ENOMEM, NULL, "out of memory");
    sl_refusal_param(r, "chat_template");
    int rc = sl_template_compile(source, strlen(source), &t, &r->err);
    if (rc != 0)
        return rc;
    rc = sl_template_render(t, ctx, sl_wall_ns() / 1000000000, NULL, out, &r->err);
    sl_template_destroy(t);
    return rc;
}

/* Where a conversation goes on inside its last message, what the template puts behind that goes.
 * Its text alone does not tell where it ends: a "<" or an "end" stands in <|im_end|> too. */
#define FINAL_MARK "sluice-goes-on-here"

/* The messages, of which the last one ends with the mark and not with white space. */
static int mark_final(const json_t *messages, json_t **out, struct sl_refusal *r)
{
    static const char blank[] = " \t\r\n";
    size_t i = json_array_size(messages) - 1;
    json_t *all = json_copy((json_t *)(uintptr_t)messages);
    json_t *last = json_copy(json_array_get(messages, i));
    const char *content = json_string_value(json_object_get(last, "content"));
    size_t n = json_string_length(json_object_get(last, "content"));
    struct sl_buf text = {0};
    while (n > 0 && memchr(blank, content[n - 1], sizeof blank - 1) != NULL)
        n--;
    sl_buf_put(&text, content, n);
    sl_buf_put(&text, FINAL_MARK, sizeof FINAL_MARK - 1);
    bool ok =
        sl_buf_ok(&text) && all != NULL && last != NULL &&
        json_object_set_new(last, "content", json_stringn_nocheck(text.data, text.n_bytes)) == 0 &&
        json_array_set(all, i, last) == 0;
    sl_buf_deinit(&text);
    json_decref(last);
    *out = all;
    if (ok && n > 0)
        return 0;
    json_decref(all);
    return !ok ? sl_refuse(r, SL_ENOMEM, "messages", "out of memory")
               : sl_refuse(r, SL_EINVAL, "continue_final_message",
                           "continue_final_message: the final message is empty");
}

static int cut_at_mark(struct sl_buf *text, struct sl_refusal *r)
{
    const size_t n = sizeof FINAL_MARK - 1;
    for (size_t end = text->n_bytes; end >= n; end--) {
        if (memcmp(text->data + end - n, FINAL_MARK, n) == 0) {
            text->n_bytes = end - n;
            return 0;
        }
    }
    return sl_refuse(r, SL_EINVAL, "continue_final_message",
                     "continue_final_message: the template does not show the final message");
}

int sl_prompt_render(const struct sl_engine *eng, const struct sl_params *p, char **text,
                     size_t *n_text, struct sl_refusal *r)
{
    json_t *messages = (json_t *)(uintptr_t)p->messages; /* changed in place, once */
    struct sl_buf out = {.max_bytes = SL_TEMPLATE_OUTPUT};
    bool as_text = p->chat_template == NULL && p->formats != NULL && p->formats->arguments_as_text;
    int rc = sl_messages_normalise(messages, as_text, r);
    if (rc == 0 && p->formats != NULL && p->formats->reasoning != NULL &&
        sl_output_has_channels(p->formats->reasoning))
        rc = put_thinking(messages, r);
    if (rc != 0)
        return rc;
    if (p->chat_template == NULL && !sl_engine_has_chat_template(eng))
        return sl_refuse(r, SL_EUNSUPPORTED, "messages",
                         "this model has no chat template; start the server with --chat-template");
    json_t *marked = NULL;
    rc = p->continue_final_message ? mark_final(messages, &marked, r) : 0;
    if (rc != 0)
        return rc;
    json_t *ctx = make_context(marked != NULL ? marked : messages, p);
    json_decref(marked);
    if (ctx == NULL)
        return sl_refuse(r, SL_ENOMEM, NULL, "out of memory");
    rc = p->chat_template != NULL ? render_given(eng, ctx, p->chat_template, &out, r)
                                  : render_own(eng, ctx, &out, r);
    if (rc == 0 && p->continue_final_message)
        rc = cut_at_mark(&out, r);
    json_decref(ctx);
    if (rc == 0) {
        *text = sl_buf_steal(&out, n_text);
        if (*text == NULL)
            rc = sl_refuse(r, SL_ENOMEM, NULL, "out of memory");
    }
    sl_buf_deinit(&out);
    return rc;
}

/* ---- tokens */

void sl_prompt_truncate(const struct sl_engine *eng, const struct sl_params *p,
                        struct sl_prompt *prompt)
{
    int32_t most = sl_engine_info(eng)->max_model_len - 1; /* room for one token of output */
    int32_t truncate = p->truncate_prompt_tokens;
    size_t keep = (size_t)(truncate < 0 || truncate > most ? most : truncate);
    if (truncate == 0 || prompt->n_ids <= keep)
        return;
    if (!p->keep_first)
        memmove(prompt->ids, prompt->ids + prompt->n_ids - keep, keep * sizeof *prompt->ids);
    prompt->n_ids = keep;
}

int sl_prompt_encode(const struct sl_engine *eng, const char *text, size_t n_text, bool add_special,
                     struct sl_prompt *prompt, struct sl_refusal *r)
{
    unsigned flags = SL_ENCODE_PARSE_SPECIAL | (add_special ? SL_ENCODE_ADD_SPECIAL : 0u);
    int rc = sl_tokenizer_encode(sl_engine_tokenizer(eng), text, n_text, flags, &prompt->ids,
                                 &prompt->n_ids, &r->err);
    if (rc != 0)
        return rc;
    if (prompt->n_ids > INT32_MAX)
        return sl_refuse(r, SL_ELIMIT, NULL, "the prompt has too many tokens");
    return 0;
}
