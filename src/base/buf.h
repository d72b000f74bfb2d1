/* SPDX-License-Identifier: MIT
 * buf.h - a growing byte buffer. Appending after an allocation failure does nothing; the failure is
 * asked for once at the end with sl_buf_ok, so that building a text needs no check per line.
 */
#ifndef SL_BASE_BUF_H
#define SL_BASE_BUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct sl_buf { /* zero-initialise; max_bytes 0 = unbounded */
    char *data; /* always NUL-terminated once something was appended */
    size_t n_bytes, cap_bytes, max_bytes;
    bool failed;
};

void sl_buf_deinit(struct sl_buf *b);
void sl_buf_clear(struct sl_buf *b); /* keeps the memory, forgets a failure */
bool sl_buf_ok(const struct sl_buf *b);
bool sl_buf_reserve(struct sl_buf *b, size_t n_more);
void sl_buf_put(struct sl_buf *b, const void *data, size_t n);
void sl_buf_puts(struct sl_buf *b, const char *s);
void sl_buf_putc(struct sl_buf *b, char c);
void sl_buf_printf(struct sl_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sl_buf_vprintf(struct sl_buf *b, const char *fmt, va_list ap);
/* Gives the heap block to the caller (NULL if failed); an empty buffer gives "". */
char *sl_buf_steal(struct sl_buf *b, size_t *n_bytes);
/* Appends s as the inside of a JSON string: escapes, and U+FFFD for invalid UTF-8. */
void sl_buf_json_escape(struct sl_buf *b, const char *s, size_t n);
void sl_buf_json_string(struct sl_buf *b, const char *s, size_t n); /* with the quotes */
/* Shortest decimal that reads back as the same double; NaN and infinities become null. */
void sl_buf_json_double(struct sl_buf *b, double x);

#endif
