/* SPDX-License-Identifier: MIT
 * tags_format.c - the nodes of a structural tag's format to positions of the automaton.
 *
 * What is regular becomes one expression with its neighbours; schemas, references and loops around
 * them become positions. A rule is a sub-routine, so that a large schema is compiled once however
 * often it is referred to; a rule may refer to those before it.
 */
#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
#include "grammar/cset.h"
#include "grammar/ebnf.h"
#include "grammar/regex.h"
#include "grammar/tags_impl.h"
#include "grammar/vocab.h"

#include <string.h>

enum { MAX_DEPTH = 64, MAX_PARTS = 4096, MAX_RULES = 64, MAX_REPEAT = 10000 };

struct rule {
    const char *name;
    uint32_t start;
};

struct format {
    struct sl_auto *a;
    const json_t *special; /* {text: id} */
    struct rule rules[MAX_RULES];
    uint32_t n_rules;
    int depth, rc;
    struct sl_error *err;
};

static void tags_format_fail(struct format *f, int code, const char *what, const char *name)
{
    if (f->rc == 0)
        f->rc = sl_fail(f->err, code, "grammar: structural tag: %s%.60s", what, name);
}

static const char *tags_format_type_of(struct format *f, const json_t *node)
{
    const char *type = json_string_value(json_object_get(node, "type"));
    if (type == NULL)
        tags_format_fail(f, SL_EINVAL, "a format is not an object with a type", "");
    return type != NULL ? type : "";
}

static bool is(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

/* ---------------------------------------------------------------- texts */

/* The special token whose text begins here, the longest one. */
static bool special_at(const struct format *f, const char *s, size_t n, size_t *n_text, int32_t *id)
{
    const char *key;
    json_t *value;
    *n_text = 0;
    json_object_foreach((json_t *)(uintptr_t)f->special, key, value)
    {
        size_t len = strlen(key);
        if (len > *n_text && len <= n && memcmp(s, key, len) == 0 && json_is_integer(value)) {
            *n_text = len;
            *id = (int32_t)json_integer_value(value);
        }
    }
    return *n_text > 0;
}

/* Text in which special tokens stand for themselves. */
static sl_rx_id tags_format_literal(struct format *f, const json_t *v)
{
    struct sl_rx *rx = &f->a->rx;
    sl_rx_id id = SL_RX_EPS;
    if (!json_is_string(v)) {
        tags_format_fail(f, SL_EINVAL, "a text is not a string", "");
        return SL_RX_NONE;
    }
    const char *s = json_string_value(v);
    size_t n = json_string_length(v), from = 0;
    for (size_t i = 0; i < n;) {
        size_t len;
        int32_t token = 0;
        char spelled[SL_VOCAB_SPECIAL_BYTES];
        if (!special_at(f, s + i, n - i, &len, &token)) {
            i++;
            continue;
        }
        sl_vocab_special_text(token, spelled);
        id = sl_rx_cat(rx, id, sl_rx_lit(rx, s + from, i - from));
        id = sl_rx_cat(rx, id, sl_rx_lit(rx, spelled, sizeof spelled));
        i += len;
        from = i;
    }
    return sl_rx_cat(rx, id, sl_rx_lit(rx, s + from, n - from));
}

static sl_rx_id tags_format_regex(struct format *f, const json_t *v, enum sl_spelling spelling)
{
    sl_rx_id id = SL_RX_NONE;
    if (!json_is_string(v)) {
        tags_format_fail(f, SL_EINVAL, "a pattern is not a string", "");
        return id;
    }
    int rc = sl_regex_parse(&f->a->rx, json_string_value(v), json_string_length(v), 0, spelling,
                            &id, f->err);
    if (f->rc == 0)
        f->rc = rc;
    return id;
}

/* One character, or a special token where those may stand in text. */
static sl_rx_id any_one(struct format *f, bool with_special)
{
    struct sl_rx *rx = &f->a->rx;
    sl_rx_id id = sl_cset_any(rx, SL_SPELL_UTF8);
    if (!with_special)
        return id;
    sl_rx_id rest = sl_rx_range(rx, 0x80, 0xBF);
    sl_rx_id special = sl_rx_cat(rx, sl_rx_range(rx, 0xFF, 0xFF), sl_rx_rep(rx, rest, 4, 4));
    return sl_rx_or2(rx, id, special);
}

static bool length(struct format *f, const json_t *node, const char *key, int32_t *out)
{
    const json_t *v = json_object_get(node, key);
    if (v == NULL)
        return false;
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= 0) || x > 1e9 || x != (double)(int32_t)x) {
        tags_format_fail(f, SL_EINVAL, "no count: ", key);
        return false;
    }
    *out = (int32_t)x;
    return true;
}

