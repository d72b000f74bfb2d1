/* SPDX-License-Identifier: MIT
 *
 * One transfer: its files, its callbacks, and what to make of its end.
 */
#include "base/check.h"
#include "base/fs.h"
#include "base/str.h"
#include "base/sys.h"
#include "hub/fetch.h"
#include "sluice.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define MAX_TRIES     5 /* in a row that bring nothing */
#define FIRST_WAIT_MS 250u
#define MAX_WAIT_MS   30000u
#define MAX_ASKED_S   300 /* a server that asks for more is told to the user instead */
#define LOCK_WAIT_MS  200u
#define CONNECT_S     15L
#define MAX_REDIRECTS 10L
#define MAX_BODY      (64u << 20)
#define READ_BYTES    (256u << 10)

static uint64_t after_ms(uint64_t ms)
{
    return sl_now_ns() + ms * 1000000u;
}

/* ---- headers */

static bool is_header(const char *line, size_t n, const char *name, const char **value,
                      size_t *n_value)
{
    size_t at = strlen(name);
    SL_DCHECK(at > 0);
    if (n <= at || strncasecmp(line, name, at) != 0 || line[at] != ':')
        return false;
    at++;
    while (at < n && (line[at] == ' ' || line[at] == '\t'))
        at++;
    while (n > at && (line[n - 1] == '\n' || line[n - 1] == '\r' || line[n - 1] == ' '))
        n--;
    SL_DCHECK(at <= n);
    *value = line + at;
    *n_value = n - at;
    return true;
}

/* Printable ASCII, cut to what fits. */
static void take_text(char *out, size_t n_out, const char *s, size_t n)
{
    size_t k = 0;
    SL_ASSERT(n_out > 0);
    for (size_t i = 0; i < n && k + 1 < n_out; i++)
        out[k++] = s[i] >= 0x20 && s[i] < 0x7F ? s[i] : '?';
    SL_ASSERT(k < n_out);
    out[k] = '\0';
}

/* The tag without quotes and weakness, empty when it could not be a file's name. */
static void take_tag(char out[SL_HUB_ID_BYTES + 1], const char *s, size_t n)
{
    if (n >= 2 && s[0] == 'W' && s[1] == '/') {
        s += 2;
        n -= 2;
    }
    if (n >= 2 && s[0] == '"' && s[n - 1] == '"') {
        s++;
        n -= 2;
    }
    out[0] = '\0';
    if (n == 0 || n > SL_HUB_ID_BYTES || s[0] == '.')
        return;
    for (size_t i = 0; i < n; i++) {
        if (!((s[i] >= '0' && s[i] <= '9') || ((s[i] | 32) >= 'a' && (s[i] | 32) <= 'z') ||
              s[i] == '-' || s[i] == '_' || s[i] == '.'))
            return;
    }
    SL_ASSERT(n <= SL_HUB_ID_BYTES && memchr(s, '/', n) == NULL);
    memcpy(out, s, n);
    out[n] = '\0';
}

void sl_fetch_header_line(struct sl_fetch_headers *h, const char *line, size_t n)
{
    const char *v;
    size_t n_v;
    SL_ASSERT(line != NULL || n == 0);
    if (n >= 5 && memcmp(line, "HTTP/", 5) == 0) { /* the next reply of a chain of redirects */
        h->has_range = false;
        h->etag[0] = h->error_code[0] = h->error_message[0] = '\0';
    } else if (is_header(line, n, "etag", &v, &n_v)) {
        take_tag(h->etag, v, n_v);
    } else if (is_header(line, n, "x-linked-etag", &v, &n_v) && h->linked_etag[0] == '\0') {
        take_tag(h->linked_etag, v, n_v);
    } else if (is_header(line, n, "x-linked-size", &v, &n_v) && !h->has_linked_size) {
        h->has_linked_size = sl_parse_u64(v, n_v, &h->linked_size);
    } else if (is_header(line, n, "x-repo-commit", &v, &n_v) && n_v == 40) {
        take_text(h->commit, sizeof h->commit, v, n_v);
    } else if (is_header(line, n, "x-error-code", &v, &n_v)) {
        take_text(h->error_code, sizeof h->error_code, v, n_v);
    } else if (is_header(line, n, "x-error-message", &v, &n_v)) {
        take_text(h->error_message, sizeof h->error_message, v, n_v);
    } else if (is_header(line, n, "content-range", &v, &n_v)) {
        const char *dash = memchr(v, '-', n_v);
        h->has_range = n_v > 6 && strncasecmp(v, "bytes ", 6) == 0 && dash != NULL &&
                       sl_parse_u64(v + 6, (size_t)(dash - v) - 6, &h->range_start);
    }
}

