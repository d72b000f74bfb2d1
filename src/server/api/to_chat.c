/* SPDX-License-Identifier: MIT */
#include "server/api/to_chat.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

/* The library counts references in trees that it is only shown. */
static json_t *to_chat_shared(const json_t *v)
{
    return (json_t *)(uintptr_t)v;
}

int sl_chat_no_memory(struct sl_refusal *r, const char *field)
{
    return sl_refuse(r, SL_ENOMEM, field, "out of memory");
}

int sl_chat_text(const json_t *v, const char *at, const char *name, const json_t **out,
                 struct sl_refusal *r)
{
    char field[SL_PLACE_BYTES + 32];
    const json_t *text = json_object_get(v, name);
    snprintf(field, sizeof field, "%s.%s", at, name);
    *out = text;
    if (!json_is_string(text))
        return sl_refuse(r, SL_EINVAL, field, "%s must be a string%s%s", field,
                         text != NULL ? ", not " : "", text != NULL ? sl_json_type_name(text) : "");
    return 0;
}

int sl_chat_append_part(json_t *parts, const json_t *text, const char *at, struct sl_refusal *r)
{
    json_t *part = json_pack("{s:s, s:O}", "type", "text", "text", to_chat_shared(text));
    return part != NULL && json_array_append_new(parts, part) == 0 ? 0 : sl_chat_no_memory(r, at);
}

int sl_chat_append_message(json_t *messages, const char *role, const json_t *content,
                           const char *at, struct sl_refusal *r)
{
    json_t *m = json_pack("{s:s, s:O}", "role", role, "content", to_chat_shared(content));
    return m != NULL && json_array_append_new(messages, m) == 0 ? 0 : sl_chat_no_memory(r, at);
}

int sl_chat_append_result(json_t *messages, const json_t *id, json_t *content, const char *at,
                          struct sl_refusal *r)
{
    json_t *m = json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", to_chat_shared(id),
                          "content", content);
    return m != NULL && json_array_append_new(messages, m) == 0 ? 0 : sl_chat_no_memory(r, at);
}

int sl_chat_append_call(json_t **calls, const json_t *id, const json_t *name, json_t *arguments,
                        const char *at, struct sl_refusal *r)
{
    if (*calls == NULL)
        *calls = json_array();
    json_t *call =
        json_pack("{s:O, s:s, s:{s:O, s:o}}", "id", to_chat_shared(id), "type", "function",
                  "function", "name", to_chat_shared(name), "arguments", arguments);
    return call != NULL && *calls != NULL && json_array_append_new(*calls, call) == 0
               ? 0
               : sl_chat_no_memory(r, at);
}

int sl_chat_append_tool(json_t *tools, const json_t *tool, const char *const names[][2],
                        size_t n_names, const char *at, struct sl_refusal *r)
{
    json_t *function = json_object();
    bool ok = function != NULL;
    for (size_t k = 0; k < n_names; k++) {
        json_t *v = json_object_get(tool, names[k][0]);
        if (ok && v != NULL && !json_is_null(v))
            ok = json_object_set(function, names[k][1], v) == 0;
    }
    json_t *wrapped = json_pack("{s:s, s:o}", "type", "function", "function", function);
    return ok && wrapped != NULL && json_array_append_new(tools, wrapped) == 0
               ? 0
               : sl_chat_no_memory(r, at);
}

int sl_chat_set_thinking(json_t *root, bool think, struct sl_refusal *r)
{
    static const char *const names[] = {"enable_thinking", "thinking"};
    static const char field[] = "chat_template_kwargs";
    json_t *kwargs = json_object_get(root, field);
    if (kwargs == NULL || json_is_null(kwargs)) {
        kwargs = json_object();
        if (kwargs == NULL || json_object_set_new(root, field, kwargs) != 0)
            return sl_chat_no_memory(r, field);
    }
    for (size_t i = 0; json_is_object(kwargs) && i < SL_COUNT(names); i++) {
        if (json_object_get(kwargs, names[i]) == NULL &&
            json_object_set_new(kwargs, names[i], json_boolean(think)) != 0)
            return sl_chat_no_memory(r, field);
    }
    return 0;
}
