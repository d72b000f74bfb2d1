/* SPDX-License-Identifier: MIT
 *
 * Cuts template source into tokens with jinja2's whitespace rules: `-` strips up to the tag or
 * after it, lstrip_blocks removes the indentation in front of a block or comment unless `+`,
 * trim_blocks removes one newline behind it, and one newline at the very end is dropped.
 */
#include "base/check.h"
#include "base/str.h"
#include "text/jinja/jinja_parse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t space_len(const char *s, size_t n)
{
    uint32_t cp;
    unsigned char c = n > 0 ? (unsigned char)s[0] : 'x';
    if (c < 128)
        return sl_jinja_is_space(c);
    size_t len = sl_utf8_decode(s, n, &cp);
    SL_DCHECK(len <= n);
    return len > 0 && sl_jinja_is_space(cp) ? len : 0;
}

static void advance(struct sl_jparser *p, size_t to)
{
    SL_ASSERT(to >= p->pos && to <= p->n);
    for (; p->pos < to; p->pos++)
        p->line += p->src[p->pos] == '\n';
}

static void jinja_lex_skip_space(struct sl_jparser *p)
{
    size_t at = p->pos, len;
    while ((len = space_len(p->src + at, p->n - at)) > 0)
        at += len;
    advance(p, at);
}

/* n without the whitespace at the end of s[0, n). */
static size_t rstrip(const char *s, size_t n)
{
    while (n > 0) {
        size_t at = n - 1;
        while (at > 0 && ((unsigned char)s[at] & 0xC0) == 0x80)
            at--;
        if (space_len(s + at, n - at) != n - at)
            break;
        SL_DCHECK(at < n);
        n = at;
    }
    return n;
}

void sl_jlex_init(struct sl_jparser *p, const char *source, size_t n)
{
    char *copy = sl_jparse_alloc(p, n + 1, 1);
    if (copy == NULL)
        return;
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        char c = source[i];
        if (c == '\r') {
            c = '\n';
            if (i + 1 < n && source[i + 1] == '\n')
                i++;
        }
        copy[len++] = c;
    }
    if (len > 0 && copy[len - 1] == '\n')
        len--;
    SL_ASSERT(len <= n && p->src == NULL);
    p->src = copy;
    p->n = len;
    p->line = 1;
    p->line_start = true;
}

static bool at(const struct sl_jparser *p, size_t pos, const char *text)
{
    size_t n = strlen(text);
    /* unreachable: behind the end, every caller is inside */
    return pos <= p->n && n <= p->n - pos && memcmp(p->src + pos, text, n) == 0;
}

static size_t skip_spaces_from(const struct sl_jparser *p, size_t pos)
{
    size_t len;
    while ((len = space_len(p->src + pos, p->n - pos)) > 0)
        pos += len;
    return pos;
}

/* Where the next tag opens at or after pos; n when there is none. */
static size_t find_tag(const struct sl_jparser *p, size_t pos)
{
    SL_ASSERT(pos <= p->n);
    while (pos + 1 < p->n) {
        const char *brace = memchr(p->src + pos, '{', p->n - 1 - pos);
        if (brace == NULL)
            break;
        pos = (size_t)(brace - p->src);
        char c = brace[1];
        if (c == '{' || c == '%' || c == '#')
            return pos;
        pos++;
    }
    return p->n;
}

/* How much of text[0, len) in front of a tag is printed. */
static size_t keep_before(const struct sl_jparser *p, const char *text, size_t len, char sign,
                          bool variable)
{
    SL_ASSERT(text >= p->src && text + len <= p->src + p->n);
    if (sign == '-')
        return rstrip(text, len);
    if (sign == '+' || variable)
        return len;
    size_t line = len;
    while (line > 0 && text[line - 1] != '\n')
        line--;
    if (line == len || (line == 0 && !p->line_start))
        return len;
    for (size_t i = line, w; i < len; i += w)
        if ((w = space_len(text + i, len - i)) == 0)
            return len;
    return line;
}

/* Passes the end of a block or comment at p->pos ("%}" or "#}" after an optional sign). */
static void pass_end(struct sl_jparser *p, char sign, bool trim_newline)
{
    SL_DCHECK(at(p, p->pos + (sign != 0), "%}") || at(p, p->pos + (sign != 0), "#}") ||
              at(p, p->pos + (sign != 0), "}}"));
    advance(p, p->pos + (sign != 0 ? 3 : 2));
    if (sign == '-')
        jinja_lex_skip_space(p);
    else if (sign == 0 && trim_newline && p->pos < p->n && p->src[p->pos] == '\n')
        advance(p, p->pos + 1);
    p->line_start = p->src[p->pos - 1] == '\n';
}

