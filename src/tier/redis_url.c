/* SPDX-License-Identifier: MIT */
#include "tier/redis_url.h"

#include "base/check.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

#define WHAT   "kv-remote-url: "
#define MAX_DB 65535

struct span {
    const char *s;
    size_t n;
};

bool sl_redis_url_is(const char *url)
{
    return sl_starts_with(url, "redis:") || sl_starts_with(url, "rediss:") ||
           sl_starts_with(url, "valkey:") || sl_starts_with(url, "valkeys:");
}

/* The text with each %XX as the byte it stands for, which is none of 0. */
static int decode(struct span in, char out[SL_REDIS_TEXT], const char *what, struct sl_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < in.n; i++) {
        uint64_t c = (uint8_t)in.s[i];
        if (in.s[i] == '%') {
            if (in.n - i < 3 || !sl_parse_hex_u64(in.s + i + 1, 2, &c) || c == 0)
                return sl_fail(err, SL_EINVAL, WHAT "a %% in the %s is not of the form %%XX", what);
            i += 2;
        }
        if (n == SL_REDIS_TEXT - 1)
            return sl_fail(err, SL_EINVAL, WHAT "the %s is longer than %d bytes", what,
                           SL_REDIS_TEXT - 1);
        out[n++] = (char)c;
    }
    SL_ASSERT(n < SL_REDIS_TEXT);
    out[n] = '\0';
    return 0;
}

static int read_user(struct span in, struct sl_redis_url *out, struct sl_error *err)
{
    const char *colon = memchr(in.s, ':', in.n);
    SL_ASSERT(out->user[0] == '\0' && out->password[0] == '\0');
    struct span user = {in.s, colon != NULL ? (size_t)(colon - in.s) : in.n}, password = {"", 0};
    if (colon != NULL)
        password = (struct span){colon + 1, in.n - user.n - 1};
    int rc = decode(user, out->user, "user", err);
    return rc == 0 ? decode(password, out->password, "password", err) : rc;
}

static int read_port(struct span in, struct sl_redis_url *out, struct sl_error *err)
{
    uint64_t port;
    if (!sl_parse_u64(in.s, in.n, &port) || port == 0 || port > 65535)
        return sl_fail(err, SL_EINVAL, WHAT "the port is not a number from 1 to 65535");
    snprintf(out->port, sizeof out->port, "%u", (unsigned)port);
    return 0;
}

/* host, host:port, [address of IPv6]:port */
static int read_address(struct span in, struct sl_redis_url *out, struct sl_error *err)
{
    struct span host = in, rest = {"", 0};
    const char *end = NULL;
    if (in.n > 0 && in.s[0] == '[') {
        end = memchr(in.s, ']', in.n);
        if (end == NULL)
            return sl_fail(err, SL_EINVAL, WHAT "the address has a [ without a ]");
        host = (struct span){in.s + 1, (size_t)(end - in.s) - 1};
        rest = (struct span){end + 1, in.n - host.n - 2};
        if (rest.n > 0 && rest.s[0] != ':')
            return sl_fail(err, SL_EINVAL, WHAT "behind ] must be :PORT or nothing");
    } else if ((end = memchr(in.s, ':', in.n)) != NULL) {
        host.n = (size_t)(end - in.s);
        rest = (struct span){end, in.n - host.n};
    }
    if (host.n == 0 || host.n >= SL_REDIS_TEXT)
        return sl_fail(err, SL_EINVAL, WHAT "a host of 1 to %d bytes is missing",
                       SL_REDIS_TEXT - 1);
    SL_ASSERT(host.n + rest.n <= in.n);
    memcpy(out->host, host.s, host.n);
    out->host[host.n] = '\0';
    snprintf(out->port, sizeof out->port, "6379");
    return rest.n > 0 ? read_port((struct span){rest.s + 1, rest.n - 1}, out, err) : 0;
}

static int read_db(struct span in, struct sl_redis_url *out, struct sl_error *err)
{
    uint64_t db = 0;
    if (in.n > 0 && (!sl_parse_u64(in.s, in.n, &db) || db > MAX_DB))
        return sl_fail(err, SL_EINVAL, WHAT "behind the address must be /DB, a number from 0 to %d",
                       MAX_DB);
    out->db = (int32_t)db;
    return 0;
}

int sl_redis_url_parse(const char *url, struct sl_redis_url *out, struct sl_error *err)
{
    *out = (struct sl_redis_url){0};
    const char *at = strstr(url, "://");
    if (sl_starts_with(url, "rediss:") || sl_starts_with(url, "valkeys:"))
        return sl_fail(err, SL_EUNSUPPORTED, WHAT "TLS to the remote is not supported");
    if (!sl_redis_url_is(url) || at == NULL || at != strchr(url, ':'))
        return sl_fail(err, SL_EINVAL, WHAT "must be redis://[user:password@]host[:port][/db]");
    at += 3;
    for (const char *c = at; *c != '\0'; c++) {
        if ((uint8_t)*c <= ' ' || *c == 0x7f || *c == '?' || *c == '#')
            return sl_fail(err, SL_EINVAL,
                           WHAT "has a space, a control character, ? or #, write %%XX");
    }
    const char *sign = strrchr(at, '@');
    int rc = 0;
    if (sign != NULL) {
        rc = read_user((struct span){at, (size_t)(sign - at)}, out, err);
        at = sign + 1;
    }
    const char *slash = strchr(at, '/');
    const size_t n = slash != NULL ? (size_t)(slash - at) : strlen(at);
    if (rc == 0)
        rc = read_address((struct span){at, n}, out, err);
    if (rc == 0 && slash != NULL)
        rc = read_db((struct span){slash + 1, strlen(slash + 1)}, out, err);
    return rc;
}
