/* SPDX-License-Identifier: MIT */
#include "server/jobs/batch_record.h"

#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
#include "server/http/json_tree.h"
#include "server/http/sse.h"
#include "server/jobs/batch_file.h"

#include <string.h>

#define MAX_WINDOW_S (30 * 86400)

static const char *const names[SL_BATCH_N_STATUS] = {
    [SL_BATCH_VALIDATING] = "validating", [SL_BATCH_IN_PROGRESS] = "in_progress",
    [SL_BATCH_FINALIZING] = "finalizing", [SL_BATCH_CANCELLING] = "cancelling",
    [SL_BATCH_COMPLETED] = "completed",   [SL_BATCH_FAILED] = "failed",
    [SL_BATCH_EXPIRED] = "expired",       [SL_BATCH_CANCELLED] = "cancelled"};

void sl_batch_record_free(struct sl_batch_record *r)
{
    if (r == NULL)
        return;
    json_decref(r->metadata);
    json_decref(r->errors);
    sl_free(r);
}

void sl_batch_record_move(struct sl_batch_record *r, enum sl_batch_status status)
{
    SL_ASSERT(!sl_batch_has_ended(r));
    r->status = status;
    r->at_s[status] = sl_wall_ns() / 1000000000;
}

void sl_batch_record_blame(struct sl_batch_record *r, size_t line, const char *code,
                           const char *param, const char *message)
{
    if (r->errors == NULL)
        r->errors = json_array();
    if (json_array_size(r->errors) >= SL_MAX_BATCH_ERRORS)
        return;
    /* Without memory the status still says that it failed. */
    json_t *e = json_pack("{s:s,s:s,s:s?}", "code", code, "message", message, "param", param);
    json_object_set_new(e, "line", line > 0 ? json_integer((json_int_t)line) : json_null());
    json_array_append_new(r->errors, e);
}

bool sl_batch_window(const char *text, int64_t *seconds)
{
    static const char units[] = "smhd";
    static const int64_t lengths[] = {1, 60, 3600, 86400};
    uint64_t x;
    size_t n = strlen(text);
    const char *unit = n >= 2 ? strchr(units, text[n - 1]) : NULL;
    if (unit == NULL || !sl_parse_u64(text, n - 1, &x) || x == 0 || x > MAX_WINDOW_S)
        return false;
    *seconds = (int64_t)x * lengths[unit - units];
    return *seconds <= MAX_WINDOW_S;
}

/* ---- writing */

static void put_string(struct sl_buf *b, const char *name, const char *value)
{
    sl_buf_putc(b, ',');
    sl_buf_json_string(b, name, strlen(name));
    sl_buf_putc(b, ':');
    if (value[0] != '\0')
        sl_buf_json_string(b, value, strlen(value));
    else
        SL_PUT(b, "null");
}

static void batch_record_put_time(struct sl_buf *b, const char *status, int64_t at_s)
{
    SL_PUT(b, ",\"");
    sl_buf_puts(b, status);
    SL_PUT(b, "_at\":");
    if (at_s > 0)
        sl_put_i64(b, at_s);
    else
        SL_PUT(b, "null");
}

static void batch_record_put_tree(struct sl_buf *b, const json_t *v)
{
    if (v != NULL)
        sl_json_put(b, v);
    else
        SL_PUT(b, "null");
}

void sl_batch_record_put(struct sl_buf *b, const struct sl_batch_record *r, bool on_disk)
{
    bool has_files = on_disk || sl_batch_has_ended(r);
    SL_PUT(b, "{\"id\":\"");
    sl_buf_puts(b, r->id);
    SL_PUT(b, "\",\"object\":\"batch\"");
    put_string(b, "endpoint", r->endpoint);
    put_string(b, "input_file_id", r->input_id);
    put_string(b, "completion_window", r->window);
    put_string(b, "status", names[r->status]);
    put_string(b, "output_file_id", has_files ? r->output_id : "");
    put_string(b, "error_file_id", has_files ? r->error_id : "");
    SL_PUT(b, ",\"errors\":");
    if (r->errors != NULL) {
        SL_PUT(b, "{\"object\":\"list\",\"data\":");
        batch_record_put_tree(b, r->errors);
        sl_buf_putc(b, '}');
    } else {
        SL_PUT(b, "null");
    }
    batch_record_put_time(b, "created", r->created_ns / 1000000000);
    batch_record_put_time(b, "expires", r->expires_s);
    for (int i = SL_BATCH_IN_PROGRESS; i < SL_BATCH_N_STATUS; i++)
        batch_record_put_time(b, names[i], r->at_s[i]);
    sl_buf_printf(b, ",\"request_counts\":{\"total\":%llu,\"completed\":%llu,\"failed\":%llu}",
                  (unsigned long long)r->n_total, (unsigned long long)r->n_good,
                  (unsigned long long)r->n_bad);
    SL_PUT(b, ",\"metadata\":");
    batch_record_put_tree(b, r->metadata);
    if (on_disk) {
        put_string(b, "owner", r->owner);
        SL_PUT(b, ",\"created_ns\":");
        sl_put_i64(b, r->created_ns);
    }
    sl_buf_putc(b, '}');
}

