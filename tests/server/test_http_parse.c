/* SPDX-License-Identifier: MIT
 * The request parser against a table of requests and what they mean. Every request is also fed in
 * single bytes and cut in two at every position: the meaning must not change.
 *
 * A meaning is written as one word per request: METHOD path body, "!status" for a refusal, "..."
 * for a request that is not complete; ";" between requests, "-" = connection ends after it.
 */
#include "base/limits.h"
#include "base/sys.h"
#include "server/http/http_parse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MAX_BODY 1000

static int n_checked;

struct input {
    const char *data;
    size_t n;
};

static void describe(struct sl_buf *out, const struct sl_http_parser *p)
{
    if (out->n_bytes > 0)
        sl_buf_putc(out, ';');
    if (p->state == SL_HTTP_BAD) {
        sl_buf_printf(out, "!%d", p->status);
    } else if (p->state != SL_HTTP_COMPLETE) {
        sl_buf_puts(out, "...");
    } else {
        sl_buf_printf(out, "%s %.*s", sl_http_method_names[p->method], (int)p->path.n, p->path.p);
        if (p->query.p != NULL)
            sl_buf_printf(out, "?%.*s", (int)p->query.n, p->query.p);
        if (p->body.n_bytes > 0)
            sl_buf_printf(out, " %.*s", (int)p->body.n_bytes, p->body.data);
        if (!p->keep_alive)
            sl_buf_puts(out, " -");
    }
}

/* Feeds parts of `in` that end at each of the cuts, then the rest. */
static void meaning(struct sl_http_parser *p, struct input in, const size_t *cuts, size_t n_cuts,
                    struct sl_buf *out)
{
    size_t at = 0;
    sl_http_parser_reset(p);
    sl_buf_clear(out);
    for (size_t i = 0; i <= n_cuts; i++) {
        size_t end = i < n_cuts ? cuts[i] : in.n;
        while (at < end && p->state != SL_HTTP_BAD) {
            at += sl_http_parser_feed(p, in.data + at, end - at);
            if (p->state == SL_HTTP_HEAD_DONE)
                sl_http_parser_body(p, false);
            if (p->state == SL_HTTP_COMPLETE) {
                describe(out, p);
                sl_http_parser_reset(p);
            }
        }
    }
    if (p->state == SL_HTTP_BAD || sl_http_parser_started(p))
        describe(out, p);
    if (out->n_bytes == 0)
        sl_buf_puts(out, "");
}

static void expect(struct input in, const char *want)
{
    struct sl_http_parser p;
    struct sl_buf got = {0};
    sl_http_parser_init(&p, MAX_BODY);
    meaning(&p, in, NULL, 0, &got);
    if (got.data == NULL || strcmp(got.data, want) != 0)
        fail_msg("%.300s\n  means %s\n  not   %s", in.data, want, got.data);
    n_checked++;
    size_t step = in.n > 4000 ? in.n / 500 : 1;
    for (size_t cut = 1; cut < in.n; cut += step) {
        meaning(&p, in, &cut, 1, &got);
        if (strcmp(got.data, want) != 0)
            fail_msg("%.300s\n  cut at %zu means %s", in.data, cut, got.data);
        n_checked++;
    }
    size_t *cuts = test_calloc(in.n, sizeof *cuts);
    for (size_t i = 0; i < in.n; i++)
        cuts[i] = i + 1;
    meaning(&p, in, cuts, in.n, &got);
    if (strcmp(got.data, want) != 0)
        fail_msg("%.300s\n  byte by byte means %s", in.data, got.data);
    n_checked++;
    test_free(cuts);
    sl_http_parser_deinit(&p);
    sl_buf_deinit(&got);
}

#define H    "Host: a\r\n"
#define GET  "GET / HTTP/1.1\r\n" H
#define POST "POST /p HTTP/1.1\r\n" H
#define TE   POST "Transfer-Encoding: chunked\r\n\r\n"
#define L(n) POST "Content-Length: " n "\r\n\r\n"

struct row {
    const char *text, *means;
    size_t n; /* 0 = strlen */
};

static void run(const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        expect((struct input){rows[i].text, rows[i].n != 0 ? rows[i].n : strlen(rows[i].text)},
               rows[i].means);
}

#define RUN(rows) run(rows, sizeof(rows) / sizeof((rows)[0]))

