/* SPDX-License-Identifier: MIT
 * output_params.c - arguments as marked keys and values, made a JSON object while they stream.
 *
 * A value's type is what the format says, or else what the tool's schema says, or else string.
 * Strings stream; so do arrays and objects once their first byte is there. What may be one of
 * several types is kept until it ends: it is JSON if it is a value of one of them, else a string.
 */
#include "base/str.h"
#include "text/output/output.h"

#include <math.h>
#include <string.h>
#include <strings.h>

enum { V_START, V_STRING, V_JSON, V_JSON_DONE, V_KEEP };

static const struct {
    const char *name;
    unsigned type;
} type_names[] = {{"string", T_STRING},   {"integer", T_INTEGER}, {"number", T_NUMBER | T_INTEGER},
                  {"boolean", T_BOOLEAN}, {"null", T_NULL},       {"array", T_ARRAY},
                  {"object", T_OBJECT}};

static unsigned type_of_name(const char *name)
{
    for (size_t i = 0; name != NULL && i < sizeof type_names / sizeof *type_names; i++)
        if (strcmp(type_names[i].name, name) == 0)
            return type_names[i].type;
    return 0;
}

static unsigned type_of_value(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_STRING:
        return T_STRING;
    case JSON_INTEGER:
        return T_INTEGER;
    case JSON_REAL:
        return T_NUMBER | T_INTEGER;
    case JSON_TRUE:
    case JSON_FALSE:
        return T_BOOLEAN;
    case JSON_NULL:
        return T_NULL;
    case JSON_ARRAY:
        return T_ARRAY;
    default:
        return T_OBJECT;
    }
}

/* What a reference inside of root names: "#/$defs/x"; another schema as it is. */
const json_t *out_resolve(const json_t *root, const json_t *schema)
{
    for (int i = 0; i < 8; i++) {
        const char *ref = json_string_value(json_object_get(schema, "$ref"));
        const json_t *to = root;
        if (ref == NULL || strncmp(ref, "#/", 2) != 0)
            return schema;
        for (const char *s = ref + 2; *s != '\0' && to != NULL;) {
            size_t n = strcspn(s, "/");
            to = json_object_getn(to, s, n);
            s += n + (s[n] == '/');
        }
        schema = to;
    }
    return schema;
}

/* 0: the schema does not say. */
unsigned out_types_of(const json_t *root, const json_t *schema, int depth)
{
    SL_ASSERT(depth >= 0 && depth <= 4);
    static const char *const any_of[] = {"anyOf", "oneOf", "allOf"};
    schema = out_resolve(root, schema);
    const json_t *type = json_object_get(schema, "type");
    const json_t *values = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    unsigned types = type_of_name(json_string_value(type));
    for (size_t i = 0; i < json_array_size(type); i++)
        types |= type_of_name(json_string_value(json_array_get(type, i)));
    if (type != NULL)
        return types;
    for (size_t i = 0; i < json_array_size(values); i++)
        types |= type_of_value(json_array_get(values, i));
    if (one != NULL)
        types |= type_of_value(one);
    for (int k = 0; k < 3 && depth < 4; k++) {
        const json_t *list = json_object_get(schema, any_of[k]);
        for (size_t i = 0; i < json_array_size(list); i++)
            types |= out_types_of(root, json_array_get(list, i), depth + 1);
    }
    return types;
}

/* ---------------------------------------------------------------- values */

static void value_string_begin(struct sl_output *p)
{
    SL_ASSERT(p->begun && p->param.mode != V_STRING);
    out_args(p, "\"");
    p->param.mode = V_STRING;
}