static sl_rx_id without(struct format *f, sl_rx_id text, const json_t *list)
{
    struct sl_rx *rx = &f->a->rx;
    const json_t *v;
    size_t i;
    json_array_foreach(list, i, v)
    {
        sl_rx_id has =
            sl_rx_cat(rx, SL_RX_ALL, sl_rx_cat(rx, tags_format_literal(f, v), SL_RX_ALL));
        if (json_string_length(v) == 0)
            tags_format_fail(f, SL_EINVAL, "an empty text cannot be excluded", "");
        text = sl_rx_and2(rx, text, sl_rx_not(rx, has));
    }
    return text;
}

/* Text without some texts; of a length; that matches a pattern somewhere; that does not begin so.
 */
static sl_rx_id any_text(struct format *f, const json_t *node)
{
    struct sl_rx *rx = &f->a->rx;
    int32_t lo = 0, hi = SL_RX_INF;
    bool special = json_is_true(json_object_get(node, "special_tokens"));
    (void)length(f, node, "min_length", &lo);
    (void)length(f, node, "max_length", &hi);
    if (hi != SL_RX_INF && hi < lo)
        tags_format_fail(f, SL_EINVAL, "max_length is below min_length", "");
    if (f->rc != 0)
        return SL_RX_NONE;
    sl_rx_id text = sl_rx_rep(rx, any_one(f, special), lo, hi);
    text = without(f, text, json_object_get(node, "excludes"));
    text = without(f, text, json_object_get(node, "triggers"));
    const json_t *pattern = json_object_get(node, "pattern");
    const json_t *prefix = json_object_get(node, "not_prefix");
    if (pattern != NULL) {
        sl_rx_id id = SL_RX_NONE;
        int rc = json_is_string(pattern)
                     ? sl_regex_parse(rx, json_string_value(pattern), json_string_length(pattern),
                                      SL_REGEX_SEARCH, SL_SPELL_UTF8, &id, f->err)
                     : sl_fail(f->err, SL_EINVAL, "grammar: a pattern is not a string");
        if (f->rc == 0)
            f->rc = rc;
        text = sl_rx_and2(rx, text, id);
    }
    if (prefix != NULL) {
        sl_rx_id begins = sl_rx_cat(rx, tags_format_regex(f, prefix, SL_SPELL_UTF8), SL_RX_ALL);
        text = sl_rx_and2(rx, text, sl_rx_not(rx, begins));
    }
    return text;
}

/* ---------------------------------------------------------------- what is regular */

static const json_t *elements(const json_t *node)
{
    return json_object_get(node, "elements");
}

static bool tags_format_is_regular(struct format *f, const json_t *node)
{
    const char *type = tags_format_type_of(f, node);
    const json_t *kid;
    size_t i;
    if (is(type, "sequence") || is(type, "or")) {
        json_array_foreach(elements(node), i, kid)
        {
            if (!tags_format_is_regular(f, kid))
                return false;
        }
        return true;
    }
    if (is(type, "optional") || is(type, "star") || is(type, "plus")) {
        const json_t *sep = json_object_get(node, "separator");
        return tags_format_is_regular(f, json_object_get(node, "content")) &&
               (sep == NULL || tags_format_is_regular(f, sep));
    }
    return is(type, "const_string") || is(type, "regex") || is(type, "any_text");
}

