/* SPDX-License-Identifier: MIT
 * Matrices whose rows do not lie in the file one after another, as kernels read them: parts of a
 * fused tensor that take turns, row by row or head by head, fused tensors that are transposed, and
 * MXFP4 and MXFP8 with codes in one tensor and scales in another. They are made here when the model
 * is loaded, one matrix at a time. Rows are whole in every format of blocks, so that none is
 * changed.
 *
 * MXFP4 of a folder: "X_blocks" u8 [mats, rows, cols / 32, 16], "X_scales" u8 [mats, rows, cols /
 * 32]. Byte i of a block holds its elements 2 i and 2 i + 1, the first in the lower half; a scale
 * is the exponent of a power of two, plus 127. The format of GGUF files has the same codes and
 * scales in blocks of 17 bytes, with elements i and i + 16 in byte i, so no value changes. Of one
 * matrix alone: "X.weight" i8 [rows, cols / 2], "X.scale" f8_e8m0 [rows, cols / 32].
 *
 * MXFP8: codes "X" in E4M3, [rows, cols], and "X_scale_inv" or "X_scale" u8 or e8m0 [rows, cols /
 * 32], such exponents as well. Kernels have no scales for so few columns. A code times a power of
 * two is a BF16 number, so that is what becomes of it, with twice the bytes.
 */
#include "base/check.h"
#include "base/str.h"
#include "models/internal.h"
#include "quant/iq4.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define ITEM_ROWS 32 /* rows one thread makes at a time */
#define MX_BLOCK  32
#define MX_CODES  16 /* bytes of a block's codes */

bool sl_apart(const struct sl_param *p)
{
    return p->mx_codes != NULL ||
           (p->fused && (p->n_turns > 1 || (p->desc->flags & SL_W_TRANSPOSED) != 0));
}

int64_t sl_apart_row(const struct sl_hparams *hp, const struct sl_param *p, int64_t row, int64_t *n)
{
    int32_t part = p->desc->part;
    int64_t first = p->file_first, rows; /* of the part */
    for (;; part++, row -= rows, first += rows) {
        SL_DCHECK(part < SL_MAX_FUSED);
        rows = sl_layer_dim(hp, p->layer, p->desc->fused[part]);
        if (row < rows)
            break;
    }
    rows /= p->n_turns; /* of a round */
    *n = rows - row % rows;
    return row / rows * (p->file_rows / p->n_turns) + first / p->n_turns + row % rows;
}

static int64_t apart_file_row(const struct sl_hparams *hp, const struct sl_param *p, int64_t row)
{
    int64_t n;
    return sl_apart_row(hp, p, row, &n);
}

float sl_apart_value(const struct sl_hparams *hp, const struct sl_param *p, int64_t row)
{
    const struct sl_dtype_info *info = sl_dtype_info(p->src->dtype);
    float x;
    info->to_f32(p->src->data + (size_t)apart_file_row(hp, p, row) * info->block_bytes, &x, 1);
    return x;
}

/* ---------------------------------------------------------------- MXFP4 */

static int apart_check_shape(const struct sl_ckpt_tensor *t, const int64_t *want, int32_t n_want,
                             struct sl_error *err)
{
    char have_s[96], want_s[96];
    if (t->n_dims == n_want && memcmp(t->dims, want, (size_t)n_want * sizeof *want) == 0)
        return 0;
    sl_bind_shape(t->n_dims, t->dims, have_s, sizeof have_s);
    sl_bind_shape(n_want, want, want_s, sizeof want_s);
    return sl_fail(err, SL_EFORMAT, "tensor \"%s\" has shape [%s], expected [%s] (MXFP4)", t->name,
                   have_s, want_s);
}