static size_t on_header(char *data, size_t size, size_t n, void *arg)
{
    struct sl_fetch_job *job = arg;
    sl_fetch_header_line(&job->headers, data, size * n);
    return size * n;
}

/* ---- the partial file */

static int no_space(const struct sl_fetch_job *job, struct sl_error *err)
{
    uint64_t n_free = sl_free_bytes(job->partial_path);
    return sl_fail(err, SL_EIO,
                   "no space left for %.80s: %.1f of %.1f MB are here and kept, %.1f MB are free "
                   "in the cache's file system",
                   job->label, (double)job->at / 1e6, (double)job->n_bytes / 1e6,
                   n_free != UINT64_MAX ? (double)n_free / 1e6 : 0.0);
}

static int open_partial(struct sl_fetch_job *job, bool empty, struct sl_error *err)
{
    if (job->fd >= 0)
        sl_sys->close(job->fd);
    job->fd =
        sl_sys->open(job->partial_path, O_RDWR | O_CREAT | O_APPEND | (empty ? O_TRUNC : 0), 0644);
    int64_t size = job->fd >= 0 ? sl_sys->file_size(job->fd) : -1;
    if (size < 0)
        return sl_fail(err, SL_EIO, "%.150s: %s", job->partial_path, strerror(errno));
    job->at = (uint64_t)size;
    sl_digest_begin(&job->digest, sl_digest_kind_of(job->id), job->n_bytes);
    return 0;
}

