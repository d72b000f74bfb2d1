/* SPDX-License-Identifier: MIT
 * Is this JSON? The two readers of whole texts (a request's body, a model's file) against a check
 * of the grammar of RFC 8259 written as one pass with its own stack.
 */
#include "base/limits.h"
#include "base/str.h"
#include "fuzz.h"
#include "io/json.h"
#include "server/http/json_in.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct scan {
    const char *s, *end;
    bool nul, has_big; /* \u0000 somewhere; a number that no double holds */
    bool has_wide;     /* an integer of more than 64 bits */
    bool has_infinity; /* the word, as Python writes it */
    bool nul_key;
};

static void blanks(struct scan *c)
{
    while (c->s < c->end && (*c->s == ' ' || *c->s == '\t' || *c->s == '\n' || *c->s == '\r'))
        c->s++;
}

static bool literal(struct scan *c, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(c->end - c->s) < n || memcmp(c->s, word, n) != 0)
        return false;
    c->s += n;
    return true;
}

static int hex4(struct scan *c)
{
    uint64_t x;
    if (c->end - c->s < 4 || !sl_parse_hex_u64(c->s, 4, &x))
        return -1;
    c->s += 4;
    return (int)x;
}

static bool escape(struct scan *c, bool key)
{
    if (c->s == c->end)
        return false;
    char e = *c->s++;
    if (e != 'u')
        return e != '\0' && strchr("\"\\/bfnrt", e) != NULL;
    int x = hex4(c);
    if (x >= 0xD800 && x < 0xDC00) {
        if (!literal(c, "\\u"))
            return false;
        int low = hex4(c);
        return low >= 0xDC00 && low < 0xE000;
    }
    c->nul |= x == 0;
    c->nul_key |= x == 0 && key;
    return x >= 0 && !(x >= 0xDC00 && x < 0xE000);
}

static bool string(struct scan *c, bool key)
{
    if (!literal(c, "\""))
        return false;
    while (c->s < c->end) {
        unsigned char b = (unsigned char)*c->s;
        size_t len = sl_utf8_valid_len(c->s, (size_t)(c->end - c->s));
        if (b < 0x20 || len == 0)
            return false;
        c->s += len;
        if (b == '"')
            return true;
        if (b == '\\' && !escape(c, key))
            return false;
    }
    return false;
}

static bool digits(struct scan *c)
{
    const char *from = c->s;
    while (c->s < c->end && *c->s >= '0' && *c->s <= '9')
        c->s++;
    return c->s > from;
}

static bool number(struct scan *c)
{
    const char *from = c->s;
    char text[320];
    bool real = false;
    (void)literal(c, "-");
    const char *first = c->s;
    if (literal(c, "Infinity")) {
        c->has_infinity = true;
        return true;
    }
    if (!digits(c) || (*first == '0' && c->s - first > 1))
        return false;
    if (literal(c, ".")) {
        real = true;
        if (!digits(c))
            return false;
    }
    if (c->s < c->end && (*c->s == 'e' || *c->s == 'E')) {
        real = true;
        c->s++;
        if (!literal(c, "+"))
            (void)literal(c, "-");
        if (!digits(c))
            return false;
    }
    size_t n = (size_t)(c->s - from);
    int64_t i;
    if (n >= sizeof text) { /* too long to be tried here */
        c->has_big = true;
        return true;
    }
    memcpy(text, from, n);
    text[n] = '\0';
    c->has_big |= !isfinite(strtod(text, NULL));
    c->has_wide |= !real && !sl_parse_i64(text, n, &i);
    return true;
}

enum { WANT_VALUE, WANT_KEY, AFTER_VALUE };

static bool scalar(struct scan *c)
{
    if (*c->s == '"')
        return string(c, false);
    return literal(c, "true") || literal(c, "false") || literal(c, "null") || number(c);
}

/* Opens or closes what the next letter says, or takes a key or scalar; the stack holds '[' or '{'.
 */
static bool step(struct scan *c, char *stack, int *depth, int *state)
{
    char b = *c->s;
    bool object = *depth > 0 && stack[*depth - 1] == '{';
    if (*state == WANT_VALUE && (b == '[' || b == '{')) {
        stack[(*depth)++] = b;
        c->s++;
        blanks(c);
        bool empty = c->s < c->end && *c->s == (b == '[' ? ']' : '}');
        *state = empty ? AFTER_VALUE : b == '{' ? WANT_KEY : WANT_VALUE;
    } else if (*state == WANT_VALUE) {
        *state = AFTER_VALUE;
        return scalar(c);
    } else if (*state == WANT_KEY) {
        *state = WANT_VALUE;
        if (!string(c, true))
            return false;
        blanks(c);
        return literal(c, ":");
    } else if (b == ',' && *depth > 0) {
        c->s++;
        *state = object ? WANT_KEY : WANT_VALUE;
    } else {
        if (*depth == 0 || b != (object ? '}' : ']'))
            return false;
        c->s++;
        --*depth;
    }
    return true;
}

static bool json_text(struct scan *c, int max_depth, bool *too_deep)
{
    char stack[SL_MAX_JSON_DEPTH + 2];
    int depth = 0, state = WANT_VALUE;
    *too_deep = false;
    for (blanks(c); c->s < c->end && !(state == AFTER_VALUE && depth == 0); blanks(c)) {
        if (!step(c, stack, &depth, &state))
            return false;
        if (depth > max_depth) {
            *too_deep = true;
            return false;
        }
    }
    return state == AFTER_VALUE && depth == 0 && c->s == c->end;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct scan c = {.s = (const char *)data, .end = (const char *)data + size};
    struct sl_refusal r = {0};
    struct sl_error err = {0};
    const char *text = c.s;
    json_t *root;
    bool too_deep;
    bool good = json_text(&c, SL_MAX_JSON_DEPTH, &too_deep);
    const char *first = text;
    while (first < c.end && strchr(" \t\r\n", *first) != NULL && *first != '\0')
        first++;
    good = good && *first == '{' && !c.has_big && !c.nul_key;
    int rc = sl_json_parse_object(text, size, &root, &r);
    SL_ASSERT((rc == 0) == (good && !c.has_infinity) && (rc == 0) == (root != NULL));
    SL_ASSERT(rc == 0 || (r.err.code == rc && r.err.msg[0] != '\0'));
    SL_ASSERT(!too_deep || rc == SL_ELIMIT);
    json_decref(root);
    root = NULL;
    rc = sl_json_object(text, size, SL_JSON_MAX_CONFIG, "x.json", &root, &err);
    good = good && !c.has_wide; /* only bodies of requests have those, and only files Infinity */
    SL_ASSERT(rc != 0 || (good && !c.nul));
    SL_ASSERT(rc == 0 || !good || c.nul || strstr(err.msg, "duplicate") != NULL);
    SL_ASSERT(rc == 0 || (err.code == rc && strncmp(err.msg, "x.json: ", 8) == 0));
    json_decref(root);
    return 0;
}
