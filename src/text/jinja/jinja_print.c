/* SPDX-License-Identifier: MIT
 *
 * Values as text: str() and repr() as Python writes them, and json.dumps as transformers' tojson
 * calls it. Everything is put behind the current output.
 */
#include "base/check.h"
#include "base/str.h"
#include "text/jinja/jinja.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int repr_at(struct sl_jvm *vm, struct sl_jval v, unsigned depth);

static int jinja_print_put_int(struct sl_jvm *vm, int64_t i)
{
    char text[24];
    return sl_jinja_put(vm, text, (size_t)snprintf(text, sizeof text, "%" PRId64, i));
}

/* The fewest digits that read back as x, laid out as Python's repr: 1e+16 and 1e-05 from there. */
size_t sl_jinja_float_repr(double x, char out[40])
{
    if (isnan(x) || isinf(x))
        return (size_t)snprintf(out, 40, "%s", isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
    char text[40], digits[20] = "";
    int precision = 0;
    do /* 17 digits are always enough */
        snprintf(text, sizeof text, "%.*e", precision++, x);
    while (strtod(text, NULL) != x);
    const char *s = text;
    size_t at = 0, n = 0;
    if (*s == '-') {
        out[at++] = '-';
        s++;
    }
    for (; *s != 'e'; s++)
        if (*s >= '0')
            digits[n++] = *s;
    long exp = 0;
    bool small = s[1] == '-'; /* a sign always follows */
    for (s += 2; *s != '\0'; s++)
        exp = exp * 10 + (*s - '0');
    exp = small ? -exp : exp;
    if (exp < -4 || exp >= 16) {
        out[at++] = digits[0];
        if (n > 1)
            out[at++] = '.';
        for (size_t i = 1; i < n; i++)
            out[at++] = digits[i];
        return at + (size_t)snprintf(out + at, 40 - at, "e%c%02ld", exp < 0 ? '-' : '+', labs(exp));
    }
    if (exp < 0) {
        out[at++] = '0';
        out[at++] = '.';
        for (long i = -1; i > exp; i--)
            out[at++] = '0';
    }
    for (size_t i = 0; i < n || (long)i <= exp; i++) {
        if (exp >= 0 && (long)i == exp + 1)
            out[at++] = '.';
        out[at++] = i < n ? digits[i] : '0';
    }
    if (exp >= 0 && (long)n <= exp + 1) {
        out[at++] = '.';
        out[at++] = '0';
    }
    out[at] = '\0';
    return at;
}

static int put_float(struct sl_jvm *vm, double x)
{
    char text[40];
    return sl_jinja_put(vm, text, sl_jinja_float_repr(x, text));
}

/* ---------------------------------------------------------------- repr */

static int repr_escape(struct sl_jvm *vm, uint32_t cp, const char *s, size_t len, char quote)
{
    char text[12];
    if (sl_jinja_burn(vm, 20) != 0)
        return vm->code;
    if (cp == (uint32_t)quote || cp == '\\')
        snprintf(text, sizeof text, "\\%c", (char)cp);
    else if (cp == '\n' || cp == '\r' || cp == '\t')
        snprintf(text, sizeof text, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
    else if (sl_jinja_is_printable(cp))
        return sl_jinja_put(vm, s, len);
    else if (cp < 0x100)
        snprintf(text, sizeof text, "\\x%02x", cp);
    else if (cp < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", cp);
    else
        snprintf(text, sizeof text, "\\U%08x", cp);
    return sl_jinja_puts(vm, text);
}

static int repr_str(struct sl_jvm *vm, const struct sl_jstr *s)
{
    bool single = s->n_bytes > 0 && memchr(s->data, '\'', s->n_bytes) != NULL;
    bool both = single && memchr(s->data, '"', s->n_bytes) != NULL;
    char quote = single && !both ? '"' : '\'';
    size_t plain = 0, i = 0;
    if (sl_jinja_put(vm, &quote, 1) != 0)
        return vm->code;
    while (i < s->n_bytes) {
        unsigned char c = (unsigned char)s->data[i];
        if (c >= 0x20 && c < 0x7F && c != '\\' && c != (unsigned char)quote) {
            i++;
            continue;
        }
        uint32_t cp = c;
        size_t len = sl_utf8_decode(s->data + i, s->n_bytes - i, &cp);
        SL_ASSERT(len > 0); /* strings are valid UTF-8 */
        if (sl_jinja_put(vm, s->data + plain, i - plain) != 0 ||
            repr_escape(vm, cp, s->data + i, len, quote) != 0)
            return vm->code;
        i += len;
        plain = i;
    }
    if (sl_jinja_put(vm, s->data + plain, i - plain) != 0)
        return vm->code;
    return sl_jinja_put(vm, &quote, 1);
}

static int repr_items(struct sl_jvm *vm, const struct sl_jlist *l, const char *open,
                      const char *close, unsigned depth)
{
    if (sl_jinja_puts(vm, open) != 0)
        return vm->code;
    for (size_t i = 0; i < l->n; i++)
        if ((i > 0 && sl_jinja_puts(vm, ", ") != 0) || repr_at(vm, l->items[i], depth + 1) != 0)
            return vm->code;
    return sl_jinja_puts(vm, close);
}

static int repr_dict(struct sl_jvm *vm, const struct sl_jdict *d, unsigned depth)
{
    if (sl_jinja_puts(vm, "{") != 0)
        return vm->code;
    for (size_t i = 0; i < d->n; i++)
        if ((i > 0 && sl_jinja_puts(vm, ", ") != 0) ||
            repr_at(vm, d->entries[i].key, depth + 1) != 0 || sl_jinja_puts(vm, ": ") != 0 ||
            repr_at(vm, d->entries[i].value, depth + 1) != 0)
            return vm->code;
    return sl_jinja_puts(vm, "}");
}

static int repr_view(struct sl_jvm *vm, struct sl_jval v, unsigned depth)
{
    static const char *const names[] = {"dict_keys([", "dict_values([", "dict_items(["};
    struct sl_jlist *l;
    if (sl_jinja_to_list(vm, v, &l) != 0)
        return vm->code;
    return repr_items(vm, l, names[v.kind], "])", depth);
}

static int repr_other(struct sl_jvm *vm, struct sl_jval v, unsigned depth)
{
    char text[120];
    switch (v.type) {
    case SL_J_RANGE:
        if (v.u.range->step == 1)
            snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ")", v.u.range->start,
                     v.u.range->stop);
        else
            snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")",
                     v.u.range->start, v.u.range->stop, v.u.range->step);
        break;
    case SL_J_NAMESPACE:
        if (sl_jinja_puts(vm, "<Namespace ") != 0 || repr_dict(vm, v.u.dict, depth) != 0)
            return vm->code;
        return sl_jinja_puts(vm, ">");
    case SL_J_MACRO:
        if (v.u.macro->node->val.type == SL_J_NONE)
            return sl_jinja_puts(vm, "<Macro anonymous>");
        snprintf(text, sizeof text, "<Macro '%.80s'>", v.u.macro->node->val.u.s->data);
        break;
    case SL_J_LOOP:
        snprintf(text, sizeof text, "<LoopContext %zu/%zu>", v.u.loop->index0 + 1, v.u.loop->n);
        break;
    case SL_J_ITER: /* Python adds an address, which no template can mean */
        snprintf(text, sizeof text, "<generator object %s>", v.u.iter->name);
        break;
    default:
        snprintf(text, sizeof text, "<%s object>", sl_jinja_type_name(v));
        break;
    }
    return sl_jinja_puts(vm, text);
}

static int json_value(struct sl_jvm *vm, struct sl_jval v, const struct sl_jinja_json *how,
                      unsigned depth);

static int repr_at(struct sl_jvm *vm, struct sl_jval v, unsigned depth)
{
    if (depth > SL_JINJA_MAX_NEST)
        return sl_jinja_fail(vm, "values are nested too deeply to print");
    switch (v.type) {
    case SL_J_UNDEFINED:
        return sl_jinja_puts(vm, vm->javascript ? "undefined" : "Undefined");
    case SL_J_NONE:
        return sl_jinja_puts(vm, vm->javascript ? "null" : "None");
    case SL_J_BOOL:
        if (vm->javascript)
            return sl_jinja_puts(vm, v.u.b ? "true" : "false");
        return sl_jinja_puts(vm, v.u.b ? "True" : "False");
    case SL_J_INT:
        return jinja_print_put_int(vm, v.u.i);
    case SL_J_FLOAT:
        return put_float(vm, v.u.f);
    case SL_J_STR:
        if (vm->javascript)
            return json_value(vm, v, &(struct sl_jinja_json){0}, depth);
        if (!v.markup)
            return repr_str(vm, v.u.s);
        if (sl_jinja_puts(vm, "Markup(") != 0 || repr_str(vm, v.u.s) != 0)
            return vm->code;
        return sl_jinja_puts(vm, ")");
    case SL_J_LIST:
        return repr_items(vm, v.u.list, "[", "]", depth);
    case SL_J_TUPLE:
        if (vm->javascript)
            return repr_items(vm, v.u.list, "[", "]", depth);
        return repr_items(vm, v.u.list, "(", v.u.list->n == 1 ? ",)" : ")", depth);
    case SL_J_DICT:
        return repr_dict(vm, v.u.dict, depth);
    case SL_J_VIEW:
        return repr_view(vm, v, depth);
    default:
        return repr_other(vm, v, depth);
    }
}

int sl_jinja_repr(struct sl_jvm *vm, struct sl_jval v)
{
    return repr_at(vm, v, 0);
}

int sl_jinja_print(struct sl_jvm *vm, struct sl_jval v)
{
    if (v.type == SL_J_STR)
        return sl_jinja_put(vm, v.u.s->data, v.u.s->n_bytes);
    if (v.type == SL_J_UNDEFINED)
        return 0;
    return repr_at(vm, v, 0);
}

int sl_jinja_to_str(struct sl_jvm *vm, struct sl_jval v, struct sl_jval *out)
{
    if (v.type == SL_J_STR) {
        *out = v;
        out->markup = 0;
        return 0;
    }
    size_t mark = vm->out->n_bytes;
    return sl_jinja_print(vm, v) != 0 ? vm->code : sl_jinja_take(vm, mark, out);
}

/* ---------------------------------------------------------------- JSON */

static int json_escape(struct sl_jvm *vm, uint32_t cp)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    char text[16];
    const char *simple = cp < 128 && cp != 0 ? strchr(from, (int)cp) : NULL;
    if (sl_jinja_burn(vm, 20) != 0)
        return vm->code;
    if (simple != NULL)
        snprintf(text, sizeof text, "\\%c", to[simple - from]);
    else if (cp < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", cp);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                 0xDC00 + ((cp - 0x10000) & 0x3FF));
    return sl_jinja_puts(vm, text);
}

static int json_str(struct sl_jvm *vm, const struct sl_jstr *s, bool ascii)
{
    size_t plain = 0, i = 0;
    if (sl_jinja_put(vm, "\"", 1) != 0)
        return vm->code;
    while (i < s->n_bytes) {
        unsigned char c = (unsigned char)s->data[i];
        if ((c >= 0x20 && c < 0x80 && c != '"' && c != '\\') || (c >= 0x80 && !ascii)) {
            i++;
            continue;
        }
        uint32_t cp = c;
        size_t len = sl_utf8_decode(s->data + i, s->n_bytes - i, &cp);
        if (sl_jinja_put(vm, s->data + plain, i - plain) != 0 || json_escape(vm, cp) != 0)
            return vm->code;
        SL_ASSERT(len > 0); /* strings are valid UTF-8 */
        i += len;
        plain = i;
    }
    if (sl_jinja_put(vm, s->data + plain, i - plain) != 0)
        return vm->code;
    return sl_jinja_put(vm, "\"", 1);
}

static int json_float(struct sl_jvm *vm, double x)
{
    if (isnan(x) || isinf(x))
        return sl_jinja_puts(vm, isnan(x) ? "NaN" : x < 0 ? "-Infinity" : "Infinity");
    return put_float(vm, x);
}

static int json_newline(struct sl_jvm *vm, const struct sl_jinja_json *how, unsigned depth)
{
    if (!how->pretty)
        return 0;
    if (sl_jinja_put(vm, "\n", 1) != 0)
        return vm->code;
    for (unsigned i = 0; i < depth; i++)
        if (sl_jinja_put(vm, how->indent->data, how->indent->n_bytes) != 0)
            return vm->code;
    return 0;
}

static int json_between(struct sl_jvm *vm, const struct sl_jinja_json *how, size_t i,
                        unsigned depth)
{
    if (i > 0 && sl_jinja_put(vm, how->item_sep->data, how->item_sep->n_bytes) != 0)
        return vm->code;
    return json_newline(vm, how, depth);
}

static int json_key(struct sl_jvm *vm, struct sl_jval key, const struct sl_jinja_json *how)
{
    bool bare = key.type == SL_J_INT || key.type == SL_J_FLOAT || key.type == SL_J_BOOL ||
                key.type == SL_J_NONE;
    if (key.type == SL_J_STR)
        return json_str(vm, key.u.s, how->ascii);
    if (!bare)
        return sl_jinja_fail(vm, "keys must be str, int, float, bool or None, not %s",
                             sl_jinja_type_name(key));
    if (sl_jinja_put(vm, "\"", 1) != 0 || json_value(vm, key, how, 0) != 0)
        return vm->code;
    return sl_jinja_put(vm, "\"", 1);
}

static int json_list(struct sl_jvm *vm, const struct sl_jlist *l, const struct sl_jinja_json *how,
                     unsigned depth)
{
    if (l->n == 0)
        return sl_jinja_puts(vm, "[]");
    if (sl_jinja_put(vm, "[", 1) != 0)
        return vm->code;
    for (size_t i = 0; i < l->n; i++)
        if (json_between(vm, how, i, depth + 1) != 0 ||
            json_value(vm, l->items[i], how, depth + 1) != 0)
            return vm->code;
    if (json_newline(vm, how, depth) != 0)
        return vm->code;
    return sl_jinja_put(vm, "]", 1);
}

static int json_dict(struct sl_jvm *vm, const struct sl_jdict *d, const struct sl_jinja_json *how,
                     unsigned depth)
{
    if (d->n == 0)
        return sl_jinja_puts(vm, "{}");
    struct sl_jval *keys = sl_jinja_array(vm, d->n, 2 * sizeof *keys);
    if (keys == NULL)
        return vm->code;
    struct sl_jval *values = keys + d->n;
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = d->entries[i].key;
        values[i] = d->entries[i].value;
    }
    if ((how->sort_keys && sl_jinja_sort(vm, keys, values, d->n, false) != 0) ||
        sl_jinja_put(vm, "{", 1) != 0)
        return vm->code;
    for (size_t i = 0; i < d->n; i++)
        if (json_between(vm, how, i, depth + 1) != 0 || json_key(vm, keys[i], how) != 0 ||
            sl_jinja_put(vm, how->key_sep->data, how->key_sep->n_bytes) != 0 ||
            json_value(vm, values[i], how, depth + 1) != 0)
            return vm->code;
    if (json_newline(vm, how, depth) != 0)
        return vm->code;
    return sl_jinja_put(vm, "}", 1);
}