static void test_accepted(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {GET "\r\n", "GET /", 0},
        {"HEAD /health HTTP/1.1\r\n" H "\r\n", "HEAD /health", 0},
        {"OPTIONS * HTTP/1.1\r\n" H "\r\n", "OPTIONS *", 0},
        {"GET /v1/models?a=b&c HTTP/1.1\r\n" H "\r\n", "GET /v1/models?a=b&c", 0},
        {"GET /a?b?c HTTP/1.1\r\n" H "\r\n", "GET /a?b?c", 0},
        {"GET //v1/models HTTP/1.1\r\n" H "\r\n", "GET //v1/models", 0},
        {"GET /v1/../admin HTTP/1.1\r\n" H "\r\n", "GET /v1/../admin", 0},
        {"GET /%2e%2e/%00 HTTP/1.1\r\n" H "\r\n", "GET /%2e%2e/%00", 0},
        {L("5") "hello", "POST /p hello", 0},
        {L("0"), "POST /p", 0},
        {L("000005") "hello", "POST /p hello", 0},
        {POST "content-LENGTH:5\r\n\r\nhello", "POST /p hello", 0},
        {POST "Content-Length: \t 5 \t\r\n\r\nhello", "POST /p hello", 0},
        {POST "\r\n", "POST /p", 0},
        {TE "5\r\nhello\r\n0\r\n\r\n", "POST /p hello", 0},
        {TE "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", "POST /p hello", 0},
        {TE "0000000000000005\r\nhello\r\n0\r\n\r\n", "POST /p hello", 0},
        {TE "A\r\n0123456789\r\n0\r\n\r\n", "POST /p 0123456789", 0},
        {TE "a\r\n0123456789\r\n00\r\n\r\n", "POST /p 0123456789", 0},
        {TE "5;x=y\r\nhello\r\n0;z\r\n\r\n", "POST /p hello", 0},
        {TE "5\r\nhello\r\n0\r\nA: b\r\nC: d\r\n\r\n", "POST /p hello", 0},
        {TE "0\r\n\r\n", "POST /p", 0},
        {TE "2\r\n\r\n\r\n0\r\n\r\n", "POST /p \r\n", 0},
        {POST "Transfer-Encoding: CHUNKED\r\n\r\n1\r\na\r\n0\r\n\r\n", "POST /p a", 0},
        {"GET / HTTP/1.0\r\n\r\n", "GET / -", 0},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "GET /", 0},
        {GET "Connection: close\r\n\r\n", "GET / -", 0},
        {GET "Connection: foo, Close\r\n\r\n", "GET / -", 0},
        {GET "Connection: closed\r\n\r\n", "GET /", 0},
        {GET "Connection: keep-alive, upgrade\r\nUpgrade: h2c\r\n\r\n", "GET /", 0},
        {GET "X:\r\nY: \r\nZ:a b\r\n\r\n", "GET /", 0},
        {GET "X: \xc3\xa9\xff\t!\r\n\r\n", "GET /", 0},
        {"PURGE / HTTP/1.1\r\n" H "\r\n", "OTHER /", 0},
        {"get / HTTP/1.1\r\n" H "\r\n", "OTHER /", 0},
        {GET "\r\n" GET "\r\n", "GET /;GET /", 0},
        {L("2") "ab" L("1") "c" GET "\r\n", "POST /p ab;POST /p c;GET /", 0},
        {TE "1\r\na\r\n0\r\n\r\n" L("1") "b", "POST /p a;POST /p b", 0},
        {"GET / HTTP/1.1\r\nHost:\r\n\r\n", "GET /", 0},
        {"GET / HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n", "GET /", 0},
        {POST "Expect: 100-continue\r\nContent-Length: 1\r\n\r\na", "POST /p a", 0},
    };
    RUN(rows);
}

