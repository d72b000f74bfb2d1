/* SPDX-License-Identifier: MIT
 * Parts of a fused tensor that are transposed there (SL_W_PART_TRANSPOSED): what makes the keys of
 * a head out of a latent row is applied to its query instead, which wants the columns as rows. A
 * format of blocks along the rows has none along the columns, so what is not f32, f16 or bf16
 * becomes bf16, one matrix at a time when the model is loaded.
 */
#include "base/check.h"
#include "models/internal.h"

#include <string.h>

static enum sl_dtype kept_as(enum sl_dtype file)
{
    return file == SL_DTYPE_F32 || file == SL_DTYPE_F16 ? file : SL_DTYPE_BF16;
}

int sl_turned_bind(const struct sl_model *m, struct sl_param *p, const struct sl_ckpt_tensor *t,
                   struct sl_error *err)
{
    const struct sl_dtype_info *file = sl_dtype_info(t->dtype);
    const size_t row_bytes = (size_t)(t->n_bytes / (uint64_t)p->file_rows);
    if (p->n_rows % file->block_elems != 0)
        return sl_fail(err, SL_EFORMAT,
                       "tensor \"%s\" is %s with rows of %lld values, not a multiple of %u",
                       t->name, file->name, (long long)p->n_rows, file->block_elems);
    p->slice = *t;
    p->slice.n_dims = 2;
    p->slice.dims[0] = p->n_cols; /* as it lies there */
    p->slice.dims[1] = p->n_rows;
    p->slice.dims[2] = 1;
    p->slice.data = t->data + (size_t)p->file_first * row_bytes;
    p->src = &p->slice;
    int rc = sl_fp8_bind(m, p, err);
    if (rc != 0)
        return rc;
    p->file_dtype = (uint8_t)t->dtype;
    p->slice.dtype = kept_as(t->dtype);
    p->slice.dims[0] = p->n_rows;
    p->slice.dims[1] = p->n_cols;
    p->slice.n_bytes =
        (uint64_t)(p->n_rows * p->n_cols) * sl_dtype_info(p->slice.dtype)->block_bytes;
    return 0;
}

int sl_turned_load(struct sl_param *p, struct sl_error *err)
{
    const struct sl_dtype_info *file = sl_dtype_info((enum sl_dtype)p->file_dtype),
                               *ours = sl_dtype_info(p->slice.dtype);
    const struct sl_scales scales = {p->scale_values, p->scale_rows, p->scale_cols,
                                     (int32_t)p->file_first};
    const size_t row_bytes = (size_t)p->n_rows / file->block_elems * file->block_bytes;
    float *row = sl_malloc((size_t)p->n_rows * sizeof *row);
    p->own_bytes = (size_t)p->slice.n_bytes;
    p->copy = sl_aligned_alloc(p->own_bytes);
    if (row == NULL || p->copy == NULL) {
        sl_free(row);
        return sl_fail(err, SL_ENOMEM, "out of memory loading tensor \"%s\"", p->src->name);
    }
    for (int64_t r = 0; r < p->n_cols; r++) { /* a row of the file is a column of ours */
        file->to_f32(p->src->data + (size_t)r * row_bytes, row, p->n_rows);
        for (int64_t c = 0; c < p->n_rows && p->scale != NULL; c++)
            row[c] *= sl_scale_at(&scales, p->n_rows, r, c);
        for (int64_t c = 0; c < p->n_rows; c++)
            ours->from_f32(&row[c], p->copy + (size_t)(c * p->n_cols + r) * ours->block_bytes, 1);
    }
    sl_free(row);
    sl_fp8_unload(p);
    return 0;
}
