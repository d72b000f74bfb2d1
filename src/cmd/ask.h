/* SPDX-License-Identifier: MIT
 * ask.h - one request to a server, waited for.
 */
#ifndef SL_CMD_ASK_H
#define SL_CMD_ASK_H

#include "base/buf.h"
#include "base/err.h"

struct sl_cli_ask {
    const char *url; /* http://host:port[/prefix] or unix:/path; no TLS */
    const char *path;
    const char *api_key;       /* NULL: none */
    const struct sl_buf *post; /* the body of a POST; NULL: GET */
    int timeout_ms;
};

/* The reply's body replaces what is in *body. An error is a failure to get any reply in time; else
 * *status is the reply's. */
SL_MUST_CHECK int sl_cli_ask(const struct sl_cli_ask *ask, int *status, struct sl_buf *body,
                             struct sl_error *err);

#endif
