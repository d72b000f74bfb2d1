/* SPDX-License-Identifier: MIT
 * Adapters beside matrix products. A x is as many items as there are pieces of eight rows of A, for
 * segments of rows with one adapter; they join the job that prepares a product's activations, so
 * that no thread waits once more. B is multiplied by whoever has just computed the outputs it adds
 * to, while they are in its cache.
 *
 * In a decode with many adapters both are streams through their weights, read once.
 */
#include "cpu/linear.h"

#define RANK_ROWS SL_CPU_ROWS

_Static_assert(SL_LORA_SEG <= SL_CPU_TOKENS, "a segment is one block of tokens");
_Static_assert(SL_I8_PANEL % SL_LORA_PANEL == 0 && SL_CPU_SUPER % SL_LORA_PANEL == 0,
               "outputs begin where a panel of B does");

static int n_mats(const struct sl_linear *l)
{
    return l->up != NULL ? 2 : l->n_parts;
}

static const struct sl_lora_mat *mat_of(const struct sl_linear *l, int32_t adapter, int part)
{
    const struct sl_lora_weights *w = l->lora->rows->weights[adapter];
    SL_DCHECK(l->lora->mat + part < w->n_mats);
    return &w->mats[l->lora->mat + part];
}

static float *sums_of(const struct sl_linear *l, int64_t t, int part)
{
    return l->lora->s + (t * n_mats(l) + part) * l->lora->max_rank;
}

static int64_t n_pieces(const struct sl_linear *l)
{
    return SL_CEIL_DIV(l->lora->rows->max_rank, RANK_ROWS);
}

int64_t sl_lora_n_items(const struct sl_linear *l)
{
    return l->lora->rows->n_segs * n_mats(l) * n_pieces(l);
}

int64_t sl_lora_work(const struct sl_linear *l)
{
    return sl_lora_n_items(l) * RANK_ROWS * l->n_cols;
}

void sl_lora_item(const struct sl_linear *l, int64_t item, int thread_idx)
{
    const struct sl_lora_rows *rows = l->lora->rows;
    const int n_parts = n_mats(l), part = (int)(item / n_pieces(l) % n_parts);
    const struct sl_lora_seg *seg = &rows->segs[item / n_pieces(l) / n_parts];
    const struct sl_lora_mat *m = mat_of(l, seg->adapter, part);
    const int32_t first = (int32_t)(item % n_pieces(l)) * RANK_ROWS;
    if (first >= m->rank)
        return;
    const enum sl_dtype dtype = rows->weights[seg->adapter]->dtype;
    const int n = SL_MIN(m->rank - first, RANK_ROWS);
    const int64_t ld_s = (int64_t)n_parts * l->lora->max_rank;
    struct sl_weight a = {.dtype = dtype,
                          .layout = SL_LAYOUT_ROWS,
                          .n_rows = m->rank,
                          .n_cols = l->n_cols,
                          .data = m->a,
                          .row_bytes = (size_t)l->n_cols * sl_dtype_info(dtype)->block_bytes};
    float *s = sums_of(l, seg->first, part) + first;
    sl_linear_rows_tile(&l->cpu->k, &l->cpu->scratch[thread_idx], &a, first, n,
                        l->x + seg->first * l->ld_x, l->ld_x, seg->n, s, ld_s);
    for (int t = 0; t < seg->n; t++) {
        const float scale = m->scale * rows->scale[seg->first + t];
        for (int j = 0; j < n; j++)
            s[t * ld_s + j] *= scale;
    }
}

/* What sl_lora_add reads of B, NULL: nothing. */
static const uint8_t *piece_of(const struct sl_linear *l, int part, int64_t t, int64_t row,
                               const struct sl_lora_mat **m, enum sl_dtype *dtype)
{
    const struct sl_lora_rows *rows = l->lora->rows;
    const int32_t adapter = rows->adapter[t];
    if (adapter < 0)
        return NULL;
    *m = mat_of(l, adapter, part);
    *dtype = rows->weights[adapter]->dtype;
    SL_DCHECK(row % SL_LORA_PANEL == 0 && (*m)->rank <= l->lora->max_rank);
    return (*m)->rank == 0 ? NULL
                           : (const uint8_t *)(*m)->b + (size_t)row * (size_t)(*m)->rank *
                                                            sl_dtype_info(*dtype)->block_bytes;
}

void sl_lora_ask(const struct sl_linear *l, int part, int64_t t, int64_t row, int n_rows)
{
    const struct sl_lora_mat *m;
    enum sl_dtype dtype;
    const uint8_t *b = t < l->n ? piece_of(l, part, t, row, &m, &dtype) : NULL;
    if (b == NULL)
        return;
    const size_t n = (size_t)SL_ROUND_UP(n_rows, SL_LORA_PANEL) * (size_t)m->rank *
                     sl_dtype_info(dtype)->block_bytes;
    for (size_t i = 0; i < n; i += 64)
        __builtin_prefetch(b + i, 0, 2);
}

void sl_lora_add(const struct sl_linear *l, int part, int64_t t, int64_t row, int n_rows,
                 float *out)
{
    const struct sl_lora_mat *m;
    enum sl_dtype dtype;
    const uint8_t *b = piece_of(l, part, t, row, &m, &dtype);
    if (b != NULL)
        l->cpu->k.lora[dtype](b, sums_of(l, t, part), m->rank, n_rows, out);
}
