/* SPDX-License-Identifier: MIT
 *
 * A message of blocks becomes one or several: results of tools are messages of their own there, in
 * the order of the blocks, and calls and thinking are members beside the content.
 */
#include "server/api/anthropic_in.h"

#include "base/check.h"
#include "base/json_load.h"
#include "base/limits.h"
#include "server/api/to_chat.h"
#include "server/http/json_tree.h"

#include <stdio.h>
#include <string.h>

struct reader {
    json_t *out;      /* the messages */
    const char *role; /* of the message that is read */
    json_t *parts;    /* text blocks since the last message; owned */
    json_t *calls;    /* of an assistant; owned, may be NULL */
    struct sl_buf thought;
    char at[64]; /* the block, as refusals name it */
    struct sl_refusal *r;
};

/* Claude Code's first block of system changes with every request: a prompt that holds it is found
 * in no prefix cache. */
static bool is_billing(const json_t *text)
{
    static const char mark[] = "x-anthropic-billing-header";
    return strncmp(json_string_value(text), mark, sizeof mark - 1) == 0;
}

/* What a search for tools found: the tool is among the tools by now. */
static int put_reference(json_t *parts, const json_t *block, const char *at, struct sl_refusal *r)
{
    const json_t *name;
    int rc = sl_chat_text(block, at, "tool_name", &name, r);
    if (rc != 0)
        return rc;
    json_t *text = json_sprintf("Found tool: %s", json_string_value(name));
    rc = text != NULL ? sl_chat_append_part(parts, text, at, r) : sl_chat_no_memory(r, at);
    json_decref(text);
    return rc;
}

/* Content that is text alone: a string, or blocks of which only text is known. */
static int plain_content(const json_t *v, const char *at, bool system, json_t **out,
                         struct sl_refusal *r)
{
    const json_t *block, *text;
    char field[128];
    size_t i;
    *out = NULL;
    if (v == NULL || json_is_null(v) || json_is_string(v)) {
        *out = json_is_string(v) ? json_incref((json_t *)(uintptr_t)v) : json_string("");
        return *out != NULL ? 0 : sl_chat_no_memory(r, at);
    }
    if (!json_is_array(v))
        return sl_refuse(r, SL_EINVAL, at, "%s must be a string or an array of blocks, not %s", at,
                         sl_json_type_name(v));
    *out = json_array();
    int rc = *out != NULL ? 0 : sl_chat_no_memory(r, at);
    json_array_foreach(v, i, block)
    {
        const char *type = json_string_value(json_object_get(block, "type"));
        snprintf(field, sizeof field, "%s[%zu]", at, i);
        if (rc == 0 && type != NULL && !system && strcmp(type, "tool_reference") == 0) {
            rc = put_reference(*out, block, field, r);
            continue;
        }
        if (rc == 0 && type == NULL)
            rc = sl_refuse(r, SL_EINVAL, field, "%s must be an object with a type", field);
        else if (rc == 0 && strcmp(type, "text") != 0)
            rc = sl_refuse(r, SL_EUNSUPPORTED, field, "%s: not supported: blocks of type %.64s",
                           field, type);
        if (rc == 0)
            rc = sl_chat_text(block, field, "text", &text, r);
        if (rc == 0 && !(system && is_billing(text)))
            rc = sl_chat_append_part(*out, text, field, r);
    }
    if (rc != 0) {
        json_decref(*out);
        *out = NULL;
    }
    return rc;
}

/* ---- messages */

