/* SPDX-License-Identifier: MIT */
#include "cmd/constraint.h"

#include "base/buf.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"

#include <string.h>

#define OWN(field)         offsetof(struct sl_cli_constraint, field)
#define STYLE(base, field) ((base) + offsetof(struct sl_cli_json_style, field))
/* Names of vLLM's; the others are SGLang's. */
#define STYLE_ROWS(base)                                                  \
    {SL_FLAG_SWITCH,                                                      \
     0,                                                                   \
     "disable-any-whitespace",                                            \
     "constrained-json-disable-any-whitespace",                           \
     STYLE(base, compact),                                                \
     0,                                                                   \
     0,                                                                   \
     NULL,                                                                \
     "constrained JSON is written without whitespace"},                   \
        {SL_FLAG_STR,                                                     \
         0,                                                               \
         "whitespace-pattern",                                            \
         "constrained-json-whitespace-pattern",                           \
         STYLE(base, whitespace),                                         \
         0,                                                               \
         0,                                                               \
         "PATTERN",                                                       \
         "whitespace between its tokens (default: one space or a line)"}, \
    {                                                                     \
        SL_FLAG_SWITCH, 0, "allow-additional-properties", NULL,           \
            STYLE(base, additional_properties), 0, 0, NULL,               \
            "objects without additionalProperties stay open"              \
    }

const struct sl_flag sl_flags_constraint[] = {
    {SL_FLAG_HEADING, 0, NULL, NULL, 0, 0, 0, NULL, "Constraints on the output (one of these)"},
    {SL_FLAG_STR, 'j', "json-schema", NULL, OWN(json_schema), 0, 0, "JSON|FILE",
     "JSON that this schema allows; {} = any JSON"},
    {SL_FLAG_STR, 0, "regex", NULL, OWN(regex), 0, 0, "PATTERN", "text that matches as a whole"},
    {SL_FLAG_STR, 0, "grammar", NULL, OWN(grammar), 0, 0, "RULES", "text by GBNF or Lark rules"},
    {SL_FLAG_STR, 0, "grammar-file", NULL, OWN(grammar_file), 0, 0, "FILE",
     "likewise, rules from FILE (- = stdin)"},
    {SL_FLAG_STR_LIST, 0, "choice", NULL, OWN(choice), 0, 0, "TEXT",
     "one of these texts (repeat it)"},
    STYLE_ROWS(offsetof(struct sl_cli_constraint, style))};
const int sl_n_flags_constraint = (int)SL_COUNT(sl_flags_constraint);

const struct sl_flag sl_flags_json_style[] = {STYLE_ROWS(0)};
const int sl_n_flags_json_style = (int)SL_COUNT(sl_flags_json_style);

int sl_cli_json_style(const struct sl_cli_json_style *given, struct sl_json_style *out,
                      struct sl_error *err)
{
    if (given->compact && given->whitespace != NULL)
        return sl_fail(err, SL_EINVAL,
                       "--disable-any-whitespace and --whitespace-pattern cannot be combined");
    if (given->compact || given->whitespace != NULL)
        out->whitespace = given->compact ? "" : given->whitespace;
    out->additional_properties |= given->additional_properties;
    return 0;
}

static const char *constraint_skip_space(const char *s)
{
    return s + strspn(s, " \t\r\n");
}

/* A schema begins with '{', true or false; anything else names a file. */
static bool is_file(const char *s)
{
    s = constraint_skip_space(s);
    return s[0] != '{' && strcmp(s, "true") != 0 && strcmp(s, "false") != 0;
}

static void put_choice(struct sl_buf *b, const struct sl_flag_list *list)
{
    for (int i = 0; i < list->n; i++) {
        sl_buf_putc(b, i == 0 ? '[' : ',');
        sl_buf_json_string(b, list->items[i], strlen(list->items[i]));
    }
    sl_buf_putc(b, ']');
}

void sl_cli_drop_kind(struct sl_error *err)
{
    static const char *const kinds[] = {"regex: ", "grammar: ", "schema: "};
    for (size_t i = 0; i < SL_COUNT(kinds); i++) {
        size_t n = strlen(kinds[i]);
        if (sl_starts_with(err->msg, kinds[i]))
            memmove(err->msg, err->msg + n, strlen(err->msg) - n + 1);
    }
}

int sl_cli_constraint_open(const struct sl_cli_constraint *c, struct sl_engine *eng,
                           struct sl_constraint **out, struct sl_error *err)
{
    const struct {
        const char *flag, *text;
        enum sl_grammar_kind kind;
    } given[] = {
        {"--json-schema", c->json_schema, SL_GRAMMAR_JSON_SCHEMA},
        {"--regex", c->regex, SL_GRAMMAR_REGEX},
        {"--grammar", c->grammar, SL_GRAMMAR_EBNF},
        {"--grammar-file", c->grammar_file, SL_GRAMMAR_EBNF},
        {"--choice", c->choice.n > 0 ? c->choice.items[0] : NULL, SL_GRAMMAR_CHOICE},
    };
    size_t found = SL_COUNT(given);
    struct sl_buf list = {0};
    char *file = NULL;
    int rc = 0;
    *out = NULL;
    for (size_t i = 0; i < SL_COUNT(given); i++) {
        if (given[i].text == NULL)
            continue;
        if (found < SL_COUNT(given))
            return sl_fail(err, SL_EINVAL, "%s and %s cannot be combined", given[found].flag,
                           given[i].flag);
        found = i;
    }
    if ((c->style.compact || c->style.whitespace != NULL || c->style.additional_properties) &&
        c->json_schema == NULL)
        return sl_fail(err, SL_EINVAL, "%s needs --json-schema",
                       c->style.compact              ? "--disable-any-whitespace"
                       : c->style.whitespace != NULL ? "--whitespace-pattern"
                                                     : "--allow-additional-properties");
    if (found == SL_COUNT(given))
        return 0;
    struct sl_constraint_desc desc = {.kind = given[found].kind, .text = given[found].text};
    rc = sl_cli_json_style(&c->style, &desc.style, err);
    if (rc != 0)
        return rc;
    desc.n_text = strlen(desc.text);
    if (desc.text == c->grammar_file || (desc.text == c->json_schema && is_file(desc.text))) {
        rc = sl_read_file(desc.text, SL_MAX_GRAMMAR_TEXT, &file, &desc.n_text, err);
        desc.text = file;
    } else if (desc.kind == SL_GRAMMAR_CHOICE) {
        put_choice(&list, &c->choice);
        desc.text = list.data;
        desc.n_text = list.n_bytes;
        rc = sl_buf_ok(&list) ? 0 : sl_fail(err, SL_ENOMEM, "out of memory");
    }
    if (rc == 0)
        rc = sl_constraint_open(eng, &desc, out, err);
    if (rc != 0) {
        sl_cli_drop_kind(err);
        (void)sl_error_prefix(err, rc, "%s", given[found].flag);
    }
    sl_buf_deinit(&list);
    sl_free(file);
    return rc;
}
