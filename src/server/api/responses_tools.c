/* SPDX-License-Identifier: MIT */
#include "server/api/responses_tools.h"

#include "base/check.h"
#include "base/json_load.h"
#include "base/limits.h"
#include "server/api/free_form.h"
#include "server/api/to_chat.h"
#include "server/http/json_tree.h"
#include "text/output/output_tags.h"

#include <stdio.h>
#include <string.h>

/* What the model is told of tools whose definition OpenAI's models know by heart. */
static const struct kind {
    const char *type; /* of the tool */
    const char *item, *prefix;
    const char *description, *parameters;
} kinds[SL_N_TOOL_KINDS] = {
    [SL_TOOL_FUNCTION] = {"function", "function_call", "fc_", NULL, NULL},
    [SL_TOOL_CUSTOM] = {"custom", "custom_tool_call", "ctc_", NULL, NULL},
    [SL_TOOL_SEARCH] = {"tool_search", "tool_search_call", "tsc_",
                        "Searches for tools that are not listed here. What it finds can be called "
                        "afterwards.",
                        "{\"type\":\"object\",\"properties\":{\"query\":{\"type\":\"string\"}},"
                        "\"required\":[\"query\"]}"},
    [SL_TOOL_LOCAL_SHELL] =
        {"local_shell", "local_shell_call", "lsh_",
         "Runs a command on the user's computer and returns its output.",
         "{\"type\":\"object\",\"properties\":{\"command\":{\"type\":\"array\",\"items\":{"
         "\"type\":\"string\"},\"description\":\"The program and its arguments.\"},"
         "\"working_directory\":{\"type\":\"string\"},\"timeout_ms\":{\"type\":\"integer\"},"
         "\"env\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}}},"
         "\"required\":[\"command\"]}"},
    [SL_TOOL_SHELL] =
        {"shell", "shell_call", "sh_",
         "Runs shell commands on the user's computer and returns their output.",
         "{\"type\":\"object\",\"properties\":{\"commands\":{\"type\":\"array\",\"items\":{"
         "\"type\":\"string\"}},\"timeout_ms\":{\"type\":\"integer\"},\"max_output_length\":{"
         "\"type\":\"integer\"}},\"required\":[\"commands\"]}"},
    [SL_TOOL_PATCH] =
        {"apply_patch", "apply_patch_call", "apc_",
         "Creates, changes or deletes a file. The diff has lines that begin with a space, + or -; "
         "of a file that is deleted there is none.",
         "{\"type\":\"object\",\"properties\":{\"operation\":{\"type\":\"object\",\"properties\":{"
         "\"type\":{\"enum\":[\"create_file\",\"update_file\",\"delete_file\"]},\"path\":{"
         "\"type\":\"string\"},\"diff\":{\"type\":\"string\"}},\"required\":[\"type\",\"path\"]}},"
         "\"required\":[\"operation\"]}"},
};

void sl_tool_map_deinit(struct sl_tool_map *m)
{
    json_decref(m->tools);
    m->tools = NULL;
}

const char *sl_tool_item_type(enum sl_tool_kind kind)
{
    return kinds[kind].item;
}

const char *sl_tool_item_prefix(enum sl_tool_kind kind)
{
    return kinds[kind].prefix;
}

/* "functions" is what clients call the tools without a namespace. */
json_t *sl_tool_shown_name(const char *space, const char *name)
{
    size_t n = space != NULL && strcmp(space, "functions") != 0 ? strlen(space) : 0;
    bool joined = n == 0 || (n >= 2 && strcmp(space + n - 2, "__") == 0);
    struct sl_buf b = {0};
    sl_buf_printf(&b, "%s%s%s", n > 0 ? space : "", joined ? "" : "__", name);
    json_t *shown = sl_buf_ok(&b) ? json_stringn(b.data, b.n_bytes) : NULL;
    sl_buf_deinit(&b);
    return shown;
}

/* ---- reading them */

struct reader {
    json_t *out; /* functions */
    struct sl_tool_map *m;
    struct sl_refusal *r;
    bool search; /* the client looks for tools, so that those to be found are not shown */
    bool hosted_search;
    char at[SL_PLACE_BYTES];
};

