/* SPDX-License-Identifier: MIT
 *
 * The head is collected whole (its bytes are checked while they arrive) and split once it is
 * complete, so that a request cut at any byte parses like an uncut one. Bodies go through a small
 * state machine because they may be long.
 */
#include "server/http/http_parse.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"

#include <string.h>
#include <strings.h>

enum chunk_state {
    CHUNK_SIZE,
    CHUNK_EXT_START,
    CHUNK_EXT,
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    CHUNK_TRAILER_START,
    CHUNK_TRAILER_NAME,
    CHUNK_TRAILER,
    CHUNK_TRAILER_LF,
    CHUNK_END_LF,
};

#define MAX_CHUNK_LINE    256  /* size and extensions */
#define MAX_CHUNK_DIGITS  16   /* leading zeros included */
#define MAX_TRAILER_BYTES 4096 /* all trailers of one request */
#define FIRST_BODY_BYTES  (64u << 10)

const char *const sl_http_method_names[SL_HTTP_N_METHODS] = {
    [SL_HTTP_OTHER] = "OTHER", [SL_HTTP_GET] = "GET",        [SL_HTTP_HEAD] = "HEAD",
    [SL_HTTP_POST] = "POST",   [SL_HTTP_PUT] = "PUT",        [SL_HTTP_DELETE] = "DELETE",
    [SL_HTTP_PATCH] = "PATCH", [SL_HTTP_OPTIONS] = "OPTIONS"};

void sl_http_parser_init(struct sl_http_parser *p, uint64_t max_body_bytes)
{
    memset(p, 0, sizeof *p);
    p->max_body_bytes = max_body_bytes;
    p->head.max_bytes = SL_MAX_HTTP_HEADER;
}

void sl_http_parser_deinit(struct sl_http_parser *p)
{
    sl_buf_deinit(&p->head);
    sl_buf_deinit(&p->body);
}

void sl_http_parser_reset(struct sl_http_parser *p)
{
    struct sl_buf head = p->head, body = p->body;
    uint64_t max_body_bytes = p->max_body_bytes;
    if (body.cap_bytes > FIRST_BODY_BYTES)
        sl_buf_deinit(&body);
    sl_buf_clear(&head);
    sl_buf_clear(&body);
    memset(p, 0, offsetof(struct sl_http_parser, headers));
    p->n_headers = 0;
    p->head = head;
    p->body = body;
    p->max_body_bytes = max_body_bytes;
    p->left_bytes = 0;
    p->line_bytes = 0;
    p->chunk_state = CHUNK_SIZE;
    p->discard_body = false;
    p->saw_cr = false;
    SL_ASSERT(!sl_http_parser_started(p) && p->head.n_bytes == 0 && p->body.n_bytes == 0);
}

bool sl_http_parser_started(const struct sl_http_parser *p)
{
    return p->state != SL_HTTP_HEAD_PART || p->head.n_bytes > 0;
}

bool sl_str_equals(struct sl_str s, const char *text)
{
    return strlen(text) == s.n && memcmp(s.p, text, s.n) == 0;
}

bool sl_str_equals_nocase(struct sl_str s, const char *lower_text)
{
    return strlen(lower_text) == s.n && strncasecmp(s.p, lower_text, s.n) == 0;
}

const struct sl_str *sl_http_header(const struct sl_http_parser *p, const char *name)
{
    for (size_t i = 0; i < p->n_headers; i++) {
        if (sl_str_equals_nocase(p->headers[i].name, name))
            return &p->headers[i].value;
    }
    return NULL;
}

static void http_parse_bad(struct sl_http_parser *p, int status, const char *reason)
{
    SL_ASSERT(status >= 400 && status <= 599);
    SL_ASSERT(p->state != SL_HTTP_BAD && p->state != SL_HTTP_COMPLETE); /* the first reason stays */
    p->state = SL_HTTP_BAD;
    p->status = status;
    p->reason = reason;
    p->keep_alive = false;
}

