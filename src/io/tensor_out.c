/* SPDX-License-Identifier: MIT */
#include "io/tensor_out.h"

#include "base/check.h"
#include "base/sys.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

int sl_tensor_out_open(struct sl_tensor_out *o, const char *path, uint32_t align,
                       struct sl_error *err)
{
    SL_ASSERT(sl_is_pow2(align) && align <= SL_TENSOR_OUT_MAX_ALIGN);
    *o = (struct sl_tensor_out){.fd = -1, .align = align};
    o->path = sl_strdup(path);
    if (o->path == NULL)
        return sl_fail(err, SL_ENOMEM, "%s: out of memory", path);
    o->fd = sl_sys->open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (o->fd < 0) {
        sl_free(o->path);
        return sl_fail(err, SL_EIO, "%s: cannot create the file", path);
    }
    return 0;
}

void sl_tensor_out_close(struct sl_tensor_out *o)
{
    if (o->fd >= 0)
        sl_sys->close(o->fd);
    sl_buf_deinit(&o->sizes);
    sl_free(o->path);
}

int sl_tensor_out_add(struct sl_tensor_out *o, const char *name, uint64_t n_bytes, uint64_t *offset)
{
    uint64_t end;
    if (!sl_add_u64(o->next_offset, n_bytes, &end) || !sl_align_u64(end, o->align, &end))
        return sl_fail(&o->failure, SL_ELIMIT, "%s: tensor %s: file too large", o->path, name);
    sl_buf_put(&o->sizes, &n_bytes, sizeof n_bytes);
    *offset = o->next_offset;
    o->next_offset = end;
    o->n_tensors++;
    return 0;
}

int sl_tensor_out_failure(const struct sl_tensor_out *o, struct sl_error *err)
{
    if (err != NULL && o->failure.code != 0)
        *err = o->failure;
    return o->failure.code;
}

int sl_tensor_out_ready(const struct sl_tensor_out *o, struct sl_error *err)
{
    if (o->failure.code != 0)
        return sl_tensor_out_failure(o, err);
    if (o->in_data)
        return sl_fail(err, SL_EINVAL, "%s: the header was written already", o->path);
    if (!sl_buf_ok(&o->sizes))
        return sl_fail(err, SL_ENOMEM, "%s: out of memory", o->path);
    return 0;
}

static int write_out(struct sl_tensor_out *o, const void *data, size_t n, struct sl_error *err)
{
    int rc = sl_write_all(o->fd, data, n, err);
    return rc != 0 ? sl_error_prefix(err, rc, "%s", o->path) : 0;
}

/* After n_bytes of header or tensor: up to where the next tensor starts. */
static int write_padding(struct sl_tensor_out *o, uint64_t n_bytes, struct sl_error *err)
{
    static const char zeros[SL_TENSOR_OUT_MAX_ALIGN];
    return write_out(o, zeros, (size_t)((o->align - n_bytes % o->align) % o->align), err);
}

static uint64_t tensor_size(const struct sl_tensor_out *o)
{
    uint64_t n;
    memcpy(&n, o->sizes.data + o->tensor_idx * sizeof n, sizeof n);
    return n;
}

static void skip_empty(struct sl_tensor_out *o)
{
    while (o->tensor_idx < o->n_tensors && tensor_size(o) == 0)
        o->tensor_idx++;
}

int sl_tensor_out_begin(struct sl_tensor_out *o, const struct sl_buf *const *parts, size_t n_parts,
                        struct sl_error *err)
{
    uint64_t total = 0;
    int rc = 0;
    for (size_t i = 0; i < n_parts; i++) {
        if (!sl_buf_ok(parts[i]))
            return sl_fail(err, SL_ENOMEM, "%s: out of memory", o->path);
        total += parts[i]->n_bytes;
    }
    o->in_data = true;
    skip_empty(o);
    for (size_t i = 0; rc == 0 && i < n_parts; i++)
        rc = write_out(o, parts[i]->data, parts[i]->n_bytes, err);
    return rc == 0 ? write_padding(o, total, err) : rc;
}

int sl_tensor_out_write(struct sl_tensor_out *o, const void *data, size_t n_bytes,
                        struct sl_error *err)
{
    if (o->failure.code != 0)
        return sl_tensor_out_failure(o, err);
    if (!o->in_data || o->tensor_idx >= o->n_tensors)
        return sl_fail(err, SL_EINVAL, "%s: no tensor is waiting for data", o->path);
    uint64_t size = tensor_size(o);
    if (n_bytes > size - o->tensor_done)
        return sl_fail(err, SL_EINVAL, "%s: too many bytes for tensor %" PRIu64, o->path,
                       o->tensor_idx);
    int rc = write_out(o, data, n_bytes, err);
    if (rc != 0)
        return rc;
    o->tensor_done += n_bytes;
    if (o->tensor_done < size)
        return 0;
    o->tensor_idx++;
    o->tensor_done = 0;
    skip_empty(o);
    return write_padding(o, size, err);
}

int sl_tensor_out_finish(struct sl_tensor_out *o, struct sl_error *err)
{
    int rc = sl_tensor_out_failure(o, err);
    if (rc == 0 && (!o->in_data || o->tensor_idx < o->n_tensors))
        rc = sl_fail(err, SL_EINVAL, "%s: tensor %" PRIu64 " of %" PRIu64 " has no data", o->path,
                     o->tensor_idx, o->n_tensors);
    int closed = sl_sys->close(o->fd);
    o->fd = -1;
    if (rc == 0 && closed != 0)
        rc = sl_fail(err, SL_EIO, "%s: the file could not be completed", o->path);
    return rc;
}