static const char *responses_tools_type_of(const json_t *v)
{
    return json_string_value(json_object_get(v, "type"));
}

static bool is_client_search(const json_t *tool)
{
    const char *execution = json_string_value(json_object_get(tool, "execution"));
    return execution != NULL && strcmp(execution, "client") == 0;
}

/* Whatever runs on the server's side of the API: OpenAI's own tools, and servers of MCP. */
bool sl_responses_is_hosted(const json_t *tool)
{
    static const char *const types[] = {
        "web_search",       "file_search", "code_interpreter",         "computer",
        "image_generation", "mcp",         "programmatic_tool_calling"};
    const char *type = responses_tools_type_of(tool);
    if (type == NULL)
        return false;
    for (size_t i = 0; i < SL_COUNT(types); i++) {
        size_t n = strlen(types[i]);
        if (strncmp(type, types[i], n) == 0 && (type[n] == '\0' || type[n] == '_'))
            return true;
    }
    if (strcmp(type, "tool_search") == 0)
        return !is_client_search(tool);
    const char *where =
        json_string_value(json_object_get(json_object_get(tool, "environment"), "type"));
    return strcmp(type, "shell") == 0 && (where == NULL || strcmp(where, "local") != 0);
}

static void responses_tools_note_ignored(struct sl_tool_map *m, const char *type)
{
    size_t n = strlen(m->ignored);
    snprintf(m->ignored + n, sizeof m->ignored - n, "%s%.40s", n > 0 ? "," : "", type);
}

static bool is_true(const json_t *tool, const char *member)
{
    return json_is_true(json_object_get(tool, member));
}

/* The one function that a tool becomes; space: NULL, none. */
static int responses_tools_add(struct reader *rd, enum sl_tool_kind kind, const char *space,
                               const char *name, json_t *function)
{
    char field[SL_PLACE_BYTES + 16];
    json_t *shown = sl_tool_shown_name(space, name);
    const char *s = json_string_value(shown);
    snprintf(field, sizeof field, "%s.name", rd->at);
    int rc = s != NULL && function != NULL ? 0 : sl_chat_no_memory(rd->r, rd->at);
    if (rc == 0 && (strlen(s) > SL_MAX_TOOL_NAME || !sl_output_good_name(s, strlen(s))))
        rc = sl_refuse(rd->r, SL_EINVAL, field,
                       "%s must be a word without spaces, quotes and brackets of at most %d bytes, "
                       "got '%.64s'",
                       field, SL_MAX_TOOL_NAME, s);
    if (rc == 0 && json_object_get(rd->m->tools, s) != NULL)
        rc = sl_refuse(rd->r, SL_EINVAL, rd->at, "%s has the name of another tool: %s", rd->at, s);
    json_t *entry =
        json_pack("{s:i, s:s, s:s*}", "kind", (int)kind, "name", name, "namespace", space);
    const char *type = kind == SL_TOOL_CUSTOM ? "custom" : "function";
    json_t *tool = json_pack("{s:s, s:O}", "type", type, type, function);
    bool ok = entry != NULL && tool != NULL && shown != NULL &&
              json_object_set(function, "name", shown) == 0;
    if (rc == 0 && (!ok || json_object_set(rd->m->tools, s, entry) != 0 ||
                    json_array_append(rd->out, tool) != 0))
        rc = sl_chat_no_memory(rd->r, rd->at);
    json_decref(shown);
    json_decref(entry);
    json_decref(tool);
    json_decref(function);
    return rc;
}

static bool responses_tools_copy(json_t *function, const json_t *tool, const char *member)
{
    json_t *v = json_object_get(tool, member);
    return v == NULL || json_is_null(v) || json_object_set(function, member, v) == 0;
}