/* What is made of codes and scales. */
static void apart_as_blocks(struct sl_param *p)
{
    p->slice = (struct sl_ckpt_tensor){.name = p->mx_codes->name,
                                       .dtype = SL_DTYPE_MXFP4,
                                       .n_dims = 2,
                                       .dims = {p->n_rows, p->n_cols, 1, 1}};
    p->slice.n_bytes = (uint64_t)(p->n_rows * (p->n_cols / MX_BLOCK)) * SL_MXFP4_BYTES;
    p->src = &p->slice;
}

int sl_mxfp4_bind(const struct sl_model *m, const char *name, int32_t n, struct sl_param *p,
                  struct sl_error *err)
{
    char codes[SL_MAX_TENSOR_NAME + 8], scales[SL_MAX_TENSOR_NAME + 8];
    snprintf(codes, sizeof codes, "%s_blocks", name);
    snprintf(scales, sizeof scales, "%s_scales", name);
    p->mx_codes = sl_ckpt_find_raw(m->ckpt, codes, "U8");
    if (p->mx_codes == NULL)
        return 0;
    p->mx_scales = sl_ckpt_find_raw(m->ckpt, scales, "U8");
    if (p->mx_scales == NULL)
        return sl_fail(err, SL_EFORMAT, "tensor \"%s\" is missing; \"%s\" needs it (u8)", scales,
                       codes);
    if (p->n_cols % MX_BLOCK != 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor \"%s\": rows of %lld values, not a multiple of %d", codes,
                       (long long)p->n_cols, MX_BLOCK);
    const int64_t shape[] = {n, p->file_rows, p->n_cols / MX_BLOCK, MX_CODES};
    int rc = apart_check_shape(p->mx_codes, shape, 4, err);
    if (rc == 0)
        rc = apart_check_shape(p->mx_scales, shape, 3, err);
    if (rc != 0)
        return rc;
    apart_as_blocks(p);
    return 1;
}

int sl_mxfp4_bind_alone(const struct sl_model *m, const char *name, struct sl_param *p,
                        struct sl_error *err)
{
    char scales[SL_MAX_TENSOR_NAME + 8];
    const struct sl_ckpt_tensor *codes = sl_ckpt_find_raw(m->ckpt, name, "I8");
    if (codes == NULL || !sl_ends_with(name, ".weight"))
        return 0;
    snprintf(scales, sizeof scales, "%.*s.scale", (int)(strlen(name) - strlen(".weight")), name);
    p->mx_scales = sl_ckpt_find_raw(m->ckpt, scales, "F8_E8M0");
    if (p->mx_scales == NULL) /* numbers of another kind */
        return 0;
    p->mx_codes = codes;
    if (p->n_cols % MX_BLOCK != 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor \"%s\": rows of %lld values, not a multiple of %d", name,
                       (long long)p->n_cols, MX_BLOCK);
    int rc = apart_check_shape(p->mx_codes, (int64_t[]){p->n_rows, p->n_cols / 2}, 2, err);
    if (rc == 0)
        rc = apart_check_shape(p->mx_scales, (int64_t[]){p->n_rows, p->n_cols / MX_BLOCK}, 2, err);
    if (rc != 0)
        return rc;
    p->mx_alone = true;
    apart_as_blocks(p);
    return 1;
}

/* One block; false: its scale is no number. */
static bool mx_block(const uint8_t *codes, uint8_t scale, uint8_t *out)
{
    out[0] = scale;
    for (int i = 0; i < MX_CODES; i++) {
        const int low = codes[i / 2] >> 4 * (i % 2) & 15;
        const int high = codes[MX_CODES / 2 + i / 2] >> 4 * (i % 2) & 15;
        out[1 + i] = (uint8_t)(low | high << 4);
    }
    return scale != 0xFF;
}

static bool mx_row(const struct sl_hparams *hp, const struct sl_param *p, int64_t row, uint8_t *out)
{
    const int64_t n = p->n_cols / MX_BLOCK,
                  file_row =
                      p->mx_alone ? row : p->stack_idx * p->file_rows + apart_file_row(hp, p, row),
                  at = file_row * n;
    bool ok = true;
    for (int64_t i = at; i < at + n; i++, out += SL_MXFP4_BYTES)
        ok &= mx_block(p->mx_codes->data + (size_t)i * MX_CODES, p->mx_scales->data[i], out);
    return ok;
}

