/* SPDX-License-Identifier: MIT */
#include "io/gguf_write.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "io/gguf.h"
#include "io/tensor_out.h"

#include <string.h>

#define WRITE_ALIGN 32u

struct sl_gguf_writer {
    struct sl_tensor_out out;
    struct sl_buf kv, tensors; /* the two tables of the header, encoded */
    uint64_t n_kv;
};

int sl_gguf_writer_create(const char *path, struct sl_gguf_writer **out, struct sl_error *err)
{
    struct sl_gguf_writer *w = sl_calloc(1, sizeof *w);
    if (w == NULL)
        return sl_fail(err, SL_ENOMEM, "%s: out of memory", path);
    int rc = sl_tensor_out_open(&w->out, path, WRITE_ALIGN, err);
    if (rc != 0) {
        sl_free(w);
        return rc;
    }
    *out = w;
    return 0;
}

void sl_gguf_writer_destroy(struct sl_gguf_writer *w)
{
    if (w == NULL)
        return;
    sl_tensor_out_close(&w->out);
    sl_buf_deinit(&w->kv);
    sl_buf_deinit(&w->tensors);
    sl_free(w);
}

static void put_u16(struct sl_buf *b, uint16_t v)
{
    sl_buf_put(b, &v, sizeof v);
}

static void gguf_write_put_u32(struct sl_buf *b, uint32_t v)
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

static void gguf_write_put_key(struct sl_gguf_writer *w, const char *key, enum sl_gguf_type type)
{
    if (w->out.in_data && w->out.failure.code == 0)
        (void)sl_fail(&w->out.failure, SL_EINVAL, "%s: key %s added after the header was written",
                      w->out.path, key);
    put_str(&w->kv, key, strlen(key));
    gguf_write_put_u32(&w->kv, type);
    w->n_kv++;
}

void sl_gguf_writer_add_u16(struct sl_gguf_writer *w, const char *key, uint16_t v)
{
    gguf_write_put_key(w, key, SL_GGUF_U16);
    put_u16(&w->kv, v);
}

void sl_gguf_writer_add_u32(struct sl_gguf_writer *w, const char *key, uint32_t v)
{
    gguf_write_put_key(w, key, SL_GGUF_U32);
    gguf_write_put_u32(&w->kv, v);
}

void sl_gguf_writer_add_i32(struct sl_gguf_writer *w, const char *key, int32_t v)
{
    gguf_write_put_key(w, key, SL_GGUF_I32);
    gguf_write_put_u32(&w->kv, (uint32_t)v);
}

void sl_gguf_writer_add_u64(struct sl_gguf_writer *w, const char *key, uint64_t v)
{
    gguf_write_put_key(w, key, SL_GGUF_U64);
    put_u64(&w->kv, v);
}

void sl_gguf_writer_add_f32(struct sl_gguf_writer *w, const char *key, float v)
{
    gguf_write_put_key(w, key, SL_GGUF_F32);
    sl_buf_put(&w->kv, &v, sizeof v);
}

void sl_gguf_writer_add_bool(struct sl_gguf_writer *w, const char *key, bool v)
{
    gguf_write_put_key(w, key, SL_GGUF_BOOL);
    sl_buf_putc(&w->kv, v ? 1 : 0);
}

void sl_gguf_writer_add_str(struct sl_gguf_writer *w, const char *key, const char *s)
{
    gguf_write_put_key(w, key, SL_GGUF_STRING);
    put_str(&w->kv, s, strlen(s));
}

static void put_array(struct sl_gguf_writer *w, const char *key, enum sl_gguf_type type, size_t n)
{
    gguf_write_put_key(w, key, SL_GGUF_ARRAY);
    gguf_write_put_u32(&w->kv, type);
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
        gguf_write_put_u32(&w->kv, (uint32_t)x[i]);
}

