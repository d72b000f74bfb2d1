/* SPDX-License-Identifier: MIT */
#include "tier/redis.h"

#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
#include "tier/redis_url.h"
#include "tier/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ASK_BATCH 128 /* EXISTS under way: what a prompt that nobody knows costs beyond need */
#define COMMAND   256 /* bytes of one without its value */
#define AUTH_ROOM (3 * SL_REDIS_TEXT)

struct redis {
    struct sl_redis_url url;
    struct sl_hash128 root;
    uint32_t ttl_s;
    struct sl_wire wire;
    char out[ASK_BATCH * COMMAND];
    struct iovec iov[4 * SL_REMOTE_BATCH];
};

/* ---- answers ---- */

struct answer {
    char type;     /* of RESP2: + - : $ */
    int64_t n;     /* of a number; bytes of a string, -1: none. They follow, and then CR LF */
    char text[96]; /* of a status or an error, cut */
};

static int read_answer(struct redis *r, struct answer *a, uint64_t deadline, struct sl_error *err)
{
    const char *line;
    size_t n;
    int rc = sl_wire_line(&r->wire, &line, &n, deadline, err);
    if (rc != 0)
        return rc;
    *a = (struct answer){.type = n > 0 ? line[0] : '\0'};
    const bool number = a->type == ':' || a->type == '$';
    if ((a->type != '+' && a->type != '-' && !number) ||
        (number && !sl_parse_i64(line + 1, n - 1, &a->n)) || (a->type == '$' && a->n < -1))
        return sl_fail(err, SL_EFORMAT, "an answer is not one of RESP2");
    if (!number) {
        SL_ASSERT(n >= 1);
        n = SL_MIN(n - 1, sizeof a->text - 1);
        memcpy(a->text, line + 1, n);
        a->text[n] = '\0';
        sl_scrub(a->text, n);
    }
    return 0;
}

/* An answer that should be something else: what the peer says is wrong, or what it does. */
static int unexpected(const struct answer *a, const char *command, struct sl_error *err)
{
    return a->type == '-' ? sl_fail(err, SL_EIO, "%s: %s", command, a->text)
                          : sl_fail(err, SL_EFORMAT, "%s: the answer is of a wrong type", command);
}

static int end_string(struct redis *r, uint64_t deadline, struct sl_error *err)
{
    char end[2];
    SL_ASSERT(r->wire.fd >= 0);
    int rc = sl_wire_read(&r->wire, end, sizeof end, deadline, err);
    if (rc == 0 && (end[0] != '\r' || end[1] != '\n'))
        rc = sl_fail(err, SL_EFORMAT, "a string of an answer has no end");
    return rc;
}

/* ---- commands ---- */

static int send_text(struct redis *r, const char *text, size_t n, uint64_t deadline,
                     struct sl_error *err)
{
    struct iovec iov = {(void *)(uintptr_t)text, n};
    return sl_wire_send(&r->wire, &iov, 1, deadline, err);
}

/* "NAME key" at out; returns its length. */
static size_t key_command(const struct redis *r, char *out, const char *name,
                          const struct sl_store_key *key)
{
    char k[SL_REMOTE_KEY];
    const size_t n_key = sl_remote_key(k, &r->root, key);
    int n =
        snprintf(out, COMMAND, "*2\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n", strlen(name), name, n_key, k);
    SL_ASSERT(n > 0 && n < COMMAND);
    return (size_t)n;
}

static int ask_status(struct redis *r, const char *text, size_t n, struct answer *a,
                      uint64_t deadline, struct sl_error *err)
{
    int rc = send_text(r, text, n, deadline, err);
    return rc == 0 ? read_answer(r, a, deadline, err) : rc;
}

