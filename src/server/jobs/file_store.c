/* SPDX-License-Identifier: MIT */
#include "server/jobs/file_store.h"

#include "base/check.h"
#include "base/fs.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/str.h"
#include "base/sys.h"
#include "server/http/sse.h"

#include <fcntl.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ID_PREFIX   "file-"
#define META_SUFFIX ".json"
#define MAX_META    (16u << 10)
#define N_RESULTS   2 /* files that a batch makes of one that is held */

struct file {
    char id[SL_FILE_ID_BYTES + 1];
    char owner[SL_FILE_OWNER_HEX + 1];
    char purpose[16];
    char *name;
    uint64_t n_bytes;
    int64_t created_ns; /* since 1970 */
    int n_holds;
};

struct sl_file_store {
    pthread_mutex_t lock;
    char *dir, *files_dir;
    int lock_fd;
    struct file *files; /* oldest first */
    size_t n_files, cap_files;
    size_t n_coming; /* files that are being written */
    size_t n_held;   /* holds of all files */
    uint64_t n_bytes, max_bytes;
};

/* ---- names */

void sl_file_store_owner(const char *key, char out[SL_FILE_OWNER_HEX + 1])
{
    static const char salt[] = "sluice: owner of files\n";
    unsigned char digest[SHA256_DIGEST_LENGTH];
    struct sl_buf b = {0};
    out[0] = '\0';
    if (key == NULL)
        return;
    SL_PUT(&b, "sluice: owner of files\n");
    sl_buf_puts(&b, key);
    /* Without memory for a short text nothing goes on; the digest of less must not be an owner. */
    SL_ASSERT(sl_buf_ok(&b) && b.n_bytes >= sizeof salt - 1);
    SHA256((const unsigned char *)b.data, b.n_bytes, digest);
    sl_buf_deinit(&b);
    for (size_t i = 0; i < SL_FILE_OWNER_HEX / 2; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

int sl_file_store_make_id(const char *prefix, char *out, size_t n_out, struct sl_error *err)
{
    uint64_t x[2];
    int rc = sl_random(x, sizeof x, err);
    int n = snprintf(out, n_out, "%s%016llx%016llx", prefix, (unsigned long long)x[0],
                     (unsigned long long)x[1]);
    SL_ASSERT(n > 0 && (size_t)n < n_out);
    return rc;
}

static bool is_id(struct sl_str s)
{
    uint64_t x;
    const size_t n = sizeof ID_PREFIX - 1;
    for (size_t i = n; i < s.n; i++)
        if (s.p[i] >= 'A' && s.p[i] <= 'F')
            return false;
    return s.n == SL_FILE_ID_BYTES && memcmp(s.p, ID_PREFIX, n) == 0 &&
           sl_parse_hex_u64(s.p + n, 16, &x) && sl_parse_hex_u64(s.p + n + 16, 16, &x);
}

void sl_file_store_path(const struct sl_file_store *s, const char *id, char out[SL_MAX_STORE_PATH])
{
    int n = snprintf(out, SL_MAX_STORE_PATH, "%s/%s", s->files_dir, id);
    SL_ASSERT(n > 0 && n < SL_MAX_STORE_PATH);
}

static void meta_path(const struct sl_file_store *s, const char *id, char out[SL_MAX_STORE_PATH])
{
    int n = snprintf(out, SL_MAX_STORE_PATH, "%s/%s" META_SUFFIX, s->files_dir, id);
    SL_ASSERT(n > 0 && n < SL_MAX_STORE_PATH);
}

const char *sl_file_store_dir(const struct sl_file_store *s)
{
    return s->dir;
}

/* ---- what is known of a file */

static void put_members(struct sl_buf *b, const struct file *f)
{
    SL_PUT(b, "{\"id\":\"");
    sl_buf_puts(b, f->id);
    SL_PUT(b, "\",\"object\":\"file\",\"bytes\":");
    sl_put_u64(b, f->n_bytes);
    SL_PUT(b, ",\"created_at\":");
    sl_put_i64(b, f->created_ns / 1000000000);
    SL_PUT(b, ",\"filename\":");
    sl_buf_json_string(b, f->name, strlen(f->name));
    SL_PUT(b, ",\"purpose\":\"");
    sl_buf_puts(b, f->purpose);
    SL_PUT(b, "\",\"status\":\"processed\",\"status_details\":null,\"expires_at\":null");
}

static void put_file(struct sl_buf *b, const struct file *f)
{
    put_members(b, f);
    sl_buf_putc(b, '}');
}

static int save_meta(const struct sl_file_store *s, const struct file *f, struct sl_error *err)
{
    char path[SL_MAX_STORE_PATH];
    struct sl_buf b = {0};
    put_members(&b, f);
    SL_PUT(&b, ",\"owner\":\"");
    sl_buf_puts(&b, f->owner);
    SL_PUT(&b, "\",\"created_ns\":");
    sl_put_i64(&b, f->created_ns);
    SL_PUT(&b, "}\n");
    meta_path(s, f->id, path);
    int rc = sl_buf_ok(&b) ? sl_replace_file_durably(path, b.data, b.n_bytes, err)
                           : sl_fail(err, SL_ENOMEM, "out of memory");
    sl_buf_deinit(&b);
    return rc;
}

static bool copy_member(const json_t *root, const char *name, char *out, size_t n_out)
{
    const char *s = json_string_value(json_object_get(root, name));
    size_t n = s != NULL ? strlen(s) : n_out;
    if (n >= n_out)
        return false;
    memcpy(out, s, n + 1);
    return true;
}

/* ---- the list; with the lock, or before others know the store */

static struct file *file_store_find(struct sl_file_store *s, const char *owner, struct sl_str id)
{
    for (size_t i = 0; i < s->n_files; i++) {
        struct file *f = &s->files[i];
        if (sl_str_equals(id, f->id))
            return owner == NULL || strcmp(f->owner, owner) == 0 ? f : NULL;
    }
    return NULL;
}

/* For one more, beside those that are coming. */
static bool file_store_make_room(struct sl_file_store *s)
{
    if (s->n_files + s->n_coming < s->cap_files)
        return true;
    size_t cap = s->cap_files > 0 ? 2 * s->cap_files : 64;
    struct file *files = sl_realloc(s->files, cap * sizeof *files);
    if (files == NULL)
        return false;
    s->files = files;
    s->cap_files = cap;
    return true;
}

static void put_in_list(struct sl_file_store *s, const struct file *f)
{
    SL_ASSERT(s->n_files < s->cap_files);
    s->files[s->n_files++] = *f;
    s->n_bytes += f->n_bytes;
}

static void file_store_take_out(struct sl_file_store *s, struct file *f)
{
    SL_ASSERT(f >= s->files && f < s->files + s->n_files && s->n_bytes >= f->n_bytes);
    s->n_bytes -= f->n_bytes;
    sl_free(f->name);
    memmove(f, f + 1, (size_t)(s->files + s->n_files - f - 1) * sizeof *f);
    s->n_files--;
}

/* ---- opening */

static int load_meta(struct sl_file_store *s, const char *name)
{
    char path[SL_MAX_STORE_PATH], *text = NULL;
    size_t n_text = 0, n_id = strlen(name) - (sizeof META_SUFFIX - 1);
    struct sl_error err;
    struct sl_refusal r;
    json_t *root = NULL;
    struct file f = {0};
    SL_ASSERT(n_id == SL_FILE_ID_BYTES);
    memcpy(f.id, name, n_id);
    meta_path(s, f.id, path);
    if (sl_read_file(path, MAX_META, &text, &n_text, &err) != 0)
        return -1;
    int rc = sl_json_parse_object(text, n_text, &root, &r);
    sl_free(text);
    if (rc != 0)
        return -1;
    const char *filename = json_string_value(json_object_get(root, "filename"));
    sl_file_store_path(s, f.id, path);
    bool ok = copy_member(root, "owner", f.owner, sizeof f.owner) &&
              copy_member(root, "purpose", f.purpose, sizeof f.purpose) && filename != NULL &&
              json_is_integer(json_object_get(root, "created_ns")) &&
              sl_file_bytes(path, &f.n_bytes) && file_store_make_room(s);
    f.created_ns = json_integer_value(json_object_get(root, "created_ns"));
    f.name = ok ? sl_strdup(filename) : NULL;
    if (f.name != NULL)
        put_in_list(s, &f);
    json_decref(root);
    return f.name != NULL ? 0 : -1;
}

static int file_store_load_one(void *arg, const char *name, uint64_t n_bytes, struct sl_error *err)
{
    struct sl_file_store *s = arg;
    size_t n = strlen(name);
    (void)n_bytes;
    (void)err;
    if (n != SL_FILE_ID_BYTES + sizeof META_SUFFIX - 1 || !sl_ends_with(name, META_SUFFIX) ||
        !is_id((struct sl_str){name, SL_FILE_ID_BYTES}))
        return 0;
    if (load_meta(s, name) != 0)
        sl_log(SL_LOG_WARN, "%s/%s: not a file's description, or its content is missing: left out",
               s->files_dir, name);
    return 0;
}

/* Content whose description was never written. What looks otherwise is not ours. */
static int drop_orphan(void *arg, const char *name, uint64_t n_bytes, struct sl_error *err)
{
    struct sl_file_store *s = arg;
    char path[SL_MAX_STORE_PATH];
    size_t n = strlen(name);
    struct sl_str id = {name, n};
    bool half = n > SL_FILE_ID_BYTES && is_id((struct sl_str){name, SL_FILE_ID_BYTES}) &&
                sl_ends_with(name, ".tmp");
    (void)n_bytes;
    (void)err;
    if (!half && !is_id(id))
        return 0;
    if (!half) {
        char meta[SL_FILE_ID_BYTES + sizeof META_SUFFIX];
        snprintf(meta, sizeof meta, "%s" META_SUFFIX, name);
        sl_file_store_path(s, meta, path);
        if (sl_exists(path))
            return 0;
    }
    sl_file_store_path(s, name, path);
    sl_remove_file(path);
    return 0;
}

static int file_store_by_age(const void *a, const void *b)
{
    const struct file *x = a, *y = b;
    if (x->created_ns != y->created_ns)
        return x->created_ns < y->created_ns ? -1 : 1;
    return strcmp(x->id, y->id);
}

static char *file_store_join(const char *dir, const char *name)
{
    struct sl_buf b = {0};
    size_t n;
    sl_buf_puts(&b, dir);
    sl_buf_puts(&b, name);
    return sl_buf_steal(&b, &n);
}

static int take_folder(struct sl_file_store *s, struct sl_error *err)
{
    char *path = s->files_dir != NULL ? file_store_join(s->dir, "/lock") : NULL;
    if (path == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    int rc = strlen(s->files_dir) + 64 > SL_MAX_STORE_PATH
                 ? sl_fail(err, SL_ELIMIT, "the path is too long")
                 : sl_make_folders(s->files_dir, err);
    if (rc == 0)
        rc = sl_sync_folder(s->dir, err);
    if (rc == 0) {
        int held = sl_try_lock(path, &s->lock_fd, err);
        rc = held < 0    ? held
             : held == 0 ? sl_fail(err, SL_EBUSY, "another server uses this folder")
                         : 0;
    }
    sl_free(path);
    if (rc == 0)
        rc = sl_list_folder(s->files_dir, drop_orphan, s, err);
    if (rc == 0)
        rc = sl_list_folder(s->files_dir, file_store_load_one, s, err);
    if (s->n_files > 0)
        qsort(s->files, s->n_files, sizeof *s->files, file_store_by_age);
    return rc;
}

int sl_file_store_open(const char *dir, uint64_t max_bytes, struct sl_file_store **out,
                       struct sl_error *err)
{
    struct sl_file_store *s = sl_calloc(1, sizeof *s);
    if (s == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    pthread_mutex_init(&s->lock, NULL);
    s->lock_fd = -1;
    s->max_bytes = max_bytes;
    s->dir = sl_strdup(dir);
    s->files_dir = file_store_join(dir, "/files");
    int rc = s->dir == NULL ? sl_fail(err, SL_ENOMEM, "out of memory") : take_folder(s, err);
    if (rc != 0) {
        sl_file_store_close(s);
        return err != NULL && sl_starts_with(err->msg, dir) /* not the path twice */
                   ? sl_error_prefix(err, rc, "--file-storage-path")
                   : sl_error_prefix(err, rc, "--file-storage-path %s", dir);
    }
    *out = s;
    return 0;
}

void sl_file_store_close(struct sl_file_store *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; i < s->n_files; i++)
        sl_free(s->files[i].name);
    if (s->lock_fd >= 0)
        sl_unlock(s->lock_fd);
    sl_free(s->files);
    sl_free(s->dir);
    sl_free(s->files_dir);
    pthread_mutex_destroy(&s->lock);
    sl_free(s);
}

/* ---- adding */

/* With the lock. Is there a place for n more files? */
static int check_places(const struct sl_file_store *s, size_t n, struct sl_refusal *r)
{
    if (s->n_files + s->n_coming + N_RESULTS * s->n_held + n <= SL_MAX_STORED_FILES)
        return 0;
    r->code = "storage_limit_exceeded";
    return sl_refuse(r, SL_ELIMIT, NULL, "this server keeps %d files: delete some",
                     SL_MAX_STORED_FILES);
}

/* Room for one more of n bytes, which is held until the file is in the list or given up. */
static int file_store_reserve(struct sl_file_store *s, uint64_t n_bytes, struct sl_refusal *r)
{
    pthread_mutex_lock(&s->lock);
    int rc = check_places(s, 1, r);
    if (rc == 0 && (n_bytes > s->max_bytes || s->n_bytes > s->max_bytes - n_bytes)) {
        r->code = "storage_limit_exceeded";
        rc = sl_refuse(r, SL_ELIMIT, NULL,
                       "files may have %llu bytes together (--max-file-storage-bytes): delete some",
                       (unsigned long long)s->max_bytes);
    }
    if (rc == 0 && !file_store_make_room(s))
        rc = sl_refuse(r, SL_ENOMEM, NULL, "out of memory");
    if (rc == 0) {
        s->n_coming++;
        s->n_bytes += n_bytes;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* The end of what reserve began: into the list, unless rc says that nothing came of it. */
static int settle(struct sl_file_store *s, struct file *f, uint64_t reserved, int rc)
{
    pthread_mutex_lock(&s->lock);
    SL_ASSERT(s->n_coming > 0 && s->n_bytes >= reserved);
    s->n_coming--;
    s->n_bytes -= reserved;
    if (rc == 0)
        put_in_list(s, f);
    pthread_mutex_unlock(&s->lock);
    if (rc != 0)
        sl_free(f->name);
    return rc;
}

static int init_file(struct file *f, const char *owner, const char *name, const char *purpose,
                     struct sl_error *err)
{
    SL_ASSERT(strlen(owner) < sizeof f->owner && strlen(purpose) < sizeof f->purpose);
    snprintf(f->owner, sizeof f->owner, "%s", owner);
    snprintf(f->purpose, sizeof f->purpose, "%s", purpose);
    f->created_ns = sl_wall_ns();
    f->name = sl_strdup(name);
    return f->name != NULL ? 0 : sl_fail(err, SL_ENOMEM, "out of memory");
}

int sl_file_store_add(struct sl_file_store *s, const char *owner, const char *name,
                      const char *purpose, struct sl_str data, struct sl_buf *out,
                      struct sl_refusal *r)
{
    struct file f = {.n_bytes = data.n};
    char path[SL_MAX_STORE_PATH], meta[SL_MAX_STORE_PATH];
    int rc = file_store_reserve(s, data.n, r);
    if (rc != 0)
        return rc;
    rc = sl_file_store_make_id(ID_PREFIX, f.id, sizeof f.id, &r->err);
    if (rc == 0)
        rc = init_file(&f, owner, name, purpose, &r->err);
    if (rc == 0) {
        put_file(out, &f); /* a file that nobody is told of would stay */
        rc = sl_buf_ok(out) ? 0 : sl_fail(&r->err, SL_ENOMEM, "out of memory");
    }
    if (rc != 0)
        return settle(s, &f, data.n, rc);
    sl_file_store_path(s, f.id, path);
    meta_path(s, f.id, meta);
    rc = sl_replace_file_durably(path, data.p, data.n, &r->err);
    if (rc == 0)
        rc = save_meta(s, &f, &r->err);
    if (rc != 0) {
        sl_remove_file(meta);
        sl_remove_file(path);
        sl_log(SL_LOG_ERROR, "a file cannot be kept: %s", r->err.msg);
    }
    return settle(s, &f, data.n, rc);
}

int sl_file_store_adopt(struct sl_file_store *s, const char *owner, const char *id,
                        const char *name, const char *purpose, struct sl_error *err)
{
    struct file f = {0};
    char path[SL_MAX_STORE_PATH];
    pthread_mutex_lock(&s->lock);
    bool there = file_store_find(s, NULL, (struct sl_str){id, strlen(id)}) != NULL;
    bool room = there || file_store_make_room(s);
    s->n_coming += !there && room; /* a batch's own: the limits were its */
    pthread_mutex_unlock(&s->lock);
    if (there || !room)
        return there ? 0 : sl_fail(err, SL_ENOMEM, "out of memory");
    SL_ASSERT(strlen(id) == SL_FILE_ID_BYTES);
    memcpy(f.id, id, SL_FILE_ID_BYTES);
    sl_file_store_path(s, id, path);
    int rc = sl_file_bytes(path, &f.n_bytes) ? init_file(&f, owner, name, purpose, err)
                                             : sl_fail(err, SL_EIO, "%s is missing", path);
    if (rc == 0)
        rc = save_meta(s, &f, err);
    return settle(s, &f, 0, rc);
}

bool sl_file_store_charge(struct sl_file_store *s, int64_t n_bytes)
{
    pthread_mutex_lock(&s->lock);
    bool ok = n_bytes <= 0 ||
              (s->n_bytes <= s->max_bytes && (uint64_t)n_bytes <= s->max_bytes - s->n_bytes);
    SL_ASSERT(n_bytes >= 0 || s->n_bytes >= (uint64_t)-n_bytes);
    if (ok)
        s->n_bytes += (uint64_t)n_bytes;
    pthread_mutex_unlock(&s->lock);
    return ok;
}

/* ---- asking */

static int no_such_file(struct sl_refusal *r, const char *param)
{
    return sl_refuse(r, SL_ENOTFOUND, param, "there is no such file");
}

bool sl_file_store_get(struct sl_file_store *s, const char *owner, struct sl_str id,
                       struct sl_buf *out)
{
    pthread_mutex_lock(&s->lock);
    const struct file *f = file_store_find(s, owner, id);
    if (f != NULL)
        put_file(out, f);
    pthread_mutex_unlock(&s->lock);
    return f != NULL;
}

static bool file_store_matches(const struct file *f, const char *owner,
                               const struct sl_file_query *q)
{
    return strcmp(f->owner, owner) == 0 &&
           (q->purpose.n == 0 || sl_str_equals(q->purpose, f->purpose));
}

int sl_file_store_list(struct sl_file_store *s, const char *owner, const struct sl_file_query *q,
                       struct sl_buf *out, struct sl_refusal *r)
{
    const struct file *first = NULL, *last = NULL, *f = NULL;
    int64_t n = 0;
    bool more = false;
    pthread_mutex_lock(&s->lock);
    if (q->after.n > 0 && (f = file_store_find(s, owner, q->after)) == NULL) {
        pthread_mutex_unlock(&s->lock);
        return sl_refuse(r, SL_EINVAL, "after", "after: there is no such file");
    }
    size_t n_before = f == NULL      ? 0
                      : q->ascending ? (size_t)(f - s->files) + 1
                                     : s->n_files - (size_t)(f - s->files);
    SL_PUT(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = n_before; i < s->n_files && !more; i++) {
        f = &s->files[q->ascending ? i : s->n_files - 1 - i];
        if (!file_store_matches(f, owner, q))
            continue;
        more = n == q->limit;
        if (more)
            break;
        if (n++ > 0)
            sl_buf_putc(out, ',');
        put_file(out, f);
        first = first != NULL ? first : f;
        last = f;
    }
    sl_buf_printf(
        out, "],\"first_id\":%s%s%s,\"last_id\":%s%s%s,\"has_more\":%s}", first != NULL ? "\"" : "",
        first != NULL ? first->id : "null", first != NULL ? "\"" : "", last != NULL ? "\"" : "",
        last != NULL ? last->id : "null", last != NULL ? "\"" : "", more ? "true" : "false");
    pthread_mutex_unlock(&s->lock);
    return 0;
}

int sl_file_store_delete(struct sl_file_store *s, const char *owner, struct sl_str id,
                         struct sl_refusal *r)
{
    char path[SL_MAX_STORE_PATH], meta[SL_MAX_STORE_PATH];
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    struct file *f = file_store_find(s, owner, id);
    if (f == NULL) {
        rc = no_such_file(r, NULL);
    } else if (f->n_holds > 0) {
        rc = sl_refuse(r, SL_EINVAL, NULL,
                       "the file is the input of a batch that has not ended: cancel that first");
    } else {
        sl_file_store_path(s, f->id, path);
        meta_path(s, f->id, meta);
        file_store_take_out(s, f);
        sl_remove_file(meta);
        sl_remove_file(path);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int sl_file_store_read(struct sl_file_store *s, const char *owner, struct sl_str id, int *fd,
                       uint64_t *n_bytes, struct sl_refusal *r)
{
    char path[SL_MAX_STORE_PATH];
    int rc = 0;
    *fd = -1;
    pthread_mutex_lock(&s->lock);
    const struct file *f = file_store_find(s, owner, id);
    if (f != NULL) {
        sl_file_store_path(s, f->id, path);
        *n_bytes = f->n_bytes;
        *fd = sl_sys->open(path, O_RDONLY, 0);
        if (*fd < 0)
            rc = sl_refuse(r, SL_EIO, NULL, "the file cannot be read");
    } else {
        rc = no_such_file(r, NULL);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int sl_file_store_hold(struct sl_file_store *s, const char *owner, const char *id,
                       const char *purpose, bool again, struct sl_refusal *r)
{
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    struct file *f = file_store_find(s, owner, (struct sl_str){id, strlen(id)});
    if (f == NULL)
        rc = no_such_file(r, "input_file_id");
    else if (strcmp(f->purpose, purpose) != 0)
        rc = sl_refuse(r, SL_EINVAL, "input_file_id",
                       "input_file_id: the file's purpose is %s, not %s", f->purpose, purpose);
    if (rc == 0 && !again)
        rc = check_places(s, N_RESULTS, r);
    if (rc == 0) {
        f->n_holds++;
        s->n_held++;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void sl_file_store_let_go(struct sl_file_store *s, const char *id)
{
    pthread_mutex_lock(&s->lock);
    struct file *f = file_store_find(s, NULL, (struct sl_str){id, strlen(id)});
    SL_ASSERT(f == NULL || f->n_holds > 0);
    if (f != NULL) {
        f->n_holds--;
        s->n_held--;
    }
    pthread_mutex_unlock(&s->lock);
}