/* Ends the message under way, if it has anything. */
static int anthropic_in_flush(struct reader *rd)
{
    bool has_text = json_array_size(rd->parts) > 0;
    if (!has_text && rd->calls == NULL && rd->thought.n_bytes == 0)
        return 0;
    json_t *m = json_pack("{s:s, s:O}", "role", rd->role, "content", rd->parts);
    bool ok = m != NULL && json_array_append_new(rd->out, m) == 0;
    if (ok && rd->calls != NULL)
        ok = json_object_set_new(m, "tool_calls", rd->calls) == 0;
    else if (!ok)
        json_decref(rd->calls);
    rd->calls = NULL;
    if (ok && rd->thought.n_bytes > 0)
        ok = json_object_set_new(m, "reasoning",
                                 json_stringn_nocheck(rd->thought.data, rd->thought.n_bytes)) == 0;
    sl_buf_clear(&rd->thought);
    json_decref(rd->parts);
    rd->parts = json_array();
    return ok && rd->parts != NULL ? 0 : sl_chat_no_memory(rd->r, rd->at);
}

static int text_block(struct reader *rd, const json_t *block)
{
    const json_t *text;
    int rc = sl_chat_text(block, rd->at, "text", &text, rd->r);
    return rc != 0 ? rc : sl_chat_append_part(rd->parts, text, rd->at, rd->r);
}

static int thinking_block(struct reader *rd, const json_t *block)
{
    const json_t *text;
    int rc = sl_chat_text(block, rd->at, "thinking", &text, rd->r);
    if (rc == 0)
        sl_buf_put(&rd->thought, json_string_value(text), json_string_length(text));
    return rc != 0 || sl_buf_ok(&rd->thought) ? rc : sl_chat_no_memory(rd->r, rd->at);
}

static int tool_use_block(struct reader *rd, const json_t *block)
{
    const json_t *id, *name, *input = json_object_get(block, "input");
    char field[96];
    int rc = sl_chat_text(block, rd->at, "id", &id, rd->r);
    if (rc == 0)
        rc = sl_chat_text(block, rd->at, "name", &name, rd->r);
    snprintf(field, sizeof field, "%s.input", rd->at);
    if (rc == 0 && !json_is_object(input))
        rc = sl_refuse(rd->r, SL_EINVAL, field, "%s must be an object", field);
    if (rc != 0)
        return rc;
    return sl_chat_append_call(&rd->calls, id, name, sl_json_as_text(input), rd->at, rd->r);
}

static int tool_result_block(struct reader *rd, const json_t *block)
{
    const json_t *id;
    json_t *content;
    char field[96];
    int rc = anthropic_in_flush(rd);
    if (rc == 0)
        rc = sl_chat_text(block, rd->at, "tool_use_id", &id, rd->r);
    snprintf(field, sizeof field, "%s.content", rd->at);
    if (rc == 0)
        rc = plain_content(json_object_get(block, "content"), field, false, &content, rd->r);
    return rc != 0 ? rc : sl_chat_append_result(rd->out, id, content, rd->at, rd->r);
}

/* What a tool gave that ran at Anthropic, as JSON; what only Anthropic can read is left out. */
static int server_result_block(struct reader *rd, const json_t *block)
{
    const json_t *id;
    int rc = anthropic_in_flush(rd);
    if (rc == 0)
        rc = sl_chat_text(block, rd->at, "tool_use_id", &id, rd->r);
    if (rc != 0)
        return rc;
    json_t *copy = json_deep_copy(json_object_get(block, "content")), *one;
    size_t i;
    json_array_foreach(copy, i, one)(void) json_object_del(one, "encrypted_content");
    json_t *text = json_is_string(copy) ? json_incref(copy) : sl_json_as_text(copy);
    json_decref(copy);
    return text != NULL ? sl_chat_append_result(rd->out, id, text, rd->at, rd->r)
                        : sl_chat_no_memory(rd->r, rd->at);
}

/* What was thought elsewhere and cannot be read says nothing. */
static int skip_block(struct reader *rd, const json_t *block)
{
    (void)rd;
    (void)block;
    return 0;
}