/* What a peer says to a password is not repeated: it may quote it. */
static int sign_in(struct redis *r, uint64_t deadline, struct sl_error *err)
{
    const struct sl_redis_url *u = &r->url;
    struct answer a;
    char text[AUTH_ROOM];
    int n;
    if (u->password[0] == '\0' && u->user[0] == '\0')
        return 0;
    if (u->user[0] == '\0')
        n = snprintf(text, sizeof text, "*2\r\n$4\r\nAUTH\r\n$%zu\r\n%s\r\n", strlen(u->password),
                     u->password);
    else
        n = snprintf(text, sizeof text, "*3\r\n$4\r\nAUTH\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n",
                     strlen(u->user), u->user, strlen(u->password), u->password);
    SL_ASSERT(n > 0 && n < (int)sizeof text);
    int rc = ask_status(r, text, (size_t)n, &a, deadline, err);
    memset(text, 0, sizeof text);
    if (rc == 0 && a.type != '+')
        rc = sl_fail(err, SL_EIO, "AUTH: the password is not accepted");
    return rc;
}

static int choose_db(struct redis *r, uint64_t deadline, struct sl_error *err)
{
    struct answer a;
    char text[COMMAND], db[16];
    if (r->url.db == 0)
        return 0;
    snprintf(db, sizeof db, "%d", r->url.db);
    int n = snprintf(text, sizeof text, "*2\r\n$6\r\nSELECT\r\n$%zu\r\n%s\r\n", strlen(db), db);
    SL_ASSERT(n > 0 && n < COMMAND);
    int rc = ask_status(r, text, (size_t)n, &a, deadline, err);
    return rc != 0 || a.type == '+' ? rc : unexpected(&a, "SELECT", err);
}

/* ---- the kind ---- */

static void redis_shut(void *conn)
{
    struct redis *r = conn;
    sl_wire_close(&r->wire);
}

static void redis_destroy(void *conn)
{
    struct redis *r = conn;
    if (r == NULL)
        return;
    redis_shut(r);
    memset(&r->url, 0, sizeof r->url);
    sl_free(r);
}