void sl_gguf_writer_add_arr_bool(struct sl_gguf_writer *w, const char *key, const bool *x, size_t n)
{
    put_array(w, key, SL_GGUF_BOOL, n);
    for (size_t i = 0; i < n; i++)
        sl_buf_putc(&w->kv, x[i] ? 1 : 0);
}

static int gguf_write_add_tensor(struct sl_gguf_writer *w, const char *name, enum sl_dtype dtype,
                                 int32_t n_dims, const int64_t *dims)
{
    struct sl_error *err = &w->out.failure;
    const struct sl_dtype_info *info = sl_dtype_info(dtype);
    if (w->out.in_data)
        return sl_fail(err, SL_EINVAL, "%s: tensor %s added after the header was written",
                       w->out.path, name);
    if (info->gguf_id < 0)
        return sl_fail(err, SL_EUNSUPPORTED, "%s: tensor %s: GGUF has no format %s", w->out.path,
                       name, info->name);
    if (n_dims < 1 || n_dims > SL_MAX_DIMS)
        return sl_fail(err, SL_EINVAL, "%s: tensor %s has %d dimensions, 1 to %d are possible",
                       w->out.path, name, n_dims, SL_MAX_DIMS);
    uint64_t n_elems = 1, n_bytes, offset;
    for (int32_t i = 0; i < n_dims; i++) {
        if (dims[i] < 1 || !sl_mul_u64(n_elems, (uint64_t)dims[i], &n_elems))
            return sl_fail(err, SL_EINVAL, "%s: tensor %s: dimension %d is out of range",
                           w->out.path, name, i);
    }
    if (dims[n_dims - 1] % info->block_elems != 0 || !sl_dtype_bytes(dtype, n_elems, &n_bytes))
        return sl_fail(err, SL_EINVAL, "%s: tensor %s: rows of %lld are not whole blocks of %s",
                       w->out.path, name, (long long)dims[n_dims - 1], info->name);
    int rc = sl_tensor_out_add(&w->out, name, n_bytes, &offset);
    if (rc != 0)
        return rc;
    put_str(&w->tensors, name, strlen(name));
    gguf_write_put_u32(&w->tensors, (uint32_t)n_dims);
    for (int32_t i = n_dims - 1; i >= 0; i--)
        put_u64(&w->tensors, (uint64_t)dims[i]);
    gguf_write_put_u32(&w->tensors, (uint32_t)info->gguf_id);
    put_u64(&w->tensors, offset);
    return 0;
}

void sl_gguf_writer_add_tensor(struct sl_gguf_writer *w, const char *name, enum sl_dtype dtype,
                               int32_t n_dims, const int64_t *dims)
{
    if (w->out.failure.code == 0)
        (void)gguf_write_add_tensor(w, name, dtype, n_dims, dims);
}

int sl_gguf_writer_begin_data(struct sl_gguf_writer *w, struct sl_error *err)
{
    int rc = sl_tensor_out_ready(&w->out, err);
    if (rc != 0)
        return rc;
    struct sl_buf head = {0};
    sl_buf_puts(&head, "GGUF");
    gguf_write_put_u32(&head, 3);
    put_u64(&head, w->out.n_tensors);
    put_u64(&head, w->n_kv);
    const struct sl_buf *const parts[] = {&head, &w->kv, &w->tensors};
    rc = sl_tensor_out_begin(&w->out, parts, SL_COUNT(parts), err);
    sl_buf_deinit(&head);
    return rc;
}

int sl_gguf_writer_write_tensor_data(struct sl_gguf_writer *w, const void *data, size_t n_bytes,
                                     struct sl_error *err)
{
    return sl_tensor_out_write(&w->out, data, n_bytes, err);
}

int sl_gguf_writer_finish(struct sl_gguf_writer *w, struct sl_error *err)
{
    int rc = sl_tensor_out_finish(&w->out, err);
    sl_gguf_writer_destroy(w);
    return rc;
}
