/* SPDX-License-Identifier: MIT
 * utf8_model.h - UTF-8 by the rows of its grammar, and what is no character by trial.
 */
#ifndef SL_FUZZ_UTF8_MODEL_H
#define SL_FUZZ_UTF8_MODEL_H

#include "base/buf.h"
#include "fuzz.h"

#include <string.h>

/* The rows of RFC 3629's grammar: range of the first byte, range of the second, length. */
static inline size_t model_utf8(const unsigned char *s, size_t n, uint32_t *cp)
{
    static const unsigned char rows[][5] = {
        {0x00, 0x7F, 0, 0, 1},       {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
        {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3},
        {0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4}};
    for (size_t r = 0; r < SL_COUNT(rows); r++) {
        size_t len = rows[r][4];
        bool good = n >= len && s[0] >= rows[r][0] && s[0] <= rows[r][1];
        good = good && (len == 1 || (s[1] >= rows[r][2] && s[1] <= rows[r][3]));
        for (size_t i = 2; good && i < len; i++)
            good = s[i] >= 0x80 && s[i] <= 0xBF;
        if (!good)
            continue;
        uint32_t x = len == 1 ? s[0] : s[0] % (1u << (7 - len));
        for (size_t i = 1; i < len; i++)
            x = x * 64 + s[i] % 64u;
        *cp = x;
        return len;
    }
    return 0;
}

/* Tries whether the last k bytes and up to three more are a character. */
static inline size_t model_tail(const unsigned char *s, size_t n)
{
    static const unsigned char more[] = {0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF};
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        unsigned char c[7];
        uint32_t cp;
        memcpy(c, s + n - k, k);
        if (model_utf8(c, k, &cp) != 0)
            continue;
        for (size_t i = 0; i < SL_COUNT(more); i++) {
            c[k] = more[i];
            c[k + 1] = c[k + 2] = 0x80;
            if (model_utf8(c, k + 3, &cp) > k)
                return k;
        }
    }
    return 0;
}

/* The text with U+FFFD for each longest part that begins a character and does not end it, and for
 * each byte that begins none. */
static inline void model_sanitize(struct sl_buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = model_utf8((const unsigned char *)s + i, n - i, &cp), skip = 1;
        if (len > 0) {
            sl_buf_put(out, s + i, len);
            i += len;
            continue;
        }
        for (size_t k = 1; k <= 3 && k <= n - i; k++)
            if (model_tail((const unsigned char *)s + i, k) == k)
                skip = k;
        sl_buf_puts(out, "\xEF\xBF\xBD");
        i += skip;
    }
}

#endif
