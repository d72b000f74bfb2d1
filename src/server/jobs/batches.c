/* SPDX-License-Identifier: MIT
 *
 * The thread looks at all batches that have not ended whenever something happened to one of them,
 * and does what the status of each asks for (look). All of that can be done again: a server that
 * was killed within it finds the same status, and does it.
 */
#include "server/jobs/batches.h"

#include "base/check.h"
#include "base/fs.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sys.h"
#include "server/http/listen.h"
#include "server/http/sse.h"
#include "server/jobs/batch_pool.h"
#include "server/jobs/batch_record.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define MAX_RECORD (1u << 20)

struct sl_batch_work { /* files that are open, in the pool or about to be */
    struct sl_batches *b;
    struct sl_batch_record *rec;
    struct sl_batch_file file;
    struct sl_batch_job job;
    uint64_t charged; /* bytes of the part that count towards the store's limit */
};

struct sl_batches {
    struct sl_server *server;
    struct sl_file_store *files;
    char *dir;
    char (*owners)[SL_FILE_OWNER_HEX + 1]; /* of the keys */
    int n_owners;
    size_t n_slots; /* requests at a time */
    pthread_mutex_t lock;
    struct sl_batch_record **recs; /* lock; oldest first */
    size_t n_recs, cap_recs, n_open;
    /* the thread's */
    pthread_t thread;
    bool started;
    atomic_bool stopping;
    int wake_fd;
    struct event_base *base;
    struct event *ev_wake, *ev_expiry;
    struct sl_http_url url;
    struct sl_batch_pool *pool;
};

struct sl_file_store *sl_batches_files(const struct sl_batches *b)
{
    return b->files;
}

const char *sl_batches_owner(const struct sl_batches *b, int key)
{
    SL_ASSERT(key >= 0 && key < b->n_owners);
    return b->owners[key];
}

uint64_t sl_batches_n_fds(const struct sl_batches *b)
{
    return 2 * (uint64_t)b->n_slots;
}

static void batches_wake(struct sl_batches *b)
{
    const uint64_t one = 1;
    (void)!write(b->wake_fd, &one, sizeof one);
}

static void path_of(const struct sl_batches *b, const struct sl_batch_record *rec, const char *end,
                    char out[SL_MAX_STORE_PATH])
{
    int n = snprintf(out, SL_MAX_STORE_PATH, "%s/%s%s", b->dir, rec->id, end);
    SL_ASSERT(n > 0 && n < SL_MAX_STORE_PATH);
}

/* With the lock, or before others know the record. */
static int save(const struct sl_batches *b, const struct sl_batch_record *rec, struct sl_error *err)
{
    char path[SL_MAX_STORE_PATH];
    struct sl_buf text = {0};
    sl_batch_record_put(&text, rec, true);
    sl_buf_putc(&text, '\n');
    path_of(b, rec, ".json", path);
    int rc = sl_buf_ok(&text) ? sl_replace_file(path, text.data, text.n_bytes, err)
                              : sl_fail(err, SL_ENOMEM, "out of memory");
    sl_buf_deinit(&text);
    return rc;
}

static enum sl_batch_status batches_status_of(struct sl_batches *b,
                                              const struct sl_batch_record *rec)
{
    pthread_mutex_lock(&b->lock);
    enum sl_batch_status status = rec->status;
    pthread_mutex_unlock(&b->lock);
    return status;
}

/* What cannot be written is found out again by the next server, which does the step once more. One
 * that was cancelled meanwhile does not go on. */
static void move(struct sl_batches *b, struct sl_batch_record *rec, enum sl_batch_status status)
{
    struct sl_error err;
    pthread_mutex_lock(&b->lock);
    if (rec->status != SL_BATCH_CANCELLING || status > SL_BATCH_CANCELLING)
        sl_batch_record_move(rec, status);
    b->n_open -= sl_batch_has_ended(rec);
    if (save(b, rec, &err) != 0)
        sl_log(SL_LOG_ERROR, "%s: its state cannot be kept: %s", rec->id, err.msg);
    pthread_mutex_unlock(&b->lock);
}

/* ---- the end of a batch */