/* tchar of RFC 9110 */
static bool is_token_char(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool is_value_char(unsigned char c)
{
    return c == '\t' || (c >= 0x20 && c != 0x7F);
}

static enum sl_http_method method_of(struct sl_str s)
{
    for (int m = SL_HTTP_GET; m < SL_HTTP_N_METHODS; m++) {
        if (sl_str_equals(s, sl_http_method_names[m]))
            return (enum sl_http_method)m;
    }
    return SL_HTTP_OTHER;
}

static bool parse_target(struct sl_http_parser *p, struct sl_str target)
{
    if (target.n > SL_HTTP_MAX_TARGET) {
        http_parse_bad(p, 414, "request target is too long");
        return false;
    }
    bool asterisk = p->method == SL_HTTP_OPTIONS && sl_str_equals(target, "*");
    if (target.n == 0 || (target.p[0] != '/' && !asterisk)) {
        http_parse_bad(p, 400, "request target must begin with '/'");
        return false;
    }
    for (size_t i = 0; i < target.n; i++) {
        unsigned char c = (unsigned char)target.p[i];
        if (c <= 0x20 || c >= 0x7F || c == '#') {
            http_parse_bad(p, 400, "request target has an invalid character");
            return false;
        }
    }
    const char *mark = memchr(target.p, '?', target.n);
    p->path = target;
    if (mark != NULL) {
        p->path.n = (size_t)(mark - target.p);
        p->query = (struct sl_str){mark + 1, target.n - p->path.n - 1};
    }
    SL_ASSERT(p->path.n > 0 && p->path.n + p->query.n <= target.n);
    return true;
}

static bool parse_request_line(struct sl_http_parser *p, struct sl_str line)
{
    const char *end = line.p + line.n;
    const char *space = memchr(line.p, ' ', line.n);
    if (space == NULL || space == line.p) {
        http_parse_bad(p, 400, "malformed request line");
        return false;
    }
    struct sl_str method = {line.p, (size_t)(space - line.p)};
    for (size_t i = 0; i < method.n; i++) {
        if (!is_token_char((unsigned char)method.p[i])) {
            http_parse_bad(p, 400, "malformed method");
            return false;
        }
    }
    p->method = method_of(method);
    const char *target = space + 1;
    SL_ASSERT(target <= end);
    space = memchr(target, ' ', (size_t)(end - target));
    if (space == NULL) {
        http_parse_bad(p, 400, "malformed request line");
        return false;
    }
    struct sl_str version = {space + 1, (size_t)(end - space - 1)};
    SL_ASSERT(version.p > target && version.p + version.n == end);
    p->http_1_0 = sl_str_equals(version, "HTTP/1.0");
    if (!p->http_1_0 && !sl_str_equals(version, "HTTP/1.1")) {
        bool other = version.n == 8 && memcmp(version.p, "HTTP/", 5) == 0 && version.p[5] >= '0' &&
                     version.p[5] <= '9' && version.p[6] == '.' && version.p[7] >= '0' &&
                     version.p[7] <= '9';
        http_parse_bad(p, other ? 505 : 400,
                       other ? "HTTP version not supported" : "malformed request line");
        return false;
    }
    return parse_target(p, (struct sl_str){target, (size_t)(space - target)});
}

static bool parse_header_line(struct sl_http_parser *p, struct sl_str line)
{
    SL_ASSERT(line.n > 0); /* an empty one would have ended the head */
    if (line.p[0] == ' ' || line.p[0] == '\t') {
        http_parse_bad(p, 400, "folded header line");
        return false;
    }
    size_t n_name = 0;
    while (n_name < line.n && is_token_char((unsigned char)line.p[n_name]))
        n_name++;
    if (n_name == 0 || n_name == line.n || line.p[n_name] != ':') {
        http_parse_bad(p, 400, "malformed header name");
        return false;
    }
    struct sl_str value = {line.p + n_name + 1, line.n - n_name - 1};
    while (value.n > 0 && (value.p[0] == ' ' || value.p[0] == '\t')) {
        value.p++;
        value.n--;
    }
    while (value.n > 0 && (value.p[value.n - 1] == ' ' || value.p[value.n - 1] == '\t'))
        value.n--;
    SL_ASSERT(value.p > line.p && value.p + value.n <= line.p + line.n);
    for (size_t i = 0; i < value.n; i++) {
        if (!is_value_char((unsigned char)value.p[i])) {
            http_parse_bad(p, 400, "header value has an invalid character");
            return false;
        }
    }
    if (p->n_headers == SL_HTTP_MAX_HEADERS) {
        http_parse_bad(p, 431, "more than 100 headers");
        return false;
    }
    p->headers[p->n_headers++] = (struct sl_http_header){{line.p, n_name}, value};
    return true;
}

/* Does a comma-separated list hold this token? */
static bool list_has(struct sl_str list, const char *token)
{
    const char *p = list.p, *end = list.p + list.n;
    while (p < end) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        const char *stop = comma != NULL ? comma : end;
        struct sl_str item = {p, (size_t)(stop - p)};
        while (item.n > 0 && (item.p[0] == ' ' || item.p[0] == '\t')) {
            item.p++;
            item.n--;
        }
        while (item.n > 0 && (item.p[item.n - 1] == ' ' || item.p[item.n - 1] == '\t'))
            item.n--;
        SL_ASSERT(item.p >= p && item.p + item.n <= stop);
        if (sl_str_equals_nocase(item, token))
            return true;
        p = stop + 1;
    }
    return false;
}

