/* SPDX-License-Identifier: MIT
 * tools.c - the tools of a request: which there are, which may or must be called, and what that
 * means for the output.
 */
#include "base/check.h"
#include "base/json_load.h"
#include "base/limits.h"
#include "server/api/free_form.h"
#include "server/api/params.h"
#include "text/output/output_tags.h"
#include "text/tokenizer/tokenizer.h"

#include <stdio.h>
#include <string.h>

/* ---- fields */

static const json_t *tools_member(const json_t *v, const char *name)
{
    const json_t *m = json_object_get(v, name);
    return m == NULL || json_is_null(m) ? NULL : m;
}

static int tools_read_name(const json_t *tool, const char *field, const char **out,
                           struct sl_refusal *r)
{
    const json_t *name = tools_member(tool, "name");
    if (name == NULL)
        return sl_refuse(r, SL_EINVAL, field, "%s.name is missing", field);
    char path[64];
    snprintf(path, sizeof path, "%s.name", field);
    int rc = sl_json_cstr(name, path, SL_MAX_TOOL_NAME, out, r);
    if (rc == 0 && !sl_output_good_name(*out, strlen(*out)))
        rc = sl_refuse(r, SL_EINVAL, path,
                       "%s must be a word without spaces, quotes and brackets, got '%.64s'", path,
                       *out);
    return rc;
}

/* What a client calls the places that are function and function.parameters here. */
struct tool_names {
    const char *function, *parameters;
};

static const struct tool_names *tools_names_of(enum sl_endpoint endpoint)
{
    static const struct tool_names chat = {".function", "parameters"},
                                   messages = {"", "input_schema"}, responses = {"", "parameters"};
    return endpoint == SL_ENDPOINT_MESSAGES    ? &messages
           : endpoint == SL_ENDPOINT_RESPONSES ? &responses
                                               : &chat;
}

/* A tool that takes text, as the function that the model is shown in its place. */
static int open_free_form(struct sl_params *p, size_t i, const char *field, const json_t *custom,
                          struct sl_refusal *r)
{
    json_t *function, *grammar, *tools = (json_t *)(uintptr_t)p->tools;
    const char *name;
    int rc = json_is_object(custom) ? tools_read_name(custom, field, &name, r)
                                    : sl_refuse(r, SL_EINVAL, field, "%s must be an object", field);
    if (rc == 0)
        rc = sl_free_form_function(custom, field, &function, &grammar, r);
    if (rc != 0)
        return rc;
    if (p->free_form == NULL)
        p->free_form = json_object();
    json_t *tool = json_pack("{s:s, s:o}", "type", "function", "function", function);
    bool ok = json_object_get(p->free_form, name) == NULL /* else refused by its name */
                  ? json_object_set_new(p->free_form, name, grammar) == 0
                  : (json_decref(grammar), true);
    if (!ok || json_array_set_new(tools, i, tool) != 0)
        return sl_refuse(r, SL_ENOMEM, field, "out of memory");
    return 0;
}

