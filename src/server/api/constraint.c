/* SPDX-License-Identifier: MIT
 * constraint.c - what an output must be: OpenAI's response_format, vLLM's structured_outputs and
 * its older guided_* fields, llama.cpp's grammar and json_schema, SGLang's regex, ebnf and
 * structural_tag. At most one of them.
 */
#include "base/buf.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "server/api/params.h"

#include <stdio.h>
#include <string.h>

struct source { /* what was found */
    enum sl_grammar_kind kind;
    const json_t *value; /* NULL: nothing is asked for */
    bool as_json;        /* its text is the value written as JSON, else the string itself */
    char field[64];
};

static int constraint_take(struct source *out, const char *field, enum sl_grammar_kind kind,
                           const json_t *v, struct sl_refusal *r)
{
    const char *want = NULL;
    bool text = json_is_string(v);
    switch (kind) {
    case SL_GRAMMAR_JSON_SCHEMA: /* vLLM takes a schema as text too */
        want = text || json_is_object(v) || json_is_boolean(v) ? NULL : "an object";
        break;
    case SL_GRAMMAR_STRUCTURAL:
        want = text || json_is_object(v) ? NULL : "an object";
        break;
    case SL_GRAMMAR_CHOICE:
        want = json_is_array(v) ? NULL : "an array of strings";
        break;
    case SL_GRAMMAR_REGEX:
    case SL_GRAMMAR_EBNF:
        want = text ? NULL : "a string";
        break;
    case SL_GRAMMAR_JSON_OBJECT:
        break;
    }
    if (want != NULL)
        return sl_refuse(r, SL_EINVAL, field, "%s must be %s, not %s", field, want,
                         sl_json_type_name(v));
    /* Clients of several releases of vLLM send one constraint under its old and its new name. */
    if (out->value != NULL && out->kind == kind && json_equal(out->value, v))
        return 0;
    if (out->value != NULL)
        return sl_refuse(r, SL_EINVAL, field, "%s and %s cannot be combined", out->field, field);
    out->kind = kind;
    out->value = v;
    out->as_json = !text;
    snprintf(out->field, sizeof out->field, "%s", field);
    return 0;
}

static const json_t *constraint_member(const json_t *v, const char *name)
{
    const json_t *m = json_object_get(v, name);
    return m == NULL || json_is_null(m) ? NULL : m;
}

static int response_format(const struct sl_params *p, struct source *out, struct sl_refusal *r)
{
    static const char name[] = "response_format";
    const json_t *v = p->response_format, *type, *schema, *outer;
    const char *s;
    if (v == NULL)
        return 0;
    if (!json_is_object(v))
        return sl_refuse(r, SL_EINVAL, name, "%s must be an object", name);
    type = constraint_member(v, "type");
    if (type == NULL)
        return sl_refuse(r, SL_EINVAL, "response_format.type", "%s.type is missing", name);
    int rc = sl_json_cstr(type, "response_format.type", 64, &s, r);
    if (rc != 0 || strcmp(s, "text") == 0)
        return rc;
    if (strcmp(s, "structural_tag") == 0)
        return constraint_take(out, name, SL_GRAMMAR_STRUCTURAL, v, r);
    schema = constraint_member(v, "schema"); /* as llama.cpp has it */
    if (strcmp(s, "json_object") == 0)
        return schema != NULL ? constraint_take(out, "response_format.schema",
                                                SL_GRAMMAR_JSON_SCHEMA, schema, r)
                              : constraint_take(out, name, SL_GRAMMAR_JSON_OBJECT, v, r);
    if (strcmp(s, "json_schema") != 0)
        return sl_refuse(r, SL_EUNSUPPORTED, "response_format.type",
                         "response_format.type must be text, json_object, json_schema or "
                         "structural_tag, not %s",
                         s);
    outer = constraint_member(v, "json_schema");
    if (outer != NULL && !json_is_object(outer))
        return sl_refuse(r, SL_EINVAL, "response_format.json_schema",
                         "response_format.json_schema must be an object");
    if (outer != NULL)
        schema = constraint_member(outer, "schema");
    if (schema == NULL)
        return sl_refuse(r, SL_EINVAL, "response_format.json_schema.schema",
                         "response_format.json_schema.schema is missing");
    return constraint_take(out, "response_format.json_schema.schema", SL_GRAMMAR_JSON_SCHEMA,
                           schema, r);
}

