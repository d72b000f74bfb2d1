/* SPDX-License-Identifier: MIT
 * Checkpoints of four-bit whole numbers (GPTQ, AWQ, compressed-tensors' pack-quantized): which
 * tensors a matrix is packed in, and how they become the one format that kernels read, INT4_G128 or
 * INT4_G32 (quant/int4.h). One matrix at a time is in memory twice.
 *
 * "X.weight" is then "X.qweight", "X.scales" and "X.qzeros" (GPTQ, AWQ), or "X.weight_packed",
 * "X.weight_scale" and maybe "X.weight_zero_point". A weight is (code - zero point) * scale in
 * float. The libraries that write such files round that to the scale's own format, f16 or bf16,
 * where they make matrices of it.
 */
#include "base/check.h"
#include "base/str.h"
#include "models/internal.h"
#include "quant/int4_repack.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define ITEM_ROWS 64 /* rows one thread makes at a time, a multiple of SL_INT4_WORD */

/* ---------------------------------------------------------------- names */

struct search { /* the names of a module's tensors: "X." and a suffix */
    const struct sl_ckpt *ckpt;
    const char *module;
    int n_module;
};

static int int4_missing(const char *name, const char *codes, const char *wanted, const char *have,
                        struct sl_error *err)
{
    if (have != NULL)
        return sl_fail(err, SL_EUNSUPPORTED, "tensor \"%s\" is %s, expected %s", name, have,
                       wanted);
    return sl_fail(err, SL_EFORMAT, "tensor \"%s\" is missing; \"%s\" needs it", name, codes);
}

/* A tensor of that format's name, "" any that can be read as floats. codes: whose it is, NULL: its
 * absence is no error. */
static int int4_find(const struct search *s, const char *suffix, const char *format,
                     const char *codes, const struct sl_ckpt_tensor **out, struct sl_error *err)
{
    char name[SL_MAX_TENSOR_NAME + 24];
    snprintf(name, sizeof name, "%.*s%s", s->n_module, s->module, suffix);
    const struct sl_ckpt_tensor *plain = sl_ckpt_find(s->ckpt, name);
    *out = format[0] != '\0' ? sl_ckpt_find_raw(s->ckpt, name, format) : plain;
    if (*out != NULL)
        return 0;
    const char *have =
        plain != NULL ? sl_dtype_info(plain->dtype)->name : sl_ckpt_unsupported(s->ckpt, name);
    if (codes == NULL && have == NULL)
        return 0;
    return int4_missing(name, codes, format[0] != '\0' ? format : "f16 or bf16", have, err);
}

/* ---------------------------------------------------------------- shapes */

static int int4_check_shape(const struct sl_ckpt_tensor *t, int64_t rows, int64_t cols,
                            struct sl_error *err)
{
    const int64_t want[2] = {rows, cols};
    const int32_t n_dims = cols > 0 ? 2 : 1;
    if (t == NULL ||
        (t->n_dims == n_dims && t->dims[0] == rows && (cols == 0 || t->dims[1] == cols)))
        return 0;
    char have_s[96], want_s[64];
    sl_bind_shape(t->n_dims, t->dims, have_s, sizeof have_s);
    sl_bind_shape(n_dims, want, want_s, sizeof want_s);
    return sl_fail(err, SL_EFORMAT, "tensor \"%s\" has shape [%s], expected [%s] (four bits)",
                   t->name, have_s, want_s);
}

static int64_t group_of(const struct sl_model *m, int64_t n_cols)
{
    return m->hp.int4_group > 0 ? m->hp.int4_group : n_cols;
}

/* The format whose blocks lie inside the groups. */
static int choose_format(const struct sl_ckpt_tensor *codes, int64_t n_cols, int64_t group,
                         enum sl_dtype *out, struct sl_error *err)
{
    if (n_cols % group == 0 && group % 128 == 0)
        *out = SL_DTYPE_INT4_G128;
    else if (n_cols % group == 0 && group % 32 == 0)
        *out = SL_DTYPE_INT4_G32;
    else
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor \"%s\": rows of %lld values in groups of %lld are not supported "
                       "(whole groups of a multiple of 32 are)",
                       codes->name, (long long)n_cols, (long long)group);
    return 0;
}