/* ---- reading */

/* null and absence are "". */
static bool batch_record_copy(const json_t *root, const char *name, char *out, size_t n_out)
{
    const json_t *v = json_object_get(root, name);
    const char *s = json_is_string(v) ? json_string_value(v) : "";
    size_t n = strlen(s);
    if ((v != NULL && !json_is_string(v) && !json_is_null(v)) || n >= n_out)
        return false;
    memcpy(out, s, n + 1);
    return true;
}

/* In no other characters a name of a file could be more than a name. */
static bool batch_record_is_plain(const char *id, const char *prefix, size_t n)
{
    uint64_t x;
    size_t n_prefix = strlen(prefix);
    return strlen(id) == n && strncmp(id, prefix, n_prefix) == 0 &&
           sl_parse_hex_u64(id + n_prefix, 16, &x) && sl_parse_hex_u64(id + n_prefix + 16, 16, &x);
}

static int64_t read_time(const json_t *root, const char *name)
{
    char key[32] = "";
    size_t n = strlen(name);
    SL_ASSERT(n + 4 < sizeof key);
    memcpy(key, name, n);
    memcpy(key + n, "_at", 4);
    return json_integer_value(json_object_get(root, key)); /* 0 for null */
}

static bool batch_record_read_members(struct sl_batch_record *r, const json_t *root)
{
    char status[16];
    int i = 0;
    if (!batch_record_copy(root, "id", r->id, sizeof r->id) ||
        !batch_record_is_plain(r->id, "batch_", SL_BATCH_ID_BYTES) ||
        !batch_record_copy(root, "owner", r->owner, sizeof r->owner) ||
        !batch_record_copy(root, "endpoint", r->endpoint, sizeof r->endpoint) ||
        !batch_record_copy(root, "completion_window", r->window, sizeof r->window) ||
        !batch_record_copy(root, "input_file_id", r->input_id, sizeof r->input_id) ||
        !batch_record_is_plain(r->input_id, "file-", SL_FILE_ID_BYTES) ||
        !batch_record_copy(root, "output_file_id", r->output_id, sizeof r->output_id) ||
        !batch_record_copy(root, "error_file_id", r->error_id, sizeof r->error_id) ||
        (r->output_id[0] != '\0' &&
         !batch_record_is_plain(r->output_id, "file-", SL_FILE_ID_BYTES)) ||
        (r->error_id[0] != '\0' &&
         !batch_record_is_plain(r->error_id, "file-", SL_FILE_ID_BYTES)) ||
        !batch_record_copy(root, "status", status, sizeof status) ||
        !sl_batch_is_endpoint(r->endpoint))
        return false;
    while (i < SL_BATCH_N_STATUS && strcmp(names[i], status) != 0)
        i++;
    if (i == SL_BATCH_N_STATUS)
        return false;
    r->status = (enum sl_batch_status)i;
    return true;
}

static uint64_t batch_record_read_count(const json_t *counts, const char *name)
{
    json_int_t x = json_integer_value(json_object_get(counts, name));
    return x > 0 ? (uint64_t)x : 0;
}

struct sl_batch_record *sl_batch_record_read(const char *text, size_t n)
{
    struct sl_refusal refusal;
    json_t *root = NULL;
    struct sl_batch_record *r = sl_calloc(1, sizeof *r);
    if (r == NULL || sl_json_parse_object(text, n, &root, &refusal) != 0 ||
        !batch_record_read_members(r, root)) {
        json_decref(root);
        sl_batch_record_free(r);
        return NULL;
    }
    r->created_ns = json_integer_value(json_object_get(root, "created_ns"));
    r->expires_s = read_time(root, "expires");
    for (int i = SL_BATCH_IN_PROGRESS; i < SL_BATCH_N_STATUS; i++)
        r->at_s[i] = read_time(root, names[i]);
    const json_t *counts = json_object_get(root, "request_counts");
    r->n_total = batch_record_read_count(counts, "total");
    r->n_good = batch_record_read_count(counts, "completed");
    r->n_bad = batch_record_read_count(counts, "failed");
    json_t *metadata = json_object_get(root, "metadata");
    json_t *errors = json_object_get(json_object_get(root, "errors"), "data");
    r->metadata = json_is_object(metadata) ? json_incref(metadata) : NULL;
    r->errors = json_is_array(errors) ? json_incref(errors) : NULL;
    json_decref(root);
    return r;
}
