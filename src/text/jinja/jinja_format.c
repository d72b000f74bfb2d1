/* SPDX-License-Identifier: MIT
 *
 * "%5.2f" % x and "{:>5}".format(x). Widths are bounded by the output limit, conversions of numbers
 * go through snprintf with a precision that cannot overflow its buffer.
 */
#include "base/check.h"
#include "base/str.h"
#include "text/jinja/jinja.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_PRECISION 300

struct spec {
    char fill[4];
    size_t fill_bytes;
    char align; /* < > ^ = or 0 */
    char sign;  /* + space - or 0 */
    bool alternate, zero;
    bool aligned, empty;      /* format(): an align was given; nothing was */
    char comma;               /* , or _ between thousands */
    int64_t width, precision; /* precision -1: not given */
    char type;                /* 0: by the value */
};

static int put_fill(struct sl_jvm *vm, const struct spec *sp, int64_t n)
{
    for (; n > 0; n--)
        if (sl_jinja_put(vm, sp->fill, sp->fill_bytes) != 0)
            return vm->code;
    return 0;
}

/* prefix (sign, 0x), zeros and body in the field; '=' pads between prefix and zeros. */
static int put_field(struct sl_jvm *vm, const struct spec *sp, char align, const char *prefix,
                     int64_t zeros, const char *body, size_t n)
{
    static const struct spec zero = {.fill = "0", .fill_bytes = 1};
    struct sl_jstr t = {.data = body, .n_bytes = n, .n_chars = SIZE_MAX};
    int64_t pad = sp->width - (int64_t)strlen(prefix) - zeros - (int64_t)sl_jinja_chars(&t);
    int64_t left = pad <= 0 ? 0 : align == '>' || align == '=' ? pad : align == '^' ? pad / 2 : 0;
    if ((align != '=' && put_fill(vm, sp, left) != 0) || sl_jinja_puts(vm, prefix) != 0 ||
        (align == '=' && put_fill(vm, sp, left) != 0) || put_fill(vm, &zero, zeros) != 0 ||
        sl_jinja_put(vm, body, n) != 0)
        return vm->code;
    return pad > left ? put_fill(vm, sp, pad - left) : 0;
}

/* One conversion does about as much as so many steps of an expression. */
#define CONVERSION_FUEL 4

static const char *sign_text(bool negative, char sign)
{
    return negative ? "-" : sign == '+' ? "+" : sign == ' ' ? " " : "";
}

/* Digits of v in base, most significant first. */
static size_t digits_of(uint64_t v, unsigned base, bool upper, char out[65])
{
    char tmp[65];
    size_t n = 0;
    do {
        unsigned d = (unsigned)(v % base);
        tmp[n++] = (char)(d < 10 ? '0' + d : (upper ? 'A' : 'a') + d - 10);
        v /= base;
    } while (v > 0);
    for (size_t i = 0; i < n; i++)
        out[i] = tmp[n - 1 - i];
    return n;
}

static size_t group_digits(char *s, size_t n, size_t whole, char comma, unsigned every)
{
    size_t extra = whole > 0 ? (whole - 1) / every : 0;
    memmove(s + whole + extra, s + whole, n - whole);
    for (size_t i = whole, to = whole + extra, k = 0; to > i;) {
        s[--to] = s[--i];
        if (++k % every == 0)
            s[--to] = comma;
    }
    return n + extra;
}

/* A number whose first `whole` characters are digits, with a mark between every so many of them;
 * zeros that fill the field are digits too. */
static int put_grouped(struct sl_jvm *vm, const struct spec *sp, const char *prefix, char *body,
                       size_t n, size_t whole, unsigned every)
{
    char align = sp->align != 0 ? sp->align : '>';
    int64_t room = sp->width - (int64_t)strlen(prefix) - (int64_t)(n - whole);
    n = group_digits(body, n, whole, sp->comma, every);
    if (align != '=' || sp->fill[0] != '0' || whole == 0)
        return put_field(vm, sp, align, prefix, 0, body, n);
    /* the least number of digits that fills the room, which no mark may begin */
    int64_t digits = room - room / (every + 1) + (room % (every + 1) == 0);
    sl_jinja_puts(vm, prefix);
    for (; digits > (int64_t)whole && vm->code == 0; digits--) {
        sl_jinja_put(vm, "0", 1);
        if ((digits - 1) % every == 0)
            sl_jinja_put(vm, &sp->comma, 1);
    }
    return vm->code != 0 ? vm->code : sl_jinja_put(vm, body, n);
}