/* A function or a free-form tool, which may be in a namespace. */
static int read_named(struct reader *rd, const json_t *tool, const char *space)
{
    static const char *const members[] = {"description", "parameters", "strict"};
    static const char *const custom_members[] = {"description", "format"};
    const json_t *name;
    bool custom = strcmp(responses_tools_type_of(tool), "custom") == 0;
    char field[SL_PLACE_BYTES + 16];
    int rc = sl_chat_text(tool, rd->at, "name", &name, rd->r);
    const json_t *parameters = json_object_get(tool, "parameters");
    snprintf(field, sizeof field, "%s.parameters", rd->at);
    if (rc == 0 && !custom && parameters != NULL && !json_is_null(parameters) &&
        !json_is_object(parameters))
        rc = sl_refuse(rd->r, SL_EINVAL, field, "%s must be an object, not %s", field,
                       sl_json_type_name(parameters));
    if (rc != 0 || (is_true(tool, "defer_loading") && rd->search && !rd->hosted_search))
        return rc;
    const char *syntax, *definition;
    snprintf(field, sizeof field, "%s.format", rd->at);
    if (custom)
        rc = sl_free_form_format(json_object_get(tool, "format"), field, &syntax, &definition,
                                 rd->r);
    json_t *function = json_object();
    const char *const *list = custom ? custom_members : members;
    for (size_t i = 0; i < (custom ? SL_COUNT(custom_members) : SL_COUNT(members)) && rc == 0; i++)
        if (function == NULL || !responses_tools_copy(function, tool, list[i]))
            rc = sl_chat_no_memory(rd->r, rd->at);
    if (rc != 0) {
        json_decref(function);
        return rc;
    }
    return responses_tools_add(rd, custom ? SL_TOOL_CUSTOM : SL_TOOL_FUNCTION, space,
                               json_string_value(name), function);
}

static int read_namespace(struct reader *rd, const json_t *tool)
{
    const json_t *name, *tools = json_object_get(tool, "tools"), *inner;
    char at[SL_PLACE_BYTES];
    size_t i;
    int rc = sl_chat_text(tool, rd->at, "name", &name, rd->r);
    snprintf(at, sizeof at, "%.64s", rd->at);
    if (rc == 0 && !json_is_array(tools))
        rc = sl_refuse(rd->r, SL_EINVAL, rd->at, "%s.tools must be an array", rd->at);
    json_array_foreach(tools, i, inner)
    {
        const char *type = responses_tools_type_of(inner);
        snprintf(rd->at, sizeof rd->at, "%.64s.tools[%zu]", at, i);
        if (rc == 0 &&
            (type == NULL || (strcmp(type, "function") != 0 && strcmp(type, "custom") != 0)))
            rc = sl_refuse(rd->r, type != NULL ? SL_EUNSUPPORTED : SL_EINVAL, rd->at,
                           "%s.type must be function or custom", rd->at);
        if (rc == 0)
            rc = read_named(rd, inner, json_string_value(name));
    }
    return rc;
}

static int responses_tools_read_known(struct reader *rd, const json_t *tool, enum sl_tool_kind kind)
{
    json_error_t error;
    json_t *parameters = NULL;
    const json_t *about = NULL;
    if (kind == SL_TOOL_SEARCH) { /* the client says how it searches */
        parameters = json_incref(json_object_get(tool, "parameters"));
        about = json_object_get(tool, "description");
    }
    if (!json_is_object(parameters)) {
        json_decref(parameters);
        parameters =
            sl_json_load_wide(kinds[kind].parameters, strlen(kinds[kind].parameters), 0, &error);
    }
    json_t *function =
        json_pack("{s:s, s:o}", "description",
                  json_is_string(about) ? json_string_value(about) : kinds[kind].description,
                  "parameters", parameters);
    return responses_tools_add(rd, kind, NULL, kinds[kind].type, function);
}

static int responses_tools_read_tool(struct reader *rd, const json_t *tool)
{
    const char *type = responses_tools_type_of(tool);
    if (type == NULL)
        return sl_refuse(rd->r, SL_EINVAL, rd->at, "%s must be an object with a type", rd->at);
    if (sl_responses_is_hosted(tool)) {
        responses_tools_note_ignored(rd->m, type);
        return 0;
    }
    if (strcmp(type, "function") == 0 || strcmp(type, "custom") == 0)
        return read_named(rd, tool, NULL);
    if (strcmp(type, "namespace") == 0)
        return read_namespace(rd, tool);
    for (size_t i = SL_TOOL_SEARCH; i < SL_N_TOOL_KINDS; i++) {
        if (strcmp(type, kinds[i].type) == 0)
            return responses_tools_read_known(rd, tool, (enum sl_tool_kind)i);
    }
    return sl_refuse(rd->r, SL_EUNSUPPORTED, rd->at, "not supported: %s of type %.64s", rd->at,
                     type);
}

