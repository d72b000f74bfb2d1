/* SPDX-License-Identifier: MIT */
#include "server/jobs/batch_file.h"

#include "base/check.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/str.h"
#include "server/http/json_in.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ID_PREFIX  "batch_req_"
#define ID_HEX     32 /* 16 of the request's hash, 16 of its place */
#define MAX_REPLY  (1u << 30)
#define COPY_BYTES (64u << 10)

static int fail_io(struct sl_error *err, const char *path, const char *what)
{
    return sl_fail(err, SL_EIO, "%s: %s: %s", path, what, strerror(errno));
}

/* ---- the input */

static bool batch_file_is_blank(const uint8_t *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strchr(" \t\r", s[i]) == NULL || s[i] == '\0')
            return false;
    return true;
}

static bool batch_file_add_line(struct sl_batch_file *f, size_t at, size_t n)
{
    if (f->n_lines == f->cap_lines) {
        size_t cap = f->cap_lines > 0 ? f->cap_lines * 2 : 256;
        struct sl_batch_line *lines = sl_realloc(f->lines, cap * sizeof *lines);
        if (lines == NULL)
            return false;
        f->lines = lines;
        f->cap_lines = cap;
    }
    f->lines[f->n_lines++] = (struct sl_batch_line){.at = at, .n = n};
    return true;
}

static int index_lines(struct sl_batch_file *f, const char *path, size_t max_lines,
                       struct sl_error *err)
{
    const uint8_t *s = f->in.data;
    for (size_t at = 0, end; at < f->in.n_bytes; at = end + 1) {
        const uint8_t *lf = memchr(s + at, '\n', f->in.n_bytes - at);
        end = lf != NULL ? (size_t)(lf - s) : f->in.n_bytes;
        SL_ASSERT(end >= at && end <= f->in.n_bytes);
        if (batch_file_is_blank(s + at, end - at))
            continue;
        if (f->n_lines == max_lines)
            return sl_fail(err, SL_ELIMIT, "more than %zu requests", max_lines);
        if (!batch_file_add_line(f, at, end - at))
            return sl_fail(err, SL_ENOMEM, "out of memory for the lines of %s", path);
    }
    return f->n_lines > 0 ? 0 : sl_fail(err, SL_EFORMAT, "%s: no lines", path);
}

static void batch_file_make_id(const struct sl_batch_file *f, size_t i,
                               char out[sizeof ID_PREFIX + ID_HEX])
{
    const struct sl_batch_line *line = &f->lines[i];
    snprintf(out, sizeof ID_PREFIX + ID_HEX, ID_PREFIX "%016llx%016llx",
             (unsigned long long)sl_hash64(f->in.data + line->at, line->n, 0),
             (unsigned long long)i);
}

/* ---- replies of an earlier run */

/* Which line of this input a reply answers; n_lines: none. Every reply begins with its id. */
static size_t answered(const struct sl_batch_file *f, const char *s, size_t n)
{
    static const char head[] = "{\"id\":\"";
    char id[sizeof ID_PREFIX + ID_HEX];
    uint64_t i;
    const char *at = s + sizeof head - 1;
    if (n < sizeof head + sizeof id || memcmp(s, head, sizeof head - 1) != 0 ||
        !sl_parse_hex_u64(at + sizeof id - 1 - 16, 16, &i) || i >= f->n_lines)
        return f->n_lines;
    batch_file_make_id(f, (size_t)i, id);
    return memcmp(at, id, sizeof id - 1) == 0 && at[sizeof id - 1] == '"' ? (size_t)i : f->n_lines;
}

/* Past a JSON string or null at s. */
static const char *batch_file_skip_value(const char *s, const char *end)
{
    if (end - s >= 4 && memcmp(s, "null", 4) == 0)
        return s + 4;
    for (s += s < end; s < end && *s != '"'; s++)
        s += *s == '\\' && s + 1 < end;
    SL_ASSERT(s <= end);
    return s < end ? s + 1 : end;
}

/* Has the reply, which answered() knows, status 200? */
static bool is_good(const char *s, size_t n)
{
    static const char before[] = "\",\"custom_id\":",
                      after[] = ",\"response\":{\"status_code\":200,";
    const char *end = s + n, *at = s + sizeof "{\"id\":\"" - 1 + sizeof ID_PREFIX - 1 + ID_HEX;
    if ((size_t)(end - at) < sizeof before || memcmp(at, before, sizeof before - 1) != 0)
        return false;
    at = batch_file_skip_value(at + sizeof before - 1, end);
    return (size_t)(end - at) >= sizeof after && memcmp(at, after, sizeof after - 1) == 0;
}