static int jinja_format_put_int(struct sl_jvm *vm, const struct spec *sp, int64_t v, char type)
{
    char body[140], prefix[8];
    unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    uint64_t magnitude = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    size_t n = digits_of(magnitude, base, type == 'X', body);
    snprintf(prefix, sizeof prefix, "%s%s%s", sign_text(v < 0, sp->sign),
             sp->alternate && base != 10 ? "0" : "",
             !sp->alternate || base == 10 ? ""
             : base == 16                 ? (type == 'X' ? "X" : "x")
             : base == 8                  ? "o"
                                          : "b");
    if (sp->comma != 0)
        return put_grouped(vm, sp, prefix, body, n, n, base == 10 ? 3 : 4);
    int64_t zeros = SL_MAX(sp->precision - (int64_t)n, 0); /* of %d: the least number of digits */
    return put_field(vm, sp, sp->align != 0 ? sp->align : '>', prefix, zeros, body, n);
}

/* %g. Without a type a float keeps looking like one: ".0", or an exponent where %g has room for
 * just the digits before the point. */
static size_t put_general(char *body, size_t cap, int precision, double magnitude, bool no_type,
                          bool alternate)
{
    const char *form = alternate ? "%#.*g" : "%.*g";
    if (no_type) {
        size_t n =
            (size_t)snprintf(body, cap, alternate ? "%#.*e" : "%.*e", precision - 1, magnitude);
        const char *e = memchr(body, 'e', n);
        int64_t exponent = 0;
        for (const char *s = e + 2; *s != '\0'; s++)
            exponent = exponent * 10 + (*s - '0');
        if (alternate && e[1] == '+' && exponent == precision - 1)
            return n;
        if (e[1] == '+' && exponent == precision - 1) {
            size_t digits = (size_t)(e - body), rest = n - digits;
            if (memchr(body, '.', digits) != NULL)
                while (body[digits - 1] == '0')
                    digits--;
            digits -= body[digits - 1] == '.';
            memmove(body + digits, e, rest + 1);
            return digits + rest;
        }
    }
    size_t n = (size_t)snprintf(body, cap, form, precision, magnitude);
    if (no_type && strpbrk(body, ".e") == NULL) {
        memcpy(body + n, ".0", 3);
        n += 2;
    }
    return n;
}

static int put_double(struct sl_jvm *vm, const struct spec *sp, double x, char type)
{
    char body[MAX_PRECISION * 2 + 400];
    bool negative = signbit(x) && !isnan(x), percent = type == '%';
    double magnitude = fabs(percent ? x * 100.0 : x);
    const char *sign = sign_text(negative, sp->sign);
    int precision = sp->precision < 0 ? 6 : (int)SL_MIN(sp->precision, MAX_PRECISION);
    size_t n;
    if (type == 0 && sp->precision < 0) {
        char text[40];
        n = sl_jinja_float_repr(magnitude, text);
        const char *e = memchr(text, 'e', n);
        size_t digits = e != NULL ? (size_t)(e - text) : n;
        bool point = sp->alternate && e != NULL && memchr(text, '.', digits) == NULL;
        memcpy(body, text, digits);
        memcpy(body + digits, ".", point);
        memcpy(body + digits + point, text + digits, n - digits);
        n += point;
    } else if (isnan(x) || isinf(x)) {
        n = (size_t)snprintf(body, sizeof body, "%s", isnan(x) ? "nan" : "inf");
    } else if (type == 'e' || type == 'E') {
        n = (size_t)snprintf(body, sizeof body, sp->alternate ? "%#.*e" : "%.*e", precision,
                             magnitude);
    } else if (type == 'f' || type == 'F' || percent) {
        n = (size_t)snprintf(body, sizeof body, sp->alternate ? "%#.*f" : "%.*f", precision,
                             magnitude);
    } else {
        n = put_general(body, sizeof body, SL_MAX(precision, 1), magnitude, type == 0,
                        sp->alternate);
    }
    if (type == 'E' || type == 'F' || type == 'G')
        for (size_t i = 0; i < n; i++)
            if (body[i] >= 'a')
                body[i] = (char)(body[i] - 32);
    if (percent)
        body[n++] = '%';
    if (sp->comma != 0) {
        size_t whole = 0;
        while (whole < n && body[whole] >= '0' && body[whole] <= '9')
            whole++;
        return put_grouped(vm, sp, sign, body, n, whole, 3);
    }
    return put_field(vm, sp, sp->align != 0 ? sp->align : '>', sign, 0, body, n);
}

