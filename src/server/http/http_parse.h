/* SPDX-License-Identifier: MIT
 * http_parse.h - a strict HTTP/1.1 request parser, fed with whatever bytes arrived.
 *
 * Whatever two servers on one connection could read differently is refused, never repaired: bare
 * LF, obs-fold, space before a colon, NUL, both Content-Length and Transfer-Encoding, repeated
 * Content-Length, chunk sizes that are not plain hex, absolute-form targets. Used by one thread.
 * The request's strings and body live in the parser until sl_http_parser_reset.
 */
#ifndef SL_SERVER_HTTP_PARSE_H
#define SL_SERVER_HTTP_PARSE_H

#include "base/buf.h"
#include "base/err.h"

#define SL_HTTP_MAX_HEADERS 100
#define SL_HTTP_MAX_TARGET  8192 /* bytes of the request target */

enum sl_http_method {
    SL_HTTP_OTHER,
    SL_HTTP_GET,
    SL_HTTP_HEAD,
    SL_HTTP_POST,
    SL_HTTP_PUT,
    SL_HTTP_DELETE,
    SL_HTTP_PATCH,
    SL_HTTP_OPTIONS,
    SL_HTTP_N_METHODS
};
extern const char *const sl_http_method_names[SL_HTTP_N_METHODS];

struct sl_str { /* a slice, not NUL-terminated */
    const char *p;
    size_t n;
};

struct sl_http_header {
    struct sl_str name, value; /* value without surrounding blanks */
};

enum sl_http_state {
    SL_HTTP_HEAD_PART, /* reading the request line and headers */
    SL_HTTP_HEAD_DONE, /* headers complete: the caller decides, then calls sl_http_parser_body */
    SL_HTTP_BODY_PART,
    SL_HTTP_COMPLETE,
    SL_HTTP_BAD, /* status and reason say why; the connection cannot be used further */
};

struct sl_http_parser {
    enum sl_http_state state;
    int status;         /* SL_HTTP_BAD: 400, 413, 414, 431, 501 or 505 */
    const char *reason; /* static text */
    /* the request, from SL_HTTP_HEAD_DONE on */
    enum sl_http_method method;
    struct sl_str path, query; /* query without '?'; both as sent, nothing is decoded */
    bool http_1_0, keep_alive, expect_continue, chunked;
    uint64_t content_length; /* 0 if chunked or absent */
    struct sl_http_header headers[SL_HTTP_MAX_HEADERS];
    size_t n_headers;
    struct sl_buf body;
    /* inside */
    struct sl_buf head;
    uint64_t max_body_bytes, left_bytes;
    size_t line_bytes; /* of a chunk line or the trailers */
    int chunk_state;
    bool discard_body, saw_cr;
};

void sl_http_parser_init(struct sl_http_parser *p, uint64_t max_body_bytes);
void sl_http_parser_deinit(struct sl_http_parser *p);
void sl_http_parser_reset(struct sl_http_parser *p); /* for the next request on the connection */
/* Takes bytes until the headers end, the request is complete or bad, or data is used up; returns
 * how many it took. A failed allocation is SL_HTTP_BAD with status 503. */
size_t sl_http_parser_feed(struct sl_http_parser *p, const char *data, size_t n);
/* After SL_HTTP_HEAD_DONE: go on with the body. discard: read it, keep nothing. */
void sl_http_parser_body(struct sl_http_parser *p, bool discard);
bool sl_http_parser_started(const struct sl_http_parser *p); /* some byte of a request was seen */
/* The value of a header, NULL if absent. name in lower case. */
const struct sl_str *sl_http_header(const struct sl_http_parser *p, const char *name);
/* The value of a name in a query, as sent; empty without it. */
struct sl_str sl_query_value(struct sl_str query, const char *name);
bool sl_str_equals(struct sl_str s, const char *text);
bool sl_str_equals_nocase(struct sl_str s, const char *lower_text);

#endif
