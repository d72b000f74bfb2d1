/* SPDX-License-Identifier: MIT
 * FP8 checkpoints as Hugging Face folders publish them: the tensor of scales that belongs to each
 * matrix of E4M3.
 *
 * All kinds but MXFP8 (apart.c) come down to one: "X.weight" in F8_E4M3, beside it
 * "X.weight_scale_inv", "X.weight_scale" or, in F8_E8M0, "X.scale" with one value for the matrix,
 * one for a row, or one for a block; a weight is code times scale ("inv" too). What a checkpoint
 * leaves unquantised says so by its tensor's format, so lists of such modules are not read.
 * Activations are FP8 too where the checkpoint says that it was made for that and the backend has
 * such products. Their scales are made from the activations, by groups of 128 columns, which is
 * finer than what any kind asks for: scales of the checkpoint (input_scale, activation_scale) are
 * not used, nor those for the KV cache (k_scale, v_scale).
 */
#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
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

static int64_t fp8_count(const struct sl_ckpt_tensor *t)
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
    const int64_t turn_rows =
        p->n_turns * SL_CEIL_DIV(n_rows / p->n_turns, (int64_t)m->hp.scale_rows);
    p->scale_rows = (int32_t)n_rows;
    p->scale_cols = (int32_t)n_cols;
    if (fp8_count(s) == 1 && s->n_dims <= 2)
        return 0;
    p->scale_rows = 1;
    if (s->n_dims <= 2 && s->dims[0] == n_rows && s->dims[1] == 1)
        return 0;
    p->scale_rows = m->hp.scale_rows;
    p->scale_cols = m->hp.scale_cols;
    p->scales_by_turn = p->n_turns > 1 && s->dims[0] == turn_rows;
    if (s->n_dims == 2 && (s->dims[0] == block_rows || p->scales_by_turn) &&
        s->dims[1] == block_cols)
        return 0;
    char have[96];
    sl_bind_shape(s->n_dims, s->dims, have, sizeof have);
    return sl_fail(err, SL_EFORMAT,
                   "tensor \"%s\" has shape [%s], expected [1], [%lld], [%lld, 1] or [%lld, %lld] "
                   "(blocks of %d x %d)",
                   s->name, have, (long long)n_rows, (long long)n_rows, (long long)block_rows,
                   (long long)block_cols, m->hp.scale_rows, m->hp.scale_cols);
}

/* Scales in our order: those of a matrix whose rows lie apart in the file are not. */
static bool is_ordered(const struct sl_param *p)
{
    return p->n_turns == 1 || p->scale_rows == p->file_rows;
}