static bool host_is_valid(struct sl_str host)
{
    for (size_t i = 0; i < host.n; i++) {
        unsigned char c = (unsigned char)host.p[i];
        bool ok = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  strchr(".-_:[]%~", c) != NULL;
        if (c == 0 || !ok) /* unreachable: the feed refuses NUL, which strchr finds */
            return false;
    }
    return true;
}

struct framing {
    int n_length, n_encoding, n_host;
    struct sl_str length, encoding, host;
};

static bool parse_framing(struct sl_http_parser *p, const struct framing *f)
{
    if (f->n_host > 1 || (f->n_host == 0 && !p->http_1_0) || !host_is_valid(f->host)) {
        http_parse_bad(p, 400, "missing, repeated or malformed Host header");
        return false;
    }
    if (f->n_length > 1 || f->n_encoding > 1 || (f->n_length > 0 && f->n_encoding > 0)) {
        http_parse_bad(p, 400,
                       "ambiguous length: Content-Length and Transfer-Encoding exclude each other");
        return false;
    }
    if (f->n_encoding == 1) {
        if (p->http_1_0 || !sl_str_equals_nocase(f->encoding, "chunked")) {
            http_parse_bad(p, p->http_1_0 ? 400 : 501, "Transfer-Encoding other than chunked");
            return false;
        }
        p->chunked = true;
    }
    if (f->n_length == 1) {
        if (f->length.n > 19 || !sl_parse_u64(f->length.p, f->length.n, &p->content_length)) {
            http_parse_bad(p, 400, "malformed Content-Length");
            return false;
        }
    }
    SL_ASSERT(!p->chunked || p->content_length == 0); /* one length only */
    return true;
}

