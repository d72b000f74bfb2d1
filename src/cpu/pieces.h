/* SPDX-License-Identifier: MIT
 * pieces.h - spans of layers with a recurrent state, cut where a state is stored (struct
 * sl_state_view): of each piece, which page it begins at and which it ends in. Operations on states
 * walk over them, item by item of a span and some columns.
 */
#ifndef SL_CPU_PIECES_H
#define SL_CPU_PIECES_H

#include "base/check.h"
#include "cpu/backend.h"

static inline float *sl_state_page(const struct sl_state_view *v, int32_t page)
{
    SL_DCHECK(page >= 0);
    return (float *)(void *)(v->pool + (size_t)page * v->page_bytes + v->offset);
}

/* What is left of a span. */
struct sl_rest {
    const struct sl_state_view *view;
    const int32_t *table, *drafts;
    const float *begin; /* NULL: zeros */
    float *end;
    int64_t row;
    int32_t pos, n;             /* of the piece that ends at the next stored state */
    int32_t n_behind, n_drafts; /* tokens behind it, and drafts behind these */
};

static inline struct sl_rest sl_rest_of(const struct sl_batch *b, const struct sl_state_view *v,
                                        uint32_t i)
{
    const struct sl_span *s = &b->spans[i];
    struct sl_rest r = {.view = v,
                        .table = sl_batch_tables(b, v->group) + s->table_idx,
                        .row = s->first,
                        .pos = s->pos,
                        .n_behind = s->n - s->n_drafts,
                        .n_drafts = s->n_drafts};
    r.drafts = r.table + SL_CEIL_DIV(s->pos + s->n, v->block_size);
    if (s->pos > 0)
        r.begin = sl_state_page(v, r.table[(s->pos - 1) / v->block_size]);
    return r;
}

static inline bool sl_next_draft(struct sl_rest *r)
{
    if (r->n_drafts == 0)
        return false;
    r->begin = r->end;
    r->end = sl_state_page(r->view, *r->drafts++);
    r->row += r->n;
    r->pos += r->n;
    r->n = 1;
    r->n_drafts--;
    return true;
}

/* The next piece of a span; false: there is none. */
static inline bool sl_next_piece(struct sl_rest *r)
{
    const int32_t size = r->view->block_size, from = r->pos + r->n, to = from + r->n_behind;
    int32_t stop = (from / size + 1) * size;
    if (r->n_behind == 0)
        return sl_next_draft(r);
    while (stop < to && r->table[(stop - 1) / size] < 0)
        stop += size;
    stop = SL_MIN(stop, to);
    if (r->n > 0)
        r->begin = r->end;
    r->end = sl_state_page(r->view, r->table[(stop - 1) / size]);
    r->row += r->n;
    r->pos = from;
    r->n = stop - from;
    r->n_behind -= r->n;
    return true;
}

/* Columns of an item: at most `most` of n, fewer where threads would have no item. */
static inline int32_t sl_part_of(const struct sl_cpu *cpu, int64_t n_items, int32_t n, int32_t most)
{
    const int64_t wanted = 2 * (int64_t)cpu->n_threads;
    int32_t part = SL_MIN(n, most);
    while (part > 16 && n_items * SL_CEIL_DIV(n, part) < wanted)
        part = SL_ROUND_UP(part / 2, 16);
    return part;
}

#endif