static sl_rx_id tags_format_rx_of(struct format *f, const json_t *node);

static sl_rx_id rx_of_list(struct format *f, const json_t *node, bool or)
{
    struct sl_rx *rx = &f->a->rx;
    sl_rx_id id = or ? SL_RX_NONE : SL_RX_EPS;
    const json_t *kid;
    size_t i;
    json_array_foreach(elements(node), i, kid)
    {
        sl_rx_id one = tags_format_rx_of(f, kid);
        id = or ? sl_rx_or2(rx, id, one) : sl_rx_cat(rx, id, one);
    }
    return id;
}

/* At most so many times; SL_RX_INF: no bound. */
static int32_t most_of(struct format *f, const json_t *node)
{
    int32_t max = SL_RX_INF;
    if (length(f, node, "max", &max) && (max < 1 || max > MAX_REPEAT))
        tags_format_fail(f, SL_EINVAL, "max must be between 1 and 10000", "");
    return max;
}

static sl_rx_id rx_of_loop(struct format *f, const json_t *node, const char *type)
{
    struct sl_rx *rx = &f->a->rx;
    const json_t *sep = json_object_get(node, "separator");
    int32_t max = most_of(f, node);
    sl_rx_id one = tags_format_rx_of(f, json_object_get(node, "content")), rest = one;
    if (is(type, "optional"))
        return sl_rx_opt(rx, one);
    if (sep != NULL)
        rest = sl_rx_cat(rx, tags_format_rx_of(f, sep), one);
    sl_rx_id all =
        sl_rx_cat(rx, one, sl_rx_rep(rx, rest, 0, max == SL_RX_INF ? SL_RX_INF : max - 1));
    return is(type, "star") ? sl_rx_opt(rx, all) : all;
}

static sl_rx_id tags_format_rx_of(struct format *f, const json_t *node)
{
    const char *type = tags_format_type_of(f, node);
    sl_rx_id id = SL_RX_NONE;
    if (++f->depth > MAX_DEPTH)
        tags_format_fail(f, SL_ELIMIT, "formats are nested too deeply", "");
    if (f->rc != 0)
        ;
    else if (is(type, "const_string"))
        id = tags_format_literal(f, json_object_get(node, "value"));
    else if (is(type, "regex"))
        id = tags_format_regex(f, json_object_get(node, "pattern"), SL_SPELL_UTF8);
    else if (is(type, "any_text"))
        id = any_text(f, node);
    else if (is(type, "sequence") || is(type, "or"))
        id = rx_of_list(f, node, is(type, "or"));
    else
        id = rx_of_loop(f, node, type);
    f->depth--;
    return id;
}

/* ---------------------------------------------------------------- positions */

static uint32_t add_pos(struct format *f, enum sl_pos_op op, uint32_t a, uint32_t next)
{
    return sl_auto_add_pos(f->a, (struct sl_pos){op, a, next});
}

/* Room for n ways to go on; where they begin in splits. */
static uint32_t make_split(struct format *f, uint32_t n, uint32_t *first)
{
    struct sl_auto *a = f->a;
    if (a->n_splits + n > a->cap_splits) {
        uint32_t cap = SL_MAX(a->cap_splits * 2, a->n_splits + n + 64);
        void *p = cap > 1u << 22 ? NULL : sl_realloc(a->splits, cap * sizeof a->splits[0]);
        if (p == NULL) {
            tags_format_fail(f, SL_ELIMIT, "too many parts", "");
            return 0;
        }
        a->splits = p;
        a->cap_splits = cap;
    }
    *first = a->n_splits;
    a->n_splits += n;
    for (uint32_t i = *first; i < a->n_splits; i++)
        a->splits[i] = 0;
    return add_pos(f, POS_SPLIT, *first, n);
}

