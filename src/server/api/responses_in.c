/* SPDX-License-Identifier: MIT
 *
 * Items are smaller than messages: what was thought, said and called in one answer are items of
 * their own there and one message here.
 */
#include "server/api/responses_in.h"

#include "base/check.h"
#include "server/api/free_form.h"
#include "server/api/to_chat.h"
#include "server/http/json_tree.h"

#include <stdio.h>
#include <string.h>

struct reader {
    json_t *out;           /* the messages */
    struct sl_buf thought; /* of the answer that comes next */
    char at[SL_PLACE_BYTES];
    struct sl_responses_in *in;
    struct sl_refusal *r;
};

/* Summaries of this server say so, so that those of others are not taken for text. */
static const char summary_mark[] = "sluice-summary-1:";

/* Text alone: a string, or parts that are text. */
static int read_content(const json_t *v, const char *at, json_t **out, struct sl_refusal *r)
{
    static const char *const types[] = {"input_text", "output_text",    "text",
                                        "refusal",    "reasoning_text", "summary_text"};
    const json_t *part, *text;
    char field[SL_PLACE_BYTES + 32];
    size_t i;
    *out = NULL;
    if (json_is_string(v)) {
        *out = json_incref((json_t *)(uintptr_t)v);
        return 0;
    }
    if (!json_is_array(v))
        return sl_refuse(r, SL_EINVAL, at, "%s must be a string or an array of parts%s%s", at,
                         v != NULL ? ", not " : "", v != NULL ? sl_json_type_name(v) : "");
    *out = json_array();
    int rc = *out != NULL ? 0 : sl_chat_no_memory(r, at);
    json_array_foreach(v, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        bool known = false;
        snprintf(field, sizeof field, "%s[%zu]", at, i);
        for (size_t k = 0; type != NULL && k < SL_COUNT(types); k++)
            known |= strcmp(type, types[k]) == 0;
        if (rc == 0 && type == NULL)
            rc = sl_refuse(r, SL_EINVAL, field, "%s must be an object with a type", field);
        else if (rc == 0 && !known)
            rc = sl_refuse(r, SL_EUNSUPPORTED, field, "%s: not supported: parts of type %.64s",
                           field, type);
        if (rc == 0)
            rc = sl_chat_text(part, field, strcmp(type, "refusal") == 0 ? "refusal" : "text", &text,
                              r);
        if (rc == 0)
            rc = sl_chat_append_part(*out, text, field, r);
    }
    if (rc != 0) {
        json_decref(*out);
        *out = NULL;
    }
    return rc;
}

static bool has_role(const json_t *m, const char *role)
{
    const char *s = json_string_value(json_object_get(m, "role"));
    return s != NULL && strcmp(s, role) == 0;
}

/* The answer that is being put together: the last message if it is one, else a new one. */
static json_t *answer_of(struct reader *rd)
{
    json_t *last = json_array_get(rd->out, json_array_size(rd->out) - 1);
    if (json_is_object(last) && has_role(last, "assistant") && rd->thought.n_bytes == 0)
        return last;
    json_t *m = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
    if (m == NULL || json_array_append_new(rd->out, m) != 0)
        return NULL;
    if (rd->thought.n_bytes > 0 &&
        json_object_set_new(m, "reasoning",
                            json_stringn_nocheck(rd->thought.data, rd->thought.n_bytes)) != 0)
        return NULL;
    sl_buf_clear(&rd->thought);
    return m;
}

/* ---- items */

/* Templates know one message of system, in front. */
static int add_system(struct reader *rd, const json_t *content)
{
    json_t *last = json_array_get(rd->out, json_array_size(rd->out) - 1);
    if (json_is_object(last) && has_role(last, "system")) {
        json_t *joined = sl_json_join_texts(json_object_get(last, "content"), content);
        return joined != NULL && json_object_set_new(last, "content", joined) == 0
                   ? 0
                   : sl_chat_no_memory(rd->r, rd->at);
    }
    return sl_chat_append_message(rd->out, "system", content, rd->at, rd->r);
}