static int anthropic_in_read_block(struct reader *rd, const json_t *block)
{
    static const struct {
        const char *type, *role; /* NULL: anybody's */
        int (*read)(struct reader *rd, const json_t *block);
    } types[] = {
        {"text", NULL, text_block},
        {"tool_result", "user", tool_result_block},
        {"tool_use", "assistant", tool_use_block},
        {"server_tool_use", "assistant", tool_use_block},
        {"mcp_tool_use", "assistant", tool_use_block},
        {"mcp_tool_result", "assistant", server_result_block},
        {"web_search_tool_result", "assistant", server_result_block},
        {"web_fetch_tool_result", "assistant", server_result_block},
        {"code_execution_tool_result", "assistant", server_result_block},
        {"bash_code_execution_tool_result", "assistant", server_result_block},
        {"text_editor_code_execution_tool_result", "assistant", server_result_block},
        {"tool_search_tool_result", "assistant", server_result_block},
        {"thinking", "assistant", thinking_block},
        {"redacted_thinking", "assistant", skip_block},
    };
    const char *type = json_string_value(json_object_get(block, "type"));
    if (type == NULL)
        return sl_refuse(rd->r, SL_EINVAL, rd->at, "%s must be an object with a type", rd->at);
    for (size_t i = 0; i < SL_COUNT(types); i++) {
        if (strcmp(type, types[i].type) != 0)
            continue;
        if (types[i].role != NULL && strcmp(rd->role, types[i].role) != 0)
            return sl_refuse(rd->r, SL_EINVAL, rd->at, "%s: a message of role %s has no %s", rd->at,
                             rd->role, type);
        return types[i].read(rd, block);
    }
    return sl_refuse(rd->r, SL_EUNSUPPORTED, rd->at, "%s: not supported: blocks of type %.64s",
                     rd->at, type);
}

static int anthropic_in_read_message(struct reader *rd, const json_t *m, size_t i)
{
    const json_t *content = json_object_get(m, "content"), *block;
    size_t k, n_before = json_array_size(rd->out);
    snprintf(rd->at, sizeof rd->at, "messages[%zu]", i);
    if (!json_is_object(m))
        return sl_refuse(rd->r, SL_EINVAL, rd->at, "%s must be an object, not %s", rd->at,
                         sl_json_type_name(m));
    rd->role = json_string_value(json_object_get(m, "role"));
    if (rd->role == NULL || (strcmp(rd->role, "user") != 0 && strcmp(rd->role, "assistant") != 0 &&
                             strcmp(rd->role, "system") != 0))
        return sl_refuse(rd->r, SL_EINVAL, rd->at, "%s.role must be user, assistant or system",
                         rd->at);
    if (json_is_string(content))
        return sl_chat_append_message(rd->out, rd->role, content, rd->at, rd->r);
    if (!json_is_array(content))
        return sl_refuse(rd->r, SL_EINVAL, rd->at,
                         "%s.content must be a string or an array of blocks", rd->at);
    int rc = 0;
    json_array_foreach(content, k, block)
    {
        snprintf(rd->at, sizeof rd->at, "messages[%zu].content[%zu]", i, k);
        if (rc == 0)
            rc = anthropic_in_read_block(rd, block);
    }
    if (rc == 0)
        rc = anthropic_in_flush(rd);
    if (rc == 0 && json_array_size(rd->out) == n_before) { /* no block said anything */
        json_t *empty = json_pack("{s:s, s:s}", "role", rd->role, "content", "");
        if (empty == NULL || json_array_append_new(rd->out, empty) != 0)
            rc = sl_chat_no_memory(rd->r, rd->at);
    }
    return rc;
}

static int read_system(const json_t *v, json_t *out, struct sl_refusal *r)
{
    json_t *content, *m;
    if (v == NULL || json_is_null(v))
        return 0;
    int rc = plain_content(v, "system", true, &content, r);
    if (rc != 0)
        return rc;
    if (json_is_array(content) ? json_array_size(content) == 0 : json_string_length(content) == 0) {
        json_decref(content);
        return 0;
    }
    m = json_pack("{s:s, s:o}", "role", "system", "content", content);
    return m != NULL && json_array_append_new(out, m) == 0 ? 0 : sl_chat_no_memory(r, "system");
}

