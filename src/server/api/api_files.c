/* SPDX-License-Identifier: MIT
 * api_files.c - /v1/files as OpenAI has it: upload (multipart/form-data), list, retrieve, content
 * and delete, of the files that batches read and write (--file-storage-path). A key sees its own.
 */
#include "server/api/api_files.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "server/api/task.h"
#include "server/http/multipart.h"
#include "server/http/reply.h"
#include "server/jobs/batches.h"

#include <string.h>

#define MAX_LISTED SL_MAX_STORED_FILES

bool sl_api_files_takes(const struct sl_route *route)
{
    return route != NULL && route->handle == sl_api_files;
}

bool sl_api_files_ready(struct sl_conn *c)
{
    struct sl_refusal r = {0};
    if (c->loop->server->files != NULL)
        return true;
    (void)sl_refuse(&r, SL_ENOTFOUND, NULL,
                    "this server keeps no files and runs no batches (--file-storage-path DIR)");
    sl_reply_refusal(c, &r);
    return false;
}

struct sl_str sl_api_files_id(const struct sl_conn *c, const char *suffix, bool *has_suffix)
{
    struct sl_str id = c->parser->path;
    size_t n_route = strlen(c->route->path), n = strlen(suffix);
    SL_ASSERT(c->route->prefix && id.n > n_route);
    id.p += n_route;
    id.n -= n_route;
    *has_suffix = id.n > n && memcmp(id.p + id.n - n, suffix, n) == 0;
    if (*has_suffix)
        id.n -= n;
    return id;
}

int sl_api_files_limit(const struct sl_conn *c, int64_t otherwise, int64_t max, int64_t *out,
                       struct sl_refusal *r)
{
    struct sl_str text = sl_query_value(c->parser->query, "limit");
    *out = otherwise;
    if (text.n == 0)
        return 0;
    if (!sl_parse_i64(text.p, text.n, out) || *out < 1 || *out > max)
        return sl_refuse(r, SL_EINVAL, "limit", "limit must be a number from 1 to %lld",
                         (long long)max);
    return 0;
}

/* ---- upload */

struct upload {
    char boundary[SL_MAX_BOUNDARY + 1];
    char name[SL_MAX_FORM_NAME], purpose[16];
    struct sl_str data;
    bool has_data;
};

static void free_upload(struct sl_task *t)
{
    sl_free(t->extra);
}

static int check_purpose(struct sl_str value, char out[16], struct sl_refusal *r)
{
    static const char *const known[] = {"assistants", "batch",     "evals",
                                        "fine-tune",  "user_data", "vision"};
    for (size_t i = 0; i < SL_COUNT(known); i++) {
        if (!sl_str_equals(value, known[i]))
            continue;
        if (strcmp(known[i], "batch") != 0)
            return sl_refuse(r, SL_EUNSUPPORTED, "purpose",
                             "purpose: only files for batches have a use here, not for %s",
                             known[i]);
        memcpy(out, known[i], strlen(known[i]) + 1);
        return 0;
    }
    return sl_refuse(r, SL_EINVAL, "purpose", "purpose must be batch");
}

static int take_part(struct sl_task *t, struct upload *u, const struct sl_form_part *part)
{
    struct sl_refusal *r = &t->refusal;
    if (strcmp(part->name, "file") == 0) {
        if (u->has_data)
            return sl_refuse(r, SL_EINVAL, "file", "file is given twice");
        u->has_data = true;
        u->data = part->data;
        memcpy(u->name, part->filename, sizeof u->name);
        return 0;
    }
    if (strcmp(part->name, "purpose") == 0)
        return check_purpose(part->data, u->purpose, r);
    if (strncmp(part->name, "expires_after", 13) == 0)
        return sl_refuse(r, SL_EUNSUPPORTED, "expires_after",
                         "expires_after: files stay until they are deleted");
    if (t->server->cfg->refuse_unknown)
        return sl_refuse(r, SL_EINVAL, part->name, "unknown field: %.64s", part->name);
    return 0;
}

static int read_upload(struct sl_task *t, struct upload *u)
{
    struct sl_multipart m;
    struct sl_form_part part;
    int rc = sl_multipart_begin(&m, u->boundary, t->body, &t->refusal);
    while (rc == 0 && (rc = sl_multipart_next(&m, &part, &t->refusal)) == 1)
        rc = take_part(t, u, &part);
    if (rc != 0)
        return rc;
    if (!u->has_data)
        return sl_refuse(&t->refusal, SL_EINVAL, "file", "file is missing");
    if (u->purpose[0] == '\0')
        return sl_refuse(&t->refusal, SL_EINVAL, "purpose", "purpose is missing");
    if (u->data.n == 0)
        return sl_refuse(&t->refusal, SL_EINVAL, "file", "file is empty");
    if (u->data.n > SL_MAX_UPLOAD)
        return sl_refuse(&t->refusal, SL_ETOOBIG, "file", "file is larger than %u bytes",
                         SL_MAX_UPLOAD);
    return 0;
}

