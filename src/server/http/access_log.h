/* SPDX-License-Identifier: MIT
 * access_log.h - one log line per request: method, path, status, time, size. Never the query, which
 * may hold a key, nor headers or bodies.
 */
#ifndef SL_SERVER_ACCESS_LOG_H
#define SL_SERVER_ACCESS_LOG_H

#include "server/http/http_parse.h"

void sl_access_log(const struct sl_http_parser *p, int status, uint64_t duration_ns,
                   uint64_t reply_bytes);

#endif