static int anthropic_in_read_messages(json_t *root, struct sl_refusal *r)
{
    const json_t *messages = json_object_get(root, "messages"), *m;
    struct reader rd = {.out = json_array(), .parts = json_array(), .r = r};
    size_t i;
    int rc = rd.out != NULL && rd.parts != NULL ? 0 : sl_chat_no_memory(r, "messages");
    if (rc == 0 && !json_is_array(messages))
        rc = sl_refuse(r, SL_EINVAL, "messages", "messages must be an array");
    if (rc == 0 && json_array_size(messages) == 0)
        rc = sl_refuse(r, SL_EINVAL, "messages", "messages must not be empty");
    if (rc == 0)
        rc = read_system(json_object_get(root, "system"), rd.out, r);
    json_array_foreach(messages, i, m)
    {
        if (rc == 0)
            rc = anthropic_in_read_message(&rd, m, i);
    }
    /* An answer that has begun goes on, unless it calls: then a result has to come first. */
    const json_t *last = json_array_get(rd.out, json_array_size(rd.out) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (rc == 0 && role != NULL && strcmp(role, "assistant") == 0 &&
        json_object_get(last, "tool_calls") == NULL &&
        (json_object_set_new(root, "continue_final_message", json_true()) != 0 ||
         json_object_set_new(root, "add_generation_prompt", json_false()) != 0))
        rc = sl_chat_no_memory(r, "messages");
    if (rc == 0 && json_object_set(root, "messages", rd.out) != 0)
        rc = sl_chat_no_memory(r, "messages");
    json_decref(rd.out);
    json_decref(rd.parts);
    json_decref(rd.calls);
    sl_buf_deinit(&rd.thought);
    return rc;
}

/* ---- tools */

/* Tools that the client runs and whose definition only Anthropic's models know by heart. */
static const struct known_tool {
    const char *prefix, *description, *parameters;
} known_tools[] = {
    {"bash_", "Runs a command in a shell on the user's computer and returns its output.",
     "{\"type\":\"object\",\"properties\":{\"command\":{\"type\":\"string\"},\"restart\":{\"type\":"
     "\"boolean\"}}}"},
    {"text_editor_", "Views, creates and edits files on the user's computer.",
     "{\"type\":\"object\",\"properties\":{\"command\":{\"enum\":[\"view\",\"create\",\"str_"
     "replace\","
     "\"insert\"]},\"path\":{\"type\":\"string\"},\"file_text\":{\"type\":\"string\"},\"old_str\":{"
     "\"type\":\"string\"},\"new_str\":{\"type\":\"string\"},\"insert_line\":{\"type\":\"integer\"}"
     ","
     "\"insert_text\":{\"type\":\"string\"},\"view_range\":{\"type\":\"array\",\"items\":{\"type\":"
     "\"integer\"}}},\"required\":[\"command\",\"path\"]}"},
    {"memory_", "Reads and writes files in which things are kept between conversations.",
     "{\"type\":\"object\",\"properties\":{\"command\":{\"enum\":[\"view\",\"create\",\"str_"
     "replace\","
     "\"insert\",\"delete\",\"rename\"]},\"path\":{\"type\":\"string\"},\"file_text\":{\"type\":"
     "\"string\"},\"old_str\":{\"type\":\"string\"},\"new_str\":{\"type\":\"string\"},\"insert_"
     "line\":{"
     "\"type\":\"integer\"},\"insert_text\":{\"type\":\"string\"},\"old_path\":{\"type\":"
     "\"string\"},"
     "\"new_path\":{\"type\":\"string\"}},\"required\":[\"command\"]}"},
};

struct tools {
    json_t *root, *out;
    json_t *found;   /* names of tools that a search found, as keys */
    bool all;        /* the search would be Anthropic's: what it could find is shown at once */
    char first[128]; /* the first tool that cannot be run here */
    struct sl_refusal *r;
};

static bool starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static bool is_hosted(const char *type)
{
    static const char *const prefixes[] = {"web_search_",       "web_fetch_", "code_execution_",
                                           "tool_search_tool_", "computer_",  "mcp_toolset",
                                           "advisor_"};
    for (size_t i = 0; i < SL_COUNT(prefixes); i++) {
        if (starts(type, prefixes[i]))
            return true;
    }
    return false;
}

/* Of what the model is not shown, the reply's headers tell as of a field without effect. */
static int anthropic_in_note_ignored(json_t *root, const char *what, const char *type,
                                     struct sl_refusal *r)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%.64s", what, type);
    return json_object_set_new(root, name, json_true()) == 0 ? 0 : sl_chat_no_memory(r, what);
}