static uint32_t tags_format_either(struct format *f, uint32_t x, uint32_t y)
{
    uint32_t first = 0, pos = make_split(f, 2, &first);
    if (f->rc == 0) {
        f->a->splits[first] = x;
        f->a->splits[first + 1] = y;
    }
    return pos;
}

static uint32_t tags_format_emit(struct format *f, const json_t *node, uint32_t next);

static uint32_t emit_or(struct format *f, const json_t *list, uint32_t next)
{
    uint32_t n = (uint32_t)json_array_size(list), first = 0;
    if (n == 0 || n > MAX_PARTS) {
        tags_format_fail(f, SL_EINVAL,
                         n == 0 ? "a list of formats is empty" : "more than 4096 parts", "");
        return next;
    }
    uint32_t pos = make_split(f, n, &first);
    for (uint32_t i = 0; i < n && f->rc == 0; i++) {
        uint32_t to = tags_format_emit(f, json_array_get(list, i), next);
        if (f->rc == 0) /* splits may have moved */
            f->a->splits[first + i] = to;
    }
    return pos;
}

/* Neighbours that are regular become one expression. */
static uint32_t emit_sequence(struct format *f, const json_t *list, uint32_t next)
{
    for (size_t i = json_array_size(list); i-- > 0 && f->rc == 0;) {
        const json_t *kid = json_array_get(list, i);
        if (!tags_format_is_regular(f, kid)) {
            next = tags_format_emit(f, kid, next);
            continue;
        }
        sl_rx_id id = tags_format_rx_of(f, kid);
        for (; i > 0 && f->rc == 0 && tags_format_is_regular(f, json_array_get(list, i - 1)); i--)
            id = sl_rx_cat(&f->a->rx, tags_format_rx_of(f, json_array_get(list, i - 1)), id);
        if (id != SL_RX_EPS)
            next = add_pos(f, POS_TERM, id, next);
    }
    return next;
}

/* content (separator content)*, unless it may be left out or max says otherwise. */
static uint32_t emit_loop(struct format *f, const json_t *node, const char *type, uint32_t next)
{
    const json_t *content = json_object_get(node, "content"),
                 *sep = json_object_get(node, "separator");
    int32_t max = is(type, "optional") ? 1 : most_of(f, node);
    uint32_t pos = next, start, first = 0;
    if (max == SL_RX_INF) {
        uint32_t again = make_split(f, 2, &first);
        start = tags_format_emit(f, content, again);
        pos = sep != NULL ? tags_format_emit(f, sep, start) : start;
        if (f->rc == 0) {
            f->a->splits[first] = pos;
            f->a->splits[first + 1] = next;
        }
    } else {
        for (int32_t i = 1; i < max && f->rc == 0; i++) {
            uint32_t more = tags_format_emit(f, content, pos);
            pos = tags_format_either(f, sep != NULL ? tags_format_emit(f, sep, more) : more, next);
        }
        start = tags_format_emit(f, content, pos);
    }
    return is(type, "plus") ? start : tags_format_either(f, start, next);
}

static uint32_t emit_schema(struct format *f, const json_t *node, uint32_t next)
{
    json_t *schema = json_object_get(node, "json_schema");
    const char *label = json_string_value(json_object_get(node, "label"));
    const char *style = json_string_value(json_object_get(node, "style"));
    struct sl_schema_options options = {0};
    uint32_t root = 0;
    if (schema == NULL)
        tags_format_fail(f, SL_EINVAL, "json_schema is missing", "");
    if (style != NULL && !is(style, "json"))
        tags_format_fail(f, SL_EUNSUPPORTED, "json_schema of style ", style);
    if (f->rc != 0)
        return next;
    uint32_t goal = 0;
    f->rc = sl_schema_add(&f->a->schema, schema, &options, &root, f->err);
    if (f->rc == 0)
        goal = sl_auto_json_goal(f->a, root);
    if (f->rc == 0)
        f->rc = sl_auto_check(f->a, f->err);
    if (f->rc != 0 && label != NULL)
        f->rc = sl_error_prefix(f->err, f->rc, "%s", label);
    return f->rc != 0 ? next : add_pos(f, POS_JSON, goal, next);
}