/* ---------------------------------------------------------------- MXFP8 */

#define MX_SCALE_MAX (127 + 100) /* no product leaves the range of floats; 255 is no number */

int sl_mxfp8_bind(const struct sl_model *m, struct sl_param *p, struct sl_error *err)
{
    static const char *const suffixes[] = {"_scale_inv", "_scale"};
    static const char *const formats[] = {"U8", "F8_E8M0"};
    const struct sl_ckpt_tensor *codes = p->src, *scales = NULL;
    char name[SL_MAX_TENSOR_NAME + 16];
    for (size_t i = 0; i < SL_COUNT(suffixes) * SL_COUNT(formats) && scales == NULL; i++) {
        snprintf(name, sizeof name, "%s%s", codes->name, suffixes[i / SL_COUNT(formats)]);
        scales = sl_ckpt_find_raw(m->ckpt, name, formats[i % SL_COUNT(formats)]);
    }
    const int64_t shape[] = {p->n_rows, p->n_cols / MX_BLOCK};
    const bool named = scales != NULL && sl_ckpt_find_raw(m->ckpt, name, "U8") == NULL;
    if (scales == NULL ||
        (named && (scales->n_dims != 2 || memcmp(scales->dims, shape, sizeof shape) != 0)))
        return 0; /* e8m0 of other blocks is not this format */
    if (p->fused || codes == &p->slice || codes->n_dims != 2)
        return sl_fail(
            err, SL_EUNSUPPORTED,
            "tensor \"%s\": a matrix that is a part of another is not supported as MXFP8",
            codes->name);
    if (p->n_cols % MX_BLOCK != 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor \"%s\": rows of %lld values, not a multiple of %d (MXFP8)",
                       codes->name, (long long)p->n_cols, MX_BLOCK);
    int rc = apart_check_shape(scales, shape, 2, err);
    if (rc != 0)
        return rc;
    p->mx_codes = codes;
    p->mx_scales = scales;
    p->slice = (struct sl_ckpt_tensor){.name = codes->name,
                                       .dtype = SL_DTYPE_BF16,
                                       .n_dims = 2,
                                       .dims = {p->n_rows, p->n_cols, 1, 1}};
    p->slice.n_bytes = (uint64_t)(p->n_rows * p->n_cols) * 2;
    p->src = &p->slice;
    return 1;
}

/* false: a scale is too large, or no number. */
static bool mx8_row(const struct sl_param *p, int64_t row, uint8_t *out)
{
    const struct sl_dtype_info *from = sl_dtype_info(SL_DTYPE_FP8_E4M3),
                               *to = sl_dtype_info(SL_DTYPE_BF16);
    const int64_t n = p->n_cols / MX_BLOCK;
    const uint8_t *codes = p->mx_codes->data + (size_t)(row * p->n_cols);
    const uint8_t *scales = p->mx_scales->data + (size_t)(row * n);
    bool ok = true;
    for (int64_t b = 0; b < n; b++, codes += MX_BLOCK, out += 2 * MX_BLOCK) {
        const float scale = ldexpf(1, scales[b] - 127);
        float x[MX_BLOCK];
        from->to_f32(codes, x, MX_BLOCK);
        for (int i = 0; i < MX_BLOCK; i++)
            x[i] *= scale;
        to->from_f32(x, out, MX_BLOCK);
        ok &= scales[b] <= MX_SCALE_MAX;
    }
    return ok;
}

static bool is_mxfp8(const struct sl_param *p)
{
    return p->mx_codes != NULL && p->src->dtype == SL_DTYPE_BF16;
}

/* ---------------------------------------------------------------- rows */

struct job {
    const struct sl_hparams *hp;
    const struct sl_param *p;
    struct sl_rows rows; /* to make */
    uint8_t *out;
    size_t row_bytes;
    atomic_bool bad; /* a scale is no number */
};