static int tools_read_tool(struct sl_params *p, size_t i, struct sl_refusal *r)
{
    const struct tool_names *names = tools_names_of(p->endpoint);
    const json_t *tool = json_array_get(p->tools, i), *type, *function, *v;
    const char *name, *other, *member_name = names->function;
    char field[40], path[64];
    bool strict = false;
    int rc = 0;
    snprintf(field, sizeof field, "tools[%zu]", i);
    if (!json_is_object(tool))
        return sl_refuse(r, SL_EINVAL, field, "%s must be an object, not %s", field,
                         sl_json_type_name(tool));
    type = tools_member(tool, "type");
    if (type != NULL && !json_is_string(type))
        return sl_refuse(r, SL_EINVAL, field, "%s.type must be a string, not %s", field,
                         sl_json_type_name(type));
    bool custom = type != NULL && strcmp(json_string_value(type), "custom") == 0;
    if (type != NULL && !custom && strcmp(json_string_value(type), "function") != 0)
        return sl_refuse(r, SL_EUNSUPPORTED, field, "not supported: %s of type %.64s", field,
                         json_string_value(type));
    if (custom) {
        member_name = names->function[0] != '\0' ? ".custom" : "";
        snprintf(field, sizeof field, "tools[%zu]%s", i, member_name);
        rc = open_free_form(p, i, field, tools_member(tool, "custom"), r);
        if (rc != 0)
            return rc;
        tool = json_array_get(p->tools, i);
    }
    function = tools_member(tool, "function");
    snprintf(field, sizeof field, "tools[%zu]%s", i, member_name);
    if (!json_is_object(function))
        return sl_refuse(r, SL_EINVAL, field, "%s must be an object", field);
    rc = tools_read_name(function, field, &name, r);
    for (size_t k = 0; k < i && rc == 0; k++) {
        other = json_string_value(
            json_object_get(json_object_get(json_array_get(p->tools, k), "function"), "name"));
        if (strcmp(other, name) == 0)
            rc =
                sl_refuse(r, SL_EINVAL, field, "%s has the name of tools[%zu]: %s", field, k, name);
    }
    snprintf(path, sizeof path, "%s.description", field);
    if (rc == 0 && (v = tools_member(function, "description")) != NULL && !json_is_string(v))
        rc = sl_refuse(r, SL_EINVAL, path, "%s must be a string, not %s", path,
                       sl_json_type_name(v));
    snprintf(path, sizeof path, "%s.%s", field, names->parameters);
    if (rc == 0 && (v = tools_member(function, "parameters")) != NULL && !json_is_object(v))
        rc = sl_refuse(r, SL_EINVAL, path, "%s must be an object, not %s", path,
                       sl_json_type_name(v));
    snprintf(path, sizeof path, "%s.strict", field);
    if (rc == 0 && (v = tools_member(function, "strict")) != NULL)
        rc = sl_json_bool(v, path, &strict, r);
    p->any_strict = p->any_strict || strict;
    return rc;
}

static bool has_tool(const json_t *tools, const char *name)
{
    const json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        if (strcmp(json_string_value(json_object_get(function, "name")), name) == 0)
            return true;
    }
    return false;
}

static int tools_read_choice(struct sl_params *p, bool any, struct sl_refusal *r)
{
    static const char field[] = "tool_choice";
    const char *named =
        tools_names_of(p->endpoint)->function[0] != '\0' ? "tool_choice.function" : field;
    const json_t *v = p->tool_choice, *type, *function;
    bool custom = false;
    p->tool_mode = any ? SL_TOOLS_AUTO : SL_TOOLS_NONE;
    if (v == NULL)
        return 0;
    if (!json_is_string(v) && !json_is_object(v))
        return sl_refuse(r, SL_EINVAL, field, "tool_choice must be a string or an object, not %s",
                         sl_json_type_name(v));
    if (json_is_string(v)) {
        const char *s = json_string_value(v);
        if (strcmp(s, "none") == 0)
            p->tool_mode = SL_TOOLS_NONE;
        else if (strcmp(s, "required") == 0 || strcmp(s, "any") == 0) /* Mistral's word for it */
            p->tool_mode = SL_TOOLS_REQUIRED;
        else if (strcmp(s, "auto") != 0)
            return sl_refuse(r, SL_EINVAL, field,
                             "tool_choice must be none, auto, required or a function");
    } else {
        type = tools_member(v, "type");
        custom = p->endpoint == SL_ENDPOINT_CHAT && json_is_string(type) &&
                 strcmp(json_string_value(type), "custom") == 0;
        if (!custom && (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0))
            return sl_refuse(r, json_is_string(type) ? SL_EUNSUPPORTED : SL_EINVAL,
                             "tool_choice.type", "tool_choice.type must be function or custom");
        named = custom ? "tool_choice.custom" : named;
        function = tools_member(v, custom ? "custom" : "function");
        if (!json_is_object(function))
            return sl_refuse(r, SL_EINVAL, named, "%s must be an object", named);
        int rc = tools_read_name(function, named, &p->tool_name, r);
        if (rc != 0)
            return rc;
        p->tool_mode = SL_TOOLS_NAMED;
    }
    if (p->tool_mode >= SL_TOOLS_REQUIRED && !any)
        return sl_refuse(r, SL_EINVAL, field, "tool_choice needs tools");
    if (p->tool_mode == SL_TOOLS_NAMED &&
        (custom ? json_object_get(p->free_form, p->tool_name) == NULL
                : !has_tool(p->tools, p->tool_name)))
        return sl_refuse(r, SL_EINVAL, named, "%s: there is no tool named %s", named, p->tool_name);
    return 0;
}

