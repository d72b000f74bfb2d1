/* SPDX-License-Identifier: MIT
 * api_files.h - what the routes of files and of batches share.
 */
#ifndef SL_SERVER_API_FILES_H
#define SL_SERVER_API_FILES_H

#include "server/conn.h"
#include "server/http/route.h"

bool sl_api_files_takes(const struct sl_route *route); /* bodies of files; NULL: no */
/* Are there files? Else the request is refused. */
bool sl_api_files_ready(struct sl_conn *c);
/* What follows the route's path, up to a suffix ("/cancel") that it may end with. */
struct sl_str sl_api_files_id(const struct sl_conn *c, const char *suffix, bool *has_suffix);
/* ?limit=, from 1 to max. */
SL_MUST_CHECK int sl_api_files_limit(const struct sl_conn *c, int64_t otherwise, int64_t max,
                                     int64_t *out, struct sl_refusal *r);

#endif
