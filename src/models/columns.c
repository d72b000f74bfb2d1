/* SPDX-License-Identifier: MIT
 * Matrices divided among ranks by columns, for steps of few tokens on devices.
 *
 * What attention and the middle of an MLP give stays on its rank then: the rank multiplies its own
 * columns of o_proj and down, and ranks add up. That is one meeting in each half of a layer, where
 * rows have two. The bits are those of one device: a backend cuts the columns of a matrix of few
 * rows into segments and adds their sums in order, a rank has whole segments, and their sums are
 * sent before anything is added (sl_op_linear.apart, all_reduce).
 *
 * Of many tokens the sums would be more bytes than what is gathered; so the ranks have these
 * columns beside their rows of such a matrix, 1 / N of it once more.
 */
#include "base/check.h"
#include "models/internal.h"

#include <string.h>

/* Two H200, 8B, us of a layer's meetings by columns and by rows: 4 tokens 10.6 and 14.6, 8 13.4 and
 * 15.8, 16 19.2 and 17.7. */
#define MOST_BYTES (256u << 10) /* of sums that a rank sends to each other one */

/* The matrix whose rows give the columns. */
static bool input_is_even(const struct sl_model *m, const struct sl_param *p)
{
    const enum sl_slot from = p->desc->slot == SL_SLOT_DOWN ? SL_SLOT_UP : SL_SLOT_Q;
    const int32_t layer = (int32_t)(p->layer - m->layers);
    if (from == SL_SLOT_Q) /* whole heads, which divide evenly */
        return p->n_cols == (int64_t)p->layer->n_heads * p->layer->v_dim;
    const struct sl_param *up = sl_param(m, layer, from);
    for (int32_t i = 0; i < m->n_ranks; i++)
        if (up->src == NULL || up->n_rows != p->n_cols ||
            sl_rank_rows(m, up->desc->shard, up->n_rows, i).n * m->n_ranks != p->n_cols)
            return false;
    return true;
}

static bool is_plain(const struct sl_model *m, const struct sl_param *p)
{
    const struct sl_dtype_info *info = sl_dtype_info(p->src->dtype);
    return p->int4 == NULL && p->scale == NULL && !sl_apart(p) && !sl_turned(p) &&
           p->src->data != NULL && (p->desc->flags & SL_W_ROPE_ROWS) == 0 &&
           (info->block_elems == 1 || p->src->dtype == SL_DTYPE_Q8_0) &&
           p->n_cols / m->n_ranks % info->block_elems == 0;
}

bool sl_columns_fit(const struct sl_model *m, const struct sl_backend *be, const struct sl_param *p)
{
    const bool down = p->desc != NULL && p->desc->slot == SL_SLOT_DOWN;
    if (m->n_ranks == 1 || be->vt->all_reduce == NULL || p->desc == NULL || p->src == NULL ||
        (!down && p->desc->slot != SL_SLOT_O) || p->desc->shard != SL_SHARD_ROWS)
        return false;
    const int32_t layer = (int32_t)(p->layer - m->layers);
    if (sl_param(m, layer, down ? SL_SLOT_DOWN_BIAS : SL_SLOT_O_BIAS)->src != NULL ||
        p->layer->mixer != SL_MIX_GQA || (down && p->layer->ffn != SL_FFN_GATED))
        return false;
    return p->n_rows == m->hp.hidden && p->n_rows < SL_SEGMENT_ROWS && p->n_rows % 4 == 0 &&
           p->n_cols % (SL_SEGMENTS * SL_SEGMENT_UNIT) == 0 && SL_SEGMENTS % m->n_ranks == 0 &&
           is_plain(m, p) && input_is_even(m, p);
}

uint64_t sl_columns_bytes(const struct sl_model *m, struct sl_backend *be, const struct sl_param *p)
{
    if (!sl_columns_fit(m, be, p))
        return 0;
    return be->vt->weight_bytes(be, SL_USE_LINEAR, p->src->dtype, p->n_rows,
                                p->n_cols / m->n_ranks);
}