int sl_params_tools(struct sl_params *p, struct sl_refusal *r)
{
    int rc = 0;
    if (p->tools != NULL && !json_is_array(p->tools))
        return sl_refuse(r, SL_EINVAL, "tools", "tools must be an array, not %s",
                         sl_json_type_name(p->tools));
    size_t n = json_array_size(p->tools);
    if (n > SL_MAX_TOOLS)
        return sl_refuse(r, SL_ELIMIT, "tools", "tools has more than %d entries", SL_MAX_TOOLS);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = tools_read_tool(p, i, r);
    return rc != 0 ? rc : tools_read_choice(p, n > 0, r);
}

/* ---- what they mean for the output */

/* Special tokens that the marks of a format are made of, by their text. */
static json_t *special_tokens(const struct sl_formats *f, const struct sl_engine *eng)
{
    const struct sl_tokenizer *tok = sl_engine_tokenizer(eng);
    json_t *map = json_object();
    for (int32_t i = 0; i < f->n_marker_ids && map != NULL; i++) {
        size_t n;
        const char *piece = sl_tokenizer_piece(tok, f->marker_ids[i], &n);
        if (json_object_setn_new(map, piece, n, json_integer(f->marker_ids[i])) != 0) {
            json_decref(map);
            map = NULL;
        }
    }
    return map;
}

/* With tools that may be called, a schema for the answer is for answers that call none. Where one
 * must be called there are no such answers, and as in OpenAI's API response_format has no say. */