static int message_item(struct reader *rd, const json_t *item)
{
    char field[SL_PLACE_BYTES + 16];
    const char *role = json_string_value(json_object_get(item, "role"));
    json_t *content;
    bool system = role != NULL && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
    bool answer = role != NULL && strcmp(role, "assistant") == 0;
    snprintf(field, sizeof field, "%s.role", rd->at);
    if (!system && !answer && (role == NULL || strcmp(role, "user") != 0))
        return sl_refuse(rd->r, SL_EINVAL, field, "%s must be user, assistant, system or developer",
                         field);
    snprintf(field, sizeof field, "%s.content", rd->at);
    int rc = read_content(json_object_get(item, "content"), field, &content, rd->r);
    if (rc != 0)
        return rc;
    if (system) {
        rc = add_system(rd, content);
    } else if (answer) {
        const json_t *last = json_array_get(rd->out, json_array_size(rd->out) - 1);
        bool two = json_is_object(last) && has_role(last, "assistant") && rd->thought.n_bytes == 0;
        json_t *m = NULL;
        if (two) /* two answers behind each other are two */
            rc = sl_chat_append_message(rd->out, "assistant", content, rd->at, rd->r);
        else if ((m = answer_of(rd)) == NULL || json_object_set(m, "content", content) != 0)
            rc = sl_chat_no_memory(rd->r, rd->at);
    } else {
        rc = sl_chat_append_message(rd->out, "user", content, rd->at, rd->r);
    }
    json_decref(content);
    return rc;
}

/* Takes over arguments. */
static int append_call(struct reader *rd, const json_t *id, const json_t *name, json_t *arguments)
{
    json_t *m = answer_of(rd);
    if (m == NULL || name == NULL) {
        json_decref(arguments);
        return sl_chat_no_memory(rd->r, rd->at);
    }
    json_t *calls = json_object_get(m, "tool_calls");
    bool fresh = calls == NULL;
    int rc = sl_chat_append_call(&calls, id, name, arguments, rd->at, rd->r);
    if (fresh && calls != NULL && json_object_set_new(m, "tool_calls", calls) != 0)
        rc = sl_chat_no_memory(rd->r, rd->at);
    return rc;
}

/* Calls of functions and of free-form tools. */
static int call_item(struct reader *rd, const json_t *item)
{
    bool custom = json_object_get(item, "arguments") == NULL && json_object_get(item, "input");
    const char *space = json_string_value(json_object_get(item, "namespace"));
    const json_t *id, *name, *text;
    int rc = sl_chat_text(item, rd->at, "call_id", &id, rd->r);
    if (rc == 0)
        rc = sl_chat_text(item, rd->at, "name", &name, rd->r);
    if (rc == 0)
        rc = sl_chat_text(item, rd->at, custom ? "input" : "arguments", &text, rd->r);
    if (rc != 0)
        return rc;
    json_t *arguments =
        custom ? sl_free_form_arguments(text) : json_incref((json_t *)(uintptr_t)text);
    json_t *shown = sl_tool_shown_name(space, json_string_value(name));
    rc = append_call(rd, id, shown, arguments);
    json_decref(shown);
    return rc;
}

/* Calls of tools that have a type of their own: one member holds the arguments. */
static int known_call_item(struct reader *rd, const json_t *item)
{
    static const char *const types[][3] = {{"local_shell_call", "local_shell", "action"},
                                           {"shell_call", "shell", "action"},
                                           {"apply_patch_call", "apply_patch", "operation"},
                                           {"tool_search_call", "tool_search", "arguments"}};
    const char *type = json_string_value(json_object_get(item, "type"));
    const json_t *id = json_object_get(item, "call_id"), *v;
    size_t k = 0;
    while (k + 1 < SL_COUNT(types) && strcmp(type, types[k][0]) != 0)
        k++;
    if (!json_is_string(id))
        id = json_object_get(item, "id");
    v = json_object_get(item, types[k][2]);
    if (!json_is_string(id))
        return sl_refuse(rd->r, SL_EINVAL, rd->at, "%s.call_id must be a string", rd->at);
    if (!json_is_object(v))
        return sl_refuse(rd->r, SL_EINVAL, rd->at, "%s.%s must be an object", rd->at, types[k][2]);
    json_t *args = k == 2 ? json_pack("{s:O}", "operation", (json_t *)(uintptr_t)v)
                          : json_copy((json_t *)(uintptr_t)v);
    if (k == 0 && args != NULL)
        (void)json_object_del(args, "type");
    json_t *text = sl_json_as_text(args), *name = json_string(types[k][1]);
    int rc = append_call(rd, id, name, text);
    json_decref(args);
    json_decref(name);
    return rc;
}

