/* SPDX-License-Identifier: MIT
 * output_json.c - JSON byte by byte: a checker of one value (RFC 8259), and calls that are JSON
 * objects with a name and arguments in any order.
 */
#include "base/str.h"
#include "text/output/output.h"

#include <string.h>

/* ---------------------------------------------------------------- the checker */

enum {
    J_VALUE,
    J_FIRST, /* a value or ] */
    J_KEY,
    J_FIRST_KEY, /* a key or } */
    J_COLON,
    J_NEXT, /* , or the end */
    J_STRING,
    J_ESCAPE,
    J_HEX,
    J_WORD,
    J_MINUS, /* numbers: what was read last */
    J_ZERO,
    J_INT,
    J_DOT,
    J_FRACTION,
    J_E,
    J_E_SIGN,
    J_EXPONENT,
    J_DONE,
};

void out_json_begin(struct out_json *j)
{
    *j = (struct out_json){.state = J_VALUE};
}

static bool top_is_object(const struct out_json *j)
{
    SL_ASSERT(j->depth > 0 && j->depth <= OUT_DEPTH);
    unsigned at = j->depth - 1u;
    return (j->stack[at / 64] >> (at % 64)) & 1;
}

static int push(struct out_json *j, bool object)
{
    SL_ASSERT(j->state == J_VALUE || j->state == J_FIRST);
    if (j->depth == OUT_DEPTH)
        return -1;
    uint64_t bit = (uint64_t)1 << (j->depth % 64);
    uint64_t *word = &j->stack[j->depth / 64];
    *word = object ? *word | bit : *word & ~bit;
    j->depth++;
    j->state = object ? J_FIRST_KEY : J_FIRST;
    return 0;
}

static int value_done(struct out_json *j)
{
    j->state = j->depth > 0 ? J_NEXT : J_DONE;
    return j->depth > 0 ? 0 : 1;
}

static int pop(struct out_json *j, bool object)
{
    SL_ASSERT(j->state == J_FIRST || j->state == J_FIRST_KEY || j->state == J_NEXT);
    if (j->depth == 0 || top_is_object(j) != object)
        return -1;
    j->depth--;
    return value_done(j);
}

static int value_first(struct out_json *j, char c)
{
    switch (c) {
    case '{':
        return push(j, true);
    case '[':
        return push(j, false);
    case '"':
        j->is_key = false;
        j->state = J_STRING;
        return 0;
    case 't':
        j->word = "rue";
        break;
    case 'f':
        j->word = "alse";
        break;
    case 'n':
        j->word = "ull";
        break;
    case '-':
        j->state = J_MINUS;
        return 0;
    default:
        if (c < '0' || c > '9')
            return -1;
        j->state = c == '0' ? J_ZERO : J_INT;
        return 0;
    }
    j->state = J_WORD;
    return 0;
}

/* The state after c in a number; J_NEXT where c ends it, -1 where it may not. */
static int number_next(int state, char c)
{
    SL_ASSERT(state >= J_MINUS && state <= J_EXPONENT);
    bool digit = c >= '0' && c <= '9', e = c == 'e' || c == 'E';
    switch (state) {
    case J_MINUS:
        return c == '0' ? J_ZERO : digit ? J_INT : -1;
    case J_ZERO:
        return c == '.' ? J_DOT : e ? J_E : digit ? -1 : J_NEXT;
    case J_INT:
        return digit ? J_INT : c == '.' ? J_DOT : e ? J_E : J_NEXT;
    case J_DOT:
        return digit ? J_FRACTION : -1;
    case J_FRACTION:
        return digit ? J_FRACTION : e ? J_E : J_NEXT;
    case J_E:
        return c == '+' || c == '-' ? J_E_SIGN : digit ? J_EXPONENT : -1;
    case J_E_SIGN:
        return digit ? J_EXPONENT : -1;
    default:
        return digit ? J_EXPONENT : J_NEXT;
    }
}

static int in_string(struct out_json *j, char c)
{
    SL_ASSERT(j->state != J_HEX || (j->n > 0 && j->n <= 4));
    bool hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    switch (j->state) {
    case J_ESCAPE:
        j->n = 4;
        j->state = c == 'u' ? J_HEX : J_STRING;
        return c != '\0' && strchr("\"\\/bfnrtu", c) != NULL ? 0 : -1;
    case J_HEX:
        if (--j->n == 0)
            j->state = J_STRING;
        return hex ? 0 : -1;
    default:
        if (c == '\\')
            j->state = J_ESCAPE;
        else if (c == '"' && j->is_key)
            j->state = J_COLON;
        else if (c == '"')
            return value_done(j);
        return (unsigned char)c < 0x20 ? -1 : 0;
    }
}