/* One byte of the value, its markers and their newlines taken off. */
static void value_byte(struct sl_output *p, char c)
{
    int r;
    SL_ASSERT(p->begun && p->param.mode <= V_KEEP);
    switch (p->param.mode) {
    case V_START: /* the first byte decides whether an array or object streams */
        if (out_is_space(c))
            sl_buf_putc(&p->param.text, c);
        else if ((c == '{' && (p->param.types & T_OBJECT)) ||
                 (c == '[' && (p->param.types & T_ARRAY))) {
            out_json_begin(&p->json);
            p->param.mode = p->param.types & T_STRING ? V_KEEP : V_JSON;
            value_byte(p, c);
        } else {
            p->param.mode = V_KEEP;
            value_byte(p, c);
        }
        return;
    case V_STRING:
        out_args_byte(p, c);
        return;
    case V_JSON:
        r = out_json_step(&p->json, c);
        if (r < 0) {
            out_fail(p);
            return;
        }
        out_emit(p, SL_OUTPUT_CALL_ARGS, &c, 1);
        if (r > 0)
            p->param.mode = V_JSON_DONE;
        return;
    case V_JSON_DONE:
        if (!out_is_space(c))
            out_fail(p);
        return;
    default:
        sl_buf_putc(&p->param.text, c);
        if (p->param.text.n_bytes > OUT_HOLD) { /* too long for anything but a string */
            value_string_begin(p);
            for (size_t i = 0; i < p->param.text.n_bytes; i++)
                out_args_byte(p, p->param.text.data[i]);
        }
    }
}

static bool same_word(const char *s, size_t n, const char *word)
{
    return n == strlen(word) && strncasecmp(s, word, n) == 0;
}

/* The kept text as JSON of one of the types, or NULL. True and None are how templates print them.
 */
static const char *as_json(unsigned types, const char *s, size_t *n)
{
    double x;
    SL_ASSERT(types != 0 && types <= (T_ANY | T_STRING));
    if ((types & T_NULL) && *n == 4 && (memcmp(s, "null", 4) == 0 || memcmp(s, "None", 4) == 0)) {
        *n = 4;
        return "null";
    }
    if ((types & T_BOOLEAN) && same_word(s, *n, "true"))
        return "true";
    if ((types & T_BOOLEAN) && same_word(s, *n, "false"))
        return "false";
    if ((types & (T_NUMBER | T_INTEGER)) && sl_parse_double(s, *n, &x) &&
        ((types & T_NUMBER) || x == floor(x))) /* 2.0 is an integer, to JSON Schema */
        return s;
    if (*n > 0 && ((s[0] == '{' && (types & T_OBJECT)) || (s[0] == '[' && (types & T_ARRAY))) &&
        out_json_is_whole(s, *n))
        return s;
    return NULL;
}

static void kept_value(struct sl_output *p)
{
    const char *s = p->param.text.data != NULL ? p->param.text.data : "";
    size_t n = p->param.text.n_bytes, from = 0, to = n;
    while (from < n && out_is_space(s[from]))
        from++;
    while (to > from && out_is_space(s[to - 1]))
        to--;
    SL_ASSERT(from <= to && to <= n);
    size_t n_json = to - from;
    const char *json = as_json(p->param.types, s + from, &n_json);
    if (json != NULL) {
        out_emit(p, SL_OUTPUT_CALL_ARGS, json, n_json);
        return;
    }
    value_string_begin(p);
    for (size_t i = 0; i < n; i++)
        out_args_byte(p, s[i]);
    out_args(p, "\"");
}

static void next_param(struct sl_output *p);

static void value_end(struct sl_output *p)
{
    SL_ASSERT(p->begun && p->param.mode <= V_KEEP);
    if (!sl_buf_ok(&p->param.text)) {
        p->no_memory = true;
        return;
    }
    if (p->param.mode == V_JSON) { /* cut off in the middle */
        out_fail(p);
        return;
    }
    if (p->param.mode == V_STRING)
        out_args(p, "\"");
    else if (p->param.mode != V_JSON_DONE)
        kept_value(p);
    out_commit(p);
    next_param(p);
}

/* Of the n bytes in the hold: how many may belong to the closing marker's white space? */
static size_t trimmed(const struct sl_output *p, const char *s, size_t n)
{
    unsigned flags = p->tools->flags;
    size_t k = 0;
    SL_ASSERT(n <= p->hold.n_bytes);
    if (flags & OUT_TRIM_SPACE) {
        while (k < n && k < OUT_SPACE && out_is_space(s[k]))
            k++;
        return k;
    }
    return (flags & OUT_TRIM_NEWLINE) && n > 0 && s[0] == '\n' ? 1 : 0;
}

