/* SPDX-License-Identifier: MIT
 *
 * Character properties and case, independent of the locale: tables of ranges, searched by halves.
 * ASCII is answered without them.
 */
#include "base/check.h"
#include "text/jinja/jinja.h"
#include "text/jinja/jinja_unicode_data.inc"

static bool in_ranges(const struct range *r, size_t n, uint32_t cp)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > r[mid].last)
            lo = mid + 1;
        else if (cp < r[mid].first)
            hi = mid;
        else
            return true;
    }
    return false;
}

static uint32_t map_case(const struct case_run *r, size_t n, uint32_t cp)
{
    size_t lo = 0, hi = n;
    while (lo < hi) { /* the first run that ends at or behind cp */
        size_t mid = (lo + hi) / 2;
        if (cp > r[mid].last)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; lo < n && r[lo].first <= cp; lo++)
        if ((cp - r[lo].first) % r[lo].stride == 0)
            return (uint32_t)((int32_t)cp + r[lo].delta);
    return cp;
}

static const struct case_full *find_full(const struct case_full *f, size_t n, uint32_t cp)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > f[mid].cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && f[lo].cp == cp ? &f[lo] : NULL;
}

static size_t copy_full(const struct case_full *f, uint32_t out[3])
{
    size_t n = 0;
    while (n < 3 && f->to[n] != 0) {
        out[n] = f->to[n];
        n++;
    }
    return n;
}

bool sl_jinja_is_space(uint32_t cp)
{
    if (cp < 128)
        return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x1F);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool sl_jinja_is_printable(uint32_t cp)
{
    return cp < 128 ? cp >= 0x20 && cp < 0x7F : !in_ranges(unprintable, SL_COUNT(unprintable), cp);
}

bool sl_jinja_is_alpha(uint32_t cp)
{
    if (cp < 128)
        return (cp | 0x20) >= 'a' && (cp | 0x20) <= 'z';
    return in_ranges(alpha, SL_COUNT(alpha), cp);
}

bool sl_jinja_is_decimal(uint32_t cp)
{
    return cp < 128 ? cp >= '0' && cp <= '9' : in_ranges(decimal, SL_COUNT(decimal), cp);
}

bool sl_jinja_is_digit(uint32_t cp)
{
    return cp < 128 ? cp >= '0' && cp <= '9' : in_ranges(digit, SL_COUNT(digit), cp);
}

bool sl_jinja_is_numeric(uint32_t cp)
{
    return cp < 128 ? cp >= '0' && cp <= '9' : in_ranges(numeric, SL_COUNT(numeric), cp);
}

bool sl_jinja_is_upper(uint32_t cp)
{
    return cp < 128 ? cp >= 'A' && cp <= 'Z' : in_ranges(upper, SL_COUNT(upper), cp);
}

bool sl_jinja_is_lower(uint32_t cp)
{
    return cp < 128 ? cp >= 'a' && cp <= 'z' : in_ranges(lower, SL_COUNT(lower), cp);
}

uint32_t sl_jinja_lower(uint32_t cp)
{
    if (cp < 128)
        return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
    return map_case(to_lower, SL_COUNT(to_lower), cp);
}

size_t sl_jinja_upper(uint32_t cp, uint32_t out[3])
{
    const struct case_full *f = cp < 128 ? NULL : find_full(full_upper, SL_COUNT(full_upper), cp);
    if (f != NULL)
        return copy_full(f, out);
    if (cp < 128)
        out[0] = cp >= 'a' && cp <= 'z' ? cp - 32 : cp;
    else
        out[0] = map_case(to_upper, SL_COUNT(to_upper), cp);
    return 1;
}

size_t sl_jinja_titlecase(uint32_t cp, uint32_t out[3])
{
    const struct case_full *f = cp < 128 ? NULL : find_full(full_title, SL_COUNT(full_title), cp);
    return f != NULL ? copy_full(f, out) : sl_jinja_upper(cp, out);
}