static bool parse_headers(struct sl_http_parser *p)
{
    struct framing f = {0};
    SL_ASSERT(!p->chunked && !p->expect_continue && p->content_length == 0);
    p->keep_alive = !p->http_1_0;
    for (size_t i = 0; i < p->n_headers; i++) {
        struct sl_str name = p->headers[i].name, value = p->headers[i].value;
        if (sl_str_equals_nocase(name, "content-length")) {
            f.n_length++;
            f.length = value;
        } else if (sl_str_equals_nocase(name, "transfer-encoding")) {
            f.n_encoding++;
            f.encoding = value;
        } else if (sl_str_equals_nocase(name, "host")) {
            f.n_host++;
            f.host = value;
        } else if (sl_str_equals_nocase(name, "connection")) {
            if (list_has(value, "close"))
                p->keep_alive = false;
            else if (p->http_1_0 && list_has(value, "keep-alive"))
                p->keep_alive = true;
        } else if (sl_str_equals_nocase(name, "expect")) {
            if (!sl_str_equals_nocase(value, "100-continue")) {
                http_parse_bad(p, 417, "unknown expectation");
                return false;
            }
            p->expect_continue = !p->http_1_0;
        }
    }
    SL_ASSERT((size_t)(f.n_length + f.n_encoding + f.n_host) <= p->n_headers);
    return parse_framing(p, &f);
}

/* p->head holds everything up to and including the empty line. */
static void parse_head(struct sl_http_parser *p)
{
    SL_ASSERT(p->head.n_bytes >= 2 && p->head.data[p->head.n_bytes - 1] == '\n');
    const char *at = p->head.data, *end = p->head.data + p->head.n_bytes - 2;
    bool first = true;
    while (at < end) {
        const char *lf = memchr(at, '\n', (size_t)(end - at));
        SL_ASSERT(lf != NULL && lf > at); /* the feed saw CR LF pairs only */
        struct sl_str line = {at, (size_t)(lf - at - 1)};
        if (first ? !parse_request_line(p, line) : !parse_header_line(p, line))
            return;
        first = false;
        at = lf + 1;
    }
    if (first) {
        http_parse_bad(p, 400, "malformed request line");
        return;
    }
    if (!parse_headers(p))
        return;
    SL_ASSERT(p->n_headers <= SL_HTTP_MAX_HEADERS && p->path.p > p->head.data);
    p->state = SL_HTTP_HEAD_DONE;
}

static size_t feed_head(struct sl_http_parser *p, const char *data, size_t n)
{
    size_t i = 0;
    bool complete = false;
    SL_ASSERT(p->n_headers == 0 && p->head.n_bytes <= SL_MAX_HTTP_HEADER);
    while (i < n && !complete) {
        char c = data[i++];
        if (p->saw_cr ? c != '\n' : c == '\n') {
            http_parse_bad(p, 400, "bare CR or LF in the headers");
            return i;
        }
        if (c == '\0') {
            http_parse_bad(p, 400, "NUL in the headers");
            return i;
        }
        p->saw_cr = c == '\r';
        if (c == '\n') { /* line_bytes: of the line just ended, without CR LF */
            complete = p->line_bytes == 0;
            p->line_bytes = 0;
        } else if (c != '\r') {
            p->line_bytes++;
        }
    }
    SL_ASSERT(i <= n && (complete || i == n));
    bool too_long = p->head.n_bytes + i > SL_MAX_HTTP_HEADER;
    sl_buf_put(&p->head, data, i);
    if (!sl_buf_ok(&p->head))
        http_parse_bad(p, too_long ? 431 : 503,
                       too_long ? "headers are too long" : "out of memory");
    else if (complete)
        parse_head(p);
    return i;
}

void sl_http_parser_body(struct sl_http_parser *p, bool discard)
{
    SL_ASSERT(p->state == SL_HTTP_HEAD_DONE);
    SL_ASSERT(p->body.n_bytes == 0 && p->chunk_state == CHUNK_SIZE);
    p->discard_body = discard;
    p->line_bytes = 0;
    p->left_bytes = p->content_length;
    if (!p->chunked && p->content_length > p->max_body_bytes) {
        http_parse_bad(p, 413, "body is too large");
        return;
    }
    p->state = p->chunked || p->content_length > 0 ? SL_HTTP_BODY_PART : SL_HTTP_COMPLETE;
    if (p->state == SL_HTTP_BODY_PART && !discard && !p->chunked)
        (void)sl_buf_reserve(&p->body, SL_MIN((size_t)p->content_length, FIRST_BODY_BYTES));
}

