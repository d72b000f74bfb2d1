/* SPDX-License-Identifier: MIT
 * output_tags.c - sections, names and what stands around arguments; the arguments themselves are in
 * output_tags_args.c.
 *
 * Rule "call" is one call of any tool, written once however often sections refer to it.
 */
#include "text/output/output_tags.h"

#include "base/check.h"
#include "text/output/output_tags_impl.h"

#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------------- nodes */

json_t *out_node(struct out_tags *m, const char *type)
{
    json_t *n = json_pack("{s:s}", "type", type);
    if (n == NULL)
        m->no_memory = true;
    return n;
}

/* Takes the value over. */
void out_set(struct out_tags *m, json_t *node, const char *key, json_t *value)
{
    if (json_object_set_new(node, key, value) != 0)
        m->no_memory = true;
}

json_t *out_list(struct out_tags *m, const char *type)
{
    json_t *n = out_node(m, type);
    out_set(m, n, "elements", json_array());
    return n;
}

void out_add(struct out_tags *m, json_t *list, json_t *node)
{
    if (json_array_append_new(json_object_get(list, "elements"), node) != 0)
        m->no_memory = true;
}

json_t *out_text_node(struct out_tags *m, const char *s)
{
    json_t *n = out_node(m, "const_string");
    out_set(m, n, "value", json_string(s));
    return n;
}

json_t *out_regex(struct out_tags *m, const char *pattern)
{
    json_t *n = out_node(m, "regex");
    out_set(m, n, "pattern", json_string(pattern));
    return n;
}

json_t *out_wrap(struct out_tags *m, const char *type, json_t *content)
{
    json_t *n = out_node(m, type);
    out_set(m, n, "content", content);
    return n;
}

void out_put(struct out_tags *m, json_t *list, const char *s)
{
    if (s != NULL && s[0] != '\0')
        out_add(m, list, out_text_node(m, s));
}

void out_space(struct out_tags *m, json_t *list)
{
    out_add(m, list, out_regex(m, OUT_WS));
}

static json_t *call_ref(struct out_tags *m, const char *rule)
{
    json_t *n = out_node(m, "ref");
    out_set(m, n, "name", json_string(rule));
    return n;
}

/* One or more, `separator` (a regular expression) between them. */
static json_t *repeated(struct out_tags *m, json_t *content, const char *separator)
{
    json_t *n = out_wrap(m, "plus", content);
    if (!m->c->one)
        out_set(m, n, "separator", out_regex(m, separator));
    else
        out_set(m, n, "max", json_integer(1));
    return n;
}

/* ---------------------------------------------------------------- tools */

/* The i-th tool's function, NULL: it may not be called. */
static const json_t *callable(const struct out_tags *m, size_t i)
{
    const json_t *tool = json_array_get(m->c->tools, i);
    const json_t *fn = json_object_get(tool, "function");
    const char *name = json_string_value(json_object_get(fn, "name"));
    if (name == NULL || (m->c->name != NULL && strcmp(name, m->c->name) != 0))
        return NULL;
    return fn;
}

typedef void (*one_fn)(struct out_tags *m, json_t *seq, const char *name);

/* Or, over the tools, of what `one` puts. */
static json_t *each_tool(struct out_tags *m, one_fn one)
{
    json_t *any = out_list(m, "or");
    for (size_t i = 0; i < json_array_size(m->c->tools) && m->rc == 0; i++) {
        const json_t *fn = callable(m, i);
        if (fn == NULL)
            continue;
        const char *name = json_string_value(json_object_get(fn, "name"));
        const json_t *grammar = json_object_get(m->c->grammars, name);
        m->grammar = json_object_get(grammar, "definition") != NULL ? grammar : NULL;
        bool strict =
            m->c->must || m->grammar != NULL || json_is_true(json_object_get(fn, "strict"));
        const json_t *parameters = json_object_get(fn, "parameters");
        if (m->grammar != NULL)
            snprintf(m->label, sizeof m->label, "the format of tool %.128s", name);
        else
            snprintf(m->label, sizeof m->label, "tools[%zu].function.parameters", i);
        m->schema = strict && json_is_object(parameters) ? parameters : NULL;
        json_t *seq = out_list(m, "sequence");
        one(m, seq, name);
        out_add(m, any, seq);
    }
    return any;
}

/* ---------------------------------------------------------------- calls */

/* "KEY" : */
static void put_key(struct out_tags *m, json_t *seq, const char *key)
{
    char text[OUT_FIELD + 8];
    snprintf(text, sizeof text, "\"%s\"", key);
    out_put(m, seq, text);
    out_add(m, seq, out_regex(m, OUT_WS ":" OUT_WS));
}