/* A member that says how JSON is written, as vLLM names them. *known: it is one of those. */
static int style_member(struct sl_json_style *style, const char *key, const char *field,
                        const json_t *v, bool *known, struct sl_refusal *r)
{
    bool on = false;
    int rc;
    *known = true;
    if (strcmp(key, "whitespace_pattern") == 0)
        return sl_json_cstr(v, field, SL_MAX_SPACE_PATTERN, &style->whitespace, r);
    if (strcmp(key, "disable_any_whitespace") == 0) {
        rc = sl_json_bool(v, field, &on, r);
        if (rc == 0 && on)
            style->whitespace = "";
        else if (rc == 0 && style->whitespace != NULL && style->whitespace[0] == '\0')
            style->whitespace = NULL; /* the server's default */
        return rc;
    }
    if (strcmp(key, "disable_additional_properties") == 0) {
        rc = sl_json_bool(v, field, &on, r);
        if (rc == 0)
            style->additional_properties = !on;
        return rc;
    }
    *known = false;
    return 0;
}

static const char *const style_keys[] = {"disable_any_whitespace", "whitespace_pattern",
                                         "disable_additional_properties"};

/* One member of structured_outputs. */
static int structured_member(struct sl_params *p, const char *key, const json_t *v,
                             struct source *out, struct sl_refusal *r)
{
    static const struct {
        const char *key, *field;
        enum sl_grammar_kind kind;
    } kinds[] = {{"json", "structured_outputs.json", SL_GRAMMAR_JSON_SCHEMA},
                 {"regex", "structured_outputs.regex", SL_GRAMMAR_REGEX},
                 {"choice", "structured_outputs.choice", SL_GRAMMAR_CHOICE},
                 {"grammar", "structured_outputs.grammar", SL_GRAMMAR_EBNF},
                 {"structural_tag", "structured_outputs.structural_tag", SL_GRAMMAR_STRUCTURAL}};
    bool on = false, known = false;
    for (size_t i = 0; i < SL_COUNT(kinds); i++)
        if (strcmp(key, kinds[i].key) == 0)
            return constraint_take(out, kinds[i].field, kinds[i].kind, v, r);
    char field[64];
    snprintf(field, sizeof field, "structured_outputs.%.40s", key);
    int rc = style_member(&p->json_style, key, field, v, &known, r);
    if (rc != 0 || known)
        return rc;
    if (strcmp(key, "disable_fallback") == 0 || key[0] == '_') /* vLLM's choice of a backend */
        return 0;
    if (strcmp(key, "json_object") != 0)
        return sl_refuse(r, SL_EUNSUPPORTED, field, "not supported: %s", field);
    rc = sl_json_bool(v, field, &on, r);
    return rc != 0 || !on ? rc : constraint_take(out, field, SL_GRAMMAR_JSON_OBJECT, v, r);
}

/* A request may say once which whitespace JSON has. */
static int one_whitespace(const struct sl_params *p, struct sl_refusal *r)
{
    static const char none[] = "structured_outputs.disable_any_whitespace",
                      pattern[] = "structured_outputs.whitespace_pattern";
    const json_t *v = p->structured_outputs;
    bool has_none = json_is_true(json_object_get(v, "disable_any_whitespace"));
    bool has_pattern = constraint_member(v, "whitespace_pattern") != NULL;
    const char *first = p->guided_whitespace != NULL ? "guided_whitespace_pattern" : none;
    const char *second = has_pattern ? pattern : none;
    if ((p->guided_whitespace != NULL) + has_none + has_pattern < 2)
        return 0;
    return sl_refuse(r, SL_EINVAL, second, "%s and %s cannot be combined", first, second);
}

static int structured_outputs(struct sl_params *p, struct source *out, struct sl_refusal *r)
{
    static const char name[] = "structured_outputs";
    const json_t *v = p->structured_outputs;
    const json_t *before = out->value;
    const char *key;
    json_t *value;
    int rc;
    if (v == NULL)
        return 0;
    if (!json_is_object(v))
        return sl_refuse(r, SL_EINVAL, name, "%s must be an object, not %s", name,
                         sl_json_type_name(v));
    rc = one_whitespace(p, r);
    if (rc != 0)
        return rc;
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        rc = json_is_null(value) ? 0 : structured_member(p, key, value, out, r);
        if (rc != 0)
            return rc;
    }
    /* Beside response_format and tools it may say how JSON is written, and nothing else. */
    bool says_how = false, beside = before != NULL || json_array_size(p->tools) > 0;
    for (size_t i = 0; i < SL_COUNT(style_keys); i++)
        says_how = says_how || (beside && json_object_get(v, style_keys[i]) != NULL);
    if (out->value == before && !says_how)
        return sl_refuse(r, SL_EINVAL, name,
                         "%s must have one of json, regex, choice, grammar, json_object, "
                         "structural_tag",
                         name);
    return 0;
}

static bool is_empty_text(const json_t *v)
{
    return json_is_string(v) && json_string_length(v) == 0;
}

