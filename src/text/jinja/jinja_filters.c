/* SPDX-License-Identifier: MIT
 *
 * The table of filters, and those that work on one text or number. The ones over sequences stand in
 * jinja_filters_seq.c.
 */
#include "base/check.h"
#include "base/str.h"
#include "text/jinja/jinja.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *name;
    sl_jfilter_fn *fn;
} filters[] = {
#define SL_X(name) {#name, sl_jinja_f_##name},
#include "text/jinja/jinja_filters.def"
#undef SL_X
    {"count", sl_jinja_f_length},
    {"d", sl_jinja_f_default},
    {"e", sl_jinja_f_escape},
};

unsigned sl_jinja_filter_find(const char *name, size_t n)
{
    for (unsigned i = 0; i < SL_COUNT(filters); i++)
        if (strncmp(filters[i].name, name, n) == 0 && filters[i].name[n] == '\0')
            return i + 1;
    return 0;
}

int sl_jinja_filter(struct sl_jvm *vm, unsigned id, const char *name, struct sl_jval v,
                    const struct sl_jargs *args, struct sl_jval *out)
{
    if (id == 0)
        return sl_jinja_fail(vm, "No filter named '%.60s'", name);
    if (sl_jinja_burn(vm, 4) != 0)
        return vm->code;
    return filters[id - 1].fn(vm, v, args, out);
}

/* The text of v as soft_str gives it: keeps what |safe said. */
static int soft(struct sl_jvm *vm, struct sl_jval v, struct sl_jval *out)
{
    if (v.type == SL_J_STR) {
        *out = v;
        return 0;
    }
    return sl_jinja_to_str(vm, v, out);
}

static int jinja_filters_no_args(struct sl_jvm *vm, const char *what, const struct sl_jargs *args)
{
    if (args->n_pos + args->n_kw > 0)
        return sl_jinja_fail(vm, "the filter %s takes no arguments", what);
    return 0;
}

/* ---------------------------------------------------------------- escaping */

int sl_jinja_escape(struct sl_jvm *vm, struct sl_jval v, bool force, struct sl_jval *out)
{
    if (v.type == SL_J_STR && v.markup && !force) {
        *out = v;
        return 0;
    }
    if (sl_jinja_to_str(vm, v, &v) != 0)
        return vm->code;
    const struct sl_jstr *s = v.u.s;
    size_t mark = vm->out->n_bytes, plain = 0;
    for (size_t i = 0; i < s->n_bytes; i++) {
        const char *to = s->data[i] == '&'    ? "&amp;"
                         : s->data[i] == '<'  ? "&lt;"
                         : s->data[i] == '>'  ? "&gt;"
                         : s->data[i] == '"'  ? "&#34;"
                         : s->data[i] == '\'' ? "&#39;"
                                              : NULL;
        if (to == NULL)
            continue;
        if (sl_jinja_put(vm, s->data + plain, i - plain) != 0 || sl_jinja_puts(vm, to) != 0)
            return vm->code;
        plain = i + 1;
    }
    if (sl_jinja_put(vm, s->data + plain, s->n_bytes - plain) != 0 ||
        sl_jinja_burn(vm, s->n_bytes / 4) != 0 || sl_jinja_take(vm, mark, out) != 0)
        return vm->code;
    out->markup = 1;
    return 0;
}

int sl_jinja_f_escape(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                      struct sl_jval *out)
{
    return jinja_filters_no_args(vm, "escape", args) != 0 ? vm->code
                                                          : sl_jinja_escape(vm, v, false, out);
}

int sl_jinja_f_forceescape(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                           struct sl_jval *out)
{
    return jinja_filters_no_args(vm, "forceescape", args) != 0 ? vm->code
                                                               : sl_jinja_escape(vm, v, true, out);
}

int sl_jinja_f_safe(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                    struct sl_jval *out)
{
    if (jinja_filters_no_args(vm, "safe", args) != 0 || sl_jinja_to_str(vm, v, out) != 0)
        return vm->code;
    out->markup = 1;
    return 0;
}

