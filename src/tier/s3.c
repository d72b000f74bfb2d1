/* SPDX-License-Identifier: MIT */
#include "tier/s3.h"

#include "base/check.h"
#include "base/curl.h"
#include "base/fs.h"
#include "base/str.h"
#include "base/sys.h"
#include "tier/s3_url.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MOST_URL    (SL_S3_BASE + 128)
#define MOST_HEADER 2304 /* bytes of one, with a session's token */
#define POLL_MS     1000
#define MOST_KEY    120 /* bytes of an identity, and of its secret */

enum verb { HEAD, GET, PUT, REMOVE };

struct transfer {
    CURL *easy;
    enum verb verb;
    uint8_t *head, *bytes; /* a value, in two parts; [n_head], [n_bytes] */
    size_t n_head, n_bytes, at;
    bool too_long;
    long status;
    const struct sl_curl *curl;
    char url[MOST_URL];
};

struct s3 {
    const struct sl_curl *curl;
    struct sl_hash128 root;
    struct sl_s3_url url;
    char user[256];
    char signs[128]; /* what libcurl signs for */
    CURLM *multi;
    struct curl_slist *headers, *once_headers; /* of all requests; of one that must be the first */
    struct transfer transfers[SL_REMOTE_BATCH];
};

/* ---- bytes of a value ---- */

/* The part of a value that begins at t->at, at most n bytes of it. */
static uint8_t *part(const struct transfer *t, size_t *n)
{
    const bool in_head = t->at < t->n_head;
    const size_t left = in_head ? t->n_head - t->at : t->n_head + t->n_bytes - t->at;
    SL_ASSERT(t->at <= t->n_head + t->n_bytes);
    *n = SL_MIN(*n, left);
    return in_head ? t->head + t->at : t->bytes + (t->at - t->n_head);
}

static size_t take(char *data, size_t size, size_t n, void *arg)
{
    struct transfer *t = arg;
    const size_t total = size * n;
    long status = 0;
    (void)t->curl->easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    if (t->verb != GET || status != 200)
        return total; /* of an error: nobody reads it */
    for (size_t done = 0, k; done < total; done += k) {
        k = total - done;
        uint8_t *to = part(t, &k);
        if (k == 0) {
            t->too_long = true;
            return 0; /* ends the transfer */
        }
        memcpy(to, data + done, k);
        t->at += k;
    }
    return total;
}

static size_t give(char *data, size_t size, size_t n, void *arg)
{
    struct transfer *t = arg;
    size_t done = 0;
    for (size_t k; done < size * n; done += k) {
        k = size * n - done;
        const uint8_t *from = part(t, &k);
        if (k == 0)
            break;
        memcpy(data + done, from, k);
        t->at += k;
    }
    return done;
}

/* ---- requests ---- */

static void set_up(struct s3 *s, struct transfer *t, enum verb verb, bool once)
{
    CURL *e = t->easy;
    const struct sl_curl *c = s->curl;
    c->easy_reset(e);
    t->verb = verb;
    t->at = 0;
    t->too_long = false;
    t->status = 0;
    (void)c->easy_setopt(e, CURLOPT_URL, t->url);
    (void)c->easy_setopt(e, CURLOPT_PRIVATE, t);
    (void)c->easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    (void)c->easy_setopt(e, CURLOPT_PROXY, "");
    (void)c->easy_setopt(e, CURLOPT_PROTOCOLS_STR,
                         sl_starts_with(s->url.base, "https:") ? "https" : "http");
    (void)c->easy_setopt(e, CURLOPT_USERPWD, s->user);
    (void)c->easy_setopt(e, CURLOPT_AWS_SIGV4, s->signs);
    (void)c->easy_setopt(e, CURLOPT_HTTPHEADER, once ? s->once_headers : s->headers);
    (void)c->easy_setopt(e, CURLOPT_WRITEFUNCTION, take);
    (void)c->easy_setopt(e, CURLOPT_WRITEDATA, t);
    (void)c->easy_setopt(e, CURLOPT_BUFFERSIZE, 512L << 10);
    if (verb == HEAD)
        (void)c->easy_setopt(e, CURLOPT_NOBODY, 1L);
    if (verb == REMOVE)
        (void)c->easy_setopt(e, CURLOPT_CUSTOMREQUEST, "DELETE");
    if (verb != PUT)
        return;
    (void)c->easy_setopt(e, CURLOPT_UPLOAD, 1L);
    /* Without the header "Expect", which libcurl would sign as one without a value. */
    (void)c->easy_setopt(e, CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);
    (void)c->easy_setopt(e, CURLOPT_UPLOAD_BUFFERSIZE, 512L << 10);
    (void)c->easy_setopt(e, CURLOPT_READFUNCTION, give);
    (void)c->easy_setopt(e, CURLOPT_READDATA, t);
    (void)c->easy_setopt(e, CURLOPT_INFILESIZE_LARGE, (curl_off_t)(t->n_head + t->n_bytes));
}

