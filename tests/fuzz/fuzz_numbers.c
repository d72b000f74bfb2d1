/* SPDX-License-Identifier: MIT
 * Strict numbers, UTF-8 and the numbers and strings of JSON output, each against a slow way to say
 * the same. The first byte chooses.
 */
#include "base/buf.h"
#include "base/json_load.h"
#include "base/str.h"
#include "fuzz.h"
#include "server/http/sse.h"
#include "utf8_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool all_in(const char *s, size_t n, const char *set)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] == '\0' || strchr(set, s[i]) == NULL)
            return false;
    return n > 0;
}

static bool digits_u64(const char *s, size_t n, uint64_t *out)
{
    unsigned __int128 x = 0;
    if (!all_in(s, n, "0123456789"))
        return false;
    for (size_t i = 0; i < n; i++)
        x = x > UINT64_MAX ? x : x * 10 + (unsigned)(s[i] - '0');
    *out = (uint64_t)x;
    return x <= UINT64_MAX;
}

static void integers(const char *s, size_t n)
{
    uint64_t x = 0, want = 0;
    int64_t i = 0;
    bool good = digits_u64(s, n, &want);
    SL_ASSERT(sl_parse_u64(s, n, &x) == good && (!good || x == want));
    bool minus = n > 0 && s[0] == '-';
    good = digits_u64(s + minus, n - minus, &want) && want <= (UINT64_C(1) << 63) - !minus;
    SL_ASSERT(sl_parse_i64(s, n, &i) == good);
    SL_ASSERT(!good || (minus ? (uint64_t)0 - want : want) == (uint64_t)i);
    good = n <= 16 && all_in(s, n, "0123456789abcdefABCDEF");
    char text[32];
    SL_ASSERT(sl_parse_hex_u64(s, n, &x) == good);
    if (good) {
        memcpy(text, s, n);
        text[n] = '\0';
        SL_ASSERT(x == strtoull(text, NULL, 16));
    }
}

/* The grammar of RFC 8259 as a table: state by class of character. */
static bool json_number(const char *s, size_t n)
{
    enum { MINUS, ZERO, DIGIT, DOT, E, PLUS, N_CLASSES };
    static const char next[9][N_CLASSES] = {
        {1, 2, 3, -1, -1, -1},  /* 0 start */
        {-1, 2, 3, -1, -1, -1}, /* 1 after the sign */
        {-1, -1, -1, 4, 6, -1}, /* 2 a zero */
        {-1, 3, 3, 4, 6, -1},   /* 3 integer digits */
        {-1, 5, 5, -1, -1, -1}, /* 4 after the point */
        {-1, 5, 5, -1, 6, -1},  /* 5 fraction digits */
        {7, 8, 8, -1, -1, 7},   /* 6 after e */
        {-1, 8, 8, -1, -1, -1}, /* 7 after its sign */
        {-1, 8, 8, -1, -1, -1}, /* 8 exponent digits */
    };
    int state = 0;
    for (size_t i = 0; i < n && state >= 0; i++) {
        char c = s[i];
        int class = c == '-' ? MINUS : c == '0' ? ZERO : c >= '1' && c <= '9' ? DIGIT : -1;
        class = c == '.' ? DOT : c == 'e' || c == 'E' ? E : c == '+' ? PLUS : class;
        state = class < 0 ? -1 : next[state][class];
    }
    return state == 2 || state == 3 || state == 5 || state == 8;
}

static void reals(const char *s, size_t n)
{
    char text[64] = "";
    double x = 0, want = INFINITY;
    uint64_t u = 0, v = 0;
    if (n < sizeof text && json_number(s, n)) {
        memcpy(text, s, n);
        want = strtod(text, NULL);
    }
    SL_ASSERT(sl_parse_double(s, n, &x) == (bool)isfinite(want) && (!isfinite(want) || x == want));
    static const char units[] = "kmgKMG";
    static const double factors[] = {1e3, 1e6, 1e9, 0x1p10, 0x1p20, 0x1p30};
    const char *unit =
        n > 1 && n <= sizeof text && s[n - 1] != '\0' ? strchr(units, s[n - 1]) : NULL;
    bool good = digits_u64(s, n, &v);
    if (unit != NULL && json_number(s, n - 1)) {
        memcpy(text, s, n - 1);
        text[n - 1] = '\0';
        double exact = strtod(text, NULL) * factors[unit - units];
        good = exact >= 0 && exact < 0x1p63;
        v = good ? (uint64_t)(exact + 0.5) : 0;
    }
    SL_ASSERT(sl_parse_human_u64(s, n, &u) == good);
    SL_ASSERT(!good || u - v + 1 <= 2); /* halves and large values may round the other way */
}