static int jinja_format_put_text(struct sl_jvm *vm, const struct spec *sp, const struct sl_jstr *s)
{
    size_t n = s->n_bytes;
    if (sp->precision >= 0 && (size_t)sp->precision < sl_jinja_chars(s))
        n = sl_jinja_offset(s, (size_t)sp->precision);
    char align = sp->align != 0 ? sp->align : '<';
    return put_field(vm, sp, align, "", 0, s->data, n);
}

/* The character of a number. */
static int put_char(struct sl_jvm *vm, const struct spec *sp, struct sl_jval v)
{
    char text[4];
    struct sl_jstr s = {.data = text, .n_chars = 1};
    int64_t cp = v.type == SL_J_INT ? v.u.i : v.type == SL_J_BOOL ? (int64_t)v.u.b : -1;
    if (cp >= 0 && cp < 0x110000)
        s.n_bytes = sl_utf8_encode((uint32_t)cp, text);
    if (s.n_bytes == 0)
        return sl_jinja_fail(vm, "%%c requires a character or the number of one");
    return jinja_format_put_text(vm, sp, &s);
}

/* ---------------------------------------------------------------- percent */

struct percent {
    const char *s, *end;
    struct sl_jval arg;
    size_t used; /* items of a tuple taken */
    bool keyed;
};

static int next_arg(struct sl_jvm *vm, struct percent *p, struct sl_jval *out)
{
    if (p->arg.type == SL_J_TUPLE) {
        if (p->used >= p->arg.u.list->n)
            return sl_jinja_fail(vm, "not enough arguments for format string");
        *out = p->arg.u.list->items[p->used++];
        return 0;
    }
    if (p->used++ > 0)
        return sl_jinja_fail(vm, "not enough arguments for format string");
    *out = p->arg;
    return 0;
}

/* A number or * at p->s. */
static int percent_number(struct sl_jvm *vm, struct percent *p, int64_t *out)
{
    struct sl_jval v;
    if (p->s < p->end && *p->s == '*') {
        p->s++;
        return next_arg(vm, p, &v) != 0 ? vm->code : sl_jinja_want_int(vm, "* in a format", v, out);
    }
    for (*out = 0; p->s < p->end && *p->s >= '0' && *p->s <= '9'; p->s++) {
        *out = *out * 10 + (*p->s - '0');
        if (*out > INT32_MAX)
            return sl_jinja_fail(vm, "a width in a format string is too big");
    }
    return 0;
}

static int percent_key(struct sl_jvm *vm, struct percent *p, struct sl_jval *v)
{
    const char *from = ++p->s;
    unsigned nest = 1;
    for (; p->s < p->end; p->s++) {
        nest += *p->s == '(';
        if (*p->s == ')' && --nest == 0)
            break;
    }
    if (p->s >= p->end)
        return sl_jinja_fail(vm, "incomplete format key");
    struct sl_jval key;
    if (p->arg.type != SL_J_DICT)
        return sl_jinja_fail(vm, "format requires a mapping");
    if (sl_jinja_borrow(vm, from, (size_t)(p->s++ - from), &key) != 0 ||
        sl_jinja_dict_get(vm, p->arg.u.dict, key, true, v) != 0)
        return vm->code;
    p->keyed = true;
    return v->type != SL_J_MISSING ? 0 : sl_jinja_fail(vm, "a key of a format is missing");
}

