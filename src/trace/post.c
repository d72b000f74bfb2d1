/* SPDX-License-Identifier: MIT */
#include "trace/post.h"

#include "base/check.h"
#include "base/curl.h"
#include "base/json_load.h"
#include "base/str.h"
#include "base/sys.h"
#include "sluice.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_REPLY    (64u << 10) /* more of it is not read */
#define MAX_WAIT_MS  1000        /* between looks at the limit */
#define MAX_RETRY_S  3600
#define CONNECTS_FOR 5 /* seconds, at most */

struct sl_post {
    const struct sl_trace_settings *settings;
    const struct sl_curl *curl;
    CURLM *multi;
    CURL *easy;
    struct curl_slist *headers;
    struct sl_buf reply;
    char error[CURL_ERROR_SIZE];
};

/* Takes all, keeps the beginning: a reply that is too long is no reason to fail. */
static size_t post_on_data(char *data, size_t size, size_t n, void *arg)
{
    struct sl_post *p = arg;
    SL_ASSERT(size == 1 && p->reply.n_bytes <= MAX_REPLY);
    sl_buf_put(&p->reply, data, SL_MIN(n, MAX_REPLY - p->reply.n_bytes));
    return n;
}

static bool add_header(struct sl_post *p, const char *line)
{
    struct curl_slist *longer = p->curl->slist_append(p->headers, line);
    if (longer != NULL)
        p->headers = longer;
    return longer != NULL;
}

static int make_headers(struct sl_post *p, struct sl_error *err)
{
    /* Without "Expect:" libcurl waits for the collector's leave before it sends a large body. */
    bool ok = add_header(p, "Content-Type: application/json") && add_header(p, "Expect:");
    for (int i = 0; ok && i < p->settings->n_headers; i++)
        ok = add_header(p, p->settings->headers[i]);
    SL_ASSERT(!ok || p->headers != NULL);
    return ok ? 0 : sl_fail(err, SL_ENOMEM, "out of memory");
}

