/* SPDX-License-Identifier: MIT
 * output_tags_args.c - arguments by their schema, in the notation of a format.
 *
 * Where a format is JSON, the schema goes to the grammar as it is. Elsewhere its properties are
 * taken apart, so that only what can be taken apart is supported: properties, required, and of
 * strings enum, const, length and pattern; other keywords are refused by name. Every value of
 * another type is JSON inside of the format and may have any schema.
 */
#include "base/check.h"
#include "base/json_load.h"
#include "text/output/output_tags_impl.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NEST = 16, MAX_ORDERED = 48 };

static void refuse(struct out_tags *m, const char *what, const char *name)
{
    if (m->rc == 0)
        m->rc = sl_fail(m->err, SL_EUNSUPPORTED,
                        "%s: not supported in this format of calls: %s%.60s", m->label, what, name);
}

static bool is_one_of(const char *s, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(s, list[i]) == 0)
            return true;
    return false;
}

/* Refuses every keyword but the given ones and those that say nothing about values. */
static bool only_keywords(struct out_tags *m, const json_t *schema, const char *const *list,
                          size_t n)
{
    static const char *const silent[] = {
        "title",       "description", "default",    "examples", "$schema",  "$id",    "$defs",
        "definitions", "$ref",        "deprecated", "$comment", "readOnly", "strict", "writeOnly"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        if (!is_one_of(key, list, n) && !is_one_of(key, silent, SL_COUNT(silent))) {
            refuse(m, "", key);
            return false;
        }
    }
    return true;
}

/* ---------------------------------------------------------------- JSON */

static bool has_ref(struct out_tags *m, const json_t *v, int depth)
{
    bool found = false;
    const char *key;
    json_t *value;
    size_t i;
    if (depth > 64)
        return false;
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        const char *ref = strcmp(key, "$ref") == 0 ? json_string_value(value) : NULL;
        if (ref != NULL && strncmp(ref, "#/$defs/", 8) != 0 &&
            strncmp(ref, "#/definitions/", 14) != 0)
            refuse(m, "$ref to ", ref);
        found = ref != NULL || has_ref(m, value, depth + 1) || found;
    }
    json_array_foreach((json_t *)(uintptr_t)v, i, value) found =
        has_ref(m, value, depth + 1) || found;
    return found;
}

static json_t *schema_node(struct out_tags *m, json_t *schema)
{
    json_t *n = out_node(m, "json_schema");
    out_set(m, n, "json_schema", schema);
    out_set(m, n, "label", json_string(m->label));
    return n;
}

/* The schema of a part, cut out of the whole. */
static json_t *part_node(struct out_tags *m, const json_t *schema)
{
    static const char *const members[] = {"$defs", "definitions"};
    json_t *copy = json_copy((json_t *)(uintptr_t)schema);
    bool refs = has_ref(m, schema, 0);
    for (int i = 0; i < 2 && refs; i++) {
        json_t *defs = json_object_get(m->schema, members[i]);
        if (defs != NULL && json_is_object(copy))
            out_set(m, copy, members[i], json_incref(defs));
    }
    return schema_node(m, copy);
}

/* ---------------------------------------------------------------- text of a grammar */

/* close: the mark behind which the text would be over, and which it must not have; NULL: none, it
 * is the content of a JSON string. */
static json_t *grammar_node(struct out_tags *m, const char *close)
{
    json_t *n = out_node(m, "grammar");
    out_set(m, n, "grammar", json_incref(json_object_get(m->grammar, "definition")));
    out_set(m, n, "syntax", json_incref(json_object_get(m->grammar, "syntax")));
    out_set(m, n, "label", json_string(m->label));
    if (close == NULL)
        out_set(m, n, "spelling", json_string("json"));
    else
        out_set(m, n, "excludes", json_pack("[s]", close));
    if (close != NULL && (m->t->flags & OUT_TRIM_SPACE) != 0) /* space there is the marks' */
        out_set(m, n, "pattern", json_string("^([^ \\t\\r\\n]([^]*[^ \\t\\r\\n])?)?$"));
    return n;
}