static int anthropic_in_read_known(struct tools *t, const json_t *tool, const struct known_tool *k,
                                   const char *at)
{
    json_error_t error;
    const json_t *name;
    int rc = sl_chat_text(tool, at, "name", &name, t->r);
    if (rc != 0)
        return rc;
    json_t *wrapped =
        json_pack("{s:s, s:{s:O, s:s, s:o}}", "type", "function", "function", "name",
                  (json_t *)(uintptr_t)name, "description", k->description, "parameters",
                  sl_json_load_wide(k->parameters, strlen(k->parameters), 0, &error));
    return wrapped != NULL && json_array_append_new(t->out, wrapped) == 0
               ? 0
               : sl_chat_no_memory(t->r, at);
}

static int anthropic_in_read_tool(struct tools *t, const json_t *tool, size_t i)
{
    static const char *const members[][2] = {{"name", "name"},
                                             {"description", "description"},
                                             {"input_schema", "parameters"},
                                             {"strict", "strict"}};
    char at[32];
    snprintf(at, sizeof at, "tools[%zu]", i);
    if (!json_is_object(tool))
        return sl_refuse(t->r, SL_EINVAL, at, "%s must be an object, not %s", at,
                         sl_json_type_name(tool));
    const json_t *type = json_object_get(tool, "type");
    const char *s = json_string_value(type);
    if (s != NULL && is_hosted(s)) {
        if (t->first[0] == '\0')
            snprintf(t->first, sizeof t->first, "%s: this server cannot run %.64s", at, s);
        return anthropic_in_note_ignored(t->root, "tools", s, t->r);
    }
    for (size_t k = 0; s != NULL && k < SL_COUNT(known_tools); k++) {
        if (starts(s, known_tools[k].prefix))
            return anthropic_in_read_known(t, tool, &known_tools[k], at);
    }
    if (type != NULL && !json_is_null(type) && (s == NULL || strcmp(s, "custom") != 0))
        return sl_refuse(t->r, SL_EUNSUPPORTED, at, "not supported: %s of type %.64s", at,
                         s != NULL ? s : sl_json_type_name(type));
    if (!json_is_object(json_object_get(tool, "input_schema")))
        return sl_refuse(t->r, SL_EINVAL, at, "%s.input_schema must be an object", at);
    const char *name = json_string_value(json_object_get(tool, "name"));
    if (json_is_true(json_object_get(tool, "defer_loading")) && !t->all &&
        (name == NULL || json_object_get(t->found, name) == NULL))
        return 0;
    return sl_chat_append_tool(t->out, tool, members, SL_COUNT(members), at, t->r);
}

/* Names in the references to tools anywhere in the messages; the depth of a body is bounded. */
static bool find_references(const json_t *v, json_t *found)
{
    const json_t *one;
    const char *key, *type = json_string_value(json_object_get(v, "type"));
    const char *name = json_string_value(json_object_get(v, "tool_name"));
    size_t i;
    bool ok = true;
    if (type != NULL && name != NULL && strcmp(type, "tool_reference") == 0)
        ok = json_object_set_new(found, name, json_true()) == 0;
    json_array_foreach(v, i, one) ok = ok && find_references(one, found);
    json_object_foreach((json_t *)(uintptr_t)v, key, one) ok = ok && find_references(one, found);
    return ok;
}