int sl_jinja_f_xmlattr(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                       struct sl_jval *out)
{
    struct sl_jval a, text;
    bool first = true;
    if (sl_jinja_params(vm, "xmlattr", args, "autospace", 0, &a) != 0)
        return vm->code;
    bool space = a.type == SL_J_MISSING || sl_jinja_truth(a);
    if (v.type != SL_J_DICT)
        return sl_jinja_fail(vm, "xmlattr needs a mapping, not %s", sl_jinja_type_name(v));
    size_t mark = vm->out->n_bytes;
    for (size_t i = 0; i < v.u.dict->n; i++) {
        const struct sl_jentry *e = &v.u.dict->entries[i];
        const struct sl_jstr *key;
        if (e->value.type == SL_J_NONE || e->value.type == SL_J_UNDEFINED)
            continue;
        if (sl_jinja_want_str(vm, "xmlattr", e->key, &key) != 0)
            return vm->code;
        for (size_t k = 0; k < key->n_bytes; k++)
            if (strchr(" \t\n\r\f\v/>=", key->data[k]) != NULL)
                return sl_jinja_fail(vm, "invalid character in attribute name");
        if (((!first || space) && sl_jinja_put(vm, " ", 1) != 0) ||
            sl_jinja_escape(vm, e->key, false, &text) != 0 || sl_jinja_print(vm, text) != 0 ||
            sl_jinja_puts(vm, "=\"") != 0 || sl_jinja_escape(vm, e->value, false, &text) != 0 ||
            sl_jinja_print(vm, text) != 0 || sl_jinja_put(vm, "\"", 1) != 0)
            return vm->code;
        first = false;
    }
    return sl_jinja_take(vm, mark, out);
}

/* The code point of "&#65;" or "&#x41;" at s, as HTML has it; returns its length, 0: it is none. */
static size_t char_reference(const char *s, size_t n, uint32_t *cp)
{
    static const uint16_t windows[32] = {
        0x20AC, 0x81,   0x201A, 0x192,  0x201E, 0x2026, 0x2020, 0x2021, 0x2C6,  0x2030, 0x160,
        0x2039, 0x152,  0x8D,   0x17D,  0x8F,   0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
        0x2013, 0x2014, 0x2DC,  0x2122, 0x161,  0x203A, 0x153,  0x9D,   0x17E,  0x178};
    bool hex = n > 2 && (s[2] == 'x' || s[2] == 'X');
    size_t i = hex ? 3 : 2, from = i;
    uint64_t digit, v = 0;
    if (n < 3 || s[1] != '#')
        return 0;
    for (; i < n && sl_parse_hex_u64(s + i, 1, &digit) && (hex || digit < 10); i++)
        v = SL_MIN(v * (hex ? 16 : 10) + digit, 0x110000);
    if (i == from)
        return 0;
    bool none = v == 0 || v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF);
    *cp = none ? 0xFFFD : v >= 0x80 && v < 0xA0 ? windows[v - 0x80] : (uint32_t)v;
    return i + (i < n && s[i] == ';');
}

/* A reference to one of these stands for nothing. */
static bool is_no_character(uint32_t cp)
{
    return (cp < 0x20 && (cp < 0x09 || cp == 0x0B || cp > 0x0D)) || cp == 0x7F ||
           (cp >= 0xFDD0 && cp <= 0xFDEF) || (cp & 0xFFFE) == 0xFFFE;
}

/* Puts what the entity at s stands for; returns its length, 0: it is none of the common ones. */
static size_t put_entity(struct sl_jvm *vm, const char *s, size_t n)
{
    static const struct {
        const char *name, *text;
    } entities[] = {{"amp", "&"},   {"lt", "<"},    {"gt", ">"},
                    {"quot", "\""}, {"apos;", "'"}, {"nbsp", "\xC2\xA0"}};
    uint32_t cp;
    char text[4];
    size_t len = char_reference(s, n, &cp);
    if (len > 0) {
        if (!is_no_character(cp))
            sl_jinja_put(vm, text, sl_utf8_encode(cp, text));
        return len;
    }
    for (size_t e = 0; e < SL_COUNT(entities); e++) {
        len = strlen(entities[e].name) + 1;
        if (n < len || memcmp(s + 1, entities[e].name, len - 1) != 0)
            continue;
        sl_jinja_puts(vm, entities[e].text);
        return len + (s[len - 1] != ';' && n > len && s[len] == ';');
    }
    return 0;
}

/* The length of the tag or comment at s, 0: it does not end. */
static size_t tag_len(const char *s, size_t n)
{
    bool comment = n >= 4 && memcmp(s, "<!--", 4) == 0;
    const char *end = comment ? sl_jinja_find(s + 4, n - 4, "-->", 3) : memchr(s, '>', n);
    return end != NULL ? (size_t)(end - s) + (comment ? 3 : 1) : 0;
}

/* Tags and comments out, up to the first that does not end; runs of white space to one space; then
 * the common entities back, also those that a tag had split. */
