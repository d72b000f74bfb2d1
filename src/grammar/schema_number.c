/* SPDX-License-Identifier: MIT
 * schema_number.c - numbers under constraints: decimal numerals without exponent, compared by their
 * digits, so that bounds are exact whatever a double could hold.
 */
#include "base/buf.h"
#include "base/check.h"
#include "base/str.h"
#include "grammar/schema_impl.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DIGITS = 100 };

static bool decimal_of_text(const char *s, struct sl_decimal *d)
{
    int point = 0, n = 0;
    int64_t exponent = 0;
    bool seen = false;
    memset(d, 0, sizeof *d);
    d->negative = *s == '-';
    for (s += d->negative; *s != 0 && *s != 'e' && *s != 'E'; s++) {
        if (*s == '.') {
            seen = true;
            continue;
        }
        if (n == 0 && *s == '0') { /* a leading zero */
            point -= seen;
            continue;
        }
        if (n >= MAX_DIGITS)
            return false;
        d->digits[n++] = *s;
        point += !seen;
    }
    if (*s != 0 &&
        (!sl_parse_i64(s + 1 + (s[1] == '+'), strlen(s + 1 + (s[1] == '+')), &exponent) ||
         exponent > 340 || exponent < -340))
        return false;
    SL_ASSERT(n <= MAX_DIGITS && point <= MAX_DIGITS);
    point += (int)exponent;
    if (point > (int)sizeof d->digits)
        return false;
    while (n > 0 && d->digits[n - 1] == '0' && n > point)
        n--;
    if (n == 0) {
        point = 0;
        d->negative = false;
    }
    if (point < 0) { /* 0.00x */
        if (n - point > (int)sizeof d->digits)
            return false;
        memmove(d->digits - point, d->digits, (size_t)n);
        memset(d->digits, '0', (size_t)-point);
        n -= point;
        point = 0;
    }
    SL_ASSERT(n >= 0 && point >= 0 && SL_MAX(n, point) <= (int)sizeof d->digits);
    for (; n < point; n++)
        d->digits[n] = '0';
    d->n_whole = point;
    d->n_fraction = n - point;
    return true;
}

const char *sl_big_integer(const json_t *v)
{
    const size_t n = sizeof SL_BIG_INTEGER - 1;
    const char *s = json_string_value(v);
    if (s == NULL || json_string_length(v) <= n || memcmp(s, SL_BIG_INTEGER, n) != 0)
        return NULL;
    size_t sign = s[n] == '-', n_digits = strspn(s + n + sign, "0123456789");
    return n_digits > 0 && n + sign + n_digits == json_string_length(v) ? s + n : NULL;
}

bool sl_decimal_of(const json_t *number, struct sl_decimal *d)
{
    if (sl_big_integer(number) != NULL)
        return decimal_of_text(sl_big_integer(number), d);
    SL_ASSERT(json_is_number(number));
    struct sl_buf b = {0};
    if (json_is_integer(number))
        sl_buf_printf(&b, "%lld", (long long)json_integer_value(number));
    else
        sl_buf_json_double(&b, json_real_value(number));
    bool ok = sl_buf_ok(&b) && decimal_of_text(b.data, d);
    sl_buf_deinit(&b);
    return ok;
}

static sl_rx_id schema_number_digits(struct sl_rx *rx, int32_t lo, int32_t hi)
{
    return sl_rx_rep(rx, sl_rx_range(rx, '0', '9'), lo, hi);
}

static sl_rx_id point(struct sl_rx *rx)
{
    return sl_rx_range(rx, '.', '.');
}

/* Fractions, with their point or absent, that are greater than f (or equal, unless strict). */
static sl_rx_id fraction_above(struct sl_rx *rx, const char *f, int n, bool strict)
{
    sl_rx_id all = schema_number_digits(rx, 0, SL_RX_INF), nonzero = sl_rx_range(rx, '1', '9');
    sl_rx_id zeros = sl_rx_rep(rx, sl_rx_range(rx, '0', '0'), 0, SL_RX_INF);
    sl_rx_id some = sl_rx_cat(rx, zeros, sl_rx_cat(rx, nonzero, all));
    if (n == 0 && !strict)
        return sl_rx_opt(rx, sl_rx_cat(rx, point(rx), schema_number_digits(rx, 1, SL_RX_INF)));
    sl_rx_id out = strict ? some : all;
    for (int i = n; i-- > 0;) {
        SL_ASSERT(f[i] >= '0' && f[i] <= '9');
        sl_rx_id same = sl_rx_range(rx, (uint8_t)f[i], (uint8_t)f[i]), more = SL_RX_NONE;
        if (f[i] < '9')
            more = sl_rx_cat(rx, sl_rx_range(rx, (uint8_t)f[i] + 1u, '9'), all);
        out = sl_rx_or2(rx, sl_rx_cat(rx, same, out), more);
    }
    return sl_rx_cat(rx, point(rx), out);
}

static sl_rx_id any_fraction(struct sl_rx *rx)
{
    return sl_rx_opt(rx, sl_rx_cat(rx, point(rx), schema_number_digits(rx, 1, SL_RX_INF)));
}

static sl_rx_id magnitude(struct sl_rx *rx)
{
    sl_rx_id whole =
        sl_rx_cat(rx, sl_rx_range(rx, '1', '9'), schema_number_digits(rx, 0, SL_RX_INF));
    whole = sl_rx_or2(rx, whole, sl_rx_range(rx, '0', '0'));
    return sl_rx_cat(rx, whole, any_fraction(rx));
}