/* Rows before a row of the file that count for its block of scales. */
static int64_t rows_before(const struct sl_param *p, int64_t file_row)
{
    return p->scales_by_turn ? file_row % (p->file_rows / p->n_turns) : file_row;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* A block of the file may reach over the rows of two parts; blocks as small as what a part has of
 * it have scales of one part each. */
static void fit_blocks(const struct sl_hparams *hp, struct sl_param *p)
{
    p->file_scale_rows = p->scale_rows;
    if (is_ordered(p))
        return;
    for (int64_t row = 0, n, rows = p->scale_rows; row < p->n_rows; row += n) {
        const int64_t from = rows_before(p, sl_apart_row(hp, p, row, &n));
        rows = common_divisor(common_divisor(rows, from), n);
        p->scale_rows = (int32_t)rows;
    }
}

/* "X.scale" beside "X.weight": exponents alone, as the hub's DeepSeek V4 has them. */
static bool fp8_find_exponents(const struct sl_model *m, struct sl_param *p)
{
    char name[SL_MAX_TENSOR_NAME + 8];
    if (!sl_ends_with(p->src->name, ".weight"))
        return false;
    snprintf(name, sizeof name, "%.*s.scale", (int)(strlen(p->src->name) - strlen(".weight")),
             p->src->name);
    p->scale = sl_ckpt_find_raw(m->ckpt, name, "F8_E8M0");
    return p->scale != NULL;
}

/* Of a matrix of a stack that lies in one tensor the scales are some rows of the tensor's. */
static int fp8_bind_exponents(const struct sl_model *m, struct sl_param *p, struct sl_error *err)
{
    const struct sl_weight_desc *w = p->desc;
    const bool stacked = w->mats != SL_DIM_NONE && w->hf != NULL && strchr(w->hf, '#') == NULL;
    const int64_t n = stacked ? sl_layer_dim(&m->hp, p->layer, w->mats) : 1;
    struct sl_ckpt_tensor *own = sl_calloc(1, sizeof *own);
    if (own == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for scales");
    *own = *p->scale;
    p->scale = own;
    p->scale_exponents = true;
    if (n > 1 && (p->scale->dims[0] % n != 0 || p->n_rows % m->hp.scale_rows != 0))
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor \"%s\": blocks of %d rows reach over matrices of %lld",
                       p->scale->name, m->hp.scale_rows, (long long)p->n_rows);
    own->dims[0] /= n;
    own->n_bytes /= (uint64_t)n;
    own->data += n > 1 ? (size_t)p->stack_idx * (size_t)own->n_bytes : 0;
    int rc = read_shape(m, p->src, p->scale, p, err);
    fit_blocks(&m->hp, p);
    return rc;
}

int sl_fp8_bind(const struct sl_model *m, struct sl_param *p, struct sl_error *err)
{
    const struct sl_ckpt_tensor *w = p->src, *inv = NULL, *plain = NULL;
    if (sl_weight_is_values(p->desc) || w->dtype != SL_DTYPE_FP8_E4M3)
        return 0;
    int rc = sl_mxfp8_bind(m, p, err);
    if (rc != 0)
        return SL_MIN(rc, 0);
    rc = find_beside(m, w, "_scale_inv", &inv, err);
    if (rc >= 0)
        rc = find_beside(m, w, "_scale", &plain, err);
    if (rc < 0)
        return rc;
    if (inv == NULL && plain == NULL && fp8_find_exponents(m, p))
        return fp8_bind_exponents(m, p, err);
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
    fit_blocks(&m->hp, p);
    return rc;
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

/* Scales of a row of blocks. */
static int64_t scales_across(const struct sl_param *p)
{
    return SL_CEIL_DIV(p->n_cols, (int64_t)p->scale_cols);
}

uint64_t sl_fp8_scale_bytes(const struct sl_param *p)
{
    if (p->scale == NULL)
        return 0;
    const int64_t n = is_ordered(p)
                          ? fp8_count(p->scale)
                          : SL_CEIL_DIV(p->n_rows, (int64_t)p->scale_rows) * scales_across(p);
    return (uint64_t)n * sizeof(float);
}

uint64_t sl_fp8_scale_bytes_of_file(const struct sl_param *p)
{
    return p->scale != NULL && p->file_first == 0 ? p->scale->n_bytes : 0;
}

/* Scales of rows that lie apart in the file, in our order. */
static void order_scales(const struct sl_hparams *hp, const struct sl_param *p, const float *file)
{
    const int64_t turn_rows = p->file_rows / p->n_turns, n_cols = scales_across(p);
    const int64_t per_turn = SL_CEIL_DIV(turn_rows, (int64_t)p->file_scale_rows);
    for (int64_t row = 0, n; row < p->n_rows; row += p->scale_rows) {
        const int64_t from = sl_apart_row(hp, p, row, &n);
        const int64_t block = rows_before(p, from) / p->file_scale_rows +
                              (p->scales_by_turn ? from / turn_rows * per_turn : 0);
        memcpy(p->scale_values + row / p->scale_rows * n_cols, file + block * n_cols,
               (size_t)n_cols * sizeof *file);
    }
}

static int check_values(const struct sl_ckpt_tensor *s, const float *values, struct sl_error *err)
{
    for (int64_t i = 0; i < fp8_count(s); i++) {
        const double v = (double)values[i];
        if (!(v >= SCALE_MIN && v <= SCALE_MAX))
            return sl_fail(err, SL_EFORMAT, "tensor \"%s\": value %lld is %g, must be %g to %g",
                           s->name, (long long)i, v, SCALE_MIN, SCALE_MAX);
    }
    return 0;
}

int sl_fp8_load(const struct sl_hparams *hp, struct sl_param *p, struct sl_error *err)
{
    const struct sl_ckpt_tensor *s = p->scale;
    if (s == NULL)
        return 0;
    float *file = NULL;
    p->scale_values = sl_aligned_alloc((size_t)sl_fp8_scale_bytes(p));
    if (p->scale_values != NULL && !is_ordered(p))
        file = sl_malloc((size_t)fp8_count(s) * sizeof *file);
    if (p->scale_values == NULL || (file == NULL && !is_ordered(p)))
        return sl_fail(err, SL_ENOMEM, "out of memory loading tensor \"%s\"", s->name);
    float *values = file != NULL ? file : p->scale_values;
    if (!p->scale_exponents)
        sl_dtype_info(s->dtype)->to_f32(s->data, values, fp8_count(s));
    for (int64_t i = 0; i < fp8_count(s) && p->scale_exponents; i++) /* 255: not a number */
        values[i] = s->data[i] != 255 ? ldexpf(1, s->data[i] - 127) : NAN;
    int rc = check_values(s, values, err);
    if (rc == 0 && file != NULL)
        order_scales(hp, p, file);
    sl_free(file);
    return rc;
}

void sl_fp8_unload(struct sl_param *p)
{
    if (p->scale_values != NULL)
        sl_aligned_free(p->scale_values, (size_t)sl_fp8_scale_bytes(p));
    p->scale_values = NULL;
}