static void json_call_rest(struct out_tags *m, json_t *seq, const char *name)
{
    char text[OUT_FIELD + 8];
    bool key = (m->t->flags & OUT_NAME_IS_KEY) != 0;
    snprintf(text, sizeof text, "%s\"", name);
    out_put(m, seq, text);
    if (key) {
        out_add(m, seq, out_regex(m, OUT_WS ":" OUT_WS));
    } else {
        out_add(m, seq, out_regex(m, OUT_WS "," OUT_WS));
        put_key(m, seq, m->t->args_key != NULL ? m->t->args_key : "arguments");
    }
    out_add(m, seq, out_tags_json(m));
}

/* {"name": "NAME", "arguments": {...}} */
static json_t *json_call(struct out_tags *m)
{
    const struct out_tools *t = m->t;
    json_t *seq = out_list(m, "sequence");
    out_add(m, seq, out_regex(m, "\\{" OUT_WS));
    if (t->id_key != NULL) {
        json_t *id = out_list(m, "sequence");
        put_key(m, id, t->id_key);
        out_add(m, id, out_regex(m, "\"[A-Za-z0-9_-]{1,32}\"" OUT_WS "," OUT_WS));
        out_add(m, seq, out_wrap(m, "optional", id));
    }
    if ((t->flags & OUT_NAME_IS_KEY) == 0)
        put_key(m, seq, t->name_key != NULL ? t->name_key : "name");
    out_put(m, seq, "\"");
    out_add(m, seq, each_tool(m, json_call_rest));
    if (t->flags & OUT_SHORT_ID) {
        json_t *id =
            out_regex(m, OUT_WS "," OUT_WS "\"id\"" OUT_WS ":" OUT_WS "\"[A-Za-z0-9]{9}\"");
        out_add(m, seq, out_wrap(m, "optional", id));
    }
    out_add(m, seq, out_regex(m, OUT_WS "\\}"));
    return seq;
}

static void marked_call_rest(struct out_tags *m, json_t *seq, const char *name)
{
    const struct out_tools *t = m->t;
    out_put(m, seq, name);
    if (t->flags & OUT_NAME_IN_ID)
        out_add(m, seq, out_regex(m, ":[0-9]{1,3}"));
    if (t->body == OUT_PARAMS) {
        out_put(m, seq, t->name_end);
        if (t->name_more != NULL) {
            out_add(m, seq, out_regex(m, "[0-9]{1,3}"));
            out_put(m, seq, t->name_more);
        }
        out_tags_params(m, seq);
    } else if (t->body == OUT_JSON_ARGS) {
        out_space(m, seq);
        out_put(m, seq, t->name_end);
        out_space(m, seq);
        out_add(m, seq, out_tags_json(m));
    } else {
        out_put(m, seq, t->name_end);
        out_tags_values(m, seq);
    }
}

/* call_open [id id_end] NAME name_end BODY call_close */
static json_t *marked_call(struct out_tags *m)
{
    const struct out_tools *t = m->t;
    json_t *seq = out_list(m, "sequence");
    out_put(m, seq, t->call_open);
    if (t->id_end != NULL) {
        out_add(m, seq, out_regex(m, "[A-Za-z0-9_-]{1,32}"));
        out_put(m, seq, t->id_end);
    }
    if (t->flags & OUT_NAME_IN_ID)
        out_put(m, seq, "functions.");
    out_add(m, seq, each_tool(m, marked_call_rest));
    if (t->call_close != NULL) {
        out_space(m, seq);
        out_put(m, seq, t->call_close);
    }
    return seq;
}

static void harmony_rest(struct out_tags *m, json_t *seq, const char *name)
{
    out_put(m, seq, name);
    out_space(m, seq);
    json_t *channel = out_list(m, "sequence"), *kind = out_list(m, "sequence");
    out_put(m, channel, "<|channel|>");
    out_put(m, channel, "commentary");
    out_space(m, channel);
    out_add(m, seq, out_wrap(m, "optional", channel));
    out_put(m, kind, "<|constrain|>");
    out_put(m, kind, "json");
    out_add(m, seq, out_wrap(m, "optional", kind));
    out_put(m, seq, "<|message|>");
    out_add(m, seq, out_tags_json(m));
}

/* ---------------------------------------------------------------- sections */

/* [call, call] */
static json_t *call_list(struct out_tags *m, const char *rule)
{
    json_t *seq = out_list(m, "sequence");
    out_add(m, seq, out_regex(m, "\\[" OUT_WS));
    out_add(m, seq, repeated(m, call_ref(m, rule), OUT_WS "," OUT_WS));
    out_add(m, seq, out_regex(m, OUT_WS "\\]"));
    return seq;
}

