/* SPDX-License-Identifier: MIT */
#include "io/gguf_write.h"

#include "base/buf.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "io/gguf.h"

#include <fcntl.h>
#include <string.h>

#define WRITE_ALIGN 32u

struct sl_gguf_writer {
    int fd;
    char *path;
    struct sl_buf kv, tensors; /* the two tables of the header, encoded */
    struct sl_buf sizes;       /* uint64_t per tensor */
    uint64_t n_kv, n_tensors, next_offset;
    uint64_t tensor_idx, tensor_done; /* where write_tensor_data stands */
    bool in_data;
    struct sl_error failure; /* the first one of the add calls; code 0 = none */
};

int sl_gguf_writer_create(const char *path, struct sl_gguf_writer **out, struct sl_error *err)
{
    struct sl_gguf_writer *w = sl_calloc(1, sizeof *w);
    char *copy = sl_strdup(path);
    int rc;
    if (w == NULL || copy == NULL) {
        rc = sl_fail(err, SL_ENOMEM, "%s: out of memory", path);
        goto fail;
    }
    w->fd = sl_sys->open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (w->fd < 0) {
        rc = sl_fail(err, SL_EIO, "%s: cannot create the file", path);
        goto fail;
    }
    w->path = copy;
    *out = w;
    return 0;

fail:
    sl_free(copy);
    sl_free(w);
    return rc;
}

void sl_gguf_writer_destroy(struct sl_gguf_writer *w)
{
    if (w == NULL)
        return;
    if (w->fd >= 0)
        sl_sys->close(w->fd);
    sl_buf_deinit(&w->kv);
    sl_buf_deinit(&w->tensors);
    sl_buf_deinit(&w->sizes);
    sl_free(w->path);
    sl_free(w);
}

static void put_u16(struct sl_buf *b, uint16_t v)
{
    sl_buf_put(b, &v, sizeof v);
}

static void put_u32(struct sl_buf *b, uint32_t v)
{
    sl_buf_put(b, &v, sizeof v);
}

static void put_u64(struct sl_buf *b, uint64_t v)
{
    sl_buf_put(b, &v, sizeof v);
}

static void put_str(struct sl_buf *b, const char *s, size_t n)
{
    put_u64(b, n);
    sl_buf_put(b, s, n);
}

static void put_key(struct sl_gguf_writer *w, const char *key, enum sl_gguf_type type)
{
    if (w->in_data && w->failure.code == 0)
        (void)sl_fail(&w->failure, SL_EINVAL, "%s: key %s added after the header was written",
                      w->path, key);
    put_str(&w->kv, key, strlen(key));
    put_u32(&w->kv, type);
    w->n_kv++;
}

void sl_gguf_writer_add_u16(struct sl_gguf_writer *w, const char *key, uint16_t v)
{
    put_key(w, key, SL_GGUF_U16);
    put_u16(&w->kv, v);
}

void sl_gguf_writer_add_u32(struct sl_gguf_writer *w, const char *key, uint32_t v)
{
    put_key(w, key, SL_GGUF_U32);
    put_u32(&w->kv, v);
}

void sl_gguf_writer_add_i32(struct sl_gguf_writer *w, const char *key, int32_t v)
{
    put_key(w, key, SL_GGUF_I32);
    put_u32(&w->kv, (uint32_t)v);
}

void sl_gguf_writer_add_u64(struct sl_gguf_writer *w, const char *key, uint64_t v)
{
    put_key(w, key, SL_GGUF_U64);
    put_u64(&w->kv, v);
}

void sl_gguf_writer_add_f32(struct sl_gguf_writer *w, const char *key, float v)
{
    put_key(w, key, SL_GGUF_F32);
    sl_buf_put(&w->kv, &v, sizeof v);
}

void sl_gguf_writer_add_bool(struct sl_gguf_writer *w, const char *key, bool v)
{
    put_key(w, key, SL_GGUF_BOOL);
    sl_buf_putc(&w->kv, v ? 1 : 0);
}