static void test_refused_lines(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"\r\n", "!400", 0},
        {"\r\n" GET "\r\n", "!400", 0},
        {"\n", "!400", 0},
        {"GET / HTTP/1.1\n" H "\r\n", "!400", 0},
        {"GET / HTTP/1.1\r\nHost: a\n\r\n", "!400", 0},
        {GET "\n", "!400", 0},
        {GET "X: a\rb\r\n\r\n", "!400", 0},
        {GET "X: a\r\r\n\r\n", "!400", 0},
        {"GET / HTTP/1.1\r\r\n", "!400", 0},
        {"GET /\0 HTTP/1.1\r\n" H "\r\n", "!400", sizeof("GET /\0 HTTP/1.1\r\n" H "\r\n") - 1},
        {GET "X: a\0b\r\n\r\n", "!400", sizeof(GET "X: a\0b\r\n\r\n") - 1},
        {"GET /\r\n\r\n", "!400", 0},
        {"GET\r\n\r\n", "!400", 0},
        {"GET  / HTTP/1.1\r\n" H "\r\n", "!400", 0},
        {"GET /  HTTP/1.1\r\n" H "\r\n", "!400", 0},
        {"GET / HTTP/1.1 \r\n" H "\r\n", "!400", 0},
        {" GET / HTTP/1.1\r\n" H "\r\n", "!400", 0},
        {"GET\t/\tHTTP/1.1\r\n" H "\r\n", "!400", 0},
        {"GET /a b HTTP/1.1\r\n" H "\r\n", "!400", 0},
        {"GET /a#b HTTP/1.1\r\n" H "\r\n", "!400", 0},
        {"GET /\x7f HTTP/1.1\r\n" H "\r\n", "!400", 0},
        {"GET /\xc3\xa9 HTTP/1.1\r\n" H "\r\n", "!400", 0},
        {"GET a HTTP/1.1\r\n" H "\r\n", "!400", 0},
        {"GET * HTTP/1.1\r\n" H "\r\n", "!400", 0},
        {"GET http://a/ HTTP/1.1\r\n" H "\r\n", "!400", 0},
        {"CONNECT a:80 HTTP/1.1\r\n" H "\r\n", "!400", 0},
        {"G@T / HTTP/1.1\r\n" H "\r\n", "!400", 0},
        {"G(T / HTTP/1.1\r\n" H "\r\n", "!400", 0},
        {"GET / HTTP/2.0\r\n" H "\r\n", "!505", 0},
        {"GET / HTTP/1.2\r\n" H "\r\n", "!505", 0},
        {"GET / HTTP/:.1\r\n" H "\r\n", "!400", 0},
        {"GET / HTTP/1:1\r\n" H "\r\n", "!400", 0},
        {"GET / HTTP/1./\r\n" H "\r\n", "!400", 0},
        {"GET / HTTP/1.:\r\n" H "\r\n", "!400", 0},
        {"GET / HTTP//.1\r\n" H "\r\n", "!400", 0},
        {"GET /\x01 HTTP/1.1\r\n" H "\r\n", "!400", 0},
        {"GET / HTTP/0.9\r\n" H "\r\n", "!505", 0},
        {"GET / http/1.1\r\n" H "\r\n", "!400", 0},
        {"GET / HTTP/1.1x\r\n" H "\r\n", "!400", 0},
        {"GET / HTTP/11\r\n" H "\r\n", "!400", 0},
        {"GET / HTTP/1.\r\n" H "\r\n", "!400", 0},
        {"GET / HTTPS/1.1\r\n" H "\r\n", "!400", 0},
        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "!505", 0},
        {"\x16\x03\x01\x02\x01\x01\xfc\x03\x03\n", "!400", 0},
        {"GET / HTTP/1.1\r\n\r\n", "!400", 0},
        {GET H "\r\n", "!400", 0},
        {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "!400", 0},
        {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "!400", 0},
        {"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", "!400", 0},
        {"GET / HTTP/1.1\r\nHost: a,b\r\n\r\n", "!400", 0},
        {GET " X: a\r\n\r\n", "!400", 0},
        {GET "X: a\r\n b\r\n\r\n", "!400", 0},
        {GET "X: a\r\n\tb\r\n\r\n", "!400", 0},
        {GET "X : a\r\n\r\n", "!400", 0},
        {GET "X\t: a\r\n\r\n", "!400", 0},
        {GET ": a\r\n\r\n", "!400", 0},
        {GET "X\r\n\r\n", "!400", 0},
        {GET "X a\r\n\r\n", "!400", 0},
        {GET "X(: a\r\n\r\n", "!400", 0},
        {GET "X\xc3: a\r\n\r\n", "!400", 0},
        {GET "X: \x01\r\n\r\n", "!400", 0},
        {GET "X: \x7f\r\n\r\n", "!400", 0},
        {GET "Expect: 200-ok\r\n\r\n", "!417", 0},
    };
    RUN(rows);
}