int sl_jinja_f_striptags(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                         struct sl_jval *out)
{
    if (jinja_filters_no_args(vm, "striptags", args) != 0 || sl_jinja_to_str(vm, v, &v) != 0 ||
        sl_jinja_burn(vm, v.u.s->n_bytes) != 0)
        return vm->code;
    const char *s = v.u.s->data;
    size_t n = v.u.s->n_bytes, mark = vm->out->n_bytes;
    bool tags = true, after_space = true;
    for (size_t i = 0, len; i < n && vm->code == 0; i += len) {
        uint32_t cp = (unsigned char)s[i];
        len = tags && s[i] == '<' ? tag_len(s + i, n - i) : 0;
        if (len > 0)
            continue;
        tags = tags && s[i] != '<';
        len = SL_MAX(sl_utf8_decode(s + i, n - i, &cp), 1);
        bool space = sl_jinja_is_space(cp);
        if (!(space && after_space))
            sl_jinja_put(vm, space ? " " : s + i, space ? 1 : len);
        after_space = space;
    }
    if (after_space && vm->out->n_bytes > mark)
        vm->out->n_bytes--;
    if (vm->code != 0 || sl_jinja_take(vm, mark, &v) != 0)
        return vm->code;
    s = v.u.s->data;
    n = v.u.s->n_bytes;
    for (size_t i = 0, len; i < n && vm->code == 0; i += len) {
        len = s[i] == '&' ? put_entity(vm, s + i, n - i) : 0;
        if (len > 0)
            continue;
        for (len = 1; i + len < n && s[i + len] != '&';)
            len++;
        sl_jinja_put(vm, s + i, len);
    }
    return vm->code != 0 ? vm->code : sl_jinja_take(vm, mark, out);
}

/* ---------------------------------------------------------------- text */

static int recase(struct sl_jvm *vm, const char *what, struct sl_jval v,
                  const struct sl_jargs *args, enum sl_jcase how, struct sl_jval *out)
{
    if (jinja_filters_no_args(vm, what, args) != 0 || soft(vm, v, &v) != 0)
        return vm->code;
    return sl_jinja_recase(vm, v.u.s, how, out);
}

int sl_jinja_f_upper(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                     struct sl_jval *out)
{
    return recase(vm, "upper", v, args, SL_JCASE_UPPER, out);
}

int sl_jinja_f_lower(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                     struct sl_jval *out)
{
    return recase(vm, "lower", v, args, SL_JCASE_LOWER, out);
}

int sl_jinja_f_capitalize(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                          struct sl_jval *out)
{
    return recase(vm, "capitalize", v, args, SL_JCASE_CAPITALIZE, out);
}

/* Words begin after white space and -([{< only, so that "it's" becomes "It's". */
int sl_jinja_f_title(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                     struct sl_jval *out)
{
    if (jinja_filters_no_args(vm, "title", args) != 0 || soft(vm, v, &v) != 0 ||
        sl_jinja_burn(vm, v.u.s->n_bytes) != 0)
        return vm->code;
    const struct sl_jstr *s = v.u.s;
    size_t mark = vm->out->n_bytes;
    for (size_t i = 0; i < s->n_bytes;) {
        size_t from = i, at = i;
        while (i < s->n_bytes) { /* one word with the separators behind it */
            uint32_t cp = (unsigned char)s->data[i];
            size_t len = 1;
            if (cp >= 128)
                len = SL_MAX(sl_utf8_decode(s->data + i, s->n_bytes - i, &cp), 1);
            bool sep =
                sl_jinja_is_space(cp) || (cp < 128 && cp != 0 && strchr("-({[<", (int)cp) != NULL);
            if (!sep && at > from)
                break;
            i += len;
            if (sep)
                at = i;
        }
        size_t word = at > from ? at - from : i - from;
        size_t one = SL_MAX(sl_utf8_valid_len(s->data + from, word), 1);
        struct sl_jstr head = {.data = s->data + from, .n_bytes = one, .n_chars = SIZE_MAX};
        struct sl_jstr tail = {
            .data = s->data + from + one, .n_bytes = word - one, .n_chars = SIZE_MAX};
        struct sl_jval text;
        if (sl_jinja_recase(vm, &head, SL_JCASE_UPPER, &text) != 0 ||
            sl_jinja_print(vm, text) != 0 ||
            sl_jinja_recase(vm, &tail, SL_JCASE_LOWER, &text) != 0 || sl_jinja_print(vm, text) != 0)
            return vm->code;
        i = from + word;
    }
    return sl_jinja_take(vm, mark, out);
}

int sl_jinja_f_string(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                      struct sl_jval *out)
{
    return jinja_filters_no_args(vm, "string", args) != 0 ? vm->code : soft(vm, v, out);
}