static int take_answer(struct sl_params *p, json_t **out, struct sl_refusal *r)
{
    const struct sl_constraint_desc *d = &p->constraint_desc;
    json_error_t error;
    *out = NULL;
    if (!p->constrained ||
        (p->tool_mode != SL_TOOLS_AUTO && strncmp(p->constraint_field, "response_format", 15) == 0))
        return 0;
    if (p->tool_mode != SL_TOOLS_AUTO ||
        (d->kind != SL_GRAMMAR_JSON_SCHEMA && d->kind != SL_GRAMMAR_JSON_OBJECT))
        return sl_refuse(r, SL_EINVAL, p->constraint_field, "%s cannot be combined with %s",
                         p->constraint_field,
                         p->tool_mode == SL_TOOLS_AUTO ? "tools" : "this tool_choice");
    *out = d->kind == SL_GRAMMAR_JSON_OBJECT
               ? json_pack("{s:s}", "type", "object")
               : sl_json_load_wide(d->text, d->n_text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (*out == NULL)
        return sl_refuse(r, SL_EINVAL, p->constraint_field, "%s is not JSON", p->constraint_field);
    return 0;
}

static int constrain(struct sl_params *p, const struct sl_engine *eng, struct sl_refusal *r)
{
    struct sl_output_calls want = {.tools_format = p->tools_format,
                                   .tools = p->tools,
                                   .grammars = p->free_form,
                                   .name = p->tool_name,
                                   .must = p->tool_mode >= SL_TOOLS_REQUIRED,
                                   .one = !p->parallel_tool_calls || p->tool_name != NULL};
    json_t *doc = NULL, *special = special_tokens(p->formats, eng), *answer = NULL;
    struct sl_buf *b = &p->constraint_text;
    int rc = special == NULL ? sl_refuse(r, SL_ENOMEM, "tools", "out of memory")
                             : take_answer(p, &answer, r);
    want.special_tokens = special;
    want.answer = answer;
    if (rc == 0) {
        sl_refusal_param(r, "tools");
        rc = sl_output_tags(&want, &doc, &r->err);
    }
    if (rc == 0) {
        sl_buf_clear(b);
        b->max_bytes = SL_MAX_GRAMMAR_TEXT;
        if (!sl_json_dump_exact(b, doc, p->body, p->n_body))
            rc = sl_refuse(r, SL_ENOMEM, "tools", "tools are too large, or out of memory");
    }
    json_decref(doc);
    json_decref(special);
    json_decref(answer);
    if (rc != 0)
        return rc;
    p->constrained = true;
    snprintf(p->constraint_field, sizeof p->constraint_field, "tools");
    p->constraint_desc = (struct sl_constraint_desc){.kind = SL_GRAMMAR_STRUCTURAL,
                                                     .text = b->data,
                                                     .n_text = b->n_bytes,
                                                     .style = p->json_style};
    return 0;
}

/* A budget that cannot be kept to. */
static int no_budget(struct sl_params *p, const char *why, struct sl_refusal *r)
{
    static const char field[] = "thinking_token_budget";
    p->thinking_token_budget = -1;
    return p->budget_is_wish ? 0 : sl_refuse(r, SL_EUNSUPPORTED, field, "%s%s", field, why);
}

int sl_params_formats(struct sl_params *p, const struct sl_formats *formats,
                      const struct sl_engine *eng, struct sl_refusal *r)
{
    bool must = p->tool_mode >= SL_TOOLS_REQUIRED;
    if (p->thinking_token_budget >= 0 && formats->reasoning == NULL) {
        int rc = no_budget(p,
                           ": the chat template does not tell how this model reasons; start the "
                           "server with --reasoning-parser",
                           r);
        if (rc != 0)
            return rc;
    }
    p->formats = formats;
    p->sampling.marker_ids = formats->marker_ids;
    p->sampling.n_marker_ids = formats->n_marker_ids;
    p->tools_format = p->tool_mode != SL_TOOLS_NONE ? formats->tools : NULL;
    if (must && p->tools_format == NULL)
        p->tools_format = SL_OUTPUT_JSON_CALLS; /* a list of calls, as vLLM has it */
    if (must || (p->tools_format != NULL && (p->any_strict || p->constrained)))
        return constrain(p, eng, r);
    return 0;
}

/* ---- reasoning in front of it */

/* Text as tokens; their number, or a refusal. */
static int tools_encode(const struct sl_engine *eng, const char *text, int32_t *out, int32_t room,
                        int32_t *n, struct sl_refusal *r)
{
    int32_t *ids;
    size_t n_ids;
    int rc = sl_tokenizer_encode(sl_engine_tokenizer(eng), text, strlen(text),
                                 SL_ENCODE_PARSE_SPECIAL, &ids, &n_ids, &r->err);
    if (rc != 0)
        return rc;
    *n = n_ids <= (size_t)room ? (int32_t)n_ids : 0;
    memcpy(out, ids, (size_t)*n * sizeof *out);
    sl_free(ids);
    return 0;
}

int sl_params_thinking(struct sl_params *p, const struct sl_engine *eng, const char *prompt,
                       size_t n, struct sl_refusal *r)
{
    const char *format = p->formats->reasoning, *forced, *close, *open;
    bool budget = p->thinking_token_budget >= 0;
    int32_t id[1], n_ids = 0;
    if (format == NULL || (!p->constrained && !budget))
        return 0;
    open = sl_output_reasoning_open(format);
    close = sl_output_answer_open(format, &forced);
    if (open == NULL && p->constrained && p->tools_format != NULL)
        return !budget ? 0 /* its grammar has the channels */
                       : no_budget(p, " cannot be combined with tools that constrain", r);
    bool inside = sl_output_begins_inside(format, p->start);
    int rc = !inside && open != NULL ? tools_encode(eng, open, id, 1, &n_ids, r) : 0;
    if (rc == 0 && !inside && n_ids == 0) {
        bool told = sl_output_prompt_start(format, prompt, n) != SL_OUTPUT_START_AUTO;
        return told || !budget
                   ? 0
                   : no_budget(p, ": this model begins to reason with more than one token", r);
    }
    p->thinking = (struct sl_thinking){.close = close,
                                       .open_id = n_ids == 1 ? id[0] : -1,
                                       .inside = inside,
                                       .budget = p->thinking_token_budget,
                                       .forced = p->thinking_ids};
    if (rc == 0)
        rc = tools_encode(eng, forced, p->thinking_ids, (int32_t)SL_COUNT(p->thinking_ids),
                          &p->thinking.n_forced, r);
    return rc;
}