void sl_gguf_writer_add_str(struct sl_gguf_writer *w, const char *key, const char *s)
{
    put_key(w, key, SL_GGUF_STRING);
    put_str(&w->kv, s, strlen(s));
}

static void put_array(struct sl_gguf_writer *w, const char *key, enum sl_gguf_type type, size_t n)
{
    put_key(w, key, SL_GGUF_ARRAY);
    put_u32(&w->kv, type);
    put_u64(&w->kv, n);
}

void sl_gguf_writer_add_arr_str(struct sl_gguf_writer *w, const char *key, const char *const *s,
                                const uint32_t *n_bytes, size_t n)
{
    put_array(w, key, SL_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++)
        put_str(&w->kv, s[i], n_bytes != NULL ? n_bytes[i] : strlen(s[i]));
}

void sl_gguf_writer_add_arr_f32(struct sl_gguf_writer *w, const char *key, const float *x, size_t n)
{
    put_array(w, key, SL_GGUF_F32, n);
    for (size_t i = 0; i < n; i++)
        sl_buf_put(&w->kv, &x[i], sizeof x[i]);
}

void sl_gguf_writer_add_arr_i32(struct sl_gguf_writer *w, const char *key, const int32_t *x,
                                size_t n)
{
    put_array(w, key, SL_GGUF_I32, n);
    for (size_t i = 0; i < n; i++)
        put_u32(&w->kv, (uint32_t)x[i]);
}

static int add_tensor(struct sl_gguf_writer *w, const char *name, enum sl_dtype dtype,
                      int32_t n_dims, const int64_t *dims)
{
    struct sl_error *err = &w->failure;
    const struct sl_dtype_info *info = sl_dtype_info(dtype);
    if (w->in_data)
        return sl_fail(err, SL_EINVAL, "%s: tensor %s added after the header was written", w->path,
                       name);
    if (n_dims < 1 || n_dims > SL_MAX_DIMS)
        return sl_fail(err, SL_EINVAL, "%s: tensor %s has %d dimensions, 1 to %d are possible",
                       w->path, name, n_dims, SL_MAX_DIMS);
    uint64_t n_elems = 1, n_bytes, end;
    for (int32_t i = 0; i < n_dims; i++) {
        if (dims[i] < 1 || !sl_mul_u64(n_elems, (uint64_t)dims[i], &n_elems))
            return sl_fail(err, SL_EINVAL, "%s: tensor %s: dimension %d is out of range", w->path,
                           name, i);
    }
    if (dims[n_dims - 1] % info->block_elems != 0 || !sl_dtype_bytes(dtype, n_elems, &n_bytes))
        return sl_fail(err, SL_EINVAL, "%s: tensor %s: rows of %lld are not whole blocks of %s",
                       w->path, name, (long long)dims[n_dims - 1], info->name);
    if (!sl_add_u64(w->next_offset, n_bytes, &end) || !sl_align_u64(end, WRITE_ALIGN, &end))
        return sl_fail(err, SL_ELIMIT, "%s: tensor %s: file too large", w->path, name);
    put_str(&w->tensors, name, strlen(name));
    put_u32(&w->tensors, (uint32_t)n_dims);
    for (int32_t i = n_dims - 1; i >= 0; i--)
        put_u64(&w->tensors, (uint64_t)dims[i]);
    put_u32(&w->tensors, (uint32_t)info->gguf_id);
    put_u64(&w->tensors, w->next_offset);
    sl_buf_put(&w->sizes, &n_bytes, sizeof n_bytes);
    w->next_offset = end;
    w->n_tensors++;
    return 0;
}

void sl_gguf_writer_add_tensor(struct sl_gguf_writer *w, const char *name, enum sl_dtype dtype,
                               int32_t n_dims, const int64_t *dims)
{
    if (w->failure.code == 0)
        (void)add_tensor(w, name, dtype, n_dims, dims);
}