static void skip_comment(struct sl_jparser *p, size_t open, char sign)
{
    SL_DCHECK(at(p, open, "{#") && p->pos == open);
    size_t from = open + 2 + (sign != 0), end = from;
    if (from == p->n) { /* jinja2 takes an opening at the very end for an empty comment */
        advance(p, from);
        return;
    }
    while (!at(p, end, "#}")) {
        if (end >= p->n) {
            sl_jparse_fail(p, "Missing end of comment tag");
            return;
        }
        end++;
    }
    char end_sign =
        end > from && (p->src[end - 1] == '-' || p->src[end - 1] == '+') ? p->src[end - 1] : 0;
    advance(p, end - (end_sign != 0));
    pass_end(p, end_sign, true);
}

/* The length of "{%[-+]? word [-+]?%}" at pos, 0 if it is something else; *end_at its "[-+]?%}". */
static size_t match_word_tag(const struct sl_jparser *p, size_t pos, const char *word, bool plus_ok,
                             size_t *end_at)
{
    if (!at(p, pos, "{%"))
        return 0;
    size_t i = pos + 2;
    if (i < p->n && (p->src[i] == '-' || p->src[i] == '+'))
        i++;
    i = skip_spaces_from(p, i);
    if (!at(p, i, word))
        return 0;
    i = skip_spaces_from(p, i + strlen(word));
    *end_at = i;
    SL_ASSERT(i > pos && i <= p->n);
    if (at(p, i, "%}"))
        return i + 2 - pos;
    return at(p, i, "-%}") || (plus_ok && at(p, i, "+%}")) ? i + 3 - pos : 0;
}

static char sign_at(const struct sl_jparser *p, size_t pos)
{
    return pos < p->n && (p->src[pos] == '-' || p->src[pos] == '+') ? p->src[pos] : 0;
}

/* After {% raw %}: everything up to {% endraw %} is one text. */
static bool lex_raw(struct sl_jparser *p, struct sl_jtoken *tok, size_t end_at)
{
    advance(p, end_at);
    pass_end(p, sign_at(p, end_at), false);
    size_t from = p->pos, open = from;
    if (from == p->n)
        return false; /* as with comments */
    while (match_word_tag(p, open, "endraw", true, &end_at) == 0) {
        const char *brace =
            open + 1 < p->n ? memchr(p->src + open + 1, '{', p->n - open - 1) : NULL;
        if (brace == NULL) {
            sl_jparse_fail(p, "Missing end of raw directive");
            return false;
        }
        open = (size_t)(brace - p->src);
    }
    SL_ASSERT(open >= from && end_at > open && end_at < p->n);
    *tok = (struct sl_jtoken){.type = SL_JT_DATA, .line = p->line, .s = p->src + from};
    tok->n = keep_before(p, p->src + from, open - from, sign_at(p, open + 2), false);
    advance(p, end_at);
    pass_end(p, sign_at(p, end_at), true);
    return tok->n > 0;
}

/* Text up to the next tag, or the tag itself. */
static void lex_data(struct sl_jparser *p, struct sl_jtoken *tok)
{
    while (p->code == 0) {
        size_t open = find_tag(p, p->pos), end_at;
        SL_ASSERT(open >= p->pos && open <= p->n);
        if (p->pos >= p->n) {
            *tok = (struct sl_jtoken){.type = SL_JT_EOF, .line = p->line};
            return;
        }
        if (open == p->n) {
            *tok = (struct sl_jtoken){
                .type = SL_JT_DATA, .line = p->line, .s = p->src + p->pos, .n = p->n - p->pos};
            advance(p, p->n);
            return;
        }
        bool variable = p->src[open + 1] == '{';
        char sign = sign_at(p, open + 2);
        if (open > p->pos && !p->after_data) { /* unreachable: after_data, the tag is at pos then */
            size_t keep = keep_before(p, p->src + p->pos, open - p->pos, sign, variable);
            *tok = (struct sl_jtoken){
                .type = SL_JT_DATA, .line = p->line, .s = p->src + p->pos, .n = keep};
            advance(p, open);
            p->after_data = true;
            if (keep > 0)
                return;
        }
        SL_ASSERT(p->pos == open);
        p->after_data = false;
        if (p->src[open + 1] == '#') {
            skip_comment(p, open, sign);
        } else if (match_word_tag(p, open, "raw", false, &end_at) > 0) {
            if (lex_raw(p, tok, end_at))
                return;
        } else {
            *tok = (struct sl_jtoken){.type = variable ? SL_JT_VAR_BEGIN : SL_JT_BLOCK_BEGIN,
                                      .line = p->line};
            p->mode = variable ? SL_JLEX_VAR : SL_JLEX_BLOCK;
            advance(p, open + 2 + (sign != 0));
            SL_ASSERT(p->n_closers == 0); /* every bracket was closed when the last tag ended */
            p->line_start = false;
            return;
        }
    }
}