int sl_jinja_f_trim(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                    struct sl_jval *out)
{
    struct sl_jval chars;
    const struct sl_jstr *set = NULL;
    if (sl_jinja_params(vm, "trim", args, "chars", 0, &chars) != 0 ||
        (chars.type != SL_J_MISSING && chars.type != SL_J_NONE &&
         sl_jinja_want_str(vm, "trim", chars, &set) != 0) ||
        soft(vm, v, &v) != 0)
        return vm->code;
    return sl_jinja_strip(vm, v, set, true, true, out);
}

int sl_jinja_f_replace(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                       struct sl_jval *out)
{
    struct sl_jval a[3];
    int64_t max = -1;
    if (sl_jinja_params(vm, "replace", args, "old,new,count", 2, a) != 0 ||
        (a[2].type != SL_J_MISSING && a[2].type != SL_J_NONE &&
         sl_jinja_want_int(vm, "replace", a[2], &max) != 0) ||
        sl_jinja_to_str(vm, v, &v) != 0 || sl_jinja_to_str(vm, a[0], &a[0]) != 0 ||
        sl_jinja_to_str(vm, a[1], &a[1]) != 0)
        return vm->code;
    return sl_jinja_replace(vm, v.u.s, a[0].u.s, a[1].u.s, max, out);
}

int sl_jinja_f_center(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                      struct sl_jval *out)
{
    struct sl_jval width;
    if (sl_jinja_params(vm, "center", args, "width", 0, &width) != 0 || soft(vm, v, &v) != 0)
        return vm->code;
    if (width.type == SL_J_MISSING)
        width = sl_jinja_int(80);
    struct sl_jargs one = {.pos = &width, .n_pos = 1};
    return sl_jinja_str_method(vm, v, SL_JMETHOD_center, &one, out);
}

static int put_indent(struct sl_jvm *vm, const struct sl_jstr *unit, int64_t width)
{
    if (unit != NULL)
        return sl_jinja_put(vm, unit->data, unit->n_bytes);
    for (int64_t i = 0; i < width; i++)
        if (sl_jinja_put(vm, " ", 1) != 0)
            return vm->code;
    return 0;
}

int sl_jinja_f_indent(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                      struct sl_jval *out)
{
    struct sl_jval a[3];
    int64_t width = 4;
    const struct sl_jstr *unit = NULL;
    struct sl_jlist *lines;
    if (sl_jinja_params(vm, "indent", args, "width,first,blank", 0, a) != 0)
        return vm->code;
    bool first = sl_jinja_truth(a[1]), blank = sl_jinja_truth(a[2]);
    if (a[0].type == SL_J_STR)
        unit = a[0].u.s;
    else if (a[0].type != SL_J_MISSING && sl_jinja_want_int(vm, "indent", a[0], &width) != 0)
        return vm->code;
    if (v.type != SL_J_STR)
        return sl_jinja_binary(vm, SL_JOP_ADD, v,
                               (struct sl_jval){.type = SL_J_STR, .u.s = &vm->empty}, out);
    /* with a newline added, as jinja2 does: an open last line is a line, and so is an empty text */
    struct sl_jval newline;
    if (sl_jinja_strz(vm, "\n", &newline) != 0 || sl_jinja_concat(vm, v, newline, &v) != 0 ||
        sl_jinja_splitlines(vm, v.u.s, false, &lines) != 0)
        return vm->code;
    size_t mark = vm->out->n_bytes;
    if (first && put_indent(vm, unit, width) != 0)
        return vm->code;
    for (size_t i = 0; i < lines->n; i++) {
        const struct sl_jstr *line = lines->items[i].u.s;
        if (i > 0 && (sl_jinja_put(vm, "\n", 1) != 0 ||
                      ((blank || line->n_bytes > 0) && put_indent(vm, unit, width) != 0)))
            return vm->code;
        if (sl_jinja_put(vm, line->data, line->n_bytes) != 0)
            return vm->code;
    }
    return sl_jinja_take(vm, mark, out);
}

int sl_jinja_f_truncate(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                        struct sl_jval *out)
{
    struct sl_jval a[4], head, end = {0};
    int64_t length = 255, leeway = 5;
    size_t n;
    if (sl_jinja_params(vm, "truncate", args, "length,killwords,end,leeway", 0, a) != 0 ||
        (a[0].type != SL_J_MISSING && sl_jinja_want_int(vm, "truncate", a[0], &length) != 0) ||
        (a[3].type != SL_J_MISSING && a[3].type != SL_J_NONE &&
         sl_jinja_want_int(vm, "truncate", a[3], &leeway) != 0))
        return vm->code;
    bool kill = sl_jinja_truth(a[1]);
    end = a[2];
    const struct sl_jstr *end_s, *s;
    if ((end.type == SL_J_MISSING && sl_jinja_strz(vm, "...", &end) != 0) ||
        sl_jinja_want_str(vm, "truncate", end, &end_s) != 0 || sl_jinja_length(vm, v, &n) != 0)
        return vm->code;
    int64_t keep = length - (int64_t)sl_jinja_chars(end_s);
    if (keep < 0 || leeway < 0)
        return sl_jinja_fail(vm, "truncate: the length is shorter than the end");
    *out = v;
    if ((int64_t)n <= length || (int64_t)n - length <= leeway)
        return 0;
    if (sl_jinja_want_str(vm, "truncate", v, &s) != 0)
        return vm->code;
    size_t to = sl_jinja_offset(s, (size_t)keep);
    for (size_t i = to; !kill && i > 0; i--) /* up to the last space */
        if (s->data[i - 1] == ' ') {
            to = i - 1;
            break;
        }
    if (sl_jinja_borrow(vm, s->data, to, &head) != 0)
        return vm->code;
    return sl_jinja_concat(vm, head, end, out);
}

