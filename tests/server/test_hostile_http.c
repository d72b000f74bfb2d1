/* SPDX-License-Identifier: MIT
 * Hostile HTTP against the whole server. A row says what a client sends and what must come back:
 * the status of each reply and what becomes of the connection (see host_outcome). Every row is also
 * read byte by byte, the first table cut in two at every byte; that may not change the outcome.
 */
#include "server/hostile.h"

#include "base/rng.h"
#include "server/http/http_parse.h"

#include <math.h>

#define OPEN     "GET /version HTTP/1.1\r\n"
#define GET      OPEN HOST_LINE
#define POSTED   "POST /v1/completions HTTP/1.1\r\n" HOST_LINE
#define REFUSED  "POST /version HTTP/1.1\r\n" HOST_LINE /* 405, its body is skipped */
#define L(n)     "Content-Length: " n "\r\n"
#define CHUNKED  "Transfer-Encoding: chunked\r\n"
#define GOOD     "{\"prompt\":[5],\"max_tokens\":1}" /* 29 bytes */
#define CHUNKS   POSTED CHUNKED "\r\n"
#define HEX_GOOD "1d\r\n" GOOD "\r\n"
#define TEXT(s)  s, sizeof(s) - 1

_Static_assert(sizeof GOOD == 30, "rows say its length");

struct row {
    const char *text;
    size_t n;
    const char *want;
};

static int start(void **state)
{
    static const struct host_options options = {.max_model_len = 64};
    (void)state;
    host_start(&host, &options);
    return 0;
}

static void run(const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        host_raw(&host, rows[i].text, rows[i].n, rows[i].want);
        atomic_store(&host_cut, -1);
        host_raw(&host, rows[i].text, rows[i].n, rows[i].want);
    }
}

#define RUN(rows) run(rows, SL_COUNT(rows))

/* ---- every split point */

static const struct row split_rows[] = {
    {TEXT(GET "\r\n"), "200 open"},
    {TEXT("HEAD /version HTTP/1.1\r\n" HOST_LINE "\r\n"), "200 open"},
    {TEXT("GET /version?a=b HTTP/1.1\r\n" HOST_LINE "X: \t y \r\n\r\n"), "200 open"},
    {TEXT("GET /nothing HTTP/1.1\r\n" HOST_LINE "\r\n"), "404 open"},
    {TEXT("GET /version HTTP/1.0\r\n\r\n"), "200 close"},
    {TEXT(GET "Connection: close\r\n\r\n"), "200 close"},
    {TEXT(POSTED L("29") "\r\n" GOOD), "200 open"},
    {TEXT(POSTED L("2") "\r\n{}"), "400 open"},
    {TEXT(CHUNKS HEX_GOOD "0\r\n\r\n"), "200 open"},
    {TEXT(CHUNKS "1;a=\"b\"\r\n{\r\n1C\r\n\"prompt\":[5],\"max_tokens\":1}\r\n0\r\nA: b\r\n\r\n"),
     "200 open"},
    {TEXT(POSTED L("29") "Expect: 100-continue\r\n\r\n" GOOD), "100 200 open"},
    {TEXT(REFUSED L("5") "\r\nhello" GET "\r\n"), "405 200 open"},
    {TEXT(GET "\r\n" GET "\r\n" POSTED L("29") "\r\n" GOOD), "200 200 200 open"},
    {TEXT(POSTED L("29") "\r\n" GOOD CHUNKS HEX_GOOD "0\r\n\r\n"), "200 200 open"},
    {TEXT(CHUNKS "-2\r\n"), "400 close"},
    {TEXT(CHUNKS "2\r\n{}\r\n0\r\n\r\nG T\n"), "400 400 close"},
    {TEXT(POSTED L("1") CHUNKED "\r\n"), "400 close"},
    {TEXT(GET "X: a\n\r\n"), "400 close"},
    {TEXT("GET /v1/completions HTTP/1.1\r\n" HOST_LINE L("3") "\r\nabc"), "405 open"},
    {TEXT("OPTIONS * HTTP/1.1\r\n" HOST_LINE "\r\n"), "404 open"},
    {TEXT(CHUNKS "1d\r\n{\"prompt\":[5],\"stream\": true}\r\n0\r\n\r\n"), "200 open"},
    {TEXT("GET http://a/version HTTP/1.1\r\n" HOST_LINE "\r\n"), "400 close"},
};

static void test_every_split(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(split_rows); i++) {
        const struct row *r = &split_rows[i];
        for (size_t cut = 0; cut < r->n; cut++) {
            atomic_store(&host_cut, (int)cut);
            host_raw(&host, r->text, r->n, r->want);
        }
        atomic_store(&host_cut, -1);
        host_raw(&host, r->text, r->n, r->want);
    }
    assert_true(SL_COUNT(split_rows) >= 20);
}

/* Replies that leave in single bytes, every second write refused, are the same replies. */
static void test_slow_writes(void **state)
{
    (void)state;
    atomic_store(&host_dribble, 1);
    RUN(split_rows);
    atomic_store(&host_dribble, 0);
}

/* ---- framing: whatever two readers could understand differently is refused */