static int kept_failure(const struct sl_gguf_writer *w, struct sl_error *err)
{
    if (err != NULL)
        *err = w->failure;
    return w->failure.code;
}

static int write_out(struct sl_gguf_writer *w, const void *data, size_t n, struct sl_error *err)
{
    int rc = sl_write_all(w->fd, data, n, err);
    return rc != 0 ? sl_error_prefix(err, rc, "%s", w->path) : 0;
}

static int write_padding(struct sl_gguf_writer *w, uint64_t n_bytes, struct sl_error *err)
{
    static const char zeros[WRITE_ALIGN];
    return write_out(w, zeros, (size_t)((WRITE_ALIGN - n_bytes % WRITE_ALIGN) % WRITE_ALIGN), err);
}

int sl_gguf_writer_begin_data(struct sl_gguf_writer *w, struct sl_error *err)
{
    if (w->failure.code != 0)
        return kept_failure(w, err);
    if (!sl_buf_ok(&w->kv) || !sl_buf_ok(&w->tensors) || !sl_buf_ok(&w->sizes))
        return sl_fail(err, SL_ENOMEM, "%s: out of memory", w->path);
    if (w->in_data)
        return sl_fail(err, SL_EINVAL, "%s: the header was written already", w->path);
    w->in_data = true;
    struct sl_buf head = {0};
    sl_buf_puts(&head, "GGUF");
    put_u32(&head, 3);
    put_u64(&head, w->n_tensors);
    put_u64(&head, w->n_kv);
    int rc = sl_buf_ok(&head) ? write_out(w, head.data, head.n_bytes, err)
                              : sl_fail(err, SL_ENOMEM, "%s: out of memory", w->path);
    uint64_t total = head.n_bytes + w->kv.n_bytes + w->tensors.n_bytes;
    if (rc == 0)
        rc = write_out(w, w->kv.data, w->kv.n_bytes, err);
    if (rc == 0)
        rc = write_out(w, w->tensors.data, w->tensors.n_bytes, err);
    if (rc == 0)
        rc = write_padding(w, total, err);
    sl_buf_deinit(&head);
    return rc;
}

static uint64_t tensor_size(const struct sl_gguf_writer *w, uint64_t idx)
{
    uint64_t n;
    memcpy(&n, w->sizes.data + idx * sizeof n, sizeof n);
    return n;
}

int sl_gguf_writer_write_tensor_data(struct sl_gguf_writer *w, const void *data, size_t n_bytes,
                                     struct sl_error *err)
{
    if (w->failure.code != 0)
        return kept_failure(w, err);
    if (!w->in_data || w->tensor_idx >= w->n_tensors)
        return sl_fail(err, SL_EINVAL, "%s: no tensor is waiting for data", w->path);
    uint64_t size = tensor_size(w, w->tensor_idx);
    if (n_bytes > size - w->tensor_done)
        return sl_fail(err, SL_EINVAL, "%s: too many bytes for tensor %llu", w->path,
                       (unsigned long long)w->tensor_idx);
    int rc = write_out(w, data, n_bytes, err);
    if (rc != 0)
        return rc;
    w->tensor_done += n_bytes;
    if (w->tensor_done < size)
        return 0;
    w->tensor_idx++;
    w->tensor_done = 0;
    return write_padding(w, size, err);
}

int sl_gguf_writer_finish(struct sl_gguf_writer *w, struct sl_error *err)
{
    int rc = kept_failure(w, err);
    if (rc == 0 && (!w->in_data || w->tensor_idx < w->n_tensors))
        rc = sl_fail(err, SL_EINVAL, "%s: tensor %llu of %llu has no data", w->path,
                     (unsigned long long)w->tensor_idx, (unsigned long long)w->n_tensors);
    int closed = sl_sys->close(w->fd);
    w->fd = -1;
    if (rc == 0 && closed != 0)
        rc = sl_fail(err, SL_EIO, "%s: the file could not be completed", w->path);
    sl_gguf_writer_destroy(w);
    return rc;
}
