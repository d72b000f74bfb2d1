/* SPDX-License-Identifier: MIT */
#include "trace/context.h"

#include "base/check.h"
#include "base/err.h"

#include <string.h>

/* version "-" trace-id "-" parent-id "-" trace-flags */
enum { AT_TRACE = 3, AT_SPAN = 36, AT_FLAGS = 53, N_PARENT = 55 };

#define MAX_KEY   256
#define MAX_VALUE 256

/* Lower case only: the recommendation calls upper case malformed. */
static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_hex(const char *s, size_t n_bytes, uint8_t *out)
{
    for (size_t i = 0; i < n_bytes; i++) {
        int high = digit_of(s[2 * i]), low = digit_of(s[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        SL_ASSERT(high < 16 && low < 16);
        out[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static bool all_zero(const uint8_t *p, size_t n)
{
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++)
        any |= p[i];
    return any == 0;
}

bool sl_traceparent_parse(const char *s, size_t n, struct sl_trace_context *out)
{
    struct sl_trace_context c;
    uint8_t version, flags;
    if (n < N_PARENT || s[2] != '-' || s[AT_SPAN - 1] != '-' || s[AT_FLAGS - 1] != '-')
        return false;
    if (!read_hex(s, 1, &version) || !read_hex(s + AT_TRACE, sizeof c.trace_id, c.trace_id) ||
        !read_hex(s + AT_SPAN, sizeof c.span_id, c.span_id) || !read_hex(s + AT_FLAGS, 1, &flags))
        return false;
    /* A later version may have more behind another '-', and the rest means what it means now. */
    if (version == 0xff || (version == 0 && n != N_PARENT) || (n > N_PARENT && s[N_PARENT] != '-'))
        return false;
    if (all_zero(c.trace_id, sizeof c.trace_id) || all_zero(c.span_id, sizeof c.span_id))
        return false;
    c.flags = flags & (SL_TRACE_SAMPLED | SL_TRACE_RANDOM);
    SL_ASSERT((c.flags & ~(SL_TRACE_SAMPLED | SL_TRACE_RANDOM)) == 0);
    *out = c;
    return true;
}

/* ---- tracestate */

static bool is_key_char(char c, bool first)
{
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
        return true;
    return !first && c != '\0' && strchr("_-*/@", c) != NULL;
}

static bool member_is_valid(const char *s, size_t n, size_t *n_key)
{
    SL_ASSERT(n > 0);
    const char *equals = memchr(s, '=', n);
    if (equals == NULL)
        return false;
    *n_key = (size_t)(equals - s);
    size_t n_value = n - *n_key - 1;
    if (*n_key == 0 || *n_key > MAX_KEY || n_value == 0 || n_value > MAX_VALUE)
        return false;
    for (size_t i = 0; i < *n_key; i++)
        if (!is_key_char(s[i], i == 0))
            return false;
    for (size_t i = 0; i < n_value; i++) {
        char c = equals[1 + i];
        if (c < 0x20 || c > 0x7e || c == '=' || c == ',')
            return false;
    }
    SL_ASSERT(*n_key + 1 + n_value == n);
    return true;
}

/* Is there a member of this key already? */
static bool has_key(const struct sl_buf *b, const char *key, size_t n_key)
{
    const char *at = b->data;
    if (b->n_bytes == 0)
        return false;
    for (const char *end = at + b->n_bytes; at < end;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma != NULL ? comma : end;
        SL_ASSERT(stop > at && stop <= end);
        if ((size_t)(stop - at) > n_key && at[n_key] == '=' && memcmp(at, key, n_key) == 0)
            return true;
        at = stop < end ? stop + 1 : end;
    }
    return false;
}

bool sl_tracestate_add(struct sl_buf *out, int *n_members, const char *s, size_t n)
{
    const char *end = s + n;
    SL_ASSERT(*n_members >= 0 && *n_members <= SL_TRACE_MAX_MEMBERS);
    for (bool more = true; more;) {
        const char *comma = memchr(s, ',', (size_t)(end - s));
        const char *stop = comma != NULL ? comma : end;
        const char *next = comma != NULL ? comma + 1 : end;
        more = comma != NULL;
        size_t n_key;
        while (s < stop && (*s == ' ' || *s == '\t'))
            s++;
        while (s < stop && (stop[-1] == ' ' || stop[-1] == '\t'))
            stop--;
        SL_ASSERT(s <= stop && stop <= end);
        if (s < stop) { /* empty members are allowed */
            size_t n_member = (size_t)(stop - s);
            if (*n_members == SL_TRACE_MAX_MEMBERS || !member_is_valid(s, n_member, &n_key) ||
                has_key(out, s, n_key))
                return false;
            if (out->n_bytes > 0)
                sl_buf_putc(out, ',');
            sl_buf_put(out, s, n_member);
            ++*n_members;
        }
        s = next;
    }
    return sl_buf_ok(out);
}