static int percent_int(struct sl_jvm *vm, struct spec *sp, struct sl_jval v)
{
    char type = sp->type == 'i' || sp->type == 'u' ? 'd' : sp->type;
    if (v.type == SL_J_FLOAT && type == 'd') {
        if (!isfinite(v.u.f) || fabs(v.u.f) >= 0x1p63)
            return sl_jinja_fail(vm, "cannot convert this float to an integer");
        v = sl_jinja_int((int64_t)v.u.f);
    }
    if (v.type != SL_J_INT && v.type != SL_J_BOOL)
        return sl_jinja_fail(vm, "%%%c format: a number is required, not %s", type,
                             sl_jinja_type_name(v));
    int64_t i = v.type == SL_J_INT ? v.u.i : v.u.b;
    return jinja_format_put_int(vm, sp, i, type);
}

/* Python's ascii(): what is not, escaped. */
static int put_ascii(struct sl_jvm *vm, const struct sl_jstr *s)
{
    for (size_t i = 0, len; i < s->n_bytes; i += len) {
        uint32_t cp = (unsigned char)s->data[i];
        char text[12];
        len = SL_MAX(sl_utf8_decode(s->data + i, s->n_bytes - i, &cp), 1);
        if (cp < 128) {
            if (sl_jinja_put(vm, s->data + i, 1) != 0)
                return vm->code;
            continue;
        }
        snprintf(text, sizeof text,
                 cp < 0x100     ? "\\x%02" PRIx32
                 : cp < 0x10000 ? "\\u%04" PRIx32
                                : "\\U%08" PRIx32,
                 cp);
        if (sl_jinja_puts(vm, text) != 0)
            return vm->code;
    }
    return 0;
}

static int percent_value(struct sl_jvm *vm, struct spec *sp, struct sl_jval v)
{
    struct sl_jval text;
    size_t mark = vm->out->n_bytes;
    if (sp->align == 0)
        sp->align = '>';
    switch (sp->type) {
    case 's':
        if (sp->align == '=')
            sp->align = '>';
        sp->fill[0] = ' ';
        return sl_jinja_to_str(vm, v, &text) != 0 ? vm->code
                                                  : jinja_format_put_text(vm, sp, text.u.s);
    case 'r':
    case 'a':
        sp->fill[0] = ' ';
        if (sl_jinja_repr(vm, v) != 0 || sl_jinja_take(vm, mark, &text) != 0)
            return vm->code;
        if (sp->type == 'a' &&
            (put_ascii(vm, text.u.s) != 0 || sl_jinja_take(vm, mark, &text) != 0))
            return vm->code;
        return jinja_format_put_text(vm, sp, text.u.s);
    case 'c':
        sp->fill[0] = ' ';
        sp->align = sp->align == '=' ? '>' : sp->align;
        sp->precision = -1;
        if (v.type == SL_J_STR && sl_jinja_chars(v.u.s) == 1)
            return jinja_format_put_text(vm, sp, v.u.s);
        return put_char(vm, sp, v);
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        return v.type == SL_J_UNDEFINED ? sl_jinja_unary(vm, false, v, &text)
                                        : percent_int(vm, sp, v);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (!sl_jinja_is_number(v))
            return sl_jinja_fail(vm, "must be real number, not %s", sl_jinja_type_name(v));
        return put_double(vm, sp, sl_jinja_as_double(v), sp->type);
    default:
        return sl_jinja_fail(vm, "unsupported format character '%c'",
                             sp->type >= 0x20 && sp->type < 0x7F ? sp->type : '?');
    }
}