static int responses_tools_read_list(struct reader *rd, const json_t *tools, const char *at)
{
    const json_t *tool;
    size_t i;
    int rc = 0;
    json_array_foreach(tools, i, tool)
    {
        snprintf(rd->at, sizeof rd->at, "%s[%zu]", at, i);
        if (rc == 0)
            rc = responses_tools_read_tool(rd, tool);
    }
    return rc;
}

/* Tools that came later: what a search found, and what the client added to the conversation. */
static int read_found(struct reader *rd, const json_t *input)
{
    const json_t *item;
    char at[48];
    size_t i;
    int rc = 0;
    json_array_foreach(input, i, item)
    {
        const char *type = responses_tools_type_of(item);
        const json_t *tools = json_object_get(item, "tools");
        if (type == NULL || rc != 0 || !json_is_array(tools))
            continue;
        bool found = strcmp(type, "tool_search_output") == 0;
        snprintf(at, sizeof at, "input[%zu].tools", i);
        rd->search = !found && rd->search;
        if (found || strcmp(type, "additional_tools") == 0)
            rc = responses_tools_read_list(rd, tools, at);
    }
    return rc;
}

int sl_responses_tools(json_t *root, struct sl_tool_map *m, struct sl_refusal *r)
{
    const json_t *tools = json_object_get(root, "tools"), *tool;
    struct reader rd = {.out = json_array(), .m = m, .r = r};
    size_t i;
    m->tools = json_object();
    int rc = rd.out != NULL && m->tools != NULL ? 0 : sl_chat_no_memory(r, "tools");
    if (rc == 0 && tools != NULL && !json_is_null(tools) && !json_is_array(tools))
        rc = sl_refuse(r, SL_EINVAL, "tools", "tools must be an array, not %s",
                       sl_json_type_name(tools));
    json_array_foreach(tools, i, tool)
    {
        const char *type = responses_tools_type_of(tool);
        bool search = type != NULL && strcmp(type, "tool_search") == 0;
        rd.search |= search;
        rd.hosted_search |= search && !is_client_search(tool);
    }
    if (rc == 0)
        rc = responses_tools_read_list(&rd, tools, "tools");
    if (rc == 0)
        rc = read_found(&rd, json_object_get(root, "input"));
    if (rc == 0 && json_array_size(rd.out) == 0 && m->ignored[0] != '\0')
        rc = sl_refuse(r, SL_EUNSUPPORTED, "tools",
                       "tools: this server cannot run %s, and no other tool is given", m->ignored);
    bool any = tools != NULL || json_array_size(rd.out) > 0;
    if (rc == 0 && any && json_object_set(root, "tools", rd.out) != 0)
        rc = sl_chat_no_memory(r, "tools");
    json_decref(rd.out);
    return rc;
}

/* ---- tool_choice */

/* The function that {type, name} means; NULL: none. */
static const char *responses_tools_find(const struct sl_tool_map *m, const json_t *v)
{
    const char *type = responses_tools_type_of(v),
               *name = json_string_value(json_object_get(v, "name")), *shown;
    const char *space = json_string_value(json_object_get(v, "namespace"));
    json_t *entry;
    if (type == NULL)
        return NULL;
    json_object_foreach(m->tools, shown, entry)
    {
        size_t kind = (size_t)json_integer_value(json_object_get(entry, "kind"));
        const char *own = json_string_value(json_object_get(entry, "name"));
        const char *own_space = json_string_value(json_object_get(entry, "namespace"));
        if (strcmp(type, kinds[kind].type) != 0)
            continue;
        if (kind >= SL_TOOL_SEARCH || (name != NULL && strcmp(name, shown) == 0))
            return shown;
        bool here = space == NULL || (own_space != NULL && strcmp(space, own_space) == 0);
        if (name != NULL && strcmp(name, own) == 0 && here)
            return shown;
    }
    return NULL;
}

