/* SPDX-License-Identifier: MIT
 * session.h - which program or conversation a request says it belongs to.
 *
 * The name is a header (X-Session-ID, or what agents and routers call it) or a field of the body
 * (session_id, or Dynamo's nvext), at most SL_MAX_SESSION_ID bytes; what is no name is ignored.
 * Only a hash of it, and of the API key, goes on from here. Pure.
 */
#ifndef SL_SERVER_SESSION_H
#define SL_SERVER_SESSION_H

#include "server/api/params.h"
#include "server/http/http_parse.h"

/* 0: no session is named, or by nothing that can be a name. */
uint64_t sl_session_of(const struct sl_http_parser *http, const struct sl_params *p, int32_t key);
/* The priority that nvext hints at, lower first; 0: none. */
int32_t sl_session_priority(const struct sl_params *p);

#endif