static int check_columns(const struct sl_int4_parts *p, enum sl_int4_kind kind, int64_t n,
                         int64_t k, int64_t groups, struct sl_error *err)
{
    int rc = kind == SL_INT4_AWQ_GEMM ? int4_check_shape(p->codes, k, n / 8, err)
                                      : int4_check_shape(p->codes, k / 8, n, err);
    if (rc == 0 && n % SL_INT4_WORD != 0)
        rc = sl_fail(err, SL_EUNSUPPORTED, "tensor \"%s\": %lld outputs, not a multiple of %d",
                     p->codes->name, (long long)n, SL_INT4_WORD);
    if (rc == 0)
        rc = int4_check_shape(p->scales, groups, n, err);
    return rc != 0 ? rc : int4_check_shape(p->zeros, groups, n / 8, err);
}

static int check_rows(const struct sl_int4_parts *p, int64_t n, int64_t k, int64_t groups,
                      struct sl_error *err)
{
    int rc = int4_check_shape(p->codes, n, k / 8, err);
    if (rc == 0)
        rc = int4_check_shape(p->scales, n, groups, err);
    if (rc == 0)
        rc = int4_check_shape(p->zeros, SL_CEIL_DIV(n, (int64_t)SL_INT4_WORD), groups, err);
    return rc != 0 ? rc : int4_check_shape(p->shape, 2, 0, err);
}

/* ---------------------------------------------------------------- binding */

static int find_parts(const struct search *s, enum sl_int4_kind kind, struct sl_int4_parts *p,
                      struct sl_error *err)
{
    const char *codes = p->codes->name;
    int rc;
    if (kind != SL_INT4_PACKED) {
        if ((rc = int4_find(s, "scales", "", codes, &p->scales, err)) != 0 ||
            (rc = int4_find(s, "qzeros", "I32", codes, &p->zeros, err)) != 0)
            return rc;
        return int4_find(s, "g_idx", "I32", NULL, &p->order, err);
    }
    if ((rc = int4_find(s, "weight_scale", "", codes, &p->scales, err)) != 0 ||
        (rc = int4_find(s, "weight_zero_point", "I32", NULL, &p->zeros, err)) != 0 ||
        (rc = int4_find(s, "weight_shape", "I64", NULL, &p->shape, err)) != 0)
        return rc;
    return int4_find(s, "weight_g_idx", "I32", NULL, &p->order, err);
}

static int check_parts(const struct sl_model *m, struct sl_param *p, struct sl_error *err)
{
    struct sl_int4_parts *q = p->int4;
    const int64_t n = p->file_rows, k = p->n_cols, group = group_of(m, k);
    enum sl_dtype dtype = SL_DTYPE_COUNT;
    int rc = choose_format(q->codes, k, group, &dtype, err);
    if (rc != 0)
        return rc;
    rc = m->hp.int4 == SL_INT4_PACKED ? check_rows(q, n, k, k / group, err)
                                      : check_columns(q, m->hp.int4, n, k, k / group, err);
    if (rc == 0)
        rc = int4_check_shape(q->order, k, 0, err);
    if (rc == 0 && q->scales->dtype != SL_DTYPE_F16 && q->scales->dtype != SL_DTYPE_BF16)
        rc = sl_fail(err, SL_EUNSUPPORTED, "tensor \"%s\" is %s; scales must be f16 or bf16",
                     q->scales->name, sl_dtype_info(q->scales->dtype)->name);
    if (rc == 0 && sl_slot_is_rows(p->desc->slot))
        rc = sl_fail(err, SL_EUNSUPPORTED,
                     "tensor \"%s\": an embedding of four-bit numbers is not supported",
                     q->codes->name);
    if (rc != 0)
        return rc;
    for (int64_t row = 0, part; p->fused && row < p->n_rows; row += part) {
        const int64_t from = sl_apart_row(&m->hp, p, row, &part);
        if (from % SL_INT4_WORD != 0 || (p->n_turns > 1 && part % SL_INT4_WORD != 0))
            return sl_fail(err, SL_EUNSUPPORTED,
                           "tensor \"%s\": a part that begins at row %lld, not a multiple of %d",
                           q->codes->name, (long long)from, SL_INT4_WORD);
    }
    q->made = (struct sl_ckpt_tensor){
        .name = q->codes->name, .dtype = dtype, .n_dims = 2, .dims = {p->n_rows, k, 1, 1}};
    if (!sl_dtype_bytes(dtype, (uint64_t)(p->n_rows * k), &q->made.n_bytes)) /* unreachable: true */
        return sl_fail(err, SL_ELIMIT, "tensor \"%s\" is too large", q->codes->name);
    return 0;
}

