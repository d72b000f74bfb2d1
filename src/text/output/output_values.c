/* SPDX-License-Identifier: MIT
 * output_values.c - arguments with values of their own notation, made JSON while they stream:
 * Python literals in f(key=value), and keys without quotes, strings between markers in
 * f{key:value}.
 *
 * What JSON cannot say (bytes, sets, tuples, names, positional arguments, numbers in other
 * notations) is not a call. A trailing comma is allowed, as in Python.
 */
#include "base/str.h"
#include "text/output/output.h"

#include <string.h>

enum { E_CALL, E_LIST, E_DICT };
enum {
    E_KEY, /* a key, or the end */
    E_KEY_MORE,
    E_COLON, /* what stands between key and value */
    E_VALUE,
    E_WORD,
    E_QUOTE, /* in the marker that opens a string */
    E_STRING,
    E_ESCAPE,
    E_DIGITS, /* of an escape */
    E_NEXT,   /* a comma, or the end */
};

static int top(const struct sl_output *p)
{
    SL_ASSERT(p->val.depth > 0 && p->val.depth <= OUT_DEPTH);
    return p->val.stack[p->val.depth - 1];
}

static bool is_python(const struct sl_output *p)
{
    return p->tools->body == OUT_PYTHON;
}

static char closer(const struct sl_output *p)
{
    if (top(p) == E_LIST)
        return ']';
    return top(p) == E_CALL && is_python(p) ? ')' : '}';
}

static bool has_keys(const struct sl_output *p)
{
    return top(p) == E_CALL || top(p) == E_DICT;
}

static bool is_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-' || c == '+' || c == '.' || (unsigned char)c >= 0x80;
}

static bool push(struct sl_output *p, int kind)
{
    SL_ASSERT(kind >= E_CALL && kind <= E_DICT && (kind == E_CALL) == (p->val.depth == 0));
    if (p->val.depth == OUT_DEPTH)
        return false;
    p->val.stack[p->val.depth++] = (uint8_t)kind;
    p->val.first = true;
    p->val.state = kind == E_CALL || kind == E_DICT ? E_KEY : E_VALUE;
    out_args(p, kind == E_CALL || kind == E_DICT ? "{" : "[");
    return true;
}

/* The separator in front of a key or of an element. */
static void item(struct sl_output *p)
{
    if (!p->val.first)
        out_args(p, ", ");
    p->val.first = false;
}

static bool pop(struct sl_output *p)
{
    out_args(p, has_keys(p) ? "}" : "]");
    p->val.depth--;
    p->val.first = false;
    p->val.state = E_NEXT;
    return true;
}

static bool string_begin(struct sl_output *p, char quote, bool is_key)
{
    out_args(p, "\"");
    p->val.quote = quote;
    p->val.is_key = is_key;
    p->val.at = 0;
    p->val.state = E_STRING;
    return true;
}

static bool string_end(struct sl_output *p)
{
    SL_ASSERT(p->val.state == E_STRING);
    out_args(p, p->val.is_key ? "\": " : "\"");
    p->val.state = p->val.is_key ? E_COLON : E_NEXT;
    return true;
}

/* The opening quote of a string, or the first byte of its marker. */
static bool quote_begin(struct sl_output *p, char c, bool is_key)
{
    SL_ASSERT(is_python(p) || (p->tools->quote != NULL && p->tools->quote[1] != '\0'));
    if (is_python(p))
        return (c == '"' || c == '\'') && string_begin(p, c, is_key);
    p->val.is_key = is_key;
    p->val.at = 1;
    p->val.state = E_QUOTE;
    return c == p->tools->quote[0];
}

static bool on_key(struct sl_output *p, char c)
{
    SL_ASSERT(has_keys(p));
    if (out_is_space(c))
        return true;
    if (c == closer(p))
        return pop(p);
    item(p);
    if (is_word(c) && c != '-' && !(is_python(p) && top(p) == E_DICT)) {
        out_args(p, "\"");
        out_args_byte(p, c);
        p->val.state = E_KEY_MORE;
        return true;
    }
    return top(p) == E_DICT && quote_begin(p, c, true);
}

static bool on_colon(struct sl_output *p, char c)
{
    if (out_is_space(c))
        return true;
    p->val.state = E_VALUE;
    return c == (is_python(p) && top(p) == E_CALL ? '=' : ':');
}

static bool on_key_more(struct sl_output *p, char c)
{
    if (is_word(c)) {
        out_args_byte(p, c);
        return true;
    }
    out_args(p, "\": ");
    p->val.state = E_COLON;
    return on_colon(p, c);
}

static bool on_value(struct sl_output *p, char c)
{
    if (out_is_space(c))
        return true;
    if (!has_keys(p) && c == closer(p))
        return pop(p);
    if (!has_keys(p))
        item(p);
    if (c == '[')
        return push(p, E_LIST);
    if (c == '{')
        return push(p, E_DICT);
    p->val.n_word = 0;
    if (is_word(c)) {
        p->val.word[p->val.n_word++] = c;
        p->val.state = E_WORD;
        return true;
    }
    return quote_begin(p, c, false);
}

static bool on_next(struct sl_output *p, char c)
{
    if (out_is_space(c))
        return true;
    if (c == closer(p))
        return pop(p);
    p->val.state = has_keys(p) ? E_KEY : E_VALUE;
    return c == ',';
}