static void test_refused_lengths(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {POST "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "!400", 0},
        {POST "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", "!400", 0},
        {POST "Content-Length: 1\r\nContent-Length: 1\r\n\r\na", "!400", 0},
        {POST "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", "!400", 0},
        {L("1, 1") "a", "!400", 0},
        {L("1,2") "a", "!400", 0},
        {L("+1") "a", "!400", 0},
        {L("-1") "a", "!400", 0},
        {L("0x1") "a", "!400", 0},
        {L("1_0") "a", "!400", 0},
        {L("1 0") "a", "!400", 0},
        {L("1.0") "a", "!400", 0},
        {L("") "a", "!400", 0},
        {L("a") "a", "!400", 0},
        {L("\"1\"") "a", "!400", 0},
        {L("18446744073709551616"), "!400", 0},
        {L("99999999999999999999"), "!400", 0},
        {L("9223372036854775807"), "!413", 0},
        {L("1001"), "!413", 0},
        {POST "Transfer-Encoding: gzip\r\n\r\n", "!501", 0},
        {POST "Transfer-Encoding: gzip, chunked\r\n\r\n", "!501", 0},
        {POST "Transfer-Encoding: chunked, chunked\r\n\r\n", "!501", 0},
        {POST "Transfer-Encoding: chunked, identity\r\n\r\n", "!501", 0},
        {POST "Transfer-Encoding: identity\r\n\r\n", "!501", 0},
        {POST "Transfer-Encoding: xchunked\r\n\r\n", "!501", 0},
        {POST "Transfer-Encoding: \"chunked\"\r\n\r\n", "!501", 0},
        {POST "Transfer-Encoding:\x0b"
              "chunked\r\n\r\n",
         "!400", 0},
        {POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", "!400", 0},
        {POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", "!400", 0},
        {POST "Transfer-Encoding : chunked\r\n\r\n", "!400", 0},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "!400", 0},
        {TE "-2\r\n", "!400", 0},
        {TE "+2\r\n", "!400", 0},
        {TE "0x5\r\n", "!400", 0},
        {TE "5_0\r\n", "!400", 0},
        {TE " 5\r\n", "!400", 0},
        {TE "5 \r\n", "!400", 0},
        {TE "\t5\r\n", "!400", 0},
        {TE "\r\n", "!400", 0},
        {TE ";a\r\n", "!400", 0},
        {TE "g\r\n", "!400", 0},
        {TE "5\nhello\r\n0\r\n\r\n", "!400", 0},
        {TE "5\r\rhello", "!400", 0},
        {TE "5\r\nhello0\r\n", "!400", 0},
        {TE "5\r\nhello\n0\r\n\r\n", "!400", 0},
        {TE "5\r\nhello!\r\n0\r\n\r\n", "!400", 0},
        {TE "4\r\nhello\r\n0\r\n\r\n", "!400", 0},
        {TE "FFFFFFFFFFFFFFFFF\r\n", "!400", 0},
        {TE "FFFFFFFFFFFFFFFF\r\n", "!413", 0},
        {TE "00000000000000005\r\n", "!400", 0},
        {TE "3e9\r\n", "!413", 0},
        {TE "1\r\na\r\n3e8\r\n", "!413", 0},
        {TE "5;a\nb\r\n", "!400", 0},
        {TE "5;a\x01\r\n", "!400", 0},
        {TE "0\r\n\n", "!400", 0},
        {TE "0\r\n\ra", "!400", 0},
        {TE "0\r\nA: b\n\r\n", "!400", 0},
        {TE "0\r\n: b\r\n\r\n", "!400", 0},
        {TE "0\r\n A: b\r\n\r\n", "!400", 0},
        {TE "0\r\nA: \x01\r\n\r\n", "!400", 0},
        {TE "5\r\nhello\r\n0\r\n\r\nGARBAGE\n", "POST /p hello;!400", 0},
    };
    RUN(rows);
}

static void test_incomplete(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"G", "...", 0},
        {"GET / HTTP/1.1", "...", 0},
        {"GET / HTTP/1.1\r\n", "...", 0},
        {GET, "...", 0},
        {GET "\r", "...", 0},
        {L("5"), "...", 0},
        {L("5") "hell", "...", 0},
        {TE, "...", 0},
        {TE "5", "...", 0},
        {TE "5\r\nhel", "...", 0},
        {TE "5\r\nhello\r\n0\r\n", "...", 0},
        {GET "\r\nGE", "GET /;...", 0},
    };
    RUN(rows);
}

