/* SPDX-License-Identifier: MIT */
#include "base/log.h"

#include "base/str.h"
#include "base/sys.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static atomic_int log_level = SL_LOG_INFO;

void sl_log_set_level(enum sl_log_level level)
{
    atomic_store(&log_level, (int)level);
}

void sl_log(enum sl_log_level level, const char *fmt, ...)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    if ((int)level > atomic_load_explicit(&log_level, memory_order_relaxed))
        return;
    char line[1024];
    int64_t now = sl_wall_ns();
    time_t secs = (time_t)(now / 1000000000);
    struct tm tm;
    gmtime_r(&secs, &tm);
    size_t n = strftime(line, sizeof line, "%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03d %s: ", (int)(now / 1000000 % 1000),
                          names[level]);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    if (m < 0)
        return;
    n = n + (size_t)m < sizeof line - 2 ? n + (size_t)m : sizeof line - 2;
    sl_scrub(line, n); /* a name of a file or a peer may be in it */
    line[n++] = '\n';
    /* One write per line keeps lines of different threads whole; nothing to do if stderr is gone.
     */
    ssize_t put = sl_sys->write(STDERR_FILENO, line, n);
    (void)put;
}