static size_t take_body(struct sl_http_parser *p, const char *data, size_t n)
{
    size_t take = (size_t)SL_MIN((uint64_t)n, p->left_bytes);
    if (!p->discard_body)
        sl_buf_put(&p->body, data, take);
    SL_ASSERT(take <= n && p->body.n_bytes <= p->max_body_bytes);
    if (!sl_buf_ok(&p->body))
        http_parse_bad(p, 503, "out of memory");
    p->left_bytes -= take;
    return take;
}

static int hex_digit(char c)
{
    uint64_t digit;
    return sl_parse_hex_u64(&c, 1, &digit) ? (int)digit : -1;
}

static void chunk_line_done(struct sl_http_parser *p)
{
    uint64_t total;
    SL_ASSERT(p->chunk_state == CHUNK_SIZE_LF);
    p->line_bytes = 0;
    if (p->left_bytes == 0) {
        p->chunk_state = CHUNK_TRAILER_START;
        return;
    }
    /* content_length is unused in a chunked request: it counts what came so far */
    /* unreachable: a sum that wraps, a chunk's size has MAX_CHUNK_DIGITS at most */
    if (!sl_add_u64(p->content_length, p->left_bytes, &total) || total > p->max_body_bytes) {
        http_parse_bad(p, 413, "body is too large");
        return;
    }
    p->content_length = total;
    p->chunk_state = CHUNK_DATA;
}

static void feed_chunk_size(struct sl_http_parser *p, char c)
{
    SL_ASSERT(p->line_bytes <= MAX_CHUNK_DIGITS && p->chunk_state == CHUNK_SIZE);
    int digit = hex_digit(c);
    if (digit >= 0) {
        if (++p->line_bytes > MAX_CHUNK_DIGITS) {
            http_parse_bad(p, 400, "malformed chunk size");
            return;
        }
        p->left_bytes = p->left_bytes << 4 | (unsigned)digit;
        SL_DCHECK(p->line_bytes == MAX_CHUNK_DIGITS || p->left_bytes >> 4 * p->line_bytes == 0);
    } else if (p->line_bytes > 0 && c == ';') {
        p->chunk_state = CHUNK_EXT_START;
    } else if (p->line_bytes > 0 && c == '\r') {
        p->chunk_state = CHUNK_SIZE_LF;
    } else {
        http_parse_bad(p, 400, "malformed chunk size");
    }
}

/* A trailer is held to the rules of a header although nobody reads it. */
static void feed_trailer_char(struct sl_http_parser *p, char c)
{
    SL_ASSERT(p->left_bytes == 0 && p->line_bytes <= MAX_TRAILER_BYTES);
    bool starts = p->chunk_state == CHUNK_TRAILER_START;
    bool in_name = p->chunk_state == CHUNK_TRAILER_NAME;
    if (++p->line_bytes > MAX_TRAILER_BYTES)
        http_parse_bad(p, 431, "trailers are too long");
    else if (c == '\r' && !in_name)
        p->chunk_state = starts ? CHUNK_END_LF : CHUNK_TRAILER_LF;
    else if (in_name && c == ':')
        p->chunk_state = CHUNK_TRAILER;
    else if (starts || in_name ? !is_token_char((unsigned char)c)
                               : !is_value_char((unsigned char)c))
        http_parse_bad(p, 400, "malformed trailer");
    else if (starts)
        p->chunk_state = CHUNK_TRAILER_NAME;
}

