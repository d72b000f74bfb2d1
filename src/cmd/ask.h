/* SPDX-License-Identifier: MIT
 * ask.h - one GET of a server, waited for.
 */
#ifndef SL_CMD_ASK_H
#define SL_CMD_ASK_H

#include "base/buf.h"
#include "base/err.h"

/* url: http://host:port[/prefix] or unix:/path; no TLS. api_key NULL: none. The body replaces what
 * is in *body. An error is a failure to get any reply within timeout_ms; else *status is the
 * reply's. */
SL_MUST_CHECK int sl_cli_get(const char *url, const char *path, const char *api_key, int timeout_ms,
                             int *status, struct sl_buf *body, struct sl_error *err);

#endif