static bool word_is(const struct sl_output *p, const char *word)
{
    return p->val.n_word == strlen(word) && memcmp(p->val.word, word, p->val.n_word) == 0;
}

static bool word_end(struct sl_output *p)
{
    static const char *const words[][3] = {
        {"True", "true", "true"}, {"False", "false", "false"}, {"None", "null", "null"}};
    double x;
    SL_ASSERT(p->val.n_word > 0 && p->val.n_word <= sizeof p->val.word);
    p->val.state = E_NEXT;
    for (int i = 0; i < 3; i++)
        if (word_is(p, words[i][0]) || word_is(p, words[i][1])) {
            out_args(p, words[i][2]);
            return true;
        }
    if (!sl_parse_double(p->val.word, p->val.n_word, &x))
        return false;
    out_emit(p, SL_OUTPUT_CALL_ARGS, p->val.word, p->val.n_word);
    return true;
}

static bool on_word(struct sl_output *p, char c)
{
    if (!is_word(c))
        return word_end(p) && on_next(p, c);
    if (p->val.n_word == sizeof p->val.word)
        return false;
    p->val.word[p->val.n_word++] = c;
    return true;
}

/* ---------------------------------------------------------------- strings */

static bool on_quote(struct sl_output *p, char c)
{
    const char *quote = p->tools->quote;
    SL_ASSERT(p->val.at > 0 && p->val.at < strlen(quote));
    if (c != quote[p->val.at++])
        return false;
    return quote[p->val.at] != '\0' || string_begin(p, '\0', p->val.is_key);
}

/* A string between markers ends at the marker; val.at bytes of it are there. No proper end of a
 * marker is a beginning of it but for its first byte. */
static bool on_marked_string(struct sl_output *p, char c)
{
    const char *quote = p->tools->quote;
    SL_ASSERT(p->val.at < strlen(quote));
    if (c == quote[p->val.at]) {
        p->val.at++;
        return quote[p->val.at] != '\0' || string_end(p);
    }
    for (size_t i = 0; i < p->val.at; i++)
        out_args_byte(p, quote[i]);
    p->val.at = c == quote[0] ? 1 : 0;
    if (p->val.at == 0)
        out_args_byte(p, c);
    return true;
}

static void put_code(struct sl_output *p, uint32_t cp)
{
    SL_ASSERT(cp <= 0x10FFFF);
    char s[4];
    size_t n = sl_utf8_encode(cp, s);
    if (n == 0) /* half of a pair: JSON can say it */
        out_args(p, (char[]){'\\', 'u', "0123456789abcdef"[cp >> 12 & 15],
                             "0123456789abcdef"[cp >> 8 & 15], "0123456789abcdef"[cp >> 4 & 15],
                             "0123456789abcdef"[cp & 15], '\0'});
    for (size_t i = 0; i < n; i++)
        out_args_byte(p, s[i]);
}

static bool on_escape(struct sl_output *p, char c)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *at = c != '\0' ? strchr(from, c) : NULL;
    p->val.state = E_STRING;
    p->val.code = p->val.n_digits = 0;
    if (at != NULL) {
        out_args_byte(p, to[at - from]);
    } else if (c == 'x' || c == 'u' || c == 'U') {
        p->val.n_left = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        p->val.state = E_DIGITS;
    } else if (c >= '0' && c <= '7') { /* octal: nobody writes it */
        return false;
    } else if (c != '\n') { /* Python keeps a backslash that means nothing */
        out_args_byte(p, '\\');
        out_args_byte(p, c);
    }
    return true;
}

static bool on_digits(struct sl_output *p, char c)
{
    SL_ASSERT(p->val.n_left > 0 && p->val.n_left <= 8);
    char low = (char)(c | 32);
    bool digit = c >= '0' && c <= '9', letter = low >= 'a' && low <= 'f';
    p->val.code = p->val.code * 16 + (unsigned)(digit ? c - '0' : low - 'a' + 10);
    if (!digit && !letter)
        return false;
    if (--p->val.n_left > 0)
        return true;
    p->val.state = E_STRING;
    if (p->val.code > 0x10FFFF)
        return false;
    put_code(p, p->val.code);
    return true;
}

static bool on_string(struct sl_output *p, char c)
{
    if (!is_python(p))
        return on_marked_string(p, c);
    if (c == p->val.quote)
        return string_end(p);
    if (c == '\\')
        p->val.state = E_ESCAPE;
    else
        out_args_byte(p, c);
    return c != '\n';
}

/* ---------------------------------------------------------------- the machine */

static bool (*const on[])(struct sl_output *p, char c) = {
    [E_KEY] = on_key,       [E_KEY_MORE] = on_key_more, [E_COLON] = on_colon,
    [E_VALUE] = on_value,   [E_WORD] = on_word,         [E_QUOTE] = on_quote,
    [E_STRING] = on_string, [E_ESCAPE] = on_escape,     [E_DIGITS] = on_digits,
    [E_NEXT] = on_next,
};

static void values(struct sl_output *p, char c)
{
    SL_ASSERT(p->begun && (size_t)p->val.state < sizeof on / sizeof *on);
    if (!on[p->val.state](p, c)) {
        out_fail(p);
        return;
    }
    out_commit(p);
    if (p->val.depth == 0)
        out_body_done(p);
}

/* Behind the name and the bracket that opens the arguments. */
void out_values_begin(struct sl_output *p)
{
    p->val.depth = 0;
    (void)push(p, E_CALL);
    p->state = values;
}