static int read_tools(json_t *root, struct sl_refusal *r)
{
    const json_t *tools = json_object_get(root, "tools"), *tool;
    size_t i;
    if (!json_is_array(tools)) /* absent, or refused by whoever reads it */
        return 0;
    struct tools t = {.root = root, .out = json_array(), .found = json_object(), .r = r};
    bool deferred = false;
    json_array_foreach(tools, i, tool)
    {
        const char *type = json_string_value(json_object_get(tool, "type"));
        t.all |= type != NULL && starts(type, "tool_search_tool_");
        deferred |= json_is_true(json_object_get(tool, "defer_loading"));
    }
    int rc = t.out != NULL && t.found != NULL &&
                     (!deferred || find_references(json_object_get(root, "messages"), t.found))
                 ? 0
                 : sl_chat_no_memory(r, "tools");
    json_array_foreach(tools, i, tool)
    {
        if (rc == 0)
            rc = anthropic_in_read_tool(&t, tool, i);
    }
    if (rc == 0 && t.first[0] != '\0' && json_array_size(t.out) == 0)
        rc = sl_refuse(r, SL_EUNSUPPORTED, "tools", "%s, and no other tool is given", t.first);
    if (rc == 0 && json_object_set(root, "tools", t.out) != 0)
        rc = sl_chat_no_memory(r, "tools");
    json_decref(t.out);
    json_decref(t.found);
    return rc;
}

/* Edits of the context: the prompt stays whole, which only thinking that is to be kept asks for. */
static int read_context(json_t *root, struct sl_refusal *r)
{
    static const char field[] = "context_management";
    const json_t *v = json_object_get(root, field), *edits = json_object_get(v, "edits"), *edit;
    size_t i;
    int rc = 0;
    if (v == NULL || json_is_null(v))
        return 0;
    if (!json_is_object(v) || (edits != NULL && !json_is_array(edits)))
        return sl_refuse(r, SL_EINVAL, field, "%s must be an object with an array of edits", field);
    json_array_foreach(edits, i, edit)
    {
        const char *type = json_string_value(json_object_get(edit, "type"));
        const char *keep = json_string_value(json_object_get(edit, "keep"));
        bool nothing = type != NULL && starts(type, "clear_thinking_") && keep != NULL &&
                       strcmp(keep, "all") == 0;
        if (rc == 0 && type == NULL)
            rc = sl_refuse(r, SL_EINVAL, field, "%s.edits[%zu] must be an object with a type",
                           field, i);
        else if (rc == 0 && !nothing)
            rc = anthropic_in_note_ignored(root, field, type, r);
    }
    return rc;
}

static int anthropic_in_read_choice(json_t *root, struct sl_refusal *r)
{
    static const char field[] = "tool_choice";
    static const char *const words[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const json_t *v = json_object_get(root, field), *name = NULL;
    const char *type = json_string_value(json_object_get(v, "type"));
    json_t *out = NULL;
    bool one = false;
    if (v == NULL || json_is_null(v))
        return 0;
    if (type == NULL)
        return sl_refuse(r, SL_EINVAL, field, "tool_choice must be an object with a type");
    const json_t *alone = json_object_get(v, "disable_parallel_tool_use");
    int rc = alone == NULL || json_is_null(alone)
                 ? 0
                 : sl_json_bool(alone, "tool_choice.disable_parallel_tool_use", &one, r);
    if (rc == 0 && strcmp(type, "tool") == 0)
        rc = sl_chat_text(v, field, "name", &name, r);
    if (rc != 0)
        return rc;
    if (name != NULL)
        out = json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name",
                        (json_t *)(uintptr_t)name);
    for (size_t i = 0; i < SL_COUNT(words); i++) {
        if (strcmp(type, words[i][0]) == 0)
            out = json_string(words[i][1]);
    }
    if (out == NULL)
        return name != NULL ? sl_chat_no_memory(r, field)
                            : sl_refuse(r, SL_EINVAL, "tool_choice.type",
                                        "tool_choice.type must be auto, any, tool or none");
    if (json_object_set_new(root, field, out) != 0 ||
        (one && json_object_set_new(root, "parallel_tool_calls", json_false()) != 0))
        return sl_chat_no_memory(r, field);
    return 0;
}