/* Of data in the file, whose rows are as long as the matrix is wide. */
int sl_columns_load(struct sl_model *m, struct sl_param *p, struct sl_error *err)
{
    struct sl_backend *be = m->be;
    if (!sl_columns_fit(m, be, p))
        return 0;
    if (m->columns == NULL)
        m->columns = sl_calloc(m->n_params, sizeof *m->columns);
    if (m->columns == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for the columns of ranks");
    struct sl_weight *w = &m->columns[p - m->params];
    const int64_t n_cols = p->n_cols / m->n_ranks;
    const size_t file_row = (size_t)(p->src->n_bytes / (uint64_t)p->n_rows);
    const size_t row = file_row / (size_t)m->n_ranks;
    SL_ASSERT(file_row % (size_t)m->n_ranks == 0);
    uint8_t *data = sl_aligned_alloc(row * (size_t)p->n_rows);
    if (data == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory loading tensor \"%s\"", p->src->name);
    for (int64_t r = 0; r < p->n_rows; r++)
        memcpy(data + (size_t)r * row, p->src->data + (size_t)r * file_row + (size_t)m->rank * row,
               row);
    int rc = be->vt->weight_create(be, SL_USE_LINEAR, p->src->dtype, p->n_rows, n_cols, data, NULL,
                                   w, err);
    sl_aligned_free(data, row * (size_t)p->n_rows);
    if (rc != 0) {
        *w = (struct sl_weight){0};
        return sl_error_prefix(err, rc, "tensor \"%s\"", p->src->name);
    }
    SL_ASSERT(w->owned); /* devices have a copy */
    w->of_cols = (int32_t)p->n_cols;
    return 0;
}

void sl_columns_unload(struct sl_model *m)
{
    for (size_t i = 0; i < m->n_params && m->columns != NULL; i++)
        if (m->columns[i].data != NULL)
            m->be->vt->weight_destroy(m->be, &m->columns[i]);
    sl_free(m->columns);
    m->columns = NULL;
}

/* NULL: it has none. */
static const struct sl_weight *columns_of(const struct sl_model *m, const struct sl_param *p)
{
    if (m->columns == NULL || p->desc == NULL)
        return NULL;
    SL_ASSERT(p >= m->params && p < m->params + m->n_params);
    const struct sl_weight *w = &m->columns[p - m->params];
    return w->data != NULL ? w : NULL;
}

/* ---------------------------------------------------------------- in a step */

static int32_t n_terms(const struct sl_model *m)
{
    return SL_SEGMENTS / m->n_ranks;
}

static size_t sum_bytes(const struct sl_model *m, int32_t n)
{
    return (size_t)n_terms(m) * (size_t)n * (size_t)m->hp.hidden * sizeof(float);
}

size_t sl_columns_room_bytes(const struct sl_model *m, const struct sl_backend *be,
                             int32_t max_tokens)
{
    bool any = false;
    for (size_t i = 0; i < m->n_params && !any; i++)
        any = sl_columns_fit(m, be, &m->params[i]);
    return any ? SL_MIN(sum_bytes(m, SL_MIN(max_tokens, SL_APART_ROWS)), MOST_BYTES) : 0;
}

bool sl_run_by_columns(const struct sl_run *r, int32_t layer, enum sl_slot slot)
{
    if (r->lora_rows != NULL) /* adapters add to whole rows */
        return false;
    return columns_of(r->m, sl_param(r->m, layer, slot)) != NULL && r->n_tokens <= SL_APART_ROWS &&
           sum_bytes(r->m, r->n_tokens) <= MOST_BYTES;
}

void sl_run_columns(struct sl_run *r, int32_t layer, enum sl_slot slot, const void *x, int32_t n,
                    float *y)
{
    const struct sl_model *m = r->m;
    const struct sl_weight *w = columns_of(m, sl_param(m, layer, slot));
    float *sums = sl_rank_room(&r->rank);
    SL_ASSERT(n <= r->n_tokens && sl_run_by_columns(r, layer, slot));
    m->be->vt->linear(m->be, &(struct sl_op_linear){.x = x,
                                                    .ld_x = w->n_cols,
                                                    .w = w,
                                                    .n = n,
                                                    .out = sums,
                                                    .ld_out = w->n_rows,
                                                    .apart = true});
    m->be->vt->all_reduce(m->be, &(struct sl_op_all_reduce){.rank = &r->rank,
                                                            .part = sums,
                                                            .n_terms = n_terms(m),
                                                            .n = n,
                                                            .h = m->hp.hidden,
                                                            .out = y});
}