/* "TEXT" */
static json_t *grammar_string(struct out_tags *m)
{
    json_t *seq = out_list(m, "sequence");
    out_put(m, seq, "\"");
    out_add(m, seq, grammar_node(m, NULL));
    out_put(m, seq, "\"");
    return seq;
}

/* {"input": "TEXT"} */
static json_t *grammar_object(struct out_tags *m)
{
    json_t *seq = out_list(m, "sequence");
    out_add(m, seq, out_regex(m, "\\{" OUT_WS "\"" SL_OUTPUT_TEXT_ARGUMENT "\"" OUT_WS ":" OUT_WS));
    out_add(m, seq, grammar_string(m));
    out_add(m, seq, out_regex(m, OUT_WS "\\}"));
    return seq;
}

json_t *out_tags_json(struct out_tags *m)
{
    if (m->grammar != NULL)
        return grammar_object(m);
    json_t *schema = m->schema != NULL ? json_copy((json_t *)(uintptr_t)m->schema) : json_object();
    const json_t *type = json_object_get(schema, "type");
    if (type == NULL)
        out_set(m, schema, "type", json_string("object"));
    else if (!json_is_string(type) || strcmp(json_string_value(type), "object") != 0)
        refuse(m, "a type other than object", "");
    return schema_node(m, schema);
}

/* ---------------------------------------------------------------- strings as they are */

/* Any text that the schema of a string allows, up to the mark that ends it. */
static json_t *raw_string(struct out_tags *m, const json_t *schema, const char *end)
{
    static const char *const known[] = {"type", "minLength", "maxLength", "pattern"};
    static const char *const names[][2] = {
        {"minLength", "min_length"}, {"maxLength", "max_length"}, {"pattern", "pattern"}};
    json_t *n = out_node(m, "any_text");
    if (schema != NULL && !only_keywords(m, schema, known, SL_COUNT(known)))
        return n;
    out_set(m, n, "excludes", json_pack("[s]", end));
    for (int i = 0; i < 3; i++) {
        json_t *v = json_object_get(schema, names[i][0]);
        if (v != NULL)
            out_set(m, n, names[i][1], json_incref(v));
    }
    return n;
}

/* ---------------------------------------------------------------- values */

static json_t *value(struct out_tags *m, const json_t *schema, int depth);

static json_t *string_value(struct out_tags *m, const json_t *schema)
{
    const char *end = m->t->body == OUT_PARAMS ? m->t->param.close : m->t->quote;
    json_t *text = m->grammar != NULL ? grammar_node(m, end) : raw_string(m, schema, end);
    if (m->t->body == OUT_PARAMS)
        return text;
    json_t *seq = out_list(m, "sequence");
    out_put(m, seq, m->t->quote);
    out_add(m, seq, text);
    out_put(m, seq, m->t->quote);
    return seq;
}

static json_t *fixed_value(struct out_tags *m, const json_t *v)
{
    json_t *seq = out_list(m, "sequence");
    const char *end = m->t->body == OUT_PARAMS ? m->t->param.close : m->t->quote;
    if (!json_is_string(v)) {
        char *text = json_dumps(v, JSON_ENCODE_ANY);
        if (json_is_object(v) || json_is_array(v))
            refuse(m, "enum or const with an array or object", "");
        out_put(m, seq, text != NULL ? text : "");
        m->no_memory = m->no_memory || text == NULL;
        sl_json_free_text(text);
        return seq;
    }
    if (strstr(json_string_value(v), end) != NULL ||
        strlen(json_string_value(v)) != json_string_length(v))
        refuse(m, "an enum or const that holds ", end);
    out_put(m, seq, m->t->body == OUT_PARAMS ? NULL : m->t->quote);
    out_put(m, seq, json_string_value(v));
    out_put(m, seq, m->t->body == OUT_PARAMS ? NULL : m->t->quote);
    return seq;
}