int sl_jinja_f_wordcount(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                         struct sl_jval *out)
{
    int64_t n = 0;
    bool in_word = false;
    if (jinja_filters_no_args(vm, "wordcount", args) != 0 || soft(vm, v, &v) != 0 ||
        sl_jinja_burn(vm, v.u.s->n_bytes / 2) != 0)
        return vm->code;
    const struct sl_jstr *s = v.u.s;
    for (size_t i = 0, len; i < s->n_bytes; i += len) {
        uint32_t cp = (unsigned char)s->data[i];
        len = cp < 128 ? 1 : SL_MAX(sl_utf8_decode(s->data + i, s->n_bytes - i, &cp), 1);
        bool word = cp == '_' || sl_jinja_is_alpha(cp) || sl_jinja_is_numeric(cp);
        n += word && !in_word;
        in_word = word;
    }
    *out = sl_jinja_int(n);
    return 0;
}

int sl_jinja_f_format(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                      struct sl_jval *out)
{
    struct sl_jval arg;
    if (soft(vm, v, &v) != 0)
        return vm->code;
    if (args->n_pos > 0 && args->n_kw > 0)
        return sl_jinja_fail(vm, "format takes positional or keyword arguments, not both");
    if (args->n_kw > 0) {
        struct sl_jdict *d = sl_jinja_dict(vm, args->n_kw);
        for (size_t i = 0; d != NULL && i < args->n_kw; i++) {
            struct sl_jval key = {.type = SL_J_STR,
                                  .u.s = (struct sl_jstr *)(uintptr_t)args->kw[i].name};
            if (sl_jinja_dict_set(vm, d, key, args->kw[i].value) != 0)
                return vm->code;
        }
        arg = (struct sl_jval){.type = SL_J_DICT, .u.dict = d};
    } else {
        struct sl_jlist *l = sl_jinja_list(vm, args->n_pos);
        for (size_t i = 0; l != NULL && i < args->n_pos; i++)
            if (sl_jinja_push(vm, l, args->pos[i]) != 0)
                return vm->code;
        arg = sl_jinja_tuple_val(l);
    }
    return vm->code != 0 ? vm->code : sl_jinja_percent(vm, v.u.s, arg, out);
}

static int quote_url(struct sl_jvm *vm, struct sl_jval v, bool query)
{
    static const char hex[] = "0123456789ABCDEF";
    if (sl_jinja_to_str(vm, v, &v) != 0 || sl_jinja_burn(vm, v.u.s->n_bytes) != 0)
        return vm->code;
    for (size_t i = 0; i < v.u.s->n_bytes; i++) {
        unsigned char c = (unsigned char)v.u.s->data[i];
        char text[3] = {'%', hex[c >> 4], hex[c & 15]};
        bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
                     (c != 0 && strchr("_.-~", c) != NULL) || (c == '/' && !query);
        if (query && c == ' ' ? sl_jinja_put(vm, "+", 1) != 0
            : plain           ? sl_jinja_put(vm, (const char *)&c, 1) != 0
                              : sl_jinja_put(vm, text, 3) != 0)
            return vm->code;
    }
    return 0;
}