/* The tools that a search found are among the tools by now; here are their names. */
static json_t *names_of_tools(const json_t *tools)
{
    const json_t *tool;
    struct sl_buf b = {0};
    size_t i;
    sl_buf_puts(&b, "Found tools:");
    json_array_foreach(tools, i, tool)
    {
        const char *name = json_string_value(json_object_get(tool, "name"));
        sl_buf_printf(&b, " %s", name != NULL ? name : "?");
    }
    json_t *text = sl_buf_ok(&b) ? json_stringn(b.data, b.n_bytes) : NULL;
    sl_buf_deinit(&b);
    return text;
}

/* Results of calls: text, or parts that are text, or (of shells and patches) what is told as JSON.
 */
static int output_item(struct reader *rd, const json_t *item)
{
    char field[SL_PLACE_BYTES + 16];
    const char *type = json_string_value(json_object_get(item, "type"));
    const json_t *id = json_object_get(item, "call_id"), *v = json_object_get(item, "output");
    json_t *content = NULL;
    int rc = 0;
    if (id == NULL && strcmp(type, "local_shell_call_output") == 0)
        id = json_object_get(item, "id");
    snprintf(field, sizeof field, "%s.call_id", rd->at);
    if (!json_is_string(id) && strcmp(type, "tool_search_output") != 0)
        return sl_refuse(rd->r, SL_EINVAL, field, "%s must be a string", field);
    snprintf(field, sizeof field, "%s.output", rd->at);
    if (strcmp(type, "tool_search_output") == 0)
        content = names_of_tools(json_object_get(item, "tools"));
    else if (strcmp(type, "shell_call_output") == 0)
        content = sl_json_as_text(v);
    else if (strcmp(type, "apply_patch_call_output") == 0 && !json_is_string(v))
        content = json_incref(json_object_get(item, "status"));
    else
        rc = read_content(v, field, &content, rd->r);
    if (rc == 0 && content == NULL)
        rc = sl_refuse(rd->r, SL_EINVAL, field, "%s is missing", field);
    json_t *made = json_is_string(id) ? NULL : json_string("tool_search");
    if (rc == 0)
        rc = sl_chat_append_result(rd->out, made != NULL ? made : id, content, rd->at, rd->r);
    json_decref(made);
    return rc;
}

/* What a server of MCP was asked and answered elsewhere. */
static int mcp_item(struct reader *rd, const json_t *item)
{
    const char *label = json_string_value(json_object_get(item, "server_label"));
    const json_t *id, *name, *arguments, *output = json_object_get(item, "output");
    int rc = sl_chat_text(item, rd->at, "id", &id, rd->r);
    if (rc == 0)
        rc = sl_chat_text(item, rd->at, "name", &name, rd->r);
    if (rc == 0)
        rc = sl_chat_text(item, rd->at, "arguments", &arguments, rd->r);
    if (rc != 0)
        return rc;
    json_t *shown = sl_tool_shown_name(label, json_string_value(name));
    rc = append_call(rd, id, shown, json_incref((json_t *)(uintptr_t)arguments));
    json_decref(shown);
    json_t *content = json_is_string(output) ? json_incref((json_t *)(uintptr_t)output)
                                             : sl_json_as_text(json_object_get(item, "error"));
    if (rc == 0 && content == NULL)
        content = json_string("");
    if (rc != 0 || content == NULL) {
        json_decref(content);
        return rc != 0 ? rc : sl_chat_no_memory(rd->r, rd->at);
    }
    return sl_chat_append_result(rd->out, id, content, rd->at, rd->r);
}

/* Traces of tools that only OpenAI runs, and what was read with the tools: nothing for the model.
 */
static int skip_item(struct reader *rd, const json_t *item)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    size_t n = strlen(rd->in->skipped);
    if (strcmp(type, "additional_tools") != 0 && strstr(rd->in->skipped, type) == NULL)
        snprintf(rd->in->skipped + n, sizeof rd->in->skipped - n, "%s%s", n > 0 ? "," : "", type);
    return 0;
}

/* A message between the agents of one client. */
static int agent_item(struct reader *rd, const json_t *item)
{
    char field[SL_PLACE_BYTES + 16];
    json_t *content;
    snprintf(field, sizeof field, "%s.content", rd->at);
    int rc = read_content(json_object_get(item, "content"), field, &content, rd->r);
    if (rc == 0)
        rc = sl_chat_append_message(rd->out, "user", content, rd->at, rd->r);
    json_decref(content);
    return rc;
}