static int redis_create(const struct sl_store_config *cfg, void **conn, struct sl_error *err)
{
    struct redis *r = sl_calloc(1, sizeof *r);
    *conn = NULL;
    if (r == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a connection to a remote tier");
    r->wire.fd = -1;
    r->root = cfg->root;
    r->ttl_s = cfg->remote_ttl_s;
    int rc = sl_redis_url_parse(cfg->remote_url, &r->url, err);
    if (rc == 0 && r->url.password[0] == '\0' && cfg->remote_password != NULL) {
        if (strlen(cfg->remote_password) >= SL_REDIS_TEXT)
            rc = sl_fail(err, SL_EINVAL, "the password of the remote tier is longer than %d bytes",
                         SL_REDIS_TEXT - 1);
        else
            snprintf(r->url.password, sizeof r->url.password, "%s", cfg->remote_password);
    }
    if (rc != 0) {
        redis_destroy(r);
        return rc;
    }
    *conn = r;
    return 0;
}

static int redis_open(void *conn, uint64_t deadline, struct sl_error *err)
{
    struct redis *r = conn;
    int rc = sl_wire_open(&r->wire, r->url.host, r->url.port, deadline, err);
    if (rc == 0)
        rc = sign_in(r, deadline, err);
    return rc == 0 ? choose_db(r, deadline, err) : rc;
}

/* SET NX and GET: whoever is first decides, and a secret that was evicted is put back. */
static int redis_agree(void *conn, uint64_t *seed, uint64_t deadline, struct sl_error *err)
{
    struct redis *r = conn;
    struct answer a;
    char key[SL_REMOTE_KEY], text[2 * COMMAND], hex[16];
    int n_key = snprintf(key, sizeof key, "sluice:1:%016" PRIx64 "%016" PRIx64 ":secret",
                         r->root.hi, r->root.lo);
    int n = snprintf(text, sizeof text,
                     "*4\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$16\r\n%016" PRIx64 "\r\n$2\r\nNX\r\n"
                     "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n",
                     n_key, key, *seed, n_key, key);
    SL_ASSERT(n > 0 && n < (int)sizeof text);
    int rc = ask_status(r, text, (size_t)n, &a, deadline, err);
    if (rc == 0 && a.type != '+' && !(a.type == '$' && a.n == -1))
        return unexpected(&a, "SET", err);
    if (rc == 0)
        rc = read_answer(r, &a, deadline, err);
    if (rc == 0 && (a.type != '$' || a.n != (int64_t)sizeof hex))
        return a.type == '-' ? unexpected(&a, "GET", err)
                             : sl_fail(err, SL_EFORMAT, "the secret there is none");
    if (rc == 0)
        rc = sl_wire_read(&r->wire, hex, sizeof hex, deadline, err);
    if (rc == 0)
        rc = end_string(r, deadline, err);
    if (rc == 0 && !sl_parse_hex_u64(hex, sizeof hex, seed))
        rc = sl_fail(err, SL_EFORMAT, "the secret there is none");
    return rc;
}

/* Some questions at once. *missing: one of group `ends` is not there. */
static int probe_some(struct redis *r, const struct sl_store_key *keys, int32_t n, int32_t ends,
                      bool *found, bool *missing, uint64_t deadline, struct sl_error *err)
{
    size_t at = 0;
    struct answer a;
    SL_ASSERT(n <= ASK_BATCH);
    for (int32_t i = 0; i < n; i++) {
        if (!found[i])
            at += key_command(r, r->out + at, "EXISTS", &keys[i]);
    }
    int rc = at > 0 ? send_text(r, r->out, at, deadline, err) : 0;
    for (int32_t i = 0; rc == 0 && i < n; i++) {
        if (found[i])
            continue;
        rc = read_answer(r, &a, deadline, err);
        if (rc == 0 && a.type != ':')
            rc = unexpected(&a, "EXISTS", err);
        found[i] = rc == 0 && a.n == 1;
        *missing |= !found[i] && keys[i].group == ends;
    }
    return rc;
}

static int redis_probe(void *conn, const struct sl_store_key *keys, int32_t n, int32_t ends,
                       bool *found, uint64_t deadline, struct sl_error *err)
{
    bool missing = false;
    int rc = 0;
    for (int32_t i = 0; rc == 0 && i < n && !missing; i += ASK_BATCH)
        rc = probe_some(conn, keys + i, SL_MIN(n - i, ASK_BATCH), ends, found + i, &missing,
                        deadline, err);
    return rc;
}

/* A value of another length is read to its end, unless it is longer than any page. */
static int read_value(struct redis *r, struct sl_remote_page *p, uint64_t deadline,
                      struct sl_error *err)
{
    struct answer a;
    int rc = read_answer(r, &a, deadline, err);
    if (rc != 0)
        return rc;
    if (a.type == '-' && sl_starts_with(a.text, "WRONGTYPE")) {
        p->result = SL_REMOTE_BAD;
        return 0;
    }
    if (a.type != '$')
        return unexpected(&a, "GET", err);
    if (a.n == -1)
        return 0;
    if (a.n != (int64_t)(p->n_bytes + sizeof p->head)) {
        p->result = SL_REMOTE_BAD;
        if (a.n > (int64_t)SL_MAX_TIER_PAGE)
            return sl_fail(err, SL_EFORMAT, "GET: a value of %" PRId64 " bytes", a.n);
        rc = sl_wire_read(&r->wire, NULL, (size_t)a.n, deadline, err);
    } else {
        p->result = SL_REMOTE_DONE;
        rc = sl_wire_read(&r->wire, p->head, sizeof p->head, deadline, err);
        if (rc == 0)
            rc = sl_wire_read(&r->wire, p->bytes, p->n_bytes, deadline, err);
    }
    return rc == 0 ? end_string(r, deadline, err) : rc;
}

static int redis_get(void *conn, struct sl_remote_page *pages, int32_t n, uint64_t deadline,
                     struct sl_error *err)
{
    struct redis *r = conn;
    size_t at = 0;
    SL_ASSERT(n >= 1 && n <= SL_REMOTE_BATCH);
    for (int32_t i = 0; i < n; i++) {
        pages[i].result = SL_REMOTE_NONE;
        at += key_command(r, r->out + at, "GET", &pages[i].key);
    }
    int rc = send_text(r, r->out, at, deadline, err);
    for (int32_t i = 0; rc == 0 && i < n; i++)
        rc = read_value(r, &pages[i], deadline, err);
    return rc;
}

/* The four parts of "SET key value [EX seconds]". */
static size_t set_command(struct redis *r, char *out, struct iovec iov[4], struct sl_remote_page *p)
{
    char key[SL_REMOTE_KEY], ttl[16] = "";
    const size_t n_key = sl_remote_key(key, &r->root, &p->key);
    int n_ttl = snprintf(ttl, sizeof ttl, "%" PRIu32, r->ttl_s);
    int n = snprintf(out, COMMAND, "*%d\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n",
                     r->ttl_s > 0 ? 5 : 3, n_key, key, p->n_bytes + sizeof p->head);
    SL_ASSERT(n > 0 && n < COMMAND);
    char *end = out + n;
    int n_end = r->ttl_s == 0 ? snprintf(end, (size_t)(COMMAND - n), "\r\n")
                              : snprintf(end, (size_t)(COMMAND - n),
                                         "\r\n$2\r\nEX\r\n$%d\r\n%s\r\n", n_ttl, ttl);
    SL_ASSERT(n_end > 0 && n_end < COMMAND - n);
    iov[0] = (struct iovec){out, (size_t)n};
    iov[1] = (struct iovec){p->head, sizeof p->head};
    iov[2] = (struct iovec){p->bytes, p->n_bytes};
    iov[3] = (struct iovec){end, (size_t)n_end};
    return (size_t)(n + n_end);
}

static int redis_put(void *conn, struct sl_remote_page *pages, int32_t n, uint64_t deadline,
                     struct sl_error *err)
{
    struct redis *r = conn;
    struct answer a;
    size_t at = 0;
    SL_ASSERT(n >= 1 && n <= SL_REMOTE_BATCH);
    for (int32_t i = 0; i < n; i++) {
        pages[i].result = SL_REMOTE_REFUSED;
        at += set_command(r, r->out + at, &r->iov[4 * i], &pages[i]);
    }
    SL_ASSERT(at <= sizeof r->out);
    int rc = sl_wire_send(&r->wire, r->iov, 4 * n, deadline, err);
    for (int32_t i = 0; rc == 0 && i < n; i++) {
        rc = read_answer(r, &a, deadline, err);
        if (rc == 0 && a.type == '+')
            pages[i].result = SL_REMOTE_DONE;
        else if (rc == 0 && a.type != '-')
            rc = unexpected(&a, "SET", err);
        else if (rc == 0)
            (void)unexpected(&a, "SET", err); /* no memory, or a replica: for the log */
    }
    return rc;
}

static int redis_forget(void *conn, const struct sl_store_key *key, uint64_t deadline,
                        struct sl_error *err)
{
    struct redis *r = conn;
    struct answer a;
    const size_t n = key_command(r, r->out, "DEL", key);
    int rc = ask_status(r, r->out, n, &a, deadline, err);
    SL_ASSERT(n < COMMAND);
    return rc != 0 || a.type == ':' || a.type == '-' ? rc : unexpected(&a, "DEL", err);
}

const struct sl_remote_kind sl_remote_redis = {.name = "redis",
                                               .create = redis_create,
                                               .destroy = redis_destroy,
                                               .open = redis_open,
                                               .shut = redis_shut,
                                               .agree = redis_agree,
                                               .probe = redis_probe,
                                               .get = redis_get,
                                               .put = redis_put,
                                               .forget = redis_forget};
