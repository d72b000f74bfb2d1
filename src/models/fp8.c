/* SPDX-License-Identifier: MIT
 * FP8 checkpoints as Hugging Face folders publish them: the tensor of scales that belongs to each
 * matrix of E4M3.
 *
 * All kinds come down to one: "X.weight" in F8_E4M3, beside it "X.weight_scale_inv" or
 * "X.weight_scale" with one value for the matrix, one for a row, or one for a block; a weight is
 * code times scale ("inv" too). What a checkpoint leaves unquantised says so by its tensor's
 * format, so lists of such modules are not read. Activations are FP8 too where the checkpoint says
 * that it was made for that and the backend has such products. Their scales are made from the
 * activations, by groups of 128 columns, which is finer than what any kind asks for: scales of the
 * checkpoint (input_scale, activation_scale) are not used, nor those for the KV cache (k_scale,
 * v_scale).
 */
#include "base/check.h"
#include "base/str.h"
#include "models/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SCALE_MIN                                                                   \
    0x1p-100 /* so that no product of a code and a scale leaves the range of floats \
              */
#define SCALE_MAX 0x1p100

/* The tensor of that name beside t: 1, 0 = none, or a format that cannot be read. */
static int find_beside(const struct sl_model *m, const struct sl_ckpt_tensor *t, const char *suffix,
                       const struct sl_ckpt_tensor **out, struct sl_error *err)
{
    char name[SL_MAX_TENSOR_NAME + 16];
    snprintf(name, sizeof name, "%s%s", t->name, suffix);
    const char *format = sl_ckpt_unsupported(m->ckpt, name);
    if (format != NULL)
        return sl_fail(err, SL_EUNSUPPORTED, "tensor \"%s\" is %s, a format that is not supported",
                       name, format);
    *out = sl_ckpt_find(m->ckpt, name);
    return *out != NULL;
}

static int64_t count(const struct sl_ckpt_tensor *t)
{
    return t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3]; /* unused ones are 1 */
}

/* The blocks that the shape of the scales means. */
static int read_shape(const struct sl_model *m, const struct sl_ckpt_tensor *w,
                      const struct sl_ckpt_tensor *s, struct sl_param *p, struct sl_error *err)
{
    const int64_t n_rows = p->file_rows, n_cols = w->dims[1]; /* scales are of the whole */
    const int64_t block_rows = SL_CEIL_DIV(n_rows, (int64_t)m->hp.scale_rows);
    const int64_t block_cols = SL_CEIL_DIV(n_cols, (int64_t)m->hp.scale_cols);
    p->scale_rows = (int32_t)n_rows;
    p->scale_cols = (int32_t)n_cols;
    if (count(s) == 1 && s->n_dims <= 2)
        return 0;
    p->scale_rows = 1;
    if (s->n_dims <= 2 && s->dims[0] == n_rows && s->dims[1] == 1)
        return 0;
    p->scale_rows = m->hp.scale_rows;
    p->scale_cols = m->hp.scale_cols;
    if (s->n_dims == 2 && s->dims[0] == block_rows && s->dims[1] == block_cols)
        return 0;
    char have[96];
    sl_bind_shape(s->n_dims, s->dims, have, sizeof have);
    return sl_fail(err, SL_EFORMAT,
                   "tensor \"%s\" has shape [%s], expected [1], [%lld], [%lld, 1] or [%lld, %lld] "
                   "(blocks of %d x %d)",
                   s->name, have, (long long)n_rows, (long long)n_rows, (long long)block_rows,
                   (long long)block_cols, m->hp.scale_rows, m->hp.scale_cols);
}

/* A block of scales is of rows that stay together. */
static int check_turns(const struct sl_model *m, const struct sl_param *p, struct sl_error *err)
{
    for (int64_t row = 0, n; p->n_turns > 1 && p->scale_rows < p->file_rows && row < p->n_rows;
         row += n) {
        const int64_t from = sl_apart_row(&m->hp, p, row, &n);
        if (from % p->scale_rows != 0 || n % p->scale_rows != 0)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "tensor \"%s\": scales of blocks of %d rows, of which parts of %lld "
                           "rows have some each, are not supported",
                           p->scale->name, p->scale_rows, (long long)n);
    }
    return 0;
}