static void repeat(struct sl_buf *b, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sl_buf_puts(b, text);
}

static void expect_built(struct sl_buf *b, const char *want)
{
    assert_true(sl_buf_ok(b));
    expect((struct input){b->data, b->n_bytes}, want);
    sl_buf_clear(b);
}

static void test_limits(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    sl_buf_puts(&b, GET); /* with Host exactly 100 headers */
    repeat(&b, "X: y\r\n", 99);
    sl_buf_puts(&b, "\r\n");
    expect_built(&b, "GET /");
    sl_buf_puts(&b, GET);
    repeat(&b, "X: y\r\n", 100);
    sl_buf_puts(&b, "\r\n");
    expect_built(&b, "!431");
    for (size_t over = 0; over < 2; over++) { /* exactly 64 KiB, and one byte more */
        sl_buf_puts(&b, GET "X: ");
        repeat(&b, "a", SL_MAX_HTTP_HEADER - b.n_bytes - 4 + over);
        sl_buf_puts(&b, "\r\n\r\n");
        assert_int_equal(b.n_bytes, SL_MAX_HTTP_HEADER + over);
        expect_built(&b, over ? "!431" : "GET /");
    }
    sl_buf_puts(&b, "X: "); /* endless, without a line end */
    repeat(&b, "a", SL_MAX_HTTP_HEADER);
    expect_built(&b, "!431");
    sl_buf_puts(&b, "GET /");
    repeat(&b, "a", SL_HTTP_MAX_TARGET);
    sl_buf_puts(&b, " HTTP/1.1\r\n" H "\r\n");
    expect_built(&b, "!414");
    sl_buf_puts(&b, TE "1;");
    repeat(&b, "a", 300);
    sl_buf_puts(&b, "\r\n");
    expect_built(&b, "!400");
    sl_buf_puts(&b, TE "1;"); /* blanks in front of an extension's name */
    repeat(&b, " ", 250);
    sl_buf_puts(&b, "a\r\nx\r\n0\r\n\r\n");
    expect_built(&b, "POST /p x");
    sl_buf_puts(&b, TE "1;");
    repeat(&b, " \t", 150);
    sl_buf_puts(&b, "a\r\n");
    expect_built(&b, "!400");
    sl_buf_puts(&b, TE "0\r\nA: ");
    repeat(&b, "a", 5000);
    sl_buf_puts(&b, "\r\n\r\n");
    expect_built(&b, "!431");
    sl_buf_puts(&b, TE); /* a body of the greatest size in chunks of one byte */
    repeat(&b, "1\r\na\r\n", MAX_BODY);
    char want[MAX_BODY + 16] = "POST /p ";
    memset(want + 8, 'a', MAX_BODY);
    want[8 + MAX_BODY] = '\0';
    sl_buf_puts(&b, "0\r\n\r\n");
    expect_built(&b, want);
    sl_buf_puts(&b, TE);
    repeat(&b, "1\r\na\r\n", MAX_BODY + 1);
    expect_built(&b, "!413");
    sl_buf_deinit(&b);
}

static void test_pipeline(void **state)
{
    (void)state;
    struct sl_buf b = {0}, want = {0};
    for (int i = 0; i < 1000; i++) {
        sl_buf_puts(&b, i % 2 ? L("1") "x" : GET "\r\n");
        sl_buf_printf(&want, "%s%s", i > 0 ? ";" : "", i % 2 ? "POST /p x" : "GET /");
    }
    expect_built(&b, want.data);
    sl_buf_deinit(&b);
    sl_buf_deinit(&want);
}

static void test_headers_can_be_read(void **state)
{
    (void)state;
    static const char text[] = POST "Authorization: Bearer k\r\nX-A: 1\r\nX-A: 2\r\n"
                                    "Content-Length: 3\r\n\r\nabc";
    struct sl_http_parser p;
    sl_http_parser_init(&p, MAX_BODY);
    size_t took = sl_http_parser_feed(&p, text, sizeof text - 1);
    assert_int_equal(p.state, SL_HTTP_HEAD_DONE);
    assert_int_equal(took, sizeof text - 1 - 3);
    assert_int_equal(p.content_length, 3);
    assert_true(sl_str_equals(*sl_http_header(&p, "authorization"), "Bearer k"));
    assert_true(sl_str_equals(*sl_http_header(&p, "x-a"), "1"));
    assert_null(sl_http_header(&p, "x-b"));
    sl_http_parser_body(&p, true); /* skipped, not stored */
    assert_int_equal(sl_http_parser_feed(&p, "abc", 3), 3);
    assert_int_equal(p.state, SL_HTTP_COMPLETE);
    assert_int_equal(p.body.n_bytes, 0);
    sl_http_parser_deinit(&p);
}

