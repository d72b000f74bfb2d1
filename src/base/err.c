/* SPDX-License-Identifier: MIT */
#include "base/err.h"

#include <execinfo.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int sl_fail_at(struct sl_error *err, int code, const char *file, int line, const char *fmt, ...)
{
    SL_ASSERT(code < 0);
    if (err == NULL)
        return code;
    err->code = code;
    err->file = file;
    err->line = line;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    return code;
}

int sl_error_prefix(struct sl_error *err, int code, const char *fmt, ...)
{
    if (err == NULL)
        return code;
    char old[sizeof err->msg];
    memcpy(old, err->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof err->msg - 3) {
        int room = (int)(sizeof err->msg - 3 - (size_t)n);
        snprintf(err->msg + n, sizeof err->msg - (size_t)n, ": %.*s", room, old);
    }
    return code;
}

void sl_assert_failed(const char *cond, const char *file, int line, const char *func)
{
    fprintf(stderr, "sluice: bug: %s:%d: %s: assertion failed: %s\n", file, line, func, cond);
    void *frames[32];
    backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
    abort();
}

const char *sl_code_name(int code)
{
    switch (code) {
    case 0:
        return "OK";
#define SL_X(name, value, http, text) \
    case value:                       \
        return #name;
        SL_ERR_MAP(SL_X)
#undef SL_X
    default:
        return "UNKNOWN";
    }
}

int sl_code_http(int code)
{
    switch (code) {
    case 0:
        return 200;
#define SL_X(name, value, http, text) \
    case value:                       \
        return http;
        SL_ERR_MAP(SL_X)
#undef SL_X
    default:
        return 500;
    }
}

const char *sl_code_text(int code)
{
    switch (code) {
    case 0:
        return "ok";
#define SL_X(name, value, http, text) \
    case value:                       \
        return text;
        SL_ERR_MAP(SL_X)
#undef SL_X
    default:
        return "unknown error";
    }
}