/* anyOf and oneOf, a list of types: each on its own. */
static json_t *alternatives(struct out_tags *m, const json_t *list, int depth)
{
    json_t *any = out_list(m, "or");
    for (size_t i = 0; i < json_array_size(list) && m->rc == 0; i++) {
        const json_t *v = json_array_get(list, i);
        json_t *typed = json_is_string(v) ? json_pack("{s:O}", "type", v) : NULL;
        out_add(m, any, value(m, typed != NULL ? typed : v, depth + 1));
        json_decref(typed);
    }
    return any;
}

static void ordered(struct out_tags *m, json_t *seq, const json_t *schema, int depth,
                    const char *assign);

/* OUT_QUOTED: arrays and objects are no JSON either. */
static json_t *nested_value(struct out_tags *m, const json_t *schema, bool object, int depth)
{
    static const char *const known[] = {"type", "items"};
    json_t *seq = out_list(m, "sequence");
    if (object) {
        out_put(m, seq, "{");
        ordered(m, seq, schema, depth + 1, ":");
        out_put(m, seq, "}");
        return seq;
    }
    if (!only_keywords(m, schema, known, SL_COUNT(known)))
        return seq;
    json_t *items = out_wrap(m, "plus", value(m, json_object_get(schema, "items"), depth + 1));
    out_set(m, items, "separator", out_regex(m, ", ?"));
    out_put(m, seq, "[");
    out_add(m, seq, out_wrap(m, "optional", items));
    out_put(m, seq, "]");
    return seq;
}

/* A value as the format spells it. */
static json_t *value(struct out_tags *m, const json_t *schema, int depth)
{
    static const char *const listed[] = {"type", "enum"}, *const single[] = {"type", "const"};
    static const char *const unions[] = {"anyOf", "oneOf"};
    const json_t *list, *one;
    schema = out_resolve(m->schema, schema);
    unsigned types = out_types_of(m->schema, schema, 0);
    bool json = m->t->body == OUT_PYTHON;
    if (depth > MAX_NEST)
        refuse(m, "schemas nested deeper than 16 levels", "");
    if (m->rc != 0)
        return out_node(m, "any_text");
    if (json && m->grammar != NULL)
        return grammar_string(m);
    if (json || (m->t->body == OUT_PARAMS && types != 0 && (types & T_STRING) == 0))
        return schema != NULL ? part_node(m, schema) : schema_node(m, json_object());
    if ((list = json_object_get(schema, "enum")) != NULL) {
        json_t *any = out_list(m, "or");
        (void)only_keywords(m, schema, listed, SL_COUNT(listed));
        for (size_t i = 0; i < json_array_size(list); i++)
            out_add(m, any, fixed_value(m, json_array_get(list, i)));
        return any;
    }
    if ((one = json_object_get(schema, "const")) != NULL) {
        (void)only_keywords(m, schema, single, SL_COUNT(single));
        return fixed_value(m, one);
    }
    for (int i = 0; i < 2; i++)
        if ((list = json_object_get(schema, unions[i])) != NULL) {
            (void)only_keywords(m, schema, &unions[i], 1);
            return alternatives(m, list, depth);
        }
    if (json_is_array(json_object_get(schema, "type"))) {
        static const char *const plain[] = {"type"};
        (void)only_keywords(m, schema, plain, 1);
        return alternatives(m, json_object_get(schema, "type"), depth);
    }
    if (types == 0 || (types & T_STRING))
        return string_value(m, types == 0 ? NULL : schema);
    if (types & (T_ARRAY | T_OBJECT))
        return nested_value(m, schema, (types & T_OBJECT) != 0, depth);
    return part_node(m, schema);
}

/* ---------------------------------------------------------------- objects */

static const char *const of_objects[] = {"type", "properties", "required", "additionalProperties"};

static bool is_required(const json_t *schema, const char *key)
{
    const json_t *list = json_object_get(schema, "required"), *v;
    size_t i;
    json_array_foreach(list, i, v)
    {
        if (json_is_string(v) && strcmp(json_string_value(v), key) == 0)
            return true;
    }
    return false;
}