static void close_work(struct sl_batch_record *rec)
{
    struct sl_batch_work *w = rec->work;
    if (w == NULL)
        return;
    sl_batch_close(&w->file);
    (void)sl_file_store_charge(w->b->files, -(int64_t)w->charged);
    sl_free(w);
    rec->work = NULL;
}

static void drop_part(const struct sl_batches *b, const struct sl_batch_record *rec)
{
    char path[SL_MAX_STORE_PATH];
    path_of(b, rec, ".part", path);
    sl_remove_file(path);
}

static void end(struct sl_batches *b, struct sl_batch_record *rec, enum sl_batch_status status)
{
    close_work(rec);
    move(b, rec, status);
    sl_file_store_let_go(b->files, rec->input_id);
    sl_log(SL_LOG_INFO, "%s: %llu requests, %llu completed, %llu failed", rec->id,
           (unsigned long long)rec->n_total, (unsigned long long)rec->n_good,
           (unsigned long long)rec->n_bad);
}

static void blame(struct sl_batches *b, struct sl_batch_record *rec, size_t line, const char *code,
                  const char *param, const char *message)
{
    pthread_mutex_lock(&b->lock);
    sl_batch_record_blame(rec, line, code, param, message);
    pthread_mutex_unlock(&b->lock);
}

static void forget_missing(struct sl_batches *b, struct sl_batch_record *rec, char *id)
{
    struct sl_buf ignored = {0};
    bool there = id[0] == '\0' ||
                 sl_file_store_get(b->files, rec->owner, (struct sl_str){id, strlen(id)}, &ignored);
    sl_buf_deinit(&ignored);
    pthread_mutex_lock(&b->lock);
    if (!there)
        id[0] = '\0';
    pthread_mutex_unlock(&b->lock);
}

/* The replies that there are stay in the part. Nobody is told of files that did not come to be. */
static void batches_fail(struct sl_batches *b, struct sl_batch_record *rec, const char *code,
                         const struct sl_error *err)
{
    sl_log(SL_LOG_ERROR, "%s: failed: %s", rec->id, err->msg);
    blame(b, rec, 0, code, NULL, err->msg);
    forget_missing(b, rec, rec->output_id);
    forget_missing(b, rec, rec->error_id);
    end(b, rec, SL_BATCH_FAILED);
}

static void batches_count(struct sl_batch_work *w)
{
    pthread_mutex_lock(&w->b->lock);
    w->rec->n_good = w->file.n_good;
    w->rec->n_bad = w->file.n_done - w->file.n_good;
    pthread_mutex_unlock(&w->b->lock);
}

static int write_output(struct sl_batches *b, struct sl_batch_work *w, enum sl_batch_which which,
                        const char *id, struct sl_error *err)
{
    char path[SL_MAX_STORE_PATH], name[SL_BATCH_ID_BYTES + 16];
    struct sl_batch_record *rec = w->rec;
    if (id[0] == '\0')
        return 0;
    sl_file_store_path(b->files, id, path);
    snprintf(name, sizeof name, "%s_%s.jsonl", rec->id,
             which == SL_BATCH_GOOD ? "output" : "error");
    int rc = sl_batch_write(&w->file, which, path, err);
    return rc != 0 ? rc : sl_file_store_adopt(b->files, rec->owner, id, name, "batch_output", err);
}

/* Names the files of the replies, so that whoever finishes it writes the same ones. */
static int name_outputs(struct sl_batches *b, struct sl_batch_work *w, struct sl_error *err)
{
    struct sl_batch_record *rec = w->rec;
    int rc = 0;
    pthread_mutex_lock(&b->lock);
    if (w->file.n_good > 0 && rec->output_id[0] == '\0')
        rc = sl_file_store_make_id("file-", rec->output_id, sizeof rec->output_id, err);
    if (rc == 0 && w->file.n_done > w->file.n_good && rec->error_id[0] == '\0')
        rc = sl_file_store_make_id("file-", rec->error_id, sizeof rec->error_id, err);
    if (rc == 0)
        rc = save(b, rec, err);
    pthread_mutex_unlock(&b->lock);
    return rc;
}