static int percent_one(struct sl_jvm *vm, struct percent *p)
{
    struct spec sp = {.fill = " ", .fill_bytes = 1, .precision = -1};
    struct sl_jval v = {0};
    if (sl_jinja_burn(vm, CONVERSION_FUEL) != 0)
        return vm->code;
    if (p->s < p->end && *p->s == '(' && percent_key(vm, p, &v) != 0)
        return vm->code;
    bool minus = false;
    for (; p->s < p->end && strchr("-+ #0", *p->s) != NULL && *p->s != '\0'; p->s++) {
        minus |= *p->s == '-';
        sp.zero |= *p->s == '0';
        sp.alternate |= *p->s == '#';
        if (*p->s == '+' || (*p->s == ' ' && sp.sign == 0))
            sp.sign = *p->s;
    }
    if (percent_number(vm, p, &sp.width) != 0)
        return vm->code;
    if (sp.width < 0) {
        minus = true;
        sp.width = -sp.width;
    }
    if (p->s < p->end && *p->s == '.') {
        p->s++;
        if (percent_number(vm, p, &sp.precision) != 0)
            return vm->code;
        sp.precision = SL_MAX(sp.precision, 0);
    }
    while (p->s < p->end && (*p->s == 'l' || *p->s == 'h' || *p->s == 'L'))
        p->s++;
    if (p->s >= p->end)
        return sl_jinja_fail(vm, "incomplete format");
    sp.type = *p->s++;
    if (sp.type == '%')
        return sl_jinja_put(vm, "%", 1);
    sp.align = minus ? '<' : sp.zero ? '=' : 0;
    if (sp.zero && !minus)
        sp.fill[0] = '0';
    if (v.type == SL_J_MISSING && next_arg(vm, p, &v) != 0)
        return vm->code;
    return percent_value(vm, &sp, v);
}

int sl_jinja_percent(struct sl_jvm *vm, const struct sl_jstr *fmt, struct sl_jval arg,
                     struct sl_jval *out)
{
    struct percent p = {.s = fmt->data, .end = fmt->data + fmt->n_bytes, .arg = arg};
    size_t mark = vm->out->n_bytes;
    while (p.s < p.end) {
        const char *hit = memchr(p.s, '%', (size_t)(p.end - p.s));
        size_t n = hit != NULL ? (size_t)(hit - p.s) : (size_t)(p.end - p.s);
        if (sl_jinja_put(vm, p.s, n) != 0)
            return vm->code;
        p.s += n;
        if (hit == NULL)
            break;
        p.s++;
        if (percent_one(vm, &p) != 0)
            return vm->code;
    }
    /* a lone value must be used, unless it could be looked into by key */
    bool by_key = arg.type == SL_J_DICT || arg.type == SL_J_LIST || arg.type == SL_J_RANGE ||
                  arg.type == SL_J_UNDEFINED;
    if (!p.keyed && (arg.type == SL_J_TUPLE ? p.used < arg.u.list->n : p.used == 0 && !by_key))
        return sl_jinja_fail(vm, "not all arguments converted during string formatting");
    return sl_jinja_take(vm, mark, out);
}

/* ---------------------------------------------------------------- str.format */

struct braces {
    const char *s, *end;
    const struct sl_jargs *args;
    size_t next;
};

static int named_arg(struct sl_jvm *vm, struct braces *b, const char *name, size_t n,
                     struct sl_jval *out)
{
    size_t idx = 0;
    bool digits = n < 9;
    for (size_t i = 0; i < n && digits; i++) {
        digits = name[i] >= '0' && name[i] <= '9';
        idx = idx * 10 + (size_t)(name[i] - '0');
    }
    if (digits) {
        idx = n == 0 ? b->next++ : idx;
        if (idx >= b->args->n_pos)
            return sl_jinja_fail(vm, "replacement index out of range for positional args tuple");
        *out = b->args->pos[idx];
        return 0;
    }
    for (size_t i = 0; i < b->args->n_kw; i++)
        if (b->args->kw[i].name->n_bytes == n && memcmp(b->args->kw[i].name->data, name, n) == 0) {
            *out = b->args->kw[i].value;
            return 0;
        }
    return sl_jinja_fail(vm, "no such argument of format()");
}