static void post_set_options(struct sl_post *p)
{
    const struct sl_curl *c = p->curl;
    const struct sl_trace_settings *s = p->settings;
    long timeout_ms = s->timeout_ms;
    c->easy_setopt(p->easy, CURLOPT_URL, s->endpoint);
    c->easy_setopt(p->easy, CURLOPT_USERAGENT, "OTel-OTLP-Exporter-C/" SLUICE_VERSION " sluice");
    c->easy_setopt(p->easy, CURLOPT_NOSIGNAL, 1L);
    c->easy_setopt(p->easy, CURLOPT_PROTOCOLS_STR, "https,http");
    c->easy_setopt(p->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    c->easy_setopt(p->easy, CURLOPT_TIMEOUT_MS, timeout_ms);
    c->easy_setopt(p->easy, CURLOPT_CONNECTTIMEOUT_MS, SL_MIN(timeout_ms, CONNECTS_FOR * 1000L));
    c->easy_setopt(p->easy, CURLOPT_HTTPHEADER, p->headers);
    c->easy_setopt(p->easy, CURLOPT_WRITEFUNCTION, post_on_data);
    c->easy_setopt(p->easy, CURLOPT_WRITEDATA, (void *)p);
    c->easy_setopt(p->easy, CURLOPT_ERRORBUFFER, p->error);
    /* A resolver that hangs does not hold up the end of the process; older libcurls have no such
     * option and say so to nobody. */
    c->easy_setopt(p->easy, CURLOPT_QUICK_EXIT, 1L);
    if (s->ca_file != NULL)
        c->easy_setopt(p->easy, CURLOPT_CAINFO, s->ca_file);
    if (s->cert_file != NULL)
        c->easy_setopt(p->easy, CURLOPT_SSLCERT, s->cert_file);
    if (s->key_file != NULL)
        c->easy_setopt(p->easy, CURLOPT_SSLKEY, s->key_file);
}

int sl_post_create(const struct sl_trace_settings *settings, struct sl_post **out,
                   struct sl_error *err)
{
    struct sl_post *p = sl_calloc(1, sizeof *p);
    *out = p;
    if (p == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    p->settings = settings;
    int rc = sl_curl_load(&p->curl, err);
    if (rc != 0) {
        sl_free(p);
        *out = NULL;
        return sl_error_prefix(err, rc, "traces");
    }
    p->multi = p->curl->multi_init();
    p->easy = p->curl->easy_init();
    rc = p->multi != NULL && p->easy != NULL ? make_headers(p, err)
                                             : sl_fail(err, SL_ENOMEM, "out of memory");
    if (rc == 0)
        post_set_options(p);
    if (rc != 0) {
        sl_post_destroy(p);
        *out = NULL;
    }
    return rc;
}

void sl_post_destroy(struct sl_post *p)
{
    if (p == NULL)
        return;
    if (p->easy != NULL)
        p->curl->easy_cleanup(p->easy);
    if (p->multi != NULL)
        p->curl->multi_cleanup(p->multi);
    p->curl->slist_free_all(p->headers);
    sl_buf_deinit(&p->reply);
    sl_free(p);
}

/* ---- replies */

static void copy_why(struct sl_post_reply *reply, const char *text)
{
    size_t n = 0;
    for (const char *s = text; *s != '\0' && n + 1 < sizeof reply->why; s++)
        reply->why[n++] = (unsigned char)*s < 0x20 || *s == 0x7f ? ' ' : *s; /* one line of a log */
    reply->why[n] = '\0';
    SL_ASSERT(n < sizeof reply->why);
}

/* {"partialSuccess": {"rejectedSpans": "3", "errorMessage": "..."}}; numbers of 64 bits are strings
 * in this mapping, and both are allowed. */
void sl_post_read_reply(const char *body, size_t n, struct sl_post_reply *reply)
{
    json_error_t why;
    json_t *root = n > 0 && n < MAX_REPLY ? sl_json_load(body, n, 0, &why) : NULL;
    const json_t *partial = json_object_get(root, "partialSuccess");
    const json_t *count = json_object_get(partial, "rejectedSpans");
    const char *message = json_string_value(json_object_get(partial, "errorMessage"));
    int64_t rejected = json_integer_value(count);
    SL_ASSERT(reply->n_rejected == 0);
    if (json_is_string(count) &&
        !sl_parse_i64(json_string_value(count), json_string_length(count), &rejected))
        rejected = 0;
    reply->n_rejected = SL_MAX(rejected, 0);
    SL_ASSERT(root != NULL || reply->n_rejected == 0);
    if (message != NULL)
        copy_why(reply, message);
    json_decref(root);
}

static enum sl_post_end read_status(struct sl_post *p, struct sl_post_reply *reply)
{
    long status = 0;
    curl_off_t wait_s = 0;
    p->curl->easy_getinfo(p->easy, CURLINFO_RESPONSE_CODE, &status);
    SL_ASSERT(status >= 0);
    SL_ASSERT(p->reply.n_bytes <= MAX_REPLY);
    if (status >= 200 && status < 300) {
        if (sl_buf_ok(&p->reply) && p->reply.n_bytes > 0)
            sl_post_read_reply(p->reply.data, p->reply.n_bytes, reply);
        return SL_POST_DONE;
    }
    snprintf(reply->why, sizeof reply->why, "the collector answered %ld", status);
    if (status != 429 && status != 502 && status != 503 && status != 504)
        return SL_POST_REFUSED;
    p->curl->easy_getinfo(p->easy, CURLINFO_RETRY_AFTER, &wait_s);
    reply->retry_after_s = (int64_t)SL_MIN(SL_MAX(wait_s, 0), MAX_RETRY_S);
    return SL_POST_RETRY;
}

static enum sl_post_end read_end(struct sl_post *p, CURLcode code, struct sl_post_reply *reply)
{
    SL_ASSERT(reply->why[0] == '\0' && reply->n_rejected == 0);
    if (code == CURLE_OK)
        return read_status(p, reply);
    copy_why(reply, p->error[0] != '\0' ? p->error : p->curl->easy_strerror(code));
    switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
        return SL_POST_REFUSED;
    default:
        return SL_POST_RETRY;
    }
}

/* ---- sending */

static bool is_over(struct sl_post *p, CURLcode *code)
{
    int n_left;
    for (CURLMsg *m; (m = p->curl->multi_info_read(p->multi, &n_left)) != NULL;) {
        if (m->msg != CURLMSG_DONE)
            continue;
        SL_ASSERT(m->easy_handle == p->easy);
        *code = m->data.result;
        return true;
    }
    return false;
}

static enum sl_post_end post_run(struct sl_post *p, int wake_fd, uint64_t (*limit)(void *arg),
                                 void *arg, struct sl_post_reply *reply)
{
    struct curl_waitfd wake = {.fd = wake_fd, .events = CURL_WAIT_POLLIN};
    unsigned n_wake = 1;
    for (;;) {
        int n_running;
        CURLcode code = CURLE_OK;
        CURLMcode rc = p->curl->multi_perform(p->multi, &n_running);
        if (rc == CURLM_OK && is_over(p, &code))
            return read_end(p, code, reply);
        uint64_t now = sl_now_ns(), until = limit(arg);
        if (now >= until) {
            copy_why(reply, "no time was left");
            return SL_POST_LATE;
        }
        uint64_t wait_ms = SL_MIN((until - now) / 1000000 + 1, MAX_WAIT_MS);
        wake.revents = 0;
        if (rc == CURLM_OK)
            rc = p->curl->multi_poll(p->multi, &wake, n_wake, (int)wait_ms, NULL);
        if (rc != CURLM_OK) {
            copy_why(reply, p->curl->multi_strerror(rc));
            return SL_POST_RETRY;
        }
        if (wake.revents != 0) /* it stays readable: it has said what it had to say */
            n_wake = 0;
    }
}

enum sl_post_end sl_post_send(struct sl_post *p, const char *body, size_t n, int wake_fd,
                              uint64_t (*limit)(void *arg), void *arg, struct sl_post_reply *reply)
{
    SL_ASSERT(n > 0 && n <= LONG_MAX);
    *reply = (struct sl_post_reply){0};
    sl_buf_clear(&p->reply);
    p->error[0] = '\0';
    p->curl->easy_setopt(p->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)n);
    p->curl->easy_setopt(p->easy, CURLOPT_POSTFIELDS, body); /* not copied */
    CURLMcode rc = p->curl->multi_add_handle(p->multi, p->easy);
    if (rc != CURLM_OK) {
        copy_why(reply, p->curl->multi_strerror(rc));
        return SL_POST_RETRY;
    }
    enum sl_post_end end = post_run(p, wake_fd, limit, arg, reply);
    p->curl->multi_remove_handle(p->multi, p->easy);
    return end;
}