static int batch_file_load_part(struct sl_batch_file *f, struct sl_error *err)
{
    struct sl_map map;
    size_t at = 0, n_read = 0;
    int rc = sl_map_open(&map, f->part, err);
    if (rc != 0)
        return rc;
    const char *s = (const char *)map.data, *lf;
    while (at < map.n_bytes && (lf = memchr(s + at, '\n', map.n_bytes - at)) != NULL) {
        size_t n = (size_t)(lf - s) - at + 1, i = answered(f, s + at, n);
        n_read++;
        if (i == f->n_lines || n > MAX_REPLY) {
            sl_map_close(&map);
            return sl_fail(err, SL_EINVAL,
                           "%s: line %zu answers another input; remove the file to begin anew",
                           f->part, n_read);
        }
        SL_ASSERT(at + n <= map.n_bytes);
        f->n_done += f->lines[i].n_reply == 0;
        f->n_good -= f->lines[i].good;
        f->lines[i].reply_at = at;
        f->lines[i].n_reply = (uint32_t)n;
        f->lines[i].good = is_good(s + at, n);
        f->n_good += f->lines[i].good;
        at += n;
    }
    sl_map_close(&map);
    f->part_bytes = at; /* half a line behind it is of a run that was killed within a write */
    if (ftruncate(f->fd, (off_t)at) != 0 || lseek(f->fd, (off_t)at, SEEK_SET) < 0)
        return fail_io(err, f->part, "cut");
    return 0;
}

static char *path_with(const char *path, const char *end)
{
    size_t n = strlen(path), n_end = strlen(end);
    char *s = sl_malloc(n + n_end + 1);
    if (s != NULL) {
        memcpy(s, path, n);
        memcpy(s + n, end, n_end + 1);
    }
    return s;
}