static int constraint_find(struct sl_params *p, struct source *out, struct sl_refusal *r)
{
    const struct {
        const char *field;
        const json_t *v;
        enum sl_grammar_kind kind;
    } plain[] = {
        {"guided_json", p->guided_json, SL_GRAMMAR_JSON_SCHEMA},
        {"guided_regex", p->guided_regex, SL_GRAMMAR_REGEX},
        {"guided_choice", p->guided_choice, SL_GRAMMAR_CHOICE},
        {"guided_grammar", p->guided_grammar, SL_GRAMMAR_EBNF},
        {"grammar", p->grammar, SL_GRAMMAR_EBNF},
        {"json_schema", p->json_schema, SL_GRAMMAR_JSON_SCHEMA},
        {"regex", p->regex, SL_GRAMMAR_REGEX},
        {"ebnf", p->ebnf, SL_GRAMMAR_EBNF},
        {"structural_tag", p->structural_tag, SL_GRAMMAR_STRUCTURAL},
    };
    int rc = response_format(p, out, r);
    if (p->guided_whitespace != NULL)
        p->json_style.whitespace = p->guided_whitespace;
    if (rc == 0)
        rc = structured_outputs(p, out, r);
    for (size_t i = 0; i < SL_COUNT(plain) && rc == 0; i++)
        if (plain[i].v != NULL && !(p->grammar == plain[i].v && is_empty_text(plain[i].v)))
            rc = constraint_take(out, plain[i].field, plain[i].kind, plain[i].v, r);
    if (rc == 0 && p->guided_json_object)
        rc = constraint_take(out, "guided_json_object", SL_GRAMMAR_JSON_OBJECT, json_true(), r);
    return rc;
}

int sl_params_constraint(struct sl_params *p, struct sl_refusal *r)
{
    struct source found = {.value = NULL};
    int rc = constraint_find(p, &found, r);
    if (rc != 0 || found.value == NULL)
        return rc;
    struct sl_constraint_desc *d = &p->constraint_desc;
    p->constrained = true;
    snprintf(p->constraint_field, sizeof p->constraint_field, "%s", found.field);
    d->kind = found.kind;
    d->style = p->json_style;
    if (found.kind == SL_GRAMMAR_JSON_OBJECT)
        return 0;
    if (!found.as_json) {
        d->text = json_string_value(found.value);
        d->n_text = json_string_length(found.value);
    } else {
        struct sl_buf *b = &p->constraint_text;
        b->max_bytes = SL_MAX_GRAMMAR_TEXT;
        if (!sl_json_dump_exact(b, found.value, p->body, p->n_body))
            return sl_refuse(r, SL_ENOMEM, found.field, "%s is too large, or out of memory",
                             found.field);
        d->text = b->data;
        d->n_text = b->n_bytes;
    }
    if (d->n_text > SL_MAX_GRAMMAR_TEXT)
        return sl_refuse(r, SL_ELIMIT, found.field, "%s has more than %u bytes", found.field,
                         SL_MAX_GRAMMAR_TEXT);
    return 0;
}

int sl_params_compile(struct sl_params *p, struct sl_engine *eng, bool may_wait, bool *later,
                      struct sl_refusal *r)
{
    *later = false;
    if (!p->constrained)
        return 0;
    p->constraint = sl_constraint_find(eng, &p->constraint_desc);
    if (p->constraint != NULL)
        return 0;
    if (!may_wait) {
        *later = true;
        return 0;
    }
    sl_refusal_param(r, p->constraint_field);
    int rc = sl_constraint_open(eng, &p->constraint_desc, &p->constraint, &r->err);
    if (rc != 0)
        (void)sl_error_prefix(&r->err, rc, "%s", p->constraint_field);
    return rc;
}

int sl_json_style_read(const char *text, struct sl_json_style *style, char **whitespace,
                       struct sl_error *err)
{
    static const char *const ignored[] = {"backend", "disable_fallback"}; /* there is one backend */
    struct sl_refusal r = {0};
    json_t *root = NULL, *v;
    const char *key;
    int rc = sl_json_parse_object(text, strlen(text), &root, &r);
    if (rc == 0) {
        json_object_foreach(root, key, v)
        {
            bool known = false;
            for (size_t i = 0; i < SL_COUNT(ignored); i++)
                known = known || strcmp(key, ignored[i]) == 0;
            if (rc == 0 && !known && !json_is_null(v))
                rc = style_member(style, key, key, v, &known, &r);
            if (rc == 0 && !known)
                rc = sl_refuse(&r, SL_EUNSUPPORTED, "", "not supported: %.60s", key);
        }
    }
    if (rc == 0 && style->whitespace != NULL) { /* it is in the tree */
        *whitespace = sl_strdup(style->whitespace);
        style->whitespace = *whitespace;
        rc = *whitespace == NULL ? sl_refuse(&r, SL_ENOMEM, "", "out of memory") : 0;
    }
    json_decref(root);
    if (rc != 0)
        rc = sl_fail(err, rc, "--structured-outputs-config: %s", r.err.msg);
    return rc;
}