/* Calls as JSON: one, or a list. */
static json_t *json_calls(struct out_tags *m, const char *rule)
{
    const struct out_tools *t = m->t;
    char separator[40];
    json_t *any = out_list(m, "or"), *one = call_ref(m, rule);
    if (t->sep != '\0') {
        snprintf(separator, sizeof separator, OUT_WS "%c" OUT_WS, t->sep);
        one = repeated(m, one, separator);
    }
    out_add(m, any, one);
    if (t->flags & OUT_LIST)
        out_add(m, any, call_list(m, rule));
    return any;
}

/* What follows a section's opening marker, its closing marker included. */
static json_t *section_rest(struct out_tags *m, const struct out_pair *pair)
{
    const struct out_tools *t = m->t;
    json_t *seq = out_list(m, "sequence"), *any;
    bool ends_name = t->call_open == NULL && t->name_end != NULL && out_is_space(t->name_end[0]);
    if (pair->open[0] != '\0' && !ends_name) /* white space would be the end of an empty name */
        out_space(m, seq);
    switch (t->body) {
    case OUT_JSON_CALL:
        out_add(m, seq, json_calls(m, "call"));
        break;
    case OUT_PYTHON: /* without a marker always a list */
        any = out_list(m, "or");
        out_add(m, any, call_list(m, "call"));
        if (pair->open[0] != '\0')
            out_add(m, any, repeated(m, call_ref(m, "call"), OUT_WS));
        out_add(m, seq, any);
        break;
    default:
        any = out_list(m, "or");
        out_add(m, any,
                t->call_open != NULL && pair->close != NULL
                    ? repeated(m, call_ref(m, "call"), OUT_WS)
                    : call_ref(m, "call"));
        if (t->flags & OUT_OR_JSON)
            out_add(m, any, json_calls(m, "json_call"));
        out_add(m, seq, any);
    }
    if (pair->close != NULL) {
        out_space(m, seq);
        out_put(m, seq, pair->close);
    }
    return seq;
}

static json_t *section(struct out_tags *m, const struct out_pair *pair)
{
    json_t *seq = out_list(m, "sequence");
    out_put(m, seq, pair->open);
    out_add(m, seq, section_rest(m, pair));
    return seq;
}

/* Free text, in which special tokens may be as well: markers around answers are. */
static json_t *special_text(struct out_tags *m, const char *type)
{
    json_t *text = out_node(m, type);
    out_set(m, text, "special_tokens", json_true());
    return text;
}

/* Messages of other channels may come first; a call ends the turn. */
static json_t *harmony_calls(struct out_tags *m)
{
    json_t *seq = out_list(m, "sequence"), *message = out_list(m, "sequence");
    json_t *text = special_text(m, "any_text");
    out_set(m, text, "excludes",
            json_pack("[sssss]", "<|channel|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>"));
    out_put(m, message, "<|channel|>analysis<|message|>");
    out_add(m, message, text);
    out_put(m, message, "<|end|><|start|>assistant");
    out_add(m, seq, out_wrap(m, "optional", message));
    json_t *channel = out_list(m, "sequence");
    out_put(m, channel, "<|channel|>commentary");
    out_space(m, channel);
    out_add(m, seq, out_wrap(m, "optional", channel));
    out_add(m, seq, out_regex(m, " ?to=functions\\."));
    out_add(m, seq, call_ref(m, "call"));
    return seq;
}

/* Where calls may begin without a marker, a bracket begins a list of them. */
static bool has_pair(const struct out_tags *m, int i)
{
    const struct out_tools *t = m->t;
    bool bare = false;
    for (int k = 0; k < OUT_PAIRS && t->pairs[k].open != NULL; k++)
        bare = bare || t->pairs[k].open[0] == '\0';
    return i < OUT_PAIRS && t->pairs[i].open != NULL && !(bare && t->pairs[i].open[0] == '[');
}

/* The output is calls and nothing else. */
static json_t *only_calls(struct out_tags *m)
{
    const struct out_tools *t = m->t;
    if (t->body == OUT_HARMONY)
        return harmony_calls(m);
    json_t *seq = out_list(m, "sequence"), *any = out_list(m, "or"), *bare = out_list(m, "or");
    for (int i = 0; i < OUT_PAIRS; i++)
        if (has_pair(m, i))
            out_add(m, t->pairs[i].open[0] != '\0' && t->sep == '\0' ? any : bare,
                    section(m, &t->pairs[i]));
    out_space(m, seq);
    if (json_array_size(json_object_get(any, "elements")) > 0)
        out_add(m, bare, repeated(m, any, OUT_WS));
    else
        json_decref(any);
    out_add(m, seq, bare);
    return seq;
}