static void feed_chunk_char(struct sl_http_parser *p, char c)
{
    SL_DCHECK(p->chunked && p->state == SL_HTTP_BODY_PART);
    switch ((enum chunk_state)p->chunk_state) { /* unreachable: other values */
    case CHUNK_SIZE:
        feed_chunk_size(p, c);
        return;
    case CHUNK_EXT_START: /* an extension has a name */
        if (is_token_char((unsigned char)c))
            p->chunk_state = CHUNK_EXT;
        else if ((c != ' ' && c != '\t') || ++p->line_bytes > MAX_CHUNK_LINE)
            http_parse_bad(p, 400, "malformed chunk extension");
        return;
    case CHUNK_EXT:
        if (c == '\r')
            p->chunk_state = CHUNK_SIZE_LF;
        else if (!is_value_char((unsigned char)c) || ++p->line_bytes > MAX_CHUNK_LINE)
            http_parse_bad(p, 400, "malformed chunk extension");
        return;
    case CHUNK_SIZE_LF:
        if (c == '\n')
            chunk_line_done(p);
        else
            http_parse_bad(p, 400, "chunk size must end with CR LF");
        return;
    case CHUNK_DATA_CR:
    case CHUNK_DATA_LF:
        if (c != (p->chunk_state == CHUNK_DATA_CR ? '\r' : '\n')) {
            http_parse_bad(p, 400, "chunk data must end with CR LF");
            return;
        }
        p->chunk_state = p->chunk_state == CHUNK_DATA_CR ? CHUNK_DATA_LF : CHUNK_SIZE;
        return;
    case CHUNK_TRAILER_START:
    case CHUNK_TRAILER_NAME:
    case CHUNK_TRAILER:
        feed_trailer_char(p, c);
        return;
    case CHUNK_TRAILER_LF:
    case CHUNK_END_LF:
        if (c != '\n')
            http_parse_bad(p, 400, "bare CR in the trailers");
        else if (p->chunk_state == CHUNK_END_LF)
            p->state = SL_HTTP_COMPLETE;
        else
            p->chunk_state = CHUNK_TRAILER_START;
        return;
    case CHUNK_DATA: /* unreachable: whole pieces, in take_body */
        break;
    }
    SL_ASSERT(p->chunk_state != CHUNK_DATA);
}

static size_t feed_body(struct sl_http_parser *p, const char *data, size_t n)
{
    size_t i = 0;
    SL_ASSERT(p->chunked || p->left_bytes > 0); /* a body without bytes is complete already */
    if (!p->chunked) {
        i = take_body(p, data, n);
        if (p->state == SL_HTTP_BODY_PART && p->left_bytes == 0)
            p->state = SL_HTTP_COMPLETE;
        return i;
    }
    while (i < n && p->state == SL_HTTP_BODY_PART) {
        if (p->chunk_state != CHUNK_DATA) {
            feed_chunk_char(p, data[i++]);
            continue;
        }
        SL_ASSERT(p->left_bytes > 0);
        i += take_body(p, data + i, n - i);
        if (p->left_bytes == 0)
            p->chunk_state = CHUNK_DATA_CR;
    }
    SL_ASSERT(i <= n && (i == n || p->state != SL_HTTP_BODY_PART));
    return i;
}

size_t sl_http_parser_feed(struct sl_http_parser *p, const char *data, size_t n)
{
    SL_ASSERT(data != NULL || n == 0);
    if (p->state == SL_HTTP_HEAD_PART)
        return feed_head(p, data, n);
    if (p->state == SL_HTTP_BODY_PART)
        return feed_body(p, data, n);
    return 0;
}

struct sl_str sl_query_value(struct sl_str query, const char *name)
{
    size_t n_name = strlen(name);
    while (query.n > 0) {
        const char *end = memchr(query.p, '&', query.n);
        size_t n = end != NULL ? (size_t)(end - query.p) : query.n;
        SL_ASSERT(n <= query.n);
        if (n > n_name && memcmp(query.p, name, n_name) == 0 && query.p[n_name] == '=')
            return (struct sl_str){query.p + n_name + 1, n - n_name - 1};
        query.p += SL_MIN(n + 1, query.n);
        query.n -= SL_MIN(n + 1, query.n);
    }
    return (struct sl_str){"", 0};
}