int sl_jinja_f_urlencode(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                         struct sl_jval *out)
{
    struct sl_jseq seq;
    struct sl_jval item;
    size_t mark = vm->out->n_bytes;
    if (jinja_filters_no_args(vm, "urlencode", args) != 0)
        return vm->code;
    if (v.type == SL_J_STR || !sl_jinja_iterable(v))
        return quote_url(vm, v, false) != 0 ? vm->code : sl_jinja_take(vm, mark, out);
    if (v.type == SL_J_DICT)
        v = (struct sl_jval){.type = SL_J_VIEW, .kind = SL_JVIEW_ITEMS, .u.dict = v.u.dict};
    if (sl_jinja_iter(vm, v, &seq) != 0) /* unreachable: true, only of text, which was above */
        return vm->code;
    for (bool first = true; sl_jinja_next(vm, &seq, &item); first = false) {
        struct sl_jlist *pair;
        if (sl_jinja_to_list(vm, item, &pair) != 0)
            return vm->code;
        if (pair->n != 2)
            return sl_jinja_fail(vm, "urlencode needs pairs");
        if ((!first && sl_jinja_put(vm, "&", 1) != 0) || quote_url(vm, pair->items[0], true) != 0 ||
            sl_jinja_put(vm, "=", 1) != 0 || quote_url(vm, pair->items[1], true) != 0)
            return vm->code;
    }
    return vm->code != 0 ? vm->code : sl_jinja_take(vm, mark, out);
}

int sl_jinja_f_pprint(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                      struct sl_jval *out)
{
    size_t mark = vm->out->n_bytes;
    if (jinja_filters_no_args(vm, "pprint", args) != 0 || sl_jinja_repr(vm, v) != 0)
        return vm->code;
    return sl_jinja_take(vm, mark, out);
}

/* ---------------------------------------------------------------- numbers */

int sl_jinja_f_abs(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                   struct sl_jval *out)
{
    if (jinja_filters_no_args(vm, "abs", args) != 0)
        return vm->code;
    bool negative = v.type == SL_J_INT ? v.u.i < 0 : v.type == SL_J_FLOAT && signbit(v.u.f);
    return sl_jinja_unary(vm, negative, v, out);
}

/* A number as Python's float("...") and int("...", base) read it: spaces around, _ between. */
static bool clean_number(const struct sl_jstr *s, char *text, size_t cap)
{
    size_t from = 0, to = s->n_bytes, n = 0;
    while (from < to && sl_jinja_is_space((unsigned char)s->data[from]))
        from++;
    while (to > from && sl_jinja_is_space((unsigned char)s->data[to - 1]))
        to--;
    for (size_t i = from; i < to; i++) {
        char c = s->data[i];
        bool between = i > from && i + 1 < to && s->data[i - 1] != '_' &&
                       ((s->data[i - 1] | 0x20) >= 'a' || s->data[i - 1] <= '9') &&
                       s->data[i + 1] != '_';
        if (c == '_' && between)
            continue;
        if (c == '\0' || c == '_' || n + 1 >= cap)
            return false;
        text[n++] = c;
    }
    text[n] = '\0';
    return n > 0;
}

static bool parse_float(const struct sl_jstr *s, double *out)
{
    char text[512], *end;
    if (!clean_number(s, text, sizeof text))
        return false;
    const char *t = text + (text[0] == '-' || text[0] == '+');
    bool digits = (*t >= '0' && *t <= '9') || (*t == '.' && t[1] >= '0' && t[1] <= '9');
    if (digits && (t[1] == 'x' || t[1] == 'X'))
        return false;
    *out = strtod(text, &end);
    if (!digits && strcasecmp(t, "inf") != 0 && strcasecmp(t, "infinity") != 0 &&
        strcasecmp(t, "nan") != 0)
        return false;
    return *end == '\0';
}

int sl_jinja_f_filesizeformat(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                              struct sl_jval *out)
{
    static const char prefixes[] = "kMGTPEZY";
    struct sl_jval a, f;
    struct sl_jargs none = {0};
    if (sl_jinja_params(vm, "filesizeformat", args, "binary", 0, &a) != 0 ||
        sl_jinja_f_float(vm, v, &none, &f) != 0)
        return vm->code;
    if (!sl_jinja_is_number(v) && (v.type != SL_J_STR || !parse_float(v.u.s, &f.u.f)))
        return sl_jinja_fail(vm, "filesizeformat needs a number, not %s", sl_jinja_type_name(v));
    char text[400];
    bool binary = sl_jinja_truth(a);
    double base = binary ? 1024.0 : 1000.0, unit = base;
    if (f.u.f == 1.0) {
        snprintf(text, sizeof text, "1 Byte");
    } else if (f.u.f < base) {
        snprintf(text, sizeof text, "%.0f Bytes", trunc(f.u.f) + 0.0);
    } else {
        size_t i = 0;
        while (i < 7 && f.u.f >= unit * base) {
            unit *= base;
            i++;
        }
        char prefix = binary && i == 0 ? 'K' : prefixes[i];
        snprintf(text, sizeof text, "%.1f %c%s", f.u.f / unit, prefix, binary ? "iB" : "B");
    }
    return sl_jinja_strz(vm, text, out);
}