/* name, then .attr and [item], looked up as in the rest of the template. */
static int field_value(struct sl_jvm *vm, struct braces *b, const char *s, size_t n,
                       struct sl_jval *out)
{
    size_t i = 0;
    while (i < n && s[i] != '.' && s[i] != '[')
        i++;
    if (named_arg(vm, b, s, i, out) != 0)
        return vm->code;
    while (i < n) {
        bool item = s[i] == '[';
        size_t from = ++i;
        struct sl_jval key;
        while (i < n && (item ? s[i] != ']' : s[i] != '.' && s[i] != '['))
            i++;
        if (i == from || (item && i >= n))
            return sl_jinja_fail(vm, "bad field in format()");
        if (sl_jinja_borrow(vm, s + from, i - from, &key) != 0)
            return vm->code;
        unsigned method = sl_jinja_method_find(s + from, i - from);
        bool digits = i - from < 9;
        int64_t idx = 0;
        for (size_t k = from; k < i && digits; k++) {
            digits = s[k] >= '0' && s[k] <= '9';
            idx = idx * 10 + (s[k] - '0');
        }
        if (item && digits)
            key = sl_jinja_int(idx);
        if ((item ? sl_jinja_getitem(vm, *out, key, out)
                  : sl_jinja_getattr(vm, *out, method, key.u.s, out)) != 0)
            return vm->code;
        i += item;
    }
    return 0;
}

static bool is_align(char c)
{
    return c == '<' || c == '>' || c == '^' || c == '=';
}

static int parse_spec(struct sl_jvm *vm, const char *s, size_t n, struct spec *sp)
{
    size_t i = 0, first = n > 0 ? 1 : 0;
    while (first < n && ((unsigned char)s[first] & 0xC0) == 0x80)
        first++;
    bool filled = false;
    *sp = (struct spec){.fill = " ", .fill_bytes = 1, .precision = -1, .empty = n == 0};
    if (first < n && is_align(s[first])) {
        SL_ASSERT(first <= sizeof sp->fill); /* strings are valid UTF-8 */
        memcpy(sp->fill, s, first);
        sp->fill_bytes = first;
        sp->align = s[first];
        filled = true;
        i = first + 1;
    } else if (n > 0 && is_align(s[0])) {
        sp->align = s[i++];
    }
    sp->aligned = sp->align != 0;
    if (i < n && (s[i] == '+' || s[i] == '-' || s[i] == ' '))
        sp->sign = s[i++];
    if (i < n && s[i] == '#') {
        sp->alternate = true;
        i++;
    }
    if (i < n && s[i] == '0') {
        sp->align = sp->aligned ? sp->align : '=';
        if (!filled)
            sp->fill[0] = '0';
        i++;
    }
    for (; i < n && s[i] >= '0' && s[i] <= '9' && sp->width <= INT32_MAX; i++)
        sp->width = sp->width * 10 + (s[i] - '0');
    if (i < n && (s[i] == ',' || s[i] == '_'))
        sp->comma = s[i++];
    if (i + 1 < n && s[i] == '.') {
        sp->precision = 0;
        for (i++; i < n && s[i] >= '0' && s[i] <= '9' && sp->precision <= INT32_MAX; i++)
            sp->precision = sp->precision * 10 + (s[i] - '0');
    }
    if (i < n)
        sp->type = s[i++];
    return i == n ? 0 : sl_jinja_fail(vm, "Invalid format specifier");
}

static bool type_in(const struct spec *sp, const char *codes)
{
    return sp->type != 0 && strchr(codes, sp->type) != NULL;
}

#define FLOAT_CODES "eEfFgG%"

/* Which parts of a format specifier may stand together, by Python's rules. */
static int check_spec(struct sl_jvm *vm, const struct spec *sp, struct sl_jval v)
{
    bool text = v.type == SL_J_STR;
    const char *codes = text ? "s" : v.type == SL_J_FLOAT ? "n" FLOAT_CODES : "bcdoxXn" FLOAT_CODES;
    if (sp->type != 0 && !type_in(sp, codes))
        return sl_jinja_fail(vm, "Unknown format code '%c' for object of type '%s'",
                             sp->type >= 0x20 && sp->type < 0x7F ? sp->type : '?',
                             sl_jinja_type_name(v));
    if (sp->comma != 0 && (text || type_in(sp, "cn") || (sp->comma == ',' && type_in(sp, "bxXo"))))
        return sl_jinja_fail(vm, "Cannot specify '%c' with this format code", sp->comma);
    if ((text || sp->type == 'c') && (sp->sign != 0 || sp->alternate))
        return sl_jinja_fail(vm, "sign or '#' not allowed in this format specifier");
    if (text && sp->align == '=' && sp->aligned)
        return sl_jinja_fail(vm, "'=' alignment not allowed in string format specifier");
    if (!text && v.type != SL_J_FLOAT && !type_in(sp, FLOAT_CODES) && sp->precision >= 0)
        return sl_jinja_fail(vm, "Precision not allowed in integer format specifier");
    return 0;
}