/* Texts in which one of the list is, however tokens spell it, and those that a pattern does not
 * match; SL_RX_NONE: there are none. */
static sl_rx_id left_out(struct format *f, const json_t *node)
{
    struct sl_rx *rx = &f->a->rx;
    const json_t *pattern = json_object_get(node, "pattern"), *v;
    sl_rx_id out = SL_RX_NONE, id = SL_RX_NONE;
    size_t i;
    json_array_foreach(json_object_get(node, "excludes"), i, v)
    {
        sl_rx_id text = sl_rx_lit(rx, json_string_value(v), json_string_length(v));
        if (json_string_length(v) == 0)
            tags_format_fail(f, SL_EINVAL, "an empty text cannot be excluded", "");
        out = sl_rx_or2(rx, out, sl_rx_cat(rx, SL_RX_ALL, sl_rx_cat(rx, text, SL_RX_ALL)));
    }
    if (pattern == NULL || f->rc != 0)
        return out;
    f->rc = !json_is_string(pattern)
                ? sl_fail(f->err, SL_EINVAL, "grammar: a pattern is not a string")
                : sl_regex_parse(rx, json_string_value(pattern), json_string_length(pattern),
                                 SL_REGEX_SEARCH, SL_SPELL_UTF8, &id, f->err);
    return sl_rx_or2(rx, out, sl_rx_not(rx, id));
}

static uint32_t add_regex(struct format *f, const json_t *text, enum sl_spelling spelling,
                          sl_rx_id except, uint32_t next)
{
    struct sl_rx *rx = &f->a->rx;
    sl_rx_id id = tags_format_regex(f, text, spelling);
    SL_ASSERT(next < f->a->n_pos);
    if (except != SL_RX_NONE)
        id = sl_rx_and2(rx, id, sl_rx_not(rx, except));
    if (f->rc == 0 && !sl_rx_alive(rx, id))
        f->rc = sl_fail(f->err, SL_EINVAL, "regex: no text satisfies it");
    return add_pos(f, POS_TERM, id, next);
}

/* A text of a grammar of its own, in which a JSON string's escapes may be spelled. */
static uint32_t emit_grammar(struct format *f, const json_t *node, uint32_t next)
{
    const json_t *text = json_object_get(node, "grammar");
    const char *syntax = json_string_value(json_object_get(node, "syntax"));
    const char *spelling = json_string_value(json_object_get(node, "spelling"));
    const char *label = json_string_value(json_object_get(node, "label"));
    struct sl_ebnf_options options = {
        .spelling = spelling != NULL && is(spelling, "json") ? SL_SPELL_JSON : SL_SPELL_UTF8};
    uint32_t pos = next;
    if (!json_is_string(text))
        tags_format_fail(f, SL_EINVAL, "a grammar is not a string", "");
    if (f->rc == 0)
        options.except = left_out(f, node);
    options.except_parts = json_object_get(node, "pattern") == NULL;
    options.except_name = json_string_value(json_array_get(json_object_get(node, "excludes"), 0));
    if (options.except_name == NULL || !options.except_parts)
        options.except_name = "a pattern";
    if (syntax != NULL && is(syntax, "regex")) {
        if (f->rc == 0)
            pos = add_regex(f, text, options.spelling, options.except, next);
    } else {
        if (syntax != NULL)
            options.syntax = is(syntax, "lark") ? SL_EBNF_LARK : SL_EBNF_GBNF;
        if (syntax != NULL && !is(syntax, "lark") && !is(syntax, "gbnf"))
            tags_format_fail(f, SL_EUNSUPPORTED, "not supported: a grammar of syntax ", syntax);
        if (f->rc == 0)
            f->rc = sl_ebnf_compile(f->a, json_string_value(text), json_string_length(text),
                                    &options, next, &pos, f->err);
    }
    if (f->rc != 0 && label != NULL)
        f->rc = sl_error_prefix(f->err, f->rc, "%s", label);
    return f->rc != 0 ? next : pos;
}