/* 1: read; 0: not an integer; -1: too long for 64 bits */
static int parse_int(const struct sl_jstr *s, int64_t base, int64_t *out)
{
    char text[300];
    if (!clean_number(s, text, sizeof text))
        return 0;
    bool minus = text[0] == '-', too_long = false;
    const char *t = text + (minus || text[0] == '+');
    char prefix = t[0] == '0' ? (char)(t[1] | 0x20) : 0;
    int64_t of = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 0;
    if (base == 0) {
        base = of != 0 ? of : 10;
        if (of == 0 && t[0] == '0' && strspn(t, "0") != strlen(t))
            return 0;
    }
    if (of == base)
        t += 2;
    if (*t == '\0')
        return 0;
    uint64_t v = 0;
    for (; *t != '\0'; t++) {
        char c = (char)(*t | 0x20);
        int64_t digit = *t >= '0' && *t <= '9' ? *t - '0'
                        : c >= 'a' && c <= 'z' ? c - 'a' + 10
                                               : 99;
        if (digit >= base)
            return 0;
        too_long |= !sl_mul_u64(v, (uint64_t)base, &v) || !sl_add_u64(v, (uint64_t)digit, &v);
    }
    if (too_long || v > (uint64_t)INT64_MAX + minus)
        return -1;
    *out = minus ? (int64_t)(0 - v) : (int64_t)v;
    return 1;
}

/* int(float): false for NaN and infinities, which give the default. */
static int truncate_float(struct sl_jvm *vm, double f, bool *ok, struct sl_jval *out)
{
    *ok = isfinite(f);
    if (!*ok)
        return 0;
    if (fabs(f) >= 0x1p63)
        return sl_jinja_fail(vm, "integer overflow");
    *out = sl_jinja_int((int64_t)f);
    return 0;
}

int sl_jinja_f_int(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                   struct sl_jval *out)
{
    struct sl_jval a[2];
    int64_t base = 10, i;
    double f;
    bool ok = false;
    if (sl_jinja_params(vm, "int", args, "default,base", 0, a) != 0 ||
        (a[1].type != SL_J_MISSING && sl_jinja_want_int(vm, "int", a[1], &base) != 0))
        return vm->code;
    if (v.type == SL_J_UNDEFINED)
        return sl_jinja_unary(vm, false, v, out);
    *out = a[0].type != SL_J_MISSING ? a[0] : sl_jinja_int(0);
    if (v.type == SL_J_INT || v.type == SL_J_BOOL)
        return sl_jinja_unary(vm, false, v, out);
    if (v.type == SL_J_FLOAT)
        return truncate_float(vm, v.u.f, &ok, out);
    if (v.type != SL_J_STR)
        return 0;
    if (base == 0 || (base >= 2 && base <= 36)) {
        int got = parse_int(v.u.s, base, &i);
        if (got < 0)
            return sl_jinja_fail(vm, "integer overflow");
        if (got > 0) {
            *out = sl_jinja_int(i);
            return 0;
        }
    }
    return parse_float(v.u.s, &f) ? truncate_float(vm, f, &ok, out) : 0;
}

int sl_jinja_f_float(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                     struct sl_jval *out)
{
    struct sl_jval a;
    double f;
    if (sl_jinja_params(vm, "float", args, "default", 0, &a) != 0)
        return vm->code;
    if (v.type == SL_J_UNDEFINED)
        return sl_jinja_unary(vm, false, v, out);
    *out = a.type != SL_J_MISSING ? a : sl_jinja_float(0.0);
    if (sl_jinja_is_number(v))
        *out = sl_jinja_float(sl_jinja_as_double(v));
    else if (v.type == SL_J_STR && parse_float(v.u.s, &f))
        *out = sl_jinja_float(f);
    return 0;
}

/* round() to a number of decimals: as the shortest decimal of that length, half to even */
static double round_to(double x, int64_t decimals)
{
    if (!isfinite(x) || decimals > 320)
        return x;
    if (decimals < -310)
        return copysign(0.0, x);
    if (decimals < 0) {
        double scale = pow(10.0, (double)-decimals);
        return isfinite(scale) ? nearbyint(x / scale) * scale : copysign(0.0, x);
    }
    char text[700];
    snprintf(text, sizeof text, "%.*f", (int)decimals, x);
    return strtod(text, NULL);
}