/* The hold is what may belong to the closing marker. */
static void value_more(struct sl_output *p, char c)
{
    const char *close = p->tools->param.close;
    unsigned flags = p->tools->flags;
    bool all = (flags & OUT_TRIM_SPACE) != 0;
    SL_ASSERT(close != NULL && close[0] != '\0' && p->begun);
    if (p->param.lead && (all ? out_is_space(c) : (flags & OUT_TRIM_NEWLINE) && c == '\n')) {
        p->param.lead = all;
        out_commit(p);
        return;
    }
    p->param.lead = false;
    while (p->hold.n_bytes > 0 && p->begun) {
        const char *s = p->hold.data;
        size_t n = p->hold.n_bytes, k = trimmed(p, s, n), m = strlen(close);
        if (n - k <= m && memcmp(s + k, close, n - k) == 0) {
            if (n - k == m)
                value_end(p);
            return;
        }
        char first = s[0];
        value_byte(p, first);
        if (p->begun)
            out_hold_shift(p, 1);
    }
}

/* ---------------------------------------------------------------- keys */

static void value_begin(struct sl_output *p, char c)
{
    (void)c;
    SL_ASSERT(p->begun && p->param.types != 0 && p->n_field <= OUT_FIELD);
    sl_buf_clear(&p->param.text);
    p->param.lead = true;
    p->param.mode = V_START;
    p->state = value_more;
    out_commit(p);
    out_args(p, p->param.any ? ", " : "{");
    p->param.any = true;
    out_args(p, "\"");
    for (size_t i = 0; i < p->n_field; i++)
        out_args_byte(p, p->field[i]);
    out_args(p, "\": ");
    if (p->param.types == T_STRING)
        value_string_begin(p);
}

/* The attribute says string="true", or names a type. The key is kept where the id was. */
static void got_type(struct sl_output *p, char c)
{
    unsigned types;
    out_take_field(p);
    if (strcmp(p->field, "true") == 0)
        types = T_STRING;
    else if (strcmp(p->field, "false") == 0)
        types = T_ANY;
    else
        types = type_of_name(p->field);
    p->param.types = types != 0 ? types : T_STRING;
    SL_ASSERT(p->param.n_key <= sizeof p->param.key);
    memcpy(p->field, p->param.key, p->param.n_key);
    p->n_field = p->param.n_key;
    value_begin(p, c);
}

static void got_key(struct sl_output *p, char c)
{
    const struct out_tools *t = p->tools;
    out_take_field(p);
    if (p->n_field == 0 || p->n_field > OUT_FIELD) {
        out_fail(p);
        return;
    }
    SL_ASSERT(p->n_field <= sizeof p->param.key && p->field[p->n_field] == '\0');
    const json_t *properties = json_object_get(p->schema, "properties");
    unsigned types = out_types_of(p->schema, json_object_getn(properties, p->field, p->n_field), 0);
    p->param.types = types != 0 ? types : T_STRING;
    if (t->param.type_end != NULL) {
        memcpy(p->param.key, p->field, p->n_field);
        p->param.n_key = p->n_field;
        out_read(p, t->param.type_end, got_type, NULL, NULL);
    } else if (t->param.open != NULL) {
        out_expect(p, t->param.open, value_begin, NULL, NULL);
    } else {
        value_begin(p, c);
    }
}

static void key_opened(struct sl_output *p, char c)
{
    (void)c;
    out_read(p, p->tools->param.key_end, got_key, NULL, NULL);
}

static void closed(struct sl_output *p, char c)
{
    (void)c;
    out_args(p, p->param.any ? "}" : "{}");
    out_commit(p);
    out_end(p, true);
    out_after_call(p);
}

static void next_param(struct sl_output *p)
{
    SL_ASSERT(p->begun && p->tools->body == OUT_PARAMS);
    out_expect(p, p->tools->param.key_open, key_opened, p->tools->call_close, closed);
}

void out_params_begin(struct sl_output *p)
{
    p->param.any = false;
    next_param(p);
}

/* The answer ends inside a value: what might have become its closing marker is part of it. */
void out_params_finish(struct sl_output *p)
{
    SL_ASSERT(p->finishing && p->begun);
    if (p->state != value_more)
        return;
    while (p->hold.n_bytes > 0 && p->begun) {
        value_byte(p, p->hold.data[0]);
        if (p->begun)
            out_hold_shift(p, 1);
    }
    if (p->begun && p->param.mode != V_STRING && p->param.mode != V_JSON)
        out_emit(p, SL_OUTPUT_CALL_ARGS, p->param.text.data, p->param.text.n_bytes);
}