static int between(struct out_json *j, char c)
{
    SL_ASSERT(j->state <= J_NEXT || j->state == J_DONE);
    if (out_is_space(c))
        return 0;
    switch (j->state) {
    case J_FIRST:
        if (c == ']')
            return pop(j, false);
        return value_first(j, c);
    case J_VALUE:
        return value_first(j, c);
    case J_FIRST_KEY:
        if (c == '}')
            return pop(j, true);
        /* fall through */
    case J_KEY:
        j->is_key = true;
        j->state = J_STRING;
        return c == '"' ? 0 : -1;
    case J_COLON:
        j->state = J_VALUE;
        return c == ':' ? 0 : -1;
    case J_NEXT:
        if (c == '}' || c == ']')
            return pop(j, c == '}');
        j->state = top_is_object(j) ? J_KEY : J_VALUE;
        return c == ',' ? 0 : -1;
    default:
        return -1;
    }
}

int out_json_step(struct out_json *j, char c)
{
    if (j->state == J_STRING || j->state == J_ESCAPE || j->state == J_HEX)
        return in_string(j, c);
    if (j->state == J_WORD) {
        SL_ASSERT(*j->word != '\0');
        if (c != *j->word++)
            return -1;
        return *j->word == '\0' ? value_done(j) : 0;
    }
    if (j->state >= J_MINUS && j->state <= J_EXPONENT) {
        int next = number_next(j->state, c);
        if (next != J_NEXT) {
            j->state = (uint8_t)(next < 0 ? J_DONE : next);
            return next < 0 ? -1 : 0;
        }
        if (j->depth == 0)
            return -1; /* a number alone ends with its text: out_json_is_whole */
        j->state = J_NEXT;
    }
    return between(j, c);
}

bool out_json_is_whole(const char *s, size_t n)
{
    struct out_json j;
    out_json_begin(&j);
    while (n > 0 && out_is_space(s[n - 1]))
        n--;
    for (size_t i = 0; i < n; i++)
        if (out_json_step(&j, s[i]) < 0)
            return false;
    SL_ASSERT(j.state != J_DONE || j.depth == 0);
    return j.state == J_DONE || j.state == J_ZERO || j.state == J_INT || j.state == J_FRACTION ||
           j.state == J_EXPONENT;
}

/* ---------------------------------------------------------------- calls that are JSON */

enum { K_NONE, K_NAME, K_ARGS, K_ID, K_TYPE };

static const struct {
    const char *name;
    int key;
} keys[] = {
    {"name", K_NAME},      {"tool_name", K_NAME},  {"function", K_NAME},
    {"arguments", K_ARGS}, {"parameters", K_ARGS}, {"id", K_ID},
    {"call_id", K_ID},     {"tool_call_id", K_ID}, {"type", K_TYPE},
};

static int find_key(const char *s)
{
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i].name, s) == 0)
            return keys[i].key;
    return K_NONE;
}

static unsigned hex4(const char *s)
{
    unsigned u = 0;
    for (int i = 0; i < 4; i++)
        u = u * 16 + (unsigned)(s[i] <= '9' ? s[i] - '0' : (s[i] | 32) - 'a' + 10);
    SL_ASSERT(u <= 0xFFFF); /* the checker saw hexadecimal digits */
    return u;
}

/* The field, a checked JSON string without quotes, to its text; false: it is no text. */
static bool unescape(struct sl_output *p)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char *s = p->field, *out = p->field, *end = p->field + p->n_field;
    while (s < end) {
        SL_ASSERT(out <= s); /* nothing grows, so it is done in place */
        if (*s != '\\') {
            *out++ = *s++;
        } else if (s[1] != 'u') {
            *out++ = to[strchr(from, s[1]) - from];
            s += 2;
        } else {
            uint32_t cp = hex4(s + 2);
            s += 6;
            if (cp >= 0xD800 && cp < 0xDC00 && end - s >= 6 && s[0] == '\\' && s[1] == 'u') {
                uint32_t low = hex4(s + 2);
                if (low < 0xDC00 || low > 0xDFFF)
                    return false;
                cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
                s += 6;
            }
            size_t n = cp == 0 ? 0 : sl_utf8_encode(cp, out);
            if (n == 0)
                return false;
            out += n;
        }
    }
    SL_ASSERT(s == end && out <= end);
    *out = '\0';
    p->n_field = (size_t)(out - p->field);
    return true;
}

static void object_next(struct sl_output *p, char c);