/* Numerals without sign that are greater than |d| (or equal, unless strict). */
static sl_rx_id above(struct sl_rx *rx, const struct sl_decimal *d, bool strict)
{
    SL_ASSERT(d->n_whole >= 0 && d->n_fraction >= 0);
    const char *w = d->n_whole > 0 ? d->digits : "0";
    int n = SL_MAX(d->n_whole, 1);
    sl_rx_id longer =
        sl_rx_cat(rx, sl_rx_range(rx, '1', '9'), schema_number_digits(rx, n, SL_RX_INF));
    sl_rx_id out = fraction_above(rx, d->digits + d->n_whole, d->n_fraction, strict);
    for (int i = n; i-- > 0;) {
        sl_rx_id same = sl_rx_range(rx, (uint8_t)w[i], (uint8_t)w[i]), more = SL_RX_NONE;
        if (w[i] < '9') {
            more = sl_rx_cat(rx, sl_rx_range(rx, (uint8_t)w[i] + 1u, '9'),
                             schema_number_digits(rx, n - 1 - i, n - 1 - i));
            more = sl_rx_cat(rx, more, any_fraction(rx));
        }
        out = sl_rx_or2(rx, sl_rx_cat(rx, same, out), more);
    }
    return sl_rx_or2(rx, out, sl_rx_cat(rx, longer, any_fraction(rx)));
}

static sl_rx_id below(struct sl_rx *rx, const struct sl_decimal *d, bool strict)
{
    return sl_rx_and2(rx, magnitude(rx), sl_rx_not(rx, above(rx, d, !strict)));
}

sl_rx_id sl_number_bound(struct sl_rx *rx, const struct sl_decimal *d, enum sl_bound how)
{
    SL_ASSERT(how <= SL_BELOW);
    bool strict = how == SL_ABOVE || how == SL_BELOW, up = how == SL_AT_LEAST || how == SL_ABOVE;
    bool zero = d->n_whole + d->n_fraction == 0;
    sl_rx_id minus = sl_rx_range(rx, '-', '-'), all = magnitude(rx);
    /* Mirrored, an upper bound is a lower one: then `same` has the sign that is bounded below. */
    bool positive = zero || d->negative != up;
    sl_rx_id near, far; /* numerals of the bound's own side: beyond it; and of the other sign */
    if (zero && strict) {
        near = above(rx, d, true);
        return up ? near : sl_rx_cat(rx, minus, near);
    }
    if (zero) { /* zero may be written with a minus */
        struct sl_decimal none = {0};
        near = all;
        far = below(rx, &none, false);
        return up ? sl_rx_or2(rx, near, sl_rx_cat(rx, minus, far))
                  : sl_rx_or2(rx, sl_rx_cat(rx, minus, near), far);
    }
    if (positive) { /* x >= 5, or x <= -5 */
        near = above(rx, d, strict);
        return up ? near : sl_rx_cat(rx, minus, near);
    }
    near = below(rx, d, strict); /* x >= -5, or x <= 5 */
    return up ? sl_rx_or2(rx, all, sl_rx_cat(rx, minus, near))
              : sl_rx_or2(rx, sl_rx_cat(rx, minus, all), near);
}

sl_rx_id sl_number_equal(struct sl_rx *rx, const struct sl_decimal *d, bool any_zeros)
{
    sl_rx_id zeros = sl_rx_rep(rx, sl_rx_range(rx, '0', '0'), 0, SL_RX_INF), out;
    sl_rx_id whole = sl_rx_lit(rx, d->n_whole > 0 ? d->digits : "0", (size_t)SL_MAX(d->n_whole, 1));
    if (d->n_fraction > 0) {
        out = sl_rx_lit(rx, d->digits + d->n_whole, (size_t)d->n_fraction);
        out = sl_rx_cat(rx, point(rx), any_zeros ? sl_rx_cat(rx, out, zeros) : out);
    } else if (!any_zeros) {
        out = SL_RX_EPS;
    } else {
        out = sl_rx_rep(rx, sl_rx_range(rx, '0', '0'), 1, SL_RX_INF);
        out = sl_rx_opt(rx, sl_rx_cat(rx, point(rx), out));
    }
    out = sl_rx_cat(rx, whole, out);
    sl_rx_id minus = sl_rx_range(rx, '-', '-');
    bool zero = d->n_whole + d->n_fraction == 0;
    SL_ASSERT(!zero || !d->negative); /* zero has one form, its texts have two */
    return zero          ? any_zeros ? sl_rx_cat(rx, sl_rx_opt(rx, minus), out) : out
           : d->negative ? sl_rx_cat(rx, minus, out)
                         : out;
}

sl_rx_id sl_number_multiple(struct sl_rx *rx, const struct sl_decimal *d)
{
    uint64_t k;
    int n = d->n_whole + d->n_fraction;
    if (d->negative || n == 0 || n > 15 || !sl_parse_u64(d->digits, (size_t)n, &k) || k == 0 ||
        k > INT32_MAX)
        return SL_RX_NONE;
    SL_ASSERT(d->n_fraction >= 0 && d->n_fraction <= n);
    sl_rx_id minus = sl_rx_opt(rx, sl_rx_range(rx, '-', '-'));
    return sl_rx_cat(rx, minus, sl_rx_multiple(rx, (uint32_t)k, d->n_fraction));
}