/* ---- thinking and the form of the output */

static int read_thinking(json_t *root, struct sl_refusal *r)
{
    static const char budget[] = "thinking_token_budget";
    json_t *v = json_object_get(root, "thinking"), *tokens;
    const char *type = json_string_value(json_object_get(v, "type"));
    if (v == NULL || json_is_null(v))
        return 0;
    if (type == NULL)
        return sl_refuse(r, SL_EINVAL, "thinking", "thinking must be an object with a type");
    bool enabled = strcmp(type, "enabled") == 0, off = strcmp(type, "disabled") == 0;
    if (!enabled && !off && strcmp(type, "adaptive") != 0)
        return sl_refuse(r, SL_EUNSUPPORTED, "thinking.type",
                         "thinking.type must be enabled, disabled or adaptive, not %.64s", type);
    if (enabled) {
        int64_t n;
        tokens = json_object_get(v, "budget_tokens");
        if (tokens == NULL)
            return sl_refuse(r, SL_EINVAL, "thinking.budget_tokens",
                             "thinking.budget_tokens is missing");
        int rc = sl_json_int(tokens, "thinking.budget_tokens", 1, INT32_MAX, &n, r);
        if (rc == 0 && json_object_get(root, budget) == NULL &&
            json_object_set(root, budget, tokens) != 0)
            rc = sl_chat_no_memory(r, "thinking");
        if (rc != 0)
            return rc;
    }
    return sl_chat_set_thinking(root, !off, r);
}

static int take_format(json_t *root, const char *field, json_t *format, struct sl_refusal *r)
{
    const char *type = json_string_value(json_object_get(format, "type"));
    json_t *schema = json_object_get(format, "schema");
    if (format == NULL || json_is_null(format))
        return 0;
    if (type == NULL || strcmp(type, "json_schema") != 0)
        return sl_refuse(r, SL_EUNSUPPORTED, field, "%s.type must be json_schema", field);
    if (!json_is_object(schema))
        return sl_refuse(r, SL_EINVAL, field, "%s.schema must be an object", field);
    return json_object_set_new(root, "response_format",
                               json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema",
                                         "schema", schema)) == 0
               ? 0
               : sl_chat_no_memory(r, field);
}

static int read_output(json_t *root, struct sl_refusal *r)
{
    json_t *config = json_object_get(root, "output_config"), *effort;
    int rc = take_format(root, "output_format", json_object_get(root, "output_format"), r);
    if (rc != 0 || config == NULL || json_is_null(config))
        return rc;
    if (!json_is_object(config))
        return sl_refuse(r, SL_EINVAL, "output_config", "output_config must be an object, not %s",
                         sl_json_type_name(config));
    effort = json_object_get(config, "effort");
    if (effort != NULL && !json_is_null(effort) &&
        json_object_set(root, "reasoning_effort", effort) != 0)
        return sl_chat_no_memory(r, "output_config");
    return take_format(root, "output_config.format", json_object_get(config, "format"), r);
}

int sl_anthropic_to_chat(json_t *root, struct sl_refusal *r)
{
    static int (*const readers[])(json_t *, struct sl_refusal *) = {read_tools,
                                                                    anthropic_in_read_messages,
                                                                    anthropic_in_read_choice,
                                                                    read_thinking,
                                                                    read_output,
                                                                    read_context};
    int rc = 0;
    SL_ASSERT(json_is_object(root));
    for (size_t i = 0; i < SL_COUNT(readers) && rc == 0; i++)
        rc = readers[i](root, r);
    SL_ASSERT(rc != 0 || json_array_size(json_object_get(root, "messages")) > 0);
    return rc;
}