/* How an answer that is no call may not begin, where calls have no marker. */
static json_t *not_prefix(struct out_tags *m)
{
    struct sl_buf b = {0};
    sl_buf_puts(&b, OUT_WS);
    if (m->t->body == OUT_PYTHON) {
        sl_buf_puts(&b, "\\[" OUT_WS "[A-Za-z0-9_.]{1,128}" OUT_WS "\\(");
    } else {
        sl_buf_puts(&b, "(\\[" OUT_WS ")?\\{" OUT_WS
                        "\"(name|tool_name|function|arguments|parameters|id|"
                        "call_id|tool_call_id|type)\"");
    }
    json_t *out = sl_buf_ok(&b) ? json_stringn(b.data, b.n_bytes) : NULL;
    if (out == NULL)
        m->no_memory = true;
    sl_buf_deinit(&b);
    return out;
}

/* Text, in which a marker begins calls. */
static json_t *text_and_calls(struct out_tags *m)
{
    const struct out_tools *t = m->t;
    json_t *tags = json_array(), *triggers = json_array(), *bare = NULL;
    for (int i = 0; i < OUT_PAIRS; i++) {
        const struct out_pair *pair = &t->pairs[i];
        bool harmony = t->body == OUT_HARMONY;
        if (!has_pair(m, i))
            continue;
        if (pair->open[0] == '\0') {
            bare = section(m, pair);
            continue;
        }
        const char *open = harmony ? "to=functions." : pair->open;
        json_t *tag = out_wrap(m, "tag", harmony ? call_ref(m, "call") : section_rest(m, pair));
        out_set(m, tag, "begin", json_string(open));
        out_set(m, tag, "end", json_string(""));
        if (json_array_append_new(tags, tag) != 0 ||
            json_array_append_new(triggers, json_string(open)) != 0)
            m->no_memory = true;
    }
    json_t *text;
    if (json_array_size(tags) > 0) {
        text = special_text(m, "triggered_tags");
        out_set(m, text, "triggers", triggers);
        out_set(m, text, "tags", tags);
        out_set(m, text, "stop_after_first", json_boolean(m->c->one));
    } else {
        text = special_text(m, "any_text");
        json_decref(tags);
        json_decref(triggers);
    }
    if (bare == NULL)
        return text;
    out_set(m, text, "not_prefix", not_prefix(m));
    json_t *any = out_list(m, "or");
    out_add(m, any, bare);
    out_add(m, any, text);
    return any;
}

static json_t *answer_or_calls(struct out_tags *m)
{
    json_t *any = out_list(m, "or"), *answer = out_node(m, "json_schema");
    out_set(m, answer, "json_schema", json_deep_copy(m->c->answer));
    out_add(m, any, only_calls(m));
    out_add(m, any, answer);
    return any;
}

static json_t *make_rules(struct out_tags *m)
{
    json_t *rules = json_object();
    switch (m->t->body) {
    case OUT_JSON_CALL:
        out_set(m, rules, "call", json_call(m));
        break;
    case OUT_HARMONY:
        out_set(m, rules, "call", each_tool(m, harmony_rest));
        break;
    default:
        out_set(m, rules, "call", marked_call(m));
        if (m->t->flags & OUT_OR_JSON)
            out_set(m, rules, "json_call", json_call(m));
    }
    return rules;
}

int sl_output_tags(const struct sl_output_calls *calls, json_t **out, struct sl_error *err)
{
    struct out_tags m = {.c = calls, .t = out_find_tools(calls->tools_format), .err = err};
    *out = NULL;
    if (m.t == NULL)
        return sl_fail(err, SL_EINVAL, "unknown tool call parser \"%.100s\"", calls->tools_format);
    json_t *doc = out_node(&m, "structural_tag");
    out_set(&m, doc, "rules", make_rules(&m));
    if (calls->special_tokens != NULL)
        out_set(&m, doc, "special_tokens", json_deep_copy(calls->special_tokens));
    out_set(&m, doc, "format",
            calls->must             ? only_calls(&m)
            : calls->answer != NULL ? answer_or_calls(&m)
                                    : text_and_calls(&m));
    if (m.rc == 0 && m.no_memory)
        m.rc = sl_fail(err, SL_ENOMEM, "out of memory");
    if (m.rc != 0)
        json_decref(doc);
    else
        *out = doc;
    return m.rc;
}