int sl_jinja_f_round(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                     struct sl_jval *out)
{
    struct sl_jval a[2];
    int64_t precision = 0;
    if (sl_jinja_params(vm, "round", args, "precision,method", 0, a) != 0 ||
        (a[0].type != SL_J_MISSING && sl_jinja_want_int(vm, "round", a[0], &precision) != 0))
        return vm->code;
    bool common = a[1].type == SL_J_MISSING;
    bool ceiling = false, flooring = false;
    if (a[1].type == SL_J_STR) {
        common = sl_jinja_str_is(a[1].u.s, "common");
        ceiling = sl_jinja_str_is(a[1].u.s, "ceil");
        flooring = sl_jinja_str_is(a[1].u.s, "floor");
    }
    if (!common && !ceiling && !flooring)
        return sl_jinja_fail(vm, "method must be common, ceil or floor");
    if (!sl_jinja_is_number(v))
        return sl_jinja_unary(vm, false, v, out);
    double x = sl_jinja_as_double(v);
    if (common && v.type != SL_J_FLOAT) { /* ints stay ints */
        if (precision >= 0)
            return sl_jinja_unary(vm, false, v, out);
        *out = sl_jinja_int((int64_t)round_to(x, precision));
    } else if (common) {
        *out = sl_jinja_float(round_to(x, precision));
    } else {
        double scale = pow(10.0, (double)precision);
        if (!isfinite(x * scale))
            return sl_jinja_fail(vm, "cannot convert float infinity to integer");
        *out = sl_jinja_float(((ceiling ? ceil(x * scale) : floor(x * scale)) + 0.0) / scale);
    }
    return 0;
}

/* ---------------------------------------------------------------- any value */

int sl_jinja_f_default(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                       struct sl_jval *out)
{
    struct sl_jval a[2];
    if (sl_jinja_params(vm, "default", args, "default_value,boolean", 0, a) != 0)
        return vm->code;
    *out = v;
    if (v.type == SL_J_UNDEFINED || (sl_jinja_truth(a[1]) && !sl_jinja_truth(v)))
        *out = a[0].type != SL_J_MISSING ? a[0]
                                         : (struct sl_jval){.type = SL_J_STR, .u.s = &vm->empty};
    return 0;
}

int sl_jinja_f_attr(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                    struct sl_jval *out)
{
    struct sl_jval a;
    const struct sl_jstr *name;
    if (sl_jinja_params(vm, "attr", args, "name", 1, &a) != 0 ||
        sl_jinja_want_str(vm, "attr", a, &name) != 0)
        return vm->code;
    if (v.type == SL_J_DICT) { /* attributes only, never keys */
        struct sl_jdict none = {0};
        v.u.dict = &none;
        unsigned id = sl_jinja_method_find(name->data, name->n_bytes);
        if (!sl_jinja_has_method(SL_J_DICT, id))
            return sl_jinja_getattr(vm, v, id, name, out);
        return sl_jinja_fail(vm, "attr() of a method is not supported");
    }
    return sl_jinja_getattr(vm, v, sl_jinja_method_find(name->data, name->n_bytes), name, out);
}

int sl_jinja_f_tojson(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                      struct sl_jval *out)
{
    struct sl_jval a[4], spaces;
    struct sl_jstr comma = {.data = ", ", .n_bytes = 2}, colon = {.data = ": ", .n_bytes = 2};
    struct sl_jinja_json how = {.item_sep = &comma, .key_sep = &colon, .indent = &vm->empty};
    if (sl_jinja_params(vm, "tojson", args, "ensure_ascii,indent,separators,sort_keys", 0, a) != 0)
        return vm->code;
    how.ascii = sl_jinja_truth(a[0]);
    how.sort_keys = sl_jinja_truth(a[3]);
    if (a[1].type != SL_J_MISSING && a[1].type != SL_J_NONE) {
        how.pretty = true;
        comma.n_bytes = 1;
        if (a[1].type == SL_J_STR) {
            how.indent = a[1].u.s;
        } else {
            int64_t width;
            if (sl_jinja_want_int(vm, "tojson(indent)", a[1], &width) != 0)
                return vm->code;
            struct sl_jval n = sl_jinja_int(width), one = sl_jinja_none();
            if (sl_jinja_strz(vm, " ", &one) != 0 ||
                sl_jinja_binary(vm, SL_JOP_MUL, one, n, &spaces) != 0)
                return vm->code;
            how.indent = spaces.u.s;
        }
    }
    if (a[2].type != SL_J_MISSING && a[2].type != SL_J_NONE) {
        struct sl_jlist *pair;
        if (sl_jinja_to_list(vm, a[2], &pair) != 0)
            return vm->code;
        if (pair->n != 2 || pair->items[0].type != SL_J_STR || pair->items[1].type != SL_J_STR)
            return sl_jinja_fail(vm, "tojson(separators) needs two strings");
        how.item_sep = pair->items[0].u.s;
        how.key_sep = pair->items[1].u.s;
    }
    size_t mark = vm->out->n_bytes;
    return sl_jinja_json(vm, v, &how) != 0 ? vm->code : sl_jinja_take(vm, mark, out);
}