/* A text, or one of several. */
static uint32_t emit_texts(struct format *f, const json_t *v, uint32_t next)
{
    sl_rx_id id = SL_RX_NONE;
    const json_t *one;
    size_t i;
    if (!json_is_array(v))
        id = tags_format_literal(f, v);
    json_array_foreach(v, i, one) id = sl_rx_or2(&f->a->rx, id, tags_format_literal(f, one));
    return id == SL_RX_EPS ? next : add_pos(f, POS_TERM, id, next);
}

static uint32_t emit_tag(struct format *f, const json_t *tag, uint32_t next)
{
    next = emit_texts(f, json_object_get(tag, "end"), next);
    next = tags_format_emit(f, json_object_get(tag, "content"), next);
    return emit_texts(f, json_object_get(tag, "begin"), next);
}

static bool has_trigger(const json_t *begin, const json_t *triggers)
{
    const json_t *t;
    size_t i;
    json_array_foreach(triggers, i, t)
    {
        size_t n = json_string_length(t);
        if (n > 0 && json_string_length(begin) >= n &&
            memcmp(json_string_value(begin), json_string_value(t), n) == 0)
            return true;
    }
    return false;
}

static uint32_t emit_tags(struct format *f, const json_t *list, const json_t *triggers,
                          uint32_t split, uint32_t next)
{
    const json_t *tag;
    size_t i;
    json_array_foreach(list, i, tag)
    {
        if (triggers != NULL && !has_trigger(json_object_get(tag, "begin"), triggers))
            tags_format_fail(f, SL_EINVAL, "no trigger starts the begin of a tag", "");
        uint32_t pos = f->rc == 0 ? emit_tag(f, tag, next) : 0;
        if (f->rc == 0)
            f->a->splits[split + i] = pos;
    }
    return next;
}

/* Text, in which a trigger begins one of the tags. */
static uint32_t emit_triggered(struct format *f, const json_t *node, uint32_t next)
{
    const json_t *tags = json_object_get(node, "tags"),
                 *triggers = json_object_get(node, "triggers");
    uint32_t n = (uint32_t)json_array_size(tags), first = 0;
    bool once = json_is_true(json_object_get(node, "stop_after_first"));
    bool must = json_is_true(json_object_get(node, "at_least_one"));
    if (n == 0 || n > MAX_PARTS || json_array_size(triggers) == 0) {
        tags_format_fail(f, SL_EINVAL, "triggers or tags are missing, or more than 4096", "");
        return next;
    }
    sl_rx_id text = any_text(f, node);
    uint32_t more = make_split(f, n + 1, &first);
    uint32_t start = add_pos(f, POS_TERM, text, more), begin = start, again = 0;
    if (must && f->rc == 0) { /* a text before the first one that may not be the end */
        uint32_t only = make_split(f, n, &again);
        begin = add_pos(f, POS_TERM, text, only);
    }
    if (f->rc == 0)
        f->a->splits[first + n] = next;
    (void)emit_tags(f, tags, triggers, first, once ? next : start);
    for (uint32_t i = 0; i < n && must && f->rc == 0; i++)
        f->a->splits[again + i] = f->a->splits[first + i];
    return begin;
}