/* A parser that has seen a large body, a refusal or the end of a request goes on as a new one. */
static void test_used_again(void **state)
{
    (void)state;
    struct sl_buf big = {0};
    struct sl_http_parser p;
    repeat(&big, "0123456789abcdef", 8192);
    sl_http_parser_init(&p, big.n_bytes);
    const char head[] = POST "Content-Length: 131072\r\n\r\n";
    assert_int_equal(big.n_bytes, 131072);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(sl_http_parser_feed(&p, head, sizeof head - 1), sizeof head - 1);
        sl_http_parser_body(&p, false);
        assert_int_equal(sl_http_parser_feed(&p, big.data, big.n_bytes), big.n_bytes);
        assert_int_equal(p.state, SL_HTTP_COMPLETE);
        assert_memory_equal(p.body.data, big.data, big.n_bytes);
        assert_int_equal(sl_http_parser_feed(&p, "x", 1), 0); /* not before it is reset */
        sl_http_parser_reset(&p);
        assert_false(sl_http_parser_started(&p));
        assert_true(p.body.cap_bytes < big.n_bytes); /* large memory is not kept */
    }
    assert_int_equal(sl_http_parser_feed(&p, "\n", 1), 1);
    assert_int_equal(p.state, SL_HTTP_BAD);
    assert_int_equal(sl_http_parser_feed(&p, "GET", 3), 0);
    sl_http_parser_deinit(&p);
    sl_buf_deinit(&big);
}

static int fails_at, n_reallocs;

static void *failing_realloc(void *p, size_t n)
{
    return ++n_reallocs == fails_at ? NULL : sl_sys_real.realloc(p, n);
}

/* Every growth of head and body may fail: 503, whatever the framing. */
static void test_no_memory(void **state)
{
    (void)state;
    static struct sl_sys failing;
    struct sl_buf whole = {0}, chunked = {0};
    repeat(&whole, POST "Content-Length: 1000\r\n\r\n", 1);
    repeat(&whole, "0123456789", 100);
    repeat(&chunked, TE, 1);
    repeat(&chunked, "a\r\n0123456789\r\n", 100);
    repeat(&chunked, "0\r\n\r\n", 1);
    const struct sl_buf *const inputs[] = {&whole, &chunked};
    failing = sl_sys_real;
    failing.realloc = failing_realloc;
    for (size_t i = 0; i < 2; i++) {
        for (fails_at = 1; fails_at < 100; fails_at++) {
            struct sl_http_parser p;
            sl_http_parser_init(&p, MAX_BODY);
            n_reallocs = 0;
            size_t at = 0;
            sl_sys = &failing;
            while (at < inputs[i]->n_bytes && p.state != SL_HTTP_BAD) {
                at += sl_http_parser_feed(&p, inputs[i]->data + at, inputs[i]->n_bytes - at);
                if (p.state == SL_HTTP_HEAD_DONE)
                    sl_http_parser_body(&p, false);
            }
            sl_sys = &sl_sys_real;
            bool struck = n_reallocs >= fails_at;
            assert_int_equal(p.state, struck ? SL_HTTP_BAD : SL_HTTP_COMPLETE);
            assert_int_equal(p.status, struck ? 503 : 0);
            sl_http_parser_deinit(&p);
            n_checked++;
            if (!struck)
                break;
        }
        assert_in_range(fails_at, 3, 50);
    }
    sl_buf_deinit(&whole);
    sl_buf_deinit(&chunked);
}

static void test_enough_cases(void **state)
{
    (void)state;
    print_message("%d feedings checked\n", n_checked);
    assert_true(n_checked >= 250);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_refused_lines),
        cmocka_unit_test(test_refused_lengths),
        cmocka_unit_test(test_incomplete),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_headers_can_be_read),
        cmocka_unit_test(test_used_again),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_enough_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