static int json_value(struct sl_jvm *vm, struct sl_jval v, const struct sl_jinja_json *how,
                      unsigned depth)
{
    if (depth > SL_JINJA_MAX_NEST)
        return sl_jinja_fail(vm, "values are nested too deeply for tojson");
    switch (v.type) {
    case SL_J_NONE:
        return sl_jinja_puts(vm, "null");
    case SL_J_BOOL:
        return sl_jinja_puts(vm, v.u.b ? "true" : "false");
    case SL_J_INT:
        return jinja_print_put_int(vm, v.u.i);
    case SL_J_FLOAT:
        return json_float(vm, v.u.f);
    case SL_J_STR:
        return json_str(vm, v.u.s, how->ascii);
    case SL_J_LIST:
    case SL_J_TUPLE:
        return json_list(vm, v.u.list, how, depth);
    case SL_J_DICT:
        return json_dict(vm, v.u.dict, how, depth);
    case SL_J_UNDEFINED:
        if (vm->javascript)
            return sl_jinja_puts(vm, "null");
        /* fall through */
    default:
        return sl_jinja_fail(vm, "Object of type %s is not JSON serializable",
                             sl_jinja_type_name(v));
    }
}

int sl_jinja_json(struct sl_jvm *vm, struct sl_jval v, const struct sl_jinja_json *how)
{
    return json_value(vm, v, how, 0);
}