static int put_formatted(struct sl_jvm *vm, struct spec *sp, struct sl_jval v)
{
    if (sp->empty)
        return sl_jinja_to_str(vm, v, &v) != 0 ? vm->code : sl_jinja_print(vm, v);
    if (v.type != SL_J_STR && !sl_jinja_is_number(v)) /* a boolean is a number */
        return sl_jinja_fail(vm, "unsupported format string passed to %s.__format__",
                             sl_jinja_type_name(v));
    if (check_spec(vm, sp, v) != 0)
        return vm->code;
    if (v.type == SL_J_STR) {
        sp->align = sp->align == '=' ? '<' : sp->align;
        return jinja_format_put_text(vm, sp, v.u.s);
    }
    if (v.type == SL_J_FLOAT && sp->type == 'n')
        sp->type = 'g';
    if (v.type == SL_J_FLOAT || type_in(sp, FLOAT_CODES))
        return put_double(vm, sp, sl_jinja_as_double(v), sp->type);
    if (sp->type == 'c') {
        sp->align = sp->align == 0 || sp->align == '=' ? '>' : sp->align;
        return put_char(vm, sp, v);
    }
    return jinja_format_put_int(vm, sp, v.type == SL_J_INT ? v.u.i : v.u.b,
                                sp->type == 0 ? 'd' : sp->type);
}

static int put_replacement(struct sl_jvm *vm, struct braces *b)
{
    const char *from = b->s;
    if (sl_jinja_burn(vm, CONVERSION_FUEL) != 0)
        return vm->code;
    while (b->s < b->end && *b->s != '}' && *b->s != '{')
        b->s++;
    if (b->s >= b->end)
        return sl_jinja_fail(vm, "expected '}' before end of string");
    if (*b->s == '{')
        return sl_jinja_fail(vm, "nested fields in format() are not supported");
    size_t n = (size_t)(b->s++ - from), name = 0;
    while (name < n && from[name] != ':' && from[name] != '!')
        name++;
    struct sl_jval v;
    struct spec sp;
    size_t at = name;
    if (field_value(vm, b, from, name, &v) != 0)
        return vm->code;
    if (at + 1 < n && from[at] == '!') {
        size_t mark = vm->out->n_bytes;
        if (from[at + 1] == 's') {
            if (sl_jinja_to_str(vm, v, &v) != 0)
                return vm->code;
        } else if (from[at + 1] != 'r') {
            return sl_jinja_fail(vm, "unknown conversion in format()");
        } else if (sl_jinja_repr(vm, v) != 0 || sl_jinja_take(vm, mark, &v) != 0) {
            return vm->code;
        }
        at += 2;
    }
    if (at < n && from[at++] != ':')
        return sl_jinja_fail(vm, "expected ':' after conversion specifier");
    if (parse_spec(vm, from + at, n - at, &sp) != 0)
        return vm->code;
    return put_formatted(vm, &sp, v);
}

int sl_jinja_format(struct sl_jvm *vm, const struct sl_jstr *fmt, const struct sl_jargs *args,
                    struct sl_jval *out)
{
    struct braces b = {.s = fmt->data, .end = fmt->data + fmt->n_bytes, .args = args};
    size_t mark = vm->out->n_bytes;
    while (b.s < b.end) {
        const char *from = b.s;
        while (b.s < b.end && *b.s != '{' && *b.s != '}')
            b.s++;
        if (sl_jinja_put(vm, from, (size_t)(b.s - from)) != 0)
            return vm->code;
        if (b.s >= b.end)
            break;
        char c = *b.s++;
        if (b.s < b.end && *b.s == c) {
            b.s++;
            if (sl_jinja_put(vm, &c, 1) != 0)
                return vm->code;
        } else if (c == '}') {
            return sl_jinja_fail(vm, "Single '}' encountered in format string");
        } else if (put_replacement(vm, &b) != 0) {
            return vm->code;
        }
    }
    return sl_jinja_take(vm, mark, out);
}
