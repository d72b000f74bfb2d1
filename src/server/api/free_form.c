/* SPDX-License-Identifier: MIT */
#include "server/api/free_form.h"

#include "server/api/to_chat.h"
#include "server/http/json_tree.h"
#include "text/output/output_tags.h"

#include <stdio.h>
#include <string.h>

static const char *free_form_text_of(const json_t *v, const char *member)
{
    return json_string_value(json_object_get(v, member));
}

int sl_free_form_format(const json_t *format, const char *field, const char **syntax,
                        const char **definition, struct sl_refusal *r)
{
    const char *type = free_form_text_of(format, "type");
    const json_t *inner = json_object_get(format, "grammar");
    *syntax = *definition = NULL;
    if (format == NULL || json_is_null(format) || (type != NULL && strcmp(type, "text") == 0))
        return 0;
    if (type == NULL || strcmp(type, "grammar") != 0)
        return sl_refuse(r, SL_EINVAL, field, "%s.type must be text or grammar", field);
    const json_t *grammar = json_is_object(inner) ? inner : format;
    *syntax = free_form_text_of(grammar, "syntax");
    *definition = free_form_text_of(grammar, "definition");
    bool known = *syntax != NULL && (strcmp(*syntax, "lark") == 0 || strcmp(*syntax, "regex") == 0);
    return known && *definition != NULL
               ? 0
               : sl_refuse(r, SL_EINVAL, field,
                           "%s must have syntax, lark or regex, and definition, a string", field);
}

int sl_free_form_function(const json_t *custom, const char *field, json_t **function,
                          json_t **grammar, struct sl_refusal *r)
{
    char place[SL_PLACE_BYTES + 16];
    const char *about = free_form_text_of(custom, "description"), *syntax, *definition;
    struct sl_buf b = {0};
    *function = *grammar = NULL;
    snprintf(place, sizeof place, "%.*s.format", SL_PLACE_BYTES - 1, field);
    int rc = sl_free_form_format(json_object_get(custom, "format"), place, &syntax, &definition, r);
    if (rc != 0)
        return rc;
    sl_buf_puts(&b, about != NULL ? about : "");
    if (syntax != NULL)
        sl_buf_printf(&b, "%sThe input must match this %s:\n%s", b.n_bytes > 0 ? "\n" : "",
                      strcmp(syntax, "lark") == 0 ? "grammar (Lark)" : "regular expression",
                      definition);
    if (sl_buf_ok(&b))
        *function =
            json_pack("{s:O?, s:s#, s:{s:s, s:{s:{s:s}}, s:[s], s:b}, s:b}", "name",
                      json_object_get(custom, "name"), "description", b.data != NULL ? b.data : "",
                      b.n_bytes, "parameters", "type", "object", "properties",
                      SL_OUTPUT_TEXT_ARGUMENT, "type", "string", "required",
                      SL_OUTPUT_TEXT_ARGUMENT, "additionalProperties", 0, "strict", syntax != NULL);
    *grammar = json_pack("{s:s*, s:s*}", "syntax", syntax, "definition", definition);
    sl_buf_deinit(&b);
    if (*function != NULL && *grammar != NULL)
        return 0;
    json_decref(*function);
    json_decref(*grammar);
    *function = *grammar = NULL;
    return sl_chat_no_memory(r, field);
}

json_t *sl_free_form_arguments(const json_t *text)
{
    json_t *object = json_pack("{s:O}", SL_OUTPUT_TEXT_ARGUMENT, (json_t *)(uintptr_t)text);
    json_t *arguments = sl_json_as_text(object);
    json_decref(object);
    return arguments;
}

/* The arguments as an object; NULL: they are none. Those that the end of the answer cut off are
 * closed, without half an escape. */
static json_t *free_form_open_arguments(const struct sl_part *call)
{
    static const char close[] = "\"}";
    const size_t most = sizeof "\\u000" - 1;
    struct sl_refusal ignored = {0};
    json_t *v = NULL;
    size_t n = call->text.n_bytes;
    if (n == 0 || sl_json_parse_object(call->text.data, n, &v, &ignored) == 0)
        return v;
    for (size_t cut = 0; !call->whole && cut <= most && cut < n; cut++) {
        struct sl_buf b = {0};
        sl_buf_put(&b, call->text.data, n - cut);
        sl_buf_puts(&b, close);
        int rc = sl_buf_ok(&b) ? sl_json_parse_object(b.data, b.n_bytes, &v, &ignored) : SL_ENOMEM;
        sl_buf_deinit(&b);
        if (rc == 0)
            return v;
    }
    return NULL;
}

/* A model may have written the text itself in place of an object that has it. */
void sl_free_form_put(struct sl_buf *b, const struct sl_part *call)
{
    json_t *v = call->ended ? free_form_open_arguments(call) : NULL;
    const json_t *input = json_object_get(v, SL_OUTPUT_TEXT_ARGUMENT);
    if (json_is_string(input))
        sl_buf_json_string(b, json_string_value(input), json_string_length(input));
    else
        sl_buf_json_string(b, call->text.data, call->ended ? call->text.n_bytes : 0);
    json_decref(v);
}