/* Is every required name among the properties? Others have no schema here, so no spelling. */
static void check_required(struct out_tags *m, const json_t *schema)
{
    const json_t *list = json_object_get(schema, "required"), *v;
    const json_t *properties = json_object_get(schema, "properties");
    size_t i;
    json_array_foreach(list, i, v)
    {
        if (!json_is_string(v) || json_object_get(properties, json_string_value(v)) == NULL)
            refuse(m, "required without a property ",
                   json_is_string(v) ? json_string_value(v) : "");
    }
}

/* May it have members that are not listed, of any kind? */
static bool is_open(struct out_tags *m, const json_t *schema)
{
    const json_t *more = json_object_get(schema, "additionalProperties");
    if (json_is_object(more) && json_object_size(more) > 0)
        refuse(m, "additionalProperties with a schema", "");
    if (json_object_get(schema, "$ref") != NULL)
        refuse(m, "$ref of the whole schema", "");
    if (m->rc != 0)
        return false;
    return schema == NULL ||
           (json_object_get(schema, "properties") == NULL && !json_is_false(more));
}

static void put_param(struct out_tags *m, json_t *seq, const char *key, json_t *content,
                      const char *type)
{
    const struct out_tools *t = m->t;
    bool newline = (t->flags & OUT_TRIM_NEWLINE) != 0;
    out_space(m, seq);
    out_put(m, seq, t->param.key_open);
    if (key != NULL) {
        out_put(m, seq, key);
    } else {
        json_t *any = out_node(m, "any_text");
        out_set(m, any, "pattern", json_string("^[^<>\"\\s]+$"));
        out_set(m, any, "max_length", json_integer(64));
        out_add(m, seq, any);
    }
    out_put(m, seq, t->param.key_end);
    if (t->param.type_end != NULL) {
        out_put(m, seq, type);
        out_put(m, seq, t->param.type_end);
    }
    if (t->param.open != NULL) {
        out_space(m, seq);
        out_put(m, seq, t->param.open);
    }
    /* A grammar's text may have a newline at its ends, so that those of the marks must be there. */
    const char *ends = m->grammar != NULL ? "\n" : "\n?";
    if (newline)
        out_add(m, seq, out_regex(m, ends));
    out_add(m, seq, content);
    if (newline)
        out_add(m, seq, out_regex(m, ends));
    out_put(m, seq, t->param.close);
}

/* What the attribute says of a value: string="true", or the name of its type. */
static const char *type_text(const struct out_tags *m, unsigned types)
{
    static const char *const names[] = {"string", "integer", "number", "boolean",
                                        "null",   "array",   "object"};
    bool flag = m->t->param.key_end != NULL && strstr(m->t->param.key_end, "string=") != NULL;
    bool text = types == 0 || (types & T_STRING) != 0;
    if (flag)
        return text ? "true" : "false";
    if (types == (T_NUMBER | T_INTEGER))
        return "number";
    for (unsigned i = 0; i < SL_COUNT(names) && !text; i++)
        if (types == 1u << i)
            return names[i];
    return "string";
}

void out_tags_params(struct out_tags *m, json_t *seq)
{
    const char *key;
    json_t *v;
    if (m->schema != NULL && !only_keywords(m, m->schema, of_objects, SL_COUNT(of_objects)))
        return;
    check_required(m, m->schema);
    if (is_open(m, m->schema)) {
        json_t *param = out_list(m, "sequence");
        put_param(m, param, NULL, raw_string(m, NULL, m->t->param.close), type_text(m, T_STRING));
        out_add(m, seq, out_wrap(m, "star", param));
        return;
    }
    json_object_foreach(json_object_get(m->schema, "properties"), key, v)
    {
        json_t *param = out_list(m, "sequence");
        unsigned types = out_types_of(m->schema, v, 0);
        if (m->t->param.type_end != NULL && (types & T_STRING) && types != T_STRING)
            refuse(m, "a property that is a string or something else: ", key);
        put_param(m, param, key, value(m, v, 0), type_text(m, types));
        out_add(m, seq, is_required(m->schema, key) ? param : out_wrap(m, "optional", param));
    }
}