int sl_int4_bind(const struct sl_model *m, const char *name, struct sl_param *p,
                 struct sl_error *err)
{
    struct search s = {.ckpt = m->ckpt, .module = name};
    const char *suffix = m->hp.int4 == SL_INT4_PACKED ? "weight_packed" : "qweight";
    const struct sl_ckpt_tensor *codes = NULL;
    if (m->hp.int4 == SL_INT4_NONE || sl_weight_is_values(p->desc) ||
        !sl_ends_with(name, ".weight"))
        return 0;
    s.n_module = (int)(strlen(name) - strlen("weight"));
    int rc = int4_find(&s, suffix, "I32", NULL, &codes, err);
    const size_t n_prefix = sl_bind_optional_prefix(name);
    if (rc == 0 && codes == NULL && n_prefix > 0) {
        s.module += n_prefix;
        s.n_module -= (int)n_prefix;
        rc = int4_find(&s, suffix, "I32", NULL, &codes, err);
    }
    if (rc != 0 || codes == NULL)
        return rc;
    p->int4 = sl_calloc(1, sizeof *p->int4);
    if (p->int4 == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for tensor \"%s\"", codes->name);
    p->int4->codes = codes;
    rc = find_parts(&s, m->hp.int4, p->int4, err);
    if (rc == 0)
        rc = check_parts(m, p, err);
    if (rc != 0)
        return rc;
    p->src = &p->int4->made;
    return 1;
}

size_t sl_int4_n_tensors(const struct sl_param *p)
{
    const struct sl_int4_parts *q = p->int4;
    if (q == NULL || p->file_first > 0) /* counted for the first part of what is fused */
        return 0;
    return 2u + (q->zeros != NULL) + (q->order != NULL) + (q->shape != NULL);
}

void sl_int4_unbind(struct sl_param *p)
{
    sl_free(p->int4);
    p->int4 = NULL;
}

/* ---------------------------------------------------------------- loading */

static int64_t int_at(const struct sl_ckpt_tensor *t, int64_t i)
{
    int32_t v;
    memcpy(&v, t->data + 4 * i, sizeof v);
    return v;
}

/* Columns must be in the order of their groups. compressed-tensors says so by -1 too. */
static int check_order(const struct sl_ckpt_tensor *t, int64_t n_cols, int64_t group,
                       struct sl_error *err)
{
    if (t == NULL || int_at(t, 0) == -1)
        return 0;
    for (int64_t k = 0; k < n_cols; k++)
        if (int_at(t, k) != k / group)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "tensor \"%s\": column %lld is in group %lld, expected %lld: columns in "
                           "another order (desc_act, actorder) are not supported",
                           t->name, (long long)k, (long long)int_at(t, k), (long long)(k / group));
    return 0;
}

static int check_said_shape(const struct sl_param *p, struct sl_error *err)
{
    const struct sl_int4_parts *q = p->int4;
    int64_t said[2];
    if (q->shape == NULL)
        return 0;
    memcpy(said, q->shape->data, sizeof said);
    if (said[0] == p->file_rows && said[1] == p->n_cols)
        return 0;
    return sl_fail(err, SL_EFORMAT, "tensor \"%s\" says [%lld, %lld], expected [%lld, %lld]",
                   q->shape->name, (long long)said[0], (long long)said[1], (long long)p->file_rows,
                   (long long)p->n_cols);
}

