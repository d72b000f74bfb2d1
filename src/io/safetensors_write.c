/* SPDX-License-Identifier: MIT */
#include "io/safetensors_write.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "io/tensor_out.h"

#include <inttypes.h>
#include <string.h>

#define HEADER_ALIGN 8u /* the data section starts at a multiple of this */

struct sl_st_writer {
    struct sl_tensor_out out;
    struct sl_buf metadata, tensors; /* JSON members, comma separated */
};

int sl_st_writer_create(const char *path, struct sl_st_writer **out, struct sl_error *err)
{
    struct sl_st_writer *w = sl_calloc(1, sizeof *w);
    if (w == NULL)
        return sl_fail(err, SL_ENOMEM, "%s: out of memory", path);
    int rc = sl_tensor_out_open(&w->out, path, 1, err);
    if (rc != 0) {
        sl_free(w);
        return rc;
    }
    *out = w;
    return 0;
}

void sl_st_writer_destroy(struct sl_st_writer *w)
{
    if (w == NULL)
        return;
    sl_tensor_out_close(&w->out);
    sl_buf_deinit(&w->metadata);
    sl_buf_deinit(&w->tensors);
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

static int safetensors_write_add_tensor(struct sl_st_writer *w, const char *name,
                                        const char *st_name, size_t elem_bytes, int32_t n_dims,
                                        const int64_t *dims)
{
    struct sl_error *err = &w->out.failure;
    if (w->out.in_data)
        return sl_fail(err, SL_EINVAL, "%s: tensor %s added after the header was written",
                       w->out.path, name);
    if (n_dims < 0 || n_dims > SL_MAX_DIMS)
        return sl_fail(err, SL_EINVAL, "%s: tensor %s has %d dimensions, at most %d are possible",
                       w->out.path, name, n_dims, SL_MAX_DIMS);
    uint64_t n_elems = 1, n_bytes, offset;
    for (int32_t i = 0; i < n_dims; i++) {
        if (dims[i] < 0 || !sl_mul_u64(n_elems, (uint64_t)dims[i], &n_elems))
            return sl_fail(err, SL_EINVAL, "%s: tensor %s: dimension %d is out of range",
                           w->out.path, name, i);
    }
    if (!sl_mul_u64(n_elems, elem_bytes, &n_bytes))
        return sl_fail(err, SL_ELIMIT, "%s: tensor %s: file too large", w->out.path, name);
    int rc = sl_tensor_out_add(&w->out, name, n_bytes, &offset);
    if (rc != 0)
        return rc;
    if (w->tensors.n_bytes > 0)
        sl_buf_putc(&w->tensors, ',');
    sl_buf_json_string(&w->tensors, name, strlen(name));
    sl_buf_printf(&w->tensors, ":{\"dtype\":\"%s\",\"shape\":[", st_name);
    for (int32_t i = 0; i < n_dims; i++)
        sl_buf_printf(&w->tensors, "%s%" PRId64, i > 0 ? "," : "", dims[i]);
    sl_buf_printf(&w->tensors, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset,
                  offset + n_bytes);
    return 0;
}

void sl_st_writer_add_tensor(struct sl_st_writer *w, const char *name, enum sl_dtype dtype,
                             int32_t n_dims, const int64_t *dims)
{
    const struct sl_dtype_info *info = sl_dtype_info(dtype);
    if (info->st_name != NULL)
        sl_st_writer_add_raw(w, name, info->st_name, info->block_bytes, n_dims, dims);
    else if (w->out.failure.code == 0)
        (void)sl_fail(&w->out.failure, SL_EUNSUPPORTED,
                      "%s: tensor %s: safetensors has no format %s", w->out.path, name, info->name);
}

void sl_st_writer_add_raw(struct sl_st_writer *w, const char *name, const char *st_name,
                          size_t elem_bytes, int32_t n_dims, const int64_t *dims)
{
    if (w->out.failure.code == 0)
        (void)safetensors_write_add_tensor(w, name, st_name, elem_bytes, n_dims, dims);
}

int sl_st_writer_begin_data(struct sl_st_writer *w, struct sl_error *err)
{
    int rc = sl_tensor_out_ready(&w->out, err);
    if (rc != 0)
        return rc;
    struct sl_buf head = {0};
    uint64_t n_header = 0;
    sl_buf_put(&head, &n_header, sizeof n_header);
    sl_buf_putc(&head, '{');
    if (w->metadata.n_bytes > 0) {
        sl_buf_puts(&head, "\"__metadata__\":{");
        sl_buf_put(&head, w->metadata.data, w->metadata.n_bytes);
        sl_buf_puts(&head, w->out.n_tensors > 0 ? "}," : "}");
    }
    if (w->out.n_tensors > 0)
        sl_buf_put(&head, w->tensors.data, w->tensors.n_bytes);
    sl_buf_putc(&head, '}');
    while (sl_buf_ok(&head) && head.n_bytes % HEADER_ALIGN != 0)
        sl_buf_putc(&head, ' ');
    if (!sl_buf_ok(&head) || !sl_buf_ok(&w->metadata) || !sl_buf_ok(&w->tensors)) {
        rc = sl_fail(err, SL_ENOMEM, "%s: out of memory", w->out.path);
    } else if (head.n_bytes - sizeof n_header > SL_MAX_ST_HEADER) {
        rc = sl_fail(err, SL_ELIMIT, "%s: header larger than %u bytes", w->out.path,
                     SL_MAX_ST_HEADER);
    } else {
        n_header = head.n_bytes - sizeof n_header;
        memcpy(head.data, &n_header, sizeof n_header);
        rc = sl_tensor_out_begin(&w->out, (const struct sl_buf *const[]){&head}, 1, err);
    }
    sl_buf_deinit(&head);
    return rc;
}

int sl_st_writer_write_tensor_data(struct sl_st_writer *w, const void *data, size_t n_bytes,
                                   struct sl_error *err)
{
    if (n_bytes == 0) /* the data of an empty tensor, which is not waited for */
        return sl_tensor_out_failure(&w->out, err);
    return sl_tensor_out_write(&w->out, data, n_bytes, err);
}

int sl_st_writer_finish(struct sl_st_writer *w, struct sl_error *err)
{
    int rc = sl_tensor_out_finish(&w->out, err);
    sl_st_writer_destroy(w);
    return rc;
}