static void name_object(struct s3 *s, struct transfer *t, const struct sl_store_key *key)
{
    int n = snprintf(t->url, MOST_URL,
                     "%ssluice/1/%016" PRIx64 "%016" PRIx64 "/%d/%016" PRIx64 "%016" PRIx64,
                     s->url.base, s->root.hi, s->root.lo, key->group, key->name.hi, key->name.lo);
    SL_ASSERT(n > 0 && n < MOST_URL);
}

/* The ends of transfers that there are now. */
static int collect(struct s3 *s, int *n_open, struct sl_error *err)
{
    struct CURLMsg *m;
    int left, rc = 0;
    while ((m = s->curl->multi_info_read(s->multi, &left)) != NULL) {
        char *of = NULL;
        if (m->msg != CURLMSG_DONE)
            continue;
        (*n_open)--;
        (void)s->curl->easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &of);
        struct transfer *t = (struct transfer *)(void *)of;
        SL_ASSERT(t != NULL && t->easy == m->easy_handle);
        (void)s->curl->easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &t->status);
        if (m->data.result != CURLE_OK && !t->too_long)
            rc = sl_fail(err, SL_EIO, "%s", s->curl->easy_strerror(m->data.result));
    }
    return rc;
}

/* The first n transfers, at once. */
static int run(struct s3 *s, int n, uint64_t deadline, struct sl_error *err)
{
    int n_open = n, running, rc = 0;
    SL_ASSERT(n >= 0 && n <= SL_REMOTE_BATCH);
    for (int i = 0; i < n; i++)
        (void)s->curl->multi_add_handle(s->multi, s->transfers[i].easy);
    while (n_open > 0 && rc == 0) {
        const uint64_t now = sl_now_ns();
        if (now >= deadline) {
            rc = sl_fail(err, SL_ETIMEOUT, "no answer in time");
            break;
        }
        const int ms = (int)SL_MIN((deadline - now) / 1000000 + 1, POLL_MS);
        if (s->curl->multi_perform(s->multi, &running) != CURLM_OK)
            rc = sl_fail(err, SL_EIO, "libcurl cannot go on");
        if (rc == 0)
            rc = collect(s, &n_open, err);
        if (rc == 0 && n_open > 0 && s->curl->multi_poll(s->multi, NULL, 0, ms, NULL) != CURLM_OK)
            rc = sl_fail(err, SL_EIO, "libcurl cannot wait");
    }
    for (int i = 0; i < n; i++)
        (void)s->curl->multi_remove_handle(s->multi, s->transfers[i].easy);
    return rc;
}

static int unexpected(const char *what, const struct transfer *t, struct sl_error *err)
{
    return sl_fail(err, SL_EIO, "%s: HTTP status %ld%s", what, t->status,
                   t->status == 403 ? ", see the keys and what they may do" : "");
}

/* ---- the kind ---- */

static void s3_shut(void *conn)
{
    (void)conn; /* libcurl closes what is broken */
}

static void s3_destroy(void *conn)
{
    struct s3 *s = conn;
    if (s == NULL)
        return;
    for (int i = 0; i < SL_REMOTE_BATCH && s->curl != NULL; i++) {
        if (s->transfers[i].easy != NULL)
            s->curl->easy_cleanup(s->transfers[i].easy);
    }
    if (s->multi != NULL)
        (void)s->curl->multi_cleanup(s->multi);
    if (s->curl != NULL) {
        s->curl->slist_free_all(s->headers);
        s->curl->slist_free_all(s->once_headers);
    }
    memset(s->user, 0, sizeof s->user);
    sl_free(s);
}

static bool add_header(struct s3 *s, struct curl_slist **list, const char *text)
{
    struct curl_slist *longer = s->curl->slist_append(*list, text);
    *list = longer != NULL ? longer : *list;
    return longer != NULL;
}