/* ---------------------------------------------------------------- inside a tag */

static bool is_digit_of(char c, int base)
{
    if (c >= '0' && c <= '9')
        return c - '0' < base;
    c = (char)(c | 0x20);
    return base == 16 && c >= 'a' && c <= 'f';
}

/* The end of `(_?digit)*` from pos. */
static size_t digits_end(const struct sl_jparser *p, size_t pos, int base)
{
    SL_DCHECK(pos <= p->n);
    for (;;) {
        if (pos < p->n && is_digit_of(p->src[pos], base))
            pos++;
        else if (pos + 1 < p->n && p->src[pos] == '_' && is_digit_of(p->src[pos + 1], base))
            pos += 2;
        else
            return pos;
    }
}

/* The end of a float literal at p->pos, 0 when it is none. */
static size_t float_end(const struct sl_jparser *p)
{
    size_t i = digits_end(p, p->pos, 10), end = 0;
    SL_ASSERT(p->pos > 0);
    if (p->src[p->pos - 1] == '.') /* at least {{ is in front */
        return 0;
    if (i + 1 < p->n && p->src[i] == '.' && is_digit_of(p->src[i + 1], 10))
        end = i = digits_end(p, i + 1, 10);
    if (i < p->n && (p->src[i] | 0x20) == 'e') {
        size_t e = i + 1;
        if (e < p->n && (p->src[e] == '+' || p->src[e] == '-'))
            e++;
        if (e < p->n && is_digit_of(p->src[e], 10))
            end = digits_end(p, e, 10);
    }
    return end;
}

static void lex_float(struct sl_jparser *p, struct sl_jtoken *tok, size_t end)
{
    char text[64];
    size_t n = 0;
    SL_ASSERT(end > p->pos && end <= p->n);
    for (size_t i = p->pos; i < end; i++) {
        if (p->src[i] == '_')
            continue;
        if (n + 1 >= sizeof text) {
            sl_jparse_fail(p, "the number is too long");
            return;
        }
        text[n++] = p->src[i];
    }
    SL_ASSERT(n < sizeof text);
    text[n] = '\0';
    tok->type = SL_JT_FLOAT;
    tok->f = strtod(text, NULL); /* may be infinite, as in Python */
    advance(p, end);
}

static void lex_int(struct sl_jparser *p, struct sl_jtoken *tok)
{
    int base = 10;
    size_t from = p->pos, end;
    char kind = p->pos + 1 < p->n ? (char)(p->src[p->pos + 1] | 0x20) : 0;
    if (p->src[p->pos] == '0') {
        int wanted = kind == 'b' ? 2 : kind == 'o' ? 8 : kind == 'x' ? 16 : 0;
        if (wanted != 0 && digits_end(p, p->pos + 2, wanted) > p->pos + 2) {
            base = wanted;
            from = p->pos + 2;
        }
    }
    end = digits_end(p, from, base);
    if (base == 10 && p->src[p->pos] == '0') { /* 0 and 00, but 01 is 0 and then 1 */
        for (end = from + 1;
             end < p->n && (p->src[end] == '0' ||
                            (p->src[end] == '_' && end + 1 < p->n && p->src[end + 1] == '0'));)
            end++;
    }
    SL_ASSERT(end > from && end <= p->n);
    uint64_t v = 0;
    for (size_t i = from; i < end; i++) {
        char c = (char)(p->src[i] | 0x20);
        if (p->src[i] == '_')
            continue;
        uint64_t digit = (uint64_t)(c >= 'a' ? c - 'a' + 10 : p->src[i] - '0');
        if (!sl_mul_u64(v, (uint64_t)base, &v) || !sl_add_u64(v, digit, &v) || v > INT64_MAX) {
            sl_jparse_fail(p, "the integer does not fit into 64 bits");
            return;
        }
    }
    tok->type = SL_JT_INT;
    tok->i = (int64_t)v;
    tok->s = p->src + p->pos;
    tok->n = end - p->pos;
    advance(p, end);
}