static void characters(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    SL_ASSERT(sl_utf8_incomplete_tail(s, n) == model_tail(u, n));
    for (size_t i = 0; i <= n;) {
        uint32_t cp = 7, want = 7;
        size_t len = model_utf8(u + i, n - i, &want);
        SL_ASSERT(sl_utf8_decode(s + i, n - i, &cp) == len && cp == want);
        SL_ASSERT(sl_utf8_valid_len(s + i, n - i) == len);
        char again[4];
        SL_ASSERT(len == 0 || (sl_utf8_encode(cp, again) == len && memcmp(again, s + i, len) == 0));
        i += SL_MAX(len, 1);
    }
    if (n >= 4) {
        uint32_t cp, back = 0;
        char c[4];
        memcpy(&cp, s, sizeof cp);
        cp %= 0x120000;
        size_t len = sl_utf8_encode(cp, c);
        bool good = cp < 0x110000 && cp / 0x800 != 0x1B;
        SL_ASSERT((len > 0) == good);
        SL_ASSERT(!good || (model_utf8((unsigned char *)c, len, &back) == len && back == cp));
    }
}

/* What was written as JSON reads back as the same text, with U+FFFD for what is no character. */
static void strings(const char *s, size_t n)
{
    static struct sl_buf out, want;
    json_error_t why;
    sl_buf_clear(&out);
    sl_buf_clear(&want);
    sl_buf_puts(&out, "[");
    sl_buf_json_string(&out, s, n);
    sl_buf_puts(&out, "]");
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = model_utf8((const unsigned char *)s + i, n - i, &cp);
        sl_buf_put(&want, len > 0 ? s + i : "\xEF\xBF\xBD", len > 0 ? len : 3);
        i += SL_MAX(len, 1);
    }
    json_t *root = sl_json_load(out.data, out.n_bytes, JSON_ALLOW_NUL, &why);
    const json_t *v = json_array_get(root, 0);
    SL_ASSERT(json_is_string(v) && json_string_length(v) == want.n_bytes);
    SL_ASSERT(want.n_bytes == 0 || memcmp(json_string_value(v), want.data, want.n_bytes) == 0);
    json_decref(root);
}

static void outputs(const char *s, size_t n)
{
    static struct sl_buf out;
    char text[64];
    uint64_t u = 0;
    double d;
    float f;
    memcpy(&u, s, SL_MIN(n, sizeof u));
    memcpy(&d, &u, sizeof d);
    memcpy(&f, &u, sizeof f);
    sl_buf_clear(&out);
    sl_put_u64(&out, u);
    snprintf(text, sizeof text, "%llu", (unsigned long long)u);
    SL_ASSERT(strcmp(out.data, text) == 0);
    sl_buf_clear(&out);
    sl_put_i64(&out, (int64_t)u);
    snprintf(text, sizeof text, "%lld", (long long)u);
    SL_ASSERT(strcmp(out.data, text) == 0);
    sl_buf_clear(&out);
    sl_buf_json_double(&out, d);
    if (isfinite(d))
        SL_ASSERT(json_number(out.data, out.n_bytes) && strtod(out.data, NULL) == d);
    else
        SL_ASSERT(strcmp(out.data, "null") == 0);
    sl_buf_clear(&out);
    sl_put_logprob(&out, f);
    SL_ASSERT(json_number(out.data, out.n_bytes));
    SL_ASSERT(strtof(out.data, NULL) == (isfinite(f) ? f : -9999.0f));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const kinds[])(const char *, size_t) = {integers, reals, characters, strings,
                                                          outputs};
    if (size == 0)
        return 0;
    kinds[data[0] % SL_COUNT(kinds)]((const char *)data + 1, size - 1);
    return 0;
}