static void prepare_upload(struct sl_task *t)
{
    struct upload *u = t->extra;
    t->rc = read_upload(t, u);
    if (t->rc == 0)
        t->rc = sl_file_store_add(t->server->files, sl_batches_owner(t->server->batches, t->key),
                                  u->name[0] != '\0' ? u->name : "upload", u->purpose, u->data,
                                  &t->out, &t->refusal);
}

static void files_finish_json(struct sl_conn *c, struct sl_task *t)
{
    sl_reply_json(c, 200, &t->out);
}

static void upload(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_upload, files_finish_json};
    struct sl_refusal r = {0};
    struct upload *u = sl_calloc(1, sizeof *u);
    int rc = u == NULL ? sl_refuse(&r, SL_ENOMEM, NULL, "out of memory")
                       : sl_multipart_boundary(sl_http_header(c->parser, "content-type"),
                                               u->boundary, &r);
    if (rc == 0) {
        sl_task_start_later(c, &kind, u, free_upload);
        return;
    }
    sl_free(u);
    sl_reply_refusal(c, &r);
}

/* ---- list */

static void list(struct sl_conn *c)
{
    const struct sl_server *s = c->loop->server;
    struct sl_refusal r = {0};
    struct sl_buf b = {.max_bytes = SL_MAX_REPLY_BYTES};
    struct sl_str order = sl_query_value(c->parser->query, "order");
    struct sl_file_query q = {.after = sl_query_value(c->parser->query, "after"),
                              .purpose = sl_query_value(c->parser->query, "purpose"),
                              .ascending = sl_str_equals(order, "asc")};
    int rc = sl_api_files_limit(c, MAX_LISTED, MAX_LISTED, &q.limit, &r);
    if (rc == 0 && order.n > 0 && !q.ascending && !sl_str_equals(order, "desc"))
        rc = sl_refuse(&r, SL_EINVAL, "order", "order must be asc or desc");
    if (rc == 0)
        rc = sl_file_store_list(s->files, sl_batches_owner(s->batches, c->key), &q, &b, &r);
    if (rc == 0) {
        sl_reply_json(c, 200, &b);
        return;
    }
    sl_buf_deinit(&b);
    sl_reply_refusal(c, &r);
}

void sl_api_files(struct sl_conn *c)
{
    if (!sl_api_files_ready(c))
        return;
    if (c->parser->method == SL_HTTP_POST)
        upload(c);
    else
        list(c);
}

/* ---- one file */

static void refuse_unknown(struct sl_conn *c)
{
    struct sl_refusal r = {0};
    (void)sl_refuse(&r, SL_ENOTFOUND, NULL, "there is no such file");
    sl_reply_refusal(c, &r);
}

static void delete_file(struct sl_conn *c, struct sl_str id)
{
    const struct sl_server *s = c->loop->server;
    struct sl_refusal r = {0};
    struct sl_buf b = {0};
    if (sl_file_store_delete(s->files, sl_batches_owner(s->batches, c->key), id, &r) != 0) {
        sl_reply_refusal(c, &r);
        return;
    }
    sl_buf_puts(&b, "{\"id\":");
    sl_buf_json_string(&b, id.p, id.n);
    sl_buf_puts(&b, ",\"object\":\"file\",\"deleted\":true}");
    sl_reply_json(c, 200, &b);
}

static void content(struct sl_conn *c, struct sl_str id)
{
    const struct sl_server *s = c->loop->server;
    struct sl_refusal r = {0};
    int fd;
    uint64_t n_bytes;
    if (sl_file_store_read(s->files, sl_batches_owner(s->batches, c->key), id, &fd, &n_bytes, &r) !=
        0)
        sl_reply_refusal(c, &r);
    else
        sl_reply_file(c, "application/octet-stream", fd, n_bytes);
}

void sl_api_file(struct sl_conn *c)
{
    struct sl_buf b = {0};
    bool wants_content;
    if (!sl_api_files_ready(c))
        return;
    struct sl_str id = sl_api_files_id(c, "/content", &wants_content);
    const struct sl_server *s = c->loop->server;
    if (c->parser->method == SL_HTTP_DELETE) {
        if (wants_content)
            refuse_unknown(c);
        else
            delete_file(c, id);
    } else if (wants_content) {
        content(c, id);
    } else if (sl_file_store_get(s->files, sl_batches_owner(s->batches, c->key), id, &b)) {
        sl_reply_json(c, 200, &b);
    } else {
        refuse_unknown(c);
    }
}