/* Reads n hex digits at s; -1 when there are fewer. */
static int64_t hex_value(const char *s, size_t avail, size_t n)
{
    int64_t v = 0;
    if (avail < n)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (!is_digit_of(s[i], 16))
            return -1;
        char c = (char)(s[i] | 0x20);
        v = v * 16 + (c >= 'a' ? c - 'a' + 10 : s[i] - '0');
    }
    SL_DCHECK(n <= 8 && v >> 4 * n == 0);
    return v;
}

/* Decodes the escape after a backslash at s; returns the bytes read, 0 on error. */
static size_t jinja_lex_unescape(struct sl_jparser *p, const char *s, size_t n, char *out,
                                 size_t *n_out)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    SL_ASSERT(n > 0); /* the string's end is no escaped quote */
    const char *simple = memchr(from, s[0], sizeof from - 1);
    if (simple != NULL) {
        out[(*n_out)++] = to[simple - from];
        return 1;
    }
    if (s[0] == '\n')
        return 1;
    size_t used = 0, width = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    int64_t cp = 0;
    if (width > 0) {
        cp = hex_value(s + 1, n - 1, width);
        used = 1 + width;
        if (cp >= 0xD800 && cp < 0xDC00 && n > used + 5 && s[used] == '\\' && s[used + 1] == 'u') {
            int64_t low = hex_value(s + used + 2, n - used - 2, 4);
            if (low >= 0xDC00 && low < 0xE000) {
                cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
                used += 6;
            }
        }
    } else if (s[0] >= '0' && s[0] <= '7') {
        while (used < 3 && used < n && s[used] >= '0' && s[used] <= '7')
            cp = cp * 8 + (s[used++] - '0');
    } else if (s[0] == 'N') {
        cp = -1;
    } else {
        out[(*n_out)++] = '\\';
        return 0;
    }
    if (cp < 0 || cp > 0x10FFFF) {
        sl_jparse_fail(p, "bad escape in a string");
        return 0;
    }
    size_t len = sl_utf8_encode((uint32_t)cp, out + *n_out);
    if (len == 0) { /* a lone surrogate */
        memcpy(out + *n_out, "\xEF\xBF\xBD", 3);
        len = 3;
    }
    SL_ASSERT(used > 0 && used <= n);
    *n_out += len;
    return used;
}

static void lex_string(struct sl_jparser *p, struct sl_jtoken *tok)
{
    char quote = p->src[p->pos];
    size_t from = p->pos + 1, end = from;
    SL_ASSERT(quote == '"' || quote == '\'');
    bool escaped = false;
    while (end < p->n && p->src[end] != quote) {
        escaped |= p->src[end] == '\\';
        end += p->src[end] == '\\' ? 2 : 1;
    }
    if (end >= p->n) {
        sl_jparse_fail(p, "unexpected char %s", quote == '"' ? "'\"'" : "\"'\"");
        return;
    }
    tok->type = SL_JT_STRING;
    tok->s = p->src + from;
    tok->n = end - from;
    if (escaped) { /* no escape is shorter than what it stands for, but \1 and lone surrogates are
                      looked at with room to spare */
        char *text = sl_jparse_alloc(p, 2 * tok->n + 4, 1);
        if (text == NULL)
            return;
        size_t n = 0;
        for (size_t i = from; i < end && p->code == 0;) {
            if (p->src[i] != '\\') {
                text[n++] = p->src[i++];
                continue;
            }
            i++;
            i += jinja_lex_unescape(p, p->src + i, end - i, text, &n);
        }
        SL_ASSERT(n <= 2 * (end - from) + 4); /* tok may be gone: the first error empties p->cur */
        tok->s = text;
        tok->n = n;
    }
    advance(p, end + 1);
}

static bool is_name_byte(char c)
{
    unsigned char u = (unsigned char)c;
    return (u >= 'a' && u <= 'z') || (u >= 'A' && u <= 'Z') || (u >= '0' && u <= '9') || u == '_' ||
           u >= 128;
}

