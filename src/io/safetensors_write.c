/* SPDX-License-Identifier: MIT */
#include "io/safetensors_write.h"

#include "base/buf.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#define HEADER_ALIGN 8u /* the data section starts at a multiple of this */

struct sl_st_writer {
    int fd;
    char *path;
    struct sl_buf metadata, tensors; /* JSON members, comma separated */
    struct sl_buf sizes;             /* uint64_t per tensor */
    uint64_t n_tensors, next_offset;
    uint64_t tensor_idx, tensor_done; /* where write_tensor_data stands */
    bool in_data;
    struct sl_error failure; /* the first one of the add calls; code 0 = none */
};

int sl_st_writer_create(const char *path, struct sl_st_writer **out, struct sl_error *err)
{
    struct sl_st_writer *w = sl_calloc(1, sizeof *w);
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

void sl_st_writer_destroy(struct sl_st_writer *w)
{
    if (w == NULL)
        return;
    if (w->fd >= 0)
        sl_sys->close(w->fd);
    sl_buf_deinit(&w->metadata);
    sl_buf_deinit(&w->tensors);
    sl_buf_deinit(&w->sizes);
    sl_free(w->path);
    sl_free(w);
}

void sl_st_writer_add_metadata(struct sl_st_writer *w, const char *key, const char *value)
{
    if (w->metadata.n_bytes > 0)
        sl_buf_putc(&w->metadata, ',');
    sl_buf_json_string(&w->metadata, key, strlen(key));
    sl_buf_putc(&w->metadata, ':');
    sl_buf_json_string(&w->metadata, value, strlen(value));
}

static int add_tensor(struct sl_st_writer *w, const char *name, enum sl_dtype dtype, int32_t n_dims,
                      const int64_t *dims)
{
    struct sl_error *err = &w->failure;
    const struct sl_dtype_info *info = sl_dtype_info(dtype);
    if (w->in_data)
        return sl_fail(err, SL_EINVAL, "%s: tensor %s added after the header was written", w->path,
                       name);
    if (info->st_name == NULL)
        return sl_fail(err, SL_EUNSUPPORTED, "%s: tensor %s: safetensors has no format %s", w->path,
                       name, info->name);
    if (n_dims < 0 || n_dims > SL_MAX_DIMS)
        return sl_fail(err, SL_EINVAL, "%s: tensor %s has %d dimensions, at most %d are possible",
                       w->path, name, n_dims, SL_MAX_DIMS);
    uint64_t n_elems = 1, n_bytes, end;
    for (int32_t i = 0; i < n_dims; i++) {
        if (dims[i] < 0 || !sl_mul_u64(n_elems, (uint64_t)dims[i], &n_elems))
            return sl_fail(err, SL_EINVAL, "%s: tensor %s: dimension %d is out of range", w->path,
                           name, i);
    }
    if (!sl_dtype_bytes(dtype, n_elems, &n_bytes) || !sl_add_u64(w->next_offset, n_bytes, &end))
        return sl_fail(err, SL_ELIMIT, "%s: tensor %s: file too large", w->path, name);
    if (w->n_tensors > 0)
        sl_buf_putc(&w->tensors, ',');
    sl_buf_json_string(&w->tensors, name, strlen(name));
    sl_buf_printf(&w->tensors, ":{\"dtype\":\"%s\",\"shape\":[", info->st_name);
    for (int32_t i = 0; i < n_dims; i++)
        sl_buf_printf(&w->tensors, "%s%" PRId64, i > 0 ? "," : "", dims[i]);
    sl_buf_printf(&w->tensors, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", w->next_offset,
                  end);
    sl_buf_put(&w->sizes, &n_bytes, sizeof n_bytes);
    w->next_offset = end;
    w->n_tensors++;
    return 0;
}

void sl_st_writer_add_tensor(struct sl_st_writer *w, const char *name, enum sl_dtype dtype,
                             int32_t n_dims, const int64_t *dims)
{
    if (w->failure.code == 0)
        (void)add_tensor(w, name, dtype, n_dims, dims);
}

static int kept_failure(const struct sl_st_writer *w, struct sl_error *err)
{
    if (err != NULL)
        *err = w->failure;
    return w->failure.code;
}

static int write_out(struct sl_st_writer *w, const void *data, size_t n, struct sl_error *err)
{
    int rc = sl_write_all(w->fd, data, n, err);
    return rc != 0 ? sl_error_prefix(err, rc, "%s", w->path) : 0;
}

/* Tensors of no bytes get no call of write_tensor_data. */
static void skip_empty(struct sl_st_writer *w)
{
    uint64_t n;
    for (; w->tensor_idx < w->n_tensors; w->tensor_idx++) {
        memcpy(&n, w->sizes.data + w->tensor_idx * sizeof n, sizeof n);
        if (n != 0)
            return;
    }
}

int sl_st_writer_begin_data(struct sl_st_writer *w, struct sl_error *err)
{
    if (w->failure.code != 0)
        return kept_failure(w, err);
    if (w->in_data)
        return sl_fail(err, SL_EINVAL, "%s: the header was written already", w->path);
    struct sl_buf head = {0};
    uint64_t n_header = 0;
    sl_buf_put(&head, &n_header, sizeof n_header);
    sl_buf_putc(&head, '{');
    if (w->metadata.n_bytes > 0) {
        sl_buf_puts(&head, "\"__metadata__\":{");
        sl_buf_put(&head, w->metadata.data, w->metadata.n_bytes);
        sl_buf_puts(&head, w->n_tensors > 0 ? "}," : "}");
    }
    if (w->n_tensors > 0)
        sl_buf_put(&head, w->tensors.data, w->tensors.n_bytes);
    sl_buf_putc(&head, '}');
    while (sl_buf_ok(&head) && head.n_bytes % HEADER_ALIGN != 0)
        sl_buf_putc(&head, ' ');
    int rc = 0;
    if (!sl_buf_ok(&head) || !sl_buf_ok(&w->metadata) || !sl_buf_ok(&w->tensors) ||
        !sl_buf_ok(&w->sizes)) {
        rc = sl_fail(err, SL_ENOMEM, "%s: out of memory", w->path);
    } else if (head.n_bytes - sizeof n_header > SL_MAX_ST_HEADER) {
        rc = sl_fail(err, SL_ELIMIT, "%s: header larger than %u bytes", w->path, SL_MAX_ST_HEADER);
    } else {
        n_header = head.n_bytes - sizeof n_header;
        memcpy(head.data, &n_header, sizeof n_header);
        w->in_data = true;
        skip_empty(w);
        rc = write_out(w, head.data, head.n_bytes, err);
    }
    sl_buf_deinit(&head);
    return rc;
}

int sl_st_writer_write_tensor_data(struct sl_st_writer *w, const void *data, size_t n_bytes,
                                   struct sl_error *err)
{
    if (w->failure.code != 0)
        return kept_failure(w, err);
    if (n_bytes == 0)
        return 0;
    if (!w->in_data || w->tensor_idx >= w->n_tensors)
        return sl_fail(err, SL_EINVAL, "%s: no tensor is waiting for data", w->path);
    uint64_t size;
    memcpy(&size, w->sizes.data + w->tensor_idx * sizeof size, sizeof size);
    if (n_bytes > size - w->tensor_done)
        return sl_fail(err, SL_EINVAL, "%s: too many bytes for tensor %" PRIu64, w->path,
                       w->tensor_idx);
    int rc = write_out(w, data, n_bytes, err);
    if (rc != 0)
        return rc;
    w->tensor_done += n_bytes;
    if (w->tensor_done == size) {
        w->tensor_done = 0;
        w->tensor_idx++;
        skip_empty(w);
    }
    return 0;
}

int sl_st_writer_finish(struct sl_st_writer *w, struct sl_error *err)
{
    int rc = kept_failure(w, err);
    if (rc == 0 && (!w->in_data || w->tensor_idx < w->n_tensors))
        rc = sl_fail(err, SL_EINVAL, "%s: tensor %" PRIu64 " of %" PRIu64 " has no data", w->path,
                     w->tensor_idx, w->n_tensors);
    int closed = sl_sys->close(w->fd);
    w->fd = -1;
    if (rc == 0 && closed != 0)
        rc = sl_fail(err, SL_EIO, "%s: the file could not be completed", w->path);
    sl_st_writer_destroy(w);
    return rc;
}