int sl_fp8_bind(const struct sl_model *m, struct sl_param *p, struct sl_error *err)
{
    const struct sl_ckpt_tensor *w = p->src, *inv = NULL, *plain = NULL;
    if (sl_weight_is_values(p->desc) || w->dtype != SL_DTYPE_FP8_E4M3)
        return 0;
    int rc = find_beside(m, w, "_scale_inv", &inv, err);
    if (rc >= 0)
        rc = find_beside(m, w, "_scale", &plain, err);
    if (rc < 0)
        return rc;
    if (inv == NULL && plain == NULL)
        return sl_fail(err, SL_EFORMAT,
                       "tensor \"%s\" is %s without scales: neither \"%s_scale_inv\" nor "
                       "\"%s_scale\" is there",
                       w->name, sl_dtype_info(w->dtype)->name, w->name, w->name);
    if (inv != NULL && plain != NULL)
        return sl_fail(err, SL_EFORMAT, "tensor \"%s\" has two tensors of scales: \"%s\", \"%s\"",
                       w->name, inv->name, plain->name);
    p->scale = inv != NULL ? inv : plain;
    if (p->scale->dtype != SL_DTYPE_F32 && p->scale->dtype != SL_DTYPE_F16 &&
        p->scale->dtype != SL_DTYPE_BF16)
        return sl_fail(err, SL_EUNSUPPORTED, "tensor \"%s\" is %s; scales must be f32, f16 or bf16",
                       p->scale->name, sl_dtype_info(p->scale->dtype)->name);
    rc = read_shape(m, w, p->scale, p, err);
    return rc != 0 ? rc : check_turns(m, p, err);
}

enum sl_weight_use sl_fp8_use(const struct sl_model *m, enum sl_dtype dtype)
{
    const bool fp8 = dtype == SL_DTYPE_FP8_E4M3 && m->hp.fp8_activations;
    return fp8 ? SL_USE_LINEAR_FP8 : SL_USE_LINEAR;
}

bool sl_fp8_is_extra(const char *name)
{
    static const char *const suffixes[] = {".input_scale", ".activation_scale", ".k_scale",
                                           ".v_scale", ".q_scale"};
    for (size_t i = 0; i < SL_COUNT(suffixes); i++)
        if (sl_ends_with(name, suffixes[i]))
            return true;
    return false;
}

uint64_t sl_fp8_scale_bytes(const struct sl_param *p)
{
    return p->scale != NULL ? (uint64_t)count(p->scale) * sizeof(float) : 0;
}

uint64_t sl_fp8_scale_bytes_of_file(const struct sl_param *p)
{
    return p->scale != NULL && p->file_first == 0 ? p->scale->n_bytes : 0;
}

/* Scales of rows that lie apart in the file, in our order. */
static void order_scales(const struct sl_hparams *hp, const struct sl_param *p, const float *file)
{
    const size_t n_cols = (size_t)SL_CEIL_DIV(p->n_cols, (int64_t)p->scale_cols);
    for (int64_t row = 0, n; row < p->n_rows; row += n) {
        const int64_t from = sl_apart_row(hp, p, row, &n) / p->scale_rows;
        memcpy(p->scale_values + (size_t)(row / p->scale_rows) * n_cols,
               file + (size_t)from * n_cols, (size_t)(n / p->scale_rows) * n_cols * sizeof *file);
    }
}

static int load_order(const struct sl_hparams *hp, struct sl_param *p, struct sl_error *err)
{
    const size_t n_bytes = (size_t)sl_fp8_scale_bytes(p);
    if (p->n_turns == 1 || p->scale_rows == p->file_rows)
        return 0;
    float *file = sl_malloc(n_bytes);
    if (file == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory loading tensor \"%s\"", p->scale->name);
    memcpy(file, p->scale_values, n_bytes);
    order_scales(hp, p, file);
    sl_free(file);
    return 0;
}

int sl_fp8_load(const struct sl_hparams *hp, struct sl_param *p, struct sl_error *err)
{
    const struct sl_ckpt_tensor *s = p->scale;
    if (s == NULL)
        return 0;
    const size_t n_bytes = (size_t)sl_fp8_scale_bytes(p);
    p->scale_values = sl_aligned_alloc(n_bytes);
    if (p->scale_values == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory loading tensor \"%s\"", s->name);
    sl_dtype_info(s->dtype)->to_f32(s->data, p->scale_values, count(s));
    for (int64_t i = 0; i < count(s); i++) {
        const double v = (double)p->scale_values[i];
        if (!(v >= SCALE_MIN && v <= SCALE_MAX))
            return sl_fail(err, SL_EFORMAT, "tensor \"%s\": value %lld is %g, must be %g to %g",
                           s->name, (long long)i, v, SCALE_MIN, SCALE_MAX);
    }
    return load_order(hp, p, err);
}

void sl_fp8_unload(struct sl_param *p)
{
    if (p->scale_values != NULL)
        sl_aligned_free(p->scale_values, (size_t)sl_fp8_scale_bytes(p));
    p->scale_values = NULL;
}