int sl_batch_open(const char *in, const char *part, size_t max_lines, struct sl_batch_file *f,
                  struct sl_error *err)
{
    *f = (struct sl_batch_file){.fd = -1};
    f->part = sl_strdup(part);
    if (f->part == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    int rc = sl_map_open(&f->in, in, err);
    if (rc != 0)
        return rc;
    rc = index_lines(f, in, max_lines, err);
    if (rc != 0)
        return rc;
    rc = sl_try_lock(f->part, &f->fd, err);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return sl_fail(err, SL_EBUSY, "%s: another run is using it", f->part);
    return batch_file_load_part(f, err);
}

void sl_batch_close(struct sl_batch_file *f)
{
    if (f->fd >= 0)
        sl_unlock(f->fd);
    if (f->in.data != NULL)
        sl_map_close(&f->in);
    sl_free(f->lines);
    sl_free(f->part);
    *f = (struct sl_batch_file){.fd = -1};
}

/* ---- requests */

bool sl_batch_is_endpoint(const char *url)
{
    static const char *const urls[] = {"/v1/chat/completions",
                                       "/v1/completions",
                                       "/v1/embeddings",
                                       "/v1/responses",
                                       "/v1/messages",
                                       "/v1/score",
                                       "/score",
                                       "/v1/rerank",
                                       "/rerank"};
    for (size_t i = 0; i < SL_COUNT(urls); i++)
        if (strcmp(url, urls[i]) == 0)
            return true;
    return false;
}

int sl_batch_read(const struct sl_batch_file *f, size_t i, struct sl_batch_request *r,
                  struct sl_error *err)
{
    const struct sl_batch_line *line = &f->lines[i];
    struct sl_refusal refusal = {0};
    *r = (struct sl_batch_request){0};
    SL_ASSERT(i < f->n_lines && line->at + line->n <= f->in.n_bytes);
    int rc = sl_json_parse_object((const char *)f->in.data + line->at, line->n, &r->root, &refusal);
    if (rc != 0)
        return sl_fail(err, rc, "line: %s", refusal.err.msg);
    const json_t *id = json_object_get(r->root, "custom_id");
    const char *method = json_string_value(json_object_get(r->root, "method"));
    r->url = json_string_value(json_object_get(r->root, "url"));
    r->body = json_object_get(r->root, "body");
    if (!json_is_string(id))
        return sl_fail(err, SL_EINVAL, "custom_id must be a string");
    r->custom_id = id;
    if (method == NULL || strcmp(method, "POST") != 0)
        return sl_fail(err, SL_EINVAL, "method must be POST");
    if (r->url == NULL || !sl_batch_is_endpoint(r->url))
        return sl_fail(err, SL_EINVAL,
                       "url must be one of the endpoints that generate, embed or "
                       "score, such as /v1/chat/completions");
    if (!json_is_object(r->body))
        return sl_fail(err, SL_EINVAL, "body must be an object");
    if (json_is_true(json_object_get(r->body, "stream")))
        return sl_fail(err, SL_EINVAL, "body.stream: requests of a batch cannot stream");
    return 0;
}

void sl_batch_request_deinit(struct sl_batch_request *r)
{
    json_decref(r->root);
    *r = (struct sl_batch_request){0};
}

/* ---- replies */

static const char *error_code(int code)
{
    return code == SL_ETIMEOUT ? "batch_expired"
           : code == SL_EIO    ? "server_error"
                               : "invalid_request";
}

static void put_reply(struct sl_buf *b, int status, const char *id, const char *body, size_t n)
{
    sl_buf_printf(b, "{\"status_code\":%d,\"request_id\":\"%s\",\"body\":", status, id);
    for (size_t i = 0; i < n; i++) /* one line, whatever came */
        sl_buf_putc(b, body[i] == '\n' || body[i] == '\r' ? ' ' : body[i]);
    sl_buf_puts(b, "},\"error\":null}\n");
}

int sl_batch_put(struct sl_batch_file *f, size_t i, const json_t *custom_id, int status,
                 const char *body, size_t n_body, const struct sl_error *why, struct sl_error *err)
{
    struct sl_buf b = {0};
    char id[sizeof ID_PREFIX + ID_HEX];
    batch_file_make_id(f, i, id);
    sl_buf_printf(&b, "{\"id\":\"%s\",\"custom_id\":", id);
    if (custom_id != NULL)
        sl_buf_json_string(&b, json_string_value(custom_id), json_string_length(custom_id));
    else
        sl_buf_puts(&b, "null");
    sl_buf_puts(&b, ",\"response\":");
    if (status != 0) {
        put_reply(&b, status, id, body, n_body);
    } else {
        sl_buf_printf(&b, "null,\"error\":{\"code\":\"%s\",\"message\":", error_code(why->code));
        sl_buf_json_string(&b, why->msg, strlen(why->msg));
        sl_buf_puts(&b, "}}\n");
    }
    int rc = !sl_buf_ok(&b) || b.n_bytes > MAX_REPLY
                 ? sl_fail(err, SL_ENOMEM, "out of memory for a reply of %zu bytes", n_body)
                 : 0;
    if (rc == 0)
        rc = sl_write_all(f->fd, b.data, b.n_bytes, err);
    if (rc == 0) {
        SL_ASSERT(f->lines[i].n_reply == 0);
        f->lines[i].reply_at = f->part_bytes;
        f->lines[i].n_reply = (uint32_t)b.n_bytes;
        f->lines[i].good = status == 200;
        f->n_good += status == 200;
        f->part_bytes += b.n_bytes;
        f->n_done++;
    }
    sl_buf_deinit(&b);
    return rc;
}

static int copy_reply(const struct sl_batch_file *f, const struct sl_batch_line *line, int to,
                      char *buf, struct sl_error *err)
{
    for (uint64_t done = 0; done < line->n_reply;) {
        size_t want = (size_t)SL_MIN(line->n_reply - done, (uint64_t)COPY_BYTES);
        ssize_t n = sl_sys->pread(f->fd, buf, want, (int64_t)(line->reply_at + done));
        if (n <= 0)
            return fail_io(err, f->part, "read");
        int rc = sl_write_all(to, buf, (size_t)n, err);
        if (rc != 0)
            return rc;
        done += (uint64_t)n;
    }
    return 0;
}

int sl_batch_write(const struct sl_batch_file *f, enum sl_batch_which which, const char *path,
                   struct sl_error *err)
{
    char *tmp = path_with(path, ".tmp"), *buf = sl_malloc(COPY_BYTES);
    int rc = tmp == NULL || buf == NULL ? sl_fail(err, SL_ENOMEM, "out of memory") : 0, to = -1;
    if (rc == 0) {
        to = sl_sys->open(tmp, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        rc = to < 0 ? fail_io(err, tmp, "open") : 0;
    }
    for (size_t i = 0; i < f->n_lines && rc == 0; i++) {
        const struct sl_batch_line *line = &f->lines[i];
        if (line->n_reply > 0 && (which == SL_BATCH_ALL || line->good == (which == SL_BATCH_GOOD)))
            rc = copy_reply(f, line, to, buf, err);
    }
    if (rc == 0 && fsync(to) != 0)
        rc = fail_io(err, tmp, "write");
    if (to >= 0)
        sl_sys->close(to);
    if (rc == 0)
        rc = sl_rename(tmp, path, err);
    if (rc != 0 && to >= 0)
        sl_remove_file(tmp);
    sl_free(tmp);
    sl_free(buf);
    return rc;
}