struct repack_job {
    const struct sl_hparams *hp;
    const struct sl_param *p;
    struct sl_int4_src src;
    enum sl_dtype dtype;
    struct sl_rows rows; /* to make */
    uint8_t *out;        /* of them */
    size_t row_bytes;
    _Atomic int64_t bad; /* lowest row with a scale that is no number; n_rows: none */
};

static void repack_item(void *arg, uint32_t item, int thread_idx)
{
    struct repack_job *j = arg;
    const int64_t row = (int64_t)item * ITEM_ROWS, n = SL_MIN(j->rows.n - row, ITEM_ROWS);
    (void)thread_idx;
    for (int64_t at = row, part; at < row + n; at += part) {
        const int64_t ours = j->rows.first + at;
        const int64_t from = j->p->fused ? sl_apart_row(j->hp, j->p, ours, &part) : ours;
        part = j->p->fused ? SL_MIN(part, row + n - at) : n;
        const int64_t bad =
            sl_int4_repack(&j->src, j->dtype, from, part, j->out + (size_t)at * j->row_bytes);
        int64_t seen = atomic_load_explicit(&j->bad, memory_order_relaxed);
        while (bad >= 0 && bad < seen && !atomic_compare_exchange_weak(&j->bad, &seen, bad))
            ;
    }
}

static struct sl_int4_src int4_source(const struct sl_model *m, const struct sl_param *p)
{
    const struct sl_int4_parts *q = p->int4;
    static const enum sl_int4_order orders[] = {[SL_INT4_GPTQ_V1] = SL_INT4_GPTQ,
                                                [SL_INT4_GPTQ_V2] = SL_INT4_GPTQ,
                                                [SL_INT4_AWQ_GEMM] = SL_INT4_AWQ,
                                                [SL_INT4_PACKED] = SL_INT4_ROWS};
    return (struct sl_int4_src){
        .order = orders[m->hp.int4],
        .n_rows = p->file_rows,
        .n_cols = p->n_cols,
        .group = group_of(m, p->n_cols),
        .codes = q->codes->data,
        .zeros = q->zeros != NULL ? q->zeros->data : NULL,
        .less_one = m->hp.int4 == SL_INT4_GPTQ_V1,
        .scales = q->scales->data,
        .scale_dtype = q->scales->dtype,
    };
}

int sl_int4_load(struct sl_model *m, struct sl_param *p, struct sl_rows rows, struct sl_error *err)
{
    const struct sl_int4_parts *q = p->int4;
    struct repack_job j = {
        .hp = &m->hp, .p = p, .src = int4_source(m, p), .dtype = q->made.dtype, .rows = rows};
    int rc = check_order(q->order, j.src.n_cols, j.src.group, err);
    if (rc == 0)
        rc = check_said_shape(p, err);
    if (rc != 0)
        return rc;
    j.row_bytes = (size_t)q->made.n_bytes / (size_t)q->made.dims[0];
    p->own_bytes = (size_t)rows.n * j.row_bytes;
    p->copy = sl_aligned_alloc(p->own_bytes);
    if (p->copy == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory loading tensor \"%s\"", q->codes->name);
    j.out = p->copy;
    atomic_init(&j.bad, j.src.n_rows);
    m->be->vt->run_items(m->be, repack_item, &j, (uint32_t)SL_CEIL_DIV(rows.n, (int64_t)ITEM_ROWS));
    if (atomic_load(&j.bad) < j.src.n_rows)
        return sl_fail(err, SL_EFORMAT,
                       "tensor \"%s\": a scale of output %lld is not a finite number",
                       q->scales->name, (long long)atomic_load(&j.bad));
    const struct sl_ckpt_tensor *const parts[] = {q->codes, q->scales, q->zeros, q->order};
    for (size_t i = 0; i < SL_COUNT(parts); i++)
        if (parts[i] != NULL)
            sl_ckpt_drop(m->ckpt, parts[i]);
    return 0;
}
