/* SPDX-License-Identifier: MIT */
#include "base/buf.h"

#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sl_buf_deinit(struct sl_buf *b)
{
    sl_free(b->data);
    *b = (struct sl_buf){.max_bytes = b->max_bytes};
}

void sl_buf_clear(struct sl_buf *b)
{
    b->n_bytes = 0;
    b->failed = false;
    if (b->data != NULL)
        b->data[0] = '\0';
}

bool sl_buf_ok(const struct sl_buf *b)
{
    return !b->failed;
}

bool sl_buf_reserve(struct sl_buf *b, size_t n_more)
{
    size_t need;
    if (b->failed)
        return false;
    if (!sl_add_size(b->n_bytes, n_more, &need) || need == SIZE_MAX ||
        (b->max_bytes != 0 && need > b->max_bytes)) {
        b->failed = true;
        return false;
    }
    need += 1; /* the NUL */
    if (need <= b->cap_bytes)
        return true;
    size_t cap = SL_MAX(need, b->cap_bytes < SIZE_MAX / 2 ? b->cap_bytes * 2 : need);
    cap = SL_MAX(cap, 64);
    char *grown = sl_realloc(b->data, cap);
    if (grown == NULL) {
        b->failed = true;
        return false;
    }
    b->data = grown;
    b->cap_bytes = cap;
    return true;
}

void sl_buf_put(struct sl_buf *b, const void *data, size_t n)
{
    if (!sl_buf_reserve(b, n))
        return;
    if (n > 0)
        memcpy(b->data + b->n_bytes, data, n);
    b->n_bytes += n;
    b->data[b->n_bytes] = '\0';
}

void sl_buf_puts(struct sl_buf *b, const char *s)
{
    sl_buf_put(b, s, strlen(s));
}

void sl_buf_putc(struct sl_buf *b, char c)
{
    sl_buf_put(b, &c, 1);
}

void sl_buf_vprintf(struct sl_buf *b, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (n < 0 || !sl_buf_reserve(b, (size_t)n)) {
        b->failed = true;
        return;
    }
    vsnprintf(b->data + b->n_bytes, (size_t)n + 1, fmt, ap);
    b->n_bytes += (size_t)n;
}

void sl_buf_printf(struct sl_buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    sl_buf_vprintf(b, fmt, ap);
    va_end(ap);
}

char *sl_buf_steal(struct sl_buf *b, size_t *n_bytes)
{
    sl_buf_put(b, "", 0);
    char *data = b->failed ? NULL : b->data;
    if (n_bytes != NULL)
        *n_bytes = data != NULL ? b->n_bytes : 0;
    if (data == NULL)
        sl_free(b->data);
    *b = (struct sl_buf){.max_bytes = b->max_bytes};
    return data;
}

void sl_buf_json_escape(struct sl_buf *b, const char *s, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    size_t i = 0, plain = 0; /* s[plain..i) needs no escaping and is not yet copied */
    while (i < n) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
            i++;
            continue;
        }
        if (c >= 0x80) {
            size_t len = sl_utf8_valid_len(s + i, n - i);
            if (len > 0) {
                i += len;
                continue;
            }
        }
        sl_buf_put(b, s + plain, i - plain);
        switch (c) {
        case '"':
            sl_buf_puts(b, "\\\"");
            break;
        case '\\':
            sl_buf_puts(b, "\\\\");
            break;
        case '\n':
            sl_buf_puts(b, "\\n");
            break;
        case '\r':
            sl_buf_puts(b, "\\r");
            break;
        case '\t':
            sl_buf_puts(b, "\\t");
            break;
        default:
            if (c < 0x20) {
                char u[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
                sl_buf_put(b, u, sizeof u);
            } else {
                sl_buf_puts(b, "\xEF\xBF\xBD");
            }
        }
        plain = ++i;
    }
    if (n > 0) /* s may be NULL then */
        sl_buf_put(b, s + plain, i - plain);
}

void sl_buf_json_string(struct sl_buf *b, const char *s, size_t n)
{
    sl_buf_putc(b, '"');
    sl_buf_json_escape(b, s, n);
    sl_buf_putc(b, '"');
}

void sl_buf_json_double(struct sl_buf *b, double x)
{
    if (!isfinite(x)) {
        sl_buf_puts(b, "null");
        return;
    }
    char text[40];
    for (int digits = 6; digits <= 17; digits++) { /* 17 always suffices for a double */
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    sl_buf_puts(b, text);
}