static int make_headers(struct s3 *s, struct sl_error *err)
{
    const char *token = sl_environment("AWS_SESSION_TOKEN");
    char text[MOST_HEADER];
    bool good = true;
    int n = snprintf(text, sizeof text, "x-amz-security-token: %s", token != NULL ? token : "");
    if (n >= MOST_HEADER)
        return sl_fail(err, SL_EINVAL, "AWS_SESSION_TOKEN: is longer than any");
    for (int i = 0; i < 2; i++) {
        struct curl_slist **list = i == 0 ? &s->headers : &s->once_headers;
        good &= add_header(s, list, "x-amz-content-sha256: UNSIGNED-PAYLOAD") &&
                (token == NULL || add_header(s, list, text));
    }
    good = good && add_header(s, &s->once_headers, "If-None-Match: *");
    return good ? 0 : sl_fail(err, SL_ENOMEM, "out of memory for requests to a bucket");
}

static int find_keys(struct s3 *s, struct sl_error *err)
{
    const char *id = sl_environment("AWS_ACCESS_KEY_ID");
    const char *secret = sl_environment("AWS_SECRET_ACCESS_KEY");
    if (id == NULL || secret == NULL || strlen(id) > MOST_KEY || strlen(secret) > MOST_KEY ||
        strchr(id, ':') != NULL)
        return sl_fail(err, SL_EINVAL,
                       "kv-remote-url: a bucket needs AWS_ACCESS_KEY_ID and "
                       "AWS_SECRET_ACCESS_KEY in the environment");
    snprintf(s->user, sizeof s->user, "%.120s:%.120s", id, secret);
    snprintf(s->signs, sizeof s->signs, "aws:amz:%s:s3", s->url.region);
    return 0;
}