static uint32_t emit_separated(struct format *f, const json_t *node, uint32_t next)
{
    const json_t *tags = json_object_get(node, "tags"), *sep = json_object_get(node, "separator");
    uint32_t n = (uint32_t)json_array_size(tags), first = 0, more = 0;
    bool once = json_is_true(json_object_get(node, "stop_after_first"));
    if (n == 0 || n > MAX_PARTS) {
        tags_format_fail(f, SL_EINVAL, "tags are missing, or more than 4096", "");
        return next;
    }
    uint32_t start = make_split(f, n, &first), after = once ? next : make_split(f, 2, &more);
    (void)emit_tags(f, tags, NULL, first, after);
    if (!once && f->rc == 0) {
        uint32_t to = emit_texts(f, sep, start);
        f->a->splits[more] = to;
        f->a->splits[more + 1] = next;
    }
    return json_is_true(json_object_get(node, "at_least_one")) ? start
                                                               : tags_format_either(f, start, next);
}

static uint32_t emit_ref(struct format *f, const json_t *node, uint32_t next)
{
    const char *name = json_string_value(json_object_get(node, "name"));
    for (uint32_t i = 0; i < f->n_rules && name != NULL; i++)
        if (is(f->rules[i].name, name))
            return add_pos(f, POS_CALL, f->rules[i].start, next);
    tags_format_fail(f, SL_EINVAL, "no such rule before: ", name != NULL ? name : "");
    return next;
}

static uint32_t emit_other(struct format *f, const json_t *node, const char *type, uint32_t next)
{
    if (is(type, "sequence"))
        return emit_sequence(f, elements(node), next);
    if (is(type, "or"))
        return emit_or(f, elements(node), next);
    if (is(type, "optional") || is(type, "star") || is(type, "plus"))
        return emit_loop(f, node, type, next);
    if (is(type, "json_schema"))
        return emit_schema(f, node, next);
    if (is(type, "grammar"))
        return emit_grammar(f, node, next);
    if (is(type, "tag"))
        return emit_tag(f, node, next);
    if (is(type, "triggered_tags"))
        return emit_triggered(f, node, next);
    if (is(type, "tags_with_separator"))
        return emit_separated(f, node, next);
    if (is(type, "ref"))
        return emit_ref(f, node, next);
    tags_format_fail(f, SL_EUNSUPPORTED, "not supported: a format of type ", type);
    return next;
}

static uint32_t tags_format_emit(struct format *f, const json_t *node, uint32_t next)
{
    const char *type = tags_format_type_of(f, node);
    if (++f->depth > MAX_DEPTH)
        tags_format_fail(f, SL_ELIMIT, "formats are nested too deeply", "");
    if (f->rc == 0 && f->a->failed != NULL)
        f->rc = sl_auto_check(f->a, f->err);
    if (f->rc == 0) {
        if (tags_format_is_regular(f, node))
            next = f->rc == 0 ? add_pos(f, POS_TERM, tags_format_rx_of(f, node), next) : next;
        else
            next = emit_other(f, node, type, next);
    }
    f->depth--;
    return next;
}

int sl_tags_format(struct sl_auto *a, const json_t *doc, uint32_t *start, struct sl_error *err)
{
    struct format f = {.a = a, .err = err};
    const char *name;
    json_t *rule;
    f.special = json_object_get(doc, "special_tokens");
    uint32_t end = add_pos(&f, POS_END, 0, 0);
    json_object_foreach(json_object_get(doc, "rules"), name, rule)
    {
        if (f.n_rules == MAX_RULES)
            tags_format_fail(&f, SL_ELIMIT, "more than 64 rules", "");
        uint32_t pos = f.rc == 0 ? tags_format_emit(&f, rule, end) : 0;
        if (f.rc == 0)
            f.rules[f.n_rules++] = (struct rule){name, pos};
    }
    *start = f.rc == 0 ? tags_format_emit(&f, json_object_get(doc, "format"), end) : 0;
    return f.rc != 0 ? f.rc : sl_auto_check(a, err);
}