/* The bytes that an earlier attempt, or process, left. */
static int digest_partial(struct sl_fetch_job *job, struct sl_error *err)
{
    char *buf = sl_malloc(READ_BYTES);
    SL_ASSERT(job->fd >= 0);
    int rc = buf != NULL ? 0 : sl_fail(err, SL_ENOMEM, "%.80s: out of memory", job->label);
    for (uint64_t at = 0; rc == 0 && at < job->at;) {
        ssize_t got = sl_sys->pread(job->fd, buf, READ_BYTES, (int64_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            rc = sl_fail(err, SL_EIO, "%.150s: %s", job->partial_path,
                         got < 0 ? strerror(errno) : "became shorter");
            break;
        }
        sl_digest_put(&job->digest, buf, (size_t)got);
        at += (uint64_t)got;
    }
    sl_free(buf);
    return rc;
}

static size_t fetch_job_store(struct sl_fetch_job *job, const char *data, size_t n)
{
    SL_ASSERT(job->fd >= 0 && job->lock_fd >= 0); /* nobody else writes this file */
    if (job->sized && n > job->n_bytes - SL_MIN(job->at, job->n_bytes)) {
        sl_fail(&job->error, SL_EFORMAT, "received more than the expected %llu bytes",
                (unsigned long long)job->n_bytes);
        return 0;
    }
    if (sl_write_all(job->fd, data, n, &job->error) != 0) {
        int64_t size = sl_sys->file_size(job->fd); /* a part may have been written */
        bool full = strstr(job->error.msg, strerror(ENOSPC)) != NULL ||
                    strstr(job->error.msg, strerror(EDQUOT)) != NULL;
        job->at = size >= 0 ? (uint64_t)size : job->at;
        if (full)
            no_space(job, &job->error);
        return 0;
    }
    sl_digest_put(&job->digest, data, n);
    job->at += n;
    SL_DCHECK(!job->sized || job->at <= job->n_bytes);
    return n;
}

static size_t fetch_job_on_data(char *data, size_t size, size_t n, void *arg)
{
    struct sl_fetch_job *job = arg;
    long status = 0;
    SL_ASSERT(job->state == SL_FETCH_RUNNING && !job->head);
    n *= size;
    job->fetch->curl->easy_getinfo(job->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 && status != 206)
        return 0; /* a page about an error: the status says enough */
    if (job->path == NULL) {
        sl_buf_put(&job->body, data, n);
        return sl_buf_ok(&job->body) ? n : 0;
    }
    if (!job->began) {
        job->began = true;
        /* A server may ignore that only the rest was asked for. */
        if (status == 200 && job->at > 0 && open_partial(job, true, &job->error) != 0)
            return 0;
        if (status == 206 && (!job->headers.has_range || job->headers.range_start != job->at)) {
            sl_fail(&job->error, SL_EFORMAT, "the server sent another range than requested");
            return 0;
        }
    }
    return fetch_job_store(job, data, n);
}

/* ---- start */

bool sl_fetch_has(const char *path, bool sized, uint64_t n_bytes)
{
    uint64_t n;
    return sl_file_bytes(path, &n) && (!sized || n == n_bytes);
}

static int prepare_file(struct sl_fetch_job *job, struct sl_error *err)
{
    if (job->lock_fd < 0) {
        int rc = sl_try_lock(job->lock_path, &job->lock_fd, err);
        if (rc < 0)
            return rc;
        job->retry_ns = after_ms(LOCK_WAIT_MS);
        if (rc == 0)
            return 0;
        if (sl_fetch_has(job->path, job->sized, job->n_bytes)) { /* by who had the lock */
            uint64_t n;
            job->at = job->best = sl_file_bytes(job->path, &n) ? n : 0;
            job->state = SL_FETCH_DONE;
            return 0;
        }
    }
    if (job->fd >= 0)
        return 1;
    int rc = open_partial(job, false, err);
    if (rc == 0 && job->sized && job->at > job->n_bytes)
        rc = open_partial(job, true, err);
    if (rc == 0)
        rc = digest_partial(job, err);
    job->best = job->at;
    return rc == 0 ? 1 : rc;
}

static void fetch_job_set_options(struct sl_fetch_job *job)
{
    const struct sl_curl *c = job->fetch->curl;
    const struct sl_fetch_options *opt = job->fetch->opt;
    bool secure = strncasecmp(job->url, "https:", 6) == 0;
    char range[32];
    c->easy_setopt(job->easy, CURLOPT_URL, job->url);
    c->easy_setopt(job->easy, CURLOPT_PRIVATE, (void *)job);
    c->easy_setopt(job->easy, CURLOPT_USERAGENT, "sluice/" SLUICE_VERSION);
    c->easy_setopt(job->easy, CURLOPT_NOSIGNAL, 1L);
    c->easy_setopt(job->easy, CURLOPT_PROTOCOLS_STR, "https,http");
    /* A token or a model that was asked for in secret does not go on in the open. */
    c->easy_setopt(job->easy, CURLOPT_REDIR_PROTOCOLS_STR, secure ? "https" : "https,http");
    c->easy_setopt(job->easy, CURLOPT_FOLLOWLOCATION, 1L);
    c->easy_setopt(job->easy, CURLOPT_MAXREDIRS, MAX_REDIRECTS);
    c->easy_setopt(job->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    c->easy_setopt(job->easy, CURLOPT_CONNECTTIMEOUT, CONNECT_S);
    c->easy_setopt(job->easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    c->easy_setopt(job->easy, CURLOPT_LOW_SPEED_TIME, (long)opt->silence_s);
    c->easy_setopt(job->easy, CURLOPT_BUFFERSIZE, (long)READ_BYTES);
    c->easy_setopt(job->easy, CURLOPT_HTTPHEADER, job->send_headers);
    c->easy_setopt(job->easy, CURLOPT_HEADERFUNCTION, on_header);
    c->easy_setopt(job->easy, CURLOPT_HEADERDATA, (void *)job);
    c->easy_setopt(job->easy, CURLOPT_WRITEFUNCTION, fetch_job_on_data);
    c->easy_setopt(job->easy, CURLOPT_WRITEDATA, (void *)job);
    if (opt->ca_file != NULL)
        c->easy_setopt(job->easy, CURLOPT_CAINFO, opt->ca_file);
    if (job->head)
        c->easy_setopt(job->easy, CURLOPT_NOBODY, 1L);
    if (job->path != NULL && job->at > 0) {
        snprintf(range, sizeof range, "%llu-", (unsigned long long)job->at);
        c->easy_setopt(job->easy, CURLOPT_RANGE, range); /* copied */
    }
}

static int prepare_handle(struct sl_fetch_job *job, struct sl_error *err)
{
    const struct sl_curl *c = job->fetch->curl;
    const char *token = job->fetch->opt->token;
    struct sl_buf b = {0};
    SL_ASSERT(token == NULL || strpbrk(token, "\r\n") == NULL);
    if (job->easy == NULL)
        job->easy = c->easy_init();
    else
        c->easy_reset(job->easy);
    if (job->easy != NULL && token != NULL && job->send_headers == NULL) {
        sl_buf_printf(&b, "Authorization: Bearer %s", token);
        job->send_headers = sl_buf_ok(&b) ? c->slist_append(NULL, b.data) : NULL;
        sl_buf_deinit(&b);
    }
    if (job->easy == NULL || (token != NULL && job->send_headers == NULL))
        return sl_fail(err, SL_ENOMEM, "%.80s: out of memory", job->label);
    return 0;
}

int sl_fetch_job_start(struct sl_fetch_job *job, struct sl_error *err)
{
    SL_ASSERT(job->state == SL_FETCH_QUEUED && (job->path == NULL || !job->head));
    if (job->path != NULL) {
        int rc = prepare_file(job, err);
        job->waits = rc == 0 && job->state == SL_FETCH_QUEUED;
        if (rc <= 0)
            return rc;
        if (job->sized && job->at == job->n_bytes) { /* only the rename was missing */
            job->state = SL_FETCH_RUNNING;
            return sl_fetch_job_end(job, CURLE_OK, err);
        }
    }
    int rc = prepare_handle(job, err);
    if (rc != 0)
        return rc;
    sl_buf_clear(&job->body);
    job->body.max_bytes = MAX_BODY;
    SL_ASSERT(job->at == 0 || job->path != NULL);
    job->headers = (struct sl_fetch_headers){0};
    job->error = (struct sl_error){0};
    job->began = false;
    fetch_job_set_options(job);
    CURLMcode code = job->fetch->curl->multi_add_handle(job->fetch->multi, job->easy);
    if (code != CURLM_OK)
        return sl_fail(err, SL_EINTERNAL, "libcurl: %s", job->fetch->curl->multi_strerror(code));
    job->state = SL_FETCH_RUNNING;
    return 0;
}

/* ---- end */

static int try_again(struct sl_fetch_job *job, long asked_s, const char *why, struct sl_error *err)
{
    char note[200];
    bool moved = job->at > job->best;
    SL_ASSERT(job->state == SL_FETCH_RUNNING && job->n_failed < MAX_TRIES);
    job->best = SL_MAX(job->best, job->at);
    job->n_failed = moved ? 1 : job->n_failed + 1;
    if (job->n_failed >= MAX_TRIES)
        return sl_fail(err, SL_EIO, "%.80s: %.120s (tried %d times)", job->label, why,
                       job->n_failed);
    if (asked_s > MAX_ASKED_S)
        return sl_fail(err, SL_EIO, "%.80s: %.60s and asks to wait for %ld s", job->label, why,
                       asked_s);
    uint64_t wait_ms = SL_MIN(FIRST_WAIT_MS << (job->n_failed - 1), MAX_WAIT_MS);
    if (asked_s > 0)
        wait_ms = (uint64_t)asked_s * 1000;
    job->retry_ns = after_ms(wait_ms);
    job->state = SL_FETCH_QUEUED;
    snprintf(note, sizeof note, "%.70s: %.80s; again in %.1f s", job->label, why,
             (double)wait_ms / 1e3);
    if (job->fetch->opt->progress != NULL)
        job->fetch->opt->progress(job->fetch->opt->progress_arg, NULL, note);
    return 0;
}

static int finish_file(struct sl_fetch_job *job, struct sl_error *err)
{
    char got[65], why[80];
    if (job->sized && job->at != job->n_bytes) {
        snprintf(why, sizeof why, "ended after %llu of %llu bytes", (unsigned long long)job->at,
                 (unsigned long long)job->n_bytes);
        return try_again(job, 0, why, err);
    }
    if (!job->sized && job->digest.kind == SL_DIGEST_GIT) { /* it begins with the length */
        sl_digest_begin(&job->digest, SL_DIGEST_GIT, job->at);
        int rc = digest_partial(job, err);
        if (rc != 0)
            return rc;
    }
    SL_ASSERT(job->fd >= 0 && job->lock_fd >= 0);
    sl_digest_end(&job->digest, got);
    if (job->digest.kind != SL_DIGEST_NONE && strcmp(got, job->id) != 0) {
        int rc = open_partial(job, true, err);
        if (rc == 0 && job->mismatched)
            rc = sl_fail(err, SL_EFORMAT, "%.80s: the digest is %.16s..., it should be %.16s...",
                         job->label, got, job->id);
        job->mismatched = true;
        return rc == 0 ? try_again(job, 0, "wrong digest", err) : rc;
    }
    int rc = sl_rename(job->partial_path, job->path, err);
    if (rc == 0)
        job->state = SL_FETCH_DONE;
    return rc;
}

static int refused(struct sl_fetch_job *job, long status, struct sl_error *err)
{
    const struct sl_fetch_headers *h = &job->headers;
    const char *said = h->error_message[0] != '\0' ? h->error_message : h->error_code;
    const char *hint = "";
    int code = SL_EIO;
    SL_ASSERT(status >= 300 && status < 500);
    if (status == 401 || status == 403) {
        code = SL_EAUTH;
        hint = job->fetch->opt->token != NULL
                   ? "; the token may not read it, or its terms must be accepted on its page"
                   : "; no such name, or one that needs HF_TOKEN";
    } else if (status == 404) {
        code = SL_ENOTFOUND;
    }
    return sl_fail(err, code, "%.70s: the hub answers %ld%s%.80s%s", job->label, status,
                   said[0] != '\0' ? ", " : "", said, hint);
}

/* What no second attempt would change. */
static bool is_final(CURLcode code)
{
    return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
           code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL ||
           code == CURLE_TOO_MANY_REDIRECTS;
}

int sl_fetch_job_end(struct sl_fetch_job *job, CURLcode code, struct sl_error *err)
{
    const struct sl_curl *c = job->fetch->curl;
    long status = 200;
    curl_off_t asked_s = 0;
    char why[64];
    SL_ASSERT(job->state == SL_FETCH_RUNNING);
    if (job->easy != NULL) {
        c->easy_getinfo(job->easy, CURLINFO_RESPONSE_CODE, &status);
        c->easy_getinfo(job->easy, CURLINFO_RETRY_AFTER, &asked_s);
    }
    if (job->error.code == SL_EIO || !sl_buf_ok(&job->body)) {
        *err = job->error;
        return sl_buf_ok(&job->body) ? job->error.code
                                     : sl_fail(err, SL_ETOOBIG,
                                               "%.80s: the reply has more than %u "
                                               "bytes",
                                               job->label, MAX_BODY);
    }
    if (job->head && job->headers.linked_etag[0] != '\0') {
        job->state = SL_FETCH_DONE; /* whatever the store of large files thinks of HEAD */
        return 0;
    }
    if (job->error.code != 0) { /* what came was wrong: begin at the beginning */
        int rc = job->path != NULL ? open_partial(job, true, err) : 0;
        return rc == 0 ? try_again(job, 0, job->error.msg, err) : rc;
    }
    if (status == 416 && job->path != NULL) {
        int rc = open_partial(job, true, err);
        return rc == 0 ? try_again(job, 0, "the hub answers 416", err) : rc;
    }
    bool busy = status == 408 || status == 425 || status == 429 || status >= 500;
    if (busy) {
        snprintf(why, sizeof why, "the hub answers %ld", status);
        return try_again(job, (long)asked_s, why, err);
    }
    if (status >= 300)
        return refused(job, status, err);
    if (code != CURLE_OK && is_final(code))
        return sl_fail(err, SL_EIO, "%.80s: %s", job->label, c->easy_strerror(code));
    if (code != CURLE_OK)
        return try_again(job, 0, c->easy_strerror(code), err);
    if (job->path != NULL)
        return finish_file(job, err);
    job->state = SL_FETCH_DONE;
    return 0;
}

void sl_fetch_job_close(struct sl_fetch_job *job)
{
    if (job->fd >= 0)
        sl_sys->close(job->fd);
    if (job->lock_fd >= 0)
        sl_unlock(job->lock_fd);
    job->fd = job->lock_fd = -1;
    if (job->easy != NULL)
        job->fetch->curl->easy_cleanup(job->easy);
    if (job->send_headers != NULL)
        job->fetch->curl->slist_free_all(job->send_headers);
    job->easy = NULL;
    job->send_headers = NULL;
    sl_free(job->partial_path);
    job->partial_path = NULL;
}
