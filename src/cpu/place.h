/* SPDX-License-Identifier: MIT
 * place.h - where a token of a step is: its span, and its position in the pages of a group.
 */
#ifndef SL_CPU_PLACE_H
#define SL_CPU_PLACE_H

#include "ops/ops.h"

/* The span that holds token t. */
static inline const struct sl_span *span_of(const struct sl_batch *b, int32_t t)
{
    int32_t lo = 0, hi = b->n_spans - 1;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo + 1) / 2;
        if (b->spans[mid].first <= t)
            lo = mid;
        else
            hi = mid - 1;
    }
    return &b->spans[lo];
}

struct row_place {      /* of a row's position in the pages */
    uint8_t *page;      /* NULL: another rank has it */
    int32_t tile, slot; /* of the page, of the tile */
};

static inline struct row_place place_of(const struct sl_batch *b, const struct sl_kv_view *kv,
                                        int32_t t)
{
    const struct sl_span *span = span_of(b, t);
    const int32_t pos = span->pos + (t - span->first), bs = kv->block_size;
    const int32_t page = sl_batch_tables(b, kv->group)[span->table_idx + pos / bs];
    if (!sl_kv_is_own(kv, pos))
        return (struct row_place){.page = NULL};
    return (struct row_place){.page = kv->pool + (size_t)page * kv->page_bytes,
                              .tile = sl_kv_slot(kv, pos) / SL_KV_TILE,
                              .slot = pos % SL_KV_TILE};
}

#endif
