/* SPDX-License-Identifier: MIT */
#include "base/str.h"

#include "base/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool str_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

bool sl_parse_u64(const char *s, size_t n, uint64_t *out)
{
    uint64_t x = 0;
    if (n == 0)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!str_is_digit(s[i]) || !sl_mul_u64(x, 10, &x) ||
            !sl_add_u64(x, (uint64_t)(s[i] - '0'), &x))
            return false;
    }
    *out = x;
    return true;
}

bool sl_parse_i64(const char *s, size_t n, int64_t *out)
{
    bool negative = n > 0 && s[0] == '-';
    uint64_t x;
    if (!sl_parse_u64(s + negative, n - negative, &x))
        return false;
    if (x > (uint64_t)INT64_MAX + negative)
        return false;
    *out = negative ? (int64_t)(0 - x) : (int64_t)x;
    return true;
}

bool sl_parse_double(const char *s, size_t n, double *out)
{
    char text[64];
    size_t i = 0;
    if (n == 0 || n >= sizeof text)
        return false;
    i += s[i] == '-';
    size_t int_start = i;
    while (i < n && str_is_digit(s[i]))
        i++;
    if (i == int_start || (s[int_start] == '0' && i > int_start + 1))
        return false;
    if (i < n && s[i] == '.') {
        size_t frac = ++i;
        while (i < n && str_is_digit(s[i]))
            i++;
        if (i == frac)
            return false;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        if (i < n && (s[i] == '+' || s[i] == '-'))
            i++;
        size_t exp = i;
        while (i < n && str_is_digit(s[i]))
            i++;
        if (i == exp)
            return false;
    }
    if (i != n)
        return false;
    memcpy(text, s, n);
    text[n] = '\0';
    *out = strtod(text, NULL);
    return isfinite(*out);
}

bool sl_parse_human_u64(const char *s, size_t n, uint64_t *out)
{
    static const struct {
        char suffix;
        uint64_t factor;
    } units[] = {{'k', 1000},     {'m', 1000000},  {'g', 1000000000},
                 {'K', 1u << 10}, {'M', 1u << 20}, {'G', 1u << 30}};
    for (size_t u = 0; n > 0 && u < SL_COUNT(units); u++) {
        double x;
        if (s[n - 1] != units[u].suffix)
            continue;
        if (!sl_parse_double(s, n - 1, &x) || x < 0 || x * (double)units[u].factor >= 0x1p63)
            return false;
        *out = (uint64_t)llround(x * (double)units[u].factor);
        return true;
    }
    return sl_parse_u64(s, n, out);
}

bool sl_parse_hex_u64(const char *s, size_t n, uint64_t *out)
{
    uint64_t x = 0;
    if (n == 0 || n > 16)
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        int d = str_is_digit(c)          ? c - '0'
                : (c >= 'a' && c <= 'f') ? c - 'a' + 10
                : (c >= 'A' && c <= 'F') ? c - 'A' + 10
                                         : -1;
        if (d < 0)
            return false;
        x = x << 4 | (uint64_t)d;
    }
    *out = x;
    return true;
}

size_t sl_printable_len(const char *s, size_t n)
{
    unsigned char c = (unsigned char)*s;
    if (c < 0x80)
        return c >= 0x20 && c != 0x7F;
    if (c == 0xC2 && n > 1 && (unsigned char)s[1] < 0xA0) /* U+0080 to U+009F: as good as ESC */
        return 0;
    return sl_utf8_valid_len(s, n);
}

void sl_scrub(char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        const size_t len = sl_printable_len(s + i, n - i);
        if (len == 0)
            s[i] = '?';
        i += len > 0 ? len : 1;
    }
}

size_t sl_utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)s;
    if (n == 0)
        return 0;
    if (p[0] < 0x80) {
        *cp = p[0];
        return 1;
    }
    size_t len = p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : 2;
    if (p[0] < 0xC2 || p[0] > 0xF4 || len > n)
        return 0;
    uint32_t x = p[0] & (0x7Fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
        x = x << 6 | (p[i] & 0x3Fu);
    }
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (x < least[len] || (x >= 0xD800 && x <= 0xDFFF) || x > 0x10FFFF)
        return 0;
    *cp = x;
    return len;
}

size_t sl_utf8_valid_len(const char *s, size_t n)
{
    uint32_t cp;
    return sl_utf8_decode(s, n, &cp);
}

size_t sl_utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if ((cp >= 0xD800 && cp <= 0xDFFF) || cp > 0x10FFFF)
        return 0;
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

/* Could s[0..n), n < 4, become a valid character by appending bytes? */
static bool is_proper_prefix(const unsigned char *s, size_t n)
{
    size_t len = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || n >= len)
        return false;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return false;
    }
    if (n < 2)
        return true;
    /* The second byte alone decides overlongs, surrogates and the U+10FFFF bound. */
    unsigned char lo = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    unsigned char hi = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    return s[1] >= lo && s[1] <= hi;
}

size_t sl_utf8_incomplete_tail(const char *s, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        const unsigned char *p = (const unsigned char *)s + n - k;
        if (*p >= 0xC0)
            return is_proper_prefix(p, k) ? k : 0;
        if (*p < 0x80)
            return 0;
    }
    return 0;
}

#define NAME_MAX_BYTES 64

/* Letters to insert, remove or replace, and neighbours to exchange. */
static size_t edit_distance(const char *a, size_t na, const char *b, size_t nb)
{
    size_t rows[3][NAME_MAX_BYTES + 1]; /* of i, i - 1 and i - 2 */
    for (size_t j = 0; j <= nb; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = SL_MIN(above[j], row[j - 1]) + 1;
            row[j] = SL_MIN(best, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = SL_MIN(row[j], two_above[j - 2] + 1);
        }
    }
    return rows[na % 3][nb];
}

const char *sl_nearest(const char *name, const char *const *candidates, size_t n)
{
    const char *best = NULL;
    size_t n_name = strlen(name), best_distance = SIZE_MAX;
    if (n_name == 0 || n_name > NAME_MAX_BYTES)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        size_t n_cand = strlen(candidates[i]);
        if (n_cand > NAME_MAX_BYTES)
            continue;
        size_t d = edit_distance(name, n_name, candidates[i], n_cand);
        if (d < best_distance) {
            best_distance = d;
            best = candidates[i];
        }
    }
    /* A third of the letters may be wrong: beyond that the hint confuses more than it helps. */
    return best_distance <= SL_MAX(n_name / 3, 1) ? best : NULL;
}

bool sl_starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool sl_ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && memcmp(s + n - m, suffix, m) == 0;
}