/* The operator of two characters that begins with c and d, or 0. */
static unsigned op2(char c, char d)
{
    bool two = d == '=' ? strchr("=!<>", c) != NULL : c == d && (c == '*' || c == '/');
    return two ? SL_JOP2(c, d) : 0;
}

static void lex_op(struct sl_jparser *p, struct sl_jtoken *tok)
{
    const char *s = p->src + p->pos;
    SL_ASSERT(p->n_closers <= SL_TEMPLATE_DEPTH && p->pos < p->n);
    tok->type = SL_JT_OP;
    tok->op = *s != '\0' && p->pos + 1 < p->n ? op2(s[0], s[1]) : 0;
    if (tok->op != 0) {
        advance(p, p->pos + 2);
        return;
    }
    if (*s == '\0' || strchr("+-/*%~[](){}><=.:|,;", *s) == NULL) {
        sl_jparse_fail(p, "unexpected char '%c'", *s >= 0x20 && *s < 0x7F ? *s : '?');
        return;
    }
    tok->op = (unsigned char)*s;
    if (*s == '(' || *s == '[' || *s == '{') {
        if (p->n_closers == SL_TEMPLATE_DEPTH) { /* unreachable: true, the parser gives up first */
            sl_jparse_fail(p, "nested too deeply");
            return;
        }
        p->closers[p->n_closers++] = *s == '(' ? ')' : *s == '[' ? ']' : '}';
    } else if (*s == ')' || *s == ']' || *s == '}') {
        if (p->n_closers == 0 || p->closers[--p->n_closers] != *s) {
            sl_jparse_fail(p, "unexpected '%c'", *s);
            return;
        }
    }
    advance(p, p->pos + 1);
}

static void lex_tag(struct sl_jparser *p, struct sl_jtoken *tok)
{
    SL_ASSERT(p->mode != SL_JLEX_DATA);
    jinja_lex_skip_space(p);
    *tok = (struct sl_jtoken){.type = SL_JT_EOF, .line = p->line};
    if (p->pos >= p->n)
        return;
    const char *close = p->mode == SL_JLEX_VAR ? "}}" : "%}";
    char sign = sign_at(p, p->pos);
    if (sign == '+' && p->mode == SL_JLEX_VAR)
        sign = 0;
    if (p->n_closers == 0 && at(p, p->pos + (sign != 0), close)) {
        tok->type = p->mode == SL_JLEX_VAR ? SL_JT_VAR_END : SL_JT_BLOCK_END;
        pass_end(p, sign, p->mode == SL_JLEX_BLOCK);
        p->mode = SL_JLEX_DATA;
        return;
    }
    char c = p->src[p->pos];
    size_t end;
    if (c >= '0' && c <= '9') {
        if ((end = float_end(p)) > 0)
            lex_float(p, tok, end);
        else
            lex_int(p, tok);
    } else if (is_name_byte(c)) {
        for (end = p->pos;
             end < p->n && is_name_byte(p->src[end]) && space_len(p->src + end, p->n - end) == 0;)
            end++;
        tok->type = SL_JT_NAME;
        tok->s = p->src + p->pos;
        tok->n = end - p->pos;
        SL_ASSERT(tok->n > 0); /* or the lexer stands still */
        advance(p, end);
    } else if (c == '"' || c == '\'') {
        lex_string(p, tok);
    } else {
        lex_op(p, tok);
    }
}

static void lex(struct sl_jparser *p, struct sl_jtoken *tok)
{
    if (p->mode == SL_JLEX_DATA)
        lex_data(p, tok);
    else
        lex_tag(p, tok);
    if (p->code != 0)
        *tok = (struct sl_jtoken){.type = SL_JT_EOF, .line = p->line};
}

void sl_jlex_next(struct sl_jparser *p)
{
    if (p->has_ahead)
        p->cur = p->ahead;
    else
        lex(p, &p->cur);
    p->has_ahead = false;
    SL_ASSERT(p->cur.type <= SL_JT_OP && p->cur.line <= p->line && p->pos <= p->n);
}

const struct sl_jtoken *sl_jlex_peek(struct sl_jparser *p)
{
    if (!p->has_ahead)
        lex(p, &p->ahead);
    p->has_ahead = true;
    return &p->ahead;
}