static int s3_create(const struct sl_store_config *cfg, void **conn, struct sl_error *err)
{
    struct s3 *s = sl_calloc(1, sizeof *s);
    *conn = NULL;
    if (s == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for requests to a bucket");
    s->root = cfg->root;
    int rc = sl_s3_url_parse(cfg->remote_url, &s->url, err);
    if (rc == 0)
        rc = sl_curl_load(&s->curl, err);
    if (rc != 0)
        s->curl = NULL;
    if (rc == 0)
        rc = find_keys(s, err);
    if (rc == 0)
        rc = make_headers(s, err);
    bool good = rc == 0 && (s->multi = s->curl->multi_init()) != NULL;
    for (int i = 0; i < SL_REMOTE_BATCH && good; i++) {
        s->transfers[i].curl = s->curl;
        s->transfers[i].easy = s->curl->easy_init();
        good = s->transfers[i].easy != NULL;
    }
    if (rc == 0 && !good)
        rc = sl_fail(err, SL_ENOMEM, "out of memory for requests to a bucket");
    if (rc != 0)
        s3_destroy(s);
    else
        *conn = s;
    return rc;
}

static int s3_open(void *conn, uint64_t deadline, struct sl_error *err)
{
    (void)conn; /* the first request connects */
    (void)deadline;
    (void)err;
    return 0;
}

/* One request for the secret: its text is the value. */
static int secret(struct s3 *s, enum verb verb, char text[16], uint64_t deadline,
                  struct sl_error *err)
{
    struct transfer *t = &s->transfers[0];
    int n = snprintf(t->url, MOST_URL, "%ssluice/1/%016" PRIx64 "%016" PRIx64 "/secret",
                     s->url.base, s->root.hi, s->root.lo);
    SL_ASSERT(n > 0 && n < MOST_URL);
    t->head = (uint8_t *)text;
    t->n_head = 16;
    t->bytes = NULL;
    t->n_bytes = 0;
    set_up(s, t, verb, verb == PUT);
    return run(s, 1, deadline, err);
}

/* Who finds none puts its own, unless one is there by then; what is there decides. */
static int s3_agree(void *conn, uint64_t *seed, uint64_t deadline, struct sl_error *err)
{
    struct s3 *s = conn;
    const struct transfer *t = &s->transfers[0];
    char text[17];
    int rc = secret(s, GET, text, deadline, err);
    if (rc == 0 && t->status == 404) {
        snprintf(text, sizeof text, "%016" PRIx64, *seed);
        rc = secret(s, PUT, text, deadline, err);
        if (rc == 0 && t->status != 200 && t->status != 409 && t->status != 412)
            return unexpected("PUT", t, err);
        if (rc == 0)
            rc = secret(s, GET, text, deadline, err);
    }
    if (rc == 0 && t->status != 200)
        return unexpected("GET", t, err);
    if (rc == 0 && (t->too_long || t->at != 16 || !sl_parse_hex_u64(text, 16, seed)))
        rc = sl_fail(err, SL_EFORMAT, "the secret there is none");
    return rc;
}

/* What was found by the deadline counts, as an object takes some ms each. */
static int s3_probe(void *conn, const struct sl_store_key *keys, int32_t n, int32_t ends,
                    bool *found, uint64_t deadline, struct sl_error *err)
{
    struct s3 *s = conn;
    int32_t of[SL_REMOTE_BATCH];
    bool missing = false;
    for (int32_t i = 0, k; i < n && !missing;) {
        for (k = 0; i < n && k < SL_REMOTE_BATCH; i++) {
            if (found[i])
                continue;
            name_object(s, &s->transfers[k], &keys[i]);
            set_up(s, &s->transfers[k], HEAD, false);
            of[k++] = i;
        }
        int rc = run(s, k, deadline, err);
        if (rc == SL_ETIMEOUT && i > SL_REMOTE_BATCH)
            return 0;
        for (int32_t j = 0; j < k && rc == 0; j++) {
            const struct transfer *t = &s->transfers[j];
            if (t->status != 200 && t->status != 404)
                rc = unexpected("HEAD", t, err);
            found[of[j]] = t->status == 200;
            missing |= t->status != 200 && keys[of[j]].group == ends;
        }
        if (rc != 0)
            return rc;
    }
    return 0;
}

static void set_page(struct s3 *s, int32_t i, struct sl_remote_page *p, enum verb verb)
{
    struct transfer *t = &s->transfers[i];
    name_object(s, t, &p->key);
    t->head = p->head;
    t->n_head = sizeof p->head;
    t->bytes = p->bytes;
    t->n_bytes = p->n_bytes;
    set_up(s, t, verb, false);
}

static int s3_get(void *conn, struct sl_remote_page *pages, int32_t n, uint64_t deadline,
                  struct sl_error *err)
{
    struct s3 *s = conn;
    SL_ASSERT(n >= 1 && n <= SL_REMOTE_BATCH);
    for (int32_t i = 0; i < n; i++) {
        pages[i].result = SL_REMOTE_NONE;
        set_page(s, i, &pages[i], GET);
    }
    int rc = run(s, n, deadline, err);
    for (int32_t i = 0; i < n && rc == 0; i++) {
        const struct transfer *t = &s->transfers[i];
        const bool whole = !t->too_long && t->at == t->n_head + t->n_bytes;
        if (t->status == 200)
            pages[i].result = whole ? SL_REMOTE_DONE : SL_REMOTE_BAD;
        else if (t->status != 404)
            rc = unexpected("GET", t, err);
    }
    return rc;
}

static int s3_put(void *conn, struct sl_remote_page *pages, int32_t n, uint64_t deadline,
                  struct sl_error *err)
{
    struct s3 *s = conn;
    SL_ASSERT(n >= 1 && n <= SL_REMOTE_BATCH);
    for (int32_t i = 0; i < n; i++) {
        pages[i].result = SL_REMOTE_REFUSED;
        set_page(s, i, &pages[i], PUT);
    }
    int rc = run(s, n, deadline, err);
    for (int32_t i = 0; i < n && rc == 0; i++) {
        if (s->transfers[i].status == 200)
            pages[i].result = SL_REMOTE_DONE;
        else
            (void)unexpected("PUT", &s->transfers[i], err); /* for the log */
    }
    return rc;
}

static int s3_forget(void *conn, const struct sl_store_key *key, uint64_t deadline,
                     struct sl_error *err)
{
    struct s3 *s = conn;
    name_object(s, &s->transfers[0], key);
    set_up(s, &s->transfers[0], REMOVE, false);
    return run(s, 1, deadline, err);
}

const struct sl_remote_kind sl_remote_s3 = {.name = "s3",
                                            .create = s3_create,
                                            .destroy = s3_destroy,
                                            .open = s3_open,
                                            .shut = s3_shut,
                                            .agree = s3_agree,
                                            .probe = s3_probe,
                                            .get = s3_get,
                                            .put = s3_put,
                                            .forget = s3_forget};