static int compaction_item(struct reader *rd, const json_t *item)
{
    static const char head[] = "Summary of the conversation so far:\n";
    const json_t *v = json_object_get(item, "encrypted_content");
    const char *s = json_string_value(v);
    size_t n = sizeof summary_mark - 1;
    struct sl_buf b = {0};
    if (s == NULL || strncmp(s, summary_mark, n) != 0)
        return sl_refuse(rd->r, SL_EUNSUPPORTED, rd->at,
                         "%s.encrypted_content is not from this server: it cannot be read", rd->at);
    sl_buf_puts(&b, head);
    sl_buf_put(&b, s + n, json_string_length(v) - n);
    json_t *content = sl_buf_ok(&b) ? json_stringn(b.data, b.n_bytes) : NULL;
    int rc = content != NULL ? sl_chat_append_message(rd->out, "user", content, rd->at, rd->r)
                             : sl_chat_no_memory(rd->r, rd->at);
    sl_buf_deinit(&b);
    json_decref(content);
    return rc;
}

static int trigger_item(struct reader *rd, const json_t *item)
{
    (void)item;
    rd->in->compact = true;
    return 0;
}

/* What was thought belongs to the answer behind it. A summary is not it, nor what is encrypted. */
static int reasoning_item(struct reader *rd, const json_t *item)
{
    const json_t *v = json_object_get(item, "content"), *part;
    char field[SL_PLACE_BYTES + 16];
    json_t *content;
    size_t i;
    if (v == NULL || json_is_null(v))
        return 0;
    snprintf(field, sizeof field, "%s.content", rd->at);
    int rc = read_content(v, field, &content, rd->r);
    if (rc != 0)
        return rc;
    if (json_is_string(content))
        sl_buf_put(&rd->thought, json_string_value(content), json_string_length(content));
    json_array_foreach(content, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        sl_buf_put(&rd->thought, json_string_value(text), json_string_length(text));
    }
    json_decref(content);
    return sl_buf_ok(&rd->thought) ? 0 : sl_chat_no_memory(rd->r, rd->at);
}

static int read_item(struct reader *rd, const json_t *item)
{
    static const struct {
        const char *type;
        int (*read)(struct reader *rd, const json_t *item);
    } types[] = {
        {"message", message_item},
        {"function_call", call_item},
        {"function_call_output", output_item},
        {"custom_tool_call", call_item},
        {"custom_tool_call_output", output_item},
        {"local_shell_call", known_call_item},
        {"local_shell_call_output", output_item},
        {"shell_call", known_call_item},
        {"shell_call_output", output_item},
        {"apply_patch_call", known_call_item},
        {"apply_patch_call_output", output_item},
        {"tool_search_call", known_call_item},
        {"tool_search_output", output_item},
        {"reasoning", reasoning_item},
        {"additional_tools", skip_item},
        {"agent_message", agent_item},
        {"mcp_call", mcp_item},
        {"compaction", compaction_item},
        {"compaction_summary", compaction_item},
        {"context_compaction", compaction_item},
        {"compaction_trigger", trigger_item},
        {"configuration_update", skip_item},
        {"web_search_call", skip_item},
        {"file_search_call", skip_item},
        {"code_interpreter_call", skip_item},
        {"image_generation_call", skip_item},
        {"mcp_list_tools", skip_item},
        {"mcp_approval_request", skip_item},
        {"mcp_approval_response", skip_item},
        {"ghost_snapshot", skip_item},
    };
    const json_t *v = json_object_get(item, "type");
    const char *type = v == NULL || json_is_null(v) ? "message" : json_string_value(v);
    if (!json_is_object(item) || type == NULL)
        return sl_refuse(rd->r, SL_EINVAL, rd->at, "%s must be an object with a type", rd->at);
    for (size_t i = 0; i < SL_COUNT(types); i++) {
        if (strcmp(type, types[i].type) == 0)
            return types[i].read(rd, item);
    }
    return sl_refuse(rd->r, SL_EUNSUPPORTED, rd->at, "%s: not supported: items of type %.64s",
                     rd->at, type);
}