/* Of the tools only these may be called. */
static int allow(json_t *root, const struct sl_tool_map *m, const json_t *v, struct sl_refusal *r)
{
    static const char field[] = "tool_choice";
    const char *mode = json_string_value(json_object_get(v, "mode"));
    const json_t *allowed = json_object_get(v, "tools"), *tools = json_object_get(root, "tools");
    const json_t *one, *tool;
    size_t i, k;
    if (!json_is_array(allowed) || mode == NULL ||
        (strcmp(mode, "auto") != 0 && strcmp(mode, "required") != 0))
        return sl_refuse(r, SL_EINVAL, field,
                         "tool_choice of type allowed_tools needs mode, auto or required, and "
                         "tools, an array");
    json_t *left = json_array();
    int rc = left != NULL ? 0 : sl_chat_no_memory(r, field);
    json_array_foreach(allowed, i, one)
    {
        const char *shown = responses_tools_find(m, one);
        json_array_foreach(tools, k, tool)
        {
            const char *type =
                responses_tools_type_of(tool); /* its member of this name has the rest */
            const char *name =
                json_string_value(json_object_get(json_object_get(tool, type), "name"));
            if (rc == 0 && shown != NULL && name != NULL && strcmp(name, shown) == 0 &&
                json_array_append(left, (json_t *)(uintptr_t)tool) != 0)
                rc = sl_chat_no_memory(r, field);
        }
    }
    if (rc == 0 && (json_object_set(root, "tools", left) != 0 ||
                    json_object_set_new(root, field, json_string(mode)) != 0))
        rc = sl_chat_no_memory(r, field);
    json_decref(left);
    return rc;
}

int sl_responses_choice(json_t *root, const struct sl_tool_map *m, struct sl_refusal *r)
{
    static const char field[] = "tool_choice";
    const json_t *v = json_object_get(root, field), *name;
    if (!json_is_object(v)) /* words are the same there */
        return 0;
    const char *type = responses_tools_type_of(v);
    if (type == NULL)
        return sl_refuse(r, SL_EINVAL, "tool_choice.type", "tool_choice.type must be a string");
    if (strcmp(type, "allowed_tools") == 0)
        return allow(root, m, v, r);
    if (sl_responses_is_hosted(v) && responses_tools_find(m, v) == NULL)
        return sl_refuse(r, SL_EUNSUPPORTED, "tool_choice.type",
                         "tool_choice.type: this server cannot run %.64s", type);
    bool named = strcmp(type, "function") == 0 || strcmp(type, "custom") == 0;
    int rc = named ? sl_chat_text(v, field, "name", &name, r) : 0;
    const char *shown = rc == 0 ? responses_tools_find(m, v) : NULL;
    if (rc == 0 && shown == NULL)
        rc = named ? sl_refuse(r, SL_EINVAL, field, "tool_choice: there is no %s tool named %.64s",
                               type, json_string_value(name))
                   : sl_refuse(r, SL_EUNSUPPORTED, "tool_choice.type",
                               "tool_choice.type: there is no tool of type %.64s", type);
    if (rc != 0)
        return rc;
    json_t *out = json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", shown);
    return json_object_set_new(root, field, out) == 0 ? 0 : sl_chat_no_memory(r, field);
}

/* ---- calls */

static const json_t *entry_of(const struct sl_tool_map *m, const struct sl_part *call)
{
    return call->name.n_bytes > 0 ? json_object_getn(m->tools, call->name.data, call->name.n_bytes)
                                  : NULL;
}

enum sl_tool_kind sl_tool_kind_of(const struct sl_tool_map *m, const struct sl_part *call)
{
    const json_t *entry = entry_of(m, call);
    return entry == NULL ? SL_TOOL_FUNCTION
                         : (enum sl_tool_kind)json_integer_value(json_object_get(entry, "kind"));
}