static void string_more(struct sl_output *p, char c)
{
    SL_ASSERT(p->n_field <= OUT_FIELD);
    int r = out_json_step(&p->json, c);
    if (r < 0 || p->n_field >= OUT_FIELD) {
        out_fail(p);
    } else if (r == 0) {
        p->field[p->n_field++] = c;
    } else if (!unescape(p)) {
        out_fail(p);
    } else {
        p->state = p->field_then[0];
        p->state(p, c);
    }
}

/* Behind the opening quote of a short string. */
static void read_string(struct sl_output *p, out_state then)
{
    out_json_begin(&p->json);
    (void)out_json_step(&p->json, '"');
    SL_ASSERT(p->json.state == J_STRING && !p->json.is_key);
    p->n_field = 0;
    p->field_then[0] = then;
    p->state = string_more;
}

/* Reports the call once its name is known and its arguments begin, or are there already. */
static bool call_ready(struct sl_output *p)
{
    if (!p->begun && p->n_name > 0 && p->call.has_args) {
        if (!out_begin(p))
            return false;
        if (p->call.args_to > 0) {
            size_t from = p->call.args_from;
            SL_ASSERT(from < p->call.args_to && p->call.args_to <= p->hold.n_bytes);
            out_emit(p, SL_OUTPUT_CALL_ARGS, p->hold.data + from, p->call.args_to - from);
            out_commit(p);
            p->whole = true;
        }
    }
    return true;
}

static void got_string(struct sl_output *p, char c)
{
    (void)c;
    SL_ASSERT(p->call.key != K_NONE && p->call.key != K_ARGS);
    p->state = object_next;
    if (p->call.key == K_TYPE)
        return;
    char *to = p->call.key == K_NAME ? p->name : p->id;
    size_t *n = p->call.key == K_NAME ? &p->n_name : &p->n_id;
    if (p->call.key == K_NAME && *n > 0) { /* a second name */
        out_fail(p);
        return;
    }
    SL_ASSERT(p->n_field <= OUT_FIELD && p->field[p->n_field] == '\0');
    memcpy(to, p->field, p->n_field + 1);
    *n = p->n_field;
    (void)call_ready(p);
}

static void call_arguments(struct sl_output *p, char c)
{
    SL_ASSERT(p->call.has_args && p->call.key == K_ARGS);
    int r = out_json_step(&p->json, c);
    if (r < 0) {
        out_fail(p);
        return;
    }
    if (p->begun) {
        out_emit(p, SL_OUTPUT_CALL_ARGS, &c, 1);
        out_commit(p);
    }
    if (r > 0) {
        p->whole = p->begun;
        p->call.args_to = p->begun ? 0 : p->hold.n_bytes;
        p->state = object_next;
    }
}

static void object_value(struct sl_output *p, char c)
{
    if (out_is_space(c))
        return;
    if (p->call.key == K_ARGS && c == '{' && !p->call.has_args) {
        p->call.has_args = true;
        p->call.args_from = p->hold.n_bytes - 1;
        p->call.args_to = 0;
        out_json_begin(&p->json);
        if (!call_ready(p))
            return;
        p->state = call_arguments;
        call_arguments(p, c);
    } else if (p->call.key != K_ARGS && c == '"') {
        read_string(p, got_string);
    } else {
        out_fail(p);
    }
}

static void object_colon(struct sl_output *p, char c)
{
    if (c == ':')
        p->state = object_value;
    else if (!out_is_space(c))
        out_fail(p);
}

static void got_key(struct sl_output *p, char c)
{
    (void)c;
    SL_ASSERT(p->n_field <= OUT_FIELD && p->field[p->n_field] == '\0');
    p->call.key = find_key(p->field);
    if (p->tools->flags & OUT_NAME_IS_KEY) {
        p->call.key = p->n_name > 0 ? K_NONE : K_ARGS;
        memcpy(p->name, p->field, p->n_field + 1);
        p->n_name = p->n_field;
    }
    p->state = object_colon;
    if (p->call.key == K_NONE)
        out_fail(p);
}

static void object_key(struct sl_output *p, char c)
{
    if (c == '"')
        read_string(p, got_key);
    else if (!out_is_space(c))
        out_fail(p);
}

static void object_next(struct sl_output *p, char c)
{
    if (c == ',')
        p->state = object_key;
    else if (c == '}' && p->begun)
        out_body_done(p);
    else if (!out_is_space(c))
        out_fail(p);
}

/* The first byte of a call. */
void out_json_call(struct sl_output *p, char c)
{
    p->state = object_key;
    if (c != '{')
        out_fail(p);
}