static const struct row length_rows[] = {
    {TEXT(POSTED L("29") CHUNKED "\r\n" GOOD), "400 close"},
    {TEXT(POSTED CHUNKED L("29") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED CHUNKED L("0") "\r\n0\r\n\r\n"), "400 close"},
    {TEXT(POSTED L("29") "transfer-encoding: CHUNKED\r\n\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("29") "Transfer-Encoding: identity\r\n\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("29") "Transfer-Encoding : chunked\r\n\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("29") " Transfer-Encoding: chunked\r\n\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("29") "Transfer-Encoding:\r\n chunked\r\n\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("29") "Transfer-Encoding:\r\n\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("29") "X: a\nTransfer-Encoding: chunked\r\n\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("29") "X: a\rTransfer-Encoding: chunked\r\n\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("29") "\x00Transfer-Encoding: chunked\r\n\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("29") "Transfer_Encoding: chunked\r\n\r\n" GOOD), "200 open"},
    {TEXT(POSTED L("29") "X-Transfer-Encoding: chunked\r\n\r\n" GOOD), "200 open"},
    {TEXT(POSTED L("29") L("29") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("29") L("30") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("0") L("29") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("29") "content-length: 29\r\n\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("29, 29") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("29,") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("+29") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("-1") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("-0") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("0x1d") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("1d") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("2_9") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("29.0") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("2 9") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("29;") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("\"29\"") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("\xd9\xa2\xd9\xa9") "\r\n" GOOD), "400 close"}, /* digits of another script */
    {TEXT(POSTED L("0000000000000000029") "\r\n" GOOD), "200 open"},
    {TEXT(POSTED L("00000000000000000029") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED "Content-Length : 29\r\n\r\n" GOOD), "400 close"},
    {TEXT(POSTED "Content-Length\t: 29\r\n\r\n" GOOD), "400 close"},
    {TEXT(POSTED "Content-Length:\t29\t\r\n\r\n" GOOD), "200 open"},
    {TEXT(POSTED "Content-Length:\x0b"
                 "29\r\n\r\n" GOOD),
     "400 close"},
    {TEXT(POSTED L("33554433") "\r\n" GOOD), "413 close"},
    {TEXT(POSTED L("8589934592") "\r\n" GOOD), "413 close"},
    {TEXT(POSTED L("4294967325") "\r\n" GOOD), "413 close"},           /* 2^32 + 29 */
    {TEXT(POSTED L("18446744073709551645") "\r\n" GOOD), "400 close"}, /* 2^64 + 29 */
    {TEXT(POSTED L("9223372036854775807") "\r\n" GOOD), "413 close"},
    {TEXT(POSTED L("9223372036854775808") "\r\n" GOOD), "413 close"},
    {TEXT(POSTED L("18446744073709551615") "\r\n" GOOD), "400 close"},
    {TEXT(POSTED L("99999999999999999999") "\r\n" GOOD), "400 close"},
    {TEXT(GET L("8589934592") "\r\n"), "413 close"},
    {TEXT(REFUSED L("8589934592") "\r\n"), "405 close"},
    {TEXT(POSTED L("30") "\r\n" GOOD), "wait"},
    {TEXT(POSTED L("28") "\r\n" GOOD), "400 wait"}, /* the '}' begins a request */
    {TEXT(POSTED L("28") "\r\n" GOOD "\r\n\r\n"), "400 400 close"},
    {TEXT(POSTED "\r\n" GOOD), "400 wait"}, /* without a length: no body */
    {TEXT(POSTED "\r\n"), "400 open"},
    {TEXT("POST /v1/completions HTTP/1.0\r\n" L("29") "\r\n" GOOD), "200 close"},
    {TEXT("POST /v1/completions HTTP/1.0\r\n" CHUNKED "\r\n" HEX_GOOD "0\r\n\r\n"), "400 close"},
    {TEXT(POSTED "Transfer-Encoding: gzip\r\n\r\n"), "501 close"},
    {TEXT(POSTED "Transfer-Encoding: gzip, chunked\r\n\r\n"), "501 close"},
    {TEXT(POSTED "Transfer-Encoding: chunked, gzip\r\n\r\n"), "501 close"},
    {TEXT(POSTED "Transfer-Encoding: chunked, chunked\r\n\r\n"), "501 close"},
    {TEXT(POSTED "Transfer-Encoding: chunked,\r\n\r\n"), "501 close"},
    {TEXT(POSTED "Transfer-Encoding: ,chunked\r\n\r\n"), "501 close"},
    {TEXT(POSTED "Transfer-Encoding: chunked;q=1\r\n\r\n"), "501 close"},
    {TEXT(POSTED "Transfer-Encoding: xchunked\r\n\r\n"), "501 close"},
    {TEXT(POSTED "Transfer-Encoding: chunke\r\n\r\n"), "501 close"},
    {TEXT(POSTED "Transfer-Encoding: identity\r\n\r\n"), "501 close"},
    {TEXT(POSTED "Transfer-Encoding:\r\n\r\n"), "501 close"},
    {TEXT(POSTED "Transfer-Encoding: \"chunked\"\r\n\r\n"), "501 close"},
    {TEXT(POSTED "Transfer-Encoding: \x63hunked\xa0\r\n\r\n"), "501 close"},
    {TEXT(POSTED CHUNKED CHUNKED "\r\n0\r\n\r\n"), "400 close"},
    {TEXT(POSTED CHUNKED "Transfer-Encoding: identity\r\n\r\n0\r\n\r\n"), "400 close"},
    {TEXT(POSTED "Transfer-Encoding: identity\r\n" CHUNKED "\r\n0\r\n\r\n"), "400 close"},
};

static void test_lengths(void **state)
{
    (void)state;
    RUN(length_rows);
}

static const struct row chunk_rows[] = {
    {TEXT(CHUNKS HEX_GOOD "0\r\n\r\n"), "200 open"},
    {TEXT(CHUNKS "1D\r\n" GOOD "\r\n000\r\n\r\n"), "200 open"},
    {TEXT(CHUNKS "000000000000001d\r\n" GOOD "\r\n0\r\n\r\n"), "200 open"},
    {TEXT(CHUNKS "1d;a\r\n" GOOD "\r\n0;b=c\r\n\r\n"), "200 open"},
    {TEXT(CHUNKS HEX_GOOD "0\r\nA: b\r\nC:\r\n\r\n"), "200 open"},
    {TEXT(CHUNKS "0\r\n\r\n"), "400 open"},
    {TEXT(CHUNKS HEX_GOOD "0\r\n"), "wait"},
    {TEXT(CHUNKS HEX_GOOD "0\r\n\r"), "wait"},
    {TEXT(CHUNKS HEX_GOOD), "wait"},
    {TEXT(CHUNKS "1d"), "wait"},
    {TEXT(CHUNKS "1d\r"), "wait"},
    {TEXT(CHUNKS "1d\r\n" GOOD), "wait"},
    {TEXT(CHUNKS "1d\r\n" GOOD "\r"), "wait"},
    {TEXT(CHUNKS "-2\r\n"), "400 close"},
    {TEXT(CHUNKS "-1d\r\n" GOOD "\r\n"), "400 close"},
    {TEXT(CHUNKS "+1d\r\n" GOOD "\r\n"), "400 close"},
    {TEXT(CHUNKS "0x1d\r\n" GOOD "\r\n"), "400 close"},
    {TEXT(CHUNKS "0X1D\r\n" GOOD "\r\n"), "400 close"},
    {TEXT(CHUNKS "x1d\r\n" GOOD "\r\n"), "400 close"},
    {TEXT(CHUNKS "1_d\r\n" GOOD "\r\n"), "400 close"},
    {TEXT(CHUNKS " 1d\r\n" GOOD "\r\n"), "400 close"},
    {TEXT(CHUNKS "1d \r\n" GOOD "\r\n"), "400 close"},
    {TEXT(CHUNKS "\t1d\r\n" GOOD "\r\n"), "400 close"},
    {TEXT(CHUNKS "1 d\r\n" GOOD "\r\n"), "400 close"},
    {TEXT(CHUNKS "1d.0\r\n" GOOD "\r\n"), "400 close"},
    {TEXT(CHUNKS "1dh\r\n" GOOD "\r\n"), "400 close"},
    {TEXT(CHUNKS "1,d\r\n" GOOD "\r\n"), "400 close"},
    {TEXT(CHUNKS "\"1d\"\r\n" GOOD "\r\n"), "400 close"},
    {TEXT(CHUNKS "\x00"
                 "1d\r\n" GOOD "\r\n"),
     "400 close"},
    {TEXT(CHUNKS "1d\x00\r\n" GOOD "\r\n"), "400 close"},
    {TEXT(CHUNKS "\xef\xbc\x91\r\n"), "400 close"}, /* a wide digit */
    {TEXT(CHUNKS "\r\n" HEX_GOOD "0\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS ";a\r\n"), "400 close"},
    {TEXT(CHUNKS "FFFFFFFFFFFFFFFFF\r\n"), "400 close"},
    {TEXT(CHUNKS "1000000000000001d\r\n" GOOD "\r\n"), "400 close"}, /* 2^64 + 29 */
    {TEXT(CHUNKS "0000000000000001d\r\n" GOOD "\r\n"), "400 close"}, /* 17 digits */
    {TEXT(CHUNKS "FFFFFFFFFFFFFFFF\r\n"), "413 close"},
    {TEXT(CHUNKS "FFFFFFFFFFFFFFFE\r\n"), "413 close"},
    {TEXT(CHUNKS "8000000000000000\r\n"), "413 close"},
    {TEXT(CHUNKS "7FFFFFFFFFFFFFFF\r\n"), "413 close"},
    {TEXT(CHUNKS "10000001d\r\n" GOOD "\r\n"), "413 close"}, /* 2^32 + 29 */
    {TEXT(CHUNKS "2000001\r\n"), "413 close"},
    {TEXT(CHUNKS "1\r\n{\r\nFFFFFFFFFFFFFFFF\r\n"), "413 close"}, /* the sum wraps */
    {TEXT(CHUNKS "1\r\n{\r\n2000000\r\n"), "413 close"},
    {TEXT(CHUNKS "1d\n" GOOD "\r\n0\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS "1d\r" GOOD "\r\n0\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS "1d\r\r\n" GOOD "\r\n0\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS "1d\r\n" GOOD "\n0\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS "1d\r\n" GOOD "0\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS "1d\r\n" GOOD "\r0\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS "1d\r\n" GOOD "XX0\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS "1c\r\n" GOOD "\r\n0\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS "1e\r\n" GOOD "\r\n0\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS "1d;a\nb\r\n" GOOD "\r\n0\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS "1d;a\x01\r\n" GOOD "\r\n0\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS "1d;\x00\r\n" GOOD "\r\n0\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS "1d;\r\n" GOOD "\r\n0\r\n\r\n"), "400 close"}, /* an extension has a name */
    {TEXT(CHUNKS "1d;;a\r\n" GOOD "\r\n0\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS "1d;=a\r\n" GOOD "\r\n0\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS "1d; \r\n" GOOD "\r\n0\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS "1d;\n" GOOD "\r\n0\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS "1d; \ta=b\r\n" GOOD "\r\n0\r\n\r\n"), "200 open"},
    {TEXT(CHUNKS HEX_GOOD "0;\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS HEX_GOOD "0\n\n"), "400 close"},
    {TEXT(CHUNKS HEX_GOOD "0\r\n\n"), "400 close"},
    {TEXT(CHUNKS HEX_GOOD "0\r\n\rX"), "400 close"},
    {TEXT(CHUNKS HEX_GOOD "0\r\nA: b\n\r\n"), "400 close"},
    {TEXT(CHUNKS HEX_GOOD "0\r\n A: b\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS HEX_GOOD "0\r\n: b\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS HEX_GOOD "0\r\nA: \x01\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS HEX_GOOD "0\r\nA: \x00\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS HEX_GOOD "0\r\nA b: c\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS HEX_GOOD "0\r\nA : c\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS HEX_GOOD "0\r\nA\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS HEX_GOOD "0\r\nA: b\r\n c\r\n\r\n"), "400 close"},
    {TEXT(CHUNKS HEX_GOOD "0\r\nContent-Length: 5\r\n\r\n" GET "\r\n"), "200 200 open"},
    {TEXT(CHUNKS HEX_GOOD "0\r\nTransfer-Encoding: gzip\r\n\r\n" GET "\r\n"), "200 200 open"},
    {TEXT(CHUNKS HEX_GOOD "0\r\nHost: b\r\nConnection: close\r\n\r\n" GET "\r\n"), "200 200 open"},
    {TEXT(CHUNKS HEX_GOOD "0\r\n\r\nGARBAGE\r\n\r\n"), "200 400 close"},
    {TEXT(CHUNKS HEX_GOOD "0\r\n\r\n0\r\n\r\n"), "200 400 close"},
    {TEXT(REFUSED CHUNKED "\r\n" HEX_GOOD "0\r\n\r\n" GET "\r\n"), "405 close"},
};

static void test_chunks(void **state)
{
    (void)state;
    RUN(chunk_rows);
}

/* ---- lines */

static const struct row line_rows[] = {
    {TEXT("\r\n" GET "\r\n"), "400 close"},
    {TEXT("\n" GET "\r\n"), "400 close"},
    {TEXT("\r" GET "\r\n"), "400 close"},
    {TEXT(" " GET "\r\n"), "400 close"},
    {TEXT("\0" GET "\r\n"), "400 close"},
    {TEXT("\xef\xbb\xbf" GET "\r\n"), "400 close"},
    {TEXT("GET /version HTTP/1.1\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("GET /version HTTP/1.1\r\nHost: a\n\r\n"), "400 close"},
    {TEXT(GET "\n"), "400 close"},
    {TEXT("GET /version HTTP/1.1\r" HOST_LINE "\r\n"), "400 close"},
    {TEXT("GET /version HTTP/1.1\r\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT(GET "X: a\r\n\tb\r\n\r\n"), "400 close"},
    {TEXT(GET "X: a\r\n b\r\n\r\n"), "400 close"},
    {TEXT(GET " \r\n\r\n"), "400 close"},
    {TEXT(GET "X: a\r\n \r\n\r\n"), "400 close"},
    {TEXT(OPEN " " HOST_LINE "\r\n"), "400 close"},
    {TEXT(GET "X: \0\r\n\r\n"), "400 close"},
    {TEXT(GET "X\0: a\r\n\r\n"), "400 close"},
    {TEXT("GET /ver\0sion HTTP/1.1\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("GET\0 /version HTTP/1.1\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT(GET "X: \x01\r\n\r\n"), "400 close"},
    {TEXT(GET "X: \x1b[31m\r\n\r\n"), "400 close"},
    {TEXT(GET "X: \x7f\r\n\r\n"), "400 close"},
    {TEXT(GET "X: \x80\xff\r\n\r\n"), "200 open"},
    {TEXT(GET "X : a\r\n\r\n"), "400 close"},
    {TEXT(GET ": a\r\n\r\n"), "400 close"},
    {TEXT(GET "X\r\n\r\n"), "400 close"},
    {TEXT(GET "X;a: b\r\n\r\n"), "400 close"},
    {TEXT(GET "X\xc3\xa9: b\r\n\r\n"), "400 close"},
    {TEXT(GET "\"X\": b\r\n\r\n"), "400 close"},
    {TEXT(GET "X:::\r\n\r\n"), "200 open"},
    {TEXT(GET "X:\r\n\r\n"), "200 open"},
    {TEXT("GET\r\n\r\n"), "400 close"},
    {TEXT("GET /version\r\n\r\n"), "400 close"},
    {TEXT("GET  /version HTTP/1.1\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("GET /version  HTTP/1.1\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("GET /version HTTP/1.1 \r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("GET\t/version\tHTTP/1.1\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("GET /version\x0bHTTP/1.1\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("GET /a b HTTP/1.1\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("GET /version HTTP/1.1 HTTP/1.1\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("GET /version HTTP/1.2\r\n" HOST_LINE "\r\n"), "505 close"},
    {TEXT("GET /version HTTP/2.0\r\n" HOST_LINE "\r\n"), "505 close"},
    {TEXT("GET /version HTTP/0.9\r\n" HOST_LINE "\r\n"), "505 close"},
    {TEXT("GET /version HTTP/1.10\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("GET /version HTTP/1\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("GET /version HTTP/11\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("GET /version http/1.1\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("GET /version ICY/1.1\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("GET /version HTTP/ 1.1\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "505 close"},
    {TEXT("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), "400 close"},
    {TEXT("get /version HTTP/1.1\r\n" HOST_LINE "\r\n"), "405 open"},
    {TEXT("GETT /version HTTP/1.1\r\n" HOST_LINE "\r\n"), "405 open"},
    {TEXT("TRACE /version HTTP/1.1\r\n" HOST_LINE "X: y\r\n\r\n"), "405 open"},
    {TEXT("CONNECT a:80 HTTP/1.1\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("CONNECT /version HTTP/1.1\r\n" HOST_LINE "\r\n"), "405 open"},
    {TEXT("G\xc3\x89T /version HTTP/1.1\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("G(T /version HTTP/1.1\r\n" HOST_LINE "\r\n"), "400 close"},
    {TEXT("HEAD /nothing HTTP/1.1\r\n" HOST_LINE "\r\n"), "404 open"},
    {TEXT("HEAD /v1/completions HTTP/1.1\r\n" HOST_LINE "\r\n"), "405 open"},
    {TEXT("G"), "wait"},
    {TEXT(GET), "wait"},
    {TEXT(GET "\r"), "wait"},
    {TEXT(""), "wait"},
};

static void test_lines(void **state)
{
    (void)state;
    RUN(line_rows);
}

/* ---- hosts, paths, other headers */

#define PATH(p) "GET " p " HTTP/1.1\r\n" HOST_LINE "\r\n"
#define HOST(v) OPEN "Host:" v "\r\n\r\n"

static const struct row target_rows[] = {
    {TEXT(OPEN "\r\n"), "400 close"}, /* no Host */
    {TEXT(GET HOST_LINE "\r\n"), "400 close"},
    {TEXT(GET "Host: b\r\n\r\n"), "400 close"},
    {TEXT(GET "host: a\r\n\r\n"), "400 close"},
    {TEXT(HOST("")), "200 open"},
    {TEXT(HOST(" a.example:8000")), "200 open"},
    {TEXT(HOST(" [::1]:80")), "200 open"},
    {TEXT(HOST(" a b")), "400 close"},
    {TEXT(HOST(" a/b")), "400 close"},
    {TEXT(HOST(" http://a")), "400 close"},
    {TEXT(HOST(" u@a")), "400 close"},
    {TEXT(HOST(" a,b")), "400 close"},
    {TEXT(HOST(" a\tb")), "400 close"},
    {TEXT(HOST(" a?b")), "400 close"},
    {TEXT(HOST(" a#b")), "400 close"},
    {TEXT(HOST(" a\\b")), "400 close"},
    {TEXT(HOST(" \"a\"")), "400 close"},
    {TEXT(HOST(" a;b")), "400 close"},
    {TEXT(HOST(" <a>")), "400 close"},
    {TEXT(HOST(" \xc3\xa9")), "400 close"},
    {TEXT(HOST(" a\0b")), "400 close"},
    {TEXT("GET /version HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n"), "400 close"},
    {TEXT("GET /version HTTP/1.0\r\nHost: a b\r\n\r\n"), "400 close"},
    {TEXT(PATH("http://a/version")), "400 close"},
    {TEXT(PATH("http://b/version")), "400 close"},
    {TEXT(PATH("https://a:443/version")), "400 close"},
    {TEXT(PATH("HTTP://a/version")), "400 close"},
    {TEXT(PATH("file:///etc/passwd")), "400 close"},
    {TEXT(PATH("version")), "400 close"},
    {TEXT(PATH("*")), "400 close"},
    {TEXT(PATH("?a")), "400 close"},
    {TEXT(PATH("/version#a")), "400 close"},
    {TEXT(PATH("/version\x7f")), "400 close"},
    {TEXT(PATH("/versi\xc3\xb6n")), "400 close"},
    {TEXT(PATH("/version\t")), "400 close"},
    {TEXT(PATH("/version?a=b&c=%00")), "200 open"},
    {TEXT(PATH("/version?")), "200 open"},
    {TEXT(PATH("/version?a?/../x")), "200 open"},
    {TEXT(PATH("/version/")), "404 open"},
    {TEXT(PATH("//version")), "404 open"},
    {TEXT(PATH("/./version")), "404 open"},
    {TEXT(PATH("/v1/../version")), "404 open"},
    {TEXT(PATH("/../version")), "404 open"},
    {TEXT(PATH("/../../../../etc/passwd")), "404 open"},
    {TEXT(PATH("/%2e%2e/%2e%2e/etc/passwd")), "404 open"},
    {TEXT(PATH("/v1/..%2fversion")), "404 open"},
    {TEXT(PATH("/v1/%2e%2e/version")), "404 open"},
    {TEXT(PATH("/%76ersion")), "404 open"},
    {TEXT(PATH("/version%00")), "404 open"},
    {TEXT(PATH("/version%0d%0aX:%20y")), "404 open"},
    {TEXT(PATH("/version%")), "404 open"},
    {TEXT(PATH("/version%2")), "404 open"},
    {TEXT(PATH("/version;a=b")), "404 open"},
    {TEXT(PATH("/Version")), "404 open"},
    {TEXT(PATH("/VERSION")), "404 open"},
    {TEXT(PATH("\\version")), "400 close"},
    {TEXT(PATH("/\\version")), "404 open"},
    {TEXT(PATH("/v1\\models")), "404 open"},
    {TEXT(PATH("//v1/models")), "404 open"},
    {TEXT(PATH("/v1//models")), "404 open"},
    {TEXT(PATH("/v1/models/")), "404 open"},
    {TEXT(PATH("/v1/models/storyteller")), "200 open"},
    {TEXT(PATH("/v1/models/%73toryteller")), "200 open"}, /* an id, and only it, is decoded */
    {TEXT(PATH("/v1/models/%")), "404 open"},
    {TEXT(PATH("/v1/models/%0")), "404 open"},
    {TEXT(PATH("/v1/models/%00")), "404 open"},
    {TEXT(PATH("/v1/models/storyteller%00x")), "404 open"},
    {TEXT(PATH("/v1/models/%2e%2e")), "404 open"},
    {TEXT(PATH("/v1/models/%ff%fe")), "404 open"},
    {TEXT(PATH("/v1/models/%zz")), "404 open"},
    {TEXT(PATH("/v1/models/%+1")), "404 open"},
    {TEXT(PATH("/v1/models/../completions")), "404 open"},
    {TEXT(PATH("/v1/models/%22%7d%0a<script>")), "404 open"},
    {TEXT("OPTIONS * HTTP/1.1\r\n" HOST_LINE "\r\n"), "404 open"},
    {TEXT("GET * HTTP/1.1\r\n" HOST_LINE "\r\n"), "400 close"},
};

static void test_targets(void **state)
{
    (void)state;
    RUN(target_rows);
}

static const struct row other_rows[] = {
    {TEXT(POSTED L("29") "Content-Encoding: gzip\r\n\r\n" GOOD), "400 open"},
    {TEXT(POSTED L("29") "Content-Encoding: GZIP\r\n\r\n" GOOD), "400 open"},
    {TEXT(POSTED L("29") "Content-Encoding: br\r\n\r\n" GOOD), "400 open"},
    {TEXT(POSTED L("29") "Content-Encoding: deflate\r\n\r\n" GOOD), "400 open"},
    {TEXT(POSTED L("29") "Content-Encoding: zstd\r\n\r\n" GOOD), "400 open"},
    {TEXT(POSTED L("29") "Content-Encoding: identity, gzip\r\n\r\n" GOOD), "400 open"},
    {TEXT(POSTED L("29") "Content-Encoding: gzip\r\nContent-Encoding: identity\r\n\r\n" GOOD),
     "400 open"},
    {TEXT(POSTED L("29") "Content-Encoding: identity\r\nContent-Encoding: gzip\r\n\r\n" GOOD),
     "400 open"},
    {TEXT(POSTED L("29") "Content-Encoding:\r\n\r\n" GOOD), "400 open"},
    {TEXT(POSTED L("29") "Content-Encoding: identity\r\n\r\n" GOOD), "200 open"},
    {TEXT(POSTED L("29") "Content-Encoding: Identity\r\n\r\n" GOOD), "200 open"},
    {TEXT(POSTED CHUNKED "Content-Encoding: gzip\r\n\r\n" HEX_GOOD "0\r\n\r\n"), "400 close"},
    {TEXT(POSTED L("29") "Content-Type: text/plain\r\n\r\n" GOOD), "200 open"},
    {TEXT(POSTED L("29") "Content-Type: application/json; charset=utf-7\r\n\r\n" GOOD), "200 open"},
    {TEXT(POSTED L("29") "Expect: 100-continue\r\n\r\n" GOOD), "100 200 open"},
    {TEXT(POSTED L("29") "Expect: 100-Continue\r\n\r\n" GOOD), "100 200 open"},
    {TEXT(POSTED L("29") "Expect: 200-ok\r\n\r\n" GOOD), "417 close"},
    {TEXT(POSTED L("29") "Expect:\r\n\r\n" GOOD), "417 close"},
    {TEXT(POSTED L("29") "Expect: 100-continue, x\r\n\r\n" GOOD), "417 close"},
    {TEXT(GET "Expect: 100-continue\r\n\r\n"), "200 open"},
    {TEXT(POSTED "Expect: 100-continue\r\n" L("8589934592") "\r\n"), "413 close"},
    {TEXT(REFUSED "Expect: 100-continue\r\n" L("5") "\r\nhello"), "405 close"},
    {TEXT("POST /v1/completions HTTP/1.0\r\n" L("29") "Expect: 100-continue\r\n\r\n" GOOD),
     "200 close"},
    {TEXT("POST /v1/completions HTTP/1.0\r\n" L(
         "43") "\r\n"
               "{\"prompt\":[5],\"max_tokens\":1,\"stream\":true}"),
     "200 close"},
    {TEXT("POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\n" L(
         "43") "\r\n"
               "{\"prompt\":[5],\"max_tokens\":1,\"stream\":true}" GET "\r\n"),
     "200 close"},
    {TEXT("GET /version HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" GET "\r\n"), "200 200 open"},
    {TEXT(GET "Connection: close\r\n\r\n" GET "\r\n"), "200 close"},
    {TEXT(GET "Connection: foo, CLOSE ,bar\r\n\r\n" GET "\r\n"), "200 close"},
    {TEXT(GET "Connection: keep-alive\r\nConnection: close\r\n\r\n" GET "\r\n"), "200 close"},
    {TEXT(GET "Connection: close\r\nConnection: keep-alive\r\n\r\n" GET "\r\n"), "200 close"},
    {TEXT(GET "Connection: close\r\n\r\nGARBAGE"), "200 close"},
    {TEXT(GET "Connection: closed\r\n\r\n"), "200 open"},
    {TEXT(GET "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n"),
     "200 open"},
    {TEXT(GET "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n"),
     "200 open"},
    {TEXT("GET /version HTTP/1.0\r\n\r\n" GET "\r\n"), "200 close"},
    {TEXT(GET L("5") "\r\nhello" GET "\r\n"), "200 200 open"}, /* bodies of GET are skipped */
    {TEXT(GET CHUNKED "\r\n5\r\nhello\r\n0\r\n\r\n" GET "\r\n"), "200 200 open"},
    {TEXT(GET L("27") "\r\nGET /v1/x HTTP/1.1\r\nHost: a"), "200 open"},
    {TEXT(REFUSED L("34") "\r\n" GET "\r\n"), "405 open"}, /* a request inside a skipped body */
    {TEXT("PUT /version HTTP/1.1\r\n" HOST_LINE L("34") "\r\n" GET "\r\n"), "405 open"},
    {TEXT("POST /nothing HTTP/1.1\r\n" HOST_LINE L("34") "\r\n" GET "\r\n"), "404 open"},
    {TEXT(POSTED L("34") "\r\n" GET "\r\n"), "400 open"},
    {TEXT(GET "X-Request-Id: a\x01\r\n\r\n"), "400 close"},
    {TEXT(GET "X-Request-Id: a b\r\n\r\n"), "200 open"},
    {TEXT(GET "X-Request-Id: \xff\r\n\r\n"), "200 open"},
    {TEXT(GET "X-Request-Id: abc\r\n\r\n"), "200 open"},
    {TEXT(GET "Range: bytes=0-18446744073709551615\r\n\r\n"), "200 open"},
    {TEXT(GET "Origin: null\r\n\r\n"), "200 open"},
    {TEXT("PATCH /v1/completions HTTP/1.1\r\n" HOST_LINE L("29") "\r\n" GOOD), "405 open"},
    {TEXT("DELETE /v1/models/storyteller HTTP/1.1\r\n" HOST_LINE "\r\n"), "405 open"},
};

static void test_other_headers(void **state)
{
    (void)state;
    RUN(other_rows);
}

/* The framing rows again over TCP, where a server that closes with unread input sends a reset. */
static void test_over_tcp(void **state)
{
    (void)state;
    host.tcp = true;
    RUN(length_rows);
    RUN(chunk_rows);
    host.tcp = false;
}

/* ---- sizes */

static void repeat(struct sl_buf *b, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sl_buf_puts(b, text);
}

static void run_built(struct sl_buf *b, const char *want)
{
    assert_true(sl_buf_ok(b));
    host_raw(&host, b->data, b->n_bytes, want);
    sl_buf_clear(b);
}

static void test_sizes(void **state)
{
    (void)state;
    static const size_t endless[] = {SL_MAX_HTTP_HEADER + 1, 1 << 20, 3 << 20};
    struct sl_buf b = {0};
    for (size_t n = 98; n <= 102; n++) { /* with Host 100 are allowed */
        sl_buf_puts(&b, GET);
        repeat(&b, "X: y\r\n", n);
        sl_buf_puts(&b, "\r\n");
        run_built(&b, n <= 99 ? "200 open" : "431 close");
    }
    sl_buf_puts(&b, GET);
    repeat(&b, "X:\r\n", 10000);
    sl_buf_puts(&b, "\r\n");
    run_built(&b, "431 close");
    for (size_t over = 0; over < 3; over++) { /* 64 KiB less one byte, exactly, and one more */
        sl_buf_puts(&b, GET "X: ");
        repeat(&b, "a", SL_MAX_HTTP_HEADER - b.n_bytes - 5 + over);
        sl_buf_puts(&b, "\r\n\r\n");
        run_built(&b, over <= 1 ? "200 open" : "431 close");
    }
    for (size_t i = 0; i < SL_COUNT(endless); i++) { /* lines that never end */
        repeat(&b, "a", endless[i]);
        run_built(&b, "431 close");
        sl_buf_puts(&b, "GET /");
        repeat(&b, "a", endless[i]);
        run_built(&b, "431 close");
        sl_buf_puts(&b, GET "X: ");
        repeat(&b, "a", endless[i]);
        run_built(&b, "431 close");
        sl_buf_puts(&b, GET);
        repeat(&b, "X: y\r\n", endless[i] / 6);
        run_built(&b, "431 close");
    }
    for (size_t over = 0; over < 2; over++) {
        sl_buf_puts(&b, "GET /");
        repeat(&b, "a", SL_HTTP_MAX_TARGET - 1 + over);
        sl_buf_puts(&b, " HTTP/1.1\r\n" HOST_LINE "\r\n");
        run_built(&b, over ? "414 close" : "404 open");
    }
    repeat(&b, "M", 60000); /* a method of 60,000 letters */
    sl_buf_puts(&b, " /version HTTP/1.1\r\n" HOST_LINE "\r\n");
    run_built(&b, "405 open");
    for (size_t n = 200; n <= 70000; n += 69800) {
        sl_buf_puts(&b, CHUNKS "1d;");
        repeat(&b, "a", n);
        sl_buf_puts(&b, "\r\n" GOOD "\r\n0\r\n\r\n");
        run_built(&b, n <= 200 ? "200 open" : "400 close");
        sl_buf_puts(&b, CHUNKS HEX_GOOD "0\r\nA: ");
        repeat(&b, "a", n);
        sl_buf_puts(&b, "\r\n\r\n");
        run_built(&b, n <= 200 ? "200 open" : "431 close");
    }
    sl_buf_puts(&b, CHUNKS HEX_GOOD "0\r\n");
    repeat(&b, "A: b\r\n", 10000);
    sl_buf_puts(&b, "\r\n");
    run_built(&b, "431 close");
    sl_buf_deinit(&b);
}

/* Many small chunks cost a server that recurses its stack and one that copies its time. */
static void test_many_chunks(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    sl_buf_puts(&b, CHUNKS);
    repeat(&b, "1\r\n \r\n", 200000);
    sl_buf_puts(&b, HEX_GOOD "0\r\n\r\n");
    run_built(&b, "200 open");
    sl_buf_puts(&b, CHUNKS);
    repeat(&b, "1;abc=def\r\n \r\n", 100000);
    sl_buf_puts(&b, "0\r\n\r\n");
    run_built(&b, "400 open");
    sl_buf_deinit(&b);
}

/* ---- pipelining */

static void pipeline(const char *const *requests, const char *const *wants, size_t n_kinds, int n)
{
    struct sl_buf b = {0}, want = {0};
    for (int i = 0; i < n; i++) {
        sl_buf_puts(&b, requests[(size_t)i % n_kinds]);
        sl_buf_puts(&want, wants[(size_t)i % n_kinds]);
    }
    sl_buf_puts(&want, "open");
    assert_true(sl_buf_ok(&want));
    run_built(&b, want.data);
    sl_buf_deinit(&b);
    sl_buf_deinit(&want);
}

static void test_pipelines(void **state)
{
    (void)state;
    static const char *const gets[] = {GET "\r\n"};
    static const char *const mixed[] = {GET "\r\n", POSTED L("29") "\r\n" GOOD,
                                        CHUNKS HEX_GOOD "0\r\n\r\n", POSTED L("2") "\r\n{}",
                                        REFUSED L("5") "\r\nhello"};
    static const char *const ok[] = {"200 "}, *const mixed_ok[] = {"200 ", "200 ", "200 ", "400 ",
                                                                   "405 "};
    pipeline(gets, ok, 1, 1000);
    pipeline(mixed, mixed_ok, 5, 1000);
    atomic_store(&host_cut, -1);
    pipeline(mixed, mixed_ok, 5, 50);
    atomic_store(&host_dribble, 1);
    pipeline(mixed, mixed_ok, 5, 50);
    atomic_store(&host_dribble, 0);
}

/* A client that goes away in the middle of its request or reply, at every byte. */
static void test_vanishing(void **state)
{
    (void)state;
    static const char text[] =
        POSTED L("62") "\r\n{\"prompt\":[5],\"max_tokens\":60,\"stream\":true,\"ignore_eos\":true}";
    for (size_t n = 0; n < sizeof text; n++) {
        struct client c;
        client_open(&c, &host);
        (void)client_send(&c, text, n);
        if (n % 3 == 0) /* unread input makes the end of a UNIX socket a reset */
            (void)shutdown(c.fd, SHUT_WR);
        client_close(&c);
        host_good(&host);
        host.n_cases++;
    }
}

/* Whole requests with one to three bytes changed, taken out or put in: what comes back is well
 * formed, whatever it says. */
static void test_mutations(void **state)
{
    (void)state;
    static const char bytes[] = "\r\n\0 \t:;,/%0a9-\"{}[]\x7f\x80\xff";
    struct sl_rng r = {.seed = 8};
    for (int i = 0; i < 100 * (int)SL_COUNT(split_rows); i++) {
        const struct row *row = &split_rows[(size_t)i % SL_COUNT(split_rows)];
        char text[600];
        size_t n = row->n;
        if (memcmp(row->text, "HEAD", 4) == 0) /* changed, it may be one whose reply has a body */
            continue;
        struct client c;
        struct answer a;
        assert_true(n + 3 < sizeof text);
        memcpy(text, row->text, n);
        for (uint64_t k = sl_rng_below(&r, 3) + 1; k > 0 && n > 0; k--) {
            size_t at = sl_rng_below(&r, n);
            uint64_t how = sl_rng_below(&r, 3);
            if (how > 0) /* 1: out, 2: in */
                memmove(text + at + (how == 2), text + at + (how == 1), n - at - (how == 1));
            n = how == 1 ? n - 1 : n + (how == 2);
            if (how != 1)
                text[at] = bytes[sl_rng_below(&r, sizeof bytes - 1)];
        }
        client_open(&c, &host);
        (void)client_send(&c, text, n);
        (void)shutdown(c.fd, SHUT_WR);
        while (client_answer(&c, false, &a))
            answer_free(&a);
        client_close(&c);
        host_good(&host);
        host.n_cases++;
    }
}

/* ---- cases of llhttp, where they are unpacked */

/* Test texts there are written with line ends for CR LF and with C escapes. */
static void unescape(const char *at, const char *end, struct sl_buf *out)
{
    sl_buf_clear(out);
    for (; at < end; at++) {
        uint64_t x;
        if (*at == '\n') {
            sl_buf_puts(out, "\r\n");
        } else if (*at != '\\' || at + 1 == end) {
            sl_buf_putc(out, *at);
        } else if (at[1] == '\n') { /* a line that goes on */
            at++;
        } else if (at[1] == 'x' && end - at > 3 && sl_parse_hex_u64(at + 2, 2, &x)) {
            sl_buf_putc(out, (char)x);
            at += 3;
        } else {
            const char *from = "rntfb0", *to = "\r\n\t\f\b";
            const char *k = strchr(from, at[1]);
            sl_buf_putc(out, k != NULL && *k != '\0' ? to[k - from] : at[1]);
            at++;
        }
    }
    assert_true(sl_buf_ok(out));
}

static int count_messages(const struct sl_buf *b)
{
    struct sl_http_parser p;
    int n = 0;
    size_t at = 0;
    sl_http_parser_init(&p, 1 << 20);
    while (at < b->n_bytes && p.state != SL_HTTP_BAD) {
        at += sl_http_parser_feed(&p, b->data + at, b->n_bytes - at);
        if (p.state == SL_HTTP_HEAD_DONE)
            sl_http_parser_body(&p, false);
        if (p.state == SL_HTTP_COMPLETE) {
            n++;
            sl_http_parser_reset(&p);
        }
    }
    sl_http_parser_deinit(&p);
    return n;
}

static void one_llhttp_case(const struct sl_buf *b, bool lenient, const char *log, const char *end)
{
    struct client c;
    struct answer a;
    int n_theirs = 0, n_ours = count_messages(b);
    for (const char *p = log; (p = memmem(p, (size_t)(end - p), "message complete", 16)) != NULL;
         p += 16)
        n_theirs++;
    /* We are stricter, never laxer; but which method a version has is the router's business. */
    bool of_method = memmem(log, (size_t)(end - log), "Expected HTTP/", 14) != NULL ||
                     memmem(log, (size_t)(end - log), "Invalid method", 14) != NULL;
    if (!lenient && !of_method && n_ours > n_theirs)
        fail_msg("%s: %d messages, llhttp has %d", host_show(b->data, b->n_bytes), n_ours,
                 n_theirs);
    client_open(&c, &host);
    (void)client_send(&c, b->data, b->n_bytes);
    (void)shutdown(c.fd, SHUT_WR);
    while (client_answer(&c, memcmp(b->data, "HEAD", SL_MIN(b->n_bytes, 4)) == 0, &a))
        answer_free(&a);
    client_close(&c);
    host_good(&host);
    host.n_cases++;
}

static int run_llhttp_file(const char *text)
{
    struct sl_buf b = {0};
    int n = 0;
    for (const char *at = text; (at = strstr(at, "<!-- meta={\"type\": \"request")) != NULL;) {
        bool lenient = strncmp(at, "<!-- meta={\"type\": \"request\"", 28) != 0;
        const char *http = strstr(at, "```http\n"), *end, *log, *log_end;
        if (http == NULL || (end = strstr(http + 8, "\n```")) == NULL ||
            (log = strstr(end, "```log\n")) == NULL || (log_end = strstr(log + 7, "\n```")) == NULL)
            break;
        unescape(http + 8, end, &b);
        one_llhttp_case(&b, lenient, log, log_end);
        n++;
        at = log_end;
    }
    sl_buf_deinit(&b);
    return n;
}

static void test_llhttp(void **state)
{
    (void)state;
    static const char folder[] = "build/testdata/http/llhttp/test/request";
    DIR *d = opendir(folder);
    int n = 0;
    if (d == NULL) {
        print_message("skip: the cases of llhttp are not unpacked\n");
        return;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[400], *text;
        size_t n_text;
        if (!sl_ends_with(e->d_name, ".md"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        assert_int_equal(sl_read_file(path, 1 << 20, &text, &n_text, NULL), 0);
        n += run_llhttp_file(text);
        sl_free(text);
    }
    closedir(d);
    print_message("%d cases of llhttp\n", n);
    assert_true(n > 80);
}

/* ---- time */

static void test_unfinished_requests_time_out(void **state)
{
    (void)state;
    static const struct host_options options = {.max_model_len = 64, .header_timeout_ms = 150};
    static const struct row rows[] = {
        {TEXT("G"), "408 close"},
        {TEXT(GET), "408 close"},
        {TEXT(GET "\r"), "408 close"},
        {TEXT(GET "\r\n" GET), "200 408 close"},
    };
    struct host slow;
    host_start(&slow, &options);
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        host_raw(&slow, rows[i].text, rows[i].n, rows[i].want);
    host.n_cases += slow.n_cases;
    host_stop(&slow);
}

static void test_enough_cases(void **state)
{
    (void)state;
    print_message("hostile HTTP: %ld cases\n", host.n_cases);
    assert_true(host.n_cases >= 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_split),
        cmocka_unit_test(test_slow_writes),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_targets),
        cmocka_unit_test(test_other_headers),
        cmocka_unit_test(test_over_tcp),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_many_chunks),
        cmocka_unit_test(test_pipelines),
        cmocka_unit_test(test_vanishing),
        cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_llhttp),
        cmocka_unit_test(test_unfinished_requests_time_out),
        cmocka_unit_test(test_enough_cases),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