static void batches_finish(struct sl_batches *b, struct sl_batch_record *rec,
                           enum sl_batch_status last)
{
    struct sl_error err;
    struct sl_batch_work *w = rec->work;
    batches_count(w);
    if (last == SL_BATCH_COMPLETED && batches_status_of(b, rec) != SL_BATCH_FINALIZING)
        move(b, rec, SL_BATCH_FINALIZING);
    if (batches_status_of(b, rec) == SL_BATCH_CANCELLING)
        last = SL_BATCH_CANCELLED;
    int rc = name_outputs(b, w, &err);
    if (rc == 0)
        rc = write_output(b, w, SL_BATCH_GOOD, rec->output_id, &err);
    if (rc == 0)
        rc = write_output(b, w, SL_BATCH_BAD, rec->error_id, &err);
    if (rc != 0) {
        batches_fail(b, rec, "server_error", &err);
        return;
    }
    end(b, rec, last);
    drop_part(b, rec);
}

/* What was not answered in time is said to be late. */
static int put_late(struct sl_batch_work *w, struct sl_error *err)
{
    struct sl_error why, ignored;
    (void)sl_fail(&why, SL_ETIMEOUT,
                  "this request could not be executed before the completion window expired");
    for (size_t i = 0; i < w->file.n_lines; i++) {
        struct sl_batch_request req;
        if (w->file.lines[i].n_reply > 0)
            continue;
        (void)!sl_batch_read(&w->file, i, &req, &ignored); /* for its custom_id */
        int rc = sl_batch_put(&w->file, i, req.custom_id, 0, NULL, 0, &why, err);
        sl_batch_request_deinit(&req);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* ---- the beginning */

/* The field that the refusal of a line begins with, among those a line has. */
static const char *batches_param_of(const char *msg)
{
    static const char *const fields[] = {"custom_id", "method", "url", "body"};
    for (size_t i = 0; i < SL_COUNT(fields); i++) {
        size_t n = strlen(fields[i]);
        if (strncmp(msg, fields[i], n) == 0 && strchr(" .:", msg[n]) != NULL)
            return fields[i];
    }
    return NULL;
}

static size_t count_lines(const uint8_t *at, const uint8_t *to)
{
    const uint8_t *lf;
    size_t n = 0;
    for (; (lf = memchr(at, '\n', (size_t)(to - at))) != NULL; at = lf + 1)
        n++;
    return n;
}

static void check_line(struct sl_batch_work *w, size_t i, size_t number, json_t *ids)
{
    struct sl_batch_record *rec = w->rec;
    struct sl_batch_request req;
    struct sl_error err;
    int rc = sl_batch_read(&w->file, i, &req, &err);
    const char *id = json_string_value(req.custom_id);
    if (rc != 0)
        blame(w->b, rec, number, rc == SL_EINVAL ? "invalid_request" : "invalid_json_line",
              batches_param_of(err.msg), err.msg);
    else if (strcmp(req.url, rec->endpoint) != 0)
        blame(w->b, rec, number, "mismatched_url", "url", "url is not the endpoint of the batch");
    else if (json_object_get(ids, id) != NULL)
        blame(w->b, rec, number, "duplicate_custom_id", "custom_id",
              "custom_id: another line has the same");
    else if (json_object_set_new_nocheck(ids, id, json_true()) != 0)
        blame(w->b, rec, number, "server_error", NULL, "out of memory");
    sl_batch_request_deinit(&req);
}

/* False: told to stop within. */
static bool validate(struct sl_batches *b, struct sl_batch_work *w)
{
    const struct sl_batch_file *f = &w->file;
    const uint8_t *at = f->in.data;
    size_t number = 1;
    bool told = false;
    json_t *ids = json_object();
    for (size_t i = 0; i < f->n_lines && !told; i++) {
        const uint8_t *to = f->in.data + f->lines[i].at;
        number += count_lines(at, to);
        at = to;
        check_line(w, i, number, ids);
        told = atomic_load(&b->stopping) || json_array_size(w->rec->errors) == SL_MAX_BATCH_ERRORS;
    }
    json_decref(ids);
    return !atomic_load(&b->stopping);
}

static const char *key_of(const struct sl_batches *b, const struct sl_batch_record *rec,
                          bool *known)
{
    const struct sl_server_config *cfg = b->server->cfg;
    for (int i = 0; i < b->n_owners; i++) {
        if (strcmp(b->owners[i], rec->owner) != 0)
            continue;
        *known = true;
        return cfg->n_api_keys > 0 ? cfg->api_keys[i] : NULL;
    }
    *known = false;
    return NULL;
}

/* Opens the files; false: it cannot, and the batch has ended. */
static bool open_work(struct sl_batches *b, struct sl_batch_record *rec)
{
    char in[SL_MAX_STORE_PATH], part[SL_MAX_STORE_PATH];
    struct sl_error err;
    struct sl_batch_work *w = sl_calloc(1, sizeof *w);
    if (w == NULL) {
        (void)sl_fail(&err, SL_ENOMEM, "out of memory");
        batches_fail(b, rec, "server_error", &err);
        return false;
    }
    w->b = b;
    w->rec = rec;
    w->job = (struct sl_batch_job){.file = &w->file, .user = rec};
    rec->work = w;
    sl_file_store_path(b->files, rec->input_id, in);
    path_of(b, rec, ".part", part);
    int rc = sl_batch_open(in, part, SL_MAX_BATCH_LINES, &w->file, &err);
    if (rc != 0) {
        batches_fail(b, rec,
                     rc == SL_EFORMAT  ? "empty_file"
                     : rc == SL_ELIMIT ? "too_many_requests"
                                       : "server_error",
                     &err);
        if (rc == SL_EFORMAT || rc == SL_ELIMIT)
            drop_part(b, rec);
        return false;
    }
    pthread_mutex_lock(&b->lock);
    rec->n_total = w->file.n_lines;
    pthread_mutex_unlock(&b->lock);
    batches_count(w);
    return true;
}

static void batches_start(struct sl_batches *b, struct sl_batch_record *rec,
                          enum sl_batch_status status)
{
    bool known;
    const char *key = key_of(b, rec, &known);
    if (!known || sl_batch_pool_n(b->pool) == SL_MAX_BATCH_JOBS || !open_work(b, rec))
        return; /* its key may be back one day */
    struct sl_batch_work *w = rec->work;
    if (status == SL_BATCH_VALIDATING) {
        if (!validate(b, w)) {
            close_work(rec);
            return;
        }
        if (rec->errors != NULL) {
            end(b, rec, SL_BATCH_FAILED);
            drop_part(b, rec);
            return;
        }
        move(b, rec, SL_BATCH_IN_PROGRESS);
    }
    w->job.api_key = key;
    sl_batch_pool_add(b->pool, &w->job);
}

/* ---- the thread */

/* What the status of a batch asks for now. */
static void batches_look(struct sl_batches *b, struct sl_batch_record *rec, int64_t now_s)
{
    struct sl_error err;
    enum sl_batch_status status = batches_status_of(b, rec);
    bool cancelled = status == SL_BATCH_CANCELLING;
    bool late = now_s >= rec->expires_s && status != SL_BATCH_FINALIZING;
    if (!cancelled && !late) {
        if (rec->work == NULL)
            batches_start(b, rec, status);
        return;
    }
    if (rec->work != NULL)
        sl_batch_pool_remove(b->pool, &rec->work->job);
    else if (!open_work(b, rec))
        return;
    if (!cancelled && put_late(rec->work, &err) != 0)
        batches_fail(b, rec, "server_error", &err);
    else
        batches_finish(b, rec, cancelled ? SL_BATCH_CANCELLED : SL_BATCH_EXPIRED);
}

/* With the lock. Of those that have ended the oldest make room; no other thread frees one. */
static void batches_forget(struct sl_batches *b)
{
    char path[SL_MAX_STORE_PATH];
    for (size_t i = 0; i < b->n_recs && b->n_recs > SL_MAX_BATCHES;) {
        struct sl_batch_record *rec = b->recs[i];
        if (!sl_batch_has_ended(rec)) {
            i++;
            continue;
        }
        path_of(b, rec, ".json", path);
        sl_remove_file(path);
        drop_part(b, rec);
        sl_batch_record_free(rec);
        b->n_recs--;
        memmove(&b->recs[i], &b->recs[i + 1], (b->n_recs - i) * sizeof(struct sl_batch_record *));
    }
}

/* Those that have not ended, and when the first of them expires. */
static size_t list_open(struct sl_batches *b, struct sl_batch_record *open[SL_MAX_OPEN_BATCHES],
                        int64_t *first_s)
{
    size_t n = 0;
    *first_s = INT64_MAX;
    pthread_mutex_lock(&b->lock);
    batches_forget(b);
    for (size_t i = 0; i < b->n_recs && n < SL_MAX_OPEN_BATCHES; i++) {
        if (sl_batch_has_ended(b->recs[i]))
            continue;
        open[n++] = b->recs[i];
        *first_s = SL_MIN(*first_s, b->recs[i]->expires_s);
    }
    pthread_mutex_unlock(&b->lock);
    return n;
}

static void look_at_all(struct sl_batches *b)
{
    struct sl_batch_record *open[SL_MAX_OPEN_BATCHES];
    int64_t first_s, now_s = sl_wall_ns() / 1000000000;
    size_t n = list_open(b, open, &first_s);
    for (size_t i = 0; i < n && !atomic_load(&b->stopping); i++)
        batches_look(b, open[i], now_s);
    if (list_open(b, open, &first_s) == 0) {
        event_del(b->ev_expiry);
        return;
    }
    const struct timeval wait = {SL_MIN(SL_MAX(first_s - now_s, 0) + 1, 86400), 0};
    if (event_add(b->ev_expiry, &wait) != 0)
        sl_log(SL_LOG_WARN, "no memory for a timer: batches may expire late");
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    struct sl_batches *b = arg;
    uint64_t n;
    (void)what;
    if (fd >= 0)
        (void)!read(fd, &n, sizeof n);
    if (!atomic_load(&b->stopping))
        look_at_all(b);
    if (atomic_load(&b->stopping))
        event_base_loopbreak(b->base);
}

/* What the part has, and n_bytes that come, are to count. */
static void on_coming(void *arg, struct sl_batch_job *job, size_t n_bytes)
{
    struct sl_batches *b = arg;
    struct sl_batch_record *rec = job->user;
    struct sl_batch_work *w = rec->work;
    int64_t more = (int64_t)(w->file.part_bytes + n_bytes) - (int64_t)w->charged;
    if (sl_file_store_charge(b->files, more))
        w->charged = w->file.part_bytes + n_bytes;
    else if (job->rc == 0)
        job->rc = sl_fail(&job->err, SL_ELIMIT,
                          "the server has no room for more replies (--max-file-storage-bytes)");
}

static void batches_on_answered(void *arg, struct sl_batch_job *job)
{
    struct sl_batch_record *rec = job->user;
    batches_count(rec->work);
    on_coming(arg, job, 0);
}

static void batches_on_ended(void *arg, struct sl_batch_job *job)
{
    struct sl_batches *b = arg;
    struct sl_batch_record *rec = job->user;
    if (job->rc != 0) { /* what it has becomes files, which count, and which its owner may delete */
        sl_log(SL_LOG_ERROR, "%s: failed: %s", rec->id, job->err.msg);
        blame(b, rec, 0, "server_error", NULL, job->err.msg);
    }
    batches_finish(b, rec, job->rc != 0 ? SL_BATCH_FAILED : SL_BATCH_COMPLETED);
    batches_wake(b); /* others may wait for its place */
}

static int dial(void *arg)
{
    return sl_loop_dial(((struct sl_batches *)arg)->server);
}

static void *batches_thread_main(void *arg)
{
    struct sl_batches *b = arg;
    batches_wake(b);
    (void)event_base_dispatch(b->base);
    sl_batch_pool_destroy(b->pool); /* its connections end, and with them the requests */
    b->pool = NULL;
    return NULL;
}

int sl_batches_run(struct sl_batches *b, struct sl_error *err)
{
    static const struct sl_batch_pool_events events = {on_coming, batches_on_answered,
                                                       batches_on_ended};
    b->base = event_base_new();
    b->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (b->base == NULL || b->wake_fd < 0)
        return sl_fail(err, SL_ENOMEM, "cannot set up the thread of batches");
    b->ev_wake = event_new(b->base, b->wake_fd, EV_READ | EV_PERSIST, on_wake, b);
    b->ev_expiry = evtimer_new(b->base, on_wake, b);
    if (b->ev_wake == NULL || b->ev_expiry == NULL || event_add(b->ev_wake, NULL) != 0)
        return sl_fail(err, SL_ENOMEM, "cannot set up the thread of batches");
    snprintf(b->url.host, sizeof b->url.host, "localhost");
    b->url.dial = dial;
    b->url.dial_arg = b;
    b->url.patient = true;
    int rc = sl_batch_pool_create(b->base, &b->url, b->n_slots, &events, b, &b->pool, err);
    if (rc == 0)
        rc = sl_thread_create(&b->thread, batches_thread_main, b, "sl-batches", err);
    b->started = rc == 0;
    return rc;
}

void sl_batches_stop(struct sl_batches *b)
{
    if (b == NULL || !b->started)
        return;
    atomic_store(&b->stopping, true);
    batches_wake(b);
}

/* ---- opening and closing */

static int batches_by_age(const void *a, const void *b)
{
    const struct sl_batch_record *x = *(struct sl_batch_record *const *)a,
                                 *y = *(struct sl_batch_record *const *)b;
    if (x->created_ns != y->created_ns)
        return x->created_ns < y->created_ns ? -1 : 1;
    return strcmp(x->id, y->id);
}

static bool batches_make_room(struct sl_batches *b)
{
    if (b->n_recs < b->cap_recs)
        return true;
    size_t cap = b->cap_recs > 0 ? 2 * b->cap_recs : 64;
    struct sl_batch_record **recs = sl_realloc(b->recs, cap * sizeof(struct sl_batch_record *));
    if (recs == NULL)
        return false;
    b->recs = recs;
    b->cap_recs = cap;
    return true;
}

static int batches_load_one(void *arg, const char *name, uint64_t n_bytes, struct sl_error *err)
{
    struct sl_batches *b = arg;
    char path[SL_MAX_STORE_PATH], *text = NULL;
    struct sl_refusal r;
    size_t n_text, n = strlen(name);
    (void)n_bytes;
    if (n != SL_BATCH_ID_BYTES + 5 || memcmp(name + SL_BATCH_ID_BYTES, ".json", 5) != 0)
        return 0;
    if (b->n_recs == SL_MAX_BATCHES + SL_MAX_OPEN_BATCHES)
        return sl_fail(err, SL_ELIMIT, "more than %d batches", SL_MAX_BATCHES);
    int len = snprintf(path, sizeof path, "%s/%s", b->dir, name);
    SL_ASSERT(len > 0 && (size_t)len < sizeof path);
    int rc = sl_read_file(path, MAX_RECORD, &text, &n_text, err);
    if (rc != 0)
        return rc;
    struct sl_batch_record *rec = sl_batch_record_read(text, n_text);
    sl_free(text);
    if (rec == NULL || strncmp(rec->id, name, SL_BATCH_ID_BYTES) != 0 || !batches_make_room(b)) {
        sl_batch_record_free(rec);
        sl_log(SL_LOG_WARN, "%s: not the state of a batch: left out", path);
        return 0;
    }
    b->recs[b->n_recs++] = rec;
    if (sl_batch_has_ended(rec))
        return 0;
    b->n_open++;
    if (sl_file_store_hold(b->files, rec->owner, rec->input_id, "batch", true, &r) != 0)
        sl_log(SL_LOG_WARN, "%s: its input is missing", rec->id);
    return 0;
}

static int make_owners(struct sl_batches *b, struct sl_error *err)
{
    const struct sl_server_config *cfg = b->server->cfg;
    b->n_owners = SL_MAX(cfg->n_api_keys, 1);
    b->owners = sl_calloc((size_t)b->n_owners, sizeof *b->owners);
    if (b->owners == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    for (int i = 0; i < cfg->n_api_keys; i++)
        sl_file_store_owner(cfg->api_keys[i], b->owners[i]);
    return 0;
}

/* As many as run at a time, but so that three quarters of the descriptors are left to others. */
static size_t count_slots(const struct sl_server *server)
{
    size_t n = 0, most = (size_t)SL_MAX(sl_listen_raise_fd_limit() / 8, 1);
    for (int32_t i = 0; i < server->n_models; i++)
        n += (size_t)sl_engine_info(server->models[i].eng)->max_num_seqs;
    return SL_MIN(n, most);
}

int sl_batches_open(struct sl_server *server, struct sl_file_store *files, struct sl_batches **out,
                    struct sl_error *err)
{
    struct sl_batches *b = sl_calloc(1, sizeof *b);
    struct sl_buf dir = {0};
    if (b == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    pthread_mutex_init(&b->lock, NULL);
    b->server = server;
    b->files = files;
    b->n_slots = count_slots(server);
    b->wake_fd = -1;
    sl_buf_printf(&dir, "%s/batches", sl_file_store_dir(files));
    b->dir = sl_buf_steal(&dir, NULL);
    int rc = b->dir == NULL ? sl_fail(err, SL_ENOMEM, "out of memory") : make_owners(b, err);
    if (rc == 0)
        rc = sl_make_folders(b->dir, err);
    if (rc == 0)
        rc = sl_list_folder(b->dir, batches_load_one, b, err);
    if (rc != 0) {
        sl_batches_close(b);
        return rc;
    }
    if (b->n_recs > 0)
        qsort(b->recs, b->n_recs, sizeof(struct sl_batch_record *), batches_by_age);
    if (b->n_open > 0)
        sl_log(SL_LOG_INFO, "%zu batches continue", b->n_open);
    *out = b;
    return 0;
}

void sl_batches_close(struct sl_batches *b)
{
    if (b == NULL)
        return;
    sl_batches_stop(b);
    if (b->started)
        pthread_join(b->thread, NULL);
    sl_batch_pool_destroy(b->pool);
    for (size_t i = 0; i < b->n_recs; i++) {
        close_work(b->recs[i]);
        sl_batch_record_free(b->recs[i]);
    }
    if (b->ev_wake != NULL)
        event_free(b->ev_wake);
    if (b->ev_expiry != NULL)
        event_free(b->ev_expiry);
    if (b->base != NULL)
        event_base_free(b->base);
    if (b->wake_fd >= 0)
        sl_sys->close(b->wake_fd);
    sl_free(b->recs);
    sl_free(b->owners);
    sl_free(b->dir);
    pthread_mutex_destroy(&b->lock);
    sl_free(b);
}

/* ---- what clients ask; any thread */

static struct sl_batch_record *batches_find(struct sl_batches *b, const char *owner,
                                            struct sl_str id)
{
    for (size_t i = b->n_recs; i-- > 0;)
        if (sl_str_equals(id, b->recs[i]->id))
            return strcmp(b->recs[i]->owner, owner) == 0 ? b->recs[i] : NULL;
    return NULL;
}

static int insert(struct sl_batches *b, struct sl_batch_record *rec, struct sl_refusal *r)
{
    int rc = 0;
    pthread_mutex_lock(&b->lock);
    if (b->n_open == SL_MAX_OPEN_BATCHES) {
        r->code = "rate_limit_exceeded";
        rc = sl_refuse(r, SL_EBUSY, NULL, "%d batches are unfinished, the most that are allowed",
                       SL_MAX_OPEN_BATCHES);
    }
    if (rc == 0 && !batches_make_room(b))
        rc = sl_refuse(r, SL_ENOMEM, NULL, "out of memory");
    if (rc == 0)
        rc = save(b, rec, &r->err);
    if (rc == 0) {
        b->recs[b->n_recs++] = rec;
        b->n_open++;
    }
    pthread_mutex_unlock(&b->lock);
    return rc;
}

int sl_batches_create(struct sl_batches *b, const char *owner, const struct sl_batch_desc *desc,
                      struct sl_buf *out, struct sl_refusal *r)
{
    int64_t seconds = 0;
    if (!sl_batch_is_endpoint(desc->endpoint))
        return sl_refuse(r, SL_EINVAL, "endpoint", "endpoint: batches do not support '%.40s'",
                         desc->endpoint);
    if (!sl_batch_window(desc->window, &seconds))
        return sl_refuse(r, SL_EINVAL, "completion_window",
                         "completion_window must be a time of 1s to 30d, such as 24h");
    struct sl_batch_record *rec = sl_calloc(1, sizeof *rec);
    if (rec == NULL)
        return sl_refuse(r, SL_ENOMEM, NULL, "out of memory");
    int rc = sl_file_store_hold(b->files, owner, desc->input_file_id, "batch", false, r);
    bool held = rc == 0;
    if (rc == 0)
        rc = sl_file_store_make_id("batch_", rec->id, sizeof rec->id, &r->err);
    if (rc == 0) {
        snprintf(rec->owner, sizeof rec->owner, "%s", owner);
        snprintf(rec->endpoint, sizeof rec->endpoint, "%s", desc->endpoint);
        snprintf(rec->window, sizeof rec->window, "%s", desc->window);
        snprintf(rec->input_id, sizeof rec->input_id, "%.*s", SL_FILE_ID_BYTES,
                 desc->input_file_id);
        rec->metadata = desc->metadata != NULL ? json_incref(desc->metadata) : NULL;
        rec->created_ns = sl_wall_ns();
        rec->expires_s = rec->created_ns / 1000000000 + seconds;
        sl_batch_record_put(out, rec, false); /* a batch that nobody is told of would run */
        rc = sl_buf_ok(out) ? insert(b, rec, r) : sl_refuse(r, SL_ENOMEM, NULL, "out of memory");
    }
    if (rc == 0) {
        batches_wake(b);
        return 0;
    }
    if (held)
        sl_file_store_let_go(b->files, desc->input_file_id);
    sl_batch_record_free(rec);
    return rc;
}

int sl_batches_get(struct sl_batches *b, const char *owner, struct sl_str id, struct sl_buf *out,
                   struct sl_refusal *r)
{
    pthread_mutex_lock(&b->lock);
    const struct sl_batch_record *rec = batches_find(b, owner, id);
    if (rec != NULL)
        sl_batch_record_put(out, rec, false);
    pthread_mutex_unlock(&b->lock);
    return rec != NULL ? 0 : sl_refuse(r, SL_ENOTFOUND, NULL, "there is no such batch");
}

int sl_batches_cancel(struct sl_batches *b, const char *owner, struct sl_str id, struct sl_buf *out,
                      struct sl_refusal *r)
{
    int rc = 0;
    pthread_mutex_lock(&b->lock);
    struct sl_batch_record *rec = batches_find(b, owner, id);
    if (rec == NULL) {
        rc = sl_refuse(r, SL_ENOTFOUND, NULL, "there is no such batch");
    } else if (sl_batch_has_ended(rec) || rec->status == SL_BATCH_FINALIZING) {
        rc = sl_refuse(r, SL_EINVAL, NULL, "the batch has ended, or is about to");
    } else if (rec->status != SL_BATCH_CANCELLING) {
        sl_batch_record_move(rec, SL_BATCH_CANCELLING);
        rc = save(b, rec, &r->err);
    }
    if (rc == 0)
        sl_batch_record_put(out, rec, false);
    pthread_mutex_unlock(&b->lock);
    if (rc == 0)
        batches_wake(b);
    return rc;
}

int sl_batches_list(struct sl_batches *b, const char *owner, struct sl_str after, int64_t limit,
                    struct sl_buf *out, struct sl_refusal *r)
{
    const struct sl_batch_record *first = NULL, *last = NULL;
    int64_t n = 0;
    bool more = false, seen = after.n == 0;
    pthread_mutex_lock(&b->lock);
    if (!seen && batches_find(b, owner, after) == NULL) {
        pthread_mutex_unlock(&b->lock);
        return sl_refuse(r, SL_EINVAL, "after", "after: there is no such batch");
    }
    SL_PUT(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = b->n_recs; i-- > 0 && !more;) {
        const struct sl_batch_record *rec = b->recs[i];
        if (!seen) {
            seen = sl_str_equals(after, rec->id);
            continue;
        }
        if (strcmp(rec->owner, owner) != 0)
            continue;
        more = n == limit;
        if (more)
            break;
        if (n++ > 0)
            sl_buf_putc(out, ',');
        sl_batch_record_put(out, rec, false);
        first = first != NULL ? first : rec;
        last = rec;
    }
    sl_buf_printf(
        out, "],\"first_id\":%s%s%s,\"last_id\":%s%s%s,\"has_more\":%s}", first != NULL ? "\"" : "",
        first != NULL ? first->id : "null", first != NULL ? "\"" : "", last != NULL ? "\"" : "",
        last != NULL ? last->id : "null", last != NULL ? "\"" : "", more ? "true" : "false");
    pthread_mutex_unlock(&b->lock);
    return 0;
}