static int responses_in_read_input(json_t *root, struct sl_responses_in *in, struct sl_refusal *r)
{
    const json_t *input = json_object_get(root, "input"), *item;
    struct reader rd = {.out = json_array(), .in = in, .r = r};
    size_t i;
    int rc = rd.out != NULL ? 0 : sl_chat_no_memory(r, "input");
    if (rc == 0 && json_is_string(input))
        rc = sl_chat_append_message(rd.out, "user", input, "input", r);
    else if (rc == 0 && !json_is_array(input))
        rc = sl_refuse(r, SL_EINVAL, "input", "input must be a string or an array of items");
    json_array_foreach(input, i, item)
    {
        snprintf(rd.at, sizeof rd.at, "input[%zu]", i);
        if (rc == 0)
            rc = read_item(&rd, item);
    }
    if (rc == 0 && rd.thought.n_bytes > 0 && answer_of(&rd) == NULL)
        rc = sl_chat_no_memory(r, "input");
    if (rc == 0 && json_array_size(rd.out) == 0)
        rc = sl_refuse(r, SL_EINVAL, "input", "input must not be empty");
    if (rc == 0 && json_object_set(root, "input", rd.out) != 0)
        rc = sl_chat_no_memory(r, "input");
    json_decref(rd.out);
    sl_buf_deinit(&rd.thought);
    return rc;
}

int sl_responses_prepend(json_t *root, json_t *earlier, struct sl_refusal *r)
{
    const json_t *instructions = json_object_get(root, "instructions");
    json_t *input = json_object_get(root, "input"), *all = json_array(), *m;
    struct reader rd = {.out = all, .at = "input", .r = r};
    size_t i;
    int rc = all != NULL ? 0 : sl_chat_no_memory(r, "input");
    if (rc == 0 && json_is_string(instructions) && json_string_length(instructions) > 0)
        rc = add_system(&rd, instructions);
    for (int k = 0; k < 2; k++) {
        json_array_foreach(k == 0 ? earlier : input, i, m)
        {
            if (rc == 0 && has_role(m, "system")) /* joins the one in front, if it is there */
                rc = add_system(&rd, json_object_get(m, "content"));
            else if (rc == 0 && json_array_append(all, m) != 0)
                rc = sl_chat_no_memory(r, "input");
        }
    }
    if (rc == 0 && json_object_set(root, "input", all) != 0)
        rc = sl_chat_no_memory(r, "input");
    json_decref(all);
    return rc;
}

/* ---- text, reasoning, include */

static int responses_in_read_text(json_t *root, struct sl_refusal *r)
{
    const json_t *v = json_object_get(root, "text"), *format;
    json_t *out;
    if (v == NULL || json_is_null(v))
        return 0;
    if (!json_is_object(v))
        return sl_refuse(r, SL_EINVAL, "text", "text must be an object, not %s",
                         sl_json_type_name(v));
    format = json_object_get(v, "format");
    if (format == NULL || json_is_null(format))
        return 0;
    const char *type = json_string_value(json_object_get(format, "type"));
    if (type == NULL)
        return sl_refuse(r, SL_EINVAL, "text.format", "text.format must be an object with a type");
    if (strcmp(type, "json_schema") == 0) {
        json_t *schema = json_object_get(format, "schema");
        if (!json_is_object(schema))
            return sl_refuse(r, SL_EINVAL, "text.format.schema",
                             "text.format.schema must be an object");
        out = json_pack("{s:s, s:{s:O}}", "type", type, "json_schema", "schema", schema);
    } else if (strcmp(type, "json_object") == 0 || strcmp(type, "text") == 0) {
        out = json_pack("{s:s}", "type", type);
    } else {
        return sl_refuse(r, SL_EUNSUPPORTED, "text.format.type",
                         "text.format.type must be text, json_object or json_schema, not %.64s",
                         type);
    }
    return json_object_set_new(root, "response_format", out) == 0 ? 0
                                                                  : sl_chat_no_memory(r, "text");
}

static int read_reasoning(json_t *root, struct sl_refusal *r)
{
    const json_t *v = json_object_get(root, "reasoning");
    if (v == NULL || json_is_null(v))
        return 0;
    if (!json_is_object(v))
        return sl_refuse(r, SL_EINVAL, "reasoning", "reasoning must be an object, not %s",
                         sl_json_type_name(v));
    json_t *effort = json_object_get(v, "effort");
    if (effort == NULL || json_is_null(effort))
        return 0;
    const char *s;
    int rc = sl_json_cstr(effort, "reasoning.effort", 64, &s, r);
    if (rc == 0 && json_object_set(root, "reasoning_effort", effort) != 0)
        rc = sl_chat_no_memory(r, "reasoning");
    return rc == 0 && strcmp(s, "none") == 0 ? sl_chat_set_thinking(root, false, r) : rc;
}