static void apart_put_columns(const struct job *j, int64_t first, int64_t n)
{
    const struct sl_param *p = j->p;
    const size_t elem = sl_dtype_info(p->src->dtype)->block_bytes;
    for (int64_t c = 0; c < p->n_cols; c++) /* the rows of a column are neighbours */
        for (int64_t r = 0; r < n; r++)
            memcpy(j->out + (size_t)(first + r) * j->row_bytes + (size_t)c * elem,
                   p->src->data + (size_t)(c * p->file_rows +
                                           apart_file_row(j->hp, p, j->rows.first + first + r)) *
                                      elem,
                   elem);
}

static void make_rows(void *arg, uint32_t item, int thread_idx)
{
    struct job *j = arg;
    const struct sl_param *p = j->p;
    const int64_t first = (int64_t)item * ITEM_ROWS, n = SL_MIN(j->rows.n - first, ITEM_ROWS);
    (void)thread_idx;
    if (p->mx_codes == NULL && (p->desc->flags & SL_W_TRANSPOSED) != 0) {
        apart_put_columns(j, first, n);
        return;
    }
    for (int64_t r = first; r < first + n; r++) {
        uint8_t *out = j->out + (size_t)r * j->row_bytes;
        if (p->mx_codes == NULL)
            memcpy(out,
                   p->src->data +
                       (size_t)apart_file_row(j->hp, p, j->rows.first + r) * j->row_bytes,
                   j->row_bytes);
        else if (!(is_mxfp8(p) ? mx8_row(p, j->rows.first + r, out)
                               : mx_row(j->hp, p, j->rows.first + r, out)))
            atomic_store_explicit(&j->bad, true, memory_order_relaxed);
    }
}

/* What the matrix was made of is not read again. Its neighbours in the stack are. */
static void apart_drop(const struct sl_model *m, const struct sl_param *p, size_t row_bytes)
{
    const struct sl_ckpt_tensor *const parts[] = {p->mx_codes, p->mx_scales};
    struct sl_ckpt_tensor t = *p->src;
    for (size_t i = 0; i < SL_COUNT(parts) && parts[i] != NULL; i++) {
        t = *parts[i];
        if (!p->mx_alone && !is_mxfp8(p)) { /* else each matrix has tensors of its own */
            t.n_bytes /= (uint64_t)t.dims[0];
            t.data += (size_t)p->stack_idx * (size_t)t.n_bytes;
        }
        sl_ckpt_drop(m->ckpt, &t);
    }
    t.n_bytes = (uint64_t)p->file_rows * row_bytes;
    if (p->mx_codes == NULL)
        sl_ckpt_drop(m->ckpt, &t);
}

int sl_apart_load(struct sl_model *m, struct sl_param *p, struct sl_rows rows, struct sl_error *err)
{
    const struct sl_dtype_info *info = sl_dtype_info(p->src->dtype);
    struct job j = {.hp = &m->hp, .p = p, .rows = rows};
    j.row_bytes = (size_t)p->n_cols / info->block_elems * info->block_bytes;
    p->own_bytes = (size_t)rows.n * j.row_bytes;
    p->copy = sl_aligned_alloc(p->own_bytes);
    if (p->copy == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory loading tensor \"%s\"", p->src->name);
    j.out = p->copy;
    atomic_init(&j.bad, false);
    m->be->vt->run_items(m->be, make_rows, &j, (uint32_t)SL_CEIL_DIV(rows.n, (int64_t)ITEM_ROWS));
    if (atomic_load(&j.bad))
        return sl_fail(err, SL_EFORMAT, "tensor \"%s\": a scale is %s", p->mx_scales->name,
                       is_mxfp8(p) ? "more than 2^100, or not a number"
                                   : "255, which is not a number");
    apart_drop(m, p, j.row_bytes);
    return 0;
}
