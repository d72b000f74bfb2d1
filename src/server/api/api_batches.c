/* SPDX-License-Identifier: MIT
 * api_batches.c - /v1/batches as OpenAI has it: create, list, retrieve and cancel. A key sees its
 * own, and must be one that may generate.
 */
#include "base/check.h"
#include "base/limits.h"
#include "server/api/api_files.h"
#include "server/api/task.h"
#include "server/http/keys.h"
#include "server/http/reply.h"
#include "server/jobs/batches.h"

#include <string.h>

#define MAX_LISTED      100
#define DEFAULT_LISTED  20
#define MAX_PAIRS       16 /* of metadata, and the lengths of names and values: OpenAI's */
#define MAX_PAIR_NAME   64
#define MAX_PAIR_VALUE  512
#define MAX_FIELD_BYTES 256

static int check_metadata(struct sl_task *t, json_t **out)
{
    json_t *v = json_object_get(t->root, "metadata"), *value;
    const char *name, *text;
    *out = NULL;
    if (v == NULL || json_is_null(v))
        return 0;
    if (!json_is_object(v) || json_object_size(v) > MAX_PAIRS)
        return sl_refuse(&t->refusal, SL_EINVAL, "metadata",
                         "metadata must be an object of at most %d pairs", MAX_PAIRS);
    json_object_foreach(v, name, value)
    {
        if (strlen(name) > MAX_PAIR_NAME)
            return sl_refuse(&t->refusal, SL_EINVAL, "metadata",
                             "metadata: a name is longer than %d bytes", MAX_PAIR_NAME);
        /* characters have four bytes at most */
        int rc = sl_json_cstr(value, "metadata", 4 * MAX_PAIR_VALUE, &text, &t->refusal);
        if (rc != 0)
            return rc;
    }
    *out = v;
    return 0;
}

static int batches_read_field(struct sl_task *t, const char *name, const char **out)
{
    const json_t *v = json_object_get(t->root, name);
    if (v == NULL)
        return sl_refuse(&t->refusal, SL_EINVAL, name, "%s is missing", name);
    return sl_json_cstr(v, name, MAX_FIELD_BYTES, out, &t->refusal);
}

static int check_fields(struct sl_task *t)
{
    static const char *const known[] = {"input_file_id", "endpoint", "completion_window",
                                        "metadata", "output_expires_after"};
    const char *name;
    json_t *value;
    json_object_foreach(t->root, name, value)
    {
        bool found = false;
        for (size_t i = 0; i < SL_COUNT(known); i++)
            found |= strcmp(name, known[i]) == 0;
        if (!found && t->server->cfg->refuse_unknown)
            return sl_refuse(&t->refusal, SL_EINVAL, name, "unknown field: %.64s", name);
    }
    value = json_object_get(t->root, "output_expires_after");
    if (value != NULL && !json_is_null(value))
        return sl_refuse(&t->refusal, SL_EUNSUPPORTED, "output_expires_after",
                         "output_expires_after: files stay until they are deleted");
    return 0;
}

static int check_scope(struct sl_task *t)
{
    const struct sl_server_config *cfg = t->server->cfg;
    if (cfg->key_rules == NULL || cfg->key_rules[t->key].generate)
        return 0;
    t->refusal.code = "insufficient_scope";
    return sl_refuse(&t->refusal, SL_EAUTH, NULL, "this API key lacks the scope generate");
}

static int create(struct sl_task *t)
{
    struct sl_batches *b = t->server->batches;
    struct sl_batch_desc desc = {0};
    int rc = check_scope(t);
    if (rc == 0)
        rc = sl_json_parse_object(t->body.p, t->body.n, &t->root, &t->refusal);
    if (rc == 0)
        rc = check_fields(t);
    if (rc == 0)
        rc = batches_read_field(t, "input_file_id", &desc.input_file_id);
    if (rc == 0)
        rc = batches_read_field(t, "endpoint", &desc.endpoint);
    if (rc == 0)
        rc = batches_read_field(t, "completion_window", &desc.window);
    if (rc == 0)
        rc = check_metadata(t, &desc.metadata);
    return rc != 0 ? rc
                   : sl_batches_create(b, sl_batches_owner(b, t->key), &desc, &t->out, &t->refusal);
}

static void prepare_create(struct sl_task *t)
{
    t->rc = create(t);
}

static void batches_finish_json(struct sl_conn *c, struct sl_task *t)
{
    sl_reply_json(c, 200, &t->out);
}

static void batches_answer(struct sl_conn *c, int rc, struct sl_buf *b, const struct sl_refusal *r)
{
    if (rc == 0) {
        sl_reply_json(c, 200, b);
        return;
    }
    sl_buf_deinit(b);
    sl_reply_refusal(c, r);
}

void sl_api_batches(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_create, batches_finish_json};
    if (!sl_api_files_ready(c))
        return;
    if (c->parser->method == SL_HTTP_POST) {
        sl_task_start_later(c, &kind, NULL, NULL);
        return;
    }
    struct sl_batches *all = c->loop->server->batches;
    struct sl_buf b = {.max_bytes = SL_MAX_REPLY_BYTES};
    struct sl_refusal r = {0};
    int64_t limit;
    int rc = sl_api_files_limit(c, DEFAULT_LISTED, MAX_LISTED, &limit, &r);
    if (rc == 0)
        rc = sl_batches_list(all, sl_batches_owner(all, c->key),
                             sl_query_value(c->parser->query, "after"), limit, &b, &r);
    batches_answer(c, rc, &b, &r);
}

void sl_api_batch(struct sl_conn *c)
{
    struct sl_buf b = {.max_bytes = SL_MAX_REPLY_BYTES};
    struct sl_refusal r = {0};
    bool cancels;
    int rc;
    if (!sl_api_files_ready(c))
        return;
    struct sl_batches *all = c->loop->server->batches;
    const char *owner = sl_batches_owner(all, c->key);
    struct sl_str id = sl_api_files_id(c, "/cancel", &cancels);
    if (cancels != (c->parser->method == SL_HTTP_POST))
        rc = sl_refuse(&r, SL_ENOTFOUND, NULL, "there is no such batch");
    else if (cancels)
        rc = sl_batches_cancel(all, owner, id, &b, &r);
    else
        rc = sl_batches_get(all, owner, id, &b, &r);
    batches_answer(c, rc, &b, &r);
}
