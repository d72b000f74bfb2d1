/* SPDX-License-Identifier: MIT
 * reply.h - status lines, headers, error objects. Every function appends to the connection's output
 * and, but for sl_reply_stream, completes the reply.
 */
#ifndef SL_SERVER_REPLY_H
#define SL_SERVER_REPLY_H

#include "server/conn.h"
#include "server/http/route.h"

#include <jansson.h>

#define SL_EVENT_STREAM "text/event-stream; charset=utf-8"
#define SL_NDJSON       "application/x-ndjson"

#define SL_MAX_REPLY_BYTES (256u << 20) /* of a reply that is not streamed */

/* headers: further header lines, each ending in CR LF, or NULL. */
void sl_reply(struct sl_conn *c, int status, const char *content_type, const char *headers,
              const char *body, size_t n_body);
/* Frees body; a body that ran out of memory becomes a 503. */
void sl_reply_json(struct sl_conn *c, int status, struct sl_buf *body);
/* Status 200 with v as the body. Releases v; NULL means that building it ran out of memory. */
void sl_reply_tree(struct sl_conn *c, json_t *v);
/* The reply is what fd has, from its beginning; closes it. */
void sl_reply_file(struct sl_conn *c, const char *content_type, int fd, uint64_t n_bytes);
void sl_reply_refusal(struct sl_conn *c, const struct sl_refusal *r); /* status by the code */
void sl_reply_error(struct sl_conn *c, const struct sl_refusal *r, int status);
/* Headers of a stream; chunks follow. */
void sl_reply_stream(struct sl_conn *c, const char *content_type);
/* {"error": {...}} as the protocol has it */
void sl_reply_error_json(struct sl_buf *b, const struct sl_refusal *r, int status,
                         enum sl_protocol protocol);

/* CORS: a browser asks whether a page may send a request. */
bool sl_reply_is_preflight(const struct sl_conn *c);
void sl_reply_preflight(struct sl_conn *c);

#endif
