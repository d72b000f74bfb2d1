/* SPDX-License-Identifier: MIT
 * request_log.h - one JSON line per generation when it is over: who, what, how long, how it ended.
 * Never a prompt or an answer. Each line is one write, so that lines of several threads stay whole.
 */
#ifndef SL_SERVER_REQUEST_LOG_H
#define SL_SERVER_REQUEST_LOG_H

#include "server/api/call.h"

/* Appends to path, "-" is the standard output. *fd is -1 for a path of NULL. */
SL_MUST_CHECK int sl_request_log_open(const char *path, int *fd, struct sl_error *err);
void sl_request_log_close(int fd);
void sl_request_log_put(const struct sl_call *call); /* nothing if there is no log */

#endif