/* Parts of a response that are left out unless asked for. All but the first belong to tools that
 * only OpenAI runs, or are in every response anyway. */
static int read_include(json_t *root, struct sl_refusal *r)
{
    static const char *const known[] = {"message.output_text.logprobs",
                                        "reasoning.encrypted_content",
                                        "file_search_call.results",
                                        "web_search_call.results",
                                        "web_search_call.action.sources",
                                        "message.input_image.image_url",
                                        "computer_call_output.output.image_url",
                                        "code_interpreter_call.outputs"};
    const json_t *v = json_object_get(root, "include"), *item;
    size_t i;
    if (v == NULL || json_is_null(v))
        return 0;
    if (!json_is_array(v))
        return sl_refuse(r, SL_EINVAL, "include", "include must be an array of strings, not %s",
                         sl_json_type_name(v));
    json_array_foreach(v, i, item)
    {
        const char *s = json_string_value(item);
        size_t k = 0;
        while (s != NULL && k < SL_COUNT(known) && strcmp(s, known[k]) != 0)
            k++;
        if (s == NULL || k == SL_COUNT(known))
            return sl_refuse(r, SL_EINVAL, "include", "include[%zu]: '%.64s' is not known", i,
                             s != NULL ? s : sl_json_type_name(item));
        if (k == 0 && json_object_set_new(root, "logprobs", json_true()) != 0)
            return sl_chat_no_memory(r, "include");
    }
    return 0;
}

static int read_truncation(json_t *root, struct sl_refusal *r)
{
    static const char field[] = "truncation";
    const json_t *v = json_object_get(root, field);
    if (v == NULL || json_is_null(v))
        return 0;
    const char *s = json_string_value(v);
    if (s != NULL && strcmp(s, "disabled") == 0)
        return 0;
    if (s == NULL || strcmp(s, "auto") != 0)
        return sl_refuse(r, SL_EINVAL, field, "truncation must be auto or disabled");
    return json_object_set_new(root, "truncate_prompt_tokens", json_integer(-1)) == 0
               ? 0
               : sl_chat_no_memory(r, field);
}

/* The API knows a template of the platform's by this name, which is nowhere here. */
static int responses_in_read_prompt(json_t *root, struct sl_refusal *r)
{
    const json_t *v = json_object_get(root, "prompt");
    return v == NULL || json_is_null(v)
               ? 0
               : sl_refuse(r, SL_EUNSUPPORTED, "prompt", "not supported yet: prompt");
}

int sl_responses_ask_summary(json_t *root, struct sl_refusal *r)
{
    static const char ask[] =
        "Write a summary of this conversation for whoever goes on with the work and sees nothing "
        "else of it: what was asked, what was done and found, decisions and their reasons, files "
        "and commands that matter, and what is left to do. Write the summary only.";
    json_t *content = json_string(ask);
    int rc = content != NULL ? sl_chat_append_message(json_object_get(root, "input"), "user",
                                                      content, "input", r)
                             : sl_chat_no_memory(r, "input");
    json_decref(content);
    (void)json_object_del(root, "tools");
    (void)json_object_del(root, "tool_choice");
    (void)json_object_del(root, "response_format");
    return rc;
}

void sl_put_summary(struct sl_buf *b, const char *text, size_t n)
{
    sl_buf_putc(b, '"');
    sl_buf_puts(b, summary_mark);
    sl_buf_json_escape(b, text, n);
    sl_buf_putc(b, '"');
}

int sl_responses_to_chat(json_t *root, struct sl_responses_in *in, struct sl_refusal *r)
{
    static int (*const readers[])(json_t *, struct sl_refusal *) = {
        responses_in_read_text, read_reasoning, read_include, read_truncation,
        responses_in_read_prompt};
    SL_ASSERT(json_is_object(root));
    int rc = sl_responses_tools(root, &in->tools, r);
    if (rc == 0)
        rc = sl_responses_choice(root, &in->tools, r);
    if (rc == 0)
        rc = responses_in_read_input(root, in, r);
    for (size_t i = 0; i < SL_COUNT(readers) && rc == 0; i++)
        rc = readers[i](root, r);
    SL_ASSERT(rc != 0 || json_array_size(json_object_get(root, "input")) > 0);
    return rc;
}