/* KEY assign VALUE */
static json_t *pair(struct out_tags *m, const char *key, const json_t *schema, int depth,
                    const char *assign)
{
    json_t *seq = out_list(m, "sequence");
    for (const char *s = key; *s != '\0'; s++)
        if (strchr(" \t\r\n:=,()[]{}<>\"'\\", *s) != NULL)
            refuse(m, "the name ", key);
    out_put(m, seq, key);
    out_put(m, seq, assign);
    out_add(m, seq, value(m, schema, depth));
    return seq;
}

/* The properties behind the k-th of list, each with its comma. */
static void put_rest(struct out_tags *m, json_t *seq, const json_t *schema, const char *const *list,
                     size_t n, size_t k, int depth, const char *assign)
{
    const json_t *properties = json_object_get(schema, "properties");
    for (size_t i = k + 1; i < n; i++) {
        json_t *one = out_list(m, "sequence");
        out_add(m, one, out_regex(m, ", ?"));
        out_add(m, one, pair(m, list[i], json_object_get(properties, list[i]), depth, assign));
        out_add(m, seq, is_required(schema, list[i]) ? one : out_wrap(m, "optional", one));
    }
}

/* Pairs with commas between them: those that are required come first, so that a comma is certain
 * to stand between two. */
static void ordered(struct out_tags *m, json_t *seq, const json_t *schema, int depth,
                    const char *assign)
{
    const char *list[MAX_ORDERED], *key;
    const json_t *properties = json_object_get(schema, "properties");
    size_t n = 0, n_required = 0;
    json_t *v;
    if (schema != NULL && !only_keywords(m, schema, of_objects, SL_COUNT(of_objects)))
        return;
    check_required(m, schema);
    if (json_object_size(properties) > MAX_ORDERED || is_open(m, schema) || m->rc != 0) {
        refuse(m, "an object without properties, or with more than 48", "");
        return;
    }
    for (int pass = 0; pass < 2; pass++)
        json_object_foreach((json_t *)(uintptr_t)properties, key, v)
        {
            if (is_required(schema, key) == (pass == 0))
                list[n++] = key;
            n_required += pass == 0 && is_required(schema, key);
        }
    json_t *any = out_list(m, "or");
    for (size_t k = 0; k < (n_required > 0 ? 1 : n) && m->rc == 0; k++) {
        json_t *from = out_list(m, "sequence");
        out_add(m, from, pair(m, list[k], json_object_get(properties, list[k]), depth, assign));
        put_rest(m, from, schema, list, n, k, depth, assign);
        out_add(m, any, from);
    }
    if (n == 0)
        json_decref(any);
    else
        out_add(m, seq, n_required > 0 ? any : out_wrap(m, "optional", any));
}

/* Arguments of any kind: names and simple values. */
static void any_values(struct out_tags *m, json_t *seq, const char *assign)
{
    json_t *one = out_list(m, "sequence"), *kinds = out_list(m, "or");
    out_add(m, one, out_regex(m, "[A-Za-z_][A-Za-z0-9_]{0,63}"));
    out_put(m, one, assign);
    if (m->t->body == OUT_PYTHON) {
        out_add(m, kinds, schema_node(m, json_object()));
    } else {
        out_add(m, kinds, string_value(m, NULL));
        out_add(m, kinds, out_regex(m, "-?[0-9]{1,18}(\\.[0-9]{1,18})?|true|false|null"));
    }
    out_add(m, one, kinds);
    json_t *many = out_wrap(m, "plus", one);
    out_set(m, many, "separator", out_regex(m, ", ?"));
    out_add(m, seq, out_wrap(m, "optional", many));
}

void out_tags_values(struct out_tags *m, json_t *seq)
{
    bool python = m->t->body == OUT_PYTHON;
    if (is_open(m, m->schema))
        any_values(m, seq, python ? "=" : ":");
    else
        ordered(m, seq, m->schema, 0, python ? "=" : ":");
    out_put(m, seq, python ? ")" : "}");
}
