/* SPDX-License-Identifier: MIT
 * err.h - error values. The codes are in sluice_base.h (SL_ERR_MAP); this adds the means to raise
 * them.
 *
 * Four classes (docs/ARCHITECTURE.md): a bug is SL_ASSERT; request and resource errors are negative
 * codes with a detail in struct sl_error, filled once where they arise; a poisoned device is
 * SL_EDEVICE.
 */
#ifndef SL_BASE_ERR_H
#define SL_BASE_ERR_H

#include "sluice_base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Fills *err (when not NULL) and returns code, so that a caller writes `return sl_fail(...)`. */
#define sl_fail(err, code, ...) sl_fail_at((err), (code), __FILE__, __LINE__, __VA_ARGS__)

int sl_fail_at(struct sl_error *err, int code, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Puts "what: " in front of an error already raised, to add the name only the caller knows. */
int sl_error_prefix(struct sl_error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Bugs only, never on anything that came from a file, socket, flag or model. On in release. */
#define SL_ASSERT(cond)                                            \
    do {                                                           \
        if (__builtin_expect(!(cond), 0))                          \
            sl_assert_failed(#cond, __FILE__, __LINE__, __func__); \
    } while (0)

#ifdef SL_DEBUG
#define SL_DCHECK(cond) SL_ASSERT(cond) /* costly invariants: debug and sanitizer builds */
#else
#define SL_DCHECK(cond) ((void)sizeof((cond) ? 1 : 0))
#endif

void sl_assert_failed(const char *cond, const char *file, int line, const char *func)
    __attribute__((noreturn));

#ifdef __cplusplus
}
#endif

#endif