/* A call's arguments; NULL: they are no object (yet). */
static json_t *responses_tools_open_arguments(const struct sl_part *call)
{
    struct sl_refusal ignored = {0};
    json_t *v = NULL;
    if (call->ended && call->text.n_bytes > 0 &&
        sl_json_parse_object(call->text.data, call->text.n_bytes, &v, &ignored) != 0)
        v = NULL;
    return v;
}

void sl_put_tool_name(struct sl_buf *b, const struct sl_tool_map *m, const struct sl_part *call)
{
    const json_t *entry = entry_of(m, call);
    if (entry != NULL)
        sl_json_put(b, json_object_get(entry, "name"));
    else
        sl_buf_json_string(b, call->name.data, call->name.n_bytes);
}

/* The members of an action that are there, of the type they have to have. */
static void put_action(struct sl_buf *b, const json_t *args, const char *list,
                       const char *const *members)
{
    const json_t *v = json_object_get(args, list);
    sl_buf_printf(b, "\"%s\":", list);
    if (json_is_array(v))
        sl_json_put(b, v);
    else if (json_is_string(v)) {
        sl_buf_putc(b, '[');
        sl_json_put(b, v);
        sl_buf_putc(b, ']');
    } else
        sl_buf_puts(b, "[]");
    for (size_t i = 0; members[i] != NULL; i++) {
        v = json_object_get(args, members[i]);
        if (v == NULL)
            continue;
        sl_buf_printf(b, ",\"%s\":", members[i]);
        sl_json_put(b, v);
    }
}

static void put_known_call(struct sl_buf *b, enum sl_tool_kind kind, const struct sl_part *call)
{
    static const char *const local[] = {"timeout_ms", "working_directory", "user", NULL};
    static const char *const shell[] = {"timeout_ms", "max_output_length", NULL};
    json_t *args = responses_tools_open_arguments(call);
    const json_t *v;
    switch (kind) {
    case SL_TOOL_SEARCH:
        sl_buf_puts(b, ",\"execution\":\"client\",\"arguments\":");
        sl_buf_put(b, args != NULL ? call->text.data : "{}", args != NULL ? call->text.n_bytes : 2);
        break;
    case SL_TOOL_LOCAL_SHELL:
        v = json_object_get(args, "env");
        sl_buf_puts(b, ",\"action\":{\"type\":\"exec\",\"env\":");
        if (json_is_object(v))
            sl_json_put(b, v);
        else
            sl_buf_puts(b, "{}");
        sl_buf_putc(b, ',');
        put_action(b, args, "command", local);
        sl_buf_putc(b, '}');
        break;
    case SL_TOOL_SHELL:
        sl_buf_puts(b, ",\"action\":{");
        put_action(b, args, "commands", shell);
        sl_buf_putc(b, '}');
        break;
    default:
        v = json_object_get(args, "operation");
        sl_buf_puts(b, ",\"operation\":");
        if (json_is_object(v))
            sl_json_put(b, v);
        else
            sl_buf_puts(b, "{\"type\":\"update_file\",\"path\":\"\",\"diff\":\"\"}");
    }
    json_decref(args);
}

void sl_put_tool_call(struct sl_buf *b, const struct sl_tool_map *m, const struct sl_part *call)
{
    enum sl_tool_kind kind = sl_tool_kind_of(m, call);
    const json_t *entry = entry_of(m, call);
    sl_buf_puts(b, ",\"call_id\":");
    sl_buf_json_string(b, call->id.data, call->id.n_bytes);
    if (kind >= SL_TOOL_SEARCH) {
        put_known_call(b, kind, call);
        return;
    }
    sl_buf_puts(b, ",\"name\":");
    sl_put_tool_name(b, m, call);
    const json_t *space = json_object_get(entry, "namespace");
    if (space != NULL) {
        sl_buf_puts(b, ",\"namespace\":");
        sl_json_put(b, space);
    }
    if (kind == SL_TOOL_CUSTOM) {
        sl_buf_puts(b, ",\"input\":");
        sl_free_form_put(b, call);
        return;
    }
    sl_buf_puts(b, ",\"arguments\":");
    sl_buf_json_string(b, call->text.data, call->text.n_bytes);
}
