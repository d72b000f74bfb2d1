/* SPDX-License-Identifier: MIT */
#include "server/http/access_log.h"

#include "base/check.h"
#include "base/log.h"

void sl_access_log(const struct sl_http_parser *p, int status, uint64_t duration_ns,
                   uint64_t reply_bytes)
{
    /* The parser lets only visible ASCII into a path: no line can be forged with it. */
    bool known = p != NULL && p->path.p != NULL && p->state != SL_HTTP_BAD;
    sl_log(SL_LOG_INFO, "%s %.*s %d %.1fms %lluB", known ? sl_http_method_names[p->method] : "-",
           known ? (int)SL_MIN(p->path.n, 200) : 1, known ? p->path.p : "-", status,
           (double)duration_ns * 1e-6, (unsigned long long)reply_bytes);
}
